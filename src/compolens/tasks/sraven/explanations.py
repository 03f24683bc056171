"""How well each multiset of rules explains the shown panels of S-RAVEN, slips allowed, and the answers it then says.

A learner that holds some multisets only meets panels that none of them can have made. It takes rows for slips: with the
probability `SLIP`, what a row of a feature shows is noise, values drawn uniformly; the answer follows the rule from what is
shown. Then every multiset explains every episode more or less well, and the best of those allowed is what a memory of them
answers by. (The mean over them would be none: each feature's rule is in some of them, so that the likeliest answers of single
features recombine.)

An option says for an answer position j which positions of columns 0 and 1 belong to it, and by which rule. Its weight is the
likelihood ratio of the eight values against uniform ones. The evidence of a multiset is the sum over all pairs of bijections
and all orders of its rules of the product of these weights. It is found position by position, as in `posterior`; its
derivative by the weights is the posterior of the options.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from compolens.tasks.sraven.rules import ADDITION, DISTRIBUTE, STEPS, multisets

SLIP = 1e-6
"""Probability that a row is noise: the fewest slips decide, and the likelihood among equals."""
MOST_FEATURES = 5
"""Steps of the sum grow with the factorial of the features: 66,000 an episode with four of them, 700,000 with five."""
ENTRIES = 1 << 21
"""Numbers of the largest intermediate tensor (16 MB)."""


class Explained(NamedTuple):
    """What the allowed multisets say; float64, on the CPU.

    Args:
        evidence: (batch, allowed) log evidence of each, up to a constant of the episode; the prior is uniform.
        best: (batch, K, F) the posterior of each answer under the multiset of highest evidence.
    """

    evidence: Tensor
    best: Tensor


def explained(panels: Tensor, n_values: int, rules: tuple[str, ...], permuted: bool, allowed: Tensor) -> Explained:
    """Evidence and answers.

    Args:
        panels: (batch, 3, 3, K) values, of which the last panel is ignored; K at most `MOST_FEATURES`.
        n_values: F, values of a feature.
        rules: names of the rules, in the order of `RULES`.
        permuted: whether the features of each column were shuffled; if not, position j follows the j-th rule of the ascending
            multiset.
        allowed: numbers of multisets, in the order of `multisets(len(rules), K)`.

    Returns:
        What they say.
    """
    k = panels.shape[-1]
    most = max(len(step.option) for step in _steps(k, len(rules)))
    size = max(1, ENTRIES // max(most, k**3 * len(rules) * n_values))
    parts = [_explained(part, n_values, rules, permuted, allowed.cpu()) for part in panels.cpu().long().split(size)]
    return Explained(*(torch.cat(part) for part in zip(*parts, strict=True)))


def _explained(panels: Tensor, n_values: int, rules: tuple[str, ...], permuted: bool, allowed: Tensor) -> Explained:
    joint = option_weights(panels, n_values, rules)
    weights = joint.sum(-1).requires_grad_(True)
    with torch.enable_grad():
        evidence = _evidence(weights, panels.shape[-1], len(rules), permuted)[:, allowed].log()
        slope = torch.autograd.grad(evidence.max(1).values.sum(), weights)[0]
    return Explained(evidence.detach(), torch.einsum("njabr,njabrv->njv", slope, joint))


def option_weights(panels: Tensor, n_values: int, rules: tuple[str, ...]) -> Tensor:
    """Likelihood ratios of all options, with the answer.

    Args:
        panels: (batch, 3, 3, K) values, of which the last panel is ignored.
        n_values: F, values of a feature.
        rules: names of the rules.

    Returns:
        (batch, answer, position in column 0, position in column 1, rule, value), float64: how much likelier the eight values
        and this answer are under the rule than eight uniform values.
    """
    f, keep = n_values, 1 - SLIP
    c0 = [panels[:, row, 0][:, None, :, None] for row in range(3)]
    c1 = [panels[:, row, 1][:, None, None, :] for row in range(3)]
    c2 = [panels[:, row, 2][:, :, None, None] for row in range(2)]
    shape = (len(panels), *[panels.shape[-1]] * 3)
    found = []
    for rule in rules:
        if rule == DISTRIBUTE:
            found.append(_distribute(c0, c1, c2, f, shape))
            continue
        if rule in STEPS:
            step = STEPS[rule]
            rows = [((b - a - step) % f == 0) & ((c - b - step) % f == 0) for a, b, c in zip(c0[:2], c1[:2], c2, strict=True)]
            gain, last = f**2, keep * f * ((c1[2] - c0[2] - step) % f == 0).double() + SLIP
            answer = (c1[2] + step) % f
        else:
            sign = 1 if rule == ADDITION else -1
            rows = [(a + sign * b - c) % f == 0 for a, b, c in zip(c0[:2], c1[:2], c2, strict=True)]
            gain, last = f, torch.ones(1, 1, 1, 1, dtype=torch.float64)
            answer = (c0[2] + sign * c1[2]) % f
        example = math.prod((keep * gain * row.double() + SLIP for row in rows), start=torch.ones(shape, dtype=torch.float64))
        found.append((example * last)[..., None] * one_hot(answer.expand(shape), f))
    return torch.stack(found, dim=4)


def _distribute(c0: list[Tensor], c1: list[Tensor], c2: list[Tensor], f: int, shape: tuple[int, ...]) -> Tensor:
    """Summed over the sets of three symbols: only those of rows 0 and 1 stand out."""
    gain, last = (1 - SLIP) * f**3 / 6, (1 - SLIP) * f**2 / 6

    def hot(values: Tensor) -> Tensor:
        return one_hot(values.expand(shape), f).double()

    held = [hot(a) + hot(b) + hot(c) for a, b, c in zip(c0[:2], c1[:2], c2, strict=True)]
    distinct = [(symbols.max(-1).values == 1).double() for symbols in held]
    same = distinct[0] * (held[0] == held[1]).all(-1)
    shown = hot(c0[2]) + hot(c1[2])
    two = (shown.max(-1).values == 1).double()

    def says(symbols: Tensor) -> Tensor:
        """The last row under these three; of a slip, any of them that is not shown follows."""
        left = symbols - shown
        free, fits = left.clamp(min=0), two * (left.min(-1).values >= 0)
        return last * fits[..., None] * free + SLIP * free / free.sum(-1, keepdim=True)

    # a slip summed over all sets: by how many of its three are shown, one, two or three are left
    apart = 1 + (f - 3) + math.comb(f - 3, 2) / 3
    alike = (f - 2) / 2 + math.comb(f - 2, 2) / 3
    slips = (two * apart + (1 - two) * alike)[..., None] * (shown == 0)
    sets = math.comb(f, 3)
    total = SLIP**2 * (last * two[..., None] * (1 - shown) + SLIP * slips)
    for one, symbols in zip(distinct, held, strict=True):
        total = total + SLIP * gain * one[..., None] * says(symbols)
    return (total + gain**2 * same[..., None] * says(held[0])) / sets


# ---- the sum over bijections -------------------------------------------------------------------------------------------
class _Step(NamedTuple):
    """One answer position more: from each state, by each option whose positions are free, to a state."""

    source: Tensor
    option: Tensor
    target: Tensor
    states: int


@lru_cache(maxsize=8)
def _steps(k: int, n_rules: int) -> tuple[_Step, ...]:
    """States are (positions of column 0 used, of column 1, the multiset so far); those at the end are in the order of
    `multisets`."""
    states: dict[tuple, int] = {(0, 0, ()): 0}
    found = []
    for j in range(k):
        after: dict[tuple, int] = {}
        if j == k - 1:
            full = (1 << k) - 1
            after = {(full, full, multiset): i for i, multiset in enumerate(multisets(n_rules, k))}
        rows = []
        for (used_0, used_1, some), number in states.items():
            for a in (a for a in range(k) if not used_0 >> a & 1):
                for b in (b for b in range(k) if not used_1 >> b & 1):
                    for rule in range(n_rules):
                        key = (used_0 | 1 << a, used_1 | 1 << b, tuple(sorted((*some, rule))))
                        rows.append((number, (a * k + b) * n_rules + rule, after.setdefault(key, len(after))))
        source, option, target = torch.tensor(rows).T.contiguous()
        found.append(_Step(source, option, target, len(after)))
        states = after
    return tuple(found)


def _evidence(weights: Tensor, k: int, n_rules: int, permuted: bool) -> Tensor:
    """(batch, multisets), up to a factor of the family."""
    universe = multisets(n_rules, k)
    if not permuted:
        here = torch.stack([weights[:, j, j, j] for j in range(k)], 1)
        chosen = torch.tensor(universe)
        return torch.stack([here[:, j, chosen[:, j]] for j in range(k)]).prod(0)
    state = weights.new_ones(len(weights), 1)
    for j, step in enumerate(_steps(k, n_rules)):
        moved = state[:, step.source] * weights[:, j].flatten(1)[:, step.option]
        state = moved.new_zeros(len(weights), step.states).index_add(1, step.target, moved)
    orders = [math.factorial(k) // math.prod(math.factorial(m.count(r)) for r in set(m)) for m in universe]
    return state / torch.tensor(orders, dtype=state.dtype)
