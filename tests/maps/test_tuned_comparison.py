"""What tuning decides is drawn: the choice, what could as well have been chosen, and errors where supports overlap."""

from itertools import product

import numpy as np
import pandas as pd
import pytest

from compolens import cli, recipes
from compolens.figures import Points
from compolens.foundation import map_files
from compolens.foundation.configs import ConfigError


def folder(place):
    """Two architectures at four rates; the best rate is 3e-3, and 1e-2 cannot be told from it."""
    rows = []
    for who, lr in product(("softmax", "hypernetwork"), (1e-3, 3e-3, 1e-2, 3e-2)):
        far = {1e-3: 0.6, 3e-3: 0.0, 1e-2: 0.01, 3e-2: 1.0}[lr] + (0.5 if who == "softmax" else 0)
        lacks = {"validation": 0.1 * 10**far, "test": 0.01 * 10**far, "ood": 0.2 * 10 ** (far / 2)}
        row = {"cell": f"{who}{lr}", "who": who, "lr": lr, "weight_decay": 0.01, "steps": 100, "seed": 100, "run": "r"}
        rows.append(row | {split: 1 - value for split, value in lacks.items()} | {"validation se": 0.05 * lacks["validation"]})
    config = {"format": 1, "kind": "tuning", "title": "planted", "knobs": ["who", "lr", "weight_decay", "steps"], "cells": {}}
    place.mkdir()
    map_files.write(place, config, pd.DataFrame(rows), None, {"environments": [], "command": ""})
    return place


def test_a_tuning_is_drawn_with_its_choice_and_its_range(tmp_path):
    place = folder(tmp_path / "toy")
    drawing = recipes.load_recipe("analyses", "tuned_comparison")([place])
    assert len(drawing.panels) == 3
    assert "lr 0.003, weight_decay 0.01, steps 100 of 4 settings" in drawing.caption
    assert "over the 2 within one standard error" in drawing.caption and "at the edge" not in drawing.caption
    boxes = drawing.panels[1].marks[::2]
    assert [mark.shown[["lo", "hi"]].iloc[0].tolist() for mark in boxes] == pytest.approx(
        np.array([[1 - 0.2 * 10**0.255, 1 - 0.2 * 10**0.25], [1 - 0.2 * 10**0.005, 0.8]])
    )


def test_points_are_filled_in_only_where_supports_overlap(tmp_path):
    place = folder(tmp_path / "toy")
    draw = recipes.load_recipe("analyses", "tuned_comparison")
    marks = draw([place]).panels[2].marks
    shared = pd.concat([mark.shown for mark in marks if not mark.open])
    apart = pd.concat([mark.shown for mark in marks if mark.open])
    assert shared["x"].between(-1.5, -1).all() and not apart["x"].between(-1.5, -1).any() and len(shared) + len(apart) == 8
    assert not any(isinstance(mark, Points) and mark.open for mark in draw([place], overlap=False).panels[2].marks)


def test_it_is_drawn_by_its_name(tmp_path):
    folder(tmp_path / "toy")
    assert cli.main(["analyze", "tuned_comparison", str(tmp_path / "toy"), "--out", str(tmp_path / "figures")]) == 0
    assert (tmp_path / "figures" / "tuned_comparison.pdf").exists()


def test_a_tuning_that_diverged_everywhere_is_named_and_keeps_no_other_from_being_drawn(tmp_path):
    place, draw = folder(tmp_path / "toy"), recipes.load_recipe("analyses", "tuned_comparison")
    table = map_files.read_table(place).drop(columns=["map", "validation", "validation se", "test", "ood"])
    lost = tmp_path / "lost"
    lost.mkdir()
    map_files.write(lost, map_files.read_config(place), table, None, {"environments": [], "command": ""})
    drawing = draw([lost, place])
    assert len(drawing.panels) == 3 and f"Left out: {lost}: all 8 trainings diverged" in drawing.caption
    with pytest.raises(ConfigError, match="lost: all 8 trainings diverged; describe it with smaller learning rates"):
        draw([lost])


def test_where_nothing_overlaps_architectures_are_still_named(tmp_path):
    place = folder(tmp_path / "toy")
    table = map_files.read_table(place).drop(columns="map")
    far = table["who"] == "softmax"
    table.loc[far, "test"] = 1 - (1 - table.loc[far, "test"]) * 1e-3
    map_files.write(place, map_files.read_config(place), table, None, {"environments": [], "command": ""})
    marks = recipes.load_recipe("analyses", "tuned_comparison")([place]).panels[2].marks
    assert all(mark.open and mark.keyed for mark in marks) and {mark.label for mark in marks} == {"softmax", "hypernetwork"}
