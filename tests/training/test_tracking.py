"""Trackers repeat history.csv, each row once, whatever interrupts the training; they change nothing and can break nothing."""

import json
import os
import signal
import sys
from types import SimpleNamespace

import pandas as pd
import pytest
from test_training import STEPS, at_call, contents, elsewhere, make_run

from compolens import cli
from compolens.foundation import files
from compolens.foundation.configs import ConfigError, describe
from compolens.tasks import SPLITS, Hyperteacher
from compolens.training import RESUME, Interrupted, train
from compolens.training.tracking import TensorBoardTracker, WandbTracker, tracker


class Notebook:
    """A tracker that writes down what it is told, and fails where it is asked to."""

    def __init__(self, last=-1, fails_in=None):
        self.last, self.fails_in, self.told = last, fails_in, []

    def start(self, run, folder, resumed):
        return self._note("start", (folder.name, resumed), self.last)

    def log(self, step, numbers):
        self._note("log", (step, numbers))

    def finish(self, scores):
        self._note("finish", scores)

    def _note(self, what, value, answer=None):
        self.told.append((what, value))
        if self.fails_in == what:
            raise RuntimeError("no\nroute to host")
        return answer


@pytest.fixture(scope="module")
def untracked(tmp_path_factory):
    folder = tmp_path_factory.mktemp("untracked") / "run"
    train(make_run(), folder)
    return folder


def rows(folder):
    return pd.read_csv(folder / "history.csv").to_dict("records")


def interrupt(folder, trackers, step):
    with pytest.MonkeyPatch.context() as patch:
        at_call(patch, Hyperteacher, "loss", step, lambda: signal.raise_signal(signal.SIGINT))
        with pytest.raises(Interrupted):
            train(make_run(), folder, trackers=trackers)


# ---- what a tracker is told ------------------------------------------------------------------------------------------
def test_a_tracker_is_told_every_row_of_the_history_and_the_scores(untracked, tmp_path):
    notebook = Notebook()
    scores = train(make_run(), tmp_path / "run", trackers=[notebook])
    start, *logs, finish = notebook.told
    assert start == ("start", ("run", False)) and finish == ("finish", scores)
    told = [{"step": step, **numbers} for _, (step, numbers) in logs]
    assert [list(row) for row in told] == [["step", "loss", *SPLITS]] * 3
    assert told == [pytest.approx(row) for row in rows(tmp_path / "run")]


def test_trackers_change_neither_weights_nor_files(untracked, tmp_path):
    trackers = [Notebook(), TensorBoardTracker(), Notebook(fails_in="log")]
    train(make_run(), tmp_path / "run", trackers=trackers)
    assert contents(tmp_path / "run") == contents(untracked)


@pytest.mark.parametrize(("stopped", "told_before"), [(15, [10]), (9, []), (20, [10, 20])])
def test_a_resumed_run_tells_no_row_twice(tmp_path, stopped, told_before):
    first, second = Notebook(), Notebook(last=max(told_before, default=-1))
    interrupt(tmp_path / "run", [first], stopped)
    train(make_run(), tmp_path / "run", trackers=[second])
    steps = [[value[0] for what, value in notebook.told if what == "log"] for notebook in (first, second)]
    assert steps == [told_before, [step for step in (10, 20, 30) if step not in told_before]]
    assert first.told[-1] == ("finish", None) and second.told[0] == ("start", ("run", True))


def test_a_tracker_that_joins_late_is_told_what_it_missed(tmp_path):
    interrupt(tmp_path / "run", [], 25)
    late = Notebook()
    train(make_run(), tmp_path / "run", trackers=[late])
    assert [value[0] for what, value in late.told if what == "log"] == [10, 20, 30]


def test_a_row_is_told_only_after_it_was_saved(tmp_path):
    folder = tmp_path / "run"

    class Reader(Notebook):
        def log(self, step, numbers):
            state = files.read_tensors(folder / RESUME)[1] if (folder / RESUME).exists() else {"history": rows(folder)}
            assert state["history"][-1]["step"] == step
            super().log(step, numbers)

    reader = Reader()
    train(make_run(), folder, trackers=[reader], save_every=0)
    assert [what for what, _ in reader.told] == ["start", "log", "log", "log", "finish"]


def test_a_run_without_steps_tells_its_one_row(tmp_path):
    notebook = Notebook()
    train(make_run(steps=0, keep=()), tmp_path / "run", trackers=[notebook])
    assert [what for what, _ in notebook.told] == ["start", "log", "finish"] and notebook.told[1][1][0] == 0


@pytest.mark.parametrize(("fails_in", "told"), [("start", 1), ("log", 2), ("finish", 5)])
def test_a_tracker_that_fails_is_said_once_and_off_and_the_training_goes_on(untracked, tmp_path, capsys, fails_in, told):
    broken, other = Notebook(fails_in=fails_in), Notebook()
    scores = train(make_run(), tmp_path / "run", trackers=[broken, other], save_every=0)
    assert capsys.readouterr().err == "Notebook failed and is off (RuntimeError: no route to host); the training goes on\n"
    assert len(broken.told) == told and other.told[-1] == ("finish", scores)
    assert contents(tmp_path / "run") == contents(untracked)


# ---- TensorBoard -----------------------------------------------------------------------------------------------------
def events(folder):
    """step -> name -> value, of the model folder's event files; a step that was logged twice fails."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    read = EventAccumulator(str(folder.parent / "tensorboard" / folder.name), size_guidance={"scalars": 0}).Reload()
    found = {}
    for name in read.Tags()["scalars"]:
        for event in read.Scalars(name):
            assert name not in found.setdefault(event.step, {}), f"{name} twice at step {event.step}"
            found[event.step][name] = event.value
    return found


def as_events(folder):
    """The same, from history.csv and scores.json."""
    found = {int(row.pop("step")): pytest.approx(row, rel=1e-6) for row in rows(folder)}
    scores = json.loads((folder / "scores.json").read_text())
    final = {f"final/{split}": scores[split]["score"] for split in SPLITS}
    found[STEPS] = pytest.approx({**rows(folder)[-1], **final} | {"step": STEPS}, rel=1e-6)
    return found


def assert_events_are_the_history(folder):
    found, wanted = events(folder), as_events(folder)
    found[STEPS]["step"] = STEPS
    assert found == wanted


def test_event_files_hold_the_history_and_stay_out_of_the_model_folder(tmp_path):
    train(make_run(), tmp_path / "run", trackers=[TensorBoardTracker()])
    assert_events_are_the_history(tmp_path / "run")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["run", "tensorboard"]


def train_until_killed(folder):
    """Dies without closing anything, three updates after a checkpoint that the tracker was told of."""
    at_call(pytest.MonkeyPatch(), Hyperteacher, "loss", 24, lambda: os.kill(os.getpid(), signal.SIGKILL))
    train(make_run(), folder, trackers=[TensorBoardTracker()], save_every=0)


def test_event_files_of_a_killed_and_resumed_run_hold_each_row_once(untracked, tmp_path):
    assert elsewhere(train_until_killed, tmp_path / "run") == -signal.SIGKILL
    assert list(events(tmp_path / "run")) == [10, 20]
    train(make_run(), tmp_path / "run", trackers=[TensorBoardTracker()])
    assert_events_are_the_history(tmp_path / "run")
    assert contents(tmp_path / "run") == contents(untracked)


def test_a_training_begun_anew_does_not_go_on_in_the_old_event_files(tmp_path):
    import shutil

    for _ in range(2):
        train(make_run(), tmp_path / "run", trackers=[TensorBoardTracker()])
        assert_events_are_the_history(tmp_path / "run")
        shutil.rmtree(tmp_path / "run")


# ---- Weights & Biases ------------------------------------------------------------------------------------------------
class Service:
    """What the wandb package does, as far as the tracker asks it to; keeps what is logged by run id."""

    def __init__(self):
        self.inits, self.logged, self.summaries, self.exits = [], {}, {}, []
        self.Settings = lambda **settings: settings

    def init(self, **settings):
        self.inits.append(settings)
        name = settings["id"]
        summary = self.summaries.setdefault(name, {})
        log = lambda numbers, step: self.logged.setdefault(name, []).append((step, numbers))  # noqa: E731
        return SimpleNamespace(log=log, summary=summary, finish=lambda exit_code: self.exits.append(exit_code))


@pytest.fixture
def service(monkeypatch):
    service = Service()
    monkeypatch.setitem(sys.modules, "wandb", service)
    return service


def test_wandb_gets_each_row_once_under_one_id_across_a_resumption(service, tmp_path):
    interrupt(tmp_path / "run", [WandbTracker()], 15)
    scores = train(make_run(), tmp_path / "run", trackers=[WandbTracker()])
    (logged,) = service.logged.values()
    assert [{"step": step, **numbers} for step, numbers in logged] == [pytest.approx(row) for row in rows(tmp_path / "run")]
    assert service.exits == [1, 0]
    (summary,) = service.summaries.values()
    assert summary == {f"final/{split}": scores[split]["score"] for split in SPLITS}
    assert service.inits[0]["config"] == describe(make_run()) and service.inits[0]["dir"] == str(tmp_path)


def test_wandb_gets_a_new_run_for_a_training_begun_anew(service, tmp_path):
    import shutil

    for _ in range(2):
        train(make_run(), tmp_path / "run", trackers=[WandbTracker("my-project")])
        shutil.rmtree(tmp_path / "run")
    assert [len(logged) for logged in service.logged.values()] == [3, 3]
    assert {i["project"] for i in service.inits} == {"my-project"}


@pytest.mark.parametrize(("mode", "used"), [(None, "offline"), ("online", "online"), ("disabled", "disabled")])
def test_wandb_is_offline_unless_the_environment_says_otherwise(service, tmp_path, monkeypatch, mode, used):
    monkeypatch.delenv("WANDB_MODE", raising=False)
    if mode:
        monkeypatch.setenv("WANDB_MODE", mode)
    train(make_run(steps=0, keep=()), tmp_path / "run", trackers=[WandbTracker()])
    assert service.inits[0]["mode"] == used


def trains_offline(folder):
    os.environ.pop("WANDB_MODE", None)
    os.environ |= {"HOME": str(folder.parents[1]), "WANDB_CONFIG_DIR": str(folder.parents[1])}
    train(make_run(steps=0, keep=()), folder, trackers=[WandbTracker()])


def test_the_real_wandb_writes_an_offline_run_beside_the_model(tmp_path):
    pytest.importorskip("wandb")
    assert elsewhere(trains_offline, tmp_path / "out" / "run") == 0
    (record,) = (tmp_path / "out" / "wandb").glob("offline-run-*/*.wandb")
    state = json.loads((tmp_path / "out" / "wandb" / "run.json").read_text())
    assert state["step"] == 0 and state["id"] in record.name and record.stat().st_size > 0
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == ["run", "wandb"]


# ---- what is refused -------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("name", "package"), [("tensorboard", "torch.utils.tensorboard"), ("wandb", "wandb")]
)  # a module that is None cannot be imported
def test_a_missing_package_is_an_error_before_training_that_says_what_to_install(monkeypatch, name, package):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ConfigError, match=rf"tracking with {name} needs .*pip install compolens\[tracking\]"):
        tracker(name)


def test_a_tracker_that_does_not_exist_is_refused_with_the_nearest():
    with pytest.raises(ConfigError, match="no tracker 'tensorbord'; did you mean 'tensorboard'"):
        tracker("tensorbord")
    assert isinstance(tracker("tensorboard"), TensorBoardTracker)


RUNS = """
from test_training import make_run
runs = {"run": make_run(steps=1, keep=())}
"""


def test_the_command_line_tracks_what_it_is_asked_to(tmp_path, capsys):
    (tmp_path / "runs.py").write_text(RUNS)
    command = ["train", str(tmp_path / "runs.py"), "--out", str(tmp_path / "out"), "--track"]
    assert cli.main([*command, "tensorbord"]) == 2
    assert "no tracker 'tensorbord'; did you mean 'tensorboard'?" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
    assert cli.main([*command, "tensorboard"]) == 0
    assert list(events(tmp_path / "out" / "run")) == [1]
