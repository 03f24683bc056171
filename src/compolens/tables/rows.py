"""Rows of a table: what each has, and which of them a reader wants."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import pandas as pd

from compolens.foundation.configs import ConfigError, nearest

COLUMNS = ("metric", "value", "lo", "hi", "split", "site", "role", "control", "n")
"""What every table has. control is "" for the measurement itself; NaN stands where a column does not apply."""


Value = float | int | str


def row(
    metric: str,
    value: float,
    *,
    lo: float = math.nan,
    hi: float = math.nan,
    split: str = "",
    site: str = "",
    role: str = "",
    control: str = "",
    n: int = 0,
    **more: Value,
) -> dict[str, Value]:
    """One row of a table, with every column that all tables have.

    Args:
        metric: what is measured, in words.
        value: the number; NaN where it could not be had.
        lo: lower end of its interval; NaN without one.
        hi: upper end of its interval; NaN without one.
        split: "train", "test" or "ood".
        site: the hook point, or another name for where it was measured.
        role: the token role at that hook point.
        control: "" for the measurement itself, else which control this is.
        n: episodes behind the number.
        more: the probe's own columns.

    Returns:
        The row, its common columns first.
    """
    common: dict[str, Value] = {
        "metric": metric,
        "value": value,
        "lo": lo,
        "hi": hi,
        "split": split,
        "site": site,
        "role": role,
    }
    return {**common, "control": control, "n": n, **more}


def not_available(
    rows: Iterable[Mapping[str, Any]], why: str, *, measured: Iterable[str] = (), **known: Value
) -> list[dict[Any, Any]]:
    """The rows about an untrained control that cannot be had: what would be asked of it, and no number.

    Args:
        rows: The rows about the model that the control would have, too: those of a loop over
            `TrainedModel.with_untrained_control`.
        why: Why there is no control, `TrainedModel.why_no_untrained_control`; "" where there is one: nothing is missing then.
        measured: The columns, beside value, lo and hi, whose entries are measured: they are left empty.
        known: What other columns say of the control, where they say something else of the model.

    Returns:
        One row each, those left equal taken together; control is "untrained", or "untrained, …" of a row about a control
        of the model; n is 0, and note begins with "not available: ".
    """
    if not why:
        return []
    empty = {"value": math.nan, "lo": math.nan, "hi": math.nan, "n": 0, "note": f"not available: {why}"}
    found = [
        {column: entry for column, entry in one.items() if column not in set(measured)}
        | {"control": ", ".join(filter(None, ("untrained", one["control"])))}
        | empty
        | known
        for one in rows
    ]
    return pd.DataFrame(found).drop_duplicates().to_dict("records")


def at_last_step(frame: pd.DataFrame) -> pd.DataFrame:
    """The rows of `frame` about trained models, without those along training; of several gathered models, each at its own last
    step."""
    if "step" not in frame:
        return frame
    last = frame.groupby("model")["step"].transform("max") if "model" in frame else frame["step"].max()
    return frame[frame["step"] == last]


def at_place(frame: pd.DataFrame, capture: str, layer: int, who: str) -> pd.DataFrame:
    """The rows of a capture (column role) at a layer.

    Args:
        frame: a table with the columns role and layer.
        capture: the capture.
        layer: counted from 0, or from the end if negative.
        who: named in errors.

    Returns:
        The rows.

    Raises:
        ConfigError: there is no such capture or layer.
    """
    if capture not in set(frame["role"]):
        raise ConfigError(f"{who} has no capture {capture!r}; {nearest(capture, frame['role'].unique())}")
    frame = frame[frame["role"] == capture]
    return frame[frame["layer"] == nth_layer(frame, layer, who)]


def nth_layer(frame: pd.DataFrame, layer: int, who: str, advice: str = "--layer counts from 0, or from -1 backwards") -> int:
    """The layer of a table (column layer) that is asked for.

    Args:
        frame: a table with the column layer.
        layer: counted from 0, or from the end if negative.
        who: named in the error.
        advice: what the error says to do.

    Returns:
        The value of the column.

    Raises:
        ConfigError: there is no such layer.
    """
    layers = sorted(frame["layer"].unique())
    if not -len(layers) <= layer < len(layers):
        raise ConfigError(f"{who} has layers 0 to {len(layers) - 1}, not {layer}; {advice}")
    return int(layers[layer])


BEST_COMPOSITION = ("best training composition", "best of all compositions")
"""The references that know which compositions there are, and choose one."""


IN_CONTEXT = (
    "in-context ridge", "in-context smoothing", "nearest example", "in-context quadratic", "in-context kernel ridge",
)  # fmt: skip
"""The references that know an episode's examples and nothing else."""


WEAK = (
    *IN_CONTEXT,
    "copy of a panel",
    "best training composition",
    "vote of training functions",
    "labels of the nearest examples",
)
"""The references that recombine nothing: the best of them is the floor of what counts as recombining."""


def worth_drawing(scores: Mapping[str, float]) -> dict[str, float]:
    """References out of `scores` (name -> score): of those of `IN_CONTEXT` the best alone, under one name whichever it is; and
    not the best composition where compositions vote."""
    votes = "vote of all functions" in scores
    found = {n: value for n, value in scores.items() if n not in IN_CONTEXT and not (votes and n in BEST_COMPOSITION)}
    if known := [value for name, value in scores.items() if name in IN_CONTEXT]:
        found["best in-context regression"] = max(known)
    return found


def ceiling_of(references: pd.DataFrame) -> float:
    """The score that no learner can be expected to exceed, from the rows `references`: the one marked so, else 1."""
    marked = references[references["note"] == "ceiling"]["value"].tolist() if "note" in references else []
    return float(marked[0]) if marked else 1.0
