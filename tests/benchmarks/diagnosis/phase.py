"""Phases: in-context regression on two operations that add up before they are folded, of which some never meet in training.

A task is y = √2 sin(A_i x + B_j x), coordinate by coordinate: two linear maps, each of which sets a phase of every answer,
with the sine as activation of Sitzmann et al. (2020). What one phase does to an answer depends on where the other has brought
it. Everything else is as in `pairs`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import torch
from pairs import Pairs
from torch import Tensor


@dataclass(frozen=True)
class Phase(Pairs):
    """Either phase has a standard deviation of `inner_gain`, one radian: their sum is often folded.

    >>> task = Phase()
    >>> len(task.compositions("train")), len(task.compositions("ood")), task.composition_name(8)
    (24, 12, '1|2')
    """

    inner_gain: ClassVar[float] = 1.0

    @staticmethod
    def first(drive: Tensor) -> Tensor:
        return drive

    @staticmethod
    def second(hidden: Tensor, outer: Tensor, x: Tensor) -> Tensor:
        return math.sqrt(2) * torch.sin(hidden + x @ outer)

    @cached_property
    def teacher(self) -> tuple[Tensor, Tensor]:
        """Both operations alike. √2 brings the answers' mean square near 1, whatever the matrices: here, their size counts."""
        rng = torch.Generator().manual_seed(self.teacher_seed)
        size = self.inner_gain / math.sqrt(self.d_x)
        inner, outer = (
            size * torch.randn(n, *width, generator=rng)
            for n, width in zip((self.n_inner, self.n_outer), self.widths, strict=True)
        )
        return inner, outer
