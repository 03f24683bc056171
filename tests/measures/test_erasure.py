"""Erasure and writing: the theorems of least-squares concept erasure, parity with its authors' code, and the random nulls."""

import numpy as np
import pytest
import torch
from concept_erasure import LeaceFitter

from compolens.measures.erasure import (
    Eraser,
    Range,
    Writer,
    orthogonal_erasers,
    variance_matched_erasers,
    whitened_erasers,
)
from compolens.measures.readouts import Moments

NULLS = (orthogonal_erasers, whitened_erasers, variance_matched_erasers)


def rng(seed=0):
    return torch.Generator().manual_seed(seed)


@pytest.fixture(scope="module")
def data():
    """400 correlated activations of width 10 about a mean, and 3 codes that are partly linear in them."""
    g = rng()
    mix = torch.randn(10, 10, generator=g, dtype=torch.float64) * torch.logspace(0, -2, 10, dtype=torch.float64)
    x = torch.randn(400, 10, generator=g, dtype=torch.float64) @ mix + 3
    z = (x - 3) @ torch.randn(10, 3, generator=g, dtype=torch.float64)
    return x, z + torch.randn(400, 3, generator=g, dtype=torch.float64) + 5


def covariance(a, b):
    return (a - a.mean(0)).T @ (b - b.mean(0)) / len(a)


def best_r2(x, z):
    """R² of an ordinary least-squares readout, by numpy."""
    design = np.c_[np.ones(len(x)), x.numpy()]
    left = z.numpy() - design @ np.linalg.lstsq(design, z.numpy(), rcond=1e-10)[0]
    return 1 - (left**2).sum(0) / ((z - z.mean(0)) ** 2).sum(0).numpy()


# ---- erasing ---------------------------------------------------------------------------------------------------------
def test_equal_to_the_authors_code(data):
    x, z = data
    theirs = LeaceFitter.fit(x, z, shrinkage=False, constrain_cov_trace=False, svd_tol=1e-10).eraser
    ours = Eraser.fit(x, z)
    assert torch.allclose(ours.projection, theirs.P, atol=1e-6) and torch.allclose(ours(x), theirs(x), atol=1e-6)


def test_no_linear_readout_beats_the_mean_and_first_moments_stay(data):
    x, z = data
    erased = Eraser.fit(x, z)(x)
    assert best_r2(x, z).min() > 0.4 and best_r2(erased, z).max() < 1e-8
    assert torch.allclose(erased.mean(0), x.mean(0), atol=1e-10)


def test_erasing_twice_is_erasing_once(data):
    x, z = data
    eraser = Eraser.fit(x, z)
    assert torch.allclose(eraser(eraser(x)), eraser(x), atol=1e-9)
    assert not torch.allclose(eraser.projection, eraser.projection.T, atol=1e-3)  # oblique, so the test says something


def test_no_other_affine_map_that_erases_moves_activations_less(data):
    x, z = data
    eraser, sigma = Eraser.fit(x, z), covariance(*data)
    u = torch.linalg.qr(sigma)[0]
    orthogonal = Eraser(eraser.mean, torch.eye(10, dtype=torch.float64) - u @ u.T)
    assert best_r2(orthogonal(x), z).max() < 1e-8
    least = (eraser(x) - x).square().sum(1).mean()
    assert (orthogonal(x) - x).square().sum(1).mean() > 1.01 * least
    # every map that erases is P + N with N sigma_xz = 0; moving along such N in any direction only adds
    for i in range(5):
        change = torch.randn(10, 10, generator=rng(i), dtype=torch.float64)
        change = 1e-2 * (change - change @ u @ u.T)
        other = Eraser(eraser.mean, eraser.projection + change)
        assert best_r2(other(x), z).max() < 1e-8
        assert (other(x) - x).square().sum(1).mean() > least


def test_distance_moved_is_read_off_the_moments(data):
    x, z = data
    for eraser in (Eraser.fit(x, z), Eraser.fit(x + 1, z)):
        moved = (eraser(x) - x).square().sum(1).mean()
        assert eraser.removed(Moments.of(x, z)) == pytest.approx(float(moved), rel=1e-9)


def test_streamed_moments_give_the_same(data):
    x, z = data
    moments = Moments.of(x[:150], z[:150]) + Moments.of(x[150:], z[150:])
    assert torch.allclose(Eraser.from_moments(moments, x.dtype).projection, Eraser.fit(x, z).projection, atol=1e-8)


def test_rank_counts_what_is_linearly_known(data):
    x, z = data
    collinear = torch.cat([z, z.sum(1, keepdim=True), torch.ones(len(z), 1)], dim=1)
    assert Eraser.fit(x, z).rank == Eraser.fit(x, collinear).rank == 3
    assert torch.allclose(Eraser.fit(x, collinear).projection, Eraser.fit(x, z).projection, atol=1e-8)
    assert Eraser.fit(x, torch.ones(len(x), 2)).rank == 0
    away, there = x - x.mean(0), z - z.mean(0)
    unknown = there - away @ torch.linalg.lstsq(away, there).solution
    assert Eraser.fit(x, unknown).rank == 0
    assert Eraser.fit(x, x).rank == 10


def test_constant_features_and_features_that_follow_others_are_no_trouble(data):
    x, z = data
    wide = torch.cat([x, x[:, :2] @ torch.ones(2, 3, dtype=x.dtype), torch.full((len(x), 2), 1e3, dtype=x.dtype)], dim=1)
    for dtype, atol in ((torch.float64, 1e-8), (torch.float32, 1e-3)):
        eraser = Eraser.fit(wide.to(dtype), z)
        erased = eraser(wide.to(dtype))
        assert erased.dtype == dtype and eraser.rank == 3
        assert torch.allclose(erased[:, :10], Eraser.fit(x, z)(x).to(dtype), atol=10 * atol)
        assert torch.allclose(erased[:, -2:], wide[:, -2:].to(dtype))


def test_any_leading_shape_and_gradients_pass(data):
    x, z = data
    eraser, grid = Eraser.fit(x, z), x.view(20, 4, 5, 10).clone().requires_grad_()
    out = eraser(grid)
    assert out.shape == grid.shape and torch.equal(out.reshape(400, 10), eraser(x))
    out.sum().backward()
    assert torch.allclose(grid.grad[0, 0, 0], eraser.projection.sum(0))


def test_bad_data_is_refused(data):
    x, z = data
    with pytest.raises(ValueError, match=r"same n of at least 2, got \(400, 10\) and \(399, 3\)"):
        Eraser.fit(x, z[1:])
    with pytest.raises(ValueError, match="finite"):
        Writer.fit(x, torch.where(z > z.mean(), torch.nan, z))
    with pytest.raises(ValueError, match="at least 2 rows of x, got 1"):
        Eraser.from_moments(Moments.of(x[:1], z[:1]))


# ---- writing ---------------------------------------------------------------------------------------------------------
def test_writing_the_own_code_keeps_mean_and_cross_covariance(data):
    x, z = data
    collinear = torch.cat([z, 1 - z.sum(1, keepdim=True)], dim=1)
    for code in (z, collinear):
        written = Writer.fit(x, code)(x, code)
        assert torch.allclose(written.mean(0), x.mean(0), atol=1e-9)
        assert torch.allclose(covariance(written, code), covariance(x, code), atol=1e-8)


def test_writing_another_code_carries_that_one_and_nothing_of_the_own(data):
    x, z = data
    writer, other = Writer.fit(x, z), z[torch.randperm(len(z), generator=rng(1))]
    written = writer(x, other)
    assert torch.allclose(written - writer(x, z), (other - z) @ writer.weight)
    carried = covariance(written - (other - writer.mean) @ writer.weight, z)
    assert carried.abs().max() < 1e-8


def test_the_weight_is_the_regression_of_activations_on_codes(data):
    x, z = data
    by_numpy = np.linalg.lstsq(np.c_[np.ones(len(z)), z], x, rcond=None)[0][1:]
    writer = Writer.fit(x, z)
    np.testing.assert_allclose(writer.weight, by_numpy, atol=1e-9)
    streamed = Writer.from_moments(Moments.of(x, z), Moments.of(z, x), x.dtype)
    assert torch.allclose(streamed.weight, writer.weight, atol=1e-8) and torch.allclose(
        streamed(x, z), writer(x, z), atol=1e-7
    )


# ---- nulls -----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("make", NULLS)
def test_random_erasers_are_projections_of_the_same_rank_and_differ(data, make):
    x, z = data
    moments, eraser = Moments.of(x, z), Eraser.fit(x, z)
    found = make(moments, eraser, rng(), 20)
    assert len(found) == 20
    for one in found:
        assert torch.allclose(one.projection @ one.projection, one.projection, atol=1e-8) and one.rank == eraser.rank == 3
        assert torch.equal(one.mean, eraser.mean)
    assert (found[0].projection - found[1].projection).abs().max() > 0.01
    again = make(moments, eraser, rng(), 20)
    assert all(torch.equal(a.projection, b.projection) for a, b in zip(found, again, strict=True))


def test_haar_subspaces_have_the_mean_projection_of_haar_subspaces(data):
    """E of a uniformly random rank-r projection is (r / d) I."""
    x, z = data
    found = orthogonal_erasers(Moments.of(x, z), Eraser.fit(x, z), rng(), 2000)
    mean = torch.stack([one.projection for one in found]).mean(0)
    assert torch.allclose(mean, 0.7 * torch.eye(10, dtype=torch.float64), atol=0.04)


def test_whitened_subspaces_are_what_unrelated_codes_would_take_out(data):
    """In whitened coordinates they are orthogonal projections, and take rank / d of the variance there on average."""
    x, z = data
    values, vectors = torch.linalg.eigh(covariance(x, x))
    root, back = vectors * values.sqrt() @ vectors.T, vectors / values.sqrt() @ vectors.T
    found = whitened_erasers(Moments.of(x, z), Eraser.fit(x, z), rng(), 2000)
    flat = torch.stack([back @ one.projection @ root for one in found])
    assert torch.allclose(flat, flat.mT, atol=1e-7)
    assert torch.allclose(flat.mean(0), 0.7 * torch.eye(10, dtype=torch.float64), atol=0.04)


def test_variance_matched_subspaces_move_activations_as_far(data):
    x, z = data
    moments, top = Moments.of(x, z), torch.linalg.eigh(covariance(*[data[0]] * 2))[1]
    codes = (z, x @ top[:, -3:], x @ top[:, :3], torch.randn(400, 3, generator=rng(4), dtype=torch.float64))
    for code in codes:  # between, at the most that rank 3 can hold, at the least, and noise
        eraser = Eraser.fit(x, code)
        wanted = eraser.removed(moments)
        for one in variance_matched_erasers(moments, eraser, rng(), 3):
            assert torch.allclose(one.projection, one.projection.T)
            assert one.removed(moments) == pytest.approx(wanted, rel=0.0101)


# ---- what is shown at all --------------------------------------------------------------------------------------------
def test_what_lies_within_the_range_stays_and_what_lies_beyond_is_cut_along_principal_axes():
    away = torch.tensor([[3.0, 1.0, 0.0], [3.0, -1.0, 0.0], [-3.0, 1.0, 0.0], [-3.0, -1.0, 0.0]], dtype=torch.float64)
    shown = Range.fit(5 + away, deviations=4.0)
    torch.testing.assert_close(shown(5 + away), 5 + away)
    far = torch.tensor([[100.0, 0.5, 0.0], [11.9, -4.1, 0.0], [0.0, 0.0, 7.0]], dtype=torch.float64)
    cut = torch.tensor([[12.0, 0.5, 0.0], [11.9, -4.0, 0.0], [0.0, 0.0, 0.0]], dtype=torch.float64)
    torch.testing.assert_close(shown(5 + far), 5 + cut)  # the third never varied: the mean


def test_an_eraser_alone_leaves_a_wrong_copy_that_training_never_shows():
    """Two copies of a code, equal where the fit looks; one of them is wrong elsewhere."""
    code = torch.randn(2000, 2, generator=rng(1), dtype=torch.float64)
    x, wrong = torch.cat([code, code], 1), torch.randn(50, 2, generator=rng(2), dtype=torch.float64)
    writer, shown, true = Writer.fit(x, code), Range.fit(x), code[:50]
    there = torch.cat([true, wrong], 1)
    assert (writer(there, true)[:, 2:] - true).abs().max() > 1
    torch.testing.assert_close(writer(shown(there), true)[:, 2:], true, atol=1e-6, rtol=0)
