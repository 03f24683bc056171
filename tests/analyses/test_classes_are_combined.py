"""Classes are combined: what is drawn is what the tables of the shipped models hold."""

from pathlib import Path

import pandas as pd
import pytest

from compolens import recipes
from compolens.figures import Line
from compolens.tables import path_of

ZOO = Path(__file__).parents[2] / "trained_models" / "function_classes"


@pytest.fixture(scope="module")
def drawn():
    folders = sorted(ZOO.glob("softmax-?"))
    drawing = recipes.load_recipe("analyses", "classes_are_combined")(folders)
    return drawing, [pd.read_csv(path_of(f, "function_classes")).fillna({"control": ""}) for f in folders]


def lines(drawing, panel, label):
    return [mark for mark in drawing.panels[panel].marks if isinstance(mark, Line) and mark.label == label]


def drawn_of(line):
    return dict(zip(line.data["shown"], line.data["value"], strict=True))


@pytest.mark.parametrize(("label", "control"), [("model", ""), ("Bayes, prior of training", "Bayes, prior of training")])
def test_panels_show_means_of_the_tables(drawn, label, control):
    drawing, tables = drawn
    for table, single, both, error, spectrum in zip(tables, *(lines(drawing, p, label) for p in range(4)), strict=False):
        own = table[table["control"] == control]
        weights = own[own["metric"] == "weight of class"]
        for n in (1, 2, 4, 8, 10):  # numbers: 10 comes after 8
            here = weights[weights["shown"] == n]
            right = here[(here["split"] == "test") & (here["part"] == here["composition"])]["value"]
            assert len(right) == 2 and drawn_of(single)[n] == pytest.approx(right.mean())
            combined = here[here["split"] == "ood"]["value"]
            assert len(combined) == 6 and drawn_of(both)[n] == pytest.approx(combined.sum() / 3)
        errors = own[(own["metric"] == "squared error") & (own["split"] == "ood")].groupby("shown")["value"].mean()
        assert drawn_of(error) == pytest.approx(errors.to_dict())
        last = own[(own["metric"] == "amplitude") & (own["split"] == "ood") & (own["shown"] == 10)]
        amplitudes = last.assign(part=last["part"].astype(float)).groupby("part")["value"].mean()
        assert drawn_of(spectrum) == pytest.approx(amplitudes.to_dict())
    assert [len(lines(drawing, p, label)) for p in range(4)] == [len(tables) if label == "model" else 1] * 4


def test_every_learner_has_its_line_where_it_says_something(drawn):
    drawing, _ = drawn
    assert not lines(drawing, 0, "Bayes, prior of the combinations") and lines(drawing, 1, "Bayes, prior of the combinations")
    assert len(lines(drawing, 2, "always 0")) == len(lines(drawing, 3, "true function")) == 1
