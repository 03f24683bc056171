"""Whether attention writes what one gradient step of its dual model would, and whether that tells trained models apart."""

from pathlib import Path

import numpy as np
import pandas as pd

from compolens import tables
from compolens.diagnosis.groups import group, telling, title
from compolens.figures import Drawing, Line, Panel, Points, Rule, color_of

needs = ("dual_model",)
WAYS = {
    "heads, by kernel values": "#882255",
    "whole layers, chained": "#44AA99",
    "step by automatic differentiation": "#332288",
}
"""How the dual model's prediction is computed, each with its colour."""
ROUNDING = 2.0**-23
"""Of a float32 number, relative."""
UNTRAINED = ("", "untrained")
DASHED = "(dashed: untrained)"
ALL_AT_ONCE, SHUFFLED = "all demonstrations at once, at a rate of 1 / their number", "values of other tokens"


def analyze(models: list[Path], *, layer: int = -1) -> Drawing:
    """Draw how far attention's output is from its dual model's prediction, as trained and untrained (2310.13220).

    Three panels per architecture and setting: the distance left after each demonstration that the dual model of one query
    learns; the largest distance left by layer, by how it is computed; and the share of the output that demonstrations write,
    by layer.

    Args:
        models: folders of the models to draw, in this order.
        layer: the layer of the first panel, counted from 0, or from the end if negative; -1 is the last.

    Returns:
        The drawing. Lines are means over seeds; dashed lines are the untrained control; points of the third panel are heads.
        Black lines of the first panel: values of other tokens.

    Raises:
        ConfigError: there is no such layer.
    """
    groups, panels = group(models), []
    for g in groups:
        rows = pd.concat([_read(folder) for folder in g.folders], ignore_index=True)
        color, chosen = color_of(telling(g, groups)), tables.nth_layer(rows, layer, g.label)
        name = title(g, groups)
        panels.append(
            Panel(
                f"{name}: learning, layer {chosen}",
                "demonstrations learnt",
                f"distance left {DASHED}",
                _learning(rows, chosen, color),
            )
        )
        distances = _distances(rows)
        lowest = min(mark.rows()["y"].min() for mark in distances)
        panels.append(
            Panel(
                f"{name}: distance left",
                "layer",
                f"log₁₀ of distance {DASHED}",
                distances,
                y_range=(min(-8, lowest) - 0.3, 0.5),
            )
        )
        panels.append(Panel(f"{name}: share of the step", "layer", f"share of output {DASHED}", _shares(rows, color)))
    caption = (
        "Dashed: the same models untrained; lines may lie on top of each other. Learning: distance of the dual model's "
        "prediction from attention's output at the last answer, relative to the start, mean over episodes and heads. The last "
        "demonstration brings it to 0; values of other tokens do not, and where they end says how much it matters which token "
        "has which value: under even attention, not at all. Distance left: the largest, relative to the output's size. By "
        "kernel values the step is attention's own arithmetic, true of any weights. What could fail is the step by automatic "
        "differentiation on explicit features (drawn only where the kernel is small enough), and the course of learning. All "
        "agree before training as after, so agreement says nothing about what was learnt. Share of the step: norm of what the "
        "demonstrations add over that of the output, at answers; points are heads, lines means. The rest comes from the "
        "query's own token; above 1 the two work against each other. With fewer than 5 seeds no difference is claimed."
    )
    return Drawing("Is attention a gradient step, and does that tell?", tuple(panels), caption, columns=3)


def _read(folder: Path) -> pd.DataFrame:
    """A model's rows on training compositions."""
    rows = tables.with_untrained_control(folder, "dual_model")
    rows = rows[rows["split"] == "test"]
    return rows.assign(who=rows["layer"].astype(int).astype(str))


def _learning(rows: pd.DataFrame, layer: int, color: str) -> tuple:
    """Distance left against demonstrations: one by one, all at once, and with shuffled values."""
    rows = rows[(rows["metric"] == "remaining distance") & (rows["layer"] == layer)]
    mean = rows.groupby(["kind", "control", "dual_step"], as_index=False).agg(value=("value", "mean"))
    curves = {key: part.sort_values("dual_step") for key, part in mean.groupby(["kind", "control"])}
    shown = (
        ("full batch", "", ALL_AT_ONCE, "#BBBBBB", False),  # the same by algebra for the untrained control, hence drawn once
        ("one by one", "untrained, shuffled", "", "#000000", True),
        ("one by one", "shuffled", SHUFFLED, "#000000", False),
        ("one by one", "untrained", "", color, True),
        ("one by one", "", "one demonstration after the other", color, False),
    )
    return tuple(
        Line(curves[kind, control], "dual_step", "value", label=label, color=shade, dash=dash)
        for kind, control, label, shade, dash in shown
        if (kind, control) in curves
    )


def _distances(rows: pd.DataFrame) -> tuple:
    """log₁₀ of the largest distance by layer: over positions, heads, episodes and seeds."""
    heads, mean, relative = (_values(rows, f"{kind} distance") for kind in ("max", "mean", "relative"))
    found = (heads * relative / mean, _values(rows, "layer distance"), _values(rows, "autograd distance"))
    marks: list = [Rule(float(np.log10(ROUNDING)), label="rounding of float32")]
    for (way, shade), values, control in ((*pair, c) for pair in zip(WAYS.items(), found, strict=True) for c in UNTRAINED):
        known = values.dropna().rename("value").reset_index()
        known = known[known["control"] == control].groupby("layer", as_index=False).agg(value=("value", "max"))
        known = known.sort_values("layer")
        if len(known):
            data = known.assign(who=known["layer"].astype(int).astype(str), value=_log(known["value"]))
            label = "" if control else way
            marks.append(Line(data, "who", "value", label=label, color=shade, dash=control != ""))
    return tuple(marks)


_PLACE = ["model", "control", "layer", "head", "role"]


def _values(rows: pd.DataFrame, metric: str) -> pd.Series:
    return rows[rows["metric"] == metric].set_index(_PLACE)["value"]


def _log(values: pd.Series) -> pd.Series:
    """log₁₀; what is exactly 0 is drawn where float64 ends."""
    return np.log10(values.clip(lower=2.0**-52))


def _shares(rows: pd.DataFrame, color: str) -> tuple:
    """Share of the step at answers by layer: means over heads, and of the model every head."""
    rows = rows[(rows["metric"] == "share of the step") & (rows["role"] == "readout")].sort_values("layer", kind="stable")
    mean = rows.groupby(["control", "who"], as_index=False, sort=False)["value"].mean()
    own = rows[rows["control"] == ""]
    hover = own.assign(named=[f"{model}, head {head}" for model, head in zip(own["model"], own["head"], strict=True)])
    marks: list = [Points(hover, "who", "value", color=color, hover="named")]
    for control in UNTRAINED:
        part = mean[mean["control"] == control]
        if len(part):
            marks.append(Line(part, "who", "value", color=color, dash=control != ""))
    return tuple(marks)
