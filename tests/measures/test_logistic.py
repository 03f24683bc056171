"""Logistic readouts of several labels at once: equal to scikit-learn's, scored by deviance, fitted for new groups."""

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import balanced_accuracy_score

from compolens.measures import logistic
from compolens.measures.logistic import Explained, LogisticReadouts

CLASSES = (4, 2)


@pytest.fixture(scope="module")
def drawn():
    rng = torch.Generator().manual_seed(0)
    x = torch.randn(400, 6, generator=rng) @ torch.randn(6, 6, generator=rng) + 2
    logits = x @ torch.randn(6, 4, generator=rng)
    y = torch.stack([torch.multinomial(logits.softmax(1), 1, generator=rng)[:, 0], (logits[:, 0] > 1).long()], 1)
    return x, y, torch.arange(400) % 5


@pytest.mark.parametrize("l2", [1.0, 30.0])
def test_every_label_has_the_readout_of_scikit_learn(drawn, l2):
    x, y, _ = drawn
    (both,) = LogisticReadouts.fit(x, y, CLASSES, [l2], steps=4000, tolerance=1e-10)
    wide = x.double()
    scaled = ((wide - wide.mean(0)) / wide.std(0, correction=0)).numpy()
    for i, said in enumerate(both.log_probabilities(x)):
        # two classes have one row of weights there, which is penalised half as much as two that are each other's opposite
        c = 1 / l2 if CLASSES[i] > 2 else 2 / l2
        reference = LogisticRegression(C=c, max_iter=5000, tol=1e-10).fit(scaled, y[:, i].numpy())
        assert np.abs(reference.predict_proba(scaled) - said.exp().numpy()).max() < 1e-4


def test_early_stopping_and_the_path_of_penalties_change_little_where_the_penalty_decides(drawn):
    x, y, _ = drawn
    quick = LogisticReadouts.fit(x, y, CLASSES, [100.0, 1000.0])
    exact = LogisticReadouts.fit(x, y, CLASSES, [1000.0, 100.0], steps=4000, tolerance=1e-10)[::-1]
    for one, other in zip(quick, exact, strict=True):
        for said, wanted in zip(one.log_probabilities(x), other.log_probabilities(x), strict=True):
            assert (said.exp() - wanted.exp()).abs().max() < 0.02


def explained(readouts, x, y, group):
    return Explained.of(readouts.log_probabilities(x), readouts.answers(x), y, group)


def test_deviance_is_that_of_the_frequencies_where_nothing_is_read_and_all_where_everything_is(drawn):
    _, y, group = drawn
    (nothing,) = LogisticReadouts.fit(torch.ones(400, 3), y, CLASSES)
    assert explained(nothing, torch.ones(400, 3), y, group).per_label() == pytest.approx([0, 0], abs=1e-4)
    hot = torch.nn.functional.one_hot(y[:, 0]).double()
    (all_,) = LogisticReadouts.fit(hot, y[:, :1], CLASSES[:1], [1e-3], steps=500)
    found = explained(all_, hot, y[:, :1], group)
    assert found.r2()[0] > 0.98 and found.balanced_accuracy()[0] == 1 and found.exact.sum() == 400


def test_scores_are_those_of_a_loop_over_rows(drawn):
    x, y, group = drawn
    (readouts,) = LogisticReadouts.fit(x, y, CLASSES, [10.0])
    found, said = explained(readouts, x, y, group), readouts.log_probabilities(x)
    for i, part in enumerate(said):
        nats = -sum(float(part[n, y[n, i]]) for n in range(400))
        share = np.bincount(y[:, i].numpy()) / 400
        assert found.per_label()[i] == pytest.approx(1 - nats / (-400 * (share * np.log(share)).sum()))
    wanted = [balanced_accuracy_score(y[:, i].numpy(), readouts.answers(x)[:, i].numpy()) for i in (0, 1)]
    assert found.balanced_accuracy()[0] == pytest.approx(np.mean(wanted))
    assert found.exact.sum() == int((readouts.answers(x) == y).all(1).sum())
    stacked = Explained.stacked([explained(readouts, x[group == g], y[group == g], group[group == g]) for g in range(5)])
    assert stacked.r2() == pytest.approx(found.r2())


def test_a_class_that_does_not_occur_has_a_finite_frequency():
    y = torch.tensor([0, 0, 0, 1] * 10)[:, None]
    (found,) = LogisticReadouts.fit(torch.arange(40.0)[:, None], y, (3,))
    assert (found.prior.exp() * 40.5).tolist() == pytest.approx([30.5, 10.5, 0.5])
    assert all(part.isfinite().all() for part in found.log_probabilities(torch.arange(40.0)[:, None]))


def test_classes_that_do_not_occur_surprise_nobody():
    counts = np.array([[3.0, 0.0], [2.0, 2.0], [0.0, 0.0]])
    assert logistic._surprise(counts) == pytest.approx([0, 4 * np.log(2), 0])


def test_where_there_is_one_group_the_last_penalty_is_taken_and_nothing_is_known(drawn):
    x, y, _ = drawn
    penalty, share = logistic.leave_groups_out(x, y, CLASSES, torch.zeros(400, dtype=torch.long), [1.0, 10.0, 3.0])
    assert penalty == 3.0 and np.isnan(share)


def test_the_penalty_is_chosen_for_groups_that_are_left_out():
    """Features that name the group fit its own rows perfectly and say nothing of others: the strongest penalty is best."""
    rng = torch.Generator().manual_seed(0)
    group = torch.arange(240) % 12
    y = torch.randint(0, 2, (12, 1), generator=rng)[group]
    names = torch.nn.functional.one_hot(group).float()
    l2, left_out = logistic.leave_groups_out(names, y, (2,), group, logistic.PENALTIES)
    assert l2 == max(logistic.PENALTIES) and left_out < 0.1
    shared = y.float() + 0.1 * torch.randn(240, 1, generator=rng)
    l2, left_out = logistic.leave_groups_out(torch.cat([names, shared], 1), y, (2,), group, logistic.PENALTIES)
    assert l2 < max(logistic.PENALTIES) and left_out > 0.5
