"""Independent pieces of work, run by an engine: here (`Local`), by Slurm or by Ray; the same job wherever it runs."""

from typing import Any

from compolens.foundation.moved import elsewhere
from compolens.jobs.base import Engine, Job, Outcome, Report, explain, run_leased
from compolens.jobs.local import Local
from compolens.jobs.ray_cluster import Ray
from compolens.jobs.slurm import Slurm

__all__ = ["Engine", "Job", "Local", "Outcome", "Ray", "Report", "Slurm", "explain", "run", "run_leased"]


def run(jobs: list[Job], workers: int, show: bool | None = None) -> Outcome:
    """Run jobs on this machine.

    Args:
        jobs: all of them.
        workers: how many at a time.
        show: bars (True), lines (False), or bars where stderr is a terminal (None).

    Returns:
        What became of them.
    """
    return Local(workers).run(jobs, show)


def __getattr__(name: str) -> Any:
    return elsewhere(__name__, name)
