"""The hypernetwork transformer of 2407.12275: context -> latent code -> linear hypernetwork -> task network on the query.

y(x) = B^T relu(W(z)^T x) + b with W(z) = sum_c z_c Theta_c, z = code(context). The task network alone sees the query, so
what was inferred (z) and what is done with it (Theta, B) are separate by construction.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from compolens.configs import require_positive
from compolens.hooks import HookPoint
from compolens.models.base import Architecture, truncated_lecun_
from compolens.models.bottleneck import CodeTransformer, context_of
from compolens.models.transformer import Sizes


class HypernetworkExecutor(nn.Module):
    """W_modules (d_code, d_x, d_hidden) are mixed by the code into one task network; W_out (d_hidden, d_out), b_out.

    ``hook_weights`` (batch, d_x, d_hidden) is the generated first layer, ``hook_hidden`` (batch, pos, d_hidden) its output.
    """

    def __init__(self, d_code: int, d_x: int, d_hidden: int, d_out: int) -> None:
        super().__init__()
        self.W_modules = truncated_lecun_(nn.Parameter(torch.empty(d_code, d_x, d_hidden)), d_x)
        self.W_out = truncated_lecun_(nn.Parameter(torch.empty(d_hidden, d_out)), d_hidden)
        self.b_out = nn.Parameter(torch.zeros(d_out))
        self.hook_weights = HookPoint()
        self.hook_hidden = HookPoint()

    def forward(self, code: Tensor, x: Tensor) -> Tensor:
        generated = (code.squeeze(1) @ self.W_modules.flatten(1)).unflatten(-1, self.W_modules.shape[1:])
        hidden = self.hook_hidden(torch.relu(x @ self.hook_weights(generated)))
        return hidden @ self.W_out + self.b_out


@dataclass(frozen=True)
class HypernetworkTransformer(Architecture):
    """Transformer encoder, code of width d_code, and a linear hypernetwork that generates a d_hidden-wide task network.

    The encoder is sized like `SoftmaxTransformer`. d_code equal to the task's number of modules, and d_hidden twice the
    teacher's, are the settings that the theory of 2312.15001 favours (little over-parameterisation).
    """

    n_layers: int = 3
    d_model: int = 64
    n_heads: int = 4
    d_head: int | None = None
    d_mlp: int | None = None
    d_code: int = 8
    d_hidden: int = 32

    def __post_init__(self) -> None:
        Sizes.of(self)
        require_positive(self, "d_code", "d_hidden")

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
        context, d_x = context_of("HypernetworkTransformer", seq, answers, d_x)
        executor = HypernetworkExecutor(self.d_code, d_x, self.d_hidden, d_out)
        return CodeTransformer(Sizes.of(self), executor, d_in=d_in, d_code=self.d_code, context=context, d_x=d_x)
