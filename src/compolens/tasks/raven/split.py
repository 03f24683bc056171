"""Compositions of RAVEN, each a configuration with the rules of all its components, and which of them are held out."""

from __future__ import annotations

import random
from collections.abc import Collection, Iterable
from typing import NamedTuple

import torch
from torch import Tensor

from compolens.foundation.configs import ConfigError, nearest, require
from compolens.tasks.raven.files import ABSENT, ATTRIBUTES, CONFIGURATIONS, LAYOUT_RULES, RULES

NAMES = (LAYOUT_RULES, RULES, RULES, RULES)
"""The rules there are, for each of `ATTRIBUTES`."""
LETTERS = (("C", "Pn", "Pp", "An", "Ap", "Dn", "Dp"), *[tuple("CPAD")] * 3)
"""The same in the names of compositions; n, p: of number, of position."""
ATTEMPTS = 1000
_BASE = len(LAYOUT_RULES) * len(RULES) ** 3


class Split(NamedTuple):
    """Compositions, ascending.

    Args:
        train: trained on.
        ood: held out.
        left_out: neither.
    """

    train: tuple[int, ...]
    ood: tuple[int, ...]
    left_out: tuple[int, ...]


# ---- compositions ----------------------------------------------------------------------------------------------------
def number(configuration: Tensor, rules: Tensor) -> Tensor:
    """Compositions from what they are made of: functions of these alone, whichever puzzles there are.

    Args:
        configuration: (puzzle,) an index into `CONFIGURATIONS`.
        rules: (puzzle, 2, 4), as in `Puzzles`.

    Returns:
        (puzzle,) ints.
    """
    result = configuration
    for component in rules.unbind(1):
        place = component[:, 0]
        for attribute in (1, 2, 3):
            place = place * len(NAMES[attribute]) + component[:, attribute]
        result = result * (1 + _BASE) + torch.where(component[:, 0] == ABSENT, 0, 1 + place)
    return result


def parts(composition: int) -> tuple[str, list[list[int]]]:
    """What `composition` is made of, the inverse of `number`: (configuration, for each component the indices of its rules)."""
    components = []
    for _ in range(2):
        composition, place = divmod(composition, 1 + _BASE)
        if place:
            rules, rest = [], place - 1
            for names in reversed(NAMES):
                rest, rule = divmod(rest, len(names))
                rules.append(rule)
            components.append(rules[::-1])
    return list(CONFIGURATIONS)[composition], components[::-1]


def name(composition: int) -> str:
    """What `composition` is called: its configuration as 1903.02741 has it, and the initials of its rules, ``"Center CPAD"``,
    ``"O-IG CPCD+DnCAC"``."""
    configuration, components = parts(composition)
    rules = ["".join(letters[rule] for letters, rule in zip(LETTERS, component, strict=True)) for component in components]
    return f"{CONFIGURATIONS[configuration][0]} {'+'.join(rules)}"


def per_configuration(compositions: Iterable[int]) -> dict[str, list[int]]:
    """configuration -> those of `compositions` that are of it."""
    found: dict[str, list[int]] = {}
    for composition in compositions:
        found.setdefault(parts(composition)[0], []).append(composition)
    return found


def unseen_rules(train: Iterable[int], held_out: Iterable[int]) -> list[str]:
    """Rules of held-out compositions that no training composition of the same configuration has in the same component on the
    same attribute.

    Args:
        train: compositions trained on.
        held_out: compositions held out.

    Returns:
        Their names, sorted.
    """
    return sorted(_rules(held_out) - _rules(train))


def _rules(compositions: Iterable[int]) -> set[str]:
    found = set()
    for composition in compositions:
        configuration, components = parts(composition)
        for i, rules in enumerate(components):
            where = f" in component {i + 1}" if len(components) > 1 else ""
            for attribute, names, rule in zip(ATTRIBUTES, NAMES, rules, strict=True):
                found.add(f"{CONFIGURATIONS[configuration][0]}: {attribute} {names[rule]}{where}")
    return found


# ---- splits ----------------------------------------------------------------------------------------------------------
def listed(found: Collection[int], usable: Collection[int], held_out: Iterable[str]) -> Split:
    """A split in which the named compositions are held out.

    Args:
        found: all compositions of which there is a puzzle.
        usable: those that can be trained and tested on.
        held_out: names; of the other compositions, those that are usable are trained on, the rest is left out.

    Returns:
        The split.

    Raises:
        ConfigError: there is no puzzle of a name.
    """
    numbers = {name(c): c for c in found}
    for wanted in held_out:
        require(wanted in numbers, f"held_out names {wanted!r}, of which there is no puzzle; {nearest(wanted, numbers)}")
    return _split(found, usable, {numbers[wanted] for wanted in held_out})


def drawn(found: Collection[int], usable: Collection[int], fraction: float, seed: int, allow_unseen_rules: bool) -> Split:
    """A part of each configuration's compositions is held out: first those that cannot be trained on, then random ones, drawn
    again (up to 1,000 times) until training shows every rule. A configuration's split depends on no other configuration.

    Args:
        found: all compositions of which there is a puzzle.
        usable: those that can be trained and tested on.
        fraction: of each configuration's compositions, that are held out.
        seed: of the drawing.
        allow_unseen_rules: accept the first drawing, whether or not training shows every rule.

    Returns:
        The split.
    """
    held_out: set[int] = set()
    for configuration, everything in per_configuration(found).items():
        held_out |= _draw(configuration, everything, set(usable), fraction, seed, allow_unseen_rules)
    return _split(found, usable, held_out)


def _draw(
    configuration: str, everything: list[int], usable: set[int], fraction: float, seed: int, allow_unseen_rules: bool
) -> set[int]:
    candidates = [c for c in everything if c in usable]
    forced = set(everything) - usable
    n_held_out = max(len(forced), int(fraction * len(everything)))
    require(
        n_held_out >= 1,
        f"fraction_held_out={fraction} of the {len(everything)} compositions of {configuration} holds out none; raise it, or "
        "list some as held_out",
    )
    free = n_held_out - len(forced)
    shuffler = random.Random(f"{seed}/{configuration}")
    for _ in range(ATTEMPTS if free else 1):
        chosen = forced | set(shuffler.sample(candidates, free))
        kept = [c for c in candidates if c not in chosen]
        if allow_unseen_rules or not kept or not unseen_rules(kept, chosen):
            return chosen
    raise ConfigError(
        f"with fraction_held_out={fraction} no split in {ATTEMPTS:,} draws shows every rule of {configuration} in training; "
        "hold out less, add files, or say allow_unseen_rules=True"
    )


def _split(found: Collection[int], usable: Collection[int], held_out: set[int]) -> Split:
    train = set(usable) - held_out
    trained = per_configuration(train)
    for configuration, everything in per_configuration(found).items():
        require(
            configuration in trained,
            f"Raven: nothing of {configuration} is left to train on: of its {len(everything)} compositions, "
            f"{len(set(everything) & set(usable))} have both a train file and a val or test file, and "
            f"{len(set(everything) & held_out)} are held out; add files, or hold out less",
        )
    return Split(*(tuple(sorted(part)) for part in (train, held_out, set(found) - train - held_out)))
