"""HYLA, hypernetwork linear attention, and its ablations (Schug et al., "Attention as a hypernetwork", 2406.05816).

Multi-head attention is a linear hypernetwork: with a the code of a (query, key) pair, one number per head,

    y_q = sum_k W_qk x_k,    W_qk = sum_h a_h W_out,h W_value,h.

HYLA makes the generated value network deep: y_q = sum_k W'_qk relu(W_qk x_k) with W_qk = sum_h a_h W_value,h and
W'_qk = sum_h a_h W_out,h, and normalises the code over heads (RMSHead). No variant but `DeepHYLA` has further parameters.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from compolens.hooks import HookPoint
from compolens.models.attention import Attention, Sizes
from compolens.models.base import truncated_lecun_
from compolens.models.linear import RMSHeadAttention, UnnormalizedAttention, rms_head
from compolens.models.operands import product, relaid
from compolens.models.softmax import SoftmaxAttention
from compolens.models.transformer import TransformerArchitecture


class _ValueNetwork(Attention):
    """The code is used twice: to generate the first layer of a value network per pair, and to aggregate its output.

    ``hook_pre`` (batch, query, key, d_value): W_qk x_k; ``hook_post``: after the nonlinearity.

    Heads share the value network that the whole code generates, so ``hook_z`` does not tell them apart: a head is a coordinate
    of the code.
    """

    head_site = ("hook_code", 3)
    hook_pre: HookPoint
    hook_post: HookPoint

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.hook_pre, self.hook_post = HookPoint(), HookPoint()

    def nonlinearity(self, x: Tensor) -> Tensor:
        """Between the layers of the value network."""
        return torch.relu(x)

    def first(self, code: Tensor, v: Tensor) -> Tensor:
        """(batch, query, key, d_value): the first layer's output, after the nonlinearity."""
        by_key = relaid(code.transpose(2, 3), (0, 3, 1, 2))  # a product per key: (query, head) times (head, d_value)
        pre = self.hook_pre(relaid(product(by_key, v), (0, 2, 1, 3)))
        return self.hook_post(self.nonlinearity(pre))

    def mix(self, code: Tensor, v: Tensor) -> Tensor:
        return product(code.transpose(2, 3), self.first(code, v))  # a product per query: (head, key) times (key, d_value)


class HYLAAttention(_ValueNetwork, RMSHeadAttention):
    """RMSHead, ReLU, two uses of the code.

    In memory the code lies as (batch, query, head, key), as its second use wants it: a copy less, also of what is saved for
    the backward pass.
    """

    rowwise = True

    def weights(self, scores: Tensor, kept: Tensor | None = None) -> Tensor:
        """Scores over their root mean square across heads (RMSHead).

        Args:
            scores: (batch, head, query, key), masked.
            kept: (query, key) factors, those of dropout (None: 1).

        Returns:
            The same shape.
        """
        return relaid(rms_head(scores, kept), (0, 2, 1, 3)).transpose(1, 2)


class HYLAWithoutRMSHeadAttention(_ValueNetwork, UnnormalizedAttention):
    """The scores themselves are the code."""


class HYLAWithoutNonlinearityAttention(HYLAAttention):
    """No ReLU between the two layers of the value network."""

    def nonlinearity(self, x: Tensor) -> Tensor:
        return x


class HYLAWithoutBothAttention(_ValueNetwork, UnnormalizedAttention):
    """Neither RMSHead nor ReLU."""

    def nonlinearity(self, x: Tensor) -> Tensor:
        return x


class HYLAWithSoftmaxAttention(_ValueNetwork, SoftmaxAttention):
    """The code is normalised over keys by a softmax instead of over heads."""


class DeepHYLAAttention(HYLAAttention):
    """A hidden layer more (eq. 10): W'(a) relu(W''(a) relu(W(a) x)), W_V2 (head, d_value, d_value), without bias.

    Args:
        sizes: of the transformer.
        args: the other arguments of `Attention`.
    """

    def __init__(self, sizes: Sizes, *args: Any) -> None:
        super().__init__(sizes, *args)
        self.W_V2 = truncated_lecun_(nn.Parameter(torch.empty(sizes.n_heads, sizes.d_value, sizes.d_value)), sizes.d_value)
        self.hook_pre2, self.hook_post2 = HookPoint(), HookPoint()

    def mix(self, code: Tensor, v: Tensor) -> Tensor:
        generated = torch.einsum("bqkh,hde->bqkde", code, self.W_V2)
        pre2 = self.hook_pre2((self.first(code, v)[..., None, :] @ generated).squeeze(-2))
        return torch.einsum("bqkh,bqkd->bqhd", code, self.hook_post2(self.nonlinearity(pre2)))


@dataclass(frozen=True)
class HYLA(TransformerArchitecture):
    """Hypernetwork linear attention: RMSHead and a nonlinear value network. Fields as in `TransformerArchitecture`.

    >>> model = HYLA(n_layers=2, d_model=16, n_heads=4, d_head=4, d_value=4, n_ctx=9).build(d_in=5, d_out=3)
    >>> output, cache = model.run_with_cache(torch.zeros(1, 9, 5))
    >>> cache["code", 0].shape
    torch.Size([1, 9, 9, 4])
    """

    def attention(self) -> type[Attention]:
        return HYLAAttention


@dataclass(frozen=True)
class HYLAWithoutRMSHead(TransformerArchitecture):
    """HYLA without normalisation of the code over heads."""

    def attention(self) -> type[Attention]:
        return HYLAWithoutRMSHeadAttention


@dataclass(frozen=True)
class HYLAWithoutNonlinearity(TransformerArchitecture):
    """HYLA with a linear value network."""

    def attention(self) -> type[Attention]:
        return HYLAWithoutNonlinearityAttention


@dataclass(frozen=True)
class HYLAWithoutBoth(TransformerArchitecture):
    """HYLA without RMSHead and without the nonlinearity."""

    def attention(self) -> type[Attention]:
        return HYLAWithoutBothAttention


@dataclass(frozen=True)
class HYLAWithSoftmax(TransformerArchitecture):
    """HYLA whose code is normalised by a softmax over keys instead of RMSHead."""

    def attention(self) -> type[Attention]:
        return HYLAWithSoftmaxAttention


@dataclass(frozen=True)
class DeepHYLA(TransformerArchitecture):
    """HYLA with a deeper value network ("HYLA+", eq. 10)."""

    def attention(self) -> type[Attention]:
        return DeepHYLAAttention
