"""The oracle that is told the code: the ceiling of every score."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from compolens.references.base import Reference
from compolens.tasks.base import Episodes, TaskFamily


@dataclass(frozen=True)
class TrueCode(Reference):
    """Renders the episode's own code: 1 on every family without noise, and what noise leaves otherwise."""

    @property
    def name(self) -> str:
        return "true code"

    def why_not(self, task: TaskFamily) -> str:
        return task.missing.get("render", "")

    def predict(self, task: TaskFamily, episodes: Episodes) -> Tensor:
        return task.render(episodes.codes, episodes.inputs).targets
