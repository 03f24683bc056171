"""Work that the processes of a test run share: each piece is done once, by whichever process comes to it first."""

import fcntl
import traceback
from collections.abc import Callable, Iterable
from pathlib import Path

Work = dict[str, Callable[[], object]]


def done_once(folder: Path, work: Work, wanted: Iterable[str] | None = None) -> None:
    """Return when what is wanted is done; whatever failed of it raises, in every process that wants it and in no other.

    A piece is done under a lock that ends with the process that holds it, however that ends. So nobody waits for the dead,
    and nobody gives up on the slow: there is no limit of time. While another process is at what is wanted, this one does
    the rest of the work.

    Args:
        folder: What all processes have in common; each piece leaves `NAME.lock` and `NAME.outcome` there.
        work: Every piece, name -> what does it. Pieces must not need one another.
        wanted: Names of the pieces that must be done on return; all of them by default.
    """
    folder.mkdir(parents=True, exist_ok=True)
    wanted = list(work if wanted is None else wanted)
    for name in dict.fromkeys([*wanted, *work]):
        if all(_outcome(folder, wish).exists() for wish in wanted):
            break
        _do(folder, name, work[name], fcntl.LOCK_EX | fcntl.LOCK_NB)
    for name in wanted:
        _do(folder, name, work[name], fcntl.LOCK_EX)
        said = _outcome(folder, name).read_text(encoding="utf-8")
        assert not said, f"{name} failed when it was done for all who share it:\n{said}"


def _outcome(folder: Path, name: str) -> Path:
    """The file that says how a piece ended: empty for well, else the error. It appears whole."""
    return folder / f"{name}.outcome"


def _do(folder: Path, name: str, do: Callable[[], object], lock: int) -> None:
    """Do a piece that nobody has done; with LOCK_NB, leave it to whoever is at it."""
    if _outcome(folder, name).exists():
        return
    with open(folder / f"{name}.lock", "a") as file:
        try:
            fcntl.flock(file, lock)
        except BlockingIOError:
            return
        if _outcome(folder, name).exists():
            return
        said = ""
        try:
            do()
        except Exception:
            said = traceback.format_exc()
        draft = folder / f"{name}.draft"
        draft.write_text(said, encoding="utf-8")
        draft.replace(_outcome(folder, name))
