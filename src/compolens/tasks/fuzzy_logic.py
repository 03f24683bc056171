"""Fuzzy logic: in-context regression on functions composed, by OR, from shared conjunctions (2406.05816, sec. 3.1).

With Zadeh's operators (AND = min, OR = max, NOT x = 1 - x) a term is a conjunction over all L variables, each plain or
negated, and a function is the disjunction of K different terms:

    f(x) = max over the K terms of min over i of (x_i or 1 - x_i)

An episode shows N - 1 labelled examples and asks for the answer at one further input:

    token 0          token N-2         token N-1
    [x; f(x)]   …    [x; f(x)]         [x; 0]  ->  f(x)
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import combinations
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from compolens.foundation.configs import ConfigError, added_later, frozen, nearest, require, require_positive
from compolens.tasks.base import TaskFamily, require_few
from compolens.tasks.episodes import Episodes, Readouts, Sheet, check_drawing, one_of

INPUTS = ("uniform", "fixed query", "fixed context")
FIXED_SEED = 2406


@dataclass(frozen=True)
class FuzzyLogic(TaskFamily):
    """Functions of K fuzzy conjunctions; which pairs (or K-sets) of terms occur in training is known exactly.

    Of the 2^L terms, numbered in binary (first variable = most significant bit, 1 = plain, 0 = negated), the last int(2^L *
    fraction_unknown) are unknown: no function of training or of ood contains them.

    >>> task = FuzzyLogic(length=16)
    >>> len(task.compositions("train")), len(task.compositions("ood")), task.composition_name(0)
    (20, 46, '0000|0001')

    Args:
        n_variables: L, variables of a term; at most 12.
        n_terms: K, terms of a function.
        length: N, the tokens of an episode, its query included; at least 2.
        fraction_held_out: of the K-sets of known terms, int(fraction_held_out * their number) are held out, drawn with
            `split_seed`.
        held_out: the held-out sets of term numbers themselves, instead of a fraction.
        fraction_unknown: of all terms, in [0, 1).
        inputs: "uniform" on [0, 1); "fixed query" or "fixed context" show every function at the same query, or after the same
            context inputs.
        held_out_terms: "known", or "unknown" to make ood the functions of unknown terms instead, about which training says
            nothing.
        allow_unseen_terms: whether a known term may be missing from training.
        split_seed: draws which sets are held out.
        validation: how many of the training functions are set aside: they are not trained on, and make the split
            "validation", on which settings are chosen. Those held out (ood) stay the same.
    """

    n_variables: int = 4
    n_terms: int = 2
    length: int = 32
    fraction_held_out: float = 0.7
    held_out: tuple[tuple[int, ...], ...] | None = None
    fraction_unknown: float = 0.25
    inputs: str = "uniform"
    held_out_terms: str = "known"
    allow_unseen_terms: bool = False
    split_seed: int = 0
    validation: int = added_later(0)

    code_kinds: ClassVar[dict[str, str]] = {"terms": "categorical"}
    score_name: ClassVar[str] = "R²"

    def __post_init__(self) -> None:
        super().__post_init__()
        require_positive(self, "n_variables", "n_terms", "length")
        require(
            self.n_variables <= 12, f"n_variables={self.n_variables} makes 2^{self.n_variables} terms; at most 12 variables"
        )
        require(self.length >= 2, f"length={self.length} leaves no example beside the query; use at least 2")
        require(self.inputs in INPUTS, f"no inputs {self.inputs!r}; {nearest(str(self.inputs), INPUTS)}")
        known = ("known", "unknown")
        require(
            self.held_out_terms in known,
            f"no held_out_terms {self.held_out_terms!r}; {nearest(str(self.held_out_terms), known)}",
        )
        require(
            0 <= self.fraction_unknown < 1, f"fraction_unknown must be at least 0 and below 1, got {self.fraction_unknown}"
        )
        require(
            self.n_terms <= self.n_known,
            f"a function needs {self.n_terms} different terms, but of {self.n_all} only {self.n_known} are known; "
            "lower n_terms or fraction_unknown",
        )
        counts = (math.comb(n, self.n_terms) for n in (self.n_known, self.n_all - self.n_known))
        require_few(type(self).__name__, counts, f"lower n_variables={self.n_variables} or n_terms={self.n_terms}")
        object.__setattr__(self, "held_out", frozen(self.held_out))
        train, ood = self._split
        if self.held_out_terms == "unknown":
            require(len(ood) > 0, f"{self.n_all - self.n_known} unknown terms make no function of {self.n_terms}")
        unseen = sorted(set(range(self.n_known)) - {t for c in train for t in self._universe[c]})
        require(
            not unseen or self.allow_unseen_terms,
            f"the split leaves term {', '.join(map(self._term_name, unseen))} unseen in training, so nothing could generalize "
            "to it; hold out less, or say allow_unseen_terms=True",
        )

    # ---- terms and the split -----------------------------------------------------------------------------------------
    @property
    def setting(self) -> str:
        held_out = "listed" if self.held_out is not None else f"{100 * self.fraction_held_out:.0f} % held out"
        return f"{type(self).__name__} {self.length} tokens, {held_out}"

    @property
    def n_all(self) -> int:
        """The number of terms, 2^L."""
        return 2**self.n_variables

    @property
    def n_known(self) -> int:
        """The number of known terms."""
        return self.n_all - int(self.n_all * self.fraction_unknown)

    @cached_property
    def _universe(self) -> list[tuple[int, ...]]:
        known = list(combinations(range(self.n_known), self.n_terms))
        return known + list(combinations(range(self.n_known, self.n_all), self.n_terms))

    @property
    def _split(self) -> tuple[list[int], list[int]]:
        """(train, ood) as indices into the universe."""
        return self._parts[0], self._support[1]

    @cached_property
    def _parts(self) -> tuple[list[int], list[int]]:
        """(trained on, set aside for validation), drawn until every term of training occurs in what is left."""
        train = self._support[0]
        if not self.validation:
            return train, []
        require(
            0 < self.validation < len(train),
            f"FuzzyLogic: validation={self.validation} of {len(train)} training functions; set fewer aside, at least 0",
        )
        terms = {t for c in train for t in self._universe[c]}
        shuffler = random.Random(f"validation/{self.split_seed}")
        for _ in range(1000):
            aside = set(shuffler.sample(train, self.validation))
            left = [c for c in train if c not in aside]
            if {t for c in left for t in self._universe[c]} == terms:
                return left, sorted(aside)
        raise ConfigError(
            f"FuzzyLogic: no {self.validation} training functions can be set aside so that the others still show every term; "
            "set fewer aside"
        )

    @cached_property
    def _support(self) -> tuple[list[int], list[int]]:
        """(training functions, those set aside included; ood) as indices into the universe."""
        n_functions = len(list(combinations(range(self.n_known), self.n_terms)))
        if self.held_out is not None:
            held_out = [self._index(c) for c in self.held_out]
            twice = [c for c in set(held_out) if held_out.count(c) > 1]
            require(not twice, f"held_out lists {[list(self._universe[c]) for c in twice][:1]} twice")
        else:
            require(
                0 < self.fraction_held_out < 1, f"fraction_held_out must lie between 0 and 1, got {self.fraction_held_out}"
            )
            held_out = self._draw_held_out(n_functions)
        train = [c for c in range(n_functions) if c not in held_out]
        require(len(held_out) > 0, f"nothing is held out of {n_functions} functions; raise fraction_held_out")
        require(len(train) > 0, f"all {n_functions} functions are held out; nothing is left to train on")
        if self.held_out_terms == "unknown":
            return train, list(range(n_functions, len(self._universe)))
        return train, sorted(held_out)

    def _draw_held_out(self, n_functions: int) -> list[int]:
        """A random choice, drawn again (up to 1,000 times) until every known term occurs in training."""
        shuffler, count = random.Random(self.split_seed), int(self.fraction_held_out * n_functions)
        for _ in range(1000):
            held_out = shuffler.sample(range(n_functions), count)
            left = {t for c in set(range(n_functions)) - set(held_out) for t in self._universe[c]}
            if len(left) == self.n_known or self.allow_unseen_terms:
                break
        return held_out

    def _index(self, terms: Any) -> int:
        require(
            isinstance(terms, tuple) and all(isinstance(t, int) for t in terms),
            f"held_out must list sets of term numbers such as [[0, 1], [2, 5]], got the entry {terms!r}",
        )
        wanted = tuple(sorted(terms))
        require(
            len(set(wanted)) == self.n_terms == len(wanted),
            f"held_out: {list(terms)} should name {self.n_terms} different terms",
        )
        bad = [t for t in wanted if not 0 <= t < self.n_known]
        require(not bad, f"held_out names term {bad[:1]}, but the known terms are 0 to {self.n_known - 1}")
        return self._universe.index(wanted)

    def compositions(self, split: str) -> tuple[int, ...]:
        """Indices into all functions: those of known terms in lexicographic order, then those of unknown terms."""
        self.check_split(split)
        return tuple({"ood": self._split[1], "validation": self._parts[1]}.get(split, self._split[0]))

    @property
    def n_compositions(self) -> int:
        return len(self._universe)

    def _term_name(self, term: int) -> str:
        return format(term, f"0{self.n_variables}b")

    def composition_name(self, composition: int) -> str:
        return "|".join(self._term_name(t) for t in self._universe[composition])

    def describe_split(self) -> dict[str, Any]:
        train, ood = self._split
        return {
            "functions": len(train),
            "held_out": len(ood),
            **({"validation": len(self._parts[1])} if self.validation else {}),
            "known_terms": self.n_known,
            "unknown_terms": self.n_all - self.n_known,
            "uses_per_term": [sum(t in self._universe[c] for c in train) for t in range(self.n_known)],
        }

    # ---- shape -------------------------------------------------------------------------------------------------------
    @property
    def d_in(self) -> int:
        return self.n_variables + 1

    @property
    def d_out(self) -> int:
        return 1

    @property
    def seq(self) -> int:
        return self.length

    @property
    def answers(self) -> tuple[int, ...]:
        return (self.length - 1,)

    @property
    def variants(self) -> dict[str, TaskFamily]:
        """Fixed query and fixed context; functions of unknown terms, where there are enough of them."""
        found: dict[str, TaskFamily] = {mode: replace(self, inputs=mode) for mode in INPUTS if mode != self.inputs}
        if self.n_all - self.n_known >= self.n_terms and self.held_out_terms == "known":
            found["unknown terms"] = replace(self, held_out_terms="unknown")
        return found

    # ---- episodes ----------------------------------------------------------------------------------------------------
    @cached_property
    def _tables(self) -> dict[torch.device, tuple[Tensor, Tensor]]:
        return {}

    def _on(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """(terms of every function (functions, K), which variables a term negates (terms, L) bool), on a device."""
        if device not in self._tables:
            terms = torch.tensor(self._universe, device=device)
            shifts = torch.arange(self.n_variables - 1, -1, -1, device=device)
            self._tables[device] = terms, (torch.arange(self.n_all, device=device)[:, None] >> shifts) & 1 == 0
        return self._tables[device]

    def sample(self, n: int, split: str, rng: torch.Generator, compositions: Sequence[int] | None = None) -> Episodes:
        check_drawing(n, rng)
        chosen = torch.tensor(self.choose_compositions(split, compositions), device=rng.device)
        composition = chosen[torch.randint(len(chosen), (n,), generator=rng, device=rng.device)]
        x = torch.rand(n, self.length, self.n_variables, generator=rng, device=rng.device)
        if self.inputs != "uniform":
            fixed = torch.rand(self.length, self.n_variables, generator=torch.Generator().manual_seed(FIXED_SEED)).to(x)
            keep = slice(self.length - 1, None) if self.inputs == "fixed query" else slice(0, self.length - 1)
            x[:, keep] = fixed[keep]
        return self._render({"terms": self._on(rng.device)[0][composition]}, x, composition)

    def render(self, codes: dict[str, Tensor], inputs: Tensor) -> Episodes:
        """These inputs (batch, seq, L) under those codes {"terms": (batch, K) term numbers}; exact.

        `composition` is -1 where the terms are no function of only known or only unknown ones.
        """
        terms = codes["terms"].sort(dim=1).values
        weights = self.n_all ** torch.arange(self.n_terms, device=terms.device)
        table = {int(k): i for i, k in enumerate((torch.tensor(self._universe) * weights.cpu()).sum(1))}
        composition = [table.get(k, -1) for k in (terms * weights).sum(1).tolist()]
        return self._render({"terms": terms}, inputs, torch.tensor(composition, device=terms.device))

    def examples(self, episodes: Episodes) -> tuple[Tensor, Tensor]:
        return episodes.tokens[..., :-1], episodes.tokens[:, :-1, -1:]

    def context_asked(self, episodes: Episodes) -> tuple[Tensor, Tensor]:
        """Every example's input, one sequence each."""
        shown = self.length - 1
        tokens = episodes.tokens[:, None].repeat(1, shown, 1, 1)
        targets = episodes.targets[:, None].repeat(1, shown, 1, 1)
        tokens[:, :, -1, :-1] = episodes.tokens[:, :-1, :-1]
        targets[:, :, -1] = episodes.targets[:, :-1]
        return tokens, targets

    # ---- factors -----------------------------------------------------------------------------------------------------
    def factors(self, codes: dict[str, Tensor]) -> dict[str, Tensor]:
        """For every term, whether it is there."""
        present = self._present(codes).float()
        return {self._term_name(t): present[:, t : t + 1] for t in range(self.n_all)}

    def _present(self, codes: dict[str, Tensor]) -> Tensor:
        return one_hot(codes["terms"], self.n_all).any(1)

    def exchange(
        self, base: dict[str, Tensor], source: dict[str, Tensor], rng: torch.Generator
    ) -> tuple[dict[str, Tensor], Tensor]:
        """One term of the base makes room for one of the source's."""
        ours, theirs = self._present(base), self._present(source)
        taken, given = one_of(ours & ~theirs, rng), one_of(theirs & ~ours, rng)
        possible = (ours & ~theirs).sum(1) > 1  # else the exchange leads to the source's own function
        mask = (taken | given) & possible[:, None]
        present = torch.where(mask, theirs, ours)
        terms = present.nonzero()[:, 1].view(-1, self.n_terms)
        known = (terms < self.n_known).all(1) | (terms >= self.n_known).all(1)
        return {"terms": torch.where(known[:, None], terms, base["terms"])}, mask & known[:, None]

    def candidates(self, episodes: Episodes, allowed: Sequence[int]) -> tuple[Tensor, Tensor]:
        x, y = self.examples(episodes)
        answers = self.functions(x, allowed)
        return answers[..., None], (answers[:, :, :-1] - y.squeeze(-1)[:, None]).square().sum(2)

    def functions(self, x: Tensor, chosen: Sequence[int]) -> Tensor:
        """What chosen functions answer at every input.

        Args:
            x: (batch, seq, L) truth values in [0, 1].
            chosen: numbers of functions, which are compositions.

        Returns:
            (batch, function, seq), in [0, 1].
        """
        terms, negated = self._on(x.device)
        truth = torch.where(negated[:, None], 1 - x[:, None], x[:, None]).amin(-1)
        return truth[:, terms[list(chosen)]].amax(2)

    def _render(self, codes: dict[str, Tensor], x: Tensor, composition: Tensor) -> Episodes:
        negated = self._on(x.device)[1][codes["terms"]]
        literals = torch.where(negated[:, None], 1 - x[:, :, None], x[:, :, None])
        truth = literals.amin(-1)
        y = truth.amax(-1, keepdim=True)
        tokens = torch.cat([x, y], dim=-1)
        tokens[:, -1, -1] = 0
        nuisances = {"target value": y[:, -1, 0], "largest query input": x[:, -1].amax(-1)}
        return Episodes(tokens, y, codes, composition, x, nuisances)

    # ---- loss and score ----------------------------------------------------------------------------------------------
    def loss(self, prediction: Tensor, targets: Tensor) -> Tensor:
        """Squared error at the query, averaged over the batch."""
        return (prediction[:, -1] - targets[:, -1]).square().mean()

    def errors(self, prediction: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Pooled R²: squared error at the query over the variance of the episode's N targets, the query's among them.

        R²: 1 is perfect, 0 each function's mean, may be negative. The ratio of every episode, averaged, is what 2406.05816
        reports (a mean of ratios); `metrics` has both. Population variance (divided by N), as there.
        """
        error = (prediction.double() - targets.double())[:, -1].square().sum(-1)
        return error, targets.double().squeeze(-1).var(1, correction=0)

    def metrics(self, prediction: Tensor, targets: Tensor) -> dict[str, tuple[Tensor, Tensor]]:
        error, variance = self.errors(prediction, targets)
        return {"score": (error, variance), "R², mean of ratios": (error / variance, torch.ones_like(error))}

    # ---- for readers -------------------------------------------------------------------------------------------------
    def sheets(self, episodes: Episodes, prediction: Tensor) -> list[Sheet]:
        """The function as a formula; its examples; the question with target and answer."""
        terms = [self._term_name(int(t)) for t in episodes.codes["terms"][0]]
        spelled = [" ∧ ".join(("" if bit == "1" else "¬") + f"x{i + 1}" for i, bit in enumerate(term)) for term in terms]
        variables = tuple(f"x{i + 1}" for i in range(self.n_variables))
        x, y = (part[0].tolist() for part in (episodes.inputs, episodes.targets[..., 0]))
        shown = [tuple(f"{v:.2f}" for v in [*row, value]) for row, value in zip(x, y, strict=True)]
        asked = (*shown[-1], f"{float(prediction[0, -1, 0]):.2f}")
        return [
            Sheet("function: the largest of its terms, each the least of its literals", (), tuple((s,) for s in spelled)),
            Sheet("question", (*variables, "target", "answer"), (asked,)),
            Sheet("examples", (*variables, "f(x)"), tuple(shown[:-1])),
        ]

    # ---- readouts ----------------------------------------------------------------------------------------------------
    def readouts(self, episodes: Episodes) -> Readouts:
        """Each of the K terms (in ascending order), read from the query token attending to itself.

        Inputs offered to a readout of the raw input: the whole episode; and moments of its examples up to degree 2, beside
        the query with its products.
        """
        batch, last, device = len(episodes.tokens), self.length - 1, episodes.tokens.device
        pair = torch.full((batch, 1, 1, 2), last, device=device)
        names = tuple(self._term_name(t) for t in range(self.n_all))
        terms = {f"term {k + 1}": episodes.codes["terms"][:, None, k] for k in range(self.n_terms)}
        upper = torch.triu_indices(self.d_in, self.d_in, device=device)
        products = episodes.tokens[:, :, upper[0]] * episodes.tokens[:, :, upper[1]]
        moments = [episodes.tokens[:, :-1].mean(1), products[:, :-1].mean(1), episodes.tokens[:, -1], products[:, -1]]
        return Readouts(
            pairs={"self": pair},
            labels=terms,
            classes=dict.fromkeys(terms, names),
            confounds={"target value": episodes.targets[:, -1], "largest query input": episodes.inputs[:, None, -1].amax(-1)},
            inputs={
                "raw input": episodes.tokens.flatten(1)[:, None],
                "raw input, products": torch.cat(moments, dim=1)[:, None],
            },
        )
