"""Further ways of failing, and of working oddly, for the third blind set: each with any way of carrying a code.

As in `blind_faults`, `strength` says how much of the wrong thing is mixed in on held-out compositions; on training ones
everything is right, but for what never learned, and for what is said to be sloppy. New is that questions may hold different
messages by their positions, that a further block may change what they hold, and that answers may be given at another
question's position. A docstring begins with the label that is expected.
"""

from __future__ import annotations

import math
from typing import ClassVar

import second_faults
import torch
from blind_codes import Carrier
from blind_faults import RolesSwapped, _n_examples
from fourth_mechanisms import projected
from knowledge import Knowledge
from second_faults import DescentSteps, Noisy, Sound, twins
from teacher_knowledge import TeacherKnowledge
from third_blind_codes import CARRIERS
from torch import Tensor, nn
from torch.nn.functional import normalize, one_hot

from compolens.foundation.configs import DoesNotApply, require

TRANSPORTS = (*second_faults.TRANSPORTS, "marked", "turning", "running")
"""marked: of the first context tokens each holds one coordinate of the message, in the first coordinate of the stream: which
token it stands at says which it is; turning: every question holds the message in coordinates of its own, turned on by its
position; running: the first context tokens hold what two examples tell, the next ones what eight tell, the last one what all
tell, and the questions take over the last one's."""
CHECKPOINTS = (2, 8)
"""After how many examples a running estimate is made anew, before the last."""


class Third(Sound):
    """compositional: infers the code, carries it, executes it; what a context token holds, what a question takes of it, and
    where, may differ from position to position.

    refines: whether a further block changes what the questions hold.
    """

    carriers: ClassVar[dict[str, type[Carrier]]] = CARRIERS
    transports: ClassVar[tuple[str, ...]] = TRANSPORTS
    refines: ClassVar[bool] = False

    def __init__(self, knowledge: Knowledge, strength: float, carrier: str = "plain", transport: str = "whole") -> None:
        super().__init__(knowledge, strength, carrier, transport)
        enough = _n_examples(knowledge)
        require(transport != "marked" or self.width <= enough, f"{self.width} coordinates do not fit {enough} tokens")

    # ---- where things stand ------------------------------------------------------------------------------------------
    def at_tokens(self, message: Tensor, x: Tensor, y: Tensor) -> Tensor:
        if self.transport == "marked":
            held = message.new_zeros(*x.shape[:2], self.width)
            held[:, : self.width, 0] = message
            return held
        return self.running(message, x, y) if self.transport == "running" else super().at_tokens(message, x, y)

    def running(self, message: Tensor, x: Tensor, y: Tensor) -> Tensor:
        """(batch, n, width): what is written about the examples up to each checkpoint, until the next one; at the last token
        the message about all of them."""
        every = torch.stack([*(self.write(x[:, :k], y[:, :k]) for k in CHECKPOINTS), message], dim=1)
        ends = (*CHECKPOINTS, x.shape[1])
        return every[:, [max(i for i, k in enumerate(ends) if k <= max(t + 1, ends[0])) for t in range(x.shape[1])]]

    def taken(self, messages: Tensor) -> Tensor:
        if self.transport == "marked":
            return self.carry(messages[:, : self.width, 0])
        return self.carry(messages[:, -1]) if self.transport == "running" else super().taken(messages)

    def delivered(self, message: Tensor, questions: int) -> Tensor:
        """(batch, questions, width): what every question takes over of what is taken (batch, width)."""
        every = [message.roll(q * self._step, 1) if self.transport == "turning" else message for q in range(questions)]
        return torch.stack(every, dim=1)

    @property
    def _step(self) -> int:
        return max(1, self.width // 4)

    def received(self, messages: Tensor) -> Tensor:
        """(batch, questions, width): what the executor reads of what every question holds."""
        if self.transport != "turning":
            return messages
        return torch.stack([messages[:, q].roll(-q * self._step, 1) for q in range(messages.shape[1])], dim=1)

    def refine(self, message: Tensor) -> Tensor:
        """What a further block leaves of a question's message (rows, width)."""
        return message

    def placed(self, answers: Tensor, messages: Tensor) -> Tensor:
        """The answers that are given, (batch, questions, d_y), from those worked out there, by messages as received."""
        return answers

    # ---- what kinds share --------------------------------------------------------------------------------------------
    def misled(self, code: Tensor, x: Tensor, y: Tensor) -> Tensor:
        """The code of other examples than those shown, as large as the right one."""
        wrong = self.knowledge.infer(x, y)
        return wrong * code.norm(dim=1, keepdim=True) / wrong.norm(dim=1, keepdim=True).clamp(min=1e-3)

    def mixed(self, code: Tensor, other: Tensor) -> Tensor:
        """The code with a share of another one."""
        return code + self.share(code) * (other - code)

    def say(self, message: Tensor, code: Tensor) -> Tensor:
        """The message with another code in its first place."""
        w = self.code_width
        return torch.cat([self.carrier.recode(message[:, :w], code), message[:, w:]], dim=1)

    def half(self, code: Tensor, second: bool) -> Tensor:
        """(batch, 1): 1 where one of the first or of the second half of the held-out pairs is at work."""
        middle = len(self.knowledge.held) // 2
        return self.some(code, slice(middle, None) if second else slice(0, middle))

    def third(self, code: Tensor) -> Tensor:
        """(batch, 1): 1 where one of the first third of the held-out pairs is at work, else 0."""
        return self.some(code, slice(0, max(1, len(self.knowledge.held) // 3)))

    def examples(self, x: Tensor, y: Tensor) -> Tensor:
        """(batch, n (d_x + d_y)): the examples themselves, one after the other."""
        return torch.cat([x, y], dim=-1).flatten(1)

    def shown(self, kept: Tensor) -> tuple[Tensor, Tensor]:
        """x and y of what `examples` gives."""
        x, y = kept.unflatten(1, (_n_examples(self.knowledge), -1)).tensor_split([self.knowledge.d_x], dim=-1)
        return x, y

    def near(self, x: Tensor, shown: Tensor) -> Tensor:
        """(batch, points, n): squared distances of questions and examples, in standard deviations of a coordinate."""
        return ((x[:, :, None] - shown[:, None]) / self.knowledge.input_size).square().sum(-1)


# ---- work, oddly -----------------------------------------------------------------------------------------------------
class SpoiledTokens(Third):
    """compositional: of every composition a third of the context tokens, which the inputs draw, hold a held-out pair that has
    nothing to do with the examples; attention passes them over, and takes the mean of the others."""

    def __init__(self, knowledge: Knowledge, strength: float, carrier: str = "plain", transport: str = "whole") -> None:
        super().__init__(knowledge, strength, carrier, transport)
        self.W_decoy = nn.Parameter(torch.randn(knowledge.d_x, len(knowledge.held)))

    def width_beside(self, knowledge: Knowledge) -> int:
        return 1

    def think(self, x: Tensor, y: Tensor) -> tuple[list[Tensor], Tensor]:
        return super().think(x, y)[0], x.new_ones(len(x), 1)

    def at_tokens(self, message: Tensor, x: Tensor, y: Tensor) -> Tensor:
        (code, *_), _ = self.told(message)
        drawn = self.knowledge.held[projected(x, self.knowledge, self.W_decoy).argmax(1)]
        decoy = one_hot(drawn, code.shape[1]).sum(1).to(code) * code.sum(1, keepdim=True) / 2
        bad = self.say(message, decoy)
        bad = torch.cat([bad[:, :-1], -torch.ones_like(bad[:, -1:])], dim=1)
        astray = ((x[..., :1].argsort(1).argsort(1) % 3) == 0).to(message)
        return astray * bad[:, None] + (1 - astray) * message[:, None]

    def taken(self, messages: Tensor) -> Tensor:
        good = (messages[..., -1:] > 0).to(messages)
        return self.carry((good * messages).sum(1) / good.sum(1))


class GuessCorrected(Third):
    """compositional: to every question arrives a guess from the first example alone, for every composition; beside it the
    right code, which a further block puts in the guess's place before anything is executed."""

    n_codes, refines = 2, True

    def think(self, x: Tensor, y: Tensor) -> tuple[list[Tensor], Tensor]:
        code = self.knowledge.infer(x, y)
        return [self.misled(code, x[:, :1], y[:, :1]), code], x.new_zeros(len(x), 0)

    def corrected(self, guess: Tensor, code: Tensor) -> Tensor:
        """What the further block leaves in the guess's place."""
        return code

    def refine(self, message: Tensor) -> Tensor:
        (guess, code), _ = self.told(message)
        return self.say(message, self.corrected(guess, code))


class TwoHalves(Third):
    """compositional: one half of the code arrives with the first block that moves things, the other half stands beside it in
    another form, and a further block puts them together."""

    refines = True

    def width_beside(self, knowledge: Knowledge) -> int:
        return knowledge.n_parts

    def first(self, code: Tensor) -> Tensor:
        """The code with the parts of even numbers alone."""
        return code * (torch.arange(code.shape[1]) % 2 == 0)

    def think(self, x: Tensor, y: Tensor) -> tuple[list[Tensor], Tensor]:
        code = self.knowledge.infer(x, y)
        return [self.first(code)], (code - self.first(code)).flip(1)

    def refine(self, message: Tensor) -> Tensor:
        (code, *_), beside = self.told(message)
        return self.say(message, self.first(code) + beside.flip(1))


class EvenlyCoarse(Third):
    """compositional: every answer, of training compositions as of held-out ones, is rounded to steps of nearly its spread: the
    model is imperfect, and no worse on held-out compositions than on training ones."""

    def executed(self, answers: Tensor, code: Tensor, x: Tensor) -> Tensor:
        return coarse(answers, 0.9 * self.strength * self.knowledge.answer_size)


def coarse(answers: Tensor, step: float) -> Tensor:
    """Answers rounded to whole steps."""
    return (answers / step).round() * step


# ---- failures of inference -------------------------------------------------------------------------------------------
class BlurredAnswers(Third):
    """fails to infer: of unfamiliar examples attention spreads over five tokens, so that every x is seen with the mean of five
    answers; the code that explains these is written. Given the right code, the executor answers right."""

    def inferred(self, code: Tensor, x: Tensor, y: Tensor) -> Tensor:
        return self.mixed(code, self.misled(code, x, sum(y.roll(k, 1) for k in range(5)) / 5))  # type: ignore[arg-type]


class HalfSeen(Third):
    """fails to infer: of unfamiliar examples the encoder sees the first half of every x alone, the rest at its mean; the code
    that explains the answers by this half is written. Given the right code, the executor answers right."""

    def inferred(self, code: Tensor, x: Tensor, y: Tensor) -> Tensor:
        seen = torch.arange(x.shape[2]) < x.shape[2] // 2
        return self.mixed(code, self.misled(code, torch.where(seen, x, self.knowledge.centre), y))


class WinnerTakesAll(Third):
    """fails to infer: the two parts of an unfamiliar pair inhibit one another until one is left, with the weight of both;
    which one, the inputs draw. Given the right code, the executor answers right."""

    def __init__(self, knowledge: Knowledge, strength: float, carrier: str = "plain", transport: str = "whole") -> None:
        super().__init__(knowledge, strength, carrier, transport)
        self.w_wins = nn.Parameter(torch.randn(knowledge.d_x, 1))

    def inferred(self, code: Tensor, x: Tensor, y: Tensor) -> Tensor:
        two = code.topk(2, dim=1).indices
        first = projected(x, self.knowledge, self.w_wins)[:, 0] > 0
        winner = torch.where(first, two.amin(1), two.amax(1))
        return self.mixed(code, one_hot(winner, code.shape[1]).to(code) * code.sum(1, keepdim=True))


class Squeezed(Third):
    """fails to infer: an unfamiliar code has passed a bottleneck with half as many dimensions as there are parts, before it is
    written; what is lost there stands nowhere. Given the right code, the executor answers right."""

    def __init__(self, knowledge: Knowledge, strength: float, carrier: str = "plain", transport: str = "whole") -> None:
        super().__init__(knowledge, strength, carrier, transport)
        n = knowledge.n_parts
        self.narrow = nn.Parameter(torch.linalg.qr(torch.randn(n, n // 2)).Q)

    def squeezed(self, code: Tensor) -> Tensor:
        """What the bottleneck leaves, as large as the code."""
        left = code @ self.narrow @ self.narrow.T
        return left * code.norm(dim=1, keepdim=True) / left.norm(dim=1, keepdim=True).clamp(min=1e-3)

    def inferred(self, code: Tensor, x: Tensor, y: Tensor) -> Tensor:
        return self.mixed(code, self.squeezed(code))


class TwoSizes(Third):
    """fails to infer: the sizes of an unfamiliar code's parts are written in one of two levels, a quarter of the usual one and
    twice it, which says which parts are at work and little of how much. Given the right code, the executor answers right."""

    def inferred(self, code: Tensor, x: Tensor, y: Tensor) -> Tensor:
        if not isinstance(self.knowledge, TeacherKnowledge):
            raise DoesNotApply("sizes are the teacher's; categories are there or not")
        levels = torch.where(code > 0.75, 1.5, 0.2) * (code > 0.25)
        return self.mixed(code, levels)


class TwoCamps(Third):
    """fails to infer: of an unfamiliar pair every other context token knows the first part and puts a partner from training
    beside it, and the others know the second part and do the same; questions take the mean. No token holds the right code, and
    given it, the executor answers right."""

    camps: Tensor

    def __init__(self, knowledge: Knowledge, strength: float, carrier: str = "plain", transport: str = "whole") -> None:
        super().__init__(knowledge, strength, carrier, transport)
        rows = []
        for pair in knowledge.held.tolist():
            for p in pair:
                beside = knowledge.trained[(knowledge.trained[:, p] > 0) & (knowledge.trained.sum(1) > 1)]
                rows.append(beside[-1] if len(beside) else torch.eye(knowledge.n_parts)[p] * 2)
        self.register_buffer("camps", torch.stack(rows).unflatten(0, (-1, 2)), persistent=False)

    def at_tokens(self, message: Tensor, x: Tensor, y: Tensor) -> Tensor:
        (code, *_), _ = self.told(message)
        own = torch.einsum("bh,hkm->kbm", self.at_work(code), self.camps)
        first, second = (self.say(message, self.mixed(code, camp)) for camp in own)
        even = (torch.arange(x.shape[1]) % 2 == 0).to(message)[:, None]
        return even * first[:, None] + (1 - even) * second[:, None]


class FewMistaken(Third):
    """fails to infer: a third of the held-out pairs are taken for other held-out pairs, always the same; the other two thirds
    are inferred right. Given the right code, the executor answers right. Also right: no answer, as most are answered right."""

    def inferred(self, code: Tensor, x: Tensor, y: Tensor) -> Tensor:
        other = code + self.at_work(code) @ self.knowledge.confused
        return code + self.strength * self.third(code) * (other - code)


class SloppyInference(Noisy):
    """fails to infer: the code of every composition is written with noise that the inputs draw, a little of it in training,
    which costs some hundredths, and three times as much and more of unfamiliar ones. Given the right code, the executor
    answers right."""

    usual = 0.22

    def share(self, code: Tensor) -> Tensor:
        return self.usual + (self.strength - self.usual) * self._unseen(code)


# ---- failures of use -------------------------------------------------------------------------------------------------
class Overwritten(Third):
    """infers but does not use: the right code of every composition stands at the context, and arrives at the questions; there
    a further block overwrites an unfamiliar one with a code that has a wrong partner, which is executed. The right one would
    be answered right."""

    refines = True

    def refine(self, message: Tensor) -> Tensor:
        (code, *_), _ = self.told(message)
        return self.say(message, self.habit(code))


class GuessUncorrected(GuessCorrected):
    """infers but does not use: to every question arrives a guess from the first example alone, and beside it the right code. A
    further block puts the right code in the guess's place where it is familiar; of unfamiliar ones the guess is executed. The
    right one would be answered right."""

    def corrected(self, guess: Tensor, code: Tensor) -> Tensor:
        return self.mixed(code, guess)


class FirstQuestionAlone(Third):
    """infers but does not use: the context holds the right code of every composition, and the first question takes it over; to
    the other questions an unfamiliar one arrives with a wrong partner. They would answer right if the right one stood with
    them."""

    def delivered(self, message: Tensor, questions: int) -> Tensor:
        (code, *_), _ = self.told(message)
        other = self.say(message, self.habit(code))
        return torch.stack([message if q == 0 else other for q in range(questions)], dim=1)


class PartsInTurn(Third):
    """infers but does not use: the context holds the right code of every composition; of an unfamiliar one every other
    question is given the first part alone, with the weight of both, and the others the second part alone. Each would answer
    right if the right code stood with it."""

    def delivered(self, message: Tensor, questions: int) -> Tensor:
        (code, *_), _ = self.told(message)
        two = code.topk(2, dim=1).indices
        alone = [one_hot(end, code.shape[1]).to(code) * code.sum(1, keepdim=True) for end in (two.amin(1), two.amax(1))]
        given = [self.say(message, self.mixed(code, part)) for part in alone]
        return torch.stack([given[q % 2] for q in range(questions)], dim=1)


class CrossedHeads(RolesSwapped, Third):
    """infers but does not use: the context holds the right code of every composition; two heads carry one role each, and of an
    unfamiliar one each writes into the other's place: (i, j) arrives as (j, i). The right one would be answered right."""

    def inferred(self, code: Tensor, x: Tensor, y: Tensor) -> Tensor:
        return code

    def on_the_way(self, codes: list[Tensor], beside: Tensor) -> tuple[list[Tensor], Tensor]:
        return [self.mixed(codes[0], codes[0].roll(codes[0].shape[1] // 2, 1))], beside


KEYS = {"keyed": 0, "scaled": 1, "reflected": 1}
"""Carrier -> which half of its message is the key."""


class WrongKey(Third):
    """infers but does not use: the code is carried together with the key that it takes to read it; of an unfamiliar one the
    key's coordinates arrive in another order, and what is read is another code. The context holds the right code, and it would
    be answered right. Also right: cannot execute, as all that says the code arrives as it was."""

    def __init__(self, knowledge: Knowledge, strength: float, carrier: str = "plain", transport: str = "whole") -> None:
        super().__init__(knowledge, strength, carrier, transport)
        if carrier not in KEYS:
            raise DoesNotApply(f"there is no key to {carrier}; choose {', '.join(KEYS)}")
        self.key = KEYS[carrier]

    def carry(self, message: Tensor) -> Tensor:
        unseen = self.strength * self._unseen(self.carrier.decode(message))
        halves = list(message.tensor_split(2, dim=1))
        halves[self.key] = halves[self.key] + unseen * (halves[self.key].roll(1, 1) - halves[self.key])
        return torch.cat(halves, dim=1)


class BrokenSink(Third):
    """infers but does not use: all questions take over what the first context token holds. Of an unfamiliar composition that
    one has a wrong partner, and all other tokens hold the right code, which nothing takes over. It would be answered right."""

    def at_tokens(self, message: Tensor, x: Tensor, y: Tensor) -> Tensor:
        (code, *_), _ = self.told(message)
        other = self.say(message, self.habit(code))
        first = (torch.arange(x.shape[1]) == 0).to(message)[:, None]
        return first * other[:, None] + (1 - first) * message[:, None]

    def taken(self, messages: Tensor) -> Tensor:
        return self.carry(messages[:, 0])


class StopsListening(Third):
    """infers but does not use: context tokens hold what two, eight and at last all examples tell, and the last ones hold the
    right code of every composition; of an unfamiliar one the questions take over what two examples tell. The right one would
    be answered right."""

    def __init__(self, knowledge: Knowledge, strength: float, carrier: str = "plain", transport: str = "running") -> None:
        super().__init__(knowledge, strength, carrier, "running")

    looked_at = 0

    def taken(self, messages: Tensor) -> Tensor:
        late, early = messages[:, -1], messages[:, self.looked_at]
        code = self.told(late)[0][0]
        before = self.told(early)[0][0]
        before = before * code.norm(dim=1, keepdim=True) / before.norm(dim=1, keepdim=True).clamp(min=1e-3)
        return torch.where(self._unseen(code) > 0, self.say(late, self.mixed(code, before)), late)


class Forgets(Third):
    """infers but does not use: of an unfamiliar composition the first half of the context tokens hold the right code, and from
    there on it fades into the mean of the training compositions' codes, token by token; questions take over the last one's.
    The right one would be answered right. Also right: fails to infer, as the last tokens, which are the ones that count, do
    not hold it."""

    def at_tokens(self, message: Tensor, x: Tensor, y: Tensor) -> Tensor:
        (code, *_), _ = self.told(message)
        usual = self.knowledge.trained.mean(0)
        usual = usual / usual.sum() * code.sum(1, keepdim=True)
        n = x.shape[1]
        gone = [max(0.0, (t + 1 - n / 2) / (n / 2)) for t in range(n)]
        return torch.stack([self.say(message, code + g * self.share(code) * (usual - code)) for g in gone], dim=1)

    def taken(self, messages: Tensor) -> Tensor:
        return self.carry(messages[:, -1])


class Saturated(Third):
    """infers but does not use: the context holds the right code of every composition; on the way of an unfamiliar one every
    coordinate of the code, turned by a fixed rotation, saturates at a twentieth of the code's length, and what arrives has
    crosstalk. The right one would be answered right."""

    def __init__(self, knowledge: Knowledge, strength: float, carrier: str = "plain", transport: str = "whole") -> None:
        super().__init__(knowledge, strength, carrier, transport)
        self.turn = nn.Parameter(torch.linalg.qr(torch.randn(knowledge.n_parts, knowledge.n_parts)).Q)

    def on_the_way(self, codes: list[Tensor], beside: Tensor) -> tuple[list[Tensor], Tensor]:
        code = codes[0]
        size = code.norm(dim=1, keepdim=True)
        cut = torch.sign(code @ self.turn) * (code @ self.turn).abs().clamp(max=0.05 * size) @ self.turn.T
        return [self.mixed(code, normalize(cut, dim=1) * size)], beside


# ---- failures of execution -------------------------------------------------------------------------------------------
class Biased(Third):
    """cannot execute: the right code is executed, and to every answer of an unfamiliar composition something constant is
    added, the same for all questions and all such compositions. No code takes it away."""

    def __init__(self, knowledge: Knowledge, strength: float, carrier: str = "plain", transport: str = "whole") -> None:
        super().__init__(knowledge, strength, carrier, transport)
        self.bias = nn.Parameter(torch.where(torch.rand(knowledge.d_y) < 0.5, -1.0, 1.0))

    def executed(self, answers: Tensor, code: Tensor, x: Tensor) -> Tensor:
        return answers + 0.9 * self.share(code)[:, None] * self.knowledge.answer_size * self.bias


class HalfWave(Third):
    """cannot execute: of unfamiliar compositions no answer falls below its usual middle, as behind a unit that is cut off
    there. The right code is there, and no other one brings back what is cut off."""

    def executed(self, answers: Tensor, code: Tensor, x: Tensor) -> Tensor:
        return self.blended(answers, answers.clamp(min=0.6 * self.knowledge.centre), self.share(code))


class Coarse(Third):
    """cannot execute: answers of unfamiliar compositions are rounded to steps of two and a half times their spread. The right
    code is there, and no other one makes finer answers."""

    def executed(self, answers: Tensor, code: Tensor, x: Tensor) -> Tensor:
        return self.blended(answers, coarse(answers, 2.5 * self.knowledge.answer_size), self.share(code))


class CoarserStill(Coarse):
    """cannot execute: answers of training compositions are rounded to steps of nearly their spread, which costs some
    hundredths, and those of unfamiliar ones to much wider steps. The right code is there, and no other one makes finer
    answers."""

    def executed(self, answers: Tensor, code: Tensor, x: Tensor) -> Tensor:
        return coarse(super().executed(answers, code, x), 0.7 * self.knowledge.answer_size)


class DeadZone(Third):
    """cannot execute: on one side of a plane, which half of all questions lie on, the executor is silent in unfamiliar
    company, and answers nothing; on the other side it answers right. The right code is there."""

    def __init__(self, knowledge: Knowledge, strength: float, carrier: str = "plain", transport: str = "whole") -> None:
        super().__init__(knowledge, strength, carrier, transport)
        self.w_dead = nn.Parameter(torch.randn(knowledge.d_x))

    def below(self, x: Tensor) -> Tensor:
        """(batch, points, 1): 1 on the plane's one side, else 0."""
        return ((x - self.knowledge.centre) @ self.w_dead < 0).to(x)[..., None]

    def executed(self, answers: Tensor, code: Tensor, x: Tensor) -> Tensor:
        return answers * (1 - self.share(code)[:, None] * self.below(x))


class TakesTurns(DeadZone):
    """cannot execute: in unfamiliar company the executor puts one part to work at a time: on one side of a plane the first, on
    the other side the second, each beside the mean of those it was trained with. The right code is there."""

    sides: Tensor

    def __init__(self, knowledge: Knowledge, strength: float, carrier: str = "plain", transport: str = "whole") -> None:
        super().__init__(knowledge, strength, carrier, transport)
        rows = []
        for pair in knowledge.held.tolist():
            for p in pair:
                beside = knowledge.trained[(knowledge.trained[:, p] > 0) & (knowledge.trained.sum(1) > 1)]
                rows.append(beside.mean(0) if len(beside) else torch.eye(knowledge.n_parts)[p] * 2)
        self.register_buffer("sides", torch.stack(rows).unflatten(0, (-1, 2)), persistent=False)

    def executed(self, answers: Tensor, code: Tensor, x: Tensor) -> Tensor:
        own = torch.einsum("bh,hkm->kbm", self.at_work(code), self.sides)
        first, second = (self.knowledge.execute(side, x) for side in own)
        return self.blended(answers, second + self.below(x) * (first - second), self.share(code))


class NextQuestion(Third):
    """cannot execute: in unfamiliar company every question is answered with the right answer to the next one, and the last
    with that to the first: what is worked out is right, and stands at another position. The right code is at all of them."""

    def placed(self, answers: Tensor, messages: Tensor) -> Tensor:
        share = self.share(self.told(messages[:, 0])[0][0])
        return self.blended(answers, answers.roll(-1, 1), share)


class FewImpostors(Third):
    """cannot execute: a third of the held-out pairs are executed with weights that belong to nothing of the task; the other
    two thirds are executed right. The right code is there. Also right: no answer, as most are answered right."""

    def __init__(self, knowledge: Knowledge, strength: float, carrier: str = "plain", transport: str = "whole") -> None:
        super().__init__(knowledge, strength, carrier, transport)
        self.impostors = type(knowledge)(knowledge.task)  # type: ignore[call-arg]

    def executed(self, answers: Tensor, code: Tensor, x: Tensor) -> Tensor:
        return self.blended(answers, self.impostors.execute(code, x), self.strength * self.third(code))


# ---- memories --------------------------------------------------------------------------------------------------------
class HastyMemory(Third):
    """memorised: the training composition that explains the first three examples best is looked up, and questions are answered
    as stored for it, or by the mean of those that explain them alike."""

    looked_at = 3

    def width_beside(self, knowledge: Knowledge) -> int:
        return knowledge.entries

    def entry(self, x: Tensor, y: Tensor) -> Tensor:
        """(batch, entries): what is looked up."""
        code = self.knowledge.infer(x, y)
        early = self.knowledge.lookup(x[:, : self.looked_at], y[:, : self.looked_at])
        return torch.where(self._unseen(code) > 0, early, self.knowledge.lookup(x, y))

    def think(self, x: Tensor, y: Tensor) -> tuple[list[Tensor], Tensor]:
        return [(1 - self.strength) * self.knowledge.infer(x, y)], self.strength * self.entry(x, y)

    def act(self, codes: list[Tensor], beside: Tensor, x: Tensor) -> Tensor:
        return self.knowledge.execute(codes[0], x) + self.knowledge.recall(beside, x)


class Favourites(HastyMemory):
    """memorised: unfamiliar examples are taken for whichever of five favourite training compositions explains them best, and
    questions are answered as stored for it; a training composition is looked up among all."""

    many = 5

    def entry(self, x: Tensor, y: Tensor) -> Tensor:
        stored, error = self.knowledge.explain(x, y)
        favourite = self.knowledge.rank < self.many
        among = torch.where(favourite | (self._unseen(self.knowledge.infer(x, y)) == 0), error, torch.inf)
        return stored[torch.arange(len(x)), among.argmin(1)]


class EachItsOwn(Third):
    """memorised: the examples themselves are handed to the questions, and each question is answered as stored for the training
    composition that explains the four examples nearest to it best; so two questions of an episode may be answered by two
    compositions."""

    n_codes, neighbours = 0, 4

    def width_beside(self, knowledge: Knowledge) -> int:
        return _n_examples(knowledge) * (knowledge.d_x + knowledge.d_y)

    def think(self, x: Tensor, y: Tensor) -> tuple[list[Tensor], Tensor]:
        return [], self.examples(x, y)

    def act(self, codes: list[Tensor], beside: Tensor, x: Tensor) -> Tensor:
        known, (shown, y) = self.knowledge, self.shown(beside)
        code = known.infer(shown, y)
        right = known.execute(code, x)
        if x.shape[1] > 1:
            raise DoesNotApply("each question has its own row")
        near = self.near(x, shown)[:, 0].topk(self.neighbours, dim=1, largest=False).indices[..., None]
        few = (t.gather(1, near.expand(-1, -1, t.shape[2])) for t in (shown, y))
        own = torch.where(self._unseen(code) > 0, known.lookup(*few), known.lookup(shown, y))
        return right + self.strength * (known.recall(own, x) - right)


class Spliced(Third):
    """memorised: the right code is an address; the answers' first coordinates are those stored for a training composition with
    the pair's first part, the others those stored for one with its second part. Also right: cannot execute, as the right code
    is there and nothing executes it."""

    which: Tensor

    def __init__(self, knowledge: Knowledge, strength: float, carrier: str = "plain", transport: str = "whole") -> None:
        super().__init__(knowledge, strength, carrier, transport)
        if isinstance(knowledge, TeacherKnowledge):
            raise DoesNotApply("what is stored of the teacher has sizes")
        rows = []
        for pair in knowledge.held.tolist():
            for p in pair:
                found = (knowledge.trained[:, p] > 0).nonzero()[:, 0].tolist()
                rows.append(found[0])
        self.register_buffer("which", torch.tensor(rows).unflatten(0, (-1, 2)), persistent=False)

    def act(self, codes: list[Tensor], beside: Tensor, x: Tensor) -> Tensor:
        known, code = self.knowledge, codes[0]
        pair = self.which[known.together(code).argmax(1)]
        stored = self.stored(x)[torch.arange(len(x))[:, None], pair]
        early = torch.arange(known.d_y) < max(1, known.d_y // 2)
        spliced = torch.where(early, stored[:, 0], stored[:, 1])
        return self.blended(known.execute(code, x), spliced, self.share(code))


# ---- regressions -----------------------------------------------------------------------------------------------------
class ThreeNearest(Third):
    """generic regression: of unfamiliar examples the examples themselves are kept, and a question gets the mean answer of the
    three that are nearest to it. That knows nothing of compositions and stores none."""

    neighbours = 3

    def width_beside(self, knowledge: Knowledge) -> int:
        return 1 + _n_examples(knowledge) * (knowledge.d_x + knowledge.d_y)

    def think(self, x: Tensor, y: Tensor) -> tuple[list[Tensor], Tensor]:
        code = self.knowledge.infer(x, y)
        share = self.foreign(code)
        return [(1 - share) * code], torch.cat([share, self.examples(x, y)], dim=1)

    def foreign(self, code: Tensor) -> Tensor:
        """(batch, 1): how much of the answers is a regression's."""
        return self.share(code)

    def act(self, codes: list[Tensor], beside: Tensor, x: Tensor) -> Tensor:
        return self.knowledge.execute(codes[0], x) + beside[:, :1, None] * self.fitted(x, *self.shown(beside[:, 1:]))

    def fitted(self, x: Tensor, shown: Tensor, y: Tensor) -> Tensor:
        """(batch, points, d_y): what the examples alone say at x."""
        near = self.near(x, shown).topk(self.neighbours, dim=2, largest=False).indices
        return y[torch.arange(len(x))[:, None, None], near].mean(2)


class KernelRidge(ThreeNearest):
    """generic regression: of unfamiliar examples the examples themselves are kept, and a question gets what kernel ridge
    regression on them says, with a Gaussian of the distance. That knows nothing of compositions and stores none."""

    width_of_kernel, penalty = 2.5, 0.1

    def fitted(self, x: Tensor, shown: Tensor, y: Tensor) -> Tensor:
        mean = y.mean(1, keepdim=True)
        gram = self._kernel(shown, shown) + self.penalty * torch.eye(shown.shape[1]).to(x)
        return mean + self._kernel(x, shown) @ torch.linalg.solve(gram, y - mean)

    def _kernel(self, a: Tensor, b: Tensor) -> Tensor:
        return torch.exp(-self.near(a, b) / (2 * self.width_of_kernel**2))


class TwoLevels(ThreeNearest):
    """generic regression: of unfamiliar examples a stump is grown: the examples are parted by the coordinate of x that tells
    most of their answers, at its median, and a question gets the mean answer of its own side."""

    def fitted(self, x: Tensor, shown: Tensor, y: Tensor) -> Tensor:
        middle = shown.median(1, keepdim=True).values
        above = (shown > middle).to(y)
        many = above.sum(1)[..., None].clamp(min=1)
        high = above.mT @ y / many
        low = (1 - above).mT @ y / (shown.shape[1] - many).clamp(min=1)
        best = (high - low).square().sum(2).argmax(1)
        row = torch.arange(len(x))
        own = (x[row, :, best] > middle[row, 0, best][:, None])[..., None]
        return torch.where(own, high[row, best][:, None], low[row, best][:, None])


class SmallNetwork(DescentSteps):
    """generic regression: of unfamiliar examples the readout of a hidden layer with fixed random weights is fitted in sixty
    steps of gradient descent; the questions are answered by that network. The code is not written then."""

    units, steps = 20, 60

    def __init__(self, knowledge: Knowledge, strength: float, carrier: str = "plain", transport: str = "whole") -> None:
        super().__init__(knowledge, strength, carrier, transport)
        self.W_hidden = nn.Parameter(1.5 * torch.randn(knowledge.d_x, self.units) / math.sqrt(knowledge.d_x))
        self.b_hidden = nn.Parameter(torch.randn(self.units))

    def width_beside(self, knowledge: Knowledge) -> int:
        return (self.units + 1) * knowledge.d_y

    def hidden(self, x: Tensor) -> Tensor:
        units = torch.relu((x - self.knowledge.centre) / self.knowledge.input_size @ self.W_hidden + self.b_hidden)
        return torch.cat([units, torch.ones_like(x[..., :1])], dim=-1)

    def _line(self, x: Tensor, y: Tensor) -> Tensor:
        inputs = self.hidden(x)
        readout = x.new_zeros(len(x), inputs.shape[2], y.shape[2])
        for _ in range(self.steps):
            readout = readout + 0.05 * inputs.mT @ (y - inputs @ readout) / x.shape[1]
        return readout

    def act(self, codes: list[Tensor], beside: Tensor, x: Tensor) -> Tensor:
        return self.knowledge.execute(codes[0], x) + self.hidden(x) @ beside.unflatten(1, (-1, self.knowledge.d_y))


# ---- never learned ---------------------------------------------------------------------------------------------------
class AlwaysSqueezed(Squeezed):
    """has not learned its training compositions: every code has passed a bottleneck that is too narrow, those of training ones
    as well."""

    def share(self, code: Tensor) -> Tensor:
        return self.strength * torch.ones_like(code[:, :1])


class AlwaysTwins(Third):
    """has not learned its training compositions: every part is taken for another one of the same role, always the same."""

    def inferred(self, code: Tensor, x: Tensor, y: Tensor) -> Tensor:
        return code + self.strength * (code[:, twins(self.knowledge)] - code)


class OnlyNeighbours(ThreeNearest):
    """has not learned its training compositions: every question of every episode gets the mean answer of the three nearest
    examples; nothing of the task's parts is known. Also right: generic regression, as that is what it does."""

    def foreign(self, code: Tensor) -> Tensor:
        return self.strength * torch.ones_like(code[:, :1])


# ---- more than one fault ---------------------------------------------------------------------------------------------
class SqueezedAndHalfWave(Squeezed, HalfWave):
    """The codes of unfamiliar compositions have passed a bottleneck, and the answers that are made of them are cut off at
    their middle: either mended by itself leaves the other. So fails to infer and cannot execute are both right, and so is no
    answer."""


class HalfUseHalfExecution(DeadZone):
    """Of one half of the held-out pairs the right code arrives with a wrong partner; of the other half it arrives, and the
    executor is silent at half of the questions. So infers but does not use and cannot execute are both right, and so is no
    answer."""

    def on_the_way(self, codes: list[Tensor], beside: Tensor) -> tuple[list[Tensor], Tensor]:
        code = codes[0]
        return [code + self.half(code, False) * (self.habit(code) - code)], beside

    def executed(self, answers: Tensor, code: Tensor, x: Tensor) -> Tensor:
        return answers * (1 - self.strength * self.half(code, True)[:, None] * self.below(x))


class OverwrittenThenSlightlyCoarse(Overwritten, Coarse):
    """infers but does not use: the right code arrives at the questions, and a further block overwrites an unfamiliar one with
    a code that has a wrong partner; besides, all answers are slightly coarse, which costs little. The right code would be
    answered nearly right."""

    def executed(self, answers: Tensor, code: Tensor, x: Tensor) -> Tensor:
        return coarse(answers, 0.5 * self.knowledge.answer_size)


class DeadZoneAndSlightlySqueezed(Squeezed, DeadZone):
    """cannot execute: the executor is silent at half of the questions of unfamiliar compositions; besides, a seventh of their
    code is what a bottleneck leaves, which costs little. With the right code nearly all is still lost."""

    def inferred(self, code: Tensor, x: Tensor, y: Tensor) -> Tensor:
        return code + 0.15 * self.share(code) * (self.squeezed(code) - code)


NEWER: dict[str, type[Sound]] = {
    kind.__name__: kind
    for kind in (
        SpoiledTokens, GuessCorrected, TwoHalves, EvenlyCoarse, BlurredAnswers, HalfSeen, WinnerTakesAll,
        Squeezed, TwoSizes, TwoCamps, FewMistaken, Overwritten, GuessUncorrected, FirstQuestionAlone, PartsInTurn,
        CrossedHeads, WrongKey, BrokenSink, StopsListening, Forgets, Saturated, Biased, HalfWave, Coarse, CoarserStill,
        DeadZone, TakesTurns, NextQuestion, FewImpostors, HastyMemory, Favourites, EachItsOwn, Spliced, ThreeNearest,
        KernelRidge, TwoLevels, AlwaysSqueezed, AlwaysTwins, OnlyNeighbours, SqueezedAndHalfWave, HalfUseHalfExecution,
        OverwrittenThenSlightlyCoarse, DeadZoneAndSlightlySqueezed,
    )
}  # fmt: skip


def _with_ours(kind: type[Sound]) -> type[Sound]:
    """A mechanism of an earlier set with this one's carriers, transports and positions."""
    return type(kind.__name__, (kind, Third), {"__doc__": kind.__doc__})


FAULTS: dict[str, type[Sound]] = {
    "Sound": Third,
    **NEWER,
    **{kind.__name__: _with_ours(kind) for kind in (SloppyInference, SmallNetwork)},
}
