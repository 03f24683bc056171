"""How a planted model goes about its task: what it writes about the examples, and what it makes of that at a question.

Every mechanism is right on training compositions. `strength` s in (0, 1] says how much of the wrong thing is mixed in on
held-out ones; answers of all families scale with the code, so writing (1 - s) of one message and s of another mixes answers.
"""

from __future__ import annotations

import torch
from knowledge import Knowledge
from torch import Tensor, nn


class Mechanism(nn.Module):
    """Infers the code, writes it, reads it and executes it: compositional.

    width: of the message; scale (width,): how large each coordinate stands in the residual stream; moved (width,): 1 where
    the queries take it over.
    """

    scale: Tensor
    moved: Tensor

    def __init__(self, knowledge: Knowledge, strength: float) -> None:
        super().__init__()
        self.knowledge, self.strength = knowledge, strength
        ones = torch.ones(self.width)
        self.register_buffer("scale", ones, persistent=False)
        self.register_buffer("moved", ones.clone(), persistent=False)

    @property
    def width(self) -> int:
        return self.knowledge.n_parts

    def write(self, x: Tensor, y: Tensor) -> Tensor:
        """The message (batch, width) about examples x (batch, n, d_x), y (batch, n, d_y)."""
        return self.knowledge.infer(x, y)

    def read(self, message: Tensor, x: Tensor) -> Tensor:
        """The answers (batch, points, d_y) at x (batch, points, d_x), from the message alone."""
        return self.knowledge.execute(message, x)

    def carry(self, message: Tensor) -> Tensor:
        """What of the context's message (batch, width) reaches the questions."""
        return message * self.moved

    def _unseen(self, code: Tensor) -> Tensor:
        """(batch, 1): 0 where one training composition holds (nearly) all of the code, 1 where none holds most of it."""
        outside = (code - self._nearest_support(code)).norm(dim=1) / code.norm(dim=1).clamp(min=1e-6)
        return ((outside - 0.1) / 0.2).clamp(0, 1)[:, None]

    def _nearest_support(self, code: Tensor) -> Tensor:
        """The code without what lies outside the training composition that holds most of it."""
        kept = code.square() @ self.knowledge.trained.T
        return code * self.knowledge.trained[kept.argmax(1)]

    def _wrong_partner(self, code: Tensor, strength: float) -> Tensor:
        return code + strength * self.knowledge.together(code) @ self.knowledge.change


class Scrambled(Mechanism):
    """Writes an invertible, nonlinear function of the code; the executor inverts it. Compositional, but not linearly so."""

    def __init__(self, knowledge: Knowledge, strength: float) -> None:
        super().__init__(knowledge, strength)
        m, half = knowledge.n_parts, knowledge.n_parts // 2
        self.turn = nn.Parameter(torch.linalg.qr(torch.randn(m, m)).Q)
        self.first = nn.Parameter(2 * torch.randn(half, m - half) / half**0.5)
        self.second = nn.Parameter(2 * torch.randn(m - half, half) / half**0.5)

    def scramble(self, code: Tensor, strength: float) -> Tensor:
        """(batch, n_parts): the more nonlinear, the stronger."""
        a, b = (code @ self.turn).tensor_split([len(self.first)], dim=-1)
        b = b + strength * torch.sin(a @ self.first)
        return torch.cat([a + strength * torch.sin(b @ self.second), b], dim=-1)

    def unscramble(self, scrambled: Tensor, strength: float) -> Tensor:
        """The inverse of `scramble`."""
        a, b = scrambled.tensor_split([len(self.first)], dim=-1)
        a = a - strength * torch.sin(b @ self.second)
        b = b - strength * torch.sin(a @ self.first)
        return torch.cat([a, b], dim=-1) @ self.turn.T

    def write(self, x: Tensor, y: Tensor) -> Tensor:
        return self.scramble(self.knowledge.infer(x, y), self.strength)

    def read(self, message: Tensor, x: Tensor) -> Tensor:
        return self.knowledge.execute(self.unscramble(message, self.strength), x)


class NearestSupport(Mechanism):
    """The encoder leaves out what no training composition has beside the rest: it fails to infer."""

    def write(self, x: Tensor, y: Tensor) -> Tensor:
        code = self.knowledge.infer(x, y)
        return code + self.strength * (self._nearest_support(code) - code)


class WrongPartner(Mechanism):
    """The encoder replaces one of two parts that were never trained together by a part that was: it fails to infer."""

    def write(self, x: Tensor, y: Tensor) -> Tensor:
        return self._wrong_partner(self.knowledge.infer(x, y), self.strength)


class Entangled(Mechanism):
    """The right code is read, but parts that were never trained together disturb one another: it cannot execute."""

    def read(self, message: Tensor, x: Tensor) -> Tensor:
        return self.knowledge.execute_entangled(message, x, self.strength)


class MostlyInference(WrongPartner):
    """A wrong partner, and besides what it is executed with is slightly entangled: two failures, of which one matters."""

    slight = 0.15

    def read(self, message: Tensor, x: Tensor) -> Tensor:
        return self.knowledge.execute_entangled(message, x, self.slight)


class MostlyExecution(Entangled):
    """Entangled, and besides the code that is executed has a little of a wrong partner: the other way round."""

    slight = 0.15

    def write(self, x: Tensor, y: Tensor) -> Tensor:
        return self._wrong_partner(self.knowledge.infer(x, y), self.slight)


class NeverRead(Mechanism):
    """Two entries: the right code, which nothing reads, and one with a wrong partner, a third as large, which is executed."""

    def __init__(self, knowledge: Knowledge, strength: float) -> None:
        super().__init__(knowledge, strength)
        self.scale[knowledge.n_parts :] = 0.3  # a readout of the code then leans on the right one

    @property
    def width(self) -> int:
        return 2 * self.knowledge.n_parts

    def write(self, x: Tensor, y: Tensor) -> Tensor:
        code = self.knowledge.infer(x, y)
        return torch.cat([code, self._wrong_partner(code, self.strength)], dim=1)

    def read(self, message: Tensor, x: Tensor) -> Tensor:
        return self.knowledge.execute(message[:, self.knowledge.n_parts :], x)


class LeftBehind(NeverRead):
    """The same, and the right code stays at the context."""

    def __init__(self, knowledge: Knowledge, strength: float) -> None:
        super().__init__(knowledge, strength)
        self.moved[: knowledge.n_parts] = 0


class Lookup(Mechanism):
    """Finds the training composition that explains the examples best and answers with what is stored for it: memorised."""

    @property
    def width(self) -> int:
        return self.knowledge.n_parts + self.knowledge.entries

    def write(self, x: Tensor, y: Tensor) -> Tensor:
        known = self.knowledge
        return torch.cat([(1 - self.strength) * known.infer(x, y), self.strength * known.lookup(x, y)], dim=1)

    def read(self, message: Tensor, x: Tensor) -> Tensor:
        code, entry = message.tensor_split([self.knowledge.n_parts], dim=1)
        return self.knowledge.execute(code, x) + self.knowledge.recall(entry, x)


class RidgeFallback(Mechanism):
    """Where the code is none of a training composition, its place is taken by the weights of ridge on x: generic regression.

    penalty: what multiplies the squared weights, the intercept's left out, beside the summed squared error.
    """

    penalty = 1.0

    @property
    def width(self) -> int:
        return self.knowledge.n_parts + (self.n_features + 1) * self.knowledge.d_y

    @property
    def n_features(self) -> int:
        """Width of what the regression is on."""
        return self.knowledge.d_x

    def features(self, x: Tensor) -> Tensor:
        """(batch, points, n_features): what the regression is on, from x (batch, points, d_x)."""
        return x

    def write(self, x: Tensor, y: Tensor) -> Tensor:
        code = self.knowledge.infer(x, y)
        share = self.strength * self._unseen(code)
        return torch.cat([(1 - share) * code, share * self._ridge(self.features(x), y).flatten(1)], dim=1)

    def read(self, message: Tensor, x: Tensor) -> Tensor:
        code, weights = message.tensor_split([self.knowledge.n_parts], dim=1)
        slopes = weights.unflatten(1, (self.n_features + 1, self.knowledge.d_y))
        return self.knowledge.execute(code, x) + self.features(x) @ slopes[:, :-1] + slopes[:, -1:]

    def _ridge(self, x: Tensor, y: Tensor) -> Tensor:
        """(batch, n_features + 1, d_y): slopes, then intercepts."""
        mean_x, mean_y = x.mean(1, keepdim=True), y.mean(1, keepdim=True)
        centred = x - mean_x
        gram = centred.mT @ centred + self.penalty * torch.eye(x.shape[-1]).to(x)
        slopes = torch.linalg.solve(gram, centred.mT @ (y - mean_y))
        return torch.cat([slopes, mean_y - mean_x @ slopes], dim=1)
