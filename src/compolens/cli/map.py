"""`compolens map`: grids of small models, one row each in one table."""

from __future__ import annotations

import argparse
import fnmatch
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from compolens.cli.columns import print_table
from compolens.cli.engines import check_jobs, engine_of
from compolens.cli.flags import Parser, command_parser, common_flags, conclude, matched, part_of, say
from compolens.foundation.configs import ConfigError, nearest


def make(commands: Any) -> Parser:
    """Add `compolens map` to `commands`."""
    parser = command_parser(
        commands, "map", run, "train a grid of small models into one table; its cost is printed first, and it resumes",
        "compolens map trained_models/maps/connectedness.py --out trained_models/maps --jobs 2",
    )  # fmt: skip
    parser.add_argument("file", help="a Python file that defines `maps`, a dict name -> Map")
    parser.add_argument("names", nargs="*", default=[], help="which maps (names or patterns; default: all)")
    parser.add_argument("--list", action="store_true", help="print what the maps cost and how far they are, and train nothing")
    parser.add_argument("--out", default="runs/maps", help="where the maps' folders go (default runs/maps)")
    parser.add_argument("--cells", action="append", default=[], metavar="PATTERN", help="only cells of such names (a pilot)")
    common_flags(parser, "jobs", "device")
    return parser


def run(options: argparse.Namespace) -> int:
    """Do what `options` ask for; returns the exit status."""
    from compolens import maps
    from compolens.maps import work

    found, out = chosen(work.read(options.file, "maps"), options), Path(options.out)
    wanted = {name: _cells(name, one, options) for name, one in found.items()}
    check_jobs(options)
    engine, status = None if options.list else engine_of(options, out), 0
    told(options, {name: (cells, work.left(out / name, cells)) for name, cells in wanted.items()})
    if engine is None:
        return 0
    for name, cells in wanted.items():
        outcome = maps.make(options.file, "maps", name, cells, out / name, engine, options.device, command_of(options, "map"))
        status = max(status, conclude(outcome))
        print(out / name / "table.csv")
        if outcome.signum:
            break
    return status


def chosen(found: dict[str, Any], options: argparse.Namespace) -> dict[str, Any]:
    """The maps or tunings of a file that the command names.

    Args:
        found: all of them, by name.
        options: the flags.

    Returns:
        Name -> description.

    Raises:
        ConfigError: a pattern matches none.
    """
    names: list[str] = []
    for pattern in options.names or ["*"]:
        these = matched(found, pattern)
        if not these:
            raise ConfigError(f"{options.file} describes no {pattern!r}; {nearest(pattern, found)}")
        names += [name for name in these if name not in names]
    return {name: found[name] for name in names}


def _cells(name: str, one: Any, options: argparse.Namespace) -> list[Any]:
    """The cells of this command, of this machine: those of the patterns and of the shard."""
    cells = {cell.name: cell for cell in one.cells}
    wanted = [n for n in cells if not options.cells or any(fnmatch.fnmatchcase(n, p) for p in options.cells)]
    if not wanted:
        example = next(iter(cells))
        raise ConfigError(
            f"{name} has no cell {', '.join(options.cells)}; a cell is called {example}, and * stands for any part"
        )
    return [cells[n] for n in part_of(wanted, options.shard)]


def told(options: argparse.Namespace, work: dict[str, tuple[Sequence[Any], Sequence[Any]]]) -> None:
    """Print what is to be trained and what it will cost, before it begins.

    Args:
        options: the flags; --jobs divides the hours.
        work: name -> (all cells, those that are left).
    """
    from compolens import maps

    rows, hours = [], 0.0
    for name, (cells, todo) in work.items():
        seconds, sizes = maps.cost(todo)
        hours += seconds / 3600
        rows.append([name, str(len(cells)), str(len(cells) - len(todo)), str(sizes), f"{seconds / 3600:.2f}"])
    print_table(["map", "cells", "done", "sizes timed", "core-hours left"], rows)
    at_once = options.jobs or 1
    say(f"{hours:.2f} core-hours left, {hours / at_once:.2f} h at {at_once} at a time, by updates timed just now")
    sys.stdout.flush()


def command_of(options: argparse.Namespace, command: str) -> str:
    """What is kept in provenance: the words that make the same table anywhere.

    Args:
        options: the flags.
        command: "map" or "tune".

    Returns:
        A line to type.
    """
    parts = [word for pattern in getattr(options, "cells", ()) for word in ("--cells", pattern)]
    return shlex.join(["compolens", command, options.file, *options.names, "--out", options.out, *parts])
