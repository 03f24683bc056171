"""Plant the failures of `planting_plan` by gradient descent, verify them, and ask for the diagnosis of every model.

    python tests/benchmarks/diagnosis/planting_run.py plant DIR [--cases NAME …] [--twins]
    python tests/benchmarks/diagnosis/planting_run.py verify DIR FILE
    python tests/benchmarks/diagnosis/planting_run.py diagnose DIR FILE

With ``--round second``, the cases of `planting_second_plan`.

`plant` trains what DIR does not have yet, one thread, some minutes a model. `verify` and `diagnose` append a row for every
model that FILE does not have. A twin of the first round is verified and not diagnosed.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

HERE = Path(__file__).parent
if str(HERE) not in sys.path:
    sys.path.insert(0, str(HERE))

import cases as written_cases  # noqa: E402
import planting  # noqa: E402
import planting_plan as plan  # noqa: E402
import planting_second_plan as second  # noqa: E402
from blind_run import COLUMNS, append, diagnosed, done  # noqa: E402

import compolens  # noqa: E402
from compolens import Run  # noqa: E402

CLASSES = (plan.Aside,)
"""What `compolens.load(folder, classes=CLASSES)` needs to open a case."""
HOW = planting.Planting()
CHECKED = ("case", "expected", "test", "ood", "behaviour", "interchange", "strict", "reading", "wrong mechanism")
SECOND = (*CHECKED, "told", "apart", "missed")
DIGITS = 3


def plant(case: plan.Case, folder: Path, how: planting.Planting | None = None) -> Path:
    """Train a case and write it as an ordinary model folder, whose task holds out what was never shown. how: its round's."""
    causal, task, alignment_of = _described(case)
    kept = plan.kept(task, case.seed)
    if how is None:
        how = second.HOW if isinstance(case, second.SecondCase) else HOW
    silence = second.SILENCE if isinstance(causal, second.LossyWrongPart | second.SilentlyStored) else 0.0
    how = replace(how, kept=kept, silence=silence)
    if not case.planted:
        how = replace(how, interchange=0.0, strictness=0.0, reading=0.0, silence=0.0)
    run = Run(
        case.architecture, plan.diagnosed(task, kept), steps=0, init_seed=case.seed, data_seed=case.seed,
        evaluation_episodes=256,
    )  # fmt: skip
    model = run.build()
    began = time.monotonic()

    def report(step: int, **found: float) -> None:
        if step % 500 == 499:
            told = ", ".join(f"{name} {value:.3f}" for name, value in found.items())
            print(f"{case.name}: {step + 1}/{how.steps} {told} ({time.monotonic() - began:.0f} s)", flush=True)

    planting.plant(model, causal, task, alignment_of(model), how, case.seed, report)
    return written_cases.written(folder, run, model)


def verify(case: plan.Case, folder: Path) -> dict[str, Any]:
    """Scores of a case, and whether it does what was planted, on compositions that the planting never showed."""
    causal, task, alignment_of = _described(case)
    trained = compolens.load(folder, classes=CLASSES)
    kept = plan.kept(task, case.seed)
    found = planting.verified(trained.model, causal, task, alignment_of(trained.model), kept)
    scores = json.loads((folder / "scores.json").read_text())
    row = {
        "case": case.name,
        "expected": case.expected,
        **{split: scores[split]["score"] for split in ("test", "ood")},
        **found,
    }
    if isinstance(case, second.SecondCase):
        row["missed"] = "; ".join(second.planted_well(case.kind, row)) if case.planted else ""
    else:
        row = {name: row[name] for name in CHECKED}
    return {name: round(value, DIGITS) if isinstance(value, float) else value for name, value in row.items()}


def _described(case: plan.Case) -> tuple[planting.Causal, plan.Task, Any]:
    kind, _, layers = (second if isinstance(case, second.SecondCase) else plan).KINDS[case.kind]
    task = plan.task_of(case.family, case.seed)
    return kind(task), task, lambda model: planting.Alignment.after(model, *layers)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("plant", "verify", "diagnose"))
    parser.add_argument("folder", metavar="DIR", type=Path, help="where the models are")
    parser.add_argument("file", metavar="FILE", type=Path, nargs="?", help="the CSV that rows are appended to")
    parser.add_argument("--cases", nargs="+", metavar="NAME", help="only these (default all)")
    parser.add_argument("--twins", action="store_true", help="twins, too")
    parser.add_argument("--round", choices=("first", "second"), default="first", help="whose cases (default first)")
    given = parser.parse_args(arguments)
    torch.set_num_threads(1)
    every: dict[str, Any] = second.cases() if given.round == "second" else dict(plan.cases())
    if unknown := sorted(set(given.cases or ()) - set(every)):
        parser.error(f"no case {', '.join(unknown)}; there are {', '.join(every)}")
    if given.what != "plant" and given.file is None:
        parser.error(f"{given.what} needs the FILE that rows are appended to")
    chosen = [every[name] for name in given.cases] if given.cases else [c for c in every.values() if c.planted or given.twins]
    if given.what == "plant":
        for case in chosen:
            if not (given.folder / case.name / "scores.json").exists():
                plant(case, given.folder / case.name)
        return 0
    there = done(given.file)
    left = [c for c in chosen if c.name not in there and (given.folder / c.name / "scores.json").exists()]
    for case in left:
        folder = given.folder / case.name
        if given.what == "verify":
            append(given.file, SECOND if given.round == "second" else CHECKED, verify(case, folder))
        elif case.planted or given.round == "second":
            append(given.file, COLUMNS, diagnosed(case.name, folder, CLASSES))
    return 0


if __name__ == "__main__":
    sys.exit(main())
