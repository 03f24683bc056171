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
    """Distance |a - b| of answers.

    Args:
        a: (batch, d_y).
        b: (batch, d_y).

    Returns:
        (batch,), in the unit of the answers.
    """
    return (a - b).norm(dim=-1)


def squared_prediction_distance(a: Tensor, b: Tensor, d_x: int) -> Tensor:
    """SPD, |a - b|² / d_x of answers (2211.15661).

    Args:
        a: (batch, d_y).
        b: (batch, d_y).
        d_x: width of x.

    Returns:
        (batch,), in the answers' unit squared.
    """
    return (a - b).square().sum(-1) / d_x


def sensitivity_cosine(a: Tensor, b: Tensor) -> Tensor:
    """Cosine of the derivatives of two answers by their input (2212.07677).

    Args:
        a: (batch, d_x, d_y).
        b: (batch, d_x, d_y).

    Returns:
        (batch,) from -1 to 1; 0 where one is 0.
    """
    return torch.cosine_similarity(a.flatten(1), b.flatten(1), dim=-1, eps=1e-8)


def sensitivity_distance(a: Tensor, b: Tensor) -> Tensor:
    """Frobenius distance of the derivatives of two answers by their input (2212.07677).

    Args:
        a: (batch, d_x, d_y).
        b: (batch, d_x, d_y).

    Returns:
        (batch,).
    """
    return (a - b).flatten(1).norm(dim=-1)


def implied_weights(x: Tensor, answers: Tensor) -> Tensor:
    """The linear function, without intercept, that explains answers with the least squared error.

    Args:
        x: (batch, T, d_x) inputs, T at least d_x.
        answers: (batch, T, d_y).

    Returns:
        (batch, d_x, d_y).

    Raises:
        ValueError: fewer inputs than weights.
    """
    if x.shape[1] < x.shape[2]:
        raise ValueError(f"{x.shape[1]} inputs cannot determine {x.shape[2]} weights; ask for at least {x.shape[2]} answers")
    return torch.linalg.lstsq(x, answers).solution


def implied_weight_distance(a: Tensor, b: Tensor) -> Tensor:
    """ILWD, the squared Frobenius distance over d_x of two learners' implied weights (2211.15661).

    Args:
        a: (batch, d_x, d_y).
        b: (batch, d_x, d_y).

    Returns:
        (batch,).
    """
    return (a - b).square().sum((1, 2)) / a.shape[1]


def linearity(x: Tensor, answers: Tensor) -> Tensor:
    """The share of the answers' square that their linear function explains.

    Args:
        x: (batch, T, d_x) inputs, T at least d_x.
        answers: (batch, T, d_y).

    Returns:
        (batch,) R², 1 for a linear learner.
    """
    left = answers - x @ implied_weights(x, answers)
    return 1 - left.square().sum((1, 2)) / answers.square().sum((1, 2)).clamp(min=1e-30)


def error_similarity(a: Tensor, b: Tensor) -> Tensor:
    """Cosine of two learners' errors on the same questions: SimE of 2310.17086.

    Args:
        a: (batch, answers).
        b: (batch, answers).

    Returns:
        (batch,) from -1 to 1.
    """
    return torch.cosine_similarity(a, b, dim=-1, eps=1e-12)


class BestSteps(NamedTuple):
    """Which step of an algorithm is most like every layer.

    Args:
        steps: (layer,) the step.
        levels: (layer,) how alike it is.
        at_edge: (layer,) bool, whether it is the last step looked at (then the best one may lie beyond).
    """

    steps: Tensor
    levels: Tensor
    at_edge: Tensor


def best_steps(similarity: Tensor, steps: Tensor, converged: Tensor | None = None) -> BestSteps:
    """The step of an algorithm that each layer is most like (2310.17086).

    Where an algorithm diverged, its similarity is nan and never wins.

    Args:
        similarity: (layer, step) to the algorithm.
        steps: (step,) ints, how many steps it has done, ascending.
        converged: (step,) bool, what cannot be told apart from the algorithm's limit: all later steps are alike, and a maximum
            among them says nothing. The first converged step stays in, as what stands for the limit.

    Returns:
        The best step of every layer.
    """
    allowed = torch.ones_like(steps, dtype=torch.bool)
    if converged is not None:
        first = int(converged.long().argmax()) if bool(converged.any()) else len(steps) - 1
        allowed = torch.arange(len(steps)) <= first
    masked = torch.where(allowed, similarity, -torch.inf).nan_to_num(nan=-torch.inf, neginf=-torch.inf)
    levels, index = masked.max(dim=1)
    return BestSteps(steps[index], levels, index == int(allowed.nonzero().max()))


class Trend(NamedTuple):
    """A straight line through (layer, value).

    Args:
        slope: per layer.
        r2: of the fit, 1 is perfect.
    """

    slope: float
    r2: float


def trend(layers: Tensor, values: Tensor) -> Trend:
    """Least squares line.

    Args:
        layers: (n,) numbers of layers.
        values: (n,).

    Returns:
        The line; with fewer than three points its R² means nothing and is nan.
    """
    x, y = layers.double() - layers.double().mean(), values.double() - values.double().mean()
    if len(x) < 2:
        return Trend(float("nan"), float("nan"))
    slope = float((x * y).sum() / x.square().sum())
    total = float(y.square().sum())
    r2 = 1 - float((y - slope * x).square().sum()) / total if total > 0 and len(x) > 2 else float("nan")
    return Trend(slope, r2)
