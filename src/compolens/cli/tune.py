"""`compolens tune`: architectures at the same settings, the best chosen on validation compositions."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from compolens.cli.columns import print_table
from compolens.cli.engines import check_jobs, engine_of
from compolens.cli.flags import Parser, command_parser, common_flags, conclude, part_of, say
from compolens.cli.map import chosen, command_of, told


def make(commands: Any) -> Parser:
    """Add `compolens tune` to `commands`."""
    parser = command_parser(
        commands, "tune", run, "try compared architectures at the same settings; the best are chosen on validation",
        "compolens tune trained_models/tuning.py --out trained_models/tuning --jobs 2",
    )  # fmt: skip
    parser.add_argument("file", help="a Python file that defines `tunings`, a dict name -> Tuning")
    parser.add_argument("names", nargs="*", default=[], help="which tunings (names or patterns; default: all)")
    parser.add_argument("--list", action="store_true", help="print the cost and what is chosen so far, and train nothing")
    parser.add_argument("--out", default="runs/tuning", help="where the tunings' folders go (default runs/tuning)")
    common_flags(parser, "jobs", "device")
    return parser


def run(options: argparse.Namespace) -> int:
    """Do what `options` ask for; returns the exit status."""
    from compolens import maps
    from compolens.maps import work

    found, out = chosen(work.read(options.file, "tunings"), options), Path(options.out)
    planned = {name: one.cells(one.extended(_table(out / name))) for name, one in found.items()}
    parts = {name: _part(cells, options) for name, cells in planned.items()}
    check_jobs(options)
    engine, status = None if options.list else engine_of(options, out), 0
    told(options, {name: (cells, work.left(out / name, cells)) for name, cells in parts.items()})
    for name, one in found.items():
        cells, wanted = planned[name], parts[name]
        while engine is not None:
            command = command_of(options, "tune")
            outcome = maps.make(options.file, "tunings", name, wanted, out / name, engine, options.device, command)
            status = max(status, conclude(outcome))
            wider = one.cells(one.extended(_table(out / name)))
            if outcome.signum or outcome.failures or len(wider) == len(cells):
                break
            say(f"{name}: a best value is at the edge of its grid; {len(wider) - len(cells)} settings more, for all alike")
            cells, wanted = wider, _part(wider, options)
        _show(name, _table(out / name))
        if status >= 128:
            break
    return status


def _part(cells: list[Any], options: argparse.Namespace) -> list[Any]:
    """The cells of this command, of this machine."""
    mine = set(part_of([cell.name for cell in cells], options.shard))
    return [cell for cell in cells if cell.name in mine]


def _table(folder: Path) -> Any:
    """What is measured so far; no row where nothing is."""
    import pandas as pd

    from compolens.foundation import map_files

    table = map_files.read_table(folder) if map_files.is_map(folder) else pd.DataFrame(columns=["cell"])
    return table if "who" in table else table.iloc[:0]


def _show(name: str, table: Any) -> None:
    """The choice for every architecture, beside what could as well have been chosen."""
    from compolens.measures.tuned import SETTINGS, choices

    if not len(table):
        say(f"{name}: nothing is measured yet")
        return
    found, rows = choices(table), []
    for who, tried in table["who"].value_counts(sort=False).items():
        if who not in found:
            say(f"{name} {who}: diverged at each of {tried} settings; describe it with smaller rates")
    for who, best in found.items():
        low, high = best.held_out_range
        told_settings = [f"{best.settings[s]:g}" for s in SETTINGS]
        rows.append(
            [f"{name} {who}", str(best.tried), *told_settings, f"{best.error:.2f} ± {best.error_se:.2f}",
             f"{best.train_error:.2f}", f"{best.held_out:.4f}", f"{low:.4f} to {high:.4f} ({best.close})",
             ", ".join(best.edges)]
        )  # fmt: skip
    print_table(
        [
            "tuned",
            "tried",
            *SETTINGS,
            "log(1-R²) validation",
            "on training",
            "held out",
            "within one s.e. (settings)",
            "at the edge",
        ],
        rows,
    )
