"""Panels with marks make a drawing; a drawing is shown, or saved in four files."""

from __future__ import annotations

import glob
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from compolens.figures import arranged
from compolens.figures.page import Page, print_style
from compolens.figures.panels import Panel
from compolens.figures.screen import WIDE, on_screen
from compolens.figures.widths import HIGHEST, inches
from compolens.figures.words import displayed, under_axis, unknown
from compolens.foundation import cells
from compolens.foundation.files import write_atomically

if TYPE_CHECKING:
    import plotly.graph_objects as go
    from matplotlib.figure import Figure

_FRAME = ["panel", "series", "mark", "label", "x", "y", "lo", "hi", "value", "hover"]


@dataclass(frozen=True, eq=False)
class Drawing:
    """A figure: panels in reading order that together show one claim.

    Args:
        claim: the sentence that the figure argues for.
        panels: in reading order.
        caption: what is shown, and how; for the text around the figure.
        columns: panels per row; by default up to 3, or fewer where the printed figure is narrow.
        labels: name -> what is shown for it. Class names are shown by short names anyway ("softmax").
    """

    claim: str
    panels: Sequence[Panel]
    caption: str = ""
    columns: int | None = None
    labels: Mapping[str, str] = field(default_factory=dict)

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

    def only(self, *names: str) -> Drawing:
        """The drawing with nothing but what is named: titles of panels, labels of marks, or categories on x.

        Args:
            names: what stays. Where names of one of the three kinds are given, the others of that kind go.

        Returns:
            A drawing with what is left.

        Raises:
            ValueError: nothing in the drawing has one of the names, or nothing would be left.
        """
        return replace(self, panels=arranged.only(self.panels, self._named(names)))

    def ordered(self, *names: str) -> Drawing:
        """The drawing with what is named first: panels, marks and categories on x, in the order of the names.

        Args:
            names: titles, labels or categories; what is not named follows in its old order.

        Returns:
            A drawing of the same content.

        Raises:
            ValueError: nothing in the drawing has one of the names.
        """
        return replace(self, panels=arranged.ordered(self.panels, self._named(names)))

    def relabelled(self, labels: Mapping[str, str]) -> Drawing:
        """The drawing with other words for some names; colours and `frame` stay as they are.

        A category on x that begins with what a label is called there ("softmax 0.01 test") is renamed with that label.

        Args:
            labels: name -> what is shown for it.

        Returns:
            A drawing of the same content.

        Raises:
            ValueError: nothing in the drawing has one of the names.
        """
        known = dict(zip(self._named(list(labels)), labels.values(), strict=True))
        return replace(self, labels={**self.labels, **self._below(known), **known})

    def _below(self, known: Mapping[str, str]) -> dict[str, str]:
        """Other words for categories on x that begin with the name of a renamed label: the longest name that fits counts."""
        labels = {under_axis(mark.label): mark.label for panel in self.panels for mark in panel.marks if mark.label}
        found = {}
        for category in (c for panel in self.panels for c in arranged.categories(panel)):
            fitting = [name for name in labels if category.startswith(f"{name} ")]
            if fitting and labels[name := max(fitting, key=len)] in known:
                found[category] = known[labels[name]] + category.removeprefix(name)
        return found

    def _named(self, names: Sequence[str]) -> list[str]:
        """The drawing's own names for what the caller may name as it is shown."""
        there = arranged.names_in(self.panels)
        shown = {displayed(name, self.labels): name for name in reversed(there)}
        for name in names:
            if name not in there and name not in shown:
                raise unknown("name in this drawing", name, dict.fromkeys([*there, *shown]))
        return [name if name in there else shown[name] for name in names]

    def matplotlib(self, width: str = "page") -> Figure:
        """The figure for print, in one piece, as high as its content needs.

        The caller's rcParams and style files decide fonts, sizes of text, axes and the colours of series. `save` embeds fonts
        as TrueType; a `savefig` of your own follows your rcParams instead.

        Args:
            width: a venue, such as "neurips", or a length, such as "5.5in"; see `WIDTHS`.

        Returns:
            The figure.

        Raises:
            ValueError: an unknown width.
        """
        with print_style():
            return Page(self.panels, self.columns, inches(width), self.labels).figure

    def pages(self, width: str = "page", highest: float = HIGHEST) -> list[Figure]:
        """The figure for print, cut between rows of panels where it would be too high for a page.

        Args:
            width: as in `matplotlib`.
            highest: inches that a page may be high. One row of panels is never cut.

        Returns:
            The pages in order; colours mean the same on each.

        Raises:
            ValueError: an unknown width.
        """
        with print_style():
            page = Page(self.panels, self.columns, inches(width), self.labels)
            rows = page.scenes[-1].row
            count = min(rows, math.ceil(page.figure.get_figheight() / highest))
            while count > 1:
                step = math.ceil(rows / count) * page.columns
                found: list[Figure] = []
                for i in range(0, len(self.panels), step):
                    part = self.panels[i : i + step]
                    found.append(Page(part, page.columns, inches(width), self.labels, self.panels).figure)
                    if count < rows and found[-1].get_figheight() > highest:
                        break  # and the others need not be laid out
                else:
                    return found
                count += 1
            return [page.figure]

    def save(
        self, folder: str | Path, name: str, width: str = "page", dpi: int = 300, figure: Figure | None = None
    ) -> list[Path]:
        """Write the drawing as PDF, PNG, CSV and JSON, as `figures.save` does.

        Args:
            folder: where the files go.
            name: of the files, without suffix.
            width: a venue or a length, see `WIDTHS`.
            dpi: of the PNG.
            figure: the drawing by matplotlib, if it has been changed by hand (None: as it is drawn).

        Returns:
            The paths of the files.
        """
        return save(self, folder, name, width, dpi=dpi, figure=figure)

    def _repr_png_(self) -> bytes:
        """The picture that a notebook keeps of a cell's last value, and shows where nothing is interactive."""
        content = BytesIO()
        figure = self.matplotlib()
        with print_style():
            _as_it_lies(figure)
            figure.savefig(content, format="png", dpi=130)
        return content.getvalue()

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        """The interactive figure, for notebooks that can show one; others take the picture of `_repr_png_`."""
        return {"application/vnd.plotly.v1+json": json.loads(self.plotly().to_json())}

    def plotly(self) -> go.Figure:
        """The interactive figure: as wide as its container, with a fixed height in pixels."""
        return on_screen(self.panels, self.columns, self.labels).plotly()

    def json(self, width: int = WIDE) -> dict[str, Any]:
        """The interactive figure as plotly.js takes it, several times as quick as `plotly`: nothing is validated.

        Args:
            width: pixels that it will have, by which titles, names and the legend are broken into lines.

        Returns:
            {"data": ..., "layout": ...}, which JSON can hold, without a template.
        """
        return on_screen(self.panels, self.columns, self.labels, width).json()


def save(
    drawing: Drawing,
    folder: str | Path,
    name: str,
    width: str = "page",
    sidecar: Mapping[str, Any] | None = None,
    *,
    dpi: int = 300,
    figure: Figure | None = None,
) -> list[Path]:
    """Write name.pdf, name.png, name.csv (`Drawing.frame`) and name.json.

    A drawing that is higher than a page becomes a PDF of several pages and, from the second on, name.page2.png, …. The json
    holds claim, caption and everything in `sidecar`, with NaN and infinities as null. No file is touched unless all could be
    rendered, and each is complete before it takes its name. The same drawing gives the same bytes, so under version control a
    figure changes only when its content does.

    Args:
        drawing: what is shown.
        folder: where the files go.
        name: their name, without a suffix.
        width: a venue or a length, see `WIDTHS`.
        sidecar: what else the json says, such as how the figure came about.
        dpi: pixels per inch of the PNG, from 50 to 1200.
        figure: the figure to write, if it was edited: `drawing.matplotlib()` with changes of your own. It is written as it
            is; the CSV is still the drawing's.

    Returns:
        The paths of the PDF, the PNG, the CSV and the JSON, then those of further pages.

    Raises:
        ValueError: an unknown width, a resolution outside the range, or a sidecar that contradicts the drawing.
    """
    if not 50 <= dpi <= 1200:
        raise ValueError(f"A figure cannot have {dpi} dpi; allowed: 50 to 1200.")
    notes, extra = {"claim": drawing.claim, "caption": drawing.caption}, dict(sidecar or {})
    if clash := {key for key in notes if key in extra and extra[key] != notes[key]}:
        raise ValueError(f"sidecar contradicts the drawing's own {' and '.join(sorted(clash))}")
    pages = drawing.pages(width) if figure is None else [figure]
    contents = {
        "pdf": _pdf(pages, drawing.claim),
        "png": _png(pages[0], drawing.claim, dpi),
        "csv": cells.escaped(drawing.frame()).to_csv(index=False, lineterminator="\n").encode(),
        "json": (json.dumps(_plain(notes | extra), indent=2, ensure_ascii=False) + "\n").encode(),
        **{f"page{i}.png": _png(page, drawing.claim, dpi) for i, page in enumerate(pages[1:], 2)},
    }
    paths = [Path(folder) / f"{name}.{suffix}" for suffix in contents]
    for path, content in zip(paths, contents.values(), strict=True):
        write_atomically(path, content)
    for old in Path(folder).glob(f"{glob.escape(name)}.page*.png"):  # of a version that had more pages
        if old not in paths and re.fullmatch(r"\.page\d+\.png", old.name.removeprefix(name)):
            old.unlink()
    return paths


def _pdf(pages: Sequence[Figure], title: str) -> bytes:
    from matplotlib.backends.backend_pdf import PdfPages

    content = BytesIO()
    with print_style(), PdfPages(content, metadata={"Title": title, "CreationDate": None}) as pdf:
        for page in pages:
            _as_it_lies(page)
            pdf.savefig(page, dpi=300)
    return content.getvalue()


def _png(page: Figure, title: str, dpi: int) -> bytes:
    content = BytesIO()
    with print_style():
        _as_it_lies(page)
        page.savefig(content, format="png", dpi=dpi, metadata={"Title": title})
    return content.getvalue()


def _as_it_lies(page: Figure) -> None:
    """Has nothing laid out again: pdf and png come out alike, and sooner. Any layout engine, even one that does nothing, has a
    figure drawn twice. To be called in `print_style`, where none is the default."""
    page.set_layout_engine(None)


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
