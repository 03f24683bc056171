"""Two models, or two steps of one training, on the same episodes."""

from __future__ import annotations

import numpy as np
import pandas as pd

from compolens.explore.sets import Number, differing
from compolens.explore.state import State
from compolens.explore.subjects import Subject
from compolens.explore.views.attention import head_panel, labels_of, pattern_of
from compolens.explore.views.base import View, loading, opening
from compolens.explore.views.grid import HELD_OUT, NAMED, SEEN, pair_of
from compolens.figures import Drawing, HeatMap, Panel, Points, Rule
from compolens.foundation.configs import require


def difference(left: pd.DataFrame, right: pd.DataFrame) -> Number:
    """Score of left minus score of right, pooled over the same episodes.

    Args:
        left: a row per episode, as `Subject.results` returns them.
        right: the same episodes of the other model.

    Returns:
        The difference; from 2 compositions on, with a 95 % t interval over compositions by the jackknife, which is paired:
        each composition is left out of both.
    """
    gap = left["error"].to_numpy() - right["error"].to_numpy()
    value, lo, hi = differing(gap, left["weight"].to_numpy(), left["composition"].to_numpy())
    return Number(value, lo, hi, "compositions" if len(set(left["composition"])) > 1 else "")


def diff(subject: Subject, other: Subject, state: State) -> View:
    """Where one is better than the other: scores by composition, and, where both attend alike, the chosen head's maps.

    Args:
        subject: the first model; differences are its scores minus the other's.
        other: the second.
        state: what the reader has chosen.

    Returns:
        The view.

    Raises:
        ConfigError: the two were trained on different tasks.
    """
    require(
        subject.task == other.task,
        f"{subject.trained.name} and {other.trained.name} were trained on different tasks, so no episode is shown to both; "
        "choose a second model of the same task",
    )
    left, right = (pd.concat([s.results("test"), s.results("ood")], ignore_index=True) for s in (subject, other))
    panels = [_by_composition(left, right, subject.task.score_name), *_attention(subject, other, state)]
    number = difference(*(frame[frame["held_out"] == (state.split == "ood")] for frame in (left, right)))
    note = "Differences are the first model's minus the second's; intervals: 95 % over compositions, paired. "
    drawing = Drawing(f"{subject.title} minus {other.title}", panels, note + _reach(subject, other), 2)
    which = "held-out" if state.split == "ood" else "trained"
    what = f"{subject.task.score_name} of {subject.title} minus {other.title}, {which} compositions"
    return View(drawing, number, what, _python(subject, other, state), {})


def _reach(subject: Subject, other: Subject) -> str:
    """What the two are to one another, and so how far their difference reaches."""
    one, two = subject.trained, other.trained
    if one.folder.resolve() != two.folder.resolve():
        return "Two models, one seed each: no claim about architectures."
    if one.step != two.step:
        return "Two steps of one training: no claim about other trainings."
    return "The same model twice: no difference is to be expected."


def _by_composition(left: pd.DataFrame, right: pd.DataFrame, score: str) -> Panel:
    rows = []
    for _, one in left.groupby(["held_out", "composition"]):
        two = right.loc[one.index]
        gap = float((two["error"].sum() - one["error"].sum()) / one["weight"].sum())
        name, held_out = str(one["name"].iloc[0]), bool(one["held_out"].iloc[0])
        rows.append({"name": name, "held_out": held_out, "gap": gap, "told": f"{name}: {gap:+.3f}"})
    measure = f"difference in {score}"
    pairs = [pair_of(str(row["name"])) for row in rows]
    if any(pair is None for pair in pairs) or len(set(pairs)) < len(pairs):
        return _side_by_side(pd.DataFrame(rows), measure)
    parts = sorted({part for pair in pairs if pair for part in pair}, key=lambda part: (len(part), part))
    cells = dict(zip(pairs, rows, strict=True))
    nothing = {"gap": float("nan"), "held_out": False, "told": "not in this task"}
    grid = [{"x": x, "y": y} | cells.get((x, y), nothing) for y in parts for x in parts]
    heat = HeatMap(pd.DataFrame(grid), "x", "y", "gap", centre=0.0, label=measure, hatched="held_out", hover="told")
    return Panel("held-out compositions hatched", "part", "other part", (heat,))


def _side_by_side(data: pd.DataFrame, measure: str) -> Panel:
    data = data.sort_values(["held_out", "gap"]).reset_index(drop=True)
    data["place"] = np.arange(len(data), dtype=float)
    x, label_x = ("name", "composition") if len(data) <= NAMED else ("place", "compositions, by difference")
    marks = [
        Points(data[data["held_out"] == held_out], x, "gap", label=label, hover="told")
        for held_out, label in ((False, SEEN), (True, HELD_OUT))
        if (data["held_out"] == held_out).any()
    ]
    return Panel("by composition", label_x, measure, [*marks, Rule(0.0, "equal")])


def _attention(subject: Subject, other: Subject, state: State) -> list[Panel]:
    """The difference between the two maps of the chosen head; none where the models do not attend alike."""
    if not (subject.patterns and other.patterns and state.layer < min(len(subject.patterns), len(other.patterns))):
        return []
    found = [pattern_of(each, state) for each in (subject, other)]
    if found[0][1].shape != found[1][1].shape or state.head >= found[0][1].shape[1]:
        return []
    gap = (found[0][1] - found[1][1])[:, state.head].double().cpu().numpy()
    labels, mask = labels_of(gap.shape[-1], subject.model.roles), found[0][2]
    panel = head_panel(
        f"attention, layer {state.layer}, head {state.head}", gap.mean(0), labels,
        None if mask is None else mask.cpu().numpy(), "difference in weight", True,
    )  # fmt: skip
    return [panel]


def _python(subject: Subject, other: Subject, state: State) -> str:
    lines = opening(subject, state)[:-2]
    lines += [
        f"other = {loading(other)}",
        "with torch.no_grad():",
        "    scores = [task.score(one(drawn.tokens), drawn.targets) for one in (model, other.model)]",
        "print(scores[0] - scores[1])",
    ]
    return "\n".join(lines) + "\n"
