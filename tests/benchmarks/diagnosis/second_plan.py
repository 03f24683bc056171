"""Which models the second blind set is made of, and what each is to be called: fixed by construction, before any was
diagnosed.

Its author had read neither the rules of the diagnosis nor what they get wrong, nor any answer to the first set. As there, a
case fails only if its score on held-out compositions is at least .1 below its test score; those that lie within .02 of that
are borderline, and no answer is expected of them. Where more than one answer is right, all of them are written down.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import ClassVar

from blind_models import task_of
from blind_plan import (
    BOUND,
    EXECUTION,
    GENERIC,
    INFERENCE,
    LABELS,
    MEMORY,
    PANELS,
    SHARES,
    UNDECIDED,
    UNLEARNED,
    USE,
    WHOLE,
    WORKS,
    Blinded,
)
from second_codes import CARRIERS
from second_faults import FAULTS
from second_models import PlantedSecond
from second_raven import CARRIERS as PANEL_CARRIERS
from second_raven import FAULTS as PANEL_FAULTS
from second_raven import SecondSolver

from compolens.training import Run

SCATTERED = "scattered"
PREDICTED = {
    "right": 0.62,
    "acceptable": 0.71,
    "undecided": 0.12,
    "wrong, confident": 0.15,
    "failing, called compositional": 0.02,
    "working, called failing": 0.08,
}
"""What share `blind.score` was expected to give for each, written down with the labels, before any case was diagnosed."""
ALSO: dict[str, tuple[str, ...]] = {
    "WithinSupport": (MEMORY,),
    "MostTokens": (USE, UNDECIDED),
    "Straightened": (GENERIC,),
    "KernelExecutor": (MEMORY,),
    "BlendsNeighbours": (EXECUTION,),
    "CopiesRow": (EXECUTION,),
    "OnlyLines": (GENERIC,),
    "LonelyExecution": (EXECUTION, UNDECIDED),
    "BothAtOnce": (INFERENCE, EXECUTION),
    "ThreeSmall": (INFERENCE, USE, EXECUTION),
}
"""Fault -> what else is right; the reason stands with the fault."""
E, ROUGH, FEW = {"explicit": True}, {"rough": True}, {"few": True}


@dataclass(frozen=True)
class Second(Blinded):
    """One case of the second set. about: what a case is whose fault is too weak, or nearly so: "Harmless" or "Borderline"."""

    about: str = ""

    architecture: ClassVar[type[PlantedSecond]] = PlantedSecond
    panels: ClassVar[type[SecondSolver]] = SecondSolver

    @property
    def kind(self) -> str:
        if not self.planted:
            return "NeverPlanted"
        if self.about:
            return f"{self.about}, {self.fault}"
        if self.fault not in ("Sound", "Works"):
            return self.fault
        return f"Works, {self.carrier if self.transport == WHOLE else self.transport}"

    @property
    def run(self) -> Run:
        task = task_of(self.family, self.seed, self.few)
        own = self.architecture(task, self.fault, self.carrier, self.transport, self.strength, self.explicit)
        return Run(own, task, steps=0, init_seed=self.seed, data_seed=self.seed, evaluation_episodes=64)

    @property
    def solver(self) -> SecondSolver:
        return self.panels(**self.arguments)  # type: ignore[arg-type]


@dataclass(frozen=True)
class Writer:
    """What makes rows of a plan into cases. faults: name -> a mechanism whose docstring begins with its label; panel_faults:
    name -> such a text; carriers, panel_carriers: the same for how a code is carried; also: fault -> what else is right; ways:
    transport -> what is said of it; case: the class of cases."""

    faults: Mapping[str, type]
    panel_faults: Mapping[str, str]
    carriers: Mapping[str, type]
    panel_carriers: Mapping[str, str]
    also: Mapping[str, tuple[str, ...]]
    ways: Mapping[str, str]
    case: type[Second]

    def told(self, fault: str, family: str) -> tuple[str, str]:
        """The label that a fault's description begins with ("" where it does not), and the rest, as a sentence."""
        text = " ".join((self.panel_faults[fault] if family == PANELS else str(self.faults[fault].__doc__)).split())
        label, colon, rest = text.partition(": ")
        if not (colon and label in LABELS):
            label, rest = "", text
        return label, rest[0].upper() + rest[1:].rstrip(".") + "."

    def carried(self, carrier: str, family: str, transport: str) -> str:
        text = self.panel_carriers[carrier] if family == PANELS else str(self.carriers[carrier].__doc__)
        return " How the code is carried: " + " ".join(text.split()) + self.ways.get(transport, "")

    def cases(self, fault: str, *rows: tuple, label: str = "", about: str = "", why: str = "") -> list[Second]:
        """Rows of (family, carrier, strength, anything else of a `Second` by name). label: of all, if not that of the fault;
        why: what to say before what the fault says."""
        found = []
        for i, (family, carrier, *rest) in enumerate(rows):
            strength, given = [*rest, 1.0][0], dict(rest[1]) if len(rest) > 1 else {}
            own, said = self.told(fault, family)
            also = tuple(other for other in self.also.get(fault, ()) if other != (label or own))
            if about == "Borderline":
                also = (WORKS, own)
            if given.get("few"):
                also, said = (*also, UNDECIDED), f"{said} Four held-out pairs are few: undecided is right as well."
            if fault in ("Sound", "Works"):
                said += self.carried(carrier, family, given.get("transport", WHOLE))
            given = {"seed": (i + len(fault)) % 4} | given
            found.append(self.case(fault, family, carrier, label or own, also, why + said, strength, **given, about=about))
        return found


WAYS = {
    BOUND: " What a question takes over is locked by its own x.",
    SHARES: " Every context token masks it.",
    SCATTERED: " Context tokens hold a quarter of the coordinates each.",
}
"""Transport -> what is said of it."""
_cases = Writer(FAULTS, PANEL_FAULTS, CARRIERS, PANEL_CARRIERS, ALSO, WAYS, Second).cases


def _works() -> list[Second]:
    scattered = {"transport": SCATTERED}
    return [
        *_cases(
            "Sound",
            ("teacher", "grid", 1.0),
            ("logic", "grid", 1.0, ROUGH),
            ("teacher", "radius", 1.0, E),
            ("product", "rolled", 1.0, ROUGH),
            ("logic", "rolled", 1.0),
            ("maxout", "scaled", 1.0, E),
            ("phase", "clock", 1.0),
            ("logic", "clock", 1.0, E),
            ("bilinear", "tensor", 1.0, ROUGH),
            ("logic", "superposed", 1.0),
            ("teacher", "plain", 1.0, scattered),
            ("product", "radius", 1.0, scattered),
        ),
        *_cases("Works", *((PANELS, carrier, 1.0) for carrier in ("clock", "tensor", "rolled"))),
        *_cases("LoudDecoy", ("logic", "rolled", 1.0), (PANELS, "clock", 1.0)),
        *_cases("CorrectedLate", ("chain", "radius", 1.0), ("logic", "superposed", 1.0)),
        *_cases("RecallsWhatItKnows", ("product", "rolled", 1.0), ("logic", "scaled", 1.0)),
        *_cases("HalfDeferred", ("maxout", "plain", 1.0), ("bilinear", "radius", 1.0)),
        *_cases("TwoForms", ("teacher", "radius", 1.0)),
        *_cases("Crowded", ("teacher", "scaled", 1.0)),
        *_cases("RoughlyRight", ("product", "scaled", 1.0), ("teacher", "plain", 1.0, E), (PANELS, "rolled", 0.06)),
    ]


def _harmless() -> list[Second]:
    given = {"label": WORKS, "about": "Harmless"}
    why = "So little is wrong that held-out compositions are answered nearly as well as training ones. What little there is: "
    return [
        *_cases("Noisy", ("logic", "scaled", 0.2), why=why, **given),
        *_cases("Additive", ("teacher", "grid", 0.3), why=why, **given),
        *_cases("Clipped", ("phase", "rolled", 0.2), why=why, **given),
        *_cases("Posterior", ("maxout", "plain", 0.15), why=why, **given),
        *_cases("Drawn", (PANELS, "radius", 0.03), why=why, **given),
    ]


def _infers_wrongly() -> list[Second]:
    return [
        *_cases("Noisy", ("teacher", "plain", 0.6), ("logic", "radius", 1.0), ("phase", "scaled", 0.6, E)),
        *_cases("Tempered", ("logic", "plain", 1.0), ("chain", "rolled", 0.8, E)),
        *_cases("VotedParts", ("logic", "plain", 1.0), ("maxout", "clock", 1.0)),
        *_cases("Neighbours", ("teacher", "rolled", 1.0), ("phase", "plain", 1.0, ROUGH), ("logic", "grid", 0.8)),
        *_cases("SomeParts", ("logic", "clock", 1.0), ("maxout", "tensor", 1.0), ("teacher", "plain", 0.9, E)),
        *_cases("WithinSupport", ("logic", "superposed", 1.0), ("teacher", "plain", 1.0)),
        *_cases("Misbound", ("product", "clock", 1.0)),
        *_cases("NoisyThenSlightlyAdditive", ("logic", "plain", 1.0)),
        *_cases("Doubled", (PANELS, "clock", 1.0)),
        *_cases("Drawn", (PANELS, "superposed", 1.0), (PANELS, "radius", 0.6)),
        *_cases("Reversed", (PANELS, "tensor", 1.0)),
        *_cases("Noisy", ("bilinear", "plain", 0.4, FEW)),
    ]


def _uses_nothing() -> list[Second]:
    return [
        *_cases("Sink", ("teacher", "radius", 1.0), ("chain", "grid", 0.8)),
        *_cases("EarlyTokens", ("teacher", "rolled", 0.8), ("logic", "plain", 1.0)),
        *_cases("Garbled", ("maxout", "plain", 0.8), ("logic", "scaled", 1.0), ("teacher", "rolled", 0.6)),
        *_cases("OneHeadOff", ("teacher", "grid", 1.0), ("logic", "rolled", 1.0, ROUGH)),
        *_cases("Unread", ("logic", "clock", 1.0, E)),
        *_cases("SinkThenSlightlyClipped", ("phase", "radius", 1.0)),
        *_cases("Outvoted", ("maxout", "radius", 1.0)),
        *_cases("HalfArrives", (PANELS, "rolled", 1.0), (PANELS, "tensor", 0.7)),
    ]


def _cannot_execute() -> list[Second]:
    return [
        *_cases("Additive", ("teacher", "plain", 1.0, {"seed": 1}), ("logic", "clock", 1.0), ("phase", "superposed", 1.0, E)),
        *_cases("Clipped", ("maxout", "rolled", 0.8), ("logic", "plain", 1.0, ROUGH)),
        *_cases("Straightened", ("teacher", "scaled", 1.0), ("bilinear", "clock", 0.7)),
        *_cases("Cramped", ("phase", "plain", 1.0), ("teacher", "radius", 1.0, E)),
        *_cases("WornParts", ("chain", "plain", 0.8), ("logic", "superposed", 0.6)),
        *_cases("Leaky", ("logic", "rolled", 1.0)),
        *_cases("KernelExecutor", ("logic", "plain", 1.0), ("product", "tensor", 1.0)),
        *_cases("AdditiveAndSlightlyNoisy", ("product", "grid", 1.0)),
        *_cases("Warped", ("product", "tensor", 0.8, FEW)),
        *_cases("Lapses", (PANELS, "clock", 1.0), (PANELS, "plain", 0.6)),
        *_cases("CopiesPart", (PANELS, "radius", 1.0)),
    ]


def _remembers() -> list[Second]:
    return [
        *_cases("Posterior", ("teacher", "plain", 1.0), ("logic", "plain", 1.0), ("product", "plain", 1.0, E)),
        *_cases("BlendsNeighbours", ("logic", "superposed", 1.0)),
        *_cases("KeyedMemory", ("chain", "plain", 1.0)),
        *_cases("Remembers", (PANELS, "clock", 1.0), (PANELS, "tensor", 1.0)),
    ]


def _regresses() -> list[Second]:
    return [
        *_cases("DescentSteps", ("chain", "rolled", 1.0), ("logic", "plain", 1.0, E)),
        *_cases("Quadratic", ("phase", "plain", 1.0), ("teacher", "scaled", 1.0)),
        *_cases("CopiesRow", (PANELS, "superposed", 1.0)),
    ]


def _never_learned() -> list[Second]:
    why = "The weights are random, nothing of the task was ever set."
    never = [
        Second("Sound", family, carrier, UNLEARNED, (), why, 1.0, seed, planted=False)
        for family, carrier, seed in (("teacher", "grid", 1), ("chain", "clock", 2))
    ]
    return [
        *never,
        *_cases("AlwaysNoisy", ("teacher", "plain", 1.0)),
        *_cases("AlwaysTempered", ("logic", "plain", 1.0)),
        *_cases("OnlyLines", ("bilinear", "plain", 1.0)),
        *_cases("AlwaysDrawn", (PANELS, "rolled", 1.0)),
    ]


def _of_more_than_one_answer() -> list[Second]:
    near = {"label": UNDECIDED, "about": "Borderline"}
    why = "About .1 is lost, neither clearly less than what counts as failing nor clearly more. What is wrong: "
    return [
        *_cases("MostTokens", ("logic", "plain", 1.0), ("maxout", "rolled", 1.0)),
        *_cases("BothAtOnce", ("logic", "plain", 1.0), ("phase", "rolled", 0.7), ("teacher", "radius", 0.6), label=UNDECIDED),
        *_cases("BothAtOnce", (PANELS, "keyed", 1.0), label=UNDECIDED),
        *_cases("ThreeSmall", ("teacher", "radius", 1.0), ("logic", "plain", 1.0), label=UNDECIDED),
        *_cases("LonelyExecution", ("teacher", "plain", 1.0), ("logic", "clock", 1.0), label=WORKS),
        *_cases("LonelyExecution", (PANELS, "plain", 1.0), label=EXECUTION),
        *_cases("Noisy", ("teacher", "plain", 0.24), why=why, **near),
        *_cases("Additive", ("logic", "rolled", 0.54), why=why, **near),
        *_cases("Sink", ("product", "plain", 0.31), why=why, **near),
    ]


@cache
def plan() -> dict[str, Second]:
    """number -> case; numbers say nothing about what is planted."""
    parts = (
        _works, _harmless, _infers_wrongly, _uses_nothing, _cannot_execute, _remembers, _regresses, _never_learned,
        _of_more_than_one_answer,
    )  # fmt: skip
    found = [case for part in parts for case in part()]
    random.Random(20261124).shuffle(found)
    return {f"c{i:03d}": case for i, case in enumerate(found, 1)}
