"""The label of the nearest examples: what can be said of a Boolean function without knowing that there are functions.

Few variables leave few inputs, so the question was often shown, and neighbours often share a label. Who answers held-out
functions no better than this has not put parts together again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from compolens.references.base import Reference
from compolens.tasks.base import TaskFamily
from compolens.tasks.boolean_functions import BooleanFunctions
from compolens.tasks.episodes import Episodes


@dataclass(frozen=True)
class NearestLabels(Reference):
    """The more frequent label of the examples that differ from the question in the fewest variables.

    Where both labels are as frequent there, the examples that differ in one variable more decide, and so on; false, where none
    do.
    """

    of_one_family: ClassVar[bool] = True

    @property
    def name(self) -> str:
        return "labels of the nearest examples"

    def why_not(self, task: TaskFamily) -> str:
        return "" if isinstance(task, BooleanFunctions) else "its examples are not labelled bits"

    def predict(self, task: TaskFamily, episodes: Episodes) -> Tensor:
        assert isinstance(task, BooleanFunctions)
        x, label = episodes.tokens[:, ::2, :-1], episodes.tokens[:, 1::2, -1]
        differ = (x[:, :-1] * x[:, -1:] < 0).sum(-1)
        found = torch.zeros(len(x), task.seq, 2, dtype=torch.float64, device=x.device)
        for distance in range(task.n_bits, -1, -1):
            vote = (label * (differ == distance)).sum(1).sign()
            found[:, -1, 1] = torch.where(vote == 0, found[:, -1, 1], vote.double())
        return found
