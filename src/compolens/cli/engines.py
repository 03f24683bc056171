"""The engine that --engine, --jobs, --address and --slurm ask for."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from compolens.cli.flags import check_device
from compolens.foundation.configs import ConfigError, nearest

if TYPE_CHECKING:
    from compolens.jobs import Engine


def engine_of(options: argparse.Namespace, folder: Path) -> Engine:
    """The engine that the flags ask for.

    Args:
        options: the flags.
        folder: where engines on other machines have jobs report.

    Returns:
        The engine.

    Raises:
        ConfigError: there is no such engine, or a flag belongs to another.
    """
    engines = {"local": _local, "slurm": _slurm, "ray": _ray}
    if options.engine not in engines:
        raise ConfigError(f"no engine {options.engine!r}; {nearest(options.engine, engines)}")
    check_jobs(options)
    for flag, value, engine in (("--address", options.address, "ray"), ("--slurm", options.slurm, "slurm")):
        if value and options.engine != engine:
            raise ConfigError(f"{flag} is for --engine {engine}; this is --engine {options.engine}")
    return engines[options.engine](options, folder)


def check_jobs(options: argparse.Namespace) -> None:
    """Raise a `ConfigError` unless --jobs of the `options` is left out or at least 1."""
    if options.jobs is not None and options.jobs < 1:
        raise ConfigError(f"--jobs must be at least 1, got {options.jobs}")


def _local(options: argparse.Namespace, folder: Path) -> Engine:
    from compolens import jobs

    check_device(options.device)
    if _gpus(options.device) and (options.jobs or 1) > 1 and not _shares_gpu():
        how = "NVIDIA's MPS lets them work at the same time: nvidia-cuda-mps-control -d"
        print(f"{options.jobs} jobs on one GPU take turns, and do less in all than one alone; {how}", file=sys.stderr)
    return jobs.Local(options.jobs or 1)


def _slurm(options: argparse.Namespace, folder: Path) -> Engine:
    from compolens import jobs

    settings: dict[str, str | int] = {}
    for item in options.slurm:
        key, sign, value = item.partition("=")
        if not (key and sign and value):
            raise ConfigError(f"--slurm wants KEY=VALUE, such as partition=gpu; got {item!r}")
        settings[key] = int(value) if value.isdecimal() else value
    return jobs.Slurm(folder / ".jobs", options.jobs, gpus=_gpus(options.device), poll=2.0, settings=settings)


def _ray(options: argparse.Namespace, folder: Path) -> Engine:
    from compolens import jobs

    return jobs.Ray(folder / ".jobs", options.jobs, gpus=_gpus(options.device), address=options.address)


def _gpus(device: str) -> int:
    return int(device.startswith("cuda"))


def _shares_gpu() -> bool:
    """Whether several processes work on a GPU at the same time, rather than in turns: NVIDIA's Multi-Process Service runs."""
    return Path(os.environ.get("CUDA_MPS_PIPE_DIRECTORY") or Path("/", "tmp", "nvidia-mps"), "control").exists()
