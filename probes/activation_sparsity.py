"""How sparse is attention at which threshold, and how sparse can it be made before the answers suffer?"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from compolens import tables
from compolens.activations.streams import Activations, draw, intervene, record
from compolens.foundation.configs import DoesNotApply, require
from compolens.hooks import HookedModel
from compolens.measures import intervals, sparsity
from compolens.measures.sparsity import Absolute, RowMaximum, Scale, SiteStd, Spread
from compolens.tasks.base import TaskFamily
from compolens.tasks.episodes import Episodes, stream
from compolens.zoo.folders import TrainedModel

version = 4  # raised whenever its numbers change
values_since = 1  # its values; versions 2 and 4 changed intervals, version 3 leaves out what an adopted network masks

ABSOLUTE = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0)
"""0.003 to 0.3 are the thresholds that 2511.20194 trains with."""
OF_ROW_MAXIMUM = (0.003, 0.01, 0.03, 0.1, 0.2, 0.3, 0.5, 0.7)
OF_SITE_STD = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0)
PRUNED: dict[Scale, tuple[float, ...]] = {
    Absolute(): (0.003, 0.01, 0.03, 0.1, 0.3, 1.0),
    RowMaximum(): (0.03, 0.1, 0.2, 0.3, 0.5, 0.7),
}
ROWS: dict[str, Callable[..., Tensor]] = {
    "zero rows": sparsity.zero_rows,
    "Hoyer": sparsity.hoyer,
    "Gini": sparsity.gini,
    "entropy": sparsity.entropy,
    "effective keys": sparsity.effective_keys,
}
"""Measures of a row; shown as means over rows of two keys or more."""
BOUNDED = ("exact zeros", "fraction below", "zero rows", "Hoyer", "Gini")
"""What is 1 at most."""


class Site(NamedTuple):
    """A layer's weights: the hook point, and which (query, key) the mask allows (None: all)."""

    layer: int
    name: str
    mask: Tensor | None

    def allowed(self, x: Tensor) -> Tensor | None:
        """The mask at the positions of x (batch, head, query, key)."""
        return None if self.mask is None else self.mask[: x.shape[-2], : x.shape[-1]]


class Quantity(NamedTuple):
    """What a row of the table is about, wherever it is measured."""

    metric: str
    scale: str = "none"
    threshold: float = np.nan


class Pruning(NamedTuple):
    """Weights at or below the threshold become 0; then, if asked for, rows are made to sum to one again."""

    scale: Scale
    threshold: float
    renormalised: bool


def probe(trained: TrainedModel, *, episodes: int = 192, seed: int = 0, draws: int = 3) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Sparsity of attention's weights, and the score when small weights are set to zero at inference.

    The weights are those of `hook_pattern` or, with coefficient transfer, those before it (`hook_coefficients`). Pairs of
    tokens that the model's mask forbids count nowhere: of an adopted network, which shows no mask, those whose weight is 0 in
    every training episode drawn, at every layer and head. Thresholds from 0.003 to 0.3 are those that 2511.20194 trains with.

    Args:
        trained: the trained model, with its run, task and folder.
        episodes: episodes drawn per split, 1 or more; more of them narrow the intervals.
        seed: seed of the episodes, which are never those of a training, even with an equal seed.
        draws: draws of the random control per threshold, 1 or more; 3, since each is a pass of the model.

    Returns:
        The table, and rows per episode (the score under every pruning but the random ones). Every measure of sparsity has rows
        per layer and head, per layer (column head empty) and over everything (layer empty as well). Intervals are over
        compositions.

        - "exact zeros": share of weights that are exactly 0, from 0 to 1.
        - "fraction below": share of weights whose magnitude is at or below `threshold`. Column `scale` says in which unit:
          "absolute", "row maximum" (shares of the row's largest weight) or "site std" (standard deviations of the layer's
          weights on training compositions).
        - "Hoyer", "Gini" (from 0, even, to 1, one key), "entropy" (nats), "effective keys" (a count) and "zero rows" (a
          share): means over rows of two keys or more. A row of zeros counts as Hoyer 1, Gini 1, entropy 0 and no keys.
        - "standard deviation": of a layer's weights, over all heads, on training compositions.
        - "score": with all weights up to `threshold` set to zero in all layers at once; an empty threshold is the model as it
          is. `imposed` is the share of zeros that is reached. `renormalised` 1: rows are made to sum to one again, which is
          measured only where they do so before pruning.
        - control "random pruning": as many weights of every layer and head set to zero at random, a row per `draw`.
        - control "untrained": the untrained control, not pruned.

    Raises:
        DoesNotApply: the model has no attention patterns.
        ConfigError: draws is below 1.
    """
    require(draws >= 1, f"the random control needs at least one draw, got {draws}; leave --draws out, or give 1 or more")
    rows, kept = [], []
    for control, model in trained.with_untrained_control():
        sites = _sites(model, type(trained.run.architecture).__name__)

        def record_split(split: str, model: HookedModel = model, sites: list[Site] = sites) -> Iterator[Activations]:
            batches = draw(trained.task, split, episodes, seed, trained.device)
            return record(model, batches, [site.name for site in sites])

        if not hasattr(model.get_submodule(sites[0].name.rpartition(".")[0]), "mask"):
            sites = _masked(sites, record_split("train"))
        spread, sum_to_one = _survey(sites, record_split("train"))
        prunings = _prunings(sum_to_one) if control == "" else []
        for site in sites:
            std = _row(Quantity("standard deviation"), spread[site.layer].std, (np.nan, np.nan), site.name, site.layer)
            rows.append(std | {"split": "train", "control": control, "n": episodes})
        for split in ("test", "ood"):
            profile, scores = Profile(sites, spread), Scores(trained.task, sites)
            for step, batch in enumerate(record_split(split)):
                profile.add(batch)
                scores.add((control, None, -1), batch.prediction, batch.episodes, _zeros(sites, batch))
                _prune(model, batch.episodes, prunings, draws, f"{seed}/{split}/{step}", scores)
            rows += profile.rows({"split": split, "control": control, "n": episodes})
            rows += scores.rows({"split": split, "n": episodes})
            if control == "":
                kept.append(scores.per_episode(split))
    own = (row for row in rows if row["control"] == "" and (row["metric"] != "score" or np.isnan(row["threshold"])))
    rows += tables.not_available(own, trained.why_no_untrained_control, measured=("imposed",))
    return pd.DataFrame(rows), pd.concat(kept, ignore_index=True)


def _sites(model: HookedModel, architecture: str) -> list[Site]:
    """The weights of every layer that has any, before coefficient transfer."""
    found = []
    for layer in range(getattr(model.cfg, "n_layers", 0)):
        names = [f"blocks.{layer}.attn.hook_{kind}" for kind in ("coefficients", "pattern")]
        name = next((name for name in names if name in model.hook_dict), None)
        if name is not None:
            found.append(Site(layer, name, getattr(model.get_submodule(f"blocks.{layer}.attn"), "mask", None)))
    if not found:
        raise DoesNotApply(f"{architecture} has no attention patterns (blocks.*.attn.hook_pattern) that could be sparse")
    return found


def _masked(sites: list[Site], batches: Iterable[Activations]) -> list[Site]:
    """The sites, with what any of their weights is not 0 for as the mask of all: thresholds may empty a layer of its own."""
    weighs = [(batch.sites[site.name] != 0).any(1).any(0) for batch in batches for site in sites]
    allowed = torch.stack(weighs).any(0)
    return [site._replace(mask=allowed) for site in sites]


def _everywhere(sites: list[Site]) -> str:
    return sites[0].name.replace(f"blocks.{sites[0].layer}.", "blocks.*.")


def _survey(sites: list[Site], batches: Iterable[Activations]) -> tuple[dict[int, Spread], bool]:
    """layer -> spread of its weights; and whether all rows sum to one."""
    spread: dict[int, Spread] = {}
    sum_to_one = True
    for batch in batches:
        for site in sites:
            x = batch.sites[site.name]
            part = Spread.of(x, site.allowed(x))
            spread[site.layer] = spread[site.layer] + part if site.layer in spread else part
            sum_to_one = sum_to_one and sparsity.sums_to_one(x)
    return spread, sum_to_one


def _row(
    what: Quantity, value: float, interval: Sequence[float], site: str, layer: float = np.nan, head: float = np.nan
) -> dict:
    found = tables.row(what.metric, value, lo=interval[0], hi=interval[1], site=site, role="all pairs", layer=layer, head=head)
    return found | {"threshold": what.threshold, "scale": what.scale}


# ---- as it is --------------------------------------------------------------------------------------------------------
class Profile:
    """Sums of every quantity by composition, and layer and head: batches are added, none is kept."""

    def __init__(self, sites: list[Site], spread: dict[int, Spread]) -> None:
        self.sites = sites
        self.scales: dict[int, dict[Scale, tuple[float, ...]]] = {
            layer: {Absolute(): ABSOLUTE, RowMaximum(): OF_ROW_MAXIMUM, SiteStd(one.std): OF_SITE_STD}
            for layer, one in spread.items()
        }
        grids = [(scale.name, grid) for scale, grid in self.scales[sites[0].layer].items()]
        below = [Quantity("fraction below", name, threshold) for name, grid in grids for threshold in grid]
        self.quantities = [Quantity("exact zeros"), *below, *map(Quantity, ROWS)]
        self.sums: dict[int, np.ndarray] = {}
        self.episodes: dict[int, int] = {}
        self.sizes: list[np.ndarray] = []
        self.places: list[tuple[int, int]] = []

    def add(self, batch: Activations) -> None:
        """Add (place, quantity) sums of entries or rows; a place is a head of a layer."""
        measured = {site.layer: self._measure(site, batch.sites[site.name]) for site in self.sites}
        values = torch.cat([values for values, _ in measured.values()], dim=1).cpu().numpy()
        self.places = [(layer, head) for layer, (sums, _) in measured.items() for head in range(sums.shape[1])]
        self.sizes = [measured[layer][1] for layer, _ in self.places]
        composition = batch.episodes.composition.cpu().numpy()
        for one in np.unique(composition).tolist():
            self.sums[one] = self.sums.get(one, 0.0) + values[composition == one].sum(0)
            self.episodes[one] = self.episodes.get(one, 0) + int((composition == one).sum())

    def _measure(self, site: Site, x: Tensor) -> tuple[Tensor, np.ndarray]:
        """(batch, head, quantity) sums over one layer's x, and of how many entries or rows each is the sum."""
        allowed = site.allowed(x)
        found = [sparsity.count_below(x, 0, allowed)]
        for scale, grid in self.scales[site.layer].items():
            unit = scale.unit(x, allowed)
            found += [sparsity.count_below(x, threshold * unit, allowed) for threshold in grid]
        sizes = [sparsity.count_allowed(x, allowed)] * len(found)
        several = (torch.ones_like(x[0, 0], dtype=torch.bool) if allowed is None else allowed).sum(-1) > 1
        found += [measure(x, allowed)[..., several].sum(-1) for measure in ROWS.values()]
        sizes += [int(several.sum())] * len(ROWS)
        return torch.stack([f.double() for f in found], dim=-1), np.array(sizes)

    def rows(self, known: dict) -> Iterator[dict[str, Any]]:
        """A row per quantity, at every head, layer and over all; intervals leave compositions out in turn."""
        site_of = {site.layer: site.name for site in self.sites}
        pools: dict[tuple[str, float, float], list[tuple[int, int]]] = {}
        pools |= {(site_of[layer], layer, head): [(layer, head)] for layer, head in self.places}
        pools |= {(name, layer, np.nan): [p for p in self.places if p[0] == layer] for layer, name in site_of.items()}
        pools |= {(_everywhere(self.sites), np.nan, np.nan): self.places}
        count = np.array(list(self.episodes.values()))
        sums = np.stack(list(self.sums.values()))
        for (site, layer, head), places in pools.items():
            inside = [self.places.index(place) for place in places]
            total, size = sums[:, inside].sum(1), np.sum([self.sizes[i] for i in inside], axis=0)
            for what, part, entries in zip(self.quantities, total.T, size, strict=True):
                value, ends = _mean(part, count * entries, 1.0 if what.metric in BOUNDED else np.inf)
                yield _row(what, value, ends, site, layer, head) | known


def _mean(sums: np.ndarray, sizes: np.ndarray, most: float) -> tuple[float, tuple[float, float]]:
    """The mean of what lies between 0 and `most`, of sums and sizes per composition; and its interval over compositions."""
    total, size, units = sums.sum(), sizes.sum(), len(sizes)
    if units == 1:
        return total / size, (np.nan, np.nan)
    without, freedom = (total - sums) / (size - sizes), max(intervals.effective_number(sizes) - 1, 1.0)
    how = (intervals.Scale.PLAIN, intervals.Replicates.JACKKNIFE)
    lo, hi = intervals.student_interval(total / size, without, units, *how, freedom=freedom)
    return total / size, (max(lo, 0.0), min(hi, most))


# ---- pruned ----------------------------------------------------------------------------------------------------------
Zeros = dict[int, tuple[Tensor, int]]
"""layer -> how many weights of each head (head,) are 0, and of how many per head."""


def _count(site: Site, x: Tensor) -> tuple[Tensor, int]:
    allowed = site.allowed(x)
    return sparsity.count_below(x, 0, allowed).sum(0), len(x) * sparsity.count_allowed(x, allowed)


def _zeros(sites: list[Site], batch: Activations) -> Zeros:
    return {site.layer: _count(site, batch.sites[site.name]) for site in sites}


def _prunings(sum_to_one: bool) -> list[Pruning]:
    both = (False, True) if sum_to_one else (False,)
    return [Pruning(scale, threshold, again) for scale, grid in PRUNED.items() for threshold in grid for again in both]


def _prune(model: HookedModel, episodes: Episodes, prunings: list[Pruning], draws: int, key: str, scores: Scores) -> None:
    """Score a batch under every pruning, and under as many random ones as there are draws."""
    for pruning in prunings:
        reached: Zeros = {}

        def small(site: Site, x: Tensor, pruning: Pruning = pruning) -> Tensor:
            return sparsity.prune(x, pruning.threshold * pruning.scale.unit(x, site.allowed(x)))

        prediction = _answer(model, episodes, pruning, scores.sites, small, reached)
        scores.add(("", pruning, -1), prediction, episodes, reached)
        for k in range(draws):
            generator = torch.Generator(device=episodes.tokens.device).manual_seed(stream(key, "random pruning", k))
            drawn: Zeros = {}

            def any_size(site: Site, x: Tensor, wanted: Zeros = reached, generator: torch.Generator = generator) -> Tensor:
                return sparsity.prune_at_random(x, wanted[site.layer][0], generator, site.allowed(x))

            prediction = _answer(model, episodes, pruning, scores.sites, any_size, drawn)
            scores.add(("random pruning", pruning, k), prediction, episodes, drawn)


def _answer(
    model: HookedModel,
    episodes: Episodes,
    pruning: Pruning,
    sites: list[Site],
    cut: Callable[[Site, Tensor], Tensor],
    zeros: Zeros,
) -> Tensor:
    """The prediction when the weights of every layer are cut; fills in how many became 0."""

    def edit(x: Tensor, site: Site) -> Tensor:
        x = cut(site, x)
        zeros[site.layer] = _count(site, x)
        return sparsity.renormalise(x) if pruning.renormalised else x

    return intervene(model, episodes, {site.name: _at(site, edit) for site in sites})


def _at(site: Site, edit: Callable[[Tensor, Site], Tensor]) -> Callable[[Tensor], Tensor]:
    return lambda x: edit(x, site)


class Scores:
    """Per-episode errors under each (control, pruning, draw), and the share of zeros that it reached."""

    def __init__(self, task: TaskFamily, sites: list[Site]) -> None:
        self.task, self.sites = task, sites
        self.parts: dict[tuple, list[np.ndarray]] = {}
        self.zeros: dict[tuple, np.ndarray] = {}

    def add(self, key: tuple, prediction: Tensor, episodes: Episodes, zeros: Zeros) -> None:
        """Add a batch under a key: its errors, and the zeros that were reached."""
        error, weight = self.task.errors(prediction, episodes.targets)
        part = torch.stack([error, weight, episodes.composition.double()]).cpu().numpy()
        self.parts.setdefault(key, []).append(part)
        counts = np.array([(int(zero.sum()), len(zero) * size) for zero, size in zeros.values()]).sum(0)
        self.zeros[key] = self.zeros.get(key, 0) + counts

    def _known(self, key: tuple) -> tuple[Quantity, dict]:
        (_, pruning, k), (zero, size) = key, self.zeros[key]
        how = {"imposed": zero / size, "draw": k if k >= 0 else np.nan}
        if pruning is None:
            return Quantity("score"), how | {"renormalised": np.nan}
        what = Quantity("score", pruning.scale.name, pruning.threshold)
        return what, how | {"renormalised": float(pruning.renormalised)}

    def rows(self, known: dict) -> Iterator[dict[str, Any]]:
        """A row per key: the pooled score, its interval over compositions, and what was reached."""
        for key, parts in self.parts.items():
            error, weight, composition = np.concatenate(parts, axis=1)
            pooled, (what, how) = intervals.summarise(error, weight, composition.astype(int)), self._known(key)
            yield _row(what, pooled.score, pooled.interval, _everywhere(self.sites)) | how | {"control": key[0]} | known

    def per_episode(self, split: str) -> pd.DataFrame:
        """The score of every episode as the model is, and under every pruning but the random ones."""
        frames = []
        for key, parts in self.parts.items():
            if key[0] == "":
                (error, weight, composition), (what, how) = np.concatenate(parts, axis=1), self._known(key)
                names = [self.task.composition_name(int(c)) for c in composition]
                told = {"scale": what.scale, "threshold": what.threshold, "renormalised": how["renormalised"]}
                frames.append(pd.DataFrame({"split": split, **told, "composition": names, "score": 1 - error / weight}))
        return pd.concat(frames, ignore_index=True)
