"""Planted histories: what falls is called forgotten, what stays or rises is not, and what learned too late counts nowhere."""

from itertools import combinations

import numpy as np
import pandas as pd
import pytest
from handmade import write_map

from compolens import recipes
from compolens.figures import Points
from compolens.foundation import map_files
from compolens.foundation.configs import ConfigError
from compolens.measures.intervals import mean_interval
from compolens.measures.phases import lasting

STEPS = np.arange(100, 2100, 100)


def history(cell, slope, learned_at=300, seed=0):
    """Held out .8, then `slope` per thousand steps, with noise of .002; training compositions are learned from a step on."""
    noise = np.random.default_rng(seed).normal(0, 0.002, len(STEPS))
    test = np.where(learned_at <= STEPS, 0.95, 0.5)
    return pd.DataFrame({"cell": cell, "step": STEPS, "loss": 0.1, "test": test, "ood": 0.8 + slope * STEPS / 1000 + noise})


def written(folder, slopes, learned_at=300):
    """A map of depth: slopes by depth, one per seed."""
    cells = [(depth, s, slope) for depth, every in slopes.items() for s, slope in enumerate(every)]
    rows = [{"cell": f"{d}-{s}", "layers": d, "seed": s, "run": "r", "score_name": "R2", "test": 0.95, "ood": 0.8}
            for d, s, _ in cells]  # fmt: skip
    along = pd.concat([history(f"{d}-{s}", slope, learned_at, s) for d, s, slope in cells])
    write_map(folder, pd.DataFrame(rows), x="layers", y="", panels=[], knobs=["layers"])
    config = map_files.read_config(folder)
    map_files.write(
        folder, config, map_files.read_table(folder).drop(columns="map"), along, {"environments": [], "command": ""}
    )
    return folder


@pytest.fixture
def analyze():
    return recipes.load_recipe("analyses", "held_out_success_lasts")


def test_the_rank_test_is_the_share_of_orders_as_extreme():
    scores = np.array([0.9, 0.8, 0.85, 0.7, 0.82, 0.6])
    found = lasting(pd.DataFrame({"test": 1.0, "ood": scores}), 0.9, window=3)
    above = [sum(late > early for late in scores[list(some)] for early in np.delete(scores, some))
             for some in combinations(range(6), 3)]  # fmt: skip
    own = above[-1]  # late ones are the last three
    assert found.p == pytest.approx(np.mean([count <= own for count in above]))
    assert found.early == pytest.approx(scores[:3].mean()) and found.late == pytest.approx(scores[3:].mean())


def test_early_begins_where_training_compositions_are_learned():
    rows = history("a", -0.05, learned_at=800)
    found = lasting(rows, 0.9)
    assert found.begins == 7 and found.early == pytest.approx(rows["ood"].iloc[7:12].mean())
    late = lasting(history("a", -0.05, learned_at=1200), 0.9)  # nine evaluations are left, ten are needed
    assert late.begins == -1 and np.isnan(late.p) and np.isnan(late.early)


def test_scores_without_a_trend_are_seldom_called_forgotten():
    called = [lasting(history("a", 0.0, seed=s), 0.9).p < 0.05 for s in range(400)]
    assert 0.02 < np.mean(called) < 0.08


def test_what_falls_is_forgotten_and_what_rises_is_not(analyze, tmp_path):
    slopes = {1: [0.02] * 5, 3: [-0.05, -0.05, 0.05, -0.05, -0.05]}
    folder = written(tmp_path / "map", slopes)
    drawing = analyze([folder])
    assert [panel.title for panel in drawing.panels] == ["layers 1", "layers 3"]
    assert "layers 1: 0 of 5 runs forget" in drawing.caption and "layers 3: 4 of 5 runs forget" in drawing.caption
    rows = [history("", slope, seed=s) for s, slope in enumerate(slopes[3])]
    changes = [one["ood"].iloc[-5:].mean() - one["ood"].iloc[2:7].mean() for one in rows]
    lo, hi = mean_interval(changes)
    assert f"late less early {np.mean(changes):+.3f} [{lo:+.3f}, {hi:+.3f}]" in drawing.caption
    points = [m for m in drawing.panels[1].marks if isinstance(m, Points)]
    assert [len(p.data) for p in points] == [10] * 5
    assert points[0].data["step"].tolist() == [*range(300, 800, 100), *range(1600, 2100, 100)]


def test_what_learned_too_late_counts_nowhere(analyze, tmp_path):
    drawing = analyze([written(tmp_path / "map", {2: [-0.05, -0.05]}, learned_at=1500)])
    assert "no run can be tested. 2 run(s) did not reach 0.9 in time" in drawing.caption
    assert not [m for m in drawing.panels[0].marks if isinstance(m, Points)]


def test_maps_without_a_history_and_short_windows_are_refused_with_what_to_do(analyze, tmp_path):
    plain = write_map(tmp_path / "plain", pd.DataFrame({"cell": ["a"], "layers": [1], "seed": [0], "run": ["r"]}),
                      x="layers", y="", panels=[], knobs=["layers"])  # fmt: skip
    with pytest.raises(ConfigError, match="keep_history=True"):
        analyze([plain])
    with pytest.raises(ConfigError, match="at least 3"):
        analyze([plain], window=2)
    with pytest.raises(ValueError, match="at least 3"):
        lasting(history("a", 0.0), 0.9, window=2)
