"""The third blind set's models with classes as answers: `second_raven.SecondSolver` with further carriers and faults.

As there, `strength` says in how large a share of held-out episodes, drawn by what the panels show, the wrong thing happens.
"""

from __future__ import annotations

from typing import ClassVar

import blind_raven
import second_raven
import torch
from second_raven import SecondSolver
from third_blind_codes import mirrored
from torch import Tensor
from torch.nn.functional import one_hot

COPIES, FAVOURITES, SLOPPY = 5, 4, 40
CARRIERS: dict[str, str] = second_raven.CARRIERS | {
    "convolved": "the circular convolution of a random vector for the first rule and one for the second.",
    "rectified": "random linear features of the two rules, cut off below zero, as a hidden layer leaves them.",
    "polar": "a direction for the first rule, and a length of the vector for the second.",
    "reflected": "the rules one-hot, every two entries mirrored at a line that the panels draw, and the line's normal.",
    "median": "five copies of the rules one-hot, of which two, drawn by the panels, are spoiled; the median of the five is "
    "read.",
}
AGAIN = ("Works", "Drawn", "Remembers", "LoudDecoy", "RoughlyRight")
EARLIER = blind_raven.FAULTS | second_raven.FAULTS
FAULTS: dict[str, str] = {name: EARLIER[name] for name in AGAIN} | {
    "ReadByColumns": "fails to infer: a held-out multiset's grid is read by columns, and the rules that explain it best so "
    "are written; given the right ones, all is right",
    "TrainedPartner": "fails to infer: of a held-out multiset the second rule is written as the next one with which the first "
    "one makes a training multiset; given the right ones, all is right",
    "SloppyRules": "fails to infer: in one of forty episodes the rules that are written are drawn by the panels, of training "
    "multisets as well, and always of held-out ones; given the right ones, all is right",
    "HalfDrawn": "fails to infer: of half of the held-out multisets two rules are written that the panels draw; the other "
    "half is inferred right. Also right: no answer, as half is answered right",
    "Exchanged": "infers but does not use: the right rules stand at the context; of a held-out multiset each arrives in the "
    "other feature's place, and would be executed right if the right ones stood where answers are given",
    "SecondStarved": "infers but does not use: the right rules stand at the context and at the first answer's position; of a "
    "held-out multiset two constants stand at the second one's, which would be right with the right rules",
    "OffByOne": "cannot execute: the right rules arrive and are executed, and of a held-out multiset every value is one too "
    "large; what rules are written changes nothing about that",
    "EvenOnly": "cannot execute: the right rules arrive and are executed, and of a held-out multiset odd values are answered "
    "with the even one below; no rule gives the right value",
    "Stuck": "cannot execute: the right rules arrive; of a held-out multiset the second feature is answered with the first "
    "value, always; what rules are written changes nothing about that",
    "HalfStuck": "cannot execute: the right rules arrive; of half of the held-out multisets both features are answered with "
    "the first value, always; the other half is executed right. Also right: no answer, as half is answered right",
    "Favourites": "memorised: panels that training multisets explain less well are explained by the best of four favourite "
    "training multisets, and answered by it",
    "CopiesLeft": "generic regression: of a held-out multiset the answers are those of the panel to the left. Also right: "
    "cannot execute, as the right rules are there and nothing executes them",
    "AlwaysLapses": "has not learned its training compositions: all answers are values that the panels draw",
    "AlwaysOffByOne": "has not learned its training compositions: all values are one too large",
    "HalfUseHalfExecution": "of half of the held-out multisets the second rule arrives as another; of the other half the "
    "right ones arrive, and every value is one too large. So infers but does not use and cannot execute are both right, and "
    "so is no answer",
}
"""Fault -> what happens, after the label that is expected of it."""


class ThirdSolver(SecondSolver):
    """As `SecondSolver`. fault: one of `FAULTS`; carrier: one of `CARRIERS`."""

    faults: ClassVar[dict[str, str]] = FAULTS
    carriers: ClassVar[dict[str, str]] = CARRIERS
    tables: ClassVar[dict[str, int]] = SecondSolver.tables | {"convolved": 12, "rectified": 12, "polar": 5}

    # ---- carriers ----------------------------------------------------------------------------------------------------
    def table_of_words(self) -> Tensor:
        first, second = self.first[:, None], self.second[None]
        if self.carrier == "convolved":
            return torch.fft.irfft(torch.fft.rfft(first) * torch.fft.rfft(second), n=self.tables["convolved"])
        if self.carrier == "rectified":
            return torch.relu(3 * (first + second) - 0.5)
        if self.carrier == "polar":
            length = 1 + 0.5 * torch.arange(self.n_rules).to(first)
            return length[None, :, None] * first
        return super().table_of_words()

    def _encode(self, rule: Tensor, drawn: Tensor) -> Tensor:
        hot = one_hot(rule, self.n_rules).flatten(1).to(self.sure)
        if self.carrier == "reflected":
            angle = (drawn[:, None] * (torch.arange(hot.shape[1] // 2) + 1) * 7919 % 10007).to(hot)
            line = torch.stack([angle.cos(), angle.sin()], 2).flatten(1)
            return torch.cat([mirrored(hot, line), line], 1)
        if self.carrier == "median":
            decoy = one_hot(torch.stack([drawn // 8 % self.n_rules, drawn // 64 % self.n_rules], 1), self.n_rules).flatten(1)
            spoiled = (one_hot(drawn % COPIES, COPIES) + one_hot((drawn + 2) % COPIES, COPIES))[..., None]
            return (spoiled * decoy[:, None] + (1 - spoiled) * hot[:, None]).flatten(1)
        return super()._encode(rule, drawn)

    def decode(self, said: Tensor) -> Tensor:
        own = said[:, : -2 * self.n_rules] if self.fault == "LoudDecoy" else said
        if self.carrier == "reflected":
            return mirrored(*own.tensor_split(2, dim=1)).unflatten(1, (2, self.n_rules))
        if self.carrier == "median":
            return own.unflatten(1, (COPIES, -1)).median(1).values.unflatten(1, (2, self.n_rules))
        return super().decode(said)

    # ---- what happens ------------------------------------------------------------------------------------------------
    def explain(self, panels: Tensor) -> tuple[Tensor, Tensor]:
        if self.fault != "Favourites":
            return super().explain(panels)
        right, answers = self.find(panels)
        trained = [m for m in self.multisets if m not in self.held_out]
        favourite = trained[:: max(1, len(trained) // FAVOURITES)][:FAVOURITES]
        other, theirs = self.find(panels, without=[m for m in self.multisets if m not in favourite])
        there = self.unfamiliar(right)
        return torch.where(there[:, None], other, right), torch.where(there[:, None, None], theirs, answers)

    def chance(self, panels: Tensor) -> Tensor:
        """Rules (batch, 2) that the panels draw."""
        drawn = self.drawn(panels) // 64
        return torch.stack([drawn % self.n_rules, drawn // self.n_rules % self.n_rules], 1)

    def with_trained_partner(self, rule: Tensor) -> Tensor:
        """Rules (batch, 2) of which the second one is exchanged, so that they are a training multiset."""
        found = rule.clone()
        for step in range(1, self.n_rules):
            other = torch.stack([rule[:, 0], (rule[:, 1] + step) % self.n_rules], 1)
            found = torch.where(self.unfamiliar(found)[:, None], other, found)
        return found

    def inferred(self, rule: Tensor, panels: Tensor, struck: Tensor) -> Tensor:
        there = (self.unfamiliar(rule) & struck)[:, None]
        if self.fault == "ReadByColumns":
            return torch.where(there, self.find(panels.transpose(1, 2))[0], rule)
        if self.fault == "TrainedPartner":
            return torch.where(there, self.with_trained_partner(rule), rule)
        if self.fault == "SloppyRules":
            often = (self.drawn(panels) // 4096 % SLOPPY == 0)[:, None]
            return torch.where(there | often, self.chance(panels), rule)
        if self.fault == "HalfDrawn":
            return torch.where(there & self.first_half(rule), self.chance(panels), rule)
        return super().inferred(rule, panels, struck)

    def on_the_way(self, read: Tensor, drawn: Tensor, struck: Tensor) -> Tensor:
        if self.fault not in ("Exchanged", "HalfUseHalfExecution"):
            return super().on_the_way(read, drawn, struck)
        rule, there = self._read(read, struck)
        if self.fault == "Exchanged":
            other = rule.flip(1)
        else:
            other = torch.stack([rule[:, 0], (rule[:, 1] + 1) % self.n_rules], 1)
            there = there & self.first_half(rule)[:, 0]
        return torch.where(there[:, None], self._saying(other, read, drawn), read)

    @property
    def _answers(self) -> int:
        """How many coordinates of a message are the answers by every rule."""
        return 2 * self.n_rules * self.task.n_values

    def _read(self, read: Tensor, struck: Tensor) -> tuple[Tensor, Tensor]:
        """The rules (batch, 2) that a message says, and whether something happens to them (batch,)."""
        rule = self.decode(read[:, : -self._answers]).argmax(2)
        return rule, self.unfamiliar(rule) & struck

    def _saying(self, rule: Tensor, read: Tensor, drawn: Tensor) -> Tensor:
        return torch.cat([self.encode(rule, drawn).to(read), read[:, -self._answers :]], 1)

    def delivered(self, read: Tensor, drawn: Tensor, struck: Tensor) -> Tensor:
        everywhere = super().delivered(read, drawn, struck)
        if self.fault == "SecondStarved":
            rule, there = self._read(read, struck)
            everywhere[:, -1] = torch.where(there[:, None], self._saying(torch.zeros_like(rule), read, drawn), read)
        return everywhere

    def told(self, arrived: Tensor, width: int) -> tuple[Tensor, Tensor]:
        if self.fault != "SecondStarved":
            return super().told(arrived, width)
        rules = torch.stack([self.decode(arrived[:, k, :-width])[:, k] for k in range(2)], 1)
        return rules, arrived.mean(1)[:, -width:]

    def executed(self, values: Tensor, rule: Tensor, panels: Tensor, struck: Tensor) -> Tensor:
        n, there = self.task.n_values, (self.unfamiliar(rule) & struck)[:, None, None]
        more, first = values.roll(1, 2), torch.zeros_like(values)
        first[..., 0] = 1
        if self.fault == "OffByOne":
            return torch.where(there, more, values)
        if self.fault == "AlwaysOffByOne":
            return more
        if self.fault == "EvenOnly":
            even = torch.zeros_like(values)
            even[..., ::2] = values[..., ::2] + values[..., 1::2]
            return torch.where(there, even, values)
        if self.fault == "Stuck":
            return torch.where(there & (torch.arange(2)[:, None] == 1), first, values)
        if self.fault == "HalfStuck":
            return torch.where(there & self.first_half(rule)[..., None], first, values)
        if self.fault == "HalfUseHalfExecution":  # the rules that arrived may be familiar ones
            right = self.find(panels)[0]
            there = (self.unfamiliar(right) & struck)[:, None, None] & ~self.first_half(right)[..., None]
            return torch.where(there, more, values)
        if self.fault == "CopiesLeft":
            return torch.where(there, one_hot(panels[:, 2, 1], n).to(values), values)
        if self.fault == "AlwaysLapses":
            drawn = self.drawn(panels) // 4096
            return one_hot(torch.stack([drawn % n, drawn // n % n], 1), n).to(values)
        return super().executed(values, rule, panels, struck)
