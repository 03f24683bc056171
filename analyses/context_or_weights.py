"""Labels come from the weights alone where the context never tells them, and from either where both are needed somewhere."""

from pathlib import Path

import pandas as pd

from compolens import tables
from compolens.diagnosis.groups import group, title
from compolens.figures import Drawing, Mark, Panel, Points

needs = ("in_context_or_in_weights",)
ASKED = {
    ("accuracy", "known classes"): "known classes",
    ("accuracy", "novel classes"): "novel classes",
    ("accuracy", "class not shown"): "class not shown",
    ("accuracy", "labels shifted"): "labels shifted",
    ("trained label", "labels shifted"): "label of training, where shifted",
}
"""(metric, evaluation) -> what is shown for it."""
SHOWN = list(ASKED.values())
CONTROLS = {
    "": ("model", "#332288"),
    "a label of the context": ("a label of the context at random", "#888888"),
    "untrained": ("untrained", "#BBBBBB"),
}
"""Control -> label, colour."""


def analyze(models: list[Path]) -> Drawing:
    """Draw where answers come from after training, for models on bursty classification (2312.03002).

    A panel per architecture and setting.

    Args:
        models: folders of the models to draw, in this order.

    Returns:
        The drawing. Points are seeds; open ones are controls.
    """
    groups, panels = group(models), []
    for g in groups:
        rows = pd.concat([_rows(folder) for folder in g.folders], ignore_index=True)
        marks: list[Mark] = []
        for control, (label, color) in CONTROLS.items():
            own = rows[rows["control"] == control]
            marks.append(Points(own, "asked", "value", label=label, color=color, hover="model", open=bool(control)))
        panels.append(Panel(title(g, groups), "", "share of answers", tuple(marks), y_range=(-0.03, 1.03)))
    caption = (
        "Accuracy after training, on fresh episodes. Known classes: training classes, shown with their own labels. Novel "
        "classes: the context alone tells their labels. Class not shown: training classes, whose labels weights alone tell. "
        "Labels shifted: training classes, shown with another label than in training; the last column is how often the answer "
        "there is the label of training. A point is a seed. Open marks are controls: a label of the context at random, and "
        "the untrained control."
    )
    return Drawing("Do labels come from the context or from the weights?", tuple(panels), caption, columns=1)


def _rows(folder: Path) -> pd.DataFrame:
    rows = tables.at_last_step(tables.read(folder, "in_context_or_in_weights"))
    asked = [ASKED.get(key, "") for key in zip(rows["metric"], rows["evaluation"], strict=True)]
    rows = rows.assign(asked=asked, model=folder.name)
    rows = rows[rows["asked"].isin(SHOWN) & rows["value"].notna()]
    return rows.sort_values("asked", key=lambda column: column.map(SHOWN.index), kind="stable")
