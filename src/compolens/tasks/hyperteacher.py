"""Modular hyperteacher: in-context regression whose task network is composed, linearly, from shared modules.

A task is y = A relu(W(z) x) with W(z) = sum_m z_m Theta_m (2407.12275; 2312.15001, eq. of the linear hypernetwork
teacher): z, the latent code, has at most K active entries, and some combinations of active modules never occur in
training. An episode shows a task through N input-answer pairs and asks for the answers of Q further inputs:

    token 0            token N-1     token N            token N+Q-1
    [x_0; y_0; 0]  …  [x; y; 0]     [x_N; 0; 1]    …   [x; 0; 1]
    \\________ context ________/     \\________ queries ________/

Every token may attend to the context and to itself, so the context is a set and queries do not see one another.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import torch
from torch import Tensor

from compolens.foundation.configs import ConfigError, added_later, frozen, nearest, require, require_positive
from compolens.foundation.memory import require_room
from compolens.tasks import supports
from compolens.tasks.base import TaskFamily, require_few
from compolens.tasks.episodes import Episodes, Sheet, check_drawing, one_of

COEFFICIENTS = {
    "continuous": lambda u: 0.5 + 0.5 * u,
    "discrete": lambda u: 0.5 + 0.1 * torch.floor(6 * u).clamp(max=5),
    "ones": torch.ones_like,
}
"""Law of an active coefficient, from u uniform on [0, 1): uniform on [0.5, 1), on {0.5, 0.6, …, 1.0}, or always 1."""


@dataclass(frozen=True)
class _Teacher(TaskFamily):
    """What the modular family and its unstructured control share: inputs, supports, tokens, loss and score.

    Args:
        d_x: width of x.
        d_y: width of y.
        d_hidden: width of the task network's hidden layer.
        n_modules: M, modules there are.
        max_active: K, most modules of a combination; at most M.
        n_context: N, examples of an episode.
        n_queries: Q, inputs asked for after them.
        support: "connected", "disconnected", "random", "cube", "two cliques", or a list of combinations of modules.
        held_out: combinations held out beside an explicit list (None: every other one).
        fraction_held_out: of all combinations, for "random".
        coefficients: "continuous", "discrete" or "ones".
        allow_unseen_modules: whether a module may be missing from training.
        teacher_seed: draws the teacher.
        split_seed: draws the random support, and renumbers the modules of the named ones (0: not at all).
        validation: how many of the training combinations of several modules are set aside: they are not trained on, and make
            the split "validation", on which settings are chosen. Those held out (ood) stay the same.
        code_given: whether every token also holds the task's code, its M coefficients last: nothing has to be inferred then.
    """

    d_x: int = 16
    d_y: int = 8
    d_hidden: int = 16
    n_modules: int = 8
    max_active: int = 2
    n_context: int = 24
    n_queries: int = 8
    support: str | tuple[tuple[int, ...], ...] = "connected"
    held_out: tuple[tuple[int, ...], ...] | None = None
    fraction_held_out: float = 0.25
    coefficients: str = "continuous"
    allow_unseen_modules: bool = False
    teacher_seed: int = 0
    split_seed: int = 0
    validation: int = added_later(0)
    code_given: bool = added_later(False)

    code_kinds: ClassVar[dict[str, str]] = {"modules": "continuous"}
    score_name: ClassVar[str] = "R²"

    def __post_init__(self) -> None:
        super().__post_init__()
        sizes = ("d_x", "d_y", "d_hidden", "n_modules", "max_active", "n_context", "n_queries")
        require_positive(self, *sizes)
        require(
            self.max_active <= self.n_modules,
            f"max_active={self.max_active} exceeds n_modules={self.n_modules}",
        )
        counts = (math.comb(self.n_modules, active) for active in range(1, self.max_active + 1))
        require_few(type(self).__name__, counts, f"lower n_modules={self.n_modules} or max_active={self.max_active}")
        require(
            self.coefficients in list(COEFFICIENTS),
            f"no coefficients {self.coefficients!r}; {nearest(str(self.coefficients), COEFFICIENTS)}",
        )
        object.__setattr__(self, "support", frozen(self.support))
        object.__setattr__(self, "held_out", frozen(self.held_out))
        require(self.validation >= 0, f"{type(self).__name__}: validation must not be negative, got {self.validation}")
        unseen = set(range(self.n_modules)) - supports.covered(self._split[0])
        if unseen and not self.allow_unseen_modules:
            names = ", ".join(str(m) for m in sorted(unseen))
            raise ConfigError(
                f"the support leaves module {names} unseen in training, so nothing could generalize to it; "
                "add a combination with it, or say allow_unseen_modules=True"
            )

    # ---- the split ---------------------------------------------------------------------------------------------------
    @cached_property
    def _parts(self) -> tuple[list[supports.Combination], list[supports.Combination]]:
        """(trained on, set aside for validation): the training combinations."""
        train = self._support[0]
        return supports.set_aside(train, self.n_modules, self.validation, self.split_seed) if self.validation else (train, [])

    @property
    def _split(self) -> supports.Split:
        return self._parts[0], self._support[1]

    @cached_property
    def _support(self) -> supports.Split:
        if isinstance(self.support, str):
            require(self.support in supports.NAMED, f"no support {self.support!r}; {nearest(self.support, supports.NAMED)}")
            lists = "held_out goes with an explicit list of combinations as support, such as support=[[0, 1], [1, 2]]"
            require(self.held_out is None, f"{lists}; got support={self.support!r}")
            make = supports.NAMED[self.support]
            return make(self.n_modules, self.max_active, self.fraction_held_out, self.split_seed)
        train = supports.check_combinations("support", self.support, self.n_modules, self.max_active)
        if self.held_out is None:
            return train, [c for c in self._universe if c not in train]
        held_out = supports.check_combinations("held_out", self.held_out, self.n_modules, self.max_active)
        both = [list(c) for c in held_out if c in train]
        require(not both, f"the combination {both[:1]} is both in support and held_out")
        return train, held_out

    @cached_property
    def _universe(self) -> list[supports.Combination]:
        return supports.universe(self.n_modules, self.max_active)

    def compositions(self, split: str) -> tuple[int, ...]:
        """Indices into all combinations of 1 to K modules, ordered by size, then lexicographically."""
        self.check_split(split)
        chosen = {"ood": self._split[1], "validation": self._parts[1]}.get(split, self._split[0])
        return tuple(self._universe.index(c) for c in chosen)

    @property
    def setting(self) -> str:
        support = self.support if isinstance(self.support, str) else "listed"
        return f"{type(self).__name__} {self.d_x}→{self.d_y} {support}"

    @property
    def n_compositions(self) -> int:
        return len(self._universe)

    def composition_name(self, composition: int) -> str:
        return "+".join(str(m) for m in self._universe[composition])

    def describe_split(self) -> dict[str, Any]:
        train, held_out = self._split
        name = self.support if isinstance(self.support, str) else "listed"
        aside = {"validation": [list(c) for c in self._parts[1]]} if self.validation else {}
        return {"support": name, **supports.describe_support(train, held_out, self.n_modules), **aside}

    # ---- shape -------------------------------------------------------------------------------------------------------
    @property
    def d_in(self) -> int:
        return self.d_x + self.d_y + 1 + (self.n_modules if self.code_given else 0)

    @property
    def _answer_part(self) -> slice:
        """Where a context token holds its answer."""
        return slice(self.d_x, self.d_x + self.d_y)

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
        mask = torch.eye(self.seq, dtype=torch.bool)
        mask[:, : self.n_context] = True
        return mask

    # ---- the teacher -------------------------------------------------------------------------------------------------
    @abstractmethod
    def bases(self, composition: int) -> Tensor:
        """(k, d_x, d_hidden): the task network's first layer under a composition is W = sum_j coefficients_j bases_j."""

    @abstractmethod
    def bounds(self, composition: int) -> tuple[float, float]:
        """The interval in which the coefficients of `bases` lie under this composition."""

    @abstractmethod
    def first_layer(self, codes: dict[str, Tensor], composition: Tensor) -> Tensor:
        """(batch, d_x, d_hidden): W(z), the weights that the codes mean."""

    @abstractmethod
    def _draw_modules(self, rng: torch.Generator) -> Tensor:
        """Standard normal (count, d_x, d_hidden)."""

    @cached_property
    def teacher(self) -> tuple[Tensor, Tensor]:
        """(modules, readout): Theta (count, d_x, d_hidden) and A (d_hidden, d_y), drawn on the CPU from teacher_seed.

        Entries of Theta have variance 1/d_x. A is scaled so that answers have standard deviation 1 over codes from all
        combinations, whatever the support; so every support faces the same teacher.
        """
        drawn = 4 * 4096 * (32 * self.d_x + 4 * self.d_hidden + 4 * self.d_y)  # the episodes it is calibrated on
        sizes = f"d_x={self.d_x}, d_hidden={self.d_hidden} and d_y={self.d_y}"
        require_room(drawn, f"a teacher of {sizes}", "choose less")
        rng = torch.Generator().manual_seed(self.teacher_seed)
        modules = self._draw_modules(rng) / math.sqrt(self.d_x)
        readout = torch.randn(self.d_hidden, self.d_y, generator=rng) / math.sqrt(self.d_hidden)
        self.__dict__["teacher"] = (modules, readout)  # the calibration below asks for the unscaled teacher
        pool = torch.arange(len(self._universe))[torch.randint(len(self._universe), (4096,), generator=rng)]
        codes, inputs = self._draw(pool, rng, 32)  # whatever the episode's length, so that the teacher does not depend on it
        answers = self._answers(codes, inputs[:, :4], pool)
        del self.__dict__["teacher"]
        return modules, readout / answers.double().std().float()

    @cached_property
    def _active(self) -> Tensor:
        """(combinations, n_modules) 0/1."""
        active = torch.zeros(len(self._universe), self.n_modules)
        for row, combination in enumerate(self._universe):
            active[row, list(combination)] = 1
        return active

    def _draw(self, composition: Tensor, rng: torch.Generator, points: int) -> tuple[dict[str, Tensor], Tensor]:
        device, n = rng.device, len(composition)
        u = torch.rand(n, self.n_modules, generator=rng, device=device)
        code = COEFFICIENTS[self.coefficients](u) * self._active.to(device)[composition]
        x = torch.rand(n, points, self.d_x, generator=rng, device=device)
        return {"modules": code}, (2 * x - 1) * math.sqrt(3)

    def _answers(self, codes: dict[str, Tensor], x: Tensor, composition: Tensor) -> Tensor:
        readout = self.teacher[1].to(x)
        return torch.relu(x @ self.first_layer(codes, composition)) @ readout

    def answer(self, codes: dict[str, Tensor], x: Tensor) -> Tensor:
        """What the teacher says: codes {"modules": (batch, M)}, x (batch, points, d_x) -> (batch, points, d_y)."""
        return self._answers(codes, x, self.composition_of(codes))

    # ---- episodes ----------------------------------------------------------------------------------------------------
    def sample(self, n: int, split: str, rng: torch.Generator, compositions: Sequence[int] | None = None) -> Episodes:
        check_drawing(n, rng)
        chosen = torch.tensor(self.choose_compositions(split, compositions), device=rng.device)
        composition = chosen[torch.randint(len(chosen), (n,), generator=rng, device=rng.device)]
        codes, x = self._draw(composition, rng, self.seq)
        return self._render(codes, x, composition)

    def render(self, codes: dict[str, Tensor], inputs: Tensor) -> Episodes:
        """These inputs (batch, seq, d_x) under those codes {"modules": (batch, M)}, noise-free and exact.

        `composition` is -1 where the active modules are no combination of at most K.
        """
        return self._render(codes, inputs, self.composition_of(codes))

    def skewed(self, inputs: Tensor) -> Tensor:
        """Each coordinate, uniform on [-√3, √3), at its quantile of a shifted exponential: mean 0, variance 1, skewness 2."""
        below = (inputs / math.sqrt(3) + 1) / 2
        return -torch.log1p(-below.clamp(max=1 - 1e-6)) - 1

    def examples(self, episodes: Episodes) -> tuple[Tensor, Tensor]:
        return episodes.tokens[..., : self.d_x], episodes.tokens[:, : self.n_context, self._answer_part]

    def context_asked(self, episodes: Episodes) -> tuple[Tensor, Tensor]:
        """The N context inputs, Q at a time; where Q does not divide N, the last sequence asks some of them once more."""
        starts = [min(s, self.n_context - self.n_queries) for s in range(0, self.n_context, self.n_queries)]
        return self._asked(episodes, starts) if starts[0] >= 0 else self._asked(episodes, [0])

    def _asked(self, episodes: Episodes, starts: list[int]) -> tuple[Tensor, Tensor]:
        shown = torch.arange(self.n_queries, device=episodes.tokens.device)
        which = torch.stack([(s + shown) % self.n_context for s in starts])
        tokens = episodes.tokens[:, None].repeat(1, len(starts), 1, 1)
        targets = episodes.targets[:, None].repeat(1, len(starts), 1, 1)
        tokens[:, :, self.n_context :, : self.d_x] = episodes.tokens[:, which, : self.d_x]
        targets[:, :, self.n_context :] = episodes.targets[:, which]
        return tokens, targets

    # ---- factors -----------------------------------------------------------------------------------------------------
    def factors(self, codes: dict[str, Tensor]) -> dict[str, Tensor]:
        """The coefficient of every module."""
        return {f"module {m}": codes["modules"][:, m : m + 1] for m in range(self.n_modules)}

    def exchange(
        self, base: dict[str, Tensor], source: dict[str, Tensor], rng: torch.Generator
    ) -> tuple[dict[str, Tensor], Tensor]:
        """One active module of the base, if it has two or more, makes room for one of the source's, with its coefficient."""
        ours, theirs = base["modules"] != 0, source["modules"] != 0
        taken, given = one_of(ours & ~theirs, rng), one_of(theirs & ~ours, rng)
        mask = taken | given
        modules = torch.where(mask, source["modules"], base["modules"])
        here, there = (self.composition_of(codes) for codes in (base, source))
        found = self.composition_of({"modules": modules})
        possible = taken.any(1) & given.any(1) & (found >= 0) & (found != here) & (found != there)
        return {"modules": modules}, mask & possible[:, None]

    def composition_of(self, codes: dict[str, Tensor]) -> Tensor:
        """(batch,) index of each code's set of active modules; -1 for a set larger than K, or empty."""
        active = codes["modules"] != 0
        table = {row.tobytes(): i for i, row in enumerate(self._active.bool().numpy())}
        return torch.tensor([table.get(row.tobytes(), -1) for row in active.cpu().numpy()], device=active.device)

    def _render(self, codes: dict[str, Tensor], x: Tensor, composition: Tensor) -> Episodes:
        y = self._answers(codes, x, composition)
        tokens = x.new_zeros(*x.shape[:2], self.d_in)
        tokens[..., : self.d_x] = x
        tokens[:, : self.n_context, self._answer_part] = y[:, : self.n_context]
        tokens[:, self.n_context :, self.d_x + self.d_y] = 1
        if self.code_given:
            tokens[..., -self.n_modules :] = codes["modules"][:, None]
        nuisances = {
            "code_norm": codes["modules"].norm(dim=1),
            "answer_scale": y[:, : self.n_context].square().mean((1, 2)).sqrt(),
        }
        return Episodes(tokens, y, codes, composition, x, nuisances)

    # ---- loss and score ----------------------------------------------------------------------------------------------
    def loss(self, prediction: Tensor, targets: Tensor) -> Tensor:
        """Mean squared error at the queries."""
        return (prediction[:, self.n_context :] - targets[:, self.n_context :]).square().mean()

    def errors(self, prediction: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Pooled R²: squared error at the queries over squared deviation from the task's own mean answer.

        R²: 1 is perfect, 0 the predictor that knows each task's mean answer, may be negative. The mean is taken over all
        N+Q answers of the episode, with the factor n/(n-1) that makes the deviation unbiased: centring on the Q queries
        alone would shrink it by (Q-1)/Q and report a 1-R² that is larger by Q/(Q-1).
        """
        error = (prediction.double() - targets.double())[:, self.n_context :].square().sum((1, 2))
        deviation = targets.double() - targets.double().mean(1, keepdim=True)
        unbiased = self.seq / (self.seq - 1)
        return error, deviation[:, self.n_context :].square().sum((1, 2)) * unbiased

    def sheets(self, episodes: Episodes, prediction: Tensor) -> list[Sheet]:
        """The coefficients of the active modules; target and answer of the first questions."""
        code = episodes.codes["modules"][0].tolist()
        active = tuple((f"module {m}", f"{z:.2f}") for m, z in enumerate(code) if z)
        outputs = tuple(f"y{i + 1}" for i in range(self.d_y))
        rows, most = [], 4
        for q, at in enumerate(self.answers[:most]):
            for who, values in (("target", episodes.targets), ("answer", prediction)):
                rows.append((f"question {q + 1}, {who}", *(f"{v:.2f}" for v in values[0, at].tolist())))
        title = f"W(z): the model sees {self.n_context} examples (x, y)"
        asked = "questions" if self.n_queries <= most else f"questions 1 to {most} of {self.n_queries}"
        return [Sheet(title, ("part", "coefficient"), active), Sheet(asked, ("", *outputs), tuple(rows))]

    def raw_statistic(self, episodes: Episodes) -> Tensor:
        """The moments mean(y x^T) and mean(y) of the context, (batch, d_y * d_x + d_y).

        For inputs symmetric about 0, E[y x^T] = A^T W(z)^T Cov(x) / 2: linear in the code, for every combination, with
        nothing trained. A readout from a network shows inference only if it beats a readout from these.
        """
        context = episodes.tokens[:, : self.n_context].double()
        x, y = context[..., : self.d_x], context[..., self._answer_part]
        return torch.cat([(y.transpose(1, 2) @ x).flatten(1) / self.n_context, y.mean(1)], dim=1)


@dataclass(frozen=True)
class Hyperteacher(_Teacher):
    """The modular family: W(z) = sum_m z_m Theta_m, modules shared by all combinations. Fields as in the base class.

    >>> task = Hyperteacher(d_x=4, d_y=2, n_modules=6, n_context=5, n_queries=3)
    >>> episodes = task.sample(2, "ood", task.rng(0, "ood"))
    >>> episodes.tokens.shape, [task.composition_name(c) for c in task.compositions("ood")]
    (torch.Size([2, 8, 7]), ['0+3', '1+4', '2+5'])
    """

    def _draw_modules(self, rng: torch.Generator) -> Tensor:
        return torch.randn(self.n_modules, self.d_x, self.d_hidden, generator=rng)

    def first_layer(self, codes: dict[str, Tensor], composition: Tensor) -> Tensor:
        modules = self.teacher[0].to(codes["modules"])
        return (codes["modules"] @ modules.flatten(1)).view(-1, self.d_x, self.d_hidden)

    def bases(self, composition: int) -> Tensor:
        return self.teacher[0][list(self._universe[composition])]

    def bounds(self, composition: int) -> tuple[float, float]:
        return (0.5, 1.0)


@dataclass(frozen=True)
class UnstructuredTeacher(_Teacher):
    """The control without parts to recombine: each combination S has its own Theta_S, W(z) = |z| Theta_S.

    Entries of W have the same variance, |z|²/d_x, as in the modular family, and the supports are the same; but a held-out
    combination has weights that nothing in training says anything about. (Our reading of the "random unstructured control"
    of 2407.12275, whose details are not public.)
    """

    def _draw_modules(self, rng: torch.Generator) -> Tensor:
        return torch.randn(len(self._universe), self.d_x, self.d_hidden, generator=rng)

    def first_layer(self, codes: dict[str, Tensor], composition: Tensor) -> Tensor:
        if bool((composition < 0).any()):
            raise ConfigError(
                f"UnstructuredTeacher has weights only for combinations of 1 to {self.max_active} modules; "
                "a code with another number of active modules means nothing"
            )
        own = self.teacher[0].to(codes["modules"])[composition]
        return own * codes["modules"].norm(dim=1)[:, None, None]

    def bases(self, composition: int) -> Tensor:
        return self.teacher[0][composition : composition + 1]

    def bounds(self, composition: int) -> tuple[float, float]:
        root = math.sqrt(len(self._universe[composition]))
        return (0.5 * root, root)
