"""Scores by part: points are means over the compositions that have it, each counted once."""

import pytest
from handmade import analyze, marks, save, write

from compolens import Hyperteacher, Run, SoftmaxTransformer
from compolens.foundation.configs import ConfigError

TOP = {"reference": "true code", "control": "reference"}
SCORES = {"A+A": 0.9, "A+B": 0.5, "B+B": 0.1, "C": 0.7}


def model(tmp_path, name="m", scores=SCORES, seed=0):
    folder = write(tmp_path / name, Run(SoftmaxTransformer(), Hyperteacher(), init_seed=seed))
    rows = [{"composition": "all", "value": 0.6, "reference": "model", "control": ""},
            {"composition": "all", "value": 1.0, "note": "ceiling", **TOP}]  # fmt: skip
    for composition, score in scores.items():
        rows += [
            {"composition": composition, "value": score, "reference": "model", "control": ""},
            {"composition": composition, "value": score - 0.05, "reference": "untrained control", "control": "untrained"},
            {"composition": composition, "value": 1.0, **TOP},
        ]
    for split in ("test", "ood"):
        rows += [row | {"split": split} for row in rows if "split" not in row]
    save(folder, "generalization", [row for row in rows if "split" in row], metric="score")
    return folder


def lines(drawing, label="SoftmaxTransformer"):
    shown = marks(drawing, "Line", label=label)
    return {panel: dict(zip(rows["x"], rows["y"], strict=True)) for panel, rows in shown.groupby("panel")}


def test_each_part_has_the_mean_of_the_compositions_that_have_it(tmp_path):
    drawn = lines(analyze("scores_by_part", [model(tmp_path)]))["held-out compositions"]
    assert drawn == pytest.approx({"A": 0.7, "B": 0.3, "C": 0.7})  # A+A counts once


def test_parts_that_are_asked_for_are_counted_together(tmp_path):
    drawn = lines(analyze("scores_by_part", [model(tmp_path)], parts="A, C"))
    assert drawn["held-out compositions"] == pytest.approx({0: 0.1, 1: 0.6, 2: 0.9})
    assert drawn["training compositions"] == drawn["held-out compositions"]


def test_seeds_are_points_and_their_mean_is_the_line(tmp_path):
    other = {name: value + 0.1 for name, value in SCORES.items()}
    folders = [model(tmp_path), model(tmp_path, "n", other, seed=1)]
    drawing = analyze("scores_by_part", folders, parts="B")
    points = marks(drawing, "Points", panel="held-out compositions")
    assert sorted(points[points["x"] == 2]["y"]) == pytest.approx([0.1, 0.2])
    assert lines(drawing)["held-out compositions"][2] == pytest.approx(0.15)


def test_what_cannot_be_drawn_is_said(tmp_path):
    with pytest.raises(ConfigError, match="no composition has a part 'D'"):
        analyze("scores_by_part", [model(tmp_path)], parts="D")
    with pytest.raises(ConfigError, match="no compositions that are written as parts"):
        analyze("scores_by_part", [model(tmp_path, "n", scores={"¬a∧b": 0.5})])
