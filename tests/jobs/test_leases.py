"""Leases: of all who want one, one gets it; it is kept while its owner lives, and passes on, once, when the owner is dead."""

import contextlib
import errno
import json
import multiprocessing
import os
import platform
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from compolens.foundation.configs import ConfigError
from compolens.foundation.files import SaveError
from compolens.jobs import leases as module
from compolens.jobs.leases import Held, Leases, Lost, Watch

ELSEWHERE = "another boot"
"""What a lease of a machine that is not this one calls its machine."""


@pytest.fixture
def quick(tmp_path):
    """Leases with five heartbeats a second, dead after five: long enough for a busy machine not to miss them."""
    return Leases(tmp_path, beat=0.2)


@pytest.fixture
def calm(tmp_path):
    """Leases whose heartbeats are 20 s apart: nothing that a test does waits for one."""
    return Leases(tmp_path)


@pytest.fixture(params=["links", "no links"])
def both(request, quick, monkeypatch):
    """The same on a file system with hard links, and on one without."""
    if request.param == "no links":
        monkeypatch.setattr(os, "link", lambda *_: (_ for _ in ()).throw(OSError(errno.EPERM, "no hard links")))
    return quick


@pytest.fixture
def abroad(monkeypatch):
    """A context in which this process is of another machine."""

    @contextlib.contextmanager
    def elsewhere():
        with monkeypatch.context() as patch:
            patch.setattr(module, "machine", lambda: ELSEWHERE)
            yield

    return elsewhere


def hold(leases, name, stack):
    return stack.enter_context(leases.take(name))


def until(condition, seconds=600.0):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.01)


def files(folder):
    return sorted(path.name for path in folder.glob(".claims/*"))


# ---- one of many -----------------------------------------------------------------------------------------------------
def test_a_lease_is_held_by_one_and_leaves_nothing(both, tmp_path):
    with both.take("run"):
        assert files(tmp_path) == ["run.claim"]
        with pytest.raises(Held, match=rf"run is in work on .* \(process {os.getpid()}\)"), both.take("run"):
            pass
        with both.take("another"):
            pass
    assert list(tmp_path.iterdir()) == []
    with both.take("run"):
        pass


@pytest.mark.parametrize(("number", "advice"), [(errno.ENOSPC, "Free some space"), (errno.EROFS, "Nothing can be written")])
@pytest.mark.parametrize("call", ["write", "fsync", "open", "mkdir"])
def test_a_lease_for_which_there_is_no_room_names_its_path_and_leaves_nothing(
    both, tmp_path, monkeypatch, call, number, advice
):
    before = sorted(os.listdir("/proc/self/fd"))
    with monkeypatch.context() as patch:
        patch.setattr(os, call, lambda *_, **__: (_ for _ in ()).throw(OSError(number, os.strerror(number))))
        with pytest.raises(SaveError, match=rf"{tmp_path}/.claims/.*: {os.strerror(number)}. {advice}"), both.take("run"):
            pass
    assert files(tmp_path) == [] and sorted(os.listdir("/proc/self/fd")) == before
    with both.take("run"):
        pass


def test_half_a_lease_is_no_lease(both, tmp_path, monkeypatch):
    """A disk on which there is room for a part of it."""
    write = os.write
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", lambda descriptor, text: write(descriptor, text[:10]))
        with pytest.raises(SaveError, match="No space left on device"), both.take("run"):
            pass
    assert files(tmp_path) == []


@pytest.mark.parametrize("kind", ["pipe", "folder", "deep", "long"])
def test_what_is_no_lease_is_held_by_somebody_unknown_and_holds_nothing_up(quick, tmp_path, kind):
    path = quick.path("run")
    path.parent.mkdir()
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    else:
        path.write_text("[" * 100_000 if kind == "deep" else '{"token": "' + "x" * 10**6 + '"}')
    with pytest.raises(Held, match="run is in work"), quick.take("run"):
        pass


def test_a_lease_says_who_holds_it(quick):
    with quick.take("run") as lease:
        said = json.loads(quick.path("run").read_text())
        assert said["pid"] == os.getpid() and said["token"] == lease.token and said["host"]
        assert quick.holder("run").token == lease.token
    assert quick.holder("run") is None


def wanting(folder, start, wins):
    """Wait for the start, then try to take twenty leases; write down which were won."""
    leases = Leases(folder)
    start.wait()
    with contextlib.ExitStack() as stack:
        for number in range(20):
            with contextlib.suppress(Held):
                hold(leases, str(number), stack)
                wins.put((number, os.getpid()))
        start.wait()  # nobody lets go before all have tried


def test_of_many_processes_one_gets_each_lease(tmp_path):
    context = multiprocessing.get_context("fork")
    start, wins = context.Barrier(4), context.Queue()
    processes = [context.Process(target=wanting, args=(tmp_path, start, wins)) for _ in range(4)]
    for process in processes:
        process.start()
    won = [wins.get(timeout=600)[0] for _ in range(20)]
    for process in processes:
        process.join()
        assert process.exitcode == 0
    assert sorted(won) == list(range(20)) and wins.empty()
    assert not (tmp_path / ".claims").exists()


def test_a_link_whose_answer_was_lost_is_a_link(quick, monkeypatch):
    link = os.link

    def forgetful(*arguments):
        link(*arguments)
        raise FileExistsError  # as a server answers when it is asked again

    monkeypatch.setattr(os, "link", forgetful)
    with quick.take("run") as lease:
        assert quick.holder("run").token == lease.token


# ---- heartbeats ------------------------------------------------------------------------------------------------------
def test_a_living_lease_is_never_free(tmp_path, abroad):
    quick = Leases(tmp_path, beat=0.05, missed=12)
    with abroad():
        stack = contextlib.ExitStack()
        hold(quick, "run", stack)
    watch, beats = Watch(quick, "run"), set()
    end = time.monotonic() + 1.5  # more than twice what makes a lease dead
    with stack:
        while time.monotonic() < end or len(beats) < 5:
            assert not watch.free()
            beats.add(quick.holder("run").beat)
            time.sleep(0.02)
    assert watch.free()


def test_a_lease_that_stands_still_becomes_free_and_its_owner_is_told(both, abroad, tmp_path):
    with abroad():
        stack = contextlib.ExitStack()
        lease = hold(both, "run", stack)
    lease.stop()  # the machine hangs: no more heartbeats
    watch, looks = Watch(both, "run"), 0
    started = time.monotonic()
    while not watch.free():
        looks += 1
        time.sleep(0.02)
    assert time.monotonic() - started >= both.missed * both.beat and looks > both.missed
    with both.take("run") as ours:
        with pytest.raises(Lost, match=r"run was taken over \(this process was not heard of for too long\); it is in work on"):
            lease.check()
        stack.close()  # the hung one ends: what is ours stays
        assert both.holder("run").token == ours.token
        ours.check()
    assert list(tmp_path.iterdir()) == []


def test_a_hanging_file_server_makes_nobody_dead(quick, abroad):
    with abroad(), contextlib.ExitStack() as stack:
        hold(quick, "run", stack).stop()
        watch = Watch(quick, "run")
        assert not watch.free()
        for _ in range(4):  # each look took as long as ten heartbeats
            watch.looked -= 10 * quick.beat
            assert not watch.free()


def test_whoever_cannot_renew_stops_before_others_may_take_over(calm, monkeypatch):
    with calm.take("run") as lease:
        lease.check()
        lease.stop()
        monkeypatch.setattr(os, "utime", lambda *_: (_ for _ in ()).throw(OSError(errno.ESTALE, "stale")))
        lease.renewed -= (calm.missed - 1) * calm.beat
        with pytest.raises(Lost):
            lease.check()


def test_a_process_that_was_stopped_looks_before_it_goes_on(calm):
    with calm.take("run") as lease:
        lease.stop()
        lease.renewed -= 100 * calm.beat
        asked = time.monotonic()
        lease.check()  # nobody had taken it: renewed, and ours
        assert lease.renewed >= asked
        calm.path("run").unlink()
        lease.renewed -= 100 * calm.beat
        with pytest.raises(Lost, match="it is free now"):
            lease.check()


# ---- the dead --------------------------------------------------------------------------------------------------------
HOLD = """
import sys
from pathlib import Path
from compolens.jobs.leases import Leases
with Leases(Path(sys.argv[1])).take("run"):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_a_killed_process_of_this_machine_is_followed_at_once(tmp_path):
    process = subprocess.Popen([sys.executable, "-c", HOLD, tmp_path], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout.readline() == b"held\n"
    leases = Leases(tmp_path)  # its heartbeats are 20 s apart: nothing below waits for one
    with pytest.raises(Held, match=f"process {process.pid}"), leases.take("run"):
        pass
    assert not Watch(leases, "run").free()
    process.send_signal(signal.SIGKILL)
    until(lambda: module.birth(process.pid) == "")  # dead, though not yet buried
    with leases.take("run"):
        pass
    process.wait()
    process.stdin.close()
    process.stdout.close()


EXIT = {"x86_64": 60, "aarch64": 93}
"""The number of the system call that ends one thread."""


@pytest.mark.skipif(platform.machine() not in EXIT or sys.platform != "linux", reason="its system call is not known here")
def test_a_process_that_is_not_gone_entirely_is_not_dead():
    """Its first thread has ended, another has not: until then the process keeps its files, and their locks."""
    ends = f"ctypes.CDLL(None).syscall({EXIT[platform.machine()]}, 0)"
    program = f"import ctypes, threading, time; threading.Thread(target=time.sleep, args=(60,)).start(); {ends}"
    with subprocess.Popen([sys.executable, "-c", program]) as process:
        state = Path(f"/proc/{process.pid}/stat")
        until(lambda: state.read_text().rsplit(")", 1)[1].split()[0] == "Z")
        assert module.birth(process.pid) != ""
        process.kill()
        until(lambda: module.birth(process.pid) == "")


def test_a_process_of_a_machine_of_the_same_name_is_not_taken_for_dead(quick, abroad, monkeypatch):
    with abroad(), monkeypatch.context() as patch:
        patch.setattr(module, "birth", lambda pid: "1")  # a process that this machine does not have
        stack = contextlib.ExitStack()
        hold(quick, "run", stack)
    with stack:
        assert not quick.holder("run").died_here()
        with pytest.raises(Held), quick.take("run"):
            pass


def dead_lease(leases, name, monkeypatch):
    """A lease whose process is there no more; its token."""
    with monkeypatch.context() as patch:
        patch.setattr(module, "birth", lambda pid: "1")
        lease = leases._make(name)
    lease.close()
    return lease.token


def test_of_many_who_find_a_lease_dead_one_follows(quick, monkeypatch):
    for _ in range(10):
        dead_lease(quick, "run", monkeypatch)
        start, won, done = threading.Barrier(6), [], threading.Event()

        def follow(start=start, won=won, done=done):
            start.wait()
            with contextlib.suppress(Held), quick.take("run") as lease:
                won.append(lease.token)
                done.wait(600)

        threads = [threading.Thread(target=follow) for _ in range(6)]
        for thread in threads:
            thread.start()
        until(lambda won=won, threads=threads: won and sum(thread.is_alive() for thread in threads) <= 1)
        assert len(won) == 1 and quick.holder("run").token == won[0]
        done.set()
        for thread in threads:
            thread.join()


def test_who_comes_late_to_a_dead_lease_removes_no_living_one(quick, monkeypatch):
    token = dead_lease(quick, "run", monkeypatch)
    with quick.take("run") as lease:
        assert not quick.remove("run", token)
        assert quick.holder("run").token == lease.token and files(quick.folder) == ["run.claim"]


def test_a_lease_whose_holder_died_while_giving_it_up_is_free_at_once(calm, monkeypatch):
    token = dead_lease(calm, "run", monkeypatch)
    dead_lease(calm, calm.right("run", token), monkeypatch)
    with calm.take("run"):
        pass
    assert files(calm.folder) == []


def test_one_who_died_while_following_is_followed(quick, monkeypatch, abroad):
    token = dead_lease(quick, "run", monkeypatch)
    with abroad():  # the follower's machine crashed with the right in its hand
        quick._make(quick.right("run", token)).close()
    watch = Watch(quick, "run")
    assert not watch.free()
    until(watch.free)
    with quick.take("run"):
        pass
    assert files(quick.folder) == []


def test_a_lease_that_was_never_finished_writing_becomes_free(quick):
    quick.path("run").parent.mkdir()
    quick.path("run").write_bytes(b"")
    watch = Watch(quick, "run")
    assert not watch.free() and watch.held_by() == "in work on another machine (process 0)"
    until(watch.free)


# ---- mistakes --------------------------------------------------------------------------------------------------------
def test_leases_that_could_not_work_are_refused(tmp_path):
    with pytest.raises(ConfigError, match="beat must be positive, got 0"):
        Leases(tmp_path, beat=0)
    with pytest.raises(ConfigError, match="missed must be at least 2"):
        Leases(tmp_path, missed=1)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_cannot_be_written_is_said(tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(PermissionError), Leases(tmp_path).take("run"):
        pass
