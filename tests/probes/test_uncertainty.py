"""What a learner of Bayes' rule says of its variances, and what a model says that is one."""

import math
from pathlib import Path

import pytest
import torch
from scipy.stats import multivariate_normal

from compolens import Run, SoftmaxTransformer, recipes
from compolens.foundation.configs import ConfigError, DoesNotApply
from compolens.hooks import HookedModel
from compolens.references.priors import GaussianMixture, gaussian_mixture_mean, predictive
from compolens.tasks import GaussianInputs, GaussianPrior, LinearRegression, MixturePrior, UncertainRegression
from compolens.tasks.uncertain_regression import FLOOR, normal_log_density
from compolens.zoo.folders import TrainedModel

TASK = UncertainRegression(
    d_x=2,
    n_context=6,
    n_queries=2,
    inputs=GaussianInputs(),
    prior=GaussianPrior((1.0, 0.25)),
    shifted_prior=GaussianPrior((9.0, 9.0)),
)
TWO = MixturePrior(((2.0, 0.0), (-1.0, 1.0)), spread=0.5)


@pytest.mark.parametrize("prior", [TASK.prior, TWO], ids=["one Gaussian", "two Gaussians"])
def test_the_mean_is_that_of_the_weights_and_the_density_that_of_all_answers_together(prior):
    """p(y* | D) = p(y*, D) / p(D), by the densities of scipy; the mean by the other implementation of the posterior."""
    mixture = GaussianMixture(*prior.mixture(2))
    rng = torch.Generator().manual_seed(0)
    x, asked = torch.randn(3, 5, 2, generator=rng).double(), torch.randn(3, 2, generator=rng).double()
    y = torch.randn(3, 5, 1, generator=rng).double()
    mean, variance = predictive(x, y, asked, mixture, 0.5)
    weights = gaussian_mixture_mean(x, y, [5], mixture, 0.5)[:, 0]
    assert torch.allclose(mean, (asked[:, None] @ weights)[:, 0], atol=1e-9)
    grid = torch.linspace(-15, 15, 6001, dtype=torch.float64)
    for b in range(3):
        density = torch.zeros_like(grid)
        evidence = 0.0
        for log_weight, centre, covariance in zip(*mixture, strict=True):
            points = torch.cat([x[b], asked[b : b + 1]])
            together = points @ covariance @ points.T + 0.25 * torch.eye(6).double()
            answers = torch.cat([y[b, :, 0].expand(len(grid), 5), grid[:, None]], 1)
            weight = math.exp(log_weight)
            density += weight * torch.tensor(multivariate_normal(points @ centre, together).pdf(answers))
            evidence += weight * multivariate_normal(x[b] @ centre, together[:5, :5]).pdf(y[b, :, 0])
        density, step = density / evidence, float(grid[1] - grid[0])
        assert float(density.sum()) * step == pytest.approx(1, abs=1e-6)
        first = float((density * grid).sum()) * step
        assert first == pytest.approx(float(mean[b, 0]), abs=1e-6)
        assert float((density * (grid - first).square()).sum()) * step == pytest.approx(float(variance[b, 0]), abs=1e-5)


def test_without_demonstrations_the_prior_answers():
    mixture = GaussianMixture(*TASK.prior.mixture(2))
    asked = torch.tensor([[1.0, 2.0]])
    mean, variance = predictive(torch.zeros(1, 0, 2), torch.zeros(1, 0, 1), asked, mixture, 0.5)
    assert mean.item() == 0 and variance.item() == pytest.approx(1 + 0.25 * 4 + 0.25)


class Bayes(HookedModel):
    """Says what Bayes' rule says, or a variance that is too small by a factor."""

    def __init__(self, factor=1.0):
        super().__init__()
        self.factor = factor
        self.setup()

    def forward(self, tokens):
        x, y = tokens[:, :6, :2], tokens[:, :6, 2:]
        found = torch.zeros(len(tokens), 8, 2)
        for q in (6, 7):
            mean, variance = predictive(x, y, tokens[:, q, :2], GaussianMixture(*TASK.mixture()), TASK.noise)
            wanted = (variance * self.factor - FLOOR).float()
            found[:, q] = torch.cat([mean.float(), wanted.expm1().log()], 1)  # softplus undone
        return found


class Alone(TrainedModel):
    why_no_untrained_control = "it is planted"
    device = torch.device("cpu")


def measured(factor=1.0, task=TASK, **arguments):
    trained = Alone(Run(SoftmaxTransformer(), task), Bayes(factor), task, Path("planted"), 0)
    return recipes.load_recipe("probes", "uncertainty")(trained, **{"episodes": 2000} | arguments)


def value(table, metric, split, control="", prior=""):
    rows = table[(table["metric"] == metric) & (table["split"] == split) & (table["control"] == control)]
    (found,) = rows[rows["prior"] == prior]["value"]
    return found


def test_a_model_that_is_bayes_is_calibrated_on_its_prior_and_too_sure_beyond_it():
    table, rows = measured()
    assert value(table, "squared error over variance", "test") == pytest.approx(1, abs=0.08)
    assert value(table, "coverage", "test") == pytest.approx(0.95, abs=0.015)
    assert value(table, "squared error over variance", "ood") > 1.2
    for split in ("test", "ood"):
        for metric in ("log variance over Bayes", "distance of means"):
            assert value(table, metric, split, prior="Bayes, prior of training") == pytest.approx(0, abs=1e-3)
        for metric in ("log-likelihood", "squared error over variance", "standard deviation"):
            own, bayes = value(table, metric, split), value(table, metric, split, "Bayes, prior of training")
            assert own == pytest.approx(bayes, abs=1e-3)
    assert value(table, "log variance over Bayes", "ood", prior="Bayes, prior of the split") < -0.01
    best = value(table, "log-likelihood", "ood", "Bayes, prior of the split")
    assert best > value(table, "log-likelihood", "ood") > value(table, "log-likelihood", "ood", "constant")
    assert value(table, "squared error over variance", "ood", "Bayes, prior of the split") == pytest.approx(1, abs=0.08)
    assert len(rows) == 4000 and rows["score"].mean() < 0


def test_a_model_that_is_too_sure_is_told():
    table, _ = measured(0.25)
    assert value(table, "squared error over variance", "test") == pytest.approx(4, abs=0.35)
    assert value(table, "log variance over Bayes", "test", prior="Bayes, prior of training") == pytest.approx(
        math.log(0.25), abs=0.01
    )
    assert value(table, "coverage", "test") == pytest.approx(math.erf(0.98 / math.sqrt(2)), abs=0.03)  # .67


def test_the_loss_is_least_at_bayes_rule():
    episodes = TASK.sample(4000, "test", TASK.rng(0, "test"))
    losses = {factor: float(TASK.loss(Bayes(factor)(episodes.tokens), episodes.targets)) for factor in (0.7, 1.0, 1.4)}
    assert min(losses, key=losses.get) == 1.0


def test_the_density_is_scipys():
    y, mean, variance = torch.tensor([0.3, -2.0]), torch.tensor([0.0, 1.0]), torch.tensor([0.5, 4.0])
    own = normal_log_density(y, mean, variance)
    for i in range(2):
        law = multivariate_normal(mean[i].item(), variance[i].item())
        assert own[i].item() == pytest.approx(law.logpdf(y[i].item()), abs=1e-6)


def test_where_there_is_no_variance_to_say_it_says_so():
    with pytest.raises(DoesNotApply, match="asks for no variance"):
        measured(task=LinearRegression())
    with pytest.raises(ConfigError, match="noise must be above 0"):
        UncertainRegression(noise=0.0)
    with pytest.raises(ConfigError, match="leave loss_scale at 1"):
        UncertainRegression(loss_scale=0.5)
    with pytest.raises(ConfigError, match="at least 2"):
        measured(episodes=1)
