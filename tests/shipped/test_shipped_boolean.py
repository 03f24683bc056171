"""Boolean functions, as shipped: which classes are recombined, and which are remembered."""

from pathlib import Path

import pytest

from compolens import tables
from compolens.cli.train import read_runs
from compolens.foundation import files
from compolens.zoo.folders import read_run

ZOO = Path(__file__).parents[2] / "trained_models"
FOLDERS = sorted(p.parent for p in ZOO.glob("boolean/*/config.json"))


def test_what_is_shipped_are_the_runs_of_the_file_with_fresh_tables():
    runs = read_runs(str(ZOO / "boolean.py"))
    assert {f.name for f in FOLDERS} == set(runs)
    for folder in FOLDERS:
        assert read_run(folder) == runs[folder.name] and tables.why_not(folder, "head_scores") == ""


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda f: f.name)
def test_dnf_is_recombined_parities_are_remembered_and_conjunctions_lie_between(folder):
    scores = files.read_json(folder / "scores.json")
    test, ood = (scores[split]["score"] for split in ("test", "ood"))
    low, high = {"dnf": (-0.02, 0.03), "conjunction": (0.1, 0.16), "parity": (0.4, 0.5), "parities": (0.1, 0.2)}[
        folder.name.split("-")[0]
    ]
    assert low <= test - ood <= high and (test > 0.9) == (not folder.name.startswith("parities"))
