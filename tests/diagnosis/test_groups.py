"""Groups in figures: what a colour stands for, attention in words, means over seeds with the intervals that these allow."""

import json

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from compolens.diagnosis.groups import Group, attention_among, group, over_seeds, setting_of, telling
from compolens.figures import ARCHITECTURE_COLORS, color_of
from compolens.measures.intervals import mean_interval


def described(folder, architecture, optimizer=None):
    """A new model's folder with nothing but its config."""
    folder.mkdir()
    run = {"class": "Run", "architecture": architecture, "task": {"class": "FuzzyLogic"}}
    run["optimizer"] = {"class": "AdamW"} | (optimizer or {})
    (folder / "config.json").write_text(json.dumps({"format": 1, "run": {**run, "steps": 1, "init_seed": 0, "data_seed": 0}}))
    return folder


@pytest.fixture
def one(tmp_path):
    """A group of one folder: call it with an architecture, its label and its settings."""

    def call(architecture, label="", **settings):
        number = len(list(tmp_path.iterdir()))
        folder = described(tmp_path / f"{architecture}-{number}", {"class": architecture, **settings})
        return Group(architecture, "a setting", [folder], label or architecture)

    return call


@pytest.fixture
def labels(tmp_path):
    """The labels of groups of one folder each, by their architecture's settings and learning rate."""

    def call(*models):
        folders = [
            described(tmp_path / str(number), {"class": "SoftmaxTransformer", **settings}, {"lr": lr})
            for number, (settings, lr) in enumerate(models)
        ]
        return [one.label for one in group(folders)]

    return call


def test_what_configs_of_earlier_versions_lack_tells_groups_apart_only_where_nothing_else_does(labels):
    older, newer = {"n_layers": 3}, {"n_layers": 3, "attention_dropout": 0.0}
    assert labels((older, 0.001), (newer, 0.03)) == ["SoftmaxTransformer (lr 0.001)", "SoftmaxTransformer (lr 0.03)"]


def test_what_models_are_is_told_before_how_they_were_trained(labels):
    assert labels(({"n_layers": 3}, 0.001), ({"n_layers": 2}, 0.03)) == [
        "SoftmaxTransformer (n_layers 3)", "SoftmaxTransformer (n_layers 2)"
    ]  # fmt: skip


def test_a_setting_that_one_config_lacks_is_told_where_nothing_else_tells_groups_apart(labels):
    first, second = labels(({}, 0.001), ({"attention_dropout": 0.1}, 0.001))
    assert first == "SoftmaxTransformer" and second == "SoftmaxTransformer (attention_dropout 0.1)"


def fixed(xi):
    return {"class": "FixedThreshold", "xi": xi}


CALIBRATED = {"class": "CalibratedThreshold", "sparsity": 0.9}


def test_a_threshold_has_one_colour_in_whatever_company(one):
    none, some, most = (
        one("SparseCoding", label, threshold=t) for label, t in (("a", fixed(0.0)), ("b", fixed(0.01)), ("c", CALIBRATED))
    )
    colors = {color_of(telling(g, [none, some, most])) for g in (none, some, most)}
    assert len(colors) == 3
    assert telling(most, [none, some, most]) == "SparseCoding, 90 % silenced"
    assert [color_of(telling(g, [g])) for g in (none, some, most)] == [
        color_of(telling(g, [none, some, most])) for g in (none, some, most)
    ]
    assert color_of(telling(none, [none])) == ARCHITECTURE_COLORS["LinearAttention"], "attention without a threshold is linear"


def test_bottlenecks_of_two_widths_have_two_colours_and_groups_that_share_a_variant_are_told_by_label(one):
    narrow, wide = (one("BottleneckMLP", f"({n})", d_hidden=n) for n in (64, 256))
    assert (
        color_of(telling(narrow, [narrow, wide])) != color_of(telling(wide, [narrow, wide])) == color_of(telling(wide, [wide]))
    )
    dry, wet = one("HYLA", "HYLA (dropout 0)"), one("HYLA", "HYLA (dropout 1)")
    assert (telling(dry, [dry]), telling(dry, [dry, wet])) == ("HYLA", "HYLA (dropout 0)")


def test_attention_is_told_by_what_it_does_then_by_its_transfer_then_by_its_label(one):
    plain, moved = (
        one("SoftmaxTransformer"),
        one("SoftmaxTransformer", "x", transfer={"class": "OutputTransfer"}),
    )
    groups = [
        plain,
        moved,
        some := one("SparseCoding", threshold=fixed(0.01)),
        most := one("SparseCoding", threshold=CALIBRATED),
    ]
    names = [attention_among(g, groups) for g in groups]
    assert names == ["softmax", "softmax, output transfer", "soft threshold, ξ = 0.01", "soft threshold, 90 % silenced"]
    assert attention_among(moved, [moved, some, most]) == "softmax"
    twice = [one("HYLA", "HYLA (a)"), one("HYLA", "HYLA (b)")]
    assert [attention_among(g, twice) for g in twice] == ["HYLA (a)", "HYLA (b)"]


@pytest.mark.parametrize("seeds", [3, 4, 5, 8])
def test_means_over_seeds_have_students_interval_from_five_seeds_on(seeds):
    values = np.random.default_rng(seeds).normal(size=(2, seeds))
    rows = pd.DataFrame(
        [(layer, f"m{i}", values[layer, i]) for layer in (1, 0) for i in range(seeds)], columns=["layer", "model", "value"]
    )
    found = over_seeds(rows, "layer")
    assert found["layer"].tolist() == [1, 0]
    np.testing.assert_allclose(found["value"], values[::-1].mean(1))
    if seeds < 5:
        assert found[["lo", "hi"]].isna().all(axis=None)
    else:
        ends = stats.t.interval(0.95, seeds - 1, values[::-1].mean(1), stats.sem(values[::-1], axis=1))
        np.testing.assert_allclose(found[["lo", "hi"]].T, ends, atol=0.02 * values.std())


def test_an_interval_of_one_number_or_of_a_missing_one_is_not_known():
    assert np.isnan(mean_interval(np.array([1.0]))).all() and np.isnan(mean_interval(np.array([1.0, np.nan, 2.0]))).all()


OLDER = {
    "Hyperteacher 16→8 connected": {"task": "Hyperteacher", "task.d_x": 16, "task.d_y": 8, "task.support": "connected"},
    "Hyperteacher 16→8 listed": {"task": "Hyperteacher", "task.d_x": 16, "task.d_y": 8, "task.support": "[[0, 1]]"},
    "SRaven 3 features": {"task": "SRaven", "task.n_features": 3},
    "Relations 4×5": {"task": "Relations", "task.n_left": 4, "task.n_right": 5},
    "Relations 4×5, with positions": {"task": "Relations", "task.n_left": 4, "task.n_right": 5, "task.positions": True},
    "LinearRegression with 6 examples, gaussian inputs":
        {"task": "LinearRegression", "task.d_x": 3, "task.n_context": 6, "task.inputs": "GaussianInputs"},
    "FuzzyLogic 32 tokens, 70 % held out": {"task": "FuzzyLogic", "task.length": 32, "task.fraction_held_out": 0.7},
}  # fmt: skip


@pytest.mark.parametrize("words", OLDER)
def test_a_setting_of_the_first_version_has_the_same_words(words):
    assert setting_of(OLDER[words]) == words
    assert setting_of(OLDER[words] | {"task.setting": "its own"}) == "its own"


# ---- copies ----------------------------------------------------------------------------------------------------------
def test_a_copy_of_a_model_is_said_to_be_no_further_seed(tmp_path):
    first, copy, other, bare = (described(tmp_path / name, {"class": "SoftmaxTransformer"}) for name in "abcd")
    for folder, weights in ((first, b"one"), (copy, b"one"), (other, b"another")):
        (folder / "weights.safetensors").write_bytes(weights)
    with pytest.warns(UserWarning, match="is a copy of") as told:
        (found,) = group([first, copy, other, bare])
    assert [str(one.message) for one in told] == [  # equal seeds and other weights, or none to compare, are others
        f"{copy} is a copy of {first} and no further seed: leave it out, or no interval over seeds is right"
    ]
    assert found.folders == [first, copy, other, bare]
