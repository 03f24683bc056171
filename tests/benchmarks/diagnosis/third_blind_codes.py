"""Further ways of carrying a code, for the third blind set: what is written for a code, and its exact inverse.

As in `blind_codes`, none knows what is trained and what is held out.
"""

from __future__ import annotations

import torch
from blind_codes import Carrier
from fourth_mechanisms import projected
from knowledge import Knowledge
from second_codes import CARRIERS as OLDER
from second_codes import CATEGORIES as OLDER_CATEGORIES
from second_codes import Table
from torch import Tensor, nn
from torch.nn.functional import normalize, one_hot


class Phases(Carrier):
    """Relative phase: every coordinate of the code, turned by a fixed rotation, is by how much a second oscillator is ahead of
    a first one, whose phase the examples' inputs draw, whatever their answers. Neither oscillator alone says anything."""

    speed = 1.8
    """Radians that a coordinate of 1 is ahead: below half a turn for every code of an episode."""

    def __init__(self, knowledge: Knowledge) -> None:
        super().__init__(knowledge)
        self.turn = nn.Parameter(torch.linalg.qr(torch.randn(self.n, self.n)).Q)
        self.W_phase = nn.Parameter(2 * torch.randn(knowledge.d_x, self.n))

    @classmethod
    def width_of(cls, knowledge: Knowledge) -> int:
        return 4 * knowledge.n_parts

    def encode(self, code: Tensor, x: Tensor, knowledge: Knowledge) -> Tensor:
        return self._written(projected(x, knowledge, self.W_phase), code)

    def _written(self, first: Tensor, code: Tensor) -> Tensor:
        second = first + self.speed * (code @ self.turn)
        return torch.cat([first.cos(), first.sin(), second.cos(), second.sin()], dim=1)

    def recode(self, message: Tensor, code: Tensor) -> Tensor:
        cos, sin, _, _ = message.tensor_split(4, dim=1)
        return self._written(torch.atan2(sin, cos), code)

    def decode(self, message: Tensor) -> Tensor:
        cos, sin, ahead_cos, ahead_sin = message.tensor_split(4, dim=1)
        ahead = torch.atan2(cos * ahead_sin - sin * ahead_cos, cos * ahead_cos + sin * ahead_sin)
        return ahead / self.speed @ self.turn.T


class Reflected(Carrier):
    """Mirrored: every two neighbouring coordinates of the code are mirrored at a line that the examples' inputs draw, whatever
    their answers, and beside them stands its normal. Mirrored once more at the same line, they are the code's."""

    def __init__(self, knowledge: Knowledge) -> None:
        super().__init__(knowledge)
        self.W_line = nn.Parameter(torch.randn(knowledge.d_x, self.n))

    @classmethod
    def width_of(cls, knowledge: Knowledge) -> int:
        return 2 * knowledge.n_parts

    def encode(self, code: Tensor, x: Tensor, knowledge: Knowledge) -> Tensor:
        line = normalize(projected(x, knowledge, self.W_line).unflatten(1, (-1, 2)), dim=2).flatten(1)
        return torch.cat([mirrored(code, line), line], dim=1)

    def recode(self, message: Tensor, code: Tensor) -> Tensor:
        line = message[:, self.n :]
        return torch.cat([mirrored(code, line), line], dim=1)

    def decode(self, message: Tensor) -> Tensor:
        return mirrored(*message.tensor_split(2, dim=1))


def mirrored(code: Tensor, line: Tensor) -> Tensor:
    """The code (batch, M), every two coordinates mirrored at the line whose normal stands at the same place (batch, M)."""
    two, normal = code.unflatten(1, (-1, 2)), normalize(line.unflatten(1, (-1, 2)), dim=2)
    return (two - 2 * (two * normal).sum(2, keepdim=True) * normal).flatten(1)


class Median(Carrier):
    """Five copies, of which two are spoiled in every episode: the inputs draw which, and the pair of parts that both hold
    instead. What is read is the median of the five, coordinate by coordinate."""

    copies, spoiled = 5, 2

    def __init__(self, knowledge: Knowledge) -> None:
        super().__init__(knowledge)
        self.W_which = nn.Parameter(torch.randn(knowledge.d_x, self.copies))
        self.W_decoy = nn.Parameter(torch.randn(knowledge.d_x, len(knowledge.held)))

    @classmethod
    def width_of(cls, knowledge: Knowledge) -> int:
        return cls.copies * knowledge.n_parts

    def encode(self, code: Tensor, x: Tensor, knowledge: Knowledge) -> Tensor:
        drawn = knowledge.held[projected(x, knowledge, self.W_decoy).argmax(1)]
        decoy = one_hot(drawn, self.n).sum(1).to(code) * code.sum(1, keepdim=True) / 2
        return self._placed(code, decoy, projected(x, knowledge, self.W_which))

    def _placed(self, code: Tensor, decoy: Tensor, drive: Tensor) -> Tensor:
        """Copies of which those with the largest drive (batch, copies) are spoiled."""
        spoiled = torch.zeros_like(drive).scatter(1, drive.topk(self.spoiled, dim=1).indices, 1.0)[..., None]
        return (spoiled * decoy[:, None] + (1 - spoiled) * code[:, None]).flatten(1)

    def recode(self, message: Tensor, code: Tensor) -> Tensor:
        held = message.unflatten(1, (self.copies, self.n))
        far = (held - held.median(1, keepdim=True).values).norm(dim=2)
        return self._placed(code, held[torch.arange(len(held)), far.argmax(1)], far)

    def decode(self, message: Tensor) -> Tensor:
        return message.unflatten(1, (self.copies, self.n)).median(1).values


class Convolved(Table):
    """A holographic code: a random vector for the first category, one for the second, and written is their circular
    convolution."""

    letters = 16

    def __init__(self, knowledge: Knowledge) -> None:
        super().__init__(knowledge)
        sizes = [int(n) + 1 for n in self.numbers.amax(0)]
        self.first, self.second = (nn.Parameter(normalize(torch.randn(n, self.letters), dim=1)) for n in sizes)

    def words(self) -> Tensor:
        first, second = torch.fft.rfft(self.first[self.numbers[:, 0]]), torch.fft.rfft(self.second[self.numbers[:, 1]])
        return torch.fft.irfft(first * second, n=self.letters)


class Rectified(Table):
    """Rectified features: random linear features of the two parts, cut off below zero, as a hidden layer leaves them; most are
    silent."""

    letters, threshold = 18, 0.6

    def __init__(self, knowledge: Knowledge) -> None:
        super().__init__(knowledge)
        self.directions = nn.Parameter(torch.randn(self.n, self.letters))

    def words(self) -> Tensor:
        return torch.relu(self.pairs @ self.directions - self.threshold)


class Polar(Table):
    """Norm and direction: the first category is a direction, the second one is how long the vector is."""

    letters, sharp = 6, 2000.0
    short, long = 0.5, 2.0

    def __init__(self, knowledge: Knowledge) -> None:
        super().__init__(knowledge)
        n = int(self.numbers[:, 0].amax()) + 1
        self.directions = nn.Parameter(normalize(torch.randn(n, self.letters), dim=1))

    def words(self) -> Tensor:
        far = self.numbers[:, 1] / self.numbers[:, 1].amax().clamp(min=1)
        length = self.short + (self.long - self.short) * far
        return length[:, None] * self.directions[self.numbers[:, 0]]


NEWER: dict[str, type[Carrier]] = {
    "phases": Phases,
    "reflected": Reflected,
    "median": Median,
    "convolved": Convolved,
    "rectified": Rectified,
    "polar": Polar,
}
CARRIERS: dict[str, type[Carrier]] = OLDER | NEWER
CATEGORIES = (*OLDER_CATEGORIES, "convolved", "rectified", "polar")
"""Carriers that read back one pair, whole: for what is done to a code by degrees they are no use."""
