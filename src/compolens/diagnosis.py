"""What is wrong with a model: its loss on held-out compositions in parts, and a label, by rules with thresholds.

The loss is split in units of the score, from the ladder of the table `inference_or_execution` (see `compolens.oracles`):

    ceiling - score = use + inference + form + execution + unexplained

use: what it would win if the code that a readout finds in it were put where it reads its code; inference: what the right code
would win beyond that; form: what some other code than the right one would; execution: what no code wins; unexplained: what may
be execution, but is no more than the interventions themselves cost on training compositions, where the model needs no help.
Reads tables only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

from compolens import tables
from compolens.configs import ConfigError

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
MOVES = 0.5
"""Writing another code must move the answers of training compositions at least this share of the way to that code's; else no
place is known where the model reads its code, and nothing is blamed."""
FAITHFUL = 0.05
"""Writing the right code may cost this much on training compositions. Within it, a held-out composition that only another code
than the right one answers is not executed as the others are: form counts as execution. Beyond it, what is written is not what
the model writes itself, and form counts as inference."""
PARTS = ("use", "inference", "form", "execution", "unexplained")
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
DRAWS = 1000


class Loss(NamedTuple):
    """One part of a loss in score units, with its 95 % interval (two-level bootstrap over seeds and compositions)."""

    value: float
    lo: float
    hi: float

    def __str__(self) -> str:
        spread = "" if np.isnan(self.lo) else f" [{self.lo:.3f}, {self.hi:.3f}]"
        return f"{self.value:.3f}{spread}"


@dataclass(frozen=True)
class Diagnosis:
    """A label with its reasons. parts: split -> part -> loss; share: (score - floor) / (ceiling - floor) on held-out ones;
    blamed: the part, "" if none; place: where the code is read; change: what would change the label."""

    label: str
    reasons: tuple[str, ...]
    parts: dict[str, dict[str, Loss]]
    scores: dict[str, float]
    share: Loss
    blamed: str
    place: str
    change: str


class Rungs(NamedTuple):
    """One model's ladder on one split: rung -> (score, weight) per composition, (compositions,) each, in one order for all; a
    composition that a rung was not measured on has weight 0."""

    scores: dict[str, tuple[np.ndarray, np.ndarray]]

    def pooled(self, rng: np.random.Generator | None = None) -> dict[str, float]:
        """Every rung's score over all compositions, or over as many drawn with replacement: the same ones for every rung.

        "best code", searched for on fewer episodes, is what it gains over the own answer to the same ones."""
        n = len(self.scores["own answer"][0])
        pick = np.arange(n) if rng is None else rng.integers(n, size=n)
        found = {}
        for rung, (score, weight) in self.scores.items():
            total = weight[pick].sum()
            found[rung] = float((score[pick] * weight[pick]).sum() / total) if total else np.nan
        searched = found.pop("own answer, searched", np.nan)
        if not np.isnan(searched):
            found["best code"] += found["own answer"] - searched
        return {rung: value for rung, value in found.items() if not np.isnan(value)}


@dataclass(frozen=True)
class Measured:
    """One model's tables at its last step: `generalization` (scores), `inference_or_execution` (ladder), and `which_prior`
    (prior; empty without one)."""

    scores: pd.DataFrame
    ladder: pd.DataFrame
    prior: pd.DataFrame

    @classmethod
    def read(cls, folder: str | Path) -> Measured:
        """From a model folder; a missing table names the command to type."""
        scores, ladder = (tables.at_last_step(tables.read(folder, name)) for name in NEEDS)
        if "effective" not in ladder:
            raise ConfigError(
                f"{folder}: its table is of an earlier version; type: compolens probe inference_or_execution {folder} --again"
            )
        prior = tables.at_last_step(tables.read(folder, PRIOR)) if tables.path_of(folder, PRIOR).exists() else pd.DataFrame()
        return cls(scores[scores["metric"] == "score"], ladder, prior)

    def rungs(self, split: str) -> Rungs:
        """Own answer and oracles, per composition; of the places where the code is read, the best for each rung."""
        frame = self.ladder
        shown = (frame["metric"] == "score") & (frame["split"] == split) & (frame["control"] == "") & frame["value"].notna()
        frame = frame[shown & ((frame["chosen"] == 1) | (frame["effective"] == 1))]
        names = sorted(set(frame["composition"]) - {"all"})
        found = {}
        for rung, rows in frame.groupby("rung"):
            whole = rows[rows["composition"] == "all"].sort_values("value").iloc[-1]
            here = rows[(rows["site"] == whole["site"]) & (rows["role"] == whole["role"]) & (rows["composition"] != "all")]
            here = here.set_index("composition")[["value", "weight"]].reindex(names).fillna(0.0)
            found[str(rung)] = (here["value"].to_numpy(), here["weight"].to_numpy())
        return Rungs(found)

    @property
    def moved(self) -> float:
        """How far writing another code moves the answers, where it moves them most."""
        rows = self.ladder[(self.ladder["metric"] == "recovered") & (self.ladder["control"] == "")]
        return float(rows["value"].max())

    @property
    def place(self) -> str:
        """Where the code is read, in words."""
        row = self.ladder[(self.ladder["rung"] == "own answer") & (self.ladder["chosen"] == 1)].iloc[0]
        return "the explicit code" if row["site"] == "hook_code" else f"layer {row['layer']:.0f}, {row['role']} tokens"

    def frame(self) -> dict[str, float]:
        """test, ood, ceiling and floor: scores over all compositions."""
        whole = self.scores[self.scores["composition"] == "all"]
        own = whole[whole["control"] == ""].set_index("split")["value"]
        references = whole[(whole["split"] == "ood") & (whole["control"] == "reference")]
        weak = references[references["reference"].isin(tables.WEAK)]["value"].dropna()
        return {
            "test": float(own["test"]),
            "ood": float(own["ood"]),
            "ceiling": tables.ceiling_of(references),
            "floor": max([0.0, *weak]),
        }

    def per_composition(self) -> pd.DataFrame:
        """The score on held-out compositions, one by one."""
        rows = self.scores[(self.scores["split"] == "ood") & (self.scores["control"] == "")]
        return rows[rows["composition"] != "all"][["composition", "value", "weight"]]

    def distances(self, split: str) -> pd.Series:
        """reference -> distance of the model's answers to its own, the truth included; empty without a table."""
        if self.prior.empty:
            return pd.Series(dtype=float)
        rows = self.prior[(self.prior["metric"] == "distance") & (self.prior["control"] == "")]
        rows = rows[(rows["split"] == split) & (rows["composition"] == "all") & rows["value"].notna()]
        return rows.set_index("reference")["value"]


NEEDS = ("generalization", "inference_or_execution")
"""The tables without which there is no diagnosis."""
PRIOR = "which_prior"
"""…and the one that adds whose answers they are."""


def split_loss(top: float, score: dict[str, float], cost: float) -> dict[str, float]:
    """The parts of top - own answer, from every rung's score; cost: what the interventions lose on training compositions."""
    informed = max(score["own answer"], score["own code written"])
    right = max(informed, score["true code written"])
    able = max(right, score.get("best code", -np.inf))
    beyond = max(top - able, 0.0)
    unexplained = min(max(cost, 0.0), beyond)
    return {
        "use": informed - score["own answer"],
        "inference": right - informed,
        "form": able - right,
        "execution": beyond - unexplained,
        "unexplained": unexplained,
    }


def losses(models: Sequence[Measured], top: float) -> dict[str, dict[str, Loss]]:
    """split -> part -> loss: means over the models, with two-level intervals; "lost" holds ood minus test, part by part."""
    seeds = [{split: model.rungs(split) for split in ("test", "ood")} for model in models]
    point = _parts(seeds, top, None)
    rng = np.random.default_rng(0)
    draws = [_parts([seeds[i] for i in rng.integers(len(seeds), size=len(seeds))], top, rng) for _ in range(DRAWS)]
    found: dict[str, dict[str, Loss]] = {}
    for split, parts in point.items():
        found[split] = {}
        for part, value in parts.items():
            sampled = np.array([d[split][part] for d in draws])
            found[split][part] = Loss(value, *(float(q) for q in np.quantile(sampled, [0.025, 0.975])))
    return found


def _parts(seeds: Sequence[dict[str, Rungs]], top: float, rng: np.random.Generator | None) -> dict[str, dict[str, float]]:
    rows = []
    for seed in seeds:
        test, ood = seed["test"].pooled(rng), seed["ood"].pooled(rng)
        cost = test["own answer"] - max(test["true code written"], test.get("best code", -np.inf))
        parts = {"test": split_loss(top, test, cost), "ood": split_loss(top, ood, cost)}
        parts["lost"] = {part: parts["ood"][part] - parts["test"][part] for part in PARTS}
        rows.append(parts)
    return {
        split: {part: float(np.mean([row[split][part] for row in rows])) for part in PARTS}
        for split in ("test", "ood", "lost")
    }


def faithful(models: Sequence[Measured]) -> bool:
    """Whether the right code, written, costs next to nothing on training compositions."""
    test = [model.rungs("test").pooled() for model in models]
    return float(np.mean([t["own answer"] - t["true code written"] for t in test])) <= FAITHFUL


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
    if nearest is None or far[nearest] > NEAR or far[nearest] > far.get("truth", np.inf):
        return None
    return nearest, far[nearest]


def in_words(parts: dict[str, Loss]) -> str:
    """The parts of a loss that are not next to nothing, the largest first."""
    ordered = sorted(parts.items(), key=lambda item: -abs(item[1].value))
    return ", ".join(f"{name} {loss}" for name, loss in ordered if abs(loss.value) >= 0.0005) or "nothing"


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
    parts = losses(models, scores["ceiling"])
    label, reasons, blamed = _label(models, scores, share, parts["lost"])
    place = models[0].place if min(model.moved for model in models) >= MOVES else "no place that is known"
    return Diagnosis(label, tuple(reasons), parts, scores, share, blamed, place, _CHANGES[label])


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
    if shares["use"] + shares["inference"] < DOMINATES * gap:  # whose answers they are says nothing where a code mends them
        for label, among in (("memorised", MEMORY), ("generic regression", GENERIC)):
            like = _taken_for(models, "ood", among)
            if like is not None:
                reasons.append(f"no code written wins half of it back, and its answers are those of {_far(like)}")
                return label, reasons, "execution"
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
