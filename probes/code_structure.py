"""Is the code made of parts that add up, and does every part lie in a direction of its own?"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from compolens import tables
from compolens.activations.sites import EVERYWHERE, Site, positions, sites
from compolens.activations.streams import draw, record
from compolens.foundation.configs import require
from compolens.foundation.progress import progress
from compolens.hooks import HookedModel
from compolens.measures.erasure import Writer
from compolens.measures.factorisation import (
    AdditiveCode,
    composition_means,
    cross_factor_cosine,
    halves,
    left_out,
    linear_factorisation_r2,
    r2,
)
from compolens.measures.intervals import Replicates, Scale, scores_left_out, student_interval
from compolens.measures.readouts import PENALTIES, Moments, leave_groups_out
from compolens.measures.subspaces import column_space, overlap, random_overlaps
from compolens.zoo.folders import TrainedModel

version = 2  # raised whenever its numbers change
values_since = 1  # its values; version 2 changed intervals alone

FOLDS = 6
DRAWS = 200
"""Random directions and subspaces behind an interval."""


class Sample(NamedTuple):
    """Codes of a split's episodes: where -> x (n, d), factor -> (n, width), composition (n,)."""

    codes: dict[Site, np.ndarray]
    factors: dict[str, np.ndarray]
    composition: np.ndarray

    def shuffled(self) -> Sample:
        """The same codes beside the factors, and the compositions, of other episodes."""
        order = np.random.default_rng(0).permutation(len(self.composition))
        return Sample(self.codes, {name: part[order] for name, part in self.factors.items()}, self.composition[order])


RAW = Site(-1, "raw input", "context")
"""Stands for the raw input among the sites."""


def probe(trained: TrainedModel, *, episodes: int = 2048, seed: int = 0) -> tuple[pd.DataFrame, pd.DataFrame]:
    """How the task's factors (`TaskFamily.factors`) are laid out in an episode's code, at every residual layer and role.

    A code is the mean of an activation over the role's positions. The linear factorisation is that of 2602.24264; what is read
    and written is measured as in LEACE (2306.03819).

    Args:
        trained: the trained model, with its run, task and folder.
        episodes: episodes per split, and as many for fitting, 2 or more; more of them narrow the intervals.
        seed: seed of the episodes, which are never those of a training, even with an equal seed.

    Returns:
        The table, and rows per episode and site (how well the sum of the parts gives the episode's code: 1 is perfect, 0 as
        good as the split's mean code). Intervals are over compositions, those of random controls 5 % and 95 % quantiles.

        - "factorisation r2", "whitened factorisation r2": share of the codes' variance that a sum of one effect per factor
          explains, fitted on the very episodes of the split. Inputs vary within compositions, so the most that can be had is
          below 1.
        - "additivity": R² of the mean codes of compositions, predicted by effects that are fitted on training compositions.
        - "left out" (split "train"): R² of an episode's code by effects fitted on the other training compositions. A code made
          of parts reaches its control "own composition"; a code stored per composition does not.
        - "factor cosine" (split "train"): mean |cosine| between effects of different factors, from 0 to 1.
        - "overlap" (split "train"): mean squared cosine of the principal angles between what a ridge readout of the factors
          reads (`rank_read` dimensions) and what the factors write (`rank_written`).
        - control "other half" of additivity: predicted from other episodes of the same compositions, which is what sampling
          allows.
        - control "own composition" of left out: effects fitted on other episodes of the same composition.
        - control "random": random directions, or subspaces drawn uniformly.
        - control "shuffled codes": the factors of other episodes.
        - control "untrained": the untrained control. Control "raw input": the raw statistic of the inputs.

    Raises:
        ConfigError: episodes is below 2.
    """
    require(episodes >= 2, f"need at least two episodes, got {episodes}; type --episodes 2048")
    rows: list[dict] = []
    for control, model in trained.with_untrained_control():
        points = [site for site in sites(model) if site.role != EVERYWHERE]
        fit = _sample(trained, model, points, "train", episodes, f"{seed}/fit", raw=control == "")
        scored = {s: _sample(trained, model, points, s, episodes, f"{seed}/score", raw=control == "") for s in ("test", "ood")}
        for site in progress(fit.codes, "site"):
            name = "raw input" if site == RAW else control
            rows += _rows(site, fit, scored, name)
            if name == "":
                rows += _rows(site, fit.shuffled(), {s: sample.shuffled() for s, sample in scored.items()}, "shuffled codes")
        if control == "":
            frame = _frame(trained, fit, scored)
    own = (row for row in rows if row["control"] == "")
    rows += tables.not_available(own, trained.why_no_untrained_control, measured=("rank_read", "rank_written"))
    return pd.DataFrame(rows), frame


def _sample(trained: TrainedModel, model: HookedModel, points: list[Site], split: str, n: int, seed: str, raw: bool) -> Sample:
    """Mean codes of n episodes of a split at every site, and the raw statistic where asked for."""
    task, hook_names = trained.task, list(dict.fromkeys(site.hook_name for site in points))
    codes: dict[Site, list] = {site: [] for site in [*points, *([RAW] if raw else [])]}
    factors: dict[str, list] = {}
    composition = []
    for batch in record(model, draw(task, split, n, seed, trained.device), hook_names):
        for site in points:
            x = batch.sites[site.hook_name][:, positions(model, site.role)].mean(1).flatten(1)
            codes[site].append(x.double().cpu().numpy())
        if raw:
            codes[RAW].append(task.raw_statistic(batch.episodes).double().cpu().numpy())
        for name, part in task.factors(batch.episodes.codes).items():
            factors.setdefault(name, []).append(part.double().cpu().numpy())
        composition.append(batch.episodes.composition.cpu().numpy())
    return Sample(_joined(codes), _joined(factors), np.concatenate(composition))


def _joined(parts: dict) -> dict:
    return {name: np.concatenate(found) for name, found in parts.items()}


# ---- numbers ---------------------------------------------------------------------------------------------------------
def _rows(site: Site, fit: Sample, scored: dict[str, Sample], control: str) -> list[dict]:
    x = fit.codes[site]
    additive = AdditiveCode.fit(x, fit.factors)
    rows = []
    for split, sample in scored.items():
        here, n = sample.codes[site], len(sample.composition)
        for metric, whiten in (("factorisation r2", False), ("whitened factorisation r2", True)):
            value = linear_factorisation_r2(here, sample.factors, whiten)
            rows.append(_row(metric, (value, np.nan, np.nan), split, site, control, n))
        rows.append(_row("additivity", _additivity(additive, here, sample), split, site, control, n))
        if control == "":
            rows.append(_row("additivity", _other_half(here, sample), split, site, "other half", n))
    rows += _left_out(site, fit, control)
    return [row for row in rows + _geometry(site, fit, additive, control) if np.isfinite(row["value"])]


def _row(metric: str, numbers: tuple[float, float, float], split: str, site: Site, control: str, n: int, **more: Any) -> dict:
    value, lo, hi = numbers
    at: dict[str, Any] = {"split": split, "site": site.hook_name, "role": site.role, "control": control, "n": n}
    return tables.row(metric, value, lo=lo, hi=hi, **at, layer=site.layer, **more)


def _additivity(additive: AdditiveCode, x: np.ndarray, sample: Sample) -> tuple[float, float, float]:
    """R² of compositions' mean codes predicted by the additive code, and its interval over compositions."""
    means, _ = composition_means(x, sample.composition)
    return _bounded(means, composition_means(additive(sample.factors), sample.composition)[0])


def _other_half(x: np.ndarray, sample: Sample) -> tuple[float, float, float]:
    """R² of compositions' mean codes predicted by those of other episodes of the same compositions."""
    _, which, count = np.unique(sample.composition, return_inverse=True, return_counts=True)
    sides = [(halves(sample.composition) == side) & (count[which] >= 2) for side in (0, 1)]
    first, second = (composition_means(x[side], which[side])[0] for side in sides)
    return _bounded(second, first)


def _left_out(site: Site, fit: Sample, control: str) -> list[dict]:
    """R² of training compositions' codes by effects fitted on others, and by those of their own other episodes."""
    errors = left_out(fit.codes[site], fit.factors, fit.composition)
    others, own, mean = errors[np.isfinite(errors).all(1)].T
    found = [("left out", others, control)] + ([("left out", own, "own composition")] if control == "" else [])
    return [_row(metric, _share(e, mean), "train", site, which, len(fit.composition)) for metric, e, which in found]


def _share(error: np.ndarray, total: np.ndarray) -> tuple[float, float, float]:
    """1 - error / total, summed over compositions, and its interval over them; NaN without any."""
    if not total.sum() > 0:
        return np.nan, np.nan, np.nan
    return _with_interval(float(1 - error.sum() / total.sum()), scores_left_out(error, total))


def _bounded(means: np.ndarray, fitted: np.ndarray) -> tuple[float, float, float]:
    """R² of compositions' means, and its interval over them; NaN for one alone."""
    if len(means) < 2:
        return np.nan, np.nan, np.nan
    left = np.array([r2(np.delete(means, i, 0), np.delete(fitted, i, 0)) for i in range(len(means))])
    return _with_interval(r2(means, fitted), left)


def _with_interval(value: float, left: np.ndarray) -> tuple[float, float, float]:
    """A share, with its 95 % t interval over compositions from what it is without each of them."""
    return value, *student_interval(value, left, len(left), Scale.LOG_LACK, Replicates.JACKKNIFE)


def _geometry(site: Site, fit: Sample, additive: AdditiveCode, control: str) -> list[dict]:
    """How the factors' directions lie: fitted on training compositions, so a property of the split "train"."""
    x, n = torch.from_numpy(fit.codes[site]), len(fit.composition)
    z = torch.from_numpy(np.concatenate(list(fit.factors.values()), axis=1))
    reads, writes = _readout_weight(x, z, fit.composition), Writer.fit(x, z).weight.T
    ranks = [column_space(a).shape[1] for a in (reads, writes)]
    cosine = (cross_factor_cosine(additive), np.nan, np.nan)
    rows = [_row("factor cosine", cosine, "train", site, control, n)]
    if min(ranks) and reads.any() and writes.any():
        shared = (overlap(reads, writes), np.nan, np.nan)
        rows.append(_row("overlap", shared, "train", site, control, n, rank_read=ranks[0], rank_written=ranks[1]))
    if control == "":
        rows += _by_chance(site, additive, x.shape[1], ranks, n)
    return rows


def _readout_weight(x: Tensor, z: Tensor, composition: np.ndarray) -> torch.Tensor:
    """(d, k) weights of the ridge readout whose penalty predicts left-out training compositions best."""
    known = np.unique(composition)
    groups = [torch.from_numpy(np.isin(composition, known[i::FOLDS])) for i in range(min(FOLDS, len(known)))]
    folds = [Moments.of(x[group], z[group]) for group in groups]
    best, _ = leave_groups_out(folds, PENALTIES)
    return Moments.total(folds).fit([best])[0].weight


def _by_chance(site: Site, additive: AdditiveCode, d: int, ranks: list[int], n: int) -> list[dict]:
    """The same with random directions and subspaces: mean, 5 % and 95 % quantile."""
    rng, generator = np.random.default_rng(0), torch.Generator().manual_seed(0)
    cosines = []
    for _ in range(DRAWS):
        weights = {name: rng.standard_normal((len(weight), d)) for name, weight in additive.weights.items()}
        cosines.append(cross_factor_cosine(AdditiveCode(additive.mean, additive.centres, weights)))
    found = {"factor cosine": np.array(cosines)}
    if min(ranks):
        found["overlap"] = random_overlaps(d, ranks[0], ranks[1], generator, DRAWS).numpy()
    numbers = {metric: (values.mean(), *np.quantile(values, [0.05, 0.95])) for metric, values in found.items()}
    return [_row(metric, value, "train", site, "random", n) for metric, value in numbers.items()]


def _frame(trained: TrainedModel, fit: Sample, scored: dict[str, Sample]) -> pd.DataFrame:
    """Per episode and site, how well the sum of the parts, fitted on training compositions, gives its code: 1 is perfectly,
    0 as well as the split's mean code."""
    frames = []
    for site in (site for site in fit.codes if site != RAW):
        additive = AdditiveCode.fit(fit.codes[site], fit.factors)
        for split, sample in scored.items():
            x = sample.codes[site]
            spread = float(((x - x.mean(0)) ** 2).sum(1).mean())
            if spread > 0:
                names = [trained.task.composition_name(int(c)) for c in sample.composition]
                score = 1 - ((x - additive(sample.factors)) ** 2).sum(1) / spread
                frames.append(
                    pd.DataFrame(
                        {"split": split, "site": site.hook_name, "role": site.role, "composition": names, "score": score}
                    )
                )
    return pd.concat(frames, ignore_index=True)
