"""Coefficient transfer on language models: nothing at lambda 0, the two formulas, causality, generation, files, fitting."""

import ast
import json
import math
from pathlib import Path

import pytest
import torch
from torch import nn

from compolens import language_models
from compolens.foundation.configs import ConfigError
from compolens.language_models import (
    Batch,
    Blocks,
    OutputTransferAdapter,
    RelativeTransferAdapter,
    fit,
    load_language_model,
    pattern_study,
    target_loss,
)
from compolens.language_models.transfer import _ExactAdd
from compolens.language_models.wrapped import LAYOUTS

VOCABULARY, SEQ = 13, 14
BLOCKS = [(1, 4), (4, 7), (8, 11), (11, 14)]
KINDS = (OutputTransferAdapter, RelativeTransferAdapter)
EVERY_KIND = pytest.mark.parametrize("kind", KINDS)
EVERY_LAYOUT = pytest.mark.parametrize("layout", LAYOUTS)


def language_model(layout="llama", attention="eager", dtype=torch.float64, n_layers=2, **settings):
    """A small random causal language model; heads narrower than d_model / n_heads, and two heads per key and value."""
    from transformers import AutoConfig, AutoModelForCausalLM

    sizes = {
        "vocab_size": VOCABULARY, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": n_layers,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 6, "max_position_embeddings": 64,
        "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": None, "initializer_range": 0.4,
    }  # fmt: skip
    config = AutoConfig.for_model(layout, **(sizes | settings))
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(config, attn_implementation=attention, dtype=dtype)
    return model.eval()


def tokens(n=2, seq=SEQ, seed=0):
    return torch.randint(2, VOCABULARY, (n, seq), generator=torch.Generator().manual_seed(seed))


def with_lambda(kind, model, scale=0.5):
    """The adapter with lambda drawn at random, in the model's precision."""
    adapter = kind(model, n_blocks=4).to(model.dtype)
    with torch.no_grad():
        adapter.coefficients.copy_(scale * torch.randn(adapter.coefficients.shape, generator=torch.Generator().manual_seed(1)))
    return adapter


def bits(tensor):
    return tensor.detach().contiguous().view({2: torch.int16, 4: torch.int32, 8: torch.int64}[tensor.element_size()])


def logits(model, ids, **arguments):
    with torch.no_grad():
        return model(ids, **arguments).logits


class Seen:
    """What the attention of a layer was called with, what went into its output projection, and what it gave back."""

    def __init__(self, model, layer, ids):
        attention = model.model.layers[layer].self_attn
        self.attention = attention
        handles = [
            attention.register_forward_pre_hook(self.enter, with_kwargs=True),
            attention.o_proj.register_forward_pre_hook(self.project),
            attention.register_forward_hook(self.leave),
        ]
        self.logits = logits(model, ids)
        for handle in handles:
            handle.remove()

    def enter(self, module, args, kwargs):
        self.hidden, self.cos_sin = kwargs["hidden_states"], kwargs["position_embeddings"]

    def project(self, module, args):
        self.z = args[0]

    def leave(self, module, args, output):
        self.output, self.weights = output


# ---- nothing changes where nothing is transferred --------------------------------------------------------------------
@EVERY_LAYOUT
@EVERY_KIND
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_at_lambda_0_the_logits_are_the_base_models_bit_for_bit(layout, kind, dtype):
    model = language_model(layout, dtype=dtype)
    ids = tokens()
    base, base_with_gradient = logits(model, ids), model(ids).logits
    adapter = kind(model, n_blocks=4)
    with adapter.blocks(BLOCKS):
        assert torch.equal(bits(logits(model, ids)), bits(base))
        assert torch.equal(bits(model(ids).logits), bits(base_with_gradient))
    with torch.no_grad():
        adapter.coefficients.fill_(0.3)
    assert torch.equal(bits(logits(model, ids)), bits(base)), "no blocks, no transfer"
    with adapter.blocks(BLOCKS):
        assert not torch.equal(logits(model, ids), base)
    adapter.set_blocks(BLOCKS)
    adapter.remove()
    assert torch.equal(bits(logits(model, ids)), bits(base))


@pytest.mark.parametrize(("kind", "attention"), [(KINDS[0], "eager"), (KINDS[0], "sdpa"), (KINDS[1], "eager")])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_at_lambda_0_generation_is_the_base_models_bit_for_bit(kind, attention, dtype):
    # frozen already: torch may multiply a slice by a matrix that wants a gradient in another order, 1 ulp apart
    model = language_model(attention=attention, dtype=dtype).requires_grad_(False)
    base = generated(model, tokens(seq=12))
    with kind(model, n_blocks=4).blocks(BLOCKS):
        ours = generated(model, tokens(seq=12))
    assert torch.equal(ours.sequences, base.sequences)
    assert len(ours.logits) == 5
    assert all(torch.equal(bits(a), bits(b)) for a, b in zip(ours.logits, base.logits, strict=True))


def generated(model, ids, **settings):
    settings = {"max_new_tokens": 5, "do_sample": False, "attention_mask": torch.ones_like(ids)} | settings
    return model.generate(ids, return_dict_in_generate=True, output_logits=True, **settings)


def test_adding_zero_keeps_the_sign_of_zero_and_the_gradient_of_a_sum():
    base = torch.tensor([-0.0, 0.0, 2.0, -3.0], requires_grad=True)
    delta = torch.tensor([0.0, -0.0, 0.0, 1.0], requires_grad=True)
    total = _ExactAdd.apply(base, delta)
    assert torch.equal(bits(total), bits(torch.tensor([-0.0, 0.0, 2.0, -2.0])))
    total.backward(torch.tensor([1.0, 2.0, 3.0, 4.0]))
    assert base.grad.tolist() == delta.grad.tolist() == [1.0, 2.0, 3.0, 4.0]


def test_the_model_is_frozen_and_holds_no_part_of_the_adapter():
    model = language_model(n_layers=32)
    model.model.norm.weight.requires_grad_(False)
    names = set(model.state_dict())
    adapter = OutputTransferAdapter(model, n_blocks=4)
    assert adapter.count == 96 == sum(p.numel() for p in adapter.parameters())
    assert repr(adapter) == "OutputTransferAdapter(96 parameters (32 layers x 3))"
    assert not any(p.requires_grad for p in model.parameters())
    assert set(model.state_dict()) == names
    adapter.remove()
    assert [name for name, p in model.named_parameters() if not p.requires_grad] == ["model.norm.weight"]


# ---- the two formulas ------------------------------------------------------------------------------------------------
def by_hand(seen, lam, relative):
    """One layer of Llama attention written out position by position, in float64, with the transfer: the layer's output."""
    attention, x = seen.attention, seen.hidden
    batch, seq, width, n_heads, groups = x.shape[0], x.shape[1], attention.head_dim, 4, 2
    half, out = width // 2, torch.zeros(x.shape[0], x.shape[1], 4 * attention.head_dim, dtype=torch.float64)
    cos, sin = (part.expand(batch, -1, -1) for part in seen.cos_sin)

    def turned(vector, b, t):
        return vector * cos[b, t] + torch.cat([-vector[half:], vector[:half]]) * sin[b, t]

    def head(projection, index, b, t):
        return (projection.weight[index * width : (index + 1) * width] @ x[b, t]).detach()

    starts, length = [start for start, _ in BLOCKS], BLOCKS[0][1] - BLOCKS[0][0]
    for b in range(batch):
        for h in range(n_heads):
            keys = [turned(head(attention.k_proj, h // groups, b, t), b, t) for t in range(seq)]
            values = [head(attention.v_proj, h // groups, b, t) for t in range(seq)]
            alpha = torch.zeros(seq, seq, dtype=torch.float64)
            for t in range(seq):
                query = turned(head(attention.q_proj, h, b, t), b, t)
                scores = torch.stack([query @ keys[s] for s in range(t + 1)]) / math.sqrt(width)
                alpha[t, : t + 1] = scores.exp() / scores.exp().sum()
            moved = alpha.clone()
            for i, start in enumerate(starts[:-1]):
                for r in range(length):
                    for s in range(length) if relative else range(seq):
                        to, come = (starts[-1] + s, start + s) if relative else (s, s)
                        moved[starts[-1] + r, to] += lam[i] * alpha[start + r, come]
            out[b, :, h * width : (h + 1) * width] = moved @ torch.stack(values)
    return out @ attention.o_proj.weight.detach().T


@EVERY_KIND
def test_transfer_is_the_formula_written_out_for_one_layer(kind):
    # transformers' eager attention rounds its weights to float32 whatever the model's precision; sdpa does not
    relative = kind is RelativeTransferAdapter
    model, ids, tolerance = language_model(attention="eager" if relative else "sdpa"), tokens(), 2e-6 if relative else 1e-12
    plain = Seen(model, 1, ids).output
    adapter = with_lambda(kind, model)
    with adapter.blocks(BLOCKS), torch.no_grad():
        seen = Seen(model, 1, ids)  # the second layer: what it gets is changed by the first one's transfer already
        expected = by_hand(seen, adapter.coefficients[1], relative)
    torch.testing.assert_close(seen.output, expected, rtol=0, atol=tolerance)
    assert (seen.output - plain).abs().max() > 1e-2


@EVERY_LAYOUT
def test_output_transfer_adds_rows_of_attention_outputs_in_every_layout(layout):
    model, ids = language_model(layout), tokens()
    base = Seen(model, 0, ids)
    adapter = with_lambda(OutputTransferAdapter, model)
    with adapter.blocks(BLOCKS):
        ours = Seen(model, 0, ids)
    expected = base.output.clone()
    for lam, (start, stop) in zip(adapter.coefficients[0], BLOCKS, strict=False):
        rows = base.z[:, start:stop] @ base.attention.o_proj.weight.T
        expected[:, 11:14] += lam.detach() * rows.detach()
    torch.testing.assert_close(ours.output, expected, rtol=0, atol=1e-12)


@EVERY_LAYOUT
def test_relative_transfer_moves_weights_and_their_columns_in_every_layout(layout):
    model, ids = language_model(layout), tokens()
    base = Seen(model, 0, ids)
    adapter = with_lambda(RelativeTransferAdapter, model)
    with adapter.blocks(BLOCKS):
        ours = Seen(model, 0, ids)
    weights = base.weights.clone()
    for lam, (start, stop) in zip(adapter.coefficients[0], BLOCKS, strict=False):
        weights[:, :, 11:14, 11:14] += lam.detach() * base.weights[:, :, start:stop, start:stop]
    values = base.attention.v_proj(base.hidden).unflatten(-1, (2, 6)).repeat_interleave(2, 2)
    z = torch.einsum("bhqk,bkhd->bqhd", weights, values).flatten(2)
    torch.testing.assert_close(ours.output, base.attention.o_proj(z), rtol=0, atol=1e-12)
    assert torch.equal(ours.z, base.z), "hooks of the output projection see one call"


def test_shuffled_rows_look_at_their_own_columns_but_at_none_that_would_be_later_in_the_target():
    model, ids, blocks = language_model(), tokens(), Blocks.of(BLOCKS).shuffled(torch.Generator().manual_seed(3))
    base = Seen(model, 0, ids)
    adapter = with_lambda(RelativeTransferAdapter, model)
    with adapter.blocks(blocks):
        change = Seen(model, 0, ids).output - base.output
    weights = torch.zeros_like(base.weights)
    for i, (start, _) in enumerate(BLOCKS[:-1]):
        for row, position in enumerate(blocks.context[0, i].tolist()):
            for column in range(row + 1):
                moved = base.weights[:, :, position, start + column]
                weights[:, :, 11 + row, 11 + column] += adapter.coefficients[0, i].detach() * moved
    values = base.attention.v_proj(base.hidden).unflatten(-1, (2, 6)).repeat_interleave(2, 2)
    z = torch.einsum("bhqk,bkhd->bqhd", weights, values).flatten(2)
    torch.testing.assert_close(change, base.attention.o_proj(z), rtol=0, atol=1e-12)


@EVERY_KIND
def test_an_output_projection_with_a_bias_adds_it_once(kind):
    model, ids = language_model(attention_bias=True), tokens()
    for layer in model.model.layers:
        nn.init.constant_(layer.self_attn.o_proj.bias, 5.0)
    plain = Seen(model, 0, ids)
    adapter = with_lambda(kind, model)
    with adapter.blocks(BLOCKS):
        change = Seen(model, 0, ids).output - plain.output
    assert not change[:, :11].any()
    assert 1e-3 < change[:, 11:].abs().max() < 4


def test_sdpa_and_eager_attention_transfer_the_same_outputs():
    ours = []
    for attention in ("eager", "sdpa"):
        model = language_model(attention=attention)
        with with_lambda(OutputTransferAdapter, model).blocks(BLOCKS):
            ours.append(logits(model, tokens()))
    torch.testing.assert_close(*ours, rtol=0, atol=1e-5)  # eager attention rounds its weights to float32


def test_two_transfers_on_one_model_add_up_in_a_layer():
    model, ids = language_model(n_layers=1), tokens()
    changes, base = [], Seen(model, 0, ids).output
    first, second = (with_lambda(kind, model) for kind in KINDS)
    for some in ([first], [second], [first, second]):
        for adapter in some:
            adapter.set_blocks(BLOCKS)
        changes.append(Seen(model, 0, ids).output - base)
        for adapter in some:
            adapter.set_blocks(None)
    torch.testing.assert_close(changes[0] + changes[1], changes[2], rtol=0, atol=1e-12)


@EVERY_KIND
@pytest.mark.parametrize("shuffled", [False, True])
def test_no_logit_depends_on_a_later_token(kind, shuffled):
    model, ids = language_model(), tokens(n=1)
    blocks = Blocks.of(BLOCKS)
    blocks = blocks.shuffled(torch.Generator().manual_seed(3)) if shuffled else blocks
    other = (ids - 2 + 5) % (VOCABULARY - 2) + 2
    with with_lambda(kind, model).blocks(blocks):
        reference = logits(model, ids)
        for position in range(1, SEQ):
            changed = torch.cat([ids[:, :position], other[:, position:]], 1)
            # row by row the same sums, but matrix products may group them otherwise
            torch.testing.assert_close(logits(model, changed)[:, :position], reference[:, :position], rtol=0, atol=1e-12)
        assert (logits(model, changed)[:, -1] - reference[:, -1]).abs().max() > 1e-3


# ---- the gradient ----------------------------------------------------------------------------------------------------
def test_the_gradient_at_0_is_what_the_loss_says_about_the_target_times_the_context_outputs():
    model, ids = language_model(), tokens()
    outputs = {}

    def keep(layer):
        def hook(module, args):
            args[0].retain_grad()
            outputs[layer] = args[0]

        return hook

    handles = [layer.self_attn.o_proj.register_forward_pre_hook(keep(i)) for i, layer in enumerate(model.model.layers)]
    scores = model(ids).logits.log_softmax(-1)
    loss = -torch.stack([scores[b, t - 1, ids[b, t]] for b in range(2) for t in (12, 13)]).mean()
    loss.backward()
    expected = [
        [(outputs[layer].grad[:, 11:14] * outputs[layer][:, start:stop]).sum().item() for start, stop in BLOCKS[:-1]]
        for layer in range(2)
    ]
    for handle in handles:
        handle.remove()
    adapter = OutputTransferAdapter(model, n_blocks=4).double()
    ours = target_loss(adapter, Batch(ids, BLOCKS))
    ours.backward()
    assert ours.item() == pytest.approx(loss.item(), abs=1e-12)
    torch.testing.assert_close(adapter.coefficients.grad, torch.tensor(expected).double(), rtol=1e-5, atol=1e-8)
    assert adapter.coefficients.grad.abs().min() > 1e-6


@EVERY_KIND
def test_the_gradient_is_the_slope_of_the_loss(kind):
    model, batch = language_model(), Batch(tokens(), BLOCKS)
    adapter = with_lambda(kind, model)
    target_loss(adapter, batch).backward()
    gradient, step = adapter.coefficients.grad, 3e-3  # so wide since norms and eager attention round to float32
    assert all(p.grad is None for p in model.parameters())
    for place in [(0, 0), (0, 2), (1, 1)]:
        sides = []
        for sign in (1, -1):
            with torch.no_grad():
                adapter.coefficients[place] += sign * step
                sides.append(target_loss(adapter, batch).item())
                adapter.coefficients[place] -= sign * step
        assert gradient[place].item() == pytest.approx((sides[0] - sides[1]) / (2 * step), rel=2e-3, abs=1e-3)


# ---- blocks at different places, caches, generation ------------------------------------------------------------------
@EVERY_KIND
def test_left_padding_moves_the_blocks_and_changes_nothing(kind):
    # in float64, transformers' eager attention itself gives nan with left padding
    relative = kind is RelativeTransferAdapter
    dtype, tolerance = (torch.float32, 1e-4) if relative else (torch.float64, 1e-10)
    model, ids = language_model(attention="eager" if relative else "sdpa", dtype=dtype), tokens(n=3)
    padding = [0, 2, 5]
    wide = torch.zeros(3, SEQ + 5, dtype=torch.int64)
    mask, positions = torch.zeros_like(wide), torch.zeros_like(wide)
    for item, pad in enumerate(padding):
        wide[item, pad : pad + SEQ] = ids[item]
        mask[item, pad : pad + SEQ] = 1
        positions[item, pad : pad + SEQ] = torch.arange(SEQ)
    adapter = with_lambda(kind, model)
    with adapter.blocks([[(start + pad, stop + pad) for start, stop in BLOCKS] for pad in padding]):
        padded = logits(model, wide, attention_mask=mask, position_ids=positions)
    with adapter.blocks(BLOCKS):
        alone = logits(model, ids)
    for item, pad in enumerate(padding):
        torch.testing.assert_close(padded[item, pad : pad + SEQ], alone[item], rtol=0, atol=tolerance)


@EVERY_KIND
@pytest.mark.parametrize("chunks", [[14], [12, 1, 1], [11, 1, 1, 1], [11, 3]])
def test_a_sequence_read_in_pieces_gives_the_same_logits(kind, chunks):
    from transformers import DynamicCache

    model, ids = language_model(), tokens()
    with with_lambda(kind, model).blocks(BLOCKS):
        whole = logits(model, ids, use_cache=False)
        cache, pieces = DynamicCache(config=model.config), []
        for piece in ids.split(chunks, 1):
            pieces.append(logits(model, piece, past_key_values=cache, use_cache=True))
    torch.testing.assert_close(torch.cat(pieces, 1), whole, rtol=0, atol=1e-10)


@EVERY_KIND
@pytest.mark.parametrize("settings", [{}, {"num_beams": 3, "length_penalty": 0.0}, {"cache_implementation": "static"}])
def test_generation_with_a_cache_is_generation_without_one(kind, settings):
    model, ids = language_model(), tokens(n=2, seq=11)
    if "cache_implementation" in settings:
        settings = settings | {"disable_compile": True}
    with with_lambda(kind, model, scale=2.0).blocks(BLOCKS):
        cached = generated(model, ids, **settings)
        plain = generated(model, ids, use_cache=False, **{k: v for k, v in settings.items() if "num" in k or "length" in k})
    assert torch.equal(cached.sequences, plain.sequences)
    torch.testing.assert_close(torch.stack(cached.logits), torch.stack(plain.logits), rtol=0, atol=1e-9)
    assert not torch.equal(plain.logits[-1], generated(model, ids).logits[-1])


def test_what_was_kept_for_a_generation_goes_with_its_cache():
    model = language_model()
    adapter = with_lambda(OutputTransferAdapter, model)
    with adapter.blocks(BLOCKS):
        output = model(tokens())
        assert len(adapter._kept) == 1
        del output
    assert len(adapter._kept) == 0


def test_a_cache_filled_without_these_blocks_is_refused():
    model, ids = language_model(), tokens()
    adapter = with_lambda(OutputTransferAdapter, model)
    cache = model(ids[:, :12]).past_key_values
    with adapter.blocks(BLOCKS), pytest.raises(ConfigError, match="start from an empty cache within"):
        model(ids[:, 12:], past_key_values=cache)
    with adapter.blocks(BLOCKS):
        cache = model(ids[:, :12]).past_key_values
        wide = model(ids[:, :12]).past_key_values
    wide.batch_repeat_interleave(2)
    with adapter.blocks(BLOCKS), pytest.raises(ConfigError, match="not filled under these blocks"):
        model(ids[:, 12:].repeat_interleave(2, 0), past_key_values=wide)
    with adapter.blocks([(0, 3), (3, 6), (6, 9), (11, 14)]), pytest.raises(ConfigError, match="not filled under these blocks"):
        model(ids[:, 12:], past_key_values=cache)


@EVERY_KIND
def test_a_context_that_is_not_in_the_input_is_refused(kind):
    adapter = with_lambda(kind, language_model())
    with adapter.blocks(BLOCKS), pytest.raises(ConfigError, match="up to position 11, but the input has 10 tokens; give all"):
        adapter.model(tokens(seq=10))


def test_relative_transfer_says_what_attention_and_cache_it_needs():
    model = language_model(attention="sdpa")
    adapter = with_lambda(RelativeTransferAdapter, model)
    with adapter.blocks(BLOCKS), pytest.raises(ConfigError, match=r"'sdpa' attention returns none; call model.set_attn_impl"):
        model(tokens())
    model = language_model("mistral", sliding_window=6)
    adapter = with_lambda(RelativeTransferAdapter, model)
    with adapter.blocks(BLOCKS):
        with pytest.raises(ConfigError, match="all 14 positions, but layer 0's cache keeps 5"):
            model(tokens())
        assert logits(model, tokens(), use_cache=False).isfinite().all()


def test_blocks_that_do_not_fit_the_batch_or_the_adapter_are_refused():
    adapter = OutputTransferAdapter(language_model(), n_blocks=4)
    with adapter.blocks([BLOCKS, BLOCKS, BLOCKS]), pytest.raises(ConfigError, match="for 3 items, but the batch has 2"):
        adapter.model(tokens())
    with pytest.raises(ConfigError, match="got 3 blocks, this adapter has 4: 3 of context, then the target"):
        adapter.set_blocks(BLOCKS[1:])
    with pytest.raises(ConfigError, match="at least 2, got 1"):
        OutputTransferAdapter(language_model(), n_blocks=1)
    with adapter.blocks(BLOCKS):
        with adapter.blocks(None):
            assert adapter._blocks is None
        assert adapter._blocks is not None
    assert adapter._blocks is None


@pytest.mark.parametrize(
    ("ranges", "message"),
    [
        ([(0, 3), (3, 5)], r"must be equally long, but they have \[2, 3\] tokens"),
        ([(0, 0), (3, 3)], r"equally long, but they have \[0\] tokens"),
        ([(0, 3), (2, 5)], "follow each other without overlap"),
        ([(3, 6), (0, 3)], "the target last"),
        ([(-3, 0), (0, 3)], "follow each other"),
        ([(0, 3)], "a context block and the target block at least"),
        ([[(0, 3), (3, 6)], [(0, 3)]], "of whole numbers for each block"),
        ([(0.0, 3.0), (3.0, 6.0)], "of whole numbers for each block"),
        ([0, 3, 6], "of whole numbers for each block"),
        ("blocks", "of whole numbers for each block"),
    ],
)
def test_blocks_that_are_none_are_refused(ranges, message):
    with pytest.raises(ConfigError, match=message):
        Blocks.of(ranges)


def test_shuffling_draws_context_rows_anew_and_leaves_the_target():
    blocks = Blocks.of([(0, 8), (8, 16), (16, 24)])
    shuffled = blocks.shuffled(torch.Generator().manual_seed(0))
    assert (shuffled.context != blocks.context).all(), "every row meets another one"
    assert torch.equal(shuffled.target, blocks.target)
    assert torch.equal(shuffled.context.sort(-1).values, blocks.context)
    offsets = shuffled.context - blocks.context[..., :1]
    assert not torch.equal(offsets[0, 0], offsets[0, 1])
    with pytest.raises(ConfigError, match="blocks of one row cannot be shuffled"):
        Blocks.of([(0, 1), (1, 2)]).shuffled(torch.Generator())


# ---- which models ----------------------------------------------------------------------------------------------------
def gpt2():
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.for_model("gpt2", vocab_size=VOCABULARY, n_embd=8, n_layer=1, n_head=2, n_positions=16)
    return AutoModelForCausalLM.from_config(config)


def test_a_layout_that_is_not_supported_is_named_with_those_that_are(tmp_path):
    supported = "'gpt2', which coefficient transfer does not know; supported: llama, mistral, qwen2, qwen3, gemma, gemma2"
    model = gpt2()
    with pytest.raises(ConfigError, match=f"GPT2LMHeadModel has the attention layout {supported}"):
        OutputTransferAdapter(model, n_blocks=2)
    model.save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match=supported):
        load_language_model(tmp_path)
    with pytest.raises(ConfigError, match="give the causal language model itself"):
        OutputTransferAdapter(language_model().model, n_blocks=2)
    with pytest.raises(ConfigError, match="Linear has the attention layout 'unknown'"):
        OutputTransferAdapter(nn.Linear(2, 2), n_blocks=2)


def test_a_saved_model_loads_with_the_attention_and_precision_asked_for(tmp_path):
    model = language_model(dtype=torch.float32)
    model.save_pretrained(tmp_path)
    loaded = load_language_model(tmp_path, attention="eager")
    assert torch.equal(logits(loaded, tokens()), logits(model, tokens())) and not loaded.training
    loaded = load_language_model(str(tmp_path), attention="sdpa", dtype=torch.bfloat16)
    assert loaded.dtype == torch.bfloat16 and loaded.config._attn_implementation == "sdpa"


def test_a_model_that_is_not_there_is_one_line(tmp_path):
    with pytest.raises(ConfigError, match="there is no folder '/no/such/place'; give the folder that holds"):
        load_language_model("/no/such/place")
    with pytest.raises(
        ConfigError, match=r"could not load a language model from 'nobody/no-model'.*needs download=True"
    ) as caught:
        load_language_model("nobody/no-model")
    assert caught.value.__cause__ is None and caught.value.__suppress_context__ and "\n" not in str(caught.value)
    with pytest.raises(ConfigError, match="could not load a language model"):  # no network in tests: the same, no hint
        load_language_model("nobody/no-model", download=True)
    with pytest.raises(ConfigError, match="could not load"):
        load_language_model(tmp_path)


def test_a_model_that_is_damaged_incomplete_or_pickled_does_not_load(tmp_path):
    from safetensors.torch import load_file, save_file

    model = language_model(dtype=torch.float32)
    model.save_pretrained(tmp_path)
    weights = tmp_path / "model.safetensors"
    tensors = load_file(weights)
    lacking = {name: tensor for name, tensor in tensors.items() if "layers.1.self_attn.v_proj" not in name}
    save_file(lacking, weights, metadata={"format": "pt"})
    with pytest.raises(ConfigError, match=r"does not hold all weights .*layers.1.self_attn.v_proj"):
        load_language_model(tmp_path)
    weights.write_bytes(weights.read_bytes()[:500])
    with pytest.raises(ConfigError, match="could not load"):
        load_language_model(tmp_path)
    weights.unlink()
    torch.save(tensors, tmp_path / "pytorch_model.bin")
    with pytest.raises(ConfigError, match="could not load"):
        load_language_model(tmp_path)


def test_transformers_is_imported_only_when_it_is_used():
    for path in Path(language_models.__file__).parent.glob("*.py"):
        top = [node for node in ast.parse(path.read_text()).body if isinstance(node, ast.Import | ast.ImportFrom)]
        names = [alias.name for node in top for alias in node.names] + [getattr(node, "module", None) for node in top]
        assert not [name for name in names if name and name.startswith(("transformers", "safetensors"))]


# ---- files of lambda -------------------------------------------------------------------------------------------------
def test_lambda_alone_is_saved_and_comes_back(tmp_path):
    model = language_model()
    adapter = with_lambda(OutputTransferAdapter, model)
    adapter.save(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"transfer.safetensors", "transfer.json"}
    assert (tmp_path / "transfer.safetensors").stat().st_size < 1000
    assert json.loads((tmp_path / "transfer.json").read_text()) == {
        "format": 1, "transfer": "OutputTransferAdapter", "n_layers": 2, "n_blocks": 4, "model_type": "llama", "d_model": 16,
    }  # fmt: skip
    adapter.remove()
    again = OutputTransferAdapter(model, n_blocks=4).double()
    again.load(tmp_path)
    assert torch.equal(again.coefficients, adapter.coefficients)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: RelativeTransferAdapter(language_model(), 4), "transfer is 'OutputTransferAdapter' there and 'RelativeTr"),
        (lambda: OutputTransferAdapter(language_model(), 3), "n_blocks is 4 there and 3 here"),
        (lambda: OutputTransferAdapter(language_model(n_layers=1), 4), "n_layers is 2 there and 1 here"),
        (lambda: OutputTransferAdapter(language_model("mistral"), 4), "model_type is 'llama' there and 'mistral' here"),
        (lambda: OutputTransferAdapter(language_model(hidden_size=8), 4), "d_model is 16 there and 8 here"),
    ],
)
def test_lambda_of_something_else_is_refused(tmp_path, build, message):
    with_lambda(OutputTransferAdapter, language_model()).save(tmp_path)
    adapter = build()
    with pytest.raises(ConfigError, match=message):
        adapter.load(tmp_path)
    assert not adapter.coefficients.any()


def test_files_of_lambda_that_are_damaged_are_refused(tmp_path):
    adapter = with_lambda(OutputTransferAdapter, language_model())
    with pytest.raises(ConfigError, match=r"holds no transfer.json; adapter.save"):
        adapter.load(tmp_path)
    adapter.save(tmp_path)
    path = tmp_path / "transfer.safetensors"
    whole = path.read_bytes()
    path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    with pytest.raises(ConfigError, match="truncated or corrupted"):
        adapter.load(tmp_path)
    with torch.no_grad():
        adapter.coefficients[0, 0] = math.nan
    adapter.save(tmp_path)
    with pytest.raises(ConfigError, match="no finite coefficients of shape"):
        adapter.load(tmp_path)
    path.unlink()
    with pytest.raises(ConfigError, match=r"holds no transfer.safetensors"):
        adapter.load(tmp_path)


# ---- fitting ---------------------------------------------------------------------------------------------------------
def test_by_default_the_loss_counts_what_the_target_block_predicts():
    ids = tokens(n=2, seq=16)
    expected = torch.full_like(ids, -100)
    expected[:, 12:15] = ids[:, 12:15]
    assert torch.equal(Batch(ids, BLOCKS).scored(), expected)
    mask = torch.ones_like(ids)
    mask[0, 14:] = 0
    expected[0, 14] = -100
    assert torch.equal(Batch(ids, [BLOCKS, BLOCKS], mask).scored(), expected)
    with pytest.raises(ConfigError, match="no token of this batch is scored: 11 tokens per sequence"):
        Batch(ids[:, :11], BLOCKS).scored()


@EVERY_KIND
def test_fitting_moves_lambda_alone_and_down(kind):
    model = language_model(dtype=torch.float32).train()
    batches = [Batch(tokens(n=3), BLOCKS), Batch(tokens(n=1, seed=1), Blocks.of(BLOCKS))]
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    adapter = kind(model, n_blocks=4)
    losses = fit(adapter, batches, lr=0.05, steps=4)
    assert len(losses) == 5 and losses[-1] < losses[0] and adapter.coefficients.abs().min() > 0
    assert losses[0] == pytest.approx(base_loss(model, batches), abs=1e-5)
    with torch.no_grad():
        after = [target_loss(adapter, batch).item() for batch in batches]
    assert (3 * after[0] + after[1]) / 4 == pytest.approx(min(losses), abs=1e-5)
    assert model.training and all(torch.equal(model.state_dict()[name], tensor) for name, tensor in before.items())


def base_loss(model, batches):
    """Mean loss of tokens 12 and 13, which the target block's rows 11 and 12 predict; without the adapter's code."""
    scores = torch.cat([logits(model, batch.input_ids)[:, 11:13].flatten(0, 1) for batch in batches])
    return nn.functional.cross_entropy(scores, torch.cat([batch.input_ids[:, 12:14].flatten() for batch in batches])).item()


@EVERY_KIND
def test_fitting_never_ends_above_the_base_model(kind):
    adapter = kind(language_model(dtype=torch.float32), n_blocks=4)
    fit(adapter, [Batch(tokens(), BLOCKS)], lr=0.1, steps=30)
    there = adapter.coefficients.detach().clone()
    losses = fit(adapter, [Batch(tokens(), BLOCKS)], lr=30.0, steps=1)
    assert losses[1] > losses[0], "a rate this large overshoots, so that keeping the best is put to the test"
    assert torch.equal(adapter.coefficients, there)


def test_fitting_on_nothing_or_from_nowhere_is_refused():
    model = language_model()
    adapter = OutputTransferAdapter(model, n_blocks=4)
    with pytest.raises(ConfigError, match="at least one batch"):
        fit(adapter, [])
    with pytest.raises(ConfigError, match="lr must be positive and steps not negative, got lr=0"):
        fit(adapter, [Batch(tokens(), BLOCKS)], lr=0)
    with torch.no_grad():
        model.model.norm.weight.fill_(math.nan)
    with pytest.raises(ConfigError, match="the loss without transfer is nan"):
        fit(adapter, [Batch(tokens(), BLOCKS)])


# ---- the study -------------------------------------------------------------------------------------------------------
def test_the_studys_sequences_follow_their_rule():
    tokens = pattern_study.sequences(200, torch.Generator().manual_seed(0)).view(200, 4, 4)
    shown, answer = tokens[..., :3], tokens[..., 3]
    assert torch.equal(shown // 6, torch.arange(3).expand(200, 4, 3))
    which = (shown == answer[..., None]).int().argmax(-1)
    assert torch.equal(shown.gather(2, which[..., None])[..., 0], answer)
    assert (which == which[:, :1]).all() and set(which[:, 0].tolist()) == {0, 1, 2}


def test_the_study_never_fits_worse_than_the_base_model_and_repeats_itself():
    sizes = pattern_study.Sizes(base_steps=3, batch_size=8, lambda_steps=2, fitted_on=16, held_out=16)
    state = torch.random.get_rng_state()
    table = pattern_study.study(1, sizes)
    assert torch.equal(torch.random.get_rng_state(), state)
    assert list(zip(table["transfer"], table["rows"], strict=True)) == [
        ("output", "aligned"), ("output", "shuffled"), ("relative", "aligned"), ("relative", "shuffled"),
    ]  # fmt: skip
    assert (table["train"] <= table["train_base"]).all() and table["train_base"].nunique() == 1
    assert table["base"].nunique() == 1 and ((table["base"] - table["held_out"] - table["gain"]).abs() < 1e-9).all()
    assert pattern_study.study(1, sizes).equals(table)
    summary = pattern_study.summary(table)
    assert summary["seeds"].tolist() == [1, 1] and summary["transfer"].tolist() == ["output", "relative"]
    assert summary["shuffled"].tolist() == table["gain"][[1, 3]].tolist()
    assert summary["over_shuffled"].tolist() == (table["gain"][[0, 2]].values - table["gain"][[1, 3]].values).tolist()


def test_a_temperature_recovers_the_loss_of_a_model_that_was_scaled():
    rng = torch.Generator().manual_seed(0)
    model = pattern_study.base_model(rng)
    pattern_study.train_base(model, pattern_study.Sizes(base_steps=60, batch_size=32), rng)
    fitted, held_out = (pattern_study.last_answer(pattern_study.sequences(256, rng)) for _ in range(2))
    least = pattern_study.tempered_loss(model, fitted, held_out, 200)
    with torch.no_grad():
        model.lm_head.weight.mul_(3)
    assert pattern_study.tempered_loss(model, fitted, held_out, 200) == pytest.approx(least, abs=1e-3)
