"""States of donors in models whose failure was planted: what holds the right code wins what is lost to inference alone."""

import sys
from pathlib import Path

import pytest

from compolens import recipes
from compolens.diagnosis import readings
from compolens.zoo.folders import TrainedModel

HERE = Path(__file__).parents[1] / "benchmarks" / "diagnosis"
if str(HERE) not in sys.path:
    sys.path.append(str(HERE))


@pytest.mark.parametrize(
    ("name", "real_reads", "wins", "lost"),
    [
        # takes a held-out composition for a training one, which has a part of it: readings tell half, and do not say
        ("teacher-NearestSupport-0.85-stream-rough-1", False, True, None),
        # infers it, and has no execution of it
        ("teacher-Entangled-0.85-stream-rough-3", True, False, "execution"),
    ],
)
def test_assembled_states_win_what_no_real_episode_can(name, real_reads, wins, lost):
    cases = pytest.importorskip("cases")
    case = cases.cases()[name]
    trained = TrainedModel(case.run, cases.model_of(case), case.run.task, Path(name), 0)
    table, _ = recipes.load_recipe("probes", "nonlinear_code")(trained, episodes=96, fitted=256)
    reading = readings.reading_of(readings.told_at(table), readings.named_at(table))
    assert (reading and reading.part) == lost
    table = table[table["composition"] == "all"]

    def value(metric, editor, control="", split="ood", **where):
        rows = table[(table["metric"] == metric) & (table["editor"] == editor) & (table["control"] == control)]
        rows = rows[rows["split"] == split]
        for column, wanted in where.items():
            rows = rows[rows[column] == wanted]
        return rows["value"].item()

    assert (value("reads right", "donor") > 0.9) == real_reads
    assert value("reads right", "assembled") > 0.9
    own, donor, made = (
        value("score", editor, rung=rung)
        for editor, rung in (("donor", "own answer"), ("donor", "true code written"), ("assembled", "true code written"))
    )
    assert donor == pytest.approx(own, abs=0.05)  # the model's own code, whoever's inputs come with it
    assert (made > 0.9) == wins
    if not wins:
        assert made < own + 0.1
    assert value("score", "assembled", "another code", rung="true code written") < 0.6  # it is the code that answers
    far, expected = (
        value("divergence", "assembled", control, split, directions="sensitive")
        for control, split in (("", "ood"), ("natural, left out", "train"))
    )
    assert far < 1.25 * expected
    notes = table[table["editor"] == "assembled"]["note"]
    assert notes.str.startswith("unnatural").all() and table[table["editor"] == "donor"]["note"].isna().all()
