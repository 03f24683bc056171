"""Gradient descent as linear self-attention, with weights written down instead of trained (2212.07677, Prop. 1 and A.10).

With tokens e = (x, y), N of them in the context, and the loss L(W) = 1/(2N) sum_i |W x_i - y_i|^2, one layer does

    (x_j, y_j) <- (x_j, y_j - dW x_j),    dW = -(eta/N) sum_i (W_0 x_i - y_i) x_i^T

to every token, so that T layers are T steps from W_0, and minus the query's y coordinates are W_T x if they started as -W_0 x.
GD++ also conditions the inputs, x_j <- (I - gamma X X^T) x_j with X X^T = sum_i x_i x_i^T.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from compolens.foundation.configs import ConfigError, require
from compolens.models.attention import Attention
from compolens.models.token_space import TokenSpaceArchitecture, UnscaledLinearAttention
from compolens.models.token_stream import Stream


class StepWeights(NamedTuple):
    """The weights of a layer with one head, as it stores them: applied to rows, x @ W; float64.

    Args:
        W_Q: (1, d_in, d_in), of the queries.
        W_K: (1, d_in, d_in), of the keys.
        W_V: (1, d_in, d_in), of the values.
        W_O: (1, d_in, d_in), of the output.
    """

    W_Q: Tensor
    W_K: Tensor
    W_V: Tensor
    W_O: Tensor


def gradient_descent_weights(
    d_x: int, d_y: int, n: int, eta: float, gamma: float = 0.0, w0: Tensor | None = None, d_in: int | None = None
) -> StepWeights:
    """The layer of unscaled linear attention that is a step of gradient descent; GD++ where gamma is not 0.

    Args:
        d_x: width of x.
        d_y: width of y.
        n: N, examples of the context.
        eta: rate of the step.
        gamma: rate at which inputs are conditioned; 0 is plain descent.
        w0: (d_y, d_x), what descent starts from (None: 0). It is in every layer's W_V, not in the first one's alone, and the
            query's y coordinates must start as -w0 x.
        d_in: width of a token, at least d_x + d_y (None: that); coordinates beyond are ignored.

    Returns:
        The layer's weights.

    Raises:
        ConfigError: d_in is too small, or w0 of another shape.
    """
    d_in = d_x + d_y if d_in is None else d_in
    if d_in < d_x + d_y:
        raise ConfigError(f"d_in must be at least d_x + d_y = {d_x + d_y}, got {d_in}")
    if w0 is not None and w0.shape != (d_y, d_x):
        raise ConfigError(f"w0 must be (d_y, d_x) = ({d_y}, {d_x}), got {tuple(w0.shape)}")
    x, y = slice(0, d_x), slice(d_x, d_x + d_y)
    key, value, output = (torch.zeros(1, d_in, d_in, dtype=torch.float64) for _ in range(3))
    key[0, x, x] = torch.eye(d_x, dtype=torch.float64)
    value[0, y, y] = -torch.eye(d_y, dtype=torch.float64)
    output[0, y, y] = eta / n * torch.eye(d_y, dtype=torch.float64)
    if w0 is not None:
        value[0, x, y] = w0.T.double()
    if gamma:
        value[0, x, x] = torch.eye(d_x, dtype=torch.float64)
        output[0, x, x] = -gamma * torch.eye(d_x, dtype=torch.float64)
    else:
        output[0, x, x] = eta / n * torch.eye(d_x, dtype=torch.float64)  # as printed; there is nothing for it to act on
    return StepWeights(key, key.clone(), value, output)


@dataclass(frozen=True)
class ConstructedGradientDescent(TokenSpaceArchitecture):
    """n_layers steps of gradient descent from W_0 = 0, of rate eta (of GD++, with gamma above 0), as one tied layer.

    N is the number of context tokens, or of all tokens where every one is an answer. A damped step of rate eta is a step of
    rate damping * eta. The weights are parameters: a run of 0 steps keeps them, training would start from them.

    Args:
        eta: rate of a step, above 0.
        gamma: rate at which inputs are conditioned, at least 0; 0 is plain descent.
    """

    eta: float = 1.0
    gamma: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.eta > 0, f"ConstructedGradientDescent: eta must be positive, got {self.eta!r}")
        require(
            self.gamma >= 0, f"ConstructedGradientDescent: gamma must not be negative, got {self.gamma!r}; 0 is plain descent"
        )

    def attention(self) -> type[Attention]:
        return UnscaledLinearAttention

    def stream(self) -> Stream:
        return Stream(tied=True, sign=-1.0, damping=self.damping)

    def start(self, attention: Attention, d_x: int, d_y: int, n: int) -> None:
        d_in = attention.W_Q.shape[1]
        weights = gradient_descent_weights(d_x, d_y, n, self.eta, self.gamma, d_in=d_in)
        for name, weight in weights._asdict().items():
            attention.get_parameter(name).copy_(weight)
