"""How a model scores on episodes of a split, with the composition as unit of replication."""

from typing import NamedTuple

import numpy as np
import torch

from compolens.hooks import HookedModel
from compolens.tasks.base import TaskFamily


class Evaluation(NamedTuple):
    """A score with its standard error over compositions (jackknife), and per composition (score, weight, episodes)."""

    score: float
    se: float
    per_composition: dict[int, tuple[float, float, int]]

    @property
    def interval(self) -> tuple[float, float]:
        """95 % bootstrap interval of the score over compositions (2,000 draws, always the same ones)."""
        scores, weights = (np.array([entry[i] for entry in self.per_composition.values()]) for i in (0, 1))
        pick = np.random.default_rng(0).integers(len(scores), size=(2000, len(scores)))
        lo, hi = np.quantile((scores[pick] * weights[pick]).sum(1) / weights[pick].sum(1), [0.025, 0.975])
        return float(lo), float(hi)


def summarise(error: np.ndarray, weight: np.ndarray, composition: np.ndarray) -> Evaluation:
    """Pool per-episode (error, weight) into 1 - sum(error)/sum(weight), with the composition as unit of replication."""
    ids = np.unique(composition)
    errors = np.array([error[composition == c].sum() for c in ids])
    weights = np.array([weight[composition == c].sum() for c in ids])
    counts = [int((composition == c).sum()) for c in ids]
    score = 1 - errors.sum() / weights.sum()
    se = float("nan")
    if len(ids) > 1:
        left_out = 1 - (errors.sum() - errors) / (weights.sum() - weights)
        se = float(np.sqrt((len(ids) - 1) * np.mean((left_out - left_out.mean()) ** 2)))
    rows = zip(ids, errors, weights, counts, strict=True)
    return Evaluation(float(score), se, {int(c): (float(1 - e / w), float(w), k) for c, e, w, k in rows})


@torch.no_grad()
def evaluate(
    model: HookedModel, task: TaskFamily, split: str, n: int, seed: int | str, device: str = "cpu", batch: int = 64
) -> Evaluation:
    """Score the model on n episodes of a split, drawn as training draws them: batch by batch from (seed, split, step)."""
    parts = []
    for step, size in enumerate(_batches(n, batch)):
        episodes = task.sample(size, split, task.rng(seed, split, step)).to(device)
        error, weight = task.errors(model(episodes.tokens), episodes.targets)
        parts.append(torch.stack([error, weight, episodes.composition.double()]).cpu())
    error, weight, composition = torch.cat(parts, dim=1).numpy()
    return summarise(error, weight, composition.astype(int))


def _batches(n: int, batch: int) -> list[int]:
    return [min(batch, n - start) for start in range(0, n, batch)]
