"""Which classes are told apart: one triangle says whether, the other whether both answers are known."""

import numpy as np
import pytest
from handmade import analyze, marks, save, write

from compolens import HYLA, Run
from compolens.foundation.configs import ConfigError
from compolens.tasks import SRaven

PAIRS = {
    ("constant", "addition"): (0.9, 0.8),
    ("constant", "subtraction"): (0.7, 0.6),
    ("addition", "subtraction"): (0.5, 0.95),
}


def model(tmp_path, name, lower=0.0, pairs=PAIRS, seed=0):
    folder = write(tmp_path / name, Run(HYLA(n_ctx=18), SRaven(n_features=2), init_seed=seed))
    whole = {"class": "all", "other": "all", "metric": "told apart"}
    rows = [whole | {"value": 0.7}, whole | {"value": 0.5, "control": "untrained"}]
    for (a, b), (apart, both) in pairs.items():
        rows.append({"class": a, "other": b, "metric": "told apart", "value": apart - lower})
        rows.append({"class": a, "other": b, "metric": "both answers", "value": both - lower})
        rows.append({"class": a, "other": b, "metric": "recovered", "value": 0.1, "site": "blocks.0.hook_resid_post"})
        rows.append({"class": a, "other": b, "metric": "told apart", "value": 0.5, "control": "untrained"})
    common = {"label": "rule", "split": "ood", "role": "all", "site": "answers", "control": ""}
    save(folder, "told_apart", [common | row for row in rows])
    return folder


def cells(drawing):
    shown = marks(drawing, "HeatMap")
    return {(row.x, row.y): row.value for row in shown.itertuples()}


def test_triangles_are_the_tables_means_over_seeds(tmp_path):
    found = cells(analyze("classes_told_apart", [model(tmp_path, "a"), model(tmp_path, "b", 0.2, seed=1)]))
    assert found["add", "const"] == pytest.approx(0.8) and found["const", "add"] == pytest.approx(0.7)
    assert found["sub", "add"] == pytest.approx(0.4) and found["add", "sub"] == pytest.approx(0.85)
    assert np.isnan(found["add", "add"]) and len(found) == 9


def test_a_table_without_pairs_of_classes_is_told_what_to_type(tmp_path):
    with pytest.raises(ConfigError, match="--episodes 4096"):
        analyze("classes_told_apart", [model(tmp_path, "a", pairs={})])
