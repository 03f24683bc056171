"""What an architecture is: a frozen description that builds a hookable model for a task's dimensions."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from torch import Tensor, nn

from compolens.foundation.configs import DoesNotApply, require, require_kinds
from compolens.foundation.moved import renamed
from compolens.hooks import HookedModel

__all__ = ["Architecture", "DoesNotApply", "Part", "count_parameters", "split_positions", "truncated_lecun_"]

T = TypeVar("T", bound=Tensor)


@dataclass(frozen=True)
class Architecture(ABC):
    """A description of a network; the description is the constructor.

    `build` gets the task's dimensions and returns a `HookedModel` whose ``model(tokens)`` maps (batch, seq, d_in) to a
    prediction at every position, (batch, seq, d_out). A pair that cannot work raises `DoesNotApply(reason)`. A subclass that
    has a `__post_init__` begins it with `super().__post_init__()`, which checks the kinds of all fields.
    """

    def __post_init__(self) -> None:
        require_kinds(self)

    @abstractmethod
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
    ) -> HookedModel:
        """A model for a task's dimensions; `TaskFamily.dimensions` gives the arguments.

        Args:
            d_in: width of a token.
            d_out: width of an answer.
            seq: tokens of an episode (None: any number).
            answers: positions that count, may be negative.
            d_x: how many leading coordinates of a token are the query's input.
            mask: (seq, seq) bool, True where [query, key] may attend (None: everywhere).
            blocks: groups of positions that belong together, the target's last; not the blocks that the model is made of.

        Returns:
            The model: tokens (batch, seq, d_in) -> (batch, seq, d_out) at every position.

        Raises:
            DoesNotApply: the architecture cannot work on such a task.
        """

    def statistics(self, model: HookedModel, tokens: Tensor) -> dict[str, float]:
        """Numbers about a model's state on a batch, which history.csv gets beside the scores.

        Args:
            model: one that `build` made.
            tokens: (batch, seq, d_in).

        Returns:
            name -> number; none by default.
        """
        if (earlier := getattr(self, "diagnose", None)) is None:
            return {}
        renamed("Architecture.diagnose", "Architecture.statistics")
        return dict(earlier(model, tokens))


@dataclass(frozen=True)
class Part:
    """A setting of an architecture that is a description itself, such as a threshold or a transfer; plain fields, frozen."""

    def __post_init__(self) -> None:
        require_kinds(self, nested=True)


def split_positions(seq: int | None, answers: Sequence[int]) -> tuple[list[int], list[int]]:
    """Positions by what they are for.

    Args:
        seq: tokens of a sequence (None: unknown, and then the context is empty).
        answers: positions that count, may be negative.

    Returns:
        (context, answers), non-negative and ascending where `seq` is known.

    Raises:
        ConfigError: an answer is none of the sequence's positions.
    """
    if seq is None:
        return [], list(answers)
    for a in answers:
        require(-seq <= a < seq, f"answers must be positions of the {seq} tokens (-{seq} to {seq - 1}), got {a}")
    wanted = sorted(a % seq for a in answers)
    return [p for p in range(seq) if p not in wanted], wanted


def truncated_lecun_(parameter: T, fan_in: int) -> T:
    """Truncated normal at two standard deviations, with variance 1 / fan_in after truncation (LeCun). In place.

    Args:
        parameter: the tensor to fill.
        fan_in: how many inputs each output sums.

    Returns:
        The same tensor.
    """
    std = 1 / math.sqrt(fan_in) / 0.87962566103423978
    nn.init.trunc_normal_(parameter, std=std, a=-2 * std, b=2 * std)
    return parameter


def count_parameters(model: nn.Module) -> int:
    """The number of trainable scalars of `model`."""
    return sum(p.numel() for p in model.parameters() if p.requires_grad)
