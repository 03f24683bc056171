"""A heat map over two knobs, with contours of a second quantity and lines on top: what a phase diagram needs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pandas as pd

from compolens.figures.maps import HeatMap
from compolens.figures.stage import Stage

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from compolens.figures.plain import PlainFigure

_INK = "#ffffff"
_DASH = (4, 2)


class Contour(NamedTuple):
    """Where a second quantity has a value.

    Args:
        column: of the map's data.
        level: the value.
        label: for readers.
        dash: dashed instead of solid.
    """

    column: str
    level: float
    label: str
    dash: bool = False


class Route(NamedTuple):
    """A line across the map.

    Args:
        points: (x, y) in categories of the map, or in numbers between them.
        label: for readers.
        dash: dashed instead of solid.
        spread: (lo, hi) of x at every point, such as an interval (None: none).
    """

    points: Sequence[tuple[Any, Any]]
    label: str
    dash: bool = False
    spread: Sequence[tuple[Any, Any]] | None = None


@dataclass(frozen=True, eq=False)
class PhaseMap(HeatMap):
    """A `HeatMap` under contours and lines. Cells lie side by side at equal widths, whatever their values.

    Args:
        contours: of further columns; drawn where the map has two rows and columns.
        routes: lines, such as a boundary with its interval, and one that theory predicts.
    """

    contours: tuple[Contour, ...] = ()
    routes: tuple[Route, ...] = ()

    def _levels(self, contour: Contour) -> np.ndarray:
        """(rows, columns) of the contour's quantity."""
        values, columns, names = self.grid()
        known = np.full(values.shape, np.nan)
        row = [names.index(v) for v in self._column("y")]
        column = [columns.index(v) for v in self._column("x")]
        known[row, column] = pd.to_numeric(self.data[contour.column]).to_numpy(dtype=float)
        return known

    def place(self, route: Route) -> tuple[np.ndarray, np.ndarray]:
        """Where a route lies: positions of cells counted from 0; between two numbers by a straight line.

        Args:
            route: the line.

        Returns:
            x and y, (n,) each; NaN where a value is none of the map's and no number.
        """
        _, columns, names = self.grid()
        return _at([p[0] for p in route.points], columns), _at([p[1] for p in route.points], names)

    def draw(self, axes: Axes, scene: Stage) -> None:
        super().draw(axes, scene)
        limits = axes.get_xlim()
        for contour in self.contours:
            levels = self._levels(contour)
            if min(levels.shape) >= 2 and np.nanmin(levels) < contour.level < np.nanmax(levels):
                dashes = "dashed" if contour.dash else "solid"
                axes.contour(levels, levels=[contour.level], colors=_INK, linewidths=1.1, linestyles=dashes)
        for route in self.routes:
            x, y = self.place(route)
            style: dict[str, Any] = {
                "color": "black",
                "lw": 1.2,
                "marker": "" if route.dash else "o",
                "ms": 3.5,
                "mec": "white",
                "mew": 0.5,
            }
            (line,) = axes.plot(x, y, **style, zorder=5)
            if route.dash:
                line.set_dashes(_DASH)
            if route.spread is not None:
                _, columns, _ = self.grid()
                lo, hi = (_at([s[end] for s in route.spread], columns) for end in (0, 1))
                axes.hlines(y, lo, hi, color="black", lw=0.9, zorder=5)
        axes.set_xlim(limits if limits[0] < limits[1] else (-0.5, len(self.grid()[1]) - 0.5))
        axes.set_xlim(-0.5, len(self.grid()[1]) - 0.5)

    def trace(self, figure: PlainFigure, scene: Stage) -> None:
        super().trace(figure, scene)
        for contour in self.contours:
            levels = self._levels(contour)
            if min(levels.shape) >= 2:
                line: dict[str, Any] = {"color": _INK, "width": 1.5, "dash": "dash" if contour.dash else "solid"}
                one = {"start": contour.level, "end": contour.level, "size": 1, "coloring": "none"}
                named = {"name": contour.label, "showscale": False, "hoverinfo": "skip", "line": line, "contours": one}
                figure.add_trace({"type": "contour", "z": levels, **named}, **scene.cell)
        for route in self.routes:
            x, y = self.place(route)
            style: dict[str, Any] = {"color": "black", "width": 1.5, "dash": "dash" if route.dash else "solid"}
            entry = {"name": route.label, "showlegend": False, "hovertext": route.label, "hoverinfo": "text"}
            where: dict[str, Any] = {"type": "scatter", "x": x, "y": y, "mode": "lines" if route.dash else "lines+markers"}
            if route.spread is not None:
                _, columns, _ = self.grid()
                lo, hi = (_at([s[end] for s in route.spread], columns) for end in (0, 1))
                where["error_x"] = {
                    "type": "data",
                    "symmetric": False,
                    "array": hi - x,
                    "arrayminus": x - lo,
                    "color": "black",
                }
            figure.add_trace({**where, "line": style, **entry}, **scene.cell)


def _at(values: Sequence[Any], categories: Sequence[Any]) -> np.ndarray:
    """Positions of values among categories; numbers between the categories' own lie between them."""
    numeric = all(isinstance(c, int | float | np.number) and not isinstance(c, bool) for c in categories)
    index = {category: float(i) for i, category in enumerate(categories)}
    if not numeric:
        return np.array([index.get(v, np.nan) for v in values], dtype=float)
    order = np.argsort(np.array(categories, dtype=float))
    known, places = np.array(categories, dtype=float)[order], np.arange(len(categories), dtype=float)[order]
    inside = np.array(values, dtype=float)
    found = np.interp(inside, known, places)
    return np.where((inside < known[0]) | (inside > known[-1]), np.nan, found)
