"""Training: equal runs end in equal bits, whatever killed them on the way; what goes wrong is said and loses nothing."""

import contextlib
import dataclasses
import errno
import json
import math
import multiprocessing
import os
import resource
import shutil
import signal
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch

from compolens import cli
from compolens.foundation import files
from compolens.foundation.configs import ConfigError
from compolens.jobs.leases import Held
from compolens.measures.optimizers import Adam
from compolens.models import BottleneckMLP, HypernetworkTransformer, SoftmaxTransformer
from compolens.tasks import SPLITS, Hyperteacher
from compolens.training import RESUME, AdamW, Diverged, Interrupted, Run, evaluate, loop, train
from compolens.zoo.folders import kept_steps, load

STEPS, KEPT = 30, 13
ELSEWHERE = multiprocessing.get_context("forkserver")  # real processes, without importing torch again in each
ELSEWHERE.set_forkserver_preload(["pytest", "compolens.cli", "compolens.training", "compolens.zoo", "torch._dynamo"])
"""With what optimizers bring along, or each process would import that for itself."""


def make_run(**settings):
    task = Hyperteacher(d_x=4, d_y=2, d_hidden=6, n_modules=6, n_context=6, n_queries=3)
    architecture = SoftmaxTransformer(n_layers=1, d_model=8, n_heads=2)
    sizes = {"steps": STEPS, "batch_size": 8, "keep": (KEPT,), "evaluations": 3, "evaluation_episodes": 32}
    return Run(**{"architecture": architecture, "task": task, "optimizer": AdamW(warmup=10), **sizes, **settings})


def contents(folder):
    """Everything in a folder: relative path -> bytes."""
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def stamps(folder):
    return {p: p.stat().st_mtime_ns for p in folder.rglob("*")}


def checkpoint(folder):
    """(weights, step) of the checkpoint of an interrupted run."""
    tensors, state = files.read_tensors(folder / RESUME)
    return {k.removeprefix("model."): v for k, v in tensors.items() if k.startswith("model.")}, state["step"]


def same_weights(left, right):
    return left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)


def at_call(monkeypatch, owner, name, number, act):
    """Call ``act()`` when ``owner.name`` is called for the number-th time, just before what it does itself."""
    original, calls = getattr(owner, name), iter(range(1, 10**6))

    def counted(*arguments, **keywords):
        if next(calls) == number:
            act()
        return original(*arguments, **keywords)

    monkeypatch.setattr(owner, name, counted)


def fail(code):
    def act():
        raise OSError(code, os.strerror(code))

    return act


def elsewhere(function, *arguments):
    """The exit code of another process that runs the function."""
    process = ELSEWHERE.Process(target=function, args=arguments)
    process.start()
    process.join()
    return process.exitcode


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    folder = tmp_path_factory.mktemp("uninterrupted") / "run"
    train(make_run(), folder)
    return folder


# ---- determinism -----------------------------------------------------------------------------------------------------
def test_equal_runs_end_in_identical_files(uninterrupted, tmp_path):
    torch.rand(5)
    train(make_run(), tmp_path / "run", save_every=0)
    assert contents(tmp_path / "run") == contents(uninterrupted)


@pytest.mark.parametrize("seed", ["init_seed", "data_seed"])
def test_another_seed_ends_in_other_weights(uninterrupted, tmp_path, seed):
    train(make_run(**{seed: 1}), tmp_path / "run")
    assert not same_weights(load(tmp_path / "run").model.state_dict(), load(uninterrupted).model.state_dict())


def test_training_leaves_global_random_state_and_threads_alone(tmp_path):
    before, threads = torch.get_rng_state(), torch.get_num_threads()
    train(make_run(steps=2, keep=()), tmp_path / "run")
    assert torch.equal(torch.get_rng_state(), before) and torch.get_num_threads() == threads


# ---- killed, stopped, resumed ----------------------------------------------------------------------------------------
def _die():
    os.kill(os.getpid(), signal.SIGKILL)


def train_until_killed(folder, moment):
    """Train, saving at steps 7, 14, 21, 28 and 30, and die by SIGKILL at a moment: (what, which file, number)."""
    patch, kind, which, number = pytest.MonkeyPatch(), *moment
    ticks = iter(range(10**6))
    patch.setattr(loop, "time", SimpleNamespace(monotonic=lambda: next(ticks)))
    if kind == "in step":
        at_call(patch, Hyperteacher, "loss", number, _die)
    else:
        replace, calls = os.replace, iter(range(1, 10**6))

        def renamed(source, target):
            dies = Path(target).name == which and next(calls) == number
            if dies and kind == "writing":
                _die()
            replace(source, target)
            if dies:
                _die()

        patch.setattr(os, "replace", renamed)
    train(make_run(), folder, save_every=6)


MOMENTS = {
    "before the first checkpoint": ("in step", "", 2),
    "between checkpoints": ("in step", "", 18),
    "while writing the description": ("writing", "config.json", 1),
    "while writing its digest": ("writing", "digests.json", 1),
    "while writing a checkpoint": ("writing", RESUME, 2),
    "between checkpoint and history": ("wrote", RESUME, 3),
    "while keeping weights": ("writing", f"{KEPT}.safetensors", 1),
    "before the last checkpoint": ("writing", RESUME, 5),
    "while writing the weights": ("writing", "weights.safetensors", 1),
    "while writing the digests": ("writing", "digests.json", 2),
    "after the digests": ("wrote", "digests.json", 2),
    "while writing the scores": ("writing", "scores.json", 1),
    "after the scores": ("wrote", "scores.json", 1),
}


@pytest.mark.parametrize("moment", MOMENTS.values(), ids=MOMENTS)
def test_a_killed_run_started_again_ends_as_if_nothing_had_happened(uninterrupted, tmp_path, moment):
    assert elsewhere(train_until_killed, tmp_path / "run", moment) == -signal.SIGKILL
    assert contents(tmp_path / "run") != contents(uninterrupted)
    train(make_run(), tmp_path / "run")
    assert contents(tmp_path / "run") == contents(uninterrupted)


def train_slowly(folder):
    original = Hyperteacher.loss
    Hyperteacher.loss = lambda *arguments: time.sleep(0.3) or original(*arguments)
    train(make_run(), folder, save_every=0)


def test_a_run_killed_from_outside_goes_on_from_its_last_checkpoint(uninterrupted, tmp_path):
    folder = tmp_path / "run"
    process = ELSEWHERE.Process(target=train_slowly, args=(folder,))
    process.start()
    while process.is_alive() and not (folder / RESUME).exists():
        time.sleep(0.005)
    time.sleep(0.1)
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    assert process.exitcode == -signal.SIGKILL
    _, step = checkpoint(folder)
    assert 0 < step < STEPS
    notes = []
    train(make_run(), folder, progress=lambda state: notes.append(state.note))
    assert notes[0] == f"resumed at step {step}"
    assert contents(folder) == contents(uninterrupted)


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_saves_the_step_that_was_taken_then_stops(uninterrupted, tmp_path, monkeypatch, signum):
    handler = signal.getsignal(signum)
    with monkeypatch.context() as patch:
        at_call(patch, Hyperteacher, "loss", KEPT, lambda: signal.raise_signal(signum))
        with pytest.raises(Interrupted, match=f"stopped at step {KEPT}; saved in") as stopped:
            train(make_run(), tmp_path / "run")
    assert stopped.value.signum == signum and signal.getsignal(signum) is handler
    assert checkpoint(tmp_path / "run")[1] == KEPT and not (tmp_path / "run" / "scores.json").exists()
    train(make_run(), tmp_path / "run")
    assert contents(tmp_path / "run") == contents(uninterrupted)


def test_a_closed_terminal_stops_nothing_that_was_told_to_go_on(uninterrupted, tmp_path, monkeypatch):
    """nohup has SIGHUP ignored."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        at_call(monkeypatch, Hyperteacher, "loss", KEPT, lambda: signal.raise_signal(signal.SIGHUP))
        train(make_run(), tmp_path / "run")
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)
    assert contents(tmp_path / "run") == contents(uninterrupted)


def test_a_signal_during_the_last_scores_finishes_the_run_then_stops(uninterrupted, tmp_path, monkeypatch):
    at_call(monkeypatch, Hyperteacher, "describe_split", 1, lambda: signal.raise_signal(signal.SIGTERM))
    with pytest.raises(Interrupted):
        train(make_run(), tmp_path / "run")
    assert contents(tmp_path / "run") == contents(uninterrupted)


RUNS = """
import signal
from test_training import KEPT, at_call, make_run
import pytest
from compolens.tasks import Hyperteacher

at_call(pytest.MonkeyPatch(), Hyperteacher, "loss", KEPT, lambda: signal.raise_signal(signal.{}))
runs = {{"run": make_run(), "next": make_run(init_seed=1)}}
"""


def command_line(*arguments):
    sys.exit(cli.main(list(arguments)))


@pytest.mark.parametrize(("name", "status"), [("SIGTERM", 143), ("SIGINT", 130), ("SIGHUP", 129)])
def test_the_command_line_exits_with_the_signals_status_and_starts_no_further_run(uninterrupted, tmp_path, name, status):
    (tmp_path / "runs.py").write_text(RUNS.format(name))
    arguments = ("train", str(tmp_path / "runs.py"), "--out", str(tmp_path / "out"))
    assert elsewhere(command_line, *arguments) == status
    assert [p.name for p in (tmp_path / "out").iterdir()] == ["run"]
    train(make_run(), tmp_path / "out" / "run")
    assert contents(tmp_path / "out" / "run") == contents(uninterrupted)


def interrupt_run(run, folder, monkeypatch, step):
    with monkeypatch.context() as patch:
        at_call(patch, Hyperteacher, "loss", step, lambda: signal.raise_signal(signal.SIGINT))
        with pytest.raises(Interrupted):
            train(run, folder)


def interrupt(folder, monkeypatch, step):
    interrupt_run(make_run(), folder, monkeypatch, step)


def test_resuming_says_where_and_that_another_environment_changes_bits(tmp_path, monkeypatch):
    interrupt(tmp_path / "run", monkeypatch, 5)
    tensors, state = files.read_tensors(tmp_path / "run" / RESUME)
    state["environments"][-1]["torch"] = "0.0"
    files.write_tensors(tmp_path / "run" / RESUME, tensors, state)
    notes = []
    scores = train(make_run(), tmp_path / "run", progress=lambda state: notes.append(state.note))
    assert "resumed at step 5 in another environment" in notes[0] and f"'torch': '{torch.__version__}'" in notes[0]
    assert not any(notes[1:])
    assert [e["torch"] for e in scores["environments"]] == ["0.0", torch.__version__]
    assert "torch 0.0" in (tmp_path / "run" / "README.md").read_text()


# ---- what goes wrong -------------------------------------------------------------------------------------------------
def poisoned(parameter, update):
    """A `Run.build` whose model gets a NaN in the gradient of one parameter, at one update."""
    build = Run.build

    def built(run):
        model, calls = build(run), iter(range(1, 10**6))
        get = dict(model.named_parameters())[parameter]
        get.register_hook(lambda gradient: gradient * math.nan if next(calls) == update else gradient)
        return model

    return built


def test_a_gradient_that_is_not_finite_stops_naming_step_and_parameter_and_keeps_the_good_weights(
    uninterrupted, tmp_path, monkeypatch
):
    with monkeypatch.context() as patch:
        patch.setattr(Run, "build", poisoned("blocks.0.mlp.W_in", KEPT + 1))
        with pytest.raises(Diverged, match=rf"after step {KEPT}: .*non-finite gradient in blocks\.0\.mlp\.W_in\.") as error:
            train(make_run(), tmp_path / "run")
    assert "\n" not in str(error.value) and not (tmp_path / "run" / "scores.json").exists()
    weights, step = checkpoint(tmp_path / "run")
    assert step == KEPT and same_weights(weights, load(uninterrupted, KEPT).model.state_dict())
    train(make_run(), tmp_path / "run")
    assert contents(tmp_path / "run") == contents(uninterrupted)


def test_a_loss_that_is_not_finite_stops_naming_step_and_first_parameter(tmp_path, monkeypatch):
    loss, calls = Hyperteacher.loss, iter(range(1, 10**6))
    monkeypatch.setattr(Hyperteacher, "loss", lambda *a: loss(*a) * (math.nan if next(calls) == 4 else 1))
    with pytest.raises(Diverged, match=r"after step 3: loss nan, first non-finite gradient in embed\.W_E\."):
        train(make_run(), tmp_path / "run")
    assert checkpoint(tmp_path / "run")[1] == 3


def test_too_large_a_learning_rate_is_a_divergence_not_a_result(tmp_path):
    run = make_run(optimizer=AdamW(lr=1e30, warmup=0))
    with pytest.raises(Diverged, match="lower the learning rate"):
        train(run, tmp_path / "run")
    weights, _ = checkpoint(tmp_path / "run")
    assert all(w.isfinite().all() for w in weights.values()) and not (tmp_path / "run" / "scores.json").exists()
    with pytest.raises(ConfigError, match=r"not finished .* its training diverged in the update .*; lower the learning rate"):
        load(tmp_path / "run")
    (tmp_path / "run" / "diverged.txt").unlink()
    with pytest.raises(ConfigError, match="run the same `compolens train` command to go on"):
        load(tmp_path / "run")


@pytest.mark.parametrize(
    ("number", "advice"),
    [
        (errno.ENOSPC, "Free some space and start again"),
        (errno.EDQUOT, "Free some space of your quota"),
        (errno.EROFS, "Nothing can be written on this file system; choose a folder on another"),
        (errno.EACCES, "You may not write there"),
        (errno.EIO, "Mend that and start again"),
    ],
    ids=str,
)
def test_what_to_do_about_a_disk_is_said_by_what_is_wrong_with_it(tmp_path, monkeypatch, number, advice):
    monkeypatch.setattr(os, "fsync", lambda _: fail(number)())
    with pytest.raises(files.SaveError, match=f"what was there before is untouched. {advice}") as caught:
        files.write_atomically(tmp_path / "file", b"text")
    assert ("space" in str(caught.value)) == (number in (errno.ENOSPC, errno.EDQUOT))
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_a_full_disk_leaves_the_previous_checkpoint_and_says_so_in_one_line(uninterrupted, tmp_path, monkeypatch, call):
    folder = tmp_path / "run"
    with monkeypatch.context() as patch:
        at_call(
            patch, os, call, 2 + 2 * 7 + 1, fail(errno.ENOSPC)
        )  # description and its digest, 7 times checkpoint and history
        with pytest.raises(files.SaveError) as error:
            train(make_run(), folder, save_every=0)
    assert f"could not save {folder / RESUME}: No space left on device; what was there before is untouched" in str(error.value)
    assert "\n" not in str(error.value)
    assert sorted(contents(folder)) == ["config.json", "digests.json", "history.csv", RESUME]
    assert checkpoint(folder)[1] == 7
    train(make_run(), folder)
    assert contents(folder) == contents(uninterrupted)


def train_with_no_room(folder, sentence):
    patch = pytest.MonkeyPatch()
    hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
    at_call(patch, Hyperteacher, "loss", 6, lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (1500, hard)))
    try:
        train(make_run(), folder, save_every=0)
    except files.SaveError as error:
        sentence.write_text(str(error))
        sys.exit(7)


def test_a_file_that_the_system_will_not_write_leaves_the_previous_checkpoint(uninterrupted, tmp_path):
    folder = tmp_path / "run"
    assert elsewhere(train_with_no_room, folder, tmp_path / "sentence") == 7
    assert "File too large; what was there before is untouched" in (tmp_path / "sentence").read_text()
    assert checkpoint(folder)[1] == 5
    train(make_run(), folder)
    assert contents(folder) == contents(uninterrupted)


def test_a_finished_run_is_not_trained_again(uninterrupted, tmp_path, monkeypatch):
    shutil.copytree(uninterrupted, tmp_path / "run")
    before = stamps(tmp_path / "run")
    monkeypatch.setattr(Hyperteacher, "sample", None)
    scores = train(make_run(), tmp_path / "run")
    assert scores == json.loads((uninterrupted / "scores.json").read_text())
    assert stamps(tmp_path / "run").items() >= {p: t for p, t in before.items() if p.is_file()}.items()
    assert contents(tmp_path / "run") == contents(uninterrupted)


TASK = make_run().task
OTHERS = {
    "steps is 30 there, 31 here": {"steps": 31},
    "init_seed is 0 there, 4 here": {"init_seed": 4},
    "task.d_hidden is 6 there, 7 here": {"task": dataclasses.replace(TASK, d_hidden=7)},
    "optimizer.lr is 0.001 there, 0.1 here": {"optimizer": AdamW(lr=0.1, warmup=10)},
    "architecture.class is 'SoftmaxTransformer' there, 'BottleneckMLP' here": {"architecture": BottleneckMLP()},
}


WRITES = ["checkpoint"] * (KEPT - 1) + ["kept weights"] + ["checkpoint"] * (STEPS - KEPT + 1) + ["scores"]


@pytest.mark.parametrize("number", [0, 1, KEPT - 1, KEPT, STEPS, STEPS + 1], ids=lambda number: f"{number}-{WRITES[number]}")
def test_a_folder_that_somebody_else_took_over_is_written_no_more(uninterrupted, tmp_path, number):
    folder, calls, before = tmp_path / "run", 0, {}

    def may_write():
        nonlocal calls, before
        before, calls = contents(folder), calls + 1
        del before[".lock"]  # which training itself removes
        if calls > number:
            raise Held("somebody else is at it")

    with pytest.raises(Held, match="somebody else is at it"):
        train(make_run(), folder, save_every=0, may_write=may_write)
    assert calls == number + 1 and contents(folder) == before
    assert ("steps/13.safetensors" in before) == ("kept weights" in WRITES[:number])
    train(make_run(), folder)  # whoever took it over ends it
    assert contents(folder) == contents(uninterrupted)


def test_whoever_may_write_is_asked_before_every_write(tmp_path):
    asked = []
    train(make_run(), tmp_path / "run", save_every=0, may_write=lambda: asked.append(len(asked)))
    assert len(asked) == len(WRITES)


@pytest.mark.parametrize(("difference", "settings"), OTHERS.items(), ids=OTHERS)
def test_a_folder_of_another_run_is_refused_naming_what_differs(uninterrupted, difference, settings):
    before = contents(uninterrupted)
    with pytest.raises(ConfigError) as error:
        train(make_run(**settings), uninterrupted)
    assert f"holds another run ({difference}); choose another --out" in str(error.value)
    assert contents(uninterrupted) == before


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"device": "gpu"}, "device 'gpu' cannot be used"),
        ({"device": None}, "train: device must be a word, such as 'cpu' or 'cuda', got None"),
        ({"folder": "file"}, "file is a file; choose another"),
        ({"folder": "file/below"}, "file is a file; choose another"),
        ({"trackers": "tensorboard"}, r"train: trackers must be a list of trackers, such as \[compolens"),
        ({"trackers": ["tensorboard"]}, "train: trackers must be a list of trackers"),
        ({"run": "run"}, "train wants a Run, such as Run"),
    ],
)
def test_arguments_of_another_kind_are_refused_before_there_is_a_folder(tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("mine")
    with pytest.raises(ConfigError, match=message):
        train(**{"run": make_run(), "folder": "run"} | arguments)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_folder_that_holds_something_else_is_refused_and_left_alone(tmp_path):
    (tmp_path / "thesis.tex").write_text("precious")
    with pytest.raises(ConfigError, match="exists and holds no run"):
        train(make_run(), tmp_path)
    assert contents(tmp_path) == {"thesis.tex": b"precious"}


def hold(folder, connection):
    with files.locked(folder):
        connection.send("held")
        connection.poll(None)


def test_a_folder_in_training_elsewhere_is_refused_until_that_process_is_gone(uninterrupted, tmp_path):
    here, there = ELSEWHERE.Pipe()
    process = ELSEWHERE.Process(target=hold, args=(tmp_path / "run", there), daemon=True)
    process.start()
    assert here.poll(600) and here.recv() == "held"
    with pytest.raises(ConfigError, match="is in training by another process; wait for it or choose another --out"):
        train(make_run(), tmp_path / "run")
    process.kill()
    process.join()
    train(make_run(), tmp_path / "run")
    assert contents(tmp_path / "run") == contents(uninterrupted)


def test_a_lock_is_exclusive_here_too_and_leaves_nothing(tmp_path):
    with files.locked(tmp_path), pytest.raises(ConfigError), files.locked(tmp_path):
        pass
    assert contents(tmp_path) == {}


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"steps": -1}, "steps must not be negative"),
        ({"steps": 2.5}, "steps must be a whole number, got 2.5"),
        ({"init_seed": "0"}, "init_seed must be a whole number"),
        ({"batch_size": 0}, "batch_size must be a whole number of at least 1"),
        ({"keep": (3, 31)}, "keep names step 31, outside 0 to 30"),
    ],
)
def test_a_run_that_means_nothing_is_refused(settings, complaint):
    with pytest.raises(ConfigError, match=complaint):
        make_run(**settings)


# ---- what a folder holds ---------------------------------------------------------------------------------------------
def test_kept_weights_are_those_of_their_step(uninterrupted, tmp_path, monkeypatch):
    interrupt(tmp_path / "run", monkeypatch, KEPT)
    stopped, _ = checkpoint(tmp_path / "run")
    assert kept_steps(uninterrupted) == [KEPT, STEPS]
    assert load(uninterrupted, KEPT).step == KEPT
    assert same_weights(load(uninterrupted, KEPT).model.state_dict(), stopped)
    assert not same_weights(load(uninterrupted).model.state_dict(), stopped)


def test_step_0_is_the_model_as_built_and_the_last_step_the_final_one(tmp_path):
    run = make_run(steps=3, keep=[3, 0])
    train(run, tmp_path / "run")
    assert kept_steps(tmp_path / "run") == [0, 3]
    assert same_weights(load(tmp_path / "run", 0).model.state_dict(), run.build().state_dict())
    assert same_weights(load(tmp_path / "run", 3).model.state_dict(), load(tmp_path / "run").model.state_dict())


def test_weights_of_a_step_that_was_not_kept_are_refused(uninterrupted):
    with pytest.raises(ConfigError, match=rf"keeps no weights of step 5; kept: \[{KEPT}, {STEPS}\]"):
        load(uninterrupted, 5)


def test_no_steps_make_a_folder_of_the_model_as_built(tmp_path):
    run = make_run(steps=0, keep=())
    scores = train(run, tmp_path / "run")
    trained = load(tmp_path / "run")
    assert trained.step == scores["step"] == 0 and trained.run == run
    assert same_weights(trained.model.state_dict(), run.build().state_dict())
    assert pd.read_csv(tmp_path / "run" / "history.csv")["step"].tolist() == [0]


def test_history_holds_the_scores_of_its_steps_and_the_loss_since_the_row_before(uninterrupted, tmp_path, monkeypatch):
    loss, losses = Hyperteacher.loss, []

    def noted(*arguments):
        losses.append(loss(*arguments))
        return losses[-1]

    monkeypatch.setattr(Hyperteacher, "loss", noted)
    train(make_run(keep=(10,)), tmp_path / "run")
    history = pd.read_csv(tmp_path / "run" / "history.csv")
    assert list(history.columns) == ["step", "loss", *SPLITS] and history["step"].tolist() == [10, 20, 30]
    means = torch.stack(losses).detach().double().view(3, 10).mean(1)
    np.testing.assert_allclose(history["loss"], means, rtol=1e-6)
    trained = load(tmp_path / "run", 10)
    for split in SPLITS:
        result = evaluate(trained.model, trained.task, split, 32, trained.run.data_seed, batch=8)
        assert history[split][0] == pytest.approx(result.score, rel=1e-12)


def test_the_card_tells_scores_split_and_seeds(uninterrupted):
    card = (uninterrupted / "README.md").read_text()
    scores = json.loads((uninterrupted / "scores.json").read_text())
    for split in SPLITS:
        assert f"| {split} | {scores[split]['score']:.4f} | {scores[split]['se']:.4f} | 128 |" in card
    for key, value in TASK.describe_split().items():
        assert f"- {key}: {value}" in card
    assert f"SoftmaxTransformer ({scores['parameters']:,} parameters) on Hyperteacher, {STEPS} steps" in card
    assert "init seed 0, data seed 0" in card


@pytest.mark.parametrize("split", SPLITS)
def test_scores_are_pooled_and_their_error_is_the_jackknife_over_compositions(uninterrupted, split):
    trained = load(uninterrupted)
    draws = [trained.task.sample(128, split, trained.task.rng("final/0", split, 0))]
    with torch.no_grad():
        parts = [(trained.task.errors(trained.model(e.tokens), e.targets), e.composition) for e in draws]
    (error, weight), composition = parts[0]
    ids = composition.unique().tolist()
    without = [float(1 - error[composition != c].sum() / weight[composition != c].sum()) for c in ids]
    k = len(ids)
    variance = (k - 1) / k * sum((v - sum(without) / k) ** 2 for v in without)
    written = json.loads((uninterrupted / "scores.json").read_text())[split]
    assert k == len(trained.task.compositions(split))
    assert written["score"] == pytest.approx(float(1 - error.sum() / weight.sum()), rel=1e-9)
    assert written["se"] == pytest.approx(math.sqrt(variance), rel=1e-6)


def test_evaluate_is_the_tasks_score_on_all_batches_together(uninterrupted):
    trained = load(uninterrupted)
    task, sizes = trained.task, (16, 16, 16, 2)
    draws = [task.sample(n, "ood", task.rng(5, "ood", step)) for step, n in enumerate(sizes)]
    tokens, targets = torch.cat([e.tokens for e in draws]), torch.cat([e.targets for e in draws])
    result = evaluate(trained.model, task, "ood", 50, 5, batch=16)
    with torch.no_grad():
        assert result.score == pytest.approx(task.score(trained.model(tokens), targets), rel=1e-6)
    scores, weights, counts = (np.array(column) for column in zip(*result.per_composition.values(), strict=True))
    assert result.score == pytest.approx((scores * weights).sum() / weights.sum())
    assert counts.sum() == 50 and set(result.per_composition) == set(task.compositions("ood"))


# ---- the optimizer ---------------------------------------------------------------------------------------------------
def test_the_learning_rate_warms_up_linearly_then_falls_as_a_cosine():
    optimizer = AdamW(lr=0.3, warmup=10, final=0.1)
    rates = [optimizer.rate(step, 110) for step in range(111)]
    assert rates[0] == pytest.approx(0.03) and rates[4] == pytest.approx(0.15)
    assert rates[9] == rates[10] == pytest.approx(0.3)
    assert rates[35] == pytest.approx(0.3 * (0.1 + 0.9 * (1 + math.sqrt(0.5)) / 2))
    assert rates[60] == pytest.approx(0.3 * (0.1 + 0.9 * 0.5))
    assert rates[110] == pytest.approx(0.03)
    assert AdamW(lr=0.3, warmup=0).rate(0, 110) == pytest.approx(0.3)


def test_training_follows_the_schedule(tmp_path, monkeypatch):
    seen, kind = [], type(AdamW().build(torch.nn.Linear(2, 2)))
    step = kind.step

    def noted(self, *arguments):
        seen.append([group["lr"] for group in self.param_groups])
        return step(self, *arguments)

    monkeypatch.setattr(kind, "step", noted)
    run = make_run(steps=12, keep=())
    train(run, tmp_path / "run")
    assert seen == [[run.optimizer.rate(k, 12)] * 2 for k in range(12)]


@pytest.mark.parametrize("kind", [SoftmaxTransformer, HypernetworkTransformer, BottleneckMLP])
def test_weights_of_matrices_decay_and_nothing_else_does(kind):
    model = make_run(architecture=kind(n_layers=1, d_model=8, n_heads=2)).build()
    names = {id(p): name for name, p in model.named_parameters()}
    decayed, free = AdamW(weight_decay=0.3).build(model).param_groups
    assert (decayed["weight_decay"], free["weight_decay"]) == (0.3, 0.0)
    chosen = {names[id(p)] for p in decayed["params"]}
    last = {name: name.rsplit(".", maxsplit=1)[-1] for name in names.values()}
    assert chosen == {name for name, part in last.items() if part.startswith("W_") or part == "weight"}
    assert chosen | {names[id(p)] for p in free["params"]} == set(names.values())


def test_an_update_is_that_of_torchs_own_optimizer_to_the_last_bit():
    ours, theirs = (torch.nn.Linear(5, 3) for _ in range(2))
    theirs.load_state_dict(ours.state_dict())
    before = ours.weight.detach().clone()
    setting = AdamW(lr=0.1, weight_decay=0.3)
    groups = [{"params": [theirs.weight], "weight_decay": 0.3}, {"params": [theirs.bias], "weight_decay": 0.0}]
    pairs = [(ours, setting.build(ours)), (theirs, torch.optim.AdamW(groups, lr=0.1, betas=setting.betas, fused=True))]
    for k in range(4):
        x = torch.randn(7, 5, generator=torch.Generator().manual_seed(k))
        for model, optimizer in pairs:
            optimizer.zero_grad()
            model(x).square().sum().backward()
            optimizer.step()
    assert all(a.equal(b) for a, b in zip(ours.parameters(), theirs.parameters(), strict=True))
    assert not torch.isclose(ours.weight, before).any()


def test_the_adam_of_fits_is_torchs_own_to_the_last_bit_under_a_schedule_and_a_closure():
    found = []
    for kind in (Adam, torch.optim.Adam):
        free = torch.nn.Parameter(torch.linspace(-1, 1, 6))
        optimizer = kind([{"params": [free], "lr": 0.3}], lr=0.1)
        falling = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 5)

        def loss(free=free, optimizer=optimizer):
            optimizer.zero_grad()
            value = (free - 2).pow(4).sum()
            value.backward()
            return value

        values = []
        for _ in range(4):
            values.append(optimizer.step(loss).detach())
            falling.step()
        found.append((free.detach().clone(), torch.stack(values)))
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(*found, strict=True))
    assert (found[0][0] != torch.linspace(-1, 1, 6)).all()


def test_gradients_are_clipped_to_the_largest_norm(tmp_path, monkeypatch):
    norms, kind = [], type(AdamW().build(torch.nn.Linear(2, 2)))
    step = kind.step

    def noted(self, *arguments):
        gradients = [p.grad.flatten() for group in self.param_groups for p in group["params"]]
        norms.append(float(torch.cat(gradients).norm()))
        return step(self, *arguments)

    monkeypatch.setattr(kind, "step", noted)
    train(make_run(steps=4, keep=(), optimizer=AdamW(clip=0.01)), tmp_path / "run")
    assert norms == pytest.approx([0.01] * 4, rel=1e-3)


def test_progress_is_told_every_20_steps_and_at_the_end(tmp_path):
    told = []
    train(make_run(), tmp_path / "run", progress=told.append)
    assert [(state.step, state.steps) for state in told] == [(20, STEPS), (STEPS, STEPS)]
    history = pd.read_csv(tmp_path / "run" / "history.csv")
    assert told[-1].scores == pytest.approx(history.iloc[-1][[*SPLITS]].to_dict())


def test_training_outside_the_main_thread_needs_no_signals(uninterrupted, tmp_path):
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(1) as pool, contextlib.closing(pool.map(train, [make_run()], [tmp_path / "run"])) as results:
        list(results)
    assert contents(tmp_path / "run") == contents(uninterrupted)
