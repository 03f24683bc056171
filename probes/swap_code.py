"""Does the answer follow the code when another episode's is put in its place?"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from compolens import tables
from compolens.activations.sites import Site, positions, put, sites
from compolens.activations.streams import draw
from compolens.foundation.configs import DoesNotApply, require
from compolens.foundation.progress import progress
from compolens.hooks import HookedModel
from compolens.interventions.interchange import (
    BATCH,
    Held,
    Pairs,
    Search,
    Subspace,
    answers_after,
    check_renders,
    held,
    interchange,
    learn,
    pooled,
    remaining,
    shown,
    whole_codes,
)
from compolens.interventions.natural import directions, distances, state
from compolens.interventions.oracles import code_features
from compolens.interventions.simple_bases import NEURONS, norm_matched, random_neurons, simple_bases
from compolens.measures.subspaces import split_by_reader
from compolens.tasks.base import TaskFamily
from compolens.tasks.episodes import stream
from compolens.zoo.folders import TrainedModel

version = 4  # raised whenever its numbers change
values_since = 4  # its values: since then only what is asked counts, and constants added to all logits do not

RANKS = (1, 2, 4, 8, 16)
RANDOM_PAIRS = 64
SIMPLE_PAIRS = 128
"""Pairs of simple bases: enough for two digits, and no slower for it."""


class Fresh(NamedTuple):
    """Pairs of one split in one model: what is held at every site, and the answers to bases, sources and counterfactuals."""

    pairs: Pairs
    held: dict[str, Held]
    own: Tensor
    copied: Tensor
    wanted: Tensor


def probe(
    trained: TrainedModel,
    *,
    episodes: int = 512,
    seed: int = 0,
    search_steps: int = 80,
    draws: int = 20,
    all_sites: bool = False,
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """How far the answer follows the code when another episode's is put in its place, site by site.

    Two episodes (base, source) have different codes and different inputs. First everything at a site is exchanged, then only a
    learned linear subspace of rank 1, 2, 4, 8 or 16 (distributed alignment search, 2303.02536). The counterfactual episode has
    the base's inputs under the source's code. Subspaces are learned on training compositions and nested: the first r
    coordinates serve as rank r.

    Args:
        trained: the trained model, with its run, task and folder.
        episodes: pairs per split, and for learning, 4 or more.
        seed: seed of the episodes, which are never those of a training, even with an equal seed.
        search_steps: Adam steps of the search for a subspace, 1 or more, on 64 pairs each, per site.
        draws: random subspaces, 2 or more; 20 give 5 % and 95 % quantiles.
        all_sites: measure controls at every site. By default only at two that are chosen on training compositions: the best,
            and the best at tokens not among its.

    Returns:
        The table, and rows per episode (recovered, at two sites chosen on training compositions). `rank` is how many
        coordinates were replaced (the width: all of them); `chosen` marks the two sites. Split test: both episodes from
        training compositions; ood: both from held-out ones. lo, hi: 95 % over compositions of the base.

        - "recovered": share of the way from the base's answer to the model's answer to the counterfactual episode: 1 is all of
          it, 0 none, below 0 away from it. The whole context at layer 0 need not reach 1: the source's examples have other
          inputs.
        - "lost": how far the answer leaves the base's, in shares of that distance; may exceed 1.
        - "score": of the edited answers, against the true counterfactual.
        - "share of full": recovered, over that of the whole site, where the latter is above 0.1.
        - controls "copied" (did the answer move to the source's own, to other questions?), "base" (did nothing happen?) and
          "shown" (the score on the counterfactual episodes themselves).
        - control "untrained": the same search, at the same sites, in the untrained control.
        - control "shuffled counterfactuals": the search with answers permuted.
        - control "random subspace": mean, 5 % and 95 % quantile over draws.
        - control "norm-matched random": at the largest rank, the same subspaces, and every state moved along them as far as
          the learned subspace moves it. What this recovers comes of moving the state at all.
        - controls "mean difference", "readout" and "neurons": bases that need no search, from training compositions: of
          compositions' mean states, of a ridge from state to code, and the coordinates that vary most with the code. Control
          "random neurons": as many other coordinates, at the largest rank; mean, 5 % and 95 % quantile over draws.
        - control "least divergent half": the pairs whose edited states lie nearest to natural ones.
        - "divergence": mean distance of edited states from the nearest natural state of training compositions, in standard
          deviations per axis (2511.04638); control "natural": of the bases' own states. `directions`: "all", "sensitive"
          (those that answers depend on) or "rest".
        - controls "row space only" and "null space only": what of the subspace the next linear map reads, and what it does
          not. An effect of the latter alone is no use of the code (2311.17030).

    Raises:
        DoesNotApply: the family cannot show the same inputs under another code.
        ConfigError: episodes is below 4, draws below 2, or search_steps below 1.
    """
    require(episodes >= 4, f"episodes must be 4 or more, got {episodes}")
    require(
        draws >= 2 and search_steps >= 1, f"needs 2 draws and 1 step at least, got draws={draws}, search_steps={search_steps}"
    )
    task, model = trained.task, trained.model
    check_renders(task)
    points = sites(model)
    fit, choose = (_pairs(trained, "train", n, f"{seed}/{use}") for n, use in ((episodes, "fit"), (episodes // 2, "choose")))
    pairs = {split: _pairs(trained, split, episodes, seed) for split in ("test", "ood")}
    fresh = {split: _fresh(model, part, points) for split, part in pairs.items()}
    search = Search(steps=search_steps)
    known = held(model, fit, points)
    learned = _search(task, model, fit, points, known, search, seed)
    chosen = _two_best(task, model, _fresh(model, choose, points), learned)
    controlled = list(learned) if all_sites else chosen
    shuffled = _search(task, model, _shuffled(fit, seed), controlled, known, search, seed)
    untrained, in_untrained = dict(trained.with_untrained_control()).get("untrained"), {}
    if untrained is not None:
        in_untrained = _search(task, untrained, fit, controlled, held(untrained, fit, controlled), search, seed)
    beside = {site: _beside(task, model, site, fit, known[site.hook_name].base) for site in controlled}
    rows, kept = [], []
    for split, part in fresh.items():
        rows += _shown(task, part, split)
        for site in progress(points, f"{split} episodes, swapped at site"):
            rows += _curve(task, model, part, split, site, learned.get(site), "")
        there = None if untrained is None else _fresh(untrained, pairs[split], controlled)
        for site in controlled:
            if untrained is not None and there is not None:
                rows += _curve(task, untrained, there, split, site, in_untrained[site], "untrained")
            rows += _curve(task, model, part, split, site, shuffled[site], "shuffled counterfactuals", full=False)
            rows += _parts(task, model, part, split, site, learned[site])
            rows += _random(task, model, part, split, site, learned[site], draws, seed)
            rows += _simple(task, model, part, split, site, beside[site].bases, draws)
            rows += _divergence(task, model, part, split, site, beside[site], learned[site])
        kept += [_episodes(task, model, part, split, site, learned[site]) for site in chosen]
    searched = {(site.hook_name, site.role) for site in controlled}
    own = (row for row in rows if row["control"] == "" and row["metric"] in ("recovered", "score"))
    own = (row for row in own if (row["site"], row["role"]) in searched)
    rows += tables.not_available(own, trained.why_no_untrained_control)
    table = pd.DataFrame(rows)
    names = {(site.hook_name, site.role) for site in chosen}
    table["directions"] = table["directions"].fillna("")
    table["chosen"] = [(hook_name, role) in names for hook_name, role in zip(table["site"], table["role"], strict=True)]
    return table, pd.concat(kept, ignore_index=True)


# ---- pairs and searches ----------------------------------------------------------------------------------------------
def _pairs(trained: TrainedModel, split: str, n: int, seed: int | str) -> Pairs:
    (episodes,) = draw(trained.task, split, n, seed, trained.device, batch=n)
    return whole_codes(trained.task, episodes)


def _shuffled(pairs: Pairs, seed: int) -> Pairs:
    """The same pairs, each with the counterfactual answers of another one."""
    order = torch.randperm(len(pairs.mask), generator=torch.Generator().manual_seed(stream(seed, "shuffled", 0)))
    wanted = pairs.wanted._replace(targets=pairs.wanted.targets[order.to(pairs.mask.device)])
    return pairs._replace(wanted=wanted)


@torch.no_grad()
def _fresh(model: HookedModel, pairs: Pairs, points: list[Site]) -> Fresh:
    return Fresh(pairs, *shown(model, pairs, points), model(pairs.wanted.tokens))


def _search(
    task: TaskFamily,
    model: HookedModel,
    pairs: Pairs,
    points: list[Site],
    there: dict[str, Held],
    search: Search,
    seed: int,
) -> dict[Site, Subspace]:
    """One nested search per site behind the embedding (replacing that is replacing the tokens); every pair has one rank."""
    found = {}
    for site in progress(points, "searched at site"):
        ranks = _ranks(there[site.hook_name].base.shape[-1])
        if site.layer > 0 and ranks:
            each = torch.tensor(ranks, device=pairs.mask.device)[torch.arange(len(pairs.mask)) % len(ranks)]
            mask = torch.arange(ranks[-1], device=each.device) < each[:, None]
            found[site] = learn(
                model, task, pairs, site, there[site.hook_name], mask, search, f"{seed}/{site.hook_name}/{site.role}"
            )
    return found


def _ranks(width: int) -> list[int]:
    return [rank for rank in RANKS if rank < width]


def _two_best(task: TaskFamily, model: HookedModel, fresh: Fresh, learned: dict[Site, Subspace]) -> list[Site]:
    """By what the largest learned subspace recovers; the second among sites of other tokens, if there are any."""

    def value(site: Site) -> float:
        edited = answers_after(model, fresh.pairs, site, fresh.held[site.hook_name], learned[site].basis)
        error, weight = remaining(edited, fresh.own, fresh.wanted, task.answers, fresh.pairs.base.targets)
        return float((error.sum() / weight.sum()).nan_to_num(1.0))

    order = sorted(learned, key=value)
    first = order[0]
    others = [site for site in order[1:] if not _overlap(model, first, site)] or order[1:]
    return [first, *others[:1]]


def _overlap(model: HookedModel, one: Site, other: Site) -> bool:
    if "all" in (one.role, other.role):
        return one.role == other.role
    first, second = positions(model, one.role), positions(model, other.role)
    return bool(set(first) & set(second))  # type: ignore[arg-type]  # lists, since neither role is "all"


# ---- rows ------------------------------------------------------------------------------------------------------------
def _row(
    metric: str, result: tuple[Tensor, Tensor], fresh: Fresh, split: str, site: Site, rank: int, control: str
) -> list[dict[str, Any]]:
    """A pooled score with its interval over the bases' compositions; no row where there is nothing to move."""
    found = pooled(result, fresh.pairs.base.composition)
    if found is None:
        return []
    value, lo, hi, n = found
    if metric == "lost":
        value, lo, hi = 1 - value, 1 - hi, 1 - lo
    where: dict[str, Any] = {"split": split, "site": site.hook_name, "role": site.role, "control": control, "n": n}
    return [tables.row(metric, value, lo=lo, hi=hi, **where, layer=site.layer, rank=rank)]


def _curve(
    task: TaskFamily,
    model: HookedModel,
    fresh: Fresh,
    split: str,
    site: Site,
    subspace: Subspace | None,
    control: str,
    full: bool = True,
) -> list[dict[str, Any]]:
    """Rows of a site at every rank; the rivals and the share of the whole site only for the measurement itself."""
    rows: list[dict[str, Any]] = []
    there, width = fresh.held[site.hook_name], fresh.held[site.hook_name].base.shape[-1]
    ranks = ([width] if full else []) + ([] if subspace is None else _ranks(there.base.shape[-1]))
    for rank in ranks:
        basis = None if subspace is None or rank == width else subspace.basis[:, :rank]
        edited = answers_after(model, fresh.pairs, site, there, basis)
        at, base = (fresh, split, site, rank), fresh.pairs.base.targets
        rows += _row("recovered", remaining(edited, fresh.own, fresh.wanted, task.answers, base), *at, control)
        rows += _row("score", task.errors(edited, fresh.pairs.wanted.targets), *at, control)
        if control == "":
            distance, way = remaining(edited, fresh.wanted, fresh.own, task.answers, base)
            rows += _row("lost", (distance, way), *at, "")
            rows += _row("recovered", remaining(edited, fresh.own, fresh.copied, task.answers, base), *at, "copied")
            rows += _row("score", task.errors(edited, fresh.pairs.source.targets), *at, "copied")
            rows += _row("score", task.errors(edited, fresh.pairs.base.targets), *at, "base")
    recovered = [row for row in rows if row["metric"] == "recovered" and row["control"] == control]
    if control == "" and recovered and recovered[0]["value"] > 0.1:
        whole = recovered[0]["value"]
        rows += [
            row | {"metric": "share of full", "value": row["value"] / whole, "lo": np.nan, "hi": np.nan} for row in recovered
        ]
    return rows


def _shown(task: TaskFamily, fresh: Fresh, split: str) -> list[dict[str, Any]]:
    site = Site(0, "tokens", "all")
    result = task.errors(fresh.wanted, fresh.pairs.wanted.targets)
    return _row("score", result, fresh, split, site, 0, "shown")


def _parts(
    task: TaskFamily, model: HookedModel, fresh: Fresh, split: str, site: Site, subspace: Subspace
) -> list[dict[str, Any]]:
    """What of the largest learned subspace its linear reader sees, and what it does not, each put in alone."""
    basis, read, rows = subspace.basis, model.reader(*site), []
    parts = (None, None) if read is None else split_by_reader(basis, read)
    for control, part in zip(("row space only", "null space only"), parts, strict=True):
        if part is None:
            where = {"split": split, "site": site.hook_name, "role": site.role, "layer": site.layer, "rank": basis.shape[1]}
            note = "not available: no single linear map reads this site"
            rows.append({"metric": "recovered", **where, "control": control, "n": len(fresh.own), "note": note})
            continue
        edited = answers_after(model, fresh.pairs, site, fresh.held[site.hook_name], basis, into=part.to(basis))
        result = remaining(edited, fresh.own, fresh.wanted, task.answers, fresh.pairs.base.targets)
        rows += _row("recovered", result, fresh, split, site, basis.shape[1], control)
    return rows


def _random(
    task: TaskFamily, model: HookedModel, fresh: Fresh, split: str, site: Site, learned: Subspace, draws: int, seed: int
) -> Iterator[dict[str, Any]]:
    """Mean and quantiles over random subspaces, on the first pairs: exchanged, and moved along as far as the learned one."""
    some = _some(fresh, RANDOM_PAIRS)
    there = some.held[site.hook_name]
    ranks, where = _ranks(there.base.shape[-1]), positions(model, site.role)
    exchanged, moved = [], []
    rng = torch.Generator().manual_seed(stream(f"{seed}/{site.hook_name}/{site.role}", "random", 0))
    for _ in range(draws):
        basis = Subspace.random(there.base.shape[-1], ranks[-1], rng).basis.to(there.base)
        for rank in ranks:
            edited = answers_after(model, some.pairs, site, there, basis[:, :rank])
            exchanged.append(_share(task, edited, some))
        with torch.no_grad():
            as_far = norm_matched(there, where, learned.basis, basis)
            moved.append(_share(task, put(model, some.pairs.base.tokens, site, as_far), some))
    for rank, found in zip(ranks, np.array(exchanged).reshape(draws, -1).T, strict=True):
        yield _quantiles(found, "random subspace", split, site, rank, len(some.own))
    yield _quantiles(np.array(moved), "norm-matched random", split, site, ranks[-1], len(some.own))


def _some(fresh: Fresh, n: int) -> Fresh:
    """The first pairs, n of them at most."""
    first = torch.arange(min(n, len(fresh.own)), device=fresh.own.device)
    there = {name: Held(*(side[first] for side in one)) for name, one in fresh.held.items()}
    return Fresh(fresh.pairs.take(first), there, fresh.own[first], fresh.copied[first], fresh.wanted[first])


def _share(task: TaskFamily, edited: Tensor, fresh: Fresh) -> float:
    error, weight = remaining(edited, fresh.own, fresh.wanted, task.answers, fresh.pairs.base.targets)
    return float(1 - error.sum() / weight.sum())


def _quantiles(values: np.ndarray, control: str, split: str, site: Site, rank: int, n: int) -> dict[str, Any]:
    lo, hi = np.quantile(values, [0.05, 0.95])
    where = {"split": split, "site": site.hook_name, "role": site.role, "layer": site.layer, "rank": rank}
    return {"metric": "recovered", "value": values.mean(), "lo": lo, "hi": hi, **where, "control": control, "n": n}


class Beside(NamedTuple):
    """What training compositions tell of a site, whatever is exchanged there.

    Args:
        natural: (n, d) their states.
        ways: directions -> (d, r) along which distances from these are taken.
        bases: name -> (d, rank) that need no search.
    """

    natural: Tensor
    ways: dict[str, Tensor | None]
    bases: dict[str, Tensor]


def _beside(task: TaskFamily, model: HookedModel, site: Site, fit: Pairs, known: Tensor) -> Beside:
    """From what stands at a site's hook point, (n, pos, d), in the episodes that subspaces are fitted on."""
    natural, few = state(model, known, site), slice(0, BATCH)
    ways = directions(model, task, site, fit.base.take(torch.arange(len(fit.mask))[few]), known[few])
    most = _ranks(known.shape[-1])[-1]
    return Beside(natural, ways, simple_bases(natural, _codes(task, fit), fit.base.composition, most))


def _simple(
    task: TaskFamily, model: HookedModel, fresh: Fresh, split: str, site: Site, bases: dict[str, Tensor], draws: int
) -> list[dict[str, Any]]:
    """Bases that need no search, at every rank that they have."""
    some, rows = _some(fresh, SIMPLE_PAIRS), []
    there = some.held[site.hook_name]
    ranks = _ranks(there.base.shape[-1])
    for name, basis in bases.items():
        for rank in sorted({min(rank, basis.shape[1]) for rank in ranks}):
            edited = answers_after(model, some.pairs, site, there, basis[:, :rank].to(there.base))
            result = remaining(edited, some.own, some.wanted, task.answers, some.pairs.base.targets)
            rows += _row("recovered", result, some, split, site, rank, name)
    taken = bases[NEURONS].argmax(0).tolist()
    few, values = _some(fresh, RANDOM_PAIRS), []
    for draw_seed in range(draws):
        basis = random_neurons(len(bases[NEURONS]), len(taken), draw_seed, taken).to(there.base)
        edited = answers_after(model, few.pairs, site, few.held[site.hook_name], basis)
        values.append(_share(task, edited, few))
    return [*rows, _quantiles(np.array(values), "random neurons", split, site, len(taken), len(few.own))]


def _codes(task: TaskFamily, fit: Pairs) -> Tensor:
    """(n, width): the factors of the codes; which composition it is, where the family names no factors."""
    try:
        return code_features(task, fit.base.codes)
    except DoesNotApply:
        return torch.nn.functional.one_hot(fit.base.composition.unique(return_inverse=True)[1]).double()


def _divergence(
    task: TaskFamily,
    model: HookedModel,
    fresh: Fresh,
    split: str,
    site: Site,
    beside: Beside,
    learned: Subspace,
) -> list[dict[str, Any]]:
    """How far exchanged states lie from natural ones, and what is recovered where they lie least far."""
    there, rows, width = fresh.held[site.hook_name], [], fresh.held[site.hook_name].base.shape[-1]
    at: dict[str, Any] = {"split": split, "site": site.hook_name, "role": site.role, "n": len(fresh.own)}

    def far(states: Tensor, rank: int, control: str) -> Tensor:
        found = distances(beside.natural, states, beside.ways)
        for name, one in found.items():
            more: dict[str, Any] = {"layer": site.layer, "rank": rank, "directions": name}
            rows.append(tables.row("divergence", float(one.mean()), **at, control=control, **more))
        return found["all"]

    far(state(model, there.base, site), 0, "natural")
    for rank, basis in ((learned.basis.shape[1], learned.basis), (width, None)):
        distance = far(state(model, interchange(there, positions(model, site.role), basis), site), rank, "")
        half = distance <= distance.median()
        near = Fresh(fresh.pairs.take(half), {site.hook_name: Held(*(side[half] for side in there))},
                     fresh.own[half], fresh.copied[half], fresh.wanted[half])  # fmt: skip
        edited = answers_after(model, near.pairs, site, near.held[site.hook_name], basis)
        result = remaining(edited, near.own, near.wanted, task.answers, near.pairs.base.targets)
        rows += _row("recovered", result, near, split, site, rank, "least divergent half")
    return rows


def _episodes(task: TaskFamily, model: HookedModel, fresh: Fresh, split: str, site: Site, subspace: Subspace) -> pd.DataFrame:
    """Every episode's recovered share at a chosen site, for the whole site and for the largest learned subspace."""
    parts, there = [], fresh.held[site.hook_name]
    for rank, basis in ((there.base.shape[-1], None), (subspace.basis.shape[1], subspace.basis)):
        edited = answers_after(model, fresh.pairs, site, there, basis)
        error, weight = remaining(edited, fresh.own, fresh.wanted, task.answers, fresh.pairs.base.targets)
        known = weight > 0
        names = [task.composition_name(int(c)) for c in fresh.pairs.base.composition[known].tolist()]
        score = (1 - error[known] / weight[known]).cpu().numpy()
        where = {"split": split, "site": site.hook_name, "role": site.role, "layer": site.layer, "rank": rank}
        parts.append(pd.DataFrame({**where, "composition": names, "score": score}))
    return pd.concat(parts, ignore_index=True)
