"""What the findings say of the blind set is what the committed answers give."""

from pathlib import Path

import findings
import pandas as pd
import pytest
from test_planted import HERE, neighbour

blind = neighbour("blind")
PAGE = (Path(__file__).parents[2] / "docs" / "findings" / "diagnosis_benchmark.md").read_text(encoding="utf-8")
SHARES = {
    "the expected label": "right",
    "the expected or another acceptable label": "acceptable",
    "undecided, acceptable or not": "undecided",
    "wrong, confidence .8 or more": "wrong, confident",
    "a failing model called compositional": "failing, called compositional",
    "a working model called failing": "working, called failing",
}


def scored():
    expected = pd.read_csv(blind.LABELS_FILE, dtype=str)
    return blind.score(blind.answers(HERE / "blind_results.csv", expected, partial=True), expected)


@pytest.fixture(scope="module")
def mended(tmp_path_factory):
    """The answers after mending; where a model was not measured again, the first ones."""
    first, again = (pd.read_csv(HERE / name) for name in ("blind_results.csv", "blind_mended.csv"))
    file = tmp_path_factory.mktemp("blind") / "answers.csv"
    pd.concat([first[~first["case"].isin(again["case"])], again]).to_csv(file, index=False)
    expected = pd.read_csv(blind.LABELS_FILE, dtype=str)
    return blind.score(blind.answers(file, expected), expected), again


def test_shares_after_mending_are_those_of_the_answers(mended):
    found, again = mended
    lead = " ".join(PAGE.split())
    assert f"{len(again)} models, all whose label rests on one of these rules" in lead
    assert f"The labels of the other {len(found.beside) - len(again)} rest" in lead
    before, after = (one.shares.set_index("what") for one in (scored(), found))
    for row, what in SHARES.items():
        told = findings.cells(PAGE, "of the same set", row)
        for cell, shares in zip(told, (before, after), strict=False):
            share, low, high = shares.loc[what, ["share", "low", "high"]]
            assert cell == f"{plain(share)} [{plain(low)}, {plain(high)}]", (row, cell)


def test_what_was_not_measured_again_rests_on_rules_that_came_before_those_that_changed(mended):
    _, again = mended
    first = pd.read_csv(HERE / "blind_results.csv")
    rest = first[~first["case"].isin(again["case"])]
    assert set(rest["label"]) <= {"compositional", "has not learned its training compositions", "generic regression"}


def test_codes_behind_keys_and_labels_that_are_left_wrong_are_those_on_the_page(mended):
    found, _ = mended
    carried, lead = neighbour("blind_plan").plan(), " ".join(PAGE.split())
    counts = []
    for one in (found, scored()):
        rows = one.beside[one.beside["acceptable"] != "compositional"]
        rows = rows[[carried[case].carrier in ("keyed", "gated") for case in rows["case"]]]
        counts.append(int(rows["acceptable answer"].sum()))
    assert f"of {len(rows)} failing models with keys or gates, {counts[0]} instead of {counts[1]} get" in lead
    left = found.beside[~found.beside["acceptable answer"] & (found.beside["called"] != "undecided")]
    told = lead.partition("Three wrong labels are left")[2].partition("## ")[0]
    assert len(left) == 3 and all(case in told for case in left["case"])
    was = scored().beside.set_index("case")
    lost = found.beside[~found.beside["acceptable answer"] & was.loc[found.beside["case"], "acceptable answer"].to_numpy()]
    told = lead.partition("Right labels that are lost (")[2].partition(")")[0]
    assert told.split(", ") == sorted(lost["case"])


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
    told = {case: rest for case, *rest in findings.rows(PAGE, "case | kind")}
    assert list(told) == sorted(missed.index)
    for case, (kind, expected, called, _) in told.items():
        row = missed.loc[case]
        assert (kind, expected, called) == (row["kind"], row["label"], f"{row['called']} ({plain(row['confidence'])})")


def test_misses_by_how_the_code_stands_are_those_on_the_page():
    beside, carried = scored().beside.set_index("case"), neighbour("blind_plan").plan()
    failing = beside[beside["acceptable"] != "compositional"]
    told = findings.rows(PAGE, "failing models whose code stands")
    smooth = [carried[case].carrier in ("plain", "population") for case in failing.index]
    for (_, *cells), which in zip(told, (smooth, [not one for one in smooth]), strict=True):
        rows = failing[which]
        right, undecided = (
            rows["acceptable answer"].sum(),
            (~rows["acceptable answer"] & (rows["called"] == "undecided")).sum(),
        )
        counts = [right, undecided, len(rows) - right - undecided, len(rows)]
        assert list(map(int, cells)) == counts


def test_the_counts_at_the_head_of_the_page_are_those_of_the_answers():
    beside = scored().beside
    wrong = beside[~beside["acceptable answer"]]
    undecided = int((wrong["called"] == "undecided").sum())
    lead = " ".join(PAGE.split())
    also = beside["acceptable"].str.contains("compositional") & (beside["acceptable"] != "compositional")
    assert also.sum() == 6 and "the 93 are without six more models" in lead
    right = f"{len(beside) - len(wrong)} of {len(beside)} models get an acceptable label, {undecided} are undecided"
    assert f"{right} and {len(wrong) - undecided} get a wrong one" in lead
    assert f"All {len(beside)} were diagnosed once" in lead and len(beside) == len(neighbour("blind_plan").plan())
