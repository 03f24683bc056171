"""When the context wins: lines are the rows that the caption says, one per seed."""

from pathlib import Path

import pandas as pd
import pytest

from compolens import recipes
from compolens.figures import Line
from compolens.tables import path_of

ZOO = Path(__file__).parents[2] / "trained_models" / "bursty"


def test_lines_are_the_tables_rows_seed_by_seed():
    folders = sorted(ZOO.glob("softmax-?"))
    drawing = recipes.load_file(recipes.built_in("analyses")["when_context_wins"]).analyze(folders)
    accuracy, progress = drawing.panels
    tables = {f.name: pd.read_csv(path_of(f, "in_context_or_in_weights")) for f in folders}
    shown = {
        "labels shifted": (accuracy, "accuracy", "labels shifted", -1),
        "label to its item, layer 0 (ILA1)": (progress, "label to its item", "novel classes", 0),
        "question to right label, last layer (TILA2)": (progress, "question to right label", "novel classes", 1),
    }
    for label, (panel, metric, evaluation, layer) in shown.items():
        lines = [mark for mark in panel.marks if isinstance(mark, Line) and mark.label == label]
        assert len(lines) == len(folders)
        for line, rows in zip(lines, tables.values(), strict=True):
            own = rows[rows["control"].isna() & (rows["metric"] == metric) & (rows["evaluation"] == evaluation)]
            own = own[own["layer"] == layer].sort_values("step")
            assert line.data["step"].tolist() == own["step"].tolist()
            assert line.data["value"].tolist() == pytest.approx(own["value"].tolist())
