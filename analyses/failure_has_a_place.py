"""What is lost on held-out compositions: in parts, and by the layer and tokens where the true code is written."""

from pathlib import Path

import numpy as np
import pandas as pd

from compolens import tables
from compolens.diagnosis import decomposition, label
from compolens.diagnosis.groups import SEEDS, SPLITS, Group, group, over_seeds, title
from compolens.diagnosis.measured import Measured
from compolens.figures import Bars, Drawing, Line, Mark, Panel, Points, Rule

needs = ("generalization", "inference_or_execution")
COLORS = {"ood": "#882255", "test": "#BBBBBB"}
ROLES = {"context": "#44AA99", "readout": "#332288", "context+readout": "#999933"}
CODE = "explicit code"
"""What a site is called that is no layer: the explicit code."""
LOWEST = -1.0
"""Axes of scores end here, or below the model's own answer if that is worse."""


def analyze(models: list[Path]) -> Drawing:
    """Draw the loss on held-out compositions in parts, and by the layer and tokens where the true code is written.

    Two panels per architecture and setting. The parts of the loss (ceiling - score) are use, inference, form, execution and
    unexplained, on held-out compositions beside training ones. Whether the right latent code helps is asked as in 2405.19162;
    the task is that of 2407.12275.

    Args:
        models: folders of the models to draw, in this order.

    Returns:
        The drawing. Bars are means over seeds with 95 % intervals over seeds and compositions, points seeds. Lines of the
        second panel: the ceiling, the model's own answer, and the best code that was found.
    """
    groups, panels = group(models), []
    measured = [[Measured.read(folder) for folder in g.folders] for g in groups]
    tops = [label.mean_scores(m)["ceiling"] for m in measured]
    parts = [_parts(g, m, top) for g, m, top in zip(groups, measured, tops, strict=True)]
    largest = {
        s: max(float(np.nanmax(p[["value", "hi"]])) for g, p in zip(groups, parts, strict=True) if g.setting == s)
        for s in {g.setting for g in groups}
    }
    for g, top, part in zip(groups, tops, parts, strict=True):
        name, height = title(g, groups), 1.08 * max(largest[g.setting], 0.01)
        panels.append(Panel(f"{name}: the loss in parts", "", "loss", _bars(part), (0.0, height)))
        panels.append(_by_place(g, name, top))
    caption = (
        f"Left: what is missing to the ceiling. {decomposition.IN_WORDS} "
        f"Bars are means over seeds, from {SEEDS} seeds on with 95 % intervals over seeds and compositions (bands: over "
        "seeds); points are seeds. Right: the score on "
        "held-out compositions with the true code written at a layer (0: embedding) or as the explicit code (pink), means "
        "over seeds. Dashed lines: means at the site where writing moves the answers most; the best code is searched for on "
        f"fewer episodes. Open marks: another episode's code, at that site. Axes end at {LOWEST:g} (or below own answers). "
        f"With fewer than {SEEDS} seeds nothing is claimed."
    )
    return Drawing("Where is the loss on held-out compositions?", tuple(panels), caption, columns=2)


def _parts(g: Group, measured: list[Measured], top: float) -> pd.DataFrame:
    """part, split, value, lo, hi and model: rows of the group (model "") and of each of its seeds."""
    rows = []
    for name, models in [("", measured), *((name, [one]) for name, one in zip(g.names, measured, strict=True))]:
        found = decomposition.in_parts(models, top)
        for split in COLORS:
            rows += [{"part": p, "split": split, "model": name, **loss._asdict()} for p, loss in found[split].items()]
    return pd.DataFrame(rows)


def _bars(parts: pd.DataFrame) -> tuple[Mark, ...]:
    marks: list[Mark] = []
    for split, color in COLORS.items():
        rows = parts[parts["split"] == split]
        mean, seeds = rows[rows["model"] == ""], rows[rows["model"] != ""]
        if seeds["model"].nunique() < SEEDS:
            mean = mean.assign(lo=np.nan, hi=np.nan)
        marks.append(Bars(mean, "part", "value", label=SPLITS[split], color=color, lo="lo", hi="hi"))
        if len(seeds) > len(mean):
            marks.append(Points(seeds, "part", "value", label=SPLITS[split], color=color, hover="model"))
    return tuple(marks)


def _scores(g: Group) -> pd.DataFrame:
    """Pooled scores on held-out compositions, rung by rung and site by site; `x`: the site's layer, in words."""
    frames = [tables.with_untrained_control(folder, "inference_or_execution") for folder in g.folders]
    rows = pd.concat(frames, ignore_index=True)
    wanted = (rows["metric"] == "score") & (rows["split"] == "ood") & (rows["composition"] == "all") & rows["value"].notna()
    rows = rows[wanted].sort_values("layer", kind="stable")
    return rows.assign(x=np.where(rows["site"] == "hook_code", CODE, rows["layer"].astype(int).astype(str)))


def _by_place(g: Group, name: str, top: float) -> Panel:
    rows = _scores(g)
    own = rows[rows["control"] == ""]
    written = own[own["rung"] == "true code written"]
    end = min(LOWEST, float(own[own["rung"] == "own answer"]["value"].mean()) - 0.1)
    lowest = max(end, min(0.0, float(written["value"].min()), float(own[own["chosen"] == 1]["value"].min())))
    marks: list[Mark] = []
    for role in [r for r in dict.fromkeys(written["role"]) if (written[written["role"] == r]["x"] != CODE).any()]:
        here, color = written[(written["role"] == role) & (written["x"] != CODE)], ROLES.get(role)
        mean = over_seeds(here, "x")
        marks.append(Line(mean, "x", "value", label=f"true code, {role} tokens", color=color, lo="lo", hi="hi"))
        if len(g.folders) > 1:
            marks.append(Points(here, "x", "value", color=color, hover="model"))
    explicit = written[written["x"] == CODE]
    if len(explicit):
        marks.append(
            Points(explicit, "x", "value", label="true code, explicit code", color="#CC6677", hover="model", keyed=False)
        )
    other = rows[(rows["chosen"] == 1) & (rows["rung"] == "true code written") & (rows["control"] == "another code")]
    other = other[other["value"] >= end]
    if len(other):
        lowest = min(lowest, float(other["value"].min()))
        marks.append(Points(other, "x", "value", label="another code", color="#888888", hover="model", open=True))
    marks.append(Rule(top, label="ceiling"))
    for rung in ("own answer", "best code"):
        value = own[(own["chosen"] == 1) & (own["rung"] == rung)]["value"]
        if len(value):
            marks.append(Rule(float(value.mean()), label=rung))
    air = 0.04 * (top - lowest)
    return Panel(f"{name}: the loss by layer", "layer", "score with a code written", tuple(marks), (lowest - air, top + air))
