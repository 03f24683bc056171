"""Specification curves: planted truths and falsehoods, calibrated nulls, parity with scikit-learn, choices and errors."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.linear_model import Ridge
from sklearn.preprocessing import StandardScaler

from compolens import HypernetworkTransformer, Run, SoftmaxTransformer, train
from compolens.activations.streams import draw
from compolens.challenge import measured as module
from compolens.challenge.measured import INPUTS, Data, choices, half, left_out, measure, observe, run, shortened
from compolens.challenge.specification_curve import Evidence, Specification, summary
from compolens.foundation.configs import ConfigError, DoesNotApply
from compolens.models import HYLA
from compolens.tasks import FuzzyLogic, Hyperteacher, LinearRegression
from compolens.zoo.folders import TrainedModel

SIZES = {"n_layers": 2, "d_model": 16, "n_heads": 2}
N, PARTS, COMPOSITIONS = 240, 3, 8


def made(architecture, task):
    description = Run(architecture, task, steps=0)
    return TrainedModel(description, description.build().eval(), task, Path("made"), 0)


def specifications(**fixed):
    """All combinations at one made-up place."""
    options = [
        Specification(1, "readout", "site", penalty, rank, hidden, share, 0, "as trained", control)
        for penalty in module.FIXED
        for rank in (None, 8)
        for hidden in (0, 16)
        for share in (1.0, 0.5)
        for control in module.CONTROLS
    ]
    return [s for s in options if all(getattr(s, name) == value for name, value in fixed.items())]


def planted(rng, model, raw, untrained):
    """Features with (1) or without (0) the code in their first directions, beside noise."""
    codes = [torch.from_numpy(rng.standard_normal((N, PARTS))) for _ in range(2)]
    composition = [torch.arange(N) % COMPOSITIONS + start for start in (0, 100)]

    def features(amount):
        maps = torch.from_numpy(rng.standard_normal((PARTS, 10)))
        noise = [torch.from_numpy(rng.standard_normal((N, 10))) for _ in range(2)]
        return tuple(amount * 3 * y @ maps + 0.3 * e if amount else e for y, e in zip(codes, noise, strict=True))

    known = {("", "site", "readout"): model, "raw input": raw, ("untrained control", "site", "readout"): untrained}
    return {
        (0, "as trained"): Data({key: features(amount) for key, amount in known.items()}, tuple(codes), tuple(composition))
    }


# ---- planted claims --------------------------------------------------------------------------------------------------
def test_a_code_that_only_the_model_shows_is_found_by_every_specification():
    evidence = measure(planted(np.random.default_rng(0), 1, 0, 0), specifications(), 20, 0)
    assert (evidence.effect > 0.5).all()
    found = summary(evidence)
    assert found["share positive"] == found["share with interval above 0"] == 1
    assert found["p of median effect, permuted codes"] == pytest.approx(1 / 21)
    assert found["p of median effect, swapped with control"] < 0.02


def test_a_code_that_only_the_controls_show_is_found_by_none():
    evidence = measure(planted(np.random.default_rng(0), 0, 1, 1), specifications(), 20, 0)
    assert (evidence.effect < -0.5).all()
    found = summary(evidence)
    assert found["share positive"] == 0 and found["p of median effect, swapped with control"] > 0.98
    assert found["p of share positive, swapped with control"] == 1


def test_where_model_and_control_know_the_code_alike_only_the_swapped_null_says_that_nothing_is_gained():
    p = [
        summary(measure(planted(np.random.default_rng(seed), 1, 1, 1), specifications(share=1.0, hidden=0), 5, 0))
        for seed in range(6)
    ]
    assert np.mean([x["p of median effect, swapped with control"] for x in p]) > 0.2


def test_p_values_are_uniform_where_there_is_nothing():
    p = []
    for seed in range(30):
        data = planted(np.random.default_rng(seed), 0, 0, 0)
        found = summary(measure(data, specifications(share=1.0, hidden=0, rank=None, penalty=100.0), 19, seed))
        p.append([found[f"p of median effect, {null}"] for null in ("permuted codes", "swapped with control")])
    mean = np.mean(p, axis=0)
    assert (np.abs(mean - 0.5) < 0.16).all(), "three standard errors of a uniform mean of 30"
    assert ((np.array(p) <= 0.1).mean(0) <= 0.3).all() and ((np.array(p) >= 0.9).mean(0) <= 0.3).all()


# ---- numbers ---------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("share", [1.0, 0.5])
def test_a_linear_specification_is_scikit_learns_ridge(share):
    data = planted(np.random.default_rng(1), 1, 0, 0)
    here = data[0, "as trained"]
    (one,) = specifications(penalty=100.0, rank=None, hidden=0, share=share, control="raw input")
    evidence = measure(data, [one], 2, 0)
    rows = here.composition[0] % 2 == 0 if share < 1 else here.composition[0] >= 0
    y, wanted = (part.numpy() for part in here.labels)
    r2 = []
    for source in (("", "site", "readout"), "raw input"):
        x, out = (part.numpy() for part in here.features[source])
        scaler = StandardScaler().fit(x[rows])
        decoded = Ridge(100.0).fit(scaler.transform(x[rows]), y[rows]).predict(scaler.transform(out))
        decoded = decoded.clip(y[rows].min(0), y[rows].max(0))
        r2.append((1 - ((decoded - wanted) ** 2).sum(0) / ((wanted - wanted.mean(0)) ** 2).sum(0)).mean())
    assert evidence.r2.item() == pytest.approx(r2[0], abs=2e-3) and evidence.control.item() == pytest.approx(r2[1], abs=2e-3)
    assert evidence.effect.item() == pytest.approx(evidence.r2.item() - evidence.control.item(), abs=1e-12)
    assert evidence.weight.sum() == pytest.approx(1) and evidence.gain.shape == (1, COMPOSITIONS)


def test_as_many_components_as_there_are_features_change_nothing():
    data = planted(np.random.default_rng(1), 1, 0, 0)
    few, many = (dataclasses.replace(specifications(hidden=0, share=1.0)[0], rank=rank) for rank in (10, None))
    two = dataclasses.replace(few, rank=2)
    evidence = measure(data, [few, many, two], 1, 0)
    assert evidence.r2[0] == pytest.approx(evidence.r2[1]) and evidence.r2[2] < evidence.r2[0]


def test_random_features_decode_what_is_not_linear():
    rng = np.random.default_rng(2)
    x = [torch.from_numpy(rng.uniform(-1, 1, (N, 2))) for _ in range(2)]
    y = tuple(part.abs() for part in x)
    noise = tuple(torch.from_numpy(rng.standard_normal((N, 2))) for _ in range(2))
    composition = (torch.arange(N) % COMPOSITIONS,) * 2
    data = {(0, "as trained"): Data({("", "site", "readout"): tuple(x), "raw input": noise}, y, composition)}
    wanted = specifications(penalty=1.0, rank=None, share=1.0, control="raw input")
    linear, random = measure(data, wanted, 1, 0).r2
    assert linear < 0.1 and random > 0.8


def test_the_penalty_is_chosen_on_left_out_training_compositions():
    """Where every training composition shifts the features its own way, only a strong penalty transfers."""
    rng = np.random.default_rng(3)
    y = [torch.from_numpy(rng.standard_normal((N, 1))) for _ in range(2)]
    composition = (torch.arange(N) % COMPOSITIONS, torch.arange(N) % COMPOSITIONS + 100)
    wide = tuple(torch.from_numpy(rng.standard_normal((N, 150))) + 0.1 * part for part in y)
    noise = tuple(torch.from_numpy(rng.standard_normal((N, 2))) for _ in range(2))
    data = {(0, "as trained"): Data({("", "site", "readout"): wide, "raw input": noise}, tuple(y), composition)}
    small, _, chosen = measure(data, specifications(rank=None, hidden=0, share=1.0, control="raw input"), 1, 0).r2
    assert chosen > small + 0.1


def test_intervals_and_nulls_are_over_compositions():
    gain = np.tile(np.array([[0.5, 0.0, 0.0, 0.0]]), (3, 1))
    evidence = Evidence(gain, np.full((3, 4), 0.25), np.ones(3), np.zeros(3), np.zeros((3, 5)))
    found = summary(evidence)
    assert found["median effect"] == 0.5 and found["share with interval above 0"] == 0, "one composition carries it all"
    assert found["p of median effect, swapped with control"] == pytest.approx(0.5, abs=0.05), "it has two signs only"
    assert found["p of median effect, permuted codes"] == pytest.approx(1 / 6)


# ---- choices ---------------------------------------------------------------------------------------------------------
def test_choices_are_all_combinations_of_what_applies(tiny_task):
    trained = made(HypernetworkTransformer(**SIZES, d_code=6, d_hidden=12), tiny_task)
    found = choices(trained)
    assert len(set(found)) == len(found)
    assert {(s.layer, s.role) for s in found} == {(1, "context"), (1, "readout"), (2, "readout"), (3, "all")}
    assert {s.context for s in found} == {6, 3} and {s.control for s in found} == set(module.CONTROLS)
    assert {s.inputs for s in found} == set(INPUTS)
    assert set(left_out(trained)) == set() or {s.share for s in found} == {1.0}


def test_what_does_not_apply_is_left_out_with_the_reason():
    trained = made(HYLA(n_layers=2, d_model=16, n_heads=4, n_ctx=8), FuzzyLogic(length=8))
    assert left_out(trained)["context length"] == "the family has no number of examples to change"
    assert left_out(trained)["law of inputs"].startswith("the inputs of FuzzyLogic have no symmetric law")
    assert {s.inputs for s in choices(trained)} == {"as trained"}
    assert {s.context for s in choices(trained)} == {0}
    with pytest.raises(DoesNotApply, match="which factors its codes are made of"):
        choices(made(SoftmaxTransformer(**SIZES), LinearRegression(d_x=3, n_context=4)))


def test_a_shorter_context_has_the_same_weights_and_its_own_roles(tiny_task):
    trained = made(SoftmaxTransformer(**SIZES), tiny_task)
    model, task = shortened(trained, trained.model, 3)
    assert task.n_context == 3 and model.roles["readout"] == list(task.answers) == [3, 4, 5]
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), trained.model.parameters(), strict=True))
    assert half(task) == task.compositions("train")[::2]


def test_skewed_inputs_stand_under_the_same_codes_and_are_seen_by_model_and_raw_input(tiny_task):
    trained = made(SoftmaxTransformer(**SIZES), tiny_task)
    (plain,) = draw(tiny_task, "ood", 64, "challenge/0", batch=64)
    x = tiny_task.skewed(plain.inputs)
    rank = [part.flatten().argsort().argsort() for part in (plain.inputs, x)]
    assert torch.equal(*rank), "each coordinate at its own quantile"
    wanted = tiny_task.render(plain.codes, x)
    found = {law: observe({"": (trained.model, tiny_task)}, [("blocks.0.hook_resid_post", "context")], law, 64, 0, "cpu")
             for law in INPUTS}  # fmt: skip
    for law, shown in (("as trained", plain), ("skewed", wanted)):
        torch.testing.assert_close(found[law].features["raw input"][1], tiny_task.raw_statistic(shown))
    assert torch.equal(found["skewed"].labels[1], found["as trained"].labels[1])
    one, other = (found[law].features["", "blocks.0.hook_resid_post", "context"][1] for law in INPUTS)
    assert not torch.allclose(one, other)


def test_the_skewed_law_has_the_mean_and_variance_of_the_symmetric_one():
    task = Hyperteacher(d_x=16)
    (episodes,) = draw(task, "train", 2048, "law", batch=2048)
    for x, skewness in ((episodes.inputs, 0.0), (task.skewed(episodes.inputs), 2.0)):
        moments = [float(x.double().pow(k).mean()) for k in (1, 2, 3)]
        assert moments == pytest.approx([0.0, 1.0, skewness], abs=0.02 if skewness == 0 else 0.05)


# ---- the whole -------------------------------------------------------------------------------------------------------
def test_a_challenge_ends_in_a_table_and_a_curve(tiny_task, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "HIDDEN", (0,))
    monkeypatch.setattr(module, "RANKS", (None,))
    monkeypatch.setattr(module, "FIXED", (1.0, None))
    train(
        Run(SoftmaxTransformer(**SIZES), tiny_task, steps=1, batch_size=8, evaluations=1, evaluation_episodes=32),
        tmp_path / "m",
    )
    table, drawing = run(tmp_path / "m", episodes=64, permutations=2)
    again = run(tmp_path / "m", episodes=64, permutations=2)
    assert table.equals(again.table) and drawing.frame().equals(again.drawing.frame())
    effects = table[table["metric"] == "effect"]
    assert len(effects) == len(choices(module.load(tmp_path / "m")))
    assert np.allclose(effects["value"], effects["r2"] - effects["control r2"])
    assert (effects["lo"] <= effects["value"]).all() and (effects["value"] <= effects["hi"]).all()
    assert {"median effect", "share positive", "p of median effect, permuted codes"} <= set(table["metric"])
    for control, part in effects.groupby("control"):
        median = table[(table["metric"] == "median effect") & (table["control"] == control)]["value"].item()
        assert median == pytest.approx(part["value"].median()) and f"Against the {control}: " in drawing.caption
    shown = drawing.frame()
    curve = shown[(shown["panel"] == "Effect by specification") & (shown["mark"] == "Map")]["y"].to_numpy()
    assert np.array_equal(curve, np.sort(effects["value"]))
    cells = shown[shown["mark"] == "HeatMap"]
    last = cells[cells["x"] == str(len(effects))].dropna(subset="value")
    assert np.allclose(last["value"], effects["value"].max())
    best = effects.loc[effects["value"].idxmax()]
    assert f"vs {best['control']}" in set(last["y"]) and f"inputs {best['inputs']}" in set(last["y"])
    assert drawing.matplotlib() is not None


def test_bad_requests_say_what_to_type(tmp_path):
    with pytest.raises(ConfigError, match=r"no claim 'latent_cod'; did you mean 'latent_code'\?"):
        run(tmp_path, "latent_cod")
    with pytest.raises(ConfigError, match="got 8, 20"):
        run(tmp_path, episodes=8)
