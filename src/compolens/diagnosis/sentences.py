"""The rules that turn tables into sentences: each with its threshold and reason, each pointing to the numbers behind it.

A diagnosis is about a group: models of one architecture on one setting (same task up to seeds). Reads tables only.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pandas as pd

from compolens import tables
from compolens.diagnosis import closest_learner, decomposition, interventional, stability
from compolens.diagnosis import label as diagnosis
from compolens.diagnosis import reported as quoted
from compolens.diagnosis.groups import SEEDS, Group, group
from compolens.foundation.configs import ConfigError
from compolens.measures.intervals import mean_interval, paired_interval, two_level_interval

SAME = 0.05
"""Held-out compositions count as answered equally well if they lose less than this share of (ceiling - floor)."""
CLEARLY = 0.10
"""…and as clearly worse from this share on; between the two the word is "somewhat"."""
NO_BETTER = 0.05
"""Beating a learner that recombines nothing by less than this is not recombining."""
DECODED = 0.5
"""A readout that explains less than this of the code of training compositions has not found it: its loss says nothing."""
SHARED = 0.05
"""A readout's loss on held-out compositions below this R² is none. A larger one is laid to what is bigger: what a fit within
the held-out compositions wins back (there, but not shared), or what even that misses (lost)."""
SAYS_NOTHING_OF_ERRORS = ("compositional", "has not learned its training compositions")
"""Diagnoses beside which it does not matter what the errors are like."""


@dataclass(frozen=True)
class Evidence:
    """Where a number comes from.

    Args:
        table: the table's name.
        where: column -> value, which rows.
        models: names of the models averaged over.
        value: the number.
        lo: lower end of its interval; NaN without one.
        hi: upper end.
    """

    table: str
    where: dict[str, str]
    models: tuple[str, ...]
    value: float
    lo: float = float("nan")
    hi: float = float("nan")

    def __str__(self) -> str:
        rows = ", ".join(f"{k}={v}" for k, v in self.where.items())
        spread = "" if pd.isna(self.lo) else f" [{self.lo:.3f}, {self.hi:.3f}]"
        return f"{self.value:.3f}{spread}: mean over {len(self.models)} model(s) of table {self.table}, rows {rows}"


@dataclass(frozen=True)
class Clause:
    """One claim in words.

    Args:
        text: the words.
        evidence: the numbers that carry it.
    """

    text: str
    evidence: tuple[Evidence, ...]


def score(group: Group, split: str, reference: str = "model") -> Evidence:
    """Pooled score on a split, with its two-level interval over seeds and compositions.

    Args:
        group: the models.
        split: "train", "test" or "ood".
        reference: "model", or the reference that is scored.

    Returns:
        The score.
    """
    parts = [per_composition(folder, split, reference) for folder in group.folders]
    if len(parts) < 2:
        pooled = _rows(group.folders[0], "generalization", metric="score", split=split, reference=reference, composition="all")
        value, lo, hi = (float(pooled[c].iloc[0]) for c in ("value", "lo", "hi"))
    else:
        value, lo, hi = two_level_interval(parts)
    where = {"metric": "score", "split": split, "reference": reference}
    return Evidence("generalization", where, group.names, value, lo, hi)


def readout(group: Group, layer_role: tuple[float, str], fit: str, split: str, control: str = "") -> Evidence:
    """Mean over seeds of the code's R² at a layer and token role.

    Args:
        group: the models.
        layer_role: (layer, token role).
        fit: what the readout was fitted on, as in the column `fit` of `latent_code`.
        split: on which it is scored.
        control: "" for the model itself, else which control.

    Returns:
        The mean.
    """
    layer, role = layer_role
    where = {"metric": "r2", "dimension": "mean", "layer": layer, "role": role, "fit": fit, "split": split, "control": control}
    values = [_rows(folder, "latent_code", **where)["value"].iloc[0] for folder in group.folders]
    return Evidence(
        "latent_code",
        {k: f"{v:g}" if isinstance(v, float) else str(v) for k, v in where.items()},
        group.names,
        float(pd.Series(values).mean()),
    )


def _rows(folder: Path, table: str, **where: object) -> pd.DataFrame:
    frame = tables.at_last_step(tables.read(folder, table))
    kept = np.ones(len(frame), dtype=bool)
    for column, value in where.items():
        if column not in frame:
            raise tables.lacks(folder, table, column)
        kept &= (frame[column] == value).to_numpy(dtype=bool)
    frame = frame[kept]
    if frame.empty:
        wanted = ", ".join(f"{k}={v}" for k, v in where.items())
        raise ConfigError(f"{folder}: table {table} has no row with {wanted}; type: compolens probe {table} {folder} --again")
    return frame


def per_composition(folder: Path, split: str, reference: str = "model") -> pd.DataFrame:
    """A model's pooled scores on each composition of a split.

    Args:
        folder: the model's folder.
        split: "train", "test" or "ood".
        reference: "model", or the reference that is scored.

    Returns:
        A row per composition: composition, value and weight.
    """
    frame = _rows(folder, "generalization", metric="score", split=split, reference=reference)
    for column in ("composition", "weight"):
        if column not in frame:
            raise tables.lacks(folder, "generalization", column)
    return frame[frame["composition"] != "all"][["composition", "value", "weight"]]


@dataclass(frozen=True)
class Judgement:
    """What the tables say of one group, in the order in which it is told.

    Args:
        group: the models.
        found: the diagnosis; None where the tables do not allow one.
        label: the diagnosis in words, with what it rests on.
        reasons: why that label.
        parts: what is lost on held-out compositions, in parts.
        change: what would change the label.
        cautions: what speaks for care with the label.
        asides: what else the diagnosis says: how stable it is, its power, what its errors are like.
        standing: whether a repair has confirmed the label: "confirmed", "not confirmed", "contradicted", "too few seeds" or
            "not tested".
        confirmation: what that repair gave.
        scores: what the model answers.
        rest: what else was measured, from readouts to interventions.
    """

    group: Group
    found: diagnosis.Diagnosis | None = None
    label: tuple[Clause, ...] = ()
    reasons: tuple[Clause, ...] = ()
    parts: tuple[Clause, ...] = ()
    change: tuple[Clause, ...] = ()
    cautions: tuple[Clause, ...] = ()
    asides: tuple[Clause, ...] = ()
    standing: str = "not tested"
    confirmation: tuple[Clause, ...] = ()
    scores: tuple[Clause, ...] = ()
    rest: tuple[Clause, ...] = ()

    @property
    def who(self) -> str:
        """The group in words: architecture, setting and seeds."""
        seeds = f"{len(self.group.folders)} seed{'s' if len(self.group.folders) > 1 else ''}"
        return f"{self.group.label} on {self.group.setting} ({seeds})"

    @property
    def clauses(self) -> list[Clause]:
        """All that is said, in order."""
        first = (self.label, self.reasons, self.parts, self.change, self.cautions)
        told = (*first, self.asides, self.confirmation, self.scores, self.rest)
        return [clause for some in told for clause in some]


def judge(group: Group) -> list[Clause]:
    """What the tables say about one `group`, clause by clause; clauses whose table is missing are left out."""
    return judgement(group).clauses


@tables.read_once()
def judgement(group: Group) -> Judgement:
    """What the tables say about one group.

    Args:
        group: models that differ in seeds alone.

    Returns:
        The clauses by kind; those whose table is missing are left out.
    """
    if not _have(group, "generalization"):
        return Judgement(group)
    regression = tables.settings(group.folders[0])["task"] == "LinearRegression"
    rest = _code(group) if _have(group, "latent_code") else []
    if _have(group, "attention_code"):
        rest += _attention(group)
    rest += _caused(group)
    if _have(group, "gd_equivalence"):
        rest += _learner(group)
    scores = _regression(group) if regression else _generalization(group)
    return replace(_diagnosed(group), scores=tuple(scores), rest=tuple(rest))


def _diagnosed(group: Group) -> Judgement:
    """The label, the loss in parts, and what would change the label."""
    models = diagnosis.measured(group.folders)
    if models is None:
        return Judgement(group)
    models = diagnosis.as_diagnosed(models)
    found = diagnosis.diagnosis_of(models)
    table = "inference_or_execution"
    parts = {
        split: [Evidence(table, {"part": part, "split": split}, group.names, *loss) for part, loss in told.items()]
        for split, told in found.parts.items()
    }
    share = Evidence("generalization", {"metric": "score", "split": "ood", "composition": "all"}, group.names, *found.share)
    lacks = found.scores["ceiling"] - found.scores["ood"]
    lost = f"lacks {lacks:.3f} on held-out compositions: {decomposition.in_words(found.parts['ood'])}"
    mended = found.blamed or (found.remainder if found.label == "compositional" else "")
    standing, confirmation = "not tested", list[Clause]()
    if mended and _have(group, "repair"):
        standing, clause = _confirmed(group, mended, found)
        confirmation.append(clause)
    if found.label == "compositional":  # a claim of equivalence, decided by its interval; a repair speaks of the remainder
        standing = "confirmed" if len(group.folders) >= SEEDS else "too few seeds"
    return Judgement(
        group,
        found,
        label=(Clause(f"diagnosis: {found.label} ({diagnosis.LABELS[found.label]})", (share, *parts["lost"])),),
        reasons=tuple(Clause(f"because {reason}", (share,)) for reason in found.reasons),
        parts=(Clause(f"{lost}; its code is read at {found.place}", (*parts["ood"], *parts["test"])),),
        change=(Clause(f"the label would change with {found.change}", tuple(parts["lost"])),),
        cautions=tuple(Clause(f"caution: {told}", (share,)) for told in found.cautions),
        asides=(
            *_stable(group, models, found),
            *_power(found.power, parts["lost"]),
            *_errors_like(group, found),
            *(Clause(r, ()) for r in found.remarks),
        ),
        standing=standing,
        confirmation=tuple(confirmation),
    )


def _stable(group: Group, models: Sequence[decomposition.Measured], found: diagnosis.Diagnosis) -> list[Clause]:
    """How often the label and the site come out again where other compositions are drawn, and the site's best rival."""
    stable = stability.stability(models, found.label)
    others = "".join(f"; {name} in {100 * share:.0f} %" for name, share in stable.others.items())
    seeds = " and seeds" if len(models) > 1 else ""
    text = (
        f"stability: of {stability.RESAMPLES} resamples of compositions, each with all its episodes{seeds}, "
        f"{100 * stable.label:.0f} % have the label again{others}"
    )
    table = "inference_or_execution"
    told = [Evidence(table, {"resampled": "label"}, group.names, stable.label)]
    if not decomposition.located(models):
        return [Clause(text, tuple(told))]
    if np.isnan(stable.site):
        text += f"; how often the site is, this table does not tell (compolens probe {table} {group.folders[0]} --again)"
    else:
        text += f"; {100 * stable.site:.0f} % the site where its code is read"
        told.append(Evidence(table, {"resampled": "site"}, group.names, stable.site))
    return [Clause(text, tuple(told)), *_rival(group, stable)]


def _rival(group: Group, stable: stability.Stability) -> list[Clause]:
    """What the best other site explains, in the first model."""
    here, rival = stable.here, stable.rival
    if rival is None:
        return []
    often = "" if np.isnan(rival.share) else f"; it is taken for the site in {100 * rival.share:.0f} % of resamples"
    model = f" in {group.names[0]}" if len(group.folders) > 1 else ""
    text = (
        f"the best rival of {here.place}{model} is {rival.place}: another code written there moves the answers "
        f"{rival.moved:.2f} of the way ({here.moved:.2f} at the site named), and the right code there wins {rival.wins:+.3f} "
        f"on held-out compositions ({here.wins:+.3f} at the site named){often}"
    )
    where = [{"metric": m, "place": rival.place} for m in ("recovered", "score")]
    values = (rival.moved, rival.wins)
    told = [Evidence("inference_or_execution", w, group.names[:1], v) for w, v in zip(where, values, strict=True)]
    return [Clause(text, tuple(told))]


def _errors_like(group: Group, found: diagnosis.Diagnosis) -> list[Clause]:
    """Which learners' errors the models' own are along."""
    if not found.errors_like or found.label in SAYS_NOTHING_OF_ERRORS:
        return []
    told = " and ".join(f"{like.cosine:.2f} to those of {like.learner}" for like in found.errors_like)
    where = [{"metric": "distance", "split": "ood", "reference": like.learner} for like in found.errors_like]
    far = [Evidence("which_prior", w, group.names, one.distance) for w, one in zip(where, found.errors_like, strict=True)]
    text = f"its errors on held-out compositions lie at cosine {told}: from {diagnosis.ALONG} on they would be that learner's"
    return [Clause(text, tuple(far))]


def _told(value: float, digits: int) -> str:
    """A number that a model may not have."""
    return "not available" if np.isnan(value) else f"{value:.{digits}f}"


def _caused(group: Group) -> list[Clause]:
    """What interventions say about the code: used or only readable, as a whole or factor by factor."""
    found = interventional.findings(group.folders)
    return [
        Clause(text, tuple(Evidence(table, where, group.names, value, lo, hi) for where, value, lo, hi in numbers))
        for text, table, numbers in found
    ]


def _power(found: dict[str, decomposition.Power], lost: Sequence[Evidence]) -> list[Clause]:
    """How likely the kinds of loss that were not found would have been, had they been there: the worst of all spreads."""
    if not found:
        return []
    told = ", ".join(f"in {part} in {100 * p.value:.0f} % of resamples (lost {p.spread})" for part, p in found.items())
    easy = ", ".join(f"{part} {100 * p.by_spread['evenly']:.0f} %" for part, p in found.items())
    text = (
        f"power: a loss of {diagnosis.FAILS} would have been detected, however it is spread, at least {told}; "
        f"lost evenly in all compositions: {easy}"
    )
    return [Clause(text, tuple(e for e in lost if e.where["part"] in found))]


CONFIRMS = {
    "use": "that the right code is missing where it reads its code (whether it stands elsewhere, a repair does not tell)",
    "inference": "that the right code is missing where it reads its code",
    "execution": "that what comes after the place where it reads its code has to change",
}
"""Part -> what a repair of it shows, if it wins more than every placebo."""
HOLDS_NO_CODE = ("memorised", "generic regression")
"""Labels of models that execute no code: what speaks against them is that a code, written, mends them."""
LEAST = 0.1
"""A repair confirms what it repairs if it wins at least this share of the gap from training to held-out compositions beyond
the best placebo; of a smaller gap, `LEAST_MARGIN`."""
LEAST_MARGIN = 0.01


@dataclass(frozen=True)
class _Repaired:
    """One repair: mean gain over seeds, its margin over the best placebo and the interval of that over seeds."""

    gain: float
    margin: float
    lo: float
    hi: float

    def wins(self, least: float) -> bool:
        return self.lo > 0 and self.gain > 0 and self.margin >= least

    def harms(self) -> bool:
        return self.hi < 0 and self.gain < 0

    @property
    def text(self) -> str:
        spread = f"[{self.lo:.3f}, {self.hi:.3f}]"
        change = f"{'gains' if self.gain >= 0 else 'loses'} {abs(self.gain):.3f} on held-out compositions"
        return f"{change} ({self.margin:+.3f} {spread} against the best placebo)"


def _repaired(group: Group, repair: str) -> _Repaired | None:
    """What a repair wins; its interval is over seeds from `SEEDS` on, else the widest of the seeds' own, over compositions."""
    where = {"split": "ood", "repair": repair, "control": "", "composition": "all"}
    try:
        rows = [_rows(folder, "repair", metric="beats placebos", **where).iloc[0] for folder in group.folders]
        gains = [_rows(folder, "repair", metric="gain", **where).iloc[0]["value"] for folder in group.folders]
    except ConfigError:
        return None
    margins = np.array([float(row["value"]) for row in rows])
    own = min(float(row["lo"]) for row in rows), max(float(row["hi"]) for row in rows)
    lo, hi = mean_interval(margins) if len(rows) >= SEEDS else own
    return _Repaired(float(np.mean(gains)), float(margins.mean()), lo, hi)


def _confirmed(group: Group, blamed: str, found: diagnosis.Diagnosis) -> tuple[str, Clause]:
    """(standing, clause): which part a repair confirms, or what it says against the label.

    Of what little a compositional model lacks, that is asked too."""
    label, gap = found.label, found.scores["test"] - found.scores["ood"]
    code, tuned = (_repaired(group, repair) for repair in _REPAIRS)
    one, repair = (tuned, "fine-tuned") if blamed == "execution" else (code, "code written")
    if one is None:
        return "not tested", Clause(f"not tested: the repair of {blamed} could not be made", ())
    names = {
        "code written": "the right code written where it is blamed",
        "fine-tuned": "tuning only what comes after that place",
    }
    least, few = max(LEAST_MARGIN, LEAST * gap), len(group.folders) < SEEDS
    where = {"metric": "beats placebos", "split": "ood", "repair": repair, "control": ""}
    evidence = (Evidence("repair", where, group.names, one.margin, one.lo, one.hi),)
    seeds = f" in {len(group.folders)} seed(s), too few for a claim" if few else ""
    speaks = label in _WITHOUT_CODE
    if speaks and code is not None and code.wins(diagnosis.DOMINATES * gap if gap > 0 else least):
        against = Evidence("repair", where | {"repair": "code written"}, group.names, code.margin, code.lo, code.hi)
        text = f"contradicted{seeds}: {names['code written']} {code.text}; "
        text += f"a model that {_WITHOUT_CODE[label]} would win nothing by it"
        return "contradicted" if not few else "too few seeds", Clause(text, (against,))
    if label in HOLDS_NO_CODE:
        text = (
            f"not tested: a repair does not tell whose answers these are; {names['code written']} wins no more than placebos"
        )
        return "not tested", Clause(text, evidence)
    claim = f" that what is left to win is {blamed}" if label == "compositional" else ""
    beats = f"{names[repair]} {one.text}"
    if one.wins(least):
        text = f"confirmed{claim}{seeds}, of {blamed}, {CONFIRMS[blamed]}: {beats}"
        return "too few seeds" if few else "confirmed", Clause(text, evidence)
    if one.harms() and label != "compositional":
        text = f"contradicted{seeds}: {beats}"
        return "contradicted" if not few else "too few seeds", Clause(text, evidence)
    return "not confirmed", Clause(f"not confirmed{claim} by its repair: {beats}", evidence)


_REPAIRS = ("code written", "fine-tuned")
_WITHOUT_CODE = {
    "memorised": "holds its training compositions whole",
    "generic regression": "knows nothing of compositions",
    "cannot execute": "cannot execute the right code",
}


def _have(group: Group, table: str) -> bool:
    return all(tables.has(folder, table) for folder in group.folders)


def _references(group: Group) -> list[str]:
    frame = _rows(group.folders[0], "generalization", metric="score", split="ood", composition="all", control="reference")
    return list(frame[frame["value"].notna()]["reference"])


def ceiling(group: Group) -> float:
    """The ood score that no learner can be expected to exceed on the tasks of `group`."""
    frame = _rows(group.folders[0], "generalization", metric="score", split="ood", composition="all", control="reference")
    return tables.ceiling_of(frame)


def beside_the_paper(group: Group) -> str:
    """The mean ± s.e. over seeds of `group` under the paper's measure, and what the paper reports; "" where it
    says nothing."""
    reported = quoted.held_out_score(tables.settings(group.folders[0]))
    if reported is None:
        return ""
    where = {"metric": reported.metric, "split": "ood", "composition": "all", "control": ""}
    own = pd.Series([float(_rows(folder, "generalization", **where)["value"].iloc[0]) for folder in group.folders])
    spread = f" ± {float(own.std() / len(own) ** 0.5):.3f}" if len(own) > 1 else ""
    return f"{float(own.mean()):.3f}{spread} / {reported.value:.3f} ± {reported.se:.3f}"


def _generalization(group: Group) -> list[Clause]:
    test, ood = score(group, "test"), score(group, "ood")
    references = {name: score(group, "ood", name) for name in _references(group)}
    top = ceiling(group)
    weak = [references[n] for n in tables.WEAK if n in references]
    floor = max([e.value for e in weak], default=0.0)
    scale = max(top - floor, 1e-9)
    clauses = []
    if test.value / top < diagnosis.LEARNED:
        clauses.append(Clause(f"has not learned its training compositions (test {test.value:.3f})", (test,)))
    else:
        clauses.append(Clause(f"answers the compositions it was trained on (test {test.value:.3f})", (test,)))
    lost = (test.value - ood.value) / scale
    how = "as well" if lost < SAME else "clearly worse" if lost >= CLEARLY else "somewhat worse"
    clauses.append(
        Clause(f"answers held-out ones {how} (ood {ood.value:.3f}, a gap of {test.value - ood.value:.3f})", (test, ood))
    )
    clauses += _of_what_can_be_had(group, ood)
    if weak:
        best = max(weak, key=lambda e: e.value)
        name = best.where["reference"]
        if ood.value - best.value < NO_BETTER:
            clauses.append(
                Clause(f"is no better on held-out ones than {name} ({best.value:.3f}): nothing is recombined", (ood, best))
            )
        elif how != "as well":
            text = f"still stands well above {name} ({best.value:.3f}): it recombines in part"
            clauses.append(Clause(text, (ood, best)))
    return clauses


def stratum(group: Group, split: str) -> tuple[str, float] | None:
    """The part of the episodes on which the family also wants its score.

    Args:
        group: the models.
        split: "test" or "ood".

    Returns:
        (name, mean score over seeds); None where there is no such part.
    """
    frames = [tables.at_last_step(tables.read(folder, "generalization")) for folder in group.folders]
    values, name = [], ""
    for frame in frames:
        own = frame[(frame["control"] == "") & (frame["split"] == split) & frame["metric"].str.startswith("score, ")]
        if own.empty:
            return None
        name = str(own["metric"].iloc[0]).removeprefix("score, ")
        values.append(float(own["value"].iloc[0]))
    return name, sum(values) / len(values)


def _of_what_can_be_had(group: Group, ood: Evidence) -> list[Clause]:
    """Where the ceiling is below 1, the score's share of it, and the score where only one answer is possible."""
    top, part = ceiling(group), stratum(group, "ood")
    if top > 1 - 1e-6 or part is None:
        return []
    text = f"has on those {ood.value / top:.2f} of what can be had ({top:.3f}); {part[1]:.3f} on {part[0]} episodes"
    return [Clause(text, (ood,))]


def _code(group: Group) -> list[Clause]:
    """Where the answer is read: is the code there, shared with held-out compositions, and more than the input offers?"""
    frame = _rows(
        group.folders[0], "latent_code", metric="r2", dimension="mean", control="", fit="fitted on train", split="test"
    )
    last = frame["layer"].max()
    role = "all" if "all" in set(frame["role"]) else "readout"
    place = (float(last), role)
    test, ood = readout(group, place, "fitted on train", "test"), readout(group, place, "fitted on train", "ood")
    within = readout(group, place, "within", "ood")
    raw = readout(group, (-1.0, "context"), "fitted on train", "ood", "raw input")
    where = "its explicit code" if role == "all" else f"layer {last:.0f}, where the answer is read,"
    numbers = (
        f"(R² {test.value:.2f} on training, {ood.value:.2f} on held-out compositions; {within.value:.2f} if fitted there)"
    )
    if test.value < DECODED:
        text = f"a linear readout finds little of the task code in {where.rstrip(',')} {numbers}"
    elif test.value - ood.value < SHARED:
        text = f"{where} holds the task code in a form that held-out compositions share {numbers}"
    elif within.value - ood.value >= test.value - within.value:
        text = f"{where} holds the code of held-out compositions, but in a form not shared with training ones {numbers}"
    else:
        text = f"{where} loses part of the code of held-out compositions {numbers}"
    clauses = [Clause(text, (test, ood, within))]
    if ood.value < raw.value:
        text = f"a linear readout of the raw input moments does better on held-out compositions ({raw.value:.2f})"
        clauses.append(Clause(f"{text}: decodability alone shows no inference", (ood, raw)))
    return clauses


def _attention(group: Group) -> list[Clause]:
    """Does attention's code name the rule on held-out compositions, and more than its inputs do? One clause per label, at the
    pair of tokens and layer where the readout is best on training compositions (of all of them: said in the clause)."""
    frames = [_rows(f, "attention_code", metric="balanced accuracy", shown="as trained") for f in group.folders]
    frames = [f[f["class"] == "all"].assign(model=name) for f, name in zip(frames, group.names, strict=True)]
    rows = pd.concat(frames)
    clauses = []
    for label in rows["label"].unique():
        one = rows[rows["label"] == label]
        own = one[(one["control"] == "") & (one["split"] == "test")].groupby(["role", "layer"])["value"].mean()
        role, layer = own.idxmax()

        def mean(split: str, control: str, one: pd.DataFrame = one, place: tuple = (role, layer)) -> Evidence:
            where = {"split": split, "control": control, "label": one["label"].iloc[0]}
            where |= {"role": "input"} if control.startswith("raw") else {"role": place[0], "layer": f"{place[1]}"}
            found = one[(one["split"] == split) & (one["control"] == control) & (one["role"] == where["role"])]
            found = found if where["role"] == "input" else found[found["layer"] == place[1]]
            return Evidence("attention_code", where, group.names, float(found["value"].mean()))

        ood, untrained, raw = mean("ood", ""), mean("ood", "untrained"), mean("ood", "raw input, products")
        where = f"layer {layer}, {role} (the best of {len(own)} places)"
        text = f"attention's code at {where} names {label} on held-out compositions with balanced accuracy {ood.value:.2f}"
        than = f"products of the raw tokens give {raw.value:.2f}, the untrained control {_told(untrained.value, 2)}"
        more = (
            "more than its inputs do"
            if ood.value > np.nanmax([raw.value, untrained.value]) + SHARED
            else "no more than its inputs do"
        )
        clauses.append(Clause(f"{text}, {more} ({than})", (ood, raw, untrained)))
    return clauses


def _regression(group: Group) -> list[Clause]:
    """Nothing is recombined in plain regression: what is held out is a law of inputs, or tasks outside a pool."""
    test, ood = score(group, "test"), score(group, "ood")
    wider = _rows(group.folders[0], "generalization", metric="score", split="ood", reference="model", control="")
    held_out = str(wider[wider["composition"] != "all"]["composition"].iloc[0]).rpartition(", ")[2]
    text = f"explains {test.value:.3f} of its answers' square as trained and {ood.value:.3f} where held out ({held_out})"
    return [Clause(f"{text}; {ceiling(group):.3f} can be had", (test, ood))]


def _learner(group: Group) -> list[Clause]:
    """Which learner of in-context regression its answers are closest to, beside how close references are to one another."""
    found = closest_learner.closest(group.folders)
    best, *same = found.names
    where = {"metric": "sensitivity cosine", "split": "test", "reference": best}
    own, floor, untrained, shuffled = (
        Evidence("gd_equivalence", where | which, group.names, value)
        for which, value in (
            ({"learner": "model"}, found.cosine),
            ({"learner": found.rival}, found.floor),
            ({"learner": "model", "control": "untrained"}, found.untrained),
            ({"learner": "model", "control": "shuffled"}, found.shuffled),
        )
    )
    alias = f" (in direction the same as {', '.join(same)})" if same else ""
    beside = f"{found.rival}, the reference nearest to that, has {found.floor:.3f} with it"
    controls = f"untrained control {_told(found.untrained, 3)}, shuffled answers {found.shuffled:.3f}"
    if found.cosine > found.floor:
        share = (found.cosine - found.floor) / max(1 - found.floor, 1e-9)
        text = f"answers most like {best}{alias}: sensitivity cosine {found.cosine:.3f}, where {beside}"
        text += f": {share:.0%} of the way from there to 1 ({controls})"
    else:
        text = f"is nearest to {best}{alias}, with sensitivity cosine {found.cosine:.3f}, but {beside}: which of them it is, "
        text += f"if any, cannot be said ({controls})"
    clauses = [Clause(text, (own, floor, untrained, shuffled))]
    return clauses + (_depth(group, best) if _have(group, "algorithm_steps") else [])


def _depth(group: Group, reference: str) -> list[Clause]:
    found = closest_learner.along_layers(group.folders, reference)
    numbers = ", ".join(f"{step:.3g} ({level:.2f})" for step, level in zip(found.steps, found.levels, strict=True))
    edge = "; some best steps are the last ones looked at" if found.edge else ""
    start = f"from layer {found.first} on" if found.first is not None else "at no layer up to the last"
    text = (
        f"its layers' errors are those of some step of {found.algorithm} (similarity of at least "
        f"{closest_learner.LIKE_LAYER}) {start}; best steps by layer, with similarity: {numbers}{edge}"
    )
    where = {"metric": "best level", "algorithm": found.algorithm}
    return [Clause(text, (Evidence("algorithm_steps", where, group.names, found.levels[-1]),))]


def compare(left: Group, right: Group) -> Clause | None:
    """The difference in ood score between two groups on the same tasks; claimed only with enough seeds.

    Args:
        left: the first group.
        right: the second.

    Returns:
        The claim; None where a table or a pair of equal tasks is missing.
    """
    if not (_have(left, "generalization") and _have(right, "generalization")):
        return None
    by_task = {_task_key(f): f for f in right.folders}
    pairs = [(f, by_task[_task_key(f)]) for f in left.folders if _task_key(f) in by_task]
    if not pairs:
        return None
    ours, theirs = ([per_composition(pair[side], "ood") for pair in pairs] for side in (0, 1))
    value, lo, hi = paired_interval(ours, theirs)
    names = tuple(f.name for pair in pairs for f in pair)
    evidence = Evidence("generalization", {"metric": "score", "split": "ood", "difference": "paired"}, names, value, lo, hi)
    side = "above" if value >= 0 else "below"
    who = f"{left.label} scores {abs(value):.3f} {side} {right.label} on held-out compositions"
    if len(pairs) < SEEDS:
        seeds = f"{len(pairs)} paired seed{'s' * (len(pairs) > 1)}"
        return Clause(f"{who}; with {seeds} no difference is claimed", (evidence,))
    sure = "" if lo > 0 or hi < 0 else ", which is within the noise"
    return Clause(f"{who} (95 % interval [{lo:.3f}, {hi:.3f}], {len(pairs)} paired seeds){sure}", (evidence,))


def _task_key(folder: Path) -> tuple:
    row = tables.settings(folder)
    return tuple(sorted((k, str(v)) for k, v in row.items() if k.startswith("task")))


def sentences(folders: Sequence[Path]) -> list[tuple[str, list[Clause]]]:
    """The whole diagnosis of the models in `folders`: (who, clauses) per group, then per pair of architectures on one setting.

    Models whose tables cannot be judged are left out, with the warning `tables.StaleTable`."""
    return in_order(*judgements(folders))


def in_order(judged: Sequence[Judgement], compared: Sequence[Clause]) -> list[tuple[str, list[Clause]]]:
    """What `judgements` gives, as (who, clauses): groups first, then `compared` between them.

    Args:
        judged: one a group.
        compared: between groups.

    Returns:
        Those that say something.
    """
    result = [(one.who, one.clauses) for one in judged]
    return [*result, ("Compared", list(compared))] if compared else result


@tables.read_once()
def judgements(folders: Sequence[Path]) -> tuple[list[Judgement], list[Clause]]:
    """What is said of the models in `folders`: of each group, and of each pair of architectures on one setting.

    Models whose tables cannot be judged are left out, with the warning `tables.StaleTable`."""
    judged = [_judged(found) for found in group(folders)]
    groups = [one.group for one in judged if one.group.folders]
    rivals = [(a, b) for i, a in enumerate(groups) for b in groups[i + 1 :] if a.setting == b.setting and a.label != b.label]
    compared = [clause for a, b in rivals if (clause := compare(a, b)) is not None]
    return [one for one in judged if one.clauses], compared


def _judged(one: Group) -> Judgement:
    """What is said of a group, less the models that cannot be judged."""
    try:
        return judgement(one)
    except (LookupError, ValueError):  # a table without a column or a row that its probe writes
        reasons = {folder: _why_not_judged(replace(one, folders=[folder])) for folder in one.folders}
        left = replace(one, folders=[folder for folder, reason in reasons.items() if not reason])
        if len(left.folders) == len(one.folders):  # each for itself can be judged
            raise
        for folder, reason in reasons.items():
            if reason:
                again = f"measure it again with: compolens explain {folder} --again"
                warnings.warn(f"{folder.name}: left out: {reason}; {again}", tables.StaleTable, stacklevel=2)
        return _judged(left) if left.folders else Judgement(left)


def _why_not_judged(one: Group) -> str:
    try:
        judge(one)
        if _have(one, "generalization"):
            per_composition(one.folders[0], "ood")
    except ConfigError as error:
        return str(error)
    except (LookupError, ValueError) as error:
        return f"its tables lack what their probes write ({type(error).__name__}: {' '.join(str(error).split())[:100]})"
    return ""
