"""The oracle that is told the code: the ceiling of every score."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from compolens.references.base import Reference
from compolens.tasks.base import TaskFamily
from compolens.tasks.episodes import Episodes

SURE = 50.0
"""The logit of an answer that is known, beside 0 for the others."""


@dataclass(frozen=True)
class TrueCode(Reference):
    """Renders the episode's own code: 1 on every family without noise, and what noise leaves otherwise."""

    @property
    def name(self) -> str:
        return "true code"

    def why_not(self, task: TaskFamily) -> str:
        return task.why_no_render

    def predict(self, task: TaskFamily, episodes: Episodes) -> Tensor:
        answers = task.render(episodes.codes, episodes.inputs).targets
        if answers.is_floating_point():
            return answers
        logits = torch.zeros(
            *answers.shape, task.d_out, dtype=torch.float64, device=answers.device
        )  # one, however many classes
        return logits.scatter_(-1, answers.clamp(min=0)[..., None], SURE)
