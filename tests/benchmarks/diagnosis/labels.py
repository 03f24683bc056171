"""The label every kind of planted model is to get, and how much of the wrong thing it takes on each family."""

from __future__ import annotations

import fourth_kinds as fourth
import kinds
import third_kinds as third
from kinds import Planted

COMPOSITIONAL, NOT_LEARNED = "compositional", "has not learned its training compositions"
FAILING: dict[type[Planted], str] = {
    kinds.PlantedNearestSupport: "fails to infer",
    kinds.PlantedWrongPartner: "fails to infer",
    kinds.PlantedEntangled: "cannot execute",
    kinds.PlantedNeverRead: "infers but does not use",
    kinds.PlantedLeftBehind: "infers but does not use",
    kinds.PlantedLookup: "memorised",
    kinds.PlantedRidgeFallback: "generic regression",
}
MIXED: dict[type[Planted], str] = {
    kinds.PlantedMostlyInference: "fails to infer",
    kinds.PlantedMostlyExecution: "cannot execute",
}
"""Two failures at once, of which the one that the label names is by far the larger."""
FRESH_FAILING: dict[type[Planted], str] = {
    kinds.PlantedShrunken: "fails to infer",
    kinds.PlantedAverageCode: "fails to infer",
    kinds.PlantedNotCarried: "infers but does not use",
    kinds.PlantedHalfBlind: "cannot execute",
}
"""Kinds of failure of the first fresh set; why each is called so stands with its mechanism."""
NEW_FAILING: dict[type[Planted], str] = {
    kinds.PlantedMistaken: "fails to infer",
    kinds.PlantedHalfExecuted: "cannot execute",
    kinds.PlantedMiscarried: "infers but does not use",
    kinds.PlantedTwoMemories: "memorised",
    kinds.PlantedMemoryByCode: "memorised",
    kinds.PlantedFeatureFallback: "generic regression",
}
"""Kinds of failure of the second one."""
THIRD_FAILING: dict[type[Planted], str] = {
    third.PlantedGuessed: "fails to infer",
    third.PlantedTooLate: "infers but does not use",
    third.PlantedDisturbed: "cannot execute",
    third.PlantedPatchwork: "memorised",
    third.PlantedSmoothed: "generic regression",
}
"""Kinds of failure of the third one."""
FOURTH_FAILING: dict[type[Planted], str] = {
    fourth.PlantedIntruder: "fails to infer",
    fourth.PlantedLapsing: "fails to infer",
    fourth.PlantedUntranslated: "infers but does not use",
    fourth.PlantedTurned: "cannot execute",
    fourth.PlantedByColumn: "memorised",
}
"""Kinds of failure of the fourth one."""
EVERY_FAILING = FAILING | MIXED | FRESH_FAILING | NEW_FAILING | THIRD_FAILING | FOURTH_FAILING
WORKING: tuple[type[Planted], ...] = (
    kinds.PlantedCompositional,
    kinds.PlantedScrambled,
    kinds.PlantedRotated,
    third.PlantedRedundant,
    fourth.PlantedDeferred,
)
KINDS: tuple[type[Planted], ...] = (*WORKING, *EVERY_FAILING)
STRENGTHS = {
    "teacher": (0.7, 0.85, 1.0),
    "logic": (0.5, 0.7, 1.0),
    "chain": (0.6, 0.8, 1.0),
    "product": (0.6, 0.8, 1.0),
    "maxout": (0.7, 0.85, 1.0),
    "phase": (0.7, 0.85, 1.0),
}
HARMLESS = {"teacher": 0.2, "logic": 0.15, "chain": 0.15, "product": 0.15, "maxout": 0.15, "phase": 0.15}
FAR: tuple[type[Planted], ...] = (
    kinds.PlantedMistaken,
    kinds.PlantedMemoryByCode,
    third.PlantedGuessed,
    fourth.PlantedUntranslated,
    fourth.PlantedTurned,
)
"""Kinds that answer so far from the truth that it takes half as much to be harmless."""
NEVER_SLIGHT: tuple[type[Planted], ...] = (*MIXED, fourth.PlantedLapsing)
"""Kinds of which no strength is harmless: a part of what is wrong is always there, or all of it in some episodes."""


def harmless(kind: type[Planted], family: str) -> float:
    """The strength at which so little is wrong that it does not count."""
    return HARMLESS[family] / (2 if kind in FAR else 1)
