"""Are two vectors of effects the same but for noise? Correlations corrected for reliability; left-out sets. No torch."""

from __future__ import annotations

from collections.abc import Mapping
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


def dealt(composition: np.ndarray, unit: np.ndarray | None = None) -> np.ndarray:
    """Two halves of the episodes: ordered by composition, every other unit is in the same one.

    Args:
        composition: (episode,) names or numbers.
        unit: (episode,) numbers; what shares a unit and a composition stays in one half, such as the pairs of one base (None:
            every episode is one).

    Returns:
        (episode,) 0 or 1.
    """
    _, index = np.unique(composition, return_inverse=True)
    order = np.argsort(index, kind="stable")
    half = np.empty(len(index), dtype=int)
    if unit is None:
        half[order] = np.arange(len(index)) % 2
        return half
    pairs = list(zip(index[order].tolist(), np.asarray(unit)[order].tolist(), strict=True))
    number = {pair: i for i, pair in enumerate(dict.fromkeys(pairs))}
    half[order] = [number[pair] % 2 for pair in pairs]
    return half


def summed(
    along: np.ndarray, shift: np.ndarray, error: np.ndarray, composition: np.ndarray, unit: np.ndarray | None = None
) -> Terms:
    """The same, from arrays.

    Args:
        along: (part, episode).
        shift: (episode,).
        error: (episode,) 1 - score.
        composition: (episode,) names or numbers.
        unit: (episode,) as in `dealt`, which says what is in which half.

    Returns:
        The terms.
    """
    names, index = np.unique(composition, return_inverse=True)
    half = dealt(composition, unit)
    where = np.zeros((len(index), len(names), 2))
    where[np.arange(len(index)), index, half] = 1
    mean = np.bincount(index, weights=error) / np.bincount(index)
    return Terms(np.einsum("pe,ech->pch", along, where), np.einsum("e,ech->ch", shift, where), mean, [str(n) for n in names])


def reliability(terms: Terms) -> float:
    """How well the effects would come out again: the correlation of halves, stepped up to the whole (Spearman and Brown).

    Args:
        terms: of a set of compositions.

    Returns:
        At most 1; NaN where effects of a half are all alike.
    """
    return _stepped_up(*terms.halves())


def similarity(one: Terms, other: Terms) -> float:
    """The correlation of two sets' effects over parts, corrected for what noise takes from it (Spearman 1904).

    Args:
        one: of a set of compositions.
        other: of another set, with the same parts.

    Returns:
        1 where effects are the same but for noise and scale; it can exceed 1 by chance. NaN where either set's effects do not
        come out again (reliability 0 or below).
    """
    return _corrected(_correlation(one.effects(), other.effects()), reliability(one), reliability(other))


def _corrected(correlation: float, one: float, other: float) -> float:
    """A correlation without what noise takes from it; NaN unless both reliabilities are above 0."""
    return correlation / float(np.sqrt(one * other)) if one > 0 and other > 0 else float("nan")


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
        error = float(held_out.error.mean()) if len(held_out.error) else float("nan")
        return Compared(float("nan"), np.array([]), error, float("nan"))
    sets = [rng.permutation(n) for _ in range(draws)]
    errors = np.array([train.error[order[:size]].mean() for order in sets])
    kept = np.argsort(np.abs(errors - held_out.error.mean()), kind="stable")[: max(1, round(nearest * draws))]
    null = np.array([similarity(train.take(sets[i][size:]), train.take(sets[i][:size])) for i in kept])
    found = similarity(train, held_out)
    return Compared(found, null, float(held_out.error.mean()), float(errors[kept].mean()))


# ---- factors of the code ---------------------------------------------------------------------------------------------
def own_part(factors: Mapping[str, Terms]) -> float:
    """How much of the effects is a factor's own: the share of their variance over parts that differs between factors.

    Args:
        factors: factor -> terms of its exchange, with the same parts.

    Returns:
        The covariance over (factor, part) of the halves' effects, each factor's less its mean over parts: what is left of it
        without the parts' mean over factors, by all of it. Noise has mean 0 in both. 0: the same pattern over parts for all
        factors, however strong; 1: patterns that have nothing in common. It can be below 0, and above 1, by chance.
    """
    stacked = (np.stack(half) for half in zip(*(terms.halves() for terms in factors.values()), strict=True))
    one, other = (effects - effects.mean(1, keepdims=True) for effects in stacked)
    n, whole = len(one), float((one * other).sum())
    own = float(((one - one.mean(0)) * (other - other.mean(0))).sum()) * n / max(n - 1, 1)
    return own / whole if whole > 0 else float("nan")


def joint_similarity(one: Mapping[str, Terms], other: Mapping[str, Terms], own: bool) -> float:
    """As `similarity`, over all (factor, part) together.

    Args:
        one: factor -> terms, of one set of compositions.
        other: of another set: the factors in the same order, which may have other names.
        own: take a part's mean over factors away first, so that only what differs between factors is compared.

    Returns:
        As `similarity`.
    """
    (whole, *halves), (other_whole, *other_halves) = (_joint(each, own) for each in (one, other))
    return _corrected(_correlation(whole, other_whole), _stepped_up(*halves), _stepped_up(*other_halves))


def joint_reliability(factors: Mapping[str, Terms], own: bool) -> float:
    """As `reliability`, over all (factor, part) together.

    Args:
        factors: factor -> terms.
        own: as in `joint_similarity`.

    Returns:
        As `reliability`.
    """
    return _stepped_up(*_joint(factors, own)[1:])


def _joint(factors: Mapping[str, Terms], own: bool) -> list[np.ndarray]:
    """Effects of all episodes and of either half, each (factor * part,)."""
    ways = zip(*((terms.effects(), *terms.halves()) for terms in factors.values()), strict=True)
    return [(effects - effects.mean(0) * own).ravel() for effects in (np.stack(way) for way in ways)]


def _stepped_up(one: np.ndarray, other: np.ndarray) -> float:
    r = _correlation(one, other)
    return 2 * r / (1 + r) if r > -1 else float("nan")


def another_factor(train: Mapping[str, Terms], held_out: Mapping[str, Terms], own: bool) -> float:
    """`joint_similarity` of every factor with each of the others: the mean over all cyclic orders.

    Args:
        train: factor -> terms, two factors or more.
        held_out: of the same factors.
        own: as in `joint_similarity`.

    Returns:
        The mean.
    """
    names = list(train)
    turned = [names[by:] + names[:by] for by in range(1, len(names))]
    return float(np.mean([joint_similarity(train, {name: held_out[name] for name in order}, own) for order in turned]))


def factors_against_left_out(
    train: Mapping[str, Terms],
    held_out: Mapping[str, Terms],
    own: bool,
    draws: int = 400,
    nearest: float = 0.25,
    seed: int = 0,
) -> Compared:
    """`held_out_against_left_out` for all factors together: each keeps some of its compositions for the comparison.

    Args:
        train: factor -> terms of its training compositions, 2 or more of them.
        held_out: the same factors, of held-out compositions.
        own: as in `joint_similarity`.
        draws: random choices of left-out compositions, of every factor as many as are held out (at most half).
        nearest: share of them that is kept, in (0, 1]: those nearest in mean error.
        seed: of the draws.

    Returns:
        The comparison.
    """
    rng = np.random.default_rng(seed)
    chosen: list[tuple[dict[str, Terms], dict[str, Terms]]] = []
    errors = []
    for _ in range(draws):
        kept, left = {}, {}
        for name, terms in train.items():
            order = rng.permutation(len(terms.compositions))
            size = min(len(held_out[name].compositions), len(order) // 2)
            kept[name], left[name] = terms.take(order[size:]), terms.take(order[:size])
        chosen.append((kept, left))
        errors.append(_error(left))
    goal = _error(held_out)
    nearest_first = np.argsort(np.abs(np.array(errors) - goal), kind="stable")[: max(1, round(nearest * draws))]
    null = np.array([joint_similarity(chosen[i][0], chosen[i][1], own) for i in nearest_first])
    return Compared(joint_similarity(train, held_out, own), null, goal, float(np.mean([errors[i] for i in nearest_first])))


def _error(factors: Mapping[str, Terms]) -> float:
    return float(np.mean([terms.error.mean() for terms in factors.values()]))
