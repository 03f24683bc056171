"""Maps that are shipped: unfinished ones stand on the page with their cells, finished ones with numbers and a verdict."""

import re
from pathlib import Path

import findings
import numpy as np
import pytest

from compolens.foundation import map_files
from compolens.maps.work import one_of
from compolens.measures.phases import crossing
from compolens.zoo.folders import read_run

ROOT = Path(__file__).parents[2]
MAPS = ROOT / "trained_models" / "maps"
TEXT = (ROOT / "docs" / "findings" / "what_predicts.md").read_text(encoding="utf-8")
PAGE = " ".join(TEXT.split())


def test_a_map_in_training_stands_with_its_cells():
    told = re.findall(r"`([\w-]+)` is in training, with (\d+) of its (\d+) cells", PAGE)
    for name, done, cells in told:
        table, described = map_files.read_table(MAPS / name), one_of(MAPS / f"{name}.py", "maps", name)
        assert len(table) == int(done) < int(cells) == len(described.cells)
        assert set(table["cell"]) <= {cell.name for cell in described.cells}
    assert told or "Of these maps `diversity` is trained; the others have not begun." in PAGE


# ---- task diversity --------------------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def diversity():
    return map_files.read_table(MAPS / "diversity").assign(ratio=lambda t: (1 - t["ood"]) / (1 - t["test"]))


def of(table, angle, d_x):
    return table[(table["half-angle"] == angle) & (table["d_x"] == d_x)]


def test_every_cell_is_trained_and_learned_its_tasks(diversity):
    described = one_of(MAPS / "diversity.py", "maps", "diversity")
    assert sorted(diversity["cell"]) == sorted(cell.name for cell in described.cells)
    assert f"{len(described.cells)} softmax transformers" in PAGE and (diversity["test"] >= described.learned).all()


def test_the_page_tells_scores_and_errors_at_every_angle(diversity):
    rows = findings.rows(TEXT, "half-angle, degrees")
    assert [float(angle) for angle, *_ in rows] == sorted(set(diversity["half-angle"]))
    for angle, *told in rows:
        expected = []
        for d_x in (4, 8):
            cells = of(diversity, float(angle), d_x)
            ratio = np.exp(np.log(cells["ratio"]).mean())
            expected += [f"{cells[split].mean():.4f}".removeprefix("0") for split in ("test", "ood")]
            expected.append(f"{ratio:.1f}" if ratio < 10 else f"{ratio:,.0f}")
        assert told == expected, angle


def test_the_verdict_on_task_diversity_follows_from_its_rule(diversity):
    found = [crossing(diversity[diversity["d_x"] == d_x], "half-angle", 0.9, 0.9) for d_x in (4, 8)]
    first, second = (f"{c.at:.1f} [{c.lo:.1f}, {c.hi:.1f}]" for c in found)
    assert f"crosses .9 at {first} degrees with 4 inputs and at {second} with 8" in PAGE
    assert max(c.hi for c in found) < 105 and "**The law fails, by the rule above.**" in PAGE
    (name,) = re.findall(r"`trained_models/maps/diversity/cells/([^`]+)`", PAGE)
    cell = diversity.set_index("cell").loc[name]
    run = read_run(MAPS / "diversity" / "cells" / name)
    assert run.task.prior.half_angle == 90 and f"and scores {cell['ood']:.3f} there".replace("0.", ".") in PAGE


def test_what_is_said_of_the_ratio_of_errors(diversity):
    ratio = np.log(diversity["ratio"]).groupby([diversity["d_x"], diversity["half-angle"]]).mean()
    ratio = np.exp(ratio.unstack("d_x"))
    assert (ratio.loc[90] > 2).all()
    assert ratio.loc[105, 4] > 1.5 > ratio.loc[120, 4] and ratio.loc[90, 8] > 1.5 > ratio.loc[105, 8]
    steps = -np.diff(ratio.loc[60:], axis=0)
    assert (steps > 0).all() and (np.diff(steps, axis=0) < 0).all()
