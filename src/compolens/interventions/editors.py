"""Editors that need not be linear in the code: what stands at a site is replaced by what goes with another code.

The linear editor of `interventions.oracles` erases what the code's own coordinates tell and adds a mean linear in them. Here
the code's coordinates are fitted first: the mean activation given the code, a readout *from* the code of a capacity that
left-out training compositions choose (`measures.capacity`), along the axes in which it varies. Erasing and adding is done in
these. Answers play no part in any fit, so that an editor cannot make a model agree (2507.08802); on an untrained model, and
with codes permuted, it has nothing to write and must fail.

A donor is a real episode of the same code with other inputs, whose activation is put at the site as it is. Nothing can be
copied: what counts is the answer to the base's own question.

Of a model that does not infer, no episode holds the right code of a held-out composition. Then the state is assembled from two
training donors (`assemble`), which is not natural, and has to be shown to lie where natural states do.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from compolens.activations.sites import Site, positions
from compolens.activations.streams import Activations, record
from compolens.hooks import HookedModel
from compolens.interventions.oracles import code_features
from compolens.measures.capacity import Readout
from compolens.measures.erasure import Range, Writer
from compolens.measures.readouts import RidgeReadout
from compolens.tasks.base import Episodes, TaskFamily

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
    def fit(cls, code: Tensor, activation: Tensor, composition: Tensor) -> Coordinates:
        """The coordinates of codes at a site.

        Args:
            code: (n, width).
            activation: (n, d), mean over the site's positions.
            composition: (n,) ints; capacity and penalty are chosen by leaving them out.

        Returns:
            The coordinates, one at least.
        """
        readout = Readout.fit(code, activation, composition)
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
        coordinates = Coordinates.fit(code, x.flatten(2).mean(1), composition)
        rows = x.flatten(0, 1)
        writer = Writer.fit(rows, coordinates(code).repeat_interleave(x.shape[1], dim=0))
        found.append(Editor(site, coordinates, writer, Range.fit(rows)))
    return found


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
