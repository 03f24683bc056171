"""How the score on held-out compositions goes with the sparsity of attention, trained-in or imposed by pruning."""

from pathlib import Path

import numpy as np
import pandas as pd

from compolens import tables
from compolens.diagnosis.groups import SPLITS, Group, attention_among, group, telling
from compolens.figures import Band, Drawing, Line, Panel, Points, Rule, color_of
from compolens.foundation.configs import require_choice

needs = ("activation_sparsity", "generalization")
SCALES = ("row maximum", "absolute")
RENORMALISED = {0.0: "", 1.0: ", rows renormalised"}
"""By the column `renormalised`, what is added to a label."""
GREYS = {0.0: "#555555", 1.0: "#AAAAAA"}
LOWEST = -0.5
"""Axes end here; how much worse an R² gets than that says nothing."""
X = "share of weights that are 0"
PRUNED = "zeros (dashed: renormalised)"


def analyze(models: list[Path], *, scale: str = "row maximum", split: str = "ood") -> Drawing:
    """Draw the score against the share of attention's weights that are zero.

    A panel per architecture and setting: the score that is left when the smallest weights are set to zero in all layers at
    once, for growing thresholds. Where trained models have zeros of their own, as with the thresholds of 2511.20194, a first
    panel per setting shows these beside the other architectures.

    Args:
        models: folders of the models to draw, in this order.
        scale: thresholds relative to the "row maximum", which fits every architecture, or "absolute".
        split: "ood" (held-out compositions, where the claim is decided) or "test" (training ones).

    Returns:
        The drawing. Lines are means over seeds, starting from the models as they are (points, one per seed). Bands are the
        range, over draws and seeds, of random pruning of equal sparsity.

    Raises:
        ConfigError: there is no such scale or split.
    """
    require_choice(scale, SCALES)
    require_choice(split, SPLITS)
    groups, panels, flat = group(models), [], []
    several = len({g.setting for g in groups}) > 1
    for setting in dict.fromkeys(g.setting for g in groups):
        here = [g for g in groups if g.setting == setting]
        score_name = tables.settings(here[0].folders[0])["score_name"]
        trained = [_as_trained(g, split) for g in here]
        if (pd.concat(trained)["sparsity"] > 0).any() and len(here) > 1:
            seeds = [
                Points(
                    points,
                    "sparsity",
                    "score",
                    label=attention_among(g, here),
                    color=color_of(telling(g, here)),
                    hover="model",
                )
                for g, points in zip(here, trained, strict=True)
            ]
            panels.append(Panel(f"{setting}: as trained", X, score_name, seeds))
        pruned = [(g, _imposed(g, here, scale, split)) for g in here]
        lo, hi = _span([mark for _, marks in pruned for mark in marks])
        for g, marks in pruned:
            name = f"{attention_among(g, here)}{f', {setting}' if several else ''}"
            if len(here) > 1 and _flat(marks):
                flat.append(name)
            else:
                panels.append(Panel(name, PRUNED, score_name, [*marks, *_untrained(g, split, lo)], y_range=(lo, hi)))
    unit = "a share of the row's largest" if scale == "row maximum" else "absolute"
    caption = (
        f"Score on {SPLITS[split]} against the share of attention weights that are exactly zero, over all layers, heads and "
        f"pairs of tokens that may attend to each other. Lines: all weights up to a threshold ({unit}) set to zero in all "
        "layers while the model answers, for growing thresholds, mean over seeds, from the models as they are (points, one "
        "per seed); dashed: rows made to sum to one again. Bands: as many weights of every layer and head set to zero at "
        "random, range over draws and seeds."
    )
    if any(panel.title.endswith(": as trained") for panel in panels):
        caption += " As trained: models with zeros of their own beside the others, scored on more episodes."
    caption += f" Without a panel, since the score is the same at every sparsity: {', '.join(flat)}." if flat else ""
    caption += " With fewer than 5 seeds no difference is claimed."
    columns = min(2 if len(panels) < 5 else 3, len(panels))
    return Drawing("Does sparser attention generalize better?", tuple(panels), caption, columns=columns)


def _rows(folder: Path) -> pd.DataFrame:
    rows = tables.at_last_step(tables.read(folder, "activation_sparsity"))
    return rows[rows["layer"].isna()].assign(model=folder.name)


def _as_trained(g: Group, split: str) -> pd.DataFrame:
    """Per seed: the share of exact zeros, and the score by `generalization`."""
    found = []
    for folder in g.folders:
        rows = _rows(folder)
        zeros = rows[(rows["metric"] == "exact zeros") & (rows["split"] == split) & (rows["control"] == "")]
        scores = tables.pooled(folder)
        score = scores[(scores["split"] == split) & (scores["control"] == "")]["value"]
        found.append((folder.name, float(zeros["value"].iloc[0]), float(score.iloc[0])))
    return pd.DataFrame(found, columns=["model", "sparsity", "score"])


def _flat(marks: list) -> bool:
    """Whether pruning, as far as it was measured, changes nothing: a model with nothing to lose."""
    values = np.concatenate(
        [mark.rows().drop(columns="x").drop(columns="hover", errors="ignore") for mark in marks], axis=None
    )
    return len(np.unique(values[pd.notna(values)])) == 1


def _imposed(g: Group, here: list[Group], scale: str, split: str) -> list:
    """Bands and lines of one group, rows renormalised and not, each from the model as it is on."""
    color, name = color_of(telling(g, here)), attention_among(g, here)
    rows = _scores(g, split)
    whole = rows[rows["threshold"].isna() & (rows["control"] == "")].assign(threshold=0.0)
    bands: list = []
    lines: list = []
    for kind, told in RENORMALISED.items():
        pruned = rows[(rows["scale"] == scale) & (rows["renormalised"] == kind)]
        for control in ("random pruning", "") if len(pruned) else ():
            levels = pd.concat([whole, pruned[pruned["control"] == control]]).groupby("threshold", as_index=False)
            steps = levels.agg(sparsity=("imposed", "mean"), mean=("value", "mean"), lo=("value", "min"), hi=("value", "max"))
            if control:
                bands.append(Band(steps, "sparsity", "lo", "hi", label=f"random weights pruned{told}", color=GREYS[kind]))
            else:
                label = f"{name}{told}"
                dashed = kind == 1
                lines.append(Line(steps, "sparsity", "mean", label=label, color=color, dash=dashed, keyed=not dashed))
    start = Points(whole, "imposed", "value", color=color, hover="model")
    return [*bands, *lines, start]


def _untrained(g: Group, split: str, lowest: float) -> list[Rule]:
    """The score of the models before training, where the axis reaches it."""
    rows = _scores(g, split)
    score = float(rows[rows["control"] == "untrained"]["value"].mean())
    return [Rule(score, label="untrained control")] if score >= lowest else []


def _scores(g: Group, split: str) -> pd.DataFrame:
    rows = pd.concat([_rows(folder) for folder in g.folders])
    return rows[(rows["metric"] == "score") & (rows["split"] == split)]


def _span(marks: list) -> tuple[float, float]:
    """A y range that holds every mark down to `LOWEST` (or to 1 below the best, where all are worse), with some air."""
    rows = [mark.rows() for mark in marks]
    values = pd.concat([part[column] for part in rows for column in ("y", "lo", "hi") if column in part])
    hi = values.max()
    lo = max(values.min(), min(LOWEST, hi - 1))
    air = 0.04 * (hi - lo) or 0.05
    return lo - air, hi + air
