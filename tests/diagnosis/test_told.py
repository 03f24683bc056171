"""What is told of learners, layers, attention and groups, from tables whose numbers are known; what enters the contest."""

import dataclasses
from types import SimpleNamespace

import numpy as np
import pytest
from handmade import save, write

from compolens import HypernetworkTransformer, Run, SoftmaxTransformer, tables
from compolens.cli.cards import show
from compolens.diagnosis import closest_learner, findings
from compolens.diagnosis.cards import Card, card
from compolens.diagnosis.contest import gathered
from compolens.diagnosis.decomposition import Loss
from compolens.diagnosis.groups import Group, name_among, title
from compolens.diagnosis.sentences import Judgement
from compolens.foundation.configs import ConfigError
from compolens.tasks import LinearRegression

REGRESSION = Run(SoftmaxTransformer(n_layers=4), LinearRegression(d_x=2))


def group(*folders):
    return Group("Net", "a setting", list(folders), "Net")


# ---- layers ----------------------------------------------------------------------------------------------------------
def layered(folder, levels, steps=(1, 2, 4, 8), edge=None, algorithm="Newton"):
    """algorithm_steps: the level and the step by layer of one algorithm; another is closest at the last layer."""
    rows = []
    for name, more in ((algorithm, 0.0), ("GD", 0.001)):
        for layer, (level, step) in enumerate(zip(levels, steps, strict=False), start=1):
            known = {"algorithm": name, "layer": layer, "control": "", "note": "the last" if layer == edge else ""}
            rows += [known | {"metric": "best level", "value": level + more}, known | {"metric": "best step", "value": step}]
            rows += [row | {"control": "untrained", "value": 0.1} for row in rows[-2:]]
    save(write(folder, REGRESSION), "algorithm_steps", rows, split="test")
    return folder


@pytest.mark.parametrize(
    ("levels", "first"),
    [((0.96, 0.9, 0.97, 0.99), 3), ((0.96, 0.97, 0.98, 0.99), 1), ((0.96, 0.97, 0.98, 0.9), None), ((0.1, 0.2, 0.3, 0.95), 4)],
)
def test_the_first_layer_is_the_one_from_which_on_all_are_alike(tmp_path, levels, first):
    found = closest_learner.along_layers([layered(tmp_path / "a", levels)], "Newton, 2 steps")
    assert (found.algorithm, found.first, found.edge) == ("Newton", first, False)
    assert found.levels == pytest.approx(levels) and found.steps == (1, 2, 4, 8)


def test_without_a_named_algorithm_the_one_that_is_closest_at_the_last_layer_is_followed(tmp_path):
    assert closest_learner.along_layers([layered(tmp_path / "a", (0.96, 0.97))], "least squares").algorithm == "GD"


@pytest.mark.parametrize("edge", [None, 2])
def test_a_layers_step_is_told_with_its_level_and_whether_more_should_be_looked_at(tmp_path, edge):
    one = group(layered(tmp_path / "a", (0.96, 0.9, 0.97, 0.99), edge=edge), layered(tmp_path / "b", (0.98, 0.9, 0.99, 0.97)))
    (clause,) = findings._depth(one, "Newton, 2 steps")
    assert "from layer 3 on; best steps by layer, with similarity: 1 (0.97), 2 (0.90), 4 (0.98), 8 (0.98)" in clause.text
    assert ("some best steps are the last ones looked at" in clause.text) == (edge is not None)
    assert clause.evidence[0].value == pytest.approx(0.98) and clause.evidence[0].models == ("a", "b")


# ---- learners --------------------------------------------------------------------------------------------------------
def agreeing(folder, own, floor=0.9):
    """gd_equivalence: the model's cosine with two references, and theirs with each other."""
    rows = []
    for reference, value in own.items():
        for control, number in {"": value, "untrained": 0.1234, "shuffled": 0.2}.items():
            rows.append({"control": control, "learner": "model", "reference": reference, "value": number})
        for other in own:
            number = 1.0 if other == reference else floor
            rows.append({"control": "reference", "learner": other, "reference": reference, "value": number})
    save(write(folder, REGRESSION), "gd_equivalence", [row | {"metric": "sensitivity cosine"} for row in rows], split="test")
    return folder


def test_the_closest_learner_is_told_with_how_far_beyond_its_rival_the_model_is(tmp_path):
    one = group(agreeing(tmp_path / "a", {"GD, 1 step": 0.98, "ridge": 0.5}))
    (clause,) = findings.of_learner(one)
    assert "answers most like GD, 1 step: sensitivity cosine 0.980, where ridge," in clause.text
    assert "has 0.900 with it: 80% of the way from there to 1" in clause.text, "(.98 - .9) / (1 - .9)"
    assert "untrained control 0.123, shuffled answers 0.200" in clause.text
    assert [e.value for e in clause.evidence] == pytest.approx([0.98, 0.9, 0.1234, 0.2])


def test_where_references_are_more_alike_nothing_is_claimed(tmp_path):
    (clause,) = findings.of_learner(group(agreeing(tmp_path / "a", {"GD, 1 step": 0.8, "ridge": 0.5})))
    assert "which of them it is, if any, cannot be said" in clause.text and "of the way" not in clause.text


def test_what_is_held_out_of_regression_is_named(tmp_path):
    folder, rows = write(tmp_path / "a", REGRESSION), []
    for split, value in {"test": 0.9, "ood": 0.7}.items():
        for composition in ("all", "scale 1, wider inputs"):
            known = {"metric": "score", "split": split, "composition": composition, "weight": 1.0, "note": ""}
            rows.append(known | {"control": "", "reference": "model", "value": value})
            ceiling = {"control": "reference", "reference": "true code", "value": 0.95, "note": "ceiling"}
            rows.append(known | ceiling)
    save(folder, "generalization", rows)
    (clause,) = findings.of_regression(group(folder))
    assert clause.text.startswith("explains 0.900 of its answers' square as trained and 0.700 where held out (wider inputs);")
    assert "0.950 can be had" in clause.text


# ---- attention -------------------------------------------------------------------------------------------------------
def test_attention_is_told_at_its_best_place_on_training_compositions(tmp_path):
    rows = []
    for role, layer, test, ood in (
        ("self", 0, 0.5, 0.45),
        ("self", 1, 0.7, 0.6),
        ("mates", 0, 0.8, 0.75),
        ("mates", 1, 0.9, 0.65),
    ):
        for control, off in {"": 0.0, "untrained": -0.5}.items():
            known = {"role": role, "layer": layer, "control": control}
            rows += [known | {"split": "test", "value": test + off}, known | {"split": "ood", "value": ood + off}]
    for split in ("test", "ood"):
        rows.append({"role": "input", "layer": -1, "control": "raw input, products", "split": split, "value": 0.3})
    common = {"metric": "balanced accuracy", "shown": "as trained", "class": "all", "label": "rule"}
    save(write(tmp_path / "a", REGRESSION), "attention_code", [row | common for row in rows])
    (clause,) = findings.of_attention(group(tmp_path / "a"))
    assert "layer 1, mates (the best of 4 places) names rule on held-out compositions" in clause.text
    assert "balanced accuracy 0.65, more than its inputs do" in clause.text
    assert "raw tokens give 0.30, the untrained control 0.15" in clause.text


def test_no_diagnosis_names_what_it_lacks(tmp_path):
    folder = write(tmp_path / "a", REGRESSION)
    save(
        folder, "generalization", [{"metric": "score", "value": 0.5, "split": "ood", "control": c} for c in ("", "untrained")]
    )
    told = card(Judgement(group(folder)))
    assert told.label == "no diagnosis"
    assert told.meaning == (
        f"it rests on generalization and inference_or_execution, and {folder} has no inference_or_execution that can be used; "
        f"`compolens probe inference_or_execution {folder}` measures it, or says why not"
    )


# ---- groups ----------------------------------------------------------------------------------------------------------
def test_a_setting_is_named_where_there_is_more_than_one():
    here, there = Group("A", "one setting", [], "A"), Group("A", "another", [], "A")
    other = Group("B", "another", [], "B")
    assert title(here, [here]) == "A" and title(here, [here, other]) == "A, one setting"
    assert title(other, [there, other]) == "B"
    assert name_among(here, [here, there]) == "A, one setting", "the label is shared"
    assert name_among(here, [here, other]) == "A"


# ---- controls of what was never trained ------------------------------------------------------------------------------
@pytest.mark.parametrize("steps", [0, 1, 3])
def test_what_was_never_trained_has_no_untrained_control(tmp_path, tiny_task, steps):
    folder = write(tmp_path / "a", Run(HypernetworkTransformer(d_code=6), tiny_task, steps=steps))
    rows = [{"metric": "score", "value": 0.5, "control": c, "split": "ood"} for c in ("", "untrained", "shuffled")]
    save(folder, "patching", rows)
    kept = tables.with_untrained_control(folder, "patching")
    assert list(kept["control"].fillna("")) == (["", "shuffled"] if steps == 0 else ["", "untrained", "shuffled"])
    assert set(kept["model"]) == {"a"}


# ---- what enters the contest -----------------------------------------------------------------------------------------
def entrant(folder, task, *, test=0.95, ood=0.6, predicts=True):
    """A model with scores of which .95 can be had, and with one predictor and its halves."""
    write(folder, Run(HypernetworkTransformer(d_code=6), task))
    rows = []
    for split, value in {"test": test, "ood": ood}.items():
        known = {"metric": "score", "split": split, "composition": "all", "weight": 1.0, "note": ""}
        rows.append(known | {"control": "", "reference": "model", "value": value})
        rows.append(known | {"control": "reference", "reference": "true code", "value": 0.95, "note": "ceiling"})
    save(folder, "generalization", rows)
    if predicts:
        known = {"metric": "sharpness", "league": "prognosis", "split": "test", "control": ""}
        values = {"": 1.0, "first": 0.9, "second": 1.2}
        rows = [known | {"half": half, "value": value} for half, value in values.items()]
        save(folder, "predictors", [*rows, rows[0] | {"control": "untrained", "value": 9.0}])
    return folder


def test_a_model_enters_with_its_predictors_and_shares_of_what_can_be_had(tmp_path, tiny_task):
    folders = [
        entrant(tmp_path / "a", tiny_task),
        entrant(tmp_path / "b", tiny_task, test=0.5),
        entrant(tmp_path / "c", tiny_task, predicts=False),
    ]
    found = gathered(folders, ["predictors"])
    assert len(found) == 1
    row = found.iloc[0]
    assert (row["predictor"], row["league"], row["family"]) == ("sharpness", "prognosis", "Hyperteacher")
    assert (row["value"], row["first"], row["second"]) == (1.0, 0.9, 1.2)
    np.testing.assert_allclose([row["test"], row["ood"]], [1.0, 0.6 / 0.95])
    why = found.attrs["left_out"]
    assert set(why) == {str(folders[1]), str(folders[2])}
    assert "did not learn" in why[str(folders[1])] and why[str(folders[2])] == "has no table predictors"


def test_two_models_of_one_name_are_two(tmp_path, tiny_task):
    folders = [entrant(tmp_path / where / "a", tiny_task) for where in ("here", "there")]
    found = gathered(folders, ["predictors"])
    assert found["model"].tolist() == [str(folder) for folder in folders]


def test_a_contest_that_no_model_enters_says_why(tmp_path, tiny_task):
    with pytest.raises(ConfigError, match="no model can enter: has no table predictors"):
        gathered([entrant(tmp_path / "a", tiny_task, predicts=False)], ["predictors"])


def test_a_card_says_where_parts_are_of_other_episodes_than_the_score(capsys):
    """0.6 lacks to the ceiling; the parts add up to 0.5, or, but for rounding, to 0.6."""
    made = {field.name: () for field in dataclasses.fields(Card)} | {"who": "it", "label": "undecided", "meaning": "so"}
    made |= {"standing": "not tested", "why": "so", "score": 0.4, "ceiling": 1.0}
    for use, told in ((0.3, "lost, in all 0.500 on other episodes: use 0.300, "), (0.402, "lost: use 0.402, ")):
        one = Card(**made | {"parts": {"use": Loss(use, np.nan, np.nan), "execution": Loss(0.2, np.nan, np.nan)}})
        show(SimpleNamespace(cards=[one], compared=[], path="report.html"), evidence=False)
        assert f"held-out score 0.400 of 1.000; {told}execution 0.200" in capsys.readouterr().out
