"""Which learner of in-context regression does the forward pass agree with, and by more than these agree with one another?"""

from copy import deepcopy
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pandas as pd
import torch

from compolens.activations import BATCH, draw
from compolens.configs import DoesNotApply, require
from compolens.measures import agreement
from compolens.models import ConstructedGradientDescent, LinearSelfAttention
from compolens.references import REFERENCES, FrobeniusNewton, GradientDescent, GradientDescentPlusPlus, Newton, Ridge
from compolens.references.regression import LinearLearner, RegressionLearner
from compolens.tasks import LinearRegression, MixedInputs
from compolens.zoo import TrainedModel

CURVES = {"input scale": (0.5, 0.75, 1.0, 1.25, 1.5, 1.75, 2.0), "teacher scale": (0.5, 1.0, 2.0, 3.0, 4.0, 5.0)}
UNSEEN = (0.5, 1.0, 1.5, 2.0)
MODEL = "model"


class Answers(NamedTuple):
    """Of one learner, in float64: answers at every asked input (batch, A, d_y); the derivative of the last one by its input,
    (batch, d_x, d_y), None for learners that have no useful one; answers to further inputs (batch, T, d_y) after all
    demonstrations, None where those were not asked for."""

    answers: torch.Tensor
    slope: torch.Tensor | None
    further: torch.Tensor | None


def probe(trained: TrainedModel, *, episodes: int = 2048, fits: int = 256, seed: int = 0) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Distances between the model and reference learners (gradient descent, GD++, Newton, ridge, least squares, posterior
    means, …), and the same between every two references, which is the floor below which a resemblance says nothing.

    metrics: "prediction distance" |f - g| at the last query; "sensitivity cosine" and "sensitivity distance" of df/dx and
    dg/dx there (2212.07677); "SPD" squared distance of predictions over d_x, "ILWD" squared distance of the weights that a
    least squares fit to further inputs implies, over d_x, and "R² of linearity" of that fit (2211.15661); "loss" as the family
    has it, also along `curve` (input scale, teacher scale, unseen inputs) with rates tuned where the model was trained;
    "interpolated loss" of the mean of the model's and the construction's matrices, where the model is one linear head.

    episodes: per split; fits: of these, at most, for implied weights. Every episode is a task of its own, so lo and hi are
    the 95 % interval over episodes. control: "" the model; "untrained" its twin; "shuffled" the model beside references that
    were shown another episode's answers; "reference" one reference beside another.
    """
    task = trained.task
    if not isinstance(task, LinearRegression):
        raise DoesNotApply(f"{type(task).__name__} is no regression family; gd_equivalence needs LinearRegression")
    require(episodes >= 8 and fits >= 2, f"need episodes >= 8 and fits >= 2, got {episodes} and {fits}")
    fits = min(fits, episodes)
    learners = {one.name: one for one in _candidates(task, trained.model.cfg.n_layers)}
    models = {"": trained.model, "untrained": trained.untrained_twin()}
    rows, kept = [], []
    for split in ("test", "ood"):
        batches = list(draw(task, split, episodes, seed, trained.device))
        answers = {name: _learner_answers(one, task, batches, fits) for name, one in learners.items()}
        shuffled = {
            name: _learner_answers(one, task, [_shuffle(task, b) for b in batches], fits) for name, one in learners.items()
        }
        own = {control: _model_answers(model, task, batches, fits) for control, model in models.items()}
        rows += _losses(task, split, own, answers, batches)
        for name in learners:
            for control, mine in own.items():
                rows += _compare(task, split, control, MODEL, mine, name, answers[name], batches, fits)
            rows += _compare(task, split, "shuffled", MODEL, own[""], name, shuffled[name], batches, fits)
            for other in learners:
                rows += _compare(task, split, "reference", name, answers[name], other, answers[other], batches, fits)
        for control, mine in own.items():
            linear = agreement.linearity(_fit_inputs(task, batches, fits), mine.further)
            rows.append(_row("R² of linearity", linear, split, control, MODEL))
        kept.append(_episodes(task, split, own[""], answers, batches))
    rows += _curves(task, models, learners, episodes, seed, trained.device)
    rows += _interpolated(trained, learners, episodes, seed)
    return pd.DataFrame(rows), pd.concat(kept, ignore_index=True)


def _candidates(task, n_layers):
    """The references that apply, tuned: steps as many as the model has layers are among those of the stepwise ones."""
    steps = sorted({1, 2, n_layers})
    wanted = [GradientDescent(k) for k in steps] + [GradientDescentPlusPlus(k) for k in steps if k > 1]
    wanted += [Newton(3), Newton(5), Ridge(0.1)]
    others = [kind for kind in REFERENCES.values() if issubclass(kind, RegressionLearner) and kind is not FrobeniusNewton]
    wanted += [kind() for kind in others]  # the other start of Newton's iteration is no other learner
    named = {one.name: one for one in wanted if one.why_not(task) == ""}
    return [one.for_task(task) for one in named.values()]


# ---- answers ---------------------------------------------------------------------------------------------------------
def _further(task, x):
    """Inputs (batch, T, d_x) beyond those of an episode, from the same law: those of the batch's other episodes."""
    count = 4 * task.d_x
    pool = x.flatten(0, 1)
    pick = torch.randint(len(pool), (len(x), count), generator=torch.Generator().manual_seed(0)).to(x.device)
    return pool[pick]


def _learner_answers(learner, task, batches, fits):
    parts, left = [], fits
    for batch in batches:
        x, y, asked, shown = task.prompts(batch)
        answers, slope, further = learner.answers(x, y, asked, shown), None, None
        if isinstance(learner, LinearLearner):
            slope = learner.weights(x, y, [int(shown[-1])])[:, 0]
        if left > 0:
            extra = _further(task, asked)[:left]
            further = learner.answers(x[:left], y[:left], extra, shown[-1].expand(extra.shape[1]))
        parts.append(Answers(answers, slope, further))
        left -= len(x)
    return _joined(parts)


def _model_answers(model, task, batches, fits):
    parts, left, at = [], fits, list(task.answers)
    for batch in batches:
        tokens = batch.tokens.clone().requires_grad_()
        prediction = model(tokens)[:, at]
        grads = [torch.autograd.grad(prediction[:, -1, j].sum(), tokens, retain_graph=True)[0] for j in range(task.d_y)]
        slope = torch.stack([g[:, at[-1], : task.d_x] for g in grads], dim=-1).double()
        further = _answer_further(model, task, batch, left) if left > 0 else None
        parts.append(Answers(prediction.detach().double(), slope, further))
        left -= len(tokens)
    return _joined(parts)


@torch.no_grad()
def _answer_further(model, task, batch, n):
    """The model's answers (n, T, d_y) to further inputs in place of the last query."""
    last = task.answers[-1]
    extra = _further(task, task.prompts(batch).asked)[:n]
    tokens = batch.tokens[:n].repeat_interleave(extra.shape[1], dim=0)
    tokens[:, last, : task.d_x] = extra.flatten(0, 1)
    answers = torch.cat([model(part)[:, last] for part in tokens.split(16 * BATCH)])
    return answers.unflatten(0, extra.shape[:2]).double()


def _joined(parts):
    columns = zip(*parts, strict=True)
    return Answers(*(torch.cat([p for p in column if p is not None]) if column[0] is not None else None for column in columns))


def _shuffle(task, batch):
    """The same inputs with the demonstrations' answers of the next episode of the batch."""
    tokens = batch.tokens.clone()
    if task.dimensions["d_x"] is None:
        tokens[:, 1::2] = tokens[:, 1::2].roll(1, 0)
    else:
        tokens[..., task.d_x :] = tokens[..., task.d_x :].roll(1, 0)
    return batch._replace(tokens=tokens)


# ---- rows ------------------------------------------------------------------------------------------------------------
def _row(metric, values, split, control, learner, reference="none", curve="none", scale=np.nan):
    """A mean over episodes (n,), with its 95 % interval; 0 where only rounding is left."""
    values = np.asarray(torch.as_tensor(values).cpu(), dtype=float).round(12)
    half = 1.96 * values.std(ddof=1) / len(values) ** 0.5 if len(values) > 1 else np.nan
    return {
        "metric": metric, "value": values.mean(), "lo": values.mean() - half, "hi": values.mean() + half, "split": split,
        "site": "output", "role": "last query", "control": control, "learner": learner, "reference": reference,
        "curve": curve, "scale": scale, "n": len(values),
    }  # fmt: skip


def _compare(task, split, control, learner, mine, reference, other, batches, fits):
    f, g, known = mine.answers[:, -1], other.answers[:, -1], (split, control, learner, reference)
    yield _row("prediction distance", agreement.prediction_distance(f, g), *known)
    yield _row("SPD", agreement.squared_prediction_distance(f, g, task.d_x), *known)
    if mine.slope is not None and other.slope is not None:
        yield _row("sensitivity cosine", agreement.sensitivity_cosine(mine.slope, other.slope), *known)
        yield _row("sensitivity distance", agreement.sensitivity_distance(mine.slope, other.slope), *known)
    x = _fit_inputs(task, batches, fits)
    weights = [agreement.implied_weights(x, one.further) for one in (mine, other)]
    yield _row("ILWD", agreement.implied_weight_distance(*weights), *known)


def _fit_inputs(task, batches, fits):
    return torch.cat([_further(task, task.prompts(b).asked) for b in batches])[:fits].double()


def _losses(task, split, own, answers, batches, curve="none", scale=np.nan):
    at = list(task.answers)
    truth = torch.cat([b.targets[:, at] for b in batches]).double()

    def per_episode(found):
        return task.loss_scale * (found.answers - truth).square().mean((1, 2))

    for control, mine in own.items():
        yield _row("loss", per_episode(mine), split, control, MODEL, curve=curve, scale=scale)
    for name, found in answers.items():
        yield _row("loss", per_episode(found), split, "reference", name, curve=curve, scale=scale)


def _curves(task, models, learners, episodes, seed, device):
    """Losses where inputs or tasks are other than in training; the rates stay those of training."""
    shown = [("input scale", s, replace(task, input_scale=s * task.input_scale)) for s in CURVES["input scale"]]
    shown += [("teacher scale", s, replace(task, teacher_scale=s * task.teacher_scale)) for s in CURVES["teacher scale"]]
    norm = float(task.inputs.second_moment(task.d_x).trace() ** 0.5) * task.input_scale
    shown += [("unseen inputs", s, replace(task, inputs=MixedInputs(norm), input_scale=s)) for s in UNSEEN]
    for curve, scale, other in shown:
        batches = list(draw(other, "test", episodes, seed, device))
        own = {control: _forward(model, other, batches) for control, model in models.items()}
        answers = {name: _forward_learner(one, other, batches) for name, one in learners.items()}
        yield from _losses(other, "test", own, answers, batches, curve, scale)


@torch.no_grad()
def _forward(model, task, batches):
    at = list(task.answers)
    return Answers(torch.cat([model(b.tokens)[:, at] for b in batches]).double(), None, None)


def _forward_learner(learner, task, batches):
    return Answers(torch.cat([learner.answers(*task.prompts(b)) for b in batches]), None, None)


def _interpolated(trained, learners, episodes, seed):
    """Loss halfway between the model's matrices and the construction's: W_Q W_K^T over its mean diagonal beta, W_V W_O times
    it (2212.07677, A.3). Only where the model is one linear head, the same in every layer."""
    task, architecture = trained.task, trained.run.architecture
    plain = type(architecture) is LinearSelfAttention and architecture.n_heads == 1
    if not plain or not (architecture.tied or architecture.n_layers == 1):
        return
    steps = architecture.n_layers
    descent = next(one for one in learners.values() if isinstance(one, GradientDescent) and one.steps == steps)
    built = ConstructedGradientDescent(n_layers=steps, eta=descent.eta).build(**task.dimensions)
    mixed, theirs = deepcopy(trained.model), _products(built, task.d_x)
    halfway = [(a + b.to(a)) / 2 for a, b in zip(_products(trained.model, task.d_x), theirs, strict=True)]
    attention = mixed.blocks[0].attn
    with torch.no_grad():
        for name, value in zip(("W_Q", "W_K", "W_V", "W_O"), (halfway[0], None, halfway[1], None), strict=True):
            parameter = getattr(attention, name)
            parameter.copy_((torch.eye(parameter.shape[1]) if value is None else value)[None])
    batches = list(draw(task, "test", episodes, seed, trained.device))
    truth = torch.cat([b.targets[:, -1] for b in batches]).double()
    loss = task.loss_scale * (_forward(mixed, task, batches).answers[:, -1] - truth).square().mean(1)
    yield _row("interpolated loss", loss, "test", "", MODEL, descent.name)


def _products(model, d_x):
    attention = model.blocks[0].attn
    with torch.no_grad():
        kq, pv = attention.W_Q[0] @ attention.W_K[0].T, attention.W_V[0] @ attention.W_O[0]
    beta = kq.diagonal()[:d_x].mean()
    return kq / beta, pv * beta


def _episodes(task, split, own, answers, batches):
    """Per episode, at the last query: prediction, target, score, and every reference's answer."""
    names = [task.composition_name(int(c)) for b in batches for c in b.composition]
    found, target = own.answers[:, -1], torch.cat([b.targets[:, task.answers[-1]] for b in batches]).double()
    score = 1 - (found - target).square().sum(1) / target.square().sum(1).clamp(min=1e-12)
    columns = {"split": split, "composition": names, "score": score.cpu().numpy()}
    columns |= {"prediction": list(found.cpu().numpy()), "target": list(target.cpu().numpy())}
    return pd.DataFrame(columns | {name: list(other.answers[:, -1].cpu().numpy()) for name, other in answers.items()})
