"""How are attention's codes laid out: by the rule at work, or by what the operands happen to be?"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from sklearn.manifold import TSNE, trustworthiness

from compolens import tables
from compolens.activations.streams import draw, record
from compolens.foundation.configs import ConfigError, require
from compolens.hooks import HookedModel
from compolens.measures.geometry import (
    ClassSums,
    bins,
    centred,
    effective_dimension,
    factorisation_r2,
    pca,
    silhouette,
    whitened,
)
from compolens.measures.intervals import Replicates, Scale, student_interval
from compolens.tasks.base import TaskFamily
from compolens.zoo.folders import TrainedModel

version = 2  # raised whenever its numbers change
values_since = 1  # its values; version 2 changed intervals alone

SILHOUETTE_ROWS = 1000
KEPT_EPISODES = 512
NEIGHBOURS = 5
ROUNDING = 1e-12
"""Cosines this near to 1 or -1 are at the edge of their range."""


LayOut = Callable[[np.ndarray, np.ndarray, int], tuple[np.ndarray, float]]
"""(codes, which of them are shown, seed) -> their places on a map (n, 2), and what the map is worth."""


class Data(NamedTuple):
    """One row per answer of every episode: codes by (capture, layer), what they are labelled with, and which episode it was.

    codes: (n, features); labels, confounds: (n,); classes: label -> names; composition, score: (n,), repeated over answers.
    """

    codes: dict[tuple[str, int], np.ndarray]
    labels: dict[str, np.ndarray]
    classes: dict[str, tuple[str, ...]]
    confounds: dict[str, np.ndarray]
    composition: np.ndarray
    score: np.ndarray

    @property
    def by(self) -> dict[str, np.ndarray]:
        """What codes may be laid out by: every label, and every confound in quarters."""
        return self.labels | {name: bins(values) for name, values in self.confounds.items()}

    @property
    def together(self) -> dict[str, list[np.ndarray]]:
        """What may add up to a code; all the labels only where there are several."""
        sums = {"all labels": list(self.labels.values())} if len(self.labels) > 1 else {}
        return sums | {"labels and confounds": list(self.by.values()), "composition": [self.composition]}


def probe(
    trained: TrainedModel,
    *,
    episodes: int = 1024,
    seed: int = 0,
    variant: str = "",
    points: int = 400,
    tsne: bool = False,
    umap: bool = False,
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """How the codes of attention (`hook_code`) are laid out, by label and by confound, at every layer.

    Codes are read at the pairs of tokens that the family names ("self", "row mates", …), as 2406.05816 maps them, on training
    compositions (test) and held-out ones (ood).

    Args:
        trained: the trained model, with its run, task and folder.
        episodes: episodes per split, 1 or more.
        seed: seed of the episodes, which are never those of a training, even with an equal seed.
        variant: show the family as this variant ("unpermuted", …); "" (the default) as it was trained.
        points: points per map, 0 (no maps) or more; 400 can still be told apart.
        tsne: draw t-SNE maps besides PCA; off by default, since they take longest.
        umap: draw UMAP maps besides PCA; needs the package umap-learn.

    Returns:
        The table, and rows per answer (its place on a PCA map of the last layer). Column `by` says by what codes are grouped:
        a label (rule; term 1, term 2), or a confound in quarters. lo and hi of cosines and
        of scatter are 95 % t intervals over compositions, their standard error from leaving out one at a time, on the scale of
        Fisher's z and of the logarithm. With shuffled labels, means that do not differ look as if they did, the less so the
        more codes there are. No interval for the cosine of a mean with itself, nor for one composition alone.

        - "silhouette": from -1 to 1; 1 is compact classes far apart.
        - "within/between": scatter within classes over scatter between them, 0 or more.
        - "factorisation R²", and the same "whitened": of codes given the class, or several factors added up, or the
          composition.
        - "cosine", "cosine about the mean": between the mean codes of two classes (`class`, `other`), from -1 to 1.
        - "effective dimension": of all codes, a count from 1 on.
        - "pca", "tsne", "umap": a row per point of a map (`x`, `y`, `label.…`, `confound.…`), held-out compositions only. The
          value is the share of variance of the two axes for PCA, else the map's trustworthiness (from 0 to 1).
        - control "shuffled": codes dealt to the labels at random.
        - control "untrained": the untrained control. Control named as an input: the raw input.

    Raises:
        ConfigError: umap is asked for and not installed, points is below 0, or the family has no such variant.
        DoesNotApply: the family has no categorical codes to read.
    """
    if umap and importlib.util.find_spec("umap") is None:
        raise ConfigError("UMAP maps need a package that is not installed; type: pip install umap-learn")
    require(points >= 0, f"points must be 0 or more, got {points}")
    task = _shown(trained.task, variant)
    task.readouts(next(draw(task, "test", 1, seed)))  # says so if there is nothing to read
    maps = {"pca": _pca} | ({"tsne": _tsne} if tsne else {}) | ({"umap": _umap} if umap else {})
    rows: list[dict] = []
    kept: dict[str, Data] = {}
    for control, model in trained.with_untrained_control():
        for split in ("test", "ood"):
            data = _collect(task, model, split, episodes, f"{seed}/{split}", trained.device, raw=control == "")
            kept.setdefault(split, data)
            for source, x in data.codes.items():
                where = _where(source, split, control)
                rows += _numbers(data, x, where)
                if control == "" and source[1] >= 0:
                    rows += _numbers(data, x, where | {"control": "shuffled"}, order=_shuffle(len(x), seed))
                if source[1] >= 0:
                    rows += _cosines(data, x, where)
                if source[1] >= 0 and split == "ood" and points:
                    for metric, lay_out in maps.items():
                        rows += _map(metric, lay_out, data, x, points, seed, where)
    on_maps = {column for row in rows for column in row if column.startswith(("label.", "confound."))}
    own = (row for row in rows if row["control"] == "")
    rows += tables.not_available(own, trained.why_no_untrained_control, measured=("point", "x", "y", *on_maps))
    return pd.DataFrame(rows), _episodes(task, kept)


def _shown(task: TaskFamily, variant: str) -> TaskFamily:
    if variant and variant not in task.variants:
        raise ConfigError(f"{type(task).__name__} has no variant {variant!r}; it has {list(task.variants) or 'none'}")
    return task.variants[variant] if variant else task


def _collect(task: TaskFamily, model: HookedModel, split: str, n: int, seed: str, device: torch.device, raw: bool) -> Data:
    """Codes at the named pairs, flattened over the pairs of a capture; with `raw`, what the family offers of its inputs."""
    layers = {f"blocks.{layer}.attn.hook_code": layer for layer in range(model.cfg.n_layers)}
    if not layers:
        model.check_site("blocks.0.attn.hook_code")
    parts: list[Data] = []
    for batch in record(model, draw(task, split, n, seed, device), list(layers)):
        readouts, codes = task.readouts(batch.episodes), {}
        count = next(iter(readouts.labels.values())).shape[1]
        for capture, pairs in readouts.pairs.items():
            episode = torch.arange(len(pairs), device=pairs.device)[:, None, None]
            for hook, layer in layers.items():
                code = batch.sites[hook][episode, pairs[..., 0], pairs[..., 1]]
                codes[capture, layer] = code.flatten(0, 1).flatten(1).cpu().numpy()
        if raw:
            codes |= {(name, -1): x.flatten(0, 1).cpu().numpy() for name, x in readouts.inputs.items()}
        labels, confounds = (
            {name: y.flatten().cpu().numpy() for name, y in values.items()} for values in (readouts.labels, readouts.confounds)
        )
        error, weight = task.errors(batch.prediction, batch.episodes.targets)
        per_answer = [np.repeat(v.cpu().numpy(), count) for v in (batch.episodes.composition, 1 - error / weight)]
        classes = {name: _names(name, values) for name, values in readouts.classes.items()}
        parts.append(Data(codes, labels, classes, confounds, per_answer[0], per_answer[1]))
    return Data(
        _joined([part.codes for part in parts]),
        _joined([part.labels for part in parts]),
        parts[0].classes,
        _joined([part.confounds for part in parts]),
        np.concatenate([part.composition for part in parts]),
        np.concatenate([part.score for part in parts]),
    )


def _names(label: str, classes: tuple[str, ...]) -> tuple[str, ...]:
    """Names that look like numbers ("0010") go with their label's first word, or a table read back would hold numbers."""
    return tuple(f"{label.split()[0]} {name}" if name.isdecimal() else name for name in classes)


def _joined(parts: list[dict]) -> dict:
    return {key: np.concatenate([part[key] for part in parts]) for key in parts[0]}


def _shuffle(n: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).permutation(n)


def _where(source: tuple[str, int], split: str, control: str) -> dict:
    capture, layer = source
    read: dict[str, Any] = {"site": f"blocks.{layer}.attn.hook_code", "role": capture, "control": control}
    raw = {"site": "input", "role": "input", "control": capture}
    return {"split": split, "layer": layer} | (read if layer >= 0 else raw)


def _row(
    metric: str, value: float, where: dict[str, Any], n: int, lo: float = np.nan, hi: float = np.nan, **more: Any
) -> dict:
    note = "" if np.isfinite(value) else "not available: nothing varies"
    return tables.row(metric, float(value), lo=lo, hi=hi, n=n, note=note, **where, **more)


def _interval(value: float, left_out: np.ndarray, scale: Scale) -> tuple[float, float]:
    """Over compositions, of each of which `left_out` holds what the number is without it."""
    return student_interval(float(value), left_out, len(left_out), scale, Replicates.JACKKNIFE)


def _numbers(data: Data, x: np.ndarray, where: dict, order: np.ndarray | None = None) -> Iterator[dict]:
    """What one number says about all codes; with `order`, codes are dealt to the labels in that order."""
    if order is None:
        yield _row("effective dimension", effective_dimension(x), where, len(x), by="none")
        order = np.arange(len(x))
    x, white = x[order], whitened(x)[order]
    for by, y in data.by.items():
        more: dict[str, Any] = {"by": by, "classes": len(np.unique(y))}
        yield _row("silhouette", silhouette(x, y, SILHOUETTE_ROWS), where, min(len(x), SILHOUETTE_ROWS), **more)
        sums = ClassSums.by_group(x, y, int(y.max()) + 1, data.composition)
        ratio = float(sums.pooled.within_between())
        interval = _interval(ratio, sums.left_out.within_between(), Scale.LOG)
        yield _row("within/between", ratio, where, len(x), *interval, **more)
    for by, factors in ({name: [y] for name, y in data.by.items()} | data.together).items():
        more = {"by": by, "classes": sum(len(np.unique(y)) for y in factors)}
        yield _row("factorisation R²", factorisation_r2(x, factors), where, len(x), **more)
        yield _row("factorisation R², whitened", factorisation_r2(white, factors), where, len(x), **more)


def _cosines(data: Data, x: np.ndarray, where: dict) -> Iterator[dict]:
    """A row for every two classes that occur, in both orders and with themselves, of every label: a whole matrix."""
    for by, y in data.labels.items():
        names = data.classes[by]
        sums = ClassSums.by_group(x, y, len(names), data.composition)
        n = sums.size.sum(0)
        present = np.flatnonzero(n)
        for metric, about_mean in (("cosine", False), ("cosine about the mean", True)):
            value, left_out = sums.pooled.cosine(about_mean), sums.left_out.cosine(about_mean)
            for i, j in ((i, j) for i in present for j in present):
                more: dict[str, Any] = {"by": by, "classes": len(present), "class": names[i], "other": names[j]}
                codes = int(n[i] + n[j]) if i != j else int(n[i])
                itself = i == j or abs(value[i, j]) > 1 - ROUNDING
                interval = (np.nan, np.nan) if itself else _interval(value[i, j], left_out[:, i, j], Scale.FISHER)
                yield _row(metric, float(value[i, j]), where, codes, *interval, **more)


def _map(metric: str, lay_out: LayOut, data: Data, x: np.ndarray, points: int, seed: int, where: dict) -> Iterator[dict]:
    """A row per point, with everything known about it; the same points whatever the layer. All at 0 if codes are constant."""
    shown = np.sort(_shuffle(len(x), seed)[:points])
    xy, value = lay_out(x, shown, seed) if centred(x).any() else (np.zeros((len(shown), 2)), np.nan)
    known = {f"label.{name}": np.array(data.classes[name], dtype=object)[y[shown]] for name, y in data.labels.items()}
    known |= {f"confound.{name}": _short(values[shown]) for name, values in data.confounds.items()}
    for k, (point, (a, b)) in enumerate(zip(shown, _short(xy), strict=True)):
        yield _row(metric, value, where, len(x), by="none", point=int(point), x=a, y=b, **{c: v[k] for c, v in known.items()})


def _short(values: np.ndarray) -> np.ndarray:
    """Four digits are enough for a map."""
    return np.vectorize(lambda v: float(f"{v:.4g}"), otypes=[float])(values)


def _pca(x: np.ndarray, shown: np.ndarray, seed: int) -> tuple[np.ndarray, float]:
    """The axes are those of all codes, of which some are shown."""
    coordinates, share = pca(x)
    return coordinates[shown], round(float(share.sum()), 4)


def _tsne(x: np.ndarray, shown: np.ndarray, seed: int) -> tuple[np.ndarray, float]:
    x = centred(x[shown])
    require(len(x) >= 4, f"a t-SNE map needs at least 4 points, got {len(x)}; raise points or episodes")
    perplexity = min(30.0, (len(x) - 1) / 3)
    xy = TSNE(init="pca" if x.shape[1] > 1 else "random", random_state=seed, perplexity=perplexity).fit_transform(x)
    return xy, _trust(x, xy)


def _umap(x: np.ndarray, shown: np.ndarray, seed: int) -> tuple[np.ndarray, float]:
    from umap import UMAP

    x = centred(x[shown])
    xy = UMAP(random_state=seed, n_neighbors=min(15, len(x) - 1)).fit_transform(x)
    return xy, _trust(x, xy)


def _trust(x: np.ndarray, xy: np.ndarray) -> float:
    """Trustworthiness: 1 if a map's neighbours are neighbours; sklearn wants fewer than half the points as neighbours."""
    return round(float(trustworthiness(x, xy, n_neighbors=max(1, min(NEIGHBOURS, (len(x) - 1) // 2)))), 4)


def _episodes(task: TaskFamily, kept: dict[str, Data]) -> pd.DataFrame:
    """Per answer, of both splits on one map: where the last layer's first capture lies, and whether the answer was right."""
    source = max((key for key in kept["ood"].codes if key[1] >= 0), key=lambda key: key[1])
    xy, _ = pca(np.concatenate([data.codes[source] for data in kept.values()]))
    parts = []
    for (split, data), here in zip(kept.items(), np.split(xy, [len(kept["test"].score)]), strict=True):
        keep = slice(0, KEPT_EPISODES)
        names = [task.composition_name(int(c)) for c in data.composition[keep]]
        labels = {f"label.{name}": [data.classes[name][k] for k in y[keep]] for name, y in data.labels.items()}
        where = {"split": split, "composition": names, "layer": source[1], "role": source[0]}
        parts.append(pd.DataFrame(where | labels | {"x": here[keep, 0], "y": here[keep, 1], "score": data.score[keep]}))
    return pd.concat(parts, ignore_index=True)
