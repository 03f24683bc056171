"""The numbers that a page cites, and the rows of tables that they stand in: no other row is on the page."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pandas as pd

from compolens import tables
from compolens.diagnosis.evidence import Clause, Evidence

MOST = 12
"""Rows of one table of one model that one number shows at most."""
EQUAL = 1e-6
"""A row that is so near to a number holds it."""
POOLED = (("composition", "all"), ("dimension", "mean"))
"""Where a table also holds parts, a number that names no part is that of the whole."""


class Cited:
    """Counts numbers in order of appearance and collects their rows.

    Args:
        folders: the models that may be cited, by name.
        page: the page's path, from which links to tables start.
    """

    def __init__(self, folders: Sequence[Path], page: Path) -> None:
        self._folders = {folder.name: folder for folder in folders}
        self._page = page
        self._frames: dict[tuple[str, str], pd.DataFrame] = {}
        self._rows: dict[tuple[str, str], set[int]] = {}
        self._numbers: dict[str, int] = {}
        self.evidence: list[dict[str, Any]] = []

    def clause(self, clause: Clause) -> dict[str, Any]:
        """A clause for the page.

        Args:
            clause: what is said.

        Returns:
            "text", and "numbers": those of its evidence; equal evidence has one number.
        """
        return {"text": clause.text[:1].upper() + clause.text[1:], "numbers": [self._number(e) for e in clause.evidence]}

    def clauses(self, clauses: Iterable[Clause]) -> list[dict[str, Any]]:
        """`clause` of each.

        Args:
            clauses: in order of appearance.

        Returns:
            One entry a clause.
        """
        return [self.clause(one) for one in clauses]

    def tables(self) -> list[dict[str, Any]]:
        """The cited rows, a table per model and kind: "id", "model", "name", "columns", "rows", "of", "link", "command"."""
        return [self._table(name, model, sorted(rows)) for (name, model), rows in sorted(self._rows.items())]

    def files(self) -> list[dict[str, Any]]:
        """Every usable table of every model, as links: "model" and "links", pairs of name and address."""
        found = []
        for model, folder in self._folders.items():
            links = [(name, self._link(tables.path_of(folder, name))) for name in tables.names(folder)]
            found.append({"model": model, "links": [link for link in links if link[1]]})
        return found

    def _number(self, item: Evidence) -> int:
        key = repr(item)
        if key not in self._numbers:
            self._numbers[key] = len(self._numbers) + 1
            where = ", ".join(f"{k} {v}" for k, v in item.where.items() if v != "")
            links = [(model, self._row_of(item, model)) for model in item.models if model in self._folders]
            spread = "" if pd.isna(item.lo) else f" [{item.lo:.3f}, {item.hi:.3f}]"
            entry = {"number": self._numbers[key], "value": f"{item.value:.3f}{spread}", "table": item.table, "where": where}
            mean = f"mean over {len(item.models)} models" if len(item.models) > 1 else ""
            self.evidence.append(entry | {"links": links, "mean": mean})
        return self._numbers[key]

    def _row_of(self, item: Evidence, model: str) -> str:
        """The id of the first row of a number in a model's table; its rows are put on the page."""
        key = (item.table, model)
        frame = _matching(self._frame(*key), item)
        self._rows.setdefault(key, set()).update(frame.index[:MOST])
        return f"{item.table}--{model}--{frame.index[0]}" if len(frame) else f"{item.table}--{model}"

    def _frame(self, name: str, model: str) -> pd.DataFrame:
        if (name, model) not in self._frames:
            frame = tables.at_last_step(tables.read(self._folders[model], name))
            self._frames[name, model] = frame.reset_index(drop=True)
        return self._frames[name, model]

    def _table(self, name: str, model: str, rows: list[int]) -> dict[str, Any]:
        folder, whole = self._folders[model], self._frame(name, model)
        frame = whole.loc[rows]
        empty = [c for c in frame if frame[c].isna().all() or (frame[c].astype(str) == "").all()]
        frame = frame.drop(columns=empty)
        cells = [[f"{v:.4g}" if isinstance(v, float) else str(v) for v in row] for row in frame.itertuples(index=False)]
        cells = [["" if cell == "nan" else cell for cell in row] for row in cells]
        command = tables.again(folder, name)
        return {
            "id": f"{name}--{model}",
            "model": model,
            "name": name,
            "columns": list(frame.columns),
            "rows": [(f"{name}--{model}--{i}", row) for i, row in zip(rows, cells, strict=True)],
            "of": len(whole),
            "link": self._link(tables.path_of(folder, name)),
            "command": command,
        }

    def _link(self, path: Path) -> str:
        """Where a file lies as seen from the page; "" on another drive than the page's."""
        try:
            return quote(Path(os.path.relpath(path, self._page.parent)).as_posix())
        except ValueError:
            return ""


def _matching(frame: pd.DataFrame, item: Evidence) -> pd.DataFrame:
    """The rows that a number says it stands in: the one that holds it, if there is one; else those that it is made of.

    What a number is made of has no row, and so no column, of its own: a part of a loss, the split "lost"."""
    for column, value in item.where.items():
        if column in frame:
            alike = [_alike(cell, value) for cell in frame[column]]
            frame = frame[alike] if any(alike) else frame
    for column, whole in POOLED:
        if column in frame and column not in item.where and (frame[column] == whole).any():
            frame = frame[frame[column] == whole]
    same = (frame["value"] - item.value).abs() < EQUAL
    return frame[same] if same.any() else frame


def _alike(cell: Any, value: str) -> bool:
    return str(cell) == value or (isinstance(cell, float) and f"{cell:g}" == value)
