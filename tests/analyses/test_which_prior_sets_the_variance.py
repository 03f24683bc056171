"""Which prior sets the variance: what is drawn is what the tables of the shipped models hold, at numbers of examples."""

from pathlib import Path

import pandas as pd
import pytest

from compolens import recipes
from compolens.figures import Line
from compolens.tables import path_of

ZOO = Path(__file__).parents[2] / "trained_models" / "uncertainty"
PRIORS = {
    "Bayes, prior of training": "Bayes, prior of training",
    "Bayes, prior of the held-out tasks": "Bayes, prior of the split",
}


@pytest.fixture(scope="module")
def drawn():
    folders = sorted(ZOO.glob("softmax-?"))
    drawing = recipes.load_recipe("analyses", "which_prior_sets_the_variance")(folders)
    return drawing, {f.name: pd.read_csv(path_of(f, "uncertainty")) for f in folders}


@pytest.mark.parametrize("panel", range(4))
def test_lines_are_the_tables_rows_in_the_order_of_numbers(drawn, panel):
    drawing, tables = drawn
    metric, split = ("standard deviation", "squared error over variance")[panel // 2], ("test", "ood")[panel % 2]
    lines = [mark for mark in drawing.panels[panel].marks if isinstance(mark, Line)]
    own = [line for line in lines if line.label == "model"]
    assert len(own) == len(tables) == 3
    for line, table in zip(own, tables.values(), strict=True):
        rows = table[table["control"].isna() & (table["metric"] == metric) & (table["split"] == split)].sort_values("shown")
        assert line.data["shown"].tolist() == rows["shown"].tolist() == list(range(9))  # numbers: 10 comes after 9
        assert line.data["value"].tolist() == pytest.approx(rows["value"].tolist())
    for label, control in PRIORS.items():
        found = [line for line in lines if line.label == label]
        assert len(found) == (0 if split == "test" and "held-out" in label else 1)
        for line in found:
            rows = next(iter(tables.values()))
            rows = rows[(rows["control"] == control) & (rows["metric"] == metric) & (rows["split"] == split)]
            assert line.data["value"].tolist() == pytest.approx(rows["value"].tolist())
