"""The recipe of "Attention as a hypernetwork": its schedule, its weight decay, no clipping; and dropout that resumes."""

import itertools
import math
import signal

import numpy as np
import pandas as pd
import pytest
import torch

from compolens import tables
from compolens.diagnosis import groups
from compolens.foundation import files
from compolens.foundation.configs import ConfigError
from compolens.models import HYLA, LinearAttention, SoftmaxTransformer
from compolens.tasks import FuzzyLogic, SRaven
from compolens.training import (
    RESUME,
    AdamW,
    AllButVectors,
    Interrupted,
    MatricesOnly,
    ReferenceAdamW,
    Run,
    WarmupStableDecay,
    check_folder,
    state,
    train,
)
from compolens.zoo import read_run

SIZES = {"n_layers": 2, "d_model": 12, "n_heads": 3, "d_head": 4, "d_value": 4, "d_mlp": 16}
TASK = FuzzyLogic(length=8)


def make_run(architecture=HYLA, dropout=0.2, task=TASK, **settings):
    model = architecture(**SIZES, n_ctx=task.seq, attention_dropout=dropout)
    defaults = {"steps": 12, "batch_size": 16, "evaluations": 4, "evaluation_episodes": 32}
    return Run(model, task, **{**defaults, "optimizer": ReferenceAdamW(warmup=3), **settings})


def contents(folder):
    """Everything in a folder: relative path -> bytes."""
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def interrupt(run, folder, monkeypatch, step):
    """Stop a run by a signal that arrives during an update; that update is finished and saved."""
    original, calls = FuzzyLogic.loss, iter(range(1, 10**6))

    def loss(*arguments):
        if next(calls) == step:
            signal.raise_signal(signal.SIGTERM)
        return original(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(FuzzyLogic, "loss", loss)
        with pytest.raises(Interrupted, match=f"stopped at step {step}"):
            train(run, folder)


def checkpoint(folder, kind):
    """The tensors of one kind in an interrupted run's checkpoint, by parameter."""
    tensors, _ = files.read_tensors(folder / RESUME)
    return {k.removeprefix(f"{kind}."): v for k, v in tensors.items() if k.startswith(f"{kind}.")}


# ---- the schedule ----------------------------------------------------------------------------------------------------
def warmup_cosine_decay(step, peak, warmup, decay_steps, end):
    """optax.warmup_cosine_decay_schedule from 0: linear to the peak, then a cosine whose length is decay_steps - warmup."""
    if step < warmup:
        return peak * (step / warmup)
    length = decay_steps - warmup
    count = min(step - warmup, length)
    alpha = end / peak
    cosine = 0.5 * (1 + math.cos(math.pi * count / length))
    return peak * ((1 - alpha) * cosine + alpha)


@pytest.mark.parametrize(("warmup", "steps"), [(100, 50_000), (1000, 156_250), (3000, 78_125), (10, 100), (0, 50), (7, 16)])
@pytest.mark.parametrize("lr", [1e-3, 3e-4])
def test_the_rate_is_the_references_schedule(warmup, steps, lr):
    recipe = ReferenceAdamW(lr=lr, warmup=warmup)
    at = sorted({*np.linspace(0, steps - 1, 400).astype(int).tolist(), warmup, max(0, warmup - 1), steps - warmup - 1})
    ours = [recipe.rate(step, steps) for step in at]
    theirs = [warmup_cosine_decay(step, lr, warmup, steps - warmup, 0.1 * lr) for step in at]
    np.testing.assert_allclose(ours, theirs, rtol=1e-9, atol=1e-15)
    assert recipe.rate(warmup, steps) == pytest.approx(lr)
    assert max(ours) <= lr * (1 + 1e-12)


@pytest.mark.parametrize(("warmup", "steps"), [(100, 1000), (3, 12)])
def test_the_rate_starts_at_zero_and_is_constant_over_as_many_last_steps_as_the_warm_up(warmup, steps):
    recipe = ReferenceAdamW(lr=0.01, warmup=warmup)
    assert recipe.rate(0, steps) == 0 < recipe.rate(1, steps)
    last = [recipe.rate(step, steps) for step in range(steps - warmup, steps)]
    assert last == pytest.approx([0.001] * warmup, rel=1e-12)
    assert recipe.rate(steps - warmup - 1, steps) > 0.001 * (1 + 1e-9)
    falling = [recipe.rate(step, steps) for step in range(warmup, steps - warmup + 1)]
    assert all(a > b for a, b in itertools.pairwise(falling))


def test_runs_shorter_than_two_warm_ups_still_have_a_rate():
    rates = [ReferenceAdamW(lr=1.0, warmup=10).rate(step, 15) for step in range(15)]
    assert rates[:10] == pytest.approx([k / 10 for k in range(10)]) and all(0.1 - 1e-12 <= r <= 1 for r in rates[10:])


def test_defaults_are_the_references():
    recipe = ReferenceAdamW()
    assert (recipe.lr, recipe.betas, recipe.weight_decay, recipe.warmup) == (1e-3, (0.9, 0.999), 0.1, 100)
    assert (recipe.final, recipe.clip, recipe.decay) == (0.1, None, AllButVectors())
    built = recipe.build(torch.nn.Linear(2, 2))
    assert built.defaults["eps"] == 1e-8 and built.defaults["betas"] == (0.9, 0.999)


# ---- weight decay ----------------------------------------------------------------------------------------------------
def decayed(recipe, model):
    """The names of the parameters that weight decay acts on, read off the optimizer's groups."""
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    groups = recipe.build(model).param_groups
    found = [(names[id(p)], group["weight_decay"]) for group in groups for p in group["params"]]
    assert sorted(name for name, _ in found) == sorted(names.values()), "every parameter once"
    assert {rate for _, rate in found} <= {0.0, recipe.weight_decay}
    return {name for name, rate in found if rate}


def test_decay_acts_on_matrices_and_as_in_the_code_also_on_biases_that_are_no_vectors():
    model = make_run().build()
    matrices = {"embed.W_E", "unembed.W_U"}
    further = set()
    for layer in range(2):
        at = f"blocks.{layer}."
        matrices |= {f"{at}attn.W_{n}" for n in "QKVO"} | {f"{at}mlp.W_in", f"{at}mlp.W_out"}
        further |= {f"{at}attn.b_{n}" for n in "QKV"} | {f"{at}attn.bias.rel_bias"}
    assert decayed(ReferenceAdamW(decay=MatricesOnly()), model) == matrices
    assert decayed(ReferenceAdamW(decay=AllButVectors()), model) == matrices | further
    assert decayed(ReferenceAdamW(), model) == matrices | further
    assert decayed(AdamW(), model) == matrices
    vectors = {name for name, p in model.named_parameters() if p.ndim == 1}
    assert set(dict(model.named_parameters())) == matrices | further | vectors


@pytest.mark.parametrize("decay", ["papr", "", None, [], AllButVectors])
def test_another_decay_is_refused(decay):
    with pytest.raises(ConfigError, match=r"decay must be one of AllButVectors\(\), MatricesOnly\(\), got "):
        ReferenceAdamW(decay=decay)


@pytest.mark.parametrize(("word", "decay"), [("code", AllButVectors()), ("paper", MatricesOnly())])
@pytest.mark.parametrize("recipe", [ReferenceAdamW, WarmupStableDecay])
def test_a_folder_of_version_01_holds_the_equal_run(tmp_path, recipe, word, decay):
    """Its description says a word where it says a class now: it loads, is accepted and resumed, and has equal settings."""
    run = make_run(steps=2, optimizer=recipe(warmup=1, decay=decay))
    assert run == make_run(steps=2, optimizer=recipe(warmup=1, decay=word))
    for folder in (tmp_path / "old", tmp_path / "new"):
        train(run, folder)
    config = files.read_json(tmp_path / "old" / "config.json")
    assert config["run"]["optimizer"]["decay"] == {"class": type(decay).__name__}
    config["run"]["optimizer"]["decay"] = word
    files.write_json(tmp_path / "old" / "config.json", config)
    (tmp_path / "old" / "digests.json").unlink(missing_ok=True)  # which came later
    assert read_run(tmp_path / "old") == read_run(tmp_path / "new") == run
    check_folder(run, tmp_path / "old")
    old, new = (tables.settings(tmp_path / name) for name in ("old", "new"))
    assert old["optimizer.decay"] == new["optimizer.decay"] == type(decay).__name__
    assert old.keys() == new.keys() and len(groups.group([tmp_path / "old", tmp_path / "new"])) == 1
    other = make_run(steps=2, optimizer=recipe(warmup=1, decay="paper" if word == "code" else "code"))
    with pytest.raises(ConfigError, match="holds another run"):
        check_folder(other, tmp_path / "old")


@pytest.mark.parametrize("settings", [{"lr": 0.0}, {"clip": 0.0}, {"weight_decay": -1.0}, {"warmup": -1}])
def test_what_the_plain_recipe_refuses_this_one_refuses(settings):
    with pytest.raises(ConfigError, match="ReferenceAdamW"):
        ReferenceAdamW(**settings)


# ---- one update ------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("decay", [AllButVectors(), MatricesOnly()])
def test_updates_are_adamw_with_decoupled_decay(decay):
    """Two of them, so that the corrections of both moments matter; written out in float64."""
    recipe = ReferenceAdamW(lr=0.05, weight_decay=0.3, decay=decay)
    model = make_run().build()
    optimizer, names = recipe.build(model), decayed(recipe, model)
    expected = {name: p.detach().double() for name, p in model.named_parameters()}
    moments = {name: (torch.zeros_like(p), torch.zeros_like(p)) for name, p in expected.items()}
    rng = torch.Generator().manual_seed(0)
    for step, rate in ((1, 0.05), (2, 0.02)):
        for group in optimizer.param_groups:
            group["lr"] = rate
        for name, parameter in model.named_parameters():
            parameter.grad = (
                torch.randn(parameter.shape, generator=rng) * 10 ** torch.randint(-4, 3, (1,), generator=rng).item()
            )
            gradient, (first, second) = parameter.grad.double(), moments[name]
            first, second = 0.9 * first + 0.1 * gradient, 0.999 * second + 0.001 * gradient**2
            moments[name] = first, second
            shrunk = expected[name] * (1 - rate * 0.3) if name in names else expected[name]
            update = (first / (1 - 0.9**step)) / ((second / (1 - 0.999**step)).sqrt() + 1e-8)
            expected[name] = shrunk - rate * update
        optimizer.step()
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(parameter.detach().double(), expected[name], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("clip", [None, 1.0])
def test_a_huge_gradient_enters_the_moments_whole_unless_clipped(tmp_path, monkeypatch, clip):
    run = make_run(dropout=0.0, optimizer=ReferenceAdamW(warmup=3, clip=clip))
    original = FuzzyLogic.loss
    monkeypatch.setattr(FuzzyLogic, "loss", lambda *arguments: 1e6 * original(*arguments))
    interrupt(run, tmp_path / "run", monkeypatch, 1)
    model = run.build()
    episodes = TASK.sample(16, "train", TASK.rng(0, "train", 0))
    TASK.loss(model(episodes.tokens), episodes.targets).backward()
    gradients = {name: p.grad for name, p in model.named_parameters()}
    norm = torch.stack([g.norm() for g in gradients.values()]).norm()
    assert norm > 1e5
    scale = 1.0 if clip is None else clip / norm
    moments = checkpoint(tmp_path / "run", "optimizer.exp_avg")
    assert moments.keys() == gradients.keys()
    for name, gradient in gradients.items():
        tolerance = 1e-5 * float(norm * scale)
        torch.testing.assert_close(moments[name], 0.1 * scale * gradient, rtol=1e-4, atol=tolerance)


def test_the_first_update_moves_nothing_since_the_rate_is_zero(tmp_path):
    run = make_run(steps=4, keep=(0, 1, 2), optimizer=ReferenceAdamW(warmup=2))
    train(run, tmp_path / "run")
    weights = [files.read_tensors(tmp_path / "run" / "steps" / f"{step}.safetensors")[0] for step in (0, 1, 2)]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])
    assert not torch.equal(weights[1]["embed.W_E"], weights[2]["embed.W_E"])


# ---- dropout in training ---------------------------------------------------------------------------------------------
@pytest.mark.parametrize("answers_only", [False, True], ids=["all positions", "answers only"])
def test_a_run_that_drops_codes_resumes_bit_for_bit(tmp_path, monkeypatch, answers_only):
    run = make_run(answers_only=answers_only)
    train(run, tmp_path / "uninterrupted" / "run")
    interrupt(run, tmp_path / "run", monkeypatch, 5)
    notes = []
    train(run, tmp_path / "run", progress=lambda state: notes.append(state.note))
    assert notes[0] == "resumed at step 5"
    assert contents(tmp_path / "run") == contents(tmp_path / "uninterrupted" / "run")


def test_equal_runs_that_drop_codes_end_in_identical_files_and_leave_global_random_state_alone(tmp_path):
    before = torch.get_rng_state()
    train(make_run(), tmp_path / "first" / "run")
    assert torch.equal(torch.get_rng_state(), before)
    torch.rand(7)
    train(make_run(), tmp_path / "second" / "run", save_every=0)
    assert contents(tmp_path / "first" / "run") == contents(tmp_path / "second" / "run")


def test_evaluating_more_often_does_not_change_what_is_dropped(tmp_path):
    for evaluations in (1, 12):
        train(make_run(evaluations=evaluations), tmp_path / str(evaluations))
    weights = [files.read_tensors(tmp_path / name / "weights.safetensors")[0] for name in ("1", "12")]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])


def test_dropout_changes_the_weights_and_the_data_seed_what_is_dropped(tmp_path, monkeypatch):
    train(make_run(), tmp_path / "dropped")
    train(make_run(dropout=0.0), tmp_path / "whole")
    original = state.stream
    monkeypatch.setattr(state, "stream", lambda seed, purpose, step: original(seed + 1, purpose, step))
    train(make_run(), tmp_path / "other mask")
    finals = [files.read_tensors(tmp_path / n / "weights.safetensors")[0] for n in ("dropped", "whole", "other mask")]
    for i in range(3):
        assert not torch.equal(finals[i]["embed.W_E"], finals[i - 1]["embed.W_E"])


def test_every_update_drops_anew(tmp_path, monkeypatch):
    seen, original = [], state.Training.advance

    def advance(loop):
        def look(pattern, hook):
            if loop.model.training:
                seen.append(pattern[0, 0] == 0)

        with loop.model.hooks([("blocks.0.attn.hook_pattern", look)]):
            original(loop)

    monkeypatch.setattr(state.Training, "advance", advance)
    train(make_run(LinearAttention, steps=6, dropout=0.5), tmp_path / "run")
    assert len(seen) == 6 and all(0 < m.double().mean() < 1 for m in seen)
    assert len({tuple(m.flatten().tolist()) for m in seen}) == 6


# ---- only the answers ------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("architecture", [SoftmaxTransformer, LinearAttention, HYLA], ids=lambda cls: cls.__name__)
@pytest.mark.parametrize("task", [TASK, SRaven(n_features=2)], ids=["fuzzy logic", "S-RAVEN"])
def test_training_on_the_answers_alone_takes_the_same_course(tmp_path, architecture, task):
    courses = []
    for answers_only in (False, True):
        run = make_run(architecture, 0.0, task, evaluations=12, answers_only=answers_only)
        folder = tmp_path / str(answers_only)
        train(run, folder)
        courses.append(pd.read_csv(folder / "history.csv")["loss"].to_numpy())
    assert len(courses[0]) == 12 and np.ptp(courses[0]) > 1e-3, "the loss moves"
    np.testing.assert_allclose(courses[0], courses[1], rtol=1e-3)
