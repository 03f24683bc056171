"""Which cases the third fresh set is made of: every kind on maxouts, and its own kinds on the families that there were.

It was planned without knowing the rules of the diagnosis, and no case of it was diagnosed before the plan was fixed.
"""

from __future__ import annotations

from kinds import (
    Planted,
    PlantedAverageCode,
    PlantedCompositional,
    PlantedEntangled,
    PlantedFeatureFallback,
    PlantedHalfBlind,
    PlantedHalfExecuted,
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
from labels import COMPOSITIONAL, EVERY_FAILING, STRENGTHS, THIRD_FAILING, harmless
from new_plan import Planned
from third_kinds import (
    PlantedDisturbed,
    PlantedGuessed,
    PlantedPatchwork,
    PlantedRedundant,
    PlantedSmoothed,
    PlantedTooLate,
)

OLD_FAMILIES = ("teacher", "logic", "chain", "product")
WEAK, MIDDLE, FULL = STRENGTHS["maxout"]
WRONG: tuple[tuple[type[Planted], float], ...] = (
    (PlantedNearestSupport, FULL),
    (PlantedWrongPartner, WEAK),
    (PlantedShrunken, MIDDLE),
    (PlantedAverageCode, WEAK),
    (PlantedMistaken, MIDDLE),
    (PlantedMostlyInference, FULL),
    (PlantedGuessed, WEAK),
    (PlantedNeverRead, FULL),
    (PlantedLeftBehind, WEAK),
    (PlantedNotCarried, MIDDLE),
    (PlantedMiscarried, FULL),
    (PlantedTooLate, MIDDLE),
    (PlantedEntangled, WEAK),
    (PlantedHalfBlind, FULL),
    (PlantedHalfExecuted, MIDDLE),
    (PlantedMostlyExecution, FULL),
    (PlantedDisturbed, WEAK),
    (PlantedLookup, MIDDLE),
    (PlantedTwoMemories, FULL),
    (PlantedMemoryByCode, WEAK),
    (PlantedPatchwork, FULL),
    (PlantedRidgeFallback, WEAK),
    (PlantedRidgeFallback, FULL),
    (PlantedFeatureFallback, MIDDLE),
    (PlantedSmoothed, FULL),
)
"""What fails on maxouts, and at which strength."""
SLIGHTLY = {
    "maxout": (PlantedEntangled, PlantedNotCarried, PlantedLookup),
    "teacher": (PlantedTooLate,),
    "logic": (PlantedPatchwork,),
    "chain": (PlantedGuessed,),
    "product": (PlantedDisturbed,),
}
"""What is wrong on a family, by so little that it does not count."""


def on_maxouts() -> list[Planned]:
    """Every kind, in turn with and without an explicit code and rough or exact."""
    working: list[tuple[type[Planted], float]] = [(PlantedCompositional, 1.0), (PlantedScrambled, 0.5)]
    working += [(PlantedScrambled, 1.0), (PlantedRotated, 1.0), (PlantedRedundant, 1.0)]
    working += [(kind, harmless(kind, "maxout")) for kind in SLIGHTLY["maxout"]]
    rows = [(kind, strength, COMPOSITIONAL) for kind, strength in working]
    rows += [(kind, strength, EVERY_FAILING[kind]) for kind, strength in WRONG]
    return [
        Planned(kind, "maxout", strength, n // 3 % 6, n % 2 == 1, label, n // 2 % 2 == 1)
        for n, (kind, strength, label) in enumerate(rows)
    ]


def on_old_families() -> list[Planned]:
    """Every kind of this set once on each family, at one strength after the other; and one that is harmless on each."""
    found = []
    for f, family in enumerate(OLD_FAMILIES):
        rows = [(kind, STRENGTHS[family][(k + f) % 3], label) for k, (kind, label) in enumerate(THIRD_FAILING.items())]
        rows.append((PlantedRedundant, 1.0, COMPOSITIONAL))
        rows += [(kind, harmless(kind, family), COMPOSITIONAL) for kind in SLIGHTLY[family]]
        for k, (kind, strength, label) in enumerate(rows):
            found.append(Planned(kind, family, strength, (2 * k + f) % 6, (k + f) % 2 == 1, label, (k + f // 2) % 2 == 1))
    return found
