"""Scores and their intervals over the units of replication, which are seeds and compositions, never episodes. No torch.

Which interval a number has is chosen by its coverage, simulated on data of its own kind (tests/measures/test_intervals.py):

- `two_level_interval`, `paired_interval`: percentiles of the bootstrap over seeds and compositions, drawn with their weight.
  They fit weighted means of several seeds, which resampling does not bias.
- `student_interval`: the bootstrap's or the jackknife's standard error times Student's t, on a scale on which the number's
  errors are alike above and below. It fits ratios of sums of squares (R², scatter within over scatter between) and cosines:
  a resample repeats compositions, which biases these numbers, and percentiles then lie beside the number they are of.
- `Evaluation.interval`, of one model's pooled score: the same by the jackknife, with the degrees of freedom that compositions
  of equal weight would have (`effective_number` less one). Percentiles are too narrow by a quarter at ten compositions.
- None for a maximum or a distance from below, nor for a number at the edge of its range: resamples lie on one side of it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from enum import Enum
from statistics import NormalDist
from typing import NamedTuple

import numpy as np
import pandas as pd


class Scale(Enum):
    """What a number is taken to before its standard error is; where this is infinite, the number is at its range's edge."""

    PLAIN = "plain"
    """Differences, without bounds."""
    LOG = "log"
    """Ratios of squares, above 0."""
    LOG_LACK = "log of what lacks to 1"
    """Scores and R², at most 1."""
    FISHER = "Fisher's z"
    """Cosines and correlations, between -1 and 1."""

    def forth(self, values: np.ndarray | float) -> np.ndarray:
        """Numbers, taken to the scale.

        Args:
            values: (...) in the range of the numbers, or one number.

        Returns:
            (...) without a unit: infinite at the edge of the range, NaN beyond it.
        """
        values = np.asarray(values, dtype=float)
        if self is Scale.PLAIN:
            return values
        with np.errstate(divide="ignore", invalid="ignore"):
            if self is Scale.FISHER:
                return np.arctanh(values)
            return np.log(values if self is Scale.LOG else 1 - values)

    def back(self, values: np.ndarray) -> np.ndarray:
        """The inverse of `forth`.

        Args:
            values: (...) on the scale.

        Returns:
            (...) the numbers.
        """
        if self is Scale.PLAIN:
            return values
        if self is Scale.FISHER:
            return np.tanh(values)
        return np.exp(values) if self is Scale.LOG else 1 - np.exp(values)


def _check_level(level: float) -> None:
    """Raises a `ValueError` unless an interval can have this level."""
    if not 0 < level < 1:
        raise ValueError(f"level must lie between 0 and 1, such as 0.95; got {level!r}")


def student_quantile(probability: float, freedom: float) -> float:
    """The quantile of Student's t, to 0.5 % from 3 degrees of freedom on (Abramowitz and Stegun 26.7.5).

    Between 1, 2 and 3 degrees its logarithm is interpolated in their inverse, which is right to 1 % up to the 97.5 % quantile.

    Args:
        probability: In (0, 1).
        freedom: Degrees of freedom, at least 1; no whole number is needed.

    Returns:
        The quantile, in standard errors: below 0 for a probability below 1/2.
    """
    if freedom == 1:
        return float(np.tan(np.pi * (probability - 0.5)))
    if freedom == 2:
        a = 2 * probability - 1
        return float(a * np.sqrt(2 / (1 - a**2)))
    if freedom < 3:
        if probability <= 0.5:
            return -student_quantile(1 - probability, freedom) if probability < 0.5 else 0.0
        known = [student_quantile(probability, whole) for whole in (1, 2, 3)]
        return float(np.exp(np.polyval(np.polyfit([1, 1 / 2, 1 / 3], np.log(known), 2), 1 / freedom)))
    z, n = NormalDist().inv_cdf(probability), freedom
    terms = (
        z,
        (z**3 + z) / 4 / n,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96 / n**2,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384 / n**3,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160 / n**4,
    )
    return float(sum(terms))


class Replicates(Enum):
    """How the numbers came about that a standard error is taken of."""

    BOOTSTRAP = "bootstrap"
    """Resamples of as many units as there are."""
    JACKKNIFE = "jackknife"
    """Every unit left out once."""


def student_interval(
    value: float,
    replicates: np.ndarray,
    units: int,
    scale: Scale,
    kind: Replicates,
    level: float = 0.95,
    freedom: float | None = None,
) -> tuple[float, float]:
    """A t interval about a number: standard error over units, on a scale, with one degree of freedom fewer than units.

    Args:
        value: The number itself.
        replicates: (n,) The same number of resamples, or with units left out; those that are not finite are left out, and
            where that is more than half of them there is no interval.
        units: How many units of replication (compositions) there are.
        scale: What the standard error is taken on.
        kind: What the replicates are.
        level: In (0, 1).
        freedom: Degrees of freedom, at least 1, where they are others.

    Returns:
        Its two ends, the number between them; NaN where there are fewer than 2 units, or where the number is at the edge of
        its range.
    """
    _check_level(level)
    middle, found = float(scale.forth(value)), scale.forth(replicates)
    known = found[np.isfinite(found)]
    if units < 2 or not np.isfinite(middle) or len(known) < max(2, len(found) / 2):
        return float("nan"), float("nan")
    if kind is Replicates.BOOTSTRAP:
        error = float(known.std() * np.sqrt(units / (units - 1)))
    else:
        error = float(known.std() * np.sqrt(units - 1))
    half = student_quantile((1 + level) / 2, units - 1 if freedom is None else freedom) * error
    one, other = scale.back(np.array([middle - half, middle + half]))
    return float(min(one, other, value)), float(max(one, other, value))


def mean_interval(values: np.ndarray, level: float = 0.95) -> tuple[float, float]:
    """Student's t interval of the mean of independent numbers, such as one per seed.

    Args:
        values: (n,) one number per unit of replication.
        level: In (0, 1).

    Returns:
        Its two ends; NaN where there are fewer than 2 numbers, or one is missing.

    Raises:
        ValueError: the level is not between 0 and 1.
    """
    _check_level(level)
    values = np.asarray(values, dtype=float)
    if len(values) < 2 or not np.isfinite(values).all():
        return float("nan"), float("nan")
    half = student_quantile((1 + level) / 2, len(values) - 1) * float(values.std(ddof=1)) / np.sqrt(len(values))
    return float(values.mean() - half), float(values.mean() + half)


class Evaluation(NamedTuple):
    """A score, with the composition as unit of replication.

    Args:
        score: 1 is perfect.
        se: standard error over compositions (jackknife); nan for one alone.
        per_composition: composition -> (score, weight, episodes).
    """

    score: float
    se: float
    per_composition: dict[int, tuple[float, float, int]]

    @property
    def interval(self) -> tuple[float, float]:
        """95 % t interval of the score over compositions, by the jackknife, on the logarithm of what lacks to 1.

        NaN for one composition, and where at most one composition has any error: of a model that made none, or in one place
        alone, nothing says how many it makes elsewhere.
        """
        return self.interval_on(Scale.LOG_LACK)

    def interval_on(self, scale: Scale) -> tuple[float, float]:
        """The same on another scale: `Scale.PLAIN` for what may be below 0 and above 1, such as a difference of errors.

        Args:
            scale: What the standard error is taken on.

        Returns:
            Its two ends; NaN for one composition, and where the number without one of them is at the edge of its range.
        """
        scores, weights = (np.array([entry[i] for entry in self.per_composition.values()]) for i in (0, 1))
        without = scores_left_out((1 - scores) * weights, weights)
        if len(scores) < 2 or not np.isfinite(scale.forth(without)).all():
            return float("nan"), float("nan")
        freedom = max(effective_number(weights) - 1, 1.0)
        return student_interval(self.score, without, len(scores), scale, Replicates.JACKKNIFE, freedom=freedom)


def summarise(error: np.ndarray, weight: np.ndarray, composition: np.ndarray) -> Evaluation:
    """Pool per-episode terms into 1 - sum(error) / sum(weight), with the composition as unit of replication.

    Args:
        error: (n,).
        weight: (n,).
        composition: (n,) ints.

    Returns:
        The score, its standard error, and the scores by composition: NaN for one without weight, which adds nothing to the
        pooled score, and with which there is no interval.
    """
    ids = np.unique(composition)
    errors = np.array([error[composition == c].sum() for c in ids])
    weights = np.array([weight[composition == c].sum() for c in ids])
    counts = [int((composition == c).sum()) for c in ids]
    score = _share(errors.sum(), weights.sum())
    se = float("nan")
    if len(ids) > 1:
        without = scores_left_out(errors, weights)
        with np.errstate(invalid="ignore"):  # without the only composition that has weight, no score is left
            se = float(np.sqrt((len(ids) - 1) * np.mean((without - without.mean()) ** 2)))
    rows = zip(ids, errors, weights, counts, strict=True)
    return Evaluation(score, se, {int(c): (_share(e, w), float(w), k) for c, e, w, k in rows})


def _share(error: float, weight: float) -> float:
    """1 - error / weight; NaN where nothing was to be had."""
    return float(1 - error / weight) if weight else float("nan")


def scores_left_out(errors: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """The pooled score with each composition left out.

    Args:
        errors: (composition,).
        weights: (composition,).

    Returns:
        (composition,); NaN where nothing is left.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        return 1 - (errors.sum() - errors) / (weights.sum() - weights)


def effective_number(weights: np.ndarray) -> float:
    """How many units of equal weight say as much about a weighted mean as these do (Kish 1965, Survey Sampling, section 11.7).

    Args:
        weights: (n,) at least 0, one of them above.

    Returns:
        From 1, where one has all the weight, to n, where all weigh the same.
    """
    return float(weights.sum() ** 2 / (weights**2).sum())


def weighted_mean(values: np.ndarray, weights: np.ndarray) -> float:
    """Mean with weights; the pooled score when values are per-composition scores and weights their share of variance.

    Args:
        values: (n,).
        weights: (n,), at least 0.

    Returns:
        The mean.
    """
    return float((values * weights).sum() / weights.sum())


def two_level_interval(
    groups: Sequence[pd.DataFrame | Mapping[str, np.ndarray]],
    level: float = 0.95,
    draws: int = 2000,
    seed: int = 0,
    value: str = "value",
    tasks: Sequence[Hashable] | None = None,
) -> tuple[float, float, float]:
    """A score over seeds, its interval the percentiles of a bootstrap of seeds and of compositions.

    Each seed has compositions of its own, drawn anew within it, unless `tasks` says that seeds share theirs: then one draw
    of compositions counts for all of them, as a composition that is hard for one is likely to be hard for the others.
    Episodes are not resampled: they are the measurement, not the unit of replication.

    Args:
        groups: one table per seed, a row per composition, with the column "weight"; rows without weight say nothing.
        level: of the interval.
        draws: of the bootstrap.
        seed: of the bootstrap.
        value: the column of the score.
        tasks: what each seed was asked; seeds of equal tasks share the compositions of the same name, in the column
            "composition" (None: no two seeds share any).

    Returns:
        (mean, lo, hi).

    Raises:
        ValueError: the level is not between 0 and 1.
    """
    _check_level(level)
    rng = np.random.default_rng(seed)
    weights = [np.asarray(group["weight"], float) for group in groups]
    known = [weight > 0 for weight in weights]
    if not all(there.any() for there in known):
        return np.nan, np.nan, np.nan
    arrays = [(np.asarray(g[value], float)[t], w[t]) for g, w, t in zip(groups, weights, known, strict=True)]
    alike: Sequence[Hashable] = range(len(groups))
    if tasks is not None:
        alike, arrays = _alike([np.asarray(g["composition"])[t] for g, t in zip(groups, known, strict=True)], arrays, tasks)
    point = float(np.mean([weighted_mean(v, w) for v, w in arrays]))
    means, picked = np.empty((len(arrays), draws)), dict[Hashable, np.ndarray]()
    for i, (v, w) in enumerate(arrays):
        if alike[i] not in picked:
            picked[alike[i]] = rng.integers(len(v), size=(draws, len(v)))
        pick = picked[alike[i]]
        means[i] = (v[pick] * w[pick]).sum(1) / w[pick].sum(1)
    chosen = rng.integers(len(arrays), size=(draws, len(arrays)))
    totals = means[chosen, np.arange(draws)[:, None]].mean(1)
    tail = (1 - level) / 2
    return point, float(np.quantile(totals, tail)), float(np.quantile(totals, 1 - tail))


Arrays = list[tuple[np.ndarray, np.ndarray]]
"""Of every seed the scores and their weights, (compositions,) each."""


def _alike(names: list[np.ndarray], arrays: Arrays, tasks: Sequence[Hashable]) -> tuple[list[Hashable], Arrays]:
    """What tells apart the seeds whose compositions are drawn apart; and their arrays, those of the others in one order."""
    orders = [np.argsort(name) for name in names]
    kinds: list[Hashable] = [(task, *name[order]) for task, name, order in zip(tasks, names, orders, strict=True)]
    counted = Counter(kinds)
    ordered = [
        (value[order], weight[order]) if counted[kind] > 1 else (value, weight)
        for (value, weight), order, kind in zip(arrays, orders, kinds, strict=True)
    ]
    return kinds, ordered


def paired_interval(
    left: Sequence[pd.DataFrame],
    right: Sequence[pd.DataFrame],
    level: float = 0.95,
    draws: int = 2000,
    seed: int = 0,
    tasks: Sequence[Hashable] | None = None,
) -> tuple[float, float, float]:
    """left - right over paired seeds and, within each, paired compositions (joined on "composition"), with its interval.

    Args:
        left: one DataFrame per seed, as in `two_level_interval`.
        right: the same seeds, in the same order.
        level: of the interval.
        draws: of the bootstrap.
        seed: of the bootstrap.
        tasks: what each pair was asked, as in `two_level_interval`.

    Returns:
        (mean, lo, hi).
    """
    merged = [a.merge(b, on="composition", suffixes=("", "_right")) for a, b in zip(left, right, strict=True)]
    differences = [m.assign(value=m["value"] - m["value_right"]) for m in merged]
    return two_level_interval(differences, level, draws, seed, tasks=tasks)
