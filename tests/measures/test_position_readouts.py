"""Readouts that choose their positions find planted ones, and nothing where there is nothing."""

import pytest
import torch

from compolens.measures.position_readouts import Fitting, PositionReadouts

EPISODES, POSITIONS, FEATURES = 1024, 5, 4


def r2(said, true):
    """Pooled over outputs."""
    return float(1 - (said - true).square().sum() / (true - true.mean(0)).square().sum())


@pytest.fixture(scope="module")
def states():
    """Two stacks of independent standard normal activations; feature 3 never varies."""
    drawn = torch.randn(2, 2 * EPISODES, POSITIONS, FEATURES, generator=torch.Generator().manual_seed(0))
    drawn[..., 3] = 7.0
    return drawn


def fitted(states, targets, seen, **how):
    readouts = PositionReadouts.fit(states[:, :EPISODES], targets[:, :EPISODES], torch.tensor(seen), Fitting(**how))
    return readouts, readouts(states[:, EPISODES:]), targets[:, EPISODES:]


def test_a_linear_function_of_one_position_is_read_there_and_only_in_the_stack_that_holds_it(states):
    target = (states[0, :, 2, :2] @ torch.tensor([[1.0, 2.0], [0.5, -3.0]]) + 100)[None]
    readouts, said, true = fitted(states, target, [POSITIONS], updates=400)
    assert r2(said[0, 0], true[0]) > 0.98 and r2(said[1, 0], true[0]) < 0.02
    assert readouts.attention[0, 0, 2] > 0.9
    torch.testing.assert_close(readouts.attention.sum(-1), torch.ones(2, 1))


def test_the_mean_of_two_positions_is_read_with_even_attention(states):
    target = states[:1, :, 1:3, :2].mean(2)
    readouts, said, true = fitted(states[:1], target, [POSITIONS], updates=400)
    assert r2(said[0, 0], true[0]) > 0.98
    assert readouts.attention[0, 0, 1:3].tolist() == pytest.approx([0.5, 0.5], abs=0.06)


def test_a_product_is_read_by_two_layers_and_by_no_linear_map(states):
    target = (states[:1, :, 0, 0] * states[:1, :, 0, 1])[..., None]
    _, linear, true = fitted(states[:1], target, [POSITIONS], updates=300)
    _, deep, _ = fitted(states[:1], target, [POSITIONS], updates=500, hidden=32)
    assert r2(linear[0, 0], true[0]) < 0.05 and r2(deep[0, 0], true[0]) > 0.8


def test_later_positions_are_never_seen(states):
    target = states[:1, :, 4, :1]
    readouts, said, true = fitted(states[:1], target.repeat(2, 1, 1), [4, 5], updates=400)
    assert r2(said[0, 0], true[0]) < 0.02 and r2(said[0, 1], true[1]) > 0.98
    assert readouts.attention[0, 0, 4] == 0
    changed = states[:1].clone()
    changed[:, :, 4] = 99.0
    assert torch.equal(readouts(changed)[0, 0], readouts(states[:1])[0, 0])


def test_equal_seeds_fit_equal_readouts_and_leave_global_randomness_alone(states):
    target, before = states[:1, :64, 0, :1], torch.get_rng_state()
    one, other = (PositionReadouts.fit(states[:1, :64], target, torch.tensor([5]), Fitting(5, hidden=3)) for _ in range(2))
    assert torch.equal(one(states[:1]), other(states[:1])) and torch.equal(torch.get_rng_state(), before)
