"""One layer of linear attention whose heads can be the modules of a hypernetwork (2407.12275).

With the code z and the input x in the stream, y = A^T relu(sum_m z_m Theta_m^T x) is one such layer with M heads and one MLP:
head m's score, of a token to itself, is z_m, its values are Theta_m^T x, all heads write into the same coordinates, so that
their sum is W(z)^T x, and the MLP is relu and A. No norm and no bias, since the construction has none:

    stream  [token | hidden | answer]      hidden += sum_m score_m Theta_m^T x,      answer += A^T relu(hidden)

`TeacherModules` writes these weights down; without it they start random, and training shows how near it comes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from compolens.foundation.configs import require_positive
from compolens.hooks import HookedModel, HookPoint
from compolens.models.attention import Attention, Sizes
from compolens.models.base import Architecture, DoesNotApply, split_positions
from compolens.models.blocks import MLP, Block, Embed, Unembed
from compolens.models.linear import UnnormalizedAttention
from compolens.models.token_stream import Identity
from compolens.models.transformer import ModelConfig, Transformer


class ReluMLP(MLP):
    """Two layers with relu between them; sizes as in `MLP`."""

    def forward(self, x: Tensor) -> Tensor:
        post = self.hook_post(torch.relu(self.hook_pre(nn.functional.linear(x, self.W_in.T, self.b_in))))
        return nn.functional.linear(post, self.W_out.T, self.b_out)


class ModuleHeadsTransformer(Transformer):
    """tokens (batch, seq, d_in) -> prediction (batch, seq, d_out), as `Transformer` offers it, without norms and biases.

    Args:
        sizes: of the one layer.
        attention: makes its attention.
        d_in: width of a token.
        d_out: width of an answer.
        seq: tokens of an episode (None: any number).
        answers: positions that count, may be negative.
        d_x: how many leading coordinates of a token are the query's input.
    """

    def __init__(
        self,
        sizes: Sizes,
        attention: Callable[[], Attention],
        *,
        d_in: int,
        d_out: int,
        seq: int | None,
        answers: Sequence[int],
        d_x: int,
    ) -> None:
        HookedModel.__init__(self)  # not the parent's: its norms and its MLP have others here
        self.cfg = ModelConfig(sizes, d_in, d_out, seq)
        self.cfg.normalization_type, self.cfg.act_fn = None, "relu"
        context, readout = split_positions(seq, answers)
        self.roles = {"context": context, "readout": readout}
        self.d_x = d_x
        self.embed, self.hook_embed = Embed(d_in, sizes.d_model), HookPoint()
        self.blocks = nn.ModuleList(
            Block(sizes.d_model, attention(), ReluMLP(sizes.d_model, sizes.d_mlp), Identity) for _ in range(sizes.n_layers)
        )
        self.ln_final = Identity(sizes.d_model)  # type: ignore[assignment]
        self.unembed = Unembed(sizes.d_model, d_out)
        self._calm_start()
        self._fix_biases()
        self.setup()

    def head_modules(self) -> Tensor:
        """(head, d_x, d_hidden): what each head, at a score of 1, adds to what enters relu, by the input."""
        layer: Any = self.blocks[0]
        attention, mlp = layer.attn, layer.mlp
        values = torch.einsum("xm,hmv,hvn->hxn", self.embed.W_E[: self.d_x], attention.W_V, attention.W_O)
        return values.detach() @ mlp.W_in.detach()


@dataclass(frozen=True)
class ModuleHeads(Architecture):
    """One layer of linear attention without norms and biases, and a relu MLP: a hypernetwork where each head is a module.

    The stream is as wide as a token, the hidden layer and an answer together, so that the construction fits.

    Args:
        n_heads: heads; as many as modules, for the construction.
        d_hidden: width of values and of the MLP, the hidden layer of the task network.
    """

    n_heads: int = 8
    d_hidden: int = 16

    def __post_init__(self) -> None:
        super().__post_init__()
        require_positive(self, "n_heads", "d_hidden")

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
    ) -> ModuleHeadsTransformer:
        if d_x is None:
            raise DoesNotApply(
                "ModuleHeads needs a task of (input, answer) pairs: without biases, a token that is hidden asks nothing"
            )
        sizes = Sizes(1, d_in + self.d_hidden + d_out, self.n_heads, 1, self.d_hidden, self.d_hidden)

        def attention() -> Attention:
            return UnnormalizedAttention(sizes, mask)

        return ModuleHeadsTransformer(sizes, attention, d_in=d_in, d_out=d_out, seq=seq, answers=answers, d_x=d_x)
