"""Corrected correlations are right on simulated effects with known noise; a circuit that switches is seen."""

import numpy as np
import pandas as pd
import pytest

from compolens.measures.similarity import (
    Terms,
    another_factor,
    dealt,
    factors_against_left_out,
    held_out_against_left_out,
    joint_reliability,
    own_part,
    reliability,
    similarity,
    summed,
    terms_of,
)

PARTS = [f"L{layer}H{head}" for layer in range(3) for head in range(4)]


def rows(rng, effects, compositions, episodes=24, noise=1.0, scale=1.0):
    """Terms of components whose true effects are known; `scale` is how far answers move at all."""
    shift = scale * rng.gamma(4.0, size=(len(compositions), episodes))
    along = shift * effects[:, None, None] + noise * scale * 0.3 * rng.standard_normal((len(PARTS), *shift.shape))
    halves = [np.stack([x[..., 0::2].sum(-1), x[..., 1::2].sum(-1)], axis=-1) for x in (along, shift)]
    return Terms(*halves, np.zeros(len(compositions)), list(compositions))


TRAIN, OOD = [f"t{i}" for i in range(16)], [f"o{i}" for i in range(10)]


def test_terms_are_sums_over_halves_of_episodes():
    frame = pd.DataFrame(
        {"component": ["A"] * 4 + ["B"] * 4, "episode": [0, 1, 2, 3] * 2, "composition": ["x", "x", "y", "y"] * 2,
         "along": [1.0, 2, 3, 4, 10, 20, 30, 40], "shift": [5.0, 6, 7, 8] * 2, "score": [1.0, 0.5, 1, 1] * 2}
    )  # fmt: skip
    terms = terms_of(frame, ["B", "A"])
    assert terms.compositions == ["x", "y"] and terms.along.tolist() == [[[10, 20], [30, 40]], [[1, 2], [3, 4]]]
    assert terms.shift.tolist() == [[5, 6], [7, 8]] and terms.error.tolist() == [0.25, 0.0]
    assert terms.effects() == pytest.approx([100 / 26, 10 / 26])


def test_reliability_is_the_share_of_variance_that_is_not_noise():
    """Mean over simulations of the stepped-up correlation of halves, against the variances that made the data."""
    rng = np.random.default_rng(0)
    found, effects = [], rng.normal(size=len(PARTS)) * 0.02
    for _ in range(300):
        terms = rows(rng, effects, TRAIN[:4], episodes=8)
        found.append(reliability(terms))
        noise = 0.3**2 * 32 / terms.shift.sum() ** 2
    assert np.mean(found) == pytest.approx(effects.var() / (effects.var() + noise), abs=0.05)


def test_noise_lowers_the_correlation_and_not_the_corrected_one():
    rng = np.random.default_rng(1)
    effects = rng.gamma(1.0, size=len(PARTS)) * 0.08
    plain, corrected = [], []
    for _ in range(100):
        one, other = (rows(rng, effects, names, episodes=6, noise=2.0) for names in (TRAIN[:6], OOD[:6]))
        plain.append(np.corrcoef(one.effects(), other.effects())[0, 1])
        corrected.append(similarity(one, other))
    assert np.mean(plain) < 0.97 and np.mean(corrected) == pytest.approx(1.0, abs=0.015)


def test_a_circuit_that_stays_is_within_the_null_though_the_answers_move_less():
    rng = np.random.default_rng(2)
    effects = rng.gamma(1.0, size=len(PARTS)) * 0.08
    inside, beyond = [], []
    for _ in range(30):
        found = held_out_against_left_out(rows(rng, effects, TRAIN), rows(rng, effects, OOD, scale=0.2), draws=60)
        beyond.append(found.beyond)
        inside.append(np.quantile(found.null, 0.005) <= found.similarity <= np.quantile(found.null, 0.995) + 0.02)
    assert np.mean(beyond) == pytest.approx(0, abs=0.01) and np.mean(inside) > 0.7


def test_a_circuit_that_switches_heads_on_held_out_compositions_is_far_outside():
    rng = np.random.default_rng(3)
    effects = rng.gamma(1.0, size=len(PARTS)) * 0.08
    found = held_out_against_left_out(rows(rng, effects, TRAIN), rows(rng, np.roll(effects, 3), OOD), draws=60)
    assert found.beyond < -0.3 and found.similarity < np.nanmin(found.null) - 0.2


def test_left_out_sets_are_those_of_nearest_error():
    rng = np.random.default_rng(4)
    train = rows(rng, rng.gamma(1.0, size=len(PARTS)), TRAIN)
    train = train._replace(error=np.linspace(0, 1, len(TRAIN)))
    held_out = rows(rng, np.ones(len(PARTS)) + rng.normal(size=len(PARTS)), OOD[:4])
    high = held_out_against_left_out(train, held_out._replace(error=np.full(4, 0.9)))
    low = held_out_against_left_out(train, held_out._replace(error=np.full(4, 0.1)))
    assert low.null_error < 0.35 < 0.65 < high.null_error and len(high.null) == 100
    assert len(held_out_against_left_out(train, held_out, draws=8, nearest=0.01).null) == 1, "at least one"


def test_terms_from_arrays_are_sums_over_compositions_and_halves():
    along, shift = np.array([[1.0, 2, 3, 4], [10, 20, 30, 40]]), np.array([5.0, 6, 7, 8])
    terms = summed(along, shift, np.array([0, 0.5, 0, 0]), np.array(["y", "x", "y", "x"]))
    assert terms.compositions == ["x", "y"] and terms.error == pytest.approx([0.25, 0])
    assert terms.along.tolist() == [[[2, 4], [1, 3]], [[20, 40], [10, 30]]] and terms.shift.tolist() == [[6, 8], [5, 7]]


FACTORS = [f"module {m}" for m in range(6)]


def factors(rng, shared, own, names, noise=0.3):
    """Terms of six factors: what all have in common, and what each has of its own."""
    return {name: rows(rng, shared + mine, names, noise=noise) for name, mine in zip(FACTORS, own, strict=True)}


def test_a_factor_s_own_part_is_told_from_what_all_factors_share():
    """The share of variance is that of the effects that made the data; a factor is like itself and not like another."""
    rng = np.random.default_rng(5)
    shared, own = rng.gamma(1.0, size=len(PARTS)) * 0.1, 0.05 * rng.standard_normal((6, len(PARTS)))
    train, held_out = (factors(rng, shared, own, names) for names in (TRAIN[:5], OOD[:3]))
    effects = shared + own
    parts = effects - effects.mean(1, keepdims=True)
    expected = ((parts - parts.mean(0)) ** 2).sum() * 6 / 5 / (parts**2).sum()
    assert own_part(train) == pytest.approx(expected, abs=0.02)
    found = factors_against_left_out(train, held_out, own=True, draws=60)
    assert found.similarity > 0.97 and abs(found.beyond) < 0.02 and joint_reliability(train, own=True) > 0.9
    assert another_factor(train, held_out, own=True) == pytest.approx(-1 / 5, abs=0.05)
    assert 0.4 < another_factor(train, held_out, own=False) < found.similarity - 0.1


def test_where_all_factors_have_the_same_effects_none_is_a_factor_s_own():
    rng = np.random.default_rng(6)
    shared = rng.gamma(1.0, size=len(PARTS)) * 0.1
    train, held_out = (factors(rng, shared, np.zeros((6, len(PARTS))), names, noise=1.0) for names in (TRAIN[:5], OOD[:3]))
    assert abs(own_part(train)) < 0.02 and abs(joint_reliability(train, own=True)) < 0.5
    both = (factors_against_left_out(train, held_out, False, draws=60).similarity, another_factor(train, held_out, False))
    assert both == pytest.approx([1, 1], abs=0.02)


def test_a_factor_that_is_stronger_everywhere_has_no_part_of_its_own():
    rng = np.random.default_rng(8)
    shared = rng.gamma(1.0, size=len(PARTS)) * 0.1
    stronger = np.arange(6)[:, None] * np.full(len(PARTS), 0.2)
    assert own_part(factors(rng, shared, stronger, TRAIN[:5])) == pytest.approx(0, abs=0.02)


@pytest.mark.parametrize("n", [2, 3, 6])
def test_factors_that_have_nothing_in_common_are_wholly_their_own(n):
    found = []
    for seed in range(60):
        rng = np.random.default_rng(seed)
        effects = 0.1 * rng.standard_normal((n, len(PARTS)))
        found.append(own_part({f"{k}": rows(rng, mine, TRAIN[:4], noise=0.1) for k, mine in enumerate(effects)}))
    assert np.mean(found) == pytest.approx(1, abs=0.06)


def test_what_shares_a_unit_and_a_composition_is_dealt_to_one_half():
    composition = np.repeat([3, 1, 2], [7, 12, 9])
    unit = np.random.default_rng(0).integers(5, size=28)
    half = dealt(composition, unit)
    for c in (1, 2, 3):
        for u in range(5):
            assert len(set(half[(composition == c) & (unit == u)])) <= 1
    counts = [len(set(zip(composition[half == side], unit[half == side], strict=True))) for side in (0, 1)]
    assert abs(counts[0] - counts[1]) <= 1
    assert dealt(composition).tolist() == dealt(composition, np.arange(28)).tolist()


def test_factors_that_change_places_on_held_out_compositions_are_far_outside():
    """All of the effect moves a little, a factor's own part all the way."""
    rng = np.random.default_rng(7)
    shared, own = rng.gamma(1.0, size=len(PARTS)) * 0.1, 0.05 * rng.standard_normal((6, len(PARTS)))
    train, held_out = factors(rng, shared, own, TRAIN[:5]), factors(rng, shared, np.roll(own, 1, 0), OOD[:3])
    beyond = {kind: factors_against_left_out(train, held_out, kind, draws=60).beyond for kind in (True, False)}
    assert beyond[True] < -0.9 and -0.6 < beyond[False] < -0.1
