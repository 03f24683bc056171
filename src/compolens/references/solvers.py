"""Least squares, ridge regression, and Newton's iteration towards the inverse of X^T X (2310.17086, section 3)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from compolens.foundation.configs import DoesNotApply, require, require_positive
from compolens.references.regression import SpectralLearner
from compolens.tasks.base import TaskFamily
from compolens.tasks.linear_regression import LinearRegression

RANK_TOLERANCE = 1e-13
"""Eigenvalues of X^T X below this share of the largest count as 0 (singular values of X below 3e-7 of the largest)."""


@dataclass(frozen=True)
class LeastSquares(SpectralLearner):
    """The weights of least norm among those of least squared error; the pseudo-inverse cuts at `RANK_TOLERANCE`."""

    @property
    def name(self) -> str:
        return "least squares"

    def gains(self, values: Tensor, shown: Tensor) -> Tensor:
        counted = values > RANK_TOLERANCE * values.amax(-1, keepdim=True)
        return torch.where(counted, 1 / torch.where(counted, values, 1), 0)


@dataclass(frozen=True)
class Ridge(SpectralLearner):
    """Least |Y - X w|² + l2 |w|².

    Args:
        l2: above 0 (None: noise² / the prior's mean second moment of a weight, which is the posterior mean for a prior N(0,
            variance I)).
    """

    l2: float | None = None

    def __post_init__(self) -> None:
        require(self.l2 is None or self.l2 > 0, f"Ridge: l2 must be positive or None, got {self.l2}; 0 is LeastSquares()")

    @property
    def name(self) -> str:
        return "ridge, Bayes penalty" if self.l2 is None else f"ridge, l2 {self.l2:g}"

    def why_not(self, task: TaskFamily) -> str:
        if isinstance(task, LinearRegression) and self.l2 is None and task.noise == 0:
            return "equals least squares without noise"
        if isinstance(task, LinearRegression) and self.l2 is None:
            try:
                task.mixture()
            except DoesNotApply as error:
                return str(error)
        return super().why_not(task)

    def for_task(self, task: LinearRegression) -> Ridge:
        if self.l2 is not None:
            return self
        log_weights, means, covariances = task.mixture()
        moments = means.square() + covariances.diagonal(dim1=1, dim2=2)
        return Ridge(task.noise**2 / float(log_weights.exp() @ moments.mean(1)))

    def gains(self, values: Tensor, shown: Tensor) -> Tensor:
        require(self.l2 is not None, "Ridge: l2 is None, so it depends on the family; take for_task(task), or give l2")
        assert self.l2 is not None
        return 1 / (values + self.l2)


def newton_gains(values: Tensor, start: Tensor, steps: int) -> Tensor:
    """M <- 2 M - M S M in S's eigendirections (2310.17086).

    Args:
        values: (..., r) eigenvalues of S.
        start: (..., r) eigenvalues of M_0.
        steps: how many.

    Returns:
        (..., r).
    """
    gains = start
    for _ in range(steps):
        gains = gains * (2 - values * gains)
    return gains


@dataclass(frozen=True)
class Newton(SpectralLearner):
    """w = M_k X^T Y with M_0 = (scale / |S S^T|_2) S, M_{k+1} = 2 M_k - M_k S M_k and S = X^T X; k = steps.

    The error 1 - value gain is squared by every step, so it takes 0 < scale < 2 to converge. 2310.17086 prints 2 itself: then
    the error of the largest eigenvalue is -1 at first, 1 ever after, and its direction gets weight 0. It is allowed, for
    comparison; 1 starts that direction at its solution. The start moves the count of steps; compare slopes, not offsets.

    Args:
        steps: k, how many.
        scale: of the start, in (0, 2].
    """

    steps: int = 3
    scale: float = 1.0

    def __post_init__(self) -> None:
        require_positive(self, "steps")
        require(0 < self.scale <= 2, f"Newton: scale must lie in (0, 2), or be 2 as printed in 2310.17086; got {self.scale}")

    @property
    def name(self) -> str:
        return f"Newton, {self.steps} step{'s' * (self.steps > 1)}" + (f", scale {self.scale:g}" if self.scale != 1 else "")

    def gains(self, values: Tensor, shown: Tensor) -> Tensor:
        largest = values.amax(-1, keepdim=True).clamp(min=1e-150)
        return newton_gains(values, self.scale * (values / largest) / largest, self.steps)


@dataclass(frozen=True)
class FrobeniusNewton(SpectralLearner):
    """Newton's iteration from M_0 = S / |S S^T|_F, which the code published with 2310.17086 uses.

    It is between one and two steps behind the printed start, and it converges.

    Args:
        steps: how many.
    """

    steps: int = 3

    def __post_init__(self) -> None:
        require_positive(self, "steps")

    @property
    def name(self) -> str:
        return f"Newton from |SSᵀ|_F, {self.steps} step{'s' * (self.steps > 1)}"

    def gains(self, values: Tensor, shown: Tensor) -> Tensor:
        largest = values.amax(-1, keepdim=True).clamp(min=1e-150)
        relative = values / largest
        norm = relative.pow(4).sum(-1, keepdim=True).sqrt().clamp(min=1e-150)
        return newton_gains(values, relative / norm / largest, self.steps)
