"""Labels in context, as shipped: the transition, and what the findings say of it in every seed."""

from pathlib import Path

import pytest

import compolens
from compolens import tables
from compolens.cli.train import read_runs
from compolens.foundation import files
from compolens.zoo.folders import kept_steps, read_run

ZOO = Path(__file__).parents[2] / "trained_models"
FOLDERS = sorted(p.parent for p in ZOO.glob("bursty/*/config.json"))
STEPS = [*range(0, 3000, 250), 3000]


def value(folder, metric, evaluation, step, control="", layer=-1):
    rows = tables.read(folder, "in_context_or_in_weights")
    rows = rows[(rows["metric"] == metric) & (rows["evaluation"] == evaluation) & (rows["control"] == control)]
    (found,) = rows[(rows["step"] == step) & (rows["layer"] == layer)]["value"]
    return found


def test_what_is_shipped_are_the_runs_of_the_file_with_fresh_tables_of_every_step():
    runs = read_runs(str(ZOO / "bursty.py"))
    assert {f.name for f in FOLDERS} == set(runs)
    for folder in FOLDERS:
        assert read_run(folder) == runs[folder.name] and tables.why_not(folder, "in_context_or_in_weights") == ""
        steps = tables.read(folder, "in_context_or_in_weights")["step"].unique()
        assert sorted(steps) == STEPS
    assert kept_steps(FOLDERS[0]) == STEPS and kept_steps(FOLDERS[1]) == [3000]  # one seed's weights along the way are shipped


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda f: f.name)
def test_labels_are_read_from_the_context_after_a_plateau_and_never_from_the_weights(folder):
    for evaluation in ("novel classes", "labels shifted"):
        assert value(folder, "accuracy", evaluation, 250) < 0.35 and value(folder, "accuracy", evaluation, 3000) > 0.9
    assert value(folder, "label of the context", "novel classes", 250) > 0.9
    assert max(value(folder, "accuracy", "class not shown", step) for step in STEPS) < 0.2
    assert value(folder, "trained label", "labels shifted", 3000) < 0.05


def test_one_seed_waits_longer_and_is_still_on_its_way_when_training_ends():
    ends = {f.name: value(f, "accuracy", "labels shifted", 3000) for f in FOLDERS}
    assert {name for name, end in ends.items() if end <= 0.95} == {"softmax-2"}
    assert value(FOLDERS[2], "accuracy", "novel classes", 1750) < 0.35


def test_seeds_end_in_two_ways():
    ends = [round(value(f, "question to right label", "novel classes", 3000, "", 1), 2) for f in FOLDERS]
    assert pytest.approx(ends, abs=0.02) == [0.5, 0.98, 0.66, 0.99, 0.5]


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda f: f.name)
def test_the_item_before_a_label_matters_more_than_another(folder):
    cut, other = (
        value(folder, "accuracy without label to item", "novel classes", 3000, control, 0) for control in ("", "another item")
    )
    assert cut < other - 0.1


def test_a_shipped_model_scores_what_its_card_says():
    trained, scores = compolens.load(FOLDERS[0]), files.read_json(FOLDERS[0] / "scores.json")
    for split in ("test", "ood"):
        fresh = compolens.evaluate(trained.model, trained.task, split, 512, "check").score
        assert fresh == pytest.approx(scores[split]["score"], abs=0.03)
