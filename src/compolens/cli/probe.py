"""`compolens probe`: each recipe adds a table to each folder."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from compolens.cli.engines import engine_of
from compolens.cli.flags import (
    Parser,
    check_device,
    command_parser,
    common_flags,
    conclude,
    finished_models,
    outside,
    part_of,
)
from compolens.cli.recipe_flags import list_recipes, need_both, recipe_arguments, split_items
from compolens.foundation.configs import ConfigError
from compolens.foundation.progress import heard_by


def make(commands: Any) -> Parser:
    """Add `compolens probe` to `commands`."""
    parser = command_parser(
        commands, "probe", run, "measure trained models: each recipe adds a table to each folder",
        "compolens probe generalization latent_code runs/* --jobs 2",
    )  # fmt: skip
    parser.add_argument("items", nargs="*", metavar="RECIPE… FOLDER…", help="probes by name or path, then model folders")
    parser.add_argument("--list", action="store_true", help="show each probe's question")
    parser.add_argument(
        "--steps",
        default="final",
        help="final, all (every kept step), or a kept step's number (measured beside the final one)",
    )
    parser.add_argument("--again", action="store_true", help="measure even where an up-to-date table lies")
    common_flags(parser, "jobs", "device", "with")
    return parser


def run(options: argparse.Namespace) -> int:
    """Do what `options` ask for; returns the exit status."""
    if options.list:
        return list_recipes("probes")
    from compolens import recipes, tables

    files, folders = split_items("probes", options.items)
    need_both("probes", "probe", files, folders)
    recipes.check_names(files)
    found = tables.find(folders)
    engine = engine_of(options, found[0].parent)
    recipes.check_steps(options.steps)
    mine = models_of(found, options)
    if not mine:
        return 0
    models = finished_models(mine, folders)
    arguments = {file: recipe_arguments("probes", file, options) for file in files}
    classes = outside(options.classes)  # an error now, not once for every model
    work, unreadable = to_be_read(to_measure(models, arguments, options, options.steps), classes)
    outcome = engine.run(work)
    outcome.failures.update(unreadable)
    return conclude(outcome)


def models_of(found: list[Path], options: argparse.Namespace) -> list[Path]:
    """The models of this shard: whole models, so that one process writes all the tables of one.

    Args:
        found: all models, finished or not, so that the parts stay the same while some are in training.
        options: the flags.

    Returns:
        The models.
    """
    return [Path(name) for name in part_of([str(folder) for folder in found], options.shard)]


def to_measure(
    models: list[Path], wanted: dict[Path, dict[str, Any]], options: argparse.Namespace, steps: str, more_will_do: bool = False
) -> list[Any]:
    """A job per model and probe whose table is missing, stale, or was measured with other arguments.

    Args:
        models: model folders.
        wanted: probe's file -> its arguments.
        options: the flags.
        steps: "final", "all", or a kept step's number.
        more_will_do: whether a table of more episodes than wanted, and else the same arguments, is as good.

    Returns:
        The jobs.

    Raises:
        ConfigError: a model's folder cannot be written to.
    """
    from compolens import jobs, tables

    names, work = [folder.name for folder in models], []
    for folder in models:
        place = folder / "tables" if (folder / "tables").is_dir() else folder
        if not os.access(place, os.W_OK):
            raise ConfigError(f"{place} cannot be written to, and a model's tables lie in its folder; copy it, or mend that")
        label = folder.name if names.count(folder.name) == 1 else str(folder)
        for file, arguments in wanted.items():
            with tables.read_once():
                if not options.again and _up_to_date(folder, file, arguments, steps, more_will_do):
                    print(f"{label} · {file.stem}: up to date", file=sys.stderr)
                    continue
                if before := _replaced(folder, file, arguments, steps):
                    print(f"{label} · {file.stem}: replaces what was measured with {before}", file=sys.stderr)
            job = (str(file), str(folder), arguments, steps, options.device, tuple(options.classes))
            work.append(jobs.Job(f"{label} · {file.stem}", probe_one, job))
    return work


def to_be_read(work: list[Any], classes: Sequence[Callable[..., Any]]) -> tuple[list[Any], dict[str, str]]:
    """The jobs of models that can be read with the classes that are handed over; what the others lack is said once of each.

    Args:
        work: jobs of `to_measure`.
        classes: the user's classes and functions.

    Returns:
        The jobs that are left, and model folder -> why its own are not.
    """
    from compolens import zoo

    lacking: dict[str, str] = {}
    for folder in dict.fromkeys(str(job.arguments[1]) for job in work):
        try:
            zoo.read_run(folder, classes)
        except ConfigError as error:
            if "--with" in str(error):  # all else is said by the probe itself
                lacking[folder] = str(error).removeprefix(f"{folder}/")
    return [job for job in work if job.arguments[1] not in lacking], lacking


def _up_to_date(folder: Path, file: Path, arguments: dict[str, Any], steps: str, more_will_do: bool) -> bool:
    from compolens import recipes, tables

    try:
        if tables.why_not(folder, file.stem) or tables.why_stale(folder, file.stem, file):
            return False
        provenance = tables.provenance_of(folder, file.stem)
        measured, wanted = provenance.get("steps"), recipes.wanted_steps(folder, steps)
    except ConfigError:  # a folder that is damaged: measuring it says how
        return False
    then, now = provenance.get("arguments"), {k: v for k, v in arguments.items() if v is not None}
    if more_will_do and isinstance(then, dict) and isinstance(then.get("episodes"), int):
        now["episodes"] = max(now.get("episodes", 0), then["episodes"])
    return then == now and isinstance(measured, list) and all(step in measured for step in wanted)


def _replaced(folder: Path, file: Path, arguments: dict[str, Any], steps: str) -> str:
    """What a table that is measured anew holds and the new one will not: other arguments, or more steps ("" for none)."""
    from compolens import recipes, tables

    try:
        if tables.why_not(folder, file.stem):
            return ""
        provenance = tables.provenance_of(folder, file.stem)
        then, measured, wanted = provenance.get("arguments"), provenance.get("steps"), recipes.wanted_steps(folder, steps)
    except ConfigError:
        return ""
    if not isinstance(then, dict) or not isinstance(measured, list):
        return ""
    other = [f"{name} {value}" for name, value in then.items() if name in arguments and arguments[name] not in (None, value)]
    gone = [step for step in measured if step not in wanted]
    return ", ".join([*other, *([f"steps {', '.join(map(str, measured))}"] if gone else [])])


def probe_one(
    file: str, folder: str, arguments: dict[str, Any], steps: str, device: str, classes: tuple[str, ...], *, report: Callable
) -> str:
    """One probe on one model, in whatever process this is.

    Args:
        file: the probe's.
        folder: the model's.
        arguments: keyword arguments of the probe.
        steps: "final", "all", or a kept step's number.
        device: "cpu" or "cuda".
        classes: as --with has them.
        report: is told how far it is.

    Returns:
        The path of the table, relative to here, and what it says where that decides whether to go on.
    """
    from compolens import recipes
    from compolens.training.machine import at_work

    check_device(device)
    report(0, 1, "measuring")
    with at_work(device), heard_by(report):  # one thread: side by side, more threads than cores slow each other down
        path = recipes.run_probe(
            Path(file), Path(folder), arguments, steps=steps, device=device, classes=outside(classes),
            note=lambda text: report(0, 1, text),
        )  # fmt: skip
    return f"{os.path.relpath(path)}{_told(Path(folder), path.stem)}"


def _told(folder: Path, table: str) -> str:
    """The scores, once they are measured: a model that has not learned its training compositions need not be asked further."""
    from compolens.diagnosis.sentences import scores_told

    return f": {scores_told(folder)}" if table == "generalization" else ""
