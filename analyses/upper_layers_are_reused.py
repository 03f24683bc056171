"""The upper layers of a trained model, frozen, work under a new embedding: better than random or lower layers do."""

from pathlib import Path

import pandas as pd

from compolens import tables
from compolens.diagnosis.groups import Group, group, title
from compolens.figures import Drawing, Line, Mark, Panel, Points, Rule

needs = ("pasting",)
CONDITIONS = {
    "": "pasted",
    "untrained": "random upper",
    "lower layers": "lower",
    "embedding alone": "embedding alone",
    "all trained": "all trained",
}
"""Control -> how it is called here."""
COLORS = {"": "#332288", "untrained": "#999999", "lower layers": "#DDCC77", "embedding alone": "#CC6677"}
COLORS |= {"all trained": "#44AA99"}
SPLITS = {"test": "#332288", "ood": "#CC6677"}


def analyze(models: list[Path]) -> Drawing:
    """Draw how pasted layers answer, beside random ones, lower ones, none, and ones that are trained (2310.10616).

    Args:
        models: folders of the models to draw, in this order.

    Returns:
        The drawing: paste gaps and errors by number of examples where models are pasted onto linear regression, else scores
        on compositions of training and on held-out ones. Points and lines are seeds.
    """
    groups, panels = group(models), []
    for g in groups:
        rows = pd.concat([_rows(folder) for folder in g.folders], ignore_index=True)
        panels += _regression(g, groups, rows) if "paste gap" in set(rows["metric"]) else _other(g, groups, rows)
    caption = (
        "Under a new embedding, which alone is trained, stand the upper layers of a model as they are (pasted), those of its "
        "untrained control, its lower layers, or none. Controls also train what reads the answers. All trained: upper layers "
        "from fresh weights. All spend equal updates. Paste gap: 0 is the posterior mean, 1 an answer of 0."
    )
    return Drawing("Do upper layers work under a new embedding?", tuple(panels), caption, columns=2)


def _rows(folder: Path) -> pd.DataFrame:
    rows = tables.at_last_step(tables.read(folder, "pasting"))
    return rows.assign(model=folder.name, embedding=rows["embedding"].fillna(""))


def _regression(g: Group, groups: list[Group], rows: pd.DataFrame) -> list[Panel]:
    here = rows[(rows["split"] == "test") & rows["control"].isin(list(CONDITIONS))]
    gaps = here[here["metric"] == "paste gap"]
    marks: list[Mark] = []
    for control, name in CONDITIONS.items():
        own = gaps[gaps["control"] == control]
        marks.append(Points(own, "embedding", "value", label=name, color=COLORS[control], hover="model"))
    marks.append(Rule(0.0))
    largest = gaps["embedding"].iloc[-1]
    errors = rows[(rows["metric"] == "squared error") & (rows["split"] == "test")]
    curves: list[Mark] = []
    for control, name in CONDITIONS.items():
        own = errors[(errors["control"] == control) & (errors["embedding"] == largest)]
        for number, (_, one) in enumerate(own.groupby("model", sort=False)):
            curves.append(Line(one, "examples", "value", label=name, color=COLORS[control], keyed=number == 0))
    ideal = errors[errors["control"] == "posterior mean"]
    ideal = ideal[ideal["model"] == ideal["model"].iloc[0]]
    curves.append(Line(ideal, "examples", "value", label="posterior mean", color="#000000", dash=True))
    name = title(g, groups)
    return [
        Panel(f"{name}, onto linear regression", "new embedding", "paste gap", tuple(marks)),
        Panel(f"{name}, {largest} below", "examples", "squared error", tuple(curves)),
    ]


def _other(g: Group, groups: list[Group], rows: pd.DataFrame) -> list[Panel]:
    scores = rows[rows["metric"] == "score"].assign(who=lambda r: r["control"].map({**CONDITIONS, "as trained": "as trained"}))
    marks = tuple(
        Points(scores[scores["split"] == split], "who", "value", label=split, color=color, hover="model")
        for split, color in SPLITS.items()
    )
    return [Panel(title(g, groups), "", tables.settings(g.folders[0])["score_name"], marks)]
