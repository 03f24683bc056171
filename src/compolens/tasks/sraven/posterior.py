"""What the shown panels of S-RAVEN say about the answers: the exact posterior, by joining what each answer can come from.

Every answer position j comes from one position of column 0, one of column 1 and a rule. Such an option is consistent if the
rule fits the two example rows and what the last row shows; it then says the answer, for every rule. A hypothesis picks an
option for every j such that no position is used twice. Its probability depends on its multiset of rules alone:

    prior(multiset) * (orders of the multiset)^-1 * product of the likelihoods of its rules

where the likelihood of a rule is that of the eight values it explains. Hypotheses are enumerated position by position, and
those that agree in the positions used, the multiset and the answers so far are merged and counted.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from compolens.foundation.configs import ConfigError, require
from compolens.tasks.sraven.rules import ADDITION, DISTRIBUTE, STEPS, SUBTRACTION, multisets

CHUNK = 2048
"""Instances at a time; bounds the memory."""


class Posterior(NamedTuple):
    """What is known about the answers of a batch; probabilities in float64, on the CPU.

    Args:
        panel: (batch, K) the most probable answers.
        panel_probability: (batch,) their posterior mass.
        marginals: (batch, K, F) the posterior of each answer alone.
        n_answers: (batch,) how many answer tuples are possible.
    """

    panel: Tensor
    panel_probability: Tensor
    marginals: Tensor
    n_answers: Tensor

    @property
    def ambiguous(self) -> Tensor:
        """(batch,) bool: more than one answer tuple is possible."""
        return self.n_answers > 1


def posterior(
    panels: Tensor, n_values: int, rules: tuple[str, ...], permuted: bool = True, prior: Tensor | None = None
) -> Posterior:
    """The posterior given panels.

    Args:
        panels: (batch, 3, 3, K) values, of which the last panel is ignored.
        n_values: F, values of a feature.
        rules: names of the rules, in the order of `RULES`.
        permuted: whether the features of each column were shuffled; if not, position j follows the j-th rule of the ascending
            multiset.
        prior: over the multisets of `multisets(len(rules), K)`, need not be normalised (None: uniform).

    Returns:
        The posterior, on the CPU.

    Raises:
        ConfigError: answers and orders of so many features and values do not fit 64 bits.
    """
    shown, k = panels.cpu().numpy().astype(np.int64), panels.shape[-1]
    require(
        k * math.log2(n_values) < 62 and (k + 1) ** len(rules) < 2**62,
        f"the posterior counts answers in 64 bits; {k} features of {n_values} values are too many",
    )
    table = _Multisets(rules, k, n_values, permuted, prior)
    parts = [_chunk(shown[i : i + CHUNK], n_values, rules, permuted, table) for i in range(0, len(shown), CHUNK)]
    return Posterior(*(torch.from_numpy(np.concatenate(part)) for part in zip(*parts, strict=True)))


class _Multisets:
    """Multisets by code, sum over their rules of (K+1)^rule, and the log probability of a hypothesis with these rules."""

    def __init__(self, rules: tuple[str, ...], k: int, n_values: int, permuted: bool, prior: Tensor | None) -> None:
        chosen = np.array(multisets(len(rules), k))
        self.unit = (k + 1) ** np.arange(len(rules))
        counts = (chosen[:, :, None] == np.arange(len(rules))).sum(1)
        law = np.full(len(chosen), 1 / len(chosen)) if prior is None else prior.double().cpu().numpy()
        require(law.shape == (len(chosen),), f"prior must have {len(chosen)} entries, one per multiset, got {law.shape}")
        likelihood = np.array([_log_likelihood(rule, n_values) for rule in rules])
        with np.errstate(divide="ignore"):
            log = np.log(law) + counts @ likelihood
        if permuted:  # each of the orders of the multiset is equally likely
            factorials = np.array([math.lgamma(m + 1) for m in range(k + 1)])
            log += factorials[counts].sum(1) - factorials[k]
        codes = counts @ self.unit
        order = np.argsort(codes)
        self.codes, self.log = codes[order], log[order]

    def log_probability(self, codes: np.ndarray) -> np.ndarray:
        return self.log[np.searchsorted(self.codes, codes)]


def _log_likelihood(rule: str, n_values: int) -> float:
    """Of the eight values that a rule explains, given that it fits."""
    if rule == DISTRIBUTE:
        return -math.log(math.comb(n_values, 3) * 6**3)
    return -math.log(n_values) * (3 if rule in STEPS else 6)


class _Options(NamedTuple):
    """Consistent (position in column 0, position in column 1, rule) of every answer, sorted by row = instance * K + j."""

    row: np.ndarray
    column_0: np.ndarray
    column_1: np.ndarray
    rule: np.ndarray
    answer: np.ndarray


def _options(panels: np.ndarray, n_values: int, rules: tuple[str, ...], permuted: bool) -> _Options:
    n, k = len(panels), panels.shape[-1]
    # axes: instance, j, position in column 0, position in column 1
    c0 = [panels[:, row, 0][:, None, :, None] for row in range(3)]
    c1 = [panels[:, row, 1][:, None, None, :] for row in range(3)]
    c2 = [panels[:, row, 2][:, :, None, None] for row in range(2)]
    shape = (n, k, k, k)
    fits = np.zeros((*shape, len(rules)), dtype=bool)
    answers = np.zeros((*shape, len(rules)), dtype=np.int64)
    difference = [(b - a) % n_values for a, b in zip(c0, c1, strict=True)]
    for number, rule in enumerate(rules):
        if rule == DISTRIBUTE:
            ok, answer = _distribute(c0, c1, c2)
        elif rule in STEPS:
            step = STEPS[rule] % n_values
            in_step = (difference[0] == step) & (difference[1] == step) & (difference[2] == step)
            going_on = [(b + step) % n_values for b in c1]
            ok, answer = in_step & (going_on[0] == c2[0]) & (going_on[1] == c2[1]), going_on[2]
        else:
            sign = {ADDITION: 1, SUBTRACTION: -1}[rule]
            result = [(a + sign * b) % n_values for a, b in zip(c0, c1, strict=True)]
            ok, answer = (result[0] == c2[0]) & (result[1] == c2[1]), result[2]
        fits[..., number], answers[..., number] = ok, answer
    if not permuted:
        same = np.eye(k, dtype=bool)
        fits &= (same[:, :, None] & same[:, None, :])[..., None]
    instance, j, i0, i1, which = np.nonzero(fits)
    return _Options(instance * k + j, i0, i1, which, answers[instance, j, i0, i1, which])


def _distribute(c0: list[np.ndarray], c1: list[np.ndarray], c2: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Whether the three rows are orders of the same three distinct symbols, those of row 0; and the one missing in row 2."""
    a, b, c = c0[0], c1[0], c2[0]
    total, ok = a + b + c, (a != b) & (a != c) & (b != c)
    for p, q in zip(c0[1:], c1[1:], strict=True):
        ok = ok & (p != q) & ((p == a) | (p == b) | (p == c)) & ((q == a) | (q == b) | (q == c))
    ok = ok & (total - c0[1] - c1[1] == c2[1])
    return ok, total - c0[2] - c1[2]


class _States(NamedTuple):
    """Partial hypotheses, sorted by instance: positions used (bit masks), code of the rules, code of the answers, last rule;
    and in how many ways that comes about."""

    instance: np.ndarray
    used_0: np.ndarray
    used_1: np.ndarray
    rules: np.ndarray
    answers: np.ndarray
    last: np.ndarray
    ways: np.ndarray


def _merged(states: _States) -> _States:
    """States that agree in everything but in how many ways they come about are one."""
    columns: tuple[np.ndarray, ...] = states[:-1]
    order = np.lexsort(columns[::-1])
    columns = tuple(column[order] for column in columns)
    new = np.ones(len(order), dtype=bool)
    new[1:] = np.any([column[1:] != column[:-1] for column in columns], axis=0)
    ways = np.add.reduceat(states.ways[order], np.flatnonzero(new)) if len(order) else states.ways
    return _States._make([*(column[new] for column in columns), ways])


def _joined(states: _States, options: _Options, j: int, k: int, n_values: int, unit: np.ndarray, ordered: bool) -> _States:
    """Every state with every option of answer j that uses no position twice."""
    row = states.instance * k + j
    start, end = np.searchsorted(options.row, row), np.searchsorted(options.row, row, side="right")
    repeats = end - start
    s = np.repeat(np.arange(len(row)), repeats)
    o = np.arange(len(s)) - np.repeat(np.cumsum(repeats) - repeats, repeats) + start[s]
    bit_0, bit_1 = 1 << options.column_0[o], 1 << options.column_1[o]
    free = ((states.used_0[s] & bit_0) == 0) & ((states.used_1[s] & bit_1) == 0)
    if ordered:
        free &= options.rule[o] >= states.last[s]
    s, o, bit_0, bit_1 = s[free], o[free], bit_0[free], bit_1[free]
    rule = options.rule[o]
    return _States(
        states.instance[s],
        states.used_0[s] | bit_0,
        states.used_1[s] | bit_1,
        states.rules[s] + unit[rule],
        states.answers[s] * n_values + options.answer[o],
        rule if ordered else np.zeros_like(rule),
        states.ways[s],
    )


def _chunk(
    panels: np.ndarray, n_values: int, rules: tuple[str, ...], permuted: bool, table: _Multisets
) -> tuple[np.ndarray, ...]:
    n, k = len(panels), panels.shape[-1]
    options = _options(panels, n_values, rules, permuted)
    nothing = np.zeros(n, dtype=np.int64)
    states = _States._make([np.arange(n), *[nothing] * 5, np.ones(n)])
    for j in range(k):
        states = _merged(_joined(states, options, j, k, n_values, table.unit, not permuted))

    log = table.log_probability(states.rules) + np.log(states.ways)
    possible = log > -np.inf
    instance, answers, log = states.instance[possible], states.answers[possible], log[possible]
    explained = np.bincount(instance, minlength=n) > 0
    if not explained.all():
        raise ConfigError(
            f"{int((~explained).sum())} of {n} instances cannot occur with these rules, this prior and permuted={permuted}; "
            "give the settings the panels were drawn with"
        )
    top = np.full(n, -np.inf)
    np.maximum.at(top, instance, log)
    mass = np.exp(log - top[instance])
    mass /= np.bincount(instance, mass, n)[instance]

    order = np.lexsort((answers, instance))
    instance, answers, mass = instance[order], answers[order], mass[order]
    first = np.flatnonzero(np.r_[True, (instance[1:] != instance[:-1]) | (answers[1:] != answers[:-1])])
    instance, answers, mass = instance[first], answers[first], np.add.reduceat(mass, first)
    digits = answers[:, None] // n_values ** np.arange(k - 1, -1, -1) % n_values

    best = np.lexsort((answers, -mass, instance))
    best = best[np.flatnonzero(np.r_[True, instance[best][1:] != instance[best][:-1]])]
    cell = (instance[:, None] * k + np.arange(k)) * n_values + digits
    marginals = np.bincount(cell.ravel(), np.repeat(mass, k), n * k * n_values).reshape(n, k, n_values)
    return digits[best], mass[best], marginals, np.bincount(instance, minlength=n)
