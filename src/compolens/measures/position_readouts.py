"""Readouts that choose their positions: softmax attention over tokens, learned, then a linear or a two-layer map (2211.15661).

A readout has one score per position and one map, whatever the episode: it reads value = f(sum_t softmax(s)_t h_t). Many are
fitted at once, each by itself: Adam changes every number by its own gradient alone, so what one readout learns does not depend
on the others.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu

from compolens.measures.optimizers import Adam

FASTER = 3.0
"""How much larger the rate of the scores is: they go a long way from even attention to one position."""


@dataclass(frozen=True)
class Fitting:
    """How readouts are fitted.

    Args:
        updates: steps of Adam, 1 or more.
        rate: of Adam at the first step, for the maps; it falls to 0 along a cosine. Scores of positions learn `FASTER`.
        batch: episodes of a step.
        hidden: units of the hidden layer (0: the map is linear).
        seed: draws the hidden layer's first weights and the order of episodes.
    """

    updates: int = 1000
    rate: float = 1e-2
    batch: int = 256
    hidden: int = 0
    seed: int = 0


@dataclass(frozen=True)
class PositionReadouts:
    """Frozen readouts, one for every stack of activations and every target.

    Args:
        attention: (stack, target, position), at least 0, with sum 1 over positions.
        network: what maps means over positions, standardised, to standardised targets.
        shift: (stack, 1, feature), means of the activations.
        scale: (stack, 1, feature), their standard deviations; infinite where a feature does not vary.
        middle: (target, 1, output), means of the targets.
        unit: (target, 1, output), their standard deviations.
    """

    attention: Tensor
    network: _Maps
    shift: Tensor
    scale: Tensor
    middle: Tensor
    unit: Tensor

    @torch.no_grad()
    def __call__(self, states: Tensor) -> Tensor:
        """What the readouts say.

        Args:
            states: (stack, episode, position, feature).

        Returns:
            (stack, target, episode, output), in the unit of the targets, float32.
        """
        mean = torch.einsum("ktp,kbpd->ktbd", self.attention, _standardised(states, self.shift, self.scale))
        return self.network(mean) * self.unit + self.middle

    @classmethod
    def fit(cls, states: Tensor, targets: Tensor, seen: Tensor, how: Fitting) -> PositionReadouts:
        """Readouts with the least mean squared error that Adam finds.

        Args:
            states: (stack, episode, position, feature).
            targets: (target, episode, output).
            seen: (target,) ints: a target is read from so many leading positions, at least 1.
            how: of the fit.

        Returns:
            The readouts.
        """
        rng = torch.Generator().manual_seed(how.seed)
        flat = states.float().flatten(1, 2)
        spread = flat.std(1, keepdim=True)
        shift, scale = flat.mean(1, keepdim=True), torch.where(spread > 1e-6, spread, torch.inf)
        middle, unit = targets.float().mean(1, keepdim=True), targets.float().std(1, keepdim=True).clamp(min=1e-6)
        inputs, wanted = _standardised(states, shift, scale), (targets.float() - middle) / unit
        stacks, count, positions, width = len(states), len(targets), states.shape[2], states.shape[3]
        hidden_from = torch.arange(positions, device=states.device) >= seen[:, None].to(states.device)
        scores = nn.Parameter(torch.zeros(stacks, count, positions, device=states.device))
        network = _Maps(stacks, count, width, targets.shape[2], how.hidden, rng).to(states.device)
        groups: list[dict[str, Any]] = [{"params": [scores], "lr": FASTER * how.rate}, {"params": list(network.parameters())}]
        adam = Adam(groups, lr=how.rate)
        falling = torch.optim.lr_scheduler.CosineAnnealingLR(adam, how.updates)
        for _ in range(how.updates):
            some = torch.randint(states.shape[1], (how.batch,), generator=rng).to(states.device)
            attention = scores.masked_fill(hidden_from, -torch.inf).softmax(-1)
            said = network(torch.einsum("ktp,kbpd->ktbd", attention, inputs[:, some]))
            loss = (said - wanted[:, some]).square().mean((2, 3)).sum()
            adam.zero_grad()
            loss.backward()
            adam.step()
            falling.step()
        found = scores.detach().masked_fill(hidden_from, -torch.inf).softmax(-1)
        return cls(found, network.requires_grad_(False), shift, scale, middle, unit)


def _standardised(states: Tensor, shift: Tensor, scale: Tensor) -> Tensor:
    return (states.float() - shift[:, None]) / scale[:, None]


class _Maps(nn.Module):
    """(stack, target, episode, feature) -> (stack, target, episode, output), a map for every stack and target.

    The last layer begins at 0: a map that is wrong at random would first turn the attention away from the right tokens."""

    def __init__(self, stacks: int, targets: int, width: int, outputs: int, hidden: int, rng: torch.Generator) -> None:
        super().__init__()
        sizes = [width, hidden, outputs] if hidden else [width, outputs]
        self.weights, self.biases = nn.ParameterList(), nn.ParameterList()
        for into, out in pairwise(sizes):
            size = 0.0 if len(self.weights) == len(sizes) - 2 else into**-0.5
            self.weights.append(torch.randn(stacks, targets, into, out, generator=rng) * size)
            self.biases.append(torch.zeros(stacks, targets, 1, out))

    def forward(self, x: Tensor) -> Tensor:
        for number, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            x = (gelu(x) if number else x) @ weight + bias
        return x
