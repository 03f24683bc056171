"""`intervene` takes a replacement, a function of the activation, or a TransformerLens hook, and does the same with each."""

import pytest
import torch

from compolens import intervene, record
from compolens.foundation.configs import ConfigError
from compolens.zoo.folders import load

SITE = "blocks.0.hook_resid_post"


@pytest.fixture
def model(tiny_models):
    return load(tiny_models["softmax"]).model


@pytest.fixture
def episodes(tiny_task):
    return tiny_task.sample(4, "test", tiny_task.rng(0, "test"))


def test_a_replacement_a_function_and_a_hook_do_the_same(model, episodes):
    stream = model.run_with_cache(episodes.tokens, names_filter=SITE)[1][SITE]
    other = stream.roll(1, 0)
    wanted = model.run_with_hooks(episodes.tokens, fwd_hooks=[(SITE, lambda x, hook: x.roll(1, 0))])
    named = []

    def hook_by_name(x, hook=None):
        named.append(hook.name)
        return x.roll(1, 0)

    def in_place(x):
        x.copy_(x.roll(1, 0))

    edits = [
        other, other.numpy(), lambda x: x.roll(1, 0), lambda x, hook: x.roll(1, 0), lambda x, point: x.roll(1, 0),
        hook_by_name, in_place, lambda x, shift=1: x.roll(shift, 0),
    ]  # fmt: skip
    assert not torch.equal(wanted, model(episodes))
    for edit in edits:
        assert torch.equal(intervene(model, episodes, {SITE: edit}), wanted)
    assert named == [SITE]
    assert torch.equal(intervene(model, episodes.tokens.numpy(), {SITE: other}), wanted)


def test_a_replacement_broadcasts_and_functions_of_torch_work(model, episodes):
    wanted = intervene(model, episodes, {SITE: lambda x: x * 0})
    assert torch.equal(intervene(model, episodes, {SITE: torch.zeros(model.cfg.d_model)}), wanted)
    assert torch.equal(intervene(model, episodes, {SITE: torch.zeros_like}), wanted)


def test_a_replacement_that_does_not_fit_is_an_error_with_both_shapes(model, episodes):
    with pytest.raises(ConfigError, match=rf"replacement \(3,\) does not fit the activation \(4, .*at '{SITE}'"):
        intervene(model, episodes, {SITE: torch.zeros(3)})
    with pytest.raises(ConfigError, match="must be a tensor or a function, got float"):
        intervene(model, episodes, {SITE: 0.0})
    with pytest.raises(ConfigError, match=rf"does not fit the activation \(4, .*at '{SITE}'"):
        intervene(model, episodes, {SITE: lambda x: x[:, :3]})


def test_what_a_function_returns_broadcasts_as_a_replacement_does(model, episodes):
    wanted = intervene(model, episodes, {SITE: lambda x: x.mean(0, keepdim=True).expand_as(x)})
    assert torch.equal(intervene(model, episodes, {SITE: lambda x: x.mean(0)}), wanted)
    assert torch.equal(intervene(model, episodes, {SITE: lambda x: x.mean(0).numpy()}), wanted)


def test_what_a_function_returns_is_cast_as_a_replacement_is(model, episodes):
    (seen,) = record(model, episodes, SITE)
    for kind in (torch.float64, torch.long):
        other = (9 * seen.sites[SITE]).to(kind)
        wanted = intervene(model, episodes, {SITE: other})
        assert torch.equal(intervene(model, episodes, {SITE: lambda x, other=other: other}), wanted)


def test_a_batch_and_a_name_are_recorded_as_they_are(model, episodes):
    (one,) = record(model, episodes, SITE)
    (listed,) = record(model, [episodes], [SITE])
    assert torch.equal(one.sites[SITE], listed.sites[SITE]) and one.sites.keys() == {SITE}


def test_a_trained_model_in_place_of_its_model_is_named(tiny_models, episodes):
    trained = load(tiny_models["softmax"])
    with pytest.raises(ConfigError, match=r"intervene takes a model, got a TrainedModel; type intervene\(trained.model, …\)"):
        intervene(trained, episodes, {SITE: torch.zeros_like})
    with pytest.raises(ConfigError, match=r"type record\(trained.model, …\)"):
        record(trained, episodes, SITE)
