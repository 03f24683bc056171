"""Readouts that need not be linear, of a capacity that left-out compositions choose.

A readout is linear in features of x: x itself, its products, or x beside Gaussian bumps about some of the points that were
fitted (the Nyström features of a kernel; Williams and Seeger 2001). So everything that is exact about ridge from streamed
moments (`measures.readouts`) holds at every capacity. Of all capacities the smallest is taken whose R² on left-out
compositions is within one standard error of the best (Breiman et al. 1984): a larger one reads whatever it likes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from compolens.measures.intervals import student_quantile
from compolens.measures.readouts import PENALTIES, Moments, RidgeReadout

CAPACITIES = ("linear", "products", "32 bumps", "128 bumps")
"""From the smallest on; the last is the declared limit: what a readout of it does not find is not said to be absent."""
WIDEST = 24
"""Products are taken of at most so many principal axes: 300 of them."""
FOLDS = 8
"""Compositions are left out in so many groups, or one by one where there are fewer."""


@dataclass(frozen=True)
class Features:
    """x (n, d) -> features (n, m), float64; x itself comes first.

    Args:
        mean: (d,) of what was fitted.
        axes: (d, r) principal axes whose products are taken, in units of one standard deviation of x; None for none.
        centres: (k, d) about which bumps lie; None for none.
        width: of the bumps, the median distance between points.
    """

    mean: Tensor
    axes: Tensor | None = None
    centres: Tensor | None = None
    width: float = 1.0

    @classmethod
    def fit(cls, x: Tensor, capacity: str, seed: int = 0) -> Features:
        """The features of a capacity.

        Args:
            x: (n, d).
            capacity: one of `CAPACITIES`.
            seed: chooses the bumps' centres among the points.

        Returns:
            The features.
        """
        x = x.double()
        mean = x.mean(0)
        if capacity == "linear":
            return cls(mean)
        if capacity == "products":
            values, vectors = torch.linalg.eigh((x - mean).T @ (x - mean) / len(x))
            kept = values > 1e-9 * values[-1].clamp(min=1e-300)
            axes = (vectors / values.clamp(min=1e-300).sqrt())[:, kept][:, -WIDEST:]
            return cls(mean, axes=axes)
        k = min(int(capacity.split()[0]), len(x))
        order = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed)).to(x.device)
        some = x[order[: min(len(x), 256)]]
        apart = _distances(some, some)
        width = float(apart[apart > 0].median().sqrt()) if bool((apart > 0).any()) else 1.0
        return cls(mean, centres=x[order[:k]], width=width)

    def __call__(self, x: Tensor) -> Tensor:
        x = x.double()
        if self.axes is not None:
            along = (x - self.mean) @ self.axes
            i, j = torch.triu_indices(along.shape[1], along.shape[1])
            return torch.cat([x, along[:, i] * along[:, j]], dim=1)
        if self.centres is not None:
            return torch.cat([x, (-_distances(x, self.centres) / (2 * self.width**2)).exp()], dim=1)
        return x


def _distances(x: Tensor, y: Tensor) -> Tensor:
    """(n, m) squared distances, by products: `torch.cdist` has no second derivative."""
    return (x.square().sum(1)[:, None] + y.square().sum(1) - 2 * x @ y.T).clamp(min=0)


@dataclass(frozen=True)
class Readout:
    """A frozen readout: x (n, d) -> y (n, outputs), float64.

    Args:
        features: of x.
        linear: from features to y.
        capacity: one of `CAPACITIES`.
        left_out: R² on left-out compositions; 1 is perfect, may be negative.
        se: its standard error over the groups that were left out.
        by_capacity: capacity -> (R², standard error), of all that were tried.
        groups: how many groups were left out, one after the other.
    """

    features: Features
    linear: RidgeReadout
    capacity: str
    left_out: float
    se: float
    by_capacity: dict[str, tuple[float, float]]
    groups: int

    def interval(self, capacity: str) -> tuple[float, float]:
        """95 % t interval of the R² on left-out compositions.

        Args:
            capacity: one of those tried.

        Returns:
            Its two ends; infinite where a single group was left out.
        """
        value, se = self.by_capacity[capacity]
        half = student_quantile(0.975, self.groups - 1) * se if self.groups > 1 else float("inf")
        return value - half, value + half

    def __call__(self, x: Tensor) -> Tensor:
        return self.linear(self.features(x))

    @classmethod
    def fit(cls, x: Tensor, y: Tensor, composition: Tensor, capacities: Sequence[str] = CAPACITIES, seed: int = 0) -> Readout:
        """The readout of the smallest capacity within one standard error of the best.

        Args:
            x: (n, d).
            y: (n, outputs).
            composition: (n,) ints, two different ones at least; what is left out is left out by them.
            capacities: in ascending order.
            seed: of the features.

        Returns:
            The readout, fitted to all episodes.
        """
        fold = folds_of(composition)
        fitted, told = {}, {}
        for capacity in capacities:
            features = Features.fit(x, capacity, seed)
            z = features(x)
            groups = [Moments.of(z[fold == g], y[fold == g]) for g in fold.unique().tolist()]
            penalty, told[capacity] = _left_out(groups)
            fitted[capacity] = features, Moments.total(groups), penalty
        best = max(told.values())  # where nothing varies, all are NaN, and the first is as good as any
        chosen = next((c for c in capacities if told[c][0] >= best[0] - best[1]), capacities[0])
        features, whole, penalty = fitted[chosen]
        return cls(features, whole.fit([penalty])[0], chosen, *told[chosen], told, len(fold.unique()))


def folds_of(composition: Tensor) -> Tensor:
    """(n,) ints: the group that each episode is left out with, `FOLDS` groups of whole compositions at most.

    Args:
        composition: (n,) ints.

    Returns:
        Groups from 0 on.
    """
    _, which = composition.unique(return_inverse=True)
    return which % FOLDS


def fold_by_composition(composition: Tensor) -> dict[int, int]:
    """`folds_of`, as composition -> group.

    Args:
        composition: (n,) ints.

    Returns:
        A group, from 0 on, for every composition.
    """
    return dict(zip(composition.tolist(), folds_of(composition).tolist(), strict=True))


def _left_out(groups: Sequence[Moments]) -> tuple[float, tuple[float, float]]:
    """(penalty, (R², standard error)) on groups that were left out."""
    whole = Moments.total(groups)
    errors = torch.stack([
        torch.stack([group.sse(r).sum() for r in (whole - group).fit(PENALTIES)]) for group in groups
    ])  # fmt: skip
    best = int(errors.sum(0).argmin())
    own, total = errors[:, best].cpu().numpy(), float(whole.sst.sum())
    if not total > 0:
        return PENALTIES[best], (float("nan"), float("nan"))
    n = len(own)
    se = float(np.sqrt(n) * own.std(ddof=1) / total) if n > 1 else float("inf")
    return PENALTIES[best], (1 - float(own.sum()) / total, se)


def control_task(y: Tensor, composition: Tensor, seed: int = 0) -> Tensor:
    """The codes of a control task (1909.03368): every composition gets another one's mean code, and none its own.

    A readout that learns it stores compositions; what a readout of a code reads beyond that is in the activations.

    Args:
        y: (n, outputs) codes.
        composition: (n,) ints.
        seed: of the order in which they are handed on.

    Returns:
        (n, outputs); of a single composition its own mean code.
    """
    _, which = composition.unique(return_inverse=True)
    count = int(which.max()) + 1
    means = torch.zeros(count, y.shape[1], dtype=torch.float64, device=y.device).index_add_(0, which, y.double())
    means /= torch.bincount(which, minlength=count)[:, None]
    ring = torch.randperm(count, generator=torch.Generator().manual_seed(seed)).to(y.device)
    order = torch.empty_like(ring)
    order[ring] = ring.roll(1)
    return means[order][which]
