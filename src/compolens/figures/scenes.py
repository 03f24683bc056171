"""What both renderers share: a drawing's legend and colour scales, and every panel's positions on x."""

from __future__ import annotations

import html
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from compolens.figures.colors import ARCHITECTURE_COLORS, CONTROL_COLORS, SERIES_COLORS, color_of
from compolens.figures.maps import HeatMap
from compolens.figures.marks import DASHES, LINED, SHARE, Bars, Line, Mark, Points, Rule
from compolens.figures.panels import Panel
from compolens.figures.words import as_text, displayed, is_categorical

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from compolens.figures.plain import PlainFigure

_RED_BLUE = "#053061 #2166ac #4393c3 #92c5de #d1e5f0 #f7f7f7 #fddbc7 #f4a582 #d6604d #b2182b #67001f"
SHORT = 6
"""Letters of a colour bar's title that plotly would put among the numbers beside the bar: it stands above."""
_VIRIDIS = "#440154 #482878 #3e4989 #31688e #26828e #1f9e89 #35b779 #6ece58 #b5de2b #fde725"


@dataclass(frozen=True)
class Scale:
    """A colour scale over evenly spaced colours.

    Args:
        lo: the value of the first colour.
        hi: the value of the last.
        stops: hex colours.
        title: the quantity.
    """

    lo: float
    hi: float
    stops: tuple[str, ...]
    title: str

    def ink(self, value: float, level: float = 0.55) -> str:
        """Black or white, whichever reads better on the colour of `value`.

        Args:
            value: what the colour stands for.
            level: brightness above which text is black. Between 0.42 and 0.55 both can be read in print; on a screen black has
                the higher contrast there.

        Returns:
            The colour of text.
        """
        rgb = np.array([[int(stop[i : i + 2], 16) / 255 for stop in self.stops] for i in (1, 3, 5)])
        at = (value - self.lo) / (self.hi - self.lo) * (len(self.stops) - 1)
        red, green, blue = (np.interp(at, range(len(self.stops)), channel) for channel in rgb)
        return "black" if 0.299 * red + 0.587 * green + 0.114 * blue > level else "white"


class Legend:
    """Colours and legend entries, shared by the panels of a drawing.

    Args:
        marks: all of the drawing.
        labels: name -> what is shown for it.
        series: hex colours for labels that have none.
    """

    def __init__(self, marks: Sequence[Mark], labels: Mapping[str, str], series: Sequence[str] = SERIES_COLORS) -> None:
        self.labels = labels
        marks_of: dict[str, list[Mark]] = {}
        for mark in marks:
            for label in mark.legend_labels():
                marks_of.setdefault(label, []).append(mark)
        self.colors = {label: ARCHITECTURE_COLORS.get(label, "") for label in marks_of}  # in order of appearance
        for label, owners in marks_of.items():
            self.colors[label] = self.colors[label] or next((mark.color for mark in owners if mark.color), "")
        free = iter([color for color in series if color not in self.colors.values()])
        greys = itertools.cycle(CONTROL_COLORS)
        for label, owners in marks_of.items():
            if not self.colors[label]:
                control = all(mark.control for mark in owners)
                self.colors[label] = next(greys) if control else next(free, "") or color_of(label)
        self.rules = list(dict.fromkeys(mark.label for mark in marks if isinstance(mark, Rule)))
        self.entries: dict[tuple[str, str], list[Any]] = {}  # by label and colour, filled while drawing

    def color(self, mark: Mark) -> str:
        """The colour of `mark`: its own, that of its label, or grey."""
        default = CONTROL_COLORS[0] if mark.control and not mark.label else self.colors[mark.label]
        return mark.color or default

    def dash(self, rule: Rule) -> tuple[float, ...]:
        """The dashes of `rule`; rules differ in them too, for print without colour."""
        return DASHES[self.rules.index(rule.label) % len(DASHES)]

    def enter(self, label: str, color: str, handle: Any) -> None:
        """Add a matplotlib artist; kinds of marks with the same label and colour share an entry.

        Args:
            label: the entry.
            color: hex colour.
            handle: the artist.
        """
        label = displayed(label, self.labels)
        handles = self.entries.setdefault((label, color), [])
        if type(handle) not in map(type, handles):
            handles.append(handle)

    def entry(self, label: str, color: str) -> dict[str, Any]:
        """plotly attributes: the first trace of a label stands for all of them, and switches all.

        Args:
            label: the entry.
            color: hex colour.

        Returns:
            Keyword arguments of a trace.
        """
        label = displayed(label, self.labels)
        first = (label, color) not in self.entries
        self.entries[label, color] = []
        return {"name": label, "legendgroup": label or None, "showlegend": bool(label) and first}


class Scene:
    """One panel, with its row and column in the drawing and what the drawing decides: legend, colour scale, positions on x.

    Args:
        panel: the panel.
        cell: (row, column), from 1.
        legend: the drawing's.
        scale: the panel's colour scale (None: it has none).
        bar: whether the scale's colour bar is beside this panel.
    """

    def __init__(self, panel: Panel, cell: tuple[int, int], legend: Legend, scale: Scale | None, bar: bool) -> None:
        self.panel, self.legend, self.scale = panel, legend, scale
        self.row, self.column = cell  # from 1
        self.bar = bar  # whether the scale's colour bar stands at this panel
        columns = [rows["x"] for rows in (mark.shown for mark in panel.marks) if "x" in rows]
        named = any(isinstance(mark, Bars | HeatMap) for mark in panel.marks) or any(map(is_categorical, columns))
        found = dict.fromkeys(x for column in columns for x in column.dropna())
        self.categories = list(found) if named and found else None
        numbers = np.concatenate([np.empty(0), *map(self.positions, columns)])
        self.numbers = numbers[np.isfinite(numbers)]
        self.whole = len(self.numbers) > 0 and bool((self.numbers == self.numbers.round()).all())
        self.taken: dict[float, list[tuple[str, int]]] = {}  # seats by position
        for mark in panel.marks:
            if isinstance(mark, Bars | Points) and self.categories:
                for at in dict.fromkeys(self.positions(mark.shown["x"].dropna()).tolist()):
                    seats = self.taken.setdefault(at, [])
                    if self._seat(mark) not in seats:
                        seats.append(self._seat(mark))

    def shown(self, name: object) -> str:
        """`name` as this drawing shows it."""
        return displayed(name, self.legend.labels)

    @property
    def heat(self) -> HeatMap | None:
        return mark if isinstance(mark := self.panel.marks[0], HeatMap) else None

    @property
    def cell(self) -> dict[str, int]:
        return {"row": self.row, "col": self.column}

    def positions(self, x: pd.Series) -> np.ndarray:
        """Positions on the x axis: the numbers themselves, or the index of each category.

        Args:
            x: the x of rows.

        Returns:
            (n,) floats; NaN where x is missing.
        """
        if self.categories is None:
            return x.to_numpy(dtype=float, na_value=np.nan)
        index = {category: i for i, category in enumerate(self.categories)}
        return np.array([np.nan if pd.isna(value) else index[value] for value in x], dtype=float)

    def seats(self, mark: Bars | Points) -> tuple[np.ndarray, float]:
        """Positions moved aside so that nothing in a category overlaps.

        Args:
            mark: whose rows are to be seated.

        Returns:
            (n,) positions, and the width of one seat, in units of the x axis.
        """
        x = self.positions(mark.shown["x"])
        if not self.taken:
            return x, SHARE
        bars = any(isinstance(other, Bars) for other in self.panel.marks)
        most = max(map(len, self.taken.values()))
        lined = not bars and most > 2 and any(isinstance(other, Line) for other in self.panel.marks)
        width = min((LINED if lined else SHARE) / most, SHARE if bars else 0.22)
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
        """plotly attributes that show x, y, error bounds and a further column on hover.

        Args:
            rows: of a mark.
            extra: what the further column is called (None: there is none).

        Returns:
            Keyword arguments of a trace.
        """
        names = {"x": self.panel.x, "y": self.panel.y, "lo": "from", "hi": "to", "hover": extra}
        shown = {html.escape(str(name)): rows[key] for key, name in names.items() if key in rows}
        told = [[f"{name}: {html.escape(as_text(value))}" for value in column] for name, column in shown.items()]
        lines = ["<br>".join(parts) for parts in zip(*told, strict=True)]
        return {"hovertext": lines, "hoverinfo": "text+name"}

    def x_axis(self) -> dict[str, Any]:
        """plotly attributes of the x axis."""
        if self.categories is not None:
            n = len(self.categories)
            names = self.categories
            at, texts = self.heat.ticked(names, self.shown) if self.heat else (list(range(n)), list(map(self.shown, names)))
            return {"range": [-0.5, n - 0.5], "tickvals": at, "ticktext": texts}
        return {"dtick": 1} if self.whole and np.ptp(self.numbers) <= 12 else {}

    def print_scale(self) -> dict[str, Any]:
        """matplotlib attributes of the colour scale."""
        from matplotlib.colors import LinearSegmentedColormap

        assert self.scale is not None
        colors = LinearSegmentedColormap.from_list("compolens", list(self.scale.stops))
        return {"cmap": colors, "vmin": self.scale.lo, "vmax": self.scale.hi}

    def screen_scale(self, figure: PlainFigure, prefix: str) -> dict[str, Any]:
        """plotly attributes of the colour scale.

        Args:
            figure: in which the panel is.
            prefix: "z" for heat maps, "c" for markers.

        Returns:
            Keyword arguments of a trace.
        """
        assert self.scale is not None
        stops = [[i / (len(self.scale.stops) - 1), stop] for i, stop in enumerate(self.scale.stops)]
        style = {f"{prefix}min": self.scale.lo, f"{prefix}max": self.scale.hi, "colorscale": stops}
        (_, right), (bottom, top) = figure.domain(**self.cell)
        place = {"x": right + 0.008, "xpad": 0, "y": (bottom + top) / 2, "len": top - bottom, "ypad": 0}
        title = {"text": self.scale.title, "side": "top" if len(self.scale.title) <= SHORT else "right"}
        return {**style, "showscale": self.bar, "colorbar": {**place, "title": title, "thickness": 12}}

    def colorbar(self, axes: Axes, shown: Any) -> None:
        """Draw the colour bar, where this panel has it.

        Args:
            axes: of the panel.
            shown: the artist that has the colours.
        """
        if self.bar and self.scale is not None:
            bar = axes.figure.colorbar(shown, ax=axes, fraction=0.1, aspect=25, pad=0.02)
            bar.outline.set_visible(False)
            bar.set_label(self.scale.title, size=7)


def scenes_of(
    panels: Sequence[Panel],
    columns: int,
    labels: Mapping[str, str],
    series: Sequence[str] = SERIES_COLORS,
    among: Sequence[Panel] | None = None,
) -> list[Scene]:
    """The panels, each with its position and with what the drawing decides for all of them.

    Args:
        panels: in reading order.
        columns: panels per row.
        labels: name -> what is shown for it, where the drawing names things otherwise.
        series: colours of labels that have none of their own, in order of appearance.
        among: all panels of the drawing, where these are one page of it: colours are the same on every page.

    Returns:
        One scene per panel.
    """
    everything = panels if among is None else among
    legend = Legend([mark for panel in everything for mark in panel.marks], labels, series)
    scales = _scales(everything)[everything.index(panels[0]) :][: len(panels)] if among is not None else _scales(panels)
    # A scale has one colour bar per row of panels, right of the last panel that uses it.
    last = {(i // columns, scale): i for i, scale in enumerate(scales)}
    scenes = []
    for i, (panel, scale) in enumerate(zip(panels, scales, strict=True)):
        bar = scale is not None and last[i // columns, scale] == i
        scenes.append(Scene(panel, (i // columns + 1, i % columns + 1), legend, scale, bar))
    return scenes


def _scales(panels: Sequence[Panel]) -> list[Scale | None]:
    """The colour scale of each panel: one for all panels that show the same quantity around the same centre."""
    keys: list[Any] = [None] * len(panels)
    shown: dict[Any, list[pd.Series]] = {}
    for i, panel in enumerate(panels):
        for mark in panel.marks:
            if (values := mark.scaled()) is not None:
                keys[i] = values.name, getattr(mark, "centre", None)
                shown.setdefault(keys[i], []).append(values)
    scales: dict[Any, Scale | None] = {None: None}
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
        scales[quantity, centre] = Scale(float(lo), float(hi), tuple(stops.split()), str(quantity))
    return [scales[key] for key in keys]
