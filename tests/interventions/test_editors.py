"""Editors that need not be linear: what they write, what they leave alone, and what they must not be able to do."""

import sys
from pathlib import Path

import pytest
import torch

from compolens.activations.sites import Site
from compolens.activations.streams import draw, record
from compolens.interventions.editors import Coordinates, assemble, donors, fit_editors, put_in
from compolens.interventions.oracles import code_features, fit_codes, recovered, written

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
