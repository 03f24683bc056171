"""Whether the answers of successive layers advance like Newton's iteration, like gradient descent or like GD++."""

from pathlib import Path

import numpy as np
import pandas as pd

from compolens import tables
from compolens.diagnosis.groups import Group, group, name_among, telling
from compolens.figures import Band, Drawing, Line, Panel, Points, color_of

needs = ("algorithm_steps",)
ALGORITHMS = {"Newton": "best Newton step", "GD": "best GD step, log₂", "GD++": "best GD++ step"}
EDGE, UNTRAINED = "at the edge: this step or later", "untrained control"


def analyze(models: list[Path], *, untrained: bool = True) -> Drawing:
    """Draw, by layer, the step of each algorithm whose errors are most like the layer's (2310.17086).

    A row of panels per architecture, a panel per algorithm: Newton's iteration, gradient descent on a logarithmic axis (where
    exponential growth is straight), and GD++.

    Args:
        models: folders of the models to draw, in this order.
        untrained: draw the untrained controls; on, since what they share is not learnt.

    Returns:
        The drawing. Lines are means over seeds, points seeds, bands the widest 95 % bootstrap interval over episodes. Open
        marks: the best step is the last one looked at, or the first that cannot be told from least squares. Below each panel:
        R² of straight lines, and similarity.
    """
    groups, panels = group(models), []
    frames = [pd.concat([_read(folder) for folder in g.folders], ignore_index=True) for g in groups]
    tops = {name: max(_top(frame, name) for frame in frames) for name in ALGORITHMS}
    for g, frame in zip(groups, frames, strict=True):
        for name, top in tops.items():
            panels.append(_panel(frame[frame["algorithm"] == name], g, groups, name, untrained, top))
    caption = (
        "Best-matching step by layer. Linear and exponential R²: of a straight line through the best steps, and through their "
        "logarithms, over the n layers that are not at an edge (from 3 on; mean over seeds). Similarity: the cosine between "
        "the errors of a layer and of its best step, lowest to highest layer, mean over seeds. Grey, dashed: the "
        "untrained controls (constructed models have none). GD has half the rate tuned for one step, GD++ the rates tuned "
        "for as many "
        "steps as layers. A trend shows how fast answers converge, not by which algorithm: layers that each double the "
        "steps of gradient descent advance along Newton's steps linearly too. So similarity must be higher for one algorithm "
        "than for the others, and than for the untrained control, before its name is used. Below 5 seeds no difference is "
        "claimed."
    )
    return Drawing("Newton's steps or gradient steps?", tuple(panels), caption, columns=3)


def _read(folder: Path) -> pd.DataFrame:
    rows = tables.with_untrained_control(folder, "algorithm_steps")
    return rows[rows["split"] == "test"]


def _top(frame: pd.DataFrame, algorithm: str) -> float:
    """The largest best step, intervals included, on the algorithm's axis."""
    steps = _steps(frame[frame["algorithm"] == algorithm], algorithm)
    return float(np.nanmax(steps[["value", "hi"]].to_numpy(float)))


def _steps(rows: pd.DataFrame, algorithm: str) -> pd.DataFrame:
    """Best steps with their intervals, by layer (as a word: also one layer alone has its place on the axis)."""
    steps = rows[rows["metric"] == "best step"].sort_values("layer", kind="stable")
    if algorithm == "GD":
        steps = steps.assign(**{c: np.log2(steps[c]) for c in ("value", "lo", "hi")})
    return steps.assign(layer=[f"{layer:g}" for layer in steps["layer"]])


def _panel(rows: pd.DataFrame, g: Group, groups: list[Group], algorithm: str, untrained: bool, top: float) -> Panel:
    steps = _steps(rows, algorithm)
    own, color = steps[steps["control"] == ""], color_of(telling(g, groups))
    span = own.groupby("layer", as_index=False, sort=False).agg(lo=("lo", "min"), hi=("hi", "max"))
    marks: list = [
        Band(span, "layer", "lo", "hi", color=color),
        Line(_mean(own), "layer", "value", label=g.label, color=color),
    ]
    if len(g.folders) > 1:
        marks.append(Points(own, "layer", "value", color=color, hover="model"))
    control = steps[steps["control"] == "untrained"]
    if untrained and len(control):
        marks.append(Line(_mean(control), "layer", "value", label=UNTRAINED, color="#888888", dash=True))
    edge = pd.concat([own, control if untrained else control[:0]])
    edge = edge[edge["note"].str.contains("edge")]
    if len(edge):
        marks.append(Points(edge, "layer", "value", label=EDGE, color="#000000", hover="model", open=True))
    name = name_among(g, groups)
    words = f"layer ({_fit(rows[rows['control'] == ''])})"
    return Panel(f"{name}: {algorithm}", words, ALGORITHMS[algorithm], tuple(marks), y_range=(-0.05 * top, 1.08 * top))


def _mean(rows: pd.DataFrame) -> pd.DataFrame:
    return rows.groupby("layer", as_index=False, sort=False).agg(value=("value", "mean"))


def _fit(own: pd.DataFrame) -> str:
    """Both trends' R² and the range of similarity over layers, in words."""
    trends = {name: own[own["metric"] == f"{name} R²"] for name in ("linear", "exponential")}
    level = own[own["metric"] == "best level"].groupby("layer")["value"].mean()
    alike = f"similarity {level.min():.2f}" + (f" to {level.max():.2f}" if len(level) > 1 else "")
    if trends["linear"]["value"].isna().all():
        return f"too few for a trend; {alike}"
    words = [f"{name} R² {rows['value'].mean():.2f}" for name, rows in trends.items()]
    fitted = sorted({int(n) for n in trends["linear"]["n"]})
    layers = f"{fitted[0]}" if len(fitted) == 1 else f"{fitted[0]} to {fitted[-1]}"
    return f"{words[0]}, {words[1]}, n = {layers}; {alike}"
