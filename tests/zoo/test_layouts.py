"""Language models are adopted as they are: their sites are found, hold what they should, and act; padding changes nothing."""

import json
import warnings

import numpy as np
import pytest
import torch
from torch import nn

import compolens
from compolens.activations.sites import Site, put
from compolens.diagnosis.groups import group
from compolens.foundation.configs import ConfigError, DoesNotApply
from compolens.hooks import bridge_around
from compolens.interventions.components import attributed, components, hold, shift
from compolens.interventions.edges import edge_scores, graph_of
from compolens.interventions.edges import written as written_by
from compolens.tasks import FixedEpisodes
from compolens.zoo.adopted.layouts import from_config, language_logits
from compolens.zoo.folders import overview

SIZE = {
    "vocab_size": 16, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2,
    "max_position_embeddings": 16, "bos_token_id": 0, "eos_token_id": 0, "pad_token_id": None,
}  # fmt: skip
GROUPED = SIZE | {"num_key_value_heads": 1, "head_dim": 8}
MODELS = {
    "gpt2": {
        "vocab_size": 16, "n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 16, "bos_token_id": 0, "eos_token_id": 0,
    },
    "llama": SIZE, "mistral": GROUPED, "qwen2": SIZE | {"num_key_value_heads": 1}, "qwen3": GROUPED, "gemma": GROUPED,
    "gemma2": GROUPED, "gpt_neox": SIZE,
}  # fmt: skip


def made(kind):
    torch.manual_seed(7)
    return from_config(json.dumps({"model_type": kind, **MODELS[kind]}))


def written(folder, padded=False):
    """Copy the first of 5 ids; compositions by the first and second."""
    rng = np.random.default_rng(0)
    tokens = np.stack([rng.permutation(15)[:5] + 1 for _ in range(400)])
    tokens = np.unique(tokens, axis=0)
    padding = np.arange(5) >= rng.integers(3, 6, len(tokens))[:, None] if padded else None
    if padding is not None:  # no two that show the same
        kept = np.unique(np.where(padding, 0, tokens), axis=0, return_index=True)[1]
        tokens, padding = tokens[kept], padding[kept]
    composition = 3 * (tokens[:, 0] % 3) + tokens[:, 1] % 3
    split = np.where(composition % 4 == 3, "ood", np.where(np.arange(len(tokens)) % 3 == 0, "test", "train"))
    codes = {"first": tokens[:, 0] % 3, "second": tokens[:, 1] % 3}
    return FixedEpisodes.write(
        folder, tokens=tokens, targets=tokens[:, 0], composition=composition, split=split, codes=codes, padding=padding,
        at_least=1,
    )  # fmt: skip


@pytest.fixture(scope="module")
def task(tmp_path_factory):
    return written(tmp_path_factory.mktemp("layouts") / "plain")


@pytest.fixture(scope="module")
def drawn(task):
    return task.sample(6, "test", task.rng(0, "test"))


@pytest.mark.parametrize("kind", MODELS)
def test_a_language_model_needs_no_sites(kind, task, drawn):
    module = made(kind)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # no site is dead, misshapen or gone round
        adopted = compolens.adopt(module, task)
    ids = drawn.tokens.argmax(-1)
    with torch.no_grad():
        told = module(input_ids=ids, output_hidden_states=True)
        prediction, cache = adopted.model.run_with_cache(drawn.tokens)
    torch.testing.assert_close(prediction, told.logits[..., : task.d_out], rtol=0, atol=1e-5)
    assert adopted.model.cfg.n_layers == 2
    for layer, name in enumerate(("blocks.0.hook_resid_pre", "blocks.0.hook_resid_post")):
        torch.testing.assert_close(cache[name], told.hidden_states[layer], rtol=0, atol=1e-5)
    assert cache["blocks.1.attn.hook_z"].shape == (6, 5, 2, 8) and cache["blocks.1.mlp.hook_post"].ndim == 3
    if kind not in ("gemma2",):  # there, what is added is normalised after attention and MLP
        parts = cache["blocks.0.hook_resid_pre"] + cache["blocks.0.hook_attn_out"] + cache["blocks.0.hook_mlp_out"]
        torch.testing.assert_close(parts, cache["blocks.0.hook_resid_post"], rtol=0, atol=1e-5)


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_it_is_saved_loaded_and_has_an_untrained_control(kind, task, drawn, tmp_path):
    adopted = compolens.adopt(made(kind), task, evaluation_episodes=16)
    loaded = compolens.load(adopted.save(tmp_path / "model"))
    with torch.no_grad():
        assert torch.equal(loaded.model(drawn.tokens), adopted.model(drawn.tokens))
        assert not torch.equal(loaded.untrained_control()(drawn.tokens), adopted.model(drawn.tokens))


@pytest.mark.parametrize("kind", ["gpt2", "llama", "gpt_neox"])
def test_padding_changes_no_answer(kind, tmp_path):
    task, module = written(tmp_path / "padded", padded=True), made(kind)
    drawn = task.sample(12, "train", task.rng(0, "train"))
    adopted = compolens.adopt(module, task)
    with torch.no_grad():
        answers = adopted.model(drawn.tokens)[:, -1]
        for one, answer in zip(drawn.tokens, answers, strict=True):
            ids = one[one.any(1)].argmax(-1)[None]
            torch.testing.assert_close(module(input_ids=ids).logits[0, -1, : task.d_out], answer, rtol=0, atol=1e-4)


@pytest.fixture(params=["its own", "gpt2", "llama"])
def bridge(request):
    if request.param == "its own":
        return own_bridge()
    module = made(request.param)
    return bridge_around(module, type(module).__name__)


def own_bridge():
    from transformer_lens.config import TransformerBridgeConfig
    from transformer_lens.model_bridge import TransformerBridge

    torch.manual_seed(7)
    size = {"d_model": 16, "d_head": 8, "n_heads": 2, "n_layers": 2, "n_ctx": 16, "d_vocab": 16, "act_fn": "relu", "d_mlp": 24}
    return TransformerBridge.boot_native(TransformerBridgeConfig(**size, architecture="TransformerLensNative")).eval()


def test_padding_changes_no_answer_of_a_bridge(bridge, tmp_path):
    task = written(tmp_path / "padded", padded=True)
    drawn = task.sample(12, "train", task.rng(0, "train"))
    adopted = compolens.adopt(bridge, task)
    lengths = drawn.tokens.any(-1).sum(1)
    assert len(set(lengths.tolist())) > 1
    with torch.no_grad():
        answers = adopted.model(drawn.tokens)[:, -1]
        for one, answer in zip(drawn.tokens, answers, strict=True):
            ids = one[one.any(1)].argmax(-1)[None]
            torch.testing.assert_close(bridge(ids)[0, -1, : task.d_out], answer, rtol=0, atol=1e-4)


def test_a_bridge_is_saved_loaded_and_has_an_untrained_control(bridge, task, drawn, tmp_path):
    adopted = compolens.adopt(bridge, task, evaluation_episodes=16)
    loaded = compolens.load(adopted.save(tmp_path / "model"))
    with torch.no_grad():
        assert torch.equal(loaded.model(drawn.tokens), adopted.model(drawn.tokens))
        assert not torch.equal(loaded.untrained_control()(drawn.tokens), adopted.model(drawn.tokens))
        first, second = (loaded.untrained_control()(drawn.tokens) for _ in range(2))
        assert torch.equal(first, second), "its weights are drawn from the seed"


def test_models_are_called_by_their_layout_and_told_apart_by_what_differs(task, tmp_path):
    folders, around = [], made("gpt2")
    bridge = bridge_around(around, type(around).__name__)
    for name, module in {"gpt2": made("gpt2"), "llama": made("llama"), "bridge": bridge}.items():
        folders.append(compolens.adopt(module, task, evaluation_episodes=16).save(tmp_path / name))
    wide = from_config(json.dumps({"model_type": "gpt2", **MODELS["gpt2"], "n_embd": 24}))
    folders.append(compolens.adopt(wide, task, evaluation_episodes=16).save(tmp_path / "wide"))
    labels = [one.label for one in group(folders)]
    assert labels[0] == "gpt2 (n_embd 16)" and labels[3] == "gpt2 (n_embd 24)"
    assert labels[1] == "llama" and labels[2] == "TransformerBridge of gpt2"
    assert overview(folders[0])["architecture"] == "gpt2" and "gpt2 (" in (folders[0] / "README.md").read_text()


def test_of_attention_that_hides_its_weights_a_bridge_is_named(task):
    model = compolens.adopt(made("llama"), task, evaluation_episodes=16).model
    with pytest.raises(DoesNotApply, match="adopt a TransformerBridge around the model"):
        model.check_site("blocks.0.attn.hook_code")


def test_a_model_that_flattens_what_its_mlp_reads_is_adopted_without_that_site(task):
    sizes = {"hidden_size": 16, "ffn_dim": 24, "num_hidden_layers": 2, "num_attention_heads": 2, "word_embed_proj_dim": 16}
    ends = {"vocab_size": 16, "max_position_embeddings": 16, "bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 1}
    model = compolens.adopt(from_config(json.dumps({"model_type": "opt", **sizes, **ends})), task).model
    assert "blocks.1.hook_resid_post" in model.hook_dict and "blocks.1.hook_mlp_in" not in model.hook_dict


def test_a_bridge_whose_weights_were_folded_says_that_it_cannot_be_made_again(task, tmp_path):
    module = made("gpt2")
    with torch.no_grad():
        module.transformer.h[0].ln_1.weight.mul_(2)  # there is something to fold
    bridge = bridge_around(module, type(module).__name__)
    bridge.enable_compatibility_mode()
    with pytest.raises(ConfigError, match="built_by="):
        compolens.adopt(bridge, task, evaluation_episodes=16).save(tmp_path / "model")


def test_a_bridge_needs_no_sites_and_shows_its_attention(bridge, task, drawn):
    adopted = compolens.adopt(bridge, task)
    with torch.no_grad():
        logits, theirs = bridge.run_with_cache(drawn.tokens.argmax(-1))
        prediction, ours = adopted.model.run_with_cache(drawn.tokens)
    torch.testing.assert_close(prediction, logits[..., : task.d_out], rtol=0, atol=1e-5)
    for name in ("blocks.0.hook_resid_pre", "blocks.1.hook_resid_post", "blocks.1.attn.hook_z", "blocks.0.hook_mlp_out"):
        torch.testing.assert_close(ours[name], theirs[name], rtol=0, atol=1e-5)
    pattern = theirs["blocks.1.attn.hook_pattern"].permute(0, 2, 3, 1)
    torch.testing.assert_close(ours["blocks.1.attn.hook_code"], pattern, rtol=0, atol=1e-5)


class Looped(nn.Module):
    """One block, three times; an output that nobody uses; a narrow part."""

    def __init__(self, vocabulary, classes):
        super().__init__()
        self.embed, self.block = nn.Linear(vocabulary, 8), nn.Sequential(nn.Linear(8, 8), nn.Tanh())
        self.unused, self.read = nn.Linear(8, 8), nn.Linear(8, classes)

    def forward(self, tokens):
        x = self.embed(tokens).cumsum(1)
        for _ in range(3):
            x = self.block(x)
            self.unused(x)
        return self.read(x)


@pytest.fixture
def looped(task):
    torch.manual_seed(7)
    return Looped(task.d_in, task.d_out).eval()


def test_a_module_called_several_times_is_named_by_the_call(looped, task, drawn):
    sites = {"blocks.0.hook_resid_pre": "embed"}
    sites |= {f"blocks.{k}.hook_resid_post": (f"block@{k}", "output") for k in range(3)}
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*hook_resid_pre.*goes round")
        model = compolens.adopt(looped, task, sites=sites).model
    with torch.no_grad():
        _, cache = model.run_with_cache(drawn.tokens)
        for k in range(2):
            assert torch.equal(looped.block(cache[f"blocks.{k}.hook_resid_post"]), cache[f"blocks.{k + 1}.hook_resid_post"])
        cut = model.run_with_hooks(drawn.tokens, fwd_hooks=[("blocks.1.hook_resid_post", lambda x, hook: x * 0)])
        assert torch.equal(cut, looped.read(looped.block(torch.zeros_like(cache["blocks.0.hook_resid_post"]))))
    with pytest.raises(ConfigError, match=r"'block' was called 3 times .* say which call, such as \"block@0\""):
        compolens.adopt(looped, task, sites={"blocks.0.hook_resid_post": "block"})
    with pytest.raises(ConfigError, match="there is no call number 3; they count from 0"):
        compolens.adopt(looped, task, sites={"blocks.0.hook_resid_post": "block@3"})


def test_a_dead_site_and_one_that_is_not_what_it_is_called_are_told(looped, task):
    with pytest.warns(UserWarning, match="'blocks.0.hook_mlp_out': changing it changes no answer"):
        compolens.adopt(looped, task, sites={"blocks.0.hook_resid_post": "block@2", "blocks.0.hook_mlp_out": "unused@2"})
    with pytest.warns(UserWarning, match="'blocks.0.attn.hook_z' holds .* behind it the name is hook_attn_out"):
        compolens.adopt(looped, task, sites={"blocks.0.attn.hook_z": "block@1", "blocks.0.hook_resid_post": "block@2"})
    with pytest.warns(UserWarning, match="'blocks.0.hook_attn_out' holds .* as wide as that, 8"):
        compolens.adopt(looped, task, sites={"blocks.0.hook_attn_out": "read", "blocks.0.hook_resid_post": "block@2"})


def test_without_sites_an_unknown_network_names_its_parts(looped, task):
    with pytest.raises(ConfigError, match=r"where things are in a Looped is .* submodules: embed, block"):
        compolens.adopt(looped, task)


def test_ids_are_taken_as_they_are(task, drawn):
    module = made("gpt2")
    with torch.no_grad():
        assert torch.equal(language_logits(module, drawn.tokens), language_logits(module, drawn.tokens.argmax(-1)))


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_of_a_large_vocabulary_the_answers_logits_alone_are_kept(kind, task, drawn, monkeypatch):
    adopted = compolens.adopt(made(kind), task)
    with torch.no_grad():
        whole = adopted.model(drawn.tokens)
        monkeypatch.setattr("compolens.zoo.adopted.model.MANY", 10)
        alone, cache = adopted.model.run_with_cache(drawn.tokens)
    assert alone.shape == whole.shape and alone.stride(1) == 0, "one answer's memory"
    torch.testing.assert_close(alone[:, -1], whole[:, -1], rtol=0, atol=1e-6)
    assert cache["blocks.1.hook_resid_post"].shape[1] == drawn.tokens.shape[1], "the stream is whole"
    assert adopted.model(drawn.tokens).stride(1) > 0, "with gradients all logits are there"


def test_a_search_asks_the_answers_logits_alone_and_has_the_same_gradient(task, drawn, monkeypatch):
    model = compolens.adopt(made("gpt2"), task).model
    site = Site(1, "blocks.0.hook_resid_post", "all")
    with torch.no_grad():
        stream = model.run_with_cache(drawn.tokens)[1][site.hook_name]
    gradients = []
    for many in (1 << 20, 10):
        monkeypatch.setattr("compolens.zoo.adopted.model.MANY", many)
        written = stream.clone().requires_grad_()
        prediction = put(model, drawn.tokens, site, written)
        assert (prediction.stride(1) == 0) == (many == 10)
        gradients += torch.autograd.grad(task.loss(prediction, drawn.targets), written)
    assert gradients[0].abs().max() > 0
    torch.testing.assert_close(gradients[1], gradients[0], rtol=1e-5, atol=1e-8)
    assert model(drawn.tokens).stride(1) > 0, "all logits again"


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_effects_of_parts_and_edges_ask_the_answers_logits_alone(kind, task, drawn, monkeypatch):
    model, seen = compolens.adopt(made(kind), task).model, []
    parts = components(model, drawn.tokens)
    other = drawn._replace(tokens=drawn.tokens.roll(1, 0))
    graph, answered = graph_of(model, drawn.tokens), model.run_for_answers
    monkeypatch.setattr(model, "run_for_answers", lambda *given: seen.append(answered(*given)) or seen[-1])
    found = []
    for many in (1 << 20, 10):
        monkeypatch.setattr("compolens.zoo.adopted.model.MANY", many)
        own, donor = hold(model, drawn, parts), hold(model, other, parts)
        goal = shift(task, own.prediction, donor.prediction, drawn.targets)
        estimates = attributed(model, task, drawn, own, donor, parts, goal)
        wrote = written_by(model, graph, drawn), written_by(model, graph, other)
        scores = edge_scores(model, task, graph, drawn, *wrote, goal)
        found.append((torch.stack(list(estimates.values())), torch.from_numpy(scores)))
    assert [out.stride(1) == 0 for out in seen] == [False, False, True, True]
    for whole, alone in zip(*found, strict=True):
        assert whole.abs().max() > 0
        torch.testing.assert_close(alone, whole, rtol=1e-4, atol=1e-6)
