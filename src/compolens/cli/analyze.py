"""`compolens analyze`: figures from the tables of many models."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from compolens.cli.flags import Parser, command_parser, finished_models, say
from compolens.cli.recipe_flags import list_recipes, need_both, recipe_arguments, split_items


def make(commands: Any) -> Parser:
    """Add `compolens analyze` to `commands`."""
    parser = command_parser(
        commands, "analyze", run, "draw figures from the tables of many models: PDF, PNG, the numbers, and what was used",
        "compolens analyze who_generalizes runs/* --out figures --width column",
    )  # fmt: skip
    parser.add_argument("items", nargs="*", metavar="RECIPE… FOLDER…", help="analyses by name or path, then model folders")
    parser.add_argument("--list", action="store_true", help="show each analysis' claim")
    parser.add_argument("--out", default="figures", help="where the figures go (default figures)")
    parser.add_argument(
        "--width",
        type=_width,
        default="page",
        help="page, column, neurips, iclr, icml, icml-column, acl, acl-column, or a length: 5.5in",
    )
    parser.add_argument(
        "--dpi", type=int, default=300, metavar="N", help="pixels per inch of the PNG, 50 to 1200 (default 300)"
    )
    parser.add_argument(
        "--style", default="", help="a matplotlib style file, or a style's name: fonts, axes, colours of series"
    )
    parser.add_argument(
        "--labels", action="append", default=[], metavar="NAME=WORDS", help="show other words for a name (may be repeated)"
    )
    parser.add_argument("--order", action="append", default=[], metavar="NAME", help="draw this name first (may be repeated)")
    parser.add_argument(
        "--only", action="append", default=[], metavar="NAME",
        help="leave out other panels, labels or categories than this one (may be repeated)",
    )  # fmt: skip
    return parser


def _width(text: str) -> str:
    from compolens.figures import inches

    try:
        inches(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    return text


def run(options: argparse.Namespace) -> int:
    """Do what `options` ask for; returns the exit status."""
    if options.list:
        return list_recipes("analyses")
    from compolens import recipes, tables
    from compolens.figures import Look

    files, folders = split_items("analyses", options.items)
    need_both("analyses", "analyze", files, folders)
    recipes.check_names(files, "analyses")
    drawn = {file: recipes.of_maps(file) for file in files}
    models = finished_models(tables.find(folders), folders) if not all(drawn.values()) else []
    maps = tables.find_maps(folders) if any(drawn.values()) else []
    lists = {name: tuple(getattr(options, name)) for name in ("labels", "order", "only")}
    look = Look(options.width, options.dpi, options.style, **lists)
    for file in files:
        arguments = recipe_arguments("analyses", file, options)
        for path in recipes.run_analysis(file, maps if drawn[file] else models, arguments, Path(options.out), look, note=say):
            print(path)
    return 0
