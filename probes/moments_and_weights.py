"""At which layer, and at which tokens, do the moments of the examples and their least-squares weights stand?"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from compolens import tables
from compolens.activations.sites import residual_sites
from compolens.activations.streams import Activations, draw, record
from compolens.foundation.configs import DoesNotApply, require
from compolens.hooks import HookedModel
from compolens.measures.intervals import summarise
from compolens.measures.position_readouts import Fitting, PositionReadouts
from compolens.references import LeastSquares
from compolens.tasks import GaussianPrior, LinearRegression
from compolens.zoo.folders import TrainedModel

version = 1  # raised whenever its numbers change

READOUTS = ("linear", "two layers")
TARGETS = ("moments", "weights")
RAW = (-1, "input")
"""Layer and name of the tokens themselves, beside the layers of the stream."""
LARGER = 2.0
"""How much larger weights are where the sizes of weights are held out."""


class Episodes(NamedTuple):
    """What readouts are fitted on, or scored on.

    Args:
        states: (layer, episode, position, feature); narrow layers are filled up with 0.
        layers: (layer number, hook point) of each.
        targets: (target, episode, d_x * d_y).
        composition: (episode,).
    """

    states: Tensor
    layers: list[tuple[int, str]]
    targets: Tensor
    composition: Tensor


class Asked(NamedTuple):
    """A target of a readout: which one, after how many examples, and whether it is another episode's."""

    target: str
    shown: int
    shuffled: bool


def probe(
    trained: TrainedModel,
    *,
    episodes: int = 2048,
    fitted: int = 4096,
    updates: int = 1000,
    hidden: int = 64,
    rate: float = 1e-2,
    seed: int = 0,
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """R² of readouts of X^T Y and of the least-squares weights, by layer and number of examples (2211.15661).

    Each readout learns which tokens to attend to, the same ones in every episode, and a map of their mean: linear, or with a
    hidden layer. It sees the tokens of the first n examples alone. All are fitted on tasks with standard normal weights and
    inputs as in training, also where training knew other weights: a model that was trained on one task is the control model
    of the paper, which has no use for either target.

    Args:
        trained: the trained model, with its run, task and folder.
        episodes: scored episodes of each kind, 32 or more.
        fitted: episodes that readouts are fitted on, 32 or more.
        updates: steps of Adam, 1 or more.
        hidden: units of the hidden layer, 1 or more (512 in the paper, whose model is 512 wide).
        rate: of Adam at the first step, three times as large for the attention (1e-3 in the paper, without the fall to 0
            that it has here).
        seed: of the episodes and of the fits.

    Returns:
        The table, and a row per episode of the task itself and split (score: of the model's answers).

        Columns: `target`: "moments" (X^T Y) or "weights" (least squares, of least norm where examples are fewer than
        coefficients); `readout`: "linear" or "two layers"; `shown`: n; `layer`: 0 enters the first block, l leaves block l;
        `tasks`: "as fitted"; "other inputs", those of the split ood; or "weights × 2". lo, hi: 95 % over compositions (t by
        the jackknife).

        - "r2": 1 is perfect, 0 the mean, may be negative; pooled over coordinates.
        - "attention on answers" and "attention on the last pair": shares of the learned attention on these tokens. Even
          attention has 1/2 and 1/n.
        - controls: "raw input" (layer -1): of the tokens themselves; "untrained": of the untrained control; "shuffled": the
          target is that of another episode.

    Raises:
        DoesNotApply: the task is no linear regression whose inputs and answers are tokens in turn.
        ConfigError: episodes or fitted is below 32, updates or hidden below 1, or rate not above 0.
    """
    task = trained.task
    if not isinstance(task, LinearRegression) or not task.interleaved:
        raise DoesNotApply(
            f"{type(task).__name__} here has no examples as tokens in turn; "
            "moments_and_weights needs LinearRegression(layout=InterleavedTokens())"
        )
    require(episodes >= 32 and fitted >= 32, f"need episodes >= 32 and fitted >= 32, got {episodes} and {fitted}")
    require(
        updates >= 1 and hidden >= 1 and rate > 0,
        f"need updates >= 1, hidden >= 1 and a rate above 0, got {updates}, {hidden} and {rate}",
    )
    probed = replace(task, prior=GaussianPrior(), shifted_prior=None, n_tasks=None)
    larger = replace(probed, teacher_scale=LARGER * probed.teacher_scale)
    held_out = (
        ("test", "as fitted", probed),
        ("ood", "other inputs", probed),
        ("ood", f"weights × {LARGER:g}", larger),
    )
    rows: list[dict[str, Any]] = []
    for control, model in trained.with_untrained_control():
        asked = [Asked(t, n, s) for s in ((False, True) if not control else (False,)) for t in TARGETS for n in _lengths(task)]
        fit = _seen(trained, model, probed, "train", fitted, f"{seed}/fit", asked, bool(control))
        positions = torch.tensor([2 * one.shown for one in asked])
        readouts = {
            name: PositionReadouts.fit(
                fit.states, fit.targets, positions, Fitting(updates, rate, min(256, fitted), width, seed)
            )
            for name, width in zip(READOUTS, (0, hidden), strict=True)
        }
        for name, readout in readouts.items():
            rows += _places(readout.attention, asked, fit.layers, name, fitted) if not control else []
        for split, tasks, other in held_out:
            drawn = "test" if other is larger else split
            scored = _seen(trained, model, other, drawn, episodes, f"{seed}/score", asked, bool(control))
            for name, readout in readouts.items():
                rows += _scores(readout(scored.states), scored, asked, split, tasks, name, control)
    kept = [
        _per_episode(task, split, seen)
        for split in ("test", "ood")
        for seen in record(trained.model, draw(task, split, episodes, f"{seed}/score", trained.device), [])
    ]
    own = [row for row in rows if not row["control"] and row["metric"] == "r2"]
    rows += tables.not_available(own, trained.why_no_untrained_control)
    return pd.DataFrame(rows), pd.concat(kept, ignore_index=True)


def _lengths(task: LinearRegression) -> list[int]:
    """Fewer examples than coefficients, as many, and all."""
    return sorted({min(n, task.n_context) for n in (max(1, task.d_x // 2), task.d_x, task.n_context)})


def _seen(
    trained: TrainedModel, model: HookedModel, task: LinearRegression, split: str, n: int, seed: str, asked: list[Asked],
    control: bool,
) -> Episodes:  # fmt: skip
    sites = residual_sites(model)
    batches = list(record(model, draw(task, split, n, seed, trained.device), list(sites.values())))
    targets = torch.cat([_targets(task, batch, asked) for batch in batches], 1)
    layers, states = list(sites.items()), [torch.cat([b.sites[site] for b in batches]) for site in sites.values()]
    if not control:
        layers, states = [RAW, *layers], [torch.cat([b.episodes.tokens for b in batches]), *states]
    width = max(state.shape[-1] for state in states)
    filled = torch.stack([torch.nn.functional.pad(state.float(), (0, width - state.shape[-1])) for state in states])
    composition = torch.cat([batch.episodes.composition for batch in batches])
    last = max(one.shown for one in asked)
    return Episodes(filled[:, :, : 2 * last], layers, targets, composition)


def _targets(task: LinearRegression, batch: Activations, asked: list[Asked]) -> Tensor:
    """(target, batch, d_x * d_y) float64."""
    x, y, *_ = task.prompts(batch.episodes)
    x, y = x.double(), y.double()
    lengths = sorted({one.shown for one in asked})
    least = LeastSquares().weights(x, y, lengths)
    found = []
    for one in asked:
        moments = x[:, : one.shown].mT @ y[:, : one.shown]
        target = (moments if one.target == TARGETS[0] else least[:, lengths.index(one.shown)]).flatten(1)
        found.append(target.roll(1, 0) if one.shuffled else target)
    return torch.stack(found)


# ---- rows ------------------------------------------------------------------------------------------------------------
def _control(one: Asked, layer: int, control: str) -> str:
    return "shuffled" if one.shuffled else "raw input" if layer == RAW[0] else control


def _scores(
    said: Tensor, scored: Episodes, asked: list[Asked], split: str, tasks: str, readout: str, control: str
) -> Iterator[dict[str, Any]]:
    composition = scored.composition.cpu().numpy()
    for k, (layer, site) in enumerate(scored.layers):
        for r, one in enumerate(asked):
            if one.shuffled and (layer == RAW[0] or split != "test"):
                continue
            true = scored.targets[r]
            error = (said[k, r].double() - true).square().sum(1).cpu().numpy()
            weight = (true - true.mean(0)).square().sum(1).cpu().numpy()
            found = summarise(error, weight, composition)
            lo, hi = found.interval
            yield tables.row(
                "r2", found.score, lo=lo, hi=hi, split=split, site=site, role="prefix", n=len(error), layer=layer,
                control=_control(one, layer, control), target=one.target, readout=readout, shown=one.shown, tasks=tasks,
            )  # fmt: skip


def _places(
    attention: Tensor, asked: list[Asked], layers: list[tuple[int, str]], readout: str, n: int
) -> Iterator[dict[str, Any]]:
    """Where the readouts of the model look."""
    for k, (layer, site) in enumerate(layers):
        for r, one in enumerate(asked):
            if one.shuffled or layer == RAW[0]:
                continue
            share = attention[k, r]
            last = share[2 * one.shown - 2 : 2 * one.shown].sum()
            found = {"attention on answers": share[1::2].sum(), "attention on the last pair": last}
            for metric, value in found.items():
                yield tables.row(
                    metric, float(value), split="train", site=site, role="prefix", n=n, layer=layer,
                    target=one.target, readout=readout, shown=one.shown, tasks="as fitted",
                )  # fmt: skip


def _per_episode(task: LinearRegression, split: str, seen: Activations) -> pd.DataFrame:
    error, weight = task.errors(seen.prediction, seen.episodes.targets)
    names = np.array([task.composition_name(int(c)) for c in seen.episodes.composition])
    return pd.DataFrame({"split": split, "composition": names, "score": (1 - error / weight).cpu().numpy()})
