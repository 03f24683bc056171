"""Which cases the third fresh set is made of: every kind on maxouts, and its own kinds on the families that there were.

It was planned without knowing the rules of the diagnosis, and no case of it was diagnosed before the plan was fixed.
"""

from __future__ import annotations

import kinds
import third_kinds as third
from labels import STRENGTHS, THIRD_FAILING
from plan import Kind, Planned, Row, Turns, failing, in_turn, on_new_family, on_old_families, slightly, working

WEAK, MIDDLE, FULL = STRENGTHS["maxout"]
WORKING: tuple[tuple[Kind, float], ...] = (
    (kinds.PlantedCompositional, 1.0),
    (kinds.PlantedScrambled, 0.5),
    (kinds.PlantedScrambled, 1.0),
    (kinds.PlantedRotated, 1.0),
    (third.PlantedRedundant, 1.0),
)
WRONG: tuple[tuple[Kind, float], ...] = (
    (kinds.PlantedNearestSupport, FULL),
    (kinds.PlantedWrongPartner, WEAK),
    (kinds.PlantedShrunken, MIDDLE),
    (kinds.PlantedAverageCode, WEAK),
    (kinds.PlantedMistaken, MIDDLE),
    (kinds.PlantedMostlyInference, FULL),
    (third.PlantedGuessed, WEAK),
    (kinds.PlantedNeverRead, FULL),
    (kinds.PlantedLeftBehind, WEAK),
    (kinds.PlantedNotCarried, MIDDLE),
    (kinds.PlantedMiscarried, FULL),
    (third.PlantedTooLate, MIDDLE),
    (kinds.PlantedEntangled, WEAK),
    (kinds.PlantedHalfBlind, FULL),
    (kinds.PlantedHalfExecuted, MIDDLE),
    (kinds.PlantedMostlyExecution, FULL),
    (third.PlantedDisturbed, WEAK),
    (kinds.PlantedLookup, MIDDLE),
    (kinds.PlantedTwoMemories, FULL),
    (kinds.PlantedMemoryByCode, WEAK),
    (third.PlantedPatchwork, FULL),
    (kinds.PlantedRidgeFallback, WEAK),
    (kinds.PlantedRidgeFallback, FULL),
    (kinds.PlantedFeatureFallback, MIDDLE),
    (third.PlantedSmoothed, FULL),
)
"""What fails on maxouts, and at which strength."""
SLIGHTLY: dict[str, tuple[Kind, ...]] = {
    "maxout": (kinds.PlantedEntangled, kinds.PlantedNotCarried, kinds.PlantedLookup),
    "teacher": (third.PlantedTooLate,),
    "logic": (third.PlantedPatchwork,),
    "chain": (third.PlantedGuessed,),
    "product": (third.PlantedDisturbed,),
}
"""What is wrong on a family, by so little that it does not count."""


def on_maxouts() -> list[Planned]:
    """Every kind."""
    return on_new_family("maxout", working(*WORKING) + slightly("maxout", SLIGHTLY["maxout"]) + failing(*WRONG))


def before_maxouts() -> list[Planned]:
    """Every kind of this set once on each family, at one strength after the other; and one that is harmless on each."""
    rows: dict[str, list[Row]] = {
        family: in_turn(THIRD_FAILING, family, f) + working((third.PlantedRedundant, 1.0)) + slightly(family, SLIGHTLY[family])
        for f, family in enumerate(("teacher", "logic", "chain", "product"))
    }
    return on_old_families(rows, Turns(seeds=(2, 1), rough=(1, 2)))
