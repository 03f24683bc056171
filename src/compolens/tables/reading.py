"""Whether a table still says what its probe would say of its model; and its rows."""

from __future__ import annotations

import difflib
import functools
import io
import os
import warnings
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any, TypeVar

import pandas as pd

from compolens.foundation import builtin, cells, digests, versions
from compolens.foundation.configs import ConfigError, nearest
from compolens.foundation.files import DamagedFile
from compolens.foundation.table_files import EPISODES, TABLE, TableFiles
from compolens.tables.rows import COLUMNS
from compolens.tables.saved import (
    CHANGED,
    OlderIntervals,
    StaleTable,
    UnusableTable,
    command_of,
    exists,
    file_digest,
    files_of,
    names,
    probe_of,
    told_stale,
    unusable,
)

TEXT = {
    "metric", "split", "site", "role", "control", "composition", "reference", "fit", "note", "label", "shown", "by", "class",
    "other", "parts",
}  # fmt: skip
"""Columns that hold words, whatever they look like (a class may be called "0010"); so do those that begin with "label."."""


RENAMED = {
    "fit": {"transfer": "fitted on train"},
    "reference": {"untrained twin": "untrained control"},
}
"""Column -> a word that tables of earlier versions hold -> the word of the glossary; translated whenever a table is read."""


NUMBERS = ("value", "lo", "hi", "n")
"""Columns of `COLUMNS` that hold numbers."""


Found = TypeVar("Found")


_SEEN: ContextVar[dict[Any, Any] | None] = ContextVar("seen", default=None)


@contextmanager
def read_once(known: dict[Hashable, Any] | None = None) -> Iterator[None]:
    """Have every table read and checked at most once: what is drawn or said meanwhile is said of one state of the files.

    A diagnosis asks for the same table some fifty times. Blocks within a block belong to it.

    Args:
        known: where what is found is kept, for several blocks about files that do not change between them (None: for this
            block alone).

    Returns:
        The context; it also decorates functions.
    """
    if _SEEN.get() is not None:
        yield
        return
    token = _SEEN.set({} if known is None else known)
    try:
        yield
    finally:
        _SEEN.reset(token)


def _once(function: Callable[[str | Path, str], Found]) -> Callable[[str | Path, str], Found]:
    """Remembers, in a block of `read_once`, what a function found out about a table."""

    @functools.wraps(function)
    def remembered(folder: str | Path, name: str) -> Found:
        return found_once((function.__name__, os.path.abspath(folder), name), lambda: function(folder, name))

    return remembered


def found_once(key: Hashable, find: Callable[[], Found]) -> Found:
    """What a function finds in tables; in a block of `read_once` it looks for it only once.

    Args:
        key: what tells it from everything else that is found.
        find: finds it.

    Returns:
        What was found, the same object every time.
    """
    seen = _SEEN.get()
    if seen is None:
        return find()
    if key not in seen:
        seen[key] = find()
    return seen[key]


def why_stale(folder: str | Path, name: str, recipe: str | Path | None = None) -> str:
    """Why a table no longer says what its probe would say of its model ("" if it does).

    Args:
        folder: The model's folder.
        name: The table's name.
        recipe: The probe's file; if left out, the one that measured the table (where it is gone, nothing is said of it).

    Returns:
        The reason in a sentence, "" if there is none.
    """
    return _stale(folder, name) if recipe is None else _why_stale(folder, name, recipe)


@_once
def _stale(folder: str | Path, name: str) -> str:
    return _why_stale(folder, name, None)


def _why_stale(folder: str | Path, name: str, recipe: str | Path | None) -> str:
    table = files_of(folder, name)
    try:
        known = table.provenance()
    except DamagedFile as error:
        return str(error)
    if not known:
        return "it has no provenance"
    if not all(isinstance(known.get(key), str) for key in ("weights", "recipe")):
        return "its provenance does not say what it was measured with"
    try:
        provenance = table.read(TABLE).provenance
    except DamagedFile:
        return CHANGED
    if provenance["weights"] != file_digest(Path(folder) / "weights.safetensors"):
        return "the weights changed since it was measured"
    if reason := _about_episodes(table, provenance):
        return reason
    recipe = recipe or versions.recipe_of(name, provenance)
    try:
        return versions.why_changed(name, provenance, recipe) if recipe is not None and Path(recipe).is_file() else ""
    except (OSError, TypeError, ValueError) as error:
        return f"its probe cannot be read ({error})"


def _about_episodes(table: TableFiles, provenance: dict[str, Any]) -> str:
    """What is wrong with the per-episode rows; those that are not there were left out, as where folders are shared."""
    if not table.path(EPISODES).exists() or TABLE not in provenance:  # older tables have no digest of themselves
        return ""
    if EPISODES not in provenance:
        return "its per-episode rows are those of an earlier measurement"
    if digests.of_file(table.path(EPISODES)) == provenance[EPISODES]:  # in its place, and read once
        return ""
    try:
        table.read(EPISODES)
    except DamagedFile:
        return "its per-episode rows were changed after they were measured"
    return ""


def _none(folder: str | Path, name: str) -> str:
    """That there is no such table, and what to type; of a misspelled name, what was meant."""
    if not Path(folder).is_dir():
        return f"there is no folder {str(folder)!r}, and so no table {name!r} of a model"
    near = nearest(name, [*builtin.built_in("probes"), *names(folder)])
    told = f" ({near})" if near.startswith("did you mean") and name not in builtin.built_in("probes") else ""
    return f"{folder} has no table {name!r}{told}; measure it with: {command_of(meant(name, [folder]), folder)}"


def meant(name: str, folders: Sequence[str | Path]) -> str:
    """The probe to type for a table that is not there.

    Args:
        name: the table's name, which may be misspelt.
        folders: the folders of models.

    Returns:
        The probe of this name; or that of the nearest name, by path where it is the user's own; or a file of this name.
    """
    own = {table: folder for folder in folders for table in names(folder)}
    probes = builtin.built_in("probes")
    near = [name] if name in probes else difflib.get_close_matches(name, [*probes, *own], n=1, cutoff=0.75)
    if not near:
        return f"{name}.py"
    return probe_of(own[near[0]], near[0]) if near[0] in own else near[0]


def why_not(folder: str | Path, name: str) -> str:
    """Why nothing can be drawn from a model's table: there is none, it is stale, damaged, or cannot be read.

    Args:
        folder: the model's folder.
        name: the table's name.

    Returns:
        A sentence that names the file, and what to type to have it measured again; "" where it can be drawn from.
    """
    if not exists(folder, name):
        return _none(folder, name)
    try:
        parsed(folder, name)
    except UnusableTable as error:
        return str(error)
    reason = why_stale(folder, name)
    return told_stale(folder, name, reason) if reason and not reason.startswith(versions.INTERVALS) else ""


def has(folder: str | Path, name: str) -> bool:
    """Whether a model has a table that can be drawn from.

    Args:
        folder: the model's folder.
        name: the table's name.

    Returns:
        True if so.
    """
    return not why_not(folder, name)


def read(folder: str | Path, name: str) -> pd.DataFrame:
    """One model's table, with empty controls as "".

    Args:
        folder: The model's folder.
        name: The table's name.

    Returns:
        Its rows. Those of a stale table come with the warning `StaleTable`.

    Raises:
        ConfigError: There is no such table; the message names the command to type.
        UnusableTable: It is not what the probe wrote, or no table at all.
    """
    if not exists(folder, name):
        raise ConfigError(_none(folder, name))
    frame = parsed(folder, name)
    reason = why_stale(folder, name)
    if reason.startswith(versions.INTERVALS):
        warn_of_intervals(name, reason)
    elif reason:
        warnings.warn(told_stale(folder, name, reason), StaleTable, stacklevel=2)
    return frame


def read_episodes(folder: str | Path, name: str) -> pd.DataFrame:
    """The per-episode rows behind a model's table.

    Args:
        folder: The model's folder.
        name: The table's name.

    Returns:
        One row per episode, with what the probe keeps of it.

    Raises:
        UnusableTable: There are none, or they are not what was measured with the table.
    """
    try:
        return pd.read_parquet(io.BytesIO(files_of(folder, name).read(EPISODES).content))
    except (DamagedFile, ValueError, OSError, NotImplementedError) as error:  # pyarrow's errors are of these kinds
        raise unusable(folder, name, f"its per-episode rows cannot be read ({_line(error)})") from error


def parsed(folder: str | Path, name: str) -> pd.DataFrame:
    """A table as it was saved, stale or not.

    Args:
        folder: the model's folder.
        name: the table's name.

    Returns:
        Its rows, the caller's own.

    Raises:
        UnusableTable: it is not what the probe wrote, or no table at all.
    """
    return _whole(folder, name).copy()


@_once
def _whole(folder: str | Path, name: str) -> pd.DataFrame:
    """A table as it was saved; its rows are shared: to be copied."""
    try:
        return _frame(files_of(folder, name).read(TABLE).content)
    except (DamagedFile, ValueError) as error:  # pandas' errors, and those of text, are of the latter kind
        raise unusable(folder, name, _line(error)) from error


@functools.lru_cache(maxsize=128)
def _frame(content: bytes) -> pd.DataFrame:
    """A table from the bytes of its file; ValueError where they hold none. Its rows are shared: to be copied.

    Words are Python's own strings: a diagnosis picks a few rows of small tables, thousands of times, and those of Arrow take
    twice as long to pick.
    """
    with pd.option_context("mode.string_storage", "python"):
        frame = _read(content)
    return frame.set_axis(list(frame.columns), axis=1)


def _read(content: bytes) -> pd.DataFrame:
    labels = [c for c in _header(content) if c.startswith("label.")] if b"label." in content else []
    text = {*TEXT, *labels}
    try:
        words = dict.fromkeys(text, str)
        frame = pd.read_csv(io.BytesIO(content), dtype=words, keep_default_na=False, na_values=cells.MISSING)
    except ValueError:
        _require_columns(_header(content))
        raise
    _require_columns(frame.columns)
    frame = frame.fillna({column: "" for column in frame if column in text})
    for column in NUMBERS:
        if not pd.api.types.is_numeric_dtype(frame[column]):
            raise ValueError(f"its column {column!r} holds what is no number")
    if b"'" in content or "␍".encode() in content:  # else nothing was escaped
        frame = cells.unescaped(frame)
    there = {column: words for column, words in RENAMED.items() if column in frame}
    older = {column: words for column, words in there.items() if any(word.encode() in content for word in words)}
    return frame.replace(older) if older else frame


def _header(content: bytes) -> pd.Index:
    return pd.read_csv(io.BytesIO(content), nrows=0).columns


def _require_columns(header: pd.Index) -> None:
    lacking = [column for column in COLUMNS if column not in header]
    if lacking:
        raise ValueError(f"it lacks the column {lacking[0]!r}")


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:200]


def warn_of_intervals(name: str, reason: str) -> None:
    """Warn that the intervals of a table are older; one sentence for all the models of a figure.

    Args:
        name: the table's name.
        reason: what `why_stale` says.
    """
    told, seen = f"tables {name!r}: {reason}; measure again with: compolens probe {name} FOLDER", _SEEN.get()
    if seen is not None and told in seen:
        return
    if seen is not None:
        seen[told] = True
    warnings.warn(told, OlderIntervals, stacklevel=3)
