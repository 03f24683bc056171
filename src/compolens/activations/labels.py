"""What logistic readouts of a categorical code are given: features at every site, and the classes of an episode's parts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from compolens.activations.sites import Site, at_answers, at_role
from compolens.activations.streams import Activations
from compolens.foundation.moved import elsewhere
from compolens.hooks import HookedModel
from compolens.tasks.base import TaskFamily
from compolens.tasks.episodes import Episodes

MOST_ROWS = 2048
"""Episodes that a logistic readout is fitted to or scored on; more are left out."""
WIDEST = 1024
"""Features of a raw input; a wider one is projected on so many random directions, always the same ones."""


class LabelledFeatures(NamedTuple):
    """Features and classes of a split's episodes.

    Args:
        features: site -> (n, features), or (n, answer, features) where every answer is read at its own position.
        labels: name -> (n,) classes.
        answer: name -> which answer it belongs to, -1 for the whole episode.
        composition: (n,).
        score: (n,) of the model's own answers.
    """

    features: dict[Site, Tensor]
    labels: dict[str, Tensor]
    answer: dict[str, int]
    composition: Tensor
    score: Tensor


def labelled(
    task: TaskFamily,
    model: HookedModel,
    batches: Iterable[Episodes],
    sites: Sequence[Site],
    record: Callable[..., Iterable[Activations]],
    raw: Site | None,
) -> LabelledFeatures:
    """Features at sites, and the classes of `TaskFamily.categories`, of the first episodes.

    Args:
        task: the family.
        model: the model.
        batches: episodes; the first `MOST_ROWS` are used.
        sites: where features are taken.
        record: `activations.record`, or what stands for it.
        raw: stands for the raw input among the sites (None: left out).

    Returns:
        Features, classes, compositions, scores.
    """
    hooks, parts = list(dict.fromkeys(site.hook_name for site in sites if site != raw)), []
    rows = 0
    for batch in record(model, batches, hooks):
        names, answer = _columns(task.categories(batch.episodes.codes))
        features = {site: _features(task, model, batch, site, site == raw, max(answer.values()) >= 0) for site in sites}
        error, weight = task.errors(batch.prediction, batch.episodes.targets)
        parts.append(LabelledFeatures(features, names, answer, batch.episodes.composition, 1 - error / weight))
        rows += len(batch.episodes.composition)
        if rows >= MOST_ROWS:
            break
    first = parts[0]
    return LabelledFeatures(
        {site: torch.cat([part.features[site] for part in parts])[:MOST_ROWS] for site in first.features},
        {name: torch.cat([part.labels[name] for part in parts])[:MOST_ROWS] for name in first.labels},
        first.answer,
        torch.cat([part.composition for part in parts])[:MOST_ROWS],
        torch.cat([part.score for part in parts])[:MOST_ROWS],
    )


def _columns(categories: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, int]]:
    """A label a column: (name -> (n,) classes, name -> which answer it belongs to, -1 for the episode)."""
    found, answer = {}, {}
    for name, classes in categories.items():
        if classes.ndim == 1:
            found[name], answer[name] = classes.long(), -1
            continue
        for j in range(classes.shape[1]):
            called = f"{name} of answer {j + 1}"
            found[called], answer[called] = classes[:, j].long(), j
    return found, answer


def _features(task: TaskFamily, model: HookedModel, batch: Activations, site: Site, raw: bool, each: bool) -> Tensor:
    if raw:
        x = task.raw_statistic(batch.episodes)
        return x if x.shape[1] <= WIDEST else x @ _directions(x.shape[1]).to(x)
    activation = batch.sites[site.hook_name]
    if each and site.role == "readout" and len(model.roles["readout"]) == len(task.answers):
        return at_answers(activation, model).flatten(2)
    return at_role(activation, model, site.role)


def _directions(width: int) -> Tensor:
    return torch.randn(width, WIDEST, generator=torch.Generator().manual_seed(width)) / width**0.5


def __getattr__(name: str) -> Any:
    return elsewhere(__name__, name)
