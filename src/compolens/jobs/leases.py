"""Who is doing what in a folder that several machines share: a lease is a small file beside the run it is about.

    OUT/.claims/F-softmax-0.claim      {"token": …, "host": …, "pid": …}     its modification time is the owner's heartbeat

The lock that `checkpoints.locked` takes with flock is the kernel's: it is enough between processes of one machine, where it
ends with its owner. Between machines it is not. A network file system may keep such locks on each client by itself (NFS
mounted with local_lock or nolock, Lustre without the flock option), so that two machines both get it; and where a server
does keep them, the lock of a machine that crashed may outlive it for as long as that machine stays down. What holds
everywhere is that one name is made once: hard links, and O_EXCL where there are none. So a lease is taken by making its
name, and a crash is told from its heartbeat standing still.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import secrets
import socket
import stat
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from compolens.foundation.configs import ConfigError, require
from compolens.foundation.files import SaveError, way_out
from compolens.foundation.moved import elsewhere

BEAT = 20.0
"""Seconds between heartbeats."""
LONGEST = 10_000
"""Bytes of a lease that are read; it has some hundred."""
MISSED = 5
"""Heartbeats that must be missed before a lease counts as dead; longer, together, than the 90 s for which an NFSv4 server
keeps a lost machine's locks."""


class Held(ConfigError):
    """Another process holds the lease."""


class Lost(Held):
    """This process held the lease, was taken for dead, and must not go on writing."""


class Holder(NamedTuple):
    """What a lease says.

    Args:
        token: of this lease, never used twice.
        host: the machine's name.
        pid: of the process.
        birth: when the process began, as `birth` says it.
        machine: tells the machine from others, as `machine` says it.
        beat: the heartbeat, the file's modification time in ns.
    """

    token: str
    host: str
    pid: int
    birth: str
    machine: str
    beat: int

    def died_here(self) -> bool:
        """Whether it was a process of this very machine that is there no more; False where that cannot be known."""
        return bool(self.machine and self.birth) and self.machine == machine() and self.birth != birth(self.pid)

    def __str__(self) -> str:
        return f"in work on {self.host or 'another machine'} (process {self.pid})"


@dataclass(frozen=True)
class Leases:
    """The leases on what lies in a folder.

    Args:
        folder: the folder.
        beat: seconds between heartbeats, above 0.
        missed: how many missed ones make a lease dead; at least 2, since a heartbeat may come late.
    """

    folder: Path
    beat: float = BEAT
    missed: int = MISSED

    def __post_init__(self) -> None:
        require(self.beat > 0, f"Leases: beat must be positive, got {self.beat}")
        require(self.missed >= 2, f"Leases: missed must be at least 2 (a heartbeat may come late), got {self.missed}")

    def path(self, name: str) -> Path:
        """The file of the lease on `name`, whether or not it exists."""
        return self.folder / ".claims" / f"{name}.claim"

    def holder(self, name: str) -> Holder | None:
        """Who holds the lease on `name`; None if nobody does. Opened afresh, which makes a network file system look anew."""
        try:
            descriptor = os.open(self.path(name), os.O_RDONLY | os.O_NONBLOCK)  # which a pipe cannot hold up
            with os.fdopen(descriptor, "rb") as file:
                known = os.fstat(descriptor)
                said, beat = file.read(LONGEST) if stat.S_ISREG(known.st_mode) else b"", known.st_mtime_ns
        except OSError as error:
            if isinstance(error, PermissionError):
                raise
            return None  # not there, or removed while we looked (ESTALE)
        try:
            words = json.loads(said)
            return Holder(words["token"], words["host"], int(words["pid"]), words["birth"], words["machine"], beat)
        except (ValueError, KeyError, TypeError, RecursionError):
            return Holder("", "", 0, "", "", beat)  # being written, or never finished

    @contextlib.contextmanager
    def take(self, name: str) -> Iterator[Lease]:
        """A context that holds the lease on `name`; raises `Held` if another process holds it."""
        try:
            lease = self._make(name)
        except OSError:
            with contextlib.suppress(OSError):
                os.rmdir(self.folder / ".claims")  # refused while others have leases
            raise
        held = self.holder(name) if lease is None else None
        if held is not None and held.died_here() and self.remove(name, held.token):
            lease = self._make(name)
        if lease is None:
            raise Held(f"{name} is {self.holder(name) or 'in work elsewhere'}")
        lease.start()
        try:
            yield lease
        finally:
            lease.stop()
            self._release(lease)

    def remove(self, name: str, token: str) -> bool:
        """Remove the lease of a dead holder.

        To take a lease away is to hold the right to, itself a lease, named after the one that goes. Tokens are never used
        twice, so whoever comes late with this one finds another, and removes nothing.

        Args:
            name: what the lease is on.
            token: of the dead holder.

        Returns:
            False if it is no longer there or another process removes it.
        """
        right = self._make(self.right(name, token))
        if right is None:
            other = self.holder(self.right(name, token))
            if other is not None and other.died_here() and self.remove(self.right(name, token), other.token):
                right = self._make(self.right(name, token))  # it died with the right in hand
        if right is None:
            return False
        try:
            held = self.holder(name)
            if held is None or held.token != token:
                return False
            self._discard(name)
            return True
        finally:
            right.close()
            self._discard(right.name)

    def right(self, name: str, token: str) -> str:
        """The name of the right to remove a lease.

        Args:
            name: what the lease is on.
            token: of its holder.

        Returns:
            The name, itself that of a lease.
        """
        return f"{name}~{token}"

    def _make(self, name: str) -> Lease | None:
        """A lease, if its name could be made. Written beside it, then linked to it: who reads it reads all of it."""
        path, token = self.path(name), secrets.token_hex(8)
        draft = path.with_name(f".{token}.draft")
        who = {"token": token, "host": socket.gethostname(), "pid": os.getpid()}
        text = json.dumps(who | {"birth": birth(os.getpid()), "machine": machine()}).encode()
        descriptor = _new_file(draft, text)
        try:
            try:
                os.link(draft, path)
            except FileExistsError:
                pass
            except OSError:  # a file system without hard links
                return self._make_exclusively(name, token, text)
            finally:
                with contextlib.suppress(OSError):
                    os.unlink(draft)
            # The file decides, not the link's answer: a server's answer may be lost, and asking again is told "exists".
            held = self.holder(name)
            if held is not None and held.token == token:
                return Lease(self, name, token, os.dup(descriptor))
            return None
        finally:
            os.close(descriptor)

    def _make_exclusively(self, name: str, token: str, text: bytes) -> Lease | None:
        try:
            return Lease(self, name, token, _new_file(self.path(name), text))
        except FileExistsError:
            return None

    def _release(self, lease: Lease) -> None:
        """Remove our own lease, unless it was taken away; tidy up."""
        with contextlib.suppress(OSError):
            self.remove(lease.name, lease.token)
        lease.close()
        self._sweep()
        with contextlib.suppress(OSError):
            os.rmdir(self.folder / ".claims")  # refused while others have leases

    def _sweep(self) -> None:
        """Remove drafts of processes that were killed while they wrote them: a draft lives for milliseconds."""
        for draft in (self.folder / ".claims").glob(".*.draft"):
            with contextlib.suppress(OSError):
                if time.time() - draft.stat().st_mtime > self.beat * self.missed:
                    draft.unlink()

    def _discard(self, name: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.path(name))


class Lease:
    """A lease that is held, renewed by a thread. Its file stays open: a heartbeat reaches our file, nobody else's.

    Args:
        leases: of the folder.
        name: what it is on.
        token: of this lease.
        descriptor: of its open file.
    """

    def __init__(self, leases: Leases, name: str, token: str, descriptor: int) -> None:
        self.leases, self.name, self.token, self.descriptor = leases, name, token, descriptor
        self.ending = threading.Event()
        self.lost = False
        self.renewed = time.monotonic()
        self.thread = threading.Thread(target=self._renew, name=f"heartbeat of {name}", daemon=True)

    def start(self) -> None:
        self.thread.start()

    def stop(self) -> None:
        self.ending.set()
        if self.thread.is_alive():
            self.thread.join(timeout=self.leases.beat)

    def close(self) -> None:
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1

    def _renew(self) -> None:
        while not self.ending.wait(self.leases.beat) and not self.lost:
            self.renew()

    def renew(self) -> None:
        """One heartbeat, then a look whether the lease is still ours."""
        asked = time.monotonic()
        try:
            os.utime(self.descriptor)
            held = self.leases.holder(self.name)
        except OSError:
            return  # not renewed: `check` says so when it lasts
        if held is None or held.token != self.token:
            self.lost = True
        else:
            self.renewed = asked

    def check(self) -> None:
        """Raise `Lost` if the lease was taken away, or could not be renewed for so long that it may be.

        For a process that was stopped for a while, the thread's last word may be old: then it asks anew first.
        """
        if time.monotonic() - self.renewed > 2 * self.leases.beat:
            self.renew()
        if time.monotonic() - self.renewed > (self.leases.missed - 1) * self.leases.beat:
            self.lost = True
        if self.lost:
            holder = self.leases.holder(self.name)
            raise Lost(
                f"{self.name} was taken over (this process was not heard of for too long); it is {holder or 'free now'}"
            )


class Watch:
    """Whether the lease on a name is free, judged by looking again and again.

    Only changes of the heartbeat are looked at, and the time between looks is our own clock's: clocks need not agree. A look
    counts for one heartbeat at most, so that a file server that hangs for an hour does not make everybody dead.

    Args:
        leases: of the folder.
        name: what the lease is on.
    """

    def __init__(self, leases: Leases, name: str) -> None:
        self.leases, self.name = leases, name
        self.seen: Holder | None = None
        self.looked, self.still = 0.0, 0.0
        self.right: Watch | None = None

    def free(self) -> bool:
        """Whether nobody holds the lease; the lease of a holder found dead is removed."""
        held, now = self.leases.holder(self.name), time.monotonic()
        if held is None:
            return True
        if held != self.seen:
            self.seen, self.still, self.right = held, 0.0, None
        else:
            self.still += min(now - self.looked, self.leases.beat)
        self.looked = now
        if not held.died_here() and self.still <= self.leases.missed * self.leases.beat:
            return False
        if self.leases.remove(self.name, held.token):
            return True
        if self.right is None:  # another is removing it; and should that one have died as well, its right is a lease like this
            self.right = Watch(self.leases, self.leases.right(self.name, held.token))
        self.right.free()
        return False

    def held_by(self) -> str:
        """Who held it at the last look."""
        return str(self.seen) if self.seen is not None else "free"


def machine() -> str:
    """What tells this machine, as processes see it, from others: host, boot and process namespace; "" where unknown.

    A host's name alone would not do: containers share names, and then one would take the other's processes for dead.
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{socket.gethostname()} {boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return ""


def birth(pid: int) -> str:
    """When the living process `pid` of this machine began, in ticks since boot; "" if there is none (or no way to know)."""
    try:
        words = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    except (OSError, IndexError):
        return ""
    return words[19] if words[0] not in DEAD or _has_living_threads(pid) else ""


DEAD = "ZX"
"""States of what is dead, and not yet buried by its parent."""


def _has_living_threads(pid: int) -> bool:
    """Whether a process whose first thread is dead has others: until they end, it keeps its files and their locks."""
    for stat_file in Path(f"/proc/{pid}/task").glob("*/stat"):
        with contextlib.suppress(OSError, IndexError):
            if stat_file.read_text().rsplit(")", 1)[1].split()[0] not in DEAD:
                return True
    return False


def _new_file(path: Path, text: bytes) -> int:
    """The open descriptor of a file that was not there; makes its folder, again if another has just removed it. A file that
    cannot be written whole is not left behind: `SaveError`."""
    for _ in range(100):
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
        except FileExistsError:
            if path.parent.is_dir():
                raise
            raise SaveError(f"cannot make {path}: {path.parent} is no folder; move it away") from None
        except FileNotFoundError:
            continue
        except OSError as error:
            raise SaveError(f"cannot make {path}: {error.strerror or error}. {way_out(error)}") from error
        try:
            if os.write(descriptor, text) < len(text):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            os.fsync(descriptor)
            return descriptor
        except OSError as error:
            os.close(descriptor)
            with contextlib.suppress(OSError):
                os.unlink(path)
            raise SaveError(f"cannot write {path}: {error.strerror or error}. {way_out(error)}") from error
    raise ConfigError(f"cannot make {path}: its folder disappears again and again")


def __getattr__(name: str) -> Any:
    return elsewhere(__name__, name)
