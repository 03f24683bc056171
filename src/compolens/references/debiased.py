"""One step of gradient descent on centred inputs: what a softmax layer with heads of both signs comes to (2503.12734)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import torch
from torch import Tensor

from compolens.foundation.configs import ConfigError, require
from compolens.references.gradient_descent import tuning_questions
from compolens.references.regression import LinearLearner, checked
from compolens.tasks.linear_regression import LinearRegression


@dataclass(frozen=True)
class DebiasedGradientDescent(LinearLearner):
    """w = (eta / n) sum_i (x_i - mean x) y_i^T (2503.12734).

    A softmax over the demonstrations subtracts their mean: to first order in its scores it weighs x_i by 1/n + (x_i - mean
    x).q / n, and what heads of opposite sign leave is the second term.

    Args:
        eta: rate, above 0 (None: tuned on training episodes, for which there is a closed form).
    """

    eta: float | None = None

    def __post_init__(self) -> None:
        require(self.eta is None or self.eta > 0, f"DebiasedGradientDescent: eta must be positive or None, got {self.eta}")

    @property
    def name(self) -> str:
        return "debiased GD, 1 step"

    def for_task(self, task: LinearRegression) -> DebiasedGradientDescent:
        return self if self.eta is not None else _tuned(task)

    def weights(self, x: Tensor, y: Tensor, lengths: Sequence[int]) -> Tensor:
        if self.eta is None:
            raise ConfigError("DebiasedGradientDescent: eta is None, so it is tuned; take for_task(task), or give eta")
        x, y = checked(x, y, lengths)
        count = torch.arange(x.shape[1] + 1, dtype=torch.float64, device=x.device).clamp(min=1)
        xy, sum_x, sum_y = (_from_zero(part) for part in (x[..., None] * y[:, :, None], x, y))
        centred = xy - sum_x[..., None] * sum_y[:, :, None] / count[:, None, None]
        return (self.eta / count[:, None, None] * centred)[:, list(lengths)]


def _from_zero(terms: Tensor) -> Tensor:
    """(batch, N + 1, …) sums of the first 0, 1, …, N terms (batch, N, …)."""
    return torch.cat([torch.zeros_like(terms[:, :1]), terms.cumsum(1)], dim=1)


@lru_cache(maxsize=64)
def _tuned(task: LinearRegression) -> DebiasedGradientDescent:
    """The rate of least squared error: answers are linear in it."""
    *prompts, targets = tuning_questions(task)
    answers = DebiasedGradientDescent(1.0).answers(*prompts)
    eta = float((answers * targets).sum() / answers.square().sum().clamp(min=1e-300))
    return replace(DebiasedGradientDescent(), eta=float(f"{eta:.6g}"))
