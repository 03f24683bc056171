"""Where a representation stands, and what upper layers do under a new embedding: on models whose answer is known."""

import inspect
from pathlib import Path

import numpy as np
import pytest
import torch

from compolens import HypernetworkTransformer, Hyperteacher, Run, SoftmaxTransformer, recipes
from compolens.foundation.configs import ConfigError, DoesNotApply
from compolens.models import LinearSelfAttention
from compolens.tasks import InterleavedTokens, LinearRegression, RepresentationRegression, UncertainRegression
from compolens.zoo.folders import TrainedModel

TASK = RepresentationRegression(d_x=2, n_context=4, layout=InterleavedTokens())
SMALL = {"d_model": 16, "n_heads": 2}
MAP, PASTE = (recipes.load_recipe("probes", name) for name in ("representation_map", "pasting"))
PASTING = inspect.getmodule(PASTE)
FEW = {"updates": 3, "tuning_steps": 1, "batch": 8, "episodes": 64}


def made(architecture, task):
    run = Run(architecture, task, steps=0, init_seed=1)
    return TrainedModel(run, run.build().eval(), task, Path("m"), 0)


@pytest.fixture(scope="module")
def mapped():
    return MAP(made(SoftmaxTransformer(n_layers=2, **SMALL), TASK), episodes=256, fitted=256)[0]


def only(frame, **wanted):
    for column, value in wanted.items():
        frame = frame[frame[column] == value]
    return frame["value"]


def test_the_raw_input_holds_x_and_nothing_of_the_representation_beyond_it(mapped):
    raw = mapped[(mapped["control"] == "raw input") & (mapped["split"] == "test")]
    assert (only(raw, target="x") > 0.999).all() and (only(raw, target="Phi beyond x").abs() < 0.05).all()
    assert 0.5 < only(raw, target="Phi", role="x token").item() < 0.95


def test_the_stream_that_enters_holds_a_pairs_input_at_its_own_token_alone(mapped):
    start = mapped[
        (mapped["layer"] == 0) & (mapped["control"] == "") & (mapped["split"] == "test") & (mapped["target"] == "x")
    ]
    assert only(start, role="x token").item() > 0.99 and abs(only(start, role="y token").item()) < 0.1


def test_targets_of_other_episodes_cannot_be_read(mapped):
    assert (only(mapped, control="shuffled", split="test") < 0.05).all()


def test_a_linear_representation_has_nothing_beyond_x():
    flat = RepresentationRegression(d_x=2, n_context=4, layout=InterleavedTokens(), leak=1.0)
    found, _ = MAP(made(SoftmaxTransformer(n_layers=1, **SMALL), flat), episodes=32, fitted=64)
    beyond = only(found, target="Phi beyond x")
    assert len(beyond) and not (beyond > 0.5).any()


def test_other_families_have_no_representation_to_map():
    with pytest.raises(DoesNotApply, match="RepresentationRegression"):
        MAP(made(SoftmaxTransformer(n_layers=1, **SMALL), LinearRegression.garg(2, 3)))


# ---- pasting ---------------------------------------------------------------------------------------------------------
def test_the_gap_is_0_for_the_ideal_1_for_zero_and_linear_in_between():
    rng = np.random.default_rng(0)
    ideal = rng.random((50, 6))
    zero = ideal + 1 + rng.random((50, 6))
    for share in (0.0, 0.3, 1.0):
        risk = ideal + share * (zero - ideal)
        value, lo, hi = PASTING.paste_gap(risk, ideal, zero)
        assert value == pytest.approx(share) and lo == pytest.approx(share) and hi == pytest.approx(share)


@pytest.fixture(scope="module")
def regressor():
    return made(SoftmaxTransformer(n_layers=3, **SMALL), TASK)


def pasted(trained, boundary, embedding, condition):
    """The network, and the names of the parameters that are trained."""
    target = trained.task.plain if isinstance(trained.task, RepresentationRegression) else trained.task
    work = PASTING._Pasting(trained, target, boundary, PASTING.Budget(2, 1, 4), 0)
    network, free = work._paste(embedding, condition)
    work._train(network, free, embedding, 0.01, 2, "0")
    kept = {id(p) for p in free}
    return network, {name for name, p in network.named_parameters() if id(p) in kept}


@pytest.mark.parametrize("embedding", [PASTING.LINEAR, PASTING.COPIED, PASTING.Embedding("1 block", 1)], ids=lambda e: e.name)
def test_pasted_layers_and_their_readout_are_the_models_own_after_training(regressor, embedding):
    network, free = pasted(regressor, 1, embedding, PASTING.CONDITIONS[0])
    own = regressor.model.state_dict()
    assert len(network.blocks) == embedding.blocks + 2
    for name, value in network.state_dict().items():
        if name.startswith(("ln_final", "unembed")):
            assert torch.equal(value, own[name])
        elif name.startswith("blocks") and int(name.split(".")[1]) >= embedding.blocks:
            number, rest = name.split(".", 2)[1:]
            assert torch.equal(value, own[f"blocks.{int(number) - embedding.blocks + 1}.{rest}"])
    assert all(n.startswith("embed") or (embedding.blocks and n.startswith("blocks.0")) for n in free)


def test_controls_stand_on_random_lower_or_no_layers_and_train_their_readout(regressor):
    conditions = {c.control: c for c in PASTING.CONDITIONS}
    fresh, own = regressor.untrained_control().state_dict(), regressor.model.state_dict()
    random, free = pasted(regressor, 2, PASTING.LINEAR, conditions["untrained"])
    assert torch.equal(random.blocks[0].mlp.W_in, fresh["blocks.2.mlp.W_in"]) and len(random.blocks) == 1
    assert {n.split(".")[0] for n in free} == {"embed", "ln_final", "unembed"}
    lower, free = pasted(regressor, 2, PASTING.LINEAR, conditions["lower layers"])
    assert torch.equal(lower.blocks[1].mlp.W_in, own["blocks.1.mlp.W_in"]) and len(lower.blocks) == 2
    assert {n.split(".")[0] for n in free} == {"embed", "ln_final", "unembed"}
    alone, free = pasted(regressor, 2, PASTING.LINEAR, conditions["embedding alone"])
    assert len(alone.blocks) == 0 and {n.split(".")[0] for n in free} == {"embed", "ln_final", "unembed"}
    everything, free = pasted(regressor, 2, PASTING.LINEAR, conditions["all trained"])
    assert free == set(dict(everything.named_parameters()))


def test_where_x_is_copied_a_token_of_an_answer_holds_both():
    episodes = TASK.plain.sample(3, "test", TASK.rng(0, "test"))
    shown = PASTING._shown(episodes.tokens, TASK.plain, PASTING.COPIED)
    x, y, _, _ = TASK.plain.prompts(episodes)
    assert torch.equal(shown[:, 1::2], torch.cat([x, y], 2)) and torch.equal(shown[:, 0:-1:2, :2], x)
    assert not shown[:, 0::2, 2:].any()


def test_of_a_model_with_a_code_what_executes_it_is_kept_and_scored_on_both_splits():
    task = Hyperteacher(d_x=4, d_y=2, d_hidden=6, n_modules=6, n_context=6, n_queries=3)
    trained = made(HypernetworkTransformer(n_layers=2, d_code=6, d_hidden=12, **SMALL), task)
    network, free = pasted(trained, 3, PASTING.Embedding("1 block", 1), PASTING.CONDITIONS[0])
    assert len(network.blocks) == 1 and not any(name.startswith("executor") for name in free)
    assert torch.equal(network.executor.W_modules, trained.model.executor.W_modules)
    found, _ = PASTE(trained, **FEW)
    scores = found[found["metric"] == "score"]
    assert set(scores["split"]) == {"test", "ood"} and set(found["boundary"]) == {3}
    controls = {"", "as trained", "untrained", "lower layers", "embedding alone", "all trained"}
    assert set(scores["control"]) == controls
    for split, value in scores[scores["control"] == "as trained"].groupby("split")["value"]:
        (episodes,) = PASTING.draw(task, split, 64, "0/score")
        with torch.no_grad():
            assert value.item() == pytest.approx(task.score(trained.model(episodes.tokens), episodes.targets))


def test_on_regression_the_references_bound_the_gap(regressor):
    found, _ = PASTE(regressor, boundary=1, **FEW)
    gaps = found[(found["metric"] == "paste gap") & (found["split"] == "test")].set_index("control")["value"]
    assert gaps["posterior mean"] == 0 and gaps["zero"] == 1
    assert set(found["embedding"]) == {"", "linear", "linear, x copied", "1 block"}
    trials = found[found["metric"] == "loss of a trial"]
    for _, one in trials.groupby(["control", "embedding"]):
        assert sorted(one["rate"]) == sorted(PASTING.RATES)


def test_where_all_answers_come_after_all_examples_each_of_them_counts():
    """Also for a family whose answers say more than a mean; before the first example nothing can be known."""
    joint = UncertainRegression(d_x=2, n_context=3)
    found, _ = PASTE(made(SoftmaxTransformer(n_layers=2, **SMALL), joint), **FEW)
    assert set(found["embedding"]) == {"", "1 block"} and found["value"].notna().all()
    errors = found[(found["metric"] == "squared error") & (found["split"] == "test")]
    assert set(errors["examples"]) == {3}
    own, ideal, zero = (float(errors[errors["control"] == c]["value"].item()) for c in ("", "posterior mean", "zero"))
    gap = found[(found["metric"] == "paste gap") & (found["split"] == "test") & (found["control"] == "")]["value"].item()
    assert gap == pytest.approx((own - ideal) / (zero - ideal))


def test_what_cannot_be_pasted_is_told(regressor):
    with pytest.raises(ConfigError, match="from 1 to 2"):
        PASTE(regressor, boundary=3, **FEW)
    with pytest.raises(ConfigError, match="updates must be 1 or more"):
        PASTE(regressor, updates=0)
    with pytest.raises(DoesNotApply, match="no embedding"):
        PASTE(made(LinearSelfAttention(n_layers=2), LinearRegression(d_x=2, n_context=3)))
    with pytest.raises(DoesNotApply, match="one block"):
        PASTE(made(SoftmaxTransformer(n_layers=1, **SMALL), TASK))
