"""How often a diagnosis comes out again: sure of what is sure, in doubt where compositions disagree, and silent otherwise."""

import itertools

import numpy as np
import pandas as pd
import pytest
from handmade import put_back
from test_diagnosis import CASES, COMPOSITIONS, make

from compolens import tables
from compolens.diagnosis import groups, sentences
from compolens.diagnosis import label as diagnosis
from compolens.diagnosis.cards import card
from compolens.diagnosis.decomposition import ladders, lost_parts
from compolens.diagnosis.stability import BY_COMPOSITION

RIVAL = {"site": "blocks.1.hook_resid_post", "role": "readout", "layer": 2}


def judged(folders):
    models = diagnosis.as_diagnosed(diagnosis.measured(folders))
    return models, diagnosis.diagnosis_of(models)


def add_sites(folder, named, rival):
    """Rows by composition of the site named and of a rival: their values, in the compositions' order."""
    path = folder / "tables" / "inference_or_execution.csv"
    frame = pd.read_csv(path, keep_default_na=False, na_values=[""]).fillna({"control": ""})
    moved = frame[(frame["metric"] == "recovered") & (frame["control"] == "")].iloc[0]
    rows = []
    for where, values in (({}, named), (RIVAL, rival)):
        rows += [
            moved.to_dict() | where | {"metric": BY_COMPOSITION, "composition": c, "value": value, "weight": 1.0}
            for c, value in zip(COMPOSITIONS, values, strict=True)
        ]
    rows.append(moved.to_dict() | RIVAL | {"value": float(np.mean(rival)), "chosen": 0})
    true = frame[(frame["rung"] == "true code written") & (frame["split"] == "ood") & (frame["composition"] == "all")].iloc[0]
    rows.append(true.to_dict() | RIVAL | {"value": 0.7, "chosen": 0, "effective": 0})
    put_back(path, pd.concat([frame, pd.DataFrame(rows)], ignore_index=True))


@pytest.mark.parametrize("label", CASES)
def test_the_rules_drawn_from_equal_compositions_give_the_same_label(label, tmp_path, tiny_task):
    models, found = judged([make(tmp_path, tiny_task, **CASES[label])])
    stable = diagnosis.again(models, found.label)
    assert stable.label + sum(stable.others.values()) == pytest.approx(1)
    assert stable.label > 0.9, stable
    assert np.isnan(stable.site)  # no rows by composition: nothing is said


def test_a_label_that_one_composition_decides_is_in_doubt(tmp_path, tiny_task):
    folder = make(tmp_path, tiny_task, ood=0.6, written=0.6, true=0.6)
    path = folder / "tables" / "inference_or_execution.csv"
    frame = pd.read_csv(path, keep_default_na=False, na_values=[""]).fillna({"control": ""})
    here = (frame["rung"] == "true code written") & (frame["split"] == "ood")
    frame.loc[here & (frame["composition"] == "0+3"), "value"] = 1.6  # as if one composition held all that is won
    frame.loc[here & (frame["composition"] == "all"), "value"] = 0.8
    put_back(path, frame)
    models, found = judged([folder])
    stable = diagnosis.again(models, found.label)
    assert 0.3 < stable.label < 0.95 and stable.others


@pytest.mark.parametrize(("often", "kept"), [(51, True), (49, False)])
def test_a_label_that_comes_out_again_in_less_than_half_of_the_resamples_is_not_said(
    often, kept, tmp_path, tiny_task, monkeypatch
):
    folder = make(tmp_path, tiny_task, **CASES["fails to infer"])
    models, found = judged([folder])
    drawn = [*["fails to infer"] * often, *["cannot execute"] * (99 - often), "undecided"]
    monkeypatch.setattr(diagnosis, "_label", lambda _: drawn.pop())
    said, stable = diagnosis.said_of(models)
    if kept:
        assert said == found and (stable.said, stable.label) == ("fails to infer", 0.51)
        return
    assert said.label == stable.said == "undecided" and said.blamed == ""
    assert said.reasons[:-1] == found.reasons and said.parts == found.parts
    assert said.reasons[-1] == ('torn between "cannot execute" (50% of resampled compositions) and "fails to infer" (49%)')
    assert stable.label == 0.01 and list(stable.others.items()) == [("cannot execute", 0.5), ("fails to infer", 0.49)]


def test_a_label_that_is_not_said_is_on_no_card(tmp_path, tiny_task, monkeypatch):
    folder = make(tmp_path, tiny_task, **CASES["fails to infer"])
    drawn = itertools.cycle(["cannot execute", "cannot execute", "fails to infer"])
    monkeypatch.setattr(diagnosis, "_label", lambda _: next(drawn))
    told = card(sentences.judgement(groups.group([folder])[0]))
    assert told.label == "undecided" and diagnosis.diagnose([folder]).label == "undecided"
    assert any("torn between" in clause.text for clause in told.sentences)


def test_a_site_comes_out_again_unless_a_rival_is_as_good(tmp_path, tiny_task):
    sure = make(tmp_path, tiny_task, name="sure", ood=0.6, true=0.95)
    add_sites(sure, [0.9] * 5, [0.2] * 5)
    models, found = judged([sure])
    stable = diagnosis.again(models, found.label)
    assert stable.site == 1 and stable.rival.share == 0
    assert stable.rival.place == "layer 2, readout tokens" and stable.rival.moved == pytest.approx(0.2)
    assert stable.rival.wins == pytest.approx(0.7 - 0.6, abs=0.02) and stable.here.wins == pytest.approx(0.35, abs=0.02)
    doubtful = make(tmp_path, tiny_task, name="doubtful", ood=0.6, true=0.95)
    add_sites(doubtful, [0.9, 0.9, 0.9, 0.8, 0.8], [0.8, 0.8, 0.8, 0.97, 0.9])
    models, found = judged([doubtful])
    stable = diagnosis.again(models, found.label)
    assert 0.3 < stable.site < 0.9 and stable.rival.share == pytest.approx(1 - stable.site)


def test_what_is_drawn_is_a_bootstrap_of_compositions(tmp_path, tiny_task):
    """The mean over resamples of the losses is that of the table; a resample of every composition once is the table itself."""
    from compolens.diagnosis.stability import _Source

    models, found = judged([make(tmp_path, tiny_task, **CASES["fails to infer"])])
    source = _Source(models[0])
    once = {split: np.ones(max(len(names), 1)) for split, names in source.names.items()}
    drawn = source.drawn(np.random.default_rng(0))
    drawn.counts.update(once)
    top = found.scores["ceiling"]
    assert lost_parts(ladders([drawn]), top) == pytest.approx(lost_parts(ladders(models), top))
    assert drawn.frame() == pytest.approx(models[0].frame())
    rng = np.random.default_rng(1)
    many = [lost_parts(ladders([source.drawn(rng)]), top)["inference"] for _ in range(300)]
    assert np.mean(many) == pytest.approx(found.parts["lost"]["inference"].value, abs=0.002)


def test_the_evidence_says_it_and_the_card_does_not(tmp_path, tiny_task):
    folder = make(tmp_path, tiny_task, ood=0.6, true=0.95)
    add_sites(folder, [0.9] * 5, [0.2] * 5)
    told = card(sentences.judgement(groups.group([folder])[0]))
    texts = [clause.text for clause in told.evidence]
    (stable,) = [text for text in texts if text.startswith("stability")]
    assert "100 % have the label again" in stable and "100 % the site where its code is read" in stable
    (rival,) = [text for text in texts if text.startswith("the best rival")]
    assert "layer 2, readout tokens: another code written there moves the answers 0.20 of the way (0.90 at" in rival
    assert not any("stability" in clause.text for clause in told.sentences)
    assert tables.has(folder, "inference_or_execution")
