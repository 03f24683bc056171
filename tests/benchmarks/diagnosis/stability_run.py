"""Is a model's label the same over five episode seeds? 40 models, measured from nothing for every seed, into a CSV.

    python tests/benchmarks/diagnosis/stability_run.py measure DIR FILE [--models NAME …] [--seeds N …] [--own]
    python tests/benchmarks/diagnosis/stability_run.py score FILE

16 shipped models, every tenth of the third blind set and every 31st of the benchmark's constructed cases, so that nobody chose
among these. Weights stay; what differs are the episodes that all probes draw: as many as `cases.MEASURED` has them, or with
--own, for another FILE, as many as `compolens explain` takes, which is more. Appends a row for every model and seed that
FILE does not have, one model after another. `score` says in how many of the models with all seeds all labels are equal.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

HERE = Path(__file__).parent
if str(HERE) not in sys.path:
    sys.path.insert(0, str(HERE))

import blind  # noqa: E402
from blind_run import COLUMNS, append, diagnosed  # noqa: E402
from cases import CLASSES, MEASURED, build, cases  # noqa: E402

SEEDS = range(5)
ZOO = HERE.parents[2] / "trained_models"
SHIPPED = (
    "F-softmax-0", "F-hypernetwork-0", "F-bottleneck-0", "F-bottleneck-wide-0", "R-softmax-0", "R-hypernetwork-0",
    "fuzzy-softmax-0", "fuzzy-hyla-0", "fuzzy-linear-0", "unstructured-softmax-0", "relations/1L-softmax-none-0",
    "relations/1L-linear-relative-0", "boolean/dnf-0", "sraven3-softmax-0", "sraven3-hyla-0", "sraven3-sparse-0",
)  # fmt: skip
ROWS = ("model", "seed", *COLUMNS[1:])


def models() -> list[str]:
    """All 40: constructed ones of both sets and shipped ones in turn, so that the first so many are of every sort."""
    constructed, blinded = list(cases())[::31], list(blind.SETS["third"]())[4::10]
    longest = max(len(constructed), len(blinded), len(SHIPPED))
    turns = [[names[k] for names in (blinded, constructed, SHIPPED) if k < len(names)] for k in range(longest)]
    return [name for turn in turns for name in turn]


def folder_of(name: str, place: Path) -> Path:
    """A folder of the model that has no tables."""
    if name in SHIPPED:
        return Path(shutil.copytree(ZOO / name, place, ignore=shutil.ignore_patterns("tables", "steps")))
    third = blind.SETS["third"]()
    return blind.build(third[name], place) if name in third else build(cases()[name], place)


def one(name: str, seed: int, place: Path, own: bool = False) -> dict[str, Any]:
    """The row of a model and an episode seed; what was measured is removed again. own: as many episodes as `explain` takes."""
    shutil.rmtree(place, ignore_errors=True)
    try:
        folder = folder_of(name, place)
        asked = {probe: {} for probe in MEASURED} if own else MEASURED
        row = diagnosed(name, folder, (*blind.CLASSES, *CLASSES), seed=seed, asked=asked)
    finally:
        shutil.rmtree(place, ignore_errors=True)
    return {"model": row.pop("case"), "seed": seed, **row}


def equal(found: pd.DataFrame) -> pd.Series:
    """model -> whether the labels of all `SEEDS` are equal; only models that have all."""
    whole = found.groupby("model").filter(lambda rows: set(rows["seed"]) >= set(SEEDS))
    return whole.groupby("model")["label"].agg(lambda labels: len(set(labels)) == 1)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    what = parser.add_subparsers(dest="what", required=True)
    measure = what.add_parser("measure")
    measure.add_argument("folder", metavar="DIR", type=Path, help="where a model is put while it is measured")
    measure.add_argument("--models", nargs="+", metavar="NAME", help="only these (default all)")
    measure.add_argument("--seeds", nargs="+", type=int, metavar="N", help="only these (default 0 to 4)")
    measure.add_argument("--own", action="store_true", help="as many episodes as `compolens explain` takes")
    for command in (measure, what.add_parser("score")):
        command.add_argument("file", metavar="FILE", type=Path, help="the CSV")
    given = parser.parse_args(arguments)
    if given.what == "score":
        same = equal(pd.read_csv(given.file))
        print(f"{int(same.sum())} of {len(same)} models have the same label in all {len(SEEDS)} seeds")
        print("\n".join(f"  differs: {name}" for name in same.index[~same]))
        return 0
    import torch

    torch.set_num_threads(1)
    there = set()
    if given.file.exists():
        rows = pd.read_csv(given.file)
        there = set(zip(rows["model"], rows["seed"], strict=True))
    for name in given.models or models():
        for seed in given.seeds or SEEDS:
            if (name, seed) not in there:
                row = one(name, seed, given.folder / "measured", given.own)
                append(given.file, ROWS, row)
                print(name, seed, row["label"], row["seconds"], flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
