"""Held-out compositions are answered by the same heads and MLPs as training compositions."""

from pathlib import Path

import pandas as pd

from compolens import tables
from compolens.diagnosis.groups import SEEDS, Group, group, title
from compolens.figures import Band, Drawing, Panel, Points, Rule
from compolens.foundation.configs import ConfigError
from compolens.measures.intervals import mean_interval

needs = ("components",)
MARGIN = 0.05
"""Of the corrected correlation; fixed before any model was measured. Nearer to 0 than this counts as the same circuit."""
PARTS = ("heads and MLPs", "heads alone")
CONTROLS = ("", "untrained")


def analyze(models: list[Path], *, counterfactual: str = "whole code") -> Drawing:
    """Draw whether effects on held-out compositions differ from those on training ones by more than these do among themselves.

    Effects of heads and MLPs (activation patching, 2202.05262) are shares of the model's own shift, so failing answers do not
    shrink them. Their correlation between training and held-out compositions, corrected for split-half reliability, is
    compared with that of training compositions left out alike: as many, matched in error as far as there are such.

    Args:
        models: folders of the models to draw, in this order.
        counterfactual: what differs between the two runs: "whole code" or "one factor".

    Returns:
        The drawing. A point per model: the corrected correlation less the median of left-out sets. Boxes: the 95 % range of
        left-out sets about their median.

    Raises:
        ConfigError: no model's rows have this counterfactual.
    """
    groups, panels, words = group(models), [], []
    frames = [_rows(g, counterfactual) for g in groups]
    for label in PARTS:
        points, boxes = [], []
        for g, frame in zip(groups, frames, strict=True):
            told = title(g, groups)
            for control in CONTROLS:
                found = _compared(frame, label, control)
                if found.empty:
                    continue
                x = f"{told}{', untrained' if control else ''}"
                points += [{"x": x, "y": y, "model": name} for name, y in found["beyond"].items()]
                boxes.append({"x": x, "lo": found["lo"].mean(), "hi": found["hi"].mean()})
                words += [] if control else [f"{told}, {label}: {_verdict(found)}"]
        marks = (
            Band(pd.DataFrame(boxes, columns=["x", "lo", "hi"]), "x", "lo", "hi", label="left-out training compositions"),
            Points(
                pd.DataFrame(points, columns=["x", "y", "model"]),
                "x", "y", hover="model", label="held-out compositions", color="#882255",
            ),
            Rule(-MARGIN, label="margin"),
        )  # fmt: skip
        panels.append(Panel(label, "", "similarity, less that of left-out sets", marks))
    caption = (
        "Similarity: correlation over parts of the effect on training and on held-out compositions, corrected for split-half "
        "reliability, less the median of the same number for training compositions that were left out (as many, nearest in "
        "error). 0: held-out compositions use the parts that any other composition uses. Boxes: 95 % range of left-out sets, "
        f"mean over seeds. Within {MARGIN:g} of 0 counts as the same circuit, a margin fixed beforehand. {'; '.join(words)}."
    )
    return Drawing("Are held-out compositions answered by the same circuit?", tuple(panels), caption, columns=2)


def _rows(g: Group, counterfactual: str) -> pd.DataFrame:
    rows = tables.at_last_step(tables.gather(g.folders, "components"))
    known = sorted(set(rows["counterfactual"].dropna()) - {""})
    if counterfactual not in known:
        raise ConfigError(f"{g.folders[0]}: no counterfactual {counterfactual!r} in its table; allowed: {', '.join(known)}")
    return rows[(rows["counterfactual"] == counterfactual) & rows["value"].notna()]


def _compared(rows: pd.DataFrame, label: str, control: str) -> pd.DataFrame:
    """A row per model: similarity beyond left-out sets, their range about 0, and both mean errors."""
    rows = rows[(rows["by"] == label) & (rows["control"] == control)]
    both = {
        (metric, split): rows[(rows["metric"] == metric) & (rows["split"] == split)].set_index("model")
        for metric in ("similarity", "mean error")
        for split in ("ood", "test")
    }
    null = both["similarity", "test"]
    return pd.DataFrame(
        {
            "beyond": both["similarity", "ood"]["value"] - null["value"],
            "lo": null["lo"] - null["value"],
            "hi": null["hi"] - null["value"],
            "error": both["mean error", "ood"]["value"],
            "null_error": both["mean error", "test"]["value"],
        }
    )


def _verdict(found: pd.DataFrame) -> str:
    """In words, with the numbers."""
    beyond = found["beyond"].to_numpy()
    errors = f"mean error {found['error'].mean():.2f} held out, {found['null_error'].mean():.2f} left out"
    told = f"{beyond.mean():+.3f} ({errors})"
    if len(found) < SEEDS:
        return f"{told}; with fewer than {SEEDS} seeds nothing is claimed"
    lo, hi = mean_interval(beyond)
    ends = f"[{lo:+.3f}, {hi:+.3f}] over {len(found)} seeds"
    if lo > -MARGIN:
        return f"{told} {ends}: the same circuit within the margin"
    return f"{told} {ends}: {'another circuit' if hi < -MARGIN else 'cannot be told'}"
