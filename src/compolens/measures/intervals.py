"""Scores and their intervals over the units of replication, which are seeds and compositions, never episodes. No torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd


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
        """95 % bootstrap interval of the score over compositions (2,000 draws, always the same ones)."""
        scores, weights = (np.array([entry[i] for entry in self.per_composition.values()]) for i in (0, 1))
        pick = np.random.default_rng(0).integers(len(scores), size=(2000, len(scores)))
        lo, hi = np.quantile((scores[pick] * weights[pick]).sum(1) / weights[pick].sum(1), [0.025, 0.975])
        return float(lo), float(hi)


def summarise(error: np.ndarray, weight: np.ndarray, composition: np.ndarray) -> Evaluation:
    """Pool per-episode terms into 1 - sum(error) / sum(weight), with the composition as unit of replication.

    Args:
        error: (n,).
        weight: (n,).
        composition: (n,) ints.

    Returns:
        The score, its standard error, and the scores by composition.
    """
    ids = np.unique(composition)
    errors = np.array([error[composition == c].sum() for c in ids])
    weights = np.array([weight[composition == c].sum() for c in ids])
    counts = [int((composition == c).sum()) for c in ids]
    score = 1 - errors.sum() / weights.sum()
    se = float("nan")
    if len(ids) > 1:
        left_out = 1 - (errors.sum() - errors) / (weights.sum() - weights)
        se = float(np.sqrt((len(ids) - 1) * np.mean((left_out - left_out.mean()) ** 2)))
    rows = zip(ids, errors, weights, counts, strict=True)
    return Evaluation(float(score), se, {int(c): (float(1 - e / w), float(w), k) for c, e, w, k in rows})


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
    groups: Sequence[pd.DataFrame], level: float = 0.95, draws: int = 2000, seed: int = 0, value: str = "value"
) -> tuple[float, float, float]:
    """A score over seeds with its interval, bootstrapping seeds and, within each, compositions.

    Episodes are not resampled: they are the measurement, not the unit of replication.

    Args:
        groups: one DataFrame per seed, a row per composition, with the column "weight".
        level: of the interval.
        draws: of the bootstrap.
        seed: of the bootstrap.
        value: the column of the score.

    Returns:
        (mean, lo, hi).
    """
    rng = np.random.default_rng(seed)
    arrays = [(g[value].to_numpy(float), g["weight"].to_numpy(float)) for g in groups]
    point = float(np.mean([weighted_mean(v, w) for v, w in arrays]))
    means = np.empty((len(arrays), draws))
    for i, (v, w) in enumerate(arrays):
        pick = rng.integers(len(v), size=(draws, len(v)))
        means[i] = (v[pick] * w[pick]).sum(1) / w[pick].sum(1)
    chosen = rng.integers(len(arrays), size=(draws, len(arrays)))
    totals = means[chosen, np.arange(draws)[:, None]].mean(1)
    tail = (1 - level) / 2
    return point, float(np.quantile(totals, tail)), float(np.quantile(totals, 1 - tail))


def paired_interval(
    left: Sequence[pd.DataFrame], right: Sequence[pd.DataFrame], level: float = 0.95, draws: int = 2000, seed: int = 0
) -> tuple[float, float, float]:
    """left - right over paired seeds and, within each, paired compositions (joined on "composition"), with its interval.

    Args:
        left: one DataFrame per seed, as in `two_level_interval`.
        right: the same seeds, in the same order.
        level: of the interval.
        draws: of the bootstrap.
        seed: of the bootstrap.

    Returns:
        (mean, lo, hi).
    """
    merged = [a.merge(b, on="composition", suffixes=("", "_right")) for a, b in zip(left, right, strict=True)]
    differences = [m.assign(value=m["value"] - m["value_right"]) for m in merged]
    return two_level_interval(differences, level, draws, seed)
