"""What is wrong with a model: its loss on held-out compositions in parts, and a label, by rules with thresholds.

The parts are those of `compolens.decomposition`: ceiling - score = use + inference + form + execution + unexplained. Reads
tables only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from compolens import tables
from compolens.decomposition import BELOW, NEEDS, NOTHING, Loss, Measured, decompose, in_words, ladders, power

LEARNED = 0.9
"""Test score as a share of the ceiling from which training compositions count as learned: below it the model has not finished
its training task, and its held-out score says little about composition."""
MARGIN = 0.15
"""*Compositional* is a claim of equivalence: (score - floor) / (ceiling - floor) on held-out compositions must be above
1 - MARGIN with 97.5 % confidence. The floor is the best learner that recombines nothing."""
FAILS = 0.05
"""A model fails if its held-out score lies below its test score by at least this much (in score units); with less there is
nothing to explain."""
DOMINATES = 0.5
"""A part is what is wrong if it explains at least this share of the score lost between training and held-out compositions."""
NEAR = 0.1
"""Answers whose squared distance to a learner's is below this share of the answers' variance are taken for that learner's."""
NEARER = 0.5
"""…if they are no more than this share as far from that learner's as from the truth."""
MOVES = 0.5
"""Writing another code must move the answers of training compositions at least this share of the way to that code's; else no
place is known where the model reads its code, and nothing is blamed."""
FAITHFUL = 0.05
"""Writing the right code may cost this much on training compositions. Within it, a held-out composition that only another code
than the right one answers is not executed as the others are: form counts as execution. Beyond it, what is written is not what
the model writes itself, and form counts as inference."""
LABELS = {
    "compositional": "answers held-out compositions as an ideal learner would, up to the margin",
    "has not learned its training compositions": "there is no point in asking why it fails on others",
    "fails to infer": "given the right code it answers; its own code of held-out compositions is not right",
    "infers but does not use": "the right code can be read from it, and would help where it reads its code",
    "cannot execute": "given the right code, it does not answer held-out compositions",
    "memorised": "answers held-out compositions as the nearest training composition would",
    "generic regression": "answers like a learner that knows nothing of compositions",
    "undecided": "the tables do not say",
}


@dataclass(frozen=True)
class Diagnosis:
    """A label with its reasons. parts: split -> part -> loss; share: (score - floor) / (ceiling - floor) on held-out ones;
    blamed: the part, "" if none; place: where the code is read; change: what would change the label; power: part of which no
    loss was found (its interval reaches down to nothing) -> how likely one of `FAILS` would have been (see
    `decomposition.power`)."""

    label: str
    reasons: tuple[str, ...]
    parts: dict[str, dict[str, Loss]]
    scores: dict[str, float]
    share: Loss
    blamed: str
    place: str
    change: str
    power: dict[str, float]

    @property
    def remainder(self) -> str:
        """The largest part of the held-out loss, of those that there is a repair for and that are not 0; "" if none."""
        there = {part: loss.value for part, loss in self.parts["ood"].items() if part in BELOW and loss.lo > 0}
        return max(there, key=lambda part: there[part], default="")


def faithful(models: Sequence[Measured]) -> bool:
    """Whether the right code, written, costs next to nothing on training compositions."""
    test = [model.rungs("test").pooled() for model in models]
    return float(np.mean([(t["own answer"] - t["true code written"]).item() for t in test])) <= FAITHFUL


def frame_of_scores(models: Sequence[Measured]) -> dict[str, float]:
    """test, ood, ceiling and floor: pooled scores, averaged over the models."""
    rows = [model.frame() for model in models]
    return {k: float(np.mean([row[k] for row in rows])) for k in rows[0]}


def share_of_what_can_be_had(models: Sequence[Measured], scores: dict[str, float]) -> Loss:
    """(ood - floor) / (ceiling - floor) with its two-level interval."""
    found = tables.two_level_interval([model.per_composition() for model in models])
    scale = max(scores["ceiling"] - scores["floor"], 1e-9)
    return Loss(*((value - scores["floor"]) / scale for value in found))


# ---- whose answers -----------------------------------------------------------------------------------------------------
GENERIC = ("in-context ridge", "frozen features", "linearised net")
"""The learners of `which_prior` that know nothing of compositions."""
MEMORY = ("best training composition",)
"""…and those that know the training compositions alone."""


def distances(models: Sequence[Measured], split: str) -> dict[str, float]:
    """reference -> distance of the models' answers to its own, the truth included, nearest first; means over the models that
    have the table, {} unless all have."""
    rows = [model.distances(split) for model in models]
    if any(row.empty for row in rows):
        return {}
    means = pd.concat(rows).groupby(level=0).mean().sort_values()
    return {str(reference): float(value) for reference, value in means.items()}


def _taken_for(models: Sequence[Measured], split: str, among: Sequence[str]) -> tuple[str, float] | None:
    """(learner, distance) of those whose answers the models give, nearer than the truth; None if none is, or without table."""
    far = distances(models, split)
    nearest = min((r for r in among if r in far), key=lambda r: far[r], default=None)
    if nearest is None or far[nearest] > min(NEAR, NEARER * far.get("truth", np.inf)):
        return None
    return nearest, far[nearest]


# ---- the label ---------------------------------------------------------------------------------------------------------
def measured(folders: Sequence[Path]) -> list[Measured] | None:
    """The models' tables; None where one that is needed is missing."""
    if not all(tables.path_of(folder, table).exists() for folder in folders for table in NEEDS):
        return None
    return [Measured.read(folder) for folder in folders]


def diagnose(folders: Sequence[Path]) -> Diagnosis | None:
    """The diagnosis of models that differ in seeds alone; None where a table is missing."""
    models = measured(folders)
    if models is None:
        return None
    scores = frame_of_scores(models)
    share = share_of_what_can_be_had(models, scores)
    parts = decompose(models, scores["ceiling"])
    label, reasons, blamed = _label(models, scores, share, parts["lost"])
    place = models[0].place if min(model.moved for model in models) >= MOVES else "no place that is known"
    seeds, absent = ladders(models), [part for part in BELOW if not parts["lost"][part].lo > NOTHING]
    powers = {part: power(seeds, scores["ceiling"], part, FAILS) for part in absent}
    return Diagnosis(label, tuple(reasons), parts, scores, share, blamed, place, _CHANGES[label], powers)


def _label(
    models: Sequence[Measured], scores: dict[str, float], share: Loss, lost: dict[str, Loss]
) -> tuple[str, list[str], str]:
    """(label, reasons, blamed part): the first rule that holds."""
    generic = [_taken_for(models, split, GENERIC) for split in ("test", "ood")]
    if generic[0] and generic[1]:
        return "generic regression", [f"its answers are those of {_far(generic[1])}, on training compositions too"], ""
    top, gap = scores["ceiling"], scores["test"] - scores["ood"]
    if scores["test"] / top < LEARNED:
        reason = f"test score {scores['test']:.3f} is below {LEARNED} of the ceiling {top:.3f}"
        return "has not learned its training compositions", [reason], ""
    had = f"of what can be had above the floor {scores['floor']:.3f} it has {share} on held-out compositions"
    if share.lo > 1 - MARGIN:
        return "compositional", [f"{had}, above 1 - {MARGIN}"], ""
    if gap < FAILS:
        return "undecided", [f"{had}, but only {gap:.3f} less than on training compositions: nothing to explain"], ""
    reasons = [f"from training to held-out compositions {gap:.3f} is lost: {in_words(lost)}"]
    moved = min(model.moved for model in models)
    shares = {part: lost[part].value for part in ("use", "inference", "execution")}
    shares["execution" if faithful(models) else "inference"] += lost["form"].value
    mended, unused = (won >= DOMINATES * gap for won in (shares["use"] + shares["inference"], shares["use"]))
    for label, among in (("generic regression", GENERIC), ("memorised", MEMORY)):
        like = _taken_for(models, "ood", among)
        if like is None or unused or (label == "memorised" and mended):
            continue  # a wrong code that is executed also gives a training composition's answers; no code at all, a mean's
        end = "although a code written mends it" if mended else "and no code written wins half of it back"
        return label, [*reasons, f"its answers are those of {_far(like)}, {end}"], "inference" if mended else "execution"
    if moved < MOVES:
        return "undecided", [*reasons, f"no place is known where it reads its code (writing moves answers {moved:.2f})"], ""
    blamed = max(shares, key=lambda part: shares[part])
    if shares[blamed] < DOMINATES * gap:
        return "undecided", [*reasons, f"no part explains {DOMINATES:.0%} of it"], ""
    return _BLAMES[blamed], reasons, blamed


def _far(like: tuple[str, float]) -> str:
    return f'the learner "{like[0]}" (distance {like[1]:.3f})'


_BLAMES = {"use": "infers but does not use", "inference": "fails to infer", "execution": "cannot execute"}
_CHANGES = {
    "compositional": "a held-out score whose interval reaches below the margin",
    "has not learned its training compositions": "longer or better training",
    "fails to infer": "a code written at that place that does not help, or a placebo that helps as much (--confirm)",
    "infers but does not use": "the decoded code written where it is read, and no better answers",
    "cannot execute": "the right code, written at another place, with which it answers",
    "memorised": "answers nearer to the truth than to the nearest training composition's",
    "generic regression": "answers further from that learner's than from the truth",
    "undecided": "more seeds, more episodes, or a place where writing a code moves the answers",
}
