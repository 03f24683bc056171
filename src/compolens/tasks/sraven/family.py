"""S-RAVEN: symbolic Raven matrices, in-context reasoning whose task is a multiset of rules (2406.05816, sec. 4).

A 3 x 3 grid of panels, K features each, with values in {0, ..., F-1}. Every feature follows a rule along the rows: in each
row, the rule says how its three values hang together. The last panel is asked for; which rules apply has to be inferred from
the first two rows, and, because the features of every column are shuffled (in the same way in all rows), so has which
feature belongs to which:

    panel 0 [f0 f1 ... fK-1]   panel 1 [...]   panel 2 [...]      row 0 \\ examples
    panel 3 [...]              panel 4 [...]   panel 5 [...]      row 1 /
    panel 6 [...]              panel 7 [...]   panel 8 [? ? ? ?]  row 2   the question

    token K * panel + feature, a one-hot of F entries; the K tokens of panel 8 are zero, and their values are the answer

A composition is a multiset of K rules. Held-out multisets consist of rules that training shows in other company. Rules,
order of the multisets and the convention of the permutations are those of the public reference code.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import combinations, permutations
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, embedding, one_hot, pad

from compolens.foundation.configs import ConfigError, frozen, nearest, require, require_positive
from compolens.tasks.base import TaskFamily, require_few
from compolens.tasks.episodes import Episodes, Readouts, Sheet, answered, check_drawing, one_of
from compolens.tasks.sraven.explanations import Explained, explained
from compolens.tasks.sraven.posterior import Posterior, posterior
from compolens.tasks.sraven.rules import (
    ADDITION,
    DISTRIBUTE,
    LETTERS,
    MOST_VALUES,
    RULES,
    STEPS,
    SUBTRACTION,
    Multiset,
    multisets,
)


@dataclass(frozen=True)
class SRaven(TaskFamily):
    """The family; the module says what an episode looks like.

    Codes: "rules" (batch, K), in what is drawn ascending, after an exchange in the order of the base's features, whose inputs
    stay theirs; "permutations" (batch, 3, K), column c shows at position j the feature
    permutations[c][j], so that panel[r, c][j] = unshuffled[r, c][permutations[c][j]]; "response_rules" (batch, K), the rule
    of every answer. `targets` holds the value of every token, the answers' included.

    >>> task = SRaven(n_features=2)
    >>> episodes = task.sample(5, "ood", task.rng(0, "ood"))
    >>> episodes.tokens.shape, len(task.compositions("train")), len(task.compositions("ood"))
    (torch.Size([5, 18, 8]), 27, 9)

    Args:
        n_features: K, features of a panel.
        n_values: F, values of a feature; from 2 to 64, at least 3 with the rule of three different values.
        rules: which of the eight rules there are, in the order of `RULES`.
        fraction_held_out: of the multisets of K rules, drawn with `split_seed`.
        held_out: the held-out multisets themselves instead, as ascending lists of indices into `rules`.
        permuted: whether the features of each column are shuffled.
        allow_unseen_rules: whether a rule may be missing from training.
        split_seed: draws which multisets are held out.
    """

    n_features: int = 4
    n_values: int = 8
    rules: tuple[str, ...] = RULES
    fraction_held_out: float = 0.25
    held_out: tuple[Multiset, ...] | None = None
    permuted: bool = True
    allow_unseen_rules: bool = False
    split_seed: int = 0

    code_kinds: ClassVar[dict[str, str]] = {
        "rules": "categorical",
        "permutations": "categorical",
        "response_rules": "categorical",
    }
    score_name: ClassVar[str] = "panel accuracy"
    ceiling: ClassVar[str] = "Bayes, whole panel"

    def __post_init__(self) -> None:
        super().__post_init__()
        require_positive(self, "n_features", "n_values")
        require(2 <= self.n_values <= MOST_VALUES, f"n_values must be from 2 to {MOST_VALUES}, got {self.n_values}")
        object.__setattr__(self, "rules", frozen(self.rules))
        object.__setattr__(self, "held_out", frozen(self.held_out))
        for rule in self.rules:
            require(rule in RULES, f"no rule {rule!r}; {nearest(str(rule), RULES)}")
        ordered = tuple(rule for rule in RULES if rule in self.rules)
        require(
            len(self.rules) > 0 and self.rules == ordered,
            f"rules must be listed once each and in their own order, got {list(self.rules)}; write {list(ordered or RULES)}",
        )
        require(
            self.n_values >= 3 or DISTRIBUTE not in self.rules,
            f"{DISTRIBUTE!r} needs three different values, but n_values={self.n_values}; "
            "raise it to 3 or leave the rule out of rules",
        )
        many = math.comb(len(self.rules) + self.n_features - 1, self.n_features)
        require_few(type(self).__name__, [many], f"lower n_features={self.n_features}")
        unseen = [self.rules[r] for r, uses in enumerate(self._uses(self._split[0])) if not uses]
        require(
            not unseen or self.allow_unseen_rules,
            f"the split leaves {', '.join(unseen)} unseen in training, so nothing could generalize to it; "
            "hold out fewer multisets with it, or say allow_unseen_rules=True",
        )

    # ---- the split ---------------------------------------------------------------------------------------------------
    @cached_property
    def _universe(self) -> list[Multiset]:
        return multisets(len(self.rules), self.n_features)

    def _uses(self, chosen: Sequence[Multiset]) -> list[int]:
        """In how many of the multisets each rule occurs."""
        return [sum(rule in multiset for multiset in chosen) for rule in range(len(self.rules))]

    @cached_property
    def _split(self) -> tuple[list[Multiset], list[Multiset]]:
        if self.held_out is None:
            return self._random_split()
        held_out = sorted(self._check_multisets(self.held_out))
        train = [multiset for multiset in self._universe if multiset not in set(held_out)]
        require(bool(held_out), "held_out lists no multiset; list some, or leave it out to hold out a fraction")
        require(bool(train), f"held_out lists all {len(self._universe)} multisets, so nothing is left to train on; list fewer")
        return train, held_out

    def _check_multisets(self, listed: tuple[Multiset, ...]) -> list[Multiset]:
        result: list[Multiset] = []
        rules = len(self.rules)
        for multiset in listed:
            require(
                isinstance(multiset, tuple)
                and len(multiset) == self.n_features
                and all(isinstance(rule, int) and not isinstance(rule, bool) for rule in multiset),
                f"held_out must list multisets of n_features={self.n_features} rule numbers, such as "
                f"{[0] * self.n_features}, got the entry {multiset!r}",
            )
            for rule in multiset:
                require(
                    0 <= rule < rules,
                    f"held_out names rule {rule} in {list(multiset)}, but there are only rules 0 to {rules - 1}",
                )
            clean = tuple(sorted(multiset))
            require(clean not in result, f"held_out lists the multiset {list(clean)} twice; list it once")
            result.append(clean)
        return result

    def _random_split(self) -> tuple[list[Multiset], list[Multiset]]:
        """A random part is held out, drawn again (up to 1,000 times) until every rule occurs in training."""
        fraction, everything = self.fraction_held_out, self._universe
        require(0 < fraction < 1, f"fraction_held_out must lie between 0 and 1, got {fraction}")
        n_held_out = int(fraction * len(everything))
        require(
            n_held_out >= 1,
            f"fraction_held_out={fraction} of {len(everything)} multisets holds out none; raise it, or list them as held_out",
        )
        shuffler = random.Random(self.split_seed)
        for _ in range(1000):
            order = shuffler.sample(everything, len(everything))
            train = sorted(order[n_held_out:])
            if all(self._uses(train)) or self.allow_unseen_rules:
                return train, sorted(order[:n_held_out])
        raise ConfigError(
            f"with fraction_held_out={fraction} no split in 1,000 draws shows all {len(self.rules)} rules in training; "
            "hold out less, or say allow_unseen_rules=True"
        )

    @cached_property
    def _compositions(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        index = {multiset: i for i, multiset in enumerate(self._universe)}
        train, held_out = self._split
        return tuple(index[m] for m in train), tuple(index[m] for m in held_out)

    def compositions(self, split: str) -> tuple[int, ...]:
        """Indices into all multisets of K rules, in lexicographic order."""
        self.check_split(split)
        return self._compositions[split == "ood"]

    def composition_name(self, composition: int) -> str:
        """The rules' letters, A to H in the order of `RULES`."""
        return "+".join(LETTERS[RULES.index(self.rules[rule])] for rule in self._universe[composition])

    def describe_split(self) -> dict[str, Any]:
        train, held_out = self._split
        return {
            "n_multisets": len(self._universe),
            "rules": list(self.rules),
            "held_out": [list(multiset) for multiset in held_out],
            "unseen_rules": [rule for rule, uses in zip(self.rules, self._uses(train), strict=True) if not uses],
            "uses_per_rule": self._uses(train),
            "uses_per_rule_held_out": self._uses(held_out),
        }

    # ---- shape -------------------------------------------------------------------------------------------------------
    @property
    def setting(self) -> str:
        return f"{type(self).__name__} {self.n_features} features"

    @property
    def d_in(self) -> int:
        return self.n_values

    @property
    def d_out(self) -> int:
        return self.n_values

    @property
    def seq(self) -> int:
        return 9 * self.n_features

    @property
    def answers(self) -> tuple[int, ...]:
        return tuple(range(8 * self.n_features, self.seq))

    @property
    def blocks(self) -> tuple[tuple[int, ...], ...]:
        """The rows of the grid: two examples, then the question."""
        row = 3 * self.n_features
        return tuple(tuple(range(r * row, (r + 1) * row)) for r in range(3))

    @property
    def variants(self) -> dict[str, TaskFamily]:
        """The same episodes with nothing shuffled: rules sit in ascending order."""
        return {"unpermuted": replace(self, permuted=False)} if self.permuted else {}

    # ---- tables ------------------------------------------------------------------------------------------------------
    @cached_property
    def _tables(self) -> dict[tuple[str, torch.device], Tensor]:
        return {}

    def _table(self, name: str, device: torch.device, make: Callable[[], Tensor]) -> Tensor:
        """A constant tensor, made once per device."""
        key = (name, device)
        if key not in self._tables:
            self._tables[key] = make().to(device)
        return self._tables[key]

    def _rows(self) -> dict[str, list[tuple[int, ...]]]:
        """Every row that a rule can show; for `DISTRIBUTE`, the six orders of each set of three follow one another."""
        m = self.n_values
        rows: dict[str, list[tuple[int, ...]]] = {}
        for rule, step in STEPS.items():
            rows[rule] = [(v, (v + step) % m, (v + 2 * step) % m) for v in range(m)]
        for rule, sign in ((ADDITION, 1), (SUBTRACTION, -1)):
            rows[rule] = [(x, y, (x + sign * y) % m) for x in range(m) for y in range(m)]
        rows[DISTRIBUTE] = [order for three in combinations(range(m), 3) for order in permutations(three)]
        return {rule: rows[rule] for rule in self.rules}

    def _make_rows(self) -> Tensor:
        """(all rows of all rules, 3)."""
        return torch.tensor([row for rows in self._rows().values() for row in rows])

    def _make_draws(self) -> Tensor:
        """(rules, 5): among how many rows of the rule each of the three rows is drawn, among how many sets the episode, and
        where the rule's rows begin."""
        begin, draws = 0, []
        for rule, rows in self._rows().items():
            sets, orders = (len(rows) // 6, 6) if rule == DISTRIBUTE else (1, len(rows))
            draws.append([orders, orders, orders, sets, begin])
            begin += len(rows)
        return torch.tensor(draws, dtype=torch.float32)

    def _make_one_hot(self) -> Tensor:
        """(F, F)."""
        return torch.eye(self.n_values)

    def _make_rank(self) -> Tensor:
        """(K, rules): what the i-th smallest rule takes off the rank of a multiset, counted from the last."""
        k, n = self.n_features, len(self.rules)
        return torch.tensor([[math.comb(n + k - 2 - rule - i, k - i) for rule in range(n)] for i in range(k)])

    # ---- episodes ----------------------------------------------------------------------------------------------------
    def sample(self, n: int, split: str, rng: torch.Generator, compositions: Sequence[int] | None = None) -> Episodes:
        check_drawing(n, rng)
        device, k = rng.device, self.n_features

        def chosen_rows() -> Tensor:
            return torch.tensor(self.choose_compositions(split, compositions))

        chosen = (
            self._table(f"compositions {split}", device, chosen_rows) if compositions is None else chosen_rows().to(device)
        )
        # uniforms are multiples of 2^-24 below 1, so that floor(u * m) < m in single precision, too
        u = torch.rand(n, 1 + 7 * k, generator=rng, device=device)
        composition = chosen[(u[:, 0] * len(chosen)).long()]
        rules = embedding(composition, self._table("multisets", device, lambda: torch.tensor(self._universe)))
        if self.permuted:
            orders = u[:, 1 : 1 + 3 * k].unflatten(1, (3, k)).argsort(-1)
        else:
            orders = self._table("identity", device, lambda: torch.arange(k)).expand(n, 3, k)
        return self._render(rules, orders, u[:, 1 + 3 * k :].unflatten(1, (k, 4)), composition)

    def render(self, codes: dict[str, Tensor], inputs: Tensor) -> Episodes:
        """These inputs under those codes, of which "rules" and "permutations" are read.

        inputs (batch, K, 4): uniforms by unshuffled feature; the first three choose, row by row, among the rows that the rule
        can show; the last chooses the symbols of `DISTRIBUTE`. A row's first value is the same under all other rules.
        """
        rules, k = codes["rules"], self.n_features
        rank = self._table("rank", rules.device, self._make_rank)
        ascending = rules.sort(dim=1).values
        taken = rank[torch.arange(k, device=rules.device), ascending].sum(1)
        return self._render(rules, codes["permutations"], inputs, len(self._universe) - 1 - taken)

    def _render(self, rules: Tensor, orders: Tensor, inputs: Tensor, composition: Tensor) -> Episodes:
        n, k, device = len(rules), self.n_features, rules.device
        draws = embedding(rules, self._table("draws", device, self._make_draws))
        drawn = (inputs * draws[..., :4]).floor_()
        # a row is number 6 * set + order of its rule's; only `DISTRIBUTE` has more than one set
        row = (drawn[..., :3] + draws[..., 4:]).add_(drawn[..., 3:], alpha=6).long()
        values = embedding(row, self._table("rows", device, self._make_rows))  # n, k, row, column
        targets = values.permute(0, 2, 3, 1).gather(3, orders[:, None].expand(n, 3, 3, k)).view(n, self.seq)
        tokens = embedding(targets, self._table("one-hot", device, self._make_one_hot))
        tokens[:, 8 * k :] = 0
        last_row = targets[:, 6 * k :].to(tokens.dtype).view(n, 3, k).mean(2)
        codes = {"rules": rules, "permutations": orders, "response_rules": rules.gather(1, orders[:, 2])}
        nuisances = {"operand_magnitude": last_row[:, 0] + last_row[:, 1], "target_value": last_row[:, 2]}
        return Episodes(tokens, targets, codes, composition, inputs, nuisances)

    # ---- factors -----------------------------------------------------------------------------------------------------
    def factors(self, codes: dict[str, Tensor]) -> dict[str, Tensor]:
        """The rule at work in every answer, one-hot."""
        rules = one_hot(codes["response_rules"], len(self.rules)).float()
        return {f"rule of answer {j + 1}": rules[:, j] for j in range(self.n_features)}

    def categories(self, codes: dict[str, Tensor]) -> dict[str, Tensor]:
        """The rule of every answer, read where it is given."""
        return {"rule": codes["response_rules"]}

    def exchange(
        self, base: dict[str, Tensor], source: dict[str, Tensor], rng: torch.Generator
    ) -> tuple[dict[str, Tensor], Tensor]:
        """One answer follows the rule that it follows in the source; shuffles stay the base's. Of unshuffled features, only
        what leaves the rules in ascending order is exchanged."""
        ours, theirs = base["response_rules"], source["response_rules"]
        mask = one_of(ours != theirs, rng)
        response = torch.where(mask, theirs, ours)
        rules = base["rules"].scatter(1, base["permutations"][:, 2], response)
        other = (rules.sort(1).values != source["rules"].sort(1).values).any(1)
        other &= (rules.sort(1).values != base["rules"].sort(1).values).any(1)
        if not self.permuted:
            other &= (rules == rules.sort(1).values).all(1)
        return base | {"rules": rules, "response_rules": response}, mask & other[:, None]

    def revealed(self, episodes: Episodes) -> Tensor:
        return embedding(episodes.targets, self._table("one-hot", episodes.targets.device, self._make_one_hot))

    # ---- loss and score ----------------------------------------------------------------------------------------------
    def _at_answers(self, prediction: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        first = 8 * self.n_features
        return prediction[:, first:], targets[:, first:]

    def loss(self, prediction: Tensor, targets: Tensor) -> Tensor:
        """Cross-entropy in nats, mean over the answers."""
        logits, wanted = self._at_answers(prediction, targets)
        return cross_entropy(logits.flatten(0, 1), wanted.flatten())

    def _wrong(self, prediction: Tensor, targets: Tensor) -> Tensor:
        logits, wanted = self._at_answers(prediction, targets)
        return answered(logits) != wanted

    def errors(self, prediction: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Panel accuracy: an episode is right if all its answers are."""
        wrong = self._wrong(prediction, targets).any(1).double()
        return wrong, torch.ones_like(wrong)

    def metrics(self, prediction: Tensor, targets: Tensor) -> dict[str, tuple[Tensor, Tensor]]:
        """The score; accuracy per feature; the share of the uniform guess's cross-entropy, ln F, that is saved."""
        logits, wanted = self._at_answers(prediction, targets)
        feature = self._wrong(prediction, targets).double().mean(1)
        nats = cross_entropy(logits.double().transpose(1, 2), wanted, reduction="none").mean(1)
        return {
            "score": self.errors(prediction, targets),
            "feature accuracy": (feature, torch.ones_like(feature)),
            "cross-entropy saved": (nats, torch.full_like(nats, math.log(self.n_values))),
        }

    # ---- for readers -------------------------------------------------------------------------------------------------
    def sheets(self, episodes: Episodes, prediction: Tensor) -> list[Sheet]:
        """The grid of panels, the last one withheld; its values beside the answers, with the rule of each."""
        k = self.n_features
        panels = [" ".join(map(str, panel)) for panel in episodes.targets[0].view(9, k).tolist()]
        panels[8] = " ".join("?" * k)
        grid = tuple(tuple(panels[row : row + 3]) for row in (0, 3, 6))
        answers = prediction[0, 8 * k :].argmax(-1).tolist()
        rules = [self.rules[int(rule)] for rule in episodes.codes["response_rules"][0]]
        asked = zip(rules, episodes.targets[0, 8 * k :].tolist(), answers, strict=True)
        rows = tuple(
            (str(j + 1), rule, str(target), str(answer), "" if target == answer else "wrong")
            for j, (rule, target, answer) in enumerate(asked)
        )
        return [Sheet("panels", (), grid), Sheet("last panel", ("feature", "rule", "target", "answer", ""), rows)]

    # ---- what can be known -------------------------------------------------------------------------------------------
    def posterior(self, episodes: Episodes, known: str | None = None) -> Posterior:
        """What the shown panels say about the answers, exactly.

        Args:
            episodes: a batch of episodes.
            known: the prior is uniform over the multisets of this split, for a learner who knows the split (None: over all
                multisets).

        Returns:
            The posterior, on the CPU.
        """
        if known is not None:
            self.check_split(known)
        return _posterior(self, known, self._shown(episodes))

    def explained(self, episodes: Episodes, known: str) -> Explained:
        """How well each multiset of a split explains the shown panels, slips allowed, and what they say.

        Args:
            episodes: a batch of episodes, which none of these multisets need have made.
            known: the split.

        Returns:
            What they say, on the CPU.
        """
        self.check_split(known)
        return _explained(self, known, self._shown(episodes))

    def _shown(self, episodes: Episodes) -> bytes:
        return episodes.targets[:, : 8 * self.n_features].to("cpu", torch.int32).numpy().tobytes()

    def context_asked(self, episodes: Episodes) -> tuple[Tensor, Tensor]:
        """Each example row again as the last one, its third panel withheld."""
        row, tokens, targets = 3 * self.n_features, [], []
        for first in (0, row):
            panels = episodes.targets.clone()
            panels[:, 2 * row :] = episodes.targets[:, first : first + row]
            shown = embedding(panels, self._table("one-hot", panels.device, self._make_one_hot))
            shown[:, 8 * self.n_features :] = 0
            tokens.append(shown.to(episodes.tokens.dtype))
            targets.append(panels)
        return torch.stack(tokens, 1), torch.stack(targets, 1)

    def strata(self, episodes: Episodes) -> dict[str, Tensor]:
        """Episodes whose panels leave a single answer possible, under some multiset, held out or not."""
        return {"unambiguous": ~self.posterior(episodes).ambiguous.to(episodes.targets.device)}

    # ---- readouts ----------------------------------------------------------------------------------------------------
    def readouts(self, episodes: Episodes) -> Readouts:
        """At each answer: attention to itself and to its row mates, the two values of its feature in the last row."""
        n, k, orders, device = len(episodes.targets), self.n_features, episodes.codes["permutations"], episodes.targets.device
        query = torch.arange(8 * k, 9 * k, device=device).expand(n, k)
        # position in column c of the feature that is asked for at j: where permutations[c] equals permutations[2][j]
        mates = torch.stack([(6 + c) * k + orders[:, c].argsort(1).gather(1, orders[:, 2]) for c in (0, 1)], dim=2)
        own = torch.stack([query, query], dim=-1)[:, :, None]
        to_mates = torch.stack([query[..., None].expand_as(mates), mates], dim=-1)
        operands = episodes.targets[:, None].expand(n, k, self.seq).gather(2, mates)
        first, second = one_hot(operands, self.n_values).to(episodes.tokens.dtype).unbind(2)
        raw = torch.cat([first, second], dim=-1)
        products = (first[..., :, None] * second[..., None, :]).flatten(2)
        context = episodes.tokens.flatten(1)[:, None].expand(n, k, -1)
        where = torch.eye(k, dtype=context.dtype, device=device).expand(n, k, k)
        return Readouts(
            pairs={"self": own, "row mates": to_mates},
            labels={"rule": episodes.codes["response_rules"]},
            classes={"rule": self.rules},
            confounds={
                "operand magnitude": operands.sum(2).to(context.dtype),
                "target value": episodes.targets[:, 8 * k :].to(context.dtype),
            },
            inputs={
                "raw input": raw,
                "raw input, products": torch.cat([raw, products], dim=-1),
                "raw context": torch.cat([context, where], dim=-1),
            },
        )


@lru_cache(maxsize=4)
def _posterior(task: SRaven, known: str | None, shown: bytes) -> Posterior:
    """The same panels are asked for by strata and by each reference; the answers are not even handed over."""
    prior = torch.ones(len(task._universe), dtype=torch.float64)
    if known is not None:
        prior = torch.zeros_like(prior)
        prior[list(task.compositions(known))] = 1
    return posterior(_panels(task, shown), task.n_values, task.rules, task.permuted, prior / prior.sum())


@lru_cache(maxsize=4)
def _explained(task: SRaven, known: str, shown: bytes) -> Explained:
    """The same panels are asked for by each reference."""
    allowed = torch.tensor(task.compositions(known))
    return explained(_panels(task, shown), task.n_values, task.rules, task.permuted, allowed)


def _panels(task: SRaven, shown: bytes) -> Tensor:
    """(batch, 3, 3, K), the last panel empty."""
    k = task.n_features
    context = torch.from_numpy(np.frombuffer(shown, dtype=np.int32).reshape(-1, 8 * k).astype(np.int64))
    return pad(context, (0, k)).view(-1, 3, 3, k)
