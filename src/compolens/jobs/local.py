"""Jobs on this machine: one after another, or side by side in processes of one thread each."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from typing import Any

from compolens.foundation import signals, terminal
from compolens.foundation.configs import require_positive
from compolens.jobs.base import Engine, Job, Outcome, Report, attempt
from compolens.jobs.display import Display


@dataclass(frozen=True)
class Local(Engine):
    """Jobs on this machine, one thread each.

    Args:
        workers: how many jobs at a time.
        tries: how often a job is begun whose process dies (killed, out of memory).
    """

    workers: int = 1
    tries: int = 2

    def __post_init__(self) -> None:
        require_positive(self, "workers", "tries")

    def run(self, jobs: list[Job], show: bool | None = None) -> Outcome:
        with Display(len(jobs), show) as display:
            if self.workers == 1 or len(jobs) <= 1:
                return _inline(jobs, display)
            with _one_thread_each():
                return _Pool(jobs, min(self.workers, len(jobs)), self.tries, display).run()


def _inline(jobs: list[Job], display: Display) -> Outcome:
    outcome = Outcome()
    for job in jobs:
        outcome.note(display, job.name, *attempt(job, _shown(display, job.name)))
        if outcome.signum:
            break
    return outcome


def _shown(display: Display, name: str) -> Report:
    return lambda done, total, text: display.update(name, done, total, text)


@contextlib.contextmanager
def _one_thread_each() -> Iterator[None]:
    """What the processes begun in here inherit."""
    environment = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    before = {name: os.environ.get(name) for name in environment}
    os.environ.update(environment)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.__setitem__(name, value)


@dataclass
class _Worker:
    """A process, our end of its pipe, and the job it is doing. A pipe each: a process that is killed in the middle of a
    message can spoil no other's, as it could by dying with the lock of a shared queue."""

    process: Any
    pipe: Connection
    job: Job | None = None


@dataclass
class _Pool:
    jobs: list[Job]
    workers: int
    tries: int
    display: Display
    outcome: Outcome = field(default_factory=Outcome)

    def run(self) -> Outcome:
        self.waiting, self.begun, self.crew = deque(self.jobs), dict[str, int](), list[_Worker]()
        try:
            with signals.handled(self._stop):
                for _ in range(self.workers):
                    self._begin(self._start())
                while any(worker.job for worker in self.crew):
                    self._listen()
        finally:
            for worker in self.crew:
                worker.pipe.close()  # which it takes as the end
                worker.process.join(timeout=30 if self.outcome.signum else 5)
                if worker.process.is_alive():
                    worker.process.terminate()
        for job in self.waiting:
            self.outcome.failures.setdefault(job.name, "not started")
        return self.outcome

    def _stop(self, signum: int, _: Any) -> None:
        self.outcome.signum = signum
        for worker in self.crew:
            if worker.process.is_alive() and worker.process.pid:
                os.kill(worker.process.pid, signal.SIGTERM)

    def _start(self) -> _Worker:
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        process = context.Process(target=_work, args=(theirs,), daemon=True)
        process.start()
        theirs.close()
        worker = _Worker(process, ours)
        self.crew.append(worker)
        return worker

    def _begin(self, worker: _Worker) -> None:
        """Hand the next job to a worker that has none."""
        worker.job = None
        if self.waiting and not self.outcome.signum:
            worker.job = self.waiting.popleft()
            self.begun[worker.job.name] = self.begun.get(worker.job.name, 0) + 1
            with contextlib.suppress(OSError):  # died before its first job: `_listen` meets the end of the pipe
                worker.pipe.send(worker.job)

    def _listen(self) -> None:
        ready = wait([worker.pipe for worker in self.crew], timeout=0.5)
        for worker in [worker for worker in self.crew if worker.pipe in ready]:
            try:
                kind, value = worker.pipe.recv()
            except (EOFError, OSError):
                self._bury(worker)
                continue
            if worker.job is None:
                continue
            if kind == "progress":
                self.display.update(worker.job.name, *value)
            else:
                self.outcome.note(self.display, worker.job.name, kind, value)
                self._begin(worker)

    def _bury(self, worker: _Worker) -> None:
        """A worker died. Its job is begun again, once, by a new one; a second death is taken as the job's own doing."""
        self.crew.remove(worker)
        worker.pipe.close()
        worker.process.join()
        job = worker.job
        if job is None:
            return
        died = f"its process died (exit code {worker.process.exitcode}; out of memory?)"
        if self.outcome.signum or self.begun[job.name] >= self.tries:
            self.outcome.note(self.display, job.name, "failed", "stopped" if self.outcome.signum else died)
        else:
            self.display.say(job.name, f"{died}: beginning it again")
            self.waiting.append(job)
        if self.waiting and not self.outcome.signum:
            self._begin(self._start())


def _work(pipe: Connection) -> None:
    """The life of a worker: a job at a time, until the parent closes the pipe or is gone."""
    for signum in set(signals.SIGNALS) - {signal.SIGTERM}:
        signal.signal(signum, signal.SIG_IGN)  # these reach the whole process group; the parent passes on one SIGTERM

    def report(*state: Any) -> None:
        with contextlib.suppress(OSError):  # the parent was killed: nobody listens, yet what was begun is worth finishing
            pipe.send(("progress", state))

    with terminal.plain(), contextlib.suppress(EOFError, OSError):
        while True:
            job = pipe.recv()
            report(0, 1, "starting")
            kind, value = attempt(job, report)
            pipe.send((kind, value))
            if kind == "interrupted":
                return
