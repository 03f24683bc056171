"""Heads that are modules, as shipped: written down they are the teacher, trained they are what the findings say."""

from pathlib import Path

import pytest
import torch

import compolens
from compolens import tables
from compolens.cli.train import read_runs
from compolens.zoo.folders import read_run

ZOO = Path(__file__).parents[2] / "trained_models"
FOLDERS = sorted(p.parent for p in ZOO.glob("module_heads/*/config.json"))


def value(folder, metric, control=""):
    rows = tables.read(folder, "module_alignment")
    rows = rows[(rows["split"] == "test") & (rows["metric"] == metric) & (rows["control"] == control)]
    return float(rows["value"].iloc[0])


def test_what_is_shipped_are_the_runs_of_the_file_with_fresh_tables():
    runs = read_runs(str(ZOO / "module_heads.py"))
    assert {f.name for f in FOLDERS} == set(runs)
    for folder in FOLDERS:
        assert read_run(folder) == runs[folder.name]
        assert tables.why_not(folder, "generalization") == tables.why_not(folder, "module_alignment") == ""


@pytest.mark.parametrize("split", ["test", "ood"])
def test_constructed_heads_answer_as_the_teacher_does(split):
    for folder in FOLDERS[:3]:
        trained = compolens.load(folder)
        episodes = trained.task.sample(256, split, trained.task.rng(0, split))
        with torch.no_grad():
            apart = (trained.model(episodes.tokens) - episodes.targets)[:, list(trained.task.answers)]
        assert apart.abs().max() < 1e-5
        assert value(folder, "least alignment") == pytest.approx(1, abs=1e-4)


def test_trained_heads_learn_the_training_combinations_and_not_the_modules():
    scores, matches = {"test": [], "ood": []}, []
    for folder in FOLDERS[3:]:
        pooled = tables.pooled(folder)
        own = pooled[pooled["control"] == ""].set_index("split")["value"]
        for split, found in scores.items():
            found.append(round(float(own[split]), 2))
        matches.append(round(value(folder, "mean alignment"), 2))
        assert value(folder, "least alignment") < 0.25 and value(folder, "mean alignment", "untrained") < 0.2
    for control, told in (("", (0.14, 0.21)), ("random", (0.08, 0.13))):
        least = [value(folder, "least alignment", control) for folder in FOLDERS[3:]]
        assert (round(min(least), 2), round(max(least), 2)) == told
    assert sorted(scores["test"]) == [0.99, 1.0, 1.0]
    assert sorted(scores["ood"]) == [0.69, 0.72, 0.95]
    assert sorted(matches) == [0.74, 0.83, 0.95]
