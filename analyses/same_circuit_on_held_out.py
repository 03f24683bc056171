"""Held-out compositions are answered by the same heads and MLPs as training compositions."""

from pathlib import Path

import numpy as np
import pandas as pd

from compolens import tables
from compolens.diagnosis.groups import SEEDS, Group, group, title
from compolens.figures import Drawing, Panel, Points, Rule
from compolens.measures.intervals import mean_interval
from compolens.measures.similarity import Compared, held_out_against_left_out, terms_of

needs = ("components",)
MARGIN = 0.05
"""Of the corrected correlation; fixed before any model was measured. Nearer to 0 than this counts as the same circuit."""
PARTS = {"heads and MLPs": lambda name: True, "heads alone": lambda name: "H" in name}


def analyze(models: list[Path], *, counterfactual: str = "whole code") -> Drawing:
    """Draw whether effects on held-out compositions differ from those on training ones by more than these do among themselves.

    Effects of heads and MLPs are shares of the model's own shift, so failing answers do not shrink them. Their correlation
    between training and held-out compositions, corrected for split-half reliability, is compared with that of training
    compositions left out alike: as many, matched in error as far as there are such.

    Args:
        models: folders of the models to draw, in this order.
        counterfactual: what differs between the two runs: "whole code" or "one factor".

    Returns:
        The drawing. A point per model: the corrected correlation less the mean over left-out sets; intervals of one model are
        the 95 % range of left-out sets about 0, of 5 seeds or more Student's t over seeds.
    """
    groups, panels, words = group(models), [], []
    for label, of in PARTS.items():
        rows = []
        for g in groups:
            found = {folder.name: _compared(folder, counterfactual, of) for folder in g.folders}
            told = title(g, groups)
            for name, one in found.items():
                lo, hi = (
                    (float(q) for q in np.nanquantile(one.null - np.nanmean(one.null), [0.025, 0.975]))
                    if len(one.null)
                    else (np.nan,) * 2
                )
                rows.append({"x": told, "y": one.beyond, "lo": one.beyond + lo, "hi": one.beyond + hi, "model": name})
            words.append(f"{told}, {label}: {_verdict(g, list(found.values()))}")
        marks = (
            Points(pd.DataFrame(rows), "x", "y", lo="lo", hi="hi", hover="model", label="model"),
            Rule(0.0, label="as left-out training compositions"),
            Rule(-MARGIN, label="margin"),
        )
        panels.append(Panel(label, "architecture", "similarity beyond left-out sets", marks))
    caption = (
        "Similarity: correlation over parts of the effect on training and on held-out compositions, corrected for split-half "
        "reliability, less the mean of the same number for training compositions that were left out (as many, nearest in "
        "error). 0: held-out compositions use the parts that any other composition uses. Intervals: 95 % range of left-out "
        f"sets. Within {MARGIN:g} of 0 counts as the same circuit, a margin fixed beforehand. {'; '.join(words)}."
    )
    return Drawing("Are held-out compositions answered by the same circuit?", tuple(panels), caption, columns=2)


def _compared(folder: Path, counterfactual: str, wanted) -> Compared:
    rows = tables.read_episodes(folder, "components")
    rows = tables.at_last_step(rows[rows["counterfactual"] == counterfactual])
    parts = [name for name in dict.fromkeys(rows["component"]) if wanted(name)]
    rows = rows[rows["component"].isin(parts)]
    train, held_out = (terms_of(rows[rows["split"] == split], parts) for split in ("test", "ood"))
    return held_out_against_left_out(train, held_out)


def _verdict(g: Group, found: list[Compared]) -> str:
    """In words, with the numbers."""
    beyond = np.array([one.beyond for one in found])
    numbers = f"{np.nanmean(beyond):+.3f}"
    error = np.mean([one.error for one in found]), np.mean([one.null_error for one in found])
    told = f"{numbers} (mean error {error[0]:.2f} held out, {error[1]:.2f} left out)"
    if len(found) < SEEDS:
        return f"{told}; with fewer than {SEEDS} seeds nothing is claimed"
    lo, hi = mean_interval(beyond)
    ends = f"[{lo:+.3f}, {hi:+.3f}] over {len(found)} seeds"
    if lo > -MARGIN:
        return f"{told} {ends}: the same circuit within the margin"
    return f"{told} {ends}: {'another circuit' if hi < -MARGIN else 'cannot be told'}"
