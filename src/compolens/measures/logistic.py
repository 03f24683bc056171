"""Multinomial logistic readouts of several labels at once, and how much of the labels they explain.

All labels are read from the same features, so they share one eigendecomposition: with the bound of 1992 on the curvature of a
softmax (Böhning), every step is a solve by X'X that is diagonal in its eigenvectors. Steps are Nesterov's, restarted where the
loss rises.

How much is explained is the share of deviance, 1 - log-likelihood / log-likelihood of the class frequencies: what R² is for
classes. 1 is perfect, 0 the frequencies, and it may be negative.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from compolens.measures.intervals import Replicates, Scale, student_interval

PENALTIES = (1.0, 10.0, 100.0, 1000.0)
"""Of weights on standardised features, in nats per squared weight, over two: 1 is scikit-learn's C = 1."""
STEPS = 40
"""Most steps of a fit; few are needed where the penalty decides."""
TOLERANCE = 5e-4
"""A fit ends where no weight's gradient exceeds this, per row."""


@dataclass(frozen=True)
class LogisticReadouts:
    """Frozen logistic readouts, one a label, side by side, float64.

    Args:
        weight: (features, all classes of all labels), on raw features.
        bias: (all classes,).
        classes: how many classes each label has.
        prior: (all classes,) log frequencies of the fit.
        l2: the penalty.
    """

    weight: Tensor
    bias: Tensor
    classes: tuple[int, ...]
    prior: Tensor
    l2: float

    def log_probabilities(self, x: Tensor) -> list[Tensor]:
        """What it says of features.

        Args:
            x: (n, features).

        Returns:
            For every label, (n, classes) log probabilities.
        """
        return [part.log_softmax(1) for part in (x.double() @ self.weight + self.bias).split(self.classes, 1)]

    def answers(self, x: Tensor) -> Tensor:
        """The class that the features speak for most, the frequencies of the fit set aside: best for balanced accuracy.

        Args:
            x: (n, features).

        Returns:
            (n, labels) class numbers.
        """
        parts = (x.double() @ self.weight + self.bias - self.prior).split(self.classes, 1)
        return torch.stack([part.argmax(1) for part in parts], 1)

    def part(self, first: int, stop: int) -> LogisticReadouts:
        """The readouts of some of the labels.

        Args:
            first: number of the first label.
            stop: number of the label behind the last.

        Returns:
            Their readouts.
        """
        low, high = sum(self.classes[:first]), sum(self.classes[:stop])
        columns = slice(low, high)
        chosen = self.classes[first:stop]
        return LogisticReadouts(self.weight[:, columns], self.bias[columns], chosen, self.prior[columns], self.l2)

    @classmethod
    def fit(
        cls, x: Tensor, y: Tensor, classes: Sequence[int], penalties: Sequence[float] = (1.0,),
        steps: int = STEPS, tolerance: float = TOLERANCE,
    ) -> list[LogisticReadouts]:  # fmt: skip
        """Fit every label at every penalty.

        Args:
            x: (n, features).
            y: (n, labels) class numbers.
            classes: how many classes each label has.
            penalties: l2, above 0; each minimises nats + l2/2 |w|², summed over rows, with an unpenalised intercept, on
                features scaled to unit variance.
            steps: most steps of a fit.
            tolerance: it ends where no weight's gradient exceeds this, per row.

        Returns:
            One per penalty, in their order.
        """
        x = x.double()
        mean, scale = x.mean(0), x.std(0, correction=0)
        floor = 1e-6 * x.square().mean(0).sqrt().clamp(min=1e-150)  # below it, a constant's rounding noise
        scale = torch.where(scale > floor, scale, torch.inf)
        x = (x - mean) / scale
        values, vectors = torch.linalg.eigh(x.T @ x)
        kept = values > values[-1].clamp(min=0) * len(values) * 1e-12
        values, vectors = values[kept], vectors[:, kept]
        z = x @ vectors
        wanted = torch.cat([torch.nn.functional.one_hot(y[:, i], k) for i, k in enumerate(classes)], 1).to(z)
        prior = ((wanted.sum(0) + 0.5) / (len(z) + 0.5)).log()
        fits: dict[float, LogisticReadouts] = {}
        start = z.new_zeros(z.shape[1], wanted.shape[1]), prior.clone()
        for l2 in sorted(set(penalties), reverse=True):  # each begins where the stronger one ended
            start = _minimum(z, wanted, tuple(classes), values, l2, start, (steps, tolerance))
            weight = (vectors @ start[0]) / scale[:, None]
            fits[l2] = cls(weight, start[1] - mean @ weight, tuple(classes), prior, float(l2))
        return [fits[l2] for l2 in penalties]


def _minimum(
    z: Tensor,
    wanted: Tensor,
    classes: tuple[int, ...],
    values: Tensor,
    l2: float,
    start: tuple[Tensor, Tensor],
    until: tuple[int, float],
) -> tuple[Tensor, Tensor]:
    """(weight, bias) on uncorrelated features z with summed squares `values`."""
    weight, bias = start
    rate, per_bias = 1 / (values / 2 + l2)[:, None], 2 / len(z)
    ahead, momentum = (weight, bias), 1.0
    for _ in range(until[0]):
        logits = z @ ahead[0] + ahead[1]
        if len(set(classes)) == 1:  # one call for all labels
            off = _shares(logits.unflatten(1, (-1, classes[0]))).flatten(1) - wanted
        else:
            off = torch.cat([_shares(part) for part in logits.split(classes, 1)], 1) - wanted
        slope, drift = z.T @ off + l2 * ahead[0], off.sum(0)
        new = ahead[0] - rate * slope, ahead[1] - per_bias * drift
        if max(_largest(slope), _largest(drift)) < until[1] * len(z):
            return new
        back = float((slope * (new[0] - weight)).sum() + (drift * (new[1] - bias)).sum()) > 0
        following = 1.0 if back else (1 + (1 + 4 * momentum**2) ** 0.5) / 2
        beta = 0.0 if back else (momentum - 1) / following
        ahead = new[0] + beta * (new[0] - weight), new[1] + beta * (new[1] - bias)
        weight, bias, momentum = *new, following
    return weight, bias


def _shares(logits: Tensor) -> Tensor:
    """Softmax over the last dimension; torch's own takes five times as long where that has few entries."""
    powers = (logits - logits.amax(-1, keepdim=True)).exp_()
    return powers.div_(powers.sum(-1, keepdim=True))


def _largest(values: Tensor) -> float:
    return float(values.abs().max()) if values.numel() else 0.0


class Explained(NamedTuple):
    """Labels by group (composition): what readouts say of them, in sums that can be resampled.

    Args:
        nats: (groups, labels) summed minus log probabilities of the true classes.
        counts: (groups, all classes) how often each class occurs.
        confusion: per label, (groups, classes, classes) [true, answered].
        exact: (groups,) rows of which every label is answered rightly.
        rows: (groups,) rows.
    """

    nats: np.ndarray
    counts: np.ndarray
    confusion: list[np.ndarray]
    exact: np.ndarray
    rows: np.ndarray

    @classmethod
    def of(cls, said: Sequence[Tensor], answers: Tensor, y: Tensor, group: Tensor) -> Explained:
        """Sums over the rows of every group.

        Args:
            said: for every label, (n, classes) log probabilities.
            answers: (n, labels) the classes answered.
            y: (n, labels) the true classes.
            group: (n,) ints.

        Returns:
            The sums, groups in ascending order.
        """
        which = torch.unique(group, return_inverse=True)[1]
        member = torch.nn.functional.one_hot(which).double()
        nats = torch.stack([-part.gather(1, y[:, [i]])[:, 0] for i, part in enumerate(said)], 1)
        hot = [torch.nn.functional.one_hot(y[:, i], part.shape[1]).double() for i, part in enumerate(said)]
        told = [torch.nn.functional.one_hot(answers[:, i], part.shape[1]).double() for i, part in enumerate(said)]
        found = [torch.einsum("ng,nt,na->gta", member, t, a).cpu().numpy() for t, a in zip(hot, told, strict=True)]
        exact = member.T @ (answers == y).all(1).double()
        counts = (member.T @ torch.cat(hot, 1)).cpu().numpy()
        return cls((member.T @ nats).cpu().numpy(), counts, found, exact.cpu().numpy(), member.sum(0).cpu().numpy())

    @staticmethod
    def stacked(parts: Sequence[Explained]) -> Explained:
        """The same labels of other groups, one below the other.

        Args:
            parts: sums over different groups, at least one.

        Returns:
            The sums over all groups.
        """
        return Explained(
            np.concatenate([part.nats for part in parts]),
            np.concatenate([part.counts for part in parts]),
            [np.concatenate(found) for found in zip(*(part.confusion for part in parts), strict=True)],
            np.concatenate([part.exact for part in parts]),
            np.concatenate([part.rows for part in parts]),
        )

    def per_label(self, weight: np.ndarray | None = None) -> np.ndarray:
        """The share of deviance explained of every label; NaN of one that has a single class.

        Args:
            weight: (draws, groups) how often each group counts (None: once).

        Returns:
            (labels,), or (draws, labels).
        """
        weight = np.ones(len(self.nats)) if weight is None else weight
        nats, counts = weight @ self.nats, weight @ self.counts
        stops = np.cumsum([len(one[0]) for one in self.confusion])[:-1]
        null = np.stack([_surprise(part) for part in np.split(counts, stops, axis=-1)], -1)
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.where(null > 1e-9, 1 - nats / null, np.nan)

    def r2(self, draws: int = 1000) -> tuple[float, float, float]:
        """Mean over labels with its 95 % interval over groups, as `readouts.grouped_r2` has it.

        Args:
            draws: of the bootstrap.

        Returns:
            (mean, lo, hi).
        """
        whole = self.per_label()
        if np.isnan(whole).all():
            return np.nan, np.nan, np.nan
        found = self.per_label(_drawn(len(self.nats), draws))
        means = np.nanmean(found[~np.isnan(found).all(1)], axis=1)
        value = float(np.nanmean(whole))
        return value, *student_interval(value, means, len(self.nats), Scale.LOG_LACK, Replicates.BOOTSTRAP)

    def balanced_accuracy(self, draws: int = 1000) -> tuple[float, float, float]:
        """Mean over labels of balanced accuracy with its 95 % interval over groups, as `r2` has it.

        Args:
            draws: of the bootstrap.

        Returns:
            (mean, lo, hi).
        """
        weight = np.concatenate([np.ones((1, len(self.nats))), _drawn(len(self.nats), draws)])
        found = []
        for one in self.confusion:
            total, right = weight @ one.sum(-1), weight @ np.diagonal(one, axis1=-2, axis2=-1)
            recall = np.where(total > 0, right / np.maximum(total, 1), np.nan)
            found.append(np.nanmean(recall, -1))
        means = np.mean(found, axis=0)
        value = float(means[0])
        return value, *student_interval(value, means[1:], len(self.nats), Scale.LOG_LACK, Replicates.BOOTSTRAP)


def _surprise(counts: np.ndarray) -> np.ndarray:
    """Nats of classes under their own frequencies, summed: (..., classes) -> (...)."""
    share = counts / np.maximum(counts.sum(-1, keepdims=True), 1)
    return -(counts * np.log(np.where(share > 0, share, 1))).sum(-1)


@lru_cache(maxsize=8)
def _drawn(groups: int, draws: int) -> np.ndarray:
    """(draws, groups): how often each group is drawn with replacement; the same for every number of a table."""
    pick = np.random.default_rng(0).integers(groups, size=(draws, groups))
    return np.stack([np.bincount(one, minlength=groups) for one in pick]).astype(float)


def leave_groups_out(
    x: Tensor, y: Tensor, classes: Sequence[int], group: Tensor, penalties: Sequence[float], folds: int = 2
) -> tuple[float, float]:
    """The penalty whose readouts predict left-out groups best, groups left out in `folds` parts.

    Args:
        x: (n, features).
        y: (n, labels) class numbers.
        classes: how many classes each label has.
        group: (n,) ints, compositions.
        penalties: l2 to choose from.
        folds: parts.

    Returns:
        (the penalty, its share of deviance explained on left-out groups).
    """
    which = torch.unique(group, return_inverse=True)[1]
    parts = min(folds, int(which.max()) + 1)
    if parts < 2:
        return float(penalties[-1]), float("nan")
    nats = torch.zeros(len(penalties), dtype=torch.float64)
    for fold in range(parts):
        out = which % parts == fold
        for i, readout in enumerate(LogisticReadouts.fit(x[~out], y[~out], classes, penalties)):
            said = readout.log_probabilities(x[out])
            nats[i] -= sum(float(part.gather(1, y[out][:, [k]]).sum()) for k, part in enumerate(said))
    hot = torch.cat([torch.nn.functional.one_hot(y[:, i], k) for i, k in enumerate(classes)], 1).double().sum(0)
    null = sum(float(_surprise(part.cpu().numpy())) for part in hot.split(tuple(classes)))
    best = int(nats.argmin())
    return float(penalties[best]), float(1 - nats[best] / null) if null > 0 else float("nan")
