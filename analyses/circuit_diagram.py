"""The edges that carry the code, drawn: the same ones on training and on held-out compositions, or others."""

import re
from pathlib import Path

import pandas as pd

from compolens import tables
from compolens.diagnosis.groups import group, title
from compolens.figures import Drawing, Edges, Nodes, Panel
from compolens.foundation.configs import ConfigError

needs = ("edges",)
ESTIMATE, EXACT = "integrated attribution", "effect"
AGREES = 0.8
"""Rank correlation with the exact exchange below which an estimate is not drawn."""
SPLITS = {"test": "training compositions", "ood": "held-out compositions"}
READ = {
    "q": ("queries", "#4477AA"),
    "k": ("keys", "#EE7733"),
    "v": ("values", "#228833"),
    "": ("MLPs and the answer", "#555555"),
}
"""What a reader makes of what it reads -> its label and colour."""
LINES = {"wider: larger score": False, "dashed: for one kind of compositions alone": True}
"""What the legend says of lines of any colour, and whether it shows them dashed."""
ASIDE, HALF = {"q": -0.1, "k": 0.0, "v": 0.1, "": 0.0}, 0.2
"""Where an edge arrives at a box, and half of the box's height."""


def analyze(models: list[Path], *, edges: int = 20, seed: int = 0) -> Drawing:
    """Draw the edges of largest score of one model per architecture and setting.

    The score is the integrated attribution (EAP-IG, 2403.17806). Where its rank correlation with the exact exchange is below
    .8 on either kind of compositions, it is the exact effect, known of the edges of highest attribution that the probe
    exchanged. Two panels per model: ranked on training and on held-out compositions. Heads of different seeds have no common
    order, so one model is drawn and no mean.

    Args:
        models: folders of models; of each architecture and setting one is drawn.
        edges: how many edges are drawn, from 3 to 60; of exact effects, no more than were measured.
        seed: which of them is drawn, counted from 0 in the order given.

    Returns:
        The drawing. The width of an edge is the size of its score, against the largest of the model.

    Raises:
        ConfigError: edges or seed is out of range.
    """
    if not 3 <= edges <= 60:
        raise ConfigError(f"edges must be from 3 to 60, got {edges}")
    groups, panels, words = group(models), [], []
    for g in groups:
        if not 0 <= seed < len(g.folders):
            raise ConfigError(f"seed must be from 0 to {len(g.folders) - 1} for {title(g, groups)}, got {seed}")
        frame = tables.at_last_step(tables.gather([g.folders[seed]], "edges"))
        frame = frame[frame["control"] == ""]
        agreement = _agreement(frame)
        metric = ESTIMATE if agreement >= AGREES else EXACT
        whole, frame = frame[frame["metric"] == ESTIMATE], frame[frame["metric"] == metric]
        kept = {}
        for split in SPLITS:
            ranked = frame[frame["split"] == split]
            kept[split] = ranked.loc[ranked["value"].abs().sort_values(ascending=False, kind="stable").index[:edges]]
        shared = set(kept["test"]["edge"]) & set(kept["ood"]["edge"])
        drawn = min(len(one) for one in kept.values())
        how = "" if metric == ESTIMATE else "exact effects, since "
        words.append(
            f"{title(g, groups)}: {how}the attribution's rank correlation with exact exchange is {agreement:.2f}; "
            f"{len(shared)} of {drawn} edges are in both"
        )
        places, widest = _places(whole["edge"]), float(frame["value"].abs().max())
        for split, told in SPLITS.items():
            panels.append(Panel(f"{title(g, groups)}: {told}", "", "", _marks(kept[split], shared, places, widest)))
    caption = (
        f"The {edges} edges of largest integrated attribution, or of largest exact effect among those exchanged where the two "
        f"do not rank alike (below {AGREES:.1f}), from what a part writes (below) to what a later one reads (above). Width: "
        "size of the score. Dashed: not among the edges drawn for the other kind of compositions. Grey boxes "
        f"have none of these edges. One model each. {'. '.join(words)}."
    )
    return Drawing("Which edges carry the code?", tuple(panels), caption)


def _agreement(frame: pd.DataFrame) -> float:
    """The lower of the estimate's rank correlations with the exact exchange; 0 where one was not to be had."""
    rows = frame[(frame["metric"] == "rank agreement") & (frame["by"] == ESTIMATE)].set_index("split")["value"]
    return float(min(rows.get(split, 0.0) for split in SPLITS))


def _places(edges: pd.Series) -> dict[str, tuple[float, float]]:
    """Node -> (x, y): layers upwards, heads side by side, an MLP above the heads of its layer."""
    ends = edges.str.split(" → ").explode().str.replace(r"\.[qkv]$", "", regex=True)
    nodes = list(dict.fromkeys(ends))
    inner = [match for node in nodes if (match := re.fullmatch(r"L(\d+)(H(\d+)|A|MLP)", node))]
    heads = max((int(m[3]) + 1 for m in inner if m[3]), default=1)
    layers = max((int(m[1]) + 1 for m in inner), default=0)
    middle = (heads - 1) / 2
    places = {"embed": (middle, 0.0), "answer": (middle, 2.0 * layers + 1)}
    for m in inner:
        layer, mlp = int(m[1]), m[2] == "MLP"
        aside = 0.25 * (-1) ** layer if m[3] else (0.35 if mlp else -0.35)  # or long edges would run behind every box
        places[m[0]] = (float(m[3]) + aside if m[3] else middle + aside, 2.0 * layer + 1 + mlp)
    return places


def _marks(
    kept: pd.DataFrame, shared: set[str], places: dict[str, tuple[float, float]], widest: float
) -> tuple[Edges | Nodes, ...]:
    drawn, used = [], set()
    for edge, value in zip(kept["edge"], kept["value"], strict=True):
        source, target = edge.split(" → ")
        node, _, kind = target.partition(".")
        (x0, y0), (x, y) = places[source], places[node]
        row = {"x0": x0, "y0": y0 + HALF, "x": x + ASIDE[kind], "y": y - HALF, "score": value, "edge": edge, "kind": kind}
        drawn.append({**row, "shared": edge in shared})
        used |= {source, node}
    rows, marks = pd.DataFrame(drawn), []
    for kind, (label, color) in READ.items():
        of_kind = rows[rows["kind"] == kind]
        for both in (True, False):
            some = of_kind[of_kind["shared"] == both]
            if len(some):
                where, keyed = ("x0", "y0", "x", "y", "score", widest), both or not of_kind["shared"].any()
                marks.append(Edges(some, *where, label=label, color=color, dash=not both, hover="edge", keyed=keyed))
    for label, dash in LINES.items():
        marks.append(Edges(rows.iloc[:0], "x0", "y0", "x", "y", "score", widest, label=label, color="#888888", dash=dash))
    boxes = [{"x": x, "y": y, "node": node, "unused": node not in used} for node, (x, y) in places.items()]
    return (*marks, Nodes(pd.DataFrame(boxes), "x", "y", "node", "unused", label="parts"))
