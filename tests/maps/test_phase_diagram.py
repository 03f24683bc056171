"""Phase diagrams: a planted boundary is found, within its interval, and what was not learned is no failure."""

from itertools import product

import numpy as np
import pandas as pd
import pytest

from compolens import cli, recipes
from compolens.foundation import map_files
from compolens.foundation.configs import ConfigError
from compolens.measures.phases import by_cell, crossing, crossings

X, Y, SEEDS = (1.0, 2.0, 4.0, 8.0), ("cube", "two cliques"), range(5)


def planted(rng, edge=3.0, noise=0.0):
    """ood is .95 right of an edge and .5 left of it, on a line of log x through it; seeds shift the edge."""
    rows = []
    for s in SEEDS:
        moved = edge * np.exp(noise * rng.normal())
        for x, y in product(X, Y):
            ood = np.clip(0.9 + 0.1 * (x - moved), 0, 1)
            rows.append({"cell": f"{x}{y}{s}", "x": x, "y": y, "seed": s, "test": 0.97, "ood": ood, "run": "r"})
    return pd.DataFrame(rows)


def written(folder, table, **more):
    config = {
        "format": 1, "kind": "map", "title": "planted", "x": "x", "y": "y", "panels": [], "knobs": ["x", "y"], "learned": 0.9,
        "generalized": 0.9, "predicted": [], "measures": {}, "keep": [], "cells": {},
    }  # fmt: skip
    folder.mkdir(parents=True)
    map_files.write(folder, config | more, table, None, {"environments": [], "command": ""})
    return folder


def test_a_crossing_is_where_the_polygon_meets_the_level():
    assert crossings(np.array([0.0, 1, 2]), np.array([0.0, 1, 0]), 0.25) == pytest.approx([0.25, 1.75])
    assert crossings(np.array([0.0, 1, 2]), np.array([0.0, np.nan, 1]), 0.5) == pytest.approx([1.0])
    assert crossings(np.array([0.0, 1]), np.array([0.6, 0.9]), 0.5) == []


def test_a_planted_boundary_is_found_within_its_interval():
    rng, inside = np.random.default_rng(0), 0
    for _ in range(20):
        found = crossing(planted(rng, edge=3.0, noise=0.1).query("y == 'cube'"), "x", 0.9, 0.9)
        assert found.crosses == 1 and found.crossings == 1
        inside += found.lo <= 3.0 <= found.hi
    assert inside >= 15  # a bootstrap over 5 seeds is narrow: nominally 19
    exact = crossing(planted(rng).query("y == 'cube'"), "x", 0.9, 0.9)
    assert exact.at == exact.lo == exact.hi == pytest.approx(3.0)


def test_too_few_seeds_give_no_interval_and_no_crossing_no_number():
    table = planted(np.random.default_rng(0)).query("y == 'cube'")
    found = crossing(table[table["seed"] < 2], "x", 0.9, 0.9)
    assert found.at == pytest.approx(3.0) and np.isnan(found.lo)
    assert np.isnan(crossing(table, "x", 0.9, 1.5).at)


def test_runs_that_did_not_learn_are_left_out_and_never_failures():
    table = planted(np.random.default_rng(0))
    stuck = (table["x"] == 8.0) & (table["seed"] < 4)
    table.loc[stuck, ["test", "ood"]] = (0.1, -5.0)
    gone = (table["x"] == 1.0) & (table["y"] == "cube")
    table.loc[gone, ["test", "ood"]] = (0.2, -9.0)
    cells = by_cell(table, ["x", "y"], 0.9).set_index(["x", "y"])
    assert cells.loc[(8.0, "cube"), ["seeds", "learned"]].tolist() == [5, 1]
    assert cells.loc[(8.0, "cube"), "ood"] == 1.0
    assert np.isnan(cells.loc[(1.0, "cube"), "ood"]) and cells.loc[(1.0, "cube"), "learned"] == 0
    assert crossing(table.query("y == 'cube'"), "x", 0.9, 0.9).at == pytest.approx(3.0)
    table.loc[(table["x"] == 4.0) & (table["seed"] > 1), "test"] = 0.1
    found = crossing(table.query("y == 'cube'"), "x", 0.9, 0.9)
    assert found.at == pytest.approx(3.0) and found.crossings == 1, "the mean is over the seeds that learned"


def test_cells_of_some_seeds_are_named_as_far_as_a_caption_holds_them(tmp_path):
    table = planted(np.random.default_rng(0))
    draw = recipes.load_recipe("analyses", "phase_diagram")
    assert "only some seeds" not in draw([written(tmp_path / "all", table)]).caption
    table.loc[(table["x"] == 8.0) & (table["seed"] < 4), "test"] = 0.1
    said = "planted: only some seeds learned, and are drawn, at x 8, y cube (1 of 5 seeds); x 8, y two cliques (1 of 5 seeds)."
    assert said in draw([written(tmp_path / "some", table)]).caption
    table.loc[table["seed"] == 0, "test"] = 0.1
    assert "; 4 more." in draw([written(tmp_path / "many", table)]).caption


def test_a_map_is_drawn_with_its_boundary_its_prediction_and_grey_cells(tmp_path):
    table = planted(np.random.default_rng(0), noise=0.05)
    table.loc[(table["x"] == 1.0) & (table["y"] == "cube"), "test"] = 0.1
    line = {"name": "theory", "source": "2312.15001", "points": [[3.0, "cube"], [3.0, "two cliques"]], "expects": "it rises"}
    folder = written(tmp_path / "maps" / "toy", table, predicted=[line])
    assert cli.main(["analyze", "phase_diagram", str(tmp_path / "maps"), "--out", str(tmp_path / "figures")]) == 0
    drawn = pd.read_csv(tmp_path / "figures" / "phase_diagram.csv")
    assert drawn["value"].isna().sum() == 1 and drawn["value"].notna().sum() == 7
    drawing = recipes.load_recipe("analyses", "phase_diagram")([folder])
    (mark,) = drawing.panels[0].marks
    boundary, theory = mark.routes
    assert boundary.spread is not None and theory.dash
    x, y = mark.place(theory)
    assert x.tolist() == [1.5, 1.5] and y.tolist() == [0, 1], "3 lies half way between the cells 2 and 4"
    assert "ood crosses 0.9 at x" in drawing.caption and "expected: it rises" in drawing.caption
    assert len(drawing.plotly().data) >= 3


def test_a_map_of_one_knob_is_drawn_as_lines(tmp_path):
    folder = written(tmp_path / "toy", planted(np.random.default_rng(0)), y="", panels=["y"])
    drawing = recipes.load_recipe("analyses", "phase_diagram")([folder])
    assert [panel.title for panel in drawing.panels] == ["planted, y cube", "planted, y two cliques"]
    assert "ood crosses 0.9 at x 3" in drawing.caption
    flat = written(tmp_path / "flat", planted(np.random.default_rng(0), edge=30.0), y="", panels=["y"])
    said = recipes.load_recipe("analyses", "phase_diagram")([flat]).caption
    assert "planted, everywhere: ood does not cross 0.9." in said and said.count("does not cross") == 1


def test_a_knob_on_no_axis_gets_a_panel_per_value_and_rows_of_numbers_ascend(tmp_path):
    table = planted(np.random.default_rng(0))
    table["y"] = table["y"].map({"cube": 16, "two cliques": 4})
    parts = [table.assign(lr=lr, cell=table["cell"] + str(lr), ood=table["ood"] - lr) for lr in (0.0, 0.25)]
    folder = written(tmp_path / "toy", pd.concat(parts, ignore_index=True), knobs=["x", "y", "lr"])
    drawing = recipes.load_recipe("analyses", "phase_diagram")([folder])
    assert [panel.title for panel in drawing.panels] == ["planted, lr 0", "planted, lr 0.25"]
    for panel, lr in zip(drawing.panels, (0.0, 0.25), strict=True):
        (mark,) = panel.marks
        assert mark.data["y"].tolist() == [4] * 4 + [16] * 4 and mark.data["seeds"].tolist() == [5] * 8
        assert mark.data.query("x == 4")["ood"].tolist() == pytest.approx([1 - lr] * 2)


def test_what_is_no_map_is_told(tmp_path, capsys):
    assert cli.main(["analyze", "phase_diagram", str(tmp_path), "--out", str(tmp_path / "figures")]) == 2
    assert "there is no map in" in capsys.readouterr().err
    folder = written(tmp_path / "toy", planted(np.random.default_rng(0)))
    with pytest.raises(ConfigError, match="has no column of numbers 'alignment'"):
        recipes.load_recipe("analyses", "phase_diagram")([folder], score="alignment")
    with pytest.raises(ConfigError, match=r"--levels must be numbers separated by commas, such as 0\.95,0\.99; got 'a,b'"):
        recipes.load_recipe("analyses", "phase_diagram")([folder], levels="a,b")


DIVERGED = ["test", "ood", "score_name"]
"""Columns that a training that diverged has no value in."""


def test_trainings_that_diverged_leave_no_figure_undrawn(tmp_path):
    draw = recipes.load_recipe("analyses", "phase_diagram")
    table = planted(np.random.default_rng(0)).query("y == 'cube'").drop(columns="y").assign(score_name="R²")
    line = {"y": "", "knobs": ["x"]}
    some = table.astype({"score_name": object})
    some.loc[some["x"] == 8.0, DIVERGED] = np.nan
    drawn = draw([written(tmp_path / "some", some, **line)])
    assert drawn.panels[0].y == "R²" and "Left out" not in drawn.caption
    lost = written(tmp_path / "lost", table.drop(columns=DIVERGED), **line)
    both = draw([lost, tmp_path / "some"])
    assert len(both.panels) == 1 and f"Left out: {lost}: all 20 trainings diverged; describe it with smaller" in both.caption
    with pytest.raises(ConfigError, match="lost: all 20 trainings diverged"):
        draw([lost])


def test_the_caption_says_held_out_of_the_held_out_score_alone(tmp_path):
    folder = written(tmp_path / "map", planted(np.random.default_rng(0)))
    draw = recipes.load_recipe("analyses", "phase_diagram")
    said = {score: draw([folder], score=score).caption for score in ("ood", "test")}
    assert said["ood"].startswith("Colours and solid lines: score on held-out compositions, mean")
    assert said["test"].startswith("Colours and solid lines: test, mean")


def test_a_column_that_an_analysis_of_maps_does_not_find_is_named(tmp_path, capsys):
    written(tmp_path / "map", planted(np.random.default_rng(0)))
    (tmp_path / "mine.py").write_text(
        '"""Mine."""\nfrom compolens.foundation import map_files\nof, needs = "maps", ()\n'
        'def analyze(models):\n    return map_files.read_table(models[0])["nowhere"]\n'
    )
    assert cli.main(["analyze", str(tmp_path / "mine.py"), str(tmp_path / "map"), "--out", str(tmp_path / "figures")]) == 2
    said = capsys.readouterr().err
    assert "KeyError: 'nowhere'" in said and "mine.py:5" in said and "IndexError" not in said
