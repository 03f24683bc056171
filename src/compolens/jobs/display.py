"""The progress of several jobs: bars on a terminal, lines elsewhere."""

from __future__ import annotations

import contextlib
import sys
import time
from typing import Any

from compolens.foundation.terminal import beneath, one_line

QUIET = 15.0
"""Seconds after which a job that cannot say how much of it is done says on a log what it is at."""


class Display:
    """Progress bars on a terminal; elsewhere a line per finished job and per tenth of a running one.

    Args:
        count: jobs there are.
        show: bars (True), lines (False), or bars where stderr is a terminal (None).
    """

    def __init__(self, count: int, show: bool | None = None) -> None:
        self.bars: Any = None
        self.tasks: dict[str, Any] = {}
        self.tenths: dict[str, int] = {}
        self.started = time.monotonic()
        self.said: dict[str, float] = {}
        self.live = sys.stderr.isatty() if show is None else show
        self.count = count

    def __enter__(self) -> Display:
        if self.live:
            from rich.console import Console
            from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

            columns = (
                TextColumn("{task.description}", markup=False),
                BarColumn(bar_width=24),
                TimeElapsedColumn(),  # goes on where a job cannot say how far it is
                TimeRemainingColumn(),
                TextColumn("{task.fields[text]}", markup=False),
            )
            self.bars = Progress(*columns, console=Console(file=beneath(sys.stderr)))
            self.bars.start()
        return self

    def __exit__(self, *_: Any) -> None:
        if self.bars is not None:
            with contextlib.suppress(OSError):  # the terminal was closed
                self.bars.stop()

    def update(self, name: str, done: float, total: float, text: str = "") -> None:
        """How far a job is.

        Args:
            name: of the job.
            done: how much of it.
            total: of how much.
            text: what to say beside it.
        """
        name, text = one_line(name), one_line(text)
        if self.bars is not None:
            if name not in self.tasks:
                self._begin(name, total, text)
            self.bars.update(self.tasks[name], completed=done, total=total, text=text)
            return
        now = time.monotonic()
        if total == 1 and text and now - self.said.setdefault(name, now) >= QUIET:
            self.said[name] = now
            self._line(name, text)
        tenth = int(10 * done / total) if total else 0
        if total > 1 and tenth != self.tenths.get(name, 0):
            self.tenths[name] = tenth
            self._line(name, f"{done:.0f}/{total:.0f} {text}".rstrip())

    def say(self, name: str, text: str) -> None:
        """A sentence on a job that is not finished.

        Args:
            name: of the job.
            text: the sentence.
        """
        if self.bars is not None:
            self.update(name, 0, 1, text)
        else:
            self._line(name, text)

    def finish(self, name: str, text: str) -> None:
        """A job has ended.

        Args:
            name: of the job.
            text: how.
        """
        name, text = one_line(name), one_line(text)
        if self.bars is not None:
            if name not in self.tasks:
                self._begin(name, 1, text)
            total = self.bars.tasks[self.tasks[name]].total or 1
            completed = {} if text.startswith("failed") else {"completed": total}
            self.bars.update(self.tasks[name], text=text, **completed)
            self.bars.stop_task(self.tasks[name])
        else:
            self._line(name, text)

    def _begin(self, name: str, total: float, text: str) -> None:
        """A bar for a job, which says the how manieth of how many it is."""
        which = f"{len(self.tasks) + 1}/{self.count} " if self.count > 1 else ""
        self.tasks[name] = self.bars.add_task(f"{which}{name}", total=total, text=text)

    def _line(self, name: str, text: str) -> None:
        print(f"[{time.monotonic() - self.started:6.1f} s] {name}: {text}", file=sys.stderr, flush=True)
