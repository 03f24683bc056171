"""How sparse attention is: shares of small entries, concentration of rows, and the pruning that imposes sparsity.

x holds weights of any sign, (..., query, key) or, where only rows matter, (..., key); a row is the last dimension. `allowed`,
a bool tensor that broadcasts to x (None: everything), says which entries exist: what a mask forbids counts nowhere, neither
as an entry nor as a zero.

A row of k equal entries among n has Hoyer sparsity (sqrt n - sqrt k) / (sqrt n - 1), Gini index 1 - k / n and k effective
keys. A row of zeros is taken for k = 0, cut to the range: Hoyer 1, Gini 1, entropy 0, no key at all.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor


def _magnitude(x: Tensor, allowed: Tensor | None) -> Tensor:
    """|x|, with 0 where nothing is allowed."""
    return x.abs() if allowed is None else x.abs().masked_fill(~allowed, 0)


# ---- entries ---------------------------------------------------------------------------------------------------------
class Scale(ABC):
    """What a threshold is measured in."""

    name: ClassVar[str]

    @abstractmethod
    def unit(self, x: Tensor, allowed: Tensor | None = None) -> Tensor:
        """The magnitude that a threshold of 1 stands for.

        Args:
            x: (..., query, key).
            allowed: bool, which entries exist (None: all).

        Returns:
            Broadcasts to x.
        """


@dataclass(frozen=True)
class Absolute(Scale):
    """Thresholds are magnitudes themselves."""

    name: ClassVar[str] = "absolute"

    def unit(self, x: Tensor, allowed: Tensor | None = None) -> Tensor:
        return x.new_ones(())


@dataclass(frozen=True)
class RowMaximum(Scale):
    """Thresholds are shares of the row's largest magnitude: at 1 every entry is at or below."""

    name: ClassVar[str] = "row maximum"

    def unit(self, x: Tensor, allowed: Tensor | None = None) -> Tensor:
        return _magnitude(x, allowed).amax(-1, keepdim=True)


@dataclass(frozen=True)
class SiteStd(Scale):
    """Thresholds are multiples of a standard deviation that was measured before, such as a `Spread`'s.

    Args:
        std: the standard deviation, in the unit of x.
    """

    std: float
    name: ClassVar[str] = "site std"

    def unit(self, x: Tensor, allowed: Tensor | None = None) -> Tensor:
        return x.new_tensor(self.std)


def count_allowed(x: Tensor, allowed: Tensor | None = None) -> int:
    """How many entries one matrix has.

    Args:
        x: (..., query, key).
        allowed: (query, key) bool (None: all).

    Returns:
        The count.
    """
    return x.shape[-2] * x.shape[-1] if allowed is None else int(allowed.expand(x.shape[-2:]).sum())


def count_below(x: Tensor, threshold: float | Tensor, allowed: Tensor | None = None) -> Tensor:
    """How many entries of each matrix have |x| <= threshold.

    Args:
        x: (..., query, key).
        threshold: broadcasts to x.
        allowed: bool, which entries exist (None: all).

    Returns:
        (...,) int64.
    """
    hits = x.abs() <= threshold
    return (hits if allowed is None else hits & allowed).sum((-2, -1))


def fraction_below(x: Tensor, threshold: float | Tensor, allowed: Tensor | None = None) -> Tensor:
    """The share of entries of each matrix with |x| <= threshold.

    The soft threshold sign(s) max(|s| - xi, 0) has as many exact zeros as s has entries at or below xi.

    Args:
        x: (..., query, key).
        threshold: broadcasts to x.
        allowed: bool, which entries exist (None: all).

    Returns:
        (...,) float64 from 0 to 1.
    """
    return count_below(x, threshold, allowed).double() / count_allowed(x, allowed)


def fraction_zero(x: Tensor, allowed: Tensor | None = None) -> Tensor:
    """The share of entries of each matrix that are exactly 0.

    Args:
        x: (..., query, key).
        allowed: bool, which entries exist (None: all).

    Returns:
        (...,) float64 from 0 to 1.
    """
    return fraction_below(x, 0, allowed)


@dataclass(frozen=True)
class Spread:
    """Count, sum and sum of squares of entries: they add, so that a standard deviation can be streamed.

    Args:
        n: entries.
        total: their sum.
        square: the sum of their squares.
    """

    n: int
    total: float
    square: float

    @classmethod
    def of(cls, x: Tensor, allowed: Tensor | None = None) -> Spread:
        """The spread of all entries.

        Args:
            x: (..., query, key).
            allowed: bool, which entries exist (None: all).

        Returns:
            The sums, in double precision.
        """
        kept = (x if allowed is None else x.masked_fill(~allowed, 0)).double()
        return cls(x[..., 0, 0].numel() * count_allowed(x, allowed), float(kept.sum()), float(kept.square().sum()))

    def __add__(self, other: Spread) -> Spread:
        return Spread(self.n + other.n, self.total + other.total, self.square + other.square)

    @property
    def std(self) -> float:
        """Standard deviation about the mean; divides by n."""
        return max(self.square / self.n - (self.total / self.n) ** 2, 0.0) ** 0.5


# ---- rows ------------------------------------------------------------------------------------------------------------
def _shape(x: Tensor, allowed: Tensor | None) -> tuple[Tensor, Tensor]:
    """Magnitudes over the row's largest one, so that nothing over- or underflows; and (...,) whether a row is all zeros."""
    size = _magnitude(x, allowed)
    top = size.amax(-1, keepdim=True)
    return size / torch.where(top > 0, top, torch.ones_like(top)), top.squeeze(-1) == 0


def _lengths(x: Tensor, allowed: Tensor | None) -> Tensor:
    """(...,) or a scalar: how many entries a row has."""
    if allowed is None:
        return torch.tensor(x.shape[-1], device=x.device)
    return allowed.expand(*allowed.shape[:-1], x.shape[-1]).sum(-1)


def zero_rows(x: Tensor, allowed: Tensor | None = None) -> Tensor:
    """Rows whose every entry is exactly 0.

    Args:
        x: (..., key).
        allowed: bool, which entries exist (None: all).

    Returns:
        (...,) bool.
    """
    return _magnitude(x, allowed).amax(-1) == 0


def hoyer(x: Tensor, allowed: Tensor | None = None) -> Tensor:
    """Hoyer sparsity of each row, (sqrt n - |x|_1 / |x|_2) / (sqrt n - 1) (Hoyer 2004).

    Args:
        x: (..., key).
        allowed: bool, which entries exist (None: all).

    Returns:
        (...,) from 0 to 1: 0 for entries of one magnitude, and for rows of one entry; 1 for a single entry that is not 0, and
        for none.
    """
    size, empty = _shape(x, allowed)
    root = _lengths(x, allowed).to(size.dtype).sqrt()
    ratio = size.sum(-1) / size.square().sum(-1).clamp(min=1).sqrt()  # the largest is 1, so this only spares empty rows
    sparsity = torch.where(root > 1, (root - ratio) / (root - 1), torch.zeros_like(ratio)).clamp(0, 1)
    return sparsity.masked_fill(empty, 1)


def gini(x: Tensor, allowed: Tensor | None = None) -> Tensor:
    """Gini index of each row's magnitudes, their mean absolute difference over twice their mean (Hurley and Rickard,
    0811.4706).

    Args:
        x: (..., key).
        allowed: bool, which entries exist (None: all).

    Returns:
        (...,) from 0 to 1: 0 for entries of one magnitude, 1 - 1/n for a single one of n that is not 0, 1 for none.
    """
    size, empty = _shape(x, allowed)
    n = _lengths(x, allowed)
    ordered = size.sort(-1).values  # what does not exist is 0 here: it comes first, and ranks are counted after it
    rank = torch.arange(1, x.shape[-1] + 1, device=x.device) - (x.shape[-1] - n)[..., None]
    index = (ordered * (2 * rank - n[..., None] - 1)).sum(-1) / (n * ordered.sum(-1)).clamp(min=1)
    return index.clamp(0, 1).masked_fill(empty, 1)


def entropy(x: Tensor, allowed: Tensor | None = None) -> Tensor:
    """Entropy of each row's p = |x| / |x|_1.

    Args:
        x: (..., key).
        allowed: bool, which entries exist (None: all).

    Returns:
        (...,) in nats, from 0 to log n; 0 for a row of zeros.
    """
    size, _ = _shape(x, allowed)
    return torch.special.entr(size / size.sum(-1, keepdim=True).clamp(min=1)).sum(-1)


def effective_keys(x: Tensor, allowed: Tensor | None = None) -> Tensor:
    """exp of the entropy: as many keys of equal weight would be spread as widely.

    Args:
        x: (..., key).
        allowed: bool, which entries exist (None: all).

    Returns:
        (...,) from 1 to n; 0 for a row of zeros.
    """
    return entropy(x, allowed).exp().masked_fill(zero_rows(x, allowed), 0)


# ---- pruning ---------------------------------------------------------------------------------------------------------
def prune(x: Tensor, threshold: float | Tensor) -> Tensor:
    """0 wherever |x| <= threshold, the rest as it was.

    Args:
        x: of any shape.
        threshold: broadcasts to x.

    Returns:
        The same shape.
    """
    return x.masked_fill(x.abs() <= threshold, 0)


def prune_at_random(x: Tensor, zeros: Tensor, generator: torch.Generator, allowed: Tensor | None = None) -> Tensor:
    """As many zeros in each head as asked for, wherever they fall; the rest as it was.

    What is 0 already counts, and stays (also where it is more); the others are drawn whatever their size. From one state of
    the generator, larger `zeros` prune more entries and never others.

    Args:
        x: (batch, head, query, key).
        zeros: (head,) ints, how many entries of a head, over batch, query and key, are 0 afterwards.
        generator: on the device of x.
        allowed: bool, which entries exist (None: all).

    Returns:
        The same shape.
    """
    order = torch.rand(x.shape, generator=generator, device=x.device, dtype=torch.float64)
    order.masked_fill_(x == 0, -1)
    if allowed is not None:
        order.masked_fill_(~allowed, 2)
    last = [order[:, h].flatten().kthvalue(k).values if k else order.new_tensor(-2) for h, k in enumerate(zeros.tolist())]
    return x.masked_fill(order <= torch.stack(last)[:, None, None], 0)


def renormalise(x: Tensor) -> Tensor:
    """Rows of `x` over their sums, so that they sum to one; for entries that are not negative. Rows of zeros stay
    as they are."""
    total = x.sum(-1, keepdim=True)
    return x / torch.where(total > 0, total, torch.ones_like(total))


def sums_to_one(x: Tensor, tolerance: float = 1e-4) -> bool:
    """Whether no entry is negative and every row sums to one, as after a softmax.

    Args:
        x: (..., key).
        tolerance: by how much a sum may differ from one; of half precision, at least four of its steps at one.

    Returns:
        True if so.
    """
    most = max(tolerance, 4 * torch.finfo(x.dtype).eps)
    total = x.sum(-1, dtype=torch.promote_types(x.dtype, torch.float32))
    return bool((x >= 0).all()) and bool(((total - 1).abs() < most).all())
