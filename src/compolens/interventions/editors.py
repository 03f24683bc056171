"""Editors that need not be linear in the code: what stands at a site is replaced by what goes with another code.

The linear editor of `interventions.oracles` erases what the code's own coordinates tell and adds a mean linear in them. Here
the code's coordinates are fitted first: the mean activation given the code, a readout *from* the code of a capacity that
left-out training compositions choose (`measures.capacity`), along the axes in which it varies. Erasing and adding is done in
these. Answers play no part in any fit, so that an editor cannot make a model agree (2507.08802); on an untrained model, and
with codes permuted, it has nothing to write and must fail.

Where what stands for a code depends on what else stands there (values behind a key, one of two slots that a gate chooses), no
coordinates of the code are the same in two episodes. `ConditionalEditor` is fitted to the change of the mean activation
between an episode and the same inputs under another code, given both the mean activation and the other code.

A donor is a real episode of the same code with other inputs, whose activation is put at the site as it is. Nothing can be
copied: what counts is the answer to the base's own question.

Of a model that does not infer, no episode holds the right code of a held-out composition. Then the state is assembled from two
training donors (`assemble`), which is not natural, and has to be shown to lie where natural states do.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from compolens.activations.sites import Site, positions
from compolens.activations.streams import Activations, record
from compolens.hooks import HookedModel
from compolens.interventions.natural import state
from compolens.interventions.oracles import code_features
from compolens.measures.capacity import CAPACITIES, Readout, folds_of
from compolens.measures.erasure import Range, Writer
from compolens.measures.readouts import PENALTIES, Moments, RidgeReadout, leave_groups_out
from compolens.tasks.base import TaskFamily
from compolens.tasks.episodes import Episodes

LEAST = 0.01
"""Axes along which the mean activation varies with the code by less than this share of the first's variance are left out: they
are sampling noise, and erasing along them would take out more than the code."""


@dataclass(frozen=True)
class Coordinates:
    """code (n, width) -> where the mean activation lies along its own axes (n, r), float64.

    Args:
        mean_activation: from the code to the activation, at the chosen capacity.
        axes: (d, r) orthonormal.
    """

    mean_activation: Readout
    axes: Tensor

    @classmethod
    def fit(cls, code: Tensor, activation: Tensor, composition: Tensor, capacities: Sequence[str] = CAPACITIES) -> Coordinates:
        """The coordinates of codes at a site.

        Args:
            code: (n, width).
            activation: (n, d), mean over the site's positions.
            composition: (n,) ints; capacity and penalty are chosen by leaving them out.
            capacities: in ascending order.

        Returns:
            The coordinates, one at least.
        """
        readout = Readout.fit(code, activation, composition, capacities)
        fitted = readout(code)
        values, vectors = torch.linalg.eigh((fitted - fitted.mean(0)).T @ (fitted - fitted.mean(0)))
        kept = values >= LEAST * values[-1].clamp(min=1e-300)
        return cls(readout, vectors[:, kept])

    def __call__(self, code: Tensor) -> Tensor:
        return self.mean_activation(code) @ self.axes


@dataclass(frozen=True)
class Editor:
    """Writes a code at a site, whatever form it has there.

    Args:
        site: where.
        coordinates: of the code there.
        writer: erases and writes these coordinates at every position.
        shown: where activations lie there.
    """

    site: Site
    coordinates: Coordinates
    writer: Writer
    shown: Range

    def write(self, model: HookedModel, activation: Tensor, code: Tensor) -> Tensor:
        """The activation with a code in the stead of its own.

        Args:
            model: the model.
            activation: (batch, pos, d).
            code: (batch, width).

        Returns:
            (batch, pos, d).
        """
        at = positions(model, self.site.role)
        edited = activation.clone()
        edited[:, at] = self.writer(self.shown(activation[:, at]), self.coordinates(code)[:, None])
        return edited


def fit_editors(
    model: HookedModel,
    task: TaskFamily,
    batches: Sequence[Episodes | Activations],
    where: Sequence[Site],
    permuted: bool = False,
) -> list[Editor]:
    """An editor for every site, from episodes of training compositions.

    Args:
        model: the model.
        task: the family.
        batches: the episodes, or what was recorded of them.
        where: the sites.
        permuted: give every episode another one's code, as a control.

    Returns:
        One for every site, in their order.
    """
    hook_names = list(dict.fromkeys(site.hook_name for site in where))
    seen = list(record(model, batches, hook_names))
    code = torch.cat([code_features(task, a.episodes.codes) for a in seen])
    composition = torch.cat([a.episodes.composition for a in seen])
    if permuted:
        code = code[torch.randperm(len(code), generator=torch.Generator().manual_seed(0)).to(code.device)]
    found = []
    for site in where:
        at = positions(model, site.role)
        x = torch.cat([a.sites[site.hook_name][:, at] for a in seen])
        found.append(_fitted(site, x, code, composition))
    return found


def _fitted(site: Site, x: Tensor, code: Tensor, composition: Tensor, capacities: Sequence[str] = CAPACITIES) -> Editor:
    """The editor from activations (n, pos, …) at a site, their codes and compositions."""
    coordinates = Coordinates.fit(code, x.flatten(2).mean(1), composition, capacities)
    rows = x.flatten(0, 1)
    writer = Writer.fit(rows, coordinates(code).repeat_interleave(x.shape[1], dim=0))
    return Editor(site, coordinates, writer, Range.fit(rows))


def fit_editors_without(
    model: HookedModel,
    task: TaskFamily,
    batches: Sequence[Episodes | Activations],
    editor: Editor,
    fold_of: Mapping[int, int],
) -> list[Editor]:
    """An editor fitted without some of the compositions, at the capacity that it has.

    Args:
        model: the model.
        task: the family.
        batches: the episodes that the editor was fitted to, or what was recorded of them.
        editor: that editor.
        fold_of: composition -> the group that it is left out with, from 0 on.

    Returns:
        One for every group, without that group.
    """
    site, at = editor.site, positions(model, editor.site.role)
    seen = list(record(model, batches, [site.hook_name]))
    code = torch.cat([code_features(task, a.episodes.codes) for a in seen])
    composition = torch.cat([a.episodes.composition for a in seen])
    x = torch.cat([a.sites[site.hook_name][:, at] for a in seen])
    fold = torch.tensor([fold_of[c] for c in composition.tolist()], device=code.device)
    capacity, groups = (editor.coordinates.mean_activation.capacity,), range(max(fold_of.values()) + 1)
    return [_fitted(site, x[fold != g], code[fold != g], composition[fold != g], capacity) for g in groups]


WIDEST = 512
"""Features of a conditional editor: of the activation's principal axes, as many are taken as these allow."""
AXES = 32
"""…and no more than so many."""
THIN = 1e-4
"""Axes along which mean activations vary by less than this share of the first's variance are left out."""
PAIRED = 3
"""Other codes under which the inputs of every fitted episode are shown."""


@dataclass(frozen=True)
class ConditionalEditor:
    """Writes a code at a site where its form depends on what else stands there: one change, added at every position.

    The change is linear in the products of the mean activation's principal coordinates and the new code. Since it is the same
    at every position of the site, it cannot rewrite examples, each of which has another answer under another code.

    Args:
        site: where.
        mean: (d,) of mean activations.
        axes: (d, r) principal axes, in units of one standard deviation.
        change: from products (n, (1 + r) (1 + width) - 1) to the change (n, d).
        left_out: R² of the change on left-out training compositions.
        shown: where activations lie there.
    """

    site: Site
    mean: Tensor
    axes: Tensor
    change: RidgeReadout
    left_out: float
    shown: Range

    def write(self, model: HookedModel, activation: Tensor, code: Tensor) -> Tensor:
        """The activation with a code in the stead of its own.

        Args:
            model: the model.
            activation: (batch, pos, d).
            code: (batch, width).

        Returns:
            (batch, pos, d).
        """
        at = positions(model, self.site.role)
        edited = activation.clone()
        here = self.shown(activation[:, at])
        state = here.flatten(2).double().mean(1)
        added = self.change(_products((state - self.mean) @ self.axes, code))
        edited[:, at] = here + added[:, None].view(-1, 1, *here.shape[2:]).to(here)
        return edited


def _products(state: Tensor, code: Tensor) -> Tensor:
    """(n, (1 + r) (1 + width) - 1): state (n, r), code (n, width), and their products."""
    one = state.new_ones(len(state), 1)
    both = torch.cat([one, state], dim=1)[:, :, None] * torch.cat([one, code.double()], dim=1)[:, None]
    return both.flatten(1)[:, 1:]


class Changes(NamedTuple):
    """Mean activations of training episodes, and of the same inputs under other codes.

    Args:
        states: site -> (n, d).
        others: site -> (n, d), of the inputs under the other codes.
        code: (n, width), the other codes.
        composition: (n,) of the other codes.
    """

    states: dict[Site, Tensor]
    others: dict[Site, Tensor]
    code: Tensor
    composition: Tensor

    @classmethod
    def of(
        cls, model: HookedModel, task: TaskFamily, batches: Sequence[Episodes | Activations], where: Sequence[Site]
    ) -> Changes:
        """Record them.

        Args:
            model: the model.
            task: the family, which must be able to `render`.
            batches: the episodes, or what was recorded of them; every one is shown under `PAIRED` others' codes of its batch.
            where: the sites.

        Returns:
            What was recorded, `PAIRED` rows for every episode.
        """
        hook_names = list(dict.fromkeys(site.hook_name for site in where))
        states: dict[Site, list[Tensor]] = {site: [] for site in where}
        others: dict[Site, list[Tensor]] = {site: [] for site in where}
        code, composition = [], []
        for seen in record(model, batches, hook_names):
            batch = seen.episodes
            for shift in range(1, PAIRED + 1):
                codes = {name: one.roll(shift, 0) for name, one in batch.codes.items()}
                (other,) = record(model, [task.render(codes, batch.inputs)], hook_names)
                code.append(code_features(task, codes))
                composition.append(batch.composition.roll(shift, 0))
                for site in where:
                    states[site].append(state(model, seen.sites[site.hook_name], site).double())
                    others[site].append(state(model, other.sites[site.hook_name], site).double())
        together = {site: torch.cat(found) for site, found in states.items()}
        return cls(
            together, {site: torch.cat(found) for site, found in others.items()}, torch.cat(code), torch.cat(composition)
        )

    def permuted(self) -> Changes:
        """The same with other rows' codes, as a control."""
        order = torch.randperm(len(self.code), generator=torch.Generator().manual_seed(0)).to(self.code.device)
        return self._replace(code=self.code[order], composition=self.composition[order])

    def fit(self, site: Site, shown: Range, without: Tensor | None = None, l2: float | None = None) -> ConditionalEditor:
        """The editor at a site.

        Args:
            site: one of those recorded.
            shown: where activations lie there.
            without: (n,) bool, rows that are left out of the fit; None for none.
            l2: the penalty; None: chosen by leaving compositions out.

        Returns:
            The editor.
        """
        kept = torch.ones_like(self.composition, dtype=torch.bool) if without is None else ~without
        x, y, code, fold = (
            self.states[site][kept],
            self.others[site][kept],
            self.code[kept],
            folds_of(self.composition[kept]),
        )
        mean = x.mean(0)
        values, vectors = torch.linalg.eigh((x - mean).T @ (x - mean) / len(x))
        many = int((values > THIN * values[-1]).sum())
        r = max(1, min(AXES, WIDEST // (1 + code.shape[1]) - 1, many))
        axes = vectors[:, -r:] / values[-r:].clamp(min=1e-300).sqrt()
        features = _products((x - mean) @ axes, code)
        groups = [Moments.of(features[fold == g], (y - x)[fold == g]) for g in fold.unique().tolist()]
        left_out = float("nan")
        if l2 is None:
            l2, scores = leave_groups_out(groups, PENALTIES)
            left_out = max(scores)
        return ConditionalEditor(site, mean, axes, Moments.total(groups).fit([l2])[0], left_out, shown)


def donors(task: TaskFamily, episodes: Episodes, codes: dict[str, Tensor], shift: int = 1) -> Episodes:
    """Real episodes of some codes, with the inputs of other episodes of the batch.

    Args:
        task: the family, which must be able to `render`.
        episodes: whose inputs are taken.
        codes: of the donors, one for every episode.
        shift: whose inputs a donor has: those of the episode so many before.

    Returns:
        The donors, in the order of the codes.
    """
    return task.render(codes, episodes.inputs.roll(shift, 0))


def put_in(model: HookedModel, base: Tensor, donor: Tensor, site: Site) -> Tensor:
    """The base's activation with the donor's at the site's positions.

    Args:
        model: the model.
        base: (batch, pos, d).
        donor: of that shape.
        site: where.

    Returns:
        (batch, pos, d).
    """
    at = positions(model, site.role)
    edited = base.clone()
    edited[:, at] = donor[:, at]
    return edited


class Assembled(NamedTuple):
    """States made of two training donors, which no episode has: one part of the code is from each.

    Args:
        first: (n,) which training episodes the states start from.
        second: (n,) which ones the missing parts are from.
        states: (n, pos, d).
    """

    first: Tensor
    second: Tensor
    states: Tensor


def assemble(wanted: Tensor, code: Tensor, activation: Tensor) -> Assembled:
    """States of codes that training compositions do not show, from pairs of them that hold their parts.

    The first donor is the training episode whose code is nearest to the one wanted; the second is the one that has most of
    what the first lacks. Every factor is taken from whichever donor is nearer to the code wanted: what the second has beyond
    the first is added along the directions in which the mean activation varies with the factors taken from it, along those
    of the others nothing.

    Args:
        wanted: (n, width) codes.
        code: (m, width) of training episodes.
        activation: (m, pos, d) of these.

    Returns:
        The donors and the states.
    """
    off = (wanted[:, None] - code).square()  # (n, m, width)
    first = off.sum(-1).argmin(1)
    lacks = off[torch.arange(len(wanted), device=off.device), first]
    second = torch.minimum(lacks[:, None], off).sum(-1).argmin(1)
    from_second = off[torch.arange(len(wanted), device=off.device), second] < lacks
    # of the mean activation: a row per factor
    rows = RidgeReadout.fit(code, activation.double().mean(1), l2=1e-6, standardize=False).weight
    states = activation[first].clone()
    change = (activation[second] - activation[first]).double()
    for mask in from_second.unique(dim=0):
        here = (from_second == mask).all(1)
        if not bool(mask.any()):
            continue
        ordered = torch.cat([rows[mask], rows[~mask]])
        along = change[here] @ torch.linalg.pinv(ordered, rtol=1e-6)
        k = int(mask.sum())
        states[here] = (activation[first][here] + along[..., :k] @ ordered[:k]).to(states)
    return Assembled(first, second, states)
