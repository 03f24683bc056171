"""Jobs as tasks of a Ray cluster: one that runs already, or one of this machine alone."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from compolens.foundation.configs import ConfigError
from compolens.jobs.base import Job
from compolens.jobs.cluster import Cluster
from compolens.jobs.events import work

RETRIES = 3
"""How often Ray begins a task again whose node or process died; the run then goes on from its last checkpoint."""


@dataclass(frozen=True)
class Ray(Cluster):
    """Jobs as tasks of a Ray cluster.

    Args:
        address: host:port, ray://host:port or "auto"; None takes RAY_ADDRESS, and where that is not set begins a cluster of
            this machine, which ends with the command.
        tries: how often a job is sent; 1, since Ray itself begins it again.
    """

    address: str | None = None
    tries: int = 1

    @contextlib.contextmanager
    def connected(self, folder: Path) -> Iterator[Any]:
        try:
            import ray
        except ImportError as error:
            raise ConfigError("--engine ray needs Ray: pip install compolens[ray]") from error
        address = self.address or os.environ.get("RAY_ADDRESS") or None
        ours = not ray.is_initialized()  # a program that has connected itself stays connected
        if ours:
            self._connect(ray, address)
        try:
            yield ray.remote(num_cpus=1, num_gpus=self.gpus, max_retries=RETRIES)(work)
        finally:
            if ours:
                ray.shutdown()

    def _connect(self, ray: Any, address: str | None) -> None:
        quiet = {"log_to_driver": False, "logging_level": "ERROR"}
        if address is None:
            os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # a cluster of ours reports to nobody
            try:
                ray.init(address="local", num_cpus=self.workers or os.cpu_count(), include_dashboard=False, **quiet)
            except Exception as error:  # Ray says with a bare Exception that its processes took too long, or too much memory
                ray.shutdown()
                raise ConfigError(
                    f"Ray could not begin a cluster on this machine ({' '.join(str(error).split())[:200]}); try again when it "
                    "is less busy, leave --engine ray out, or begin one with `ray start --head` and name it with --address"
                ) from error
            return
        _knock(address)
        try:
            ray.init(address=address, **quiet)
        except (ConnectionError, RuntimeError, ValueError, OSError) as error:
            raise ConfigError(f"{_absent(address)} ({' '.join(str(error).split())[:200]})") from error

    def send(self, cluster: Any, job: Job, events: Path) -> Any:
        return cluster.options(name=job.name).remote(job, str(events), os.getcwd())

    def ended(self, handle: Any) -> str:
        import ray

        done, _ = ray.wait([handle], timeout=0)
        if not done:
            return ""
        try:
            ray.get(handle)
        except ray.exceptions.RayError as error:
            return " ".join(str(error).split())[:200]
        return "it returned"

    def cancel(self, handle: Any) -> None:
        import ray

        ray.cancel(handle, force=False)


def _knock(address: str) -> None:
    """Raise where nobody answers, at once: Ray itself would try for a minute."""
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if address in ("auto", "local"):
        return
    if not (colon and host and port.isdigit() and 0 < int(port) < 65536):
        raise ConfigError(f"--address must be host:port, ray://host:port or auto, got {address!r}")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=5).close()
    except OSError as error:
        raise ConfigError(f"{_absent(address)} ({error.strerror or error})") from error


def _absent(address: str) -> str:
    return (
        f"no Ray cluster answers at {address}; begin one with `ray start --head` and name it (--address host:port, or "
        "RAY_ADDRESS), or leave --address out for one of this machine alone"
    )
