"""Panels with marks make a drawing; a drawing is shown, or saved in four files."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from compolens.figures.page import Page, print_style
from compolens.figures.panels import Panel
from compolens.figures.screen import on_screen
from compolens.figures.words import unknown
from compolens.foundation.files import write_atomically

if TYPE_CHECKING:
    import plotly.graph_objects as go
    from matplotlib.figure import Figure

WIDTHS: Mapping[str, float] = {"column": 3.25, "page": 6.75}
"""Figure widths in inches: one column, and the full text width, of the usual venues."""

_FRAME = ["panel", "series", "mark", "label", "x", "y", "lo", "hi", "value", "hover"]


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
            mark.shown.assign(panel=panel.title, series=i, mark=type(mark).__name__, label=mark.label)
            for i, (panel, mark) in enumerate(marks)
        ]
        return pd.concat(parts, ignore_index=True).reindex(columns=_FRAME)

    def matplotlib(self, width: str = "page") -> Figure:
        """The figure for print, `WIDTHS[width]` inches wide and as high as its content needs.

        `save` embeds fonts as TrueType; a `savefig` of your own follows your rcParams instead.
        """
        if width not in WIDTHS:
            raise unknown("width", width, WIDTHS)
        with print_style():
            return Page(self.panels, self.columns, WIDTHS[width]).figure

    def _repr_png_(self) -> bytes:
        """The picture that a notebook keeps of a cell's last value, and shows where nothing is interactive."""
        content = BytesIO()
        figure = self.matplotlib()
        figure.set_layout_engine("none")
        figure.savefig(content, format="png", dpi=130)
        return content.getvalue()

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        """The interactive figure, for notebooks that can show one; others take the picture of `_repr_png_`."""
        return {"application/vnd.plotly.v1+json": json.loads(self.plotly().to_json())}

    def plotly(self) -> go.Figure:
        """The interactive figure: as wide as its container, with a fixed height in pixels."""
        return on_screen(self.panels, self.columns)


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
    with print_style():
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
