"""The cases of the diagnosis benchmark: models whose failure is known by construction, and trained ones where it is intended.

Every expected label is fixed here, before any threshold is. A planted case fails only if its score on held-out compositions is
at least .1 below its test score: strengths are chosen well to one side of that, and where too little is wrong to count, the
expected label is "compositional".

Cases come in generations, by what had been chosen when they were made:

    0   rules were chosen on a part of them (`bench.held_out` says which were not looked at then), and tested on the rest
    1   the first fresh set, the family of chains and the kinds of `fresh_mechanisms`: rules were tested on it, then mended
    2   the second one, the family of products and the kinds of `new_mechanisms`: rules were tested on it, and it was looked at
    3   the third one, the family of maxouts and the kinds of `third_mechanisms`: rules were tested on it, and it was looked at
    4   the fourth one, the family of phases and the kinds of `fourth_mechanisms`: rules were tested on it, and none changed

Only the last is `fresh`: whoever changes a rule after a look at what it gets there makes it stale, and owes a new one.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import torch
from chain import Chain
from fourth_plan import before_phases, on_phases
from kinds import (
    Planted,
    PlantedCompositional,
    PlantedEntangled,
    PlantedLeftBehind,
    PlantedLookup,
    PlantedNearestSupport,
    PlantedRidgeFallback,
    PlantedRotated,
    PlantedScrambled,
    PlantedWrongPartner,
    Task,
)
from labels import COMPOSITIONAL, FAILING, FRESH_FAILING, HARMLESS, KINDS, MIXED, NOT_LEARNED, STRENGTHS
from maxout import Maxout
from new_plan import new_family, new_kinds
from phase import Phase
from plan import Planned
from planted import PlantedModel
from product import Product
from third_plan import before_maxouts, on_maxouts

from compolens.foundation import digests, files
from compolens.foundation.configs import ConfigError, nearest
from compolens.hooks import HookedModel
from compolens.models.base import count_parameters
from compolens.tasks import FuzzyLogic, Hyperteacher
from compolens.training import Run, card, evaluate, train

PAIRS: dict[str, type] = {"chain": Chain, "product": Product, "maxout": Maxout, "phase": Phase}
CLASSES: tuple[type, ...] = (*KINDS, *PAIRS.values())
"""What `compolens.load(folder, classes=CLASSES)` needs to open a case."""
SEEN = ("teacher", "logic")
"""Families that rules were chosen or tested on first."""
NEWEST = 4
"""The generation that no rule has seen."""
MEASURED: dict[str, dict[str, Any]] = {
    "generalization": {"episodes": 256},
    "inference_or_execution": {"episodes": 256, "fitted": 512, "searched": 64},
    "which_prior": {"episodes": 256, "tangent_episodes": 64, "iterations": 2},
    "code_structure": {"episodes": 768},
    "nonlinear_code": {"episodes": 192, "fitted": 384},
}
"""Probe -> on how many episodes the benchmark measures it."""
NOISE = 0.005
STAGES = 3


@dataclass(frozen=True)
class Case:
    """kind: the architecture's name without "Planted", "Untrained" or "Shuffled"; family: one of `STRENGTHS`; expected: the
    label; run: what the folder describes; planted: whether the weights are set at all; noise: how rough they are then (see
    `PlantedModel.roughen`); shuffled: the stage whose weights are permuted, if one is; generation: which set it belongs to."""

    kind: str
    family: str
    strength: float
    seed: int
    explicit: bool
    expected: str
    run: Run
    planted: bool = True
    noise: float = 0.0
    shuffled: int | None = None
    generation: int = 0

    @property
    def fresh(self) -> bool:
        """Whether no rule was chosen or tested on such a case before."""
        return self.generation == NEWEST

    @property
    def name(self) -> str:
        """Says everything that tells cases apart."""
        form, texture = "code" if self.explicit else "stream", "rough" if self.noise else "exact"
        stage = "" if self.shuffled is None else f"-stage{self.shuffled}"
        return f"{self.family}-{self.kind}{stage}-{self.strength}-{form}-{texture}-{self.seed}"


@cache
def task_of(family: str, seed: int) -> Task:
    """The small task of a family: 24 training compositions and 10 held out; or 20 and 46; or, for pairs, 24 and 12."""
    if family == "teacher":
        return Hyperteacher(d_x=8, d_y=4, d_hidden=8, n_queries=4, teacher_seed=seed, split_seed=seed)
    if family == "logic":
        return FuzzyLogic(split_seed=seed)
    if family in PAIRS:
        return PAIRS[family](teacher_seed=seed, split_seed=seed)
    raise ConfigError(f"no family {family!r}; {nearest(family, STRENGTHS)}")


def case_of(
    architecture: type[Planted], family: str, strength: float, seed: int, explicit: bool, expected: str, noise: float = 0.0
) -> Case:
    """One planted case."""
    task = task_of(family, seed)
    run = Run(architecture(task, strength, explicit), task, steps=0, init_seed=seed, data_seed=seed, evaluation_episodes=64)
    return Case(architecture.__name__.removeprefix("Planted"), family, strength, seed, explicit, expected, run, noise=noise)


def _working(family: str) -> list[Case]:
    found = [
        case_of(kind, family, strength, seed, explicit, COMPOSITIONAL, NOISE * (seed % 2))
        for kind, strengths in ((PlantedCompositional, (1.0,)), (PlantedScrambled, (0.5, 1.0)))
        for strength in strengths
        for explicit in (False, True)
        for seed in ((0, 1) if family == "teacher" else (int(explicit),))
    ]
    slightly = [k for k in FAILING if k not in (PlantedLeftBehind, PlantedNearestSupport)]
    return found + [
        case_of(kind, family, HARMLESS[family], i, i % 2 == 1, COMPOSITIONAL, NOISE * (i % 3 == 0))
        for i, kind in enumerate(slightly)
    ]


def _failing(family: str) -> list[Case]:
    """Every kind at every strength; on the teacher with and without an explicit code, on fuzzy logic in turn."""
    found = []
    for k, (kind, expected) in enumerate(FAILING.items()):
        for i, strength in enumerate(STRENGTHS[family]):
            forms = (False, True) if family == "teacher" else ((i + k) % 2 == 1,)
            for explicit in forms:
                noise = NOISE * ((i + k + explicit) % 2 if family == "teacher" else k % 2)
                found.append(case_of(kind, family, strength, (i + 3 * explicit + k) % 6, explicit, expected, noise))
    return found


def _mixed(family: str) -> list[Case]:
    """Both kinds at two strengths; on the teacher with and without an explicit code."""
    found = []
    for k, (kind, expected) in enumerate(MIXED.items()):
        for i, strength in enumerate(STRENGTHS[family][1:]):
            for explicit in (False, True) if family == "teacher" else (i == k,):
                found.append(case_of(kind, family, strength, 2 * i + k, explicit, expected, NOISE * ((i + k) % 2)))
    return found


def _broken(family: str) -> list[Case]:
    """Never planted; planted, then one stage shuffled."""
    seeds = range(3 if family == "teacher" else 2)
    base = [case_of(PlantedCompositional, family, 1.0, seed, seed == 1, NOT_LEARNED) for seed in seeds]
    untrained = [Case("Untrained", family, 1.0, c.seed, c.explicit, NOT_LEARNED, c.run, planted=False) for c in base]
    shuffled = []
    for stage in range(STAGES):
        for seed in (stage, stage + 3)[: 2 if family == "teacher" else 1]:
            c = case_of(PlantedCompositional, family, 1.0, seed, stage < 2 and seed >= 3, NOT_LEARNED)
            shuffled.append(Case("Shuffled", family, 1.0, seed, c.explicit, NOT_LEARNED, c.run, shuffled=stage))
    return untrained + shuffled


def _fresh_kinds(family: str) -> list[Case]:
    """The kinds of the first fresh set on a family that had been seen: each twice, once with an explicit code."""
    found = [case_of(PlantedRotated, family, 1.0, e, e == 1, COMPOSITIONAL, NOISE * e) for e in (0, 1)]
    for k, (kind, expected) in enumerate(FRESH_FAILING.items()):
        for i, strength in enumerate(STRENGTHS[family][::2]):
            found.append(case_of(kind, family, strength, 2 + k + i, (i + k) % 2 == 1, expected, NOISE * (k // 2 == i)))
    return found


def _chain() -> list[Case]:
    """Every kind that there was on the first fresh family, in turn with and without an explicit code; the two that answer
    like a known learner, which have a label to themselves, at every strength."""
    weak, middle, full = STRENGTHS["chain"]
    plan: list[tuple[type[Planted], str, tuple[float, ...]]] = [
        (PlantedCompositional, COMPOSITIONAL, (1.0, 1.0)),
        (PlantedScrambled, COMPOSITIONAL, (0.5, 1.0)),
        (PlantedRotated, COMPOSITIONAL, (1.0,)),
        *((k, COMPOSITIONAL, (HARMLESS["chain"],)) for k in (PlantedWrongPartner, PlantedEntangled, PlantedRidgeFallback)),
    ]
    often = (PlantedLookup, PlantedRidgeFallback)
    plan += [(kind, label, (weak, middle, full) if kind in often else (weak, full)) for kind, label in FAILING.items()]
    plan += [(kind, label, (full,)) for kind, label in MIXED.items()]
    plan += [(kind, label, (middle,)) for kind, label in FRESH_FAILING.items()]
    found = []
    for k, (kind, label, strengths) in enumerate(plan):
        for i, strength in enumerate(strengths):
            found.append(
                case_of(kind, "chain", strength, (k + 2 * i) % 6, (k + i) % 2 == 1, label, NOISE * ((k // 2 + i) % 2))
            )
    return found + _broken("chain")


def _seen() -> list[Case]:
    return [c for family in SEEN for part in (_working, _failing, _mixed, _broken) for c in part(family)]


def _planned(family: str, *parts: list[Planned]) -> list[Case]:
    """A later fresh set: the parts of its plan, then what its new family answers when broken."""
    return [case_of(*p[:6], NOISE * p.rough) for part in parts for p in part] + _broken(family)


def cases() -> dict[str, Case]:
    """name -> every constructed case, one generation after the other."""
    first = [c for family in SEEN for c in _fresh_kinds(family)] + _chain()
    second = _planned("product", new_family(), new_kinds())
    third = _planned("maxout", on_maxouts(), before_maxouts())
    later = (first, second, third, _planned("phase", on_phases(), before_phases()))
    found = [replace(case, generation=g) for g, group in enumerate((_seen(), *later)) for case in group]
    named = {case.name: case for case in found}
    assert len(named) == len(found), "two cases of one name"
    return named


def model_of(case: Case) -> PlantedModel:
    """The case's model, in evaluation mode."""
    model = case.run.build()
    assert isinstance(model, PlantedModel)
    generator = torch.Generator().manual_seed(case.seed)
    if case.planted:
        model.plant()
    if case.noise:
        model.roughen(case.noise, generator)
    if case.shuffled is not None:
        model.shuffle(case.shuffled, generator)
    return model.eval()


def build(case: Case, folder: str | Path) -> Path:
    """Write an ordinary model folder: a run of 0 steps as it would be trained, then the case's weights, with their scores.

    `compolens.load(folder, classes=CLASSES)` opens it; its untrained control is the model before anything was planted.
    """
    return written(folder, case.run, model_of(case))


@torch.no_grad()
def written(folder: str | Path, run: Run, model: HookedModel) -> Path:
    """An ordinary model folder of a run of 0 steps, with the weights and scores of `model` in place of the initial ones."""
    folder = Path(folder)
    scores = train(run, folder)
    for split in ("train", "test", "ood"):
        result = evaluate(model, run.task, split, scores[split]["episodes"], f"final/{run.data_seed}", batch=256)
        scores[split] |= {"score": result.score, "se": result.se}
    assert scores["parameters"] == count_parameters(model)
    files.write_tensors(folder / "weights.safetensors", model.state_dict(), {"step": 0})
    files.write_atomically(folder / "README.md", card(run, folder.name, scores).encode())
    digests.finish(folder, scores)
    return folder
