"""What a job on another machine has to say, as lines of JSON in a file that the machine which sent it reads."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any, NamedTuple

from compolens.jobs.base import Job, attempt

EVERY = 0.5
"""Seconds between the lines that say how far a job is: file servers are slow."""


class Event(NamedTuple):
    """Something that a job has to say.

    Args:
        kind: "progress", or one of those that `attempt` returns, which is then the last of its job.
        value: JSON-ready.
    """

    kind: str
    value: Any


class Sender:
    """Writes the events of one job to `path`. The file is closed after each, which is when other machines see it."""

    def __init__(self, path: Path) -> None:
        self.path, self.last = path, 0.0

    def progress(self, done: float, total: float, text: str) -> None:
        """Say how far the job is, though not more often than every `EVERY` seconds.

        Args:
            done: how much of it.
            total: of how much.
            text: what to say beside it.
        """
        if time.monotonic() - self.last >= EVERY or done >= total:
            self.last = time.monotonic()
            self.send("progress", [done, total, text])

    def send(self, kind: str, value: Any) -> None:
        """Write one event.

        Args:
            kind: as in `Event`.
            value: JSON-ready.
        """
        with open(self.path, "a", encoding="utf-8") as file:
            file.write(json.dumps([kind, value]) + "\n")
            file.flush()
            os.fsync(file.fileno())


class Reader:
    """Reads what was added to the file `path` of events since the last look."""

    def __init__(self, path: Path) -> None:
        self.path, self.at = path, 0

    def new(self) -> list[Event]:
        try:
            with open(self.path, "rb") as file:
                file.seek(self.at)
                text = file.read()
        except FileNotFoundError:
            return []
        whole = text[: text.rfind(b"\n") + 1]  # a line that is being written is read next time
        self.at += len(whole)
        return [Event(*json.loads(line)) for line in whole.splitlines()]


def work(job: Job, events: str, folder: str) -> None:
    """Do one job on whatever machine this is, in the folder in which the command was typed, sending what it says.

    The last event is what became of it; a job that ends without one died.

    Args:
        job: the job.
        events: the file that it reports to.
        folder: in which the command was typed.
    """
    os.chdir(folder)
    sender = Sender(Path(events))
    sender.send("progress", [0, 1, "starting"])
    sender.send(*attempt(job, sender.progress))
