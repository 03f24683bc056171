"""Planted models as architectures, one for every mechanism: what a run names, so that a case is an ordinary model folder."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from chain import Chain
from fresh_mechanisms import AverageCode, HalfBlind, NotCarried, Rotated, Shrunken
from knowledge import Knowledge
from logic_knowledge import LogicKnowledge
from maxout import Maxout
from mechanisms import (
    Entangled,
    LeftBehind,
    Lookup,
    Mechanism,
    MostlyExecution,
    MostlyInference,
    NearestSupport,
    NeverRead,
    RidgeFallback,
    Scrambled,
    WrongPartner,
)
from new_mechanisms import FeatureFallback, HalfExecuted, MemoryByCode, Miscarried, Mistaken, TwoMemories
from pair_knowledge import ChainKnowledge, MaxoutKnowledge, PhaseKnowledge, ProductKnowledge
from phase import Phase
from planted import PlantedCodeModel, PlantedModel
from product import Product
from teacher_knowledge import TeacherKnowledge
from torch import Tensor

from compolens.foundation.configs import DoesNotApply, require
from compolens.models.base import Architecture
from compolens.tasks import FuzzyLogic, Hyperteacher

Task = Hyperteacher | FuzzyLogic | Chain | Product | Maxout | Phase
KNOWLEDGE: tuple[tuple[type, type[Knowledge]], ...] = (
    (Hyperteacher, TeacherKnowledge),
    (FuzzyLogic, LogicKnowledge),
    (Chain, ChainKnowledge),
    (Product, ProductKnowledge),
    (Maxout, MaxoutKnowledge),
    (Phase, PhaseKnowledge),
)


def knowledge_of(task: Task, known: Sequence[tuple[type, type[Knowledge]]] = KNOWLEDGE) -> Knowledge:
    """The knowledge that a family needs, of those that are known."""
    for family, kind in known:
        if isinstance(task, family):
            return kind(task)  # type: ignore[call-arg, arg-type]
    names = ", ".join(family.__name__ for family, _ in known[:-1])
    raise DoesNotApply(f"models are planted on {names} or {known[-1][0].__name__}, got {type(task).__name__}")


def require_own_task(planted: Any, d_in: int, d_out: int, seq: int | None, answers: Sequence[int]) -> None:
    """That a planted architecture is built with the dimensions of the task that it was planted for."""
    own = planted.task.dimensions
    if (d_in, d_out, seq, tuple(answers)) != tuple(own[name] for name in ("d_in", "d_out", "seq", "answers")):
        raise DoesNotApply(f"{type(planted).__name__} was planted for another task; build it for its own: {planted.task}")


@dataclass(frozen=True)
class Planted(Architecture):
    """What planted architectures share. task: the one whose parts and held-out pairs the model is about; strength: how much
    of the wrong thing is mixed in, in (0, 1]; explicit: whether the message is an explicit code."""

    task: Task
    strength: float = 1.0
    explicit: bool = False

    def __post_init__(self) -> None:
        require(0 < self.strength <= 1, f"{type(self).__name__}: strength must lie in (0, 1], got {self.strength!r}")

    @property
    @abstractmethod
    def mechanism(self) -> type[Mechanism]:
        """What goes on inside."""

    def build(
        self,
        *,
        d_in: int,
        d_out: int,
        seq: int | None = None,
        answers: Sequence[int] = (-1,),
        d_x: int | None = None,
        mask: Tensor | None = None,
        blocks: Sequence[Sequence[int]] | None = None,
    ) -> PlantedModel:
        require_own_task(self, d_in, d_out, seq, answers)
        kind = PlantedCodeModel if self.explicit else PlantedModel
        mechanism = self.mechanism(knowledge_of(self.task), self.strength)
        return kind(mechanism, d_in=d_in, d_out=d_out, seq=self.task.seq, answers=answers)


@dataclass(frozen=True)
class PlantedCompositional(Planted):
    """`Mechanism`."""

    mechanism = Mechanism


@dataclass(frozen=True)
class PlantedScrambled(Planted):
    """`Scrambled`."""

    mechanism = Scrambled


@dataclass(frozen=True)
class PlantedNearestSupport(Planted):
    """`NearestSupport`."""

    mechanism = NearestSupport


@dataclass(frozen=True)
class PlantedWrongPartner(Planted):
    """`WrongPartner`."""

    mechanism = WrongPartner


@dataclass(frozen=True)
class PlantedEntangled(Planted):
    """`Entangled`."""

    mechanism = Entangled


@dataclass(frozen=True)
class PlantedMostlyInference(Planted):
    """`MostlyInference`."""

    mechanism = MostlyInference


@dataclass(frozen=True)
class PlantedMostlyExecution(Planted):
    """`MostlyExecution`."""

    mechanism = MostlyExecution


@dataclass(frozen=True)
class PlantedNeverRead(Planted):
    """`NeverRead`."""

    mechanism = NeverRead


@dataclass(frozen=True)
class PlantedLeftBehind(Planted):
    """`LeftBehind`."""

    mechanism = LeftBehind


@dataclass(frozen=True)
class PlantedLookup(Planted):
    """`Lookup`."""

    mechanism = Lookup


@dataclass(frozen=True)
class PlantedRidgeFallback(Planted):
    """`RidgeFallback`."""

    mechanism = RidgeFallback


@dataclass(frozen=True)
class PlantedRotated(Planted):
    """`Rotated`."""

    mechanism = Rotated


@dataclass(frozen=True)
class PlantedShrunken(Planted):
    """`Shrunken`."""

    mechanism = Shrunken


@dataclass(frozen=True)
class PlantedAverageCode(Planted):
    """`AverageCode`."""

    mechanism = AverageCode


@dataclass(frozen=True)
class PlantedNotCarried(Planted):
    """`NotCarried`."""

    mechanism = NotCarried


@dataclass(frozen=True)
class PlantedHalfBlind(Planted):
    """`HalfBlind`."""

    mechanism = HalfBlind


@dataclass(frozen=True)
class PlantedMistaken(Planted):
    """`Mistaken`."""

    mechanism = Mistaken


@dataclass(frozen=True)
class PlantedHalfExecuted(Planted):
    """`HalfExecuted`."""

    mechanism = HalfExecuted


@dataclass(frozen=True)
class PlantedMiscarried(Planted):
    """`Miscarried`."""

    mechanism = Miscarried


@dataclass(frozen=True)
class PlantedTwoMemories(Planted):
    """`TwoMemories`."""

    mechanism = TwoMemories


@dataclass(frozen=True)
class PlantedMemoryByCode(Planted):
    """`MemoryByCode`."""

    mechanism = MemoryByCode


@dataclass(frozen=True)
class PlantedFeatureFallback(Planted):
    """`FeatureFallback`."""

    mechanism = FeatureFallback
