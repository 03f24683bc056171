"""Codes that are not linear, right and broken: none stores a training composition, and none is read by a sum of parts.

They were made after others like them had been called memorised, so they are regression tests of rules, and no fresh set.
"""

from __future__ import annotations

import torch
from mechanisms import Mechanism
from torch import Tensor

TURNS = 5.0
"""Radians that a part's value of 1 turns a hand by: below a full turn, so that what it shows has one inverse."""


def hands(code: Tensor) -> Tensor:
    """(batch, M) -> (batch, 2 M): every part's value as the direction in which a hand of its own points."""
    return torch.cat([(TURNS * code).cos(), (TURNS * code).sin()], dim=-1)


def told(hands: Tensor) -> Tensor:
    """The inverse, for values from -0.1 on."""
    across, along = hands.tensor_split(2, dim=-1)
    return (torch.atan2(along, across) + 0.1 * TURNS).remainder(2 * torch.pi) / TURNS - 0.1


class Hands(Mechanism):
    """Expected: compositional. Every part of the code is the direction of a hand."""

    @property
    def width(self) -> int:
        return 2 * self.knowledge.n_parts

    def write(self, x: Tensor, y: Tensor) -> Tensor:
        return hands(self.knowledge.infer(x, y))

    def read(self, message: Tensor, x: Tensor) -> Tensor:
        return self.knowledge.execute(told(message), x)


class WrongHands(Hands):
    """Expected: fails to infer. The hands of a code with a wrong partner."""

    def write(self, x: Tensor, y: Tensor) -> Tensor:
        return hands(self._wrong_partner(self.knowledge.infer(x, y), self.strength))


class EntangledHands(Hands):
    """Expected: cannot execute. What the hands tell is right, and parts that never met disturb one another."""

    def read(self, message: Tensor, x: Tensor) -> Tensor:
        return self.knowledge.execute_entangled(told(message), x, self.strength)


def products(code: Tensor) -> Tensor:
    """(batch, M) -> (batch, M * M): all products of two parts' values, squares among them."""
    return (code[..., None] * code[..., None, :]).flatten(-2)


def roots(message: Tensor) -> Tensor:
    """The inverse for parts that are not negative: roots of the squares."""
    m = round(message.shape[-1] ** 0.5)
    return message.unflatten(-1, (m, m)).diagonal(dim1=-2, dim2=-1).clamp(min=0).sqrt()


class Products(Mechanism):
    """Expected: compositional. Written are all products of two parts' values; the executor takes the squares' roots."""

    @property
    def width(self) -> int:
        return self.knowledge.n_parts**2

    def write(self, x: Tensor, y: Tensor) -> Tensor:
        return products(self.knowledge.infer(x, y))

    def read(self, message: Tensor, x: Tensor) -> Tensor:
        return self.knowledge.execute(roots(message), x)


class WrongProducts(Products):
    """Expected: fails to infer. The products of a code with a wrong partner."""

    def write(self, x: Tensor, y: Tensor) -> Tensor:
        return products(self._wrong_partner(self.knowledge.infer(x, y), self.strength))


class EntangledProducts(Products):
    """Expected: cannot execute. The products are right, and parts that never met disturb one another."""

    def read(self, message: Tensor, x: Tensor) -> Tensor:
        return self.knowledge.execute_entangled(roots(message), x, self.strength)


CURVED: dict[type[Mechanism], str] = {
    Hands: "compositional",
    WrongHands: "fails to infer",
    EntangledHands: "cannot execute",
    Products: "compositional",
    WrongProducts: "fails to infer",
    EntangledProducts: "cannot execute",
}
"""Mechanism -> the label that its models are to get."""
