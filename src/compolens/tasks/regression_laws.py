"""What in-context linear regression draws from: laws of the inputs, and priors of the weights.

A prior is a mixture whose components are known, so that its posterior mean is known as well (2306.04891 for the idea of
comparing learners with posterior means of the priors they were trained on). Components are also what compositions are made
of; a Gaussian's are the sign patterns of its first standardised coefficients, which slice it into equal parts.
"""

from __future__ import annotations

import itertools
import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from compolens.foundation.configs import ConfigError, DoesNotApply, frozen, require, require_positive
from compolens.tasks.base import TaskPart

SIGNS = 4
"""A Gaussian prior is sliced by the signs of this many leading coefficients."""


def covariance_matrix(owner: object, covariance: tuple | None, d_x: int) -> Tensor:
    """A covariance as a matrix.

    Args:
        owner: the description it belongs to, named in errors.
        covariance: None (the identity), d_x variances, or d_x rows.
        d_x: width of x.

    Returns:
        (d_x, d_x) float64, positive definite.

    Raises:
        ConfigError: it is of another size, not symmetric, or singular.
    """
    name = type(owner).__name__
    if covariance is None:
        return torch.eye(d_x, dtype=torch.float64)
    given = torch.tensor(covariance, dtype=torch.float64)
    matrix = torch.diag(given) if given.ndim == 1 else given
    if matrix.shape != (d_x, d_x):
        raise ConfigError(f"{name}: covariance needs {d_x} variances or {d_x} rows of {d_x}, got {tuple(given.shape)}")
    if not torch.allclose(matrix, matrix.T):
        raise ConfigError(f"{name}: covariance must be symmetric")
    smallest, largest = (float(v) for v in torch.linalg.eigvalsh(matrix)[[0, -1]])
    if smallest <= 1e-12 * max(largest, 1e-300):
        raise ConfigError(
            f"{name}: covariance is singular or not positive (eigenvalues from {smallest:.3g} to {largest:.3g}); "
            "give every direction a positive variance, or leave the direction out (a smaller d_x)"
        )
    return matrix


@dataclass(frozen=True)
class InputLaw(TaskPart, ABC):
    """How inputs are drawn, independently of one another within an episode."""

    @abstractmethod
    def draw(self, n: int, points: int, d_x: int, rng: torch.Generator) -> Tensor:
        """Inputs of some episodes, on the generator's device.

        Args:
            n: episodes.
            points: inputs of each.
            d_x: width of an input.
            rng: the generator.

        Returns:
            (n, points, d_x).
        """

    @abstractmethod
    def second_moment(self, d_x: int) -> Tensor:
        """E[x x^T] for inputs of width `d_x`: (d_x, d_x) float64."""


@dataclass(frozen=True)
class UniformInputs(InputLaw):
    """Every coordinate uniform on (-half_width, half_width).

    Args:
        half_width: 0.5 is what the code of 2212.07677 draws (its text says 1).
    """

    half_width: float = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.half_width > 0, f"UniformInputs: half_width must be positive, got {self.half_width}")

    def draw(self, n: int, points: int, d_x: int, rng: torch.Generator) -> Tensor:
        return (2 * torch.rand(n, points, d_x, generator=rng, device=rng.device) - 1) * self.half_width

    def second_moment(self, d_x: int) -> Tensor:
        return torch.eye(d_x, dtype=torch.float64) * self.half_width**2 / 3


@dataclass(frozen=True)
class GaussianInputs(InputLaw):
    """Normal with mean 0.

    Args:
        covariance: None (isotropic), d_x variances, or d_x rows.
        random_basis: every episode turns it by a rotation of its own (as 2310.17086 does with half the variances 100 and half
            1).
    """

    covariance: tuple[float, ...] | tuple[tuple[float, ...], ...] | None = None
    random_basis: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "covariance", frozen(self.covariance))

    def draw(self, n: int, points: int, d_x: int, rng: torch.Generator) -> Tensor:
        root = torch.linalg.cholesky(covariance_matrix(self, self.covariance, d_x)).float().to(rng.device)
        x = torch.randn(n, points, d_x, generator=rng, device=rng.device) @ root.T
        if self.random_basis:
            x = x @ torch.linalg.qr(torch.randn(n, d_x, d_x, generator=rng, device=rng.device))[0]
        return x

    def second_moment(self, d_x: int) -> Tensor:
        matrix = covariance_matrix(self, self.covariance, d_x)
        return torch.eye(d_x, dtype=torch.float64) * matrix.trace() / d_x if self.random_basis else matrix


@dataclass(frozen=True)
class MixedInputs(InputLaw):
    """Per episode normal, exponential or Laplace, with equal odds; every input then has length `norm`. The unseen inputs of
    2212.07677."""

    norm: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.norm > 0, f"MixedInputs: norm must be positive, got {self.norm}")

    def draw(self, n: int, points: int, d_x: int, rng: torch.Generator) -> Tensor:
        shape, device = (n, points, d_x), rng.device
        normal = torch.randn(shape, generator=rng, device=device)
        exponential = -torch.log1p(-torch.rand(shape, generator=rng, device=device))
        sign = torch.randint(2, shape, generator=rng, device=device) * 2 - 1
        law = torch.randint(3, (n, 1, 1), generator=rng, device=device)
        x = torch.where(law == 0, normal, torch.where(law == 1, exponential, sign * exponential))
        return self.norm * x / x.norm(dim=-1, keepdim=True).clamp(min=1e-12)

    def second_moment(self, d_x: int) -> Tensor:
        """Exact on the diagonal; the third part, exponential inputs, also has off-diagonal moments, measured on 2^16 draws."""
        rng = torch.Generator().manual_seed(0)
        x = self.draw(1 << 16, 1, d_x, rng)[:, 0].double()
        return x.T @ x / len(x)


@dataclass(frozen=True)
class HarmonicInputs(InputLaw):
    """Sines and cosines of one angle, which is uniform on the circle: √2 (cos a, sin a, cos 2a, sin 2a, …).

    Linear functions of such an input are the Fourier series of 2306.04891, of frequencies up to d_x / 2; here the harmonics
    are given and need not be formed. Their second moment is the identity.
    """

    def draw(self, n: int, points: int, d_x: int, rng: torch.Generator) -> Tensor:
        return self.at(2 * math.pi * torch.rand(n, points, generator=rng, device=rng.device), d_x)

    def at(self, angle: Tensor, d_x: int) -> Tensor:
        """The input of an angle.

        Args:
            angle: any shape, in radians.
            d_x: width of x, even.

        Returns:
            The shape of `angle`, and d_x.

        Raises:
            ConfigError: d_x is odd.
        """
        require(d_x % 2 == 0, f"HarmonicInputs: every frequency has a cosine and a sine; d_x must be even, got {d_x}")
        turned = angle[..., None] * torch.arange(1, d_x // 2 + 1, device=angle.device)
        return math.sqrt(2) * torch.stack([turned.cos(), turned.sin()], -1).flatten(-2)

    def second_moment(self, d_x: int) -> Tensor:
        self.at(torch.zeros(1), d_x)
        return torch.eye(d_x, dtype=torch.float64)


@dataclass(frozen=True)
class Prior(TaskPart, ABC):
    """How a task's weights (d_x, d_y) are drawn. Given the component, outputs are independent of one another."""

    @abstractmethod
    def n_components(self, d_x: int) -> int:
        """How many components there are for inputs of width `d_x`, all equally likely."""

    @abstractmethod
    def component_name(self, component: int, d_x: int) -> str:
        """What a component is called in tables.

        Args:
            component: its number.
            d_x: width of x.

        Returns:
            The name.
        """

    @abstractmethod
    def draw(self, component: Tensor, d_x: int, d_y: int, rng: torch.Generator) -> Tensor:
        """Weights of given components, on the generator's device.

        Args:
            component: (n,) numbers of components.
            d_x: width of x.
            d_y: width of y.
            rng: the generator.

        Returns:
            (n, d_x, d_y).
        """

    @abstractmethod
    def mixture(self, d_x: int) -> tuple[Tensor, Tensor, Tensor]:
        """The prior as a mixture of Gaussians.

        Args:
            d_x: width of x.

        Returns:
            Log weights (m,), means (m, d_x) and covariances (m, d_x, d_x), float64.

        Raises:
            DoesNotApply: it is none, so its posterior mean is not known.
        """

    def check(self, d_x: int) -> None:
        """Raise a `ConfigError` unless the prior can draw weights for inputs of width `d_x`."""
        self.mixture(d_x)


@dataclass(frozen=True)
class GaussianPrior(Prior):
    """Normal weights with mean 0.

    Args:
        covariance: None (standard normal), d_x variances, or d_x rows.
    """

    covariance: tuple[float, ...] | tuple[tuple[float, ...], ...] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "covariance", frozen(self.covariance))

    def n_components(self, d_x: int) -> int:
        return 2 ** min(SIGNS, d_x)

    def component_name(self, component: int, d_x: int) -> str:
        return "".join("-" if component >> i & 1 else "+" for i in range(min(SIGNS, d_x)))

    def draw(self, component: Tensor, d_x: int, d_y: int, rng: torch.Generator) -> Tensor:
        z = torch.randn(len(component), d_x, d_y, generator=rng, device=rng.device)
        k = min(SIGNS, d_x)
        signs = 1 - 2 * (component[:, None] >> torch.arange(k, device=rng.device) & 1)
        z[:, :k, 0] = z[:, :k, 0].abs() * signs
        return torch.linalg.cholesky(covariance_matrix(self, self.covariance, d_x)).float().to(rng.device) @ z

    def mixture(self, d_x: int) -> tuple[Tensor, Tensor, Tensor]:
        one = torch.zeros(1, dtype=torch.float64)
        return one, one.new_zeros(1, d_x), covariance_matrix(self, self.covariance, d_x)[None]


@dataclass(frozen=True)
class SparsePrior(Prior):
    """Exactly `active` of the coefficients are standard normal, the others 0: a component is the set of active ones."""

    active: int = 3

    def __post_init__(self) -> None:
        super().__post_init__()
        require_positive(self, "active")

    def supports(self, d_x: int) -> list[tuple[int, ...]]:
        """The sets of coefficients of `d_x` that may be active, as ascending tuples in lexicographic order."""
        require(self.active <= d_x, f"SparsePrior: active={self.active} exceeds d_x={d_x}; choose at most {d_x}")
        count = math.comb(d_x, self.active)
        require(
            count <= 5000, f"SparsePrior: {self.active} of {d_x} coefficients make {count} sets; at most 5,000 are allowed"
        )
        return list(itertools.combinations(range(d_x), self.active))

    def n_components(self, d_x: int) -> int:
        return len(self.supports(d_x))

    def component_name(self, component: int, d_x: int) -> str:
        return "+".join(str(i) for i in self.supports(d_x)[component])

    def _masks(self, d_x: int) -> Tensor:
        supports = torch.tensor(self.supports(d_x))
        return torch.zeros(len(supports), d_x).scatter_(1, supports, 1.0)

    def draw(self, component: Tensor, d_x: int, d_y: int, rng: torch.Generator) -> Tensor:
        z = torch.randn(len(component), d_x, d_y, generator=rng, device=rng.device)
        return z * self._masks(d_x).to(rng.device)[component][..., None]

    def mixture(self, d_x: int) -> tuple[Tensor, Tensor, Tensor]:
        masks = self._masks(d_x).double()
        weights = torch.full((len(masks),), -math.log(len(masks)), dtype=torch.float64)
        return weights, torch.zeros_like(masks), torch.diag_embed(masks)


@dataclass(frozen=True)
class MixturePrior(Prior):
    """One of several Gaussians, with equal odds: weights are a centre plus `spread` times standard normals.

    Args:
        centres: rows of d_x numbers (None: +3 and -3 in every coordinate, as 2306.04891 has it).
        spread: standard deviation about a centre, above 0.
    """

    centres: tuple[tuple[float, ...], ...] | None = None
    spread: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "centres", frozen(self.centres))
        require(self.spread > 0, f"MixturePrior: spread must be positive, got {self.spread}")

    def _centres(self, d_x: int) -> Tensor:
        if self.centres is None:
            return torch.stack([torch.full((d_x,), value, dtype=torch.float64) for value in (3.0, -3.0)])
        wrong = [len(row) for row in self.centres if len(row) != d_x]
        require(bool(self.centres) and not wrong, f"MixturePrior: every centre needs d_x={d_x} numbers, got rows of {wrong}")
        return torch.tensor(self.centres, dtype=torch.float64)

    def n_components(self, d_x: int) -> int:
        return len(self._centres(d_x))

    def component_name(self, component: int, d_x: int) -> str:
        return f"centre {component}"

    def draw(self, component: Tensor, d_x: int, d_y: int, rng: torch.Generator) -> Tensor:
        z = torch.randn(len(component), d_x, d_y, generator=rng, device=rng.device)
        return self._centres(d_x).float().to(rng.device)[component][..., None] + self.spread * z

    def mixture(self, d_x: int) -> tuple[Tensor, Tensor, Tensor]:
        centres = self._centres(d_x)
        weights = torch.full((len(centres),), -math.log(len(centres)), dtype=torch.float64)
        return weights, centres, (torch.eye(d_x, dtype=torch.float64) * self.spread**2).expand(len(centres), -1, -1)


@dataclass(frozen=True)
class ClassesPrior(Prior):
    """A mixture of function classes, and convex combinations of these (2306.04891, 2311.00871).

    A class of functions has coefficients of its own, standard normal, and all others 0. A component is a row of `shares`: the
    sum over classes of a share times a function of that class. So it is Gaussian, and Bayes' answer to it is known, also where
    a model was trained on the classes alone.

    Args:
        classes: the coefficients of each class, which may overlap.
        shares: rows of a share for each class, none negative, each row with sum 1; rows are equally likely (None: one class at
            a time).
    """

    classes: tuple[tuple[int, ...], ...] = ((0, 1), (2, 3))
    shares: tuple[tuple[float, ...], ...] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "classes", frozen(self.classes))
        object.__setattr__(self, "shares", frozen(self.shares))
        require(
            bool(self.classes) and all(own and min(own) >= 0 and len(set(own)) == len(own) for own in self.classes),
            f"ClassesPrior: classes are tuples of different coefficients, counted from 0; got {self.classes}",
        )
        wrong = [row for row in self.shares or () if len(row) != len(self.classes) or min(row) < 0 or abs(sum(row) - 1) > 1e-6]
        require(
            self.shares != () and not wrong,
            f"ClassesPrior: shares are rows of {len(self.classes)} numbers with sum 1, none negative; got {wrong or '()'}",
        )

    @property
    def rows(self) -> tuple[tuple[float, ...], ...]:
        """The shares of every component."""
        count = len(self.classes)
        return self.shares or tuple(tuple(float(i == j) for j in range(count)) for i in range(count))

    def variances(self, d_x: int) -> Tensor:
        """The variances of the coefficients of every class.

        Args:
            d_x: width of x.

        Returns:
            (classes, d_x) float64: 1 where the class has the coefficient, else 0.

        Raises:
            ConfigError: a class has a coefficient that x has not.
        """
        highest = max(max(own) for own in self.classes)
        require(highest < d_x, f"ClassesPrior: coefficient {highest} is none of d_x={d_x}, which count from 0")
        found = torch.zeros(len(self.classes), d_x, dtype=torch.float64)
        for row, own in zip(found, self.classes, strict=True):
            row[list(own)] = 1
        return found

    def n_components(self, d_x: int) -> int:
        return len(self.rows)

    def component_name(self, component: int, d_x: int) -> str:
        told = [(share, f"class {i}") for i, share in enumerate(self.rows[component]) if share]
        return told[0][1] if len(told) == 1 else " + ".join(f"{share:g} {name}" for share, name in told)

    def draw(self, component: Tensor, d_x: int, d_y: int, rng: torch.Generator) -> Tensor:
        own = self.variances(d_x).float().to(rng.device)
        z = torch.randn(len(component), len(own), d_x, d_y, generator=rng, device=rng.device)
        share = torch.tensor(self.rows, device=rng.device)[component]
        return torch.einsum("nc,cd,ncde->nde", share, own, z)

    def mixture(self, d_x: int) -> tuple[Tensor, Tensor, Tensor]:
        share = torch.tensor(self.rows, dtype=torch.float64)
        variance = share.square() @ self.variances(d_x)
        weights = torch.full((len(share),), -math.log(len(share)), dtype=torch.float64)
        return weights, torch.zeros_like(variance), torch.diag_embed(variance)


@dataclass(frozen=True)
class CapPrior(Prior):
    """Weights of length √d_x, uniform on a cap of the sphere about the first axis, or on the rest of the sphere.

    Task diversity as 2506.05574 varies it: the larger the cap, the more diverse the tasks. A component is a pattern of signs
    of the coordinates after the first, which cuts the cap into equal parts.

    Args:
        half_angle: between the axis and the rim, in degrees, above 0 and below 180 (180 would be the whole sphere).
        outside: draw from the sphere without the cap instead, as where tasks are held out.
    """

    half_angle: float = 90.0
    outside: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        require(
            0 < self.half_angle < 180, f"CapPrior: half_angle must be above 0 and below 180 degrees, got {self.half_angle}"
        )

    def n_components(self, d_x: int) -> int:
        return 2 ** min(SIGNS, d_x - 1)

    def component_name(self, component: int, d_x: int) -> str:
        signs = "".join("-" if component >> i & 1 else "+" for i in range(min(SIGNS, d_x - 1)))
        return f"{'outside' if self.outside else 'inside'} {signs}"

    def _angles(self, d_x: int) -> tuple[Tensor, Tensor]:
        """Angles to the axis on a grid, and the share of the law that lies below each: density sin^(d_x - 2)."""
        rim = math.radians(self.half_angle)
        ends = (rim, math.pi) if self.outside else (0.0, rim)
        angles = torch.linspace(*ends, 4097, dtype=torch.float64)
        density = angles.sin().clamp(min=0) ** (d_x - 2)
        below = torch.cat([torch.zeros(1, dtype=torch.float64), ((density[1:] + density[:-1]) / 2).cumsum(0)])
        return angles, below / below[-1]

    def draw(self, component: Tensor, d_x: int, d_y: int, rng: torch.Generator) -> Tensor:
        n, device, k = len(component), rng.device, min(SIGNS, d_x - 1)
        u = torch.rand(n, d_y, generator=rng, device=device)
        across = torch.randn(n, d_x - 1, d_y, generator=rng, device=device)
        signs = 1 - 2 * (component[:, None] >> torch.arange(k, device=device) & 1)
        across[:, :k, 0] = across[:, :k, 0].abs() * signs
        angles, below = (part.to(device) for part in self._angles(d_x))
        at = torch.searchsorted(below, u.double().contiguous()).clamp(1, len(below) - 1)
        share = (u.double() - below[at - 1]) / (below[at] - below[at - 1]).clamp(min=1e-300)
        angle = (angles[at - 1] + share * (angles[at] - angles[at - 1])).float()[:, None]
        across = across / across.norm(dim=1, keepdim=True).clamp(min=1e-12)
        return math.sqrt(d_x) * torch.cat([angle.cos(), angle.sin() * across], dim=1)

    def check(self, d_x: int) -> None:
        require(d_x >= 2, f"CapPrior: the sphere needs d_x of at least 2, got {d_x}")

    def mixture(self, d_x: int) -> tuple[Tensor, Tensor, Tensor]:
        raise DoesNotApply("a cap of the sphere is no mixture of Gaussians; its posterior mean is not known")
