"""How many steps of which algorithm is each layer's answer like, and do they grow linearly or exponentially with depth?"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from compolens import tables
from compolens.activations.sites import at_answers, residual_sites
from compolens.activations.streams import draw
from compolens.foundation.configs import DoesNotApply, require
from compolens.hooks import HookedModel
from compolens.measures.agreement import BestSteps, best_steps, error_similarity, trend
from compolens.measures.readouts import RidgeReadout
from compolens.models.token_space import TokenSpaceArchitecture
from compolens.references import GradientDescent, GradientDescentPlusPlus, LeastSquares, Newton
from compolens.references.regression import LinearLearner, all_answers
from compolens.tasks import LinearRegression
from compolens.tasks.episodes import Episodes
from compolens.zoo.folders import TrainedModel

version = 3  # raised whenever its numbers change
values_since = 1  # its values; version 2 changed intervals alone

QUERIES = 32
CONVERGED = 0.999

Algorithms = dict[str, tuple[list[int], list[LinearLearner]]]
"""Algorithm -> numbers of steps, and a learner for each."""


def probe(
    trained: TrainedModel,
    *,
    episodes: int = 256,
    fits: int = 2048,
    newton: int = 25,
    gd: int = 4096,
    draws: int = 200,
    seed: int = 0,
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Similarity of every layer's answer with every step of Newton's iteration, gradient descent and GD++.

    Similarity is the cosine between the errors of two learners over many questions about the same demonstrations (SimE of
    2310.17086). A layer's answer is read by the model's own unembedding where tokens are the residual stream, else by a ridge
    readout. Newton starts at S / |S S^T|_2, half of what 2310.17086 prints, which does not converge (see `Newton`). Gradient
    descent ("GD") has half the rate tuned for one step, so that it converges; "GD, tuned rate" and GD++ (2212.07677) have the
    rates that are best for as many steps as the model has layers. A trend shows how fast answers converge, never by itself by
    which algorithm.

    Args:
        trained: the trained model, with its run, task and folder.
        episodes: episodes per split, 8 or more. Each brings many questions: its own answers where every input is asked for,
            else 32 further inputs in place of the query.
        fits: training episodes for the ridge readouts of layers; not used where tokens are the residual stream.
        newton: last step of Newton's iteration that is looked at, 2 or more; 25 suffice, since convergence is quadratic.
        gd: last step of gradient descent that is looked at, 2 or more; steps grow by factors of √2, so that 4096 costs few of
            them.
        draws: bootstrap draws of episodes behind an interval.
        seed: seed of the episodes, which are never those of a training, even with an equal seed.

    Returns:
        The table, and rows per episode and layer (the share of the right answers' squares that its answers explain). Column
        `algorithm` names the algorithm, `algorithm_step` its step, `layer` the layer (-1: all of them). lo, hi: percentiles
        (95 %) of a bootstrap over episodes.

        - "similarity": mean cosine of the errors, from -1 to 1, at every layer and step.
        - "best step": the step most similar to a layer; `note` says where it is the last one looked at, or the first that
          cannot be told from least squares (similarity above 0.999).
        - "best level": the similarity there; a maximum over steps, which has no interval.
        - "linear slope", "linear R²": of a straight line through best steps against layers, over layers that are not at an
          edge.
        - "exponential slope", "exponential R²": the same of their logarithms.
        - control "untrained": the untrained control, with readouts of its own.

    Raises:
        DoesNotApply: the task is no linear regression.
        ConfigError: newton or gd is below 2, or episodes below 8.
    """
    task = trained.task
    if not isinstance(task, LinearRegression):
        raise DoesNotApply(f"{type(task).__name__} is no regression family; algorithm_steps needs LinearRegression")
    require(
        newton >= 2 and gd >= 2 and episodes >= 8, f"need newton, gd >= 2 and episodes >= 8, got {newton}, {gd}, {episodes}"
    )
    rows: list[dict[str, Any]] = []
    kept: list[pd.DataFrame] = []
    algorithms = _algorithms(task, trained.model.cfg.n_layers, newton, gd)
    for control, model in trained.with_untrained_control():
        readers = _readers(trained, model, fits, seed)
        for split in ("test", "ood"):
            drawn = list(draw(task, split, episodes, seed, trained.device))
            batches = [_questions(task, b) for b in drawn]
            errors = {k: torch.cat([_errors(model, task, b, *reader) for b in batches]) for k, reader in readers.items()}
            known = {"split": split, "control": control}
            rows += _similarities(task, batches, errors, algorithms, known, draws)
            kept += [_episodes(task, split, drawn, batches, errors)] if control == "" else []
    own = {which: [row for row in rows if (row["metric"] == "best step") is which] for which in (False, True)}
    rows += tables.not_available(own[False], trained.why_no_untrained_control)
    rows += tables.not_available(own[True], trained.why_no_untrained_control, measured=("algorithm_step",))
    return pd.DataFrame(rows), pd.concat(kept, ignore_index=True)


def _similarities(
    task: LinearRegression,
    batches: list[tuple[Episodes, int]],
    errors: dict[int, Tensor],
    algorithms: Algorithms,
    known: dict[str, Any],
    draws: int,
) -> Iterator[dict[str, Any]]:
    """The rows of every algorithm, from the errors (batch, questions) of every layer."""
    limit = _algorithm_errors(task, batches, [1], [LeastSquares()])[1][0]
    for name, which in algorithms.items():
        steps, theirs = _algorithm_errors(task, batches, *which)
        alike = torch.stack([torch.stack([error_similarity(mine, their) for their in theirs]) for mine in errors.values()])
        done = torch.stack([error_similarity(their, limit) for their in theirs])
        yield from _rows(name, steps, list(errors), alike, done, known, draws)


def _algorithms(task: LinearRegression, layers: int, newton: int, gd: int) -> Algorithms:
    """name -> (steps, learners)."""
    eta, slow = (GradientDescent(k).for_task(task).eta for k in (layers, 1))
    plus = GradientDescentPlusPlus(layers).for_task(task)
    doubling = sorted({round(2 ** (k / 2)) for k in range(2 * gd.bit_length()) if 2 ** (k / 2) <= gd})  # by factors of √2
    steps = {"Newton": list(range(1, newton + 1)), "GD": doubling, "GD++": list(range(1, 3 * layers + 1))}
    steps["GD, tuned rate"] = steps["GD++"]
    make = {
        "Newton": lambda k: Newton(k),
        "GD": lambda k: GradientDescent(k, slow / 2),
        "GD, tuned rate": lambda k: GradientDescent(k, eta),
        "GD++": lambda k: GradientDescentPlusPlus(k, plus.eta, plus.gamma),
    }
    return {name: (counts, [make[name](k) for k in counts]) for name, counts in steps.items()}


# ---- questions and answers -------------------------------------------------------------------------------------------
def _questions(task: LinearRegression, batch: Episodes) -> tuple[Episodes, int]:
    """Episodes that ask several things about the same demonstrations, and in how many copies: themselves where every input is
    asked for, else one per further input in place of the last query."""
    return (batch, 1) if task.interleaved else (task.asking(batch, task.further_inputs(batch, QUERIES)), QUERIES)


def _flat(task: LinearRegression, questions: tuple[Episodes, int], found: Tensor) -> Tensor:
    """(batch, questions) errors of the first output from answers (rows, A, d_y): all but the first of an episode (nothing is
    known there), or the last of every copy."""
    episodes, copies = questions
    wrong = (found - episodes.targets[:, list(task.answers)].double())[..., 0]
    return wrong[:, 1:] if copies == 1 else wrong[:, -1].unflatten(0, (-1, copies))


def _algorithm_errors(
    task: LinearRegression, questions: list[tuple[Episodes, int]], steps: list[int], learners: Sequence[LinearLearner]
) -> tuple[Tensor, list[Tensor]]:
    """(steps, [(batch, questions) per learner])."""
    found: list[list[Tensor]] = [[] for _ in learners]
    for one in questions:
        for errors, answers in zip(found, all_answers(learners, *task.prompts(one[0])), strict=True):
            errors.append(_flat(task, one, answers))
    return torch.tensor(steps), [torch.cat(errors) for errors in found]


@torch.no_grad()
def _errors(
    model: HookedModel, task: LinearRegression, questions: tuple[Episodes, int], site: str, read: Callable[[Tensor], Tensor]
) -> Tensor:
    episodes = questions[0]
    parts = []
    for tokens in episodes.tokens.split(2048):
        _, cache = model.run_with_cache(tokens, names_filter=site)
        parts.append(read(at_answers(cache[site], model)).double())
    return _flat(task, questions, torch.cat(parts))


def _readers(
    trained: TrainedModel, model: HookedModel, fits: int, seed: int
) -> dict[int, tuple[str, Callable[[Tensor], Tensor]]]:
    """layer -> (site, what reads answers (batch, A, d_y) off the stream (batch, A, d_model) there)."""
    sites = {layer: site for layer, site in residual_sites(model).items() if layer > 0}
    if isinstance(trained.run.architecture, TokenSpaceArchitecture):
        unembed: Any = model.unembed
        return {layer: (site, unembed) for layer, site in sites.items()}
    task, at = trained.task, list(trained.task.answers)
    batches = list(draw(task, "train", fits, f"{seed}/readout", trained.device))
    y = torch.cat([b.targets[:, at] for b in batches]).flatten(0, 1).double()
    readers: dict[int, tuple[str, Callable[[Tensor], Tensor]]] = {}
    for layer, site in sites.items():
        x = torch.cat([at_answers(model.run_with_cache(b.tokens, names_filter=site)[1][site], model) for b in batches])
        readout = RidgeReadout.fit(x.detach().flatten(0, 1).double(), y, l2=1e-3)
        readers[layer] = (site, _in_float64(readout))
    return readers


def _in_float64(readout: RidgeReadout) -> Callable[[Tensor], Tensor]:
    return lambda stream: readout(stream.double())


# ---- rows ------------------------------------------------------------------------------------------------------------
def _rows(
    name: str, steps: Tensor, layers: list[int], alike: Tensor, done: Tensor, known: dict[str, Any], draws: int
) -> Iterator[dict[str, Any]]:
    """alike (layer, step, episode), done (step, episode) similarity with least squares."""

    def best(index: Tensor) -> BestSteps:
        return best_steps(alike[..., index].mean(-1), steps, done[:, index].mean(-1) > CONVERGED)

    everyone = torch.arange(alike.shape[-1])
    found = best(everyone)
    rng = torch.Generator().manual_seed(0)
    again = [best(torch.randint(len(everyone), (len(everyone),), generator=rng)) for _ in range(draws)]
    known = {"role": "answers", "algorithm": name, "n": len(everyone)} | known
    for i, layer in enumerate(layers):
        site = {"site": f"blocks.{layer - 1}.hook_resid_post", "layer": layer} | known
        for j, step in enumerate(steps.tolist()):
            mean, spread = float(alike[i, j].mean()), 1.96 * float(alike[i, j].std()) / len(everyone) ** 0.5
            if np.isfinite(mean):  # an algorithm that diverged has none
                yield _row("similarity", mean, mean - spread, mean + spread, step) | site
        drawn = torch.stack([one.steps[i] for one in again]).double()
        note = "at the edge of what was looked at" if bool(found.at_edge[i]) else ""
        yield _row("best step", float(found.steps[i]), *_interval(drawn), found.steps[i].item(), note) | site
        yield _row("best level", float(found.levels[i]), math.nan, math.nan, note=note) | site
    yield from _trends(layers, found, again, {"site": "all layers", "layer": -1} | known)


def _trends(layers: list[int], found: BestSteps, again: list[BestSteps], known: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Lines through best steps and their logarithms, over the layers whose best step is not the last one looked at."""
    inside = ~found.at_edge
    x = torch.tensor(layers)[inside]
    for shape, scale in (("linear", lambda s: s.double()), ("exponential", lambda s: s.clamp(min=1).double().log())):
        line = trend(x, scale(found.steps[inside]))
        lines = [trend(x, scale(one.steps[inside])) for one in again]
        for metric, value in (("slope", line.slope), ("R²", line.r2)):
            drawn = torch.tensor([one.slope if metric == "slope" else one.r2 for one in lines])
            if np.isfinite(value):  # a slope needs two layers, its fit three
                yield _row(f"{shape} {metric}", value, *_interval(drawn)) | known | {"n": len(x)}


def _interval(values: Tensor) -> tuple[float, float]:
    values = values.double()[values.isfinite()]
    return (float(values.quantile(0.025)), float(values.quantile(0.975))) if len(values) else (np.nan, np.nan)


def _row(
    metric: str, value: float, lo: float = np.nan, hi: float = np.nan, step: float = np.nan, note: str = ""
) -> dict[str, Any]:
    return {"metric": metric, "value": value, "lo": lo, "hi": hi, "algorithm_step": step, "note": note}


def _episodes(
    task: LinearRegression, split: str, drawn: list[Episodes], batches: list[tuple[Episodes, int]], errors: dict[int, Tensor]
) -> pd.DataFrame:
    """Per episode and layer: its composition, and how much of the square of the right answers the layer's answers explain."""
    names = [task.composition_name(int(c)) for b in drawn for c in b.composition]
    zero = torch.cat([_flat(task, q, q[0].targets.new_zeros(len(q[0].targets), len(task.answers), task.d_y)) for q in batches])
    total = zero.square().sum(1).clamp(min=1e-12)
    parts = []
    for layer, error in errors.items():
        score = (1 - error.square().sum(1) / total).cpu().numpy()
        parts.append(pd.DataFrame({"split": split, "composition": names, "layer": layer, "score": score}))
    return pd.concat(parts, ignore_index=True)
