"""`compolens report`: one HTML page from the tables that there are."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from compolens.cli.flags import Parser, check_file, command_parser, common_flags, outside, say


def make(commands: Any) -> Parser:
    """Add `compolens report` to `commands`."""
    parser = command_parser(
        commands, "report", run, "one self-contained HTML page about a set of model folders",
        "compolens report runs/demo/* -o runs/demo/report.html",
    )  # fmt: skip
    parser.add_argument("folders", nargs="+", metavar="FOLDER", help="model folders, or folders of model folders")
    parser.add_argument("-o", "--output", default="report.html", help="the page (default report.html)")
    evidence_flag(parser)
    common_flags(parser, "with")
    return parser


def run(options: argparse.Namespace) -> int:
    """Do what `options` ask for; returns the exit status."""
    from compolens import tables

    check_file(options.output, "-o")
    return write_report("report", options, tables.find([Path(f) for f in options.folders]))


def evidence_flag(parser: Parser) -> None:
    """Add the flag by which the whole list is printed.

    Args:
        parser: of the command.
    """
    parser.add_argument(
        "--evidence", action="store_true", help="print every statement with its number; without it, the cards that sum them up"
    )


def write_report(
    command: str, options: argparse.Namespace, models: list[Path], inapplicable: Iterable[tuple[str, str, str]] = ()
) -> int:
    """Write the page that --output names, and print its diagnosis.

    Args:
        command: what is called, for the page's own words.
        options: the flags.
        models: model folders.
        inapplicable: (model, probe, reason) of probes that do not apply.

    Returns:
        The exit status: 1 where of no model anything could be said.
    """
    from compolens import report
    from compolens.cli import cards

    typed = shlex.join(["compolens", command, *options.folders, "-o", options.output, *_flags(options)])
    made = report.page(models, Path(options.output), outside(options.classes), typed, say, inapplicable)
    cards.show(made, options.evidence)
    return 0 if made.cards else 1


def _flags(options: argparse.Namespace) -> Iterator[str]:
    """The flags that change what is on the page, as they were typed."""
    for place in options.classes:
        yield from ("--with", place)
    for flag in ("confirm", "all_sites", "evidence"):
        if getattr(options, flag, None) or getattr(options, f"recipe_{flag}", None):
            yield f"--{flag.replace('_', '-')}"
    if getattr(options, "recipe_episodes", None):
        yield from ("--episodes", str(options.recipe_episodes))
