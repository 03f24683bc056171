"""Whether the weights of token-space attention have the form that theory gives to a step of gradient descent."""

from pathlib import Path

import numpy as np
import pandas as pd

from compolens import tables
from compolens.diagnosis.groups import Group, group, name_among, telling
from compolens.figures import Drawing, HeatMap, Mark, Panel, Points, Rule, color_of

needs = ("weight_structure",)
SMALLEST = -4
UNTRAINED, UNTRAINED_COLOR = "untrained control", "#888888"
FEW = ("KQ off-diagonal", "KQ cosine to inverse Gamma", "OV x to y", "homogeneity", "zero sum", "eta")
"""What the claim is decided by."""
STATISTICS = {  # metric -> (what the panel says, whether its logarithm is shown)
    "KQ diagonal": ("KQ diagonal, mean", False),
    "KQ off-diagonal": ("KQ off-diagonal / diagonal, log₁₀", True),
    "KQ cosine to inverse Gamma": ("|cosine| of KQ and inverse Gamma", False),
    "KQ distance to inverse Gamma": ("distance of KQ to inverse Gamma", False),
    "OV y to y": ("OV, y to y", False),
    "OV x to y": ("OV, x to y / y to y, log₁₀", True),
    "homogeneity": ("spread of |KQ diagonal| over heads", False),
    "zero sum": ("|sum of OV| / sum of |OV| over heads", False),
    "eta": ("eta, rate of the gradient step", False),
    "eta, off-diagonal": ("eta, off-diagonal / diagonal, log₁₀", True),
}


def analyze(models: list[Path], *, layer: int | None = None, every: bool = False, matrices: bool = False) -> Drawing:
    """Draw KQ and OV of token-space attention, and the statistics that a gradient step would fix.

    Theory: 2306.09927 (one trained linear layer), 2212.07677 (a gradient step), 2503.12734 (heads whose OV sum to zero). A
    panel per statistic of the table weight_structure, by layer.

    Args:
        models: folders of the models to draw, in this order.
        layer: draw this layer alone, counted from 0, or from the end if negative; by default all.
        every: draw all ten statistics, not only the six by which the claim is decided.
        matrices: draw heat maps first, in the coordinates of tokens (x, y): every head of one model of each architecture, its
            first seed.

    Returns:
        The drawing. Points are seeds, and heads where a statistic is a head's; open marks are untrained controls, the line is
        random matrices.

    Raises:
        ConfigError: there is no such layer.
    """
    groups, panels, frames = group(models), [], []
    for g in groups:
        frame = pd.concat(
            [tables.with_untrained_control(folder, "weight_structure") for folder in g.folders], ignore_index=True
        )
        frame = frame[frame["layer"] >= 0]  # the losses are of no layer
        frame = frame if layer is None else frame[frame["layer"] == tables.nth_layer(frame, layer, g.label, "type --layer 0")]
        frames.append(frame)
        if matrices:
            name = name_among(g, groups)
            panels += _matrices(frame[frame["model"] == g.folders[0].name], name)
    for metric, (words, logarithm) in STATISTICS.items():
        marks = _statistic(frames, groups, metric, logarithm) if every or metric in FEW else ()
        if marks:
            panels.append(Panel(words if words.startswith("eta") else words[0].upper() + words[1:], "layer", "", marks))
    first = ", ".join(g.folders[0].name for g in groups)
    shown = f"Heat maps show the first seed of each architecture ({first}), each matrix over its largest magnitude. "
    caption = (
        f"KQ = W_K W_Qᵀ, OV = W_V W_O. {f'The last row and column are y. {shown}' if matrices else ''}A gradient step "
        "has a KQ "
        "that is a multiple of the identity on x (off-diagonal 0) where inputs are isotropic, and moves y by y alone; one "
        "trained linear layer has |cosine| 1 with the inverse Gamma of 2306.09927. Points are seeds, and heads where a "
        "statistic is a head's; open marks untrained controls (constructed models have none), the line random matrices. "
        f"Logarithms are cut off at {SMALLEST}. KQ and OV of linear attention are known up to a factor that one takes from "
        "the other; eta is free of it. Softmax heads whose OV sum to zero are debiased gradient descent (2503.12734). With "
        "fewer than 5 seeds no difference is claimed."
    )
    return Drawing("Do the weights have a gradient step's structure?", tuple(panels), caption, columns=4 if matrices else 3)


def _matrices(rows: pd.DataFrame, name: str) -> list[Panel]:
    """KQ and OV of every layer and head: entries over the largest magnitude."""
    entries = rows[rows["metric"].isin(["KQ entry", "OV entry"])]
    panels, size = [], int(entries["row"].max())
    for key, one in entries.groupby(["layer", "head", "metric"], sort=False):
        layer, head, metric = map(str, key)
        top = one["value"].abs().max()
        cells = one.assign(value=one["value"] / (top or 1.0))
        cells = cells.assign(**{c: ["y" if i == size else f"x{i + 1}" for i in one[c]] for c in ("row", "column")})
        axes = ("query", "key") if metric == "KQ entry" else ("to", "from")
        where = f"{name}, layer {layer}" + (f", head {head}" if len(set(entries["head"])) > 1 else "")
        mark = HeatMap(cells, "column", "row", "value", centre=0.0, label="entry / largest")
        panels.append(Panel(f"{where}: {metric[:2]}, largest {top:.2g}", *axes, (mark,)))
    return panels


def _statistic(frames: list[pd.DataFrame], groups: list[Group], metric: str, logarithm: bool) -> tuple:
    """Points by layer: a group's seeds (and heads), then untrained controls; none if no model has the statistic."""
    marks: list[Mark] = []
    controls: list[Mark] = []
    chance: list[float] = []
    for frame, g in zip(frames, groups, strict=True):
        rows = frame[frame["metric"] == metric].assign(place=frame["layer"].astype(str))
        if logarithm:
            rows = rows.assign(value=np.log10(rows["value"].clip(lower=10.0**SMALLEST)))
        chance += rows[rows["control"] == "chance"]["value"].tolist()
        color = color_of(telling(g, groups))
        for control, label in (("", g.label), ("untrained", UNTRAINED)):
            own = rows[rows["control"] == control]
            shade = UNTRAINED_COLOR if control else color
            if len(own):
                (controls if control else marks).append(
                    Points(own, "place", "value", label=label, color=shade, hover="model", open=control != "")
                )
    marks += controls
    return (*marks, Rule(float(np.mean(chance)), label="random matrices")) if chance else tuple(marks)
