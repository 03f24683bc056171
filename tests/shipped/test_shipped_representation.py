"""Regression on a representation and pasted layers, as shipped: the numbers that the findings tell."""

import re
from pathlib import Path

import pytest

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


def shown(value, digits=3):
    return f"{value:.{digits}f}".replace("0.", ".", 1)


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


@pytest.mark.parametrize("words", CONTROLS)
def test_the_page_tells_the_scores_of_pasted_executors(words):
    page = (ROOT / "docs" / "findings" / "hyperteacher.md").read_text(encoding="utf-8")
    (row,) = re.findall(rf"^\| {re.escape(words)} \| ([^|]*) \| ([^|]*) \|$", page, flags=re.MULTILINE)
    for told, split in zip(row, ("test", "ood"), strict=True):
        assert told.split() == [shown(scores(folder, CONTROLS[words], split)) for folder in EXECUTORS]


def test_a_pasted_executor_beats_every_control_and_loses_more_on_held_out_combinations_than_below_its_own_encoder():
    lost = {
        control: [scores(f, control, "test") - scores(f, control, "ood") for f in EXECUTORS] for control in ("", "as trained")
    }
    assert [round(v, 3) for v in (min(lost["as trained"]), max(lost["as trained"]))] == [0.016, 0.028]
    assert [round(v, 3) for v in (min(lost[""]), max(lost[""]))] == [0.106, 0.163]
    for folder in EXECUTORS:
        for control in ("lower layers", "embedding alone", "all trained", "untrained"):
            assert all(scores(folder, "", split) > scores(folder, control, split) for split in ("test", "ood"))


def test_the_page_tells_what_the_upper_half_of_one_vanilla_transformer_is_worth():
    page = " ".join((ROOT / "docs" / "findings" / "hyperteacher.md").read_text(encoding="utf-8").split())
    folder = ZOO / "F-softmax-0"
    assert tables.why_not(folder, "pasting") == "" and set(tables.read(folder, "pasting")["boundary"]) == {1}
    pairs = [
        [shown(scores(folder, control, split)) for split in ("test", "ood")] for control in ("", "untrained", "all trained")
    ]
    own, random, fresh = (" and ".join(pair) for pair in pairs)
    assert (
        f"{own} (training and held-out combinations) against {random}, and fresh ones that are trained reach {fresh}" in page
    )


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
    assert told[5] == ("not asked" if words.startswith("x,") else spread([one[0] for one in mapped(words, "raw input")]))
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
