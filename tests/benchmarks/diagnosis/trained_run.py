"""The diagnosis of the models of `trained`, model by model, into a CSV.

    compolens train tests/benchmarks/diagnosis/trained.py --out DIR
    python tests/benchmarks/diagnosis/trained_run.py DIR FILE

Appends a row for every model of DIR that FILE does not have, as `blind_run` does, with the label that was predicted before any
was trained. Beside it, apart from all rules, whose answers the held-out ones resemble: squared distances to right answers, to
those of the best training composition, and to those of the nearest of the regressions.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch

HERE = Path(__file__).parent
if str(HERE) not in sys.path:
    sys.path.insert(0, str(HERE))

from blind_run import COLUMNS, append, diagnosed, done  # noqa: E402
from trained import expected, runs  # noqa: E402

from compolens import tables  # noqa: E402

REGRESSIONS = (
    "in-context ridge",
    "in-context quadratic",
    "in-context kernel ridge",
    "in-context smoothing",
    "nearest example",
)
NEAR = ("to truth", "to training composition", "to regression", "regression")


def resembles(folder: Path) -> dict[str, float | str]:
    """`NEAR`: squared distances of held-out answers, over the variance of right ones, and which regression is the nearest."""
    rows = tables.read(folder, "which_prior")
    rows = rows[(rows["metric"] == "distance") & (rows["split"] == "ood") & (rows["composition"] == "all")]
    rows = rows[(rows["control"] == "") & (rows["learner"] == "model")]
    far = rows.set_index("reference")["value"].to_dict()
    nearest = min(REGRESSIONS, key=lambda name: far[name])
    found = far["truth"], far["best training composition"], far[nearest]
    return dict(zip(NEAR, (*(round(value, 3) for value in found), nearest), strict=True))


def main(folder: Path, file: Path) -> int:
    torch.set_num_threads(1)
    there = done(file)
    for name in runs:
        if name not in there and (folder / name / "scores.json").exists():
            row = {"expected": expected[name][0], **diagnosed(name, folder / name, ()), **resembles(folder / name)}
            append(file, ("case", "expected", *COLUMNS[1:], *NEAR), row)
    return 0


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2])))
