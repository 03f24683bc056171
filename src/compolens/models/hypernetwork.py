"""The hypernetwork transformer of 2407.12275: context -> latent code -> linear hypernetwork -> task network on the query.

y(x) = B^T relu(W(z)^T x) + b with W(z) = sum_c z_c Theta_c, z = code(context). The task network alone sees the query, so
what was inferred (z) and what is done with it (Theta, B) are separate by construction.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from compolens.hooks import HookPoint
from compolens.models.base import truncated_lecun_
from compolens.models.bottleneck import CodeArchitecture


class HypernetworkExecutor(nn.Module):
    """W_modules (d_code, d_x, d_hidden) are mixed by the code into one task network; W_out (d_hidden, d_out), b_out.

    ``hook_weights`` (batch, d_x, d_hidden) is the generated first layer, ``hook_hidden`` (batch, pos, d_hidden) its output.

    Args:
        d_code: width of the code.
        d_x: width of the query's input.
        d_hidden: width of the task network.
        d_out: width of an answer.
    """

    def __init__(self, d_code: int, d_x: int, d_hidden: int, d_out: int) -> None:
        super().__init__()
        self.W_modules = truncated_lecun_(nn.Parameter(torch.empty(d_code, d_x, d_hidden)), d_x)
        self.W_out = truncated_lecun_(nn.Parameter(torch.empty(d_hidden, d_out)), d_hidden)
        self.b_out = nn.Parameter(torch.zeros(d_out))
        self.hook_weights = HookPoint()
        self.hook_hidden = HookPoint()

    def code_reader(self) -> Tensor:
        """(d_x * d_hidden, d_code): what each entry of the generated layer reads off the code."""
        return self.W_modules.detach().flatten(1).T

    def forward(self, code: Tensor, x: Tensor) -> Tensor:
        """The answers of the task network that a code generates.

        Args:
            code: (batch, 1, d_code).
            x: (batch, pos, d_x).

        Returns:
            (batch, pos, d_out).
        """
        generated = (code.squeeze(1) @ self.W_modules.flatten(1)).unflatten(-1, self.W_modules.shape[1:])
        hidden = self.hook_hidden(torch.relu(x @ self.hook_weights(generated)))
        return hidden @ self.W_out + self.b_out


@dataclass(frozen=True)
class HypernetworkTransformer(CodeArchitecture):
    """Transformer encoder, code of width d_code, and a linear hypernetwork that generates a d_hidden-wide task network.

    Fields as in `CodeArchitecture`. d_code equal to the task's number of modules, and d_hidden twice the teacher's, are the
    settings that the theory of 2312.15001 favours (little over-parameterisation).

    Args:
        d_hidden: width of the generated task network.
    """

    d_hidden: int = 32

    def executor(self, d_x: int, d_out: int) -> HypernetworkExecutor:
        return HypernetworkExecutor(self.d_code, d_x, self.d_hidden, d_out)
