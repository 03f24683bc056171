"""Nearest neighbours: the learner that averages the answers of similar demonstrations and knows of no line (2211.15661)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from compolens.foundation.configs import require_positive
from compolens.references.regression import RegressionLearner, checked


@dataclass(frozen=True)
class NearestNeighbours(RegressionLearner):
    """The mean answer of the demonstrations nearest to the input asked for (all, where fewer are shown; 0 where none are).

    Args:
        k: how many.
        weighted: by 1 / distance², where demonstrations at distance 0 decide alone.
    """

    k: int = 3
    weighted: bool = False

    def __post_init__(self) -> None:
        require_positive(self, "k")

    @property
    def name(self) -> str:
        return f"{self.k} nearest neighbour{'s' * (self.k > 1)}" + (", weighted" if self.weighted else "")

    def answers(self, x: Tensor, y: Tensor, asked: Tensor, shown: Tensor) -> Tensor:
        x, y = checked(x, y, shown.tolist())
        distance = torch.cdist(asked.double(), x, compute_mode="donot_use_mm_for_euclid_dist")
        hidden = torch.arange(x.shape[1]) >= shown.cpu()[:, None]
        distance = distance.masked_fill(hidden.to(x.device), torch.inf)
        nearest, index = distance.topk(min(self.k, x.shape[1]), dim=-1, largest=False)
        weight = nearest.isfinite().double()
        if self.weighted:
            same = (nearest == 0).double()
            weight = torch.where(same.any(-1, keepdim=True), same, 1 / nearest.square())  # 1 / inf² leaves out what is hidden
        weight = weight / weight.sum(-1, keepdim=True).clamp(min=1e-300)
        found = torch.gather(y[:, None].expand(-1, asked.shape[1], -1, -1), 2, index[..., None].expand(-1, -1, -1, y.shape[2]))
        return (weight[..., None] * found).sum(2)
