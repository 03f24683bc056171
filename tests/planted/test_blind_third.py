"""The third blind set: its models do what they are built to do, and the planted part is what fails.

What is asked of the set as a whole stands in `test_blind_second`. None is diagnosed here.
"""

from functools import lru_cache

import pytest
import torch
from test_blind import (
    AT_CONTEXT,
    AT_QUESTIONS,
    asked,
    code_of,
    message_at,
    readable,
    right_message,
    score,
    shown,
    task_of,
    with_message,
)
from test_blind_second import (
    answers_of,
    check_that_it_fails_as_labelled,
    panel_messages,
    panel_score,
    right_answers,
    scores_of,
    told_at,
)
from test_planted import neighbour

from compolens.activations.sites import Site
from compolens.foundation.configs import ConfigError, DoesNotApply

plans, codes, faults = (neighbour(name) for name in ("third_blind_plan", "third_blind_codes", "third_blind_faults"))
first, models, raven, cases, tasks = (
    neighbour(name) for name in ("blind_plan", "third_blind_models", "third_blind_raven", "cases", "blind_models")
)
WHERE = {"convolved": "maxout", "rectified": "bilinear", "polar": "logic", "reflected": "logic"}
"""Carrier -> the family it is tested on, else chains."""
AFTER_REFINING = Site(3, "blocks.2.hook_resid_post", "readout")


@lru_cache
def planted(fault="Sound", family="chain", carrier="plain", strength=1.0, transport="whole"):
    return cases.model_of(plans.ThirdCase(fault, family, carrier, "", (), "", strength, 1, transport).case())


def all_told(model, episodes, site):
    """(batch, position, M): the code that every position of a site says, as the executor receives it."""
    messages = model.mechanism.received(message_at(model, episodes, site))
    return torch.stack([model.mechanism.told(m)[0][0] for m in messages.unbind(1)], dim=1).detach()


# ---- the set ---------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("sort", first.LABELS)
def test_cases_fail_where_their_label_says_so(sort):
    """On every third kind but those of the teacher, which takes longest."""
    one_each = {
        (c.kind, c.family == first.PANELS): c for c in plans.plan().values() if c.label == sort and c.family != "teacher"
    }
    for case in list(one_each.values())[::3]:
        check_that_it_fails_as_labelled(case, *scores_of(case, 256 if case.about else 48))


# ---- codes, and where they stand -------------------------------------------------------------------------------------
@pytest.mark.parametrize("carrier", codes.NEWER)
def test_what_a_carrier_writes_is_read_back_and_no_linear_readout_tells_it(carrier):
    works, held_out = planted(carrier=carrier, family=WHERE.get(carrier, "chain")), shown(WHERE.get(carrier, "chain"))
    right = code_of(works, held_out)
    torch.testing.assert_close(told_at(works, held_out, AT_QUESTIONS), right, atol=5e-3, rtol=0)
    assert score(works, held_out) > 0.999
    other = right.roll(1, 0)
    said_again = works.mechanism.carrier.recode(right_message(works, held_out), other)
    torch.testing.assert_close(works.mechanism.carrier.decode(said_again), other, atol=5e-3, rtol=0)
    plain, carried = readable(works, WHERE.get(carrier, "chain"))
    assert plain > 0.99 and carried < 0.75


@pytest.mark.parametrize(("transport", "family"), [("marked", "maxout"), ("turning", "phase"), ("running", "logic")])
def test_what_stands_at_a_position_depends_on_it_and_the_code_arrives(transport, family):
    works, held_out = planted(transport=transport, family=family), shown(family)
    here, right = message_at(works, held_out, AT_CONTEXT), code_of(works, held_out)
    arrived = message_at(works, held_out, AT_QUESTIONS)
    torch.testing.assert_close(all_told(works, held_out, AT_QUESTIONS)[:, -1], right, atol=5e-3, rtol=0)
    assert score(works, held_out) > 0.999
    if transport == "marked":
        torch.testing.assert_close(here[:, : right.shape[1], 0], right, atol=5e-3, rtol=0)
        assert here[:, :, 1:].abs().max() < 5e-3
    elif transport == "turning":
        torch.testing.assert_close(arrived[:, 1].roll(-3, 1), arrived[:, 0], atol=5e-3, rtol=0)
        assert ((arrived[:, 1] - right).norm(dim=1) > 0.5).float().mean() > 0.8
    else:
        off = (here - right[:, None]).norm(dim=2) > 0.2
        assert off[:, 0].float().mean() > 0.5 and off[:, 20].float().mean() < 0.5 and not off[:, -1].any()


def test_positions_are_not_told_apart_by_an_explicit_code_and_other_misfits_are_refused():
    for given in ({"fault": "Overwritten"}, {"transport": "turning"}, {"fault": "NextQuestion"}):
        with pytest.raises(ConfigError, match="explicit"):
            models.PlantedThird(tasks.task_of("chain", 0), explicit=True, **given)
    with pytest.raises(ConfigError, match="do not fit"):
        planted(carrier="phases", transport="marked")
    for fault, carrier in (("WrongKey", "plain"), ("TwoSizes", "plain")):
        with pytest.raises(DoesNotApply):
            score(planted(fault, "chain", carrier), shown("chain"))


# ---- the planted part is what fails ----------------------------------------------------------------------------------
INFERENCE = [
    ("BlurredAnswers", "product", "median"),
    ("HalfSeen", "logic", "reflected"),
    ("WinnerTakesAll", "chain", "phases"),
    ("Squeezed", "phase", "phases"),
    ("TwoCamps", "logic", "plain"),
    ("FewMistaken", "product", "convolved"),
]


@pytest.mark.parametrize(("fault", "family", "carrier"), INFERENCE)
def test_given_the_right_code_a_failure_of_inference_is_repaired(fault, family, carrier):
    broken, held_out = planted(fault, family, carrier), shown(family)
    off = (all_told(broken, held_out, AT_CONTEXT) - code_of(broken, held_out)[:, None]).norm(dim=2) > 0.2
    assert off.all(1).float().mean() > (0.2 if fault == "FewMistaken" else 0.4) and score(broken, held_out) < 0.85
    for site in (AT_CONTEXT, AT_QUESTIONS):
        assert with_message(broken, held_out, site, right_message(broken, held_out)) > 0.99


USE = [
    ("FirstQuestionAlone", "maxout", "reflected"),
    ("PartsInTurn", "chain", "median"),
    ("CrossedHeads", "product", "polar"),
    ("WrongKey", "chain", "reflected"),
    ("BrokenSink", "logic", "median"),
    ("StopsListening", "logic", "plain"),
    ("Forgets", "phase", "phases"),
    ("Saturated", "phase", "reflected"),
]


@pytest.mark.parametrize(("fault", "family", "carrier"), USE)
def test_the_right_code_stands_at_the_context_and_repairs_where_it_did_not_arrive(fault, family, carrier):
    broken, held_out = planted(fault, family, carrier), shown(family)
    right = code_of(broken, held_out)
    token = {"Forgets": 0}.get(fault, -1)
    torch.testing.assert_close(all_told(broken, held_out, AT_CONTEXT)[:, token], right, atol=5e-3, rtol=0)
    at_context = message_at(broken, held_out, AT_CONTEXT)[:, token]
    assert score(broken, held_out) < 0.8 and with_message(broken, held_out, AT_QUESTIONS, at_context) > 0.99
    off = ((all_told(broken, held_out, AT_QUESTIONS) - right[:, None]).norm(dim=2) > 0.2).float().mean(0)
    assert off[-1] > 0.7 and (off[0] == 0 if fault == "FirstQuestionAlone" else off[0] > 0.7)


def test_a_further_block_overwrites_or_corrects_what_arrived():
    held_out = shown("logic")
    for fault, early, late in (
        ("Overwritten", True, False),
        ("GuessUncorrected", False, False),
        ("GuessCorrected", False, True),
        ("TwoHalves", False, True),
    ):
        model = planted(fault, "logic", "phases")
        right = code_of(model, held_out)
        for site, is_right in ((AT_QUESTIONS, early), (AFTER_REFINING, late)):
            off = (all_told(model, held_out, site)[:, 0] - right).norm(dim=1) > 0.2
            assert off.float().mean() < 0.02 if is_right else off.float().mean() > 0.7, (fault, site)
        assert score(model, held_out) > 0.999 if late else score(model, held_out) < 0.8
        assert score(model, shown("logic", "test")) > 0.999


EXECUTION = [
    ("Biased", "phase", "plain"),
    ("HalfWave", "logic", "plain"),
    ("Coarse", "logic", "median"),
    ("DeadZone", "product", "polar"),
    ("TakesTurns", "phase", "rectified"),
    ("NextQuestion", "bilinear", "convolved"),
    ("FewImpostors", "chain", "reflected"),
]


@pytest.mark.parametrize(("fault", "family", "carrier"), EXECUTION)
def test_where_execution_fails_the_right_code_arrives_and_another_executor_repairs(fault, family, carrier):
    broken, held_out = planted(fault, family, carrier), shown(family)
    arrived, wrong = told_at(broken, held_out, AT_QUESTIONS), score(broken, held_out)
    torch.testing.assert_close(arrived, code_of(broken, held_out), atol=5e-3, rtol=0)
    assert wrong < 0.85
    assert abs(with_message(broken, held_out, AT_QUESTIONS, right_message(broken, held_out)) - wrong) < 0.01
    executed = broken.mechanism.knowledge.execute(arrived, asked(broken, held_out)).detach()
    torch.testing.assert_close(executed, right_answers(broken, held_out), atol=2e-2, rtol=0)


def test_every_question_gets_the_next_ones_right_answer():
    broken, held_out = planted("NextQuestion", "bilinear"), shown("bilinear")
    wanted = right_answers(broken, held_out).roll(-1, 1)
    torch.testing.assert_close(answers_of(broken, held_out), wanted, atol=5e-3, rtol=0)


@pytest.mark.parametrize(
    ("fault", "family"), [("HastyMemory", "product"), ("Favourites", "logic"), ("EachItsOwn", "maxout"), ("Spliced", "phase")]
)
def test_memories_answer_as_stored_for_training_compositions(fault, family):
    broken, held_out = planted(fault, family), shown(family)
    at, known = list(task_of(broken).answers), broken.mechanism.knowledge
    stored, _ = task_of(broken).candidates(held_out, task_of(broken).compositions("train"))
    if fault == "Favourites":
        stored = stored[:, known.rank < broken.mechanism.many]
    gap = (stored[:, :, at] - answers_of(broken, held_out)[:, None]).abs()
    gap = gap.amin(1) if fault == "Spliced" else gap.amax(3).amin(1)  # each coordinate, or each question, by one of them
    assert (gap < 0.02).float().mean() > 0.95 and score(broken, held_out) < 0.8


def test_regressions_are_those_that_they_are_said_to_be():
    held_out = shown("chain")
    for fault in ("ThreeNearest", "KernelRidge"):
        broken = planted(fault, "chain")
        x, y = (t[:, :24] for t in task_of(broken).examples(held_out))
        distance = torch.cdist(asked(broken, held_out), x)
        if fault == "ThreeNearest":
            near = distance.topk(3, largest=False).indices
            wanted = torch.stack([y[torch.arange(64)[:, None], near[..., k]] for k in range(3)]).mean(0)
        else:
            kernel = torch.exp(-torch.cdist(x, x).square() / 12.5) + 0.1 * torch.eye(24)
            weight = torch.exp(-distance.square() / 12.5) @ torch.linalg.inv(kernel)
            wanted = y.mean(1, keepdim=True) + weight @ (y - y.mean(1, keepdim=True))
        torch.testing.assert_close(answers_of(broken, held_out), wanted, atol=2e-2, rtol=0)


# ---- panels ----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("carrier", sorted(set(raven.CARRIERS) - set(neighbour("second_raven").CARRIERS)))
def test_rules_are_read_back_however_they_are_carried(carrier):
    solver = raven.ThirdSolver("Works", carrier)
    rule = torch.cartesian_prod(torch.arange(5), torch.arange(5))
    assert torch.equal(solver.decode(solver.encode(rule, torch.arange(25) * 7919)).argmax(2), rule)


HALF = ("HalfDrawn", "HalfStuck", "Exchanged")
FAIL = [
    name
    for name, told in raven.FAULTS.items()
    if told.startswith(("fails", "infers", "cannot", "generic")) and name != "Drawn"
]


@pytest.mark.parametrize("fault", FAIL)
def test_panels_fail_where_they_are_said_to(fault):
    solver, sound = raven.ThirdSolver(fault, "reflected", seed=1), raven.ThirdSolver("Works", "reflected", seed=1)
    broken, right = panel_score(solver, "ood"), panel_messages(sound, "message")
    assert panel_score(solver, "test") > 0.93 and broken < (0.7 if fault in HALF else 0.5)
    written, arrives = panel_score(solver, "ood", message=right), panel_score(solver, "ood", arrived=right)
    label = raven.FAULTS[fault].partition(":")[0]
    if label == first.INFERENCE:
        assert min(written, arrives) > 0.93
    elif label == first.USE:
        torch.testing.assert_close(panel_messages(solver, "message"), right)
        assert arrives > 0.93 and written == broken
    else:
        torch.testing.assert_close(panel_messages(solver, "arrived"), right)
        assert written == arrives == broken
