"""Does the answer suffer when the code is erased, and does the code come back downstream?"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from compolens import tables
from compolens.activations.sites import EVERYWHERE, ROWS, Site, chained, positions, put, residual_sites, sites
from compolens.activations.streams import BATCH, draw, intervene
from compolens.foundation.configs import require
from compolens.foundation.progress import progress
from compolens.hooks import HookedModel
from compolens.interventions.oracles import code_features
from compolens.measures.erasure import Eraser, orthogonal_erasers, variance_matched_erasers, whitened_erasers
from compolens.measures.intervals import Scale, summarise
from compolens.measures.readouts import PENALTIES, Moments, RidgeReadout, add_by_group, decoded_r2, leave_groups_out
from compolens.tasks.base import TaskFamily
from compolens.tasks.episodes import Episodes
from compolens.zoo.folders import TrainedModel

version = 3  # raised whenever its numbers change
values_since = 1  # its values; versions 2 and 3 changed intervals alone

FOLDS = 6
"""Of training compositions, for choosing a penalty."""
NOTHING, ONE, ON = "nothing", "one layer", "from here on"
RANDOM = {"orthogonal": orthogonal_erasers, "whitened": whitened_erasers, "variance-matched": variance_matched_erasers}


Key = tuple[Site | None, str]
"""One run of the model: the first site where the code is erased (None: nowhere), and the scope."""


Plan = dict[Key, dict[Site, Eraser]]
"""Which erasers each of these runs has."""


class Result(NamedTuple):
    """(3, n) error, weight and composition of every episode, its code (n, width), and reader -> what it reads (n, d)."""

    scores: np.ndarray
    code: Tensor
    read: dict[Site, Tensor]

    @property
    def composition(self) -> Tensor:
        return torch.from_numpy(self.scores[2]).long().to(self.code.device)


def probe(
    trained: TrainedModel, *, episodes: int = 256, seed: int = 0, draws: int = 20, all_sites: bool = False
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Score and readout after least-squares erasure (LEACE, 2306.03819) of the episode's factors, site by site.

    The code is erased at one layer, or from there on ("from here on"). Erasers are fitted on unedited single tokens of
    training episodes, pooled over a site's positions; none changes the activations' mean. An erasure without effect says
    nothing about a code that came back downstream.

    Args:
        trained: the trained model, with its run, task and folder.
        episodes: episodes drawn per split, 2 or more; more of them narrow the intervals.
        seed: seed of the episodes, which are never those of a training, even with an equal seed.
        draws: random subspaces of each kind, 1 or more; 20 give 5 % and 95 % quantiles.
        all_sites: draw random subspaces at every site. By default only at the two sites where erasure at one layer costs
            training episodes most, among those whose code is read at least half as well as the best site's.

    Returns:
        The table, and rows per episode (unedited score, and score with the code erased at the one layer where that costs
        training episodes most). Columns: `scope` ("one layer", "from here on", "nothing"), `rank` (directions an eraser takes
        out), `unedited` (the same number without erasure), `read_at` (where a readout reads). lo, hi: 95 % over compositions.

        - "score": with the code erased, as the family scores.
        - "drop": the score that this costs, unedited minus erased.
        - "r2 here": R² of the factors by a readout fitted anew on erased activations of training episodes, at the site itself
          (0 by construction); "r2 at the answer": where the answer is read; "r2 best downstream": at the later site where
          training compositions that were left out are read best.
        - controls "random orthogonal", "random whitened" (the eraser of an unrelated code) and "random variance-matched"
          (moves activations as far): random subspaces of the same rank; value is their mean, lo and hi their 5 % and 95 %
          quantiles.
        - control "shuffled codes", at every site: erasers fitted to other episodes' codes. A drop that this control reaches
          too is not the code's: where no code is, as in a query's own embedding, directions of noise are taken out.
        - control "untrained": everything in the untrained control.

    Raises:
        ConfigError: draws is below 1, or episodes below 2.
    """
    require(episodes >= 2, f"need at least 2 episodes, got {episodes}; type --episodes 256")
    require(draws >= 1, f"need at least one random subspace of each kind, got {draws}; type --draws 20")
    rows: list[dict] = []
    for control, model in trained.with_untrained_control():
        spots = sites(model)
        if not any(spot.role == "readout" for spot in spots):
            residual_sites(model)  # says that the stream is wanted, where the code comes back
        fitted, shuffled = _moments(trained, model, spots, episodes, f"{seed}/fit")
        plan = _plan(spots, {site: Eraser.from_moments(moments) for site, moments in fitted.items()})
        seeds = {"train": f"{seed}/fit", "test": f"{seed}/score", "ood": f"{seed}/score"}
        results = {split: _measure(trained, model, plan, spots, split, episodes, seeds[split]) for split in seeds}
        rows += _rows(plan, results, spots, control)
        if control == "":
            ranked = _ranked(plan, results["train"])
            unrelated = _plan(spots, {site: Eraser.from_moments(moments) for site, moments in shuffled.items()})
            rows += _shuffled_rows(trained, unrelated, results, episodes, seed)
            rows += _random_rows(trained, spots if all_sites else ranked[:2], fitted, results, (episodes, seed, draws))
            frame = _frame(trained, ranked[0], results)
    own = (row for row in rows if row["control"] == "")
    rows += tables.not_available(own, trained.why_no_untrained_control, measured=("rank", "unedited", "read_at"))
    return pd.DataFrame(rows), frame


# ---- fitting ---------------------------------------------------------------------------------------------------------
def _part(model: HookedModel, activation: Tensor, site: Site) -> torch.Tensor:
    """(batch, positions, d): the activation at the site's positions."""
    return activation[:, positions(model, site.role)].flatten(2)


def _moments(
    trained: TrainedModel, model: HookedModel, spots: list[Site], n: int, seed: str
) -> tuple[dict[Site, Moments], dict[Site, Moments]]:
    """site -> moments of (token, factors of its episode), and of another episode, over unedited training episodes."""
    totals: tuple[dict[Site, Moments], dict[Site, Moments]] = ({}, {})
    for batch in draw(trained.task, "train", n, seed, trained.device):
        z = code_features(trained.task, batch.codes)
        order = torch.randperm(len(z), generator=torch.Generator().manual_seed(len(z))).to(z.device)
        _, seen = _run(model, batch, {}, spots, {})
        for site in spots:
            x = _part(model, seen[site.hook_name], site)
            for code, total in zip((z, z[order]), totals, strict=True):
                new = Moments.of(x.flatten(0, 1), code.repeat_interleave(x.shape[1], dim=0))
                total[site] = total[site] + new if site in total else new
    return totals


def _plan(spots: list[Site], erasers: dict[Site, Eraser]) -> dict[Key, dict[Site, Eraser]]:
    """Nothing; every site alone; every site with the later ones of its role (of the union's: the last layer's readout)."""
    plan: dict[Key, dict[Site, Eraser]] = {(None, NOTHING): {}}
    for site in spots:
        plan[site, ONE] = {site: erasers[site]}
        last = max(p.layer for p in spots if p.role == "readout")
        later = [
            p for p in spots if p.layer > site.layer
            and (p.role == site.role or (site.role == EVERYWHERE and p.role == "readout" and p.layer == last))
        ]  # fmt: skip
        if later:
            plan[site, ON] = {p: erasers[p] for p in (site, *later)}
    return plan


def _readers(spots: list[Site], site: Site | None) -> list[Site]:
    """Where the code is read: at the site itself and at every later site of a single role; for no site, everywhere."""
    if site is None or not spots:
        return spots
    return [site, *(p for p in spots if p.layer > site.layer and p.role != EVERYWHERE)]


# ---- erasing ---------------------------------------------------------------------------------------------------------
@torch.no_grad()
def _run(
    model: HookedModel, batch: Episodes, erasers: dict[Site, Eraser], read: Iterable[Site], own: dict[str, Tensor]
) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """The prediction with the code erased, and what was seen from there on at the hook points to be read.

    own: site -> the batch's unedited activation, so that blocks before the first erasure need not be computed again."""
    rows = torch.arange(len(batch.tokens)).split(len(batch.tokens) if batch.tokens.is_cuda else ROWS)
    pieces = [_run_some(model, batch.tokens[some], erasers, read, own, some) for some in rows]
    seen = {name: torch.cat([more[name] for _, more in pieces]) for name in pieces[0][1]}
    return chained([prediction for prediction, _ in pieces]), seen


def _run_some(
    model: HookedModel,
    tokens: Tensor,
    erasers: dict[Site, Eraser],
    read: Iterable[Site],
    own: dict[str, Tensor],
    some: Tensor,
) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """As `_run`, of some of the batch's episodes."""
    seen: dict[str, torch.Tensor] = {}
    steps: dict[str, list[Callable]] = {}
    for site, eraser in erasers.items():
        steps.setdefault(site.hook_name, []).append(_erasing(model, site, eraser))
    for hook_name in dict.fromkeys(site.hook_name for site in read):
        steps.setdefault(hook_name, []).append(_keeping(seen, hook_name))
    if not erasers:
        return intervene(model, tokens, {hook_name: _chain(found) for hook_name, found in steps.items()}), seen
    first = min(erasers)
    activation = _chain(steps.pop(first.hook_name))(own[first.hook_name][some])
    hooks: list[tuple[str | Callable, Callable]] = [(hook_name, _as_hook(_chain(found))) for hook_name, found in steps.items()]
    with model.hooks(fwd_hooks=hooks):
        return put(model, tokens, first, activation), seen


def _chain(functions: list[Callable]) -> Callable:
    def edit(activation: Tensor) -> Tensor:
        for function in functions:
            activation = function(activation)
        return activation

    return edit


def _as_hook(edit: Callable) -> Callable:
    return lambda tensor, hook: edit(tensor)


def _erasing(model: HookedModel, site: Site, eraser: Eraser) -> Callable:
    where = positions(model, site.role)

    def erase(activation: Tensor) -> Tensor:
        activation = activation.clone()
        part = activation[:, where]
        activation[:, where] = eraser(part.flatten(2)).view_as(part)
        return activation

    return erase


def _keeping(seen: dict[str, torch.Tensor], hook_name: str) -> Callable:
    def keep(activation: Tensor) -> Tensor:
        seen[hook_name] = activation
        return activation

    return keep


def _measure(
    trained: TrainedModel, model: HookedModel, plan: Plan, spots: list[Site], split: str, n: int, seed: str
) -> dict[Key, Result]:
    """Every erasure of the plan on n episodes of a split: what the model answers, and what readers among `spots` are given."""
    scores: dict[Key, list] = {key: [] for key in plan}
    read: dict[Key, dict[Site, list[Tensor]]] = {key: {reader: [] for reader in _readers(spots, key[0])} for key in plan}
    codes = []
    for batch in draw(trained.task, split, n, seed, trained.device):
        codes.append(code_features(trained.task, batch.codes))
        _, own = _run(model, batch, {}, sites(model), {})
        for key, erasers in plan.items():
            prediction, seen = _run(model, batch, erasers, list(read[key]), own)
            scores[key].append(_errors(trained.task, prediction, batch))
            for reader, parts in read[key].items():
                parts.append(_part(model, seen[reader.hook_name], reader).mean(1))
    found = {key: {reader: torch.cat(parts) for reader, parts in readers.items()} for key, readers in read.items()}
    return {key: Result(np.concatenate(scores[key], axis=1), torch.cat(codes), found[key]) for key in plan}


def _errors(task: TaskFamily, prediction: Tensor, batch: Episodes) -> np.ndarray:
    error, weight = task.errors(prediction, batch.targets)
    return torch.stack([error, weight, batch.composition.double()]).cpu().numpy()


# ---- numbers ---------------------------------------------------------------------------------------------------------
def _drop(results: dict[Key, Result], key: Key) -> tuple[float, float, float]:
    """What the erasure costs of the score, pooled, with its interval over compositions: the same episodes twice."""
    error, weight, composition = results[key].scores
    cost = summarise(error - results[None, NOTHING].scores[0], weight, composition.astype(int))
    lo, hi = cost.interval_on(Scale.PLAIN)
    return 1 - cost.score, 1 - hi, 1 - lo


def _score(result: Result) -> tuple[float, float, float]:
    error, weight, composition = result.scores
    pooled = summarise(error, weight, composition.astype(int))
    return pooled.score, *pooled.interval


def _row(metric: str, numbers: tuple[float, float, float], split: str, key: Key, control: str, n: int, **more: Any) -> dict:
    site, scope = key
    where: dict[str, Any] = {"site": "all", "role": "all"}
    if site:
        where = {"site": site.hook_name, "role": site.role, "layer": site.layer}
    value, lo, hi = numbers
    return tables.row(metric, value, lo=lo, hi=hi, split=split, **where, control=control, n=n, scope=scope, **more)


def _readout(x: Tensor, code: Tensor, composition: Tensor) -> tuple[float, RidgeReadout]:
    """(score on left-out training compositions, the readout fitted on all of them)."""
    groups: dict[int, Moments] = {}
    add_by_group(groups, x, code, torch.unique(composition, return_inverse=True)[1] % FOLDS)
    folds = [groups[i] for i in sorted(groups)]
    best, scores = leave_groups_out(folds, PENALTIES)
    return max(scores), Moments.total(folds).fit([best])[0]


def _rows(plan: Plan, results: dict[str, dict[Key, Result]], spots: list[Site], control: str) -> list[dict]:
    """Scores and readouts of every erasure, each beside the same number unedited."""
    answer = max((p for p in spots if p.role == "readout"), key=lambda p: p.layer)
    unedited: dict = {}
    rows = []
    for key, erasers in progress(plan.items(), "erasure"):
        train = results["train"][key]
        fitted = {reader: _readout(x, train.code, train.composition) for reader, x in train.read.items()}
        later = [p for p in fitted if key[0] is not None and p.layer > key[0].layer]
        asked = [("r2 here", p) for p in (spots if key[0] is None else [key[0]])]
        asked += [("r2 at the answer", answer)] if answer in later else []
        asked += [("r2 best downstream", max(later, key=lambda p: fitted[p][0]))] if later else []
        more = {"rank": erasers[key[0]].rank} if key[0] is not None else {}
        for split in ("test", "ood"):
            n = results[split][key].scores.shape[1]
            plain = unedited.setdefault((split, "score"), _score(results[split][key])[0])
            rows.append(_row("score", _score(results[split][key]), split, key, control, n, unedited=plain, **more))
            if key[0] is not None:
                rows.append(_row("drop", _drop(results[split], key), split, key, control, n, unedited=0.0, **more))
            for metric, reader in asked:
                found = results[split][key]
                r2 = decoded_r2(fitted[reader][1](found.read[reader]), found.code, found.composition)
                plain = unedited.setdefault((split, reader), r2.mean)
                site = (reader, NOTHING) if key[0] is None else key
                read = {"read_at": f"{reader.hook_name} {reader.role}", "unedited": plain, **more}
                rows.append(_row(metric, (r2.mean, r2.lo, r2.hi), split, site, control, n, **read))
    return [row for row in rows if np.isfinite(row["value"])]


def _ranked(plan: Plan, results: dict[Key, Result]) -> list[Site]:
    """The sites by what erasure at one layer costs training episodes, among those where the code can be read best.

    Elsewhere the directions taken out are those of sampling noise: as many, and of whatever else is there."""
    plain = results[None, NOTHING]
    readable = {site: _readout(x, plain.code, plain.composition)[0] for site, x in plain.read.items()}
    best = max(readable.values())
    known = [site for site, r2 in readable.items() if r2 >= min(best, best / 2)]
    return sorted(known, key=lambda site: -_drop(results, (site, ONE))[0])


def _shuffled_rows(trained: TrainedModel, plan: Plan, results: dict[str, dict[Key, Result]], n: int, seed: int) -> list[dict]:
    """Score and drop where each eraser was fitted to codes of other episodes."""
    rows = []
    for split in ("test", "ood"):
        found = _measure(trained, trained.model, plan, [], split, n, f"{seed}/score")
        for key in [key for key in plan if key[0] is not None]:
            plain = _score(results[split][None, NOTHING])[0]
            rows.append(_row("score", _score(found[key]), split, key, "shuffled codes", n, unedited=plain))
            rows.append(_row("drop", _drop(found, key), split, key, "shuffled codes", n, unedited=0.0))
    return rows


def _random_rows(
    trained: TrainedModel,
    chosen: list[Site],
    fitted: dict[Site, Moments],
    results: dict[str, dict[Key, Result]],
    how: tuple[int, int, int],
) -> list[dict]:
    """Score and drop with random subspaces erased at one layer, one row per kind: mean, 5 % and 95 % quantile over draws."""
    episodes, seed, draws = how
    rows, model = [], trained.model
    batches = {s: list(draw(trained.task, s, episodes, f"{seed}/score", trained.device)) for s in ("test", "ood")}
    for number, site in enumerate(progress(chosen, "random erasures at site")):
        eraser = Eraser.from_moments(fitted[site])
        for kind, (name, make) in enumerate(RANDOM.items()):
            rng = torch.Generator().manual_seed(len(RANDOM) * number + kind)
            projections = torch.stack([one.projection for one in make(fitted[site], eraser, rng, draws)])
            for split, found in batches.items():
                answered = [_with_each(trained.task, model, batch, site, eraser.mean, projections) for batch in found]
                totals = np.sum(answered, axis=0)
                scores = 1 - totals[0] / totals[1]
                plain = _score(results[split][None, NOTHING])[0]
                more = {"rank": eraser.rank, "draws": draws}
                for metric, values, own in (("score", scores, plain), ("drop", plain - scores, 0.0)):
                    numbers = (values.mean(), *np.quantile(values, [0.05, 0.95]))
                    rows.append(_row(metric, numbers, split, (site, ONE), f"random {name}", episodes, unedited=own, **more))
    return rows


@torch.no_grad()
def _with_each(
    task: TaskFamily, model: HookedModel, batch: Episodes, site: Site, mean: Tensor, projections: Tensor
) -> np.ndarray:
    """(2, draws) summed error and weight of a batch under each projection (draws, d, d); several are answered at once."""
    _, own = _run(model, batch, {}, [site], {})
    activation, where, found = own[site.hook_name], positions(model, site.role), []
    part = activation[:, where]
    for some in projections.split(max(1, BATCH // len(batch.tokens))):
        edited = mean + torch.einsum("bpd,ned->nbpe", part.flatten(2).double() - mean, some)
        many = activation.repeat(len(some), *[1] * (activation.ndim - 1))
        many[:, where] = edited.to(many.dtype).reshape(len(many), *part.shape[1:])
        tokens, targets = (value.repeat(len(some), *[1] * (value.ndim - 1)) for value in (batch.tokens, batch.targets))
        error, weight = task.errors(put(model, tokens, site, many), targets)
        found.append(torch.stack([error, weight]).view(2, len(some), -1).sum(2).cpu().numpy())
    return np.concatenate(found, axis=1)


def _frame(trained: TrainedModel, site: Site, results: dict[str, dict[Key, Result]]) -> pd.DataFrame:
    """Every episode's score with the code erased where that costs training episodes most, beside its unedited score."""
    parts = []
    for split in ("test", "ood"):
        error, weight, composition = results[split][site, ONE].scores
        plain = 1 - results[split][None, NOTHING].scores[0] / weight
        names = [trained.task.composition_name(int(c)) for c in composition]
        where = {"split": split, "composition": names, "site": site.hook_name, "role": site.role}
        parts.append(pd.DataFrame({**where, "score": 1 - error / weight, "unedited": plain}))
    return pd.concat(parts, ignore_index=True)
