"""The second blind set's planted models as architectures: as in `blind_models`, but context tokens may differ."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from blind_models import BLIND_KNOWLEDGE, Bilinear, BlindCodeModel, BlindModel, MoveAsked
from kinds import Task, knowledge_of, require_own_task
from planted import Infer, Move, PlantedModel, Stage
from second_codes import CARRIERS
from second_faults import FAULTS, TRANSPORTS, Sound
from torch import Tensor

from compolens.foundation.configs import nearest, require
from compolens.models.base import Architecture


class InferEach(Infer):
    """Context tokens -> what the mechanism writes at each of them."""

    def update(self, read: Tensor, context: int, mechanism: Sound) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        x, y = read[:, :context].tensor_split([mechanism.knowledge.d_x], dim=-1)
        message = mechanism.at_tokens(mechanism.write(x, y), x, y)
        return message, message.new_zeros(len(read), read.shape[1] - context, message.shape[-1])


class MoveEach(Move):
    """What the mechanism takes of the context's messages -> every position after."""

    def update(self, read: Tensor, context: int, mechanism: Sound) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        taken = mechanism.taken(read[:, :context])[:, None]
        return torch.zeros_like(read[:, :context]), taken.expand(-1, read.shape[1] - context, -1)


class _EachToken:
    """The first two stages, token by token."""

    mechanism: Sound

    def _stages(self, d_model: int) -> list[Stage]:
        _, second, *rest = super()._stages(d_model)  # type: ignore[misc]
        second = second if isinstance(second, MoveAsked) else MoveEach(d_model, self.mechanism)
        return [InferEach(d_model, self.mechanism), second, *rest]


class SecondModel(_EachToken, BlindModel):
    """`BlindModel`, token by token."""


class SecondCodeModel(_EachToken, BlindCodeModel):
    """`BlindCodeModel`, token by token."""


@dataclass(frozen=True)
class PlantedSecond(Architecture):
    """task: the one that the model is about; fault: a name of `FAULTS`; carrier: one of `CARRIERS`; transport: one of
    `TRANSPORTS`; strength and explicit as in `kinds.Planted`."""

    task: Task | Bilinear
    fault: str = "Sound"
    carrier: str = "plain"
    transport: str = "whole"
    strength: float = 1.0
    explicit: bool = False

    def __post_init__(self) -> None:
        require(self.fault in FAULTS, f"no fault {self.fault!r}; {nearest(self.fault, FAULTS)}")
        require(self.carrier in CARRIERS, f"no carrier {self.carrier!r}; {nearest(self.carrier, CARRIERS)}")
        require(self.transport in TRANSPORTS, f"no transport {self.transport!r}; {nearest(self.transport, TRANSPORTS)}")
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
        kind = SecondCodeModel if self.explicit else SecondModel
        mechanism = FAULTS[self.fault](knowledge_of(self.task, BLIND_KNOWLEDGE), self.strength, self.carrier, self.transport)
        return kind(mechanism, d_in=d_in, d_out=d_out, seq=self.task.seq, answers=answers)
