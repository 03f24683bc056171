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
    """x over the root of its mean square plus eps, times gain (d_model,), plus shift (d_model,) or 0."""

    gain: Tensor
    shift: Tensor | float = 0.0
    eps: float = 1e-6

    def centred(self, x: Tensor) -> Tensor:
        return x

    def scale(self, x: Tensor) -> Tensor:
        """(..., 1): what x is divided by, the only part that is not linear."""
        return (self.centred(x).square().mean(-1, keepdim=True) + self.eps).sqrt()

    def at(self, x: Tensor, scale: Tensor) -> Tensor:
        """(..., d_model): the norm of x with its divisor held at `scale`: affine in x."""
        return self.centred(x) / scale * self.gain + self.shift

    def __call__(self, x: Tensor) -> Tensor:
        return self.at(x, self.scale(x))


class LayerNorm(RMSNorm):
    """The same after subtraction of the mean."""

    def centred(self, x: Tensor) -> Tensor:
        return x - x.mean(-1, keepdim=True)


def secant_gate(activation: Callable[[Tensor], Tensor], pre: Tensor) -> Tensor:
    """Sigma = act(u) / u at every u of `pre`: 0 or 1 for ReLU; 0 at u = 0. ValueError unless act(0) = 0."""
    if float(activation(pre.new_zeros(1))) != 0:
        raise ValueError("a secant gate needs an activation with act(0) = 0, such as torch.relu or torch.nn.functional.gelu")
    return torch.where(pre == 0, torch.zeros_like(pre), activation(pre) / torch.where(pre == 0, torch.ones_like(pre), pre))


@dataclass(frozen=True)
class MLP:
    """norm, then W_in (d_model, d_mlp), b_in, an activation with act(0) = 0, W_out (d_mlp, d_model), b_out."""

    norm: RMSNorm
    W_in: Tensor
    b_in: Tensor
    W_out: Tensor
    b_out: Tensor
    activation: Callable[[Tensor], Tensor]

    def linearised(self, x: Tensor) -> LinearisedMLP:
        """The affine map that agrees with the MLP at x (..., d_model), and in general only there."""
        return LinearisedMLP(self, self.norm.scale(x), secant_gate(self.activation, self.norm(x) @ self.W_in + self.b_in))


@dataclass(frozen=True)
class LinearisedMLP:
    """y -> y W_F + b_F, one per position: gates (..., d_mlp) and the norm's divisor (..., 1) held where they were taken."""

    mlp: MLP
    scale: Tensor
    gate: Tensor

    def _out(self, hidden: Tensor) -> Tensor:
        return (self.gate * hidden) @ self.mlp.W_out

    def linear(self, y: Tensor) -> Tensor:
        """y W_F, (..., d_model), without forming W_F."""
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
    """A pre-norm block: W_Q, W_K (head, d_model, d_head), W_V (head, d_model, d_value), W_O (head, d_value, d_model), biases
    without d_model's axis, b_O (d_model,); `bias` as in `dual_step`; mlp None: attention alone."""

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
        """Of every head at every position, on the normed tokens of the residual stream x (..., pos, d_model)."""
        normed = self.norm(x)
        parts = ((self.W_Q, self.b_Q), (self.W_K, self.b_K), (self.W_V, self.b_V))
        q, k, v = (torch.einsum("...pm,hme->...phe", normed, weight) + shift for weight, shift in parts)
        return dual_step(q, k, v, self.bias, mask, demonstrations)


class LayerStep(NamedTuple):
    """What the dual model of a whole layer predicts for the residual stream after it, before its step and by the step.

    Both (..., pos, d_model): `initial` holds the residual and all biases, `step` is linear in the demonstrations' values.
    """

    initial: Tensor
    step: Tensor

    @property
    def prediction(self) -> Tensor:
        """(..., pos, d_model): the layer's output."""
        return self.initial + self.step


def layer_step(layer: Layer, x: Tensor, dual: DualPrediction) -> LayerStep:
    """The heads' duals put through W_O, the residual x (..., pos, d_model) and the MLP: targets v_i become (I + W_F) W_O v_i.

    Exact, but W_F and b_F depend on the position's own attention output, which must be known first.
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
    """A sequence of dual models: each layer's are trained on what the layer before predicts, one model per position."""
    steps: list[LayerStep] = []
    for layer in layers:
        steps.append(layer_step(layer, x, layer.dual_step(x, mask, demonstrations)))
        x = steps[-1].prediction
    return steps
