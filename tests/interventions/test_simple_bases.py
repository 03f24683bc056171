"""Bases that are not searched for, placebos that move as far, and the directions that distances are taken along."""

import pytest
import torch

from compolens.activations.sites import Site, positions
from compolens.activations.streams import draw, record
from compolens.interventions.interchange import Held, Subspace, interchange
from compolens.interventions.natural import directions, distances, state
from compolens.interventions.simple_bases import norm_matched, random_neurons, simple_bases
from compolens.measures.subspaces import overlap
from compolens.zoo.folders import load


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_every_simple_basis_finds_a_linear_code_where_it_stands():
    code, noise = normal(600, 2), 0.01 * normal(600, 10, seed=1)
    which = (code[:, 0] > 0).long() * 2 + (code[:, 1] > 0).long()
    x = noise.clone()
    x[:, 3] += code[:, 0]
    x[:, 7] += 2 * code[:, 1]
    found = simple_bases(x, code, which, 4)
    truth = torch.eye(10)[:, [7, 3]]
    assert overlap(found["mean difference"][:, :2], truth) > 0.999
    assert overlap(found["readout"], truth) > 0.99 and found["readout"].shape == (10, 2)
    assert found["neurons"].argmax(0).tolist()[:2] == [7, 3]
    for basis in found.values():
        torch.testing.assert_close(basis.T @ basis, torch.eye(basis.shape[1]), atol=1e-5, rtol=0)


def test_a_rotated_code_is_no_ones_neuron_but_still_a_mean_difference():
    turn = torch.linalg.qr(normal(10, 10, seed=2)).Q
    code = normal(600, 2)
    which = (code[:, 0] > 0).long() * 2 + (code[:, 1] > 0).long()
    found = simple_bases(code @ turn[:2] + 0.01 * normal(600, 10, seed=1), code, which, 2)
    assert overlap(found["mean difference"], turn[:2].T) > 0.99 > 0.9 > overlap(found["neurons"], turn[:2].T)


def test_states_that_are_all_equal_have_no_mean_difference():
    found = simple_bases(torch.ones(20, 4), normal(20, 2), torch.arange(20) % 3, 2)
    assert "mean difference" not in found and found["neurons"].shape == (4, 2)


def test_a_placebo_moves_as_far_as_the_exchange_and_along_its_own_directions_alone():
    rng = torch.Generator().manual_seed(0)
    held = Held(*(torch.randn(5, 6, 8, generator=rng) for _ in range(2)))
    basis, random = (Subspace.random(8, 2, rng).basis for _ in range(2))
    where = [1, 4]
    exchanged, moved = interchange(held, where, basis), norm_matched(held, where, basis, random)
    far = [(edited - held.base).norm(dim=-1) for edited in (exchanged, moved)]
    torch.testing.assert_close(*far)
    assert not far[0][:, [0, 2, 3, 5]].any()
    change = moved - held.base
    torch.testing.assert_close(change @ random @ random.T, change, atol=1e-5, rtol=0)
    torch.testing.assert_close(norm_matched(held, where, basis, basis), exchanged, atol=1e-5, rtol=0)


def test_random_neurons_are_others_where_there_are_enough():
    assert not set(random_neurons(10, 3, 0, [1, 2, 3]).argmax(0).tolist()) & {1, 2, 3}
    assert random_neurons(4, 3, 0, [0, 1, 2]).shape == (4, 3)


@pytest.mark.parametrize("name", ["softmax", "hypernetwork"])
def test_what_lies_in_the_rest_changes_answers_less_than_what_answers_are_sensitive_to(tiny_models, name):
    trained = load(tiny_models[name])
    (batch,) = draw(trained.task, "train", 32, "0", batch=32)
    site = Site(1, "blocks.0.hook_resid_post", "readout")
    (seen,) = record(trained.model, [batch], [site.hook_name])
    there = seen.sites[site.hook_name]
    ways = directions(trained.model, trained.task, site, batch, there)
    x = state(trained.model, there, site)
    both = torch.cat([a for a in (ways["sensitive"], ways.get("rest")) if a is not None], dim=1)
    torch.testing.assert_close(both.T @ both, torch.eye(x.shape[1], dtype=torch.float64), atol=1e-6, rtol=0)
    for far in distances(x, x, ways).values():
        torch.testing.assert_close(far, torch.zeros_like(far), atol=1e-6, rtol=0)  # natural states are natural
    moved = {way: x + 3 * axes[:, 0] for way, axes in ways.items() if axes is not None}
    for way, states in moved.items():
        found = distances(x, states, ways)
        others = {"sensitive", "rest"} & set(ways) - {way}
        assert found[way].mean() > 0.1 and all(found[o].max() < 1e-5 for o in others)
    assert positions(trained.model, "readout")
