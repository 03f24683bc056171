"""`compolens push`: a model folder on the Hugging Face hub."""

from __future__ import annotations

import argparse
from typing import Any

from compolens.cli.flags import Parser, command_parser, common_flags, outside


def make(commands: Any) -> Parser:
    """Add `compolens push` to `commands`."""
    parser = command_parser(
        commands, "push", run, "send a model folder to the Hugging Face hub (log in first: hf auth login)",
        "compolens push runs/F-softmax-0 me/F-softmax-0 --private",
    )  # fmt: skip
    parser.add_argument("folder", help="a finished model folder")
    parser.add_argument("name", metavar="OWNER/NAME", help="what it is called there")
    parser.add_argument("--private", action="store_true", help="seen by its owner alone, if it is new")
    parser.add_argument("--revision", metavar="BRANCH", help="a branch, made if there is none (default: main)")
    common_flags(parser, "with")
    return parser


def run(options: argparse.Namespace) -> int:
    """Do what `options` ask for; returns the exit status."""
    from compolens.zoo import hub

    classes = outside(options.classes)
    print(hub.push(options.folder, options.name, private=options.private, revision=options.revision, classes=classes))
    return 0
