"""Interchange interventions: what one episode holds in a linear subspace of a site is put into another episode's run.

With an orthonormal basis R (d, k), h' = h_b + R diag(m) R^T (h_s - h_b) at every position of a token role (distributed
alignment search, 2303.02536); m selects coordinates, all of them by default. R is learned so that the edited answer is the
counterfactual one, which `TaskFamily.render` knows exactly. Maps are linear, on purpose: with non-linear ones any network can
be made to agree (2507.08802).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from compolens.activations.sites import Site, chained, positions, put
from compolens.activations.streams import record
from compolens.foundation.configs import ConfigError, DoesNotApply, require, require_positive
from compolens.foundation.moved import renamed
from compolens.foundation.progress import progress
from compolens.hooks import HookedModel
from compolens.measures.intervals import summarise
from compolens.measures.optimizers import Adam
from compolens.tasks.base import TaskFamily
from compolens.tasks.episodes import Episodes, stream
from compolens.tasks.fixed.checks import IGNORED

BATCH = 256


class Pairs(NamedTuple):
    """Bases and sources in the same order, and the bases' inputs under the codes that are wanted.

    Args:
        base: episodes whose run is edited.
        source: episodes that what is put in comes from.
        wanted: the bases' inputs under the wanted codes, by `TaskFamily.render`.
        mask: (batch, factor) bool, True where a factor has the source's value; all True where the whole code is the source's.
    """

    base: Episodes
    source: Episodes
    wanted: Episodes
    mask: Tensor

    def take(self, index: Tensor) -> Pairs:
        """The pairs at `index`: positions in the batch (n,), or a (batch,) bool mask."""
        return Pairs(self.base.take(index), self.source.take(index), self.wanted.take(index), self.mask[index])


class Held(NamedTuple):
    """What base and source hold at a hook point, for every position of the model's own sequence.

    Args:
        base: (batch, pos, d).
        source: (batch, pos, d).
    """

    base: Tensor
    source: Tensor


@dataclass(frozen=True)
class Subspace:
    """Orthonormal columns of `basis` (d, k)."""

    basis: Tensor

    def __post_init__(self) -> None:
        d, k = self.basis.shape
        require(1 <= k <= d, f"a subspace of a width of {d} has from 1 to {d} coordinates, got {k}")
        error = float((self.basis.T @ self.basis - torch.eye(k).to(self.basis)).abs().max())
        require(error < 1e-3, f"the basis must be orthonormal, but R^T R is off by {error:.1e}; use torch.linalg.qr(basis).Q")

    @classmethod
    def random(cls, d: int, k: int, rng: torch.Generator) -> Subspace:
        """A subspace uniformly distributed (Haar) among those of its rank; on the CPU, whatever the model's device.

        Args:
            d: width of the site.
            k: rank.
            rng: a generator on the CPU.

        Returns:
            The subspace.
        """
        q, r = torch.linalg.qr(torch.randn(d, k, generator=rng))
        return cls(q * r.diagonal().sign())


@dataclass(frozen=True)
class Search:
    """Adam on a free matrix whose QR decomposition is the basis; all fixed beforehand.

    Args:
        steps: updates.
        batch: pairs of an update.
        rate: learning rate, above 0.
    """

    steps: int = 80
    batch: int = 64
    rate: float = 0.05

    def __post_init__(self) -> None:
        require_positive(self, "steps", "batch")
        require(self.rate > 0, f"Search: rate must be positive, got {self.rate}")


# ---- pairs -----------------------------------------------------------------------------------------------------------
def check_renders(task: TaskFamily) -> None:
    """Raise a `DoesNotApply` unless `task` can show the same inputs under another code."""
    if reason := task.why_no_render:
        raise DoesNotApply(f"an interchange needs the same inputs under another code; {type(task).__name__}: {reason}")


def other_code(some: Episodes, others: Episodes) -> Tensor:
    """Which episodes have another code than those they are compared with, in any of its numbers.

    Args:
        some: a batch of episodes.
        others: as many.

    Returns:
        (batch,) bool.
    """
    differs = [(code != others.codes[name]).reshape(len(code), -1).any(1) for name, code in some.codes.items()]
    return torch.stack(differs).any(0)


def whole_codes(task: TaskFamily, episodes: Episodes) -> Pairs:
    """Every episode as base, the one before it as source; the source's whole code is wanted.

    Args:
        task: the family.
        episodes: a batch of episodes.

    Returns:
        The pairs, those with equal codes left out.

    Raises:
        ConfigError: all episodes have the same code.
    """
    check_renders(task)
    source = episodes.take(torch.arange(len(episodes.tokens), device=episodes.tokens.device).roll(1))
    wanted = task.render(source.codes, episodes.inputs)
    other = other_code(episodes, source)
    require(
        bool(other.any()),
        f"all {len(other)} episodes have the same code, so nothing can be swapped: draw more, or hold out more compositions",
    )
    return Pairs(episodes, source, wanted, torch.ones_like(other)[:, None]).take(other)


def exchanged_factors(task: TaskFamily, episodes: Episodes, sources: int, rng: torch.Generator) -> Pairs:
    """Every episode as base with each of the episodes before it, wherever a factor can be exchanged between them.

    Args:
        task: the family.
        episodes: a batch of episodes.
        sources: how many episodes before it are tried.
        rng: draws which factor is exchanged.

    Returns:
        The pairs.

    Raises:
        ConfigError: no factor can be exchanged between any two.
    """
    check_renders(task)
    found = []
    for shift in range(1, sources + 1):
        source = episodes.take(torch.arange(len(episodes.tokens), device=episodes.tokens.device).roll(shift))
        codes, mask = task.exchange(episodes.codes, source.codes, rng)
        possible = mask.any(1)
        if bool(possible.any()):
            wanted = task.render({n: code[possible] for n, code in codes.items()}, episodes.inputs[possible])
            found.append(Pairs(episodes.take(possible), source.take(possible), wanted, mask[possible]))
    if not found:
        raise ConfigError(f"no factor can be exchanged between any two of {len(episodes.tokens)} episodes; draw more of them")
    return joined(found)


def joined(parts: Sequence[Pairs]) -> Pairs:
    """`parts`, one after the other."""

    def chain(which: Sequence[Episodes]) -> Episodes:
        tokens, targets, codes, composition, inputs, nuisances = zip(*which, strict=True)
        together = [{name: torch.cat([one[name] for one in each]) for name in each[0]} for each in (codes, nuisances)]
        return Episodes(
            torch.cat(tokens), torch.cat(targets), together[0], torch.cat(composition), torch.cat(inputs), together[1]
        )

    base, source, wanted = (chain([getattr(part, name) for part in parts]) for name in ("base", "source", "wanted"))
    return Pairs(base, source, wanted, torch.cat([part.mask for part in parts]))


# ---- interventions ---------------------------------------------------------------------------------------------------
class Shown(NamedTuple):
    """What bases and sources hold, and what is answered to them.

    Args:
        held: hook point -> what is held there.
        own: (batch, seq, d_out) the answers to the bases.
        copied: (batch, seq, d_out) the answers to the sources.
    """

    held: dict[str, Held]
    own: Tensor
    copied: Tensor


def shown(model: HookedModel, pairs: Pairs, sites: Sequence[Site]) -> Shown:
    """What bases and sources hold, and the answers to them: one pass over the bases and one over the sources for all sites.

    Args:
        model: the model.
        pairs: bases and sources.
        sites: where to look.

    Returns:
        What was seen.
    """
    hook_names = list(dict.fromkeys(site.hook_name for site in sites))
    base, source = record(model, [pairs.base, pairs.source], hook_names)
    there = {hook_name: Held(base.sites[hook_name], source.sites[hook_name]) for hook_name in hook_names}
    return Shown(there, base.prediction, source.prediction)


def held(model: HookedModel, pairs: Pairs, sites: Sequence[Site]) -> dict[str, Held]:
    """What bases and sources hold, of `shown`.

    Args:
        model: the model.
        pairs: bases and sources.
        sites: where to look.

    Returns:
        hook point -> what is held there.
    """
    return shown(model, pairs, sites).held


def interchange(
    held: Held, where: list[int] | slice, change: Tensor | None = None, mask: Tensor | None = None, into: Tensor | None = None
) -> Tensor:
    """The base's activation with the source's put in.

    Args:
        held: what base and source hold.
        where: the positions that are edited.
        change: a basis R (d, k) of the subspace that is put in, h_b + R diag(mask) R^T (h_s - h_b) (None: all of it).
        mask: (batch, k), which coordinates are put in (None: all).
        into: another (d, k) matrix in the stead of the first R: a projection of it, where only a part of the change is made.

    Returns:
        (batch, pos, d).
    """
    where = _together(where)
    base, source = held.base[:, where], held.source[:, where]
    new = source
    if change is not None:
        change = change.to(base)
        coordinates = (source - base) @ change
        if mask is not None:
            coordinates = coordinates * mask.to(coordinates)[:, None]
        new = base + coordinates @ (change if into is None else into.to(base)).T
    if change is not None and new.shape[1] == held.base.shape[1]:  # every position, and no view of what is held
        return new
    edited = held.base.clone()
    edited[:, where] = new
    return edited


def _together(where: list[int] | slice) -> list[int] | slice:
    """Positions in a row as a slice, which is read and written without a copy."""
    if isinstance(where, slice) or not where or where != list(range(where[0], where[-1] + 1)):
        return where
    return slice(where[0], where[-1] + 1)


@torch.no_grad()
def answers_after(
    model: HookedModel,
    pairs: Pairs,
    site: Site,
    held: Held,
    change: Tensor | None = None,
    mask: Tensor | None = None,
    into: Tensor | None = None,
) -> Tensor:
    """The prediction on the bases after `interchange` at a site; blocks before it are not computed.

    Args:
        model: the model.
        pairs: bases and sources.
        site: where.
        held: what they hold at its hook point.
        change: as in `interchange`.
        mask: as in `interchange`.
        into: as in `interchange`.

    Returns:
        (batch, seq, d_out).
    """
    where, parts = positions(model, site.role), []
    for rows in torch.arange(len(held.base)).split(BATCH):
        here = Held(held.base[rows], held.source[rows])
        edited = interchange(here, where, change, None if mask is None else mask[rows], into)
        parts.append(put(model, pairs.base.tokens[rows], site, edited))
    return chained(parts)


def learn(
    model: HookedModel, task: TaskFamily, pairs: Pairs, site: Site, held: Held, mask: Tensor, search: Search, seed: str
) -> Subspace:
    """The subspace whose interchange makes the answers the wanted ones, by `TaskFamily.loss` (2303.02536).

    Only the basis is learned, from (pairs, seed) alone; the model's weights gather no gradient.

    Args:
        model: the model.
        task: the family.
        pairs: bases, sources, and what is wanted.
        site: where.
        held: what they hold at its hook point.
        mask: (batch, k) bool or floats, the coordinates that are swapped in every pair. A pair whose first r are True asks for
            a subspace of rank r within those of higher rank; blocks of coordinates that belong to factors keep these apart.
        search: how it is learned.
        seed: of the search.

    Returns:
        A subspace of k coordinates.

    Raises:
        ConfigError: k coordinates do not fit into the site's width.
    """
    d, k = held.base.shape[-1], mask.shape[1]
    require(1 <= k <= d, f"{k} coordinates do not fit into the width {d} of {site.hook_name}; ask for a lower rank")
    rng = torch.Generator().manual_seed(stream(seed, "interchange", k))
    some = torch.randperm(len(mask), generator=rng)[: 4 * search.batch].to(mask.device)
    free = _steepest(model, task, pairs.take(some), site, Held(held.base[some], held.source[some]), mask[some])
    optimizer = Adam([free], lr=search.rate)
    where = positions(model, site.role)
    for _ in progress(range(search.steps), "search, step"):
        rows = torch.randint(len(mask), (search.batch,), generator=rng).to(mask.device)
        here = Held(held.base[rows], held.source[rows])
        edited = interchange(here, where, torch.linalg.qr(free).Q, mask[rows])
        loss = task.loss(put(model, pairs.base.tokens[rows], site, edited), pairs.wanted.targets[rows])
        (free.grad,) = torch.autograd.grad(loss, [free])
        optimizer.step()
    return Subspace(torch.linalg.qr(free.detach()).Q)


def _steepest(model: HookedModel, task: TaskFamily, pairs: Pairs, site: Site, held: Held, mask: Tensor) -> Tensor:
    """(d, k) leaf to start from: for h_b + P (h_s - h_b) the loss has slope E[g (h_s - h_b)^T] in P at 0, g its gradient; each
    coordinate in turn gets the direction of steepest descent, over the pairs that swap it, orthogonal to those before.

    A random start would leave the search at a saddle wherever it is nearly orthogonal to a direction that matters."""
    where, base = positions(model, site.role), held.base.clone().requires_grad_()
    loss = task.loss(put(model, pairs.base.tokens, site, base), pairs.wanted.targets)
    (gradient,) = torch.autograd.grad(loss, [base])
    slope = torch.einsum("npa,npb->nab", gradient[:, where], (held.source - held.base)[:, where])
    slopes = torch.einsum("nk,nab->kab", mask.to(slope), slope + slope.mT).double().cpu()
    left, columns = torch.eye(slope.shape[-1], dtype=torch.double), []
    for each in slopes:
        vectors = left @ torch.linalg.eigh(left.T @ each @ left).eigenvectors
        columns.append(vectors[:, 0])
        left = vectors[:, 1:]
    precise = torch.promote_types(held.base.dtype, torch.float32)  # below it, torch decomposes nothing
    return torch.stack(columns, dim=1).to(held.base.device, precise).requires_grad_()


def reader(model: HookedModel, site: Site) -> Tensor | None:
    """`HookedModel.reader`, as it was called before version 0.2.

    Args:
        model: the model.
        site: where.

    Returns:
        (n, d), a row per quantity that is read; None where there is no such map.
    """
    renamed("interchange.reader(model, site)", "model.reader(*site)")
    return model.reader(*site)


# ---- how far an answer moved -----------------------------------------------------------------------------------------
class Pooled(NamedTuple):
    """A score over pairs.

    Args:
        value: the score, 1 is perfect.
        lo: lower end of its 95 % interval over compositions.
        hi: upper end.
        n: pairs.
    """

    value: float
    lo: float
    hi: float
    n: int


def pooled(result: tuple[Tensor, Tensor], composition: Tensor) -> Pooled | None:
    """1 - error / weight, pooled; compositions with no weight at all are left out.

    Args:
        result: (error, weight), each (n,), of pairs.
        composition: (n,) their compositions.

    Returns:
        The score; None where no composition is left: there is nothing to score.
    """
    (error, weight), known = (part.cpu().numpy() for part in result), composition.cpu().numpy()
    kept = np.isin(known, np.unique(known[weight > 0]))
    if not kept.any():
        return None
    found = summarise(error[kept], weight[kept], known[kept])
    return Pooled(found.score, *found.interval, int(kept.sum()))


def told_by(prediction: Tensor, targets: Tensor, at: Sequence[int]) -> Tensor:
    """What a prediction answers: logits less their mean over the values, and 0 where an episode is not asked. A value of logit
    -inf is masked: it has no part in the mean, and 0 here.

    Args:
        prediction: (batch, seq, d_out).
        targets: as in `Episodes.targets`; whole numbers where the prediction holds logits, -100 where nothing is asked.
        at: the answer positions.

    Returns:
        (batch, answer, d_out) float64.
    """
    answers = prediction[:, list(at)].double()
    if targets.is_floating_point():
        return answers
    if bool((hidden := answers.isneginf()).any()):
        answers = answers.masked_fill(hidden, torch.nan)
        answers = (answers - answers.nanmean(-1, keepdim=True)).masked_fill(hidden, 0.0)
    else:
        answers = answers - answers.mean(-1, keepdim=True)
    return answers * targets[:, list(at)].ne(IGNORED)[..., None] if targets.ndim == 2 else answers


def remaining(
    edited: Tensor, start: Tensor, goal: Tensor, at: Sequence[int], targets: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """What is left of the way from one prediction to another, at the answer positions; 1 - sum / sum is the share that is
    covered: 1 all, 0 none, negative away from it.

    Args:
        edited: (batch, seq, d_out), where it came to.
        start: where it began, of the same shape.
        goal: where it should come to.
        at: the answer positions.
        targets: of the episodes, as in `told_by`; None where every position is asked and predictions are numbers.

    Returns:
        (squared distance from edited to goal, from start to goal), each (batch,).
    """
    asked = edited.new_zeros(()) if targets is None else targets
    edited, start, goal = (told_by(part, asked, at) for part in (edited, start, goal))
    return (edited - goal).square().flatten(1).sum(1), (start - goal).square().flatten(1).sum(1)
