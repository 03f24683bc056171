"""States at a site beside natural ones: what is compared, and along which directions.

A state is the mean of an activation over the site's positions. How far it lies from natural states is measured by
`measures.divergence` along all directions, along those to which the answers are sensitive, and along the rest: what lies in
the rest is harmless (2511.04638).
"""

from __future__ import annotations

import torch
from torch import Tensor

from compolens.activations.sites import Site, positions, put
from compolens.hooks import HookedModel
from compolens.measures.divergence import Natural, sensitive
from compolens.tasks.base import TaskFamily
from compolens.tasks.episodes import Episodes

ALL, SENSITIVE, REST = "all", "sensitive", "rest"
"""The directions along which a distance is taken, as the column `directions` names them."""
SIGNS = 4
"""Random signs by which answers are added up before their slope is taken."""


def state(model: HookedModel, activation: Tensor, site: Site) -> Tensor:
    """What stands at a site, averaged over its positions.

    Args:
        model: the model.
        activation: (batch, pos, …) at the site's hook point, or (batch, d) of an explicit code.
        site: where.

    Returns:
        (batch, d) float64.
    """
    return _at(model, activation, site).mean(1).double()


def _at(model: HookedModel, activation: Tensor, site: Site) -> Tensor:
    """(batch, pos, d) what stands at a site; an explicit code, which has no positions, as one."""
    there = activation[:, positions(model, site.role)]
    return there[:, None] if there.ndim == 2 else there.flatten(2)


def directions(
    model: HookedModel, task: TaskFamily, site: Site, episodes: Episodes, activation: Tensor
) -> dict[str, Tensor | None]:
    """What states at a site are projected on.

    Args:
        model: the model.
        task: the family.
        site: where.
        episodes: a batch of natural episodes.
        activation: (batch, pos, d) what stands there.

    Returns:
        `ALL` -> None: nothing is taken away; `SENSITIVE` -> (d, r), where answers have a slope; `REST` -> (d, d - r). A basis
        of no columns is left out.
    """
    start = activation.detach().clone().requires_grad_()
    with torch.enable_grad():
        answer = put(model, episodes.tokens, site, start)[:, list(task.answers)]
        rng = torch.Generator().manual_seed(0)
        found = []
        for _ in range(SIGNS):
            signs = (torch.randint(0, 2, answer.shape, generator=rng) * 2 - 1).to(answer)
            slope = torch.autograd.grad((answer * signs).sum(), start, retain_graph=True, allow_unused=True)[0]
            found.append(torch.zeros_like(start) if slope is None else slope)
    slopes = [_at(model, g, site).flatten(0, 1) for g in found]
    d = slopes[0].shape[1]
    axes = sensitive(torch.cat(slopes).cpu())
    rest = torch.linalg.qr(torch.cat([axes, torch.eye(d, dtype=torch.float64)], dim=1)).Q[:, axes.shape[1] :]
    ways: dict[str, Tensor | None] = {ALL: None}
    return ways | {name: a.to(activation.device) for name, a in ((SENSITIVE, axes), (REST, rest)) if a.shape[1]}


def distances(known: Tensor, x: Tensor, ways: dict[str, Tensor | None], without: Tensor | None = None) -> dict[str, Tensor]:
    """How far states are from natural ones.

    Args:
        known: (m, d) natural states.
        x: (n, d) states.
        ways: from `directions`.
        without: (n, k) which natural states do not count, those that a state was made of (None: all count).

    Returns:
        directions -> (n,) distances, in standard deviations per axis.
    """
    found = {}
    for name, axes in ways.items():
        there, here = (known, x) if axes is None else (known @ axes, x @ axes)
        found[name] = Natural.fit(there).distance(here, without)
    return found


def new_compositions(known: Tensor, composition: Tensor, ways: dict[str, Tensor | None]) -> dict[str, Tensor]:
    """How far natural states of one composition lie from those of all others: what is expected of a composition never seen.

    Args:
        known: (m, d) natural states.
        composition: (m,) ints, theirs.
        ways: from `directions`.

    Returns:
        directions -> (m,) distances, each composition's in turn; of one composition alone, from itself.
    """
    groups = composition.unique().tolist()
    if len(groups) < 2:
        return distances(known, known, ways)
    each = [distances(known[composition != c], known[composition == c], ways) for c in groups]
    return {way: torch.cat([one[way] for one in each]) for way in ways}
