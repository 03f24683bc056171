"""At which layer, and at which tokens, do a copied input, the fixed representation and the prediction stand?"""

from __future__ import annotations

from collections.abc import Iterator
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
from compolens.measures.readouts import Moments, RidgeReadout, add_by_group, grouped_r2
from compolens.references import Ridge
from compolens.tasks import RepresentationRegression
from compolens.tasks.episodes import Episodes
from compolens.zoo.folders import TrainedModel

version = 1  # raised whenever its numbers change

TOKENS = ("x token", "y token")
RAW = (-1, "input")
"""Layer and name of the raw input, beside the layers of the stream."""


class Targets(NamedTuple):
    """What may stand at the tokens of a pair, (batch, pair, width) each.

    Args:
        x: the pair's input.
        representation: Phi(x).
        prediction: what ridge regression on Phi, from the pairs before, answers to x.
    """

    x: Tensor
    representation: Tensor
    prediction: Tensor


def probe(
    trained: TrainedModel, *, episodes: int = 1024, fitted: int = 1024, l2: float = 1.0, seed: int = 0
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """R² of linear readouts of x, Phi(x) and the ridge prediction, by layer and kind of token (2310.10616).

    In a regression on a fixed representation, x_i and y_i are tokens in turn. A learner that works by parts copies x_i to the
    token of y_i, computes Phi(x_i), and regresses y on it in the layers above. Readouts are ridge regressions, fitted on
    episodes of training compositions and scored on others, over all pairs of an episode.

    Args:
        trained: the trained model, with its run, task and folder.
        episodes: scored episodes per split, 2 or more.
        fitted: training episodes that readouts are fitted on, 2 or more.
        l2: penalty of the readouts, on standardised features, 0 or more.
        seed: seed of the episodes, which are never those of a training, even with an equal seed.

    Returns:
        The table, and a row per episode and split (score: of the model's answers). Column `target`: what is read; `layer`: 0
        enters the first block, l leaves block l. lo, hi: t intervals over compositions (`measures.readouts.grouped_r2`).

        - "r2": 1 is perfect, 0 the mean, may be negative; mean over the target's coordinates.
        - target "x": the input of the token's pair; "Phi": its representation; "Phi beyond x": what of the representation is
          not linear in x (a readout of x alone has 0); "prediction": of ridge regression on Phi, from the pairs before
          it (read at x tokens alone: the others hold the answer).
        - role "x token" or "y token": the tokens of inputs, or those of answers.
        - control "raw input" (layer -1): the same readout of this token, the token before it, and what ridge regression on x
          itself predicts. "untrained": of the untrained control. "shuffled": targets of another episode.

    Raises:
        DoesNotApply: the task is no regression on a representation whose inputs and answers are tokens in turn.
        ConfigError: episodes or fitted is below 2, or l2 below 0.
    """
    task = trained.task
    if not isinstance(task, RepresentationRegression) or not task.interleaved:
        raise DoesNotApply(
            f"{type(task).__name__} keeps no representation of inputs, nor inputs and answers as tokens in turn; "
            "representation_map needs RepresentationRegression(layout=InterleavedTokens())"
        )
    require(episodes >= 2 and fitted >= 2, f"need episodes >= 2 and fitted >= 2, got {episodes} and {fitted}")
    require(l2 >= 0, f"l2 must not be negative, got {l2}; type --l2 1")
    linear = _linear_part(task, fitted, seed)
    rows: list[dict[str, Any]] = []
    kept: list[pd.DataFrame] = []
    for control, model in trained.with_untrained_control():
        fit = _moments(trained, model, "train", fitted, f"{seed}/fit", linear, control)
        readouts = {key: Moments.total(groups.values()).fit([l2])[0] for key, groups in fit.items()}
        for split in ("test", "ood"):
            scored = _moments(trained, model, split, episodes, f"{seed}/score", linear, control)
            rows += _rows(readouts, scored, split, episodes)
            if not control:
                kept += [
                    _scores(task, split, b)
                    for b in record(model, draw(task, split, episodes, f"{seed}/score", trained.device), [])
                ]
    own = (row for row in rows if row["control"] == "")
    rows += tables.not_available(own, trained.why_no_untrained_control)
    return pd.DataFrame(rows), pd.concat(kept, ignore_index=True)


def _linear_part(task: RepresentationRegression, n: int, seed: int) -> RidgeReadout:
    """The least-squares fit of Phi(x) by x, with an intercept."""
    x = torch.cat([task.raw_prompts(b).asked for b in draw(task, "train", n, f"{seed}/linear")]).flatten(0, 1)
    return RidgeReadout.fit(x, task.represent(x), l2=0.0)


def _targets(task: RepresentationRegression, episodes: Episodes) -> Targets:
    x = task.raw_prompts(episodes).asked
    return Targets(x.double(), task.represent(x).double(), _ridge(task, task.prompts(episodes)))


def _ridge(task: RepresentationRegression, prompts: Any) -> Tensor:
    """(batch, pair, d_y): the posterior mean for standard normal weights, where there is noise."""
    return Ridge(max(task.noise, 1e-3) ** 2).answers(*prompts)


def _scores(task: RepresentationRegression, split: str, seen: Activations) -> pd.DataFrame:
    """A row per episode: its composition, and the score of the model's answers."""
    error, weight = task.errors(seen.prediction, seen.episodes.targets)
    names = [task.composition_name(int(c)) for c in seen.episodes.composition]
    return pd.DataFrame({"split": split, "composition": np.array(names), "score": (1 - error / weight).cpu().numpy()})


Key = tuple[int, str, str, str, str]
"""Layer, hook point, role, target, control."""


def _moments(
    trained: TrainedModel, model: HookedModel, split: str, n: int, seed: str, linear: RidgeReadout, control: str
) -> dict[Key, dict[int, Moments]]:
    """(layer, hook point, role, target, control) -> composition -> moments of (features, target), a row per pair."""
    task, sites = trained.task, residual_sites(model)
    assert isinstance(task, RepresentationRegression)
    found: dict[Key, dict[int, Moments]] = {}
    for batch in record(model, draw(task, split, n, seed, trained.device), list(sites.values())):
        targets = _targets(task, batch.episodes)
        beyond = targets.representation - linear(targets.x)
        wanted = {"x": targets.x, "Phi": targets.representation, "Phi beyond x": beyond, "prediction": targets.prediction}
        features = {(layer, site): batch.sites[site] for layer, site in sites.items()}
        if not control:
            features[RAW] = _raw(task, batch.episodes)
        for (layer, site), stream in features.items():
            for role, at in zip(TOKENS, (slice(0, None, 2), slice(1, None, 2)), strict=True):
                x = stream[:, at].double()
                for name, target in wanted.items():
                    if (role, name) == (TOKENS[1], "prediction"):
                        continue  # the answer itself is there
                    y = target[:, : x.shape[1]]
                    group = batch.episodes.composition.repeat_interleave(x.shape[1])
                    ways = {"raw input" if (layer, site) == RAW else control: y}
                    if not control and (layer, site) != RAW:
                        ways["shuffled"] = y.roll(1, 0)
                    for which, labels in ways.items():
                        totals = found.setdefault((layer, site, role, name, which), {})
                        add_by_group(totals, x.flatten(0, 1), labels.flatten(0, 1), group)
    return found


def _raw(task: RepresentationRegression, episodes: Episodes) -> Tensor:
    """(batch, seq, features): a token, the one before it, and the prediction of ridge regression on x for the token's pair."""
    tokens = episodes.tokens.double()
    before = torch.nn.functional.pad(tokens, (0, 0, 1, 0))[:, :-1]
    predicted = _ridge(task, task.raw_prompts(episodes)).repeat_interleave(2, dim=1)[:, : tokens.shape[1]]
    return torch.cat([tokens, before, predicted], dim=-1)


def _rows(
    readouts: dict[Key, RidgeReadout], scored: dict[Key, dict[int, Moments]], split: str, n: int
) -> Iterator[dict[str, Any]]:
    for key, groups in scored.items():
        layer, site, role, target, control = key
        r2 = grouped_r2(groups, readouts[key])
        yield tables.row(
            "r2", r2.mean, lo=r2.lo, hi=r2.hi, split=split, site=site, role=role, control=control, n=n, target=target,
            layer=layer,
        )  # fmt: skip
