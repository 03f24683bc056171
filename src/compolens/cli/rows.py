"""Rows of a listing, chosen and ordered by what they hold: `--filter KEY=VALUE` and `--sort KEY`."""

from __future__ import annotations

import argparse
import fnmatch
import operator
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from compolens.foundation.configs import ConfigError, nearest
from compolens.foundation.model_folders import escaped

Row = dict[str, Any]
COMPARISONS = {">=": operator.ge, "<=": operator.le, ">": operator.gt, "<": operator.lt}


@dataclass(frozen=True)
class Filter:
    """A condition on one key of a row.

    Args:
        key: the key, or the end of one after a dot: n_layers for architecture.n_layers.
        sign: "=", "!=", ">", ">=", "<" or "<=".
        value: as typed; of "=" and "!=" a pattern with * and ?, of the others a number.
    """

    key: str
    sign: str
    value: str

    @classmethod
    def read(cls, text: str) -> Filter:
        """The condition that `text` states; what states none is an error of the command line."""
        found = re.fullmatch(r"([\w.]+)\s*(!=|>=|<=|=|>|<)\s*(.*)", text)
        if found is None:
            raise argparse.ArgumentTypeError(f"must be KEY=VALUE, KEY!=VALUE, 'KEY>NUMBER' or 'KEY<NUMBER', got {text!r}")
        made = cls(*found.groups())
        if made.sign in COMPARISONS and number(made.value) is None:
            raise argparse.ArgumentTypeError(f"{made.key}{made.sign} must be followed by a number, got {made.value!r}")
        return made

    @property
    def off(self) -> bool:
        """Whether its value is that of a setting that is off, which rows leave out."""
        return self.value.strip().lower() in ("false", "none")

    def holds(self, row: Row, key: str) -> bool:
        """Whether it is so in a row.

        Args:
            row: of one model.
            key: the full name of the condition's key, the same for all rows.

        Returns:
            Yes or no; a row without the key equals false and none, and exceeds or falls below nothing.
        """
        held = row.get(key)
        if self.sign in COMPARISONS:
            here, there = number(held), number(self.value)
            return here is not None and there is not None and COMPARISONS[self.sign](here, there)
        if held is None:
            return self.off == (self.sign == "=")
        numbers = number(held), number(self.value)
        same = (
            numbers[0] == numbers[1]
            if None not in numbers
            else fnmatch.fnmatchcase(str(held).lower(), escaped(self.value.strip().lower()))
        )
        return same == (self.sign == "=")


def number(value: Any) -> float | None:
    """`value` as a number; None where it is none. Thousands may be set apart by commas, as the listing shows them."""
    try:
        return None if value is None or isinstance(value, bool) else float(str(value).replace(",", ""))
    except ValueError:
        return None


def find(key: str, rows: Iterable[Row]) -> str | None:
    """The full name of a key in the rows: itself, or the one whose last part it is.

    Args:
        key: what was typed.
        rows: the models.

    Returns:
        The name; None where no row has it.

    Raises:
        ConfigError: it is the last part of several, which are named.
    """
    names = dict.fromkeys(name for row in rows for name in row)
    ends = [key] if key in names else [name for name in names if name.rpartition(".")[2] == key]
    if len(ends) > 1:
        raise ConfigError(f"{key!r} may be {' or '.join(ends)}; type one of these in full")
    return ends[0] if ends else None


def known(key: str, rows: list[Row]) -> str:
    """The full name of a key that the rows must have.

    Args:
        key: what was typed.
        rows: the models.

    Returns:
        The name.

    Raises:
        ConfigError: no row has it, and the nearest is named; or it may be one of several.
    """
    found = find(key, rows)
    if found is None:
        raise ConfigError(f"none of these models has {key!r}; {nearest(key, sorted({name for row in rows for name in row}))}")
    return found


def chosen(rows: list[Row], filters: Iterable[Filter], off: Iterable[str] = ()) -> list[Row]:
    """The rows of which every condition holds.

    Args:
        rows: all of them.
        filters: the conditions; one on a key that no row has is an error.
        off: settings that are off in some model, which its row leaves out.

    Returns:
        Those rows, in their order.
    """
    left_out: list[Row] = [dict.fromkeys(sorted(off))]
    for condition in filters:
        key = find(condition.key, rows) or find(condition.key, left_out) or known(condition.key, rows)
        rows = [row for row in rows if condition.holds(row, key)] or _none_left(condition)
    return rows


def _none_left(condition: Filter) -> list[Row]:
    raise ConfigError(f"no model has {condition.key}{condition.sign}{condition.value}; leave --filter out to see all")


def ordered(rows: list[Row], key: str) -> list[Row]:
    """The rows by a key, numbers before words and rows without it last.

    Args:
        rows: all of them.
        key: as in `Filter`; with a minus before it, from the largest to the smallest.

    Returns:
        The rows, ordered; rows with equal values keep their order.
    """
    name = known(key.removeprefix("-"), rows)
    having = [row for row in rows if row.get(name) is not None]
    parts = [(value, row) for row in having if (value := number(row[name])) is not None]
    words = [(str(row[name]).lower(), row) for row in having if number(row[name]) is None]
    down = key.startswith("-")
    in_order = [row for part in (parts, words) for _, row in sorted(part, key=lambda pair: pair[0], reverse=down)]
    return [*in_order, *(row for row in rows if row.get(name) is None)]
