"""A map's folder: many trained models as rows of one table. Reading and writing it, checked; never imports torch.

    NAME/config.json       what was described: {"format": 1, "kind": "map" or "tuning", …, "cells": {name: {"knobs", "run"}}}
    NAME/table.csv         one row per trained model: its knobs, its seed, its scores
    NAME/history.csv       scores along training, where the map keeps them
    NAME/provenance.json   sha256 of these files, with what and by which command they were made; sealed
    NAME/cells/            cells in training, and the models whose weights are kept

A folder with table.csv and provenance.json is a map, not a model.
"""

from __future__ import annotations

import io
from pathlib import Path
from typing import TYPE_CHECKING, Any

from compolens.foundation import cells, digests, files
from compolens.foundation.configs import ConfigError
from compolens.foundation.files import DamagedFile

if TYPE_CHECKING:
    import pandas as pd

CONFIG, TABLE, HISTORY, PROVENANCE = "config.json", "table.csv", "history.csv", "provenance.json"
CELLS = "cells"
"""The folder of cells in training, and of those whose weights are kept."""
KINDS = ("map", "tuning")


def is_map(folder: str | Path) -> bool:
    """Whether `folder` is a map, finished or not."""
    folder = Path(folder)
    return (folder / TABLE).is_file() and (folder / PROVENANCE).is_file()


def write(
    folder: Path, config: dict[str, Any], table: pd.DataFrame, history: pd.DataFrame | None, about: dict[str, Any]
) -> None:
    """Write a map's files; provenance comes last, and says what the others are.

    Args:
        folder: the map's.
        config: what was described.
        table: one row per trained model.
        history: scores along training (None: not kept).
        about: what provenance says besides: versions, environments, the command.

    Raises:
        SaveError: the disk refused.
    """
    content = {CONFIG: files.json_bytes(config), TABLE: _csv(table)}
    if history is not None and len(history):
        content[HISTORY] = _csv(history)
    known = {name: digests.of_bytes(written) for name, written in content.items()}
    if is_map(folder):  # a call that ends between the files leaves some of them old and some new: both are ours
        files.write_json(folder / PROVENANCE, digests.sealed({**provenance(folder), "next": known}))
    for name, written in content.items():
        if not (folder / name).is_file() or (folder / name).read_bytes() != written:
            files.write_atomically(folder / name, written)
    files.write_json(folder / PROVENANCE, digests.sealed({"format": 1, **about, "files": known}))


def _csv(table: pd.DataFrame) -> bytes:
    return cells.escaped(table).to_csv(index=False, float_format="%.8g", lineterminator="\n").encode()


def provenance(folder: str | Path) -> dict[str, Any]:
    """What a map was made with.

    Args:
        folder: the map's.

    Returns:
        "files": name -> sha256; and what was written beside it.

    Raises:
        DamagedFile: it is not what was written.
    """
    path = Path(folder) / PROVENANCE
    found = files.read_json(path)
    if not isinstance(found, dict) or digests.is_broken(found) or not isinstance(found.get("files"), dict):
        raise DamagedFile(f"{path} is not what was written; restore it, or make the map again in another folder")
    return found


def damaged(folder: str | Path) -> list[str]:
    """A sentence for every file of the map in `folder` that is not what was written."""
    try:
        known = _known(folder)
    except DamagedFile as error:
        return [str(error)]
    wrong = [name for name, written in known.items() if digests.of_file(Path(folder) / name) not in written]
    return [f"{Path(folder) / name} changed after it was written; restore it, or make the map again" for name in wrong]


def _known(folder: str | Path) -> dict[str, set[str]]:
    """File -> digests that it may have: more than one after a call that ended between writing the files."""
    about = provenance(folder)
    every = (about["files"], about.get("next", {}))
    return {name: {known[name] for known in every if name in known} for name in every[0] | every[1]}


def _checked(folder: str | Path, name: str) -> Path:
    path = Path(folder) / name
    if digests.of_file(path) not in _known(folder).get(name, set()):
        raise DamagedFile(f"{path} changed after it was written; restore it, or make the map again in another folder")
    return path


def read_config(folder: str | Path) -> dict[str, Any]:
    """What a map's config.json says.

    Args:
        folder: the map's.

    Returns:
        "kind", "title", "knobs", "cells" and what else was described.

    Raises:
        DamagedFile: it is not what was written, or describes no map.
    """
    path = Path(folder) / CONFIG
    _checked(folder, CONFIG)
    config = files.read_json(path)
    if not isinstance(config, dict) or config.get("kind") not in KINDS or config.get("format") != 1:
        raise DamagedFile(f"{path} describes no map of format 1; restore it, or install a later version of compolens")
    return config


def read_table(folder: str | Path, name: str = TABLE) -> pd.DataFrame:
    """A map's rows.

    Args:
        folder: the map's.
        name: which of its tables.

    Returns:
        One row per trained model (or, of history.csv, per model and step), with a column `map`.

    Raises:
        DamagedFile: it is not what was written.
        ConfigError: there is no such table.
    """
    import pandas as pd

    if not (Path(folder) / name).is_file():
        raise ConfigError(f"{folder} has no {name}; it is kept where the map is described with keep_history=True")
    knobs = _knobs(Path(folder) / CONFIG)
    in_words = {name for values in knobs.values() for name, value in values.items() if isinstance(value, str)}
    text = {"cell", "run", "architecture", "task", "score_name", "note", *in_words}
    content = _checked(folder, name).read_bytes()
    header = pd.read_csv(io.BytesIO(content), nrows=0).columns
    words = {c: str for c in text if c in header}
    frame = pd.read_csv(io.BytesIO(content), dtype=words, keep_default_na=False, na_values=cells.MISSING)
    frame = _with_knobs(cells.unescaped(frame), knobs, in_words) if name == TABLE else cells.unescaped(frame)
    return frame.copy().assign(map=Path(folder).name)  # whole again, where columns are many


def why_without_scores(folder: str | Path, table: pd.DataFrame) -> str:
    """Why a map has no score to draw.

    Args:
        folder: the map's.
        table: its rows.

    Returns:
        The reason, and what to do; "" where there are scores.
    """
    if "test" in table:
        return ""
    return f"{folder}: all {len(table)} trainings diverged; describe it with smaller learning rates"


def _knobs(config: Path) -> dict[str, dict[str, Any]]:
    """Cell -> its knobs, as described."""
    described = files.read_json(config).get("cells", {}) if config.is_file() else {}
    return {name: cell.get("knobs", {}) for name, cell in described.items()}


def _with_knobs(frame: pd.DataFrame, knobs: dict[str, dict[str, Any]], in_words: set[str]) -> pd.DataFrame:
    """Rows with their knobs as described: a CSV holds eight digits of a number, and words such as "" and "nan" are none there.

    Cells that a tuning was extended by are not described; theirs are those of the CSV.
    """
    import pandas as pd

    for knob in sorted({name for values in knobs.values() for name in values} & set(frame) if len(frame) else ()):
        known = [knobs.get(cell, {}).get(knob) for cell in frame["cell"]]
        told = [value if value is None or knob not in in_words else str(value) for value in known]
        values = [read if value is None else value for value, read in zip(told, frame[knob].tolist(), strict=True)]
        frame[knob] = pd.Series(values, index=frame.index, dtype=frame[knob].dtype if knob in in_words else None)
    return frame
