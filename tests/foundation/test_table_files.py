"""The files of a table change as one: killed, out of disk or raced at any moment, a reader finds the old or the new ones."""

import errno
import gzip
import json
import multiprocessing
import os
import shutil
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from compolens.foundation import digests, files
from compolens.foundation.files import DamagedFile
from compolens.foundation.table_files import EPISODES, TABLE, TableFiles, alone_in, names, settle

FORK = multiprocessing.get_context("fork")
CALLS = ("open", "fsync", "chmod", "replace", "unlink")
"""What saving asks of the system, besides writing."""


def described(version):
    return {"weights": "w", "recipe": "r", "version": version}


def parts(version, episodes=True):
    content = {TABLE: f"table {version}\n".encode() * 50}
    return content | ({EPISODES: f"episodes {version}\n".encode() * 100} if episodes else {})


def save(folder, version, episodes=True):
    TableFiles(folder, "codes").write(described(version), parts(version, episodes))


def older(folder, version):
    """As tables were written before they had digests."""
    folder.mkdir(parents=True)
    for part, content in parts(version).items():
        TableFiles(folder, "codes").path(part).write_bytes(content)
    files.write_json(folder / "codes.json", described(version))


def packed(folder, version):
    """As `gzip` leaves a table."""
    save(folder, version)
    path = TableFiles(folder, "codes").path(TABLE)
    path.with_name("codes.csv.gz").write_bytes(gzip.compress(path.read_bytes()))
    path.unlink()


def found(folder):
    """The version that a reader finds, of whose files all fit together; None without a table."""
    table = TableFiles(folder, "codes")
    if not table.exists():
        return None
    content, provenance = table.read(TABLE)
    version = provenance["version"]
    assert content == parts(version)[TABLE]
    if EPISODES in provenance or TABLE not in provenance:
        assert table.read(EPISODES).content == parts(version)[EPISODES]
    return version


# ---- kills -----------------------------------------------------------------------------------------------------------
def die_at(moment, torn):
    """SIGKILL this process at a call of `CALLS`, counted from 0: two moments each, before and after. torn: of what was being
    flushed, only half is on the disk."""
    count = iter(range(10**6))

    def tick(name="", arguments=()):
        if next(count) == moment:
            if torn and name == "fsync" and stat.S_ISREG(os.fstat(arguments[0]).st_mode):
                os.ftruncate(arguments[0], os.fstat(arguments[0]).st_size // 2)
            os.kill(os.getpid(), signal.SIGKILL)

    def dying(name, original):
        def call(*arguments, **options):
            tick(name, arguments)
            result = original(*arguments, **options)
            tick()
            return result

        return call

    for name in CALLS:
        setattr(os, name, dying(name, getattr(os, name)))


def killed(moment, torn, work):
    """Whether a process of its own was killed at that moment; False where it ended before."""
    pid = os.fork()
    if pid == 0:
        try:
            die_at(moment, torn)
            work()
        finally:
            os._exit(0)
    return os.WIFSIGNALED(os.waitpid(pid, 0)[1])


@pytest.fixture(autouse=True)
def flushed_at_once(monkeypatch):
    """What a process wrote is there after it was killed, flushed or not; and disks are slow."""
    monkeypatch.setattr(os, "fsync", lambda _: None)


BEFORE = {
    "nothing": (lambda folder: folder.mkdir(), None),
    "a table": (lambda folder: save(folder, 1), 1),
    "a table without rows": (lambda folder: save(folder, 1, episodes=False), 1),
    "a table from before digests": (lambda folder: older(folder, 1), 1),
    "a packed table": (lambda folder: packed(folder, 1), 1),
}


def kill_at_every_moment(root, before, episodes):
    """Raise unless each kill leaves the table before or the new one; returns which were left."""
    make, version = BEFORE[before]
    root.mkdir()
    make(root / "start")
    left = set()
    for torn in (False, True):
        for moment in range(1000):
            folder = root / f"{moment}{torn}"
            shutil.copytree(root / "start", folder)
            if not killed(moment, torn, lambda folder=folder: save(folder, 2, episodes)):
                assert moment > 20
                break
            left.add(survives(folder))
    assert left == {version, 2}


def survives(folder):
    """The version that a killed process left in a folder, which reading and saving then put right."""
    left = found(folder)  # as a reader does who may not write
    settle(folder)
    assert found(folder) == left
    assert not list(folder.glob(".*.tmp"))
    save(folder, 3)
    assert found(folder) == 3
    assert sorted(path.name for path in folder.iterdir()) == ["codes.csv", "codes.episodes.parquet", "codes.json"]
    return left


@pytest.mark.parametrize("before", BEFORE)
def test_a_save_killed_at_any_moment_leaves_the_old_table_or_the_new_one(tmp_path, before):
    """In a process that is small, since it forks some hundred times."""
    subprocess.run([sys.executable, __file__, tmp_path, before], check=True, timeout=200)


def saving_for_ever(folder):
    for version in range(10**9):
        save(folder, version)


def test_a_save_killed_now_or_then_leaves_a_whole_table(tmp_path):
    save(tmp_path / "tables", 0)
    for attempt in range(12):
        process = FORK.Process(target=saving_for_ever, args=(tmp_path / "tables",))
        process.start()
        time.sleep(0.01 + 0.003 * attempt)
        os.kill(process.pid, signal.SIGKILL)
        process.join()
        assert found(tmp_path / "tables") is not None
    settle(tmp_path / "tables")
    assert not list((tmp_path / "tables").glob(".*.tmp"))


# ---- full disks ------------------------------------------------------------------------------------------------------
def failing(monkeypatch, name, number):
    """The number-th call, counted from 1, finds no space."""
    original, calls = getattr(os, name), iter(range(1, 10**6))

    def call(*arguments, **options):
        if next(calls) == number:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), *map(str, arguments[:1]))
        return original(*arguments, **options)

    monkeypatch.setattr(os, name, call)


@pytest.mark.parametrize(
    ("name", "number"), [("fsync", 1), ("fsync", 2), ("fsync", 4), ("replace", 1), ("replace", 2), ("replace", 3)]
)
def test_a_full_disk_leaves_what_was_there_and_nothing_else(tmp_path, monkeypatch, name, number):
    save(tmp_path, 1)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with monkeypatch.context() as patch, pytest.raises(files.SaveError, match=r"could not save .*No space left") as caught:
        failing(patch, name, number)
        save(tmp_path, 2)
    place = {1: "codes.csv:", 2: "codes.episodes.parquet:"}.get(number, "codes.json:")
    assert f"{tmp_path / place}" in str(caught.value)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


@pytest.mark.parametrize("number", [4, 5])
def test_a_rename_that_fails_later_leaves_the_new_table(tmp_path, monkeypatch, number):
    save(tmp_path, 1)
    with monkeypatch.context() as patch, pytest.raises(files.SaveError, match="the new table is whole"):
        failing(patch, "replace", number)
        save(tmp_path, 2)
    assert found(tmp_path) == 2
    settle(tmp_path)
    assert (tmp_path / "codes.csv").read_bytes() == parts(2)[TABLE] and found(tmp_path) == 2


def test_a_folder_that_knows_no_locks_is_saved_into_and_not_swept(tmp_path, monkeypatch):
    def none(*_):
        raise OSError(errno.ENOLCK, "no locks")

    (tmp_path / ".codes.csv.abc.tmp").write_text("perhaps somebody's")
    monkeypatch.setattr("fcntl.flock", none)
    save(tmp_path, 1)
    assert found(tmp_path) == 1 and (tmp_path / ".codes.csv.abc.tmp").exists()


# ---- several at once -------------------------------------------------------------------------------------------------
def saving(folder, versions):
    for version in versions:
        save(folder, version, episodes=version % 3 > 0)


def test_of_several_who_save_and_read_at_once_each_finds_a_whole_table(tmp_path):
    save(tmp_path, 0)
    writers = [FORK.Process(target=saving, args=(tmp_path, range(k, 120, 3))) for k in range(3)]
    for writer in writers:
        writer.start()
    looks = 0
    while any(writer.is_alive() for writer in writers):
        table = TableFiles(tmp_path, "codes")
        content, provenance = table.read(TABLE)
        assert content == parts(provenance["version"])[TABLE]
        settle(tmp_path)
        looks += 1
    assert [writer.exitcode for writer in writers] == [0, 0, 0] and looks > 10
    assert found(tmp_path) is not None and not list(tmp_path.glob(".*"))


def test_what_another_is_writing_is_not_swept(tmp_path):
    save(tmp_path, 1)
    (tmp_path / ".codes.csv.abc.tmp").write_text("half")
    with alone_in(tmp_path, 1.0) as alone:
        assert alone
        settle(tmp_path)
        assert (tmp_path / ".codes.csv.abc.tmp").exists()
    settle(tmp_path)
    assert sorted(path.name for path in tmp_path.glob(".*")) == []


def test_who_waits_too_long_is_told(tmp_path, monkeypatch):
    monkeypatch.setattr("compolens.foundation.table_files.PATIENCE", 0.05)
    with alone_in(tmp_path, 1.0), pytest.raises(files.SaveError, match=f"another process has been saving in {tmp_path}"):
        save(tmp_path, 1)


# ---- damage ----------------------------------------------------------------------------------------------------------
def test_a_copy_that_waits_under_the_right_name_and_is_torn_is_not_taken(tmp_path):
    save(tmp_path, 1)
    table = TableFiles(tmp_path, "codes")
    digest = json.loads(table.head.read_text())[TABLE]
    table.path(TABLE).write_bytes(b"another")
    table.waiting(TABLE, digest).write_bytes(parts(1)[TABLE][:-1])
    with pytest.raises(DamagedFile, match=r"codes\.csv changed after it was measured"):
        table.read(TABLE)
    settle(tmp_path)
    assert not table.waiting(TABLE, digest).exists()


# ---- packed ----------------------------------------------------------------------------------------------------------
def test_a_packed_table_is_the_same_table(tmp_path):
    save(tmp_path, 1)
    plain = TableFiles(tmp_path, "codes").read(TABLE)
    subprocess.run(["gzip", "-n", tmp_path / "codes.csv"], check=True)
    table = TableFiles(tmp_path, "codes")
    assert table.read(TABLE) == plain and table.exists() and found(tmp_path) == 1
    assert table.place(TABLE).name == "codes.csv.gz" and names(tmp_path) == ["codes"]
    subprocess.run(["gunzip", tmp_path / "codes.csv.gz"], check=True)
    assert table.read(TABLE) == plain and names(tmp_path) == ["codes"]


@pytest.mark.parametrize("harm", ["a byte", "half", "another table", "no gzip file"])
def test_a_packed_table_that_is_not_what_was_saved_is_not_read(tmp_path, harm):
    packed(tmp_path, 1)
    path = tmp_path / "codes.csv.gz"
    content = path.read_bytes()
    told = {
        "a byte": content[:20] + bytes([content[20] ^ 1]) + content[21:],
        "half": content[: len(content) // 2],
        "another table": gzip.compress(b"table 2\n" * 50),
        "no gzip file": b"table 1\n" * 50,
    }
    path.write_bytes(told[harm])
    with pytest.raises(DamagedFile, match=r"codes\.csv\.gz (cannot be unpacked|changed after it was measured)"):
        TableFiles(tmp_path, "codes").read(TABLE)


def test_names_are_those_of_tables_and_of_nothing_else(tmp_path):
    for name in ("b.csv", "a.csv.gz", "a.csv", "c.csv.bak", "d.json", ".e.csv.0123456789abcdef.tmp", "f.csv.gz.tmp"):
        (tmp_path / name).write_text("")
    (tmp_path / "g.csv").mkdir()
    assert names(tmp_path) == ["a", "b"]


def test_every_changed_letter_of_the_provenance_is_noticed(tmp_path):
    save(tmp_path, 1)
    head, noticed = tmp_path / "codes.json", 0
    before = head.read_bytes()
    says = TableFiles(tmp_path, "codes").provenance()
    for position in range(len(before)):
        head.write_bytes(before[:position] + bytes([before[position] ^ 1]) + before[position + 1 :])
        try:
            now = TableFiles(tmp_path, "codes").provenance()
        except DamagedFile:
            noticed += 1
            continue
        # what is left unnoticed says the same: spaces, or the name of the seal
        assert {k: v for k, v in now.items() if k in says and k != digests.SEAL} == {
            k: v for k, v in says.items() if k != digests.SEAL
        }
    assert noticed > 0.9 * len(before.replace(b" ", b""))


def test_a_seal_is_about_what_json_keeps():
    sealed = digests.sealed({"b": (1, 2), "a": {3: 0.1}, "c": float("nan")})
    again = json.loads(json.dumps(sealed))
    assert not digests.is_broken(again) and digests.is_broken(again | {"b": [1, 3]})
    assert not digests.is_broken({"a": 1})


def test_a_file_is_read_again_when_it_changes(tmp_path):
    path = Path(tmp_path / "weights")
    path.write_bytes(b"a" * 100)
    os.utime(path, (1, 1))
    first = digests.of_file(path)
    path.write_bytes(b"b" * 100)
    os.utime(path, (1, 1))
    assert digests.of_file(path) != first and digests.of_file(path) == digests.of_bytes(b"b" * 100)
    assert digests.of_file(tmp_path) == digests.of_file(tmp_path / "nothing") == "missing"


if __name__ == "__main__":
    os.fsync = lambda _: None
    for rows in (True, False):
        kill_at_every_moment(Path(sys.argv[1]) / str(rows), sys.argv[2], rows)
