"""Whose answers are the held-out answers most like: those of a learner that recombines, or of one that does not?"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from compolens import tables
from compolens.activations.streams import draw
from compolens.foundation.configs import DoesNotApply, require
from compolens.foundation.progress import progress
from compolens.measures.intervals import Replicates, Scale, student_interval, summarise
from compolens.network_baselines import FrozenReadout, Linearised
from compolens.references import (
    AllCompositions,
    BayesMarginals,
    BayesPanel,
    BayesUnshuffled,
    CopyPanel,
    InContextKernelRidge,
    InContextNearest,
    InContextQuadratic,
    InContextRidge,
    InContextSmoothing,
    Reference,
    TrainingCompositions,
)
from compolens.references.mixture import foreseen, regressions
from compolens.tasks import Episodes, TaskFamily
from compolens.zoo.folders import TrainedModel

version = 5  # raised whenever its numbers change
# 2 changed intervals, 3 and 4 added references, 4 "errors foreseen" too; 5 leaves the mean of "in-context quadratic" and
# "in-context kernel ridge" free, and decides by t intervals
values_since = 5  # its values

MODEL, UNTRAINED, TRUTH = "model", "untrained control", "truth"
LEARNERS = {"": MODEL, "untrained": UNTRAINED}
"""control -> what the column `learner` says."""
RECOMBINES = {
    "best of all compositions": True, "Bayes, whole panel": True, "Bayes, each feature": True, "Bayes, shuffles ignored": True,
    "best training composition": False, "copy of a panel": False,
    "in-context ridge": False, "in-context smoothing": False, "nearest example": False,
    "in-context quadratic": False, "in-context kernel ridge": False,
    "frozen features": False, "linearised net": False,
}  # fmt: skip
"""Reference -> whether it answers with parts that it knows from other compositions."""
CLOSED = (
    AllCompositions, TrainingCompositions, BayesPanel, BayesMarginals, BayesUnshuffled, CopyPanel,
    InContextRidge, InContextSmoothing, InContextNearest, InContextQuadratic, InContextKernelRidge,
)  # fmt: skip
MEASURES = ("feature accuracy", "pixel R²", "R²")
"""The metric whose errors are the distances, where a family has one of them; else its score. Where a score only counts (whole
panels, sharp images), nearly all answers would be equally far from one another."""
ROUNDING = 1e-6
"""Distances that differ by less are equal: answers are float32."""
FEWEST = 3
"""Compositions below which nothing is decided."""


class Split(NamedTuple):
    """A split's episodes, answers by name and batch, and every episode's weight and composition."""

    task: TaskFamily
    name: str
    batches: list[Episodes]
    answers: dict[str, list[torch.Tensor]]
    weight: np.ndarray
    composition: np.ndarray


def probe(
    trained: TrainedModel, *, episodes: int = 512, tangent_episodes: int = 384, iterations: int = 20, seed: int = 0
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Distance of the model's answers to those of learners that recombine the code's parts, and of learners that do not.

    Learners that recombine: "best of all compositions" (knows the parts and allows the full product) and Bayes posteriors, one
    of which takes S-RAVEN's features for unshuffled. Learners that do not: "best training composition" (knows the parts and
    allows training compositions only); S-RAVEN's copy of a panel; ridge on inputs, on their products and on bumps, kernel
    smoothing and the nearest example, which know the episode's examples alone; a linear readout of the untrained control's
    features; the network linearised at its start (1806.07572, 1812.07956). To ask which prior answers reveal follows
    2306.15063.

    Args:
        trained: the trained model, with its run, task and folder.
        episodes: episodes per split, 8 or more.
        tangent_episodes: episodes that the linearised network is fitted on, 8 or more; no more than `episodes` are used.
        iterations: at most so many iterations of that fit.
        seed: seed of the episodes, which are never those of a training, even with an equal seed.

    Returns:
        The table, and rows per episode (score, distance to every reference). Columns `learner` and `reference` name the two
        that are compared; `recombines` says whether the reference does. lo, hi: 95 % t interval over compositions.

        - "distance": sum |p - q|² / sum weight over the answers, with the score's own weight. To the truth it is 1 - R²; for
          classes it is the share of answers whose largest entries differ. 0 is equal. Pooled (composition "all") and per
          composition.
        - "nearest": how much further away the second nearest reference is; `reference` is the nearest, or "undecided" where
          the interval of the gap reaches 0, the two references are no further apart than half its width, or a split has fewer
          than three compositions.
        - "margin": distance to the nearest reference that does not recombine minus that to the nearest one that does; above 0:
          like a learner that recombines.
        - "errors foreseen": share of the model's squared error that a mixture of 43 regressions on the episode's examples
          foresees, fitted to the model's own answers on all other compositions of the split: 1 is all of it, 0 no more than
          the truth would. Control "shuffled": by regressions on other episodes. What is foreseen comes of a learner that needs
          no code, listed or not.
        - control "untrained": the untrained control.
        - control "shuffled": the model beside the references' answers to other episodes.
        - control "reference": one reference beside another.

    Raises:
        DoesNotApply: no learner is known that recombines the parts of the family's code.
        ConfigError: episodes or tangent_episodes is below 8.
    """
    task = trained.task
    closed = [kind() for kind in CLOSED]
    if all(_absent(r, task) for r in closed if RECOMBINES[r.name]):
        raise DoesNotApply(
            f"no learner is known that recombines the parts of {type(task).__name__}'s code, so there is nothing to compare: "
            "that needs candidates(episodes, allowed), the answers of each composition, which categories have once there is a "
            "render(codes, inputs), or counterfactuals of stored episodes; for learners of linear regression: "
            "compolens probe gd_equivalence"
        )
    require(
        episodes >= 8 and tangent_episodes >= 8, f"need episodes, tangent_episodes >= 8, got {episodes}, {tangent_episodes}"
    )
    few = min(episodes, tangent_episodes)
    fits: dict[str, Callable[[], FrozenReadout | Linearised]] = {
        "linearised net": lambda: Linearised.fit(trained, episodes=few, iterations=iterations, seed=seed),
        "frozen features": lambda: FrozenReadout.fit(trained, episodes=4 * episodes, seed=seed),
    }
    fitted: dict[str, FrozenReadout | Linearised] = {}
    absent = {r.name: why for r in closed if (why := _absent(r, task))}
    for who, fit in progress(fits.items(), "learner fitted:"):
        try:
            fitted[who] = fit()
        except DoesNotApply as error:
            absent[who] = f"not available: {error}"
    rows, kept = [], []
    for name in ("test", "ood"):
        split = _answered(trained, name, closed, fitted, episodes, seed)
        rows += [_row(split, "distance", MODEL, who, note=why, value=np.nan) for who, why in absent.items()]
        rows += _rows(split)
        rows += _foreseen(split)
        kept.append(_episodes(split))
    also = [row for row in rows if row["composition"] == "all" and (row["control"] == "" or row["metric"] == FORESEEN)]
    rows += _not_available(trained, [row for row in also if "untrained" not in row["control"]])
    return pd.DataFrame(rows), pd.concat(kept, ignore_index=True)


# ---- answers ---------------------------------------------------------------------------------------------------------
def _absent(reference: Reference, task: TaskFamily) -> str:
    why = reference.why_not(task)
    return f"not available: {why}" if why else ""


@torch.no_grad()
def _answered(
    trained: TrainedModel,
    name: str,
    closed: list[Reference],
    fitted: dict[str, FrozenReadout | Linearised],
    episodes: int,
    seed: int,
) -> Split:
    task, batches = trained.task, list(draw(trained.task, name, episodes, seed, trained.device))
    answers = {LEARNERS[control]: [one(b.tokens) for b in batches] for control, one in trained.with_untrained_control()}
    answers |= {r.name: [r.predict(task, b) for b in batches] for r in closed if not r.why_not(task)}
    answers |= {who: [one.predict(b) for b in batches] for who, one in fitted.items()}
    weight = torch.cat([_measured(task, p, b.targets)[1] for p, b in zip(answers[MODEL], batches, strict=True)])
    composition = torch.cat([b.composition for b in batches])
    return Split(task, name, batches, answers, weight.cpu().numpy(), composition.cpu().numpy())


def _measured(task: TaskFamily, prediction: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """(error, weight) per episode in the metric that distances are taken in."""
    metrics = task.metrics(prediction, targets)
    return metrics[next((m for m in MEASURES if m in metrics), "score")]


def _errors(split: Split, one: str, other: str, shuffled: bool = False) -> np.ndarray:
    """(n,): squared distance of two learners' answers, episode by episode, in units of the weight."""
    found = []
    for i, batch in enumerate(split.batches):
        p, targets = split.answers[one][i], batch.targets
        if other != TRUTH:
            q = split.answers[other][i]
            if targets.is_floating_point():
                targets = q.to(targets).reshape(targets.shape)
            else:  # what is not asked for has a class below 0, and stays out
                targets = torch.where(targets < 0, targets, q.argmax(-1).to(targets))
        found.append(_measured(split.task, p, targets.roll(1, 0) if shuffled else targets)[0])
    return torch.cat(found).cpu().numpy()


# ---- rows ------------------------------------------------------------------------------------------------------------
def _row(
    split: Split,
    metric: str,
    learner: str,
    reference: str,
    value: float,
    lo: float = np.nan,
    hi: float = np.nan,
    control: str = "",
    composition: str = "all",
    n: int = 0,
    note: str = "",
) -> dict[str, Any]:
    control = "reference" if note.startswith("not available") else control
    where: dict[str, Any] = {"split": split.name, "site": "output", "role": "answers", "control": control, "n": n}
    compared: dict[str, Any] = {"learner": learner, "reference": reference, "recombines": RECOMBINES.get(reference, "")}
    return tables.row(metric, value, lo=lo, hi=hi, **where, **compared, composition=composition, note=note)


def _not_available(trained: TrainedModel, own: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows of an untrained control that there is not; what it is nearest to is undecided."""
    why, asked = trained.why_no_untrained_control, [row for row in own if row["metric"] in ("distance", FORESEEN)]
    undecided = tables.not_available(
        (row for row in own if row["metric"] not in ("distance", FORESEEN)),
        why,
        learner=UNTRAINED,
        reference="undecided",
        recombines="",
    )
    return tables.not_available(asked, why, learner=UNTRAINED) + undecided


def _rows(split: Split) -> Iterator[dict[str, Any]]:
    references = [who for who in split.answers if who not in (MODEL, UNTRAINED)]
    for control, learner in ((c, one) for c, one in LEARNERS.items() if one in split.answers):
        found = {r: _errors(split, learner, r) for r in (TRUTH, *references)}
        for reference, error in found.items():
            yield from _distances(split, learner, reference, error, control, whole=control == "")
        yield from _judged(split, learner, {r: found[r] for r in references}, control)
    for reference in (TRUTH, *references):
        yield from _distances(split, MODEL, reference, _errors(split, MODEL, reference, shuffled=True), "shuffled")
    for i, one in enumerate(references):
        for other in (TRUTH, *references[:i]):
            yield from _distances(split, one, other, _errors(split, one, other), "reference", whole=other == TRUTH)


MIXTURE, FORESEEN = "fitted mixture", "errors foreseen"


def _foreseen(split: Split) -> Iterator[dict[str, Any]]:
    """How much of the errors follows from the examples, by a learner fitted to the model's own answers."""
    task, several = split.task, len(np.unique(split.composition)) > 1
    if task.examples(split.batches[0]) is None or not split.batches[0].targets.is_floating_point() or not several:
        return
    at = list(task.answers)
    known = torch.cat([regressions(task, batch) for batch in split.batches])
    truth = torch.cat([batch.targets[:, at] for batch in split.batches]).double()
    composition = torch.from_numpy(split.composition).to(known.device)
    for control, learner in ((c, one) for c, one in LEARNERS.items() if one in split.answers):
        own = torch.cat([answer[:, at] for answer in split.answers[learner]]).double()
        for shuffled in (False, True):
            expected = foreseen(known.roll(1, 0) if shuffled else known, own, composition)
            off, wrong = ((own - q).square().flatten(1).sum(1).cpu().numpy() for q in (expected, truth))
            found = summarise(off, wrong, split.composition)
            if wrong.sum() <= ROUNDING * float(truth.square().sum()):
                continue  # there is no error to foresee
            told = ", ".join(filter(None, (control, "shuffled" if shuffled else "")))
            lo, hi = found.interval
            yield _row(split, FORESEEN, learner, MIXTURE, found.score, lo, hi, told, n=len(off))


def _distances(
    split: Split, learner: str, reference: str, error: np.ndarray, control: str, whole: bool = False
) -> Iterator[dict[str, Any]]:
    pooled = summarise(error, split.weight, split.composition)
    lo, hi = (1 - bound for bound in reversed(pooled.interval))
    yield _row(split, "distance", learner, reference, 1 - pooled.score, lo, hi, control, n=len(error))
    for index, (score, _, n) in pooled.per_composition.items() if whole else ():
        name = split.task.composition_name(index)
        yield _row(split, "distance", learner, reference, 1 - score, control=control, composition=name, n=n)


def _judged(split: Split, learner: str, errors: dict[str, np.ndarray], control: str) -> Iterator[dict[str, Any]]:
    """The rows "nearest" and "margin"."""
    names = list(errors)
    left, whole = _left_out(split, errors)
    nearest, next_to_it = np.argsort(whole)[:2]
    first, second = names[nearest], names[next_to_it]
    lo, hi = _apart(left, whole, nearest, next_to_it)
    apart = float(_errors(split, first, second).sum() / split.weight.sum())
    few = len(np.unique(split.composition)) < FEWEST
    decided = lo > ROUNDING and apart > (hi - lo) / 2 and not few
    note = f"nearest: {first}; next: {second}, {apart:.3g} away from it" + ("; too few compositions" if few else "")
    value, n = float(np.sort(whole)[1] - np.sort(whole)[0]), len(split.weight)
    yield _row(split, "nearest", learner, first if decided else "undecided", value, lo, hi, control, n=n, note=note)
    does, does_not = ([i for i, r in enumerate(names) if RECOMBINES[r] is kind] for kind in (True, False))
    if does and does_not:
        value = float(whole[does_not].min() - whole[does].min())
        lo, hi = _apart(left, whole, *(kind[int(np.argmin(whole[kind]))] for kind in (does, does_not)))
        sure = (lo > ROUNDING or hi < -ROUNDING) and not few
        words = ("recombines" if value > 0 else "does not recombine") if sure else "undecided"
        yield _row(split, "margin", learner, words, value, lo, hi, control, n=n)


def _left_out(split: Split, errors: dict[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """(composition, reference) distances without each composition; and (reference,) those of all."""
    here = split.composition == np.unique(split.composition)[:, None]
    sums, weights = here @ np.stack(list(errors.values()), axis=1), here @ split.weight
    with np.errstate(divide="ignore", invalid="ignore"):  # of a single composition nothing is left
        return (sums.sum(0) - sums) / (weights.sum() - weights)[:, None], sums.sum(0) / weights.sum()


def _apart(left: np.ndarray, whole: np.ndarray, near: int, far: int) -> tuple[float, float]:
    """95 % t interval over compositions of how much farther one reference is than another."""
    gaps = left[:, far] - left[:, near]
    return student_interval(float(whole[far] - whole[near]), gaps, len(gaps), Scale.PLAIN, Replicates.JACKKNIFE)


def _episodes(split: Split) -> pd.DataFrame:
    """Per episode: score, and the distance to every reference over the mean weight."""
    task, parts = split.task, []
    for prediction, batch in zip(split.answers[MODEL], split.batches, strict=True):
        error, weight = task.errors(prediction, batch.targets)
        parts.append((1 - error / weight).cpu())
    names = [task.composition_name(int(c)) for c in split.composition]
    columns = {"split": split.name, "composition": names, "score": torch.cat(parts).numpy()}
    references = [who for who in split.answers if who not in (MODEL, UNTRAINED)]
    far = {f"distance to {r}": _errors(split, MODEL, r) / split.weight.mean() for r in references}
    return pd.DataFrame(columns | far)
