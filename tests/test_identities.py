"""Identities: the networks are the textbook ones, the residual stream adds up, and the known solution is a solution."""

import pytest
import torch
from torch.nn import functional

from compolens import (
    BottleneckMLP,
    HypernetworkTransformer,
    Hyperteacher,
    Run,
    SoftmaxTransformer,
    UnstructuredTeacher,
    intervene,
)
from compolens.hooks import LayerNorm
from compolens.models import count_parameters

SIZES = {"n_layers": 2, "d_model": 16, "n_heads": 2}
VARIANTS = [{}, {"d_head": 5, "d_value": 3, "d_mlp": 7}, {"causal": True}]
EXACT = {"rtol": 1e-12, "atol": 1e-12}


def randomised(model):
    """Every parameter, biases and gains included, at a generic value: nothing hides behind a 0 or a 1."""
    rng = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(0.4 * torch.randn(parameter.shape, generator=rng) + 0.1)
    return model


@pytest.fixture(params=VARIANTS, ids=str)
def model(request, tiny_task):
    return randomised(Run(SoftmaxTransformer(**SIZES, **request.param), tiny_task).build()).double()


@pytest.fixture
def tokens(tiny_task):
    return tiny_task.sample(5, "test", tiny_task.rng(0, "test")).tokens.double()


# ---- the textbook ----------------------------------------------------------------------------------------------------
def test_attention_is_torchs_scaled_dot_product_attention(model, tokens):
    _, cache = model.run_with_cache(tokens)
    for layer, block in enumerate(model.blocks):
        q, k, v = (cache[name, layer].transpose(1, 2) for name in "qkv")
        z = functional.scaled_dot_product_attention(q, k, v, attn_mask=block.attn.mask)
        torch.testing.assert_close(cache["z", layer], z.transpose(1, 2), **EXACT)


def textbook(model, tokens):
    """The forward pass of a pre-norm transformer, written with torch.nn.functional alone."""
    w = model.state_dict()

    def norm(x, name):
        return functional.layer_norm(x, x.shape[-1:], w[f"{name}.w"], w[f"{name}.b"], 1e-6)

    x = tokens @ w["embed.W_E"] + w["embed.b_E"]
    for layer, block in enumerate(model.blocks):
        at = f"blocks.{layer}.attn."
        heads = (
            torch.einsum("bpm,hme->bhpe", norm(x, f"blocks.{layer}.ln1"), w[f"{at}W_{n}"]) + w[f"{at}b_{n}"][:, None]
            for n in "QKV"
        )
        z = functional.scaled_dot_product_attention(*heads, attn_mask=block.attn.mask)
        x = x + torch.einsum("bhpe,hem->bpm", z, w[f"{at}W_O"]) + w[f"{at}b_O"]
        mlp = f"blocks.{layer}.mlp."
        hidden = functional.gelu(norm(x, f"blocks.{layer}.ln2") @ w[f"{mlp}W_in"] + w[f"{mlp}b_in"], approximate="tanh")
        x = x + hidden @ w[f"{mlp}W_out"] + w[f"{mlp}b_out"]
    return norm(x, "ln_final") @ w["unembed.W_U"] + w["unembed.b_U"]


def test_a_softmax_transformer_is_the_textbook_one(model, tokens):
    torch.testing.assert_close(model(tokens), textbook(model, tokens), **EXACT)


def test_the_mask_is_the_tasks(tiny_task):
    model = Run(SoftmaxTransformer(**SIZES), tiny_task).build()
    assert all(torch.equal(block.attn.mask, tiny_task.mask) for block in model.blocks)


def test_a_softmax_ignores_the_keys_bias(model, tokens):
    before = model(tokens)
    with torch.no_grad():
        for block in model.blocks:
            block.attn.b_K.add_(3.0)
    torch.testing.assert_close(model(tokens), before, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-5)])
def test_layer_norm_is_torchs_whether_fused_or_hooked(dtype, tolerance):
    norm = randomised(LayerNorm(12)).to(dtype)
    x = 3 * torch.randn(7, 5, 12, generator=torch.Generator().manual_seed(1)).to(dtype) + 1
    expected = functional.layer_norm(x, (12,), norm.w, norm.b, 1e-6)
    assert torch.equal(norm(x), expected)
    for point in (norm.hook_scale, norm.hook_normalized):
        point.add_hook(lambda tensor, hook: None)
        torch.testing.assert_close(norm(x), expected, rtol=tolerance, atol=tolerance)
        point.remove_hooks()


def test_layer_norm_hooks_hold_scale_and_normalised(model, tokens):
    _, cache = model.run_with_cache(tokens)
    resid = cache["resid_pre", 1]
    scale = (resid.var(-1, unbiased=False, keepdim=True) + 1e-6).sqrt()
    torch.testing.assert_close(cache["scale", 1, "ln1"], scale, **EXACT)
    centred = resid - resid.mean(-1, keepdim=True)
    torch.testing.assert_close(cache["normalized", 1, "ln1"], centred / scale, **EXACT)


def closed_formula(sizes, d_in, d_out):
    d_model, heads, d_head, d_value, d_mlp = sizes.d_model, sizes.n_heads, sizes.d_head, sizes.d_value, sizes.d_mlp
    attention = heads * (d_model + 1) * (2 * d_head + d_value) + heads * d_value * d_model + d_model
    mlp = (d_model + 1) * d_mlp + (d_mlp + 1) * d_model
    block = attention + mlp + 4 * d_model
    return (d_in + 1) * d_model + sizes.n_layers * block + 2 * d_model + (d_model + 1) * d_out


def test_the_parameters_are_as_many_as_the_formula_says(tiny_task, model):
    assert count_parameters(model) == closed_formula(model.cfg, 7, 2)
    encoder = {**SIZES, "d_code": 5, "d_hidden": 11}
    hypernetwork = Run(HypernetworkTransformer(**encoder), tiny_task).build()
    summary, executor = 16, 5 * 4 * 11 + 11 * 2 + 2
    assert count_parameters(hypernetwork) == closed_formula(hypernetwork.cfg, 7, 5) + summary + executor
    bottleneck = Run(BottleneckMLP(**encoder), tiny_task).build()
    executor = (5 + 4 + 1) * 11 + (11 + 1) * 11 + (11 + 1) * 2
    assert count_parameters(bottleneck) == closed_formula(bottleneck.cfg, 7, 5) + summary + executor


# ---- the residual stream adds up -------------------------------------------------------------------------------------
def test_the_residual_stream_is_the_sum_of_what_is_written_to_it(model, tokens):
    _, cache = model.run_with_cache(tokens)
    assert torch.equal(cache["resid_pre", 0], cache["hook_embed"])
    for layer in range(2):
        assert torch.equal(cache["resid_pre", layer] + cache["attn_out", layer], cache["resid_mid", layer])
        assert torch.equal(cache["resid_mid", layer] + cache["mlp_out", layer], cache["resid_post", layer])


def test_decomposing_the_residual_stream_sums_to_it(model, tokens):
    _, cache = model.run_with_cache(tokens)
    parts, labels = cache.decompose_resid(return_labels=True)
    assert labels == ["embed", "0_attn_out", "0_mlp_out", "1_attn_out", "1_mlp_out"]
    torch.testing.assert_close(parts.sum(0), cache["resid_post", -1], **EXACT)


def test_accumulating_the_residual_stream_passes_every_stop(model, tokens):
    _, cache = model.run_with_cache(tokens)
    stops, labels = cache.accumulated_resid(incl_mid=True, return_labels=True)
    assert labels == ["0_pre", "0_mid", "1_pre", "1_mid", "final_post"]
    names = [("resid_pre", 0), ("resid_mid", 0), ("resid_pre", 1), ("resid_mid", 1), ("resid_post", 1)]
    assert torch.equal(stops, torch.stack([cache[name] for name in names]))


def test_the_final_norm_of_the_last_stop_gives_the_answer(model, tokens):
    answer, cache = model.run_with_cache(tokens)
    stops = cache.accumulated_resid(apply_ln=True)
    torch.testing.assert_close(stops[-1] @ model.W_U + model.b_U, answer, **EXACT)


def test_head_results_and_the_bias_sum_to_the_attention_output(model, tokens):
    model.set_use_attn_result(True)
    _, cache = model.run_with_cache(tokens)
    for layer, block in enumerate(model.blocks):
        expected = torch.einsum("bphe,hem->bphm", cache["z", layer], block.attn.W_O)
        torch.testing.assert_close(cache["result", layer], expected, **EXACT)
        torch.testing.assert_close(cache["result", layer].sum(2) + block.attn.b_O, cache["attn_out", layer], **EXACT)


@pytest.mark.parametrize("use_attn_result", [True, False], ids=["cached", "recomputed"])
def test_stacked_head_results_are_labelled_and_complete(model, tokens, use_attn_result):
    model.set_use_attn_result(use_attn_result)
    _, cache = model.run_with_cache(tokens)
    stack, labels = cache.stack_head_results(return_labels=True)
    assert labels == ["L0H0", "L0H1", "L1H0", "L1H1"]
    for layer, block in enumerate(model.blocks):
        total = stack[2 * layer] + stack[2 * layer + 1] + block.attn.b_O
        torch.testing.assert_close(total, cache["attn_out", layer], **EXACT)


@pytest.mark.parametrize("expand_neurons", [True, False])
def test_the_full_decomposition_sums_to_the_residual_stream(model, tokens, expand_neurons):
    _, cache = model.run_with_cache(tokens)
    parts, labels = cache.get_full_resid_decomposition(expand_neurons=expand_neurons, return_labels=True)
    assert len(parts) == len(labels) == 4 + (2 * model.cfg.d_mlp if expand_neurons else 2) + 2
    torch.testing.assert_close(parts.sum(0), cache["resid_post", -1], **EXACT)


@pytest.mark.parametrize("mlp_input", [False, True])
def test_the_full_decomposition_holds_at_every_layer(model, tokens, mlp_input):
    _, cache = model.run_with_cache(tokens)
    parts = cache.get_full_resid_decomposition(layer=1, mlp_input=mlp_input)
    torch.testing.assert_close(parts.sum(0), cache["resid_mid" if mlp_input else "resid_pre", 1], **EXACT)


@pytest.mark.parametrize("output", [0, 1])
def test_attributions_through_the_final_norm_sum_to_the_answer(model, tokens, output):
    """Up to what no component of the stream accounts for: the final norm's bias and the unembedding's."""
    answer, cache = model.run_with_cache(tokens)
    attributions = cache.logit_attrs(cache.decompose_resid(), output)
    constant = model.ln_final.b @ model.W_U + model.b_U
    torch.testing.assert_close(attributions.sum(0) + constant[output], answer[..., output], **EXACT)


def test_the_logit_lens_ends_at_the_answer(model, tokens):
    answer, cache = model.eval().run_with_cache(tokens)
    if not hasattr(cache, "logit_lens"):
        pytest.skip("this version of TransformerLens has no logit lens")
    lens = cache.logit_lens(positions=None)
    assert lens.labels == ["0_pre", "1_pre", "final_post"]
    torch.testing.assert_close(lens.values[-1], answer.detach(), rtol=1e-6, atol=1e-6)


# ---- hooks change nothing by being there -----------------------------------------------------------------------------
def test_hooks_that_only_look_leave_the_answer_bit_for_bit(tiny_task):
    episodes = tiny_task.sample(5, "test", tiny_task.rng(0, "test"))
    for architecture in (SoftmaxTransformer(**SIZES), HypernetworkTransformer(**SIZES), BottleneckMLP(**SIZES)):
        model = Run(architecture, tiny_task).build()
        alone = model(episodes.tokens)
        fires = model.run_with_cache(episodes.tokens)[1]
        fused = [name for name in fires if ".ln" not in name and "ln_" not in name]
        looked_at, cache = model.run_with_cache(episodes.tokens, names_filter=fused)
        assert torch.equal(looked_at, alone) and set(cache) == set(fused)
        assert torch.equal(model(episodes.tokens), alone)
        everything, _ = model.run_with_cache(episodes.tokens)  # the norms are computed by hand while they are hooked
        torch.testing.assert_close(everything, alone, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("layer", [0, 1, 2, -1, -2])
def test_stopping_at_a_layer_returns_the_stream_that_enters_it(model, tokens, layer):
    _, cache = model.run_with_cache(tokens)
    stream = [cache["resid_pre", 0], cache["resid_pre", 1], cache["resid_post", 1]]
    torch.testing.assert_close(model(tokens, stop_at_layer=layer), stream[layer % 2 if layer < 0 else layer], **EXACT)


def test_a_stopped_run_caches_nothing_beyond(model, tokens):
    _, cache = model.run_with_cache(tokens, stop_at_layer=1)
    assert "blocks.0.hook_resid_post" in cache.cache_dict
    assert not [name for name in cache if name.startswith(("blocks.1", "ln_final"))]


def test_an_encoder_stops_at_a_layer_of_its_own_sequence(tiny_task, tokens):
    model = Run(HypernetworkTransformer(**SIZES), tiny_task).build().double()
    _, cache = model.run_with_cache(tokens)
    torch.testing.assert_close(model(tokens, stop_at_layer=1), cache["resid_pre", 1], **EXACT)
    assert model(tokens, stop_at_layer=0).shape == (5, 6 + 1, 16)


# ---- the known solution ----------------------------------------------------------------------------------------------
SMALL_TASK = {"d_x": 4, "d_y": 2, "d_hidden": 6, "n_modules": 6, "n_context": 6, "n_queries": 3}


def holding_the_teacher(task):
    """A hypernetwork transformer whose executor has the teacher's modules and readout."""
    modules, readout = task.teacher
    model = Run(HypernetworkTransformer(**SIZES, d_code=len(modules), d_hidden=task.d_hidden), task).build()
    with torch.no_grad():
        model.executor.W_modules.copy_(modules)
        model.executor.W_out.copy_(readout)
        model.executor.b_out.zero_()
    return model


@pytest.mark.parametrize("split", ["train", "test", "ood"])
@pytest.mark.parametrize("coefficients", ["continuous", "discrete"])
def test_a_hypernetwork_that_holds_the_modules_and_is_told_the_code_is_the_teacher(split, coefficients):
    task = Hyperteacher(**SMALL_TASK, coefficients=coefficients)
    episodes = task.sample(40, split, task.rng(0, split))
    answer = intervene(holding_the_teacher(task), episodes, {"hook_code": lambda _: episodes.codes["modules"][:, None]})
    torch.testing.assert_close(answer, episodes.targets, rtol=1e-4, atol=1e-5)
    assert task.score(answer, episodes.targets) == pytest.approx(1, abs=1e-8)


def test_told_another_code_it_answers_what_the_teacher_answers_under_that_code(tiny_task):
    episodes = tiny_task.sample(20, "train", tiny_task.rng(0, "train"))
    other = {"modules": tiny_task.sample(20, "ood", tiny_task.rng(1, "ood")).codes["modules"]}
    answer = intervene(holding_the_teacher(tiny_task), episodes, {"hook_code": lambda _: other["modules"][:, None]})
    torch.testing.assert_close(answer, tiny_task.render(other, episodes.inputs).targets, rtol=1e-4, atol=1e-5)


def test_the_unstructured_teacher_takes_a_code_for_every_combination():
    task = UnstructuredTeacher(**SMALL_TASK)
    episodes = task.sample(40, "ood", task.rng(0, "ood"))
    one_hot = torch.nn.functional.one_hot(episodes.composition, len(task.teacher[0]))
    code = (one_hot * episodes.codes["modules"].norm(dim=1, keepdim=True))[:, None]
    answer = intervene(holding_the_teacher(task), episodes, {"hook_code": lambda _: code})
    torch.testing.assert_close(answer, episodes.targets, rtol=1e-4, atol=1e-5)
