"""Is a factor of the code carried by the same parts and edges, whatever it is combined with?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from compolens import tables
from compolens.activations.streams import draw
from compolens.foundation.configs import DoesNotApply, require
from compolens.hooks import HookedModel
from compolens.interventions.components import Component, answers_of, components, exchanged, hold, shift
from compolens.interventions.edges import (
    Graph,
    Written,
    apart,
    circuit,
    edge_terms,
    faithfulness,
    graph_of,
    run_circuit,
    written,
)
from compolens.interventions.interchange import Pairs, check_renders, exchanged_factors
from compolens.measures.intervals import Scale, summarise
from compolens.measures.similarity import (
    Terms,
    another_factor,
    dealt,
    factors_against_left_out,
    joint_reliability,
    own_part,
    summed,
)
from compolens.tasks.base import TaskFamily
from compolens.tasks.episodes import Episodes, stream
from compolens.zoo.folders import TrainedModel

version = 3  # raised whenever its numbers change
# 2 keeps the pairs of one base in one half, and "share own" counts patterns alone, not how strong a factor is

SPLITS = ("test", "ood")
PARTS, EDGES = "heads and MLPs", "edges"
FEWEST = {"test": 2, "ood": 1}
"""Split -> compositions in which a factor has to be seen."""
SHARES = (0.1, 0.2, 0.5)
"""Shares of all edges at which circuits are cut."""
SAME, OTHER, FACTOR, RANDOM = "same partners", "other partners", "another factor", "random"
"""What a circuit's edges were found on."""
OF = {"all of the effect": False, "own part": True}
"""What is compared -> whether a part's mean over factors is taken away first."""


class Measured(NamedTuple):
    """A factor in the compositions of one split.

    Args:
        base: episodes that have the factor.
        wanted: their inputs, another factor in its place.
        along: "heads and MLPs" or "edges" -> (part, episode), what the exchange moves.
        shift: (episode,) what there is to move.
        error: (episode,) 1 - score of the base's answer.
        composition: (episode,) of the base.
        unit: (episode,) the number of the base: one may be in several pairs.
    """

    base: Episodes
    wanted: Episodes
    along: dict[str, np.ndarray]
    shift: np.ndarray
    error: np.ndarray
    composition: np.ndarray
    unit: np.ndarray

    def terms(self, by: str) -> Terms:
        """As `similarity` wants them, of heads and MLPs or of edges."""
        return summed(self.along[by], self.shift, self.error, self.composition, self.unit)


class Circuits(NamedTuple):
    """What circuits of edges are cut in.

    Args:
        model: the model.
        task: its task.
        graph: its graph (None: no edge of it is known).
    """

    model: HookedModel
    task: TaskFamily
    graph: Graph | None


def probe(
    trained: TrainedModel, *, episodes: int = 256, seed: int = 0, points: int = 5, sources: int = 2
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """What carries a factor in one composition, compared with what carries it in others.

    In a base that has the factor, another one takes its place, so that a training composition comes out. Every head and MLP
    is exchanged alone (activation patching, 2202.05262); every edge by its integrated first-order estimate (EAP-IG,
    2403.17806). Effects are shares of the model's own shift, as in the probes `components` and `edges`.

    Args:
        trained: the trained model, with its run, task and folder.
        episodes: drawn per split, 8 or more.
        seed: seed of the episodes, which are never those of a training, even with an equal seed.
        points: of the integrated estimate, 2 or more.
        sources: how many other episodes are tried for the factor that comes in its place, 1 or more.

    Returns:
        The table, and rows per pair: how far each component moves the answer.

        - "effect": share of the shift that a component's exchange makes, where the column "factor" leaves; lo, hi: 95 % over
          compositions.
        - "similarity", in the split ood: the correlation over (factor, part) of effects in training and in held-out
          compositions, corrected for split-half reliability; it can exceed 1 by chance. In the split test: the median of the
          same number for training compositions that were left out, as many per factor and nearest in error; lo, hi: their
          95 % range. Beside them "mean error" and "reliability". Column "by": heads and MLPs, or edges. Column "of": all of
          the effect, or a factor's own part, which is the effect less its mean over factors.
        - "share own": share of the variance of training effects over parts that differs between factors, noise taken away.
        - "faithfulness": of a circuit of a share of all edges, as in `edges`. Column "found on": other partners (training
          compositions of the same factor, none of those tested), same partners (other episodes of those tested).
        - control "another factor": every factor compared with the others, or answered by the circuit of another. "random":
          a circuit of random edges. "untrained": the untrained control.

        Rows that cannot be had are missing: those of edges where the model does not show them, and those of similarity where
        fewer than two factors are seen in two training compositions and a held-out one.

    Raises:
        ConfigError: a number is too small.
        DoesNotApply: the family names no factors, the model has no hook points of its parts, or too few factors are seen in
            training and in held-out compositions.
    """
    require(episodes >= 8, f"episodes must be 8 or more, got {episodes}")
    require(points >= 2, f"points must be 2 or more, got {points}")
    require(sources >= 1, f"sources must be 1 or more, got {sources}")
    task = trained.task
    check_renders(task)
    pairs = {split: _pairs(task, split, episodes, sources, seed, trained) for split in SPLITS}
    if not pairs["test"]:
        raise _too_few(pairs)
    tried = next(iter(pairs["test"].values())).base.tokens[:2]
    rows: list[dict] = []
    kept: list[pd.DataFrame] = []
    graph = _graph(trained.model, tried)
    for control, model in trained.with_untrained_control():
        parts, at = components(model, tried), Circuits(model, task, graph)
        found = {split: {f: _measured(at, parts, each, points) for f, each in pairs[split].items()} for split in SPLITS}
        rows += _alike(found, control)
        rows += _served(at, found, control, seed)
        if not control:
            rows += _effects(found, parts)
            kept.append(_per_pair(task, found, parts))
    rows = [row for row in rows if row["n"] and not np.isnan(row["value"])]
    if all(row["metric"] == "effect" for row in rows):
        raise _too_few(pairs)
    asked = (row for row in rows if not row["control"] and row["metric"] != "effect")
    rows += tables.not_available(asked, trained.why_no_untrained_control)
    return pd.DataFrame(rows), pd.concat(kept, ignore_index=True)


def _too_few(pairs: Mapping[str, Mapping[str, Pairs]]) -> DoesNotApply:
    """Why nothing can be compared."""
    seen = [
        {name for name, one in found.items() if len(one.base.composition.unique()) >= FEWEST[split]}
        for split, found in pairs.items()
    ]
    both = len(set.intersection(*seen))
    return DoesNotApply(
        f"circuits are compared where two factors or more are seen in {FEWEST['test']} training compositions and in a "
        f"held-out one; here {both} {'is' if both == 1 else 'are'}: draw more episodes, or hold out others"
    )


def _graph(model: HookedModel, tokens: Tensor) -> Graph | None:
    """The graph of edges; None where there is none: heads and MLPs are measured all the same."""
    try:
        return graph_of(model, tokens)
    except DoesNotApply:
        return None


def _pairs(task: TaskFamily, split: str, episodes: int, sources: int, seed: int, trained: TrainedModel) -> dict[str, Pairs]:
    """Factor -> pairs in which it leaves; the run goes on factor by factor, each in one batch."""
    (base,) = draw(task, split, episodes, seed, trained.device, batch=episodes)
    pairs = exchanged_factors(task, base, sources, torch.Generator().manual_seed(stream(seed, "factors", 0)))
    known = torch.tensor(task.compositions("train"), device=pairs.wanted.composition.device)
    pairs = pairs.take(torch.isin(pairs.wanted.composition, known))
    there = zip(task.parts(pairs.base.codes), task.parts(pairs.wanted.codes), strict=True)
    left = np.array([next((name for name in before if name not in after), "") for before, after in there])
    return {name: pairs.take(torch.from_numpy(np.flatnonzero(left == name))) for name in sorted(set(left) - {""})}


def _measured(at: Circuits, parts: list[Component], pairs: Pairs, points: int) -> Measured:
    """A factor's effects, in one batch."""
    model, task, graph = at
    base, wanted = pairs.base, pairs.wanted
    own, other = hold(model, base, parts), hold(model, wanted, parts)
    goal = shift(task, own.prediction, other.prediction, base.targets)
    along = np.stack(
        [
            goal.along(answers_of(task, exchanged(model, base, own, part, other.sites[part.hook_name]), base.targets))
            .cpu()
            .numpy()
            for part in parts
        ]
    )
    effects = {PARTS: along}
    if graph is not None:
        runs = written(model, graph, base), written(model, graph, wanted)
        effects[EDGES] = edge_terms(model, task, graph, base, *runs, goal, points)
    error, weight = (part.detach().double().cpu().numpy() for part in task.errors(own.prediction, base.targets))
    composition, (_, unit) = base.composition.cpu().numpy(), base.tokens.flatten(1).unique(dim=0, return_inverse=True)
    return Measured(base, wanted, effects, goal.weight.cpu().numpy(), error / weight, composition, unit.cpu().numpy())


def _alike(found: Mapping[str, Mapping[str, Measured]], control: str) -> Iterator[dict]:
    """Training against held-out compositions, all factors together."""
    for by in next(iter(found["test"].values())).along:
        every = {split: {name: each.terms(by) for name, each in found[split].items()} for split in SPLITS}
        names = [
            name
            for name, terms in every["test"].items()
            if len(terms.compositions) >= 2 and name in every["ood"] and _halved(terms) and _halved(every["ood"][name])
        ]
        if len(names) < 2:
            continue
        train, held_out = ({name: every[split][name] for name in names} for split in SPLITS)
        counts = {split: sum(len(every[split][name].compositions) for name in names) for split in SPLITS}
        yield _row("share own", own_part(train), split="test", n=len(names), control=control, by=by)
        for of, own in OF.items():
            compared = factors_against_left_out(train, held_out, own)
            known = compared.null[np.isfinite(compared.null)]
            lo, hi = (float(end) for end in np.quantile(known, [0.025, 0.975])) if len(known) else (np.nan, np.nan)
            about = {"control": control, "by": by, "of": of}
            yield _row("similarity", compared.similarity, split="ood", n=counts["ood"], **about)
            yield _row("similarity", compared.left_out, lo=lo, hi=hi, split="test", n=len(known), **about)
            yield _row("mean error", compared.error, split="ood", n=counts["ood"], **about)
            yield _row("mean error", compared.null_error, split="test", n=len(known), **about)
            for split, terms in (("ood", held_out), ("test", train)):
                yield _row("reliability", joint_reliability(terms, own), split=split, n=counts[split], **about)
            if not control:
                crossed = about | {"control": FACTOR}
                yield _row("similarity", another_factor(train, held_out, own), split="ood", n=counts["ood"], **crossed)


def _halved(terms: Terms) -> bool:
    """Whether either half of the episodes has something to move."""
    return bool(terms.shift.sum(0).all())


def _served(at: Circuits, found: Mapping[str, Mapping[str, Measured]], control: str, seed: int) -> Iterator[dict]:
    """How faithful a factor's circuit is in compositions that it was not found on."""
    graph = at.graph
    if graph is None:
        return
    elsewhere: dict[str, np.ndarray] = {}
    tested: dict[tuple[str, str], tuple[Measured, np.ndarray]] = {}
    for name, each in found["test"].items():
        chosen = np.isin(each.composition, sorted(set(each.composition))[::2])
        if not chosen.all() and name in found["ood"]:
            elsewhere[name] = _scores(graph, each, chosen)
            tested["test", name] = each, np.flatnonzero(~chosen)
            tested["ood", name] = found["ood"][name], np.arange(len(found["ood"][name].shift))
    names, rng = list(elsewhere), np.random.default_rng(stream(seed, "circuits", 0))
    others = (FACTOR,) if len(names) > 1 else ()  # of a single factor, the next is itself
    kinds = (OTHER,) if control else (SAME, OTHER, *others, RANDOM)
    for split in SPLITS:
        halves = {name: _in_halves(*tested[split, name]) for name in names}
        seen = [name for name in names if len(halves[name][1])]
        drawn = {(share, name): rng.random(graph.exists.shape) for share in SHARES for name in seen}
        told: dict[tuple[float, str], list] = {(share, kind): [] for share in SHARES for kind in kinds}
        for name in seen:
            each, (first, second) = tested[split, name][0], halves[name]
            following = elsewhere[names[(names.index(name) + 1) % len(names)]]
            ranks = {SAME: _scores(graph, each, first), OTHER: elsewhere[name], FACTOR: following}
            with apart(at.model):
                runs = _runs(at.model, graph, each, second)
                for share, kind in told:
                    chosen = circuit(graph, ranks[kind] if kind in ranks else drawn[share, name], share)
                    told[share, kind].append((_kept(at, *runs, chosen), each, second))
        for (share, kind), results in told.items():
            yield from _faithful(results, split, share, kind, control)


def _in_halves(each: Measured, where: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Two halves of the episodes `where`, no base in both."""
    half = dealt(each.composition[where], each.unit[where])
    return where[half == 0], where[half == 1]


def _scores(graph: Graph, each: Measured, where: np.ndarray) -> np.ndarray:
    """(reader, writer): the size of every edge's effect on some episodes."""
    ranks = np.zeros(graph.exists.shape)
    ranks[graph.exists] = np.abs(each.along[EDGES][:, where].sum(1))
    return ranks


def _runs(model: HookedModel, graph: Graph, each: Measured, where: np.ndarray) -> tuple[Episodes, Written, Written]:
    """Some of the pairs: the base, what its nodes write, and what those of its exchanged inputs write."""
    index = torch.from_numpy(where).to(each.base.tokens.device)
    base = each.base.take(index)
    return base, written(model, graph, base), written(model, graph, each.wanted.take(index))


def _kept(at: Circuits, base: Episodes, own: Written, donor: Written, chosen: np.ndarray) -> np.ndarray:
    """(episode,) how much of the shift a circuit keeps from being made."""
    assert at.graph is not None
    goal = shift(at.task, own.prediction, donor.prediction, base.targets)
    return faithfulness(at.task, goal, run_circuit(at.model, at.graph, base, donor, chosen), base.targets)


def _faithful(results: list, split: str, share: float, kind: str, control: str) -> Iterator[dict]:
    if not results:
        return
    part = np.concatenate([kept for kept, _, _ in results])
    weight = np.concatenate([each.shift[where] for _, each, where in results])
    composition = np.concatenate([each.composition[where] for _, each, where in results])
    pooled = summarise(weight - part, weight, composition)
    lo, hi = pooled.interval_on(Scale.PLAIN)
    about = {"control": control or (kind if kind in (FACTOR, RANDOM) else ""), "by": EDGES, "found on": kind}
    yield _row("faithfulness", pooled.score, lo=lo, hi=hi, split=split, n=len(part), share=share, **about)


def _effects(found: Mapping[str, Mapping[str, Measured]], parts: list[Component]) -> Iterator[dict]:
    for split in SPLITS:
        for name, each in found[split].items():
            for part, along in zip(parts, each.along[PARTS], strict=True):
                pooled = summarise(each.shift - along, each.shift, each.composition)
                lo, hi = pooled.interval_on(Scale.PLAIN)  # a share of the way may be below 0 and above 1
                where = {"site": part.hook_name, "component": part.name, "layer": part.layer, "factor": name, "by": PARTS}
                yield _row("effect", pooled.score, lo=lo, hi=hi, split=split, n=len(along), **where)


def _row(metric: str, value: float, **more: object) -> dict:
    own = {"site": "every part", "component": "", "layer": -1, "factor": "", "by": "", "of": "", "found on": ""}
    return tables.row(metric, value, **{**own, "role": "all", "share": float("nan"), **more})  # type: ignore[arg-type]


def _per_pair(task: TaskFamily, found: Mapping[str, Mapping[str, Measured]], parts: list[Component]) -> pd.DataFrame:
    frames = []
    for split in SPLITS:
        for name, each in found[split].items():
            names = [task.composition_name(int(c)) for c in each.composition]
            common = {"split": split, "factor": name, "composition": names, "shift": each.shift}
            frame = pd.DataFrame(common | {"score": 1 - each.error})
            frames.append(frame.assign(**dict(zip([part.name for part in parts], each.along[PARTS], strict=True))))
    return pd.concat(frames, ignore_index=True)
