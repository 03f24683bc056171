"""Kinds of the benchmark's third fresh set: each does what its name says."""

import pytest
import torch
from test_planted import context, episodes, families, message, model, neighbour, score, task_of, true_code, with_message

from compolens.activations.sites import Site, put
from compolens.activations.streams import draw, record
from compolens.interventions.oracles import code_features, fit_codes, readings

third, labels = neighbour("third_kinds"), neighbour("labels")
exact = pytest.mark.parametrize("family", ["logic", "chain", "product", "maxout", "phase"])


def asked(family, shown):
    """The questions' x (batch, Q, d_x)."""
    return task_of(family).examples(shown)[0][:, list(task_of(family).answers)]


def answered(works, family, shown):
    return works(shown.tokens).detach()[:, list(task_of(family).answers)]


@families
def test_two_copies_of_the_code_are_read_alike(family):
    works, shown = model(third.PlantedRedundant, family), episodes(family, "ood")
    code, turn = true_code(family, shown), works.mechanism.turn.detach()
    parts = code.shape[1]
    torch.testing.assert_close(message(works, shown), torch.cat([code, code @ turn], dim=1), atol=2e-3, rtol=0)
    assert (code @ turn - code).norm() > 0.5 * code.norm()
    other = code.roll(1, 0)
    mean = works.mechanism.knowledge.execute((code + other) / 2, asked(family, shown)).detach()
    for copy, first in ((other, 0), (other @ turn, parts)):
        moved = with_message(works, shown, copy, first=first).detach()[:, list(task_of(family).answers)]
        torch.testing.assert_close(moved, mean, atol=3e-3, rtol=0)


@families
def test_a_guess_is_a_held_out_pair_that_the_inputs_choose_and_the_answers_do_not(family):
    broken, shown = model(third.PlantedGuessed, family), episodes(family, "ood")
    known, code, found = broken.mechanism.knowledge, true_code(family, shown), message(broken, shown)
    x, _ = context(family, shown)
    pairs = torch.nn.functional.one_hot(known.held, known.n_parts).sum(1).float()
    torch.testing.assert_close(found, broken.mechanism.guess(x) * code.sum(1, keepdim=True) / 2, atol=5e-3, rtol=0)
    size = found.sum(1, keepdim=True)
    chosen = torch.cdist(2 * found / size, pairs)
    assert (chosen.amin(1) < 0.1).float().mean() > 0.9 and len(set(chosen.argmin(1).tolist())) >= 5
    other = task_of(family).render({name: c.roll(1, 0) for name, c in shown.codes.items()}, shown.inputs)
    again = message(broken, other)
    torch.testing.assert_close(again / again.sum(1, keepdim=True), found / size, atol=5e-3, rtol=0)


@families
def test_what_comes_too_late_is_plain_at_the_questions_alone_and_is_not_read_there(family):
    shown, broken = episodes(family, "ood"), model(third.PlantedTooLate, family)
    code, known = true_code(family, shown), broken.mechanism.knowledge
    executed, scrambled, late = message(broken, shown).tensor_split(3, dim=1)
    assert late.abs().max() < 1e-3 and ((executed - code).norm(dim=1) > 0.3 * code.norm(dim=1)).all()
    torch.testing.assert_close(broken.mechanism.unscramble(scrambled, 1.0), code, atol=5e-3, rtol=0)
    at_questions, gone, late = message(broken, shown, 1, "readout").tensor_split(3, dim=1)
    torch.testing.assert_close(late, code, atol=5e-3, rtol=0)
    assert gone.abs().max() < 2e-3

    site = Site(2, "blocks.1.hook_resid_post", "readout")
    (seen,) = record(broken, [shown], [site.hook_name])
    for first, moves in ((0, True), (2 * known.n_parts, False)):
        resid = seen.sites[site.hook_name].clone()
        change = code - at_questions if moves else -late
        resid[:, broken.n_context :] += (change @ broken.blocks[1].W_write[first : first + known.n_parts])[:, None]
        answer = put(broken, shown.tokens, site, resid)
        if moves:
            assert task_of(family).score(answer, shown.targets) > 0.999 > score(broken, family, "ood") + 0.1
        else:
            torch.testing.assert_close(answer, broken(shown.tokens), atol=3e-3, rtol=0)


@pytest.mark.parametrize("family", ["product", "maxout"])
def test_of_two_codes_that_training_cannot_tell_apart_a_reading_finds_the_right_one(family):
    """A fit on training compositions alone takes some of each; what it says of held-out ones is neither."""
    task, broken = task_of(family), model(third.PlantedTooLate, family)
    at_questions = Site(2, "blocks.1.hook_resid_post", "readout")
    (at,) = fit_codes(broken, task, list(draw(task, "train", 512, "fit")), [at_questions])
    (seen,) = record(broken, [episodes(family, "ood", 192)], [at_questions.site])
    (found,) = readings(broken, task, [at], [seen], draw(task, "ood", 512, "others"))
    right = code_features(task, seen.episodes.codes)
    spread = (right - right.mean(0)).square().sum()
    alone, read = (
        1 - float((c - right).square().sum() / spread) for c in (at.decode(broken, seen.sites[at_questions.site]), found[0])
    )
    assert at.left_out > 0.95 and alone < 0.9
    assert read > 0.97


@families
def test_a_disturbance_is_added_to_right_answers_and_depends_on_the_question(family):
    shown, answers = episodes(family, "ood"), list(task_of(family).answers)
    half, full = (
        answered(model(third.PlantedDisturbed, family, s), family, shown) - shown.targets[:, answers] for s in (0.5, 1.0)
    )
    torch.testing.assert_close(2 * half, full, atol=5e-3, rtol=0)
    spread = full.std() / shown.targets.std()
    assert 0.3 < spread < 1.5
    known = model(third.PlantedDisturbed, family).mechanism
    quiet = known.read(true_code(family, episodes(family, "test")), asked(family, episodes(family, "test")))
    truth = episodes(family, "test").targets[:, answers]
    torch.testing.assert_close(quiet.detach(), truth, atol=2e-3, rtol=0)


@exact
def test_a_patchwork_answers_each_side_by_what_explains_that_side_best(family):
    task, shown, broken = task_of(family), episodes(family, "ood"), model(third.PlantedPatchwork, family)
    x, y = context(family, shown)
    side = broken.mechanism.side(x).detach()
    stored, _ = task.candidates(shown, task.compositions("train"))
    error = (stored[:, :, : y.shape[1]] - y[:, None]).square().sum(3)
    order = side.argsort(1)
    middle = -(-y.shape[1] // 2)
    answers, wanted = list(task.answers), {}
    for name, half in (("below", order[:, :middle]), ("above", order[:, middle:])):
        best = error.gather(2, half[:, None].expand(-1, error.shape[1], -1)).sum(2).argmin(1)
        wanted[name] = stored[torch.arange(64), best][:, answers]
    below = broken.mechanism.side(asked(family, shown))[..., None] < 0
    right = (answered(broken, family, shown) - torch.where(below, wanted["below"], wanted["above"])).abs() < 0.02
    assert right.float().mean() > 0.95  # but for two that explain a side alike
    assert ((wanted["below"] - wanted["above"]).abs().amax((1, 2)) > 0.05).float().mean() > 0.3


@families
def test_a_smoothed_answer_is_the_mean_of_the_examples_weighed_by_distance(family):
    (shown,) = draw(task_of(family), "ood", 6, 1)
    broken = model(third.PlantedSmoothed, family)
    known, (x, y) = broken.mechanism.knowledge, context(family, shown)
    found = answered(broken, family, shown)
    for k in range(6):
        for q, question in enumerate(asked(family, shown)[k]):
            weights = torch.exp(-((x[k] - question) / known.input_size).square().sum(1) / 2)
            wanted = (weights[:, None] * y[k]).sum(0) / weights.sum()
            torch.testing.assert_close(found[k, q], wanted, atol=5e-3, rtol=0)


def test_harmless_is_half_as_much_where_answers_are_far_from_the_truth():
    assert labels.harmless(third.PlantedGuessed, "maxout") == labels.harmless(third.PlantedPatchwork, "maxout") / 2
