"""Is what is blamed what has to be mended: does a repair there beat the same repair elsewhere?"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from compolens import tables
from compolens.activations.sites import Site, positions, sites
from compolens.activations.streams import draw, record
from compolens.foundation.configs import DoesNotApply, require
from compolens.hooks import HookedModel
from compolens.interventions.oracles import CodeAt, code_features, fit_codes, recovered, written
from compolens.interventions.repairs import (
    Budget,
    fine_tune,
    folds,
    parameters_downstream,
    parameters_upstream,
    random_masks,
    size,
    whole,
)
from compolens.measures.intervals import Scale, summarise
from compolens.tasks.episodes import Episodes
from compolens.zoo.folders import TrainedModel

version = 3  # raised whenever its numbers change

ARRIVES = 0.5
"""A site is on the way to another if another code, written at the first, takes the state at the second at least this share
of the way to what it is with that code written there. The right code, written there, is the same repair by another road."""
OVERLAPS = 0.5
"""A random set of which more than this share are the blamed scalars is no placebo."""


def probe(
    trained: TrainedModel,
    *,
    episodes: int = 512,
    fitted: int = 1024,
    tuning_steps: int = 60,
    batch: int = 64,
    lr: float = 1e-3,
    draws: int = 3,
    seed: int = 0,
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """What two kinds of repair gain at the site where the code is read, each beside placebos.

    "code written" repairs inference: the episode's own code, as factor means of training compositions, is written at the site
    (`Writer`, 2306.03819). "fine-tuned" repairs execution: the parameters downstream of the site are trained on one half of
    the held-out compositions, mixed with as many episodes of training compositions, and scored on the other half (two folds;
    their mean on test). That the right code helps little where execution fails is the case of 2405.19162.

    Args:
        trained: the trained model, with its run, task and folder.
        episodes: scored episodes per split, 1 or more.
        fitted: training episodes for the means, and half as many to choose the site, as in `inference_or_execution`.
        tuning_steps: Adam steps of a fine-tuning, equal for all parameter sets; few, since a repair is no new training.
        batch: episodes per step.
        lr: learning rate of Adam, above 0; the default is Adam's usual one.
        draws: random sets of parameters as placebos, 0 or more.
        seed: seed of the episodes, which are never those of a training, even with an equal seed.

    Returns:
        The table, and rows per episode (score as is and after each repair). Column `repair` is "none", "code written" or
        "fine-tuned"; `where` is "blamed" or a placebo; `free` counts the scalars that were trained. lo, hi: 95 % over
        compositions.

        - "score": after the repair, as the family scores.
        - "gain": score minus that of the model as it is, on the same episodes.
        - "beats placebos": gain minus that of the split's best placebo (column `placebo`), which is then held fixed.
        - control "placebo" of "code written": the same at every other site ("elsewhere"), another episode's code ("another
          code"), means fitted to shuffled codes ("shuffled fit").
        - control "placebo" of "fine-tuned": the parameters upstream, and random sets of as many scalars ("random 0", …), of
          those upstream as far as there are enough; `overlap` is the share of a set that are blamed scalars.
        - control "on the way": sites from which a code that is written arrives at the blamed one, or the other way round
          (`ARRIVES`); "overlapping": sites that share hook point and positions with it, and random sets of which most are
          blamed scalars. They are no placebos.
        - control "untrained": both repairs of the untrained control, at the same site.

    Raises:
        DoesNotApply: the family cannot show the same inputs under another code.
        ConfigError: draws is below 0.
    """
    task = trained.task
    if task.why_no_render:
        raise DoesNotApply(f"no answers are known under other codes; {type(task).__name__}: {task.why_no_render}")
    code_features(task, next(draw(task, "train", 1, seed)).codes)
    budget = Budget(tuning_steps, batch, lr)
    require(draws >= 0, f"draws counts random sets of scalars, so it must be 0 or more, got {draws}")
    rows: list[dict] = []
    frame, site = pd.DataFrame(), None  # the untrained control is repaired where the model is
    for control, model in trained.with_untrained_control():
        repairs = _Repairs(trained, model, control, episodes, seed)
        site = repairs.write(fitted, site).site
        repairs.train(site, budget, draws)
        rows += repairs.rows()
        frame = repairs.frame() if control == "" else frame
    pooled = (row for row in rows if row["control"] == "" and row["composition"] == "all")
    own = (row for row in pooled if row["metric"] != "beats placebos")
    return pd.DataFrame(rows + tables.not_available(own, trained.why_no_untrained_control)), frame


def _answers_of(model: HookedModel) -> Callable[[Episodes], Tensor]:
    return lambda batch: model(batch.tokens)


class _Trial(NamedTuple):
    """One repair: what and where; control as in the table; how many scalars were trained, and the share of them that are
    blamed; split -> error per episode."""

    repair: str
    where: str
    control: str
    site: Site
    errors: dict[str, np.ndarray]
    free: int = 0
    overlap: float = np.nan

    @property
    def name(self) -> str:
        """Where the repair is, in words; a site elsewhere by its hook point and role."""
        return f"{self.where}: {self.site.hook_name}, {self.site.role}" if self.where in _SITES else self.where


_SITES = ("elsewhere", "on the way", "overlapping")
"""Where several sites are."""


class _Repairs:
    """One model's repairs, all on the same episodes."""

    def __init__(self, trained: TrainedModel, model: HookedModel, control: str, n: int, seed: int) -> None:
        self.task, self.model, self.control, self.seed, self.device = trained.task, model, control, seed, trained.device
        self.shown = {s: list(draw(self.task, s, n, f"{seed}/score", self.device)) for s in ("test", "ood")}
        self.composition = {s: torch.cat([b.composition for b in shown]).cpu().numpy() for s, shown in self.shown.items()}
        found = self._scored(lambda batch: model(batch.tokens))
        self.own, self.weight = ({split: both[i] for split, both in found.items()} for i in (0, 1))
        self.trials: list[_Trial] = []
        self.why_not = ""

    @torch.no_grad()
    def _scored(self, answer: Callable[[Episodes], torch.Tensor]) -> dict[str, np.ndarray]:
        """split -> (error, weight) per episode (2, n) of what `answer` makes of the episodes."""
        found = {
            split: [torch.stack(self.task.errors(answer(batch), batch.targets)) for batch in shown]
            for split, shown in self.shown.items()
        }
        return {split: torch.cat(parts, dim=1).cpu().numpy() for split, parts in found.items()}

    def _errors(self, answer: Callable[[Episodes], torch.Tensor]) -> dict[str, np.ndarray]:
        return {split: both[0] for split, both in self._scored(answer).items()}

    def _add(
        self, repair: str, where: str, site: Site, errors: dict[str, np.ndarray], free: int = 0, overlap: float = np.nan
    ) -> None:
        control = {"blamed": "", "nowhere": ""}.get(where, where if where in _SITES[1:] else "placebo")
        if overlap > OVERLAPS:
            control = "overlapping"
        self.trials.append(_Trial(repair, where, self.control or control, site, errors, free, overlap))

    # ---- inference -------------------------------------------------------------------------------------------------------
    def write(self, n: int, site: Site | None = None) -> CodeAt:
        """The true code written at every site, or at the given one alone; returns how the code stands where it is read."""
        batches = list(draw(self.task, "train", n, f"{self.seed}/fit", self.device))
        codes = fit_codes(self.model, self.task, batches, sites(self.model) if site is None else [site])
        read = codes[0] if site is not None else self._most_recovered(codes, n // 2)
        self._add("none", "nowhere", read.site, self.own)
        for at in codes:
            where = "blamed" if at is read else self._beside(at, read)
            self._add("code written", where, at.site, self._errors(self._writes(at)))
        if site is None:
            self._add("code written", "another code", read.site, self._errors(lambda b: self._written(b, read, 1)))
            (noise,) = fit_codes(self.model, self.task, self._shuffled(batches), [read.site])
            self._add("code written", "shuffled fit", read.site, self._errors(lambda b: self._written(b, noise)))
        return read

    def _most_recovered(self, codes: list[CodeAt], n: int) -> CodeAt:
        hook_names = list(dict.fromkeys(at.site.hook_name for at in codes))
        seen = list(record(self.model, draw(self.task, "train", n, f"{self.seed}/choose", self.device), hook_names))
        return max(codes, key=lambda at: recovered(self.model, self.task, at, seen).score)

    def _beside(self, at: CodeAt, read: CodeAt) -> str:
        """What a site is to the one where the code is read."""
        if self._overlap(at.site, read.site):
            return "overlapping"
        return "on the way" if max(self._arrives(at, read), self._arrives(read, at)) >= ARRIVES else "elsewhere"

    @torch.no_grad()
    def _arrives(self, at: CodeAt, there: CodeAt) -> float:
        """How far another episode's code, written at one site, takes the state at another to what it is with that code written
        there: of the squared distance, on training compositions, what is gone."""
        left, before, name, caught = 0.0, 0.0, there.site.hook_name, dict[str, Tensor]()
        for seen in record(self.model, self.shown["test"], [name]):
            own, code = seen.sites[name], code_features(self.task, seen.episodes.codes).roll(1, 0)
            goal = there.mean(self.model, there.write(self.model, own, code))
            caught["state"] = own  # and it stays so where nothing is computed there again
            with self.model.hooks(fwd_hooks=[(name, lambda tensor, hook: caught.update(state=tensor.detach()))]):
                written(self.model, seen.episodes, at, code)
            before += float((there.mean(self.model, own) - goal).square().sum())
            left += float((there.mean(self.model, caught["state"]) - goal).square().sum())
        return 1 - left / before if before > 0 else 0.0

    def _overlap(self, one: Site, other: Site) -> bool:
        if one.hook_name != other.hook_name or "all" in (one.role, other.role):
            return one.hook_name == other.hook_name
        first, second = positions(self.model, one.role), positions(self.model, other.role)
        return bool(set(first) & set(second))  # type: ignore[arg-type]  # lists, since neither role is "all"

    def _writes(self, at: CodeAt) -> Callable[[Episodes], Tensor]:
        return lambda batch: self._written(batch, at)

    def _written(self, batch: Episodes, at: CodeAt, by: int = 0) -> torch.Tensor:
        return written(self.model, batch, at, code_features(self.task, batch.codes).roll(by, 0))

    def _shuffled(self, batches: list[Episodes]) -> list[Episodes]:
        """The same episodes, each with the code of a random one of its batch."""
        found = []
        for step, batch in enumerate(batches):
            order = torch.randperm(len(batch.tokens), generator=self.task.rng(f"shuffle/{self.seed}", "train", step))
            found.append(batch._replace(codes={name: code[order] for name, code in batch.codes.items()}))
        return found

    # ---- execution -------------------------------------------------------------------------------------------------------
    def train(self, site: Site, budget: Budget, draws: int) -> None:
        """The parameters downstream of the site fine-tuned; unless this is the untrained control, those upstream and random
        ones too."""
        try:
            parts = folds(self.task, self.seed)
        except DoesNotApply as error:
            self.why_not = str(error)
            return
        after = parameters_downstream(self.model, self.shown["test"][0], site)
        before = parameters_upstream(self.model, self.shown["test"][0], site)
        sets = {"blamed": whole(self.model, after)}
        upstream, blamed = whole(self.model, before), size(sets["blamed"])
        if before and not self.control:
            sets["upstream"] = upstream
        shared = max(blamed - size(upstream), 0)  # so many scalars of the blamed ones a random set needs
        for k in range(0 if self.control else draws):
            rng = self.task.rng(f"masks/{self.seed}", "train", k)
            sets[f"random {k}"] = (
                random_masks(self.model, before, blamed, rng)
                if not shared
                else upstream | random_masks(self.model, after, shared, rng)
            )
        for where, masks in sets.items():
            overlap = shared / blamed if where.startswith("random") else np.nan
            self._add("fine-tuned", where, site, self._cross_fitted(masks, parts, budget), size(masks), overlap)

    def _cross_fitted(self, masks: dict[str, Tensor], parts: Sequence[Sequence[int]], budget: Budget) -> dict[str, np.ndarray]:
        """Errors on each half of the held-out compositions by the model trained on the other; on test the mean of both."""
        errors = []
        for part in parts:
            repaired = fine_tune(self.model, self.task, masks, part, budget, self.seed)
            errors.append(self._errors(_answers_of(repaired)))
        unseen = np.where(np.isin(self.composition["ood"], parts[0]), errors[1]["ood"], errors[0]["ood"])
        return {"test": (errors[0]["test"] + errors[1]["test"]) / 2, "ood": unseen}

    # ---- the table -------------------------------------------------------------------------------------------------------
    def rows(self) -> list[dict]:
        """Scores, gains and what is gained beyond the best placebo, all pooled and resampled as a score is."""
        rows, none = [], self.trials[0]
        for split, weight in self.weight.items():
            for trial in self.trials:
                rows += self._rows("score", split, trial, trial.errors[split])
                if trial is not none:
                    rows += self._rows("gain", split, trial, weight - (none.errors[split] - trial.errors[split]))
            for best, blamed in self._best(split):
                lost = weight - (best.errors[split] - blamed.errors[split])
                rows += self._rows("beats placebos", split, blamed, lost, placebo=best.name)
            if self.why_not:
                missing = {"metric": "gain", "repair": "fine-tuned", "split": split, "control": "placebo", "where": "upstream"}
                at = {"site": none.site.hook_name, "role": none.site.role, "layer": none.site.layer, "composition": "all"}
                rows.append(missing | at | {"n": 0, "note": f"not available: {self.why_not}"})
        return rows

    def _best(self, split: str) -> Iterator[tuple[_Trial, _Trial]]:
        """(best placebo, blamed) of every kind of repair that has both."""
        for repair in ("code written", "fine-tuned"):
            own = [t for t in self.trials if t.repair == repair and t.control == ""]
            placebos = [t for t in self.trials if t.repair == repair and t.control == "placebo"]
            if own and placebos:
                yield min(placebos, key=lambda t: t.errors[split].sum()), own[0]

    def _rows(self, metric: str, split: str, trial: _Trial, lost: np.ndarray, placebo: str = "") -> list[dict[str, Any]]:
        """The pooled row of 1 - lost / weight; one per composition too for the model as it is, and for what is blamed."""
        pooled, weight = summarise(lost, self.weight[split], self.composition[split]), self.weight[split].sum()
        first: dict[str, Any] = {
            "metric": metric,
            "repair": trial.repair,
            "where": trial.where,
            "split": split,
            "control": trial.control,
        }
        first |= {"site": trial.site.hook_name, "role": trial.site.role, "layer": trial.site.layer, "free": trial.free}
        first |= {"overlap": trial.overlap, "placebo": placebo}
        lo, hi = pooled.interval if metric == "score" else pooled.interval_on(Scale.PLAIN)  # others are differences
        n = len(lost)
        made = [first | {"value": pooled.score, "lo": lo, "hi": hi, "composition": "all", "weight": weight, "n": n}]
        if trial.control == "":
            for c, (value, share, count) in pooled.per_composition.items():
                name = self.task.composition_name(c)
                made.append(first | {"value": value, "composition": name, "weight": share, "n": count})
        return made

    def frame(self) -> pd.DataFrame:
        """Per episode: the score of the model as it is, and after each of the blamed repairs."""
        parts = []
        for split, weight in self.weight.items():
            names = [self.task.composition_name(int(c)) for c in self.composition[split]]
            columns = {t.repair: 1 - t.errors[split] / weight for t in self.trials if t.control == ""}
            named = {
                "score" if repair == "none" else repair.replace(" ", "_").replace("-", "_"): v for repair, v in columns.items()
            }
            parts.append(pd.DataFrame({"split": split, "composition": names} | named))
        return pd.concat(parts, ignore_index=True)
