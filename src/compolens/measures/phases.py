"""Maps in numbers: what each cell scored over its seeds, and where along a knob a score crosses a level, with its interval.

A run that did not learn its training compositions says nothing about generalization: it is left out, and a cell
without any that did has no value. It is never counted as a failure.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd

DRAWS = 500
"""Resamples of seeds behind an interval."""


def by_cell(table: pd.DataFrame, knobs: Sequence[str], learned: float) -> pd.DataFrame:
    """One row per cell: means over the seeds that learned.

    Args:
        table: one row per trained model: the knobs, "seed", "test" and "ood".
        knobs: names of columns that tell cells apart.
        learned: the test score from which a run counts.

    Returns:
        Rows in order of first appearance: the knobs; test, over all seeds; ood, over those that learned (NaN where none did);
        lo and hi, the lowest and highest of these; seeds, and how many of them learned.
    """
    rows = []
    for values, part in table.groupby(list(knobs), sort=False, dropna=False):
        fit = part[part["test"] >= learned]
        known = dict(zip(knobs, values if isinstance(values, tuple) else (values,), strict=True))
        ends = {"lo": fit["ood"].min(), "hi": fit["ood"].max()} if len(fit) else {"lo": np.nan, "hi": np.nan}
        ood = fit["ood"].mean() if len(fit) else np.nan
        rows.append({**known, "test": part["test"].mean(), "ood": ood, **ends, "seeds": len(part), "learned": len(fit)})
    return pd.DataFrame(rows, columns=[*knobs, "test", "ood", "lo", "hi", "seeds", "learned"])


class Crossing(NamedTuple):
    """Where a score crosses a level.

    Args:
        at: the value of the knob, between two cells by a straight line; NaN where it does not cross.
        lo: lower end of its 95 % interval over seeds; NaN with fewer than 3 seeds, or where less than 95 % of resamples cross.
        hi: upper end.
        crossings: how many times the means cross; of several, `at` is the first.
        crosses: share of resamples of the seeds that cross at all.
    """

    at: float
    lo: float
    hi: float
    crossings: int
    crosses: float


def crossing(table: pd.DataFrame, knob: str, learned: float, level: float, seed: int = 0) -> Crossing:
    """Where the held-out score crosses a level along a knob, other knobs being equal.

    Args:
        table: rows of equal other knobs: the knob, a column of numbers; "seed", "test" and "ood".
        knob: the knob.
        learned: the test score from which a run counts.
        level: the score that is crossed.
        seed: of the resamples of seeds; a seed is drawn with all of its cells, which share a teacher.

    Returns:
        The crossing, and its interval.
    """
    fit = table[table["test"] >= learned]
    wide = fit.pivot_table(index="seed", columns=knob, values="ood", aggfunc="mean").sort_index(axis=1)
    if wide.shape[1] < 2:
        return Crossing(np.nan, np.nan, np.nan, 0, 0.0)
    x, values = wide.columns.to_numpy(dtype=float), wide.to_numpy(dtype=float)
    found = crossings(x, _mean(values), level)
    if len(values) < 3 or not found:
        return Crossing(found[0] if found else np.nan, np.nan, np.nan, len(found), float(bool(found)))
    rng = np.random.default_rng(seed)
    resampled = [crossings(x, _mean(values[rng.integers(len(values), size=len(values))]), level) for _ in range(DRAWS)]
    at = np.array([some[0] for some in resampled if some])
    share = len(at) / DRAWS
    lo, hi = np.quantile(at, [0.025, 0.975]) if share >= 0.95 else (np.nan, np.nan)
    return Crossing(found[0], float(lo), float(hi), len(found), share)


def _mean(values: np.ndarray) -> np.ndarray:
    """Column means of what is known; NaN where nothing is."""
    known = np.isfinite(values)
    return np.where(known.any(0), np.where(known, values, 0).sum(0) / np.maximum(known.sum(0), 1), np.nan)


def crossings(x: np.ndarray, y: np.ndarray, level: float) -> list[float]:
    """Where a polygon crosses a level.

    Args:
        x: (n,) ascending.
        y: (n,); points that are NaN are passed over.
        level: the level.

    Returns:
        Ascending x.
    """
    known = np.isfinite(y)
    x, above = x[known], (y[known] - level)
    found = []
    for i in range(len(x) - 1):
        a, b = above[i], above[i + 1]
        if (a < 0) != (b < 0):
            found.append(float(x[i] + (x[i + 1] - x[i]) * a / (a - b)))
    return found


class Lasting(NamedTuple):
    """What became of the held-out score after training compositions were learned.

    Args:
        early: the mean over the first evaluations at which training compositions were learned; NaN where too few followed.
        late: the mean over as many last evaluations.
        p: of a one-sided rank test (Mann-Whitney) that late scores are below early ones; it takes evaluations as independent.
        begins: the row of the first evaluation that counts; -1 without one.
    """

    early: float
    late: float
    p: float
    begins: int


def lasting(history: pd.DataFrame, learned: float, window: int = 5) -> Lasting:
    """Whether success on held-out compositions lasts in one training.

    Args:
        history: rows in the order of training, with "test" and "ood".
        learned: the test score from which training compositions count as learned.
        window: how many evaluations early and late are each; at least 3, below which no order of them has p < .05.

    Returns:
        Early and late scores, and the test.
    """
    from scipy.stats import mannwhitneyu

    fit = np.flatnonzero((history["test"] >= learned).to_numpy())
    if window < 3:
        raise ValueError(f"window must be at least 3, got {window}")
    if not len(fit) or len(history) - fit[0] < 2 * window:
        return Lasting(np.nan, np.nan, np.nan, -1)
    scores = history["ood"].to_numpy(dtype=float)
    early, late = scores[fit[0] : fit[0] + window], scores[-window:]
    return Lasting(
        float(early.mean()), float(late.mean()), float(mannwhitneyu(late, early, alternative="less").pvalue), int(fit[0])
    )
