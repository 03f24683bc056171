"""Jobs sent to a Slurm cluster through submitit, a Slurm job each."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from compolens.foundation.configs import ConfigError, nearest, require
from compolens.jobs.base import Job
from compolens.jobs.cluster import Cluster
from compolens.jobs.events import work

GENERIC = ("timeout_min", "mem_gb", "cpus_per_task", "gpus_per_node")
"""Settings by submitit's own names, for every executor."""
SLURM_ONLY = (
    "account", "comment", "constraint", "exclude", "exclusive", "gres", "mail_type", "mail_user", "mem_per_cpu", "mem_per_gpu",
    "nodelist", "partition", "qos", "signal_delay_s", "wckey",
)  # fmt: skip
"""Settings by Slurm's names. How many nodes and tasks is none of them: a job is one process."""
DAY = 24 * 60
"""Minutes for which a job is asked for unless its settings say otherwise; at the end of its time it is queued again."""


class Unit:
    """One job, as submitit sends it. A job that Slurm preempts, or whose time is up, is queued again as it is: the run it
    was at goes on from its last checkpoint.

    Args:
        job: the job.
        events: the file that it reports to.
        folder: in which the command was typed.
    """

    def __init__(self, job: Job, events: str, folder: str) -> None:
        self.job, self.events, self.folder = job, events, folder

    def __call__(self) -> None:
        work(self.job, self.events, self.folder)

    def checkpoint(self) -> Any:
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(Unit(self.job, self.events, self.folder))


@dataclass(frozen=True)
class Slurm(Cluster):
    """Jobs sent to a Slurm cluster.

    Args:
        settings: what the jobs ask Slurm for, such as {"partition": "gpu", "timeout_min": 600}.
        executor: submitit's name for where jobs go ("slurm"; "local" sends them to processes of this machine in the same way).
    """

    settings: Mapping[str, Any] = field(default_factory=dict)
    executor: str = "slurm"

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in self.settings:
            known = name in (*GENERIC, *SLURM_ONLY)
            require(known, f"--slurm has no setting {name!r}; {nearest(name, (*GENERIC, *SLURM_ONLY))}")

    @contextlib.contextmanager
    def connected(self, folder: Path) -> Iterator[Any]:
        try:
            import submitit
        except ImportError as error:
            raise ConfigError("--engine slurm needs submitit: pip install compolens[slurm]") from error
        if self.executor == "slurm":
            missing = [program for program in ("sbatch", "srun", "sacct", "scancel") if shutil.which(program) is None]
            if missing:
                raise ConfigError(
                    f"--engine slurm: there is no {missing[0]} on this machine; type the command on a login node of a Slurm "
                    "cluster, or leave --engine out to work here"
                )
        # The pickles that submitit sends jobs by, and the logs of the jobs, lie in here, far from models and checkpoints.
        executor = submitit.AutoExecutor(folder=folder / "%j", cluster=self.executor)
        self._configure(executor)
        yield executor

    def _configure(self, executor: Any) -> None:
        settings = {"timeout_min": DAY, "cpus_per_task": 1, "gpus_per_node": self.gpus, **self.settings}
        ours = {name if name in GENERIC else f"slurm_{name}": value for name, value in settings.items()}
        try:
            executor.update_parameters(name="compolens", **ours)
        except (NameError, ValueError, TypeError, AssertionError) as error:
            raise ConfigError(f"--slurm: {' '.join(str(error).split())}") from error

    def send(self, cluster: Any, job: Job, events: Path) -> Any:
        try:
            return cluster.submit(Unit(job, str(events), os.getcwd()))
        except (OSError, RuntimeError, subprocess.SubprocessError) as error:
            raise ConfigError(f"Slurm took no job: {' '.join(str(error).split())}") from error

    def ended(self, handle: Any) -> str:
        return str(handle.state) if handle.done() else ""

    def cancel(self, handle: Any) -> None:
        handle.cancel(check=False)
