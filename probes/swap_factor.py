"""Is one factor of the code re-used: swapped alone, does the answer become that of the recombined task?"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from compolens import tables
from compolens.activations.sites import Site, sites
from compolens.activations.streams import draw
from compolens.foundation.configs import DoesNotApply, require
from compolens.foundation.progress import progress
from compolens.hooks import HookedModel
from compolens.interventions.interchange import (
    Held,
    Pairs,
    Search,
    Subspace,
    answers_after,
    check_renders,
    exchanged_factors,
    held,
    learn,
    pooled,
    remaining,
    shown,
)
from compolens.tasks.base import TaskFamily
from compolens.tasks.episodes import stream
from compolens.zoo.folders import TrainedModel

version = 3  # raised whenever its numbers change
values_since = 3  # its values: since then only what is asked counts, and constants added to all logits do not

SOURCES = 8
MOST_COORDINATES = 8
PAIRS_PER_COORDINATE = 2
RANDOM_PAIRS = 64


class Fresh(NamedTuple):
    """Pairs of one split in one model; answers to the bases and to the counterfactual episodes themselves; the true answers
    under the source's whole code."""

    pairs: Pairs
    held: dict[str, Held]
    own: Tensor
    wanted: Tensor
    whole: Tensor


class Coordinates(NamedTuple):
    """A subspace with `rank` coordinates for each factor in `factors`, in this order."""

    subspace: Subspace
    rank: int
    factors: Tensor


def probe(
    trained: TrainedModel,
    *,
    episodes: int = 512,
    seed: int = 0,
    search_steps: int = 80,
    rank: int | None = None,
    draws: int = 20,
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """How well the answer becomes that of the recombined task when one factor of the code is swapped alone.

    Every factor gets coordinates of its own in a learned linear subspace (distributed alignment search, 2303.02536). Those of
    one factor, or of two where a part makes room for another, are taken from another episode. Base and source are of training
    compositions. The coordinates are learned where the recombined composition is one of training, and scored on fresh
    episodes.

    Args:
        trained: the trained model, with its run, task and folder.
        episodes: bases, and at most as many pairs per split.
        seed: seed of the episodes, which are never those of a training, even with an equal seed.
        search_steps: Adam steps of the search for a subspace, 1 or more, on 64 pairs each, per site.
        rank: coordinates per factor, 1 or more. By default 8, or as many as fill half the width.
        draws: draws of random coordinates, 2 or more; 20 give 5 % and 95 % quantiles.

    Returns:
        The table, and rows per pair (score at the chosen site). Split test: the recombined composition is one of training;
        ood: it is held out. `factor` says which one was swapped, or "all" pairs; `chosen` marks the site with the best score
        on further training compositions. lo, hi: 95 % over recombined compositions.

        - "score": of the edited answers, against the true answers of the recombined task, as the family scores (1 is perfect).
        - "recovered": share of the way from the base's answer to the model's answer to the recombined episode.
        - "recombined in neither": share of possible exchanges that lead to a composition in neither split; these are dropped.
        - controls "copied" (against the source's own answers), "base" (against the base's) and "whole source" (against the
          answers under the source's whole code).
        - controls "not swapped" (unedited answers) and "shown" (answers to the recombined episodes themselves).
        - control "untrained": the same search in the untrained control.
        - control "random coordinates": mean, 5 % and 95 % quantile over draws.
        - control "shuffled masks": the learned coordinates of the next factor instead.

    Raises:
        DoesNotApply: no exchange leads to a held-out composition, or the code has more factors than a site has room for.
        ConfigError: draws is below 2, search_steps below 1, or there are too few pairs for the rank.
    """
    require(
        draws >= 2 and search_steps >= 1, f"needs 2 draws and 1 step at least, got draws={draws}, search_steps={search_steps}"
    )
    task, model, models = trained.task, trained.model, dict(trained.with_untrained_control())
    check_renders(task)
    points = [site for site in sites(model) if site.layer > 0]
    (fit, _), (choose, _), (pairs, neither) = (
        _pairs(trained, episodes, f"{seed}/{use}") for use in ("fit", "choose", "score")
    )
    names = list(task.factors(fit["test"].base.codes))
    search = Search(steps=search_steps)
    found = {c: _learn_all(task, one, fit["test"], points, search, rank, episodes, seed) for c, one in models.items()}
    learned = found[""]
    kept_back = _fresh(task, model, choose["test"], list(learned))
    chosen = max(learned, key=lambda site: _value(task, model, kept_back, site, learned[site]))
    rows, kept = [_neither(neither) | {"n": episodes}], []
    for split in ("test", "ood"):
        fresh = _fresh(task, model, pairs[split], list(learned))
        there = {c: _fresh(task, one, pairs[split], list(learned)) for c, one in models.items() if c}
        rows += _references(task, fresh, split)
        for site, coordinates in progress(learned.items(), f"{split} episodes, swapped at site"):
            rows += _own(task, model, fresh, split, site, coordinates, names)
            rows += _controls(task, model, fresh, split, site, coordinates, draws, seed)
            for control, held_there in there.items():
                edited = _edited(models[control], held_there, site, found[control][site])
                rows += _row("score", task.errors(edited, fresh.pairs.wanted.targets), fresh, split, site, "all", control)
        kept.append(_episodes(task, model, fresh, split, chosen, learned[chosen]))
    own = (row for row in rows if row["control"] == "" and (row["metric"], row["factor"]) == ("score", "all"))
    rows += tables.not_available(own, trained.why_no_untrained_control, measured=("rank",))
    table = pd.DataFrame(rows)
    table["chosen"] = (table["site"] == chosen.hook_name) & (table["role"] == chosen.role)
    return table, pd.concat(kept, ignore_index=True)


# ---- pairs -----------------------------------------------------------------------------------------------------------
def _pairs(trained: TrainedModel, n: int, seed: str) -> tuple[dict[str, Pairs], float]:
    """split of the recombined composition -> at most n pairs of training episodes; and the share that leads to neither."""
    task = trained.task
    (episodes,) = draw(task, "train", n, seed, trained.device, batch=n)
    rng = torch.Generator(device=trained.device).manual_seed(stream(seed, "exchange", 0))
    found = exchanged_factors(task, episodes, SOURCES, rng)
    order = torch.randperm(len(found.mask), generator=torch.Generator().manual_seed(stream(seed, "order", 0)))
    parts = {}
    for split in ("test", "ood"):
        there = torch.isin(found.wanted.composition, torch.tensor(task.compositions(split), device=trained.device))
        if not bool(there.any()):
            raise DoesNotApply(
                f"none of {len(there)} exchanges of one factor of the code between training episodes of {type(task).__name__} "
                f"leads to {'a held-out' if split == 'ood' else 'another training'} composition; draw more episodes, or use a "
                "split that shares factors"
            )
        mine = order.to(trained.device)
        parts[split] = found.take(mine[there[mine]][:n])
    both = torch.tensor(task.compositions("train") + task.compositions("ood"), device=trained.device)
    return parts, float((~torch.isin(found.wanted.composition, both)).double().mean())


@torch.no_grad()
def _fresh(task: TaskFamily, model: HookedModel, pairs: Pairs, points: list[Site]) -> Fresh:
    there = shown(model, pairs, points)
    whole = task.render(pairs.source.codes, pairs.base.inputs).targets
    return Fresh(pairs, there.held, there.own, model(pairs.wanted.tokens), whole)


# ---- the search ------------------------------------------------------------------------------------------------------
def _learn_all(
    task: TaskFamily,
    model: HookedModel,
    pairs: Pairs,
    points: list[Site],
    search: Search,
    rank: int | None,
    episodes: int,
    seed: int,
) -> dict:
    """site -> coordinates, wherever there is room for one for every factor that is ever exchanged."""
    factors = pairs.mask.any(0).nonzero()[:, 0]
    there, found = held(model, pairs, points), {}
    for site in progress(points, "searched at site"):
        width = there[site.hook_name].base.shape[-1]
        size = max(1, min(MOST_COORDINATES, width // (2 * len(factors)))) if rank is None else rank
        if size * len(factors) > width:
            continue
        _check_enough(len(pairs.mask), size * len(factors), size, episodes)
        mask = pairs.mask[:, factors].repeat_interleave(size, dim=1)
        seeds = f"{seed}/{site.hook_name}/{site.role}"
        basis = learn(model, task, pairs, site, there[site.hook_name], mask, search, seeds)
        found[site] = Coordinates(basis, size, factors)
    if not found:
        widths = max(side.base.shape[-1] for side in there.values())
        raise DoesNotApply(
            f"the code has {len(factors)} factors that are exchanged, with {rank or 1} coordinates each, but no site is "
            f"wider than {widths}; ask for a lower rank"
        )
    return found


def _check_enough(pairs: int, coordinates: int, rank: int, episodes: int) -> None:
    """Each coordinate has to be swapped in some pairs, or the search fits what it happens to see."""
    needed = PAIRS_PER_COORDINATE * coordinates
    share = min((pairs + 2) / (episodes + 4), 1.0)  # of episodes that make a pair, taken two standard errors lower
    least = max(share - 2 * math.sqrt(share * (1 - share) / (episodes + 4)), share / 4)
    require(
        pairs >= needed,
        f"rank={rank} asks for {coordinates} coordinates and so for at least {needed} pairs, but {episodes} episodes give "
        f"{pairs}; type --episodes {math.ceil(needed / least)}, or a lower --rank",
    )


def _edited(model: HookedModel, fresh: Fresh, site: Site, coordinates: Coordinates, shift: int = 0) -> Tensor:
    """The answers with the factors' coordinates swapped; shift: those of the factor that many further on."""
    swapped = fresh.pairs.mask[:, coordinates.factors].roll(shift, 1)
    mask = swapped.repeat_interleave(coordinates.rank, dim=1)
    return answers_after(model, fresh.pairs, site, fresh.held[site.hook_name], coordinates.subspace.basis, mask)


def _value(task: TaskFamily, model: HookedModel, fresh: Fresh, site: Site, coordinates: Coordinates) -> float:
    return task.score(_edited(model, fresh, site, coordinates), fresh.pairs.wanted.targets)


# ---- rows ------------------------------------------------------------------------------------------------------------
def _row(
    metric: str,
    result: tuple[Tensor, Tensor],
    fresh: Fresh,
    split: str,
    site: Site,
    factor: str,
    control: str,
    which: Tensor | None = None,
) -> list[dict[str, Any]]:
    """A pooled score with its interval over recombined compositions; no row where there is nothing to score."""
    chosen = slice(None) if which is None else which
    error, weight = (part[chosen] for part in result)
    found = pooled((error, weight), fresh.pairs.wanted.composition[chosen])
    if found is None:
        return []
    where: dict[str, Any] = {"split": split, "site": site.hook_name, "role": site.role, "control": control, "n": found.n}
    return [tables.row(metric, found.value, lo=found.lo, hi=found.hi, **where, layer=site.layer, factor=factor)]


def _neither(share: float) -> dict[str, Any]:
    where = {"split": "train", "site": "tokens", "role": "all", "layer": 0, "factor": "all", "control": ""}
    return {"metric": "recombined in neither", "value": share, "lo": np.nan, "hi": np.nan, **where}


def _references(task: TaskFamily, fresh: Fresh, split: str) -> list[dict[str, Any]]:
    """What the unedited answers, and those to the recombined episodes themselves, score."""
    tokens, wanted = Site(0, "tokens", "all"), fresh.pairs.wanted.targets
    rows = _row("score", task.errors(fresh.own, wanted), fresh, split, tokens, "all", "not swapped")
    return rows + _row("score", task.errors(fresh.wanted, wanted), fresh, split, tokens, "all", "shown")


def _own(
    task: TaskFamily, model: HookedModel, fresh: Fresh, split: str, site: Site, coordinates: Coordinates, names: list[str]
) -> list[dict[str, Any]]:
    """The measurement itself, for all pairs and factor by factor, and its rivals."""
    edited = _edited(model, fresh, site, coordinates)
    results = {
        "score": task.errors(edited, fresh.pairs.wanted.targets),
        "recovered": remaining(edited, fresh.own, fresh.wanted, task.answers, fresh.pairs.base.targets),
    }
    rows = []
    for metric, result in results.items():
        rows += _row(metric, result, fresh, split, site, "all", "")
        for number in coordinates.factors.tolist():
            swapped = fresh.pairs.mask[:, number]
            if bool(swapped.any()):
                rows += _row(metric, result, fresh, split, site, names[number], "", swapped)
    rivals = {"copied": fresh.pairs.source.targets, "base": fresh.pairs.base.targets, "whole source": fresh.whole}
    for control, targets in rivals.items():
        rows += _row("score", task.errors(edited, targets), fresh, split, site, "all", control)
    return [row | {"rank": coordinates.rank} for row in rows]


def _controls(
    task: TaskFamily, model: HookedModel, fresh: Fresh, split: str, site: Site, coordinates: Coordinates, draws: int, seed: int
) -> list[dict[str, Any]]:
    """The next factor's coordinates instead; then random ones, on the first pairs."""
    wanted, rows = fresh.pairs.wanted.targets, []
    if len(coordinates.factors) > 1:
        edited = _edited(model, fresh, site, coordinates, shift=1)
        rows += _row("score", task.errors(edited, wanted), fresh, split, site, "all", "shuffled masks")
    some = torch.arange(min(RANDOM_PAIRS, len(wanted)), device=wanted.device)
    there = Held(*(side[some] for side in fresh.held[site.hook_name]))
    few = fresh._replace(pairs=fresh.pairs.take(some), held={site.hook_name: there})
    rng = torch.Generator().manual_seed(stream(f"{seed}/{site.hook_name}/{site.role}", "random", 0))
    d, k = coordinates.subspace.basis.shape
    values = []
    for _ in range(draws):
        basis = Subspace(Subspace.random(d, k, rng).basis.to(wanted.device))
        values.append(_value(task, model, few, site, coordinates._replace(subspace=basis)))
    lo, hi = np.quantile(values, [0.05, 0.95])
    where = {"split": split, "site": site.hook_name, "role": site.role, "layer": site.layer, "factor": "all"}
    found = {"value": float(np.mean(values)), "lo": lo, "hi": hi, "control": "random coordinates", "n": len(some)}
    return [row | {"rank": coordinates.rank} for row in [*rows, {"metric": "score", **found, **where}]]


def _episodes(
    task: TaskFamily, model: HookedModel, fresh: Fresh, split: str, site: Site, coordinates: Coordinates
) -> pd.DataFrame:
    """Every pair's score at the chosen site."""
    error, weight = task.errors(_edited(model, fresh, site, coordinates), fresh.pairs.wanted.targets)
    known = weight > 0
    names = [task.composition_name(int(c)) for c in fresh.pairs.wanted.composition[known].tolist()]
    where = {"split": split, "site": site.hook_name, "role": site.role, "layer": site.layer}
    return pd.DataFrame({**where, "composition": names, "score": (1 - error[known] / weight[known]).cpu().numpy()})
