"""What a planted model's weights know of a task family: its parts, how to infer which are at work, how to execute them.

One class per family, with the same methods, in files of their own: `TeacherKnowledge` for the modular hyperteacher,
`LogicKnowledge` for fuzzy logic, `ChainKnowledge`, `ProductKnowledge`, `MaxoutKnowledge` and `PhaseKnowledge` for pairs of
operations.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from compolens.foundation.configs import DoesNotApply

TIE = 0.01
"""What a place in the order among equally near training compositions counts: all of them together less than one part."""
SHARP = 1e-3
"""Temperature of the choice among functions: their squared errors differ by much more."""


class Knowledge(nn.Module):
    """Parts of a family, as parameters: random as built, the task's own after `plant`.

    Which compositions are held out is structure, hence the same in the untrained control. Buffers: trained (C, M) 0/1, the
    parts of every training composition; held (H, 2), the held-out pairs; change (H, M), what turns a held-out pair into a
    trained one (its second part makes room for another, where one is trained beside the first; else the other way round);
    spread (H, M), what gives that part's share to all that are trained beside the other one alike; confused (H, M), what turns
    a held-out pair into another held-out one, with which it shares no part; rank (C,), a fixed order among training
    compositions.
    """

    centre: ClassVar[float] = 0.0
    """The mean of every input coordinate."""
    input_size: ClassVar[float] = 1.0
    """Standard deviation of an input coordinate, about."""
    answer_size: ClassVar[float] = 1.0
    """Standard deviation of an answer within an episode, about."""
    task: Any
    trained: Tensor
    held: Tensor
    change: Tensor
    spread: Tensor
    confused: Tensor
    rank: Tensor

    def __init__(self, train: list[tuple[int, ...]], held: list[tuple[int, ...]], n_parts: int, d_x: int, d_y: int) -> None:
        super().__init__()
        self.d_x, self.d_y, self.n_parts = d_x, d_y, n_parts
        trained = torch.zeros(len(train), n_parts)
        for row, parts in zip(trained, train, strict=True):
            row[list(parts)] = 1
        change, spread, confused = torch.zeros(3, len(held), n_parts)
        for h, pair in enumerate(held):
            kept, lost, partners = _recombined(pair, set(train))
            gained = partners[(kept + lost) % len(partners)]
            assert tuple(sorted((kept, gained))) in train
            change[h, gained] += 1
            spread[h, partners] += 1 / len(partners)
            for row in (change[h], spread[h]):
                row[lost] -= 1
            confused[h, list(_other(h, held))] += 1
            confused[h, list(pair)] -= 1
        rank = torch.randperm(len(train), generator=torch.Generator().manual_seed(0))  # the weights' stream stays as it is
        buffers = {"trained": trained, "held": torch.tensor(held), "change": change, "spread": spread}
        for name, value in (buffers | {"confused": confused, "rank": rank}).items():
            self.register_buffer(name, value, persistent=False)

    def together(self, code: Tensor) -> Tensor:
        """(batch, H): how far both parts of each held-out pair are at work, as the product of their entries."""
        return code[:, self.held[:, 0]] * code[:, self.held[:, 1]]

    def nearest(self, code: Tensor) -> Tensor:
        """(batch, entries): the training composition whose codes come nearest to this one (batch, M), in its coordinates; the
        first by `rank` of those that are equally near. Here for codes that are categories."""
        distance = (code[:, None] - self.trained).square().sum(-1)
        return torch.softmax(-(distance + TIE * self.rank) / SHARP, dim=1)

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
    def explain(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """(batch, C, entries), every training composition as it explains the examples best, in coordinates of its own; and its
        squared error (batch, C) on them."""

    @abstractmethod
    def lookup(self, x: Tensor, y: Tensor) -> Tensor:
        """(batch, entries): the training composition that explains the examples best, as in `explain`."""

    @abstractmethod
    def recall(self, entry: Tensor, x: Tensor) -> Tensor:
        """(batch, points, d_y): the answers of what `lookup` found, by networks stored per training composition."""

    @abstractmethod
    def plant(self) -> None:
        """Set every parameter to the task's own."""


def _recombined(pair: tuple[int, ...], train: set[tuple[int, ...]]) -> tuple[int, int, list[int]]:
    """(kept, lost, partners): the part of a held-out pair that is kept, and all that are trained beside it."""
    for kept, lost in (pair, pair[::-1]):
        partners = [p for c in train if len(c) == 2 and kept in c for p in c if p != kept]
        if partners:
            return kept, lost, sorted(partners)
    raise DoesNotApply(f"neither part of the held-out pair {pair} is trained in a pair; choose another split_seed")


def _other(h: int, held: list[tuple[int, ...]]) -> tuple[int, ...]:
    """The next held-out pair after number h, in a circle, with which it shares no part."""
    for pair in (*held[h + 1 :], *held[:h]):
        if not set(pair) & set(held[h]):
            return pair
    raise DoesNotApply(f"every held-out pair shares a part with {held[h]}; choose another split_seed")


def normal(*shape: int) -> nn.Parameter:
    return nn.Parameter(torch.randn(*shape) / math.sqrt(shape[-2]))
