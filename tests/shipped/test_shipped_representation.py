"""Regression on a representation and pasted layers, as shipped: the numbers that the findings tell."""

import re
from pathlib import Path

import pytest
from findings import shown

from compolens import tables
from compolens.cli.train import read_runs
from compolens.foundation import files
from compolens.references import PosteriorMean
from compolens.zoo.folders import read_run

ROOT = Path(__file__).parents[2]
ZOO = ROOT / "trained_models"
FOLDERS = sorted(p.parent for p in ZOO.glob("representation/*/config.json"))
EXECUTORS = [ZOO / f"F-hypernetwork-{s}" for s in range(3)]
CONTROLS = {
    "the model as trained": "as trained",
    "**new encoder, the model's executor**": "",
    "new encoder above the model's frozen blocks, new executor": "lower layers",
    "new encoder, new executor": "embedding alone",
    "new encoder, the untrained control's executor, trained": "all trained",
    "new encoder, the untrained control's executor, frozen": "untrained",
}
VANILLA = [ZOO / f"F-softmax-{seed}" for seed in range(3)]
HALVES = {
    "the vanilla transformer as trained": "as trained",
    "new block, the model's upper two blocks": "",
    "new block, the untrained control's upper two blocks, frozen": "untrained",
    "new block, the untrained control's upper two blocks, trained": "all trained",
}


def scores(folder, control, split, metric="score", embedding=None):
    rows = tables.read(folder, "pasting")
    rows = rows[(rows["control"] == control) & (rows["split"] == split) & (rows["metric"] == metric)]
    rows = rows if embedding is None else rows[rows["embedding"] == embedding]
    return float(rows["value"].iloc[0])


def test_what_is_shipped_are_the_runs_of_the_file_with_fresh_tables():
    runs = read_runs(str(ZOO / "representation.py"))
    assert {f.name for f in FOLDERS} == set(runs)
    for folder in FOLDERS:
        assert read_run(folder) == runs[folder.name]
        assert tables.why_not(folder, "representation_map") == tables.why_not(folder, "pasting") == ""
    assert all(tables.why_not(folder, "pasting") == "" for folder in EXECUTORS)


PASTED_AT_F = [(EXECUTORS, CONTROLS, words) for words in CONTROLS] + [(VANILLA, HALVES, words) for words in HALVES]


@pytest.mark.parametrize(
    ("folders", "controls", "words"), PASTED_AT_F, ids=lambda value: value if isinstance(value, str) else ""
)
def test_the_page_tells_the_scores_of_pasted_executors_and_upper_halves(folders, controls, words):
    page = (ROOT / "docs" / "findings" / "hyperteacher.md").read_text(encoding="utf-8")
    (row,) = re.findall(rf"^\| {re.escape(words)} \| ([^|]*) \| ([^|]*) \|$", page, flags=re.MULTILINE)
    for told, split in zip(row, ("test", "ood"), strict=True):
        assert told.split() == [shown(scores(folder, controls[words], split)) for folder in folders]


def test_a_pasted_executor_beats_every_control_and_loses_more_on_held_out_combinations_than_below_its_own_encoder():
    lost = {
        control: [scores(f, control, "test") - scores(f, control, "ood") for f in EXECUTORS] for control in ("", "as trained")
    }
    assert [round(v, 3) for v in (min(lost["as trained"]), max(lost["as trained"]))] == [0.016, 0.028]
    assert [round(v, 3) for v in (min(lost[""]), max(lost[""]))] == [0.106, 0.163]
    for folder in EXECUTORS:
        for control in ("lower layers", "embedding alone", "all trained", "untrained"):
            assert all(scores(folder, "", split) > scores(folder, control, split) for split in ("test", "ood"))


def test_upper_halves_of_vanilla_transformers_are_worth_no_more_than_untrained_ones_and_trained_fresh_ones_are():
    assert all(tables.why_not(f, "pasting") == "" and set(tables.read(f, "pasting")["boundary"]) == {1} for f in VANILLA)
    for split in ("test", "ood"):
        own, random, fresh = ([scores(f, c, split) for f in VANILLA] for c in ("", "untrained", "all trained"))
        apart = [a - b for a, b in zip(own, random, strict=True)]
        assert min(apart) < 0 < max(apart) and round(max(map(abs, apart)), 3) == 0.021
        assert all(c > max(a, b) for a, b, c in zip(own, random, fresh, strict=True))


# ---- regression ------------------------------------------------------------------------------------------------------
PAGE = ROOT / "docs" / "findings" / "which_learner.md"
READ = {
    "x, copied to its answer's token": ("x", "y token"),
    "Φ(x) beyond x, at x tokens": ("Phi beyond x", "x token"),
    "Φ(x) beyond x, at y tokens": ("Phi beyond x", "y token"),
    "the ridge prediction, at x tokens": ("prediction", "x token"),
}
PASTED = {
    "**upper layers, one block below**": ("", "1 block"),
    "upper layers, a linear map below": ("", "linear"),
    "the same, x copied to its answer's token": ("", "linear, x copied"),
    "untrained upper layers, one block below": ("untrained", "1 block"),
    "lower layers, one block below": ("lower layers", "1 block"),
    "one block alone": ("embedding alone", "1 block"),
    "all trained from fresh weights": ("all trained", "1 block"),
}


def cells(words):
    (row,) = re.findall(rf"^\| {re.escape(words)} \| (.*) \|$", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return row.split(" | ")


def mapped(words, control, split="test"):
    """(models, layers) R², layers in order."""
    target, role = READ[words]
    found = []
    for folder in FOLDERS:
        rows = tables.read(folder, "representation_map")
        rows = rows[(rows["target"] == target) & (rows["role"] == role) & (rows["split"] == split)]
        found.append(rows[rows["control"] == control].sort_values("layer")["value"].tolist())
    return found


def spread(values):
    lo, hi = (shown(v, 2).replace("-.00", ".00") for v in (min(values), max(values)))
    return lo if lo == hi else f"{lo} to {hi}"


@pytest.mark.parametrize("words", READ)
def test_the_page_tells_what_is_read_at_which_layer(words):
    told, own = cells(words), mapped(words, "")
    assert told[:4] == [spread([one[layer] for one in own]) for layer in (1, 2, 3, 4)]
    assert told[4] == spread([max(one) for one in mapped(words, "untrained")])
    assert told[5] == spread([one[0] for one in mapped(words, "raw input")])
    assert max(max(one) for one in mapped(words, "shuffled")) < 0.005


def test_the_prediction_is_read_on_wider_inputs_too_and_models_come_near_the_posterior_mean():
    last = [one[4] for one in mapped("the ridge prediction, at x tokens", "", "ood")]
    assert spread(last) == ".84 to .87"
    found = [files.read_json(folder / "scores.json")["test"]["score"] for folder in FOLDERS]
    assert [shown(v, 2) for v in found] == [".70", ".71", ".70"]
    task = read_run(FOLDERS[0]).task
    episodes = task.sample(8192, "test", task.rng(0, "test"))
    assert shown(task.score(PosteriorMean().predict(task, episodes), episodes.targets), 2) == ".73"


@pytest.mark.parametrize("words", PASTED)
def test_the_page_tells_the_gaps_of_pasted_layers(words):
    control, embedding = PASTED[words]
    for told, metric in zip(cells(words), ("paste gap", "score"), strict=True):
        assert told.split() == [shown(scores(f, control, "test", metric, embedding), 2) for f in FOLDERS]


def test_pasted_layers_beat_frozen_controls_in_every_seed_and_fresh_layers_in_two_of_three():
    def gap(folder, control):
        return scores(folder, control, "test", "paste gap", "1 block")

    for folder in FOLDERS:
        frozen = [gap(folder, control) for control in ("untrained", "lower layers", "embedding alone")]
        assert gap(folder, "") < min(frozen) and min(frozen) > 0.92
    assert [gap(folder, "") < gap(folder, "all trained") for folder in FOLDERS] == [True, True, False]
    assert [gap(folder, "") < 0.5 for folder in FOLDERS] == [True, True, False]


def test_layers_are_pasted_above_the_first_at_the_budget_that_the_page_names():
    for folder in FOLDERS:
        assert set(tables.read(folder, "pasting")["boundary"]) == {1}
        assert tables.provenance_of(folder, "pasting")["arguments"]["updates"] == 400
        assert shown(scores(folder, "posterior mean", "test"), 2) == ".75"
