"""A graph of named nodes: boxes with words, and curves between them as wide as what they carry."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pandas as pd

from compolens.figures.marks import Mark
from compolens.figures.stage import Stage

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from compolens.figures.plain import PlainFigure

_STEPS = 24
_FAINT = "#9a9a9a"


@dataclass(frozen=True, eq=False)
class Edges(Mark):
    """Curves that leave a place and arrive at another vertically, as wide as the size of their value.

    Args:
        data: rows, one a curve.
        x0: the column of x where it leaves.
        y0: the column of y there.
        x: the column of x where it arrives.
        y: the column of y there.
        value: the column of what it carries; its size is the width.
        widest: the size that is drawn widest.
        label: its entry in the legend ("": none).
        color: hex colour (None: that of the label).
        dash: dashed instead of solid.
        hover: a column shown on hover in plotly.
        keyed: whether the label has an entry in the legend.
    """

    data: pd.DataFrame
    x0: str
    y0: str
    x: str
    y: str
    value: str
    widest: float
    label: str = ""
    color: str | None = None
    dash: bool = False
    hover: str | None = None
    keyed: bool = True

    def rows(self) -> pd.DataFrame:
        rows = pd.DataFrame({role: self._numbers(role) for role in ("x", "y", "value")})
        return rows if self.hover is None else rows.assign(hover=self._column("hover"))

    def curves(self) -> list[np.ndarray]:
        """(points, 2) of every curve."""
        t = np.linspace(0, 1, _STEPS)
        starts = zip(self._numbers("x0"), self._numbers("y0"), self.shown["x"], self.shown["y"], strict=True)
        smooth = 3 * t**2 - 2 * t**3  # level at both ends, so that a curve is vertical there
        return [np.column_stack([x0 + smooth * (x - x0), y0 + t * (y - y0)]) for x0, y0, x, y in starts]

    def _widths(self, least: float, most: float) -> np.ndarray:
        return least + (most - least) * (self.shown["value"].abs() / self.widest).clip(0, 1).to_numpy()

    def draw(self, axes: Axes, scene: Stage) -> None:
        color = scene.legend.color(self)
        for curve, width in zip(self.curves(), self._widths(0.4, 3.0), strict=True):
            style: dict[str, Any] = {"ls": (0, (2, 1.2)) if self.dash else "-", "alpha": 0.85, "solid_capstyle": "butt"}
            axes.plot(*curve.T, color=color, lw=width, zorder=2, **style)
        if self.keyed:
            from matplotlib.lines import Line2D

            dashes = (0, (2, 1.2)) if self.dash else "-"
            scene.legend.enter(self.label, color, Line2D([], [], color=color, lw=1.5, ls=dashes))

    def trace(self, figure: PlainFigure, scene: Stage) -> None:
        color = scene.legend.color(self)
        words = self.shown.get("hover", pd.Series([""] * len(self.shown)))
        entry = scene.legend.entry(self.label, color) if self.keyed else {"name": scene.shown(self.label), "showlegend": False}
        for at, (curve, width) in enumerate(zip(self.curves(), self._widths(0.8, 7.0), strict=True)):
            line = {"color": color, "width": float(width), "dash": "dot" if self.dash else "solid"}
            told = f"{words.iloc[at]}<br>{self.value}: {self.shown['value'].iloc[at]:.3g}<extra></extra>"
            once = entry if at == 0 else {**entry, "showlegend": False}
            where = {"x": curve[:, 0], "y": curve[:, 1], "mode": "lines", "line": line, "hovertemplate": told}
            figure.add_trace({"type": "scatter", **where, **once}, **scene.cell)


@dataclass(frozen=True, eq=False)
class Nodes(Mark):
    """Words in boxes, over everything else; the axes are not drawn.

    Args:
        data: rows, one a box.
        x: the column of x.
        y: the column of y.
        hover: the column of the words.
        faint: a column of booleans: boxes to be drawn in grey.
        label: of the mark, in the data.
        color: hex colour of the words and boxes that are not faint.
    """

    data: pd.DataFrame
    x: str
    y: str
    hover: str
    faint: str
    label: str = ""
    color: str | None = "#222222"
    narrowest_in: ClassVar[float] = 2.6

    def rows(self) -> pd.DataFrame:
        self._column("faint")
        return pd.DataFrame({"x": self._numbers("x"), "y": self._numbers("y"), "hover": self._column("hover")})

    def legend_labels(self) -> list[str]:
        return []

    def _boxes(self) -> list[tuple[float, float, str, str]]:
        """x, y, words, colour."""
        faint = self._column("faint").astype(bool)
        rows = zip(self.shown["x"], self.shown["y"], self.shown["hover"], faint, strict=True)
        return [(x, y, str(words), _FAINT if grey else str(self.color)) for x, y, words, grey in rows]

    def draw(self, axes: Axes, scene: Stage) -> None:
        for x, y, words, ink in self._boxes():
            box = {"boxstyle": "round,pad=0.25", "facecolor": "white", "edgecolor": ink, "lw": 0.6}
            axes.text(x, y, words, size=5.5, color=ink, ha="center", va="center", zorder=4, bbox=box)
        axes.set_axis_off()
        axes.set(xlim=_around(self.shown["x"], 0.6), ylim=_around(self.shown["y"], 0.5))

    def trace(self, figure: PlainFigure, scene: Stage) -> None:
        for x, y, words, ink in self._boxes():
            style = {"bgcolor": "white", "bordercolor": ink, "borderpad": 3, "font": {"size": 11, "color": ink}}
            figure.add_annotation({"x": x, "y": y, "text": words, "showarrow": False, **style}, **scene.cell)
        figure.axis("x", **scene.cell).update(visible=False, range=_around(self.shown["x"], 0.6))
        figure.axis("y", **scene.cell).update(visible=False, range=_around(self.shown["y"], 0.5))


def _around(values: pd.Series, more: float) -> tuple[float, float]:
    return float(values.min()) - more, float(values.max()) + more
