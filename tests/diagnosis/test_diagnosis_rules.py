"""The rules of the diagnosis on tables whose truth is known."""

import json

import numpy as np
import pandas as pd
import pytest

from compolens import tables
from compolens.diagnosis import groups, sentences
from compolens.diagnosis.label import share_of_what_can_be_had
from compolens.foundation import versions
from compolens.foundation.builtin import built_in
from compolens.training import Run

COMPOSITIONS = ("0+3", "1+4", "2+5")


def make_model(root, name, architecture, task, *, test, ood, train=None, seed=0, code=None, floor=0.5, half=0.0):
    """A folder with a config and tables as the probes write them, with scores of our choice."""
    from compolens.foundation.configs import describe

    folder = root / name
    (folder / "tables").mkdir(parents=True)
    run = Run(architecture, task, steps=2, init_seed=seed)
    (folder / "config.json").write_text(json.dumps({"format": 1, "run": describe(run)}))
    (folder / "weights.safetensors").write_bytes(b"weights")
    rows = []
    for split, value in (*([] if train is None else [("train", train)]), ("test", test), ("ood", ood)):
        for control, reference, score in (
            ("", "model", value), ("reference", "in-context ridge", floor), ("reference", "true code", 1.0),
        ):  # fmt: skip
            for i, composition in enumerate(("all", *COMPOSITIONS)):
                value_here = score + 0.002 * (i - 2) * (i > 0)
                rows.append(
                    {
                        "metric": "score",
                        "value": value_here,
                        "lo": score - half,
                        "hi": score + half,
                        "split": split,
                        "site": "output",
                        "role": "answers",
                        "control": control,
                        "reference": reference,
                        "composition": composition,
                        "weight": 1.0,
                        "n": 10,
                        "step": 2,
                    }
                )
    save(folder, "generalization", rows)
    if code:
        save(folder, "latent_code", [code_row(*key, value) for key, value in code.items()])
    return folder


def code_row(layer, role, fit, split, control, value):
    return {"metric": "r2", "value": value, "lo": value, "hi": value, "split": split, "site": "s", "role": role,
            "layer": layer, "control": control, "n": 10, "fit": fit, "dimension": "mean", "step": 2}  # fmt: skip


def save(folder, name, rows):
    provenance = {
        "weights": tables.file_digest(folder / "weights.safetensors"),
        **versions.describe(built_in("probes")[name]),
        "command": "",
    }
    table = pd.DataFrame(rows)
    if not table["control"].astype(bool).any():
        table.loc[len(table)] = table.loc[0].to_dict() | {"control": "shuffled"}
    tables.save(folder, name, table, provenance)


def code_table(test, ood, within, raw):
    return {
        (3, "readout", "fitted on train", "test", ""): test,
        (3, "readout", "fitted on train", "ood", ""): ood,
        (3, "readout", "within", "ood", ""): within,
        (-1, "context", "fitted on train", "ood", "raw input"): raw,
    }


def words(folders):
    return {who: " | ".join(c.text for c in clauses) for who, clauses in sentences.sentences(folders)}


@pytest.fixture
def architectures():
    from compolens import HypernetworkTransformer, SoftmaxTransformer

    return SoftmaxTransformer(), HypernetworkTransformer()


@pytest.mark.parametrize(
    ("test", "ood", "expected"),
    [
        (0.99, 0.98, ("answers the compositions it was trained on", "held-out ones equally well (ood 0.980, a gap of 0.010)")),
        (
            0.99,
            0.93,
            ("held-out ones clearly worse (ood 0.930, a gap of 0.060)", "well above in-context ridge", "recombines in part"),
        ),
        (0.99, 0.955, ("held-out ones somewhat worse",)),
        (0.99, 0.52, ("clearly worse", "no better on held-out ones than in-context ridge", "nothing is recombined")),
        (0.70, 0.60, ("has not learned its training compositions (test 0.700)",)),
        (0.91, 0.99, ("held-out ones better (ood 0.990, a gap of -0.080)",)),
        (0.70, 0.95, ("answers held-out ones at 0.950, a gap of -0.250",)),
    ],
)
def test_scores_choose_the_words(tmp_path, tiny_task, architectures, test, ood, expected):
    folder = make_model(tmp_path, "m", architectures[0], tiny_task, test=test, ood=ood)
    (text,) = words([folder]).values()
    for phrase in expected:
        assert phrase in text


@pytest.mark.parametrize(
    ("half", "expected"),
    [
        (0.002, "held-out ones somewhat worse (ood 0.955, a gap of 0.035)"),
        (0.04, "held-out ones at 0.955, a gap of 0.035 [-0.022, 0.092]: between equally well and clearly worse"),
    ],
)
def test_a_gap_has_a_word_where_its_interval_leaves_one(tmp_path, tiny_task, architectures, half, expected):
    """Two scores known to ± h have a difference known to ± √2 h."""
    folder = make_model(tmp_path, "m", architectures[0], tiny_task, test=0.99, ood=0.955, half=half)
    (text,) = words([folder]).values()
    assert expected in text


def test_training_episodes_known_by_heart_are_told(tmp_path, tiny_task, architectures):
    """Stored episodes: longer training is no remedy where they are answered, and others of their compositions are not."""
    told = {}
    for train in (0.99, 0.75):
        folder = make_model(tmp_path, f"m{train}", architectures[0], tiny_task, test=0.70, ood=0.60, train=train)
        (told[train],) = words([folder]).values()
    assert "compositions (test 0.700; 0.990 on the training episodes)" in told[0.99]
    assert "compositions (test 0.700)" in told[0.75]


@pytest.mark.parametrize(
    ("code", "phrase"),
    [
        (code_table(0.95, 0.94, 0.95, 0.5), "in a form that held-out compositions share"),
        (code_table(0.95, 0.60, 0.90, 0.5), "not shared with training ones"),
        (code_table(0.95, 0.60, 0.65, 0.5), "loses part of the code"),
        (code_table(0.95, 0.60, 0.90, 0.9), "decodability alone shows no inference"),
        (code_table(0.20, 0.00, 0.10, 0.0), "finds little of the task code"),
    ],
)
def test_the_three_fits_choose_between_shared_unshared_and_lost(tmp_path, tiny_task, architectures, code, phrase):
    folder = make_model(tmp_path, "m", architectures[0], tiny_task, test=0.99, ood=0.8, code=code)
    (text,) = words([folder]).values()
    assert phrase in text


def test_models_that_differ_in_seeds_alone_form_a_group_and_others_do_not(tmp_path, tiny_task, architectures):
    one = [make_model(tmp_path, f"a{s}", architectures[0], tiny_task, test=0.9, ood=0.8, seed=s) for s in range(3)]
    other = make_model(tmp_path, "b", architectures[1], tiny_task, test=0.9, ood=0.8)
    assert [g.names for g in groups.group([*one, other])] == [("a0", "a1", "a2"), ("b",)]


@pytest.mark.parametrize(("seeds", "claims"), [(4, False), (5, True)])
def test_a_difference_is_claimed_from_five_paired_seeds_on(tmp_path, architectures, seeds, claims):
    from compolens import Hyperteacher

    folders = []
    for s in range(seeds):
        task = Hyperteacher(d_x=4, d_y=2, d_hidden=6, n_modules=6, n_context=6, n_queries=3, teacher_seed=s)
        for architecture, name, ood in zip(architectures, "ab", (0.8, 0.95), strict=True):
            folders.append(make_model(tmp_path, f"{name}{s}", architecture, task, test=0.99, ood=ood, seed=s))
    text = words(folders)["Compared"]
    assert ("95 % interval" in text) == claims
    assert ("no difference is claimed" in text) != claims
    assert "0.150 below" in text


def test_groups_of_one_architecture_are_told_apart_by_what_differs(tmp_path, tiny_task):
    from compolens import BottleneckMLP

    folders = [
        make_model(tmp_path, f"b{width}", BottleneckMLP(d_hidden=width), tiny_task, test=0.9, ood=0.8) for width in (64, 256)
    ]
    assert [g.label for g in groups.group(folders)] == ["BottleneckMLP (d_hidden 64)", "BottleneckMLP (d_hidden 256)"]
    assert groups.group(folders[:1])[0].label == "BottleneckMLP"


class Alone:
    """A model with scores on a few held-out compositions."""

    def __init__(self, values, task=""):
        self.values, self.task = values, task

    def per_composition(self):
        names, values = np.array([str(i) for i in range(len(self.values))]), np.array(self.values)
        return {"composition": names, "value": values, "weight": np.ones(len(values))}


@pytest.mark.parametrize("compositions", [2, 3, 5, 10])
def test_one_models_share_is_above_the_truth_no_more_often_than_it_says(compositions):
    rng, frame = np.random.default_rng(0), {"ceiling": 1.0, "floor": 0.0}
    lower = [share_of_what_can_be_had([Alone(rng.normal(0.9, 0.03, compositions))], frame).lo for _ in range(2000)]
    assert 0.015 < np.mean(np.array(lower) > 0.9) < 0.035, "2.5 % is nominal"


def test_models_of_one_task_share_their_compositions():
    """A composition that is hard is hard for all of them: more seeds say no more of how many such compositions there are."""
    rng, frame, inside = np.random.default_rng(0), {"ceiling": 1.0, "floor": 0.0}, {"one": [], "": []}
    for _ in range(200):
        hard = rng.normal(0.8, 0.1, 10)
        seeds = [hard + rng.normal(0, 0.02, 10) for _ in range(5)]
        for task, covers in inside.items():
            found = share_of_what_can_be_had([Alone(values, task) for values in seeds], frame, draws=400)
            covers.append(found.lo <= 0.8 <= found.hi)
    assert 0.86 <= np.mean(inside["one"]) <= 0.98 and np.mean(inside[""]) < 0.75


def test_of_one_composition_nothing_is_claimed_in_however_many_models():
    frame = {"ceiling": 1.0, "floor": 0.0}
    assert np.isnan(share_of_what_can_be_had([Alone([0.93], "one"), Alone([0.95], "one")], frame).lo)


def test_each_model_is_in_one_pair_of_a_difference(tmp_path, tiny_task, architectures):
    """Five and three models of one task: three pairs, with equal seeds where there are any."""
    left, right = (
        [make_model(tmp_path, f"{who}{s}", architecture, tiny_task, test=0.99, ood=0.8, seed=s) for s in seeds]
        for who, architecture, seeds in zip("ab", architectures, (range(5), (4, 7, 1)), strict=True)
    )
    pairs = [(one.name, other.name) for one, other in sentences._paired(left, right)]
    assert pairs == [("a0", "b7"), ("a1", "b1"), ("a4", "b4")]
    assert "with 3 paired seeds no difference is claimed" in words([*left, *right])["Compared"]


def test_nothing_is_claimed_of_one_composition_and_a_perfect_model_is_certain():
    frame = {"ceiling": 1.0, "floor": 0.0}
    assert np.isnan(share_of_what_can_be_had([Alone([0.93])], frame).lo)
    assert share_of_what_can_be_had([Alone([1.0] * 8)], frame) == (1.0, 1.0, 1.0)
