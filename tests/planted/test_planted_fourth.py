"""Kinds of the benchmark's fourth fresh set: each does what its name says."""

import pytest
import torch
from test_planted import episodes, families, message, model, neighbour, score, task_of, true_code
from test_planted_third import answered, asked, exact

from compolens.activations.sites import Site, put
from compolens.activations.streams import record

fourth, labels = neighbour("fourth_kinds"), neighbour("labels")


def again(family, shown):
    """The same inputs under other episodes' codes."""
    return task_of(family).render({name: c.roll(1, 0) for name, c in shown.codes.items()}, shown.inputs)


@families
def test_where_inference_is_deferred_the_stream_holds_the_examples_and_nothing_else(family):
    works, shown = model(fourth.PlantedDeferred, family), episodes(family, "ood", 16)
    x, y = task_of(family).examples(shown)
    raw = torch.cat([x[:, : y.shape[1]], y], dim=-1).flatten(1)
    for layer, role in ((0, "context"), (1, "readout")):
        torch.testing.assert_close(message(works, shown, layer, role), raw, atol=2e-3, rtol=0)
    other = again(family, shown)
    x, y = task_of(family).examples(other)
    moved = works.mechanism.read(torch.cat([x[:, : y.shape[1]], y], dim=-1).flatten(1), asked(family, shown)).detach()
    torch.testing.assert_close(moved, other.targets[:, list(task_of(family).answers)], atol=3e-3, rtol=0)


@families
def test_an_intruder_stands_beside_both_right_parts_and_the_inputs_choose_it(family):
    shown, broken = episodes(family, "ood"), model(fourth.PlantedIntruder, family)
    code, found = true_code(family, shown), message(broken, shown)
    extra = (found - code) / (0.75 * code.sum(1, keepdim=True))
    clear = extra.amax(1) > 0.99  # but for inputs that select two alike
    assert clear.float().mean() > 0.9
    torch.testing.assert_close(extra.sum(1), torch.ones(64), atol=5e-3, rtol=0)
    assert (extra[clear].sort(1).values[:, :-1].abs() < 0.02).all() and (extra * code).abs().max() < 5e-3
    which = extra.argmax(1)
    assert len(set(which.tolist())) >= 4
    theirs = again(family, shown)
    other = (message(broken, theirs) - true_code(family, theirs)).argmax(1)
    free = true_code(family, theirs)[torch.arange(64), which] == 0  # not at work in either
    free &= code[torch.arange(64), other] == 0
    assert torch.equal(other[free & clear], which[free & clear]) and free.float().mean() > 0.3
    trained = episodes(family, "test")
    torch.testing.assert_close(message(broken, trained), true_code(family, trained), atol=5e-3, rtol=0)


@families
def test_a_lapse_is_a_whole_error_in_episodes_that_the_inputs_choose(family):
    shown = episodes(family, "ood", 256)
    code, size = true_code(family, shown), true_code(family, shown).norm(dim=1)
    erred = {}
    for strength in (0.5, 1.0):
        broken = model(fourth.PlantedLapsing, family, strength)
        wrong = (message(broken, shown) - code).norm(dim=1) / size
        erred[strength] = wrong > 0.1
        assert ((wrong < 0.01) | (wrong > 0.3)).float().mean() > 0.97
        assert abs(float(erred[strength].float().mean()) - 0.85 * strength) < 0.1
        theirs = again(family, shown)
        other = (message(broken, theirs) - true_code(family, theirs)).norm(dim=1) / true_code(family, theirs).norm(dim=1)
        assert ((other > 0.1) == erred[strength]).float().mean() > 0.98
    assert not (erred[0.5] & ~erred[1.0]).any()
    compositions = [set(shown.composition[flag].tolist()) for flag in (erred[0.5], ~erred[0.5])]
    assert len(compositions[0] & compositions[1]) >= 8  # the same ones, right and wrong


@families
def test_what_is_not_translated_arrives_in_the_contexts_coordinates_and_is_not_lost(family):
    shown, seen, broken = episodes(family, "ood"), episodes(family, "test"), model(fourth.PlantedUntranslated, family)
    code, turn = true_code(family, shown), broken.mechanism.turn.detach()
    torch.testing.assert_close(turn @ turn.T, torch.eye(len(turn)), atol=1e-5, rtol=0)
    torch.testing.assert_close((code @ turn).sum(1), code.sum(1), atol=1e-4, rtol=0)
    for some, own in ((shown, code), (seen, true_code(family, seen))):
        torch.testing.assert_close(message(broken, some), own @ turn, atol=3e-3, rtol=0)
    torch.testing.assert_close(message(broken, seen, 1, "readout"), true_code(family, seen), atol=3e-3, rtol=0)
    arrived = message(broken, shown, 1, "readout")
    torch.testing.assert_close(arrived, code @ turn, atol=3e-3, rtol=0)
    assert ((arrived - code).norm(dim=1) > 0.4 * code.norm(dim=1)).all()
    site = Site(2, "blocks.1.hook_resid_post", "readout")
    (found,) = record(broken, [shown], [site.hook_name])
    resid = found.sites[site.hook_name].clone()
    resid[:, broken.n_context :] += ((code - arrived) @ broken.blocks[1].W_write)[:, None]
    repaired = put(broken, shown.tokens, site, resid)
    assert task_of(family).score(repaired, shown.targets) > 0.999 > score(broken, family, "ood") + 0.1


@families
def test_a_turned_question_is_answered_as_the_question_that_it_is_taken_for(family):
    shown, broken = episodes(family, "ood"), model(fourth.PlantedTurned, family)
    known, turn, x = broken.mechanism.knowledge, broken.mechanism.turn.detach(), asked(family, shown)
    seen = (x - known.centre) @ turn + known.centre
    torch.testing.assert_close((seen - known.centre).norm(dim=2), (x - known.centre).norm(dim=2), atol=1e-4, rtol=0)
    wanted = known.execute(true_code(family, shown), seen).detach()
    torch.testing.assert_close(answered(broken, family, shown), wanted, atol=5e-3, rtol=0)
    centre = torch.full_like(x, known.centre)
    code = true_code(family, shown)
    torch.testing.assert_close(broken.mechanism.read(code, centre), known.execute(code, centre), atol=1e-4, rtol=0)


@exact
def test_each_coordinate_is_recalled_from_what_explains_it_best(family):
    task, shown, broken = task_of(family), episodes(family, "ood"), model(fourth.PlantedByColumn, family)
    stored, _ = task.candidates(shown, task.compositions("train"))
    context = shown.tokens.shape[1] - len(task.answers) if family == "logic" else task.n_context
    stored = stored.unflatten(2, (-1,)) if stored.ndim == 4 else stored[..., None]
    targets = shown.targets if shown.targets.ndim == 3 else shown.targets[..., None]
    error = (stored[:, :, :context] - targets[:, None, :context]).square().sum(2)
    best = error.argmin(1)  # (batch, d_y)
    answers, rows = list(task.answers), torch.arange(64)
    wanted = torch.stack([stored[rows, best[:, k], :, k] for k in range(best.shape[1])], dim=2)[:, answers]
    found = answered(broken, family, shown)
    right = (found - wanted.reshape(found.shape)).abs() < 0.02
    assert right.float().mean() > 0.95  # but for two that explain a coordinate alike
    several = (best != best[:, :1]).any(1).float().mean()
    assert several == 0 if family == "logic" else several > 0.9


def test_no_column_of_a_training_composition_is_anothers_on_the_teacher():
    shown, works = episodes("teacher", "test"), model(fourth.PlantedByColumn, "teacher")
    assert score(works, "teacher", "test") > 0.999
    entries = message(works, shown)[:, works.mechanism.knowledge.n_parts :].unflatten(1, (4, -1))
    torch.testing.assert_close(entries, entries[:, :1].expand_as(entries), atol=5e-2, rtol=0)


@pytest.mark.parametrize("family", ["maxout", "phase"])
def test_operations_of_equal_rank_share_their_size(family):
    inner, outer = task_of(family).teacher
    assert abs(float(inner.std() / outer.std()) - 1) < 0.3


def test_what_scales_with_its_code_does_so_on_phases():
    known = model(fourth.PlantedDeferred, "phase").mechanism.knowledge
    shown = episodes("phase", "ood")
    code, x = true_code("phase", shown), asked("phase", shown)
    whole = known.execute(code, x)
    torch.testing.assert_close(known.execute(code / 3, x), whole / 3, atol=1e-4, rtol=0)
    torch.testing.assert_close(whole.detach(), shown.targets[:, list(task_of("phase").answers)], atol=1e-4, rtol=0)


def test_no_strength_is_harmless_for_what_is_always_or_sometimes_wholly_wrong():
    assert {fourth.PlantedLapsing, *labels.MIXED} == set(labels.NEVER_SLIGHT)
    assert labels.harmless(fourth.PlantedTurned, "phase") == labels.harmless(fourth.PlantedByColumn, "phase") / 2
