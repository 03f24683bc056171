"""The files of one table, which change as one: killed at any moment, all of the old ones are there, or all of the new ones.

<name>.json holds the sha256 of <name>.csv and of <name>.episodes.parquet. Saving first writes these two beside their places,
under names with their digests in them (".codes.csv.0123456789abcdef.tmp"); then renames the new .json into place, from which
on the new table is meant; then renames the two. A reader takes of each file the copy, in its place or waiting beside it, whose
digest the .json holds: whatever happened in between, that is what was saved with it. Whoever saves or reads next, while nobody
else saves, puts what waits into its place and removes what nobody waits for.

A table that `gzip` packed (<name>.csv.gz in place of <name>.csv) is the same table: its digest is that of the plain bytes.
Saving writes it plain.
"""

from __future__ import annotations

import contextlib
import fcntl
import gzip
import os
import re
import time
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from compolens.foundation import digests, files
from compolens.foundation.files import DamagedFile

TABLE, EPISODES = "table", "episodes"
"""The parts of a table besides its provenance, by the key under which that holds their digest."""
SUFFIX = {TABLE: ".csv", EPISODES: ".episodes.parquet"}
PACKED = ".gz"
"""What `gzip` adds to the name of a file that it packs."""
WAITING = re.compile(r"\.(?P<name>.+)(?P<suffix>\.csv|\.episodes\.parquet)\.[0-9a-f]{16}\.tmp")
PATIENCE = 20.0
"""Seconds to wait for another process that saves in the same folder; saving takes it milliseconds."""
LOOKS = 20
"""How often a reader looks again because the table was saved while it looked."""


class Whole(NamedTuple):
    """A part of a table.

    Args:
        content: its bytes.
        provenance: what it was saved with ({}: there is none).
    """

    content: bytes
    provenance: dict[str, Any]


@dataclass(frozen=True)
class TableFiles:
    """The files of a table.

    Args:
        folder: a model's folder of tables.
        name: the table's name.
    """

    folder: Path
    name: str

    def path(self, part: str) -> Path:
        """The file of a `part`, whether or not it exists."""
        return self.folder / f"{self.name}{SUFFIX[part]}"

    def packed(self, part: str) -> Path:
        """The file of a `part` that `gzip` packed, whether or not it exists."""
        path = self.path(part)
        return path.with_name(path.name + PACKED)

    def place(self, part: str) -> Path:
        """Where a `part` lies: packed, if it is there so and not plain as well."""
        path, packed = self.path(part), self.packed(part)
        return packed if packed.is_file() and not path.is_file() else path

    @property
    def head(self) -> Path:
        """Where the provenance lies."""
        return self.folder / f"{self.name}.json"

    def waiting(self, part: str, digest: str) -> Path:
        """The file of a part that is not in its place yet.

        Args:
            part: which part.
            digest: sha256 of its content.

        Returns:
            The path, whether or not it exists.
        """
        return self.folder / f".{self.name}{SUFFIX[part]}.{digest[:16]}.tmp"

    # ---- reading -----------------------------------------------------------------------------------------------------
    def exists(self) -> bool:
        """Whether there is a table, in its place or on the way there."""
        if self.place(TABLE).is_file():
            return True
        try:
            digest = self.provenance().get(TABLE)
        except DamagedFile:
            return False
        return isinstance(digest, str) and self._copy(TABLE, digest) is not None

    def provenance(self) -> dict[str, Any]:
        """What the table was measured with; {} where nothing says it."""
        if not self.head.exists():
            return {}
        found = files.read_json(self.head)
        if not isinstance(found, dict) or digests.is_broken(found):
            raise DamagedFile(f"{self.head} changed after the table was measured")
        return found

    def read(self, part: str) -> Whole:
        """A `part` as it was saved; a `DamagedFile` where it is not that, or not there. Nothing can be said of a part of a
        table from before digests."""
        for _ in range(LOOKS):
            provenance = self.provenance()
            content = self._copy(part, provenance.get(part))
            if provenance == self.provenance():  # else somebody saved it in between
                break
        if content is None:
            path = self.place(part)
            raise DamagedFile(f"{path} changed after it was measured" if path.exists() else f"there is no {path}")
        return Whole(content, provenance)

    def _copy(self, part: str, digest: str | None) -> bytes | None:
        path, packed = self.path(part), self.packed(part)
        if digest is None:
            return _content(self.place(part))
        for place in (path, packed, self.waiting(part, digest), path):  # it may have moved while we looked
            content = _content(place)
            if content is not None and digests.of_bytes(content) == digest:
                return content
        return None

    # ---- writing -----------------------------------------------------------------------------------------------------
    def write(self, provenance: dict[str, Any], parts: dict[str, bytes]) -> None:
        """Replace the table. `SaveError` leaves what was there before, unless it says that the new table is whole.

        Args:
            provenance: What it was measured with; the digests of the parts are added.
            parts: The content of each part.
        """
        known = {part: digests.of_bytes(content) for part, content in parts.items()}
        described = {key: value for key, value in provenance.items() if key not in SUFFIX} | known
        self.folder.mkdir(parents=True, exist_ok=True)
        with alone_in(self.folder, PATIENCE) as alone:
            if alone:
                sweep(self.folder)
            try:
                for part, content in parts.items():
                    self._put_beside(part, known[part], content)
                _flush(self.folder)
                files.write_json(self.head, digests.sealed(described))
            except OSError:  # the provenance was not replaced; after a signal, whoever comes next sees whether it was
                for part in parts:
                    with contextlib.suppress(OSError):
                        self.waiting(part, known[part]).unlink()
                raise
            self._put_in_place(known)

    def _put_beside(self, part: str, digest: str, content: bytes) -> None:
        beside, path = self.waiting(part, digest), self.path(part)
        try:
            files.write_atomically(beside, content)
        except files.SaveError as error:
            raise files.SaveError(str(error).replace(str(beside), str(path))) from error

    def _put_in_place(self, known: dict[str, str]) -> None:
        try:
            for part, digest in known.items():
                os.replace(self.waiting(part, digest), self.path(part))
                self.packed(part).unlink(missing_ok=True)
            if EPISODES not in known:
                self.path(EPISODES).unlink(missing_ok=True)  # of the table before
        except OSError as error:
            raise files.SaveError(
                f"could not put {error.filename2 or error.filename} in its place: {error.strerror or error}; the new table is "
                "whole all the same, and what is missing of it is put in its place when it is next read or saved"
            ) from error


def names(folder: Path) -> list[str]:
    """The names of the tables that lie in a folder, packed or not.

    Args:
        folder: a model's folder of tables; need not exist.

    Returns:
        The names, sorted.
    """
    endings = (SUFFIX[TABLE], SUFFIX[TABLE] + PACKED)
    found = {path.name.removesuffix(end) for end in endings for path in folder.glob(f"*{end}") if path.is_file()}
    return sorted(found - {""})


def _content(path: Path) -> bytes | None:
    files.require_regular(path)
    try:
        content = path.read_bytes() if path.is_file() else None
        return gzip.decompress(content) if content is not None and path.suffix == PACKED else content
    except FileNotFoundError:
        return None
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise DamagedFile(f"{path} cannot be unpacked ({error})") from error
    except OSError as error:
        raise DamagedFile(f"{path} cannot be read ({error.strerror or error})") from error


def _flush(folder: Path) -> None:
    """What lies beside its place is on disk before anything says so."""
    with contextlib.suppress(OSError):  # some file systems flush no folders
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


# ---- what a killed process left behind -------------------------------------------------------------------------------
def settle(folder: Path) -> None:
    """Sweep `folder`, if there is anything to sweep and nobody saves there now."""
    if next(folder.glob(".*.tmp"), None) is None:
        return
    with contextlib.suppress(OSError), alone_in(folder, 0.0) as alone:  # a folder that may not be written is read as it is
        if alone:
            sweep(folder)


def sweep(folder: Path) -> None:
    """Put into place what was saved in `folder` and is not there yet, and remove half-written files; only while alone in the
    folder."""
    for path in folder.glob(".*.tmp"):
        found = WAITING.fullmatch(path.name)
        if found is None or not _was_saved(TableFiles(folder, found["name"]), found["suffix"], path):
            path.unlink(missing_ok=True)


def _was_saved(table: TableFiles, suffix: str, waiting: Path) -> bool:
    """Whether this is the part that the provenance speaks of; if so, it is in its place now."""
    part = next(part for part in SUFFIX if SUFFIX[part] == suffix)
    try:
        digest = table.provenance().get(part)
    except DamagedFile:
        return True  # nobody can tell: kept
    if digest is None or waiting != table.waiting(part, digest) or digests.of_file(waiting) != digest:
        return False
    os.replace(waiting, table.path(part))
    return True


@contextlib.contextmanager
def alone_in(folder: Path, seconds: float) -> Iterator[bool]:
    """Whether no other process saves in the folder, for as long as the context lives.

    Args:
        folder: the folder.
        seconds: how long others are waited for.

    Returns:
        A context; it gives False where the file system knows no locks (saving goes on, and sweeps nothing), or where another
        is still at it and `seconds` is 0.

    Raises:
        SaveError: another process is still at it after that time.
    """
    path, end = folder / ".lock", time.monotonic() + seconds
    while True:
        try:
            file = open(path, "w", opener=files.no_link)  # noqa: SIM115 - open for as long as the lock is held
        except OSError as error:
            raise files.SaveError(f"could not save in {folder}: {error.strerror or error}") from error
        got = _lock(file.fileno())
        if got is not False and os.fstat(file.fileno()).st_nlink:  # else its owner removed it while we waited
            break
        file.close()
        if got is False and time.monotonic() >= end:
            if seconds:
                raise files.SaveError(f"another process has been saving in {folder} for {seconds:.0f} s; wait for it to end")
            yield False
            return
        time.sleep(0.005 if got is False else 0)
    try:
        yield got is True
    finally:
        with contextlib.suppress(OSError):
            os.unlink(path)
        file.close()


def _lock(descriptor: int) -> bool | None:
    """True: locked; False: another has it; None: no locks here."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return None
    return True
