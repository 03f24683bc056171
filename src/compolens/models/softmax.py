"""The vanilla transformer: pre-norm, multi-head softmax attention (Vaswani et al., 1706.03762, eq. 1)."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from compolens.models.attention import Attention
from compolens.models.transformer import TransformerArchitecture


class SoftmaxAttention(Attention):
    """softmax(Q K^T / sqrt(d_head)) V; masked scores are -inf."""

    rowwise = True

    def weights(self, scores: Tensor) -> Tensor:
        return scores.softmax(-1)


@dataclass(frozen=True)
class SoftmaxTransformer(TransformerArchitecture):
    """Pre-norm transformer with softmax attention. Fields as in `TransformerArchitecture`.

    >>> model = SoftmaxTransformer(n_layers=2, d_model=16, n_heads=2).build(d_in=5, d_out=3)
    >>> model(torch.zeros(1, 7, 5)).shape
    torch.Size([1, 7, 3])
    """

    def attention(self) -> type[Attention]:
        return SoftmaxAttention
