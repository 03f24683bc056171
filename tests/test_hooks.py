"""Hooks: the names and shapes that TransformerLens users expect, and every known trap turned into an error."""

import pytest
import torch
from transformer_lens import ActivationCache

from compolens import HYLA, DeepHYLA, HypernetworkTransformer, Run, SoftmaxTransformer, SparseCoding, intervene, record
from compolens.activations.sites import at_role, residual_sites
from compolens.activations.streams import draw
from compolens.foundation.configs import ConfigError

BATCH, SEQ, D_MODEL, HEADS, D_HEAD, D_VALUE, D_MLP = 5, 9, 16, 2, 8, 3, 20
RESID = (BATCH, SEQ, D_MODEL)
SCORES, CODE = (BATCH, HEADS, SEQ, SEQ), (BATCH, SEQ, SEQ, HEADS)
LAYER_NORM = {"hook_scale": (BATCH, SEQ, 1), "hook_normalized": RESID}
BLOCK = {
    **{f"hook_{name}": RESID for name in ("resid_pre", "attn_out", "resid_mid", "mlp_out", "resid_post")},
    **{f"ln1.{name}": shape for name, shape in LAYER_NORM.items()},
    **{f"ln2.{name}": shape for name, shape in LAYER_NORM.items()},
    "attn.hook_q": (BATCH, SEQ, HEADS, D_HEAD),
    "attn.hook_k": (BATCH, SEQ, HEADS, D_HEAD),
    "attn.hook_v": (BATCH, SEQ, HEADS, D_VALUE),
    "attn.hook_attn_scores": SCORES,
    "attn.hook_pattern": SCORES,
    "attn.hook_code": CODE,
    "attn.hook_z": (BATCH, SEQ, HEADS, D_VALUE),
    "attn.hook_result": (BATCH, SEQ, HEADS, D_MODEL),
    "mlp.hook_pre": (BATCH, SEQ, D_MLP),
    "mlp.hook_post": (BATCH, SEQ, D_MLP),
}
ASKED_FOR = {
    **{f"blocks.{layer}.hook_{kind}_input": (BATCH, SEQ, HEADS, D_MODEL) for layer in range(2) for kind in "qkv"},
    **{f"blocks.{layer}.hook_mlp_in": RESID for layer in range(2)},
}
"""What fires after set_use_split_qkv_input and set_use_hook_mlp_in."""
SHAPES = {
    "hook_embed": RESID,
    **{f"blocks.{layer}.{name}": shape for layer in range(2) for name, shape in BLOCK.items()},
    **{f"ln_final.{name}": shape for name, shape in LAYER_NORM.items()},
}


@pytest.fixture
def model(tiny_task):
    sizes = {"d_model": D_MODEL, "n_heads": HEADS, "d_head": D_HEAD, "d_value": D_VALUE, "d_mlp": D_MLP}
    return Run(SoftmaxTransformer(n_layers=2, **sizes), tiny_task).build()


@pytest.fixture
def hypernetwork(tiny_task):
    return Run(HypernetworkTransformer(n_layers=2, d_model=16, n_heads=2, d_code=6, d_hidden=12), tiny_task).build()


@pytest.fixture
def episodes(tiny_task):
    return tiny_task.sample(BATCH, "test", tiny_task.rng(0, "test"))


@pytest.fixture
def tokens(episodes):
    return episodes.tokens


def attached(model):
    return sum(len(m._forward_hooks) + len(m._backward_hooks) for m in model.modules()) + sum(
        len(point.fwd_hooks) + len(point.bwd_hooks) for point in model.hook_dict.values()
    )


def zero(tensor, hook):
    return torch.zeros_like(tensor)


# ---- names and shapes ------------------------------------------------------------------------------------------------
def test_hook_points_have_the_canonical_names_and_shapes(model, tokens):
    assert set(model.hook_dict) == {*SHAPES, *ASKED_FOR}
    model.set_use_attn_result(True)
    _, cache = model.run_with_cache(tokens)
    assert {name: tuple(cache[name].shape) for name in cache} == SHAPES
    model.set_use_split_qkv_input(True)
    model.set_use_hook_mlp_in(True)
    _, cache = model.run_with_cache(tokens)
    assert {name: tuple(cache[name].shape) for name in cache} == SHAPES | ASKED_FOR | {
        # each head's copy of the stream is normalised by itself
        f"blocks.{layer}.ln1.{name}": (BATCH, SEQ, HEADS, *shape[2:])
        for layer in range(2)
        for name, shape in LAYER_NORM.items()
    }


def test_every_hook_point_fires_except_the_one_that_is_off(model, tokens):
    _, cache = model.run_with_cache(tokens)
    assert set(SHAPES) - set(cache) == {"blocks.0.attn.hook_result", "blocks.1.attn.hook_result"}


def test_a_hypernetworks_own_hook_points(hypernetwork, tokens):
    _, cache = hypernetwork.run_with_cache(tokens)
    assert cache["hook_code"].shape == (BATCH, 1, 6)
    assert cache["executor.hook_weights"].shape == (BATCH, 4, 12)
    assert cache["executor.hook_hidden"].shape == (BATCH, SEQ, 12)
    assert cache["resid_pre", 0].shape == (BATCH, 6 + 1, 16), "the context and the summary token"


# ---- the cache -------------------------------------------------------------------------------------------------------
def test_the_cache_answers_to_transformer_lens_shorthands(model, tokens):
    prediction, cache = model.run_with_cache(tokens)
    assert isinstance(cache, ActivationCache)
    torch.testing.assert_close(prediction, model(tokens))
    assert cache["pattern", 0] is cache["blocks.0.attn.hook_pattern"]
    assert cache["pattern", -1] is cache["blocks.1.attn.hook_pattern"]
    assert cache["code", 0] is cache["blocks.0.attn.hook_code"]
    assert cache["code", -1] is cache["blocks.1.attn.hook_code"]
    assert cache["resid_post", -1] is cache["blocks.1.hook_resid_post"]
    assert cache["scale", 0, "ln2"] is cache["blocks.0.ln2.hook_scale"]
    assert torch.equal(cache.stack_activation("z"), torch.stack([cache["z", 0], cache["z", 1]]))


@pytest.mark.parametrize(
    ("key", "hint"),
    [
        ("blocks.0.attn.hook_patern", "blocks.0.attn.hook_pattern"),
        (("code", 7), "blocks.1.attn.hook_code"),
        (("resid_pots", 1), "nothing cached"),
        ("hook_embedding", "hook_embed"),
        (("patern", 0), "did you mean 'blocks.0.attn.hook_pattern'"),
        (("pattern", 7), "did you mean 'blocks"),
        (("result", 0), r"fires once model.set_use_attn_result\(True\)"),
        (3, "asked for a hook point"),
        (None, "asked for a hook point"),
    ],
)
def test_a_wrong_cache_key_names_the_nearest(model, tokens, key, hint):
    _, cache = model.run_with_cache(tokens)
    with pytest.raises(ConfigError, match=hint):
        cache[key]


def test_the_cache_holds_what_the_filter_asks_for(model, tokens):
    def cached(names_filter):
        return sorted(model.run_with_cache(tokens, names_filter=names_filter)[1])

    assert cached("hook_embed") == ["hook_embed"]
    assert cached(["hook_embed", "blocks.1.attn.hook_z"]) == ["blocks.1.attn.hook_z", "hook_embed"]
    assert cached(lambda name: name.endswith("hook_code")) == [f"blocks.{i}.attn.hook_code" for i in (0, 1)]


def test_a_batch_of_one_can_lose_its_batch_dimension(model, tokens):
    _, cache = model.run_with_cache(tokens[:1], remove_batch_dim=True)
    assert cache["pattern", 0].shape == (HEADS, SEQ, SEQ)
    with pytest.raises(ConfigError, match="got 5 episodes"):
        model.run_with_cache(tokens, remove_batch_dim=True)


def test_only_some_positions_can_be_cached(model, tokens):
    name = "blocks.1.hook_resid_post"
    _, whole = model.run_with_cache(tokens, names_filter=name)
    _, last = model.run_with_cache(tokens, names_filter=name, pos_slice=-1)
    assert torch.equal(last["resid_post", 1], whole["resid_post", 1][:, -1:])


PAIRS = {
    "attn.hook_code": [SoftmaxTransformer, HYLA, SparseCoding], "attn.hook_pre": [HYLA], "attn.hook_post": [HYLA],
    "attn.hook_pre2": [DeepHYLA], "attn.hook_post2": [DeepHYLA], "attn.hook_phi": [SparseCoding],
    "attn.hook_psi": [SparseCoding], "hook_q_input": [SoftmaxTransformer], "attn.hook_z": [HYLA],
}  # fmt: skip


@pytest.mark.parametrize("name", PAIRS)
@pytest.mark.parametrize("kept", [-1, (2, 5), [4, 1]])
def test_positions_are_found_at_hook_points_of_our_own(tiny_task, episodes, name, kept):
    for kind in PAIRS[name]:
        relus = {"relu_encoding": True, "relu_decoding": True} if kind is SparseCoding else {}
        model = Run(kind(n_layers=1, d_model=16, n_heads=HEADS, **relus), tiny_task).build()
        model.set_use_split_qkv_input(True)
        site = f"blocks.0.{name}"
        settings = {"names_filter": site, "return_type": "loss", "incl_bwd": True}
        _, whole = model.run_with_cache(episodes, **settings)
        _, some = model.run_with_cache(episodes, pos_slice=kept, **settings)
        places = list(range(SEQ))[slice(*kept)] if isinstance(kept, tuple) else kept if isinstance(kept, list) else [kept]
        for end in ("", "_grad"):
            assert torch.equal(some[site + end], whole[site + end][:, places])
        _, one = model.run_with_cache(episodes.tokens[:1], names_filter=site, pos_slice=kept, remove_batch_dim=True)
        torch.testing.assert_close(one[site], whole[site][0, places])


def test_what_has_no_positions_is_kept_whole(hypernetwork, tokens):
    names = ["hook_code", "executor.hook_weights"]
    _, whole = hypernetwork.run_with_cache(tokens, names_filter=names)
    _, some = hypernetwork.run_with_cache(tokens, names_filter=names, pos_slice=2)
    assert all(torch.equal(whole[name], some[name]) for name in names)


# ---- misspelt names --------------------------------------------------------------------------------------------------
MISSPELT = "blocks.0.attn.hook_patern"
HINT = "no hook point 'blocks.0.attn.hook_patern'; did you mean 'blocks.0.attn.hook_pattern'"
WAYS_IN = {
    "names_filter str": lambda m, t, name: m.run_with_cache(t, names_filter=name),
    "names_filter list": lambda m, t, name: m.run_with_cache(t, names_filter=["hook_embed", name]),
    "run_with_hooks fwd": lambda m, t, name: m.run_with_hooks(t, fwd_hooks=[(name, zero)]),
    "run_with_hooks bwd": lambda m, t, name: m.run_with_hooks(t, bwd_hooks=[(name, zero)]),
    "hooks": lambda m, t, name: m.hooks(fwd_hooks=[(name, zero)]).__enter__(),
    "add_hook": lambda m, t, name: m.add_hook(name, zero),
    "add_caching_hooks": lambda m, t, name: m.add_caching_hooks(name),
    "get_caching_hooks": lambda m, t, name: m.get_caching_hooks(name),
    "check_site": lambda m, t, name: m.check_site(name),
}


@pytest.mark.parametrize("way", WAYS_IN.values(), ids=WAYS_IN.keys())
def test_a_misspelt_name_is_an_error_that_names_the_nearest(model, tokens, way):
    with pytest.raises(ConfigError, match=HINT):
        way(model, tokens, MISSPELT)
    assert attached(model) == 0


@pytest.mark.parametrize("way", WAYS_IN.values(), ids=WAYS_IN.keys())
def test_a_hook_point_that_is_off_is_an_error_that_says_how_to_turn_it_on(model, tokens, way):
    name = "blocks.1.attn.hook_result"
    with pytest.raises(ConfigError, match=r"does not fire unless model\.set_use_attn_result\(True\)"):
        way(model, tokens, name)
    assert attached(model) == 0


TAKES_PREDICATES = [way for way in WAYS_IN if way not in ("names_filter list", "check_site")]


@pytest.mark.parametrize("way", TAKES_PREDICATES)
def test_a_filter_that_matches_nothing_is_an_error(model, tokens, way):
    with pytest.raises(ConfigError, match="matches none"):
        WAYS_IN[way](model, tokens, lambda name: name.endswith("hook_patern"))
    assert attached(model) == 0


@pytest.mark.parametrize("way", TAKES_PREDICATES)
def test_a_filter_that_matches_only_what_is_off_is_an_error(model, tokens, way):
    with pytest.raises(ConfigError):
        WAYS_IN[way](model, tokens, lambda name: name.endswith("attn.hook_result"))
    assert attached(model) == 0


def test_results_are_cached_and_edited_once_turned_on(model, tokens):
    before = model(tokens)
    model.set_use_attn_result(True)
    name = "blocks.1.attn.hook_result"
    after, cache = model.run_with_cache(tokens, names_filter=name)
    torch.testing.assert_close(before, after)
    assert cache["result", 1].shape == (BATCH, SEQ, HEADS, D_MODEL)
    assert (model.run_with_hooks(tokens, fwd_hooks=[(name, zero)]) - before).abs().max() > 1e-3
    model.set_use_attn_result(False)
    with pytest.raises(ConfigError):
        model.run_with_cache(tokens, names_filter=name)


# ---- models compiled in place ----------------------------------------------------------------------------------------
@pytest.mark.parametrize("way", [way for way in WAYS_IN if way != "check_site"])
def test_hooks_on_a_model_compiled_in_place_are_refused(model, tokens, way):
    model.compile(backend="eager")
    with pytest.raises(ConfigError, match="compiled in place"):
        WAYS_IN[way](model, tokens, "hook_embed")


def test_caching_everything_on_a_model_compiled_in_place_is_refused(model, tokens):
    model.compile(backend="eager")
    with pytest.raises(ConfigError, match="compiled in place"):
        model.run_with_cache(tokens)


# ---- edits -----------------------------------------------------------------------------------------------------------
def zero_in_place(tensor, hook):
    tensor[:] = 0
    return tensor


@pytest.mark.parametrize(
    ("edited", "neighbour"),
    [
        ("blocks.1.hook_resid_pre", "blocks.0.hook_resid_post"),
        ("blocks.0.attn.hook_code", "blocks.0.attn.hook_pattern"),
    ],
)
def test_cloning_protects_the_cache_from_edits_in_place(model, tokens, edited, neighbour):
    def cached(clone):
        with torch.no_grad(), model.hooks(fwd_hooks=[(edited, zero_in_place)]):
            return model.run_with_cache(tokens, names_filter=neighbour, clone=clone)[1][neighbour]

    true = model.run_with_cache(tokens, names_filter=neighbour)[1][neighbour]
    assert torch.equal(cached(clone=True), true)
    assert not cached(clone=False).any(), "without clone the storage is shared, which is what clone is for"


@pytest.mark.parametrize("name", [name for name in SHAPES if "hook_result" not in name])
def test_an_edit_takes_effect_wherever_it_is_made(model, tokens, name):
    # a layer norm undoes a common factor or shift, so the coordinates are exchanged as well
    prediction = model.run_with_hooks(tokens, fwd_hooks=[(name, lambda t, hook: 1.5 * t.roll(1, -1))])
    assert (prediction - model(tokens)).abs().max() > 1e-5


def test_an_edit_acts_once_and_leaves_nothing_behind(model, tokens):
    before = model(tokens)
    edited = model.run_with_hooks(tokens, fwd_hooks=[("hook_embed", zero)])
    assert torch.equal(model(tokens), before) and not torch.equal(edited, before)
    assert attached(model) == 0


def test_no_hook_is_left_behind_after_an_exception(model, tokens):
    def fail(tensor, hook):
        raise RuntimeError("on purpose")

    with pytest.raises(RuntimeError, match="on purpose"):
        model.run_with_hooks(tokens, fwd_hooks=[("blocks.1.hook_mlp_out", fail), ("hook_embed", zero)])
    with pytest.raises(RuntimeError), model.hooks(fwd_hooks=[("blocks.1.hook_mlp_out", fail)]):
        model.run_with_cache(tokens)
    assert attached(model) == 0


def test_editing_the_attention_code_is_editing_the_pattern(model, tokens):
    weights = torch.rand(SCORES, generator=torch.Generator().manual_seed(0))
    through_pattern = model.run_with_hooks(tokens, fwd_hooks=[("blocks.0.attn.hook_pattern", lambda t, hook: weights)])
    laid_out = weights.permute(0, 2, 3, 1)
    through_code = model.run_with_hooks(tokens, fwd_hooks=[("blocks.0.attn.hook_code", lambda t, hook: laid_out)])
    assert torch.equal(through_pattern, through_code)


# ---- gradients -------------------------------------------------------------------------------------------------------
def test_gradients_flow_through_hooks(model, tokens):
    """The derivative by a head's gain equals the difference quotient."""
    model.double()
    tokens = tokens.double()

    def loss(gain):
        hook = ("blocks.0.attn.hook_z", lambda z, hook: z * gain[:, None])
        return model.run_with_hooks(tokens, fwd_hooks=[hook]).square().sum()

    gain = torch.ones(HEADS, dtype=torch.float64, requires_grad=True)
    (gradient,) = torch.autograd.grad(loss(gain), gain)
    step = 1e-5 * torch.eye(HEADS, dtype=torch.float64)
    quotient = [(loss(gain.detach() + s) - loss(gain.detach() - s)) / 2e-5 for s in step]
    torch.testing.assert_close(gradient, torch.stack(quotient).detach(), rtol=1e-6, atol=1e-8)


def test_backward_hooks_see_the_gradient(model, tokens):
    seen, kept = {}, {}

    def keep(tensor, hook):
        tensor.retain_grad()
        kept[hook.name] = tensor

    def see(gradient, hook):
        seen[hook.name] = gradient.clone()

    name = "blocks.0.hook_resid_mid"
    with model.hooks(fwd_hooks=[(name, keep)], bwd_hooks=[(name, see)]):
        model(tokens).square().sum().backward()
    assert seen[name].shape == RESID and seen[name].any()
    torch.testing.assert_close(seen[name], kept[name].grad)


# ---- record, intervene and what is built on them ---------------------------------------------------------------------
def test_recording_streams_what_the_cache_holds(model, tiny_task):
    sites = ["blocks.0.hook_resid_post", "blocks.1.attn.hook_code"]
    batches = list(draw(tiny_task, "test", 10, seed=0, batch=4))
    recorded = list(record(model, batches, sites))
    assert [len(r.prediction) for r in recorded] == [4, 4, 2]
    for batch, seen in zip(batches, recorded, strict=True):
        prediction, cache = model.run_with_cache(batch.tokens, names_filter=sites)
        assert torch.equal(seen.prediction, prediction) and seen.episodes is batch
        assert all(torch.equal(seen.sites[site], cache[site]) for site in sites) and list(seen.sites) == sites
        assert not seen.prediction.requires_grad and not any(t.requires_grad for t in seen.sites.values())
    assert attached(model) == 0


def test_recording_a_misspelt_site_is_an_error(model, episodes):
    with pytest.raises(ConfigError, match=HINT):
        next(record(model, [episodes], [MISSPELT]))


def test_what_is_measured_is_never_what_was_trained_on(tiny_task):
    for split in ("train", "test", "ood"):
        (measured,) = draw(tiny_task, split, 64, seed=0)
        trained = tiny_task.sample(64, split, tiny_task.rng(0, split))
        shown = [set(map(tuple, e.inputs.flatten(0, 1).tolist())) for e in (measured, trained)]
        assert not shown[0] & shown[1]


def test_drawing_is_a_function_of_seed_and_split(tiny_task):
    def first(split, seed):
        return torch.cat([e.inputs for e in draw(tiny_task, split, 6, seed, batch=4)])

    assert first("test", 1).shape == (6, 9, 4)
    assert torch.equal(first("test", 1), first("test", 1))
    assert not torch.equal(first("test", 1), first("test", 2))
    assert not torch.equal(first("test", 1), first("train", 1))


def test_intervening_with_the_activation_itself_changes_nothing(model, episodes):
    sites = [name for name in SHAPES if "hook_result" not in name and ".ln" not in name and "ln_" not in name]
    assert torch.equal(intervene(model, episodes, {site: lambda t: t for site in sites}), model(episodes.tokens))


def test_an_intervention_may_edit_in_place(model, episodes):
    name = "blocks.0.attn.hook_code"
    in_place = intervene(model, episodes, {name: lambda t: t.zero_()})
    assert torch.equal(in_place, intervene(model, episodes, {name: torch.zeros_like}))
    assert not in_place.requires_grad and attached(model) == 0


def test_an_edit_in_place_does_not_reach_what_another_edit_has_seen(model, episodes):
    """The stream leaving a block and the stream entering the next share storage."""
    seen, true = [], model.run_with_cache(episodes.tokens, names_filter="blocks.0.hook_resid_post")[1]["resid_post", 0]

    def look(tensor):
        seen.append(tensor)
        return tensor

    intervene(model, episodes, {"blocks.0.hook_resid_post": look, "blocks.1.hook_resid_pre": lambda t: t.zero_()})
    assert torch.equal(seen[0], true)


def test_roles_select_positions(model, episodes):
    activation = torch.arange(2 * SEQ * 3.0).view(2, SEQ, 3)
    assert torch.equal(at_role(activation, model, "readout"), activation[:, 6])
    assert torch.equal(at_role(activation, model, "context"), activation[:, :6].mean(1))
    assert torch.equal(at_role(activation, model, "all"), activation.flatten(1))
    with pytest.raises(ConfigError, match="did you mean 'context'"):
        at_role(activation, model, "contxt")


def test_residual_sites_are_the_stream_before_and_after_every_block(model, tokens):
    sites = residual_sites(model)
    assert sites == {0: "blocks.0.hook_resid_pre", 1: "blocks.0.hook_resid_post", 2: "blocks.1.hook_resid_post"}
    _, cache = model.run_with_cache(tokens)
    assert cache[sites[1]].any() and torch.equal(cache[sites[1]], cache["resid_pre", 1])
