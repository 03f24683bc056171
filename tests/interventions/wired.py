"""Transformers with a known circuit: every part writes into dimensions of its own, and reads those of chosen parts alone.

Which edges matter follows from the wiring. A part is live at a kind of position (context or answer) if what it writes there
differs under another code. It is needed at a position if what it writes there reaches an answer. An edge matters if its writer
is live, and its reader needed, at the same kind of position. What is written has mean 0, and a constant that nobody reads is
most of the stream, so that layer norms, which see all parts, couple them little: that is what a score has to tell apart.
"""

import numpy as np
import torch

from compolens import Hyperteacher, SoftmaxTransformer
from compolens.activations.streams import draw
from compolens.interventions.components import shift
from compolens.interventions.edges import edge_scores, graph_of, written

TASK = Hyperteacher(d_x=4, d_y=2, d_hidden=6, n_modules=6, n_context=6, n_queries=3)
HEADS, LAYERS, OWN = 3, 2, 8
CONSTANT = 20.0
"""In the dimensions that nobody reads."""
CONTEXT, ANSWER = 0, 1


def built(seed):
    """(model, true edges (reader, writer) bool, graph): wired at random; at least 4 edges matter and 4 do not."""
    while True:
        rng = np.random.default_rng(seed)
        model = SoftmaxTransformer(n_layers=LAYERS, d_model=OWN * (2 + LAYERS * (HEADS + 1)), n_heads=HEADS, d_head=OWN).build(
            **TASK.dimensions
        )
        (tried,) = draw(TASK, "test", 2, 0)
        graph = graph_of(model, tried.tokens)
        wired = graph.exists & (rng.random(graph.exists.shape) < 0.35)
        matter = edges_that_matter(graph, wired)
        if 4 <= matter.sum() <= graph.exists.sum() - 4:
            return wire(model.eval(), graph, wired, seed), matter, graph
        seed += 1000


@torch.no_grad()
def wire(model, graph, wired, seed):
    """Weights drawn normal at the scale of what they read, and zero where nothing is wired."""
    draws = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        kind = name.split(".")[-1]
        if kind.startswith("W"):
            parameter.copy_(torch.randn(parameter.shape, generator=draws) / parameter.shape[-2] ** 0.5)
        elif kind.startswith("b"):
            parameter.zero_()
    own = {w: slice(OWN * w, OWN * (w + 1)) for w in range(len(graph.writers))}

    def only(matrix, columns):
        kept = matrix[..., columns] - matrix[..., columns].mean(-1, keepdim=True)
        matrix.zero_()
        matrix[..., columns] = kept * (matrix.shape[-1] / OWN) ** 0.5

    only(model.embed.W_E, own[0])
    model.embed.b_E[-OWN:] = CONSTANT * torch.tensor([1.0, -1.0]).repeat(OWN // 2)
    for w, writer in enumerate(graph.writers[1:], start=1):
        block = model.blocks[writer.layer]
        only(block.attn.W_O[writer.head] if writer.head >= 0 else block.mlp.W_out, own[w])
    for r, reader in enumerate(graph.readers):
        mask = torch.zeros(model.cfg.d_model, 1)
        for w in np.flatnonzero(wired[r]):
            mask[own[int(w)]] = 1
        mask *= CONSTANT * (OWN / mask.sum().clamp(min=1)) ** 0.5  # against the norm, which the constant decides
        if reader.node == "answer":
            model.unembed.W_U *= mask
        elif reader.head >= 0:
            weights = getattr(model.blocks[reader.layer].attn, f"W_{reader.name[-1].upper()}")
            weights[reader.head] *= mask * (2.0 if reader.name[-1] in "qk" else 1.0)  # attention that is not uniform
        else:
            model.blocks[reader.layer].mlp.W_in *= mask
    return model


def edges_that_matter(graph, wired):
    """(reader, writer) bool."""
    inputs = {}
    for r, reader in enumerate(graph.readers):
        inputs.setdefault(reader.node, {})[reader.name.partition(".")[2]] = np.flatnonzero(wired[r])
    live = {0: {CONTEXT}}  # the inputs of queries are the same under every code
    for w, writer in enumerate(graph.writers[1:], start=1):
        live[w] = _live(inputs[writer.name], live)
    needed = {"answer": {"": {ANSWER}}}
    for node in reversed([writer.name for writer in graph.writers[1:]]):
        needed[node] = _needed(node, inputs, needed, live, graph)
    matter = np.zeros_like(wired)
    for r, reader in enumerate(graph.readers):
        at = needed[reader.node].get(reader.name.partition(".")[2], set())
        for w in np.flatnonzero(wired[r]):
            matter[r, w] = bool(live[int(w)] & at)
    return matter


def _live(inputs, live):
    """Kinds of positions; what varies over positions differs under codes, since all of it comes from the embedding."""
    if "v" not in inputs:
        return set().union(*(live[int(w)] for w in inputs[""]))
    return {CONTEXT, ANSWER} if any(live[int(w)] for w in inputs["v"]) else set()


def _needed(node, inputs, needed, live, graph):
    """What a node makes of what it reads -> kinds of positions at which that is needed."""
    w = next(i for i, writer in enumerate(graph.writers) if writer.name == node)
    at = set()
    for reader, kinds in inputs.items():
        for kind, sources in kinds.items():
            if w in sources:
                at |= needed.get(reader, {}).get(kind, set())
    if "v" not in inputs[node]:
        return {"": at}
    if not at or not live[w]:
        return {}
    attends = len(inputs[node]["q"]) and len(inputs[node]["k"])  # else attention is uniform, whatever is there
    return {"v": {CONTEXT, ANSWER}} | ({"q": at, "k": {CONTEXT, ANSWER}} if attends else {})


def scored(seed, episodes=64, points=5):
    """(true (edge,) bool, ways of scoring -> (edge,)) of one wired model."""
    model, matter, graph = built(seed)
    (base,) = draw(TASK, "test", episodes, seed)
    other = TASK.render({name: code.roll(1, 0) for name, code in base.codes.items()}, base.inputs)
    own, donor = written(model, graph, base), written(model, graph, other)
    goal = shift(TASK, own.prediction, donor.prediction, base.targets)
    length = (donor.by_writer - own.by_writer).double().square().sum((1, 2, 3)).sqrt().numpy()
    ways = {
        "attribution": np.abs(edge_scores(model, TASK, graph, base, own, donor, goal)),
        "integrated attribution": np.abs(edge_scores(model, TASK, graph, base, own, donor, goal, points)),
        "magnitude": np.where(graph.exists, length[None], 0.0),
        "random": np.random.default_rng(seed).random(graph.exists.shape),
    }
    return matter[graph.exists], {name: score[graph.exists] for name, score in ways.items()}
