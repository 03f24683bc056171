"""The second blind set's planted models as architectures: as in `blind_models`, but context tokens may differ."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from blind_models import BlindCodeModel, BlindModel, MoveAsked, PlantedBlind
from planted import Infer, Move, Stage
from second_codes import CARRIERS
from second_faults import FAULTS, TRANSPORTS, Sound
from torch import Tensor


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
class PlantedSecond(PlantedBlind):
    """`PlantedBlind` of the second set's faults, carriers and transports."""

    fault: str = "Sound"

    faults = FAULTS
    carriers = CARRIERS
    transports = TRANSPORTS
    kinds = (SecondModel, SecondCodeModel)
