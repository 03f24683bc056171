"""What every engine shares: a job, what became of the jobs, one attempt at one, and a list of them that others work on too."""

from __future__ import annotations

import os
import signal
import sys
import time
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from compolens.foundation.configs import ConfigError, DoesNotApply
from compolens.jobs.display import Display
from compolens.jobs.leases import Held, Watch

Report = Callable[[float, float, str], None]
"""report(done, total, text), called from inside a job."""


OUT_OF_MEMORY = ("can't allocate memory", "out of memory")
"""What torch says where memory runs out, here and on a GPU; it raises a RuntimeError."""


class Job(NamedTuple):
    """A piece of work, called as ``function(*arguments, report=report)``.

    Args:
        name: to be shown.
        function: at the top level of a module.
        arguments: its positional arguments.
    """

    name: str
    function: Callable[..., Any]
    arguments: tuple[Any, ...]


@dataclass
class Outcome:
    """What became of the jobs, by name.

    Args:
        results: what they returned.
        inapplicable: why one does not apply.
        failures: why one failed.
        held: which other process is doing one.
        signum: of an interruption, else 0.
    """

    results: dict[str, Any] = field(default_factory=dict)
    inapplicable: dict[str, str] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)
    held: dict[str, str] = field(default_factory=dict)
    signum: int = 0

    def note(self, display: Display, name: str, kind: str, value: Any) -> None:
        """Enter what `attempt` returned, and show it.

        Args:
            display: where it is shown.
            name: of the job.
            kind: what became of it, the first that `attempt` returns.
            value: the second.
        """
        if kind == "done":
            self.results[name] = value
            display.finish(name, "done" if value is None else str(value))
        elif kind == "inapplicable":
            self.inapplicable[name] = value
            display.finish(name, f"does not apply: {value}")
        elif kind == "held":
            self.held[name] = value
            display.finish(name, value)
        elif kind == "failed":
            self.failures[name] = value
            display.finish(name, f"failed: {value}")
        else:
            signum, message = value
            self.signum = self.signum or signum
            self.failures[name] = message or "interrupted"
            display.finish(name, message or "interrupted")

    def add(self, later: Outcome) -> None:
        """Take over what became of further jobs, `later`."""
        self.results |= later.results
        self.inapplicable |= later.inapplicable
        self.failures |= later.failures
        self.signum = self.signum or later.signum


class Engine(ABC):
    """Where jobs run. A failing job is reported and the others go on; an interruption stops all, each saving what it can."""

    @abstractmethod
    def run(self, jobs: list[Job], show: bool | None = None) -> Outcome:
        """Run all jobs.

        Args:
            jobs: all of them.
            show: bars (True), lines (False), or bars where stderr is a terminal (None).

        Returns:
            What became of them.
        """


def attempt(job: Job, report: Report) -> tuple[str, Any]:
    """Do a job; raises nothing but what COMPOLENS_DEBUG asks for.

    Args:
        job: the job.
        report: is told how far it is.

    Returns:
        ("done", value), ("inapplicable", reason), ("held", by whom), ("failed", message) or ("interrupted", (signum,
        message)).
    """
    try:
        return "done", job.function(*job.arguments, report=report)
    except KeyboardInterrupt as error:
        return "interrupted", (getattr(error, "signum", int(signal.SIGINT)), str(error))
    except DoesNotApply as error:
        return "inapplicable", str(error)
    except Held as error:
        return "held", str(error)
    except (ConfigError, OSError) as error:
        return "failed", str(error)
    except Exception as error:
        if os.environ.get("COMPOLENS_DEBUG"):
            raise
        return "failed", explain(error)


def _of_others(parts: tuple[str, ...]) -> bool:
    """Whether a file, by the parts of its path, belongs to an installed package that is not ours."""
    return bool({"site-packages", "dist-packages"} & set(parts)) and not any("compolens" in part for part in parts)


def explain(error: Exception) -> str:
    """One line for an `error` that nobody foresaw: what, where, and how to see more; memory that ran out has its own."""
    if isinstance(error, MemoryError) or any(words in str(error) for words in OUT_OF_MEMORY):
        return (
            f"there is not enough memory ({' '.join(str(error).split())[:150]}); take smaller batches, fewer episodes or jobs"
        )
    places = traceback.extract_tb(error.__traceback__)
    near = [place for place in places if not _of_others(Path(place.filename).parts)]  # not what pandas was doing by then
    last = (near or places)[-1:]
    where = "".join(f" ({os.path.basename(place.filename)}:{place.lineno})" for place in last)
    return f"{type(error).__name__}: {' '.join(str(error).split())}{where}; COMPOLENS_DEBUG=1 shows the traceback"


def run_leased(engine: Engine, jobs: list[Job], watches: dict[str, Watch], poll: float = 2.0) -> Outcome:
    """Run jobs that other processes may be doing too: what one of them holds is waited for, and done here if it stops.

    Args:
        engine: runs what is free.
        jobs: all of them.
        watches: job name -> the watch on its lease; a job without one is always free.
        poll: seconds between looks.

    Returns:
        What became of them.
    """
    outcome, waiting, told = Outcome(), {job.name: job for job in jobs}, set[str]()
    while waiting:
        free = [job for name, job in waiting.items() if name not in watches or watches[name].free()]
        if not free:
            for name in waiting.keys() - told:
                told.add(name)
                print(f"{name}: {watches[name].held_by()}; waiting for it", file=sys.stderr, flush=True)
            time.sleep(poll)
            continue
        part = engine.run(free)
        outcome.add(part)
        told |= set(part.held)
        waiting = {name: job for name, job in waiting.items() if name in part.held or job not in free}
        if outcome.signum:
            break
    return outcome
