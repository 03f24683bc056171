"""Initial weights other than the architecture's own: of another scale, or the teacher's, written down."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import nn

from compolens.foundation.configs import DoesNotApply, require, require_kinds
from compolens.hooks import HookedModel
from compolens.models.module_heads import ModuleHeadsTransformer
from compolens.tasks.base import TaskFamily
from compolens.tasks.hyperteacher import Hyperteacher
from compolens.training.optimizers import MatricesOnly

SUMMED = {"W_O": 2}
"""Matrices of attention with a leading axis of heads whose outputs are summed: so many axes are their inputs."""


@dataclass(frozen=True)
class Initialisation(ABC):
    """What a run's weights start from, instead of what the architecture draws."""

    written_down: ClassVar[bool] = False
    """Whether the weights say something about the task already; the untrained control then starts as the architecture does."""

    def __post_init__(self) -> None:
        require_kinds(self)

    @abstractmethod
    def draw(self, model: HookedModel, task: TaskFamily) -> None:
        """Set a model's weights, in place; what is random comes from torch's global generator, which `Run.build` seeds.

        Args:
            model: one that its architecture has just built.
            task: what it is built for.
        """


@dataclass(frozen=True)
class FanInPower(Initialisation):
    """Entries of a matrix with d_in inputs are normal with standard deviation d_in^-gamma (2405.05409).

    Biases, gains and single vectors stay as the architecture draws them.

    Args:
        gamma: the power, from 0 to 3. At 1/2 outputs have the scale of the inputs; the larger, the smaller the weights.
    """

    gamma: float = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        require(0 <= self.gamma <= 3, f"FanInPower: gamma must be from 0 to 3, got {self.gamma}")

    @torch.no_grad()
    def draw(self, model: nn.Module, task: TaskFamily) -> None:
        for name, parameter in model.named_parameters():
            if MatricesOnly().acts_on(name, parameter):
                parameter.normal_(0.0, float(inputs_of(name, parameter)) ** -self.gamma)


@dataclass(frozen=True)
class TeacherModules(Initialisation):
    """The teacher's modules as attention heads: `ModuleHeads` that computes y = A^T relu(W(z)^T x) exactly (2407.12275).

    For `Hyperteacher(code_given=True)`, where every token holds the code z. Head m asks with z_m, and only tokens that ask for
    an answer have a key: a question's score to itself is z_m, to the context 0. Its values are Theta_m^T x.
    """

    written_down: ClassVar[bool] = True

    @torch.no_grad()
    def draw(self, model: nn.Module, task: TaskFamily) -> None:
        if not isinstance(task, Hyperteacher) or not task.code_given or not isinstance(model, ModuleHeadsTransformer):
            raise DoesNotApply(
                "TeacherModules writes down heads for a code that tokens hold: it needs architecture ModuleHeads(…) and task "
                f"Hyperteacher(code_given=True, …), got a {type(model).__name__} for {type(task).__name__}"
                + (" with code_given=False" if isinstance(task, Hyperteacher) and not task.code_given else "")
            )
        heads, width = model.cfg.n_heads, model.cfg.d_value
        if heads < task.n_modules or width < task.d_hidden:
            raise DoesNotApply(
                f"TeacherModules needs a head per module and a neuron per hidden one: ModuleHeads(n_heads={task.n_modules}, "
                f"d_hidden={task.d_hidden}) or more, got n_heads={heads}, d_hidden={width}"
            )
        modules, readout = task.teacher
        layer: Any = model.blocks[0]
        attention, mlp = layer.attn, layer.mlp
        for parameter in model.parameters():
            parameter.zero_()
        hidden, answer, neurons = task.d_in, task.d_in + width, range(task.d_hidden)
        model.embed.W_E[range(task.d_in), range(task.d_in)] = 1
        asked, first = task.d_x + task.d_y, task.d_in - task.n_modules
        for head, theta in enumerate(modules):
            attention.W_Q[head, first + head, 0] = 1
            attention.W_K[head, asked, 0] = 1
            attention.W_V[head, : task.d_x, : task.d_hidden] = theta
            attention.W_O[head, neurons, [hidden + n for n in neurons]] = 1
        mlp.W_in[[hidden + n for n in neurons], neurons] = 1
        mlp.W_out[: task.d_hidden, answer : answer + task.d_y] = readout
        model.unembed.W_U[range(answer, answer + task.d_y), range(task.d_y)] = 1


INITIALISATIONS: tuple[type[Initialisation], ...] = (FanInPower, TeacherModules)


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
