"""What a planted model knows of pairs of operations: both sets of matrices; which two are at work is found by trying all."""

from __future__ import annotations

from abc import abstractmethod

import torch
from knowledge import SHARP, Knowledge, normal
from pairs import Pairs
from torch import Tensor, nn

SMALLEST = 0.1
"""Size of a code below which answers shrink faster than it does; no code of an episode is that small."""


class PairKnowledge(Knowledge):
    """W_inner (n_inner, …), W_outer (n_outer, …), shaped as in `Pairs.teacher`. A code is one-hot twice: outer operations,
    then inner ones.

    own_inner, own_outer (C, …): every training composition's matrices, stored once more; W_mixed (H, …): what two operations
    that were never trained together add to the inner one's matrix.
    """

    pairs: Tensor

    def __init__(self, task: Pairs) -> None:
        train, held = ([self._parts(task, c) for c in task.compositions(split)] for split in ("train", "ood"))
        super().__init__(train, held, task.n_outer + task.n_inner, task.d_x, task.d_y)
        self.n_outer, self.task, self.n_train = task.n_outer, task, len(train)
        self.register_buffer("pairs", torch.tensor(train + held), persistent=False)
        inner, outer = task.widths
        self.W_inner = normal(task.n_inner, *inner)
        self.W_outer = normal(task.n_outer, *outer)
        self.own_inner = normal(len(train), *inner)
        self.own_outer = normal(len(train), *outer)
        self.W_mixed = nn.Parameter(1.2 * task.inner_gain * normal(len(held), *inner).data)

    @staticmethod
    def _parts(task: Pairs, composition: int) -> tuple[int, int]:
        outer, inner = divmod(composition, task.n_inner)
        return outer, task.n_outer + inner

    @property
    def entries(self) -> int:
        return self.n_train

    def infer(self, x: Tensor, y: Tensor) -> Tensor:
        every = {"outer": self.pairs[:, 0], "inner": self.pairs[:, 1] - self.n_outer}
        error = (self.task.answers_of(every, x, self.W_inner, self.W_outer) - y[:, None]).square().sum((2, 3))
        multi_hot = nn.functional.one_hot(self.pairs, self.n_parts).sum(1).to(x)
        return torch.softmax(-error / SHARP, dim=1) @ multi_hot

    def execute(self, code: Tensor, x: Tensor) -> Tensor:
        return self._network(code, x, x.new_zeros(len(x), *self.W_mixed.shape[1:]))

    def execute_entangled(self, code: Tensor, x: Tensor, strength: float) -> Tensor:
        return self._network(code, x, strength * torch.einsum("bp,pxh->bxh", self.together(code), self.W_mixed))

    @abstractmethod
    def _inner(self, inner: Tensor, x: Tensor, added: Tensor) -> Tensor:
        """(batch, points, width): what the inner half of a code (batch, n_inner) makes of x; it scales with the code."""

    def _network(self, code: Tensor, x: Tensor, added: Tensor) -> Tensor:
        """Operations made of both halves of the code, over what makes answers scale with the code as a whole.

        added: to the inner operation's matrix."""
        outer, inner = code.tensor_split([self.n_outer], dim=1)
        second = torch.einsum("bi,ihy->bhy", outer, self.W_outer)
        answers = self.task.second(self._inner(inner, x, added), second, x)
        return answers / self._excess(code)[:, None, None]

    def _excess(self, code: Tensor) -> Tensor:
        """(batch,): by how much too large answers are. Here the mean sum of both halves, which multiply one another."""
        return (code.sum(1) / 2).clamp(min=SMALLEST)

    def explain(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        error = (self._own_answers(x) - y[:, None]).square().sum((2, 3))
        return torch.eye(self.n_train).to(x).expand(len(x), -1, -1), error

    def lookup(self, x: Tensor, y: Tensor) -> Tensor:
        return torch.softmax(-self.explain(x, y)[1] / SHARP, dim=1)

    def recall(self, entry: Tensor, x: Tensor) -> Tensor:
        return torch.einsum("bc,bcny->bny", entry, self._own_answers(x))

    def _own_answers(self, x: Tensor) -> Tensor:
        """(batch, C, points, d_y)"""
        hidden = self.task.first(torch.einsum("bnx,cxh->bcnh", x, self.own_inner))
        return self.task.second(hidden, self.own_outer, x[:, None])

    @torch.no_grad()
    def plant(self) -> None:
        inner, outer = self.task.teacher
        self.W_inner.copy_(inner)
        self.W_outer.copy_(outer)
        trained = self.pairs[: self.n_train]
        self.own_inner.copy_(inner[trained[:, 1] - self.n_outer])
        self.own_outer.copy_(outer[trained[:, 0]])


class ChainKnowledge(PairKnowledge):
    """y = A_i relu(B_j x): relu scales with its matrix, so parts of a first layer are added up before it."""

    def _inner(self, inner: Tensor, x: Tensor, added: Tensor) -> Tensor:
        return self.task.first(x @ (torch.einsum("bj,jxh->bxh", inner, self.W_inner) + added))


class ProductKnowledge(PairKnowledge):
    """y = (A_i x) σ(B_j x): σ does not scale, so what is added up are the gates behind it."""

    def _inner(self, inner: Tensor, x: Tensor, added: Tensor) -> Tensor:
        drive = torch.einsum("bnx,jxh->bjnh", x, self.W_inner)
        return torch.einsum("bj,bjnh->bnh", inner, self.task.first(drive + (x @ added)[:, None]))


class MaxoutKnowledge(PairKnowledge):
    """y = max(A_i x, B_j x): scales with both matrices together."""

    def _inner(self, inner: Tensor, x: Tensor, added: Tensor) -> Tensor:
        return x @ (torch.einsum("bj,jxh->bxh", inner, self.W_inner) + added)

    def _excess(self, code: Tensor) -> Tensor:
        return torch.ones_like(code[:, 0])


class PhaseKnowledge(MaxoutKnowledge):
    """y = √2 sin(A_i x + B_j x): a sine does not scale; the size of the code is taken out of the phases and multiplies it."""

    def _network(self, code: Tensor, x: Tensor, added: Tensor) -> Tensor:
        size = PairKnowledge._excess(self, code)
        return size[:, None, None] * super()._network(code / size[:, None], x, added)
