"""How two subspaces of activation space lie to each other, against chance; and what a layer that reads them can see.

Principal angles 0 ≤ θ_1 ≤ … ≤ π/2 of column spaces A and B: their cosines are the singular values of Q_A^T Q_B (Björck and
Golub 1973). For B uniformly random of rank m in d dimensions, E mean cos² θ = m / d, m being the larger rank.
"""

from __future__ import annotations

import torch
from torch import Tensor

NEGLIGIBLE = 1e-10
"""Singular values below this share of the largest do not count towards a rank."""


def column_space(a: Tensor) -> Tensor:
    """An orthonormal basis (d, rank), float64, of what the columns of `a` (d, k) span; a `ValueError` unless it is a finite
    matrix."""
    if a.ndim != 2 or not a.isfinite().all():
        raise ValueError(f"a subspace is given by the columns of a finite matrix (d, k), got shape {tuple(a.shape)}")
    u, sizes, _ = torch.linalg.svd(a.double(), full_matrices=False)
    return u[:, sizes > NEGLIGIBLE * sizes.max()] if sizes.numel() else u


def principal_angles(a: Tensor, b: Tensor) -> Tensor:
    """Angles between two column spaces.

    Small angles come from their sines, which keep the digits that cosines near 1 lose.

    Args:
        a: (d, k).
        b: (d, m).

    Returns:
        (min(rank a, rank b),) in radians, ascending.

    Raises:
        ValueError: they lie in different spaces.
    """
    if len(a) != len(b):
        raise ValueError(f"subspaces of different spaces: a has {len(a)} rows, b has {len(b)}")
    p, q = column_space(a), column_space(b)
    if p.shape[1] < q.shape[1]:
        p, q = q, p
    cosines = torch.linalg.svdvals(p.T @ q).clamp(0, 1)
    sines = torch.linalg.svdvals(q - p @ (p.T @ q)).flip(0).clamp(0, 1)
    return torch.where(cosines.square() > 0.5, sines[: len(cosines)].asin(), cosines.acos())


def overlap(a: Tensor, b: Tensor) -> float:
    """Mean cos² of the principal angles between two column spaces.

    Args:
        a: (d, k).
        b: (d, m).

    Returns:
        1 when one holds the other, 0 when orthogonal; NaN at rank 0.
    """
    angles = principal_angles(a, b)
    return float(angles.cos().square().mean()) if len(angles) else float("nan")


def random_overlaps(d: int, rank_a: int, rank_b: int, generator: torch.Generator, n: int = 1000) -> Tensor:
    """Overlaps of Haar-random subspaces; their mean is max(rank_a, rank_b) / d.

    Args:
        d: dimensions.
        rank_a: of the first subspace.
        rank_b: of the second.
        generator: the generator.
        n: draws.

    Returns:
        (n,) from 0 to 1.
    """
    return random_angles(d, rank_a, rank_b, generator, n).cos().square().mean(1)


def random_angles(d: int, rank_a: int, rank_b: int, generator: torch.Generator, n: int = 1000) -> Tensor:
    """Principal angles of Haar-random subspaces.

    Only their relative position counts, so that one of the two may stay fixed: the span of the first coordinates.

    Args:
        d: dimensions.
        rank_a: of the first subspace.
        rank_b: of the second.
        generator: the generator.
        n: draws.

    Returns:
        (n, min(rank_a, rank_b)) in radians, ascending.

    Raises:
        ValueError: a rank is not between 1 and d.
    """
    if not (1 <= rank_a <= d and 1 <= rank_b <= d):
        raise ValueError(f"ranks must be between 1 and d={d}, got {rank_a} and {rank_b}")
    draw = torch.randn(n, d, rank_b, generator=generator, dtype=torch.float64, device=generator.device)
    q = torch.linalg.qr(draw)[0]
    return torch.linalg.svdvals(q[:, :rank_a]).clamp(0, 1).acos()


def split_by_reader(directions: Tensor, reader: Tensor) -> tuple[Tensor, Tensor]:
    """The parts of directions that a downstream matrix sees and does not see; they add up.

    The first is in the matrix' row space, the second in its null space. A patch along a direction whose effect needs the
    second part acts by waking a pathway that is silent otherwise (Makelov et al. 2311.17030).

    Args:
        directions: (d, k).
        reader: (m, d), acts as x -> reader @ x.

    Returns:
        Two (d, k), seen and unseen.

    Raises:
        ValueError: the shapes do not fit.
    """
    if directions.ndim != 2 or reader.ndim != 2 or len(directions) != reader.shape[1]:
        raise ValueError(
            f"a reader (m, d) of directions (d, k) is needed, got {tuple(reader.shape)} and {tuple(directions.shape)}"
        )
    rows = column_space(reader.T)
    seen = rows @ (rows.T @ directions.double())
    return seen, directions.double() - seen


def share_unseen(directions: Tensor, reader: Tensor) -> float:
    """Share of the squared length of directions that lies in the null space of a downstream matrix.

    Args:
        directions: (d, k).
        reader: (m, d).

    Returns:
        0 all seen, 1 none; NaN for length 0.
    """
    seen, unseen = split_by_reader(directions, reader)
    total = float(seen.square().sum() + unseen.square().sum())
    return float(unseen.square().sum()) / total if total > 0 else float("nan")
