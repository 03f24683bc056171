"""Answers that an episode is not asked count nowhere: not in fits, not in distances."""

from importlib import import_module

import numpy as np
import pytest
import torch

from compolens import Run, SoftmaxTransformer, load, network_baselines, recipes, train
from compolens.network_baselines import FrozenReadout, Linearised, Tangent
from compolens.tasks import FixedEpisodes


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A model of stored episodes with two answers, of which the second is asked for in every fifth; class 0 is never right."""
    folder, rng = tmp_path_factory.mktemp("unasked"), np.random.default_rng(0)
    first, second = np.divmod(np.repeat(np.arange(9), 40), 3)
    tokens = np.stack([first, second, rng.integers(0, 3, 360), np.tile(np.arange(40), 9)], 1)
    targets = np.stack([1 + first, 1 + second], 1)
    targets[np.arange(360) % 5 != 0, 1] = -100
    split = np.where(first + second == 3, "ood", np.where(np.arange(360) % 4 == 0, "test", "train"))
    given = {"tokens": tokens, "targets": targets, "composition": 3 * first + second, "split": split}
    task = FixedEpisodes.write(folder / "episodes", **given, codes={"first": first, "second": second}, answers=(-2, -1))
    train(Run(SoftmaxTransformer(n_layers=1, d_model=16, n_heads=2), task, steps=0, evaluation_episodes=32), folder / "model")
    return load(folder / "model")


def test_a_readout_is_fitted_to_what_is_asked(trained):
    """Nothing that is asked has class 0, so least squares with an intercept give it 0 everywhere."""
    batch = trained.task.sample(64, "train", trained.task.rng(0, "train"))
    found = FrozenReadout.fit(trained, episodes=256).predict(batch)[:, list(trained.task.answers)]
    assert found[..., 0].abs().max() < 1e-5 < found[..., 1:].abs().max()


def test_descent_moves_only_by_what_is_asked(trained):
    batch = trained.task.sample(16, "train", trained.task.rng(0, "train"))
    tangent = Tangent(trained.untrained_control(), trained.task.answers)
    direction = torch.randn(tangent.size, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    counts = network_baselines.asked(trained.task, batch)
    assert 0 < counts[:, 1].sum() < len(counts) == counts[:, 0].sum()
    whole, first = (tangent.normal(batch.tokens, direction, c) for c in (torch.ones_like(counts), counts))
    rest = tangent.normal(batch.tokens, direction, ~counts)
    assert first[0] + rest[0] == pytest.approx(whole[0], rel=1e-5) and first[0] < whole[0]
    torch.testing.assert_close(first[1] + rest[1], whole[1], rtol=1e-3, atol=1e-4)
    assert Linearised.fit(trained, episodes=32, iterations=2).descent.left_out[0] > 0


def test_distances_leave_out_what_is_not_asked(trained):
    module = import_module(recipes.load_recipe("probes", "which_prior").__module__)
    task, batch = trained.task, trained.task.sample(40, "test", trained.task.rng(0, "test"))
    said = torch.zeros(len(batch.tokens), task.seq, task.d_out)
    said.scatter_(2, batch.targets.clamp(min=0)[..., None], 1.0)
    other = said.clone()
    unasked = batch.targets < 0
    other[unasked] = torch.eye(task.d_out)[-1]
    split = module.Split(task, "test", [batch], {"model": [said], "other": [other]}, np.ones(40), batch.composition.numpy())
    assert (said.argmax(-1) != other.argmax(-1)).any() and not module._errors(split, "model", "other").any()


def test_an_answer_that_is_no_number_is_wrong(trained):
    task = trained.task
    batch = task.sample(40, "test", task.rng(0, "test"))
    for metric, (error, weight) in task.metrics(
        torch.full((len(batch.tokens), task.seq, task.d_out), torch.nan), batch.targets
    ).items():
        assert (error[weight > 0] == weight[weight > 0]).all(), metric
