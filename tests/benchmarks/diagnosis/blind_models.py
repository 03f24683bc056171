"""The blind set's planted models as architectures, and a family of its own: in-context regression on bilinear answers.

A task of `Bilinear` is y = (A_i x)(B_j x), coordinate by coordinate: the products of two linear maps, neither of which shows
by itself, as both may change their sign together. Everything else is as in `pairs`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from blind_codes import CARRIERS
from blind_faults import FAULTS, TRANSPORTS, Blind
from chain import Chain
from kinds import KNOWLEDGE, Task, knowledge_of, require_own_task
from maxout import Maxout
from pair_knowledge import PairKnowledge
from pairs import Pairs
from phase import Phase
from planted import Infer, Move, PlantedCodeModel, PlantedModel, Stage
from product import Product
from torch import Tensor, nn

from compolens.foundation.configs import nearest, require
from compolens.models.base import Architecture
from compolens.tasks import FuzzyLogic, Hyperteacher


@dataclass(frozen=True)
class Bilinear(Pairs):
    """
    >>> task = Bilinear()
    >>> len(task.compositions("train")), len(task.compositions("ood")), task.composition_name(8)
    (24, 12, '1|2')
    """

    @staticmethod
    def first(drive: Tensor) -> Tensor:
        return drive

    @staticmethod
    def second(hidden: Tensor, outer: Tensor, x: Tensor) -> Tensor:
        return hidden * (x @ outer)


class BilinearKnowledge(PairKnowledge):
    """y = (A_i x)(B_j x): parts of the inner operation are added up before it is multiplied."""

    def _inner(self, inner: Tensor, x: Tensor, added: Tensor) -> Tensor:
        return x @ (torch.einsum("bj,jxh->bxh", inner, self.W_inner) + added)


BLIND_KNOWLEDGE = (*KNOWLEDGE, (Bilinear, BilinearKnowledge))


class InferShares(Infer):
    """Every context token holds the message plus a mask of its own; the masks cancel in the mean."""

    def update(self, read: Tensor, context: int, mechanism: Blind) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        message, rest = super().update(read, context, mechanism)
        return message + mechanism.masks(read[:, :context, : mechanism.knowledge.d_x]), rest


class MoveAsked(Move):
    """The context's mean message -> every question, changed there by the question's own x."""

    def __init__(self, d_model: int, mechanism: Blind) -> None:
        super().__init__(d_model, mechanism)
        self.W_asked = nn.Parameter(torch.randn(d_model, mechanism.knowledge.d_x) / d_model**0.5)

    def forward(self, resid: Tensor, context: int, mechanism: Blind) -> Tensor:  # type: ignore[override]
        resid = self.hook_resid_pre(resid)
        still, message = self.update(resid @ self.W_read, context, mechanism)
        moved = mechanism.bind(message, resid[:, context:] @ self.W_asked)
        return self.hook_resid_post(resid + torch.cat([still, moved], dim=1) @ self.W_write)


class _Transported:
    """What the first two stages are, by the mechanism's transport."""

    mechanism: Blind

    def _stages(self, d_model: int) -> list[Stage]:
        first, second, *rest = super()._stages(d_model)  # type: ignore[misc]
        if self.mechanism.transport == "shares":
            first = InferShares(d_model, self.mechanism)
        if self.mechanism.transport == "bound":
            second = MoveAsked(d_model, self.mechanism)
        return [first, second, *rest]

    @torch.no_grad()
    def plant(self) -> None:
        super().plant()  # type: ignore[misc]
        infer, move = self._stage(0), self._stage(1)  # type: ignore[attr-defined]
        if isinstance(move, MoveAsked):
            move.W_asked.copy_(infer.W_read[:, : self.mechanism.knowledge.d_x])


class BlindModel(_Transported, PlantedModel):
    """`PlantedModel` with the blind set's transports."""


class BlindCodeModel(_Transported, PlantedCodeModel):
    """`PlantedCodeModel` with the blind set's transports, but for those that need the question."""


@dataclass(frozen=True)
class PlantedBlind(Architecture):
    """task: the one that the model is about; fault: a name of `FAULTS`; carrier: one of `CARRIERS`; transport: one of
    `TRANSPORTS`; strength and explicit as in `kinds.Planted`."""

    task: Task | Bilinear
    fault: str = "Blind"
    carrier: str = "plain"
    transport: str = "whole"
    strength: float = 1.0
    explicit: bool = False

    faults: ClassVar[Mapping[str, type[Blind]]] = FAULTS
    carriers: ClassVar[Collection[str]] = CARRIERS
    transports: ClassVar[Collection[str]] = TRANSPORTS
    kinds: ClassVar[tuple[type[PlantedModel], type[PlantedModel]]] = (BlindModel, BlindCodeModel)
    """What is built: with a code spread over the residual stream, and with an explicit one."""

    def __post_init__(self) -> None:
        require(self.fault in self.faults, f"no fault {self.fault!r}; {nearest(self.fault, self.faults)}")
        require(self.carrier in self.carriers, f"no carrier {self.carrier!r}; {nearest(self.carrier, self.carriers)}")
        require(
            self.transport in self.transports, f"no transport {self.transport!r}; {nearest(self.transport, self.transports)}"
        )
        require(0 < self.strength <= 1, f"strength must lie in (0, 1], got {self.strength!r}")
        require(not (self.explicit and self.transport == "bound"), "an explicit code is the same for all questions")

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
        knowledge = knowledge_of(self.task, BLIND_KNOWLEDGE)
        mechanism = self.faults[self.fault](knowledge, self.strength, self.carrier, self.transport)
        return self.kinds[self.explicit](mechanism, d_in=d_in, d_out=d_out, seq=self.task.seq, answers=answers)


PAIRS: dict[str, type[Pairs]] = {
    "chain": Chain,
    "product": Product,
    "maxout": Maxout,
    "phase": Phase,
    "bilinear": Bilinear,
}


def task_of(family: str, seed: int, few: bool = False) -> Task | Bilinear:
    """The small task of a family, as in `cases.task_of`; few: with four held-out pairs, where a family is of pairs."""
    if family == "teacher":
        return Hyperteacher(d_x=8, d_y=4, d_hidden=8, n_queries=4, teacher_seed=seed, split_seed=seed)
    if family == "logic":
        return FuzzyLogic(split_seed=seed)
    small = {"n_outer": 4, "n_inner": 4, "partners_held_out": 1} if few else {}
    return PAIRS[family](teacher_seed=seed, split_seed=seed, **small)  # type: ignore[return-value]
