"""What becomes of a case, and how it is told from what the program printed or raised."""

from __future__ import annotations

import contextlib
import io
import re
import traceback
import warnings
from collections.abc import Callable, Iterator
from enum import Enum
from typing import Any, NamedTuple

from compolens import cli
from compolens.foundation.configs import ConfigError


class Kind(Enum):
    """The columns of the campaign's table. The last five are faults."""

    RIGHT = "right"
    TOLD = "told"
    OLD = "written before digests"
    UNFORESEEN = "unforeseen one-liner"
    EXCEPTION = "Python exception"
    WRONG = "silently wrong"
    HANG = "hang"
    LEFT = "process left"

    @property
    def is_fault(self) -> bool:
        return self in (Kind.UNFORESEEN, Kind.EXCEPTION, Kind.WRONG, Kind.HANG, Kind.LEFT)


class Result(NamedTuple):
    """kind; where: what a group of equal causes is called; detail: what was seen."""

    kind: Kind
    where: str = ""
    detail: str = ""


class Case(NamedTuple):
    """campaign: a row of the table; text: how to do it by hand; run: does it."""

    campaign: str
    text: str
    run: Callable[[], Result]


class Said(NamedTuple):
    """What a command of this process did: its exit status (None where an exception came through), text, and the exception;
    data: `out` is what it wrote or returned, not what it showed."""

    status: int | None
    out: str
    err: str
    error: BaseException | None
    data: bool = False

    @property
    def text(self) -> str:
        return self.out + self.err


def command(arguments: list[str]) -> Said:
    """Run a command line in this process."""
    out, err = io.StringIO(), io.StringIO()
    status, error = None, None
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), warnings.catch_warnings():
        warnings.simplefilter("always")
        try:
            status = cli.main(arguments)
        except SystemExit as end:
            status = end.code if isinstance(end.code, int) else 2
        except Exception as found:
            error = found
    return Said(status, out.getvalue(), err.getvalue(), error)


ESCAPES = re.compile(r"[\x00-\x08\x0b-\x1f\x7f\x9b]")
UNFORESEEN = re.compile(r"COMPOLENS_DEBUG=1|\[Errno \d+\]")


def fault(said: Said) -> Result | None:
    """What is wrong with a command's output whatever it was about; None where nothing is."""
    if said.error is not None:
        return of_exception(said.error)
    if "Traceback (most recent call last)" in said.text:
        return Result(Kind.EXCEPTION, said.text.strip().splitlines()[-1][:160], said.text[-600:])
    for line in said.text.splitlines():
        if UNFORESEEN.search(line):
            return Result(Kind.UNFORESEEN, _place(line), line)
    if found := ESCAPES.search((said.err if said.data else said.text).replace("\r", "")):
        return Result(Kind.WRONG, f"control character {found.group()!r} on the terminal", repr(said.text[:300]))
    return None


def _place(line: str) -> str:
    """The last of an unforeseen one-liner: the exception and the file."""
    found = re.search(r"(\w*(?:Error|Exception|Iteration)\w*): .*?(\(\w+\.py:\d+\))?;? ?(COMPOLENS|$)", line)
    return f"{found.group(1)} {found.group(2) or ''}".strip() if found else line[-100:]


def of_exception(error: BaseException) -> Result:
    """Told, where the class is the project's own; else an exception that nobody foresaw."""
    if isinstance(error, ConfigError) or type(error).__module__.startswith("compolens"):
        return Result(Kind.TOLD, "", str(error))
    frames = traceback.extract_tb(error.__traceback__)
    ours = [frame for frame in frames if "/compolens/" in frame.filename or "/probes/" in frame.filename] or frames
    place = f"{ours[-1].filename.rsplit('/', 1)[-1]}:{ours[-1].lineno}" if ours else ""
    return Result(Kind.EXCEPTION, f"{type(error).__name__} ({place})", " ".join(str(error).split())[:300])


def tried(function: Callable[[], Any]) -> tuple[Any, Result | None, str]:
    """(value, None, warnings) of a call of the API, or (None, what became of it, "")."""
    with warnings.catch_warnings(record=True) as caught, quiet():
        warnings.simplefilter("always")
        try:
            value = function()
        except Exception as error:
            return None, of_exception(error), ""
    ours = [w for w in caught if w.category.__module__.startswith("compolens")]
    return value, None, "\n".join(str(w.message) for w in ours)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        yield
