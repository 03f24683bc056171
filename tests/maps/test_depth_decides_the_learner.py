"""Which learner a model is nearest to, by a knob: what is drawn and said is what a map's table holds."""

import pandas as pd
import pytest

from compolens import recipes
from compolens.figures import Line, Points
from compolens.foundation import map_files
from compolens.foundation.configs import ConfigError

NAMES = ("GD, 1 step", "ridge, l2 0.1", "least squares")
NEAR = {1: (0.9, 0.5, 0.4), 4: (0.6, 0.95, 0.8), 16: (0.5, 0.7, 0.99)}
"""Depth -> cosines with the references."""


def named(metric, split, *who):
    return " · ".join((metric, split, "output", "last query", *who))


def written(folder, **more):
    """Depths 1, 4 and 16, two seeds a hundredth apart, and a control model of one depth."""
    rows = []
    for kind, depths in (("normal", (16, 1, 4)), ("1", (4,))):
        for depth in depths:
            for seed in range(2):
                row = {"cell": f"{kind}{depth}{seed}", "layers": depth, "weights": kind, "seed": seed, "run": "r", "test": 0.6}
                for i, name in enumerate(NAMES):
                    for split, less in (("test", 0.0), ("ood", 0.1)):
                        row[named("sensitivity cosine", split, "model", name)] = NEAR[depth][i] - less + 0.01 * seed
                        row[named("sensitivity cosine", split, "untrained", "model", name)] = 0.02
                        row[named("sensitivity cosine", split, "shuffled", "model", name)] = -0.03
                        row[named("SPD", split, "model", name)] = 1 - NEAR[depth][i]
                        for j, other in enumerate(NAMES):
                            row[named("sensitivity cosine", split, "reference", name, other)] = 1 - 0.05 * abs(i - j)
                            row[named("SPD", split, "reference", name, other)] = 0.2 * abs(i - j)
                row[named("R² of linearity", "test", "untrained")] = 0.5
                rows.append(row)
    config = {"format": 1, "kind": "map", "title": "planted", "x": "layers", "knobs": ["layers", "weights"], "cells": {}}
    folder.mkdir(parents=True)
    map_files.write(folder, config | more, pd.DataFrame(rows), None, {"environments": [], "command": ""})
    return folder


@pytest.fixture
def drawn(tmp_path):
    return recipes.load_recipe("analyses", "depth_decides_the_learner")([written(tmp_path / "depth")])


def test_lines_are_means_over_seeds_in_the_order_of_depths_and_points_are_seeds(drawn):
    assert [panel.title for panel in drawn.panels] == ["episodes as in training", "held-out inputs"]
    for panel, less in zip(drawn.panels, (0.0, 0.1), strict=True):
        lines = {m.label: dict(zip(m.data["x"], m.data["value"], strict=True)) for m in panel.marks if isinstance(m, Line)}
        assert list(lines) == list(NAMES) and list(lines["least squares"]) == ["1", "4", "16"]
        for i, name in enumerate(NAMES):
            assert lines[name] == pytest.approx({str(d): NEAR[d][i] - less + 0.005 for d in (1, 4, 16)})
        assert {len(m.data) for m in panel.marks if isinstance(m, Points)} == {6}


def test_the_caption_names_the_nearest_beside_what_another_reference_has_with_it(drawn):
    for words in (
        "1 layers: GD, 1 step 0.905 (of ridge, l2 0.1 with that one: 0.95)",
        "16 layers: least squares 0.995 (of ridge, l2 0.1 with that one: 0.95)",
        "weights normal", "untrained controls: 0.02 to 0.02", "other episodes' answers: -0.03 to -0.03",
    ):  # fmt: skip
        assert words in drawn.caption
    assert "weights 1:" not in drawn.caption  # a single depth is no line


def test_of_several_maps_every_panel_and_sentence_names_its_own(tmp_path):
    analyze = recipes.load_recipe("analyses", "depth_decides_the_learner")
    drawing = analyze([written(tmp_path / "depth"), written(tmp_path / "longer", title="for longer")])
    words = ("episodes as in training", "held-out inputs")
    assert [panel.title for panel in drawing.panels] == [f"{m}: {w}" for m in ("planted", "for longer") for w in words]
    assert all(f"Nearest on {m}: {w}, weights normal" in drawing.caption for m in ("planted", "for longer") for w in words)


def test_the_nearest_by_a_distance_is_the_smallest(tmp_path):
    drawing = recipes.load_recipe("analyses", "depth_decides_the_learner")([written(tmp_path / "depth")], metric="SPD")
    assert "4 layers: ridge, l2 0.1 0.05 (of GD, 1 step with that one: 0.2)" in drawing.caption
    assert "smaller is nearer" in drawing.caption


def test_maps_without_references_and_unknown_metrics_are_refused(tmp_path):
    analyze = recipes.load_recipe("analyses", "depth_decides_the_learner")
    with pytest.raises(ConfigError, match="no such choice 'R²'"):
        analyze([written(tmp_path / "depth")], metric="R²")
    with pytest.raises(ConfigError, match="none of these maps holds the sensitivity cosine"):
        analyze([written(tmp_path / "tuning", kind="tuning")])
