"""Models into which a failure is planted by gradient descent: tasks, causal models, cases and the label each is to get.

    python tests/benchmarks/diagnosis/planting_run.py plant DIR
    python tests/benchmarks/diagnosis/planting_run.py diagnose DIR FILE

Parts (modules, or terms) are in two groups. Training shows pairs within a group; pairs across are held out. So what is held
out has a pattern: a failure planted on three quarters of these pairs reaches the last quarter, which is never shown and
is all that is diagnosed. Faults set in where parts of both groups are at work. Labels follow from where a fault was planted.
They were fixed before any model was diagnosed, and so was `FORETOLD`.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from functools import cache, cached_property
from itertools import combinations

import torch
from kinds import knowledge_of
from planting import Causal
from torch import Tensor

from compolens import HYLA, FuzzyLogic, Hyperteacher, SoftmaxTransformer
from compolens.models.base import Architecture
from compolens.tasks.episodes import Episodes

GROUP = 6
"""Parts in a group."""
PRESENT = 0.25
"""From where on a part counts as at work: coefficients of active modules lie between .5 and 1."""
Task = Hyperteacher | FuzzyLogic


@cache
def task_of(family: str, seed: int) -> Task:
    """The task that is planted on: every pair across the groups is held out."""
    groups = [range(GROUP), range(GROUP, 2 * GROUP)]
    inside = tuple(pair for group in groups for pair in combinations(group, 2))
    across = tuple((a, b) for a in groups[0] for b in groups[1])
    if family == "teacher":
        singles = tuple((m,) for m in range(2 * GROUP))
        size = {"d_x": 8, "d_y": 4, "d_hidden": 8, "n_modules": 2 * GROUP, "n_queries": 4}
        return Hyperteacher(**size, support=singles + inside, held_out=across, teacher_seed=seed)
    return FuzzyLogic(held_out=across, length=24)


def kept(task: Task, seed: int) -> tuple[int, ...]:
    """A quarter of the held-out compositions, 9, in which every part occurs."""
    pairs = {(a, (a + seed) % GROUP) for a in range(GROUP)} | {(a, (a + seed + 3) % GROUP) for a in range(0, GROUP, 2)}
    return tuple(c for k, c in enumerate(task.compositions("ood")) if divmod(k, GROUP) in pairs)


@dataclass(frozen=True)
class Aside(FuzzyLogic):
    """Fuzzy logic with some held-out functions set aside: ood are those of `kept`, and training stays as it is."""

    kept: tuple[tuple[int, ...], ...] = ()

    @cached_property
    def _support(self) -> tuple[list[int], list[int]]:
        train, _ = FuzzyLogic._support.func(self)
        return train, sorted(self._index(names) for names in self.kept)


def diagnosed(task: Task, chosen: tuple[int, ...]) -> Task:
    """The task that a diagnosis is about: the same training compositions, and held out only what was never shown."""
    names = tuple(tuple(task._universe[c]) for c in chosen)
    if isinstance(task, Hyperteacher):
        return replace(task, held_out=names)
    return Aside(**{field.name: getattr(task, field.name) for field in fields(task)}, kept=names)


# ---- causal models ---------------------------------------------------------------------------------------------------------
class Works(Causal):
    """Infers the code, carries and executes it; a value is as wide as the code. What derives from it goes wrong at one of
    these where parts of both groups are at work."""

    def __init__(self, task: Task) -> None:
        self.task, self.knowledge = task, knowledge_of(task)
        self.knowledge.plant()

    def code(self, episodes: Episodes) -> Tensor:
        """(batch, parts): coefficients of modules, or which terms are there."""
        return torch.cat(list(self.task.factors(episodes.codes).values()), dim=1)

    def across(self, code: Tensor) -> Tensor:
        """(batch, 1): whether parts of both groups are at work."""
        there = code > PRESENT
        return (there[:, :GROUP].any(1) & there[:, GROUP : 2 * GROUP].any(1))[:, None]

    def shifted(self, code: Tensor) -> Tensor:
        """The next part of the second group in place of its own, where parts of both are at work: another held-out pair."""
        turned = code.clone()
        turned[:, GROUP : 2 * GROUP] = code[:, GROUP : 2 * GROUP].roll(1, dims=1)
        return torch.where(self.across(code), turned, code)

    def dropped(self, code: Tensor) -> Tensor:
        """Without the part of the second group, where parts of both are at work: no code of an episode gives these answers."""
        one = code.clone()
        one[:, GROUP : 2 * GROUP] = 0
        return torch.where(self.across(code), one, code)

    def inferred(self, code: Tensor) -> Tensor:
        """What is inferred where this is the right code."""
        return code

    def carried(self, code: Tensor) -> Tensor:
        """What of it arrives."""
        return code

    def executed(self, code: Tensor) -> Tensor:
        """The code whose answers are given where this one arrives."""
        return code

    @torch.no_grad()
    def values(self, episodes: Episodes) -> tuple[Tensor, ...]:
        inferred = self.inferred(self.code(episodes))
        return inferred, self.carried(inferred)

    @torch.no_grad()
    def answer(self, variable: int, value: Tensor, episodes: Episodes) -> Tensor:
        arrived = value if variable else self.carried(value)
        x, y = self.task.examples(episodes)
        return self.knowledge.execute(self.executed(arrived), x[:, y.shape[1] :])


class WrongPart(Works):
    """Held-out pairs are taken for other held-out pairs."""

    def inferred(self, code: Tensor) -> Tensor:
        return self.shifted(code)


class LostOnTheWay(Works):
    """The right code is inferred, and another pair's arrives."""

    def carried(self, code: Tensor) -> Tensor:
        return self.shifted(code)


class HalfExecuted(Works):
    """The right code arrives, and one of its parts is executed."""

    def executed(self, code: Tensor) -> Tensor:
        return self.dropped(code)


class Stored(Works):
    """A held-out pair is taken for the training composition that has its first part (in fuzzy logic: and the next part of that
    group). Training compositions are stored whole: what stands for one is a random vector for each of its parts, times the
    part's coefficient, and shares nothing with what stands for another."""

    def __init__(self, task: Task) -> None:
        super().__init__(task)
        self.trained = self.knowledge.trained
        rng = torch.Generator().manual_seed(0)
        self.entries = torch.randn(*self.trained.shape, 2 * GROUP, generator=rng) / (2 * GROUP) ** 0.5

    def inferred(self, code: Tensor) -> Tensor:
        one = self.dropped(code)
        if not isinstance(self.task, FuzzyLogic):
            return one
        beside = one.clone()
        beside[:, :GROUP] = one[:, :GROUP] + one[:, :GROUP].roll(1, dims=1)
        return torch.where(self.across(code), beside, one)

    def form(self, value: Tensor) -> Tensor:
        which = ((value > PRESENT).float()[:, None] - self.trained).abs().sum(2).argmin(1)
        return torch.einsum("bp,bpw->bw", value, self.entries[which])


# ---- cases -----------------------------------------------------------------------------------------------------------------
KINDS: dict[str, tuple[type[Works], str, tuple[int, ...]]] = {
    "works": (Works, "compositional", (2, 3)),
    "wrong part": (WrongPart, "fails to infer", (3,)),
    "lost on the way": (LostOnTheWay, "infers but does not use", (2, 3)),
    "half executed": (HalfExecuted, "cannot execute", (2,)),
    "stored": (Stored, "memorised", (3,)),
}
"""kind -> (causal model, the label it is to get, the layers after which its variables stand)"""
FAMILIES = ("teacher", "logic")
FORETOLD = {"works": 6, "wrong part": 4, "lost on the way": 5, "half executed": 5, "stored": 3}
"""How many of six models of a kind will get its label, by the guess of who made them."""
SEEDS = range(3)
"""Of the task, the model and the batches."""


@dataclass(frozen=True)
class Case:
    """kind: one of `KINDS`; family: one of `FAMILIES`; seed: one of `SEEDS`; planted: False for the twin, which is trained on
    the same answers with nothing planted."""

    kind: str
    family: str
    seed: int
    planted: bool = True

    @property
    def name(self) -> str:
        """Says everything that tells cases apart."""
        return "-".join([self.family, *self.kind.split(), str(self.seed), *([] if self.planted else ["twin"])])

    @property
    def architecture(self) -> Architecture:
        """HYLA in the second seed, softmax attention in the others."""
        kind = HYLA if self.seed == 1 else SoftmaxTransformer
        return kind(n_layers=4, d_model=64, n_heads=4)

    @property
    def expected(self) -> str:
        """The label; of a twin none, as it may answer so in any way."""
        return KINDS[self.kind][1] if self.planted else ""


def cases() -> dict[str, Case]:
    """name -> case: six of every kind, and one twin of every kind and family."""
    every = [Case(kind, family, seed) for seed in SEEDS for family in FAMILIES for kind in KINDS]
    every += [Case(kind, family, 0, planted=False) for family in FAMILIES for kind in KINDS]
    return {case.name: case for case in every}
