"""A model trained on single classes of functions regresses on all and selects none, so it answers combinations too."""

from pathlib import Path

import pandas as pd

from compolens import tables
from compolens.diagnosis.groups import group, title
from compolens.figures import Drawing, Line, Mark, Panel, Rule

needs = ("function_classes",)
LEARNERS = {
    "": ("model", "#332288"),
    "Bayes, prior of training": ("Bayes, prior of training", "#CC6677"),
    "Bayes, prior of the split": ("Bayes, prior of the combinations", "#117733"),
    "Bayes, one normal prior": ("Bayes, one normal prior (ridge)", "#DDAA33"),
    "true function": ("true function", "#000000"),
    "always 0": ("always 0", "#AAAAAA"),
}
"""Control -> label, colour."""


def analyze(models: list[Path]) -> Drawing:
    """Draw which classes models answer with, on single classes and on combinations of them (2306.04891, 2311.00871).

    Args:
        models: folders of the models to draw, in this order.

    Returns:
        The drawing: weights of classes and errors by number of examples, and the spectrum of the implied function, where
        inputs have one. A line of a model is a seed; a learner that is no model is drawn once, since all seeds see the same
        episodes.
    """
    groups, panels = group(models), []
    for g in groups:
        rows = pd.concat([_rows(folder) for folder in g.folders], ignore_index=True)
        name = f"{title(g, groups)}: " if len(groups) > 1 else ""
        weights = rows[rows["metric"] == "weight of class"]
        single = weights[(weights["split"] == "test") & (weights["part"] == weights["composition"])]
        combined = weights[weights["split"] == "ood"]
        both = _by(combined.groupby(["model", "control", "composition", "shown"], sort=False)["value"].sum().reset_index())
        error = rows[(rows["metric"] == "squared error") & (rows["split"] == "ood")]
        panels += [
            Panel(
                f"{name}single classes",
                "examples shown",
                "weight of the right class",
                (*_lines(_by(single), "test"), Rule(1.0)),
            ),
            Panel(f"{name}combinations", "examples shown", "sum of the weights of classes", (*_lines(both, "ood"), Rule(1.0))),
            Panel(f"{name}combinations", "examples shown", "squared error", tuple(_lines(_by(error), "ood"))),
        ]
        spectrum = rows[(rows["metric"] == "amplitude") & (rows["split"] == "ood") & (rows["shown"] == rows["shown"].max())]
        if len(spectrum):
            spectrum = spectrum.assign(shown=spectrum["part"].astype(float))
            marks = tuple(_lines(_by(spectrum), "ood"))
            panels.append(Panel(f"{name}combinations, after all examples", "frequency", "amplitude", marks))
    caption = (
        "The weight of a class is the coefficient of what this class alone would answer, in the answers; under Bayes' rule, a "
        "mean of the class's probability. Dashed: 1. On combinations, a learner that selects one class stays near 1 in sum; "
        "one that answers both approaches 2. Means over classes and over combinations; a line of a model is a seed."
    )
    return Drawing("Are combinations of classes answered, or is one class selected?", tuple(panels), caption, columns=2)


def _rows(folder: Path) -> pd.DataFrame:
    rows = tables.at_last_step(tables.read(folder, "function_classes"))
    return rows.assign(model=folder.name, part=rows["part"].fillna(""), shown=rows["shown"].astype(int))


def _by(rows: pd.DataFrame) -> pd.DataFrame:
    """Means over compositions."""
    return rows.groupby(["model", "control", "shown"], sort=False)["value"].mean().reset_index()


def _lines(rows: pd.DataFrame, split: str) -> list[Mark]:
    marks: list[Mark] = []
    for control, (label, color) in LEARNERS.items():
        if split == "test" and control == "Bayes, prior of the split":
            continue  # that of training
        seeds = list(rows[rows["control"] == control].groupby("model", sort=False))
        for number, (_, one) in enumerate(seeds if control == "" else seeds[:1]):
            line = one.sort_values("shown", kind="stable")
            marks.append(Line(line, "shown", "value", label=label, color=color, keyed=number == 0))
    return marks
