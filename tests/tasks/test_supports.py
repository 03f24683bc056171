"""Supports: the combinations trained on and held out are exactly the published ones, and what is refused is refused."""

from itertools import combinations, permutations

import numpy as np
import pytest
from scipy.sparse.csgraph import connected_components

from compolens import Hyperteacher
from compolens.foundation.configs import ConfigError
from compolens.tasks import supports

HELD_OUT = "04 05 14 15 16 25 26 27 36 37"
RING = "01 12 23 34 45 56 67 07 02 13 24 35 46 57 06 17"
HALVES = "01 02 03 12 13 23 45 46 47 56 57 67"


def digits(text):
    return {tuple(map(int, word)) for word in text.split()}


def split(**settings):
    task = Hyperteacher(d_x=2, d_y=1, d_hidden=2, n_context=2, n_queries=1, **settings)
    return task._split


def components(train, n_modules):
    """An independent count: connected components by scipy."""
    graph = np.zeros((n_modules, n_modules))
    for combination in train:
        for a, b in combinations(combination, 2):
            graph[a, b] = 1
    count, label = connected_components(graph, directed=False)
    return sorted([m for m in range(n_modules) if label[m] == c] for c in range(count))


@pytest.mark.parametrize(("support", "pairs", "total"), [("connected", RING, 24), ("disconnected", HALVES, 20)])
def test_the_named_supports_of_8_modules_are_the_published_ones(support, pairs, total):
    train, held_out = split(support=support)
    assert len(train) == len(set(train)) == total
    assert set(train) == {(m,) for m in range(8)} | digits(pairs)
    assert held_out == sorted(digits(HELD_OUT))


def test_connected_and_disconnected_hold_out_the_same_compositions():
    for seed in (0, 3):
        left, right = (split(support=s, n_modules=10, split_seed=seed) for s in ("connected", "disconnected"))
        assert left[1] == right[1]
        assert not set(left[1]) & (set(left[0]) | set(right[0]))


@pytest.mark.parametrize(("support", "groups"), [("connected", [[*range(8)]]), ("disconnected", [[0, 1, 2, 3], [4, 5, 6, 7]])])
def test_the_description_says_what_is_connected(support, groups):
    description = Hyperteacher(support=support).describe_split()
    assert description["support"] == support
    assert description["groups"] == groups and description["connected"] is (len(groups) == 1)
    assert description["unseen_modules"] == []
    uses = [sum(m in c for c in description["train"]) for m in range(8)]
    assert description["uses_per_module"] == uses == [uses[0]] * 8


@pytest.mark.parametrize(
    ("text", "is_connected"),
    [
        ("0 1 2 3 4 5", False),
        ("01 12 02 34 45 35", False),
        ("012 345", False),
        ("012 345 01 12 02 34 45 35", False),
        ("01 12 23 34 45 05", True),
        ("012 234 045", True),
        ("012345", True),
        ("0 1 2 3 4 5 01 12 23 34 45 05", True),
    ],
)
def test_connectedness_of_the_supports_of_the_theory(text, is_connected):
    chosen = [list(map(int, word)) for word in text.split()]
    description = Hyperteacher(n_modules=6, max_active=6, support=chosen).describe_split()
    assert description["connected"] is is_connected


@pytest.mark.parametrize("seed", range(6))
def test_groups_are_the_connected_components(seed):
    rng = np.random.default_rng(seed)
    train = [tuple(sorted(rng.choice(9, size=rng.integers(1, 4), replace=False).tolist())) for _ in range(5)]
    assert sorted(supports.groups(train, 9)) == components(train, 9)


@pytest.mark.parametrize("n_modules", [5, 8])
@pytest.mark.parametrize("fraction", [0.1, 0.25, 0.5])
@pytest.mark.parametrize("seed", [0, 1])
def test_a_random_support_is_covered_connected_and_of_the_right_size(n_modules, fraction, seed):
    train, held_out = split(support="random", n_modules=n_modules, fraction_held_out=fraction, split_seed=seed, max_active=3)
    everything = supports.universe(n_modules, 3)
    assert sorted([*train, *held_out]) == sorted(everything)
    assert len(held_out) == round(fraction * len(everything))
    assert supports.covered(train) == set(range(n_modules))
    assert len(components(train, n_modules)) == 1


def test_a_random_support_is_drawn_again_until_it_is_covered_and_connected():
    """Of 21 combinations of 6 modules, 8 at random are often neither: every seed must end at one that is both."""
    for seed in range(20):
        train, _ = split(support="random", n_modules=6, fraction_held_out=0.62, split_seed=seed)
        assert len(train) == 8 and components(train, 6) == [[0, 1, 2, 3, 4, 5]]


def test_a_random_support_is_a_function_of_the_split_seed():
    assert split(support="random", split_seed=1) == split(support="random", split_seed=1)
    assert split(support="random", split_seed=1) != split(support="random", split_seed=2)
    assert split(support="random", split_seed=1) == split(support="random", split_seed=1, teacher_seed=5)


def test_a_random_support_that_cannot_be_connected_is_refused():
    with pytest.raises(ConfigError, match="hold out less"):
        split(support="random", n_modules=6, fraction_held_out=0.9)


@pytest.mark.parametrize("fraction", [0.0, 1.0, -1, 0.001])
def test_a_fraction_that_holds_out_nothing_or_everything_is_refused(fraction):
    with pytest.raises(ConfigError, match="fraction_held_out"):
        split(support="random", fraction_held_out=fraction)


@pytest.mark.parametrize("support", ["connected", "disconnected"])
@pytest.mark.parametrize("seed", [1, 2])
def test_a_renumbered_support_is_isomorphic_to_the_published_one(support, seed):
    def renumbered(part, label):
        return {tuple(sorted(label[m] for m in c)) for c in part}

    plain, other = split(support=support, n_modules=6), split(support=support, n_modules=6, split_seed=seed)
    images = ((renumbered(plain[0], p), renumbered(plain[1], p)) for p in permutations(range(6)))
    assert (set(other[0]), set(other[1])) in images
    assert other != plain


def test_connected_with_6_modules_holds_out_the_opposites():
    train, held_out = split(n_modules=6)
    assert held_out == [(0, 3), (1, 4), (2, 5)]
    assert set(train) | set(held_out) == set(supports.universe(6, 2))


@pytest.mark.parametrize("settings", [{"n_modules": 4}, {"n_modules": 7}, {"max_active": 3}])
@pytest.mark.parametrize("support", ["connected", "disconnected"])
def test_the_named_supports_refuse_sizes_they_do_not_define(support, settings):
    with pytest.raises(ConfigError, match="use support='random'"):
        split(support=support, **settings)


def test_the_universe_is_ordered_by_size_then_lexicographically():
    assert supports.universe(3, 2) == [(0,), (1,), (2,), (0, 1), (0, 2), (1, 2)]
    assert len(supports.universe(16, 3)) == 16 + 120 + 560


# ---- explicit lists --------------------------------------------------------------------------------------------------
def test_an_explicit_list_is_the_training_support_and_the_rest_is_held_out():
    train, held_out = split(n_modules=3, support=[[0], [1], [2, 0]])
    assert train == [(0,), (1,), (0, 2)]
    assert held_out == [(2,), (0, 1), (1, 2)]


def test_explicit_held_out_compositions_are_the_only_ones():
    train, held_out = split(n_modules=3, support=[[0, 1], [1, 2]], held_out=[[2, 0]])
    assert (train, held_out) == ([(0, 1), (1, 2)], [(0, 2)])


def test_a_module_never_trained_on_is_refused_by_name_unless_allowed():
    settings = {"n_modules": 5, "support": [[0, 1], [2, 4]]}
    with pytest.raises(ConfigError, match=r"leaves module 3 unseen in training.*allow_unseen_modules=True"):
        split(**settings)
    assert split(**settings, allow_unseen_modules=True)[0] == [(0, 1), (2, 4)]
    description = Hyperteacher(**settings, allow_unseen_modules=True).describe_split()
    assert description["unseen_modules"] == [3] and description["connected"] is False
    assert description["groups"] == [[0, 1], [2, 4]]


@pytest.mark.parametrize(
    ("support", "message"),
    [
        ([[0, 3], [1, 2]], "names module 3 in .* only modules 0 to 2"),
        ([[0, -1], [1, 2]], "names module -1"),
        ([[0, 1], [2], [1, 0]], r"lists the combination \[0, 1\] twice"),
        ([[0, 0], [1], [2]], "names a module twice"),
        ([[0, 1, 2]], "has 3 modules, more than max_active=2"),
        ([0, 1, 2], "must be a list of combinations"),
        ([[0], [1], []], "must be a list of combinations"),
        ([["a"], [1]], "must be a list of combinations"),
        ([], "lists no combination"),
        ("conected", "did you mean 'connected'"),
    ],
)
def test_a_support_that_makes_no_sense_is_refused(support, message):
    with pytest.raises(ConfigError, match=message):
        split(n_modules=3, support=support)


def test_held_out_compositions_are_checked_as_well():
    support = [[0], [1], [2], [0, 1]]
    with pytest.raises(ConfigError, match=r"combination .*0, 1.* is both in support and held_out"):
        split(n_modules=3, support=support, held_out=[[1, 0]])
    with pytest.raises(ConfigError, match="held_out names module 7"):
        split(n_modules=3, support=support, held_out=[[1, 7]])
    with pytest.raises(ConfigError, match="goes with an explicit list"):
        split(support="connected", held_out=[[0, 4]])
