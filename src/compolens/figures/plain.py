"""A figure as plotly.js takes it: dictionaries and arrays that no validator looks at, which makes it quick to build."""

from __future__ import annotations

import base64
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import plotly.graph_objects as go


class PlainFigure:
    """Rows of axes with their traces and shapes.

    Args:
        titles: of the axes, in reading order; the last row may be shorter.
        columns: axes per row.
        between: shares of the figure's (width, height) between two columns and between two rows.
    """

    def __init__(self, titles: Sequence[str], columns: int, between: tuple[float, float]) -> None:
        self.columns, self.rows = columns, math.ceil(len(titles) / columns)
        self.between = between
        self.data: list[dict[str, Any]] = []
        self.layout: dict[str, Any] = {"shapes": [], "annotations": []}
        for i, title in enumerate(titles):
            row, col = i // columns + 1, i % columns + 1
            x, y = self.domain(row, col)
            self.axis("x", row, col).update(anchor=self._reference("y", row, col), domain=x)
            self.axis("y", row, col).update(anchor=self._reference("x", row, col), domain=y)
            if title:
                place = {"x": (x[0] + x[1]) / 2, "y": y[1], "xref": "paper", "yref": "paper", "xanchor": "center"}
                note = {**place, "text": title, "yanchor": "bottom", "showarrow": False, "font": {"size": 14}}
                self.layout["annotations"].append(note)

    def domain(self, row: int, col: int) -> tuple[list[float], list[float]]:
        """Where axes stand.

        Args:
            row: from 1, at the top.
            col: from 1.

        Returns:
            From where to where, across and upwards, as shares of the figure.
        """
        found = []
        for at, count, gap in ((col - 1, self.columns, self.between[0]), (self.rows - row, self.rows, self.between[1])):
            size = (1 - gap * (count - 1)) / count
            found.append([at * (size + gap), min(at * (size + gap) + size, 1.0)])
        return found[0], found[1]

    def _reference(self, letter: str, row: int, col: int) -> str:
        number = (row - 1) * self.columns + col
        return letter if number == 1 else f"{letter}{number}"

    def axis(self, letter: str, row: int, col: int) -> dict[str, Any]:
        """plotly attributes of an axis, to be changed in place.

        Args:
            letter: "x" or "y".
            row: from 1.
            col: from 1.

        Returns:
            The attributes.
        """
        reference = self._reference(letter, row, col)
        axis: dict[str, Any] = self.layout.setdefault(f"{letter}axis{reference[1:]}", {})
        return axis

    def add_trace(self, trace: Mapping[str, Any], row: int, col: int) -> None:
        """Add a trace.

        Args:
            trace: plotly attributes.
            row: of its axes, from 1.
            col: of its axes, from 1.
        """
        self.data.append({**trace, **{f"{a}axis": self._reference(a, row, col) for a in "xy"}})

    def add_shape(self, shape: Mapping[str, Any], row: int, col: int) -> None:
        """Add a shape.

        Args:
            shape: plotly attributes; its references are "x" or "x domain", and so for y, whichever axes it stands in.
            row: of its axes, from 1.
            col: of its axes, from 1.
        """
        self.layout["shapes"].append({**shape, **self._references(shape, row, col)})

    def add_annotation(self, note: Mapping[str, Any], row: int, col: int) -> None:
        """Add a text.

        Args:
            note: plotly attributes; its references are as in `add_shape`.
            row: of its axes, from 1.
            col: of its axes, from 1.
        """
        self.layout["annotations"].append({**note, **self._references(note, row, col)})

    def _references(self, given: Mapping[str, Any], row: int, col: int) -> dict[str, str]:
        return {f"{a}ref": given.get(f"{a}ref", a).replace(a, self._reference(a, row, col), 1) for a in "xy"}

    def plotly(self) -> go.Figure:
        """The figure as plotly for Python has it, validated.

        Returns:
            The figure, with plotly's own template "simple_white".
        """
        import plotly.graph_objects as go

        return go.Figure({"data": self.data, "layout": {**self.layout, "template": "simple_white"}})

    def json(self) -> dict[str, Any]:
        """The figure as JSON has it, without a template.

        Returns:
            {"data": ..., "layout": ...} of dictionaries, lists, strings, finite numbers and None. Arrays of numbers are
            base64, as plotly.js reads them.
        """
        return {"data": [_plain(trace) for trace in self.data], "layout": _plain(self.layout)}


def _plain(value: Any) -> Any:
    match value:
        case dict():
            return {key: _plain(item) for key, item in value.items() if item is not None}
        case np.ndarray() if value.dtype.kind in "iuf":
            return _encoded(value)
        case np.ndarray() | np.generic():
            return _plain(value.tolist())
        case list() | tuple():
            return [_plain(item) for item in value]
        case float() if not math.isfinite(value):
            return None
    return value


def _encoded(values: np.ndarray) -> dict[str, str]:
    """Numbers as plotly.js reads them; JavaScript has no integers of 64 bits."""
    kept = np.ascontiguousarray(values, dtype="<f8" if values.dtype.kind == "f" else "<i4")
    shape = {} if kept.ndim == 1 else {"shape": ", ".join(map(str, kept.shape))}
    return {"dtype": kept.dtype.str[1:], "bdata": base64.b64encode(kept.tobytes()).decode("ascii"), **shape}
