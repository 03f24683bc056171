"""Linear attention, with and without normalisation over heads (Schug et al., "Attention as a hypernetwork", 2406.05816).

Scores multiply the values as they are: no softmax, no feature map, no 1/seq. `LinearRMSHead` divides each (query, key)
pair's code, a vector over heads, by its root mean square (eq. 6 there).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from compolens.models.attention import Attention
from compolens.models.operands import as_operand, full
from compolens.models.transformer import TransformerArchitecture

EPS = 1e-6


class _RMSHead(torch.autograd.Function):
    """The gradient in closed form: half the time, and one saved tensor of the scores' size instead of two.

    `kept` (query, key) multiplies whole codes, as the normaliser does, and costs nothing beside it. The code comes out as
    products want it, and is saved like that. The inverse root mean square is an output as well, so that second derivatives
    are right.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(scores: Tensor, kept: Tensor | None) -> tuple[Tensor, Tensor]:
        inverse = torch.rsqrt(scores.square().mean(1, keepdim=True) + EPS)
        return as_operand(scores * (inverse if kept is None else inverse * kept)), inverse

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor | None], output: tuple[Tensor, Tensor]) -> None:
        ctx.save_for_backward(*output, inputs[1])
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, code_grad: Tensor | None, inverse_grad: Tensor | None) -> tuple[Tensor | None, None]:
        code, inverse, kept = ctx.saved_tensors
        # of a pair that was dropped, everything below is 0
        scale, unscale = (1, 1) if kept is None else (kept, torch.where(kept > 0, 1 / kept, 0))
        grad = None
        if code_grad is not None:
            wide = full(code_grad)
            along = (wide * code).mean(1, keepdim=True)
            grad = wide * (inverse * scale) - code * (along * inverse * unscale)
        if inverse_grad is not None:
            more = inverse_grad * inverse.square() * unscale * code / -code.shape[1]
            grad = more if grad is None else grad + more
        return grad, None


def rms_head(scores: Tensor, kept: Tensor | None = None) -> Tensor:
    """Scores over their root mean square across heads; a masked pair (all 0) stays 0.

    Args:
        scores: (batch, head, query, key).
        kept: (query, key) factors, those of dropout (None: 1).

    Returns:
        The same shape as the scores.
    """
    return _RMSHead.apply(scores, kept)[0]


class UnnormalizedAttention(Attention):
    """Scores are the weights; masked ones are 0."""

    masked_score = 0.0
    rowwise = True

    def weights(self, scores: Tensor) -> Tensor:
        return scores


class RMSHeadAttention(Attention):
    """Scores normalised over heads are the weights; masked ones are 0."""

    masked_score = 0.0
    rowwise = True

    def weights(self, scores: Tensor, kept: Tensor | None = None) -> Tensor:
        """Scores over their root mean square across heads (RMSHead).

        Args:
            scores: (batch, head, query, key), masked.
            kept: (query, key) factors, those of dropout (None: 1).

        Returns:
            The same shape.
        """
        return rms_head(scores, kept)

    def dropped(self, scores: Tensor, kept: Tensor) -> Tensor:
        return self.weights(scores, kept)


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
