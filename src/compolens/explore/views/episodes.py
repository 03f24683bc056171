"""The episodes of a composition, the worst first."""

from __future__ import annotations

import numpy as np
import pandas as pd

from compolens.explore.sets import pooled
from compolens.explore.state import State
from compolens.explore.subjects import Subject
from compolens.explore.views.base import View, opening
from compolens.figures import Drawing, Panel, Points, Rule

CAPTION = (
    "Error of an episode over the mean weight of the split's episodes; weight is the error of an answer that scores 0. So 0 "
    "is perfect, and 1 as far off as a score of 0."
)


def ranked(subject: Subject, split: str, composition: int | None = None) -> pd.DataFrame:
    """The episodes of a split, or of one composition, by falling error in units of the split's mean weight.

    Args:
        subject: the model under study.
        split: "test" or "ood".
        composition: only the episodes of this one; None: all.

    Returns:
        The columns of `Subject.results`, and "badness": 0 is perfect, 1 is as far off as a score of 0.
    """
    frame = subject.results(split)
    frame = frame.assign(badness=frame["error"] / frame["weight"].mean())
    if composition is not None:
        frame = frame[frame["composition"] == composition]
    return frame.sort_values("badness", ascending=False, kind="stable").reset_index(drop=True)


def worst(subject: Subject, state: State) -> View:
    """Every episode of the split by its rank, with the chosen ones marked; the number is the score of the chosen ones.

    Args:
        subject: the model under study.
        state: what the reader has chosen.

    Returns:
        The view.
    """
    frame = ranked(subject, state.split)
    composition = set(subject.bases(state).composition.tolist())
    frame["told"] = [f"episode {e}, {name}" for e, name in zip(frame["episode"], frame["name"], strict=True)]
    frame["rank"] = np.arange(len(frame), dtype=float)
    chosen = frame["episode"].isin(state.chosen)
    same = frame["composition"].isin(composition) & ~chosen
    parts = (("other compositions", ~chosen & ~same, "#c8ccd0"), ("same composition", same, "#0072B2"))
    marks = [
        Points(frame[which], "rank", "badness", label=label, color=color, hover="told")
        for label, which, color in (*parts, ("chosen", chosen, "#D55E00"))
        if which.any()
    ]
    cells = {(int(rank), 0): (int(e),) for rank, e in zip(frame["rank"], frame["episode"], strict=True)}
    panel = Panel("", "rank of the episode, worst first", "error / mean weight", (*marks, Rule(1.0, "score 0")))
    rows = subject.results(state.split).iloc[list(state.chosen)]
    number = pooled(rows["error"].to_numpy(), rows["weight"].to_numpy(), rows["composition"].to_numpy())
    what = f"{subject.task.score_name} of the chosen episode" + ("" if state.single else "s")
    lines = [
        *opening(subject, state),
        "with torch.no_grad():",
        "    prediction = model(episodes.tokens)",
        "print(task.score(prediction, episodes.targets))",
    ]
    drawing = Drawing(f"Episodes by error: {subject.title}", (panel,), CAPTION)
    return View(drawing, number, what, "\n".join(lines) + "\n", cells)
