"""Tables on the terminal: as wide as they are in a pipe, as wide as the terminal where there is one, words kept whole."""

from __future__ import annotations

import shutil
import sys
import textwrap
from collections.abc import Sequence

from compolens.foundation.terminal import bold, one_line

GAP = 2
"""Spaces between columns."""


def print_table(columns: list[str], rows: list[list[str]], optional: Sequence[str] = ()) -> None:
    """Print a table in columns. Elsewhere than on a terminal, every row is one line, as wide as it is.

    Args:
        columns: their names.
        rows: a cell per column each.
        optional: columns that are left out, the first first, where the terminal is too narrow; what was is said on stderr.
    """
    rows = [[one_line(cell) for cell in row] for row in rows]
    if not sys.stdout.isatty():
        print(*_lines(columns, rows, _natural(columns, rows)), sep="\n")
        return
    width = shutil.get_terminal_size().columns
    kept = list(columns)
    for name in optional:
        if fits(kept, _only(columns, rows, kept), width):
            break
        if name in kept:
            kept.remove(name)
    if not fits(kept, _only(columns, rows, kept), width):  # then nothing is gained by leaving columns out
        kept = list(columns)
    head, *body = fitted(kept, _only(columns, rows, kept), width)
    bold(head)
    print(*body, sep="\n")
    if left := [name for name in columns if name not in kept]:
        print(f"left out to fit {width} columns: {', '.join(left)}; a pipe has them", file=sys.stderr)


def fits(columns: list[str], rows: list[list[str]], width: int) -> bool:
    """Whether a table can stand in columns, the first of them on a line of its own if need be.

    Args:
        columns: names of the columns.
        rows: cells, as many a row as there are columns.
        width: characters that a line may have.

    Returns:
        True if no word has to be broken.
    """
    least = _least(columns, rows)
    return min(_total(least), max(least[0], GAP + _total(least[1:]))) <= width


def fitted(columns: list[str], rows: list[list[str]], width: int) -> list[str]:
    """The lines of a table that fit a width, without breaking inside words.

    Cells wrap between words; where that does not do, the first column gets a line of its own; where that does not do, every
    row is a list of names and values. A word that is longer than the width stays whole.

    Args:
        columns: their names.
        rows: a cell per column each.
        width: characters of a line.

    Returns:
        The lines.
    """
    least = _least(columns, rows)
    if _total(least) <= width:
        return _lines(columns, rows, _shared(_natural(columns, rows), least, width))
    if len(columns) > 1 and max(least[0], GAP + _total(least[1:])) <= width:
        rest = _shared(_natural(columns, rows)[1:], least[1:], width - GAP)
        head, rule, *_ = _lines(columns[1:], [], rest)
        lines = [columns[0], f"  {head}", f"  {rule}"]
        for row in rows:
            lines += textwrap.wrap(row[0], width, break_long_words=False, break_on_hyphens=False) or [""]
            lines += [f"  {line}" for line in _cells(row[1:], rest)]
        return lines
    lines = [columns[0]]
    for row in rows:
        told = [f"{name} {cell}" for name, cell in zip(columns[1:], row[1:], strict=True) if cell]
        lines += [row[0], *(line for part in told for line in _wrapped(part, width))]
    return lines


def _wrapped(text: str, width: int) -> list[str]:
    return textwrap.wrap(
        text, width, initial_indent="  ", subsequent_indent="    ", break_long_words=False, break_on_hyphens=False
    )


def _only(columns: list[str], rows: list[list[str]], kept: list[str]) -> list[list[str]]:
    where = [columns.index(name) for name in kept]
    return [[row[i] for i in where] for row in rows]


def _natural(columns: list[str], rows: list[list[str]]) -> list[int]:
    return [max(len(row[i]) for row in [columns, *rows]) for i in range(len(columns))]


def _least(columns: list[str], rows: list[list[str]]) -> list[int]:
    """Each column's longest word."""
    return [max(len(word) for row in [columns, *rows] for word in row[i].split() or [""]) for i in range(len(columns))]


def _total(widths: list[int]) -> int:
    return sum(widths) + GAP * (len(widths) - 1)


def _shared(natural: list[int], least: list[int], width: int) -> list[int]:
    """Widths that sum to what there is: the widest column gives way first, none below its longest word."""
    widths = list(natural)
    while _total(widths) > width:
        wide = max((i for i in range(len(widths)) if widths[i] > least[i]), key=lambda i: widths[i])
        widths[wide] -= 1
    return widths


def _lines(columns: list[str], rows: list[list[str]], widths: list[int]) -> list[str]:
    rule = (" " * GAP).join("─" * width for width in widths)
    return [*_cells(columns, widths), rule, *(line for row in rows for line in _cells(row, widths))]


def _cells(row: list[str], widths: list[int]) -> list[str]:
    """The lines of one row, its cells wrapped."""
    parts = [
        [cell] if len(cell) <= width else textwrap.wrap(cell, width, break_long_words=False, break_on_hyphens=False)
        for cell, width in zip(row, widths, strict=True)
    ]
    return [
        (" " * GAP).join((part[i] if i < len(part) else "").ljust(w) for part, w in zip(parts, widths, strict=True)).rstrip()
        for i in range(max(len(part) for part in parts))
    ]
