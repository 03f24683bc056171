"""Which architectures answer held-out compositions as well as those they were trained on."""

from pathlib import Path

import pandas as pd

from compolens import tables
from compolens.diagnosis.evidence import score
from compolens.diagnosis.groups import SEEDS, group, telling
from compolens.figures import Band, Drawing, Panel, Points, Rule, color_of
from compolens.figures.words import under_axis

needs = ("generalization",)
SPLITS = ("test", "ood")
INKS = ("#000000", "#888888", "#444444", "#999999")
"""Greys of the references' lines, which differ in their dashes, too."""


def analyze(models: list[Path], *, references: bool = True) -> Drawing:
    """Draw the score on training compositions (test) and on held-out ones (ood), a panel per setting.

    Compositions are held out as in 2407.12275 and 2312.15001.

    Args:
        models: folders of the models to draw, in this order.
        references: draw the learners that are no networks, as lines.

    Returns:
        The drawing. Every seed is a point; from 5 seeds on a box is the 95 % interval of their mean, over seeds and
        compositions.
    """
    groups = group(models)
    settings = list(dict.fromkeys(g.setting for g in groups))
    panels, inks = [], dict[str, str]()
    for setting in settings:
        here = [g for g in groups if g.setting == setting]
        marks: list = []
        for g in here:
            name, color = under_axis(g.label), color_of(telling(g, here))
            if len(g.folders) >= SEEDS:
                means = [score(g, split) for split in SPLITS]
                columns = {"lo": [e.lo for e in means], "hi": [e.hi for e in means]}
                box = pd.DataFrame({"who": [f"{name} {split}" for split in SPLITS], **columns})
                marks.append(Band(box, "who", "lo", "hi", color=color))
            rows = [(f"{name} {split}", score_of(f, split), f.name) for split in SPLITS for f in g.folders]
            data = pd.DataFrame(rows, columns=["who", "score", "model"])
            marks.append(Points(data, "who", "score", label=g.label, color=color, hover="model"))
        if references:
            for name, value in reference_scores([folder for g in here for folder in g.folders]).items():
                ink = inks.setdefault(name, INKS[len(inks) % len(INKS)])
                marks.append(Rule(value, label=name, color=ink))
        panels.append(Panel(setting, "", tables.settings(here[0].folders[0])["score_name"], tuple(marks), y_range=span(marks)))
    caption = (
        "Pooled score on fresh episodes of training compositions (test) and on held-out compositions (ood). Points "
        "are seeds, boxes the 95 % interval of their mean over seeds and compositions (from 5 seeds on). "
        "Lines: learners without training on each model's ood episodes, mean over models; the ceiling is true code or, where "
        "that cannot be inferred for certain, the Bayes posterior."
    )
    return Drawing("Who answers held-out compositions?", tuple(panels), caption, columns=min(2, len(panels)))


def span(marks: list) -> tuple[float, float]:
    """A y range that holds every mark, reference lines included, with some air.

    Args:
        marks: the marks of a panel.

    Returns:
        (lowest, highest) value of the axis.
    """
    values = [mark.value for mark in marks if isinstance(mark, Rule)]
    for mark in marks:
        if not isinstance(mark, Rule):
            rows = mark.rows()
            values += [float(v) for column in ("y", "lo", "hi") if column in rows for v in rows[column]]
    air = 0.05 * (max(values) - min(values)) or 0.05
    return min(values) - air, max(values) + air


def score_of(folder: Path, split: str) -> float:
    """The pooled score of one model on one split, at its last step.

    Args:
        folder: the model's folder.
        split: "test" or "ood".

    Returns:
        The score, in the family's unit.
    """
    frame = _pooled(folder, split)
    return float(frame[frame["control"] == ""]["value"].iloc[0])


def reference_scores(folders: list[Path]) -> dict[str, float]:
    """Scores on held-out compositions of the references that apply; of those that know the examples alone, the best.

    Args:
        folders: the models' folders, each with its own tasks and episodes.

    Returns:
        Name -> score, mean over the models.
    """
    frame = pd.concat([_pooled(folder, "ood")[["control", "reference", "value"]] for folder in folders])
    frame = frame[(frame["control"] == "reference") & frame["value"].notna()]
    return tables.worth_drawing(dict(frame.groupby("reference", sort=False)["value"].mean()))


def _pooled(folder: Path, split: str) -> pd.DataFrame:
    frame = tables.pooled(folder)
    return frame[frame["split"] == split]
