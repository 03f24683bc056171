"""Boolean functions in context: conjunctions, disjunctions, DNF and parities, made of parts that other functions share.

The classes are those of 2310.03016. A function is a set of parts, and what joins them:

    conjunction    all of `n_parts` literals hold              x1 ∧ ¬x4
    disjunction    one of `n_parts` literals holds             x1 ∨ ¬x4
    dnf            one of `n_parts` terms holds, each          (x1 ∧ ¬x4) ∨ (x2 ∧ x3)
                   a conjunction of `width` literals
    parity         an odd number of `n_parts` variables hold   x1 ⊕ x4

An episode shows labelled inputs and asks for the label of one more; in training it asks for every label. A token is
[input, in -1 and 1 | label, in -1 and 1]; the half that a token does not hold is 0:

    x_1  y_1  x_2  y_2  …  x_N  y_N  x_q       asked is the label of x_q

A composition is a function. Held out are functions whose every part occurs in functions of training.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import combinations, product
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from compolens.foundation.configs import added_later, nearest, require, require_positive
from compolens.tasks.base import TaskFamily, require_few
from compolens.tasks.episodes import Episodes, Labelled, Readouts, Sheet, answered, check_drawing, one_of

KINDS = {"conjunction": " ∧ ", "disjunction": " ∨ ", "dnf": " ∨ ", "parity": " ⊕ "}
"""Class of functions -> how its parts are joined."""
MOST_BITS = 10


@dataclass(frozen=True)
class BooleanFunctions(TaskFamily):
    """The family; the module says what an episode looks like.

    Codes: "parts" (batch, parts), 1 where the function has the part, else 0. Inputs are uniform, and independent of the
    function. Scored is whether the label of highest logit is right, where both labels weigh the same over all functions of the
    family: a learner that always gives the same label scores .5.

    >>> task = BooleanFunctions()
    >>> drawn = task.sample(3, "ood", task.rng(0, "ood"))
    >>> drawn.tokens.shape, len(task.compositions("train")), task.composition_name(0)
    (torch.Size([3, 49, 7]), 30, 'x1 ∧ x2')

    Args:
        n_bits: variables, from 2 to 10.
        kind: "conjunction", "disjunction", "dnf" or "parity".
        n_parts: parts of a function. 0, of parities alone: any number from 1, which makes all parities of the variables.
        width: literals of a term (dnf alone).
        n_context: N, labelled inputs of an episode.
        teaching: whether the labelled inputs begin with a teaching sequence, after which one function of the family is left.
            It is the shortest that a greedy choice finds, the same one for a function always.
        fraction_held_out: of all functions, in (0, 1).
        split_seed: draws which functions are held out.
        validation: how many of the training functions are set aside: they are not trained on, and make the split
            "validation", on which settings are chosen.
    """

    n_bits: int = 6
    kind: str = "conjunction"
    n_parts: int = 2
    width: int = 2
    n_context: int = 24
    teaching: bool = False
    fraction_held_out: float = 0.5
    split_seed: int = 0
    validation: int = added_later(0)

    code_kinds: ClassVar[dict[str, str]] = {"parts": "categorical"}
    score_name: ClassVar[str] = "balanced accuracy"
    ceiling: ClassVar[str] = "vote of all functions"

    def __post_init__(self) -> None:
        super().__post_init__()
        name = type(self).__name__
        require_positive(self, "n_bits", "width", "n_context")
        require(self.kind in KINDS, f"{name}: no kind {self.kind!r}; {nearest(self.kind, KINDS)}")
        require(2 <= self.n_bits <= MOST_BITS, f"{name}: n_bits must be from 2 to {MOST_BITS}, got {self.n_bits}")
        require(
            self.kind != "dnf" or self.width <= self.n_bits,
            f"{name}: a term has at most the {self.n_bits} variables, got width={self.width}",
        )
        least = 0 if self.kind == "parity" else 1
        most = math.comb(self.n_bits, self.width) * 2**self.width if self.kind == "dnf" else self.n_bits
        require(
            least <= self.n_parts <= most,
            f"{name}: a {self.kind} of {self.n_bits} variables has from {least} to {most} parts, got n_parts={self.n_parts}",
        )
        require(0 < self.fraction_held_out < 1, f"{name}: fraction_held_out must lie between 0 and 1, got "
                f"{self.fraction_held_out}")  # fmt: skip
        n = self.n_bits
        many = {
            "parity": math.comb(n, self.n_parts) if self.n_parts else 2**n - 1,
            "dnf": math.comb(math.comb(n, self.width) * 2**self.width, self.n_parts),
        }.get(self.kind, math.comb(n, self.n_parts) * 2**self.n_parts)
        require_few(name, [many], f"lower n_bits={n}, n_parts={self.n_parts} or width={self.width}")
        require(len(self._functions) > 1, f"{name}: {len(self._functions)} functions, too few to hold one out; change n_parts")
        train, _, ood = self._split
        unseen = set(range(len(self._parts))) - {p for c in train for p in self._functions[c]}
        require(
            not unseen and bool(ood),
            f"{name}: with fraction_held_out={self.fraction_held_out} of {len(self._functions)} functions "
            + ("nothing is held out" if not ood else f"the part {self._part_name(min(unseen, default=0))} is never trained on")
            + "; choose another fraction",
        )

        if self.teaching:
            _ = self._taught  # refused here where it does not fit

    # ---- functions and the split -------------------------------------------------------------------------------------
    @property
    def setting(self) -> str:
        of = self.n_parts or "any number of"
        terms = f" of {self.width}" if self.kind == "dnf" else ""
        return f"{type(self).__name__} {self.kind}, {of} parts{terms}, {self.n_bits} variables"

    @cached_property
    def _parts(self) -> list[tuple[tuple[int, bool], ...]]:
        """Every part as the literals of which all hold: (variable, plain?)."""
        if self.kind == "parity":
            return [((i, True),) for i in range(self.n_bits)]
        width = self.width if self.kind == "dnf" else 1
        signs = list(product((True, False), repeat=width))
        return [tuple(zip(v, s, strict=True)) for v in combinations(range(self.n_bits), width) for s in signs]

    @cached_property
    def _functions(self) -> list[tuple[int, ...]]:
        """Every function as the numbers of its parts, ascending; of literals, no variable twice.

        A function that can be written in two ways is left out, since its code would be ambiguous: of
        (x1 ∧ x2) ∨ (x1 ∧ ¬x2) and (x1 ∧ x3) ∨ (x1 ∧ ¬x3) nobody can tell which it is.
        """
        n = len(self._parts)
        sizes = [self.n_parts] if self.n_parts else range(1, n + 1)
        every = [chosen for size in sizes for chosen in combinations(range(n), size)]
        if self.kind in ("conjunction", "disjunction"):
            return [f for f in every if len({self._parts[p][0][0] for p in f}) == len(f)]
        if self.kind == "parity":
            return every
        truth = self._tables(self._indicators(every))
        _, which, many = truth.unique(dim=0, return_inverse=True, return_counts=True)
        return [f for f, once in zip(every, (many[which] == 1).tolist(), strict=True) if once]

    @cached_property
    def _split(self) -> tuple[list[int], list[int], list[int]]:
        """(trained on, set aside for validation, held out), drawn until every part occurs in training."""
        count, parts = len(self._functions), len(self._parts)
        rng, held = random.Random(f"boolean functions/{self.split_seed}"), round(self.fraction_held_out * count)
        require(
            0 <= self.validation < count - held,
            f"BooleanFunctions: validation={self.validation} of {count - held} training functions; set fewer aside",
        )
        for _ in range(1000):
            order = rng.sample(range(count), count)
            ood, aside, train = order[:held], order[held : held + self.validation], order[held + self.validation :]
            if len({p for c in train for p in self._functions[c]}) == parts:
                break
        return sorted(train), sorted(aside), sorted(ood)

    def compositions(self, split: str) -> tuple[int, ...]:
        """Numbers of functions, which are ordered by their parts."""
        self.check_split(split)
        train, aside, ood = self._split
        return tuple({"ood": ood, "validation": aside}.get(split, train))

    @property
    def n_compositions(self) -> int:
        return len(self._functions)

    def _part_name(self, part: int) -> str:
        return "∧".join(("" if plain else "¬") + f"x{i + 1}" for i, plain in self._parts[part])

    def composition_name(self, composition: int) -> str:
        names = [self._part_name(p) for p in self._functions[composition]]
        return KINDS[self.kind].join(f"({n})" if self.kind == "dnf" and self.width > 1 else n for n in names)

    def describe_split(self) -> dict[str, Any]:
        train, aside, ood = self._split
        uses = [sum(p in self._functions[c] for c in train) for p in range(len(self._parts))]
        return {
            "functions": len(train), "held_out": len(ood), **({"validation": len(aside)} if aside else {}),
            "parts": len(self._parts), "fewest_uses_of_a_part": min(uses),
        }  # fmt: skip

    # ---- shape -------------------------------------------------------------------------------------------------------
    @property
    def d_in(self) -> int:
        return self.n_bits + 1

    @property
    def d_out(self) -> int:
        return 2

    @property
    def seq(self) -> int:
        return 2 * self.n_context + 1

    @property
    def answers(self) -> tuple[int, ...]:
        """Every input is asked for, from the examples before it; scored is the last."""
        return tuple(range(0, self.seq, 2))

    @property
    def mask(self) -> Tensor:
        return torch.ones(self.seq, self.seq, dtype=torch.bool).tril()

    @property
    def variants(self) -> dict[str, TaskFamily]:
        """With a teaching sequence, where the episodes have none and are long enough for one."""
        fits = not self.teaching and self.n_compositions <= 4096 and max(map(len, self._teaching)) <= self.n_context
        return {"teaching sequence": replace(self, teaching=True)} if fits else {}

    # ---- what functions say ------------------------------------------------------------------------------------------
    @cached_property
    def _members(self) -> Tensor:
        """(functions, parts) float: whether a function has a part."""
        return self._indicators(self._functions)

    def _indicators(self, functions: list[tuple[int, ...]]) -> Tensor:
        found = torch.zeros(len(functions), len(self._parts))
        for row, function in zip(found, functions, strict=True):
            row[list(function)] = 1
        return found

    def _tables(self, members: Tensor) -> Tensor:
        """(functions, 2^n_bits) bool: what functions of these parts say of every input."""
        return torch.cat([self.labels(chunk, self._every_input[None]) for chunk in members.split(256)])

    def labels(self, parts: Tensor, x: Tensor) -> Tensor:
        """What functions say of inputs.

        Args:
            parts: (..., parts), 1 where a function has the part, else 0.
            x: (..., n, n_bits) bool, with the same leading dimensions or dimensions of 1.

        Returns:
            (..., n) bool.
        """
        holds = torch.stack([torch.stack([x[..., i] == p for i, p in part], -1).all(-1) for part in self._parts], -1)
        own = parts.to(x.device).float()
        true = (holds.float() @ own[..., None])[..., 0]
        if self.kind == "conjunction":
            return true == own.sum(-1, keepdim=True)
        return true % 2 == 1 if self.kind == "parity" else true > 0

    @cached_property
    def _every_input(self) -> Tensor:
        """(2^n_bits, n_bits) bool."""
        return torch.tensor(list(product((False, True), repeat=self.n_bits)))

    @cached_property
    def _truth(self) -> Tensor:
        """(functions, 2^n_bits) bool: the truth tables, all different."""
        return self._tables(self._members)

    @cached_property
    def rate(self) -> float:
        """The share of true labels, over all functions and inputs."""
        return float(self._truth.double().mean())

    @property
    def label_weights(self) -> Tensor:
        """(2,) float64, what a false and a true label weigh in the score: both the same over all functions and inputs."""
        return torch.tensor([0.5 / (1 - self.rate), 0.5 / self.rate], dtype=torch.float64)

    @cached_property
    def _teaching(self) -> list[list[int]]:
        """Every function's teaching sequence, as numbers of inputs: the one that most of the others left disagree with,
        until none is left."""
        found = []
        for own, table in enumerate(self._truth):
            differs = self._truth != table
            left, chosen = torch.ones(len(differs), dtype=torch.bool), []
            left[own] = False
            while left.any():
                chosen.append(int(differs[left].sum(0).argmax()))
                left &= ~differs[:, chosen[-1]]
            found.append(chosen)
        return found

    @cached_property
    def _taught(self) -> tuple[Tensor, Tensor]:
        """Teaching sequences (functions, longest, n_bits) bool, and which of these places they use."""
        longest = max(map(len, self._teaching))
        require(
            longest <= self.n_context,
            f"BooleanFunctions: a teaching sequence has up to {longest} inputs; raise n_context={self.n_context} to as many",
        )
        x = torch.zeros(self.n_compositions, longest, self.n_bits, dtype=torch.bool)
        used = torch.zeros(self.n_compositions, longest, dtype=torch.bool)
        for i, chosen in enumerate(self._teaching):
            x[i, : len(chosen)], used[i, : len(chosen)] = self._every_input[chosen], True
        return x, used

    # ---- episodes ----------------------------------------------------------------------------------------------------
    def sample(self, n: int, split: str, rng: torch.Generator, compositions: Sequence[int] | None = None) -> Episodes:
        check_drawing(n, rng)
        chosen = torch.tensor(self.choose_compositions(split, compositions), device=rng.device)
        composition = chosen[torch.randint(len(chosen), (n,), generator=rng, device=rng.device)]
        x = torch.randint(2, (n, self.n_context + 1, self.n_bits), generator=rng, device=rng.device)
        parts = self._members.to(rng.device)[composition].long()
        return self._render(parts, x, composition)

    def render(self, codes: dict[str, Tensor], inputs: Tensor) -> Episodes:
        """These inputs (batch, n_context + 1, n_bits), of 0 and 1, labelled by those functions; exact.

        `composition` is -1 where the parts make no function of the family; it then has no teaching sequence.
        """
        return self._render(codes["parts"], inputs, self._numbers(codes["parts"]))

    def _numbers(self, parts: Tensor) -> Tensor:
        """(batch,) the function that has these parts, -1 where none of the family does."""
        table = {function: i for i, function in enumerate(self._functions)}
        named = [table.get(tuple(row.nonzero()[:, 0].tolist()), -1) for row in parts.cpu()]
        return torch.tensor(named, device=parts.device)

    def _render(self, parts: Tensor, inputs: Tensor, composition: Tensor) -> Episodes:
        x = inputs.bool()
        if self.teaching:
            taught, used = (table.to(x.device)[composition] for table in self._taught)
            used = used & (composition >= 0)[:, None]
            x = x.clone()
            x[:, : used.shape[1]] = torch.where(used[..., None], taught, x[:, : used.shape[1]])
        y = self.labels(parts, x)
        tokens = torch.zeros(len(x), self.n_context + 1, 2, self.d_in, device=x.device)
        tokens[:, :, 0, :-1] = 2.0 * x - 1
        tokens[:, :, 1, -1] = 2.0 * y - 1
        nuisances = {"bits of the question": x[:, -1].double().mean(-1), "labels shown": y[:, :-1].double().mean(-1)}
        return Episodes(
            tokens.flatten(1, 2)[:, : self.seq], y.long().repeat_interleave(2, dim=1)[:, : self.seq],
            {"parts": parts}, composition, inputs, nuisances,
        )  # fmt: skip

    def candidates(self, episodes: Episodes, allowed: Sequence[int]) -> tuple[Tensor, Tensor]:
        x = episodes.tokens[:, ::2, :-1] > 0
        said = self.labels(self._members.to(x.device)[list(allowed)][None], x[:, None])
        wrong = (said != (episodes.targets[:, None, ::2] == 1))[..., :-1].sum(-1).double()
        answers = torch.stack([~said, said], -1).float().repeat_interleave(2, dim=2)[:, :, : self.seq]
        return 50.0 * answers, wrong

    def strata(self, episodes: Episodes) -> dict[str, Tensor]:
        """Whether the question is one of the examples, whose label can then be copied."""
        x = episodes.tokens[:, ::2, :-1]
        shown = (x[:, :-1] == x[:, -1:]).all(-1).any(1)
        return {"question shown": shown, "question not shown": ~shown}

    def labelled(self, episodes: Episodes) -> Labelled:
        at = torch.arange(0, self.seq, 2, device=episodes.tokens.device)
        return Labelled(episodes.tokens[:, ::2, :-1], at, at[:-1] + 1)

    def repeated(self, episodes: Episodes, times: int) -> Episodes:
        """The first n_context // times inputs, so often; the question stays."""
        shown = self.n_context // times
        require(
            shown >= 1 and times >= 2, f"{self.n_context} inputs cannot be shown {times} times; choose 2 to {self.n_context}"
        )
        inputs = episodes.inputs.clone()
        inputs[:, : shown * times] = inputs[:, :shown].repeat(1, times, 1)
        return replace(self, teaching=False).render(episodes.codes, inputs)

    # ---- factors -----------------------------------------------------------------------------------------------------
    def factors(self, codes: dict[str, Tensor]) -> dict[str, Tensor]:
        """For every part, whether the function has it."""
        return {self._part_name(p): codes["parts"][:, p : p + 1].float() for p in range(len(self._parts))}

    def exchange(
        self, base: dict[str, Tensor], source: dict[str, Tensor], rng: torch.Generator
    ) -> tuple[dict[str, Tensor], Tensor]:
        """One part of the base makes room for one of the source's: its own negation, where the base has that."""
        ours, theirs = base["parts"].bool(), source["parts"].bool()
        given = one_of(theirs & ~ours, rng)
        free = ours & ~theirs
        if self.kind in ("conjunction", "disjunction"):  # parts 2i and 2i + 1 negate each other
            negation = given.unflatten(1, (-1, 2)).flip(2).flatten(1) & ours
            free = torch.where(negation.any(1, keepdim=True), negation, free)
        taken = one_of(free, rng)
        possible = ((ours & ~theirs).sum(1) > 1) & given.any(1) & taken.any(1)  # else the result is the source's own function
        mask = (taken | given) & possible[:, None]
        if self.kind == "dnf":  # of which some functions can be written in two ways
            found, *others = (self._numbers(parts) for parts in (torch.where(mask, theirs, ours), ours, theirs))
            mask &= ((found >= 0) & (found != others[0]) & (found != others[1]))[:, None]
        return {"parts": torch.where(mask, theirs, ours).long()}, mask

    # ---- loss and score ----------------------------------------------------------------------------------------------
    def loss(self, prediction: Tensor, targets: Tensor) -> Tensor:
        """Cross-entropy of the label of every input."""
        return cross_entropy(prediction[:, ::2].flatten(0, 1), targets[:, ::2].flatten())

    def errors(self, prediction: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Whether the label of highest logit is wrong; a true label weighs 1 / (2 rate), a false one 1 / (2 - 2 rate)."""
        right = targets[:, -1]
        weight = self.label_weights.to(right.device)[right]
        return (answered(prediction[:, -1]) != right).double() * weight, weight

    def metrics(self, prediction: Tensor, targets: Tensor) -> dict[str, tuple[Tensor, Tensor]]:
        wrong = (answered(prediction[:, -1]) != targets[:, -1]).double()
        return {"score": self.errors(prediction, targets), "accuracy": (wrong, torch.ones_like(wrong))}

    # ---- for readers -------------------------------------------------------------------------------------------------
    def sheets(self, episodes: Episodes, prediction: Tensor) -> list[Sheet]:
        """The function; the question with target and answer; the labelled inputs."""
        parts = [self._part_name(int(p)) for p in episodes.codes["parts"][0].nonzero()[:, 0]]
        columns = tuple(f"x{i + 1}" for i in range(self.n_bits))
        x = (episodes.tokens[0, ::2, :-1] > 0).long().tolist()
        y = episodes.targets[0, ::2].tolist()
        shown = [tuple(map(str, [*row, label])) for row, label in zip(x, y, strict=True)]
        asked = (*shown[-1], str(int(prediction[0, -1].argmax())))
        return [
            Sheet("function", (), ((KINDS[self.kind].join(parts),),)),
            Sheet("question", (*columns, "target", "answer"), (asked,)),
            Sheet("examples", (*columns, "label"), tuple(shown[:-1])),
        ]

    def readouts(self, episodes: Episodes) -> Readouts:
        """Whether the function has each part, read from the question, which alone comes after all examples."""
        found = super().readouts(episodes)

        def last(values: dict[str, Tensor]) -> dict[str, Tensor]:
            return {name: value[:, -1:] for name, value in values.items()}

        return Readouts(last(found.pairs), last(found.labels), found.classes, last(found.confounds), last(found.inputs))

    def raw_statistic(self, episodes: Episodes) -> Tensor:
        """Moments of the examples: the mean label, inputs, products of two bits, and all of these times the label.

        (batch, 1 + 2 n_bits + n_bits (n_bits - 1)), float64.
        """
        x, y = episodes.tokens[:, :-1:2, :-1].double(), episodes.tokens[:, 1::2, -1:].double()
        first, second = torch.triu_indices(self.n_bits, self.n_bits, offset=1, device=x.device)
        features = torch.cat([x, x[..., first] * x[..., second]], dim=-1)
        return torch.cat([y.mean(1), features.mean(1), (features * y).mean(1)], dim=1)
