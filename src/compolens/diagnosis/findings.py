"""What single tables say of a group, in clauses: its scores, its code, its attention, the learner it is near to."""

from __future__ import annotations

import numpy as np
import pandas as pd

from compolens import tables
from compolens.diagnosis import closest_learner
from compolens.diagnosis import label as diagnosis
from compolens.diagnosis.evidence import (
    Clause,
    Evidence,
    ceiling,
    have,
    readout,
    reference_names,
    rounded,
    rows_of,
    score,
    stratum,
)
from compolens.diagnosis.groups import Group

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


def of_scores(group: Group) -> list[Clause]:
    """How well a `group` answers held-out compositions: against its own score on training ones, and against learners that
    recombine nothing."""
    test, ood = score(group, "test"), score(group, "ood")
    references = {name: score(group, "ood", name) for name in reference_names(group)}
    top = ceiling(group)
    weak = [references[n] for n in tables.WEAK if n in references]
    floor = max([e.value for e in weak], default=0.0)
    scale = max(top - floor, 1e-9)
    clauses = []
    learned = test.value / top >= diagnosis.LEARNED
    if not learned:
        train = _by_heart(group, top)
        more = "".join(f"; {one.value:.3f} on the training episodes" for one in train)
        clauses.append(Clause(f"has not learned its training compositions (test {test.value:.3f}{more})", (test, *train)))
    else:
        clauses.append(Clause(f"answers the compositions it was trained on (test {test.value:.3f})", (test,)))
    clauses.append(Clause(f"answers held-out ones {_beside(test, ood, scale, learned)}", (test, ood)))
    clauses += _of_what_can_be_had(group, ood)
    if weak:
        best = max(weak, key=lambda e: e.value)
        name = best.where["reference"]
        if ood.value - best.value < NO_BETTER:
            clauses.append(
                Clause(f"is no better on held-out ones than {name} ({best.value:.3f}): nothing is recombined", (ood, best))
            )
        elif (test.value - ood.value) / scale >= SAME:
            text = f"still stands well above {name} ({best.value:.3f}): it recombines in part"
            clauses.append(Clause(text, (ood, best)))
    return clauses


def _beside(test: Evidence, ood: Evidence, scale: float, learned: bool) -> str:
    """How held-out compositions are answered beside training ones: in a word where the gap's interval leaves one.

    The interval takes both scores' intervals for independent. What is not learned has no word."""
    gap = test.value - ood.value
    low = gap - float(np.hypot(test.value - test.lo, ood.hi - ood.value))
    high = gap + float(np.hypot(test.hi - test.value, ood.value - ood.lo))
    told = f"{ood.value:.3f}, a gap of {gap:.3f}"
    if not learned:
        return f"at {told}"
    worst, best, how = (_word(lost / scale) for lost in (high, low, gap))
    if np.isnan(low) or worst == best:
        return f"{how} (ood {told})"
    return f"at {told} [{low:.3f}, {high:.3f}]: between {best} and {worst}"


def _word(lost: float) -> str:
    """For a share of (ceiling - floor) that is lost on held-out compositions."""
    words = ((-CLEARLY, "better"), (SAME, "equally well"), (CLEARLY, "somewhat worse"))
    return next((word for most, word in words if lost < most), "clearly worse")


def _by_heart(group: Group, top: float) -> tuple[Evidence, ...]:
    """The score on training episodes where that alone is learned: episodes were stored, and are known by heart."""
    measured = all("train" in set(tables.read(folder, "generalization")["split"]) for folder in group.folders)
    train = score(group, "train") if measured else None
    return () if train is None or train.value / top < diagnosis.LEARNED else (train,)


def _of_what_can_be_had(group: Group, ood: Evidence) -> list[Clause]:
    """Where the ceiling is below 1, the score's share of it, and the score where only one answer is possible."""
    top, part = ceiling(group), stratum(group, "ood")
    if top > 1 - 1e-6 or part is None:
        return []
    text = f"has on those {ood.value / top:.2f} of what can be had ({top:.3f}); {part[1]:.3f} on {part[0]} episodes"
    return [Clause(text, (ood,))]


def of_code(group: Group) -> list[Clause]:
    """Where `group` reads answers: is the code there, shared with held-out compositions, and more than the input offers?"""
    frame = rows_of(
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


def of_attention(group: Group) -> list[Clause]:
    """Whether the code of attention in `group` names the rule on held-out compositions, and better than its inputs do.

    One clause per label, at the pair of tokens and layer where the readout is best on training compositions (of all of them:
    said in the clause)."""
    frames = [rows_of(f, "attention_code", metric="balanced accuracy", shown="as trained") for f in group.folders]
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
        than = f"products of the raw tokens give {raw.value:.2f}, the untrained control {rounded(untrained.value, 2)}"
        more = (
            "more than its inputs do"
            if ood.value > np.nanmax([raw.value, untrained.value]) + SHARED
            else "no more than its inputs do"
        )
        clauses.append(Clause(f"{text}, {more} ({than})", (ood, raw, untrained)))
    return clauses


def of_regression(group: Group) -> list[Clause]:
    """Scores of `group` in plain regression, where nothing is recombined: a law of inputs is held out, or tasks are."""
    test, ood = score(group, "test"), score(group, "ood")
    wider = rows_of(group.folders[0], "generalization", metric="score", split="ood", reference="model", control="")
    held_out = str(wider[wider["composition"] != "all"]["composition"].iloc[0]).rpartition(", ")[2]
    text = f"explains {test.value:.3f} of its answers' square as trained and {ood.value:.3f} where held out ({held_out})"
    return [Clause(f"{text}; {ceiling(group):.3f} can be had", (test, ood))]


def of_learner(group: Group) -> list[Clause]:
    """The learner of in-context regression that the answers of `group` are closest to, beside how close references are."""
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
    controls = f"untrained control {rounded(found.untrained, 3)}, shuffled answers {found.shuffled:.3f}"
    if found.cosine > found.floor:
        share = (found.cosine - found.floor) / max(1 - found.floor, 1e-9)
        text = f"answers most like {best}{alias}: sensitivity cosine {found.cosine:.3f}, where {beside}"
        text += f": {share:.0%} of the way from there to 1 ({controls})"
    else:
        text = f"is nearest to {best}{alias}, with sensitivity cosine {found.cosine:.3f}, but {beside}: which of them it is, "
        text += f"if any, cannot be said ({controls})"
    clauses = [Clause(text, (own, floor, untrained, shuffled))]
    return clauses + (_depth(group, best) if have(group, "algorithm_steps") else [])


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
