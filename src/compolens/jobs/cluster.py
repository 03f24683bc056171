"""What engines that send jobs to other machines share: a folder that all machines see, through which the jobs report."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
import time
from abc import abstractmethod
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from compolens.foundation import signals
from compolens.foundation.configs import ConfigError, require, require_positive
from compolens.jobs.base import Engine, Job, Outcome
from compolens.jobs.display import Display
from compolens.jobs.events import Reader


@dataclass(frozen=True)
class Cluster(Engine):
    """An engine that sends jobs to other machines.

    Args:
        folder: on a file system that all machines share, for what jobs report (kept if some fail, with their logs).
        workers: how many jobs at a time (None: as many as the cluster runs).
        gpus: per job.
        tries: how often a job is sent that ends without a word (its machine was lost).
        grace: seconds for which last words may be under way.
        poll: seconds between looks.
    """

    folder: Path
    workers: int | None = None
    gpus: int = 0
    tries: int = 2
    grace: float = 10.0
    poll: float = 0.5

    def __post_init__(self) -> None:
        name = type(self).__name__
        require_positive(self, "tries", *(["workers"] if self.workers is not None else []))
        require(self.gpus >= 0, f"{name}: gpus must not be negative, got {self.gpus}")
        require(self.grace >= 0 and self.poll > 0, f"{name}: grace must not be negative and poll positive")

    @abstractmethod
    def connected(self, folder: Path) -> contextlib.AbstractContextManager[Any]:
        """A context with what `send` needs, whose files are in `folder`; a `ConfigError` where there is no such cluster."""

    @abstractmethod
    def send(self, cluster: Any, job: Job, events: Path) -> Any:
        """Send `events.work(job, events, …)` to the cluster.

        Args:
            cluster: what `connected` gave.
            job: the job.
            events: the file that it reports to.

        Returns:
            A handle.
        """

    @abstractmethod
    def ended(self, handle: Any) -> str:
        """How the job of `handle` ended, "" while it has not: only looked at where the job itself did not say."""

    @abstractmethod
    def cancel(self, handle: Any) -> None:
        """Stop the job of `handle` as a signal would: it saves first."""

    def run(self, jobs: list[Job], show: bool | None = None) -> Outcome:
        if not jobs:
            return Outcome()
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            folder = Path(tempfile.mkdtemp(dir=self.folder.absolute(), prefix=time.strftime("%Y%m%d-%H%M%S-")))
        except OSError as error:
            raise ConfigError(
                f"{self.folder} cannot be written ({error.strerror}): jobs on other machines report there"
            ) from error
        try:
            with self.connected(folder) as cluster, Display(len(jobs), show) as display:
                outcome = _Sweep(self, cluster, folder, display).run(jobs)
        except BaseException:
            _tidy(folder)
            raise
        if not outcome.failures:
            _tidy(folder)
        return outcome


def _tidy(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    with contextlib.suppress(OSError):
        folder.parent.rmdir()  # refused while it holds the logs of other commands


@dataclass
class _Sent:
    """A job under way; `silent_since`: when it was first seen to have ended without saying how."""

    job: Job
    handle: Any
    reader: Reader
    silent_since: float | None = None


@dataclass
class _Sweep:
    engine: Cluster
    cluster: Any
    folder: Path
    display: Display
    outcome: Outcome = field(default_factory=Outcome)
    under_way: list[_Sent] = field(default_factory=list)

    def run(self, jobs: list[Job]) -> Outcome:
        self.waiting, self.sent, cancelled = deque(jobs), dict[str, int](), 0.0
        self.numbers = {job.name: number for number, job in enumerate(jobs, start=1)}
        with signals.caught() as caught:
            while self.under_way or (self.waiting and not caught):
                if caught and not cancelled:
                    self.outcome.signum, cancelled = caught[0], time.monotonic()
                    for sent in self.under_way:
                        self.engine.cancel(sent.handle)
                if cancelled and time.monotonic() - cancelled > 60:
                    break
                if not caught:
                    self._send()
                for sent in list(self.under_way):
                    self._listen(sent)
                time.sleep(self.engine.poll)
        for sent in self.under_way:
            self.outcome.note(self.display, sent.job.name, "failed", "stopped")
        return self.outcome

    def _send(self) -> None:
        room = len(self.waiting) if self.engine.workers is None else self.engine.workers - len(self.under_way)
        for _ in range(min(room, len(self.waiting))):
            job = self.waiting.popleft()
            again = self.sent[job.name] = self.sent.get(job.name, 0) + 1
            events = self.folder / f"{self.numbers[job.name]}.{again}.events"
            handle = self.engine.send(self.cluster, job, events)
            self.under_way.append(_Sent(job, handle, Reader(events)))

    def _listen(self, sent: _Sent) -> None:
        how = self.engine.ended(sent.handle)  # asked first: whatever it said before it ended is then read below
        for kind, value in sent.reader.new():
            if kind != "progress":
                self.under_way.remove(sent)
                self.outcome.note(self.display, sent.job.name, kind, value)
                return
            self.display.update(sent.job.name, *value)
        if how and sent.silent_since is None:
            sent.silent_since = time.monotonic()
        if how and sent.silent_since is not None and time.monotonic() - sent.silent_since >= self.engine.grace:
            self.under_way.remove(sent)
            self._lost(sent, how)

    def _lost(self, sent: _Sent, how: str) -> None:
        name = sent.job.name
        if self.outcome.signum or self.sent[name] >= self.engine.tries:
            reason = "stopped" if self.outcome.signum else f"ended without a word ({how}); what is known lies in {self.folder}"
            self.outcome.note(self.display, name, "failed", reason)
        else:
            self.display.say(name, f"ended without a word ({how}): sending it again")
            self.waiting.append(sent.job)
