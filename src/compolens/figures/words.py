"""Text in figures: how values are written, what does not fit, and what to say of a wrong name."""

from __future__ import annotations

import difflib
import math
import textwrap
from collections.abc import Iterable
from functools import lru_cache

import numpy as np
import pandas as pd


def unknown(what: str, got: object, allowed: Iterable[object]) -> ValueError:
    """The error that names what was got, what is near it and what is allowed.

    Args:
        what: the kind of thing, in words.
        got: what was given.
        allowed: what may be given.

    Returns:
        The error, to be raised.
    """
    names = [str(name) for name in allowed]
    near = difflib.get_close_matches(str(got), names)
    hint = f" Did you mean {' or '.join(map(repr, near))}?" if near else ""
    return ValueError(f"Unknown {what}: {got!r}.{hint} Allowed: {', '.join(map(repr, names)) or 'none'}.")


def is_categorical(column: pd.Series) -> bool:
    """Whether `column` holds labels, not numbers."""
    known = column.dropna().infer_objects()
    return len(known) > 0 and (not pd.api.types.is_numeric_dtype(known) or pd.api.types.is_bool_dtype(known))


def as_text(value: object) -> str:
    """`value` as labels and hovers show it: numbers with at most six digits."""
    return f"{value:.6g}" if isinstance(value, float | np.floating) else str(value)


def cell_texts(values: np.ndarray) -> list[list[str]]:
    """The numbers of the grid `values`, with two significant digits of the largest; missing ones empty."""
    known = values[np.isfinite(values)]
    top = np.abs(known).max(initial=0)
    decimals = 0 if (known == known.round()).all() else min(max(2 - math.ceil(math.log10(top)), 0), 4)
    form = f".{decimals}f" if top == 0 or 1e-3 <= top < 1e5 else ".1e"
    rounded = [[f"{value:{form}}" if math.isfinite(value) else "" for value in line] for line in values]
    zero = f"{0:{form}}"
    return [[zero if text == f"-{zero}" else text.replace("-", "\N{MINUS SIGN}") for text in line] for line in rounded]


def width_of(text: str, size: float) -> float:
    """The printed width of a text's widest line, in our own style.

    Args:
        text: the text.
        size: of the font, in points.

    Returns:
        Points.
    """
    return size * max((_line(line) for line in text.split("\n") if line.strip()), default=0.0)


@lru_cache(4096)
def _line(text: str) -> float:
    """Its width at a size of 1 point. Panels of one figure ask for the same labels again and again, and outlines are slow."""
    from matplotlib.textpath import TextPath

    return float(TextPath((0, 0), text, size=100).get_extents().width / 100)


def wrap(text: str, size: float, width: float) -> str:
    """Break a text into lines, words permitting.

    Args:
        text: the text.
        size: of the font, in points.
        width: most points of a line.

    Returns:
        The text with line breaks.
    """
    breadth = width_of(text, size)
    if breadth <= width:
        return text
    longest = max(map(len, text.split()), default=1)
    for characters in range(max(math.ceil(1.1 * len(text) * width / breadth), longest), longest - 1, -1):
        wrapped = textwrap.fill(text, characters, break_long_words=False)
        if width_of(wrapped, size) <= width:
            break
    return wrapped
