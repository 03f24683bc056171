"""Measures of agreement against closed forms, numpy and scipy."""

import numpy as np
import pytest
import torch
from scipy.stats import linregress

from compolens.measures.agreement import (
    best_steps,
    error_similarity,
    implied_weight_distance,
    implied_weights,
    linearity,
    prediction_distance,
    sensitivity_cosine,
    sensitivity_distance,
    squared_prediction_distance,
    trend,
)


@pytest.fixture
def rng():
    return torch.Generator().manual_seed(0)


def normal(rng, *shape):
    return torch.randn(*shape, generator=rng, dtype=torch.float64)


def test_expected_squared_distance_of_linear_learners_is_that_of_their_weights(rng):
    """For x with E[x x^T] = 1: E |x.(a - b)|² = |a - b|², so SPD and ILWD agree in the mean."""
    a, b = normal(rng, 5), normal(rng, 5)
    x = normal(rng, 400_000, 5)
    spd = squared_prediction_distance((x @ a)[:, None], (x @ b)[:, None], 5)
    ilwd = implied_weight_distance(a[None, :, None], b[None, :, None])
    assert spd.mean().item() == pytest.approx(ilwd.item(), abs=5 * spd.std().item() / 400_000**0.5)
    assert ilwd.item() == pytest.approx(np.sum((a - b).numpy() ** 2) / 5)


def test_implied_weights_are_those_of_numpy_and_exact_for_a_linear_learner(rng):
    x, w = normal(rng, 3, 20, 4), normal(rng, 3, 4, 2)
    torch.testing.assert_close(implied_weights(x, x @ w), w)
    torch.testing.assert_close(linearity(x, x @ w), torch.ones(3, dtype=torch.float64))
    answers = normal(rng, 3, 20, 2)
    for i in range(3):
        expected = np.linalg.lstsq(x[i].numpy(), answers[i].numpy(), rcond=None)[0]
        np.testing.assert_allclose(implied_weights(x, answers)[i], expected, atol=1e-12)


def test_linearity_is_the_share_explained(rng):
    x, w = normal(rng, 2, 4000, 3), normal(rng, 2, 3, 1)
    answers = x @ w + normal(rng, 2, 4000, 1) * w.norm(dim=1, keepdim=True)  # as much again that is not linear
    assert linearity(x, answers).tolist() == pytest.approx([0.5, 0.5], abs=0.03)


def test_too_few_inputs_for_implied_weights_are_refused(rng):
    with pytest.raises(ValueError, match="3 inputs cannot determine 4 weights"):
        implied_weights(normal(rng, 1, 3, 4), normal(rng, 1, 3, 1))


def test_distances_and_cosines(rng):
    a, b = normal(rng, 6, 4, 2), normal(rng, 6, 4, 2)
    np.testing.assert_allclose(sensitivity_distance(a, b), np.linalg.norm((a - b).numpy().reshape(6, -1), axis=1))
    assert torch.allclose(sensitivity_cosine(a, 3 * a), torch.ones(6, dtype=torch.float64))
    assert torch.allclose(sensitivity_cosine(a, -a), -torch.ones(6, dtype=torch.float64))
    assert (sensitivity_cosine(a, torch.zeros_like(a)) == 0).all()
    assert prediction_distance(torch.tensor([[3.0, 4.0]]), torch.zeros(1, 2)).item() == 5
    errors = torch.tensor([[1.0, 0.0], [1.0, 1.0]])
    assert error_similarity(errors, errors.flip(1)).tolist() == pytest.approx([0.0, 1.0])


def test_the_best_step_is_the_most_alike_and_an_edge_is_marked():
    similarity = torch.tensor([[0.1, 0.9, 0.2], [0.1, 0.2, 0.3]])
    found = best_steps(similarity, torch.tensor([1, 4, 16]))
    assert found.steps.tolist() == [4, 16] and found.at_edge.tolist() == [False, True]
    assert found.levels.tolist() == pytest.approx([0.9, 0.3])


def test_steps_after_convergence_do_not_compete():
    similarity = torch.tensor([[0.1, 0.2, 0.95, 0.951, 0.952]])
    converged = torch.tensor([False, False, True, True, True])
    found = best_steps(similarity, torch.arange(5), converged)
    assert found.steps.tolist() == [2] and found.at_edge.tolist() == [True]


def test_a_trend_is_scipys_line(rng):
    layers, values = torch.arange(1, 8), normal(rng, 7)
    expected = linregress(layers.numpy(), values.numpy())
    found = trend(layers, values)
    assert found.slope == pytest.approx(expected.slope) and found.r2 == pytest.approx(expected.rvalue**2)
    assert trend(layers, 3.0 * layers + 1) == pytest.approx((3, 1))
    assert np.isnan(trend(layers[:2], values[:2]).r2) and np.isnan(trend(layers[:1], values[:1]).slope)
