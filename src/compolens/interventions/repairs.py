"""Repairs of one part of a model: the parameters before or after a site, fine-tuned alone.

A diagnosis that blames a part predicts that a repair there helps more than the same repair elsewhere. What lies after a site
is read off the graph of the computation: with the activation at the site put in as a constant, a parameter is downstream if
the answers still depend on it, and upstream if they do only without. Random sets of as many scalars are the null.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count

import torch
from torch import Tensor

from compolens.activations.sites import Site, put
from compolens.activations.streams import draw, record
from compolens.foundation.configs import ConfigError, DoesNotApply, nearest, require, require_positive
from compolens.hooks import HookedModel
from compolens.measures.optimizers import Adam
from compolens.tasks.base import TaskFamily
from compolens.tasks.episodes import Episodes
from compolens.tasks.fixed.stored import FewerEpisodes, StoredEpisodes

Masks = Mapping[str, Tensor]
"""Which scalars a repair may change: parameter name -> bool of the parameter's shape; what is not named stays as it is."""


# ---- which parameters ------------------------------------------------------------------------------------------------
def parameters_downstream(model: HookedModel, episodes: Episodes, site: Site) -> frozenset[str]:
    """Names of the parameters that the answers depend on when the activation at the site's hook point is a constant.

    The whole activation is put in, whatever the site's role: what passes it by at other positions is no path around it.

    Args:
        model: the model.
        episodes: a batch to compute answers on.
        site: where.

    Returns:
        Names of parameters.
    """
    (seen,) = record(model, [episodes], [site.hook_name])
    with torch.enable_grad():
        return _reached(model, put(model, episodes.tokens, site, seen.sites[site.hook_name]))


def parameters_upstream(model: HookedModel, episodes: Episodes, site: Site) -> frozenset[str]:
    """Names of the parameters that the answers depend on through the site's hook point alone.

    Empty where every parameter is used after the site too, as with weights that layers share.

    Args:
        model: the model.
        episodes: a batch to compute answers on.
        site: where.

    Returns:
        Names of parameters.
    """
    with torch.enable_grad():
        used = _reached(model, model(episodes.tokens))
    return used - parameters_downstream(model, episodes, site)


def _reached(model: HookedModel, answers: Tensor) -> frozenset[str]:
    named = {name: p for name, p in model.named_parameters() if p.requires_grad}
    if not answers.requires_grad:
        return frozenset()
    slopes = torch.autograd.grad(answers.sum(), list(named.values()), allow_unused=True)
    return frozenset(name for name, slope in zip(named, slopes, strict=True) if slope is not None)


def whole(model: HookedModel, names: Iterable[str]) -> dict[str, Tensor]:
    """Masks that free parameters entirely.

    Args:
        model: the model.
        names: of the parameters.

    Returns:
        name -> bool mask of the parameter's shape, all True.

    Raises:
        ConfigError: there is no parameter of a name.
    """
    named = dict(model.named_parameters())
    for name in names:
        if name not in named:
            raise ConfigError(f"no parameter {name!r}; {nearest(name, named)}")
    return {name: torch.ones_like(p, dtype=torch.bool) for name, p in named.items() if name in set(names)}


def size(masks: Masks) -> int:
    """How many scalars `masks` free."""
    return sum(int(mask.sum()) for mask in masks.values())


def random_masks(model: HookedModel, names: Iterable[str], n: int, rng: torch.Generator) -> dict[str, Tensor]:
    """Masks of a number of scalars, uniformly random among those of some parameters.

    Args:
        model: the model.
        names: of the parameters.
        n: scalars in all, at least 1.
        rng: a generator on the CPU.

    Returns:
        name -> bool mask of the parameter's shape.

    Raises:
        ConfigError: n is below 1, or more than the parameters have.
    """
    among = whole(model, names)
    total = size(among)
    require(1 <= n <= total, f"cannot free {n} scalars; allowed: 1 to {total}, which is what these parameters have")
    chosen = torch.zeros(total, dtype=torch.bool)
    chosen[torch.randperm(total, generator=rng)[:n]] = True
    parts = chosen.split([mask.numel() for mask in among.values()])
    return {name: part.view_as(mask).to(mask.device) for (name, mask), part in zip(among.items(), parts, strict=True)}


# ---- fine-tuning -----------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Budget:
    """What every repair may spend: Adam, without weight decay.

    Args:
        steps: updates.
        batch: episodes of an update; an even number, half of it is held-out compositions.
        lr: rate of the first update, from which it falls linearly to 0 after the last.
    """

    steps: int = 60
    batch: int = 64
    lr: float = 1e-3

    def __post_init__(self) -> None:
        require_positive(self, "steps", "batch")
        require(self.batch % 2 == 0, f"Budget: batch must be even, half of it is held-out compositions, got {self.batch}")
        require(self.lr > 0, f"Budget: lr must be positive, got {self.lr}")


def folds(task: TaskFamily, seed: int | str) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The held-out compositions in two random halves, a pure function of the seed.

    Args:
        task: the family.
        seed: of the drawing.

    Returns:
        Two ascending tuples of compositions.

    Raises:
        DoesNotApply: fewer than two compositions are held out.
    """
    held_out = task.compositions("ood")
    if len(held_out) < 2:
        raise DoesNotApply(f"{type(task).__name__} holds out {len(held_out)} composition; two folds need at least 2")
    order = torch.randperm(len(held_out), generator=task.rng(f"folds/{seed}", "ood")).tolist()
    half = len(held_out) // 2
    first, second = (tuple(sorted(held_out[i] for i in part)) for part in (order[:half], order[half:]))
    return first, second


def fine_tune(
    model: HookedModel, task: TaskFamily, masks: Masks, compositions: Sequence[int], budget: Budget, seed: int | str
) -> HookedModel:
    """A copy of the model, trained on the loss with only the masked scalars free; in evaluation mode, so without dropout.

    Every batch is half episodes of the given compositions, half of training compositions: a function of the seed alone, so
    that equal seeds give every repair the same ones.

    Args:
        model: stays as it is.
        task: the family, by whose loss it is trained.
        masks: name -> bool mask, True where a scalar is free.
        compositions: held-out compositions that are trained on.
        budget: what it may spend.
        seed: of the batches.

    Returns:
        The copy, in evaluation mode.

    Raises:
        ConfigError: a mask fits no parameter, or none frees a scalar.
    """
    repaired = copy.deepcopy(model).eval()
    named = dict(repaired.named_parameters())
    for name, mask in masks.items():
        if name not in named:
            raise ConfigError(f"no parameter {name!r}; {nearest(name, named)}")
        require(mask.shape == named[name].shape, f"{name} is {tuple(named[name].shape)}, its mask {tuple(mask.shape)}")
    free = [(named[name], mask) for name, mask in masks.items() if bool(mask.any())]
    require(bool(free), "nothing to fine-tune: the masks free no scalar")
    trainable = {name: p.requires_grad for name, p in named.items()}
    repaired.requires_grad_(False)
    for parameter, _ in free:
        parameter.requires_grad_(True)
    optimizer = Adam([parameter for parameter, _ in free], lr=budget.lr)
    with torch.enable_grad():
        for step, (tokens, targets) in enumerate(_mixed(task, compositions, budget, seed, free[0][0].device)):
            optimizer.param_groups[0]["lr"] = budget.lr * (1 - step / budget.steps)
            loss = task.loss(repaired.answer(tokens), targets)
            slopes = torch.autograd.grad(loss, [parameter for parameter, _ in free], allow_unused=True)
            for (parameter, mask), slope in zip(free, slopes, strict=True):
                parameter.grad = None if slope is None else slope.masked_fill(~mask, 0.0)
            optimizer.step()
    for name, parameter in named.items():
        parameter.requires_grad_(trainable[name])
        parameter.grad = None
    require(bool(torch.isfinite(loss)), f"fine-tuning diverged at a rate of {budget.lr}; choose a smaller lr")
    return repaired


def _mixed(
    task: TaskFamily, compositions: Sequence[int], budget: Budget, seed: int | str, device: torch.device
) -> Iterator[tuple[Tensor, Tensor]]:
    """(tokens, targets) of every step: held-out compositions first, as many of training compositions after them."""
    held_out = _halves(task, "ood", budget, seed, device, compositions)
    seen = _halves(task, "train", budget, seed, device, None)
    for new, old in zip(held_out, seen, strict=True):
        yield torch.cat([new.tokens, old.tokens]), torch.cat([new.targets, old.targets])


def _halves(
    task: TaskFamily, split: str, budget: Budget, seed: int | str, device: torch.device, compositions: Sequence[int] | None
) -> Iterator[Episodes]:
    """Half a batch for every step; where fewer episodes are stored, one pass over them after the other."""
    half, made = budget.batch // 2, 0
    for again in count():
        of = f"{seed}/{again}/repair" if again else f"{seed}/repair"
        drawn = draw(task, split, budget.steps * half, of, device, compositions, batch=half)
        if isinstance(task, StoredEpisodes):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", FewerEpisodes)  # they are trained on again, and nothing is scored on them
                drawn = iter(list(drawn))
        for batch in drawn:
            yield batch
            made += 1
            if made == budget.steps:
                return
