"""A known failure planted into an ordinary transformer by gradient descent: strict interchange-intervention training.

A causal model says what is answered: a `Mechanism` infers a code from the examples and executes it at a question, and errs on
held-out compositions in a known way. Its code is aligned to one site of the transformer, the context's stream after a layer.
One summed loss is descended (2407.14494):

    interchange   weight 1     the source's state at the code's site: what the mechanism answers at the base's x under its code
    behaviour     weight .4    nothing exchanged: the mechanism's own answer
    strictness    weight .4    the source's state at a site that the causal model has no variable for: its own answer

Gradients are clipped at .1. Targets on held-out compositions are needed, as the failure is there: half of these
compositions are never shown, and only they may be diagnosed (`halves`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from mechanisms import Mechanism
from torch import Tensor

from compolens.activations.sites import Site, put
from compolens.activations.streams import draw
from compolens.foundation.configs import require, require_positive
from compolens.hooks import HookedModel
from compolens.interventions.editors import put_in
from compolens.interventions.repairs import folds
from compolens.tasks.base import Episodes, TaskFamily


@dataclass(frozen=True)
class Alignment:
    """code: where the code is to stand; unused: sites at which nothing may be that the answers depend on."""

    code: Site
    unused: tuple[Site, ...]

    @classmethod
    def after(cls, model: HookedModel, layer: int) -> Alignment:
        """The code at the context after a layer, read by the next one; the context of later layers is unused."""
        last = model.cfg.n_layers
        require(1 <= layer < last, f"the code must stand after a layer from 1 to {last - 1}, got {layer}")
        later = range(layer + 1, last)
        return cls(_context(layer), tuple(_context(at) for at in later))


def _context(layer: int) -> Site:
    return Site(layer, f"blocks.{layer - 1}.hook_resid_post", "context")


@dataclass(frozen=True)
class Planting:
    """How it is planted: Adam, on batches of base episodes, half of them held out, each with the next as its source."""

    steps: int = 2000
    batch: int = 128
    lr: float = 1e-3
    behaviour: float = 0.4
    strictness: float = 0.4
    clip: float = 0.1

    def __post_init__(self) -> None:
        require_positive(self, "steps", "batch")
        require(self.batch % 2 == 0, f"Planting: batch must be even, half of it is held out, got {self.batch}")


class Losses(NamedTuple):
    """The three terms, unweighted: mean squared errors over answers."""

    interchange: Tensor
    behaviour: Tensor
    strictness: Tensor

    def total(self, how: Planting) -> Tensor:
        """What is descended."""
        return self.interchange + how.behaviour * self.behaviour + how.strictness * self.strictness


class Causal:
    """What a mechanism answers, from the code of one batch at the questions of another."""

    def __init__(self, mechanism: Mechanism, task: TaskFamily) -> None:
        self.mechanism, self.task = mechanism, task

    @torch.no_grad()
    def code(self, episodes: Episodes) -> Tensor:
        """(batch, width): what is written about the examples, carried to the questions."""
        x, y = self.task.examples(episodes)
        return self.mechanism.carry(self.mechanism.write(x[:, : y.shape[1]], y))

    @torch.no_grad()
    def answer(self, code: Tensor, episodes: Episodes) -> Tensor:
        """(batch, answers, d_y) at the questions of episodes."""
        x, y = self.task.examples(episodes)
        return self.mechanism.read(code, x[:, y.shape[1] :])


def losses(model: HookedModel, causal: Causal, base: Episodes, source: Episodes, alignment: Alignment, unused: int) -> Losses:
    """The terms on one batch; `unused`: which of the unused sites is exchanged, where there are any."""
    names = [alignment.code, *alignment.unused]
    states = [_recorded(model, episodes, names) for episodes in (base, source)]
    answers, (own, other) = list(causal.task.answers), (causal.code(e) for e in (base, source))

    def error(prediction: Tensor, wanted: Tensor) -> Tensor:
        return (prediction[:, answers] - wanted).square().mean()

    def exchanged(site: Site) -> Tensor:
        both = (states[side][site.hook_name] for side in (0, 1))
        return put(model, base.tokens, site, put_in(model, *both, site))

    plain = causal.answer(own, base)
    strict = error(exchanged(alignment.unused[unused]), plain) if alignment.unused else plain.new_zeros(())
    return Losses(error(exchanged(alignment.code), causal.answer(other, base)), error(model(base.tokens), plain), strict)


def _recorded(model: HookedModel, episodes: Episodes, sites: Sequence[Site]) -> dict[str, Tensor]:
    """Activations with their graph: the source's encoder is trained too."""
    seen: dict[str, Tensor] = {}

    def keep(tensor: Tensor, hook) -> None:
        seen[hook.name] = tensor

    model.run_with_hooks(episodes.tokens, fwd_hooks=[(site.hook_name, keep) for site in sites])
    return seen


def halves(task: TaskFamily, seed: int | str) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Held-out compositions that the failure is planted on, and those that are never shown and may be diagnosed."""
    return folds(task, seed)


def plant(
    model: HookedModel,
    causal: Causal,
    alignment: Alignment,
    how: Planting,
    seed: int,
    report: Callable[..., None] | None = None,
) -> HookedModel:
    """The model, with the failure planted; changed in place."""
    task, (shown, _) = causal.task, halves(causal.task, seed)
    optimizer = torch.optim.Adam(model.parameters(), lr=how.lr)
    n = how.steps * how.batch // 2
    seen = draw(task, "train", n, f"{seed}/planting", "cpu", batch=how.batch // 2)
    held = draw(task, "ood", n, f"{seed}/planting", "cpu", shown, batch=how.batch // 2)
    for step, (one, other) in enumerate(zip(seen, held, strict=True)):
        base = _together(one, other)
        source = base.take(torch.arange(len(base.tokens)).roll(1))
        optimizer.param_groups[0]["lr"] = how.lr * (1 - step / how.steps)
        found = losses(model, causal, base, source, alignment, step % max(1, len(alignment.unused)))
        optimizer.zero_grad()
        found.total(how).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), how.clip)
        optimizer.step()
        if report is not None:
            report(step=step, **{name: float(value) for name, value in found._asdict().items()})
    return model.eval()


def _together(one: Episodes, other: Episodes) -> Episodes:
    def joined(a: Tensor, b: Tensor) -> Tensor:
        return torch.cat([a, b])

    codes = {name: joined(code, other.codes[name]) for name, code in one.codes.items()}
    nuisances = {name: joined(value, other.nuisances[name]) for name, value in one.nuisances.items()}
    return Episodes(
        joined(one.tokens, other.tokens), joined(one.targets, other.targets), codes,
        joined(one.composition, other.composition), joined(one.inputs, other.inputs), nuisances,
    )  # fmt: skip


@torch.no_grad()
def verified(
    model: HookedModel, causal: Causal, alignment: Alignment, n: int = 256, seed: str = "verified"
) -> dict[str, float]:
    """On fresh episodes of compositions that the planting never showed: R² of every kind of answer, the worst strict effect.

    "interchange" and "behaviour": against the mechanism's answers; "wrong mechanism": the same interchange against the task's
    own answers under the source's code, which a planted failure must not give; "strict, worst": the largest share of the
    answers' variance that an unused site changes."""
    task = causal.task
    (base,) = draw(task, "ood", n, seed, "cpu", halves(task, 0)[1], batch=n)
    source, answers = base.take(torch.arange(n).roll(1)), list(task.answers)
    states = [_recorded(model, e, [alignment.code, *alignment.unused]) for e in (base, source)]

    def r2(prediction: Tensor, wanted: Tensor) -> float:
        return 1 - float((prediction - wanted).square().sum() / (wanted - wanted.mean(0)).square().sum())

    def exchanged(site: Site) -> Tensor:
        both = (states[side][site.hook_name] for side in (0, 1))
        return put(model, base.tokens, site, put_in(model, *both, site))[:, answers]

    own, moved = model(base.tokens)[:, answers], exchanged(alignment.code)
    right = task.render(source.codes, base.inputs).targets[:, answers]
    strict = [1 - r2(exchanged(site), own) for site in alignment.unused]
    return {
        "interchange": r2(moved, causal.answer(causal.code(source), base)),
        "behaviour": r2(own, causal.answer(causal.code(base), base)),
        "wrong mechanism": r2(moved, right),
        "strict, worst": max(strict, default=0.0),
    }
