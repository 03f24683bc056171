"""Each modified attention is what one gradient step on its modified representation loss predicts (2310.13220)."""

import math

import pytest
import torch

from compolens.foundation.configs import ConfigError
from compolens.models.modified_attention import (
    AugmentedSelfAttention,
    NegativeSampleSelfAttention,
    RegularizedSelfAttention,
)
from compolens.models.token_space import SoftmaxSelfAttention

D_X, N, HEADS, ETA = 4, 9, 2, 0.6
EXACT = {"rtol": 1e-12, "atol": 1e-12}
DUAL = {"rtol": 1e-8, "atol": 1e-8}
EVERY = [RegularizedSelfAttention(), AugmentedSelfAttention(), NegativeSampleSelfAttention()]
OFF = [
    RegularizedSelfAttention(n_layers=2, n_heads=HEADS, alpha=0.0),
    AugmentedSelfAttention(n_layers=2, n_heads=HEADS, strength=0.0),
    NegativeSampleSelfAttention(n_layers=2, n_heads=HEADS, beta=0.0),
]


def named(architecture):
    return type(architecture).__name__


def build(architecture, seed=0):
    """With weights that depend on the seed alone."""
    model = architecture.build(d_in=D_X + 1, d_out=1, seq=N + 1, answers=(N,), d_x=D_X).double()
    rng = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(0.5 * torch.randn(parameter.shape, generator=rng))
    return model


@pytest.fixture
def tokens():
    drawn = torch.randn(2, N + 1, D_X + 1, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    drawn[:, -1, -1] = 0
    return drawn


# ---- the dual model --------------------------------------------------------------------------------------------------
def finite_features(points):
    """phi (points, points) with phi_i . phi_j = exp(p_i . p_j): rows from the Gram matrix's eigendecomposition."""
    values, vectors = torch.linalg.eigh((points @ points.T).exp())
    return vectors * values.clamp(min=0).sqrt()


class DualModel:
    """f_W(z) = W phi(z) of one episode, head and query: W_0 holds the query's own token, demonstrations are the others."""

    def __init__(self, query, keys, values):
        scale = query.shape[-1] ** 0.25
        features = finite_features(torch.cat([query[None], keys]) / scale)
        self.phi_q, self.phi = features[0], features[1:]
        self.normaliser = (self.phi @ self.phi_q).sum()
        self.values, self.own = values[:-1], values[-1]
        self.initial = torch.outer(self.own, self.phi[-1]) / self.normaliser

    def loss(self, w, values, alpha=0.0):
        aligned = (values * (self.phi[:-1] @ w.T)).sum() / (ETA * self.normaliser)
        return -aligned + alpha / (2 * ETA) * w.square().sum()

    def after(self, steps=1, values=None, alpha=0.0):
        """What f_W says at the query after steps of gradient descent, by automatic differentiation."""
        w = self.initial.clone()
        for _ in range(steps):
            w.requires_grad_()
            (gradient,) = torch.autograd.grad(self.loss(w, self.values if values is None else values, alpha), w)
            w = (w - ETA * gradient).detach()
        return w @ self.phi_q


def duals(model, tokens, row=N):
    """(z, dual model, softmax weights of the row) of every episode and head: of the query, or of a token of the context, which
    learns from the rest of the context."""
    _, cache = model.run_with_cache(tokens)
    others = [p for p in range(N) if p != row]
    for episode in range(len(tokens)):
        for head in range(HEADS):
            q, k, v, z = (cache[name, 0][episode, :, head].detach() for name in "qkvz")
            yield z[row], DualModel(q[row], k[[*others, row]], v[[*others, row]]), (episode, head, q, k, v)


def softmax_rows(q, k):
    """(N, N): how the tokens of the context attend to one another."""
    return (q[:N] @ k[:N].T / math.sqrt(q.shape[-1])).softmax(-1)


@pytest.mark.parametrize("row", [N, 2], ids=["query", "context"])
def test_unmodified_attention_is_a_step_on_the_plain_loss(tokens, row):
    model = build(SoftmaxSelfAttention(n_heads=HEADS, attends_to_itself=True))
    for z, dual, _ in duals(model, tokens, row):
        torch.testing.assert_close(dual.after(), z, **DUAL)
        assert (dual.initial @ dual.phi_q - z).abs().max() > 1e-2


@pytest.mark.parametrize("row", [N, 2], ids=["query", "context"])
@pytest.mark.parametrize("alpha", [0.1, 1.0, 1.7])
def test_regularized_attention_is_a_step_on_the_penalised_loss(tokens, alpha, row):
    for z, dual, _ in duals(build(RegularizedSelfAttention(n_heads=HEADS, alpha=alpha)), tokens, row):
        torch.testing.assert_close(dual.after(alpha=alpha), z, **DUAL)


@pytest.mark.parametrize("alpha", [0.1, 1.0, 1.7])
def test_many_regularized_steps_approach_the_demonstrations_over_alpha(tokens, alpha):
    pattern = build(RegularizedSelfAttention(n_heads=HEADS, alpha=alpha)).run_with_cache(tokens)[1]["pattern", 0].detach()
    for _, dual, (episode, head, _, _, v) in duals(build(RegularizedSelfAttention(n_heads=HEADS, alpha=alpha)), tokens):
        demonstrations = pattern[episode, head, N, :N] @ v[:N]
        own = dual.initial @ dual.phi_q
        for steps in (2, 60):
            left = (1 - alpha) ** steps
            torch.testing.assert_close(
                dual.after(steps, alpha=alpha), (1 - left) / alpha * demonstrations + left * own, **DUAL
            )
        torch.testing.assert_close(dual.after(400, alpha=alpha), demonstrations / alpha, **DUAL)


def test_without_the_own_token_a_regularized_step_is_a_plain_one_for_the_query(tokens):
    plain = build(SoftmaxSelfAttention(n_heads=HEADS))(tokens)
    regularized = build(RegularizedSelfAttention(n_heads=HEADS, alpha=0.7, attends_to_itself=False))(tokens)
    assert torch.equal(plain[:, N], regularized[:, N]) and not torch.allclose(plain, regularized)


@pytest.mark.parametrize("keys, values", [(True, False), (False, True), (True, True)])
def test_augmented_attention_is_a_step_on_the_augmented_loss(tokens, keys, values):
    model = build(AugmentedSelfAttention(n_heads=HEADS, augment_keys=keys, augment_values=values, strength=0.8))
    attention = model.blocks[0].attn
    assert [attention.W_g2 is not None, attention.W_g1 is not None] == [keys, values]

    def g(x, weight):
        return x + 0.8 * torch.nn.functional.gelu(x @ weight, approximate="tanh")

    for z, _, (episode, head, q, k, v) in duals(model, tokens):
        projected = [tokens[episode] @ weight[0, head] for weight in (model.W_Q, model.W_K, model.W_V)]
        expected = [g(x, attention.W_g2[head]) if keys else x for x in projected[:2]]
        expected.append(g(projected[2], attention.W_g1[head]) if values else projected[2])
        for got, wanted in zip((q, k, v), expected, strict=True):
            torch.testing.assert_close(got, wanted.detach(), **EXACT)
        dual = DualModel(expected[0][N].detach(), expected[1].detach(), expected[2].detach())
        torch.testing.assert_close(dual.after(), z, **DUAL)


@pytest.mark.parametrize("share, count", [(0.01, 1), (0.3, 3), (1.0, 9)])
def test_negative_samples_are_a_step_on_the_loss_with_contrasted_values(tokens, share, count):
    model = build(NegativeSampleSelfAttention(n_heads=HEADS, beta=0.8, share=share))
    for z, dual, (_, _, q, k, v) in duals(model, tokens):
        least = softmax_rows(q, k).sort(-1).indices[:, :count]
        contrasted = v[:N] - 0.8 * v[:N][least].mean(1)
        torch.testing.assert_close(dual.after(values=contrasted), z, **DUAL)
        assert (dual.after() - z).abs().max() > 1e-2


def test_the_code_is_the_pattern_times_1_minus_beta_r(tokens):
    model = build(NegativeSampleSelfAttention(n_heads=HEADS, beta=0.8, share=0.5))
    _, cache = model.run_with_cache(tokens)
    scores = cache["attn_scores", 0]
    pattern, negatives = scores.softmax(-1), model.blocks[0].attn.negatives(scores)
    torch.testing.assert_close(negatives.sum(-1), torch.ones_like(negatives[..., 0]), **EXACT)
    assert negatives[:, :, :N, N].abs().max() == 0  # a token of the context does not see the query
    own = torch.eye(N + 1, dtype=torch.bool)
    expected = pattern - 0.8 * pattern.masked_fill(own, 0) @ negatives
    torch.testing.assert_close(cache["pattern", 0], expected, **EXACT)
    torch.testing.assert_close(cache["pattern", 0][:, :, N].sum(-1), 1 - 0.8 * pattern[:, :, N, :N].sum(-1), **EXACT)


# ---- as architectures ------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("off", OFF, ids=named)
def test_switched_off_they_are_softmax_attention(off, tokens):
    model, plain = build(off), build(SoftmaxSelfAttention(n_layers=2, n_heads=HEADS, attends_to_itself=True))
    own = model.state_dict()
    plain.load_state_dict({name: own[name] for name in plain.state_dict()})
    assert torch.equal(model(tokens), plain(tokens))


@pytest.mark.parametrize("architecture", EVERY, ids=named)
def test_the_answer_alone_is_the_answer(architecture, tokens):
    model = build(architecture)
    torch.testing.assert_close(model.answer(tokens)[:, N], model(tokens)[:, N], **EXACT)


@pytest.mark.parametrize("architecture", EVERY, ids=named)
def test_editing_the_code_takes_effect(architecture, tokens):
    model = build(architecture)
    silenced = model.run_with_hooks(tokens, fwd_hooks=[("blocks.0.attn.hook_code", lambda code, hook: 0 * code)])
    assert torch.equal(silenced, tokens[..., -1:])
    assert (model(tokens) - silenced).abs().max() > 0.1


def test_gradients_pass_through_the_choice_of_negatives(tokens):
    """The derivative along a direction, by finite differences: the choice itself does not move."""
    model = build(NegativeSampleSelfAttention(n_heads=HEADS))
    weight = model.blocks[0].attn.W_Q
    direction = torch.randn(weight.shape, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    model(tokens).square().sum().backward()
    with torch.no_grad():
        losses = []
        for sign in (1, -1):
            weight.add_(sign * 1e-6 * direction)
            losses.append(model(tokens).square().sum())
            weight.sub_(sign * 1e-6 * direction)
    slope = (losses[0] - losses[1]) / 2e-6
    torch.testing.assert_close((weight.grad * direction).sum(), slope, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    ("cls", "fields", "message"),
    [
        (RegularizedSelfAttention, {"alpha": 2.0}, "alpha must be at least 0 and below 2, where descent diverges, got 2.0"),
        (RegularizedSelfAttention, {"alpha": -0.1}, "alpha must be at least 0 and below 2, where descent diverges, got -0.1"),
        (AugmentedSelfAttention, {"augment_keys": False, "augment_values": False}, "set augment_keys or augment_values"),
        (AugmentedSelfAttention, {"strength": -1.0}, "strength must not be negative, got -1.0"),
        (NegativeSampleSelfAttention, {"beta": -0.5}, "beta must not be negative, got -0.5"),
        (NegativeSampleSelfAttention, {"share": 0.0}, "share must be above 0 and at most 1, got 0.0"),
        (NegativeSampleSelfAttention, {"share": 1.01}, "share must be above 0 and at most 1, got 1.01"),
        (NegativeSampleSelfAttention, {"n_layers": 0}, "n_layers must be a whole number of at least 1, got 0"),
    ],
)
def test_settings_that_make_no_sense_are_refused(cls, fields, message):
    with pytest.raises(ConfigError, match=f"{cls.__name__}: .*{message}"):
        cls(**fields)
