"""Whether sparse coefficients or their transfer between blocks answer what no example shows: each without the other."""

from pathlib import Path

import numpy as np
import pandas as pd

from compolens import tables
from compolens.diagnosis.groups import SEEDS, over_seeds, setting_of
from compolens.figures import Band, Drawing, Panel, Points, Rule, color_of
from compolens.foundation.configs import ConfigError

needs = ("generalization",)
TRANSFERS = {"none": "none", "OutputTransfer": "output", "RelativeTransfer": "relative"}
SPARSE, LINEAR = "soft threshold", "no threshold (ξ = 0)"
COLORS = {
    "softmax": "SoftmaxTransformer",
    SPARSE: "SparseCoding",
    f"{SPARSE}, 90 % silenced": "SparseCoding, 90 % silenced",
    LINEAR: "LinearAttention",
}
SPLITS = ("test", "ood")
MEMORY = "best training composition"


def analyze(models: list[Path], *, metric: str = "score") -> Drawing:
    """Draw scores by what attention does with its scores, and by how its coefficients are transferred (2511.20194).

    Attention is softmax, soft threshold, or the same without threshold. Transfer is none, output (as printed in 2511.20194) or
    relative (columns move with their block). A panel per setting and number of layers.

    Args:
        models: folders of the models to draw, in this order.
        metric: a metric of the table generalization, such as "R²" where the score is a fraction of sharp images; by default
            the score.

    Returns:
        The drawing. Every seed is a point; boxes are 95 % intervals of their mean, from five seeds on. Along x:
        transfer and split
        (test: training compositions, ood: held-out ones).

    Raises:
        ConfigError: none of the models transfers coefficients, or a table has no such metric.
    """
    cells = pd.concat([_cell(folder, metric) for folder in models], ignore_index=True)
    if set(cells["transfer"]) == {"none"}:
        raise ConfigError(
            "none of these models transfers coefficients, so there is nothing to tell apart; train some with "
            "transfer=OutputTransfer() or RelativeTransfer() and name both kinds"
        )
    panels = []
    for name, here in cells.groupby("panel", sort=True):
        marks: list = []
        places = [f"{shown} {split}" for shown in TRANSFERS.values() for split in SPLITS]
        here = here.assign(x=here["transfer"] + " " + here["split"])
        here = here[here["x"].isin(places)].sort_values("x", key=lambda x: x.map(places.index), kind="stable")
        for attention in sorted(here["attention"].unique(), key=[*COLORS, *here["attention"]].index):
            rows, color = here[here["attention"] == attention], color_of(COLORS.get(attention, attention))
            boxes = over_seeds(rows, "x").dropna()
            if len(boxes):
                marks.append(Band(boxes, "x", "lo", "hi", color=color))
            marks.append(Points(rows, "x", "value", label=attention, color=color, hover="model"))
        for label in ("ceiling", MEMORY):
            values = here[label].dropna()
            if len(values):
                marks.append(Rule(float(values.mean()), label=f"{label}, ood"))
        panels.append(Panel(str(name), "transfer, split", here["score_name"].iloc[0], tuple(marks)))
    fewest = int(cells.groupby(["panel", "attention", "transfer", "split"])["model"].nunique().min())
    seeds = "" if fewest >= SEEDS else f" With {fewest} seed(s) per cell no difference is claimed."
    caption = (
        "Score with and without transfer of attention coefficients from the context blocks to the target block, by what "
        "attention does with its scores. Along x: what transfer does; among colours: what the threshold does, beside softmax "
        f"and beside the same attention without threshold. Points are seeds, boxes 95 % intervals of their mean "
        f"(from {SEEDS} seeds on).{seeds}"
    )
    return Drawing("Is it sparsity, or is it transfer?", tuple(panels), caption, columns=min(2, len(panels)))


def _cell(folder: Path, metric: str) -> pd.DataFrame:
    """A row per split: where one model stands in the two-by-two, and its score."""
    row = tables.settings(folder)
    frame = tables.pooled(folder, metric)
    if frame.empty:
        raise ConfigError(f"{folder}: table generalization has no metric {metric!r}; leave --metric out for the score")
    own = frame[frame["control"] == ""].set_index("split")["value"]
    ood = frame[frame["split"] == "ood"].set_index("reference")["value"]
    ceiling = frame[(frame["split"] == "ood") & (frame["note"] == "ceiling")]["value"]
    layers = int(row["architecture.n_layers"])
    return pd.DataFrame(
        {
            "model": row["model"],
            "panel": f"{setting_of(row)}, {layers} layer{'s' if layers > 1 else ''}",
            "attention": _attention(row),
            "transfer": TRANSFERS.get(row.get("architecture.transfer", "none"), row.get("architecture.transfer")),
            "split": list(SPLITS),
            "value": [float(own[split]) for split in SPLITS],
            "score_name": row["score_name"] if metric == "score" else metric,
            "ceiling": float(ceiling.iloc[0]) if len(ceiling) else np.nan,
            MEMORY: float(ood.get(MEMORY, np.nan)),
        }
    )


def _attention(row: dict) -> str:
    """What a model's attention does with its scores, in the words of the figure."""
    if "architecture.threshold.sparsity" in row:
        return f"{SPARSE}, {100 * row['architecture.threshold.sparsity']:g} % silenced"
    if row["architecture"] == "SparseCoding":
        return LINEAR if row.get("architecture.threshold.xi") == 0 else SPARSE
    return {"SoftmaxTransformer": "softmax", "LinearAttention": LINEAR}.get(row["architecture"], row["architecture"])
