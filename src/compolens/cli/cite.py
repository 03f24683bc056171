"""`compolens cite`: BibTeX of what models rest on."""

from __future__ import annotations

import argparse
from typing import Any

from compolens.cli.flags import Parser, check_code, command_parser
from compolens.foundation.configs import ConfigError


def make(commands: Any) -> Parser:
    """Add `compolens cite` to `commands`."""
    parser = command_parser(
        commands, "cite", run, "print BibTeX: the tool, and the papers behind the tasks, architectures and measures used",
        "compolens cite runs/F-softmax-0 > used.bib",
    )  # fmt: skip
    parser.add_argument("folders", nargs="+", metavar="FOLDER", help="model folders, or folders of model folders")
    parser.add_argument(
        "--with", dest="classes", action="append", default=[], metavar="FILE.py:CLASS",
        help="a class of your own that a folder names; papers in its docstring are cited too",
    )  # fmt: skip
    return parser


def run(options: argparse.Namespace) -> int:
    """Do what `options` ask for; returns the exit status."""
    from compolens import citations, tables

    places = [item.rpartition(":") for item in options.classes]
    for item, (where, _, _) in zip(options.classes, places, strict=True):
        if not where.endswith(".py"):
            raise ConfigError(
                f"--with wants FILE.py:CLASS, such as my_file.py:MyNet; got {item!r} (the file is read, not run)"
            )
        check_code(item, where)
    print(citations.bibtex(tables.find(options.folders), [where for where, _, _ in places]), end="")
    return 0
