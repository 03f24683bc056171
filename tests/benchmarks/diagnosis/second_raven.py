"""The second blind set's models with classes as answers: `blind_raven.BlindSolver` with further carriers and faults.

As there, `strength` says in how large a share of held-out episodes, drawn by what the panels show, the wrong thing happens.
"""

from __future__ import annotations

import math
from typing import ClassVar

import blind_raven
import torch
from blind_raven import BlindSolver
from torch import Tensor, nn
from torch.nn.functional import normalize, one_hot

LETTERS, SIDE, PLACES, SHARP = 5, 4, 5, 60.0
CARRIERS: dict[str, str] = blind_raven.CARRIERS | {
    "clock": "either rule is an angle; cosine and sine of the sum and of the difference of the two.",
    "superposed": "ten directions in five dimensions, one for every rule in either place; the sum of the two.",
    "tensor": "all products of a random vector for the first rule and one for the second.",
    "rolled": "the rules one-hot on a ring, turned on by a step that the panels draw, and which step it is.",
    "radius": "the rules one-hot, every entry as the length of a vector in a plane, whose direction the panels draw.",
}
AGAIN = ("Works", "Reversed", "Remembers")
FAULTS: dict[str, str] = {name: blind_raven.FAULTS[name] for name in AGAIN} | {
    "LoudDecoy": "compositional: beside the rules stand two wrong ones, plain and three times as large, which nothing reads",
    "RoughlyRight": "compositional: a small share of all answers, to training multisets as to held-out ones, is a value that "
    "the panels draw",
    "Doubled": "fails to infer: of a held-out multiset the first feature's rule is written for both; where they are the same "
    "anyway, that is right; given the right ones, all is right",
    "Drawn": "fails to infer: of a held-out multiset two rules are written that the panels draw; given the right ones, all is "
    "right",
    "HalfArrives": "infers but does not use: the right rules stand at the context; of a held-out multiset the second one "
    "arrives as another, and would be executed right if the right one stood where answers are given",
    "Lapses": "cannot execute: the right rules arrive, and of a held-out multiset the answers are values that the panels "
    "draw; what rules are written changes nothing about that",
    "CopiesPart": "cannot execute: the right rules arrive; of a held-out multiset the first feature is answered by its rule, "
    "the second one by the value that the panel above shows",
    "CopiesRow": "generic regression: of a held-out multiset the answers are those of the panel above. Also right: cannot "
    "execute, as the right rules are there and nothing executes them",
    "BothAtOnce": "of a held-out multiset the rules are drawn by the panels, and so are the values: either mended by itself "
    "leaves the other; so fails to infer and cannot execute are both right, and so is no answer",
    "LonelyExecution": "one held-out multiset alone is answered by values that the panels draw; the others are right",
    "AlwaysDrawn": "has not learned its training compositions: the rules that are written are drawn by the panels, always",
}
"""Fault -> what happens, after the label that is expected of it."""


class SecondSolver(BlindSolver):
    """As `BlindSolver`. fault: one of `FAULTS`; carrier: one of `CARRIERS`."""

    faults: ClassVar[dict[str, str]] = FAULTS
    carriers: ClassVar[dict[str, str]] = CARRIERS
    tables: ClassVar[dict[str, int]] = {"clock": 2, "superposed": LETTERS, "tensor": SIDE}
    """Carriers of a word for every ordered pair of rules -> how many random numbers one rule has."""

    def __init__(
        self, fault: str = "Works", carrier: str = "plain", rules: int = 5, strength: float = 1.0, seed: int = 0
    ) -> None:
        super().__init__(fault, carrier, rules, strength, seed)
        rng = torch.Generator().manual_seed(1000 + seed)
        size = self.tables.get(carrier, 2)
        self.first, self.second = (nn.Parameter(normalize(torch.randn(rules, size, generator=rng), dim=1)) for _ in range(2))

    # ---- carriers ----------------------------------------------------------------------------------------------------
    def table_of_words(self) -> Tensor:
        """(rule, rule, letters): the word for every ordered pair of rules."""
        first, second = self.first[:, None], self.second[None]
        if self.carrier == "superposed":
            return first + second
        if self.carrier == "tensor":
            return (first[..., None] * second[..., None, :]).flatten(2)
        angle = math.pi * (torch.arange(self.n_rules) + 0.5) / self.n_rules
        both = torch.stack([angle[:, None] + angle, angle[:, None] - angle], 2)
        return torch.cat([both.cos(), both.sin()], 2)

    def encode(self, rule: Tensor, drawn: Tensor) -> Tensor:
        said = self._encode(rule, drawn)
        if self.fault != "LoudDecoy":
            return said
        decoy = one_hot((rule + 1) % self.n_rules, self.n_rules).flatten(1)
        return torch.cat([said, 3 * decoy.to(said)], 1)

    def _encode(self, rule: Tensor, drawn: Tensor) -> Tensor:
        hot = one_hot(rule, self.n_rules).flatten(1).to(self.sure)
        if self.carrier in self.tables:
            return self.table_of_words()[rule[:, 0], rule[:, 1]]
        if self.carrier == "rolled":
            place = one_hot(drawn % PLACES, PLACES).to(hot)
            return torch.cat([self._turned(hot, place, 1), place], 1)
        if self.carrier == "radius":
            angle = 2 * math.pi / 64 * ((drawn[:, None] >> torch.arange(hot.shape[1])) % 64).to(hot)
            return torch.cat([hot * angle.cos(), hot * angle.sin()], 1)
        return super().encode(rule, drawn)

    def _turned(self, hot: Tensor, place: Tensor, way: int) -> Tensor:
        rolled = torch.stack([hot.roll(2 * way * k, 1) for k in range(PLACES)], 1)
        return torch.einsum("bk,bkm->bm", place, rolled)

    def decode(self, said: Tensor) -> Tensor:
        if self.fault == "LoudDecoy":
            said = said[:, : -2 * self.n_rules]
        if self.carrier in self.tables:
            distance = (said[:, None] - self.table_of_words().flatten(0, 1)).square().sum(2)
            pairs = torch.softmax(-SHARP * distance, 1).unflatten(1, (self.n_rules, self.n_rules))
            return torch.stack([pairs.sum(2), pairs.sum(1)], 1)
        if self.carrier == "rolled":
            said = self._turned(said[:, :-PLACES], said[:, -PLACES:], -1)
        elif self.carrier == "radius":
            along, across = said.tensor_split(2, dim=1)
            said = torch.sqrt(along.square() + across.square() + 1e-9)
        else:
            return super().decode(said)
        return said.unflatten(1, (2, self.n_rules))

    # ---- what happens ------------------------------------------------------------------------------------------------
    def inferred(self, rule: Tensor, panels: Tensor, struck: Tensor) -> Tensor:
        there = (self.unfamiliar(rule) & struck)[:, None]
        drawn = self.drawn(panels) // 64
        chance = torch.stack([drawn % self.n_rules, drawn // self.n_rules % self.n_rules], 1)
        if self.fault == "Doubled":
            return torch.where(there, rule[:, :1].expand_as(rule), rule)
        if self.fault in ("Drawn", "BothAtOnce"):
            return torch.where(there, chance, rule)
        return chance if self.fault == "AlwaysDrawn" else super().inferred(rule, panels, struck)

    def on_the_way(self, read: Tensor, drawn: Tensor, struck: Tensor) -> Tensor:
        if self.fault != "HalfArrives":
            return super().on_the_way(read, drawn, struck)
        width = read.shape[1] - 2 * self.n_rules * self.task.n_values
        rule = self.decode(read[:, :width]).argmax(2)
        other = torch.stack([rule[:, 0], (rule[:, 1] + 1) % self.n_rules], 1)
        said = torch.cat([self.encode(other, drawn).to(read), read[:, width:]], 1)
        return torch.where((self.unfamiliar(rule) & struck)[:, None], said, read)

    def executed(self, values: Tensor, rule: Tensor, panels: Tensor, struck: Tensor) -> Tensor:
        n, there = self.task.n_values, (self.unfamiliar(rule) & struck)[:, None, None]
        drawn = self.drawn(panels) // 4096
        chance = one_hot(torch.stack([drawn % n, drawn // n % n], 1), n).to(values)
        above = one_hot(panels[:, 1, 2], n).to(values)
        if self.fault == "Lapses":
            return torch.where(there, chance, values)
        if self.fault == "BothAtOnce":  # the rules that arrived may be familiar ones
            return torch.where((self.unfamiliar(self.find(panels)[0]) & struck)[:, None, None], chance, values)
        if self.fault == "RoughlyRight":
            return torch.where(struck[:, None, None], chance, values)
        if self.fault == "LonelyExecution":
            alone = (rule.sort(1).values == torch.tensor(self.held_out[0])).all(1)[:, None, None]
            return torch.where(there & alone, chance, values)
        if self.fault == "CopiesRow":
            return torch.where(there, above, values)
        if self.fault == "CopiesPart":
            second = torch.arange(2)[:, None] == 1
            return torch.where(there & second, above, values)
        return super().executed(values, rule, panels, struck)
