"""A factor of the code is carried by the same parts with any partner, also in compositions that were held out."""

from pathlib import Path

import numpy as np
import pandas as pd

from compolens import tables
from compolens.diagnosis.groups import SEEDS, Group, group, title
from compolens.figures import Band, Drawing, Line, Mark, Panel, Points, Rule
from compolens.measures.intervals import mean_interval

needs = ("factor_circuits",)
MARGIN = 0.05
"""Of the corrected correlation, the same as in `same_circuit_on_held_out`; fixed before any model was measured."""
OF, BY = ("all of the effect", "own part"), ("heads and MLPs", "edges")
SETS = (("", "held-out partner", "#882255"), ("another factor", "another factor (control)", "#999933"))
FOUND = {
    "same partners": ("found there", "#882255"),
    "other partners": ("found with other partners", "#332288"),
    "another factor": ("another factor (control)", "#999933"),
    "random": ("random edges (control)", "#888888"),
}
RELIABLE = 0.5
"""Below this reliability of either side's effects, the correction for it says nothing, and no similarity is drawn."""


def analyze(models: list[Path]) -> Drawing:
    """Draw how alike a factor's effects are with training and held-out partners, and how well its circuit serves there.

    Effects are those of heads and MLPs (activation patching, 2202.05262) and of edges (EAP-IG, 2403.17806), where the factor
    is exchanged. Similarity is as in `same_circuit_on_held_out`, over all factors and parts together. Faithfulness is that of
    circuits of edges (MIB, 2504.13151).

    Args:
        models: folders of the models to draw, in this order.

    Returns:
        The drawing. Similarity: a point per model, less the median of training compositions that were left out. Circuits:
        faithfulness by share of edges in held-out compositions, means over seeds.
    """
    groups = group(models)
    frames = [tables.at_last_step(tables.gather(g.folders, "factor_circuits")) for g in groups]
    names = [title(g, groups) for g in groups]
    similar = [_similar(of, by, names, frames) for of in OF for by in BY]
    panels, words = [panel for panel in similar if panel is not None], []
    for g, name, frame in zip(groups, names, frames, strict=True):
        panels.append(Panel(f"{name}: circuits, held-out partners", "share of edges kept", "faithfulness", _lines(frame, g)))
        words.append(f"{name}: {'; '.join(_verdict(frame, of, by) for of in OF for by in BY)}; {_share(frame)}")
    caption = (
        "A factor of the code is exchanged for another one. Similarity: correlation, over factors and parts, of the effects "
        "in training and in held-out compositions, corrected for split-half reliability, less the median of the same number "
        "for training compositions that were left out. 0: a held-out partner changes as little as any other. Own part: the "
        "effect less its mean over factors. Control: every factor compared with the others. A model whose effects do not come "
        f"out again (reliability below {RELIABLE:g}) has no point. Boxes: 95 % range of left-out sets. Within {MARGIN:g} of 0 "
        "counts as the same, a margin fixed beforehand. Circuits: that of a factor, found with some partners, serves it with "
        f"others; 1: the model's own answer. Means over seeds. {'. '.join(words)}."
    )
    return Drawing("Is a factor carried by the same circuit with another partner?", tuple(panels), caption, columns=3)


def _similar(of: str, by: str, names: list[str], frames: list[pd.DataFrame]) -> Panel | None:
    """None where no model has effects to compare."""
    points: dict[str, list] = {label: [] for _, label, _ in SETS}
    boxes = []
    for name, frame in zip(names, frames, strict=True):
        for untrained in (False, True):
            x = f"{name}, untrained" if untrained else name
            found = _compared(frame, of, by, "untrained" if untrained else "")
            if not len(found) or found["lo"].isna().all():
                continue
            boxes.append({"x": x, "lo": found["lo"].mean(), "hi": found["hi"].mean()})
            for control, label, _ in SETS:
                kept = found[control].dropna() if control in found else pd.Series(dtype=float)
                points[label] += [{"x": x, "y": y, "model": model} for model, y in kept.items()]
    if not boxes:
        return None
    ranges = pd.DataFrame(boxes, columns=["x", "lo", "hi"])
    marks: list[Mark] = [Band(ranges, "x", "lo", "hi", label="left-out training compositions")]
    for _, label, color in SETS:
        rows = pd.DataFrame(points[label], columns=["x", "y", "model"])
        marks.append(Points(rows, "x", "y", hover="model", label=label, color=color))
    return Panel(f"{by}: {of}", "", "similarity, less that of left-out sets", (*marks, Rule(-MARGIN, label="margin")))


def _compared(frame: pd.DataFrame, of: str, by: str, control: str) -> pd.DataFrame:
    """A row per model: the similarity beyond left-out sets, that of other factors, and the range of left-out sets about 0."""
    rows = frame[(frame["of"] == of) & (frame["by"] == by) & frame["value"].notna()]
    noise = rows[(rows["metric"] == "reliability") & (rows["control"] == control)].groupby("model")["value"].min()
    rows = rows[(rows["metric"] == "similarity") & rows["model"].isin(noise.index[noise >= RELIABLE])]
    null = rows[(rows["split"] == "test") & (rows["control"] == control)].set_index("model")
    found = pd.DataFrame({"lo": null["lo"] - null["value"], "hi": null["hi"] - null["value"]})
    held_out = rows[rows["split"] == "ood"]
    for shown in [control] if control else ["", "another factor"]:
        values = held_out[held_out["control"] == shown].set_index("model")["value"]
        found["" if shown == control else shown] = values - null["value"]
    return found


def _lines(frame: pd.DataFrame, g: Group) -> tuple[Line, ...]:
    rows = frame[(frame["metric"] == "faithfulness") & (frame["split"] == "ood") & frame["value"].notna()]
    lines = []
    for found_on, (label, color) in FOUND.items():
        for control, more in (("", ""), ("untrained", ", untrained")):
            some = rows[(rows["found on"] == found_on) & ((rows["control"] == "untrained") == bool(control))]
            if some.empty:
                continue
            points = []
            for share, part in some.groupby("share"):
                lo, hi = mean_interval(part["value"].to_numpy()) if len(g.folders) >= SEEDS else (np.nan, np.nan)
                points.append({"share": share, "value": part["value"].mean(), "lo": lo, "hi": hi})
            shade = "#44AA99" if control else color
            drawn = pd.DataFrame(points)
            lines.append(Line(drawn, "share", "value", lo="lo", hi="hi", label=f"{label}{more}", color=shade))
    return tuple(lines)


def _verdict(frame: pd.DataFrame, of: str, by: str) -> str:
    """In words, with the numbers."""
    found = _compared(frame, of, by, "")
    beyond = found[""].dropna().to_numpy() if "" in found else np.array([])
    told = f"{by}, {of}"
    if not len(beyond):
        return f"{told}: effects do not come out again"
    told = f"{told}: {beyond.mean():+.3f} (another factor {found['another factor'].mean():+.3f})"
    if len(beyond) < SEEDS:
        return f"{told}; with fewer than {SEEDS} seeds nothing is claimed"
    lo, hi = mean_interval(beyond)
    verdict = "the same within the margin" if lo > -MARGIN else "another circuit" if hi < -MARGIN else "cannot be told"
    return f"{told} [{lo:+.3f}, {hi:+.3f}] over {len(beyond)} seeds, {verdict}"


def _share(frame: pd.DataFrame) -> str:
    rows = frame[(frame["metric"] == "share own") & (frame["control"] == "")]
    means = rows.groupby("by", sort=False)["value"].mean()
    return "share of the variance that is a factor's own: " + ", ".join(f"{by} {value:.2f}" for by, value in means.items())
