"""Every probe and every analysis, found on disk and run from the command line; and what their numbers mean."""

import dataclasses
import hashlib
import inspect
import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from compolens import Run, cli, recipes, tables
from compolens.activations import draw
from compolens.models import HypernetworkTransformer
from compolens.tasks import SPLITS, Hyperteacher
from compolens.zoo import TrainedModel, load

PROBES, CLAIMS = recipes.built_in("probes"), recipes.built_in("analyses")
EPISODES = 96
MODELS = ("softmax", "hypernetwork")


def command(*arguments):
    assert cli.main([str(a) for a in arguments]) == 0


@pytest.fixture(scope="module")
def models(tiny_models, tmp_path_factory):
    """A folder of two measured models."""
    root = tmp_path_factory.mktemp("measured")
    for name in MODELS:
        shutil.copytree(tiny_models[name], root / name)
    command("probe", *PROBES, root, "--episodes", EPISODES, "--seed", 5)
    return root


@pytest.fixture(scope="module")
def again(tiny_models, tmp_path_factory):
    """The hypernetwork measured once more; then softmax with another seed."""
    root = tmp_path_factory.mktemp("again")
    for name in MODELS:
        shutil.copytree(tiny_models[name], root / name)
    command("probe", *PROBES, root / "hypernetwork", "--episodes", EPISODES, "--seed", 5)
    command("probe", *PROBES, root / "softmax", "--episodes", EPISODES, "--seed", 6)
    return root


@pytest.fixture(scope="module")
def figures(models, tiny_models, tmp_path_factory):
    """Every analysis of the measured models and of one that was not."""
    root = tmp_path_factory.mktemp("figures")
    shutil.copytree(tiny_models["softmax"], root / "models" / "bare")
    command("analyze", *CLAIMS, models, root / "models", "--out", root / "drawn")
    return root


def rows(folder, name, **where):
    """The rows of a table that match."""
    frame = tables.read(folder, name)
    for column, value in where.items():
        frame = frame[frame[column] == value]
    assert len(frame), where
    return frame


def episodes_of(folder, name):
    return pd.read_parquet(folder / "tables" / f"{name}.episodes.parquet")


def digest(path):
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()


# ---- every probe -----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", PROBES)
def test_a_probe_asks_a_question_and_takes_episodes_and_seed(name):
    assert recipes.docstring(PROBES[name]).endswith("?")
    options = recipes.options(recipes.load_recipe("probes", name))
    assert {"episodes", "seed"} <= options.keys()
    assert options["episodes"].annotation is options["seed"].annotation is int
    assert inspect.getdoc(recipes.load_recipe("probes", name))


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("name", PROBES)
def test_a_probe_writes_a_tidy_table_with_finite_values_beside_their_controls(models, name, model):
    table = tables.read(models / model, name)
    assert set(tables.COLUMNS) <= set(table.columns) and table["step"].unique().tolist() == [2]
    own, control = table[table["control"] == ""], table[table["control"] != ""]
    assert len(own) and len(control) and "untrained" in set(control["control"])
    assert np.isfinite(own["value"]).all() and (own["n"] > 0).all()
    assert set(table["split"]) <= set(SPLITS) and {"test", "ood"} <= set(own["split"])
    assert (table["metric"] != "").all() and (table["site"] != "").all() and (table["role"] != "").all()
    bounded = table.dropna(subset=["lo", "hi"])
    assert len(bounded) and (bounded["lo"] <= bounded["hi"]).all()
    note = table["note"].fillna("") if "note" in table else pd.Series("", index=table.index)
    unknown = table[table["value"].isna()]
    assert note[unknown.index].str.startswith("not available: ").all()


@pytest.mark.parametrize("name", PROBES)
def test_a_table_tells_what_it_was_made_from(models, name):
    provenance = json.loads((models / "softmax" / "tables" / f"{name}.json").read_text())
    assert provenance["weights"] == digest(models / "softmax" / "weights.safetensors")
    assert provenance["recipe"] == digest(PROBES[name])
    assert provenance["recipe_path"] is None and provenance["steps"] == [2]
    defaults = {k: p.default for k, p in recipes.options(recipes.load_recipe("probes", name)).items() if p.default is not None}
    assert provenance["arguments"] == defaults | {"episodes": EPISODES, "seed": 5}
    assert provenance["command"] == f"compolens probe {name} softmax"


@pytest.mark.parametrize("name", PROBES)
def test_equal_seeds_give_equal_bytes_and_other_seeds_other_numbers(models, again, name):
    for suffix in (".csv", ".json", ".episodes.parquet"):
        path = Path("tables") / f"{name}{suffix}"
        assert (models / "hypernetwork" / path).read_bytes() == (again / "hypernetwork" / path).read_bytes()
    values = [rows(root / "softmax", name, control="")["value"].tolist() for root in (models, again)]
    assert values[0] != values[1]


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("name", PROBES)
def test_a_probe_leaves_what_it_saw_of_each_episode(models, name, model):
    seen = episodes_of(models / model, name)
    assert {"split", "composition", "score", "step"} <= set(seen.columns) and len(seen)
    assert np.isfinite(seen["score"]).all()
    task = load(models / model).task
    for split, part in seen.groupby("split"):
        assert set(part["composition"]) <= {task.composition_name(c) for c in task.compositions(split)}


def test_a_probe_named_by_path_is_as_good_as_by_name(models, tmp_path):
    shutil.copytree(models / "softmax", tmp_path / "softmax")
    before = (tmp_path / "softmax" / "tables" / "patching.csv").read_bytes()
    command("probe", PROBES["patching"], tmp_path / "softmax", "--episodes", EPISODES, "--seed", 5, "--again")
    assert (tmp_path / "softmax" / "tables" / "patching.csv").read_bytes() == before
    provenance = json.loads((tmp_path / "softmax" / "tables" / "patching.json").read_text())
    assert provenance["recipe_path"] is None


# ---- every analysis --------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", CLAIMS)
def test_an_analysis_is_a_claim_with_needs(name):
    assert recipes.docstring(CLAIMS[name]).endswith(".")
    needs = recipes.load_file(CLAIMS[name]).needs
    assert needs and set(needs) <= set(PROBES)


@pytest.mark.parametrize("name", CLAIMS)
def test_an_analysis_writes_figure_numbers_and_what_was_used(models, figures, name):
    drawn = figures / "drawn"
    assert (drawn / f"{name}.pdf").read_bytes().startswith(b"%PDF")
    assert (drawn / f"{name}.png").read_bytes().startswith(b"\x89PNG")
    numbers = pd.read_csv(drawn / f"{name}.csv")
    assert len(numbers) and numbers[["y", "value"]].notna().any(axis=None)
    sidecar = json.loads((drawn / f"{name}.json").read_text())
    bare = str(figures / "models" / "bare")
    assert sorted(sidecar["runs"]) == sorted(str(models / m) for m in MODELS)
    assert list(sidecar["dropped"]) == [bare] and sidecar["dropped"][bare].startswith("has no table ")
    assert sidecar["claim"] and sidecar["caption"] and sidecar["command"].startswith(f"compolens analyze {name} ")


@pytest.mark.parametrize("name", CLAIMS)
def test_an_analysis_is_a_function_of_the_tables(models, figures, name):
    analyze = recipes.load_recipe("analyses", name)
    used = [Path(m) for m in json.loads((figures / "drawn" / f"{name}.json").read_text())["runs"]]
    drawn = (figures / "drawn" / f"{name}.csv").read_text()
    assert analyze(used).frame().to_csv(index=False, lineterminator="\n") == drawn


@pytest.mark.parametrize("name", CLAIMS)
def test_an_analysis_without_its_tables_names_the_command(figures, capsys, name):
    bare = figures / "models" / "bare"
    assert cli.main(["analyze", name, str(bare), "--out", str(figures / "none")]) == 2
    error = capsys.readouterr().err
    assert f"type: compolens probe {' '.join(recipes.load_file(CLAIMS[name]).needs)} {bare}" in error
    assert len(error.splitlines()) == 1 and not (figures / "none").exists()


def test_stale_tables_are_dropped_with_the_reason(models, tmp_path):
    for name in MODELS:
        shutil.copytree(models / name, tmp_path / name)
    shutil.copy(tmp_path / "softmax" / "steps" / "0.safetensors", tmp_path / "softmax" / "weights.safetensors")
    command("analyze", "who_generalizes", tmp_path, "--out", tmp_path / "figures")
    sidecar = json.loads((tmp_path / "figures" / "who_generalizes.json").read_text())
    assert sidecar["runs"] == [str(tmp_path / "hypernetwork")]
    reason = "generalization: the weights changed since it was measured"
    assert sidecar["dropped"] == {str(tmp_path / "softmax"): reason}


NO_TORCH = """
import sys
from pathlib import Path
from compolens import figures, recipes
for path in recipes.built_in("analyses").values():
    models, _ = recipes.choose_models(path, [Path(a) for a in sys.argv[1:]])
    print(len(recipes.load_recipe("analyses", path)(models).panels) > 0, "torch" in sys.modules)
"""


def test_analyses_do_not_load_torch(models):
    arguments = [str(models / name) for name in MODELS]
    done = subprocess.run([sys.executable, "-c", NO_TORCH, *arguments], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["True False"] * len(CLAIMS)


# ---- generalization --------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("model", MODELS)
def test_pooled_scores_are_weighted_means_over_compositions(models, model):
    table = rows(models / model, "generalization", metric="score")
    table = table[table["value"].notna()]
    keys = ["split", "control", "reference"]
    assert table[keys].drop_duplicates().shape[0] == len(SPLITS) * 6  # the model, its twin, four references
    for _, part in table.groupby(keys):
        pooled, each = part[part["composition"] == "all"], part[part["composition"] != "all"]
        assert len(pooled) == 1 and pooled["n"].item() == each["n"].sum() == EPISODES
        assert pooled["weight"].item() == pytest.approx(each["weight"].sum(), rel=1e-4)
        mean = np.average(each["value"], weights=each["weight"])
        assert pooled["value"].item() == pytest.approx(mean, rel=1e-4, abs=1e-5)
        assert pooled["lo"].item() <= pooled["value"].item() <= pooled["hi"].item()


@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize("model", MODELS)
def test_scores_are_the_tasks_own(models, model, split):
    trained = load(models / model)
    (batch,) = draw(trained.task, split, EPISODES, 5)
    for control, network in (("", trained.model), ("untrained", trained.run.build())):
        with torch.no_grad():
            expected = trained.task.score(network(batch.tokens), batch.targets)
        where = {"metric": "score", "control": control, "split": split, "composition": "all"}
        assert rows(models / model, "generalization", **where)["value"].item() == pytest.approx(expected, rel=1e-4)


def test_the_true_code_scores_1_and_the_twin_is_another_model(models):
    for model in MODELS:
        table = rows(models / model, "generalization", metric="score", composition="all")
        assert table[table["reference"] == "true code"]["value"].tolist() == pytest.approx([1] * 3, abs=1e-5)
        twin, own = (table[table["control"] == control]["value"].tolist() for control in ("untrained", ""))
        assert len(twin) == len(own) == 3 and twin != own


def test_the_score_is_that_of_the_episodes_pooled_with_their_weights(models):
    seen = episodes_of(models / "softmax", "generalization")
    assert seen.groupby("split").size().to_dict() == dict.fromkeys(SPLITS, EPISODES)
    trained = load(models / "softmax")
    for split in SPLITS:
        (batch,) = draw(trained.task, split, EPISODES, 5)
        weight = trained.task.errors(torch.zeros_like(batch.targets), batch.targets)[1].numpy()
        row = rows(models / "softmax", "generalization", metric="score", control="", split=split, composition="all")
        own = seen[seen["split"] == split]["score"].to_numpy()
        assert row["value"].item() == pytest.approx((own * weight).sum() / weight.sum(), rel=1e-4)


def test_answers_per_episode_are_those_of_the_first_query(models):
    trained, seen = load(models / "softmax"), episodes_of(models / "softmax", "generalization")
    (batch,) = draw(trained.task, "ood", EPISODES, 5)
    part = seen[seen["split"] == "ood"]
    first = trained.task.answers[0]
    with torch.no_grad():
        prediction = trained.model(batch.tokens)[:, first]
    np.testing.assert_allclose(np.stack(part["prediction"]), prediction, rtol=1e-5)
    np.testing.assert_allclose(np.stack(part["target"]), batch.targets[:, first], rtol=1e-6)
    assert part["composition"].tolist() == [trained.task.composition_name(c) for c in batch.composition.tolist()]


# ---- latent code -----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("model", MODELS)
def test_readouts_cover_every_layer_and_role_the_explicit_code_and_every_control(models, model):
    table = rows(models / model, "latent_code", metric="r2", dimension="mean")
    own = table[table["control"] == ""]
    sites = {(layer, role) for layer in (0, 1, 2) for role in ("context", "readout")}
    sites |= {(3, "all")} if model == "hypernetwork" else set()
    fits = {("transfer", "test"), ("transfer", "ood"), ("within", "ood"), ("leave one out", "ood")}
    for fit, split in fits:
        part = own[(own["fit"] == fit) & (own["split"] == split)]
        assert set(zip(part["layer"], part["role"], strict=True)) == sites and len(part) == len(sites)
    assert {"shuffled", "control task", "untrained", "raw input"} <= set(table["control"])


@pytest.mark.parametrize("model", MODELS)
def test_decoded_codes_per_episode_pool_to_the_tables_r2_and_recovery(models, model):
    seen = episodes_of(models / model, "latent_code")
    assert seen[["site", "role"]].drop_duplicates().shape[0] == 1
    for split, part in seen.groupby("split"):
        where = {"site": part["site"].iloc[0], "role": part["role"].iloc[0], "split": split, "control": "", "fit": "transfer"}
        code, decoded = np.stack(part["code"]), np.stack(part["decoded"])
        each = 1 - ((code - decoded) ** 2).sum(0) / ((code - code.mean(0)) ** 2).sum(0)
        r2 = rows(models / model, "latent_code", metric="r2", **where).set_index("dimension")["value"]
        assert r2["mean"] == pytest.approx(each.mean(), rel=1e-3, abs=1e-4)
        assert [r2[f"modules[{i}]"] for i in range(6)] == pytest.approx(each, rel=1e-3, abs=1e-4)
        exact = ((decoded > 0.25) == (code != 0)).all(1)
        assert (exact == part["active_set_exact"]).all() and len(part) == EPISODES
        share = rows(models / model, "latent_code", metric="active set exact", **where)["value"].item()
        assert share == pytest.approx(exact.mean(), rel=1e-4)


@dataclasses.dataclass(frozen=True)
class Telling(Hyperteacher):
    """Remembers the codes it drew last, so that a hook can be told."""

    def sample(self, *arguments, **keywords):
        episodes = super().sample(*arguments, **keywords)
        self.__dict__["last"] = episodes.codes["modules"]
        return episodes


@pytest.fixture(scope="module")
def told(tiny_task):
    """A model whose explicit code is the true code."""
    task = Telling(**{f.name: getattr(tiny_task, f.name) for f in dataclasses.fields(tiny_task)})
    run = Run(HypernetworkTransformer(n_layers=2, d_model=16, n_heads=2, d_code=6, d_hidden=6), task, steps=0)
    model = run.build().eval()
    model.add_hook("hook_code", lambda code, hook: task.last[:, None].clone(), is_permanent=True)
    return TrainedModel(run, model, task, Path("told"), 0)


@pytest.fixture(scope="module")
def told_table(told):
    table, seen = recipes.load_recipe("probes", "latent_code")(told, episodes=240)
    return table, seen


def at_code(table, **where):
    for column, value in {"site": "hook_code", **where}.items():
        table = table[table[column] == value]
    assert len(table), where
    return table


def test_a_code_that_is_there_transfers_perfectly_and_is_chosen_as_the_best_site(told_table):
    table, seen = told_table
    for split in ("test", "ood"):
        for metric in ("r2", "active set exact"):
            own = at_code(table, metric=metric, fit="transfer", split=split, control="")
            np.testing.assert_allclose(own["value"], 1, atol=1e-6)
    np.testing.assert_allclose(at_code(table, metric="r2", fit="leave one out", control="")["value"], 1, atol=1e-6)
    assert set(seen["site"]) == {"hook_code"} and seen["active_set_exact"].all()
    np.testing.assert_allclose(np.stack(seen["decoded"]), np.stack(seen["code"]), atol=1e-5)


def test_controls_do_not_find_a_code_that_is_there(told_table):
    table, _ = told_table
    for split in ("test", "ood"):
        pooled = {"metric": "r2", "dimension": "mean", "fit": "transfer", "split": split}
        assert at_code(table, control="shuffled", **pooled)["value"].item() < 0.05
        task = at_code(table, control="control task", **pooled)["value"].item()
        selectivity = at_code(table, metric="selectivity", split=split, control="")["value"].item()
        assert task < 0.5 and selectivity == pytest.approx(1 - task, abs=1e-6)
        twin = at_code(table, control="untrained", **pooled)["value"].item()
        assert twin < 0.9, "the twin has the same weights, but nobody tells it the code"


def test_penalties_and_training_readouts_do_not_see_held_out_compositions(told, monkeypatch):
    probe = recipes.load_recipe("probes", "latent_code")
    original = probe.__globals__["draw"]

    def tampered(task, split, n, seed, *more):
        return original(task, split, n, f"{seed}/tampered" if split == "ood" else seed, *more)

    table, _ = probe(told, episodes=120)
    monkeypatch.setitem(probe.__globals__, "draw", tampered)
    other, _ = probe(told, episodes=120)
    assert len(set(table["l2"].dropna())) > 1
    pd.testing.assert_series_equal(table["l2"], other["l2"])
    test = table["split"] == "test"
    pd.testing.assert_frame_equal(table[test], other[test])
    held_out = table[(table["split"] == "ood") & (table["site"] == "blocks.1.hook_resid_post")]
    assert not held_out["value"].equals(other.loc[held_out.index, "value"])


def test_a_penalty_may_be_given(told):
    table, _ = recipes.load_recipe("probes", "latent_code")(told, episodes=60, l2=3.0)
    assert set(table["l2"].dropna()) == {3.0}


# ---- patching --------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("control", ["", "untrained"])
@pytest.mark.parametrize("split", ["test", "ood"])
@pytest.mark.parametrize("model", MODELS)
def test_the_context_decides_at_first_the_readout_at_last_whatever_the_weights(models, model, split, control):
    table = rows(models / model, "patching", split=split, control=control).set_index(["layer", "role"])["value"]
    assert table[0, "context"] == table[2, "readout"] == 1
    assert table[0, "readout"] == table[2, "context"] == 0
    assert 0 < abs(table[1, "context"]) != 1, "in between, something has to be measured"
    if model == "hypernetwork":
        assert table[3, "all"] == 1


@pytest.mark.parametrize("model", MODELS)
def test_patching_every_position_recovers_everything_at_every_layer(models, model):
    trained, patch = load(models / model), recipes.load_recipe("probes", "patching").__globals__["_patch"]
    (base,) = draw(trained.task, "ood", 10, 0)
    points = [(layer, f"blocks.{layer}.hook_resid_pre", "all") for layer in (0, 1)]
    results = dict(patch(trained.task, trained.model, base, points, third=True))
    for point in points:
        error, weight, _ = results[point, ""]
        assert (error == 0).all() and (weight > 0).all()
        wrong, same, _ = results[point, "another code"]
        assert (wrong > 0).all() and (same == weight).all()


def test_a_patch_shows_the_same_inputs_under_another_episodes_code(models):
    trained, under = load(models / "softmax"), recipes.load_recipe("probes", "patching").__globals__["_under_other_codes"]
    (base,) = draw(trained.task, "ood", 10, 0)
    source = under(trained.task, base, 1)
    assert torch.equal(source.inputs, base.inputs)
    assert torch.equal(source.codes["modules"], base.codes["modules"].roll(1, 0))
    assert torch.equal(source.targets, trained.task.answer(source.codes, base.inputs))


def test_recovery_per_episode_is_exact_where_it_has_to_be(models):
    seen = episodes_of(models / "hypernetwork", "patching")
    assert (seen[seen["site"] == "hook_code"]["score"] == 1).all()
    first = seen[(seen["layer"] == 0) & (seen["role"] == "readout")]
    assert len(first) == 2 * EPISODES and (first["score"] == 0).all()
