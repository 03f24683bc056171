"""Which rules share a code: the cosine between the mean codes of every two rules, on compositions never trained on."""

from pathlib import Path

import pandas as pd

from compolens import tables
from compolens.diagnosis.groups import group, title
from compolens.figures import Drawing, HeatMap, Panel
from compolens.figures.words import short_rule

needs = ("latent_geometry",)


def analyze(
    models: list[Path], *, layer: int = -1, capture: str = "self", untrained: bool = True, about_mean: bool = False
) -> Drawing:
    """Draw the cosine similarity of the mean codes of every two rules (or terms) on held-out compositions (2406.05816).

    A panel per architecture, the mean over its seeds. Cosines are symmetric, so the triangle below the diagonal has room for
    those of the untrained controls, which are what inputs alone give.

    Args:
        models: folders of the models to draw, in this order.
        layer: the layer, counted from 0, or from the end if negative; -1 is the last.
        capture: the pair of tokens: "self" (the answer token with itself) or "row mates".
        untrained: draw the untrained controls below the diagonal; on, since inputs alone make some rules alike.
        about_mean: take the mean of all codes off first, which the codes of an untrained model mostly consist of.

    Returns:
        The drawing: heat maps of cosines, from -1 to 1.

    Raises:
        ConfigError: there is no such layer or capture in the table.
    """
    groups, panels = group(models), []
    for g in groups:
        frame = tables.at_last_step(tables.gather(g.folders, "latent_geometry"))
        frame = frame[(frame["metric"] == ("cosine about the mean" if about_mean else "cosine")) & (frame["split"] == "ood")]
        frame = tables.at_place(frame, capture, layer, g.label)
        for by in frame["by"].unique():
            rows = frame[frame["by"] == by]
            own, before = (_mean(rows[rows["control"] == control]) for control in ("", "untrained"))
            cells = _triangles(own, before) if untrained else own
            name = ", ".join(w for w in (title(g, groups), "" if by == "rule" else str(by)) if w)
            axes = ("below the diagonal: untrained", "above: trained") if untrained else ("", "")
            panels.append(Panel(name, *axes, (HeatMap(_short(cells), "class", "other", "value", 0.0, "cosine"),)))
    where = "the last layer" if layer == -1 else f"layer {layer}"
    caption = (
        f"Cosine similarity between the mean codes of two rules at {where}, {capture}, on held-out compositions; mean over "
        "seeds. Rules with one code are treated alike by the layer."
    )
    caption += " Above the diagonal: as trained; below it: the untrained controls." if untrained else ""
    return Drawing("Which rules share a code?", tuple(panels), caption, columns=2 if len(panels) < 5 else 3)


def _mean(rows: pd.DataFrame) -> pd.DataFrame:
    return rows.groupby(["class", "other"], as_index=False, sort=False).agg({"value": "mean"})


def _triangles(own: pd.DataFrame, before: pd.DataFrame) -> pd.DataFrame:
    """The rows of `own` where other comes before class, those of `before` where it comes after; nothing on the diagonal, where
    every cosine is 1."""
    order = list(dict.fromkeys(own["class"]))
    parts = [
        rows.assign(value=rows["value"].where(keep(rows["other"].map(order.index), rows["class"].map(order.index))))
        for rows, keep in ((own, pd.Series.lt), (before, pd.Series.gt))
    ]
    both = parts[0].merge(parts[1], on=["class", "other"], how="left", suffixes=("", " before"))
    return both.assign(value=both["value"].fillna(both.pop("value before")))


def _short(rows: pd.DataFrame) -> pd.DataFrame:
    """Names that fit under a heat map's columns."""
    return rows.assign(**{c: rows[c].map(short_rule) for c in ("class", "other")})
