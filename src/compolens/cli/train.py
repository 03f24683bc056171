"""`compolens train`: the runs of a file, each into a folder."""

from __future__ import annotations

import argparse
import dataclasses
import fnmatch
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from compolens.cli.flags import Parser, check_device, command_parser, common_flags, conclude, print_table
from compolens.configs import ConfigError, nearest


def make(commands: Any) -> Parser:
    parser = command_parser(
        commands, "train", run, "train the runs of a file, each into a folder; an interrupted run goes on where it was",
        "compolens train trained_models/runs.py 'F-*' --out runs --jobs 2",
    )  # fmt: skip
    parser.add_argument("file", help="a Python file that defines `runs`, a dict name -> Run")
    parser.add_argument("names", nargs="*", default=[], help="which runs (names or patterns; default: all)")
    parser.add_argument("--list", action="store_true", help="show the runs and train none")
    parser.add_argument("--out", default="runs", help="where the folders go (default runs)")
    common_flags(parser, "data", "jobs", "device")
    return parser


def read_runs(file: str) -> dict[str, Any]:
    """The `runs` of a file, checked."""
    from compolens.recipes import load_file
    from compolens.training import Run

    path = Path(file)
    if not path.is_file():
        raise ConfigError(f'there is no file {path}; it should define runs = {{"name": Run(...)}}')
    runs = getattr(load_file(path), "runs", None)
    if not isinstance(runs, dict) or not runs or not all(isinstance(run, Run) for run in runs.values()):
        raise ConfigError(f'{path} defines no runs: it needs a dict  runs = {{"name": Run(...)}}')
    return runs


def with_data(run: Any, data: str | None) -> Any:
    """The run with its task reading another folder, by its absolute path; None leaves it as it is."""
    if data is None:
        return run
    if "data" not in {field.name for field in dataclasses.fields(run.task)}:
        raise ConfigError(
            f"--data {data}: {type(run.task).__name__} reads no data; leave --data out, or name only runs that do"
        )
    return dataclasses.replace(run, task=dataclasses.replace(run.task, data=os.path.abspath(Path(data).expanduser())))


def run(options: argparse.Namespace) -> int:
    from compolens import jobs

    runs, out = read_runs(options.file), Path(options.out)
    chosen: list[str] = []
    for pattern in options.names or ["*"]:
        matched = [name for name in runs if fnmatch.fnmatchcase(name, pattern)]
        if not matched:
            raise ConfigError(f"{options.file} has no run {pattern!r}; {nearest(pattern, runs)}")
        chosen += [name for name in matched if name not in chosen]
    if options.list:
        _print_runs({name: runs[name] for name in chosen}, out)
        return 0
    check_device(options.device)
    for name in chosen:
        with_data(runs[name], options.data)  # a mistake is one line now, not one per job
    arguments = (options.data, options.device)
    work = [jobs.Job(name, train_one, (options.file, name, str(out / name), *arguments)) for name in chosen]
    return conclude(jobs.run(work, options.jobs))


def train_one(file: str, name: str, folder: str, data: str | None, device: str, *, report: Callable) -> str:
    """One run of a file, in whatever process this is."""
    from compolens.training import train

    def progress(state: Any) -> None:
        scores = "  ".join(f"{split} {value:.3f}" for split, value in state.scores.items())
        report(state.step, state.steps, state.note or f"loss {state.loss:.4f}  {scores}")

    run = with_data(read_runs(file)[name], data)
    scores = train(run, folder, device=device, progress=progress)
    texts = [f"{split} {scores[split]['score']:.4f} ± {scores[split]['se']:.4f}" for split in ("train", "test", "ood")]
    if len(scores["environments"]) > 1:
        texts.append("(resumed in another environment: not an uninterrupted run's weights bit for bit)")
    return "  ".join(texts)


def _print_runs(runs: dict[str, Any], out: Path) -> None:
    rows = []
    for name, run in runs.items():
        folder = out / name
        done, begun = (folder / "scores.json").exists(), (folder / "config.json").exists()
        state = "finished" if done else "begun" if begun else ""
        rows.append([name, type(run.architecture).__name__, type(run.task).__name__, f"{run.steps:,}", state])
    print_table(["run", "architecture", "task", "steps", f"in {out}"], rows)
