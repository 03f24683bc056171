"""Which factors of the code the loss on held-out compositions falls on."""

from pathlib import Path

import numpy as np
import pandas as pd

from compolens.diagnosis.decomposition import by_composition, by_factor, factors_of
from compolens.diagnosis.groups import SEEDS, group, name_among
from compolens.diagnosis.measured import Measured
from compolens.figures import Band, Drawing, Mark, Panel, Points, Rule
from compolens.measures.intervals import weighted_mean

needs = ("generalization", "inference_or_execution")
DRAWS = 500
COLORS = {"use": "#44AA99", "inference": "#332288", "form": "#999933", "execution": "#882255"}


def analyze(models: list[Path]) -> Drawing:
    """Draw, for every factor of the code, the mean loss over the held-out compositions that it takes part in.

    A panel per model. The loss is ceiling - score on compositions held out as in 2407.12275; its parts are those of
    `failure_has_a_place`.

    Args:
        models: folders of the models to draw, in this order.

    Returns:
        The drawing. Black: the loss; open marks: its parts. Dashed: the loss over all held-out compositions. Grey: where 95 %
        of such means lie when the losses are dealt to the compositions at random.
    """
    groups, panels, reach, lowest = group(models), [], [], []
    for g in groups:
        for folder in g.folders:
            name = name_among(g, groups) if len(g.folders) == 1 else f"{name_among(g, groups)}: {folder.name}"
            marks, axis = _panel(folder)
            drawn = [mark.rows() for mark in marks]
            reach += [float(rows[c].max()) for rows in drawn for c in ("y", "hi") if c in rows]
            lowest += [float(rows[c].min()) for rows in drawn for c in ("y", "lo") if c in rows]
            panels.append((name, axis, marks))
    air = 0.04 * (max(reach) - min(lowest)) or 0.05
    span = min(lowest) - air, max(reach) + air
    shown = [Panel(name, axis, "loss", marks, y_range=span) for name, axis, marks in panels]
    caption = (
        "A factor's loss is the mean over the held-out compositions that it takes part in, weighted as the score is. Use, "
        "inference, form and execution: the parts of it (see failure_has_a_place). Dashed: the loss over all held-out "
        f"compositions. Grey: where 95 % of such means lie when the compositions' losses are permuted ({DRAWS} times); only a "
        "factor outside stands out. Models have a panel each, since factors of different seeds are different things "
        "and their numbers arbitrary. "
        f"With fewer than {SEEDS} seeds nothing is claimed about an architecture."
    )
    return Drawing("Which factors does the loss fall on?", tuple(shown), caption, columns=min(3, len(shown)))


def _panel(folder: Path) -> tuple[tuple[Mark, ...], str]:
    """The marks of one model, and what its factors are."""
    measured = Measured.read(folder)
    top = measured.frame()["ceiling"]
    rows, factors = by_composition(measured, top), by_factor(measured, top)
    whole = weighted_mean(rows["loss"].to_numpy(), rows["weight"].to_numpy())
    dealt, kind = _dealt(rows), ""
    kinds = {str(factor).rpartition(" ")[0] for factor in factors["factor"]}
    if len(kinds) == 1 and "" not in kinds:  # "module 3" of the axis "module" is 3
        (kind,) = kinds
        dealt, factors = (f.assign(factor=[str(name).rpartition(" ")[2] for name in f["factor"]]) for f in (dealt, factors))
    marks: list[Mark] = [Band(dealt, "factor", "lo", "hi", label="dealt at random")]
    for part, color in COLORS.items():
        marks.append(Points(factors, "factor", part, label=part, color=color, open=True))
    marks.append(Points(factors, "factor", "loss", label="loss", color="#000000"))
    return (*marks, Rule(whole, label="all compositions")), kind


def _dealt(rows: pd.DataFrame) -> pd.DataFrame:
    """factor, lo, hi: where its loss would lie if it had nothing to do with the factor."""
    rng, own = np.random.default_rng(0), factors_of(rows)
    loss, weight = rows["loss"].to_numpy(), rows["weight"].to_numpy()
    draws = []
    for _ in range(DRAWS):
        order = rng.permutation(len(rows))
        draws.append([weighted_mean(loss[order[at]], weight[order[at]]) for at in own.values()])
    lo, hi = np.quantile(np.array(draws), [0.025, 0.975], axis=0)
    return pd.DataFrame({"factor": list(own), "lo": lo, "hi": hi})
