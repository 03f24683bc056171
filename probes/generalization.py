"""Does it answer held-out compositions as well as those it was trained on, and how do learners that are no networks do?"""

import numpy as np
import pandas as pd
import torch

from compolens.activations import draw
from compolens.references import REFERENCES
from compolens.tasks import SPLITS
from compolens.training import summarise
from compolens.zoo import TrainedModel


def probe(trained: TrainedModel, *, episodes: int = 1024, seed: int = 0) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Score of the model, its untrained twin and every reference on train, test and ood; pooled and per composition.

    episodes: per split. Rows with composition "all" hold pooled scores (for R²: 1 is perfect, 0 each task's mean answer, may
    be negative), lo and hi their 95 % bootstrap interval over compositions; the others hold one composition each, with
    `weight` its share in the pool. control: "" the model, "untrained" its twin, "reference" a learner named in `reference`.
    """
    task, twin = trained.task, trained.untrained_twin()
    rows, kept = [], []
    for split in SPLITS:
        batches = list(draw(task, split, episodes, seed, trained.device))
        answers = {("", "model"): [_predict(trained.model, b) for b in batches]}
        answers["untrained", "untrained twin"] = [_predict(twin, b) for b in batches]
        for kind in REFERENCES.values():
            reference = kind()
            reason = reference.why_not(task)
            key = ("reference", reference.name)
            if reason:
                rows.append(_row(split, "all", key, np.nan, np.nan, np.nan, np.nan, 0) | {"note": f"not available: {reason}"})
            else:
                answers[key] = [reference.predict(task, b) for b in batches]
        composition = torch.cat([b.composition for b in batches]).cpu().numpy()
        for key, predictions in answers.items():
            error, weight = _errors(task, predictions, batches)
            rows.extend(_rows(task, split, key, error, weight, composition))
            if key[1] == "model":
                kept.append(_episodes(task, split, predictions, batches, 1 - error / weight, composition))
    return pd.DataFrame(rows), pd.concat(kept, ignore_index=True)


@torch.no_grad()
def _predict(model, batch):
    return model(batch.tokens)


def _errors(task, predictions, batches):
    pairs = [torch.stack(task.errors(p, b.targets)).cpu() for p, b in zip(predictions, batches, strict=True)]
    return torch.cat(pairs, dim=1).numpy()


def _row(split, composition, key, value, lo, hi, weight, n):
    return {
        "metric": "score", "value": value, "lo": lo, "hi": hi, "split": split, "site": "output", "role": "answers",
        "control": key[0], "reference": key[1], "composition": composition, "weight": weight, "n": n, "note": "",
    }  # fmt: skip


def _rows(task, split, key, error, weight, composition):
    """The pooled row, the mean of per-episode ratios (the convention of the papers' code), and a row per composition."""
    pooled = summarise(error, weight, composition)
    lo, hi = pooled.interval
    yield _row(split, "all", key, pooled.score, lo, hi, weight.sum(), len(error))
    yield _row(split, "all", key, float(np.mean(1 - error / weight)), np.nan, np.nan, np.nan, len(error)) | {
        "metric": "mean of per-episode scores"
    }
    for index, (score, share, n) in pooled.per_composition.items():
        yield _row(split, task.composition_name(index), key, score, np.nan, np.nan, share, n)


def _episodes(task, split, predictions, batches, score, composition):
    """Per episode: its score, and prediction and target at the first answer position."""
    first = task.answers[0]
    answer = torch.cat([p[:, first].flatten(1) for p in predictions]).cpu().numpy()
    target = torch.cat([b.targets[:, first].flatten(1) for b in batches]).cpu().numpy()
    names = [task.composition_name(c) for c in composition]
    return pd.DataFrame(
        {"split": split, "composition": names, "score": score, "prediction": list(answer), "target": list(target)}
    )
