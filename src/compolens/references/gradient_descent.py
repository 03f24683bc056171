"""Gradient descent on a prompt's own regression loss, and GD++, which also transforms its inputs (2212.07677, A.10).

Both are what layers of linear self-attention can compute. Their rates, where none are given, are those with the least squared
error on training episodes: one line search per family, for all prompt lengths together.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from compolens.foundation.configs import ConfigError, require, require_positive
from compolens.references.regression import SpectralLearner, Spectrum, checked
from compolens.tasks.linear_regression import LinearRegression

TUNING_ANSWERS = 16384
"""How many training answers rates are tuned on (at least 256 episodes)."""


def descent_gains(values: Tensor, shown: Tensor, steps: int, eta: float | Tensor) -> Tensor:
    """w <- w + (eta / n) (X^T Y - X^T X w) from w = 0.

    Doubles the steps by 1 - value gain_2k = (1 - value gain_k)², so that thousands of steps cost no more than a dozen.

    Args:
        values: (..., r) eigenvalues of X^T X.
        shown: n, broadcasts to `values`.
        steps: how many.
        eta: rate.

    Returns:
        (..., r).
    """
    rate = eta / shown.clamp(min=1)
    gains = torch.zeros_like(values)
    for bit in f"{steps:b}":
        gains = gains * (2 - values * gains)
        if bit == "1":
            gains = gains * (1 - values * rate) + rate
    return gains


def plus_plus_gains(values: Tensor, shown: Tensor, steps: int, eta: float | Tensor, gamma: float | Tensor) -> Tensor:
    """Every step moves the answers by eta / n, then the inputs of demonstrations and query by x <- x - gamma X^T X x.

    With t the factor of the inputs and q that of the demonstrations' remaining answers in an eigendirection: the query's
    answer gains (eta / n) t² q; q shrinks by 1 - (eta / n) value t²; t by 1 - gamma value t².

    Args:
        values: (..., r) eigenvalues of X^T X.
        shown: n, broadcasts to `values`.
        steps: how many.
        eta: rate of the answers.
        gamma: rate of the inputs.

    Returns:
        (..., r).
    """
    rate = eta / shown.clamp(min=1)
    inputs, remaining, gains = torch.ones_like(values), torch.ones_like(values), torch.zeros_like(values)
    for _ in range(steps):
        square = inputs.square()
        gains = gains + rate * square * remaining
        remaining = remaining * (1 - rate * values * square)
        inputs = inputs * (1 - gamma * values * square)
    return gains


def tuning_questions(task: LinearRegression) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Training episodes of `task`, always the same ones: x, y, asked, shown as `RegressionLearner.answers` takes them, and the
    right answers (batch, A, d_y)."""
    n = max(256, TUNING_ANSWERS // len(task.answers))
    episodes = task.sample(n, "train", task.rng("reference", "train"))
    return *task.prompts(episodes), episodes.targets[:, list(task.answers)]


class Trials(NamedTuple):
    """Questions whose answers are known, in eigencoordinates: what a gain is worth can be told without any matrix.

    Args:
        values: (rows, d_x) eigenvalues.
        parts: (rows, d_x, d_y): an answer is sum_i gain_i parts_i.
        shown: (rows, 1), how many demonstrations.
        targets: (rows, d_y), the right answers.
    """

    values: Tensor
    parts: Tensor
    shown: Tensor
    targets: Tensor

    @classmethod
    def of(cls, x: Tensor, y: Tensor, asked: Tensor, shown: Tensor, targets: Tensor) -> Trials:
        """Questions in eigencoordinates.

        Args:
            x: as in `RegressionLearner.answers`.
            y: as there.
            asked: as there.
            shown: as there.
            targets: (batch, A, d_y).

        Returns:
            A row per question.
        """
        x, y = checked(x, y, shown.tolist())
        pieces = []
        for n in shown.unique().tolist():
            at = (shown == n).nonzero()[:, 0].to(x.device)
            spectrum = Spectrum.of(x[:, :n], y[:, :n])
            parts = (asked[:, at].double() @ spectrum.basis)[..., None] * spectrum.coordinates[:, None]
            missing = x.shape[2] - parts.shape[2]  # directions that no demonstration has: eigenvalue 0
            values = torch.nn.functional.pad(spectrum.values, (0, missing)).repeat_interleave(len(at), dim=0)
            parts = torch.nn.functional.pad(parts, (0, 0, 0, missing)).flatten(0, 1)
            pieces.append((values, parts, spectrum.shown.expand(len(values), 1), targets[:, at].double().flatten(0, 1)))
        return cls(*(torch.cat(piece) for piece in zip(*pieces, strict=True)))

    def loss(self, gains: Tensor) -> Tensor:
        """The mean squared error of `gains` (rows, d_x)."""
        return ((gains[..., None] * self.parts).sum(1) - self.targets).square().mean()


def tune_rates(loss: Callable[[Tensor], Tensor], starts: Tensor) -> tuple[float, ...]:
    """The positive rates of least loss: the best of some starts, refined by L-BFGS on their logarithms.

    They are given to six digits, so that rounding noise, which a line search amplifies, does not make equal calls unequal.

    Args:
        loss: rates (k,) -> scalar.
        starts: (n, k).

    Returns:
        k rates.
    """
    with torch.no_grad():
        losses = torch.stack([loss(start) for start in starts]).nan_to_num(torch.inf)
    least, best = losses.min(), starts[losses.argmin()]
    logs = best.log().requires_grad_()
    optimizer = torch.optim.LBFGS([logs], max_iter=60, tolerance_change=1e-12, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        logs.grad = torch.zeros_like(logs)
        value = loss(logs.exp()) / least.clamp(min=1e-300)
        if not value.isfinite():  # so many steps overflow where they diverge: a wall for the line search
            return torch.full_like(value, 1e30)
        value.backward()
        return value

    optimizer.step(closure)
    with torch.no_grad():
        refined = logs.exp()
        return tuple(float(f"{rate:.6g}") for rate in (refined if loss(refined) <= least else best).tolist())


@dataclass(frozen=True)
class _Tuned(SpectralLearner):
    @abstractmethod
    def tuned(self, trials: Trials) -> SpectralLearner:
        """This learner with the rates that are None chosen for the least squared error."""

    @abstractmethod
    def _is_tuned(self) -> bool:
        """Whether every rate is a number."""

    def for_task(self, task: LinearRegression) -> SpectralLearner:
        return self if self._is_tuned() else _tuned_for(self, task)


@lru_cache(maxsize=64)
def _tuned_for(learner: _Tuned, task: LinearRegression) -> SpectralLearner:
    return learner.tuned(Trials.of(*tuning_questions(task)))


def _given(learner: object, name: str, value: float | None) -> float:
    if value is None:
        raise ConfigError(
            f"{type(learner).__name__}: {name} is None, so it is tuned; take for_task(task) or tuned(trials), or give {name}"
        )
    return value


def _grid(low: float, high: float, n: int) -> Tensor:
    return torch.logspace(low, high, n, dtype=torch.float64)


@dataclass(frozen=True)
class GradientDescent(_Tuned):
    """Steps of gradient descent from 0 on half the mean squared error of the n demonstrations shown.

    The normalisation is P = eta / n of 2212.07677.

    Args:
        steps: how many.
        eta: rate, above 0 (None: tuned). With hundreds of steps the tuned one is at the edge of divergence on training
            episodes, so that prompts of larger inputs may diverge; give such learners a rate.
    """

    steps: int = 1
    eta: float | None = None

    def __post_init__(self) -> None:
        require_positive(self, "steps")
        require(self.eta is None or self.eta > 0, f"GradientDescent: eta must be positive or None, got {self.eta}")

    @property
    def name(self) -> str:
        return f"GD, {self.steps} step{'s' * (self.steps > 1)}"

    def _is_tuned(self) -> bool:
        return self.eta is not None

    def gains(self, values: Tensor, shown: Tensor) -> Tensor:
        return descent_gains(values, shown, self.steps, _given(self, "eta", self.eta))

    def tuned(self, trials: Trials) -> GradientDescent:
        values, _, shown, _ = trials
        curvature = (values.mean(-1, keepdim=True) / shown.clamp(min=1)).mean()
        starts = _grid(-2, 1, 61)[:, None] / curvature
        (eta,) = tune_rates(lambda r: trials.loss(descent_gains(values, shown, self.steps, r[0])), starts)
        return replace(self, eta=eta)


@dataclass(frozen=True)
class GradientDescentPlusPlus(_Tuned):
    """GD++: gradient descent whose steps also move every input, x <- (I - gamma X^T X) x, which evens out the eigenvalues of
    X^T X.

    Args:
        steps: how many.
        eta: rate of the answers; eta / n multiplies the sum over demonstrations, as in 2212.07677 (None: tuned, with gamma).
        gamma: rate of the inputs; multiplies the sum over demonstrations (None: tuned, with eta).
    """

    steps: int = 2
    eta: float | None = None
    gamma: float | None = None

    def __post_init__(self) -> None:
        require_positive(self, "steps")
        require((self.eta is None) == (self.gamma is None), "GradientDescentPlusPlus: give both eta and gamma, or neither")
        require(self.eta is None or self.eta > 0, f"GradientDescentPlusPlus: eta must be positive or None, got {self.eta}")
        require(
            self.gamma is None or self.gamma >= 0, f"GradientDescentPlusPlus: gamma must not be negative, got {self.gamma}"
        )

    @property
    def name(self) -> str:
        return f"GD++, {self.steps} step{'s' * (self.steps > 1)}"

    def _is_tuned(self) -> bool:
        return self.eta is not None

    def gains(self, values: Tensor, shown: Tensor) -> Tensor:
        eta, gamma = _given(self, "eta", self.eta), _given(self, "gamma", self.gamma)
        return plus_plus_gains(values, shown, self.steps, eta, gamma)

    def tuned(self, trials: Trials) -> GradientDescentPlusPlus:
        values, _, shown, _ = trials
        curvature = (values.mean(-1, keepdim=True) / shown.clamp(min=1)).mean()
        etas, gammas = _grid(-1.3, 0.7, 15) / curvature, _grid(-2.3, 0, 10) / values.mean()
        starts = torch.cartesian_prod(etas, gammas)
        eta, gamma = tune_rates(lambda r: trials.loss(plus_plus_gains(values, shown, self.steps, r[0], r[1])), starts)
        return replace(self, eta=eta, gamma=gamma)
