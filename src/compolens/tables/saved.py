"""A table beside its model: where it is, how it is written, and what is said where it cannot be used."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from compolens.foundation import cells, digests, table_files, versions
from compolens.foundation.configs import ConfigError, outside_names
from compolens.foundation.files import DamagedFile
from compolens.foundation.table_files import EPISODES, TABLE, TableFiles
from compolens.tables.rows import COLUMNS

CHANGED = "the table was changed after it was measured"
"""What `why_stale` says where the table itself is not what the probe wrote."""


class StaleTable(UserWarning):
    """A table that no longer says what its probe would, or that cannot be used at all."""


class OlderIntervals(StaleTable):
    """A table whose values are what its probe gives, while its intervals are computed in another way now."""


class UnusableTable(DamagedFile):
    """A table that is damaged or no table: the message names the file, and what to type to have it measured again."""


def path_of(folder: str | Path, name: str) -> Path:
    """Where a table is.

    Args:
        folder: the model's folder.
        name: the table's name.

    Returns:
        The path, whether or not it exists; that of the packed table (<name>.csv.gz) where there is no plain one.
    """
    return TableFiles(Path(folder) / "tables", name).place(TABLE)


def files_of(folder: str | Path, name: str) -> TableFiles:
    """The files of a table, after what a killed process left among them was put right.

    Args:
        folder: the model's folder.
        name: the table's name.

    Returns:
        The files, whether or not they exist.
    """
    place = Path(folder) / "tables"
    table_files.settle(place)
    return TableFiles(place, name)


def file_digest(path: str | Path) -> str:
    """sha256 of the file `path`, "missing" if there is none."""
    return digests.of_file(path)


def save(
    folder: str | Path, name: str, table: pd.DataFrame, provenance: dict[str, Any], episodes: pd.DataFrame | None = None
) -> Path:
    """Write a table, its provenance and its per-episode rows (<name>.episodes.parquet) beside a model.

    Killed or out of disk at any moment, what was there before is there, whole, or the new table is.

    Args:
        folder: The model's folder.
        name: The table's name, which is the probe's.
        table: Its rows, with the columns of `COLUMNS` at least, controls among them.
        provenance: What it was measured with; `versions.describe` gives what is to be said of the probe. The sha256 of the
            files that are written here ("table", "episodes") are added to it.
        episodes: The per-episode rows, if there are any.

    Returns:
        The table's path.

    Raises:
        ConfigError: The table lacks a column or has no control rows.
        SaveError: A file could not be written; what was there before is untouched.
    """
    for column in COLUMNS:
        if column not in table:
            raise ConfigError(f"the table {name!r} lacks the column {column!r}; every table has {', '.join(COLUMNS)}")
    if not table["control"].astype(str).str.len().gt(0).any():
        raise ConfigError(f"the table {name!r} has no control rows (column 'control'); no number without its controls")
    parts = {TABLE: _whole(cells.escaped(table)).to_csv(index=False, float_format="%.6g").encode()}
    if episodes is not None:
        parts[EPISODES] = episodes.to_parquet(index=False)
    TableFiles(Path(folder) / "tables", name).write(provenance, parts)
    return path_of(folder, name)


def _whole(table: pd.DataFrame) -> pd.DataFrame:
    """A table whose columns of whole numbers are such: with a gap they are floats to pandas, written with six digits."""
    for column in table.select_dtypes("float"):
        held = table[column].dropna()
        if held.abs().between(1e6, 2**53).any() and (held.abs() <= 2**53).all() and (held % 1 == 0).all():
            table = table.assign(**{str(column): table[column].astype("Int64")})
    return table


def exists(folder: str | Path, name: str) -> bool:
    """Whether a model has a table, usable or not.

    Args:
        folder: the model's folder.
        name: the table's name.

    Returns:
        True if so.
    """
    return files_of(folder, name).exists()


def names(folder: str | Path) -> list[str]:
    """The names of the tables of the model in `folder`, sorted, whether or not they can be used."""
    place = Path(folder) / "tables"
    table_files.settle(place)
    return table_files.names(place)


def provenance_of(folder: str | Path, name: str) -> dict[str, Any]:
    """What a table was measured with.

    Args:
        folder: the model's folder.
        name: the table's name.

    Returns:
        {} where nothing says it.

    Raises:
        UnusableTable: it cannot be read.
    """
    try:
        return files_of(folder, name).provenance()
    except DamagedFile as error:
        raise unusable(folder, name, str(error)) from error


def lacks(folder: str | Path, name: str, column: str) -> UnusableTable:
    """The error of a table without a column that its probe writes.

    Args:
        folder: the model's folder.
        name: the table's name.
        column: the column.

    Returns:
        The error, to be raised.
    """
    return unusable(folder, name, f"it lacks the column {column!r}")


def told_stale(folder: str | Path, name: str, reason: str) -> str:
    """A sentence about a table that cannot be drawn from.

    Args:
        folder: the model's folder.
        name: the table's name.
        reason: what `why_stale` says.

    Returns:
        The sentence, which names the file and what to type.
    """
    path, state = path_of(folder, name), "changed" if reason == CHANGED else "stale"
    return f"{path} is {state}: {reason}; {_mend(folder, name)}"


def unusable(folder: str | Path, name: str, reason: str) -> UnusableTable:
    """The error of a table that cannot be used.

    Args:
        folder: the model's folder.
        name: the table's name.
        reason: why not.

    Returns:
        The error, to be raised.
    """
    path = path_of(folder, name)
    told = reason if str(path.parent) in reason else f"{path} cannot be used: {reason}"
    return UnusableTable(f"{told}; {_mend(folder, name)}")


def _mend(folder: str | Path, name: str) -> str:
    """What to type to have a table measured again, by the probe that measured it and with what was typed then."""
    return f"measure it again with: {again(folder, name)}"


def again(folder: str | Path, name: str) -> str:
    """The line to type that measures a table again.

    Args:
        folder: the model's folder.
        name: the table's name.

    Returns:
        The line, with the arguments that the table was measured with where they are not the probe's defaults.
    """
    try:
        provenance = TableFiles(Path(folder) / "tables", name).provenance()
    except DamagedFile:
        provenance = {}
    recipe, arguments = versions.recipe_of(name, provenance), provenance.get("arguments")
    flags = versions.typed(recipe, arguments) if recipe is not None and isinstance(arguments, dict) else []
    return command_of(probe_of(folder, name), folder, flags)


def probe_of(folder: str | Path, name: str) -> str:
    """What the probe is called that measured a table.

    Args:
        folder: the model's folder.
        name: the table's name.

    Returns:
        The path of its file, or the bare name of a built-in one.
    """
    try:
        own = TableFiles(Path(folder) / "tables", name).provenance().get("recipe_path")
    except DamagedFile:
        own = None
    return own if isinstance(own, str) and own else name


def command_of(probe: str | Sequence[str], folder: str | Path, flags: Sequence[str] = ()) -> str:
    """The line to type that measures a model.

    Args:
        probe: by path or bare name; or several.
        folder: the model's folder.
        flags: what else to type.

    Returns:
        The line; of an adopted network, with the classes and functions that have to be handed over.
    """
    probes = [probe] if isinstance(probe, str) else probe
    outside = [f"FILE.py:{name}" for name in _handed_over(Path(folder))]
    handed = [word for place in outside for word in ("--with", place)]
    return shlex.join(["compolens", "probe", *probes, str(folder), *flags, *handed])


def _handed_over(folder: Path) -> list[str]:
    """The names of a user's classes and functions that a model's folder refers to; none where it cannot be read."""
    try:
        return sorted(outside_names(digests.read_run(folder)))
    except (ConfigError, OSError):
        return []
