"""Few episodes and few compositions: probes measure what there is, or say what is missing before they measure."""

import dataclasses
import itertools

import numpy as np
import pytest

from compolens import cli, load, load_recipe
from compolens.activations.streams import draw, record
from compolens.foundation.configs import ConfigError, DoesNotApply


@pytest.fixture(scope="module")
def alone(tiny_categorical_models):
    """A model of fuzzy logic of which one function is held out."""
    trained = load(tiny_categorical_models["fuzzy"])
    task = dataclasses.replace(trained.task, held_out=((0, 1),))
    assert len(task.compositions("ood")) == 1
    return dataclasses.replace(trained, task=task, run=dataclasses.replace(trained.run, task=task))


@pytest.fixture(scope="module")
def ladder(alone):
    """Its table `inference_or_execution`."""
    return load_recipe("probes", "inference_or_execution")(alone, episodes=16, fitted=64, searched=4, search_steps=2)[0]


def test_a_code_that_never_varies_has_no_r2_and_the_ladder_is_climbed(ladder):
    r2 = ladder[(ladder["metric"] == "r2") & (ladder["split"] == "ood")]
    assert len(r2) and r2["value"].isna().all() and r2["note"].str.startswith("not available: all of these episodes").all()
    rungs = ladder[(ladder["split"] == "ood") & (ladder["metric"] == "score") & (ladder["control"] == "")]
    assert {"own answer", "own code written", "true code written"} <= set(rungs["rung"]) and rungs["value"].notna().all()


def test_there_is_a_site_of_reading_also_where_writing_moves_answers_away(ladder):
    own = ladder[(ladder["rung"] == "true code written") & (ladder["control"] == "") & (ladder["chosen"] == 1)]
    assert len(own) and (own["effective"] == 1).all()


def test_edges_of_a_code_that_never_varies_have_no_sufficient_share(alone):
    table, _ = load_recipe("probes", "edges")(alone, episodes=8, points=2, exact=3, draws=1)
    share = table[(table["metric"] == "sufficient share") & (table["split"] == "ood") & table["value"].isna()]
    assert len(share) and share["note"].str.startswith("not available: no share of the edges").all()


def test_codes_that_never_vary_are_not_swapped(alone):
    with pytest.raises(ConfigError, match=r"have the same code.*hold out more compositions"):
        load_recipe("probes", "swap_code")(alone, episodes=8, search_steps=1, draws=2)


def test_one_training_composition_is_read_and_not_written(tiny_categorical_models):
    trained = load(tiny_categorical_models["fuzzy"])
    others = tuple(itertools.combinations(range(trained.task.n_known), 2))[1:]
    task = dataclasses.replace(trained.task, held_out=others, allow_unseen_terms=True)
    assert len(task.compositions("train")) == 1
    one = dataclasses.replace(trained, task=task, run=dataclasses.replace(trained.run, task=task))
    with pytest.raises(ConfigError, match=r"these 32 training episodes show a single one; draw more"):
        load_recipe("probes", "inference_or_execution")(one, episodes=8, fitted=32, searched=2, search_steps=1)


def test_task_vectors_ask_for_compositions_whose_mean_is_known(tiny_categorical_models):
    table, _ = load_recipe("probes", "task_vectors")(load(tiny_categorical_models["raven-softmax"]), episodes=8)
    own = table[(table["control"] == "") & (table["taken"] == "mean of the composition")]
    assert len(own) and set(own["split"]) == {"test"} and np.isfinite(own["value"]).all() and (own["n"] <= 8).all()


def test_the_least_number_of_episodes_is_enough_to_read_categories(tiny_categorical_models):
    table, _ = load_recipe("probes", "latent_code")(load(tiny_categorical_models["raven-softmax"]), episodes=8)
    assert table[table["metric"] == "r2"]["value"].notna().any()


@pytest.mark.parametrize(
    ("probe", "given", "told"),
    [
        ("inference_or_execution", {"fitted": 8}, "at least 16 training episodes"),
        ("inference_or_execution", {"searched": 0}, "at least 1 episode to search"),
        ("inference_or_execution", {"search_steps": 0}, "steps must be"),
        ("latent_code", {"l2": -1.0}, "a penalty is 0 or more, got --l2 -1"),
        ("swap_code", {"episodes": 3}, "episodes must be 4 or more, got 3"),
        ("edges", {"episodes": 3}, "episodes must be 4 or more, got 3"),
    ],
)
def test_counts_are_checked_before_anything_is_measured(tiny_models, monkeypatch, probe, given, told):
    recipe = load_recipe("probes", probe)
    monkeypatch.setitem(recipe.__globals__, "draw", lambda *_, **__: pytest.fail("it draws episodes"))
    with pytest.raises(ConfigError, match=told):
        recipe(load(tiny_models["softmax"]), **given)


def test_live_units_are_a_share_of_all_episodes(tiny_categorical_models):
    trained, hook = load(tiny_categorical_models["hyla"]), "blocks.1.attn.hook_post"
    table, _ = load_recipe("probes", "attention_code")(trained, episodes=258)
    told = table[(table["metric"] == "live units") & (table["site"] == hook) & (table["control"] == "")]
    told = told.drop_duplicates("split").set_index("split")
    for split in ("test", "ood"):
        seen = [one.sites[hook] != 0 for one in record(trained.model, draw(trained.task, split, 258, "0/score"), [hook])]
        share = sum(int(one.sum()) for one in seen) / sum(one.numel() for one in seen)
        assert told.loc[split, "value"] == pytest.approx(share, rel=1e-6)


def test_what_is_measured_with_the_same_arguments_is_not_measured_again_by_a_contest(tiny_models, tmp_path):
    from shutil import copytree

    folder = copytree(tiny_models["softmax"], tmp_path / "softmax")
    assert cli.main(["probe", "generalization", "predictors", str(folder), "--episodes", "32"]) == 0
    table = folder / "tables" / "predictors.csv"
    before = table.stat().st_mtime_ns
    cli.main(["contest", str(folder), "--episodes", "32"])
    assert table.stat().st_mtime_ns == before
    cli.main(["contest", str(folder), "--episodes", "40"])
    assert table.stat().st_mtime_ns != before


def test_circuits_of_factors_need_two_factors_in_training_and_held_out(tiny_models):
    trained = load(tiny_models["softmax"])
    task = dataclasses.replace(trained.task, support=((0, 1), (0, 2), (1, 3), (4, 5)), held_out=((2, 3), (0, 5)))
    some = dataclasses.replace(trained, task=task, run=dataclasses.replace(trained.run, task=task))
    with pytest.raises(DoesNotApply, match="in 2 training compositions and in a held-out one; here 0 are: draw more episodes"):
        load_recipe("probes", "factor_circuits")(some, episodes=16, points=2, sources=1)
