"""Chains: in-context regression on two operations in sequence, of which some never follow one another in training.

A task is y = A_i relu(B_j x): a first layer B_j, then a second layer A_i. Everything else is as in `pairs`.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from pairs import Pairs
from torch import Tensor

from compolens.foundation.configs import require_positive


@dataclass(frozen=True)
class Chain(Pairs):
    """d_hidden: width between the operations.

    >>> task = Chain()
    >>> len(task.compositions("train")), len(task.compositions("ood")), task.composition_name(8)
    (24, 12, '1|2')
    """

    d_hidden: int = 8

    def __post_init__(self) -> None:
        require_positive(self, "d_hidden")
        super().__post_init__()

    @property
    def widths(self) -> tuple[tuple[int, int], tuple[int, int]]:
        return (self.d_x, self.d_hidden), (self.d_hidden, self.d_y)

    @staticmethod
    def first(drive: Tensor) -> Tensor:
        return torch.relu(drive)

    @staticmethod
    def second(hidden: Tensor, outer: Tensor, x: Tensor) -> Tensor:
        return hidden @ outer
