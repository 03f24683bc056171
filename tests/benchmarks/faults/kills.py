"""A process is killed inside a write, or its disk fills up: what was there is there, or the new is whole."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
import torch
from commands import still_there
from outcomes import Case, Kind, Result, command, of_exception, tried
from watch import Watch, looked_at
from world import World, rng_of, run_of

import compolens
from compolens import tables
from compolens.activations.reading import Recording
from compolens.foundation import versions
from compolens.foundation.builtin import built_in
from compolens.jobs.leases import Leases

EVENTS = ("open", "os.rename", "os.remove", "os.mkdir", "os.link", "os.rmdir", "os.truncate", "os.chmod", "os.utime")
"""What a process does to files, as Python's audit hooks tell it, before it is done."""


# ---- processes that end early ----------------------------------------------------------------------------------------
def _writes(event: str, arguments: tuple[Any, ...], below: str) -> bool:
    if event not in EVENTS or not any(isinstance(a, str | os.PathLike) and below in os.fspath(a) for a in arguments):
        return False
    return event != "open" or bool((arguments[2] or 0) & (os.O_WRONLY | os.O_RDWR | os.O_CREAT))


def child(
    do: Callable[[], Any], below: Path, *, kill_at: int = 0, limit: int | None = None, full: bool = False
) -> tuple[int, str]:
    """Do something in a child.

    Args:
        do: What it does.
        below: Where its writes are counted.
        kill_at: SIGKILL before its so-many-th write, 0 for never.
        limit: Bytes a file may grow to; beyond them it dies, or with `full` is told so as of a full disk.
        full: See `limit`.

    Returns:
        (signal that ended it, 0 for none; what it sent: the number of its writes, or its error).
    """
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        _live(do, below, kill_at, limit, full, writer)
    os.close(writer)
    watch, ended, looks = Watch(pid, work=120.0), 0, 0
    while ended == 0:
        ended, status = os.waitpid(pid, os.WNOHANG)
        time.sleep(0.002)
        looks += 1
        if looks % 100 == 0 and watch.hangs():
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            os.close(reader)
            return 0, "hang"
    with os.fdopen(reader) as pipe:
        sent = pipe.read()
    return (os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0), sent


def _live(do: Callable[[], Any], below: Path, kill_at: int, limit: int | None, full: bool, writer: int) -> None:
    """The child's life; never returns."""
    seen, text = [0], str(below)

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if _writes(event, arguments, text):
            seen[0] += 1
            if seen[0] == kill_at:
                os.kill(os.getpid(), signal.SIGKILL)

    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    os.dup2(1, 2)
    sys.addaudithook(hook)
    if limit is not None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN if full else signal.SIG_DFL)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        sys.dont_write_bytecode = True  # Python cuts compiled modules short in silence, and others then import them
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
    told = ""
    try:
        do()
    except BaseException as error:
        found = of_exception(error) if isinstance(error, Exception) else Result(Kind.TOLD, "", str(error))
        told = f"{found.kind.name}\n{found.where}\n{found.detail}"
    with contextlib.suppress(OSError):
        os.write(writer, (told or f"{seen[0]}").encode())
    os._exit(0)


# ---- what is killed --------------------------------------------------------------------------------------------------
class Deed(NamedTuple):
    """name; before: makes the folder; do: what is killed; after: what is to be said of what is there then."""

    name: str
    before: Callable[[World], Path]
    do: Callable[[Path], Any]
    after: Callable[[World, Path], Result]


def _tables_before(world: World) -> Path:
    return world.fresh("softmax") / "softmax"


def _new_table(folder: Path) -> None:
    table = pd.read_csv(tables.path_of(folder, "generalization")).assign(value=0.125)
    table["control"] = table["control"].fillna("")
    rows = pd.read_parquet(tables.path_of(folder, "generalization").with_suffix(".episodes.parquet"))
    provenance = {
        "weights": tables.file_digest(folder / "weights.safetensors"),
        **versions.describe(built_in("probes")["generalization"]),
        "arguments": {}, "steps": [4], "version": compolens.__version__, "command": "",
    }  # fmt: skip
    tables.save(folder, "generalization", table, provenance, rows.assign(score=0.125))


def _tables_after(world: World, folder: Path) -> Result:
    old = pd.read_csv(tables.path_of(world.pristine / "softmax", "generalization"))["value"]
    found, became, told = tried(lambda: tables.read(folder, "generalization"))
    if became is not None:
        return became._replace(kind=Kind.WRONG, where=f"the table can no longer be read: {became.where}")
    whole = found["value"].equals(old) or (found["value"] == 0.125).all()
    if not whole:
        return Result(Kind.WRONG, "neither the old table nor the new", found.head().to_string())
    return Result(Kind.TOLD, "", told) if told else _rows_fit(folder, found)


def _rows_fit(folder: Path, table: pd.DataFrame) -> Result:
    """The per-episode rows beside a table that is current are those of the same measurement."""
    rows = pd.read_parquet(tables.path_of(folder, "generalization").with_suffix(".episodes.parquet"))
    new = bool((rows["score"] == 0.125).all()), bool((table["value"] == 0.125).all())
    return (
        Result(Kind.RIGHT) if new[0] == new[1] else Result(Kind.WRONG, "rows of one measurement beside the table of another")
    )


def _training(folder: Path) -> None:
    compolens.train(run_of("softmax", init_seed=1), folder, save_every=0.0)


def _begun(world: World) -> Path:
    return world.fresh("begun") / "begun"


def _training_after(world: World, folder: Path) -> Result:
    _, became, _ = tried(lambda: _training(folder))
    if became is not None:
        return became._replace(where=f"going on: {became.where}")
    torn = [path.name for path in folder.rglob(".*.tmp")]
    if torn:
        return Result(Kind.WRONG, "torn temporary files stay", str(torn))
    ours, theirs = (compolens.load(path).model.state_dict() for path in (folder, _uninterrupted(world)))
    same = all(torch.equal(ours[name], theirs[name]) for name in theirs)
    return Result(Kind.RIGHT) if same else Result(Kind.WRONG, "other weights than without the kill")


def _uninterrupted(world: World) -> Path:
    folder = world.pristine.parent / "uninterrupted"
    if not folder.exists():
        _training(folder)
    return folder


def _lease(folder: Path) -> None:
    with Leases(folder).take("one"):
        pass


def _lease_after(world: World, folder: Path) -> Result:
    for draft in folder.rglob(".*.draft"):  # swept once it is older than any heartbeat
        os.utime(draft, (0, 0))
    _, became, _ = tried(lambda: _lease(folder))
    if became is not None:
        unknown = "another machine (process 0)" in became.detail  # its holder is not known: free once its heart stands still
        return became if unknown else Result(Kind.WRONG, "the dead holder's lease is not free", became.detail)
    # NAME~TOKEN: the right to remove a lease that is gone bars nobody, since tokens are never used twice
    left = [str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file() and "~" not in path.name]
    return Result(Kind.WRONG, "drafts stay", str(left)) if left else Result(Kind.RIGHT)


def _empty(world: World) -> Path:
    folder = world.fresh() / "leases"
    folder.mkdir()
    return folder


def _record(folder: Path) -> None:
    status = command(["record", str(folder / "softmax"), "--sites", "blocks.0.hook_resid_post", "--episodes", "24",
                      "-o", str(folder / "recorded")])  # fmt: skip
    _raise_what(status)


def _raise_what(said: Any) -> None:
    """A command's error as an exception, for the child to send."""
    if said.error is not None:
        raise said.error
    if said.status != 0:
        if "COMPOLENS_DEBUG=1" in said.err or "[Errno" in said.err:
            raise RuntimeError(said.err[-300:])
        raise compolens.foundation.configs.ConfigError(said.err[-400:])


def _record_after(world: World, folder: Path) -> Result:
    target = folder / "recorded"
    if not target.exists():
        return Result(Kind.RIGHT)
    _, became, _ = tried(lambda: [Recording(target)[name].sum() for name in Recording(target).names])
    if became is not None and became.kind is not Kind.TOLD:
        return became
    if became is None:
        return Result(Kind.RIGHT)
    _, again, _ = tried(lambda: _record(folder))
    return became if again is None else Result(Kind.WRONG, "cannot be recorded again into the same folder", again.detail)


def _explain(folder: Path) -> None:
    _raise_what(command(["explain", str(folder / "softmax"), "-o", str(folder / "page.html"), "--episodes", "48", "--again"]))


def _report(folder: Path) -> None:
    _raise_what(command(["report", str(folder / "softmax"), "-o", str(folder / "page.html")]))


def _page_before(world: World) -> Path:
    folder = world.fresh("softmax")
    (folder / "page.html").write_text("the old page")
    return folder


def _page_after(world: World, folder: Path) -> Result:
    page = (folder / "page.html").read_text()
    if page != "the old page" and not page.rstrip().endswith("</html>"):
        return Result(Kind.WRONG, "neither the old page nor the new", page[-80:])
    told = Result(Kind.RIGHT)
    for path in (folder / "softmax" / "tables").glob("*.csv"):
        _, became, warned = tried(lambda path=path: tables.read(folder / "softmax", path.stem))
        if became is not None:
            return became._replace(kind=Kind.WRONG, where=f"{path.stem} can no longer be read: {became.where}")
        told = Result(Kind.TOLD, "", warned) if warned else told
    torn = [path.name for path in folder.rglob(".*.tmp") if path.parent.name == "tables"]
    return Result(Kind.WRONG, "torn temporary files stay", str(torn)) if torn else told


DEEDS = (
    Deed("tables.save", _tables_before, _new_table, _tables_after),
    Deed("checkpoint", _begun, _training, _training_after),
    Deed("lease", _empty, _lease, _lease_after),
    Deed("recording", lambda world: world.fresh("softmax"), _record, _record_after),
    Deed("report", _page_before, _report, _page_after),
    Deed("explain", _page_before, _explain, _page_after),
)
SHARES = (36, 22, 18, 18, 2, 4)
"""How often each is killed; the last two take seconds."""
COMMANDS = 0.03
"""Share of the kills that are of the command itself, explaining with two workers, at any moment of its work."""
COUNTED: dict[str, int] = {}


def writes_of(world: World, deed: Deed) -> int:
    """How many writes it makes when nobody kills it."""
    if deed.name not in COUNTED:
        folder = deed.before(world)
        _, sent = child(lambda: deed.do(folder), folder)
        assert sent.isdigit(), f"{deed.name} fails unharmed: {sent}"
        COUNTED[deed.name] = int(sent)
    return COUNTED[deed.name]


def case(world: World, seed: int, number: int) -> Case:
    rng = rng_of(seed, "kills", number)
    if rng.random() < COMMANDS:
        return _command(world, rng.uniform(0.5, 12.0))
    deed = rng.choices(DEEDS, SHARES)[0]
    share, in_the_middle, size = rng.random(), rng.random() < 0.3, int(10 ** rng.uniform(0, 4.2))
    point = f"in the middle of a file, after {size} bytes" if in_the_middle else f"at {share:.2f} of its writes"

    def run() -> Result:
        at = 1 + int(share * writes_of(world, deed))
        folder = deed.before(world)
        if in_the_middle:
            _, sent = child(lambda: deed.do(folder), folder, limit=size)
        else:
            _, sent = child(lambda: deed.do(folder), folder, kill_at=at)
        if sent == "hang":
            return Result(Kind.HANG, deed.name)
        found = deed.after(world, folder)
        return found._replace(where=f"{deed.name}: {found.where}")

    return Case(f"kills: {deed.name}", f"{deed.name}, SIGKILL {point}", run)


def _command(world: World, work: float) -> Case:
    """The command itself is killed after so many seconds of its own work; its workers must end with it."""
    line = ["explain", "softmax", "-o", "page.html", "--episodes", "48", "--again", "--jobs", "2"]

    def run() -> Result:
        folder = _page_before(world)
        process = subprocess.Popen(
            [sys.executable, "-m", "compolens.cli", *line], cwd=folder, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
        while process.poll() is None and looked_at(process.pid)[1] < work:
            time.sleep(0.01)
        process.kill()
        process.wait()
        left = still_there(process.pid, 60.0)
        if left:
            return Result(Kind.LEFT, "explain's workers", repr(left))
        found = _page_after(world, folder)
        return found._replace(where=f"the command explain: {found.where}")

    return Case("kills: the command explain", f"compolens {' '.join(line)}, SIGKILL after {work:.1f} s of its work", run)


def disk(world: World, seed: int, number: int) -> Case:
    """No file may grow beyond some bytes."""
    rng = rng_of(seed, "disk", number)
    deed = rng.choices(DEEDS, SHARES)[0]
    size = rng.choice([0, 0, 1, 10, 100, 500, 1000, 2000, 5000, 20000])

    def run() -> Result:
        folder = deed.before(world)
        before = {path for path in folder.rglob("*")}
        _, sent = child(lambda: deed.do(folder), folder, limit=size, full=True)
        if sent == "hang":
            return Result(Kind.HANG, deed.name)
        if not sent.isdigit():
            kind, where, detail = sent.split("\n", 2)
            if Kind[kind] is not Kind.TOLD:
                return Result(Kind[kind], f"{deed.name}: {where}", detail)
            if str(folder) not in detail:
                return Result(Kind.WRONG, f"{deed.name}: the message names no path", detail)
        torn = [
            path.name
            for path in set(folder.rglob("*")) - before
            if path.name.endswith(".tmp") or path.name.startswith(".claim")
        ]
        if torn:
            return Result(Kind.WRONG, f"{deed.name}: torn files stay", str(torn))
        found = deed.after(world, folder)
        return found._replace(where=f"{deed.name}, then: {found.where}", detail=f"{sent} | {found.detail}")

    return Case(f"disk full: {deed.name}", f"{deed.name} where no file may exceed {size} bytes", run)
