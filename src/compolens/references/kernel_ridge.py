"""Ridge regression on products of inputs, and on bumps around the examples: regression that need not be linear.

Both are kernel ridge regressions (Saunders, Gammerman and Vovk 1998): answers are linear in k(x, x_i) over the context's
examples x_i. Inputs are first divided by their root mean squared length. The mean is not penalised: features are taken less
their mean over the examples, which for a kernel is double centring (Schölkopf, Smola and Müller 1998).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import product

import torch
from torch import Tensor

from compolens.references.in_context import InContextLearner, best_on_training, examples_of
from compolens.tasks.base import TaskFamily
from compolens.tasks.episodes import Episodes

PENALTIES = tuple(10.0**k for k in (-3, -2, -1, 0, 1))
WIDTHS = (0.5, 1.0, 2.0, 4.0)
"""Of bumps, in units of the root mean squared length of an input."""

Kernel = Callable[[Tensor, Tensor], Tensor]
"""(batch, n, d), (batch, m, d) -> (batch, n, m)."""


@dataclass(frozen=True)
class InContextQuadratic(InContextLearner):
    """Per episode, ridge from x and all products of two of its entries to y, with an unpenalised mean.

    Args:
        l2: multiplies |w|² beside the summed squared error (None: the best of five from 0.001 to 10 on training compositions).
    """

    l2: float | None = None

    @property
    def name(self) -> str:
        return "in-context quadratic"

    def predict(self, task: TaskFamily, episodes: Episodes) -> Tensor:
        l2 = self.l2 if self.l2 is not None else _best_quadratic(task)
        return quadratic_predictions(task, episodes, (l2,))[0]


@dataclass(frozen=True)
class InContextKernelRidge(InContextLearner):
    """Per episode, ridge from Gaussian bumps around the examples to y, with an unpenalised mean.

    Args:
        width: of the bumps, exp(-|x - x_i|² / (2 width²)), inputs having a root mean squared length of 1 (None: with `l2`, the
            best of 20 pairs on training compositions).
        l2: multiplies |w|² beside the summed squared error.
    """

    width: float | None = None
    l2: float = 0.1

    @property
    def name(self) -> str:
        return "in-context kernel ridge"

    def predict(self, task: TaskFamily, episodes: Episodes) -> Tensor:
        chosen = (self.width, self.l2) if self.width is not None else _best_bumps(task)
        return bump_predictions(task, episodes, (chosen,))[0]


def quadratic(x: Tensor, z: Tensor) -> Tensor:
    """The kernel of all entries and all products of two.

    Args:
        x: (batch, n, d).
        z: (batch, m, d).

    Returns:
        (batch, n, m) inner products of the features.
    """
    inner = x @ z.mT
    return inner + inner.square()


def quadratic_predictions(task: TaskFamily, episodes: Episodes, penalties: Sequence[float]) -> list[Tensor]:
    """Ridge regression on products at several penalties.

    Args:
        task: the family.
        episodes: a batch of episodes.
        penalties: l2, above 0.

    Returns:
        (batch, seq, d_y) per penalty.
    """
    return _predictions(task, episodes, quadratic, penalties)


def bump_predictions(task: TaskFamily, episodes: Episodes, chosen: Sequence[tuple[float, float]]) -> list[Tensor]:
    """Ridge regression on bumps.

    Args:
        task: the family.
        episodes: a batch of episodes.
        chosen: pairs of width and l2.

    Returns:
        (batch, seq, d_y) per pair.
    """
    found: dict[tuple[float, float], Tensor] = {}
    for width in {width for width, _ in chosen}:
        penalties = [l2 for w, l2 in chosen if w == width]

        def bumps(x: Tensor, z: Tensor, width: float = width) -> Tensor:
            far = torch.cdist(x, z, compute_mode="donot_use_mm_for_euclid_dist").square()
            return torch.exp(-far / (2 * width**2))

        answers = _predictions(task, episodes, bumps, penalties)
        found |= {(width, l2): answer for l2, answer in zip(penalties, answers, strict=True)}
    return [found[pair] for pair in chosen]


def _predictions(task: TaskFamily, episodes: Episodes, kernel: Kernel, penalties: Sequence[float]) -> list[Tensor]:
    """Kernel ridge at several penalties, from one batched eigendecomposition."""
    x, y = examples_of(task, episodes)
    x = x / x[:, : y.shape[1]].square().sum(-1).mean(1).sqrt().clamp(min=1e-300)[:, None, None]
    shown, mean = x[:, : y.shape[1]], y.mean(1, keepdim=True)
    known, among = kernel(x, shown), kernel(shown, shown)
    middle, grand = among.mean(1, keepdim=True), among.mean((1, 2), keepdim=True)
    values, vectors = torch.linalg.eigh(among - middle - middle.mT + grand)
    rotated, asked = vectors.mT @ (y - mean), (known - known.mean(2, keepdim=True) - middle + grand) @ vectors
    answers = [asked @ (rotated / (values.clamp(min=0) + l2)[..., None]) + mean for l2 in penalties]
    return [answer.to(episodes.targets.dtype) for answer in answers]


@lru_cache(maxsize=32)
def _best_quadratic(task: TaskFamily) -> float:
    return best_on_training(task, PENALTIES, quadratic_predictions)


@lru_cache(maxsize=32)
def _best_bumps(task: TaskFamily) -> tuple[float, float]:
    return best_on_training(task, tuple(product(WIDTHS, PENALTIES)), bump_predictions)
