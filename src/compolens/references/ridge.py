"""Ridge regression on the context's inputs: what regression without any idea of modules achieves."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from compolens.references.in_context import InContextLearner, best_on_training, examples_of
from compolens.tasks.base import TaskFamily
from compolens.tasks.episodes import Episodes

PENALTIES = tuple(10.0**k for k in (-2, -1, -0.5, 0, 0.5, 1, 1.5, 2, 3))


@dataclass(frozen=True)
class InContextRidge(InContextLearner):
    """Per episode, ridge from x to y on the context pairs, with an unpenalised intercept.

    Args:
        l2: multiplies |w|² beside the summed squared error (None: the best of nine from 0.01 to 1000 on training
            compositions).
    """

    l2: float | None = None

    @property
    def name(self) -> str:
        return "in-context ridge"

    def predict(self, task: TaskFamily, episodes: Episodes) -> Tensor:
        l2 = self.l2 if self.l2 is not None else _best_penalty(task)
        return ridge_predictions(task, episodes, (l2,))[0]


def ridge_predictions(task: TaskFamily, episodes: Episodes, penalties: tuple[float, ...]) -> list[Tensor]:
    """Ridge regression at several penalties, from one batched eigendecomposition.

    Args:
        task: the family.
        episodes: a batch of episodes.
        penalties: l2, above 0.

    Returns:
        (batch, seq, d_y) per penalty.
    """
    x, y = examples_of(task, episodes)
    shown = x[:, : y.shape[1]]
    mean_x, mean_y = shown.mean(1, keepdim=True), y.mean(1, keepdim=True)
    centred = shown - mean_x
    values, vectors = torch.linalg.eigh(centred.transpose(1, 2) @ centred)
    rotated = vectors.transpose(1, 2) @ (centred.transpose(1, 2) @ (y - mean_y))
    asked = (x - mean_x) @ vectors
    answers = [asked @ (rotated / (values.clamp(min=0) + l2)[..., None]) + mean_y for l2 in penalties]
    return [answer.to(episodes.targets.dtype) for answer in answers]


@lru_cache(maxsize=32)
def _best_penalty(task: TaskFamily) -> float:
    return best_on_training(task, PENALTIES, ridge_predictions)
