"""Making a map: its cells are trained as jobs, each leaves a row, and the rows become the table. What is there is kept."""

from __future__ import annotations

import dataclasses
import fnmatch
import inspect
import json
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

import pandas as pd
import torch

from compolens import __version__, jobs, recipes, tables
from compolens.foundation import files, map_files, table_files
from compolens.foundation.configs import ConfigError, describe, nearest, require
from compolens.jobs.leases import Leases, Watch
from compolens.maps.grid import Cell, digest_of
from compolens.training import Run, train
from compolens.training.machine import at_work, check_device
from compolens.training.state import Diverged, Training

TIMED = 3
"""Updates that are timed of every size of model, after one that is not."""


class Described(Protocol):
    """What the making of a folder asks of a `Map` or a `Tuning`."""

    kind: str

    def cell(self, name: str) -> Cell:
        """The cell called `name`."""

    def config(self) -> dict[str, Any]:
        """What config.json holds."""


# ---- reading files that describe -------------------------------------------------------------------------------------
def read(file: str | Path, kind: str) -> dict[str, Any]:
    """What a Python file describes.

    Args:
        file: the file.
        kind: "maps" or "tunings", the name of the dict that it defines.

    Returns:
        name -> `Map` or `Tuning`.

    Raises:
        ConfigError: it defines none.
    """
    path, example = Path(file), {"maps": "Map", "tunings": "Tuning"}[kind]
    if not path.is_file():
        raise ConfigError(f'there is no file {path}; it should define {kind} = {{"name": {example}(…)}}')
    found = getattr(recipes.load_file(path), kind, None)
    whole = isinstance(found, dict) and bool(found) and all(type(one).__name__ == example for one in found.values())
    if not isinstance(found, dict) or not whole:
        raise ConfigError(f'{path} defines no {kind}: it needs a dict  {kind} = {{"name": {example}(…)}}')
    return found


def one_of(file: str | Path, kind: str, name: str) -> Any:
    """One description of a file.

    Args:
        file: as in `read`.
        kind: as in `read`.
        name: which.

    Returns:
        The description.

    Raises:
        ConfigError: the file describes none of that name.
    """
    found = read(file, kind)
    if name not in found:
        raise ConfigError(f"{file} describes no {name!r} in {kind}; {nearest(name, found)}")
    return found[name]


# ---- cost ------------------------------------------------------------------------------------------------------------
def cost(cells: Iterable[Cell]) -> tuple[float, int]:
    """How long cells take to train, measured here: a few updates and one evaluation of every size of model.

    Args:
        cells: those to be trained.

    Returns:
        (CPU seconds of one core, how many sizes were timed).
    """
    sizes: dict[str, tuple[float, float]] = {}
    total = 0.0
    for cell in cells:
        run, size = cell.run, _size(cell.run)
        if size not in sizes:
            sizes[size] = _timed(run)
        update, episode = sizes[size]
        scored = (len(run.evaluated_steps) + 4) * len(run.task.splits) * run.evaluation_episodes
        total += run.steps * update + scored * episode
    return total, len(sizes)


def _size(run: Run) -> str:
    """What an update's time depends on: everything but seeds, which compositions there are, and how long training is."""
    task = run.task
    shape = [task.d_in, task.d_out, task.seq, list(task.answers), run.batch_size, run.precision, run.answers_only]
    return json.dumps([describe(run.architecture), type(task).__name__, shape])


def _timed(run: Run) -> tuple[float, float]:
    """CPU seconds of an update, and of scoring an episode."""
    short = dataclasses.replace(run, steps=max(1_000, TIMED + 1), keep=(), evaluations=1)
    with tempfile.TemporaryDirectory() as place, at_work("cpu"):
        training = Training(short, Path(place), "cpu", lambda _: None)
        _advance(training)  # the first update is not timed
        start = time.process_time()
        for _ in range(TIMED):
            _advance(training)
        update = (time.process_time() - start) / TIMED
        episodes = run.task.sample(run.batch_size, "test", run.task.rng(0, "test"))
        start = time.process_time()
        with torch.no_grad():
            training.model(episodes.tokens)
        scored = time.process_time() - start
    return update, scored / run.batch_size


def _advance(training: Training) -> None:
    """One update; one that diverges takes as long."""
    with suppress(Diverged):
        training.advance()


# ---- one cell --------------------------------------------------------------------------------------------------------
def train_cell(file: str, kind: str, name: str, cell: str, folder: str, device: str, *, report: Callable) -> str:
    """One cell of a map, in whatever process this is, on whatever machine: trained, measured, and its row written.

    Args:
        file: describes it.
        kind: "maps" or "tunings".
        name: of the map.
        cell: its name.
        folder: the map's.
        device: "cpu" or "cuda".
        report: is told how far it is.

    Returns:
        The scores in a line.

    Raises:
        Held: another process is at this cell.
    """
    check_device(device)
    described = one_of(file, kind, name)
    made, place = described.cell(cell), Path(folder) / map_files.CELLS / cell
    with Leases(place.parent).take(place.name) as lease:
        row = _row_file(place)
        if known := _known_row(Path(folder), cell):
            return _line(known)

        def progress(state: Any) -> None:
            lease.check()
            report(state.step, state.steps, state.note or f"loss {state.loss:.4f}")

        begun, resumed = time.process_time(), (place / "config.json").exists()
        try:
            scores = train(made.run, place, device=device, progress=progress, may_write=lease.check)
        except Diverged as error:  # a result, too: this setting does not train
            files.write_json(row, {"row": _diverged(made, str(error)), "history": [], "environments": []})
            shutil.rmtree(place, ignore_errors=True)
            return "diverged"
        seconds = float("nan") if resumed else time.process_time() - begun
        written = _row(made, scores, seconds) | _measured(getattr(described, "measures", {}), place)
        keeps = any(fnmatch.fnmatchcase(cell, pattern) for pattern in getattr(described, "keep", ()))
        history = pd.read_csv(place / "history.csv").to_dict("records") if getattr(described, "keep_history", False) else []
        lease.check()
        files.write_json(row, {"row": written | {"kept": keeps}, "history": history, "environments": scores["environments"]})
        if not keeps:
            shutil.rmtree(place, ignore_errors=True)
        return _line(written)


def _row_file(place: Path) -> Path:
    return place.parent / f"{place.name}.row.json"


def _known_row(folder: Path, cell: str) -> dict[str, Any] | None:
    """The row that a cell left, or that another command has taken into the map's table already."""
    with table_files.alone_in(folder, table_files.PATIENCE):  # nobody takes it in while we look
        row = _row_file(folder / map_files.CELLS / cell)
        if row.exists():
            return files.read_json(row)["row"]
        table = map_files.read_table(folder) if map_files.is_map(folder) else pd.DataFrame({"cell": []})
        rows = table[table["cell"] == cell].to_dict("records")
        return {str(k): v for k, v in rows[0].items() if v == v} if rows else None


def _line(row: dict[str, Any]) -> str:
    return "  ".join(f"{split} {row[split]:.4f}" for split in ("train", "test", "ood", "validation") if split in row)


def _diverged(cell: Cell, why: str) -> dict[str, Any]:
    """The row of a cell that has no scores, because its training diverged."""
    known = {"seed": cell.run.init_seed, "run": digest_of(cell.run), "architecture": type(cell.run.architecture).__name__}
    return {"cell": cell.name, **cell.knobs, **known, "task": cell.run.task.setting, "note": why.split(";")[0][:120]}


def _row(cell: Cell, scores: dict[str, Any], seconds: float) -> dict[str, Any]:
    """A cell's row, without what probes say of it. The column after a score is its standard error over compositions."""
    run = cell.run
    row: dict[str, Any] = {"cell": cell.name, **cell.knobs, "seed": run.init_seed, "run": digest_of(run)}
    row |= {"architecture": type(run.architecture).__name__, "task": run.task.setting, "score_name": scores["score"]}
    for split in run.task.splits:
        row |= {split: scores[split]["score"], f"{split} se": scores[split]["se"]}
    row |= {"episodes": scores["test"]["episodes"], "steps trained": scores["step"], "parameters": scores["parameters"]}
    return row | {"seconds": seconds}


def _measured(measures: Any, place: Path) -> dict[str, Any]:
    """What probes say of a cell, as columns: the metric, the split, the site, the role and the control, where a row has them.

    Where these name several rows, what else a row has follows: what it compares, at which layer, and so on.
    """
    found: dict[str, Any] = {}
    for probe, arguments in dict(measures).items():
        recipes.run_probe(recipes.locate("probes", probe), place, dict(arguments))
        measured = tables.read(place, Path(probe).stem)
        rows = [{str(column): value for column, value in row.items()} for row in measured.to_dict("records")]
        names = [_words(row, SAID) for row in rows]
        often = Counter(names)
        for row, name in zip(rows, names, strict=True):
            rest = tuple(column for column in row if column not in (*SAID, *UNSAID))
            words = name if often[name] == 1 else name + _words(row, rest)
            column = " · ".join(words)
            told = f"{probe} has several rows {column!r}; a measure of a map needs a row for each number"
            require(column not in found, told)
            found[column] = row["value"]
    return found


def check_measures(described: Described) -> None:
    """Check that probes can be called as a map asks, before anything is trained.

    Args:
        described: the `Map` or `Tuning`.

    Raises:
        ConfigError: there is no such probe, or it takes no such arguments.
    """
    for probe, arguments in getattr(described, "measures", {}).items():
        path = recipes.locate("probes", probe)
        recipes.check_names([path])
        function = recipes.load_recipe("probes", path)
        try:
            inspect.signature(function).bind(None, **arguments)
        except TypeError as error:
            takes = ", ".join(recipes.options(function)) or "no arguments"
            raise ConfigError(f"measures={{{probe!r}: {dict(arguments)}}}: {error}; it takes {takes}") from None


SAID = ("metric", "split", "site", "role", "control")
"""Columns of a row that name its number in a map's table."""
UNSAID = ("value", "lo", "hi", "n", "step", "note")
"""Columns that name no number."""


def _words(row: dict[str, Any], columns: Iterable[str]) -> tuple[str, ...]:
    """What a row says in some columns, without what it leaves open."""
    said = [(column, row[column]) for column in columns]
    return tuple(str(v) for column, v in said if v == v and v not in ("", None) and (column in SAID or v != "none"))


# ---- all cells -------------------------------------------------------------------------------------------------------
def collect(folder: Path, described: Described, command: str = "") -> pd.DataFrame:
    """Take the rows that cells left into the table, and write the map's files.

    Args:
        folder: the map's.
        described: the `Map` or `Tuning`.
        command: what makes the map, kept in its provenance.

    Returns:
        The table: its rows sorted by cell.

    Raises:
        ConfigError: the folder holds cells that are described otherwise, or something that is no map.
        SaveError: another process has been at its files for too long.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with table_files.alone_in(folder, table_files.PATIENCE):
        rows, history, about = _before(folder, described)
        waiting = sorted((folder / map_files.CELLS).glob("*.row.json"))
        come = {path: files.read_json(path) for path in waiting}
        again = {left["row"]["cell"] for left in come.values()}  # a call that was ended early may have taken them in already
        history = [row for row in history if row["cell"] not in again]
        for left in come.values():
            name = left["row"]["cell"]
            rows[name] = left["row"]
            history += [{"cell": name, **row} for row in left["history"]]
            about["environments"] += [e for e in left["environments"] if e not in about["environments"]]
        table = pd.DataFrame([rows[name] for name in sorted(rows)])
        along = pd.DataFrame(history).sort_values(["cell", "step"], ignore_index=True) if history else None
        about |= {"version": __version__, "command": _commands(about.get("command", ""), command)}
        empty = pd.DataFrame(columns=["cell", "seed", "run"])
        map_files.write(folder, described.config(), table if len(table) else empty, along, about)
        for path in waiting:
            path.unlink()
    return table


def _commands(before: str, now: str) -> str:
    """The line that makes the rows of both: a command for some cells alone stands behind those before it, joined by &&."""
    if not now or (before and "--cells" not in before and "--cells" in now):
        return before
    earlier = before.split(" && ") if before and "--cells" in now else []
    return " && ".join(dict.fromkeys([*earlier, now]))


def _before(folder: Path, described: Described) -> tuple[dict[str, Any], list[dict[str, Any]], dict[str, Any]]:
    """Rows, history and provenance of what a folder holds already."""
    if not map_files.is_map(folder):
        strangers = [
            p.name for p in folder.iterdir() if p.name not in (".lock", map_files.CELLS) and not p.name.endswith(".tmp")
        ]
        started = strangers in (
            [],
            [map_files.CONFIG],
            [map_files.CONFIG, map_files.TABLE],
            [map_files.TABLE, map_files.CONFIG],
        )
        require(started, f"{folder} exists and is no map (it holds {', '.join(strangers[:3])}); choose another --out")
        return {}, [], {"environments": []}
    known = map_files.provenance(folder)
    about = {"environments": known.get("environments", []), "command": known.get("command", "")}
    table = map_files.read_table(folder).drop(columns="map")
    rows = {row["cell"]: {k: v for k, v in row.items() if v == v} for row in table.to_dict("records")}
    for name, row in rows.items():
        try:
            same = digest_of(described.cell(name).run) == row["run"]
        except ConfigError:
            same = False
        require(
            same,
            f"{folder} holds the cell {name}, which is not described so any more; choose another --out, or describe it so",
        )
    along = folder / map_files.HISTORY
    history = map_files.read_table(folder, map_files.HISTORY).drop(columns="map") if along.is_file() else pd.DataFrame()
    return rows, [{str(k): v for k, v in row.items()} for row in history.to_dict("records")], about


def left(folder: Path, cells: Iterable[Cell]) -> list[Cell]:
    """The cells that have no row yet, or one of a cell that was described otherwise.

    Args:
        folder: the map's, which need not exist.
        cells: all of them.

    Returns:
        Those to be trained, in the order given.
    """
    done: dict[str, str] = {}
    if map_files.is_map(folder):
        table = map_files.read_table(folder)
        done |= dict(zip(table["cell"], table["run"], strict=True))
    for path in (folder / map_files.CELLS).glob("*.row.json"):
        done[path.name.removesuffix(".row.json")] = files.read_json(path)["row"]["run"]
    return [cell for cell in cells if done.get(cell.name) != digest_of(cell.run)]


def make(
    file: str, kind: str, name: str, cells: Iterable[Cell], folder: Path, engine: Any, device: str = "cpu", command: str = ""
) -> jobs.Outcome:
    """Train the cells of a map that have no row yet, and write its table.

    Args:
        file: describes the map.
        kind: "maps" or "tunings".
        name: of the map.
        cells: those wanted.
        folder: the map's.
        engine: runs the jobs.
        device: "cpu" or "cuda".
        command: what makes the map, kept in its provenance.

    Returns:
        What became of the jobs.
    """
    described = one_of(file, kind, name)
    check_measures(described)  # an error now is one line, not one per job
    collect(folder, described, command)
    wanted = left(folder, cells)
    place = folder / map_files.CELLS
    place.mkdir(parents=True, exist_ok=True)
    work = [jobs.Job(c.name, train_cell, (str(file), kind, name, c.name, str(folder), device)) for c in wanted]
    watches = {c.name: Watch(Leases(place), c.name) for c in wanted}
    try:
        return jobs.run_leased(engine, work, watches)
    finally:
        collect(folder, described, command)
