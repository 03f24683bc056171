"""The rules that turn tables into sentences: each with its threshold and reason, each pointing to the numbers behind it.

A diagnosis is about a group: models of one architecture on one setting (same task up to seeds). Reads tables only.
"""

from __future__ import annotations

import shlex
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from compolens import tables
from compolens.diagnosis import decomposition, interventional, stability
from compolens.diagnosis import label as diagnosis
from compolens.diagnosis.confirming import confirmed
from compolens.diagnosis.evidence import Clause, Evidence, have, per_composition
from compolens.diagnosis.findings import of_attention, of_code, of_learner, of_regression, of_scores
from compolens.diagnosis.groups import SEEDS, Group, group, task_of
from compolens.diagnosis.likeness import ALONG
from compolens.diagnosis.measured import Measured
from compolens.diagnosis.power import Power
from compolens.foundation.configs import ConfigError
from compolens.foundation.moved import elsewhere
from compolens.measures.intervals import paired_interval

SAYS_NOTHING_OF_ERRORS = ("compositional", "has not learned its training compositions")
"""Diagnoses beside which it does not matter what the errors are like."""


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
    if not have(group, "generalization"):
        return Judgement(group)
    rest = of_code(group) if have(group, "latent_code") else []
    if have(group, "attention_code"):
        rest += of_attention(group)
    rest += _caused(group)
    if have(group, "gd_equivalence"):
        rest += of_learner(group)
    return replace(_diagnosed(group), scores=tuple(_of_scores(group)), rest=tuple(rest))


def _of_scores(group: Group) -> list[Clause]:
    """Clauses on the scores of a group, by the measure of its family."""
    return of_regression(group) if tables.settings(group.folders[0])["task"] == "LinearRegression" else of_scores(group)


def scores_told(folder: Path) -> str:
    """What the table `generalization` says of one model's scores, as soon as it is measured.

    Args:
        folder: the model's.

    Returns:
        Whether the training compositions are learned, and how held-out ones are answered beside them.
    """
    return ", ".join(clause.text for clause in _of_scores(Group("", "", [folder]))[:2])


def _diagnosed(group: Group) -> Judgement:
    """The label, the loss in parts, and what would change the label."""
    said = diagnosis.said_once(group.folders)
    if said is None:
        return Judgement(group)
    models, found, stable = said
    table = "inference_or_execution"
    parts = {
        split: [Evidence(table, {"part": part, "split": split}, group.names, *loss) for part, loss in told.items()]
        for split, told in found.parts.items()
    }
    share = Evidence("generalization", {"metric": "score", "split": "ood", "composition": "all"}, group.names, *found.share)
    lacks = found.scores["ceiling"] - found.scores["ood"]
    lost = f"lacks {lacks:.3f} on held-out compositions: {decomposition.in_words(found.parts['ood'])}"
    won = decomposition.won_elsewhere(models, found.parts["ood"], found.place)
    site = f"{found.place} ({won})" if won else found.place
    mended = found.blamed or (found.remainder if found.label == "compositional" else "")
    standing, confirmation = "not tested", list[Clause]()
    if mended and have(group, "repair"):
        standing, clause = confirmed(group, mended, found)
        confirmation.append(clause)
    if found.label == "compositional":  # a claim of equivalence, decided by its interval; a repair speaks of the remainder
        standing = "confirmed" if len(group.folders) >= SEEDS else "too few seeds"
    return Judgement(
        group,
        found,
        label=(Clause(f"diagnosis: {found.label} ({diagnosis.LABELS[found.label]})", (share, *parts["lost"])),),
        reasons=tuple(Clause(f"because {reason}", (share,)) for reason in found.reasons),
        parts=(Clause(f"{lost}; its code is read at {site}", (*parts["ood"], *parts["test"])),),
        change=(Clause(f"the label would change with {found.change}", tuple(parts["lost"])),),
        cautions=tuple(Clause(f"caution: {told}", (share,)) for told in found.cautions),
        asides=(
            *_stable(group, models, stable, found.scores["ceiling"]),
            *_power(found.power, parts["lost"]),
            *_errors_like(group, found),
            *(Clause(r, ()) for r in found.remarks),
        ),
        standing=standing,
        confirmation=tuple(confirmation),
    )


def _stable(group: Group, models: Sequence[Measured], stable: stability.Stability, top: float) -> list[Clause]:
    """How often the label and the site come out again where other compositions are drawn, and the site's best rival."""
    others = "".join(f"; {name} in {100 * share:.0f} %" for name, share in stable.others.items())
    seeds = " and seeds" if len(models) > 1 else ""
    text = (
        f"stability: of {stability.RESAMPLES} resamples of compositions, each with all its episodes{seeds}, "
        f"{100 * stable.label:.0f} % have the label again{others}"
    )
    table = "inference_or_execution"
    told = [Evidence(table, {"resampled": "label"}, group.names, stable.label)]
    if not decomposition.located(models, top):
        return [Clause(text, tuple(told))]
    if np.isnan(stable.site):
        text += f"; how often the site is, this table does not tell ({tables.again(group.folders[0], table)} --again)"
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
    text = f"its errors on held-out compositions lie at cosine {told}: from {ALONG} on they would be that learner's"
    return [Clause(text, tuple(far))]


def _caused(group: Group) -> list[Clause]:
    """What interventions say about the code: used or only readable, as a whole or factor by factor."""
    found = interventional.findings(group.folders)
    return [
        Clause(text, tuple(Evidence(table, where, group.names, value, lo, hi) for where, value, lo, hi in numbers))
        for text, table, numbers in found
    ]


def _power(found: dict[str, Power], lost: Sequence[Evidence]) -> list[Clause]:
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


def compare(left: Group, right: Group) -> Clause | None:
    """The difference in ood score between two groups on the same tasks; claimed only with enough seeds.

    Args:
        left: the first group.
        right: the second.

    Returns:
        The claim; None where a table or a pair of equal tasks is missing.
    """
    if not (have(left, "generalization") and have(right, "generalization")):
        return None
    pairs = _paired(left.folders, right.folders)
    if not pairs:
        return None
    ours, theirs = ([per_composition(pair[side], "ood") for pair in pairs] for side in (0, 1))
    value, lo, hi = paired_interval(ours, theirs, tasks=[task_of(one) for one, _ in pairs])
    names = tuple(f.name for pair in pairs for f in pair)
    evidence = Evidence("generalization", {"metric": "score", "split": "ood", "difference": "paired"}, names, value, lo, hi)
    side = "above" if value >= 0 else "below"
    who = f"{left.label} scores {abs(value):.3f} {side} {right.label} on held-out compositions"
    if len(pairs) < SEEDS:
        seeds = f"{len(pairs)} paired seed{'s' * (len(pairs) > 1)}"
        return Clause(f"{who}; with {seeds} no difference is claimed", (evidence,))
    sure = "" if lo > 0 or hi < 0 else ", which is within the noise"
    return Clause(f"{who} (95 % interval [{lo:.3f}, {hi:.3f}], {len(pairs)} paired seeds){sure}", (evidence,))


def _paired(left: Sequence[Path], right: Sequence[Path]) -> list[tuple[Path, Path]]:
    """Models of equal tasks in pairs, each model in one pair at most; of several, those of equal seeds first."""

    def told(folder: Path) -> tuple[str, str, str]:
        row = tables.settings(folder)
        return task_of(folder), str(row.get("init_seed")), str(row.get("data_seed"))

    asked, free, pairs = {folder: told(folder) for folder in (*left, *right)}, list(right), dict[Path, Path]()
    for alike in (3, 1):  # the task and both seeds, then the task alone
        for one in left:
            same = (other for other in free if asked[other][:alike] == asked[one][:alike])
            if one not in pairs and (other := next(same, None)) is not None:
                pairs[one] = other
                free.remove(other)
    return [(one, pairs[one]) for one in left if one in pairs]


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
                again = f"measure it again with: {shlex.join(['compolens', 'explain', str(folder)])} --again"
                warnings.warn(f"{folder.name}: left out: {reason}; {again}", tables.StaleTable, stacklevel=2)
        return _judged(left) if left.folders else Judgement(left)


def _why_not_judged(one: Group) -> str:
    try:
        judge(one)
        if have(one, "generalization"):
            per_composition(one.folders[0], "ood")
    except ConfigError as error:
        return str(error)
    except (LookupError, ValueError) as error:
        return f"its tables lack what their probes write ({type(error).__name__}: {' '.join(str(error).split())[:100]})"
    return ""


def __getattr__(name: str) -> Any:
    return elsewhere(__name__, name)
