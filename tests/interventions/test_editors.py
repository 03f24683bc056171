"""Editors that need not be linear: what they write, what they leave alone, and what they must not be able to do."""

import sys
from pathlib import Path

import pytest
import torch

from compolens.activations.sites import Site
from compolens.activations.streams import draw, record
from compolens.interventions.editors import (
    Changes,
    Coordinates,
    _products,
    assemble,
    donors,
    fit_editors,
    fit_editors_without,
    put_in,
)
from compolens.interventions.oracles import (
    code_features,
    fit_codes,
    fit_without,
    recovered,
    recovered_without,
    written,
)
from compolens.measures.capacity import fold_by_composition

HERE = Path(__file__).parents[1] / "benchmarks" / "diagnosis"
if str(HERE) not in sys.path:
    sys.path.append(str(HERE))
AT = Site(1, "blocks.0.hook_resid_post", "context")


@pytest.fixture(scope="module")
def curved():
    """A model whose code is a nonlinear function of the task's, executed right: (model, task, episodes to fit, to score)."""
    cases, kinds = pytest.importorskip("cases"), pytest.importorskip("curved_kinds")
    case = cases.case_of(kinds.PlantedHands, "teacher", 1.0, 0, False, "")
    task = case.run.task
    return cases.model_of(case), task, list(draw(task, "train", 384, "fit")), list(draw(task, "train", 64, "choose"))


def test_a_code_that_is_not_linear_is_written_better_and_permuted_codes_write_nothing(curved):
    model, task, fit, pairs = curved
    (linear,), (editor,) = fit_codes(model, task, fit, [AT]), fit_editors(model, task, fit, [AT])
    (noise,) = fit_editors(model, task, fit, [AT], permuted=True)
    moved = [recovered(model, task, at, pairs).score for at in (linear, editor, noise)]
    assert editor.coordinates.mean_activation.capacity != "linear"
    assert moved[1] > moved[0] + 0.01 and moved[1] > 0.9, moved
    assert moved[2] < 0.15
    (seen,) = record(model, pairs[:1], [AT.hook_name])
    state, code = seen.sites[AT.hook_name], code_features(task, pairs[0].codes)
    edited = editor.write(model, state, code)
    others = [i for i in range(state.shape[1]) if i not in model.roles["context"]]
    torch.testing.assert_close(edited[:, others], state[:, others])
    own = written(model, pairs[0], editor, code, state)
    assert task.score(own, pairs[0].targets) > 0.9  # its own code: the answers stay


def test_an_untrained_model_has_nothing_to_write(curved):
    cases, kinds = pytest.importorskip("cases"), pytest.importorskip("curved_kinds")
    model = cases.case_of(kinds.PlantedHands, "teacher", 1.0, 0, False, "").run.build().eval()
    _, task, fit, pairs = curved
    (editor,) = fit_editors(model, task, fit, [AT])
    assert recovered(model, task, editor, pairs).score < 0.1


def test_a_donor_has_the_code_and_none_of_the_inputs_and_its_state_answers_the_bases_question(curved):
    model, task, _, (batch, *_) = curved
    donor = donors(task, batch, batch.codes)
    assert all(torch.equal(donor.codes[name], code) for name, code in batch.codes.items())
    assert not torch.isclose(donor.inputs, batch.inputs).flatten(1).all(1).any()
    both = [next(record(model, [e], [AT.hook_name])).sites[AT.hook_name] for e in (batch, donor)]
    edited = put_in(model, *both, AT)
    torch.testing.assert_close(edited[:, model.roles["context"]], both[1][:, model.roles["context"]])
    with torch.no_grad():
        answer = model.resume(edited, 1, batch.tokens)
    assert task.score(answer, batch.targets) > 0.99 > task.score(answer, donor.targets) + 0.5


def test_coordinates_are_those_in_which_the_mean_varies_and_no_others():
    rng = torch.Generator().manual_seed(0)
    code, which = torch.rand(400, 2, generator=rng, dtype=torch.float64), torch.arange(400) % 16
    basis = torch.linalg.qr(torch.randn(8, 8, generator=rng, dtype=torch.float64)).Q
    noise = 0.1 * torch.randn(400, 5, generator=rng, dtype=torch.float64) @ basis[:5]
    found = Coordinates.fit(code, torch.cat([code, code[:, :1] * code[:, 1:]], 1) @ basis[5:] + noise, which)
    spanned = found.axes @ found.axes.T
    assert found.axes.shape[1] <= 3
    torch.testing.assert_close(spanned @ basis[:5].T, torch.zeros(8, 5, dtype=torch.float64), atol=0.1, rtol=0)


def normal(*shape, seed):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_a_state_of_two_donors_holds_the_code_wanted_where_the_code_is_linear_and_the_first_ones_remainder():
    """Parts 0 to 3 are on one by one with another of them; 0 with 3 is never shown."""
    pairs = [(0, 1), (0, 2), (1, 2), (1, 3), (2, 3)]
    basis = torch.linalg.qr(normal(12, 12, seed=0)).Q
    code = torch.zeros(300, 4, dtype=torch.float64)
    for i in range(300):
        code[i, list(pairs[i % 5])] = 1.0
    rest = 0.1 * normal(300, 3, 5, seed=1)
    shown = (code @ basis[:4])[:, None] + rest @ basis[4:9]
    wanted = torch.tensor([[1.0, 0, 0, 1.0]], dtype=torch.float64).expand(7, 4)
    made = assemble(wanted, code, shown)
    inside = made.states @ basis[:4].T
    # the code's directions are known from 300 episodes with a remainder: exact up to its sampling error
    torch.testing.assert_close(inside, wanted[:, None].expand(-1, 3, -1), atol=0.03, rtol=0)
    torch.testing.assert_close(made.states @ basis[4:9].T, rest[made.first], atol=0.03, rtol=0)
    for donor in (made.first, made.second):
        assert (code[donor][:, [0, 3]].sum(1) == 1).all()  # each has one of the two parts, none both
    assert not (code[made.first] == code[made.second]).all(1).any()


def test_a_code_that_training_shows_is_its_own_donor():
    code, shown = normal(40, 3, seed=2), normal(40, 2, 6, seed=3)
    made = assemble(code[:5], code, shown)
    assert made.first.tolist() == list(range(5))
    torch.testing.assert_close(made.states, shown[:5])


# ---- codes whose form depends on what else stands there --------------------------------------------------------------
def planted(carrier, **more):
    """A model of the blind set that works, its code carried in some form: (model, task, episodes to fit, to score)."""
    models = pytest.importorskip("blind_models")
    task = models.task_of("maxout", 0)
    architecture = models.PlantedBlind(task, carrier=carrier, **more)
    model = architecture.build(**task.dimensions).eval()
    torch.manual_seed(0)
    model.plant()
    return model, task, list(draw(task, "train", 192, "fit")), list(draw(task, "train", 64, "choose"))


def folds(batches):
    composition = torch.cat([batch.composition for batch in batches])
    return fold_by_composition(composition)


def test_values_behind_a_key_are_written_by_an_editor_that_sees_the_key_and_by_no_other():
    model, task, fit, pairs = planted("keyed")
    (linear,), (bent,) = fit_codes(model, task, fit, [AT]), fit_editors(model, task, fit, [AT])
    changes = Changes.of(model, task, fit, [AT])
    editor, noise = (some.fit(AT, bent.shown) for some in (changes, changes.permuted()))
    moved = [recovered(model, task, at, pairs).score for at in (linear, bent, editor, noise)]
    assert moved[2] > 0.9 > 0.4 > max(moved[0], moved[1], moved[3]), moved
    fold_of = folds(fit)
    fold = torch.tensor([fold_of[c] for c in changes.composition.tolist()])
    without = [changes.fit(AT, bent.shown, fold == g, editor.change.l2) for g in range(max(fold.tolist()) + 1)]
    assert recovered_without(model, task, without, fold_of, pairs).score > 0.8  # and codes that it was not fitted to


def test_an_untrained_model_has_nothing_for_the_conditional_editor_to_write():
    models = pytest.importorskip("blind_models")
    _, task, fit, pairs = planted("keyed")
    untrained = models.PlantedBlind(task, carrier="keyed").build(**task.dimensions).eval()
    changes = Changes.of(untrained, task, fit, [AT])
    (bent,) = fit_editors(untrained, task, fit, [AT])
    assert recovered(untrained, task, changes.fit(AT, bent.shown), pairs).score < 0.1


def test_a_table_of_words_is_written_where_it_was_fitted_and_nowhere_else():
    model, task, fit, pairs = planted("hashed")
    (at,), (bent,) = fit_codes(model, task, fit, [AT]), fit_editors(model, task, fit, [AT])
    fold_of, changes = folds(fit), Changes.of(model, task, fit, [AT])
    (linear,) = fit_without(model, task, fit, [at], fold_of)
    fold = torch.tensor([fold_of[c] for c in changes.composition.tolist()])
    editor = changes.fit(AT, bent.shown)
    given = [changes.fit(AT, bent.shown, fold == g, editor.change.l2) for g in range(max(fold.tolist()) + 1)]
    others = fit_editors_without(model, task, fit, bent, fold_of)
    for whole, without in ((at, linear), (bent, others), (editor, given)):
        both = recovered(model, task, whole, pairs).score, recovered_without(model, task, without, fold_of, pairs).score
        assert both[1] < 0.5 and both[1] < both[0] + 0.02, both


def test_fits_that_leave_nothing_out_move_answers_as_the_whole_fit_does(curved):
    model, task, fit, pairs = curved
    (at,) = fit_codes(model, task, fit, [AT])
    fold_of = {c: 0 for c in folds(fit)}
    whole = recovered(model, task, at, pairs)
    again = recovered_without(model, task, [at], fold_of, pairs)
    assert again.score == pytest.approx(whole.score, abs=1e-5)
    fold_of = folds(fit)
    same = recovered_without(model, task, [at] * (max(fold_of.values()) + 1), fold_of, pairs)
    assert same.score == pytest.approx(whole.score, abs=1e-5)


def test_a_change_that_is_a_product_of_state_and_code_is_found_exactly():
    state, code = normal(900, 5, seed=0), normal(900, 3, seed=1)
    along = normal(5, 3, 5, seed=2)
    change = torch.einsum("ni,nj,ijk->nk", state, code, along) + code @ normal(3, 5, seed=3)
    found = Changes({AT: state}, {AT: state + change}, code, torch.arange(900) % 12)
    whole = found.fit(AT, None, l2=0.0)
    torch.testing.assert_close(whole.change(_products((state - whole.mean) @ whole.axes, code)), change, atol=1e-6, rtol=1e-6)
    assert found.fit(AT, None).left_out > 0.99
    assert found.permuted().fit(AT, None).left_out < 0.2


def test_by_composition_is_by_the_code_that_is_written(curved):
    """Of an editor that writes nothing of some compositions, these are not followed, whatever the base was."""
    model, task, fit, pairs = curved
    (at,), fold_of = fit_editors(model, task, fit, [AT]), folds(fit)

    class Silent:
        site = AT

        def write(self, model, activation, code):
            return activation

    without = [Silent() if group == 0 else at for group in range(max(fold_of.values()) + 1)]
    for composition, (share, _, _) in recovered_without(model, task, without, fold_of, pairs).per_composition.items():
        assert (share == pytest.approx(0, abs=1e-5)) == (fold_of[composition] == 0), composition
