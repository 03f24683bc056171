"""Repairs: what lies after a site, what a fine-tuning may touch, and broken models whose repair is known by construction."""

import copy
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch

from compolens import HypernetworkTransformer, Hyperteacher, Run, load
from compolens.activations.sites import EVERYWHERE, Site, sites
from compolens.activations.streams import draw, record
from compolens.foundation.configs import ConfigError, DoesNotApply
from compolens.interventions.oracles import code_features
from compolens.interventions.repairs import (
    Budget,
    fine_tune,
    folds,
    parameters_downstream,
    parameters_upstream,
    random_masks,
    size,
    whole,
)
from compolens.measures.erasure import Eraser
from compolens.models import LinearSelfAttention
from compolens.recipes import load_recipe
from compolens.tasks import LinearRegression
from compolens.zoo.folders import TrainedModel

SHORT = Budget(steps=2, batch=8, lr=1e-2)


@pytest.fixture(scope="module")
def softmax(tiny_models):
    return load(tiny_models["softmax"])


@pytest.fixture(scope="module")
def hypernetwork(tiny_models):
    return load(tiny_models["hypernetwork"])


def some(task, split="test", n=4):
    (found,) = draw(task, split, n, 0)
    return found


def names(model, *prefixes):
    return {name for name, _ in model.named_parameters() if name.startswith(prefixes)}


def weights(model):
    return {name: p.detach().clone() for name, p in model.named_parameters()}


# ---- which parameters ------------------------------------------------------------------------------------------------
AFTER = {0: ("blocks.", "ln_final", "unembed"), 1: ("blocks.1.", "ln_final", "unembed"), 2: ("ln_final", "unembed")}


@pytest.mark.parametrize("architecture", ["softmax", "hypernetwork"])
def test_downstream_of_a_site_are_the_blocks_from_its_layer_on_and_what_follows_them(architecture, request):
    trained = request.getfixturevalue(architecture)
    model, shown = trained.model, some(trained.task)
    for site in sites(model):
        prefixes = () if site.hook_name == "hook_code" else AFTER[site.layer]
        after = parameters_downstream(model, shown, site)
        assert after == names(model, *prefixes, "executor"), site
        assert parameters_upstream(model, shown, site) == names(model, "") - after
    roles = {site.role for site in sites(model)}
    assert {"context", "readout", EVERYWHERE} <= roles and len(names(model, "executor")) == 3 * (
        architecture == "hypernetwork"
    )


def test_shared_weights_are_never_upstream_alone():
    task = LinearRegression(d_x=3, n_context=4)
    model = Run(LinearSelfAttention(n_layers=2, tied=True, init_scale=1.0), task, steps=0).build()
    site = Site(1, "blocks.0.hook_resid_post", "context")
    assert parameters_downstream(model, some(task), site) == names(model, "")
    assert parameters_upstream(model, some(task), site) == frozenset()


def test_random_masks_free_exactly_as_many_scalars_as_asked_for_and_only_of_those_named(softmax):
    allowed = names(softmax.model, "blocks.1.", "unembed")
    total = size(whole(softmax.model, allowed))
    for n in (1, 17, total - 1, total):
        masks = random_masks(softmax.model, allowed, n, torch.Generator().manual_seed(n))
        assert size(masks) == n and set(masks) == allowed
    one, other = (random_masks(softmax.model, allowed, 100, torch.Generator().manual_seed(k)) for k in (0, 1))
    assert any(not torch.equal(one[name], other[name]) for name in allowed)
    with pytest.raises(ConfigError, match=f"cannot free {total + 1} scalars; allowed: 1 to {total}"):
        random_masks(softmax.model, allowed, total + 1, torch.Generator())


# ---- fine-tuning -----------------------------------------------------------------------------------------------------
def test_fine_tuning_changes_the_masked_scalars_alone_and_never_the_model_given(softmax):
    model, task = softmax.model, softmax.task
    before = weights(model)
    masks = random_masks(model, names(model, "blocks.1.mlp", "embed"), 60, torch.Generator().manual_seed(0))
    repaired = weights(fine_tune(model, task, masks, task.compositions("ood"), SHORT, 0))
    assert all(torch.equal(before[name], now) for name, now in weights(model).items())
    for name, value in repaired.items():
        changed = value != before[name]
        assert not (changed & ~masks.get(name, torch.zeros_like(changed))).any(), name
    moved = sum(int((repaired[name] != before[name]).sum()) for name in masks)
    assert 50 <= moved <= 60, "nearly every free scalar has a slope"
    assert not any(p.grad is not None or not p.requires_grad for p in model.parameters())


def test_the_first_step_follows_the_slope_of_the_loss_on_a_batch_of_both_kinds(softmax):
    """Adam's first step is rate times the sign of the slope, here of an independently drawn and averaged batch."""
    model, task, half = copy.deepcopy(softmax.model), softmax.task, task_fold(softmax.task)
    batches = [draw(task, "ood", 8, "s/repair", compositions=half), draw(task, "train", 8, "s/repair")]
    losses = [task.loss(model(batch.tokens), batch.targets) for (batch,) in batches]
    slopes = torch.autograd.grad(sum(losses) / 2, list(model.parameters()))
    masks = whole(softmax.model, names(model, ""))
    repaired = fine_tune(softmax.model, task, masks, half, Budget(steps=1, batch=16, lr=1e-3), "s")
    steep = 0
    for slope, old, new in zip(slopes, model.parameters(), repaired.parameters(), strict=True):
        clear = slope.abs() > 1e-4
        torch.testing.assert_close((new - old)[clear], -1e-3 * slope.sign()[clear], rtol=1e-3, atol=1e-6)
        steep += int(clear.sum())
    assert steep > 1000


def task_fold(task):
    return folds(task, 0)[0]


def test_equal_seeds_give_equal_bytes(softmax):
    masks = whole(softmax.model, names(softmax.model, "unembed"))
    made = [
        weights(fine_tune(softmax.model, softmax.task, masks, task_fold(softmax.task), SHORT, seed))["unembed.W_U"]
        for seed in (0, 0, 1)
    ]
    assert torch.equal(made[0], made[1]) and not torch.equal(made[0], made[2])


def test_folds_part_the_held_out_compositions(softmax):
    task = softmax.task
    for seed in range(4):
        first, second = folds(task, seed)
        assert sorted(first + second) == sorted(task.compositions("ood")) and first and second
        assert folds(task, seed) == (first, second)
    assert len({folds(task, seed) for seed in range(20)}) > 1
    pairs = ((0, 1), (1, 2), (2, 3))
    alone = Hyperteacher(n_modules=4, support=tuple((m,) for m in range(4)), held_out=pairs[:1])
    with pytest.raises(DoesNotApply, match="Hyperteacher holds out 1 composition; two folds need at least 2"):
        folds(alone, 0)


def test_bad_input_says_what_is_allowed(softmax):
    model, task = softmax.model, softmax.task
    with pytest.raises(ConfigError, match="batch must be even"):
        Budget(batch=7)
    with pytest.raises(ConfigError, match="lr must be positive"):
        Budget(lr=0.0)
    with pytest.raises(ConfigError, match=r"no parameter 'unembed.W'; did you mean 'unembed.W_U'"):
        whole(model, ["unembed.W"])
    masks = whole(model, ["unembed.W_U"])
    with pytest.raises(ConfigError, match="the masks free no scalar"):
        fine_tune(model, task, {"unembed.W_U": ~masks["unembed.W_U"]}, task_fold(task), SHORT, 0)
    with pytest.raises(ConfigError, match="its mask"):
        fine_tune(model, task, {"unembed.b_U": masks["unembed.W_U"]}, task_fold(task), SHORT, 0)
    with pytest.raises(ConfigError, match="is not in split 'ood'"):
        fine_tune(model, task, masks, task.compositions("train"), SHORT, 0)


# ---- the probe -------------------------------------------------------------------------------------------------------
def rows(table, **where):
    for column, value in ({"composition": "all", "control": ""} | where).items():
        table = table[table[column] == value]
    return table.set_index("where")


def test_every_held_out_composition_is_scored_by_the_model_that_was_not_trained_on_it(softmax, monkeypatch):
    """Both folds' models are put in the place of trained ones: whose score a composition has tells which was asked."""
    probe, task, untrained = load_recipe("probes", "repair"), softmax.task, softmax.untrained_control()
    first, second = folds(task, 3)
    made = {first: softmax.model, second: untrained}
    monkeypatch.setitem(probe.__globals__, "fine_tune", lambda model, task, masks, part, budget, seed: made[part])
    table, seen = probe(softmax, episodes=60, fitted=60, draws=0, seed=3)
    mended = table[(table["repair"] == "fine-tuned") & (table["metric"] == "score") & (table["control"] == "")]
    for split in ("test", "ood"):
        (shown,) = draw(task, split, 60, "3/score")
        error = {part: task.errors(m(shown.tokens).detach(), shown.targets)[0] for part, m in made.items()}
        weight = task.errors(untrained(shown.tokens).detach(), shown.targets)[1]
        for row in mended[(mended["split"] == split) & (mended["composition"] != "all")].itertuples():
            its = torch.tensor([task.composition_name(int(c)) == row.composition for c in shown.composition])
            number = int(shown.composition[its][0])
            lost = (error[first] + error[second]) / 2 if split == "test" else error[second if number in first else first]
            assert row.value == pytest.approx(float(1 - lost[its].sum() / weight[its].sum()), rel=1e-9)
    assert {"split", "composition", "score", "code_written", "fine_tuned"} == set(seen.columns) and len(seen) == 120


def test_gains_are_differences_of_scores_and_the_placebo_beaten_is_the_best(hypernetwork):
    probe = load_recipe("probes", "repair")
    table, _ = probe(hypernetwork, episodes=48, fitted=64, tuning_steps=1, batch=8, draws=2, seed=1)
    pooled = table[table["composition"] == "all"]
    keys = ["split", "repair", "where", "control", "site", "role"]
    score, gain = (pooled[pooled["metric"] == metric].set_index(keys)["value"] for metric in ("score", "gain"))
    for key, value in gain.items():
        untouched = score.xs(("none", "nowhere", key[3] if key[3] == "untrained" else ""), level=keys[1:4]).xs(key[0]).item()
        assert value == pytest.approx(score[key] - untouched, abs=1e-9)
    for split in ("test", "ood"):
        for repair in ("code written", "fine-tuned"):
            beaten = rows(table, metric="beats placebos", split=split, repair=repair)["value"].item()
            blamed = rows(table, metric="gain", split=split, repair=repair)["value"].item()
            assert beaten == pytest.approx(
                blamed - gain.xs((split, repair, "placebo"), level=("split", "repair", "control")).max()
            )
    tuned = pooled[(pooled["repair"] == "fine-tuned") & (pooled["metric"] == "score") & (pooled["split"] == "ood")]
    free = tuned[tuned["control"] != "untrained"].set_index("where")["free"]
    total = sum(p.numel() for p in hypernetwork.model.parameters())
    assert free["blamed"] == free["random 0"] == free["random 1"] == total - free["upstream"]


def test_a_kind_of_repair_that_is_not_possible_is_said_so():
    task = Hyperteacher(
        d_x=4, d_y=2, d_hidden=6, n_modules=3, n_context=6, n_queries=3, support=((0,), (1,), (2,)), held_out=((0, 1),)
    )
    run = Run(HypernetworkTransformer(n_layers=1, d_model=8, n_heads=2, d_code=3, d_hidden=6), task, steps=0)
    model = TrainedModel(run, run.build().eval(), task, Path("one"), 0)
    table, seen = load_recipe("probes", "repair")(model, episodes=32, fitted=32)
    said = table[table["value"].isna()]
    assert said["note"].str.startswith("not available: Hyperteacher holds out 1 composition").all()
    assert set(said["repair"]) == {"fine-tuned"} and (said["control"] != "").all() and "fine_tuned" not in seen
    with pytest.raises(ConfigError, match="draws counts random sets"):
        load_recipe("probes", "repair")(model, draws=-1)


# ---- broken models whose repair is known -----------------------------------------------------------------------------
@dataclass(frozen=True)
class SpeltOut(Hyperteacher):
    """The context shows the code itself in the place of the answers, so that little training makes a good encoder."""

    def _render(self, codes, x, composition):
        shown = super()._render(codes, x, composition)
        tokens = shown.tokens.clone()
        tokens[:, : self.n_context, self.d_x : -1] = codes["modules"][:, None]
        return shown._replace(tokens=tokens)


@pytest.fixture(scope="module")
def sound():
    """A hypernetwork model that answers all compositions: the teacher's own executor, an encoder trained on all of them."""
    support = ((0,), (1,), (2,), (3,), (0, 2), (1, 3))
    task = SpeltOut(d_x=3, d_y=4, d_hidden=4, n_modules=4, n_context=4, n_queries=3, support=support)
    run = Run(HypernetworkTransformer(n_layers=2, d_model=16, n_heads=2, d_code=4, d_hidden=4), task, steps=0)
    model = run.build().eval()
    with torch.no_grad():
        model.executor.W_modules.copy_(task.teacher[0])
        model.executor.W_out.copy_(task.teacher[1])
    encoder = whole(model, names(model, "") - names(model, "executor"))
    trained = fine_tune(model, task, encoder, task.compositions("ood"), Budget(steps=120, batch=64, lr=1e-2), 9)
    return TrainedModel(run, trained, task, Path("sound"), 0)


def broken(sound, edit):
    model = copy.deepcopy(sound.model)
    with torch.no_grad():
        edit(model)
    return TrainedModel(sound.run, model, sound.task, Path("broken"), 0)


def score(trained, split="ood"):
    shown = some(trained.task, split, 256)
    return trained.task.score(trained.model(shown.tokens).detach(), shown.targets)


def test_where_the_executor_is_broken_training_it_gains_more_than_training_the_encoder(sound):
    def forget_a_module(model):
        model.executor.W_modules[2] = 0

    worse = broken(sound, forget_a_module)
    assert score(worse) < 0.7 < 0.9 < score(sound)
    probe = load_recipe("probes", "repair")
    table, _ = probe(worse, episodes=128, fitted=256, tuning_steps=60, batch=32, lr=2e-2, draws=1)
    gain = table[(table["metric"] == "gain") & (table["split"] == "ood") & (table["composition"] == "all")]
    tuned = gain[(gain["repair"] == "fine-tuned") & (gain["control"] != "untrained")].set_index("where")["value"]
    assert tuned["blamed"] > 0.15
    assert tuned["blamed"] > tuned["upstream"] + 0.1 and tuned["blamed"] > tuned["random 0"] + 0.05
    overlap = gain[gain["where"] == "random 0"]["overlap"].item()
    assert overlap == 0 or gain[gain["where"] == "upstream"]["free"].item() < gain[gain["where"] == "blamed"]["free"].iloc[0]
    written = rows(table, metric="gain", split="ood", repair="code written")
    assert written["site"].tolist() == ["hook_code"] and written["value"].item() < 0.05


def test_where_the_encoder_is_broken_writing_the_code_gains_more_than_every_placebo(sound):
    """What the unembedding adds is uncorrelated with the code, so the means that are written are the sound model's."""

    def add_noise(model):
        shown = some(sound.task, "train", 256)
        (seen,) = record(model, [shown], ["ln_final.hook_normalized", "hook_code"])
        x = seen.sites["ln_final.hook_normalized"][:, -1] * model.ln_final.w + model.ln_final.b
        unrelated = Eraser.fit(x, code_features(sound.task, shown.codes)).projection.T.to(x)
        extra = unrelated @ torch.randn(16, 4, generator=torch.Generator().manual_seed(0))
        extra *= 0.7 * seen.sites["hook_code"].std() / (x @ extra).std(0).mean()
        model.unembed.W_U += extra
        model.unembed.b_U -= (x @ extra).mean(0)

    worse = broken(sound, add_noise)
    assert score(worse) < 0.6
    table, _ = load_recipe("probes", "repair")(worse, episodes=128, fitted=256, tuning_steps=1, draws=1)
    written = rows(table, metric="gain", split="ood", repair="code written")
    assert written["site"].tolist() == ["hook_code"] and written["value"].item() > 0.3
    beaten = rows(table, metric="beats placebos", split="ood", repair="code written")
    assert beaten["lo"].item() > 0.05 and np.isfinite(beaten["value"]).all()


def test_what_feeds_the_blamed_site_is_on_the_way_to_it_and_no_placebo(sound):
    """In the sound model the code is a linear map of the last layer's state: what is written there arrives."""
    table, _ = load_recipe("probes", "repair")(sound, episodes=64, fitted=256, tuning_steps=1, draws=0)
    gain = table[(table["metric"] == "gain") & (table["repair"] == "code written") & (table["split"] == "ood")]
    by_control = gain[gain["composition"] == "all"].groupby("control")["site"].unique().map(set).to_dict()
    assert by_control[""] == {"hook_code"} and "blocks.1.hook_resid_post" in by_control["on the way"]
    assert "blocks.1.hook_resid_post" not in by_control["placebo"] and "blocks.0.hook_resid_pre" in by_control["placebo"]
    best = table[table["metric"] == "beats placebos"]["placebo"]
    assert len(best) and not best.str.contains("blocks.1.hook_resid_post").any()
