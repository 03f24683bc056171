"""What is trained in, and what the score does: drawn are differences to the run of the same seed, of models that learned."""

import pandas as pd
import pytest
from handmade import write_map

from compolens import recipes
from compolens.figures import Line, Points
from compolens.foundation.configs import ConfigError
from compolens.measures.intervals import mean_interval

DECODABLE, COSINE = "decodability, training compositions left out", "factor cosine"


def planted(seeds=range(5), failed=()):
    """Seed s scores .7 + .01 s held out; the term adds its strength to that, and half of it to the predictor."""
    rows = []
    for s in seeds:
        for term, strength in (("none", 0.0), ("decodable", 0.1), ("decodable", 1.0), ("orthogonal", 0.1)):
            cell = f"{term}{strength:g}-{s}"
            own = strength if term == "decodable" else -strength
            row = {"cell": cell, "term": term, "strength": strength, "seed": s, "run": "r"}
            row |= {"test": 0.5 if cell in failed else 0.95, "ood": 0.7 + 0.01 * s + own * (1 + 0.1 * s)}
            for name, value in ((DECODABLE, 0.4 + 0.5 * own), (COSINE, 0.3)):
                row |= {f"{name} · test · chosen · readout · prognosis": value}
                row |= {f"{name} · test · chosen · readout · prognosis · first": -9.0}
                row |= {f"{name} · test · chosen · readout · untrained · prognosis": -9.0}
            rows.append(row)
    return pd.DataFrame(rows)


def written(folder, table, knobs=("term", "strength")):
    return write_map(folder, table, x="strength", y="", panels=["term"], knobs=list(knobs))


@pytest.fixture
def analyze():
    return recipes.load_recipe("analyses", "raised_predictors")


def test_differences_are_paired_by_seed_and_begin_at_the_run_without(analyze, tmp_path):
    drawing = analyze([written(tmp_path / "map", planted())])
    raised, _, held_out, _ = drawing.panels
    line = next(m for m in held_out.marks if isinstance(m, Line) and m.label == "decodable").data.set_index("strength")
    gained = [0.1 * (1 + 0.1 * s) for s in range(5)]
    assert line["mean"].tolist() == pytest.approx([0, sum(gained) / 5, sum(gained) * 2])
    assert line.loc["0.1", ["lo", "hi"]].tolist() == pytest.approx(mean_interval(gained))
    points = next(m for m in raised.marks if isinstance(m, Points) and m.label == "orthogonal").data
    assert set(points["strength"]) == {"0", "0.1"}
    assert points.set_index("strength").loc["0.1", DECODABLE].tolist() == pytest.approx([0.35] * 5)
    assert "decodable 0.1 (5 seeds)" in drawing.caption and "held out +0.120" in drawing.caption
    assert "have not learned: none" in drawing.caption


def test_what_has_not_learned_is_left_out_with_its_name_and_fewer_than_five_seeds_have_no_interval(analyze, tmp_path):
    drawing = analyze([written(tmp_path / "map", planted(failed=("decodable1-3", "none0-0")))])
    assert "decodable0.1-0, decodable1-0, decodable1-3" in drawing.caption and "decodable 1 (3 seeds)" in drawing.caption
    line = next(m for m in drawing.panels[2].marks if isinstance(m, Line) and m.label == "decodable").data
    assert line["lo"].isna().all()


def test_other_maps_and_maps_that_learned_nothing_are_refused_with_what_to_type(analyze, tmp_path):
    with pytest.raises(ConfigError, match=r"compolens map trained_models/maps/auxiliary\.py"):
        analyze([written(tmp_path / "other", planted(), knobs=("width",))])
    with pytest.raises(ConfigError, match="train longer"):
        analyze([written(tmp_path / "none", planted().assign(test=0.1))])
