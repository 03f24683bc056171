"""Classifiers: the frozen readout answers what scikit-learn's pipeline answers, and its scores are scikit-learn's."""

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import balanced_accuracy_score, confusion_matrix, f1_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from compolens.measures.classifiers import LogisticReadout, balanced_accuracy, confusion, macro_f1


def data(classes, n=240, features=6, seed=0, noise=1.5):
    """x with scales from 0.01 to 100 and large means; y unbalanced, drawn from `classes`; the two overlap."""
    rng = np.random.default_rng(seed)
    centres = np.random.default_rng(99).normal(size=(max(classes) + 1, features))
    share = 1.0 + np.arange(len(classes))
    y = rng.choice(classes, size=n, p=share / share.sum())
    x = centres[y] + noise * rng.normal(size=(n, features))
    return x * np.logspace(-2, 2, features) + 3 * np.arange(features), y


def pipeline(c=1.0, iterations=300):
    return make_pipeline(StandardScaler(), LogisticRegression(C=c, class_weight="balanced", max_iter=iterations))


# ---- the fit ---------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("c", [0.01, 1.0, 100.0])
@pytest.mark.parametrize("classes", [(0, 1), (3, 7), (0, 1, 2, 3, 4), (1, 2, 5)], ids=str)
def test_the_readout_answers_what_scikit_learn_answers(classes, c):
    (x, y), (fresh, truth) = data(classes), data(classes, n=500, seed=1)
    readout, expected = LogisticReadout.fit(x, y, c), pipeline(c).fit(x, y)
    np.testing.assert_array_equal(readout.classes, classes)
    np.testing.assert_array_equal(readout(fresh), expected.predict(fresh))
    assert readout.converged
    assert readout.weight.shape == (len(classes), x.shape[1])
    right = (readout(fresh) == truth).mean()
    assert 1 / len(classes) < right < 1, "the comparison says something only if the classes overlap"


@pytest.mark.parametrize("classes", [(0, 1), (0, 1, 2, 3)], ids=str)
def test_its_scores_on_raw_features_give_scikit_learns_probabilities(classes):
    (x, y), (fresh, _) = data(classes), data(classes, seed=1)
    readout = LogisticReadout.fit(x, y)
    scores = fresh @ readout.weight.T + readout.bias
    odds = np.exp(scores - scores.max(1, keepdims=True))
    np.testing.assert_allclose(odds / odds.sum(1, keepdims=True), pipeline().fit(x, y).predict_proba(fresh), rtol=1e-9)


def test_features_in_single_precision_are_read_alike():
    x, y = data((0, 1, 2))
    x = x.astype(np.float32)
    np.testing.assert_array_equal(LogisticReadout.fit(x, y)(x), pipeline().fit(x, y).predict(x))


def test_one_class_alone_is_always_answered():
    x, _ = data((0, 1))
    readout = LogisticReadout.fit(x, np.full(len(x), 4))
    assert readout.converged
    np.testing.assert_array_equal(readout.classes, [4])
    np.testing.assert_array_equal(readout(1e3 * x), np.full(len(x), 4))


@pytest.mark.parametrize("classes", [(0, 1), (0, 1, 2)], ids=str)
@pytest.mark.parametrize("value", [0.0, -7.0, 1e6])
def test_a_constant_feature_changes_nothing(classes, value):
    x, y = data(classes)
    padded = np.insert(x, 2, value, axis=1)
    readout = LogisticReadout.fit(padded, y)
    assert np.isfinite(readout.weight).all() and np.isfinite(readout.bias).all()
    np.testing.assert_allclose(readout.weight[:, 2], 0, atol=1e-12)
    np.testing.assert_array_equal(readout(padded), LogisticReadout.fit(x, y)(x))
    np.testing.assert_array_equal(readout(padded), pipeline().fit(padded, y).predict(padded))


def test_features_that_are_all_constant_leave_a_readout_that_answers_one_class():
    _, y = data((0, 1, 2))
    readout = LogisticReadout.fit(np.ones((len(y), 3)), y)
    assert len(np.unique(readout(np.ones((5, 3))))) == 1


@pytest.mark.filterwarnings("error")
def test_a_fit_that_has_not_converged_is_used_and_says_so():
    x, y = data((0, 1, 2), noise=0.5)
    readout = LogisticReadout.fit(x, y, c=1e6, iterations=2)
    assert not readout.converged
    with pytest.warns(UserWarning, match="converge"):
        expected = pipeline(1e6, 2).fit(x, y)
    np.testing.assert_array_equal(readout(x), expected.predict(x))
    assert LogisticReadout.fit(x, y, c=1.0).converged


# ---- the scores ------------------------------------------------------------------------------------------------------
def labels(seed, n=40):
    """Truth and answers among 7 classes: 6 occurs in neither, 5 is never true, 4 is never answered."""
    rng = np.random.default_rng(seed)
    truth, answer = rng.integers(0, 5, n), rng.integers(0, 5, n)
    answer = np.where(rng.random(n) < 0.5, truth, answer)
    return truth, np.where(answer == 4, 5, answer)


@pytest.mark.parametrize("seed", range(8))
def test_the_scores_are_scikit_learns_with_absent_classes(seed):
    truth, answer = labels(seed)
    counts = confusion(truth, answer, 7)
    np.testing.assert_array_equal(counts, confusion_matrix(truth, answer, labels=range(7)))
    with pytest.warns(UserWarning, match="y_pred contains classes not in y_true"):  # there they do not enter the mean
        assert balanced_accuracy(counts) == pytest.approx(balanced_accuracy_score(truth, answer), rel=1e-12)
    assert macro_f1(counts) == pytest.approx(f1_score(truth, answer, average="macro"), rel=1e-12)


def test_the_scores_are_scikit_learns_when_every_class_occurs():
    rng = np.random.default_rng(0)
    truth, answer = rng.integers(0, 3, 200), rng.integers(0, 3, 200)
    counts = confusion(truth, answer, 3)
    assert balanced_accuracy(counts) == pytest.approx(balanced_accuracy_score(truth, answer), rel=1e-12)
    assert macro_f1(counts) == pytest.approx(f1_score(truth, answer, average="macro"), rel=1e-12)


def test_an_answer_that_never_occurs_costs_f1_but_is_no_class_to_be_recalled():
    counts = confusion(np.array([0, 0, 1, 1]), np.array([0, 2, 1, 1]), 4)
    assert balanced_accuracy(counts) == pytest.approx((1 / 2 + 1) / 2)
    assert macro_f1(counts) == pytest.approx((2 / 3 + 1 + 0) / 3)


def test_guessing_the_majority_is_not_rewarded():
    truth = np.repeat([0, 1, 2, 3], [97, 1, 1, 1])
    counts = confusion(truth, np.zeros_like(truth), 4)
    assert balanced_accuracy(counts) == pytest.approx(1 / 4)
    assert macro_f1(counts) < 1 / 4
    perfect = confusion(truth, truth, 4)
    assert balanced_accuracy(perfect) == macro_f1(perfect) == 1


@pytest.mark.filterwarnings("error")
def test_counts_are_scored_along_any_leading_dimensions():
    counts = np.stack([confusion(*labels(seed), 7) for seed in range(6)]).reshape(2, 3, 7, 7)
    for score in (balanced_accuracy, macro_f1):
        batched = score(counts)
        assert batched.shape == (2, 3)
        for where in np.ndindex(2, 3):
            assert batched[where] == score(counts[where])
