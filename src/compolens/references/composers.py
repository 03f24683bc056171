"""Learners that know the teacher's parts and differ in which combinations they believe possible.

Each explains the context with every combination it allows: the coefficients are fitted by projected, damped Gauss-Newton
(the task network is linear in them before its relu), and the combination that leaves the smallest error answers. Confined
to training combinations, this is what perfect memory of the training tasks achieves on new ones; over all combinations,
what perfect recombination achieves from N examples. Fuzzy functions and relations between blocks have no coefficients: the one
that fits best answers. Of S-RAVEN's multisets of rules it is the one that explains the panels with the fewest slips.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from compolens.references.base import Reference
from compolens.references.oracle import SURE
from compolens.tasks.base import TaskFamily
from compolens.tasks.episodes import Episodes
from compolens.tasks.hyperteacher import _Teacher
from compolens.tasks.sraven.explanations import MOST_FEATURES
from compolens.tasks.sraven.family import SRaven

STEPS = 20


class _Fits(NamedTuple):
    """What `fit_composition` found for a batch, and of which batch: that task, these targets, neither written to since."""

    task: TaskFamily
    targets: weakref.ref[Tensor]
    writes: tuple[int, int]
    found: dict[int, tuple[Tensor, Tensor]]


_FITTED: Any = WeakTensorKeyDictionary()
"""tokens -> `_Fits`, for as long as somebody holds the tokens: learners that differ in what they allow share their fits."""


def fit_composition(task: _Teacher, episodes: Episodes, composition: int) -> tuple[Tensor, Tensor]:
    """One combination fitted to each episode's context.

    Coefficients stay within the family's bounds. Started at the middle of the bounds; a step is taken only where it
    reduces the error, with Levenberg's damping.

    Args:
        task: the family.
        episodes: a batch of episodes.
        composition: the combination.

    Returns:
        (coefficients (batch, k), squared error (batch,)).
    """
    bases, readout = task.bases(composition).to(episodes.tokens), task.teacher[1].to(episodes.tokens)
    low, high = task.bounds(composition)
    x, y = episodes.tokens[:, : task.n_context, : task.d_x], episodes.targets[:, : task.n_context]
    parts = torch.einsum("bnx,kxh->bknh", x, bases)
    batch, k = parts.shape[:2]
    z = torch.full((batch, k), (low + high) / 2).to(x)
    damping = torch.full((batch,), 1e-3).to(x)

    def residual(z: Tensor) -> tuple[Tensor, Tensor]:
        pre = (z[:, :, None, None] * parts).sum(1)
        return y - torch.relu(pre) @ readout, pre

    error, pre = residual(z)
    sse = error.square().sum((1, 2))
    for _ in range(STEPS):
        jacobian = ((parts * (pre > 0).to(parts)[:, None]) @ readout).flatten(2)
        gram = jacobian @ jacobian.transpose(1, 2)
        diagonal = torch.diag_embed(damping[:, None] * gram.diagonal(dim1=1, dim2=2) + 1e-9)
        step = torch.linalg.solve(gram + diagonal, jacobian @ error.flatten(1)[..., None])[..., 0]
        trial = (z + step).clamp(low, high)
        trial_error, trial_pre = residual(trial)
        trial_sse = trial_error.square().sum((1, 2))
        better = trial_sse < sse
        z = torch.where(better[:, None], trial, z)
        sse = torch.where(better, trial_sse, sse)
        error = torch.where(better[:, None, None], trial_error, error)
        pre = torch.where(better[:, None, None], trial_pre, pre)
        damping = torch.where(better, damping * 0.2, damping * 10).clamp(1e-7, 1e6)
    return z, sse


def _fits(task: _Teacher, episodes: Episodes) -> dict[int, tuple[Tensor, Tensor]]:
    """composition -> its fit, as far as they are known of these very episodes."""
    tokens, targets = episodes.tokens, episodes.targets
    if tokens.is_inference() or targets.is_inference():  # such tensors do not count what is written to them
        return {}
    writes = tokens._version, targets._version
    known = _FITTED.get(tokens)
    if known is None or known.task != task or known.targets() is not targets or known.writes != writes:
        known = _FITTED[tokens] = _Fits(task, weakref.ref(targets), writes, {})
    return known.found


def best_explanation(task: _Teacher, episodes: Episodes, allowed: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """The allowed combination that explains each context best.

    Args:
        task: the family.
        episodes: a batch of episodes.
        allowed: combinations.

    Returns:
        (prediction (batch, seq, d_y), composition (batch,)).
    """
    x, readout = episodes.tokens[..., : task.d_x], task.teacher[1].to(episodes.tokens)
    best_sse = torch.full((len(x),), torch.inf).to(x)
    chosen = torch.full((len(x),), -1, device=x.device)
    weights = x.new_zeros(len(x), task.d_x, task.d_hidden)
    fits = _fits(task, episodes)
    for composition in allowed:
        if composition not in fits:
            fits[composition] = fit_composition(task, episodes, composition)
        z, sse = fits[composition]
        better = sse < best_sse
        best_sse = torch.where(better, sse, best_sse)
        chosen = torch.where(better, composition, chosen)
        bases = task.bases(composition).to(x)
        weights = torch.where(better[:, None, None], torch.einsum("bk,kxh->bxh", z, bases), weights)
    return torch.relu(x @ weights) @ readout, chosen


@dataclass(frozen=True)
class _Composer(Reference):
    def why_not(self, task: TaskFamily) -> str:
        if isinstance(task, _Teacher):
            return ""
        episodes = task.sample(1, "train", task.rng("reference", "train"))
        known = task.candidates(episodes, task.compositions("train")[:1]) is not None
        return "" if known else "the family has no teacher made of known parts"

    def _explain(self, task: TaskFamily, episodes: Episodes, allowed: tuple[int, ...]) -> Tensor:
        if isinstance(task, _Teacher):
            return best_explanation(task, episodes, allowed)[0]
        candidates = task.candidates(episodes, allowed)
        assert candidates is not None
        answers, errors = candidates
        return answers[torch.arange(len(answers)), errors.argmin(1)]


@dataclass(frozen=True)
class TrainingCompositions(_Composer):
    """The best predictor confined to training combinations: knows the teacher, recombines nothing."""

    @property
    def name(self) -> str:
        return "best training composition"

    def why_not(self, task: TaskFamily) -> str:
        if not isinstance(task, SRaven):
            return super().why_not(task)
        many = task.n_features > MOST_FEATURES
        return f"with more than {MOST_FEATURES} features the sum over shuffles is too long" if many else ""

    def predict(self, task: TaskFamily, episodes: Episodes) -> Tensor:
        if not isinstance(task, SRaven):
            return self._explain(task, episodes, task.compositions("train"))
        logits = torch.zeros(len(episodes.targets), task.seq, task.d_out, dtype=torch.float64)
        best = task.explained(episodes, "train").best.argmax(-1)
        logits[:, list(task.answers)] = SURE * torch.nn.functional.one_hot(best, task.d_out).double()
        return logits.to(episodes.targets.device)


@dataclass(frozen=True)
class AllCompositions(_Composer):
    """The same over the full product of modules (every combination of 1 to K): the ceiling for N examples."""

    @property
    def name(self) -> str:
        return "best of all compositions"

    def why_not(self, task: TaskFamily) -> str:
        exact = "the exact posterior over all compositions stands for it: Bayes, whole panel"
        return exact if isinstance(task, SRaven) else super().why_not(task)

    def predict(self, task: TaskFamily, episodes: Episodes) -> Tensor:
        return self._explain(task, episodes, tuple(range(task.n_compositions)))
