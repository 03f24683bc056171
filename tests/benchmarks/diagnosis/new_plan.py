"""Which cases the second fresh set is made of: every kind on a new family, and new kinds on the families that there were."""

from __future__ import annotations

import kinds
from labels import NEW_FAILING, STRENGTHS
from plan import Kind, Planned, Row, Turns, failing, in_turn, on_new_family, on_old_families, slightly, working

WEAK, MIDDLE, FULL = STRENGTHS["product"]
WORKING: tuple[tuple[Kind, float], ...] = (
    (kinds.PlantedCompositional, 1.0),
    (kinds.PlantedCompositional, 1.0),
    (kinds.PlantedRotated, 1.0),
    (kinds.PlantedScrambled, 0.5),
    (kinds.PlantedScrambled, 1.0),
)
WRONG: tuple[tuple[Kind, tuple[float, ...]], ...] = (
    (kinds.PlantedNearestSupport, (WEAK, FULL)),
    (kinds.PlantedWrongPartner, (MIDDLE,)),
    (kinds.PlantedShrunken, (WEAK, FULL)),
    (kinds.PlantedAverageCode, (MIDDLE,)),
    (kinds.PlantedMistaken, (WEAK,)),
    (kinds.PlantedMostlyInference, (FULL,)),
    (kinds.PlantedNeverRead, (WEAK, FULL)),
    (kinds.PlantedLeftBehind, (MIDDLE,)),
    (kinds.PlantedNotCarried, (WEAK, FULL)),
    (kinds.PlantedMiscarried, (MIDDLE,)),
    (kinds.PlantedEntangled, (WEAK, FULL)),
    (kinds.PlantedHalfBlind, (MIDDLE, FULL)),
    (kinds.PlantedMostlyExecution, (FULL,)),
    (kinds.PlantedLookup, (WEAK, MIDDLE, FULL)),
    (kinds.PlantedTwoMemories, (FULL,)),
    (kinds.PlantedMemoryByCode, (MIDDLE,)),
    (kinds.PlantedRidgeFallback, (WEAK, MIDDLE, FULL)),
    (kinds.PlantedFeatureFallback, (WEAK, FULL)),
)
"""What fails on products, and at which strengths."""
SLIGHTLY: dict[str, tuple[Kind, ...]] = {
    "product": (kinds.PlantedWrongPartner, kinds.PlantedNotCarried, kinds.PlantedEntangled, kinds.PlantedLookup),
    "teacher": (kinds.PlantedTwoMemories,),
    "logic": (kinds.PlantedMemoryByCode,),
    "chain": (kinds.PlantedFeatureFallback,),
}
"""What is wrong on a family, by so little that it does not count."""


def new_family() -> list[Planned]:
    """Every kind on products but for `PlantedHalfExecuted`: the mean of several gates lets everything through alike, so that
    its answers are nearly linear in x, as those of ridge are."""
    wrong = failing(*((kind, strength) for kind, strengths in WRONG for strength in strengths))
    return on_new_family("product", working(*WORKING) + slightly("product", SLIGHTLY["product"]) + wrong)


def new_kinds() -> list[Planned]:
    """Every new kind once on each family that there was, at one strength after the other; and one that is harmless on each."""
    rows: dict[str, list[Row]] = {
        family: in_turn(NEW_FAILING, family, f) + slightly(family, SLIGHTLY[family])
        for f, family in enumerate(("teacher", "logic", "chain"))
    }
    return on_old_families(rows, Turns(seeds=(1, 2), rough=(2, 1)))
