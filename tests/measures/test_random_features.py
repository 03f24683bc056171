"""Random features against exact attention, the laws of their errors, and the dual model that they make finite."""

import math

import numpy as np
import pytest
import scipy.optimize
import torch
from torch.nn.functional import scaled_dot_product_attention

from compolens.measures import dual_model as dual
from compolens.measures import random_features as rf
from compolens.measures.random_features import HyperbolicFeatures, OptimalPositiveFeatures, PositiveFeatures

D, N, SEEDS, SIZES = 16, 64, 12, (64, 256, 1024, 4096, 16384)


def rng(seed=0):
    return torch.Generator().manual_seed(seed)


def randn(*shape, seed=0):
    return torch.randn(*shape, generator=rng(seed), dtype=torch.float64)


def exact(q, k, v, mask=None):
    """Pattern and output by torch's own attention."""
    pattern = scaled_dot_product_attention(q, k, torch.eye(k.shape[-2], dtype=k.dtype).expand(*k.shape[:-1], -1), mask)
    return pattern, scaled_dot_product_attention(q, k, v, mask)


def output_errors(sigma, make, sizes=SIZES):
    """{m: mean over seeds of the relative error of attention's output}, scores of n queries and keys ~ N(0, sigma^2)."""
    found = {m: [] for m in sizes}
    for seed in range(SEEDS):
        q, k, v = randn(3, N, D, seed=seed) * torch.tensor([sigma, sigma, 1.0])[:, None, None]
        _, truth = exact(q, k, v)
        for m in sizes:
            estimate = rf.attention_estimate(q, k, v, make(q, k, m, rng(1000 + seed)))
            found[m].append(float(rf.errors(estimate.output, truth).relative))
    return {m: np.mean(values) for m, values in found.items()}


def positive(q, k, m, generator):
    return PositiveFeatures(rf.orthogonal_projections(m, D, generator))


def optimal(q, k, m, generator):
    return OptimalPositiveFeatures(rf.orthogonal_projections(m, D, generator), rf.mean_square(q, k))


# ---- projections -----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("draw", [rf.gaussian_projections, rf.orthogonal_projections])
def test_one_projection_of_width_one_is_the_least(draw):
    assert draw(1, 1, rng()).shape == (1, 1) and draw(3, 1, rng()).shape == (3, 1) and draw(1, 3, rng()).shape == (1, 3)
    for n, d in ((0, 2), (2, 0)):
        with pytest.raises((ValueError, ZeroDivisionError)):
            draw(n, d, rng())


def test_orthogonal_rows_have_gaussian_lengths_and_uniform_directions():
    d, blocks = 4, 20_000
    rows = rf.orthogonal_projections(blocks * d, d, rng()).view(blocks, d, d)
    lengths = rows.norm(dim=-1)
    cosines = (rows @ rows.transpose(-2, -1)) / (lengths[..., :, None] * lengths[..., None, :])
    assert (cosines - torch.eye(d)).abs().max() < 1e-12
    assert (lengths.square().mean(0) - d).abs().max() < 0.1 and (lengths.square().var(0) - 2 * d).abs().max() < 0.5
    assert rows.mean(0).abs().max() < 5 / blocks**0.5  # fails without the sign fix: -0.5 on the diagonal
    assert np.abs(np.corrcoef(lengths.T.numpy()) - np.eye(d)).max() < 0.05


def test_projections_are_the_generators_alone_and_of_any_number():
    a, b = (rf.orthogonal_projections(37, D, rng(3)) for _ in range(2))
    assert a.shape == (37, D) and torch.equal(a, b) and a.dtype == torch.float64
    assert not torch.equal(a, rf.orthogonal_projections(37, D, rng(4)))
    with pytest.raises(ValueError, match="at least 1 by 1, got 0 by 16"):
        rf.gaussian_projections(0, D, rng())


# ---- maps ------------------------------------------------------------------------------------------------------------
MAPS = {
    "positive": PositiveFeatures,
    "hyperbolic": HyperbolicFeatures,
    "optimal": lambda projections: OptimalPositiveFeatures(projections, 1.5),
}


@pytest.mark.parametrize("make", MAPS.values(), ids=MAPS)
@pytest.mark.parametrize("draw", [rf.gaussian_projections, rf.orthogonal_projections])
def test_kernel_estimates_are_unbiased(make, draw):
    q, k = 0.4 * randn(2, 5, D)
    truth = (q @ k.T / D**0.5).exp()
    estimate = rf.kernel_estimate(q, k, make(draw(100_000, D, rng())))
    assert ((estimate / truth - 1).abs() < 4 * rf.relative_rms(q, k, 100_000)).all()
    assert rf.relative_rms(q, k, 100_000).max() < 0.01


@pytest.mark.parametrize("n2", [0.5, 1.0, 2.0])
def test_the_law_of_the_relative_error(n2):
    q, k = randn(2, 1, D, seed=7)
    size = math.sqrt(n2) / (rf.scaled(q) + rf.scaled(k)).norm()
    q, k, m = q * size, k * size, 256
    truth = (q @ k.T / D**0.5).exp()
    makes = (PositiveFeatures(rf.gaussian_projections(m, D, rng(seed))) for seed in range(600))
    error = torch.stack([rf.kernel_estimate(q, k, features) for features in makes]) / truth - 1
    law = float(rf.relative_rms(q, k, m))
    assert law == pytest.approx(math.sqrt((math.exp(n2) - 1) / m))
    assert float(error.square().mean().sqrt()) == pytest.approx(law, rel=0.15)


@pytest.mark.parametrize(("n2", "d"), [(0.5, 16), (4.5, 16), (8.0, 4), (100.0, 64)])
def test_the_optimal_map_has_the_smallest_second_moment(n2, d):
    """E[(phi(q) phi(k))^2] is (1-4A)^d (1-8A)^(-d/2) exp(2 n2 (1-4A) / (1-8A)) times factors free of A: Gaussian integrals."""

    def log_moment(a):
        return d * np.log1p(-4 * a) - d / 2 * np.log1p(-8 * a) + 2 * n2 * (1 - 4 * a) / (1 - 8 * a)

    best = scipy.optimize.minimize_scalar(log_moment, bounds=(-50, 0.1), method="bounded", options={"xatol": 1e-9}).x
    assert OptimalPositiveFeatures(torch.zeros(1, d), n2).a == pytest.approx(best, rel=1e-3)


def test_the_optimal_map_for_no_norm_is_the_positive_one():
    projections, x = rf.gaussian_projections(9, D, rng()), randn(3, D)
    torch.testing.assert_close(OptimalPositiveFeatures(projections, 0.0).log(x), PositiveFeatures(projections).log(x))


def test_the_mean_square_is_over_all_pairs():
    q, k = randn(2, 3, 5, D)
    pairs = (q[..., :, None, :] + k[..., None, :, :]).square().sum(-1) / D**0.5
    assert rf.mean_square(q, k) == pytest.approx(float(pairs.mean()))


# ---- attention -------------------------------------------------------------------------------------------------------
def test_the_shift_cancels_and_keeps_the_sum_in_range():
    features = PositiveFeatures(rf.orthogonal_projections(256, D, rng()))
    q, k, v = randn(3, 2, 4, 7, D)
    unshifted = rf.kernel_estimate(q, k, features)
    found = rf.attention_estimate(q, k, v, features)
    assert (found.pattern - unshifted / unshifted.sum(-1, keepdim=True)).abs().max() < 1e-13
    assert (found.output - found.pattern @ v).abs().max() < 1e-13
    large_q, large_k = 7 * q.float(), 7 * k.float()
    assert (rf.kernel_estimate(large_q, large_k, features).sum(-1) == 0).any()
    pattern = rf.attention_estimate(large_q, large_k, v.float(), features).pattern
    truth = rf.attention_estimate(large_q.double(), large_k.double(), v, features).pattern
    assert pattern.dtype == torch.float32 and (pattern - truth).abs().max() < 1e-4


def test_masks_and_biases_enter_as_in_attention():
    features = PositiveFeatures(rf.gaussian_projections(200_000, D, rng()))
    q, k, v, mask, bias = *(0.3 * randn(3, 6, D)), torch.ones(6, 6, dtype=torch.bool).tril(), randn(6, 6, seed=5)
    found = rf.attention_estimate(q, k, v, features, bias, mask)
    pattern, output = exact(q, k, v, bias.masked_fill(~mask, -math.inf))
    assert rf.errors(found.pattern, pattern).relative < 0.01 and rf.errors(found.output, output).relative < 0.01
    with pytest.raises(ValueError, match="a query sees no key"):
        rf.attention_estimate(q, k, v, features, mask=torch.zeros(6, 6, dtype=torch.bool))
    with pytest.raises(ValueError, match="vectors of 16 numbers, got 8"):
        rf.attention_estimate(q[..., :8], k[..., :8], v, features)


def test_errors_by_hand():
    found = rf.errors(torch.tensor([[1.0, 2.0], [3.0, 1.0]]), torch.tensor([[1.0, 2.0], [3.0, 4.0]]))
    assert [float(x) for x in found] == pytest.approx([9 / 4, 3 / 4, 3 / 30**0.5])


def test_small_norms_converge_at_one_over_root_m():
    found = output_errors(0.25, positive)
    slope = np.polyfit(np.log(SIZES), np.log(list(found.values())), 1)[0]
    assert -0.6 <= slope <= -0.4 and found[16384] < 1e-2


def test_half_norms_converge_monotonically():
    found = output_errors(0.5, positive)
    assert found[1024] < 0.15 and found[16384] < 0.04
    assert all(a > b for a, b in zip(found.values(), list(found.values())[1:], strict=False))


def test_large_norms_are_better_served_by_the_optimal_map():
    sizes = SIZES[:4]
    best, plain = output_errors(0.75, optimal, sizes), output_errors(0.75, positive, sizes)
    assert all(best[m] <= plain[m] for m in sizes)


def test_an_estimated_normaliser_beats_the_exact_one():
    estimated, with_exact = [], []
    for seed in range(SEEDS):
        q, k, v = randn(3, N, D, seed=seed) * torch.tensor([0.5, 0.5, 1.0])[:, None, None]
        features, (_, truth) = positive(q, k, 1024, rng(seed)), exact(q, k, v)
        normaliser = (q @ k.T / D**0.5).exp().sum(-1, keepdim=True)
        estimated.append(float(rf.errors(rf.attention_estimate(q, k, v, features).output, truth).relative))
        with_exact.append(float(rf.errors(rf.kernel_estimate(q, k, features) / normaliser @ v, truth).relative))
    assert np.mean(with_exact) > 1.1 * np.mean(estimated)


def test_the_estimate_is_one_gradient_step_of_a_finite_dual_model():
    q, k, v = 0.5 * randn(3, 10, D)
    features = HyperbolicFeatures(rf.orthogonal_projections(50, D, rng()))
    phi_q, phi_k = (features.log(rf.scaled(x)).exp() for x in (q, k))
    start = torch.zeros(D + 1, phi_k.shape[-1], dtype=q.dtype)
    weights = dual.gradient_step(start, phi_k, dual.with_constant_channel(v), 1.0, eta=0.2)
    found = dual.divide_by_constant_channel(phi_q @ weights.T)
    assert (found - rf.attention_estimate(q, k, v, features).output).abs().max() < 1e-11
