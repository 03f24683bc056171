"""Memory that something is going to take, told before it is taken."""

from __future__ import annotations

import contextlib
import functools
import os
import resource
from pathlib import Path

from compolens.foundation.configs import ConfigError

LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")
"""Where Linux says how much a container may have (cgroups of version 2 and 1)."""
UNITS = ("bytes", "kB", "MB", "GB", "TB", "PB", "EB")


class TooLarge(ConfigError, MemoryError):
    """What was asked for takes more memory than there is."""


@functools.cache
def available() -> int:
    """Bytes of memory that this machine has, or this container may have; 2^63 where the system does not say."""
    known = [2**63]
    for name in LIMITS:
        try:
            known.append(int(Path(name).read_text()))
        except (OSError, ValueError):  # no such file, or "max"
            continue
    with contextlib.suppress(ValueError, OSError, AttributeError):  # where the system has no such name
        known.append(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    known.append(resource.getrlimit(resource.RLIMIT_AS)[0])  # -1 where there is no limit
    return min(size for size in known if size > 0)


def in_words(size: float) -> str:
    """An amount of memory as people say it.

    Args:
        size: Bytes, at least 0.

    Returns:
        Three digits and a unit of powers of 1000: "1.5 GB".
    """
    for unit in UNITS:
        if size < 1000 or unit == UNITS[-1]:
            return f"{size:.3g} {unit}"
        size /= 1000
    raise AssertionError("the last unit takes all")


def require_room(size: float, what: str, advice: str) -> None:
    """Check that something takes no more memory than there is.

    Args:
        size: Bytes that it takes at the least.
        what: What it is, to stand before "takes".
        advice: Which setting to change, and how.

    Raises:
        TooLarge: It takes more than `available()`.
    """
    if size > available():
        raise TooLarge(f"{what} takes {in_words(size)} or more, and this machine has {in_words(available())}; {advice}")
