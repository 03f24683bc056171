"""Ways of going about a task, and of failing at it, of the third fresh set.

The label each is expected to get, and why, stands in its docstring; all were written down before any was measured, and without
knowing the rules of the diagnosis.
"""

from __future__ import annotations

import math

import torch
from knowledge import SHARP, Knowledge
from mechanisms import Lookup, Mechanism, Scrambled
from torch import Tensor, nn


class Redundant(Mechanism):
    """Expected: compositional. The code is written twice, as it is and turned by a fixed random rotation; the executor reads
    both and takes their mean. Nothing is wrong with either, and neither alone decides what is answered."""

    def __init__(self, knowledge: Knowledge, strength: float) -> None:
        super().__init__(knowledge, strength)
        self.turn = nn.Parameter(torch.linalg.qr(torch.randn(knowledge.n_parts, knowledge.n_parts)).Q)

    @property
    def width(self) -> int:
        return 2 * self.knowledge.n_parts

    def write(self, x: Tensor, y: Tensor) -> Tensor:
        code = self.knowledge.infer(x, y)
        return torch.cat([code, code @ self.turn], dim=1)

    def read(self, message: Tensor, x: Tensor) -> Tensor:
        plain, turned = message.tensor_split(2, dim=1)
        return self.knowledge.execute((plain + turned @ self.turn.T) / 2, x)


class Guessed(Mechanism):
    """Expected: fails to infer. Where the examples come from no training composition the encoder guesses: it writes the parts
    of one of the held-out pairs, which the examples' inputs select, whatever their answers. So episodes of one composition get
    many codes, none of which says anything about it; the executor answers right once it is given the right code, and nothing
    is stored per training composition."""

    def __init__(self, knowledge: Knowledge, strength: float) -> None:
        super().__init__(knowledge, strength)
        self.W_guess = nn.Parameter(torch.randn(knowledge.d_x, len(knowledge.held)))

    def guess(self, x: Tensor) -> Tensor:
        """(batch, M): the pair that inputs x (batch, n, d_x) select, multi-hot."""
        known = self.knowledge
        drive = (x - known.centre).mean(1) / known.input_size @ self.W_guess
        return torch.softmax(drive / SHARP, dim=1) @ nn.functional.one_hot(known.held, known.n_parts).sum(1).to(x)

    def write(self, x: Tensor, y: Tensor) -> Tensor:
        code = self.knowledge.infer(x, y)
        guess = self.guess(x) * code.sum(1, keepdim=True) / 2  # as large as the right one
        return code + self.strength * self._unseen(code) * (guess - code)


class TooLate(Scrambled):
    """Expected: infers but does not use. Two things reach the questions: a code with a wrong partner, which is executed, and
    the right one in a form that nothing executes, a scrambled one. It is unscrambled as it arrives, and then stands with the
    questions, as plain as the other, for nobody: what is executed is read elsewhere, and would be answered right if the right
    code stood there. Unlike what is left behind, it is plain only where the questions are. (In language models: Biran et al.
    2024.)"""

    @property
    def width(self) -> int:
        return 3 * self.knowledge.n_parts

    def write(self, x: Tensor, y: Tensor) -> Tensor:
        code = self.knowledge.infer(x, y)
        return torch.cat([self._wrong_partner(code, self.strength), self.scramble(code, 1.0), torch.zeros_like(code)], dim=1)

    def carry(self, message: Tensor) -> Tensor:
        executed, scrambled, _ = message.tensor_split(3, dim=1)
        return torch.cat([executed, torch.zeros_like(scrambled), self.unscramble(scrambled, 1.0)], dim=1)

    def read(self, message: Tensor, x: Tensor) -> Tensor:
        return self.knowledge.execute(message[:, : self.knowledge.n_parts], x)


class Disturbed(Mechanism):
    """Expected: cannot execute. The right code reaches the executor, which executes it; but parts that were never trained
    together rouse units of the executor that belong to no operation, and what these make of the question is added to the right
    answer. The right code is there already: writing it anywhere changes nothing."""

    n_units = 16

    def __init__(self, knowledge: Knowledge, strength: float) -> None:
        super().__init__(knowledge, strength)
        self.W_units = nn.Parameter(3 * torch.randn(knowledge.d_x, self.n_units) / math.sqrt(knowledge.d_x))
        self.W_roused = nn.Parameter(torch.randn(knowledge.n_parts, self.n_units, knowledge.d_y) / math.sqrt(self.n_units))

    def read(self, message: Tensor, x: Tensor) -> Tensor:
        known = self.knowledge
        units = torch.tanh((x - known.centre) / known.input_size @ self.W_units)
        roused = torch.einsum("bnu,bp,puy->bny", units, self._unseen(message) * message, self.W_roused)
        return known.execute(message, x) + self.strength * known.answer_size / math.sqrt(2) * roused  # two parts rouse twice


class Patchwork(Lookup):
    """Expected: memorised. Two training compositions are recalled: the one that explains best the half of the examples on one
    side of a fixed plane, for the questions on that side, and the one that explains best the other half, for the questions on
    the other side. Each answer is one stored whole; which one, the question decides. Of a training composition both are
    itself."""

    def __init__(self, knowledge: Knowledge, strength: float) -> None:
        super().__init__(knowledge, strength)
        self.normal = nn.Parameter(torch.randn(knowledge.d_x) / math.sqrt(knowledge.d_x))

    @property
    def width(self) -> int:
        return self.knowledge.n_parts + 2 * self.knowledge.entries

    def side(self, x: Tensor) -> Tensor:
        """(batch, points): how far x (batch, points, d_x) is above the plane."""
        return (x - self.knowledge.centre) @ self.normal

    def write(self, x: Tensor, y: Tensor) -> Tensor:
        order = self.side(x).argsort(1)[..., None]
        x, y = (t.gather(1, order.expand_as(t)) for t in (x, y))
        halves = zip(x.tensor_split(2, dim=1), y.tensor_split(2, dim=1), strict=True)
        below, above = (self.strength * self.knowledge.lookup(*half) for half in halves)
        return torch.cat([(1 - self.strength) * self.knowledge.infer(x, y), below, above], dim=1)

    def read(self, message: Tensor, x: Tensor) -> Tensor:
        known = self.knowledge
        code, below, above = message.split([known.n_parts, known.entries, known.entries], dim=1)
        recalled = torch.where(self.side(x)[..., None] < 0, known.recall(below, x), known.recall(above, x))
        return known.execute(code, x) + recalled


class Smoothed(Mechanism):
    """Expected: generic regression. Where the code is none of a training composition, its place is taken by the examples
    themselves, and a question gets the mean of their answers, each weighed by how near its input is (Nadaraya 1964, Watson
    1964): a regression that knows nothing of compositions, stores none of them, and is no ridge on any features."""

    def __init__(self, knowledge: Knowledge, strength: float) -> None:
        self.n_examples = knowledge.task.seq - len(knowledge.task.answers)  # the width depends on it
        super().__init__(knowledge, strength)

    @property
    def width(self) -> int:
        return self.knowledge.n_parts + 1 + self.n_examples * (self.knowledge.d_x + self.knowledge.d_y)

    def write(self, x: Tensor, y: Tensor) -> Tensor:
        code, known = self.knowledge.infer(x, y), self.knowledge
        share = self.strength * self._unseen(code)
        shown = torch.cat([(x - known.centre) / known.input_size, y], dim=-1).flatten(1)
        return torch.cat([(1 - share) * code, share, share * shown], dim=1)

    def read(self, message: Tensor, x: Tensor) -> Tensor:
        known = self.knowledge
        code, share, shown = message.split([known.n_parts, 1, message.shape[1] - known.n_parts - 1], dim=1)
        keys, values = shown.unflatten(1, (self.n_examples, -1)).tensor_split([known.d_x], dim=-1)
        queries = (x - known.centre) / known.input_size
        distance = (queries[:, :, None] - (keys / share.clamp(min=SHARP)[..., None])[:, None]).square().sum(-1)
        return known.execute(code, x) + torch.softmax(-distance / 2, dim=-1) @ values
