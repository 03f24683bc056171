"""Learners that recombine nothing, and whose answers a model's are most like: theorems, planted learners, controls."""

import dataclasses
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import numpy as np
import pytest
import torch
from sklearn.linear_model import Ridge
from sklearn.model_selection import LeaveOneGroupOut
from torch import nn

from compolens import HypernetworkTransformer, Run, SoftmaxTransformer, network_baselines, recipes
from compolens.activations.streams import draw, record
from compolens.foundation.configs import ConfigError, DoesNotApply
from compolens.hooks import HookedModel, HookPoint
from compolens.models import HYLA, FixedThreshold, RelativeTransfer, SparseCoding
from compolens.network_baselines import FrozenReadout, Linearised, Tangent, conjugate_gradients, last_site, wanted
from compolens.references import AllCompositions, TrainingCompositions
from compolens.tasks import Episodes, FuzzyLogic, LinearRegression, Relations, SRaven
from compolens.zoo.folders import TrainedModel

SIZES = {"n_layers": 2, "d_model": 16, "n_heads": 2}
SMALL = {"episodes": 96, "tangent_episodes": 32, "iterations": 2}


def made(architecture, task):
    """A model as built, with the run that it came from."""
    run = Run(architecture, task, steps=0)
    return TrainedModel(run, run.build().eval(), task, Path("made"), 0)


class Flat(HookedModel):
    """A prediction that is linear in the parameters."""

    def __init__(self, d_in, d_out):
        super().__init__()
        self.map, self.hook_in = nn.Linear(d_in, d_out), HookPoint()
        self.setup()

    def forward(self, tokens):
        return self.map(self.hook_in(tokens))


# ---- the net to first order ------------------------------------------------------------------------------------------
CASES = [
    ("softmax", SoftmaxTransformer(**SIZES), None),
    ("hypernetwork", HypernetworkTransformer(**SIZES, d_code=6, d_hidden=12), None),
    ("hyla", HYLA(n_layers=2, d_model=16, n_heads=4, n_ctx=8), FuzzyLogic(length=8)),
    ("sparse", SparseCoding(**SIZES, threshold=FixedThreshold(0.1), transfer=RelativeTransfer()), Relations()),
]


@pytest.mark.parametrize(("architecture", "task"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_the_tangent_is_the_derivative_of_the_net_and_its_two_products_are_adjoint(tiny_task, architecture, task):
    task = task or tiny_task
    trained = made(architecture, task)
    model = trained.model.double()
    tokens = next(draw(task, "train", 5, 0)).tokens.double()
    tangent, generator = Tangent(model, task.answers), torch.Generator().manual_seed(0)
    p = torch.randn(tangent.size, generator=generator, dtype=torch.float64)
    start, moved = tangent.along(tokens, p)
    assert torch.allclose(start, model(tokens)[:, list(task.answers)])
    step, answers = 1e-6, []
    for sign in (1, -1):
        with torch.no_grad():
            vector = nn.utils.parameters_to_vector(tangent.parameters)
            nn.utils.vector_to_parameters(vector + sign * step * p, tangent.parameters)
            answers.append(model(tokens)[:, list(task.answers)])
            nn.utils.vector_to_parameters(vector, tangent.parameters)
    measured = (answers[0] - answers[1]) / (2 * step)
    assert float((moved - measured).norm()) < 1e-4 * float(measured.norm()), "no kink lies within the step"
    u = torch.randn(moved.shape, generator=generator, dtype=torch.float64)
    assert float((moved * u).sum()) == pytest.approx(float(tangent.gradient(tokens, u) @ p), rel=1e-9)
    length, normal = tangent.normal(tokens, p)
    assert length == pytest.approx(float(moved.square().sum()), rel=1e-9)
    assert torch.allclose(normal, tangent.gradient(tokens, moved), rtol=1e-8, atol=1e-10)


def test_chunks_do_not_matter(tiny_task, monkeypatch):
    model = made(SoftmaxTransformer(**SIZES), tiny_task).model.double()
    tokens, tangent = next(draw(tiny_task, "train", 7, 0)).tokens.double(), Tangent(model, tiny_task.answers)
    p = torch.randn(tangent.size, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    whole, moved = tangent.normal(tokens, p), tangent.along(tokens, p)[1]
    monkeypatch.setattr(network_baselines, "CHUNK", 3)
    assert torch.allclose(tangent.normal(tokens, p)[1], whole[1])
    assert torch.allclose(tangent.along(tokens, p)[1], moved)


def test_of_a_model_linear_in_its_parameters_it_is_least_squares():
    rng = torch.Generator().manual_seed(0)
    tokens = torch.randn(40, 3, 4, generator=rng, dtype=torch.float64)
    y = torch.randn(40, 3, 2, generator=rng, dtype=torch.float64)
    model = Flat(4, 2).double()
    model.answer = model.forward
    tangent = Tangent(model, (0, 1, 2))
    residual = y - tangent.along(tokens, torch.zeros(tangent.size))[0]
    losses = iter(range(100, 0, -1))  # always smaller: never stopped early
    found = conjugate_gradients(
        lambda p: tangent.normal(tokens, p), tangent.gradient(tokens, residual), lambda p, step: next(losses), 50, 1
    )
    x = torch.cat([tokens, torch.ones(40, 3, 1, dtype=torch.float64)], dim=-1).flatten(0, 1)
    best = (x @ torch.linalg.lstsq(x, y.flatten(0, 1)).solution).view_as(y)
    start, moved = tangent.along(tokens, found.delta)
    assert torch.allclose(start + moved, best, atol=1e-9)
    assert len(found.left_out) - 1 <= 7, "five different eigenvalues need five steps, rounding a few more"


def test_conjugate_gradients_keep_the_iteration_with_the_smallest_held_back_loss_and_then_stop():
    rng = np.random.default_rng(0)
    matrix = torch.from_numpy(rng.standard_normal((30, 12)))
    target = torch.from_numpy(rng.standard_normal(30))
    steps = []

    def run(losses, iterations, patience):
        losses = iter(losses)

        def left_out(p, step):
            steps.append(step * p)
            return next(losses)

        steps.clear()
        normal = lambda p: (float((matrix @ p).square().sum()), matrix.T @ (matrix @ p))  # noqa: E731
        return conjugate_gradients(normal, matrix.T @ target, left_out, iterations, patience)

    found = run([5, 4, 3, 3.5, 3.2, 9], 10, 3)
    assert found.best == 2 and found.left_out == (5, 4, 3, 3.5, 3.2, 9)
    assert torch.allclose(found.delta, steps[1] + steps[2]) and steps[0].abs().sum() == 0
    assert run([5, 6], 1, 9).best == 0 and not run([5, 6], 1, 9).delta.any()


def test_without_iterations_it_is_the_untrained_control_and_with_them_it_answers_better(tiny_task):
    trained = made(SoftmaxTransformer(**SIZES), tiny_task)
    (batch,) = draw(tiny_task, "train", 256, "new")
    with torch.no_grad():
        untrained = trained.untrained_control()(batch.tokens)
    at = list(tiny_task.answers)
    none, some = (Linearised.fit(trained, episodes=256, iterations=n) for n in (0, 8))
    assert torch.allclose(none.predict(batch)[:, at], untrained[:, at], atol=1e-6)
    assert tiny_task.score(some.predict(batch), batch.targets) > tiny_task.score(untrained, batch.targets) + 0.05
    assert min(some.descent.left_out) == some.descent.left_out[some.descent.best] < some.descent.left_out[0]


def test_only_training_compositions_are_fitted_and_others_of_them_stop_it(tiny_task, monkeypatch):
    seen = []

    def spy(task, split, n, seed, device="cpu", compositions=None):
        batches = list(draw(task, split, n, seed, device, compositions))
        seen.append((split, set(torch.cat([b.composition for b in batches]).tolist())))
        return batches

    monkeypatch.setattr(network_baselines, "draw", spy)
    trained = made(SoftmaxTransformer(**SIZES), tiny_task)
    Linearised.fit(trained, episodes=200, iterations=1)
    FrozenReadout.fit(trained, episodes=200)
    (fit, stop, frozen) = seen
    train = set(tiny_task.compositions("train"))
    assert {split for split, _ in seen} == {"train"} and not fit[1] & stop[1]
    assert fit[1] | stop[1] == train == frozen[1]


# ---- the frozen net --------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("kind", ["softmax", "hypernetwork"])
def test_the_frozen_readout_is_scikit_learns_ridge_on_the_untrained_controls_last_features(tiny_task, kind):
    trained = made(dict((name, a) for name, a, _ in CASES)[kind], tiny_task)
    fitted = FrozenReadout.fit(trained, episodes=120, seed=3, penalties=(0.1, 10.0, 1000.0))
    untrained, at = trained.untrained_control(), list(tiny_task.answers)
    assert last_site(untrained) == {"softmax": "ln_final.hook_normalized", "hypernetwork": "executor.hook_hidden"}[kind]
    (batch,) = draw(tiny_task, "train", 120, "3/frozen")
    (seen,) = record(untrained, [batch], [last_site(untrained)])
    x = seen.sites[last_site(untrained)][:, at].flatten(0, 1).double().numpy()
    y = batch.targets[:, at].flatten(0, 1).double().numpy()
    group = batch.composition.repeat_interleave(len(at)).numpy()
    mean, scale = x.mean(0), np.where(x.std(0) > 1e-9, x.std(0), 1)
    left_out = []
    for l2 in (0.1, 10.0, 1000.0):
        sse = 0.0
        for fit, score in LeaveOneGroupOut().split(x, y, group):
            m, s = x[fit].mean(0), np.where(x[fit].std(0) > 1e-9, x[fit].std(0), 1)
            sse += ((Ridge(l2).fit((x[fit] - m) / s, y[fit]).predict((x[score] - m) / s) - y[score]) ** 2).sum()
        left_out.append(sse)
    best = (0.1, 10.0, 1000.0)[int(np.argmin(left_out))]
    assert fitted.readout.l2 == best
    expected = Ridge(best).fit((x - mean) / scale, y).predict((x - mean) / scale)
    np.testing.assert_allclose(fitted.predict(batch)[:, at].flatten(0, 1), expected, atol=1e-5)


def test_what_cannot_be_fitted_is_refused(tiny_task):
    trained = made(SoftmaxTransformer(**SIZES), tiny_task)
    with pytest.raises(ConfigError, match=r"at least 0, got \(-1,\); for example"):
        FrozenReadout.fit(trained, penalties=(-1,))
    with pytest.raises(ConfigError, match="got -1 and 5"):
        Linearised.fit(trained, iterations=-1)


# ---- the probe -------------------------------------------------------------------------------------------------------
class Imitator(nn.Module):
    """Answers as a mixture of the two references that know the teacher: share of the one that recombines."""

    def __init__(self, task, share):
        super().__init__()
        self.task, self.share, self.unused = task, share, nn.Parameter(torch.zeros(1))

    def forward(self, tokens):
        x, y = tokens[..., : self.task.d_x], tokens[..., self.task.d_x : -1]
        batch = Episodes(tokens, y, {}, torch.zeros(len(tokens)), x, {})
        one, other = (kind().predict(self.task, batch) for kind in (AllCompositions, TrainingCompositions))
        return self.share * one + (1 - self.share) * other


def measured(trained, **settings):
    return recipes.load_recipe("probes", "which_prior")(trained, **(SMALL | settings))


def imitating(task, share):
    return dataclasses.replace(made(SoftmaxTransformer(**SIZES), task), model=Imitator(task, share))


def at(table, **where):
    for column, value in where.items():
        table = table[table[column] == value]
    return table


@pytest.mark.parametrize(
    ("share", "nearest", "words"),
    [(1.0, "best of all compositions", "recombines"), (0.0, "best training composition", "does not recombine")],
)
def test_a_planted_learner_is_named_on_held_out_compositions_and_on_training_ones_nothing_is(tiny_task, share, nearest, words):
    table, _ = measured(imitating(dataclasses.replace(tiny_task, n_modules=12), share))
    own = at(table, control="", split="ood", composition="all")
    distance = at(own, metric="distance").set_index("reference")["value"]
    assert distance[nearest] == pytest.approx(0, abs=1e-9) and (distance.drop([nearest, "truth"]) > 0.01).all()
    assert at(own, metric="nearest")["reference"].item() == nearest
    margin = at(own, metric="margin")
    assert margin["reference"].item() == words and (margin["value"].item() > 0) == (share == 1)
    # what training compositions show, both references explain alike: the data cannot tell them apart
    seen = at(table, control="", split="test", composition="all", metric="nearest")
    assert seen["reference"].item() == "undecided" and "next: " in seen["note"].item()
    shuffled = at(table, control="shuffled", split="ood", reference=nearest)["value"].item()
    assert shuffled > 0.5 > distance[nearest]


@pytest.mark.parametrize("compositions", [3, 5, 10])
def test_what_is_equally_near_is_seldom_decided(compositions):
    """Two learners, one that recombines and one that does not, whose distances differ by chance alone."""
    inside, rng = recipes.load_recipe("probes", "which_prior").__globals__, np.random.default_rng(0)
    batch = SimpleNamespace(targets=torch.zeros(compositions, 1))
    decided = {"nearest": 0, "margin": 0}
    for _ in range(400):
        split = inside["Split"](None, "ood", [batch], {}, np.ones(compositions), np.arange(compositions))
        errors = {f"best {of}": rng.gamma(4.0, size=compositions) for of in ("of all compositions", "training composition")}
        with mock.patch.dict(inside, _errors=lambda *_: np.full(compositions, 100.0)):
            for row in inside["_judged"](split, "model", errors, ""):
                decided[row["metric"]] += row["reference"] != "undecided"
    assert max(decided.values()) / 400 < 0.09


def test_halfway_between_two_references_nothing_is_decided(tiny_task):
    table, _ = measured(imitating(tiny_task, 0.5))
    own = at(table, control="", split="ood", composition="all")
    assert at(own, metric="nearest")["reference"].item() == "undecided" == at(own, metric="margin")["reference"].item()
    assert abs(at(own, metric="margin")["value"].item()) < 1e-6


def test_the_distance_to_the_truth_is_what_the_score_lacks_and_references_stand_beside_one_another(tiny_task):
    trained = made(SoftmaxTransformer(**SIZES), tiny_task)
    table, seen = measured(trained)
    for split in ("test", "ood"):
        (batch,) = draw(tiny_task, split, 96, 0)
        with torch.no_grad():
            score = tiny_task.score(trained.model(batch.tokens), batch.targets)
        truth = at(table, metric="distance", control="", split=split, composition="all", reference="truth")
        assert truth["value"].item() == pytest.approx(1 - score, rel=1e-6)
        part = seen[seen["split"] == split]
        each = at(table, metric="distance", control="", split=split, composition="all").set_index("reference")["value"]
        for name in ("in-context ridge", "linearised net"):
            assert part[f"distance to {name}"].mean() == pytest.approx(each[name], rel=1e-6)
        pairs = at(table, metric="distance", control="reference", split=split, composition="all").dropna(subset="value")
        assert len(pairs) == 9 * 10 / 2, "nine references and the truth"
    bounded = table.dropna(subset=["lo", "hi"])
    assert (bounded["lo"] <= bounded["value"] + 1e-12).all() and (bounded["value"] <= bounded["hi"] + 1e-12).all()
    assert (at(table, control="", reference="best training composition", composition="all")["recombines"] == False).all()  # noqa: E712


def test_classes_are_compared_by_the_share_of_answers_that_differ():
    trained = made(SoftmaxTransformer(n_layers=1, d_model=16, n_heads=4, n_ctx=18), SRaven(n_features=2))
    table, seen = measured(trained, episodes=64, tangent_episodes=8, iterations=1)
    (batch,) = draw(trained.task, "ood", 64, 0)
    fitted = FrozenReadout.fit(trained, episodes=256)
    answers = list(trained.task.answers)
    with torch.no_grad():
        mine = trained.model(batch.tokens)[:, answers].argmax(-1)
    theirs = fitted.predict(batch)[:, answers].argmax(-1)
    row = at(table, metric="distance", control="", split="ood", composition="all", reference="frozen features")
    assert row["value"].item() == pytest.approx(float((mine != theirs).double().mean()), rel=1e-9)
    assert wanted(trained.task, batch).sum(-1).eq(1).all()
    posterior = at(table, metric="distance", control="", split="ood", composition="all", reference="Bayes, each feature")
    assert 0 < posterior["value"].item() <= 1 and seen["score"].notna().all()
    absent = table[table["value"].isna()]
    assert len(absent) and absent["note"].str.startswith("not available: ").all() and (absent["control"] != "").all()


def test_equal_seeds_give_equal_numbers_and_families_without_parts_are_refused(tiny_task):
    trained = made(SoftmaxTransformer(**SIZES), tiny_task)
    first, again, other = (measured(trained, episodes=32, seed=seed)[0] for seed in (0, 0, 1))
    assert first.equals(again) and not first["value"].equals(other["value"])
    regression = made(SoftmaxTransformer(**SIZES), LinearRegression(d_x=3, n_context=4))
    with pytest.raises(
        DoesNotApply, match=r"recombines the parts of LinearRegression's code.*: compolens probe gd_equivalence"
    ):
        measured(regression)
    with pytest.raises(ConfigError, match="got 4, 32"):
        measured(trained, episodes=4)
