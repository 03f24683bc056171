"""Jobs side by side: each is done once, what dies is begun again, and nothing that one does disturbs another."""

import os
import signal
import sys
import threading
import time
from pathlib import Path

import pytest

from compolens import jobs
from compolens.foundation.configs import ConfigError, DoesNotApply
from compolens.jobs import Job, Local, Outcome, run_leased
from compolens.jobs.leases import Held, Leases, Watch


# ---- what the jobs do ------------------------------------------------------------------------------------------------
def log(folder, name, word):
    with open(Path(folder) / "log", "a") as file:
        file.write(f"{name} {word} {os.getpid()}\n")


def logged(folder):
    """(name, word, pid) of everything that was logged."""
    path = Path(folder) / "log"
    return [tuple(line.split()) for line in path.read_text().splitlines()] if path.exists() else []


def square(number, folder, *, report):
    log(folder, number, "begun")
    report(1, 1, "")
    return number * number


def slow(name, folder, seconds, *, report):
    log(folder, name, "begun")
    time.sleep(seconds)
    log(folder, name, "done")
    return name


def die(name, folder, times, *, report):
    """Die by SIGKILL the first `times` times."""
    log(folder, name, "begun")
    if sum(entry[0] == name for entry in logged(folder)) <= times:
        os.kill(os.getpid(), signal.SIGKILL)
    return name


def fail(error, *, report):
    raise error


def steps(name, folder, count, *, report):
    """Work in steps, each finished one noted in a file: what a checkpoint is to a run."""
    done = Path(folder) / f"{name}.done"
    for step in range(int(done.read_text()) if done.exists() else 0, count):
        log(folder, name, step)
        time.sleep(0.005)
        scratch = done.with_suffix(f".{os.getpid()}")
        scratch.write_text(str(step + 1))
        os.replace(scratch, done)
        report(step + 1, count, "")
    return name


def until(condition, seconds=600.0):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.01)


# ---- results ---------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("workers", [1, 3])
def test_every_job_is_done_once_and_its_value_comes_back(tmp_path, workers, capfd):
    outcome = Local(workers).run([Job(f"job {n}", square, (n, str(tmp_path))) for n in range(7)], show=False)
    assert outcome == Outcome(results={f"job {n}": n * n for n in range(7)})
    assert sorted(int(entry[0]) for entry in logged(tmp_path)) == list(range(7))
    assert len({pid for _, _, pid in logged(tmp_path)}) <= workers
    assert capfd.readouterr().err.count("job 3: 9") == 1


@pytest.mark.parametrize("workers", [1, 2])
def test_what_one_job_meets_stops_no_other(tmp_path, workers):
    errors = {
        "wrong": ConfigError("steps is 4 there"),
        "apart": DoesNotApply("no codes"),
        "held": Held("held is in work"),
        "surprise": ValueError("so\nit is"),
    }
    work = [Job(name, fail, (error,)) for name, error in errors.items()] + [Job("fine", square, (3, str(tmp_path)))]
    outcome = Local(workers).run(work, show=False)
    assert outcome.results == {"fine": 9} and outcome.signum == 0
    assert outcome.inapplicable == {"apart": "no codes"} and outcome.held == {"held": "held is in work"}
    assert outcome.failures["wrong"] == "steps is 4 there"
    assert outcome.failures["surprise"].startswith("ValueError: so it is (test_jobs.py:") and len(outcome.failures) == 2


def test_no_workers_are_refused():
    with pytest.raises(ConfigError, match="Local: workers must be a whole number of at least 1, got 0"):
        jobs.run([], 0)


# ---- death -----------------------------------------------------------------------------------------------------------
def test_a_job_whose_process_is_killed_is_begun_again_once(tmp_path, capfd):
    folder = str(tmp_path)
    work = [Job("twice", die, ("twice", folder, 2)), Job("once", die, ("once", folder, 1)), Job("fine", square, (2, folder))]
    outcome = Local(2).run(work, show=False)
    assert outcome.results == {"once": "once", "fine": 4}
    assert outcome.failures == {"twice": "its process died (exit code -9; out of memory?)"}
    assert "once: its process died (exit code -9; out of memory?): beginning it again" in capfd.readouterr().err
    assert [entry[0] for entry in logged(tmp_path)].count("twice") == 2


def test_forty_jobs_over_four_processes_of_which_one_is_killed(tmp_path):
    """No step that was finished is lost or done again, but for the one under way in the process that was killed."""
    killed = []

    def kill_one():
        until(lambda: len(logged(tmp_path)) > 60)
        killed.append(int(logged(tmp_path)[-1][2]))
        os.kill(killed[0], signal.SIGKILL)

    killer = threading.Thread(target=kill_one)
    killer.start()
    names = [f"run-{n:02}" for n in range(40)]
    outcome = Local(4).run([Job(name, steps, (name, str(tmp_path), 12)) for name in names], show=False)
    killer.join()
    assert outcome == Outcome(results={name: name for name in names})
    entries = logged(tmp_path)
    done = {name: [int(step) for n, step, _ in entries if n == name] for name in names}
    by = {name: [int(pid) for n, _, pid in entries if n == name] for name in names}
    interrupted = [name for name in names if len(set(by[name])) > 1]
    assert len(interrupted) <= 1 and all(by[name][0] == killed[0] for name in interrupted)
    assert all(done[name] == list(range(12)) for name in names if name not in interrupted)
    for name in interrupted:
        assert sorted(set(done[name])) == list(range(12)) and len(done[name]) <= 13
    assert len({pid for pids in by.values() for pid in pids}) == 5  # a new process took the place of the killed one


def test_a_signal_stops_all_and_what_was_not_begun_stays_so(tmp_path):
    def stop():
        until(lambda: len(logged(tmp_path)) >= 2)
        sent.append(time.monotonic())
        os.kill(os.getpid(), signal.SIGTERM)

    sent, before = [], signal.getsignal(signal.SIGTERM)
    stopper = threading.Thread(target=stop)
    stopper.start()
    work = [Job(name, slow, (name, str(tmp_path), 3600)) for name in ("a", "b", "c")]
    outcome = Local(2).run(work, show=False)
    stopper.join()
    assert time.monotonic() - sent[0] < 25, "they stopped by themselves, before they would have been made to"
    assert outcome.signum == signal.SIGTERM and not outcome.results
    assert outcome.failures == {"a": "stopped", "b": "stopped", "c": "not started"}
    assert signal.getsignal(signal.SIGTERM) is before


# ---- jobs that others do too -----------------------------------------------------------------------------------------
def guarded(name, folder, *, report):
    with Leases(Path(folder), beat=0.05).take(name):
        return slow(name, folder, 0, report=report)


def leased(tmp_path, *names):
    leases = Leases(tmp_path, beat=0.05)
    watches = {name: Watch(leases, name) for name in names}
    return run_leased(Local(), [Job(name, guarded, (name, str(tmp_path))) for name in names], watches, poll=0.01)


def test_what_another_holds_is_left_to_the_end_and_done_when_it_lets_go(tmp_path, capsys):
    letting_go = threading.Event()

    def other():
        with Leases(tmp_path).take("a"):
            letting_go.wait(600)

    thread = threading.Thread(target=other)
    thread.start()
    until(lambda: Leases(tmp_path).holder("a"))

    def let_go():
        until(lambda: ("b", "done", str(os.getpid())) in logged(tmp_path))
        time.sleep(0.5)  # fifty looks
        letting_go.set()

    threading.Thread(target=let_go).start()
    outcome = leased(tmp_path, "a", "b")
    thread.join()
    assert outcome == Outcome(results={"a": "a", "b": "b"})
    assert [entry[0] for entry in logged(tmp_path) if entry[1] == "begun"] == ["b", "a"]
    assert f"(process {os.getpid()}); waiting for it" in capsys.readouterr().err


def test_a_lease_met_only_by_the_job_itself_is_waited_for_too(tmp_path):
    class Blind(Watch):
        looks = 0

        def free(self):
            self.looks += 1
            return self.looks == 1 or super().free()

    leases = Leases(tmp_path, beat=0.05)
    lease = leases._make("a")  # of this very process, and never renewed
    outcome = run_leased(Local(), [Job("a", guarded, ("a", str(tmp_path)))], {"a": Blind(leases, "a")}, poll=0.01)
    lease.close()
    assert outcome == Outcome(results={"a": "a"})


def test_a_job_that_fails_is_not_waited_for(tmp_path):
    outcome = run_leased(Local(), [Job("a", fail, (ConfigError("no"),)), Job("b", square, (2, str(tmp_path)))], {})
    assert outcome == Outcome(results={"b": 4}, failures={"a": "no"})


def test_importing_engines_imports_none_of_what_they_need():
    import subprocess

    script = "import sys, compolens.jobs; print({'ray', 'submitit', 'torch', 'rich'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", script], capture_output=True, text=True).stdout.strip() == "set()"
