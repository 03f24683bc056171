"""`compolens contest`: predictors of compositional generalization, judged on many trained models."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from compolens.cli.columns import print_table
from compolens.cli.engines import engine_of
from compolens.cli.flags import Parser, command_parser, common_flags, conclude, count, finished_models, say, some
from compolens.cli.probe import models_of, to_measure
from compolens.foundation.configs import ConfigError

BUILT_IN = "predictors"


def make(commands: Any) -> Parser:
    """Add `compolens contest` to `commands`."""
    parser = command_parser(
        commands, "contest", run, "measure predictors of generalization on trained models, and print the place of each",
        "compolens contest mine.py trained_models --jobs 2",
    )  # fmt: skip
    parser.add_argument("items", nargs="*", metavar="PREDICTOR… FOLDER…", help="probe files of your own, then model folders")
    parser.add_argument("--episodes", type=some, default=1024, help="episodes per split and half (default 1024)")
    parser.add_argument("--families", type=count, default=3, help="a predictor enters if defined in so many (default 3)")
    parser.add_argument("--models", type=count, default=100, help="and of so many models (default 100)")
    parser.add_argument("--measured", action="store_true", help="judge what is measured already; measure nothing")
    common_flags(parser, "jobs", "device", "with")
    return parser


def run(options: argparse.Namespace) -> int:
    """Do what `options` ask for; returns the exit status."""
    from compolens import recipes, tables
    from compolens.diagnosis import contest
    from compolens.figures.words import counted

    own = list(dict.fromkeys(recipes.locate("probes", item) for item in options.items if item.endswith(".py")))
    named = [Path(item) for item in options.items if not item.endswith(".py")] or [Path("trained_models")]
    for item in options.items:
        if item in recipes.built_in("probes") and not Path(item).exists():
            raise ConfigError(f"{item} is a built-in probe; the contest takes files of your own, such as my_predictor.py")
    files, status = [recipes.locate("probes", "generalization"), recipes.locate("probes", BUILT_IN), *own], 0
    recipes.check_names(files)
    found = tables.find(named)
    folders = finished_models(found, named)
    if not options.measured:
        mine = [folder for folder in models_of(found, options) if folder in folders]
        status = _measure(files, mine, options, folders[0].parent)
        if status >= 128 or options.shard:
            return status
    frame = contest.gathered(folders, [BUILT_IN, *(file.stem for file in own)])
    judged = contest.judge(frame, options.families, options.models)
    entrants = sum(one.enters for one in judged)
    for league, meaning in contest.LEAGUES.items():
        here = [(one, contest.verdict(one, entrants)) for one in judged if one.league == league]
        _show(f"{league}: {meaning}", here)
    used, left_out = frame["model"].nunique(), frame.attrs["left_out"]
    whose = f"{counted(used, 'model')} of {counted(frame['family'].nunique(), 'family', 'families')}"
    say(f"{whose}; {len(left_out)} left out, such as: {_first(left_out)}")
    return status


def _first(left_out: dict[str, str]) -> str:
    return next((f"{Path(folder).name} {why}" for folder, why in left_out.items()), "none")


def _measure(files: list[Path], mine: list[Path], options: argparse.Namespace, place: Path) -> int:
    """Measure what is missing; a family to which a predictor does not apply is no failure."""
    from compolens import recipes

    options.again = False
    arguments = {}
    for file in files:
        defaults = {name: p.default for name, p in recipes.options(recipes.load_recipe("probes", file)).items()}
        given = {"episodes": options.episodes} if "episodes" in defaults and file.stem != "generalization" else {}
        arguments[file] = defaults | given
    work = [job for job in to_measure(mine, arguments, options, "final") if not _has(job)]
    outcome = engine_of(options, place).run(work)
    outcome.inapplicable.clear()
    return conclude(outcome)


def _has(job: Any) -> bool:
    """Whether what a model has will do: scores measured with other arguments are scores."""
    from compolens import tables

    file, folder = job.arguments[:2]
    return Path(file).stem == "generalization" and not tables.why_not(folder, "generalization")


def _show(title: str, judged: list[tuple[Any, str]]) -> None:
    print(title)
    rows = []
    for place, (one, verdict) in enumerate(judged, start=1):
        sign = {1: "+", -1: "-", 0: "?"}[one.direction]
        families = "  ".join(f"{name} {value:.2f}" for name, value in one.by_family.items())
        rows.append(
            [str(place) if one.enters else "-", one.name, verdict, sign, f"{one.agreement:.2f} [{one.lo:.2f}, {one.hi:.2f}]",
             f"{one.p_corrected:.3f}", f"{one.pairs} in {one.clusters}", f"{one.by_seed:.2f}", families,
             f"{one.reliability:.2f}", one.why_not or f"{one.models} models"]
        )  # fmt: skip
    columns = [
        "place",
        "predictor",
        "verdict",
        "expected",
        "agreement",
        "p",
        "pairs, clusters",
        "by seed",
        "by family",
        "reliability",
        "",
    ]
    print_table(columns, rows, ("by family", "reliability", "by seed"))
    print()
