"""The models of the contest as shipped, and what the page tells of it."""

import re
from functools import partial
from pathlib import Path

import findings
import pytest
from findings import shown

from compolens import tables
from compolens.cli.train import read_runs
from compolens.diagnosis.contest import LEVEL, OF_PARTS, _clusters, _knobs, _pairs, gathered, judge, verdict
from compolens.diagnosis.predictions import LEAGUES, PREDICTIONS, READ
from compolens.zoo.folders import read_run

ROOT = Path(__file__).parents[2]
ZOO = ROOT / "trained_models"
PAGE = (ROOT / "docs" / "findings" / "what_predicts.md").read_text(encoding="utf-8")
pytestmark = pytest.mark.filterwarnings("ignore::compolens.tables.StaleTable")
two = partial(shown, digits=2)


@pytest.fixture(scope="module")
def contest():
    """The frame that is judged, and what is found."""
    needed = ("predictors", "generalization")
    entrants = [folder for folder in tables.find([ZOO]) if all(tables.has(folder, name) for name in needed)]
    frame = gathered(entrants, ["predictors"])
    return frame, judge(frame)


def test_every_run_is_shipped_with_fresh_tables():
    runs = read_runs(str(ZOO / "contest.py"))
    folders = sorted(p.parent for p in ZOO.glob("contest/*/config.json"))
    assert {folder.name for folder in folders} == set(runs)
    for folder in folders:
        assert read_run(folder) == runs[folder.name]
        assert all(tables.why_not(folder, name) == "" for name in ("generalization", "predictors"))


def test_every_model_differs_from_the_first_of_its_family_in_one_setting():
    def settings(folder):
        known = tables.settings(folder)
        return tuple((k, v) for k, v in known.items() if k not in ("model", "folder", "task.setting", "score_name"))

    for family, first in (("hyperteacher", "softmax"), ("boolean", "softmax")):
        for s in range(4):
            base = settings(ZOO / "contest" / f"{family}-{first}-{s}")
            others = [p for p in ZOO.glob(f"contest/{family}-*-{s}") if p.name != f"{family}-{first}-{s}"]
            assert len(others) > 5 and all(_knobs(base, settings(p)) == 1 for p in others)


@pytest.mark.parametrize("league", LEAGUES)
def test_the_page_tells_every_predictors_place(league, contest):
    _, judged = contest
    entrants = sum(one.enters for one in judged)
    here = [one for one in judged if one.league == league]
    assert [heading for heading, *_ in findings.rows(PAGE, league)] == [one.name for one in here]
    for one in here:
        expected = {1: "+", -1: "−"}[one.direction]
        told = [
            expected,
            f"{two(one.agreement)} [{two(one.lo)}, {two(one.hi)}]",
            f"{one.p_corrected:.3f}".replace("0.", ".", 1),
        ]
        told += [f"{one.pairs} in {one.clusters}", two(one.by_seed), two(one.reliability), verdict(one, entrants)]
        assert findings.cells(PAGE, league, one.name) == told


def test_the_page_tells_each_familys_number_in_the_direction_of_the_others(contest):
    _, judged = contest
    families = findings.columns(next(line for line in PAGE.splitlines() if line.startswith("| by family |")))[1:]
    for one in judged:
        told = findings.cells(PAGE, "by family", one.name)
        assert told == [two(one.by_family[f]) if f in one.by_family else "" for f in families]


def test_the_page_tells_how_many_models_of_which_families_entered(contest):
    frame, judged = contest
    models = frame.drop_duplicates("model")
    counts = models["family"].value_counts()
    plain = " ".join(PAGE.split())
    assert f"{len(models)} models of {len(counts)} families" in plain and len(models) >= 150 and len(counts) >= 4
    for family, count in counts.items():
        assert re.search(rf"{count} `{family}`", plain), family
    assert {one.name for one in judged} == {p.name for p in PREDICTIONS} and LEVEL == 0.05


def test_the_layout_of_parts_counts_only_where_a_site_is_read(contest):
    frame, _ = contest
    read = frame[frame["predictor"] == READ].set_index("model")
    has = frame[frame["predictor"].isin(OF_PARTS)].groupby("model")["predictor"].nunique()
    assert (has == len(OF_PARTS)).all() and set(has.index) == set(read.index[read["value"] > 0])
    unread = read.loc[read["value"] <= 0, "family"].value_counts()
    assert unread.to_dict() == {"Relations": 30, "BooleanFunctions": 3}


def test_the_page_tells_what_is_said_of_single_predictors(contest):
    frame, judged = contest
    plain, by_name = " ".join(PAGE.split()), {one.name: one for one in judged}
    cosine = by_name["factor cosine"]
    models = frame.drop_duplicates("model")
    near, _ = _pairs(frame)
    assert f"{len(near)} pairs of neighbours in {len(set(_clusters(near)))} clusters; no two clusters share a model" in plain
    values = {name: frame[frame["predictor"] == name].set_index("model")["value"] for name in by_name}
    evidence = [p.family for p in near if abs(values["evidence count"][p.a] - values["evidence count"][p.b]) > 1e-9]
    count = by_name["evidence count"]
    right = f"on {count.agreement * count.pairs:.0f} of {len(evidence)} pairs"
    assert f"{right}. It differs between" in plain and f"right {right}, but these come from {count.clusters} sets" in plain
    assert f"{evidence.count('BooleanFunctions')} of the pairs are of Boolean functions" in plain
    both = [p for p in near if p.family == "BooleanFunctions" and "parity" in p.a + p.b and "conjunction" in p.a + p.b]
    assert len(both) == 3 and "three of these compare conjunctions with parities" in plain
    assert f"{count.clusters} instead of 15, its corrected p is {count.p_corrected:.3f}".replace(" 0.", " .") in plain
    assert f"on {1 - cosine.agreement:.0%} of pairs".replace("%", " %") in plain
    assert (
        f"is {two(cosine.agreement)} instead of .31, and *fails*" in plain and f"{cosine.pairs} instead of 185 pairs" in plain
    )
    assert f"the corrected p is {cosine.p_corrected:.3f}. A counterexample".replace(" 0.", " .") in plain
    worse = {}
    for family in models["family"].unique():
        here = [p for p in near if p.family == family and {p.a, p.b} <= set(values["factor cosine"].dropna().index)]
        scores = models.set_index("model")["ood"]
        signs = [(values["factor cosine"][p.a] - values["factor cosine"][p.b]) * (scores[p.a] - scores[p.b]) > 0 for p in here]
        worse |= {family: f"{sum(signs) / len(signs):.0%}".replace("%", " %")} if signs else {}
    assert worse == {"Hyperteacher": "77 %", "FuzzyLogic": "77 %", "BooleanFunctions": "54 %"}
    assert "77 % of those of hyperteachers and of fuzzy logic, 54 % of those of Boolean functions" in plain
    counted = {name: [p.family for p in near if {p.a, p.b} <= set(v.dropna().index)] for name, v in values.items()}
    layouts = [families for name, families in counted.items() if name in OF_PARTS]
    assert len(layouts) == 7 and all(families == layouts[0] for families in layouts)
    told = [layouts[0].count(family) for family in ("Hyperteacher", "FuzzyLogic", "BooleanFunctions")]
    text = "Seven predictors are judged on {} pairs of hyperteachers, {} of fuzzy logic and {} of Boolean functions"
    assert text.format(*told) in plain and evidence.count("Hyperteacher") == 4
    relations = counted["score on training compositions"].count("Relations")
    assert f"the others on {relations} pairs of relations as well" in plain
    for name in ("hyperteacher-hypernetwork-2", "hyperteacher-layers-3-2"):
        folder = str(ZOO / "contest" / name)
        assert two(values["factor cosine"][folder]) in plain and two(models.set_index("model")["ood"][folder]) in plain
    decodable = [two(one.agreement) for one in judged if one.name.startswith("decodability")]
    assert f"({min(decodable)} to {max(decodable)})" in plain
    assert f"({two(min(one.reliability for one in judged))} or more)" in plain
    verdicts = [verdict(one, len(judged)).split(" (")[0] for one in judged]
    assert [verdicts.count(said) for said in ("holds", "fails", "cannot be told")] == [0, 0, 13]
