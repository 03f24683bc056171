"""Does the code by which attention treats a pair of tokens say which rule is at work, on compositions never trained on too?"""

from typing import NamedTuple

import numpy as np
import pandas as pd
import torch

from compolens import tables
from compolens.activations.streams import draw, record
from compolens.measures.classifiers import LogisticReadout, balanced_accuracy, confusion, macro_f1
from compolens.zoo.folders import TrainedModel

version = 1  # raised whenever its numbers change

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
    """Logistic readout of each categorical label (rule; term 1, term 2) from `hook_code` at every layer, a number per head,
    at the pairs that the family names: an answer token attending to itself ("self") and, where there are such, to the two
    tokens it should be computed from ("row mates"). Fitted on training compositions, scored on fresh ones (test) and on
    held-out ones (ood): balanced accuracy and macro F1; intervals are over compositions.

    episodes: per fit and per split; c: inverse penalty on standardised features. Controls: the majority class; shuffled
    labels; the untrained control; the raw input, with and without products of degree 2 of the tokens concerned. `shown`: "as
    trained", or the family's variant ("unpermuted", "fixed query", …) that fit and score were drawn from. "live units": the
    share of a value network's hidden units that are not 0; a layer with none passes nothing on.
    """
    rows, kept = [], []
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


def _variants(task):
    """The family as trained, and its variants that hold out the same compositions."""
    same = {name: v for name, v in task.variants.items() if v.compositions("ood") == task.compositions("ood")}
    return {AS_TRAINED: task, **same}


def _collect(task, model, split, n, seed, device, raw) -> Data:
    """Codes at the named pairs, flattened over the pairs of a capture; with `raw`, what the family offers of its inputs."""
    layers = {f"blocks.{layer}.attn.hook_code": layer for layer in range(model.cfg.n_layers)}
    values = {f"blocks.{layer}.attn.hook_post": layer for layer in layers.values()}
    values = {site: layer for site, layer in values.items() if site in model.hook_dict}
    parts: list[Data] = []
    for batch in record(model, draw(task, split, n, seed, device), [*layers, *values]):
        readouts, features = task.readouts(batch.episodes), {}
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
        per_answer = [np.repeat(v.cpu().numpy(), count) for v in (batch.episodes.composition, 1 - error / weight)]
        parts.append(Data(features, labels, *per_answer, live))
    first = parts[0]
    return Data(
        {key: np.concatenate([p.features[key] for p in parts]) for key in first.features},
        {key: np.concatenate([p.labels[key] for p in parts]) for key in first.labels},
        np.concatenate([p.composition for p in parts]),
        np.concatenate([p.score for p in parts]),
        {layer: float(np.mean([p.live[layer] for p in parts])) for layer in first.live},
    )


def _live(scored, known):
    """A layer all of whose value units are 0 passes nothing on: its code may still vary, but says nothing to later layers."""
    for split, data in zip(("test", "ood"), scored, strict=True):
        for layer, share in data.live.items():
            site = {"site": f"blocks.{layer}.attn.hook_post", "role": "all pairs", "layer": layer, "class": "all"}
            measured = {"metric": "live units", "value": share, "lo": np.nan, "hi": np.nan, "n": len(data.composition)}
            yield measured | site | known | {"split": split}


def _answers(x, truth, scored, source, c, both) -> dict[str, list[np.ndarray]]:
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


def _control(source, control, kind) -> str:
    raw = source[0] if source[1] < 0 else ""
    return ", ".join(word for word in (raw, control, kind) if word)


def _scores(source, known, classes, scored, predicted, n_fit):
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
            lo, hi = np.quantile(measure(resampled), [0.025, 0.975])
            yield {"metric": metric, "value": float(measure(total)), "lo": lo, "hi": hi, "class": "all"} | where
        if known["control"] == "":
            for k in np.flatnonzero(total.sum(1)):
                nothing = {"metric": "recall", "lo": np.nan, "hi": np.nan}
                yield nothing | {"value": total[k, k] / total[k].sum(), "class": classes[k]} | where


def _last_self(data):
    return max((key for key in data.features if key[0] == "self"), key=lambda key: key[1])


def _episodes(task, scored, answers, label, classes) -> pd.DataFrame:
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
