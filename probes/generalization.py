"""Does it answer held-out compositions as well as those it was trained on, and how do learners that are no networks do?"""

import numpy as np
import pandas as pd
import torch

from compolens import tables
from compolens.activations.streams import draw
from compolens.measures.intervals import summarise
from compolens.references import REFERENCES
from compolens.tasks import SPLITS
from compolens.zoo.folders import TrainedModel

version = 1  # raised whenever its numbers change

NAMES = {"": "model", "untrained": "untrained control"}
"""control -> what the column `reference` says."""


def probe(trained: TrainedModel, *, episodes: int = 1024, seed: int = 0) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Score of the model, its untrained control and every reference on train, test and ood; pooled and per composition.

    episodes: per split. Rows with composition "all" hold pooled scores (for R²: 1 is perfect, 0 each task's mean answer, may
    be negative), lo and hi their 95 % bootstrap interval over compositions; the others hold one composition each, with
    `weight` its share in the pool. control: "" the model, "untrained" its untrained control, "reference" a learner named in
    `reference`. Beside the score stand the family's other metrics, "share of ceiling" (the score over that of the family's
    ceiling on the same episodes; its row has the note "ceiling"), the score on parts of the episodes ("score, unambiguous")
    and on the family's variants (split "ood, unpermuted").
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
def _answers(task, learners, batches):
    """(control, name) -> predictions, batch by batch; and why some references have none."""
    answers, reasons = {key: [model(b.tokens) for b in batches] for key, model in learners.items()}, {}
    for kind in REFERENCES.values():
        reference = kind()
        key, reason = ("reference", reference.name), reference.why_not(task)
        if reason:
            reasons[key] = reason
        else:
            answers[key] = [reference.predict(task, b) for b in batches]
    return answers, reasons


def _row(split, key, metric, value=np.nan, lo=np.nan, hi=np.nan, weight=np.nan, n=0, composition="all", note=""):
    where = {"split": split, "site": "output", "role": "answers", "control": key[0], "n": n}
    more = {"reference": key[1], "composition": composition, "weight": weight, "note": note}
    return tables.row(metric, value, lo=lo, hi=hi, **where, **more)


def _rows(task, split, answers, batches):
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
                share = [value / ceiling for value in (pooled.score, *pooled.interval)]
                yield _row(split, key, "share of ceiling", *share, n=len(error))
            for stratum, inside in parts.items():
                some = summarise(error[inside], weight[inside], composition[inside])
                yield _row(split, key, f"score, {stratum}", some.score, *some.interval, weight[inside].sum(), inside.sum())


def _measured(task, predictions, batches):
    """metric -> (error, weight), each one number per episode."""
    found = [task.metrics(p, b.targets) for p, b in zip(predictions, batches, strict=True)]
    return {name: torch.cat([torch.stack(f[name]).cpu() for f in found], dim=1).numpy() for name in found[0]}


def _episodes(task, split, predictions, batches):
    """Per episode: its score, and prediction and target at the first answer position."""
    first = task.answers[0]
    error, weight = _measured(task, predictions, batches)["score"]
    composition = torch.cat([b.composition for b in batches]).tolist()
    columns = {"split": split, "composition": [task.composition_name(c) for c in composition], "score": 1 - error / weight}
    answer = torch.cat([p[:, first].flatten(1) for p in predictions]).cpu().numpy()
    target = torch.cat([b.targets[:, first].flatten(1) if b.targets.ndim > 2 else b.targets[:, first, None] for b in batches])
    return pd.DataFrame(columns | {"prediction": list(answer), "target": list(target.cpu().numpy())})
