"""What learners share that know the examples an episode shows, and nothing else."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from torch import Tensor

from compolens.references.base import Reference
from compolens.tasks.base import TaskFamily
from compolens.tasks.episodes import Episodes


@dataclass(frozen=True)
class InContextLearner(Reference):
    """Applies where episodes are (x, y) pairs."""

    def why_not(self, task: TaskFamily) -> str:
        episodes = task.sample(1, "train", task.rng("reference", "train"))
        return "" if task.examples(episodes) is not None else "its episodes are not (x, y) pairs"


def examples_of(task: TaskFamily, episodes: Episodes) -> tuple[Tensor, Tensor]:
    """What an episode shows, as pairs in double precision.

    Args:
        task: the family.
        episodes: a batch of episodes.

    Returns:
        x (batch, seq, d_x) of all positions and y (batch, n, d_y) of the first n.
    """
    examples = task.examples(episodes)
    assert examples is not None
    x, y = examples
    return x.double(), y.double()


Value = TypeVar("Value")
"""What a learner's setting may be: a penalty, or a width with a penalty."""


def best_on_training(
    task: TaskFamily, values: Sequence[Value], predictions: Callable[[TaskFamily, Episodes, tuple[Value, ...]], list[Tensor]]
) -> Value:
    """The value whose predictions score best on 1,024 episodes of training compositions, always the same ones.

    Args:
        task: the family.
        values: to choose from.
        predictions: (task, episodes, values) -> a prediction per value.

    Returns:
        One of the values.
    """
    episodes = task.sample(1024, "train", task.rng("reference", "train"))
    scores = [task.score(p, episodes.targets) for p in predictions(task, episodes, tuple(values))]
    return values[max(range(len(scores)), key=scores.__getitem__)]
