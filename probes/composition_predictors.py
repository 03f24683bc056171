"""Which of a model's held-out compositions will it answer worse than others?"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from compolens import tables
from compolens.activations.mean_codes import FOLDS, Part, Sample, best_site, episode_errors, left_out_r2, mean_codes
from compolens.activations.sites import Site, sites
from compolens.diagnosis.failing_compositions import EXPECTED, INTERFERENCE, SCORE, SHUFFLED
from compolens.diagnosis.predictions import CONCURRENT
from compolens.foundation.configs import require
from compolens.hooks import HookedModel
from compolens.measures.factorisation import AdditiveCode, composition_means, left_out
from compolens.zoo.folders import TrainedModel

version = 1  # raised whenever its numbers change

HALVES = ("first", "second")
CHOOSING = 1024
"""Most episodes on which the site is chosen."""

PLACE = {"site": "chosen", "role": "readout"}
"""What stands for the site that is chosen, in the model and in its untrained control."""

Values = dict[str, dict[int, float]]
"""Predictor -> held-out composition -> its value."""


def probe(trained: TrainedModel, *, episodes: int = 4096, seed: int = 0) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Every predictor of `diagnosis.failing_compositions`, of every held-out composition, at one site.

    A code is the mean of an activation over the role's positions. The site is that whose readouts of the task's factors
    predict left-out training compositions best. Where even these say less than the mean does, codes have no parts, and the
    predictors that need them are not defined. They are the evidence of 2505.20278, the interference of 2606.13934, and two of
    2405.16391, where conjunctions seen in training are added up.

    Args:
        trained: the trained model, with its run, task and folder.
        episodes: episodes per split and half, 8 or more; some 20 for every composition before numbers mean much.
        seed: seed of the episodes, which are never those of a training, even with an equal seed.

    Returns:
        The table, and rows per episode: the scores that are to be predicted, which no predictor sees. The table has a row per
        held-out composition and predictor (column metric), with its `league`. The value is the mean of two halves, measured on
        independent episodes, which stand in `first` and `second`, and as lo and hi. `chosen_at` is the site, and `n_parts` how
        many parts the composition has. n is how many episodes are behind the value: its own, or those of all training
        compositions.

        - metric "score": what is to be predicted, of the composition alone.
        - split "test": prognosis, from training compositions alone.
        - split "ood": concurrent, from held-out inputs and codes; answers and targets are never looked at.
        - control "untrained": the untrained control, at its own best site.
        - control "undefined": a predictor that is not defined, with the reason in note.
        - control "shuffled": the values of the interference, dealt anew among compositions with equally many parts.

    Raises:
        DoesNotApply: the family does not say which factors its codes are made of.
        ConfigError: episodes is below 8.
    """
    require(episodes >= 8, f"need at least 8 episodes per half, got {episodes}; type --episodes 4096")
    rows: list[dict] = []
    for control, model in trained.with_untrained_control():
        points = [s for s in sites(model) if "+" not in s.role]
        chosen_on = min(CHOOSING, episodes)
        choosing = mean_codes(model, trained.task, points, "train", chosen_on, f"{seed}/site", trained.device)
        site = best_site(choosing, points)
        if site is None:
            where: dict[str, Any] = {**PLACE, "chosen_at": "none", "n": episodes, "control": _undefined(control)}
            rows += [tables.row(p.name, np.nan, **where, split="test", note="not available: no site varies") for p in EXPECTED]
            continue
        readable = left_out_r2(choosing, site) > 0
        halves = [_samples(trained, model, site, episodes, f"{seed}/{half}") for half in HALVES]
        parts = halves[0][1].parts() | halves[1][1].parts()
        found = [_predictors(*samples, site, readable) for samples in halves]
        rows += _rows(trained, site, control, parts, found, _counted(halves))
    own = [row for row in rows if row["control"] in ("", _undefined(""))]
    rows += _shuffled([row for row in own if row["metric"] == INTERFERENCE and row["control"] == ""], seed)
    scores, seen = _scores(
        trained, episodes, seed, {row["composition"]: row["n_parts"] for row in rows if "composition" in row}
    )
    rows += scores
    rows += tables.not_available(own, trained.why_no_untrained_control, measured=("chosen_at", *HALVES))
    return pd.DataFrame(rows), seen


def _samples(trained: TrainedModel, model: HookedModel, site: Site, n: int, seed: str) -> tuple[Sample, Sample]:
    """Codes of training and of held-out compositions at the site."""
    splits = (("train", "fit"), ("ood", "held out"))
    fit, held = (mean_codes(model, trained.task, [site], s, n, f"{seed}/{what}", trained.device) for s, what in splits)
    return fit, held


def _counted(halves: list[tuple[Sample, Sample]]) -> dict[int | None, int]:
    """Held-out composition -> its episodes; None -> those of all training compositions."""
    known, count = np.unique(np.concatenate([held.composition for _, held in halves]), return_counts=True)
    found: dict[int | None, int] = {None: sum(len(fit.composition) for fit, _ in halves)}
    return found | dict(zip(known.tolist(), count.tolist(), strict=True))


def _rows(
    trained: TrainedModel,
    site: Site,
    control: str,
    parts: dict[int, list[Part]],
    found: list[Values],
    count: dict[int | None, int],
) -> list[dict[str, Any]]:
    rows = []
    for prediction in EXPECTED:
        held = prediction.league == CONCURRENT
        for c, own in sorted(parts.items()):
            values = [half[prediction.name].get(c, np.nan) for half in found]
            common: dict[str, Any] = {
                "split": "ood" if held else "test",
                "control": control,
                "n": count[c if held else None],
            }
            name = trained.task.composition_name(c)
            place: dict[str, Any] = {
                **PLACE,
                "chosen_at": f"{site.hook_name} {site.role}",
                "composition": name,
                "n_parts": len(own),
                "league": prediction.league,
            }
            rows.append(_row(prediction.name, values, **common, **place))
    return rows


def _row(metric: str, halves: list[float], control: str, **more: Any) -> dict[str, Any]:
    known = bool(np.isfinite(halves).all())
    lo, hi = (min(halves), max(halves)) if known else (np.nan, np.nan)
    value, why = (float(np.mean(halves)), "") if known else (np.nan, "not available: not finite, or no site tells parts")
    who = control if known else _undefined(control)
    more |= dict(zip(HALVES, halves, strict=True))
    return tables.row(metric, value, lo=lo, hi=hi, control=who, **more, note=why)


def _undefined(control: str) -> str:
    return ", ".join(filter(None, (control, "undefined")))


def _shuffled(rows: list[dict[str, Any]], seed: int) -> list[dict[str, Any]]:
    """The rows with the numbers of others of them that have equally many parts."""
    rng, dealt = np.random.default_rng(seed), []
    for size in sorted({row["n_parts"] for row in rows}):
        own = [row for row in rows if row["n_parts"] == size]
        numbers = [{k: row[k] for k in ("value", "lo", "hi", *HALVES, "note")} for row in own]
        order = rng.permutation(len(own))
        dealt += [row | numbers[i] | {"control": SHUFFLED} for row, i in zip(own, order, strict=True)]
    return dealt


def _scores(trained: TrainedModel, n: int, seed: int, parts: dict[str, int]) -> tuple[list[dict[str, Any]], pd.DataFrame]:
    """The score of every held-out composition, in two halves; and every episode's."""
    drawn = [
        episode_errors(trained.model, trained.task, "ood", n, f"{seed}/score/{half}", trained.device).assign(half=half)
        for half in HALVES
    ]
    seen = pd.concat(drawn, ignore_index=True).astype({"error": float, "weight": float})
    summed = seen.pivot_table(["error", "weight"], "composition", "half", aggfunc="sum")
    score, count, rows = 1 - summed["error"] / summed["weight"], seen["composition"].value_counts(), []
    for name in sorted(set(score.index) & parts.keys()):
        values = [float(score[half][name]) for half in HALVES]
        place: dict[str, Any] = {
            "composition": name,
            "n_parts": parts[name],
            "league": "",
            "site": "output",
            "role": "answers",
        }
        rows.append(_row(SCORE, values, "", split="ood", n=int(count[name]), **place))
    return rows, seen.assign(score=1 - seen["error"] / seen["weight"]).drop(columns=["error", "weight"])


# ---- predictors ------------------------------------------------------------------------------------------------------
def _predictors(fit: Sample, held: Sample, site: Site, readable: bool) -> Values:
    """Of every held-out composition; those of codes only where codes tell parts."""
    x, shown, asked = fit.codes[site], fit.parts(), held.parts()
    related = {c: [t for t, others in shown.items() if set(parts) & set(others)] for c, parts in asked.items()}
    evidence, learned = {c: _evidence(parts, shown) for c, parts in asked.items()}, _learned(fit, related)
    if not readable:
        return dict(zip((p.name for p in EXPECTED), (evidence, {}, {}, {}, learned), strict=True))
    code = AdditiveCode.fit(x, fit.factors)
    interference = {c: _interference(code, parts) for c, parts in asked.items()}
    values = (evidence, interference, _conjunctions(fit, x, related), _leak(code, fit, held, site, related), learned)
    return dict(zip((p.name for p in EXPECTED), values, strict=True))


def _evidence(parts: list[Part], shown: dict[int, list[Part]]) -> float:
    """The fewest training compositions that show one of the parts (2505.20278); NaN without parts."""
    return float(min((sum(part in others for others in shown.values()) for part in parts), default=np.nan))


def _interference(code: AdditiveCode, parts: list[Part]) -> float:
    """Mean |cosine| between the effects of two of the parts (2606.13934); NaN with fewer than two that have an effect."""
    effects = np.array([_effect(code, *part) for part in parts])
    length = np.linalg.norm(effects, axis=1) if len(parts) else np.zeros(0)
    unit = effects[length > 0] / length[length > 0, None]
    apart = ~np.eye(len(unit), dtype=bool)
    return float(np.abs(unit @ unit.T)[apart].mean()) if apart.any() else np.nan


def _effect(code: AdditiveCode, factor: str, feature: int) -> np.ndarray:
    """What a part adds; of a value among several, about the factor's mean."""
    weight = code.weights[factor]
    return weight[feature] - (code.centres[factor] @ weight if len(weight) > 1 else 0)


def _conjunctions(fit: Sample, x: np.ndarray, related: dict[int, list[int]]) -> dict[int, float]:
    """Of related training compositions, the share of the code that is no sum of others' effects, but of their own (2405.16391:
    values of conjunctions)."""
    whole, own, mean = left_out(x, fit.factors, fit.composition, FOLDS).T
    of = {int(c): i for i, c in enumerate(np.unique(fit.composition)) if np.isfinite(whole[i] - own[i]) and mean[i] > 0}
    at = {c: [of[t] for t in others if t in of] for c, others in related.items()}
    return {c: float((whole[i] - own[i]).sum() / mean[i].sum()) for c, i in at.items() if i}


def _leak(code: AdditiveCode, fit: Sample, held: Sample, site: Site, related: dict[int, list[int]]) -> dict[int, float]:
    """How far a held-out composition's mean code has gone from the sum of its parts (0) to the nearest related training
    composition's (1)."""
    seen, known = composition_means(fit.codes[site], fit.composition)
    there, asked = composition_means(held.codes[site], held.composition)
    summed, _ = composition_means(code(held.factors), held.composition)
    found = {}
    for c, own, parts in zip(asked.tolist(), there, summed, strict=True):
        others = seen[np.isin(known, related[c])]
        if len(others):
            way = others[np.linalg.norm(others - own, axis=1).argmin()] - parts
            found[c] = float((own - parts) @ way / (way @ way)) if way.any() else np.nan
    return found


def _learned(fit: Sample, related: dict[int, list[int]]) -> dict[int, float]:
    """Mean score of the related training compositions."""
    score = {}
    for c in np.unique(fit.composition).tolist():
        here = fit.composition == c
        score[c] = float(1 - fit.error[here].sum() / fit.weight[here].sum())
    return {c: float(np.mean([score[t] for t in others])) for c, others in related.items() if others}
