"""Bayes: what the shown panels say, exactly; the ceiling of any learner that is told the family but not the code."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from compolens.references.base import Reference
from compolens.references.oracle import SURE
from compolens.tasks.base import Episodes, TaskFamily
from compolens.tasks.sraven.family import SRaven


class _Bayes(Reference):
    """What both share: where they apply, and where their answers go. The prior is uniform over all multisets of rules."""

    def why_not(self, task: TaskFamily) -> str:
        return "" if isinstance(task, SRaven) else "its posterior is known for S-RAVEN only"

    @abstractmethod
    def _answers(self, task: SRaven, episodes: Episodes) -> Tensor:
        """(batch, answer, d_out) logits."""

    def predict(self, task: TaskFamily, episodes: Episodes) -> Tensor:
        assert isinstance(task, SRaven)
        logits = torch.zeros(len(episodes.targets), task.seq, task.d_out, dtype=torch.float64)
        logits[:, list(task.answers)] = self._answers(task, episodes)
        return logits.to(episodes.targets.device)


@dataclass(frozen=True)
class BayesPanel(_Bayes):
    """The most probable answer to all features together: no learner has a higher expected panel accuracy."""

    @property
    def name(self) -> str:
        return "Bayes, whole panel"

    def _answers(self, task: SRaven, episodes: Episodes) -> Tensor:
        return SURE * torch.nn.functional.one_hot(task.posterior(episodes).panel, task.n_values).double()


@dataclass(frozen=True)
class BayesMarginals(_Bayes):
    """The posterior of each feature alone: the least cross-entropy, and what a softmax per answer is trained towards."""

    @property
    def name(self) -> str:
        return "Bayes, each feature"

    def _answers(self, task: SRaven, episodes: Episodes) -> Tensor:
        return task.posterior(episodes).marginals.clamp(min=1e-30).log()
