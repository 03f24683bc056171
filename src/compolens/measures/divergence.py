"""How far an intervention's states lie from natural ones (2511.04638), along all directions and along those that count.

A state's distance is that to the nearest of many natural states, along the principal axes of these, each in units of one
standard deviation. Natural states that were not among them have the same distance from them: what an intervention's states
have beyond that is divergence. Along directions to which nothing downstream is sensitive it is harmless.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

VARIANCE = 0.999
"""Axes that hold this share of the natural states' variance are looked along."""
FLOOR = 1e-3
"""…and no axis whose standard deviation is below this share of the largest."""


@dataclass(frozen=True)
class Natural:
    """Natural states, as points to measure distances from.

    Args:
        mean: (d,).
        axes: (d, r), principal axes over their standard deviations.
        points: (n, r) the states.
    """

    mean: Tensor
    axes: Tensor
    points: Tensor

    @classmethod
    def fit(cls, x: Tensor) -> Natural:
        """The cloud of natural states.

        Args:
            x: (n, d) the states.

        Returns:
            What distances are measured from.
        """
        x = x.double()
        mean = x.mean(0)
        values, vectors = torch.linalg.eigh((x - mean).T @ (x - mean) / len(x))
        values, vectors = values.flip(0).clamp(min=0), vectors.flip(1)
        held = values.cumsum(0) / values.sum().clamp(min=1e-300)
        r = int((held < VARIANCE).sum()) + 1
        kept = (torch.arange(len(values)) < r) & (values.cpu() > FLOOR**2 * values[0].cpu())
        axes = vectors[:, kept] / values[kept].clamp(min=1e-300).sqrt()
        return cls(mean, axes, (x - mean) @ axes)

    def distance(self, x: Tensor, without: Tensor | None = None) -> Tensor:
        """How far states are from the nearest natural one.

        Args:
            x: (n, d).
            without: (n, k) which of the natural states do not count: those that a state was made of (None: all count).

        Returns:
            (n,) in standard deviations per axis, at least 0.
        """
        along = (x.double() - self.mean) @ self.axes
        squared = along.square().sum(1)[:, None] + self.points.square().sum(1) - 2 * along @ self.points.T
        if without is not None:
            squared = squared.scatter(1, without, torch.inf)
        return (squared.amin(1).clamp(min=0) / max(self.axes.shape[1], 1)).sqrt()


def sensitive(gradients: Tensor, share: float = 0.99) -> Tensor:
    """The directions in which what comes after is sensitive: those that hold nearly all of the gradients' square.

    Args:
        gradients: (n, d), of answers by states.
        share: of the square, in (0, 1].

    Returns:
        (d, r) orthonormal; r is 0 where nothing depends on the state.
    """
    g = gradients.double()
    values, vectors = torch.linalg.eigh(g.T @ g)
    values, vectors = values.flip(0).clamp(min=0), vectors.flip(1)
    if not float(values.sum()) > 0:
        return vectors[:, :0]
    r = int((values.cumsum(0) / values.sum() < share).sum()) + 1
    return vectors[:, :r]
