"""Function classes: what the implied function of a model that is Bayes' rule says, and of one that adds the classes up."""

import dataclasses
import math
from pathlib import Path

import pytest
import torch

from compolens import Run, SoftmaxTransformer, recipes
from compolens.activations.streams import draw
from compolens.foundation.configs import ConfigError, DoesNotApply
from compolens.hooks import HookedModel
from compolens.references.priors import GaussianMixture, gaussian_mixture_mean
from compolens.tasks import ClassesPrior, GaussianInputs, GaussianPrior, HarmonicInputs, InterleavedTokens, LinearRegression
from compolens.zoo.folders import TrainedModel

LOW_HIGH = ((0, 1), (2, 3, 4, 5))
TASK = LinearRegression(
    d_x=6, n_context=8, inputs=HarmonicInputs(), layout=InterleavedTokens(), noise=0.25, loss_scale=1.0,
    prior=ClassesPrior(LOW_HIGH), shifted_prior=ClassesPrior(LOW_HIGH, ((0.5, 0.5), (0.25, 0.75))),
)  # fmt: skip
TRAINED, ASKED = "Bayes, prior of training", "Bayes, prior of the split"


class Bayes(HookedModel):
    """Answers as the posterior mean under a prior, and adds a harmonic of its own."""

    def __init__(self, prior, beyond=0.0):
        super().__init__()
        self.prior, self.beyond = GaussianMixture(*prior.mixture(6)), beyond
        self.setup()

    def forward(self, tokens):
        x, y = tokens[:, ::2, :6], tokens[:, 1::2, :1]
        weights = gaussian_mixture_mean(x[:, :-1], y, list(range(9)), self.prior, 0.25)
        found = torch.zeros(len(tokens), 17, 1)
        angle = torch.atan2(x[..., 1], x[..., 0])
        found[:, ::2, 0] = torch.einsum("bnd,bnd->bn", x.double(), weights[..., 0]).float() + self.beyond * (5 * angle).cos()
        return found


class Alone(TrainedModel):
    why_no_untrained_control = "it is planted"
    device = torch.device("cpu")


def measured(model, task=TASK, **arguments):
    trained = Alone(Run(SoftmaxTransformer(), task), model, task, Path("planted"), 0)
    table, _ = recipes.load_recipe("probes", "function_classes")(trained, **{"episodes": 120} | arguments)
    return table


def rows_of(table, metric, split, control="", part=""):
    rows = table[(table["metric"] == metric) & (table["split"] == split) & (table["control"] == control)]
    return rows[rows["part"] == part].set_index(["composition", "shown"])["value"]


def test_a_model_that_is_bayes_rule_of_training_gives_every_class_its_probability():
    table = measured(Bayes(TASK.prior))
    for split in ("test", "ood"):
        assert rows_of(table, "distance", split, part=TRAINED).to_numpy() == pytest.approx(0, abs=1e-5)
        assert rows_of(table, "linear share", split).dropna().to_numpy() == pytest.approx(1, abs=1e-5)
        for part in ("class 0", "class 1"):
            own, bayes = (rows_of(table, "weight of class", split, control, part) for control in ("", TRAINED))
            assert own.to_numpy() == pytest.approx(bayes.to_numpy(), abs=1e-4)
    assert (rows_of(table, "distance", "ood", part=ASKED).xs(8, level=1) > 0.01).all()
    right = rows_of(table, "weight of class", "test", part="class 1")
    assert right["class 1", 8] > 0.9 and right["class 0", 8] < 0.1


def test_bayes_is_the_probability_of_each_class_times_its_own_answer():
    """With one coefficient a class and one example, by hand: p(class | y) from two normal densities. The probe's "weight of
    class" is the coefficient of these answers, so that of Bayes' rule is a weighted mean of these probabilities."""
    task = dataclasses.replace(TASK, prior=ClassesPrior(((0,), (3,))), shifted_prior=None)
    (shown,) = draw(task, "test", 60, 0, "cpu", batch=60)
    x, y = shown.tokens[:, 0, :6].double(), shown.tokens[:, 1, 0].double()
    variance = x.square() + 0.25**2
    density = [torch.distributions.Normal(0.0, variance[:, i].sqrt()).log_prob(y) for i in (0, 3)]
    posterior = torch.stack(density).softmax(0)
    table = measured(Bayes(task.prior), task, episodes=60)
    for k, (i, name) in enumerate(((0, "class 0"), (3, "class 1"))):
        answer = (x[:, i] * y / variance[:, i]).square()  # orthogonal harmonics: each class has a coefficient of its own
        for component in (0, 1):
            here = shown.codes["component"] == component
            expected = (posterior[k] * answer)[here].sum() / answer[here].sum()
            found = rows_of(table, "weight of class", "test", part=name)[f"class {component}", 1]
            assert found == pytest.approx(float(expected), abs=1e-5)


def test_a_model_that_knows_combinations_is_near_the_prior_of_the_split():
    table = measured(Bayes(TASK.shifted_prior))
    assert rows_of(table, "distance", "ood", part=ASKED).to_numpy() == pytest.approx(0, abs=1e-5)
    error, bound = (rows_of(table, "squared error", "ood", control) for control in ("", TRAINED))
    assert error.mean() < bound.mean()
    assert (rows_of(table, "squared error", "ood") <= rows_of(table, "squared error", "ood", "always 0") + 1e-9).mean() > 0.9


def test_a_frequency_that_no_class_has_is_seen_and_is_no_linear_function():
    table = measured(Bayes(TASK.prior, beyond=0.3))
    assert rows_of(table, "amplitude", "test", part="5").to_numpy() == pytest.approx(0.3, abs=1e-5)
    assert rows_of(table, "amplitude", "test", TRAINED, "5").to_numpy() == pytest.approx(0, abs=1e-9)
    assert rows_of(table, "linear share", "test")["class 0", 0] == pytest.approx(0, abs=1e-9)
    assert (rows_of(table, "linear share", "test").xs(8, level=1) < 1 - 0.01).all()


def test_amplitudes_of_the_true_function_are_those_of_its_coefficients():
    table = measured(Bayes(TASK.prior), episodes=40)
    (shown,) = draw(TASK, "test", 40, 0, "cpu", batch=40)
    for component, name in enumerate(("class 0", "class 1")):
        own = shown.codes["weights"][shown.codes["component"] == component].double()
        for k in (1, 2, 3):
            amplitude = math.sqrt(2) * own[:, 2 * k - 2 : 2 * k].norm(dim=1).mean()
            assert rows_of(table, "amplitude", "test", "true function", str(k))[name, 8] == pytest.approx(float(amplitude))


def test_without_harmonics_there_is_no_spectrum_and_the_rest_is_measured():
    task = dataclasses.replace(TASK, inputs=GaussianInputs(), shifted_prior=None)
    table = measured(Bayes(TASK.prior), task, episodes=20)
    assert "amplitude" not in set(table["metric"])
    assert rows_of(table, "distance", "test", part=TRAINED).to_numpy() == pytest.approx(0, abs=1e-5)


def test_where_it_does_not_apply_and_what_is_too_few():
    with pytest.raises(DoesNotApply, match="no mixture of function classes"):
        measured(Bayes(TASK.prior), dataclasses.replace(TASK, prior=GaussianPrior()))
    with pytest.raises(ConfigError, match="more questions than 6"):
        measured(Bayes(TASK.prior), questions=6)
    with pytest.raises(ConfigError, match="at least 3"):
        measured(Bayes(TASK.prior), episodes=2)


def test_without_classes_bayes_is_ridge_regression_with_the_mean_covariance():
    table = measured(Bayes(GaussianPrior((0.5,) * 6)))
    for split in ("test", "ood"):
        assert rows_of(table, "distance", split, part="Bayes, one normal prior").to_numpy() == pytest.approx(0, abs=1e-5)
