"""What can be said, without any answer to a held-out composition, about how well a model will recombine?"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import torch

from compolens import tables
from compolens.activations.mean_codes import (
    FOLDS,
    PENALTIES,
    RAW,
    Sample,
    best_site,
    episode_errors,
    left_out_r2,
    mean_codes,
    moments,
)
from compolens.activations.sites import Site, sites
from compolens.diagnosis.predictions import CONCURRENT, PREDICTIONS
from compolens.foundation.configs import require
from compolens.hooks import HookedModel
from compolens.measures.factorisation import (
    AdditiveCode,
    composition_means,
    cross_factor_cosine,
    left_out,
    linear_factorisation_r2,
    r2,
)
from compolens.measures.geometry import effective_dimension
from compolens.measures.readouts import Moments, leave_groups_out
from compolens.tasks import TaskFamily
from compolens.zoo.folders import TrainedModel

version = 1  # raised whenever its numbers change

HALVES = ("first", "second")
SPANNED = 0.99
"""Share of the variance of training codes that their span is to hold."""


def probe(trained: TrainedModel, *, episodes: int = 1024, seed: int = 0) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Every predictor of `diagnosis.predictions`, at one site that is chosen on training compositions.

    A code is the mean of an activation over the role's positions. The site is that whose readouts of the task's
    factors predict left-out training compositions best.

    Args:
        trained: the trained model, with its run, task and folder.
        episodes: episodes per split and half, 8 or more; some hundred before numbers mean much.
        seed: seed of the episodes, which are never those of a training, even with an equal seed.

    Returns:
        The table, and rows per episode: the scores that are to be predicted, which no predictor sees. The table has a row per
        predictor (column metric), with its `league`; `half` is "first" or "second" for the same measured on one of two
        independent sets of episodes, whose agreement over models is the predictor's reliability, and "" for their mean.

        - lo, hi of the mean: the two halves.
        - split "test": prognosis, from training compositions alone.
        - split "ood": concurrent, from held-out inputs and codes; answers and targets are never looked at.
        - control "untrained": the untrained control, at its own best site.
        - control "undefined": a predictor that is not defined, with the reason in note.

    Raises:
        DoesNotApply: the family does not say which factors its codes are made of.
        ConfigError: episodes is below 8.
    """
    require(episodes >= 8, f"need at least 8 episodes per half, got {episodes}; type --episodes 1024")
    rows: list[dict] = []
    for control, model in trained.with_untrained_control():
        found: list[dict[str, float]] = []
        reasons: dict[str, str] = {}
        for half in HALVES:
            values, reasons = _predictors(trained, model, episodes, f"{seed}/{half}")
            found.append(values)
        for prediction in PREDICTIONS:
            parts = [values.get(prediction.name, np.nan) for values in found]
            for half, value in zip(("", *HALVES), (float(np.mean(parts)), *parts), strict=True):
                split = "ood" if prediction.league == CONCURRENT else "test"
                common: dict = {"split": split, "site": "chosen", "role": "readout", "n": episodes}
                known = np.isfinite(value)
                if half == "" and known:
                    common |= {"lo": min(parts), "hi": max(parts)}
                why = "" if known else f"not available: {reasons.get(prediction.name, 'not finite')}"
                which = control if known else ", ".join(filter(None, (control, "undefined")))
                more: dict[str, Any] = {"league": prediction.league, "half": half, "note": why}
                rows.append(tables.row(prediction.name, value if known else np.nan, **common, control=which, **more))
    rows += tables.not_available([row for row in rows if row["control"] == ""], trained.why_no_untrained_control)
    return pd.DataFrame(rows), _scores(trained, episodes, seed)


def _scores(trained: TrainedModel, n: int, seed: int) -> pd.DataFrame:
    """A row per episode: what is to be predicted."""
    drawn = [episode_errors(trained.model, trained.task, s, n, f"{seed}/score", trained.device) for s in ("test", "ood")]
    seen = pd.concat(drawn, ignore_index=True)
    return seen.assign(score=1 - seen["error"] / seen["weight"]).drop(columns=["error", "weight"])


def _predictors(trained: TrainedModel, model: HookedModel, n: int, seed: str) -> tuple[dict[str, float], dict[str, str]]:
    """Predictor -> value, and why others have none."""
    task, points = trained.task, [s for s in sites(model) if "+" not in s.role]
    fit = mean_codes(model, task, points, "train", n, f"{seed}/fit", trained.device)
    ood = mean_codes(model, task, points, "ood", n, f"{seed}/score", trained.device)
    best = best_site(fit, points)
    if best is None:
        return {}, {p.name: "no site varies" for p in PREDICTIONS}
    x, held = fit.codes[best], ood.codes[best]
    additive = AdditiveCode.fit(x, fit.factors)
    whole, own, mean = left_out(x, fit.factors, fit.composition, FOLDS).T
    known = np.isfinite(whole) & np.isfinite(own) & (mean > 0)
    decoded = {site: left_out_r2(fit, site) for site in (best, RAW)}
    here, raw = _transferred(fit, ood, best), _transferred(fit, ood, RAW)
    values = {
        "score on training compositions": fit.score,
        "decodability, training compositions left out": decoded[best],
        "decodability less raw input, left out": decoded[best] - decoded[RAW],
        "linear factorisation": linear_factorisation_r2(x, fit.factors, whiten=True),
        "factor cosine": cross_factor_cosine(additive),
        "homomorphism error": float((whole[known].sum() - own[known].sum()) / mean[known].sum()) if known.any() else np.nan,
        "evidence count": _evidence(task, fit, ood),
        "effective dimension": effective_dimension(composition_means(x, fit.composition)[0]),
        "decodability, held out": here,
        "decodability less raw input, held out": here - raw,
        "interference of a pair's codes": _interference(additive, ood),
        "share outside the span of training codes": _outside(x, fit.composition, held, ood.composition),
        "additivity, held out": _additivity(additive, held, ood),
    }
    return values, {name: "not finite on these episodes" for name, value in values.items() if not np.isfinite(value)}


# ---- decoding --------------------------------------------------------------------------------------------------------
def _transferred(fit: Sample, ood: Sample, site: Site) -> float:
    """R² of the factors of held-out compositions by a readout that was fitted on training ones."""
    groups = moments(fit, site)
    l2 = leave_groups_out(groups, PENALTIES)[0] if len(groups) > 1 else PENALTIES[1]
    readout = Moments.total(groups).fit([l2])[0]
    true = ood.target.numpy()
    return r2(true, readout(torch.from_numpy(ood.codes[site])).numpy())


# ---- geometry --------------------------------------------------------------------------------------------------------
def _evidence(task: TaskFamily, fit: Sample, ood: Sample) -> float:
    """Mean over held-out compositions of the fewest training compositions that show one of their parts (2505.20278)."""
    shown = fit.parts()
    counts = [
        min((sum(part in parts for parts in shown.values()) for part in parts), default=0) for parts in ood.parts().values()
    ]
    return float(np.mean(counts)) if counts else np.nan


def _interference(code: AdditiveCode, ood: Sample) -> float:
    """Mean |cosine| between the effects of two parts of a held-out composition, over parts and compositions."""
    cosines = []
    for parts in ood.parts().values():
        effects = [code.weights[name][i] for name, i in parts]
        for a in range(len(effects)):
            for b in range(a + 1, len(effects)):
                length = np.linalg.norm(effects[a]) * np.linalg.norm(effects[b])
                if length > 0:
                    cosines.append(abs(float(effects[a] @ effects[b])) / length)
    return float(np.mean(cosines)) if cosines else np.nan


def _outside(x: np.ndarray, composition: np.ndarray, held: np.ndarray, held_composition: np.ndarray) -> float:
    """Share of the mean codes of held-out compositions, about the mean, that lies outside the span of training ones."""
    means, _ = composition_means(x, composition)
    centre = means.mean(0)
    _, size, directions = np.linalg.svd(means - centre, full_matrices=False)
    share = np.cumsum(size**2) / max(float((size**2).sum()), 1e-300)
    basis = directions[: int(np.searchsorted(share, SPANNED)) + 1]
    away = composition_means(held, held_composition)[0] - centre
    total = float((away**2).sum())
    return 1 - float(((away @ basis.T) ** 2).sum()) / total if total > 0 else np.nan


def _additivity(code: AdditiveCode, held: np.ndarray, ood: Sample) -> float:
    """R² of the mean codes of held-out compositions by effects fitted on training compositions."""
    means, _ = composition_means(held, ood.composition)
    fitted, _ = composition_means(code(ood.factors), ood.composition)
    return r2(means, fitted) if len(means) > 1 else np.nan
