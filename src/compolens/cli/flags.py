"""What commands share: a parser with one-line errors, flags that mean the same everywhere, tables on the terminal."""

from __future__ import annotations

import argparse
import fnmatch
import importlib
import math
import os
import re
import sys
import typing
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from compolens.foundation import model_folders
from compolens.foundation.configs import ConfigError, nearest, shown
from compolens.foundation.terminal import one_line, red


class Parser(argparse.ArgumentParser):
    """argparse with one-line errors that suggest the nearest flag."""

    def error(self, message: str) -> typing.NoReturn:
        """End the command with `message` in one line, and exit status 2."""
        red(f"{self.prog}: error: {one_line(message)}")
        raise SystemExit(2)

    def unknown(self, arguments: list[str]) -> typing.NoReturn:
        """End the command because of `arguments` that no flag takes; it names the nearest flag."""
        first = arguments[0]
        hint = (
            nearest(first.split("=")[0], self._option_string_actions) if first.startswith("-") else f"try {self.prog} --help"
        )
        self.error(f"unknown argument {first}; {hint}")


def command_parser(commands: Any, name: str, run: Callable, text: str, example: str) -> Parser:
    """A command's parser, with an example at the end of its help.

    Args:
        commands: what parsers are added to.
        name: the command.
        run: options -> exit status.
        text: what it does.
        example: a line to type.

    Returns:
        The parser.
    """
    parser = commands.add_parser(
        name, help=text, description=text, epilog=f"example:\n  {example}", allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.set_defaults(run=run)
    return parser


def common_flags(parser: Parser, *names: str) -> None:
    """Add flags that mean the same in every command.

    Args:
        parser: of the command.
        names: which of "jobs", "device", "with" and "data".
    """
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
        "--jobs", type=count, metavar="N", help="how many at a time, one thread each (default: here 1, elsewhere no limit)"
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


MOST = 1_000_000_000
"""The largest count that a flag takes: what is more was mistyped, and would run for ever."""


def count(text: str) -> int:
    """A whole number from a flag; anything else is an error of the command line.

    Args:
        text: what was typed, with a sign or without.

    Returns:
        The number, from -`MOST` to `MOST`.
    """
    return _whole(text, MOST)


def some(text: str) -> int:
    """A count of at least 1 from a flag.

    Args:
        text: what was typed.

    Returns:
        The number, from 1 to `MOST`.
    """
    number = count(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"needs 1 or more, got {text}")
    return number


def seed(text: str) -> int:
    """A seed from a flag: it only tells random numbers apart, so it may be larger than a `count`.

    Args:
        text: what was typed.

    Returns:
        The number, of at most 2^63 - 1 in size.
    """
    return _whole(text, 2**63 - 1)


def _whole(text: str, most: int) -> int:
    if not re.fullmatch(r"[+-]?[0-9]{1,30}", text.strip()) or abs(int(text)) > most:
        raise argparse.ArgumentTypeError(f"must be a whole number of at most {most:,}, got {shown(text)}")
    return int(text)


def number(text: str) -> float:
    """A finite number from a flag; anything else is an error of the command line.

    Args:
        text: what was typed, as Python writes a float: "0.5", "1e-3".

    Returns:
        The number.
    """
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise argparse.ArgumentTypeError(f"must be a finite number, got {shown(text)}")
    return value


@dataclass(frozen=True)
class Shard:
    """One of several equal parts of a list.

    Args:
        index: which, from 1.
        count: of how many.
    """

    index: int
    count: int

    @classmethod
    def read(cls, text: str) -> Shard:
        """The shard that `text`, "i/n", names; what is none is an error of the command line."""
        index, _, count = text.partition("/")
        if not (index.isdecimal() and count.isdecimal() and 1 <= int(index) <= int(count)):
            raise argparse.ArgumentTypeError(f"must be I/N with I from 1 to N, such as 1/4 or 4/4, got {text!r}")
        return cls(int(index), int(count))

    def part(self, names: typing.Iterable[str]) -> list[str]:
        """Every count-th of the sorted `names`: a function of the names alone, so that all machines agree."""
        return sorted(names)[self.index - 1 :: self.count]


def part_of(names: list[str], shard: Shard | None) -> list[str]:
    """The names of a shard, in the order given. An empty part is said, and is no error.

    Args:
        names: all of them.
        shard: which part (None: all).

    Returns:
        The names.
    """
    if shard is None:
        return names
    mine = set(shard.part(names))
    if not mine:
        print(f"shard {shard.index}/{shard.count} of {len(names)} is empty: nothing to do", file=sys.stderr)
    return [name for name in names if name in mine]


def matched(names: typing.Iterable[str], pattern: str) -> list[str]:
    """The names that a pattern stands for: a name that is typed in full stands for itself.

    Args:
        names: all of them.
        pattern: what was typed; * is any part, ? any character, and [01] one of these where no name has brackets.

    Returns:
        Those names, in their order.
    """
    names = list(names)
    literal = any("[" in name for name in names)
    return [pattern] if pattern in names else fnmatch.filter(names, model_folders.escaped(pattern) if literal else pattern)


def check_device(device: str) -> None:
    """Check that this machine has a device.

    Args:
        device: torch's name of it: "cpu", "cuda", "cuda:1", …

    Raises:
        ConfigError: it has none of this name, or torch cannot use it.
    """
    from compolens.training import machine

    machine.check_device(device)


def check_file(path: str, flag: str) -> None:
    """Check that a file can be written, before the work whose result it will hold.

    Args:
        path: where it goes.
        flag: by which it was named.

    Raises:
        ConfigError: it is a folder, or its folder cannot be made or written to.
    """
    place = Path(path)
    if place.is_dir():
        raise ConfigError(f"{flag} {shown(path)} is a folder; name a file, such as {flag} {place / 'report.html'}")
    above = next(folder for folder in place.absolute().parents if folder.exists())
    if not above.is_dir() or not os.access(above, os.W_OK):
        raise ConfigError(f"{flag} {shown(path)}: nothing can be written in {above}; name another place with {flag}")


def check_code(place: str, where: str) -> None:
    """Check that a file that --with names is there.

    Args:
        place: what was typed.
        where: its file.

    Raises:
        ConfigError: there is none.
    """
    if not Path(where).is_file():
        raise ConfigError(f"--with {place}: there is no file {where}; the path counts from the folder in which you are")


def outside(places: typing.Iterable[str]) -> tuple[Any, ...]:
    """The classes and functions that --with names, `places`: package.module:Class or file.py:Class.

    A file is run once for all of them, so that they know one another."""

    from compolens.recipes import load_file

    classes, files = [], {}
    for place in places:
        where, colon, name = place.rpartition(":")
        if not colon:
            raise ConfigError(f"--with wants PLACE:CLASS, such as my_package.models:MyNet or my_file.py:MyNet; got {place!r}")
        if where.endswith(".py"):
            check_code(place, where)
        try:
            if where.endswith(".py") and where not in files:
                files[where] = load_file(Path(where))
            module = files.get(where) or importlib.import_module(where)
        except (ImportError, OSError) as error:
            raise ConfigError(f"--with {place}: {error}") from error
        if not hasattr(module, name):
            made = [one for one, value in vars(module).items() if callable(value) and not one.startswith("_")]
            raise ConfigError(f"--with {place}: {where} has no {name!r}; {nearest(name, made)}")
        classes.append(getattr(module, name))
        if not callable(classes[-1]):
            raise ConfigError(f"--with {place}: {name} is a {type(classes[-1]).__name__}, not a class or a function")
    return tuple(classes)


def finished_models(models: list[Path], named: list[Path]) -> list[Path]:
    """The models without those still in training.

    Args:
        models: model folders.
        named: folders that the caller named, which stay (an unfinished one is then an error where it matters).

    Returns:
        The models that are left.

    Raises:
        ConfigError: none is left.
    """
    kept = [m for m in models if model_folders.finished(m) or m in named]
    for model in models:
        if model not in kept:
            print(f"{model.name}: not finished, left out", file=sys.stderr)
    if not kept:
        raise ConfigError(f"none of the {len(models)} trainings found has ended; the same `compolens train` command goes on")
    return kept


def say(text: str) -> None:
    """Print what is told beside the results: on stderr, so that a pipe gets the results alone.

    Args:
        text: one or more lines.
    """
    print(text, file=sys.stderr)


def conclude(outcome: Any) -> int:
    """Say what failed in the `outcome` of jobs; returns the exit status."""
    for name, reason in outcome.failures.items():
        red(f"compolens: error: {one_line(f'{name}: {reason}')}")
    if outcome.signum:
        return 128 + outcome.signum
    if outcome.inapplicable and not outcome.results and not outcome.failures:  # nothing at all was done: no silent success
        name, reason = next(iter(outcome.inapplicable.items()))
        red(f"compolens: error: {one_line(f'{name}: does not apply: {reason}')}")
        return 1
    return 1 if outcome.failures else 0
