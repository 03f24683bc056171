"""A drawing on the screen: an interactive figure by plotly."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING

from compolens.figures.panels import Panel
from compolens.figures.scenes import scenes_of

if TYPE_CHECKING:
    import plotly.graph_objects as go


def on_screen(panels: Sequence[Panel], columns: int | None) -> go.Figure:
    """Panels as one plotly figure: as wide as its container, with a fixed height in pixels.

    Args:
        panels: in reading order.
        columns: panels per row (None: up to 3).

    Returns:
        The figure.
    """
    from plotly.subplots import make_subplots

    columns = min(columns or 3, len(panels))
    scenes = scenes_of(panels, columns)
    bars = {scene.column for scene in scenes if scene.bar}
    titles = ["<br>".join(textwrap.wrap(panel.title, max(100 // columns, 16))) for panel in panels]
    # Heights in px: titles and axis labels around each row of axes. Widths are shares of a page of about 1000 px.
    rows, head, axes, foot = scenes[-1].row, 30 + 18 * max(title.count("<br>") for title in titles), 260, 70
    body = rows * axes + (rows - 1) * (head + foot)
    legend = 24 * math.ceil(sum(len(label) + 8 for label in scenes[0].legend.colors) / 120)
    figure = make_subplots(
        rows=rows,
        cols=columns,
        specs=[[{} if at < len(scenes) else None for at in range(i, i + columns)] for i in range(0, rows * columns, columns)],
        subplot_titles=titles,
        horizontal_spacing=min(0.16 if bars - {columns} else 0.09, 0.5 / columns),
        vertical_spacing=(head + foot) / body if rows > 1 else 0,
    )
    figure.update_annotations(font_size=14)
    for scene in scenes:
        figure.update_xaxes(title_text=scene.panel.x, automargin=True, **scene.x_axis(), **scene.cell)
        figure.update_yaxes(title_text=scene.panel.y, automargin=True, range=scene.panel.y_range, **scene.cell)
        for mark in scene.panel.marks:
            mark.trace(figure, scene)
    return figure.update_layout(
        template="simple_white",
        barmode="overlay",  # bars come with positions of their own
        height=head + 20 + body + foot + legend,
        margin={"t": head + 20, "b": foot, "l": 70, "r": 90 if columns in bars else 20},
        legend={"orientation": "h", "yref": "container", "y": 0, "yanchor": "bottom", "x": 0},
        hoverlabel={"namelength": -1},
    )
