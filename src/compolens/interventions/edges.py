"""The computation graph of a transformer: which part writes what another part reads, and circuits made of such edges.

A node writes into the residual stream: the embedding, a head, an MLP. It is read where a head makes its queries, keys or
values, where an MLP reads, and where the answer is read. An edge joins a writer to a later reader. The stream is the sum of
what was written, so an edge is exchanged by adding, to what the reader reads, the difference between two runs of what the
writer writes (path patching, 2304.05969).

Edge scores are first-order estimates of that exchange: the difference, times the gradient by what is read (edge attribution
patching, 2310.10348), at the base or over points on the way to the counterfactual (EAP-IG, 2403.17806). A circuit is a set of
edges; all others are exchanged, and faithfulness is the share of the model's own answer that is left (MIB, 2504.13151).

Where heads share a value network (HYLA), what one head writes depends on all their queries and keys: there the whole attention
layer is one node. Its queries, keys and values are told apart, all heads together. Of an adopted network a whole attention
layer is one node that reads once, since where its heads read apart is not known.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy.integrate import trapezoid
from torch import Tensor

from compolens.foundation.configs import DoesNotApply
from compolens.hooks import HookedModel
from compolens.interventions.components import Shift, answers_of, head_site
from compolens.tasks.base import TaskFamily
from compolens.tasks.episodes import Episodes


class Writer(NamedTuple):
    """A node, as what it writes into the residual stream.

    Args:
        name: "embed", "L0H2", "L0A" (a whole attention layer) or "L0MLP".
        layer: its block; -1 for the embedding.
        hook_name: the hook point that holds what is written, (batch, pos, d_model) or (batch, pos, head, d_model).
        head: which head; -1 where it is all of it.
    """

    name: str
    layer: int
    hook_name: str
    head: int = -1

    def of(self, activation: Tensor) -> Tensor:
        """What this node writes.

        Args:
            activation: what its hook point holds.

        Returns:
            (batch, pos, d_model).
        """
        return activation if self.head < 0 else activation[:, :, self.head]


class Reader(NamedTuple):
    """A node, as what it reads off the residual stream.

    Args:
        name: the node and, of a head or an attention layer, what is made of it: "L1H0.q", "L1A.k", "L1MLP", "answer".
        node: the node whose part it is: "L1H0", "L1A", "L1MLP", "answer".
        layer: its block; the number of blocks for the answer.
        hook_name: the hook point that holds what is read, (batch, pos, d_model) or (batch, pos, head, d_model).
        head: which head; -1 where it is all of it.
    """

    name: str
    node: str
    layer: int
    hook_name: str
    head: int = -1


@dataclass(frozen=True)
class Graph:
    """Writers, readers, and which edges there are.

    Args:
        writers: in the order of computation.
        readers: in the order of computation.
        exists: (reader, writer) bool: the writer comes before the reader.
    """

    writers: tuple[Writer, ...]
    readers: tuple[Reader, ...]
    exists: np.ndarray

    def edges(self) -> list[tuple[int, int]]:
        """(reader, writer) of every edge, in the order of `scores` flattened."""
        return [(int(r), int(w)) for r, w in zip(*np.nonzero(self.exists), strict=True)]

    def name(self, edge: tuple[int, int]) -> str:
        """What an edge is called.

        Args:
            edge: (reader, writer).

        Returns:
            Such as "embed → L0H1.q".
        """
        return f"{self.writers[edge[1]].name} → {self.readers[edge[0]].name}"


def graph_of(model: HookedModel, tokens: Tensor) -> Graph:
    """The graph of a transformer of this project, or of an adopted network whose stream is the sum of what its parts write.

    Args:
        model: the model.
        tokens: (batch, seq, ...) of a few episodes, on which it is tried that the parts add up to the stream.

    Returns:
        The graph.

    Raises:
        DoesNotApply: the model does not have the hook points of its nodes' inputs and outputs, or they do not add up.
    """
    known = f"blocks.{model.cfg.n_layers - 1}.hook_q_input" in model.hook_dict and head_site(model, 0) is not None
    return _own_graph(model) if known else _adopted_graph(model, tokens)


def _own_graph(model: HookedModel) -> Graph:
    last = model.cfg.n_layers
    writers, readers = [Writer("embed", -1, "blocks.0.hook_resid_pre")], []
    for layer in range(last):
        block = f"blocks.{layer}"
        apart = head_site(model, layer) == ("hook_z", 2)
        heads = range(len(model.get_submodule(f"{block}.attn").W_K)) if apart else (-1,)  # type: ignore[arg-type]
        for head in heads:
            node = f"L{layer}H{head}" if apart else f"L{layer}A"
            readers += [Reader(f"{node}.{kind}", node, layer, f"{block}.hook_{kind}_input", head) for kind in "qkv"]
        for head in heads:
            where = f"{block}.attn.hook_result" if apart else f"{block}.hook_attn_out"
            writers.append(Writer(f"L{layer}H{head}" if apart else f"L{layer}A", layer, where, head))
        if f"{block}.hook_mlp_out" in model.hook_dict:
            readers.append(Reader(f"L{layer}MLP", f"L{layer}MLP", layer, f"{block}.hook_mlp_in"))
            writers.append(Writer(f"L{layer}MLP", layer, f"{block}.hook_mlp_out"))
    return _joined(writers, readers, last, parallel=False)


@torch.no_grad()
def _adopted_graph(model: HookedModel, tokens: Tensor) -> Graph:
    last = model.cfg.n_layers
    writers, readers = [Writer("embed", -1, "blocks.0.hook_resid_pre")], []
    for layer in range(last):
        for part, name in (("attn", f"L{layer}A"), ("mlp", f"L{layer}MLP")):
            readers.append(Reader(name, name, layer, f"blocks.{layer}.hook_{part}_in"))
            writers.append(Writer(name, layer, f"blocks.{layer}.hook_{part}_out"))
    end = f"blocks.{last - 1}.hook_resid_post"
    wanted = [*(writer.hook_name for writer in writers), *(reader.hook_name for reader in readers), end]
    missing = [name for name in wanted if name not in model.hook_dict]
    if missing:
        raise DoesNotApply(
            f"edges need what every part reads and writes, and this model has no hook point {missing[0]!r}; name what reads "
            "off the stream, such as a norm, when it is adopted: sites={'blocks.0.hook_attn_in': ('SUBMODULE', 'input'), "
            "'blocks.0.hook_mlp_in': …}; `compolens probe components` measures whole heads and MLPs of any model"
        )
    seen = model.run_with_cache(tokens, names_filter=wanted)[1]
    before, attention = seen["blocks.0.hook_resid_pre"], seen["blocks.0.hook_attn_out"]
    parallel = _equal(seen["blocks.0.hook_mlp_in"], before)
    if not parallel and not _equal(seen["blocks.0.hook_mlp_in"], before + attention):
        raise DoesNotApply(
            "what the first MLP reads is not the stream with or without the attention before it, so no edge is known"
        )
    if not _equal(seen[end], torch.stack([seen[writer.hook_name] for writer in writers]).sum(0)):
        raise DoesNotApply("what attention layers and MLPs write does not add up to the stream, so no edge is known")
    return _joined(writers, readers, last, parallel)


def _equal(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape and bool((one - other).norm() <= 1e-4 * one.norm())


def _joined(writers: list[Writer], readers: list[Reader], last: int, parallel: bool) -> Graph:
    """All edges that point forward; into an MLP also from the attention of its block, unless they work side by side."""
    readers = [*readers, Reader("answer", "answer", last, f"blocks.{last - 1}.hook_resid_post")]
    exists = np.zeros((len(readers), len(writers)), dtype=bool)
    for r, reader in enumerate(readers):
        for w, writer in enumerate(writers):
            behind = reader.node.endswith("MLP") and writer.layer == reader.layer and not writer.name.endswith("MLP")
            exists[r, w] = writer.layer < reader.layer or (behind and not parallel)
    return Graph(tuple(writers), tuple(readers), exists)


@contextmanager
def apart(model: HookedModel) -> Iterator[None]:
    """While it lasts, what heads write and what they and MLPs read fires; then as before. Inside another one it costs nothing.

    Args:
        model: the model.

    Returns:
        A context.
    """
    settings = ("use_attn_result", "use_split_qkv_input", "use_hook_mlp_in")
    off = [name for name in settings if hasattr(model.cfg, name) and not getattr(model.cfg, name)]
    try:
        for name in off:
            getattr(model, f"set_{name}")(True)
        yield
    finally:
        for name in off:
            getattr(model, f"set_{name}")(False)


def _by_hook(hook_names: Sequence[str]) -> dict[str, list[int]]:
    """Hook point -> the numbers of the nodes that it holds, heads in their order."""
    found: dict[str, list[int]] = {}
    for number, name in enumerate(hook_names):
        found.setdefault(name, []).append(number)
    return found


# ---- runs ------------------------------------------------------------------------------------------------------------
class Written(NamedTuple):
    """What the nodes of a run wrote.

    Args:
        prediction: (batch, seq, d_out).
        by_writer: (writer, batch, pos, d_model).
    """

    prediction: Tensor
    by_writer: Tensor


@torch.no_grad()
def written(model: HookedModel, graph: Graph, episodes: Episodes) -> Written:
    """What every node writes.

    Args:
        model: the model.
        graph: its graph.
        episodes: a batch.

    Returns:
        The run.
    """
    with apart(model):
        names = list(dict.fromkeys(writer.hook_name for writer in graph.writers))
        prediction, cache = model.run_with_cache(episodes.tokens, names_filter=names)
        return Written(prediction, torch.stack([writer.of(cache[writer.hook_name]) for writer in graph.writers]))


@torch.no_grad()
def run_circuit(model: HookedModel, graph: Graph, episodes: Episodes, donor: Written, kept: np.ndarray) -> Tensor:
    """The prediction where the edges of a circuit work, and every other edge hands on what the donor's run has there.

    Args:
        model: the model.
        graph: its graph.
        episodes: the base's episodes.
        donor: the run that all other edges are taken from.
        kept: (reader, writer) bool: the circuit.

    Returns:
        (batch, seq, d_out): the base's own where everything is kept, the donor's where nothing is.
    """
    at_hook, readers = (_by_hook([node.hook_name for node in nodes]) for nodes in (graph.writers, graph.readers))
    gone = torch.from_numpy(graph.exists & ~kept).to(donor.by_writer)
    now = torch.zeros_like(donor.by_writer)

    def note(tensor: Tensor, hook: Any) -> None:
        for w in at_hook[hook.name]:
            now[w] = graph.writers[w].of(tensor) - donor.by_writer[w]

    def exchange(tensor: Tensor, hook: Any) -> Tensor:
        here = readers[hook.name]
        before = 1 + max((w for r in here for w in np.flatnonzero(graph.exists[r])), default=-1)
        difference = (gone[here, :before] @ now[:before].flatten(1)).view(len(here), *now.shape[1:])
        if tensor.ndim == 4:  # a row per head, or one that all heads read
            return tensor - difference.permute(1, 2, 0, 3)
        return tensor - difference[0]

    hooks: list[tuple[str, Callable]] = [(name, note) for name in at_hook]
    hooks += [(name, exchange) for name in readers]
    with apart(model):
        return model.run_with_hooks(episodes.tokens, fwd_hooks=hooks)


def exchange_edge(model: HookedModel, graph: Graph, episodes: Episodes, donor: Written, edge: tuple[int, int]) -> Tensor:
    """The prediction of the base with one edge exchanged.

    Args:
        model: the model.
        graph: its graph.
        episodes: the base's episodes.
        donor: the run that the edge is taken from.
        edge: (reader, writer).

    Returns:
        (batch, seq, d_out).
    """
    kept = graph.exists.copy()
    kept[edge] = False
    return run_circuit(model, graph, episodes, donor, kept)


# ---- scores ----------------------------------------------------------------------------------------------------------
def edge_scores(
    model: HookedModel,
    task: TaskFamily,
    graph: Graph,
    episodes: Episodes,
    base: Written,
    donor: Written,
    goal: Shift,
    points: int = 1,
) -> np.ndarray:
    """First-order estimates of every edge's exchange, summed over episodes.

    Args:
        model: the model.
        task: the family.
        graph: its graph.
        episodes: the base's episodes.
        base: their run.
        donor: the run that edges are taken from.
        goal: the way that effects are measured along.
        points: 1: the gradient at the base (2310.10348); more: its mean over the middles of as many equal steps from
            the base's embedding to the donor's (2403.17806).

    Returns:
        (reader, writer), in shares of the whole shift; 0 where there is no edge, NaN where nothing shifts.
    """
    terms = edge_terms(model, task, graph, episodes, base, donor, goal, points)
    scores = np.zeros(graph.exists.shape)
    scores[graph.exists] = terms.sum(1) / (float(goal.weight.sum()) or np.nan)
    return scores


def edge_terms(
    model: HookedModel,
    task: TaskFamily,
    graph: Graph,
    episodes: Episodes,
    base: Written,
    donor: Written,
    goal: Shift,
    points: int = 1,
) -> np.ndarray:
    """What `edge_scores` sums, per episode.

    Args:
        model: the model.
        task: the family.
        graph: its graph.
        episodes: the base's episodes.
        base: their run.
        donor: the run that edges are taken from.
        goal: the way that effects are measured along.
        points: as in `edge_scores`.

    Returns:
        (edge, batch) in the order of `Graph.edges`, in the unit of `Shift.along`.
    """
    difference = donor.by_writer - base.by_writer
    apiece = difference.double().transpose(0, 1).flatten(2)  # (batch, writer, pos * d_model)
    readers = _by_hook([reader.hook_name for reader in graph.readers])
    terms = np.zeros((*graph.exists.shape, len(apiece)))
    with apart(model):
        for point in range(points):
            start = None if points == 1 else base.by_writer[0] + (point + 0.5) / points * difference[0]
            for name, gradient in _read_gradients(model, task, graph, episodes, goal, start).items():
                if gradient.ndim == 4:
                    apart_by_head = graph.readers[readers[name][0]].head >= 0
                    gradient = gradient.permute(2, 0, 1, 3) if apart_by_head else gradient.sum(2)[None]
                else:
                    gradient = gradient[None]
                found = apiece @ gradient.double().flatten(2).permute(1, 2, 0)  # (batch, writer, reader)
                terms[readers[name]] += found.permute(2, 1, 0).cpu().numpy() / points
    return terms[graph.exists]


@torch.enable_grad()
def _read_gradients(
    model: HookedModel, task: TaskFamily, graph: Graph, episodes: Episodes, goal: Shift, start: Tensor | None
) -> dict[str, Tensor]:
    """hook point of readers -> gradient of <answers, way> there."""
    held: dict[str, Tensor] = {}

    def keep(tensor: Tensor, hook: Any) -> Tensor:
        """A copy, so that the gradient is that of this reader and not of all who read the same stream."""
        held[hook.name] = tensor.clone() if tensor.requires_grad else tensor.detach().clone().requires_grad_()
        return held[hook.name]

    names = list(dict.fromkeys(reader.hook_name for reader in graph.readers))
    hooks: list[tuple[str | Callable, Callable]] = [(name, keep) for name in names]
    if start is not None:
        hooks.insert(0, ("blocks.0.hook_resid_pre", lambda tensor, hook: start))
    with apart(model):
        prediction = model.run_for_answers(episodes.tokens, hooks)
    along = goal.along(answers_of(task, prediction, episodes.targets)).sum()
    found = torch.autograd.grad(along, [held[name] for name in names], allow_unused=True)
    return {n: torch.zeros_like(held[n]) if g is None else g for n, g in zip(names, found, strict=True)}


# ---- circuits --------------------------------------------------------------------------------------------------------
SHARES = (0.0, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
"""Shares of all edges at which circuits are cut, those of MIB (2504.13151) and none at all."""


def circuit(graph: Graph, ranks: np.ndarray, share: float) -> np.ndarray:
    """The edges of highest rank.

    Args:
        graph: the graph.
        ranks: (reader, writer); higher is kept first.
        share: of all edges, in [0, 1].

    Returns:
        (reader, writer) bool, round(share * edges) of them True.
    """
    edges = np.flatnonzero(graph.exists)
    count = round(share * len(edges))
    chosen = edges[np.argsort(-ranks.ravel()[edges], kind="stable")[:count]]
    kept = np.zeros(graph.exists.size, dtype=bool)
    kept[chosen] = True
    return kept.reshape(graph.exists.shape)


class Areas(NamedTuple):
    """What a faithfulness curve comes to (MIB, 2504.13151).

    Args:
        cpr: circuit performance ratio, the area under faithfulness over the share of edges.
        cmd: circuit-model distance, the area between faithfulness and 1; 0 is best.
    """

    cpr: float
    cmd: float


def areas(shares: Sequence[float], faithfulness: Sequence[float]) -> Areas:
    """The areas of a curve, by trapezoids.

    Args:
        shares: (n,) of all edges, ascending from 0 to 1.
        faithfulness: (n,) 1 is the model's own answer, 0 the counterfactual's.

    Returns:
        Both areas.
    """
    curve = np.asarray(faithfulness, dtype=float)
    return Areas(float(trapezoid(curve, shares)), float(trapezoid(np.abs(1 - curve), shares)))


def faithfulness(task: TaskFamily, goal: Shift, prediction: Tensor, targets: Tensor) -> np.ndarray:
    """Per episode, how much of the shift a circuit keeps from being made, in squared length.

    Args:
        task: the family.
        goal: the way from the base's answers to the donor's.
        prediction: (batch, seq, d_out), by `run_circuit`.
        targets: as in `answers_of`.

    Returns:
        (batch,): `weight` where the answer is the base's own, 0 where it is the donor's.
    """
    return (goal.weight - goal.along(answers_of(task, prediction, targets))).cpu().numpy()
