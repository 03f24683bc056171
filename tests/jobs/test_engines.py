"""Sweeps on several processes and machines, some of which die: every run finishes, and no step of one is done twice but the
one that was under way."""

import json
import multiprocessing
import os
import shutil
import signal
import sys
import threading
import time
from collections import defaultdict
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest
import test_jobs
from test_jobs import logged, slow, square, until
from test_training import checkpoint

from compolens import cli, jobs
from compolens.cli.flags import Shard
from compolens.cli.train import read_runs, train_one
from compolens.foundation.configs import ConfigError
from compolens.jobs import Job
from compolens.jobs.cluster import Cluster
from compolens.jobs.events import Event, Reader, Sender, work
from compolens.jobs.leases import Leases
from compolens.training import train

STEPS = 8
RUNS = '''
import os, time
from dataclasses import dataclass
from pathlib import Path
from compolens import Hyperteacher, Run, SoftmaxTransformer, training

training.train.__kwdefaults__["save_every"] = 0.0  # a checkpoint after every update
HERE = Path(__file__).parent

@dataclass(frozen=True)
class Logged(Hyperteacher):
    """Writes down every update, by whom; a run whose name is in the file `mortal` dies once, in the middle."""

    name: str = ""

    def rng(self, seed, split, step, device=None):
        if split == "train" and device is not None:  # an update, no evaluation
            with open(HERE / "updates", "a") as file:
                file.write(f"{self.name} {step} {os.getpid()}\\n")
            mortal = HERE / f"{self.name}.mortal"
            if step == STEPS // 2 and mortal.exists():
                mortal.unlink()
                os.kill(os.getpid(), 9)
            time.sleep(PAUSE)
        return super().rng(seed, split, step, device or "cpu")

sizes = {"d_x": 4, "d_y": 2, "d_hidden": 6, "n_modules": 6, "n_context": 6, "n_queries": 3}
net = SoftmaxTransformer(n_layers=1, d_model=8, n_heads=2)
short = {"steps": STEPS, "batch_size": 4, "evaluations": 2, "evaluation_episodes": 8}
runs = {f"run-{n:02}": Run(net, Logged(**sizes, name=f"run-{n:02}"), init_seed=n, **short) for n in range(COUNT)}
'''


def write_runs(folder, count, steps=STEPS, pause=0.0):
    path = folder / "runs.py"
    path.write_text(RUNS.replace("COUNT", str(count)).replace("STEPS", str(steps)).replace("PAUSE", str(pause)))
    return path


def updates(folder):
    """Run -> its updates as (step, pid), in the order in which they were done."""
    done = defaultdict(list)
    path = folder / "updates"
    for line in path.read_text().splitlines() if path.exists() else []:
        name, step, pid = line.split()
        done[name].append((int(step), int(pid)))
    return done


def check_each_once(folder, count, steps=STEPS):
    """Every run finished, and did each of its steps once; returns those that another process went on with, after repeating at
    most the step under way."""
    done, handed_on = updates(folder), []
    assert len(done) == count
    for name, entries in done.items():
        assert json.loads((folder / "out" / name / "scores.json").read_text())["step"] == steps
        assert not (folder / "out" / name / "resume.safetensors").exists()
        repeated = len(entries) - steps
        if len({pid for _, pid in entries}) > 1:
            handed_on.append(name)
            numbers = [step for step, _ in entries]
            assert numbers == sorted(numbers) and set(numbers) == set(range(steps)) and repeated <= 1
        else:
            assert [step for step, _ in entries] == list(range(steps))
    assert sorted(path.name for path in (folder / "out").iterdir()) == sorted(done)  # no leases, no logs are left
    return handed_on


def sweep_jobs(file, out):
    return [Job(name, train_one, (str(file), name, str(out / name), None, "cpu")) for name in read_runs(str(file))]


# ---- leases: many commands on one folder -----------------------------------------------------------------------------
def train_all(file, out):
    with open(os.devnull, "w") as silence:
        os.dup2(silence.fileno(), 2)
    os._exit(cli.main(["train", str(file), "--out", str(out)]))


def test_twenty_runs_by_four_commands_of_which_one_is_killed(tmp_path):
    file, out = write_runs(tmp_path, 20, pause=0.01), tmp_path / "out"
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=train_all, args=(file, out)) for _ in range(4)]
    for process in processes:
        process.start()
    victim = processes[0]
    until(lambda: any(pid == victim.pid and step == 2 for entries in updates(tmp_path).values() for step, pid in entries))
    os.kill(victim.pid, signal.SIGKILL)
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [-signal.SIGKILL, 0, 0, 0]
    (handed_on,) = check_each_once(tmp_path, 20)
    run = read_runs(str(file))[handed_on]  # it is, bit for bit, the run that nobody killed
    train(replace(run, task=replace(run.task, name="alone")), tmp_path / "alone")
    for part in ("weights.safetensors", "history.csv"):
        assert (tmp_path / "alone" / part).read_bytes() == (out / handed_on / part).read_bytes()


# ---- events ----------------------------------------------------------------------------------------------------------
def test_events_are_read_whole_and_once(tmp_path):
    sender, reader = Sender(tmp_path / "e"), Reader(tmp_path / "e")
    assert reader.new() == []
    sender.send("progress", [0, 1, "starting"])
    with open(tmp_path / "e", "a") as file:
        file.write('["don')  # in the middle of being written
    assert reader.new() == [Event("progress", [0, 1, "starting"])] and reader.new() == []
    with open(tmp_path / "e", "a") as file:
        file.write('e", "ü"]\n')
    assert reader.new() == [Event("done", "ü")] and reader.new() == []


def test_progress_is_told_now_and_then_and_at_the_end(tmp_path):
    sender = Sender(tmp_path / "e")
    for step in range(1, 1001):
        sender.progress(step, 1000, "")
    told = [event.value[0] for event in Reader(tmp_path / "e").new()]
    assert told[0] == 1 and told[-1] == 1000 and len(told) < 100


# ---- any cluster -----------------------------------------------------------------------------------------------------
class Losing(Cluster):
    """Loses every job once, and does it when it is sent again."""

    def connected(self, folder):
        return nullcontext(set())

    def send(self, cluster, job, events):
        if job.name in cluster:
            work(job, str(events), os.getcwd())
        cluster.add(job.name)

    def ended(self, handle):
        return "lost"

    def cancel(self, handle):
        pass


def test_jobs_that_are_sent_again_report_each_for_itself(tmp_path):
    wrong = Job("wrong", test_jobs.fail, (ConfigError("steps is 4 there"),))
    engine = Losing(tmp_path / "out", grace=0.0, poll=0.01)
    outcome = engine.run([Job("fine", square, (3, str(tmp_path))), wrong], show=False)
    assert outcome.results == {"fine": 9} and outcome.failures == {"wrong": "steps is 4 there"}


# ---- Slurm -----------------------------------------------------------------------------------------------------------
@pytest.fixture
def slurm(tmp_path, monkeypatch):
    """The engine that sends to Slurm, with submitit's executor for this machine."""
    pytest.importorskip("submitit")
    monkeypatch.setenv("PYTHONPATH", str(Path(test_jobs.__file__).parent))

    def make(**settings):
        return jobs.Slurm(tmp_path / "out" / ".jobs", executor="local", grace=1.0, poll=0.05, **settings)

    return make


def test_runs_sent_by_submitit_finish_though_one_is_killed(slurm, tmp_path, capfd):
    file = write_runs(tmp_path, 2, steps=20)
    (tmp_path / "run-01.mortal").touch()
    outcome = slurm().run(sweep_jobs(file, tmp_path / "out"), show=False)
    assert sorted(outcome.results) == ["run-00", "run-01"] and not outcome.failures and outcome.signum == 0
    assert outcome.results["run-00"].startswith("train ")
    lines = capfd.readouterr().err
    assert "run-01: ended without a word" in lines and "sending it again" in lines
    assert "run-00: 20/20 loss " in lines, "progress comes back"
    assert check_each_once(tmp_path, 2, steps=20) == ["run-01"]


def test_submitit_brings_back_what_became_of_each(slurm, tmp_path):
    work = [Job("fine", square, (3, str(tmp_path))), Job("wrong", test_jobs.fail, (ConfigError("steps is 4 there"),))]
    outcome = slurm(workers=1).run(work, show=False)
    assert outcome.results == {"fine": 9} and outcome.failures == {"wrong": "steps is 4 there"}
    logs = list((tmp_path / "out" / ".jobs").glob("*/*/*_log.err"))
    assert len(logs) == 2  # where something failed, the logs stay


def test_a_job_that_keeps_dying_is_given_up(slurm, tmp_path):
    outcome = slurm().run([Job("mortal", test_jobs.die, ("mortal", str(tmp_path), 9))], show=False)
    assert outcome.failures["mortal"].startswith("ended without a word (") and str(tmp_path) in outcome.failures["mortal"]
    assert len(logged(tmp_path)) == 2


def stop_when(condition):
    def stop():
        until(condition)
        os.kill(os.getpid(), signal.SIGTERM)

    thread = threading.Thread(target=stop)
    thread.start()
    return thread


def test_an_interruption_cancels_what_was_sent(slurm, tmp_path):
    stopper = stop_when(lambda: logged(tmp_path))
    work = [Job(name, slow, (name, str(tmp_path), 3600)) for name in ("a", "b")]
    outcome = slurm(workers=1).run(work, show=False)
    stopper.join()
    assert outcome.signum == signal.SIGTERM and list(outcome.failures) == ["a"] and not outcome.results
    (_, _, pid), *others = logged(tmp_path)
    assert not others
    until(lambda: not Path(f"/proc/{pid}").exists())


def test_without_slurm_the_engine_says_what_is_missing(tmp_path, monkeypatch):
    pytest.importorskip("submitit")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigError, match="there is no sbatch on this machine; type the command on a login node of a Slurm"):
        jobs.Slurm(tmp_path / "out").run([Job("a", square, (1, str(tmp_path)))])
    assert not (tmp_path / "out").exists()


def test_settings_that_slurm_does_not_have_are_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"--slurm has no setting 'partitoin'; did you mean 'partition'"):
        jobs.Slurm(tmp_path, settings={"partitoin": "gpu"})
    with pytest.raises(ConfigError, match="Slurm: workers must be a whole number of at least 1, got 0"):
        jobs.Slurm(tmp_path, 0)


SBATCH = """#!/bin/sh
cp "$1" {folder}/script; echo sbatch: error: invalid partition specified: gpu >&2; exit 1
"""


def test_settings_reach_sbatch_and_what_it_refuses_is_said(tmp_path, monkeypatch):
    pytest.importorskip("submitit")
    for program in ("sbatch", "srun", "sacct", "scancel"):
        (tmp_path / program).write_text(SBATCH.format(folder=tmp_path))
        (tmp_path / program).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    engine = jobs.Slurm(tmp_path / "out", gpus=1, settings={"partition": "gpu", "timeout_min": 600, "mem_gb": 8})
    with pytest.raises(ConfigError, match=r"Slurm took no job: .*invalid partition specified: gpu"):
        engine.run([Job("a", square, (1, str(tmp_path)))], show=False)
    script = (tmp_path / "script").read_text()
    for line in ("partition=gpu", "time=600", "mem=8GB", "gpus-per-node=1", "cpus-per-task=1"):
        assert f"#SBATCH --{line}\n" in script


def test_a_job_that_slurm_preempts_is_sent_as_it_was(tmp_path):
    pytest.importorskip("submitit")
    unit = jobs.slurm.Unit(Job("a", square, (3, str(tmp_path))), str(tmp_path / "events"), str(tmp_path))
    again = unit.checkpoint()
    again.function()
    assert Reader(tmp_path / "events").new()[-1] == Event("done", 9)


# ---- Ray -------------------------------------------------------------------------------------------------------------
@pytest.fixture
def two_nodes(tmp_path, monkeypatch):
    """A Ray cluster of a head and a second node, a CPU each, in processes of this machine."""
    pytest.importorskip("ray")
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    monkeypatch.setenv("PYTHONPATH", str(Path(test_jobs.__file__).parent))
    from ray.cluster_utils import Cluster

    node = {"num_cpus": 1, "object_store_memory": 80 * 2**20, "include_log_monitor": False}
    system = {"enable_worker_prestart": False, "prestart_worker_first_driver": False, "worker_niceness": 0}
    quiet = {"include_dashboard": False, "_system_config": system}
    try:
        cluster = Cluster(initialize_head=True, head_node_args={**node, **quiet})
        second = cluster.add_node(**node)
    except Exception as error:  # Ray raises nothing narrower; it gives a node 30 s to start, whatever else the machine does
        if "timed out during startup" not in str(error):
            raise
        pytest.skip(f"this machine is too busy to start a Ray cluster ({error})")
    yield cluster, second
    cluster.shutdown()


def test_every_run_finishes_though_a_ray_node_dies(two_nodes, tmp_path, capfd):
    cluster, second = two_nodes
    file, seen = write_runs(tmp_path, 6, steps=40, pause=0.05), []

    def kill_the_second_node():
        until(lambda: len({pid for entries in updates(tmp_path).values() for _, pid in entries}) == 2)
        seen.append(updates(tmp_path))
        cluster.remove_node(second, allow_graceful=False)

    killer = threading.Thread(target=kill_the_second_node)
    killer.start()
    engine = jobs.Ray(tmp_path / "out" / ".jobs", address=cluster.address, grace=1.0, poll=0.05)
    outcome = engine.run(sweep_jobs(file, tmp_path / "out"), show=False)
    killer.join()
    assert sorted(outcome.results) == [f"run-{n:02}" for n in range(6)] and not outcome.failures
    assert "loss " in capfd.readouterr().err
    assert len(check_each_once(tmp_path, 6, steps=40)) == 1  # the run of the node that died


def test_a_ray_cluster_that_is_not_there_is_said_at_once(tmp_path, monkeypatch):
    ray = pytest.importorskip("ray")
    work = [Job("a", square, (1, str(tmp_path)))]
    monkeypatch.setattr(ray, "init", lambda *_, **__: pytest.fail("this waits for a cluster"))
    with pytest.raises(ConfigError, match=r"no Ray cluster answers at 127.0.0.1:9; .*`ray start --head`"):
        jobs.Ray(tmp_path / "out", address="127.0.0.1:9").run(work)
    monkeypatch.setenv("RAY_ADDRESS", "ray://127.0.0.1:9")
    with pytest.raises(ConfigError, match=r"no Ray cluster answers at ray://127.0.0.1:9"):
        jobs.Ray(tmp_path / "out").run(work)
    with pytest.raises(ConfigError, match="--address must be host:port, ray://host:port or auto, got 'nonsense'"):
        jobs.Ray(tmp_path / "out", address="nonsense").run(work)
    assert not (tmp_path / "out").exists()


# ---- the command line ------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("engine", "module"), [("slurm", "submitit"), ("ray", "ray")])
def test_an_engine_that_is_not_installed_says_how_to(engine, module, tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, module, None)
    file = write_runs(tmp_path, 1)
    assert cli.main(["train", str(file), "--out", str(tmp_path / "out"), "--engine", engine]) == 2
    assert f"pip install compolens[{engine}]" in capsys.readouterr().err


MISTAKES = {
    "no engine 'slrum'; did you mean 'slurm'?": ["--engine", "slrum"],
    "--address is for --engine ray; this is --engine local": ["--address", "127.0.0.1:6379"],
    "--slurm is for --engine slurm; this is --engine ray": ["--engine", "ray", "--slurm", "partition=gpu"],
    "--slurm wants KEY=VALUE, such as partition=gpu; got 'gpu'": ["--engine", "slurm", "--slurm", "gpu"],
    "--slurm has no setting 'nodes'": ["--engine", "slurm", "--slurm", "nodes=2"],
    "--jobs must be at least 1, got 0": ["--jobs", "0"],
    "such as 1/4 or 4/4, got '5/4'": ["--shard", "5/4"],
    "such as 1/4 or 4/4, got '0/4'": ["--shard", "0/4"],
    "such as 1/4 or 4/4, got '1'": ["--shard", "1"],
    "such as 1/4 or 4/4, got '-1/4'": ["--shard=-1/4"],
    "such as 1/4 or 4/4, got 'a/b'": ["--shard", "a/b"],
}


@pytest.mark.parametrize(("reason", "flags"), MISTAKES.items(), ids=MISTAKES)
@pytest.mark.parametrize("command", ["train", "probe", "explain"])
def test_machines_named_wrongly_are_refused_in_one_line(reason, flags, command, tmp_path, tiny_models, capsys):
    model = str(tiny_models["softmax"])
    what = {"train": [str(write_runs(tmp_path, 1)), "--out", str(tmp_path / "out")], "probe": ["generalization", model]}
    with pytest.raises(SystemExit) as status:
        raise SystemExit(cli.main([command, *what.get(command, [model]), *flags]))
    lines = capsys.readouterr().err.splitlines()
    assert status.value.code == 2 and len(lines) == 1 and reason in lines[0]
    assert not (tmp_path / "out").exists()


def test_shards_are_parts_of_the_whole():
    names = [f"run-{n}" for n in (3, 1, 4, 15, 9, 2, 6)]
    for count in (1, 2, 3, 9):
        parts = [Shard(index, count).part(names) for index in range(1, count + 1)]
        assert sorted(name for part in parts for name in part) == sorted(names)
        assert max(map(len, parts)) - min(map(len, parts)) <= 1
        assert parts == [Shard(index, count).part(reversed(names)) for index in range(1, count + 1)]


def test_a_shard_of_runs_is_what_is_listed_and_trained(tmp_path, capsys):
    file, out = write_runs(tmp_path, 3, steps=1), tmp_path / "out"

    def listed(shard):
        assert cli.main(["train", str(file), "--list", "--shard", shard]) == 0
        return [line.split()[0] for line in capsys.readouterr().out.splitlines()[2:]]

    assert listed("1/2") == ["run-00", "run-02"] and listed("2/2") == ["run-01"] and listed("4/4") == []
    assert cli.main(["train", str(file), "--out", str(out), "--shard", "2/2"]) == 0
    assert list(updates(tmp_path)) == ["run-01"]
    capsys.readouterr()
    assert cli.main(["train", str(file), "--out", str(out), "--shard", "4/4"]) == 0
    assert capsys.readouterr().err == "shard 4/4 of 3 is empty: nothing to do\n"


def test_what_is_in_training_is_listed_with_where(tmp_path, capsys):
    file = write_runs(tmp_path, 1)
    with Leases(tmp_path / "out").take("run-00"):
        assert cli.main(["train", str(file), "--list", "--out", str(tmp_path / "out")]) == 0
    assert f"in work on {os.uname().nodename} (process {os.getpid()})" in capsys.readouterr().out


def test_a_training_that_lost_its_lease_writes_no_more(tmp_path, monkeypatch):
    file, out = write_runs(tmp_path, 1, steps=60), tmp_path / "out"
    monkeypatch.setattr("compolens.cli.train.leases_on", lambda folder: Leases(folder.parent, beat=0.2))

    def take_it_away(done, total, text):
        assert done == 20
        path = Leases(out).path("run-00")
        path.rename(path.with_suffix(".gone"))
        time.sleep(0.6)  # three heartbeats

    kind, message = jobs.base.attempt(sweep_jobs(file, out)[0], take_it_away)
    assert kind == "held" and "run-00 was taken over" in message
    assert [step for step, _ in updates(tmp_path)["run-00"]][-1] == 19  # lost in the update 20, noticed before that was saved
    assert checkpoint(out / "run-00")[1] == 19 and not (out / "run-00" / "scores.json").exists()


def test_models_are_measured_by_shard_and_reported_by_the_whole(tiny_models, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(cli.explain, "EXPLAINS", ("generalization", "attention_code"))
    for name in ("a", "b", "c"):
        shutil.copytree(tiny_models["softmax"], tmp_path / "models" / name)
    page = tmp_path / "page.html"

    def measured():
        return {path.parents[1].name for path in (tmp_path / "models").glob("*/tables/generalization.csv")}

    explain = ["explain", str(tmp_path / "models"), "-o", str(page), "--episodes", "16"]
    assert cli.main([*explain, "--shard", "2/3"]) == 0
    assert measured() == {"b"} and not page.exists()
    assert "the same command without --shard, once all are, writes the report" in capsys.readouterr().err
    assert cli.main(["probe", "generalization", str(tmp_path / "models"), "--episodes", "16", "--shard", "1/3"]) == 0
    assert measured() == {"a", "b"}
