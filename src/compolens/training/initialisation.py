"""Initial weights of another scale: every matrix is drawn anew, with a standard deviation that is a power of its inputs."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from compolens.foundation.configs import require, require_kinds
from compolens.training.optimizers import MatricesOnly

SUMMED = {"W_O": 2}
"""Matrices of attention with a leading axis of heads whose outputs are summed: so many axes are their inputs."""


@dataclass(frozen=True)
class FanInPower:
    """Entries of a matrix with d_in inputs are normal with standard deviation d_in^-gamma (2405.05409).

    Biases, gains and single vectors stay as the architecture draws them.

    Args:
        gamma: the power, from 0 to 3. At 1/2 outputs have the scale of the inputs; the larger, the smaller the weights.
    """

    gamma: float = 0.5

    def __post_init__(self) -> None:
        require_kinds(self)
        require(0 <= self.gamma <= 3, f"FanInPower: gamma must be from 0 to 3, got {self.gamma}")

    @torch.no_grad()
    def draw(self, model: nn.Module) -> None:
        """Draw the matrices of a model anew, in place, from torch's global generator, which `Run.build` seeds.

        Args:
            model: one that its architecture has just built.
        """
        for name, parameter in model.named_parameters():
            if MatricesOnly().acts_on(name, parameter):
                parameter.normal_(0.0, float(inputs_of(name, parameter)) ** -self.gamma)


def inputs_of(name: str, parameter: torch.Tensor) -> int:
    """How many inputs an output of a matrix sums.

    Args:
        name: the parameter's name; its last part says how the axes are laid out.
        parameter: (…, inputs, outputs); of torch's own layers, called "weight", (outputs, inputs).

    Returns:
        At least 1.
    """
    last = name.split(".")[-1]
    if last == "weight":
        return parameter.shape[-1]
    if last in SUMMED and parameter.ndim == 3:
        return parameter.shape[0] * parameter.shape[1]
    return parameter.shape[-2]
