"""Votes of all functions that agree with the examples: what Bayes' rule makes of Boolean functions, which are drawn uniformly.

Among all functions of the family, no learner is expected to be right more often. Among those of training alone, it is what
perfect memory of the training functions achieves; on a held-out function often none agrees with all examples, and those vote
that disagree least.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from compolens.references.base import Reference
from compolens.tasks.base import TaskFamily
from compolens.tasks.boolean_functions import BooleanFunctions
from compolens.tasks.episodes import Episodes

EPISODES = 64
"""Worked through at once."""


@dataclass(frozen=True)
class _Vote(Reference):
    of_one_family: ClassVar[bool] = True

    def why_not(self, task: TaskFamily) -> str:
        return "" if isinstance(task, BooleanFunctions) else "it counts Boolean functions, and there are none"

    def _vote(self, task: TaskFamily, episodes: Episodes, allowed: Sequence[int]) -> Tensor:
        """(batch, seq, 2): the logarithm of the votes for either label of the question, weighed as the score weighs them."""
        assert isinstance(task, BooleanFunctions)
        found = torch.zeros(len(episodes.tokens), task.seq, 2, dtype=torch.float64)
        for start in range(0, len(found), EPISODES):
            part = episodes.take(torch.arange(start, min(start + EPISODES, len(found)))).to("cpu")
            answers, wrong = task.candidates(part, allowed)
            votes = (wrong == wrong.amin(1, keepdim=True)).double()
            share = (votes[..., None] * (answers[:, :, -1] > 0)).sum(1) / votes.sum(1, keepdim=True)
            found[start : start + EPISODES, -1] = (share * task.label_weights).clamp(min=1e-30).log()
        return found.to(episodes.tokens.device)


@dataclass(frozen=True)
class ConsistentTrainingFunctions(_Vote):
    """The vote of the training functions that disagree with the fewest examples."""

    @property
    def name(self) -> str:
        return "vote of training functions"

    def predict(self, task: TaskFamily, episodes: Episodes) -> Tensor:
        return self._vote(task, episodes, task.compositions("train"))


@dataclass(frozen=True)
class ConsistentFunctions(_Vote):
    """The vote of all functions of the family that agree with the examples: the ceiling for this many examples."""

    @property
    def name(self) -> str:
        return "vote of all functions"

    def predict(self, task: TaskFamily, episodes: Episodes) -> Tensor:
        return self._vote(task, episodes, range(task.n_compositions))
