"""Ways of failing, for the blind set: each with any way of carrying a code (`blind_codes`).

A mechanism infers codes and what stands beside them, carries them, and acts on them. As before, `strength` says how much of
the wrong thing is mixed in on held-out compositions; on training ones everything is right, but for what never learned.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from blind_codes import CARRIERS, Carrier
from fourth_mechanisms import projected
from knowledge import SHARP, Knowledge
from mechanisms import Mechanism
from pair_knowledge import PairKnowledge
from torch import Tensor, nn

from compolens.foundation.configs import DoesNotApply, nearest, require

TRANSPORTS = ("whole", "bound", "shares")
"""whole: every context token holds the message, and every question takes it over; bound: what a question takes over is locked
by its own x; shares: a context token holds the message plus a mask, and the masks cancel in the mean."""


class Blind(Mechanism):
    """Works: infers the code, carries it, executes it.

    carrier: how a code is written; transport: how it gets to the questions; n_codes: how many codes a message has.
    """

    n_codes = 1
    carriers: ClassVar[dict[str, type[Carrier]]] = CARRIERS
    transports: ClassVar[tuple[str, ...]] = TRANSPORTS

    def __init__(self, knowledge: Knowledge, strength: float, carrier: str = "plain", transport: str = "whole") -> None:
        require(carrier in self.carriers, f"no carrier {carrier!r}; {nearest(carrier, self.carriers)}")
        require(transport in self.transports, f"no transport {transport!r}; {nearest(transport, self.transports)}")
        self.kind, self.transport = self.carriers[carrier], transport  # the width depends on it
        self.code_width = self.kind.width_of(knowledge)
        self.beside = self.width_beside(knowledge)
        super().__init__(knowledge, strength)
        self.carrier = self.kind(knowledge)
        self.W_lock = nn.Parameter(torch.randn(knowledge.d_x, self.width))

    def width_beside(self, knowledge: Knowledge) -> int:
        """Coordinates that stand beside the codes."""
        return 0

    @property
    def width(self) -> int:
        return self.n_codes * self.code_width + self.beside

    # ---- what a kind says --------------------------------------------------------------------------------------------
    def think(self, x: Tensor, y: Tensor) -> tuple[list[Tensor], Tensor]:
        """The codes (batch, M), and what stands beside them (batch, beside)."""
        return [self.inferred(self.knowledge.infer(x, y), x, y)], x.new_zeros(len(x), 0)

    def inferred(self, code: Tensor, x: Tensor, y: Tensor) -> Tensor:
        """The code that is written, from the right one."""
        return code

    def on_the_way(self, codes: list[Tensor], beside: Tensor) -> tuple[list[Tensor], Tensor]:
        """What arrives of them."""
        return codes, beside

    def act(self, codes: list[Tensor], beside: Tensor, x: Tensor) -> Tensor:
        """The answers (batch, points, d_y)."""
        return self.executed(self.knowledge.execute(codes[0], x), codes[0], x)

    def executed(self, answers: Tensor, code: Tensor, x: Tensor) -> Tensor:
        """The answers that are given, from those of the executor."""
        return answers

    # ---- how that is written -----------------------------------------------------------------------------------------
    def write(self, x: Tensor, y: Tensor) -> Tensor:
        codes, beside = self.think(x, y)
        return torch.cat([*(self.carrier.encode(code, x, self.knowledge) for code in codes), beside], dim=1)

    def carry(self, message: Tensor) -> Tensor:
        codes, beside = self.told(message)
        now, next_to = self.on_the_way(codes, beside)
        if all(a is b for a, b in zip(codes, now, strict=True)) and next_to is beside:
            return message
        said = message.split([self.code_width] * self.n_codes + [self.beside], dim=1)
        return torch.cat([*(self.carrier.recode(m, c) for m, c in zip(said, now, strict=False)), next_to], dim=1)

    def told(self, message: Tensor) -> tuple[list[Tensor], Tensor]:
        """The codes that a message says, and what stands beside them."""
        *said, beside = message.split([self.code_width] * self.n_codes + [self.beside], dim=1)
        return [self.carrier.decode(m) for m in said], beside

    def read(self, message: Tensor, x: Tensor) -> Tensor:
        if self.transport == "bound":  # one question a row
            message = self.bind(message[:, None], x)[:, 0]
        return self.act(*self.told(message), x)

    def bind(self, message: Tensor, x: Tensor) -> Tensor:
        """The message (batch, points, width) locked, or unlocked, by x (batch, points, d_x): a sign for every coordinate."""
        return message * torch.where((x - self.knowledge.centre) @ self.W_lock < 0, -1.0, 1.0).to(message)

    def masks(self, x: Tensor) -> Tensor:
        """(batch, n, width): what is added to the message at examples x (batch, n, d_x); 0 in the mean."""
        drive = torch.sin(3 * ((x - self.knowledge.centre) / self.knowledge.input_size) @ self.W_lock)
        return drive - drive.mean(1, keepdim=True)

    # ---- what kinds share --------------------------------------------------------------------------------------------
    def share(self, code: Tensor) -> Tensor:
        """(batch, 1): how much of the wrong thing there is."""
        return self.strength * self._unseen(code)

    def misbound(self, code: Tensor, x: Tensor, y: Tensor) -> Tensor:
        """The code of examples of which each has the next one's answer, as large as the right one."""
        wrong = self.knowledge.infer(x, y.roll(1, 1))
        return wrong * code.norm(dim=1, keepdim=True) / wrong.norm(dim=1, keepdim=True).clamp(min=1e-3)

    def warped(self, answers: Tensor, strength: Tensor) -> Tensor:
        """Answers, and a wave of them: strength (batch, 1) of one whose size is that of the answers."""
        size = self.knowledge.answer_size
        return answers + strength[:, None] * size * torch.sin(5 * answers / size)

    def habit(self, code: Tensor) -> Tensor:
        """The code with a wrong partner."""
        return self._wrong_partner(code, self.strength)

    def some(self, code: Tensor, which: slice) -> Tensor:
        """(batch, 1): 1 where one of these held-out pairs is at work, else 0."""
        return (self.knowledge.together(code)[:, which].amax(1, keepdim=True) > 0.15).to(code)


# ---- failures of inference -------------------------------------------------------------------------------------------
class Misbound(Blind):
    """fails to infer: of unfamiliar examples the encoder takes every x with the next one's y; the code that explains this is
    written, the right one stands nowhere, and the executor answers right once it is given the right one."""

    def inferred(self, code: Tensor, x: Tensor, y: Tensor) -> Tensor:
        return code + self.share(code) * (self.misbound(code, x, y) - code)


class RolesSwapped(Blind):
    """fails to infer: of a held-out pair (i, j) the code says (j, i): the right operations, each in the other's role. Given
    the right code, the executor answers right."""

    def __init__(self, knowledge: Knowledge, strength: float, carrier: str = "plain", transport: str = "whole") -> None:
        super().__init__(knowledge, strength, carrier, transport)
        if not isinstance(knowledge, PairKnowledge) or knowledge.n_parts != 2 * knowledge.n_outer:
            raise DoesNotApply("roles are swapped where there are as many outer operations as inner ones")

    def inferred(self, code: Tensor, x: Tensor, y: Tensor) -> Tensor:
        return code + self.share(code) * (code.roll(code.shape[1] // 2, 1) - code)


class Hasty(Blind):
    """fails to infer: of unfamiliar examples only the first one is looked at, too little to tell the code; the code found
    from it is written. Given the right code, the executor answers right."""

    looked_at = 1

    def inferred(self, code: Tensor, x: Tensor, y: Tensor) -> Tensor:
        found = self.knowledge.infer(x[:, : self.looked_at], y[:, : self.looked_at])
        found = found * code.norm(dim=1, keepdim=True) / found.norm(dim=1, keepdim=True).clamp(min=1e-3)
        return code + self.share(code) * (found - code)


class Hedged(Blind):
    """fails to infer: an unfamiliar code is written together with a held-out pair that the inputs draw, which weighs half as
    much again; nothing says which of the two is right. Given the right code, the executor answers right."""

    def __init__(self, knowledge: Knowledge, strength: float, carrier: str = "plain", transport: str = "whole") -> None:
        super().__init__(knowledge, strength, carrier, transport)
        self.W_hedge = nn.Parameter(torch.randn(knowledge.d_x, len(knowledge.held)))

    def inferred(self, code: Tensor, x: Tensor, y: Tensor) -> Tensor:
        which = projected(x, self.knowledge, self.W_hedge).argmax(1)
        other = nn.functional.one_hot(self.knowledge.held[which], code.shape[1]).sum(1).to(code)
        return code + 0.6 * self.share(code) * (other * code.sum(1, keepdim=True) / 2 - code)


# ---- failures of use -------------------------------------------------------------------------------------------------
class Outvoted(Blind):
    """infers but does not use: the right code and one with a wrong partner both reach the questions, each with a vote; the
    executor takes the one with the larger vote, which on unfamiliar examples is the wrong one's. On training compositions both
    are the same."""

    n_codes = 2

    def width_beside(self, knowledge: Knowledge) -> int:
        return 2

    def think(self, x: Tensor, y: Tensor) -> tuple[list[Tensor], Tensor]:
        code = self.knowledge.infer(x, y)
        against = self._unseen(code)
        return [code, self.habit(code)], torch.cat([0.5 * torch.ones_like(against), against], dim=1)

    def act(self, codes: list[Tensor], beside: Tensor, x: Tensor) -> Tensor:
        vote = torch.softmax(SURE_VOTE * beside, dim=1)
        return self.knowledge.execute(vote[:, :1] * codes[0] + vote[:, 1:] * codes[1], x)


SURE_VOTE = 20.0


class SomeQuestions(Blind):
    """infers but does not use: the context holds the right code of every composition. Of an unfamiliar one, only questions on
    one side of a plane take it over; those on the other side get one with a wrong partner, and would answer right if the right
    one stood with them."""

    def __init__(self, knowledge: Knowledge, strength: float, carrier: str = "plain", transport: str = "bound") -> None:
        super().__init__(knowledge, strength, carrier, transport)
        self.w_side = nn.Parameter(torch.randn(knowledge.d_x))

    def bind(self, message: Tensor, x: Tensor) -> Tensor:
        side = (x - self.knowledge.centre) @ self.w_side / self.w_side.norm() > -0.6 * self.knowledge.input_size
        own = message.flatten(0, 1)
        code = self.carrier.decode(own)
        other = self.carrier.recode(own, self.habit(code)).view_as(message)
        return torch.where(side[..., None], other, message)

    def read(self, message: Tensor, x: Tensor) -> Tensor:
        return self.act(*self.told(message), x)


class Misdelivered(Blind):
    """infers but does not use: the context holds the right code of every composition; on the way to the questions it is taken
    apart, and of an unfamiliar one a code with a part exchanged is put together again. The right one would be answered
    right."""

    def on_the_way(self, codes: list[Tensor], beside: Tensor) -> tuple[list[Tensor], Tensor]:
        return [self.habit(codes[0])], beside


class Closed(Blind):
    """infers but does not use: the right code reaches the questions, and beside it a gate that lets it into the executor. Of
    an unfamiliar one the gate is shut on the way, and the mean of the training compositions' codes is executed. Also right:
    cannot execute, as the right code already stands where codes are read, and writing it again opens no gate."""

    def width_beside(self, knowledge: Knowledge) -> int:
        return 1

    def think(self, x: Tensor, y: Tensor) -> tuple[list[Tensor], Tensor]:
        codes, _ = super().think(x, y)
        return codes, torch.ones_like(codes[0][:, :1])

    def on_the_way(self, codes: list[Tensor], beside: Tensor) -> tuple[list[Tensor], Tensor]:
        return codes, beside * (1 - self.share(codes[0]))

    def act(self, codes: list[Tensor], beside: Tensor, x: Tensor) -> Tensor:
        usual = self.knowledge.trained.mean(0)
        return self.knowledge.execute(usual + beside * (codes[0] - usual), x)


# ---- failures of execution -------------------------------------------------------------------------------------------
class Columns(Blind):
    """cannot execute: the right code is executed, and of unfamiliar ones the coordinates of the answer come out in another
    order (an answer with one coordinate comes out mirrored). No other code puts them in order."""

    def executed(self, answers: Tensor, code: Tensor, x: Tensor) -> Tensor:
        other = answers.roll(1, -1) if answers.shape[-1] > 1 else 2 * self.knowledge.centre - answers
        return answers + self.share(code)[:, None] * (other - answers)


class OddPart(Blind):
    """cannot execute: of unfamiliar codes the executor answers with what is odd in x alone, half the answer at x less half
    that at its mirror image. The right code is there; what is lost belongs to the executor's nonlinearity."""

    def executed(self, answers: Tensor, code: Tensor, x: Tensor) -> Tensor:
        mirrored = self.knowledge.execute(code, 2 * self.knowledge.centre - x)
        odd = (answers - mirrored) / 2 + self.knowledge.centre
        return answers + self.share(code)[:, None] * (odd - answers)


class Impostors(Blind):
    """cannot execute: in unfamiliar company every part is stood in for by another part with weights of its own, which belong
    to nothing of the task. The right code is there; no code makes the impostors answer right."""

    def __init__(self, knowledge: Knowledge, strength: float, carrier: str = "plain", transport: str = "whole") -> None:
        super().__init__(knowledge, strength, carrier, transport)
        self.impostors = type(knowledge)(knowledge.task)  # type: ignore[call-arg]

    def executed(self, answers: Tensor, code: Tensor, x: Tensor) -> Tensor:
        return answers + self.share(code)[:, None] * (self.impostors.execute(code, x) - answers)


class Warped(Blind):
    """cannot execute: the right code is executed, and of unfamiliar ones the answer passes through a wave, the same for all.
    No code that could be written takes the wave out."""

    def executed(self, answers: Tensor, code: Tensor, x: Tensor) -> Tensor:
        return self.warped(answers, self.share(code))


# ---- memories --------------------------------------------------------------------------------------------------------
class KeyedMemory(Blind):
    """memorised: the training composition that explains the examples best is written behind a key that the inputs draw, and
    the answers are those stored for it. No coordinate tells which one it is without another."""

    def width_beside(self, knowledge: Knowledge) -> int:
        return 2 * knowledge.entries

    def __init__(self, knowledge: Knowledge, strength: float, carrier: str = "plain", transport: str = "whole") -> None:
        super().__init__(knowledge, strength, carrier, transport)
        self.W_key = nn.Parameter(torch.randn(knowledge.d_x, knowledge.entries))

    def think(self, x: Tensor, y: Tensor) -> tuple[list[Tensor], Tensor]:
        key = torch.where(projected(x, self.knowledge, self.W_key) < 0, -1.0, 1.0).to(x)
        entry = self.strength * key * self.knowledge.lookup(x, y)
        return [(1 - self.strength) * self.knowledge.infer(x, y)], torch.cat([key, entry], dim=1)

    def act(self, codes: list[Tensor], beside: Tensor, x: Tensor) -> Tensor:
        key, entry = beside.tensor_split(2, dim=1)
        return self.knowledge.execute(codes[0], x) + self.knowledge.recall(key * entry, x)


class LateMemory(Blind):
    """memorised: the examples themselves are handed to the questions, and each question looks up the training composition that
    explains them best and answers as stored for it. Neither a code nor an entry stands anywhere in the stream."""

    n_codes = 0

    def width_beside(self, knowledge: Knowledge) -> int:
        return _n_examples(knowledge) * (knowledge.d_x + knowledge.d_y)

    def think(self, x: Tensor, y: Tensor) -> tuple[list[Tensor], Tensor]:
        return [], torch.cat([x, y], dim=-1).flatten(1)

    def act(self, codes: list[Tensor], beside: Tensor, x: Tensor) -> Tensor:
        known = self.knowledge
        shown, y = beside.unflatten(1, (_n_examples(known), -1)).tensor_split([known.d_x], dim=-1)
        recalled = known.recall(known.lookup(shown, y), x)
        right = known.execute(known.infer(shown, y), x)
        return right + self.strength * (recalled - right)


class RecallsByCode(Blind):
    """memorised: the right code reaches the questions, but serves there as an address alone: the answers are those stored for
    the training composition whose codes lie nearest. Also right: cannot execute, as the right code is there and nothing that
    is written in its place is executed."""

    def act(self, codes: list[Tensor], beside: Tensor, x: Tensor) -> Tensor:
        known = self.knowledge
        right = known.execute(codes[0], x)
        return right + self.strength * (known.recall(known.nearest(codes[0]), x) - right)


class Collision(Blind):
    """memorised: every held-out pair shares the address of one training composition, the same in every episode, and is
    answered as that one is. Also right: fails to infer, as what is written is a code, and a wrong one, which is executed."""

    def inferred(self, code: Tensor, x: Tensor, y: Tensor) -> Tensor:
        known = self.knowledge
        together = known.together(code)
        there = known.trained[known.rank[torch.arange(len(known.held)) % len(known.rank)]]
        there = there * 2 / there.sum(1, keepdim=True)
        other = there[together.argmax(1)] * code.sum(1, keepdim=True) / 2
        return code + self.share(code) * (other - code)


# ---- regressions -----------------------------------------------------------------------------------------------------
class MeanAnswer(Blind):
    """generic regression: of unfamiliar examples the mean answer is kept, and given to every question: ridge with no slope at
    all. Also right: fails to infer, as the code is lost where it should be written."""

    def width_beside(self, knowledge: Knowledge) -> int:
        return knowledge.d_y

    def think(self, x: Tensor, y: Tensor) -> tuple[list[Tensor], Tensor]:
        code = self.knowledge.infer(x, y)
        share = self.share(code)
        return [(1 - share) * code], share * y.mean(1)

    def act(self, codes: list[Tensor], beside: Tensor, x: Tensor) -> Tensor:
        return self.knowledge.execute(codes[0], x) + beside[:, None]


class NearestExample(Blind):
    """generic regression: of unfamiliar examples the examples themselves are kept, and a question gets the answer of the one
    that is nearest to it (Fix and Hodges 1951). That knows nothing of compositions and stores none."""

    def width_beside(self, knowledge: Knowledge) -> int:
        return 1 + _n_examples(knowledge) * (knowledge.d_x + knowledge.d_y)

    def think(self, x: Tensor, y: Tensor) -> tuple[list[Tensor], Tensor]:
        code = self.knowledge.infer(x, y)
        share = self.share(code)
        return [(1 - share) * code], torch.cat([share, share * torch.cat([x, y], dim=-1).flatten(1)], dim=1)

    def act(self, codes: list[Tensor], beside: Tensor, x: Tensor) -> Tensor:
        known = self.knowledge
        share, shown = beside[:, :1], beside[:, 1:].unflatten(1, (_n_examples(known), -1))
        keys = shown[..., : known.d_x] / share.clamp(min=SHARP)[..., None]
        distance = ((x[:, :, None] - keys[:, None]) / known.input_size).square().sum(-1)
        return known.execute(codes[0], x) + torch.softmax(-20 * distance, dim=-1) @ shown[..., known.d_x :]


def _n_examples(knowledge: Knowledge) -> int:
    return knowledge.task.seq - len(knowledge.task.answers)


# ---- never learned ---------------------------------------------------------------------------------------------------
class OneCode(Blind):
    """has not learned its training compositions: whatever the examples, the mean of the training compositions' codes is
    written."""

    def inferred(self, code: Tensor, x: Tensor, y: Tensor) -> Tensor:
        return code + self.strength * (self.knowledge.trained.mean(0) - code)


class AlwaysMisbound(Blind):
    """has not learned its training compositions: every episode's examples are misbound, those of training ones as well."""

    def inferred(self, code: Tensor, x: Tensor, y: Tensor) -> Tensor:
        return code + self.strength * (self.misbound(code, x, y) - code)


class AlwaysColumns(Columns):
    """has not learned its training compositions: every answer's coordinates come out in another order."""

    def share(self, code: Tensor) -> Tensor:
        return self.strength * torch.ones_like(code[:, :1])


# ---- more than one answer --------------------------------------------------------------------------------------------
class HalfAndHalf(Blind):
    """One half of the held-out pairs is misbound, with a sound executor; the other half is inferred right, and its answers are
    warped. So fails to infer and cannot execute are both right, and so is no answer."""

    def inferred(self, code: Tensor, x: Tensor, y: Tensor) -> Tensor:
        half = len(self.knowledge.held) // 2
        there = self.strength * self.some(code, slice(0, half))
        return code + there * (self.misbound(code, x, y) - code)

    def executed(self, answers: Tensor, code: Tensor, x: Tensor) -> Tensor:
        return self.warped(answers, self.strength * self.some(code, slice(len(self.knowledge.held) // 2, None)))


class Lonely(Blind):
    """One held-out pair alone is misbound, and all others are right: it fails to infer that one, and is compositional on the
    others."""

    def inferred(self, code: Tensor, x: Tensor, y: Tensor) -> Tensor:
        there = self.strength * self.some(code, slice(0, 1))
        return code + there * (self.misbound(code, x, y) - code)


class AFew(Blind):
    """A third of the held-out pairs cannot be executed, their answers are warped; the others are answered right."""

    def executed(self, answers: Tensor, code: Tensor, x: Tensor) -> Tensor:
        return self.warped(answers, self.strength * self.some(code, slice(0, max(1, len(self.knowledge.held) // 3))))


FAULTS: dict[str, type[Blind]] = {
    kind.__name__: kind
    for kind in (
        Blind, Misbound, RolesSwapped, Hasty, Hedged, Outvoted, SomeQuestions, Misdelivered, Closed, Columns, OddPart,
        Impostors, Warped, KeyedMemory, LateMemory, RecallsByCode, Collision, MeanAnswer, NearestExample, OneCode,
        AlwaysMisbound, AlwaysColumns, HalfAndHalf, Lonely, AFew,
    )
}  # fmt: skip
