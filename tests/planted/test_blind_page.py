"""What the findings say of the blind set is what the committed answers give."""

from pathlib import Path

import findings
import pandas as pd
from test_planted import HERE, neighbour

blind = neighbour("blind")
PAGE = (Path(__file__).parents[2] / "docs" / "findings" / "diagnosis_benchmark.md").read_text(encoding="utf-8")
SHARES = {
    "the expected label": "right",
    "the expected or another acceptable label": "acceptable",
    "undecided": "undecided",
    "wrong, confidence .8 or more": "wrong, confident",
    "a failing model called compositional": "failing, called compositional",
    "a working model called failing": "working, called failing",
}


def scored():
    expected = pd.read_csv(blind.LABELS_FILE, dtype=str)
    return blind.score(blind.answers(HERE / "blind_results.csv", expected, partial=True), expected)


def plain(number):
    return f"{number:.2f}".removeprefix("0")


def test_shares_on_the_page_are_those_of_the_answers():
    shares = scored().shares.set_index("what")
    for row, what in SHARES.items():
        told = findings.cells(PAGE, "of the blind set", row)
        share, low, high, cases = shares.loc[what, ["share", "low", "high", "cases"]]
        assert told[:2] == [f"{plain(share)} [{plain(low)}, {plain(high)}]", str(int(cases))], row


def test_every_answer_that_is_not_acceptable_is_on_the_page():
    beside = scored().beside
    missed = beside[~beside["acceptable answer"]].set_index("case")
    _, _, rest = PAGE.partition("| case | kind |")
    lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in rest.split("\n\n")[0].splitlines()[2:]]
    told = {case: rest for case, *rest in lines}
    assert list(told) == sorted(missed.index)
    for case, (kind, expected, called, _) in told.items():
        row = missed.loc[case]
        assert (kind, expected, called) == (row["kind"], row["label"], f"{row['called']} ({plain(row['confidence'])})")


def test_misses_by_how_the_code_stands_are_those_on_the_page():
    beside, carried = scored().beside.set_index("case"), neighbour("blind_plan").plan()
    failing = beside[beside["acceptable"] != "compositional"]
    told = PAGE.partition("| failing models whose code stands |")[2].split("\n\n")[0].splitlines()[2:]
    smooth = [carried[case].carrier in ("plain", "population") for case in failing.index]
    for line, which in zip(told, (smooth, [not one for one in smooth]), strict=True):
        rows = failing[which]
        right, undecided = (
            rows["acceptable answer"].sum(),
            (~rows["acceptable answer"] & (rows["called"] == "undecided")).sum(),
        )
        counts = [right, undecided, len(rows) - right - undecided, len(rows)]
        assert [int(cell) for cell in line.strip("|").split("|")[1:]] == counts


def test_the_counts_at_the_head_of_the_page_are_those_of_the_answers():
    beside = scored().beside
    wrong = beside[~beside["acceptable answer"]]
    undecided = int((wrong["called"] == "undecided").sum())
    lead = " ".join(PAGE.split())
    right = f"{len(beside) - len(wrong)} of {len(beside)} models get an acceptable label, {undecided} are undecided"
    assert f"{right} and {len(wrong) - undecided} get a wrong one" in lead
    assert f"All {len(beside)} were diagnosed once" in lead and len(beside) == len(neighbour("blind_plan").plan())
