"""One model's tables at its last step, as the diagnosis reads them: scores, ladders, readings, donors. Reads tables only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
import pandas as pd

from compolens import tables
from compolens.diagnosis.groups import task_of
from compolens.diagnosis.readings import Named, Told, named_at, told_at
from compolens.foundation.configs import ConfigError

RECOVERED, LEFT_OUT = "recovered", "recovered, left out"
"""How far answers move: by what was fitted to all training compositions, and by what was fitted without the one written.
Tables of versions before the latter have only the first."""
EXPLICIT = "hook_code"
"""The site of an explicit code."""
NEEDS = ("generalization", "inference_or_execution")
"""The tables without which there is nothing to split."""
PRIOR, STRUCTURE, FORMS = "which_prior", "code_structure", "nonlinear_code"
"""…and those that add whose answers they are, whether codes are made of parts, and what codes that are not linear do."""
LINEAR = "linear"
"""The editor of the table `inference_or_execution`."""
CONDITIONAL = "conditional"
EDITORS = ("nonlinear", CONDITIONAL)
"""Those of `nonlinear_code` that write codes, the simpler one first."""
READABLE = 0.5
"""R² from which a linear fit within compositions tells what a code is made of."""


class Donated(NamedTuple):
    """States with the right code of held-out compositions that come from donors.

    Args:
        editor: "donor" (real episodes of the same code) or "assembled" (from two training donors).
        reads: R² of the readout from them to the right code, over that on training compositions; NaN where that is below
            `READABLE`, as such a readout tells nothing of either.
        far: how far they lie from natural states, along the directions that answers depend on.
        expected: how far states of a composition lie from those of all others: so far may a new one.
        own: the score on held-out compositions without them.
        wins: the score with them, less `own`.
    """

    editor: str
    reads: float
    far: float
    expected: float
    own: float
    wins: float

    @property
    def passes(self) -> bool:
        """Whether they hold the right code (`READS`) and lie where states of a new composition may (`FURTHER`)."""
        return self.reads >= READS and self.far <= FURTHER * self.expected


DONORS = ("donor", "assembled")
"""In the order in which they are looked at: what is real comes first."""
READS = 0.9
"""Share of the R² on training compositions from which states are taken to hold the right code: those of planted models that
infer have .97 and more, those of planted models that do not .72 and less."""
FURTHER = 1.25
"""States of donors may lie this much further from natural ones than a new composition's do."""


class Foreseen(NamedTuple):
    """What a learner that knows the examples, fitted to a model's own answers, foresees.

    Args:
        share: of the squared error.
        lo: lower end of its interval.
        shuffled: the same from other episodes' examples: what any answer near to the mean gives.
    """

    share: float
    lo: float
    shuffled: float

    @property
    def beyond(self) -> float:
        """Share of what other episodes' examples leave, or of all where they leave more than that."""
        return 1 - (1 - self.share) / (1 - max(self.shuffled, 0.0)) if self.shuffled < 1 else np.nan


class Rungs(NamedTuple):
    """One model's ladder on one split.

    Args:
        names: the compositions, in one order for all rungs.
        scores: rung -> (score, weight) per composition, (compositions,) each; one that the rung was not measured on has weight
            0.
        task: what the model was asked; models of equal tasks share compositions of the same names ("": with no other).
        places: rung -> the site at which it was measured, in words.
    """

    names: tuple[str, ...]
    scores: dict[str, tuple[np.ndarray, np.ndarray]]
    task: str = ""
    places: Mapping[str, str] = MappingProxyType({})

    def pooled(self, drawn: np.ndarray | None = None) -> dict[str, np.ndarray]:
        """Every rung's score over all compositions.

        Args:
            drawn: (draws, compositions), how often each was drawn (None: every one once).

        Returns:
            rung -> (draws,), or (1,); NaN where a rung was measured on none of them.
        """
        counts = np.ones((1, len(self.names))) if drawn is None else drawn
        found = {}
        for rung, (score, weight) in self.scores.items():
            total = counts @ weight
            found[rung] = np.divide(counts @ (score * weight), total, out=np.full(len(total), np.nan), where=total > 0)
        return fairly(found)

    def alone(self) -> dict[str, np.ndarray]:
        """Every rung's score on each composition, (compositions,)."""
        return self.pooled(np.eye(len(self.names)))

    def lowered(self, rungs: Sequence[str], loss: float, share: float = 1.0) -> Rungs:
        """The same ladder with the pooled scores of some rungs lower by a loss.

        Args:
            rungs: which.
            loss: by how much the pooled score falls, in units of the score.
            share: of the compositions, the first of them, that lose it alike; at least one does.

        Returns:
            The ladder.
        """
        lower = {
            name: (score - planted(weight, loss, share) if name in rungs else score, weight)
            for name, (score, weight) in self.scores.items()
        }
        return self._replace(scores=lower)


def fairly(scores: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """ "best code", searched for on fewer episodes, as its gain on these beside the own answer.

    Args:
        scores: rung -> pooled scores, any shape; changed in place.

    Returns:
        The same, without "own answer, searched".
    """
    searched = scores.pop("own answer, searched", None)
    if searched is not None:
        scores["best code"] = scores["best code"] + np.nan_to_num(scores["own answer"] - searched)
    return scores


def planted(weight: np.ndarray, loss: float, share: float) -> np.ndarray:
    """What the first compositions lose, so that the pooled score falls by a loss.

    Args:
        weight: (…, compositions).
        loss: in units of the pooled score.
        share: of the compositions that lose it, at least one.

    Returns:
        (…, compositions), 0 on the others.
    """
    hit = np.arange(weight.shape[-1]) < max(1, round(share * weight.shape[-1]))
    return hit * loss * weight.sum(-1, keepdims=True) / np.maximum((weight * hit).sum(-1, keepdims=True), 1e-12)


@dataclass(frozen=True)
class Measured:
    """One model's tables at its last step.

    Args:
        scores: `generalization`.
        ladder: `inference_or_execution`.
        prior: `which_prior`, empty without one.
        structure: `code_structure`, empty without one.
        forms: `nonlinear_code`, empty without one.
        editor: which wrote the codes of the ladder.
        task: what the model was asked, as `groups.task_of` says it; "" where that is not known.
    """

    scores: pd.DataFrame
    ladder: pd.DataFrame
    prior: pd.DataFrame
    structure: pd.DataFrame
    forms: pd.DataFrame = field(default_factory=pd.DataFrame)
    editor: str = LINEAR
    task: str = ""

    @classmethod
    def read(cls, folder: str | Path) -> Measured:
        """The tables of the model in `folder`; a missing one is a `ConfigError` that names the command to type."""
        scores, ladder = (tables.at_last_step(tables.read(folder, name)) for name in NEEDS)
        if "effective" not in ladder:
            raise ConfigError(f"{folder}: its table is of an earlier version; type: {tables.again(folder, NEEDS[1])} --again")
        prior, structure, forms = (
            tables.at_last_step(tables.read(folder, name)) if tables.has(folder, name) else pd.DataFrame()
            for name in (PRIOR, STRUCTURE, FORMS)
        )
        return cls(scores[scores["metric"] == "score"], ladder, prior, structure, forms, task=task_of(Path(folder)))

    def by(self, editor: str) -> Measured | None:
        """The same model with another editor's ladder.

        Args:
            editor: as in the column `editor` of `nonlinear_code`, or `LINEAR`.

        Returns:
            Its tables; None where that editor was not measured.
        """
        if editor == self.editor:
            return self
        rows = self.forms[self.forms["editor"] == editor] if len(self.forms) else self.forms
        return replace(self, ladder=rows, editor=editor) if len(rows) else None

    @cached_property
    def told(self) -> tuple[Told, ...]:
        """What readouts tell of the code at the sites where they tell it in training; none without such a table."""
        return told_at(self.forms)

    @cached_property
    def named(self) -> tuple[Named, ...]:
        """How often states tell their composition, where those of training do; none without such a table."""
        return named_at(self.forms)

    @cached_property
    def read_when_left_out(self) -> float:
        """R² of the best readout of any capacity, at any site behind the embedding, on training compositions that were left
        out; NaN without a table."""
        if self.forms.empty:
            return np.nan
        rows = self.forms[(self.forms["metric"] == "left-out R²") & (self.forms["control"] == "")]
        return float(rows["value"].max())

    @cached_property
    def among_training_states(self) -> float:
        """Share of what sets held-out compositions' states apart that lies within the span of training compositions', where
        the code is read, or at the place nearest to it; NaN without a table."""
        if self.forms.empty:
            return np.nan
        rows = self.forms[(self.forms["metric"] == "among training states") & (self.forms["control"] == "")]
        read = self._reading.iloc[0]
        here = rows[(rows["site"] == read["site"]) & (rows["role"] == read["role"])]
        return float((here if len(here) else rows)["value"].min())

    def donated(self, editor: str) -> Donated | None:
        """States from donors, on held-out compositions.

        Args:
            editor: one of `DONORS`.

        Returns:
            What they read as, how far they lie and what they win; None without such rows, as in tables of version 1.
        """
        rows = self.forms
        if rows.empty or "directions" not in rows or not (rows["metric"] == "reads right").any():
            return None
        here = (rows["editor"] == editor) & (rows["composition"] == "all")
        rows = rows[["metric", "control", "split", "rung", "directions", "value"]][here]

        def one(metric: str, control: str = "", split: str = "ood", **where: str) -> float:
            found = rows[(rows["metric"] == metric) & (rows["control"] == control) & (rows["split"] == split)]
            for column, value in where.items():
                found = found[found[column] == value]
            return float(found["value"].iloc[0]) if len(found) else np.nan

        sensitive = {"directions": "sensitive" if (rows["directions"] == "sensitive").any() else "all"}
        own, written = (one("score", rung=rung) for rung in ("own answer", "true code written"))
        far, expected = one("divergence", **sensitive), one("divergence", "natural, left out", "train", **sensitive)
        training = one("reads right", split="test")
        reads = one("reads right") / training if training >= READABLE else np.nan
        return Donated(editor, reads, far, expected, own, written - own)

    def rungs(self, split: str) -> Rungs:
        """Own answer and oracles on `split`, per composition; of the sites where the code is read, the best for each rung."""
        return self._rungs[split]

    @cached_property
    def _rungs(self) -> dict[str, Rungs]:
        return {split: self._found(split) for split in ("test", "ood")}

    def _found(self, split: str) -> Rungs:
        frame = self.ladder
        shown = (frame["metric"] == "score") & (frame["split"] == split) & (frame["control"] == "") & frame["value"].notna()
        frame = frame[shown & ((frame["chosen"] == 1) | (frame["effective"] == 1))]
        frame = frame[["rung", "composition", "value", "weight", "site", "layer", "role"]]
        names = sorted(set(frame["composition"]) - {"all"})
        found, places = {}, {}
        for rung, rows in frame.groupby("rung"):
            whole = rows[rows["composition"] == "all"].sort_values("value").iloc[-1]
            here = rows[(rows["site"] == whole["site"]) & (rows["role"] == whole["role"]) & (rows["composition"] != "all")]
            here = here.set_index("composition")[["value", "weight"]].reindex(names).fillna(0.0)
            found[str(rung)] = (here["value"].to_numpy(), here["weight"].to_numpy())
            places[str(rung)] = named_site(whole["site"], whole["layer"], whole["role"])
        return Rungs(tuple(names), found, self.task, places)

    @property
    def moved(self) -> float:
        """How far writing another code moves the answers, where it moves them most; by what was fitted without that code's
        composition, if the table has that."""
        return self.moved_by(LEFT_OUT) if self.asked_without else self.moved_by(RECOVERED)

    @cached_property
    def surely_moved(self) -> float:
        """The lower end of the 95 % interval of `moved` over compositions; `moved` where the table has no interval."""
        metric = LEFT_OUT if self.asked_without else RECOVERED
        rows = self.ladder[(self.ladder["control"] == "") & (self.ladder["composition"] == "all")]
        rows = rows[(rows["metric"] == metric) & rows["value"].notna()]
        lo = rows.sort_values("value")["lo"].iloc[-1] if "lo" in rows and len(rows) else np.nan
        return float(lo) if np.isfinite(lo) else self.moved

    @cached_property
    def asked_without(self) -> bool:
        """Whether the table tells how far codes move answers that nothing was fitted to."""
        return bool((self.ladder["metric"] == LEFT_OUT).any())

    def moved_by(self, metric: str) -> float:
        """How far writing another code moves the answers, where it moves them most.

        Args:
            metric: `RECOVERED` or `LEFT_OUT`.

        Returns:
            The share of the way; NaN without rows.
        """
        return self._furthest.get(metric, np.nan)

    @cached_property
    def _furthest(self) -> dict[str, float]:
        """Metric -> the largest value over sites."""
        here = (self.ladder["control"] == "") & (self.ladder["composition"] == "all")
        rows = self.ladder[["metric", "value"]][here]
        return {str(metric): float(value) for metric, value in rows.groupby("metric")["value"].max().items()}

    @property
    def place(self) -> str:
        """Where the code is read, in words."""
        row = self._reading.iloc[0]
        return named_site(row["site"], row["layer"], row["role"])

    @property
    def site(self) -> tuple[str, str]:
        """Where the code is read: hook point and role."""
        row = self._reading.iloc[0]
        return str(row["site"]), str(row["role"])

    @property
    def _reading(self) -> pd.DataFrame:
        """The row about the site where the code is read."""
        return self.ladder[(self.ladder["rung"] == "own answer") & (self.ladder["chosen"] == 1)]

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

    def per_composition(self) -> dict[str, np.ndarray]:
        """The score on held-out compositions, one by one: columns "composition", "value" and "weight"."""
        here = (self.scores["split"] == "ood") & (self.scores["control"] == "")
        rows = self.scores[["composition", "value", "weight"]][here]
        rows = rows[(rows["composition"] != "all") & (rows["weight"] > 0)]
        return {str(column): rows[column].to_numpy() for column in rows}

    def distances(self, split: str) -> dict[str, float]:
        """reference -> distance of the model's answers on `split` to its own, the truth included; empty without a table."""
        rows = self._distances(split, "")
        return dict(zip(rows["reference"].tolist(), rows["value"].tolist(), strict=True))

    def errors_of_learners(self, split: str) -> dict[str, float]:
        """learner -> distance of its answers on `split` to the truth; empty without a table."""
        rows = self._distances(split, "reference")
        rows = rows[rows["reference"] == "truth"]
        return dict(zip(rows["learner"].tolist(), rows["value"].tolist(), strict=True))

    @cached_property
    def errors_foreseen(self) -> Foreseen:
        """What a learner fitted to the model's own answers foresees on held-out compositions; NaN without such rows."""
        found = []
        for control in ("", "shuffled"):
            rows = self.prior[self.prior["metric"] == "errors foreseen"] if len(self.prior) else self.prior
            rows = rows[(rows["control"] == control) & (rows["split"] == "ood")] if len(rows) else rows
            found.append(rows.iloc[0] if len(rows) else {"value": np.nan, "lo": np.nan})
        return Foreseen(float(found[0]["value"]), float(found[0]["lo"]), float(found[1]["value"]))

    def parts_told(self, readable: float) -> tuple[float, str]:
        """How much of a training composition's code is made of parts that other compositions have too.

        Args:
            readable: R² from its own episodes that a layer must have.

        Returns:
            (share, site). The share is the R² as other compositions' parts predict the code, over that from its own episodes.
            The site is the explicit code if there is one. Else it is the first readable layer, from where the model reads its
            code on. (NaN, "") if there is none, or no table.
        """
        if self.structure.empty:
            return np.nan, ""
        rows, read = self.structure[self.structure["metric"] == "left out"], self._reading.iloc[0]
        explicit = rows["site"] == EXPLICIT
        later = (rows["layer"] >= read["layer"]) & rows["role"].isin(read["role"].split("+"))
        rows = rows[explicit if explicit.any() else later].set_index(["layer", "site", "role"])
        own, others = (rows[rows["control"] == control]["value"] for control in ("own composition", ""))
        share = (others / own)[own >= readable].dropna().sort_index()
        if share.empty:
            return np.nan, ""
        layer, site, role = share.index[0]
        return float(share.iloc[0]), named_site(site, layer, role)

    def _distances(self, split: str, control: str) -> pd.DataFrame:
        if self.prior.empty:
            return pd.DataFrame({"reference": [], "learner": [], "value": []}, dtype=float)
        rows = self.prior[["reference", "learner", "value", "split", "composition"]]
        rows = rows[(self.prior["metric"] == "distance") & (self.prior["control"] == control)]
        return rows[(rows["split"] == split) & (rows["composition"] == "all") & rows["value"].notna()]


def named_site(site: str, layer: float, role: str) -> str:
    """A site in words.

    Args:
        site: hook point.
        layer: after how many layers.
        role: of its tokens.

    Returns:
        Such as "layer 1, context tokens".
    """
    return "the explicit code" if site == EXPLICIT else f"layer {layer:.0f}, {role} tokens"
