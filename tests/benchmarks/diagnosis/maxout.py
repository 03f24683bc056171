"""Maxouts: in-context regression on two operations on equal terms, of which some never meet in training.

A task is y = max(A_i x, B_j x), coordinate by coordinate: two linear maps, of which the larger one answers, as in the maxout
units of Goodfellow et al. (2013). Neither operation comes first, and each is seen only where it wins. Everything else is as in
`pairs`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import torch
from pairs import Pairs
from torch import Tensor


@dataclass(frozen=True)
class Maxout(Pairs):
    """
    >>> task = Maxout()
    >>> len(task.compositions("train")), len(task.compositions("ood")), task.composition_name(8)
    (24, 12, '1|2')
    """

    @staticmethod
    def first(drive: Tensor) -> Tensor:
        return drive

    @staticmethod
    def second(hidden: Tensor, outer: Tensor, x: Tensor) -> Tensor:
        return torch.maximum(hidden, x @ outer)

    @cached_property
    def teacher(self) -> tuple[Tensor, Tensor]:
        """Both operations alike: one factor for all brings the answers' mean square to 1 over inputs and pairs."""
        rng = torch.Generator().manual_seed(self.teacher_seed)
        to_hidden, to_answer = self.widths
        inner = torch.randn(self.n_inner, *to_hidden, generator=rng) / math.sqrt(self.d_x)
        outer = torch.randn(self.n_outer, *to_answer, generator=rng) / math.sqrt(self.d_x)
        x = self._draw(1, 2048, rng)
        answers = self.second((x @ inner)[:, None], outer, x)
        size = answers.double().square().mean().sqrt().float()
        return inner / size, outer / size
