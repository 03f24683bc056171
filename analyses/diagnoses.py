"""Each architecture's diagnosis in a row: its label, what it has of what can be had, and the parts of what it lacks."""

import textwrap
from pathlib import Path

import numpy as np
import pandas as pd

from compolens import tables
from compolens.diagnosis import label
from compolens.diagnosis.decomposition import IN_WORDS, NOT_LOCATED, PARTS, Loss
from compolens.diagnosis.groups import SEEDS, Group, group, telling
from compolens.diagnosis.label import MARGIN, Diagnosis
from compolens.diagnosis.measured import Measured
from compolens.figures import Bars, Drawing, HeatMap, Mark, Panel, Points, Rule, color_of
from compolens.figures.words import displayed
from compolens.foundation.configs import ConfigError

needs = ("generalization", "inference_or_execution")
LOWEST = -3.0
"""Axes of shares go down to here at most."""
MISSING = Loss(np.nan, np.nan, np.nan)
"""A part that a loss was not split into."""
WIDE = 17
"""Letters on a line of a row's name."""


def analyze(models: list[Path]) -> Drawing:
    """Draw the diagnosis of each architecture: its label, and its loss on held-out compositions in parts.

    Two panels per setting. Rows of the first are architectures, columns the parts of the loss (ceiling - score). Bars of the
    second are shares of what can be had on held-out compositions (2407.12275).

    Args:
        models: folders of the models to draw, in this order.

    Returns:
        The drawing. Cells are means over seeds. A share of 0 is the best learner that recombines nothing, 1 the ceiling;
        points are seeds, intervals (from 5 seeds on) 95 % over seeds and compositions; dashed is the level that
        counts as compositional.

    Raises:
        ConfigError: a model lacks a table that the diagnosis needs.
    """
    groups, panels, told = group(models), [], []
    several = len({g.setting for g in groups}) > 1
    for setting in dict.fromkeys(g.setting for g in groups):
        here = [g for g in groups if g.setting == setting]
        found = [_diagnosis(g) for g in here]
        whole = any(NOT_LOCATED in d.parts["ood"] for d in found)
        rows = [
            {"who": _name(g, d), "part": part, "loss": d.parts["ood"].get(part, MISSING).value}
            for g, d in zip(here, found, strict=True)
            for part in (*PARTS, NOT_LOCATED)[: len(PARTS) + whole]
        ]
        heat = HeatMap(pd.DataFrame(rows), "part", "who", "loss", label="loss")
        where = f"{setting}: " if several else ""
        panels += [Panel(f"{where}loss on held-out compositions", "", "", (heat,)), _shares(where, here, found)]
        told += [f"{g.label} on {setting}: {d.label} ({'; '.join(d.reasons)})" for g, d in zip(here, found, strict=True)]
    caption = (
        f"Parts of the loss. {IN_WORDS} Shares: 0 is the best learner that "
        f"recombines nothing, 1 the ceiling; bars are means over seeds, from {SEEDS} seeds on with 95 % intervals "
        f"over seeds and compositions; axes go down to {LOWEST:g} at most, triangles mark what lies beyond. Compositional: "
        f"the whole interval above {1 - MARGIN:g}. {'. '.join(told)}. With fewer than {SEEDS} seeds no "
        "difference between models is claimed."
    )
    return Drawing("What is wrong with which model?", tuple(panels), caption, columns=2)


def _diagnosis(g: Group) -> Diagnosis:
    found = label.diagnose(g.folders)
    if found is None:
        raise ConfigError(f"{g.folders[0]} lacks a table; type: {tables.command_of(needs, g.folders[0])}")
    return found


def _name(g: Group, d: Diagnosis) -> str:
    """The row's name: who, with how many seeds; the label."""
    seeds = f"{len(g.folders)} seed{'s' * (len(g.folders) > 1)}"
    lines = textwrap.wrap(f"{_short(g)}, {seeds}:", WIDE)
    return "\n".join([*lines, *textwrap.wrap(d.label, WIDE)])


def _short(g: Group) -> str:
    return displayed(g.label, {})


def _shares(where: str, here: list[Group], found: list[Diagnosis]) -> Panel:
    """Bars of shares with their intervals; points are seeds."""
    marks: list[Mark] = []
    values = []
    for g, d in zip(here, found, strict=True):
        color, who = color_of(telling(g, here)), _short(g)
        bar = pd.DataFrame([{"who": who, **d.share._asdict()}])
        if len(g.folders) < SEEDS:  # too few to tell how far other seeds would lie
            bar = bar.assign(lo=np.nan, hi=np.nan)
        marks.append(Bars(bar, "who", "value", label=g.label, color=color, lo="lo", hi="hi"))
        values += [float(v) for v in bar[["value", "lo", "hi"]].iloc[0].dropna()]
        if len(g.folders) > 1:
            seeds = [label.share_of_what_can_be_had([Measured.read(f)], d.scores).value for f in g.folders]
            points = pd.DataFrame({"who": who, "value": seeds, "model": g.names})
            marks.append(Points(points, "who", "value", label=g.label, color=color, hover="model"))
            values += seeds
    marks += [Rule(1.0, label="ceiling"), Rule(1 - MARGIN, label="compositional, if the interval is above")]
    lo, hi = max(min(0.0, *values), LOWEST), max(1.0, *values)
    return Panel(f"{where}share of what can be had", "", "share", tuple(marks), y_range=(lo - 0.03 * (hi - lo), hi + 0.05))
