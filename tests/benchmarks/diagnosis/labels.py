"""The label every kind of planted model is to get, and how much of the wrong thing it takes on each family."""

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
from third_kinds import (
    PlantedDisturbed,
    PlantedGuessed,
    PlantedPatchwork,
    PlantedRedundant,
    PlantedSmoothed,
    PlantedTooLate,
)

COMPOSITIONAL, NOT_LEARNED = "compositional", "has not learned its training compositions"
FAILING: dict[type[Planted], str] = {
    PlantedNearestSupport: "fails to infer",
    PlantedWrongPartner: "fails to infer",
    PlantedEntangled: "cannot execute",
    PlantedNeverRead: "infers but does not use",
    PlantedLeftBehind: "infers but does not use",
    PlantedLookup: "memorised",
    PlantedRidgeFallback: "generic regression",
}
MIXED: dict[type[Planted], str] = {PlantedMostlyInference: "fails to infer", PlantedMostlyExecution: "cannot execute"}
"""Two failures at once, of which the one that the label names is by far the larger."""
FRESH_FAILING: dict[type[Planted], str] = {
    PlantedShrunken: "fails to infer",
    PlantedAverageCode: "fails to infer",
    PlantedNotCarried: "infers but does not use",
    PlantedHalfBlind: "cannot execute",
}
"""Kinds of failure of the first fresh set; why each is called so stands with its mechanism."""
NEW_FAILING: dict[type[Planted], str] = {
    PlantedMistaken: "fails to infer",
    PlantedHalfExecuted: "cannot execute",
    PlantedMiscarried: "infers but does not use",
    PlantedTwoMemories: "memorised",
    PlantedMemoryByCode: "memorised",
    PlantedFeatureFallback: "generic regression",
}
"""Kinds of failure of the second one."""
THIRD_FAILING: dict[type[Planted], str] = {
    PlantedGuessed: "fails to infer",
    PlantedTooLate: "infers but does not use",
    PlantedDisturbed: "cannot execute",
    PlantedPatchwork: "memorised",
    PlantedSmoothed: "generic regression",
}
"""Kinds of failure of the third one."""
EVERY_FAILING = FAILING | MIXED | FRESH_FAILING | NEW_FAILING | THIRD_FAILING
WORKING: tuple[type[Planted], ...] = (PlantedCompositional, PlantedScrambled, PlantedRotated, PlantedRedundant)
KINDS: tuple[type[Planted], ...] = (*WORKING, *EVERY_FAILING)
STRENGTHS = {
    "teacher": (0.7, 0.85, 1.0),
    "logic": (0.5, 0.7, 1.0),
    "chain": (0.6, 0.8, 1.0),
    "product": (0.6, 0.8, 1.0),
    "maxout": (0.7, 0.85, 1.0),
}
HARMLESS = {"teacher": 0.2, "logic": 0.15, "chain": 0.15, "product": 0.15, "maxout": 0.15}
FAR: tuple[type[Planted], ...] = (PlantedMistaken, PlantedMemoryByCode, PlantedGuessed)
"""Kinds that answer so far from the truth that it takes half as much to be harmless."""


def harmless(kind: type[Planted], family: str) -> float:
    """The strength at which so little is wrong that it does not count."""
    return HARMLESS[family] / (2 if kind in FAR else 1)
