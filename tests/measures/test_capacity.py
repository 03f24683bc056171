"""Readouts of chosen capacity: what they must read, what they must not, and parity with independent implementations."""

import numpy as np
import pytest
import torch
from scipy.stats import t
from sklearn.gaussian_process.kernels import RBF
from sklearn.linear_model import Ridge

from compolens.measures import capacity
from compolens.measures.capacity import Features, Readout
from compolens.measures.divergence import Natural, sensitive

RNG = torch.Generator().manual_seed(0)


def codes(n=480, compositions=12):
    """Two numbers and the composition each comes from, in which they lie about a point of their own."""
    which = torch.arange(n) % compositions
    centre = torch.rand(compositions, 2, generator=RNG, dtype=torch.float64) * 2 - 1
    return centre[which] + 0.3 * torch.randn(n, 2, generator=RNG, dtype=torch.float64), which


def test_a_linear_code_is_read_linearly_and_a_curved_one_is_not():
    z, which = codes()
    turn = torch.randn(2, 6, generator=RNG, dtype=torch.float64)
    linear = Readout.fit(z @ turn, z, which)
    assert linear.capacity == "linear" and linear.left_out > 0.999
    curved = Readout.fit(torch.cat([(2 * z).cos(), (2 * z).sin()], dim=1), z, which)
    assert curved.capacity != "linear" and curved.left_out > curved.by_capacity["linear"][0] + 0.05


def test_products_are_read_by_products():
    z, which = codes()
    y = z[:, :1] * z[:, 1:]
    found = Readout.fit(z, y, which)
    assert found.capacity == "products" and found.left_out > 0.999
    assert found.by_capacity["linear"][0] < 0.9


def test_an_entry_per_composition_is_read_by_no_capacity_where_it_was_left_out():
    z, which = codes()
    entries = torch.nn.functional.one_hot(which).double()
    means = torch.zeros(12, 2, dtype=torch.float64).index_add_(0, which, z) / 40
    found = Readout.fit(entries, means[which], which)
    assert max(r2 for r2, _ in found.by_capacity.values()) < 0.1


def test_features_and_fit_are_those_of_scikit_learn():
    x = torch.randn(80, 3, generator=RNG, dtype=torch.float64)
    features = Features.fit(x, "32 bumps")
    bumps = RBF(features.width)(x.numpy(), features.centres.numpy())
    np.testing.assert_allclose(features(x)[:, 3:].numpy(), bumps, atol=1e-10)
    y = torch.randn(80, 2, generator=RNG, dtype=torch.float64)
    found = Readout.fit(x, y, torch.arange(80) % 8, capacities=("linear",))
    scaled = (x - x.mean(0)) / x.std(0, unbiased=False)
    ours, theirs = found(x).numpy(), Ridge(alpha=found.linear.l2).fit(scaled, y).predict(scaled)
    np.testing.assert_allclose(ours, theirs, atol=1e-8)


@pytest.mark.parametrize("count", [2, 3, 4, 5, 8, 24])
def test_in_a_control_task_no_composition_keeps_its_own_code(count):
    which = torch.arange(3 * count) % count
    own = which[:, None].double()
    for seed in range(20):
        given = capacity.control_task(own, which, seed)
        assert (given != own).all() and sorted(set(given.ravel().tolist())) == list(range(count))


@pytest.mark.parametrize("compositions", [2, 4, 8, 20])
def test_the_interval_on_left_out_compositions_is_students(compositions):
    z, which = codes(compositions=compositions)
    found = Readout.fit(z + 0.1 * which[:, None], z, which)
    groups = min(compositions, capacity.FOLDS)
    for name, (value, se) in found.by_capacity.items():
        assert found.interval(name) == pytest.approx(t(groups - 1, value, se).interval(0.95), rel=0.01)


def test_a_control_task_gives_every_composition_another_ones_code_and_keeps_their_spread():
    z, which = codes()
    other = capacity.control_task(z, which)
    own = capacity.control_task(z, torch.zeros(len(z), dtype=torch.long))
    torch.testing.assert_close(own, z.mean(0).expand_as(z))
    means = {tuple(row) for row in torch.stack([z[which == c].mean(0) for c in range(12)]).numpy().round(9)}
    assert {tuple(row) for row in other.numpy().round(9)} == means
    assert all(len(other[which == c].unique(dim=0)) == 1 for c in range(12))


# ---- divergence ------------------------------------------------------------------------------------------------------
def test_distances_are_in_standard_deviations_whatever_the_scale_of_the_axes():
    x = torch.randn(400, 4, generator=RNG, dtype=torch.float64)
    stretch = torch.tensor([1.0, 2.0, 0.5, 1.5], dtype=torch.float64)
    turn = torch.linalg.qr(torch.randn(4, 4, generator=RNG, dtype=torch.float64)).Q
    fresh = torch.randn(50, 4, generator=RNG, dtype=torch.float64)
    plain, scaled = Natural.fit(x), Natural.fit(x * stretch @ turn)
    torch.testing.assert_close(plain.distance(fresh), scaled.distance(fresh * stretch @ turn), rtol=1e-6, atol=1e-8)
    assert plain.distance(x).max() < 1e-6
    far = Natural.fit(x).distance(x[:1] + 100 * plain.axes[:, :1].T / plain.axes[:, :1].square().sum())
    assert float(far) == pytest.approx(100 / 2, rel=0.2)  # along one of four axes, less what the nearest point lies that way


def test_only_directions_that_answers_depend_on_are_sensitive():
    g = torch.randn(50, 2, generator=RNG, dtype=torch.float64) @ torch.tensor([[1.0, 0, 0, 0], [0, 0, 1.0, 0]]).double()
    found = sensitive(g)
    torch.testing.assert_close(found @ found.T, torch.diag(torch.tensor([1.0, 0, 1.0, 0]).double()), atol=1e-9, rtol=0)
    assert sensitive(torch.zeros(5, 4)).shape == (4, 0)
