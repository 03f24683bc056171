"""The contest: a planted predictor wins, noise does not, leagues and clusters are kept, and nothing enters on too little."""

import re
from itertools import product
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from compolens import recipes
from compolens.diagnosis.contest import Pair, _agreement, _clusters, _knobs, _pairs, judge, verdict
from compolens.diagnosis.failing_compositions import EXPECTED
from compolens.diagnosis.predictions import LEAGUES, PREDICTIONS
from compolens.foundation.configs import ConfigError

ROOT = Path(__file__).parents[2]


def models(rng, families=("A", "B", "C", "D"), seeds=3):
    """Models on a grid of two settings per family; the held-out score depends on both, and on the teacher."""
    rows = []
    for family, s in product(families, range(seeds)):
        teacher = rng.normal()
        for width, depth in product((1, 2, 3), (1, 2, 3)):
            quality = 0.1 * width - 0.15 * depth + 0.05 * teacher + 0.02 * rng.normal()
            seed = {"init_seed": s, "data_seed": s, "task.teacher_seed": s}
            rows.append(
                {"model": f"{family}{s}{width}{depth}", "family": family, "architecture": "Net", "architecture.width": width,
                 "architecture.depth": depth, **seed, "test": 0.97, "ood": 0.7 + quality}
            )  # fmt: skip
    return pd.DataFrame(rows)


def entered(frame, league="prognosis", **predictors):
    """The models once for every predictor, given as name -> values."""
    parts = []
    for name, values in predictors.items():
        noise = np.random.default_rng(len(name)).normal(size=(2, len(frame))) * 1e-3
        halves = {"first": values + noise[0], "second": values + noise[1]}
        parts.append(frame.assign(predictor=name, league=league, value=values, **halves))
    return pd.concat(parts, ignore_index=True)


@pytest.fixture(scope="module")
def judged():
    rng = np.random.default_rng(0)
    frame = models(rng)
    ood = frame["ood"].to_numpy()
    local = np.where(frame["family"] == "D", -ood, ood)
    found = judge(
        entered(
            frame, planted=ood + 0.01 * rng.normal(size=len(ood)), noise=rng.normal(size=len(ood)), upside=-ood, local=local
        )
    )
    return {one.name: one for one in found}


def test_a_planted_predictor_wins_and_noise_is_at_chance(judged):
    planted, noise = judged["planted"], judged["noise"]
    assert planted.enters and planted.agreement > 0.9 and planted.lo > 0.8 and planted.p_corrected < 0.05
    assert noise.lo < 0.5 < noise.hi and noise.p_corrected > 0.05
    assert planted.models == 108 and planted.families == 4 and planted.clusters == 12
    assert planted.reliability > 0.99


def test_without_an_expectation_the_direction_is_the_one_that_most_pairs_show(judged):
    assert judged["upside"].direction == 0 and judged["upside"].agreement == 1.0


def test_pairs_of_seeds_are_judged_in_the_direction_of_the_neighbours(judged):
    """The teacher moves the score between seeds of a setting, and what is planted says so."""
    assert judged["planted"].by_seed > 0.8 and judged["upside"].by_seed == 1.0 and 0.2 < judged["noise"].by_seed < 0.8


def test_a_verdict_needs_the_interval_and_the_corrected_p(judged):
    planted, noise = judged["planted"], judged["noise"]
    assert verdict(planted, 4) == "holds"
    against = planted._replace(agreement=1 - planted.agreement, lo=1 - planted.hi, hi=1 - planted.lo)
    assert verdict(against, 4) == "fails"
    assert verdict(planted._replace(lo=0.8, hi=0.95, p_corrected=0.06), 4).startswith("cannot be told (")
    assert verdict(planted._replace(enters=False), 4) == "did not enter"
    assert verdict(noise._replace(lo=np.nan, hi=np.nan), 4) == "cannot be told"


def test_what_would_have_been_seen_is_seen_as_often_as_is_said():
    """Agreements of that size, with an error that fits the interval, are told from 0.5 in four of five draws."""
    one = judge(entered(models(np.random.default_rng(1)), noise=np.random.default_rng(2).normal(size=108)))[0]
    one = one._replace(lo=0.4, hi=0.6, p_corrected=1.0)
    least = float(re.search(r"\((.+) would have been seen", verdict(one, 1))[1])
    se = 0.1 / 1.96
    seen = np.random.default_rng(0).normal(least, se, 20_000) - 1.96 * se > 0.5
    assert seen.mean() == pytest.approx(0.8, abs=0.02)
    more = float(re.search(r"\((.+) would have been seen", verdict(one, 13))[1])
    assert more > least
    assert "no agreement" in verdict(one._replace(lo=0.1, hi=0.9), 13)


def test_a_model_without_a_predictors_row_is_in_no_pair_of_it():
    frame = models(np.random.default_rng(0))
    whole = entered(frame, planted=frame["ood"].to_numpy(), other=frame["ood"].to_numpy())
    some = whole[~((whole["predictor"] == "planted") & whole["model"].str.startswith("A"))]
    planted, other = (next(one for one in judge(some) if one.name == name) for name in ("planted", "other"))
    assert (planted.models, planted.families, other.models, other.families) == (81, 3, 108, 4)
    assert planted.pairs == other.pairs * 3 / 4 and planted.agreement == other.agreement == 1.0


def test_expected_directions_are_signs():
    assert {p.direction for p in PREDICTIONS} == {-1, 1}


def test_one_cluster_has_an_agreement_and_no_interval():
    agreement, *unknown = _agreement(np.array([1.0, 1.0, 1.0, -1.0]), [("a",)] * 4, 0)
    assert agreement == 0.75 and np.isnan(unknown).all()


def test_a_family_left_out_shows_what_does_not_carry_over(judged):
    assert judged["local"].by_family == {"A": 1.0, "B": 1.0, "C": 1.0, "D": 0.0}
    assert judged["planted"].by_family.keys() == {"A", "B", "C", "D"}


def test_an_expected_direction_counts():
    frame = models(np.random.default_rng(1))
    name = next(p.name for p in PREDICTIONS if p.direction == -1)
    (right,) = judge(entered(frame, **{name: -frame["ood"].to_numpy()}))
    (wrong,) = judge(entered(frame, **{name: frame["ood"].to_numpy()}))
    assert right.agreement == 1.0 and wrong.agreement == 0.0 and right.direction == -1


def test_pairs_differ_in_one_knob_and_share_seeds():
    frame = models(np.random.default_rng(0), families=("A",), seeds=2)
    near, alike = _pairs(frame)
    assert len(near) == 2 * (9 + 9) and len(alike) == 9  # per teacher: 3 pairs in each of 3 rows and 3 columns
    assert all(pair.a[1] == pair.b[1] and sum(x != y for x, y in zip(pair.a, pair.b, strict=True)) == 1 for pair in near)
    assert all(pair.a[2:] == pair.b[2:] for pair in alike)


def test_models_of_one_teacher_are_one_cluster_whatever_their_own_seeds():
    frame = models(np.random.default_rng(0), families=("A", "B"), seeds=3)
    for teachers, clusters in ((frame["init_seed"], 6), (0, 2)):
        near, _ = _pairs(frame.assign(**{"task.teacher_seed": teachers}))
        assert len(near) == 2 * 3 * 18 and len({pair.cluster for pair in near}) == clusters


@pytest.mark.parametrize(("n", "exactly"), [(3, True), (4, True), (12, True), (13, False)])
def test_clusters_that_all_agree_do_so_by_chance_in_two_of_all_flips(n, exactly):
    *_, p = _agreement(np.ones(2 * n), [(i,) for i in range(n)] * 2, 0)
    assert p == pytest.approx(2 / 2**n if exactly else 1 / 2001, abs=0 if exactly else 2 / 2001)


def test_pairs_that_share_a_model_are_in_one_cluster():
    """Models of three tasks and one seed make three pairs, which are not independent whichever model is named first."""

    def pair(a, b, cluster):
        return Pair(a, b, "family", ("family", cluster))

    three = [pair("a", "b", "first task"), pair("a", "c", "first task"), pair("b", "c", "second task")]
    chain = [pair("f", "g", "fourth"), pair("g", "h", "fifth"), pair("h", "i", "sixth")]
    found = _clusters([*three, pair("d", "e", "third task"), *chain, pair("k", "l", "sixth")])
    assert len(set(found[:3])) == 1 and len(set(found[4:])) == 1 and len(set(found)) == 3
    assert len(set(_clusters([three[0], three[2]._replace(a="x")]))) == 2  # which pairs count decides


def test_what_agrees_more_than_could_be_seen_is_said_to_lack_clusters():
    frame = models(np.random.default_rng(0), families=("A", "B", "C"), seeds=1)
    (one,) = judge(entered(frame, **{PREDICTIONS[0].name: PREDICTIONS[0].direction * frame["ood"].to_numpy()}), models=10)
    assert one.clusters == 3 and one.agreement == 1 and one.p == 2 / 2**3
    assert verdict(one._replace(lo=0.9, hi=1.0), 13) == "cannot be told (3 clusters are too few)"


def test_another_architecture_or_part_is_one_knob():
    base = (("architecture", "A"), ("architecture.width", 1), ("steps", 10), ("architecture.transfer", "T"))
    other = (("architecture", "B"), ("architecture.rate", 2), ("steps", 10))
    assert _knobs(base, other) == 1 and _knobs(base, (*other[:2], ("steps", 20))) == 2
    part = (*base[:3], ("architecture.transfer", "U"), ("architecture.transfer.size", 3))
    assert _knobs(base, part) == 1 and _knobs(base, base) == 0


def test_each_setting_of_an_equal_part_is_a_knob():
    def run(xi, rate=1):
        part = {"architecture.threshold": "T", "architecture.threshold.xi": xi, "architecture.threshold.rate": rate}
        return tuple({"architecture": "A", **part}.items())

    assert _knobs(run(0.01), run(0.03)) == 1 and _knobs(run(0.01), run(0.03, 2)) == 2


def test_what_is_defined_too_rarely_does_not_enter_and_says_why():
    frame = models(np.random.default_rng(0))
    values = np.where(frame["family"].isin(["A", "B"]), frame["ood"], np.nan)
    (one,) = judge(entered(frame, rare=values))
    families = "too few families: it is defined for 2, and 3 are needed"
    assert not one.enters and one.why_not == f"{families}; too few models: it is defined for 54, and 100 are needed"
    assert np.isnan(one.p_corrected)
    (few,) = judge(entered(frame, rare=values), families=2, models=50)
    assert few.enters and few.agreement == 1.0


def test_correction_is_for_the_number_that_enter():
    rng = np.random.default_rng(0)
    frame = models(rng)
    many = {f"noise {i}": rng.normal(size=len(frame)) for i in range(9)}
    found = judge(entered(frame, planted=frame["ood"].to_numpy(), **many))
    planted = next(one for one in found if one.name == "planted")
    assert planted.p_corrected == pytest.approx(10 * planted.p)
    assert sum(one.p_corrected < 0.05 for one in found) == 1


def test_clusters_not_pairs_carry_the_evidence():
    """Within a cluster all pairs agree or all disagree: with few clusters, many pairs prove nothing."""
    frame = models(np.random.default_rng(0), families=("A", "B", "C"), seeds=2)
    frame["ood"] = frame["ood"] * np.where(frame["init_seed"] == 0, 1, -1)
    (one,) = judge(entered(frame, odd=frame["architecture.width"] - 2.0 * frame["architecture.depth"]), models=10)
    assert one.clusters == 6 and one.p > 0.5 and one.hi - one.lo > 0.5


# ---- predictions -----------------------------------------------------------------------------------------------------
def test_the_page_shows_the_predictions_that_code_reads():
    page = (ROOT / "docs" / "findings" / "what_predicts.md").read_text(encoding="utf-8")
    shown = [
        line.strip("| ").split(" | ") for line in page.splitlines() if re.match(r"\| .* \| (prognosis|concurrent) \|", line)
    ]
    expected = [
        [p.name, p.league, "+" if p.direction > 0 else "−", p.source, p.read, p.expects] for p in (*PREDICTIONS, *EXPECTED)
    ]
    assert shown == expected
    assert {p.league for p in PREDICTIONS} == set(LEAGUES) and len({p.name for p in PREDICTIONS}) == len(PREDICTIONS)


def test_where_no_predictor_enters_no_bars_are_drawn():
    zoo, analyze = (
        Path(__file__).parents[2] / "trained_models",
        recipes.load_recipe("analyses", "what_predicts_generalization"),
    )
    pair = [zoo / "F-softmax-0", zoo / "F-hypernetwork-0"]
    with pytest.raises(ConfigError, match=r"no predictor can be judged on 2 models: .* --families 1 --least 2$"):
        analyze(pair)
    with pytest.raises(ConfigError, match=r"no predictor can be judged on 1 model: .* name more models, two or more"):
        analyze(pair[:1])
    assert "right about a pair" in analyze(pair, families=1, least=2).caption


def test_of_equal_values_it_is_not_said_that_no_models_are_neighbours():
    frame = models(np.random.default_rng(0))
    (tied,) = judge(frame.assign(predictor="p", league="prognosis", value=5.0, first=5.0, second=5.0))
    assert not tied.enters and tied.pairs == 0 and tied.why_not.endswith("held-out score: equal values do not count")
    apart = frame.drop_duplicates("family")
    (alone,) = judge(apart.assign(predictor="p", league="prognosis", value=5.0, first=5.0, second=5.0), models=4)
    assert alone.why_not == "no two models differ in one setting alone"
