"""Hypernetwork transformers whose task network is not the teacher's: another depth, another activation.

`HypernetworkTransformer` executes B relu(W(z) x), which on the modular hyperteacher is the teacher's own equation. What it
owes to that, rather than to being a hypernetwork, is told by executors of the same kind that do not contain the teacher:

    y(x) = B^T f(W_n(z)^T … f(W_1(z)^T x + c_1(z))) + b,    W_k(z) = sum_c z_c Theta_kc,    c_k(z) = sum_c z_c beta_kc

Biases c_k are off by default, as in the teacher. Without them an odd activation (tanh, sine) makes y - b an odd function of x,
and the even half of a relu network is out of its reach. Another d_code, the other setting that a teacher has and a learner
need not know, is a field of both.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from compolens.foundation.configs import added_later, nearest, require, require_positive
from compolens.hooks import HookPoint
from compolens.models.base import truncated_lecun_
from compolens.models.bottleneck import CodeArchitecture

ACTIVATIONS = {"relu": torch.relu, "tanh": torch.tanh, "sine": torch.sin, "square": torch.square}
"""What follows each generated layer."""


class GeneratedNetwork(nn.Module):
    """A task network all of whose hidden layers are generated from the code; with one layer and relu, `HypernetworkExecutor`.

    W_modules (d_code, d_x, d_hidden) and W_deeper (n_hidden - 1, d_code, d_hidden, d_hidden) are mixed by the code; W_out
    (d_hidden, d_out) and b_out are not. With biases, b_modules (n_hidden, d_code, d_hidden) are mixed too; they begin at 0.
    ``hook_weights`` is the generated first layer, ``hook_hidden`` what the last one puts out.

    Args:
        d_code: width of the code.
        d_x: width of the query's input.
        d_hidden: width of every hidden layer.
        d_out: width of an answer.
        n_hidden: hidden layers, at least 1.
        activation: a name in `ACTIVATIONS`.
        biases: whether the code generates biases of the hidden layers, too.
    """

    def __init__(
        self, d_code: int, d_x: int, d_hidden: int, d_out: int, n_hidden: int, activation: str, biases: bool = False
    ) -> None:
        super().__init__()
        self.W_modules = truncated_lecun_(nn.Parameter(torch.empty(d_code, d_x, d_hidden)), d_x)
        self.W_out = truncated_lecun_(nn.Parameter(torch.empty(d_hidden, d_out)), d_hidden)
        self.b_out = nn.Parameter(torch.zeros(d_out))
        deeper = torch.empty(n_hidden - 1, d_code, d_hidden, d_hidden)
        self.W_deeper = truncated_lecun_(nn.Parameter(deeper), d_hidden) if n_hidden > 1 else None
        self.b_modules = nn.Parameter(torch.zeros(n_hidden, d_code, d_hidden)) if biases else None
        self.activation = ACTIVATIONS[activation]
        self.hook_weights = HookPoint()
        self.hook_hidden = HookPoint()

    def code_reader(self) -> Tensor:
        """(entries of all generated layers, d_code): what each of them reads off the code."""
        generated = [self.W_modules, *(part.transpose(0, 1) for part in (self.W_deeper, self.b_modules) if part is not None)]
        return torch.cat([part.detach().flatten(1).T for part in generated])

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
        hidden = self._activated(x @ self.hook_weights(generated), mix, 0)
        for k, layer in enumerate(() if self.W_deeper is None else self.W_deeper, start=1):
            hidden = self._activated(hidden @ (mix @ layer.flatten(1)).unflatten(-1, layer.shape[1:]), mix, k)
        return self.hook_hidden(hidden) @ self.W_out + self.b_out

    def _activated(self, product: Tensor, mix: Tensor, layer: int) -> Tensor:
        """What a layer makes of (batch, pos, d_hidden), for codes (batch, d_code)."""
        return self.activation(product if self.b_modules is None else product + (mix @ self.b_modules[layer])[:, None])


@dataclass(frozen=True)
class OtherExecutorTransformer(CodeArchitecture):
    """`HypernetworkTransformer` with a task network of another depth or activation than the teacher's.

    Fields as in `CodeArchitecture`.

    Args:
        d_hidden: width of the generated task network.
        n_hidden: its hidden layers; the teacher of the modular hyperteacher has 1.
        activation: "relu" (the teacher's), "tanh", "sine" or "square".
        biases: whether the code generates biases of the hidden layers, too; the teacher has none.
    """

    d_hidden: int = 32
    n_hidden: int = 2
    activation: str = "relu"
    biases: bool = added_later(False)

    def __post_init__(self) -> None:
        super().__post_init__()
        require_positive(self, "n_hidden")
        allowed = nearest(str(self.activation), ACTIVATIONS)
        require(self.activation in list(ACTIVATIONS), f"no activation {self.activation!r}; {allowed}")

    def executor(self, d_x: int, d_out: int) -> GeneratedNetwork:
        return GeneratedNetwork(self.d_code, d_x, self.d_hidden, d_out, self.n_hidden, self.activation, self.biases)
