"""Which cases the second fresh set is made of: every kind on a new family, and new kinds on the families that there were."""

from __future__ import annotations

from typing import NamedTuple

from kinds import (
    Planted,
    PlantedAverageCode,
    PlantedCompositional,
    PlantedEntangled,
    PlantedFeatureFallback,
    PlantedHalfBlind,
    PlantedLeftBehind,
    PlantedLookup,
    PlantedMemoryByCode,
    PlantedMiscarried,
    PlantedMistaken,
    PlantedMostlyExecution,
    PlantedMostlyInference,
    PlantedNearestSupport,
    PlantedNeverRead,
    PlantedNotCarried,
    PlantedRidgeFallback,
    PlantedRotated,
    PlantedScrambled,
    PlantedShrunken,
    PlantedTwoMemories,
    PlantedWrongPartner,
)
from labels import COMPOSITIONAL, FAILING, FRESH_FAILING, MIXED, NEW_FAILING, STRENGTHS, harmless

OLD_FAMILIES = ("teacher", "logic", "chain")


WEAK, MIDDLE, FULL = STRENGTHS["product"]
WRONG: tuple[tuple[type[Planted], tuple[float, ...]], ...] = (
    (PlantedNearestSupport, (WEAK, FULL)),
    (PlantedWrongPartner, (MIDDLE,)),
    (PlantedShrunken, (WEAK, FULL)),
    (PlantedAverageCode, (MIDDLE,)),
    (PlantedMistaken, (WEAK,)),
    (PlantedMostlyInference, (FULL,)),
    (PlantedNeverRead, (WEAK, FULL)),
    (PlantedLeftBehind, (MIDDLE,)),
    (PlantedNotCarried, (WEAK, FULL)),
    (PlantedMiscarried, (MIDDLE,)),
    (PlantedEntangled, (WEAK, FULL)),
    (PlantedHalfBlind, (MIDDLE, FULL)),
    (PlantedMostlyExecution, (FULL,)),
    (PlantedLookup, (WEAK, MIDDLE, FULL)),
    (PlantedTwoMemories, (FULL,)),
    (PlantedMemoryByCode, (MIDDLE,)),
    (PlantedRidgeFallback, (WEAK, MIDDLE, FULL)),
    (PlantedFeatureFallback, (WEAK, FULL)),
)
"""What fails on products, and at which strengths."""


class Planned(NamedTuple):
    """What a case is made of, but for how rough a rough one is."""

    kind: type[Planted]
    family: str
    strength: float
    seed: int
    explicit: bool
    expected: str
    rough: bool


def new_family() -> list[Planned]:
    """Every kind on products, in turn with and without an explicit code and rough or exact; but for `PlantedHalfExecuted`: the
    mean of several gates lets everything through alike, so that its answers are nearly linear in x, as those of ridge are."""
    failing = FAILING | MIXED | FRESH_FAILING | NEW_FAILING
    working = [(PlantedCompositional, 1.0), (PlantedCompositional, 1.0), (PlantedRotated, 1.0)]
    working += [(PlantedScrambled, strength) for strength in (0.5, 1.0)]
    slightly = (PlantedWrongPartner, PlantedNotCarried, PlantedEntangled, PlantedLookup)
    working += [(kind, harmless(kind, "product")) for kind in slightly]
    rows = [(kind, strength, COMPOSITIONAL) for kind, strength in working]
    rows += [(kind, strength, failing[kind]) for kind, strengths in WRONG for strength in strengths]
    return [
        Planned(kind, "product", strength, n // 3 % 6, n % 2 == 1, label, n // 2 % 2 == 1)
        for n, (kind, strength, label) in enumerate(rows)
    ]


def new_kinds() -> list[Planned]:
    """Every new kind once on each family that there was, at one strength after the other; and one that is harmless on each."""
    found = []
    for f, family in enumerate(OLD_FAMILIES):
        rows = [(kind, STRENGTHS[family][(k + f) % 3], label) for k, (kind, label) in enumerate(NEW_FAILING.items())]
        slight = (PlantedTwoMemories, PlantedMemoryByCode, PlantedFeatureFallback)[f]
        rows.append((slight, harmless(slight, family), COMPOSITIONAL))
        for k, (kind, strength, label) in enumerate(rows):
            found.append(Planned(kind, family, strength, (k + 2 * f) % 6, (k + f) % 2 == 1, label, (k // 2 + f) % 2 == 1))
    return found
