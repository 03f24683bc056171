"""`compolens explain`: measures what is missing, then says what is wrong, with a page of evidence."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from compolens.cli.engines import engine_of
from compolens.cli.flags import Parser, check_file, command_parser, common_flags, conclude, finished_models, outside, some
from compolens.cli.probe import models_of, to_be_read, to_measure
from compolens.cli.recipe_flags import recipe_arguments
from compolens.cli.report import evidence_flag, write_report
from compolens.foundation.configs import ConfigError

EXPLAINS = (
    "generalization", "swap_code", "swap_factor", "erase_code", "inference_or_execution", "which_prior", "latent_code",
    "nonlinear_code", "code_structure",
)  # fmt: skip
"""The probes that `explain` reads, in the order in which it measures what is missing: first what nothing can be said without,
then the longest, so that none of several processes ends long after the others."""


def make(commands: Any) -> Parser:
    """Add `compolens explain` to `commands`."""
    parser = command_parser(
        commands, "explain", run,
        "say what is wrong with models, and where: measures what is missing, then the diagnosis and a page with the evidence",
        "compolens explain runs/F-softmax-0 -o report.html",
    )  # fmt: skip
    parser.add_argument("folders", nargs="+", metavar="FOLDER", help="model folders, or folders of model folders")
    parser.add_argument("-o", "--output", default="report.html", help="the page (default report.html)")
    parser.add_argument("--again", action="store_true", help="measure even where an up-to-date table lies")
    parser.add_argument("--confirm", action="store_true", help="also mend what is blamed, and placebos (probe repair; slower)")
    parser.add_argument(
        "--episodes", dest="recipe_episodes", type=some, metavar="N", help="for every probe (default: each its own)"
    )
    parser.add_argument(
        "--all-sites", dest="recipe_all_sites", action="store_true", default=None,
        help="controls of swaps and erasures at every place, not only at the two best on training compositions (slower)",
    )  # fmt: skip
    evidence_flag(parser)
    common_flags(parser, "jobs", "device", "with")
    return parser


def run(options: argparse.Namespace) -> int:
    """Do what `options` ask for; returns the exit status."""
    from compolens import recipes, tables

    folders = [Path(f) for f in options.folders]
    found = tables.find(folders)
    check_file(options.output, "-o")
    outside(options.classes)  # an error now, before anything is looked up
    engine = engine_of(options, found[0].parent)
    mine = models_of(found, options)
    if not mine:
        return 0
    models = finished_models(mine, folders)
    files = [recipes.locate("probes", name) for name in (*EXPLAINS, *(["repair"] if options.confirm else []))]
    wanted = {file: recipe_arguments("probes", file, options) for file in files}
    more_will_do = options.recipe_episodes is None
    work = to_measure([folder for folder in models if tables.finished(folder)], wanted, options, "final", more_will_do)
    work, unreadable = to_be_read(work, outside(options.classes))
    outcome = engine.run(work)
    outcome.failures.update(_unfinished(models) | unreadable)
    refused = [
        (Path(job.arguments[1]).name, Path(job.arguments[0]).stem, outcome.inapplicable.get(job.name, "")) for job in work
    ]
    status = conclude(outcome) if outcome.signum or outcome.failures else 0
    if outcome.signum or (outcome.failures and not outcome.results and not _measured(models)):
        return status
    if options.shard is not None:
        print("this shard is measured; the same command without --shard, once all are, writes the report", file=sys.stderr)
        return status
    return max(write_report("explain", options, models, [one for one in refused if one[2]]), status)


def _unfinished(models: list[Path]) -> dict[str, str]:
    """Why models that are in training are not measured: said once of each, not once by each probe."""
    from compolens import tables, zoo

    found = {}
    for folder in models:
        if not tables.finished(folder):
            try:
                zoo.read_step(folder)
            except ConfigError as error:
                found[folder.name] = str(error)
    return found


def _measured(models: list[Path]) -> bool:
    """Whether there is anything to speak of, although not everything could be measured."""
    from compolens import tables

    return any(tables.finished(folder) and tables.has(folder, "generalization") for folder in models)
