"""Linear regression whose learner says how sure it is: the answer is a mean and a variance (2405.15115).

Episodes are those of `LinearRegression`. A prediction has twice the width of an answer: its mean, and s, of which
the variance is softplus(s) plus a floor. Training minimises the negative log-likelihood of a normal law, so the best learner
says the mean and the variance of the posterior predictive distribution, as far as that is normal. Under a shifted prior the
variance tells which prior was learned, also where means agree.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor
from torch.nn.functional import softplus

from compolens.foundation.configs import require
from compolens.tasks.linear_regression import LinearRegression

FLOOR = 1e-4
"""The least variance that can be said."""


@dataclass(frozen=True)
class UncertainRegression(LinearRegression):
    """`LinearRegression`, answered by a mean and a variance; its other fields are as there. The score is R² of the means.

    >>> UncertainRegression(d_y=3).d_out
    6

    Args:
        noise: standard deviation of what is added to every answer, above 0.
        loss_scale: 1, since the loss is a log-likelihood.
    """

    noise: float = 0.5
    loss_scale: float = 1.0

    missing: ClassVar[dict[str, str]] = {
        **LinearRegression.missing,
        "gd_equivalence": "its answers are means and variances; train LinearRegression for the equivalence of answers",
        "dual_model": "its answers are means and variances; train LinearRegression for the dual model of answers",
    }

    def __post_init__(self) -> None:
        super().__post_init__()
        name = type(self).__name__
        require(self.noise > 0, f"{name}: noise must be above 0, or no variance is the best, got {self.noise}")
        require(self.loss_scale == 1, f"{name}: the loss is a log-likelihood; leave loss_scale at 1, got {self.loss_scale}")

    @property
    def d_out(self) -> int:
        return 2 * self.d_y

    def describe_prediction(self, prediction: Tensor) -> tuple[Tensor, Tensor]:
        """What a prediction says.

        Args:
            prediction: (..., 2 d_y).

        Returns:
            Means and variances, (..., d_y) each.
        """
        mean, raw = prediction.split(self.d_y, dim=-1)
        return mean, softplus(raw) + FLOOR

    def log_likelihood(self, prediction: Tensor, targets: Tensor) -> Tensor:
        """The log density of the targets at the answers, in nats.

        Args:
            prediction: (batch, seq, 2 d_y).
            targets: (batch, seq, d_y).

        Returns:
            (batch, answer, d_y).
        """
        at = list(self.answers)
        mean, variance = self.describe_prediction(prediction[:, at])
        return normal_log_density(targets[:, at], mean, variance)

    def loss(self, prediction: Tensor, targets: Tensor) -> Tensor:
        """The mean negative log-likelihood of the answers, in nats."""
        return -self.log_likelihood(prediction, targets).mean()

    def errors(self, prediction: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        return super().errors(prediction[..., : self.d_y], targets)


def normal_log_density(y: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
    """log N(y; mean, variance), in nats.

    Args:
        y: any shape.
        mean: the same shape.
        variance: the same shape, above 0.

    Returns:
        The same shape.
    """
    return -((y - mean).square() / variance + variance.log() + math.log(2 * math.pi)) / 2
