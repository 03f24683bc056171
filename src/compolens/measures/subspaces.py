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
    """(d, rank) orthonormal basis, float64, of what the columns of a (d, k) span."""
    if a.ndim != 2 or not a.isfinite().all():
        raise ValueError(f"a subspace is given by the columns of a finite matrix (d, k), got shape {tuple(a.shape)}")
    u, sizes, _ = torch.linalg.svd(a.double(), full_matrices=False)
    return u[:, sizes > NEGLIGIBLE * sizes.max()] if sizes.numel() else u


def principal_angles(a: Tensor, b: Tensor) -> Tensor:
    """(min(rank a, rank b),) angles in radians, ascending, between the column spaces of a (d, k) and b (d, m).

    Small angles come from their sines, which keep the digits that cosines near 1 lose.
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
    """Mean cos² of the principal angles: 1 when one column space holds the other, 0 when orthogonal; NaN at rank 0."""
    angles = principal_angles(a, b)
    return float(angles.cos().square().mean()) if len(angles) else float("nan")


def random_overlaps(d: int, rank_a: int, rank_b: int, generator: torch.Generator, n: int = 1000) -> Tensor:
    """(n,) overlaps of Haar-random subspaces of these ranks in d dimensions; their mean is max(rank_a, rank_b) / d."""
    return random_angles(d, rank_a, rank_b, generator, n).cos().square().mean(1)


def random_angles(d: int, rank_a: int, rank_b: int, generator: torch.Generator, n: int = 1000) -> Tensor:
    """(n, min(rank_a, rank_b)) principal angles, ascending, of Haar-random subspaces of these ranks in d dimensions.

    Only their relative position counts, so that one of the two may stay fixed: the span of the first coordinates.
    """
    if not (1 <= rank_a <= d and 1 <= rank_b <= d):
        raise ValueError(f"ranks must be between 1 and d={d}, got {rank_a} and {rank_b}")
    draw = torch.randn(n, d, rank_b, generator=generator, dtype=torch.float64, device=generator.device)
    q = torch.linalg.qr(draw)[0]
    return torch.linalg.svdvals(q[:, :rank_a]).clamp(0, 1).acos()


def split_by_reader(directions: Tensor, reader: Tensor) -> tuple[Tensor, Tensor]:
    """The parts of directions (d, k) that a downstream matrix `reader` (m, d) sees and does not see; they add up.

    reader acts as x -> reader @ x. The first is in its row space, the second in its null space. A patch along a direction
    whose effect needs the second part acts by waking a pathway that is silent otherwise (Makelov et al. 2311.17030).
    """
    if directions.ndim != 2 or reader.ndim != 2 or len(directions) != reader.shape[1]:
        raise ValueError(
            f"a reader (m, d) of directions (d, k) is needed, got {tuple(reader.shape)} and {tuple(directions.shape)}"
        )
    rows = column_space(reader.T)
    seen = rows @ (rows.T @ directions.double())
    return seen, directions.double() - seen


def share_unseen(directions: Tensor, reader: Tensor) -> float:
    """Share of the squared length of directions (d, k) that lies in the null space of `reader` (m, d): 0 all seen, 1 none."""
    seen, unseen = split_by_reader(directions, reader)
    total = float(seen.square().sum() + unseen.square().sum())
    return float(unseen.square().sum()) / total if total > 0 else float("nan")
