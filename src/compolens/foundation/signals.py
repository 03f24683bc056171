"""SIGINT and SIGTERM, taken in hand for a while."""

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM)


@contextlib.contextmanager
def handled(handler: Callable[[int, Any], Any]) -> Iterator[None]:
    """`handler` gets them, and afterwards whoever got them before; inert outside the main thread, where nobody can."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {signum: signal.signal(signum, handler) for signum in SIGNALS}
    try:
        yield
    finally:
        for signum, earlier in before.items():
            signal.signal(signum, earlier)


@contextlib.contextmanager
def caught() -> Iterator[list[int]]:
    """A list that they are appended to instead of tearing the process down."""
    numbers: list[int] = []
    with handled(lambda signum, _: numbers.append(signum)):
        yield numbers
