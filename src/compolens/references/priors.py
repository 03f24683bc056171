"""Posterior means: what the least expected squared error takes, when the prior of the tasks is known (2306.04891, 2306.15063).

Two priors matter for a model trained on finitely many tasks: the pool of these (who answers like it has memorised tasks) and
the distribution that they were drawn from (who answers like it infers the task anew).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from compolens.foundation.configs import ConfigError, DoesNotApply, require
from compolens.references.regression import LinearLearner, checked
from compolens.tasks.base import TaskFamily
from compolens.tasks.linear_regression import LinearRegression

NOISE_FLOOR = 1e-8
"""The least noise variance, as a share of the prior's mean second moment of a weight: stands for the limit without noise, with
weights exact to some 1e-8 / (smallest eigenvalue of X^T X) and evidence that still decides."""
NUMBERS = 1 << 23
"""Floats of the largest intermediate tensor (64 MB)."""


class GaussianMixture(NamedTuple):
    """A prior of each output's weights, float64. Outputs share the component and are independent given it.

    Args:
        log_weights: (m,), normalised.
        means: (m, d_x).
        covariances: (m, d_x, d_x), which may be singular.
    """

    log_weights: Tensor
    means: Tensor
    covariances: Tensor


class _Factors(NamedTuple):
    """Components as w = mean + root u in the coordinates that vary, u standard normal: varying (m, s), root (m, s, s)."""

    varying: Tensor
    root: Tensor


def _factors(covariances: Tensor) -> _Factors:
    """A sparse component's covariance is 0 outside a few coordinates; what follows costs the cube of their number s."""
    active = covariances.diagonal(dim1=1, dim2=2) > 0
    s = max(1, int(active.sum(1).max()))
    index = active.long().argsort(dim=1, descending=True, stable=True)[:, :s]
    blocks = covariances[torch.arange(len(index))[:, None, None], index[:, :, None], index[:, None]]
    values, vectors = torch.linalg.eigh(blocks)
    return _Factors(index, vectors * values.clamp(min=0).sqrt()[:, None] @ vectors.mT)


def gaussian_mixture_mean(x: Tensor, y: Tensor, lengths: Sequence[int], prior: GaussianMixture, noise: float) -> Tensor:
    """E[w | first n demonstrations] = sum over components of p(component | D) E[w | D, component].

    Each component's mean is a ridge regression with its own covariance; its probability comes from the exact marginal
    likelihood of all outputs. Exact, in float64.

    Args:
        x: (batch, N, d_x) demonstrations.
        y: (batch, N, d_y).
        lengths: numbers n of demonstrations, from 0 to N.
        prior: of the weights.
        noise: standard deviation of the answers.

    Returns:
        (batch, length, d_x, d_y).
    """
    x, y = checked(x, y, lengths)
    prior = GaussianMixture(*(part.to(x) for part in prior))
    scale = prior.log_weights.exp() @ (prior.covariances.diagonal(dim1=1, dim2=2) + prior.means.square()).mean(1)
    variance = max(noise**2, NOISE_FLOOR * float(scale))
    factors = _factors(prior.covariances)
    chunk = max(1, NUMBERS // (factors.root.numel() + len(factors.varying) * x.shape[2] * y.shape[2]))
    found = x.new_zeros(len(x), len(lengths), x.shape[2], y.shape[2])
    for start in range(0, len(x), chunk):
        part = slice(start, start + chunk)
        for i, n in enumerate(lengths):
            found[part, i] = _mixture_mean(x[part, :n], y[part, :n], prior, factors, variance)
    return found


def _mixture_mean(x: Tensor, y: Tensor, prior: GaussianMixture, factors: _Factors, variance: float) -> Tensor:
    """(batch, d_x, d_y) from demonstrations that are all shown; shapes below: batch, component, then s, d_x or d_y."""
    index, root = factors
    gram, moment = x.mT @ x / variance, x.mT @ y / variance
    means = prior.means
    residual_moment = moment[:, None] - (means @ gram)[..., None]  # X^T (Y - X mean) / variance
    block = gram[:, index[:, :, None], index[:, None]]
    precision = torch.einsum("mij,bmjk->bmik", root, block)  # einsum joins the batch into one product per component
    precision = torch.einsum("bmij,mjk->bmik", precision, root) + torch.eye(root.shape[-1]).to(x)
    picked = residual_moment.gather(2, index[None, :, :, None].expand(len(x), -1, -1, y.shape[2]))
    target = torch.einsum("mij,bmje->bmie", root, picked)
    cholesky = torch.linalg.cholesky(precision)
    u = torch.cholesky_solve(target, cholesky)

    fitted = torch.einsum("bmd,md->bm", means @ gram, means) * y.shape[2]
    energy = y.square().sum((1, 2))[:, None] / variance - 2 * torch.einsum("md,bde->bm", means, moment) + fitted
    log_determinant = 2 * cholesky.diagonal(dim1=2, dim2=3).log().sum(-1) * y.shape[2]
    evidence = ((target * u).sum((2, 3)) - energy - log_determinant) / 2
    posterior = (prior.log_weights + evidence).softmax(-1)

    moved = (posterior[..., None, None] * torch.einsum("mij,bmje->bmie", root, u)).flatten(1, 2)
    mean = (posterior @ means)[..., None].repeat(1, 1, y.shape[2])
    return mean.scatter_add_(1, index.flatten()[None, :, None].expand_as(moved), moved)


def pool_mean(x: Tensor, y: Tensor, lengths: Sequence[int], pool: Tensor, noise: float) -> Tensor:
    """sum_k softmax_k(-|Y - X w_k|² / 2 noise²) w_k over a pool, whose members are all equally likely.

    Without noise the floor stands in: the best-fitting member answers, or the mean of those that fit equally well.

    Args:
        x: (batch, N, d_x) demonstrations.
        y: (batch, N, d_y).
        lengths: numbers n of demonstrations, from 0 to N.
        pool: (P, d_x, d_y).
        noise: standard deviation of the answers.

    Returns:
        (batch, length, d_x, d_y).

    Raises:
        ConfigError: the pool is of another shape.
    """
    x, y = checked(x, y, lengths)
    require(
        pool.ndim == 3 and pool.shape[1:] == (x.shape[2], y.shape[2]),
        f"the pool must be (P, {x.shape[2]}, {y.shape[2]}), got {tuple(pool.shape)}",
    )
    pool = pool.to(x)
    variance = max(noise**2, NOISE_FLOOR * float(pool.square().mean()))
    chunk = max(1, NUMBERS // (len(pool) * max(1, x.shape[1]) * y.shape[2]))
    pieces = []
    for start in range(0, len(x), chunk):
        shown, answers = x[start : start + chunk], y[start : start + chunk]
        error = (torch.einsum("bnd,pde->bnpe", shown, pool) - answers[:, :, None]).square().sum(-1)
        error = torch.nn.functional.pad(error.cumsum(1), (0, 0, 1, 0))[:, list(lengths)]  # 0 where nothing is shown
        pieces.append(torch.einsum("blp,pde->blde", (-error / (2 * variance)).softmax(-1), pool))
    return torch.cat(pieces)


@dataclass(frozen=True, eq=False)
class PosteriorMean(LinearLearner):
    """The posterior mean under the whole prior of the family's tasks, whatever training showed of it.

    No learner has a smaller expected error on tasks drawn from it.

    Args:
        prior: of the weights (None: the family's).
        noise: standard deviation of the answers (None: the family's).
    """

    prior: GaussianMixture | None = None
    noise: float | None = None

    @property
    def name(self) -> str:
        return "posterior mean"

    def why_not(self, task: TaskFamily) -> str:
        if isinstance(task, LinearRegression) and self.prior is None:
            try:
                task.mixture()
            except DoesNotApply as error:
                return str(error)
        return super().why_not(task)

    def for_task(self, task: LinearRegression) -> PosteriorMean:
        prior = GaussianMixture(*task.mixture()) if self.prior is None else self.prior
        return PosteriorMean(prior, task.noise if self.noise is None else self.noise)

    def weights(self, x: Tensor, y: Tensor, lengths: Sequence[int]) -> Tensor:
        if self.prior is None or self.noise is None:
            raise ConfigError("PosteriorMean: prior and noise are the family's; take for_task(task), or give both")
        return gaussian_mixture_mean(x, y, lengths, self.prior, self.noise)


@dataclass(frozen=True, eq=False)
class PoolPosteriorMean(LinearLearner):
    """The posterior mean under the finite pool of training tasks: perfect memory of these, and nothing besides.

    Args:
        pool: (P, d_x, d_y) (None: the family's).
        noise: standard deviation of the answers (None: the family's).
    """

    pool: Tensor | None = None
    noise: float | None = None

    @property
    def name(self) -> str:
        return "posterior mean over the training tasks"

    def why_not(self, task: TaskFamily) -> str:
        if isinstance(task, LinearRegression) and self.pool is None and task.pool is None:
            return "its training tasks are not finitely many"
        return super().why_not(task)

    def for_task(self, task: LinearRegression) -> PoolPosteriorMean:
        pool = task.pool if self.pool is None else self.pool
        return PoolPosteriorMean(pool, task.noise if self.noise is None else self.noise)

    def weights(self, x: Tensor, y: Tensor, lengths: Sequence[int]) -> Tensor:
        if self.pool is None or self.noise is None:
            raise ConfigError("PoolPosteriorMean: pool and noise are the family's; take for_task(task), or give both")
        return pool_mean(x, y, lengths, self.pool, self.noise)


def predictive(x: Tensor, y: Tensor, asked: Tensor, prior: GaussianMixture, noise: float) -> tuple[Tensor, Tensor]:
    """Mean and variance of an answer given all demonstrations: noise, and what the posterior leaves open.

    A mixture's variance is the mean of its components' variances and the variance of their means.

    Args:
        x: (batch, n, d_x) demonstrations.
        y: (batch, n, d_y).
        asked: (batch, d_x) inputs.
        prior: of the weights.
        noise: standard deviation of the answers, above 0.

    Returns:
        (batch, d_y) each, float64.

    Raises:
        ConfigError: the noise is not above 0.
    """
    require(noise > 0, f"predictive: noise must be above 0, got {noise}")
    x, y, asked = x.double(), y.double(), asked.double()
    log_odds, means, variances = [], [], []
    for log_weight, centre, covariance in zip(*(part.to(x) for part in prior), strict=True):
        shared = covariance @ x.mT  # (batch, d_x, n), the covariance of weights and answers
        answers = x @ shared + noise**2 * torch.eye(x.shape[1]).to(x)
        cholesky = torch.linalg.cholesky(answers)
        residual = y - (x @ centre)[..., None]
        gain = torch.cholesky_solve(shared.mT, cholesky)  # (batch, n, d_x)
        mean = centre[:, None] + gain.mT @ residual
        left = covariance - shared @ gain
        solved = torch.cholesky_solve(residual, cholesky)
        log_determinant = 2 * cholesky.diagonal(dim1=1, dim2=2).log().sum(1) * y.shape[2]
        log_odds.append(log_weight - ((residual * solved).sum((1, 2)) + log_determinant) / 2)
        means.append((asked[:, None] @ mean)[:, 0])
        variances.append(torch.einsum("bi,bij,bj->b", asked, left, asked)[:, None].expand_as(means[-1]) + noise**2)
    weight = torch.stack(log_odds).softmax(0)[..., None]
    centres = torch.stack(means)
    mean = (weight * centres).sum(0)
    return mean, (weight * (torch.stack(variances) + centres.square())).sum(0) - mean.square()
