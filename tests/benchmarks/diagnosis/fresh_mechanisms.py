"""Ways of going about a task, and of failing at it, that no rule of the diagnosis was chosen on.

The label each is expected to get, and why, stands in its docstring; all were written down before any was diagnosed.
"""

from __future__ import annotations

import torch
from knowledge import Knowledge
from mechanisms import Mechanism
from torch import Tensor, nn


class Rotated(Mechanism):
    """Expected: compositional. The message is the code, turned by a fixed random rotation that the executor undoes: nothing is
    lost, no entry of the message belongs to one part."""

    def __init__(self, knowledge: Knowledge, strength: float) -> None:
        super().__init__(knowledge, strength)
        self.turn = nn.Parameter(torch.linalg.qr(torch.randn(self.width, self.width)).Q)

    def write(self, x: Tensor, y: Tensor) -> Tensor:
        return self.knowledge.infer(x, y) @ self.turn

    def read(self, message: Tensor, x: Tensor) -> Tensor:
        return self.knowledge.execute(message @ self.turn.T, x)


class Shrunken(Mechanism):
    """Expected: fails to infer. What is inferred of a held-out composition names the right parts in the wrong size, a third of
    it at full strength; the right size stands nowhere, and the executor answers right once it is given."""

    lost = 2 / 3

    def write(self, x: Tensor, y: Tensor) -> Tensor:
        code = self.knowledge.infer(x, y)
        return code * (1 - self.lost * self.strength * self._unseen(code))


class AverageCode(Mechanism):
    """Expected: fails to infer. Where the examples come from no training composition the encoder gives up and writes the mean
    of the training compositions' parts, whatever the examples; the executor answers right once it is given the right code."""

    def write(self, x: Tensor, y: Tensor) -> Tensor:
        code = self.knowledge.infer(x, y)
        return code + self.strength * self._unseen(code) * (self.knowledge.trained.mean(0) - code)


class NotCarried(Mechanism):
    """Expected: infers but does not use. The right code stands at the context for every composition; the questions take it
    over for training compositions and not for held-out ones, and would answer right if it stood with them."""

    def carry(self, message: Tensor) -> Tensor:
        return message * (1 - self.strength * self._unseen(message))


class HalfBlind(Mechanism):
    """Expected: cannot execute. The right code reaches the executor, which for parts that were never trained together sees but
    half of the question's coordinates, the others at their mean: no code can bring back what is not looked at."""

    def read(self, message: Tensor, x: Tensor) -> Tensor:
        hidden = (torch.arange(self.knowledge.d_x) < self.knowledge.d_x // 2).to(x)
        blind = self.strength * self._unseen(message)[:, None] * hidden
        return self.knowledge.execute(message, x + blind * (self.knowledge.centre - x))
