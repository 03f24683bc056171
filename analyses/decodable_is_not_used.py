"""That the code can be decoded somewhere does not say that it is used there: writing another code may move no answer."""

from pathlib import Path

import numpy as np
import pandas as pd

from compolens import tables
from compolens.diagnosis.groups import SEEDS, Group, group, name_among, telling, title
from compolens.figures import Drawing, Mark, Panel, Points, color_of

needs = ("inference_or_execution",)
SHORT = {"context+readout": "both", "all": "code"}
"""Token roles, where an axis has little room."""
SHARE = "share that follows"
READ, WRITTEN = "left-out R²", "recovered"


def analyze(models: list[Path]) -> Drawing:
    """Draw how well the code is decoded at a site against how far answers follow another code that is written there.

    A row of panels per architecture and setting. In the first, every layer and token role is a point, means over seeds; then
    either number site by site. That a decodable latent code need not be used is the question of 2405.19162.

    Args:
        models: folders of the models to draw, in this order.

    Returns:
        The drawing. R² is of the code on training compositions that were left out; a share of 1 is all the way to the other
        code's answers. Open grey marks: writing in the untrained control.
    """
    groups = group(models)
    frames = [_places(g) for g in groups]
    panels = [panel for g, frame in zip(groups, frames, strict=True) for panel in _row(g, groups, frame, _span(frames))]
    told = [f"{name_among(g, groups)} {_words(frame)}" for g, frame in zip(groups, frames, strict=True)]
    caption = (
        "Share that follows: how far answers to training compositions move to another code's answers when that code is "
        "written at a site by a linear map. R²: ridge readout of the code there, scored on training compositions left out. "
        "Left: a point per site, means over seeds; elsewhere points are seeds. "
        "Open grey: the same writing in the untrained control, beside the trained model's R². Both: context and readout "
        "tokens at once; code: the explicit code. Rank correlation of the two over sites (means over seeds): "
        f"{'; '.join(told)}. With fewer than {SEEDS} seeds nothing is claimed."
    )
    return Drawing("Is the code used where it can be decoded?", tuple(panels), caption, columns=3)


def _row(g: Group, groups: list[Group], frame: pd.DataFrame, span: tuple[float, float]) -> list[Panel]:
    """A group's three panels: use against decoding, and each of them by site."""
    name, color, one = title(g, groups), _color(g, groups), name_among(g, groups)
    mean = frame.groupby("place", as_index=False, sort=False)[["read", "written", "untrained"]].mean()

    def used(rows: pd.DataFrame, x: str, hover: str) -> list[Mark]:
        return [
            Points(rows, x, "written", label=one, color=color, hover=hover),
            Points(rows, x, "untrained", label="untrained control", color="#888888", hover=hover, open=True),
        ]

    decoded = Points(frame, "place", "read", label=one, color=color, hover="model")
    return [
        Panel(name, "R² of the decoded code", SHARE, used(mean, "read", "place"), span),
        Panel(f"{name}: decoded", "layer, tokens", "R² of the decoded code", (decoded,), span),
        Panel(f"{name}: used", "layer, tokens", SHARE, used(frame, "place", "model"), span),
    ]


def _span(frames: list[pd.DataFrame]) -> tuple[float, float]:
    """One y range for all panels."""
    values = pd.concat(frames)[["read", "written", "untrained"]].to_numpy()
    lo, hi = float(np.nanmin(values)), float(np.nanmax(values))
    return lo - 0.04 * (hi - lo), hi + 0.04 * (hi - lo)


def _color(g: Group, groups: list[Group]) -> str:
    return color_of(telling(g, groups))


def _places(g: Group) -> pd.DataFrame:
    """A row per seed and site, early layers first: place (its name in words), read, written and untrained; untrained is NaN
    where there is no untrained control."""
    parts = [_of(tables.with_untrained_control(folder, "inference_or_execution")) for folder in g.folders]
    rows = pd.concat(parts, ignore_index=True).sort_values("layer", kind="stable")
    words = [SHORT.get(role, role) for role in rows["role"]]
    code = rows["site"] == "hook_code"
    layers = rows["layer"].astype(int).astype(str)
    return rows.assign(place=np.where(code, "code", layers + " " + pd.Series(words, index=rows.index)))


def _of(rows: pd.DataFrame) -> pd.DataFrame:
    """One model's sites that have both numbers."""
    at = ["site", "role", "layer", "model"]
    own = rows["control"] == ""
    found = rows[own & (rows["metric"] == READ)][[*at, "value"]].rename(columns={"value": "read"})
    for name, kept in (("written", own), ("untrained", rows["control"] == "untrained")):
        effect = rows[kept & (rows["metric"] == WRITTEN)][[*at, "value"]].rename(columns={"value": name})
        found = found.merge(effect, on=at, how="inner" if name == "written" else "left")
    return found


def _words(frame: pd.DataFrame) -> str:
    """The rank correlation over sites (Spearman: Pearson's of ranks), where there are three sites or more."""
    mean = frame.groupby("place")[["read", "written"]].mean()
    seeds = frame["model"].nunique()
    told = f"{len(mean)} sites, {seeds} seed{'s' * (seeds > 1)}"
    ranks = mean.rank()
    if len(mean) < 3 or (ranks.nunique() < 2).any():
        return f"not defined ({told})"
    return f"{np.corrcoef(ranks['read'], ranks['written'])[0, 1]:.2f} ({told})"
