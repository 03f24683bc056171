"""How likely a loss of some size, on one composition, a quarter or all of them, would have shown. Reads ladders only."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from compolens.diagnosis.decomposition import NOTHING, Ladders, cost_of, counts_drawn, shared, split_loss
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


class _Draws(NamedTuple):
    """Other measurements of some compositions.

    Args:
        measured: (REPEATS, compositions), which composition stands at each place in each of them.
        counts: (INNER, compositions), how often each place is drawn in the resamples of one.
    """

    measured: np.ndarray
    counts: np.ndarray

    @classmethod
    def of(cls, compositions: int, rng: np.random.Generator) -> _Draws:
        return cls(rng.integers(compositions, size=(REPEATS, compositions)), counts_drawn(compositions, INNER, rng))


def _found(seeds: Ladders, top: float, part: str, loss: float, share: float) -> float:
    """The share of other measurements in which the part's interval excludes 0."""
    rng = np.random.default_rng(0)
    common = {key: _Draws.of(len(key[1]), rng) for key in shared(seeds)}

    def draws(rungs: Rungs) -> _Draws:
        return common.get((rungs.task, rungs.names)) or _Draws.of(len(rungs.names), rng)

    drawn = np.empty((len(seeds), REPEATS, INNER))
    for i, seed in enumerate(seeds):
        test = _elsewhere(seed["test"], draws(seed["test"]))
        ood = _elsewhere(seed["ood"], draws(seed["ood"]), BELOW[part], loss, share)
        cost = cost_of(test)
        drawn[i] = split_loss(top, ood, cost)[part] - split_loss(top, test, cost)[part]
    which = rng.integers(len(seeds), size=drawn.shape)  # seeds are drawn, then compositions within each
    inner = rng.integers(INNER, size=(1, *drawn.shape[1:]) if common else drawn.shape)  # or one draw of these for all
    means = drawn[which, np.arange(REPEATS)[:, None], inner].mean(0)
    return float((np.quantile(means, 0.025, axis=1) > NOTHING).mean())


def _elsewhere(
    rungs: Rungs, draws: _Draws, lowered: Sequence[str] = (), loss: float = 0.0, share: float = 1.0
) -> dict[str, np.ndarray]:
    """rung -> (REPEATS, INNER) pooled scores: compositions drawn anew, a loss planted in the first of them, then resamples."""
    found = {}
    for rung, (score, weight) in rungs.scores.items():
        own, kept = weight[draws.measured], score[draws.measured]
        if rung in lowered:
            kept = kept - planted(own, loss, share)
        total, whole = own @ draws.counts.T, (kept * own) @ draws.counts.T
        found[rung] = np.divide(whole, total, out=np.full(total.shape, np.nan), where=total > 0)
    return fairly(found)
