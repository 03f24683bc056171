"""A drawing on the screen: an interactive figure by plotly."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping, Sequence

from compolens.figures.panels import Panel
from compolens.figures.plain import PlainFigure
from compolens.figures.scenes import scenes_of
from compolens.figures.words import displayed


def on_screen(panels: Sequence[Panel], columns: int | None, labels: Mapping[str, str]) -> PlainFigure:
    """Panels as one figure: as wide as its container, with a fixed height in pixels.

    Args:
        panels: in reading order.
        columns: panels per row (None: up to 3).
        labels: name -> what is shown for it.

    Returns:
        The figure.
    """
    columns = min(columns or 3, len(panels))
    scenes = scenes_of(panels, columns, labels)
    bars = {scene.column for scene in scenes if scene.bar}
    titles = ["<br>".join(textwrap.wrap(displayed(panel.title, labels), max(100 // columns, 16))) for panel in panels]
    # Heights in px: titles and axis labels around each row of axes. Widths are shares of a page of about 1000 px.
    rows, head, axes, foot = scenes[-1].row, 30 + 18 * max(title.count("<br>") for title in titles), 260, 70
    body = rows * axes + (rows - 1) * (head + foot)
    legend = 24 * math.ceil(sum(len(displayed(label, labels)) + 8 for label in scenes[0].legend.colors) / 120)
    across = min(0.16 if bars - {columns} else 0.09, 0.5 / columns)
    figure = PlainFigure(titles, columns, (across, (head + foot) / body if rows > 1 else 0))
    for scene in scenes:
        figure.axis("x", **scene.cell).update(title={"text": scene.panel.x}, automargin=True, **scene.x_axis())
        figure.axis("y", **scene.cell).update(title={"text": scene.panel.y}, automargin=True, range=scene.panel.y_range)
        for mark in scene.panel.marks:
            mark.trace(figure, scene)
    figure.layout.update(
        barmode="overlay",  # bars come with positions of their own
        height=head + 20 + body + foot + legend,
        margin={"t": head + 20, "b": foot, "l": 70, "r": 90 if columns in bars else 20},
        legend={"orientation": "h", "yref": "container", "y": 0, "yanchor": "bottom", "x": 0},
        hoverlabel={"namelength": -1},
    )
    return figure
