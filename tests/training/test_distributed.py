"""Several processes under torchrun train what one trains: the same losses and weights, whatever ends them on the way."""

import contextlib
import dataclasses
import gc
import importlib
import json
import os
import signal
import socket
import subprocess
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from once import done_once
from test_contracts import SMALL_TASK, small
from test_tracking import events
from test_training import KEPT, STEPS, TASK, at_call, checkpoint, contents, make_run

from compolens import cli
from compolens.foundation.configs import ConfigError
from compolens.models import (
    HYLA,
    BottleneckMLP,
    CalibratedThreshold,
    HypernetworkTransformer,
    SoftmaxTransformer,
    SparseCoding,
)
from compolens.models.blocks import MLP
from compolens.tasks import FAMILIES, SPLITS, Hyperteacher
from compolens.training import Interrupted, distributed, loop, state, train
from compolens.training.distributed import Alone, Group, check_divisible, check_mean, launched, together
from compolens.zoo.folders import load

SIZES = {"n_layers": 1, "d_model": 8, "n_heads": 2}
RUNS = {
    "softmax": make_run(architecture=SoftmaxTransformer(**SIZES)),
    "hypernetwork": make_run(architecture=HypernetworkTransformer(**SIZES, d_code=4, d_hidden=6), answers_only=True),
    "bottleneck": make_run(architecture=BottleneckMLP(**SIZES)),
    "dropout": make_run(architecture=HYLA(**SIZES, n_ctx=9, attention_dropout=0.3), answers_only=True),
    "calibrated": make_run(architecture=SparseCoding(**SIZES, threshold=CalibratedThreshold(0.5))),
}
STOPPED = 5


class SummedLoss(Hyperteacher):
    """A loss that grows with the batch."""

    def loss(self, prediction, targets):
        return super().loss(prediction, targets) * len(targets)


class WithIdleWeights(SoftmaxTransformer):
    """An architecture with parameters that answer nothing."""

    def build(self, **dimensions):
        model = super().build(**dimensions)
        model.idle = MLP(2, 2)
        return model


REFUSED = {
    "indivisible": make_run(batch_size=7),
    "summed": make_run(task=SummedLoss(**dataclasses.asdict(TASK))),
    "idle": make_run(architecture=WithIdleWeights(**SIZES)),
}


# ---- what the processes do: this file is also the script that torchrun starts ----------------------------------------------
def trains_all(out):
    """Every run, each in a group of its own; then what is refused, and a signal that only one process gets."""
    rank, said = int(os.environ["RANK"]), {}
    for name, run in RUNS.items():
        notes = []
        scores = train(run, out / name, progress=lambda state, notes=notes: notes.append(state.step))
        said[name] = {"scores": scores, "notes": notes}
        finished = train(run, out / name)
        assert finished == scores
        # what knows a group keeps its threads, which can abort a process that ends
        assert not any(isinstance(one, torch.nn.parallel.DistributedDataParallel) for one in gc.get_objects())
    for name, run in REFUSED.items():
        with pytest.raises(ConfigError) as error:
            train(run, out / name)
        said[name] = str(error.value)
    with pytest.raises(ConfigError) as error:
        train(RUNS["softmax"], out / "busy")
    said["busy"] = str(error.value)
    with pytest.raises(ConfigError) as error:
        train(list(RUNS.values())[rank], out / "different")
    said["different"] = str(error.value)
    said["stopped"] = stops_in_one_process(rank, out / "stopped" / "softmax")
    train(RUNS["softmax"], out / "stopped" / "softmax")
    (out / f"said-{rank}.json").write_text(json.dumps(said))


def stops_in_one_process(rank, folder):
    """A SIGTERM to process 1 alone, in an update; the step at which this process stopped."""
    with pytest.MonkeyPatch.context() as patch:
        if rank == 1:  # one call beforehand and one for each slice check whether the loss is a mean
            at_call(patch, Hyperteacher, "loss", 3 + STOPPED, lambda: signal.raise_signal(signal.SIGTERM))
        with pytest.raises(Interrupted) as error:
            train(RUNS["softmax"], folder)
    assert error.value.signum == signal.SIGTERM
    return checkpoint(folder)[1]


KILLED_ONCE = """
import os, signal
import pytest
from compolens import training
from compolens.tasks import Hyperteacher
from test_distributed import KEPT, RUNS, at_call

training.train.__kwdefaults__["save_every"] = 0
if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0" and os.environ["RANK"] == "1":
    at_call(pytest.MonkeyPatch(), Hyperteacher, "loss", 3 + KEPT, lambda: os.kill(os.getpid(), signal.SIGKILL))
runs = {"softmax": RUNS["softmax"]}
"""


def torchrun(*arguments):
    """Two gloo processes of this machine, on a free port."""
    environment = {k: v for k, v in os.environ.items() if k not in ("RANK", "WORLD_SIZE")}
    here = Path(__file__).parent
    environment |= {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join([str(here), *sys.path])}
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", *map(str, arguments)]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        try:
            said, _ = process.communicate()
        except BaseException:
            process.terminate()  # which ends its processes, too
            raise
    return process.returncode, said


@pytest.fixture(scope="module")
def together_folder(shared):
    out = shared / "distributed"

    def train_together():
        (out / "together" / "busy").mkdir(parents=True)
        (out / "together" / "busy" / "thesis.tex").write_text("precious")
        status, text = torchrun(__file__, out / "together")
        assert status == 0, text

    done_once(out, {"together": train_together})
    return out / "together"


@pytest.fixture(scope="module")
def alone_folder(shared):
    out = shared / "distributed"
    done_once(out, {f"alone-{name}": partial(train, run, out / "alone" / name) for name, run in RUNS.items()})
    return out / "alone"


def said(folder):
    return [json.loads((folder / f"said-{rank}.json").read_text()) for rank in (0, 1)]


def assert_same_training(left, right):
    """The same losses, scores and weights, to single precision.

    Biases of the keys are left out: softmax does not feel them, so their gradient is rounding alone, which Adam magnifies.
    """
    ours, theirs = (pd.read_csv(folder / "history.csv") for folder in (left, right))
    assert ours["step"].tolist() == theirs["step"].tolist() == [10, 20, 30]
    np.testing.assert_allclose(ours["loss"], theirs["loss"], rtol=1e-5)
    np.testing.assert_allclose(ours[[*SPLITS]], theirs[[*SPLITS]], atol=1e-4)
    for step in (KEPT, None):
        ours, theirs = (load(folder, step).model.state_dict() for folder in (left, right))
        for name in ours:
            if not name.endswith("attn.b_K"):
                torch.testing.assert_close(ours[name], theirs[name], rtol=1e-3, atol=2e-5)


# ---- the same as one process -----------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", RUNS)
def test_two_processes_train_what_one_trains(alone_folder, together_folder, name):
    assert_same_training(together_folder / name, alone_folder / name)


def test_every_process_gets_the_scores_and_only_the_first_tells(together_folder):
    first, second = said(together_folder)
    for name in RUNS:
        written = json.loads((together_folder / name / "scores.json").read_text())
        assert first[name]["scores"] == second[name]["scores"] == written
        assert first[name]["notes"] == [20, STEPS] and second[name]["notes"] == []


def test_a_folder_looks_as_that_of_one_process_and_says_how_many_there_were(alone_folder, together_folder):
    assert contents(together_folder / "softmax").keys() == contents(alone_folder / "softmax").keys()
    scores = [json.loads((f / "softmax" / "scores.json").read_text()) for f in (together_folder, alone_folder)]
    assert [e.get("processes") for s in scores for e in s["environments"]] == [2, None]
    assert ", 2 processes" in (together_folder / "softmax" / "README.md").read_text()
    configs = [(f / "softmax" / "config.json").read_bytes() for f in (together_folder, alone_folder)]
    assert configs[0] == configs[1]


# ---- what ends a group -----------------------------------------------------------------------------------------------
def test_a_signal_to_one_process_stops_all_at_the_same_step_and_the_group_resumes(alone_folder, together_folder):
    assert [s["stopped"] for s in said(together_folder)] == [STOPPED, STOPPED]
    assert contents(together_folder / "stopped" / "softmax") == contents(together_folder / "softmax")


def test_the_process_that_is_left_says_why_it_stops_and_what_goes_on(tmp_path):
    """Without torchrun beside them, which stops whoever is left and may be faster than this sentence."""
    (tmp_path / "runs.py").write_text(KILLED_ONCE)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    here = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    shared = os.environ | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": "2", "OMP_NUM_THREADS": "1"}
    shared |= {"PYTHONPATH": here, "TORCHELASTIC_RESTART_COUNT": "0"}
    command = [sys.executable, "-m", "compolens.cli", "train", tmp_path / "runs.py", "--out", tmp_path / "out"]
    with contextlib.ExitStack() as stack:
        left, killed = (
            stack.enter_context(subprocess.Popen(command, env=shared | {"RANK": rank}, stderr=subprocess.PIPE, text=True))
            for rank in "01"
        )
        stack.callback(left.kill)
        _, text = left.communicate()
        assert killed.wait() == -signal.SIGKILL
    assert left.returncode == 1
    assert "another process of this training has ended, so this one stops as well" in text
    assert checkpoint(tmp_path / "out" / "softmax")[1] == KEPT - 1


def test_the_command_goes_on_by_itself_after_a_process_was_killed_and_only_the_first_prints(together_folder, tmp_path):
    (tmp_path / "runs.py").write_text(KILLED_ONCE)
    command = ("-m", "compolens.cli", "train", tmp_path / "runs.py", "--out", tmp_path / "out", "--track", "tensorboard")
    status, text = torchrun("--max-restarts", "1", *command)
    assert status == 0, text
    assert f"softmax: 20/{STEPS}" in text and text.count("softmax: train ") == 1
    assert contents(tmp_path / "out" / "softmax") == contents(together_folder / "softmax")
    assert list(events(tmp_path / "out" / "softmax")) == [10, 20, 30]


def test_torchrun_is_given_one_run_by_name(tmp_path, monkeypatch, capsys):
    (tmp_path / "runs.py").write_text("from test_distributed import RUNS as runs")
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert cli.main(["train", str(tmp_path / "runs.py"), "--out", str(tmp_path / "out")]) == 2
    assert "all processes train one run, and 5 were named; name one, such as softmax" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_one_process_goes_on_where_two_stopped_and_says_so(alone_folder, together_folder, tmp_path, monkeypatch):
    group = type("Pair", (Alone,), {"size": 2})("cpu")  # a checkpoint such as two processes leave
    with monkeypatch.context() as patch:
        patch.setattr(loop, "_check_group", lambda *_: None)
        patch.setattr(distributed, "together", lambda device: contextlib.nullcontext(group))
        patch.setattr(state.Training, "advance", _stopping(state.Training.advance))
        with pytest.raises(Interrupted):
            train(RUNS["softmax"], tmp_path / "run")
    notes = []
    scores = train(RUNS["softmax"], tmp_path / "run", progress=lambda state: notes.append(state.note))
    assert f"resumed at step {STOPPED} in another environment ({{'processes': 1}})" in notes[0]
    assert [e.get("processes", 1) for e in scores["environments"]] == [2, 1]
    assert_same_training(tmp_path / "run", alone_folder / "softmax")


def _stopping(advance):
    def advanced(loop):
        advance(loop)
        if loop.step == STOPPED:
            signal.raise_signal(signal.SIGTERM)

    return advanced


# ---- what is refused -------------------------------------------------------------------------------------------------
COMPLAINTS = {
    "indivisible": "a batch of 7 episodes does not divide among 2 processes; choose batch_size=6 or 8, or --nproc-per-node",
    "summed": "is not the mean of the losses of its 2 slices",
    "idle": "parameter idle.W_in, idle.b_in, idle.W_out takes no part in the loss",
    "different": "the processes were given different runs",
    "busy": "exists and holds no run; choose another --out",
}


@pytest.mark.parametrize(("name", "complaint"), COMPLAINTS.items())
def test_what_cannot_be_trained_together_is_refused_in_every_process_alike(together_folder, name, complaint):
    first, second = (s[name] for s in said(together_folder))
    assert first == second and complaint in first


def test_every_process_answers_its_own_slice():
    parts = []
    for rank in range(3):
        group = object.__new__(Group)
        group.rank, group.size = rank, 3
        parts.append(group.part(torch.arange(12)).tolist())
    assert parts == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]


def test_batches_that_divide_are_named():
    check_divisible(8, 4)
    with pytest.raises(ConfigError, match=r"choose batch_size=8 or 12, or .* among 1, 2, 5, 10$"):
        check_divisible(10, 4)
    with pytest.raises(ConfigError, match=r"choose batch_size=4, or"):
        check_divisible(3, 4)


READ_NO_FILES = [name for name, cls in FAMILIES.items() if "data" not in {field.name for field in dataclasses.fields(cls)}]


@pytest.mark.parametrize("name", READ_NO_FILES)
def test_the_loss_of_every_family_is_a_mean_over_episodes(name):
    task = small(FAMILIES[name], SMALL_TASK)
    targets = task.sample(8, "train", task.rng(0, "train")).targets
    prediction = torch.randn(8, task.seq, task.d_out, generator=torch.Generator().manual_seed(0))
    check_mean(task.loss, prediction, targets, 4)
    with pytest.raises(ConfigError, match="not the mean of the losses of its 4 slices"):
        check_mean(lambda *a: 2 * task.loss(*a) / len(a[0]), prediction, targets, 4)


@pytest.mark.parametrize(
    ("variables", "complaint"),
    [
        ({"RANK": "first", "WORLD_SIZE": "2"}, "RANK must be a whole number, as torchrun sets it; got 'first'"),
        ({"RANK": "2", "WORLD_SIZE": "2"}, "RANK=2 must be below WORLD_SIZE=2"),
        ({"RANK": "0", "WORLD_SIZE": "2"}, "could not find one another .*MASTER_ADDR.*; start them with torchrun"),
    ],
)
def test_an_environment_that_torchrun_did_not_make_is_refused(monkeypatch, variables, complaint):
    monkeypatch.delenv("MASTER_ADDR", raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError, match=complaint), together("cpu"):
        pass


def test_a_gpu_is_not_chosen_by_number_under_torchrun(monkeypatch):
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ConfigError, match="say cuda instead of cuda:1"), together("cuda:1"):
        pass


@pytest.mark.parametrize("variables", [{}, {"WORLD_SIZE": "2"}, {"RANK": "0", "WORLD_SIZE": "1"}])
def test_without_torchrun_or_with_one_process_there_is_nobody_else(monkeypatch, variables):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert launched() == (0, 1)
    batch = torch.ones(3)
    with together("cpu") as group:
        assert isinstance(group, Alone) and group.first and group.part(batch) is batch
        assert not torch.distributed.is_initialized()


# ---- the end -----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("processes", "status"), [("2", 2), ("1", -signal.SIGABRT)])
def test_what_aborts_the_interpreters_end_does_not_fail_one_of_several_processes(tmp_path, processes, status):
    """As a thread does that a closed process group left behind."""
    (tmp_path / "sitecustomize.py").write_text("import atexit, os\natexit.register(os.abort)\n")
    environment = os.environ | {
        "RANK": "0",
        "WORLD_SIZE": processes,
        "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path]),
    }
    command = [sys.executable, "-m", "compolens.cli", "models", str(tmp_path / "nowhere")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == status
    assert "nowhere" in done.stderr


if __name__ == "__main__":
    torch.set_num_threads(1)
    importlib.import_module("torch._dynamo")  # as torch's data parallelism does
    gc.freeze()  # every group's end looks through all objects; without those of imports it is quick, and threads still run
    trains_all(Path(sys.argv[1]))
