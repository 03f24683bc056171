"""What is drawn in a panel, each mark in both renderers from the same rows."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pandas as pd

from compolens.figures.stage import Stage
from compolens.figures.words import unknown

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from compolens.figures.plain import PlainFigure

DASHES = (  # on, off, ... in line widths
    (5, 2.5), (1.2, 1.8), (6, 2, 1.2, 2), (10, 3), (6, 2, 1.2, 2, 1.2, 2), (2.5, 2.5), (10, 2, 2.5, 2), (1.2, 4),
)  # fmt: skip
SHARE = 0.8  # of a category's width that its bars, points and band may take
LINED = 0.3  # the same of points of three labels and more beside lines, so that it stays clear where they belong


class Mark(ABC):
    """Something drawn in a panel. A new kind of mark is a frozen dataclass with the three methods below.

    `color` is any hex or CSS colour. By default an architecture's label has the architecture's colour, and every other
    label one of its own, which it keeps in all panels of the drawing.
    """

    data: pd.DataFrame
    label: str
    color: str | None = None
    narrowest_in: ClassVar[float] = 1.6  # width of a panel, in inches, below which the drawing has fewer columns
    control: ClassVar[bool] = False  # grey by default, unless it shares its label with a result

    def __post_init__(self) -> None:
        self.shown  # noqa: B018 - so that a wrong column fails where the mark is written, not later where it is rendered

    @abstractmethod
    def rows(self) -> pd.DataFrame:
        """What is plotted, in data order, under canonical columns: some of x, y, lo, hi, value, hover."""

    @cached_property
    def shown(self) -> pd.DataFrame:
        """`rows`, reduced once: both renderers ask for them again and again. Not to be changed in place."""
        return self.rows()

    @abstractmethod
    def draw(self, axes: Axes, scene: Stage) -> None:
        """Draw on matplotlib axes.

        Args:
            axes: those of the panel.
            scene: what the panel and the drawing decide.
        """

    @abstractmethod
    def trace(self, figure: PlainFigure, scene: Stage) -> None:
        """Add to the subplot `scene.cell` of a plotly figure.

        Args:
            figure: the figure.
            scene: what the panel and the drawing decide.
        """

    def legend_labels(self) -> list[str]:
        """The labels that need a colour."""
        return [self.label]

    def scaled(self) -> pd.Series | None:
        """The values shown on a colour scale, if any, named after the quantity."""
        return None

    def _column(self, role: str) -> pd.Series:
        name = getattr(self, role)
        if name not in self.data.columns:
            raise unknown(f"column for {type(self).__name__}.{role}", name, self.data.columns)
        column, index = self.data[name], self.data.index
        counted = isinstance(index, pd.RangeIndex) and (index.start, index.step) == (0, 1)
        return column if counted else column.reset_index(drop=True)  # a copy each, where there is something to reset

    def _numbers(self, role: str) -> pd.Series:
        column = self._column(role)
        try:
            return pd.Series(column.to_numpy(dtype=float, na_value=np.nan))
        except (TypeError, ValueError) as error:
            needs = f"{type(self).__name__}.{role} needs a column of numbers"
            got = f"{getattr(self, role)!r} holds {column.dtype}, such as {column.dropna().iloc[0]!r}"
            raise ValueError(f"{needs}; {got}") from error


def _shade(axes: Axes, outlines: list[np.ndarray], **style: Any) -> None:
    """Polygons for print."""
    from matplotlib.collections import PolyCollection

    axes.add_collection(PolyCollection(outlines, **style))
    axes.autoscale_view()


def _fill(figure: PlainFigure, scene: Stage, outlines: list[np.ndarray], color: str, width: float, **style: Any) -> None:
    """The same on a page, with a line of this width around them."""
    x, y = outlined(outlines)
    where = {"type": "scatter", "x": x, "y": y, "mode": "lines", "line": {"color": color, "width": width}}
    figure.add_trace({**where, "fill": "toself", "fillcolor": color, "hoverinfo": "skip", **style}, **scene.cell)


@dataclass(frozen=True, eq=False)
class Line(Mark):
    """Points joined in row order; a NaN breaks the line. Up to 40 points are also marked one by one.

    Args:
        data: rows, one a point.
        x: the column of x.
        y: the column of y.
        label: its entry in the legend ("": none).
        color: hex colour (None: that of the label).
        dash: dashed instead of solid.
        lo: the column of the lower ends of a band around the line, in the units of y (None: no band); NaN leaves it out.
        hi: the column of its upper ends.
        keyed: whether the label has an entry in the legend; without, it still stands in the data and on hover.
    """

    data: pd.DataFrame
    x: str
    y: str
    label: str = ""
    color: str | None = None
    dash: bool = False
    lo: str | None = None
    hi: str | None = None
    keyed: bool = True

    def __post_init__(self) -> None:
        _both_or_neither(self)
        super().__post_init__()

    def rows(self) -> pd.DataFrame:
        ends = {} if self.lo is None else {"lo": self._numbers("lo"), "hi": self._numbers("hi")}
        return pd.DataFrame({"x": self._column("x"), "y": self._numbers("y"), **ends})

    def _band(self, scene: Stage) -> list[np.ndarray]:
        """The shaded polygons around the line; none without a band."""
        rows = self.rows()
        return [] if self.lo is None else ribbons(scene.positions(rows["x"]), rows["lo"], rows["hi"])

    def draw(self, axes: Axes, scene: Stage) -> None:
        rows, color = self.shown, scene.legend.color(self)
        if shaded := self._band(scene):
            _shade(axes, shaded, facecolor=color, edgecolor="none", alpha=0.2, zorder=2.1)
        style: dict[str, Any] = {"ls": (0, DASHES[0]) if self.dash else "-", "marker": "o" if len(rows) <= 40 else ""}
        (line,) = axes.plot(scene.positions(rows["x"]), rows["y"], color=color, lw=1.2, ms=2.2, zorder=3, **style)
        if self.dash:  # in the legend, a point would hide what is between two dashes
            from matplotlib.lines import Line2D

            line = Line2D([], [], color=color, lw=1.2, ls=style["ls"])
        scene.legend.enter(self.label if self.keyed else "", color, line)

    def trace(self, figure: PlainFigure, scene: Stage) -> None:
        rows, color = self.shown, scene.legend.color(self)
        if shaded := self._band(scene):
            group = scene.shown(self.label) or None
            _fill(figure, scene, shaded, color, width=0, opacity=0.2, showlegend=False, legendgroup=group)
        where = {"x": scene.positions(rows["x"]), "y": rows["y"].to_numpy()}
        line = {"color": color, "width": 2, "dash": _css(DASHES[0], 2) if self.dash else "solid"}
        style = {"mode": "lines+markers" if len(rows) <= 40 else "lines", "line": line, "marker": {"size": 5}}
        entry = scene.legend.entry(self.label, color) if self.keyed else {"name": scene.shown(self.label), "showlegend": False}
        figure.add_trace({"type": "scatter", **where, **style, **scene.hover(rows), **entry}, **scene.cell)


@dataclass(frozen=True, eq=False)
class Points(Mark):
    """Separate points. On a categorical axis each label has its own position, and repeats within it are spread out; many
    labels beside lines stay near the middle of the category. Points beyond a panel's `y_range` are triangles at its end.

    Args:
        data: rows, one a point.
        x: the column of x.
        y: the column of y.
        label: its entry in the legend ("": none).
        color: hex colour (None: that of the label).
        hover: a column shown on hover in plotly.
        open: open marks, for values quoted from elsewhere.
        keyed: whether the label has an entry in the legend; without, it still stands in the data and on hover.
    """

    data: pd.DataFrame
    x: str
    y: str
    label: str = ""
    color: str | None = None
    hover: str | None = None
    open: bool = False
    keyed: bool = True

    def rows(self) -> pd.DataFrame:
        told = {} if self.hover is None else {"hover": self._column("hover")}
        return pd.DataFrame({"x": self._column("x"), "y": self._numbers("y"), **told})

    def draw(self, axes: Axes, scene: Stage) -> None:
        rows, color, (x, width) = self.shown, scene.legend.color(self), scene.seats(self)
        # A white rim separates points from each other and from a bar of the same colour.
        style: dict[str, Any] = {"mfc": "white", "mec": color, "mew": 0.9}
        style = style if self.open else {"mfc": color, "mec": "white", "mew": 0.4}
        room = size_of(axes)[0] * width / len(scene.categories or "1")
        (points,) = axes.plot(x, rows["y"], "o", ms=min(max(0.8 * room, 2.9), 4), zorder=4, **style)
        scene.legend.enter(self.label if self.keyed else "", color, points)
        for end, out in _beyond(rows["y"], scene):
            style |= {"marker": "v" if end == min(scene.panel.y_range) else "^", "ms": 3.5, "zorder": 4.2, "clip_on": False}
            axes.plot(x[out], np.full(out.sum(), end), ls="", **style)

    def trace(self, figure: PlainFigure, scene: Stage) -> None:
        rows, color = self.shown, scene.legend.color(self)
        where = {"x": scene.seats(self)[0], "y": rows["y"].to_numpy()}
        style: dict[str, Any] = {"symbol": "circle-open", "line": {"width": 1.5}}
        style = style if self.open else {"symbol": "circle", "line": {"width": 0.7, "color": "white"}}
        style = {"mode": "markers", "marker": {"color": color, "size": 8, **style}}
        hover = scene.hover(rows, self.hover)
        entry = scene.legend.entry(self.label, color) if self.keyed else {"name": scene.shown(self.label), "showlegend": False}
        for end, out in _beyond(rows["y"], scene):
            turned = "triangle-down" if end == min(scene.panel.y_range) else "triangle-up"
            style["marker"]["symbol"] = np.where(out, turned, style["marker"]["symbol"])
            where["y"] = np.where(out, end, where["y"])
            style["cliponaxis"] = False
        figure.add_trace({"type": "scatter", **where, **style, **hover, **entry}, **scene.cell)


@dataclass(frozen=True, eq=False)
class Band(Mark):
    """An interval along x, such as a control's; on a categorical axis, a box around each category.

    Args:
        data: rows along x.
        x: the column of x.
        lo: the column of the lower ends.
        hi: the column of the upper ends.
        label: its entry in the legend ("": none).
        color: hex colour (None: that of the label).
    """

    data: pd.DataFrame
    x: str
    lo: str
    hi: str
    label: str = ""
    color: str | None = None
    control: ClassVar[bool] = True

    def rows(self) -> pd.DataFrame:
        return pd.DataFrame({"x": self._column("x"), "lo": self._numbers("lo"), "hi": self._numbers("hi")})

    def outlines(self, scene: Stage) -> list[np.ndarray]:
        """The shaded polygons: one per run without NaN, or per category.

        Args:
            scene: says where x is on the axis.

        Returns:
            (n, 2) arrays of x and y.
        """
        rows = self.shown
        x = scene.positions(rows["x"])
        if scene.categories is None:
            return ribbons(x, rows["lo"], rows["hi"])
        edges = np.column_stack([x, rows["lo"], rows["hi"]])
        return [_around(edge + _REACH) for edge in edges[np.isfinite(edges).all(axis=1)]]

    def draw(self, axes: Axes, scene: Stage) -> None:
        from matplotlib.patches import Patch

        color = scene.legend.color(self)
        # The edge keeps a band visible where it is one point wide or has no height.
        style: dict[str, Any] = {"facecolor": color, "edgecolor": color, "alpha": 0.25, "lw": 0.6}
        _shade(axes, self.outlines(scene), zorder=2.2, **style)
        scene.legend.enter(self.label, color, Patch(**style))

    def trace(self, figure: PlainFigure, scene: Stage) -> None:
        color = scene.legend.color(self)
        _fill(figure, scene, self.outlines(scene), color, width=1, opacity=0.25, **scene.legend.entry(self.label, color))


@dataclass(frozen=True, eq=False)
class Bars(Mark):
    """Bars over categories, side by side with the panel's other Bars; Points of the same label stand on them. A bar that goes
    on beyond a panel's `y_range` has a triangle there, and its value at its other end.

    Args:
        data: rows, one a bar.
        x: the column of categories.
        y: the column of heights.
        label: its entry in the legend ("": none).
        color: hex colour (None: that of the label).
        lo: the column of the error bars' lower ends, in the units of y (None: no error bars); NaN draws none.
        hi: the column of their upper ends.
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
        ends = {} if self.lo is None else {"lo": self._numbers("lo"), "hi": self._numbers("hi")}
        return pd.DataFrame({"x": self._column("x"), "y": self._numbers("y"), **ends})

    def error_bars(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """x and y of the ends: lo, hi and a NaN for each error bar.

        Drawn as segments, since both libraries' error bars take differences, which would not keep the exact bounds.

        Args:
            x: (n,) positions of the bars.

        Returns:
            x and y, three numbers for each error bar.
        """
        rows = self.shown
        if self.lo is None:
            return np.empty(0), np.empty(0)
        ends = np.column_stack([rows["lo"], rows["hi"], np.full(len(rows), np.nan)])
        known = rows[["lo", "hi"]].notna().all(axis=1).to_numpy()
        return np.repeat(x[known], 3), ends[known].ravel()

    def _cut(self, scene: Stage, x: np.ndarray) -> list[tuple[float, float, float, bool]]:
        """x, value, end of the axis and whether that is its upper end: of bars that go on beyond it."""
        y = self.shown["y"]
        return [
            (float(x[i]), float(y.iloc[i]), end, end == max(scene.panel.y_range))
            for end, out in _beyond(y, scene)
            for i in np.flatnonzero(out)
        ]

    def draw(self, axes: Axes, scene: Stage) -> None:
        from matplotlib.patches import Patch
        from matplotlib.patheffects import withStroke

        color, (x, width) = scene.legend.color(self), scene.seats(self)
        axes.bar(x, self.shown["y"], width=0.94 * width, color=color, zorder=2)
        halo = [withStroke(linewidth=1.6, foreground="white")]  # for dark bars
        caps: dict[str, Any] = {"marker": "_", "ms": 3.5, "mew": 0.9}
        axes.plot(*self.error_bars(x), color="black", lw=0.9, zorder=3.5, path_effects=halo, **caps)
        for at, value, end, up in self._cut(scene, x):
            axes.plot([at], [end], marker="^" if up else "v", ms=3, color="black", clip_on=False, zorder=5)
            root, above = _beside(scene, end, up)
            style: dict[str, Any] = {"va": "bottom" if above else "top", "rotation": 90, "size": 5, "zorder": 5}
            aside: dict[str, Any] = {"xytext": (0, 3 if above else -3), "textcoords": "offset points", "ha": "center"}
            axes.annotate(cut_text(value, up), (at, root), **aside, **style)
        scene.legend.enter(self.label, color, Patch(color=color))

    def trace(self, figure: PlainFigure, scene: Stage) -> None:
        rows, color, (x, width) = self.shown, scene.legend.color(self), scene.seats(self)
        bars = {"type": "bar", "x": x, "y": rows["y"].to_numpy(), "width": 0.94 * width, "marker": {"color": color}}
        figure.add_trace({**bars, **scene.hover(rows), **scene.legend.entry(self.label, color)}, **scene.cell)
        for at, value, end, up in self._cut(scene, x):
            root, above = _beside(scene, end, up)
            text = {"text": cut_text(value, up), "textangle": -90, "showarrow": False, "font": {"size": 10}}
            figure.add_annotation({**text, "x": at, "y": root, "yanchor": "bottom" if above else "top"}, **scene.cell)
        if self.lo is not None:
            x, y = self.error_bars(x)
            line = {"color": "black", "width": 1.5}
            style = {"mode": "lines+markers", "line": line, "marker": {"symbol": "line-ew", "size": 7, "line": line}}
            style |= {"hoverinfo": "skip", **scene.legend.entry(self.label, color)}
            figure.add_trace({"type": "scatter", "x": x, "y": y, **style}, **scene.cell)


@dataclass(frozen=True, eq=False)
class Rule(Mark):
    """A reference line across the panel, such as a floor or a ceiling, with its interval if known.

    Args:
        value: its y.
        label: its entry in the legend ("": none).
        color: hex colour (None: that of the label).
        dash: dashed instead of solid.
        lo: lower end of its interval (None: no interval).
        hi: upper end of its interval.
    """

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

    def draw(self, axes: Axes, scene: Stage) -> None:
        color = scene.legend.color(self)
        if self.lo is not None and self.hi is not None:
            span = axes.axhspan(self.lo, self.hi, color=color, alpha=0.15, lw=0, zorder=0.5)
            scene.legend.enter(self.label, color, span)
        dash = (0, scene.legend.dash(self)) if self.dash else "-"
        scene.legend.enter(self.label, color, axes.axhline(self.value, color=color, lw=1, ls=dash, zorder=2.4))

    def trace(self, figure: PlainFigure, scene: Stage) -> None:
        color, across = scene.legend.color(self), {"x0": 0, "x1": 1, "xref": "x domain"}
        entry = scene.legend.entry(self.label, color)
        line = {"color": color, "width": 1.5, "dash": _css(scene.legend.dash(self), 1.5) if self.dash else "solid"}
        shape = {"type": "line", "y0": self.value, "y1": self.value, "line": line, "layer": "above"}
        shape["opacity"] = 1  # plotly's template has 0.3
        figure.add_shape({**shape, **across, **entry}, **scene.cell)
        if self.lo is not None:
            style = {"fillcolor": color, "opacity": 0.15, "line": {"width": 0}, "legendgroup": entry["legendgroup"]}
            shape = {"type": "rect", "y0": self.lo, "y1": self.hi, "layer": "below"}
            figure.add_shape({**shape, **style, **across}, **scene.cell)


_REACH = np.array([[-SHARE / 2, 0, 0], [SHARE / 2, 0, 0]])
"""From the middle of a category to both ends of its box."""


def ribbons(x: np.ndarray, lo: pd.Series, hi: pd.Series) -> list[np.ndarray]:
    """The polygons between two lines, one per run of rows without NaN.

    Args:
        x: (n,) positions.
        lo: (n,) lower ends.
        hi: (n,) upper ends.

    Returns:
        (m, 2) arrays of x and y.
    """
    edges = np.column_stack([x, lo, hi])
    runs = np.split(edges, np.flatnonzero(np.diff(np.isfinite(edges).all(axis=1))) + 1)
    return [_around(run) for run in runs if len(run) and np.isfinite(run).all()]


def _around(run: np.ndarray) -> np.ndarray:
    return np.vstack([run[:, [0, 1]], run[::-1, [0, 2]]])


def outlined(polygons: list[np.ndarray]) -> np.ndarray:
    """x and y of closed outlines with a NaN between each two, as plotly fills them.

    Args:
        polygons: (m, 2) arrays.

    Returns:
        (2, n); one NaN where there are no polygons.
    """
    gap = np.full((1, 2), np.nan)
    closed = [part for outline in polygons for part in (outline, outline[:1], gap)]
    return np.vstack(closed[:-1] or [gap]).T


def _both_or_neither(mark: Line | Bars | Rule) -> None:
    if (mark.lo is None) != (mark.hi is None):
        raise ValueError(f"{type(mark).__name__} got lo={mark.lo!r} and hi={mark.hi!r}; allowed: both or neither")


def _beyond(y: pd.Series, scene: Stage) -> list[tuple[float, np.ndarray]]:
    """Ends of the panel's y axis, each with which values lie beyond it; none where nothing does."""
    if scene.panel.y_range is None:
        return []
    low, high = sorted(scene.panel.y_range)
    found = [(low, (y < low).to_numpy()), (high, (y > high).to_numpy())]
    return [(float(end), out) for end, out in found if out.any()]


def _beside(scene: Stage, end: float, up: bool) -> tuple[float, bool]:
    """Where the value of a bar that is cut stands, and whether above that: at its root, or at its end if there is no room."""
    low, high = sorted(scene.panel.y_range)
    return (0.0, not up) if low < 0 < high else (end, up)


def cut_text(value: float, up: bool) -> str:
    """What stands at a bar that is cut.

    Args:
        value: its height.
        up: whether it goes on upwards.

    Returns:
        The height, with an arrow that points to where the bar goes on, once the text is turned by 90 degrees.
    """
    number = f"{value:.2f}".replace("-", "\N{MINUS SIGN}")
    return f"{number} \N{RIGHTWARDS ARROW}" if up else f"\N{LEFTWARDS ARROW} {number}"


def _css(dash: tuple[float, ...], width: float) -> str:
    return ",".join(f"{width * part:g}px" for part in dash)


def size_of(axes: Axes) -> tuple[float, float]:
    """Width and height of `axes` in points, as last laid out."""
    figure: Any = axes.figure
    width, height = figure.get_size_inches() * axes.get_position().size * 72
    return float(width), float(height)
