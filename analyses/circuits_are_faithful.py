"""A circuit of few edges, found on training compositions, answers held-out compositions like the whole model."""

from pathlib import Path

import pandas as pd

from compolens import tables
from compolens.diagnosis.groups import SEEDS, Group, group, title
from compolens.figures import Drawing, Line, Panel
from compolens.measures.intervals import mean_interval

needs = ("edges",)
BY = "integrated attribution"
TESTED = {"ood": "held-out compositions", "test": "training compositions"}
CURVES = (
    ("found on training compositions", "test", "", BY, "#332288"),
    ("found on held-out compositions", "ood", "", BY, "#882255"),
    ("ranked by magnitude (control)", "test", "magnitude", "magnitude", "#999933"),
    ("random edges (control)", None, "random", "random", "#888888"),
    ("untrained control", "test", "untrained", BY, "#44AA99"),
)
"""Label, what the edges were found on (None: what they are tested on), control, how they were ranked, colour."""


def analyze(models: list[Path], *, tested: str = "both") -> Drawing:
    """Draw faithfulness by share of edges (MIB, 2504.13151), tested on one kind of compositions and found on either.

    Args:
        models: folders of the models to draw, in this order.
        tested: what circuits are tested on: "ood", "test" or "both".

    Returns:
        The drawing: a panel per architecture, setting and kind of compositions. 1 is the model's own answer, 0 the
        counterfactual's. Lines are means over seeds; bands, from 5 seeds on, Student's t over seeds.
    """
    groups, panels, words = group(models), [], []
    for g in groups:
        frame = tables.at_last_step(tables.gather(g.folders, "edges"))
        for split, label in TESTED.items():
            if tested not in ("both", split):
                continue
            here = frame[frame["split"] == split]
            lines = [line for curve in CURVES if (line := _line(here, split, g, *curve)) is not None]
            panels.append(Panel(f"{title(g, groups)}: {label}", "share of edges kept", "faithfulness", tuple(lines)))
        words.append(f"{title(g, groups)}: {_areas(frame)}")
    caption = (
        "Faithfulness of circuits: the edges of a circuit work, every other edge hands on what it has under another code. 1: "
        "the model's own answer; 0: the answer under the other code. Edges are ranked by integrated attribution on half of "
        "the episodes, and circuits tested on the other. Controls: edges ranked by the length of the difference they carry; "
        "random edges; an untrained model with circuits of its own. Lines: means over seeds; bands "
        f"from {SEEDS} seeds on: 95 %, Student's t. Circuit-model distance (0 is best) on held-out compositions: "
        f"{'; '.join(words)}."
    )
    return Drawing("Do few edges make the answer, on held-out compositions too?", tuple(panels), caption, columns=2)


def _line(
    frame: pd.DataFrame, split: str, g: Group, label: str, found_on: str | None, control: str, by: str, color: str
) -> Line | None:
    rows = frame[(frame["metric"] == "faithfulness") & (frame["control"] == control) & (frame["by"] == by)]
    rows = rows[(rows["found on"] == (found_on or split)) & rows["value"].notna()]
    if rows.empty:
        return None
    points = []
    for share, part in rows.groupby("share"):
        lo, hi = mean_interval(part["value"].to_numpy()) if len(g.folders) >= SEEDS else (float("nan"), float("nan"))
        points.append({"share": share, "value": part["value"].mean(), "lo": lo, "hi": hi})
    return Line(pd.DataFrame(points), "share", "value", label=label, color=color, lo="lo", hi="hi")


def _areas(frame: pd.DataFrame) -> str:
    """CMD on held-out compositions, in words."""
    rows = frame[(frame["metric"] == "CMD") & (frame["split"] == "ood")]

    def mean(found_on: str, control: str, by: str) -> str:
        some = rows[(rows["found on"] == found_on) & (rows["control"] == control) & (rows["by"] == by)]["value"]
        return f"{some.mean():.3f}"

    own, other = mean("ood", "", BY), mean("test", "", BY)
    return f"{own} found there, {other} found on training compositions, {mean('ood', 'random', 'random')} at random"
