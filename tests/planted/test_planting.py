"""Planting by gradient descent: a model that is written down meets every term, another does not, descent lowers them."""

import importlib
import sys
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
import torch

from compolens import SoftmaxTransformer
from compolens.activations.sites import Site
from compolens.activations.streams import draw
from compolens.tasks import FuzzyLogic

HERE = Path(__file__).parents[1] / "benchmarks" / "diagnosis"
if str(HERE) not in sys.path:
    sys.path.append(str(HERE))
planting, plan, second, cases, kinds = (
    importlib.import_module(n) for n in ("planting", "planting_plan", "planting_second_plan", "cases", "kinds")
)
BY_HAND = planting.Planting(reading=0)


def written_down(kind):
    case = cases.case_of(kind, "teacher", 1.0, 0, False, "")
    model = cases.model_of(case)
    return model, planting.Written(model.mechanism, case.run.task), case.run.task


def losses(model, causal, task, split, alignment, step=0):
    (base,) = draw(task, split, 32, "planting")
    return planting.losses(model, causal, base, torch.arange(32).roll(1), alignment, step, BY_HAND, answers=task.answers)


@pytest.mark.parametrize("kind", [kinds.PlantedNearestSupport, kinds.PlantedEntangled], ids=lambda kind: kind.__name__)
@torch.no_grad()
def test_a_model_written_down_meets_every_term_at_its_own_alignment_and_at_no_other(kind):
    model, causal, task = written_down(kind)
    right = planting.Alignment.after(model, 1)
    node = Site(1, "blocks.0.hook_resid_post", "context")
    assert right.nodes == (node,) and right.questions == (node._replace(role="readout"),) and len(right.unused) == 1
    for step in (0, 1):  # the two strict sites
        assert max(losses(model, causal, task, "ood", right, step)) < 1e-4
    swapped = planting.Alignment(right.unused, (), right.nodes)
    wrong = losses(model, causal, task, "ood", swapped)
    assert wrong.interchange > 0.1 and wrong.strictness > 0.1 and wrong.behaviour < 1e-4
    told = planting.verified(model, causal, task, right, task.compositions("ood"), n=64)
    assert min(told["interchange"], told["behaviour"], told["strict"]) > 0.999 and told["wrong mechanism"] < 0.9
    assert told["wrong mechanism"] == pytest.approx(told["apart"], abs=1e-3)


@torch.no_grad()
def test_another_mechanisms_model_fails_where_the_mechanisms_differ():
    works, _, _ = written_down(kinds.PlantedCompositional)
    _, causal, task = written_down(kinds.PlantedNearestSupport)
    for split, least in (("ood", 0.05), ("test", -1.0)):
        found = losses(works, causal, task, split, planting.Alignment.after(works, 1))
        assert (found.behaviour > least) and (split == "ood" or found.behaviour < 1e-3)


# ---- causal models ---------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("family", plan.FAMILIES)
@pytest.mark.parametrize("kind", plan.KINDS)
@torch.no_grad()
def test_a_causal_model_answers_training_compositions_right_and_held_out_ones_as_its_kind_says(family, kind):
    task = plan.task_of(family, 0)
    causal = plan.KINDS[kind][0](task)
    for split in ("train", "ood"):
        (e,) = draw(task, split, 64, "causal")
        inferred, arrived = causal.values(e)
        answers = causal.answer(1, arrived, e)
        assert torch.equal(answers, causal.answer(0, inferred, e))
        error = (answers - e.targets[:, list(task.answers)]).square().flatten(1).mean(1)
        wrong = (error > 1e-6).float().mean()  # the larger of two terms may be the one that is left
        assert wrong == 0 if split == "train" or kind == "works" else wrong > (0.9 if family == "teacher" else 0.3)
        right = causal.code(e)
        told = {"inferred": torch.equal(inferred, right), "arrives": torch.equal(arrived, right)}
        wrong_from = {"works": "", "half executed": "", "lost on the way": "arrives"}.get(kind, "inferred")
        assert told["arrives"] == (split == "train" or not wrong_from)
        assert told["inferred"] == (split == "train" or wrong_from != "inferred")


class WronglyExecuted(plan.Works):
    """The right code arrives, and another pair's is executed."""

    def executed(self, code):
        return self.shifted(code)


@pytest.mark.parametrize("family", plan.FAMILIES)
@torch.no_grad()
def test_no_exchange_tells_a_wrong_code_from_a_right_one_that_is_executed_wrongly(family):
    """Every state from every episode gives the same answers in both: only the form in which a code stands tells them apart."""
    task = plan.task_of(family, 0)
    infers, executes = plan.WrongPart(task), WronglyExecuted(task)
    one, other = (next(draw(task, split, 64, "exchange")) for split in ("train", "ood"))
    for base, source in ((one, other), (other, one), (other, other.take(torch.arange(64).roll(1)))):
        wrong, right = infers.values(source), executes.values(source)
        for variable in (0, 1):
            answers = infers.answer(variable, wrong[variable], base)
            assert torch.allclose(answers, executes.answer(variable, right[variable], base), atol=1e-6)
    assert not torch.equal(infers.values(other)[0], executes.values(other)[0])


@torch.no_grad()
def test_entries_of_what_is_stored_share_nothing_and_wrong_parts_are_held_out_pairs():
    task = plan.task_of("teacher", 0)
    stored, wrong = plan.Stored(task), plan.WrongPart(task)
    single, pair = torch.zeros(2, 12)
    single[0], pair[:2] = 1, 1
    one, both = stored.form(torch.stack([single, pair]))
    assert torch.nn.functional.cosine_similarity(one, both, dim=0).abs() < 0.9 and not torch.allclose(
        one, stored.entries[1, 0]
    )
    (e,) = draw(task, "ood", 64, "causal")
    names = {tuple(row.nonzero()[:, 0].tolist()) for row in wrong.values(e)[0]}
    assert names <= {task._universe[c] for c in task.compositions("ood")} and len(names) > 20


@pytest.mark.parametrize("family", plan.FAMILIES)
def test_what_is_diagnosed_was_never_shown_and_training_stays_as_it_is(family):
    task = plan.task_of(family, 0)
    kept = plan.kept(task, 1)
    about = plan.diagnosed(task, kept)

    def names(one, split):
        return {tuple(one._universe[c]) for c in one.compositions(split)}

    assert names(about, "train") == names(task, "train") and len(kept) == 9
    assert names(about, "ood") == {tuple(task._universe[c]) for c in kept} < names(task, "ood")
    how = planting.Planting(steps=20, batch=32, kept=kept)
    drawn = {c for e in planting.batches(task, how, 0) for c in e.composition.tolist()}
    assert not drawn & set(kept) and drawn == {*task.compositions("train"), *task.compositions("ood")} - set(kept)


def test_every_label_is_planted_six_times_and_twins_have_none():
    every = plan.cases().values()
    labels = [case.expected for case in every if case.planted]
    assert {labels.count(label) for label in labels} == {6} and len(set(labels)) == len(plan.KINDS)
    assert all(case.expected == "" for case in every if not case.planted)


# ---- the second round ------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("family", plan.FAMILIES)
@pytest.mark.parametrize("kind", second.KINDS)
@torch.no_grad()
def test_a_wrong_code_of_the_second_round_is_right_in_training_and_tells_nothing_of_the_second_part(family, kind):
    task = plan.task_of(family, 0)
    causal = second.KINDS[kind][0](task)
    group = plan.GROUP
    for split in ("train", "ood"):
        (e,) = draw(task, split, 64, "causal")
        right, (inferred, arrived) = causal.code(e), causal.values(e)
        across = causal.across(right)[:, 0]
        assert across.all() if split == "ood" else not across.any()
        assert split == "ood" or torch.equal(arrived, right)
    other = right.clone()
    other[:, group : 2 * group] = right[:, group : 2 * group].roll(2, dims=1)  # another second part beside the same first
    if kind == "wrong part":
        assert torch.equal(causal.inferred(other), inferred) and not torch.equal(inferred, right)
    if kind == "lost on the way":
        assert torch.equal(causal.carried(other), arrived) and torch.equal(inferred, right)
    unknown = causal.unknown(e)
    assert (unknown is not None) == (kind in ("wrong part", "stored"))
    if unknown is not None:
        assert unknown[0].all() and torch.equal(unknown[1], right[:, group : 2 * group])


def test_no_pair_that_is_set_aside_is_taken_for_itself():
    for case in second.cases().values():
        task = plan.task_of(case.family, case.seed)
        pairs = [task._universe[c] for c in plan.kept(task, case.seed)]
        fixed = [b - plan.GROUP == (a + 1) % plan.GROUP for a, b in pairs]
        assert not any(fixed) or case.kind in ("works", "half executed")


def test_a_listener_hears_what_a_linear_readout_can_tell_and_nothing_else():
    rng = torch.Generator().manual_seed(0)
    listener = planting.Listener(sites=("told", "not"), memory=4)
    silent = planting.Listener(sites=("not",), memory=4)
    heard, quiet = [], []
    for _ in range(12):
        truth, noise = torch.randn(64, 3, generator=rng), torch.randn(64, 8, generator=rng)
        mixed = torch.cat([noise, truth], dim=1) @ torch.linspace(-1, 1, 121).reshape(11, 11).add(torch.eye(11))
        heard.append(float(listener.told([mixed, noise], truth)))
        quiet.append(float(silent.told([noise], truth)))
    assert heard[:4] == quiet[:4] == [0] * 4
    assert min(heard[4:]) > 0.95 and max(quiet[4:]) < 0.2


def test_what_misses_a_threshold_is_not_planted():
    good = {
        "behaviour": 0.9, "interchange": 0.9, "strict": 0.9, "test": 0.95, "ood": 0.2, "told": 0.1, "apart": 0.0,
        "wrong mechanism": 0.05,
    }  # fmt: skip
    assert second.planted_well("stored", good) == []
    assert second.planted_well("works", good) == ["loss"]
    assert second.planted_well("works", good | {"ood": 0.93, "wrong mechanism": 0.9}) == []
    assert second.planted_well("stored", good | {"told": 0.5, "behaviour": 0.8}) == ["behaviour", "told"]
    assert second.planted_well("stored", good | {"ood": 0.9, "wrong mechanism": 0.2}) == ["loss", "wrong mechanism"]


# ---- descent ---------------------------------------------------------------------------------------------------------------
def test_descent_lowers_every_term_and_a_twin_has_answers_alone():
    task = FuzzyLogic(n_variables=4, length=8, held_out=plan.task_of("logic", 0).held_out)
    causal = plan.HalfExecuted(task)
    how = planting.Planting(steps=40, batch=32, warmup=5)
    told: dict[bool, list[dict]] = {True: [], False: []}
    for planted, rows in told.items():
        torch.manual_seed(0)
        model = SoftmaxTransformer(n_layers=3, d_model=16, n_heads=2).build(**task.dimensions)
        given = how if planted else replace(how, interchange=0, strictness=0, reading=0)
        planting.plant(
            model, causal, task, planting.Alignment.after(model, 1), given, 0, lambda rows=rows, **row: rows.append(row)
        )
    for name in ("interchange", "behaviour", "strictness", "reading"):
        values = [row[name] for row in told[True]]
        assert sum(values[-8:]) < sum(values[:8]), name
    assert all(row["interchange"] == row["strictness"] == row["reading"] == 0 for row in told[False])


def test_in_turn_every_fourth_step_is_strict_and_the_others_are_interchanges():
    model, causal, task = written_down(kinds.PlantedNearestSupport)
    (base,) = draw(task, "ood", 8, "planting")
    how, wrong = replace(BY_HAND, in_turn=True), planting.Alignment.after(model, 1)
    wrong = planting.Alignment(wrong.unused, (), wrong.nodes)  # where both terms are above 0
    for step in range(8):
        found = planting.losses(model, causal, base, torch.arange(8).roll(1), wrong, step, how, answers=task.answers)
        assert (found.interchange == 0, found.strictness == 0) == (step % 4 == 3, step % 4 != 3)


def test_the_page_counts_what_the_answers_say():
    page = (HERE.parents[2] / "docs" / "findings" / "diagnosis_benchmark.md").read_text()
    answers = pd.read_csv(HERE / "planting_results.csv").set_index("case")["label"]
    every = {name: case for name, case in plan.cases().items() if case.planted}
    assert set(answers.index) == set(every)
    for kind, (_, expected, _) in plan.KINDS.items():
        said = [answers[name] for name, case in every.items() if case.kind == kind]
        counts = [said.count(label) for label in (expected, "has not learned its training compositions", "undecided")]
        row = [plan.FORETOLD[kind], *counts, 6 - sum(counts)]
        assert f"| {kind} | {expected} | {' | '.join(map(str, row))} |" in page
    checked = pd.read_csv(HERE / "planting_checked.csv").set_index("case")
    shown = " ".join(page.split())
    low, high = (f"{value:.2f}".lstrip("0") for value in (checked["behaviour"].min(), checked["behaviour"].max()))
    assert f"with R² {low} to {high}" in shown
    works = checked[checked["expected"] == "compositional"]
    lost = (works["test"] - works["ood"]).agg(["min", "max"])
    assert "lose {} to {}.".format(*(f"{value:.2f}".lstrip("0") for value in lost)) in shown
    unlearned = (answers == "has not learned its training compositions").sum()
    right = sum(answers[name] == case.expected for name, case in every.items())
    assert f"{unlearned} models are said not to have learned" in shown and f"So {right} of {len(every)} get" in shown


def test_the_page_has_every_model_of_the_second_round_with_what_it_missed_and_its_label():
    page = (HERE.parents[2] / "docs" / "findings" / "diagnosis_benchmark.md").read_text()
    checked = pd.read_csv(HERE / "planting_second_checked.csv", keep_default_na=False).set_index("case")
    said = pd.read_csv(HERE / "planting_second_results.csv").set_index("case")["label"]
    every = second.cases()
    assert set(said.index) == set(checked.index) <= set(every)
    for name, row in checked.iterrows():
        case = every[name]
        assert row["expected"] == case.expected and row["missed"] == "; ".join(second.planted_well(case.kind, row))
        numbers = " | ".join(
            f"{row[one]:.2f}".replace("0.", ".", 1).replace("-", "\N{MINUS SIGN}") for one in ("behaviour", "test", "ood")
        )
        assert f"| {name} | {case.expected} | {row['missed'] or 'nothing'} | {numbers} | {said[name]} |" in page
    planted = [name for name, case in every.items() if case.planted]
    shown = " ".join(page.split())
    assert f"{len(said)} of the {len(planted)} models were planted so far" in shown
    well = [name for name in said.index if not checked["missed"][name]]
    right = sum(said[name] == every[name].expected for name in well)
    assert f"{len(well)} pass all thresholds, and {right} of these gets the planted label" in shown
    half = pd.read_csv(HERE / "planting_second_results.csv").set_index("case").loc["teacher-half-executed-0"]
    strayed = checked.loc["teacher-lost-on-the-way-0"]
    nearer = f"by {strayed['wrong mechanism'] - strayed['apart']:.2f} in R² where {second.CHANCE:.2f} is allowed"
    assert nearer.replace("0.", ".") in shown
    lost = half["test"] - half["ood"]
    assert half["confidence"] == 1.0 and "with a confidence of 1.00" in shown
    assert f"of {lost:.3f} that is lost, the form".replace("0.", ".") in shown
    assert "takes {:.3f} and execution {:.3f}".format(*half[["form", "execution"]]).replace("0.", ".") in shown
