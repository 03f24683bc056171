"""Which composition of a shipped model fails: the page tells what the tables hold."""

from functools import partial
from pathlib import Path

import findings
import pytest
from findings import shown

from compolens import tables
from compolens.diagnosis.contest import verdict
from compolens.diagnosis.failing_compositions import gathered, judge, references
from compolens.diagnosis.failing_compositions import judged as judged_alone

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "findings" / "what_predicts.md").read_text(encoding="utf-8")
pytestmark = pytest.mark.filterwarnings("ignore::compolens.tables.StaleTable")
two = partial(shown, digits=2)


@pytest.fixture(scope="module")
def found():
    """The frame, the predictors' places, and the references."""
    frame = gathered([f for f in tables.find([ROOT / "trained_models"]) if tables.has(f, "composition_predictors")])
    return frame, judge(frame), references(frame)


def test_the_page_tells_every_predictors_place(found):
    _, judged, beside = found
    rows, entered = [], sum(one.enters for one in judged)
    for one in judged:
        sign, p = {1: "+", -1: "−"}[one.direction], f"{one.p_corrected:.3f}".replace("0.", ".", 1)
        agreement, untrained = (
            f"{two(one.agreement)} [{two(one.lo)}, {two(one.hi)}]",
            beside[f"{one.name}, untrained"].agreement,
        )
        behind = [f"{one.pairs:,} in {one.clusters}", str(one.models), two(one.reliability), two(untrained)]
        rows.append([one.name, sign, agreement, p, *behind, verdict(one, entered)])
    assert findings.rows(PAGE, "predictor | expected | agreement") == rows
    assert findings.rows(PAGE, "reference") == [[n, f"{two(beside[n].agreement)} [{two(beside[n].lo)}, {two(beside[n].hi)}]"]
                                                for n in ("score, measured again", "interference, shuffled")]  # fmt: skip
    families = findings.columns(next(line for line in PAGE.splitlines() if line.startswith("| by family, compositions |")))[1:]
    for one in judged:
        told = [two(one.by_family[f]) if f in one.by_family else "" for f in families]
        assert findings.cells(PAGE, "by family, compositions", one.name) == told


def test_the_page_tells_which_models_entered_and_what_follows(found):
    frame, judged, beside = found
    plain, placed = " ".join(PAGE.split()), {one.name: one for one in judged}
    counts = frame.drop_duplicates("model")["family"].value_counts()
    assert f"{counts.sum()} of these models have five or more" in plain
    assert all(f"{count} `{family}`" in plain for family, count in counts.items())
    evidence, leak = placed["evidence for its parts"], placed["leak of a seen conjunction"]
    assert (
        f"({two(evidence.agreement)} and {two(leak.agreement)} of pairs)" in plain
        and f"on {leak.agreement:.0%} of".replace("%", " %") in plain
    )
    assert not {"Relations"} & evidence.by_family.keys() and leak.by_family["BooleanFunctions"] == pytest.approx(
        0.5, abs=0.005
    )
    control, between = beside["leak of a seen conjunction, untrained"], placed["interference of its parts"]
    assert control.lo < 0.5 and control.hi > 0.5

    def with_interval(one):
        return f"{two(one.agreement)} [{two(one.lo)}, {two(one.hi)}]"

    rows = frame[(frame["predictor"] == leak.name) & (frame["control"] == "")]
    alone = judged_alone(rows[rows["family"] != "Hyperteacher"], leak.direction)
    assert alone.lo < 0.5 and f"without the hyperteachers it cannot be told: {with_interval(alone)}." in plain
    untrained = frame[(frame["predictor"] == leak.name) & (frame["control"] == "untrained")]["model"]
    same = judged_alone(rows[rows["model"].isin(untrained)], leak.direction)
    assert same.models == control.models and same.lo > 0.5
    assert f"The untrained control is defined for {control.models} models. On these it has {with_interval(control)}" in plain
    assert f"and the trained models have {with_interval(same)}." in plain
    assert between.p_corrected < 0.05 and between.hi > 0.5 and f"p is {shown(between.p_corrected)}, and the interval" in plain
    seen = verdict(between, len(judged)).partition("(")[2].split()[0].lstrip("0")
    assert f"Its agreement is {two(between.agreement)}, and an agreement of {seen} would have been seen" in plain
    told = [one.name for one in judged if verdict(one, len(judged)) == "holds"]
    assert told == [evidence.name, leak.name] and placed["interference of its parts"].hi < 0.6
    learned = placed["score of training compositions with its parts"]
    assert learned.lo < 0.5 and f"It is {two(learned.agreement)}, and its interval" in plain
    assert f"orders {two(beside['score, measured again'].agreement)} of the pairs" in plain
