"""From context or weights: points are the tables' rows, one per seed and way of asking, beside their controls."""

from pathlib import Path

import pytest

from compolens import recipes, tables
from compolens.figures import Points

ZOO = Path(__file__).parents[2] / "trained_models"


def test_points_are_the_tables_rows_after_training_in_a_panel_per_regime():
    folders = [*sorted(ZOO.glob("bursty/softmax-?")), *sorted(ZOO.glob("in_weights/*-?"))]
    analysis = recipes.load_file(recipes.built_in("analyses")["context_or_weights"])
    drawing = analysis.analyze(folders)
    assert len(drawing.panels) == 3
    drawn = [mark for panel in drawing.panels for mark in panel.marks if isinstance(mark, Points)]
    own = {(row.model, row.asked): row.value for mark in drawn if not mark.open for row in mark.data.itertuples()}
    assert len(own) == len(folders) * len(analysis.ASKED)
    for folder in folders:
        rows = tables.read(folder, "in_context_or_in_weights")
        rows = rows[(rows["control"] == "") & (rows["step"] == rows["step"].max())]
        for (metric, evaluation), asked in analysis.ASKED.items():
            (value,) = rows[(rows["metric"] == metric) & (rows["evaluation"] == evaluation)]["value"]
            assert own[folder.name, asked] == pytest.approx(value)
    assert {mark.label for mark in drawn if mark.open} == {"a label of the context at random", "untrained"}
