"""Which class of functions does the model take its examples for, and what does it make of a combination of classes?"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from compolens import tables
from compolens.activations.streams import draw
from compolens.foundation.configs import DoesNotApply, require
from compolens.hooks import HookedModel
from compolens.measures.intervals import mean_interval, student_quantile
from compolens.references.priors import GaussianMixture, gaussian_mixture_mean
from compolens.tasks import ClassesPrior, HarmonicInputs, LinearRegression
from compolens.tasks.episodes import Episodes
from compolens.zoo.folders import TrainedModel

version = 1  # raised whenever its numbers change

TRAINED, ASKED, ONE = "Bayes, prior of training", "Bayes, prior of the split", "Bayes, one normal prior"
TRUE, NOTHING = "true function", "always 0"
BATCH = 1024
"""Sequences that a model is asked at once."""


def probe(
    trained: TrainedModel, *, episodes: int = 256, questions: int = 16, seed: int = 0
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The function that a model answers with, by number of examples, beside Bayes' rule (2306.04891, 2311.00871).

    After some examples the same questions are put to all episodes. The answers are the implied function. The posterior mean
    under the prior of training is a sum over classes: the probability of a class times what the class alone would answer.

    Args:
        trained: the trained model, with its run, task and folder.
        episodes: episodes of each split, 3 or more.
        questions: how many are asked, more than the family has coefficients; on the circle at equal distances.
        seed: seed of the episodes, which are never those of a training, even with an equal seed.

    Returns:
        The table, and a row per episode and split (score: 1 - squared error over that of always answering 0, after all
        examples).

        Column `composition`: a class, or a combination of classes; `shown`: the examples before the question, 0, 1, 2, 4, …
        and all. lo, hi: 95 % over episodes (t; of quotients by the jackknife).

        - "squared error": of the implied function, from the true one, mean over questions.
        - "distance": the same from the posterior mean. Column `part`: which prior: that of training, that of the split, or one
          normal law with the covariance of training and no classes, under which the posterior mean is ridge regression.
        - "weight of class": least-squares coefficients of the implied function on what each class alone would answer; column
          `part`: the class. Of the posterior mean under the prior of training these are means of the classes' probabilities,
          weighted by the squares of their answers. None before the first example.
        - "amplitude": of the implied function at a frequency (column `part`), where inputs are `HarmonicInputs`; frequencies
          that no class has are shown as well.
        - "linear share": of the implied function's mean square, what a linear function of the inputs has of it: the implied
          weights. 1 at most.
        - controls: "Bayes, prior of training", "Bayes, prior of the split", "Bayes, one normal prior", "true function",
          "always 0", and "untrained", the untrained control.

    Raises:
        DoesNotApply: the task is no mixture of function classes with tokens in turn.
        ConfigError: too few episodes or questions.
    """
    task = trained.task
    if not isinstance(task, LinearRegression) or not isinstance(task.prior, ClassesPrior) or not task.interleaved:
        raise DoesNotApply(
            f"{type(task).__name__} here is no mixture of function classes; "
            "train LinearRegression(prior=ClassesPrior(…), layout=InterleavedTokens())"
        )
    if task.n_tasks is not None:
        raise DoesNotApply(
            f"training knows a pool of {task.n_tasks} tasks, which is no prior with a closed form; leave n_tasks out"
        )
    require(episodes >= 3, f"need at least 3 episodes, got {episodes}; type --episodes 256")
    few = f"{task.d_x} coefficients need more questions than {questions}; type --questions {2 * task.d_x}"
    require(questions > task.d_x, few)
    lengths = sorted({0, task.n_context} | {2**k for k in range(task.n_context.bit_length()) if 2**k <= task.n_context})
    x = _questions(task, questions)
    rows: list[dict[str, Any]] = []
    kept: list[pd.DataFrame] = []
    for split in ("test", "ood"):
        (shown,) = draw(task, split, episodes, seed, trained.device, batch=episodes)
        priors = {TRAINED: task.mixture(), ASKED: _asked(task, split), ONE: _without_classes(task)}
        bayes = {name: _bayes(task, shown, prior, lengths) for name, prior in priors.items()}
        classes = [_bayes(task, shown, one, lengths) for one in _alone(task)]
        functions = {name: _values(x, weights) for name, weights in bayes.items()}
        alone = torch.stack([_values(x, weights) for weights in classes], -1)
        true = shown.codes["weights"].double().cpu().view(-1, 1, task.d_x, task.d_y).expand(-1, len(lengths), -1, -1)
        learners = {**functions, TRUE: _values(x, true)}
        learners[NOTHING] = torch.zeros_like(learners[TRUE])
        for control, model in trained.with_untrained_control():
            own = _implied(model, task, shown, x, lengths)
            found = _rows(task, shown, lengths, x, own, learners, alone)
            rows += [row | {"split": split, "control": control} for row in found]
            if not control:
                kept.append(_per_episode(task, shown, own, learners[TRUE], split))
        for control, function in learners.items():
            found = _rows(task, shown, lengths, x, function, learners, alone)
            rows += [row | {"split": split, "control": control} for row in found if _told(control, row["metric"])]
    rows += tables.not_available([row for row in rows if not row["control"]], trained.why_no_untrained_control)
    return pd.DataFrame(rows), pd.concat(kept, ignore_index=True)


def _told(control: str, metric: str) -> bool:
    """Which numbers of a learner that is no model say something."""
    if control in (TRUE, NOTHING):
        return metric == {TRUE: "amplitude", NOTHING: "squared error"}[control]
    return metric in ("squared error", "weight of class", "amplitude")


# ---- functions -------------------------------------------------------------------------------------------------------
def _questions(task: LinearRegression, count: int) -> Tensor:
    """(question, d_x) float64, the same for all."""
    if isinstance(task.inputs, HarmonicInputs):
        return task.inputs.at(2 * torch.pi * torch.arange(count, dtype=torch.float64) / count, task.d_x) * task.input_scale
    drawn = task.inputs.draw(1, count, task.d_x, torch.Generator().manual_seed(0))[0]
    return drawn.double() * task.input_scale


def _asked(task: LinearRegression, split: str) -> tuple[Tensor, Tensor, Tensor]:
    """The prior that the split's tasks are drawn from, as `LinearRegression.mixture` gives that of training."""
    if split != "ood" or task.shifted_prior is None:
        return task.mixture()
    weights, means, covariances = task.shifted_prior.mixture(task.d_x)
    return weights, means * task.teacher_scale, covariances * task.teacher_scale**2


def _without_classes(task: LinearRegression) -> tuple[Tensor, Tensor, Tensor]:
    """One normal law with the covariance of training, whichever class."""
    weights, means, covariances = task.mixture()
    covariance = torch.einsum("m,mij->ij", weights.exp(), covariances)
    return weights.new_zeros(1), means[:1], covariance[None]


def _alone(task: LinearRegression) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """The prior of every class, without the others."""
    assert isinstance(task.prior, ClassesPrior)
    for variance in task.prior.variances(task.d_x):
        covariance = torch.diag(variance)[None] * task.teacher_scale**2
        yield torch.zeros(1, dtype=torch.float64), torch.zeros_like(variance)[None], covariance


def _bayes(task: LinearRegression, episodes: Episodes, mixture: tuple[Tensor, Tensor, Tensor], lengths: list[int]) -> Tensor:
    """(batch, length, d_x, d_y)."""
    x, y, *_ = task.prompts(episodes)
    return gaussian_mixture_mean(x.cpu(), y.cpu(), lengths, GaussianMixture(*mixture), task.noise)


def _values(x: Tensor, weights: Tensor) -> Tensor:
    """(batch, length, question, d_y)."""
    return torch.einsum("qd,blde->blqe", x, weights)


@torch.no_grad()
def _implied(model: HookedModel, task: LinearRegression, episodes: Episodes, x: Tensor, lengths: list[int]) -> Tensor:
    """The model's answers (batch, length, question, d_y) float64: each question stands where the next input would."""
    found = torch.zeros(len(episodes.tokens), len(lengths), len(x), task.d_y, dtype=torch.float64)
    asked = x.to(episodes.tokens)
    for i, n in enumerate(lengths):
        tokens = episodes.tokens[:, None].repeat(1, len(x), 1, 1)
        tokens[:, :, 2 * n] = 0
        tokens[:, :, 2 * n, : task.d_x] = asked
        answers = [model(part)[:, 2 * n].double().cpu() for part in tokens.flatten(0, 1).split(BATCH)]
        found[:, i] = torch.cat(answers).view(len(tokens), len(x), -1)
    return found


# ---- rows ------------------------------------------------------------------------------------------------------------
def _rows(
    task: LinearRegression, episodes: Episodes, lengths: list[int], x: Tensor, own: Tensor, learners: dict[str, Tensor],
    alone: Tensor,
) -> Iterator[dict[str, Any]]:  # fmt: skip
    linear = x @ torch.linalg.pinv(x)
    fitted = torch.einsum("pq,blqe->blpe", linear, own)
    spectrum = _amplitudes(task, own)
    for composition in episodes.composition.unique().tolist():
        here = (episodes.composition == composition).cpu()
        for i, n in enumerate(lengths):
            where: dict[str, Any] = {"composition": task.composition_name(composition), "shown": n, "n": int(here.sum())}
            where |= {"site": "output", "role": "readout"}

            said = own[here, i]
            means = {("squared error", ""): (said - learners[TRUE][here, i]).square().mean((1, 2))}
            for prior in (TRAINED, ASKED, ONE):
                means["distance", prior] = (said - learners[prior][here, i]).square().mean((1, 2))
            means |= {("amplitude", str(k)): spectrum[here, i, k] for k in range(spectrum.shape[2])}
            for (metric, part), values in means.items():
                lo, hi = mean_interval(values.numpy())
                yield tables.row(metric, float(values.mean()), lo=lo, hi=hi, part=part, **where)
            basis = alone[here, i].flatten(1, 2)
            if n:
                for c, (value, lo, hi) in enumerate(zip(*_coefficients(basis, said.flatten(1)), strict=True)):
                    yield tables.row("weight of class", value, lo=lo, hi=hi, part=f"class {c}", **where)
            (share,), (lo,), (hi,) = _coefficients(said.flatten(1)[..., None], fitted[here, i].flatten(1))
            yield tables.row("linear share", share, lo=lo, hi=hi, part="", **where)


def _amplitudes(task: LinearRegression, own: Tensor) -> Tensor:
    """(batch, length, frequency), of the first output; no frequencies where inputs are no harmonics."""
    if not isinstance(task.inputs, HarmonicInputs):
        return own.new_zeros(*own.shape[:2], 0)
    count = own.shape[2]
    found = torch.fft.rfft(own[..., 0], dim=2).abs() / count
    found[:, :, 1 : (count + 1) // 2] *= 2  # the frequencies that have a negative one
    return found


def _coefficients(basis: Tensor, values: Tensor) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Least squares over all episodes and questions: coefficients, and their 95 % intervals by leaving an episode out.

    basis: (episode, question, k). values: (episode, question). Returns (k,) each; NaN where the basis is singular.
    """
    gram, moment = basis.mT @ basis, (basis.mT @ values[..., None])
    whole, left = _solved(gram.sum(0), moment.sum(0)), _solved(gram.sum(0) - gram, moment.sum(0) - moment)
    count = len(basis)
    if count < 3:
        return whole, np.full_like(whole, np.nan), np.full_like(whole, np.nan)
    se = np.sqrt((count - 1) * np.mean((left - left.mean(0)) ** 2, 0))
    half = student_quantile(0.975, count - 1) * se
    return whole, whole - half, whole + half


def _solved(gram: Tensor, moment: Tensor) -> np.ndarray:
    """(…, k): NaN where there is nothing to be told apart."""
    found, info = torch.linalg.solve_ex(gram, moment)
    return torch.where((info > 0)[..., None], torch.nan, found[..., 0]).numpy()


def _per_episode(task: LinearRegression, episodes: Episodes, own: Tensor, true: Tensor, split: str) -> pd.DataFrame:
    error, size = ((part[:, -1]).square().mean((1, 2)).numpy() for part in (own - true, true))
    names = [task.composition_name(int(c)) for c in episodes.composition]
    return pd.DataFrame({"split": split, "composition": names, "score": 1 - error / size})
