"""`train`: a run into a folder, to the end or to a signal, in one process or in several."""

from __future__ import annotations

import json
import time
import zlib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch

from compolens.foundation import signals
from compolens.foundation.configs import describe, require, shown
from compolens.training import distributed
from compolens.training.checked import check_own
from compolens.training.distributed import Processes
from compolens.training.folders import RESUME, locked_folder
from compolens.training.machine import at_work, check_device
from compolens.training.memory import check_training
from compolens.training.runs import Run
from compolens.training.state import Progress, Training
from compolens.training.tracking import Following, Tracker


class Interrupted(KeyboardInterrupt):
    """Training was stopped by a signal, after saving.

    Args:
        signum: which signal.
        step: the step that was saved.
        folder: where.
    """

    def __init__(self, signum: int, step: int, folder: Path) -> None:
        super().__init__(f"stopped at step {step}; saved in {folder}: the same command goes on from there")
        self.signum = signum


def train(
    run: Run,
    folder: str | Path,
    *,
    device: str = "cpu",
    progress: Callable[[Progress], None] | None = None,
    save_every: float = 20.0,
    trackers: Iterable[Tracker] = (),
    may_write: Callable[[], None] = lambda: None,
) -> dict[str, Any]:
    """Train a run into a folder, or go on where it was interrupted.

    A finished folder is left as it is. SIGINT, SIGTERM and SIGHUP (a closed terminal) save first, then raise `Interrupted`.
    Under torchrun every process calls this with the same arguments, and all return the scores.

    Args:
        run: what is trained, on what.
        folder: where it goes; holds this run, nothing, or does not exist.
        device: "cpu" or "cuda".
        progress: called with where the training is, every few updates.
        save_every: seconds between checkpoints.
        trackers: who else is told the rows of history.csv.
        may_write: called before anything is written into the folder; raises where somebody else has taken it over.

    Returns:
        The final scores, as in scores.json.

    Raises:
        ConfigError: the folder holds another run or is in training, a batch does not divide among the processes, or an
            argument is not of the kind described.
        Interrupted: a signal stopped the training.
    """
    require(isinstance(run, Run), f"train wants a Run, such as Run(architecture, task), got {shown(run)}")
    require(isinstance(device, str), f"train: device must be a word, such as 'cpu' or 'cuda', got {shown(device)}")
    followers = _listed(trackers)
    _check_place(Path(folder))
    with distributed.together(device) as group:
        return _train(run, Path(folder), group, progress or (lambda _: None), save_every, followers, may_write)


def _listed(trackers: Iterable[Tracker]) -> list[Tracker]:
    """The trackers; a `ConfigError` for what is no list of them, such as the name of one."""
    found: list[Any] = list(trackers) if isinstance(trackers, Iterable) else [str(trackers)]
    wrong = any(isinstance(one, str) for one in found)
    example = "[compolens.training.tracking.tracker('tensorboard')]"
    require(not wrong, f"train: trackers must be a list of trackers, such as {example}, got {shown(trackers)}")
    return found


def _check_place(folder: Path) -> None:
    """Raise where a file lies in the place of a folder, or above it."""
    above = next(place for place in (folder.absolute(), *folder.absolute().parents) if place.exists())
    require(above.is_dir(), f"{folder} cannot be a run's folder: {above} is a file; choose another")


def _train(
    run: Run,
    folder: Path,
    group: Processes,
    progress: Callable[[Progress], None],
    save_every: float,
    trackers: Iterable[Tracker],
    may_write: Callable[[], None],
) -> dict[str, Any]:
    """What `train` does in a group of processes; nothing that knows the group outlives it."""
    check_device(group.device)
    if not (folder / "config.json").exists():
        run.task.compositions("train")  # data that is not there is an error before it is a folder
        check_training(run.architecture, run.task, run.batch_size, run.evaluation_episodes)  # and so is what is too large
        check_own(run, group.device)  # and so is a class of the user's that does not do what it says
    _check_group(run, folder, group)
    with locked_folder(run, folder, group) as finished, at_work(group.device), signals.caught() as stop:
        if finished is not None:
            return finished
        resumed = (folder / RESUME).exists()
        with Following(trackers if group.first else (), run, folder, resumed) as following:
            loop = Training(run, folder, group.device, progress, group, following, may_write)
            _advance_to_the_end(loop, stop, save_every)
            following.scores = scores = json.loads(group.from_first(lambda: json.dumps(loop.finish())))
        if stop:  # it came too late to stop this run, not too late to stop what the caller does next
            raise Interrupted(stop[0], loop.step, folder)
        return scores


def _advance_to_the_end(loop: Training, stop: list[int], save_every: float) -> None:
    """All updates that are left; a signal that any process of the group got stops all of them at the same step."""
    steps, group = loop.run.steps, loop.group
    saved = time.monotonic()
    while loop.step < steps:
        loop.advance()
        signum = group.largest(stop[0] if stop else 0)
        if signum or loop.step == steps or time.monotonic() - saved > save_every:
            loop.save()
            saved = time.monotonic()
        if signum and loop.step < steps:
            group.largest(0)  # nobody leaves before the first process has saved
            raise Interrupted(signum, loop.step, loop.folder)


def _check_group(run: Run, folder: Path, group: Processes) -> None:
    """Raise unless the processes can share this run's batches."""
    if group.size == 1:
        return
    described = zlib.crc32(json.dumps([folder.name, describe(run)]).encode())
    group.require_same(described, f"the processes were given different runs; this one has {folder}. Name one run")
    distributed.check_divisible(run.batch_size, group.size)
    rng = run.task.rng(run.data_seed, "train", 0, run.data_device)
    targets = run.task.sample(run.batch_size, "train", rng).targets
    prediction = torch.randn(run.batch_size, run.task.seq, run.task.d_out, generator=rng, device=targets.device)
    distributed.check_mean(run.task.loss, prediction, targets, group.size)
