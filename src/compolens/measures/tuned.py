"""Which setting of a grid is best, by its error on validation compositions, and what could as well have been chosen.

An error is log(1 - score): scores near 1 differ in what they lack. Its standard error is that of the score, over compositions,
divided by what it lacks. Settings within one standard error of the best cannot be told from it, so the held-out scores of all
of these are part of every comparison: their range says how much the choice decides.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pandas as pd

SETTINGS = ("lr", "weight_decay", "steps")
"""The settings that a grid is over."""


class Choice(NamedTuple):
    """The best setting of one architecture.

    Args:
        settings: lr, weight_decay and steps.
        error: log(1 - score) on validation compositions.
        error_se: its standard error over these compositions.
        train_error: the same on fresh episodes of training compositions (test).
        held_out: the held-out score (ood) at the chosen setting.
        held_out_range: lowest and highest held-out score of all settings whose validation error is within one standard error
            of the best; of one seed, that of the tuning.
        close: how many settings these are, the best among them.
        by_training: the setting that is best by `train_error` instead.
        edges: settings whose best value is the first or last of its grid.
        tried: settings that were tried.
    """

    settings: dict[str, float]
    error: float
    error_se: float
    train_error: float
    held_out: float
    held_out_range: tuple[float, float]
    close: int
    by_training: dict[str, float]
    edges: tuple[str, ...]
    tried: int


def errors(scores: pd.Series | np.ndarray) -> np.ndarray:
    """log(1 - score), natural.

    Args:
        scores: (n,) at most 1.

    Returns:
        (n,); -inf where nothing lacks.
    """
    with np.errstate(divide="ignore"):
        return np.log(1 - np.asarray(scores, dtype=float))


def choices(table: pd.DataFrame) -> dict[str, Choice]:
    """The choice for every architecture of a tuning.

    Args:
        table: as in `choose`, with the column "who".

    Returns:
        Architecture -> its choice, in the table's order; one that diverged at every setting is not in there.
    """
    return {str(who): choose(rows) for who, rows in table.groupby("who", sort=False) if _learned(rows).any()}


def _learned(rows: pd.DataFrame) -> np.ndarray:
    """(n,) which settings have a score on validation compositions; there is no such column where all of them diverged."""
    if "validation" not in rows:
        return np.zeros(len(rows), dtype=bool)
    return np.isfinite(rows["validation"].to_numpy(dtype=float))


def choose(rows: pd.DataFrame) -> Choice:
    """The best of an architecture's settings.

    Args:
        rows: one per setting: the columns of `SETTINGS`, and "validation", "validation se", "test" and "ood".

    Returns:
        The choice. Of equal errors, that of fewer steps, then of the smaller rate and decay.

    Raises:
        ValueError: there is no row with a finite score.
    """
    tried, ends = len(rows), {name: (rows[name].min(), rows[name].max()) for name in SETTINGS}
    rows = rows[_learned(rows)].sort_values(["steps", "lr", "weight_decay"])
    if rows.empty:
        raise ValueError("no setting has a score on validation compositions")
    error = errors(rows["validation"])
    best = int(np.argmin(error))
    chosen = rows.iloc[best]
    spread = float(chosen["validation se"]) / max(1e-12, 1 - float(chosen["validation"]))
    near = rows[error <= error[best] + spread]
    trained = errors(rows["test"])
    edges = tuple(name for name, (low, high) in ends.items() if low < high and chosen[name] in (low, high))
    return Choice(
        settings={name: float(chosen[name]) for name in SETTINGS},
        error=float(error[best]),
        error_se=spread,
        train_error=float(trained[best]),
        held_out=float(chosen["ood"]),
        held_out_range=(float(near["ood"].min()), float(near["ood"].max())),
        close=len(near),
        by_training={name: float(rows.iloc[int(np.argmin(trained))][name]) for name in SETTINGS},
        edges=edges,
        tried=tried,
    )
