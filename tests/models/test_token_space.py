"""Token-space models: constructed weights are gradient descent, tied layers are one layer, and keys are the context's."""

import copy
import math

import pytest
import torch

from compolens import Hyperteacher, Run, load, train
from compolens.foundation.configs import ConfigError, DoesNotApply
from compolens.models.base import count_parameters
from compolens.models.constructed import ConstructedGradientDescent, gradient_descent_weights
from compolens.models.token_space import LinearSelfAttention, SoftmaxSelfAttention

EXACT = {"rtol": 1e-12, "atol": 1e-12}
D, N, ETA = 5, 12, 4.0
TASK = Hyperteacher(d_x=4, d_y=2, d_hidden=6, n_modules=6, n_context=6, n_queries=3)


def pairs(d_y=1, queries=1, batch=3, seed=0):
    """x (batch, N + queries, D) and y (batch, N + queries, d_y) of noisy regressions, float64."""
    rng = torch.Generator().manual_seed(seed)
    x = torch.rand(batch, N + queries, D, generator=rng, dtype=torch.float64) - 0.5
    w = torch.randn(batch, D, d_y, generator=rng, dtype=torch.float64)
    return x, x @ w + 0.3 * torch.randn(batch, N + queries, d_y, generator=rng, dtype=torch.float64)


def tokens_of(x, y, w0=None):
    """(batch, N + queries, D + d_y): the y coordinates of queries are -W_0 x."""
    y = y.clone()
    y[:, N:] = 0 if w0 is None else -x[:, N:] @ w0.T
    return torch.cat([x, y], dim=-1)


def build(architecture, d_y=1, queries=1, **dimensions):
    answers = tuple(range(N, N + queries))
    given = {"d_in": D + d_y, "d_out": d_y, "seq": N + queries, "answers": answers, "d_x": D} | dimensions
    return architecture.build(**given).double()


def constructed(d_y=1, queries=1, w0=None, **fields):
    """A constructed model with its weights in double precision, and any W_0."""
    description = ConstructedGradientDescent(eta=ETA, **fields)
    model = build(description, d_y, queries)
    weights = gradient_descent_weights(D, d_y, N, ETA, description.gamma, w0)
    with torch.no_grad():
        for name, weight in weights._asdict().items():
            model.blocks[0].attn.get_parameter(name).copy_(weight)
    return model


def descend(x, y, steps, w0, eta=ETA):
    """W (d_y, D) after steps of gradient descent on 1/(2N) sum of squares, by automatic differentiation; one episode."""
    w = w0.clone().requires_grad_()
    for _ in range(steps):
        loss = (x[:N] @ w.T - y[:N]).square().sum() / (2 * N)
        (gradient,) = torch.autograd.grad(loss, w)
        w = (w - eta * gradient).detach().requires_grad_()
    return w.detach()


def start(d_y, zero):
    return (
        torch.zeros(d_y, D, dtype=torch.float64) if zero else torch.linspace(-1, 2, d_y * D, dtype=torch.float64).view(d_y, D)
    )


# ---- the construction ------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("steps", [1, 2, 5, 20])
@pytest.mark.parametrize("d_y", [1, 3])
@pytest.mark.parametrize("zero", [True, False], ids=["from 0", "from W_0"])
def test_constructed_layers_are_steps_of_gradient_descent(steps, d_y, zero):
    (x, y), w0 = pairs(d_y, queries=2), start(d_y, zero)
    answered = constructed(d_y, 2, w0, n_layers=steps)(tokens_of(x, y, w0))[:, N:]
    expected = torch.stack([a[N:] @ descend(a, b, steps, w0).T for a, b in zip(x, y, strict=True)])
    assert not torch.allclose(expected, x[:, N:] @ w0.T, atol=1e-2)  # descent does move
    torch.testing.assert_close(answered, expected, **EXACT)


def test_w0_in_the_first_layer_alone_is_no_descent():
    (x, y), w0 = pairs(), start(1, zero=False)
    tokens = tokens_of(x, y, w0)
    second = constructed().blocks[0]
    wrong = -second(constructed(w0=w0)(tokens, stop_at_layer=1))[:, N, D:]
    assert (wrong - constructed(w0=w0, n_layers=2)(tokens)[:, N]).abs().max() > 0.1


def test_the_description_itself_is_built_from_0_with_n_of_the_context():
    x, y = pairs()
    model = build(ConstructedGradientDescent(n_layers=5, eta=ETA))  # rounded to float32 by the default type
    torch.testing.assert_close(model(tokens_of(x, y)), constructed(n_layers=5)(tokens_of(x, y)), rtol=1e-5, atol=1e-6)
    every = build(ConstructedGradientDescent(), answers=tuple(range(N + 1)))
    assert every.W_O[0, 0, D, D].item() == pytest.approx(1 / (N + 1))


@pytest.mark.parametrize("gamma", [0.0, 0.2])
def test_gradient_descent_plus_plus_also_conditions_the_inputs(gamma):
    (x, y), w0 = pairs(3), start(3, zero=False)
    tokens = tokens_of(x, y, w0)
    model = constructed(3, 1, w0, n_layers=4, gamma=gamma)
    after = tokens[..., D:]
    for layer in range(1, 5):  # e = (x, y): both parts, by hand
        demos = x[:, :N]
        after = after + ETA / N * (x @ demos.transpose(1, 2)) @ (demos @ w0.T - after[:, :N])
        x = x - gamma * (x @ demos.transpose(1, 2)) @ demos
        torch.testing.assert_close(model(tokens, stop_at_layer=layer), torch.cat([x, after], -1), **EXACT)
    torch.testing.assert_close(model(tokens), -after, **EXACT)


def test_gradient_descent_plus_plus_maps_eigenvalues_by_a_cubic():
    (x, y), gamma = pairs(), 0.2
    stream = constructed(gamma=gamma)(tokens_of(x, y), stop_at_layer=1)[:, :N, :D]
    before, after = (torch.linalg.eigvalsh(demos.transpose(1, 2) @ demos) for demos in (x[:, :N], stream))
    cubic = before - 2 * gamma * before**2 + gamma**2 * before**3
    torch.testing.assert_close(after, cubic.sort(-1).values, **EXACT)


def test_a_damped_step_is_a_step_of_a_smaller_rate():
    x, y = pairs()
    answered = constructed(n_layers=3, damping=0.75)(tokens_of(x, y))[:, N]
    w0 = start(1, zero=True)
    expected = torch.stack([a[N] @ descend(a, b, 3, w0, 0.75 * ETA).T for a, b in zip(x, y, strict=True)])
    torch.testing.assert_close(answered, expected, **EXACT)


def test_further_coordinates_of_a_token_are_ignored():
    x, y = pairs()
    tokens = tokens_of(x, y)
    noise = torch.cat([tokens, torch.randn(3, N + 1, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)], -1)
    model = build(ConstructedGradientDescent(n_layers=2, eta=ETA, gamma=0.1), d_in=D + 3)
    narrow = build(ConstructedGradientDescent(n_layers=2, eta=ETA, gamma=0.1))
    torch.testing.assert_close(model(noise), narrow(tokens), **EXACT)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"w0": torch.zeros(D, 1)}, r"w0 must be \(d_y, d_x\) = \(1, 5\), got \(5, 1\)"),
        ({"d_in": 3}, "at least d_x . d_y = 6, got 3"),
    ],
)
def test_weights_that_do_not_fit_are_refused(arguments, message):
    with pytest.raises(ConfigError, match=message):
        gradient_descent_weights(D, 1, N, ETA, **arguments)


# ---- what the model is -----------------------------------------------------------------------------------------------
@pytest.mark.parametrize("itself", [False, True])
def test_linear_and_softmax_layers_are_their_equations(itself):
    x, y = pairs(2, queries=2)
    tokens = tokens_of(x, y)
    keys = torch.zeros(N + 2, N + 2, dtype=torch.bool)
    keys[:, :N] = True
    keys |= torch.eye(N + 2, dtype=torch.bool) & itself
    for cls, sign in ((LinearSelfAttention, -1), (SoftmaxSelfAttention, 1)):
        model = build(cls(n_heads=3, init_scale=1.0, attends_to_itself=itself, damping=0.5), 2, 2)
        q, k, v = (torch.einsum("bpm,hme->bhpe", tokens, w[0]) for w in (model.W_Q, model.W_K, model.W_V))
        scores = q @ k.transpose(2, 3)
        if cls is LinearSelfAttention:
            pattern = scores * keys
        else:
            pattern = (scores / math.sqrt(D + 2)).masked_fill(~keys, -math.inf).softmax(-1)
        stream = tokens + 0.5 * torch.einsum("bhpe,hem->bpm", pattern @ v, model.W_O[0])
        torch.testing.assert_close(model(tokens, stop_at_layer=1), stream, **EXACT)
        torch.testing.assert_close(model(tokens), sign * stream[..., D:], **EXACT)
        torch.testing.assert_close(model.answer(tokens)[:, N:], sign * stream[:, N:, D:], **EXACT)


def test_the_tasks_mask_holds_and_without_a_context_holds_alone():
    causal = torch.ones(N + 1, N + 1, dtype=torch.bool).tril()
    both = build(LinearSelfAttention(), mask=causal).blocks[0].attn.mask
    assert torch.equal(both[:N], causal[:N]) and both[N].tolist() == [True] * N + [False]
    alone = build(LinearSelfAttention(), mask=causal, answers=tuple(range(N + 1))).blocks[0].attn.mask
    assert torch.equal(alone, causal)
    blind = build(SoftmaxSelfAttention(), mask=torch.eye(N + 1, dtype=torch.bool)).blocks[0].attn.mask
    assert torch.equal(blind, torch.eye(N + 1, dtype=torch.bool))  # the query would see nothing


def test_only_the_four_matrices_are_parameters_and_the_start_is_the_papers():
    model = LinearSelfAttention(n_layers=2, n_heads=2).build(d_in=40, d_out=1, seq=3, d_x=39)
    names = {f"blocks.{layer}.attn.W_{name}" for layer in (0, 1) for name in "QKVO"}
    assert set(model.state_dict()) == names == {name for name, _ in model.named_parameters()}
    assert model.W_Q.std().item() == pytest.approx(math.sqrt(0.002 / 2 / 40), rel=0.05)
    assert model.W_O.std().item() == pytest.approx(math.sqrt(0.002 / 2 / 80), rel=0.05)
    assert torch.equal(model.W_E, torch.eye(40)) and model.W_U.T.tolist() == [[0.0] * 39 + [-1.0]]
    assert model.accumulated_bias(2).abs().max() == 0


def test_the_stream_adds_up_and_editing_the_code_takes_effect():
    x, y = pairs()
    tokens = tokens_of(x, y)
    model = constructed(n_layers=2)
    prediction, cache = model.run_with_cache(tokens)
    assert torch.equal(cache["hook_embed"], tokens)
    torch.testing.assert_close(cache["resid_post", 1], tokens + cache["attn_out", 0] + cache["attn_out", 1], **EXACT)
    once = model.run_with_hooks(tokens, fwd_hooks=[("blocks.1.attn.hook_code", lambda code, hook: 0 * code)])
    torch.testing.assert_close(once, constructed()(tokens), **EXACT)  # a layer that is silenced is a step that is not made
    assert not torch.allclose(once, prediction, atol=1e-3)


def test_clipping_bounds_every_layers_tokens():
    x, y = pairs()
    model = build(LinearSelfAttention(n_layers=2, init_scale=1.0, clip_tokens=0.25))
    _, cache = model.run_with_cache(tokens_of(x, y))
    for layer in (0, 1):
        expected = (cache["resid_pre", layer] + cache["attn_out", layer]).clamp(-0.25, 0.25)
        assert torch.equal(cache["resid_post", layer], expected)
    assert cache["resid_post", 1].abs().max() == 0.25


# ---- tied layers -----------------------------------------------------------------------------------------------------
def test_the_gradient_of_tied_layers_is_the_sum_of_untied_ones():
    x, y = pairs()
    tokens = tokens_of(x, y)
    tied, untied = (build(LinearSelfAttention(n_layers=3, init_scale=1.0, tied=tied)) for tied in (True, False))
    with torch.no_grad():
        for block in untied.blocks:
            for name, weight in tied.blocks[0].attn.named_parameters():
                block.attn.get_parameter(name).copy_(weight)
    assert count_parameters(tied) * 3 == count_parameters(untied)
    assert set(tied.state_dict()) == {f"blocks.0.attn.W_{name}" for name in "QKVO"}
    for model in (tied, untied):
        model(tokens).square().sum().backward()
    torch.testing.assert_close(tied(tokens), untied(tokens), **EXACT)
    for name, weight in tied.blocks[0].attn.named_parameters():
        total = sum(block.attn.get_parameter(name).grad for block in untied.blocks)
        torch.testing.assert_close(weight.grad, total, **EXACT)


@pytest.mark.parametrize(
    "change",
    [
        copy.deepcopy,
        lambda model: copy.deepcopy(model).to(torch.bfloat16),
        lambda model: model.to("meta").to_empty(device="cpu"),
        lambda model: [model.load_state_dict(copy.deepcopy(model.state_dict()), assign=True), model][1],
    ],
    ids=["deepcopy", "dtype", "not in place", "assigned"],
)
def test_layers_stay_tied(change):
    model = change(build(LinearSelfAttention(n_layers=3, tied=True)))
    with torch.no_grad():
        model.blocks[0].attn.W_V.fill_(7)
    assert (model.W_V == 7).all() and len(list(model.parameters())) == 4
    assert all(model.blocks[0].attn.W_Q is block.attn.W_Q for block in model.blocks)
    assert len({id(block.attn.hook_code) for block in model.blocks}) == 3


def test_weights_that_do_not_fit_a_tied_model_are_still_refused():
    model = build(LinearSelfAttention(n_layers=2, tied=True))
    state = model.state_dict()
    with pytest.raises(RuntimeError, match=r"Missing key.*blocks\.0\.attn\.W_V"):
        model.load_state_dict({name: value for name, value in state.items() if not name.endswith("W_V")})
    with pytest.raises(RuntimeError, match=r"Unexpected key.*blocks\.1\.attn\.W_Q"):
        build(LinearSelfAttention(tied=True)).load_state_dict(state | {"blocks.1.attn.W_Q": state["blocks.0.attn.W_Q"]})


@pytest.mark.parametrize(
    "architecture",
    [ConstructedGradientDescent(n_layers=3, eta=2.0, gamma=0.01), LinearSelfAttention(n_layers=2, tied=True, n_heads=2)],
    ids=["constructed", "tied"],
)
def test_a_run_of_0_steps_keeps_the_model_as_built(architecture, tmp_path):
    run = Run(architecture, TASK, steps=0, evaluations=1, evaluation_episodes=64)
    train(run, tmp_path / "run")
    trained, built = load(tmp_path / "run"), run.build()
    tokens = TASK.sample(4, "test", TASK.rng(0, "test")).tokens
    assert torch.equal(trained.model(tokens), built(tokens)) and built(tokens).abs().max() > 0
    assert trained.run == run and len(trained.model.state_dict()) == 4


# ---- what is refused -------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("cls", "fields", "message"),
    [
        (LinearSelfAttention, {"n_layers": 0}, "n_layers must be a whole number of at least 1, got 0"),
        (LinearSelfAttention, {"n_heads": 1.5}, "n_heads must be a whole number, got 1.5"),
        (SoftmaxSelfAttention, {"damping": 0.0}, "damping must be above 0 and at most 1, got 0.0"),
        (ConstructedGradientDescent, {"damping": 1.1}, "damping must be above 0 and at most 1, got 1.1"),
        (SoftmaxSelfAttention, {"init_scale": -1.0}, "init_scale must be positive, got -1.0"),
        (LinearSelfAttention, {"clip_tokens": 0.0}, "clip_tokens must be positive, or None for none, got 0.0"),
        (ConstructedGradientDescent, {"eta": 0.0}, "eta must be positive, got 0.0"),
        (ConstructedGradientDescent, {"gamma": -0.1}, "gamma must not be negative, got -0.1"),
    ],
)
def test_settings_that_make_no_sense_are_refused(cls, fields, message):
    with pytest.raises(ConfigError, match=f"{cls.__name__}: {message}"):
        cls(**fields)


@pytest.mark.parametrize("dimensions", [{"d_x": None}, {"d_in": D}])
def test_a_task_without_pairs_in_a_token_does_not_apply(dimensions):
    with pytest.raises(DoesNotApply, match=r"LinearSelfAttention needs a task of \(input, answer\) pairs: "):
        build(LinearSelfAttention(), **dimensions)
    with pytest.raises(ConfigError, match="needs the sequence length"):
        build(LinearSelfAttention(), seq=None)
