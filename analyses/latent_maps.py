"""What attention's codes look like in two dimensions: by rule, and by what the operands happen to be."""

from pathlib import Path

import pandas as pd

from compolens import tables
from compolens.diagnosis.groups import group, title
from compolens.figures import Drawing, Map, Panel
from compolens.foundation.configs import ConfigError, nearest

needs = ("latent_geometry",)
EMBEDDINGS = ("pca", "tsne", "umap")


def analyze(
    models: list[Path], *, embedding: str = "pca", layer: int = -1, capture: str = "self", untrained: bool = False
) -> Drawing:
    """Draw maps of attention's codes on held-out compositions, coloured by label and by confound (2406.05816).

    A row of panels per architecture, of its first seed. Labels are the rule (or term 1, term 2); confounds are the operands'
    magnitude and the target's value. What separates by confound only is no code of the rule.

    Args:
        models: folders of the models to draw, in this order.
        embedding: "pca" (always measured), or "tsne" or "umap" where `latent_geometry` was asked for it.
        layer: the layer, counted from 0, or from the end if negative; -1 is the last.
        capture: the pair of tokens: "self" (the answer token with itself) or "row mates".
        untrained: draw a row for the untrained control as well.

    Returns:
        The drawing. Every point is an answer; axes have no unit.

    Raises:
        ConfigError: there is no such embedding, layer or capture in the table.
    """
    if embedding not in EMBEDDINGS:
        raise ConfigError(f"no embedding {embedding!r}; {nearest(embedding, EMBEDDINGS)}")
    groups, panels, columns = group(models), [], set()
    settings = {g.setting for g in groups}
    for g in groups:
        frame = tables.at_last_step(tables.read(g.folders[0], "latent_geometry"))
        frame = frame[frame["metric"] == embedding]
        if frame.empty:
            command = f"{tables.command_of('latent_geometry', g.folders[0])} --{embedding} --again"
            raise ConfigError(f"{g.folders[0]} has no {embedding} coordinates; type: {command}")
        frame = tables.at_place(frame[frame["split"] == "ood"], capture, layer, g.label)
        labels = [c for c in frame.columns if c.startswith("label.") and frame[c].notna().any()]
        confounds = [c for c in frame.columns if c.startswith("confound.") and frame[c].notna().any()]
        columns.add(len(labels) + len(confounds))
        for control in ("", "untrained") if untrained else ("",):
            rows = frame[frame["control"] == control]
            hover = _hover(rows, labels + confounds)
            for column in labels + confounds:
                name = column.partition(".")[2]
                where = ", ".join(w for w in (title(g, groups), control) if w)
                # values of another task are another quantity, with a colour scale of its own
                scale = f"{name}, {g.setting.split()[0]}" if column in confounds and len(settings) > 1 else ""
                mark = Map(hover.rename(columns={column: name}), "x", "y", name, label=scale, hover="point")
                panels.append(Panel(f"{where}: by {name}", "", "", (mark,)))
    caption = (
        f"{embedding.upper() if embedding == 'pca' else embedding} of attention's code ({capture}, layer {layer}) on held-out "
        "compositions; the axes have no unit. One seed per architecture. A map shows neighbourhoods, not distances; the "
        "numbers are silhouettes and ratios of scatter in the table latent_geometry."
    )
    return Drawing("How are codes laid out?", tuple(panels), caption, columns=max(columns) if len(columns) == 1 else None)


def _hover(rows: pd.DataFrame, columns: list[str]) -> pd.DataFrame:
    """The rows with a text per point: everything known about it."""
    parts = [c.partition(".")[2] + " " + rows[c].astype(str) for c in columns]
    text = parts[0]
    for part in parts[1:]:
        text = text + ", " + part
    return rows.assign(point=text)
