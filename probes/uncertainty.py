"""How sure is the model, beside how sure Bayes' rule would be, and under which prior?"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from compolens import tables
from compolens.activations.streams import draw
from compolens.foundation.configs import DoesNotApply, require
from compolens.measures.intervals import mean_interval
from compolens.references.priors import GaussianMixture, predictive
from compolens.tasks import UncertainRegression
from compolens.tasks.episodes import Episodes
from compolens.tasks.uncertain_regression import normal_log_density
from compolens.zoo.folders import TrainedModel

version = 1  # raised whenever its numbers change

TRAINED, ASKED, CONSTANT = "Bayes, prior of training", "Bayes, prior of the split", "constant"
WITHIN = 1.959964
"""Standard deviations about the mean that hold 95 % of a normal law."""


class Said(NamedTuple):
    """Means and variances of a learner's answers, (batch, answer, d_y) float64."""

    mean: Tensor
    variance: Tensor


def probe(trained: TrainedModel, *, episodes: int = 1024, seed: int = 0) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Variances that a model says, beside those of the posterior predictive distribution, by number of examples (2405.15115).

    Args:
        trained: the trained model, with its run, task and folder.
        episodes: episodes of each split, 2 or more.
        seed: seed of the episodes, which are never those of a training, even with an equal seed.

    Returns:
        The table, and a row per episode and split (score: the mean log-likelihood of its answers, nats).

        Column `shown`: the examples before the answer. lo, hi: 95 % over episodes (t).

        - "log-likelihood": of the answers, nats.
        - "squared error over variance": 1 where the variances are right on average, above 1 where the model is too sure.
        - "coverage": share of answers within 1.96 standard deviations of the mean; .95 for a normal law.
        - "standard deviation": mean of what is said.
        - "log variance over Bayes": mean of log(variance / Bayes' variance), and "distance of means": mean squared distance
          of means over the noise's variance. Column `prior`: Bayes under the prior of training, or of the split (held-out
          tasks may have another).
        - controls: "Bayes, prior of training", "Bayes, prior of the split"; "constant": mean and variance of all answers of
          the split, whatever is shown; "untrained": the untrained control.

    Raises:
        DoesNotApply: the task asks for no variance, or its prior has no closed form, as that of a pool of tasks.
        ConfigError: episodes is below 2.
    """
    require(episodes >= 2, f"need at least 2 episodes, got {episodes}; type --episodes 1024")
    task = trained.task
    if not isinstance(task, UncertainRegression):
        raise DoesNotApply(f"{type(task).__name__} asks for no variance, as UncertainRegression does")
    if task.n_tasks is not None:
        raise DoesNotApply(
            f"training knows a pool of {task.n_tasks} tasks, which is no prior with a closed form; leave n_tasks out"
        )
    rows: list[dict[str, Any]] = []
    kept: list[pd.DataFrame] = []
    for split in ("test", "ood"):
        (shown,) = draw(task, split, episodes, seed, trained.device, batch=episodes)
        targets = shown.targets[:, list(task.answers)].double().cpu()
        bayes = {TRAINED: _bayes(task, shown, task.mixture()), ASKED: _bayes(task, shown, _asked(task, split))}
        spread = targets.var((0, 1), correction=0).expand_as(targets)
        learners = {**bayes, CONSTANT: Said(targets.mean((0, 1)).expand_as(targets), spread)}
        for control, model in trained.with_untrained_control():
            with torch.no_grad():
                prediction = model(shown.tokens)[:, list(task.answers)].double().cpu()
            own = Said(*task.describe_prediction(prediction))
            rows += [row | {"split": split, "control": control} for row in _rows(task, shown, own, targets, bayes)]
            if not control:
                kept.append(_per_episode(task, shown, own, targets, split))
        for control, said in learners.items():
            rows += [row | {"split": split, "control": control} for row in _rows(task, shown, said, targets, {})]
    rows += tables.not_available([row for row in rows if not row["control"]], trained.why_no_untrained_control)
    return pd.DataFrame(rows), pd.concat(kept, ignore_index=True)


def _asked(task: UncertainRegression, split: str) -> tuple[Tensor, Tensor, Tensor]:
    """The prior that the split's tasks are drawn from, as `LinearRegression.mixture` gives that of training."""
    if split != "ood" or task.shifted_prior is None:
        return task.mixture()
    weights, means, covariances = task.shifted_prior.mixture(task.d_x)
    return weights, means * task.teacher_scale, covariances * task.teacher_scale**2


def _bayes(task: UncertainRegression, episodes: Episodes, mixture: tuple[Tensor, Tensor, Tensor]) -> Said:
    x, y, asked, shown = (part.cpu() for part in task.prompts(episodes))
    prior = GaussianMixture(*mixture)
    found = [predictive(x[:, :n], y[:, :n], asked[:, i], prior, task.noise) for i, n in enumerate(shown.tolist())]
    return Said(torch.stack([mean for mean, _ in found], 1), torch.stack([variance for _, variance in found], 1))


def _rows(
    task: UncertainRegression, episodes: Episodes, said: Said, targets: Tensor, bayes: dict[str, Said]
) -> Iterator[dict[str, Any]]:
    z = (targets - said.mean).square() / said.variance
    values = {
        ("log-likelihood", ""): normal_log_density(targets, *said),
        ("squared error over variance", ""): z,
        ("coverage", ""): (z <= WITHIN**2).double(),
        ("standard deviation", ""): said.variance.sqrt(),
    }
    for prior, other in bayes.items():
        values["log variance over Bayes", prior] = (said.variance / other.variance).log()
        values["distance of means", prior] = (said.mean - other.mean).square() / task.noise**2
    counts = task.prompts(episodes).shown
    for (metric, prior), value in values.items():
        for n in sorted(set(counts.tolist())):
            one = value[:, (counts == n).cpu()].mean((1, 2)).numpy()
            lo, hi = mean_interval(one)
            yield tables.row(
                metric, float(one.mean()), lo=lo, hi=hi, site="output", role="readout", n=len(one), shown=n, prior=prior,
            )  # fmt: skip


def _per_episode(task: UncertainRegression, episodes: Episodes, said: Said, targets: Tensor, split: str) -> pd.DataFrame:
    score = normal_log_density(targets, *said).mean((1, 2)).numpy()
    names = [task.composition_name(int(c)) for c in episodes.composition]
    return pd.DataFrame({"split": split, "composition": np.array(names), "score": score})
