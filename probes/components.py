"""Which heads and MLPs carry the code to the answer?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from scipy.stats import spearmanr
from torch import Tensor

from compolens import tables
from compolens.activations.streams import draw
from compolens.foundation.configs import ConfigError, require
from compolens.hooks import HookedModel
from compolens.interventions.components import Component, Held, answers_of, attributed, components, exchanged, hold, shift
from compolens.interventions.interchange import check_renders, exchanged_factors, other_code
from compolens.measures.intervals import Scale, summarise
from compolens.measures.similarity import held_out_against_left_out, reliability, terms_of
from compolens.tasks.base import TaskFamily
from compolens.tasks.episodes import Episodes, stream
from compolens.zoo.folders import TrainedModel

version = 3  # raised whenever its numbers change

WHOLE, FACTOR = "whole code", "one factor"
"""What differs between an episode and its counterfactual."""
ESTIMATES = {"attribution": 1, "integrated attribution": None}
"""Estimate -> the points at which the gradient is taken (None: as many as the probe is asked for)."""

ANOTHER = "another code"
NO_THIRD = "not available: in no episode is the third code another than the counterfactual's and the base's own"

OF_ESTIMATES = (*ESTIMATES, "rank agreement", "share explained")
"""Metrics that the untrained control does not have."""
FEWEST = 3
"""Components that a rank correlation needs."""


class Pair(NamedTuple):
    """Episodes and their counterfactuals.

    Args:
        base: the episodes.
        other: their inputs under another code.
        third: their inputs under a third code (None: there is none).
    """

    base: Episodes
    other: Episodes
    third: Episodes | None


class Found(NamedTuple):
    """A share sum(part) / sum(weight) over episodes.

    Args:
        component: of which.
        metric: what.
        control: "" or which control.
        part: (batch,).
        weight: (batch,).
    """

    component: Component
    metric: str
    control: str
    part: np.ndarray
    weight: np.ndarray


def probe(trained: TrainedModel, *, episodes: int = 256, seed: int = 0, points: int = 5) -> tuple[pd.DataFrame, pd.DataFrame]:
    """What every head and MLP does to the answer, when it alone is exchanged or taken away.

    An episode (the base) and its counterfactual have the same inputs under two codes. One component's activation, at every
    position, is replaced in the base's run (activation patching, 2202.05262). Effects are shares of the model's own shift: the
    way from its answers to the base to its answers to the counterfactual. Logits count less their mean over the values.

    Args:
        trained: the trained model, with its run, task and folder.
        episodes: pairs of episodes per split, 2 or more; all of one split are one batch.
        seed: seed of the episodes, which are never those of a training, even with an equal seed.
        points: of the integrated estimate, 2 or more.

    Returns:
        The table, and rows per episode.

        - "effect": share of the shift that the component's exchange makes: 1 is all of it, 0 none, below 0 away from it.
          lo, hi: 95 % over compositions of the base. Column "counterfactual": the whole code differs, or one factor, where
          the family says what its factors are.
        - "attribution", "integrated attribution": first-order estimates of it (2310.10348; 2403.17806).
        - "mean ablation", "resample ablation": how much the score falls where the component holds its mean over episodes of
          training compositions, or what it holds in another episode.
        - "rank agreement": Spearman correlation of an estimate with the effect over components; "share explained": 1 - sum of
          squared differences / sum of squared effects. Column "estimate": of which.
        - "similarity", in the split ood: the correlation over components of effects on training and on held-out compositions,
          corrected for split-half reliability; it can exceed 1 by chance. In the split test: the median of the same number for
          training compositions that were left out, as many and nearest in error; lo, hi: their 95 % range. Beside them
          "mean error" (1 - score) of either and "reliability". Column "by": heads and MLPs, or heads alone.
        - control "another code": the activation of a third code is put in; episodes in which that is the code of the
          counterfactual or the base's own do not count, and where none is left, note says so instead of a number.
        - control "noise": the difference that is put in has its length, and a random direction.
        - control "untrained": the untrained control.

    Raises:
        ConfigError: the family cannot show the same inputs under two codes, or a number is too small.
        DoesNotApply: the model has no hook point of a head or an MLP.
    """
    require(episodes >= 2, f"episodes must be 2 or more, got {episodes}")
    require(points >= 2, f"points must be 2 or more, got {points}")
    task = trained.task
    check_renders(task)
    rows: list[dict] = []
    kept: list[pd.DataFrame] = []
    for control, model in trained.with_untrained_control():
        (training,) = draw(task, "test", episodes, f"{seed}/mean", trained.device, batch=episodes)
        parts = components(model, training.tokens)
        seen: list[pd.DataFrame] = []
        average = {name: held.mean(0, keepdim=True) for name, held in hold(model, training, parts).sites.items()}
        for split in ("test", "ood"):
            (base,) = draw(task, split, episodes, seed, trained.device, batch=episodes)
            for differs, pair in _pairs(task, base, seed).items():
                found = list(_effects(task, model, pair, parts, seed, controls=not control and differs == WHOLE))
                seen.append(_per_episode(task, model, pair.base, found).assign(split=split, counterfactual=differs))
                if not control:
                    found += _estimates(task, model, pair, parts, points)
                where = {"split": split, "counterfactual": differs}
                rows += [_row(each, pair.base, control, where) for each in found]
                rows += [] if control else _agreement(found, where)
            for each in _ablated(task, model, base, parts, average):
                rows.append(_row(each, base, control, {"split": split}))
        rows += _alike(pd.concat(seen, ignore_index=True), parts, control)
        kept += [] if control else seen
    asked = (row for row in rows if not row["control"] and row["metric"] not in OF_ESTIMATES)
    rows += tables.not_available(asked, trained.why_no_untrained_control)
    return pd.DataFrame(rows), pd.concat(kept, ignore_index=True)


def _pairs(task: TaskFamily, base: Episodes, seed: int) -> dict[str, Pair]:
    """What differs -> the pairs."""

    def under(shift: int) -> Episodes:
        return task.render({name: code.roll(shift, 0) for name, code in base.codes.items()}, base.inputs)

    found = {WHOLE: Pair(base, under(1), under(2))}
    try:
        pairs = exchanged_factors(task, base, 1, torch.Generator().manual_seed(stream(seed, "components", 0)))
    except ConfigError:  # the family names no factors, or no two of these episodes can exchange one
        return found
    return found | {FACTOR: Pair(pairs.base, pairs.wanted, None)}


def _effects(
    task: TaskFamily, model: HookedModel, pair: Pair, parts: list[Component], seed: int, controls: bool
) -> Iterator[Found]:
    own, other = hold(model, pair.base, parts), hold(model, pair.other, parts)
    goal = shift(task, own.prediction, other.prediction, pair.base.targets)
    third, apart = None, torch.ones_like(pair.base.composition, dtype=torch.bool)
    if controls and pair.third is not None:
        third = hold(model, pair.third, parts)
        apart = other_code(pair.third, pair.other) & other_code(pair.third, pair.base)
    rng = torch.Generator().manual_seed(stream(seed, "noise", 0))
    for part in parts:
        given = {"": other.sites[part.hook_name]}
        if third is not None:
            given[ANOTHER] = third.sites[part.hook_name]
        if controls:
            given["noise"] = _noise(part, own, other, rng)
        for control, activation in given.items():
            answers = answers_of(task, exchanged(model, pair.base, own, part, activation), pair.base.targets)
            counts = apart if control == ANOTHER else torch.ones_like(apart)
            yield Found(part, "effect", control, _array(goal.along(answers) * counts), _array(goal.weight * counts))


def _noise(part: Component, own: Held, other: Held, rng: torch.Generator) -> Tensor:
    """The base's activation plus a random direction, per episode as long as the difference that the exchange puts in."""
    here = own.sites[part.hook_name]
    difference = part.of(other.sites[part.hook_name] - here).flatten(1)
    random = torch.randn(here.shape, generator=rng).to(here)
    length = difference.norm(dim=1) / part.of(random).flatten(1).norm(dim=1)
    return here + random * length.view(-1, *[1] * (here.ndim - 1))


def _estimates(task: TaskFamily, model: HookedModel, pair: Pair, parts: list[Component], points: int) -> Iterator[Found]:
    own, other = hold(model, pair.base, parts), hold(model, pair.other, parts)
    goal = shift(task, own.prediction, other.prediction, pair.base.targets)
    for metric, fixed in ESTIMATES.items():
        if fixed is None and "blocks.0.hook_resid_pre" not in own.sites:
            continue
        found = attributed(model, task, pair.base, own, other, parts, goal, fixed or points)
        for part in parts:
            yield Found(part, metric, "", _array(found[part.name]), _array(goal.weight))


def _ablated(
    task: TaskFamily, model: HookedModel, base: Episodes, parts: list[Component], average: Mapping[str, Tensor]
) -> Iterator[Found]:
    own = hold(model, base, parts)
    before, weight = task.errors(own.prediction, base.targets)
    for part in parts:
        here = own.sites[part.hook_name]
        for metric, given in (
            ("mean ablation", average[part.hook_name].expand_as(here)),
            ("resample ablation", here.roll(1, 0)),
        ):
            after, _ = task.errors(exchanged(model, base, own, part, given), base.targets)
            yield Found(part, metric, "", _array(after - before), _array(weight))


def _agreement(found: list[Found], where: Mapping[str, Any]) -> Iterator[dict]:
    """How an estimate agrees with the effect, over components."""
    shares = {
        metric: np.array(
            [each.part.sum() / each.weight.sum() for each in found if (each.metric, each.control) == (metric, "")]
        )
        for metric in ("effect", *ESTIMATES)
    }
    effect = shares["effect"]
    for estimate in ESTIMATES:
        guess = shares[estimate]
        if len(guess) < FEWEST or not effect.any() or np.ptp(guess) == 0:
            continue  # nothing to compare
        agreement = {
            "rank agreement": float(spearmanr(guess, effect).statistic),
            "share explained": 1 - float(np.square(guess - effect).sum() / np.square(effect).sum()),
        }
        about: dict[str, Any] = {
            "site": "every component",
            "role": "all",
            "component": "",
            "layer": -1,
            "estimate": estimate,
            "by": "",
        }
        for metric, value in agreement.items():
            yield tables.row(metric, value, n=len(effect), **where, **about)


def _alike(seen: pd.DataFrame, parts: list[Component], control: str) -> Iterator[dict]:
    """Are effects on held-out compositions those on training ones, as far as these are alike among themselves?"""
    kinds = {"heads and MLPs": [part.name for part in parts], "heads alone": [p.name for p in parts if p.kind == "head"]}
    for differs, rows in seen.groupby("counterfactual", sort=False):
        for label, names in kinds.items():
            if len(names) < FEWEST:
                continue
            some = rows[rows["component"].isin(names)]
            train, held_out = (terms_of(some[some["split"] == split], names) for split in ("test", "ood"))
            found = held_out_against_left_out(train, held_out)
            known = found.null[np.isfinite(found.null)]
            if not len(known) or not np.isfinite(found.similarity):
                continue
            lo, hi = (float(end) for end in np.quantile(known, [0.025, 0.975]))
            about: dict[str, Any] = {
                "site": "every component",
                "role": "all",
                "component": "",
                "layer": -1,
                "estimate": "",
                "by": label,
            }
            about |= {"control": control, "counterfactual": str(differs)}
            yield tables.row("similarity", found.similarity, split="ood", n=len(held_out.compositions), **about)
            yield tables.row("similarity", found.left_out, lo=lo, hi=hi, split="test", n=len(known), **about)
            yield tables.row("mean error", found.error, split="ood", n=len(held_out.compositions), **about)
            yield tables.row("mean error", found.null_error, split="test", n=len(known), **about)
            yield tables.row("reliability", reliability(held_out), split="ood", n=len(held_out.compositions), **about)
            yield tables.row("reliability", reliability(train), split="test", n=len(train.compositions), **about)


def _row(found: Found, base: Episodes, control: str, where: Mapping[str, str]) -> dict:
    pooled = summarise(found.weight - found.part, found.weight, base.composition.cpu().numpy())
    lo, hi = pooled.interval_on(Scale.PLAIN)  # a share of the way may be below 0 and above 1
    part = found.component
    more: dict[str, Any] = {"counterfactual": "", "estimate": "", "by": ""} | dict(where)
    if found.control == ANOTHER and not found.weight.any():
        more["note"] = NO_THIRD
    return tables.row(
        found.metric, pooled.score, lo=lo, hi=hi, site=part.hook_name, role="all", control=found.control or control,
        n=len(found.part), component=part.name, layer=part.layer, **more,
    )  # fmt: skip


def _per_episode(task: TaskFamily, model: HookedModel, base: Episodes, found: list[Found]) -> pd.DataFrame:
    """A row per component and episode: the terms of its effect, and how well the base is answered."""
    with torch.no_grad():
        error, weight = (_array(part) for part in task.errors(model(base.tokens), base.targets))
    names = [task.composition_name(int(c)) for c in base.composition]
    common = {"episode": np.arange(len(names)), "composition": names, "score": 1 - error / weight}
    frames = []
    for each in found:
        if (each.metric, each.control) == ("effect", ""):
            terms = {"along": each.part, "shift": each.weight}
            frames.append(pd.DataFrame({"component": each.component.name, **common, **terms}))
    return pd.concat(frames, ignore_index=True)


def _array(values: Tensor) -> np.ndarray:
    return values.detach().double().cpu().numpy()
