"""Linear attention, with and without normalisation over heads (Schug et al., "Attention as a hypernetwork", 2406.05816).

Scores multiply the values as they are: no softmax, no feature map, no 1/seq. `LinearRMSHead` divides each (query, key)
pair's code, a vector over heads, by its root mean square (eq. 6 there).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from compolens.models.transformer import Attention, TransformerArchitecture

EPS = 1e-6


class _RMSHead(torch.autograd.Function):
    """The gradient in closed form: half the time, and one saved tensor of the scores' size instead of two.

    The inverse root mean square is an output as well, so that second derivatives are right.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(scores: Tensor) -> tuple[Tensor, Tensor]:
        inverse = torch.rsqrt(scores.square().mean(1, keepdim=True) + EPS)
        return scores * inverse, inverse

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: tuple[Tensor, Tensor]) -> None:
        ctx.save_for_backward(*output)
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, code_grad: Tensor | None, inverse_grad: Tensor | None) -> Tensor | None:
        code, inverse = ctx.saved_tensors
        grad = None
        if code_grad is not None:
            grad = torch.addcmul(code_grad, code, (code_grad * code).mean(1, keepdim=True), value=-1) * inverse
        if inverse_grad is not None:
            more = inverse_grad * inverse.square() * code / -code.shape[1]
            grad = more if grad is None else grad + more
        return grad


def rms_head(scores: Tensor) -> Tensor:
    """scores (batch, head, query, key) over their root mean square across heads; a masked pair (all 0) stays 0."""
    return _RMSHead.apply(scores)[0]


class UnnormalizedAttention(Attention):
    """Scores are the weights; masked ones are 0."""

    masked_score = 0.0

    def weights(self, scores: Tensor) -> Tensor:
        return scores


class RMSHeadAttention(Attention):
    """Scores normalised over heads are the weights; masked ones are 0."""

    masked_score = 0.0

    def weights(self, scores: Tensor) -> Tensor:
        return rms_head(scores)


@dataclass(frozen=True)
class LinearAttention(TransformerArchitecture):
    """Transformer with linear attention: the scores, with their relative bias, are the weights."""

    def attention(self) -> type[Attention]:
        return UnnormalizedAttention


@dataclass(frozen=True)
class LinearRMSHead(TransformerArchitecture):
    """Transformer with linear attention whose weights are normalised over heads."""

    def attention(self) -> type[Attention]:
        return RMSHeadAttention
