"""Regression on a fixed representation: what the representation is, and which learner is ideal."""

from dataclasses import replace

import pytest
import torch

from compolens.foundation.configs import ConfigError
from compolens.references import LeastSquares, PosteriorMean, Ridge
from compolens.tasks import GaussianInputs, InterleavedTokens, JointTokens, LinearRegression, RepresentationRegression

TASK = RepresentationRegression(d_x=3, n_context=6, noise=0.0, layout=InterleavedTokens())


def drawn(task, split="test", n=64):
    return task.sample(n, split, task.rng(0, split))


def test_a_layer_is_a_rotation_and_a_leaky_rectifier():
    (rotation,) = TASK._rotations
    assert torch.allclose(rotation @ rotation.T, torch.eye(3), atol=1e-6)
    x = torch.randn(5, 3, generator=torch.Generator().manual_seed(0))
    turned = torch.einsum("ij,nj->ni", rotation, x)
    assert torch.allclose(TASK.represent(x), torch.where(turned > 0, turned, TASK.leak * turned), atol=1e-6)


def test_with_a_leak_of_one_it_is_linear_regression_with_turned_weights():
    turned = replace(TASK, leak=1.0, depth=2)
    episodes = drawn(turned)
    plain = turned.plain
    assert type(plain) is LinearRegression and plain.d_x == 3 and plain.noise == 0
    first, second = turned._rotations
    weights = episodes.codes["weights"].view(-1, 3, 1)
    same = plain.render({**episodes.codes, "weights": ((second @ first).T @ weights).flatten(1)}, episodes.inputs)
    assert torch.allclose(same.tokens, episodes.tokens, atol=1e-5)
    assert torch.allclose(same.targets, episodes.targets, atol=1e-5)


@pytest.mark.parametrize("layout", [TASK.layout, JointTokens()], ids=["in turn", "joint"])
def test_least_squares_on_the_representation_is_exact_and_on_x_is_not(layout):
    task = replace(TASK, layout=layout)
    episodes = drawn(task)
    last = task.answers[-1]
    found = LeastSquares().predict(task, episodes)[:, last]
    assert torch.allclose(found, episodes.targets[:, last], atol=1e-3)
    raw = task.raw_prompts(episodes)
    missed = LeastSquares().answers(raw.x, raw.y, raw.asked, raw.shown)[:, -1] - episodes.targets[:, last]
    assert missed.square().mean() > 0.1


def test_ridge_with_the_noise_as_penalty_is_the_posterior_mean():
    task = replace(TASK, noise=0.5)
    episodes = drawn(task)
    assert torch.allclose(PosteriorMean().predict(task, episodes), Ridge(0.25).predict(task, episodes), atol=1e-5)


def test_the_representation_is_the_same_in_all_splits_and_for_all_teachers_and_is_a_field():
    x = torch.randn(4, 3)
    assert torch.equal(TASK.represent(x), replace(TASK, teacher_seed=7).represent(x))
    assert not torch.allclose(TASK.represent(x), replace(TASK, representation_seed=1).represent(x))
    for split in ("train", "ood"):
        prompts, episodes = TASK.prompts(drawn(TASK, split)), drawn(TASK, split)
        weights = episodes.codes["weights"].view(-1, 3, 1)
        assert torch.allclose(prompts.asked @ weights, episodes.targets[:, list(TASK.answers)], atol=1e-5)


def test_other_last_questions_are_answered_under_the_representation():
    task = replace(TASK, layout=JointTokens(), inputs=GaussianInputs())
    episodes = drawn(task, n=8)
    x = task.further_inputs(episodes, 5)
    asked = task.asking(episodes, x)
    assert torch.equal(asked.tokens[:, -1, :3], x.flatten(0, 1))
    found = LeastSquares().predict(task, asked)[:, -1]
    assert torch.allclose(found, asked.targets[:, -1], atol=1e-3)


@pytest.mark.parametrize("wrong", [{"depth": 0}, {"leak": -0.1}, {"leak": 1.5}])
def test_a_representation_that_cannot_be_is_refused(wrong):
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        replace(TASK, **wrong)
