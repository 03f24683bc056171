"""Sums of inputs times answers are read best at a layer no later than the least-squares weights, and both by two layers."""

from pathlib import Path

import pandas as pd

from compolens import tables
from compolens.diagnosis.groups import Group, group, title
from compolens.figures import Drawing, Line, Mark, Panel
from compolens.foundation.configs import require, require_choice

needs = ("moments_and_weights",)
TARGETS = {"moments": "XᵀY", "weights": "least-squares weights"}
TASKS = ("as fitted", "other inputs", "weights × 2")
SHOWN = {"": ("model", "#332288"), "untrained": ("untrained", "#999999"), "shuffled": ("other episodes' targets", "#DDCC77")}
"""Control -> label, colour."""
ONE_TASK = ("trained on other weights", "#CC6677")
"""Models whose training knew other weights than standard normal ones, such as the control model of 2211.15661."""


def analyze(models: list[Path], *, tasks: str = "as fitted", shown: int = 0) -> Drawing:
    """Draw what readouts with a learned attention find of X^T Y and of the least-squares weights, by layer (2211.15661).

    Args:
        models: folders of the models to draw, in this order. Those that were trained on other weights than standard normal
            ones are drawn as controls beside models of the same architecture.
        tasks: "as fitted", "other inputs" or "weights × 2", as the table has them.
        shown: after so many examples (0: all).

    Returns:
        The drawing: R² by layer, a panel for each target and kind of readout. A line is a seed; dashed, the same readout of
        the tokens themselves, mean over seeds.

    Raises:
        ConfigError: there are no such tasks, or not so many examples.
    """
    require_choice(tasks, TASKS)
    groups = group(models)
    own = [g for g in groups if not _one_task(g)] or groups
    panels = []
    for g in own:
        rows = _rows(g.folders, tasks, shown)
        beside = [_rows(o.folders, tasks, shown) for o in groups if o not in own and o.architecture == g.architecture]
        for target, words in TARGETS.items():
            for readout in ("linear", "two layers"):
                name = f"{words}, {readout}" if len(own) == 1 else f"{title(g, own)}: {words}, {readout}"
                marks = tuple(_marks(rows, beside, target, readout))
                panels.append(Panel(name, "layer", "R²", marks))
    count = sorted({int(n) for p in own for n in _rows(p.folders, tasks, shown)["shown"]})
    caption = (
        f"After {' or '.join(map(str, count))} examples, tasks {tasks}. Readouts attend to tokens by learned scores, the same "
        "in every episode, and map their mean linearly, or by two layers; they are fitted on tasks with standard normal "
        "weights. Layer 0 enters the first block. A line is a seed; dashed: the same readout of the tokens themselves. Models "
        "that were trained on other weights have no use for what is read."
    )
    return Drawing("Where do sums and solutions of a regression stand?", tuple(panels), caption, columns=2)


def _one_task(g: Group) -> bool:
    return tables.settings(g.folders[0]).get("task.prior", "GaussianPrior") != "GaussianPrior"


def _rows(folders: list[Path], tasks: str, shown: int) -> pd.DataFrame:
    parts = []
    for folder in folders:
        rows = tables.at_last_step(tables.with_untrained_control(folder, "moments_and_weights"))
        rows = rows.assign(shown=rows["shown"].astype(int))
        counts = [int(n) for n in rows["shown"].unique()]
        wanted = shown or max(counts)
        require(
            wanted in counts, f"{folder} has no readouts after {wanted} examples; choose from {', '.join(map(str, counts))}"
        )
        same = (rows["metric"] == "r2") & (rows["shown"] == wanted)
        rows = rows[same & ((rows["tasks"] == tasks) | (rows["control"] == "shuffled"))]
        parts.append(rows.assign(model=folder.name))
    return pd.concat(parts, ignore_index=True)


def _marks(rows: pd.DataFrame, beside: list[pd.DataFrame], target: str, readout: str) -> list[Mark]:
    def lines(found: pd.DataFrame, control: str, label: str, color: str) -> list[Mark]:
        here = found[(found["target"] == target) & (found["readout"] == readout) & (found["control"] == control)]
        return [
            Line(one.sort_values("layer"), "layer", "value", label=label, color=color, keyed=number == 0)
            for number, (_, one) in enumerate(here.groupby("model", sort=False))
        ]

    marks = [mark for control, (label, color) in SHOWN.items() for mark in lines(rows, control, label, color)]
    marks += [mark for other in beside for mark in lines(other, "", *ONE_TASK)]
    raw = rows[(rows["target"] == target) & (rows["readout"] == readout) & (rows["control"] == "raw input")]["value"]
    if len(raw):
        layers = sorted({int(layer) for layer in rows["layer"] if layer >= 0})
        flat = pd.DataFrame({"layer": layers, "value": float(raw.mean())})
        marks.append(Line(flat, "layer", "value", label="tokens", color="#000000", dash=True))
    return marks
