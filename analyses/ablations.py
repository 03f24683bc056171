"""Which part of HYLA the gain on held-out compositions comes from, beside what the paper reports."""

from pathlib import Path

import numpy as np
import pandas as pd

from compolens import tables
from compolens.figures import Band, Drawing, Panel, Points, Rule, color_of
from compolens.verdict import Group, group

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

PAPER = {
    "fuzzy": (
        (63.28, 2.31), (59.89, 5.22), (81.13, 7.77), (68.93, 5.10), (81.27, 7.88), (84.54, 5.32), (79.42, 7.43),
        (70.98, 7.08), (87.65, 4.54),
    ),
    "sraven": (
        (56.56, 1.05), (56.30, 1.11), (69.13, 1.90), (59.01, 2.50), (62.53, 5.73), (56.54, 0.21), (56.33, 1.41),
        (38.21, 2.98), (66.59, 0.08),
    ),
}  # fmt: skip
"""Table A1 of 2406.05816 (v4): mean and standard error over three seeds, in percent, in the order of NAMES."""


def analyze(models: list[Path], *, paper: bool = True) -> Drawing:
    """Held-out score by architecture, a panel per setting: seeds as points, boxes mean ± s.e. over seeds; open marks and grey
    boxes are the paper's values, drawn only where the setting is the paper's (fuzzy logic: 32 tokens, 70 % held out, mean of
    per-sequence R² ratios; S-RAVEN: 4 features, 4 layers, panel accuracy). Lines: the ceiling, and learners that recombine
    nothing.

    paper: draw the paper's values.
    """
    groups, panels = group(models), []
    for setting in dict.fromkeys(g.setting for g in groups):
        here = [g for g in groups if g.setting == setting]
        here.sort(key=lambda g: list(NAMES).index(g.architecture) if g.architecture in NAMES else len(NAMES))
        known = _of_the_paper(tables.settings(here[0].folders[0])) if paper else None
        marks: list = []
        for g in here:
            name, values = _name(g, here), _ood(g)
            data = pd.DataFrame({"who": name, "score": values, "model": [f.name for f in g.folders]})
            marks.append(Points(data, "who", "score", color=color_of(g.architecture), hover="model", label="a seed"))
            if len(values) > 1:
                marks.append(_box(name, float(np.mean(values)), _se(values), color_of(g.architecture), ""))
            if known and g.architecture in NAMES and name == NAMES[g.architecture]:
                mean, se = (v / 100 for v in PAPER[known][list(NAMES).index(g.architecture)])
                marks.append(_box(name, mean, se, "#888888", "the paper, ± s.e."))
                quoted = pd.DataFrame({"who": [name], "score": [mean]})
                marks.append(Points(quoted, "who", "score", color="#444444", open=True, label="the paper"))
        marks += [Rule(value, label=name) for name, value in _references(here[0].folders[0]).items()]
        panels.append(Panel(setting, "", _metric(here[0].folders[0]), tuple(marks)))
    caption = (
        "Score on held-out compositions at the end of training. Points are seeds, coloured boxes mean ± standard error over "
        "them; open marks and grey boxes Table A1 of 2406.05816 (three seeds). Lines: what can be had at all, and what "
        "learners have that recombine nothing. With three seeds no difference is claimed."
    )
    return Drawing("Where does HYLA's gain come from?", tuple(panels), caption, columns=1)


def _of_the_paper(row: dict) -> str | None:
    """Which column of Table A1 a setting is, if any."""
    if row["task"] == "FuzzyLogic" and (row["task.length"], row["task.fraction_held_out"]) == (32, 0.7):
        return "fuzzy"
    four = row["task"] == "SRaven" and (row["task.n_features"], row.get("architecture.n_layers")) == (4, 4)
    return "sraven" if four else None


def _name(g: Group, here: list[Group]) -> str:
    """The short name, and what tells the group from another of the same architecture."""
    name = NAMES.get(g.architecture, g.architecture)
    first = next(other for other in here if other.architecture == g.architecture)
    told = g.label.partition(" (")[2].rstrip(")")
    return name if g is first or not told else f"{name}, {told.replace('attention_', '').replace('_', ' ')}"


def _metric(folder: Path) -> str:
    return "R², mean of ratios" if tables.settings(folder)["task"] == "FuzzyLogic" else tables.settings(folder)["score_name"]


def _pooled(folder: Path) -> pd.DataFrame:
    frame = tables.at_last_step(tables.read(folder, "generalization"))
    metric = _metric(folder)
    wanted = metric if metric in set(frame["metric"]) else "score"
    return frame[(frame["metric"] == wanted) & (frame["split"] == "ood") & (frame["composition"] == "all")]


def _ood(g: Group) -> list[float]:
    frames = [_pooled(folder) for folder in g.folders]
    return [float(f[f["control"] == ""]["value"].iloc[0]) for f in frames]


def _references(folder: Path) -> dict[str, float]:
    frame = _pooled(folder)
    frame = frame[(frame["control"] == "reference") & frame["value"].notna()]
    return dict(zip(frame["reference"], frame["value"], strict=True))


def _se(values: list[float]) -> float:
    return float(np.std(values, ddof=1) / np.sqrt(len(values)))


def _box(name: str, mean: float, se: float, color: str, label: str) -> Band:
    return Band(
        pd.DataFrame({"who": [name], "lo": [mean - se], "hi": [mean + se]}), "who", "lo", "hi", color=color, label=label
    )
