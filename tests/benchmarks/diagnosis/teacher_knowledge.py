"""What a planted model knows of the modular hyperteacher: its modules; how much of each is at work is fitted."""

from __future__ import annotations

import math

import torch
from knowledge import Knowledge, normal
from torch import Tensor, nn

from compolens.foundation.configs import DoesNotApply
from compolens.tasks import Hyperteacher

BOUNDS = (0.5, 1.0)
"""Between which active coefficients lie in training."""


class TeacherKnowledge(Knowledge):
    """y = A relu(W(z) x): W_modules (M, d_x, d_hidden) and W_out (d_hidden, d_y); inference by Gauss-Newton, all modules free.

    W_own (C, K, d_x, d_hidden): every training composition's modules, stored once more; slots, filled (C, K): which module
    stands in which of its places, and whether one does; W_mixed (H, d_x, d_hidden): what two
    modules that were never trained together add to W.
    """

    slots: Tensor
    filled: Tensor

    def __init__(self, task: Hyperteacher) -> None:
        train, held = ([task._universe[c] for c in task.compositions(split)] for split in ("train", "ood"))
        if any(len(c) != 2 for c in held):
            raise DoesNotApply(f"planted models need pairs as held-out compositions, got {held}; use support='connected'")
        super().__init__(train, held, task.n_modules, task.d_x, task.d_y)
        self.task, self.train_compositions = task, train
        self.W_modules = normal(task.n_modules, task.d_x, task.d_hidden)
        self.W_out = normal(task.d_hidden, task.d_y)
        slots = torch.zeros(len(train), task.max_active, dtype=torch.long)
        filled = torch.zeros(len(train), task.max_active)
        for row, full, parts in zip(slots, filled, train, strict=True):
            row[: len(parts)], full[: len(parts)] = torch.tensor(parts), 1
        for name, value in {"slots": slots, "filled": filled}.items():
            self.register_buffer(name, value, persistent=False)
        self.W_own = normal(len(train), task.max_active, task.d_x, task.d_hidden)
        self.W_mixed = nn.Parameter(1.5 * normal(len(held), task.d_x, task.d_hidden).data)

    @property
    def entries(self) -> int:
        return self.W_own.shape[0] * self.W_own.shape[1]

    def infer(self, x: Tensor, y: Tensor) -> Tensor:
        return _fit(x, y, self.W_modules[None], self.W_out, 20)[0][:, 0]

    def execute(self, code: Tensor, x: Tensor) -> Tensor:
        return self._network(torch.einsum("bm,mxh->bxh", code, self.W_modules), x)

    def execute_entangled(self, code: Tensor, x: Tensor, strength: float) -> Tensor:
        mixed = torch.einsum("bp,pxh->bxh", self.together(code), self.W_mixed)
        return self._network(torch.einsum("bm,mxh->bxh", code, self.W_modules) + strength * mixed, x)

    def _network(self, weights: Tensor, x: Tensor) -> Tensor:
        return torch.relu(x @ weights) @ self.W_out

    def explain(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        coefficients, error = _fit(x, y, self.W_own, self.W_out, 4, *BOUNDS)
        return self._placed(coefficients), error

    def _placed(self, coefficients: Tensor) -> Tensor:
        """(batch, C, entries): coefficients (batch, C, K), each composition's at its own places."""
        own = torch.eye(len(self.filled)).to(coefficients)[:, :, None] * self.filled[:, None]
        return (coefficients[:, :, None] * own).flatten(2)

    def nearest(self, code: Tensor) -> Tensor:
        sizes = code[:, self.slots]
        near = sizes.clamp(*BOUNDS)
        beside = code.square().sum(1, keepdim=True) - (sizes.square() * self.filled).sum(2)
        best = (beside + ((sizes - near).square() * self.filled).sum(2)).argmin(1)
        return self._placed(near)[torch.arange(len(code)), best]

    def lookup(self, x: Tensor, y: Tensor) -> Tensor:
        low, high = BOUNDS
        coefficients, error = _fit(x, y, self.W_own, self.W_out, 4, low, high)
        best = nn.functional.one_hot(error.argmin(1), error.shape[1])[..., None]
        return (coefficients * best * (self.W_own != 0).any(-1).any(-1)).flatten(1)

    def recall(self, entry: Tensor, x: Tensor) -> Tensor:
        coefficients = entry.unflatten(1, self.W_own.shape[:2])
        weights = torch.einsum("bck,ckxh->bcxh", coefficients, self.W_own)
        return torch.relu(torch.einsum("bnx,bcxh->bcnh", x, weights)).sum(1) @ self.W_out

    @torch.no_grad()
    def plant(self) -> None:
        modules, readout = self.task.teacher
        self.W_modules.copy_(modules)
        self.W_out.copy_(readout)
        self.W_own.zero_()
        for own, parts in zip(self.W_own, self.train_compositions, strict=True):
            own[: len(parts)] = modules[list(parts)]


def _fit(
    x: Tensor, y: Tensor, bases: Tensor, readout: Tensor, steps: int, low: float = -math.inf, high: float = math.inf
) -> tuple[Tensor, Tensor]:
    """(coefficients (batch, C, K), squared error (batch, C)) of relu(sum_k z_k x Theta_ck) A fitted to the examples, for every
    set of bases (C, K, d_x, d_hidden), by Gauss-Newton, cut off at low and high.

    Started at the regression of y on x Theta A / 2, which is E[y | x] up to what is even in x, for inputs symmetric about 0.
    Which units are on is found without gradients; given that, z is a least-squares solution, through which they flow.
    """
    parts = torch.einsum("bnx,ckxh->bcknh", x, bases)
    y = y[:, None].expand(-1, len(bases), -1, -1)

    def slopes(z: Tensor) -> Tensor:
        """(batch, C, K, n, d_y): relu is homogeneous, so the answer is z times its own slopes."""
        on = torch.einsum("bck,bcknh->bcnh", z, parts) > 0
        return (parts * on[:, :, None]) @ readout

    with torch.no_grad():
        half = parts @ readout / 2
        z = _least_squares(half - half.mean(3, keepdim=True), y - y.mean(2, keepdim=True)).clamp(low, high)
        best, least = z, torch.full(z.shape[:2], torch.inf).to(z)
        for _ in range(steps):
            now = slopes(z)
            error = (torch.einsum("bck,bckny->bcny", z, now) - y).square().sum((2, 3))
            best = torch.where((error < least)[..., None], z, best)
            least = torch.minimum(error, least)
            z = _least_squares(now, y).clamp(low, high)
    return _least_squares(slopes(best), y).clamp(low, high), least


def _least_squares(slopes: Tensor, y: Tensor) -> Tensor:
    """z (batch, C, K) with sum_k z_k slopes_k (batch, C, K, n, d_y) nearest to y (batch, C, n, d_y)."""
    flat = slopes.flatten(3).double()
    gram = flat @ flat.mT + 1e-6 * torch.eye(flat.shape[2]).to(flat)
    return torch.linalg.solve(gram, flat @ y.double().flatten(2)[..., None])[..., 0].to(y)
