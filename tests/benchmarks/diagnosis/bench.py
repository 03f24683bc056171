"""How often the diagnosis is right about models whose failure is known, on kinds and a task family that no threshold has seen.

    python tests/benchmarks/diagnosis/bench.py [PATTERN …] [--out DIR] [--jobs N]

Builds every constructed case, measures what `compolens explain` would, and prints the confusion matrix: for the cases that
thresholds were chosen on, for those that they were not (`HELD_OUT` kinds, and the whole second family), and for every later
generation (`cases.py`): a further family and further kinds, made after the results on all before were known. Two dull rivals
stand beside it, both fitted on the first group: a threshold on the score on held-out compositions alone, and a small tree on
the columns of the table `generalization`. Models trained to fail in one way (`trained.py`) come last, beside what was
predicted of them: a prediction may be wrong, so nothing is counted there. Tables are kept in DIR, so a second call costs
seconds; the first takes about 25 s of one core for a constructed case, and two minutes for a trained one.
"""

from __future__ import annotations

import argparse
import fnmatch
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

HERE = Path(__file__).parent
if str(HERE) not in sys.path:
    sys.path.insert(0, str(HERE))

import trained  # noqa: E402
from cases import CLASSES, MEASURED, Case, build, cases  # noqa: E402

from compolens import jobs, recipes, tables, training  # noqa: E402
from compolens.diagnosis import label as diagnosis  # noqa: E402
from compolens.foundation import builtin  # noqa: E402

HELD_OUT = ("WrongPartner", "LeftBehind", "Scrambled", "Shuffled")
"""Kinds on the first family that no threshold was chosen on; of the second family, all are."""


def held_out(case: Case) -> bool:
    """Whether thresholds did not look at a case."""
    return case.family != "teacher" or case.kind in HELD_OUT or case.generation > 0


def measure(name: str, folder: str, *, report: Callable) -> str:
    """Build or train a case and measure it, unless that was done; returns its label."""
    import torch

    torch.set_num_threads(1)
    path = Path(folder)
    if not (path / "scores.json").exists():
        if name in trained.runs:
            training.train(trained.runs[name], path)
        else:
            build(cases()[name], path)
    for probe, given in MEASURED.items():
        file = builtin.built_in("probes")[probe]
        if not tables.path_of(path, probe).exists() or tables.why_stale(path, probe, file):
            options = recipes.options(recipes.load_recipe("probes", file))
            arguments = {n: parameter.default for n, parameter in options.items()} | given
            recipes.run_probe(file, path, arguments, classes=CLASSES)
    found = diagnosis.diagnose([path])
    return "no table" if found is None else found.label


def columns(folder: Path) -> dict[str, float]:
    """What a rival sees: the pooled scores of a model and of the references."""
    frame = tables.pooled(folder)
    own = frame[frame["control"] == ""].set_index("split")["value"]
    references = frame[(frame["control"] == "reference") & (frame["split"] == "ood")].set_index("reference")["value"]
    told = {split: float(own[split]) for split in ("train", "test", "ood")}
    return told | {name: float(references.get(name, np.nan)) for name in ("in-context ridge", "best training composition")}


def rivals(frame: pd.DataFrame) -> dict[str, np.ndarray]:
    """Name -> labels of a tree on the ood score alone, and of one on all columns; fitted where thresholds may look."""
    from sklearn.tree import DecisionTreeClassifier

    seen, made = ~frame["held_out"], {}
    told = ["train", "test", "ood", "in-context ridge", "best training composition"]
    for name, chosen, depth in (("the ood score alone", ["ood"], 3), ("a tree on scores", told, 4)):
        tree = DecisionTreeClassifier(max_depth=depth, min_samples_leaf=2, random_state=0)
        tree.fit(frame.loc[seen, chosen].fillna(-1), frame.loc[seen, "expected"])
        made[name] = tree.predict(frame[chosen].fillna(-1))
    return made


def describe(name: str) -> dict[str, Any]:
    """What is known of a case before it is measured."""
    if name in trained.runs:
        expected = trained.expected[name][0]
        return {"kind": name.rsplit("-", 1)[0], "expected": expected, "trained": True, "held_out": True, "generation": 0}
    case = cases()[name]
    return {
        "kind": case.kind, "expected": case.expected, "trained": False, "held_out": held_out(case),
        "generation": case.generation,
    }  # fmt: skip


def interval(right: np.ndarray) -> tuple[float, float]:
    """95 % Wilson interval of a share."""
    n, z = len(right), 1.96
    p = right.mean()
    centre, half = (
        (p + z * z / (2 * n)) / (1 + z * z / n),
        z * np.sqrt(p * (1 - p) / n + z * z / (4 * n * n)) / (1 + z * z / n),
    )
    return centre - half, centre + half


def show(frame: pd.DataFrame) -> None:
    """The confusion matrices and the shares that are right."""
    pd.set_option("display.width", 200, "display.max_columns", 20, "display.max_rows", 200)
    made = frame[~frame["trained"]]
    groups = {"chosen on": ~made["held_out"], "held out at first": made["held_out"] & (made["generation"] == 0)}
    groups |= {f"made in generation {g}": made["generation"] == g for g in sorted(set(made["generation"])) if g}
    for title, part in ((title, made[which]) for title, which in groups.items()):
        if part.empty:
            continue
        print(f"\n== {title}: {len(part)} cases ==")
        print(pd.crosstab([part["expected"], part["kind"]], part["label"]).to_string())
        for who in [c for c in ("label", "the ood score alone", "a tree on scores") if c in part]:
            right = (part[who] == part["expected"]).to_numpy(float)
            lo, hi = interval(right)
            print(f"{'diagnosis' if who == 'label' else who:22} right {right.mean():.3f} [{lo:.3f}, {hi:.3f}]")
        undecided = (part["label"] == "undecided").mean()
        called = ((part["label"] == "compositional") & (part["expected"] != "compositional")).sum()
        print(f"undecided {undecided:.3f}; failing models called compositional: {called}")
    for row in made[made["label"] != made["expected"]].itertuples():
        print(f"wrong: {row.name}: {row.label}, expected {row.expected} (test {row.test:.2f}, ood {row.ood:.2f})")
    learned = frame[frame["trained"]]
    if len(learned):
        print(f"\n== trained: {len(learned)} models ==")
        told = learned.rename(columns={"expected": "predicted", "label": "diagnosis"})
        print(told[["name", "test", "ood", "predicted", "diagnosis"]].to_string(index=False, float_format="%.3f"))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("patterns", nargs="*", default=["*"], help="which cases (default: all)")
    parser.add_argument("--out", default="runs/diagnosis", help="where the cases are built (default runs/diagnosis)")
    parser.add_argument("--jobs", type=int, default=2)
    options = parser.parse_args(arguments)
    known = [*cases(), *trained.runs]
    chosen = [name for name in known if any(fnmatch.fnmatchcase(name, p) for p in options.patterns)]
    if not chosen:
        parser.error(f"no case matches {options.patterns}; the first is {known[0]}")
    out = Path(options.out)
    outcome = jobs.run([jobs.Job(name, measure, (name, str(out / name))) for name in chosen], options.jobs)
    rows = [{"name": name, "label": label, **describe(name), **columns(out / name)} for name, label in outcome.results.items()]
    frame = pd.DataFrame(rows)
    if frame["held_out"].any() and not frame["held_out"].all():
        frame = frame.assign(**rivals(frame))
    frame.to_csv(out / "cases.csv", index=False, float_format="%.4g")
    show(frame)
    return 1 if outcome.failures else 0


if __name__ == "__main__":
    sys.exit(main())
