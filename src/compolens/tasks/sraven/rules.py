"""The rules of S-RAVEN, by the order and with the names of the public reference code of 2406.05816, and multisets of them."""

from __future__ import annotations

from itertools import combinations_with_replacement

STEPS = {"constant": 0, "progression +1": 1, "progression +2": 2, "progression -1": -1, "progression -2": -2}
"""Rules that go on in equal steps: (v, v + step, v + 2 step) modulo F, v uniform in every row."""
ADDITION, SUBTRACTION, DISTRIBUTE = "addition", "subtraction", "distribute three"
"""(x, y, x + y) and (x, y, x - y) modulo F, x and y uniform; three distinct symbols, every row an order of its own of them."""
RULES = (*STEPS, ADDITION, SUBTRACTION, DISTRIBUTE)
LETTERS = "ABCDEFGH"
MOST_VALUES = 64
"""All rows of all rules are listed in a table, and chosen by uniforms of 24 bits."""

Multiset = tuple[int, ...]


def multisets(n_rules: int, n_features: int) -> list[Multiset]:
    """All multisets of rule numbers.

    Args:
        n_rules: rules there are.
        n_features: rules of a multiset.

    Returns:
        Ascending tuples, in lexicographic order.
    """
    return list(combinations_with_replacement(range(n_rules), n_features))
