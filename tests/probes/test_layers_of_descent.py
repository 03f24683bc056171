"""What weights say of a layer is what the layer does: rates, and maps that the weights do not show."""

import pytest
import torch

from compolens import Run, load, recipes, train
from compolens.foundation.configs import DoesNotApply
from compolens.models import ARCHITECTURES
from compolens.tasks import LinearRegression


def made(folder, name, **sizes):
    task = LinearRegression(d_x=3, n_context=8)
    train(Run(ARCHITECTURES[name](**sizes), task, steps=0, evaluation_episodes=8), folder)
    return load(folder)


@pytest.mark.parametrize("damping", [1.0, 0.5])
def test_the_rate_is_what_a_layer_adds_to_the_stream(tmp_path, damping):
    trained = made(tmp_path / "m", "ConstructedGradientDescent", n_layers=1, eta=0.7, damping=damping)
    table, _ = recipes.load_recipe("probes", "weight_structure")(trained, episodes=8)
    rate = table[(table["metric"] == "eta") & (table["control"] == "")]["value"]
    assert rate.tolist() == pytest.approx([0.7 * damping])


def test_weights_behind_further_maps_are_not_read_as_the_layer(tmp_path):
    trained = made(tmp_path / "m", "AugmentedSelfAttention")
    with pytest.raises(DoesNotApply, match="further maps"):
        recipes.load_recipe("probes", "weight_structure")(trained, episodes=8)


def test_further_inputs_are_more_than_a_small_batch_has():
    """Of d_x inputs or fewer, any function is linear."""
    task = LinearRegression(d_x=3, n_context=8)
    for n, fresh in ((2, True), (256, False)):
        episodes = task.sample(n, "test", task.rng(0, "test"))
        found = task.further_inputs(episodes, 40)
        assert found.shape == (n, 40, 3) and torch.equal(found, task.further_inputs(episodes, 40))
        own = task.prompts(episodes)[2].flatten(0, 1)
        known = (found.flatten(0, 1)[:, None] == own[None]).all(-1).any(1)
        assert known.all() != fresh and known.any() != fresh
