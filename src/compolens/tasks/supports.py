"""Supports: which combinations of modules are seen in training, which are held out, and what that covers.

A combination is an ascending tuple of module numbers. The named supports follow the public code of Schug et al.,
"Discovering modular solutions that generalize compositionally" (2312.15001), and of 2507.07207 for `random`.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from itertools import combinations
from typing import Any

from compolens.foundation.configs import ConfigError, require

Combination = tuple[int, ...]
Split = tuple[list[Combination], list[Combination]]


def universe(n_modules: int, max_active: int) -> list[Combination]:
    """All combinations of 1 to `max_active` of the modules.

    Args:
        n_modules: modules there are.
        max_active: most modules of a combination.

    Returns:
        Ascending tuples, by size, then in lexicographic order.
    """
    return [c for k in range(1, max_active + 1) for c in combinations(range(n_modules), k)]


def covered(train: Iterable[Combination]) -> set[int]:
    """The modules that occur in at least one combination of `train`."""
    return {module for combination in train for module in combination}


def groups(train: Iterable[Combination], n_modules: int) -> list[list[int]]:
    """Connected components of the module graph (an edge: active together in some training combination).

    Args:
        train: training combinations.
        n_modules: modules there are.

    Returns:
        Lists of module numbers.
    """
    component = list(range(n_modules))
    for combination in train:
        merged = {component[m] for m in combination}
        component = [min(merged) if c in merged else c for c in component]
    return [[m for m in range(n_modules) if component[m] == c] for c in sorted(set(component))]


def _ring_pairs(n_modules: int) -> list[Combination]:
    """All pairs at ring distance 1 or 2."""
    near = {tuple(sorted((m, (m + d) % n_modules))) for m in range(n_modules) for d in (1, 2)}
    return sorted(near)  # type: ignore[arg-type]


def _half_pairs(n_modules: int) -> list[Combination]:
    """All pairs inside one half of the modules."""
    half = n_modules // 2
    return [(a, b) for a, b in combinations(range(n_modules), 2) if (a < half) == (b < half)]


def _relabelled(chosen: Sequence[Combination], n_modules: int, seed: int) -> list[Combination]:
    """The same graph with shuffled module numbers; seed 0 keeps the reference's own numbering."""
    if seed == 0:
        return list(chosen)
    label = random.Random(seed).sample(range(n_modules), n_modules)
    return sorted((tuple(sorted(label[m] for m in c)) for c in chosen), key=lambda c: (len(c), c))


def _reference_split(n_modules: int, max_active: int, pairs: list[Combination], seed: int) -> Split:
    require(
        n_modules > 4 and n_modules % 2 == 0 and max_active == 2,
        "the supports 'connected' and 'disconnected' need max_active=2 and an even number of modules above 4, "
        f"got n_modules={n_modules}, max_active={max_active}; use support='random' or a list of combinations",
    )
    either = set(_ring_pairs(n_modules)) | set(_half_pairs(n_modules))
    held_out = [pair for pair in combinations(range(n_modules), 2) if pair not in either]
    train = [(m,) for m in range(n_modules)] + pairs
    return _relabelled(train, n_modules, seed), _relabelled(held_out, n_modules, seed)


def connected(n_modules: int, max_active: int, fraction_held_out: float, seed: int) -> Split:
    """Singles and pairs at ring distance 1 or 2; held out: the pairs in neither this support nor `disconnected`.

    Args:
        n_modules: modules there are; even, above 4.
        max_active: most modules of a combination; 2.
        fraction_held_out: not used here; supports share their arguments.
        seed: numbers the modules anew.

    Returns:
        (train, held out).
    """
    return _reference_split(n_modules, max_active, _ring_pairs(n_modules), seed)


def disconnected(n_modules: int, max_active: int, fraction_held_out: float, seed: int) -> Split:
    """Singles and pairs inside one half of the modules; the same combinations are held out as for `connected`.

    Args:
        n_modules: modules there are; even, above 4.
        max_active: most modules of a combination; 2.
        fraction_held_out: not used here; supports share their arguments.
        seed: as in `connected`.

    Returns:
        (train, held out).
    """
    return _reference_split(n_modules, max_active, _half_pairs(n_modules), seed)


def random_support(n_modules: int, max_active: int, fraction_held_out: float, seed: int) -> Split:
    """A random fraction is held out, drawn again (up to 1,000 times) until every module is covered and connected.

    Args:
        n_modules: modules there are.
        max_active: most modules of a combination.
        fraction_held_out: of all combinations, between 0 and 1.
        seed: of the drawing.

    Returns:
        (train, held out).

    Raises:
        ConfigError: no drawing covers and connects all modules.
    """
    require(0 < fraction_held_out < 1, f"fraction_held_out must lie between 0 and 1, got {fraction_held_out}")
    everything = universe(n_modules, max_active)
    n_held_out = round(fraction_held_out * len(everything))
    require(n_held_out >= 1, f"fraction_held_out={fraction_held_out} of {len(everything)} combinations holds out none")
    shuffler = random.Random(seed)
    for _ in range(1000):
        order = shuffler.sample(everything, len(everything))
        train = sorted(order[n_held_out:])
        if len(covered(train)) == n_modules and len(groups(train, n_modules)) == 1:
            return train, sorted(order[:n_held_out])
    raise ConfigError(
        f"no random support covers and connects all {n_modules} modules with fraction_held_out={fraction_held_out} "
        "in 1,000 draws; hold out less"
    )


HALF = 4
"""Modules in each half of the two supports with matched degrees."""
CUBE_FACES = ((0, 1), (1, 2), (2, 3), (0, 3))


def _matched_split(n_modules: int, max_active: int, pairs: list[Combination], seed: int) -> Split:
    require(
        n_modules == 2 * HALF and max_active == 2,
        f"the supports 'cube' and 'two cliques' are graphs on {2 * HALF} modules, with max_active=2; got "
        f"n_modules={n_modules}, max_active={max_active}",
    )
    across = [(a, b + HALF) for a in range(HALF) for b in range(HALF) if a != b]
    train = [(m,) for m in range(n_modules)] + sorted(pairs)
    return _relabelled(train, n_modules, seed), _relabelled(across, n_modules, seed)


def cube(n_modules: int, max_active: int, fraction_held_out: float, seed: int) -> Split:
    """Singles and the 12 edges of a cube: connected. Every module has 3 partners, as in `two_cliques`.

    Held out, in both: the 12 pairs that join one half of the modules with the other and are no edge of the cube.

    Args:
        n_modules: modules there are; 8.
        max_active: most modules of a combination; 2.
        fraction_held_out: not used here; supports share their arguments.
        seed: numbers the modules anew.

    Returns:
        (train, held out).
    """
    faces: list[Combination] = [(a + shift, b + shift) for shift in (0, HALF) for a, b in CUBE_FACES]
    return _matched_split(n_modules, max_active, faces + [(m, m + HALF) for m in range(HALF)], seed)


def two_cliques(n_modules: int, max_active: int, fraction_held_out: float, seed: int) -> Split:
    """Singles and the 12 pairs inside one half of the modules: disconnected. Degrees, counts and held-out pairs as in `cube`.

    Args:
        n_modules: modules there are; 8.
        max_active: most modules of a combination; 2.
        fraction_held_out: not used here; supports share their arguments.
        seed: numbers the modules anew.

    Returns:
        (train, held out).
    """
    return _matched_split(n_modules, max_active, _half_pairs(n_modules), seed)


def set_aside(
    train: Sequence[Combination], n_modules: int, count: int, seed: int
) -> tuple[list[Combination], list[Combination]]:
    """Training combinations without some of more than one module, set aside for validation.

    What is left covers the modules that `train` covers, in as many connected groups.

    Args:
        train: training combinations.
        n_modules: modules there are.
        count: how many to set aside, at least 1.
        seed: draws them (again, up to 1,000 times, until what is left covers and connects as much).

    Returns:
        (what is left, what is set aside), each in the order of `train`.

    Raises:
        ConfigError: there are not so many, or none of the drawings leaves enough.
    """
    able = [c for c in train if len(c) > 1]
    require(
        count < len(able), f"validation={count} of {len(able)} training combinations with several modules; set fewer aside"
    )
    shuffler = random.Random(f"validation/{seed}")
    for _ in range(1000):
        aside = set(shuffler.sample(able, count))
        left = [c for c in train if c not in aside]
        if covered(left) == covered(train) and len(groups(left, n_modules)) == len(groups(train, n_modules)):
            return left, [c for c in train if c in aside]
    raise ConfigError(
        f"no {count} training combinations can be set aside for validation so that the others still cover and connect what "
        "they did; set fewer aside"
    )


NAMED = {
    "connected": connected,
    "disconnected": disconnected,
    "random": random_support,
    "cube": cube,
    "two cliques": two_cliques,
}


def check_combinations(name: str, chosen: Iterable[Combination], n_modules: int, max_active: int) -> list[Combination]:
    """An explicit list, checked: modules exist, sizes are allowed, nothing is listed twice.

    Args:
        name: the argument that is checked, named in errors.
        chosen: the combinations, tuples of module numbers.
        n_modules: modules there are.
        max_active: most modules of a combination.

    Returns:
        The combinations, each ascending.

    Raises:
        ConfigError: an entry is no combination of these modules.
    """
    result = []
    for combination in chosen:
        require(
            isinstance(combination, tuple) and all(isinstance(m, int) for m in combination) and len(combination) > 0,
            f"{name} must be a list of combinations such as [[0], [0, 1]], got the entry {combination!r}",
        )
        for module in combination:
            require(
                0 <= module < n_modules,
                f"{name} names module {module} in {list(combination)}, but there are only modules 0 to {n_modules - 1}",
            )
        clean = tuple(sorted(set(combination)))
        require(len(clean) == len(combination), f"{name}: the combination {list(combination)} names a module twice")
        require(
            len(clean) <= max_active,
            f"{name}: {list(combination)} has {len(clean)} modules, more than max_active={max_active}",
        )
        require(clean not in result, f"{name} lists the combination {list(clean)} twice")
        result.append(clean)
    require(len(result) > 0, f"{name} lists no combination")
    return result


def describe_support(train: list[Combination], held_out: list[Combination], n_modules: int) -> dict[str, Any]:
    """What a support covers.

    Args:
        train: training combinations.
        held_out: held-out combinations.
        n_modules: modules there are.

    Returns:
        JSON-ready; "unseen_modules", "groups", "connected" and "uses_per_module" are of the training combinations.
    """
    seen = covered(train)
    components = [g for g in groups(train, n_modules) if set(g) & seen]
    return {
        "n_modules": n_modules,
        "train": [list(c) for c in train],
        "held_out": [list(c) for c in held_out],
        "unseen_modules": sorted(set(range(n_modules)) - seen),
        "groups": components,
        "connected": len(components) == 1 and len(seen) == n_modules,
        "uses_per_module": [sum(m in c for c in train) for m in range(n_modules)],
    }
