"""By layer and token role, where the task code can be read out, and whether held-out compositions share the readout."""

from pathlib import Path

import pandas as pd

from compolens import tables
from compolens.diagnosis.groups import SEEDS, Group, group, over_seeds, title
from compolens.figures import Band, Drawing, Line, Panel, Points, Rule
from compolens.foundation.configs import ConfigError, nearest

needs = ("latent_code",)
METRICS = {"r2": "R² of the code", "active set exact": "share of episodes with the active set exact"}
"""Metric -> what the axis is called."""
FITS = (
    ("fitted on train", "test", "fitted on training, scored on test"),
    ("fitted on train", "ood", "fitted on training, scored on ood"),
    ("within", "ood", "fitted within ood"),
)
COLORS = ("#0072B2", "#D55E00", "#009E73")


def analyze(models: list[Path], *, metric: str = "r2") -> Drawing:
    """Draw, by layer, how well a linear readout tells the code, as 2407.12275 decodes it.

    A panel per architecture, setting and token role.

    Args:
        models: folders of the models to draw, in this order.
        metric: "r2", or "active set exact" (share of episodes whose active modules are all recovered, from 0 to 1).

    Returns:
        The drawing. Lines are means over seeds, points seeds, open marks the explicit code. Grey bands are the untrained
        control and shuffled codes (from the lowest to the highest end of the seeds' 95 % intervals over compositions); dashed
        is a linear readout of the raw input moments, the mean over seeds.

    Raises:
        ConfigError: there is no such metric.
    """
    if metric not in METRICS:
        raise ConfigError(f"no metric {metric!r}; {nearest(metric, METRICS)}")
    groups, panels = group(models), []
    for g in groups:
        frame = load(g, metric)
        for role in [r for r in ("context", "readout") if r in set(frame[frame["layer"] >= 0]["role"])]:
            panels.append(_panel(title(g, groups), frame, role, METRICS[metric]))
    caption = (
        "Linear readout of the task code from the residual stream (layer 0: embedding): ridge regression of continuous codes, "
        "logistic regression of categorical ones. Readouts are fitted on training compositions and scored on fresh episodes "
        "of these (test) and on held-out compositions (ood), or fitted within the held-out ones. Lines are means over seeds, "
        "points seeds, bands 95 % intervals over seeds (from "
        f"{SEEDS} seeds on). Open marks right of the last layer: the explicit code."
    )
    return Drawing("Where does the task code live?", tuple(panels), caption, columns=2)


def load(g: Group, metric: str) -> pd.DataFrame:
    """The rows of the table latent_code of a group that are about the whole code, not about one of its dimensions.

    Args:
        g: the group of models.
        metric: "r2" or "active set exact".

    Returns:
        The rows of its models at their last step.
    """
    frame = tables.at_last_step(tables.gather(g.folders, "latent_code"))
    return frame[(frame["metric"] == metric) & frame["dimension"].isin(["mean", "all"])]


def _panel(name: str, frame: pd.DataFrame, role: str, axis: str) -> Panel:
    here = frame[(frame["role"] == role) & (frame["layer"] >= 0)]
    explicit = frame[(frame["role"] == "all")] if role == "readout" else frame.iloc[:0]
    marks: list = []
    for control, label in (("untrained", "untrained control"), ("shuffled", "shuffled codes")):
        rows = here[(here["control"] == control) & (here["split"] == "ood") & (here["fit"] == "fitted on train")]
        if len(rows):
            span = rows.groupby("layer", as_index=False).agg(lo=("lo", "min"), hi=("hi", "max"))
            marks.append(
                Band(
                    span, "layer", "lo", "hi", label=f"{label} (ood)", color="#999999" if control == "untrained" else "#CCCCCC"
                )
            )
    for (fit, split, label), color in zip(FITS, COLORS, strict=True):
        rows = here[(here["control"] == "") & (here["fit"] == fit) & (here["split"] == split)]
        if rows.empty:
            continue
        marks.append(
            Line(
                over_seeds(rows.sort_values("layer", kind="stable"), "layer"),
                "layer",
                "value",
                label=label,
                color=color,
                lo="lo",
                hi="hi",
            )
        )
        marks.append(Points(rows, "layer", "value", color=color, hover="model"))
        code = explicit[(explicit["control"] == "") & (explicit["fit"] == fit) & (explicit["split"] == split)]
        if len(code):
            marks.append(Points(code, "layer", "value", color=color, hover="model", open=True))
    raw = frame[(frame["control"] == "raw input") & (frame["split"] == "ood") & (frame["fit"] == "fitted on train")]
    marks.append(Rule(float(raw["value"].mean()), label="raw input moments (ood)"))
    if (explicit["control"] == "").any():  # one entry for the open marks of all colours
        own = explicit.iloc[:0]
        marks.append(Points(own, "layer", "value", label="explicit code, right of the last layer", color="#444444", open=True))
    low = min(0.0, float(here[here["control"] == ""]["value"].min()))
    return Panel(f"{name}: {role}", "layer", axis, tuple(marks), y_range=(max(low, -0.5), 1.02))
