"""Further ways of carrying a code, for the second blind set: what is written for a code, and its exact inverse.

As in `blind_codes`, none knows what is trained and what is held out. Those that stand for a pair of categories (`Clock`,
`OuterProduct`, `Superposed`) name held-out pairs by the same formula as training ones.
"""

from __future__ import annotations

import math
from abc import abstractmethod

import torch
from blind_codes import CARRIERS as OLDER
from blind_codes import SURE, Aslant, Carrier
from fourth_mechanisms import projected
from knowledge import Knowledge
from torch import Tensor, nn
from torch.nn.functional import normalize, one_hot

from compolens.foundation.configs import DoesNotApply

TINY = 1e-6


class Grid(Aslant):
    """Grid cells: for every coordinate of the code, turned by a fixed rotation, its phases on two circles that it goes round
    many times; only the difference of the two phases says in which round it is."""

    times, rounds, length = 4, (5, 6), 4.0

    def written(self, turned: Tensor) -> Tensor:
        phases = [2 * math.pi * k / self.length * turned for k in self.rounds]
        return torch.cat([wave for phase in phases for wave in (phase.cos(), phase.sin())], dim=1)

    def undone(self, message: Tensor) -> Tensor:
        slow_cos, slow_sin, fast_cos, fast_sin = message.tensor_split(4, dim=1)
        unit = 2 * math.pi / self.length
        fast = torch.atan2(fast_sin, fast_cos)
        coarse = _wrapped(fast - torch.atan2(slow_sin, slow_cos)) / unit
        speed = self.rounds[1] * unit
        return coarse + _wrapped(fast - speed * coarse) / speed


def _wrapped(phase: Tensor) -> Tensor:
    return torch.remainder(phase + math.pi, 2 * math.pi) - math.pi


class Radius(Carrier):
    """Magnitudes: every part's value is the length of a vector in a plane of its own, whose direction the examples' inputs
    draw, whatever their answers. No projection of it says anything about the value on average."""

    def __init__(self, knowledge: Knowledge) -> None:
        super().__init__(knowledge)
        self.W_angle = nn.Parameter(2 * torch.randn(knowledge.d_x, self.n) / math.sqrt(knowledge.d_x))

    @classmethod
    def width_of(cls, knowledge: Knowledge) -> int:
        return 2 * knowledge.n_parts

    def encode(self, code: Tensor, x: Tensor, knowledge: Knowledge) -> Tensor:
        angle = projected(x, knowledge, self.W_angle)
        return torch.cat([code * angle.cos(), code * angle.sin()], dim=1)

    def recode(self, message: Tensor, code: Tensor) -> Tensor:
        size = self.decode(message)
        there = size > 0.01
        along, across = (
            torch.where(there, part / size.clamp(min=TINY), float(first))
            for part, first in zip(message.tensor_split(2, dim=1), (1, 0), strict=True)
        )
        return torch.cat([code * along, code * across], dim=1)

    def decode(self, message: Tensor) -> Tensor:
        along, across = message.tensor_split(2, dim=1)
        return torch.sqrt(along.square() + across.square() + TINY**2)


class Rolled(Carrier):
    """Slots: the code stands at one of four places of a ring, each turned on by a quarter, and beside it stands which. The
    examples' inputs draw the place; so a slot belongs to a different part in every episode."""

    places = 4

    def __init__(self, knowledge: Knowledge) -> None:
        super().__init__(knowledge)
        self.W_place = nn.Parameter(torch.randn(knowledge.d_x, self.places))

    @classmethod
    def width_of(cls, knowledge: Knowledge) -> int:
        return knowledge.n_parts + cls.places

    def encode(self, code: Tensor, x: Tensor, knowledge: Knowledge) -> Tensor:
        place = one_hot(projected(x, knowledge, self.W_place).argmax(1), self.places).to(code)
        return torch.cat([self._turned(code, place, 1), place], dim=1)

    def _turned(self, code: Tensor, place: Tensor, way: int) -> Tensor:
        step = way * max(1, self.n // self.places)
        rolled = torch.stack([code.roll(k * step, 1) for k in range(self.places)], dim=1)
        return torch.einsum("bk,bkm->bm", place, rolled)

    def recode(self, message: Tensor, code: Tensor) -> Tensor:
        place = message[:, self.n :]
        return torch.cat([self._turned(code, place, 1), place], dim=1)

    def decode(self, message: Tensor) -> Tensor:
        return self._turned(message[:, : self.n], message[:, self.n :], -1)


class Scaled(Carrier):
    """Gains: every part's value times a gain that the examples' inputs draw, whatever their answers, and the gains'
    logarithms beside: a value says something only relative to its gain, as before a norm."""

    spread = 0.8

    def __init__(self, knowledge: Knowledge) -> None:
        super().__init__(knowledge)
        self.W_gain = nn.Parameter(normalize(torch.randn(knowledge.d_x, self.n), dim=0))

    @classmethod
    def width_of(cls, knowledge: Knowledge) -> int:
        return 2 * knowledge.n_parts

    def encode(self, code: Tensor, x: Tensor, knowledge: Knowledge) -> Tensor:
        gain = self.spread * projected(x, knowledge, self.W_gain).clamp(-2.5, 2.5)
        return torch.cat([code * gain.exp(), gain], dim=1)

    def recode(self, message: Tensor, code: Tensor) -> Tensor:
        gain = message[:, self.n :]
        return torch.cat([code * gain.exp(), gain], dim=1)

    def decode(self, message: Tensor) -> Tensor:
        scaled, gain = message.tensor_split(2, dim=1)
        return scaled * (-gain).exp()


class Table(Carrier):
    """A word for every pair of categories, made from the two by a formula, and the code's size beside it. What is read back
    is the pair whose word is nearest. Only for codes that are categories."""

    letters = 4
    sharp = 60.0
    pairs: Tensor
    numbers: Tensor

    def __init__(self, knowledge: Knowledge) -> None:
        super().__init__(knowledge)
        if not hasattr(knowledge, "pairs"):
            raise DoesNotApply("words are for codes that are categories; the teacher's have sizes")
        pairs: Tensor = knowledge.pairs  # type: ignore[assignment]
        self.register_buffer("pairs", one_hot(pairs, self.n).sum(1).float(), persistent=False)
        self.register_buffer("numbers", pairs - pairs.amin(0), persistent=False)

    @classmethod
    def width_of(cls, knowledge: Knowledge) -> int:
        return cls.letters + 1

    @abstractmethod
    def words(self) -> Tensor:
        """(pairs, letters)"""

    def recode(self, message: Tensor, code: Tensor) -> Tensor:
        size = code.sum(1, keepdim=True) / 2
        likeness = (code / size.clamp(min=0.1)) @ self.pairs.T
        return torch.cat([torch.softmax(SURE * likeness, dim=1) @ self.words(), size], dim=1)

    def decode(self, message: Tensor) -> Tensor:
        distance = (message[:, None, :-1] - self.words()).square().sum(2)
        return message[:, -1:] * (torch.softmax(-self.sharp * distance, dim=1) @ self.pairs)


class Clock(Table):
    """A clock: the first category is an angle, the second another one; written are cosine and sine of their sum and of their
    difference, as networks do that have learned to add in a circle. Either category takes both hands to be told."""

    sharp = 200.0

    def words(self) -> Tensor:
        angle = math.pi * (self.numbers + 0.5) / (self.numbers.amax(0) + 1)
        both = torch.stack([angle.sum(1), angle[:, 0] - angle[:, 1]], dim=1)
        return torch.cat([both.cos(), both.sin()], dim=1).to(self.pairs)


class OuterProduct(Table):
    """A tensor product: a random vector for the first category, one for the second, and written are all products of their
    entries."""

    side = 5
    letters = side**2

    def __init__(self, knowledge: Knowledge) -> None:
        super().__init__(knowledge)
        sizes = [int(n) + 1 for n in self.numbers.amax(0)]
        self.first, self.second = (nn.Parameter(normalize(torch.randn(n, self.side), dim=1)) for n in sizes)

    def words(self) -> Tensor:
        first, second = self.first[self.numbers[:, 0]], self.second[self.numbers[:, 1]]
        return (first[:, :, None] * second[:, None]).flatten(1)


class Superposed(Table):
    """Superposition: more parts than dimensions, every part a random direction, and written is the sum of the two. The
    directions overlap, and what is read back is the pair whose sum is nearest."""

    letters = 7
    sharp = 40.0

    def __init__(self, knowledge: Knowledge) -> None:
        super().__init__(knowledge)
        self.directions = nn.Parameter(normalize(torch.randn(self.n, self.letters), dim=1))

    def words(self) -> Tensor:
        return self.pairs @ self.directions


NEWER: dict[str, type[Carrier]] = {
    "grid": Grid,
    "radius": Radius,
    "rolled": Rolled,
    "scaled": Scaled,
    "clock": Clock,
    "tensor": OuterProduct,
    "superposed": Superposed,
}
CARRIERS: dict[str, type[Carrier]] = OLDER | NEWER
CATEGORIES = ("hashed", "parity", "clock", "tensor", "superposed")
"""Carriers that read back one pair, whole: for what is done to a code by degrees they are no use."""
