"""Would it answer held-out compositions if its code were right, or does it fail to execute what it is given?"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from compolens import tables
from compolens.activations.sites import Site, sites
from compolens.activations.streams import Activations, draw, record
from compolens.foundation.configs import DoesNotApply, require
from compolens.hooks import HookedModel
from compolens.interventions.oracles import (
    CodeAt,
    Search,
    best_code,
    code_features,
    fit_codes,
    fit_without,
    readings,
    recovered,
    recovered_without,
    written,
)
from compolens.measures.capacity import fold_by_composition
from compolens.measures.intervals import summarise
from compolens.tasks.base import TaskFamily
from compolens.tasks.episodes import Episodes
from compolens.zoo.folders import TrainedModel

version = 6  # raised whenever its numbers change
# version 2 changed intervals, 3 added the best code of S-RAVEN, 4 "recovered by composition", 5 "recovered, left out", whose
# interval is over the compositions that are written since 6
values_since = 1  # its values

NEARLY = 0.8
"""Places where writing another code moves the answers by at least this share of the most that it does anywhere."""
AS_WELL = 0.05
"""Places whose readout's R² on left-out training compositions is within this of the best: each may know the code."""

BY_COMPOSITION = "recovered by composition"
"""What the diagnosis draws compositions from, to see whether the same site would be found again."""
LEFT_OUT = "recovered, left out"
"""By it the diagnosis sees whether a writer writes codes that it was not fitted to."""
STILL = 0.02
"""Where writing another code moves the answers less than this share of the way, no code is searched for, and no writer is
fitted again: nothing reads it."""


def probe(
    trained: TrainedModel,
    *,
    episodes: int = 512,
    fitted: int = 1024,
    searched: int = 64,
    search_steps: int = 60,
    seed: int = 0,
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Scores along a ladder of interventions on the code, at the sites where the model reads it.

    Rungs (column `rung`), on the same questions: "own answer"; "own code written", where what a linear readout finds of the
    code is written at the site; "true code written", the episode's own code; "best code", a code that is searched for through
    the frozen rest of the model, fitted to the context's examples alone and scored on fresh questions ("not
    available" where writing another code moves the answers less than 0.02 of the way). Steps up the ladder are
    the loss to use, to inference, and to the form of codes; what is missing at the top is lost to execution. Whether the right
    latent code helps is asked as in 2405.19162; codes are written by erasing first what is there (2306.03819).

    Args:
        trained: the trained model, with its run, task and folder.
        episodes: episodes per split, 2 or more, for all rungs but the last.
        fitted: training episodes for readouts and writers, and held-out ones for the readouts of held-out compositions, which
            are fitted without the one that they read (those of training compositions are fitted to all); 16 or more.
        searched: episodes per split for the search, 1 or more; few, since each is searched for step by step.
        search_steps: Adam steps of the search, 1 or more.
        seed: seed of the episodes, which are never those of a training, even with an equal seed.

    Returns:
        The table, and rows per episode (score of the own answer, and with the true code). Column `chosen` 1: the site where
        writing another code moves the answers of training compositions most; `effective` 1: sites where it moves them at least
        0.8 times as much. `code_width` and `n_fitted`: free numbers of a code, and values that it was fitted to; `parts`: the
        factors of the row's composition. lo, hi: 95 % over compositions.

        - "score": of a rung, pooled and per composition; "true code written" has rows for every site.
        - "recovered": share of the way that answers move to another code's when that code is written (1: all of it, 0: none).
        - "recovered by composition": the same on one composition, which counts in the whole with `weight`.
        - "recovered, left out": the same with writers that were fitted without the composition whose code is written, pooled
          and by that composition, at the effective sites (where "recovered" is 0.02 or more).
        - "left-out R²": of the readout on training compositions that were left out.
        - "r2": on the scored split, a row for each of the readouts that read training compositions about equally well; the
          best of these is used.
        - control "another code": another episode's code is written.
        - control "untrained": everything in the untrained control, at the same sites, its search included.

    Raises:
        DoesNotApply: the family cannot show the same inputs under another code.
        ConfigError: episodes is below 2, fitted below 16, or searched or search_steps below 1.
    """
    task = trained.task
    if task.why_no_render:
        raise DoesNotApply(f"no answers are known under other codes; {type(task).__name__}: {task.why_no_render}")
    require(episodes >= 2, f"need at least 2 episodes, got {episodes}; type --episodes 512")
    require(fitted >= 16, f"need at least 16 training episodes to fit to, got {fitted}; type --fitted 1024")
    require(searched >= 1, f"need at least 1 episode to search codes for, got {searched}; type --searched 64")
    search = Search(search_steps)
    code_features(task, next(draw(task, "train", 1, seed)).codes)
    rows: list[dict] = []
    kept, given = [], None  # the untrained control is looked at where the model is
    for control, model in trained.with_untrained_control():
        ladder = _Ladder(task, model, control, seed, trained.device)
        found = ladder.fit(fitted, given)
        given = given or found
        for split in ("test", "ood"):
            seen = ladder.climb(split, episodes, found)
            kept += [seen] if control == "" else []
            ladder.search(split, searched, found, search)
        rows += ladder.rows
    alone = ("left-out R²", BY_COMPOSITION, LEFT_OUT)  # no rows of the untrained control
    own = (row for row in rows if row["control"] in ("", "another code") and row["metric"] not in alone)
    rows += tables.not_available(own, trained.why_no_untrained_control)
    return pd.DataFrame(rows), pd.concat(kept, ignore_index=True)


SAME_CODE = "all of these episodes have the same code"


class _Found(NamedTuple):
    """Where the code is read most; all sites where it is read nearly as much; where it is decoded best, or nearly so; and how
    far another code, written at the first, moves the answers of the model (not of its control)."""

    read: CodeAt
    effective: tuple[CodeAt, ...]
    sources: tuple[CodeAt, ...]
    moves: float


class _Ladder:
    """One model's ladder: readouts and writers at every site, the site where the code is read, the scores of all rungs."""

    def __init__(self, task: TaskFamily, model: HookedModel, control: str, seed: int, device: torch.device) -> None:
        self.task, self.model, self.control, self.seed, self.device = task, model, control, seed, device
        self.rows: list[dict] = []
        self.parts: dict[int, str] = {}

    def fit(self, n: int, given: _Found | None = None) -> _Found:
        """Readouts and writers at every site; what is found of them on training compositions, or at the sites given."""
        self.n_fitted = n
        where, moved = sites(self.model), []
        hook_names = list(dict.fromkeys(site.hook_name for site in where))
        drawn = {name: draw(self.task, "train", size, f"{self.seed}/{name}", self.device)
                 for name, size in (("fit", n), ("choose", max(n // 2, 2)))}  # fmt: skip
        batches, pairs = (list(record(self.model, some, hook_names)) for some in drawn.values())
        self.codes = fit_codes(self.model, self.task, batches, where)
        for at in self.codes:
            pooled = recovered(self.model, self.task, at, pairs)
            self._row("recovered", "another code written", "train", at.site, pooled.score, pooled.interval, n // 2)
            for c, (share, weight, some) in pooled.per_composition.items() if not self.control else ():
                more: dict[str, Any] = {"composition": self.task.composition_name(c), "weight": weight}
                self._row(BY_COMPOSITION, "another code written", "train", at.site, share, n=some, **more)
            moved.append(pooled.score)
            if not self.control:
                self._row("left-out R²", "decoded", "train", at.site, at.left_out, n=n)
        if given is not None:
            known = {at.site: at for at in self.codes}
            effective, sources = (tuple(known[at.site] for at in part) for part in (given.effective, given.sources))
            return _Found(known[given.read.site], effective, sources, given.moves)
        most = [at for at, value in zip(self.codes, moved, strict=True) if value >= NEARLY * max(moved) or value == max(moved)]
        if max(moved) >= STILL:
            self._leave_out(batches, pairs, most)
        best = [at for at in self.codes if at.left_out >= max(other.left_out for other in self.codes) - AS_WELL]
        return _Found(self.codes[int(np.argmax(moved))], tuple(most), tuple(best), max(moved))

    def _leave_out(self, batches: list[Activations], pairs: list[Activations], codes: Sequence[CodeAt]) -> None:
        """Whether codes are written that the writer was not fitted to: rows `LEFT_OUT`."""
        composition = torch.cat([one.episodes.composition for one in batches])
        fold_of = fold_by_composition(composition)
        for at, without in zip(codes, fit_without(self.model, self.task, batches, codes, fold_of), strict=True):
            pooled = recovered_without(self.model, self.task, without, fold_of, pairs)
            rung, n = "another code written", self.n_fitted // 2
            self._row(LEFT_OUT, rung, "train", at.site, pooled.score, pooled.interval, n)
            for c, (share, weight, some) in pooled.per_composition.items():
                more: dict[str, Any] = {"composition": self.task.composition_name(c), "weight": weight}
                self._row(LEFT_OUT, rung, "train", at.site, share, n=some, **more)

    def _row(
        self,
        metric: str,
        rung: str,
        split: str,
        site: Site,
        value: float,
        interval: tuple[float, float] = (np.nan, np.nan),
        n: int = 0,
        **more: Any,
    ) -> None:
        where: dict[str, Any] = {"split": split, "site": site.hook_name, "role": site.role, "control": self.control, "n": n}
        row = tables.row(metric, value, lo=interval[0], hi=interval[1], **where, layer=site.layer, rung=rung)
        self.rows.append(row | {"composition": "all", "chosen": 0, "effective": 0} | more)

    def climb(self, split: str, n: int, found: _Found) -> pd.DataFrame:
        """Every rung but the search; returns per-episode rows of the model's own answer and of that with the true code."""
        hook_names = list(dict.fromkeys(at.site.hook_name for at in self.codes))
        batches = draw(self.task, split, n, f"{self.seed}/score", self.device)
        seen = list(record(self.model, batches, hook_names))
        true = [code_features(self.task, one.episodes.codes) for one in seen]
        for one in seen:
            named = map(" · ".join, self.task.parts(one.episodes.codes))
            self.parts |= dict(zip(one.episodes.composition.tolist(), named, strict=True))
        others = draw(self.task, split, self.n_fitted, f"{self.seed}/fit", self.device) if split == "ood" else ()
        own = self._decoded(split, seen, true, found.sources, others)
        other = [code.roll(1, 0) for code in true]
        untouched = self._written("own answer", split, found.read, seen, None, chosen=1)
        given = untouched
        for at in self.codes:
            how: dict[str, Any] = {"chosen": int(at is found.read), "effective": int(at in found.effective)}
            errors = self._written("true code written", split, at, seen, true, **how)
            given = errors if at is found.read else given
            if at in found.effective:
                self._written("own code written", split, at, seen, own, **how)
        if bool((torch.cat(true) == true[0][:1]).all()):
            name = ", ".join(filter(None, (self.control, "another code")))
            told: dict[str, Any] = {"control": name, "note": f"not available: {SAME_CODE}", "chosen": 1}
            self._row("score", "true code written", split, found.read.site, np.nan, **told)
        else:
            self._written("true code written", split, found.read, seen, other, "another code", chosen=1)
        names = [self.task.composition_name(int(c)) for c in untouched[2]]
        scores = {name: 1 - error / weight for name, (error, weight, _) in {"score": untouched, "true_code": given}.items()}
        return pd.DataFrame({"split": split, "composition": names, **scores})

    def _decoded(
        self, split: str, seen: list[Activations], true: list[Tensor], sources: Sequence[CodeAt], others: Iterable[Episodes]
    ) -> list[Tensor]:
        """The code as read at the best of the sources: is it known anywhere?"""
        best, least, whole = [], np.inf, torch.cat(true)
        spread = float((whole - whole.mean(0)).square().sum())
        for at, codes in zip(sources, readings(self.model, self.task, sources, seen, others), strict=True):
            error = float((torch.cat(codes) - whole).square().sum())
            note: dict[str, Any] = {} if spread > 0 else {"note": f"not available: {SAME_CODE}"}
            self._row("r2", "decoded", split, at.site, 1 - error / spread if spread > 0 else np.nan, n=len(whole), **note)
            if error < least:
                best, least = codes, error
        return best

    def _errors(self, at: CodeAt, one: Activations, code: Tensor | None) -> np.ndarray:
        """(3, n): error, weight and composition of one batch with a code written, or untouched."""
        answer = one.prediction if code is None else written(self.model, one.episodes, at, code, one.sites[at.site.hook_name])
        found = torch.stack([*self.task.errors(answer, one.episodes.targets), one.episodes.composition.double()])
        return found.cpu().numpy()

    def _written(
        self,
        rung: str,
        split: str,
        at: CodeAt,
        seen: list[Activations],
        codes: list[Tensor] | None,
        control: str = "",
        **more: Any,
    ) -> np.ndarray:
        parts = [self._errors(at, one, None if codes is None else codes[i]) for i, one in enumerate(seen)]
        errors = np.concatenate(parts, axis=1)
        name = ", ".join(filter(None, (self.control, control)))
        error, weight, composition = errors
        self._scores(rung, split, at.site, error, weight, composition, control=name, **more)
        return errors

    def search(self, split: str, n: int, found: _Found, search: Search) -> None:
        """The rung "best code", and the own answers to the same questions; a row that says why where there is none."""
        read, source, parts = found.read, found.sources[0], []
        try:
            if (moved := found.moves) < STILL:
                raise DoesNotApply(f"writing another code moves the answers {moved:.3f} of the way, so none is searched for")
            for batch in draw(self.task, split, n, f"{self.seed}/search", self.device, batch=min(n, 64)):
                (seen,) = record(self.model, [batch], [source.site.hook_name])
                starts = self._starts(batch, source.decode(self.model, seen.sites[source.site.hook_name]))
                best = best_code(self.model, self.task, batch, read, starts, search)
                scored = [*self.task.errors(best.prediction, batch.targets), batch.composition.double()]
                parts.append(torch.stack([*scored, *self.task.errors(seen.prediction, batch.targets)]).cpu().numpy())
        except DoesNotApply as why:
            self._row(
                "score",
                "best code",
                split,
                read.site,
                np.nan,
                control="not available",
                note=f"not available: {why}",
                chosen=1,
            )
            return
        error, weight, composition, own_error, own_weight = np.concatenate(parts, axis=1)
        more: dict[str, Any] = {"code_width": best.width, "n_fitted": best.fitted}
        self._scores("best code", split, read.site, error, weight, composition, chosen=1, **more)
        self._scores("own answer, searched", split, read.site, own_error, own_weight, composition, chosen=1)

    def _starts(self, batch: Episodes, decoded: Tensor) -> list[Tensor]:
        """Codes to search from: what is read from the model, codes of other episodes, and their mean."""
        n = len(batch.tokens)
        others = next(draw(self.task, "train", n, f"{self.seed}/start", self.device, batch=n))
        code = code_features(self.task, others.codes)
        return [decoded, code, code.mean(0).expand_as(code)]

    def _scores(
        self,
        rung: str,
        split: str,
        site: Site,
        error: np.ndarray,
        weight: np.ndarray,
        composition: np.ndarray,
        **more: Any,
    ) -> None:
        """The pooled row, and at the chosen site one per composition."""
        pooled = summarise(error, weight, composition)
        self._row("score", rung, split, site, pooled.score, pooled.interval, len(error), weight=weight.sum(), **more)
        if more.get("chosen") or more.get("effective"):
            for c, (score, share, n) in pooled.per_composition.items():
                name = self.task.composition_name(c)
                at: dict[str, Any] = {"composition": name, "parts": self.parts.get(c, ""), "weight": share}
                self._row("score", rung, split, site, score, n=n, **at, **more)
