"""How wide a printed figure is: the text widths of the usual venues, or a length."""

from __future__ import annotations

import re
from collections.abc import Mapping

from compolens.figures.words import unknown

WIDTHS: Mapping[str, float] = {
    "column": 3.25,
    "page": 6.75,
    "neurips": 5.5,
    "iclr": 5.5,
    "icml-column": 3.25,
    "icml": 6.75,
    "acl-column": 3.03,
    "acl": 6.3,
}
"""Inches, from the venues' style files; column and page are those of ICML, as in earlier versions."""
NARROWEST, WIDEST = 2.0, 20.0
HIGHEST = 9.0
"""Inches: what a page of letter paper holds between its margins. A higher drawing is cut into pages."""


def inches(width: str) -> float:
    """The width that a name of `WIDTHS`, or a length, stands for.

    Args:
        width: a name such as "neurips", or a length such as "5.5in" or "14cm".

    Returns:
        Inches, from 2 to 20.

    Raises:
        ValueError: neither a name nor a length, or a length outside the range.
    """
    if width in WIDTHS:
        return WIDTHS[width]
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(in|cm)", width.strip())
    if found is None:
        raise unknown("width", width, [*WIDTHS, "5.5in", "14cm"])
    length = float(found[1]) / (2.54 if found[2] == "cm" else 1)
    if not NARROWEST <= length <= WIDEST:
        raise ValueError(f"A figure cannot be {width} wide. Allowed: {NARROWEST:g} to {WIDEST:g} in.")
    return length
