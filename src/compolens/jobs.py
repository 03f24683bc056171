"""Independent pieces of work, one after another or side by side in processes of one thread each, with progress shown."""

from __future__ import annotations

import os
import queue
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

Report = Callable[[float, float, str], None]
"""report(done, total, text), called from inside a job."""


class Job(NamedTuple):
    """A name to show, a module-level function and its arguments; it is called as ``function(*arguments, report=report)``."""

    name: str
    function: Callable[..., Any]
    arguments: tuple[Any, ...]


@dataclass
class Outcome:
    """What became of the jobs: results, failures and what does not apply, by name; `signum` of an interruption, else 0."""

    results: dict[str, Any] = field(default_factory=dict)
    inapplicable: dict[str, str] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)
    signum: int = 0


def run(jobs: list[Job], workers: int, show: bool | None = None) -> Outcome:
    """Run all jobs; a failing one is reported and the others go on. An interruption stops all, each saving what it can."""
    outcome = Outcome()
    with Display(len(jobs), show) as display:
        if workers <= 1 or len(jobs) <= 1:
            _inline(jobs, outcome, display)
        else:
            _in_processes(jobs, min(workers, len(jobs)), outcome, display)
    return outcome


def _attempt(job: Job, report: Report) -> tuple[str, Any]:
    """("done", value), ("inapplicable", reason), ("failed", message) or ("interrupted", (signum, message)); never raises."""
    from compolens.configs import ConfigError, DoesNotApply

    try:
        return "done", job.function(*job.arguments, report=report)
    except KeyboardInterrupt as error:
        return "interrupted", (getattr(error, "signum", int(signal.SIGINT)), str(error))
    except DoesNotApply as error:
        return "inapplicable", str(error)
    except (ConfigError, OSError) as error:
        return "failed", str(error)
    except Exception as error:
        if os.environ.get("COMPOLENS_DEBUG"):
            raise
        return "failed", explain(error)


def explain(error: Exception) -> str:
    """One line for an error that nobody foresaw: what, where, and how to see more."""
    place = error.__traceback__
    while place is not None and place.tb_next is not None:
        place = place.tb_next
    where = f" ({os.path.basename(place.tb_frame.f_code.co_filename)}:{place.tb_lineno})" if place else ""
    return f"{type(error).__name__}: {' '.join(str(error).split())}{where}; COMPOLENS_DEBUG=1 shows the traceback"


def _note(outcome: Outcome, display: Display, name: str, kind: str, value: Any) -> None:
    if kind == "done":
        outcome.results[name] = value
        display.finish(name, "done" if value is None else str(value))
    elif kind == "inapplicable":
        outcome.inapplicable[name] = value
        display.finish(name, f"does not apply: {value}")
    elif kind == "failed":
        outcome.failures[name] = value
        display.finish(name, f"failed: {value}")
    else:
        outcome.signum, message = value
        outcome.failures[name] = message or "interrupted"
        display.finish(name, message or "interrupted")


def _inline(jobs: list[Job], outcome: Outcome, display: Display) -> None:
    for job in jobs:
        kind, value = _attempt(job, lambda done, total, text, name=job.name: display.update(name, done, total, text))  # type: ignore[misc]
        _note(outcome, display, job.name, kind, value)
        if outcome.signum:
            return


def _in_processes(jobs: list[Job], workers: int, outcome: Outcome, display: Display) -> None:
    import multiprocessing

    context = multiprocessing.get_context("spawn")
    waiting, events = context.Queue(), context.Queue()
    for job in [*jobs, *[None] * workers]:
        waiting.put(job)
    environment = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    before = {name: os.environ.get(name) for name in environment}
    os.environ.update(environment)
    processes = [context.Process(target=_worker, args=(waiting, events), daemon=True) for _ in range(workers)]

    def stop(signum: int, _: Any) -> None:
        outcome.signum = signum
        for process in processes:
            if process.is_alive() and process.pid:
                os.kill(process.pid, signal.SIGTERM)

    handlers = {s: signal.signal(s, stop) for s in (signal.SIGINT, signal.SIGTERM)}
    try:
        for process in processes:
            process.start()
        _collect(jobs, processes, events, outcome, display)
    finally:
        for signum, handler in handlers.items():
            signal.signal(signum, handler)
        for process in processes:
            process.join(timeout=30 if outcome.signum else 5)
            if process.is_alive():
                process.terminate()
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.__setitem__(name, value)


def _collect(jobs: list[Job], processes: list[Any], events: Any, outcome: Outcome, display: Display) -> None:
    running: dict[int, str] = {}
    open_jobs = {job.name for job in jobs}
    while open_jobs:
        try:
            pid, name, kind, value = events.get(timeout=0.2)
        except queue.Empty:
            for process in processes:
                if not process.is_alive() and process.pid in running:
                    name = running.pop(process.pid)
                    open_jobs.discard(name)
                    reason = (
                        "stopped" if outcome.signum else f"its process died (exit code {process.exitcode}; out of memory?)"
                    )
                    outcome.failures[name] = reason
                    display.finish(name, reason)
            if not any(process.is_alive() for process in processes) and events.empty():
                for name in open_jobs:
                    outcome.failures.setdefault(name, "not started")
                return
            continue
        if kind == "progress":
            running[pid] = name
            display.update(name, *value)
            continue
        running.pop(pid, None)
        open_jobs.discard(name)
        signum = outcome.signum
        _note(outcome, display, name, kind, value)
        outcome.signum = signum or outcome.signum


def _worker(waiting: Any, events: Any) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole process group; the parent passes on one SIGTERM
    pid, parent = os.getpid(), os.getppid()
    while True:
        try:
            job = waiting.get(timeout=1.0)
        except queue.Empty:
            if os.getppid() != parent:  # killed: nobody will send more, nor listen
                return
            continue
        if job is None:
            return
        events.put((pid, job.name, "progress", (0, 1, "starting")))
        kind, value = _attempt(job, lambda *state, name=job.name: events.put((pid, name, "progress", state)))
        events.put((pid, job.name, kind, value))
        if kind == "interrupted":
            return


class Display:
    """Progress bars on a terminal; elsewhere a line per finished job and per tenth of a running one."""

    def __init__(self, count: int, show: bool | None = None) -> None:
        self.bars: Any = None
        self.tasks: dict[str, Any] = {}
        self.tenths: dict[str, int] = {}
        self.started = time.monotonic()
        self.live = sys.stderr.isatty() if show is None else show
        self.count = count

    def __enter__(self) -> Display:
        if self.live:
            from rich.console import Console
            from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

            columns = (
                TextColumn("{task.description}"),
                BarColumn(bar_width=24),
                TimeRemainingColumn(),
                TextColumn("{task.fields[text]}"),
            )
            self.bars = Progress(*columns, console=Console(stderr=True))
            self.bars.start()
        return self

    def __exit__(self, *_: Any) -> None:
        if self.bars is not None:
            self.bars.stop()

    def update(self, name: str, done: float, total: float, text: str = "") -> None:
        if self.bars is not None:
            if name not in self.tasks:
                self.tasks[name] = self.bars.add_task(name, total=total, text=text)
            self.bars.update(self.tasks[name], completed=done, total=total, text=text)
            return
        tenth = int(10 * done / total) if total else 0
        if total > 1 and tenth != self.tenths.get(name, 0):
            self.tenths[name] = tenth
            self._line(name, f"{done:.0f}/{total:.0f} {text}".rstrip())

    def finish(self, name: str, text: str) -> None:
        if self.bars is not None:
            if name not in self.tasks:
                self.tasks[name] = self.bars.add_task(name, total=1, text=text)
            total = self.bars.tasks[self.tasks[name]].total or 1
            completed = {} if text.startswith("failed") else {"completed": total}
            self.bars.update(self.tasks[name], text=text, **completed)
        else:
            self._line(name, text)

    def _line(self, name: str, text: str) -> None:
        print(f"[{time.monotonic() - self.started:6.1f} s] {name}: {text}", file=sys.stderr, flush=True)
