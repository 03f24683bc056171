"""Are two vectors of effects the same but for noise? Correlations corrected for reliability; left-out sets. No torch."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pandas as pd


class Terms(NamedTuple):
    """What effects are ratios of, by part, composition and half of the episodes.

    Args:
        along: (part, composition, 2) sums of what an exchange moves.
        shift: (composition, 2) sums of what there is to move.
        error: (composition,) mean of 1 - score.
        compositions: names, in the order of the others.
    """

    along: np.ndarray
    shift: np.ndarray
    error: np.ndarray
    compositions: list[str]

    def take(self, index: np.ndarray) -> Terms:
        """The terms of some compositions.

        Args:
            index: (n,) their positions.

        Returns:
            Those alone, in that order.
        """
        names = [self.compositions[i] for i in index]
        return Terms(self.along[:, index], self.shift[index], self.error[index], names)

    def effects(self) -> np.ndarray:
        """(part,) effects over all compositions and episodes."""
        return self.along.sum((1, 2)) / self.shift.sum()

    def halves(self) -> tuple[np.ndarray, np.ndarray]:
        """Twice (part,): effects of one half of every composition's episodes, and of the other."""
        shift = self.shift.sum(0)
        one, other = (self.along.sum(1) / np.where(shift > 0, shift, np.nan)).T  # a half without episodes has no effects
        return one, other


def terms_of(frame: pd.DataFrame, parts: list[str]) -> Terms:
    """The terms of per-episode rows, such as those that the probe `components` leaves.

    Args:
        frame: columns component, episode, composition, along, shift, score; a row per component and episode. Episodes of even
            and odd number are the two halves.
        parts: the components, in the order that is wanted.

    Returns:
        The terms.
    """
    half = frame["episode"].astype(int) % 2
    summed = frame.assign(half=half).groupby(["component", "composition", "half"])[["along", "shift"]].sum()
    names = sorted(frame["composition"].unique())
    index = pd.MultiIndex.from_product([parts, names, [0, 1]])
    shape = (len(parts), len(names), 2)
    along, shift = (summed[c].reindex(index, fill_value=0.0).to_numpy().reshape(shape) for c in ("along", "shift"))
    error = 1 - frame[frame["component"] == parts[0]].groupby("composition")["score"].mean().reindex(names).to_numpy()
    return Terms(along, shift[0], error, names)


def reliability(terms: Terms) -> float:
    """How well the effects would come out again: the correlation of halves, stepped up to the whole (Spearman and Brown).

    Args:
        terms: of a set of compositions.

    Returns:
        At most 1; NaN where effects of a half are all alike.
    """
    r = _correlation(*terms.halves())
    return 2 * r / (1 + r) if r > -1 else float("nan")


def similarity(one: Terms, other: Terms) -> float:
    """The correlation of two sets' effects over parts, corrected for what noise takes from it (Spearman 1904).

    Args:
        one: of a set of compositions.
        other: of another set, with the same parts.

    Returns:
        1 where effects are the same but for noise and scale; it can exceed 1 by chance. NaN where either set's effects do not
        come out again (reliability 0 or below).
    """
    noise = reliability(one) * reliability(other)
    return _correlation(one.effects(), other.effects()) / float(np.sqrt(noise)) if noise > 0 else float("nan")


def _correlation(one: np.ndarray, other: np.ndarray) -> float:
    if np.ptp(one) == 0 or np.ptp(other) == 0:
        return float("nan")
    return float(np.corrcoef(one, other)[0, 1])


class Compared(NamedTuple):
    """A set of held-out compositions against the training ones, beside training compositions that were left out alike.

    Args:
        similarity: of the two sets.
        null: (draws,) similarity of a random set of training compositions to the remaining ones.
        error: mean error of the held-out compositions.
        null_error: mean error of the sets of the null.
    """

    similarity: float
    null: np.ndarray
    error: float
    null_error: float

    @property
    def left_out(self) -> float:
        """The median of the null; NaN where none of it is known."""
        known = self.null[np.isfinite(self.null)]
        return float(np.median(known)) if len(known) else float("nan")

    @property
    def beyond(self) -> float:
        """Similarity less `left_out`: 0 where held-out compositions are as any others, below 0 where not."""
        return self.similarity - self.left_out


def held_out_against_left_out(
    train: Terms, held_out: Terms, draws: int = 400, nearest: float = 0.25, seed: int = 0
) -> Compared:
    """Compare effects on held-out compositions with those on training compositions, and these among themselves.

    The null leaves random sets of training compositions out, as many as are held out (at most half), and keeps those sets
    whose mean error is nearest to that of the held-out compositions.

    Args:
        train: of the training compositions, 4 or more.
        held_out: of the held-out ones.
        draws: random sets.
        nearest: share of them that is kept, in (0, 1].
        seed: of the draws.

    Returns:
        The comparison; NaN where there are too few compositions.
    """
    rng, n = np.random.default_rng(seed), len(train.compositions)
    size = min(len(held_out.compositions), n // 2)
    if size < 2:
        return Compared(float("nan"), np.array([]), float(held_out.error.mean()), float("nan"))
    sets = [rng.permutation(n) for _ in range(draws)]
    errors = np.array([train.error[order[:size]].mean() for order in sets])
    kept = np.argsort(np.abs(errors - held_out.error.mean()), kind="stable")[: max(1, round(nearest * draws))]
    null = np.array([similarity(train.take(sets[i][size:]), train.take(sets[i][:size])) for i in kept])
    found = similarity(train, held_out)
    return Compared(found, null, float(held_out.error.mean()), float(errors[kept].mean()))
