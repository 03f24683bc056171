"""Tidy tables with provenance beside the model they measure: save, read, gather; and intervals over seeds and compositions.

A table is ``<model>/tables/<probe>.csv`` with columns metric, value, lo, hi, split, site, role, control, n and whatever else
it needs. The .json beside it holds the sha256 of the weights and of the table, the probe's version and a digest of its code,
and the arguments; a table is stale when the weights or the numbers of its probe changed since. Never imports torch.
"""

from __future__ import annotations

import glob
import hashlib
import json
import math
import shlex
import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from compolens.foundation import versions
from compolens.foundation.builtin import built_in
from compolens.foundation.configs import ConfigError, nearest
from compolens.foundation.files import read_json, write_atomically, write_json
from compolens.foundation.moved import elsewhere

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


CHANGED = "the table was changed after it was measured"
"""What `why_stale` says where the table itself is not what the probe wrote."""


class StaleTable(UserWarning):
    """A table that no longer says what its probe would: the weights, the probe's numbers or the table itself changed."""


def path_of(folder: str | Path, name: str) -> Path:
    """Where a table is.

    Args:
        folder: the model's folder.
        name: the table's name.

    Returns:
        The path, whether or not it exists.
    """
    return Path(folder) / "tables" / f"{name}.csv"


def file_digest(path: str | Path) -> str:
    """sha256 of the file `path`, "missing" if there is none."""
    path = Path(path)
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.exists() else "missing"


def save(
    folder: str | Path, name: str, table: pd.DataFrame, provenance: dict[str, Any], episodes: pd.DataFrame | None = None
) -> Path:
    """Write a table, its provenance and its per-episode rows (<name>.episodes.parquet) beside a model.

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
        ConfigError: the table lacks a column of `COLUMNS`, or has no control rows.
    """
    for column in COLUMNS:
        if column not in table:
            raise ConfigError(f"the table {name!r} lacks the column {column!r}; every table has {', '.join(COLUMNS)}")
    if not table["control"].astype(str).str.len().gt(0).any():
        raise ConfigError(f"the table {name!r} has no control rows (column 'control'); no number without its controls")
    path = path_of(folder, name)
    path.with_suffix(".json").unlink(missing_ok=True)  # written last: a table without provenance was interrupted
    write_atomically(path, table.to_csv(index=False, float_format="%.6g").encode())
    digests = {"table": file_digest(path)}
    if episodes is not None:
        beside = path.with_suffix(".episodes.parquet")
        write_atomically(beside, episodes.to_parquet(index=False))
        digests["episodes"] = file_digest(beside)
    write_json(path.with_suffix(".json"), provenance | digests)
    return path


def why_stale(folder: str | Path, name: str, recipe: str | Path | None = None) -> str:
    """Why a table no longer says what its probe would say of its model ("" if it does).

    Args:
        folder: The model's folder.
        name: The table's name.
        recipe: The probe's file; if left out, the one that measured the table (where it is gone, nothing is said of it).

    Returns:
        The reason in a sentence, "" if there is none.
    """
    path = path_of(folder, name)
    if not path.with_suffix(".json").exists():
        return "it has no provenance"
    provenance = read_json(path.with_suffix(".json"))
    if provenance["weights"] != file_digest(Path(folder) / "weights.safetensors"):
        return "the weights changed since it was measured"
    if "table" in provenance and provenance["table"] != file_digest(path):  # older tables have no digest of themselves
        return CHANGED
    recipe = recipe or provenance.get("recipe_path") or built_in("probes").get(name)
    return versions.why_changed(name, provenance, recipe) if recipe is not None and Path(recipe).exists() else ""


def read(folder: str | Path, name: str) -> pd.DataFrame:
    """One model's table, with empty controls as "". A stale or changed one warns.

    Args:
        folder: the model's folder.
        name: the table's name.

    Returns:
        The rows.

    Raises:
        ConfigError: there is no such table; it names the command to type.
    """
    path = path_of(folder, name)
    if not path.exists():
        raise ConfigError(f"{folder} has no table {name!r}; measure it with: compolens probe {name} {folder}")
    if reason := why_stale(folder, name):
        state = "changed" if reason == CHANGED else "stale"
        warnings.warn(f"{path} is {state}: {reason}; {_mend(folder, name)}", StaleTable, stacklevel=2)
    header = pd.read_csv(path, nrows=0).columns
    text = dict.fromkeys([c for c in header if c in TEXT or c.startswith("label.")], "")
    frame = pd.read_csv(path, dtype={c: str for c in text}, keep_default_na=True).fillna(text)
    return frame.replace({column: words for column, words in RENAMED.items() if column in frame})


def _mend(folder: str | Path, name: str) -> str:
    """What to type to have a table measured again, by the probe that measured it."""
    path = path_of(folder, name).with_suffix(".json")
    own = read_json(path).get("recipe_path") if path.exists() else None
    return f"measure it again with: compolens probe {shlex.quote(own or name)} {folder}"


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


def finished(folder: Path) -> bool:
    """Whether the model `folder` holds a training that came to its end."""
    return (folder / "scores.json").exists()


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


def find(roots: Iterable[str | Path]) -> list[Path]:
    """Every model folder at or below `roots`, sorted; a root that holds none is a `ConfigError`."""
    found: list[Path] = []
    for root in map(Path, roots):
        if (root / "config.json").is_file():
            found.append(root)
            continue
        below = sorted(path.parent for path in root.glob("**/config.json")) if root.is_dir() else []
        if not below:
            what = "holds no trained model" if root.is_dir() else "does not exist"
            raise ConfigError(f"{root} {what}; train some with: compolens train FILE --out {root}")
        found.extend(below)
    return list(dict.fromkeys(found))


def settings(folder: str | Path) -> dict[str, Any]:
    """The configuration of the model in `folder`, flattened into columns: model, architecture, task, support, seeds, steps, …

    Settings that are off (null or false) are left out: a model that was trained before a setting existed has none either."""
    run = read_json(Path(folder) / "config.json")["run"]
    row = {"model": Path(folder).name, "folder": str(folder)}
    row |= {"architecture": run["architecture"]["class"], "task": run["task"]["class"]}
    for part in ("architecture", "task", "optimizer"):
        row |= _flat(part, run[part])
    row |= {k: v for k, v in run.items() if not isinstance(v, dict | list) and k != "class"}
    row = {k: v for k, v in row.items() if v is not None and v is not False}
    scores = Path(folder) / "scores.json"
    return row | {"score_name": read_json(scores)["score"] if scores.exists() else "score"}


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
        folders: paths, or a glob such as "runs/**". Models without the table are left out; `frame.attrs["missing"]` names
            them.
        table: the table's name.

    Returns:
        The rows of all models.

    Raises:
        ConfigError: no model matches, or none has the table.
    """
    patterns = [folders] if isinstance(folders, str | Path) else list(folders)
    paths = [Path(p) for pattern in patterns for p in (sorted(glob.glob(str(pattern), recursive=True)) or [str(pattern)])]
    models = [p for p in dict.fromkeys(paths) if (p / "config.json").is_file()]
    if not models:
        raise ConfigError(f"no trained model matches {', '.join(map(str, patterns))}")
    parts, missing = [], []
    for folder in models:
        if not path_of(folder, table).exists():
            missing.append(str(folder))
            continue
        rows = read(folder, table)
        known = {k: v for k, v in settings(folder).items() if k not in rows.columns}
        parts.append(rows.assign(**known))
    if not parts:
        available = {p.stem for folder in models for p in (folder / "tables").glob("*.csv")}
        raise ConfigError(
            f"none of the {len(models)} models has a table {table!r} ({nearest(table, available)}); "
            f"measure it with: compolens probe {table} {models[0]}"
        )
    frame = pd.concat(parts, ignore_index=True)
    frame.attrs["missing"] = missing
    return frame


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


IN_CONTEXT = ("in-context ridge", "in-context smoothing", "nearest example")
"""The references that know an episode's examples and nothing else."""
WEAK = (*IN_CONTEXT, "best training composition")
"""The references that recombine nothing: the best of them is the floor of what counts as recombining."""


def worth_drawing(scores: Mapping[str, float]) -> dict[str, float]:
    """References out of `scores` (name -> score): of those of `IN_CONTEXT` the best alone, under one name whichever it is."""
    found = {name: value for name, value in scores.items() if name not in IN_CONTEXT}
    if known := [value for name, value in scores.items() if name in IN_CONTEXT]:
        found["best in-context regression"] = max(known)
    return found


def ceiling_of(references: pd.DataFrame) -> float:
    """The score that no learner can be expected to exceed, from the rows `references`: the one marked so, else 1."""
    marked = references[references["note"] == "ceiling"]["value"].tolist() if "note" in references else []
    return float(marked[0]) if marked else 1.0


def __getattr__(name: str) -> Any:
    return elsewhere(__name__, name)
