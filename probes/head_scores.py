"""Which heads look up the label of the nearest item, or of the same item, and does the answer rest on them?"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from compolens import tables
from compolens.activations.streams import draw, intervene, record
from compolens.foundation.configs import DoesNotApply, require
from compolens.hooks import HookedModel
from compolens.interventions.components import Component, components, hold
from compolens.measures.intervals import mean_interval, summarise
from compolens.tasks.base import TaskFamily
from compolens.tasks.episodes import Episodes
from compolens.zoo.folders import TrainedModel

version = 1  # raised whenever its numbers change

NEAREST, SAME = "nearest neighbour", "induction"
MATCHED, EVEN = "matched random heads", "even"
COUNTS = 0.5
"""A head counts as one that looks labels up from this score on, as in the released code of 2310.03016."""
SEGMENTS, DRAWS = 4, 20
"""How often items are repeated for the induction score, and how many sets of random heads are tried at most."""
ALIKE = 1e-6
"""Cosines this close are equal."""


def probe(trained: TrainedModel, *, episodes: int = 512, seed: int = 0) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Attention scores of every head, each with an ablation beside matched random heads (2310.03016, 2509.22947).

    A score says where a head looks, and not that the answer rests on it. So the heads that score are taken away: each holds
    its mean over training episodes.

    Args:
        trained: the trained model, with its run, task and folder.
        episodes: episodes of each split, 2 or more.
        seed: seed of the episodes, which are never those of a training, even with an equal seed.

    Returns:
        The table, and a row per episode and split (score: 1 - error / weight, with all heads).

        - "nearest neighbour", "induction": a share of attention, from 0 to 1, of the head in the columns `component`
          and `layer`. The first is the attention of items, from the middle of the context on, to the labels of the earlier
          items with the largest cosine to them. The second is that of repeated items to the labels that stood after the same
          item before; the context is then 4 times its first quarter. lo, hi: 95 % over episodes (t). Control "even": the
          same where attention is even over all that may be seen. A family that cannot repeat its items has no induction score.
        - "score": the task's, with all heads. lo, hi: 95 % over compositions.
        - "score without heads": the same where the heads of score .5 or more are ablated; where there is none, the head with
          the largest. Column `by`: which score; `component`: the heads. Control "matched random heads": as many other heads,
          of the same layers as far as these have others; mean, least and largest over up to 20 such sets.
        - control "untrained": the untrained control.

    Raises:
        DoesNotApply: the family does not show items and labels in turn, or the model has no attention pattern by head.
        ConfigError: episodes is below 2.
    """
    require(episodes >= 2, f"need at least 2 episodes, got {episodes}; type --episodes 512")
    task = trained.task
    (few,) = draw(task, "test", 2, seed, trained.device, batch=2)
    if task.labelled(few) is None:
        raise DoesNotApply(
            f"{type(task).__name__} does not show items and their labels in turn, as BooleanFunctions does; write "
            "labelled(self, episodes) -> Labelled"
        )
    rows: list[dict[str, Any]] = []
    kept: list[pd.DataFrame] = []
    for control, model in trained.with_untrained_control():
        heads = [part for part in components(model, few.tokens) if part.kind == "head" and _pattern(part) in model.hook_dict]
        if not heads:
            raise DoesNotApply("the model has no attention pattern by head (blocks.*.attn.hook_pattern)")
        (training,) = draw(task, "test", episodes, f"{seed}/mean", trained.device, batch=episodes)
        average = {name: held.mean(0, keepdim=True) for name, held in hold(model, training, heads).sites.items()}
        for split in ("test", "ood"):
            (shown,) = draw(task, split, episodes, seed, trained.device, batch=episodes)
            scores = {NEAREST: _nearest(model, task, shown, heads)}
            if (again := task.repeated(shown, SEGMENTS)) is not None:
                scores[SAME] = _same(model, task, again, heads)
            found = [row | {"split": split} for name, score in scores.items() for row in _attention(name, heads, *score)]
            found += [row | {"split": split} for row in _ablated(model, task, shown, heads, average, scores, seed)]
            if control:
                found = [row | {"control": "untrained"} for row in found if not row["control"]]
            else:
                kept.append(_per_episode(model, task, shown, split))
            rows += found
    own = [row for row in rows if not row["control"]]
    rows += tables.not_available(own, trained.why_no_untrained_control)
    return pd.DataFrame(rows), pd.concat(kept, ignore_index=True)


def _pattern(head: Component) -> str:
    return f"blocks.{head.layer}.attn.hook_pattern"


# ---- scores ----------------------------------------------------------------------------------------------------------
def _nearest(model: HookedModel, task: TaskFamily, episodes: Episodes, heads: Sequence[Component]) -> tuple[Tensor, Tensor]:
    """(head, batch) and the same for even attention, (batch,): from the middle of the context on, the question included."""
    cosine = _cosines(task, episodes)
    before = torch.ones(cosine.shape[1:], dtype=torch.bool, device=cosine.device).tril(-1)
    largest = cosine.masked_fill(~before, -2.0).amax(2, keepdim=True)
    wanted = before & (cosine >= largest - ALIKE)
    wanted[:, : wanted.shape[1] // 2] = False
    return _share(model, task, episodes, heads, wanted)


def _same(model: HookedModel, task: TaskFamily, episodes: Episodes, heads: Sequence[Component]) -> tuple[Tensor, Tensor]:
    """The same for repeated items, from the second time on; the question is none of them."""
    cosine = _cosines(task, episodes)
    before = torch.ones(cosine.shape[1:], dtype=torch.bool, device=cosine.device).tril(-1)
    wanted = before & (cosine >= 1 - ALIKE)
    wanted[:, : (wanted.shape[1] - 1) // SEGMENTS] = False
    wanted[:, -1] = False
    return _share(model, task, episodes, heads, wanted)


def _cosines(task: TaskFamily, episodes: Episodes) -> Tensor:
    """(batch, item, item shown), float64."""
    found = task.labelled(episodes)
    assert found is not None
    unit = torch.nn.functional.normalize(found.items.double(), dim=-1)
    return unit @ unit[:, :-1].mT


@torch.no_grad()
def _share(
    model: HookedModel, task: TaskFamily, episodes: Episodes, heads: Sequence[Component], wanted: Tensor
) -> tuple[Tensor, Tensor]:
    """Attention from items to the labels of wanted items, mean over the items that want any."""
    found = task.labelled(episodes)
    assert found is not None
    (seen,) = record(model, [episodes], list(dict.fromkeys(map(_pattern, heads))))
    asking = wanted.any(2).double()
    many = asking.sum(1).clamp(min=1)

    def read(attention: Tensor) -> Tensor:
        there = attention[:, found.item_at][:, :, found.label_at].double()
        return ((there * wanted).sum(2) * asking).sum(1) / many

    mask = task.mask if task.mask is not None else torch.ones(task.seq, task.seq, dtype=torch.bool)
    even = (mask.double() / mask.sum(1, keepdim=True)).to(episodes.tokens.device).expand(len(episodes.tokens), -1, -1)
    return torch.stack([read(seen.sites[_pattern(head)][:, head.head]) for head in heads]), read(even)


def _attention(name: str, heads: Sequence[Component], scores: Tensor, even: Tensor) -> Iterator[dict[str, Any]]:
    for head, own in zip(heads, scores, strict=True):
        for control, values in (("", own), (EVEN, even)):
            one = values.cpu().numpy()
            lo, hi = mean_interval(one)
            yield tables.row(
                name, float(one.mean()), lo=lo, hi=hi, site=_pattern(head), role="context", control=control, n=len(one),
                component=head.name, layer=head.layer, by="",
            )  # fmt: skip


# ---- ablations -------------------------------------------------------------------------------------------------------
def _ablated(
    model: HookedModel, task: TaskFamily, episodes: Episodes, heads: Sequence[Component], average: dict[str, Tensor],
    scores: dict[str, tuple[Tensor, Tensor]], seed: int,
) -> Iterator[dict[str, Any]]:  # fmt: skip
    composition = episodes.composition.cpu().numpy()

    def score(without: Sequence[Component]) -> Any:
        answers = _without(model, episodes, without, average)
        error, weight = (part.double().cpu().numpy() for part in task.errors(answers, episodes.targets))
        return summarise(error, weight, composition)

    readout: dict[str, Any] = {"site": "output", "role": "readout", "n": len(composition)}
    whole = score([])
    lo, hi = whole.interval
    yield tables.row("score", whole.score, lo=lo, hi=hi, component="", layer=-1, by="", **readout)
    for by, (found, _) in scores.items():
        mean = found.mean(1).tolist()
        chosen = [head for head, value in zip(heads, mean, strict=True) if value >= COUNTS]
        chosen = chosen or [heads[int(np.argmax(mean))]]
        known = {"component": " ".join(head.name for head in chosen), "layer": -1, "by": by, **readout}
        own = score(chosen)
        lo, hi = own.interval
        yield tables.row("score without heads", own.score, lo=lo, hi=hi, **known)
        others = [score(drawn).score for drawn in _matched(heads, chosen, seed)]
        if others:
            mean_of = float(np.mean(others))
            yield tables.row("score without heads", mean_of, lo=min(others), hi=max(others), control=MATCHED, **known)


def _without(model: HookedModel, episodes: Episodes, heads: Sequence[Component], average: dict[str, Tensor]) -> Tensor:
    """The prediction where each of these heads holds its mean."""

    def ablate(here: Sequence[Component]) -> Any:
        def edit(activation: Tensor) -> Tensor:
            for head in here:
                activation = head.put(activation, average[head.hook_name].expand_as(activation))
            return activation

        return edit

    sites = {name: ablate([head for head in heads if head.hook_name == name]) for name in {h.hook_name for h in heads}}
    with torch.no_grad():
        return intervene(model, episodes, sites) if sites else model(episodes.tokens)


def _matched(heads: Sequence[Component], chosen: Sequence[Component], seed: int) -> list[list[Component]]:
    """Different sets of as many other heads, of the same layers as far as these have others."""
    rng = random.Random(f"matched heads/{seed}")
    found: dict[tuple[str, ...], list[Component]] = {}
    others = [head for head in heads if head not in chosen]
    if len(others) < len(chosen):
        return []
    for _ in range(10 * DRAWS):
        drawn: list[Component] = []
        for layer in sorted({head.layer for head in chosen}):
            here = [head for head in others if head.layer == layer]
            drawn += rng.sample(here, min(len(here), sum(head.layer == layer for head in chosen)))
        left = [head for head in others if head not in drawn]
        drawn += rng.sample(left, len(chosen) - len(drawn))
        found.setdefault(tuple(sorted(head.name for head in drawn)), drawn)
        if len(found) == DRAWS:
            break
    return list(found.values())


@torch.no_grad()
def _per_episode(model: HookedModel, task: TaskFamily, episodes: Episodes, split: str) -> pd.DataFrame:
    error, weight = (part.double().cpu().numpy() for part in task.errors(model(episodes.tokens), episodes.targets))
    names = [task.composition_name(int(c)) for c in episodes.composition]
    return pd.DataFrame({"split": split, "composition": names, "score": 1 - error / weight})
