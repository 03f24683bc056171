"""Ways of going about a task, and of failing at it, of the fourth fresh set.

The label each is expected to get, and why, stands in its docstring; all were written down before any was measured, and without
knowing the rules of the diagnosis.
"""

from __future__ import annotations

import math

import torch
from knowledge import SHARP, Knowledge
from mechanisms import Mechanism
from torch import Tensor, nn

FAMILIAR = 100.0
"""What keeps a part that is at work from being selected once more: more than any drive."""


def projected(x: Tensor, knowledge: Knowledge, weights: Tensor) -> Tensor:
    """(batch, k): the sum of the inputs x (batch, n, d_x) on weights (d_x, k); each has a standard deviation of about the
    weights' norm."""
    return (x - knowledge.centre).sum(1) / (knowledge.input_size * math.sqrt(x.shape[1])) @ weights


class Deferred(Mechanism):
    """Expected: compositional. No code stands anywhere in the stream: the examples themselves are handed to the questions, and
    each question infers the code anew, and executes it. Held-out compositions are answered as training ones are."""

    def __init__(self, knowledge: Knowledge, strength: float) -> None:
        self.n_examples = knowledge.task.seq - len(knowledge.task.answers)  # the width depends on it
        super().__init__(knowledge, strength)

    @property
    def width(self) -> int:
        return self.n_examples * (self.knowledge.d_x + self.knowledge.d_y)

    def write(self, x: Tensor, y: Tensor) -> Tensor:
        return torch.cat([x, y], dim=-1).flatten(1)

    def read(self, message: Tensor, x: Tensor) -> Tensor:
        shown = message.unflatten(1, (self.n_examples, -1)).tensor_split([self.knowledge.d_x], dim=-1)
        return self.knowledge.execute(self.knowledge.infer(*shown), x)


class Intruder(Mechanism):
    """Expected: fails to infer. The code of a held-out composition has a part too many: beside the two right ones a
    third one, half as large again, which the examples' inputs select among all others, whatever their answers. Nothing in the
    code says which of the three is not at work, and nothing else is written; the executor answers right once it is given the
    right code."""

    size = 1.5

    def __init__(self, knowledge: Knowledge, strength: float) -> None:
        super().__init__(knowledge, strength)
        self.W_select = nn.Parameter(torch.randn(knowledge.d_x, knowledge.n_parts))

    def select(self, x: Tensor, code: Tensor) -> Tensor:
        """(batch, M): one part that is not in the code, one-hot."""
        return torch.softmax((projected(x, self.knowledge, self.W_select) - FAMILIAR * code) / SHARP, dim=1)

    def write(self, x: Tensor, y: Tensor) -> Tensor:
        code = self.knowledge.infer(x, y)
        size = self.size * code.sum(1, keepdim=True) / 2
        return code + self.strength * self._unseen(code) * size * self.select(x, code)


class Lapsing(Mechanism):
    """Expected: fails to infer. The encoder errs in most episodes of held-out compositions and not in the others: which
    ones, the examples' inputs decide. Where it errs, a part is exchanged for one that its partner was trained with, and the
    right one stands nowhere; where it does not, the very same composition gets its right code. The executor answers right once
    it is given the right code. Strength is how often, not how far."""

    most = 0.85

    def __init__(self, knowledge: Knowledge, strength: float) -> None:
        super().__init__(knowledge, strength)
        self.w_lapse = nn.Parameter(torch.randn(knowledge.d_x, 1))

    def lapse(self, x: Tensor) -> Tensor:
        """(batch, 1): 1 where examples at x (batch, n, d_x) are ones to err on, else 0; mean `most` times the strength."""
        drive = projected(x, self.knowledge, self.w_lapse) / self.w_lapse.norm()
        limit = torch.special.ndtri(torch.tensor(self.most * self.strength)).to(x)
        return torch.sigmoid((limit - drive) / SHARP)

    def write(self, x: Tensor, y: Tensor) -> Tensor:
        code = self.knowledge.infer(x, y)
        return code + self.lapse(x) * (self._wrong_partner(code, 1.0) - code)


class Untranslated(Mechanism):
    """Expected: infers but does not use. The context holds the right code of every composition in coordinates of its own, the
    same for all; on the way to the questions it is translated into those that are read there. Held-out compositions' codes
    arrive as they left: nothing is lost, and nothing wrong was inferred, but what is read is not what is meant. They would be
    answered right if the right code stood with the questions."""

    def __init__(self, knowledge: Knowledge, strength: float) -> None:
        super().__init__(knowledge, strength)
        self.turn = nn.Parameter(turn_about_the_mean(knowledge.n_parts))

    def write(self, x: Tensor, y: Tensor) -> Tensor:
        return self.knowledge.infer(x, y) @ self.turn

    def carry(self, message: Tensor) -> Tensor:
        code = message @ self.turn.T
        return code + self.strength * self._unseen(code) * (message - code)


def turn_about_the_mean(n: int) -> Tensor:
    """(n, n): a random rotation that keeps the sum of the coordinates, so that what is turned keeps its size as a code."""
    basis = torch.linalg.qr(torch.cat([torch.ones(n, 1), torch.randn(n, n - 1)], dim=1)).Q
    within = torch.block_diag(torch.ones(1, 1), torch.linalg.qr(torch.randn(n - 1, n - 1)).Q)
    return basis @ within @ basis.T


class Turned(Mechanism):
    """Expected: cannot execute. The right code reaches the executor and is what it executes; but for parts that were never
    trained together it sees the question turned by a fixed random rotation about the inputs' mean. The right code is there
    already, and no other one turns the question back."""

    def __init__(self, knowledge: Knowledge, strength: float) -> None:
        super().__init__(knowledge, strength)
        self.turn = nn.Parameter(torch.linalg.qr(torch.randn(knowledge.d_x, knowledge.d_x)).Q)

    def read(self, message: Tensor, x: Tensor) -> Tensor:
        centred = x - self.knowledge.centre
        seen = centred @ self.turn
        return self.knowledge.execute(message, x + self.strength * self._unseen(message)[:, None] * (seen - centred))


class ByColumn(Mechanism):
    """Expected: memorised. Every coordinate of the answer is recalled by itself, from the training composition that explains
    the examples' values of that coordinate best. Each is one stored whole; different coordinates may come from different ones.
    Of a training composition all come from itself. Where an answer has one coordinate, this is a lookup."""

    @property
    def width(self) -> int:
        return self.knowledge.n_parts + self.knowledge.d_y * self.knowledge.entries

    def columns(self, x: Tensor, y: Tensor) -> Tensor:
        """(batch, d_y, entries): what is recalled for each coordinate."""
        stored, _ = self.knowledge.explain(x, y)
        points = x[:, None].expand(-1, stored.shape[1], -1, -1).flatten(0, 1)
        recalled = self.knowledge.recall(stored.flatten(0, 1), points).unflatten(0, stored.shape[:2])
        error = (recalled - y[:, None]).square().sum(2)  # (batch, C, d_y)
        return torch.softmax(-error / SHARP, dim=1).mT @ stored

    def write(self, x: Tensor, y: Tensor) -> Tensor:
        code = (1 - self.strength) * self.knowledge.infer(x, y)
        return torch.cat([code, self.strength * self.columns(x, y).flatten(1)], dim=1)

    def read(self, message: Tensor, x: Tensor) -> Tensor:
        code, entries = message.tensor_split([self.knowledge.n_parts], dim=1)
        columns = entries.unflatten(1, (self.knowledge.d_y, -1)).unbind(1)
        recalled = [self.knowledge.recall(entry, x)[..., k] for k, entry in enumerate(columns)]
        return self.knowledge.execute(code, x) + torch.stack(recalled, dim=-1)
