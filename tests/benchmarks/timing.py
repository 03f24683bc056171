"""What the benchmarks share: medians of CPU time, and a line with its bar."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np


def medians(repeats: int, *functions: Callable[[], object]) -> list[float]:
    """Median CPU seconds of each function, called in turn `repeats` times after one warm-up each."""
    times: list[list[float]] = [[] for _ in functions]
    for function in functions:
        function()
    for _ in range(repeats):
        for function, kept in zip(functions, times, strict=True):
            start = time.process_time()
            function()
            kept.append(time.process_time() - start)
    return [float(np.median(kept)) for kept in times]


def show(what: str, value: str, bar: str, good: bool) -> None:
    print(f"{what:<86} {value:>12}   bar {bar:<10} {'met' if good else 'MISSED'}", flush=True)


def tell(what: str, value: str) -> None:
    """A number without a bar."""
    print(f"{what:<86} {value:>12}", flush=True)
