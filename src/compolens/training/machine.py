"""What a training asks of its process and its machine: one thread, memory that is kept, and products in bfloat16."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import gc
import platform
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from compolens.foundation.configs import ConfigError, shown

PRECISIONS = ("float32", "bfloat16")
"""What a run's matrix products are taken in while it trains."""

_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD = -1, -2, -3
"""glibc's names for the settings of its heap, see mallopt(3)."""


def check_device(device: str) -> None:
    """Check that this machine has a device.

    Args:
        device: torch's name of it: "cpu", "cuda", "cuda:1", …

    Raises:
        ConfigError: it has none of this name, or torch cannot use it.
    """
    try:
        torch.zeros(1, device=device).tolist()  # a device of shapes alone ("meta") gives no numbers back
    except (RuntimeError, AssertionError, TypeError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        if reason.startswith("Expected one of"):  # and then the names of all devices that torch was ever built for
            reason = "torch has no device of this name"
        allowed = "cpu" + (", cuda" if torch.cuda.is_available() else "")
        raise ConfigError(f"device {shown(device)} cannot be used ({reason}); allowed here: {allowed}") from error


def products(precision: str, device: str) -> contextlib.AbstractContextManager[Any]:
    """Where matrix products are taken in some precision; everything else that a model does stays in single precision.

    Weights are rounded at every use and never cached: a captured CUDA step would otherwise go on with the first ones.

    Args:
        precision: "float32" or "bfloat16".
        device: "cpu" or "cuda".

    Returns:
        A context.
    """
    if precision == "float32":
        return contextlib.nullcontext()
    return torch.autocast(device.split(":")[0], torch.bfloat16, cache_enabled=False)


def has_bfloat16_products(device: str) -> bool:
    """Whether `device` multiplies matrices in bfloat16 itself, rather than by way of single precision."""
    if device.startswith("cuda"):
        return torch.cuda.is_bf16_supported(including_emulation=False)
    described = _cpuinfo()
    return any(flag in described for flag in ("avx512_bf16", "amx_bf16", " bf16"))


@functools.cache
def _cpuinfo() -> str:
    path = Path("/proc/cpuinfo")
    return path.read_text(errors="replace") if path.exists() else ""


def processor(device: str) -> str:
    """The name of the processor that does the work on `device`."""
    if device.startswith("cuda"):
        return torch.cuda.get_device_name(device)
    names = (line.split(":", 1)[1].strip() for line in _cpuinfo().splitlines() if line.startswith("model name"))
    return next(names, platform.processor() or platform.machine())


@contextlib.contextmanager
def at_work(device: str) -> Iterator[None]:
    """The process as a training on `device` wants it.

    On a CPU, one thread: more would add up in another order. Memory that a step frees is kept for the next one: given back
    to the system, it comes back page by page, each cleared anew, which took a fifth to a third of the step where we measured
    it. And what was there before the first step is no longer searched for garbage. All but the heap's settings are undone at
    the end; the memory is given back then."""
    threads, frozen = torch.get_num_threads(), gc.get_freeze_count()
    if not device.startswith("cuda"):
        torch.set_num_threads(1)
    heap = _glibc()
    if heap is not None:
        heap.mallopt(_MMAP_THRESHOLD, 32 << 20)  # the largest it takes
        heap.mallopt(_TRIM_THRESHOLD, 2**31 - 1)
        heap.mallopt(_TOP_PAD, 64 << 20)
    gc.freeze()
    try:
        yield
    finally:
        if not frozen:
            gc.unfreeze()
        torch.set_num_threads(threads)
        if heap is not None:
            heap.malloc_trim(0)


def _glibc() -> Any:
    """The C library, where it is glibc."""
    return ctypes.CDLL(None) if platform.libc_ver()[0] == "glibc" else None
