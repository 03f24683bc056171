"""What share of attention's weights lies below a threshold, by architecture, as trained and untrained."""

from pathlib import Path

import pandas as pd

from compolens import tables
from compolens.diagnosis import reported
from compolens.diagnosis.groups import SEEDS, SPLITS, Group, attention_among, group, over_seeds, telling
from compolens.figures import Drawing, Line, Panel, Points, color_of
from compolens.foundation.configs import require_choice

needs = ("activation_sparsity",)
SCALES = {
    "absolute": "threshold",
    "row maximum": "threshold / the row's largest weight",
    "site std": "threshold / standard deviation of the layer's weights",
}


def analyze(models: list[Path], *, scale: str = "absolute", split: str = "ood", paper: bool = True) -> Drawing:
    """Draw the share of attention's weights at or below a threshold, pooled over layers and heads.

    A panel per setting. Beside S-RAVEN stand the five points that 2511.20194 reports.

    Args:
        models: folders of the models to draw, in this order.
        scale: the unit of thresholds: "absolute" (as the paper has it), "row maximum" or "site std".
        split: "ood" (held-out compositions, where the claim is decided) or "test" (training ones).
        paper: draw the five points of 2511.20194 beside S-RAVEN.

    Returns:
        The drawing. A line per architecture is the mean over seeds, points are seeds, dashed the untrained controls. Leftmost
        ("0"): exact zeros.

    Raises:
        ConfigError: there is no such scale or split.
    """
    require_choice(scale, SCALES)
    require_choice(split, SPLITS)
    groups, panels = group(models), []
    for setting in dict.fromkeys(g.setting for g in groups):
        here = [g for g in groups if g.setting == setting]
        marks = [mark for g in here for mark in _curves(g, here, scale, split)]
        quotes = paper and scale == "absolute" and tables.settings(here[0].folders[0])["task"] == "SRaven"
        if quotes:
            marks.append(_reported())
        panels.append(
            Panel(setting, SCALES[scale], "share at or below (dashed: untrained)", tuple(marks), y_range=(-0.02, 1.04))
        )
    caption = (
        f"Share of attention weights whose magnitude is at or below a threshold, on {SPLITS[split]}, over all layers, heads "
        "and pairs of tokens that may attend to each other. Threshold 0: exact zeros. Lines are means over seeds, points "
        f"seeds (where there are several), bands 95 % intervals over seeds (from {SEEDS} seeds on); dashed: the same "
        "models before training. Curves may lie on top of each other. "
        "With fewer than 5 seeds no difference is claimed."
    )
    if any(mark.label == _PAPER for panel in panels for mark in panel.marks):
        caption += (
            " Open marks: shares of zero coefficients that 2511.20194 reports for models trained with these soft thresholds. "
            "The scale of the scores that its threshold acts on is not known, nor are data and pooling, so where they lie "
            "along the axis says nothing."
        )
    return Drawing("How sparse is attention at which threshold?", tuple(panels), caption, columns=min(2, len(panels)))


_PAPER = "2511.20194 (scale of scores unknown)"


def _curves(g: Group, here: list[Group], scale: str, split: str) -> list:
    """A group's line, its seeds' points and its untrained controls' line."""
    color = color_of(telling(g, here))
    own, untrained = (_shares(g.folders, scale, split, control) for control in ("", "untrained"))
    name = attention_among(g, here)
    marks: list = [Line(_mean(own), "threshold", "value", label=name, color=color, lo="lo", hi="hi")]
    if len(g.folders) > 1:
        marks.append(Points(own, "threshold", "value", color=color, hover="model"))
    before = f"{name}, untrained"
    return [*marks, Line(_mean(untrained), "threshold", "value", label=before, color=color, dash=True, keyed=False)]


def _shares(folders: list[Path], scale: str, split: str, control: str) -> pd.DataFrame:
    """threshold (as a word, so that the axis has a place for 0 and equal steps), value and model, in ascending order."""
    parts = []
    for folder in folders:
        rows = tables.at_last_step(tables.read(folder, "activation_sparsity"))
        rows = rows[(rows["split"] == split) & (rows["control"] == control) & rows["layer"].isna()]
        zeros = rows[rows["metric"] == "exact zeros"].assign(threshold=0.0)
        below = rows[(rows["metric"] == "fraction below") & (rows["scale"] == scale)]
        parts.append(pd.concat([zeros, below])[["threshold", "value"]].assign(model=folder.name))
    frame = pd.concat(parts, ignore_index=True).sort_values("threshold", kind="stable")
    return frame.assign(threshold=frame["threshold"].map("{:g}".format))


def _mean(shares: pd.DataFrame) -> pd.DataFrame:
    return over_seeds(shares, "threshold")


def _reported() -> Points:
    known = pd.DataFrame([(f"{q.xi:g}", q.sparsity) for q in reported.SPARSITY_BY_XI], columns=["threshold", "value"])
    return Points(known, "threshold", "value", label=_PAPER, color="#444444", open=True)
