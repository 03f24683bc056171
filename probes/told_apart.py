"""Which classes of the code does the answer tell apart, when the examples show another class of the same inputs?"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from compolens import tables
from compolens.activations.sites import Site, named_stream, put
from compolens.activations.streams import draw, record
from compolens.foundation.configs import DoesNotApply
from compolens.foundation.progress import progress
from compolens.hooks import HookedModel
from compolens.interventions.interchange import Pairs, check_renders, exchanged_factors, remaining
from compolens.measures.intervals import summarise
from compolens.tasks.base import TaskFamily
from compolens.tasks.episodes import stream
from compolens.zoo.folders import TrainedModel

version = 1  # raised whenever its numbers change

ALL, ANSWERS = "all", "answers"
ANSWERED = {"site": ANSWERS, "role": ALL, "layer": -1}
FEWEST = 8
"""Pairs of episodes from which on two classes have a row of their own."""


class Changed(NamedTuple):
    """Pairs of episodes of which one answer follows another class: the inputs are the same, and what the examples show is not.

    Args:
        pairs: the episodes; `wanted` are those under the other class.
        at: (batch,) which answer changed.
        label: (batch,) the name of the label that changed.
        classes: (batch, 2) names of the two classes, in the order of the family's list.
    """

    pairs: Pairs
    at: Tensor
    label: np.ndarray
    classes: np.ndarray

    def take(self, which: Tensor) -> Changed:
        kept = which.cpu().numpy()
        return Changed(self.pairs.take(which), self.at[which], self.label[kept], self.classes[kept])


def probe(trained: TrainedModel, *, episodes: int = 2048, seed: int = 0) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Whether the answer follows when one class of the code becomes another in the examples, and by which tokens.

    Two episodes have the same inputs, and one part of their code differs: a rule of S-RAVEN (2406.05816), say, is addition in
    one and subtraction in the other. A model that infers the class answers each of them
    rightly; one that can execute both rules and infers neither gives both answers to both episodes. Then what one episode's
    run holds is put into the other's, an interchange intervention on a whole site (2303.02536). No readout is trained.

    Args:
        trained: the trained model, with its run, task and folder.
        episodes: episodes per split, 2 or more, and at most as many pairs.
        seed: seed of the episodes, which are never those of a training, even with an equal seed.

    Returns:
        The table, and rows per pair of episodes. Split: of the composition before the exchange; the one after it may be in any
        or in none. `class` and `other` name the two classes, or "all" pairs; two classes have rows from 8 pairs of episodes
        on. Pairs whose examples look alike, or whose right answers are the same, are left out. lo, hi: 95 % over
        compositions.

        - "told apart": where answers are classes. The probability of the right answer over that of both answers, mean over
          both episodes: 1 if the two classes are told apart, .5 if they are not.
        - "followed": where answers are numbers. How far the answer moves along the way from one right answer to the other: 1
          all of it, 0 not at all.
        - "both answers": where answers are classes. The probability of both right answers together, mean over both episodes: 1
          if the model knows them, whichever it gives.
        - "same question": share of pairs whose last block of tokens is the same: only their examples differ. Where it is 0, as
          between two progressions, the question itself may tell the classes apart.
        - "recovered": share of the way from the model's answer to one episode to its answer to the other that putting the
          other's residual stream in at `site` and `role` covers. Without a meaning where the two answers are hardly different.
        - control "untrained": the same in the untrained control; "recovered" of all pairs alone.

    Raises:
        DoesNotApply: the family cannot show the same inputs under two codes, has no categorical code to read, or exchanges no
            class for another.
    """
    task = trained.task
    check_renders(task)
    rows, kept = [], []
    changed = {split: _pairs(task, split, episodes, f"{seed}/{split}", trained) for split in ("test", "ood")}
    for split, there in changed.items():
        for error, weight in _questions(task, there):
            rows += [
                row | {"split": split, "control": ""} for row in _rows("same question", ANSWERED, error, weight, there, True)
            ]
    for control, model in trained.with_untrained_control():
        for split, there in changed.items():
            where = {"split": split, "control": control}
            for metric, place, error, weight in _measured(task, model, there):
                apart = not control or place["site"] == ANSWERS
                rows += [row | where for row in _rows(metric, place, error, weight, there, apart)]
                if not control and place["site"] == ANSWERS:
                    kept.append(_episodes(task, there, split, metric, error, weight))
    own = (row for row in rows if row["control"] == "" and row["metric"] != "same question")
    rows += tables.not_available(own, trained.why_no_untrained_control)
    return pd.DataFrame(rows), pd.concat(kept, ignore_index=True)


# ---- pairs -----------------------------------------------------------------------------------------------------------
def _pairs(task: TaskFamily, split: str, n: int, seed: str, trained: TrainedModel) -> Changed:
    """Pairs of which one answer follows another class."""
    (episodes,) = draw(task, split, n, seed, trained.device, batch=n)
    rng = torch.Generator(device=trained.device).manual_seed(stream(seed, "exchange", 0))
    pairs = exchanged_factors(task, episodes, 1, rng)
    before, after = task.readouts(pairs.base), task.readouts(pairs.wanted)
    differ = {name: before.labels[name] != after.labels[name] for name in before.labels}
    at, label = torch.full_like(pairs.base.composition, -1), np.full(len(pairs.mask), "", dtype=object)
    classes = np.full((len(pairs.mask), 2), "", dtype=object)
    for name, where in differ.items():
        alone = (where.sum(1) == 1) & (sum(other.sum(1) for other in differ.values()) == 1)
        at[alone] = where[alone].int().argmax(1)
        label[alone.cpu().numpy()] = name
        one = torch.stack([side.labels[name].gather(1, at.clamp_min(0)[:, None])[:, 0] for side in (before, after)], 1)
        named = np.array([str(c) for c in before.classes[name]], dtype=object)
        classes[alone.cpu().numpy()] = named[one.sort(1).values[alone].cpu().numpy()]
    seen = (pairs.base.tokens != pairs.wanted.tokens).flatten(1).any(1)
    found = Changed(pairs, at, label, classes)
    usable = (at >= 0) & seen & _apart(task, found)
    if not bool(usable.any()):
        raise DoesNotApply(
            f"none of {len(usable)} exchanges between episodes of {type(task).__name__} changes the class of one answer "
            "alone, and with it what the examples show and what is right"
        )
    return found.take(usable)


def _at(task: TaskFamily, values: Tensor, at: Tensor) -> Tensor:
    """What stands at the answer that changed: (batch, …)."""
    where = torch.tensor([a % task.seq for a in task.answers], device=values.device)[at.clamp_min(0)]
    return values[torch.arange(len(at), device=values.device), where]


def _apart(task: TaskFamily, changed: Changed) -> Tensor:
    ours, theirs = (_at(task, side.targets, changed.at) for side in (changed.pairs.base, changed.pairs.wanted))
    return (ours != theirs).reshape(len(changed.at), -1).any(1)


def _questions(task: TaskFamily, changed: Changed) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Whose last blocks of tokens differ, where the family has blocks: (what is missing, what could be had)."""
    if task.blocks:
        asked = list(task.blocks[-1])
        ours, theirs = (side.tokens[:, asked] for side in (changed.pairs.base, changed.pairs.wanted))
        differs = _numbers((ours != theirs).flatten(1).any(1))
        yield differs, np.ones_like(differs)


# ---- measures --------------------------------------------------------------------------------------------------------
Measured = tuple[str, dict[str, Any], np.ndarray, np.ndarray]
"""Metric, place, and per pair what is missing and what could be had."""


def _measured(task: TaskFamily, model: HookedModel, changed: Changed) -> Iterator[Measured]:
    """The measures of one model, place by place."""
    base, wanted = changed.pairs.base, changed.pairs.wanted
    points = [Site(layer, name, role) for layer, name in named_stream(model).items() for role in model.roles]
    sites = list(dict.fromkeys(site.hook_name for site in points))
    (own,), (other,) = record(model, [base], sites), record(model, [wanted], sites)
    for metric, error, weight in _told(task, changed, own.prediction, other.prediction):
        yield metric, ANSWERED, _numbers(error), _numbers(weight)
    for site in progress(points, "put in at site"):
        positions, activation = model.roles[site.role], own.sites[site.hook_name].clone()
        activation[:, positions] = other.sites[site.hook_name][:, positions]
        with torch.no_grad():
            answer = put(model, base.tokens, site, activation)
        error, weight = remaining(answer, own.prediction, other.prediction, task.answers, base.targets)
        place = {"site": site.hook_name, "role": site.role, "layer": site.layer}
        yield "recovered", place, _numbers(error), _numbers(weight)


def _told(task: TaskFamily, changed: Changed, own: Tensor, other: Tensor) -> Iterator[tuple[str, Tensor, Tensor]]:
    """(metric, what is missing, what could be had): of the answers that changed."""
    ours, theirs = (_at(task, side.targets, changed.at) for side in (changed.pairs.base, changed.pairs.wanted))
    here, there = _at(task, own, changed.at), _at(task, other, changed.at)
    if ours.is_floating_point():
        way = (theirs - ours).flatten(1)
        moved = ((there - here).flatten(1) * way).sum(1)
        yield "followed", way.square().sum(1) - moved, way.square().sum(1)
        return
    chances = [side.double().softmax(-1).gather(-1, torch.stack([ours, theirs], -1)) for side in (here, there)]
    both = [side.sum(-1) for side in chances]
    right = [side[:, i] / whole.clamp_min(1e-300) for i, (side, whole) in enumerate(zip(chances, both, strict=True))]
    one = torch.ones_like(right[0])
    yield "told apart", one - sum(right) / 2, one
    yield "both answers", one - sum(both) / 2, one


def _numbers(values: Tensor) -> np.ndarray:
    return values.double().cpu().numpy()


# ---- rows ------------------------------------------------------------------------------------------------------------
def _rows(
    metric: str, place: dict[str, Any], error: np.ndarray, weight: np.ndarray, changed: Changed, apart: bool
) -> list[dict[str, Any]]:
    """A row for all pairs and, `apart`, one for every two classes of a label that enough pairs have."""
    composition = changed.pairs.base.composition.cpu().numpy()
    named = pd.DataFrame({"label": changed.label, "class": changed.classes[:, 0], "other": changed.classes[:, 1]})
    parts: list[tuple[dict[str, Any], np.ndarray]] = [({"label": ALL, "class": ALL, "other": ALL}, np.arange(len(named)))]
    for _, here in named.groupby(list(named.columns)):
        if apart and len(here) >= FEWEST:
            parts.append(({str(column): here[column].iloc[0] for column in named}, here.index.to_numpy()))
    rows = []
    for words, index in parts:
        found = summarise(error[index], weight[index], composition[index])
        lo, hi = found.interval
        where = {**place, **words, "n": len(index)}
        rows.append({"metric": metric, "value": found.score, "lo": lo, "hi": hi, **where})
    return rows


def _episodes(
    task: TaskFamily, changed: Changed, split: str, metric: str, error: np.ndarray, weight: np.ndarray
) -> pd.DataFrame:
    """What every pair scores."""
    names = [task.composition_name(int(c)) for c in changed.pairs.base.composition.tolist()]
    classes = {"label": changed.label, "class": changed.classes[:, 0], "other": changed.classes[:, 1]}
    return pd.DataFrame({"split": split, "metric": metric, "composition": names, **classes, "score": 1 - error / weight})
