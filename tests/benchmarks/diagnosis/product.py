"""Products: in-context regression on two operations side by side, of which some never meet in training.

A task is y = (A_i x) σ(B_j x), coordinate by coordinate, with the logistic σ: a linear map A_i, every answer of which is let
through as far as a gate B_j opens, as in the gated linear units of Dauphin et al. (2017). Everything else is as in `pairs`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from pairs import Pairs
from torch import Tensor


@dataclass(frozen=True)
class Product(Pairs):
    """Gates are mostly open or shut: what enters σ has a standard deviation of `inner_gain`.

    >>> task = Product()
    >>> len(task.compositions("train")), len(task.compositions("ood")), task.composition_name(8)
    (24, 12, '1|2')
    """

    inner_gain: ClassVar[float] = 3.0

    @staticmethod
    def first(drive: Tensor) -> Tensor:
        return torch.sigmoid(drive)

    @staticmethod
    def second(hidden: Tensor, outer: Tensor, x: Tensor) -> Tensor:
        return hidden * (x @ outer)
