"""The diagnosis of the models of `trained`, model by model, into a CSV.

    compolens train tests/benchmarks/diagnosis/trained.py --out DIR
    python tests/benchmarks/diagnosis/trained_run.py DIR FILE

Appends a row for every model of DIR that FILE does not have, as `blind_run` does, with the label that was predicted before any
was trained.
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


def main(folder: Path, file: Path) -> int:
    torch.set_num_threads(1)
    there = done(file)
    for name in runs:
        if name not in there and (folder / name / "scores.json").exists():
            row = {"expected": expected[name][0], **diagnosed(name, folder / name, ())}
            append(file, ("case", "expected", *COLUMNS[1:]), row)
    return 0


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2])))
