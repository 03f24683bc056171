"""`compolens challenge`: a claim under every defensible choice of how to measure it."""

from __future__ import annotations

import argparse
import shlex
from pathlib import Path
from typing import Any

from compolens import __version__
from compolens.cli.flags import Parser, command_parser, common_flags, outside, seed, some


def make(commands: Any) -> Parser:
    """Add `compolens challenge` to `commands`."""
    parser = command_parser(
        commands, "challenge", run, "measure a claim again under every defensible choice of how to measure it",
        "compolens challenge runs/F-softmax-0 --claim latent_code --out figures",
    )  # fmt: skip
    parser.add_argument("folder", help="a model folder")
    parser.add_argument("--claim", default="latent_code", help="which claim (default latent_code)")
    parser.add_argument("--episodes", type=some, default=2048, metavar="N", help="per split (default 2048)")
    parser.add_argument("--permutations", type=some, default=20, metavar="N", help="of the labels, for the null (default 20)")
    parser.add_argument("--seed", type=seed, default=0, help="which episodes (default 0)")
    parser.add_argument("--out", default="figures", help="where the curve goes (default figures)")
    common_flags(parser, "with")
    return parser


def run(options: argparse.Namespace) -> int:
    """Do what `options` ask for; returns the exit status."""
    from compolens import challenge, figures, tables
    from compolens.foundation import cells
    from compolens.foundation.model_folders import named

    folder = named(options.folder)
    arguments = {"episodes": options.episodes, "permutations": options.permutations, "seed": options.seed}
    found = challenge.run(folder, options.claim, classes=outside(options.classes), **arguments)
    name = f"challenge-{options.claim}-{folder.name}"
    sidecar = {"runs": [str(folder)], "arguments": arguments, "weights": tables.file_digest(folder / "weights.safetensors")}
    sidecar |= {"command": f"compolens challenge {shlex.quote(str(folder))} --claim {options.claim}", "version": __version__}
    paths = figures.save(found.drawing, Path(options.out), name, "page", sidecar)
    table = Path(options.out) / f"{name}.specifications.csv"
    cells.escaped(found.table).to_csv(table, index=False, float_format="%.6g")
    print(found.drawing.caption, *paths, table, sep="\n")
    return 0
