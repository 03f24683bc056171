"""Inference separated from execution: a transformer reads the context into a code, an executor answers from the code.

`CodeTransformer` is the shared encoder; an executor is any module ``(code, x) -> prediction``. `BottleneckMLP` executes
with a generic network on [code; x]: the control that tells a bottleneck from a hypernetwork (compare Mittal et al.,
2405.19162, where a bottleneck with a generic predictor brings no general benefit out of distribution).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import cast

import torch
from torch import Tensor, nn

from compolens.foundation.configs import require, require_positive
from compolens.hooks import HookPoint
from compolens.models.attention import Sizes
from compolens.models.base import Architecture, DoesNotApply, split_positions, truncated_lecun_
from compolens.models.softmax import SoftmaxAttention
from compolens.models.transformer import Transformer


class CodeTransformer(Transformer):
    """Context tokens and one learned summary token -> softmax transformer -> code (batch, 1, d_code) -> executor.

    The model's own sequence is the context followed by the summary: ``roles["readout"]`` is the summary's position, and
    ``blocks.*`` hook points have that length. The executor alone sees the queries. ``unembed`` maps to the code, which
    ``hook_code`` holds; editing it changes what is executed, everywhere.

    Args:
        sizes: of the encoder.
        executor: (code, x) -> prediction.
        d_in: width of a token.
        d_code: width of the code.
        context: positions that the encoder sees.
        d_x: how many leading coordinates of a token the executor sees.
    """

    def __init__(self, sizes: Sizes, executor: nn.Module, *, d_in: int, d_code: int, context: list[int], d_x: int) -> None:
        length = len(context) + 1
        mask = torch.eye(length, dtype=torch.bool)
        mask[:, :-1] = True
        super().__init__(sizes, lambda: SoftmaxAttention(sizes, mask), d_in=d_in, d_out=d_code, seq=length, answers=(-1,))
        self.summary = nn.Parameter(0.02 * torch.randn(sizes.d_model))
        self.executor = executor
        self.context, self.d_x = context, d_x
        self.hook_code = HookPoint()
        self.setup()

    def encode(self, tokens: Tensor, stop_at_layer: int | None = None) -> Tensor:
        """The code that the context is read into.

        Args:
            tokens: (batch, seq, d_in).
            stop_at_layer: return the residual stream entering this layer instead.

        Returns:
            (batch, 1, d_code), or (batch, context + 1, d_model).

        Raises:
            ConfigError: there are fewer tokens than the context has.
        """
        seq, last = tokens.shape[1], max(self.context)
        require(seq > last, f"the context goes to position {last}, but there are {seq} tokens; give the whole context")
        embedded = self.embed(tokens[:, self.context])
        summary = self.summary.expand(len(tokens), 1, -1)
        resid = self.run_blocks(self.hook_embed(torch.cat([embedded, summary], dim=1)), stop_at_layer)
        return resid if stop_at_layer is not None else self.hook_code(self.unembed(self.ln_final(resid))[:, -1:])

    def resume(self, resid: Tensor, layer: int, tokens: Tensor) -> Tensor:
        resid = self.run_blocks(resid, start_at_layer=layer)
        return self.execute(self.hook_code(self.unembed(self.ln_final(resid))[:, -1:]), tokens)

    def reader(self, layer: int, hook: str, role: str) -> Tensor | None:
        """The code is read by the executor, if it has a linear map to begin with (its method `code_reader`). Arguments as in
        `HookedModel.reader`."""
        if hook != "hook_code":
            return super().reader(layer, hook, role)
        read = getattr(self.executor, "code_reader", None)
        return read() if callable(read) else None

    def execute(self, code: Tensor, tokens: Tensor) -> Tensor:
        """What the executor answers at every position under a code.

        Args:
            code: (batch, 1, d_code).
            tokens: (batch, seq, d_in), of which it sees the first d_x coordinates.

        Returns:
            (batch, seq, d_out).
        """
        return self.executor(code, tokens[..., : self.d_x])

    def forward(self, tokens: Tensor, stop_at_layer: int | None = None) -> Tensor:
        encoded = self.encode(tokens, stop_at_layer)
        return encoded if stop_at_layer is not None else self.execute(encoded, tokens)

    def answer(self, tokens: Tensor) -> Tensor:
        """The whole prediction: there is nothing to skip."""
        return self(tokens)


class MLPExecutor(nn.Module):
    """relu network on [code; x] with two hidden layers.

    Args:
        d_code: width of the code.
        d_x: width of the query's input.
        d_hidden: width of a hidden layer.
        d_out: width of an answer.
    """

    def __init__(self, d_code: int, d_x: int, d_hidden: int, d_out: int) -> None:
        super().__init__()
        widths = [d_code + d_x, d_hidden, d_hidden, d_out]
        layers = [nn.Linear(a, b) for a, b in pairwise(widths)]
        self.layers = nn.ModuleList(layers)
        for layer in layers:
            truncated_lecun_(layer.weight, layer.in_features)
            nn.init.zeros_(layer.bias)
        self.d_code = d_code
        self.hook_hidden = HookPoint()

    def code_reader(self) -> Tensor:
        """(d_hidden, d_code): the part of the first layer that belongs to the code."""
        first = cast("nn.Linear", self.layers[0])
        return first.weight.detach()[:, : self.d_code]

    def forward(self, code: Tensor, x: Tensor) -> Tensor:
        """The answers under a code.

        Args:
            code: (batch, 1, d_code).
            x: (batch, pos, d_x).

        Returns:
            (batch, pos, d_out).
        """
        first, second, last = self.layers
        hidden = torch.relu(first(torch.cat([code.expand(-1, x.shape[1], -1), x], dim=-1)))
        return last(self.hook_hidden(torch.relu(second(hidden))))


@dataclass(frozen=True)
class CodeArchitecture(Architecture):
    """What architectures with an explicit code share: a softmax encoder and the code's width. A subclass adds the executor.

    Args:
        n_layers: blocks of the encoder, which is sized like `SoftmaxTransformer`.
        d_model: width of its residual stream.
        n_heads: heads of a block.
        d_head: width of queries, keys and values, per head (None: d_model / n_heads).
        d_mlp: width of the MLP's hidden layer (None: 4 d_model).
        d_code: width of the code.
        d_hidden: width of the executor.
    """

    n_layers: int = 3
    d_model: int = 64
    n_heads: int = 4
    d_head: int | None = None
    d_mlp: int | None = None
    d_code: int = 8
    d_hidden: int = 64

    def __post_init__(self) -> None:
        super().__post_init__()
        Sizes.of(self)
        require_positive(self, "d_code", "d_hidden")

    @abstractmethod
    def executor(self, d_x: int, d_out: int) -> nn.Module:
        """A module (code (batch, 1, d_code), x (batch, pos, d_x)) -> (batch, pos, d_out).

        Args:
            d_x: width of the query's input.
            d_out: width of an answer.

        Returns:
            The module, with fresh weights.
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
    ) -> CodeTransformer:
        context, _ = split_positions(seq, answers)
        if d_x is None or not context:
            raise DoesNotApply(
                f"{type(self).__name__} needs a task of (input, answer) pairs: build(..., seq=, answers=, d_x=), so that the "
                "executor can see a query's input without the context"
            )
        executor = self.executor(d_x, d_out)
        return CodeTransformer(Sizes.of(self), executor, d_in=d_in, d_code=self.d_code, context=context, d_x=d_x)


@dataclass(frozen=True)
class BottleneckMLP(CodeArchitecture):
    """`HypernetworkTransformer`'s encoder and code, executed by a generic MLP on [code; x] instead of a hypernetwork.

    d_hidden: width of the executor's two hidden layers; the other fields as in `CodeArchitecture`.
    """

    def executor(self, d_x: int, d_out: int) -> MLPExecutor:
        return MLPExecutor(self.d_code, d_x, self.d_hidden, d_out)
