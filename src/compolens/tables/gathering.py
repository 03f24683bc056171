"""Tables of many models in one, with the models' settings as columns."""

from __future__ import annotations

import glob
import json
import warnings
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pandas as pd

from compolens.foundation import digests, files, map_files, versions
from compolens.foundation.configs import ConfigError, nearest
from compolens.foundation.files import DamagedFile
from compolens.foundation.model_folders import (
    ADOPTED,
    distinct,
    escaped,
    find,
    find_maps,
    finished,
    named,
    network_arguments,
    network_name,
    sites_name,
)
from compolens.tables.reading import meant, parsed, read, warn_of_intervals, why_stale
from compolens.tables.rows import at_last_step
from compolens.tables.saved import StaleTable, UnusableTable, command_of, exists, names, told_stale

RENAMED_SETTINGS = {"optimizer.decay": {"code": "AllButVectors", "paper": "MatricesOnly"}}
"""Setting -> what folders of version 0.1 say of it -> what folders say now; equal runs have equal settings."""


def settings(folder: str | Path) -> dict[str, Any]:
    """The configuration of the model in `folder`, flattened into columns: model, architecture, task, support, seeds, steps, …

    Settings that are off (null or false) are left out: a model that was trained before a setting existed has none either."""
    row = {k: v for k, v in _described(folder).items() if v is not None and v is not False}
    files.require_regular(Path(folder) / digests.SCORES)
    return row | {"score_name": _score_name(folder) if finished(Path(folder)) else "score"}


def switched_off(folder: str | Path) -> set[str]:
    """The names of the settings that `settings` leaves out of the model in `folder`, because they are null or false."""
    return {k for k, v in _described(folder).items() if v is None or v is False}


def _described(folder: str | Path) -> dict[str, Any]:
    """All settings in the configuration of a model, those included that are off."""
    config = digests.read_config(folder)
    digests.check(folder, digests.CONFIG)
    run = config["run"]
    row: dict[str, Any] = {"model": named(folder).name, "folder": str(folder)}
    for part in ("architecture", "task", "optimizer"):
        if not isinstance(run.get(part), dict) or not isinstance(run[part].get("class"), str):
            raise DamagedFile(f"{Path(folder) / digests.CONFIG} describes no {part}; restore it, or train the run again")
    row |= {"architecture": network_name(run["architecture"]), "task": run["task"]["class"]}
    for part in ("architecture", "task", "optimizer"):
        row |= _flat(part, run[part])
    if _adopted(folder):
        made = {f"architecture.arguments.{k}": v for k, v in network_arguments(run["architecture"]).items()}
        row = {k: v for k, v in row.items() if k != "architecture.arguments"} | _flat_values(made)
        row["architecture.sites"] = sites_name(run["architecture"])
    row |= {k: RENAMED_SETTINGS[k].get(row[k], row[k]) for k in RENAMED_SETTINGS.keys() & row.keys()}
    row |= {k: v for k, v in run.items() if not isinstance(v, dict | list) and k != "class"}
    return row | {"task.setting": config.get("setting")}  # None in folders of version 0.1


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
            row |= _flat_values({f"{name}.{key}": value})
    return row


def _flat_values(row: dict[str, Any]) -> dict[str, Any]:
    return {name: json.dumps(value) if isinstance(value, list | dict) else value for name, value in row.items()}


def _adopted(folder: str | Path) -> bool:
    return digests.read_config(folder)["run"]["architecture"]["class"] == ADOPTED


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
    never_trained = known["steps"] == 0 and not _adopted(folder)
    return rows[~(never_trained & rows["control"].str.startswith("untrained"))].assign(model=named(folder).name)


def gather(folders: str | Path | Iterable[str | Path], table: str) -> pd.DataFrame:
    """One DataFrame from the tables of many models, joined with their configs and seeds as columns.

    Args:
        folders: Paths, or patterns with * and ? such as "runs/**"; a folder of folders stands for all models below it, or for
            the maps below it where it holds no model.
        table: The table's name; of maps, whose one table has a row per model, "table" or "history".

    Returns:
        The rows of all models. Left out are models without the table (`frame.attrs["missing"]` names them) and those whose
        table is stale or damaged, or whose folder is: each is told by the warning `StaleTable`, and
        `frame.attrs["left_out"]` says why (folder -> reason).

    Raises:
        ConfigError: No model is there, or none has the table.
    """
    patterns = [folders] if isinstance(folders, str | Path) else list(folders)
    if not patterns:
        raise ConfigError('gather was given no folder; name some, such as gather("runs/*", "generalization")')
    paths = distinct(path for pattern in patterns for path in _matched(str(pattern)))
    if maps := [p for p in paths if map_files.is_map(p)]:
        return _gather_maps(maps, table, [p for p in paths if p not in maps and (p / "config.json").is_file()])
    models = [p for p in paths if (p / "config.json").is_file()]
    if not models:
        raise ConfigError(
            f"no trained model matches {', '.join(map(str, patterns))}; compolens models DIR lists those of a folder"
        )
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


def _matched(pattern: str) -> list[Path]:
    """What a path or a pattern stands for: a folder that is neither a model nor a map, named itself, for the models below it,
    or else for the maps. A pattern that matches a map does not stand for the models in its cells, too."""
    place = Path(pattern)
    if place.is_dir() and not (place / "config.json").is_file() and not map_files.is_map(place):
        for below in (find, find_maps):
            with suppress(ConfigError):
                return below([place])
    if place.exists():
        return [named(place)]
    literal = glob.glob(escaped(pattern), recursive=True)  # brackets in a name come before sets of characters
    found = [Path(path) for path in sorted(literal or glob.glob(pattern, recursive=True))]
    cells = [path / map_files.CELLS for path in found if map_files.is_map(path)]
    return [path for path in found if not any(path.is_relative_to(cell) for cell in cells)] or [place]


def _gather_maps(maps: list[Path], table: str, models: list[Path]) -> pd.DataFrame:
    """The rows of maps; a `ConfigError` where models are among them, whose tables are of another kind."""
    if models:
        raise ConfigError(f"{maps[0]} is a map and {models[0]} a model; gather one kind at a time")
    if table not in ("table", "history"):
        raise ConfigError(f"a map has no table {table!r}; {nearest(table, ('table', 'history'))}")
    return pd.concat([map_files.read_table(folder, f"{table}.csv") for folder in maps], ignore_index=True)


def _with_settings(folder: Path, table: str) -> pd.DataFrame:
    """A model's table with its settings as columns; `DamagedFile` where it is stale, or either cannot be read."""
    rows = parsed(folder, table)
    reason = why_stale(folder, table)
    if reason.startswith(versions.INTERVALS):  # as in `read`: the values can be used
        warn_of_intervals(table, reason)
    elif reason:
        raise UnusableTable(told_stale(folder, table, reason))
    return rows.assign(**{k: v for k, v in settings(folder).items() if k not in rows.columns})


def _nobody_has(table: str, models: list[Path]) -> str:
    near = nearest(table, {name for folder in models for name in names(folder)})
    return (
        f"none of the {len(models)} models has a table {table!r} ({near}); "
        f"measure it with: {command_of(meant(table, models), models[0])}"
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
