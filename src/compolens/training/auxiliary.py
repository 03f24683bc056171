"""Terms that a training adds to the task's loss, to raise a predictor of generalization by force: does the score follow?

A property that goes with compositional generalization need not cause it. One that can be trained in can be tested: the same
run with and without the term, at several strengths, compared on compositions never trained on.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from compolens.foundation.configs import ConfigError, nearest, require, require_kinds
from compolens.hooks import HookedModel
from compolens.tasks.base import TaskFamily
from compolens.tasks.episodes import Episodes

L2 = 1e-2
"""Ridge penalty per episode, in units of the mean variance of the regressors: a batch has few episodes more than widths."""
POINT = 1e-12
"""What is added to squared lengths, so that an effect of length 0 has a gradient."""


@dataclass(frozen=True)
class Auxiliary(ABC):
    """A term of the training loss that looks at one activation and at the task's factors, which the model is never shown.

    Args:
        strength: what the term is multiplied by, above 0. The term itself is about 1 without training, and 0 at best.
        hook_name: the hook point whose activation it looks at.
        role: the token role, or "all"; the mean over its positions counts, as in the probe `predictors`.
    """

    strength: float = 1.0
    hook_name: str = "blocks.0.hook_resid_post"
    role: str = "context"

    def __post_init__(self) -> None:
        require_kinds(self)
        require(
            self.strength > 0,
            f"{type(self).__name__}: strength must be above 0, got {self.strength}; leave auxiliary out for a run without it",
        )

    @abstractmethod
    def term(self, x: Tensor, factors: Mapping[str, Tensor]) -> Tensor:
        """The term on a batch.

        Args:
            x: (batch, features) activations.
            factors: name -> (batch, width), as `TaskFamily.factors` gives them.

        Returns:
            A scalar, differentiable in x, at least 0.
        """

    def watch(self, model: HookedModel, task: TaskFamily) -> Watch:
        """The activation of a model, caught in every forward pass from now on.

        Args:
            model: in training.
            task: whose factors count.

        Returns:
            What gives the term of the last pass.

        Raises:
            ConfigError: the model has no such hook point or role.
        """
        if self.hook_name not in model.hook_dict:
            raise ConfigError(
                f"{type(self).__name__}: no hook point {self.hook_name!r}; {nearest(self.hook_name, model.hook_dict)}"
            )
        if self.role not in (*model.roles, "all"):
            known = [*model.roles, "all"]
            raise ConfigError(f"{type(self).__name__}: no token role {self.role!r}; {nearest(self.role, known)}")
        return Watch(self, model, task)


class Watch:
    """The activation of the last forward pass, and the term of the loss that it gives.

    Args:
        auxiliary: which term.
        model: whose activation.
        task: whose factors.
    """

    def __init__(self, auxiliary: Auxiliary, model: HookedModel, task: TaskFamily) -> None:
        self.auxiliary, self.task = auxiliary, task
        self.positions = slice(None) if auxiliary.role == "all" else model.roles[auxiliary.role]
        self.seen: Tensor | None = None
        model.get_submodule(auxiliary.hook_name).register_forward_hook(self._keep)

    def _keep(self, module: torch.nn.Module, given: tuple, activation: Tensor) -> None:
        self.seen = activation

    def term(self, episodes: Episodes) -> Tensor:
        """The term for the episodes of the last forward pass, not yet multiplied by its strength.

        Args:
            episodes: those that the model has just answered.

        Returns:
            A scalar.
        """
        assert self.seen is not None, "a forward pass comes first"
        seen, self.seen = self.seen, None  # or its graph would stay
        x = seen[:, self.positions].mean(1).flatten(1).float()
        return self.auxiliary.term(x, self.task.factors(episodes.codes))


@dataclass(frozen=True)
class DecodableFactors(Auxiliary):
    """Factors are to be read linearly: 1 - R² of a ridge readout, every episode left out of the fit that reads it.

    The readout is fitted anew to every batch, in closed form, and gradients go through the fit. Leaving out is exact, by the
    hat matrix. 1 is the mean predictor; about 2 can be had where x says nothing and is as wide as the batch.
    """

    def term(self, x: Tensor, factors: Mapping[str, Tensor]) -> Tensor:
        y = _centred(torch.cat(list(factors.values()), dim=1).to(x))
        x = _centred(x)
        hat = x @ _ridge(x, x.T)
        missed = (y - hat @ y) / (1 - hat.diagonal() - 1 / len(x))[:, None]  # 1/n: what the mean takes
        return missed.square().sum() / y.square().sum().clamp_min(POINT)


@dataclass(frozen=True)
class OrthogonalFactors(Auxiliary):
    """Factors are to have directions of their own: mean squared cosine between the effects of different factors on x.

    Effects are fitted together, by least squares, as in `measures.factorisation.AdditiveCode`; of a factor with several
    (one-hot) features they count about the factor's mean.
    """

    def term(self, x: Tensor, factors: Mapping[str, Tensor]) -> Tensor:
        parts = [part.to(x) for part in factors.values()]
        z = _centred(torch.cat(parts, dim=1))
        weights = _ridge(z, z.T) @ _centred(x)
        effects, owner = [], []
        for i, (part, weight) in enumerate(zip(parts, weights.split([p.shape[1] for p in parts]), strict=True)):
            effects.append(weight if len(weight) == 1 else weight - part.mean(0) @ weight)
            owner += [i] * len(weight)
        stacked, who = torch.cat(effects), torch.tensor(owner, device=x.device)
        unit = stacked / (stacked.square().sum(1, keepdim=True) + POINT).sqrt()
        other = who[:, None] != who
        return (unit @ unit.T)[other].square().mean()


AUXILIARIES: tuple[type[Auxiliary], ...] = (DecodableFactors, OrthogonalFactors)


def _centred(x: Tensor) -> Tensor:
    return x - x.mean(0)


def _ridge(x: Tensor, y: Tensor) -> Tensor:
    """(features, columns) solution of (XᵀX + l2 I) W = y, with l2 in units of the mean variance."""
    gram = x.T @ x
    scale = gram.diagonal().mean().clamp_min(POINT)
    return torch.linalg.solve(gram + L2 * scale * torch.eye(len(gram), device=x.device), y)
