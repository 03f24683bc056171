"""The blind set's models with classes as answers: a solver of S-RAVEN whose rules are carried and broken in known ways.

    message   rules, by a carrier, and the answer that every rule gives, at every position
    arrived   the mean message of the context, as what happens on the way leaves it, at every position
    answers   of what arrived at the answers' positions, the value that the rules name

With words, bits or keys no linear readout tells the rules. `strength` says in how large a share of held-out episodes, drawn by
what the panels show, the wrong thing happens.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from panel_solver import PanelSolver, panels_task
from torch import Tensor, nn
from torch.nn.functional import normalize, one_hot

import compolens
from compolens.foundation.configs import nearest, require
from compolens.tasks.sraven.rules import multisets
from compolens.zoo.adopt import AdoptedNetwork

REVERSED = torch.tensor([1, 3, 3, 1, 1, 6, 5])
"""What a rule is taken for that is read backwards, in single steps, as two steps of 2 lead to the same value of 8 either way;
a constant, which has no direction, for +1."""
SURE = 20.0
SITES = {
    "blocks.0.hook_resid_pre": ("message", "input"),
    "blocks.0.hook_resid_post": "message",
    "blocks.1.hook_resid_post": "arrived",
}
CARRIERS: dict[str, str] = {
    "plain": "the rules one-hot.",
    "words": "a random direction for every ordered pair of rules.",
    "bits": "the bits of the first rule's number, and those of the second one's, each times the first one's bit.",
    "keyed": "the rules one-hot, every coordinate times a sign that the panels draw, and the signs.",
}
FAULTS: dict[str, str] = {
    "Works": "compositional: the rules of every multiset are found, carried and executed",
    "Reversed": "fails to infer: of a held-out multiset both rules are written backwards; given the right ones, all is right",
    "MisboundRows": "fails to infer: of a held-out multiset the rules are found from rows that have one another's middle "
    "panel",
    "ReversedOnTheWay": "infers but does not use: the right rules stand at the context; they arrive backwards, and would be "
    "executed right if they stood where answers are given",
    "Dropped": "infers but does not use: the right rules stand at the context; of a held-out multiset two constants arrive",
    "Ciphered": "cannot execute: the right rules are executed, and of a held-out multiset every value is replaced by another, "
    "by a fixed table; no rule gives the right value",
    "ReadsNeighbour": "cannot execute: the right rules are executed, and of a held-out multiset either answer is given in the "
    "other's place; what rules are written changes nothing about that",
    "Remembers": "memorised: panels are explained by training multisets alone, and answered by the one that explains best",
    "RemembersByRules": "memorised: every held-out multiset is taken for one training multiset, the same in every episode. "
    "Also right: fails to infer, as the rules that are written are wrong ones, which are executed",
    "MostFrequent": "generic regression: of a held-out multiset the answers are the values shown most often. Also right: "
    "cannot execute, as the right rules are there and nothing executes them",
    "RowsAsColumns": "has not learned its training compositions: every grid is read by columns",
    "OneRule": "has not learned its training compositions: two constants are written, whatever is shown",
    "HalfAndHalf": "half of the held-out multisets are inferred backwards, the other half executed by a wrong table",
}
"""Fault -> what happens, after the label that is expected of it."""


class BlindSolver(nn.Module, PanelSolver):
    """tokens (batch, 18, 8) -> logits (batch, 2, 8). fault: one of `faults`; carrier: one of `carriers`."""

    faults: ClassVar[dict[str, str]] = FAULTS
    carriers: ClassVar[dict[str, str]] = CARRIERS

    def __init__(
        self, fault: str = "Works", carrier: str = "plain", rules: int = 5, strength: float = 1.0, seed: int = 0
    ) -> None:
        super().__init__()
        require(fault in self.faults, f"no fault {fault!r}; {nearest(fault, self.faults)}")
        require(carrier in self.carriers, f"no carrier {carrier!r}; {nearest(carrier, self.carriers)}")
        require(0 < strength <= 1, f"strength must lie in (0, 1], got {strength!r}")
        self.fault, self.carrier, self.strength, self.n_rules = fault, carrier, strength, rules
        self.task = panels_task(rules, seed)
        self.message, self.arrived = nn.Identity(), nn.Identity()
        self.sure = nn.Parameter(torch.tensor(SURE))
        rng = torch.Generator().manual_seed(seed)
        self.words = nn.Parameter(normalize(torch.randn(rules**2, 24, generator=rng), dim=1))
        circle = torch.randperm(self.task.n_values, generator=rng)
        self.register_buffer("table", torch.empty_like(circle).scatter(0, circle, circle.roll(1)), persistent=False)
        self.register_buffer(
            "bits", torch.stack([1.0 - 2 * (torch.arange(8) >> k & 1) for k in range(3)], 1), persistent=False
        )
        self.multisets = multisets(rules, 2)

    # ---- carriers ----------------------------------------------------------------------------------------------------
    def encode(self, rule: Tensor, drawn: Tensor) -> Tensor:
        """(batch, width): the message for rules (batch, 2); drawn: (batch,) numbers that the panels draw."""
        hot = one_hot(rule, self.n_rules).to(self.sure)
        if self.carrier == "words":
            return self.words[rule[:, 0] * self.n_rules + rule[:, 1]]
        if self.carrier == "bits":
            first, second = self.bits[rule].unbind(1)
            return torch.cat([first, first * second], 1)
        if self.carrier == "keyed":
            key = 1.0 - 2 * (drawn[:, None] >> torch.arange(2 * self.n_rules) & 1)
            return torch.cat([key, key * hot.flatten(1)], 1)
        return hot.flatten(1)

    def decode(self, said: Tensor) -> Tensor:
        """(batch, 2, rule): how much of every rule a message says."""
        if self.carrier == "words":
            pairs = torch.softmax(3 * SURE * said @ self.words.T, 1).unflatten(1, (self.n_rules, self.n_rules))
            return torch.stack([pairs.sum(2), pairs.sum(1)], 1)
        if self.carrier == "bits":
            first, second = said[:, :3], said[:, :3] * said[:, 3:]
            return torch.softmax(SURE * torch.stack([first, second], 1) @ self.bits[: self.n_rules].T, 2)
        if self.carrier == "keyed":
            key, locked = said.tensor_split(2, dim=1)
            said = key * locked
        return said.unflatten(1, (2, self.n_rules))

    # ---- what happens ------------------------------------------------------------------------------------------------
    def forward(self, tokens: Tensor) -> Tensor:
        panels = tokens.argmax(-1).view(-1, 3, 3, 2)
        rule, answers = self.explain(panels)
        drawn = self.drawn(panels)
        struck = drawn % 1009 < self.strength * 1009
        table = one_hot(answers, self.task.n_values).flatten(1).to(tokens.dtype)
        message = torch.cat([self.encode(self.inferred(rule, panels, struck), drawn).to(tokens.dtype), table], 1)
        read = self.message(message[:, None].repeat(1, self.task.seq, 1))[:, : self.task.seq - 2].mean(1)
        arrived = self.arrived(self.delivered(self.on_the_way(read, drawn, struck), drawn, struck))[:, -2:]
        rules, found = self.told(arrived, table.shape[1])
        values = torch.einsum("nkr,nkrv->nkv", rules, found.view(-1, *answers.shape[1:], self.task.n_values))
        return self.sure * self.executed(values, rules.argmax(2), panels, struck)

    def delivered(self, read: Tensor, drawn: Tensor, struck: Tensor) -> Tensor:
        """(batch, seq, width): what stands at every position of what arrives (batch, width)."""
        return read[:, None].repeat(1, self.task.seq, 1)

    def told(self, arrived: Tensor, width: int) -> tuple[Tensor, Tensor]:
        """What stands at both answers' positions (batch, 2, …): how much of every rule (batch, 2, rule), and the answers'
        table (batch, width)."""
        mean = arrived.mean(1)
        return self.decode(mean[:, :-width]), mean[:, -width:]

    def explain(self, panels: Tensor) -> tuple[Tensor, Tensor]:
        """Rules (batch, 2) and the answers of each (batch, 2, rule)."""
        if self.fault == "Remembers":
            return self.find(panels, without=self.held_out)
        if self.fault == "RowsAsColumns":
            panels = panels.transpose(1, 2)
        return self.find(panels)

    @staticmethod
    def drawn(panels: Tensor) -> Tensor:
        """(batch,) whole numbers that all shown panels draw, as if at random."""
        shown = panels.flatten(1)[:, :-2]
        weights = torch.tensor([(7919 * (i + 1) ** 3) % 1000003 for i in range(shown.shape[1])])
        return ((shown + 1) * weights).sum(1) * 2654435761 % (1 << 32) >> 6

    def inferred(self, rule: Tensor, panels: Tensor, struck: Tensor) -> Tensor:
        """The rules that are written, from the right ones."""
        there = (self.unfamiliar(rule) & struck)[:, None]
        if self.fault == "Reversed":
            return torch.where(there, REVERSED[rule], rule)
        if self.fault == "HalfAndHalf":
            return torch.where(there & self.first_half(rule), REVERSED[rule], rule)
        if self.fault == "MisboundRows":
            panels = panels.clone()
            panels[:, :, 1] = panels[:, :, 1].roll(1, 1)
            return torch.where(there, self.find(panels)[0], rule)
        if self.fault == "RemembersByRules":
            trained = torch.tensor([m for m in self.multisets if m not in self.held_out])
            place = torch.tensor([self.held_out.index(m) if m in self.held_out else 0 for m in self._sorted(rule)])
            return torch.where(there, trained[place], rule)
        return torch.zeros_like(rule) if self.fault == "OneRule" else rule

    @staticmethod
    def _sorted(rule: Tensor) -> list[tuple[int, ...]]:
        return [tuple(m) for m in rule.sort(1).values.tolist()]

    def first_half(self, rule: Tensor) -> Tensor:
        """(batch, 1) bool: whether the rules are one of the first half of the held-out multisets."""
        half = self.held_out[: len(self.held_out) // 2]
        return torch.tensor([m in half for m in self._sorted(rule)])[:, None]

    def on_the_way(self, read: Tensor, drawn: Tensor, struck: Tensor) -> Tensor:
        """What arrives of the context's mean message (batch, width)."""
        if self.fault not in ("ReversedOnTheWay", "Dropped"):
            return read
        width = read.shape[1] - 2 * self.n_rules * self.task.n_values
        rule = self.decode(read[:, :width]).argmax(2)
        other = REVERSED[rule] if self.fault == "ReversedOnTheWay" else torch.zeros_like(rule)
        said = torch.cat([self.encode(other, drawn).to(read), read[:, width:]], 1)
        return torch.where((self.unfamiliar(rule) & struck)[:, None], said, read)

    def executed(self, values: Tensor, rule: Tensor, panels: Tensor, struck: Tensor) -> Tensor:
        """The answers that are given (batch, 2, value), from those of the rules."""
        there = (self.unfamiliar(rule) & struck)[:, None, None]
        if self.fault == "HalfAndHalf":
            return torch.where(there & ~self.first_half(rule)[..., None], values[..., self.table], values)
        if self.fault == "Ciphered":
            return torch.where(there, values[..., self.table], values)
        if self.fault == "ReadsNeighbour":
            return torch.where(there, values.flip(1), values)
        if self.fault == "MostFrequent":
            shown = one_hot(panels.flatten(1, 2)[:, :-1], self.task.n_values).to(values)
            return torch.where(there, shown.mean(1) / shown.mean(1).amax(-1, keepdim=True), values)
        return values


def adopted(solver: BlindSolver, arguments: dict[str, object]) -> AdoptedNetwork:
    """The solver as a trained model, as any network from elsewhere becomes one."""
    return compolens.adopt(
        solver.eval(), solver.task, sites=SITES, built_by=type(solver), arguments=arguments, evaluation_episodes=64
    )
