"""Intervals contain the truth as often as they say, on simulated seeds and compositions of unequal weight; none lies beside
its number, and a number at the edge of its range has none."""

import numpy as np
import pandas as pd
import probe_numbers
import pytest
import torch
from scipy import stats

from compolens import tables
from compolens.foundation.builtin import built_in
from compolens.measures.geometry import ClassSums
from compolens.measures.intervals import (
    Replicates,
    Scale,
    effective_number,
    mean_interval,
    paired_interval,
    student_interval,
    student_quantile,
    summarise,
    two_level_interval,
)
from compolens.measures.readouts import Moments, RidgeReadout, grouped_r2

SPREAD = 0.8
"""Standard deviation of the logarithm of a composition's weight: the heaviest of ten weighs some ten times the lightest."""
LEAN = 0.3
"""By how much a composition's score grows with the logarithm of its weight, so that the weighted mean is not the plain one."""
TRUTH = LEAN * SPREAD**2
"""The weighted mean of scores that are LEAN times the logarithm of a lognormal weight."""


def seed_of(rng, compositions=25, between=0.1):
    """One seed: a row per composition."""
    weight = np.exp(SPREAD * rng.normal(size=compositions))
    value = LEAN * np.log(weight) + 0.1 * rng.normal(size=compositions) + between * rng.normal()
    return pd.DataFrame({"composition": np.arange(compositions), "value": value, "weight": weight})


def covered(interval, truth, times=150):
    """How often, of so many simulations, an interval contains the truth."""
    found = [interval(np.random.default_rng(k)) for k in range(times)]
    return np.mean([lo <= truth <= hi for lo, hi in found])


# ---- weighted means --------------------------------------------------------------------------------------------------
def test_the_two_level_interval_covers_with_compositions_of_unequal_weight():
    share = covered(lambda rng: two_level_interval([seed_of(rng) for _ in range(6)], draws=400)[1:], TRUTH)
    assert 0.86 <= share <= 0.99, "unweighted, it would be 0.2"


def test_the_paired_interval_covers_with_compositions_of_unequal_weight():
    def interval(rng):
        left = [seed_of(rng) for _ in range(6)]
        right = [seed.assign(value=0.1 * rng.normal(size=len(seed)) + 0.1 * rng.normal()) for seed in left]
        return paired_interval(left, right, draws=400)[1:]

    assert 0.86 <= covered(interval, TRUTH, 60) <= 1


def test_seeds_of_one_task_share_a_draw_of_their_compositions_whatever_order_these_stand_in():
    rng = np.random.default_rng(0)
    hard = pd.DataFrame({"composition": list("abcdefgh"), "value": rng.normal(size=8), "weight": rng.uniform(1, 2, 8)})
    seeds = [hard.sample(frac=1, random_state=k) for k in range(4)]
    alone, shared = two_level_interval(seeds[:1], tasks=["one"]), two_level_interval(seeds, tasks=["one"] * 4)
    assert shared == pytest.approx(two_level_interval([hard]), abs=0.06)  # four equal seeds tell what one of them does
    assert alone[0] == pytest.approx(shared[0])
    apart = two_level_interval(seeds, tasks=[1, 2, 3, 4])
    assert apart == two_level_interval(seeds) and apart[2] - apart[1] < 0.7 * (shared[2] - shared[1])


def test_rows_without_weight_change_nothing_and_nothing_else_has_no_interval():
    rng = np.random.default_rng(0)
    seeds = [seed_of(rng) for _ in range(3)]
    empty = [pd.concat([seed, pd.DataFrame({"composition": [99], "value": [np.nan], "weight": [0.0]})]) for seed in seeds]
    assert two_level_interval(empty) == two_level_interval(seeds)
    assert np.isnan(two_level_interval([empty[0].tail(1)])).all()


def pooled(rng, compositions, spread, lean):
    """A score: error over weight, pooled; the error of a composition grows with its weight by `lean`."""
    weight = np.exp(spread * rng.normal(size=compositions))
    error = weight ** (1 + lean) * rng.gamma(4.0, LACK / 4, size=compositions)
    return summarise(error, weight, np.arange(compositions))


LACK = 0.2
"""What lacks to 1 on average."""


@pytest.mark.parametrize("compositions", [3, 5, 10, 25])
@pytest.mark.parametrize("spread", [0.0, 0.8, 1.2])
def test_the_interval_of_a_pooled_score_covers_with_compositions_of_unequal_weight(compositions, spread):
    share = covered(lambda rng: pooled(rng, compositions, spread, 0.0).interval, 1 - LACK, 400)
    assert 0.92 <= share <= 0.99, "percentiles of a bootstrap: 0.74 to 0.92"


@pytest.mark.parametrize("compositions", [3, 5, 10, 25])
def test_it_covers_nearly_as_often_where_the_score_falls_with_the_weight(compositions):
    truth = 1 - LACK * np.exp(0.8**2 / 2 * ((1 + LEAN) ** 2 - 1))
    share = covered(lambda rng: pooled(rng, compositions, 0.8, LEAN).interval, truth, 400)
    assert 0.87 <= share <= 0.99, "percentiles of a bootstrap: 0.62 to 0.86"


def test_it_is_the_textbooks_interval_of_a_mean_where_weights_are_equal():
    """On the logarithm, of errors that differ little: there the jackknife's standard error is that of the mean."""
    error = 0.2 + 1e-4 * np.random.default_rng(0).normal(size=12)
    lo, hi = summarise(error, np.ones(12), np.arange(12)).interval
    expected = stats.t.interval(0.95, 11, error.mean(), stats.sem(error))
    assert (1 - hi, 1 - lo) == pytest.approx(expected, rel=1e-3)


def test_the_interval_of_a_difference_of_errors_covers_on_either_side_of_1():
    def interval(rng):
        weight = np.exp(0.8 * rng.normal(size=10))
        return summarise(weight * rng.normal(0.05, 0.5, size=10), weight, np.arange(10)).interval_on(Scale.PLAIN)

    assert 0.92 <= covered(interval, 0.95, 400) <= 0.99


def test_a_model_without_errors_or_with_errors_in_one_place_has_no_interval():
    for error in ([0.0, 0.0, 0.0], [0.0, 0.3, 0.0]):
        assert np.isnan(summarise(np.array(error), np.ones(3), np.arange(3)).interval).all()
    assert np.isnan(summarise(np.array([0.1, 0.2]), np.ones(2), np.zeros(2)).interval).all()
    found = summarise(np.array([0.1, 0.2]), np.ones(2), np.arange(2))
    assert found.interval[0] <= found.score <= found.interval[1] <= 1


@pytest.mark.filterwarnings("error")
def test_a_composition_without_weight_has_no_score_and_changes_no_other():
    error, weight, composition = np.array([0.1, 0.3, 0.0]), np.array([1.0, 2.0, 0.0]), np.arange(3)
    with_it, without = summarise(error, weight, composition), summarise(error[:2], weight[:2], composition[:2])
    assert with_it.score == without.score == pytest.approx(1 - 0.4 / 3)
    assert np.isnan(with_it.per_composition[2][0]) and with_it.per_composition[2][1:] == (0.0, 1)
    assert {c: with_it.per_composition[c] for c in (0, 1)} == without.per_composition
    assert np.isnan(with_it.interval).all() and not np.isnan(without.interval).any()
    assert np.isnan(summarise(error[2:], weight[2:], composition[2:]).score)


def test_the_effective_number_counts_equal_weights_and_nothing_else():
    assert effective_number(np.full(7, 0.3)) == pytest.approx(7)
    assert effective_number(np.array([5.0, 0.0, 0.0])) == 1
    assert effective_number(np.array([2.0, 1.0, 1.0])) == pytest.approx(16 / 6)


def test_a_bootstrap_that_ignores_weights_is_told_from_one_that_does_not():
    """What the three tests above are for: the same simulations, every composition counted once."""
    plain = covered(lambda rng: two_level_interval([seed_of(rng).assign(weight=1.0) for _ in range(6)], draws=400)[1:], TRUTH)
    assert plain < 0.5


def test_the_standard_error_of_equal_weights_is_that_of_a_mean():
    error = np.random.default_rng(0).normal(0.3, 0.1, size=12)
    assert summarise(error, np.ones(12), np.arange(12)).se == pytest.approx(stats.sem(error))
    doubled = summarise(np.repeat(error, 2), np.ones(24), np.repeat(np.arange(12), 2))
    assert doubled.se == pytest.approx(stats.sem(error)), "episodes are no units of replication"


# ---- ratios ----------------------------------------------------------------------------------------------------------
def codes(rng, groups, outputs=6):
    """Episodes per group, codes of which two of six entries are active, and groups of unequal size and noise."""
    n = rng.integers(20, 200, size=groups)
    y = []
    for size in n:
        code = np.zeros((size, outputs))
        code[:, rng.choice(outputs, 2, replace=False)] = 0.2 + rng.random((size, 2))
        y.append(code)
    noise = [0.1 * np.exp(0.5 * rng.normal()) * rng.normal(size=code.shape) + 0.05 * rng.normal(size=outputs) for code in y]
    return {
        g: Moments.of(torch.tensor(code + off), torch.tensor(code)) for g, (code, off) in enumerate(zip(y, noise, strict=True))
    }


def identity(outputs=6):
    return RidgeReadout(torch.eye(outputs, dtype=torch.float64), torch.zeros(outputs, dtype=torch.float64), 0.0)


def ends(found):
    return found.lo, found.hi


@pytest.mark.parametrize("groups", [10, 25])
def test_the_interval_of_r2_covers(groups):
    """Percentiles cover as often here, and 0 % of the time where nothing is predicted, see the next test."""
    truth = grouped_r2(codes(np.random.default_rng(99), 1500), identity(), draws=2).mean
    share = covered(lambda rng: ends(grouped_r2(codes(rng, groups), identity(), draws=200)), truth, 100)
    assert 0.88 <= share <= 1


def test_the_interval_of_r2_covers_where_nothing_is_predicted():
    """The best constant has R² 0 over all compositions, and less over ten of them."""
    best = RidgeReadout(torch.zeros(6, 6, dtype=torch.float64), torch.full((6,), 0.7 / 3, dtype=torch.float64), 0.0)
    found = [grouped_r2(codes(np.random.default_rng(k), 10), best, draws=200) for k in range(80)]
    assert np.mean([one.lo <= 0 <= one.hi for one in found]) >= 0.85
    assert all(one.lo <= one.mean <= one.hi for one in found), "percentiles lie beside it"


def clouds(rng, groups, apart, n_classes=4):
    """Codes about class means, in groups of unequal size of which each has two classes."""
    centres = apart * np.random.default_rng(99).normal(size=(n_classes, 8)) + 1
    label = np.concatenate([rng.choice(rng.integers(n_classes, size=2), rng.integers(5, 60)) for _ in range(groups)])
    size = np.flatnonzero(rng.random(len(label)) < groups / len(label))
    group = np.searchsorted(size, np.arange(len(label)))
    return ClassSums.by_group(centres[label] + rng.normal(size=(len(label), 8)), label, n_classes, group)


@pytest.mark.parametrize(
    ("number", "scale"),
    [(lambda sums: sums.within_between(), Scale.LOG), (lambda sums: sums.cosine()[..., 0, 1], Scale.FISHER)],
    ids=["within/between", "cosine"],
)
def test_intervals_of_the_geometry_cover(number, scale):
    truth = float(number(clouds(np.random.default_rng(7), 6000, 0.5).pooled))

    def interval(rng):
        sums = clouds(rng, 30, 0.5)
        return student_interval(float(number(sums.pooled)), number(sums.left_out), len(sums.size), scale, Replicates.JACKKNIFE)

    assert 0.88 <= covered(interval, truth) <= 1


def test_sums_without_a_group_are_those_of_the_others():
    sums = clouds(np.random.default_rng(0), 6, 1.0)
    others = ClassSums(*(part[1:] for part in sums[:3]), sums.mean).pooled
    for part, expected in zip(sums.left_out[:3], others[:3], strict=True):
        np.testing.assert_allclose(part[0], expected)


# ---- what it is made of ----------------------------------------------------------------------------------------------
@pytest.mark.parametrize("probability", [0.025, 0.5, 0.9, 0.975, 0.995])
@pytest.mark.parametrize("freedom", [1, 1.3, 1.5, 2, 2.6, 3, 3.5, 4, 9, 24, 1000])
def test_the_quantile_is_students(probability, freedom):
    assert student_quantile(probability, freedom) == pytest.approx(stats.t.ppf(probability, freedom), rel=0.02, abs=1e-9)


@pytest.mark.parametrize(("probability", "left"), [(0.9, 0.08), (0.975, 0.85), (0.995, 9.5)])
@pytest.mark.parametrize("freedom", [9, 24, 100, 300])
def test_what_the_quantile_leaves_out_falls_with_the_fifth_power(probability, left, freedom):
    """The expansion goes up to the fourth power of 1 / freedom: a wrong coefficient would fall more slowly."""
    assert abs(student_quantile(probability, freedom) - stats.t.ppf(probability, freedom)) < left / freedom**5


@pytest.mark.parametrize("kind", Replicates)
def test_the_interval_of_a_mean_is_the_textbooks(kind):
    x = np.random.default_rng(0).normal(3, 0.1, size=12)
    if kind is Replicates.JACKKNIFE:
        replicates = (x.sum() - x) / 11
    else:
        replicates = x[np.random.default_rng(1).integers(12, size=(40_000, 12))].mean(1)
    lo, hi = student_interval(x.mean(), replicates, 12, Scale.LOG, kind)
    expected = stats.t.interval(0.95, 11, x.mean(), stats.sem(x))
    assert (lo, hi) == pytest.approx(expected, rel=0.005)


@pytest.mark.parametrize(
    ("value", "scale"),
    [(1.0, Scale.LOG_LACK), (1.0, Scale.FISHER), (-1.0, Scale.FISHER), (0.0, Scale.LOG), (np.nan, Scale.LOG)],
)
def test_there_is_no_interval_at_the_edge_of_the_range(value, scale):
    assert np.isnan(student_interval(value, np.linspace(0.1, 0.9, 50), 10, scale, Replicates.BOOTSTRAP)).all()


def test_one_unit_has_no_interval():
    assert np.isnan(student_interval(0.5, np.full(50, 0.5), 1, Scale.LOG, Replicates.BOOTSTRAP)).all()


@pytest.mark.parametrize("scale", Scale)
def test_a_scale_and_back(scale):
    values = np.array([0.01, 0.3, 0.9])
    np.testing.assert_allclose(scale.back(scale.forth(values)), values)


# ---- tables ----------------------------------------------------------------------------------------------------------
def beside(table):
    """Rows whose number lies outside its own interval."""
    return table[(table["value"] < table["lo"]) | (table["value"] > table["hi"])]


@pytest.mark.parametrize("name", built_in("probes"))
def test_no_number_lies_beside_its_interval(name):
    """In the numbers that are held for every probe, which another test measures anew."""
    found = probe_numbers.read(probe_numbers.HELD / f"{name}.csv")
    assert beside(found).empty, beside(found)[["model", "metric", "value", "lo", "hi"]].to_string()


@pytest.mark.parametrize(
    ("name", "metric"),
    [("dual_model", "max distance"), ("dual_model", "autograd distance"), ("algorithm_steps", "best level")],
)
def test_a_maximum_has_no_interval(name, metric):
    found = probe_numbers.read(probe_numbers.HELD / f"{name}.csv")
    rows = found[found["metric"] == metric]
    assert rows["value"].notna().any() and rows[["lo", "hi"]].isna().all(axis=None)


def test_rounding_puts_no_number_beside_its_interval(tmp_path):
    rng = np.random.default_rng(0)
    value = rng.normal(size=2000) * 10.0 ** rng.integers(-9, 9, size=2000)
    near = rng.choice([0, 1e-12, 1e-7, 1e-6, 1e-5], size=2000) * np.abs(value)
    rows = [tables.row("score", v, lo=v - d, hi=v + d, control="untrained") for v, d in zip(value, near, strict=True)]
    tables.save(tmp_path, "mine", pd.DataFrame(rows), {"weights": "", "recipe": ""})
    back = pd.read_csv(tables.path_of(tmp_path, "mine"))
    assert beside(back).empty and len(back) == 2000


@pytest.mark.parametrize("level", [0, 1, 95, -0.5, float("nan")])
def test_a_level_that_no_interval_has_is_refused(level):
    with pytest.raises(ValueError, match="between 0 and 1"):
        mean_interval(np.arange(3.0), level)
    group = pd.DataFrame({"value": [0.5, 0.7], "weight": 1.0})
    with pytest.raises(ValueError, match="between 0 and 1"):
        two_level_interval([group, group], level)
