"""Principal angles and their null, what a reader sees of a direction, and codes that are sums of their factors'."""

import numpy as np
import pytest
import torch
from scipy.linalg import subspace_angles
from sklearn.linear_model import LinearRegression
from sklearn.model_selection import LeaveOneGroupOut, cross_val_predict

from compolens.measures.factorisation import (
    EPISODES_PER_EFFECT,
    AdditiveCode,
    composition_means,
    cross_factor_cosine,
    left_out,
    linear_factorisation_r2,
    r2,
)
from compolens.measures.subspaces import (
    column_space,
    overlap,
    principal_angles,
    random_angles,
    random_overlaps,
    share_unseen,
    split_by_reader,
)


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


# ---- angles ----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("k", "m"), [(3, 3), (2, 5), (5, 2), (1, 1)])
@pytest.mark.parametrize("near", [1.0, 1e-3, 1e-9])
def test_angles_are_scipys_from_right_ones_to_tiny_ones(k, m, near):
    a = normal(12, k)
    b = torch.cat([a, normal(12, 5, seed=1)], dim=1)[:, :m] + near * normal(12, m, seed=2)
    expected = np.sort(subspace_angles(a.numpy(), b.numpy()))
    np.testing.assert_allclose(principal_angles(a, b), expected, atol=1e-12, rtol=1e-5)


def test_angles_depend_on_the_span_alone():
    a, b = normal(9, 3), normal(9, 2, seed=1)
    twice = torch.cat([a @ normal(3, 3, seed=2), a[:, :1]], dim=1)
    assert column_space(twice).shape == (9, 3) and column_space(torch.zeros(9, 2)).shape == (9, 0)
    assert torch.allclose(principal_angles(twice, 1e6 * b), principal_angles(a, b))
    assert overlap(a, a[:, :1]) == pytest.approx(1) and np.isnan(overlap(a, torch.zeros(9, 1)))
    assert overlap(torch.eye(9)[:, :3], torch.eye(9)[:, 2:4]) == pytest.approx(0.5)
    with pytest.raises(ValueError, match="a has 9 rows, b has 8"):
        principal_angles(a, b[:8])


@pytest.mark.parametrize(("d", "k", "m"), [(10, 3, 3), (10, 2, 6), (6, 5, 2)])
def test_random_overlaps_have_the_closed_form_mean(d, k, m):
    drawn = random_overlaps(d, k, m, torch.Generator().manual_seed(0), 4000)
    error = float(drawn.std()) / 4000**0.5
    assert abs(float(drawn.mean()) - max(k, m) / d) < 4 * error < 0.01


def test_random_angles_are_those_of_two_random_subspaces():
    """The same distribution as when both are drawn; for lines, cos² is Beta(1/2, (d - 1)/2) with variance 2(d-1)/(d²(d+2))."""
    lines = random_angles(8, 1, 1, torch.Generator().manual_seed(0), 8000).cos().square()
    assert float(lines.var()) == pytest.approx(2 * 7 / (64 * 10), rel=0.1)
    both = torch.stack([principal_angles(normal(7, 2, seed=i), normal(7, 3, seed=10_000 + i)) for i in range(600)])
    one = random_angles(7, 2, 3, torch.Generator().manual_seed(1), 600)
    assert torch.allclose(both.mean(0), one.mean(0), atol=0.05)
    with pytest.raises(ValueError, match="between 1 and d=4, got 0 and 5"):
        random_angles(4, 0, 5, torch.Generator())


def test_what_a_reader_sees_and_does_not_see():
    directions, reader = normal(8, 2), normal(3, 8, seed=1)
    seen, unseen = split_by_reader(directions, reader)
    assert torch.allclose(seen + unseen, directions) and torch.allclose(
        seen.T @ unseen, torch.zeros(2, 2).double(), atol=1e-12
    )
    assert torch.allclose(reader @ unseen, torch.zeros(3, 2).double(), atol=1e-12)
    assert torch.allclose(reader @ seen, reader @ directions)
    assert share_unseen(torch.eye(4)[:, :1] + torch.eye(4)[:, 1:2], torch.eye(4)[:1]) == pytest.approx(0.5)
    assert share_unseen(normal(4, 1), normal(4, 4, seed=3)) == pytest.approx(0) and np.isnan(
        share_unseen(0 * directions, reader)
    )
    with pytest.raises(ValueError, match=r"got \(3, 7\) and \(8, 2\)"):
        split_by_reader(directions, reader[:, :7])


# ---- factorisation ---------------------------------------------------------------------------------------------------
def grid(*sizes):
    """One-hot factors of every combination of values."""
    values = np.stack(np.meshgrid(*map(np.arange, sizes), indexing="ij"), -1).reshape(-1, len(sizes))
    return values, {f"factor {i}": np.eye(n)[values[:, i]] for i, n in enumerate(sizes)}


def test_a_sum_of_parts_is_all_explained_also_where_factors_are_correlated():
    rng = np.random.default_rng(0)
    _, factors = grid(3, 4)
    keep = rng.integers(12, size=200)
    correlated = {name: part[keep[keep % 4 >= keep // 8]] for name, part in factors.items()}
    x = 5 + sum(part @ rng.standard_normal((part.shape[1], 6)) for part in correlated.values())
    for whiten in (False, True):
        assert linear_factorisation_r2(x, correlated, whiten) == pytest.approx(1)
    one = {"factor 0": correlated["factor 0"]}
    assert linear_factorisation_r2(x, one) < 0.9
    assert np.isnan(linear_factorisation_r2(np.ones((len(x), 2)), correlated))


@pytest.mark.parametrize(
    "factors",
    [{}, {"a": np.ones(6)}, {"a": np.eye(6), "b": np.ones(6)}, {"a": np.eye(5)}, {"a": np.eye(6), "b": np.ones((7, 2))}],
)
def test_factors_that_do_not_fit_the_codes_are_refused(factors):
    with pytest.raises(ValueError, match=r"one or more matrices \(n, width\) with a row per code"):
        AdditiveCode.fit(np.random.default_rng(0).normal(size=(6, 3)), factors)


@pytest.mark.parametrize("unit", [1e-6, 1.0, 1e6])
def test_r2_does_not_depend_on_the_unit(unit):
    x = np.random.default_rng(0).normal(size=(20, 3))
    assert r2(unit * x, unit * x.mean(0)) == pytest.approx(0) and r2(unit * x, unit * x) == 1
    assert r2(unit * x, unit * (x + 2 * (x.mean(0) - x))) == pytest.approx(-3), "twice the deviation away"
    assert np.isnan(r2(np.full((4, 2), unit), np.zeros((4, 2))))


def test_what_an_interaction_takes_is_not_explained():
    """x = (a, b, s a b) for independent signs a, b: the product is uncorrelated with either, so R² = 2 / (2 + s²)."""
    values, factors = grid(2, 2)
    a, b = (2 * values - 1).T
    for strength in (0.5, 1.0, 3.0):
        x = np.stack([a, b, strength * a * b], axis=1).astype(float)
        assert linear_factorisation_r2(x, factors) == pytest.approx(2 / (2 + strength**2))
        assert linear_factorisation_r2(x, factors, whiten=True) == pytest.approx(2 / 3)


def test_effects_are_centred_class_means_on_a_balanced_design():
    _, factors = grid(3, 4, 2)
    x = np.random.default_rng(1).standard_normal((24, 5))
    effects = AdditiveCode.fit(x, factors).effects(factors)
    for name, part in factors.items():
        means = (part.T @ x) / part.sum(0)[:, None] - x.mean(0)
        np.testing.assert_allclose(effects[name], part @ means, atol=1e-12)


def test_effects_of_coefficients_are_their_weights():
    rng = np.random.default_rng(2)
    factors = {name: rng.uniform(size=(50, 1)) * (rng.uniform(size=(50, 1)) < 0.5) for name in "abc"}
    planted = rng.standard_normal((3, 4))
    code = AdditiveCode.fit(np.concatenate(list(factors.values()), 1) @ planted + 7, factors)
    np.testing.assert_allclose(np.concatenate(list(code.weights.values())), planted, atol=1e-10)
    unseen = {name: part + i for i, (name, part) in enumerate(factors.items())}
    np.testing.assert_allclose(code(unseen), np.concatenate(list(unseen.values()), 1) @ planted + 7, atol=1e-9)
    with pytest.raises(ValueError, match=r"fitted on the factors \['a', 'b', 'c'\], got \['a'\]"):
        code({"a": factors["a"]})
    with pytest.raises(ValueError, match=r"matrices \(n, width\).*'a': \(50,\)"):
        AdditiveCode.fit(planted, {"a": factors["a"][:, 0]})


# ---- compositions left out -------------------------------------------------------------------------------------------
def pairs(n=4, episodes=30, seed=0):
    """Codes of all pairs of n parts: (z (episodes of pairs, n), composition)."""
    rng, known = np.random.default_rng(seed), [(a, b) for a in range(n) for b in range(a + 1, n)]
    z = np.zeros((len(known) * episodes, n))
    for c, pair in enumerate(known):
        z[c * episodes : (c + 1) * episodes, pair] = rng.uniform(0.5, 1, (episodes, 2))
    return z, np.repeat(np.arange(len(known)) * 3, episodes)


def columns(z):
    return {f"part {i}": z[:, i : i + 1] for i in range(z.shape[1])}


def test_errors_on_left_out_compositions_are_those_of_leaving_one_group_out():
    z, composition = pairs()
    x = np.sin(3 * z @ np.random.default_rng(1).standard_normal((4, 5)))
    fitted = cross_val_predict(LinearRegression(), z, x, groups=composition, cv=LeaveOneGroupOut())
    mean = x.mean(0)
    expected = [[((x - p)[composition == c] ** 2).sum() for p in (fitted, mean)] for c in np.unique(composition)]
    np.testing.assert_allclose(left_out(x, columns(z), composition)[:, [0, 2]], expected, rtol=1e-9)


def test_parts_that_add_up_are_told_by_others_and_entries_by_their_own_composition_alone():
    z, composition = pairs()
    parts = z @ np.random.default_rng(1).standard_normal((4, 8))
    others, own, total = left_out(parts, columns(z), composition).sum(0)
    assert others < 1e-20 * total and own < 1e-20 * total
    entries = np.eye(6)[composition // 3] * z.sum(1, keepdims=True)
    others, own, total = left_out(entries, columns(z), composition).sum(0)
    assert own < 1e-20 * total and others > total


def test_a_composition_with_a_part_that_no_other_has_is_not_judged():
    z, composition = pairs()
    alone = np.concatenate([z, np.zeros((len(z), 1))], axis=1)
    alone[composition == 6, 4] = 0.7
    errors = left_out(np.random.default_rng(0).standard_normal((len(z), 3)), columns(alone), composition)
    assert np.isnan(errors).all(1).tolist() == [c == 6 for c in np.unique(composition)]


def test_too_few_episodes_for_effects_of_their_own_are_told_by_their_mean():
    """Two coefficients and a constant want nine episodes a half."""
    z, composition = pairs(episodes=16)
    x = z @ np.random.default_rng(1).standard_normal((4, 5))
    own = left_out(x, columns(z), composition)[:, 1]
    for c, error in zip(np.unique(composition), own, strict=True):
        first, second = x[composition == c][::2], x[composition == c][1::2]
        halves = ((first, second), (second, first))
        assert error == pytest.approx(sum(((scored - fit.mean(0)) ** 2).sum() for fit, scored in halves))


def test_cross_factor_cosine_of_planted_directions():
    values, factors = grid(2, 2)
    a, b = (2.0 * values - 1).T[:, :, None]
    for angle in (0.0, 0.3, np.pi / 2):
        x = a * np.array([1.0, 0.0]) + b * np.array([np.cos(angle), np.sin(angle)])
        assert cross_factor_cosine(AdditiveCode.fit(x, factors)) == pytest.approx(abs(np.cos(angle)), abs=1e-12)
    alone = AdditiveCode.fit(a * np.array([1.0, 0.0]), factors)
    assert np.isnan(cross_factor_cosine(alone))  # the second factor has no direction
    often = np.array([0, 0, 0, 1, 2, 3])  # unbalanced, so that the mean effect of a factor's values is not that of none
    x, two = (a * [1.0, 0, 0] + b * [0.6, 0.8, 0])[often] + [0, 0, 1], {name: part[often] for name, part in factors.items()}
    never = {"factor 0": np.c_[two["factor 0"], np.zeros(6)], "factor 1": np.c_[np.zeros(6), two["factor 1"]]}
    assert cross_factor_cosine(AdditiveCode.fit(x, two)) == pytest.approx(0.6)
    three = {**never, "factor 2": np.eye(3)[[0, 0, 0, 1, 2, 2]]}
    x = x + three["factor 2"] @ np.random.default_rng(0).standard_normal((3, 3))
    without = {**two, "factor 2": three["factor 2"]}  # a value that never occurs has no direction
    assert cross_factor_cosine(AdditiveCode.fit(x, three)) == pytest.approx(cross_factor_cosine(AdditiveCode.fit(x, without)))


def test_means_of_compositions_and_r2():
    x = np.array([[0.0, 1], [2, 3], [5, 5], [4, 5]])
    means, known = composition_means(x, np.array([7, 7, 2, 7]))
    assert known.tolist() == [2, 7]
    np.testing.assert_allclose(means, [[5, 5], [2, 3]])
    assert (
        r2(x, x) == 1 and r2(x, np.broadcast_to(x.mean(0), x.shape)) == 0 and r2(x, 0 * x) < 0 and np.isnan(r2(x[:1], x[:1]))
    )


@pytest.mark.parametrize("fitted", [2 * EPISODES_PER_EFFECT - 1, 2 * EPISODES_PER_EFFECT])
def test_effects_are_fitted_where_there_are_enough_episodes_for_each_and_else_the_mean_is_taken(fitted):
    """One value that varies, and the mean: two effects. Of two compositions, one is left out at a time."""
    value = np.arange(2 * fitted) % 2
    x = 5.0 * value[:, None] + np.array([[1.0, 2.0]])
    error = left_out(x, {"a": value[:, None].astype(float)}, np.repeat([0, 1], fitted), folds=2)[:, 0]
    assert (error < 1e-9).all() == (fitted == 2 * EPISODES_PER_EFFECT)
