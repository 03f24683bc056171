"""Which part of HYLA the gain on held-out compositions comes from, beside what the paper reports."""

from pathlib import Path

import numpy as np
import pandas as pd

from compolens import tables
from compolens.diagnosis import reported as quoted
from compolens.diagnosis.groups import SEEDS, Group, group
from compolens.figures import Band, Drawing, Panel, Points, Rule, color_of
from compolens.foundation.configs import require
from compolens.measures.intervals import mean_interval

needs = ("generalization",)

NAMES = {
    "SoftmaxTransformer": "softmax",
    "LinearAttention": "linear",
    "HYLA": "HYLA",
    "LinearRMSHead": "linear + RMSHead",
    "HYLAWithoutRMSHead": "HYLA - RMSHead",
    "HYLAWithoutNonlinearity": "HYLA - nonlin.",
    "HYLAWithoutBoth": "HYLA - both",
    "HYLAWithSoftmax": "HYLA + softmax",
    "DeepHYLA": "HYLA + deep value",
}
"""The architectures of Table A1 in its order, as they stand under the axis."""


def analyze(models: list[Path], *, paper: bool = True) -> Drawing:
    """Draw the held-out score of HYLA and its ablations beside the values of Table A1 of 2406.05816.

    A panel per setting that has HYLA or an ablation of it. The paper's values are drawn only where the setting is the paper's,
    and then under its metric (fuzzy logic: the mean of per-sequence R² ratios).

    Args:
        models: folders of the models to draw, in this order.
        paper: draw the paper's values; on, since the claim is about them.

    Returns:
        The drawing. Points are seeds, boxes 95 % intervals of their mean (from 5 seeds on); open marks are the
        paper's values, with their standard errors in the data. Lines are the ceiling, and learners that recombine
        nothing, means over models.

    Raises:
        ConfigError: none of the models is HYLA or one of its ablations.
    """
    groups, panels = group(models), []
    compared = [g.setting for g in groups if "HYLA" in g.architecture]
    require(bool(compared), "none of these models is HYLA or one of its ablations; try: compolens analyze who_generalizes")
    for setting in dict.fromkeys(compared):
        here = [g for g in groups if g.setting == setting]
        here.sort(key=lambda g: (_place(g), -len(g.folders)))
        marks: list = []
        metric = metric_of(here)
        for g in here:
            name, values = _name(g, here), [_own(folder, metric) for folder in g.folders]
            data = pd.DataFrame({"who": name, "score": values, "model": [f.name for f in g.folders]})
            marks.append(Points(data, "who", "score", color=color_of(g.architecture), hover="model"))
            if len(values) >= SEEDS:
                ends = dict(zip(("lo", "hi"), mean_interval(np.array(values)), strict=True))
                box = pd.DataFrame([{"who": name, **ends}])
                marks.append(Band(box, "who", "lo", "hi", color=color_of(g.architecture)))
            reported = quoted.held_out_score(tables.settings(g.folders[0])) if paper else None
            if reported is not None:
                data = pd.DataFrame({"who": [name], "score": [reported.value], "s.e.": [f"± {reported.se} (s.e.)"]})
                marks.append(Points(data, "who", "score", color="#444444", open=True, label="the paper", hover="s.e."))
        marks += [Rule(value, label=name) for name, value in _references(here, metric).items()]
        score_name = tables.settings(here[0].folders[0])["score_name"] if metric == "score" else metric
        panels.append(Panel(setting, "", score_name, tuple(marks)))
    caption = (
        "Score on held-out compositions at the end of training. Points are seeds, boxes 95 % intervals of their mean "
        f"(from {SEEDS} "
        "seeds on); open marks Table A1 of 2406.05816 (three seeds). Lines: the ceiling, and the scores of "
        "learners that recombine nothing. With three seeds no difference is claimed."
    )
    return Drawing("Where does HYLA's gain come from?", tuple(panels), caption, columns=1)


def _place(g: Group) -> int:
    return list(NAMES).index(g.architecture) if g.architecture in NAMES else len(NAMES)


def _name(g: Group, here: list[Group]) -> str:
    """The short name; and, for others than the group of an architecture that has most seeds, what tells it from that one."""
    name = NAMES.get(g.architecture, g.architecture)
    first = next(other for other in here if other.architecture == g.architecture)
    own, usual = (one.label.partition(" (")[2].rstrip(")").split(", ") for one in (g, first))
    told = ", ".join(setting for setting in own if setting not in usual)
    return name if not told else f"{name}, {told.replace('attention_', '').replace('_', ' ')}"


def metric_of(groups: list[Group]) -> str:
    """The metric of the paper where a group's setting is the paper's, else the score.

    Args:
        groups: groups of one setting.

    Returns:
        The name of a metric of the table generalization.
    """
    reported = [quoted.held_out_score(tables.settings(g.folders[0])) for g in groups]
    return next((r.metric for r in reported if r is not None), "score")


def _pooled(folder: Path, metric: str) -> pd.DataFrame:
    frame = tables.pooled(folder, metric)
    return frame[frame["split"] == "ood"]


def _own(folder: Path, metric: str) -> float:
    frame = _pooled(folder, metric)
    return float(frame[frame["control"] == ""]["value"].iloc[0])


def _references(groups: list[Group], metric: str) -> dict[str, float]:
    """The ceiling, which is marked at the score, and the learners that recombine nothing (`tables.worth_drawing`)."""
    folders = [folder for g in groups for folder in g.folders]
    score = pd.concat([_pooled(folder, "score") for folder in folders])
    names = {*score[score["note"] == "ceiling"]["reference"], *tables.WEAK} if "note" in score else set(tables.WEAK)
    frame = pd.concat([_pooled(folder, metric) for folder in folders])
    frame = frame[(frame["control"] == "reference") & frame["reference"].isin(names) & frame["value"].notna()]
    return tables.worth_drawing(dict(frame.groupby("reference", sort=False)["value"].mean()))
