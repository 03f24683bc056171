"""A model that says how sure it is tells by its variances which prior of tasks it has learned."""

from pathlib import Path

import pandas as pd

from compolens import tables
from compolens.diagnosis.groups import group, title
from compolens.figures import Drawing, Line, Mark, Panel, Rule

needs = ("uncertainty",)
LEARNERS = {
    "": ("model", "#332288"),
    "Bayes, prior of training": ("Bayes, prior of training", "#CC6677"),
    "Bayes, prior of the split": ("Bayes, prior of the held-out tasks", "#117733"),
    "constant": ("one mean and variance for all", "#AAAAAA"),
}
"""Control -> label, colour."""
METRICS = {"standard deviation": "standard deviation", "squared error over variance": "squared error / variance"}
SPLITS = {"test": "tasks of training", "ood": "held-out tasks"}


def analyze(models: list[Path]) -> Drawing:
    """Draw what models say of their own errors, by number of examples (2405.15115).

    Args:
        models: folders of the models to draw, in this order.

    Returns:
        The drawing: standard deviations that are said, and squared errors over variances, by split. A line of a model is a
        seed; a learner that is no model is drawn once, since all seeds see the same episodes.
    """
    groups, panels = group(models), []
    for g in groups:
        rows = pd.concat([_rows(folder) for folder in g.folders], ignore_index=True)
        name = title(g, groups)
        for metric, words in METRICS.items():
            for split, where in SPLITS.items():
                here = rows[(rows["metric"] == metric) & (rows["split"] == split)]
                marks = _marks(here, split)
                if metric != "standard deviation":
                    marks.append(Rule(1.0))  # the caption says what it is
                panels.append(Panel(f"{name}: {where}", "examples shown", words, tuple(marks)))
    caption = (
        "Above, the standard deviation that is said of an answer; below, squared errors over the variances that are said: "
        "at the dashed 1 these are right on average, above it the learner is too sure. On tasks of training both priors are "
        "the same. Held-out tasks have another prior: who keeps that of training is too sure of them."
    )
    return Drawing("Which prior sets the variance?", tuple(panels), caption, columns=2)


def _rows(folder: Path) -> pd.DataFrame:
    rows = tables.at_last_step(tables.read(folder, "uncertainty"))
    return rows.assign(model=folder.name, prior=rows["prior"].fillna(""), shown=rows["shown"].astype(int))


def _marks(rows: pd.DataFrame, split: str) -> list[Mark]:
    marks: list[Mark] = []
    for control, (label, color) in LEARNERS.items():
        own = rows[(rows["control"] == control) & (rows["prior"] == "")]
        if split == "test" and control == "Bayes, prior of the split":
            continue  # that of training
        seeds = list(own.groupby("model", sort=False))
        for number, (_, one) in enumerate(seeds if control == "" else seeds[:1]):
            marks.append(
                Line(one.sort_values("shown", kind="stable"), "shown", "value", label=label, color=color, keyed=number == 0)
            )
    return marks
