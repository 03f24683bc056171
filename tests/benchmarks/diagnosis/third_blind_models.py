"""The third blind set's planted models as architectures: as in `second_models`, but questions may differ by their positions,
and a further block may change what they hold."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from planted import Execute, Stage
from second_models import MoveEach, PlantedSecond, SecondCodeModel, SecondModel
from third_blind_codes import CARRIERS
from third_blind_faults import FAULTS, TRANSPORTS, Third
from torch import Tensor

from compolens.foundation.configs import require


class MoveByPosition(MoveEach):
    """What the mechanism takes of the context's messages -> what each position after gets of it."""

    def update(self, read: Tensor, context: int, mechanism: Third) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        taken = mechanism.taken(read[:, :context])
        return torch.zeros_like(read[:, :context]), mechanism.delivered(taken, read.shape[1] - context)


class Refine(Stage):
    """A question's message -> what a further block makes of it, in its place."""

    def __init__(self, d_model: int, mechanism: Third) -> None:
        super().__init__(d_model, mechanism.width, mechanism.width)

    def update(self, read: Tensor, context: int, mechanism: Third) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        message = read[:, context:].flatten(0, 1)
        change = (mechanism.refine(message) - message).unflatten(0, (len(read), -1))
        return torch.zeros_like(read[:, :context]), change


class ExecuteByPosition(Execute):
    """A query's own message, as the mechanism receives it, and its x -> an answer, where the mechanism places it."""

    def update(self, read: Tensor, context: int, mechanism: Third) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        messages = mechanism.received(read[:, context:, : mechanism.width])
        received = torch.cat([messages, read[:, context:, mechanism.width :]], dim=2)
        still, answers = super().update(torch.cat([read[:, :context], received], dim=1), context, mechanism)
        return still, mechanism.placed(answers, messages)


class ThirdModel(SecondModel):
    """`SecondModel`, position by position, with a further block where the mechanism refines."""

    mechanism: Third

    def _stages(self, d_model: int) -> list[Stage]:
        first, second, _ = super()._stages(d_model)
        second = MoveByPosition(d_model, self.mechanism) if isinstance(second, MoveEach) else second
        between = [Refine(d_model, self.mechanism)] if self.mechanism.refines else []
        return [first, second, *between, ExecuteByPosition(d_model, self.mechanism)]

    def _stage(self, number: int) -> Stage:
        """By what a stage does: 2 executes, wherever it stands."""
        return super()._stage(len(self.blocks) - 1 if number == 2 else number)

    @torch.no_grad()
    def plant(self) -> None:
        super().plant()
        for block in self.blocks[2:-1]:
            block.W_read.copy_(self.blocks[1].W_read)
            block.W_write.copy_(self.blocks[1].W_write)


class ThirdCodeModel(SecondCodeModel):
    """`SecondCodeModel` of this set's mechanisms: an explicit code is one, so there are no positions to tell apart."""


@dataclass(frozen=True)
class PlantedThird(PlantedSecond):
    """`PlantedSecond` of the third set's faults, carriers and transports."""

    faults = FAULTS
    carriers = CARRIERS
    transports = TRANSPORTS
    kinds = (ThirdModel, ThirdCodeModel)

    def __post_init__(self) -> None:
        super().__post_init__()
        kind = FAULTS[self.fault]
        by_position = any(getattr(kind, name) is not getattr(Third, name) for name in ("delivered", "placed"))
        positions = kind.refines or by_position or self.transport == "turning"  # type: ignore[attr-defined]
        require(not (self.explicit and positions), f"{self.fault} tells positions apart, which an explicit code does not")
