"""What the findings say of the third blind set is what the committed answers give."""

import findings
import pandas as pd
import pytest
from test_blind_page import PAGE, SHARES, plain
from test_planted import HERE, neighbour

blind, plans = neighbour("blind"), neighbour("third_blind_plan")
LEAD = " ".join(PAGE.split())
RESULTS = HERE / "third_blind_results.csv"


@pytest.fixture(scope="module")
def found():
    expected = pd.read_csv(blind.LABELS_FILES["third"], dtype=str)
    return blind.score(blind.answers(RESULTS, expected), expected)


@pytest.fixture(scope="module")
def beside(found):
    """Expected and called; with "missed": "" (acceptable), "undecided" or "wrong"."""
    rows = found.beside.assign(missed="")
    rows.loc[~rows["acceptable answer"], "missed"] = "wrong"
    rows.loc[~rows["acceptable answer"] & (rows["called"] == "undecided"), "missed"] = "undecided"
    return rows


@pytest.mark.parametrize("row", SHARES)
def test_shares_on_the_page_are_those_of_the_answers_beside_what_was_foretold(found, row):
    share, low, high, cases = found.shares.set_index("what").loc[SHARES[row], ["share", "low", "high", "cases"]]
    told = findings.cells(PAGE, "of the third blind set", row)
    assert told[:3] == [f"{plain(share)} [{plain(low)}, {plain(high)}]", str(int(cases)), plain(plans.PREDICTED[SHARES[row]])]
    missed_bar = {"acceptable": share < 0.95, "undecided": share > 0.12, "wrong, confident": share > 0.02}
    assert ("not reached" in told[3]) == missed_bar.get(SHARES[row], False)


def test_the_head_counts_the_answers(beside):
    count = beside["missed"].value_counts()
    open_, wrong = count["undecided"], count["wrong"]
    assert (
        f"{count['']} of 120 models get an acceptable label (of eight of these, *undecided* is acceptable), {open_} are "
        f"undecided where it is not, and {wrong} get a wrong one, all eight" in LEAD
    )
    assert ((beside["missed"] == "") & (beside["called"] == "undecided")).sum() == 8
    assert len(beside) == 120 == len(plans.plan())
    assert (beside[beside["missed"] == "wrong"]["confidence"] >= 0.8).all() and wrong == 8
    also = beside["acceptable"].str.contains("compositional") & (beside["acceptable"] != "compositional")
    assert also.sum() == 3 and "Of three more, *compositional* is one of several" in LEAD
    works = beside["acceptable"] == "compositional"
    failing = beside[works & ~beside["called"].isin(("compositional", "undecided"))]
    assert len(failing) == 1 and f"one of {works.sum()} working ones is called failing" in LEAD


def test_counts_by_family_and_form_are_those_of_the_answers(beside):
    plan = plans.plan()
    works, panels = beside["acceptable"] == "compositional", beside["family"] == "panels"
    as_it_is = pd.Series([plan[case].carrier == "plain" for case in beside["case"]])
    groups = (panels & ~works, ~panels & ~works & as_it_is, ~panels & ~works & ~as_it_is, works)
    told = findings.rows(PAGE, "models of the third set")
    for (_, *cells), which in zip(told, groups, strict=True):
        counts = [int((beside[which]["missed"] == missed).sum()) for missed in ("", "undecided", "wrong")]
        assert list(map(int, cells)) == [*counts, sum(counts)]


def test_what_could_not_be_written_or_measured_is_counted(beside):
    answers = pd.read_csv(RESULTS).set_index("case")
    open_ = beside[beside["missed"] == "undecided"]["case"]
    still = int((answers["moved"][open_] < 0.5).sum())
    assert f"For {still} of the {len(open_)} undecided, writing a code moves answers less than half of the way" in LEAD
    assert set(answers.index[answers["not_measured"].notna()]) == {"d008", "d043"}


def test_every_wrong_label_is_on_the_page_with_numbers_of_its_answer(beside):
    wrong, answers = beside[beside["missed"] == "wrong"].set_index("case"), pd.read_csv(RESULTS).set_index("case")
    lines = findings.rows(PAGE, "case | kind of the third set")
    assert [case for case, *_ in lines] == sorted(wrong.index)
    for case, kind, expected, called, cause in lines:
        row, answer = wrong.loc[case], answers.loc[case]
        assert (kind, expected, called) == (row["kind"], row["label"], f"{row['called']} ({plain(row['confidence'])})")
        numbers = [answer[name] for name in ("test", "ood", "moved", "use", "inference", "form", "execution", "unexplained")]
        known = {plain(n) for n in numbers} | {f"{n:.3f}".removeprefix("0") for n in numbers} | {".9"}
        words = {word.strip("(),;:") for word in cause.split()}
        assert {word for word in words if word[:1] == "." and word[1:2].isdigit()} <= known, case
