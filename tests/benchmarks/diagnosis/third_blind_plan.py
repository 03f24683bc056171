"""Which models the third blind set is made of, and what each is to be called: fixed by construction, before any was diagnosed.

Its author had read neither the rules of the diagnosis nor what they get wrong, nor any answer to the earlier sets. As there, a
case fails only if its score on held-out compositions is at least .1 below its test score; those that lie within .02 of that
are borderline, and no answer is expected of them. Where more than one answer is right, all of them are written down.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from functools import cache
from typing import ClassVar

from blind_plan import (
    EXECUTION,
    GENERIC,
    INFERENCE,
    PANELS,
    UNDECIDED,
    UNLEARNED,
    USE,
    WORKS,
)
from cases import Case
from second_plan import WAYS, Second, Writer
from third_blind_codes import CARRIERS
from third_blind_faults import FAULTS
from third_blind_models import PlantedThird
from third_blind_raven import CARRIERS as PANEL_CARRIERS
from third_blind_raven import FAULTS as PANEL_FAULTS
from third_blind_raven import ThirdSolver

PREDICTED = {
    "right": 0.64,
    "acceptable": 0.72,
    "undecided": 0.13,
    "wrong, confident": 0.12,
    "failing, called compositional": 0.02,
    "working, called failing": 0.07,
}
"""What share `blind.score` was expected to give for each, written down with the labels, before any case was diagnosed."""
ALSO: dict[str, tuple[str, ...]] = {
    "FewMistaken": (UNDECIDED,),
    "FewImpostors": (UNDECIDED,),
    "HalfDrawn": (UNDECIDED,),
    "HalfStuck": (UNDECIDED,),
    "WrongKey": (EXECUTION,),
    "Forgets": (INFERENCE,),
    "Spliced": (EXECUTION,),
    "CopiesLeft": (EXECUTION,),
    "OnlyNeighbours": (GENERIC,),
    "SqueezedAndHalfWave": (INFERENCE, EXECUTION),
    "HalfUseHalfExecution": (USE, EXECUTION),
}
"""Fault -> what else is right; the reason stands with the fault."""
MARKED, TURNING, RUNNING = "marked", "turning", "running"
OUR_WAYS = WAYS | {
    MARKED: " At the context, which token a mark stands at says which coordinate it is.",
    TURNING: " Every question holds it in coordinates turned on by its position.",
    RUNNING: " The first context tokens hold what two examples tell, the next ones what eight tell, the last "
    "one what all tell; questions take over the last one's.",
}
E, ROUGH, FEW = {"explicit": True}, {"rough": True}, {"few": True}
SEVEN_RULES = ("Remembers", "Favourites")


@dataclass(frozen=True)
class ThirdCase(Second):
    """One case of the third set. shuffled: the stage whose weights are permuted, if one is."""

    shuffled: int | None = None

    architecture: ClassVar[type[PlantedThird]] = PlantedThird
    panels: ClassVar[type[ThirdSolver]] = ThirdSolver

    @property
    def kind(self) -> str:
        return super().kind if self.shuffled is None else "Shuffled"

    def case(self) -> Case:
        return replace(super().case(), shuffled=self.shuffled)

    @property
    def arguments(self) -> dict[str, object]:
        return super().arguments | {"rules": 7 if self.fault in SEVEN_RULES else 5}


_cases = Writer(FAULTS, PANEL_FAULTS, CARRIERS, PANEL_CARRIERS, ALSO, OUR_WAYS, ThirdCase).cases


def _works() -> list[Second]:
    marked, turning, running = ({"transport": way} for way in (MARKED, TURNING, RUNNING))
    return [
        *_cases(
            "Sound",
            ("teacher", "phases"), ("logic", "phases", 1.0, ROUGH),
            ("teacher", "reflected", 1.0, ROUGH), ("logic", "reflected", 1.0, E),
            ("teacher", "median", 1.0, E), ("logic", "median"),
            ("maxout", "convolved"), ("logic", "convolved", 1.0, ROUGH),
            ("bilinear", "rectified"), ("chain", "polar"),
            ("teacher", "plain", 1.0, marked),
            ("phase", "plain", 1.0, turning), ("product", "reflected", 1.0, turning),
            ("teacher", "plain", 1.0, running), ("logic", "rectified", 1.0, running),
        ),
        *_cases("Works", *((PANELS, c) for c in ("convolved", "rectified", "polar", "reflected", "median"))),
        *_cases("SpoiledTokens", ("teacher", "phases"), ("logic", "median")),
        *_cases("GuessCorrected", ("chain", "phases"), ("logic", "convolved")),
        *_cases("TwoHalves", ("product", "reflected"), ("teacher", "plain")),
        *_cases("EvenlyCoarse", ("maxout", "phases")),
        *_cases("LoudDecoy", (PANELS, "polar")),
        *_cases("RoughlyRight", (PANELS, "median", 0.06)),
    ]  # fmt: skip


def _harmless() -> list[Second]:
    given = {"label": WORKS, "about": "Harmless"}
    why = "So little is wrong that held-out compositions are answered nearly as well as training ones. What little there is: "
    return [
        *_cases("BlurredAnswers", ("teacher", "phases", 0.15), why=why, **given),
        *_cases("Overwritten", ("chain", "median", 0.12), why=why, **given),
        *_cases("Coarse", ("logic", "reflected", 0.3), why=why, **given),
        *_cases("DeadZone", ("phase", "plain", 0.2), why=why, **given),
        *_cases("EvenOnly", (PANELS, "reflected", 0.05), why=why, **given),
    ]


def _infers_wrongly() -> list[Second]:
    return [
        *_cases("BlurredAnswers", ("teacher", "plain", 0.5), ("logic", "phases", 1.0)),
        *_cases("HalfSeen", ("teacher", "reflected", 1.0), ("logic", "plain", 0.6)),
        *_cases("WinnerTakesAll", ("logic", "median", 0.5), ("chain", "plain", 0.7)),
        *_cases("Squeezed", ("teacher", "plain", 0.7), ("logic", "reflected", 1.0)),
        *_cases("TwoSizes", ("teacher", "median", 1.0)),
        *_cases("TwoCamps", ("logic", "plain", 0.5)),
        *_cases("FewMistaken", ("product", "convolved", 0.7, ROUGH)),
        *_cases("SloppyInference", ("teacher", "phases", 0.6)),
        *_cases("ReadByColumns", (PANELS, "rectified", 1.0), (PANELS, "plain", 0.4)),
        *_cases("TrainedPartner", (PANELS, "polar", 1.0), (PANELS, "median", 0.6)),
        *_cases("SloppyRules", (PANELS, "reflected", 1.0)),
        *_cases("HalfDrawn", (PANELS, "convolved", 1.0)),
        *_cases("Drawn", (PANELS, "median", 0.3)),
    ]


def _uses_nothing() -> list[Second]:
    return [
        *_cases("Overwritten", ("teacher", "phases", 0.6)),
        *_cases("GuessUncorrected", ("teacher", "reflected", 1.0), ("logic", "phases", 0.5)),
        *_cases("FirstQuestionAlone", ("maxout", "reflected", 0.5), ("teacher", "plain", 1.0)),
        *_cases("PartsInTurn", ("chain", "median", 0.6)),
        *_cases("CrossedHeads", ("product", "polar", 1.0), ("bilinear", "plain", 0.4, E)),
        *_cases("WrongKey", ("teacher", "reflected", 0.3)),
        *_cases("BrokenSink", ("maxout", "convolved", 1.0)),
        *_cases("StopsListening", ("teacher", "plain", 0.6)),
        *_cases("Forgets", ("logic", "phases", 0.5)),
        *_cases("Saturated", ("teacher", "phases", 1.0)),
        *_cases("Exchanged", (PANELS, "convolved", 1.0), (PANELS, "plain", 0.7)),
        *_cases("SecondStarved", (PANELS, "polar", 1.0), (PANELS, "reflected", 0.5)),
    ]


def _cannot_execute() -> list[Second]:
    return [
        *_cases("Biased", ("teacher", "reflected", 0.5, ROUGH), ("phase", "plain", 0.7, E)),
        *_cases("HalfWave", ("logic", "plain", 0.6)),
        *_cases("Coarse", ("teacher", "phases", 0.7), ("logic", "median", 1.0)),
        *_cases("CoarserStill", ("chain", "plain", 1.0)),
        *_cases("DeadZone", ("product", "polar", 0.6)),
        *_cases("TakesTurns", ("phase", "rectified", 1.0, ROUGH), ("logic", "polar", 0.7)),
        *_cases("NextQuestion", ("teacher", "median", 0.3), ("bilinear", "convolved", 1.0)),
        *_cases("FewImpostors", ("teacher", "reflected", 1.0)),
        *_cases("OffByOne", (PANELS, "rectified", 1.0), (PANELS, "keyed", 0.4)),
        *_cases("EvenOnly", (PANELS, "convolved", 1.0)),
        *_cases("Stuck", (PANELS, "polar", 1.0)),
        *_cases("HalfStuck", (PANELS, "median", 1.0)),
    ]


def _remembers() -> list[Second]:
    return [
        *_cases("HastyMemory", ("logic", "plain", 1.0), ("product", "plain", 0.8, E)),
        *_cases("Favourites", ("teacher", "plain", 1.0)),
        *_cases("EachItsOwn", ("maxout", "plain", 1.0)),
        *_cases("Spliced", ("phase", "convolved", 1.0)),
        *_cases("Favourites", (PANELS, "polar", 1.0)),
        *_cases("Remembers", (PANELS, "rectified", 1.0)),
    ]


def _regresses() -> list[Second]:
    return [
        *_cases("ThreeNearest", ("logic", "plain", 1.0)),
        *_cases("KernelRidge", ("teacher", "plain", 1.0), ("logic", "phases", 1.0, E)),
        *_cases("TwoLevels", ("product", "median", 1.0)),
        *_cases("SmallNetwork", ("phase", "plain", 1.0)),
        *_cases("CopiesLeft", (PANELS, "polar", 1.0)),
    ]


def _never_learned() -> list[Second]:
    why = "The weights are random, nothing of the task was ever set."
    mixed = "Every stage does what it should, and the weights that one of them reads by were permuted afterwards."
    never = [
        ThirdCase("Sound", family, carrier, UNLEARNED, (), why, 1.0, seed, planted=False)
        for family, carrier, seed in (("maxout", "polar", 1), ("logic", "reflected", 2))
    ]
    shuffled = [
        ThirdCase("Sound", family, carrier, UNLEARNED, (), mixed, 1.0, stage, shuffled=stage)
        for stage, (family, carrier) in enumerate((("teacher", "phases"), ("logic", "convolved"), ("chain", "plain")))
    ]
    return [
        *never,
        *shuffled,
        *_cases("AlwaysSqueezed", ("teacher", "reflected", 1.0)),
        *_cases("AlwaysTwins", ("logic", "plain", 1.0)),
        *_cases("OnlyNeighbours", ("chain", "plain", 1.0)),
        *_cases("AlwaysLapses", (PANELS, "rectified", 1.0)),
        *_cases("AlwaysOffByOne", (PANELS, "polar", 1.0)),
    ]


def _of_more_than_one_answer() -> list[Second]:
    near = {"label": UNDECIDED, "about": "Borderline"}
    why = "About .1 is lost, neither clearly less than what counts as failing nor clearly more. What is wrong: "
    return [
        *_cases("SqueezedAndHalfWave", ("teacher", "plain", 0.8), label=UNDECIDED),
        *_cases("HalfUseHalfExecution", ("chain", "plain", 1.0), (PANELS, "rectified", 1.0), label=UNDECIDED),
        *_cases("OverwrittenThenSlightlyCoarse", ("teacher", "reflected", 1.0)),
        *_cases("DeadZoneAndSlightlySqueezed", ("phase", "phases", 1.0)),
        *_cases("Overwritten", ("maxout", "median", 0.8, FEW)),
        *_cases("Biased", ("chain", "reflected", 0.7, FEW)),
        *_cases("BlurredAnswers", ("teacher", "median", 0.3), why=why, **near),
        *_cases("Coarse", ("product", "phases", 0.55), why=why, **near),
        *_cases("Forgets", ("logic", "plain", 0.2), why=why, **near),
    ]


@cache
def plan() -> dict[str, Second]:
    """number -> case; numbers say nothing about what is planted."""
    parts = (
        _works, _harmless, _infers_wrongly, _uses_nothing, _cannot_execute, _remembers, _regresses, _never_learned,
        _of_more_than_one_answer,
    )  # fmt: skip
    found = [case for part in parts for case in part()]
    random.Random(20261125).shuffle(found)
    return {f"d{i:03d}": case for i, case in enumerate(found, 1)}
