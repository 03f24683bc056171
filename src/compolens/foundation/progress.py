"""How far a long loop is, told to whoever listens: the loop need not know who does, nor whether anybody does."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Collection, Iterator
from contextvars import ContextVar
from typing import TypeVar

Item = TypeVar("Item")
Listener = Callable[[float, float, str], None]
"""listener(done, total, text), as jobs report."""
EVERY = 0.2
"""Seconds between two reports at least: a report crosses a pipe between processes."""

_LISTENER: ContextVar[Listener | None] = ContextVar("listener", default=None)


@contextlib.contextmanager
def heard_by(listener: Listener) -> Iterator[None]:
    """Tell a listener of every `progress` within.

    Args:
        listener: called as ``listener(0, 1, "held-out episodes, batch 2 of 4")``: how far the loop is, not the whole job,
            stands in the text.

    Returns:
        The context.
    """
    token = _LISTENER.set(listener)
    try:
        yield
    finally:
        _LISTENER.reset(token)


def progress(items: Collection[Item], text: str) -> Iterator[Item]:
    """The items one after another; whoever listens is told which one it is, a few times a second at most.

    Args:
        items: what the loop goes through.
        text: what one of them is, such as "site".

    Returns:
        The items again.

    >>> with heard_by(lambda done, total, text: print(text)):
    ...     for _ in progress("ab", "letter"):
    ...         pass
    letter 1 of 2
    """
    listener, told = _LISTENER.get(), -EVERY
    for number, item in enumerate(items, 1):
        if listener is not None and time.monotonic() - told >= EVERY:
            told = time.monotonic()
            listener(0, 1, f"{text} {number} of {len(items)}")
        yield item
