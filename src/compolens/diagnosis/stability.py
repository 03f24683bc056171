"""How often a diagnosis comes out again, its label and its site, where other compositions are drawn.

Compositions are drawn with replacement, each with all its episodes, and so are the models of a group. All tables count the
compositions that were drawn, and the rules are applied to them. Nothing is measured again. Reads tables only.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from compolens.diagnosis.decomposition import Shared
from compolens.diagnosis.measured import LEFT_OUT, READABLE, Foreseen, Measured, Rungs, named_site
from compolens.diagnosis.readings import Named, Told
from compolens.measures.intervals import weighted_mean

RESAMPLES = 100
"""A share of one half has a standard error of 0.05."""
BY_COMPOSITION = "recovered by composition"
"""The rows of `inference_or_execution` that tell where a code is read; tables before its version 4 have none."""
SPLITS = ("train", "test", "ood")
NEEDED = {"metric", "control", "split", "composition", "site", "role", "learner", "reference", "value", "weight", "n"}
"""Columns that resamples are made of."""


class Rival(NamedTuple):
    """The best site beside the one that a diagnosis names.

    Args:
        place: the site, in words.
        moved: how far writing another code there moves the answers of training compositions.
        wins: what the right code, written there, wins on held-out compositions, in units of the score.
        share: of the resamples that take it for the site where the code is read; NaN without rows by composition.
    """

    place: str
    moved: float
    wins: float
    share: float


class Stability(NamedTuple):
    """How often a diagnosis comes out again.

    Args:
        said: its label.
        label: share of resamples with its label.
        others: the labels of the other resamples, with their shares, the most frequent first.
        site: share of resamples in which the code is taken to be read at the same site, a mean over models; NaN without rows
            by composition.
        here: the site named, as a rival to others; its share is that of the first model.
        rival: the site that moves the answers of the first model most, of all others; None where there is no other.
    """

    said: str
    label: float
    others: dict[str, float]
    site: float
    here: Rival
    rival: Rival | None

    def of(self, label: str) -> Stability:
        """The same, told of another label.

        Args:
            label: any.

        Returns:
            Its share, beside those of all others; the order of these is kept.
        """
        shares = self.others | ({self.said: self.label} if self.label > 0 else {})
        others = dict(sorted(((name, share) for name, share in shares.items() if name != label), key=lambda item: -item[1]))
        return self._replace(said=label, label=shares.get(label, 0.0), others=others)


def stability(
    models: Sequence[Measured], label: str, labelled: Callable[[Sequence[Measured]], str], seed: int = 0
) -> Stability:
    """How often a diagnosis of `models` comes out again.

    Args:
        models: tables of models that differ in seeds alone, with the ladder that their diagnosis rests on.
        label: of their diagnosis.
        labelled: the label of a resample, by the rules that gave the label.
        seed: of the resamples.

    Returns:
        The shares.
    """
    rng, sources = np.random.default_rng(seed), [_Source(model) for model in models]
    asked = Counter(model.task for model in models)
    several = {task for task, times in asked.items() if task and times > 1}
    labels: Counter[str] = Counter()
    again: list[list[Site]] = [[] for _ in sources]
    for _ in range(RESAMPLES):
        which, common = rng.integers(len(sources), size=len(sources)), dict[Shared, np.ndarray]()
        drawn = [sources[i].drawn(rng, common if sources[i].model.task in several else None) for i in which]
        labels[labelled(drawn)] += 1
        for i, one in zip(which, drawn, strict=True):
            again[i].append(one.site)
    same = [
        float(np.mean([site == source.read for site in found]))
        for source, found in zip(sources, again, strict=True)
        if source.sites and found
    ]
    here, rival = _beside(sources[0], again[0])
    others = {name: count / RESAMPLES for name, count in labels.most_common() if name != label}
    return Stability(label, labels[label] / RESAMPLES, others, float(np.mean(same)) if same else np.nan, here, rival)


def _beside(source: _Source, found: Sequence[Site]) -> tuple[Rival, Rival | None]:
    """The site named and its best rival."""
    rows = source.model.ladder[source.model.ladder["control"] == ""]
    moved = rows[rows["metric"] == "recovered"].drop_duplicates(["site", "role"]).set_index(["site", "role"])
    scores = rows[(rows["metric"] == "score") & (rows["split"] == "ood") & (rows["composition"] == "all")]
    own = float(scores[scores["rung"] == "own answer"]["value"].iloc[0])
    written = (
        scores[scores["rung"] == "true code written"].drop_duplicates(["site", "role"]).set_index(["site", "role"])["value"]
    )

    def about(site: Site) -> Rival:
        layer = moved["layer"].get(site, np.nan)
        share = float(np.mean([one == site for one in found])) if source.sites and found else np.nan
        wins = float(written.get(site, np.nan)) - own
        return Rival(named_site(site[0], layer, site[1]), float(moved["value"].get(site, np.nan)), wins, share)

    others = moved["value"].drop(source.read, errors="ignore").dropna()
    return about(source.read), None if others.empty else about(_site(others.idxmax()))


# ---- drawing compositions ----------------------------------------------------------------------------------------------
Site = tuple[str, str]
"""Hook point and role."""


def _site(key: Any) -> Site:
    """The two words of an index."""
    first, second = key
    return str(first), str(second)


@dataclass(frozen=True, eq=False)
class _Rows:
    """Numbers by composition: where these stand among the split's, (n,), and values and weights, (n,)."""

    at: np.ndarray
    value: np.ndarray
    weight: np.ndarray

    def some(self, which: list[int]) -> _Rows:
        at, value, weight = (every[np.array(which, dtype=int)] for every in (self.at, self.value, self.weight))
        return _Rows(at, value, weight)

    def pooled(self, counts: np.ndarray) -> float:
        return weighted_mean(self.value, self.weight * counts[self.at])

    def shifted(self, whole: float, counts: np.ndarray) -> float:
        """The whole's number, moved as the mean over compositions moves; itself where none of these was drawn."""
        weight = self.weight * counts[self.at]
        total = weight.sum()
        return whole + float((self.value * weight).sum() / total) - self._once if total > 0 else whole

    @cached_property
    def _once(self) -> float:
        """The mean where every composition counts once."""
        return weighted_mean(self.value, self.weight)


class _Source:
    """A model's tables as arrays by composition."""

    def __init__(self, model: Measured) -> None:
        self.model = model
        frames = {"scores": model.scores[model.scores["control"] == ""], "ladder": model.ladder, "prior": model.prior}
        few = {name: one[[column for column in one if column in NEEDED]] for name, one in frames.items()}
        alone = {name: one[one["composition"] != "all"] if len(one) else one for name, one in few.items()}
        self.names = {
            split: {c: i for i, c in enumerate(sorted({c for one in alone.values() if len(one) for c in _on(one, split)}))}
            for split in SPLITS
        }
        self.whole = model.frame()
        self.scores = {split: self._rows(split, _of(alone["scores"], split)) for split in ("test", "ood")}
        self.ladder = {split: self._at(split, model.rungs(split).names) for split in ("test", "ood")}
        self.read, self.unsure = model.site, model.moved - model.surely_moved
        moved, gate = few["ladder"], alone["ladder"]
        moved = moved[(moved["metric"] == BY_COMPOSITION) & (moved["control"] == "")]
        self.sites = self._by(("site", "role"), "train", moved)
        gate = gate[(gate["metric"] == LEFT_OUT) & (gate["control"] == "")]
        self.gate = self._by(("site", "role"), "train", gate)
        self.far = {split: self._distances(alone["prior"], split) for split in ("test", "ood")}
        self.near = {split: model.distances(split) for split in ("test", "ood")}
        self.errors = {split: model.errors_of_learners(split) for split in ("test", "ood")}
        # an angle needs all three sides of the triangle, drawn alike
        self.by_composition = {split: all((who, "truth") in self.far[split] for who in self.errors[split])
                               for split in ("test", "ood")}  # fmt: skip
        self.told, self.left_out, self.among = (
            model.parts_told(READABLE), model.read_when_left_out, model.among_training_states,
        )  # fmt: skip

    def _at(self, split: str, names: Sequence[str]) -> np.ndarray:
        return np.array([self.names[split][name] for name in names], dtype=int)

    def _rows(self, split: str, rows: pd.DataFrame) -> _Rows:
        rows = rows[rows["value"].notna()]
        weight = rows["weight"].to_numpy(float) if "weight" in rows else rows["n"].to_numpy(float)
        return _Rows(self._at(split, rows["composition"].tolist()), rows["value"].to_numpy(float), weight)

    def _by(self, keys: tuple[str, str], split: str, rows: pd.DataFrame) -> dict[tuple[str, str], _Rows]:
        """The rows by two columns, in the order of their words."""
        pairs = [_site(pair) for pair in zip(*(rows[key].tolist() for key in keys), strict=True)]
        found: dict[tuple[str, str], list[int]] = {pair: [] for pair in sorted(set(pairs))}
        known = self._rows(split, rows)
        for i, row in enumerate(np.flatnonzero(rows["value"].notna())):
            found[pairs[row]].append(i)
        return {pair: known.some(here) for pair, here in found.items()}

    def _distances(self, prior: pd.DataFrame, split: str) -> dict[tuple[str, str], _Rows]:
        """(learner, reference) -> their squared distance by composition, where that was written down."""
        if prior.empty:
            return {}
        rows = prior[(prior["metric"] == "distance") & (prior["split"] == split) & prior["control"].isin(["", "reference"])]
        rows = rows[(rows["control"] == "") | (rows["reference"] == "truth")]
        return self._by(("learner", "reference"), split, rows)

    def drawn(self, rng: np.random.Generator, common: dict[Shared, np.ndarray] | None = None) -> _Drawn:
        """The same tables, with compositions drawn anew, but for those that are drawn in `common`, which takes them up."""
        counts, common = {}, {} if common is None else common
        for split, names in self.names.items():
            n, key = max(len(names), 1), (self.model.task, (split, *names))
            if key not in common:
                common[key] = rng.multinomial(n, np.full(n, 1 / n)).astype(float)
            counts[split] = common[key]
        m = self.model
        return _Drawn(m.scores, m.ladder, m.prior, m.structure, m.forms, m.editor, m.task, self, counts)


def _of(rows: pd.DataFrame, split: str) -> pd.DataFrame:
    return rows[rows["split"] == split]


def _on(rows: pd.DataFrame, split: str) -> set[str]:
    return set(_of(rows, split)["composition"].dropna().astype(str))


@dataclass(frozen=True, eq=False)
class _Drawn(Measured):
    """A model's tables with some compositions counted more than once, and some not at all."""

    source: _Source | None = None
    counts: dict[str, np.ndarray] | None = None

    @property
    def _of(self) -> tuple[_Source, dict[str, np.ndarray]]:
        assert self.source is not None and self.counts is not None
        return self.source, self.counts

    def rungs(self, split: str) -> Rungs:
        source, counts = self._of
        known = source.model.rungs(split)
        times = counts[split][source.ladder[split]]
        if not (known.scores["own answer"][1] * times).sum() > 0:
            return known
        return known._replace(scores={rung: (score, weight * times) for rung, (score, weight) in known.scores.items()})

    @cached_property
    def moved(self) -> float:  # type: ignore[override]
        source, counts = self._of
        rows = source.gate or ({} if source.model.asked_without else source.sites)
        return max((one.pooled(counts["train"]) for one in rows.values()), default=source.model.moved)

    @property
    def surely_moved(self) -> float:  # type: ignore[override]
        return self.moved - self._of[0].unsure

    def moved_by(self, metric: str) -> float:
        return self._of[0].model.moved_by(metric)

    @property
    def told(self) -> tuple[Told, ...]:  # type: ignore[override]
        return self._of[0].model.told

    @property
    def named(self) -> tuple[Named, ...]:  # type: ignore[override]
        return self._of[0].model.named

    @property
    def site(self) -> Site:
        """Where writing another code moves the answers most; the site named, where there are no rows by composition."""
        source, counts = self._of
        return max(source.sites, key=lambda site: source.sites[site].pooled(counts["train"]), default=source.read)

    def frame(self) -> dict[str, float]:
        source, counts = self._of
        own = {split: source.scores[split].shifted(source.whole[split], counts[split]) for split in ("test", "ood")}
        return source.whole | own

    def per_composition(self) -> dict[str, np.ndarray]:
        source, counts = self._of
        rows = source.scores["ood"]
        weight = rows.weight * counts["ood"][rows.at]
        if not weight.sum() > 0:
            return source.model.per_composition()
        kept = np.repeat(np.arange(len(rows.at)), counts["ood"][rows.at].astype(int))
        return {"composition": kept, "value": rows.value[kept], "weight": rows.weight[kept]}

    def distances(self, split: str) -> dict[str, float]:
        return self._again(split, self._of[0].near[split], lambda reference: ("model", reference))

    def errors_of_learners(self, split: str) -> dict[str, float]:
        return self._again(split, self._of[0].errors[split], lambda learner: (learner, "truth"))

    def _again(self, split: str, whole: dict[str, float], pair: Callable[[str], tuple[str, str]]) -> dict[str, float]:
        source, counts = self._of
        if not source.by_composition[split]:
            return whole
        far = source.far[split]
        return {
            name: far[pair(name)].shifted(value, counts[split]) if pair(name) in far else value
            for name, value in whole.items()
        }

    @property
    def errors_foreseen(self) -> Foreseen:  # type: ignore[override]
        return self._of[0].model.errors_foreseen

    def parts_told(self, readable: float) -> tuple[float, str]:
        source, _ = self._of
        return source.told if readable == READABLE else source.model.parts_told(readable)

    @property
    def read_when_left_out(self) -> float:
        return self._of[0].left_out

    @property
    def among_training_states(self) -> float:
        return self._of[0].among
