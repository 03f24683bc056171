"""Numbers of one episode, or of a set of them with an interval over the set's compositions."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from compolens.measures.intervals import Scale, summarise


class Number(NamedTuple):
    """A number with its 95 % interval.

    Args:
        value: the number itself.
        lo: lower end, NaN where there is no interval.
        hi: upper end, likewise.
        unit: over what the interval runs, such as "compositions"; "": there is none.
    """

    value: float
    lo: float
    hi: float
    unit: str

    def __str__(self) -> str:
        told = f"{self.value:.3f}"
        return told if not self.unit else f"{told} [{self.lo:.3f}, {self.hi:.3f}]"


def units(composition: np.ndarray) -> tuple[np.ndarray, str]:
    """The units of replication of a set of episodes.

    Args:
        composition: (n,) the composition of every episode.

    Returns:
        ((n,) group of every episode, what a group is): compositions where there are several, else episodes; "" for one
        episode.
    """
    if len(composition) < 2:
        return composition, ""
    if len(np.unique(composition)) > 1:
        return composition, "compositions"
    return np.arange(len(composition)), "episodes"


def pooled(error: np.ndarray, weight: np.ndarray, composition: np.ndarray, scale: Scale = Scale.LOG_LACK) -> Number:
    """1 - sum(error) / sum(weight) of episodes; those of compositions without any weight are left out.

    Args:
        error: (n,) at least 0.
        weight: (n,) at least 0.
        composition: (n,) the composition of every episode.
        scale: what the standard error is taken on; `Scale.PLAIN` for what may exceed 1.

    Returns:
        At most 1 unless an error is below 0; NaN where no episode has any weight. The interval runs over `units`.
    """
    kept = np.isin(composition, np.unique(composition[weight > 0]))
    if not kept.any():  # no way to go, or no episode at all
        return Number(float("nan"), float("nan"), float("nan"), "")
    groups, unit = units(composition[kept])
    found = summarise(error[kept], weight[kept], groups)
    lo, hi = found.interval_on(scale) if unit else (float("nan"), float("nan"))
    return Number(found.score, lo, hi, unit)


def mean(values: np.ndarray, composition: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Means over episodes, each with its t interval by the jackknife.

    Args:
        values: (n, k) for n episodes.
        composition: (n,) the composition of every episode.

    Returns:
        (mean, lo, hi), each (k,), with 95 % intervals over `units`; the bounds are NaN for one episode.
    """
    groups, unit = units(composition)
    ends = np.full((2, values.shape[1]), np.nan)
    if unit:
        ends = np.array([differing(-column, np.ones(len(column)), groups)[1:] for column in values.T]).T
    return values.mean(0), ends[0], ends[1]


def differing(error: np.ndarray, weight: np.ndarray, groups: np.ndarray) -> tuple[float, float, float]:
    """-sum(error) / sum(weight), where errors may have either sign, with its t interval over groups by the jackknife.

    Args:
        error: (n,) such as the errors of one model minus those of another on the same episodes.
        weight: (n,) at least 0.
        groups: (n,) the unit of replication of every episode.

    Returns:
        (value, lo, hi): 0 where errors are alike, above 0 where the first model's are smaller; the ends are NaN for one group.
    """
    found = summarise(error, weight, groups)
    lo, hi = found.interval_on(Scale.PLAIN)
    return found.score - 1, lo - 1, hi - 1
