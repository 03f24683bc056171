"""Readouts: streamed moments give scikit-learn's ridge, its scores and its choices, exactly."""

import numpy as np
import pytest
import torch
from sklearn.linear_model import Ridge
from sklearn.metrics import r2_score
from sklearn.model_selection import LeaveOneGroupOut, cross_val_predict
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from compolens.measures.readouts import (
    GroupedR2,
    Moments,
    RidgeReadout,
    add_by_group,
    decoded_r2,
    exact_active_set,
    grouped_r2,
    leave_groups_out,
)

PENALTIES = [1e-8, 1e-3, 0.1, 1.0, 10.0, 1e3]


def data(n=120, features=9, outputs=3, seed=0, rank=None, noise=0.3):
    """x with scales from 0.01 to 100 and large means, optionally of low rank; y linear in x plus noise."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, rank or features)) @ rng.normal(size=(rank or features, features))
    y = x @ rng.normal(size=(features, outputs)) + noise * rng.normal(size=(n, outputs)) + 5
    return x * np.logspace(-2, 2, features) + 3 * np.arange(features), y


def tensors(*arrays):
    return [torch.from_numpy(np.asarray(a)) for a in arrays]


def sklearn_ridge(l2, standardize):
    ridge = Ridge(alpha=l2, solver="svd")
    return make_pipeline(StandardScaler(), ridge) if standardize else ridge


# ---- the fit ---------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("standardize", [True, False])
@pytest.mark.parametrize("n", [120, 6])
def test_the_whole_path_predicts_what_scikit_learn_predicts(standardize, n):
    x, y = data(n)
    fresh, _ = data(50, seed=1)
    for l2, readout in zip(PENALTIES, Moments.of(*tensors(x, y)).fit(PENALTIES, standardize), strict=True):
        if n <= x.shape[1] and l2 < 1e-4:
            continue  # below the rank, and without a penalty to speak of, the solution off the data is arbitrary
        expected = sklearn_ridge(l2, standardize).fit(x, y).predict(fresh)
        np.testing.assert_allclose(readout(torch.from_numpy(fresh)), expected, rtol=1e-6, atol=1e-6)
        assert readout.l2 == l2


def test_the_coefficients_are_scikit_learns():
    x, y = data()
    for l2 in PENALTIES:
        expected, readout = Ridge(alpha=l2, solver="svd").fit(x, y), RidgeReadout.fit(*tensors(x, y), l2, standardize=False)
        np.testing.assert_allclose(readout.weight.T, expected.coef_, rtol=1e-6, atol=1e-9)
        np.testing.assert_allclose(readout.bias, expected.intercept_, rtol=1e-6)


@pytest.mark.parametrize("standardize", [True, False])
@pytest.mark.parametrize("l2", [1e-10, 1e-6, 1e-3, 1.0])
def test_rank_deficient_features_are_no_trouble(standardize, l2):
    rng = np.random.default_rng(3)
    latent = rng.normal(size=(80, 4))
    mix, target = rng.normal(size=(4, 30)), rng.normal(size=(4, 2))
    x, y = latent @ mix + 1, latent @ target + 0.1 * rng.normal(size=(80, 2))
    fresh = rng.normal(size=(40, 4)) @ mix + 1
    expected = sklearn_ridge(l2, standardize).fit(x, y).predict(fresh)
    readout = RidgeReadout.fit(*tensors(x, y), l2, standardize)
    np.testing.assert_allclose(readout(torch.from_numpy(fresh)), expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("standardize", [True, False])
def test_more_features_than_episodes_without_penalty_interpolate(standardize):
    x, y = data(n=20, features=40)
    readout = RidgeReadout.fit(*tensors(x, y), 1e-10, standardize)
    np.testing.assert_allclose(readout(torch.from_numpy(x)), y, rtol=1e-4, atol=1e-4)


def test_the_normal_equations_hold():
    """At the minimum, x'(y - x w - b) = l2 w and the residuals sum to zero."""
    x, y = tensors(*data())
    for l2 in PENALTIES:
        readout = RidgeReadout.fit(x, y, l2, standardize=False)
        residual = y - readout(x)
        assert residual.sum(0).abs().max() < 1e-6
        scale = (x.T @ y).abs().max()
        assert ((x.T @ residual - l2 * readout.weight).abs() / scale).max() < 1e-8


def test_a_heavy_penalty_leaves_the_mean():
    x, y = tensors(*data())
    readout = RidgeReadout.fit(x, y, 1e14)
    torch.testing.assert_close(readout(x), y.mean(0).expand_as(y), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("standardize", [True, False])
@pytest.mark.parametrize("scale", [1e-3, 1.0])
def test_constant_features_get_no_weight_and_change_nothing(standardize, scale):
    x, y = data()
    x = scale * (x - x.mean(0)) / x.std(0)
    constants = np.tile([0.0, *np.logspace(-1, 3, 30)], (len(x), 1))
    without = RidgeReadout.fit(*tensors(x, y), 0.1 * scale**2, standardize)
    with_constants = RidgeReadout.fit(*tensors(np.concatenate([x, constants], axis=1), y), 0.1 * scale**2, standardize)
    torch.testing.assert_close(with_constants.weight[:9], without.weight, rtol=1e-6, atol=1e-9)
    # elsewhere than on the training data the feature may move: a weight fitted to its rounding error would show then
    assert with_constants.weight[9:].abs().max() < 1e-6 * without.weight.abs().max()


def test_features_that_never_vary_leave_the_mean():
    y = torch.arange(6.0)[:, None]
    readout = RidgeReadout.fit(torch.ones(6, 2), y)
    assert readout(torch.ones(1, 2)).item() == pytest.approx(2.5)


def test_standardised_readouts_ignore_the_units_of_features():
    x, y = data()
    units = np.logspace(-3, 3, x.shape[1])
    plain, rescaled = RidgeReadout.fit(*tensors(x, y)), RidgeReadout.fit(*tensors(x * units, y))
    np.testing.assert_allclose(rescaled(torch.from_numpy(x * units)), plain(torch.from_numpy(x)), rtol=1e-7, atol=1e-7)


def test_readouts_are_float64_whatever_they_are_fed():
    x, y = tensors(*data())
    readout = RidgeReadout.fit(x.float(), y.float())
    assert readout.weight.dtype == readout.bias.dtype == readout(x.float()).dtype == torch.float64
    exact = RidgeReadout.fit(x.float().double(), y.float().double())
    assert torch.equal(readout.weight, exact.weight)


# ---- moments ---------------------------------------------------------------------------------------------------------
def parts_of(moments):
    return [torch.tensor(moments.n), moments.x, moments.y, moments.xx, moments.xy, moments.yy]


def assert_moments_equal(left, right):
    for a, b in zip(parts_of(left), parts_of(right), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-8)


def test_streaming_equals_one_batch():
    x, y = tensors(*data())
    streamed = Moments.zeros(9, 3)
    for start in range(0, 120, 7):
        streamed = streamed + Moments.of(x[start : start + 7], y[start : start + 7])
    assert_moments_equal(streamed, Moments.of(x, y))
    assert_moments_equal(Moments.total([Moments.of(x[:50], y[:50]), Moments.of(x[50:], y[50:])]), Moments.of(x, y))


def test_subtracting_leaves_out():
    x, y = tensors(*data())
    rest = Moments.of(x, y) - Moments.of(x[:30], y[:30])
    assert_moments_equal(rest, Moments.of(x[30:], y[30:]))
    left_out, direct = rest.fit([0.1])[0], RidgeReadout.fit(x[30:], y[30:], 0.1)
    torch.testing.assert_close(left_out(x), direct(x), rtol=1e-6, atol=1e-7)


def test_groups_add_up_batch_by_batch():
    x, y = tensors(*data())
    group = torch.arange(120) % 5
    totals = {}
    for start in range(0, 120, 25):
        add_by_group(totals, x[start : start + 25], y[start : start + 25], group[start : start + 25])
    assert sorted(totals) == [0, 1, 2, 3, 4]
    for g, moments in totals.items():
        assert_moments_equal(moments, Moments.of(x[group == g], y[group == g]))


def test_some_outputs_can_be_chosen():
    x, y = tensors(*data())
    assert_moments_equal(Moments.of(x, y).outputs(slice(1, 3)), Moments.of(x, y[:, 1:3]))


# ---- scores ----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("l2", [1e-6, 1.0, 100.0])
def test_errors_and_r2_from_moments_are_the_direct_ones(l2):
    x, y = tensors(*data())
    fresh_x, fresh_y = tensors(*data(70, seed=5))
    readout, fresh = RidgeReadout.fit(x, y, l2), Moments.of(fresh_x, fresh_y)
    direct = (fresh_y - readout(fresh_x)).square().sum(0)
    torch.testing.assert_close(fresh.sse(readout), direct, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(fresh.sst, (fresh_y - fresh_y.mean(0)).square().sum(0), rtol=1e-8, atol=0)
    expected = r2_score(fresh_y.numpy(), readout(fresh_x).numpy(), multioutput="raw_values")
    np.testing.assert_allclose(fresh.r2(readout), expected, rtol=1e-6, atol=1e-8)


def test_r2_is_not_a_number_where_nothing_varies():
    x, y = tensors(*data())
    y[:, 1] = 2.0
    r2 = Moments.of(x, y).r2(RidgeReadout.fit(x, y))
    assert r2.isnan().tolist() == [False, True, False]


def by_group(x, y, group):
    totals = {}
    add_by_group(totals, x, y, group)
    return totals


def test_pooled_over_groups_is_r2_on_everything():
    x, y = tensors(*data())
    readout = RidgeReadout.fit(x[:60], y[:60])
    result = grouped_r2(by_group(x, y, torch.arange(120) % 7), readout)
    np.testing.assert_allclose(result.per_output, Moments.of(x, y).r2(readout), rtol=1e-8)
    assert result.mean == pytest.approx(r2_score(y, readout(x)))


def test_decoded_rows_are_scored_as_the_moments_of_what_they_were_decoded_from():
    rng = torch.Generator().manual_seed(3)
    x, y = torch.randn(120, 5, generator=rng), torch.randn(120, 3, generator=rng)
    y[:, 1] = 2.0  # does not vary
    y[:, 0] += 2 * x[:, 0]
    group, readout = torch.arange(120) % 7 * 3, RidgeReadout.fit(x, y)
    from_moments, from_rows = grouped_r2(by_group(x, y, group), readout), decoded_r2(readout(x), y, group)
    np.testing.assert_allclose(from_rows.per_output, from_moments.per_output, rtol=1e-9)
    assert (from_rows.mean, from_rows.lo, from_rows.hi) == pytest.approx(
        (from_moments.mean, from_moments.lo, from_moments.hi), rel=1e-9
    )


def test_one_readout_per_group_scores_each_on_its_own_group():
    x, y = tensors(*data())
    group = torch.arange(120) % 2
    groups = by_group(x, y, group)
    readouts = {g: m.fit([0.1])[0] for g, m in groups.items()}
    predicted = torch.where((group == 0)[:, None], readouts[0](x), readouts[1](x))
    assert grouped_r2(groups, readouts).mean == pytest.approx(r2_score(y, predicted))


def grouped_data(n_groups, seed=0):
    """Groups that differ in their noise and offset, so that the score varies between groups."""
    rng = np.random.default_rng(seed)
    group = np.repeat(np.arange(n_groups), 20)
    x = rng.normal(size=(len(group), 4))
    y = x @ rng.normal(size=(4, 2)) + rng.gamma(1.0, size=n_groups)[group, None] * rng.normal(size=(len(group), 2))
    return tensors(x, y, group)


def test_intervals_contain_the_pooled_value_and_shrink_with_more_groups():
    widths = []
    for n_groups in (8, 128):
        x, y, group = grouped_data(n_groups)
        result = grouped_r2(by_group(x, y, group), RidgeReadout.fit(x, y))
        assert result.lo < result.mean < result.hi
        widths.append(result.hi - result.lo)
    assert 2 < widths[0] / widths[1] < 8, "sixteen times the groups, about a quarter of the width"


def test_intervals_resample_whole_groups():
    """Groups that are all alike leave nothing to resample, however noisy the episodes within them."""
    x, y = tensors(*data(40))
    groups = {g: Moments.of(x, y) for g in range(6)}
    result = grouped_r2(groups, RidgeReadout.fit(x, y, 100.0))
    assert result.hi - result.lo < 1e-9 and result.mean < 0.99


def test_outputs_that_never_vary_are_left_out_of_the_mean():
    x, y = tensors(*data())
    y[:, 0] = 1.0
    result = grouped_r2(by_group(x, y, torch.arange(120) % 4), RidgeReadout.fit(x, y))
    assert np.isnan(result.per_output).tolist() == [True, False, False]
    assert result.mean == pytest.approx(np.mean(result.per_output[1:]))
    nothing = grouped_r2(by_group(x, y[:, :1], torch.arange(120) % 4), RidgeReadout.fit(x, y[:, :1]))
    assert isinstance(nothing, GroupedR2) and np.isnan([nothing.mean, nothing.lo, nothing.hi]).all()


# ---- choices ---------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("standardize", [True, False])
@pytest.mark.parametrize("seed", range(4))
def test_leaving_groups_out_chooses_what_scikit_learn_chooses(standardize, seed):
    rng = np.random.default_rng(seed)
    x, y = data(n=60, features=12, outputs=2, seed=seed, noise=8.0)
    x = (x - x.mean(0)) / x.std(0) * rng.uniform(0.2, 5, size=12)
    group = rng.integers(6, size=60)
    moments = list(by_group(*tensors(x, y, group)).values())
    penalties = [0.01, 0.3, 3.0, 30.0, 300.0]
    best, scores = leave_groups_out(moments, penalties, standardize)
    expected = []
    for l2 in penalties:
        ridge = sklearn_ridge(l2, standardize)
        predicted = cross_val_predict(ridge, x, y, groups=group, cv=LeaveOneGroupOut())
        expected.append(1 - ((y - predicted) ** 2).sum() / ((y - y.mean(0)) ** 2).sum())
    np.testing.assert_allclose(scores, expected, rtol=1e-6, atol=1e-9)
    assert best == penalties[int(np.argmax(expected))]


def test_the_chosen_penalty_depends_on_the_noise():
    """Otherwise the comparison above would hold for a constant choice."""
    chosen = set()
    for noise in (0.01, 30.0):
        x, y = tensors(*data(n=60, noise=noise))
        moments = list(by_group(x, y, torch.arange(60) % 6).values())
        chosen.add(leave_groups_out(moments, [1e-3, 1.0, 1e3])[0])
    assert len(chosen) == 2


def test_an_active_set_is_exact_when_every_entry_is_on_the_right_side():
    truth = torch.tensor([[0.5, 0.0, 0.9], [0.5, 0.0, 0.9], [0.5, 0.0, 0.9], [0.0, 0.0, 0.7]])
    decoded = torch.tensor([[0.3, 0.2, 1.4], [0.2, 0.0, 0.9], [0.5, 0.3, 0.9], [-5.0, 0.1, 0.26]])
    assert exact_active_set(decoded, truth).tolist() == [True, False, False, True]
    assert exact_active_set(decoded, truth, threshold=0.35).tolist() == [False, False, True, False]


def test_what_is_no_pair_of_tensors_and_negative_penalties_are_refused_with_what_was_got():
    x, y = torch.randn(5, 2), torch.randn(5, 1)
    for wrong in ((x.numpy(), y), (x, y[:4]), (x, y[:, 0])):
        with pytest.raises(ValueError, match=r"must be tensors .* got .*\(5, 2\) and"):
            RidgeReadout.fit(*wrong)
    with pytest.raises(ValueError, match=r"at least 0, got \[-1.0\]"):
        RidgeReadout.fit(x, y, -1.0)
