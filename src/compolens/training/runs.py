"""A `Run`: everything that decides a training's outcome."""

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from compolens.foundation.configs import (
    ConfigError,
    added_later,
    describe,
    nearest,
    require,
    require_kinds,
    require_positive,
    shown,
)
from compolens.foundation.memory import TooLarge
from compolens.hooks import HookedModel, TaskLoss
from compolens.models.base import Architecture
from compolens.tasks.base import TaskFamily
from compolens.training.auxiliary import Auxiliary
from compolens.training.initialisation import Initialisation
from compolens.training.machine import PRECISIONS
from compolens.training.memory import check_model
from compolens.training.optimizers import AdamW

MOST_EVALUATIONS = 1_000_000


@dataclass(frozen=True)
class Run:
    """Everything that decides a training's outcome.

    Args:
        architecture: what is trained.
        task: what it is trained on.
        steps: updates (0 makes a folder of the model as built).
        init_seed: of the initial weights.
        data_seed: of the training's episodes.
        batch_size: episodes of an update.
        optimizer: how weights move.
        keep: steps whose weights are kept beside the final ones.
        evaluations: how many times, evenly spaced, the scores enter history.csv.
        evaluation_episodes: episodes per split of such an evaluation.
        data_device: where episodes are drawn ("cpu" gives every device the same ones).
        answers_only: while training, the last block computes only the positions whose answers count: the same function, up to
            rounding (and, with dropout, to which pairs are dropped), in less time.
        precision: what training takes matrix products in, "float32" or "bfloat16" (mixed precision: weights, gradients,
            optimizer, loss, normalisations and softmax stay in float32, and so does everything that is done with the model
            afterwards).
        initialisation: what weights start from, `FanInPower(gamma)` or `TeacherModules()` (None: what the architecture draws).
        auxiliary: a term that training adds to the task's loss, `DecodableFactors` or `OrthogonalFactors` (None: none). On the
            CPU, in one process, without `answers_only`.
    """

    architecture: Architecture
    task: TaskFamily
    steps: int = 6000
    init_seed: int = 0
    data_seed: int = 0
    batch_size: int = 64
    optimizer: AdamW = field(default_factory=AdamW)
    keep: tuple[int, ...] = ()
    evaluations: int = 20
    evaluation_episodes: int = 1024
    data_device: str = "cpu"
    answers_only: bool = False
    precision: str = "float32"
    initialisation: Initialisation | None = added_later(None)
    auxiliary: Auxiliary | None = added_later(None)

    def __post_init__(self) -> None:
        require_kinds(self)
        require(
            self.precision in PRECISIONS,
            f"Run: no precision {self.precision!r}; {nearest(str(self.precision), PRECISIONS)}",
        )
        object.__setattr__(self, "keep", tuple(sorted(set(self.keep))))
        require_positive(self, "batch_size", "evaluations", "evaluation_episodes")
        require(
            self.evaluations <= MOST_EVALUATIONS,
            f"Run: evaluations must be at most {MOST_EVALUATIONS:,}, each a row of history.csv; got {self.evaluations}",
        )
        require(
            self.auxiliary is None or not self.answers_only,
            "Run: an auxiliary term needs all positions; leave answers_only=True or auxiliary out",
        )
        _check_device(self.data_device)
        require(self.steps >= 0, f"Run: steps must not be negative, got {self.steps}")
        self.optimizer.check_steps(self.steps)
        for step in self.keep:
            require(0 <= step <= self.steps, f"Run: keep names step {step}, outside 0 to {self.steps}")

    def build(self) -> HookedModel:
        """The model as initialised: a function of the run alone, leaving global random state as it was. One that takes more
        memory than there is is refused before it is built (`TooLarge`)."""
        dimensions = self.task.dimensions
        with torch.random.fork_rng(devices=[]):
            check_model(self.architecture, dimensions)
            if torch.accelerator.is_available():
                torch.manual_seed(self.init_seed)
            else:  # that would keep a note, with where it was called from, for each device that is not there
                torch.default_generator.manual_seed(self.init_seed)
            try:
                model = self.architecture.build(**dimensions)
            except RuntimeError as error:
                if "allocate memory" not in str(error):
                    raise
                reason = "there is less memory left than this model takes; choose smaller sizes, or end other processes"
                raise TooLarge(f"{type(self.architecture).__name__}: {reason}") from error
            _check_built(type(self.architecture).__name__, model)
            if self.initialisation is not None:
                self.initialisation.draw(model, self.task)
            model.task_loss = TaskLoss(self.task.loss)
            return model

    def config(self) -> dict[str, Any]:
        """What the config.json of its folder holds: the run, and what its task is called in figures."""
        return {"format": 1, "run": describe(self), "setting": self.task.setting}

    @property
    def evaluated_steps(self) -> set[int]:
        """The steps at which history.csv has a row, the last one included."""
        return {round(self.steps * k / self.evaluations) for k in range(1, self.evaluations + 1)} | {self.steps}


def _check_built(name: str, model: Any) -> None:
    """Raise unless an architecture has built what can be trained and looked into."""
    way = "return a HookedModel from build, such as one of compolens.models"
    if isinstance(model, nn.Module):
        way += "; a network as it is goes through compolens.adopt(module, task, sites={…})"
    got = f"a {type(model).__name__}" if isinstance(model, nn.Module) else shown(model)
    require(isinstance(model, HookedModel), f"{name}: build returned {got}, which has no hook points; {way}")


def _check_device(name: str) -> None:
    """Raise unless torch knows a device of this name; whether this machine has one is asked when it is used."""
    try:
        torch.device(name)
    except RuntimeError as error:
        raise ConfigError(f"Run: data_device must be cpu, cuda, cuda:1, …, got {shown(name)}") from error
