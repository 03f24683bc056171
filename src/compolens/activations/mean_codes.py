"""Mean codes of a split's episodes at every site, beside the factors and the compositions that caused them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd
import torch

from compolens.activations.sites import Site, positions
from compolens.activations.streams import draw, record
from compolens.hooks import HookedModel
from compolens.measures import readouts
from compolens.measures.readouts import Moments, leave_groups_out
from compolens.tasks import TaskFamily

PENALTIES = readouts.PENALTIES[::2]
"""Every other penalty of the common grid: predictors are read at every site of many models."""
FOLDS = 8
"""Groups of training compositions that are left out together."""
RAW = Site(-1, "raw input", "context")

Part = tuple[str, int]
"""A part of a composition: a factor, and which of its features."""


class Sample(NamedTuple):
    """Codes of a split's episodes at every site, their factors, and their compositions.

    Args:
        codes: site -> (n, features); `RAW` is the task's raw statistic.
        factors: name -> (n, width).
        composition: (n,) ints.
        error: (n,) of the answers to training compositions; those to held-out ones are not looked at, (0,).
        weight: (n,) likewise; the score is 1 - sum(error) / sum(weight).
    """

    codes: dict[Site, np.ndarray]
    factors: dict[str, np.ndarray]
    composition: np.ndarray
    error: np.ndarray
    weight: np.ndarray

    @property
    def score(self) -> float:
        """Of all answers, pooled; NaN where they are not looked at."""
        return 1 - float(self.error.sum()) / float(self.weight.sum()) if len(self.weight) else np.nan

    @property
    def target(self) -> torch.Tensor:
        """All factors' features side by side, (n, features)."""
        return torch.from_numpy(np.concatenate(list(self.factors.values()), axis=1))

    def parts(self) -> dict[int, list[Part]]:
        """Composition -> the parts that are there in all its episodes."""
        found = {}
        for c in np.unique(self.composition):
            here = self.composition == c
            there = [(n, int(i)) for n, part in self.factors.items() for i in np.flatnonzero((part[here] != 0).all(0))]
            found[int(c)] = there
        return found


def mean_codes(
    model: HookedModel,
    task: TaskFamily,
    points: Sequence[Site],
    split: str,
    n: int,
    seed: str,
    device: torch.device | str = "cpu",
) -> Sample:
    """Codes of n episodes: at every site, the mean of the activation over the role's positions.

    Args:
        model: in evaluation mode.
        task: its task.
        points: the sites.
        split: "train" or "ood".
        n: episodes.
        seed: of the episodes.
        device: where the model is.

    Returns:
        The sample; scores of training compositions alone.
    """
    hook_names = list(dict.fromkeys(site.hook_name for site in points))
    codes: dict[Site, list] = {site: [] for site in [*points, RAW]}
    factors: dict[str, list] = {}
    composition, terms = [], [torch.zeros(2, 0, dtype=torch.float64)]
    for batch in record(model, draw(task, split, n, seed, device), hook_names):
        for site in points:
            x = batch.sites[site.hook_name][:, positions(model, site.role)].mean(1).flatten(1)
            codes[site].append(x.double().cpu().numpy())
        codes[RAW].append(task.raw_statistic(batch.episodes).double().cpu().numpy())
        for name, part in task.factors(batch.episodes.codes).items():
            factors.setdefault(name, []).append(part.double().cpu().numpy())
        composition.append(batch.episodes.composition.cpu().numpy())
        if split == "train":
            terms.append(torch.stack(task.errors(batch.prediction, batch.episodes.targets)).double().cpu())
    error, weight = torch.cat(terms, 1).numpy()
    joined = {name: np.concatenate(parts) for name, parts in factors.items()}
    return Sample({s: np.concatenate(c) for s, c in codes.items()}, joined, np.concatenate(composition), error, weight)


@torch.no_grad()
def episode_errors(
    model: HookedModel, task: TaskFamily, split: str, n: int, seed: str, device: torch.device | str = "cpu"
) -> pd.DataFrame:
    """What a score is made of, of every episode.

    Args:
        model: in evaluation mode.
        task: its task.
        split: "test" or "ood".
        n: episodes.
        seed: of the episodes.
        device: where the model is.

    Returns:
        Columns split, composition (names), error and weight; an episode's score is 1 - error / weight.
    """
    drawn = []
    for batch in draw(task, split, n, seed, device):
        error, weight = (part.cpu().numpy() for part in task.errors(model(batch.tokens), batch.targets))
        names = [task.composition_name(int(c)) for c in batch.composition]
        drawn.append(pd.DataFrame({"split": split, "composition": names, "error": error, "weight": weight}))
    return pd.concat(drawn, ignore_index=True)


def moments(sample: Sample, site: Site) -> list[Moments]:
    """The moments of codes at a site and of factors, in up to `FOLDS` groups of compositions.

    Args:
        sample: the codes.
        site: one of its sites.

    Returns:
        One for every group.
    """
    x, y = torch.from_numpy(sample.codes[site]), sample.target
    _, which = np.unique(sample.composition, return_inverse=True)
    folds = min(FOLDS, int(which.max()) + 1)
    return [Moments.of(x[which % folds == fold], y[which % folds == fold]) for fold in range(folds)]


def left_out_r2(sample: Sample, site: Site) -> float:
    """R² of the factors of left-out compositions at a site, at the best penalty.

    Args:
        sample: codes of training compositions.
        site: one of its sites.

    Returns:
        1 is perfect, 0 the mean; NaN with one composition.
    """
    groups = moments(sample, site)
    return float(max(leave_groups_out(groups, PENALTIES)[1])) if len(groups) > 1 else np.nan


def best_site(sample: Sample, points: Sequence[Site]) -> Site | None:
    """The site whose readouts predict left-out compositions best.

    Args:
        sample: codes of training compositions.
        points: the sites to choose from.

    Returns:
        The site; None if no site varies.
    """
    decoded = {site: left_out_r2(sample, site) for site in points}
    return max((site for site in points if np.isfinite(decoded[site])), key=lambda site: decoded[site], default=None)
