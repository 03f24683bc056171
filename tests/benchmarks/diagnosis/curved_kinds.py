"""The architectures of `curved_mechanisms`, one for each."""

from __future__ import annotations

from dataclasses import dataclass

import curved_mechanisms as curved
from kinds import Planted


@dataclass(frozen=True)
class PlantedHands(Planted):
    """`Hands`."""

    mechanism = curved.Hands


@dataclass(frozen=True)
class PlantedWrongHands(Planted):
    """`WrongHands`."""

    mechanism = curved.WrongHands


@dataclass(frozen=True)
class PlantedEntangledHands(Planted):
    """`EntangledHands`."""

    mechanism = curved.EntangledHands


@dataclass(frozen=True)
class PlantedProducts(Planted):
    """`Products`."""

    mechanism = curved.Products


@dataclass(frozen=True)
class PlantedWrongProducts(Planted):
    """`WrongProducts`."""

    mechanism = curved.WrongProducts


@dataclass(frozen=True)
class PlantedEntangledProducts(Planted):
    """`EntangledProducts`."""

    mechanism = curved.EntangledProducts


CURVED: tuple[type[Planted], ...] = (
    PlantedHands,
    PlantedWrongHands,
    PlantedEntangledHands,
    PlantedProducts,
    PlantedWrongProducts,
    PlantedEntangledProducts,
)


def expected(kind: type[Planted]) -> str:
    """The label that a kind's models are to get."""
    return curved.CURVED[kind.mechanism]  # type: ignore[index]
