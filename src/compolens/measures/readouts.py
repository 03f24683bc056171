"""Linear readouts from streamed second moments: a ridge path per site, exact, in one pass over the episodes.

Everything a linear readout's fit and score need is in the moments of (x, y): counts, sums, X'X, X'Y, Y'Y. They add, so
they stream, merge across machines, and leave compositions out by subtraction; one eigendecomposition of the centred X'X
gives the solutions at every penalty.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from compolens.measures.intervals import Replicates, Scale, student_interval

PENALTIES = tuple(10.0**k for k in range(-2, 5))
"""What a readout's penalty is chosen among, on standardised features, where nothing else is said. The penalty shrinks a
direction that n episodes vary in by n / (n + l2), if it is uncorrelated with the others: of 2,048 episodes, 0.01 takes 5 parts
in a million away, and 10,000 leaves a sixth."""


@dataclass(frozen=True)
class RidgeReadout:
    """A frozen linear readout: x (n, features) -> x @ weight + bias (n, outputs), float64.

    Args:
        weight: (features, outputs).
        bias: (outputs,).
        l2: the penalty it was fitted with.
    """

    weight: Tensor
    bias: Tensor
    l2: float

    def __call__(self, x: Tensor) -> Tensor:
        return x.double() @ self.weight + self.bias

    @classmethod
    def fit(cls, x: Tensor, y: Tensor, l2: float = 1.0, standardize: bool = True) -> RidgeReadout:
        """Ridge with an unpenalised intercept.

        Args:
            x: (n, features).
            y: (n, outputs).
            l2: the penalty, which multiplies |weight|² as in scikit-learn.
            standardize: the penalty acts on the weights of features scaled to unit variance.

        Returns:
            The readout, which applies to raw x.
        """
        return Moments.of(x, y).fit([l2], standardize)[0]


@dataclass
class Moments:
    """Sums over episodes, in float64.

    Args:
        n: episodes.
        x: (features,).
        y: (outputs,).
        xx: (features, features), of x x'.
        xy: (features, outputs), of x y'.
        yy: (outputs,), of y².
    """

    n: int
    x: Tensor
    y: Tensor
    xx: Tensor
    xy: Tensor
    yy: Tensor

    @classmethod
    def zeros(cls, features: int, outputs: int, device: torch.device | str = "cpu") -> Moments:
        """The moments of no episodes.

        Args:
            features: width of x.
            outputs: width of y.
            device: where they are.

        Returns:
            The moments.
        """

        def zero(*shape: int) -> Tensor:
            return torch.zeros(*shape, dtype=torch.float64, device=device)

        return cls(0, zero(features), zero(outputs), zero(features, features), zero(features, outputs), zero(outputs))

    @classmethod
    def of(cls, x: Tensor, y: Tensor) -> Moments:
        """The moments of a batch.

        Args:
            x: (n, features).
            y: (n, outputs).

        Returns:
            The moments, on the device of x.

        Raises:
            ValueError: x and y are no tensors of as many rows.
        """
        if not (isinstance(x, Tensor) and isinstance(y, Tensor)) or (x.ndim, y.ndim) != (2, 2) or len(x) != len(y):
            got = " and ".join(f"{type(a).__name__} {tuple(getattr(a, 'shape', ()))}" for a in (x, y))
            raise ValueError(f"x and y must be tensors (n, features) and (n, outputs), such as torch.from_numpy(x); got {got}")
        x, y = x.double(), y.double()
        return cls(len(x), x.sum(0), y.sum(0), x.T @ x, x.T @ y, y.square().sum(0))

    def __add__(self, other: Moments) -> Moments:
        return Moments(
            self.n + other.n, self.x + other.x, self.y + other.y,
            self.xx + other.xx, self.xy + other.xy, self.yy + other.yy,
        )  # fmt: skip

    def __sub__(self, other: Moments) -> Moments:
        return Moments(
            self.n - other.n, self.x - other.x, self.y - other.y,
            self.xx - other.xx, self.xy - other.xy, self.yy - other.yy,
        )  # fmt: skip

    def outputs(self, chosen: slice) -> Moments:
        """The moments with only the outputs `chosen`."""
        return Moments(self.n, self.x, self.y[chosen], self.xx, self.xy[:, chosen], self.yy[chosen])

    @staticmethod
    def total(parts: Iterable[Moments]) -> Moments:
        """The sum of several `parts`; at least one."""
        first, *rest = parts
        for part in rest:
            first = first + part
        return first

    def fit(self, penalties: Sequence[float], standardize: bool = True) -> list[RidgeReadout]:
        """One readout per penalty, from one eigendecomposition.

        Minimises |y - x w - b|² + l2 |w|², summed over episodes; the intercept is not penalised. With `standardize`, the
        penalty acts on the weights of features scaled to unit variance (the readout returned applies to raw x).
        Directions without variance get weight 0.

        Args:
            penalties: l2, at least 0.
            standardize: as above.

        Returns:
            One readout per penalty, in their order.

        Raises:
            ValueError: a penalty is negative.
        """
        if not all(l2 >= 0 for l2 in penalties):
            raise ValueError(f"penalties l2 must be at least 0, got {list(penalties)}")
        mean_x, mean_y = self.x / self.n, self.y / self.n
        xx = self.xx - self.n * torch.outer(mean_x, mean_x)
        xy = self.xy - self.n * torch.outer(mean_x, mean_y)
        variance = xx.diagonal().clamp(min=0) / self.n
        floor = 1e-12 * (self.xx.diagonal() / self.n).clamp(min=1e-300)  # below it, a constant's rounding noise
        scale = torch.where(variance > floor, variance.sqrt(), torch.inf) if standardize else torch.ones_like(variance)
        values, vectors = torch.linalg.eigh(xx / torch.outer(scale, scale))
        rotated = vectors.T @ (xy / scale[:, None])
        smallest = values[-1].clamp(min=0) * len(values) * torch.finfo(values.dtype).eps
        strength = torch.tensor(list(penalties), dtype=values.dtype, device=values.device)[:, None]
        gain = torch.where(values > smallest, 1 / (values.clamp(min=0) + strength), 0.0)
        weights = vectors @ (gain[:, :, None] * rotated) / scale[:, None]
        biases = mean_y - mean_x @ weights
        return [RidgeReadout(w, b, float(l2)) for w, b, l2 in zip(weights, biases, penalties, strict=True)]

    def sse(self, readout: RidgeReadout) -> Tensor:
        """Summed squared error (outputs,) of `readout` on these episodes."""
        w, b = readout.weight, readout.bias
        fitted = (w * (self.xx @ w)).sum(0) + 2 * b * (self.x @ w) + self.n * b.square()
        return (self.yy - 2 * ((w * self.xy).sum(0) + b * self.y) + fitted).clamp(min=0)

    @property
    def sst(self) -> Tensor:
        """(outputs,) squared deviation of y from its mean over these episodes."""
        return (self.yy - self.y.square() / self.n).clamp(min=0)

    def r2(self, readout: RidgeReadout) -> Tensor:
        """R² (outputs,) of `readout`: 1 is perfect, 0 the mean predictor, may be negative; NaN where y does not vary."""
        sst = self.sst
        varies = sst > 1e-9 * self.yy.clamp(min=1e-300)
        return torch.where(varies, 1 - self.sse(readout) / torch.where(varies, sst, 1.0), torch.nan)


def add_by_group(totals: dict[int, Moments], x: Tensor, y: Tensor, group: Tensor) -> None:
    """Add a batch's moments to running totals, one per group (composition).

    Args:
        totals: group -> moments; changed in place.
        x: (n, features).
        y: (n, outputs).
        group: (n,) ints.
    """
    for g in group.unique().tolist():
        part = Moments.of(x[group == g], y[group == g])
        totals[g] = totals[g] + part if g in totals else part


@dataclass(frozen=True)
class GroupedR2:
    """R² pooled over groups.

    Args:
        per_output: (outputs,).
        mean: over outputs.
        lo: lower end of the mean's bootstrap interval over groups.
        hi: upper end.
    """

    per_output: np.ndarray
    mean: float
    lo: float
    hi: float


def grouped_r2(
    groups: dict[int, Moments], readouts: RidgeReadout | dict[int, RidgeReadout], draws: int = 1000, seed: int = 0
) -> GroupedR2:
    """Score one readout, or one per group, on the groups' moments.

    The 95 % interval resamples whole groups: Student's t with the bootstrap's standard error of log(1 - R²). Percentiles are
    not used: what varies between groups varies less among groups that repeat, so resamples lie below the R² that they are of.
    No interval (NaN) for one group alone and for an R² of 1.

    Args:
        groups: group -> moments.
        readouts: one for all groups, or group -> readout.
        draws: of the bootstrap.
        seed: of the bootstrap.

    Returns:
        R²: 1 is perfect, 0 the mean over all groups, may be negative; outputs that do not vary are left out of the mean.
    """
    by_group = readouts if isinstance(readouts, dict) else dict.fromkeys(groups, readouts)
    sse, y, yy = (
        torch.stack(parts) for parts in zip(*((m.sse(by_group[g]), m.y, m.yy) for g, m in groups.items()), strict=True)
    )
    n = torch.tensor([float(m.n) for m in groups.values()], dtype=torch.float64)
    return _pooled_r2(sse, n, y, yy, draws=draws, seed=seed)


def decoded_r2(decoded: Tensor, truth: Tensor, group: Tensor, draws: int = 1000, seed: int = 0) -> GroupedR2:
    """Score decoded rows as `grouped_r2` does, without moments of what they were decoded from.

    Args:
        decoded: (n, outputs).
        truth: (n, outputs).
        group: (n,) ints.
        draws: of the bootstrap.
        seed: of the bootstrap.

    Returns:
        R², as `grouped_r2` has it; groups in the order of their numbers.
    """
    which = torch.unique(group, return_inverse=True)[1]
    member = torch.nn.functional.one_hot(which).double().T
    decoded, truth = decoded.double(), truth.double()
    sse, yy = member @ (decoded - truth).square(), member @ truth.square()
    return _pooled_r2(sse, member.sum(1), member @ truth, yy, draws=draws, seed=seed)


def _pooled_r2(*sums: Tensor, draws: int, seed: int) -> GroupedR2:
    """From every group's summed squared error, rows, and sums of y and y²: (groups, outputs) each, rows (groups,)."""
    sse, n, y, yy = (part.cpu().numpy() for part in sums)

    def score(pick: np.ndarray) -> np.ndarray:
        total = yy[pick].sum(-2) - y[pick].sum(-2) ** 2 / n[pick].sum(-1)[..., None]
        varies = total > 1e-9 * np.maximum(yy[pick].sum(-2), 1e-300)
        return np.where(varies, 1 - sse[pick].sum(-2) / np.where(varies, total, 1.0), np.nan)

    per_output = score(np.arange(len(n)))
    if np.isnan(per_output).all():
        return GroupedR2(per_output, np.nan, np.nan, np.nan)
    resampled = score(np.random.default_rng(seed).integers(len(n), size=(draws, len(n))))
    means = np.nanmean(resampled[~np.isnan(resampled).all(-1)], axis=-1)
    mean = float(np.nanmean(per_output))
    return GroupedR2(per_output, mean, *student_interval(mean, means, len(n), Scale.LOG_LACK, Replicates.BOOTSTRAP))


def leave_groups_out(
    groups: Sequence[Moments], penalties: Sequence[float], standardize: bool = True
) -> tuple[float, list[float]]:
    """The penalty whose readouts predict left-out groups best.

    Each group (a composition) is predicted from all the others, so what is chosen is chosen for new compositions.

    Args:
        groups: the moments of each.
        penalties: l2, at least 0.
        standardize: as in `Moments.fit`.

    Returns:
        The penalty, and every penalty's pooled R² over left-out groups; of one group alone the last penalty, and NaN.
    """
    if len(groups) < 2:
        return float(penalties[-1]), [float("nan")] * len(penalties)
    whole = Moments.total(groups)
    errors = torch.zeros(len(penalties), dtype=torch.float64)
    for group in groups:
        readouts = (whole - group).fit(penalties, standardize)
        errors += torch.stack([group.sse(r).sum().cpu() for r in readouts])
    scores = (1 - errors / whole.sst.sum().cpu()).tolist()
    return float(penalties[int(torch.tensor(scores).argmax())]), scores


def exact_active_set(decoded: Tensor, truth: Tensor, threshold: float = 0.25) -> Tensor:
    """Whether the decoded code exceeds a threshold exactly where the true one is not 0.

    Args:
        decoded: (n, outputs).
        truth: (n, outputs).
        threshold: in the unit of the code.

    Returns:
        (n,) bool.
    """
    return ((decoded > threshold) == (truth != 0)).all(1)
