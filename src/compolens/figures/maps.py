"""Marks whose colour is a value: heat maps, and maps of points."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from compolens.figures.marks import Mark
from compolens.figures.stage import Stage
from compolens.figures.words import as_text, cell_texts, is_categorical

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from compolens.figures.plain import PlainFigure

_MISSING = "#d0d0d0"  # behind heat maps: a missing cell must not look like the white in the middle of a diverging scale

_HATCH: dict[str, Any] = {
    "width": 1.0, "hoverinfo": "skip", "showlegend": False,
    "marker": {
        "color": "rgba(0,0,0,0)", "line": {"width": 0},
        "pattern": {"shape": "/", "fgcolor": "rgba(255,255,255,0.4)", "size": 9, "solidity": 0.15},
    },
}  # fmt: skip
"""plotly hatches bars alone, so a hatched cell is a bar that lets everything else through."""
_SEE_THROUGH: dict[str, Any] = {
    "type": "heatmap", "hoverinfo": "skip", "showscale": False, "colorscale": [[0, "rgba(0,0,0,0)"], [1, "rgba(0,0,0,0)"]],
}  # fmt: skip
"""All numbers of a heat map by plotly have one colour, so that those in dark cells need a second map, of nothing else."""


def _numbers(values: np.ndarray, where: np.ndarray, color: str) -> dict[str, Any]:
    """plotly attributes of the numbers in some cells."""
    texts = np.where(where, np.array(cell_texts(values), dtype=object), "").tolist()
    return {"text": texts, "texttemplate": "%{text}", "textfont": {"color": color}}


@dataclass(frozen=True, eq=False)
class HeatMap(Mark):
    """A grid of colours from long-form rows; categories keep the order of first appearance, the first row on top.

    Cells carry their numbers up to 12 x 12, in print only where these are large enough to read. Cells without a value are
    grey.

    Args:
        data: long-form rows, one a cell.
        x: the column of the cells' x.
        y: the column of the cells' y.
        value: the column that colours say.
        centre: the colours diverge symmetrically around it (None: they are sequential).
        label: names the quantity (default: the column's name); heat maps of a drawing with the same quantity and centre share
            one scale.
        ticks: category -> text, of the categories that get a tick on both axes (None: all that fit).
        hatched: a column of booleans: cells to be hatched.
        hover: a column shown on hover in plotly.
    """

    data: pd.DataFrame
    x: str
    y: str
    value: str
    centre: float | None = None
    label: str = ""
    ticks: Mapping[Any, str] | None = None
    hatched: str | None = None
    hover: str | None = None

    def __post_init__(self) -> None:
        self.grid()
        self.hatches()

    def rows(self) -> pd.DataFrame:
        told = {} if self.hover is None else {"hover": self._column("hover")}
        return pd.DataFrame({"x": self._column("x"), "y": self._column("y"), "value": self._numbers("value"), **told})

    def grid(self) -> tuple[np.ndarray, list[Any], list[Any]]:
        """Values (rows, columns) with NaN where there is none, and the categories of the columns and of the rows."""
        rows = self.shown
        if rows.empty or rows[["x", "y"]].isna().any(axis=None):
            raise ValueError(f"HeatMap needs rows, each with {self.x!r} and {self.y!r}; got none, or one without")
        if (twice := rows.duplicated(["x", "y"])).any():
            x, y = map(as_text, rows.loc[twice, ["x", "y"]].iloc[0])
            raise ValueError(f"HeatMap needs one row per cell; got several for {self.x} {x!r} and {self.y} {y!r}")
        (column, columns), (row, names) = pd.factorize(rows["x"]), pd.factorize(rows["y"])
        values = np.full((len(names), len(columns)), np.nan)
        values[row, column] = rows["value"]
        return values, list(columns), list(names)

    def hatches(self) -> list[tuple[int, int]]:
        """(row, column) of the cells to be hatched."""
        if self.hatched is None:
            return []
        rows, wanted = self.shown, self._column("hatched").astype(bool)
        row, column = pd.factorize(rows["y"])[0], pd.factorize(rows["x"])[0]
        return [(int(row[i]), int(column[i])) for i in np.flatnonzero(wanted)]

    def ticked(self, categories: Sequence[Any], shown_as: Callable[[object], str] = as_text) -> tuple[list[int], list[str]]:
        """The ticks of an axis.

        Args:
            categories: what stands along the axis.
            shown_as: category -> text, where `ticks` does not say it.

        Returns:
            Positions, and their texts.
        """
        shown = {c: shown_as(c) for c in categories} if self.ticks is None else self.ticks
        at = [i for i, category in enumerate(categories) if category in shown]
        return at, [shown[categories[i]] for i in at]

    def legend_labels(self) -> list[str]:
        return []

    def scaled(self) -> pd.Series | None:
        return self.shown["value"].rename(self.label or self.value)

    def draw(self, axes: Axes, scene: Stage) -> None:
        values, columns, names = self.grid()
        edges = np.arange(len(columns) + 1) - 0.5, np.arange(len(names) + 1) - 0.5
        # Vector cells stay sharp in every viewer, but very many of them only make the file heavy.
        mesh = axes.pcolormesh(*edges, values, rasterized=values.size > 10_000, **scene.print_scale())
        axes.set(facecolor=_MISSING, ylim=(len(names) - 0.5, -0.5))
        axes.set_yticks(*self.ticked(names, scene.shown))
        from matplotlib.patches import Rectangle

        for row, column in self.hatches():
            style: dict[str, Any] = {"fill": False, "hatch": "///", "edgecolor": "white", "alpha": 0.5, "lw": 0}
            axes.add_patch(Rectangle((column - 0.5, row - 0.5), 1, 1, **style))
        axes.spines[:].set_visible(False)
        axes.tick_params(length=0)
        scene.colorbar(axes, mesh)

    def trace(self, figure: PlainFigure, scene: Stage) -> None:
        values, columns, names = self.grid()
        where = {"x": np.arange(len(columns)), "y": np.arange(len(names)), "z": values, "hoverongaps": False}
        lines = [f"{scene.panel.x}: %{{x}}", f"{scene.panel.y}: %{{y}}", f"{self.label or self.value}: %{{z:.4~g}}"]
        if self.hover is not None:
            lines.append("%{customdata}")
            rows = self.shown
            extra = np.full(values.shape, "", dtype=object)
            extra[pd.factorize(rows["y"])[0], pd.factorize(rows["x"])[0]] = rows["hover"]
            where["customdata"] = extra
        style = {"hovertemplate": "<br>".join(lines) + "<extra></extra>", **scene.screen_scale(figure, "z")}
        dark = np.array([[value == value and scene.scale.ink(value, 0.42) == "white" for value in row] for row in values])
        few = max(values.shape) <= 12
        numbers = _numbers(values, ~dark, "rgb(0,0,0)") if few else {}
        figure.add_trace({"type": "heatmap", **where, **style, **numbers}, **scene.cell)
        if few and dark.any():
            where["z"] = np.where(dark, values, np.nan)
            figure.add_trace({**where, **_SEE_THROUGH, **_numbers(values, dark, "white")}, **scene.cell)
        at, texts = self.ticked(names, scene.shown)
        ticks = {"tickvals": at, "ticktext": texts, "range": [len(names) - 0.5, -0.5]}
        off = {"ticks": "", "showline": False, "ticklabelstandoff": 4}  # labels do not touch the cells
        figure.axis("y", **scene.cell).update(**off, **ticks)
        figure.axis("x", **scene.cell).update(**off)
        behind = {"x0": 0, "x1": 1, "y0": 0, "y1": 1, "xref": "x domain", "yref": "y domain", "layer": "below"}
        figure.add_shape({"type": "rect", "fillcolor": _MISSING, "line": {"width": 0}, **behind}, **scene.cell)
        if hatches := self.hatches():
            row, column = np.array(hatches).T
            figure.add_trace({"type": "bar", "x": column, "y": np.ones(len(row)), "base": row - 0.5, **_HATCH}, **scene.cell)


@dataclass(frozen=True, eq=False)
class Map(Mark):
    """A 2-D map of points coloured by the column `by`: a legend if it holds categories, a colour bar if numbers.

    Points without x, y or `by` are not drawn. Maps of a drawing with the same quantity share one scale.

    Args:
        data: rows, one a point.
        x: the column of the points' x.
        y: the column of the points' y.
        by: the column that colours say.
        label: names the quantity (default: the column's name), or precedes each category in the legend.
        hover: a column shown on hover in plotly instead of `by`.
    """

    data: pd.DataFrame
    x: str
    y: str
    by: str
    label: str = ""
    hover: str | None = None

    def rows(self) -> pd.DataFrame:
        values = self._column("by") if is_categorical(self._column("by")) else self._numbers("by")
        rows = pd.DataFrame({"x": self._column("x"), "y": self._numbers("y"), "value": values})
        return rows if self.hover is None else rows.assign(hover=self._column("hover"))

    def groups(self) -> list[tuple[str, pd.DataFrame]]:
        """The rows of each category, in order of first appearance."""
        groups = self.shown.dropna(subset="value").groupby("value", sort=False, observed=True)
        return [(as_text(category), rows) for category, rows in groups]

    def legend_labels(self) -> list[str]:
        return [] if self.scaled() is not None else [category for category, _ in self.groups()]

    def scaled(self) -> pd.Series | None:
        values = self.shown["value"]
        return None if is_categorical(values) else values.rename(self.label or self.by)

    def _entry(self, category: str) -> str:
        return f"{self.label}: {category}" if self.label else category

    def draw(self, axes: Axes, scene: Stage) -> None:
        size, many = _diameter(len(self.data)), len(self.data) > 5_000
        if scene.scale:
            rows = self.shown.dropna(subset="value")
            x, style = scene.positions(rows["x"]), scene.print_scale()
            shown = axes.scatter(x, rows["y"], s=size**2, c=rows["value"], lw=0, zorder=3, rasterized=many, **style)
            scene.colorbar(axes, shown)
            return
        for category, rows in self.groups():
            x, color = scene.positions(rows["x"]), scene.legend.colors[category]
            (points,) = axes.plot(x, rows["y"], "o", color=color, ms=size, mew=0, zorder=3, rasterized=many)
            scene.legend.enter(self._entry(category), color, points)

    def trace(self, figure: PlainFigure, scene: Stage) -> None:
        # WebGL only for many points, since browsers allow a page few of its contexts.
        kind, size = "scattergl" if len(self.data) > 5_000 else "scatter", 2 * _diameter(len(self.data))
        for category, rows in [("", self.shown.dropna(subset="value"))] if scene.scale else self.groups():
            rows = rows if self.hover else rows.assign(hover=rows["value"])
            style: dict[str, Any] = {"mode": "markers", **scene.hover(rows, self.hover or self.by)}
            if scene.scale:
                marker = {"color": rows["value"].to_numpy(), **scene.screen_scale(figure, "c")}
                style |= {"showlegend": False, "hoverinfo": "text"}
            else:
                marker = {"color": (color := scene.legend.colors[category])}
                style |= scene.legend.entry(self._entry(category), color)
            where = {"x": scene.positions(rows["x"]), "y": rows["y"].to_numpy()}
            figure.add_trace({"type": kind, **where, **style, "marker": {"size": size, **marker}}, **scene.cell)


def _diameter(count: int) -> float:
    """Of one of `count` points on a map, in points."""
    return min(max(60 / math.sqrt(max(count, 1)), 1.2), 4)
