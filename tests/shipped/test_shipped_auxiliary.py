"""What auxiliary terms do to predictors and scores: the page's numbers are those of the shipped map."""

from pathlib import Path

import findings
import numpy as np
import pytest
from scipy import stats

from compolens.diagnosis.label import LEARNED
from compolens.foundation import map_files
from compolens.measures.intervals import mean_interval

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "findings" / "what_predicts.md").read_text(encoding="utf-8")
TABLE = map_files.read_table(ROOT / "trained_models" / "maps" / "auxiliary")
CASES = [("decodable", s) for s in (0.01, 0.1, 1.0)] + [("orthogonal", s) for s in (0.01, 0.1, 1.0)]
PREDICTORS = ("decodability, training compositions left out", "factor cosine")
WITHOUT = TABLE[TABLE["term"] == "none"].set_index("seed")


def told(value, signed=False):
    sign = "−" if value < -0.0005 else "+" if signed else ""
    return sign + f"{abs(value):.3f}".removeprefix("0")


def cell(term, strength):
    return TABLE[(TABLE["term"] == term) & (TABLE["strength"] == strength)].set_index("seed").sort_index()


def gained(term, strength, split):
    return (cell(term, strength)[split] - WITHOUT[split]).to_numpy()


def predictors(rows):
    return [told(rows[f"{name} · test · chosen · readout · prognosis"].mean()) for name in PREDICTORS]


def test_every_model_learned_and_every_seed_has_every_term():
    assert len(TABLE) == 35 and set(TABLE["seed"]) == set(range(5)) and TABLE["test"].min() > 0.85


def test_the_page_tells_predictors_and_gains():
    assert findings.cells(PAGE, "term, strength", "none")[:2] == predictors(WITHOUT)
    for term, strength in CASES:
        expected = predictors(cell(term, strength))
        for split in ("test", "ood"):
            values = gained(term, strength, split)
            lo, hi = mean_interval(values)
            expected.append(f"{told(values.mean(), True)} [{told(lo)}, {told(hi)}]")
        assert findings.cells(PAGE, "term, strength", f"{term}, {strength:g}") == expected


def test_of_six_comparisons_one_survives_their_number():
    p = {case: len(CASES) * stats.ttest_1samp(gained(*case, "ood"), 0).pvalue for case in CASES}
    assert [case for case in CASES if p[case] < 0.05] == [("orthogonal", 1.0)]
    assert f"p = {p['orthogonal', 1.0]:.3f}".replace("0.", ".") in PAGE
    assert (gained("orthogonal", 1.0, "ood") > 0).all()
    falls = f"the score falls by {told(abs(gained('decodable', 0.01, 'ood').mean()))}, p = {p['decodable', 0.01]:.3f}"
    assert falls.replace(" 0.", " .") in " ".join(PAGE.split())


def test_the_page_tells_how_many_runs_reach_what_the_contest_asks_for():
    learned = TABLE["test"] >= LEARNED
    assert f"{learned.sum()} of the {len(TABLE)} reach the .9" in " ".join(PAGE.split())
    assert (WITHOUT["test"] >= LEARNED).sum() == 1 and TABLE["test"].min() > 0.88


@pytest.mark.parametrize(("term", "predictor", "sign"), [("decodable", PREDICTORS[0], 1), ("orthogonal", PREDICTORS[1], -1)])
def test_each_term_moves_its_own_predictor_in_every_seed_the_more_the_stronger(term, predictor, sign):
    column = f"{predictor} · test · chosen · readout · prognosis"
    along = np.stack([WITHOUT.sort_index()[column], *(cell(term, s)[column] for s in (0.01, 0.1, 1.0))])
    assert (sign * np.diff(along.mean(1)) > 0).all() and (sign * (along[1:] - along[0]) > 0).mean() > 0.9
