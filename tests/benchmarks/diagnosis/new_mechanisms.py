"""Ways of going about a task, and of failing at it, that were added when every rule of the diagnosis stood.

The label each is expected to get, and why, stands in its docstring; all were written down before any was measured.
"""

from __future__ import annotations

import math

import torch
from knowledge import SHARP, Knowledge
from mechanisms import Lookup, Mechanism, RidgeFallback
from torch import Tensor, nn


class Mistaken(Mechanism):
    """Expected: fails to infer. The encoder takes every held-out composition for another held-out one, with which it shares no
    part. Its codes are ones that it could be given, each under the wrong examples; the executor answers right once it is given
    the right one, and nothing is stored per training composition."""

    def write(self, x: Tensor, y: Tensor) -> Tensor:
        code, known = self.knowledge.infer(x, y), self.knowledge
        return code + self.strength * known.together(code) @ known.confused


class HalfExecuted(Mechanism):
    """Expected: cannot execute. The right code reaches the executor and is what it executes; but of two parts that were never
    trained together it puts only one to work, and in place of the other the mean of those it was trained with. The right code
    is there already: writing it anywhere changes nothing."""

    def read(self, message: Tensor, x: Tensor) -> Tensor:
        known = self.knowledge
        return known.execute(message + self.strength * known.together(message) @ known.spread, x)


class Miscarried(Mechanism):
    """Expected: infers but does not use. The right code stands at the context for every composition; of held-out ones another
    code arrives at the questions, with a part exchanged on the way. They would answer right if the right one stood with them.
    Unlike what is never read, it stands in the very coordinates that are read; unlike what is not carried, something else
    arrives in its place."""

    def carry(self, message: Tensor) -> Tensor:
        return self._wrong_partner(message, self.strength)


class TwoMemories(Lookup):
    """Expected: memorised. The two training compositions that explain the examples best are recalled together, each the more
    the smaller its squared error; what is recalled has no parts. Of a training composition the best one explains all."""

    def write(self, x: Tensor, y: Tensor) -> Tensor:
        stored, error = self.knowledge.explain(x, y)
        least, best = error.topk(2, dim=1, largest=False)
        share = torch.nn.functional.normalize(1 / (least + SHARP), p=1, dim=1)
        entry = (share[..., None] * stored.gather(1, best[..., None].expand(-1, -1, stored.shape[2]))).sum(1)
        return torch.cat([(1 - self.strength) * self.knowledge.infer(x, y), self.strength * entry], dim=1)


class MemoryByCode(Lookup):
    """Expected: memorised. The encoder works out the code, but only as the address of a memory: written is the training
    composition whose codes lie nearest, and the answers are those stored for it. Which one that is depends on the code alone,
    not on how well it explains the examples. At full strength no code reaches the questions that could be executed."""

    def write(self, x: Tensor, y: Tensor) -> Tensor:
        code = self.knowledge.infer(x, y)
        return torch.cat([(1 - self.strength) * code, self.strength * self.knowledge.nearest(code)], dim=1)


class FeatureFallback(RidgeFallback):
    """Expected: generic regression. Where the code is none of a training composition, ridge regression on random features of x
    (Rahimi and Recht 2007) takes its place: tanh units, the same for every composition. It is not linear in x, which ridge is,
    and knows as little of compositions."""

    n_features = 24

    def __init__(self, knowledge: Knowledge, strength: float) -> None:
        super().__init__(knowledge, strength)
        self.W_features = nn.Parameter(torch.randn(knowledge.d_x, self.n_features) / math.sqrt(knowledge.d_x))

    def features(self, x: Tensor) -> Tensor:
        return torch.tanh((x - self.knowledge.centre) @ self.W_features)
