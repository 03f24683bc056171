"""The shipped models of linear regression against what 2212.07677, 2306.09927 and 2503.12734 lead one to expect of them."""

from functools import lru_cache
from pathlib import Path

import numpy as np
import pytest
import torch

import compolens
from compolens import tables
from compolens.cli import main
from compolens.cli.train import read_runs
from compolens.diagnosis import closest_learner
from compolens.foundation import files
from compolens.measures.agreement import sensitivity_cosine
from compolens.references import DebiasedGradientDescent, GradientDescent, GradientDescentPlusPlus
from compolens.tasks import LinearRegression
from compolens.zoo.folders import read_run

REPOSITORY = Path(__file__).parents[2]
ZOO = REPOSITORY / "trained_models" / "regression"
RUNS = read_runs(str(REPOSITORY / "trained_models" / "regression.py"))
TASKS, MANY = LinearRegression.von_oswald(), 40_000
PAGE = (REPOSITORY / "docs" / "findings" / "which_learner.md").read_text(encoding="utf-8")
LEARNERS = ("gd_equivalence", "algorithm_steps", "weight_structure")


def shipped(name):
    return [ZOO / f"{name}-{seed}" for seed in range(3)]


@lru_cache
def episodes(n=MANY):
    """The same tasks for every model and reference."""
    return TASKS.sample(n, "test", TASKS.rng("anchors", "test"))


def loss(answers, n=MANY):
    return float(0.5 * (answers - episodes(n).targets[:, -1]).double().square().mean())


@lru_cache
@torch.no_grad()
def answers(folder):
    model = compolens.load(folder).model
    return torch.cat([model(part)[:, -1] for part in episodes().tokens.split(20_000)])


@lru_cache
def slopes(folder, n=8_000):
    """(n, d_x, 1): the derivative of the model's answer by the query, on the first n tasks."""
    tokens = episodes().tokens[:n].clone().requires_grad_()
    (grad,) = torch.autograd.grad(compolens.load(folder).model(tokens)[:, -1].sum(), tokens)
    return grad[:, -1, :10, None].double()


def weights(learner, n=8_000):
    x, y, _, _ = TASKS.prompts(episodes())
    return learner.for_task(TASKS).weights(x[:n], y[:n], [10])[:, 0]


def cosine(a, b):
    return float(sensitivity_cosine(a, b).mean())


def test_every_run_is_shipped_with_fresh_tables():
    assert {path.parent.name for path in ZOO.glob("*/config.json")} == set(RUNS)
    for name, run in RUNS.items():
        assert read_run(ZOO / name) == run
        measured = name.startswith(("linear", "softmax"))
        for probe in ("generalization", *(LEARNERS if measured else ())):
            assert tables.why_not(ZOO / name, probe) == "", (name, probe)


def test_one_layer_is_one_tuned_step_of_gradient_descent_in_every_seed():
    tuned = loss(GradientDescent(1).predict(TASKS, episodes())[:, -1])
    assert tuned == pytest.approx(0.206, abs=0.003)  # 2212.07677; in closed form .2062
    for folder in shipped("linear-1L"):
        assert loss(answers(folder)) == pytest.approx(tuned, rel=0.01)
        assert cosine(slopes(folder), weights(GradientDescent(1))) >= 0.995


def test_two_recurrent_layers_are_nearer_gd_plus_plus_than_gd_unless_they_are_still_on_the_plateau():
    gd, plus = weights(GradientDescent(2)), weights(GradientDescentPlusPlus(2))
    losses = {kind: loss(kind(2).predict(TASKS, episodes())[:, -1]) for kind in (GradientDescent, GradientDescentPlusPlus)}
    assert losses == {
        GradientDescent: pytest.approx(0.157, abs=0.002),
        GradientDescentPlusPlus: pytest.approx(0.111, abs=0.002),
    }
    assert cosine(gd, plus) == pytest.approx(0.953, abs=0.01)
    first, second, plateaued = shipped("linear-2L-recurrent")
    for folder in (first, second):
        own = slopes(folder)
        assert cosine(own, plus) > 0.99 and cosine(own, gd) < 0.98
        assert loss(answers(folder)) == pytest.approx(losses[GradientDescentPlusPlus], rel=0.03)
    assert loss(answers(plateaued)) > 1.1 * losses[GradientDescentPlusPlus]  # the findings name it
    assert abs(cosine(slopes(plateaued), plus) - cosine(slopes(plateaued), gd)) < 0.01


def test_the_cosines_of_two_layers_are_those_on_the_page():
    found = []
    for folder in shipped("linear-2L-recurrent"):
        rows = tables.read(folder, "gd_equivalence")
        rows = rows[(rows["metric"] == "sensitivity cosine") & (rows["control"] == "") & (rows["split"] == "test")]
        rows = rows.set_index("reference")["value"]
        found += [rows["GD++, 2 steps"], rows["GD, 2 steps"]]
    assert found == pytest.approx([0.997, 0.965, 0.999, 0.957, 0.975, 0.979], abs=0.0006)


def structure(folder, metric, **where):
    frame = tables.read(folder, "weight_structure")
    frame = frame[(frame["metric"] == metric) & (frame["control"] == "")]
    for column, value in where.items():
        frame = frame[frame[column] == value]
    return frame["value"].to_numpy()


def test_four_softmax_heads_show_the_four_patterns_in_every_seed():
    for folder in shipped("softmax-4heads"):
        diagonal = structure(folder, "KQ diagonal")
        moves = structure(folder, "OV y to y")
        used = np.abs(moves) > 0.2 * np.abs(moves).max()
        assert (structure(folder, "KQ off-diagonal")[used] < 0.2).all()
        assert (structure(folder, "OV x to y")[used] < 0.1).all()
        assert structure(folder, "zero sum").item() < 0.05
        assert {-1.0, 1.0} == set(np.sign(diagonal * moves)) | {1.0, -1.0} and (np.sign(diagonal * moves)[used] > 0).all()
        assert np.std(np.abs(diagonal[used])) / np.abs(diagonal[used]).mean() < 0.2


def test_four_softmax_heads_are_nearer_debiased_descent_than_descent_in_every_seed():
    he = LinearRegression.he()
    batch = he.sample(6_000, "test", he.rng("anchors", "test"))
    references = [
        learner.for_task(he).predict(he, batch)[:, -1] for learner in (DebiasedGradientDescent(), GradientDescent(1))
    ]
    for folder in shipped("softmax-4heads"):
        with torch.no_grad():
            own = compolens.load(folder).model(batch.tokens)[:, -1]
        debiased, plain = (float((own - other).square().mean()) for other in references)
        assert debiased < plain


@pytest.mark.parametrize("name", ["linear-1L", "linear-2L-recurrent", "linear-5L", "softmax-4heads"])
def test_the_untrained_control_and_shuffled_answers_are_far_from_the_closest_learner(name):
    found = closest_learner.closest(shipped(name))
    assert found.cosine > 0.9 and abs(found.shuffled) < 0.1 and found.untrained < 0.6


def test_the_table_in_the_findings_is_the_commands_output(capsys):
    assert main(["models", str(ZOO), "--summary"]) == 0
    start = "<!-- regression: compolens models trained_models/regression --summary -->"
    assert capsys.readouterr().out.strip() == PAGE.split(start)[1].split("<!-- /regression -->")[0].strip()


def test_cards_say_what_the_weights_do():
    for name in ("linear-1L-0", "linear-5L-2", "softmax-4heads-1", "negative-0.5-0.3-2"):
        trained, scores = compolens.load(ZOO / name), files.read_json(ZOO / name / "scores.json")
        fresh = compolens.evaluate(trained.model, trained.task, "test", 4096, "check").score
        assert fresh == pytest.approx(scores["test"]["score"], abs=0.05)
