"""How alike two learners of in-context regression are, episode by episode: in answers, slopes, errors, implied weights.

Everything takes one number, vector or matrix per episode and returns one number per episode, in the inputs' units, so that
means and intervals are the caller's. Sources: 2212.07677 (distances of predictions and sensitivities), 2211.15661 (SPD, ILWD),
2310.17086 (similarity of errors, best-matching steps).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


def prediction_distance(a: Tensor, b: Tensor) -> Tensor:
    """(batch,): |a - b| of answers (batch, d_y)."""
    return (a - b).norm(dim=-1)


def squared_prediction_distance(a: Tensor, b: Tensor, d_x: int) -> Tensor:
    """(batch,): SPD, |a - b|² / d_x of answers (batch, d_y)."""
    return (a - b).square().sum(-1) / d_x


def sensitivity_cosine(a: Tensor, b: Tensor) -> Tensor:
    """(batch,): cosine of the derivatives (batch, d_x, d_y) of two answers by their input; 0 where one is 0."""
    return torch.cosine_similarity(a.flatten(1), b.flatten(1), dim=-1, eps=1e-8)


def sensitivity_distance(a: Tensor, b: Tensor) -> Tensor:
    """(batch,): Frobenius distance of the derivatives (batch, d_x, d_y)."""
    return (a - b).flatten(1).norm(dim=-1)


def implied_weights(x: Tensor, answers: Tensor) -> Tensor:
    """(batch, d_x, d_y): the linear function, without intercept, that explains answers (batch, T, d_y) to inputs
    (batch, T, d_x) with the least squared error. T must be at least d_x."""
    if x.shape[1] < x.shape[2]:
        raise ValueError(f"{x.shape[1]} inputs cannot determine {x.shape[2]} weights; ask for at least {x.shape[2]} answers")
    return torch.linalg.lstsq(x, answers).solution


def implied_weight_distance(a: Tensor, b: Tensor) -> Tensor:
    """(batch,): ILWD, squared Frobenius distance over d_x of two learners' implied weights (batch, d_x, d_y)."""
    return (a - b).square().sum((1, 2)) / a.shape[1]


def linearity(x: Tensor, answers: Tensor) -> Tensor:
    """(batch,): the share of the answers' square that their linear function explains, 1 for a linear learner (R²)."""
    left = answers - x @ implied_weights(x, answers)
    return 1 - left.square().sum((1, 2)) / answers.square().sum((1, 2)).clamp(min=1e-30)


def error_similarity(a: Tensor, b: Tensor) -> Tensor:
    """(batch,): cosine of two learners' errors (batch, answers) on the same questions: SimE of 2310.17086."""
    return torch.cosine_similarity(a, b, dim=-1, eps=1e-12)


class BestSteps(NamedTuple):
    """For every layer: which step of an algorithm is most alike, how alike, and whether it is the last step looked at (then
    the best one may lie beyond)."""

    steps: Tensor
    levels: Tensor
    at_edge: Tensor


def best_steps(similarity: Tensor, steps: Tensor, converged: Tensor | None = None) -> BestSteps:
    """similarity (layer, step) to the algorithm after `steps` (step,), ascending. converged (step,) bool masks what cannot be
    told apart from the algorithm's limit: all later steps are alike, and a maximum among them says nothing. The first
    converged step stays in, as what stands for the limit. Where an algorithm diverged, similarity is nan and never wins."""
    allowed = torch.ones_like(steps, dtype=torch.bool)
    if converged is not None:
        first = int(converged.long().argmax()) if bool(converged.any()) else len(steps) - 1
        allowed = torch.arange(len(steps)) <= first
    masked = torch.where(allowed, similarity, -torch.inf).nan_to_num(nan=-torch.inf, neginf=-torch.inf)
    levels, index = masked.max(dim=1)
    return BestSteps(steps[index], levels, index == int(allowed.nonzero().max()))


class Trend(NamedTuple):
    """A straight line through (layer, value): slope per layer, and R² of the fit."""

    slope: float
    r2: float


def trend(layers: Tensor, values: Tensor) -> Trend:
    """Least squares line; with fewer than three points its R² means nothing and is nan."""
    x, y = layers.double() - layers.double().mean(), values.double() - values.double().mean()
    if len(x) < 2:
        return Trend(float("nan"), float("nan"))
    slope = float((x * y).sum() / x.square().sum())
    total = float(y.square().sum())
    r2 = 1 - float((y - slope * x).square().sum()) / total if total > 0 and len(x) > 2 else float("nan")
    return Trend(slope, r2)
