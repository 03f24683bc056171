"""Linear regression: its equation, the laws' moments, the named conventions, the pool, both layouts, and what it refuses."""

import dataclasses

import numpy as np
import pytest
import torch

from compolens import (
    CapPrior,
    ClassesPrior,
    GaussianInputs,
    GaussianPrior,
    HarmonicInputs,
    InterleavedTokens,
    LinearRegression,
    MixedInputs,
    MixturePrior,
    SoftmaxTransformer,
    SparsePrior,
    UniformInputs,
)
from compolens.foundation.configs import ConfigError

COVARIANCE = ((2.0, 0.5, 0.0), (0.5, 1.0, 0.3), (0.0, 0.3, 0.5))
LAWS = [UniformInputs(0.5), GaussianInputs(), GaussianInputs(COVARIANCE), GaussianInputs((3.0, 1.0, 0.2), True), MixedInputs()]
PRIORS = [GaussianPrior(), GaussianPrior(COVARIANCE), SparsePrior(2), MixturePrior(), MixturePrior(((1.0, 2.0, 3.0),), 0.5)]


def draw(task, n, split="train", seed=0):
    return task.sample(n, split, task.rng(seed, split))


# ---- what is drawn ---------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("split", ["train", "ood"])
def test_answers_follow_the_equation(split):
    task = LinearRegression(d_x=4, d_y=2, n_context=6, n_queries=3, noise=0.5)
    episodes = draw(task, 5, split)
    for i in range(5):
        x, noise = episodes.inputs[i, :, :4].numpy(), episodes.inputs[i, :, 4:6].numpy()
        y = x @ episodes.codes["weights"][i].reshape(4, 2).numpy() + noise
        np.testing.assert_allclose(episodes.targets[i], y, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(episodes.tokens[i, :, :4], x)
        np.testing.assert_allclose(episodes.tokens[i, :6, 4:], y[:6], rtol=1e-5, atol=1e-6)
    assert (episodes.tokens[:, 6:, 4:] == 0).all()
    assert episodes.inputs[..., 4:6].std().item() == pytest.approx(0.5, abs=0.1)


@pytest.mark.parametrize("law", LAWS, ids=str)
def test_inputs_have_the_second_moment_that_their_law_states(law):
    x = law.draw(20_000, 3, 3, torch.Generator().manual_seed(0)).double().flatten(0, 1)
    products = x[:, :, None] * x[:, None, :]
    error = products.std(0) / 60_000**0.5
    apart = (products.mean(0) - law.second_moment(3)).abs()
    assert (apart < 5 * error + 0.01).all()


def test_every_episode_has_its_own_basis_where_it_is_random():
    x = GaussianInputs((100.0, 1e-4), random_basis=True).draw(50, 40, 2, torch.Generator().manual_seed(0)).double()
    directions = torch.linalg.eigh(x.transpose(1, 2) @ x)[1][:, :, 1]
    assert (directions @ directions.T).abs().min() < 0.1


@pytest.mark.parametrize("prior", PRIORS, ids=str)
def test_a_prior_is_the_mixture_that_it_states(prior):
    rng = torch.Generator().manual_seed(0)
    component = torch.randint(prior.n_components(3), (60_000,), generator=rng)
    w = prior.draw(component, 3, 1, rng)[..., 0].double()
    log_weights, means, covariances = prior.mixture(3)
    odds = log_weights.exp()
    assert float(odds.sum()) == pytest.approx(1)
    torch.testing.assert_close(w.mean(0), odds @ means, atol=0.06, rtol=0)
    second = torch.einsum("m,mij->ij", odds, covariances + means[:, :, None] * means[:, None, :])
    torch.testing.assert_close(w.T @ w / len(w), second, atol=0.12, rtol=0.03)


def test_components_slice_a_gaussian_prior_by_signs_and_leave_its_law_alone():
    prior = GaussianPrior()
    w = prior.draw(torch.full((2000,), 0b0101), 6, 2, torch.Generator().manual_seed(0))
    assert prior.component_name(0b0101, 6) == "-+-+"
    assert (w[:, 0, 0] <= 0).all() and (w[:, 1, 0] >= 0).all() and (w[:, 2, 0] <= 0).all() and (w[:, 3, 0] >= 0).all()
    assert w[:, 4:, 0].mean().abs() < 0.1 and w[..., 1].mean().abs() < 0.1


def test_a_sparse_prior_activates_exactly_the_support_of_its_component():
    task = LinearRegression(d_x=5, n_context=4, prior=SparsePrior(2))
    episodes = draw(task, 200)
    for w, composition in zip(episodes.codes["weights"], episodes.composition, strict=True):
        assert "+".join(str(int(i)) for i in torch.nonzero(w)[:, 0]) == task.composition_name(int(composition))


def test_held_out_inputs_are_wider_and_of_another_law_if_asked():
    task = LinearRegression(shifted_scale=2.0)
    spread = {split: draw(task, 3000, split).inputs[..., :10].square().mean().item() for split in ("test", "ood")}
    assert spread["ood"] / spread["test"] == pytest.approx(4, rel=0.03)
    other = draw(LinearRegression(shifted_scale=2.0, shifted_inputs=MixedInputs()), 100, "ood").inputs[..., :10]
    torch.testing.assert_close(other.norm(dim=-1), torch.full((100, 11), 2.0))


@pytest.mark.parametrize("n_tasks", [1, 5, 16, 96])
def test_training_knows_only_the_pool_and_ood_only_new_tasks(n_tasks):
    task = LinearRegression(d_x=4, n_tasks=n_tasks)
    pool = {tuple(w) for w in task.pool.flatten(1).tolist()}
    seen = {tuple(w) for w in draw(task, 3000).codes["weights"].tolist()}
    assert len(pool) == n_tasks and seen == pool
    held_out = draw(task, 200, "ood")
    assert not pool & {tuple(w) for w in held_out.codes["weights"].tolist()}
    assert held_out.inputs[..., :4].abs().max() <= 0.5


def test_scales_multiply_inputs_and_weights():
    plain, scaled = LinearRegression(), LinearRegression(input_scale=2.0, teacher_scale=3.0)
    a, b = draw(plain, 4), draw(scaled, 4)
    torch.testing.assert_close(b.inputs[..., :10], 2 * a.inputs[..., :10])
    torch.testing.assert_close(b.codes["weights"], 3 * a.codes["weights"])
    torch.testing.assert_close(b.targets, 6 * a.targets)
    torch.testing.assert_close(scaled.mixture()[2], 9 * plain.mixture()[2])


# ---- layouts ---------------------------------------------------------------------------------------------------------
def test_interleaved_tokens_show_an_answer_only_after_it_was_asked_for():
    task = LinearRegression.garg(d_x=3, n_context=4)
    episodes = draw(task, 2)
    x, y = episodes.inputs[..., :3], episodes.targets[:, 0::2]
    assert task.answers == (0, 2, 4, 6, 8) and episodes.tokens.shape == (2, 9, 3)
    assert torch.equal(episodes.tokens[:, 0::2], x)
    assert torch.equal(episodes.tokens[:, 1::2, :1], y[:, :4]) and (episodes.tokens[:, 1::2, 1:] == 0).all()
    model = SoftmaxTransformer(n_layers=1, d_model=8, n_heads=1).build(**task.dimensions)
    changed = episodes.tokens.clone()
    changed[:, 5:] += 1
    assert torch.equal(model(changed)[:, :5], model(episodes.tokens)[:, :5])


def test_prompts_say_what_each_answer_may_use():
    joint = LinearRegression(d_x=3, n_context=4, n_queries=2)
    episodes = draw(joint, 2)
    x, y, asked, shown = joint.prompts(episodes)
    assert torch.equal(x, episodes.inputs[:, :4, :3]) and torch.equal(asked, episodes.inputs[:, 4:, :3])
    assert torch.equal(y, episodes.targets[:, :4]) and shown.tolist() == [4, 4]
    turns = LinearRegression.garg(d_x=3, n_context=4)
    episodes = draw(turns, 2)
    x, y, asked, shown = turns.prompts(episodes)
    assert torch.equal(asked, episodes.inputs[..., :3]) and shown.tolist() == [0, 1, 2, 3, 4]
    assert torch.equal(x, asked[:, :4]) and torch.equal(y, episodes.targets[:, [0, 2, 4, 6]])


def test_conventions_are_the_papers():
    ours = LinearRegression.von_oswald()
    episodes = draw(ours, 4000)
    assert episodes.inputs[..., :10].abs().max() <= 0.5 and ours.seq == 11
    error = episodes.targets[:, -1].square().mean()
    assert ours.loss(torch.zeros_like(episodes.targets), episodes.targets).item() == pytest.approx(error.item() / 2)
    assert LinearRegression.garg().seq == 81 and LinearRegression.garg().loss_scale == 1
    he = LinearRegression.he()
    assert he.noise**2 == pytest.approx(0.1) and torch.allclose(he.mixture()[2][0], torch.eye(5).double() / 5)
    assert LinearRegression.zhang(covariance=(1.0,) * 10).inputs == GaussianInputs((1.0,) * 10)


@pytest.mark.parametrize("task", [LinearRegression(d_x=3, d_y=2, n_context=4, noise=0.3), LinearRegression.garg(3, 4, 0.3)])
def test_other_questions_about_the_same_demonstrations_are_episodes_like_any(task):
    episodes = draw(task, 5, "ood")
    x = task.further_inputs(episodes, 6)
    asked = task.asking(episodes, x)
    assert len(asked.tokens) == 30 and torch.equal(task.prompts(asked).asked[:, -1], x.flatten(0, 1))
    assert torch.equal(task.prompts(asked).x, task.prompts(episodes).x.repeat_interleave(6, dim=0))
    rendered = task.render(asked.codes, asked.inputs)
    torch.testing.assert_close(rendered.tokens, asked.tokens)
    torch.testing.assert_close(rendered.targets, asked.targets)
    assert torch.equal(rendered.composition, asked.composition)


@pytest.mark.parametrize("task", [LinearRegression(d_x=3, n_context=4), LinearRegression.garg(3, 4)])
def test_answers_of_others_are_those_of_the_next_episode(task):
    episodes = draw(task, 5)
    swapped, own = task.prompts(task.with_answers_of_others(episodes)), task.prompts(episodes)
    assert torch.equal(swapped.y, own.y.roll(1, 0)) and torch.equal(swapped.x, own.x) and torch.equal(swapped.asked, own.asked)
    assert not torch.equal(episodes.tokens, task.with_answers_of_others(episodes).tokens)


# ---- what is refused -------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"inputs": GaussianInputs((1.0, 1.0, 0.0))}, "covariance is singular .* positive variance"),
        ({"prior": GaussianPrior(((1.0, 1.0, 0.0), (1.0, 1.0, 0.0), (0.0, 0.0, 1.0)))}, "covariance is singular"),
        ({"inputs": GaussianInputs((1.0, 1.0))}, "needs 3 variances or 3 rows of 3, got"),
        ({"inputs": GaussianInputs(((1.0, 0.5, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 1.0)))}, "must be symmetric"),
        ({"prior": SparsePrior(4)}, "active=4 exceeds d_x=3"),
        ({"prior": MixturePrior(((1.0, 2.0),))}, "every centre needs d_x=3 numbers"),
        ({"prior": ClassesPrior()}, "coefficient 3 is none of d_x=3, which count from 0"),
        ({"inputs": HarmonicInputs()}, "d_x must be even, got 3"),
        (
            {"inputs": "uniform"},
            r"one of GaussianInputs\(\), HarmonicInputs\(\), MixedInputs\(\), UniformInputs\(\), got 'uniform'",
        ),
        ({"noise": -1.0}, "noise must not be negative"),
        ({"input_scale": 0.0}, "input_scale must be positive"),
        ({"n_tasks": 0}, "n_tasks must be a whole number of at least 1"),
        ({"n_tasks": 100}, "n_tasks above 16 must be a multiple of it, got 100"),
        ({"layout": InterleavedTokens(), "n_queries": 2}, "n_queries must be 1"),
    ],
)
def test_settings_that_mean_nothing_are_refused(settings, message):
    with pytest.raises(ConfigError, match=message):
        LinearRegression(d_x=3, **settings)


def test_too_many_supports_are_refused():
    with pytest.raises(ConfigError, match="make 15504 sets; at most 5,000"):
        LinearRegression(d_x=20, prior=SparsePrior(5))


def test_equal_descriptions_are_equal_after_json_lists():
    assert GaussianInputs([[1.0, 0.0], [0.0, 2.0]]) == GaussianInputs(((1.0, 0.0), (0.0, 2.0)))
    task = LinearRegression(d_x=2, inputs=GaussianInputs([1.0, 2.0]))
    assert hash(task) == hash(dataclasses.replace(task))


# ---- tasks on a cap of the sphere ------------------------------------------------------------------------------------
@pytest.mark.parametrize("half_angle", [30.0, 90.0, 150.0])
def test_a_cap_is_uniform_within_its_rim_and_held_out_are_the_tasks_beyond(half_angle):
    from scipy.stats import beta, kstest

    d_x, rim = 4, np.cos(np.radians(half_angle))
    task = LinearRegression(d_x=d_x, prior=CapPrior(half_angle), shifted_prior=CapPrior(half_angle, outside=True))
    cosine = {}
    for split in ("train", "ood"):
        weights = task.sample(2000, split, task.rng(0, split)).codes["weights"].double()
        assert torch.allclose(weights.norm(dim=1), torch.full((2000,), d_x**0.5, dtype=torch.float64))
        cosine[split] = (weights[:, 0] / d_x**0.5).numpy()
    assert cosine["train"].min() >= rim - 1e-5 and cosine["ood"].max() <= rim + 1e-5
    law = beta((d_x - 1) / 2, (d_x - 1) / 2)  # of (1 + cosine) / 2 on the whole sphere
    below = law.cdf((1 + rim) / 2)
    share = (law.cdf((1 + cosine["train"]) / 2) - below) / (1 - below)
    assert kstest(share, "uniform").pvalue > 1e-3
    assert kstest(law.cdf((1 + cosine["ood"]) / 2) / below, "uniform").pvalue > 1e-3
    assert task.describe_split()["held_out"] == "new task"


def test_inputs_stay_those_of_training_where_tasks_are_held_out():
    task = LinearRegression(d_x=3, prior=CapPrior(60.0), shifted_prior=CapPrior(60.0, outside=True))
    assert task.sample(200, "ood", task.rng(0, "ood")).inputs[..., :3].abs().max() <= 0.5
    with pytest.raises(ConfigError, match="above 0 and below 180"):
        CapPrior(180.0)


# ---- function classes and their combinations -------------------------------------------------------------------------
SHARES = ((0.75, 0.25), (0.5, 0.5))
COMBINED = LinearRegression(
    d_x=4, inputs=HarmonicInputs(), prior=ClassesPrior(), shifted_prior=ClassesPrior(((0, 1), (2, 3)), SHARES)
)


def test_a_class_has_its_own_coefficients_and_a_combination_those_of_all_by_their_shares():
    for split, rows in (("train", ((1.0, 0.0), (0.0, 1.0))), ("ood", SHARES)):
        episodes = draw(COMBINED, 4000, split)
        weights, component = episodes.codes["weights"], episodes.codes["component"]
        for number, shares in enumerate(rows):
            own = weights[component == number]
            expected = torch.tensor([shares[0], shares[0], shares[1], shares[1]])
            assert torch.allclose(own.std(0), expected, atol=0.05) and (own[:, expected == 0] == 0).all()
    names = [COMBINED.composition_name(c) for c in (*COMBINED.compositions("train"), *COMBINED.compositions("ood"))]
    assert names == [
        "class 0", "class 1", "0.75 class 0 + 0.25 class 1, new task", "0.5 class 0 + 0.5 class 1, new task",
    ]  # fmt: skip


@pytest.mark.parametrize("prior", [ClassesPrior(), ClassesPrior(((0, 1, 2), (2, 3)), ((0.2, 0.8), (1.0, 0.0)))], ids=str)
def test_components_of_classes_are_normal_with_the_covariance_that_is_stated(prior):
    _, means, covariances = prior.mixture(4)
    for component in range(prior.n_components(4)):
        drawn = prior.draw(torch.full((40_000,), component), 4, 1, torch.Generator().manual_seed(0))[..., 0].double()
        assert torch.allclose(drawn.mean(0), means[component], atol=0.03)
        assert torch.allclose(drawn.T @ drawn / 40_000, covariances[component], atol=0.03)


def test_harmonics_of_equally_spaced_angles_are_orthogonal_and_a_function_of_them_is_its_fourier_series():
    angle = 2 * torch.pi * torch.arange(8, dtype=torch.float64) / 8
    x = HarmonicInputs().at(angle, 6)
    assert torch.allclose(x.T @ x / 8, torch.eye(6).double())
    weights = torch.tensor([0.0, 0.0, 1.0, -2.0, 0.0, 0.5], dtype=torch.float64)
    by_hand = 2**0.5 * ((2 * angle).cos() - 2 * (2 * angle).sin() + 0.5 * (3 * angle).sin())
    assert torch.allclose(x @ weights, by_hand)
    found = HarmonicInputs().draw(50, 4, 6, torch.Generator().manual_seed(0))
    assert torch.allclose(found.square().sum(-1), torch.full((50, 4), 6.0), atol=1e-4)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"classes": ((0, 0), (1,))}, "different coefficients"),
        ({"classes": ((-1,), (1,))}, "different coefficients"),
        ({"shares": ((0.5, 0.4),)}, "with sum 1"),
        ({"shares": ((1.5, -0.5),)}, "none negative"),
        ({"shares": ((1.0,),)}, "rows of 2 numbers"),
        ({"shares": ()}, r"got \(\)"),
    ],
)
def test_classes_and_shares_that_mean_nothing_are_refused(settings, message):
    with pytest.raises(ConfigError, match=message):
        ClassesPrior(**settings)
