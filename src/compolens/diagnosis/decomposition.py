"""The loss on held-out compositions in parts, in units of the score, from the table `inference_or_execution`.

    ceiling - score = use + inference + form + execution + unexplained

use: what a model would win if the code that a readout finds in it were put where it reads its code; inference: what the
right code would win beyond that; form: what some other code than the right one would; execution: what no code wins;
unexplained: what may be execution, but is no more than the interventions themselves cost on training compositions, where the
model needs no help.
See `compolens.interventions.oracles` for the ladder. Reads tables only.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd

from compolens.diagnosis.measured import EDITORS, LEFT_OUT, RECOVERED, Measured, Rungs
from compolens.foundation.configs import ConfigError
from compolens.measures.intervals import weighted_mean

PARTS = ("use", "inference", "form", "execution", "unexplained")
IN_WORDS = (
    "Use: regained when the code that a readout finds in the model is written where it reads its code; inference: regained "
    "beyond that by the true code; form: beyond that by another code, found by search; execution: regained by no code; "
    "unexplained: no more than what writing costs on training compositions; not located: no place is known where the code is "
    "read."
)
"""What the parts are, as captions say it."""
DRAWS = 1000
NOTHING = 0.0005
"""A loss below this is none: what would be printed as 0.000."""
NOT_LOCATED = "not located"
"""The one part of a loss that no intervention could split."""
MOVES = 0.5
"""Writing another code must move the answers of training compositions at least this share of the way to that code's; else no
site is known where the model reads its code, its loss is not split, and nothing is blamed. What writes it is fitted without
the composition whose code is written: one that writes only what it was fitted to says nothing of held-out compositions. Either
the lower end of its 95 % interval is there, or what it cannot write is little (`WRITES`)."""
WRITES = 0.75
"""An editor that is above the gate, but not surely, locates the code only if the parts explain this share of the loss: what it
cannot write stays unexplained, or would count as the model's execution."""
BETTER = 0.05
"""Another editor's ladder is taken in a simpler one's stead if it moves answers further by at least this share of the way."""


class Loss(NamedTuple):
    """One part of a loss, in units of the score.

    Args:
        value: the part.
        lo: lower end of its 95 % interval (two-level bootstrap over seeds and compositions); NaN where there is none.
        hi: upper end.
    """

    value: float
    lo: float
    hi: float

    def __str__(self) -> str:
        spread = "" if np.isnan(self.lo) else f" [{self.lo:.3f}, {self.hi:.3f}]"
        return f"{self.value:.3f}{spread}"


def split_loss(top: float, score: dict[str, np.ndarray], cost: np.ndarray) -> dict[str, np.ndarray]:
    """The parts of top - own answer. A rung that was not measured, NaN, is passed over.

    Args:
        top: the ceiling.
        score: rung -> (draws,).
        cost: (draws,) what the interventions lose on training compositions.

    Returns:
        part -> (draws,), in units of the score.
    """
    informed = np.fmax(score["own answer"], score.get("own code written", np.nan))
    right = np.fmax(informed, score.get("true code written", np.nan))
    able = np.fmax(right, score.get("best code", np.nan))
    beyond = np.maximum(top - able, 0.0)
    unexplained = np.minimum(np.maximum(cost, 0.0), beyond)
    return {
        "use": informed - score["own answer"],
        "inference": right - informed,
        "form": able - right,
        "execution": beyond - unexplained,
        "unexplained": unexplained,
    }


Ladders = Sequence[dict[str, Rungs]]
"""Of every model: split -> rungs."""


def by_the_better_editor(models: Sequence[Measured]) -> Sequence[Measured]:
    """The models with the ladder of the linear editor, or of one of `EDITORS` that moves the answers of training compositions
    further by at least `BETTER`, and at least `MOVES`.

    Donors are not among them: of a model that does not infer, they carry its own wrong codes.

    Args:
        models: tables of models that differ in seeds alone.

    Returns:
        The models, all with the same editor's ladder.
    """
    best = models
    for editor in EDITORS:
        others = [other for model in models if (other := model.by(editor)) is not None]
        if len(others) < len(models):
            continue
        metric = LEFT_OUT if all(model.asked_without for model in (*best, *others)) else RECOVERED
        far, before = (min(model.moved_by(metric) for model in some) for some in (others, best))
        if far >= max(MOVES, before + BETTER):
            best = others
    return best


def located(models: Sequence[Measured], top: float) -> bool:
    """Whether a site is known at which each of the models reads its code (`MOVES`, `WRITES`).

    Args:
        models: tables of models that differ in seeds alone.
        top: the ceiling.

    Returns:
        Yes or no.
    """
    if min(model.surely_moved for model in models) >= MOVES:
        return True
    if min(model.moved for model in models) < MOVES:
        return False
    lost = lost_parts(ladders(models), top)
    return lost["unexplained"] <= (1 - WRITES) * sum(lost.values())


def in_parts(models: Sequence[Measured], top: float) -> dict[str, dict[str, Loss]]:
    """`decompose`, where a site is known at which all models read their code; else the whole loss, `NOT_LOCATED`.

    Args:
        models: tables of models that differ in seeds alone.
        top: the ceiling.

    Returns:
        split -> part -> loss; "lost" holds ood minus test.
    """
    return decompose(models, top) if located(models, top) else _whole(models, top)


def decompose(models: Sequence[Measured], top: float) -> dict[str, dict[str, Loss]]:
    """The loss in parts: means over the models, with two-level intervals.

    Args:
        models: tables of models that differ in seeds alone.
        top: the ceiling.

    Returns:
        split -> part -> loss; "lost" holds ood minus test, part by part. Of one composition there is no interval, NaN.
    """
    seeds = ladders(models)
    return _with_intervals(seeds, _measurement(seeds, top))


def ladders(models: Sequence[Measured]) -> Ladders:
    """What `decompose` splits: of each of the `models`, the ladder by split."""
    return [{split: model.rungs(split) for split in ("test", "ood")} for model in models]


def _whole(models: Sequence[Measured], top: float) -> dict[str, dict[str, Loss]]:
    """split -> `NOT_LOCATED` -> the ceiling minus the own answer."""
    seeds = ladders(models)
    return _with_intervals(seeds, _sampled(seeds, top, lambda top, score, cost: {NOT_LOCATED: top - score["own answer"]}))


def _with_intervals(seeds: Ladders, found: dict[str, dict[str, tuple[float, np.ndarray]]]) -> dict[str, dict[str, Loss]]:
    """split -> part -> loss; without an interval where all models were asked the same single composition of a split."""
    one_task = len({rungs.task for seed in seeds for rungs in seed.values()}) == 1
    single = {split for split in ("test", "ood") if one_task and all(len(seed[split].names) == 1 for seed in seeds)}
    ends = {split: [np.nan, np.nan] if split in single or (split == "lost" and single) else [0.025, 0.975] for split in found}
    return {
        split: {
            part: Loss(value, *(float(np.quantile(sampled, q)) if q == q else np.nan for q in ends[split]))
            for part, (value, sampled) in parts.items()
        }
        for split, parts in found.items()
    }


def counts_drawn(n: int, draws: int, rng: np.random.Generator) -> np.ndarray:
    """Compositions drawn with replacement, as many as there are.

    Args:
        n: compositions.
        draws: resamples.
        rng: advanced.

    Returns:
        (draws, n), how often each was drawn.
    """
    return rng.multinomial(n, np.full(n, 1 / n), size=draws).astype(float)


def _measurement(seeds: Ladders, top: float) -> dict[str, dict[str, tuple[float, np.ndarray]]]:
    return _sampled(seeds, top, split_loss)


Splits = Callable[[float, dict[str, np.ndarray], np.ndarray], dict[str, np.ndarray]]
"""What splits a loss: ceiling, rung -> (draws,), cost (draws,) -> part -> (draws,)."""


def _sampled(seeds: Ladders, top: float, splits: Splits) -> dict[str, dict[str, tuple[float, np.ndarray]]]:
    """split -> part -> (loss, (draws,) losses of the bootstrap: seeds drawn, then compositions within each, or for all that
    share them)."""
    every = [_parts(seed, top, splits, {}) for seed in seeds]
    rng = np.random.default_rng(0)
    common = {key: counts_drawn(len(key[1]), DRAWS, rng) for key in shared(seeds)}
    drawn = [_drawn(seeds, top, splits, DRAWS, rng, common) for _ in seeds]
    return {
        split: {
            part: (float(np.mean([own[split][part] for own in every])), np.mean([d[split][part] for d in drawn], axis=0))
            for part in parts
        }
        for split, parts in every[0].items()
    }


def lost_parts(seeds: Ladders, top: float) -> dict[str, float]:
    """What is lost from training to held-out compositions, part by part, without an interval.

    Args:
        seeds: the models' ladders.
        top: the ceiling.

    Returns:
        part -> loss, in units of the score, a mean over the models.
    """
    every = [_parts(seed, top, split_loss, {})["lost"] for seed in seeds]
    return {part: float(np.mean([own[part] for own in every])) for part in every[0]}


Shared = tuple[str, tuple[str, ...]]
"""A task and the names of compositions that several models have."""


def shared(seeds: Ladders) -> list[Shared]:
    """The tasks and compositions that two or more of the models' ladders, `seeds`, have in common."""
    counted = Counter((rungs.task, rungs.names) for seed in seeds for rungs in seed.values() if rungs.task)
    return [key for key, times in counted.items() if times > 1]


def _drawn(
    seeds: Ladders,
    top: float,
    splits: Splits,
    draws: int,
    rng: np.random.Generator,
    common: dict[Shared, np.ndarray],
) -> dict[str, dict[str, np.ndarray]]:
    """The parts of one seed per draw, on compositions drawn with replacement."""
    which = rng.integers(len(seeds), size=draws)
    found: dict[str, dict[str, np.ndarray]] = {"test": {}, "ood": {}, "lost": {}}
    for i, seed in enumerate(seeds):
        here = which == i
        counts = {}
        for split, rungs in seed.items():
            key = rungs.task, rungs.names
            counts[split] = common[key][here] if key in common else counts_drawn(len(rungs.names), int(here.sum()), rng)
        for split, parts in _parts(seed, top, splits, counts).items():
            for part, values in parts.items():
                found[split].setdefault(part, np.empty(draws))[here] = values
    return found


def _parts(
    seed: dict[str, Rungs], top: float, splits: Splits, counts: dict[str, np.ndarray]
) -> dict[str, dict[str, np.ndarray]]:
    test, ood = (seed[split].pooled(counts.get(split)) for split in ("test", "ood"))
    cost = cost_of(test)
    parts = {"test": splits(top, test, cost), "ood": splits(top, ood, cost)}
    parts["lost"] = {part: loss - parts["test"][part] for part, loss in parts["ood"].items()}
    return parts


def cost_of(test: dict[str, np.ndarray]) -> np.ndarray:
    """What the interventions lose on training compositions, which need no help.

    Args:
        test: rung -> (draws,) scores on training compositions.

    Returns:
        (draws,), in units of the score.
    """
    return test["own answer"] - np.fmax(test["true code written"], test.get("best code", np.nan))


def by_composition(model: Measured, top: float) -> pd.DataFrame:
    """A row per held-out composition.

    Args:
        model: the model's tables.
        top: the ceiling.

    Returns:
        Its loss, whole and in parts, its weight, and its factors, a tuple of names.

    Raises:
        ConfigError: the table does not name factors.
    """
    rungs, cost = model.rungs("ood"), cost_of(model.rungs("test").pooled())
    if "parts" not in model.ladder:
        raise ConfigError("the table does not name factors; type: compolens probe inference_or_execution FOLDER --again")
    named = dict(zip(model.ladder["composition"], model.ladder["parts"].str.split(" · "), strict=True))
    own, weights = rungs.scores["own answer"]
    rows = pd.DataFrame(
        {"composition": rungs.names, "weight": weights, "loss": top - own} | split_loss(top, rungs.alone(), cost)
    )
    rows.insert(1, "factors", [tuple(named[name]) for name in rungs.names])
    return rows[rows["weight"] > 0].reset_index(drop=True)  # of the others, none of the episodes was drawn


def factors_of(rows: pd.DataFrame) -> dict[str, np.ndarray]:
    """factor -> which `rows` of `by_composition` it takes part in."""
    names = sorted({factor for factors in rows["factors"] for factor in factors})
    return {name: np.array([i for i, factors in enumerate(rows["factors"]) if name in factors]) for name in names}


def by_factor(model: Measured, top: float) -> pd.DataFrame:
    """A row per factor.

    Args:
        model: the model's tables.
        top: the ceiling.

    Returns:
        Mean loss, whole and in parts, over the n held-out compositions that it takes part in, by weight.
    """
    rows = by_composition(model, top)
    weight = rows["weight"].to_numpy()
    return pd.DataFrame(
        {"factor": factor, "n": len(at)}
        | {part: weighted_mean(rows[part].to_numpy()[at], weight[at]) for part in ("loss", *PARTS)}
        for factor, at in factors_of(rows).items()
    )


WINS = {"use": "own code written", "inference": "true code written", "form": "best code"}
"""Part -> the rung that wins it."""


def won_elsewhere(models: Sequence[Measured], parts: dict[str, Loss], place: str) -> str:
    """Which parts are won at another site than the one that is named, in words.

    Args:
        models: tables of models that differ in seeds alone.
        parts: of the loss on held-out compositions.
        place: the site that is named, in words.

    Returns:
        Such as "use as written at the explicit code"; "" where all are won at the site named.
    """
    told = []
    for part, rung in WINS.items():
        if part not in parts or abs(parts[part].value) < NOTHING:
            continue
        others = [there for model in models if (there := model.rungs("ood").places.get(rung, place)) != place]
        if others:
            several = f" in {len(others)} of {len(models)} models" if len(models) > 1 else ""
            told.append(f"{part} as written at {' or '.join(dict.fromkeys(others))}{several}")
    return ", ".join(told)


def in_words(parts: dict[str, Loss]) -> str:
    """The `parts` of a loss that are not next to nothing, the largest first."""
    ordered = sorted(parts.items(), key=lambda item: -abs(item[1].value))
    return ", ".join(f"{name} {loss}" for name, loss in ordered if abs(loss.value) >= NOTHING) or "nothing"
