"""Softmax attention estimated from finitely many positive random features of its kernel.

kappa(q, k) = exp(q.k / sqrt(d)) = exp(q~.k~) with q~ = q / d^(1/4), and E[phi(q~).phi(k~)] = kappa for the random maps below
(Performer, 2009.14794; optimal variance, 2205.15317). With them the dual model of 2310.13220 has finitely many weights.

Projections w are rows of (n_projections, d). Maps return log phi, so that nothing overflows. Everything is batched over
leading dimensions: q (..., query, d), k (..., key, d), v (..., key, d_value).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor


# ---- projections -----------------------------------------------------------------------------------------------------
def gaussian_projections(n: int, d: int, generator: torch.Generator, dtype: torch.dtype = torch.float64) -> Tensor:
    """Independent standard normal rows, drawn on the generator's device.

    Args:
        n: rows.
        d: width.
        generator: the generator.
        dtype: of the result.

    Returns:
        (n, d).

    Raises:
        ValueError: n or d is below 1.
    """
    if n < 1 or d < 1:
        raise ValueError(f"projections must be at least 1 by 1, got {n} by {d}")
    return torch.randn(n, d, generator=generator, dtype=dtype, device=generator.device)


def orthogonal_projections(n: int, d: int, generator: torch.Generator, dtype: torch.dtype = torch.float64) -> Tensor:
    """Standard normal rows, orthogonal within blocks of d rows: Haar directions, lengths drawn anew for every row.

    Directions are the columns of Q of a Gaussian matrix's QR decomposition, with the signs that make R's diagonal positive:
    without these Q would not be uniformly distributed.

    Args:
        n: rows.
        d: width.
        generator: the generator.
        dtype: of the result.

    Returns:
        (n, d).
    """
    n_blocks = -(-n // d)
    blocks = gaussian_projections(n_blocks * d, d, generator, dtype).view(n_blocks, d, d)
    q, r = torch.linalg.qr(blocks)
    directions = (q * r.diagonal(dim1=-2, dim2=-1).sign().unsqueeze(-2)).transpose(-2, -1).reshape(-1, d)[:n]
    return directions * gaussian_projections(n, d, generator, dtype).norm(dim=-1, keepdim=True)


# ---- maps ------------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Features(ABC):
    """A random map phi.

    Args:
        projections: w (n_projections, d).
    """

    projections: Tensor

    @abstractmethod
    def log(self, x: Tensor) -> Tensor:
        """log phi (..., features) of `x` (..., d), which is scaled: q / d^(1/4), not q."""

    def _project(self, x: Tensor) -> Tensor:
        """(..., n_projections): w.x."""
        if x.shape[-1] != self.projections.shape[-1]:
            raise ValueError(f"these features are of vectors of {self.projections.shape[-1]} numbers, got {x.shape[-1]}")
        return x @ self.projections.to(x).T


def _half_square(x: Tensor) -> Tensor:
    return x.square().sum(-1, keepdim=True) / 2


@dataclass(frozen=True)
class PositiveFeatures(Features):
    """phi(x) = exp(w.x - |x|^2 / 2) / sqrt(m) (2009.14794)."""

    def log(self, x: Tensor) -> Tensor:
        return self._project(x) - _half_square(x) - math.log(len(self.projections)) / 2


@dataclass(frozen=True)
class HyperbolicFeatures(Features):
    """phi(x) = (exp(w.x), exp(-w.x)) exp(-|x|^2 / 2) / sqrt(2 m): 2 m features of m projections (2009.14794)."""

    def log(self, x: Tensor) -> Tensor:
        projected = self._project(x)
        return torch.cat([projected, -projected], -1) - _half_square(x) - math.log(2 * len(self.projections)) / 2


@dataclass(frozen=True)
class OptimalPositiveFeatures(Features):
    """phi(x) = (1 - 4A)^(d/4) exp(A |w|^2 + sqrt(1 - 4A) w.x - |x|^2 / 2) / sqrt(m), A <= 0 (2205.15317).

    Args:
        square: the mean of |q~ + k~|^2 for which A makes the variance smallest; `mean_square` measures it. At 0, A = 0: plain
            positive features.
    """

    square: float

    @property
    def a(self) -> float:
        """A = (1 - 1/rho) / 8, rho = (sqrt((2n + d)^2 + 8dn) - 2n - d) / (4n), n = `square`; written so that n may be 0."""
        n, d = self.square, self.projections.shape[-1]
        return (1 - (math.sqrt((2 * n + d) ** 2 + 8 * d * n) + 2 * n + d) / (2 * d)) / 8

    def log(self, x: Tensor) -> Tensor:
        stretch = 1 - 4 * self.a
        lengths = self.a * self.projections.to(x).square().sum(-1)
        constant = x.shape[-1] / 4 * math.log(stretch) - math.log(len(self.projections)) / 2
        return lengths + math.sqrt(stretch) * self._project(x) - _half_square(x) + constant


# ---- estimates -------------------------------------------------------------------------------------------------------
def scaled(x: Tensor) -> Tensor:
    """`x` / d^(1/4) (..., d): queries and keys as maps take them."""
    return x / x.shape[-1] ** 0.25


def mean_square(q: Tensor, k: Tensor) -> float:
    """Mean of |q~ + k~|^2 over all pairs of a query and a key of the same batch element.

    Args:
        q: (..., query, d).
        k: (..., key, d).

    Returns:
        The mean.
    """
    q, k = scaled(q), scaled(k)
    squares = q.square().sum(-1).mean(-1) + k.square().sum(-1).mean(-1)
    return float((squares + 2 * (q.mean(-2) * k.mean(-2)).sum(-1)).mean())


class Estimate(NamedTuple):
    """Estimated attention.

    Args:
        pattern: (..., query, key), rows summing to 1.
        output: (..., query, d_value).
    """

    pattern: Tensor
    output: Tensor


def kernel_estimate(q: Tensor, k: Tensor, features: Features) -> Tensor:
    """Unbiased estimates of kappa(q, k), without any shift.

    Args:
        q: (..., query, d).
        k: (..., key, d).
        features: the random map.

    Returns:
        (..., query, key).
    """
    return features.log(scaled(q)).exp() @ features.log(scaled(k)).exp().transpose(-2, -1)


def attention_estimate(
    q: Tensor, k: Tensor, v: Tensor, features: Features, bias: Tensor | None = None, mask: Tensor | None = None
) -> Estimate:
    """Attention with the estimated kernel in numerator and D alike (an exact D does worse: errors no longer cancel).

    Log features are shifted before exponentiation, by their maximum per query and by ONE maximum over all keys: both cancel in
    D, while one per key would change the weights.

    Args:
        q: (..., query, d).
        k: (..., key, d).
        v: (..., key, d_value).
        features: the random map.
        bias: (..., query, key), added to scores (None: none).
        mask: (query, key) bool, True where a key is seen (None: everywhere).

    Returns:
        The estimate.

    Raises:
        ValueError: an estimated D underflows to 0.
    """
    log_q, log_k = features.log(scaled(q)), features.log(scaled(k))
    phi_q = (log_q - log_q.amax(-1, keepdim=True)).exp()
    phi_k = (log_k - log_k.amax((-2, -1), keepdim=True)).exp()
    kernel = phi_q @ phi_k.transpose(-2, -1)
    if bias is not None:
        kernel = kernel * (bias - bias.amax(-1, keepdim=True)).exp()
    if mask is not None:
        kernel = kernel.masked_fill(~mask, 0)
    normaliser = kernel.sum(-1, keepdim=True)
    if not bool((normaliser > 0).all()):
        raise ValueError(
            f"an estimated normaliser is 0 in {kernel.dtype}: a query sees no key, or norms are too large for these features; "
            "check the mask, or hand over float64"
        )
    pattern = kernel / normaliser
    return Estimate(pattern, pattern @ v)


class Errors(NamedTuple):
    """Errors of matrices.

    Args:
        mse: (...,) mean squared error.
        mae: (...,) mean absolute error.
        relative: (...,) Frobenius norm of the error over that of the truth.
    """

    mse: Tensor
    mae: Tensor
    relative: Tensor


def errors(estimate: Tensor, truth: Tensor) -> Errors:
    """Errors over the last two dimensions.

    Args:
        estimate: (..., row, column), which broadcasts against `truth`.
        truth: (..., row, column).

    Returns:
        (...,) each.
    """
    error = estimate - truth
    relative = torch.linalg.matrix_norm(error) / torch.linalg.matrix_norm(truth)
    return Errors(error.square().mean((-2, -1)), error.abs().mean((-2, -1)), relative)


def relative_rms(q: Tensor, k: Tensor, n_features: int) -> Tensor:
    """The root mean square of (estimated kappa - kappa) / kappa: sqrt((exp(|q~ + k~|^2) - 1) / m).

    Exact for `PositiveFeatures` of m independent projections, from the moments of the log-normal distribution.

    Args:
        q: (..., query, d).
        k: (..., key, d).
        n_features: m.

    Returns:
        (..., query, key).
    """
    square = (scaled(q).unsqueeze(-2) + scaled(k).unsqueeze(-3)).square().sum(-1)
    return (square.expm1() / n_features).sqrt()
