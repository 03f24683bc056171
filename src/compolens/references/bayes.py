"""Bayes: what the shown panels say, exactly; the ceiling of any learner that is told the family but not the code.

Beside it, learners of the same panels that lack something: one takes features for unshuffled, and one knows
no rules and copies a panel.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from compolens.foundation.configs import require
from compolens.references.base import Reference
from compolens.references.oracle import SURE
from compolens.tasks.base import TaskFamily
from compolens.tasks.episodes import Episodes
from compolens.tasks.sraven.explanations import option_weights
from compolens.tasks.sraven.family import SRaven

LEAST = 1e-30
"""Of a probability whose logarithm is an answer."""


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
        return task.posterior(episodes).marginals.clamp(min=LEAST).log()


@dataclass(frozen=True)
class BayesUnshuffled(_Bayes):
    """The posterior of each feature of a learner that takes features for unshuffled: position j of every panel is one feature,
    whose rule is any of the eight. Knows the rules and recombines them, but does not find which feature belongs to which."""

    @property
    def name(self) -> str:
        return "Bayes, shuffles ignored"

    def why_not(self, task: TaskFamily) -> str:
        if isinstance(task, SRaven) and not task.permuted:
            return "nothing is shuffled"
        return super().why_not(task)

    def _answers(self, task: SRaven, episodes: Episodes) -> Tensor:
        k = task.n_features
        panels = episodes.targets.cpu().view(-1, 3, 3, k)
        alone = [option_weights(panels[..., j : j + 1], task.n_values, task.rules)[:, 0, 0, 0].sum(1) for j in range(k)]
        weights = torch.stack(alone, 1)
        return (weights / weights.sum(2, keepdim=True)).clamp(min=LEAST).log()


@dataclass(frozen=True)
class CopyPanel(_Bayes):
    """Copies a shown panel, position by position: knows neither rules nor compositions.

    Args:
        panel: which, from 0 to 7 row by row (None: the one that is right most often on training compositions).
    """

    panel: int | None = None

    def __post_init__(self) -> None:
        require(self.panel in (None, *range(8)), f"CopyPanel: panel must be from 0 to 7 or None, got {self.panel}")

    @property
    def name(self) -> str:
        return "copy of a panel" if self.panel is None else f"copy of panel {self.panel}"

    def _answers(self, task: SRaven, episodes: Episodes) -> Tensor:
        panel = self.panel if self.panel is not None else _best_panel(task)
        k = task.n_features
        return (
            SURE * torch.nn.functional.one_hot(episodes.targets.cpu()[:, panel * k : (panel + 1) * k], task.n_values).double()
        )


@lru_cache(maxsize=32)
def _best_panel(task: SRaven) -> int:
    """On 1,024 episodes of training compositions, always the same ones."""
    panels = task.sample(1024, "train", task.rng("reference", "train")).targets.view(1024, 9, task.n_features)
    return int((panels[:, :8] == panels[:, 8:]).double().mean((0, 2)).argmax())
