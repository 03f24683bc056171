"""References: each equals an independent implementation of what it claims to be, and they rank as they must."""

import itertools
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from scipy.optimize import least_squares
from sklearn.kernel_ridge import KernelRidge
from sklearn.linear_model import Ridge
from sklearn.metrics.pairwise import rbf_kernel
from sklearn.neighbors import KNeighborsRegressor
from sklearn.preprocessing import KernelCenterer

from compolens import Hyperteacher, UnstructuredTeacher
from compolens.foundation.configs import ConfigError
from compolens.references import (
    REFERENCES,
    AllCompositions,
    InContextKernelRidge,
    InContextNearest,
    InContextQuadratic,
    InContextRidge,
    InContextSmoothing,
    TrainingCompositions,
    TrueCode,
    composers,
    kernel_ridge,
)
from compolens.references.composers import best_explanation, fit_composition
from compolens.references.mixture import foreseen, regressions
from compolens.references.ridge import PENALTIES, ridge_predictions
from compolens.references.smoothing import WIDTHS, smoothed_predictions

SIZES = {"d_x": 6, "d_y": 4, "d_hidden": 8, "n_modules": 6, "n_context": 16, "n_queries": 3}
TASKS = [Hyperteacher(**SIZES), UnstructuredTeacher(**SIZES)]


@pytest.fixture(params=TASKS, ids=lambda task: type(task).__name__)
def task(request):
    return request.param


@pytest.fixture(params=[reference() for reference in REFERENCES.values()], ids=lambda r: type(r).__name__)
def reference(request, task):
    if request.param.why_not(task):
        pytest.skip(request.param.why_not(task))
    return request.param


def draw(task, n, split, seed=0, **options):
    return task.sample(n, split, task.rng(seed, split), **options)


def score(reference, task, split, n=60):
    episodes = draw(task, n, split)
    return task.score(reference.predict(task, episodes), episodes.targets)


# ---- every reference -------------------------------------------------------------------------------------------------
def test_references_have_distinct_names():
    names = [reference().name for reference in REFERENCES.values()]
    assert len(set(names)) == len(names) and all(names)


def test_a_reference_answers_deterministically_and_in_the_right_shape(reference, task):
    episodes = draw(task, 8, "ood")
    prediction = reference.predict(task, episodes)
    assert prediction.shape == episodes.targets.shape and prediction.isfinite().all()
    assert torch.equal(prediction, type(reference)().predict(task, episodes))


def test_a_reference_does_not_peek_at_the_answers(reference, task):
    episodes = draw(task, 8, "test")
    blinded = episodes.targets.clone()
    blinded[:, list(task.answers)] = 1e3
    prediction = reference.predict(task, episodes._replace(targets=blinded))
    assert torch.equal(prediction, reference.predict(task, episodes))


def test_a_reference_answers_each_episode_by_itself(reference, task):
    episodes = draw(task, 8, "test")
    alone = type(episodes)(
        episodes.tokens[:2], episodes.targets[:2], {k: v[:2] for k, v in episodes.codes.items()},
        episodes.composition[:2], episodes.inputs[:2], {},
    )  # fmt: skip
    torch.testing.assert_close(reference.predict(task, alone), reference.predict(task, episodes)[:2], rtol=1e-3, atol=1e-4)


# ---- the oracle ------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("split", ["train", "test", "ood"])
def test_the_true_code_scores_1(task, split):
    assert score(TrueCode(), task, split) == 1


# ---- ridge -----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("l2", [0.01, 1.0, 30.0])
@pytest.mark.parametrize("n_context", [4, 16])
def test_in_context_ridge_is_scikit_learns_on_every_episode(l2, n_context):
    task = Hyperteacher(**SIZES | {"n_context": n_context})
    episodes = draw(task, 6, "ood")
    prediction = InContextRidge(l2=l2).predict(task, episodes)
    for x, y, answer in zip(episodes.inputs.double(), episodes.targets.double(), prediction, strict=True):
        ridge = Ridge(alpha=l2, solver="svd").fit(x[:n_context], y[:n_context])
        np.testing.assert_allclose(answer, ridge.predict(x), rtol=1e-4, atol=1e-5)


def test_the_default_penalty_is_the_best_of_nine_on_training_compositions(task):
    episodes = draw(task, 1024, "train", seed="reference")
    scores = [task.score(p, episodes.targets) for p in ridge_predictions(task, episodes, PENALTIES)]
    best = PENALTIES[int(np.argmax(scores))]
    assert len(PENALTIES) == 9 and PENALTIES[0] < best < PENALTIES[-1]
    held_out = draw(task, 8, "ood")
    expected = InContextRidge(l2=best).predict(task, held_out)
    assert torch.equal(InContextRidge().predict(task, held_out), expected)


def test_more_examples_help_ridge():
    few, many = (Hyperteacher(**SIZES | {"n_context": n}) for n in (4, 64))
    assert score(InContextRidge(), few, "test") < score(InContextRidge(), many, "test") - 0.1


# ---- products and bumps ----------------------------------------------------------------------------------------------
@pytest.mark.parametrize("l2", [0.01, 1.0])
def test_ridge_on_products_is_scikit_learns_on_all_products(l2):
    task = Hyperteacher(**SIZES)
    n, episodes = SIZES["n_context"], draw(task, 4, "ood")
    prediction = InContextQuadratic(l2).predict(task, episodes)
    for x, y, answer in zip(episodes.inputs.double().numpy(), episodes.targets.double().numpy(), prediction, strict=True):
        u = x / np.sqrt((x[:n] ** 2).sum(1).mean())
        products = np.concatenate([u, np.einsum("ni,nj->nij", u, u).reshape(len(u), -1)], axis=1)
        fitted = Ridge(alpha=l2).fit(products[:n], y[:n])
        np.testing.assert_allclose(answer.numpy(), fitted.predict(products), rtol=1e-3, atol=1e-4)


def test_ridge_on_bumps_is_scikit_learns_kernel_ridge():
    task = Hyperteacher(**SIZES)
    n, episodes, (width, l2) = SIZES["n_context"], draw(task, 4, "ood"), (0.8, 0.05)
    prediction = InContextKernelRidge(width, l2).predict(task, episodes)
    for x, y, answer in zip(episodes.inputs.double().numpy(), episodes.targets.double().numpy(), prediction, strict=True):
        u = x / np.sqrt((x[:n] ** 2).sum(1).mean())
        mean, kernel = y[:n].mean(0), rbf_kernel(u, u[:n], gamma=1 / (2 * width**2))
        centre = KernelCenterer().fit(kernel[:n])
        fitted = KernelRidge(alpha=l2, kernel="precomputed").fit(centre.transform(kernel[:n]), y[:n] - mean)
        np.testing.assert_allclose(answer.numpy(), fitted.predict(centre.transform(kernel)) + mean, rtol=1e-3, atol=1e-4)


def test_ridge_on_products_finds_a_square():
    """The mean of a square over the examples is not 0, and it is not penalised."""
    x = torch.randn(4, 60, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    square = x[..., :1].square() + 3
    shown = SimpleNamespace(examples=lambda episodes: (x, square[:, :50]))
    asked = SimpleNamespace(targets=square)
    torch.testing.assert_close(kernel_ridge.quadratic_predictions(shown, asked, (1e-9,))[0], square, rtol=1e-6, atol=1e-6)


def test_settings_of_products_and_bumps_are_the_best_on_training_compositions(task):
    episodes, held_out = draw(task, 1024, "train", seed="reference"), draw(task, 8, "ood")
    pairs = tuple(itertools.product(kernel_ridge.WIDTHS, kernel_ridge.PENALTIES))
    for predictions, settings, learner in (
        (kernel_ridge.quadratic_predictions, kernel_ridge.PENALTIES, lambda best: InContextQuadratic(best)),
        (kernel_ridge.bump_predictions, pairs, lambda best: InContextKernelRidge(*best)),
    ):
        scores = [task.score(p, episodes.targets) for p in predictions(task, episodes, settings)]
        best = learner(settings[int(np.argmax(scores))])
        assert torch.equal(type(best)().predict(task, held_out), best.predict(task, held_out))


# ---- a learner fitted to answers --------------------------------------------------------------------------------------
def test_a_mixture_foresees_a_regression_that_is_not_on_the_list_and_not_the_truth(task):
    """The planted learner has a kernel that none of the references has; answers by the true code follow from no examples."""
    episodes = draw(task, 256, "ood")
    known, at = regressions(task, episodes), list(task.answers)

    def laplacian(x, z):
        return torch.exp(-torch.cdist(x, z))

    planted = kernel_ridge._predictions(task, episodes, laplacian, (0.05,))[0][:, at].double()
    truth = episodes.targets[:, at].double()
    for answers, least, most in ((planted, 0.9, 1.0), (0.7 * truth, -100.0, 0.5)):
        expected = foreseen(known, answers, episodes.composition)
        share = 1 - float((answers - expected).square().sum() / (answers - truth).square().sum())
        assert least < share < most, share
    single = foreseen(known, known[..., 3], episodes.composition)
    assert float((single - known[..., 3]).square().mean() / known[..., 3].var()) < 1e-3  # one of the list is itself


# ---- smoothing -------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("width", [0.1, 0.5, 3.0])
def test_smoothing_is_the_weighted_mean_of_the_examples_answers(width):
    task = Hyperteacher(**SIZES)
    n, episodes = SIZES["n_context"], draw(task, 4, "ood")
    prediction = InContextSmoothing(width).predict(task, episodes)
    for x, y, answer in zip(episodes.inputs.double().numpy(), episodes.targets.double().numpy(), prediction, strict=True):
        between = [((a - b) ** 2).sum() for a in x[:n] for b in x[:n]]
        for asked, found in zip(x, answer.numpy(), strict=True):
            weight = np.exp(-((x[:n] - asked) ** 2).sum(1) / (2 * width**2 * np.mean(between)))
            np.testing.assert_allclose(found, weight @ y[:n] / weight.sum(), rtol=1e-4, atol=1e-6)


def test_between_the_nearest_example_and_the_mean_of_all(task):
    episodes = draw(task, 8, "ood")
    x, y = task.examples(episodes)
    n = y.shape[1]
    for i, answer in enumerate(InContextNearest().predict(task, episodes)):
        neighbour = KNeighborsRegressor(1, algorithm="brute").fit(x[i, :n].double(), y[i].double())
        np.testing.assert_allclose(answer[n:], neighbour.predict(x[i, n:].double()), rtol=1e-6)
    far = InContextSmoothing(1e4).predict(task, episodes)
    torch.testing.assert_close(far, y.mean(1, keepdim=True).expand_as(far), atol=1e-5, rtol=1e-5)


def test_the_default_width_is_the_best_of_eight_on_training_compositions(task):
    episodes = draw(task, 1024, "train", seed="reference")
    scores = [task.score(p, episodes.targets) for p in smoothed_predictions(task, episodes, WIDTHS)]
    best = WIDTHS[int(np.argmax(scores))]
    assert len(WIDTHS) == 8 and WIDTHS[0] < best < WIDTHS[-1]
    held_out = draw(task, 8, "ood")
    assert torch.equal(InContextSmoothing().predict(task, held_out), InContextSmoothing(best).predict(task, held_out))


def test_a_width_that_is_not_positive_is_refused():
    with pytest.raises(ConfigError, match="width must be positive or None, got 0"):
        InContextSmoothing(0.0)


# ---- composers -------------------------------------------------------------------------------------------------------
def own_fit(task, episodes, i):
    """Coefficients and error of episode i's own composition."""
    one = type(episodes)(episodes.tokens[[i]], episodes.targets[[i]], {}, episodes.composition[[i]], episodes.inputs[[i]], {})
    z, sse = fit_composition(task, one, int(episodes.composition[i]))
    return z[0], float(sse)


@pytest.mark.parametrize("split", ["train", "ood"])
def test_fitting_the_right_composition_recovers_its_coefficients(split):
    task = TASKS[0]
    episodes = draw(task, 40, split)
    for i in range(40):
        active = episodes.codes["modules"][i][episodes.codes["modules"][i] != 0]
        z, sse = own_fit(task, episodes, i)
        assert (z - active).abs().max() < 1e-3 and sse < 1e-5


def test_fitting_the_unstructured_composition_recovers_the_codes_length():
    task = TASKS[1]
    episodes = draw(task, 40, "ood")
    for i in range(40):
        z, _ = own_fit(task, episodes, i)
        assert abs(float(z) - float(episodes.codes["modules"][i].norm())) < 1e-3


def test_coefficients_respect_their_bounds_even_under_the_wrong_composition(task):
    episodes = draw(task, 50, "train")
    for composition in task.compositions("ood"):
        z, _ = fit_composition(task, episodes, composition)
        low, high = task.bounds(composition)
        assert (z >= low).all() and (z <= high).all()
        on_a_bound = (z == low) | (z == high)
        assert on_a_bound.any(), "the bounds matter here"


def test_the_error_reported_is_the_error_made(task):
    episodes = draw(task, 20, "train")
    composition = task.compositions("ood")[0]
    z, sse = fit_composition(task, episodes, composition)
    weights = torch.einsum("bk,kxh->bxh", z, task.bases(composition))
    prediction = torch.relu(episodes.inputs @ weights) @ task.teacher[1]
    made = (prediction - episodes.targets)[:, : task.n_context].square().sum((1, 2))
    torch.testing.assert_close(sse, made, rtol=1e-4, atol=1e-5)


def scipy_fit(task, x, y, composition):
    """The same bounded least-squares problem, solved by scipy's trust-region method from the same start."""
    bases, readout = (part.double().numpy() for part in (task.bases(composition), task.teacher[1]))
    parts = np.einsum("nx,kxh->knh", x, bases)

    def residual(z):
        return (np.maximum(np.einsum("k,knh->nh", z, parts), 0) @ readout - y).ravel()

    low, high = task.bounds(composition)
    result = least_squares(residual, np.full(len(parts), (low + high) / 2), bounds=(low, high), xtol=1e-10)
    return 2 * result.cost


@pytest.mark.parametrize("wrong", [False, True], ids=["right composition", "wrong composition"])
def test_the_fit_is_as_good_as_scipys(task, wrong):
    """Twelve steps may stop short along a bound of a wrong composition, by a little; never of the right one."""
    episodes, n, excess = draw(task, 40, "train"), task.n_context, []
    for i in range(40):
        composition = task.compositions("ood")[i % 3] if wrong else int(episodes.composition[i])
        one = episodes._replace(tokens=episodes.tokens[[i]], targets=episodes.targets[[i]])
        _, sse = fit_composition(task, one, composition)
        x, y = episodes.inputs[i, :n].double().numpy(), episodes.targets[i, :n].double().numpy()
        excess.append((float(sse) - scipy_fit(task, x, y, composition)) / (y**2).sum())
    assert np.median(excess) < 1e-5
    assert max(excess) < (0.03 if wrong else 1e-5)


def test_memory_of_training_compositions_is_exact_on_them_and_fails_on_others(task):
    assert score(TrainingCompositions(), task, "train") == pytest.approx(1, abs=1e-4)
    assert score(TrainingCompositions(), task, "test") == pytest.approx(1, abs=1e-4)
    assert score(TrainingCompositions(), task, "ood") < 0.9


def test_recombining_is_exact_on_held_out_compositions_and_never_worse_than_memory(task):
    assert score(AllCompositions(), task, "test") == pytest.approx(1, abs=1e-4)
    assert score(AllCompositions(), task, "ood") == pytest.approx(1, abs=1e-4)
    assert score(AllCompositions(), task, "ood") > score(TrainingCompositions(), task, "ood") + 0.1


@pytest.mark.parametrize("split", ["train", "ood"])
def test_the_best_explanation_names_the_composition(task, split):
    episodes = draw(task, 60, split)
    everything = task.compositions("train") + task.compositions("ood")
    prediction, chosen = best_explanation(task, episodes, everything)
    assert torch.equal(chosen, episodes.composition)
    torch.testing.assert_close(prediction, episodes.targets, rtol=1e-2, atol=1e-2)


def test_the_best_explanation_is_the_one_with_the_smallest_error(task):
    """Also where none is exact: held-out episodes, explained by training compositions alone."""
    episodes, seen = draw(task, 40, "ood"), task.compositions("train")
    errors = torch.stack([fit_composition(task, episodes, c)[1] for c in seen])
    _, chosen = best_explanation(task, episodes, seen)
    assert chosen.tolist() == [seen[i] for i in errors.argmin(0)]


def test_memory_can_only_name_what_it_has_seen(task):
    _, chosen = best_explanation(task, draw(task, 30, "ood"), task.compositions("train"))
    assert set(chosen.tolist()) <= set(task.compositions("train"))


# ---- fits that learners share ----------------------------------------------------------------------------------------
def test_learners_share_fits_and_answer_as_if_they_did_not(task):
    shared, alone = draw(task, 20, "ood"), draw(task, 20, "ood")
    TrainingCompositions().predict(task, shared)
    together = AllCompositions().predict(task, shared)
    assert torch.equal(together, AllCompositions().predict(task, alone))
    assert len(composers._FITTED[shared.tokens].found) == task.n_compositions


def test_fits_are_of_these_very_examples(task):
    """Tokens or targets that were written to, other targets beside the same tokens, another teacher: fitted anew."""
    episodes, other = draw(task, 20, "ood"), draw(task, 20, "ood", seed=1)
    answer = AllCompositions().predict(task, episodes)
    moved = episodes._replace(targets=other.targets)
    expected = AllCompositions().predict(task, moved._replace(tokens=moved.tokens.clone()))
    assert torch.equal(AllCompositions().predict(task, moved), expected) and not torch.equal(expected, answer)
    assert torch.equal(AllCompositions().predict(task, episodes), answer)
    episodes.tokens.copy_(other.tokens)
    episodes.targets.copy_(other.targets)
    assert torch.equal(AllCompositions().predict(task, episodes), AllCompositions().predict(task, other))
    retaught = replace(task, teacher_seed=task.teacher_seed + 1)
    fresh = AllCompositions().predict(retaught, draw(task, 20, "ood", seed=1))
    assert torch.equal(AllCompositions().predict(retaught, other), fresh)


def test_fits_go_with_their_episodes(task):
    before = len(composers._FITTED)
    episodes = draw(task, 8, "ood")
    TrainingCompositions().predict(task, episodes)
    assert len(composers._FITTED) == before + 1
    del episodes
    assert len(composers._FITTED) == before
