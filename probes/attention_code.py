"""Does the code by which attention treats a pair of tokens say which rule is at work, on compositions never trained on too?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch

from compolens import tables
from compolens.activations.streams import draw, record
from compolens.hooks import HookedModel
from compolens.measures.classifiers import LogisticReadout, balanced_accuracy, confusion, macro_f1
from compolens.measures.intervals import Replicates, Scale, student_interval
from compolens.tasks.base import TaskFamily
from compolens.zoo.folders import TrainedModel

version = 2  # raised whenever its numbers change
values_since = 1  # its values; version 2 changed intervals alone

METRICS = {"balanced accuracy": balanced_accuracy, "macro F1": macro_f1}
AS_TRAINED = "as trained"
DRAWS = 1000
KEPT_EPISODES = 512


class Data(NamedTuple):
    """One row per answer of every episode: features by source, class by label, composition, its episode's score. And by layer
    the share of the value network's hidden units that are not 0, over all pairs of tokens, where attention has one."""

    features: dict[tuple[str, float], np.ndarray]
    labels: dict[str, np.ndarray]
    composition: np.ndarray
    score: np.ndarray
    live: dict[int, float]


def probe(trained: TrainedModel, *, episodes: int = 2048, seed: int = 0, c: float = 1.0) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Balanced accuracy and F1 of a logistic readout of the rule from attention's code, at every layer.

    The code is `hook_code`: for a pair of tokens, one number per head (2406.05816). It is read for the pairs that the family
    names: an answer token with itself ("self") and, where there are such, with the two tokens that it should be computed from
    ("row mates"). Readouts are fitted on training compositions.

    Args:
        trained: the trained model, with its run, task and folder.
        episodes: episodes for the fit, and again per scored split, 1 or more; more of them narrow the intervals.
        seed: seed of the episodes, which are never those of a training, even with an equal seed.
        c: inverse of the readout's L2 penalty on standardised features, above 0; 1 is scikit-learn's default.

    Returns:
        The table, and rows per answer (true and decoded class at the last layer). Column `label` names what is read (rule;
        term 1, term 2), `role` the pair of tokens, `shown` how the family was shown: "as trained" or one of its variants
        ("unpermuted", "fixed query", …), for fit and score alike. Splits: test (fresh episodes of training compositions) and
        ood (held-out ones). lo, hi: 95 % over compositions.

        - "balanced accuracy", "macro F1": from 0 to 1; chance is 1 over the number of classes (`classes`).
        - "recall": of every class (column `class`).
        - "live units": share of a value network's hidden units that are not 0; a layer without any passes nothing on.
        - control "majority class": always answers the most frequent class.
        - control "shuffled": the readout fitted to labels of other episodes.
        - control "untrained": the same in the untrained control.
        - controls "raw input" and "raw input, products": a readout of the tokens concerned, without and with products of
          degree 2.

    Raises:
        DoesNotApply: the family has no categorical codes to read.
    """
    rows: list[dict[str, Any]] = []
    kept = []
    for shown, task in _variants(trained.task).items():
        for control, model in trained.with_untrained_control():
            fit, *scored = (
                _collect(task, model, split, episodes, f"{seed}/{part}", trained.device, raw=control == "")
                for split, part in (("train", "fit"), ("test", "score"), ("ood", "score"))
            )
            classes = task.readouts(next(draw(task, "train", 1, 0))).classes
            rows += _live(scored, {"shown": shown, "label": "none", "control": control})
            for source, x in fit.features.items():
                for label, truth in fit.labels.items():
                    answers = _answers(x, truth, scored, source, c, both=control == "")
                    for kind, predicted in answers.items():
                        known = {"shown": shown, "label": label, "control": _control(source, control, kind)}
                        rows += _scores(source, known, classes[label], scored, predicted, len(truth))
                    if control == "" and shown == AS_TRAINED and source == _last_self(fit):
                        kept.append(_episodes(task, scored, answers[""], label, classes[label]))
    own = (row for row in rows if row["control"] == "" and row["metric"] != "recall")
    rows += tables.not_available(own, trained.why_no_untrained_control)
    return pd.DataFrame(rows), pd.concat(kept, ignore_index=True)


def _variants(task: TaskFamily) -> dict[str, TaskFamily]:
    """The family as trained, and its variants that hold out the same compositions."""
    same = {name: v for name, v in task.variants.items() if v.compositions("ood") == task.compositions("ood")}
    return {AS_TRAINED: task, **same}


def _collect(task: TaskFamily, model: HookedModel, split: str, n: int, seed: str, device: torch.device, raw: bool) -> Data:
    """Codes at the named pairs, flattened over the pairs of a capture; with `raw`, what the family offers of its inputs."""
    layers = {f"blocks.{layer}.attn.hook_code": layer for layer in range(model.cfg.n_layers)}
    if not layers:
        model.check_site("blocks.0.attn.hook_code")
    values = {f"blocks.{layer}.attn.hook_post": layer for layer in layers.values()}
    values = {site: layer for site, layer in values.items() if site in model.hook_dict}
    parts: list[Data] = []
    for batch in record(model, draw(task, split, n, seed, device), [*layers, *values]):
        features: dict[tuple[str, float], np.ndarray] = {}
        readouts = task.readouts(batch.episodes)
        live = {layer: float((batch.sites[site] != 0).double().mean()) for site, layer in values.items()}
        count = next(iter(readouts.labels.values())).shape[1]
        for capture, pairs in readouts.pairs.items():
            episode = torch.arange(len(pairs), device=pairs.device)[:, None, None]
            for hook, layer in layers.items():
                code = batch.sites[hook][episode, pairs[..., 0], pairs[..., 1]]
                features[capture, layer] = code.flatten(0, 1).flatten(1).cpu().numpy()
        if raw:
            features |= {(name, -1): x.flatten(0, 1).cpu().numpy() for name, x in readouts.inputs.items()}
        labels = {name: y.flatten().cpu().numpy() for name, y in readouts.labels.items()}
        error, weight = task.errors(batch.prediction, batch.episodes.targets)
        composition, score = (np.repeat(v.cpu().numpy(), count) for v in (batch.episodes.composition, 1 - error / weight))
        parts.append(Data(features, labels, composition, score, live))
    first, sizes = parts[0], [len(p.composition) for p in parts]
    return Data(
        {key: np.concatenate([p.features[key] for p in parts]) for key in first.features},
        {key: np.concatenate([p.labels[key] for p in parts]) for key in first.labels},
        np.concatenate([p.composition for p in parts]),
        np.concatenate([p.score for p in parts]),
        {layer: float(np.average([p.live[layer] for p in parts], weights=sizes)) for layer in first.live},
    )


def _live(scored: Sequence[Data], known: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """A layer all of whose value units are 0 passes nothing on: its code may still vary, but says nothing to later layers."""
    for split, data in zip(("test", "ood"), scored, strict=True):
        for layer, share in data.live.items():
            site = {"site": f"blocks.{layer}.attn.hook_post", "role": "all pairs", "layer": layer, "class": "all"}
            measured = {"metric": "live units", "value": share, "lo": np.nan, "hi": np.nan, "n": len(data.composition)}
            yield measured | site | known | {"split": split}


def _answers(
    x: np.ndarray, truth: np.ndarray, scored: Sequence[Data], source: tuple[str, float], c: float, both: bool
) -> dict[str, list[np.ndarray]]:
    """kind of readout -> what it answers on test and ood; the shuffled and majority ones only where `both`."""
    targets = {"": truth}
    if both:
        targets["shuffled"] = np.random.default_rng(0).permutation(truth)
    answers = {}
    for kind, y in targets.items():
        readout = LogisticReadout.fit(x, y, c)
        answers[kind] = [readout(data.features[source]) for data in scored]
    if both:
        values, counts = np.unique(truth, return_counts=True)
        answers["majority class"] = [np.full(len(data.composition), values[counts.argmax()]) for data in scored]
    return answers


def _control(source: tuple[str, float], control: str, kind: str) -> str:
    raw = source[0] if source[1] < 0 else ""
    return ", ".join(word for word in (raw, control, kind) if word)


def _scores(
    source: tuple[str, float],
    known: dict[str, Any],
    classes: tuple[str, ...],
    scored: Sequence[Data],
    predicted: list[np.ndarray],
    n_fit: int,
) -> Iterator[dict[str, Any]]:
    """The rows of one readout on test and ood."""
    capture, layer = source
    place = {"site": "input", "role": "input", "layer": -1}
    if layer >= 0:
        place = {"site": f"blocks.{layer}.attn.hook_code", "role": capture, "layer": layer}
    for split, data, answer in zip(("test", "ood"), scored, predicted, strict=True):
        truth = data.labels[known["label"]]
        ids = np.unique(data.composition)
        counts = np.stack([confusion(truth[data.composition == i], answer[data.composition == i], len(classes)) for i in ids])
        pick = np.random.default_rng(0).integers(len(ids), size=(DRAWS, len(ids)))
        weight = np.stack([np.bincount(p, minlength=len(ids)) for p in pick])
        resampled, total = np.tensordot(weight, counts, axes=1), counts.sum(0)
        where = {
            "split": split,
            **place,
            **known,
            "n": len(truth),
            "fitted_on": n_fit,
            "classes": int((total.sum(1) > 0).sum()),
        }
        for metric, measure in METRICS.items():
            value, drawn = float(measure(total)), measure(resampled)
            lo, hi = student_interval(value, drawn, len(ids), Scale.LOG_LACK, Replicates.BOOTSTRAP)
            yield {"metric": metric, "value": value, "lo": lo, "hi": hi, "class": "all"} | where
        if known["control"] == "":
            for k in np.flatnonzero(total.sum(1)):
                nothing = {"metric": "recall", "lo": np.nan, "hi": np.nan}
                yield nothing | {"value": total[k, k] / total[k].sum(), "class": classes[k]} | where


def _last_self(data: Data) -> tuple[str, float]:
    return max((key for key in data.features if key[0] == "self"), key=lambda key: key[1])


def _episodes(
    task: TaskFamily, scored: Sequence[Data], answers: list[np.ndarray], label: str, classes: tuple[str, ...]
) -> pd.DataFrame:
    """Per answer: its composition, the true and the decoded class at the last layer, and its episode's score."""
    parts = []
    for split, data, answer in zip(("test", "ood"), scored, answers, strict=True):
        keep = slice(0, KEPT_EPISODES)
        columns = {
            "composition": [task.composition_name(int(i)) for i in data.composition[keep]],
            "true": [classes[k] for k in data.labels[label][keep]],
            "decoded": [classes[k] for k in answer[keep]],
            "score": data.score[keep],
        }
        parts.append(pd.DataFrame({"split": split, "label": label, **columns}))
    return pd.concat(parts, ignore_index=True)
