"""One pass of stochastic gradient descent through the demonstrations, in order (2211.15661)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from compolens.foundation.configs import require
from compolens.references.regression import LinearLearner, checked


@dataclass(frozen=True)
class OnlineSGD(LinearLearner):
    """w <- w + rate x (y - w^T x) for each demonstration once, from w = 0 (2211.15661).

    Args:
        rate: of the gradient of half the squared error, so a rate for the squared error counts twice. 2211.15661 compares with
            0.01 and 0.03.
    """

    rate: float = 0.03

    def __post_init__(self) -> None:
        require(self.rate > 0, f"OnlineSGD: rate must be positive, got {self.rate}")

    @property
    def name(self) -> str:
        return f"online SGD, rate {self.rate:g}"

    def weights(self, x: Tensor, y: Tensor, lengths: Sequence[int]) -> Tensor:
        x, y = checked(x, y, lengths)
        path = [x.new_zeros(len(x), x.shape[2], y.shape[2])]
        for n in range(max(lengths, default=0)):
            error = y[:, n] - torch.einsum("bd,bde->be", x[:, n], path[-1])
            path.append(path[-1] + self.rate * x[:, n, :, None] * error[:, None])
        return torch.stack([path[n] for n in lengths], dim=1)
