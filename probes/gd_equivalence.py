"""Which learner of in-context regression does the forward pass agree with, and by more than these agree with one another?"""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from compolens import tables
from compolens.activations.streams import BATCH, draw
from compolens.foundation.configs import DoesNotApply, nearest, require
from compolens.hooks import HookedModel
from compolens.measures import agreement
from compolens.models import ConstructedGradientDescent, LinearSelfAttention
from compolens.references import REFERENCES, FrobeniusNewton, GradientDescent, GradientDescentPlusPlus, Newton, Ridge
from compolens.references.regression import LinearLearner, RegressionLearner, all_answers, all_weights
from compolens.tasks import LinearRegression, MixedInputs
from compolens.tasks.episodes import Episodes
from compolens.zoo.folders import TrainedModel

version = 2  # raised whenever its numbers change

CURVES = {"input scale": (0.5, 0.75, 1.0, 1.25, 1.5, 1.75, 2.0), "teacher scale": (0.5, 1.0, 2.0, 3.0, 4.0, 5.0)}
UNSEEN = (0.5, 1.0, 1.5, 2.0)
MODEL = "model"


class Answers(NamedTuple):
    """Of one learner, in float64: answers at every asked input (batch, A, d_y); the derivative of the last one by its input,
    (batch, d_x, d_y), None for learners that have no useful one; and, of the first `fits` episodes, answers to further inputs
    (fits, T, d_y) after all demonstrations, with the weights (fits, d_x, d_y) that these imply."""

    answers: torch.Tensor
    slope: torch.Tensor | None
    further: torch.Tensor
    implied: torch.Tensor


def probe(
    trained: TrainedModel, *, episodes: int = 2048, fits: int = 256, seed: int = 0, references: str = "", examples: int = 0
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Distances between the model and reference learners of linear regression, and between every two references.

    References are gradient descent, GD++, Newton's iteration, ridge, least squares, the posterior mean and others that apply,
    tuned for the task. The distance between two references is the floor below which a resemblance to one of them says nothing.
    Measures are those of 2212.07677 (sensitivity) and 2211.15661 (implied weights).

    Args:
        trained: the trained model, with its run, task and folder.
        episodes: episodes per split, 8 or more. Each is a task of its own.
        fits: episodes among these whose implied weights are fitted, 2 or more; no more than `episodes`.
        seed: seed of the episodes, which are never those of a training, even with an equal seed.
        references: names of the references compared, as the table has them, with semicolons between ("": all that apply).
        examples: demonstrations before the last query, where inputs and answers are tokens in turn (0: all of an episode).
            Rates of references stay those that are tuned on whole episodes.

    Returns:
        The table, and rows per episode (the model's answer, the target, every reference's answer). Columns `learner` and
        `reference` name the two that are compared; `curve` and `scale` say how inputs or tasks differ from training. Values
        are means over episodes, lo and hi their 95 % interval.

        - "prediction distance": |f - g| at the last query, in units of the targets.
        - "sensitivity cosine" (1: the same slope) and "sensitivity distance": of df/dx and dg/dx there.
        - "SPD": squared distance of predictions over d_x. "ILWD": squared distance, over d_x, of the weights that a least
          squares fit to answers to further inputs implies. "R² of linearity": of that fit.
        - "loss": as the family has it, also along a `curve` ("input scale", "teacher scale", "unseen inputs"), with rates
          tuned where the model was trained.
        - "interpolated loss": of the mean of the model's and the construction's matrices, where the model is one linear head.
        - control "untrained": the untrained control beside the references.
        - control "shuffled": the model beside references that were shown another episode's answers.
        - control "reference": one reference beside another.

    Raises:
        DoesNotApply: the task is no linear regression.
        ConfigError: episodes is below 8, or fits below 2; there is no reference of a name, or examples is not from
            0 to those of an episode, or not 0 where tokens are not in turn.
    """
    task = trained.task
    if not isinstance(task, LinearRegression):
        raise DoesNotApply(f"{type(task).__name__} is no regression family; gd_equivalence needs LinearRegression")
    require(episodes >= 8 and fits >= 2, f"need episodes >= 8 and fits >= 2, got {episodes} and {fits}")
    fits = min(fits, episodes)
    learners = _named({one.name: one for one in _candidates(task, trained.model.cfg.n_layers)}, references)
    task = _shorter(task, examples)
    models = dict(trained.with_untrained_control())
    rows: list[dict[str, Any]] = []
    kept = []
    for split in ("test", "ood"):
        batches = list(draw(task, split, episodes, seed, trained.device))
        x = torch.cat([_further(task, b) for b in batches])[:fits].double()
        answers = _learner_answers(learners, task, batches, x)
        shuffled = _learner_answers(learners, task, [task.with_answers_of_others(b) for b in batches], x)
        own = {control: _model_answers(model, task, batches, x) for control, model in models.items()}
        asked = [{who: one.answers for who, one in found.items()} for found in (own, answers)]
        rows += _losses(task, split, asked[0], asked[1], batches)
        for name in learners:
            for control, mine in own.items():
                rows += _compare(task, split, control, MODEL, mine, name, answers[name])
            rows += _compare(task, split, "shuffled", MODEL, own[""], name, shuffled[name])
            for other in learners:
                rows += _compare(task, split, "reference", name, answers[name], other, answers[other])
        for control, mine in own.items():
            rows.append(_row("R² of linearity", agreement.linearity(x, mine.further), split, control, MODEL))
        kept.append(_episodes(task, split, own[""], answers, batches))
    rows += _curves(task, models, learners, episodes, seed, trained.device)
    rows += tables.not_available((row for row in rows if row["control"] == ""), trained.why_no_untrained_control)
    rows += _interpolated(trained, learners, episodes, seed)
    return pd.DataFrame(rows), pd.concat(kept, ignore_index=True)


def _candidates(task: LinearRegression, n_layers: int) -> list[RegressionLearner]:
    """The references that apply, tuned: steps as many as the model has layers are among those of the stepwise ones."""
    steps = sorted({1, 2, n_layers})
    wanted = [GradientDescent(k) for k in steps] + [GradientDescentPlusPlus(k) for k in steps if k > 1]
    wanted += [Newton(3), Newton(5), Ridge(0.1)]
    others = [kind for kind in REFERENCES.values() if issubclass(kind, RegressionLearner) and kind is not FrobeniusNewton]
    wanted += [kind() for kind in others]  # the other start of Newton's iteration is no other learner
    named = {one.name: one for one in wanted if one.why_not(task) == ""}
    return [one.for_task(task) for one in named.values()]


def _shorter(task: LinearRegression, examples: int) -> LinearRegression:
    """The same task with fewer demonstrations, whose tokens are the first of an episode's."""
    most = task.n_context if task.interleaved else 0
    told = f"examples must be from 0 to {most} ({'those of an episode' if most else 'tokens are not in turn'}), got {examples}"
    require(0 <= examples <= most, told)
    return replace(task, n_context=examples) if examples else task


def _named(learners: dict[str, RegressionLearner], wanted: str) -> dict[str, RegressionLearner]:
    """Those with the names that are wanted, in their own order; all where none is named."""
    names = [name.strip() for name in wanted.split(";") if name.strip()]
    for name in names:
        require(name in learners, f"gd_equivalence has no reference {name!r} here; {nearest(name, learners)}")
    return {name: one for name, one in learners.items() if not names or name in names}


# ---- answers ---------------------------------------------------------------------------------------------------------
def _further(task: LinearRegression, batch: Episodes) -> Tensor:
    """(batch, T, d_x): enough further inputs to tell the weights that answers to them imply."""
    return task.further_inputs(batch, 4 * task.d_x)


def _learner_answers(
    learners: dict[str, RegressionLearner], task: LinearRegression, batches: list[Episodes], x: Tensor
) -> dict[str, Answers]:
    """name -> what a learner answers, also to the further inputs x of the first episodes. Linear ones share spectra."""
    linear = {name: one for name, one in learners.items() if isinstance(one, LinearLearner)}
    parts: dict[str, list[tuple[Tensor, Tensor | None, Tensor]]] = {name: [] for name in learners}
    left = len(x)
    for batch in batches:
        shown_x, shown_y, asked, shown = task.prompts(batch)
        extra = _further(task, batch)[: max(left, 0)].double()
        lengths, place = shown.unique(return_inverse=True)
        for name, weights in zip(linear, all_weights(list(linear.values()), shown_x, shown_y, lengths.tolist()), strict=True):
            answers = torch.einsum("bad,bade->bae", asked.double(), weights[:, place.to(weights.device)])
            parts[name].append((answers, weights[:, -1], extra @ weights[: len(extra), -1]))
        for name in learners.keys() - linear.keys():
            some = shown_x[: len(extra)], shown_y[: len(extra)], extra, shown[-1].expand(extra.shape[1])
            parts[name].append((learners[name].answers(shown_x, shown_y, asked, shown), None, learners[name].answers(*some)))
        left -= len(asked)
    return {name: _joined(found, x) for name, found in parts.items()}


def _model_answers(model: HookedModel, task: LinearRegression, batches: list[Episodes], x: Tensor) -> Answers:
    parts: list[tuple[Tensor, Tensor | None, Tensor]] = []
    left, at = len(x), list(task.answers)
    for batch in batches:
        tokens = batch.tokens.clone().requires_grad_()
        prediction = model(tokens)[:, at]
        grads = [torch.autograd.grad(prediction[:, -1, j].sum(), tokens, retain_graph=True)[0] for j in range(task.d_y)]
        slope = torch.stack([g[:, at[-1], : task.d_x] for g in grads], dim=-1).double()
        parts.append((prediction.detach().double(), slope, _answer_further(model, task, batch, max(left, 0))))
        left -= len(tokens)
    return _joined(parts, x)


@torch.no_grad()
def _answer_further(model: HookedModel, task: LinearRegression, batch: Episodes, n: int) -> Tensor:
    """The model's answers (n, T, d_y) to further inputs in place of the last query, for the first n episodes."""
    extra = _further(task, batch)
    if n == 0:
        return extra[:0, :, : task.d_y].double()
    asked = task.asking(batch, extra).tokens[: n * extra.shape[1]]
    answers = torch.cat([model(part)[:, task.answers[-1]] for part in asked.split(16 * BATCH)])
    return answers.unflatten(0, (-1, extra.shape[1])).double()


def _joined(parts: list[tuple[Tensor, Tensor | None, Tensor]], x: Tensor) -> Answers:
    further = torch.cat([part[2] for part in parts])
    slopes = [part[1] for part in parts if part[1] is not None]
    slope = torch.cat(slopes) if slopes else None
    return Answers(torch.cat([part[0] for part in parts]), slope, further, agreement.implied_weights(x, further))


# ---- rows ------------------------------------------------------------------------------------------------------------
def _row(
    metric: str,
    values: Tensor,
    split: str,
    control: str,
    learner: str,
    reference: str = "none",
    curve: str = "none",
    scale: float = np.nan,
) -> dict[str, Any]:
    """A mean over episodes (n,), with its 95 % interval; 0 where only rounding is left."""
    found = np.asarray(torch.as_tensor(values).cpu(), dtype=float).round(12)
    half = 1.96 * found.std(ddof=1) / len(found) ** 0.5 if len(found) > 1 else np.nan
    value = float(found.mean())
    compared: dict[str, Any] = {"learner": learner, "reference": reference, "curve": curve, "scale": scale}
    where: dict[str, Any] = {"split": split, "site": "output", "role": "last query", "control": control, "n": len(found)}
    return tables.row(metric, value, lo=value - half, hi=value + half, **where, **compared)


def _compare(
    task: LinearRegression, split: str, control: str, learner: str, mine: Answers, reference: str, other: Answers
) -> Iterator[dict[str, Any]]:
    f, g, known = mine.answers[:, -1], other.answers[:, -1], (split, control, learner, reference)
    yield _row("prediction distance", agreement.prediction_distance(f, g), *known)
    yield _row("SPD", agreement.squared_prediction_distance(f, g, task.d_x), *known)
    if mine.slope is not None and other.slope is not None:
        yield _row("sensitivity cosine", agreement.sensitivity_cosine(mine.slope, other.slope), *known)
        yield _row("sensitivity distance", agreement.sensitivity_distance(mine.slope, other.slope), *known)
    yield _row("ILWD", agreement.implied_weight_distance(mine.implied, other.implied), *known)


def _losses(
    task: LinearRegression,
    split: str,
    own: dict[str, Tensor],
    answers: dict[str, Tensor],
    batches: list[Episodes],
    curve: str = "none",
    scale: float = np.nan,
) -> Iterator[dict[str, Any]]:
    at = list(task.answers)
    truth = torch.cat([b.targets[:, at] for b in batches]).double()

    def per_episode(found: Tensor) -> Tensor:
        return task.loss_scale * (found - truth).square().mean((1, 2))

    for control, mine in own.items():
        yield _row("loss", per_episode(mine), split, control, MODEL, curve=curve, scale=scale)
    for name, found in answers.items():
        yield _row("loss", per_episode(found), split, "reference", name, curve=curve, scale=scale)


def _curves(
    task: LinearRegression,
    models: dict[str, HookedModel],
    learners: dict[str, RegressionLearner],
    episodes: int,
    seed: int,
    device: torch.device,
) -> Iterator[dict[str, Any]]:
    """Losses where inputs or tasks are other than in training; the rates stay those of training."""
    shown = [("input scale", s, replace(task, input_scale=s * task.input_scale)) for s in CURVES["input scale"]]
    shown += [("teacher scale", s, replace(task, teacher_scale=s * task.teacher_scale)) for s in CURVES["teacher scale"]]
    norm = float(task.inputs.second_moment(task.d_x).trace() ** 0.5) * task.input_scale
    shown += [("unseen inputs", s, replace(task, inputs=MixedInputs(norm), input_scale=s)) for s in UNSEEN]
    for curve, scale, other in shown:
        batches = list(draw(other, "test", episodes, seed, device))
        own = {control: _forward(model, other, batches) for control, model in models.items()}
        answers = _forward_learners(learners, other, batches)
        yield from _losses(other, "test", own, answers, batches, curve, scale)


@torch.no_grad()
def _forward(model: HookedModel, task: LinearRegression, batches: list[Episodes]) -> Tensor:
    at = list(task.answers)
    return torch.cat([model(b.tokens)[:, at] for b in batches]).double()


def _forward_learners(
    learners: dict[str, RegressionLearner], task: LinearRegression, batches: list[Episodes]
) -> dict[str, Tensor]:
    """name -> answers; linear learners share spectra."""
    linear = {name: one for name, one in learners.items() if isinstance(one, LinearLearner)}
    shared = [all_answers(list(linear.values()), *task.prompts(b)) for b in batches]
    found = {name: torch.cat(parts) for name, parts in zip(linear, zip(*shared, strict=True), strict=True)}
    for name in learners.keys() - linear.keys():
        found[name] = torch.cat([learners[name].answers(*task.prompts(b)) for b in batches])
    return {name: found[name] for name in learners}


def _interpolated(
    trained: TrainedModel, learners: dict[str, RegressionLearner], episodes: int, seed: int
) -> Iterator[dict[str, Any]]:
    """Loss halfway between the model's matrices and the construction's: W_Q W_K^T over its mean diagonal beta, W_V W_O times
    it (2212.07677, A.3). Only where the model is one linear head, the same in every layer."""
    task, architecture = trained.task, trained.run.architecture
    if not isinstance(architecture, LinearSelfAttention) or not isinstance(task, LinearRegression):
        return
    if type(architecture) is not LinearSelfAttention:  # no construction, nor another attention derived from it
        return
    if architecture.n_heads != 1 or not (architecture.tied or architecture.n_layers == 1):
        return
    steps = architecture.n_layers
    descent = next((one for one in learners.values() if isinstance(one, GradientDescent) and one.steps == steps), None)
    if descent is None:
        return
    built = ConstructedGradientDescent(
        n_layers=steps, eta=descent.eta / architecture.damping, damping=architecture.damping
    ).build(**task.dimensions)
    mixed, theirs = deepcopy(trained.model), _products(built, task.d_x)
    halfway = [(a + b.to(a)) / 2 for a, b in zip(_products(trained.model, task.d_x), theirs, strict=True)]
    attention = _first_attention(mixed)
    with torch.no_grad():
        for name, value in zip(("W_Q", "W_K", "W_V", "W_O"), (halfway[0], None, halfway[1], None), strict=True):
            parameter = getattr(attention, name)
            parameter.copy_((torch.eye(parameter.shape[1]) if value is None else value)[None])
    batches = list(draw(task, "test", episodes, seed, trained.device))
    truth = torch.cat([b.targets[:, -1] for b in batches]).double()
    loss = task.loss_scale * (_forward(mixed, task, batches)[:, -1] - truth).square().mean(1)
    yield _row("interpolated loss", loss, "test", "", MODEL, descent.name)


def _first_attention(model: HookedModel) -> Any:
    blocks: Any = model.blocks
    return blocks[0].attn


def _products(model: HookedModel, d_x: int) -> tuple[Tensor, Tensor]:
    attention = _first_attention(model)
    with torch.no_grad():
        kq, pv = attention.W_Q[0] @ attention.W_K[0].T, attention.W_V[0] @ attention.W_O[0]
    beta = kq.diagonal()[:d_x].mean()
    return kq / beta, pv * beta


def _episodes(
    task: LinearRegression, split: str, own: Answers, answers: dict[str, Answers], batches: list[Episodes]
) -> pd.DataFrame:
    """Per episode, at the last query: prediction, target, score, and every reference's answer."""
    names = [task.composition_name(int(c)) for b in batches for c in b.composition]
    found, target = own.answers[:, -1], torch.cat([b.targets[:, task.answers[-1]] for b in batches]).double()
    score = 1 - (found - target).square().sum(1) / target.square().sum(1).clamp(min=1e-12)
    columns = {"split": split, "composition": names, "score": score.cpu().numpy()}
    columns |= {"prediction": list(found.cpu().numpy()), "target": list(target.cpu().numpy())}
    return pd.DataFrame(columns | {name: list(other.answers[:, -1].cpu().numpy()) for name, other in answers.items()})
