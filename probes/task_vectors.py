"""Does one vector, put where the answer is read, make the model do the task that it was taken from, a held-out one too?"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from compolens import tables
from compolens.activations.sites import residual_sites
from compolens.activations.streams import draw, intervene, record
from compolens.foundation.configs import DoesNotApply, require
from compolens.hooks import HookedModel
from compolens.measures.intervals import summarise
from compolens.tasks.base import TaskFamily
from compolens.tasks.episodes import Episodes
from compolens.zoo.folders import TrainedModel

version = 3  # raised whenever its numbers change
# 2 gives every head's part of a random function vector the length of the vector's own

TRIED = 64
"""Pairs on which each attention head is tried."""


class Means(NamedTuple):
    """What stands where answers are read, on average over episodes of training compositions.

    Args:
        own: hook point -> composition -> (position, …).
        effects: hook point -> (1 + features, position * …), least squares of the means on the factors.
        mean: hook point -> (position, …), over compositions.
        spread: hook point -> the norm of a composition's mean about that mean, on average.
    """

    own: dict[str, dict[int, Tensor]]
    effects: dict[str, Tensor]
    mean: dict[str, Tensor]
    spread: dict[str, float]


def probe(trained: TrainedModel, *, episodes: int = 256, seed: int = 0, heads: int = 4) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Scores of the answers to a task that is not shown, when the vector of that task is put in.

    Prompts show one composition, and their inputs are asked under another, whose vector is the mean of what stands
    where answers are read, over episodes of it. A task vector takes the place of the residual stream at one layer
    (2310.15916). A function vector takes the place of the outputs of the heads that move training compositions'
    answers most (2310.15213, where their sum is added to the stream instead). Of held-out compositions no mean is
    known: their vector is the sum of the parts' effects, fitted to training compositions.

    Args:
        trained: the trained model, with its run, task and folder.
        episodes: pairs per split, and a quarter of what means are taken over, 8 or more. Pairs of the split test that ask for
            a composition of which no mean was taken are left out.
        seed: seed of the episodes, which are never those of a training, even with an equal seed.
        heads: how many heads a function vector has, 1 or more.

    Returns:
        The table, and rows per episode (score with the sum of parts at the best layer). Column `kind`: "task vector", or
        "function vector" with the site "heads"; `taken`: "mean of the composition" (split test alone) or "sum of parts". lo,
        hi: 95 % over compositions.

        - "score": as the family scores, against the answers under the vector's composition.
        - "moved": the share of the way from the score without a vector to that of prompts which show the composition; no
          interval, and none where the two are within 0.05.
        - control "no vector": the prompt as it is. Control "shown": prompts that show the composition.
        - control "another task": the vector of another composition. Control "mean": that of all training compositions.
        - control "random": the mean and a random direction as long as the vector's part beside it.
        - control "best layer": the best score over layers, chosen on the episodes themselves; no interval.
        - control "random heads": as many of the other heads, at random; no row where there are fewer. Control
          "untrained": the untrained control.

    Raises:
        DoesNotApply: the family cannot show the same inputs under another code, or names no factors.
        ConfigError: episodes is below 8, or heads below 1.
    """
    task = trained.task
    require(episodes >= 8 and heads >= 1, f"need 8 episodes and 1 head at least, got episodes={episodes}, heads={heads}")
    if task.why_no_render:
        raise DoesNotApply(f"no answers are known under other codes; {type(task).__name__}: {task.why_no_render}")
    rows, kept = [], []
    for control, model in trained.with_untrained_control():
        streams = list(residual_sites(model).values())[1:]
        there = [f"blocks.{layer}.attn.hook_z" for layer in range(model.cfg.n_layers)]
        there = [name for name in there if name in model.hook_dict]
        means = _means(trained, model, [*streams, *there], episodes, seed)
        chosen = _heads(trained, model, there, means, heads, seed) if there else []
        for split in ("test", "ood"):
            pairs = _pairs(trained, split, episodes, seed)
            pairs = _known(pairs, means) if split == "test" else pairs
            found = list(_rows(task, model, pairs, split, streams, chosen, there, means, control))
            rows += [row for row, _ in found]
            kept += [frame for _, frame in found if frame is not None and control == ""]
    own = (row for row in rows if row["control"] == "")
    rows += tables.not_available(own, trained.why_no_untrained_control)
    return pd.DataFrame(rows), pd.concat(kept, ignore_index=True)


# ---- pairs and means -------------------------------------------------------------------------------------------------
class Asked(NamedTuple):
    """Prompts, and the same inputs under other compositions."""

    base: Episodes
    wanted: Episodes


def _pairs(trained: TrainedModel, split: str, n: int, seed: int | str) -> Asked:
    """Every episode with the code of the one before it, where the composition is another."""
    (base,) = draw(trained.task, split, n, f"{seed}/score", trained.device, batch=n)
    wanted = trained.task.render({name: code.roll(1, 0) for name, code in base.codes.items()}, base.inputs)
    other = wanted.composition != base.composition
    require(bool(other.any()), f"all {n} episodes of split {split!r} have one composition, so no other can be put in")
    return Asked(base.take(other), wanted.take(other))


def _known(pairs: Asked, means: Means) -> Asked:
    """Those that ask for a composition whose mean is known."""
    known = torch.tensor(list(next(iter(means.own.values()))), device=pairs.wanted.composition.device)
    kept = torch.isin(pairs.wanted.composition, known)
    require(bool(kept.any()), f"none of {len(kept)} episodes asks for a composition whose mean was taken: draw more")
    return Asked(pairs.base.take(kept), pairs.wanted.take(kept))


def _design(task: TaskFamily, codes: dict[str, Tensor]) -> Tensor:
    parts = torch.cat(list(task.factors(codes).values()), 1).double()
    return torch.cat([torch.ones_like(parts[:, :1]), parts], 1)


def _means(trained: TrainedModel, model: HookedModel, hooks: list[str], n: int, seed: int) -> Means:
    task, at = trained.task, model.roles["readout"]
    sums: dict[str, dict[int, Tensor]] = {hook: {} for hook in hooks}
    counts: dict[int, int] = {}
    designs: dict[int, Tensor] = {}
    for batch in record(model, draw(task, "train", 4 * n, f"{seed}/fit", trained.device), hooks):
        composition, design = batch.episodes.composition, _design(task, batch.episodes.codes)
        for c in composition.unique().tolist():
            here = composition == c
            counts[c] = counts.get(c, 0) + int(here.sum())
            designs[c] = designs.get(c, torch.zeros_like(design[0])) + design[here].sum(0)
            for hook in hooks:
                total = batch.sites[hook][here][:, at].double().sum(0)
                sums[hook][c] = sums[hook].get(c, torch.zeros_like(total)) + total
    own = {hook: {c: total / counts[c] for c, total in found.items()} for hook, found in sums.items()}
    x = torch.stack([designs[c] / counts[c] for c in counts])
    inverse = torch.linalg.pinv(x, rtol=1e-6)
    whole = {hook: torch.stack([found[c] for c in counts]) for hook, found in own.items()}
    effects = {hook: inverse @ values.flatten(1) for hook, values in whole.items()}
    spread = {hook: float((values - values.mean(0)).flatten(1).norm(dim=1).mean()) for hook, values in whole.items()}
    return Means(own, effects, {hook: values.mean(0) for hook, values in whole.items()}, spread)


def _vectors(task: TaskFamily, means: Means, hook: str, wanted: Episodes, taken: str) -> Tensor:
    """(batch, position, …) the vector of every episode's composition."""
    if taken == "sum of parts":
        flat = _design(task, wanted.codes) @ means.effects[hook]
        return flat.unflatten(1, tuple(means.mean[hook].shape))
    return torch.stack([means.own[hook][c] for c in wanted.composition.tolist()])


# ---- putting them in -------------------------------------------------------------------------------------------------
def _put(at: list[int], vectors: Tensor, head: list[int] | None = None) -> Callable[[Tensor], Tensor]:
    def edit(activation: Tensor) -> Tensor:
        new = vectors.to(activation)
        if head is None:
            activation[:, at] = new
        else:
            for one in head:
                activation[:, at, one] = new[:, :, one]
        return activation

    return edit


def _edits(model: HookedModel, vectors: dict[str, Tensor], heads: list[tuple[str, int]] | None) -> dict[str, Callable]:
    at = model.roles["readout"]
    if heads is None:
        return {hook: _put(at, found) for hook, found in vectors.items()}
    return {hook: _put(at, vectors[hook], [head for name, head in heads if name == hook]) for hook in vectors}


def _heads(
    trained: TrainedModel, model: HookedModel, hooks: list[str], means: Means, heads: int, seed: int
) -> list[tuple[str, int]]:
    """The heads whose mean output, put in alone, lowers the loss on the wanted answers most, on training compositions."""
    task, pairs = trained.task, _pairs(trained, "train", TRIED, f"{seed}/choose")
    found = []
    for hook in hooks:
        vectors = _vectors(task, means, hook, pairs.wanted, "sum of parts")
        for head in range(vectors.shape[2]):
            edits = _edits(model, {hook: vectors}, [(hook, head)])
            found.append((float(task.loss(intervene(model, pairs.base, edits), pairs.wanted.targets)), hook, head))
    return [(hook, head) for _, hook, head in sorted(found)[:heads]]


# ---- rows ------------------------------------------------------------------------------------------------------------
def _rows(
    task: TaskFamily,
    model: HookedModel,
    pairs: Asked,
    split: str,
    streams: list[str],
    chosen: list[tuple[str, int]],
    there: list[str],
    means: Means,
    control: str,
) -> Iterator[tuple[dict[str, Any], pd.DataFrame | None]]:
    composition = pairs.wanted.composition.cpu().numpy()

    def scored(prediction: Tensor) -> tuple[np.ndarray, np.ndarray]:
        error, weight = task.errors(prediction, pairs.wanted.targets)
        return error.cpu().numpy(), weight.cpu().numpy()

    with torch.no_grad():
        without, shown = scored(model(pairs.base.tokens)), scored(model(pairs.wanted.tokens))
    floor, top = (summarise(*one, composition).score for one in (without, shown))

    def row(
        result: tuple[np.ndarray, np.ndarray], which: str, kind: str, site: str, layer: float, taken: str
    ) -> Iterator[Any]:
        pooled = summarise(*result, composition)
        name = ", ".join(word for word in (control, which) if word)
        where: dict[str, Any] = {"split": split, "site": site, "role": "readout", "control": name, "n": len(composition)}
        more: dict[str, Any] = {"layer": layer, "kind": kind, "taken": taken}
        lo, hi = pooled.interval
        yield tables.row("score", pooled.score, lo=lo, hi=hi, **where, **more), None
        if top - floor > 0.05 and not which:
            yield tables.row("moved", (pooled.score - floor) / (top - floor), **where, **more), None

    if not control:
        yield from row(without, "no vector", "none", "output", np.nan, "none")
        yield from row(shown, "shown", "none", "output", np.nan, "none")
    ways = ("mean of the composition", "sum of parts") if split == "test" else ("sum of parts",)
    kinds: list[tuple[str, str, float, list[str], list[tuple[str, int]] | None]] = [
        ("task vector", hook, float(layer + 1), [hook], None) for layer, hook in enumerate(streams)
    ]
    if chosen:
        kinds.append(("function vector", "heads", np.nan, list(dict.fromkeys(hook for hook, _ in chosen)), chosen))
    best: tuple[float, pd.DataFrame | None] = (-np.inf, None)
    for kind, site, layer, hooks, which_heads in kinds:
        for taken in ways:
            own = {hook: _vectors(task, means, hook, pairs.wanted, taken) for hook in hooks}
            result = scored(intervene(model, pairs.base, _edits(model, own, which_heads)))
            yield from row(result, "", kind, site, layer, taken)
            if taken == "sum of parts" and kind == "task vector":
                pooled = summarise(*result, composition).score
                if pooled > best[0]:
                    names = [task.composition_name(int(c)) for c in composition]
                    columns = {"split": split, "composition": names, "site": site, "score": 1 - result[0] / result[1]}
                    best = pooled, pd.DataFrame(columns)
        if control:
            continue
        for name, vectors in _controls(own, means).items():
            result = scored(intervene(model, pairs.base, _edits(model, vectors, which_heads)))
            yield from row(result, name, kind, site, layer, "sum of parts")
        if which_heads:
            every = [(hook, head) for hook in there for head in range(means.mean[hook].shape[1])]
            order = torch.randperm(len(every), generator=torch.Generator().manual_seed(0)).tolist()
            some = [every[i] for i in order if every[i] not in which_heads][: len(which_heads)]
        if which_heads and len(some) == len(which_heads):  # else there are too few other heads
            found = {hook: _vectors(task, means, hook, pairs.wanted, "sum of parts") for hook in {h for h, _ in some}}
            result = scored(intervene(model, pairs.base, _edits(model, found, some)))
            yield from row(result, "random heads", kind, site, layer, "sum of parts")
    if best[1] is not None and not control:
        score, frame = best
        site = str(frame["site"].iloc[0]) if frame is not None else ""
        where: dict[str, Any] = {
            "split": split,
            "site": site,
            "role": "readout",
            "control": "best layer",
            "n": len(composition),
        }
        layer = float(streams.index(site) + 1)
        yield tables.row("score", score, **where, layer=layer, kind="task vector", taken="sum of parts"), frame


def _controls(own: dict[str, Tensor], means: Means) -> dict[str, dict[str, Tensor]]:
    """Vectors of other compositions, the mean, and random directions of the same length beside it."""
    found: dict[str, dict[str, Tensor]] = {"another task": {}, "mean": {}, "random": {}}
    for hook, vectors in own.items():
        mean = means.mean[hook][None].to(vectors)
        noise = torch.randn(vectors.shape, generator=torch.Generator().manual_seed(1)).to(vectors)
        along = (1, 3) if vectors.ndim == 4 else tuple(range(1, vectors.ndim))  # a head may be put in without the others
        length = (vectors - mean).norm(dim=along, keepdim=True) / noise.norm(dim=along, keepdim=True)
        found["another task"][hook] = vectors.roll(1, 0)
        found["mean"][hook] = mean.expand_as(vectors)
        found["random"][hook] = mean + noise * length
    return found
