"""`compolens completion`: what lets bash, zsh or fish complete commands, recipes, folders and the flags of named recipes."""

from __future__ import annotations

import argparse
import ast
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from compolens.cli.flags import Parser, command_parser
from compolens.foundation.builtin import built_in

SHELLS = ("bash", "zsh", "fish")
KINDS = {"probe": "probes", "analyze": "analyses"}
"""A command that takes recipes -> their kind."""


def make(commands: Any) -> Parser:
    """Add `compolens completion` to `commands`."""
    parser = command_parser(
        commands, "completion", run, "print what lets a shell complete commands, recipes, folders and flags",
        'compolens completion bash >> ~/.bashrc (zsh: ~/.zshrc; fish: > ~/.config/fish/completions/compolens.fish)',
    )  # fmt: skip
    parser.add_argument("shell", choices=SHELLS, help="the shell")
    return parser


def run(options: argparse.Namespace) -> int:
    """Print the script of the shell that `options` name; returns the exit status."""
    import argcomplete

    print(argcomplete.shellcode(["compolens"], shell=options.shell))
    return 0


def asked() -> bool:
    """Whether a shell asks, in the place of a user, for what may follow."""
    return "_ARGCOMPLETE" in os.environ


def answer(parser: Parser, made: dict[str, Parser]) -> None:
    """Tell the shell what may follow, and end the process.

    Args:
        parser: of `compolens`.
        made: command -> its parser.
    """
    import argcomplete
    from argcomplete.completers import DirectoriesCompleter, FilesCompleter

    folders, files = DirectoriesCompleter(), FilesCompleter(("py",))
    for command, kind in KINDS.items():
        for name in _named(kind, os.environ.get("COMP_LINE", "").split()):
            for flag in flags_of(name):
                if flag not in made[command]._option_string_actions:
                    made[command].add_argument(flag, dest=f"recipe_{flag}")
    for command, one in made.items():
        for action in one._actions:
            if action.dest == "items" and command in KINDS:
                action.completer = _Items(KINDS[command], folders, files)  # type: ignore[attr-defined]
            elif action.dest in ("folders", "folder", "out", "data"):
                action.completer = folders  # type: ignore[attr-defined]
            elif action.dest == "file":
                action.completer = files  # type: ignore[attr-defined]
    argcomplete.autocomplete(parser, always_complete_options=False)


class _Items:
    """Completes recipes, folders of models, and recipe files.

    Args:
        kind: "probes" or "analyses".
        others: completers of folders and files.
    """

    def __init__(self, kind: str, *others: Any) -> None:
        self.kind, self.others = kind, others

    def __call__(self, prefix: str, **_: Any) -> list[str]:
        recipes = [name for name in built_in(self.kind) if name.startswith(prefix)]
        return [*recipes, *(found for other in self.others for found in other(prefix))]


def _named(kind: str, words: list[str]) -> list[Path]:
    """The files of the recipes among the words of a command line."""
    known = built_in(kind)
    return [known.get(word, Path(word)) for word in words if word in known or (word.endswith(".py") and Path(word).is_file())]


def flags_of(recipe: Path) -> Iterator[str]:
    """The flags that a recipe adds, read off its source: a recipe is not run, nor torch loaded, while a user types.

    Args:
        recipe: its file.

    Returns:
        "--episodes", …; none where the file cannot be read.
    """
    try:
        tree = ast.parse(recipe.read_text(encoding="utf-8"))
    except (OSError, SyntaxError, ValueError):
        return
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and node.name in ("probe", "analyze"):
            for argument in node.args.kwonlyargs:
                flag = argument.arg.replace("_", "-")
                yield f"--{flag}"
                if isinstance(argument.annotation, ast.Name) and argument.annotation.id == "bool":
                    yield f"--no-{flag}"
