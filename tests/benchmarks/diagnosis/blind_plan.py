"""Which models the blind set is made of, and what each is to be called: fixed by construction, before any was diagnosed.

Its author had read neither the rules of the diagnosis nor what they get wrong. A case fails only if its score on held-out
compositions is at least .1 below its test score. Where more than one answer is right, all of them are written down.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from functools import cache

from blind_codes import CARRIERS
from blind_faults import FAULTS
from blind_models import PlantedBlind, task_of
from blind_raven import CARRIERS as PANEL_CARRIERS
from blind_raven import FAULTS as PANEL_FAULTS
from blind_raven import BlindSolver
from cases import NOISE, Case

from compolens.training import Run

WORKS, INFERENCE, USE, EXECUTION = "compositional", "fails to infer", "infers but does not use", "cannot execute"
MEMORY, GENERIC, UNLEARNED = "memorised", "generic regression", "has not learned its training compositions"
UNDECIDED = "undecided"
LABELS = (WORKS, INFERENCE, USE, EXECUTION, MEMORY, GENERIC, UNLEARNED, UNDECIDED)
ALSO: dict[str, tuple[str, ...]] = {
    "Closed": (EXECUTION,),
    "RecallsByCode": (EXECUTION,),
    "Collision": (INFERENCE,),
    "MeanAnswer": (INFERENCE,),
    "HalfAndHalf": (INFERENCE, EXECUTION, UNDECIDED),
    "Lonely": (WORKS, INFERENCE, UNDECIDED),
    "AFew": (WORKS, EXECUTION, UNDECIDED),
    "RemembersByRules": (INFERENCE,),
    "MostFrequent": (EXECUTION,),
}
"""Fault -> what else is right; the reason stands with the fault."""
WHOLE, BOUND, SHARES = "whole", "bound", "shares"
E = True
"""An explicit code."""
PANELS = "panels"
RAVEN_RULES = {"Remembers": 7}


@dataclass(frozen=True)
class Blinded:
    """One case, without its number. label: the expected one; also: what else is right; why: in one sentence; few: whether few
    pairs are held out; planted: whether the weights are set at all; rough: whether they are roughened."""

    fault: str
    family: str
    carrier: str
    label: str
    also: tuple[str, ...]
    why: str
    strength: float = 1.0
    seed: int = 0
    transport: str = WHOLE
    explicit: bool = False
    few: bool = False
    planted: bool = True
    rough: bool = False

    @property
    def kind(self) -> str:
        """What intervals are clustered by: the fault; of models that work, how they carry the code."""
        if not self.planted:
            return "NeverPlanted"
        if self.fault not in ("Blind", "Works"):
            return self.fault
        return f"Works, {self.carrier if self.transport == WHOLE else self.transport}"

    @property
    def acceptable(self) -> tuple[str, ...]:
        """The expected label, then what else is right."""
        return (self.label, *(other for other in self.also if other != self.label))

    @property
    def run(self) -> Run:
        """What the folder of a model that is planted in a stream describes."""
        task = task_of(self.family, self.seed, self.few)
        own = PlantedBlind(task, self.fault, self.carrier, self.transport, self.strength, self.explicit)
        return Run(own, task, steps=0, init_seed=self.seed, data_seed=self.seed, evaluation_episodes=64)

    def case(self) -> Case:
        """The same as a case of the benchmark."""
        kept = (self.kind, self.family, self.strength, self.seed, self.explicit, self.label, self.run)
        return Case(*kept, planted=self.planted, noise=NOISE * self.rough, generation=5)

    @property
    def arguments(self) -> dict[str, object]:
        """Of a `BlindSolver`."""
        rules = RAVEN_RULES.get(self.fault, 5)
        return {"fault": self.fault, "carrier": self.carrier, "rules": rules, "strength": self.strength, "seed": self.seed}

    @property
    def solver(self) -> BlindSolver:
        """The model, where it answers with classes."""
        return BlindSolver(**self.arguments)  # type: ignore[arg-type]


def _without_label(text: str) -> str:
    text = " ".join(text.split())
    label, colon, rest = text.partition(": ")
    return rest if colon and label in LABELS else text


def _why(fault: str, family: str) -> str:
    said = _without_label(PANEL_FAULTS[fault] if family == PANELS else str(FAULTS[fault].__doc__))
    return said[0].upper() + said[1:].rstrip(".") + "."


def _label(fault: str, family: str) -> str:
    said = " ".join((PANEL_FAULTS[fault] if family == PANELS else str(FAULTS[fault].__doc__)).split())
    return next((label for label in LABELS if said.startswith(f"{label}:")), UNDECIDED)


def _wrong(fault: str, *rows: tuple, label: str | None = None) -> list[Blinded]:
    """Rows of (family, carrier, strength, explicit or rough or few by name)."""
    found = []
    for i, (family, carrier, strength, *rest) in enumerate(rows):
        given: dict = rest[0] if rest else {}
        seed = given.get("seed", (i + len(fault)) % 4)
        own = label or _label(fault, family)
        also = ALSO.get(fault, ())
        why = _why(fault, family)
        if given.get("few") and UNDECIDED not in also:
            also, why = (*also, UNDECIDED), f"{why} Four held-out pairs are few: undecided is right as well."
        found.append(Blinded(fault, family, carrier, own, also, why, strength, **(given | {"seed": seed})))
    return found


def _working(family: str, carrier: str, i: int, **given: object) -> Blinded:
    fault = "Works" if family == PANELS else "Blind"
    how = CARRIERS[carrier].__doc__ if carrier in CARRIERS and family != PANELS else PANEL_CARRIERS[carrier]
    way = {WHOLE: "", BOUND: " What a question takes over is locked by its own x.", SHARES: " Every context token masks it."}
    why = "The code is inferred, carried and executed for every composition. How it is carried: " + " ".join(str(how).split())
    why += way[str(given.get("transport", WHOLE))]
    return Blinded(fault, family, carrier, WORKS, (), why, 1.0, i % 4, **given)  # type: ignore[arg-type]


def _works() -> list[Blinded]:
    plan: tuple[tuple[str, tuple[tuple[str, dict], ...]], ...] = (
        ("signs", (("teacher", {}), ("logic", {"rough": True}), ("chain", {"explicit": E}), ("bilinear", {}))),
        ("population", (("teacher", {"explicit": E}), ("logic", {}), ("phase", {}))),
        ("gray", (("teacher", {}), ("chain", {}), ("maxout", {"explicit": E}))),
        ("keyed", (("teacher", {"rough": True}), ("logic", {"explicit": E}), ("phase", {}))),
        ("gated", (("teacher", {}), ("product", {}), ("logic", {}))),
        ("hashed", (("logic", {}), ("maxout", {}))),
        ("parity", (("product", {}), ("bilinear", {"explicit": E}))),
        ("plain", (("teacher", {"transport": BOUND}), ("maxout", {"transport": BOUND}), ("logic", {"transport": SHARES}))),
        ("signs", (("chain", {"transport": BOUND}), ("teacher", {"transport": SHARES}))),
        ("words", ((PANELS, {}),)),
        ("bits", ((PANELS, {}),)),
        ("keyed", ((PANELS, {}),)),
    )
    flat = [(carrier, family, given) for carrier, rows in plan for family, given in rows]
    return [_working(family, carrier, i, **given) for i, (carrier, family, given) in enumerate(flat)]


def _infers_wrongly() -> list[Blinded]:
    return [
        *_wrong(
            "Misbound",
            ("teacher", "plain", 0.7),
            ("logic", "population", 1.0),
            ("chain", "keyed", 0.8, {"explicit": E}),
            ("phase", "gray", 1.0),
            ("bilinear", "hashed", 1.0),
            ("product", "gated", 0.7),
        ),
        *_wrong(
            "RolesSwapped",
            ("chain", "plain", 0.6),
            ("product", "parity", 1.0),
            ("maxout", "hashed", 1.0, {"explicit": E}),
            ("bilinear", "signs", 0.7),
        ),
        *_wrong("Hasty", ("teacher", "signs", 0.8), ("logic", "plain", 1.0), ("teacher", "population", 1.0, {"explicit": E})),
        *_wrong("Hedged", ("teacher", "keyed", 1.0, {"rough": True}), ("logic", "plain", 1.0), ("phase", "population", 0.9)),
        *_wrong("Reversed", (PANELS, "words", 1.0), (PANELS, "keyed", 0.7)),
        *_wrong("MisboundRows", (PANELS, "plain", 1.0), (PANELS, "bits", 1.0)),
    ]


def _uses_nothing() -> list[Blinded]:
    bound = {"transport": BOUND}
    return [
        *_wrong(
            "Outvoted",
            ("teacher", "plain", 1.0),
            ("logic", "keyed", 0.8),
            ("chain", "signs", 0.6),
            ("phase", "plain", 0.8, {"explicit": E}),
        ),
        *_wrong(
            "SomeQuestions", ("teacher", "plain", 1.0, bound), ("product", "gray", 1.0, bound), ("logic", "plain", 0.9, bound)
        ),
        *_wrong(
            "Misdelivered",
            ("teacher", "signs", 0.9, {"rough": True}),
            ("logic", "hashed", 1.0),
            ("bilinear", "parity", 1.0),
            ("maxout", "keyed", 0.7),
        ),
        *_wrong("Closed", ("teacher", "plain", 0.9), ("chain", "population", 0.8), ("logic", "plain", 0.8, {"explicit": E})),
        *_wrong("ReversedOnTheWay", (PANELS, "plain", 1.0), (PANELS, "keyed", 0.7)),
        *_wrong("Dropped", (PANELS, "words", 1.0), (PANELS, "bits", 0.8)),
    ]


def _cannot_execute() -> list[Blinded]:
    return [
        *_wrong("Columns", ("teacher", "keyed", 0.6), ("bilinear", "plain", 1.0), ("phase", "hashed", 0.7)),
        *_wrong("OddPart", ("teacher", "gray", 0.9), ("product", "plain", 1.0), ("logic", "signs", 0.7, {"explicit": E})),
        *_wrong(
            "Impostors", ("teacher", "population", 0.6), ("chain", "plain", 0.8), ("bilinear", "parity", 0.6, {"explicit": E})
        ),
        *_wrong(
            "Warped",
            ("logic", "keyed", 1.0),
            ("maxout", "signs", 0.9, {"rough": True}),
            ("teacher", "plain", 0.8),
            ("product", "gated", 1.0),
        ),
        *_wrong("Ciphered", (PANELS, "plain", 1.0), (PANELS, "words", 0.6)),
        *_wrong("ReadsNeighbour", (PANELS, "keyed", 1.0), (PANELS, "bits", 1.0)),
    ]


def _remembers() -> list[Blinded]:
    return [
        *_wrong(
            "KeyedMemory",
            ("teacher", "plain", 1.0),
            ("logic", "plain", 1.0),
            ("phase", "plain", 0.9),
            ("bilinear", "plain", 1.0, {"explicit": E}),
        ),
        *_wrong("LateMemory", ("logic", "plain", 1.0), ("chain", "plain", 0.9), ("maxout", "plain", 1.0)),
        *_wrong("RecallsByCode", ("teacher", "signs", 1.0), ("product", "hashed", 0.9), ("logic", "plain", 1.0)),
        *_wrong("Collision", ("maxout", "hashed", 1.0), ("chain", "plain", 0.9, {"explicit": E})),
        *_wrong("Remembers", (PANELS, "keyed", 1.0), (PANELS, "words", 1.0)),
        *_wrong("RemembersByRules", (PANELS, "plain", 1.0)),
    ]


def _regresses() -> list[Blinded]:
    return [
        *_wrong("MeanAnswer", ("teacher", "plain", 1.0), ("phase", "signs", 1.0, {"explicit": E})),
        *_wrong("NearestExample", ("logic", "plain", 1.0), ("chain", "signs", 1.0)),
        *_wrong("MostFrequent", (PANELS, "plain", 1.0)),
    ]


def _never_learned() -> list[Blinded]:
    why = "The weights are random, nothing of the task was ever set."
    never = [
        Blinded("Blind", family, carrier, UNLEARNED, (), why, 1.0, seed, planted=False)
        for family, carrier, seed in (("teacher", "gray", 1), ("product", "hashed", 2), ("logic", "keyed", 3))
    ]
    return [
        *never,
        *_wrong("OneCode", ("teacher", "plain", 1.0), ("logic", "gray", 1.0)),
        *_wrong("AlwaysMisbound", ("product", "keyed", 1.0), ("phase", "plain", 0.9, {"explicit": E})),
        *_wrong("AlwaysColumns", ("chain", "plain", 1.0), ("teacher", "population", 0.8)),
        *_wrong("RowsAsColumns", (PANELS, "plain", 1.0)),
        *_wrong("OneRule", (PANELS, "words", 1.0, {"seed": 1})),
    ]


def _of_more_than_one_answer() -> list[Blinded]:
    few = {"few": True}
    return [
        *_wrong("HalfAndHalf", ("teacher", "plain", 1.0), ("logic", "plain", 1.0), ("product", "keyed", 1.0)),
        *_wrong("HalfAndHalf", (PANELS, "plain", 1.0, {"seed": 2})),
        *_wrong("Lonely", ("teacher", "plain", 1.0), ("bilinear", "signs", 1.0, few), label=INFERENCE),
        *_wrong("Lonely", ("product", "plain", 0.6), label=WORKS),
        *_wrong("AFew", ("teacher", "signs", 1.0), ("logic", "plain", 1.0), ("chain", "plain", 1.0), label=EXECUTION),
        *_wrong("Misbound", ("chain", "plain", 0.9, few)),
        *_wrong("Warped", ("phase", "signs", 1.0, few)),
        *_wrong("KeyedMemory", ("maxout", "plain", 1.0, few)),
    ]


def _harmless() -> list[Blinded]:
    rows = (
        ("Misbound", "teacher", "keyed", 0.15),
        ("Columns", "product", "plain", 0.1),
        ("Warped", "logic", "plain", 0.15),
        ("KeyedMemory", "phase", "plain", 0.12),
        ("Outvoted", "maxout", "signs", 0.12),
        ("Reversed", PANELS, "plain", 0.04),
    )
    why = "So little is wrong that held-out compositions are answered nearly as well as training ones. What little there is: "
    return [
        Blinded(fault, family, carrier, WORKS, (), why + _why(fault, family), strength, i % 4)
        for i, (fault, family, carrier, strength) in enumerate(rows)
    ]


@cache
def plan() -> dict[str, Blinded]:
    """number -> case; numbers say nothing about what is planted."""
    parts = (
        _works, _infers_wrongly, _uses_nothing, _cannot_execute, _remembers, _regresses, _never_learned,
        _of_more_than_one_answer, _harmless,
    )  # fmt: skip
    found = [case for part in parts for case in part()]
    random.Random(20261123).shuffle(found)
    return {f"b{i:03d}": case for i, case in enumerate(found, 1)}
