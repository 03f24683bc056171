"""How many random features attention's dual model needs before it predicts what attention writes."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd

from compolens import tables
from compolens.diagnosis.groups import Group, group, title
from compolens.figures import Drawing, Line, Panel, Points
from compolens.foundation.configs import require_choice

needs = ("dual_model",)
ERRORS = ("output", "pattern")
KINDS = {"independent": "#882255", "orthogonal": "#DDAA33", "hyperbolic": "#44AA99", "optimal": "#332288"}
"""Kinds of features, each with its colour."""
UNTRAINED = {"": "as trained", "untrained": "untrained"}


def analyze(models: list[Path], *, error: str = "output", layer: int | None = None) -> Drawing:
    """Draw the error of attention that is estimated with m random features (2009.14794, 2205.15317), for growing m.

    Two panels per architecture and setting, as trained and untrained, with both axes logarithmic. How fast errors fall is
    decided by the mean of |q + k|², which stands in the titles. Attention so estimated is a dual model with finitely many
    weights (2310.13220).

    Args:
        models: folders of the models to draw, in this order.
        error: relative error of the "output" (which later layers read) or of the "pattern".
        layer: the layer, counted from 0, or from the end if negative; by default the one where |q + k|² is largest in the
            trained models.

    Returns:
        The drawing. A line per kind of features is the mean over seeds, points are seeds where there are several; dashed is
        the slope of 1/√m.

    Raises:
        ConfigError: there is no such error or layer.
    """
    require_choice(error, ERRORS)
    groups, panels = group(models), []
    for g in groups:
        rows = pd.concat([tables.with_untrained_control(folder, "dual_model") for folder in g.folders], ignore_index=True)
        chosen = _chosen(rows, layer, g)
        here = rows[rows["layer"] == chosen]
        for control, words in UNTRAINED.items():
            part = here[here["control"] == control]
            if len(part):
                exponent = part[part["metric"] == "kernel exponent"]["value"].mean()
                text = f"{title(g, groups)}, layer {chosen}, {words}: |q + k|² = {exponent:.1f}"
                marks = _curves(part[part["metric"] == f"{error} error"])
                panels.append(Panel(text, "features", f"relative error of the {error}, log₁₀", marks))
    which = "the layer where it is largest as trained" if layer is None else "the layer asked for"
    caption = (
        f"Relative error of attention's {error} where random features estimate the kernel (the dual model then has finitely "
        f"many weights); mean over heads, episodes and draws, in {which}. Independent, orthogonal and hyperbolic features are "
        "those of 2009.14794; optimal ones, those of 2205.15317, are fitted to the exponent |q + k|² (q and k over d_head^¼; "
        "titles: its mean over pairs). With independent features the relative variance of one kernel value is "
        "(exp(|q + k|²) - 1) / m. Where that is small, errors fall like 1/√m (dashed); where it is large, few draws hit what "
        "matters, and errors fall more slowly. An error of 1 is as large as what is estimated. With fewer than 5 seeds no "
        "difference is claimed."
    )
    values = pd.concat([mark.rows()["y"] for panel in panels for mark in panel.marks])
    both = values.min() - 0.15, values.max() + 0.15
    panels = [replace(panel, y_range=both) for panel in panels]
    return Drawing("How many random features does attention need?", tuple(panels), caption, columns=2)


def _chosen(rows: pd.DataFrame, layer: int | None, g: Group) -> int:
    if layer is None:
        own = rows[(rows["metric"] == "kernel exponent") & (rows["control"] == "")]
        return int(str(own.groupby(own["layer"].astype(int))["value"].mean().idxmax()))
    return tables.nth_layer(rows, layer, g.label)


def _curves(rows: pd.DataFrame) -> tuple:
    """A line per kind, its seeds, and 1/√m from where the kinds start, on average. Not finite: a gap."""
    rows = rows.assign(value=np.log10(rows["value"]), m=rows["features"].astype(int)).sort_values("m", kind="stable")
    rows = rows.assign(features=rows["m"].astype(str))
    marks: list = []
    for kind, color in KINDS.items():
        own = rows[rows["kind"] == kind]
        if own.empty:
            continue
        mean = own.groupby("features", as_index=False, sort=False).agg(value=("value", "mean"))
        marks.append(Line(mean, "features", "value", label=kind, color=color))
        if len(set(own["model"])) > 1:
            marks.append(Points(own, "features", "value", color=color, hover="model"))
    places = rows[["features", "m"]].drop_duplicates()
    start = rows[rows["m"] == places["m"].min()]["value"].mean()
    slope = places.assign(value=start - np.log10(places["m"] / places["m"].min()) / 2)
    return (*marks, Line(slope, "features", "value", label="1/√m", color="#444444", dash=True))
