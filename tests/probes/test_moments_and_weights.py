"""Readouts of X^T Y and of the least-squares weights, on networks that hold the one, the other, or neither."""

import inspect

import pytest
import torch

import compolens
from compolens import LinearRegression, MixturePrior, Run, SoftmaxTransformer, recipes
from compolens.activations.streams import draw, record
from compolens.foundation.configs import ConfigError, DoesNotApply
from compolens.references import LeastSquares
from compolens.zoo.folders import TrainedModel

PROBE = recipes.load_recipe("probes", "moments_and_weights")
MODULE = inspect.getmodule(PROBE)
TASK = LinearRegression.garg(d_x=2, n_context=4)
FEW = {"episodes": 512, "fitted": 1024, "updates": 300, "hidden": 16}


class Knows(torch.nn.Module):
    """Its stream holds x_1 y_1 + … + x_i y_i at the token of y_i, or the least-squares weights of so many examples."""

    def __init__(self, weights: bool) -> None:
        super().__init__()
        self.solves = weights
        self.enter, self.leave = torch.nn.Identity(), torch.nn.Identity()
        self.head = torch.nn.Linear(TASK.d_x, 1)

    def forward(self, tokens):
        tokens = self.enter(tokens)
        x, y = tokens[:, 0::2], tokens[:, 1::2, :1]
        held = (x[:, :-1] * y).cumsum(1)
        if self.solves:
            held = LeastSquares().weights(x[:, :-1].double(), y.double(), [1, 2, 3, 4])[..., 0].float()
        stream = torch.zeros_like(tokens)
        stream[:, 1::2] = held
        return self.head(self.leave(stream))


def known(weights):
    sites = {"blocks.0.hook_resid_pre": "enter", "blocks.0.hook_resid_post": "leave"}
    return compolens.adopt(Knows(weights).eval(), TASK, sites=sites, evaluation_episodes=64)


def only(frame, **wanted):
    for column, value in ({"metric": "r2"} | wanted).items():
        frame = frame[frame[column] == value]
    return frame["value"]


@pytest.fixture(scope="module")
def sums():
    return PROBE(known(False), **FEW)[0]


@pytest.mark.parametrize("tasks", ["as fitted", "other inputs", "weights × 2"])
def test_sums_that_the_stream_holds_are_read_by_a_linear_map_on_held_out_tasks_too(sums, tasks):
    held = {"control": "", "layer": 1, "target": "moments", "readout": "linear", "tasks": tasks}
    assert (only(sums, **held) > 0.95).all() and len(only(sums, **held)) == 3


def test_they_are_read_at_the_last_answer_and_not_before_they_are_computed(sums):
    held = {"control": "", "target": "moments", "readout": "linear", "tasks": "as fitted"}
    assert (only(sums, layer=0, **held).abs() < 0.1).all()
    assert (only(sums, layer=1, metric="attention on the last pair", **held) > 0.75).all()
    assert (only(sums, layer=1, metric="attention on answers", **held) > 0.95).all()


def test_weights_are_read_where_they_are_held_and_worse_from_sums(sums):
    held = {"control": "", "layer": 1, "target": "weights", "readout": "linear", "tasks": "as fitted"}
    solved, _ = PROBE(known(True), **FEW)
    assert (only(solved, **held) > 0.95).all()
    assert only(sums, shown=4, **held).item() < 0.85 < only(solved, shown=4, **held).item()


def test_targets_of_other_episodes_cannot_be_read_nor_sums_from_the_tokens_by_a_linear_map(sums):
    assert (only(sums, control="shuffled") < 0.05).all() and len(only(sums, control="shuffled")) == 24
    assert (only(sums, control="raw input", readout="linear") < 0.1).all()
    assert (sums[sums["control"] == "raw input"]["layer"] == -1).all()


def test_an_adopted_network_without_fresh_weights_says_that_a_control_is_missing(sums):
    missing = sums[sums["control"] == "untrained"]
    assert missing["value"].isna().all() and missing["note"].str.startswith("not available").all()


def test_targets_are_those_of_the_first_examples():
    asked = [MODULE.Asked(target, n, False) for target in ("moments", "weights") for n in (1, 4)]
    model = Run(SoftmaxTransformer(n_layers=1, d_model=8, n_heads=2), TASK).build().eval()
    (batch,) = record(model, draw(TASK, "test", 8, 0), [])
    x, y, *_ = TASK.prompts(batch.episodes)
    found = MODULE._targets(TASK, batch, asked)
    torch.testing.assert_close(found[0], (x[:, 0] * y[:, 0]).double())
    torch.testing.assert_close(found[1], (x * y).sum(1).double())
    torch.testing.assert_close(found[2].float(), x[:, 0] * y[:, 0] / x[:, 0].square().sum(1, keepdim=True))
    torch.testing.assert_close(found[3].float(), batch.episodes.codes["weights"], rtol=1e-3, atol=1e-3)  # no noise


def test_a_model_of_one_task_is_probed_on_all_tasks():
    """The paper's control model: in training all weights are 1, and there would be nothing to read."""
    ones = compolens.LinearRegression(
        d_x=2, n_context=4, inputs=TASK.inputs, prior=MixturePrior(((1.0, 1.0),), 1e-3), layout=TASK.layout
    )
    run = Run(SoftmaxTransformer(n_layers=1, d_model=8, n_heads=2), ones)
    trained = TrainedModel(run, run.build().eval(), ones, None, 0)
    table, episodes = PROBE(trained, **FEW | {"updates": 2})
    assert set(episodes["composition"]) == {"centre 0", "centre 0, inputs × 1.5"}
    seen = MODULE.replace(ones, prior=MODULE.GaussianPrior())
    found = MODULE._seen(trained, trained.model, seen, "train", 64, "0", [MODULE.Asked("weights", 4, False)], False)
    assert found.targets.std() > 0.5 and len(found.composition.unique()) == 4
    assert set(table["control"]) == {"", "untrained", "shuffled", "raw input"}


def test_what_does_not_apply_is_told():
    run = Run(SoftmaxTransformer(n_layers=1, d_model=8, n_heads=2), LinearRegression(d_x=2, n_context=4))
    with pytest.raises(DoesNotApply, match="tokens in turn"):
        PROBE(TrainedModel(run, run.build(), run.task, None, 0))
    whole = TrainedModel(Run(SoftmaxTransformer(n_layers=1), TASK), None, TASK, None, 0)
    for wrong, words in (
        ({"episodes": 4}, "episodes >= 32"),
        ({"hidden": 0}, "hidden >= 1"),
        ({"updates": 0}, "updates >= 1"),
    ):
        with pytest.raises(ConfigError, match=words):
            PROBE(whole, **wrong)
