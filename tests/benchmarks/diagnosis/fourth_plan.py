"""Which cases the fourth fresh set is made of: every kind on phases, and its own kinds on the families that there were.

It was planned without knowing the rules of the diagnosis, and no case of it was diagnosed before the plan was fixed.
"""

from __future__ import annotations

import fourth_kinds as fourth
import kinds
import third_kinds as third
import third_plan
from labels import EVERY_FAILING, STRENGTHS
from plan import Kind, Planned, Row, Turns, failing, on_new_family, on_old_families, slightly, working

WEAK, MIDDLE, FULL = range(3)
"""Places in a family's `STRENGTHS`."""
WORKING: tuple[tuple[Kind, float], ...] = (*third_plan.WORKING, (fourth.PlantedDeferred, 1.0))
WRONG: tuple[tuple[Kind, int], ...] = (
    (kinds.PlantedNearestSupport, WEAK),
    (kinds.PlantedWrongPartner, FULL),
    (kinds.PlantedShrunken, FULL),
    (kinds.PlantedAverageCode, MIDDLE),
    (kinds.PlantedMistaken, WEAK),
    (kinds.PlantedMostlyInference, MIDDLE),
    (third.PlantedGuessed, FULL),
    (fourth.PlantedIntruder, MIDDLE),
    (fourth.PlantedLapsing, FULL),
    (kinds.PlantedNeverRead, WEAK),
    (kinds.PlantedLeftBehind, FULL),
    (kinds.PlantedNotCarried, FULL),
    (kinds.PlantedMiscarried, WEAK),
    (third.PlantedTooLate, FULL),
    (fourth.PlantedUntranslated, MIDDLE),
    (kinds.PlantedEntangled, FULL),
    (kinds.PlantedHalfBlind, MIDDLE),
    (kinds.PlantedHalfExecuted, FULL),
    (kinds.PlantedMostlyExecution, FULL),
    (third.PlantedDisturbed, MIDDLE),
    (fourth.PlantedTurned, WEAK),
    (kinds.PlantedLookup, FULL),
    (kinds.PlantedTwoMemories, MIDDLE),
    (kinds.PlantedMemoryByCode, FULL),
    (third.PlantedPatchwork, WEAK),
    (fourth.PlantedByColumn, FULL),
    (kinds.PlantedRidgeFallback, WEAK),
    (kinds.PlantedRidgeFallback, MIDDLE),
    (kinds.PlantedRidgeFallback, FULL),
    (kinds.PlantedFeatureFallback, WEAK),
    (kinds.PlantedFeatureFallback, FULL),
    (third.PlantedSmoothed, MIDDLE),
    (third.PlantedSmoothed, FULL),
)
"""What fails on phases, and how strongly."""
SLIGHTLY: tuple[Kind, ...] = (kinds.PlantedNearestSupport, fourth.PlantedByColumn)
"""What is wrong on phases, by so little that it does not count."""
ELSEWHERE: dict[str, tuple[tuple[Kind, int], ...]] = {
    "teacher": (
        (fourth.PlantedDeferred, FULL),
        (fourth.PlantedIntruder, WEAK),
        (fourth.PlantedUntranslated, FULL),
        (fourth.PlantedByColumn, MIDDLE),
    ),
    "logic": (
        (fourth.PlantedDeferred, FULL),
        (fourth.PlantedLapsing, FULL),
        (fourth.PlantedUntranslated, MIDDLE),
        (fourth.PlantedTurned, WEAK),
    ),
    "chain": (
        (fourth.PlantedIntruder, MIDDLE),
        (fourth.PlantedUntranslated, WEAK),
        (fourth.PlantedTurned, FULL),
        (fourth.PlantedByColumn, WEAK),
    ),
    "product": (
        (fourth.PlantedDeferred, FULL),
        (fourth.PlantedLapsing, MIDDLE),
        (fourth.PlantedTurned, MIDDLE),
        (fourth.PlantedByColumn, FULL),
    ),
    "maxout": (
        (fourth.PlantedDeferred, FULL),
        (fourth.PlantedIntruder, FULL),
        (fourth.PlantedLapsing, MIDDLE),
        (fourth.PlantedUntranslated, MIDDLE),
        (fourth.PlantedByColumn, MIDDLE),
    ),
}
"""This set's own kinds on every earlier family. An answer of fuzzy logic has one coordinate, so that what is recalled by
column is a lookup there; what lapses is never weak, so that most episodes of held-out compositions have a wrong code."""


def on_phases() -> list[Planned]:
    """Every kind."""
    wrong = failing(*((kind, STRENGTHS["phase"][level]) for kind, level in WRONG))
    return on_new_family("phase", working(*WORKING) + slightly("phase", SLIGHTLY) + wrong)


def before_phases() -> list[Planned]:
    """What `ELSEWHERE` says."""
    rows: dict[str, list[Row]] = {}
    for family, own in ELSEWHERE.items():
        placed = [(kind, STRENGTHS[family][level]) for kind, level in own]
        rows[family] = [row for pair in placed for row in (failing if pair[0] in EVERY_FAILING else working)(pair)]
    return on_old_families(rows, Turns(seeds=(2, 1), rough=(1, 2)))
