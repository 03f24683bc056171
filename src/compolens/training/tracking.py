"""Dashboards that watch a training: TensorBoard and Weights & Biases. The folder stays the truth; these repeat it.

A tracker gets the rows of history.csv, each after it has been saved. One that fails is switched off, and the training goes
on. Nothing is written into the model's folder: what trackers write lies beside it.
"""

from __future__ import annotations

import os
import sys
import uuid
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Protocol

from compolens.foundation import files
from compolens.foundation.configs import ConfigError, describe, nearest


class Tracker(Protocol):
    """What `train` tells while it trains. It may raise: it is then asked no more, and the training goes on."""

    def start(self, run: Any, folder: Path, resumed: bool) -> int:
        """A training begins, or goes on. What an earlier training of that folder left is to be dropped unless it goes on.

        Args:
            run: the run.
            folder: its model folder.
            resumed: whether it goes on.

        Returns:
            The last step already logged of it, -1 if none: later rows follow, earlier ones are not told again.
        """

    def log(self, step: int, numbers: dict[str, float]) -> None:
        """A row of history.csv.

        Args:
            step: updates done.
            numbers: the loss since the row before, and the scores by split.
        """

    def finish(self, scores: dict[str, Any] | None) -> None:
        """The training has ended with `scores` (those of scores.json; None: it was stopped and may be resumed)."""


class TensorBoardTracker:
    """Scalars for TensorBoard, in ``tensorboard/NAME`` beside the model folder NAME: ``tensorboard --logdir OUT/tensorboard``.

    Event files hold single precision.
    """

    def __init__(self) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise _missing("tensorboard", error) from error
        self._open: Any = SummaryWriter
        self._writer: Any = None

    def start(self, run: Any, folder: Path, resumed: bool) -> int:
        """A training begins, or goes on; the last step is read from the event files themselves.

        Args:
            run: the run.
            folder: its model folder; event files are written in ``tensorboard`` beside it.
            resumed: whether it goes on.

        Returns:
            The last step already logged of it, -1 if none.
        """
        place = folder.parent / "tensorboard" / folder.name
        if not resumed:
            for old in place.glob("events.out.tfevents.*"):
                old.unlink()
        last = _last_step(place)
        self._writer = self._open(str(place))
        return last

    def log(self, step: int, numbers: dict[str, float]) -> None:
        """A row of history.csv, written through to the disk at once.

        Args:
            step: updates done.
            numbers: the loss since the row before, and the scores by split.
        """
        for name, value in numbers.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def finish(self, scores: dict[str, Any] | None) -> None:
        """The training has ended with `scores`, which enter as final/SPLIT (None: it was stopped)."""
        for name, value in _final(scores).items():
            self._writer.add_scalar(name, value, (scores or {})["step"])
        self._writer.close()


def _last_step(place: Path) -> int:
    """The last step with a complete row in the event files of a folder; -1 where there is none."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    if not place.is_dir():
        return -1
    events = EventAccumulator(str(place), size_guidance={"scalars": 0}).Reload()
    rows = [name for name in events.Tags()["scalars"] if not name.startswith("final/")]
    return min((events.Scalars(name)[-1].step for name in rows), default=-1)


class WandbTracker:
    """A run of Weights & Biases, kept in ``wandb`` beside the model folder.

    Offline unless the environment says WANDB_MODE=online (log in first; this never does): ``wandb sync`` uploads it later.

    Args:
        project: where the run belongs.
    """

    def __init__(self, project: str = "compolens") -> None:
        try:
            import wandb
        except ImportError as error:
            raise _missing("wandb", error) from error
        self._wandb: Any = wandb
        self._run: Any = None
        self.project = project

    def start(self, run: Any, folder: Path, resumed: bool) -> int:
        """A training begins, or goes on; which run it is and how far it got is kept in ``wandb/NAME.json``.

        Args:
            run: the run.
            folder: its model folder.
            resumed: whether it goes on.

        Returns:
            The last step already logged of it, -1 if none.
        """
        place = folder.parent / "wandb"
        place.mkdir(parents=True, exist_ok=True)
        self._marker = place / f"{folder.name}.json"
        known = resumed and self._marker.exists()
        self._state: dict[str, Any] = files.read_json(self._marker) if known else {"id": uuid.uuid4().hex[:12], "step": -1}
        self._run = self._wandb.init(
            project=self.project, name=folder.name, id=self._state["id"], resume="allow", config=describe(run),
            dir=str(folder.parent), mode=os.environ.get("WANDB_MODE", "offline"), reinit="create_new",
            settings=self._wandb.Settings(console="off", silent=True),
        )  # fmt: skip
        files.write_json(self._marker, self._state)
        return self._state["step"]

    def log(self, step: int, numbers: dict[str, float]) -> None:
        """A row of history.csv.

        Args:
            step: updates done.
            numbers: the loss since the row before, and the scores by split.
        """
        self._run.log(numbers, step=step)
        self._state["step"] = step
        files.write_json(self._marker, self._state)

    def finish(self, scores: dict[str, Any] | None) -> None:
        """The training has ended with `scores`, which enter the summary as final/SPLIT (None: it was stopped, and is closed as
        such)."""
        self._run.summary.update(_final(scores))
        self._run.finish(exit_code=0 if scores else 1)


TRACKERS = {"tensorboard": TensorBoardTracker, "wandb": WandbTracker}
"""What ``--track`` may name."""


def tracker(name: str) -> Tracker:
    """The tracker called `name`; a `ConfigError` for another name, or where its package is not installed."""
    if name not in TRACKERS:
        raise ConfigError(f"no tracker {name!r}; {nearest(name, TRACKERS)}")
    return TRACKERS[name]()


def _missing(package: str, error: ImportError) -> ConfigError:
    return ConfigError(f"tracking with {package} needs a package that is missing ({error}): pip install compolens[tracking]")


def _final(scores: dict[str, Any] | None) -> dict[str, float]:
    return {f"final/{split}": entry["score"] for split, entry in (scores or {}).items() if isinstance(entry, dict)}


class Following:
    """The trackers of one training, each told every row once; a context, which tells them at its end how it went.

    Set its attribute `scores` to the final scores when there are some.

    Args:
        trackers: who is told.
        run: the run.
        folder: its model folder.
        resumed: whether the training goes on.
    """

    def __init__(self, trackers: Iterable[Tracker], run: Any, folder: Path, resumed: bool) -> None:
        self.scores: dict[str, Any] | None = None
        self._run, self._folder, self._resumed = run, folder, resumed
        self._waiting = list(trackers)
        self._last: list[tuple[Tracker, int]] = []

    def __enter__(self) -> Following:
        for follower in self._waiting:
            try:
                self._last.append((follower, follower.start(self._run, self._folder, self._resumed)))
            except Exception as error:
                _switched_off(follower, error)
        return self

    def log(self, history: list[dict[str, float]]) -> None:
        """Tell the rows of a saved `history` that have not been told yet."""
        told = []
        for follower, last in self._last:
            try:
                for row in history:
                    if row["step"] > last:
                        last = int(row["step"])
                        follower.log(last, {name: value for name, value in row.items() if name != "step"})
                told.append((follower, last))
            except Exception as error:
                _switched_off(follower, error)
        self._last = told

    def __exit__(self, *_: Any) -> None:
        for follower, _last in self._last:
            try:
                follower.finish(self.scores)
            except Exception as error:
                _switched_off(follower, error)


def _switched_off(follower: Tracker, error: Exception) -> None:
    reason = f"{type(error).__name__}: {' '.join(str(error).split())}"
    print(f"{type(follower).__name__} failed and is off ({reason}); the training goes on", file=sys.stderr, flush=True)
