"""Tidy tables with provenance beside the model they measure: save, read, gather; and intervals over seeds and compositions.

A table is ``<model>/tables/<probe>.csv`` with columns metric, value, lo, hi, split, site, role, control, n and whatever else
it needs. The .json beside it holds the sha256 of the weights and of the table, the probe's version and a digest of its code,
and the arguments; a table is stale when the weights or the numbers of its probe changed since, and unusable when it is not
what the probe wrote. Never imports torch.
"""

from __future__ import annotations

import functools
import glob
import io
import json
import math
import shlex
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any, TypeVar

import pandas as pd

from compolens.foundation import cells, digests, files, map_files, table_files, versions
from compolens.foundation.configs import ConfigError, nearest
from compolens.foundation.files import DamagedFile
from compolens.foundation.model_folders import find as find
from compolens.foundation.model_folders import find_maps as find_maps
from compolens.foundation.model_folders import finished as finished
from compolens.foundation.moved import elsewhere
from compolens.foundation.table_files import EPISODES, TABLE, TableFiles

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


RENAMED_SETTINGS = {"optimizer.decay": {"code": "AllButVectors", "paper": "MatricesOnly"}}
"""Setting -> what folders of version 0.1 say of it -> what folders say now; equal runs have equal settings."""


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
        The path, whether or not it exists.
    """
    return Path(folder) / "tables" / f"{name}.csv"


def _files(folder: str | Path, name: str) -> TableFiles:
    """The files of a table, after what a killed process left among them was put right."""
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
    parts = {TABLE: cells.escaped(table).to_csv(index=False, float_format="%.6g").encode()}
    if episodes is not None:
        parts[EPISODES] = episodes.to_parquet(index=False)
    TableFiles(Path(folder) / "tables", name).write(provenance, parts)
    return path_of(folder, name)


# ---- whether a table can be used -------------------------------------------------------------------------------------
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
        return _files(folder, name).provenance()
    except DamagedFile as error:
        raise _unusable(folder, name, str(error)) from error


_SEEN: ContextVar[dict[Any, Any] | None] = ContextVar("seen", default=None)


@contextmanager
def read_once() -> Iterator[None]:
    """Have every table read and checked at most once: what is drawn or said meanwhile is said of one state of the files.

    A diagnosis asks for the same table some fifty times. Blocks within a block belong to it.

    Returns:
        The context; it also decorates functions.
    """
    if _SEEN.get() is not None:
        yield
        return
    token = _SEEN.set({})
    try:
        yield
    finally:
        _SEEN.reset(token)


Found = TypeVar("Found")


def _once(function: Callable[[str | Path, str], Found]) -> Callable[[str | Path, str], Found]:
    """Remembers, in a block of `read_once`, what a function found out about a table."""

    @functools.wraps(function)
    def remembered(folder: str | Path, name: str) -> Found:
        seen = _SEEN.get()
        if seen is None:
            return function(folder, name)
        key = (function.__name__, str(folder), name)
        if key not in seen:
            seen[key] = function(folder, name)
        return seen[key]

    return remembered


def _warn_of_intervals(name: str, reason: str) -> None:
    """One sentence for all the models of a figure."""
    told, seen = f"tables {name!r}: {reason}; measure again with: compolens probe {name} FOLDER", _SEEN.get()
    if seen is not None and told in seen:
        return
    if seen is not None:
        seen[told] = True
    warnings.warn(told, OlderIntervals, stacklevel=3)


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
    table = _files(folder, name)
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


def why_not(folder: str | Path, name: str) -> str:
    """Why nothing can be drawn from a model's table: there is none, it is stale, damaged, or cannot be read.

    Args:
        folder: the model's folder.
        name: the table's name.

    Returns:
        A sentence that names the file, and what to type to have it measured again; "" where it can be drawn from.
    """
    if not exists(folder, name):
        return f"{folder} has no table {name!r}; measure it with: compolens probe {name} {folder}"
    try:
        _parsed(folder, name)
    except UnusableTable as error:
        return str(error)
    reason = why_stale(folder, name)
    return _told(folder, name, reason) if reason and not reason.startswith(versions.INTERVALS) else ""


def exists(folder: str | Path, name: str) -> bool:
    """Whether a model has a table, usable or not.

    Args:
        folder: the model's folder.
        name: the table's name.

    Returns:
        True if so.
    """
    return _files(folder, name).exists()


def has(folder: str | Path, name: str) -> bool:
    """Whether a model has a table that can be drawn from.

    Args:
        folder: the model's folder.
        name: the table's name.

    Returns:
        True if so.
    """
    return not why_not(folder, name)


def names(folder: str | Path) -> list[str]:
    """The names of the tables of the model in `folder`, sorted, whether or not they can be used."""
    place = Path(folder) / "tables"
    table_files.settle(place)
    return sorted(path.stem for path in place.glob("*.csv") if path.is_file())


def lacks(folder: str | Path, name: str, column: str) -> UnusableTable:
    """The error of a table without a column that its probe writes.

    Args:
        folder: the model's folder.
        name: the table's name.
        column: the column.

    Returns:
        The error, to be raised.
    """
    return _unusable(folder, name, f"it lacks the column {column!r}")


def _told(folder: str | Path, name: str, reason: str) -> str:
    path, state = path_of(folder, name), "changed" if reason == CHANGED else "stale"
    return f"{path} is {state}: {reason}; {_mend(folder, name)}"


def _unusable(folder: str | Path, name: str, reason: str) -> UnusableTable:
    path = path_of(folder, name)
    told = reason if str(path.parent) in reason else f"{path} cannot be used: {reason}"
    return UnusableTable(f"{told}; {_mend(folder, name)}")


def _mend(folder: str | Path, name: str) -> str:
    """What to type to have a table measured again, by the probe that measured it."""
    try:
        own = TableFiles(Path(folder) / "tables", name).provenance().get("recipe_path")
    except DamagedFile:
        own = None
    probe = own if isinstance(own, str) and own else name
    return f"measure it again with: compolens probe {shlex.quote(probe)} {shlex.quote(str(folder))}"


# ---- reading ---------------------------------------------------------------------------------------------------------
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
        raise ConfigError(f"{folder} has no table {name!r}; measure it with: compolens probe {name} {folder}")
    frame = _parsed(folder, name)
    reason = why_stale(folder, name)
    if reason.startswith(versions.INTERVALS):
        _warn_of_intervals(name, reason)
    elif reason:
        warnings.warn(_told(folder, name, reason), StaleTable, stacklevel=2)
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
        return pd.read_parquet(io.BytesIO(_files(folder, name).read(EPISODES).content))
    except (DamagedFile, ValueError, OSError, NotImplementedError) as error:  # pyarrow's errors are of these kinds
        raise _unusable(folder, name, f"its per-episode rows cannot be read ({_line(error)})") from error


def _parsed(folder: str | Path, name: str) -> pd.DataFrame:
    return _whole(folder, name).copy()


@_once
def _whole(folder: str | Path, name: str) -> pd.DataFrame:
    """A table as it was saved; its rows are shared: to be copied."""
    try:
        return _frame(_files(folder, name).read(TABLE).content)
    except (DamagedFile, ValueError) as error:  # pandas' errors, and those of text, are of the latter kind
        raise _unusable(folder, name, _line(error)) from error


@functools.lru_cache(maxsize=128)
def _frame(content: bytes) -> pd.DataFrame:
    """A table from the bytes of its file; ValueError where they hold none. Its rows are shared: to be copied."""
    header = pd.read_csv(io.BytesIO(content), nrows=0).columns
    lacking = [column for column in COLUMNS if column not in header]
    if lacking:
        raise ValueError(f"it lacks the column {lacking[0]!r}")
    text = dict.fromkeys([c for c in header if c in TEXT or c.startswith("label.")], "")
    frame = pd.read_csv(io.BytesIO(content), dtype={c: str for c in text}, keep_default_na=True).fillna(text)
    for column in NUMBERS:
        if not pd.api.types.is_numeric_dtype(frame[column]):
            raise ValueError(f"its column {column!r} holds what is no number")
    frame = cells.unescaped(frame)
    return frame.replace({column: words for column, words in RENAMED.items() if column in frame})


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:200]


def at_last_step(frame: pd.DataFrame) -> pd.DataFrame:
    """The rows of `frame` about trained models, without those along training; of several gathered models, each at its own last
    step."""
    if "step" not in frame:
        return frame
    last = frame.groupby("model")["step"].transform("max") if "model" in frame else frame["step"].max()
    return frame[frame["step"] == last]


def with_untrained_control(folder: str | Path, name: str) -> pd.DataFrame:
    """A model's rows at its last step, with a column `model`.

    Those of the untrained control of what was never trained (a construction) are left out: it is the model itself.

    Args:
        folder: the model's folder.
        name: the table's name.

    Returns:
        The rows.
    """
    rows = at_last_step(read(folder, name))
    known = settings(folder)
    never_trained = known["steps"] == 0 and known["architecture"] != "Adopted"
    return rows[~(never_trained & rows["control"].str.startswith("untrained"))].assign(model=Path(folder).name)


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


def settings(folder: str | Path) -> dict[str, Any]:
    """The configuration of the model in `folder`, flattened into columns: model, architecture, task, support, seeds, steps, …

    Settings that are off (null or false) are left out: a model that was trained before a setting existed has none either."""
    config = digests.read_config(folder)
    digests.check(folder, digests.CONFIG)
    run = config["run"]
    row: dict[str, Any] = {"model": Path(folder).name, "folder": str(folder)}
    for part in ("architecture", "task", "optimizer"):
        if not isinstance(run.get(part), dict) or not isinstance(run[part].get("class"), str):
            raise DamagedFile(f"{Path(folder) / digests.CONFIG} describes no {part}; restore it, or train the run again")
    row |= {"architecture": run["architecture"]["class"], "task": run["task"]["class"]}
    for part in ("architecture", "task", "optimizer"):
        row |= _flat(part, run[part])
    row |= {k: RENAMED_SETTINGS[k].get(row[k], row[k]) for k in RENAMED_SETTINGS.keys() & row.keys()}
    row |= {k: v for k, v in run.items() if not isinstance(v, dict | list) and k != "class"}
    row |= {"task.setting": config.get("setting")}  # None in folders of version 0.1
    row = {k: v for k, v in row.items() if v is not None and v is not False}
    files.require_regular(Path(folder) / digests.SCORES)
    return row | {"score_name": _score_name(folder) if finished(Path(folder)) else "score"}


def _score_name(folder: str | Path) -> str:
    found = digests.read_scores(folder).get("score")
    if not isinstance(found, str):
        raise DamagedFile(f"{Path(folder) / digests.SCORES} does not name its score; restore it, or train the run again")
    return found


def _flat(name: str, description: dict[str, Any]) -> dict[str, Any]:
    """The settings inside a description, those of descriptions within it included: name.setting.setting."""
    row: dict[str, Any] = {}
    for key, value in description.items():
        if key == "class":
            continue
        if isinstance(value, dict) and "class" in value:
            row |= {f"{name}.{key}": value["class"]} | _flat(f"{name}.{key}", value)
        elif isinstance(value, dict) and set(value) == {"outside"}:
            row[f"{name}.{key}"] = value["outside"]
        else:
            row[f"{name}.{key}"] = json.dumps(value) if isinstance(value, list | dict) else value
    return row


def gather(folders: str | Path | Iterable[str | Path], table: str) -> pd.DataFrame:
    """One DataFrame from the tables of many models, joined with their configs and seeds as columns.

    Args:
        folders: Paths, or a glob such as "runs/**".
        table: The table's name; of maps, whose one table has a row per model, "table" or "history".

    Returns:
        The rows of all models. Left out are models without the table (`frame.attrs["missing"]` names them) and those whose
        table is stale or damaged, or whose folder is: each is told by the warning `StaleTable`, and
        `frame.attrs["left_out"]` says why (folder -> reason).

    Raises:
        ConfigError: No model is there, or none has the table.
    """
    patterns = [folders] if isinstance(folders, str | Path) else list(folders)
    paths = [Path(p) for pattern in patterns for p in (sorted(glob.glob(str(pattern), recursive=True)) or [str(pattern)])]
    if maps := [p for p in dict.fromkeys(paths) if map_files.is_map(p)]:
        return _gather_maps(maps, table, [p for p in paths if p not in maps and (p / "config.json").is_file()])
    models = [p for p in dict.fromkeys(paths) if (p / "config.json").is_file()]
    if not models:
        raise ConfigError(f"no trained model matches {', '.join(map(str, patterns))}")
    parts, missing, left_out = [], [], {}
    for folder in models:
        if not exists(folder, table):
            missing.append(str(folder))
            continue
        try:
            parts.append(_with_settings(folder, table))
        except DamagedFile as error:
            left_out[str(folder)] = str(error)
            warnings.warn(f"{folder} is left out: {error}", StaleTable, stacklevel=2)
    if not parts:
        raise ConfigError(next(iter(left_out.values()), "") or _nobody_has(table, models))
    frame = pd.concat(parts, ignore_index=True)
    frame.attrs |= {"missing": missing, "left_out": left_out}
    return frame


def _gather_maps(maps: list[Path], table: str, models: list[Path]) -> pd.DataFrame:
    """The rows of maps; a `ConfigError` where models are among them, whose tables are of another kind."""
    if models:
        raise ConfigError(f"{maps[0]} is a map and {models[0]} a model; gather one kind at a time")
    if table not in ("table", "history"):
        raise ConfigError(f"a map has no table {table!r}; {nearest(table, ('table', 'history'))}")
    return pd.concat([map_files.read_table(folder, f"{table}.csv") for folder in maps], ignore_index=True)


def _with_settings(folder: Path, table: str) -> pd.DataFrame:
    """A model's table with its settings as columns; `DamagedFile` where it is stale, or either cannot be read."""
    rows = _parsed(folder, table)
    reason = why_stale(folder, table)
    if reason.startswith(versions.INTERVALS):  # as in `read`: the values can be used
        _warn_of_intervals(table, reason)
    elif reason:
        raise UnusableTable(_told(folder, table, reason))
    return rows.assign(**{k: v for k, v in settings(folder).items() if k not in rows.columns})


def _nobody_has(table: str, models: list[Path]) -> str:
    available = {name for folder in models for name in names(folder)}
    return (
        f"none of the {len(models)} models has a table {table!r} ({nearest(table, available)}); "
        f"measure it with: compolens probe {table} {models[0]}"
    )


def pooled(folder: str | Path, metric: str = "score") -> pd.DataFrame:
    """The rows of a model's table `generalization` that pool all compositions under a metric, at its last step.

    Args:
        folder: the model's folder.
        metric: the metric.

    Returns:
        The rows.
    """
    frame = at_last_step(read(folder, "generalization"))
    return frame[(frame["metric"] == metric) & (frame["composition"] == "all")]


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


def __getattr__(name: str) -> Any:
    return elsewhere(__name__, name)
