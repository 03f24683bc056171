"""Which reference learner a model's answers are closest to, how that compares with the references among themselves, and from
which layer on: rules over the tables `gd_equivalence` and `algorithm_steps`, means over seeds."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import pandas as pd

from compolens import tables

ALIKE = 0.999
"""References whose sensitivities have at least this cosine count as one: they may differ in scale, not in direction."""
LIKE_LAYER = 0.95
"""A layer's answers count as an algorithm's if their errors have at least this similarity with some step of it."""
ALGORITHMS = {"GD++": "GD++", "GD,": "GD, tuned rate", "debiased GD": "GD, tuned rate", "Newton": "Newton"}
"""How references' names begin -> the algorithm of `algorithm_steps` that they are steps of."""


class Closest(NamedTuple):
    """The reference learner whose answers a model's are closest to.

    Args:
        names: the closest reference, then those that point the same way.
        cosine: the model's with it.
        rival: the reference most alike to it among the others.
        floor: their cosine.
        untrained: the untrained control's cosine with it.
        shuffled: the cosine of answers to other episodes with it.
    """

    names: tuple[str, ...]
    cosine: float
    rival: str
    floor: float
    untrained: float
    shuffled: float


def closest(folders: Sequence[Path], split: str = "test") -> Closest:
    """The reference whose derivative by the query has the largest mean cosine with the model's, over all seeds.

    Args:
        folders: models that differ in seeds alone, with the table `gd_equivalence`.
        split: "train", "test" or "ood".

    Returns:
        The reference and its rivals.
    """
    rows = pd.concat([tables.at_last_step(tables.read(folder, "gd_equivalence")) for folder in folders])
    rows = rows[(rows["metric"] == "sensitivity cosine") & (rows["split"] == split)]
    mean = rows.groupby(["control", "learner", "reference"])["value"].mean()
    own, among = mean["", "model"], mean["reference"]
    best = str(own.idxmax())
    neighbours = among[best].drop(best)
    same = neighbours[neighbours >= ALIKE]
    others = neighbours.drop(same.index)
    rival = str(others.idxmax())
    controls = (float(mean[control, "model", best]) for control in ("untrained", "shuffled"))
    return Closest((best, *map(str, same.index)), float(own[best]), rival, float(others.max()), *controls)


class Depth(NamedTuple):
    """How far an algorithm has come after every layer.

    Args:
        algorithm: its name.
        steps: by layer, the best-matching step, mean over seeds.
        levels: by layer, its similarity.
        first: the first layer from which on every level is at least `LIKE_LAYER`, or None.
        edge: whether a best step is the last one looked at.
    """

    algorithm: str
    steps: tuple[float, ...]
    levels: tuple[float, ...]
    first: int | None
    edge: bool


def along_layers(folders: Sequence[Path], reference: str) -> Depth:
    """The depth of the algorithm that a reference is a step of, else of the one with the highest level at the last layer.

    Args:
        folders: models that differ in seeds alone, with the table `algorithm_steps`.
        reference: a reference's name.

    Returns:
        The algorithm's steps by layer.
    """
    rows = pd.concat([tables.at_last_step(tables.read(folder, "algorithm_steps")) for folder in folders])
    rows = rows[(rows["control"] == "") & (rows["split"] == "test")]
    named = [algorithm for begin, algorithm in ALGORITHMS.items() if reference.startswith(begin)]
    level = rows[rows["metric"] == "best level"].groupby(["algorithm", "layer"])["value"].mean()
    last = level.index.get_level_values("layer").max()
    algorithm = named[0] if named else str(level.xs(last, level="layer").idxmax())
    best = rows[(rows["metric"] == "best step") & (rows["algorithm"] == algorithm)]
    steps, levels = best.groupby("layer")["value"].mean(), level[algorithm]
    first = None
    for layer in reversed(levels.index):
        if levels[layer] < LIKE_LAYER:
            break
        first = int(layer)
    edge = bool((best["note"].fillna("") != "").any())
    return Depth(algorithm, tuple(steps), tuple(levels), first, edge)
