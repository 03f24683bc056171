"""Hypernetwork transformers whose task network is not the teacher's: another depth, another activation.

`HypernetworkTransformer` executes B relu(W(z) x), which on the modular hyperteacher is the teacher's own equation. What it
owes to that, rather than to being a hypernetwork, is told by executors of the same kind that do not contain the teacher:

    y(x) = B^T f(W_n(z)^T … f(W_1(z)^T x)) + b,    W_k(z) = sum_c z_c Theta_kc

Another d_code, the other setting that a teacher has and a learner need not know, is a field of both.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from compolens.foundation.configs import nearest, require, require_positive
from compolens.hooks import HookPoint
from compolens.models.base import truncated_lecun_
from compolens.models.bottleneck import CodeArchitecture

ACTIVATIONS = {"relu": torch.relu, "tanh": torch.tanh, "sine": torch.sin, "square": torch.square}
"""What follows each generated layer."""


class GeneratedNetwork(nn.Module):
    """A task network all of whose hidden layers are generated from the code; with one layer and relu, `HypernetworkExecutor`.

    W_modules (d_code, d_x, d_hidden) and W_deeper (n_hidden - 1, d_code, d_hidden, d_hidden) are mixed by the code; W_out
    (d_hidden, d_out) and b_out are not. ``hook_weights`` is the generated first layer, ``hook_hidden`` what the
    last one puts out.

    Args:
        d_code: width of the code.
        d_x: width of the query's input.
        d_hidden: width of every hidden layer.
        d_out: width of an answer.
        n_hidden: hidden layers, at least 1.
        activation: a name in `ACTIVATIONS`.
    """

    def __init__(self, d_code: int, d_x: int, d_hidden: int, d_out: int, n_hidden: int, activation: str) -> None:
        super().__init__()
        self.W_modules = truncated_lecun_(nn.Parameter(torch.empty(d_code, d_x, d_hidden)), d_x)
        self.W_out = truncated_lecun_(nn.Parameter(torch.empty(d_hidden, d_out)), d_hidden)
        self.b_out = nn.Parameter(torch.zeros(d_out))
        deeper = torch.empty(n_hidden - 1, d_code, d_hidden, d_hidden)
        self.W_deeper = truncated_lecun_(nn.Parameter(deeper), d_hidden) if n_hidden > 1 else None
        self.activation = ACTIVATIONS[activation]
        self.hook_weights = HookPoint()
        self.hook_hidden = HookPoint()

    def code_reader(self) -> Tensor:
        """(entries of all generated layers, d_code): what each of them reads off the code."""
        first = self.W_modules.detach().flatten(1).T
        if self.W_deeper is None:
            return first
        return torch.cat([first, self.W_deeper.detach().transpose(0, 1).flatten(1).T])

    def forward(self, code: Tensor, x: Tensor) -> Tensor:
        """The answers of the task network that a code generates.

        Args:
            code: (batch, 1, d_code).
            x: (batch, pos, d_x).

        Returns:
            (batch, pos, d_out).
        """
        mix = code.squeeze(1)
        generated = (mix @ self.W_modules.flatten(1)).unflatten(-1, self.W_modules.shape[1:])
        hidden = self.activation(x @ self.hook_weights(generated))
        for layer in () if self.W_deeper is None else self.W_deeper:
            hidden = self.activation(hidden @ (mix @ layer.flatten(1)).unflatten(-1, layer.shape[1:]))
        return self.hook_hidden(hidden) @ self.W_out + self.b_out


@dataclass(frozen=True)
class OtherExecutorTransformer(CodeArchitecture):
    """`HypernetworkTransformer` with a task network of another depth or activation than the teacher's.

    Fields as in `CodeArchitecture`.

    Args:
        d_hidden: width of the generated task network.
        n_hidden: its hidden layers; the teacher of the modular hyperteacher has 1.
        activation: "relu" (the teacher's), "tanh", "sine" or "square".
    """

    d_hidden: int = 32
    n_hidden: int = 2
    activation: str = "relu"

    def __post_init__(self) -> None:
        super().__post_init__()
        require_positive(self, "n_hidden")
        allowed = nearest(str(self.activation), ACTIVATIONS)
        require(self.activation in list(ACTIVATIONS), f"no activation {self.activation!r}; {allowed}")

    def executor(self, d_x: int, d_out: int) -> GeneratedNetwork:
        return GeneratedNetwork(self.d_code, d_x, self.d_hidden, d_out, self.n_hidden, self.activation)
