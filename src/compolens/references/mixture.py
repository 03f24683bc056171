"""A learner fitted to a model's own answers: a mixture of many regressions that know an episode's examples alone.

Which of them a model would be, nobody has to have listed: if a mixture, fitted to the answers on other compositions, foresees
the answers on a composition, then these follow from the examples, whatever the learner is called.
"""

from __future__ import annotations

from itertools import product

import torch
from torch import Tensor

from compolens.references.in_context import examples_of
from compolens.references.kernel_ridge import PENALTIES, WIDTHS, bump_predictions, quadratic_predictions
from compolens.references.ridge import PENALTIES as RIDGE_PENALTIES
from compolens.references.ridge import ridge_predictions
from compolens.references.smoothing import WIDTHS as SMOOTHING_WIDTHS
from compolens.references.smoothing import smoothed_predictions
from compolens.tasks.base import TaskFamily
from compolens.tasks.episodes import Episodes

L2 = 1.0
"""Penalty on the mixture's weights, of answers of unit variance; of tens of thousands of answers it shrinks little."""


def regressions(task: TaskFamily, episodes: Episodes) -> Tensor:
    """The answers of every regression at every setting that this project knows.

    Args:
        task: a family whose episodes are (x, y) pairs.
        episodes: a batch of episodes.

    Returns:
        (batch, answers, d_y, k) at the answer positions: ridge, ridge on products, on bumps, kernel smoothing, and the
        examples' mean.
    """
    found = [
        *ridge_predictions(task, episodes, RIDGE_PENALTIES),
        *quadratic_predictions(task, episodes, PENALTIES),
        *bump_predictions(task, episodes, tuple(product(WIDTHS, PENALTIES))),
        *smoothed_predictions(task, episodes, SMOOTHING_WIDTHS),
    ]
    mean = examples_of(task, episodes)[1].mean(1, keepdim=True).expand_as(found[0])
    return torch.stack([one[:, list(task.answers)].double() for one in (*found, mean)], dim=-1)


def foreseen(known: Tensor, answers: Tensor, composition: Tensor) -> Tensor:
    """Answers on every composition by a mixture that was fitted to the answers on all others.

    Args:
        known: (n, answers, d_y, k) from `regressions`.
        answers: (n, answers, d_y) the model's own.
        composition: (n,) ints, two or more different ones.

    Returns:
        (n, answers, d_y).
    """
    n, k = len(known), known.shape[-1]
    x, y = known.reshape(-1, k), answers.double().reshape(-1, 1)
    x, middle = (x - x.mean(0)) / x.std(0).clamp(min=1e-300), y.mean()
    x = torch.cat([x, torch.ones_like(y)], dim=1)
    group = composition.repeat_interleave(len(x) // n)
    parts = {c: (x[group == c], y[group == c] - middle) for c in group.unique().tolist()}
    squares, products = x.T @ x, x.T @ (y - middle)
    penalty = L2 * torch.eye(k + 1).to(x)
    penalty[-1, -1] = 0.0  # the mean is not shrunk
    found = torch.empty_like(y)
    for c, (a, b) in parts.items():
        weights = torch.linalg.solve(squares - a.T @ a + penalty, products - a.T @ b)
        found[group == c] = a @ weights + middle
    return found.view_as(answers)
