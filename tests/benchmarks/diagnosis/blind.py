"""The blind set: models whose failure is known by construction, made to score any diagnosis of them, once.

    python tests/benchmarks/diagnosis/blind.py list [--set first] [--labels]
    python tests/benchmarks/diagnosis/blind.py build DIR [--set first] [--cases b001 b002 …]
    python tests/benchmarks/diagnosis/blind.py score FILE [--set first] [--confident 0.8] [--labels FILE] [--partial]
    python tests/benchmarks/diagnosis/blind.py labels [FILE] [--set first]

There are three sets, first (b001 …), second (c001 …) and third (d001 …).
``build`` writes one model folder for every case, DIR/b001 and so on, which ``compolens.load(folder, classes=CLASSES)`` opens.
``score`` reads a CSV with the columns case, label and, where there is one, confidence in [0, 1], from any diagnosis, and says
how often it is right, beside a confusion table; labels are those of `blind_plan.LABELS`, or one of `SYNONYMS`. Intervals are
of a bootstrap over kinds: cases of one kind stand or fall together. ``labels`` writes what is expected, as it is kept in
blind_labels.csv, second_labels.csv and third_blind_labels.csv. Who looks at single cases and then changes a rule of a
diagnosis has used the set up.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

HERE = Path(__file__).parent
if str(HERE) not in sys.path:
    sys.path.insert(0, str(HERE))

import cases  # noqa: E402
from blind_models import PAIRS, PlantedBlind  # noqa: E402
from blind_plan import LABELS, PANELS, UNDECIDED, WORKS, Blinded, plan  # noqa: E402
from blind_raven import BlindSolver, adopted  # noqa: E402
from second_models import PlantedSecond  # noqa: E402
from second_plan import plan as second  # noqa: E402
from second_raven import SecondSolver  # noqa: E402
from third_blind_models import PlantedThird  # noqa: E402
from third_blind_plan import plan as third  # noqa: E402
from third_blind_raven import ThirdSolver  # noqa: E402

from compolens.foundation.configs import ConfigError, nearest, require  # noqa: E402

CLASSES: tuple[type, ...] = (
    PlantedBlind, BlindSolver, PlantedSecond, SecondSolver, PlantedThird, ThirdSolver, *PAIRS.values(),
)  # fmt: skip
"""What `compolens.load(folder, classes=CLASSES)` needs to open a case."""
SETS: dict[str, Callable[[], Mapping[str, Blinded]]] = {"first": plan, "second": second, "third": third}
LABELS_FILES = {
    "first": HERE / "blind_labels.csv",
    "second": HERE / "second_labels.csv",
    "third": HERE / "third_blind_labels.csv",
}
LABELS_FILE = LABELS_FILES["first"]
BETWEEN = "; "
"""Between acceptable labels."""
SYNONYMS = {
    "failure of inference": "fails to infer",
    "failure of use": "infers but does not use",
    "failure of execution": "cannot execute",
    "memorized": "memorised",
    "has not learned": "has not learned its training compositions",
    "no table": UNDECIDED,
    "": UNDECIDED,
}
"""Other names of labels."""
RESAMPLES = 2000


# ---- the set ---------------------------------------------------------------------------------------------------------
def labels(which: str = "first") -> pd.DataFrame:
    """One row a case of one of the `SETS`: case, label, acceptable (labels, in order of preference), kind, family, why."""
    columns = ("case", "label", "acceptable", "kind", "family", "why")
    rows = [(n, c.label, BETWEEN.join(c.acceptable), c.kind, c.family, c.why) for n, c in SETS[which]().items()]
    return pd.DataFrame(rows, columns=list(columns))


def build(case: Blinded, folder: Path) -> Path:
    """Write a case as an ordinary model folder; returns it."""
    if case.family == PANELS:
        adopted(case.solver, case.arguments).save(folder, note="planted")
        return folder
    return cases.build(case.case(), folder)


# ---- the score -------------------------------------------------------------------------------------------------------
class Scored(NamedTuple):
    """shares: what, share, low, high, cases and kinds it is of; confusion: how many of which label (rows) were called what
    (columns); beside: one row a case."""

    shares: pd.DataFrame
    confusion: pd.DataFrame
    beside: pd.DataFrame


def said(label: object) -> str:
    """The label that is meant.

    Args:
        label: one of `LABELS` or `SYNONYMS`, in any case; a label that begins with "undecided" is that; nothing is as well.

    Returns:
        One of `LABELS`.

    Raises:
        ConfigError: it is none of them.
    """
    text = "" if pd.isna(label) else str(label).strip().lower()  # type: ignore[call-overload]
    text = UNDECIDED if text.startswith(UNDECIDED) else SYNONYMS.get(text, text)
    require(text in LABELS, f"no label {label!r}; {nearest(text, (*LABELS, *filter(None, SYNONYMS)))}")
    return text


def answers(file: str | Path, expected: pd.DataFrame, partial: bool = False) -> pd.DataFrame:
    """A diagnosis's answers, one row a case of the set, in the set's order; confidence is 1 where none is given.

    Args:
        file: a CSV with the columns case and label, and perhaps confidence, in [0, 1].
        expected: as `labels` gives it.
        partial: whether some cases may be missing.

    Raises:
        ConfigError: a column or a case is missing, twice there, or unknown; or a label or a confidence is none.
    """
    given = pd.read_csv(file, dtype={"case": str, "label": str})
    lacking = [name for name in ("case", "label") if name not in given]
    require(not lacking, f"{file} has no column {' or '.join(lacking)}; it has {', '.join(given.columns)}")
    known = list(expected["case"])
    for what, found in (
        ("names cases that the set has not", sorted(set(given["case"]) - set(known))),
        ("names cases twice", sorted(given["case"][given["case"].duplicated()])),
        (
            "lacks cases (write undecided for those without an answer, or add --partial to score the others)",
            [] if partial else sorted(set(known) - set(given["case"])),
        ),
    ):
        require(not found, f"{file} {what}: {', '.join(map(str, found[:5]))}{' …' if len(found) > 5 else ''}")
    given = given.set_index("case").loc[[case for case in known if case in set(given["case"])]].reset_index()
    given["label"] = [said(label) for label in given["label"]]
    if "confidence" not in given:
        given["confidence"] = 1.0
    confidence = pd.to_numeric(given["confidence"], errors="coerce").fillna(-1.0)
    bad = given["case"][~confidence.between(0, 1)]
    require(bad.empty, f"{file}: confidence must be a number from 0 to 1, but is not in {', '.join(bad[:5])}")
    return given.assign(confidence=confidence)[["case", "label", "confidence"]]


def score(given: pd.DataFrame, expected: pd.DataFrame, confident: float = 0.8) -> Scored:
    """How often a diagnosis is right.

    Args:
        given: case, label, confidence; as `answers` gives it.
        expected: as `labels` gives it.
        confident: from which confidence on a wrong answer is a confident one, in [0, 1].

    Returns:
        Shares of "right" (the expected label), "acceptable" (one of those written down), "undecided" (whether that is right or
        not), "wrong, confident" (neither acceptable nor undecided), all of all cases; "failing, called compositional", of the
        cases for which that is not acceptable; "working, called failing", of those for which nothing else is, by a label that
        is not undecided; and "acceptable, mean over kinds". Intervals are 95 % percentiles of a bootstrap over kinds.
    """
    rows = expected.merge(given.rename(columns={"label": "called"}), on="case", validate="1:1")
    allowed = [set(text.split(BETWEEN)) for text in rows["acceptable"]]
    rows["right"] = rows["called"] == rows["label"]
    rows["acceptable answer"] = [called in ok for called, ok in zip(rows["called"], allowed, strict=True)]
    rows["undecided"] = rows["called"] == UNDECIDED
    wrong = ~rows["acceptable answer"] & ~rows["undecided"]
    rows["confidently wrong"] = wrong & (rows["confidence"] >= confident)
    failing = np.array([WORKS not in ok for ok in allowed])
    working = np.array([ok == {WORKS} for ok in allowed])
    called_working = rows["called"] == WORKS
    everything = np.ones(len(rows), dtype=bool)
    asked: list[tuple[str, np.ndarray, np.ndarray]] = [
        ("right", rows["right"].to_numpy(), everything),
        ("acceptable", rows["acceptable answer"].to_numpy(), everything),
        ("undecided", rows["undecided"].to_numpy(), everything),
        ("wrong, confident", rows["confidently wrong"].to_numpy(), everything),
        ("failing, called compositional", called_working.to_numpy(), failing),
        ("working, called failing", (~called_working & ~rows["undecided"]).to_numpy(), working),
    ]
    kind = rows["kind"].to_numpy()
    shares = [_share(what, hit[among], kind[among], _pooled) for what, hit, among in asked]
    shares.append(_share("acceptable, mean over kinds", rows["acceptable answer"].to_numpy(), kind, _mean_over_kinds))
    confusion = pd.crosstab(rows["label"], rows["called"])
    order = [label for label in LABELS if label in confusion.index or label in confusion.columns]
    confusion = confusion.reindex(index=order, columns=order, fill_value=0).rename_axis(index="expected", columns="called")
    return Scored(pd.DataFrame(shares), confusion, rows)


def _pooled(hits: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """The share among all cases, of resamples (n, kinds) of how many are hit, and of how many there are."""
    return hits.sum(-1) / counts.sum(-1)


def _mean_over_kinds(hits: np.ndarray, counts: np.ndarray) -> np.ndarray:
    return (hits / counts).mean(-1)


def _share(what: str, hit: np.ndarray, kind: np.ndarray, of: Callable[[np.ndarray, np.ndarray], np.ndarray]) -> dict:
    if not len(hit):
        return {"what": what, "share": np.nan, "low": np.nan, "high": np.nan, "cases": 0, "kinds": 0}
    names, number = np.unique(kind, return_inverse=True)
    counts = np.bincount(number).astype(float)
    hits = np.bincount(number, weights=hit.astype(float))
    drawn = np.random.default_rng(0).integers(0, len(names), (RESAMPLES, len(names)))
    low, high = np.quantile(of(hits[drawn], counts[drawn]), (0.025, 0.975))
    share = float(of(hits, counts))
    return {"what": what, "share": share, "low": low, "high": high, "cases": len(hit), "kinds": len(names)}


# ---- the script ------------------------------------------------------------------------------------------------------
def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    one = argparse.ArgumentParser(add_help=False)
    one.add_argument("--set", choices=list(SETS), default="first", dest="which", help="which set (default first)")
    listing = commands.add_parser("list", parents=[one], help="the cases, their kinds and families")
    listing.add_argument("--labels", action="store_true", help="and what is expected of each, and why")
    building = commands.add_parser("build", parents=[one], help="write model folders")
    building.add_argument("folder", metavar="DIR")
    building.add_argument("--cases", nargs="+", metavar="CASE", help="only these (default all)")
    scoring = commands.add_parser("score", parents=[one], help="score a diagnosis")
    scoring.add_argument("file", metavar="FILE", help="a CSV with the columns case, label and perhaps confidence")
    scoring.add_argument("--confident", type=float, default=0.8, help="from which confidence on (default 0.8)")
    scoring.add_argument("--labels", metavar="FILE", help="what is expected (default: of the set)")
    scoring.add_argument("--partial", action="store_true", help="score the cases that FILE has, although it lacks some")
    scoring.add_argument("--misses", action="store_true", help="and the cases whose answer is not acceptable, one by one")
    writing = commands.add_parser("labels", parents=[one], help="write what is expected of every case")
    writing.add_argument("file", nargs="?", metavar="FILE")
    given = parser.parse_args(arguments)
    try:
        return _run(given)
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 2


def _run(given: argparse.Namespace) -> int:
    planned = SETS[given.which]()
    if given.command == "list":
        shown = labels(given.which) if given.labels else labels(given.which)[["case", "kind", "family"]]
        print(shown.to_csv(index=False, sep="\t"), end="")
    elif given.command == "labels":
        labels(given.which).to_csv(given.file or LABELS_FILES[given.which], index=False)
    elif given.command == "build":
        chosen = given.cases or list(planned)
        for name in chosen:
            require(name in planned, f"the {given.which} set has no case {name!r}; {nearest(name, planned)}")
        for name in chosen:
            folder = Path(given.folder) / name
            if not (folder / "scores.json").exists():
                print(build(planned[name], folder), flush=True)
    else:
        require(0 <= given.confident <= 1, f"--confident must lie in [0, 1], got {given.confident}")
        expected = pd.read_csv(given.labels or LABELS_FILES[given.which], dtype=str)
        found = score(answers(given.file, expected, given.partial), expected, given.confident)
        print(found.shares.round(3).to_string(index=False))
        print(f"\nrows: expected; columns: called\n{found.confusion.to_string()}")
        if given.misses:
            missed = found.beside[~found.beside["acceptable answer"]].sort_values("case")
            missed = missed[["case", "kind", "family", "acceptable", "called", "confidence"]]
            print(missed.to_csv(index=False, sep="\t"), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
