"""One `Drawing`, three renderings: matplotlib for print, plotly for the screen, a table of what was plotted.

An analysis describes its figure with marks (`Line`, `Points`, `Bars`, ...) over tidy DataFrames, puts them in `Panel`s
and the panels in a `Drawing`. Each mark first reduces its data to canonical columns (`Mark.rows`); both renderers and
`Drawing.frame` start from those rows, so the three show the same numbers. NaN is a gap everywhere, never a zero.

Neither renderer prints the claim or the caption: the paper or report around the figure does, and `save` writes both
next to it. matplotlib and plotly are imported only when a rendering needs them.
"""

from __future__ import annotations

import colorsys
import difflib
import hashlib
import html
import itertools
import json
import math
import textwrap
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pandas as pd

from compolens.checkpoints import write_atomically

if TYPE_CHECKING:
    import plotly.graph_objects as go
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDTHS: Mapping[str, float] = {"column": 3.25, "page": 6.75}
"""Figure widths in inches: one column, and the full text width, of the usual venues."""

ARCHITECTURE_COLORS: Mapping[str, str] = {  # Okabe-Ito; no other label gets one of these unless asked
    "SoftmaxTransformer": "#0072B2",
    "HypernetworkTransformer": "#D55E00",
    "BottleneckMLP": "#009E73",
    "LinearAttention": "#56B4E9",
    "HYLA": "#E69F00",
    "SparseCoding": "#CC79A7",
}
SERIES_COLORS = ("#882255", "#44AA99", "#999933", "#332288", "#CC6677", "#117733", "#AA4499", "#DDCC77")
"""For labels that are not architectures, in order of appearance (Tol's muted scheme, colour-blind safe)."""
CONTROL_COLORS = ("#444444", "#888888", "#666666", "#AAAAAA")
"""Greys for controls and reference lines, so that colour always means a result."""

_RED_BLUE = "#053061 #2166ac #4393c3 #92c5de #d1e5f0 #f7f7f7 #fddbc7 #f4a582 #d6604d #b2182b #67001f"
_VIRIDIS = "#440154 #482878 #3e4989 #31688e #26828e #1f9e89 #35b779 #6ece58 #b5de2b #fde725"
_MISSING = "#d0d0d0"  # behind heat maps: a missing cell must not look like the white in the middle of _RED_BLUE
_DASHES = ((5, 2.5), (1.2, 1.8), (6, 2, 1.2, 2), (10, 3))  # on, off, ... in line widths
_SHARE = 0.8  # of a category's width that its bars, points and band may take
_FRAME = ["panel", "series", "mark", "label", "x", "y", "lo", "hi", "value", "hover"]
_STYLE: dict[Any, Any] = {
    "font.size": 8, "axes.titlesize": 8, "axes.labelsize": 8, "legend.fontsize": 7,
    "xtick.labelsize": 6, "ytick.labelsize": 6, "axes.titlepad": 4, "axes.labelpad": 2,
    "axes.linewidth": 0.6, "xtick.major.width": 0.6, "ytick.major.width": 0.6,
    "xtick.major.size": 2.5, "ytick.major.size": 2.5, "xtick.major.pad": 2, "ytick.major.pad": 2,
    "axes.spines.top": False, "axes.spines.right": False, "legend.frameon": False,
    "pdf.fonttype": 42, "ps.fonttype": 42,  # TrueType: venues reject Type 3, and editors can change the text
}  # fmt: skip


def color_of(name: str) -> str:
    """The hex colour of an architecture: fixed for the built-in ones, else derived from the name alone.

    The same name has the same colour in every figure, process and machine.
    """
    if name in ARCHITECTURE_COLORS:
        return ARCHITECTURE_COLORS[name]
    digest = hashlib.sha256(name.encode()).digest()
    hue, lightness = int.from_bytes(digest[:4], "big") / 2**32, (0.3, 0.42, 0.54)[digest[4] % 3]
    return "#" + "".join(f"{round(255 * c):02X}" for c in colorsys.hls_to_rgb(hue, lightness, 0.55))


# --- marks -----------------------------------------------------------------------------------------------------------


class Mark(ABC):
    """Something drawn in a panel. A new kind of mark is a frozen dataclass with the three methods below.

    `color` is any hex or CSS colour. By default an architecture's label has the architecture's colour, and every other
    label one of its own, which it keeps in all panels of the drawing.
    """

    data: pd.DataFrame
    label: str
    color: str | None = None
    control: ClassVar[bool] = False  # grey by default, unless it shares its label with a result

    def __post_init__(self) -> None:
        self.rows()  # so that a wrong column fails where the mark is written, not later where it is rendered

    @abstractmethod
    def rows(self) -> pd.DataFrame:
        """What is plotted, in data order, under canonical columns: some of x, y, lo, hi, value, hover."""

    @abstractmethod
    def draw(self, axes: Axes, scene: _Scene) -> None:
        """Draw on matplotlib axes."""

    @abstractmethod
    def trace(self, figure: go.Figure, scene: _Scene) -> None:
        """Add to the subplot `scene.cell` of a plotly figure."""

    def legend_labels(self) -> list[str]:
        """The labels that need a colour."""
        return [self.label]

    def scaled(self) -> pd.Series | None:
        """The values shown on a colour scale, if any, named after the quantity."""
        return None

    def _column(self, role: str) -> pd.Series:
        name = getattr(self, role)
        if name not in self.data.columns:
            raise _unknown(f"column for {type(self).__name__}.{role}", name, self.data.columns)
        return self.data[name].reset_index(drop=True)

    def _numbers(self, role: str) -> pd.Series:
        column = self._column(role)
        try:
            return pd.Series(column.to_numpy(dtype=float, na_value=np.nan))
        except (TypeError, ValueError) as error:
            needs = f"{type(self).__name__}.{role} needs a column of numbers"
            got = f"{getattr(self, role)!r} holds {column.dtype}, such as {column.dropna().iloc[0]!r}"
            raise ValueError(f"{needs}; {got}") from error


@dataclass(frozen=True, eq=False)
class Line(Mark):
    """Points joined in row order; a NaN breaks the line. Up to 40 points are also marked one by one."""

    data: pd.DataFrame
    x: str
    y: str
    label: str = ""
    color: str | None = None
    dash: bool = False

    def rows(self) -> pd.DataFrame:
        return pd.DataFrame({"x": self._column("x"), "y": self._numbers("y")})

    def draw(self, axes: Axes, scene: _Scene) -> None:
        rows, color = self.rows(), scene.legend.color(self)
        style: dict[str, Any] = {"ls": (0, _DASHES[0]) if self.dash else "-", "marker": "o" if len(rows) <= 40 else ""}
        (line,) = axes.plot(scene.places(rows["x"]), rows["y"], color=color, lw=1.2, ms=2.2, zorder=3, **style)
        scene.legend.enter(self.label, color, line)

    def trace(self, figure: go.Figure, scene: _Scene) -> None:
        rows, color = self.rows(), scene.legend.color(self)
        where = {"x": scene.places(rows["x"]), "y": rows["y"].to_numpy()}
        line = {"color": color, "width": 2, "dash": _css(_DASHES[0], 2) if self.dash else "solid"}
        style = {"mode": "lines+markers" if len(rows) <= 40 else "lines", "line": line, "marker": {"size": 5}}
        entry = scene.legend.entry(self.label, color)
        figure.add_trace({"type": "scatter", **where, **style, **scene.hover(rows), **entry}, **scene.cell)


@dataclass(frozen=True, eq=False)
class Points(Mark):
    """Separate points. On a categorical axis each label has its own place, and repeats within it are spread out.

    `hover` names a column shown on hover in plotly; `open` marks are for values quoted from elsewhere.
    """

    data: pd.DataFrame
    x: str
    y: str
    label: str = ""
    color: str | None = None
    hover: str | None = None
    open: bool = False

    def rows(self) -> pd.DataFrame:
        rows = pd.DataFrame({"x": self._column("x"), "y": self._numbers("y")})
        return rows if self.hover is None else rows.assign(hover=self._column("hover"))

    def draw(self, axes: Axes, scene: _Scene) -> None:
        rows, color, (x, width) = self.rows(), scene.legend.color(self), scene.seats(self)
        # A white rim separates points from each other and from a bar of the same colour.
        style: dict[str, Any] = {"mfc": "white", "mec": color, "mew": 0.9}
        style = style if self.open else {"mfc": color, "mec": "white", "mew": 0.4}
        room = _size(axes)[0] * width / len(scene.categories or "1")
        (points,) = axes.plot(x, rows["y"], "o", ms=min(max(0.8 * room, 2.9), 4), zorder=4, **style)
        scene.legend.enter(self.label, color, points)

    def trace(self, figure: go.Figure, scene: _Scene) -> None:
        rows, color = self.rows(), scene.legend.color(self)
        where = {"x": scene.seats(self)[0], "y": rows["y"].to_numpy()}
        style: dict[str, Any] = {"symbol": "circle-open", "line": {"width": 1.5}}
        style = style if self.open else {"symbol": "circle", "line": {"width": 0.7, "color": "white"}}
        style = {"mode": "markers", "marker": {"color": color, "size": 8, **style}}
        hover, entry = scene.hover(rows, self.hover), scene.legend.entry(self.label, color)
        figure.add_trace({"type": "scatter", **where, **style, **hover, **entry}, **scene.cell)


@dataclass(frozen=True, eq=False)
class Band(Mark):
    """An interval along x, such as a control's; on a categorical axis, a box around each category."""

    data: pd.DataFrame
    x: str
    lo: str
    hi: str
    label: str = ""
    color: str | None = None
    control: ClassVar[bool] = True

    def rows(self) -> pd.DataFrame:
        return pd.DataFrame({"x": self._column("x"), "lo": self._numbers("lo"), "hi": self._numbers("hi")})

    def outlines(self, scene: _Scene) -> list[np.ndarray]:
        """The shaded polygons, each an (n, 2) array of x and y: one per run without NaN, or per category."""
        rows = self.rows()
        edges = np.column_stack([scene.places(rows["x"]), rows["lo"], rows["hi"]])
        whole = np.isfinite(edges).all(axis=1)
        if scene.categories is not None:
            reach = np.array([[-_SHARE / 2, 0, 0], [_SHARE / 2, 0, 0]])
            runs = [edge + reach for edge in edges[whole]]
        else:
            starts = np.flatnonzero(np.diff(whole)) + 1
            runs = [run for run in np.split(edges, starts) if np.isfinite(run).all() and len(run)]
        return [np.vstack([run[:, [0, 1]], run[::-1, [0, 2]]]) for run in runs]

    def draw(self, axes: Axes, scene: _Scene) -> None:
        from matplotlib.collections import PolyCollection
        from matplotlib.patches import Patch

        color = scene.legend.color(self)
        # The edge keeps a band visible where it is one point wide or has no height.
        style: dict[str, Any] = {"facecolor": color, "edgecolor": color, "alpha": 0.25, "lw": 0.6}
        axes.add_collection(PolyCollection(self.outlines(scene), zorder=2.2, **style))
        axes.autoscale_view()
        scene.legend.enter(self.label, color, Patch(**style))

    def trace(self, figure: go.Figure, scene: _Scene) -> None:
        color, gap = scene.legend.color(self), np.full((1, 2), np.nan)
        closed = [part for outline in self.outlines(scene) for part in (outline, outline[:1], gap)]
        x, y = np.vstack(closed[:-1] or [gap]).T
        line: dict[str, Any] = {"mode": "lines", "line": {"color": color, "width": 1}, "hoverinfo": "skip"}
        fill = {"fill": "toself", "fillcolor": color, "opacity": 0.25}
        entry = scene.legend.entry(self.label, color)
        figure.add_trace({"type": "scatter", "x": x, "y": y, **line, **fill, **entry}, **scene.cell)


@dataclass(frozen=True, eq=False)
class Bars(Mark):
    """Bars over categories, side by side with the panel's other Bars; Points of the same label stand on them.

    `lo` and `hi` name columns with the absolute bounds of error bars, in the units of y; a NaN bound draws none.
    """

    data: pd.DataFrame
    x: str
    y: str
    label: str = ""
    color: str | None = None
    lo: str | None = None
    hi: str | None = None

    def __post_init__(self) -> None:
        _both_or_neither(self)
        super().__post_init__()

    def rows(self) -> pd.DataFrame:
        rows = pd.DataFrame({"x": self._column("x"), "y": self._numbers("y")})
        return rows if self.lo is None else rows.assign(lo=self._numbers("lo"), hi=self._numbers("hi"))

    def error_bars(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """x and y of the ends: lo, hi and a NaN for each error bar.

        Drawn as segments, since both libraries' error bars take differences, which would not keep the exact bounds.
        """
        rows = self.rows()
        if self.lo is None:
            return np.empty(0), np.empty(0)
        ends = np.column_stack([rows["lo"], rows["hi"], np.full(len(rows), np.nan)])
        known = rows[["lo", "hi"]].notna().all(axis=1).to_numpy()
        return np.repeat(x[known], 3), ends[known].ravel()

    def draw(self, axes: Axes, scene: _Scene) -> None:
        from matplotlib.patches import Patch
        from matplotlib.patheffects import withStroke

        color, (x, width) = scene.legend.color(self), scene.seats(self)
        axes.bar(x, self.rows()["y"], width=0.94 * width, color=color, zorder=2)
        halo = [withStroke(linewidth=1.6, foreground="white")]  # for dark bars
        caps: dict[str, Any] = {"marker": "_", "ms": 3.5, "mew": 0.9}
        axes.plot(*self.error_bars(x), color="black", lw=0.9, zorder=3.5, path_effects=halo, **caps)
        scene.legend.enter(self.label, color, Patch(color=color))

    def trace(self, figure: go.Figure, scene: _Scene) -> None:
        rows, color, (x, width) = self.rows(), scene.legend.color(self), scene.seats(self)
        bars = {"type": "bar", "x": x, "y": rows["y"].to_numpy(), "width": 0.94 * width, "marker": {"color": color}}
        figure.add_trace({**bars, **scene.hover(rows), **scene.legend.entry(self.label, color)}, **scene.cell)
        if self.lo is not None:
            x, y = self.error_bars(x)
            line = {"color": "black", "width": 1.5}
            style = {"mode": "lines+markers", "line": line, "marker": {"symbol": "line-ew", "size": 7, "line": line}}
            style |= {"hoverinfo": "skip", **scene.legend.entry(self.label, color)}
            figure.add_trace({"type": "scatter", "x": x, "y": y, **style}, **scene.cell)


@dataclass(frozen=True, eq=False)
class HeatMap(Mark):
    """A grid of colours from long-form rows; categories keep the order of first appearance, the first row on top.

    With `centre` the colours diverge symmetrically around it, else they are sequential. `label` names the quantity
    (default: the column's name); heat maps of a drawing with the same quantity and centre share one scale. Cells carry
    their numbers up to 12 x 12, in print only where these are large enough to read. Cells without a value are grey.
    """

    data: pd.DataFrame
    x: str
    y: str
    value: str
    centre: float | None = None
    label: str = ""

    def __post_init__(self) -> None:
        self.grid()

    def rows(self) -> pd.DataFrame:
        return pd.DataFrame({"x": self._column("x"), "y": self._column("y"), "value": self._numbers("value")})

    def grid(self) -> tuple[np.ndarray, list[Any], list[Any]]:
        """Values (rows, columns) with NaN where there is none, and the categories of the columns and of the rows."""
        rows = self.rows()
        if rows.empty or rows[["x", "y"]].isna().any(axis=None):
            raise ValueError(f"HeatMap needs rows, each with {self.x!r} and {self.y!r}; got none, or one without")
        if (twice := rows.duplicated(["x", "y"])).any():
            x, y = map(_text, rows.loc[twice, ["x", "y"]].iloc[0])
            raise ValueError(f"HeatMap needs one row per cell; got several for {self.x} {x!r} and {self.y} {y!r}")
        (column, columns), (row, names) = pd.factorize(rows["x"]), pd.factorize(rows["y"])
        values = np.full((len(names), len(columns)), np.nan)
        values[row, column] = rows["value"]
        return values, list(columns), list(names)

    def legend_labels(self) -> list[str]:
        return []

    def scaled(self) -> pd.Series | None:
        return self.rows()["value"].rename(self.label or self.value)

    def draw(self, axes: Axes, scene: _Scene) -> None:
        values, columns, names = self.grid()
        edges = np.arange(len(columns) + 1) - 0.5, np.arange(len(names) + 1) - 0.5
        # Vector cells stay sharp in every viewer, but very many of them only make the file heavy.
        mesh = axes.pcolormesh(*edges, values, rasterized=values.size > 10_000, **scene.print_scale())
        axes.set(facecolor=_MISSING, ylim=(len(names) - 0.5, -0.5))
        axes.set_yticks(range(len(names)), list(map(_text, names)))
        axes.spines[:].set_visible(False)
        axes.tick_params(length=0)
        scene.colorbar(axes, mesh)

    def trace(self, figure: go.Figure, scene: _Scene) -> None:
        values, columns, names = self.grid()
        where = {"x": np.arange(len(columns)), "y": np.arange(len(names)), "z": values, "hoverongaps": False}
        lines = [f"{scene.panel.x}: %{{x}}", f"{scene.panel.y}: %{{y}}", f"{self.label or self.value}: %{{z:.4~g}}"]
        style = {"hovertemplate": "<br>".join(lines) + "<extra></extra>", **scene.screen_scale(figure, "z")}
        if max(values.shape) <= 12:
            style |= {"text": _cells(values), "texttemplate": "%{text}"}
        figure.add_trace({"type": "heatmap", **where, **style}, **scene.cell)
        ticks = {"tickvals": where["y"], "ticktext": list(map(_text, names)), "range": [len(names) - 0.5, -0.5]}
        figure.update_yaxes(ticks="", showline=False, **ticks, **scene.cell)
        figure.update_xaxes(ticks="", showline=False, **scene.cell)
        behind = {"x0": 0, "x1": 1, "y0": 0, "y1": 1, "xref": "x domain", "yref": "y domain", "layer": "below"}
        figure.add_shape(type="rect", fillcolor=_MISSING, line_width=0, **behind, **scene.cell)


@dataclass(frozen=True, eq=False)
class Map(Mark):
    """A 2-D map of points coloured by the column `by`: a legend if it holds categories, a colour bar if numbers.

    `label` names the quantity (default: the column's name), or precedes each category in the legend. Maps of a drawing
    with the same quantity share one scale. Points without x, y or `by` are not drawn. `hover` names a column shown on
    hover in plotly instead of `by`.
    """

    data: pd.DataFrame
    x: str
    y: str
    by: str
    label: str = ""
    hover: str | None = None

    def rows(self) -> pd.DataFrame:
        values = self._column("by") if _categorical(self._column("by")) else self._numbers("by")
        rows = pd.DataFrame({"x": self._column("x"), "y": self._numbers("y"), "value": values})
        return rows if self.hover is None else rows.assign(hover=self._column("hover"))

    def groups(self) -> list[tuple[str, pd.DataFrame]]:
        """The rows of each category, in order of first appearance."""
        groups = self.rows().dropna(subset="value").groupby("value", sort=False, observed=True)
        return [(_text(category), rows) for category, rows in groups]

    def legend_labels(self) -> list[str]:
        return [] if self.scaled() is not None else [category for category, _ in self.groups()]

    def scaled(self) -> pd.Series | None:
        values = self.rows()["value"]
        return None if _categorical(values) else values.rename(self.label or self.by)

    def _entry(self, category: str) -> str:
        return f"{self.label}: {category}" if self.label else category

    def draw(self, axes: Axes, scene: _Scene) -> None:
        size, many = _diameter(len(self.data)), len(self.data) > 5_000
        if scene.scale:
            rows = self.rows().dropna(subset="value")
            x, style = scene.places(rows["x"]), scene.print_scale()
            shown = axes.scatter(x, rows["y"], s=size**2, c=rows["value"], lw=0, zorder=3, rasterized=many, **style)
            scene.colorbar(axes, shown)
            return
        for category, rows in self.groups():
            x, color = scene.places(rows["x"]), scene.legend.colors[category]
            (points,) = axes.plot(x, rows["y"], "o", color=color, ms=size, mew=0, zorder=3, rasterized=many)
            scene.legend.enter(self._entry(category), color, points)

    def trace(self, figure: go.Figure, scene: _Scene) -> None:
        # WebGL only for many points, since browsers allow a page few of its contexts.
        kind, size = "scattergl" if len(self.data) > 5_000 else "scatter", 2 * _diameter(len(self.data))
        for category, rows in [("", self.rows().dropna(subset="value"))] if scene.scale else self.groups():
            rows = rows if self.hover else rows.assign(hover=rows["value"])
            style: dict[str, Any] = {"mode": "markers", **scene.hover(rows, self.hover or self.by)}
            if scene.scale:
                marker = {"color": rows["value"].to_numpy(), **scene.screen_scale(figure, "c")}
                style |= {"showlegend": False, "hoverinfo": "text"}
            else:
                marker = {"color": (color := scene.legend.colors[category])}
                style |= scene.legend.entry(self._entry(category), color)
            where = {"x": scene.places(rows["x"]), "y": rows["y"].to_numpy()}
            figure.add_trace({"type": kind, **where, **style, "marker": {"size": size, **marker}}, **scene.cell)


@dataclass(frozen=True, eq=False)
class Rule(Mark):
    """A reference line at y = `value` across the panel, such as a floor or a ceiling, with its interval if known."""

    value: float
    label: str = ""
    color: str | None = None
    dash: bool = True
    lo: float | None = None
    hi: float | None = None
    control: ClassVar[bool] = True

    def __post_init__(self) -> None:
        _both_or_neither(self)

    def rows(self) -> pd.DataFrame:
        rows = pd.DataFrame({"y": [float(self.value)]})
        return rows if self.lo is None or self.hi is None else rows.assign(lo=float(self.lo), hi=float(self.hi))

    def draw(self, axes: Axes, scene: _Scene) -> None:
        color = scene.legend.color(self)
        if self.lo is not None and self.hi is not None:
            span = axes.axhspan(self.lo, self.hi, color=color, alpha=0.15, lw=0, zorder=0.5)
            scene.legend.enter(self.label, color, span)
        dash = (0, scene.legend.dash(self)) if self.dash else "-"
        scene.legend.enter(self.label, color, axes.axhline(self.value, color=color, lw=1, ls=dash, zorder=2.4))

    def trace(self, figure: go.Figure, scene: _Scene) -> None:
        color, across = scene.legend.color(self), {"x0": 0, "x1": 1, "xref": "x domain", **scene.cell}
        entry = scene.legend.entry(self.label, color)
        line = {"color": color, "width": 1.5, "dash": _css(scene.legend.dash(self), 1.5) if self.dash else "solid"}
        figure.add_shape(type="line", y0=self.value, y1=self.value, line=line, layer="above", **across, **entry)
        if self.lo is not None:
            style = {"fillcolor": color, "opacity": 0.15, "line_width": 0, "legendgroup": entry["legendgroup"]}
            figure.add_shape(type="rect", y0=self.lo, y1=self.hi, layer="below", **style, **across)


# --- drawings --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Panel:
    """Marks on common axes. `x` and `y` are axis labels, units included; `y_range` fixes the y axis.

    The x axis is categorical if any mark's x column holds strings or the panel has Bars; categories keep the order of
    first appearance. A HeatMap has its panel to itself, and a panel has at most one colour bar.
    """

    title: str
    x: str
    y: str
    marks: Sequence[Mark]
    y_range: tuple[float, float] | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "marks", tuple(self.marks))
        if not self.marks:
            raise ValueError(f"Panel {self.title!r} has no marks; it needs at least one")
        scales = sum(mark.scaled() is not None for mark in self.marks)
        if scales > 1 or (len(self.marks) > 1 and any(isinstance(mark, HeatMap) for mark in self.marks)):
            got = ", ".join(type(mark).__name__ for mark in self.marks)
            raise ValueError(f"Panel {self.title!r} has {got}; allowed: one colour bar, and a HeatMap only by itself")


@dataclass(frozen=True, eq=False)
class Drawing:
    """A figure: panels in reading order that together show one claim.

    `columns` is the number of panels per row; by default up to 3, or fewer where the printed figure is narrow.
    """

    claim: str
    panels: Sequence[Panel]
    caption: str = ""
    columns: int | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "panels", tuple(self.panels))
        if not self.panels:
            raise ValueError(f"Drawing {self.claim!r} has no panels; it needs at least one")
        if self.columns is not None and self.columns < 1:
            raise ValueError(f"Drawing.columns is {self.columns}; allowed: None, or 1 and more")

    def frame(self) -> pd.DataFrame:
        """Everything plotted, one row per plotted element, in drawing order.

        Columns: panel (its title), series (position of the mark in the drawing, from 0), mark (its class), label, then
        x, y, lo, hi, value and hover, each NaN for marks that do not have it.
        """
        marks = [(panel, mark) for panel in self.panels for mark in panel.marks]
        parts = [
            mark.rows().assign(panel=panel.title, series=i, mark=type(mark).__name__, label=mark.label)
            for i, (panel, mark) in enumerate(marks)
        ]
        return pd.concat(parts, ignore_index=True).reindex(columns=_FRAME)

    def matplotlib(self, width: str = "page") -> Figure:
        """The figure for print, `WIDTHS[width]` inches wide and as high as its content needs.

        `save` embeds fonts as TrueType; a `savefig` of your own follows your rcParams instead.
        """
        if width not in WIDTHS:
            raise _unknown("width", width, WIDTHS)
        with _print_style():
            return _Page(self, WIDTHS[width]).figure

    def _repr_png_(self) -> bytes:
        """What a notebook shows for a drawing that is a cell's last value."""
        content = BytesIO()
        figure = self.matplotlib()
        figure.set_layout_engine("none")
        figure.savefig(content, format="png", dpi=130)
        return content.getvalue()

    def plotly(self) -> go.Figure:
        """The interactive figure: as wide as its container, with a fixed height in pixels."""
        from plotly.subplots import make_subplots

        columns = min(self.columns or 3, len(self.panels))
        scenes = _scenes(self.panels, columns)
        bars = {scene.column for scene in scenes if scene.bar}
        titles = ["<br>".join(textwrap.wrap(panel.title, max(100 // columns, 16))) for panel in self.panels]
        # Heights in px: titles and axis labels around each row of axes. Widths are shares of a page of about 1000 px.
        rows, head, axes, foot = scenes[-1].row, 30 + 18 * max(title.count("<br>") for title in titles), 260, 70
        body = rows * axes + (rows - 1) * (head + foot)
        legend = 24 * math.ceil(sum(len(label) + 8 for label in scenes[0].legend.colors) / 120)
        figure = make_subplots(
            rows=rows,
            cols=columns,
            specs=[
                [{} if at < len(scenes) else None for at in range(i, i + columns)] for i in range(0, rows * columns, columns)
            ],
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
            barmode="overlay",  # bars come with places of their own
            height=head + 20 + body + foot + legend,
            margin={"t": head + 20, "b": foot, "l": 70, "r": 90 if columns in bars else 20},
            legend={"orientation": "h", "yref": "container", "y": 0, "yanchor": "bottom", "x": 0},
            hoverlabel={"namelength": -1},
        )


def save(
    drawing: Drawing, folder: str | Path, name: str, width: str = "page", sidecar: Mapping[str, Any] | None = None
) -> list[Path]:
    """Write name.pdf, name.png (300 dpi), name.csv (`Drawing.frame`) and name.json; return the four paths.

    The json holds claim, caption and everything in `sidecar`, with NaN and infinities as null. No file is touched
    unless all four could be rendered, and each is complete before it takes its name. The same drawing gives the same
    bytes, so under version control a figure changes only when its content does.
    """
    notes, extra = {"claim": drawing.claim, "caption": drawing.caption}, dict(sidecar or {})
    if clash := {key for key in notes if key in extra and extra[key] != notes[key]}:
        raise ValueError(f"sidecar contradicts the drawing's own {' and '.join(sorted(clash))}")
    figure, pdf, png = drawing.matplotlib(width), BytesIO(), BytesIO()
    figure.set_layout_engine("none")  # laid out already; pdf and png come out alike, and sooner
    with _print_style():
        figure.savefig(pdf, format="pdf", dpi=300, metadata={"Title": drawing.claim, "CreationDate": None})
        figure.savefig(png, format="png", dpi=300, metadata={"Title": drawing.claim})
    contents = {
        "pdf": pdf.getvalue(),
        "png": png.getvalue(),
        "csv": drawing.frame().to_csv(index=False, lineterminator="\n").encode(),
        "json": (json.dumps(_plain(notes | extra), indent=2, ensure_ascii=False) + "\n").encode(),
    }
    paths = [Path(folder) / f"{name}.{suffix}" for suffix in contents]
    for path, content in zip(paths, contents.values(), strict=True):
        write_atomically(path, content)
    return paths


# --- what both renderers share ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Scale:
    """A colour scale from `lo` to `hi` over evenly spaced hex `stops`."""

    lo: float
    hi: float
    stops: tuple[str, ...]
    title: str

    def ink(self, value: float) -> str:
        """Black or white, whichever reads better on the colour of `value`."""
        rgb = np.array([[int(stop[i : i + 2], 16) / 255 for stop in self.stops] for i in (1, 3, 5)])
        at = (value - self.lo) / (self.hi - self.lo) * (len(self.stops) - 1)
        red, green, blue = (np.interp(at, range(len(self.stops)), channel) for channel in rgb)
        return "black" if 0.299 * red + 0.587 * green + 0.114 * blue > 0.55 else "white"


class _Legend:
    """Colours and legend entries, shared by the panels of a drawing."""

    def __init__(self, marks: Sequence[Mark]) -> None:
        marks_of: dict[str, list[Mark]] = {}
        for mark in marks:
            for label in mark.legend_labels():
                marks_of.setdefault(label, []).append(mark)
        self.colors = {label: ARCHITECTURE_COLORS.get(label, "") for label in marks_of}  # in order of appearance
        for label, owners in marks_of.items():
            self.colors[label] = self.colors[label] or next((mark.color for mark in owners if mark.color), "")
        free = iter([color for color in SERIES_COLORS if color not in self.colors.values()])
        greys = itertools.cycle(CONTROL_COLORS)
        for label, owners in marks_of.items():
            if not self.colors[label]:
                control = all(mark.control for mark in owners)
                self.colors[label] = next(greys) if control else next(free, "") or color_of(label)
        self.rules = list(dict.fromkeys(mark.label for mark in marks if isinstance(mark, Rule)))
        self.entries: dict[tuple[str, str], list[Any]] = {}  # by label and colour, filled while drawing

    def color(self, mark: Mark) -> str:
        default = CONTROL_COLORS[0] if mark.control and not mark.label else self.colors[mark.label]
        return mark.color or default

    def dash(self, rule: Rule) -> tuple[float, ...]:
        """Rules differ in their dashes too, for print without colour."""
        return _DASHES[self.rules.index(rule.label) % len(_DASHES)]

    def enter(self, label: str, color: str, handle: Any) -> None:
        """Add a matplotlib artist; kinds of marks with the same label and colour share an entry."""
        handles = self.entries.setdefault((label, color), [])
        if type(handle) not in map(type, handles):
            handles.append(handle)

    def entry(self, label: str, color: str) -> dict[str, Any]:
        """plotly attributes: the first trace of a label stands for all of them, and switches all."""
        first = (label, color) not in self.entries
        self.entries[label, color] = []
        return {"name": label, "legendgroup": label or None, "showlegend": bool(label) and first}


class _Scene:
    """One panel, with its place in the drawing and what the drawing decides: legend, colour scale, places on x."""

    def __init__(self, panel: Panel, cell: tuple[int, int], legend: _Legend, scale: _Scale | None, bar: bool) -> None:
        self.panel, self.legend, self.scale = panel, legend, scale
        self.row, self.column = cell  # from 1
        self.bar = bar  # whether the scale's colour bar stands at this panel
        columns = [rows["x"] for rows in (mark.rows() for mark in panel.marks) if "x" in rows]
        named = any(isinstance(mark, Bars | HeatMap) for mark in panel.marks) or any(map(_categorical, columns))
        found = dict.fromkeys(x for column in columns for x in column.dropna())
        self.categories = list(found) if named and found else None
        numbers = np.concatenate([np.empty(0), *map(self.places, columns)])
        self.numbers = numbers[np.isfinite(numbers)]
        self.whole = len(self.numbers) > 0 and bool((self.numbers == self.numbers.round()).all())
        self.taken: dict[float, list[tuple[str, int]]] = {}  # seats by place
        for mark in panel.marks:
            if isinstance(mark, Bars | Points) and self.categories:
                for at in dict.fromkeys(self.places(mark.rows()["x"].dropna()).tolist()):
                    seats = self.taken.setdefault(at, [])
                    if self._seat(mark) not in seats:
                        seats.append(self._seat(mark))

    @property
    def heat(self) -> HeatMap | None:
        return mark if isinstance(mark := self.panel.marks[0], HeatMap) else None

    @property
    def cell(self) -> dict[str, int]:
        return {"row": self.row, "col": self.column}

    def places(self, x: pd.Series) -> np.ndarray:
        """Positions on the x axis: the numbers themselves, or the index of each category; NaN where x is missing."""
        if self.categories is None:
            return x.to_numpy(dtype=float, na_value=np.nan)
        index = {category: i for i, category in enumerate(self.categories)}
        return np.array([np.nan if pd.isna(value) else index[value] for value in x], dtype=float)

    def seats(self, mark: Bars | Points) -> tuple[np.ndarray, float]:
        """Positions moved aside so that nothing in a category overlaps, and the width of one seat."""
        x = self.places(mark.rows()["x"])
        if not self.taken:
            return x, _SHARE
        bars = any(isinstance(other, Bars) for other in self.panel.marks)
        width = min(_SHARE / max(map(len, self.taken.values())), _SHARE if bars else 0.22)
        seat = self._seat(mark)
        aside = {at: seats.index(seat) - (len(seats) - 1) / 2 for at, seats in self.taken.items() if seat in seats}
        x += [width * aside.get(at, 0.0) for at in x.tolist()]
        if isinstance(mark, Points):
            # Multiples of the golden ratio spread any number of repeats evenly, and need no random state.
            at = pd.Series(x)
            spread = (at.groupby(at).cumcount() * 0.618034 + 0.5) % 1 - 0.5
            x = np.where(at.duplicated(keep=False), x + 0.7 * width * spread, x)
        return x, width

    def _seat(self, mark: Bars | Points) -> tuple[str, int]:
        """Bars each have a seat; Points share that of their label's first Bars, or of its other Points."""
        before = self.panel.marks[: self.panel.marks.index(mark)] if isinstance(mark, Bars) else ()
        return mark.label, sum(isinstance(other, Bars) and other.label == mark.label for other in before)

    def hover(self, rows: pd.DataFrame, extra: str | None = None) -> dict[str, Any]:
        """plotly attributes that show x, y, error bounds and the column `extra` on hover."""
        names = {"x": self.panel.x, "y": self.panel.y, "lo": "from", "hi": "to", "hover": extra}
        shown = [(html.escape(str(name)), rows[key]) for key, name in names.items() if key in rows]
        lines = ["<br>".join(f"{name}: {html.escape(_text(c[i]))}" for name, c in shown) for i in rows.index]
        return {"hovertext": lines, "hoverinfo": "text+name"}

    def x_axis(self) -> dict[str, Any]:
        """plotly attributes of the x axis."""
        if self.categories is not None:
            n = len(self.categories)
            return {"range": [-0.5, n - 0.5], "tickvals": np.arange(n), "ticktext": list(map(_text, self.categories))}
        return {"dtick": 1} if self.whole and np.ptp(self.numbers) <= 12 else {}

    def print_scale(self) -> dict[str, Any]:
        """matplotlib attributes of the colour scale."""
        from matplotlib.colors import LinearSegmentedColormap

        assert self.scale is not None
        colors = LinearSegmentedColormap.from_list("compolens", list(self.scale.stops))
        return {"cmap": colors, "vmin": self.scale.lo, "vmax": self.scale.hi}

    def screen_scale(self, figure: go.Figure, prefix: str) -> dict[str, Any]:
        """plotly attributes of the colour scale; `prefix` is "z" for heat maps, "c" for markers."""
        assert self.scale is not None
        stops = [[i / (len(self.scale.stops) - 1), stop] for i, stop in enumerate(self.scale.stops)]
        style = {f"{prefix}min": self.scale.lo, f"{prefix}max": self.scale.hi, "colorscale": stops}
        subplot = figure.get_subplot(self.row, self.column)
        (_, right), (bottom, top) = subplot.xaxis.domain, subplot.yaxis.domain
        place = {"x": right + 0.008, "xpad": 0, "y": (bottom + top) / 2, "len": top - bottom, "ypad": 0}
        title = {"text": self.scale.title, "side": "right"}
        return {**style, "showscale": self.bar, "colorbar": {**place, "title": title, "thickness": 12}}

    def colorbar(self, axes: Axes, shown: Any) -> None:
        if self.bar and self.scale is not None:
            bar = axes.figure.colorbar(shown, ax=axes, fraction=0.1, aspect=25, pad=0.02)
            bar.outline.set_visible(False)
            bar.set_label(self.scale.title, size=7)


def _scenes(panels: Sequence[Panel], columns: int) -> list[_Scene]:
    legend, scales = _Legend([mark for panel in panels for mark in panel.marks]), _scales(panels)
    # A scale has one colour bar per row of panels, right of the last panel that uses it.
    last = {(i // columns, scale): i for i, scale in enumerate(scales)}
    scenes = []
    for i, (panel, scale) in enumerate(zip(panels, scales, strict=True)):
        bar = scale is not None and last[i // columns, scale] == i
        scenes.append(_Scene(panel, (i // columns + 1, i % columns + 1), legend, scale, bar))
    return scenes


def _scales(panels: Sequence[Panel]) -> list[_Scale | None]:
    """The colour scale of each panel: one for all panels that show the same quantity around the same centre."""
    keys: list[Any] = [None] * len(panels)
    shown: dict[Any, list[pd.Series]] = {}
    for i, panel in enumerate(panels):
        for mark in panel.marks:
            if (values := mark.scaled()) is not None:
                keys[i] = values.name, getattr(mark, "centre", None)
                shown.setdefault(keys[i], []).append(values)
    scales: dict[Any, _Scale | None] = {None: None}
    for (quantity, centre), parts in shown.items():
        known = np.concatenate(parts)
        known = known[np.isfinite(known)]
        if centre is not None:
            reach = np.abs(known - centre).max(initial=0) or 1
            lo, hi, stops = centre - reach, centre + reach, _RED_BLUE
        else:
            lo, hi, stops = known.min(initial=np.inf), known.max(initial=-np.inf), _VIRIDIS
            if not lo < hi:  # one value, or none
                lo, hi = (lo - 0.5, lo + 0.5) if len(known) else (0, 1)
        scales[quantity, centre] = _Scale(float(lo), float(hi), tuple(stops.split()), str(quantity))
    return [scales[key] for key in keys]


# --- the printed page ------------------------------------------------------------------------------------------------


class _Page:
    """Lays a drawing out for print. Lengths are in points, 1/72 inch, unless they say otherwise."""

    def __init__(self, drawing: Drawing, width_in: float) -> None:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
        from matplotlib.layout_engine import ConstrainedLayoutEngine

        # Narrower panels would have no room for their labels or colour bars.
        narrowest_in = 2.2 if any(mark.scaled() is not None for p in drawing.panels for mark in p.marks) else 1.6
        columns = min(drawing.columns or max(1, min(3, int(width_in / narrowest_in))), len(drawing.panels))
        self.scenes = _scenes(drawing.panels, columns)
        rows = self.scenes[-1].row
        layout = ConstrainedLayoutEngine(w_pad=0.03, h_pad=0.03, wspace=0.02, hspace=0.03)
        self.figure = Figure(figsize=(width_in, 2 * rows), layout=layout)
        FigureCanvasAgg(self.figure)
        grid = self.figure.add_gridspec(rows, columns)
        self.axes = [self.figure.add_subplot(grid[scene.row - 1, scene.column - 1]) for scene in self.scenes]
        for axes, scene in zip(self.axes, self.scenes, strict=True):
            self._draw(axes, scene)
        layout.execute(self.figure)
        # Now that widths are known, text can be wrapped; after that, the figure's height follows from the axes'.
        height = max(self._height(axes, scene) for axes, scene in zip(self.axes, self.scenes, strict=True))
        for axes, scene in zip(self.axes, self.scenes, strict=True):
            self._fit(axes, scene, height)
        self.figure.set_figheight((rows * (height + 120) + self._legend()) / 72)  # enough to measure what else it takes
        layout.execute(self.figure)
        surplus = min(_size(axes)[1] for axes in self.axes) - height
        self.figure.set_figheight(self.figure.get_figheight() - rows * surplus / 72)
        layout.execute(self.figure)
        for axes, scene in zip(self.axes, self.scenes, strict=True):
            self._annotate(axes, scene)

    def _draw(self, axes: Axes, scene: _Scene) -> None:
        from matplotlib.ticker import MaxNLocator

        for mark in scene.panel.marks:
            mark.draw(axes, scene)
        left = [other for other in self.scenes if (other.row, other.column + 1) == (scene.row, scene.column)]
        if not left or left[0].panel.y != scene.panel.y:  # else it would repeat its neighbour's
            axes.set_ylabel(scene.panel.y)
        if scene.panel.y_range is not None:
            axes.set_ylim(*scene.panel.y_range)
        if scene.categories is not None:
            axes.set(xlim=(-0.5, len(scene.categories) - 0.5), xticks=[])
        elif scene.whole:
            axes.xaxis.set_major_locator(MaxNLocator("auto", integer=True, steps=[1, 2, 4, 5, 10]))

    def _height(self, axes: Axes, scene: _Scene) -> float:
        """The height that suits these axes: a little less than their width, with space for the rows of a heat map."""
        rows = len(scene.heat.grid()[2]) if scene.heat else 0
        return min(max(0.75 * _size(axes)[0], 8.0 * rows, 80), 150)

    def _fit(self, axes: Axes, scene: _Scene, height: float) -> None:
        """Wrap, turn or thin out text so that it fits axes of this height."""
        width = _size(axes)[0]
        title = _wrap(scene.panel.title, 8, width)
        axes.set_title(title, size=min(8, max(5, 8 * width / max(_breadth(title, 8), 1))))  # for words wider than this
        axes.set_xlabel(_wrap(scene.panel.x, 8, width))
        axes.set_ylabel(_wrap(axes.get_ylabel(), 8, height))
        if scene.heat:
            names = list(map(_text, scene.heat.grid()[2]))
            step = math.ceil(7 * len(names) / height)
            axes.set_yticks(range(0, len(names), step), names[::step])
        if not scene.categories:
            return
        texts, slot = list(map(_text, scene.categories)), width / len(scene.categories)
        folded = [_wrap(text, 6, slot - 6) for text in texts]
        widest = max(_breadth(text, 6) for text in folded) + 6
        step, style = 1, dict[str, Any]()
        if widest <= slot and max(text.count("\n") for text in folded) < 3:
            texts = folded
        elif max(map(len, texts)) <= 3:  # short ones, such as layers, can be left out
            step = math.ceil(widest / slot)
        else:
            step, style = math.ceil(7 / slot), {"rotation": 90}
            if slot >= 11:  # points between the lines of text, with room for their slant
                style = {"rotation": 40, "ha": "right", "rotation_mode": "anchor"}
        axes.set_xticks(range(0, len(texts), step), texts[::step], **style)

    def _legend(self) -> float:
        """Add one legend below all panels, in as few rows as fit the width; return its height."""
        entries = [(label, tuple(kinds)) for (label, _), kinds in self.scenes[0].legend.entries.items() if label]
        handles: list[Any] = [kinds for _, kinds in entries]  # the kinds of one entry are drawn on top of each other
        available, height = 72 * self.figure.get_figwidth(), 0.0
        labels = [_wrap(label, 7, available - 40) for label, _ in entries]
        for columns in dict.fromkeys(math.ceil(len(entries) / rows) for rows in range(1, len(entries) + 1)):
            style: dict[str, Any] = {"loc": "outside lower center", "columnspacing": 1.2, "handletextpad": 0.5}
            legend = self.figure.legend(handles, labels, ncols=columns, **style)
            box = legend.get_window_extent()
            height = box.height * 72 / self.figure.dpi
            if box.width * 72 / self.figure.dpi <= available or columns == 1:
                break
            legend.remove()
        return height

    def _annotate(self, axes: Axes, scene: _Scene) -> None:
        """Write numbers into the cells of a small heat map, unless they would be too small to read."""
        if not scene.heat or not scene.scale or max((values := scene.heat.grid()[0]).shape) > 12:
            return
        texts, (width, height) = _cells(values), _size(axes)
        widest = max(_breadth(text, 1) for line in texts for text in [*line, "0"])
        size = min(6, 0.8 * width / values.shape[1] / widest, 0.8 * height / values.shape[0])
        for (i, j), value in np.ndenumerate(values) if size >= 4 else ():
            axes.text(j, i, texts[i][j], size=size, color=scene.scale.ink(value), ha="center", va="center")


@contextmanager
def _print_style() -> Iterator[None]:
    """matplotlib's defaults plus ours, whatever style the caller has set; theirs comes back afterwards."""
    import matplotlib

    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(_STYLE)
        yield


def _size(axes: Axes) -> tuple[float, float]:
    """Width and height in points, as last laid out."""
    figure: Any = axes.figure
    width, height = figure.get_size_inches() * axes.get_position().size * 72
    return float(width), float(height)


def _breadth(text: str, size: float) -> float:
    """The printed width of a text's widest line in points, in our own style."""
    return size * max((_line(line) for line in text.split("\n") if line.strip()), default=0.0)


@lru_cache(4096)
def _line(text: str) -> float:
    """Its width at a size of 1 point. Panels of one figure ask for the same labels again and again, and outlines are slow."""
    from matplotlib.textpath import TextPath

    return float(TextPath((0, 0), text, size=100).get_extents().width / 100)


def _wrap(text: str, size: float, width: float) -> str:
    """Break a text of this font size into lines of at most `width`, words permitting; both in points."""
    breadth = _breadth(text, size)
    if breadth <= width:
        return text
    longest = max(map(len, text.split()), default=1)
    for characters in range(max(math.ceil(1.1 * len(text) * width / breadth), longest), longest - 1, -1):
        wrapped = textwrap.fill(text, characters, break_long_words=False)
        if _breadth(wrapped, size) <= width:
            break
    return wrapped


# --- small things ----------------------------------------------------------------------------------------------------


def _unknown(what: str, got: object, allowed: Iterable[object]) -> ValueError:
    names = [str(name) for name in allowed]
    near = difflib.get_close_matches(str(got), names)
    hint = f" Did you mean {' or '.join(map(repr, near))}?" if near else ""
    return ValueError(f"Unknown {what}: {got!r}.{hint} Allowed: {', '.join(map(repr, names)) or 'none'}.")


def _both_or_neither(mark: Bars | Rule) -> None:
    if (mark.lo is None) != (mark.hi is None):
        raise ValueError(f"{type(mark).__name__} got lo={mark.lo!r} and hi={mark.hi!r}; allowed: both or neither")


def _categorical(column: pd.Series) -> bool:
    known = column.dropna().infer_objects()
    return len(known) > 0 and (not pd.api.types.is_numeric_dtype(known) or pd.api.types.is_bool_dtype(known))


def _text(value: object) -> str:
    return f"{value:.6g}" if isinstance(value, float | np.floating) else str(value)


def _cells(values: np.ndarray) -> list[list[str]]:
    """The numbers of a grid, with two significant digits of the largest; missing ones empty."""
    known = values[np.isfinite(values)]
    top = np.abs(known).max(initial=0)
    decimals = 0 if (known == known.round()).all() else min(max(2 - math.ceil(math.log10(top)), 0), 4)
    form = f".{decimals}f" if top == 0 or 1e-3 <= top < 1e5 else ".1e"
    rounded = [[f"{value:{form}}" if math.isfinite(value) else "" for value in line] for line in values]
    zero = f"{0:{form}}"
    return [[zero if text == f"-{zero}" else text.replace("-", "\N{MINUS SIGN}") for text in line] for line in rounded]


def _css(dash: tuple[float, ...], width: float) -> str:
    return ",".join(f"{width * part:g}px" for part in dash)


def _diameter(count: int) -> float:
    """Of one of `count` points on a map, in points."""
    return min(max(60 / math.sqrt(max(count, 1)), 1.2), 4)


def _plain(value: Any) -> Any:
    """A copy that JSON can hold: numpy and paths become plain, NaN and infinities null."""
    match value:
        case Mapping():
            return {str(key): _plain(item) for key, item in value.items()}
        case np.ndarray() | np.generic():
            return _plain(value.tolist())
        case list() | tuple():
            return [_plain(item) for item in value]
        case float() if not math.isfinite(value):
            return None
        case Path():
            return str(value)
    return value
