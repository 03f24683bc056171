"""What a reference is: a learner without training that answers the same episodes as a model."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from compolens.tasks.base import TaskFamily
from compolens.tasks.episodes import Episodes


@dataclass(frozen=True)
class Reference(ABC):
    """A frozen description, like an architecture; `name` is how tables and figures call it."""

    of_one_family: ClassVar[bool] = False
    """Whether tables of other families do not mention it at all, instead of saying why it does not apply."""

    @property
    @abstractmethod
    def name(self) -> str:
        """A few words, as in a figure's legend."""

    @abstractmethod
    def why_not(self, task: TaskFamily) -> str:
        """Why this reference does not apply to `task`; "" if it does."""

    @abstractmethod
    def predict(self, task: TaskFamily, episodes: Episodes) -> Tensor:
        """What the reference answers.

        Args:
            task: the family.
            episodes: a batch of episodes.

        Returns:
            (batch, seq, d_out); positions that are not answers are arbitrary.
        """
