"""What users of TransformerLens and numpy type first does what they mean: inputs, return types, weights by name."""

import copy
import subprocess
import sys

import numpy as np
import pytest
import torch

import compolens
from compolens import Run, SoftmaxTransformer
from compolens.foundation.configs import ConfigError
from compolens.models import ARCHITECTURES
from compolens.tasks import FAMILIES
from compolens.zoo.folders import load


@pytest.fixture
def trained(tiny_models):
    return load(tiny_models["softmax"])


@pytest.fixture
def model(trained):
    return trained.model


@pytest.fixture
def episodes(trained):
    return trained.task.sample(5, "test", trained.task.rng(0, "test"))


def test_tab_completion_shows_what_there_is_without_loading_torch():
    script = "import sys, compolens; print(*dir(compolens)); print('torch' in sys.modules)"
    names, torch_too = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    assert {"load", "adopt", "gather", "intervene", "record", "train", "show", "tasks", "zoo"} <= set(names.split())
    assert torch_too == "False"
    assert all(hasattr(compolens, name) for name in dir(compolens))
    assert {"SoftmaxTransformer", "Hyperteacher"} <= set(dir(compolens))  # loaded above


def test_a_star_import_brings_what_all_names():
    names: dict = {}
    exec("from compolens import *", names)
    assert set(compolens.__all__) <= set(names) and names["load"] is compolens.load
    assert set(ARCHITECTURES) | set(FAMILIES) <= set(names), "classes, too, which are known once torch is loaded"


def test_arrays_and_episodes_are_read_like_tensors(model, episodes):
    plain, cached = model(episodes.tokens), model.run_with_cache(episodes.tokens)[0]
    for given in (episodes, episodes.tokens.numpy(), episodes.tokens.numpy().astype(np.float64)):
        assert torch.equal(model(given), plain) and torch.equal(model(tokens=given), plain)
        assert torch.equal(model.run_with_cache(given)[0], cached)
        assert torch.equal(model.run_with_hooks(given, fwd_hooks=[]), plain)
    backwards = episodes.tokens.numpy()[::-1]
    assert torch.equal(model(backwards), model(episodes.tokens.flip(0)))


def test_token_ids_are_read_as_arrays_too(tiny_categorical_models):
    trained = load(tiny_categorical_models["hyla"])
    episodes = trained.task.sample(3, "test", trained.task.rng(0, "test"))
    assert torch.equal(trained.model(episodes.tokens.numpy()), trained.model(episodes))


@pytest.mark.parametrize("given", [[[0.0]], "tokens", np.array(["a"]), None])
def test_what_is_no_input_is_answered_in_one_line(model, given):
    with pytest.raises(ConfigError, match="a model takes tokens as a tensor, a numpy array of numbers, or Episodes, got"):
        model(given)


def test_return_types_are_those_of_transformer_lens(trained, model, episodes):
    prediction = model(episodes)
    loss = trained.task.loss(prediction, episodes.targets)
    assert torch.equal(model(episodes, return_type="loss"), loss) and torch.equal(
        model(episodes, return_type="logits"), prediction
    )
    both = model(episodes, return_type="both")
    assert torch.equal(both.logits, prediction) and torch.equal(both.loss, loss)
    assert model(episodes, return_type=None) is None
    zeroed = [("blocks.0.hook_attn_out", lambda x, hook: torch.zeros_like(x))]
    ablated = model.run_with_hooks(episodes, fwd_hooks=zeroed)
    assert torch.equal(
        model.run_with_hooks(episodes, return_type="loss", fwd_hooks=zeroed), trained.task.loss(ablated, episodes.targets)
    )
    assert copy.deepcopy(model).task_loss is model.task_loss


def test_gradients_of_the_loss_are_cached(model, episodes):
    loss, cache = model.run_with_cache(episodes, return_type="loss", incl_bwd=True)
    name = "blocks.1.hook_resid_post"
    stream = cache[name].detach().requires_grad_()
    again = model.task_loss(model.unembed(model.ln_final(stream)), episodes.targets)
    (expected,) = torch.autograd.grad(again, stream)
    assert torch.allclose(cache[f"{name}_grad"], expected, atol=1e-7) and expected.abs().max() > 0
    assert torch.allclose(loss, again)


def test_a_loss_that_is_not_known_is_an_error_that_says_what_to_type(trained, model, episodes):
    with pytest.raises(ConfigError, match=r"'loss' needs episodes, .* got Tensor; type model\(episodes, return_type='loss'\)"):
        model(episodes.tokens, return_type="loss")
    with pytest.raises(ConfigError, match="return_type must be 'logits', 'loss', 'both' or None, got 'los'"):
        model(episodes, return_type="los")
    with pytest.raises(ConfigError, match="stopped at a layer"):
        model(episodes, return_type="loss", stop_at_layer=1)
    alone = trained.run.architecture.build(**trained.task.dimensions)
    with pytest.raises(ConfigError, match=r"does not know its task's loss.*Run\(…\).build\(\)"):
        alone(episodes, return_type="both")


def test_weights_of_mlps_are_stacked_by_layer(model, trained):
    for name in ("W_in", "b_in", "W_out", "b_out"):
        stacked = getattr(model, name)
        assert all(torch.equal(stacked[i], getattr(block.mlp, name)) for i, block in enumerate(model.blocks))
    cfg = model.cfg
    assert model.W_in.shape == (cfg.n_layers, cfg.d_model, cfg.d_mlp) and model.W_out.shape == model.W_in.mT.shape
    without = Run(SoftmaxTransformer(n_layers=1, d_model=8, n_heads=2, attn_only=True), trained.task).build()
    with pytest.raises(ConfigError, match=r"no MLPs \(attn_only\), hence no W_in"):
        _ = without.W_in
