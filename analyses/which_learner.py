"""Which learner of linear regression the forward pass is nearest to, beside how near these learners are to one another."""

import textwrap
from pathlib import Path

import pandas as pd

from compolens import tables
from compolens.diagnosis.closest_learner import ALIKE
from compolens.diagnosis.groups import Group, group, telling
from compolens.figures import Drawing, HeatMap, Panel, Points, color_of
from compolens.foundation.configs import require, require_choice

needs = ("gd_equivalence",)
METRICS = {
    "sensitivity cosine": "max", "prediction distance": "min", "SPD": "min", "sensitivity distance": "min", "ILWD": "min",
}  # fmt: skip
"""Metric -> which of several values is the nearest."""
SPLITS = {
    "test": "episodes as in training",
    "ood": "held-out ones (other inputs or, after a finite pool of tasks, other tasks)",
}
KINDS = ("GD,", "GD++,", "Newton,", "Newton", "ridge", "least squares", "posterior mean", "online SGD")
"""How names of references begin, in the order in which they are shown; neighbours and anything else come last."""
CONTROLS = {"untrained": "untrained controls", "shuffled": "shuffled answers"}


def analyze(models: list[Path], *, metric: str = "sensitivity cosine", split: str = "test", shown: int = 12) -> Drawing:
    """Draw how near every model is to every reference learner, and the references to one another (2212.07677, 2211.15661).

    Per task: a heat map of models beside references, with the untrained controls and with references that saw another
    episode's answers; on the same colours, a heat map of references beside each other; and each model's nearest reference
    beside what that one has with its own nearest, the floor that a resemblance must exceed.

    Args:
        models: folders of the models to draw, in this order.
        metric: "sensitivity cosine" (1: the same slope at the query; needs no unit), or a distance: "prediction distance",
            "SPD", "sensitivity distance", "ILWD".
        split: "test" (episodes as in training) or "ood" (other inputs or tasks).
        shown: at most so many references, 2 or more: those nearest to any model; 12 fit on a page.

    Returns:
        The drawing. Cells are means over seeds, points seeds.

    Raises:
        ConfigError: there is no such metric or split, or shown is below 2.
    """
    require_choice(metric, METRICS)
    require_choice(split, SPLITS)
    require(shown >= 2, f"shown must be at least 2 references, got {shown}; type --shown 12")
    groups, panels, found = group(models), [], []
    tasks: dict[tuple, list[Group]] = {}
    for g in groups:
        tasks.setdefault(_task(g), []).append(g)
    for here in tasks.values():
        rows = pd.concat([_rows(g, metric, split) for g in here], ignore_index=True)
        setting = here[0].setting if len(tasks) > 1 else ""
        scale = f"{metric}, {setting}" if setting and METRICS[metric] == "min" else metric  # distances have a task's units
        drawn, sentences = _panels(rows, here, metric, scale, shown, f", {setting}" if setting else "")
        panels += drawn
        found += sentences
    caption = (
        f"{metric[0].upper() + metric[1:]} on {SPLITS[split]}; "
        f"{'larger' if METRICS[metric] == 'max' else 'smaller'} is nearer. Cells are means over seeds, points seeds. "
        "Controls: the untrained control (constructed models have none), and the model beside references that were shown "
        "another "
        f"episode's answers. {' '.join(found)} Where a model is no nearer to a reference than another reference is, it cannot "
        f"be said which it is (references with a sensitivity cosine of {ALIKE} count as one). With fewer than 5 seeds no "
        "difference between models is claimed."
    )
    return Drawing("Which learner does the forward pass resemble?", tuple(panels), caption, columns=1)


def _task(g: Group) -> tuple:
    """What tells tasks apart: references are tuned, and compared, within one."""
    seeds = ("task.teacher_seed", "task.split_seed")
    return tuple(
        sorted((k, str(v)) for k, v in tables.settings(g.folders[0]).items() if k.startswith("task") and k not in seeds)
    )


def _rows(g: Group, metric: str, split: str) -> pd.DataFrame:
    """who, control, learner, reference, value and model of all seeds; untrained controls of what was never trained are left
    out."""
    parts = []
    for folder in g.folders:
        rows = tables.with_untrained_control(folder, "gd_equivalence")
        rows = rows[(rows["metric"] == metric) & (rows["split"] == split) & (rows["reference"] != "none")]
        parts.append(rows.assign(who=g.label))
    return pd.concat(parts)


def _place(name: str) -> tuple[int, int, str]:
    """The kind's place in the order, then the steps."""
    kind = next((i for i, start in enumerate(KINDS) if name.startswith(start)), len(KINDS))
    return kind, int("".join(c for c in name.partition(",")[2] if c.isdigit()) or 0) if "step" in name else 0, name


def _panels(
    rows: pd.DataFrame, here: list[Group], metric: str, scale: str, shown: int, setting: str
) -> tuple[list, list[str]]:
    """The three panels of a task, and a sentence per model."""
    models, floor = rows[rows["learner"] == "model"], rows[rows["control"] == "reference"].assign(row=lambda f: f["learner"])
    own = models.assign(row=models["who"].where(models["control"] == "", models["control"].map(CONTROLS)))
    trained = _cells(own).loc[[g.label for g in here]]
    best = trained.agg(METRICS[metric]).sort_values(ascending=METRICS[metric] == "min")
    columns = sorted(best.index[:shown], key=_place)
    order = [*trained.index, *(word for word in CONTROLS.values() if word in set(own["row"]))]
    marks, sentences, apart = [], [], _cells(floor)
    for g in here:
        first, value = _nearest(trained.T[g.label], metric)
        others = apart.T[first].drop(first)
        if metric == "sensitivity cosine":
            others = others[others < ALIKE]  # those that point the same way are no other learner by this measure
        second, between = _nearest(others, metric)
        known = own[(own["who"] == g.label) & (own["reference"] == first)]
        form = ".3f" if METRICS[metric] == "max" else ".3g"
        where = f"{g.label}: {first} ({value:{form}}); floor {between:{form}}"
        marks += _points(known.assign(x=where), between, g.label, color_of(telling(g, here)))
        nearer = value > between if METRICS[metric] == "max" else value < between
        sentences.append(
            f"{g.label}{setting} ({len(g.folders)} seed{'s' * (len(g.folders) > 1)}): nearest to {first} of {len(best)} "
            f"references ({value:.4g}), {'nearer' if nearer else 'no nearer'} than {second} is to that one ({between:.4g})."
        )
    title = "Each model with its nearest reference, and that one with its own nearest"
    return [
        Panel(f"Models beside references{setting}", "", "", (_heat(_cells(own), order, columns, scale),)),
        Panel(f"Floor: references beside each other{setting}", "", "", (_heat(apart, columns, columns, scale),)),
        Panel(f"{title}{setting}", "", metric, tuple(marks)),
    ], sentences


def _cells(rows: pd.DataFrame) -> pd.DataFrame:
    """Means over seeds: `row` by reference."""
    return rows.pivot_table(index="row", columns="reference", values="value", aggfunc="mean")


def _nearest(values: pd.Series, metric: str) -> tuple[str, float]:
    """The nearest reference, the first in the order of references where several are, and its value."""
    values = values.dropna()
    values = values.reindex(sorted(values.index, key=_place))
    name = str(values.idxmax() if METRICS[metric] == "max" else values.idxmin())
    return name, float(values[name])


def _heat(cells: pd.DataFrame, rows: list[str], columns: list[str], scale: str) -> HeatMap:
    """Cells in the given order of rows and columns; what is missing stays without a value."""
    grid = cells.reindex(index=rows, columns=columns)
    names = ["\n".join(textwrap.wrap(row, 26)) for row in rows]
    cell = [(name, column, grid.loc[row, column]) for name, row in zip(names, rows, strict=True) for column in columns]
    return HeatMap(pd.DataFrame(cell, columns=["row", "reference", "value"]), "reference", "row", "value", label=scale)


def _points(known: pd.DataFrame, between: float, label: str, color: str) -> list[Points]:
    """Of a model and its nearest reference: the seeds, what that reference has with its own nearest, and the controls."""
    where = known[["x"]].head(1).assign(value=between)
    marks = [Points(where, "x", "value", label="that reference with its own nearest", color="#000000", open=True)]
    for control, name, shade in (
        ("", label, color),
        ("untrained", "untrained control", "#888888"),
        ("shuffled", "shuffled answers", "#BBBBBB"),
    ):
        rows = known[known["control"] == control]
        if len(rows):
            marks.append(Points(rows, "x", "value", label=name, color=shade, hover="model"))
    return marks
