"""Edges and circuits: the graph, its ends, exchanges by hand, derivatives, and a circuit known by construction."""

import json

import numpy as np
import pandas as pd
import pytest
import torch
import wired
from sklearn.metrics import average_precision_score
from wired import scored

import compolens
from compolens import HypernetworkTransformer, Hyperteacher, SoftmaxTransformer
from compolens.activations.streams import draw
from compolens.foundation.configs import ConfigError, DoesNotApply
from compolens.interventions.components import answers_of, shift
from compolens.interventions.edges import (
    SHARES,
    apart,
    areas,
    circuit,
    edge_scores,
    exchange_edge,
    graph_of,
    run_circuit,
    written,
)
from compolens.models import HYLA, FixedThreshold, LinearAttention, RelativeTransfer, SparseCoding
from compolens.tasks import Relations, SRaven
from compolens.zoo.adopted.layouts import from_config

TEACHER = Hyperteacher(d_x=4, d_y=2, d_hidden=6, n_modules=6, n_context=6, n_queries=3)
SMALL = {"n_layers": 2, "d_model": 16, "n_heads": 2}
KINDS = {
    "softmax": (SoftmaxTransformer(**SMALL), TEACHER),
    "linear": (LinearAttention(**SMALL), TEACHER),
    "hypernetwork": (HypernetworkTransformer(**SMALL, d_code=6, d_hidden=12), TEACHER),
    "hyla": (HYLA(**SMALL, n_ctx=18), SRaven(n_features=2)),
    "sparse": (SparseCoding(**SMALL, threshold=FixedThreshold(0.1), transfer=RelativeTransfer()), Relations()),
}
each_kind = pytest.mark.parametrize("kind", KINDS)


def built(kind):
    """(task, model in double, base, counterfactual)."""
    architecture, task = KINDS[kind]
    torch.manual_seed(0)
    model = architecture.build(**task.dimensions).eval().double()
    (base,) = draw(task, "test", 6, 0)
    other = task.render({name: code.roll(1, 0) for name, code in base.codes.items()}, base.inputs)
    base, other = (e._replace(tokens=e.tokens.double()) for e in (base, other))
    return task, model, base, other


@each_kind
def test_the_whole_circuit_is_the_model_and_the_empty_one_its_donor(kind):
    _, model, base, other = built(kind)
    graph = graph_of(model, base.tokens)
    own, donor = written(model, graph, base), written(model, graph, other)
    nothing = np.zeros_like(graph.exists)
    assert torch.allclose(run_circuit(model, graph, base, donor, graph.exists), own.prediction, atol=1e-9)
    assert torch.allclose(run_circuit(model, graph, base, donor, nothing), donor.prediction, atol=1e-9)
    assert not torch.allclose(own.prediction, donor.prediction, atol=1e-3)
    with torch.no_grad():
        assert torch.allclose(model(base.tokens), own.prediction, atol=1e-9)  # and the settings are as before


@each_kind
def test_splitting_what_heads_read_changes_nothing_and_is_off_by_default(kind):
    _, model, base, _ = built(kind)
    with pytest.raises(ConfigError, match="set_use_split_qkv_input"):
        model.run_with_cache(base.tokens, names_filter=["blocks.0.hook_q_input"])
    fired = set(model.run_with_cache(base.tokens)[1])
    assert not fired & {"blocks.0.hook_q_input", "blocks.0.hook_mlp_in", "blocks.0.attn.hook_result"}
    with torch.no_grad():
        plain = model(base.tokens)
        with apart(model):
            split, cache = model.run_with_cache(base.tokens)
    assert torch.allclose(plain, split, atol=1e-9)
    assert cache["blocks.1.hook_q_input"].shape == (*cache["blocks.1.hook_resid_pre"].shape[:2], 2, 16)
    assert torch.equal(cache["blocks.1.hook_mlp_in"], cache["blocks.1.hook_resid_mid"])


def test_the_graph_of_two_layers_has_every_edge_that_points_forward():
    _, model, base, _ = built("softmax")
    graph = graph_of(model, base.tokens)
    assert [w.name for w in graph.writers] == ["embed", "L0H0", "L0H1", "L0MLP", "L1H0", "L1H1", "L1MLP"]
    names = {graph.name(edge) for edge in graph.edges()}
    # layer 0: 6 inputs of heads read 1 node, the MLP 3; layer 1: 6 read 4, the MLP 6; the answer 7
    assert len(names) == 6 * 1 + 3 + 6 * 4 + 6 + 7
    assert {"embed → L0H1.k", "L0H1 → L0MLP", "L0MLP → L1H0.v", "L1H1 → L1MLP", "L1MLP → answer"} <= names
    assert not {"L0MLP → L0H0.q", "L1MLP → L1MLP", "L1H0 → L0MLP"} & names


def test_an_edge_is_exchanged_as_by_hand():
    """Head 1 of layer 0 into the keys of head 0 of layer 1: its keys, made by hand of the stream with the donor's part."""
    _, model, base, other = built("softmax")
    graph = graph_of(model, base.tokens)
    own, donor = written(model, graph, base), written(model, graph, other)
    edge = next(e for e in graph.edges() if graph.name(e) == "L0H1 → L1H0.k")
    block = model.blocks[1]
    with torch.no_grad():
        stream = model.run_with_cache(base.tokens)[1]["blocks.0.hook_resid_post"]
        read = stream + donor.by_writer[2] - own.by_writer[2]
        keys = block.ln1(read) @ block.attn.W_K[0] + block.attn.b_K[0]

        def put(tensor, hook):
            tensor = tensor.clone()
            tensor[:, :, 0] = keys
            return tensor

        wanted = model.run_with_hooks(base.tokens, fwd_hooks=[("blocks.1.attn.hook_k", put)])
    assert torch.allclose(exchange_edge(model, graph, base, donor, edge), wanted, atol=1e-9)


@each_kind
def test_an_edge_score_is_the_derivative_of_the_edges_exchange(kind):
    task, model, base, other = built(kind)
    graph = graph_of(model, base.tokens)
    own, donor = written(model, graph, base), written(model, graph, other)
    goal = shift(task, own.prediction, donor.prediction, base.targets)
    scores, small = edge_scores(model, task, graph, base, own, donor, goal), 1e-5
    near = donor._replace(by_writer=torch.lerp(own.by_writer, donor.by_writer, small))
    edges = graph.edges()
    for edge in [*edges[::7], edges[-1]]:
        moved = goal.along(answers_of(task, exchange_edge(model, graph, base, near, edge), base.targets)).sum()
        found = float(moved / small / goal.weight.sum())
        assert found == pytest.approx(scores[edge], rel=1e-2, abs=1e-4), graph.name(edge)
    assert (scores[~graph.exists] == 0).all()


def test_where_one_path_alone_is_there_its_edges_are_the_circuit():
    """One layer, one head that writes: embed → its keys and values → answer is all of the shift; and it is ranked first."""
    task, _, base, other = built("softmax")
    torch.manual_seed(0)
    model = SoftmaxTransformer(n_layers=1, d_model=16, n_heads=4, attn_only=True).build(**task.dimensions).eval().double()
    with torch.no_grad():
        model.blocks[0].attn.W_O[[0, 1, 3]] = 0
    graph = graph_of(model, base.tokens)
    own, donor = written(model, graph, base), written(model, graph, other)
    goal = shift(task, own.prediction, donor.prediction, base.targets)
    names = [graph.name(edge) for edge in graph.edges()]
    path = {"embed → L0H2.k", "embed → L0H2.v", "L0H2 → answer"}
    kept = graph.exists.copy()
    for edge in graph.edges():
        kept[edge] = graph.name(edge) in path
    assert torch.allclose(
        run_circuit(model, graph, base, donor, kept)[:, list(task.answers)], own.prediction[:, list(task.answers)], atol=1e-9
    )
    scores = np.abs(edge_scores(model, task, graph, base, own, donor, goal, points=5))
    assert scores[~kept].max() < 1e-9 < scores[kept].min()
    assert (circuit(graph, scores, len(path) / len(names)) == kept).all()


def test_scores_find_circuits_that_are_known_by_construction():
    """Area under the precision-recall curve, by scikit-learn, over all edges of wired models."""
    found = []
    for seed in range(4):
        true, ways = scored(seed, episodes=32, points=3)
        found.append([average_precision_score(true, score) for score in ways.values()] + [true.mean()])
    attribution, integrated, magnitude, random, prevalence = np.mean(found, axis=0)
    assert min(attribution, integrated) > 0.9 > 0.5 > magnitude
    assert random < 0.3 and prevalence < 0.15


@pytest.mark.parametrize("seed", range(2))
def test_edges_that_are_not_wired_to_matter_change_no_answer(seed):
    """The wiring's circuit is held against exchange of all other edges, which knows nothing of scores."""
    model, matter, graph = wired.built(seed)
    (base,) = draw(wired.TASK, "test", 8, seed)
    other = wired.TASK.render({name: code.roll(1, 0) for name, code in base.codes.items()}, base.inputs)
    own, donor = written(model, graph, base), written(model, graph, other)
    goal = shift(wired.TASK, own.prediction, donor.prediction, base.targets)
    whole = float(goal.weight.sum())
    moved = goal.along(answers_of(wired.TASK, run_circuit(model, graph, base, donor, matter), base.targets)).sum()
    assert abs(float(moved)) < 0.05 * whole
    first = next(e for e in graph.edges() if matter[e])
    without = matter.copy()
    without[first] = False
    assert abs(
        float(goal.along(answers_of(wired.TASK, run_circuit(model, graph, base, donor, without), base.targets)).sum())
    ) > (0.01 * whole)


def test_areas_are_those_of_known_curves():
    assert areas(SHARES, [1.0] * len(SHARES)) == pytest.approx((1.0, 0.0))
    assert areas(SHARES, SHARES) == pytest.approx((0.5, 0.5))
    assert areas((0, 1), (2.0, 2.0)) == pytest.approx((2.0, 1.0))


# ---- adopted networks ------------------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def ids(tmp_path_factory):
    """(a task in tokens, episodes, others): copy the first of 4 ids."""
    tokens = np.array([(a, b, c, d) for a in range(4) for b in range(4) for c in range(4) for d in (1, 2)])
    composition = 4 * tokens[:, 0] + tokens[:, 1]
    split = np.where(composition % 4 == 3, "ood", np.where(np.arange(len(tokens)) % 3 == 0, "test", "train"))
    task = compolens.FixedEpisodes.write(
        tmp_path_factory.mktemp("ids") / "ids", tokens=tokens, targets=tokens[:, 0], composition=composition, split=split,
        codes={"first": tokens[:, 0], "second": tokens[:, 1]}, at_least=1,
    )  # fmt: skip
    base = task.sample(6, "train", task.rng(0, "train"))
    return task, base, base.take(torch.arange(6).roll(1))


def foreign(kind):
    """A network of another library, with weights large enough that attention matters."""
    torch.manual_seed(0)
    sizes = {"vocab_size": 12, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2}
    gpt2 = {"vocab_size": 12, "n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 8, "bos_token_id": 0, "eos_token_id": 0}
    grouped = {"num_key_value_heads": 1, "head_dim": 8, "pad_token_id": None} if kind.startswith(("qwen", "gemma")) else {}
    if kind == "bridge":
        from transformer_lens.model_bridge.sources._bridge_builder import build_bridge_from_module
        from transformers import GPT2Config, GPT2LMHeadModel

        config = GPT2Config(**gpt2)
        module = build_bridge_from_module(GPT2LMHeadModel(config), "GPT2LMHeadModel", hf_config=config).eval()
    else:
        module = from_config(json.dumps({"model_type": kind, **(gpt2 if kind == "gpt2" else sizes | grouped)}))
    with torch.no_grad():
        for parameter in module.parameters():
            parameter += 0.3 * torch.randn_like(parameter)
    return module


def test_edge_scores_of_a_bridge_are_those_of_transformer_lens(ids):
    """Its tool tells queries, keys, values and heads apart: summed over these, its scores are ours."""
    from transformer_lens.tools.analysis.attribution_patching import EdgeAttributionConfig, attribution_patch

    (task, base, other), bridge = ids, foreign("bridge")
    model = compolens.adopt(bridge, task).model
    base, other = (episodes.take(torch.arange(2)) for episodes in (base, other))
    graph = graph_of(model, base.tokens)
    own, donor = written(model, graph, base), written(model, graph, other)
    goal = shift(task, own.prediction, donor.prediction, base.targets)
    scores = edge_scores(model, task, graph, base, own, donor, goal)
    summed = {graph.name(edge): 0.0 for edge in graph.edges()}
    for i in range(2):

        def metric(logits, i=i):
            answers = answers_of(task, logits[..., : task.d_out], base.targets[i : i + 1])
            return ((answers - goal.start[i]) * goal.way[i]).sum()

        pair = (e.tokens[i : i + 1].argmax(-1) for e in (other, base))
        found = attribution_patch(bridge, *pair, metric, EdgeAttributionConfig(granularity="edge"))
        for (writer, reader), score in found.edge_scores.items():
            summed[f"{node(writer)} → {node(reader)}"] += score / float(goal.weight.sum())
    assert summed == pytest.approx({graph.name(e): float(scores[e]) for e in graph.edges()}, rel=1e-4, abs=1e-7)


def node(theirs):
    """What we call a node of TransformerLens' tool."""
    if theirs.kind in ("embed", "logits"):
        return {"embed": "embed", "logits": "answer"}[theirs.kind]
    return f"L{theirs.layer}{'MLP' if theirs.kind.startswith('mlp') else 'A'}"


@pytest.mark.parametrize("kind", ["bridge", "gpt2", "llama", "qwen3", "gpt_neox"])
def test_circuits_of_adopted_networks_end_in_the_model_and_in_its_donor(kind, ids):
    """Whole layers are nodes; pythia's attention and MLP work side by side, so no edge joins them."""
    task, base, other = ids
    model = compolens.adopt(foreign(kind), task).model
    graph = graph_of(model, base.tokens)
    own, donor = written(model, graph, base), written(model, graph, other)
    nothing = np.zeros_like(graph.exists)
    for kept, wanted in ((graph.exists, own), (nothing, donor)):
        torch.testing.assert_close(run_circuit(model, graph, base, donor, kept), wanted.prediction, rtol=1e-4, atol=1e-4)
    names = {graph.name(edge) for edge in graph.edges()}
    assert len(names) == 1 + 2 + 3 + 4 + 5 - (kind == "gpt_neox") * 2
    assert ("L0A → L0MLP" in names) == (kind != "gpt_neox") and "L0MLP → L1A" in names


def test_a_network_whose_parts_do_not_add_up_has_no_edges(ids):
    task, base, _ = ids
    with pytest.raises(DoesNotApply, match=r"add up|with or without"):
        graph_of(compolens.adopt(foreign("gemma2"), task).model, base.tokens)


# ---- the probe's table -----------------------------------------------------------------------------------------------
def test_of_many_edges_the_highest_have_rows_and_circuits_are_of_all(tiny_models, monkeypatch):
    """The rows that are left are those of the whole table, and nothing else changes but the shares that say so."""
    trained, probe = compolens.load(tiny_models["softmax"]), compolens.load_recipe("probes", "edges")
    asked = {"episodes": 16, "points": 2, "exact": 3, "draws": 1}
    whole, _ = probe(trained, **asked)
    monkeypatch.setitem(probe.__globals__, "LISTED", 5)
    cut, _ = probe(trained, **asked)
    of_edges = {
        name: each["metric"].isin(["attribution", "integrated attribution"]) for name, each in (("w", whole), ("c", cut))
    }
    shares = cut["metric"] == "listed share"
    assert not (whole["metric"] == "listed share").any()
    pd.testing.assert_frame_equal(
        cut[~of_edges["c"] & ~shares].reset_index(drop=True), whole[~of_edges["w"]].reset_index(drop=True)
    )
    key = ["metric", "split", "edge"]
    every, kept = whole[of_edges["w"]].set_index(key)["value"], cut[of_edges["c"]].set_index(key)["value"]
    assert len(kept) == 4 * 5 and len(every) > len(kept) and kept.equals(every[kept.index])
    size = every["integrated attribution"].abs().groupby("edge").max()
    assert set(kept.index.get_level_values("edge")) == set(size.nlargest(5).index)
    for (metric, split), values in every.groupby(["metric", "split"]):
        told = cut[shares & (cut["by"] == metric) & (cut["split"] == split)]["value"].item()
        listed = values[values.index.get_level_values("edge").isin(size.nlargest(5).index)]
        assert told == pytest.approx(listed.abs().sum() / values.abs().sum())
