"""A drawing on the screen: an interactive figure by plotly."""

from __future__ import annotations

import itertools
import math
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from compolens.figures.panels import Panel
from compolens.figures.plain import PlainFigure
from compolens.figures.scenes import Scene, scenes_of
from compolens.figures.words import displayed

WIDE = 1000
"""Pixels that a figure has on a page, where nothing else is said."""
LETTER = 6.5
"""Pixels of a letter of a name below an axis."""
TIGHT = 260
"""Pixels of a panel below which there is no room to say again what stands beside its neighbour."""


def on_screen(panels: Sequence[Panel], columns: int | None, labels: Mapping[str, str], width: int = WIDE) -> PlainFigure:
    """Panels as one figure: as wide as its container, with a fixed height in pixels.

    Args:
        panels: in reading order.
        columns: panels per row (None: up to 3).
        labels: name -> what is shown for it.
        width: pixels that the figure will have, about.

    Returns:
        The figure.
    """
    columns = min(columns or 3, len(panels))
    scenes = scenes_of(panels, columns, labels)
    bars = {scene.column for scene in scenes if scene.bar}
    titles = ["<br>".join(textwrap.wrap(displayed(panel.title, labels), max(width // 10 // columns, 16))) for panel in panels]
    across = min(0.16 if bars - {columns} else 0.09, 0.5 / columns)
    below = [_below(scene, width * (1 - across * (columns - 1)) / columns - 110 / columns) for scene in scenes]
    # Heights in px: titles and axis labels around each row of axes.
    rows, head, axes = scenes[-1].row, 30 + 18 * max(title.count("<br>") for title in titles), 260
    foot = 70 + max(high for _, high in below)
    body = rows * axes + (rows - 1) * (head + foot)
    legend = 24 * math.ceil(sum(len(displayed(label, labels)) + 8 for label in scenes[0].legend.colors) * 8.4 / width)
    figure = PlainFigure(titles, columns, (across, (head + foot) / body if rows > 1 else 0))
    for scene, (ticks, _) in zip(scenes, below, strict=True):
        figure.axis("x", **scene.cell).update(title={"text": scene.panel.x}, automargin=True, **ticks)
        figure.axis("y", **scene.cell).update(title={"text": scene.panel.y}, automargin=True, range=scene.panel.y_range)
        for mark in scene.panel.marks:
            mark.trace(figure, scene)
    if width / columns < TIGHT:
        _said_once(figure, scenes)
    figure.layout.update(
        barmode="overlay",  # bars come with positions of their own
        height=head + 20 + body + foot + legend,
        margin={"t": head + 20, "b": foot, "l": 70, "r": 90 if columns in bars else 20},
        legend={"orientation": "h", "yref": "container", "y": 0, "yanchor": "bottom", "x": 0},
        hoverlabel={"namelength": -1},
    )
    return figure


def _said_once(figure: PlainFigure, scenes: Sequence[Scene]) -> None:
    """Where panels stand close together, the title and names of a y axis are not repeated in the panel to the right."""
    for left, scene in itertools.pairwise(scenes):
        axis, before = (figure.axis("y", **one.cell) for one in (scene, left))
        if scene.row == left.row and scene.panel.y == left.panel.y:
            axis["title"] = {"text": ""}
            axis["showticklabels"] = axis.get("ticktext") is None or axis["ticktext"] != before.get("ticktext")


def _below(scene: Scene, width: float) -> tuple[dict[str, Any], float]:
    """The ticks of an x axis, names broken into lines where they would run together or have to be turned.

    Args:
        scene: the panel.
        width: pixels of the axis.

    Returns:
        plotly attributes, and how many pixels they need below the axis beyond one line.
    """
    ticks = scene.x_axis()
    names = ticks.get("ticktext", [])
    beside = max((len(scene.shown(name)) for name in scene.heat.grid()[2]), default=0) if scene.heat else 0
    room = int(max(width - LETTER * max(beside - 8, 0), 0) / max(len(names), 1) / LETTER)
    if max(map(len, names), default=0) <= room:
        return ticks, 0
    broken = [textwrap.wrap(name, max(room, 1), break_long_words=False) or [""] for name in names]
    longest = max(len(line) for lines in broken for line in lines)
    if longest <= room:
        return {**ticks, "ticktext": ["<br>".join(lines) for lines in broken], "tickangle": 0}, 14 * (
            max(map(len, broken)) - 1
        )
    turned = {**ticks, "tickangle": -90 if len(names) > 1 else 0, "ticklabeloverflow": "allow"}
    return turned, min(max(LETTER * max(map(len, names)) - 14, 0), 120)
