"""Labels in context, as shipped: the transition, and what the findings say of it in every seed."""

from pathlib import Path

import findings
import pytest

import compolens
from compolens import tables
from compolens.cli.train import read_runs
from compolens.foundation import files, map_files
from compolens.maps.work import one_of
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


ALONG = {
    "novel classes (IC)": ("accuracy", "novel classes", -1),
    "labels shifted, held out (IC2)": ("accuracy", "labels shifted", -1),
    "classes not in the context (IW; chance .03)": ("accuracy", "class not shown", -1),
    "the answer is some label of the context (CLA)": ("label of the context", "novel classes", -1),
    "label to its item, layer 0 (ILA1; even .26)": ("label to its item", "novel classes", 0),
    "question to right label, layer 1 (TILA2; even .11)": ("question to right label", "novel classes", 1),
    "question to all labels, layer 1 (TLA2; even .44)": ("question to labels", "novel classes", 1),
}
"""Rows of the page -> what they are."""


@pytest.mark.parametrize("row", ALONG)
def test_the_page_tells_accuracies_and_progress_measures_along_training(row):
    metric, evaluation, layer = ALONG[row]
    found = [[value(f, metric, evaluation, step, "", layer) for f in FOLDERS] for step in (250, 3000)]
    means = [told([sum(v) / len(v), min(v), max(v)]).split() for v in found]
    assert findings.cells(PAGE, "along training, mean (least to most over seeds)", row)[:2] == [
        f"{mean} ({least} to {most})" for mean, least, most in means
    ]
    if "even" in row:
        even = value(FOLDERS[0], metric, evaluation, 3000, "even", layer)
        assert f"even {told([even])}" in row


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


# ---- labels and items ------------------------------------------------------------------------------------------------
MAP = ZOO / "maps" / "labels_and_items"
PAGE = (ZOO.parent / "docs" / "findings" / "in_context_or_in_weights.md").read_text(encoding="utf-8")
SETTINGS = [(2, 2), (2, 4), (2, 8), (4, 2), (4, 4), (4, 8), (4, 32)]
ASKED = {
    "novel": "accuracy · test · output · readout · novel classes · -1", "shifted": "accuracy · ood · output · readout",
    "given": "accuracy · test · output · readout · a label of the context · novel classes · -1",
    "weights": "accuracy · test · output · readout · class not shown · -1",
    "trained": "trained label · ood · output · readout",
}  # fmt: skip


def of(items, labels, name):
    """A value per seed."""
    table = map_files.read_table(MAP).sort_values("seed")
    return table[(table["items"] == items) & (table["labels"] == labels)][ASKED[name]].tolist()


def told(values):
    return " ".join("1.00" if round(v, 2) == 1 else f"{v:.2f}".replace("0.", ".", 1) for v in values)


def reached(items, labels, level=0.9):
    """Of every seed, the first evaluation that scores so much on training compositions; none: a dash."""
    along = map_files.read_table(MAP, "history.csv")
    found = []
    for seed in range(3):
        own = along[along["cell"] == f"labels={labels}_items={items}_seed={seed}"]
        above = own[own["test"] >= level]["step"]
        found.append(f"{int(above.min()):,}" if len(above) else "-")
    return " ".join(found)


def test_the_map_has_the_cells_of_its_file():
    described = one_of(MAP.parent / "labels_and_items.py", "maps", "labels_and_items")
    assert set(map_files.read_table(MAP)["cell"]) == {cell.name for cell in described.cells}


@pytest.mark.parametrize(("items", "labels"), SETTINGS)
def test_the_page_tells_every_seed_by_items_and_labels(items, labels):
    row = findings.cells(PAGE, "items, labels", f"{items}, {labels}")
    expected = [told(of(items, labels, "novel")), told(of(items, labels, "shifted"))]
    given = of(items, labels, "given")
    assert len(set(given)) == 1 and row == [*expected, told(given[:1]), reached(items, labels)]


def test_with_four_items_the_context_is_read_whether_or_not_labels_outnumber_them():
    for labels in (2, 4, 8):
        assert min(of(4, labels, "novel")) > 0.99 and min(of(4, labels, "shifted")) > 0.99
    assert min(of(4, 32, "novel")) > 0.9
    slowest = [max(int(step.replace(",", "")) for step in reached(4, labels).split()) for labels in (2, 4, 8, 32)]
    assert slowest == [750, 1000, 1750, 2750]


def test_with_two_items_it_is_not_read_with_two_labels_and_else_in_two_of_three_seeds():
    given = of(2, 2, "given")[0]
    assert all(abs(value - given) < 0.035 for value in of(2, 2, "novel"))
    for labels in (4, 8):
        assert [value > 0.9 for value in of(2, labels, "novel")] == [True, True, False]


def test_no_weights_tell_a_label_anywhere():
    for items, labels in SETTINGS:
        assert all(abs(value - 1 / labels) < 0.06 for value in of(items, labels, "weights"))


# ---- labels in the weights -------------------------------------------------------------------------------------------
REGIMES = ("weights", "both")
ROWS = {
    "class not shown: weights alone can tell (chance .03)": ("accuracy", "class not shown"),
    "novel classes: the context alone can tell": ("accuracy", "novel classes"),
    "labels shifted, held out": ("accuracy", "labels shifted"),
    "labels shifted: the label of training": ("trained label", "labels shifted"),
}


def of_regime(name, metric, evaluation):
    return [value(ZOO / "in_weights" / f"{name}-{s}", metric, evaluation, 3000) for s in range(5)]


def test_the_models_of_both_regimes_are_those_of_their_file():
    runs = read_runs(str(ZOO / "in_weights.py"))
    assert {p.parent.name for p in ZOO.glob("in_weights/*/config.json")} == set(runs)
    for name, run in runs.items():
        folder = ZOO / "in_weights" / name
        assert read_run(folder) == run and tables.why_not(folder, "in_context_or_in_weights") == ""


@pytest.mark.parametrize("row", ROWS)
def test_the_page_tells_every_seed_of_both_regimes(row):
    assert findings.cells(PAGE, "asked", row) == [told(of_regime(name, *ROWS[row])) for name in REGIMES]


def test_weights_alone_answer_with_the_label_of_training_and_novel_classes_at_chance():
    assert min(of_regime("weights", "trained label", "labels shifted")) > 0.99
    assert max(of_regime("weights", "accuracy", "novel classes")) < 0.1


def test_where_both_are_needed_the_seeds_that_read_the_context_let_it_overrule_the_weights():
    reads = [value > 0.9 for value in of_regime("both", "accuracy", "novel classes")]
    assert reads == [True, False, True, False, True]
    shifted, trained = (of_regime("both", metric, "labels shifted") for metric in ("accuracy", "trained label"))
    assert all(
        (a > 0.9 and b < 0.1) if one else (a < 0.1 and b > 0.7) for one, a, b in zip(reads, shifted, trained, strict=True)
    )
    known = of_regime("both", "accuracy", "known classes")
    assert min(known) > 0.97 and min(of_regime("both", "accuracy", "class not shown")) > 0.7
    trains = [files.read_json(ZOO / "in_weights" / f"both-{s}" / "scores.json")["train"]["score"] for s in range(5)]
    assert min(t for t, one in zip(trains, reads, strict=True) if one) > max(
        t for t, one in zip(trains, reads, strict=True) if not one
    )
