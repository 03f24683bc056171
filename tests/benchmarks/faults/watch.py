"""Whether a process hangs: by what it works and waits, not by the clock, since others may use the machine too."""

from __future__ import annotations

import os
import time
from pathlib import Path

SECONDS = 20.0
"""Of work, or of waiting for something that does not come, after which a process hangs."""


def looked_at(pid: int) -> tuple[str, float]:
    """(state, seconds of work) of a process; state R is at work or would be, had it a processor."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    except OSError:
        return "X", 0.0
    return fields[0], (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Watch:
    """On one process, from now on. patience: seconds of waiting that are no hang, where it waits for processes of its own."""

    def __init__(self, pid: int, work: float = SECONDS, patience: float = SECONDS) -> None:
        self.pid, self.work, self.patience = pid, work, patience
        self.again()

    def again(self) -> None:
        """From now on."""
        self.used, self.idle = looked_at(self.pid)[1], 0.0
        self.spent, self.looked = 0.0, time.monotonic()

    def hangs(self) -> bool:
        """Look; to be asked several times a second. A look that comes late counts as a short one: whoever looks is kept from
        it by the same others."""
        state, used = looked_at(self.pid)
        now = time.monotonic()
        spent, passed = used - self.used, min(now - self.looked, 1.0)
        self.idle = self.idle + passed if state in "SD" and spent - self.spent < 0.05 else 0.0
        self.spent, self.looked = spent, now
        return self.spent > self.work or self.idle > self.patience

    def __str__(self) -> str:
        return f"{self.spent:.0f} s of work, then {self.idle:.0f} s of waiting"
