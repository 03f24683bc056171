"""A model of regression on a fixed representation copies inputs, computes the representation, and regresses on it above."""

from pathlib import Path

import pandas as pd

from compolens import tables
from compolens.diagnosis.groups import group, title
from compolens.figures import Drawing, Line, Mark, Panel
from compolens.foundation.configs import require

needs = ("representation_map",)
READ = {
    ("x", "y token"): "x, copied to its answer's token",
    ("Phi beyond x", "x token"): "what of Φ(x) is not linear in x, at x tokens",
    ("Phi beyond x", "y token"): "the same at y tokens",
    ("prediction", "x token"): "ridge prediction, at x tokens",
}
"""(Target, role) -> a panel's title."""
SHOWN = {"": ("model", "#332288"), "untrained": ("untrained", "#999999"), "shuffled": ("shuffled", "#DDCC77")}
"""Control -> label, colour."""


def analyze(models: list[Path], *, split: str = "test") -> Drawing:
    """Draw what linear readouts find at the tokens of inputs and answers, by layer (2310.10616).

    Args:
        models: folders of the models to draw, in this order.
        split: "test" or "ood" (wider inputs, or another prior).

    Returns:
        The drawing: R² by layer. A line is a seed; dashed, the readout of the raw input.

    Raises:
        ConfigError: there is no such split.
    """
    require(split in ("test", "ood"), f"no split {split!r}; allowed: test, ood")
    groups, panels = group(models), []
    for g in groups:
        rows = pd.concat([_rows(folder, split) for folder in g.folders], ignore_index=True)
        for (target, role), words in READ.items():
            here = rows[(rows["target"] == target) & (rows["role"] == role)]
            name = words if len(groups) == 1 else f"{title(g, groups)}: {words}"
            panels.append(Panel(name, "layer", "R²", tuple(_marks(here))))
    caption = (
        "R² of linear readouts that were fitted on training compositions, by layer: 0 enters the first block. The raw input "
        "is a token, the one before it, and what ridge regression on x predicts. Shuffled: targets of other episodes."
    )
    return Drawing("Where do a copy, the representation and the prediction stand?", tuple(panels), caption, columns=2)


def _rows(folder: Path, split: str) -> pd.DataFrame:
    rows = tables.at_last_step(tables.with_untrained_control(folder, "representation_map"))
    return rows[rows["split"] == split].assign(model=folder.name)


def _marks(rows: pd.DataFrame) -> list[Mark]:
    marks: list[Mark] = []
    for control, (label, color) in SHOWN.items():
        for number, (_, one) in enumerate(rows[rows["control"] == control].groupby("model", sort=False)):
            line = one.sort_values("layer", kind="stable")
            marks.append(Line(line, "layer", "value", label=label, color=color, keyed=number == 0))
    raw = rows[rows["control"] == "raw input"]["value"]
    if len(raw):
        layers = sorted({int(layer) for layer in rows["layer"] if layer >= 0})
        flat = pd.DataFrame({"layer": layers, "value": float(raw.mean())})
        marks.append(Line(flat, "layer", "value", label="raw input", color="#AA4499", dash=True))
    return marks
