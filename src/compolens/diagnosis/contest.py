"""The contest of predictors: which number, taken without held-out answers, says how well a model will recombine?

A predictor is judged by signs, which need no scale: does the model with more of it also score higher on held-out compositions?

- neighbours: pairs of models that differ in one setting alone, and share seeds (as 1912.02178 and 2010.11924 vary one knob);
- seeds: pairs of models that differ in seeds alone;
- families: pairs of neighbours in each family, with the direction that the other families' neighbours show: one number each.

Pairs are clustered by task and teacher seed; clusters that share a model are one. The agreement's interval resamples clusters;
its p-value flips the signs of whole clusters, and is corrected for the number of predictors (Holm). A model that did not learn
its training compositions is left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations, product
from pathlib import Path
from statistics import NormalDist
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from compolens import tables
from compolens.diagnosis.label import LEARNED
from compolens.diagnosis.predictions import LEAGUES, PREDICTIONS, READ
from compolens.foundation.configs import ConfigError

FAMILIES, MODELS = 3, 100
"""A predictor enters where it is defined in so many families, and of so many models."""
DRAWS = 2000
LEVEL = 0.05
"""A predictor holds, or fails, where its corrected p is below this."""
POWER = 0.8
SEEDS = ("init_seed", "data_seed", "task.teacher_seed", "task.split_seed")
NO_SETTINGS = {"model", "folder", "score_name", "task.setting", "keep", *SEEDS}
TIE = 1e-9
OF_PARTS = {prediction.name for prediction in PREDICTIONS if prediction.of_parts}
"""What is not defined of a model where no site is read better than the mean says: its parts have no layout there."""


class Judged(NamedTuple):
    """How a predictor did.

    Args:
        name: of the predictor.
        league: "prognosis" or "concurrent".
        direction: that was expected, 1 or -1; 0 where nothing was.
        models: of which it is defined.
        families: in which it is.
        reliability: Spearman correlation of its two halves over models.
        agreement: share of pairs of neighbours whose signs agree in the direction expected (or, without one, in that which the
            most pairs show); 0.5 is chance.
        lo: lower end of its 95 % interval over clusters.
        hi: upper end.
        p: two-sided, from flipped signs of clusters.
        p_corrected: after Holm, over the predictors that enter.
        pairs: of neighbours.
        clusters: they are in.
        by_seed: agreement of pairs that differ in seeds alone.
        by_family: family -> agreement, in the direction that the other families show.
        enters: whether it is defined often enough.
        why_not: the reason, where it does not enter.
    """

    name: str
    league: str
    direction: int
    models: int
    families: int
    reliability: float
    agreement: float
    lo: float
    hi: float
    p: float
    p_corrected: float
    pairs: int
    clusters: int
    by_seed: float
    by_family: dict[str, float]
    enters: bool
    why_not: str


# ---- what is judged --------------------------------------------------------------------------------------------------
def gathered(folders: Sequence[Path], probes: Sequence[str]) -> pd.DataFrame:
    """One row per model and predictor.

    Args:
        folders: models with the tables generalization and those of the probes.
        probes: names of tables that hold predictors: rows with the columns league and half.

    Returns:
        Columns model (its folder, since names occur in several places), family, predictor, league, value, first, second (the
        halves), test, ood (shares of the ceiling), and the model's settings. Models that did not learn are left out;
        `frame.attrs["left_out"]` says why each is.

    Raises:
        ConfigError: a table says of no row which league it is in, or no model is left.
    """
    rows, left_out = [], {}
    for folder in folders:
        lacking = [name for name in ("generalization", *probes) if not tables.has(folder, name)]
        if lacking:
            left_out[str(folder)] = f"has no table {', '.join(lacking)}"
            continue
        scores = shares_of_ceiling(folder)
        if scores["test"] < LEARNED:
            left_out[str(folder)] = f"did not learn its training compositions (test {scores['test']:.2f} of the ceiling)"
            continue
        settings = {k: v for k, v in tables.settings(folder).items() if k not in scores} | {"model": str(folder)}
        for probe in probes:
            rows += [settings | scores | row for row in _predictors(folder, probe)]
    if not rows:
        raise ConfigError(f"no model can enter: {next(iter(left_out.values()), 'none was named')}")
    frame = pd.DataFrame(rows).rename(columns={"task": "family"})
    frame.attrs["left_out"] = left_out
    return frame


def shares_of_ceiling(folder: Path) -> dict[str, float]:
    """A model's scores on training and held-out compositions.

    Args:
        folder: the model's, with the table generalization.

    Returns:
        "test" and "ood", as shares of the ceiling.
    """
    frame = tables.pooled(folder)
    top = tables.ceiling_of(frame[frame["control"] == "reference"])
    own = frame[frame["control"] == ""]
    return {split: float(own[own["split"] == split]["value"].iloc[0]) / top for split in ("test", "ood")}


def _predictors(folder: Path, probe: str) -> list[dict[str, Any]]:
    frame = tables.at_last_step(tables.read(folder, probe))
    frame = frame[frame["control"] == ""]
    if "league" not in frame or not set(frame["league"].dropna()) <= set(LEAGUES) or frame["league"].isna().any():
        allowed = " or ".join(map(repr, LEAGUES))
        raise ConfigError(f"{probe} is no predictor: every row needs a column league, {allowed}; see docs/contest.md")
    half = frame["half"].fillna("") if "half" in frame else pd.Series("", index=frame.index)
    found: list[dict[str, Any]] = []
    for (name, league), part in frame.groupby(["metric", "league"], sort=False):
        of = {h: part[half[part.index] == h]["value"] for h in ("", "first", "second")}
        values = {h: float(v.iloc[0]) if len(v) else np.nan for h, v in of.items()}
        found.append(
            {"predictor": name, "league": league, "value": values[""], "first": values["first"], "second": values["second"]}
        )
    unread = any(row["predictor"] == READ and not row["value"] > 0 for row in found)
    return [row for row in found if row["predictor"] not in OF_PARTS] if unread else found


# ---- judging ---------------------------------------------------------------------------------------------------------
def judge(frame: pd.DataFrame, families: int = FAMILIES, models: int = MODELS, seed: int = 0) -> list[Judged]:
    """The place of every predictor.

    Args:
        frame: as `gathered` gives it, or made like it: family, predictor, league, value, first, second, ood, the seeds, and
            settings.
        families: in how many a predictor has to be defined to enter.
        models: of how many.
        seed: of resamples and flips.

    Returns:
        Those that enter, best agreement first, then the others.
    """
    expected = {p.name: p.direction for p in PREDICTIONS}
    found = []
    near, alike = _pairs(frame)
    for (name, league), part in frame.groupby(["predictor", "league"], sort=False):
        direction = expected.get(str(name), 0)
        found.append(_judged(str(name), str(league), part.set_index("model"), near, alike, direction, seed))
    least = {"families": families, "models": models}
    checked = [_entered(one, least, bool(near)) for one in found]
    entered = sorted((one for one in checked if one.enters), key=lambda one: (np.nan_to_num(one.p, nan=1.0), one.name))
    worst = 0.0
    corrected = []
    for rank, one in enumerate(entered):
        worst = max(worst, min(1.0, one.p * (len(entered) - rank))) if one.p == one.p else np.nan
        corrected.append(one._replace(p_corrected=worst))
    order = sorted(corrected, key=lambda one: -np.nan_to_num(one.agreement))
    return order + [one for one in checked if not one.enters]


def _entered(one: Judged, least: dict[str, int], neighbours: bool) -> Judged:
    short = too_few(one, least)
    if not short and one.pairs == 0:
        short = "no two models differ in one setting alone"
        if neighbours:
            short += ", in the predictor and in the held-out score: equal values do not count"
    return one._replace(enters=not short, why_not=short)


def too_few(one: Judged, least: dict[str, int]) -> str:
    """Why a predictor does not enter.

    Args:
        one: the predictor.
        least: "families" and "models" -> for how many it has to be defined.

    Returns:
        The reason; "" where there are enough.
    """
    return "; ".join(
        f"too few {what}: it is defined for {getattr(one, what)}, and {count} are needed"
        for what, count in least.items()
        if getattr(one, what) < count
    )


def verdict(one: Judged, entrants: int) -> str:
    """What is said of a predictor, by a rule that was written down before any was judged.

    Args:
        one: the predictor.
        entrants: how many predictors enter, for which p is corrected.

    Returns:
        - "holds": the interval of the agreement lies above 0.5, and the corrected p is below `LEVEL`.
        - "fails": it lies below 0.5, so the sign is the other one, and the corrected p is below `LEVEL`.
        - "cannot be told": neither, with the least agreement that would have been seen in `POWER` of such contests, where the
          interval has the same width; or, where the agreement is no less than that, that the clusters are too few.
        - "did not enter": it is defined too rarely.
    """
    if not one.enters:
        return "did not enter"
    if one.p_corrected < LEVEL and one.lo > 0.5:
        return "holds"
    if one.p_corrected < LEVEL and one.hi < 0.5:
        return "fails"
    if not one.hi > one.lo:
        return "cannot be told"
    z = NormalDist().inv_cdf
    least = 0.5 + (z(1 - LEVEL / 2 / entrants) + z(POWER)) * (one.hi - one.lo) / (2 * z(0.975))
    if max(one.agreement, 1 - one.agreement) >= least:
        return f"cannot be told ({one.clusters} clusters are too few)"
    seen = f"{least:.2f} would have been seen" if least < 1 else "no agreement would have been seen"
    return f"cannot be told ({seen})"


class Pair(NamedTuple):
    """Two models to be compared.

    Args:
        a: the first.
        b: the second.
        family: both are of it.
        cluster: task and teacher seed of the first; see `_clusters`.
    """

    a: str
    b: str
    family: str
    cluster: tuple


def _pairs(frame: pd.DataFrame) -> tuple[list[Pair], list[Pair]]:
    """(pairs that differ in one knob alone, pairs that differ in seeds alone)."""
    known = frame.drop_duplicates("model").set_index("model")
    columns = [c for c in known if c not in NO_SETTINGS and c not in NUMBERS]
    rows: dict[str, dict] = {str(m): row.to_dict() for m, row in known.iterrows()}
    settings = {m: tuple((c, _plain(row[c])) for c in columns if _plain(row[c]) is not None) for m, row in rows.items()}
    seeds = {m: tuple(_plain(row[c]) for c in SEEDS if c in known) for m, row in rows.items()}
    teacher = {m: seeds[m][2:] or seeds[m] for m in settings}
    near, alike = [], []
    for a, b in combinations(settings, 2):
        family = str(rows[a]["family"])
        if family != str(rows[b]["family"]):
            continue
        if settings[a] == settings[b]:
            alike.append(Pair(a, b, family, (settings[a],)))
        elif seeds[a] == seeds[b] and _knobs(settings[a], settings[b]) == 1:
            near.append(Pair(a, b, family, (family, _task(settings[a]), teacher[a])))
    return near, alike


NUMBERS = {"predictor", "league", "value", "first", "second", "test", "ood", "family"}


def _plain(value: Any) -> Any:
    return None if isinstance(value, float) and value != value else value


def _knobs(a: tuple, b: tuple) -> int:
    """How many knobs two models differ in; another class of architecture, with all its settings, is one."""
    first, second = dict(a), dict(b)
    names = {k for k in first.keys() | second.keys() if first.get(k) != second.get(k)}
    if "architecture" in names:
        names = {"architecture", *(k for k in names if not k.startswith("architecture"))}
    # a part of another class brings its own settings along
    return len({k for k in names if not any(k.startswith(f"{part}.") for part in names)})


def _task(settings: tuple) -> tuple:
    return tuple((k, v) for k, v in settings if k.startswith("task"))


def _judged(
    name: str, league: str, part: pd.DataFrame, near: list[Pair], alike: list[Pair], direction: int, seed: int
) -> Judged:
    value, ood = part["value"].to_dict(), part["ood"].to_dict()
    defined = [m for m, v in value.items() if np.isfinite(v)]
    signs, clusters, of = _signs(near, value, ood)
    toward = direction or (1 if signs.mean() >= 0 else -1) if len(signs) else direction
    signs = signs * (toward or 1)
    agreement, lo, hi, p = _agreement(signs, clusters, seed)
    seeds, _, _ = _signs(alike, value, ood)
    by_family = {}
    for family in dict.fromkeys(of):
        here = np.array([f == family for f in of])
        if here.any() and (~here).any():
            learned = 1 if signs[~here].mean() >= 0 else -1
            by_family[family] = float((signs[here] * learned > 0).mean())
    return Judged(
        name, league, direction, len(defined), len(set(part.loc[defined, "family"])), _reliability(part), agreement, lo, hi, p,
        np.nan, len(signs), len(set(clusters)), float((seeds * (toward or 1) > 0).mean()) if len(seeds) else np.nan, by_family,
        False, "",
    )  # fmt: skip


def _signs(pairs: list[Pair], value: dict, ood: dict) -> tuple[np.ndarray, list[tuple], list[str]]:
    """(1 where predictor and held-out score differ in the same direction, else -1; clusters; families), without ties."""
    signs, counted = [], []
    for pair in pairs:
        if pair.a not in value or pair.b not in value:
            continue  # it is not defined there
        more, better = value[pair.a] - value[pair.b], ood[pair.a] - ood[pair.b]
        if np.isfinite(more) and abs(more) > TIE and abs(better) > TIE:
            signs.append(np.sign(more * better))
            counted.append(pair)
    return np.array(signs), _clusters(counted), [pair.family for pair in counted]


def _clusters(pairs: list[Pair]) -> list[tuple]:
    """The cluster of every pair: pairs that share a model are never in two, however many others link them."""
    above: dict[Any, Any] = {}

    def top(node: Any) -> Any:
        while above.setdefault(node, node) != node:
            node = above[node]
        return node

    for pair in pairs:
        for node in (("model", pair.a), ("model", pair.b)):
            above[top(node)] = top(pair.cluster)
    return [top(pair.cluster) for pair in pairs]


def _agreement(signs: np.ndarray, clusters: list[tuple], seed: int) -> tuple[float, float, float, float]:
    """Share of agreeing pairs; its 95 % interval over clusters; and how often clusters with flipped signs do as well."""
    if not len(signs):
        return np.nan, np.nan, np.nan, np.nan
    which = pd.factorize(pd.Series(clusters))[0]
    total, count = np.bincount(which, signs), np.bincount(which)
    rng, n = np.random.default_rng(seed), len(count)
    mean = signs.sum() / count.sum()
    if n < 2:
        return (mean + 1) / 2, np.nan, np.nan, np.nan
    drawn = rng.integers(n, size=(DRAWS, n))
    resampled = total[drawn].sum(1) / count[drawn].sum(1)
    every = n <= 12  # all flips, or some at random beside the one that was seen
    flips = np.array(list(product((-1, 1), repeat=n))) if every else rng.choice([-1, 1], size=(DRAWS, n))
    as_far = np.abs((flips * total).sum(1) / count.sum()) >= abs(mean) - TIE
    p = as_far.mean() if every else (1 + as_far.sum()) / (1 + DRAWS)
    lo, hi = (np.quantile(resampled, [0.025, 0.975]) + 1) / 2
    return (mean + 1) / 2, float(lo), float(hi), float(p)


def _reliability(part: pd.DataFrame) -> float:
    """Spearman correlation of the halves over models; NaN with fewer than 3 of both."""
    both = part[["first", "second"]].dropna()
    if len(both) < 3 or both["first"].std() == 0 or both["second"].std() == 0:
        return np.nan
    return float(both["first"].rank().corr(both["second"].rank()))
