"""How a fresh set is planned from its tables: which kinds, how strongly, in which form."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from kinds import Planted
from labels import COMPOSITIONAL, EVERY_FAILING, STRENGTHS, harmless

Kind = type[Planted]


class Planned(NamedTuple):
    """What a case is made of, but for how rough a rough one is."""

    kind: Kind
    family: str
    strength: float
    seed: int
    explicit: bool
    expected: str
    rough: bool


class Row(NamedTuple):
    """A kind on some family, at a strength at which the label is this one."""

    kind: Kind
    strength: float
    expected: str


class Turns(NamedTuple):
    """How forms change from one row of a family to the next, and from one family to the next: by how many seeds, and after how
    many of them exact ones and rough ones change places."""

    seeds: tuple[int, int]
    rough: tuple[int, int]


def working(*kinds: tuple[Kind, float]) -> list[Row]:
    """Kinds that answer held-out compositions, at any strength."""
    return [Row(kind, strength, COMPOSITIONAL) for kind, strength in kinds]


def slightly(family: str, kinds: Iterable[Kind]) -> list[Row]:
    """Kinds of failure, so weak that they do not count."""
    return [Row(kind, harmless(kind, family), COMPOSITIONAL) for kind in kinds]


def failing(*kinds: tuple[Kind, float]) -> list[Row]:
    """Kinds of failure, strong enough to count."""
    return [Row(kind, strength, EVERY_FAILING[kind]) for kind, strength in kinds]


def in_turn(kinds: Iterable[Kind], family: str, first: int) -> list[Row]:
    """Kinds of failure, at one strength of the family's after the other."""
    return failing(*((kind, STRENGTHS[family][(first + k) % 3]) for k, kind in enumerate(kinds)))


def on_new_family(family: str, rows: Iterable[Row]) -> list[Planned]:
    """In turn with and without an explicit code and rough or exact."""
    return [
        Planned(kind, family, strength, n // 3 % 6, n % 2 == 1, label, n // 2 % 2 == 1)
        for n, (kind, strength, label) in enumerate(rows)
    ]


def on_old_families(rows: Mapping[str, Iterable[Row]], turns: Turns) -> list[Planned]:
    """The rows of every family, in forms that change as `turns` says."""
    found = []
    for f, (family, own) in enumerate(rows.items()):
        for k, (kind, strength, label) in enumerate(own):
            seed = (turns.seeds[0] * k + turns.seeds[1] * f) % 6
            rough = (k // turns.rough[0] + f // turns.rough[1]) % 2 == 1
            found.append(Planned(kind, family, strength, seed, (k + f) % 2 == 1, label, rough))
    return found
