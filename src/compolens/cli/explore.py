"""`compolens explore`: look at models on a local page."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from compolens.cli.flags import Parser, command_parser, common_flags, finished_models, outside, say
from compolens.foundation import model_folders
from compolens.foundation.configs import ConfigError


def make(commands: Any) -> Parser:
    """Add the command's parser.

    Args:
        commands: what parsers are added to.

    Returns:
        The parser.
    """
    parser = command_parser(
        commands, "explore", run, "look at models on a local page: compositions, attention, patching, codes",
        "compolens explore trained_models/F-softmax-0 trained_models/F-hypernetwork-0",
    )  # fmt: skip
    parser.add_argument("folders", nargs="+", metavar="FOLDER", help="model folders, or folders of model folders")
    parser.add_argument("--port", type=int, default=0, metavar="N", help="the port on 127.0.0.1 (default: a free one)")
    parser.add_argument("--no-browser", dest="browser", action="store_false", help="open no browser; the address is printed")
    common_flags(parser, "with")
    return parser


def run(options: argparse.Namespace) -> int:
    """Serve the page until Ctrl-C.

    Args:
        options: the flags.

    Returns:
        The exit status.

    Raises:
        ConfigError: what the page needs is not installed, or no model's description can be read.
    """
    named = [Path(folder) for folder in options.folders]
    models = finished_models(model_folders.find(named), [])  # of one in training there is nothing to look at yet
    try:
        from compolens.explore.page import serve
    except ModuleNotFoundError as error:
        raise ConfigError(f"the page needs {error.name}, which is not installed; pip install 'compolens[explore]'") from error
    from compolens.explore.explorer import Explorer, described

    serve.run(Explorer(described(models, say), outside(options.classes)), options.port, options.browser)
    return 0
