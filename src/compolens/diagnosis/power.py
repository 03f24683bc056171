"""How likely a loss of some size, on one composition, a quarter or all of them, would have shown. Reads ladders only."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from compolens.diagnosis.decomposition import NOTHING, Ladders, cost_of, counts_drawn, split_loss
from compolens.diagnosis.measured import Rungs, fairly, planted

BELOW = {
    "use": ("own answer", "own answer, searched"),
    "inference": ("own answer", "own answer, searched", "own code written"),
    "execution": ("own answer", "own answer, searched", "own code written", "true code written", "best code"),
}
"""Part -> the rungs that such a loss lowers."""
SPREAD = {"in one composition": 0.0, "in a quarter of them": 0.25, "evenly": 1.0}
"""How a loss may be spread over held-out compositions -> the share of them that it is planted in, at least one."""


class Power(NamedTuple):
    """How likely a loss would have been detected.

    Args:
        value: the probability, for the spread at which it is smallest.
        spread: that spread, a key of `SPREAD`.
        by_spread: spread -> probability.
    """

    value: float
    spread: str
    by_spread: dict[str, float]


def power(seeds: Ladders, top: float, part: str, loss: float) -> Power:
    """How likely a loss of some size, planted on held-out compositions, would have shown: its interval excluding 0.

    Other measurements are imitated by drawing the measured compositions anew. In each of them the loss is planted in the
    models' own scores, on one composition, on a quarter of them, or on all, always so that the pooled score falls by the same
    amount; then it is split, with an interval of its own.

    Args:
        seeds: the models' ladders.
        top: the ceiling.
        part: one of `BELOW`.
        loss: its size, in units of the pooled score.

    Returns:
        The probabilities, the smallest first.
    """
    found = {spread: _found(seeds, top, part, loss, share) for spread, share in SPREAD.items()}
    worst = min(found, key=lambda spread: found[spread])
    return Power(found[worst], worst, found)


REPEATS = 100
"""Other measurements that a power counts in; a probability of one half has a standard error of 0.05."""
INNER = 200
"""Resamples behind the interval of each."""


def _found(seeds: Ladders, top: float, part: str, loss: float, share: float) -> float:
    """The share of other measurements in which the part's interval excludes 0."""
    rng = np.random.default_rng(0)
    drawn = np.empty((len(seeds), REPEATS, INNER))
    for i, seed in enumerate(seeds):
        test, ood = _elsewhere(seed["test"], rng), _elsewhere(seed["ood"], rng, BELOW[part], loss, share)
        cost = cost_of(test)
        drawn[i] = split_loss(top, ood, cost)[part] - split_loss(top, test, cost)[part]
    which = rng.integers(len(seeds), size=drawn.shape)  # seeds are drawn, then compositions within each
    means = drawn[which, np.arange(REPEATS)[:, None], rng.integers(INNER, size=drawn.shape)].mean(0)
    return float((np.quantile(means, 0.025, axis=1) > NOTHING).mean())


def _elsewhere(
    rungs: Rungs, rng: np.random.Generator, lowered: Sequence[str] = (), loss: float = 0.0, share: float = 1.0
) -> dict[str, np.ndarray]:
    """rung -> (REPEATS, INNER) pooled scores: compositions drawn anew, a loss planted in the first of them, then resamples."""
    n = len(rungs.names)
    pick, counts = rng.integers(n, size=(REPEATS, n)), counts_drawn(n, INNER, rng)
    found = {}
    for rung, (score, weight) in rungs.scores.items():
        own, kept = weight[pick], score[pick]
        if rung in lowered:
            kept = kept - planted(own, loss, share)
        total, whole = own @ counts.T, (kept * own) @ counts.T
        found[rung] = np.divide(whole, total, out=np.full(total.shape, np.nan), where=total > 0)
    return fairly(found)
