"""Heads and MLPs as parts that can be exchanged, and what each of them does to the answer.

The answers p of a base are moved by putting a part's activation from another run (the donor) in its place. With D the way
from the base's answers to those of its counterfactual (the same inputs under another code), the effect of the part is

    <p(part exchanged) - p(base), D> / <D, D>,

pooled over episodes: the share of the model's own shift that the part carries (activation patching, 2202.05262). It is
measured on the model's own shift, not on the targets, so a model that fails has effects as large as one that does not. The
effect is linear in the answers, so its first-order estimate (attribution patching, 2310.10348) is in the same unit: the
gradient of <p, D> at the base, times the difference that is put in. The integrated estimate is the mean of that gradient over
points on the way from the base's residual stream to the counterfactual's (2403.17806).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from compolens.activations.streams import record
from compolens.foundation.configs import DoesNotApply
from compolens.hooks import HookedModel
from compolens.interventions.interchange import told_by
from compolens.tasks.base import TaskFamily
from compolens.tasks.episodes import Episodes


class Component(NamedTuple):
    """A part of a model: one head, one whole attention layer, or one MLP, at every position.

    Args:
        name: such as "L0H2", "L1MLP", or "L1A" for a whole attention layer.
        layer: its block.
        kind: "head", "attention" or "MLP".
        hook_name: the hook point that holds it.
        axis: the dimension of that hook point which counts heads; -1 where the part is all of it.
        head: which head; -1 where the part is all of it.
    """

    name: str
    layer: int
    kind: str
    hook_name: str
    axis: int = -1
    head: int = -1

    def of(self, activation: Tensor) -> Tensor:
        """The part of an activation of the hook point that is this component's.

        Args:
            activation: (batch, ...).

        Returns:
            A view of it, without the dimension of heads.
        """
        return activation if self.axis < 0 else activation.select(self.axis, self.head)

    def put(self, activation: Tensor, given: Tensor) -> Tensor:
        """The activation with this component's part replaced.

        Args:
            activation: (batch, ...) of the hook point.
            given: of the same shape, of which this component's part is taken.

        Returns:
            A new tensor of that shape.
        """
        if self.axis < 0:
            return given
        edited = activation.clone()
        edited.select(self.axis, self.head).copy_(given.select(self.axis, self.head))
        return edited


def components(model: HookedModel, tokens: Tensor) -> list[Component]:
    """The heads and MLPs of a model, by layer.

    A head is what its attention's `head_site` says: a slice of ``hook_z``, or, where heads share a value network (HYLA), a
    coordinate of ``hook_code``. An adopted network has the parts whose hook points it has: ``blocks.L.attn.hook_z`` (batch,
    pos, head, d_head), else ``blocks.L.hook_attn_out`` as one part; and ``blocks.L.hook_mlp_out``.

    Args:
        model: the model.
        tokens: (batch, seq, ...) of a few episodes, on which the number of heads is counted.

    Returns:
        The parts, block after block, heads first.

    Raises:
        DoesNotApply: the model has none of these hook points.
    """
    found: list[Component] = []
    for layer in range(model.cfg.n_layers):
        block = f"blocks.{layer}"
        site, axis = head_site(model, layer) or ("hook_z", 2)
        heads = f"{block}.attn.{site}"
        count = _heads(model, tokens, heads, axis) if heads in model.hook_dict else 0
        if count:
            found += [Component(f"L{layer}H{h}", layer, "head", heads, axis, h) for h in range(count)]
        elif f"{block}.hook_attn_out" in model.hook_dict:
            found.append(Component(f"L{layer}A", layer, "attention", f"{block}.hook_attn_out"))
        if f"{block}.hook_mlp_out" in model.hook_dict:
            found.append(Component(f"L{layer}MLP", layer, "MLP", f"{block}.hook_mlp_out"))
    if not found:
        raise DoesNotApply(
            "this model has no hook point of a head or an MLP; name some when it is adopted: "
            "sites={'blocks.0.attn.hook_z': …, 'blocks.0.hook_attn_out': …, 'blocks.0.hook_mlp_out': …}"
        )
    return found


def head_site(model: HookedModel, layer: int) -> tuple[str, int] | None:
    """Where the attention of a block tells its heads apart.

    Args:
        model: the model.
        layer: the block.

    Returns:
        (the attention's hook point, the dimension that counts heads), as its class says it; None where it does not say.
    """
    parts = dict(model.named_modules())
    return getattr(parts.get(f"blocks.{layer}.attn"), "head_site", None)


def _heads(model: HookedModel, tokens: Tensor, site: str, axis: int) -> int:
    with torch.no_grad():
        seen = model.run_with_cache(tokens[:1], names_filter=[site])[1][site]
    return seen.shape[axis] if seen.ndim == 4 else 0


# ---- runs ------------------------------------------------------------------------------------------------------------
class Held(NamedTuple):
    """A run of a model, as far as exchanges need it.

    Args:
        prediction: (batch, seq, d_out).
        sites: hook point -> what it held.
    """

    prediction: Tensor
    sites: dict[str, Tensor]


def hold(model: HookedModel, episodes: Episodes, parts: Sequence[Component]) -> Held:
    """What the components hold on a batch, and the residual stream that enters each block.

    Args:
        model: the model.
        episodes: the batch.
        parts: the components.

    Returns:
        The run.
    """
    streams = [name for name in model.hook_dict if name.endswith(".hook_resid_pre")]
    (seen,) = record(model, [episodes], list(dict.fromkeys([*(part.hook_name for part in parts), *streams])))
    return Held(seen.prediction, seen.sites)


@torch.no_grad()
def exchanged(model: HookedModel, episodes: Episodes, base: Held, part: Component, given: Tensor) -> Tensor:
    """The prediction with one component's activation replaced; blocks before it are not computed.

    Args:
        model: the model.
        episodes: the base's episodes.
        base: their run, by `hold`.
        part: the component.
        given: of its hook point's shape, of which the component's part is taken.

    Returns:
        (batch, seq, d_out).
    """

    def put(tensor: Tensor, hook: Any) -> Tensor:
        return part.put(tensor, given)

    return _from_block(model, episodes, base, part.layer, [(part.hook_name, put)])


def _from_block(
    model: HookedModel, episodes: Episodes, base: Held, layer: int, hooks: list[tuple[str | Callable, Callable]]
) -> Tensor:
    stream = base.sites.get(f"blocks.{layer}.hook_resid_pre")
    if stream is None or layer == 0 or type(model).resume is HookedModel.resume:
        return model.run_with_hooks(episodes.tokens, fwd_hooks=hooks)
    with model.hooks(fwd_hooks=hooks):
        return model.resume(stream, layer, episodes.tokens)


# ---- the way to the counterfactual's answers -------------------------------------------------------------------------
class Shift(NamedTuple):
    """The way from a base's answers to its counterfactual's.

    Args:
        start: (batch, answer, d_out) float64, the base's answers.
        way: (batch, answer, d_out) float64, the counterfactual's less the base's.
        weight: (batch,) squared length of the way.
    """

    start: Tensor
    way: Tensor
    weight: Tensor

    def along(self, answers: Tensor) -> Tensor:
        """How far answers have moved along the way, in its squared length: 0 at the base, `weight` at the counterfactual.

        Args:
            answers: (batch, answer, d_out), by `answers_of`.

        Returns:
            (batch,).
        """
        return ((answers - self.start) * self.way).flatten(1).sum(1)


def answers_of(task: TaskFamily, prediction: Tensor, targets: Tensor) -> Tensor:
    """The answers of a prediction; logits less their mean over the values, since a constant added to all of them says nothing.

    Where an episode is not asked (its target is -100, as in torch), the answer is 0, so that it counts in no effect.

    Args:
        task: the family.
        prediction: (batch, seq, d_out).
        targets: as in `Episodes.targets`; whole numbers where the prediction holds logits.

    Returns:
        (batch, answer, d_out) float64.
    """
    return told_by(prediction, targets, task.answers)


def shift(task: TaskFamily, base: Tensor, counterfactual: Tensor, targets: Tensor) -> Shift:
    """The way from one prediction to another.

    Args:
        task: the family.
        base: (batch, seq, d_out).
        counterfactual: (batch, seq, d_out).
        targets: as in `answers_of`.

    Returns:
        The way.
    """
    start = answers_of(task, base, targets).detach()
    way = answers_of(task, counterfactual, targets).detach() - start
    return Shift(start, way, way.square().flatten(1).sum(1))


# ---- first-order estimates -------------------------------------------------------------------------------------------
def attributed(
    model: HookedModel,
    task: TaskFamily,
    episodes: Episodes,
    base: Held,
    donor: Held,
    parts: Sequence[Component],
    goal: Shift,
    points: int = 1,
) -> dict[str, Tensor]:
    """The first-order estimate of every component's effect, from one backward pass per point.

    Args:
        model: the model.
        task: the family.
        episodes: the base's episodes.
        base: their run.
        donor: the run whose activations are put in.
        parts: the components.
        goal: the way that effects are measured along.
        points: 1: the gradient at the base (attribution patching, 2310.10348). More: its mean over the middles of as many
            equal steps from the base's stream that enters the first block to the donor's (2403.17806).

    Returns:
        Component name -> (batch,), in the unit of `Shift.along`.

    Raises:
        DoesNotApply: more points than one, and the model has no hook point of the stream that enters the first block.
    """
    names = list(dict.fromkeys(part.hook_name for part in parts))
    first = "blocks.0.hook_resid_pre"
    if points > 1 and first not in base.sites:
        raise DoesNotApply(f"an integrated estimate needs the hook point {first!r}, which this model does not have")
    total = {name: torch.zeros_like(base.sites[name]) for name in names}
    for point in range(points):
        share = 0.0 if points == 1 else (point + 0.5) / points
        start = None if points == 1 else torch.lerp(base.sites[first], donor.sites[first], share)
        for name, gradient in _gradients(model, task, episodes, names, goal, start).items():
            total[name] += gradient / points
    moved = {name: (donor.sites[name] - base.sites[name]).double() * total[name].double() for name in names}
    return {part.name: part.of(moved[part.hook_name]).flatten(1).sum(1) for part in parts}


@torch.enable_grad()
def _gradients(
    model: HookedModel, task: TaskFamily, episodes: Episodes, names: Sequence[str], goal: Shift, start: Tensor | None
) -> Mapping[str, Tensor]:
    """hook point -> gradient of <answers, way> there; with `start`, of the run whose first block gets that stream."""
    held: dict[str, Tensor] = {}

    def keep(tensor: Tensor, hook: Any) -> Tensor:
        kept = tensor if tensor.requires_grad else tensor.detach().requires_grad_()
        held[hook.name] = kept
        return kept

    hooks: list[tuple[str | Callable, Callable]] = [(name, keep) for name in names]
    if start is not None:
        hooks.insert(0, ("blocks.0.hook_resid_pre", lambda tensor, hook: start))
    prediction = model.run_for_answers(episodes.tokens, hooks)
    along = goal.along(answers_of(task, prediction, episodes.targets)).sum()
    found = torch.autograd.grad(along, [held[name] for name in names], allow_unused=True)
    return {
        name: torch.zeros_like(held[name]) if gradient is None else gradient
        for name, gradient in zip(names, found, strict=True)
    }
