"""Models without an untrained control: every probe measures them once, and says of every row what is missing and why."""

from pathlib import Path

import numpy as np
import pandas as pd
import probe_numbers
import pytest

from compolens import recipes, tables
from compolens.foundation.builtin import built_in
from compolens.foundation.configs import DoesNotApply
from compolens.zoo.folders import TrainedModel

IDENTITY = ("metric", "split", "site", "role", "control", "composition", "layer", "head", "fit", "rung", "where", "class")
WHY = "nobody knows how it was initialised"


class Without(TrainedModel):
    """A trained model that has no untrained control."""

    why_no_untrained_control = WHY


def measured(name, kind):
    """The table of a probe of the first tiny model that it applies to, and that model's name."""
    probe = recipes.load_recipe("probes", name)
    arguments = {option: value for option, value in probe_numbers.FEW.items() if option in recipes.options(probe)}
    for model, run in probe_numbers.MODELS.items():
        try:
            found = probe(kind(run, probe_numbers.weights_of(run, None), run.task, Path(model), 0), **arguments)
        except DoesNotApply as error:
            assert WHY not in str(error)
            continue
        return (found[0] if isinstance(found, tuple) else found), model
    pytest.fail(f"{name} applies to no model of tests/probe_numbers.py")


def asked(table, columns):
    """What rows about the untrained control are about."""
    rows = table[table["control"].str.contains("untrained")]
    found = [rows[column] for column in columns]
    found = [column.astype(float) if probe_numbers.is_number(column) else column.fillna("").astype(str) for column in found]
    return {tuple(map(str, row)) for row in zip(*found, strict=True)}


@pytest.mark.parametrize("name", built_in("probes"))
def test_every_row_that_the_control_would_have_says_why_it_has_not(name):
    table, model = measured(name, Without)
    rows = table[table["control"].str.contains("untrained")]
    assert len(rows) and rows[["value", "lo", "hi"]].isna().all(axis=None) and (rows["n"] == 0).all()
    assert (rows["note"] == f"not available: {WHY}").all() and not rows.duplicated().any()
    own = table[table["control"] == ""]
    assert own["value"].notna().any() and (own["n"] > 0).all()
    held = probe_numbers.HELD / f"{name}.csv"
    having = probe_numbers.read(held) if held.exists() else probe_numbers.measure(name)
    having = having[having["model"] == model]
    columns = [c for c in IDENTITY if c in having and not (having[c] == probe_numbers.ANYTHING).any()]
    assert asked(probe_numbers.as_read(table), columns) == asked(having, columns)


def test_the_model_answers_no_more_often_without_a_control():
    calls = {}
    for kind in (TrainedModel, Without):
        run = probe_numbers.MODELS["teacher"]
        model, seen = probe_numbers.weights_of(run, None), []
        model.register_forward_hook(lambda *_, seen=seen: seen.append(1))
        recipes.load_recipe("probes", "generalization")(kind(run, model, run.task, Path("teacher"), 0), episodes=8)
        calls[kind] = len(seen)
    assert calls[Without] == calls[TrainedModel] > 0


def test_rows_are_asked_for_and_not_answered():
    rows = [
        tables.row("score", 0.5, n=8, layer=1, rank=3),
        tables.row("score", 0.7, n=8, layer=1, rank=4),
        tables.row("score", 0.5, n=8, layer=1, rank=3, control="another code", note="at the edge"),
    ]
    assert tables.not_available(rows, "") == []
    found = pd.DataFrame(tables.not_available(rows, WHY, measured=("rank",), layer=2))
    assert found["control"].tolist() == ["untrained", "untrained, another code"], "equal rows are one"
    assert "rank" not in found and found["layer"].tolist() == [2, 2] and found["n"].tolist() == [0, 0]
    assert found["note"].tolist() == [f"not available: {WHY}"] * 2 and np.isnan(found[["value", "lo", "hi"]]).all(axis=None)
    assert tables.not_available([], WHY) == []
