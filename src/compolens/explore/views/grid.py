"""The grid of compositions by score, held-out ones hatched."""

from __future__ import annotations

import numpy as np
import pandas as pd

from compolens.explore.sets import Number, pooled
from compolens.explore.state import State
from compolens.explore.subjects import Subject
from compolens.explore.views.base import View, imports_of, loading
from compolens.figures import Drawing, HeatMap, Panel, Points, Rule

NAMED = 24
"""Compositions side by side that still fit with their names; of more, the pointer shows them."""
HELD_OUT, SEEN = "held out (ood)", "trained on (test)"


def by_composition(subject: Subject) -> pd.DataFrame:
    """Scores by composition, of both splits, a row per composition.

    Args:
        subject: the model under study.

    Returns:
        The columns composition, name, held_out, n (episodes), score, lo, hi (over its episodes).
    """
    frame = pd.concat([subject.results("test"), subject.results("ood")], ignore_index=True)
    rows = []
    for _, part in frame.groupby(["held_out", "composition"]):
        found = pooled(part["error"].to_numpy(), part["weight"].to_numpy(), part["composition"].to_numpy())
        where = {name: part[name].iloc[0] for name in ("composition", "name", "held_out")} | {"n": len(part)}
        rows.append({**where, "score": found.value, "lo": found.lo, "hi": found.hi})
    return pd.DataFrame(rows)


def pair_of(name: str) -> tuple[str, str] | None:
    """The two parts in a composition's name.

    Args:
        name: a composition's name, such as "0+4" or "0010|1001".

    Returns:
        The two parts, of a single one that part twice; None for more, or none.
    """
    parts = name.replace("|", "+").split("+")
    return (parts[0], parts[-1]) if len(parts) <= 2 and all(parts) else None


def grid(subject: Subject, state: State) -> View:
    """Scores of all compositions: as a matrix of their two parts, or, where a composition has more parts, side by side.

    A composition of one part stands on the diagonal. The number is the score over the held-out or the trained compositions,
    whichever split is looked at, with its interval over compositions.

    Args:
        subject: the model under study.
        state: what the reader has chosen.

    Returns:
        The view.
    """
    frame = by_composition(subject)
    score = subject.task.score_name
    pairs = [pair_of(name) for name in frame["name"]]
    paired = all(pair is not None for pair in pairs) and len(set(pairs)) == len(pairs)
    panel, cells = _matrix(frame, score) if paired else _row(frame, score)
    rows = subject.results(state.split)
    number = pooled(rows["error"].to_numpy(), rows["weight"].to_numpy(), rows["composition"].to_numpy())
    drawing = Drawing(
        f"{score} by composition: {subject.title}", (panel,), "Held-out compositions are hatched." if paired else ""
    )
    which = "held-out" if state.split == "ood" else "trained"
    return View(drawing, number, f"{score}, {which} compositions", _python(subject, state), cells)


def _matrix(frame: pd.DataFrame, score: str) -> tuple[Panel, dict[tuple[int, int], tuple]]:
    pairs = [pair_of(name) or ("", "") for name in frame["name"]]
    parts = sorted({part for pair in pairs for part in pair}, key=lambda part: (len(part), part))
    known = {pair: row for pair, (_, row) in zip(pairs, frame.iterrows(), strict=True)}
    rows, cells = [], {}
    for i, row in enumerate(parts):
        for j, column in enumerate(parts):
            cell = {"x": column, "y": row, "score": float("nan"), "held_out": False, "told": "not in this task"}
            if (column, row) in known:
                found = known[column, row]
                cell |= {"score": found["score"], "held_out": bool(found["held_out"]), "told": _told(found)}
                cells[j, i] = (int(found["composition"]), "ood" if found["held_out"] else "test")
            rows.append(cell)
    heat = HeatMap(pd.DataFrame(rows), "x", "y", "score", label=score, hatched="held_out", hover="told")
    return Panel("held-out compositions hatched", "part", "other part", (heat,)), cells


def _row(frame: pd.DataFrame, score: str) -> tuple[Panel, dict[tuple[int, int], tuple]]:
    frame = frame.sort_values(["held_out", "score"]).reset_index(drop=True)
    frame["told"], frame["place"] = [_told(row) for _, row in frame.iterrows()], np.arange(len(frame), dtype=float)
    x, label_x = ("name", "composition") if len(frame) <= NAMED else ("place", "compositions, by score")
    marks = [
        Points(frame[frame["held_out"] == held_out], x, "score", label=label, hover="told")
        for held_out, label in ((False, SEEN), (True, HELD_OUT))
        if (frame["held_out"] == held_out).any()
    ]
    split = {True: "ood", False: "test"}
    cells = {(i, 0): (int(c), split[h]) for i, (c, h) in enumerate(zip(frame["composition"], frame["held_out"], strict=True))}
    return Panel("", label_x, score, (*marks, Rule(1.0, "perfect"))), cells


def _told(row: pd.Series) -> str:
    number = Number(row["score"], row["lo"], row["hi"], "episodes" if row["n"] > 1 else "")
    return f"{row['name']}: {number}, {row['n']} episodes, {'held out' if row['held_out'] else 'trained on'}"


def _python(subject: Subject, state: State) -> str:
    lines = [
        "import torch",
        "",
        "import compolens",
        "from compolens.activations import draw",
        *imports_of(subject),
        "",
        f"trained = {loading(subject)}",
        f'(episodes,) = draw(trained.task, "{state.split}", {subject.count}, {subject.seed}, batch={subject.count})',
        "with torch.no_grad():",
        "    prediction = trained.model(episodes.tokens)",
        "print(trained.task.score(prediction, episodes.targets))",
    ]
    return "\n".join(lines) + "\n"
