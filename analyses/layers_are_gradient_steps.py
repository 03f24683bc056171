"""Whether each layer is a step of gradient descent, and whether the loss away from training is that of as many steps."""

from pathlib import Path

import numpy as np
import pandas as pd

from compolens import tables
from compolens.diagnosis.groups import Group, group, name_among, over_seeds, telling
from compolens.figures import Drawing, HeatMap, Line, Panel, Points, color_of
from compolens.foundation.configs import require

needs = ("algorithm_steps", "gd_equivalence")
ALGORITHMS = ("GD, tuned rate", "GD++", "Newton")
FEW = ("GD, tuned rate", "Newton")
CURVES = {
    "input scale": "inputs × this",
    "teacher scale": "weights of the task × this",
    "unseen inputs": "inputs of another law × this",
}
UNTRAINED = "untrained control"


def analyze(models: list[Path], *, every: bool = False) -> Drawing:
    """Draw how alike layers and steps of gradient descent are, and the loss away from training (2212.07677).

    A column per architecture. Above: similarity of every layer's errors with those after k steps of gradient descent and, as a
    contrast, of Newton's iteration. Below: the loss where inputs are scaled, beside gradient descent and GD++ with as many
    steps as the model has layers, tuned where the model was trained.

    Args:
        models: folders of the models to draw, in this order.
        every: draw GD++ as well, and the loss where tasks are scaled and where inputs are of another law.

    Returns:
        The drawing. Similarities are means over seeds, from -1 to 1; the best step stands beside its layer. Losses are lines
        of means, points seeds, on a logarithmic axis; grey is the untrained control.

    Raises:
        ConfigError: a table has no rows of gradient descent with the tuned rate.
    """
    groups, maps, curves = group(models), [], []
    algorithms, scaled = (ALGORITHMS, CURVES) if every else (FEW, {"input scale": CURVES["input scale"]})
    for g in groups:
        alike = pd.concat([_read(folder, "algorithm_steps") for folder in g.folders], ignore_index=True)
        losses = pd.concat([_read(folder, "gd_equivalence") for folder in g.folders], ignore_index=True)
        name = name_among(g, groups)
        again = f"{tables.command_of('algorithm_steps', g.folders[0])} --again"
        require(ALGORITHMS[0] in set(alike["algorithm"]), f"{g.label} has no rows of {ALGORITHMS[0]!r}; type: {again}")
        for algorithm in algorithms:
            cells = _heat(alike[alike["algorithm"] == algorithm])
            steps = f"steps of {algorithm}"
            maps.append(Panel(name, steps, "", (HeatMap(cells, "step", "who", "value", label="similarity"),)))
        for curve, words in scaled.items():
            marks = _curve(losses[(losses["metric"] == "loss") & (losses["curve"] == curve)], g, groups)
            curves.append((name, words, marks))
    spans = {words: _span([marks for _, other, marks in curves if other == words]) for words in scaled.values()}
    shown = [Panel(name, words, "loss, log₁₀", marks, y_range=spans[words]) for name, words, marks in curves]
    panels = [one for drawn, kinds in ((maps, algorithms), (shown, scaled)) for one in _by_kind(drawn, len(kinds))]
    caption = (
        "Similarity: mean cosine between the errors of a layer and of an algorithm over many questions about the same "
        "demonstrations; GD and GD++ have the rates that are best for as many steps as layers. Beside each layer stands "
        'its best step: "layer 3: 6 to 15+" is one that is best at step 6 in one seed and at 15 in another (+: the last step '
        "looked at, or the first that cannot be told from least squares). Columns end one beyond the largest best step; past "
        "8, only powers of two and best steps are shown. "
        "Losses: on a logarithmic axis that ends one above model and untrained control, so a learner that diverges leaves "
        "it; lines may "
        "lie on top of each other. Grey, and the row below: the untrained control (constructed models have none), at its last "
        "layer. High similarity to all algorithms says only that they have converged alike, and similarity no higher "
        "than the untrained control's says nothing. With fewer than 5 seeds no difference is claimed."
    )
    return Drawing("Is each layer a gradient step?", tuple(panels), caption, columns=min(len(groups), 4))


def _by_kind(panels: list[Panel], kinds: int) -> list[Panel]:
    """Panels that come architecture by architecture, a row for each kind instead."""
    return [panel for kind in range(kinds) for panel in panels[kind::kinds]]


def _read(folder: Path, name: str) -> pd.DataFrame:
    rows = tables.with_untrained_control(folder, name)
    return rows[rows["split"] == "test"]


def _heat(rows: pd.DataFrame) -> pd.DataFrame:
    """who (a layer with its best step), step and value, first layers on top, the untrained control's last layer below."""
    last = rows["layer"].max()
    rows = rows[(rows["layer"] > 0) & ((rows["control"] == "") | (rows["layer"] == last))]
    best = rows[rows["metric"] == "best step"]
    furthest = best[best["control"] == ""]["value"].max()
    similar = rows[rows["metric"] == "similarity"]
    similar = similar.groupby(["control", "layer", "algorithm_step"], as_index=False).agg(value=("value", "mean"))
    steps = sorted(similar["algorithm_step"].unique())
    kept = {s for s in steps if s <= 8 or np.log2(s).is_integer()} | set(best["value"])
    later = [s for s in kept if s > furthest] or [s for s in steps if s > furthest]
    beyond = min(later, default=furthest)
    kept.add(beyond)
    similar = similar[(similar["algorithm_step"] <= beyond) & similar["algorithm_step"].isin(kept)]
    names = {key: _who(key, one) for key, one in best.groupby(["control", "layer"])}
    who = [names[key] for key in zip(similar["control"], similar["layer"], strict=True)]
    return similar.assign(who=who, step=[f"{s:.0f}" for s in similar["algorithm_step"]])


def _who(key: tuple, best: pd.DataFrame) -> str:
    """Layer and best step: "layer 2: 4", or "layer 2: 3 to 5" over seeds; + at the edge of what was looked at."""
    steps = best["value"].astype(int)
    text = f"{steps.min()}" if steps.min() == steps.max() else f"{steps.min()} to {steps.max()}"
    edge = "+" if best[best["value"] == steps.max()]["note"].str.contains("edge").any() else ""
    return f"{'untrained' if key[0] else f'layer {int(key[1])}'}: {text}{edge}"


def _curve(rows: pd.DataFrame, g: Group, groups: list[Group]) -> tuple:
    """Lines of the model, its untrained control, and of gradient descent and GD++ with as many steps as there are layers."""
    rows = rows.assign(value=np.log10(rows["value"])).sort_values("scale", kind="stable")
    own, color = rows[rows["control"] == ""], color_of(telling(g, groups))
    marks: list = [Line(_mean(own), "scale", "value", label=g.label, color=color, lo="lo", hi="hi")]
    if len(g.folders) > 1:
        marks.append(Points(own, "scale", "value", color=color, hover="model"))
    layers = int(tables.settings(g.folders[0])["architecture.n_layers"])
    for kind, shade in (("GD", "#000000"), ("GD++", "#882255")):
        named = rows[rows["learner"] == f"{kind}, {layers} step{'s' * (layers > 1)}"]
        if len(named):
            marks.append(Line(_mean(named), "scale", "value", label=f"{kind}, a step per layer", color=shade, dash=True))
    untrained = rows[rows["control"] == "untrained"]
    return (
        (*marks, Line(_mean(untrained), "scale", "value", label=UNTRAINED, color="#888888"))
        if len(untrained)
        else tuple(marks)
    )


def _span(panels: list[tuple]) -> tuple[float, float]:
    """One y range for the marks of all panels, but for what exceeds those that are no reference (solid) by more than one."""
    marks = [mark for panel in panels for mark in panel]
    solid = pd.concat([mark.rows()["y"] for mark in marks if not getattr(mark, "dash", False)])
    low = min(float(mark.rows()["y"].min()) for mark in marks)
    return low - 0.1, float(solid.max()) + 1


def _mean(rows: pd.DataFrame) -> pd.DataFrame:
    return over_seeds(rows, "scale")
