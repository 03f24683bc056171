"""Which held-out composition of a model fails: the expected signs, and how a predictor of compositions is judged.

What is expected was written down before any number was measured. `docs/findings/what_predicts.md` shows the list to readers; a
test holds the two together. The probe `composition_predictors` measures what is named here.

A predictor is judged by signs. A pair is two held-out compositions of one model with equally many parts, at least two: does
the one with more of the predictor score higher? A model's agreement is the share of its pairs without ties. Models of one
setting and teacher are averaged, then these clusters. The interval draws clusters and compositions anew, both at once (a
composition is one of a family and teacher, over all models that are asked it); p flips the signs of whole clusters, and is
corrected for the number of predictors (Holm). The verdict is the contest's.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from compolens import tables
from compolens.diagnosis.contest import DRAWS, FAMILIES, TIE, Judged, shares_of_ceiling, too_few
from compolens.diagnosis.label import LEARNED
from compolens.diagnosis.predictions import CONCURRENT, PROGNOSIS, Prediction
from compolens.foundation.configs import ConfigError

SCORE, SHUFFLED = "score", "shuffled"
INTERFERENCE = "interference of its parts"
EXPECTED = (
    Prediction("evidence for its parts", PROGNOSIS, 1, "2505.20278", "abstract",
               "the more training compositions show the rarest of its parts, the better it is answered"),
    Prediction(INTERFERENCE, PROGNOSIS, -1, "2606.13934", "abstract",
               "the more the directions of its parts overlap, the worse it is answered"),
    Prediction("conjunctions among its parts", PROGNOSIS, -1, "2405.16391", "abstract",
               "the more the codes of training compositions with its parts are their own, and no sums of parts, the worse"),
    Prediction("leak of a seen conjunction", CONCURRENT, -1, "2405.16391", "abstract",
               "the nearer its code lies to that of a training composition with one of its parts, the worse it is answered"),
    Prediction("score of training compositions with its parts", PROGNOSIS, 1, "this project", "text",
               "what is made of parts that were learned better is answered better; every other predictor has to beat it"),
)  # fmt: skip
MODELS = 40
"""A predictor enters where it is defined of so many models, of `contest.FAMILIES` families."""
COMPOSITIONS, PARTS = 5, 2
"""A model enters with so many held-out compositions of so many parts."""
TEACHERS = ("task.teacher_seed",)
"""Seeds that make other things of the same names."""


# ---- what is judged --------------------------------------------------------------------------------------------------
def gathered(folders: Sequence[Path], probe: str = "composition_predictors") -> pd.DataFrame:
    """One row per model, held-out composition and predictor.

    Args:
        folders: models with the tables generalization and that of the probe.
        probe: its name.

    Returns:
        Columns model, family, cluster, composition (of a family and teacher), n_parts, predictor, control, league, value,
        first, second (the halves), score, score_first and score_second. `frame.attrs["left_out"]` says why models are left
        out.

    Raises:
        ConfigError: no model can enter.
    """
    frames, left_out = [], {}
    for folder in folders:
        lacking = [name for name in ("generalization", probe) if not tables.has(folder, name)]
        if lacking:
            left_out[str(folder)] = f"has no table {', '.join(lacking)}"
            continue
        if (test := shares_of_ceiling(folder)["test"]) < LEARNED:
            left_out[str(folder)] = f"did not learn its training compositions (test {test:.2f} of the ceiling)"
            continue
        rows = _compositions(folder, probe)
        if rows["composition"].nunique() < COMPOSITIONS:
            left_out[str(folder)] = f"has fewer than {COMPOSITIONS} held-out compositions of {PARTS} parts or more"
            continue
        frames.append(rows)
    if not frames:
        raise ConfigError(f"no model can enter: {next(iter(left_out.values()), 'none was named')}")
    frame = pd.concat(frames, ignore_index=True)
    frame.attrs["left_out"] = left_out
    return frame


def _compositions(folder: Path, probe: str) -> pd.DataFrame:
    frame = tables.at_last_step(tables.read(folder, probe))
    frame = frame[(frame["n_parts"] >= PARTS) & frame["composition"].notna()]
    own = frame[(frame["metric"] == SCORE) & (frame["control"] == "")].set_index("composition")
    frame = frame[(frame["metric"] != SCORE) & frame["composition"].isin(own.index)]
    known = tables.settings(folder)
    asked = tuple((k, v) for k, v in known.items() if k.startswith("task"))
    teacher = tuple(known.get(name) for name in TEACHERS)
    found = frame[["n_parts", "control", "league", "value", "first", "second"]].assign(
        model=str(folder), family=str(known["task"]), cluster=str(asked), predictor=frame["metric"],
        composition=[f"{known['task']} {teacher} {name}" for name in frame["composition"]],
    )  # fmt: skip
    halves = (("score", "value"), ("score_first", "first"), ("score_second", "second"))
    return found.assign(**{name: frame["composition"].map(own[column]) for name, column in halves})


# ---- judging ---------------------------------------------------------------------------------------------------------
def judge(frame: pd.DataFrame, families: int = FAMILIES, models: int = MODELS, seed: int = 0) -> list[Judged]:
    """The place of every predictor.

    Args:
        frame: as `gathered` gives it.
        families: in how many a predictor has to be defined to enter.
        models: of how many.
        seed: of resamples and flips.

    Returns:
        Those that enter, best agreement first, then the others. `by_family` is in the direction expected; nothing is said by
        seeds.
    """
    own = frame[frame["control"] == ""]
    expected = {p.name: p.direction for p in EXPECTED}
    found = [_entered(judged(part, expected.get(str(name), 1), seed), families, models) for name, part in _by_name(own)]
    entered = sorted((one for one in found if one.enters), key=lambda one: (one.p, one.name))
    worst, corrected = 0.0, []
    for rank, one in enumerate(entered):
        worst = max(worst, min(1.0, one.p * (len(entered) - rank)))
        corrected.append(one._replace(p_corrected=worst))
    return sorted(corrected, key=lambda one: -one.agreement) + [one for one in found if not one.enters]


def references(frame: pd.DataFrame, seed: int = 0) -> dict[str, Judged]:
    """What the predictors are to be compared with, and are not corrected for.

    Args:
        frame: as `gathered` gives it.
        seed: of resamples and flips.

    Returns:
        "score, measured again": how well the first half of the scores orders the second. "interference, shuffled", in the
        direction expected. And every predictor measured on the untrained control, as "NAME, untrained".
    """
    expected = {p.name: p.direction for p in EXPECTED}
    once = frame[frame["control"] == ""].drop_duplicates(["model", "composition"])
    again = once.assign(value=once["score_first"], score=once["score_second"], predictor="score, measured again")
    dealt = frame[frame["control"] == SHUFFLED].assign(predictor="interference, shuffled")
    found = {"score, measured again": judged(again, 1, seed)}
    if len(dealt):
        found["interference, shuffled"] = judged(dealt, expected[INTERFERENCE], seed)
    for name, part in _by_name(frame[frame["control"] == "untrained"]):
        found[f"{name}, untrained"] = judged(part, expected.get(str(name), 1), seed)
    return found


def _by_name(frame: pd.DataFrame) -> Any:
    return frame.groupby("predictor", sort=False)


class Signs(NamedTuple):
    """A model's pairs of compositions.

    Args:
        family: its family.
        cluster: its setting and teacher.
        composition: (n,) which compositions they are, over all models.
        right: (n, n) 1 where a pair's sign is right, above the diagonal.
        known: (n, n) 1 where it is one or the other.
    """

    family: str
    cluster: str
    composition: np.ndarray
    right: np.ndarray
    known: np.ndarray

    def agreement(self, counts: np.ndarray) -> np.ndarray:
        """The share of right signs where compositions count several times.

        Args:
            counts: (draws, all compositions), how often each counts.

        Returns:
            (draws,) from 0 to 1; NaN without a pair.
        """
        own = counts[:, self.composition]
        right, known = (((own @ pairs) * own).sum(1) for pairs in (self.right, self.known))
        return np.divide(right, known, out=np.full(len(own), np.nan), where=known > 0)


def judged(part: pd.DataFrame, direction: int, seed: int = 0) -> Judged:
    """How a predictor did, before it is known which others enter.

    Args:
        part: the rows of one predictor.
        direction: 1 or -1.
        seed: of resamples and flips.

    Returns:
        Its place.
    """
    number, names = pd.factorize(part["composition"])
    models = [_signs(rows, direction) for _, rows in part.assign(number=number).groupby("model", sort=False)]
    models = [one for one in models if one.known.any()]
    once = np.ones((1, len(names)))
    own = pd.DataFrame({"family": [m.family for m in models], "cluster": [m.cluster for m in models]})
    own["agreement"] = [float(m.agreement(once)[0]) for m in models]
    by_cluster = own.groupby("cluster")["agreement"].mean()
    mean = float(by_cluster.mean()) if len(models) else np.nan
    lo, hi, p = _interval(models, by_cluster, len(names), seed) if len(by_cluster) > 1 else (np.nan, np.nan, np.nan)
    family = own.groupby(["family", "cluster"])["agreement"].mean().groupby("family").mean()
    first = part.iloc[0]
    return Judged(
        str(first["predictor"]), str(first["league"]), direction, len(models), own["family"].nunique(), _reliability(part),
        mean, lo, hi, p, np.nan, int(sum(m.known.sum() for m in models)), len(by_cluster), np.nan,
        {str(k): float(v) for k, v in family.items()}, False, "",
    )  # fmt: skip


def _signs(rows: pd.DataFrame, direction: int) -> Signs:
    value, score, parts = (rows[c].to_numpy(float) for c in ("value", "score", "n_parts"))
    more, better = value[:, None] - value, score[:, None] - score
    with np.errstate(invalid="ignore"):
        known = (np.abs(more) > TIE) & (np.abs(better) > TIE) & (parts[:, None] == parts)
    known &= np.triu(np.ones_like(known), 1)
    right = known & (direction * np.sign(more) * np.sign(better) > 0)
    first = rows.iloc[0]
    return Signs(first["family"], first["cluster"], rows["number"].to_numpy(), right.astype(float), known.astype(float))


def _interval(models: list[Signs], by_cluster: pd.Series, compositions: int, seed: int) -> tuple[float, float, float]:
    """The 95 % interval over clusters and compositions, and p over flipped clusters."""
    rng, n = np.random.default_rng(seed), len(by_cluster)
    drawn = rng.multinomial(compositions, np.full(compositions, 1 / compositions), size=DRAWS).astype(float)
    weight = rng.multinomial(n, np.full(n, 1 / n), size=DRAWS).astype(float)
    means = np.full((DRAWS, n), np.nan)
    for i, name in enumerate(by_cluster.index):
        each = np.array([m.agreement(drawn) for m in models if m.cluster == name])
        there = np.isfinite(each)
        np.divide(np.where(there, each, 0).sum(0), there.sum(0), out=means[:, i], where=there.any(0))
    there = np.isfinite(means) & (weight > 0)
    total = (weight * there).sum(1)
    resampled = (np.where(there, means, 0) * weight).sum(1)[total > 0] / total[total > 0]
    away = by_cluster.to_numpy() - 0.5
    flipped = (rng.choice([-1, 1], size=(DRAWS, n)) * away).mean(1)
    p = (1 + (np.abs(flipped) >= abs(away.mean()) - TIE).sum()) / (1 + DRAWS)
    lo, hi = np.quantile(resampled, [0.025, 0.975])
    return float(lo), float(hi), float(p)


def _reliability(part: pd.DataFrame) -> float:
    """Mean over models of the Spearman correlation of the halves over compositions; NaN where none varies."""
    found = []
    for _, rows in part.dropna(subset=["first", "second"]).groupby("model"):
        first, second = rows["first"].rank(), rows["second"].rank()
        if len(rows) > 2 and first.std() > 0 and second.std() > 0:
            found.append(float(first.corr(second)))
    return float(np.mean(found)) if found else np.nan


def _entered(one: Judged, families: int, models: int) -> Judged:
    short = too_few(one, {"families": families, "models": models})
    return one._replace(enters=not short, why_not=short)
