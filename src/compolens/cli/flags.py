"""What commands share: a parser with one-line errors, flags that mean the same everywhere, tables on the terminal."""

from __future__ import annotations

import argparse
import importlib
import sys
import typing
from collections.abc import Callable
from pathlib import Path
from typing import Any

from compolens.configs import ConfigError, nearest


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
        parser.add_argument("--jobs", type=int, default=1, metavar="N", help="how many at a time, one thread each (default 1)")
    if "device" in names:
        parser.add_argument("--device", default="cpu", help="cpu, cuda, cuda:1, … (default cpu)")
    if "with" in names:
        parser.add_argument(
            "--with", dest="classes", action="append", default=[], metavar="PLACE:CLASS",
            help="a class of your own that a folder may name: package.module:Class or file.py:Class",
        )  # fmt: skip
    if "data" in names:
        parser.add_argument("--data", metavar="DIR", help="the folder of data, for tasks that read some (their setting data)")


def check_device(device: str) -> None:
    import torch

    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise ConfigError(
            f"device {device!r} cannot be used ({reason}); allowed here: cpu" + (", cuda" if torch.cuda.is_available() else "")
        ) from error


def outside(places: typing.Iterable[str]) -> tuple[type, ...]:
    """The classes that --with names: package.module:Class or file.py:Class."""

    from compolens.recipes import load_file

    classes = []
    for place in places:
        where, colon, name = place.rpartition(":")
        if not colon:
            raise ConfigError(f"--with wants PLACE:CLASS, such as my_package.models:MyNet or my_file.py:MyNet; got {place!r}")
        try:
            module = load_file(Path(where)) if where.endswith(".py") else importlib.import_module(where)
            classes.append(getattr(module, name))
        except (ImportError, AttributeError, OSError) as error:
            raise ConfigError(f"--with {place}: {error}") from error
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
