"""Shared work: done once by however many processes, a failure told to those alone who need it, nobody waiting for the dead."""

import multiprocessing
import os
import signal
from functools import partial

import pytest
from once import done_once


def write_down(folder, name, code=0):
    """A line in the file of a piece; then the end of this process, if a signal is given."""
    with open(folder / f"{name}.by", "a") as file:
        file.write(f"{os.getpid()}\n")
    if code:
        os.kill(os.getpid(), code)


def do_all(folder, names):
    done_once(folder, {name: partial(write_down, folder, name) for name in names})


def test_of_many_processes_each_piece_is_done_by_one(tmp_path):
    names, context = [f"piece-{n}" for n in range(30)], multiprocessing.get_context("fork")
    processes = [context.Process(target=do_all, args=(tmp_path, names)) for _ in range(4)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0] * 4
    assert [len((tmp_path / f"{name}.by").read_text().split()) for name in names] == [1] * 30


def test_what_failed_is_told_to_those_who_want_it_and_to_nobody_else(tmp_path):
    def fail():
        write_down(tmp_path, "bad")
        raise ValueError("no good")

    work = {"bad": fail, "good": partial(write_down, tmp_path, "good")}
    for _ in range(2):
        done_once(tmp_path, work, ["good"])
        with pytest.raises(AssertionError, match=r"bad failed when it was done for all(.|\n)*ValueError: no good"):
            done_once(tmp_path, work)
    assert len((tmp_path / "bad.by").read_text().split()) == 1, "what failed is not tried again by the next who wants it"


def test_what_a_process_died_of_is_done_by_the_next(tmp_path):
    context = multiprocessing.get_context("fork")
    deadly = {"piece": partial(write_down, tmp_path, "piece", signal.SIGKILL)}
    process = context.Process(target=done_once, args=(tmp_path, deadly))
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL and (tmp_path / "piece.lock").exists()
    do_all(tmp_path, ["piece"])
    assert (tmp_path / "piece.by").read_text().split() == [str(process.pid), str(os.getpid())]


def test_while_another_is_at_what_is_wanted_the_rest_is_done(tmp_path):
    context = multiprocessing.get_context("fork")
    begun, go_on = context.Event(), context.Event()

    def slow():
        begun.set()
        go_on.wait()
        write_down(tmp_path, "slow")

    def rest():
        write_down(tmp_path, "rest")
        go_on.set()

    other = context.Process(target=done_once, args=(tmp_path, {"slow": slow}))
    other.start()
    begun.wait()
    done_once(tmp_path, {"slow": slow, "rest": rest}, ["slow"])
    other.join()
    assert (tmp_path / "slow.by").read_text().split() == [str(other.pid)]
    assert (tmp_path / "rest.by").read_text().split() == [str(os.getpid())]
