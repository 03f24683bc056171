"""The dual model against attention that is not ours, against our models, and against gradients taken automatically."""

import dataclasses
import math

import pytest
import torch
from torch import nn
from torch.nn.functional import gelu, layer_norm, rms_norm, scaled_dot_product_attention

from compolens import SoftmaxTransformer
from compolens.measures import dual_layers as layers_of
from compolens.measures import dual_model as dual
from compolens.measures.dual_layers import MLP, Layer, LayerNorm, RMSNorm
from compolens.measures.dual_model import DualPrediction

DEMONSTRATIONS, WIDTH = 15, 11


def rng(seed=0):
    return torch.Generator().manual_seed(seed)


def randn(*shape, seed=0):
    return torch.randn(*shape, generator=rng(seed), dtype=torch.float64)


def causal(n):
    return torch.ones(n, n, dtype=torch.bool).tril()


def projected(n_batch, n=DEMONSTRATIONS + 1, heads=1, width=WIDTH, seed=0):
    """q, k, v (batch, n, head, width) of random tokens under random weights, one draw of weights per batch element."""
    tokens = randn(n_batch, n, width, seed=seed)
    weights = randn(3, n_batch, heads, width, width, seed=seed + 1) / width**0.5
    return torch.einsum("bpm,cbhme->cbphe", tokens, weights)


def attention(q, k, v, bias=None, mask=None):
    """Torch's own, in our layout."""
    allowed = torch.zeros(q.shape[-3], k.shape[-3], dtype=q.dtype) if bias is None else bias
    if mask is not None:
        allowed = allowed.masked_fill(~mask, -math.inf)
    return scaled_dot_product_attention(*(x.transpose(-3, -2) for x in (q, k, v)), attn_mask=allowed).transpose(-3, -2)


# ---- the Gram form ---------------------------------------------------------------------------------------------------
def test_one_step_is_softmax_attention():
    for seed in range(10):
        q, k, v = projected(10, seed=100 * seed)
        assert (dual.dual_step(q, k, v).prediction - attention(q, k, v)).abs().max() < 1e-12


def test_in_float32_it_stays_within_1e5_of_float64():
    q, k, v = projected(100)
    found = dual.dual_step(q.float(), k.float(), v.float()).prediction
    assert found.dtype == torch.float32
    assert (found - attention(q, k, v)).abs().max() < 1e-5


def test_scores_of_any_size_stay_finite():
    q, k, v = projected(4)
    huge = dual.dual_step(3000 * q, k, v)
    assert (huge.prediction - attention(3000 * q, k, v)).abs().max() < 1e-12
    scores = torch.einsum("bqhe,bkhe->bqhk", 3000 * q, k) / WIDTH**0.5
    torch.testing.assert_close(huge.log_normaliser, scores.logsumexp(-1))


def test_a_bias_and_a_mask_are_attentions_own():
    (q, k, v), bias, mask = projected(5, heads=3), randn(3, 16, 16, seed=9), causal(16)
    assert (dual.dual_step(q, k, v, bias, mask).prediction - attention(q, k, v, bias, mask)).abs().max() < 1e-12


def test_the_sum_splits_into_own_tokens_and_demonstrations():
    q, k, v = projected(5, heads=2)
    mask = causal(16)
    pattern = attention(q, k, torch.eye(16, dtype=q.dtype)[None, :, None].expand(5, 16, 2, 16), mask=mask)  # (b, q, h, k)
    own = pattern.diagonal(dim1=1, dim2=3).permute(0, 2, 1)[..., None] * v
    torch.testing.assert_close(dual.dual_step(q, k, v, mask=mask).initial, own)
    some = torch.arange(16) % 3 > 0
    by_key = dual.dual_step(q, k, v, mask=mask, demonstrations=some)
    torch.testing.assert_close(by_key.step, torch.einsum("bqhk,bkhe->bqhe", pattern * some, v))
    by_query = dual.dual_step(q, k, v, mask=mask, demonstrations=some.expand(16, 16))
    torch.testing.assert_close(by_query, by_key)
    everything = dual.dual_step(q, k, v, mask=mask, demonstrations=torch.ones(16, dtype=torch.bool))
    assert everything.initial.abs().max() == 0


def test_bad_input_is_named():
    q, k, v = projected(1)
    with pytest.raises(ValueError, match=r"query 2 sees no key"):
        dual.dual_step(q, k, v, mask=causal(16) & (torch.arange(16) != 2)[:, None])
    with pytest.raises(ValueError, match=r"3 queries for 16 keys.*give demonstrations"):
        dual.dual_step(q[:, :3], k, v)
    with pytest.raises(ValueError, match=r"must be bool, \(16,\) or \(16, 16\), got torch.float64 \(16,\)"):
        dual.dual_step(q, k, v, demonstrations=torch.ones(16, dtype=torch.float64))
    with pytest.raises(ValueError, match=r"from 0 to 15, got \[0, 16\]"):
        dual.single_steps(q, k, v, [15], order=[0, 16])
    with pytest.raises(ValueError, match="use dual_step, which needs no features"):
        dual.finite_features(30 * q[0, :, 0], k[0, :, 0])
    with pytest.raises(ValueError, match=r"act\(0\) = 0"):
        layers_of.secant_gate(torch.sigmoid, randn(3))
    with pytest.raises(ValueError, match=r"act\(0\) = 0"):
        layers_of.secant_gate(lambda u: u - 1, randn(3))


# ---- against automatic differentiation -------------------------------------------------------------------------------
def by_gradient(q, k, v, learnt, own, steps, eta=0.3, weight=None):
    """Predictions (d_value,) at q (d_head,) before and after each set of keys in `steps`, with explicit features."""
    (phi,), features = dual.finite_features(q[None], k)
    weight = torch.ones(len(k), dtype=k.dtype) if weight is None else weight
    normaliser = (weight * (k @ q / len(q) ** 0.5).exp())[learnt + own].sum()
    weighted = v * weight[:, None]
    weights = dual.initial_weights(features[own], weighted[own], normaliser)
    predictions = [weights @ phi]
    for keys in steps:
        weights = dual.gradient_step(weights, features[keys], weighted[keys], normaliser, eta)
        predictions.append(weights @ phi)
    return torch.stack(predictions)


DEMOS, OWN = list(range(DEMONSTRATIONS)), [DEMONSTRATIONS]


def test_finite_features_have_the_kernel_as_inner_product():
    q, k, _ = (x[0, :, 0] for x in projected(1))
    phi_q, phi_k = dual.finite_features(q[:3], k)
    torch.testing.assert_close(phi_q @ phi_k.T, (q[:3] @ k.T / WIDTH**0.5).exp(), rtol=0, atol=1e-9)
    assert phi_q.shape == (3, 19) and phi_q.dtype == torch.float64


def test_a_gradient_step_on_explicit_features_is_attention():
    for seed in range(10):
        q, k, v = (x[0, :, 0] for x in projected(1, seed=seed))
        found = by_gradient(q[-1], k, v, DEMOS, OWN, [DEMOS])[-1]
        truth = attention(*(x[None, :, None] for x in (q, k, v)))[0, -1, 0]
        assert (found - truth).abs().max() < 1e-9


def test_a_bias_is_a_weight_of_the_loss():
    (q, k, v), bias = (x[0, :, 0] for x in projected(1)), randn(16, seed=5)
    found = by_gradient(q[-1], k, v, DEMOS, OWN, [DEMOS], weight=bias.exp())
    truth = dual.dual_step(*(x[None, :, None] for x in (q, k, v)), bias=bias)
    assert (found[0] - truth.initial[0, -1, 0]).abs().max() < 1e-9
    assert (found[1] - truth.prediction[0, -1, 0]).abs().max() < 1e-9


def test_one_demonstration_at_a_time_in_any_order_and_more_than_once():
    (q, k, v), order = projected(1), torch.randperm(DEMONSTRATIONS, generator=rng(3)).tolist()
    order = order + order[:5]
    found = by_gradient(q[0, -1, 0], k[0, :, 0], v[0, :, 0], DEMOS, OWN, [[i] for i in order])
    truth = dual.single_steps(q, k, v, [15], order)[0, 0, 0]
    assert (found - truth).abs().max() < 1e-9
    assert (truth[DEMONSTRATIONS] - attention(q, k, v)[0, -1, 0]).abs().max() < 1e-9
    assert (truth[0] - dual.dual_step(q, k, v).initial[0, -1, 0]).abs().max() < 1e-12


def test_with_a_constant_channel_one_model_serves_all_queries():
    q, k, v = (x[0, :, 0] for x in projected(1))
    asking = randn(7, WIDTH, seed=8) / 2
    phi_q, phi_k = dual.finite_features(asking, k)
    values = dual.with_constant_channel(v)
    weights = dual.gradient_step(torch.zeros(WIDTH + 1, phi_k.shape[1], dtype=q.dtype), phi_k, values, 1.0, eta=0.1)
    found = dual.divide_by_constant_channel(phi_q @ weights.T)
    truth = attention(*(x[None, :, None] for x in (asking, k, v)))[0, :, 0]
    assert (found - truth).abs().max() < 1e-9


def test_causal_heads_are_one_dual_model_per_position_and_head():
    q, k, v = (x[0] for x in projected(1, heads=4, width=8))
    truth = dual.dual_step(q, k, v, mask=causal(16)).prediction
    for position in (0, 1, 7, 15):
        for head in range(4):
            earlier = list(range(position))
            found = by_gradient(q[position, head], k[:, head], v[:, head], earlier, [position], [earlier])[-1]
            assert (found - truth[position, head]).abs().max() < 1e-9


# ---- what remains to be learnt ---------------------------------------------------------------------------------------
def test_full_batch_steps_close_the_gap_linearly_and_pass_it():
    q, k, v = projected(20)
    once, output = dual.dual_step(q, k, v), attention(q, k, v)
    left = dual.remaining(dual.full_batch_steps(once, 1 / 15, 45), output)
    share = (1 - torch.arange(46, dtype=q.dtype) / 15).abs()
    assert (left - share * left[..., :1]).abs().max() < 1e-12
    again = dual.remaining(dual.full_batch_steps(once, 1.0, 3), output)
    assert (again / again[..., :1] - torch.tensor([1.0, 0, 1, 2])).abs().max() < 1e-12


def test_full_batch_steps_are_gradient_steps_of_a_smaller_rate():
    q, k, v = projected(1)
    phi_q, phi_k = dual.finite_features(q[0, :, 0], k[0, :, 0])
    once, eta = dual.dual_step(q, k, v), 0.3
    normaliser = once.log_normaliser[0, -1, 0].exp()
    weights = dual.initial_weights(phi_k[OWN], v[0, OWN, 0], normaliser)
    for expected in dual.full_batch_steps(once, 1 / 15, 20)[0, -1, 0]:
        assert (weights @ phi_q[-1] - expected).abs().max() < 1e-9
        full = dual.gradient_step(weights, phi_k[DEMOS], v[0, DEMOS, 0], normaliser, eta)
        weights = weights + (full - weights) / 15


def test_single_steps_approach_on_average_but_not_in_every_instance():
    q, k, v = projected(200)
    output = attention(q, k, v)[:, -1:]
    steps = dual.single_steps(q, k, v, [15], order=range(15))
    left = dual.remaining(steps, output)[:, 0, 0]
    assert left.shape == (200, 16) and left[:, -1].max() < 1e-12
    assert (left.mean(0).diff() < 0).all()
    assert (left.diff(dim=-1) < 0).all(-1).double().mean() < 0.1
    twice = dual.remaining(dual.single_steps(q, k, v, [15], order=[*range(15), *range(15)]), output)[:, 0, 0]
    torch.testing.assert_close(twice[:, -1], twice[:, 0])  # a second pass goes as far beyond as the first began before
    assert (twice.mean(0)[15:].diff() > 0).all()


def test_chosen_queries_learn_only_from_their_own_demonstrations():
    (q, k, v), bias = projected(3, heads=2), randn(2, 16, 16, seed=4)
    steps = dual.single_steps(q, k, v, [4, 9], bias=bias, mask=causal(16))
    assert steps.shape == (3, 2, 2, 17, WIDTH)
    assert (steps[..., -1, :] - attention(q, k, v, bias, causal(16))[:, [4, 9]]).abs().max() < 1e-12
    assert steps[:, 0, :, 4:].diff(dim=-2).abs().max() == 0 and (steps[:, 1, :, :9].diff(dim=-2).abs() > 0).any(-1).all()


# ---- whole layers ----------------------------------------------------------------------------------------------------
def gelu_tanh(x):
    return gelu(x, approximate="tanh")


NORMS = {RMSNorm: lambda x, n: rms_norm(x, n.gain.shape, n.gain, n.eps),
         LayerNorm: lambda x, n: layer_norm(x, n.gain.shape, n.gain, n.shift, n.eps)}  # fmt: skip


def random_layer(norm, activation, d=32, heads=4, seed=0):
    def draw(*shape, scale=1.0, numbers=iter(range(seed * 100, seed * 100 + 100))):  # noqa: B008
        return randn(*shape, seed=next(numbers)) * scale

    def normed():
        return norm(1 + draw(d, scale=0.1), 0.0 if norm is RMSNorm else draw(d, scale=0.1), 1e-5)

    wide, e = 4 * d, d // heads
    mlp = MLP(normed(), draw(d, wide, scale=d**-0.5), draw(wide), draw(wide, d, scale=wide**-0.5), draw(d), activation)
    projections = [part for _ in range(3) for part in (draw(heads, d, e, scale=d**-0.5), draw(heads, e, scale=0.1))]
    return Layer(normed(), *projections, draw(heads, e, d, scale=d**-0.5), draw(d), mlp)


def transformer_layer(layer, x):
    """The same layer by torch's own functions."""
    normed, plain = NORMS[type(layer.norm)](x, layer.norm), layer.mlp
    parts = ((layer.W_Q, layer.b_Q), (layer.W_K, layer.b_K), (layer.W_V, layer.b_V))
    q, k, v = ((normed @ w.permute(1, 0, 2).flatten(1)).unflatten(-1, b.shape) + b for w, b in parts)
    mid = x + attention(q, k, v, mask=causal(x.shape[1])).flatten(-2) @ layer.W_O.flatten(0, 1) + layer.b_O
    hidden = plain.activation(NORMS[type(plain.norm)](mid, plain.norm) @ plain.W_in + plain.b_in)
    return mid, mid + hidden @ plain.W_out + plain.b_out


@pytest.mark.parametrize("activation", [torch.relu, gelu_tanh], ids=["relu", "gelu"])
@pytest.mark.parametrize("norm", NORMS)
def test_a_layer_with_residual_and_mlp_is_one_step(norm, activation):
    layer, x = random_layer(norm, activation), randn(3, 16, 32, seed=77)
    step = layers_of.layer_step(layer, x, layer.dual_step(x, causal(16)))
    mid, truth = transformer_layer(layer, x)
    assert (step.prediction - truth).abs().max() < 1e-12
    local = layer.mlp.linearised(mid)
    written = (mid[..., None, :] @ local.matrix).squeeze(-2) + local.bias  # W_F, b_F as matrices
    assert (mid + written - truth).abs().max() < 1e-12
    assert (local.linear(mid) + local.bias - written).abs().max() < 1e-12
    if activation is torch.relu:
        assert set(local.gate.unique().tolist()) == {0.0, 1.0}


def test_a_layers_demonstrations_enter_linearly_at_fixed_gates():
    """Targets are (I + W_F) W_O v_i: doubling them at the same W_F doubles the step and leaves the rest."""
    layer, x = random_layer(LayerNorm, gelu_tanh), randn(2, 16, 32, seed=78)
    heads = layer.dual_step(x, causal(16))
    step = layers_of.layer_step(layer, x, heads)
    mid, _ = transformer_layer(layer, x)
    local = layer.mlp.linearised(mid)
    targets = torch.einsum("bphe,hem->bpm", heads.step, layer.W_O)
    expected = targets + (targets[..., None, :] @ local.matrix).squeeze(-2)
    assert (step.step - expected).abs().max() < 1e-12
    alone = layers_of.layer_step(dataclasses.replace(layer, mlp=None), x, heads)
    assert (alone.prediction - mid).abs().max() < 1e-12


@pytest.mark.parametrize("norm", NORMS)
def test_three_layers_are_a_sequence_of_dual_models(norm):
    layers = [random_layer(norm, gelu_tanh, seed=seed) for seed in range(3)]
    truth = x = randn(3, 16, 32, seed=79)
    for layer, step in zip(layers, layers_of.layer_steps(layers, x, causal(16)), strict=True):
        _, truth = transformer_layer(layer, truth)
        assert (step.prediction - truth).abs().max() < 1e-11


def test_secant_gates_give_the_activation_back_also_at_zero():
    u = torch.tensor([-40.0, -1e-300, -0.3, 0.0, 1e-300, 0.7, 40.0], dtype=torch.float64)
    for activation in (torch.relu, gelu_tanh, gelu):
        torch.testing.assert_close(layers_of.secant_gate(activation, u) * u, activation(u), rtol=1e-14, atol=0)


# ---- our own models --------------------------------------------------------------------------------------------------
def as_layer(block, rms):
    def normed(norm):
        return RMSNorm(norm.w, 0.0, norm.eps) if rms else LayerNorm(norm.w, norm.b, norm.eps)

    a, m = block.attn, block.mlp
    mlp = MLP(normed(block.ln2), m.W_in, m.b_in, m.W_out, m.b_out, gelu_tanh)
    names = ("W_Q", "b_Q", "W_K", "b_K", "W_V", "b_V", "W_O", "b_O")
    return Layer(normed(block.ln1), *(getattr(a, name) for name in names), mlp, a.bias(None, 12))


@pytest.mark.parametrize("rms", [False, True], ids=["LN", "RMS"])
def test_a_trained_models_cache_and_layers_are_dual_models(rms):
    architecture = SoftmaxTransformer(n_layers=3, d_model=16, n_heads=2, d_value=5, n_ctx=12, causal=True, rms_norm=rms)
    model = architecture.build(d_in=5, d_out=3).double()
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=parameter.shape[-1] ** -0.5, generator=rng(parameter.numel()))
    with torch.no_grad():
        _, cache = model.run_with_cache(randn(4, 12, 5, seed=6))
        layers = [as_layer(block, rms) for block in model.blocks]
        steps = layers_of.layer_steps(layers, cache["hook_embed"], causal(12))
    for i, block in enumerate(model.blocks):
        q, k, v = (cache[name, i] for name in "qkv")
        found = dual.dual_step(q, k, v, block.attn.bias(None, 12), block.attn.mask)
        assert isinstance(found, DualPrediction)
        assert (found.prediction - cache[f"blocks.{i}.attn.hook_z"]).abs().max() < 1e-12
        own = cache["pattern", i].diagonal(dim1=-2, dim2=-1).transpose(1, 2).unsqueeze(-1) * v
        assert (found.initial - own).abs().max() < 1e-12
        assert (steps[i].prediction - cache["resid_post", i]).abs().max() < 1e-11


# ---- the bound -------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("n", [5, 15, 60, 240])
def test_the_rademacher_bound_holds_and_is_tight_for_unit_values(n):
    keys, values = 0.65 * randn(n, WIDTH, seed=n), nn.functional.normalize(randn(n, WIDTH, seed=n + 1), dim=-1)
    _, features = dual.finite_features(keys[:1], keys)
    signs = torch.randint(0, 2, (1000, n), generator=rng(n)).double() * 2 - 1
    largest = torch.stack([((s[:, None] * values).T @ features).norm() for s in signs]) / n  # sup over ||W||_F <= 1
    bound = dual.rademacher_bound(keys, 1.0, 1.0)
    assert 0.97 * bound < largest.mean() < bound + 2 * largest.std() / 1000**0.5
    torch.testing.assert_close(dual.rademacher_bound(2 * keys, 3.0, 0.5), 1.5 * dual.rademacher_bound(2 * keys, 1.0, 1.0))
    both = dual.rademacher_bound(torch.stack([keys, 2 * keys]), 1.0, 1.0)
    torch.testing.assert_close(both, torch.stack([bound, dual.rademacher_bound(2 * keys, 1.0, 1.0)]))


def test_expected_losses_stay_below_their_bound_for_every_w_at_once():
    """Over a finite population, sup over W of expected minus observed loss is w times the distance of two means."""
    keys, values = 0.5 * randn(40, WIDTH), nn.functional.normalize(randn(40, WIDTH, seed=1), dim=-1)
    _, features = dual.finite_features(keys[:1], keys)
    products = torch.einsum("nv,nf->nvf", values, features)
    kernel_max = float((keys.square().sum(-1) / WIDTH**0.5).exp().max())
    for seed in range(100):
        drawn = torch.randint(0, 40, (10,), generator=rng(seed))
        worst = 2.0 * (products.mean(0) - products[drawn].mean(0)).norm()
        bound = dual.expected_loss_bound(torch.zeros(()), keys[drawn], 2.0, 1.0, kernel_max, 0.05)
        assert worst < bound
        complexity = 2 * 2.0 * features[drawn].square().sum().sqrt() / 10  # Tr K, by features
        interval = 2 * 2.0 * features.norm(dim=-1).max()
        torch.testing.assert_close(bound, complexity + 3 * interval * math.sqrt(math.log(2 / 0.05) / 20))
    with pytest.raises(ValueError, match=r"kernel_max=1 is exceeded"):
        dual.expected_loss_bound(torch.zeros(()), keys, 1.0, 1.0, 1.0, 0.05)
    with pytest.raises(ValueError, match=r"between 0 and 1, got 1\.5"):
        dual.expected_loss_bound(torch.zeros(()), keys, 1.0, 1.0, kernel_max, 1.5)
