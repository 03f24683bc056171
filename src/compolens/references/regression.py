"""In-context linear regression without training: what all learners share, and the spectrum that most of them filter.

A learner sees demonstrations X (n, d_x), Y (n, d_y), in order, and answers x -> w^T x. With S = X^T X = V diag(values) V^T,
many learners are w = V diag(gain(values)) V^T X^T Y and differ in the gain alone: 1 / value is least squares, 1 / (value + l2)
is ridge regression, and steps of gradient descent (2212.07677), of GD++ (there, appendix A.10) and of Newton's iteration
(2310.17086) are polynomials. So one eigendecomposition serves them all. Everything is float64, without intercept.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from compolens.foundation.configs import require
from compolens.references.base import Reference
from compolens.tasks.base import TaskFamily
from compolens.tasks.episodes import Episodes
from compolens.tasks.linear_regression import LinearRegression

CHUNK = 2048
"""Episodes worked on at a time: bounds memory to some 100 MB at 40 prompt lengths and 20 dimensions."""


@dataclass(frozen=True)
class RegressionLearner(Reference):
    """A learner of in-context linear regression; `answers` is pure, `predict` reads its arguments off episodes."""

    def why_not(self, task: TaskFamily) -> str:
        return "" if isinstance(task, LinearRegression) else "its episodes are no linear regression"

    def for_task(self, task: LinearRegression) -> RegressionLearner:
        """This learner with what it leaves open (a rate, a penalty, a prior) chosen for `task`."""
        return self

    @abstractmethod
    def answers(self, x: Tensor, y: Tensor, asked: Tensor, shown: Tensor) -> Tensor:
        """What the learner answers to inputs, from the demonstrations before them.

        Args:
            x: (batch, N, d_x) demonstrations.
            y: (batch, N, d_y).
            asked: (batch, A, d_x) inputs.
            shown: (A,) long, from 0 to N: answer a uses the first shown[a] demonstrations.

        Returns:
            (batch, A, d_y) float64.
        """

    def predict(self, task: TaskFamily, episodes: Episodes) -> Tensor:
        assert isinstance(task, LinearRegression)
        learner, prompts = self.for_task(task), task.prompts(episodes)
        prediction = episodes.targets.new_zeros(len(episodes.targets), task.seq, task.d_out)
        at = list(task.answers)
        for start in range(0, len(prediction), CHUNK):
            x, y, asked = (part[start : start + CHUNK] for part in prompts[:3])
            prediction[start : start + CHUNK, at, : task.d_y] = learner.answers(x, y, asked, prompts.shown).to(prediction)
        return prediction


@dataclass(frozen=True)
class LinearLearner(RegressionLearner):
    """A learner whose answers are linear in the input asked for."""

    @abstractmethod
    def weights(self, x: Tensor, y: Tensor, lengths: Sequence[int]) -> Tensor:
        """The weights after the first n demonstrations.

        Args:
            x: (batch, N, d_x) demonstrations.
            y: (batch, N, d_y).
            lengths: numbers n, from 0 to N.

        Returns:
            (batch, length, d_x, d_y) float64.
        """

    def answers(self, x: Tensor, y: Tensor, asked: Tensor, shown: Tensor) -> Tensor:
        return all_answers([self], x, y, asked, shown)[0]


class Spectrum(NamedTuple):
    """The eigendecomposition of prompts of one length, in whichever of X^T X and X X^T is smaller.

    w = basis diag(gain) coordinates.

    Args:
        values: (batch, r) eigenvalues, non-negative, ascending.
        basis: (batch, d_x, r): V, or, with X X^T = U diag(values) U^T, X^T U.
        coordinates: (batch, r, d_y): V^T X^T Y, or U^T Y.
        shown: (), how many demonstrations.
    """

    values: Tensor
    basis: Tensor
    coordinates: Tensor
    shown: Tensor

    @classmethod
    def of(cls, x: Tensor, y: Tensor) -> Spectrum:
        """The spectrum of prompts, all of whose demonstrations are shown.

        Args:
            x: (batch, n, d_x); n may be 0.
            y: (batch, n, d_y).

        Returns:
            The spectrum.
        """
        shown = torch.tensor(float(x.shape[1])).to(x)  # of ints, eta / shown would be float32
        if x.shape[1] == 0:  # one demonstration that says nothing has the same weights
            x, y = x.new_zeros(len(x), 1, x.shape[2]), y.new_zeros(len(y), 1, y.shape[2])
        if x.shape[1] < x.shape[2]:
            values, vectors = torch.linalg.eigh(x @ x.mT)
            return cls(values.clamp(min=0), x.mT @ vectors, vectors.mT @ y, shown)
        values, vectors = torch.linalg.eigh(x.mT @ x)
        return cls(values.clamp(min=0), vectors, vectors.mT @ (x.mT @ y), shown)

    def weights(self, gains: Tensor) -> Tensor:
        """The weights (batch, d_x, d_y) that `gains` (batch, r) give."""
        return (self.basis * gains[:, None]) @ self.coordinates


@dataclass(frozen=True)
class SpectralLearner(LinearLearner):
    """A linear learner that multiplies every eigendirection of X^T Y by a gain."""

    @abstractmethod
    def gains(self, values: Tensor, shown: Tensor) -> Tensor:
        """What the learner makes of the eigenvalues.

        Args:
            values: (..., r) eigenvalues of X^T X.
            shown: how many demonstrations are shown, broadcasts to `values`.

        Returns:
            (..., r).
        """

    def weights(self, x: Tensor, y: Tensor, lengths: Sequence[int]) -> Tensor:
        return all_weights([self], x, y, lengths)[0]


def checked(x: Tensor, y: Tensor, lengths: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Demonstrations in float64, after checking that the first n of them can be shown.

    Args:
        x: (batch, N, d_x).
        y: (batch, N, d_y).
        lengths: numbers n, from 0 to N.

    Returns:
        x and y.

    Raises:
        ConfigError: the shapes or lengths do not fit.
    """
    require(
        x.ndim == 3 and y.ndim == 3 and x.shape[:2] == y.shape[:2],
        f"demonstrations are x (batch, N, d_x) and y (batch, N, d_y), got {tuple(x.shape)} and {tuple(y.shape)}",
    )
    wrong = [n for n in lengths if not 0 <= n <= x.shape[1]]
    require(not wrong, f"{x.shape[1]} demonstrations are given, so lengths go from 0 to {x.shape[1]}; got {wrong}")
    return x.double(), y.double()


def all_weights(learners: Sequence[LinearLearner], x: Tensor, y: Tensor, lengths: Sequence[int]) -> list[Tensor]:
    """`LinearLearner.weights` of every learner; spectral learners share one spectrum per prompt length.

    Args:
        learners: the learners.
        x: (batch, N, d_x) demonstrations.
        y: (batch, N, d_y).
        lengths: numbers n, from 0 to N.

    Returns:
        (batch, length, d_x, d_y) per learner.
    """
    x, y = checked(x, y, lengths)
    found = [x.new_zeros(len(x), len(lengths), x.shape[2], y.shape[2]) for _ in learners]
    pairs = list(zip(learners, found, strict=True))
    for start in range(0, len(x), CHUNK):
        part = slice(start, start + CHUNK)
        for learner, weights in pairs:
            if not isinstance(learner, SpectralLearner):
                weights[part] = learner.weights(x[part], y[part], lengths)
        filters = [(learner, weights[part]) for learner, weights in pairs if isinstance(learner, SpectralLearner)]
        if filters:
            _filter(filters, x[part], y[part], lengths)
    return found


def all_answers(learners: Sequence[LinearLearner], x: Tensor, y: Tensor, asked: Tensor, shown: Tensor) -> list[Tensor]:
    """`RegressionLearner.answers` of every learner, from weights that share their spectrum.

    Args:
        learners: the learners.
        x: (batch, N, d_x) demonstrations.
        y: (batch, N, d_y).
        asked: (batch, A, d_x) inputs.
        shown: (A,) long, from 0 to N.

    Returns:
        (batch, A, d_y) per learner.
    """
    lengths, place = shown.unique(return_inverse=True)
    at, asked = place.to(x.device), asked.double()
    found = all_weights(learners, x, y, lengths.tolist())
    return [torch.einsum("bad,bade->bae", asked, weights[:, at]) for weights in found]


def _filter(filters: list[tuple[SpectralLearner, Tensor]], x: Tensor, y: Tensor, lengths: Sequence[int]) -> None:
    """Fills in the weights (batch, length, d_x, d_y) of each learner."""
    for i, n in enumerate(lengths):
        spectrum = Spectrum.of(x[:, :n], y[:, :n])
        for learner, weights in filters:
            weights[:, i] = spectrum.weights(learner.gains(spectrum.values, spectrum.shown))
