"""What commands share: a parser with one-line errors, flags that mean the same everywhere, tables on the terminal."""

from __future__ import annotations

import argparse
import importlib
import sys
import typing
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from compolens.foundation.configs import ConfigError, nearest


class Parser(argparse.ArgumentParser):
    """argparse with one-line errors that suggest the nearest flag."""

    def error(self, message: str) -> typing.NoReturn:
        print(f"{self.prog}: error: {message}", file=sys.stderr)
        raise SystemExit(2)

    def unknown(self, arguments: list[str]) -> typing.NoReturn:
        first = arguments[0]
        hint = (
            nearest(first.split("=")[0], self._option_string_actions) if first.startswith("-") else f"try {self.prog} --help"
        )
        self.error(f"unknown argument {first}; {hint}")


def command_parser(commands: Any, name: str, run: Callable, text: str, example: str) -> Parser:
    parser = commands.add_parser(
        name, help=text, description=text, epilog=f"example:\n  {example}", allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.set_defaults(run=run)
    return parser


def common_flags(parser: Parser, *names: str) -> None:
    if "jobs" in names:
        _machine_flags(parser)
    if "device" in names:
        parser.add_argument("--device", default="cpu", help="cpu, cuda, cuda:1, … (default cpu)")
    if "with" in names:
        parser.add_argument(
            "--with", dest="classes", action="append", default=[], metavar="PLACE:CLASS",
            help="a class or function of your own that a folder may name: package.module:Class or file.py:Class",
        )  # fmt: skip
    if "data" in names:
        parser.add_argument("--data", metavar="DIR", help="the folder of data, for tasks that read some (their setting data)")


def _machine_flags(parser: Parser) -> None:
    parser.add_argument(
        "--jobs", type=int, metavar="N", help="how many at a time, one thread each (default: here 1, elsewhere no limit)"
    )
    parser.add_argument(
        "--shard", type=Shard.read, metavar="I/N", help="only the I-th of N parts, I from 1: give each of N machines one"
    )
    parser.add_argument("--engine", default="local", metavar="NAME", help="where it runs: local (default), slurm or ray")
    parser.add_argument(
        "--address", metavar="HOST:PORT", help="for --engine ray: the cluster (default: RAY_ADDRESS, or a local one)"
    )
    parser.add_argument(
        "--slurm", action="append", default=[], metavar="KEY=VALUE",
        help="for --engine slurm: what to ask for, such as partition=gpu or timeout_min=600",
    )  # fmt: skip


@dataclass(frozen=True)
class Shard:
    """The index-th of `count` parts of a list, index from 1."""

    index: int
    count: int

    @classmethod
    def read(cls, text: str) -> Shard:
        """From "i/n"; what is none is an error of the command line."""
        index, _, count = text.partition("/")
        if not (index.isdecimal() and count.isdecimal() and 1 <= int(index) <= int(count)):
            raise argparse.ArgumentTypeError(f"must be I/N with I from 1 to N, such as 1/4 or 4/4, got {text!r}")
        return cls(int(index), int(count))

    def part(self, names: typing.Iterable[str]) -> list[str]:
        """Every count-th of the sorted names: a function of the names alone, so that all machines agree."""
        return sorted(names)[self.index - 1 :: self.count]


def part_of(names: list[str], shard: Shard | None) -> list[str]:
    """The names of a shard, in the order given; all where there is no shard. An empty part is said, and is no error."""
    if shard is None:
        return names
    mine = set(shard.part(names))
    if not mine:
        print(f"shard {shard.index}/{shard.count} of {len(names)} is empty: nothing to do", file=sys.stderr)
    return [name for name in names if name in mine]


def check_device(device: str) -> None:
    import torch

    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise ConfigError(
            f"device {device!r} cannot be used ({reason}); allowed here: cpu" + (", cuda" if torch.cuda.is_available() else "")
        ) from error


def outside(places: typing.Iterable[str]) -> tuple[Any, ...]:
    """The classes and functions that --with names: package.module:Class or file.py:Class. A file is run once for all of them,
    so that they know one another."""

    from compolens.recipes import load_file

    classes, files = [], {}
    for place in places:
        where, colon, name = place.rpartition(":")
        if not colon:
            raise ConfigError(f"--with wants PLACE:CLASS, such as my_package.models:MyNet or my_file.py:MyNet; got {place!r}")
        try:
            if where.endswith(".py") and where not in files:
                files[where] = load_file(Path(where))
            classes.append(getattr(files.get(where) or importlib.import_module(where), name))
        except (ImportError, AttributeError, OSError) as error:
            raise ConfigError(f"--with {place}: {error}") from error
        if not callable(classes[-1]):
            raise ConfigError(f"--with {place}: {name} is a {type(classes[-1]).__name__}, not a class or a function")
    return tuple(classes)


def finished_models(models: list[Path], named: list[Path]) -> list[Path]:
    """The models without those still in training, unless the caller named them (which is then an error where it matters)."""
    from compolens import tables

    kept = [m for m in models if tables.finished(m) or m in named]
    for model in models:
        if model not in kept:
            print(f"{model.name}: not finished, left out", file=sys.stderr)
    if not kept:
        raise ConfigError(f"none of the {len(models)} trainings found has ended; the same `compolens train` command goes on")
    return kept


def print_table(columns: list[str], rows: list[list[str]]) -> None:
    widths = [max(len(str(row[i])) for row in [columns, *rows]) for i in range(len(columns))]
    for row in [columns, ["─" * w for w in widths], *rows]:
        print("  ".join(str(cell).ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def say(text: str) -> None:
    """What is told beside the results: on stderr, so that a pipe gets the results alone."""
    print(text, file=sys.stderr)


def conclude(outcome: Any) -> int:
    for name, reason in outcome.failures.items():
        print(f"compolens: error: {name}: {reason}", file=sys.stderr)
    if outcome.signum:
        return 128 + outcome.signum
    if outcome.inapplicable and not outcome.results and not outcome.failures:  # nothing at all was done: no silent success
        name, reason = next(iter(outcome.inapplicable.items()))
        print(f"compolens: error: {name}: does not apply: {reason}", file=sys.stderr)
        return 1
    return 1 if outcome.failures else 0
