"""Dual models of whole transformer layers: output projection, residual stream and MLP around `dual_model`'s heads.

An MLP is affine at the point where it is evaluated, W_F y + b_F, with a gate act(u) / u per hidden unit and the norm's divisor
held; that turns a layer into one gradient step too (2310.13220 has it for ReLU), exact there and nowhere else. Several layers
are a sequence of dual models, with one model per position, trained on what the layer before predicts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from compolens.measures.dual_model import DualPrediction, dual_step


@dataclass(frozen=True)
class RMSNorm:
    """x over the root of its mean square plus eps, times gain, plus shift.

    Args:
        gain: (d_model,).
        shift: (d_model,) or 0.
        eps: added to the mean square.
    """

    gain: Tensor
    shift: Tensor | float = 0.0
    eps: float = 1e-6

    def centred(self, x: Tensor) -> Tensor:
        """What is scaled: `x` (..., d_model) itself."""
        return x

    def scale(self, x: Tensor) -> Tensor:
        """What `x` (..., d_model) is divided by, (..., 1): the only part that is not linear."""
        return (self.centred(x).square().mean(-1, keepdim=True) + self.eps).sqrt()

    def at(self, x: Tensor, scale: Tensor) -> Tensor:
        """The norm of x with its divisor held: affine in x.

        Args:
            x: (..., d_model).
            scale: (..., 1), the divisor.

        Returns:
            (..., d_model).
        """
        return self.centred(x) / scale * self.gain + self.shift

    def __call__(self, x: Tensor) -> Tensor:
        return self.at(x, self.scale(x))


class LayerNorm(RMSNorm):
    """The same after subtraction of the mean."""

    def centred(self, x: Tensor) -> Tensor:
        return x - x.mean(-1, keepdim=True)


def secant_gate(activation: Callable[[Tensor], Tensor], pre: Tensor) -> Tensor:
    """Sigma = act(u) / u, 0 at u = 0; 0 or 1 for ReLU.

    Args:
        activation: elementwise, with act(0) = 0.
        pre: u, of any shape.

    Returns:
        The same shape.

    Raises:
        ValueError: act(0) is not 0.
    """
    if float(activation(pre.new_zeros(1))) != 0:
        raise ValueError("a secant gate needs an activation with act(0) = 0, such as torch.relu or torch.nn.functional.gelu")
    return torch.where(pre == 0, torch.zeros_like(pre), activation(pre) / torch.where(pre == 0, torch.ones_like(pre), pre))


@dataclass(frozen=True)
class MLP:
    """A norm, a linear map, an activation, a linear map.

    Args:
        norm: the norm before it.
        W_in: (d_model, d_mlp).
        b_in: (d_mlp,).
        W_out: (d_mlp, d_model).
        b_out: (d_model,).
        activation: elementwise, with act(0) = 0.
    """

    norm: RMSNorm
    W_in: Tensor
    b_in: Tensor
    W_out: Tensor
    b_out: Tensor
    activation: Callable[[Tensor], Tensor]

    def linearised(self, x: Tensor) -> LinearisedMLP:
        """The affine map that agrees with the MLP at `x` (..., d_model), and in general only there."""
        return LinearisedMLP(self, self.norm.scale(x), secant_gate(self.activation, self.norm(x) @ self.W_in + self.b_in))


@dataclass(frozen=True)
class LinearisedMLP:
    """y -> y W_F + b_F, one per position.

    Args:
        mlp: what is linearised.
        scale: (..., 1) the norm's divisor, held where it was taken.
        gate: (..., d_mlp) act(u) / u, held where it was taken.
    """

    mlp: MLP
    scale: Tensor
    gate: Tensor

    def _out(self, hidden: Tensor) -> Tensor:
        return (self.gate * hidden) @ self.mlp.W_out

    def linear(self, y: Tensor) -> Tensor:
        """The product of `y` (..., d_model) with W_F, of the same shape, without forming W_F."""
        return self._out((self.mlp.norm.centred(y) / self.scale * self.mlp.norm.gain) @ self.mlp.W_in)

    @property
    def matrix(self) -> Tensor:
        """W_F (..., d_model, d_model), acting from the right: one matrix per position."""
        width = self.mlp.W_in.shape[0]
        basis = torch.eye(width, dtype=self.scale.dtype, device=self.scale.device)
        return self.linear(basis.view(width, *[1] * (self.scale.ndim - 1), width)).movedim(0, -2)

    @property
    def bias(self) -> Tensor:
        """b_F (..., d_model)."""
        shift = self.mlp.norm.shift + torch.zeros_like(self.mlp.norm.gain)
        return self._out(shift @ self.mlp.W_in + self.mlp.b_in) + self.mlp.b_out


@dataclass(frozen=True)
class Layer:
    """A pre-norm block.

    Args:
        norm: the norm before attention.
        W_Q: (head, d_model, d_head).
        b_Q: (head, d_head).
        W_K: (head, d_model, d_head).
        b_K: (head, d_head).
        W_V: (head, d_model, d_value).
        b_V: (head, d_value).
        W_O: (head, d_value, d_model).
        b_O: (d_model,).
        mlp: the second half (None: attention alone).
        bias: as in `dual_step`.
    """

    norm: RMSNorm
    W_Q: Tensor
    b_Q: Tensor
    W_K: Tensor
    b_K: Tensor
    W_V: Tensor
    b_V: Tensor
    W_O: Tensor
    b_O: Tensor
    mlp: MLP | None = None
    bias: Tensor | None = None

    def dual_step(self, x: Tensor, mask: Tensor | None = None, demonstrations: Tensor | None = None) -> DualPrediction:
        """One gradient step of the dual model of every head at every position, on the normed tokens.

        Args:
            x: (..., pos, d_model) the residual stream.
            mask: (query, key) bool, True where a key is seen (None: everywhere).
            demonstrations: as in `dual_model.dual_step`.

        Returns:
            What the dual models predict.
        """
        normed = self.norm(x)
        parts = ((self.W_Q, self.b_Q), (self.W_K, self.b_K), (self.W_V, self.b_V))
        q, k, v = (torch.einsum("...pm,hme->...phe", normed, weight) + shift for weight, shift in parts)
        return dual_step(q, k, v, self.bias, mask, demonstrations)


class LayerStep(NamedTuple):
    """What the dual model of a whole layer predicts for the residual stream after it.

    Args:
        initial: (..., pos, d_model) before its step; holds the residual and all biases.
        step: (..., pos, d_model) by the step; linear in the demonstrations' values.
    """

    initial: Tensor
    step: Tensor

    @property
    def prediction(self) -> Tensor:
        """(..., pos, d_model): the layer's output."""
        return self.initial + self.step


def layer_step(layer: Layer, x: Tensor, dual: DualPrediction) -> LayerStep:
    """The heads' duals put through W_O, the residual and the MLP: targets v_i become (I + W_F) W_O v_i.

    Exact, but W_F and b_F depend on the position's own attention output, which must be known first.

    Args:
        layer: the block.
        x: (..., pos, d_model) the residual stream before it.
        dual: its heads' dual models.

    Returns:
        What the layer's dual model predicts.
    """
    initial, step = (torch.einsum("...phe,hem->...pm", part, layer.W_O) for part in (dual.initial, dual.step))
    initial = x + layer.b_O + initial
    if layer.mlp is None:
        return LayerStep(initial, step)
    local = layer.mlp.linearised(initial + step)
    return LayerStep(initial + local.linear(initial) + local.bias, step + local.linear(step))


def layer_steps(
    layers: Sequence[Layer], x: Tensor, mask: Tensor | None = None, demonstrations: Tensor | None = None
) -> list[LayerStep]:
    """A sequence of dual models: each layer's are trained on what the layer before predicts, one model per position.

    Args:
        layers: the blocks, in order.
        x: (..., pos, d_model) the residual stream before the first.
        mask: as in `Layer.dual_step`.
        demonstrations: as in `Layer.dual_step`.

    Returns:
        One prediction per layer.
    """
    steps: list[LayerStep] = []
    for layer in layers:
        steps.append(layer_step(layer, x, layer.dual_step(x, mask, demonstrations)))
        x = steps[-1].prediction
    return steps
