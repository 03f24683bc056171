"""Does it answer held-out compositions as well as those it was trained on, and how do learners that are no networks do?"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from compolens import tables
from compolens.activations.streams import draw
from compolens.hooks import HookedModel
from compolens.measures.intervals import summarise
from compolens.references import REFERENCES
from compolens.tasks import SPLITS
from compolens.tasks.base import TaskFamily
from compolens.tasks.episodes import Episodes
from compolens.zoo.folders import TrainedModel

version = 5  # raised whenever its numbers change
# 2 changed intervals, 3 and 4 added references, 5 leaves the mean of "in-context quadratic" and "in-context kernel ridge" free
values_since = 5  # its values

Key = tuple[str, str]
"""A learner: (control, name)."""
NAMES = {"": "model", "untrained": "untrained control"}
"""control -> what the column `reference` says."""


def probe(trained: TrainedModel, *, episodes: int = 1024, seed: int = 0) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Score of the model, its untrained control and every reference on train, test and held-out compositions.

    Compositions are held out as in 2312.15001 and 2407.12275.

    Args:
        trained: the trained model, with its run, task and folder.
        episodes: episodes drawn per split, 1 or more; more of them narrow the intervals.
        seed: seed of the episodes, which are never those of a training, even with an equal seed.

    Returns:
        The table, and rows per episode (score, first prediction and target). Rows with composition "all" hold pooled scores,
        lo and hi their 95 % t interval over compositions; the others hold one composition each, `weight` its share of
        the pool. Splits: train, test, ood; and test and ood of the family's variants, such as "ood, unpermuted".

        - "score": as the family scores. R²: 1 is perfect, 0 each task's mean answer, may be negative; an accuracy is from 0 to
          1.
        - the family's other metrics, under their own names.
        - "share of ceiling": the score over that of the family's ceiling on the same episodes, whose row has the note
          "ceiling".
        - "score, …": the score on a part of the episodes, such as "score, unambiguous".
        - control "untrained": the untrained control.
        - control "reference": the learner named in `reference`; `note` says why one is not available.
    """
    task, rows, kept = trained.task, [], []
    learners = {(control, NAMES[control]): model for control, model in trained.with_untrained_control()}
    for split in SPLITS:
        batches = list(draw(task, split, episodes, seed, trained.device))
        answers, reasons = _answers(task, learners, batches)
        rows += [_row(split, key, "score", note=f"not available: {reason}") for key, reason in reasons.items()]
        rows += _rows(task, split, answers, batches)
        kept.append(_episodes(task, split, answers["", "model"], batches))
    for variant, shown in task.variants.items():
        for split in ("test", "ood"):
            batches = list(draw(shown, split, episodes, seed, trained.device))
            answers, _ = _answers(shown, learners, batches)
            here = _rows(shown, f"{split}, {variant}", answers, batches)
            rows += [row for row in here if row["composition"] == "all"]
    own = (row for row in rows if row["control"] == "")
    rows += tables.not_available(own, trained.why_no_untrained_control, reference=NAMES["untrained"])
    return pd.DataFrame(rows), pd.concat(kept, ignore_index=True)


@torch.no_grad()
def _answers(
    task: TaskFamily, learners: dict[Key, HookedModel], batches: list[Episodes]
) -> tuple[dict[Key, list[Tensor]], dict[Key, str]]:
    """(control, name) -> predictions, batch by batch; and why some references have none."""
    answers = {key: [model(b.tokens) for b in batches] for key, model in learners.items()}
    reasons: dict[Key, str] = {}
    for kind in REFERENCES.values():
        reference = kind()
        key, reason = ("reference", reference.name), reference.why_not(task)
        if reason:
            reasons |= {} if reference.of_one_family else {key: reason}
        else:
            answers[key] = [reference.predict(task, b) for b in batches]
    return answers, reasons


def _row(
    split: str,
    key: Key,
    metric: str,
    value: float = np.nan,
    lo: float = np.nan,
    hi: float = np.nan,
    weight: float = np.nan,
    n: int = 0,
    composition: str = "all",
    note: str = "",
) -> dict[str, Any]:
    where: dict[str, Any] = {"split": split, "site": "output", "role": "answers", "control": key[0], "n": n}
    more: dict[str, Any] = {"reference": key[1], "composition": composition, "weight": weight, "note": note}
    return tables.row(metric, value, lo=lo, hi=hi, **where, **more)


def _rows(task: TaskFamily, split: str, answers: dict[Key, list[Tensor]], batches: list[Episodes]) -> Iterator[dict[str, Any]]:
    """For every learner: its metrics, pooled; the score by stratum and by composition; and its share of the ceiling."""
    composition = torch.cat([b.composition for b in batches]).cpu().numpy()
    strata = [task.strata(b) for b in batches]
    parts = {name: torch.cat([s[name] for s in strata]).cpu().numpy() for name in strata[0]}
    ceiling = None
    for key in sorted(answers, key=lambda key: key[1] != task.ceiling):  # the ceiling first
        measured = _measured(task, answers[key], batches)
        for metric, (error, weight) in measured.items():
            pooled = summarise(error, weight, composition)
            note = "ceiling" if key[1] == task.ceiling and metric == "score" else ""
            yield _row(split, key, metric, pooled.score, *pooled.interval, weight.sum(), len(error), note=note)
            if metric != "score":
                continue
            for index, (score, share, n) in pooled.per_composition.items():
                yield _row(split, key, metric, score, weight=share, n=n, composition=task.composition_name(index))
            ceiling = pooled.score if key[1] == task.ceiling else ceiling
            if ceiling is not None and key[0] != "reference":
                value, lo, hi = (number / ceiling for number in (pooled.score, *pooled.interval))
                yield _row(split, key, "share of ceiling", value, lo, hi, n=len(error))
            for stratum, inside in parts.items():
                some = summarise(error[inside], weight[inside], composition[inside])
                yield _row(split, key, f"score, {stratum}", some.score, *some.interval, weight[inside].sum(), inside.sum())


def _measured(task: TaskFamily, predictions: list[Tensor], batches: list[Episodes]) -> dict[str, np.ndarray]:
    """metric -> (error, weight), each one number per episode."""
    found = [task.metrics(p, b.targets) for p, b in zip(predictions, batches, strict=True)]
    return {name: torch.cat([torch.stack(f[name]).cpu() for f in found], dim=1).numpy() for name in found[0]}


def _episodes(task: TaskFamily, split: str, predictions: list[Tensor], batches: list[Episodes]) -> pd.DataFrame:
    """Per episode: its score, and prediction and target at the first answer position."""
    first = task.answers[0]
    error, weight = _measured(task, predictions, batches)["score"]
    composition = torch.cat([b.composition for b in batches]).tolist()
    columns = {"split": split, "composition": [task.composition_name(c) for c in composition], "score": 1 - error / weight}
    answer = torch.cat([p[:, first].flatten(1) for p in predictions]).float().cpu().numpy()  # numpy knows no bfloat16
    target = torch.cat([b.targets[:, first].flatten(1) if b.targets.ndim > 2 else b.targets[:, first, None] for b in batches])
    return pd.DataFrame(columns | {"prediction": list(answer), "target": list(target.cpu().numpy())})
