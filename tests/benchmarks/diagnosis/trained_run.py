"""The diagnosis of the models of `trained`, model by model, into a CSV.

    compolens train tests/benchmarks/diagnosis/trained.py --out DIR
    python tests/benchmarks/diagnosis/trained_run.py DIR FILE

Appends a row for every model of DIR that FILE does not have, as `blind_run` does, with the label that was predicted before any
was trained. Beside it, apart from all rules, whose answers the held-out ones resemble: squared distances to right answers, to
those of the best training composition, and to those of the nearest of the regressions; and what the best of the regressions
would score on held-out compositions. Where `compolens probe repair` was measured: what the right code gains, written where the
code is read.
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
NEAR = ("to truth", "to training composition", "to regression", "regression", "best regression", "like memory")
BESIDE = (*NEAR, "repaired")


def resembles(folder: Path) -> dict[str, float | str]:
    """`NEAR`: squared distances of held-out answers, over the variance of right ones; which regression is the nearest; the
    score of the best; and the cosine between the errors and those of the best training composition."""
    rows = tables.read(folder, "which_prior")
    rows = rows[(rows["metric"] == "distance") & (rows["split"] == "ood") & (rows["composition"] == "all")]
    own = rows[(rows["control"] == "") & (rows["learner"] == "model")].set_index("reference")["value"].to_dict()
    right = rows[(rows["control"] == "reference") & (rows["reference"] == "truth")].set_index("learner")["value"].to_dict()
    nearest = min(REGRESSIONS, key=lambda name: own[name])
    memory = "best training composition"
    best = 1 - min(right[name] for name in REGRESSIONS)
    cosine = (own["truth"] + right[memory] - own[memory]) / (2 * (own["truth"] * right[memory]) ** 0.5)
    found = (own["truth"], own[memory], own[nearest], nearest, best, cosine)
    return dict(zip(NEAR, (value if isinstance(value, str) else round(value, 3) for value in found), strict=True))


def repaired(folder: Path) -> float | str:
    """What the right code gains on held-out compositions, written where the code is read; "" where it was not measured."""
    if not tables.has(folder, "repair"):
        return ""
    rows = tables.read(folder, "repair")
    rows = rows[(rows["metric"] == "gain") & (rows["repair"] == "code written") & (rows["where"] == "blamed")]
    return round(float(rows[(rows["split"] == "ood") & (rows["composition"] == "all")]["value"].iloc[0]), 3)


def main(folder: Path, file: Path) -> int:
    torch.set_num_threads(1)
    there = done(file)
    for name in runs:
        if name not in there and (folder / name / "scores.json").exists():
            row = {"expected": expected[name][0], **diagnosed(name, folder / name, ()), **resembles(folder / name)}
            append(file, ("case", "expected", *COLUMNS[1:], *BESIDE), row | {"repaired": repaired(folder / name)})
    return 0


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2])))
