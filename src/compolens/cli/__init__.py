"""The command line: train · probe · analyze · explain · explore · report · models · …

A command is one file with `make(commands) -> Parser`. Recipes are found by name or by path; a recipe's file is run only where
it is named.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import warnings
from collections.abc import Iterator
from typing import Any

from compolens import __version__
from compolens.cli import (
    analyze,
    challenge,
    cite,
    completion,
    contest,
    explain,
    explore,
    map,
    models,
    probe,
    push,
    record,
    report,
    train,
    tune,
)
from compolens.cli.flags import Parser
from compolens.cli.recipe_flags import add_recipe_flags
from compolens.foundation import terminal
from compolens.foundation.configs import ConfigError, nearest
from compolens.foundation.files import WAYS_OUT

COMMANDS = {
    "train": train, "probe": probe, "analyze": analyze, "explain": explain, "explore": explore, "challenge": challenge,
    "report": report, "record": record, "models": models, "push": push, "cite": cite,
    "map": map, "tune": tune, "contest": contest, "completion": completion,
}  # fmt: skip
"""Name -> the module of a command, in the order of the help text."""

DESCRIPTION = """Why does compositional generalization succeed or fail?

train writes a folder per run, probe adds tables to it, analyze and report draw from the tables. explain does all but the
first, and says what is wrong.
"""


def main(argv: list[str] | None = None) -> int:
    """Entry point for the arguments `argv`; returns the exit status: 0 done, 1 some jobs failed, 2 bad input, 128+signal
    interrupted."""
    with terminal.plain(), _warnings_as_lines():
        return _guarded(sys.argv[1:] if argv is None else argv)


@contextlib.contextmanager
def _warnings_as_lines() -> Iterator[None]:
    """Warnings as one line each, said once, without the line of code that gave them: that is nothing a user typed."""
    before, said = warnings.formatwarning, set[str]()

    def line(message: Any, *_: Any, **__: Any) -> str:
        text = f"compolens: {terminal.one_line(message)}\n"
        again = text in said
        said.add(text)
        return "" if again else text

    warnings.formatwarning = line  # type: ignore[assignment]
    try:
        yield
    finally:
        warnings.formatwarning = before


def _guarded(arguments: list[str]) -> int:
    try:
        return _dispatch(arguments)
    except ConfigError as error:
        terminal.red(f"compolens: error: {terminal.one_line(error)}")
        return 2
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except OSError as error:
        terminal.red(f"compolens: error: {terminal.one_line(_said_of(error))}")
        return 2
    except KeyboardInterrupt as error:
        print(f"compolens: {str(error) or 'interrupted'}", file=sys.stderr)
        return 128 + getattr(error, "signum", 2)
    except Exception as error:
        if os.environ.get("COMPOLENS_DEBUG"):
            raise
        from compolens import jobs

        terminal.red(f"compolens: error: {terminal.one_line(jobs.explain(error))}")
        return 2


def _said_of(error: OSError) -> str:
    """What could not be read or written, why, and what to do; an error of ours says so itself."""
    if not error.strerror:
        return str(error)
    named = " and ".join(str(name) for name in (error.filename, error.filename2) if name is not None)
    return f"{named or 'a file'}: {error.strerror}. {WAYS_OUT.get(error.errno or 0, 'Mend that and start again')}"


def _dispatch(arguments: list[str]) -> int:
    parser = Parser(
        prog="compolens", description=DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--version", action="version", version=f"compolens {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", parser_class=Parser)
    made = {name: module.make(commands) for name, module in COMMANDS.items()}
    if completion.asked():
        completion.answer(parser, made)
    if arguments and not arguments[0].startswith("-") and arguments[0] not in COMMANDS:
        parser.error(f"no command {arguments[0]!r}; {nearest(arguments[0], COMMANDS)}")
    if arguments and arguments[0] in ("probe", "analyze"):
        add_recipe_flags(made[arguments[0]], "probes" if arguments[0] == "probe" else "analyses", arguments[1:])
    if not arguments or arguments[0] not in COMMANDS:
        _, unknown = parser.parse_known_args(arguments)
        if unknown:
            parser.unknown(unknown)
        parser.print_help()
        return 0
    command = made[arguments[0]]
    options, unknown = command.parse_known_intermixed_args(arguments[1:])  # flags may stand before, between or after names
    if unknown:
        command.unknown(unknown)
    for name in ("folders", "items", "names", "file", "out", "output"):
        given = getattr(options, name, None)
        if given is not None and "" in (given if isinstance(given, list) else [given]):
            raise ConfigError(f"compolens {arguments[0]} was given an empty name; is it a variable that is not set?")
    return options.run(options)
