"""Architectures whose tokens are the residual stream: what a layer writes is what a learning algorithm does to the data.

A token holds an input and its answer, e = (x, y), the query's answer being 0. With no embedding, norm, MLP or bias, and square
weights, a layer of linear attention can be a step of gradient descent (von Oswald et al., 2212.07677), and a layer of softmax
attention with heads of both signs is nearly one (He et al., 2503.12734):

    e_j <- e_j + damping * sum_h W_O,h sum_i a_h(i, j) W_V,h e_i

Keys and values come from the tokens of the context, by default not from the query itself. The answer is read off the answer's
coordinates, times a fixed sign.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from compolens.foundation.configs import ConfigError, require, require_positive
from compolens.models.attention import Attention, Sizes
from compolens.models.base import Architecture, DoesNotApply, split_positions
from compolens.models.linear import UnnormalizedAttention
from compolens.models.softmax import SoftmaxAttention
from compolens.models.token_stream import Stream, TokenSpaceTransformer


def visible(seq: int, context: Sequence[int], mask: Tensor | None, attends_to_itself: bool) -> Tensor:
    """What the task's mask allows of the context, and the query itself where it may.

    Without a context (every token is an answer) the task's mask alone. What would see nothing sees itself.

    Args:
        seq: tokens of an episode.
        context: positions of the context.
        mask: (seq, seq) bool, the task's (None: everything is allowed).
        attends_to_itself: whether a query is among its own keys.

    Returns:
        (seq, seq) bool, [query, key].
    """
    own = torch.eye(seq, dtype=torch.bool)
    allowed = torch.ones_like(own) if mask is None else mask
    if context:
        keys = torch.zeros(seq, dtype=torch.bool)
        keys[list(context)] = True
        allowed = allowed & (keys | own if attends_to_itself else keys)
    return allowed | (own & ~allowed.any(-1, keepdim=True))


@dataclass(frozen=True)
class TokenSpaceArchitecture(Architecture):
    """What architectures in token space share.

    Args:
        n_layers: attention layers.
        damping: each layer adds this fraction of its output; above 0 and at most 1.
    """

    n_layers: int = 1
    damping: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        require_positive(self, "n_layers")
        name = type(self).__name__
        require(0 < self.damping <= 1, f"{name}: damping must be above 0 and at most 1, got {self.damping!r}; 1 is none")

    @abstractmethod
    def attention(self) -> Callable[..., Attention]:
        """The attention of every layer: a class derived from `Attention`, or what makes one from (sizes, mask)."""

    @abstractmethod
    def stream(self) -> Stream:
        """What the model is besides."""

    @abstractmethod
    def start(self, attention: Attention, d_x: int, d_y: int, n: int) -> None:
        """Set the weights that a layer starts from, in place.

        Args:
            attention: the layer.
            d_x: width of x.
            d_y: width of y.
            n: number of context tokens.
        """

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
    ) -> TokenSpaceTransformer:
        name = type(self).__name__
        if d_x is None or d_in < d_x + d_out:
            what = "it does not say how wide an input is" if d_x is None else f"d_in={d_in} is below d_x + d_out={d_x + d_out}"
            raise DoesNotApply(f"{name} needs a task of (input, answer) pairs: both in one token, the input first; {what}")
        if seq is None:
            raise ConfigError(f"{name} needs the sequence length, to know the context: build(..., seq=...)")
        stream = self.stream()
        sizes = Sizes(self.n_layers, d_in, stream.n_heads, d_in, d_in, 0)
        context, _ = split_positions(seq, answers)
        keys = visible(seq, context, mask, stream.attends_to_itself)

        def attention() -> Attention:
            made = self.attention()(sizes, keys)
            with torch.no_grad():
                self.start(made, d_x, d_out, len(context) or seq)
            return made

        return TokenSpaceTransformer(sizes, attention, stream, d_x=d_x, d_out=d_out, seq=seq, answers=answers)


@dataclass(frozen=True)
class TokenSpaceSelfAttention(TokenSpaceArchitecture):
    """Token space with weights to be trained.

    W_Q, W_K, W_V, W_O start from truncated normals of variance init_scale / (n_layers fan_in).

    Args:
        n_heads: heads of a layer.
        tied: whether all layers are one, applied n_layers times.
        init_scale: factor of the initial weights' variance, above 0.
        attends_to_itself: whether a query is among its own keys and values; tokens of the context always are.
    """

    n_heads: int = 1
    tied: bool = False
    init_scale: float = 1.0
    attends_to_itself: bool = False

    sign: ClassVar[float] = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        require_positive(self, "n_heads")
        require(self.init_scale > 0, f"{type(self).__name__}: init_scale must be positive, got {self.init_scale!r}")

    def stream(self) -> Stream:
        return Stream(self.n_heads, self.tied, self.sign, self.damping, None, self.attends_to_itself)

    def start(self, attention: Attention, d_x: int, d_y: int, n: int) -> None:
        for weight in (attention.W_Q, attention.W_K, attention.W_V, attention.W_O):
            weight.mul_((self.init_scale / self.n_layers) ** 0.5)


class UnscaledLinearAttention(UnnormalizedAttention):
    """Q K^T V as it is: not even divided by sqrt(d_head)."""

    rowwise = True

    def scores(self, x: Tensor, asking: Tensor) -> Tensor:
        q, k = self.hook_q(self._project(asking, "Q")), self.hook_k(self._project(x, "K"))
        return q.transpose(1, 2) @ k.permute(0, 2, 3, 1)


@dataclass(frozen=True)
class LinearSelfAttention(TokenSpaceSelfAttention):
    """Linear self-attention as in 2212.07677 and 2306.09927; the answer is minus the answer's coordinates of the query.

    >>> model = LinearSelfAttention().build(d_in=11, d_out=1, seq=11, d_x=10)
    >>> model(torch.zeros(2, 11, 11)).shape, model.W_V.shape
    (torch.Size([2, 11, 1]), torch.Size([1, 1, 11, 11]))

    Args:
        init_scale: factor of the initial weights' variance, above 0.
        clip_tokens: tokens are clipped to [-clip_tokens, clip_tokens] after every layer (None: not at all); 2212.07677 takes
            10 for more than two layers.
    """

    init_scale: float = 0.002
    clip_tokens: float | None = None

    sign: ClassVar[float] = -1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        clip = self.clip_tokens
        require(clip is None or clip > 0, f"LinearSelfAttention: clip_tokens must be positive, or None for none, got {clip!r}")

    def attention(self) -> type[Attention]:
        return UnscaledLinearAttention

    def stream(self) -> Stream:
        return Stream(self.n_heads, self.tied, self.sign, self.damping, self.clip_tokens, self.attends_to_itself)


@dataclass(frozen=True)
class SoftmaxSelfAttention(TokenSpaceSelfAttention):
    """Softmax self-attention, as in 2503.12734: softmax(Q K^T / sqrt(d_in)) V."""

    def attention(self) -> Callable[..., Attention]:
        return SoftmaxAttention
