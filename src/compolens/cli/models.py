"""`compolens models`: what has been trained, with scores, groups or diagnoses."""

from __future__ import annotations

import argparse
import contextlib
import json
import shlex
import sys
from pathlib import Path
from typing import Any

from compolens.cli.columns import print_table
from compolens.cli.flags import Parser, command_parser, common_flags, outside
from compolens.cli.rows import Filter, Row, chosen, known, ordered
from compolens.foundation.configs import ConfigError

COLUMNS = ["model", "architecture", "task", "steps", "parameters", "train", "test", "ood", "note"]
OPTIONAL = ["parameters", "train", "steps", "task"]
"""What a narrow terminal does without, the first first."""


def make(commands: Any) -> Parser:
    """Add `compolens models` to `commands`."""
    parser = command_parser(
        commands, "models", run, "list trained models with their scores", "compolens models trained_models"
    )
    parser.add_argument(
        "folders", nargs="*", default=None, metavar="DIR", help="where to look (default: trained_models, runs)"
    )
    parser.add_argument(
        "--summary",
        action="store_true",
        help="a Markdown table: means over seeds with 95 %% intervals (needs the table generalization)",
    )
    parser.add_argument("--diagnosis", action="store_true", help="a Markdown table: label and loss in parts (see explain)")
    parser.add_argument(
        "--check", action="store_true", help="read every file and name those that are not what was written; exit status 1"
    )
    parser.add_argument(
        "--write-digests", action="store_true", help="keep the sha256 of the files of finished folders that keep none"
    )
    parser.add_argument(
        "--filter", dest="filters", action="append", default=[], type=Filter.read, metavar="KEY=VALUE",
        help="only models of which this holds: a column or a setting, such as architecture=HYLA, n_layers=3, 'steps>1000', "
        "'ood<0.5'; = and != take * and ?; may be given again",
    )  # fmt: skip
    parser.add_argument("--sort", metavar="KEY", help="by a column or a setting; -KEY (typed --sort=-KEY): the largest first")
    parser.add_argument("--columns", metavar="A,B", help="columns and settings to show, in this order")
    parser.add_argument("--json", action="store_true", help="a list of JSON objects, with all settings")
    common_flags(parser, "with")
    return parser


def _usable(folders: list[Path], needs: tuple[str, ...]) -> list[Path]:
    """The finished models that are whole and have these tables; of the others it is said why they are left out."""
    from compolens import tables

    kept = []
    for folder in folders:
        try:
            tables.settings(folder)
            reason = next((why for name in needs if (why := tables.why_not(folder, name))), "")
        except ConfigError as error:
            reason = str(error)
        if tables.finished(folder) and not reason:
            kept.append(folder)
        elif tables.finished(folder):
            print(f"{folder.name} is left out: {reason}", file=sys.stderr)
    return kept


def _with_scores(folders: list[Path]) -> list[Path]:
    """The models whose table generalization has the rows that the summary shows; of the others it is said what they lack."""
    from compolens.diagnosis import evidence, groups

    kept = []
    for folder in folders:
        try:
            (alone,) = groups.group([folder])
            for split in ("test", "ood"):
                evidence.score(alone, split)
            _parameters(folder)
        except ConfigError as error:
            print(f"{folder.name} is left out: {error}", file=sys.stderr)
        else:
            kept.append(folder)
    return kept


def _parameters(folder: Path) -> int:
    from compolens.foundation import digests

    count = digests.read_scores(folder).get("parameters")
    if not isinstance(count, int):
        raise ConfigError(f"{folder / 'scores.json'} lacks 'parameters'; restore it, or train the run again")
    return count


def _summarise(folders: list[Path]) -> int:
    """Groups of models that differ in seeds alone: parameters, seeds, test and ood score with two-level intervals, the ceiling
    of the latter, and what the paper reports where the setting is its own. Then the trainings that have not ended."""
    from compolens import tables
    from compolens.diagnosis import evidence, groups

    print("| setting | architecture | parameters | seeds | test | ood | ceiling | the paper's measure: ours / the paper |")
    print("|---|---|---|---|---|---|---|---|")
    for group in groups.group(_with_scores(_usable(folders, ("generalization",)))):
        parameters = _parameters(group.folders[0])
        cells = []
        for split in ("test", "ood"):
            found = evidence.score(group, split)
            spread = f" [{found.lo:.3f}, {found.hi:.3f}]" if len(group.folders) >= groups.SEEDS else ""
            part = evidence.stratum(group, split)
            cells.append(f"{found.value:.3f}{spread}" + (f" ({part[1]:.3f} {part[0]})" if part else ""))
        top = evidence.ceiling(group)
        cells += ["1" if top > 1 - 1e-3 else f"{top:.3f} (share {found.value / top:.2f})", evidence.beside_the_paper(group)]
        print(f"| {group.setting} | {group.label} | {parameters:,} | {len(group.folders)} | {' | '.join(cells)} |")
    for folder in folders:
        if not tables.finished(folder):
            from compolens import zoo  # with torch, which nothing else here needs

            print(f"| {folder.name} | | | | {zoo.overview(folder)['note']} | | | |")
    return 0


def _diagnose(folders: list[Path]) -> int:
    """Groups of models with their label, and what they lack on held-out compositions in parts; those without tables are left
    out, and said."""
    from compolens import tables
    from compolens.diagnosis import decomposition, groups, label

    for folder in folders:
        if not tables.finished(folder):
            print(f"{folder.name}: not finished, left out", file=sys.stderr)
    told = (*decomposition.PARTS, decomposition.NOT_LOCATED)
    columns = ["setting", "architecture", "seeds", "diagnosis", "ood", "lacks", *told, "its code is read at"]
    print(f"| {' | '.join(columns)} |\n|{'---|' * len(columns)}")
    measured = [f for f in folders if any(tables.exists(f, name) for name in label.NEEDS)]
    whole = {*_usable(measured, label.NEEDS), *_usable([f for f in folders if f not in measured], ())}
    for group in groups.group([f for f in folders if f in whole]):
        try:
            found = label.diagnose(group.folders)
        except (LookupError, ValueError) as error:  # a table from before digests that lacks what its probe writes
            reason = str(error) if isinstance(error, ConfigError) else f"its tables lack {error}"
            print(f"{group.label}: {reason}; type: {_explain(group)} --again", file=sys.stderr)
            continue
        if found is None:
            print(f"{group.label}: no tables; type: {_explain(group)}", file=sys.stderr)
            continue
        lacks = found.scores["ceiling"] - found.scores["ood"]
        sure = len(group.folders) >= groups.SEEDS
        lost = {part: str(loss) if sure else f"{loss.value:.3f}" for part, loss in found.parts["ood"].items()}
        cells = [
            group.setting,
            group.label,
            str(len(group.folders)),
            found.label,
            f"{found.scores['ood']:.3f}",
            f"{lacks:.3f}",
        ]
        print(f"| {' | '.join([*cells, *(lost.get(part, '') for part in told), found.place])} |")
    return 0


def _explain(group: Any) -> str:
    return shlex.join(["compolens", "explain", *map(str, group.folders)])


def _models_and_maps(roots: list[str]) -> tuple[list[Path], list[Path]]:
    """What is to be checked below the roots; there may be models, or maps, or both."""
    from compolens import tables
    from compolens.foundation import map_files

    try:
        maps = tables.find_maps(roots)
    except ConfigError:
        return tables.find(roots), []
    others = [root for root in roots if not map_files.is_map(root)]
    try:
        return (tables.find(others) if others else []), maps
    except ConfigError:
        return [], maps


def _check(folders: list[Path], maps: list[Path]) -> int:
    """Name every file that is not what was written, and every table that cannot be used."""
    from compolens import tables
    from compolens.foundation import digests, map_files
    from compolens.tasks.fixed import stored

    bad = before = 0
    for folder in folders:
        told = digests.damaged(folder) + stored.damaged(folder)
        told += [reason for name in tables.names(folder) if (reason := tables.why_not(folder, name))]
        before += not (folder / digests.FILE).exists()
        bad += bool(told)
        for sentence in told:
            print(sentence)
    for place in maps:
        wrong = map_files.damaged(place)
        bad += bool(wrong)
        for sentence in wrong:
            print(sentence)
    folders = [*folders, *maps]
    print(f"{len(folders)} folders: {len(folders) - bad} as they were written, {bad} not; {before} written before digests")
    return 1 if bad else 0


def _write_digests(folders: list[Path]) -> int:
    """Keep digests of the finished folders that keep none; a folder that keeps some is left as it is."""
    from compolens import tables
    from compolens.foundation import digests

    for folder in folders:
        if (folder / digests.FILE).exists():
            told = digests.damaged(folder)
            print(f"{folder.name}: {told[0]}" if told else f"{folder.name}: keeps digests already")
        elif not tables.finished(folder):
            print(f"{folder.name}: not finished; its digests are written when it is")
        else:
            digests.take(folder)
            print(f"{folder.name}: written before digests; {digests.FILE} holds them now")
    return 0


def run(options: argparse.Namespace) -> int:
    """Do what `options` ask for; returns the exit status."""
    from compolens import tables

    roots = options.folders or [d for d in ("trained_models", "runs") if Path(d).is_dir()]
    if not roots:
        raise ConfigError("there is neither trained_models nor runs here; name a folder: compolens models DIR")
    modes = [flag for flag in ("write_digests", "check", "summary", "diagnosis") if getattr(options, flag)]
    ignored = [flag for flag in ("sort", "columns", "json") if getattr(options, flag)]
    if modes and (ignored or len(modes) > 1):
        one, other = (f"--{flag.replace('_', '-')}" for flag in [*modes, *ignored][:2])
        raise ConfigError(f"{one} does not go with {other}; leave one of them out")
    if modes:
        found, maps = _models_and_maps(roots) if options.check and not options.filters else (tables.find(roots), [])
        if options.filters:
            found = [Path(row["model"]) for row in _filtered(found, options)]
        if options.check:
            return _check(found, maps)
        if options.write_digests:
            return _write_digests(found)
        with tables.read_once():
            return (_summarise if options.summary else _diagnose)(found)
    rows = _filtered(tables.find(roots), options)
    rows = ordered(rows, options.sort) if options.sort else rows
    if options.json:
        names = {name: known(name, rows) for name in _split(options.columns or "")}
        wanted = [{name: row.get(key) for name, key in names.items()} for row in rows]
        print(json.dumps(rows if options.columns is None else wanted, indent=1))
        return 0
    _show(rows, options.columns)
    return 0


def _filtered(folders: list[Path], options: argparse.Namespace) -> list[Row]:
    """The rows of which all that --filter says holds."""
    from compolens.tables.gathering import switched_off

    off: set[str] = set()
    for folder in folders if options.filters else ():
        with contextlib.suppress(ConfigError):  # a folder that is damaged
            off |= switched_off(folder)
    return chosen(_rows(folders, outside(options.classes)), options.filters, off)


def _rows(folders: list[Path], classes: tuple[Any, ...]) -> list[Row]:
    """A row per model: what `zoo.overview` says of it, its path in the place of its name, and its settings."""
    from compolens import tables, zoo

    rows = []
    for folder in folders:
        row = zoo.overview(folder, classes) | {"model": str(folder)}
        try:
            row |= {key: value for key, value in tables.settings(folder).items() if key not in (*row, "folder")}
        except ConfigError as error:  # a folder that is damaged
            row.setdefault("note", str(error))
        rows.append(row)
    return rows


def _split(columns: str) -> list[str]:
    return [name.strip() for name in columns.split(",") if name.strip()]


def _show(rows: list[Row], wanted: str | None) -> None:
    columns = _split(wanted) if wanted is not None else [c for c in COLUMNS if c != "note" or any("note" in r for r in rows)]
    if not columns:
        raise ConfigError("--columns names none; type some, such as --columns model,architecture,ood")
    names = [known(column, rows) if wanted is not None else column for column in columns]
    cells = [[_cell(name, row.get(name, "")) for name in names] for row in rows]
    notes = wanted is None and columns[-1] == "note" and sys.stdout.isatty()
    if notes:  # sentences, which in a column would make every other one narrow
        columns, cells = columns[:-1], [row[:-1] for row in cells]
    print_table(columns, cells, () if wanted is not None else OPTIONAL)
    for row in [row for row in rows if notes and "note" in row]:
        print(f"{row['model']}: {row['note']}", file=sys.stderr)


def _cell(name: str, value: Any) -> str:
    """A value as it is shown: a path that can be pasted, scores with four digits, counts with their thousands set apart."""
    if name == "model":
        return shlex.quote(str(value))
    if isinstance(value, bool) or "seed" in name:
        return str(value)
    return (
        f"{value:.4f}"
        if isinstance(value, float) and name in COLUMNS
        else f"{value:,}"
        if isinstance(value, int)
        else str(value)
    )
