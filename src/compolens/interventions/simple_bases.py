"""Directions that are not searched for, and a placebo that moves a state as far: what a learned subspace must beat.

A search finds effects in untrained models too, and any exchange displaces the state. So a learned subspace stands beside the
differences between compositions' mean states, beside a linear readout's directions, beside single coordinates, and beside
random directions along which every state is moved exactly as far. Bases, exchange and placebo are those of TransformerLens.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from compolens.hooks import interchange_tools
from compolens.interventions.interchange import Held
from compolens.measures.readouts import PENALTIES, Moments, add_by_group, leave_groups_out

MEAN_DIFFERENCE, READOUT, NEURONS = "mean difference", "readout", "neurons"


def simple_bases(x: Tensor, code: Tensor, composition: Tensor, most: int) -> dict[str, Tensor]:
    """Bases that need no search, from states of training compositions; nested, as learned ones are.

    Args:
        x: (n, d) states.
        code: (n, width) their codes.
        composition: (n,) ints, their compositions.
        most: the largest rank that is asked for, 1 or more.

    Returns:
        name -> (d, k) orthonormal float32, k at most `most`, the directions of most weight first: "mean difference", of
        compositions' mean states; "readout", of the ridge from state to code whose penalty left-out compositions choose;
        "neurons", the coordinates in which the state varies most with the code. A basis of rank 0 is left out.
    """
    x, code = x.double().cpu(), code.double().cpu()
    which = composition.cpu()
    means = torch.stack([x[which == c].mean(0) for c in which.unique()])
    groups: dict[int, Moments] = {}
    add_by_group(groups, x, code, which)
    total = Moments.total(groups.values())
    l2 = leave_groups_out(list(groups.values()), PENALTIES)[0] if len(groups) > 1 else 1.0
    weight = total.fit([l2])[0].weight
    away = code - code.mean(0)
    explained = away @ torch.linalg.lstsq(away, x - x.mean(0), driver="gelsd").solution
    order = explained.square().sum(0).argsort(descending=True, stable=True)[: min(most, x.shape[1])]
    found = {
        MEAN_DIFFERENCE: _leading(means.T - x.mean(0)[:, None], most),
        READOUT: _leading(weight, most),
        NEURONS: interchange_tools().neuron_basis(x.shape[1], order),
    }
    return {name: basis for name, basis in found.items() if basis.shape[1]}


def _leading(matrix: Tensor, most: int) -> Tensor:
    """(d, k) the leading left singular vectors of a (d, m) matrix, none for a matrix of zeros."""
    left, sizes, _ = torch.linalg.svd(matrix, full_matrices=False)
    kept = sizes > 1e-6 * sizes.max().clamp(min=1e-300)
    return left[:, kept][:, :most].float()


def norm_matched(held: Held, where: list[int] | slice, basis: Tensor, random: Tensor) -> Tensor:
    """The base's activation, moved along random directions exactly as far as an exchange moves it.

    Args:
        held: what base and source hold.
        where: the positions that are edited.
        basis: (d, k), of the exchange.
        random: (d, m) orthonormal, along which the state is moved towards the source's.

    Returns:
        (batch, pos, d).
    """
    tools = interchange_tools()
    move: Callable[[Tensor, Tensor], Tensor] = tools.NormMatchedPlacebo(tools.SubspaceInterchange(basis), random)
    edited = held.base.clone()
    edited[:, where] = move(held.base[:, where], held.source[:, where])
    return edited


def random_neurons(d: int, k: int, seed: int, chosen: Sequence[int] = ()) -> Tensor:
    """Coordinates drawn at random, the placebo of "neurons".

    Args:
        d: width of the site.
        k: how many.
        seed: of the draw.
        chosen: coordinates that are not drawn, where enough others are left.

    Returns:
        (d, k) unit vectors.
    """
    left_out = list(chosen) if d - len(chosen) >= k else []
    return interchange_tools().random_neuron_basis(d, k, seed, exclude=left_out)
