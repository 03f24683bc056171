"""How a model scores on episodes of a split, with the composition as unit of replication."""

from collections.abc import Iterator

import torch

from compolens.hooks import HookedModel
from compolens.measures.intervals import Evaluation, summarise
from compolens.tasks.base import TaskFamily
from compolens.tasks.episodes import Episodes
from compolens.tasks.fixed.stored import StoredEpisodes


@torch.no_grad()
def evaluate(
    model: HookedModel, task: TaskFamily, split: str, n: int, seed: int | str, device: str = "cpu", batch: int = 64
) -> Evaluation:
    """Score the model on episodes of a split, drawn as training draws them: batch by batch from (seed, split, step).

    Where fewer episodes are stored than are asked for, each of them counts once.

    Args:
        model: in evaluation mode.
        task: the family.
        split: "train", "test" or "ood".
        n: episodes.
        seed: of the episodes.
        device: where the model is.
        batch: episodes at once.

    Returns:
        The score, its interval over compositions, and the scores by composition.
    """
    parts = []
    for drawn in _drawn(task, split, n, seed, batch):
        episodes = drawn.to(device)
        error, weight = task.errors(model(episodes.tokens), episodes.targets)
        parts.append(torch.stack([error, weight, episodes.composition.double()]).cpu())
    error, weight, composition = torch.cat(parts, dim=1).numpy()
    return summarise(error, weight, composition.astype(int))


def different(task: TaskFamily, split: str, n: int) -> int:
    """How many different episodes a score is of, at most: stored ones are drawn again where fewer are stored.

    Args:
        task: the family.
        split: "train", "test" or "ood".
        n: episodes that were asked for.

    Returns:
        n, or all that are stored.
    """
    return min(n, len(task.stored.of_split(split))) if isinstance(task, StoredEpisodes) else n


def stored_of(task: TaskFamily) -> dict[str, str]:
    """Which stored episodes a model was made on, for its scores.json; others of the same name are then told apart.

    Args:
        task: the family.

    Returns:
        {"stored": the sha256 of all of them}; {} where none are stored.
    """
    known = task.stored.manifest.get("sha256") if isinstance(task, StoredEpisodes) else None
    return {"stored": known} if known else {}


def _drawn(task: TaskFamily, split: str, n: int, seed: int | str, batch: int) -> Iterator[Episodes]:
    if isinstance(task, StoredEpisodes) and (stored := different(task, split, n)) < n:
        yield from task.deal(stored, split, f"{seed}/each", batch)
        return
    for step, size in enumerate(_batches(n, batch)):
        yield task.sample(size, split, task.rng(seed, split, step))


def _batches(n: int, batch: int) -> list[int]:
    return [min(batch, n - start) for start in range(0, n, batch)]
