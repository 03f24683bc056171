"""Recipes on the command line: told apart from folders, their keyword arguments as flags."""

from __future__ import annotations

import argparse
import inspect
import os
import re
import textwrap
import types
import typing
from collections.abc import Callable, Iterable
from itertools import pairwise
from pathlib import Path
from typing import Any

from compolens.cli.columns import print_table
from compolens.cli.flags import Parser, count, number, seed, some
from compolens.foundation.configs import ConfigError, nearest

EARLIER = {"--untrained": ("--twins",)}
"""A recipe's flag -> what it was called in earlier versions; recorded commands still hold these."""


SECTION = re.compile(r"^(Args|Returns|Raises):\n((?:(?: .*)?(?:\n|$))+)", re.MULTILINE)
"""A block of a docstring: its name, and its indented lines."""


def sections(docstring: str) -> dict[str, str]:
    """The parts of a docstring in Google style.

    Args:
        docstring: a docstring, indented as in its file or not.

    Returns:
        "" -> the text before the blocks; "Args", "Returns", "Raises" -> the block's text without
            indentation, where there is one.
    """
    text = inspect.cleandoc(docstring)
    blocks = {name: textwrap.dedent(block).strip() for name, block in SECTION.findall(text)}
    return {"": SECTION.sub("", text).strip(), **blocks}


def described(docstring: str) -> dict[str, str]:
    """What a docstring's `Args:` block says of each parameter.

    Args:
        docstring: a docstring in Google style.

    Returns:
        Parameter -> its text on one line, in the order of the block; empty without a block.
    """
    return items(sections(docstring).get("Args", ""))


def items(block: str) -> dict[str, str]:
    """The names that a block lists, each with its text on one line.

    Args:
        block: the text of an `Args:` or `Raises:` block, without indentation.

    Returns:
        Name -> text, in the order of the block.
    """
    found: dict[str, str] = {}
    for line in block.splitlines():
        begins = re.match(r"(\w+): (.*)", line)
        if begins:
            found[begins[1]] = begins[2]
        elif found:
            name = next(reversed(found))
            found[name] = f"{found[name]} {line.strip()}".strip()
    return found


def split_items(kind: str, items: list[str]) -> tuple[list[Path], list[Path]]:
    """A mixed list of arguments, told apart.

    Args:
        kind: "probes" or "analyses".
        items: recipes and folders.

    Returns:
        (recipe files, model folders).

    Raises:
        ConfigError: an item is neither.
    """
    from compolens import recipes

    files, folders = [], []
    for item in items:
        is_recipe = item.endswith(".py") or (item in recipes.built_in(kind) and not (Path(item) / "config.json").exists())
        if is_recipe:
            files.append(recipes.locate(kind, item))
        elif Path(item).exists():
            folders.append(Path(item))
        elif os.sep not in item and not files:
            raise ConfigError(f"no recipe {item!r} in {kind}; {nearest(item, recipes.built_in(kind))}")
        else:
            raise ConfigError(_no_folder(item, recipes.built_in(kind)))
    return files, folders


def _no_folder(item: str, known: Iterable[str]) -> str:
    """What to say of an item that does not exist: a bare name may be meant as a recipe, a path is a folder."""
    place = Path(item)
    if len(place.parts) == 1:
        return f"there is no folder {item!r}, nor a recipe of that name ({nearest(item, known)})"
    if not place.parent.is_dir():
        return f"there is no folder {item!r}, nor a folder {str(place.parent)!r}"
    beside = [path.name for path in place.parent.iterdir() if path.is_dir()]
    return f"there is no folder {item!r}; in {str(place.parent)!r}: {nearest(place.name, beside)}"


def need_both(kind: str, command: str, files: list[Path], folders: list[Path]) -> None:
    """Check that a recipe and a folder are named.

    Args:
        kind: "probes" or "analyses".
        command: the command, named in errors.
        files: recipe files.
        folders: model folders.

    Raises:
        ConfigError: one is missing.
    """
    if not files:
        raise ConfigError(f"name a recipe: compolens {command} RECIPE FOLDER…; compolens {command} --list shows them")
    if not folders:
        raise ConfigError(f"name a model folder: compolens {command} {files[0].stem} FOLDER…")


def add_recipe_flags(parser: Parser, kind: str, arguments: list[str]) -> None:
    """The keyword arguments of the recipes named become flags of this call.

    Args:
        parser: of the command.
        kind: "probes" or "analyses".
        arguments: what was typed.

    Raises:
        ConfigError: an argument of a recipe would hide a flag of the command.
    """
    from compolens import recipes

    typed = [a for before, a in pairwise(["", *arguments]) if before != "--with"]
    named = [a for a in typed if a.endswith(".py") or a in recipes.built_in(kind)]
    for name in named:
        function = recipes.load_recipe(kind, name)
        texts = described(function.__doc__ or "")
        for option, parameter in recipes.options(function).items():
            flag = f"--{option.replace('_', '-')}"
            taken = parser._option_string_actions.get(flag)
            if taken is None:
                _add_flag(parser, name, option, parameter, texts.get(option, ""))
            elif taken.dest != f"recipe_{option}":
                raise ConfigError(f"{name}: its argument {option!r} would hide the flag {flag} of {parser.prog}; rename it")
    if named and any(a in ("-h", "--help") for a in arguments):
        told = "\n\n".join(f"{Path(name).stem}: {_help_of(kind, name)}" for name in named)
        parser.description = told.replace("%", "%%") if "%(prog)" in told else told  # argparse would fill it in


def _help_of(kind: str, name: str) -> str:
    """A recipe's docstring but for its `Args:` block, which stands beside the flags."""
    from compolens import recipes

    parts = sections(recipes.load_recipe(kind, name).__doc__ or "")
    told = [f"{title}:\n{textwrap.indent(parts[title], '    ')}" for title in ("Returns", "Raises") if title in parts]
    return "\n\n".join([parts[""], *told])


def _add_flag(parser: Parser, recipe: str, name: str, parameter: inspect.Parameter, told: str) -> None:
    kind = parameter.annotation
    if isinstance(kind, types.UnionType):
        kind = next(k for k in typing.get_args(kind) if k is not type(None))
    flag = f"--{name.replace('_', '-')}"
    default = "" if parameter.default is None and told else f" (default {parameter.default!r})"
    text = f"{Path(recipe).stem}: {told}{default}" if told else f"{Path(recipe).stem}{default}"
    text = text.replace("%", "%%")  # argparse fills in what follows a %
    if kind is bool:
        names = (flag, *EARLIER.get(flag, ()))
        parser.add_argument(*names, dest=f"recipe_{name}", action=argparse.BooleanOptionalAction, default=None, help=text)
    elif kind in (int, float, str):
        whole = seed if name.endswith("seed") else some if name == "episodes" else count
        kinds: dict[Any, Callable[[str], Any]] = {int: whole, float: number, str: str}
        parser.add_argument(flag, dest=f"recipe_{name}", type=kinds[kind], default=None, metavar=kind.__name__, help=text)
    else:
        raise ConfigError(f"{recipe}: {name} must be annotated int, float, str or bool (or that | None) to become a flag")


def recipe_arguments(kind: str, file: Path, options: argparse.Namespace) -> dict[str, Any]:
    """What a recipe is called with: its defaults, overridden by the flags given.

    Args:
        kind: "probes" or "analyses".
        file: the recipe's.
        options: the flags.

    Returns:
        Keyword arguments.
    """
    from compolens import recipes

    known = recipes.options(recipes.load_recipe(kind, file))
    given = {n: getattr(options, f"recipe_{n}", None) for n in known}
    return {n: parameter.default if given[n] is None else given[n] for n, parameter in known.items()}


def list_recipes(kind: str) -> int:
    """Print the built-in recipes of a `kind`, "probes" or "analyses"; returns the exit status."""
    from compolens import recipes

    print_table(
        ["recipe", "question" if kind == "probes" else "claim"],
        [[n, recipes.docstring(p)] for n, p in recipes.built_in(kind).items()],
    )
    return 0
