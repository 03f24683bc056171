"""Ways of carrying a code that are not linear, for the blind set: what is written for a code, and its exact inverse.

A carrier turns a code (batch, M) into a message (batch, width) and back. ``encode`` may look at the examples' inputs;
``recode`` writes another code in the form that a message has. None knows what is trained and what is held out, but for the
table of pairs that `Hashed` has a word for, held-out ones included.
"""

from __future__ import annotations

from abc import abstractmethod

import torch
from fourth_mechanisms import projected
from knowledge import Knowledge
from pair_knowledge import PairKnowledge
from torch import Tensor, nn

from compolens.foundation.configs import DoesNotApply

SURE = 30.0
"""What sharpens the choice among words and categories."""


class Carrier(nn.Module):
    """The code as it is. Linear: what the others are compared with."""

    def __init__(self, knowledge: Knowledge) -> None:
        super().__init__()
        self.n = knowledge.n_parts

    @classmethod
    def width_of(cls, knowledge: Knowledge) -> int:
        """Coordinates of a message."""
        return knowledge.n_parts

    def encode(self, code: Tensor, x: Tensor, knowledge: Knowledge) -> Tensor:
        """The message (batch, width) for a code (batch, M), with examples at x (batch, n, d_x)."""
        return self.recode(code, code)

    def recode(self, message: Tensor, code: Tensor) -> Tensor:
        """The message that says this code, and else what that message says."""
        return code

    def decode(self, message: Tensor) -> Tensor:
        """The code that a message says."""
        return message


class Aslant(Carrier):
    """What is written elementwise of the code after a fixed rotation, so that no coordinate belongs to one part: of a
    category, which is there or not, every elementwise function is linear."""

    times = 1
    """Coordinates for every one of the code."""

    def __init__(self, knowledge: Knowledge) -> None:
        super().__init__(knowledge)
        self.turn = nn.Parameter(torch.linalg.qr(torch.randn(self.n, self.n)).Q)

    @classmethod
    def width_of(cls, knowledge: Knowledge) -> int:
        return cls.times * knowledge.n_parts

    def recode(self, message: Tensor, code: Tensor) -> Tensor:
        return self.written(code @ self.turn)

    def decode(self, message: Tensor) -> Tensor:
        return self.undone(message) @ self.turn.T

    @abstractmethod
    def written(self, turned: Tensor) -> Tensor:
        """(batch, times * M) for (batch, M)."""

    @abstractmethod
    def undone(self, message: Tensor) -> Tensor:
        """The inverse."""


class Signs(Aslant):
    """Sign and magnitude: the code, turned by a fixed rotation; every coordinate's sign stands apart from its size."""

    times = 2

    def written(self, turned: Tensor) -> Tensor:
        return torch.cat([torch.where(turned < 0, -1.0, 1.0).to(turned), turned.abs()], dim=1)

    def undone(self, message: Tensor) -> Tensor:
        sign, size = message.tensor_split(2, dim=1)
        return sign * size


class Population(Aslant):
    """A population of tuned units for every coordinate of the code, turned by a fixed rotation: a unit answers most where the
    coordinate has the unit's favourite value."""

    times, low, high, spread = 6, -1.25, 1.25, 0.2

    def written(self, turned: Tensor) -> Tensor:
        favourite = torch.linspace(self.low, self.high, self.times).to(turned)
        return torch.exp(-(turned[..., None] - favourite).square() / (2 * self.spread**2)).flatten(1)

    def undone(self, message: Tensor) -> Tensor:
        """By the ratio of neighbouring units, whose logarithm is linear in the value; the stronger both, the more it
        weighs."""
        units = message.unflatten(1, (self.n, self.times)).clamp(min=1e-5)
        favourite = torch.linspace(self.low, self.high, self.times).to(message)
        between, gap = (favourite[1:] + favourite[:-1]) / 2, favourite[1] - favourite[0]
        told = between + self.spread**2 / gap * (units[..., 1:].log() - units[..., :-1].log())
        weight = (units[..., 1:] * units[..., :-1]).square()
        return (told * weight).sum(-1) / weight.sum(-1)


class Gray(Aslant):
    """Quantised: for every coordinate of the code, turned by a fixed rotation, three bits of the Gray code of its level, and
    what is left within the level, folded so that it is continuous. The bits of the level are products of Gray bits."""

    times, low, step = 4, -1.0, 0.25

    def written(self, turned: Tensor) -> Tensor:
        place = (turned - self.low) / self.step
        level = place.detach().floor().clamp(0, 7)
        within, number = place - level, level.long()
        bits = [1 - 2 * ((number ^ (number >> 1)) >> k & 1).to(turned) for k in (2, 1, 0)]
        return torch.cat([*bits, torch.where(number % 2 == 1, 1 - within, within)], dim=1)

    def undone(self, message: Tensor) -> Tensor:
        high, middle, low, folded = message.tensor_split(4, dim=1)
        binary = (high, high * middle, high * middle * low)
        level = sum(2 ** (2 - k) * (1 - bit) / 2 for k, bit in enumerate(binary))
        return self.low + self.step * (level + 0.5 + binary[2] * (folded - 0.5))


class Keyed(Carrier):
    """Locked by a key: the examples' inputs draw a sign for every part, whatever their answers; written are the signs, and
    every part's value times its own. No coordinate tells anything of the code without another one."""

    def __init__(self, knowledge: Knowledge) -> None:
        super().__init__(knowledge)
        self.W_key = nn.Parameter(torch.randn(knowledge.d_x, self.n))

    @classmethod
    def width_of(cls, knowledge: Knowledge) -> int:
        return 2 * knowledge.n_parts

    def encode(self, code: Tensor, x: Tensor, knowledge: Knowledge) -> Tensor:
        key = torch.where(projected(x, knowledge, self.W_key) < 0, -1.0, 1.0).to(code)
        return torch.cat([key, key * code], dim=1)

    def recode(self, message: Tensor, code: Tensor) -> Tensor:
        key = message[:, : self.n]
        return torch.cat([key, key * code], dim=1)

    def decode(self, message: Tensor) -> Tensor:
        key, locked = message.tensor_split(2, dim=1)
        return key * locked


class Gated(Carrier):
    """Two slots, and a gate that says in which of them the code is; the other one holds a decoy, a pair of parts. Gate and
    decoy are drawn by the examples' inputs, whatever their answers."""

    def __init__(self, knowledge: Knowledge) -> None:
        super().__init__(knowledge)
        self.W_gate = nn.Parameter(torch.randn(knowledge.d_x, 1))
        self.W_decoy = nn.Parameter(torch.randn(knowledge.d_x, len(knowledge.held)))

    @classmethod
    def width_of(cls, knowledge: Knowledge) -> int:
        return 2 * knowledge.n_parts + 1

    def encode(self, code: Tensor, x: Tensor, knowledge: Knowledge) -> Tensor:
        gate = (projected(x, knowledge, self.W_gate) > 0).to(code)
        which = projected(x, knowledge, self.W_decoy).argmax(1)
        decoy = nn.functional.one_hot(knowledge.held[which], self.n).sum(1).to(code) * code.sum(1, keepdim=True) / 2
        return self._placed(code, decoy, gate)

    def recode(self, message: Tensor, code: Tensor) -> Tensor:
        gate = message[:, -1:]
        first, second = message[:, :-1].tensor_split(2, dim=1)
        return self._placed(code, (1 - gate) * first + gate * second, gate)

    def _placed(self, code: Tensor, decoy: Tensor, gate: Tensor) -> Tensor:
        return torch.cat([gate * code + (1 - gate) * decoy, (1 - gate) * code + gate * decoy, gate], dim=1)

    def decode(self, message: Tensor) -> Tensor:
        gate = message[:, -1:]
        first, second = message[:, :-1].tensor_split(2, dim=1)
        return gate * first + (1 - gate) * second


class Hashed(Carrier):
    """A word for every pair of parts, those held out among them: random directions that have nothing in common where the
    pairs have; and the code's size beside it. Only for codes that are categories."""

    letters = 32
    pairs: Tensor

    def __init__(self, knowledge: Knowledge) -> None:
        super().__init__(knowledge)
        if not hasattr(knowledge, "pairs"):
            raise DoesNotApply("words are for codes that are categories; the teacher's have sizes")
        which = nn.functional.one_hot(knowledge.pairs, self.n).sum(1).float()  # type: ignore[arg-type]
        self.register_buffer("pairs", which, persistent=False)
        self.words = nn.Parameter(nn.functional.normalize(torch.randn(len(which), self.letters), dim=1))

    @classmethod
    def width_of(cls, knowledge: Knowledge) -> int:
        return cls.letters + 1

    def recode(self, message: Tensor, code: Tensor) -> Tensor:
        size = code.sum(1, keepdim=True) / 2
        likeness = (code / size.clamp(min=0.1)) @ self.pairs.T
        return torch.cat([torch.softmax(SURE * likeness, dim=1) @ self.words, size], dim=1)

    def decode(self, message: Tensor) -> Tensor:
        return message[:, -1:] * (torch.softmax(2 * SURE * message[:, :-1] @ self.words.T, dim=1) @ self.pairs)


class Parity(Carrier):
    """In bits: those of the inner operation's number, and those of the outer one's, each times the inner one's bit of the same
    rank. Nothing says anything of the outer operation but together with the inner one. Only for pairs of operations."""

    bits: Tensor

    def __init__(self, knowledge: Knowledge) -> None:
        super().__init__(knowledge)
        if not isinstance(knowledge, PairKnowledge):
            raise DoesNotApply("bits are for pairs of operations")
        self.n_outer = knowledge.n_outer
        number = torch.arange(8)
        self.register_buffer("bits", torch.stack([1.0 - 2 * (number >> k & 1) for k in range(3)], 1), persistent=False)

    @classmethod
    def width_of(cls, knowledge: Knowledge) -> int:
        return 7

    def recode(self, message: Tensor, code: Tensor) -> Tensor:
        outer, inner = (torch.softmax(SURE * half, dim=1) @ self.bits[: half.shape[1]] for half in self._halves(code))
        return torch.cat([inner, inner * outer, code.sum(1, keepdim=True) / 2], dim=1)

    def _halves(self, code: Tensor) -> tuple[Tensor, Tensor]:
        outer, inner = code.tensor_split([self.n_outer], dim=1)
        return outer, inner

    def decode(self, message: Tensor) -> Tensor:
        inner, mixed, size = message.split([3, 3, 1], dim=1)
        widths = (self.n_outer, self.n - self.n_outer)
        found = (torch.softmax(SURE * b @ self.bits[:k].T, dim=1) for b, k in zip((inner * mixed, inner), widths, strict=True))
        return size * torch.cat(list(found), dim=1)


CARRIERS: dict[str, type[Carrier]] = {
    "plain": Carrier,
    "signs": Signs,
    "population": Population,
    "gray": Gray,
    "keyed": Keyed,
    "gated": Gated,
    "hashed": Hashed,
    "parity": Parity,
}
