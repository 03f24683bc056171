"""Regression that knows of no line: the examples' answers, smoothed by a kernel (Nadaraya 1964, Watson 1964)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from compolens.foundation.configs import require
from compolens.references.in_context import InContextLearner, best_on_training, examples_of
from compolens.tasks.base import TaskFamily
from compolens.tasks.episodes import Episodes

WIDTHS = tuple(2.0**k for k in range(-4, 4))


@dataclass(frozen=True)
class InContextSmoothing(InContextLearner):
    """Per episode, the mean of the examples' answers, each weighted by exp(-|x - x_i|² / (2 width²)).

    Args:
        width: in units of the root mean squared distance between an episode's examples (None: the best of eight from 1/16 to 8
            on training compositions). The smaller, the more it answers as `InContextNearest`; the larger, the nearer to the
            mean of all.
    """

    width: float | None = None

    def __post_init__(self) -> None:
        require(self.width is None or self.width > 0, f"InContextSmoothing: width must be positive or None, got {self.width}")

    @property
    def name(self) -> str:
        return "in-context smoothing"

    def predict(self, task: TaskFamily, episodes: Episodes) -> Tensor:
        width = self.width if self.width is not None else _best_width(task)
        return smoothed_predictions(task, episodes, (width,))[0]


def smoothed_predictions(task: TaskFamily, episodes: Episodes, widths: tuple[float, ...]) -> list[Tensor]:
    """Kernel smoothing at several widths.

    Args:
        task: the family.
        episodes: a batch of episodes.
        widths: as in `InContextSmoothing`.

    Returns:
        (batch, seq, d_y) per width.
    """
    x, y = examples_of(task, episodes)
    shown = x[:, : y.shape[1]]
    spread = 2 * shown.var(1, correction=0).sum(-1).clamp(min=1e-300)  # mean |x_i - x_j|² over all pairs
    far = torch.cdist(x, shown, compute_mode="donot_use_mm_for_euclid_dist").square() / spread[:, None, None]
    answers = [torch.softmax(-far / (2 * width**2), dim=-1) @ y for width in widths]
    return [answer.to(episodes.targets.dtype) for answer in answers]


@lru_cache(maxsize=32)
def _best_width(task: TaskFamily) -> float:
    return best_on_training(task, WIDTHS, smoothed_predictions)
