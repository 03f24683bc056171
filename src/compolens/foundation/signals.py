"""SIGINT, SIGTERM and SIGHUP (a terminal that closed), taken in hand for a while."""

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM, *([signal.SIGHUP] if hasattr(signal, "SIGHUP") else []))


@contextlib.contextmanager
def handled(handler: Callable[[int, Any], Any]) -> Iterator[None]:
    """`handler` gets them, and afterwards whoever got them before; inert outside the main thread, where nobody can.

    SIGHUP stays ignored where it is: whoever started the process with nohup wants it to go on.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    taken = [s for s in SIGNALS if s in (signal.SIGINT, signal.SIGTERM) or signal.getsignal(s) != signal.SIG_IGN]
    before = {signum: signal.signal(signum, handler) for signum in taken}
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
