"""What a planted model's weights know of a task family: its parts, how to infer which are at work, how to execute them.

One class per family, with the same methods: `TeacherKnowledge` for the modular hyperteacher, `LogicKnowledge` for fuzzy
logic, and `ChainKnowledge`, in a file of its own, for chains.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from typing import ClassVar

import torch
from torch import Tensor, nn

from compolens.configs import DoesNotApply
from compolens.tasks import FuzzyLogic, Hyperteacher

BOUNDS = (0.5, 1.0)
"""Between which active coefficients lie in training."""
SHARP = 1e-3
"""Temperature of the choice among fuzzy functions: their squared errors differ by much more."""


class Knowledge(nn.Module):
    """Parts of a family, as parameters: random as built, the task's own after `plant`.

    Which compositions are held out is structure, hence the same in the untrained twin. Buffers: trained (C, M) 0/1, the parts
    of every training composition; held (H, 2), the held-out pairs; change (H, M), what turns a held-out pair into a trained
    one (its second part makes room for another, where one is trained beside the first; else the other way round).
    """

    centre: ClassVar[float] = 0.0
    """The mean of every input coordinate."""
    trained: Tensor
    held: Tensor
    change: Tensor

    def __init__(self, train: list[tuple[int, ...]], held: list[tuple[int, ...]], n_parts: int, d_x: int, d_y: int) -> None:
        super().__init__()
        self.d_x, self.d_y, self.n_parts = d_x, d_y, n_parts
        trained = torch.zeros(len(train), n_parts)
        for row, parts in zip(trained, train, strict=True):
            row[list(parts)] = 1
        change = torch.zeros(len(held), n_parts)
        for row, pair in zip(change, held, strict=True):
            kept, lost, gained = _recombined(pair, set(train))
            row[gained] += 1
            row[lost] -= 1
            assert tuple(sorted((kept, gained))) in train
        for name, value in {"trained": trained, "held": torch.tensor(held), "change": change}.items():
            self.register_buffer(name, value, persistent=False)

    def together(self, code: Tensor) -> Tensor:
        """(batch, H): how far both parts of each held-out pair are at work, as the product of their entries."""
        return code[:, self.held[:, 0]] * code[:, self.held[:, 1]]

    @property
    @abstractmethod
    def entries(self) -> int:
        """Width of what `lookup` gives."""

    @abstractmethod
    def infer(self, x: Tensor, y: Tensor) -> Tensor:
        """The code (batch, M) that explains examples x (batch, n, d_x), y (batch, n, d_y); gradients flow."""

    @abstractmethod
    def execute(self, code: Tensor, x: Tensor) -> Tensor:
        """(batch, points, d_y): the answers at x (batch, points, d_x) under the code (batch, M)."""

    @abstractmethod
    def execute_entangled(self, code: Tensor, x: Tensor, strength: float) -> Tensor:
        """As `execute`, but where two parts were never trained together each changes what the other does."""

    @abstractmethod
    def lookup(self, x: Tensor, y: Tensor) -> Tensor:
        """(batch, entries): the training composition that explains the examples best, in coordinates of its own."""

    @abstractmethod
    def recall(self, entry: Tensor, x: Tensor) -> Tensor:
        """(batch, points, d_y): the answers of what `lookup` found, by networks stored per training composition."""

    @abstractmethod
    def plant(self) -> None:
        """Set every parameter to the task's own."""


def _recombined(pair: tuple[int, ...], train: set[tuple[int, ...]]) -> tuple[int, int, int]:
    """(kept, lost, gained): a trained pair that shares a part with a held-out one."""
    for kept, lost in (pair, pair[::-1]):
        partners = [p for c in train if len(c) == 2 and kept in c for p in c if p != kept]
        if partners:
            return kept, lost, sorted(partners)[(kept + lost) % len(partners)]
    raise DoesNotApply(f"neither part of the held-out pair {pair} is trained in a pair; choose another split_seed")


class TeacherKnowledge(Knowledge):
    """y = A relu(W(z) x): W_modules (M, d_x, d_hidden) and W_out (d_hidden, d_y); inference by Gauss-Newton, all modules free.

    W_own (C, K, d_x, d_hidden): every training composition's modules, stored once more; W_mixed (H, d_x, d_hidden): what two
    modules that were never trained together add to W.
    """

    def __init__(self, task: Hyperteacher) -> None:
        train, held = ([task._universe[c] for c in task.compositions(split)] for split in ("train", "ood"))
        if any(len(c) != 2 for c in held):
            raise DoesNotApply(f"planted models need pairs as held-out compositions, got {held}; use support='connected'")
        super().__init__(train, held, task.n_modules, task.d_x, task.d_y)
        self.task, self.train_compositions = task, train
        self.W_modules = normal(task.n_modules, task.d_x, task.d_hidden)
        self.W_out = normal(task.d_hidden, task.d_y)
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


def normal(*shape: int) -> nn.Parameter:
    return nn.Parameter(torch.randn(*shape) / math.sqrt(shape[-2]))


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


class LogicKnowledge(Knowledge):
    """f = OR of ANDs: negated (terms, L), 1 where a term negates a variable; inference by trying every pair of known terms.

    own (C, K, L): the terms of every training function, stored once more. A code is multi-hot over all 2^L terms.
    """

    def __init__(self, task: FuzzyLogic) -> None:
        train, held = ([task._universe[c] for c in task.compositions(split)] for split in ("train", "ood"))
        super().__init__(train, held, task.n_all, task.n_variables, 1)
        self.task = task
        self.register_buffer("pairs", torch.tensor(train + held), persistent=False)
        self.register_buffer("terms", torch.tensor(train), persistent=False)
        self.negated = nn.Parameter(torch.randn(task.n_all, task.n_variables))
        self.own = nn.Parameter(torch.randn(len(train), task.n_terms, task.n_variables))

    centre = 0.5
    pairs: Tensor
    terms: Tensor

    @property
    def entries(self) -> int:
        return len(self.own)

    def infer(self, x: Tensor, y: Tensor) -> Tensor:
        answers = self._truth(x, self.negated)[..., self.pairs].amax(-1)
        multi_hot = nn.functional.one_hot(self.pairs, self.n_parts).sum(1).to(x)
        return torch.softmax(-(answers - y).square().sum(1) / SHARP, dim=1) @ multi_hot

    def execute(self, code: Tensor, x: Tensor) -> Tensor:
        return (self._truth(x, self.negated) * code[:, None]).amax(-1, keepdim=True)

    def execute_entangled(self, code: Tensor, x: Tensor, strength: float) -> Tensor:
        both = self._truth(x, self.negated)[..., self.held]  # (batch, points, H, 2)
        worse = (self.together(code)[:, None] * (both.amin(-1) - both.amax(-1))).sum(-1, keepdim=True)
        return self.execute(code, x) + strength * worse

    def lookup(self, x: Tensor, y: Tensor) -> Tensor:
        return torch.softmax(-(self._own_truth(x) - y).square().sum(1) / SHARP, dim=1)

    def recall(self, entry: Tensor, x: Tensor) -> Tensor:
        return (self._own_truth(x) * entry[:, None]).sum(-1, keepdim=True)

    def _truth(self, x: Tensor, negated: Tensor) -> Tensor:
        """(batch, points, terms): min over the literals."""
        return (x[:, :, None] * (1 - negated) + (1 - x[:, :, None]) * negated).amin(-1)

    def _own_truth(self, x: Tensor) -> Tensor:
        return self._truth(x, self.own.flatten(0, 1)).unflatten(-1, self.own.shape[:2]).amax(-1)

    @torch.no_grad()
    def plant(self) -> None:
        names = [format(term, f"0{self.d_x}b") for term in range(self.n_parts)]
        self.negated.copy_(torch.tensor([[float(bit == "0") for bit in name] for name in names]))
        self.own.copy_(self.negated[self.terms])
