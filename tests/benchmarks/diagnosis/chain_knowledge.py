"""What a planted model knows of chains: both sets of matrices; which pair is at work is found by trying every one."""

from __future__ import annotations

import torch
from chain import Chain
from knowledge import SHARP, Knowledge, normal
from torch import Tensor, nn

SMALLEST = 0.1
"""Size of a code below which answers shrink faster than it does; no code of an episode is that small."""


class ChainKnowledge(Knowledge):
    """y = A_i relu(B_j x): W_inner (n_inner, d_x, d_hidden), W_outer (n_outer, d_hidden, d_y). A code is one-hot twice: outer
    operations, then inner ones.

    own_inner, own_outer (C, ...): every training composition's matrices, stored once more; W_mixed (H, d_x, d_hidden): what
    two operations that were never trained together add to the first layer.
    """

    pairs: Tensor

    def __init__(self, task: Chain) -> None:
        train, held = ([self._parts(task, c) for c in task.compositions(split)] for split in ("train", "ood"))
        super().__init__(train, held, task.n_outer + task.n_inner, task.d_x, task.d_y)
        self.n_outer, self.task, self.n_train = task.n_outer, task, len(train)
        self.register_buffer("pairs", torch.tensor(train + held), persistent=False)
        self.W_inner = normal(task.n_inner, task.d_x, task.d_hidden)
        self.W_outer = normal(task.n_outer, task.d_hidden, task.d_y)
        self.own_inner = normal(len(train), task.d_x, task.d_hidden)
        self.own_outer = normal(len(train), task.d_hidden, task.d_y)
        self.W_mixed = nn.Parameter(1.2 * normal(len(held), task.d_x, task.d_hidden).data)

    @staticmethod
    def _parts(task: Chain, composition: int) -> tuple[int, int]:
        outer, inner = divmod(composition, task.n_inner)
        return outer, task.n_outer + inner

    @property
    def entries(self) -> int:
        return self.n_train

    def infer(self, x: Tensor, y: Tensor) -> Tensor:
        outer, inner = self.pairs[:, 0], self.pairs[:, 1] - self.n_outer
        hidden = torch.relu(torch.einsum("bnx,jxh->bjnh", x, self.W_inner))
        error = (hidden[:, inner] @ self.W_outer[outer] - y[:, None]).square().sum((2, 3))
        multi_hot = nn.functional.one_hot(self.pairs, self.n_parts).sum(1).to(x)
        return torch.softmax(-error / SHARP, dim=1) @ multi_hot

    def execute(self, code: Tensor, x: Tensor) -> Tensor:
        return self._network(code, x, x.new_zeros(()))

    def execute_entangled(self, code: Tensor, x: Tensor, strength: float) -> Tensor:
        return self._network(code, x, strength * torch.einsum("bp,pxh->bxh", self.together(code), self.W_mixed))

    def _network(self, code: Tensor, x: Tensor, added: Tensor) -> Tensor:
        """Layers made of both halves of the code, over their mean sum: so that answers scale with the code as a whole."""
        outer, inner = code.tensor_split([self.n_outer], dim=1)
        first = torch.einsum("bj,jxh->bxh", inner, self.W_inner) + added
        second = torch.einsum("bi,ihy->bhy", outer, self.W_outer)
        return torch.relu(x @ first) @ second / (code.sum(1) / 2).clamp(min=SMALLEST)[:, None, None]

    def lookup(self, x: Tensor, y: Tensor) -> Tensor:
        return torch.softmax(-(self._own_answers(x) - y[:, None]).square().sum((2, 3)) / SHARP, dim=1)

    def recall(self, entry: Tensor, x: Tensor) -> Tensor:
        return torch.einsum("bc,bcny->bny", entry, self._own_answers(x))

    def _own_answers(self, x: Tensor) -> Tensor:
        """(batch, C, points, d_y)"""
        return torch.relu(torch.einsum("bnx,cxh->bcnh", x, self.own_inner)) @ self.own_outer

    @torch.no_grad()
    def plant(self) -> None:
        inner, outer = self.task.teacher
        self.W_inner.copy_(inner)
        self.W_outer.copy_(outer)
        trained = self.pairs[: self.n_train]
        self.own_inner.copy_(inner[trained[:, 1] - self.n_outer])
        self.own_outer.copy_(outer[trained[:, 0]])
