"""Knobs of a run that maps turn: validation compositions, initial scale, a window of decay; none of them moves what is off."""

import dataclasses
import itertools
import math

import pytest
import torch

from compolens import (
    AdamW,
    FanInPower,
    FuzzyLogic,
    HypernetworkTransformer,
    Hyperteacher,
    ReferenceAdamW,
    Run,
    SoftmaxTransformer,
)
from compolens.foundation.configs import ConfigError, construct, describe
from compolens.models import OtherExecutorTransformer
from compolens.tasks import supports
from compolens.training import train
from compolens.training.state import Training
from compolens.zoo import read_run

SMALL = {"d_x": 3, "d_y": 2, "d_hidden": 4, "n_context": 6, "n_queries": 3}
TINY = SoftmaxTransformer(n_layers=1, d_model=8, n_heads=2)


# ---- what is off is as it was ----------------------------------------------------------------------------------------
def test_knobs_that_are_off_are_no_part_of_a_description():
    run = Run(TINY, Hyperteacher(**SMALL))
    described = describe(run)
    assert "initialisation" not in described and "decay_window" not in described["optimizer"]
    assert not {"validation", "code_given"} & described["task"].keys()
    turned = dataclasses.replace(
        run,
        initialisation=FanInPower(0.7),
        optimizer=AdamW(decay_window=(0.4, 0.6)),
        task=Hyperteacher(**SMALL, validation=2, code_given=True),
    )
    classes = [Run, AdamW, FanInPower, Hyperteacher, SoftmaxTransformer]
    assert construct(describe(turned), classes) == turned != run == construct(described, classes)


# ---- validation ------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("without", "with_some"),
    [(Hyperteacher(**SMALL, split_seed=s), Hyperteacher(**SMALL, split_seed=s, validation=4)) for s in (0, 1)]
    + [(FuzzyLogic(length=8), FuzzyLogic(length=8, validation=4))],
)
def test_validation_takes_from_training_alone_and_leaves_held_out_episodes_as_they_were(without, with_some):
    train, aside, ood = (set(with_some.compositions(s)) for s in ("train", "validation", "ood"))
    assert len(aside) == 4 and not train & aside and not (train | aside) & ood
    assert train | aside == set(without.compositions("train")) and ood == set(without.compositions("ood"))
    first, second = (t.sample(5, "ood", t.rng(3, "ood")) for t in (without, with_some))
    assert torch.equal(first.tokens, second.tokens) and torch.equal(first.targets, second.targets)
    drawn = with_some.sample(64, "validation", with_some.rng(0, "validation")).composition.tolist()
    assert set(drawn) == aside
    with pytest.raises(ConfigError, match="sets no compositions aside"):
        without.rng(0, "validation")


def test_what_is_left_to_train_on_covers_and_connects_as_much():
    for support, seed in itertools.product(("connected", "disconnected", "cube", "two cliques"), (0, 1)):
        before, after = (Hyperteacher(support=support, split_seed=seed, validation=v).describe_split() for v in (0, 3))
        assert after["unseen_modules"] == [] and len(after["groups"]) == len(before["groups"])
        assert all(len(c) == 2 for c in after["validation"])
    with pytest.raises(ConfigError, match="set fewer aside"):
        Hyperteacher(validation=16)


def test_a_run_with_validation_is_scored_on_it(tmp_path):
    run = Run(TINY, Hyperteacher(**SMALL, validation=3), steps=2, batch_size=4, evaluations=1, evaluation_episodes=16)
    scores = train(run, tmp_path / "run")
    assert set(scores["validation"]) == set(scores["ood"])
    assert (tmp_path / "run" / "history.csv").read_text().splitlines()[0].split(",") == [
        "step", "loss", "train", "test", "ood", "validation",
    ]  # fmt: skip


# ---- supports with matched degrees -----------------------------------------------------------------------------------
def test_cube_and_two_cliques_differ_in_nothing_but_connectedness():
    (cube, first), (cliques, second) = (make(8, 2, 0.0, 0) for make in (supports.cube, supports.two_cliques))
    assert first == second and len(first) == 12
    degrees = [[sum(m in c for c in train if len(c) == 2) for m in range(8)] for train in (cube, cliques)]
    assert degrees == [[3] * 8] * 2
    edges = {c for c in cube if len(c) == 2}
    assert not any((a, b) in edges and (b, c) in edges and (a, c) in edges for a, b, c in itertools.combinations(range(8), 3))
    assert [len(supports.groups(train, 8)) for train in (cube, cliques)] == [1, 2]
    assert not set(first) & {*cube, *cliques} and all(a < 4 <= b for a, b in first)
    with pytest.raises(ConfigError, match="graphs on 8 modules"):
        Hyperteacher(n_modules=6, support="cube")


# ---- the code is given -----------------------------------------------------------------------------------------------
def test_a_given_code_is_in_every_token_and_changes_nothing_else():
    plain, given = Hyperteacher(**SMALL), Hyperteacher(**SMALL, code_given=True)
    a, b = (t.sample(4, "ood", t.rng(0, "ood")) for t in (plain, given))
    assert torch.equal(b.tokens[..., : plain.d_in], a.tokens) and torch.equal(b.targets, a.targets)
    assert torch.equal(b.tokens[..., plain.d_in :], b.codes["modules"][:, None].expand(-1, plain.seq, -1))
    assert all(torch.equal(x, y) for x, y in zip(plain.examples(a), given.examples(b), strict=True))
    assert torch.equal(plain.raw_statistic(a), given.raw_statistic(b))


# ---- executors -------------------------------------------------------------------------------------------------------
def test_one_generated_layer_with_relu_is_the_hypernetwork():
    sizes = {"n_layers": 1, "d_model": 8, "n_heads": 2, "d_code": 3, "d_hidden": 5}
    task = Hyperteacher(**SMALL)
    ours = Run(OtherExecutorTransformer(**sizes, n_hidden=1), task).build()
    theirs = Run(HypernetworkTransformer(**sizes), task).build()
    tokens = task.sample(3, "train", task.rng(0, "train")).tokens
    assert torch.equal(ours(tokens), theirs(tokens))


@pytest.mark.parametrize("biases", [False, True])
@pytest.mark.parametrize("activation", ["relu", "tanh", "sine", "square"])
def test_deeper_executors_are_the_network_that_the_code_writes(activation, biases):
    task, sizes = Hyperteacher(**SMALL), {"d_code": 3, "d_hidden": 5, "n_hidden": 3}
    model = Run(OtherExecutorTransformer(1, 8, 2, **sizes, activation=activation, biases=biases), task).build()
    draws = torch.Generator().manual_seed(0)
    if biases:
        assert not model.executor.b_modules.any()
        model.executor.b_modules.data.normal_(generator=draws)
    code, x = torch.randn(1, 1, 3, generator=draws), torch.randn(1, 4, 3, generator=draws)
    f = {"relu": lambda v: v.clamp(min=0), "tanh": torch.tanh, "sine": torch.sin, "square": lambda v: v * v}[activation]
    part = model.executor
    hidden = x[0].double()
    for k, modules in enumerate((part.W_modules, *part.W_deeper)):
        mixed = [modules, part.b_modules[k]] if biases else [modules, torch.zeros(3, 5)]
        weights, shift = (sum(z * m.double() for z, m in zip(code[0, 0].double(), each, strict=True)) for each in mixed)
        hidden = f(hidden @ weights + shift)
    expected = hidden @ part.W_out.double() + part.b_out.double()
    assert torch.allclose(part(code, x)[0].double(), expected, rtol=1e-4, atol=1e-5)  # squares of squares are large


def test_without_biases_an_odd_activation_answers_with_an_odd_function():
    task, sizes = Hyperteacher(**SMALL), {"d_code": 3, "d_hidden": 5, "n_hidden": 1}
    code, x = (torch.randn(2, n, 3, generator=torch.Generator().manual_seed(n)) for n in (1, 4))
    cases = ("tanh", False, True), ("sine", False, True), ("relu", False, False), ("tanh", True, False)
    for activation, biases, odd in cases:
        part = Run(OtherExecutorTransformer(1, 8, 2, **sizes, activation=activation, biases=biases), task).build().executor
        if biases:
            part.b_modules.data.normal_(generator=torch.Generator().manual_seed(0))
        assert torch.allclose(part(code, -x) - part.b_out, part.b_out - part(code, x), atol=1e-6) == odd, (activation, biases)


def test_all_that_a_code_generates_is_read_off_it():
    part = Run(OtherExecutorTransformer(1, 8, 2, d_code=3, d_hidden=5, biases=True), Hyperteacher(**SMALL)).build().executor
    assert part.code_reader().shape == (3 * 5 + 5 * 5 + 2 * 5, 3)
    assert torch.equal(part.code_reader()[-10:], part.b_modules.detach().transpose(0, 1).flatten(1).T)


# ---- initial scale ---------------------------------------------------------------------------------------------------
def test_matrices_are_drawn_at_the_power_of_their_inputs_and_nothing_else_is():
    task, architecture = Hyperteacher(d_x=32, d_y=16), SoftmaxTransformer(n_layers=1, d_model=64)
    run = Run(architecture, task, initialisation=FanInPower(0.8))
    drawn, as_ever = run.build(), Run(architecture, task).build()
    inputs = {"W_E": task.d_in, "W_Q": 64, "W_K": 64, "W_V": 64, "W_O": 64, "W_in": 64, "W_out": 256, "W_U": 64}
    for (name, new), (_, old) in zip(drawn.named_parameters(), as_ever.named_parameters(), strict=True):
        last = name.split(".")[-1]
        if last in inputs:
            assert float(new.detach().std()) == pytest.approx(inputs[last] ** -0.8, rel=0.1), name
        else:
            assert torch.equal(new, old), name
    again = run.build()
    assert all(torch.equal(a, b) for a, b in zip(drawn.parameters(), again.parameters(), strict=True))


# ---- the window of decay ---------------------------------------------------------------------------------------------
@pytest.mark.parametrize("kind", [AdamW, ReferenceAdamW])
@pytest.mark.parametrize("window", [(0.0, 0.2), (0.4, 0.6), (0.8, 1.0)])
def test_total_decay_is_that_of_the_whole_training_wherever_the_window_is(kind, window):
    plain, steps = kind(warmup=5), 50
    windowed = dataclasses.replace(plain, decay_window=window)
    totals = [sum(o.rate(t, steps) * o.decay_at(t, steps) for t in range(steps)) for o in (plain, windowed)]
    assert totals[0] == pytest.approx(totals[1])
    inside = [t for t in range(steps) if windowed.decay_at(t, steps) > 0]
    assert inside == list(range(round(window[0] * steps), round(window[1] * steps)))


def test_weights_decay_inside_the_window_alone(tmp_path):
    """With gradients of 0, Adam moves nothing: what is left is the decay, to the last bit of its factor."""
    optimizer = AdamW(lr=0.1, weight_decay=0.5, warmup=1, decay_window=(0.5, 1.0), clip=None)
    run = Run(TINY, Hyperteacher(**SMALL), steps=4, batch_size=2, evaluations=1, evaluation_episodes=4, optimizer=optimizer)
    training = Training(run, tmp_path, "cpu", lambda _: None)
    training.model.task_loss = None
    object.__setattr__(run.task, "loss", lambda prediction, targets: (prediction * 0).sum())
    sizes = []
    for _ in range(4):
        sizes.append(float(training.model.embed.W_E.detach().norm()))
        training.advance()
    sizes.append(float(training.model.embed.W_E.detach().norm()))
    factors = [b / a for a, b in itertools.pairwise(sizes)]
    expected = [1 - optimizer.rate(t, 4) * optimizer.decay_at(t, 4) for t in range(4)]
    assert factors == pytest.approx(expected, rel=1e-5) and factors[0] == factors[1] == 1 and factors[3] < 1


def test_windows_and_powers_that_mean_nothing_are_refused():
    with pytest.raises(ConfigError, match="the first below the second"):
        AdamW(decay_window=(0.6, 0.4))
    with pytest.raises(ConfigError, match=r"no step of 20 lies in decay_window=\[0, 0\.01\]; widen it"):
        Run(TINY, Hyperteacher(**SMALL), steps=20, optimizer=AdamW(decay_window=(0, 0.01)))
    with pytest.raises(ConfigError, match="no step of 20 lies"):  # the first one has a rate of 0
        Run(TINY, Hyperteacher(**SMALL), steps=20, optimizer=ReferenceAdamW(decay_window=(0, 0.05)))
    with pytest.raises(ConfigError, match="from 0 to 3"):
        FanInPower(math.pi)


def test_a_folder_gives_its_knobs_back(tmp_path):
    run = Run(
        TINY, Hyperteacher(**SMALL), steps=0, evaluation_episodes=4, batch_size=2, initialisation=FanInPower(1.0),
        optimizer=AdamW(decay_window=(0.0, 0.5)),
    )  # fmt: skip
    train(run, tmp_path / "run")
    assert read_run(tmp_path / "run") == run
