"""Labelled items: what a context shows, what is held out, and that the question can be answered where it should be."""

import dataclasses

import pytest
import torch

from compolens.foundation.configs import ConfigError
from compolens.tasks import BurstyClassification

TASK = BurstyClassification(n_classes=12, n_labels=5, n_context=6, n_positions=20, d_item=40)


def items(task, episodes):
    """Items (n, N, D), label vectors (n, N, D) and the question's item (n, D), read off the tokens."""
    content = episodes.tokens[..., task.n_positions :]
    return content[:, 0:-1:2], content[:, 1::2], content[:, -1]


def nearest(vectors, among):
    return torch.cdist(vectors, among).argmin(-1)


@pytest.mark.parametrize("split", ["train", "ood"])
def test_a_learner_of_the_context_answers_everything_and_one_of_the_weights_training_classes_alone(split):
    episodes = TASK.sample(400, split, TASK.rng(0, split))
    shown, labels, asked = items(TASK, episodes)
    answer = episodes.targets[:, -1]
    told = nearest(labels, TASK.teacher[1])
    from_context = told.gather(1, nearest(asked[:, None], shown))[:, 0]
    assert torch.equal(from_context, answer)
    from_weights = nearest(asked, TASK.teacher[0]) % TASK.n_labels
    novel = episodes.composition == TASK.novel
    if split == "ood":
        assert not novel.any() and not (from_weights == answer).any()  # another label than training gave, always
    else:
        assert 0.7 < novel.double().mean() < 0.9
        assert torch.equal(from_weights[~novel], answer[~novel])
        assert (from_weights[novel] == answer[novel]).double().mean() < 0.35


def test_labels_of_training_classes_are_those_of_training_all_moved_by_the_same_shift():
    task = dataclasses.replace(TASK, shifts=3, noise=0.0)
    for split, shifts in (("test", {0}), ("ood", {1, 2, 3})):
        known = [c for c in task.compositions(split) if c != task.novel]
        episodes = task.sample(200, split, task.rng(1, split), known)
        shown, labels, _ = items(task, episodes)
        moved = (nearest(labels, task.teacher[1]) - nearest(shown, task.teacher[0])) % task.n_labels
        assert (moved == moved[:, :1]).all() and set(moved[:, 0].tolist()) == shifts
        names = {task.composition_name(int(c)) for c in episodes.composition}
        assert names <= {f"class {k}, label {(k + s) % 5}" for k in range(12) for s in shifts}


@pytest.mark.parametrize("burstiness", [1, 2, 3, 6])
def test_every_class_of_a_context_occurs_as_often_as_burstiness_says(burstiness):
    task = dataclasses.replace(TASK, burstiness=burstiness, noise=0.0, p_novel=0.5)
    episodes = task.sample(100, "test", task.rng(0, "test"))
    shown, _, asked = items(task, episodes)
    same = (torch.cdist(shown, shown) < 1e-3).sum(-1)
    assert (same == burstiness).all()
    assert ((torch.cdist(shown, asked[:, None]) < 1e-3).sum((1, 2)) == burstiness).all()


def test_without_burstiness_the_class_is_not_shown_and_weights_alone_can_tell():
    task = dataclasses.replace(TASK, p_bursty=0.0)
    assert task.novel not in task.compositions("train")
    episodes = task.sample(200, "test", task.rng(0, "test"))
    shown, _, asked = items(task, episodes)
    own = nearest(asked, task.teacher[0])
    assert torch.equal(own % task.n_labels, episodes.targets[:, -1])
    assert not (nearest(shown, task.teacher[0]) == own[:, None]).any()


def test_positions_count_from_a_random_start_and_items_have_the_noise_that_is_asked_for():
    episodes = TASK.sample(500, "train", TASK.rng(0, "train"))
    place = episodes.tokens[..., : TASK.n_positions].argmax(-1)
    assert (place.diff(dim=1) == 1).all()
    assert set(place[:, 0].tolist()) == set(range(TASK.n_positions - TASK.seq + 1))
    known = TASK.sample(500, "ood", TASK.rng(0, "ood"))
    asked = items(TASK, known)[2].double()
    means = TASK.teacher[0].double()[known.codes["class"]]
    noise = asked * (1 + TASK.noise**2) ** 0.5 - means
    assert float(noise.square().sum(1).mean()) == pytest.approx(TASK.noise**2, rel=0.1)


@pytest.mark.parametrize(
    ("settings", "said"),
    [({"burstiness": 4}, "must divide n_context=6, got 4"), ({"n_classes": 6}, "must exceed the 6 classes"),
     ({"shifts": 5}, "must be below n_labels=5, got 5"), ({"n_positions": 12}, "at least 13"),
     ({"p_novel": 1.5}, "between 0 and 1"), ({"noise": -0.1}, "not be negative")],
)  # fmt: skip
def test_settings_that_mean_nothing_are_refused(settings, said):
    with pytest.raises(ConfigError, match=said):
        dataclasses.replace(TASK, **settings)
