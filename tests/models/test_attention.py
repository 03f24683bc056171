"""Attention variants against the public reference code's numbers, against their formulas, and as hypernetworks."""

import dataclasses
import math
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

from compolens import Hyperteacher, Run, SoftmaxTransformer
from compolens.foundation.configs import ConfigError
from compolens.models import (
    HYLA,
    BottleneckMLP,
    DeepHYLA,
    HYLAWithoutBoth,
    HYLAWithoutNonlinearity,
    HYLAWithoutRMSHead,
    HYLAWithSoftmax,
    HypernetworkTransformer,
    LinearAttention,
    LinearRMSHead,
    count_parameters,
    load_reference_parameters,
)
from compolens.models.attention import Attention, relative_buckets
from compolens.models.linear import rms_head
from compolens.models.softmax import SoftmaxAttention
from compolens.tasks import FuzzyLogic, SRaven

GOLDEN = dict(np.load(Path(__file__).parents[1] / "data" / "hyla_golden.npz", allow_pickle=False))
REFERENCE = {"softmax": SoftmaxTransformer, "linear": LinearAttention, "hyla": HYLA}
REFERENCE_SIZES = {"n_layers": 2, "d_model": 32, "n_heads": 4, "d_head": 4, "d_value": 2, "d_mlp": 48, "n_ctx": 36}

# architecture -> (what makes scores a code, what follows the first layer of the value network, or None for plain values)
VARIANTS = {
    SoftmaxTransformer: ("softmax", None),
    LinearAttention: ("scores", None),
    LinearRMSHead: ("rms", None),
    HYLA: ("rms", "relu"),
    HYLAWithoutRMSHead: ("scores", "relu"),
    HYLAWithoutNonlinearity: ("rms", "identity"),
    HYLAWithoutBoth: ("scores", "identity"),
    HYLAWithSoftmax: ("softmax", "relu"),
    DeepHYLA: ("rms", "relu"),
}
SIZES = {"n_layers": 2, "d_model": 12, "n_heads": 3, "d_head": 5, "d_value": 4, "d_mlp": 14}
EXACT = {"rtol": 1e-11, "atol": 1e-11}
SRAVEN_SIZES = {"n_layers": 4, "d_model": 128, "n_heads": 16, "d_head": 4, "d_value": 4, "d_mlp": 256, "n_ctx": 36}
SRAVEN_TOKENS = {"d_in": 8, "d_out": 8, "seq": 36, "answers": (32, 33, 34, 35)}

every_variant = pytest.mark.parametrize("architecture", VARIANTS, ids=lambda cls: cls.__name__)


def randomised(model):
    """Every parameter, biases and gains included, at a generic value: nothing hides behind a 0 or a 1."""
    rng = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(0.4 * torch.randn(parameter.shape, generator=rng) + 0.1)
    return model


def build(architecture, n_ctx=9, **settings):
    """A randomised model in float64, and tokens that fill it."""
    model = randomised(architecture(**SIZES, n_ctx=n_ctx, **settings).build(d_in=6, d_out=3, seq=9)).double()
    return model, torch.randn(4, 9, 6, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


# ---- the public reference code's numbers -----------------------------------------------------------------------------
def reference_parameters(name):
    return {k.split("/param/")[1]: v for k, v in GOLDEN.items() if k.startswith(f"{name}/param/")}


def reference_model(name="hyla", **settings):
    return REFERENCE[name](**REFERENCE_SIZES | settings).build(**SRAVEN_TOKENS).eval()


@torch.no_grad()
def run(model, tokens):
    """(logits, code (batch, layer, head, query, key)), in float64."""
    logits, cache = model.run_with_cache(tokens)
    return logits.double(), torch.stack([cache["pattern", layer] for layer in range(2)], dim=1).double()


@pytest.mark.parametrize("name", REFERENCE)
def test_the_references_weights_give_the_references_logits_and_codes(name):
    """Logits within 1e-4; codes within 1e-5 of their root mean square, softmax and linear attention everywhere.

    HYLA divides by the root mean square over heads, so where all scores of a pair are small it magnifies rounding: there the
    reference's own float32 numbers are up to 1.2e-5 away from the same computation in float64. So for HYLA our float32 code is
    compared with our float64 code, and with the reference's allowing for its rounding too: at most 1 element in 10,000 may
    be more than 1e-5 away from it, and none more than 2e-5.
    """
    model, tokens = reference_model(name), torch.from_numpy(GOLDEN["x"]).float()
    load_reference_parameters(model, reference_parameters(name))
    logits, code = run(model, tokens)
    expected = torch.from_numpy(GOLDEN[f"{name}/logits"]).double()
    assert (logits - expected).abs().max() < 1e-4
    expected = torch.from_numpy(GOLDEN[f"{name}/code"]).double()
    instances = GOLDEN[f"{name}/instances"].tolist()
    scale = expected.square().mean().sqrt()
    error = (code[instances] - expected).abs() / scale
    assert error.median() < 5e-7
    if name == "hyla":
        assert (error > 1e-5).double().mean() <= 1e-4 and error.max() < 2e-5
    else:
        assert error.max() < 1e-5
    _, exact = run(model.double(), tokens.double())
    assert (code - exact).abs().max() / scale < 1e-5


def test_reference_names_may_be_written_with_slashes():
    dotted, slashed = reference_model(), reference_model()
    load_reference_parameters(dotted, reference_parameters("hyla"))
    load_reference_parameters(slashed, {k.replace(".", "/"): v for k, v in reference_parameters("hyla").items()})
    assert all(torch.equal(a, b) for a, b in zip(dotted.parameters(), slashed.parameters(), strict=True))


def without(name):
    return {k: v for k, v in reference_parameters("hyla").items() if k != name}


QUERY = "transformer_block_1.sequence_mixer.query.kernel"
NAN = np.full(8, np.nan, dtype=np.float32)
REFUSED = {
    "missing": (
        lambda: without(QUERY),
        rf"1 array is missing, first '{QUERY}' \(for blocks.1.attn.W_Q, shape \(32, 4, 4\)\)",
    ),
    "all missing": (lambda: {}, r"40 arrays are missing, .*none was given"),
    "misspelt": (
        lambda: without("logitdense.bias") | {"logitdense.biass": NAN},
        r"1 array is missing, first 'logitdense.bias' .*did you mean 'logitdense.biass'",
    ),
    "superfluous": (
        lambda: reference_parameters("hyla") | {"logitdense.gain": NAN},
        r"'logitdense.gain' is not a parameter of this model \(1 superfluous\); did you mean 'logitdense",
    ),
    "misshapen": (
        lambda: reference_parameters("hyla") | {QUERY: np.zeros((4, 32, 4))},
        rf"'{QUERY}' has shape \(4, 32, 4\), this model needs \(32, 4, 4\)",
    ),
    "not finite": (lambda: reference_parameters("hyla") | {"logitdense.bias": NAN}, "'logitdense.bias' .*not finite"),
}


@pytest.mark.parametrize(("parameters", "complaint"), REFUSED.values(), ids=REFUSED)
def test_reference_parameters_that_do_not_fit_are_refused_and_change_nothing(parameters, complaint):
    model = reference_model()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with pytest.raises(ConfigError, match=complaint) as error:
        load_reference_parameters(model, parameters())
    assert "\n" not in str(error.value)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


@pytest.mark.parametrize(
    ("model", "complaint"),
    [
        (lambda: reference_model(n_ctx=None), "lacks blocks.0.attn.bias.rel_bias.*build it with n_ctx="),
        (lambda: reference_model(n_layers=1), "'transformer_block_1.*is not a parameter of this model"),
        (lambda: reference_model(n_ctx=40), r"rel_embedding' has shape \(4, 36\), this model needs \(4, 40\)"),
        (lambda: DeepHYLA(**REFERENCE_SIZES).build(**SRAVEN_TOKENS), r"no counterpart of blocks.0.attn.W_V2 .shape \(4, 2, 2"),
        (lambda: BottleneckMLP().build(**SRAVEN_TOKENS, d_x=4), "no counterpart of summary"),
        (lambda: torch.nn.Linear(3, 2), "not into a Linear"),
    ],
    ids=["no bias table", "fewer layers", "longer", "deeper values", "with an executor", "no transformer"],
)
def test_models_that_the_reference_does_not_have_are_refused_and_left_alone(model, complaint):
    model = model()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with pytest.raises(ConfigError, match=complaint):
        load_reference_parameters(model, reference_parameters("hyla"))
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


# ---- the formulas ----------------------------------------------------------------------------------------------------
def bucket(query, key, n):
    """T5's unidirectional bucket with n buckets and maximal distance n, in plain arithmetic."""
    distance, exact = max(query - key, 0), n // 2
    if distance < exact:
        return distance
    far = math.log(distance / exact + 1.19e-7) / math.log(n / exact)
    return min(n - 1, exact + math.trunc(far * (n - exact)))


def formula(architecture, attention, x, allowed):
    """(output, code (batch, head, query, key)) of one attention layer, from its parameters."""
    w, seq = dict(attention.named_parameters()), x.shape[1]
    normalise, activation = VARIANTS[architecture]
    q, k, v = (torch.einsum("btm,hmd->bhtd", x, w[f"W_{n}"]) + w[f"b_{n}"][:, None, :] for n in "QKV")
    scores = torch.einsum("bhqd,bhkd->bhqk", q, k) / math.sqrt(q.shape[-1])
    if "bias.rel_bias" in w:
        n = w["bias.rel_bias"].shape[1]
        scores = scores + w["bias.rel_bias"][:, torch.tensor([[bucket(i, j, n) for j in range(seq)] for i in range(seq)])]
    if normalise == "softmax":
        odds = scores.exp() * allowed
        code = odds / odds.sum(-1, keepdim=True)
    else:
        code = torch.where(allowed, scores, 0.0)
        if normalise == "rms":
            code = code / (code.pow(2).sum(1, keepdim=True) / code.shape[1] + 1e-6).sqrt()
    if activation is None:
        u = torch.einsum("bhqk,bhkd->bqhd", code, v)
    else:
        phi = {"relu": lambda z: z.clamp(min=0), "identity": lambda z: z}[activation]
        r = phi(torch.einsum("bhqk,bhkd->bqkd", code, v))
        if architecture is DeepHYLA:
            r = phi(torch.einsum("bhqk,hde,bqkd->bqke", code, w["W_V2"], r))
        u = torch.einsum("bhqk,bqkd->bqhd", code, r)
    return torch.einsum("bqhd,hdm->bqm", u, w["W_O"]) + w["b_O"], code


@every_variant
@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
@pytest.mark.parametrize(("n_ctx", "seq"), [(9, 9), (13, 9), (None, 9)], ids=["bias", "longer bias", "no bias"])
def test_attention_is_its_formula(architecture, causal, n_ctx, seq):
    model, tokens = build(architecture, n_ctx, causal=causal)
    allowed = torch.ones(seq, seq, dtype=torch.bool).tril() if causal else torch.ones(seq, seq, dtype=torch.bool)
    _, cache = model.run_with_cache(tokens)
    for layer, block in enumerate(model.blocks):
        x = cache["normalized", layer, "ln1"] * block.ln1.w + block.ln1.b
        expected, code = formula(architecture, block.attn, x, allowed)
        torch.testing.assert_close(cache["attn_out", layer], expected, **EXACT)
        torch.testing.assert_close(cache["code", layer], code.permute(0, 2, 3, 1), **EXACT)


@every_variant
def test_attention_is_its_formula_under_a_tasks_mask(architecture):
    task = Hyperteacher(d_x=4, d_y=2, d_hidden=6, n_modules=6, n_context=6, n_queries=3)
    for causal in (False, True):
        model = randomised(Run(architecture(**SIZES, n_ctx=9, causal=causal), task).build()).double()
        x = torch.randn(3, 9, 12, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
        allowed = task.mask & torch.ones(9, 9, dtype=torch.bool).tril() if causal else task.mask
        expected, _ = formula(architecture, model.blocks[1].attn, x, allowed)
        torch.testing.assert_close(model.blocks[1].attn(x), expected, **EXACT)


@pytest.mark.parametrize("causal", [False, True])
def test_a_sequence_longer_than_the_tasks_mask_is_refused(causal):
    sizes = {"n_layers": 1, "d_model": 8, "n_heads": 2, "n_ctx": 16, "causal": causal}
    model = SoftmaxTransformer(**sizes).build(d_in=3, d_out=1, seq=8, mask=torch.ones(8, 8, dtype=torch.bool))
    assert model(torch.zeros(2, 6, 3)).shape == (2, 6, 1)
    with pytest.raises(ConfigError, match="the mask is that of 8 tokens, got 12"):
        model(torch.zeros(2, 12, 3))


@every_variant
def test_a_variant_differs_from_every_other(architecture):
    """The formulas have teeth: with the same weights, no two variants agree."""
    model, _ = build(DeepHYLA)
    x = torch.randn(3, 9, 12, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    everything = torch.ones(9, 9, dtype=torch.bool)
    own, _ = formula(architecture, model.blocks[0].attn, x, everything)
    others = [formula(other, model.blocks[0].attn, x, everything)[0] for other in VARIANTS if other is not architecture]
    assert all((own - other).abs().max() > 1e-2 for other in others)


# ---- attention as a hypernetwork -------------------------------------------------------------------------------------
@every_variant
@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
def test_attention_is_a_value_network_per_pair_whose_weights_the_code_mixes(architecture, causal):
    """y_q = sum_k W_qk x_k with W_qk = sum_h a_h W_value,h W_out,h; with two uses of the code, sum_k W'_qk phi(W_qk x_k).

    The values' bias is a row more of W_value, and x has a 1 more.
    """
    model, tokens = build(architecture, causal=causal)
    _, cache = model.run_with_cache(tokens)
    activation = VARIANTS[architecture][1]
    for layer, block in enumerate(model.blocks):
        code, attention = cache["code", layer], block.attn
        x = cache["normalized", layer, "ln1"] * block.ln1.w + block.ln1.b
        x = torch.cat([x, torch.ones_like(x[..., :1])], dim=-1)
        values = torch.cat([attention.W_V, attention.b_V[:, None, :]], dim=1)
        if activation is None:
            generated = torch.einsum("bqkh,hmn->bqkmn", code, values @ attention.W_O)
            assert torch.linalg.matrix_rank(values[0] @ attention.W_O[0]) == SIZES["d_value"]
            y = torch.einsum("bkm,bqkmn->bqn", x, generated)
        else:
            first, last = (torch.einsum("bqkh,hmn->bqkmn", code, basis) for basis in (values, attention.W_O))
            hidden = torch.einsum("bkm,bqkmd->bqkd", x, first)
            hidden = torch.relu(hidden) if activation == "relu" else hidden
            torch.testing.assert_close(cache[f"blocks.{layer}.attn.hook_post"], hidden, **EXACT)
            if architecture is DeepHYLA:
                middle = torch.einsum("bqkh,hde->bqkde", code, attention.W_V2)
                hidden = torch.relu(torch.einsum("bqkd,bqkde->bqke", hidden, middle))
            y = torch.einsum("bqkd,bqkdn->bqn", hidden, last)
        torch.testing.assert_close(cache["attn_out", layer], y + attention.b_O, **EXACT)


@every_variant
def test_editing_a_pairs_code_edits_what_that_pair_contributes(architecture):
    """A pair whose code is set to 0 contributes nothing, nor does any other pair change: not even its values' bias stays."""
    model, tokens = build(architecture)
    attention = model.blocks[0].attn
    x = model.blocks[0].ln1(model(tokens, stop_at_layer=0))
    before = attention(x)

    def silence(code, hook):
        code = code.clone()
        code[:, 5, :] = 0
        code[:, 6, 2] = 0
        return code

    with model.hooks([("blocks.0.attn.hook_code", silence)]):
        after = attention(x)
    changed = (after - before).abs().amax((0, 2)) > 1e-6
    assert changed.nonzero().flatten().tolist() == [5, 6]
    torch.testing.assert_close(after[:, 5], attention.b_O.expand(4, -1), **EXACT)


# ---- causality and masks ---------------------------------------------------------------------------------------------
@every_variant
def test_with_a_causal_mask_no_answer_depends_on_later_tokens(architecture):
    model, tokens = build(architecture, causal=True)
    changed = tokens.clone()
    changed[:, 5] += 1
    difference = (model(tokens) - model(changed)).abs().amax((0, 2))
    assert not difference[:5].any() and (difference[5:] > 1e-9).all()
    model, tokens = build(architecture)
    assert ((model(tokens) - model(changed)).abs().amax((0, 2)) > 1e-9).all()


@every_variant
def test_masked_pairs_have_code_zero_and_a_softmax_sums_to_one(architecture):
    model, tokens = build(architecture, causal=True)
    _, cache = model.run_with_cache(tokens)
    future = torch.ones(9, 9, dtype=torch.bool).triu(1)
    for layer in range(2):
        pattern = cache["pattern", layer]
        assert not pattern[:, :, future].any() and (pattern[:, :, ~future] != 0).all()
        rows = pattern.sum(-1)
        summed = torch.allclose(rows, torch.ones_like(rows))
        assert summed == (VARIANTS[architecture][0] == "softmax")
        if VARIANTS[architecture][0] == "rms":
            mean_square = pattern.square().mean(1)[:, ~future]
            assert (mean_square < 1).all() and mean_square.median() > 0.9999


# ---- relative positions ----------------------------------------------------------------------------------------------
def test_buckets_of_36_positions_are_the_references():
    last_row = relative_buckets(36)[35].flip(0).tolist()  # by distance 0, 1, …, 35
    assert last_row == [*range(21), 22, 23, 24, 25, 26, 27, 28, 29, 30, 31, 32, 32, 33, 34, 35]


@pytest.mark.parametrize("n_ctx", [1, 2, 3, 7, 16, 18, 32, 36, 64, 96])
def test_buckets_depend_on_the_distance_alone_by_t5s_formula(n_ctx):
    expected = torch.tensor([[bucket(q, k, n_ctx) if n_ctx > 1 else 0 for k in range(n_ctx)] for q in range(n_ctx)])
    assert torch.equal(relative_buckets(n_ctx), expected)
    assert not relative_buckets(n_ctx).triu(1).any(), "keys to the right of the query share the query's own bucket"


def test_up_to_16_positions_every_distance_has_a_bucket_of_its_own():
    assert relative_buckets(16)[15].flip(0).tolist() == list(range(16))


def test_the_bias_is_added_after_the_scores_are_scaled():
    model, tokens = build(SoftmaxTransformer)
    attention = model.blocks[0].attn
    _, cache = model.run_with_cache(tokens)
    with torch.no_grad():
        attention.bias.rel_bias.add_(torch.arange(9.0))
    _, shifted = model.run_with_cache(tokens)
    difference = shifted["attn_scores", 0] - cache["attn_scores", 0]
    distance = (torch.arange(9)[:, None] - torch.arange(9)).clamp(min=0)
    torch.testing.assert_close(difference, relative_buckets(9).double().expand_as(difference), **EXACT)
    assert torch.equal(relative_buckets(9)[:, 0], distance[:, 0]), "with 9 positions, buckets are distances"
    with torch.no_grad():
        attention.W_Q.zero_()
        attention.b_Q.zero_()
    _, alone = model.run_with_cache(tokens)
    torch.testing.assert_close(alone["attn_scores", 0], attention.bias(None, 9).expand_as(difference), **EXACT)


def test_equal_tokens_are_told_apart_by_the_bias_alone():
    tokens = torch.zeros(1, 9, 6, dtype=torch.float64)
    with_bias, _ = build(HYLA)
    without_bias, _ = build(HYLA, n_ctx=None)
    assert (with_bias(tokens)[0].diff(dim=0).abs().amax(1) > 1e-6).all()
    assert without_bias(tokens)[0].diff(dim=0).abs().max() < 1e-12


# ---- normalisation over heads ----------------------------------------------------------------------------------------
def plain_rms_head(scores):
    return scores / (scores.pow(2).mean(1, keepdim=True) + 1e-6).sqrt()


@pytest.fixture
def scores():
    return torch.randn(2, 3, 4, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def test_normalisation_over_heads_is_its_formula_with_first_and_second_derivatives(scores):
    torch.testing.assert_close(rms_head(scores), plain_rms_head(scores), **EXACT)
    small = scores[:, :, :2, :2].clone().requires_grad_()
    assert gradcheck(rms_head, small) and gradgradcheck(rms_head, small)
    tiny = (1e-3 * small.detach()).requires_grad_()  # where eps matters
    weight = torch.linspace(-1, 2, tiny.numel(), dtype=torch.float64).view_as(tiny)
    ours, theirs = (torch.autograd.grad((f(tiny) * weight).sum(), tiny)[0] for f in (rms_head, plain_rms_head))
    torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-9)


def test_normalisation_over_heads_can_be_transformed_by_torch_func(scores):
    small = scores[:, :, :2, :2]
    torch.testing.assert_close(torch.func.jacrev(rms_head)(small), torch.func.jacrev(plain_rms_head)(small), **EXACT)
    stacked = torch.stack([scores, 2 * scores, scores - 1])
    torch.testing.assert_close(torch.func.vmap(rms_head)(stacked), torch.stack([rms_head(s) for s in stacked]), **EXACT)
    per_example = torch.func.vmap(torch.func.jacrev(rms_head))(stacked[..., :2, :2])
    expected = torch.stack([torch.func.jacrev(plain_rms_head)(s) for s in stacked[..., :2, :2]])
    torch.testing.assert_close(per_example, expected, **EXACT)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_pair_whose_scores_are_all_zero_keeps_code_zero_and_a_finite_gradient(scores, dtype):
    leaf = scores.to(dtype).clone()
    leaf[:, :, 1, 2] = 0
    leaf.requires_grad_()
    code = rms_head(leaf)
    assert not code[:, :, 1, 2].any() and (code[:, :, 0] != 0).all()
    gradient = torch.autograd.grad(code.sum(), leaf)[0]
    torch.testing.assert_close(gradient[:, :, 1, 2], torch.full((2, 3), 1e3, dtype=dtype))  # 1 / sqrt(eps)
    assert gradient.isfinite().all()


# ---- numbers of parameters -------------------------------------------------------------------------------------------
def parameters_of(architecture, n_layers, d_in, d_out, n_ctx, width=1, n_heads=16, d_head=4):
    sizes = {"n_layers": n_layers, "d_model": 128 * width, "n_heads": n_heads * width, "d_mlp": 256 * width, "n_ctx": n_ctx}
    with torch.device("meta"):
        model = architecture(**sizes, d_head=d_head, d_value=d_head).build(d_in=d_in, d_out=d_out, seq=n_ctx)
    return count_parameters(model) - (architecture is DeepHYLA) * n_layers * n_heads * width * d_head**2


@every_variant
def test_every_variant_has_as_many_parameters_as_the_reference(architecture):
    """A deeper value network has (layer, head, d_value, d_value) more."""
    fuzzy = {"n_layers": 2, "d_in": 5, "d_out": 1, "n_heads": 8, "d_head": 2}
    assert parameters_of(architecture, **fuzzy, n_ctx=16) == 151_009
    assert parameters_of(architecture, **fuzzy, n_ctx=32) == 151_265
    assert parameters_of(architecture, 4, 8, 8, 36) == 402_824


@pytest.mark.parametrize(
    ("width", "counts"),
    [
        (1, (402_824, 803_208, 1_603_976)),
        (2, (1_592_072, 3_179_272, 6_353_672)),
        (4, (6_329_864, 12_649_992, 25_290_248)),
    ],
)
def test_parameters_grow_with_width_and_depth_as_in_the_reference(width, counts):
    assert tuple(parameters_of(HYLA, layers, 8, 8, 36, width) for layers in (4, 8, 16)) == counts


# ---- the start -------------------------------------------------------------------------------------------------------
def matrices(model):
    """Kind of matrix -> its values in all layers, as one vector."""
    found = {}
    for name, parameter in model.named_parameters():
        if parameter.ndim > 1 and not name.split(".")[-1].startswith("b_"):
            found.setdefault(name.split(".")[-1], []).append(parameter.detach().flatten())
    return {name: torch.cat(parts) for name, parts in found.items()}


# 1 / sqrt(fan_in) of the smallest S-RAVEN model; the output map's fan_in is heads times width of a head
STARTS = {"W_E": 8, "W_Q": 128, "W_K": 128, "W_V": 128, "W_O": 64, "W_in": 128, "W_out": 256, "W_U": 128, "W_V2": 4}


@pytest.mark.parametrize("architecture", [SoftmaxTransformer, HYLA, DeepHYLA], ids=lambda cls: cls.__name__)
@pytest.mark.parametrize("n_ctx", [36, None], ids=["with positions", "without"])
def test_weights_start_at_the_references_scale_with_positions_and_calmer_without(architecture, n_ctx):
    torch.manual_seed(0)
    model = architecture(**SRAVEN_SIZES | {"n_ctx": n_ctx}).build(**SRAVEN_TOKENS)
    calm = 1 if n_ctx else 3**-0.5
    found = matrices(model)
    table = found.pop("rel_bias", None)
    assert set(found) == set(STARTS) - ({"W_V2"} if architecture is not DeepHYLA else set())
    for name, weights in found.items():
        std = calm / math.sqrt(STARTS[name])
        assert weights.std().item() == pytest.approx(std, rel=4 / math.sqrt(2 * len(weights)))
        assert abs(weights.mean().item()) < 4 * std / math.sqrt(len(weights))
        bound = 2 * std / 0.87962566103423978  # two standard deviations before truncation
        assert 0.9 * bound < weights.abs().max() <= bound * (1 + 1e-6)
    if n_ctx:
        assert table.std().item() == pytest.approx(1 / 6, rel=4 / math.sqrt(2 * len(table)))
        assert table.abs().max() > 3 / 6, "the table is not truncated"
    else:
        assert table is None
    for name, parameter in model.named_parameters():
        last = name.split(".")[-1]
        if last.startswith("b"):
            assert not parameter.any()
        elif last == "w":
            assert (parameter == 1).all()


# ---- dropping codes --------------------------------------------------------------------------------------------------
def dropping(architecture, rate=0.25, seed=0, **settings):
    """A randomised model in training mode that drops codes, drawing from a generator of its own."""
    model, tokens = build(architecture, attention_dropout=rate, **settings)
    model.train().draw_from(torch.Generator().manual_seed(seed))
    return model, tokens


@every_variant
def test_nothing_is_dropped_by_default_nor_in_evaluation(architecture):
    plain, tokens = build(architecture)
    drops, _ = dropping(architecture)
    assert not torch.allclose(drops(tokens), plain(tokens))
    assert torch.equal(drops.eval()(tokens), plain(tokens))
    assert torch.equal(plain.train()(tokens), plain.eval()(tokens))


@every_variant
def test_whole_codes_are_dropped_alike_in_all_episodes_and_heads_and_survivors_are_scaled(architecture):
    model, tokens = dropping(architecture)
    _, dropped = model.run_with_cache(tokens)
    _, full = model.eval().run_with_cache(tokens)
    ratio = dropped["pattern", 0] / full["pattern", 0]
    kept = (ratio[0, 0] != 0).double()
    torch.testing.assert_close(ratio, (kept / 0.75).expand_as(ratio), **EXACT)
    assert 0 < kept.mean() < 1
    other = dropped["pattern", 1][0, 0] != 0
    assert not torch.equal(other, kept.bool()), "every layer has a mask of its own"


def test_codes_are_dropped_as_often_as_asked_and_independently_per_pair():
    for rate in (0.1, 0.5):
        model, tokens = dropping(LinearAttention, rate)
        masks = []
        for _ in range(150):
            _, cache = model.run_with_cache(tokens[:1], names_filter="blocks.0.attn.hook_pattern")
            masks.append(cache["blocks.0.attn.hook_pattern"][0, 0] == 0)
        drops = torch.stack(masks).double()
        assert drops.mean().item() == pytest.approx(rate, abs=4 * math.sqrt(rate * (1 - rate) / drops.numel()))
        by_pair = 5 * math.sqrt(rate * (1 - rate) / len(drops))
        assert ((drops.mean(0) - rate).abs() < by_pair).all(), "every pair is dropped at the same rate"
        together = (drops[:, :, 0] * drops[:, :, 1]).mean().item()
        assert together == pytest.approx(rate**2, abs=4 * rate / math.sqrt(len(drops) * 9))


@every_variant
def test_what_is_dropped_is_a_function_of_the_generator_alone(architecture):
    model, tokens = dropping(architecture)
    before = torch.get_rng_state()
    first, second = model(tokens), model(tokens)
    assert not torch.equal(first, second)
    model.draw_from(torch.Generator().manual_seed(0))
    torch.rand(3)  # the global generator plays no part
    assert torch.equal(model(tokens), first) and torch.equal(model(tokens), second)
    torch.set_rng_state(before)
    model(tokens)
    assert torch.equal(torch.get_rng_state(), before)
    model.draw_from(None)
    torch.manual_seed(5)
    from_global = model(tokens)
    assert not torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(5)
    assert torch.equal(model(tokens), from_global)


@pytest.mark.parametrize("architecture", [c for c, (_, a) in VARIANTS.items() if a], ids=lambda cls: cls.__name__)
def test_both_layers_of_a_value_network_use_the_same_dropped_code(architecture):
    """relu is positively homogeneous, so a surviving pair counts 1 / (1 - p) to the power of the number of layers."""
    model, tokens = dropping(architecture)
    uses = 3 if architecture is DeepHYLA else 2
    _, dropped = model.run_with_cache(tokens)
    _, full = model.eval().run_with_cache(tokens)
    kept = (dropped["pattern", 0][0, 0] != 0).double() / 0.75**uses
    deepest = "hook_post2" if architecture is DeepHYLA else "hook_post"
    expected = torch.einsum("bqkh,bqkd,qk->bqhd", full["code", 0], full[f"blocks.0.attn.{deepest}"], kept)
    torch.testing.assert_close(dropped["z", 0], expected, **EXACT)


def test_the_average_over_masks_is_linear_attention_without_dropout():
    model, tokens = dropping(LinearAttention)
    x = model.blocks[0].ln1(model(tokens, stop_at_layer=0)).detach()
    draws = torch.stack([model.blocks[0].attn(x).detach() for _ in range(600)])
    error = draws.std(0) / math.sqrt(len(draws))
    assert ((draws.mean(0) - model.eval().blocks[0].attn(x)).abs() < 5 * error).all()


# ---- only the answers ------------------------------------------------------------------------------------------------
TASKS = {
    "fuzzy logic": FuzzyLogic(length=12),
    "S-RAVEN": SRaven(n_features=2),
    "hyperteacher": Hyperteacher(d_x=4, d_y=2, d_hidden=6, n_modules=6, n_context=6, n_queries=3),
}
ANSWERING = {cls.__name__: (cls, {}) for cls in VARIANTS}
ANSWERING |= {f"{cls.__name__}-causal": (cls, {"causal": True}) for cls in VARIANTS}
PAIRS = [(cls, settings, task) for cls, settings in ANSWERING.values() for task in TASKS]


@pytest.mark.parametrize(("architecture", "settings", "task"), PAIRS, ids=[f"{n}-{t}" for n in ANSWERING for t in TASKS])
def test_computing_only_the_answers_gives_the_same_answers_and_gradients(architecture, settings, task):
    task = TASKS[task]
    model = randomised(Run(architecture(**SIZES, n_ctx=task.seq, **settings), task).build())
    episodes = task.sample(5, "train", task.rng(0, "train"))
    answers = list(task.answers)
    full, only = model(episodes.tokens), model.answer(episodes.tokens)
    torch.testing.assert_close(only[:, answers], full[:, answers], rtol=1e-5, atol=1e-5)
    assert only.shape == full.shape
    assert not only[:, [p for p in range(task.seq) if p not in answers]].any()
    model.double()
    targets = episodes.targets.double() if episodes.targets.is_floating_point() else episodes.targets
    parameters = list(model.parameters())
    gradients = [
        torch.autograd.grad(task.loss(predict(episodes.tokens.double()), targets), parameters)
        for predict in (model, model.answer)
    ]
    for ours, theirs in zip(*gradients, strict=True):
        scale = max(1.0, float(theirs.abs().max()))
        assert (ours - theirs).abs().max() < 1e-10 * scale


class Fading(SoftmaxAttention):
    """Weights fall with the distance between query and key, which the number of a row tells only if all rows are there."""

    def weights(self, scores):
        query, key = (torch.arange(n) for n in scores.shape[-2:])
        return (scores - (query[:, None] - key).abs()).softmax(-1)


class Careless(Fading):
    rowwise = True


def test_weights_that_depend_on_places_see_all_queries_unless_their_class_says_otherwise():
    assert SoftmaxAttention.rowwise and not Fading.rowwise and not type("Own", (Attention,), {}).rowwise
    tokens = torch.randn(3, 9, 6, generator=torch.Generator().manual_seed(1))
    for attention, right in ((Fading, True), (Careless, False)):
        family = dataclasses.dataclass(frozen=True)(
            type("Own", (SoftmaxTransformer,), {"attention": lambda self, made=attention: made, "__doc__": "Fading."})
        )
        model = randomised(family(**SIZES, n_ctx=9).build(d_in=6, d_out=3, answers=(7, 8)))
        full, only = model(tokens)[:, 7:], model.answer(tokens)[:, 7:]
        assert torch.allclose(full, only, rtol=1e-4, atol=1e-4) == right


@pytest.mark.parametrize("architecture", [HypernetworkTransformer, BottleneckMLP], ids=lambda cls: cls.__name__)
def test_models_with_an_explicit_code_answer_in_full(architecture):
    task = TASKS["hyperteacher"]
    model = Run(architecture(n_layers=2, d_model=16, n_heads=2), task).build()
    episodes = task.sample(5, "train", task.rng(0, "train"))
    assert torch.equal(model.answer(episodes.tokens), model(episodes.tokens))


def test_without_a_sequence_length_the_answer_is_counted_from_the_end():
    model = randomised(HYLA(**SIZES, n_ctx=9).build(d_in=6, d_out=3, answers=(-2, -1)))
    for seq in (4, 9):
        tokens = torch.randn(3, seq, 6, generator=torch.Generator().manual_seed(1))
        torch.testing.assert_close(model.answer(tokens)[:, -2:], model(tokens)[:, -2:], rtol=1e-5, atol=1e-5)
        assert not model.answer(tokens)[:, :-2].any()


# ---- bad input -------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"d_model": 16, "n_heads": 3}, "HYLA: 3 heads do not divide d_model=16; choose n_heads that does, or give d_head"),
        ({"attention_dropout": 1.0}, "attention_dropout must be at least 0 and below 1, got 1.0"),
        ({"attention_dropout": -0.1}, "attention_dropout must be at least 0 and below 1, got -0.1"),
        ({"attention_dropout": math.nan}, "attention_dropout must be a finite number, got nan"),
        ({"n_ctx": 0}, "n_ctx"),
        ({"n_ctx": -1}, "n_ctx"),
        ({"d_value": 0}, "d_value"),
    ],
)
def test_sizes_that_make_no_sense_are_refused(settings, complaint):
    with pytest.raises(ConfigError, match=complaint) as error:
        HYLA(**settings)
    assert "\n" not in str(error.value)


def test_sequences_longer_than_the_bias_table_are_refused_when_building_and_when_called():
    architecture = HYLA(**SIZES, n_ctx=8)
    with pytest.raises(ConfigError, match="9 tokens, more than the bias table's n_ctx=8; set n_ctx=9"):
        architecture.build(d_in=6, d_out=3, seq=9)
    model = architecture.build(d_in=6, d_out=3)
    assert model(torch.zeros(1, 8, 6)).shape == (1, 8, 3)
    with pytest.raises(ConfigError, match="at most 8 tokens, got 9"):
        model(torch.zeros(1, 9, 6))


# ---- memory ----------------------------------------------------------------------------------------------------------
def saved_for_backward(architecture, batch, seq):
    """(bytes of distinct storages, bytes of every tensor as often as it is saved) that one attention layer keeps.

    Parameters and the layer's input are left out.
    """
    model = architecture(**SRAVEN_SIZES | {"n_layers": 1, "n_ctx": seq}).build(**SRAVEN_TOKENS | {"seq": seq})
    attention = model.blocks[0].attn
    x = torch.randn(batch, seq, 128, generator=torch.Generator().manual_seed(0), requires_grad=True)
    own = {t.untyped_storage().data_ptr() for t in (x, *attention.parameters(), *attention.buffers())}
    kept, sizes, times = [], {}, Counter()

    def pack(tensor):
        pointer = tensor.untyped_storage().data_ptr()
        if pointer not in own:
            kept.append(tensor)  # while it is held, no other tensor takes its address
            sizes[pointer] = tensor.untyped_storage().nbytes()
            times["bytes"] += tensor.numel() * tensor.element_size()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        attention(x).sum().backward()
    return sum(sizes.values()), times["bytes"]


def test_hyla_saves_little_more_for_the_backward_pass_than_softmax():
    """Beside what softmax saves: at most two tensors of the code's size and two of the value networks' hidden layers."""
    batch, seq, d_value, n_heads = 16, 36, 4, 16
    softmax, _ = saved_for_backward(SoftmaxTransformer, batch, seq)
    hyla, _ = saved_for_backward(HYLA, batch, seq)
    code = batch * seq**2 * n_heads * 4
    assert softmax > code, "the count sees the code"
    assert hyla <= softmax + 2 * batch * seq**2 * (d_value + n_heads) * 4
