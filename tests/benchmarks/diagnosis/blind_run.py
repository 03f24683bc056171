"""The diagnosis of `compolens explain` on the blind set, case by case, into a CSV that ``blind.py score`` reads.

    python tests/benchmarks/diagnosis/blind_run.py DIR FILE [--set first] [--cases b001 b002 …]

Builds a case in DIR, measures the probes that labels rest on with `cases.MEASURED`'s numbers of episodes, and appends a row
to FILE: case, label, confidence, seconds (of processor time), place, moved, the parts of the loss and what could not be
measured. Confidence is the share of resamples of the compositions with the same label. Cases that FILE has are skipped, so a
run that was stopped goes on. Cases are in the set's order, which is shuffled: the first so many are a random sample.
"""

from __future__ import annotations

import argparse
import csv
import os
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
if str(HERE) not in sys.path:
    sys.path.insert(0, str(HERE))

import blind  # noqa: E402
from blind_plan import UNDECIDED  # noqa: E402
from cases import MEASURED  # noqa: E402

from compolens import recipes, tables  # noqa: E402
from compolens.diagnosis import label as diagnosis  # noqa: E402
from compolens.foundation import builtin  # noqa: E402

PARTS = ("use", "inference", "form", "execution", "unexplained")
COLUMNS = ("case", "label", "confidence", "seconds", "test", "ood", "place", "moved", *PARTS, "reason", "not_measured")
DIGITS = 4


def measure(folder: Path, classes: Sequence[type], seed: int = 0, asked: Mapping[str, dict[str, Any]] = MEASURED) -> list[str]:
    """Measure what labels rest on, unless that was done; returns what could not be measured, and why. seed: of episodes;
    asked: probe -> what it is given besides."""
    lacking = []
    for probe, given in asked.items():
        file = builtin.built_in("probes")[probe]
        if tables.path_of(folder, probe).exists() and not tables.why_stale(folder, probe, file):
            continue
        options = recipes.options(recipes.load_recipe("probes", file))
        arguments = {name: parameter.default for name, parameter in options.items()} | given | {"seed": seed}
        try:
            recipes.run_probe(file, folder, arguments, classes=classes)
        except Exception as error:  # as `explain`: what can be measured is measured
            lacking.append(f"{probe}: {type(error).__name__}: {' '.join(str(error).split())[:160]}")
    return lacking


def diagnose(folder: Path) -> dict[str, Any]:
    """The label, how often it comes out again, and the numbers beside it."""
    models = diagnosis.measured([folder])
    if models is None:
        return {"label": UNDECIDED, "confidence": 0.0, "reason": "a table that is needed could not be measured"}
    models = diagnosis.as_diagnosed(models)
    found, stable = diagnosis.said_of(models)
    lost = {part: round(loss.value, DIGITS) for part, loss in found.parts["lost"].items() if part in PARTS}
    scores = {split: round(found.scores[split], DIGITS) for split in ("test", "ood")}
    moved = round(min(model.moved for model in models), DIGITS)
    beside = {"place": found.place, "moved": moved, **lost, "reason": found.reasons[-1] if found.reasons else ""}
    return {"label": found.label, "confidence": stable.label, **scores, **beside}


def diagnosed(
    name: str, folder: Path, classes: Sequence[type], began: float | None = None, seed: int = 0,
    asked: Mapping[str, dict[str, Any]] = MEASURED,
) -> dict[str, Any]:  # fmt: skip
    """The row of a model: measured where it was not, and diagnosed. began: processor time from which seconds count; seed: of
    the episodes; asked: probe -> what it is given besides."""
    began = time.process_time() if began is None else began
    lacking = measure(folder, classes, seed, asked)
    row = {"case": name, **diagnose(folder), "not_measured": "; ".join(lacking)}
    return row | {"seconds": round(time.process_time() - began, 1)}


def done(file: Path) -> set[str]:
    """The cases that a CSV has."""
    if not file.exists():
        return set()
    with file.open(newline="") as stream:
        return {row["case"] for row in csv.DictReader(stream)}


def append(file: Path, columns: Sequence[str], row: dict[str, Any]) -> None:
    """Append a row to a CSV, which is begun with its columns, and make sure that it is on disk."""
    new = not file.exists()
    with file.open("a", newline="") as stream:
        writer = csv.DictWriter(stream, columns, lineterminator="\n")
        if new:
            writer.writeheader()
        writer.writerow(row)
        stream.flush()
        os.fsync(stream.fileno())


def run(folder: Path, file: Path, chosen: Sequence[str], which: str = "first") -> None:
    """Diagnose the cases `chosen` of one of `blind.SETS` that `file` does not have."""
    import torch

    torch.set_num_threads(1)
    there = done(file)
    for name in (one for one in chosen if one not in there):
        began, path = time.process_time(), folder / name
        if not (path / "scores.json").exists():
            blind.build(blind.SETS[which]()[name], path)
        row = diagnosed(name, path, blind.CLASSES, began)
        append(file, COLUMNS, row)
        print(name, row["seconds"], flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", metavar="DIR", type=Path, help="where the models are built, and their tables kept")
    parser.add_argument("file", metavar="FILE", type=Path, help="the CSV that rows are appended to")
    parser.add_argument("--set", choices=list(blind.SETS), default="first", dest="which", help="which set (default first)")
    parser.add_argument("--cases", nargs="+", metavar="CASE", help="only these (default all)")
    given = parser.parse_args(arguments)
    every = list(blind.SETS[given.which]())
    chosen = given.cases or every
    unknown = sorted(set(chosen) - set(every))
    if unknown:
        parser.error(f"the {given.which} set has no case {', '.join(unknown)}; its cases are {every[0]} to {every[-1]}")
    run(given.folder, given.file, chosen, given.which)
    return 0


if __name__ == "__main__":
    sys.exit(main())
