"""What is linearly known about a code, taken out of activations, or replaced: least-squares concept erasure and its nulls.

LEACE (2306.03819): of all affine maps after which no linear readout of z does better than a constant, the one that moves x
least in mean square is x' = mean + P (x - mean) with

    P = I - W^+ U U^T W,    W = (Sigma_xx)^(-1/2) (pseudo-inverse),    U = left singular vectors of W Sigma_xz

It is exact: no shrinkage, no bound on the trace. Activations x are (..., d), codes z (..., k); everything is computed in
float64. Means and covariances come from `Moments`, so fits stream.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from compolens.measures.readouts import Moments

UNCORRELATED = 1e-8
"""Canonical size (a correlation, at most sqrt(k)) below which a direction of x is taken to know nothing about z."""
SMALLEST = 1e-10
"""Share of the largest eigenvalue of the codes' correlations below which codes are taken to be collinear."""


# ---- covariances -----------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Spectrum:
    """The covariance of x by principal axes that vary.

    Args:
        mean: (d,).
        variances: (r,) ascending.
        axes: (d, r) orthonormal.
    """

    mean: Tensor
    variances: Tensor
    axes: Tensor

    @classmethod
    def of(cls, moments: Moments, dtype: torch.dtype = torch.float32) -> Spectrum:
        """The spectrum of streamed moments; axes whose variance is no more than rounding are left out.

        Args:
            moments: of x.
            dtype: what x was computed in, which says how small rounding is.

        Returns:
            The spectrum, float64.

        Raises:
            ValueError: fewer than two rows of x.
        """
        if moments.n < 2:
            raise ValueError(f"a covariance needs at least 2 rows of x, got {moments.n}")
        mean = moments.x / moments.n
        values, vectors = torch.linalg.eigh(moments.xx / moments.n - torch.outer(mean, mean))
        rounding = max(len(mean) * torch.finfo(torch.float64).eps, (len(mean) * torch.finfo(dtype).eps) ** 2)
        varies = values > rounding * torch.maximum(values[-1], mean.square().max())
        return cls(mean, values[varies], vectors[:, varies])

    @property
    def whitening(self) -> Tensor:
        """(d, d) W: the pseudo-inverse root of the covariance."""
        return self.axes / self.variances.sqrt() @ self.axes.T

    @property
    def colouring(self) -> Tensor:
        """(d, d) W^+: the root of the covariance."""
        return self.axes * self.variances.sqrt() @ self.axes.T

    def without(self, directions: Tensor) -> Eraser:
        """The map that takes out `directions` (d, r), orthonormal in whitened space."""
        left, right = self.colouring @ directions, directions.T @ self.whitening
        return Eraser(self.mean, torch.eye(len(self.mean)).to(left) - left @ right)


def _correlated(moments: Moments, spectrum: Spectrum) -> Tensor:
    """(d, r) orthonormal directions of whitened x that are correlated with z."""
    mean_z = moments.y / moments.n
    second = moments.yy / moments.n
    variance = second - mean_z.square()
    varies = variance > 1e-12 * second.clamp(min=1e-300)
    cross = moments.xy / moments.n - torch.outer(spectrum.mean, mean_z)
    cross = cross[:, varies] / variance[varies].sqrt()
    u, sizes, _ = torch.linalg.svd(spectrum.whitening @ cross, full_matrices=False)
    return u[:, sizes > UNCORRELATED]


def _two_of(x: Tensor, z: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """x and z about their means, and the means: differences keep the digits that sums of large numbers lose."""
    if x.ndim != 2 or z.ndim != 2 or len(x) != len(z) or len(x) < 2:
        raise ValueError(f"x (n, d) and z (n, k) need the same n of at least 2, got {tuple(x.shape)} and {tuple(z.shape)}")
    if not (x.isfinite().all() and z.isfinite().all()):
        raise ValueError("x and z must be finite; drop the rows that are not")
    mean_x, mean_z = x.double().mean(0), z.double().mean(0)
    return x.double() - mean_x, z.double() - mean_z, mean_x, mean_z


# ---- erasing ---------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Eraser:
    """x -> mean + P (x - mean), in x's dtype.

    >>> x = torch.tensor([[0., 0.], [1., 0.], [0., 1.], [1., 1.]])
    >>> Eraser.fit(x, x[:, :1])(x)[:, 0]
    tensor([0.5000, 0.5000, 0.5000, 0.5000])

    Args:
        mean: (d,) float64.
        projection: P (d, d), float64.
    """

    mean: Tensor
    projection: Tensor

    @classmethod
    def fit(cls, x: Tensor, z: Tensor) -> Eraser:
        """The erasure of z from x (2306.03819).

        Args:
            x: (n, d).
            z: (n, k).

        Returns:
            The map.
        """
        away_x, away_z, mean_x, _ = _two_of(x, z)
        about_0 = cls.from_moments(Moments.of(away_x, away_z), x.dtype)
        return cls(mean_x, about_0.projection)

    @classmethod
    def from_moments(cls, moments: Moments, dtype: torch.dtype = torch.float32) -> Eraser:
        """The same as `fit`, from streamed moments.

        Args:
            moments: of (x, z).
            dtype: what x was computed in, which says how small rounding is.

        Returns:
            The map.
        """
        spectrum = Spectrum.of(moments, dtype)
        return spectrum.without(_correlated(moments, spectrum))

    def __call__(self, x: Tensor) -> Tensor:
        return (self.mean + (x.double() - self.mean) @ self.projection.T).to(x.dtype)

    @property
    def rank(self) -> int:
        """How many directions are taken out; at most min(d, k)."""
        d = len(self.mean)
        return d - round(float(self.projection.trace()))  # a projection's trace is its rank, oblique or not

    def removed(self, moments: Moments) -> float:
        """Mean squared distance E|x' - x|² that x of these `moments` is moved."""
        out = torch.eye(len(self.mean)).to(self.projection) - self.projection
        centred = _scatter_about(moments, self.mean)
        return float((out @ centred * out).sum())


def _scatter_about(moments: Moments, point: Tensor) -> Tensor:
    """(d, d) mean of (x - point)(x - point)^T."""
    mean = moments.x / moments.n
    return moments.xx / moments.n - torch.outer(mean, mean) + torch.outer(mean - point, mean - point)


# ---- what is shown at all --------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Range:
    """x with every principal axis' coordinate cut off at +-reach, in x's dtype.

    Axes that do not vary are left out, so that what lies along them is put to the mean. An eraser leaves them as they are: it
    takes out what the activations it was fitted on told of the code, and nothing that only others tell.

    Args:
        mean: (d,).
        axes: (d, r) orthonormal.
        reach: (r,), in the unit of x.
    """

    mean: Tensor
    axes: Tensor
    reach: Tensor

    @classmethod
    def fit(cls, x: Tensor, deviations: float = 4.0) -> Range:
        """The range of x.

        Args:
            x: (n, d).
            deviations: where to cut, in standard deviations along each axis.

        Returns:
            The map.
        """
        away, _, mean, _ = _two_of(x, x[:, :0])
        spectrum = Spectrum.of(Moments.of(away, away[:, :0]), x.dtype)
        return cls(mean, spectrum.axes, deviations * spectrum.variances.sqrt())

    def __call__(self, x: Tensor) -> Tensor:
        along = (x.double() - self.mean) @ self.axes
        return (self.mean + along.clamp(-self.reach, self.reach) @ self.axes.T).to(x.dtype)


# ---- writing ---------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Writer:
    """(x (..., d), z (..., k)) -> eraser(x) + (z - mean) B, in x's dtype: what is linearly known about the code is z's.

    Written with its own code, x keeps its mean and its covariance with z.

    Args:
        eraser: takes the code out of x.
        mean: (k,) of z.
        weight: B (k, d), the least-squares regression of x on z.
    """

    eraser: Eraser
    mean: Tensor
    weight: Tensor

    @classmethod
    def fit(cls, x: Tensor, z: Tensor) -> Writer:
        """The writer of z into x.

        Args:
            x: (n, d).
            z: (n, k), which may be collinear: then the smallest B for codes scaled to unit variance.

        Returns:
            The map.
        """
        away_x, away_z, mean_x, mean_z = _two_of(x, z)
        about_0 = cls.from_moments(Moments.of(away_x, away_z), Moments.of(away_z, away_x), x.dtype)
        return cls(Eraser(mean_x, about_0.eraser.projection), mean_z, about_0.weight)

    @classmethod
    def from_moments(cls, there: Moments, back: Moments, dtype: torch.dtype = torch.float32) -> Writer:
        """The same as `fit`, from streamed moments.

        Args:
            there: of (x, z).
            back: of (z, x).
            dtype: what x was computed in.

        Returns:
            The map.
        """
        mean_z, mean_x = back.x / back.n, back.y / back.n
        second = back.xx.diagonal() / back.n
        variance = second - mean_z.square()
        scale = torch.where(variance > 1e-12 * second.clamp(min=1e-300), variance.sqrt(), torch.inf)
        within = (back.xx / back.n - torch.outer(mean_z, mean_z)) / torch.outer(scale, scale)
        across = (back.xy / back.n - torch.outer(mean_z, mean_x)) / scale[:, None]
        weight = torch.linalg.pinv(within, rtol=SMALLEST, hermitian=True) @ across / scale[:, None]
        return cls(Eraser.from_moments(there, dtype), mean_z, weight)

    def __call__(self, x: Tensor, z: Tensor) -> Tensor:
        return (self.eraser(x.double()) + (z.double() - self.mean) @ self.weight).to(x.dtype)


# ---- nulls: random subspaces of the same rank ------------------------------------------------------------------------
def _gaussian(rows: int, columns: int, generator: torch.Generator, like: Tensor) -> Tensor:
    return torch.randn(rows, columns, generator=generator, dtype=like.dtype, device=generator.device).to(like.device)


def orthogonal_erasers(moments: Moments, eraser: Eraser, generator: torch.Generator, n: int = 20) -> list[Eraser]:
    """Orthogonal projections, each off a subspace of the eraser's rank, uniformly random among all (Haar).

    Args:
        moments: not used here; the nulls share their arguments.
        eraser: whose rank and mean are taken.
        generator: the generator.
        n: how many.

    Returns:
        `n` maps.
    """
    d, found = len(eraser.mean), []
    if eraser.rank == 0:
        return [eraser] * n
    for _ in range(n):
        q = torch.linalg.qr(_gaussian(d, eraser.rank, generator, eraser.mean))[0]
        found.append(Eraser(eraser.mean, torch.eye(d).to(q) - q @ q.T))
    return found


def whitened_erasers(moments: Moments, eraser: Eraser, generator: torch.Generator, n: int = 20) -> list[Eraser]:
    """Maps of the eraser's own form and rank whose U is uniformly random in the whitened space that x varies in.

    They take out what would be taken out if the code were an unrelated vector of as many numbers.

    Args:
        moments: of x.
        eraser: whose rank and mean are taken.
        generator: the generator.
        n: how many.

    Returns:
        `n` maps.
    """
    spectrum = Spectrum.of(moments)
    r = spectrum.axes.shape[1]
    if eraser.rank == 0:
        return [eraser] * n
    q = (torch.linalg.qr(_gaussian(r, min(r, eraser.rank), generator, eraser.mean))[0] for _ in range(n))
    return [spectrum.without(spectrum.axes @ directions) for directions in q]


def variance_matched_erasers(
    moments: Moments, eraser: Eraser, generator: torch.Generator, n: int = 20, within: float = 0.01
) -> list[Eraser]:
    """Random orthogonal projections of the eraser's rank that move x as far in mean square as it does.

    A subspace is spanned by random (Gaussian) combinations of principal axes, axis i weighted by variance_i^t. The variance it
    holds runs from the smallest to the largest that its rank can hold as t does from -inf to inf; bisection finds t. What a
    LEACE map removes always lies between these two.

    Args:
        moments: of x.
        eraser: whose rank, mean and distance are taken.
        generator: the generator.
        n: how many.
        within: by how much of it the distance may differ.

    Returns:
        `n` maps.
    """
    spectrum = Spectrum.of(moments)
    wanted, d, found = eraser.removed(moments), len(eraser.mean), []
    if eraser.rank == 0:
        return [eraser] * n
    rank = min(eraser.rank, len(spectrum.variances))
    for _ in range(n):
        mix = _gaussian(len(spectrum.variances), rank, generator, eraser.mean)
        q = spectrum.axes @ _bisect(mix, spectrum.variances, wanted, within)
        found.append(Eraser(eraser.mean, torch.eye(d).to(q) - q @ q.T))
    return found


def _bisect(mix: Tensor, variances: Tensor, wanted: float, within: float) -> Tensor:
    """(r, rank) orthonormal: the span of mix, reweighted until the variance it holds is the one wanted."""
    low, high, logs = -64.0, 64.0, (variances / variances.max()).log()
    q = torch.linalg.qr(mix)[0]
    for _ in range(60):
        held = float((q.square() * variances[:, None]).sum())
        if abs(held - wanted) <= within * wanted:
            break
        t = (low + high) / 2
        weight = t * logs
        q = torch.linalg.qr((weight - weight.max()).exp()[:, None] * mix)[0]
        if float((q.square() * variances[:, None]).sum()) < wanted:
            low = t
        else:
            high = t
    return q
