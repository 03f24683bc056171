"""What the findings say of the second blind set is what the committed answers give."""

import findings
import pandas as pd
import pytest
from test_blind_page import PAGE, SHARES, plain
from test_planted import HERE, neighbour

blind, plans = neighbour("blind"), neighbour("second_plan")
LEAD = " ".join(PAGE.split())
RESULTS = HERE / "second_results.csv"


@pytest.fixture(scope="module")
def found():
    expected = pd.read_csv(blind.LABELS_FILES["second"], dtype=str)
    return blind.score(blind.answers(RESULTS, expected), expected)


def missed(beside, called_undecided):
    return beside[~beside["acceptable answer"] & ((beside["called"] == "undecided") == called_undecided)]


@pytest.mark.parametrize("row", SHARES)
def test_shares_on_the_page_are_those_of_the_answers_beside_what_was_foretold(found, row):
    shares = found.shares.set_index("what")
    share, low, high, cases = shares.loc[SHARES[row], ["share", "low", "high", "cases"]]
    told = findings.cells(PAGE, "of the second blind set", row)
    assert told[:2] == [f"{plain(share)} [{plain(low)}, {plain(high)}]", str(int(cases))]
    assert told[2] == plain(plans.PREDICTED[SHARES[row]])
    missed_bar = {"acceptable": share < 0.95, "undecided": share > 0.12, "wrong, confident": share > 0.02}
    assert ("not reached" in told[3]) == missed_bar.get(SHARES[row], False)


def test_the_head_counts_the_answers(found):
    beside = found.beside
    wrong, open_ = missed(beside, False), missed(beside, True)
    right = f"{len(beside) - len(wrong) - len(open_)} of {len(beside)} models get an acceptable label"
    assert f"{right}, {len(open_)} are undecided and {len(wrong)} get a wrong one, eight of these with confidence" in LEAD
    assert (wrong["confidence"] >= 0.8).sum() == 8 and len(beside) == len(plans.plan())
    also = beside["acceptable"].str.contains("compositional") & (beside["acceptable"] != "compositional")
    assert also.sum() == 5 and "the 82 are without five more models" in LEAD


def test_counts_by_how_the_code_stands_are_those_of_the_answers(found):
    beside, plan = found.beside, plans.plan()
    works = beside["acceptable"] == "compositional"
    as_it_is = pd.Series([plan[case].carrier == "plain" for case in beside["case"]])
    told = findings.rows(PAGE, "models of the second set whose code stands")
    for (_, *cells), which in zip(told, (as_it_is & ~works, ~as_it_is & ~works, works), strict=True):
        rows = beside[which]
        open_, wrong = (len(missed(rows, undecided)) for undecided in (True, False))
        counts = [len(rows) - open_ - wrong, open_, wrong, len(rows)]
        assert list(map(int, cells)) == counts


def test_most_of_the_undecided_are_not_written(found):
    moved = pd.read_csv(RESULTS).set_index("case")["moved"]
    open_ = missed(found.beside, True)
    still = int((moved[open_["case"]] < 0.5).sum())
    assert f"for {still} of the {len(open_)}, writing moves answers less than half of the way" in LEAD


def test_every_wrong_label_is_on_the_page_with_numbers_of_its_answer(found):
    wrong, answers = missed(found.beside, False).set_index("case"), pd.read_csv(RESULTS).set_index("case")
    lines = findings.rows(PAGE, "case | kind of the second set")
    assert [case for case, *_ in lines] == sorted(wrong.index)
    for case, kind, expected, called, cause in lines:
        row, answer = wrong.loc[case], answers.loc[case]
        assert (kind, expected, called) == (row["kind"], row["label"], f"{row['called']} ({plain(row['confidence'])})")
        known = {plain(answer[name]) for name in ("moved", "use", "inference", "execution", "unexplained")}
        known.add(plain(row["confidence"]))
        assert {word.strip("(),;") for word in cause.split() if word.strip("(),;").startswith(".")} <= known, case
    for bullet in PAGE.partition("have four causes:")[2].split("| case |")[0].split("- **")[1:]:
        assert any(case in bullet for case in wrong.index)


def test_shares_after_mending_are_those_of_the_answers(found, tmp_path):
    first, again = (pd.read_csv(HERE / name) for name in ("second_results.csv", "second_mended.csv"))
    pd.concat([first[~first["case"].isin(again["case"])], again]).to_csv(tmp_path / "answers.csv", index=False)
    expected = pd.read_csv(blind.LABELS_FILES["second"], dtype=str)
    after = blind.score(blind.answers(tmp_path / "answers.csv", expected), expected)
    for row in SHARES:
        for cell, one in zip(findings.cells(PAGE, "of the second set, mended", row), (found, after), strict=True):
            share, low, high = one.shares.set_index("what").loc[SHARES[row], ["share", "low", "high"]]
            assert cell == f"{plain(share)} [{plain(low)}, {plain(high)}]", row
    left = missed(after.beside, True)["case"]
    assert missed(after.beside, False).empty and set(left) & set(again["case"]) == {"c008", "c012", "c036", "c065", "c070"}
    assert (
        set(missed(found.beside, False)["case"]) <= set(again["case"]) and f"{len(again)} models were measured again" in LEAD
    )
    was_open = set(missed(found.beside, True)["case"]) & set(again["case"])
    assert len(was_open) == 9 and len(again) == 11 + 9 + 6
