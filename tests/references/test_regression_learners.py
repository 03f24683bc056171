"""Learners of in-context linear regression: each equals an independent implementation, and known risks come out."""

import itertools

import numpy as np
import pytest
import torch
from scipy.stats import multivariate_normal
from sklearn.linear_model import Ridge as TheirRidge
from sklearn.linear_model import SGDRegressor
from sklearn.neighbors import KNeighborsRegressor

from compolens import Hyperteacher, LinearRegression
from compolens.foundation.configs import ConfigError
from compolens.references import (
    REFERENCES,
    DebiasedGradientDescent,
    FrobeniusNewton,
    GradientDescent,
    GradientDescentPlusPlus,
    LeastSquares,
    NearestNeighbours,
    Newton,
    OnlineSGD,
    PoolPosteriorMean,
    PosteriorMean,
    Ridge,
)
from compolens.references import regression as regression_module
from compolens.references.gradient_descent import Trials, tune_rates, tuning_questions
from compolens.references.priors import GaussianMixture, gaussian_mixture_mean, pool_mean
from compolens.references.regression import RegressionLearner, Spectrum, all_weights
from compolens.tasks.regression_laws import GaussianPrior, MixturePrior, SparsePrior

D, N, OUTPUTS = 5, 9, 2
LENGTHS = range(N + 1)
PLAIN = GaussianMixture(torch.zeros(1).double(), torch.zeros(1, D).double(), torch.eye(D).double()[None])


def problem(batch=4, n=N, d=D, outputs=OUTPUTS, noise=0.3, seed=0):
    """x (batch, n, d), y (batch, n, outputs), w (batch, d, outputs)."""
    rng = torch.Generator().manual_seed(seed)
    x, w = (torch.randn(batch, *shape, d, generator=rng, dtype=torch.float64) for shape in ((n,), (outputs,)))
    return x, x @ w.mT + noise * torch.randn(batch, n, outputs, generator=rng, dtype=torch.float64), w.mT


def each_prompt(x, y, lengths=LENGTHS):
    return ((b, n, x[b, :n], y[b, :n]) for b in range(len(x)) for n in lengths)


def close(ours, theirs, atol=1e-9):
    torch.testing.assert_close(ours, torch.as_tensor(theirs), rtol=0, atol=atol)


# ---- gradient descent ------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("steps", [1, 2, 5, 300])
def test_gradient_descent_is_that_of_autograd_on_half_the_mean_squared_error(steps):
    x, y, _ = problem()
    found = GradientDescent(steps, 0.05).weights(x, y, LENGTHS)
    for b, n, shown, answers in each_prompt(x[:2], y[:2], (0, 1, 3, 5, 9)):
        w = torch.zeros(D, OUTPUTS, dtype=torch.float64, requires_grad=True)
        for _ in range(steps if n else 0):
            (grad,) = torch.autograd.grad((shown @ w - answers).square().sum() / (2 * n), w)
            w = (w - 0.05 * grad).detach().requires_grad_()
        close(found[b, n], w.detach())


@pytest.mark.parametrize("steps", [1, 2, 4])
def test_gd_plus_plus_is_the_recursion_on_the_tokens(steps, eta=0.8, gamma=0.03):
    x, y, _ = problem()
    asked, shown = problem(n=3, seed=1)[0], torch.tensor([2, 5, 9])
    found = GradientDescentPlusPlus(steps, eta, gamma).answers(x, y, asked, shown)
    for b, a in itertools.product(range(len(x)), range(3)):
        n = int(shown[a])
        inputs, answers = torch.cat([x[b, :n], asked[b, a : a + 1]]), torch.cat([y[b, :n], torch.zeros(1, OUTPUTS)])
        for _ in range(steps):  # a layer: every token reads the demonstrations, as they are before it
            scores = inputs @ inputs[:n].T
            answers, inputs = answers - eta / n * scores @ answers[:n], inputs - gamma * scores @ inputs[:n]
        close(found[b, a], -answers[-1])


def test_gd_plus_plus_without_gamma_is_gradient_descent():
    x, y, _ = problem()
    close(GradientDescentPlusPlus(3, 0.2, 0.0).weights(x, y, LENGTHS), GradientDescent(3, 0.2).weights(x, y, LENGTHS))


# ---- least squares, ridge, Newton ------------------------------------------------------------------------------------
@pytest.mark.parametrize("learner", [Newton(4), Newton(3, 0.5), Newton(3, 2.0), FrobeniusNewton(4)], ids=lambda one: one.name)
def test_newton_is_the_recursion_on_matrices(learner):
    x, y, _ = problem()
    found = learner.weights(x, y, LENGTHS)
    for b, n, shown, answers in each_prompt(x, y, range(1, N + 1)):
        s = shown.T @ shown
        order, scale = ("fro", 1.0) if isinstance(learner, FrobeniusNewton) else (2, learner.scale)
        m = scale / torch.linalg.matrix_norm(s @ s.T, order) * s
        for _ in range(learner.steps):
            m = 2 * m - m @ s @ m
        close(found[b, n], m @ shown.T @ answers, 1e-8)


def test_newton_converges_to_least_squares_unless_it_starts_at_the_printed_2():
    x, y, _ = problem(n=D + 20)
    (exact,) = LeastSquares().weights(x, y, [D + 20]).unbind(1)
    for learner in (Newton(12), Newton(12, 1.5), FrobeniusNewton(14)):
        close(learner.weights(x, y, [D + 20])[:, 0], exact)
    printed = Newton(20, 2.0).weights(x, y, [D + 20])[:, 0]
    top = torch.linalg.eigh(x.mT @ x)[1][..., -1:]
    close(printed, exact - top @ (top.mT @ exact), 1e-7)  # the direction of the largest eigenvalue is lost


@pytest.mark.parametrize("l2", [0.1, 2.0])
def test_ridge_is_scikit_learns_at_every_prefix(l2):
    x, y, _ = problem()
    found = Ridge(l2).weights(x, y, LENGTHS)
    assert (found[:, 0] == 0).all()
    for b, n, shown, answers in each_prompt(x, y, range(1, N + 1)):
        close(found[b, n], TheirRidge(l2, fit_intercept=False).fit(shown, answers).coef_.T)


def test_least_squares_is_numpys_of_least_norm_at_every_prefix_and_with_repeated_demonstrations():
    x, y, _ = problem()
    x[0, 3:6], y[0, 3:6] = x[0, :3], y[0, :3] + 1
    found = LeastSquares().weights(x, y, LENGTHS)
    for b, n, shown, answers in each_prompt(x, y, range(1, N + 1)):
        close(found[b, n], np.linalg.lstsq(shown.numpy(), answers.numpy(), rcond=None)[0], 1e-6)


# ---- not spectral ----------------------------------------------------------------------------------------------------
def test_online_sgd_is_scikit_learns():
    x, y, _ = problem(outputs=1)
    found = OnlineSGD(0.05).weights(x, y, [4, 0, 9])
    assert (found[:, 1] == 0).all()
    for b, (place, n) in itertools.product(range(len(x)), ((0, 4), (2, 9))):
        theirs = SGDRegressor(alpha=0.0, penalty=None, fit_intercept=False, learning_rate="constant", eta0=0.05)
        for i in range(n):
            theirs.partial_fit(x[b, i : i + 1], y[b, i : i + 1, 0])
        close(found[b, place, :, 0], theirs.coef_)


@pytest.mark.parametrize("weighted", [False, True])
def test_nearest_neighbours_are_scikit_learns(weighted):
    x, y, _ = problem()
    asked, shown = problem(n=4, seed=1)[0], torch.tensor([0, 2, 3, 9])
    asked[:, 3] = x[:, 6]  # an input that was shown: its own answer, if weighted
    found = NearestNeighbours(3, weighted).answers(x, y, asked, shown)
    assert (found[:, 0] == 0).all() and (not weighted or torch.equal(found[:, 3], y[:, 6]))
    weights = (lambda d: 1 / np.maximum(d, 1e-30) ** 2) if weighted else "uniform"
    for b, a in itertools.product(range(len(x)), (1, 2, 3)):
        n = int(shown[a])
        theirs = KNeighborsRegressor(min(3, n), weights=weights).fit(x[b, :n], y[b, :n])
        close(found[b, a], theirs.predict(asked[b, a : a + 1])[0])


# ---- posterior means -------------------------------------------------------------------------------------------------
def by_marginal_likelihood(x, y, prior, noise):
    """The posterior mean of one prompt from the joint Gaussian of weights and answers: no normal equations anywhere."""
    evidence, means = [], []
    for log_weight, mean, covariance in zip(*(part.numpy() for part in prior), strict=True):
        joint = x @ covariance @ x.T + noise**2 * np.eye(len(x))
        law = multivariate_normal(x @ mean, joint)
        evidence.append(log_weight + sum(law.logpdf(column) for column in y.T))
        means.append(mean[:, None] + covariance @ x.T @ np.linalg.solve(joint, y - (x @ mean)[:, None]))
    posterior = np.exp(np.array(evidence) - np.max(evidence))
    return np.tensordot(posterior / posterior.sum(), np.stack(means), 1)


def priors():
    rng = torch.Generator().manual_seed(5)
    roots = torch.randn(3, D, D, generator=rng, dtype=torch.float64)
    dense = GaussianMixture(
        torch.tensor([0.2, 0.5, 0.3], dtype=torch.float64).log(),
        torch.randn(3, D, generator=rng, dtype=torch.float64),
        roots @ roots.mT,
    )
    singular = dense._replace(covariances=roots[..., :2] @ roots[..., :2].mT)
    uneven = dense._replace(
        covariances=torch.diag_embed(torch.tensor([[1, 0, 2, 0, 0], [0, 3, 0, 0, 0], [1, 1, 0, 1, 1.0]])).double()
    )
    sparse = GaussianMixture(*SparsePrior(2).mixture(D))
    return {"dense": dense, "singular": singular, "uneven": uneven, "sparse": sparse, "plain": PLAIN}


@pytest.mark.parametrize("noise", [0.3, 1.0])
@pytest.mark.parametrize("prior", priors().values(), ids=priors())
def test_the_posterior_mean_is_that_of_the_joint_law(prior, noise):
    x, y, _ = problem()
    found = gaussian_mixture_mean(x, y, LENGTHS, prior, noise)
    close(found[:, 0], (prior.log_weights.exp() @ prior.means)[:, None].expand(len(x), D, OUTPUTS))
    for b, n, shown, answers in each_prompt(x, y, range(1, N + 1)):
        close(found[b, n], by_marginal_likelihood(shown.numpy(), answers.numpy(), prior, noise))


def test_the_posterior_mean_is_the_integral_over_a_grid():
    x, y, _ = problem(batch=2, n=2, d=2, outputs=1)
    covariances = torch.tensor([[[1.0, 0.5], [0.5, 2.0]], [[0.5, 0.0], [0.0, 0.5]]]).double()
    prior = GaussianMixture(
        torch.tensor([0.3, 0.7], dtype=torch.float64).log(), torch.tensor([[1.0, 0], [-1, 1]]).double(), covariances
    )
    axis = np.linspace(-9, 9, 301)
    grid = np.stack(np.meshgrid(axis, axis), -1).reshape(-1, 2)
    components = zip((0.3, 0.7), prior.means.numpy(), covariances.numpy(), strict=True)
    density = sum(p * multivariate_normal(mean, c).pdf(grid) for p, mean, c in components)
    found = gaussian_mixture_mean(x, y, [2], prior, 0.4)
    for b in range(2):
        likelihood = np.exp(-((y[b, :, 0].numpy() - grid @ x[b].numpy().T) ** 2).sum(1) / (2 * 0.4**2))
        close(found[b, 0, :, 0], (density * likelihood) @ grid / (density @ likelihood), 1e-5)


def test_one_isotropic_component_is_ridge_and_without_noise_least_squares():
    x, y, _ = problem()
    close(PosteriorMean(PLAIN, 0.5).weights(x, y, LENGTHS), Ridge(0.25).weights(x, y, LENGTHS))
    close(PosteriorMean(PLAIN, 0.0).weights(x, y, [2, 8]), LeastSquares().weights(x, y, [2, 8]), 1e-5)


def test_sparse_weights_are_found_from_fewer_demonstrations_than_dimensions():
    prior = GaussianMixture(*SparsePrior(2).mixture(8))
    x, _, w = problem(64, n=3, d=8, noise=0.0)
    w[:, 2:] = 0
    found = gaussian_mixture_mean(x, x @ w, [1, 3], prior, 0.0)
    assert (found[:, 1] - w).abs().max() < 1e-3 < (found[:, 0] - w).abs().mean()


def test_the_pool_posterior_is_the_sum_over_its_members(noise=0.7):
    x, y, _ = problem()
    pool = torch.randn(6, D, OUTPUTS, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    found = pool_mean(x, y, LENGTHS, pool, noise)
    for b, n, shown, answers in each_prompt(x, y):
        odds = [float(torch.exp(-(answers - shown @ w).square().sum() / (2 * noise**2))) for w in pool]
        close(found[b, n], sum(p * w for p, w in zip(odds, pool, strict=True)) / sum(odds))


def test_without_noise_the_best_fitting_members_of_the_pool_answer():
    x, _, w = problem()
    pool = torch.cat([w, w[:1]])
    pool[-1, 0] += 3  # differs from the first only in what the first demonstrations do not show
    x[0, :2, 0] = 0
    found = pool_mean(x, (x @ w).float(), [0, 2, 5], pool, 0.0)
    close(found[:, 0], pool.mean(0).expand_as(w))
    close(found[0, 1], (pool[0] + pool[-1]) / 2, 1e-6)
    close(found[:, 2], w, 1e-6)


# ---- known risks -----------------------------------------------------------------------------------------------------
def test_one_tuned_step_has_the_closed_form_risk(d=10, n=10, a=0.5):
    """x uniform on (-a, a), w standard normal: half the squared error is d s (1 - s²/M) / 2 at rate s / M; s = a²/3."""
    s, m4 = a**2 / 3, a**4 / 5
    m2 = (m4 + (d - 1) * s**2) / n + (1 - 1 / n) * s**2
    task = LinearRegression.von_oswald(d, n)
    tuned = GradientDescent().for_task(task)
    assert tuned.eta == pytest.approx(s / m2, rel=0.02) and s / m2 == pytest.approx(6.06, abs=0.005)
    trials = Trials.of(*tuning_questions(task))
    ours = trials.loss(GradientDescent(1, s / m2).gains(trials.values, trials.shown)) / 2
    assert 0.5 * d * s * (1 - s**2 / m2) == pytest.approx(0.2062, abs=5e-5)
    assert float(ours) == pytest.approx(0.2062, abs=0.006)  # four standard errors


def test_the_rate_of_one_step_is_the_exact_minimum_of_its_quadratic():
    x, y, w = problem(200)
    asked = problem(200, n=3, seed=1)[0]
    shown = torch.tensor([2, 5, 9])
    tuned = GradientDescent().tuned(Trials.of(x, y, asked, shown, asked @ w))
    unit = GradientDescent(1, 1.0).answers(x, y, asked, shown)
    best = (unit * (asked @ w)).sum() / unit.square().sum()
    assert tuned.eta == pytest.approx(float(best), rel=1e-5)


def test_the_trained_layer_of_2306_09927_has_its_risk(d=10, n=10):
    """With standard normal x the optimum is one step of rate n / (n + d + 1), of squared error d (d + 1) / (n + d + 1)."""
    rng = torch.Generator().manual_seed(0)
    x, w = (torch.randn(20000, k, d, generator=rng, dtype=torch.float64) for k in (n, 1))
    found = GradientDescent(1, n / (n + d + 1)).weights(x, x @ w.mT, [n])[:, 0]
    error = (found - w.mT).square().sum((1, 2))  # squared error at a query, averaged over queries exactly
    assert float(error.mean()) == pytest.approx(d * (d + 1) / (n + d + 1), abs=4 * float(error.std()) / len(x) ** 0.5)


@pytest.mark.parametrize("n, gamma", [(10, 0.179), (25, 0.099), (50, 0.056), (100, 0.029)])
def test_tuned_gd_plus_plus_has_the_papers_gamma(n, gamma, d=10, episodes=4000):
    x = torch.rand(episodes, n, d, generator=torch.Generator().manual_seed(0), dtype=torch.float64) - 0.5
    values = Spectrum.of(x, x).values.reshape(-1, 1)  # the expectation over w and query is mean (1 - value gain)²
    trials = Trials(values, values[..., None], torch.full_like(values, n), torch.ones_like(values))
    tuned = GradientDescentPlusPlus(2).tuned(trials)
    assert tuned.gamma == pytest.approx(gamma, rel=0.05)
    if n == 10:
        losses = [trials.loss(one.gains(values, trials.shown)) * d / 24 for one in (GradientDescent(2).tuned(trials), tuned)]
        assert [float(loss) for loss in losses] == pytest.approx([0.157, 0.111], abs=0.002)


FLOOR = {
    "GD1": (1, 0.910, 0.894, 0.711, 0.869, 0.732),
    "GD2": (0.910, 1, 0.953, 0.906, 0.945, 0.818),
    "GD++2": (0.894, 0.953, 1, 0.894, 0.982, 0.868),
}
"""Mean cosine of weights with those of GD1, GD2, GD++2, five Newton steps (printed start), ridge 0.1, least squares."""


def test_weights_of_different_learners_are_as_alike_as_measured_before():
    rng = torch.Generator().manual_seed(0)
    x, w = torch.rand(4000, 10, 10, generator=rng, dtype=torch.float64) - 0.5, torch.randn(4000, 10, 1, generator=rng).double()
    learners = [GradientDescent(1, 6.06), GradientDescent(2, 6.0), GradientDescentPlusPlus(2, 13.4, 0.178), Newton(5, 2.0)]
    found = [one[:, 0, :, 0] for one in all_weights([*learners, Ridge(0.1), LeastSquares()], x, x @ w, [10])]
    for mine, row in zip(found, FLOOR.values(), strict=False):
        assert [float(torch.cosine_similarity(mine, other).mean()) for other in found] == pytest.approx(row, abs=0.01)


# ---- every learner ---------------------------------------------------------------------------------------------------
FIXED = [
    GradientDescent(2, 0.3), GradientDescentPlusPlus(2, 0.3, 0.02), Newton(), FrobeniusNewton(), Ridge(0.1), LeastSquares(),
    OnlineSGD(), PosteriorMean(PLAIN, 0.3), PoolPosteriorMean(torch.eye(D)[:, :, None].double(), 0.3),
]  # fmt: skip


def test_shared_spectra_lengths_in_any_order_and_chunks_change_nothing(monkeypatch):
    x, y, _ = problem(outputs=1)
    alone = [one.weights(x, y, LENGTHS) for one in FIXED]
    monkeypatch.setattr(regression_module, "CHUNK", 3)
    for one, together in zip(alone, all_weights(FIXED, x, y, [7, 0, 7, 2]), strict=True):
        close(together, one[:, [7, 0, 7, 2]], 1e-12)


@pytest.mark.parametrize("learner", [*FIXED, NearestNeighbours(), NearestNeighbours(2, True)], ids=lambda one: one.name)
def test_an_answer_depends_on_the_demonstrations_it_may_use_and_on_no_others(learner):
    x, y, _ = problem(outputs=1)
    asked, shown = problem(n=2, seed=1)[0], torch.tensor([4, 6])
    before = learner.answers(x, y, asked, shown)
    x[:, 5:], y[:, 5] = x[:, 5:] + 1, 100.0
    after = learner.answers(x, y, asked, shown)
    assert torch.equal(before[:, 0], after[:, 0]) and not torch.allclose(before[:, 1], after[:, 1])


TASKS = {
    "joint": LinearRegression(d_x=4, d_y=2, n_context=6, n_queries=3, noise=0.3),
    "interleaved": LinearRegression.garg(4, 6, noise=0.3),
    "mixture": LinearRegression(d_x=4, n_context=3, prior=MixturePrior(), noise=0.5),
    "sparse": LinearRegression(d_x=6, n_context=5, prior=SparsePrior(2), noise=0.1, teacher_scale=2.0),
    "Gaussian": LinearRegression(d_x=4, n_context=8, prior=GaussianPrior((4.0, 1.0, 0.25, 0.1)), noise=0.3, n_tasks=8),
}


@pytest.mark.parametrize("task", TASKS.values(), ids=TASKS)
def test_predictions_are_the_answers_at_their_positions_and_the_posterior_mean_is_best(task):
    episodes = task.sample(3000, "test", task.rng(0, "test"))
    blind = episodes._replace(targets=torch.full_like(episodes.targets, 1e3))
    scores = {}
    for kind in (one for one in REFERENCES.values() if issubclass(one, RegressionLearner) and one().why_not(task) == ""):
        prediction, at = kind().predict(task, blind), list(task.answers)
        assert prediction.shape == episodes.targets.shape and prediction.isfinite().all()
        few = type(task.prompts(episodes))(*(part[-2:] for part in task.prompts(episodes)[:3]), task.prompts(episodes).shown)
        torch.testing.assert_close(prediction[-2:, at], kind().for_task(task).answers(*few).to(prediction))
        scores[kind().name] = task.score(prediction, episodes.targets)
    best = PoolPosteriorMean().name if task.n_tasks else PosteriorMean().name
    close_to_best = {name for name, score in scores.items() if score > scores[best] - 1e-6}
    equals = {"ridge, Bayes penalty"} if task in (TASKS["joint"], TASKS["interleaved"]) else set()
    assert close_to_best == {best} | equals and len(scores) >= 9


def test_memory_of_the_pool_fails_on_new_tasks_where_the_posterior_mean_does_not():
    task = TASKS["Gaussian"]
    score = {}
    for split, kind in itertools.product(("test", "ood"), (PoolPosteriorMean, PosteriorMean)):
        episodes = task.sample(2000, split, task.rng(0, split))
        score[split, kind] = task.score(kind().predict(task, episodes), episodes.targets)
    assert score["test", PoolPosteriorMean] > score["test", PosteriorMean] > score["ood", PoolPosteriorMean] + 0.1
    assert score["ood", PosteriorMean] > score["ood", PoolPosteriorMean] + 0.2


def test_what_a_learner_leaves_open_is_chosen_for_the_family():
    task = LinearRegression(d_x=4, n_context=6, noise=0.3, teacher_scale=2.0)
    assert Ridge().for_task(task).l2 == pytest.approx(0.09 / 4) and Ridge(3.0).for_task(task) == Ridge(3.0)
    assert GradientDescent(2, 0.5).for_task(task) == GradientDescent(2, 0.5)
    with torch.no_grad():  # as probes call it
        assert GradientDescent(2).for_task(task) == GradientDescent(2).for_task(task)


def test_tuning_never_ends_above_the_best_of_its_starts():
    starts = torch.tensor([[0.1], [1.0], [10.0]]).double()
    assert tune_rates(lambda r: (r[0] - 3).square() + 1, starts)[0] == pytest.approx(3, rel=1e-5)
    assert tune_rates(lambda r: torch.where(r[0] <= 1, 1 / r[0], torch.nan), starts)[0] == pytest.approx(1, rel=1e-3)


# ---- refusals --------------------------------------------------------------------------------------------------------
def test_learners_say_where_they_do_not_apply():
    learners = [one for one in REFERENCES.values() if issubclass(one, RegressionLearner)]
    assert {one().why_not(Hyperteacher()) for one in learners} == {"its episodes are no linear regression"}
    task = LinearRegression.von_oswald()
    reasons = {one().name: one().why_not(task) for one in learners if one().why_not(task)}
    assert reasons == {
        "ridge, Bayes penalty": "equals least squares without noise",
        "posterior mean over the training tasks": "its training tasks are not finitely many",
    }
    assert Ridge(0.1).why_not(task) == PoolPosteriorMean().why_not(TASKS["Gaussian"]) == ""


@pytest.mark.parametrize(
    "learner", [GradientDescent(), GradientDescentPlusPlus(), Ridge(), PosteriorMean(), PoolPosteriorMean()]
)
def test_what_is_left_open_must_be_chosen_before_weights(learner):
    with pytest.raises(ConfigError, match=rf"{type(learner).__name__}: .* for_task\(task\)"):
        learner.weights(*problem()[:2], [3])


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: GradientDescent(0), "steps must be a whole number of at least 1, got 0"),
        (lambda: GradientDescent(1, -1.0), "eta must be positive or None, got -1"),
        (lambda: GradientDescentPlusPlus(2, 1.0), "give both eta and gamma, or neither"),
        (lambda: Newton(3, 2.5), r"scale must lie in \(0, 2\), or be 2 .* got 2.5"),
        (lambda: Ridge(0.0), r"l2 must be positive or None, got 0.0; 0 is LeastSquares\(\)"),
        (lambda: OnlineSGD(0.0), "rate must be positive"),
        (lambda: NearestNeighbours(0), "k must be a whole number of at least 1"),
        (lambda: LeastSquares().weights(*problem()[:2], [3, 12]), r"lengths go from 0 to 9; got \[12\]"),
        (lambda: LeastSquares().weights(problem()[0], problem()[1][:, :3], [3]), "demonstrations are x .* got"),
        (lambda: pool_mean(*problem()[:2], [3], torch.zeros(4, D, 1), 0.1), r"pool must be \(P, 5, 2\), got \(4, 5, 1\)"),
    ],
)
def test_bad_input_is_an_error_that_says_what_is_allowed(make, message):
    with pytest.raises(ConfigError, match=message):
        make()


# ---- debiased descent ------------------------------------------------------------------------------------------------
def test_debiased_descent_is_a_step_on_centred_inputs_at_every_length():
    rng = torch.Generator().manual_seed(0)
    x, y = torch.randn(3, 7, 4, generator=rng).double() + 1, torch.randn(3, 7, 2, generator=rng).double()
    found = DebiasedGradientDescent(0.7).weights(x, y, [0, 1, 5, 7])
    for i, n in enumerate([0, 1, 5, 7]):
        centred = x[:, :n] - x[:, :n].mean(1, keepdim=True) if n else x[:, :0]
        torch.testing.assert_close(found[:, i], 0.7 / max(n, 1) * centred.transpose(1, 2) @ y[:, :n])


def test_debiased_descent_is_what_two_softmax_heads_of_opposite_sign_come_to():
    """mu (softmax(omega x.q) - softmax(-omega x.q)) y -> 2 mu omega (1/n) sum (x_i - mean x).q y_i as omega -> 0."""
    rng = torch.Generator().manual_seed(1)
    x, y, q = (torch.randn(1, n, d, generator=rng).double() for n, d in ((9, 3), (9, 1), (1, 3)))
    omega = 1e-4
    scores = omega * x[0] @ q[0, 0]
    heads = (scores.softmax(0) - (-scores).softmax(0)) @ y[0] / (2 * omega)
    answer = DebiasedGradientDescent(1.0).answers(x, y, q, torch.tensor([9]))[0, 0]
    torch.testing.assert_close(heads, answer, rtol=1e-6, atol=1e-8)


def test_the_tuned_rate_of_debiased_descent_is_a_minimum():
    task = LinearRegression.he()
    tuned = DebiasedGradientDescent().for_task(task)
    episodes = task.sample(16384, "train", task.rng("reference", "train"))

    def loss(eta):
        return float((DebiasedGradientDescent(eta).predict(task, episodes) - episodes.targets)[:, -1].double().square().mean())

    assert loss(tuned.eta) < min(loss(1.02 * tuned.eta), loss(0.98 * tuned.eta))
    with pytest.raises(ConfigError, match="eta is None, so it is tuned"):
        DebiasedGradientDescent().weights(torch.zeros(1, 2, 2), torch.zeros(1, 2, 1), [1])
