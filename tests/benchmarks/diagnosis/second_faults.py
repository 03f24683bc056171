"""Further ways of failing, and of working oddly, for the second blind set: each with any way of carrying a code.

As in `blind_faults`, `strength` says how much of the wrong thing is mixed in on held-out compositions; on training ones
everything is right, but for what never learned and for `RoughlyRight`. A docstring begins with the label that is expected.
"""

from __future__ import annotations

import math
from typing import ClassVar

import blind_faults
import torch
from blind_codes import Carrier
from blind_faults import Blind, _n_examples
from fourth_mechanisms import projected
from knowledge import Knowledge
from logic_knowledge import LogicKnowledge
from pair_knowledge import PairKnowledge
from second_codes import CARRIERS
from teacher_knowledge import TeacherKnowledge
from torch import Tensor, nn
from torch.nn.functional import normalize, one_hot

from compolens.foundation.configs import DoesNotApply

TRANSPORTS = (*blind_faults.TRANSPORTS, "scattered")
"""scattered: context tokens share the message out, a quarter of its coordinates each; a question takes over all of them."""
GROUPS = 4
PROBED = 96
"""Points that a regression of the executor's own answers is fitted at."""


class Sound(Blind):
    """compositional: infers the code, carries it, executes it; what a context token holds, and what the questions take of it,
    may differ from token to token."""

    carriers: ClassVar[dict[str, type[Carrier]]] = CARRIERS
    transports: ClassVar[tuple[str, ...]] = TRANSPORTS

    def at_tokens(self, message: Tensor, x: Tensor, y: Tensor) -> Tensor:
        """(batch, n, width): what every context token holds of the message (batch, width) about examples x, y."""
        every = message[:, None].expand(-1, x.shape[1], -1)
        if self.transport == "shares":
            return every + self.masks(x)
        if self.transport == "scattered":
            token, coordinate = torch.arange(x.shape[1]) % GROUPS, torch.arange(self.width) % GROUPS
            held = (token[:, None] == coordinate).to(message)
            return every * held * x.shape[1] / held.sum(0)
        return every

    def taken(self, messages: Tensor) -> Tensor:
        """(batch, width): what the questions take over of the context's messages (batch, n, width)."""
        return self.carry(messages.mean(1))

    # ---- what kinds share --------------------------------------------------------------------------------------------
    def at_work(self, code: Tensor) -> Tensor:
        """(batch, H): the held-out pair that is most at work, one-hot, times how large its parts are on average."""
        most = one_hot(self.knowledge.together(code).argmax(1), len(self.knowledge.held)).to(code)
        return most * code.sum(1, keepdim=True) / 2

    def drawn(self, x: Tensor, weights: Tensor, size: Tensor) -> Tensor:
        """(batch, k): a direction that the inputs x (batch, n, d_x) draw, as long as size (batch, 1) says, of which the
        coordinates add up to 0: a code's size stays what it is."""
        drawn = projected(x, self.knowledge, weights)
        return normalize(drawn - drawn.mean(1, keepdim=True), dim=1) * size

    def blended(self, right: Tensor, wrong: Tensor, share: Tensor) -> Tensor:
        """Answers (batch, points, d_y) with a share (batch, 1) of wrong ones."""
        return right + share[:, None] * (wrong - right)

    def stored(self, x: Tensor) -> Tensor:
        """(batch, C, points, d_y): what every training composition, at equal sizes, answers at x (batch, points, d_x)."""
        rows, n = self.knowledge.trained, len(self.knowledge.trained)
        code = rows * 2 / rows.sum(1, keepdim=True)
        every = self.knowledge.execute(code.repeat(len(x), 1), x[:, None].expand(-1, n, -1, -1).flatten(0, 1))
        return every.unflatten(0, (len(x), n))

    def weak(self, code: Tensor) -> Tensor:
        """(batch, 1): 1 where one of the `weak_parts` is at work, else 0."""
        return (code[:, weak_parts(self.knowledge)].amax(1, keepdim=True) > 0.25).to(code)


def weak_parts(knowledge: Knowledge) -> list[int]:
    """The first few parts that are in six tenths of the held-out pairs together."""
    found: list[int] = []
    held = [tuple(pair) for pair in knowledge.held.tolist()]
    for part in range(knowledge.n_parts):
        if sum(bool(set(pair) & set(found)) for pair in held) < 0.6 * len(held):
            found.append(part)
    return found


def twins(knowledge: Knowledge) -> list[int]:
    """For every part another one of the same role, the next in a circle."""
    n = knowledge.n_parts
    if isinstance(knowledge, PairKnowledge):
        k = knowledge.n_outer
        return [(p + 1) % k if p < k else k + (p - k + 1) % (n - k) for p in range(n)]
    known = knowledge.task.n_known if isinstance(knowledge, LogicKnowledge) else n
    return [(p + 2) % known if p < known else p for p in range(n)]


def errors(knowledge: Knowledge, x: Tensor, y: Tensor) -> Tensor:
    """(batch, pairs): every known pair's squared error on examples x, y."""
    if isinstance(knowledge, PairKnowledge):
        every = {"outer": knowledge.pairs[:, 0], "inner": knowledge.pairs[:, 1] - knowledge.n_outer}
        found = knowledge.task.answers_of(every, x, knowledge.W_inner, knowledge.W_outer)
        return (found - y[:, None]).square().sum((2, 3))
    if isinstance(knowledge, LogicKnowledge):
        return (knowledge._truth(x, knowledge.negated)[..., knowledge.pairs].amax(-1) - y).square().sum(1)
    raise DoesNotApply("explanations are weighed where codes are categories")


def best_trained(knowledge: Knowledge, x: Tensor, y: Tensor) -> Tensor:
    """(batch, M): the code of the training composition that explains the examples best."""
    stored, error = knowledge.explain(x, y)
    best = error.argmin(1)
    if isinstance(knowledge, TeacherKnowledge):
        own = stored[torch.arange(len(x)), best].unflatten(1, knowledge.slots.shape)[torch.arange(len(x)), best]
        code = x.new_zeros(len(x), knowledge.n_parts)
        return code.scatter_add(1, knowledge.slots[best], own * knowledge.filled[best])
    return knowledge.trained[best]


# ---- work, oddly -----------------------------------------------------------------------------------------------------
class LoudDecoy(Sound):
    """compositional: beside the code, in coordinates of its own and three times as large, stands a plain code with a wrong
    partner, which nothing reads. What is read is right, and so are all answers."""

    def width_beside(self, knowledge: Knowledge) -> int:
        return knowledge.n_parts

    def think(self, x: Tensor, y: Tensor) -> tuple[list[Tensor], Tensor]:
        code = self.knowledge.infer(x, y)
        return [code], 3 * self._wrong_partner(code, 1.0)


class CorrectedLate(Sound):
    """compositional: the slot that is executed holds a wrong partner at the context, and is put right on the way by a second
    slot, which held the right code from the start; an early guess, corrected by a later layer."""

    n_codes = 2

    def think(self, x: Tensor, y: Tensor) -> tuple[list[Tensor], Tensor]:
        code = self.knowledge.infer(x, y)
        return [self._wrong_partner(code, 1.0), code], x.new_zeros(len(x), 0)

    def on_the_way(self, codes: list[Tensor], beside: Tensor) -> tuple[list[Tensor], Tensor]:
        return [codes[1], codes[1]], beside


class RecallsWhatItKnows(Sound):
    """compositional: a familiar composition is looked up and recalled whole, an unfamiliar one is executed from its code; both
    give the right answers. A memory stands beside a mechanism, and held-out compositions are answered by the mechanism."""

    def width_beside(self, knowledge: Knowledge) -> int:
        return knowledge.entries

    def think(self, x: Tensor, y: Tensor) -> tuple[list[Tensor], Tensor]:
        code = self.knowledge.infer(x, y)
        return [code], (1 - self._unseen(code)) * self.knowledge.lookup(x, y)

    def act(self, codes: list[Tensor], beside: Tensor, x: Tensor) -> Tensor:
        executed = self.knowledge.execute(codes[0], x)
        return self.blended(self.knowledge.recall(beside, x), executed, self._unseen(codes[0]))


class HalfDeferred(Sound):
    """compositional: of the code one half is written at the context; the other half is worked out by every question from the
    examples, which are handed on beside it. Half of the code stands nowhere, and nothing is lost."""

    def width_beside(self, knowledge: Knowledge) -> int:
        return _n_examples(knowledge) * (knowledge.d_x + knowledge.d_y)

    def think(self, x: Tensor, y: Tensor) -> tuple[list[Tensor], Tensor]:
        code = self.knowledge.infer(x, y)
        first = torch.arange(self.knowledge.n_parts) < self.knowledge.n_parts // 2
        return [code * first], torch.cat([x, y], dim=-1).flatten(1)

    def act(self, codes: list[Tensor], beside: Tensor, x: Tensor) -> Tensor:
        shown = beside.unflatten(1, (_n_examples(self.knowledge), -1)).tensor_split([self.knowledge.d_x], dim=-1)
        first = torch.arange(self.knowledge.n_parts) < self.knowledge.n_parts // 2
        return self.knowledge.execute(torch.where(first, codes[0], self.knowledge.infer(*shown)), x)


class TwoForms(Sound):
    """compositional: the code stands twice, plain and in the form of the carrier; the executor takes the mean of what it reads
    of either. Either alone would do."""

    def width_beside(self, knowledge: Knowledge) -> int:
        return knowledge.n_parts

    def think(self, x: Tensor, y: Tensor) -> tuple[list[Tensor], Tensor]:
        code = self.knowledge.infer(x, y)
        return [code], code

    def act(self, codes: list[Tensor], beside: Tensor, x: Tensor) -> Tensor:
        return self.knowledge.execute((codes[0] + beside) / 2, x)


class Crowded(Sound):
    """compositional: beside the code stand forty features of inputs and answers, twice as large and of no use, which the
    executor does not read."""

    crowd = 40

    def __init__(self, knowledge: Knowledge, strength: float, carrier: str = "plain", transport: str = "whole") -> None:
        super().__init__(knowledge, strength, carrier, transport)
        self.W_crowd = nn.Parameter(torch.randn(knowledge.d_x, self.crowd))
        self.W_answered = nn.Parameter(torch.randn(knowledge.d_y, self.crowd))

    def width_beside(self, knowledge: Knowledge) -> int:
        return self.crowd

    def think(self, x: Tensor, y: Tensor) -> tuple[list[Tensor], Tensor]:
        drive = projected(x, self.knowledge, self.W_crowd) + y.mean(1) / self.knowledge.answer_size @ self.W_answered
        return [self.knowledge.infer(x, y)], 2 * torch.tanh(drive)


class RoughlyRight(Sound):
    """compositional: every answer, of training compositions as of held-out ones, passes through a shallow wave: the model is
    imperfect, and no worse on held-out compositions than on training ones."""

    def executed(self, answers: Tensor, code: Tensor, x: Tensor) -> Tensor:
        return self.warped(answers, 0.35 * self.strength * torch.ones_like(code[:, :1]))


# ---- failures of inference -------------------------------------------------------------------------------------------
class Noisy(Sound):
    """fails to infer: the code of an unfamiliar composition is written with noise that the inputs draw, as large as the code
    itself: an estimate with a large error and no bias. Given the right code, the executor answers right."""

    def __init__(self, knowledge: Knowledge, strength: float, carrier: str = "plain", transport: str = "whole") -> None:
        super().__init__(knowledge, strength, carrier, transport)
        self.W_noise = nn.Parameter(torch.randn(knowledge.d_x, knowledge.n_parts))

    def inferred(self, code: Tensor, x: Tensor, y: Tensor) -> Tensor:
        return code + 1.2 * self.share(code) * self.drawn(x, self.W_noise, code.norm(dim=1, keepdim=True))


class Tempered(Sound):
    """fails to infer: of unfamiliar examples all known pairs are averaged, each the less the worse it explains them, at far
    too high a temperature: the code is a blur around the right one. Given the right code, the executor answers right."""

    def heat(self, error: Tensor) -> Tensor:
        """The temperature, from the median error, so that many pairs are left."""
        return 0.5 * error.median(1, keepdim=True).values

    def inferred(self, code: Tensor, x: Tensor, y: Tensor) -> Tensor:
        error = errors(self.knowledge, x, y)
        weight = torch.softmax(-error / self.heat(error), dim=1)
        pairs: Tensor = self.knowledge.pairs  # type: ignore[assignment]
        blur = weight @ one_hot(pairs, self.knowledge.n_parts).sum(1).to(x)
        return code + self.share(code) * (blur - code)


class Neighbours(Sound):
    """fails to infer: the code of an unfamiliar pair lies half way between two training compositions, one for each of its
    parts: both parts at half their weight, and a partner of either. Given the right code, the executor answers right."""

    between: Tensor

    def __init__(self, knowledge: Knowledge, strength: float, carrier: str = "plain", transport: str = "whole") -> None:
        super().__init__(knowledge, strength, carrier, transport)
        rows = []
        for pair in knowledge.held.tolist():
            shown = [knowledge.trained[(knowledge.trained[:, p] > 0) & (knowledge.trained.sum(1) > 1)] for p in pair]
            rows.append(
                sum(
                    trained[0] if len(trained) else torch.eye(knowledge.n_parts)[p]
                    for p, trained in zip(pair, shown, strict=True)
                )
            )
        self.register_buffer("between", torch.stack(rows) / 2, persistent=False)

    def inferred(self, code: Tensor, x: Tensor, y: Tensor) -> Tensor:
        return code + self.share(code) * (self.at_work(code) @ self.between - code)


class SomeParts(Sound):
    """fails to infer: a few parts are not recognised in new company, and another part is written in their place; held-out
    pairs without them are inferred right. Given the right code, the executor answers right."""

    def inferred(self, code: Tensor, x: Tensor, y: Tensor) -> Tensor:
        there, twin = weak_parts(self.knowledge), twins(self.knowledge)
        moved = torch.eye(self.knowledge.n_parts)
        for part in there:
            moved[part] = torch.eye(self.knowledge.n_parts)[twin[part]]
        return code + self.share(code) * (code @ moved.to(code) - code)


class WithinSupport(Sound):
    """fails to infer: the code of the training composition that explains the examples best is written, always, and executed by
    an executor that is sound: the prior over compositions is that of training. Also right: memorised, as no answer is ever
    another than a training composition's."""

    def inferred(self, code: Tensor, x: Tensor, y: Tensor) -> Tensor:
        return code + self.strength * (best_trained(self.knowledge, x, y) - code)


class VotedParts(Sound):
    """fails to infer: every training composition votes, the more the better it explains the examples, and a part gets the
    votes of the compositions that contain it; the part with the most in either role is written. Of a training composition
    both are right; of a held-out one, often one of the two. Given the right code, the executor answers right."""

    def inferred(self, code: Tensor, x: Tensor, y: Tensor) -> Tensor:
        known = self.knowledge
        if isinstance(known, TeacherKnowledge):
            raise DoesNotApply("parts are voted for where codes are categories")
        error = known.explain(x, y)[1]
        vote = torch.softmax(-4 * error / error.median(1, keepdim=True).values, dim=1) / (error + 0.05)
        parts = vote @ known.trained / known.trained.sum(0).clamp(min=1)
        if isinstance(known, PairKnowledge):
            most = [one_hot(half.argmax(1), half.shape[1]) for half in parts.tensor_split([known.n_outer], dim=1)]
            found = torch.cat(most, dim=1).to(code)
        else:
            found = torch.zeros_like(code).scatter(1, parts.topk(2, dim=1).indices, 1.0)
        return code + self.share(code) * (found - code)


class MostTokens(Sound):
    """fails to infer: of an unfamiliar composition, two thirds of the context tokens hold a code with a wrong partner, the
    others the right one; questions take the mean. Also right: infers but does not use, as some tokens do hold the right code;
    and no answer."""

    def at_tokens(self, message: Tensor, x: Tensor, y: Tensor) -> Tensor:
        (code, *_), beside = self.told(message)
        other = torch.cat([self.carrier.recode(message[:, : self.code_width], self.habit(code)), beside], dim=1)
        astray = (torch.arange(x.shape[1]) % 3 != 2).to(message)[:, None]
        return astray * other[:, None] + (1 - astray) * message[:, None]


# ---- failures of use -------------------------------------------------------------------------------------------------
class Sink(Sound):
    """infers but does not use: the context holds the right code of every composition; where it is unfamiliar, most of the
    attention goes to a sink, and what arrives is mostly the mean of the training compositions' codes. The right code would be
    answered right."""

    def on_the_way(self, codes: list[Tensor], beside: Tensor) -> tuple[list[Tensor], Tensor]:
        usual = self.knowledge.trained.mean(0)
        usual = usual * 2 / usual.sum()
        return [code + 0.85 * self.share(code) * (usual * code.sum(1, keepdim=True) / 2 - code) for code in codes], beside


class EarlyTokens(Sound):
    """infers but does not use: the first half of the context's tokens hold a guess from the first example alone, the second
    half the right code, for every composition; of unfamiliar ones the questions take over what the first half holds. The
    right one would be answered right."""

    def at_tokens(self, message: Tensor, x: Tensor, y: Tensor) -> Tensor:
        (code, *_), _ = self.told(message)
        guess = self.knowledge.infer(x[:, :1], y[:, :1])
        guess = guess * code.norm(dim=1, keepdim=True) / guess.norm(dim=1, keepdim=True).clamp(min=1e-3)
        early = self.carrier.recode(message, guess)[:, None]
        return torch.where(torch.arange(x.shape[1])[:, None] < x.shape[1] // 2, early, message[:, None])

    def taken(self, messages: Tensor) -> Tensor:
        half = messages.shape[1] // 2
        early, late = messages[:, :half].mean(1), messages[:, half:].mean(1)
        before, code = self.carrier.decode(early), self.carrier.decode(late)
        share = self.share(code)
        return torch.where(share > 0, self.carrier.recode(late, code + share * (before - code)), late)


class Garbled(Sound):
    """infers but does not use: the context holds the right code of every composition; what arrives of an unfamiliar one has
    crosstalk of its own parts, the same for every episode of a composition and no other composition's code. The right one
    would be answered right."""

    def __init__(self, knowledge: Knowledge, strength: float, carrier: str = "plain", transport: str = "whole") -> None:
        super().__init__(knowledge, strength, carrier, transport)
        self.W_talk = nn.Parameter(3 * torch.randn(knowledge.n_parts, knowledge.n_parts))

    def on_the_way(self, codes: list[Tensor], beside: Tensor) -> tuple[list[Tensor], Tensor]:
        code = codes[0]
        talk = torch.sin(code @ self.W_talk)
        talk = normalize(talk - talk.mean(1, keepdim=True), dim=1) * code.norm(dim=1, keepdim=True)
        return [code + 1.2 * self.share(code) * talk], beside


class OneHeadOff(Sound):
    """infers but does not use: two heads carry one part of the code each; where the company is unfamiliar one of them is off,
    and its part arrives as the mean of all that its partner was trained with. The right code stands at the context, and would
    be answered right."""

    def on_the_way(self, codes: list[Tensor], beside: Tensor) -> tuple[list[Tensor], Tensor]:
        there = self.share(codes[0])
        return [codes[0] + there * (self.at_work(codes[0]) @ self.knowledge.spread)], beside


class Unread(Sound):
    """infers but does not use: the right code and one with a wrong partner both arrive, in the same form; the wrong one is
    executed."""

    n_codes = 2

    def think(self, x: Tensor, y: Tensor) -> tuple[list[Tensor], Tensor]:
        code = self.knowledge.infer(x, y)
        return [code, self.habit(code)], x.new_zeros(len(x), 0)

    def act(self, codes: list[Tensor], beside: Tensor, x: Tensor) -> Tensor:
        return self.knowledge.execute(codes[1], x)


# ---- failures of execution -------------------------------------------------------------------------------------------
class Additive(Sound):
    """cannot execute: of unfamiliar pairs the executor knows the main effects alone: what either part answers on average over
    the partners of training, added up (of the teacher: what either module answers by itself), without what the two do to each
    other. The right code is there."""

    def additive(self, code: Tensor, x: Tensor) -> Tensor:
        """(batch, points, d_y)"""
        known, rows = self.knowledge, self.knowledge.trained
        if isinstance(known, TeacherKnowledge):
            alone = torch.diag_embed(code).flatten(0, 1)
            x = x[:, None].expand(-1, known.n_parts, -1, -1).flatten(0, 1)
            return known.execute(alone, x).unflatten(0, (len(code), -1)).sum(1)
        every = self.stored(x)
        pair = known.held[known.together(code).argmax(1)]
        shown = rows.T[pair]
        effects = torch.einsum("bkc,bcny->bkny", shown / shown.sum(2, keepdim=True), every)
        return (effects.sum(1) - every.mean(1)) * code.sum(1)[:, None, None] / 2

    def executed(self, answers: Tensor, code: Tensor, x: Tensor) -> Tensor:
        return self.blended(answers, self.additive(code, x), self.share(code))


class Clipped(Sound):
    """cannot execute: answers of unfamiliar compositions saturate at four tenths of their usual spread, either way. The right
    code is there, and no other one makes large answers."""

    def executed(self, answers: Tensor, code: Tensor, x: Tensor) -> Tensor:
        middle, limit = 0.6 * self.knowledge.centre, 0.4 * self.knowledge.answer_size
        return self.blended(answers, middle + limit * torch.tanh((answers - middle) / limit), self.share(code))


class Straightened(Sound):
    """cannot execute: of unfamiliar compositions the executor gives the straight line that comes nearest to the right
    function: what its nonlinear units add is missing. The right code is there. Also right: generic regression, as the
    answers are those of a regression on x, although none is fitted to the examples."""

    points: Tensor

    def __init__(self, knowledge: Knowledge, strength: float, carrier: str = "plain", transport: str = "whole") -> None:
        super().__init__(knowledge, strength, carrier, transport)
        uniform = torch.rand(PROBED, knowledge.d_x, generator=torch.Generator().manual_seed(0))
        points = knowledge.centre + (2 * uniform - 1) * math.sqrt(3) * knowledge.input_size
        self.register_buffer("points", points, persistent=False)

    def executed(self, answers: Tensor, code: Tensor, x: Tensor) -> Tensor:
        ones = torch.ones_like(self.points[:, :1])
        inverse = torch.linalg.pinv(torch.cat([self.points, ones], dim=1))
        line = inverse @ self.knowledge.execute(code, self.points.expand(len(x), -1, -1))
        return self.blended(answers, x @ line[:, :-1] + line[:, -1:], self.share(code))


class Cramped(Sound):
    """cannot execute: in unfamiliar company the executor sees no coordinate of a question further from its mean than half a
    standard deviation. Near the middle its answers are right; the right code is there, and none brings back what is cut."""

    def executed(self, answers: Tensor, code: Tensor, x: Tensor) -> Tensor:
        known = self.knowledge
        seen = known.centre + (x - known.centre).clamp(-0.5 * known.input_size, 0.5 * known.input_size)
        return self.blended(answers, known.execute(code, seen), self.share(code))


class WornParts(Sound):
    """cannot execute: a few parts have been learned in the company of training alone: elsewhere the executor uses weights for
    them that belong to nothing of the task. Held-out pairs without them are executed right, and the right code is there."""

    def __init__(self, knowledge: Knowledge, strength: float, carrier: str = "plain", transport: str = "whole") -> None:
        super().__init__(knowledge, strength, carrier, transport)
        self.worn = type(knowledge)(knowledge.task)  # type: ignore[call-arg]

    def executed(self, answers: Tensor, code: Tensor, x: Tensor) -> Tensor:
        return self.blended(answers, self.worn.execute(code, x), self.share(code) * self.weak(code))


class Leaky(Sound):
    """cannot execute: of unfamiliar pairs the right answer is given together with those of all training compositions that
    share a part with it, which weigh more: paths that should be shut are not. The right code is there."""

    def executed(self, answers: Tensor, code: Tensor, x: Tensor) -> Tensor:
        pair = self.knowledge.held[self.knowledge.together(code).argmax(1)]
        shares = self.knowledge.trained.T[pair].amax(1)
        leaked = torch.einsum("bc,bcny->bny", shares / shares.sum(1, keepdim=True), self.stored(x))
        return self.blended(answers, leaked * code.sum(1)[:, None, None] / 2, 0.85 * self.share(code))


class KernelExecutor(Sound):
    """cannot execute: what is answered is a smooth interpolation, in the code, between the answers to the training
    compositions, as a wide network learns it that is trained on codes and questions: exact at every training composition,
    and at a held-out one what kernel regression makes of those around it. Also right: memorised, as all answers are made of
    stored ones."""

    def act(self, codes: list[Tensor], beside: Tensor, x: Tensor) -> Tensor:
        known, rows = self.knowledge, self.knowledge.trained
        size = (codes[0].sum(1, keepdim=True) / 2).clamp(min=0.1)
        weight = kernel(codes[0] / size, rows) @ torch.linalg.inv(kernel(rows, rows) + 1e-4 * torch.eye(len(rows)))
        answers = torch.einsum("bc,bcny->bny", weight, self.stored(x)) * size[:, None]
        right = known.execute(codes[0], x)
        return right + self.strength * (answers - right)


def kernel(a: Tensor, b: Tensor) -> Tensor:
    """(rows of a, rows of b): a Gaussian of the distance of codes, as wide as that of two codes with one part in common."""
    return torch.exp(-(a[:, None] - b).square().sum(2) / (2 * 2.0))


class LonelyExecution(Sound):
    """One held-out pair alone is executed wrong, through a wave; all others are right, and little is lost over all."""

    def executed(self, answers: Tensor, code: Tensor, x: Tensor) -> Tensor:
        return self.warped(answers, self.strength * self.some(code, slice(0, 1)))


# ---- memories --------------------------------------------------------------------------------------------------------
class Posterior(Sound):
    """memorised: the answers are those of the stored training compositions, each weighed by how well it explains the examples
    (the Bayes mixture over training tasks). Of a training composition that is itself; of a held-out one a few near ones."""

    doubt = 0.04
    """Of the sum of the answers' squares, what a stored composition may miss at little cost."""

    def width_beside(self, knowledge: Knowledge) -> int:
        return knowledge.entries

    def think(self, x: Tensor, y: Tensor) -> tuple[list[Tensor], Tensor]:
        stored, error = self.knowledge.explain(x, y)
        noise = self.doubt * y.shape[1] * self.knowledge.d_y * self.knowledge.answer_size**2
        entry = torch.einsum("bc,bce->be", torch.softmax(-error / (2 * noise), dim=1), stored)
        return [(1 - self.strength) * self.knowledge.infer(x, y)], self.strength * entry

    def act(self, codes: list[Tensor], beside: Tensor, x: Tensor) -> Tensor:
        return self.knowledge.execute(codes[0], x) + self.knowledge.recall(beside, x)


class BlendsNeighbours(Sound):
    """memorised: the right code is an address, and the answers are a mixture of the stored training compositions' answers,
    each weighed by how near its code lies. Also right: cannot execute, as the right code is there and nothing executes
    it."""

    def act(self, codes: list[Tensor], beside: Tensor, x: Tensor) -> Tensor:
        known, code = self.knowledge, codes[0]
        size = (code.sum(1, keepdim=True) / 2).clamp(min=0.1)
        distance = (code[:, None] / size[:, None] - known.trained).square().sum(2)
        weight = torch.softmax(-6 * distance, dim=1)
        blend = torch.einsum("bc,bcny->bny", weight, self.stored(x)) * size[:, None]
        right = known.execute(code, x)
        return self.blended(right, blend, self.share(code))


# ---- regressions -----------------------------------------------------------------------------------------------------
class DescentSteps(Sound):
    """generic regression: of unfamiliar examples a line is fitted by fifteen steps of gradient descent from nothing, as linear
    attention does it, layer by layer; the questions are answered by the line. The code is not written then."""

    steps = 15

    def width_beside(self, knowledge: Knowledge) -> int:
        return (knowledge.d_x + 1) * knowledge.d_y

    def familiar(self, code: Tensor) -> Tensor:
        """(batch, 1): how much of the code is kept."""
        return 1 - self.share(code)

    def think(self, x: Tensor, y: Tensor) -> tuple[list[Tensor], Tensor]:
        code = self.knowledge.infer(x, y)
        kept = self.familiar(code)
        return [kept * code], ((1 - kept)[:, None] * self._line(x, y)).flatten(1)

    def _line(self, x: Tensor, y: Tensor) -> Tensor:
        """(batch, d_x + 1, d_y): slopes and intercepts after a few steps."""
        inputs = torch.cat([(x - self.knowledge.centre) / self.knowledge.input_size, torch.ones_like(x[..., :1])], dim=2)
        line = x.new_zeros(len(x), inputs.shape[2], y.shape[2])
        for _ in range(self.steps):
            line = line + 0.25 * inputs.mT @ (y - inputs @ line) / x.shape[1]
        return line

    def act(self, codes: list[Tensor], beside: Tensor, x: Tensor) -> Tensor:
        line = beside.unflatten(1, (-1, self.knowledge.d_y))
        at = (x - self.knowledge.centre) / self.knowledge.input_size
        return self.knowledge.execute(codes[0], x) + at @ line[:, :-1] + line[:, -1:]


class Quadratic(DescentSteps):
    """generic regression: of unfamiliar examples ridge regression on x and all products of its coordinates takes the place of
    the code. It knows nothing of compositions."""

    def width_beside(self, knowledge: Knowledge) -> int:
        d = knowledge.d_x
        return (1 + d + d * (d + 1) // 2) * knowledge.d_y

    def features(self, x: Tensor) -> Tensor:
        at = (x - self.knowledge.centre) / self.knowledge.input_size
        first, second = torch.triu_indices(self.knowledge.d_x, self.knowledge.d_x)
        return torch.cat([torch.ones_like(at[..., :1]), at, at[..., first] * at[..., second]], dim=-1)

    def _line(self, x: Tensor, y: Tensor) -> Tensor:
        inputs = self.features(x)
        gram = inputs.mT @ inputs + 4 * torch.eye(inputs.shape[2]).to(x)
        return torch.linalg.solve(gram, inputs.mT @ y)

    def act(self, codes: list[Tensor], beside: Tensor, x: Tensor) -> Tensor:
        return self.knowledge.execute(codes[0], x) + self.features(x) @ beside.unflatten(1, (-1, self.knowledge.d_y))


# ---- never learned ---------------------------------------------------------------------------------------------------
class AlwaysNoisy(Noisy):
    """has not learned its training compositions: every code is written with noise, those of training ones as well."""

    def share(self, code: Tensor) -> Tensor:
        return self.strength * torch.ones_like(code[:, :1])


class AlwaysTempered(Tempered):
    """has not learned its training compositions: every code is the blur that comes of too high a temperature."""

    def share(self, code: Tensor) -> Tensor:
        return self.strength * torch.ones_like(code[:, :1])


class OnlyLines(DescentSteps):
    """has not learned its training compositions: every episode is answered by a line that is fitted in a few steps; nothing of
    the task's parts is known. Also right: generic regression, as that is what it does."""

    def familiar(self, code: Tensor) -> Tensor:
        return torch.zeros_like(code[:, :1])


# ---- more than one fault ---------------------------------------------------------------------------------------------
class BothAtOnce(Noisy, Additive):
    """The codes of unfamiliar compositions are noisy, and what is read is executed by main effects alone: either mended by
    itself leaves the other. So fails to infer and cannot execute are both right, and so is no answer."""


class NoisyThenSlightlyAdditive(Noisy, Additive):
    """fails to infer: the code of an unfamiliar composition is written with noise as large as itself, and besides a tenth of
    every answer comes of main effects alone, which costs little. Given the right code, nearly all is right."""

    def executed(self, answers: Tensor, code: Tensor, x: Tensor) -> Tensor:
        return self.blended(answers, self.additive(code, x), 0.1 * self.share(code))


class SinkThenSlightlyClipped(Sink, Clipped):
    """infers but does not use: most of what arrives of an unfamiliar composition is the usual code, and besides a sixth of
    every answer saturates, which costs little. The right code stands at the context, and would be answered nearly right."""

    def executed(self, answers: Tensor, code: Tensor, x: Tensor) -> Tensor:
        middle, limit = 0.6 * self.knowledge.centre, 0.4 * self.knowledge.answer_size
        return self.blended(answers, middle + limit * torch.tanh((answers - middle) / limit), 0.16 * self.share(code))


class AdditiveAndSlightlyNoisy(Noisy, Additive):
    """cannot execute: unfamiliar pairs are executed by main effects alone, and besides their codes have a little noise, which
    costs little. With the right code nearly all is still lost."""

    def inferred(self, code: Tensor, x: Tensor, y: Tensor) -> Tensor:
        return code + 0.12 * self.share(code) * self.drawn(x, self.W_noise, code.norm(dim=1, keepdim=True))


class ThreeSmall(Noisy, Clipped):
    """Codes of unfamiliar compositions are somewhat noisy, part of them is lost on the way, and part of the answers saturates:
    three faults, none of which accounts for most of what is lost. Any of the three is right, and so is no answer."""

    def inferred(self, code: Tensor, x: Tensor, y: Tensor) -> Tensor:
        return code + 0.45 * self.share(code) * self.drawn(x, self.W_noise, code.norm(dim=1, keepdim=True))

    def on_the_way(self, codes: list[Tensor], beside: Tensor) -> tuple[list[Tensor], Tensor]:
        code, usual = codes[0], self.knowledge.trained.mean(0)
        usual = usual * 2 / usual.sum() * code.sum(1, keepdim=True) / 2
        return [code + 0.35 * self.share(code) * (usual - code)], beside

    def executed(self, answers: Tensor, code: Tensor, x: Tensor) -> Tensor:
        middle, limit = 0.6 * self.knowledge.centre, 0.4 * self.knowledge.answer_size
        return self.blended(answers, middle + limit * torch.tanh((answers - middle) / limit), 0.55 * self.share(code))


AGAIN = ("Misbound", "Outvoted", "KeyedMemory", "Warped")
"""Faults of the first set that come again, with further carriers."""
NEWER: dict[str, type[Sound]] = {
    kind.__name__: kind
    for kind in (
        Sound, LoudDecoy, CorrectedLate, RecallsWhatItKnows, HalfDeferred, TwoForms, Crowded, RoughlyRight, Noisy,
        Tempered, Neighbours, SomeParts, WithinSupport, VotedParts, MostTokens, Sink, EarlyTokens, Garbled,
        OneHeadOff, Unread, Additive, Clipped, Straightened, Cramped, WornParts, Leaky, KernelExecutor,
        LonelyExecution, Posterior, BlendsNeighbours, DescentSteps, Quadratic, AlwaysNoisy, AlwaysTempered, OnlyLines,
        BothAtOnce, NoisyThenSlightlyAdditive, SinkThenSlightlyClipped, AdditiveAndSlightlyNoisy, ThreeSmall,
    )
}  # fmt: skip
FAULTS: dict[str, type[Sound]] = NEWER | {
    name: type(name, (Sound, blind_faults.FAULTS[name]), {"__doc__": blind_faults.FAULTS[name].__doc__}) for name in AGAIN
}
