"""Scores and their intervals over the units of replication, which are seeds and compositions, never episodes. No torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd


class Evaluation(NamedTuple):
    """A score with its standard error over compositions (jackknife), and per composition (score, weight, episodes)."""

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
    """Pool per-episode (error, weight) into 1 - sum(error)/sum(weight), with the composition as unit of replication."""
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
    """Mean with weights; the pooled score when values are per-composition scores and weights their share of variance."""
    return float((values * weights).sum() / weights.sum())


def two_level_interval(
    groups: Sequence[pd.DataFrame], level: float = 0.95, draws: int = 2000, seed: int = 0, value: str = "value"
) -> tuple[float, float, float]:
    """(mean, lo, hi) of a score over seeds, bootstrapping seeds and, within each, compositions.

    groups: one DataFrame per seed, a row per composition, with `value` and "weight" columns. Episodes are not resampled:
    they are the measurement, not the unit of replication.
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
    """(mean, lo, hi) of left - right over paired seeds and, within each, paired compositions (joined on "composition")."""
    merged = [a.merge(b, on="composition", suffixes=("", "_right")) for a, b in zip(left, right, strict=True)]
    differences = [m.assign(value=m["value"] - m["value_right"]) for m in merged]
    return two_level_interval(differences, level, draws, seed)
