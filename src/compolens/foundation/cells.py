"""Text in the cells of a CSV stays text: a spreadsheet that opens it runs nothing.

A cell that begins with =, +, -, @ or a tab is a formula to a spreadsheet, unless it is a number. Such text
gets an apostrophe before it, which spreadsheets show as text; so does text that begins with apostrophes before one of these.
So reading it back gives exactly what was written. A carriage return, after which a reader sees a new line, is written as ␍.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd

FORMULA = re.compile(r"'*[=+\-@\t]")
ESCAPED = re.compile(r"'+[=+\-@\t]")
MISSING = ["", "nan", "NaN"]
"""What stands for no value when a CSV is read; other words, such as None or NA, are words."""
NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?|[+-]?(inf|nan)")


def escape(value: Any) -> Any:
    """A cell as it is written.

    Args:
        value: the cell. What is no text stays as it is.

    Returns:
        The text, with an apostrophe before it if a spreadsheet would run it as a formula.
    """
    if not isinstance(value, str):
        return value
    value = value.replace("\r", "␍")
    return f"'{value}" if FORMULA.match(value) and not NUMBER.fullmatch(value) else value


def unescape(value: Any) -> Any:
    """A cell as it was before it was written, the inverse of `escape`.

    Args:
        value: the cell as it was read. What is no text stays as it is.

    Returns:
        The text without the apostrophe that `escape` added.
    """
    if not isinstance(value, str):
        return value
    return (value[1:] if ESCAPED.match(value) else value).replace("␍", "\r")


def escaped(frame: pd.DataFrame) -> pd.DataFrame:
    """A table whose text no spreadsheet runs, column names included.

    Args:
        frame: the table; it is not changed.

    Returns:
        A copy in which cells and column names are as `escape` writes them. Numeric columns stay as they are.
    """
    return _each(frame, escape)


def unescaped(frame: pd.DataFrame) -> pd.DataFrame:
    """The table that `escaped` was given.

    Args:
        frame: what `escaped` returned, or what was read back from its file; it is not changed.

    Returns:
        A copy in which cells and column names are as before.
    """
    return _each(frame, unescape)


def _each(frame: pd.DataFrame, change: Callable[[Any], Any]) -> pd.DataFrame:
    import pandas as pd

    texts = [i for i, kind in enumerate(frame.dtypes) if not pd.api.types.is_numeric_dtype(kind)]
    made = frame.copy(deep=False)
    for i in texts:
        column = made.iloc[:, i]
        if isinstance(column.dtype, pd.CategoricalDtype):
            column = column.astype(object)
        words = {cell for cell in column.to_numpy(dtype=object) if isinstance(cell, str)}  # few, of many cells
        if any(change(word) != word for word in words):
            made.isetitem(i, column.map(change).to_numpy())
    made.columns = pd.Index([change(name) for name in frame.columns], name=frame.columns.name)
    return made
