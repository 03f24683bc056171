"""Text in figures: how values are written, what does not fit, and what to say of a wrong name."""

from __future__ import annotations

import difflib
import math
import re
import textwrap
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any

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


_RULES = {"progression ": "", "constant": "const", "addition": "add", "subtraction": "sub", "distribute three": "dist3"}


def short_rule(name: object) -> str:
    """A rule's name that fits under a heat map's column.

    Args:
        name: of a rule of S-RAVEN, or of another class.

    Returns:
        The name with rules shortened; of another class, as it is.
    """
    text = str(name)
    for long, short in _RULES.items():
        text = text.replace(long, short)
    return text


def is_categorical(column: pd.Series) -> bool:
    """Whether `column` holds labels, not numbers."""
    known = column.dropna().infer_objects()
    return len(known) > 0 and (not pd.api.types.is_numeric_dtype(known) or pd.api.types.is_bool_dtype(known))


def counted(count: int, one: str, many: str = "") -> str:
    """A number with its noun.

    Args:
        count: how many.
        one: the noun for one.
        many: the noun for another number ("": with an s).

    Returns:
        Such as "1 family" or "2 families".
    """
    return f"{count} {one if count == 1 else many or f'{one}s'}"


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
    """The printed width of a text's widest line, in the font that is in use.

    Args:
        text: the text.
        size: of the font, in points.

    Returns:
        Points.
    """
    import matplotlib

    style: Any = matplotlib.rcParams
    font = (*style["font.family"], *(name for kind in style["font.family"] for name in style.get(f"font.{kind}", ())))
    return size * max((_line(line, font) for line in text.split("\n") if line.strip()), default=0.0)


@lru_cache(4096)
def _line(text: str, font: tuple[str, ...]) -> float:
    """Its width at a size of 1 point. Panels of one figure ask for the same labels again and again, and outlines are slow.

    font: the names that the style in use tries, on which the width depends."""
    from matplotlib.path import Path
    from matplotlib.textpath import TextPath

    outline = TextPath((0, 0), text, size=100)
    # fonts put points of an outline where it is widest; looking for the curves' extremes takes six times as long
    return float(np.ptp(outline.vertices[outline.codes != Path.CLOSEPOLY, 0]) / 100)


SHORT: Mapping[str, str] = {
    "SoftmaxTransformer": "softmax",
    "HypernetworkTransformer": "hypernetwork",
    "OtherExecutorTransformer": "other executor",
    "BottleneckMLP": "bottleneck",
    "LinearAttention": "linear",
    "LinearRMSHead": "linear with RMSHead",
    "HYLAWithoutRMSHead": "HYLA without RMSHead",
    "HYLAWithoutNonlinearity": "HYLA without nonlinearity",
    "HYLAWithoutBoth": "HYLA without both",
    "HYLAWithSoftmax": "HYLA with softmax",
    "DeepHYLA": "deep HYLA",
    "SparseCoding": "sparse coding",
    "LinearSelfAttention": "linear",
    "SoftmaxSelfAttention": "softmax",
    "RegularizedSelfAttention": "regularized",
    "AugmentedSelfAttention": "augmented",
    "NegativeSampleSelfAttention": "negative samples",
    "ConstructedGradientDescent": "constructed descent",
    "UnstructuredTeacher": "unstructured teacher",
    "FuzzyLogic": "fuzzy logic",
    "BooleanFunctions": "Boolean functions",
    "SRaven": "S-RAVEN",
    "RelationImages": "relations on images",
    "LinearRegression": "linear regression",
}
"""Name of a class -> what a figure calls it; classes that are not here keep their names."""
_CLASSES = re.compile(rf"\b({'|'.join(SHORT)})\b")
_SETTINGS = (
    (re.compile(r"\btransfer (Output|Relative)Transfer\b(\(\))?"), lambda found: f"{found[1].lower()} transfer"),
    (re.compile(r"\bthreshold (Fixed|Calibrated|Learned)Threshold\b"), lambda found: f"{found[1].lower()} threshold"),
    (re.compile(r"\bn_layers (\d+)\b"), lambda found: f"{found[1]} layer{'s' * (found[1] != '1')}"),
    (re.compile(r"\bxi (?=[\d.])"), lambda found: "ξ = "),
)
"""Settings as a config writes them -> in words."""


def displayed(text: object, labels: Mapping[str, str]) -> str:
    """A name as a figure shows it: under the label that was chosen for it, else with short names for classes.

    Args:
        text: the name.
        labels: name -> what is shown for it.

    Returns:
        The text shown.
    """
    name = as_text(text)
    if name in labels:
        return labels[name]
    for pattern, words in _SETTINGS:
        name = pattern.sub(words, name)
    return _CLASSES.sub(lambda found: SHORT[found[1]], name)


def under_axis(label: str) -> str:
    """What an architecture is called under an axis: "BottleneckMLP (d_hidden 64)" is "bottleneck 64" there.

    Args:
        label: a group's label, with the settings that tell it from others in brackets.

    Returns:
        The short name, as in the legend, and the settings' values.
    """
    name, _, told = label.partition(" (")
    return " ".join([displayed(name, {}), *(part.split()[-1] for part in told.rstrip(")").split(", ") if part)])


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
