"""The architectures: symmetry, causality, what separates inference from execution, and the scale they start at."""

import pytest
import torch

from compolens import BottleneckMLP, HypernetworkTransformer, Run, SoftmaxTransformer
from compolens.activations.streams import intervene
from compolens.foundation.configs import ConfigError
from compolens.models import DoesNotApply
from compolens.models.base import split_positions, truncated_lecun_

SIZES = {"n_layers": 2, "d_model": 16, "n_heads": 2}
ALL = [SoftmaxTransformer(**SIZES), HypernetworkTransformer(**SIZES, d_code=6), BottleneckMLP(**SIZES, d_code=6)]
WITH_CODE = ALL[1:]


def name_of(architecture):
    return type(architecture).__name__


@pytest.fixture
def episodes(tiny_task):
    return tiny_task.sample(12, "train", tiny_task.rng(0, "train"))


# ---- symmetry --------------------------------------------------------------------------------------------------------
def permuted_context(tokens):
    return torch.cat([tokens[:, torch.tensor([3, 0, 5, 1, 4, 2])], tokens[:, 6:]], dim=1)


@pytest.mark.parametrize("architecture", ALL, ids=name_of)
def test_the_context_is_a_set(architecture, tiny_task, episodes):
    model = Run(architecture, tiny_task).build()
    before, after = model(episodes.tokens), model(permuted_context(episodes.tokens))
    torch.testing.assert_close(before[:, 6:], after[:, 6:], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("architecture", ALL, ids=name_of)
def test_queries_permute_with_their_answers(architecture, tiny_task, episodes):
    model, order = Run(architecture, tiny_task).build(), torch.tensor([0, 1, 2, 3, 4, 5, 8, 6, 7])
    torch.testing.assert_close(model(episodes.tokens[:, order]), model(episodes.tokens)[:, order], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("architecture", ALL, ids=name_of)
def test_answers_depend_on_the_context_and_on_the_query(architecture, tiny_task, episodes):
    model = Run(architecture, tiny_task).build()
    other = episodes.tokens.clone()
    other[:, :6] = other.roll(1, 0)[:, :6]
    assert (model(other) - model(episodes.tokens))[:, 6:].abs().max() > 1e-3
    other = episodes.tokens.clone()
    other[:, 6:, :4] += 0.5
    assert (model(other) - model(episodes.tokens))[:, 6:].abs().max() > 1e-3


# ---- causality -------------------------------------------------------------------------------------------------------
def test_a_causal_transformer_ignores_the_future(episodes):
    model = SoftmaxTransformer(**SIZES, causal=True).build(d_in=7, d_out=2, seq=9)
    changed = episodes.tokens.clone()
    changed[:, 5] += 1
    before, after = model(episodes.tokens), model(changed)
    assert torch.equal(before[:, :5], after[:, :5])
    assert ((before - after)[:, 5:].abs().amax(dim=(0, 2)) > 1e-5).all()


def test_a_causal_transformer_obeys_the_tasks_mask_as_well(tiny_task, episodes):
    model = Run(SoftmaxTransformer(**SIZES, causal=True), tiny_task).build()
    _, cache = model.run_with_cache(episodes.tokens)
    allowed = tiny_task.mask & torch.ones(9, 9, dtype=torch.bool).tril()
    for layer in range(2):
        assert torch.equal((cache["pattern", layer] > 0).all(0).all(0), allowed)


def test_a_causal_transformer_needs_the_sequence_length():
    with pytest.raises(ValueError, match="sequence length"):
        SoftmaxTransformer(**SIZES, causal=True).build(d_in=3, d_out=1)


# ---- inference apart from execution ----------------------------------------------------------------------------------
@pytest.mark.parametrize("architecture", WITH_CODE, ids=name_of)
def test_the_code_does_not_see_the_queries(architecture, tiny_task, episodes):
    model, changed = Run(architecture, tiny_task).build(), episodes.tokens.clone()
    changed[:, 6:] += 1
    code, other = (model.run_with_cache(t, names_filter="hook_code")[1]["hook_code"] for t in (episodes.tokens, changed))
    assert torch.equal(code, other)


@pytest.mark.parametrize("architecture", WITH_CODE, ids=name_of)
def test_the_executor_sees_the_context_through_the_code_alone(architecture, tiny_task, episodes):
    model, changed = Run(architecture, tiny_task).build(), episodes.tokens.clone()
    changed[:, :6] = changed.roll(1, 0)[:, :6]
    _, cache = model.run_with_cache(episodes.tokens, names_filter="hook_code")
    forced = intervene(model, episodes._replace(tokens=changed), {"hook_code": lambda _: cache["hook_code"]})
    assert torch.equal(forced[:, 6:], model(episodes.tokens)[:, 6:])


@pytest.mark.parametrize("architecture", WITH_CODE, ids=name_of)
def test_exchanging_codes_exchanges_the_task_that_is_executed(architecture, tiny_task, episodes):
    model = Run(architecture, tiny_task).build()
    same_queries = episodes.tokens.clone()
    same_queries[:, 6:] = same_queries[:1, 6:]
    expected = model(same_queries).roll(1, 0)[:, 6:]
    got = intervene(model, episodes._replace(tokens=same_queries), {"hook_code": lambda code: code.roll(1, 0)})
    torch.testing.assert_close(got[:, 6:], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("architecture", WITH_CODE, ids=name_of)
def test_the_summary_token_is_the_readout(architecture, tiny_task, episodes):
    model = Run(architecture, tiny_task).build()
    assert model.roles == {"context": [0, 1, 2, 3, 4, 5], "readout": [6]}
    _, cache = model.run_with_cache(episodes.tokens)
    torch.testing.assert_close(cache["hook_code"], model.unembed(model.ln_final(cache["resid_post", -1]))[:, [6]])
    assert not cache["pattern", 0][:, :, :6, 6].any(), "the context does not read the summary"


@pytest.mark.parametrize("architecture", WITH_CODE, ids=name_of)
def test_a_context_that_is_cut_off_is_refused(architecture, tiny_task, episodes):
    model = Run(architecture, tiny_task).build()
    for tokens in (episodes.tokens[:, :4], episodes.tokens[:, :0]):
        with pytest.raises(ConfigError, match=f"the context goes to position 5, but there are {tokens.shape[1]} tokens"):
            model(tokens)


def test_a_softmax_transformers_readout_is_the_queries(tiny_task):
    assert Run(ALL[0], tiny_task).build().roles == {"context": [0, 1, 2, 3, 4, 5], "readout": [6, 7, 8]}


def test_the_hypernetwork_answers_by_its_equation(tiny_task, episodes):
    model = Run(ALL[1], tiny_task).build()
    prediction, cache = model.run_with_cache(episodes.tokens)
    weights = torch.einsum("bc,cxh->bxh", cache["hook_code"][:, 0], model.executor.W_modules)
    torch.testing.assert_close(cache["executor.hook_weights"], weights)
    hidden = torch.relu(episodes.inputs @ weights)
    torch.testing.assert_close(cache["executor.hook_hidden"], hidden)
    torch.testing.assert_close(prediction, hidden @ model.executor.W_out + model.executor.b_out)


@pytest.mark.parametrize("architecture", WITH_CODE, ids=name_of)
@pytest.mark.parametrize("missing", ["d_x", "seq"])
def test_an_executor_needs_queries_apart_from_a_context(architecture, missing, tiny_task):
    with pytest.raises(DoesNotApply, match=f"{name_of(architecture)} needs a task of"):
        architecture.build(**tiny_task.dimensions | {missing: None})


# ---- scale at initialisation -----------------------------------------------------------------------------------------
@pytest.mark.parametrize("fan_in", [3, 64])
def test_initial_weights_have_variance_1_over_fan_in_and_are_truncated_at_two_standard_deviations(fan_in):
    torch.manual_seed(0)
    weight = truncated_lecun_(torch.nn.Parameter(torch.empty(200, 200)), fan_in).detach()
    assert weight.var().item() * fan_in == pytest.approx(1, abs=0.03)
    raw = 1 / fan_in**0.5 / 0.87962566103423978
    assert 1.99 * raw < weight.abs().max() <= 2 * raw


@pytest.mark.parametrize("seed", range(3))
def test_generated_weights_start_at_the_scale_of_a_fresh_network(seed, tiny_task, episodes):
    architecture = HypernetworkTransformer(n_layers=2, d_model=32, n_heads=4, d_code=8, d_hidden=64)
    model = Run(architecture, tiny_task, init_seed=seed).build()
    _, cache = model.run_with_cache(episodes.tokens)
    assert 0.3 < cache["hook_code"].norm(dim=-1).mean() < 3
    assert 0.3 < cache["executor.hook_weights"].std() * tiny_task.d_x**0.5 < 3


@pytest.mark.parametrize("n_layers", [1, 8])
def test_depth_does_not_inflate_the_residual_stream(n_layers, tiny_task, episodes):
    model = Run(SoftmaxTransformer(n_layers=n_layers, d_model=64, n_heads=4), tiny_task).build()
    _, cache = model.run_with_cache(episodes.tokens)
    added = cache["resid_post", -1] - cache["resid_pre", 0]
    assert 0.2 < added.std() < 1.2


# ---- shapes ----------------------------------------------------------------------------------------------------------
def test_head_sizes_default_to_an_equal_share_and_can_be_given():
    cfg = SoftmaxTransformer(d_model=12, n_heads=3).build(d_in=2, d_out=1).cfg
    assert (cfg.d_head, cfg.d_value, cfg.d_mlp) == (4, 4, 48)
    cfg = SoftmaxTransformer(d_model=12, n_heads=5, d_head=3, d_value=2, d_mlp=7).build(d_in=2, d_out=1).cfg
    assert (cfg.d_head, cfg.d_value, cfg.d_mlp) == (3, 2, 7)


def test_weights_are_stacked_as_in_transformer_lens():
    model = SoftmaxTransformer(n_layers=3, d_model=12, n_heads=5, d_head=4, d_value=2).build(d_in=7, d_out=2)
    assert model.W_Q.shape == model.W_K.shape == (3, 5, 12, 4)
    assert model.W_V.shape == (3, 5, 12, 2) and model.W_O.shape == (3, 5, 2, 12)
    assert model.W_E.shape == (7, 12) and model.W_U.shape == (12, 2) and model.b_U.shape == (2,)
    assert torch.equal(model.W_O[1, 2], model.blocks[1].attn.W_O[2])


def test_the_configuration_speaks_transformer_lens():
    cfg = SoftmaxTransformer(n_layers=3, d_model=12, n_heads=2).build(d_in=7, d_out=2, seq=5).cfg
    assert (cfg.n_layers, cfg.d_model, cfg.n_heads, cfg.n_ctx, cfg.d_in, cfg.d_out) == (3, 12, 2, 5, 7, 2)
    assert (cfg.normalization_type, cfg.attn_only, cfg.use_attn_result) == ("LN", False, False)


def test_answers_may_be_counted_from_the_end():
    assert split_positions(5, (-1,)) == ([0, 1, 2, 3], [4])
    assert split_positions(5, (3, -1)) == ([0, 1, 2], [3, 4])


@pytest.mark.parametrize("answer", [5, -6])
def test_answers_outside_the_sequence_are_refused(answer):
    with pytest.raises(ConfigError, match=rf"answers must be positions of the 5 tokens \(-5 to 4\), got {answer}"):
        SoftmaxTransformer(n_layers=1, d_model=8, n_heads=2).build(d_in=3, d_out=1, seq=5, answers=(answer,))
