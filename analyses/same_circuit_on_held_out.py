"""Held-out compositions are answered by the same heads and MLPs as training compositions."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd

from compolens import tables
from compolens.diagnosis.groups import SEEDS, group, title
from compolens.figures import Band, Drawing, Panel, Points, Rule
from compolens.foundation.configs import ConfigError
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
        The drawing. A point per model: the corrected correlation less the mean over left-out sets. Boxes: the 95 % range of
        left-out sets about their mean.

    Raises:
        ConfigError: no model's rows have this counterfactual.
    """
    groups, panels, words = group(models), [], []
    for label, of in PARTS.items():
        points, null = [], []
        for g in groups:
            found = {folder.name: _compared(folder, counterfactual, of) for folder in g.folders}
            told = title(g, groups)
            points += [{"x": told, "y": one.beyond, "model": name} for name, one in found.items()]
            null.append({"x": told} | _range(list(found.values())))
            words.append(f"{told}, {label}: {_verdict(list(found.values()))}")
        marks = (
            Band(pd.DataFrame(null), "x", "lo", "hi", label="left-out training compositions"),
            Points(pd.DataFrame(points), "x", "y", hover="model", label="held-out compositions", color="#882255"),
            Rule(-MARGIN, label="margin"),
        )
        panels.append(Panel(label, "", "similarity, less that of left-out sets", marks))
    caption = (
        "Similarity: correlation over parts of the effect on training and on held-out compositions, corrected for split-half "
        "reliability, less the mean of the same number for training compositions that were left out (as many, nearest in "
        "error). 0: held-out compositions use the parts that any other composition uses. Boxes: 95 % range of left-out sets. "
        f"Within {MARGIN:g} of 0 counts as the same circuit, a margin fixed beforehand. {'; '.join(words)}."
    )
    return Drawing("Are held-out compositions answered by the same circuit?", tuple(panels), caption, columns=2)


def _compared(folder: Path, counterfactual: str, wanted: Callable[[str], bool]) -> Compared:
    rows = tables.at_last_step(tables.read_episodes(folder, "components"))
    known = sorted(set(rows["counterfactual"]))
    if counterfactual not in known:
        raise ConfigError(f"{folder}: no counterfactual {counterfactual!r} in its rows; allowed: {', '.join(known)}")
    rows = rows[rows["counterfactual"] == counterfactual]
    parts = [name for name in dict.fromkeys(rows["component"]) if wanted(name)]
    rows = rows[rows["component"].isin(parts)]
    train, held_out = (terms_of(rows[rows["split"] == split], parts) for split in ("test", "ood"))
    return held_out_against_left_out(train, held_out)


def _range(found: list[Compared]) -> dict[str, float]:
    """The 95 % range of the left-out sets of some models, each about its mean."""
    about = [one.null - np.nanmean(one.null) for one in found if np.isfinite(one.null).any()]
    if not about:
        return {"lo": float("nan"), "hi": float("nan")}
    lo, hi = np.nanquantile(np.concatenate(about), [0.025, 0.975])
    return {"lo": float(lo), "hi": float(hi)}


def _verdict(found: list[Compared]) -> str:
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
