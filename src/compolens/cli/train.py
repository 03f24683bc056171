"""`compolens train`: the runs of a file, each into a folder."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import io
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from compolens.cli.columns import print_table
from compolens.cli.engines import engine_of
from compolens.cli.flags import Parser, check_device, command_parser, common_flags, conclude, matched, part_of
from compolens.foundation.configs import ConfigError, nearest


def make(commands: Any) -> Parser:
    """Add `compolens train` to `commands`."""
    parser = command_parser(
        commands, "train", run, "train the runs of a file, each into a folder; an interrupted run goes on where it was",
        "compolens train trained_models/runs.py 'F-*' --out runs --jobs 2",
    )  # fmt: skip
    parser.add_argument("file", help="a Python file that defines `runs`, a dict name -> Run")
    parser.add_argument("names", nargs="*", default=[], help="which runs (names or patterns; default: all)")
    parser.add_argument("--list", action="store_true", help="show the runs and train none")
    parser.add_argument("--out", default="runs", help="where the folders go (default runs)")
    parser.add_argument(
        "--track", action="append", default=[], metavar="WHERE", help="also log to tensorboard or wandb, beside the folders"
    )
    common_flags(parser, "data", "jobs", "device")
    return parser


def read_runs(file: str) -> dict[str, Any]:
    """The `runs` of the Python file `file`, checked."""
    from compolens.recipes import load_file
    from compolens.training import Run

    path = Path(file)
    if not path.is_file():
        raise ConfigError(f'there is no file {path}; it should define runs = {{"name": Run(...)}}')
    runs = getattr(load_file(path), "runs", None)
    if not isinstance(runs, dict) or not runs or not all(isinstance(run, Run) for run in runs.values()):
        raise ConfigError(f'{path} defines no runs: it needs a dict  runs = {{"name": Run(...)}}')
    for name in runs:
        if not isinstance(name, str) or not Path(name).parts or Path(name).is_absolute() or ".." in Path(name).parts:
            raise ConfigError(f"{path}: a run's name is that of its folder below --out, such as 'softmax-0'; got {name!r}")
    return runs


def with_data(run: Any, data: str | None) -> Any:
    """The run with its task reading another folder, by its absolute path.

    Args:
        run: the run.
        data: the folder (None: leave the run as it is).

    Returns:
        The run.

    Raises:
        ConfigError: the task reads no data.
    """
    if data is None:
        return run
    if "data" not in {field.name for field in dataclasses.fields(run.task)}:
        raise ConfigError(
            f"--data {data}: {type(run.task).__name__} reads no data; leave --data out, or name only runs that do"
        )
    return dataclasses.replace(run, task=dataclasses.replace(run.task, data=os.path.abspath(Path(data).expanduser())))


def run(options: argparse.Namespace) -> int:
    """Do what `options` ask for; returns the exit status."""
    from compolens import jobs

    runs, out = read_runs(options.file), Path(options.out)
    if out.exists() and not out.is_dir():
        raise ConfigError(f"--out {out} is a file; name a folder, which need not exist")
    chosen: list[str] = []
    for pattern in options.names or ["*"]:
        found = matched(runs, pattern)
        if not found:
            raise ConfigError(f"{options.file} has no run {pattern!r}; {nearest(pattern, runs)}")
        chosen += [name for name in found if name not in chosen]
    chosen = part_of(chosen, options.shard)
    if options.list:
        _print_runs({name: runs[name] for name in chosen}, out)
        return 0
    engine = engine_of(options, out)
    _trackers(options.track)
    for name in chosen:
        with_data(runs[name], options.data)  # a mistake is one line now, not one per job
    arguments = (options.data, options.device, tuple(options.track))
    work = [jobs.Job(name, train_one, (options.file, name, str(out / name), *arguments)) for name in chosen]
    return conclude(_train(work, engine, out))


def _train(work: list[Any], engine: Any, out: Path) -> Any:
    """Train what nobody else is training; wait for what somebody is, and go on with it should that somebody die."""
    from compolens import jobs
    from compolens.training import distributed

    rank, size = distributed.launched()
    if size > 1:
        return _train_together(work, engine, out, rank)
    finished = [job for job in work if (out / job.name / "scores.json").exists()]
    outcome = jobs.Local().run(finished)  # read here: no machine need be asked for
    if not outcome.signum:
        left = [job for job in work if job not in finished]
        outcome.add(jobs.run_leased(engine, left, _watches(left, out)))
    return outcome


def _watches(work: list[Any], out: Path) -> dict[str, Any]:
    from compolens.jobs.leases import Watch

    return {job.name: Watch(leases_on(out / job.name), (out / job.name).name) for job in work}


def _train_together(work: list[Any], engine: Any, out: Path, rank: int) -> Any:
    """The same under torchrun, whose processes do one run together: the first takes its lease and speaks for all."""
    from compolens import jobs

    if not isinstance(engine, jobs.Local) or engine.workers > 1:
        raise ConfigError("under torchrun all processes train one run; leave --engine and --jobs out")
    if len(work) > 1:  # one that another machine holds would be skipped by the first process alone
        raise ConfigError(
            f"under torchrun all processes train one run, and {len(work)} were named; name one, such as {work[0].name}"
        )
    if rank == 0:
        return jobs.run_leased(engine, work, _watches(work, out))
    with contextlib.redirect_stderr(io.StringIO()):
        return engine.run(work)


def leases_on(folder: Path) -> Any:
    """The leases among which that on a run's `folder` is: beside it."""
    from compolens.jobs.leases import Leases

    return Leases(folder.parent)


def train_one(
    file: str, name: str, folder: str, data: str | None, device: str, track: tuple[str, ...] = (), *, report: Callable
) -> str:
    """One run of a file, in whatever process this is, on whatever machine.

    Args:
        file: defines `runs`.
        name: of the run.
        folder: where it goes.
        data: as in `with_data`.
        device: "cpu" or "cuda".
        track: names of trackers.
        report: is told how far it is.

    Returns:
        The scores in a line.

    Raises:
        Held: another process is at this run.
    """
    from compolens.foundation import digests
    from compolens.training import check_folder, distributed, train

    check_device(device)
    run, place, (rank, size) = with_data(read_runs(file)[name], data), Path(folder), distributed.launched()
    if size == 1 and (place / "scores.json").exists():  # read, not leased: any number of commands may look at a finished run
        check_folder(run, place)
        digests.check(place, "weights.safetensors")
        return _scores_line(digests.read_scores(place))
    with leases_on(place).take(place.name) if rank == 0 else contextlib.nullcontext() as lease:
        owned = lease.check if lease is not None else lambda: None  # a run that was taken over is another's to write

        def progress(state: Any) -> None:
            owned()  # and not worth another step
            scores = "  ".join(f"{split} {value:.3f}" for split, value in state.scores.items())
            report(state.step, state.steps, state.note or f"loss {state.loss:.4f}  {scores}")

        return _scores_line(train(run, place, device=device, progress=progress, trackers=_trackers(track), may_write=owned))


def _trackers(names: Iterable[str]) -> list[Any]:
    """What --track names; a name that means nothing, or a package that is missing, is an error."""
    if not names:
        return []
    from compolens.training.tracking import tracker

    return [tracker(name) for name in dict.fromkeys(names)]  # one that is named twice follows once


def _scores_line(scores: dict[str, Any]) -> str:
    try:
        texts = [f"{split} {scores[split]['score']:.4f} ± {scores[split]['se']:.4f}" for split in ("train", "test", "ood")]
        if len(scores["environments"]) > 1:
            texts.append("(resumed in another environment: not an uninterrupted run's weights bit for bit)")
    except (LookupError, TypeError, ValueError) as error:
        message = f"its scores.json does not hold scores ({error}); restore it, or delete it and train again"
        raise ConfigError(message) from error
    return "  ".join(texts)


def _print_runs(runs: dict[str, Any], out: Path) -> None:
    rows = []
    for name, run in runs.items():
        folder = out / name
        done, begun = (folder / "scores.json").exists(), (folder / "config.json").exists()
        holder = None if done else leases_on(folder).holder(folder.name)
        state = "finished" if done else _at_work(holder) if holder else "begun, nobody is at work" if begun else ""
        state = _holds_another(run, folder) or state if done or begun else state
        rows.append([name, type(run.architecture).__name__, type(run.task).__name__, f"{run.steps:,}", state])
    print_table(["run", "architecture", "task", "steps", f"in {out}"], rows)


def _holds_another(run: Any, folder: Path) -> str:
    """In what a run differs from the one that a folder holds, which nobody would train there ("" where they are the same)."""
    from compolens.training import check_folder

    if hasattr(run.task, "data"):  # where its files lie is told by --data
        return ""
    try:
        check_folder(run, folder)
    except ConfigError as error:
        return str(error).removeprefix(f"{folder} ").partition(";")[0]
    return ""


def _at_work(holder: Any) -> str:
    """Who is at a run, or that a process of this machine was, and is there no more: the next command goes on with it."""
    return f"begun, nobody is at work (process {holder.pid} is gone)" if holder.died_here() else str(holder)
