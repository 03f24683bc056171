"""Attention that is open between its scores and the weights that multiply the values; kinds of it are one method.

Hook names, weight names and shapes are TransformerLens'; ``hook_code`` is added: a view of ``hook_pattern`` laid out (batch,
query, key, head), the weights that multiply the values. Editing either takes effect.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from compolens.foundation.configs import ConfigError, require_positive
from compolens.hooks import HookPoint
from compolens.models.base import truncated_lecun_
from compolens.models.operands import full, product
from compolens.models.transfer import TransferRows


@dataclass(frozen=True)
class Sizes:
    """Sizes of a transformer, checked.

    Args:
        n_layers: blocks.
        d_model: width of the residual stream.
        n_heads: heads of a block.
        d_head: width of queries and keys, per head.
        d_value: width of values, per head.
        d_mlp: width of the MLP's hidden layer.
    """

    n_layers: int
    d_model: int
    n_heads: int
    d_head: int
    d_value: int
    d_mlp: int

    @classmethod
    def of(cls, owner: Any) -> Sizes:
        """The sizes of an architecture: d_head defaults to d_model / n_heads, d_value to d_head, d_mlp to 4 d_model.

        Args:
            owner: has n_layers, d_model, n_heads, and may have d_head, d_value, d_mlp (None: the default).

        Returns:
            The sizes.

        Raises:
            ConfigError: a size is not positive, or heads do not divide d_model and d_head is not given.
        """
        require_positive(owner, "n_layers", "d_model", "n_heads")
        d_head, d_value, d_mlp = (getattr(owner, name, None) for name in ("d_head", "d_value", "d_mlp"))
        if d_head is None and owner.d_model % owner.n_heads:
            raise ConfigError(
                f"{type(owner).__name__}: {owner.n_heads} heads do not divide d_model={owner.d_model}; "
                "choose n_heads that does, or give d_head"
            )
        given = {"d_head": d_head, "d_value": d_value, "d_mlp": d_mlp}
        require_positive(owner, *[name for name, value in given.items() if value is not None])
        d_head = d_head or owner.d_model // owner.n_heads
        return cls(owner.n_layers, owner.d_model, owner.n_heads, d_head, d_value or d_head, d_mlp or 4 * owner.d_model)


def relative_buckets(n_ctx: int) -> Tensor:
    """T5's unidirectional buckets of relative positions, with n_buckets = max_distance = n_ctx.

    A bucket per distance up to n_ctx // 2, logarithmic ones beyond; keys to the right of the query share bucket 0 with the
    query itself (as the reference code of 2406.05816 has it, also without a causal mask).

    Args:
        n_ctx: the longest sequence.

    Returns:
        (n_ctx, n_ctx) ints, [query, key] -> row of the bias table.
    """
    distance = (torch.arange(n_ctx)[:, None] - torch.arange(n_ctx)[None, :]).clamp(min=0)
    exact = n_ctx // 2
    if n_ctx < 2:
        return distance
    ratio = distance.clamp(min=exact).float() / exact + torch.finfo(torch.float32).eps
    far = exact + (ratio.log() / math.log(n_ctx / exact) * (n_ctx - exact)).long()
    return torch.where(distance < exact, distance, far.clamp(max=n_ctx - 1))


class RelativeBias(nn.Module):
    """A learned bias on attention scores by head and relative position: rel_bias (head, n_ctx), a row per bucket.

    Args:
        n_heads: heads.
        n_ctx: the longest sequence.
    """

    buckets: Tensor

    def __init__(self, n_heads: int, n_ctx: int) -> None:
        super().__init__()
        self.rel_bias = nn.Parameter(torch.randn(n_heads, n_ctx) / math.sqrt(n_ctx))
        self.register_buffer("buckets", relative_buckets(n_ctx), persistent=False)

    def forward(self, queries: slice | None, seq: int) -> Tensor:
        """The bias to add to scores.

        Args:
            queries: the query positions (None: all).
            seq: keys are the positions 0 to seq - 1.

        Returns:
            (head, query, key).
        """
        return self.rel_bias[:, self.buckets[queries or slice(seq), :seq]]


class Inputs(NamedTuple):
    """What queries, keys and values are made of, each (batch, pos, head, d_model): a copy of the stream per head.

    Args:
        q: of the queries.
        k: of the keys.
        v: of the values.
    """

    q: Tensor
    k: Tensor
    v: Tensor


class Attention(nn.Module, ABC):
    """Multi-head attention, open between scores and the weights that multiply the values.

    W_Q, W_K: (head, d_model, d_head); W_V: (head, d_model, d_value); W_O: (head, d_value, d_model). Scores are Q K^T /
    sqrt(d_head), plus the relative bias where there is one; they are masked with `masked_score` before `weights` sees them.

    In training mode, with `dropout` > 0, whole codes are dropped: one mask over (query, key), shared by batch and heads, drawn
    from `generator` (None: torch's global one); survivors are scaled by 1 / (1 - dropout). That is how the reference code of
    2406.05816 does it.

    With a `transfer`, ``hook_coefficients`` holds the weights before it, ``hook_pattern`` and ``hook_code`` those after it.

    Args:
        sizes: of the transformer.
        mask: (seq, seq) bool, [query, key] True where attention is allowed (None: everywhere).
        n_ctx: the longest sequence, for a learned bias by relative position (None: no such bias).
        dropout: in training, the probability that a (query, key) pair's whole code is dropped; at least 0, below 1.
        transfer: what the target block takes over from the blocks before it (None: nothing).
    """

    masked_score = -math.inf
    head_site: ClassVar[tuple[str, int]] = ("hook_z", 2)
    """The hook point at which a head is told from the others, and the dimension that counts heads there."""
    rowwise: ClassVar[bool] = False
    """Whether a query's weights follow from its own scores alone, wherever it stands among the queries. Then a part of the
    queries may be computed without the others; else all are, and what is asked for is cut out. A class with `weights`,
    `scores` or `dropped` of its own says so itself, or is taken for one that is not."""
    W_Q: nn.Parameter
    W_K: nn.Parameter
    W_V: nn.Parameter
    mask: Tensor | None
    hook_q: HookPoint
    hook_k: HookPoint
    hook_v: HookPoint
    hook_attn_scores: HookPoint
    hook_coefficients: HookPoint
    hook_pattern: HookPoint
    hook_code: HookPoint
    hook_z: HookPoint
    hook_result: HookPoint

    def __init__(
        self,
        sizes: Sizes,
        mask: Tensor | None,
        n_ctx: int | None = None,
        dropout: float = 0.0,
        transfer: TransferRows | None = None,
    ) -> None:
        super().__init__()
        head, d_model = sizes.n_heads, sizes.d_model
        for name, width in (("Q", sizes.d_head), ("K", sizes.d_head), ("V", sizes.d_value)):
            weight = nn.Parameter(torch.empty(head, d_model, width))
            self.register_parameter(f"W_{name}", truncated_lecun_(weight, d_model))
            self.register_parameter(f"b_{name}", nn.Parameter(torch.zeros(head, width)))
        self.W_O = truncated_lecun_(nn.Parameter(torch.empty(head, sizes.d_value, d_model)), head * sizes.d_value)
        self.b_O = nn.Parameter(torch.zeros(d_model))
        self.bias = None if n_ctx is None else RelativeBias(head, n_ctx)
        self.register_buffer("mask", mask, persistent=False)
        self.dropout, self.generator = dropout, None
        self.use_attn_result = False
        for name in ("q", "k", "v", "attn_scores", "pattern", "code", "z", "result"):
            self.add_module(f"hook_{name}", HookPoint())
        self.transfer = transfer
        if transfer is not None:
            self.hook_coefficients = HookPoint()

    def __init_subclass__(cls, **more: Any) -> None:
        super().__init_subclass__(**more)
        if "rowwise" not in vars(cls) and vars(cls).keys() & {"weights", "scores", "dropped"}:
            cls.rowwise = False

    @abstractmethod
    def weights(self, scores: Tensor) -> Tensor:
        """What multiplies the values.

        Args:
            scores: (batch, head, query, key), masked; of all queries, in their order, unless the class says `rowwise`.

        Returns:
            The same shape.
        """

    def mix(self, code: Tensor, v: Tensor) -> Tensor:
        """What queries read.

        Args:
            code: (batch, query, key, head).
            v: (batch, key, head, d_value).

        Returns:
            (batch, query, head, d_value).
        """
        return product(code.permute(0, 3, 1, 2), v.transpose(1, 2)).transpose(1, 2)

    def _project(self, x: Tensor, name: str) -> Tensor:
        weight, bias = getattr(self, f"W_{name}"), getattr(self, f"b_{name}")
        if x.ndim == 4:  # a copy of the stream per head
            return torch.einsum("bphm,hmd->bphd", x, weight) + bias
        flat = weight.permute(1, 0, 2).flatten(1)
        projected = nn.functional.linear(x, flat.T, bias.flatten())
        return projected.unflatten(-1, bias.shape)

    def dropped(self, scores: Tensor, kept: Tensor) -> Tensor:
        """The weights with whole codes dropped.

        Args:
            scores: (batch, head, query, key), masked.
            kept: (query, key), 0 or, for a pair that stays, 1 / (1 - dropout).

        Returns:
            The weights, of the scores' shape.
        """
        return self.weights(scores) * kept

    def scores(self, x: Tensor, asking: Tensor) -> Tensor:
        """Scores before bias and mask.

        Args:
            x: (batch, seq, d_model), what keys are made of; or a copy of it per head, (batch, seq, head, d_model).
            asking: (batch, query, d_model), what queries are made of, at the query positions; or a copy per head.

        Returns:
            (batch, head, query, key).
        """
        q = self.hook_q(self._project(asking, "Q"))
        k = self.hook_k(self._project(x, "K"))
        return product((q / math.sqrt(q.shape[-1])).transpose(1, 2), k.permute(0, 2, 3, 1))

    def output(self, code: Tensor, v: Tensor) -> Tensor:
        """What attention writes.

        Args:
            code: (batch, query, key, head).
            v: (batch, key, head, d_value).

        Returns:
            (batch, query, d_model).
        """
        z = self.hook_z(self.mix(code, v))
        if self.use_attn_result:
            result = self.hook_result(torch.einsum("bphe,hem->bphm", z, self.W_O))
            return result.sum(2) + self.b_O
        return z.flatten(2) @ self.W_O.flatten(0, 1) + self.b_O

    def forward(self, x: Tensor | Inputs, queries: slice | None = None) -> Tensor:
        """Attention of some positions to all.

        Args:
            x: (batch, seq, d_model), or what queries, keys and values are made of, apart.
            queries: the query positions (None: all of them).

        Returns:
            (batch, query, d_model).

        Raises:
            ConfigError: the mask is that of a shorter sequence.
        """
        if queries is not None and not self.rowwise:
            return self.forward(x)[:, queries]
        asking, x, valued = x if isinstance(x, Inputs) else (x, x, x)
        seq = x.shape[1]
        if self.mask is not None and seq > len(self.mask):
            raise ConfigError(
                f"the mask is that of {len(self.mask)} tokens, got {seq}; build the model with a mask for the longest sequence"
            )
        rows = None if self.transfer is not None else queries  # transfer also reads rows that are not asked for
        products = self.scores(x, asking if rows is None else asking[:, rows])
        scores = full(products)
        if self.bias is not None:
            scores = scores + self.bias(rows, seq)
        mask = None if self.mask is None else self.mask[rows or slice(seq), :seq]
        if mask is not None:
            scores = scores.masked_fill(~mask, self.masked_score)
        scores = self.hook_attn_scores(scores)
        if self.training and self.dropout:
            draw = torch.rand(scores.shape[2:], generator=self.generator, device=scores.device)
            pattern = self.dropped(scores, (draw >= self.dropout).to(scores.dtype) / (1 - self.dropout))
        else:
            pattern = self.weights(scores)
        if self.transfer is not None:
            pattern = self.transfer(self.hook_coefficients(full(pattern)))
            pattern = pattern if mask is None else pattern.masked_fill(~mask, 0)
            pattern = pattern if queries is None else pattern[:, :, queries]
        code = self.hook_code(self.hook_pattern(pattern.to(products.dtype)).permute(0, 2, 3, 1))
        return self.output(code, self.hook_v(self._project(valued, "V")))
