"""The vanilla transformer: pre-norm, multi-head softmax attention (Vaswani et al., 1706.03762, eq. 1), no positions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from compolens.models.base import Architecture
from compolens.models.transformer import Attention, Sizes, Transformer


class SoftmaxAttention(Attention):
    """softmax(Q K^T / sqrt(d_head)) V; masked scores are -inf."""

    def weights(self, scores: Tensor) -> Tensor:
        return scores.softmax(-1)


@dataclass(frozen=True)
class SoftmaxTransformer(Architecture):
    """Pre-norm transformer with softmax attention: layer norm (eps 1e-6), tanh GELU, biases, no positional encoding.

    d_head and d_value are per head and default to d_model / n_heads; d_mlp defaults to 4 d_model; causal: every position
    attends to itself and what comes before, on top of the task's own mask.

    >>> model = SoftmaxTransformer(n_layers=2, d_model=16, n_heads=2).build(d_in=5, d_out=3)
    >>> model(torch.zeros(1, 7, 5)).shape
    torch.Size([1, 7, 3])
    """

    n_layers: int = 3
    d_model: int = 64
    n_heads: int = 4
    d_head: int | None = None
    d_value: int | None = None
    d_mlp: int | None = None
    causal: bool = False

    def __post_init__(self) -> None:
        Sizes.of(self)

    def build(
        self,
        *,
        d_in: int,
        d_out: int,
        seq: int | None = None,
        answers: Sequence[int] = (-1,),
        d_x: int | None = None,
        mask: Tensor | None = None,
        blocks: Sequence[Sequence[int]] | None = None,
    ) -> Transformer:
        if self.causal:
            if seq is None:
                raise ValueError("a causal SoftmaxTransformer needs the sequence length: build(..., seq=...)")
            past = torch.ones(seq, seq, dtype=torch.bool).tril()
            mask = past if mask is None else mask & past
        return Transformer(Sizes.of(self), SoftmaxAttention, d_in=d_in, d_out=d_out, seq=seq, answers=answers, mask=mask)
