"""How a cloud of codes is laid out: which classes it keeps apart, how alike their means are, whether it factorises.

Codes are x (n, features), one row per code; labels (n,) are class numbers. Everything is computed in float64.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

FLAT = 1e-9
"""Share of the largest variance below which a direction counts as without variance: rounding noise of codes in float32."""


def centred(x: np.ndarray) -> np.ndarray:
    """Codes `x` (n, features) about their mean, float64; what is left of constant features is rounding, and 0.

    Rounding is judged by the precision x comes in and by the largest number in it, so hand over codes as they are."""
    x = np.asarray(x)
    precision = np.finfo(x.dtype if np.issubdtype(x.dtype, np.floating) else np.float64).eps
    away = x.astype(np.float64) - x.mean(0, dtype=np.float64)
    return np.where(np.abs(away).max(axis=0, initial=0) > 16 * precision * np.abs(x).max(initial=0), away, 0.0)


class ClassSums(NamedTuple):
    """Sums per class, of codes about their overall mean: all that means and scatters need; they add, so they resample.

    Args:
        size: (..., classes), codes of a class.
        total: (..., classes, features).
        square: (...,) summed squared length.
        mean: (features,) of all codes.
    """

    size: np.ndarray
    total: np.ndarray
    square: np.ndarray
    mean: np.ndarray

    @classmethod
    def by_group(cls, x: np.ndarray, labels: np.ndarray, n_classes: int, group: np.ndarray) -> ClassSums:
        """One set of sums for every group (composition), in ascending order.

        Args:
            x: (n, features).
            labels: (n,) class numbers.
            n_classes: classes there are.
            group: (n,) ints.

        Returns:
            The sums, (groups, ...).
        """
        mean = np.asarray(np.mean(x, axis=0, dtype=np.float64))
        x = centred(x)
        known, group = np.unique(group, return_inverse=True)
        size = len(known) * n_classes
        cell = group * n_classes + np.asarray(labels)
        order = np.argsort(cell, kind="stable")
        occurring, start = np.unique(cell[order], return_index=True)
        total = np.zeros((size, x.shape[1]))
        total[occurring] = np.add.reduceat(x[order], start, axis=0)
        count = np.bincount(cell, minlength=size).astype(float)
        square = np.bincount(group, weights=(x**2).sum(1), minlength=len(known))
        return cls(count.reshape(-1, n_classes), total.reshape(len(known), n_classes, -1), square, mean)

    def weighted(self, weight: np.ndarray) -> ClassSums:
        """The sums over groups, each counted `weight` times; weight (..., groups)."""
        size, total, square = (np.tensordot(weight, part, axes=1) for part in (self.size, self.total, self.square))
        return ClassSums(size, total, square, self.mean)

    @property
    def left_out(self) -> ClassSums:
        """The sums over all groups but one, for every group: (groups, ...)."""
        whole = self.pooled
        return ClassSums(whole.size - self.size, whole.total - self.total, whole.square - self.square, self.mean)

    @property
    def pooled(self) -> ClassSums:
        """The sums over all groups."""
        return self.weighted(np.ones(len(self.size)))

    def cosine(self, about_mean: bool = False) -> np.ndarray:
        """Cosine similarity of the classes' mean codes.

        Args:
            about_mean: after the mean code is taken off.

        Returns:
            (..., classes, classes): 1 is the same direction, 0 orthogonal; NaN for classes that are absent and for means of
            length 0.
        """
        with np.errstate(invalid="ignore", divide="ignore"):
            means = self.total / self.size[..., None]
            grand = self.total.sum(-2, keepdims=True) / self.size.sum(-1)[..., None, None]
            means = means - (grand if about_mean else -self.mean)
            unit = means / np.linalg.norm(means, axis=-1, keepdims=True)
        return np.clip(unit @ np.swapaxes(unit, -1, -2), -1, 1)

    def within_between(self) -> np.ndarray:
        """(...,) trace of the scatter within classes over that between classes: 0 when classes are points, about
        (n - classes) / (classes - 1) when labels mean nothing; NaN where the classes' means do not differ."""
        explained = (self.total**2).sum(-1) / np.maximum(self.size, 1)
        n = np.maximum(self.size.sum(-1), 1)
        between = explained.sum(-1) - (self.total.sum(-2) ** 2).sum(-1) / n
        within = np.maximum(self.square - explained.sum(-1), 0)
        apart = between > 1e-12 * np.maximum(self.square, 1e-300)
        return np.where(apart, within / np.where(apart, between, 1), np.nan)


def _one_group(x: np.ndarray, labels: np.ndarray, n_classes: int) -> ClassSums:
    return ClassSums.by_group(x, labels, n_classes, np.zeros(len(x), dtype=int)).pooled


def cosine_of_means(x: np.ndarray, labels: np.ndarray, n_classes: int, about_mean: bool = False) -> np.ndarray:
    """Cosine similarity of the classes' mean codes, as in fig. 5E of 2406.05816.

    Args:
        x: (n, features).
        labels: (n,) class numbers.
        n_classes: classes there are.
        about_mean: the mean over all codes is taken off first, without which codes of one sign all look alike.

    Returns:
        (n_classes, n_classes); NaN for absent classes.
    """
    return _one_group(x, labels, n_classes).cosine(about_mean)


def within_between(x: np.ndarray, labels: np.ndarray) -> float:
    """Scatter within classes over scatter between them (traces).

    Args:
        x: (n, features).
        labels: (n,) class numbers.

    Returns:
        0 when classes are points; NaN if means do not differ.
    """
    return float(_one_group(x, labels, int(np.max(labels)) + 1).within_between())


def silhouette(x: np.ndarray, labels: np.ndarray, most: int = 2000, seed: int = 0) -> float:
    """Mean silhouette (Rousseeuw 1987) of Euclidean distances.

    Args:
        x: (n, features).
        labels: (n,) class numbers.
        most: rows that are looked at, at most; the same ones for equal n and seed.
        seed: chooses them.

    Returns:
        1 is tight classes far apart, 0 none, -1 the wrong ones; NaN for one class alone, a class for every row, or a constant
        code.
    """
    from sklearn.metrics import silhouette_score  # takes a second to import, and few ask for it

    x, labels = centred(x), np.asarray(labels)
    keep = np.sort(np.random.default_rng(seed).permutation(len(x))[:most])
    x, labels = x[keep], labels[keep]
    classes = len(np.unique(labels))
    return float(silhouette_score(x, labels)) if 2 <= classes < len(labels) and x.any() else np.nan


def effective_dimension(x: np.ndarray) -> float:
    """Participation ratio (sum λ)² / sum λ² of the covariance's eigenvalues of `x` (n, features): from 1 to the number of
    features; NaN for a constant code."""
    x = centred(x)
    scatter = x.T @ x if x.shape[1] <= len(x) else x @ x.T
    squares = float((scatter**2).sum())
    return float(np.trace(scatter)) ** 2 / squares if squares > 0 else np.nan


def whitened(x: np.ndarray) -> np.ndarray:
    """The codes `x` (n, features) with covariance 1 / n in every direction that varies, (n, rank): all directions count
    equally."""
    x = centred(x)
    scale = x.std(0)
    x = x[:, scale > 0] / scale[scale > 0]
    values, vectors = np.linalg.eigh(x.T @ x)
    varies = values > FLAT * values.max(initial=0)
    return x @ vectors[:, varies] / np.sqrt(values[varies])


def factorisation_r2(x: np.ndarray, factors: Sequence[np.ndarray], whiten: bool = False) -> float:
    """R² of the additive model x = mean + sum over factors of an effect of the factor's class.

    The least-squares fit on the factors' one-hot encodings, pooled over features, scored on what it was fitted on. Labels that
    mean nothing reach about (their classes - 1) / (n - 1).

    Args:
        x: (n, features).
        factors: each (n,) ints.
        whiten: every direction that varies counts equally, so that no invertible linear map of x changes the value.

    Returns:
        1 means that the factors, added up, say everything; NaN for a constant code.
    """
    x = whitened(x) if whiten else centred(x)
    total = float((x**2).sum())
    if total == 0:
        return np.nan
    columns = [np.unique(f, return_inverse=True)[1] for f in factors]
    design = np.concatenate([np.eye(c.max() + 1)[c] for c in columns], axis=1)
    across = design.T @ x
    fitted = np.linalg.pinv(design.T @ design, rcond=1e-10, hermitian=True) @ across
    return float((across * fitted).sum() / total)


def pca(x: np.ndarray, k: int = 2) -> tuple[np.ndarray, np.ndarray]:
    """Principal components.

    An axis points to where its largest loading is positive; axes that do not exist have coordinate and share 0.

    Args:
        x: (n, features).
        k: axes.

    Returns:
        Coordinates (n, k) on the first k axes, and the share of variance (k,) that each explains.
    """
    x = centred(x)
    _, sizes, axes = np.linalg.svd(x, full_matrices=False)
    axes, sizes = axes[:k], sizes**2
    largest = np.abs(axes).argmax(1)
    axes = axes * np.where(axes[np.arange(len(axes)), largest] < 0, -1, 1)[:, None]
    coordinates, share = np.zeros((len(x), k)), np.zeros(k)
    coordinates[:, : len(axes)] = x @ axes.T
    share[: len(axes)] = sizes[:k] / max(sizes.sum(), 1e-300)
    return coordinates, share


def bins(values: np.ndarray, n: int = 4) -> np.ndarray:
    """Bins of about equal size, by rank; equal values share a bin.

    Args:
        values: (n_values,).
        n: most bins.

    Returns:
        (n_values,) int labels from 0.
    """
    _, which, count = np.unique(values, return_inverse=True, return_counts=True)
    middle = (np.cumsum(count) - count / 2) / len(which)  # the rank of each value, its ties taken at their middle
    return np.unique(np.floor(n * middle)[which], return_inverse=True)[1]
