"""In-context regression on two operations at once, of which some never meet in training: what such families share.

A task is a pair (i, j): an outer operation A_i and an inner one B_j, each one of a few fixed matrices. What an operation does
to the answer depends on the other one: the two do not add up, and a code is a category, not a number. An episode shows N
examples, then asks Q questions, in the layout of the hyperteacher:

    token 0            token N-1     token N            token N+Q-1
    [x_0; y_0; 0]  …  [x; y; 0]     [x_N; 0; 1]    …   [x; 0; 1]
"""

from __future__ import annotations

import math
import random
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from compolens.foundation.configs import require, require_positive
from compolens.tasks.base import TaskFamily
from compolens.tasks.episodes import Episodes, one_of


@dataclass(frozen=True)
class Pairs(TaskFamily):
    """d_x, d_y: widths of x and y; n_outer, n_inner: how many A and B there are; n_context, n_queries: N and Q;
    partners_held_out: how many of its partners an operation is never trained with, the more numerous operations exactly, the
    others at least; split_seed: draws which; teacher_seed: draws the matrices."""

    d_x: int = 6
    d_y: int = 4
    n_outer: int = 6
    n_inner: int = 6
    n_context: int = 24
    n_queries: int = 4
    partners_held_out: int = 2
    teacher_seed: int = 0
    split_seed: int = 0

    code_kinds: ClassVar[dict[str, str]] = {"outer": "categorical", "inner": "categorical"}
    score_name: ClassVar[str] = "R²"
    inner_gain: ClassVar[float] = 1.0
    """Standard deviation of a coordinate of B x."""

    def __post_init__(self) -> None:
        require_positive(self, "d_x", "d_y", "n_outer", "n_inner", "n_context", "n_queries", "partners_held_out")
        fewest = min(self.n_outer, self.n_inner)
        require(
            self.partners_held_out < fewest,
            f"partners_held_out must be below {fewest}, the smaller number of operations, or one of them is never seen in "
            f"training; got {self.partners_held_out}",
        )

    # ---- the two operations ------------------------------------------------------------------------------------------
    @property
    def widths(self) -> tuple[tuple[int, int], tuple[int, int]]:
        """Shapes of a B and of an A, both transposed: what comes in, what goes out. Side by side, both go from x to y."""
        return (self.d_x, self.d_y), (self.d_x, self.d_y)

    @staticmethod
    @abstractmethod
    def first(drive: Tensor) -> Tensor:
        """What the inner operation makes of B x (…, points, width)."""

    @staticmethod
    @abstractmethod
    def second(hidden: Tensor, outer: Tensor, x: Tensor) -> Tensor:
        """The answers (…, points, d_y): the outer operation's (…, *widths[1]), from what `first` gives and from x."""

    # ---- the split ---------------------------------------------------------------------------------------------------
    @cached_property
    def _split(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """(train, ood): diagonals of a table whose rows and columns are shuffled are held out, so that every operation is."""
        shuffler, n = random.Random(self.split_seed), min(self.n_outer, self.n_inner)
        rows, columns = (shuffler.sample(range(k), k) for k in (self.n_outer, self.n_inner))
        pairs = [divmod(c, self.n_inner) for c in range(self.n_compositions)]
        out = [(rows[i] + columns[j]) % n < self.partners_held_out for i, j in pairs]
        return tuple(c for c, o in enumerate(out) if not o), tuple(c for c, o in enumerate(out) if o)

    def compositions(self, split: str) -> tuple[int, ...]:
        """Pairs as outer * n_inner + inner."""
        self.check_split(split)
        return self._split[split == "ood"]

    @property
    def n_compositions(self) -> int:
        return self.n_outer * self.n_inner

    def composition_name(self, composition: int) -> str:
        outer, inner = divmod(composition, self.n_inner)
        return f"{outer}|{inner}"

    def describe_split(self) -> dict[str, Any]:
        return {"n_pairs": self.n_compositions, "held_out": [list(divmod(c, self.n_inner)) for c in self._split[1]]}

    # ---- shape -------------------------------------------------------------------------------------------------------
    @property
    def d_in(self) -> int:
        return self.d_x + self.d_y + 1

    @property
    def d_out(self) -> int:
        return self.d_y

    @property
    def seq(self) -> int:
        return self.n_context + self.n_queries

    @property
    def answers(self) -> tuple[int, ...]:
        return tuple(range(self.n_context, self.seq))

    @property
    def mask(self) -> Tensor:
        """Every token attends to the context and to itself."""
        mask = torch.eye(self.seq, dtype=torch.bool)
        mask[:, : self.n_context] = True
        return mask

    # ---- the teacher -------------------------------------------------------------------------------------------------
    @cached_property
    def teacher(self) -> tuple[Tensor, Tensor]:
        """(inner (n_inner, *widths[0]), outer (n_outer, *widths[1])): B and A, transposed, from teacher_seed.

        Entries of B have variance inner_gain² / d_x, those of A are such that the answers' mean square is 1 over inputs and
        pairs."""
        rng = torch.Generator().manual_seed(self.teacher_seed)
        to_hidden, to_answer = self.widths
        inner = torch.randn(self.n_inner, *to_hidden, generator=rng) / math.sqrt(self.d_x) * self.inner_gain
        outer = torch.randn(self.n_outer, *to_answer, generator=rng)
        x = self._draw(1, 2048, rng)
        everywhere = x.expand(self.n_inner, -1, -1).flatten(0, 1)
        answers = self.second(self.first(x @ inner).flatten(0, 1), outer, everywhere)
        return inner, outer / answers.double().square().mean().sqrt().float()

    def _draw(self, n: int, points: int, rng: torch.Generator) -> Tensor:
        """(n, points, d_x): uniform, with mean 0 and variance 1."""
        x = torch.rand(n, points, self.d_x, generator=rng, device=rng.device)
        return (2 * x - 1) * math.sqrt(3)

    def answer(self, codes: dict[str, Tensor], x: Tensor) -> Tensor:
        """(batch, points, d_y): what the teacher says at x (batch, points, d_x)."""
        inner, outer = (weights.to(x) for weights in self.teacher)
        return self.second(self.first(x @ inner[codes["inner"]]), outer[codes["outer"]], x)

    def answers_of(self, pairs: dict[str, Tensor], x: Tensor, inner: Tensor, outer: Tensor) -> Tensor:
        """(batch, C, points, d_y): the answers at x (batch, points, d_x) under pairs {"outer": (C,), "inner": (C,)} of these
        matrices, shaped as in `teacher`."""
        hidden = self.first(torch.einsum("bnx,jxh->bjnh", x, inner))
        return self.second(hidden[:, pairs["inner"]], outer[pairs["outer"]], x[:, None])

    def _codes(self, composition: Tensor) -> dict[str, Tensor]:
        return {"outer": composition // self.n_inner, "inner": composition % self.n_inner}

    # ---- episodes ----------------------------------------------------------------------------------------------------
    def sample(self, n: int, split: str, rng: torch.Generator, compositions: Sequence[int] | None = None) -> Episodes:
        require(n >= 1, f"need at least one episode, got n={n}")
        chosen = torch.tensor(self.choose_compositions(split, compositions), device=rng.device)
        composition = chosen[torch.randint(len(chosen), (n,), generator=rng, device=rng.device)]
        return self.render(self._codes(composition), self._draw(n, self.seq, rng))

    def render(self, codes: dict[str, Tensor], inputs: Tensor) -> Episodes:
        """These inputs (batch, seq, d_x) under those operations {"outer": (batch,), "inner": (batch,)}, without noise."""
        y = self.answer(codes, inputs)
        tokens = torch.cat([inputs, y, torch.zeros_like(y[..., :1])], dim=-1)
        tokens[:, self.n_context :, self.d_x : -1] = 0
        tokens[:, self.n_context :, -1] = 1
        nuisances = {"answer_scale": y[:, : self.n_context].square().mean((1, 2)).sqrt()}
        return Episodes(tokens, y, dict(codes), codes["outer"] * self.n_inner + codes["inner"], inputs, nuisances)

    def examples(self, episodes: Episodes) -> tuple[Tensor, Tensor]:
        return episodes.tokens[..., : self.d_x], episodes.tokens[:, : self.n_context, self.d_x : -1]

    def context_asked(self, episodes: Episodes) -> tuple[Tensor, Tensor]:
        """The N context inputs, Q at a time; where Q does not divide N, some are asked twice."""
        asked = torch.arange(self.n_queries * math.ceil(self.n_context / self.n_queries)) % self.n_context
        which = asked.view(-1, self.n_queries).to(episodes.tokens.device)
        tokens, targets = (t[:, None].repeat(1, len(which), 1, 1) for t in (episodes.tokens, episodes.targets))
        tokens[:, :, self.n_context :, : self.d_x] = episodes.tokens[:, which, : self.d_x]
        targets[:, :, self.n_context :] = episodes.targets[:, which]
        return tokens, targets

    def candidates(self, episodes: Episodes, allowed: Sequence[int]) -> tuple[Tensor, Tensor]:
        pairs = self._codes(torch.tensor(allowed, device=episodes.inputs.device))
        found = self.answers_of(pairs, episodes.inputs, *(weights.to(episodes.inputs) for weights in self.teacher))
        shown = slice(0, self.n_context)
        return found, (found - episodes.targets[:, None])[:, :, shown].square().sum((2, 3))

    # ---- factors -----------------------------------------------------------------------------------------------------
    def factors(self, codes: dict[str, Tensor]) -> dict[str, Tensor]:
        """The two operations, one-hot."""
        return {side: one_hot(codes[side], n).float() for side, n in (("outer", self.n_outer), ("inner", self.n_inner))}

    def exchange(
        self, base: dict[str, Tensor], source: dict[str, Tensor], rng: torch.Generator
    ) -> tuple[dict[str, Tensor], Tensor]:
        """One of the two operations is the source's."""
        ours, theirs = (torch.stack([codes["outer"], codes["inner"]], dim=1) for codes in (base, source))
        possible = (ours != theirs).all(1, keepdim=True)  # else the exchange leads to the base's or the source's own pair
        mask = one_of(possible.expand_as(ours), rng)
        outer, inner = torch.where(mask, theirs, ours).T
        return {"outer": outer, "inner": inner}, mask

    # ---- loss and score ----------------------------------------------------------------------------------------------
    def loss(self, prediction: Tensor, targets: Tensor) -> Tensor:
        """Mean squared error at the queries."""
        return (prediction[:, self.n_context :] - targets[:, self.n_context :]).square().mean()

    def errors(self, prediction: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Pooled R²: squared error at the queries over the variance of the episode's N + Q answers (unbiased), Q times.

        1 is perfect, 0 the predictor that knows each episode's mean answer, may be negative."""
        error = (prediction.double() - targets.double())[:, self.n_context :].square().sum((1, 2))
        return error, self.n_queries * targets.double().var(1).sum(1)
