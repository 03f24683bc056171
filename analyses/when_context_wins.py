"""Labels come to be read from the context all at once, shifted labels of known classes like those of novel ones."""

from pathlib import Path

import pandas as pd

from compolens import tables
from compolens.diagnosis.groups import group, title
from compolens.figures import Drawing, Line, Mark, Panel, Rule

needs = ("in_context_or_in_weights",)
WAYS = {
    "novel classes": "#332288", "labels shifted": "#CC6677", "known classes": "#44AA99", "class not shown": "#DDCC77",
}  # fmt: skip
MEASURES = {
    "label to its item, layer 0 (ILA1)": "#882255", "question to right label, last layer (TILA2)": "#117733",
    "question to labels, last layer (TLA2)": "#AA4499", "answer is a label of the context (CLA)": "#999933",
}  # fmt: skip


def analyze(models: list[Path]) -> Drawing:
    """Draw accuracies and progress measures along training, for models on bursty classification (2312.03002).

    Two panels per architecture and setting, for tables that were measured with --steps all.

    Args:
        models: folders of the models to draw, in this order.

    Returns:
        The drawing, a line per seed.
    """
    groups, panels = group(models), []
    for g in groups:
        rows = pd.concat([_along(folder) for folder in g.folders], ignore_index=True)
        name = title(g, groups)
        accuracy = rows[rows["metric"] == "accuracy"]
        right = accuracy[accuracy["control"] == ""].assign(line=accuracy["evaluation"])
        given = accuracy[(accuracy["control"] == "a label of the context") & (accuracy["evaluation"] == "novel classes")]
        guess = Rule(float(given["value"].mean()), label="a label of the context at random")
        marks = (*_marks(right, WAYS), guess)
        panels.append(Panel(f"{name}: accuracy", "training step", "accuracy", marks, y_range=(-0.03, 1.03)))
        measures = _measures(rows)
        marks = tuple(_marks(measures[measures["control"] == ""], MEASURES))
        panels.append(Panel(f"{name}: progress", "training step", "share", marks, y_range=(-0.03, 1.03)))
    caption = (
        "Accuracy, fresh episodes: novel classes, whose labels the context alone tells; training classes with shifted labels "
        "(pairs of class and label never trained on), where context and weights contradict each other; training classes with "
        "their own labels; and training classes that are not in the context, which weights alone answer. Dashed: a label of "
        "the context at random. Progress: attention of labels to the items before them in the first layer, of the question to "
        "the right label and to all labels in the last, on novel classes; and how often the answer is a label of the context. "
        "A line is a seed: they wait for different times, and a mean would show no transition."
    )
    return Drawing("When does the context win?", tuple(panels), caption, columns=2)


def _along(folder: Path) -> pd.DataFrame:
    return tables.read(folder, "in_context_or_in_weights").assign(model=folder.name)


def _measures(rows: pd.DataFrame) -> pd.DataFrame:
    """The progress measures on novel classes, each under the name of its line."""
    rows = rows[rows["evaluation"] == "novel classes"]
    last = rows["layer"].max()
    chosen = (("label to its item", 0), ("question to right label", last), ("question to labels", last),
              ("label of the context", -1))  # fmt: skip
    parts = [
        rows[(rows["metric"] == metric) & (rows["layer"] == layer)].assign(line=line)
        for line, (metric, layer) in zip(MEASURES, chosen, strict=True)
    ]
    return pd.concat(parts, ignore_index=True)


def _marks(rows: pd.DataFrame, lines: dict[str, str]) -> list[Mark]:
    """A line per seed; none of what the rows do not have."""
    marks: list[Mark] = []
    for line, color in lines.items():
        seeds = rows[rows["line"] == line].sort_values("step", kind="stable").groupby("model", sort=False)
        for number, (_, own) in enumerate(seeds):
            marks.append(Line(own, "step", "value", label=line, color=color, keyed=number == 0))
    return marks
