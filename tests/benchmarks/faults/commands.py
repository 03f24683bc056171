"""Command lines of pieces that do not belong together: done, or refused in a sentence."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random
from unittest import mock

from outcomes import Case, Kind, Result, Said, command, fault
from watch import SECONDS, Watch
from world import World, rng_of

from compolens import cli
from compolens.foundation.builtin import built_in

PATIENT = 200.0
"""Seconds that a command may wait for Ray, whose start takes as long as the machine is busy."""
RUNS = '''"""One training of one step."""
from compolens import Hyperteacher, Run, SoftmaxTransformer
runs = {"one": Run(SoftmaxTransformer(n_layers=1, d_model=8, n_heads=2),
                   Hyperteacher(d_x=4, d_y=2, d_hidden=6, n_modules=6, n_context=6, n_queries=3),
                   steps=1, batch_size=4, evaluations=1, evaluation_episodes=16)}
'''
NUMBERS = ["0", "-1", "1", "2", "1.5", "nan", "1e9", "99999999999999999999", "", "x", "0x10", "１", "--", "1/2", "0/0", "inf"]
WORDS = [
    "softmax", "hyper", "begun", "recorded", "fixed", ".", "..", "nowhere", "", "softmax/config.json", "runs.py", "*", "é",
    "a\x1b[31m", "x" * 300, "softmax/tables", "generalization", "who_generalizes", "-", "/dev/null", "~", "\x00",
]  # fmt: skip
BARE = (
    "--again",
    "--list",
    "--help",
    "--version",
    "--summary",
    "--diagnosis",
    "--bogus",
    "--confirm",
    "--all-sites",
    "--half",
)
FLAGS: dict[str, list[str] | None] = dict.fromkeys(BARE) | {
    "--jobs": NUMBERS, "--seed": NUMBERS, "--l2": NUMBERS, "--threshold": NUMBERS, "--steps": ["final", "all", *NUMBERS],
    "--episodes": ["1", "16", *NUMBERS[:2], "x", "", "1.5", "99999999999999999999"], "--shard": ["1/1", "2/2", *NUMBERS],
    "--device": ["cpu", "cuda", "x", "", "cuda:9", "meta", "cpu:1"], "--data": ["fixed", "nowhere", ""],
    "--with": ["x", "os:system", "os.path:sep", "runs.py:runs", "nowhere.py:A", ":", "a:b:c"],
    "--engine": ["local", "ray", "slurm", "x", ""], "--address": ["x", ""], "--slurm": ["a=b", "x", "="],
    "-o": ["page.html", "nowhere/page.html", ".", "/dev/full", "", "/proc/x/y"], "--width": ["column", "text", "x", "", "-1"],
    "--out": ["figures", "/proc/x", "", "runs.py", "/dev/null"], "--split": ["ood", "test", "x", ""],
    "--sites": ["blocks.*.hook_resid_post", "*", "", "no.such", "["],
}  # fmt: skip
"""Flag -> what may follow it; None for flags that nothing follows."""


def words(rng: Random) -> list[str]:
    """A command with names and flags, some of which it may even have."""
    name = rng.choices([*cli.COMMANDS, "prob", "", "--help"], [1] * len(cli.COMMANDS) + [0.2] * 3)[0]
    known = {
        "train": ["runs.py"], "probe": [rng.choice([*built_in("probes"), "generalization"]), "softmax"],
        "analyze": [rng.choice([*built_in("analyses"), "who_generalizes"]), "softmax"], "report": ["softmax"], "models": ["."],
        "record": ["softmax"], "push": ["softmax"], "explain": ["nowhere"], "challenge": ["nowhere"],
    }  # fmt: skip
    line = [name, *known.get(name, [])]
    if name in ("probe", "record"):
        line += ["--episodes", "16"]
    for _ in range(rng.choice([0, 1, 1, 2, 2, 3])):
        if rng.random() < 0.35:
            line.insert(rng.randrange(1, len(line) + 1), rng.choice(WORDS))
            continue
        flag = rng.choice(list(FLAGS))
        line += [flag] if FLAGS[flag] is None else [flag, rng.choice(FLAGS[flag])]
    if rng.random() < 0.15 and len(line) > 1:
        line.pop(rng.randrange(1, len(line)))
    return [word for word in line if "\x00" not in word]


def prepare(world: World) -> Path:
    """A folder of everything, to stand in."""
    folder = world.fresh("softmax", "hyper", "begun", "recorded", "fixed")
    (folder / "runs.py").write_text(RUNS)
    return folder


def case(world: World, seed: int, number: int) -> Case:
    rng = rng_of(seed, "commands", number)
    line = words(rng)

    def run() -> Result:
        with contextlib.chdir(prepare(world)), not_serving():
            return _judged(line, command(line))

    return Case("command lines", "compolens " + " ".join(map(repr, line)), run)


@contextlib.contextmanager
def not_serving() -> Iterator[None]:
    """`explore` serves until Ctrl-C: here it ends where it would begin to."""
    ends = mock.patch("werkzeug.serving.BaseWSGIServer.serve_forever", lambda server: server.server_close())
    with ends, mock.patch("webbrowser.open", lambda address: True):
        yield


def _judged(line: list[str], said: Said) -> Result:
    where = " ".join(line[:1])
    if (wrong := fault(said)) is not None:
        return wrong._replace(where=f"{where}: {wrong.where}")
    if said.status == 0:
        refused = any(word in said.err for word in (": error:",))
        return Result(Kind.WRONG, f"{where}: an error and status 0", said.err[:200]) if refused else Result(Kind.RIGHT)
    if not said.err.strip():
        return Result(Kind.WRONG, f"{where}: status {said.status}, and nothing said", repr(line))
    return Result(Kind.TOLD, "", said.err[:200])


# ---- the real command ------------------------------------------------------------------------------------------------
def real(world: World, seed: int, number: int) -> Case:
    """The same in a process of its own, which must leave none behind."""
    rng = rng_of(seed, "real", number)
    line = words(rng)

    def run() -> Result:
        folder = prepare(world)
        said, left = in_process(line, folder)
        if said is None:
            return Result(Kind.HANG, " ".join(line[:1]), repr(line))
        found = _judged(line, said)
        return Result(Kind.LEFT, " ".join(line[:1]), repr(left)) if left and not found.kind.is_fault else found

    return Case("the command itself", "compolens " + " ".join(map(repr, line)), run)


def in_process(line: list[str], folder: Path) -> tuple[Said | None, list[int]]:
    """(what it said, or None where it hangs; processes of its session that outlived it)."""
    process = subprocess.Popen(
        [sys.executable, "-m", "compolens.cli", *line], cwd=folder, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, start_new_session=True,
    )  # fmt: skip
    patience = PATIENT if "ray" in line else SECONDS
    watch, asked = Watch(process.pid, patience=patience), False
    with process:
        while True:
            try:
                out, err = process.communicate(timeout=0.25)
                break
            except subprocess.TimeoutExpired:
                if watch.hangs() and line[:1] == ["explore"] and not asked:  # it serves until Ctrl-C
                    asked = True
                    process.send_signal(signal.SIGINT)
                    watch.again()
                elif watch.hangs():
                    os.killpg(process.pid, signal.SIGKILL)
                    process.communicate()
                    return None, []
    left = still_there(process.pid, 5.0)
    return Said(process.returncode, out.decode(errors="replace"), err.decode(errors="replace"), None), left


def still_there(leader: int, seconds: float) -> list[int]:
    """Processes of a session that do not end within so many seconds; they are then ended."""
    end = time.monotonic() + seconds
    while (left := session(leader)) and time.monotonic() < end:
        time.sleep(0.1)
    for pid in left:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return left


def session(leader: int) -> list[int]:
    """Processes of a session that are still there."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rsplit(")", 1)[1].split()
            except OSError:
                continue
            if int(fields[3]) == leader and fields[0] != "Z":
                found.append(int(entry.name))
    return found
