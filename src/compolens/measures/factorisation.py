"""Whether a code is a sum of its factors' own codes, each in a direction of its own (linear factorisation, 2602.24264).

    X_hat = mean + sum over factors f of e_f(value of f),        R² = 1 - |X - X_hat|² / |X - mean|²

e_f is what the factor's value adds, 0 on average. On a balanced design of categorical factors it is the paper's
E[x | value] - E[x]; here all factors are fitted together by least squares, which on an unbalanced design does not count
twice what two correlated factors explain. A factor is a feature matrix (n, width): a one-hot value, or a coefficient.
Codes are x (n, features). All is float64.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from compolens.measures.geometry import centred, whitened

COLLINEAR = 1e-8
"""Singular values of the design below this share of the largest are taken to be 0."""
POINT = 1e-9
"""Share of the factors' summed length below which an effect counts as none."""
EPISODES_PER_EFFECT = 3
"""Fewer episodes than this for every effect do not fit one: their mean code predicts better."""


@dataclass(frozen=True)
class AdditiveCode:
    """x_hat = mean + sum over factors of (features - their mean) @ weight: what each factor adds, fitted together.

    Args:
        mean: (features,) of x.
        centres: of every factor its features' mean (width,).
        weights: of every factor its weight (width, features).
    """

    mean: np.ndarray
    centres: dict[str, np.ndarray]
    weights: dict[str, np.ndarray]

    @classmethod
    def fit(cls, x: np.ndarray, factors: Mapping[str, np.ndarray]) -> AdditiveCode:
        """Least squares, the smallest solution where factors are collinear; features that do not vary get weight 0.

        Args:
            x: (n, features).
            factors: name -> (n, width).

        Returns:
            The fit.
        """
        x, parts = np.asarray(x, float), _parts(factors, len(x))
        mean, centres = x.mean(0), {name: part.mean(0) for name, part in parts.items()}
        design = np.concatenate([part - centres[name] for name, part in parts.items()], axis=1)
        found = np.linalg.pinv(design, rcond=COLLINEAR) @ (x - mean)
        ends = np.cumsum([part.shape[1] for part in parts.values()])[:-1]
        return cls(mean, centres, dict(zip(parts, np.split(found, ends), strict=True)))

    def effects(self, factors: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """What each factor adds to every code.

        Args:
            factors: name -> (n, width), those it was fitted on.

        Returns:
            name -> (n, features).

        Raises:
            ValueError: other factors.
        """
        parts = _parts(factors, None)
        if list(parts) != list(self.weights):
            raise ValueError(f"fitted on the factors {list(self.weights)}, got {list(parts)}")
        return {name: (part - self.centres[name]) @ self.weights[name] for name, part in parts.items()}

    def __call__(self, factors: Mapping[str, np.ndarray]) -> np.ndarray:
        return self.mean + sum(self.effects(factors).values())


def _parts(factors: Mapping[str, np.ndarray], n: int | None) -> dict[str, np.ndarray]:
    """The factors in float64, checked."""
    parts = {name: np.asarray(part, float) for name, part in factors.items()}
    lengths = {name: part.shape for name, part in parts.items() if part.ndim != 2 or (n is not None and len(part) != n)}
    if lengths or not parts:
        raise ValueError(f"factors are one or more matrices (n, width) with a row per code, got {lengths or 'none'}")
    return parts


def linear_factorisation_r2(x: np.ndarray, factors: Mapping[str, np.ndarray], whiten: bool = False) -> float:
    """Share of the variance of x that the sum of its factors' effects explains, on what it was fitted on.

    Meaningless factors reach about (their degrees of freedom) / (n - 1).

    Args:
        x: (n, features).
        factors: name -> (n, width).
        whiten: every direction that varies counts equally.

    Returns:
        R²: 1 is all of it; NaN for a constant code.
    """
    x = whitened(x) if whiten else centred(x)
    return r2(x, AdditiveCode.fit(x, factors)(factors)) if x.any() else np.nan


def r2(x: np.ndarray, fitted: np.ndarray) -> float:
    """1 - |x - fitted|² / |x - mean|², pooled over features.

    Args:
        x: (n, features).
        fitted: (n, features).

    Returns:
        1 is perfect, 0 the mean, may be negative; NaN for constant x.
    """
    away = centred(x)
    total = float((away**2).sum())
    return 1 - float(((np.asarray(x, float) - fitted) ** 2).sum()) / total if total > 0 else np.nan


def left_out(x: np.ndarray, factors: Mapping[str, np.ndarray], composition: np.ndarray, folds: int = 24) -> np.ndarray:
    """Squared errors of codes that are predicted for whole compositions which the effects were not fitted on.

    A code that is made of parts is predicted by the effects of other compositions as well as by its own; one entry per
    composition only by its own.

    Args:
        x: (n, features).
        factors: name -> (n, width).
        composition: (n,) ints.
        folds: most groups of compositions that are left out together.

    Returns:
        (compositions, 3): per composition, in ascending order, the summed squared error of three predictions: effects of all
        other compositions; effects fitted on the other half of its own episodes, which is what can be had; the mean of all
        codes. NaN for a composition with a feature that is 0 in all others: nothing tells what it adds.
    """
    x, parts = np.asarray(x, float), np.concatenate(list(_parts(factors, len(x)).values()), axis=1)
    known, which = np.unique(composition, return_inverse=True)
    others, own = np.empty_like(x), np.empty_like(x)
    for fold in range(min(folds, len(known))):
        here = which % min(folds, len(known)) == fold
        others[here] = _predicted(x, factors, ~here, here)
        unknown = parts[here].any(0) & ~parts[~here].any(0)
        others[here] = np.where(parts[here][:, unknown].any(1, keepdims=True), np.nan, others[here])
    half = halves(composition)
    for c in range(len(known)):
        sides = [(which == c) & (half == side) for side in (0, 1)]
        for fit, scored in (sides, sides[::-1]):
            if scored.any():
                own[scored] = _predicted(x, factors, fit, scored) if fit.any() else x.mean(0)
    errors = [((x - found) ** 2).sum(1) for found in (others, own, x.mean(0))]
    summed = np.stack([np.bincount(which, error) for error in errors], axis=1)
    return np.where(np.isnan(summed).any(1, keepdims=True), np.nan, summed)


def halves(composition: np.ndarray) -> np.ndarray:
    """Two halves of every composition's episodes: 0 or 1 (n,), dealt out in turn by `composition` (n,), 0 first."""
    _, which, count = np.unique(composition, return_inverse=True, return_counts=True)
    found = np.empty(len(which), int)
    found[np.argsort(which, kind="stable")] = np.arange(len(which)) - np.repeat(np.cumsum(count) - count, count)
    return found % 2


def _predicted(x: np.ndarray, factors: Mapping[str, np.ndarray], fit: np.ndarray, scored: np.ndarray) -> np.ndarray:
    """Codes of some episodes by effects fitted on others; by their mean where these are too few for the effects."""
    code = {name: np.asarray(part, float)[fit] for name, part in factors.items()}
    varying = sum(int((part != part[:1]).any(0).sum()) for part in code.values())
    if fit.sum() < EPISODES_PER_EFFECT * (varying + 1):
        return np.broadcast_to(x[fit].mean(0), (int(scored.sum()), x.shape[1]))
    return AdditiveCode.fit(x[fit], code)({name: np.asarray(part, float)[scored] for name, part in factors.items()})


def cross_factor_cosine(code: AdditiveCode) -> float:
    """Mean |cos| between the effects of different factors' values in `code`: 0 when each factor has directions of its own.

    A value's effect is its feature's weight, about the factor's mean where the factor has several (one-hot) features; random
    directions in d dimensions reach about sqrt(2 / (pi d)). NaN with fewer than two factors that have an effect."""
    directions, owner = [], []
    for i, (name, weight) in enumerate(code.weights.items()):
        share = code.centres[name]
        effect = weight if len(weight) == 1 else (weight - share @ weight)[share > 0]
        directions.append(effect)
        owner += [i] * len(effect)
    stacked, who = np.concatenate(directions), np.array(owner)
    length = np.linalg.norm(stacked, axis=1)
    there = length > POINT * max(length.sum(), 1e-300)
    unit, who = stacked[there] / length[there, None], who[there]
    other = who[:, None] != who
    return float(np.abs(unit @ unit.T)[other].mean()) if other.any() else np.nan


def composition_means(values: np.ndarray, composition: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The mean row of every composition.

    Args:
        values: (n, features).
        composition: (n,) ints.

    Returns:
        (compositions, features), and the compositions (compositions,), ascending.
    """
    known, which, count = np.unique(composition, return_inverse=True, return_counts=True)
    total = np.zeros((len(known), np.shape(values)[1]))
    np.add.at(total, which, np.asarray(values, float))
    return total / count[:, None], known
