"""Which edges of the computation graph carry the code, and does a circuit of few of them answer like the whole model?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd
import torch
from scipy.stats import spearmanr

from compolens import tables
from compolens.activations.streams import draw
from compolens.foundation.configs import require
from compolens.hooks import HookedModel
from compolens.interventions.components import Shift, answers_of, shift
from compolens.interventions.edges import (
    SHARES,
    Graph,
    Written,
    areas,
    circuit,
    edge_scores,
    exchange_edge,
    faithfulness,
    graph_of,
    run_circuit,
    written,
)
from compolens.interventions.interchange import check_renders
from compolens.measures.intervals import Evaluation, Scale, summarise
from compolens.tasks.base import TaskFamily
from compolens.tasks.episodes import Episodes, stream
from compolens.zoo.folders import TrainedModel

version = 1  # raised whenever its numbers change

SPLITS = ("test", "ood")
ESTIMATES = {"attribution": 1, "integrated attribution": None}
"""Estimate -> the points at which the gradient is taken (None: as many as the probe is asked for)."""
BY, MAGNITUDE, RANDOM = "integrated attribution", "magnitude", "random"
ENOUGH = 0.9
"""A circuit is called sufficient where it keeps this share of the answer."""
LISTED = 500
"""Edges that have rows of their own; of a model with more, those of highest score, so that its table stays small."""


class Side(NamedTuple):
    """The episodes of one split, run.

    Args:
        base: the episodes.
        own: their run.
        donor: the run of their inputs under another code.
        goal: the way from the answers of the first to those of the second.
    """

    base: Episodes
    own: Written
    donor: Written
    goal: Shift


def probe(
    trained: TrainedModel, *, episodes: int = 128, seed: int = 0, points: int = 5, exact: int = 24, draws: int = 3
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Scores of all edges, the exact exchange of the highest, and circuits cut at every share of edges, across the splits.

    An edge joins what one part of the model writes to what a later one reads (queries, keys and values of a head apart). Its
    effect is the share of the model's own shift that its exchange makes, as in the probe `components`. A circuit keeps its
    edges; every other edge hands on what it has under another code. Its faithfulness is the share of the way back from the
    counterfactual's answer to the model's own.

    Args:
        trained: the trained model, with its run, task and folder.
        episodes: pairs of episodes per split, 4 or more; all of one split are one batch. Circuits are cut by scores of one
            half of them and tested on the other.
        seed: seed of the episodes, which are never those of a training, even with an equal seed.
        points: of the integrated estimate, 2 or more.
        exact: how many edges of highest score are exchanged themselves, 3 or more.
        draws: random circuits per share.

    Returns:
        The table, and rows per episode: the faithfulness of the circuit of a tenth of the edges, found on training
        compositions.

        - "attribution", "integrated attribution": first-order estimates of an edge's effect (column "edge"); "effect": the
          exact exchange, of those of highest integrated attribution. Of a model with more than 500 edges, rows are kept of the
          500 whose integrated attribution is largest in size on either kind of compositions; "listed share" is then their
          share of the sizes of all edges' estimates. All other rows are about all edges.
        - "rank agreement": Spearman correlation of an estimate with the effect, over the edges exchanged.
        - "faithfulness": of a circuit of a share of all edges ("share"); "split": what it is tested on; "found on": what its
          edges were ranked on; "by": how. lo, hi: 95 % over compositions.
        - "CPR", "CMD": areas under that curve, and between it and 1 (MIB, 2504.13151). CPR ranks edges by the signed
          integrated attribution, CMD and the curve by its size.
        - "sufficient share": the smallest share of edges among those tried from which on faithfulness stays at 0.9 or above.
        - control "random": as many random edges. "magnitude": ranked by the length of the difference that the edge carries.
          "untrained": the untrained control.

    Raises:
        ConfigError: the family cannot show the same inputs under two codes, or a number is too small.
        DoesNotApply: the model does not have the hook points of its nodes' inputs, or its parts do not add up to the stream.
    """
    require(episodes >= 4, f"episodes must be 4 or more, got {episodes}")
    require(points >= 2, f"points must be 2 or more, got {points}")
    require(exact >= 3, f"exact must be 3 or more, got {exact}")
    require(draws >= 1, f"draws must be 1 or more, got {draws}")
    task = trained.task
    check_renders(task)
    (tried,) = draw(task, "train", 2, "edges", trained.device)
    graph_of(trained.model, tried.tokens)  # raises before anything is measured
    rows: list[dict] = []
    kept: list[pd.DataFrame] = []
    for control, model in trained.with_untrained_control():
        graph = graph_of(model, tried.tokens)
        halves = {
            split: [_side(task, model, graph, half) for half in _halves(task, split, episodes, seed, trained)]
            for split in SPLITS
        }
        ranks = {}
        for split, (first, _) in halves.items():
            found = {
                name: edge_scores(model, task, graph, first.base, first.own, first.donor, first.goal, fixed or points)
                for name, fixed in ESTIMATES.items()
            }
            ranks[split] = found | {MAGNITUDE: _magnitude(graph, first)}
        if not control:
            listed = _listed(graph, [found[BY] for found in ranks.values()])
            for split, (first, _) in halves.items():
                rows += _edge_rows(task, model, graph, first, ranks[split], listed, split, exact)
        for split, (_, second) in halves.items():
            for found_on in SPLITS:
                rows += _curve(task, model, graph, second, ranks[found_on], split, found_on, control, seed, draws)
            if not control:
                chosen = circuit(graph, np.abs(ranks["test"][BY]), 0.1)
                kept.append(_per_episode(task, model, graph, second, chosen).assign(split=split))
    asked = (row for row in rows if not row["control"] and row["metric"] in ("faithfulness", "CPR", "CMD", "sufficient share"))
    rows += tables.not_available(asked, trained.why_no_untrained_control)
    return pd.DataFrame(rows), pd.concat(kept, ignore_index=True)


def _halves(task: TaskFamily, split: str, episodes: int, seed: int, trained: TrainedModel) -> list[Episodes]:
    (drawn,) = draw(task, split, episodes, seed, trained.device, batch=episodes)
    order = torch.arange(len(drawn.tokens), device=drawn.tokens.device)
    return [drawn.take(order[start::2]) for start in (0, 1)]


def _side(task: TaskFamily, model: HookedModel, graph: Graph, base: Episodes) -> Side:
    other = task.render({name: code.roll(1, 0) for name, code in base.codes.items()}, base.inputs)
    own, donor = written(model, graph, base), written(model, graph, other)
    return Side(base, own, donor, shift(task, own.prediction, donor.prediction, base.targets))


def _magnitude(graph: Graph, side: Side) -> np.ndarray:
    """(reader, writer): how long the difference is that a writer hands on, the same for all its readers."""
    length = (side.donor.by_writer - side.own.by_writer).double().square().sum((1, 2, 3)).sqrt().cpu().numpy()
    return np.where(graph.exists, length[None], 0.0)


def _listed(graph: Graph, scores: Sequence[np.ndarray]) -> list[tuple[int, int]]:
    """The edges that get rows, in the graph's order: those of largest size in any of the scores."""
    size = np.max([np.abs(each) for each in scores], axis=0)
    kept = set(sorted(graph.edges(), key=lambda edge: -size[edge])[:LISTED])
    return [edge for edge in graph.edges() if edge in kept]


def _edge_rows(
    task: TaskFamily,
    model: HookedModel,
    graph: Graph,
    side: Side,
    ranks: dict[str, np.ndarray],
    listed: list[tuple[int, int]],
    split: str,
    exact: int,
) -> Iterator[dict]:
    edges = graph.edges()
    found = {metric: ranks[metric] for metric in ESTIMATES}
    common = {"split": split, "role": "all", "n": len(side.base.tokens)}
    for metric, scores in found.items():
        if len(listed) < len(edges):
            share = float(np.abs([scores[edge] for edge in listed]).sum() / np.abs(scores).sum())
            yield _row("listed share", share, site="every edge", by=metric, **common | {"n": len(listed)})
        for edge in listed:
            yield _row(metric, float(scores[edge]), site=graph.readers[edge[0]].hook_name, edge=graph.name(edge), **common)
    highest = sorted(edges, key=lambda edge: -abs(found[BY][edge]))[:exact]
    composition, effects = side.base.composition.cpu().numpy(), []
    weight = side.goal.weight.cpu().numpy()
    for edge in highest:
        answers = answers_of(task, exchange_edge(model, graph, side.base, side.donor, edge), side.base.targets)
        pooled = summarise(weight - side.goal.along(answers).cpu().numpy(), weight, composition)
        effects.append(pooled.score)
        lo, hi = pooled.interval_on(Scale.PLAIN)  # a share of the way may be below 0 and above 1
        where = {"site": graph.readers[edge[0]].hook_name, "edge": graph.name(edge)}
        yield _row("effect", pooled.score, lo=lo, hi=hi, **where, **common)
    for metric, scores in found.items():
        guess = [scores[edge] for edge in highest]
        if np.ptp(guess) and np.ptp(effects):
            agreement = float(spearmanr(guess, effects).statistic)
            yield _row("rank agreement", agreement, site="every edge", by=metric, **common | {"n": len(highest)})


class Way(NamedTuple):
    """One way of ranking edges.

    Args:
        by: how.
        control: "" or which control.
        order: (reader, writer); higher is kept first.
        signed: whether the sign counts, as CPR wants it; CMD and the curve go by size.
    """

    by: str
    control: str
    order: np.ndarray
    signed: bool = False


def _curve(
    task: TaskFamily,
    model: HookedModel,
    graph: Graph,
    side: Side,
    ranks: dict[str, np.ndarray],
    split: str,
    found_on: str,
    control: str,
    seed: int,
    draws: int,
) -> Iterator[dict]:
    """Faithfulness by share, and what it comes to, of circuits ranked in every way."""
    ways = [Way(BY, control, np.abs(ranks[BY])), Way(BY, control, ranks[BY], signed=True)]
    if not control:
        ways += [Way("attribution", "", np.abs(ranks["attribution"])), Way(MAGNITUDE, MAGNITUDE, ranks[MAGNITUDE])]
    where = {"split": split, "site": "every edge", "role": "all", "n": len(side.base.tokens), "found on": found_on}
    seen: dict[bytes, Evaluation] = {}  # small graphs have the same circuit at several shares
    for way in ways:
        yield from _rows_of(way, _cut(task, model, graph, side, way.order, seen), where)
    if not control and found_on == split:
        rng = np.random.default_rng(stream(seed, "circuits", 0))
        orders = [rng.random(graph.exists.shape) for _ in range(draws)]
        yield from _random_rows([_cut(task, model, graph, side, order, seen) for order in orders], where)


def _cut(
    task: TaskFamily, model: HookedModel, graph: Graph, side: Side, order: np.ndarray, seen: dict[bytes, Evaluation]
) -> list[Evaluation]:
    """Faithfulness at every share; `seen` keeps that of circuits already run."""
    composition, weight = side.base.composition.cpu().numpy(), side.goal.weight.cpu().numpy()
    found = []
    for share in SHARES:
        chosen = circuit(graph, order, share)
        if chosen.tobytes() not in seen:
            prediction = run_circuit(model, graph, side.base, side.donor, chosen)
            part = faithfulness(task, side.goal, prediction, side.base.targets)
            seen[chosen.tobytes()] = summarise(weight - part, weight, composition)
        found.append(seen[chosen.tobytes()])
    return found


def _rows_of(way: Way, found: list[Evaluation], where: dict) -> Iterator[dict]:
    curve = [pooled.score for pooled in found]
    common = where | {"control": way.control, "by": way.by}
    if way.signed:
        yield _row("CPR", areas(SHARES, curve).cpr, **common)
        return
    for share, pooled in zip(SHARES, found, strict=True):
        lo, hi = pooled.interval_on(Scale.PLAIN)
        yield _row("faithfulness", pooled.score, lo=lo, hi=hi, share=share, **common)
    yield _row("CMD", areas(SHARES, curve).cmd, **common)
    enough = [min(curve[at:]) >= ENOUGH for at in range(len(curve))]
    known = {} if any(enough) else {"note": f"not available: no share of the edges is faithful to {ENOUGH}"}
    yield _row("sufficient share", SHARES[enough.index(True)] if any(enough) else np.nan, **known, **common)


def _random_rows(draws: list[list[Evaluation]], where: dict) -> Iterator[dict]:
    """Means over draws; lo and hi of faithfulness are their range."""
    common = where | {"control": RANDOM, "by": RANDOM}
    every = np.array([[pooled.score for pooled in found] for found in draws])
    for share, values in zip(SHARES, every.T, strict=True):
        ends = {"lo": float(values.min()), "hi": float(values.max())}
        yield _row("faithfulness", float(values.mean()), share=share, **ends, **common)
    found = [areas(SHARES, curve) for curve in every]
    yield _row("CMD", float(np.mean([area.cmd for area in found])), **common)
    yield _row("CPR", float(np.mean([area.cpr for area in found])), **common)


def _row(metric: str, value: float, **more: object) -> dict:
    own = {"edge": "", "by": "", "share": float("nan"), "found on": ""}
    return tables.row(metric, value, **{**own, **more})  # type: ignore[arg-type]


def _per_episode(task: TaskFamily, model: HookedModel, graph: Graph, side: Side, chosen: np.ndarray) -> pd.DataFrame:
    prediction = run_circuit(model, graph, side.base, side.donor, chosen)
    part, weight = faithfulness(task, side.goal, prediction, side.base.targets), side.goal.weight.cpu().numpy()
    names = [task.composition_name(int(c)) for c in side.base.composition]
    known = weight > 0  # the rest have the same answer under both codes: nothing to keep
    frame = pd.DataFrame({"composition": names, "kept": part, "shift": weight})[known]
    return frame.assign(score=frame["kept"] / frame["shift"])
