"""A known failure planted into an ordinary transformer by gradient descent: interchange-intervention training (2407.14494).

A causal model (`Causal`) says what is answered: from the examples a value is inferred, which is carried to the questions and
executed there. Its variables are aligned to nodes of the transformer: the context's stream after some of its layers. One
loss is descended, which sums

    interchange   weight 1     a node's state from another episode: what the causal model answers at the base's questions then
    behaviour     weight 1     nothing exchanged: what the causal model answers
    strictness    weight .4    the state of the questions, before they have read anything, from another episode: the base's
                               value, executed at the other's questions
    reading       weight 4     a linear map of a node's mean state: the value of its variable
    silence       weight 0     what a ridge readout, fitted to the batches before, tells at `Alignment.silent` sites of what
                               the causal model does not know (`Causal.unknown`): its squared correlation with the truth

Without reading, a value has no form: "the wrong code is inferred" and "the right one is executed wrongly" would be the same
interchange. Without silence, the right code may stand beside a wrong one. One node and one strict site are sampled in every
step, in turn. Half of the compositions in a batch are held out, since the failure is there; those in `Planting.kept` are never
shown, and only they may be diagnosed.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from mechanisms import Mechanism
from torch import Tensor, nn

from compolens.activations.sites import Site, positions, put
from compolens.activations.streams import draw
from compolens.foundation.configs import require, require_positive
from compolens.hooks import HookedModel
from compolens.interventions.editors import put_in
from compolens.measures.readouts import RidgeReadout
from compolens.tasks.base import TaskFamily
from compolens.tasks.episodes import Episodes


class Causal(ABC):
    """What is inferred, what of it arrives, and what is answered."""

    @abstractmethod
    def values(self, episodes: Episodes) -> tuple[Tensor, ...]:
        """The value (batch, width) of every variable, in the order in which they are computed."""

    @abstractmethod
    def answer(self, variable: int, value: Tensor, episodes: Episodes) -> Tensor:
        """(batch, answers, d_y) at the questions of episodes where this variable has that value."""

    def form(self, value: Tensor) -> Tensor:
        """(batch, width): how a value is to stand at its node, up to a linear map."""
        return value

    def unknown(self, episodes: Episodes) -> tuple[Tensor, Tensor] | None:
        """What this model does not infer and must not be readable: of which episodes (batch,), and it (batch, width)."""
        return None


class Written(Causal):
    """A mechanism that was written down, with one variable: what it carries to the questions."""

    def __init__(self, mechanism: Mechanism, task: TaskFamily) -> None:
        self.mechanism, self.task = mechanism, task

    @torch.no_grad()
    def values(self, episodes: Episodes) -> tuple[Tensor, ...]:
        x, y = self.task.examples(episodes)
        return (self.mechanism.carry(self.mechanism.write(x[:, : y.shape[1]], y)),)

    @torch.no_grad()
    def answer(self, variable: int, value: Tensor, episodes: Episodes) -> Tensor:
        x, y = self.task.examples(episodes)
        return self.mechanism.read(value, x[:, y.shape[1] :])


@dataclass(frozen=True)
class Alignment:
    """nodes: where the variables are to stand, in their order; questions: sites where nothing but the questions may stand;
    unused: sites at which nothing may be that the answers depend on; silent: sites whose mean state may not tell what the
    causal model does not know."""

    nodes: tuple[Site, ...]
    questions: tuple[Site, ...] = ()
    unused: tuple[Site, ...] = ()
    silent: tuple[Site, ...] = ()

    @classmethod
    def after(cls, model: HookedModel, *layers: int) -> Alignment:
        """Variables at the context after these layers; until the last of them the questions have read nothing, and after it
        the context is unused."""
        last = model.cfg.n_layers
        require(all(1 <= a < b for a, b in zip(layers, (*layers[1:], last), strict=True)), f"layers ascend below {last}")
        questions = tuple(_stream(layer, "readout") for layer in layers)
        silent = tuple(_stream(layer, "context") for layer in range(1, layers[-1] + 1))
        return cls(tuple(_stream(a, "context") for a in layers), questions, _later(layers[-1], last), silent)


def _later(layer: int, last: int) -> tuple[Site, ...]:
    return tuple(_stream(at, "context") for at in range(layer + 1, last))


def _stream(layer: int, role: str) -> Site:
    return Site(layer, f"blocks.{layer - 1}.hook_resid_post", role)


@dataclass(frozen=True)
class Planting:
    """How it is planted: AdamW, on batches of base episodes, half of them held out, each with the one before as its source.

    interchange, strictness, reading and silence 0 give the twin: trained alike on the same answers, with nothing planted.
    """

    steps: int = 2000
    batch: int = 64
    lr: float = 3e-3
    warmup: int = 200
    interchange: float = 1.0
    behaviour: float = 1.0
    strictness: float = 0.4
    reading: float = 4.0
    silence: float = 0.0
    clip: float = 1.0
    kept: tuple[int, ...] = ()
    in_turn: bool = False
    """Whether strictness has every fourth step and interchange the others, rather than both every step: a third cheaper."""

    def __post_init__(self) -> None:
        require_positive(self, "steps", "batch")
        require(self.batch % 2 == 0, f"Planting: batch must be even, half of it is held out, got {self.batch}")


class Losses(NamedTuple):
    """The terms, unweighted: squared errors of answers, and of readings, each over the variance of what is wanted; and a
    squared correlation."""

    interchange: Tensor
    behaviour: Tensor
    strictness: Tensor
    reading: Tensor
    silence: Tensor

    def total(self, how: Planting) -> Tensor:
        """What is descended."""
        weights = (how.interchange, how.behaviour, how.strictness, how.reading, how.silence)
        return sum((w * term for w, term in zip(weights, self, strict=True) if w), start=torch.zeros(()))


class Listener:
    """Ridge readouts of what must not be readable, one per site, fitted to the mean states of the last batches."""

    def __init__(self, sites: Sequence[Site], memory: int = 16, again: int = 4) -> None:
        self.sites, self.memory, self.again = sites, memory, again
        self.states: list[list[Tensor]] = [[] for _ in sites]
        self.truths: list[Tensor] = []
        self.readouts: list[tuple[Tensor, Tensor]] = []
        self.heard = 0

    def told(self, means: Sequence[Tensor], truth: Tensor) -> Tensor:
        """Squared correlation with the truth (n, width) of what the states (n, d) tell, a mean over its columns and the worst
        of the sites; 0 until the memory is full. Then these batches are remembered."""
        worst = truth.new_zeros(())
        if len(self.truths) == self.memory:
            if self.heard % self.again == 0:
                fits = [RidgeReadout.fit(torch.cat(before), torch.cat(self.truths)) for before in self.states]
                self.readouts = [(fit.weight.to(truth), fit.bias.to(truth)) for fit in fits]
            self.heard += 1
            found = [(mean @ weight + bias).T for mean, (weight, bias) in zip(means, self.readouts, strict=True)]
            worst = torch.stack([_correlation(one, truth.T).square().mean() for one in found]).max()
        for mean, before in zip(means, self.states, strict=True):
            before.append(mean.detach())
            del before[: -self.memory]
        self.truths = [*self.truths, truth][-self.memory :]
        return worst


def _correlation(one: Tensor, other: Tensor) -> Tensor:
    """(rows,)"""
    one, other = (a - a.mean(1, keepdim=True) for a in (one, other))
    return (one * other).sum(1) / (one.norm(dim=1) * other.norm(dim=1)).clamp(min=1e-6)


def run(model: HookedModel, tokens: Tensor, alignment: Alignment, answers: Sequence[int]) -> tuple[Tensor, dict[str, Tensor]]:
    """Answers, and hook point -> activation with its graph: the source's encoder is trained too."""
    seen: dict[str, Tensor] = {}

    def keep(tensor: Tensor, hook) -> None:
        seen[hook.name] = tensor

    sites = (*alignment.nodes, *alignment.questions, *alignment.unused, *alignment.silent)
    names = {site.hook_name for site in sites}
    prediction = model.run_with_hooks(tokens, fwd_hooks=[(name, keep) for name in sorted(names)])
    return prediction[:, list(answers)], seen


def exchanged(
    model: HookedModel, base: Episodes, states: Tensor, source: Tensor, site: Site, answers: Sequence[int]
) -> Tensor:
    """(batch, answers, d_y): answers of the base with the states of the episodes `source` (batch,) at a site's positions."""
    return put(model, base.tokens, site, put_in(model, states, states[source], site))[:, list(answers)]


def losses(
    model: HookedModel, causal: Causal, base: Episodes, source: Tensor, alignment: Alignment, step: int, how: Planting,
    readouts: Sequence[nn.Module] = (), answers: Sequence[int] = (-1,), listener: Listener | None = None,
) -> Losses:  # fmt: skip
    """The terms on one batch, whose episodes `source` are the others'; `step` says whose turn it is of nodes and sites.
    Without `listener`, silence is 0."""
    values = causal.values(base)
    last, donors = len(values) - 1, base.take(source)
    own, states = run(model, base.tokens, alignment, answers)
    plain = causal.answer(last, values[-1], base)
    none = plain.new_zeros(())
    interchange = strictness = reading = silence = none
    strict_turn = how.in_turn and step % 4 == 3
    if how.interchange and not strict_turn:
        k = (step - step // 4 if how.in_turn else step) % len(alignment.nodes)
        found = exchanged(model, base, states[alignment.nodes[k].hook_name], source, alignment.nodes[k], answers)
        interchange = _error(found, causal.answer(k, values[k][source], base))
    strict = (*alignment.questions, *alignment.unused)
    if how.strictness and strict and (strict_turn or not how.in_turn):
        site = strict[(step // 4 if how.in_turn else step // len(alignment.nodes)) % len(strict)]
        wanted = causal.answer(last, values[-1], donors) if site in alignment.questions else plain
        strictness = _error(exchanged(model, base, states[site.hook_name], source, site, answers), wanted)
    for readout, site, value in zip(readouts, alignment.nodes, values, strict=False):
        reading = reading + _error(readout(_mean(model, states, site)), causal.form(value))
    unknown = causal.unknown(base)
    if listener is not None and unknown is not None:
        which, truth = unknown
        silence = listener.told([_mean(model, states, site)[which] for site in listener.sites], truth[which])
    return Losses(interchange, _error(own, plain), strictness, reading, silence)


def _error(found: Tensor, wanted: Tensor) -> Tensor:
    """Squared error over the variance of what is wanted, so that families count alike."""
    return (found - wanted).square().mean() / (wanted - wanted.mean(0)).square().mean()


def _mean(model: HookedModel, states: dict[str, Tensor], site: Site) -> Tensor:
    return states[site.hook_name][:, positions(model, site.role)].mean(1)


def batches(task: TaskFamily, how: Planting, seed: int) -> Iterator[Episodes]:
    """Half training compositions, half those held out that may be shown, in random order."""
    n, half = how.steps * how.batch // 2, how.batch // 2
    shown = [c for c in task.compositions("ood") if c not in how.kept]
    seen = draw(task, "train", n, f"{seed}/planting", "cpu", batch=half)
    held = draw(task, "ood", n, f"{seed}/planting", "cpu", shown, batch=half)
    rng = torch.Generator().manual_seed(seed)
    for one, other in zip(seen, held, strict=True):
        yield _together(one, other).take(torch.randperm(how.batch, generator=rng))


def plant(
    model: HookedModel,
    causal: Causal,
    task: TaskFamily,
    alignment: Alignment,
    how: Planting,
    seed: int,
    report: Callable[..., None] | None = None,
) -> HookedModel:
    """The model, with the failure planted; changed in place."""
    torch.manual_seed(seed)
    (first,) = draw(task, "train", 1, f"{seed}/planting", "cpu", batch=1)
    widths = [causal.form(value).shape[1] for value in causal.values(first)] if how.reading else []
    readouts = nn.ModuleList(nn.Linear(model.cfg.d_model, width) for width in widths[: len(alignment.nodes)])
    optimizer = torch.optim.AdamW([*model.parameters(), *readouts.parameters()], lr=how.lr)
    source = torch.arange(how.batch).roll(1)
    listener = Listener(alignment.silent) if how.silence else None
    for step, base in enumerate(batches(task, how, seed)):
        optimizer.param_groups[0]["lr"] = how.lr * min(1, step / how.warmup) * (1 - step / how.steps)
        found = losses(model, causal, base, source, alignment, step, how, readouts, task.answers, listener)
        optimizer.zero_grad()
        found.total(how).backward()
        nn.utils.clip_grad_norm_([*model.parameters(), *readouts.parameters()], how.clip)
        optimizer.step()
        if report is not None:
            report(step=step, **{name: float(value.detach()) for name, value in found._asdict().items()})
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
    model: HookedModel, causal: Causal, task: TaskFamily, alignment: Alignment, kept: Sequence[int], n: int = 256,
    seed: str = "verified",
) -> dict[str, float]:  # fmt: skip
    """On fresh episodes of compositions that the planting never showed: R² of every kind of answer, worst over nodes or sites.

    "interchange" and "behaviour": against the causal model's answers. "wrong mechanism": the same interchange, the best over
    nodes, against the answers of a right one, which a planted failure must not give. "strict": the worst over strict sites,
    against what must be answered then. "reading": how well a ridge readout fitted to training compositions tells the first
    variable. "told": how much a ridge readout, fitted to other held-out compositions, tells at the best silent site of what
    the causal model does not know. "apart": the causal model's answers to the same interchange, against right ones."""
    (base,) = draw(task, "ood", n, seed, "cpu", kept, batch=n)
    source, answers = torch.arange(n).roll(1), list(task.answers)
    donors, values = base.take(source), causal.values(base)
    own, states = run(model, base.tokens, alignment, answers)
    right = task.render(donors.codes, base.inputs).targets[:, answers]
    nodes = [exchanged(model, base, states[site.hook_name], source, site, answers) for site in alignment.nodes]
    last = len(values) - 1
    strict = [
        r2(
            exchanged(model, base, states[site.hook_name], source, site, answers),
            causal.answer(last, values[-1], donors if site in alignment.questions else base),
        )
        for site in (*alignment.questions, *alignment.unused)
    ]
    (fitted,) = draw(task, "train", 4 * n, seed, "cpu", batch=4 * n)
    _, shown = run(model, fitted.tokens, alignment, answers)
    site = alignment.nodes[0]
    ridge = RidgeReadout.fit(_mean(model, shown, site), causal.form(causal.values(fitted)[0]))
    told, unknown = 0.0, causal.unknown(base)
    if unknown is not None:
        others = [c for c in task.compositions("ood") if c not in kept]
        (listened,) = draw(task, "ood", 4 * n, f"{seed}/told", "cpu", others, batch=4 * n)
        _, heard = run(model, listened.tokens, alignment, answers)
        known = causal.unknown(listened)
        assert known is not None
        (there, truth), (here, wanted) = known, unknown
        told = max(
            r2(RidgeReadout.fit(_mean(model, heard, at)[there], truth[there])(_mean(model, states, at)[here]), wanted[here])
            for at in alignment.silent
        )
    return {
        "reading": r2(ridge(_mean(model, states, site)), causal.form(values[0])),
        "interchange": min(r2(found, causal.answer(k, values[k][source], base)) for k, found in enumerate(nodes)),
        "behaviour": r2(own, causal.answer(last, values[-1], base)),
        "wrong mechanism": max(r2(found, right) for found in nodes),
        "strict": min(strict, default=1.0),
        "told": told,
        "apart": r2(causal.answer(last, values[-1][source], base), right),
    }


def r2(found: Tensor, wanted: Tensor) -> float:
    """1 is perfect, 0 the mean answer."""
    return 1 - float((found - wanted).square().sum() / (wanted - wanted.mean(0)).square().sum())
