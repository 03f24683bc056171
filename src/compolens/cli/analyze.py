"""`compolens analyze`: figures from the tables of many models."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from compolens.cli.flags import Parser, command_parser, finished_models, say
from compolens.cli.recipe_flags import list_recipes, need_both, recipe_arguments, split_items


def make(commands: Any) -> Parser:
    parser = command_parser(
        commands, "analyze", run, "draw figures from the tables of many models: PDF, PNG, the numbers, and what was used",
        "compolens analyze who_generalizes runs/* --out figures --width column",
    )  # fmt: skip
    parser.add_argument("items", nargs="*", metavar="RECIPE… FOLDER…", help="analyses by name or path, then model folders")
    parser.add_argument("--list", action="store_true", help="show each analysis' claim")
    parser.add_argument("--out", default="figures", help="where the figures go (default figures)")
    parser.add_argument(
        "--width",
        default="page",
        choices=["column", "page"],
        help="column or page: a one-column or a full-width figure (default page)",
    )
    return parser


def run(options: argparse.Namespace) -> int:
    if options.list:
        return list_recipes("analyses")
    from compolens import recipes, tables

    files, folders = split_items("analyses", options.items)
    need_both("analyses", "analyze", files, folders)
    models = finished_models(tables.find(folders), folders)
    for file in files:
        arguments = recipe_arguments("analyses", file, options)
        for path in recipes.run_analysis(file, models, arguments, Path(options.out), options.width, note=say):
            print(path)
    return 0
