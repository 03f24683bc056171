"""The hyperteacher families: the teacher's equation, the moments it implies, its scale, and what an episode shows."""

import dataclasses

import numpy as np
import pytest
import torch

from compolens import Hyperteacher, UnstructuredTeacher
from compolens.foundation.configs import ConfigError
from compolens.tasks import BurstyClassification
from compolens.tasks.base import TaskFamily

SIZES = {"d_x": 4, "d_y": 2, "d_hidden": 6, "n_modules": 6, "n_context": 6, "n_queries": 3}
TEACHERS = [Hyperteacher, UnstructuredTeacher]


def draw(task, n, split="train", seed=0, **options):
    return task.sample(n, split, task.rng(seed, split), **options)


# ---- the teacher -----------------------------------------------------------------------------------------------------
def test_answers_follow_the_equation(tiny_task):
    episodes = draw(tiny_task, 8, "ood")
    modules, readout = (part.numpy() for part in tiny_task.teacher)
    for z, x, y in zip(episodes.codes["modules"].numpy(), episodes.inputs.numpy(), episodes.targets.numpy(), strict=True):
        weights = sum(z[m] * modules[m] for m in range(6))
        np.testing.assert_allclose(y, np.maximum(x @ weights, 0) @ readout, rtol=1e-4, atol=1e-5)


def test_unstructured_answers_follow_the_equation():
    task = UnstructuredTeacher(**SIZES)
    episodes = draw(task, 8, "ood")
    modules, readout = (part.numpy() for part in task.teacher)
    for i, (z, x) in enumerate(zip(episodes.codes["modules"].numpy(), episodes.inputs.numpy(), strict=True)):
        weights = np.linalg.norm(z) * modules[int(episodes.composition[i])]
        np.testing.assert_allclose(episodes.targets[i], np.maximum(x @ weights, 0) @ readout, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("teacher", TEACHERS)
def test_the_moment_of_answers_and_inputs_is_linear_in_the_weights(teacher):
    """E[y x^T] = A^T W(z)^T Cov(x) / 2 with Cov(x) = 1, for inputs symmetric about 0."""
    task = teacher(**SIZES | {"n_context": 400, "n_queries": 1})
    codes = {"modules": draw(task, 1, "ood").codes["modules"].expand(100, -1)}
    episodes = task.render(codes, draw(task, 100, seed=1).inputs)
    weights = task.first_layer(codes, episodes.composition)[0]
    expected = (weights @ task.teacher[1]).T.flatten().double() / 2
    moments = task.raw_statistic(episodes)[:, : 2 * 4]
    error = moments.std(0) / 10
    assert ((moments.mean(0) - expected).abs() < 5 * error).all()
    assert (expected.abs() > 20 * error).any(), "the bound is tight enough to tell codes apart"


def test_the_raw_statistic_is_the_context_moment_and_mean(tiny_task):
    episodes = draw(tiny_task, 3)
    x, y = episodes.inputs[:, :6].double().numpy(), episodes.targets[:, :6].double().numpy()
    expected = [np.concatenate([(b.T @ a / 6).ravel(), b.mean(0)]) for a, b in zip(x, y, strict=True)]
    np.testing.assert_allclose(tiny_task.raw_statistic(episodes), np.stack(expected), rtol=1e-6)


@pytest.mark.parametrize("teacher", TEACHERS)
def test_the_teacher_does_not_depend_on_the_support(teacher):
    listed = [[m] for m in range(6)] + [[0, 3]]
    teachers = [teacher(**SIZES, support=s).teacher for s in ("connected", "disconnected", "random", listed)]
    assert all(torch.equal(a, b) for other in teachers[1:] for a, b in zip(teachers[0], other, strict=True))


@pytest.mark.parametrize("teacher", TEACHERS)
def test_longer_episodes_have_the_same_teacher_up_to_the_scale_of_its_answers(teacher):
    short, long = teacher(**SIZES).teacher, teacher(**SIZES | {"n_context": 60, "n_queries": 9}).teacher
    assert torch.equal(short[0], long[0])
    scale = (long[1] / short[1]).flatten()
    torch.testing.assert_close(scale, scale[:1].expand_as(scale))
    assert scale[0].item() == pytest.approx(1, abs=0.05)


@pytest.mark.parametrize("teacher", TEACHERS)
def test_the_teacher_is_a_function_of_its_own_seed(teacher):
    def modules(**settings):
        return teacher(**SIZES, **settings).teacher[0]

    assert torch.equal(modules(), modules(split_seed=4))
    assert not torch.equal(modules(), modules(teacher_seed=1))


@pytest.mark.parametrize("teacher", TEACHERS)
@pytest.mark.parametrize("coefficients", ["continuous", "discrete", "ones"])
@pytest.mark.parametrize("seed", [0, 1])
def test_answers_have_standard_deviation_1_over_all_combinations(teacher, coefficients, seed):
    everything = [[m] for m in range(6)] + [[a, b] for a in range(6) for b in range(a + 1, 6)]
    task = teacher(**SIZES, support=everything, coefficients=coefficients, teacher_seed=seed)
    assert draw(task, 6000).targets.std().item() == pytest.approx(1, abs=0.05)


def test_inputs_are_uniform_with_unit_variance(tiny_task):
    x = draw(tiny_task, 5000).inputs
    assert x.abs().max() <= 3**0.5 and x.abs().max() > 1.73
    assert abs(x.mean().item()) < 0.01 and x.var().item() == pytest.approx(1, abs=0.01)


# ---- codes -----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("split", ["train", "test", "ood"])
def test_a_code_is_active_exactly_on_the_modules_of_its_composition(tiny_task, split):
    episodes = draw(tiny_task, 200, split)
    for code, composition in zip(episodes.codes["modules"], episodes.composition.tolist(), strict=True):
        name = "+".join(str(m) for m in code.nonzero().flatten().tolist())
        assert tiny_task.composition_name(composition) == name
    assert torch.equal(tiny_task.composition_of(episodes.codes), episodes.composition)


def active_coefficients(law):
    code = draw(Hyperteacher(**SIZES, coefficients=law), 4000).codes["modules"]
    return code[code != 0]


def test_continuous_coefficients_are_uniform_between_one_half_and_1():
    active = active_coefficients("continuous")
    assert active.min() >= 0.5 and active.max() < 1
    shares = torch.histc(active, 10, 0.5, 1) / len(active)
    assert (shares - 0.1).abs().max() < 5 * (0.09 / len(active)) ** 0.5


def test_discrete_coefficients_take_six_values_equally_often():
    values, counts = active_coefficients("discrete").unique(return_counts=True)
    torch.testing.assert_close(values, torch.tensor([0.5, 0.6, 0.7, 0.8, 0.9, 1.0]))
    shares = counts / counts.sum()
    assert (shares - 1 / 6).abs().max() < 5 * (5 / 36 / counts.sum()) ** 0.5


def test_ones_are_ones():
    assert active_coefficients("ones").unique().tolist() == [1.0]


def test_all_compositions_of_a_split_are_equally_likely(tiny_task):
    _, counts = draw(tiny_task, 9000).composition.unique(return_counts=True)
    assert len(counts) == 18 and (counts - 500).abs().max() < 5 * 500**0.5


# ---- the unstructured control ----------------------------------------------------------------------------------------
def test_unstructured_weights_have_the_variance_of_the_modular_ones():
    sizes = {"d_x": 16, "d_hidden": 16, "d_y": 2, "n_context": 4, "n_queries": 1}
    for teacher in TEACHERS:
        task = teacher(**sizes)
        episodes = draw(task, 600)
        weights = task.first_layer(episodes.codes, episodes.composition)
        ratio = weights.square().mean((1, 2)) * 16 / episodes.codes["modules"].square().sum(1)
        assert ratio.mean().item() == pytest.approx(1, abs=0.1)


def test_held_out_weights_lie_in_the_span_of_seen_ones_only_in_the_modular_family():
    sizes = {"d_x": 16, "d_hidden": 16, "d_y": 2, "n_modules": 6, "n_context": 4, "n_queries": 1}
    explained = {}
    for teacher in TEACHERS:
        task = teacher(**sizes)
        seen, held_out = (
            task.first_layer(e.codes, e.composition).flatten(1).double()
            for e in (draw(task, 200, "train"), draw(task, 50, "ood"))
        )
        basis = torch.linalg.svd(seen, full_matrices=False)
        rank = int((1e-4 * basis.S[0] < basis.S).sum())
        projected = held_out @ basis.Vh[:rank].T
        explained[teacher] = (rank, float(projected.square().sum() / held_out.square().sum()))
    assert explained[Hyperteacher] == (6, pytest.approx(1, abs=1e-6))
    rank, share = explained[UnstructuredTeacher]
    assert rank == 18 and share < 2 * 18 / 256


@pytest.mark.parametrize("teacher", TEACHERS)
@pytest.mark.parametrize("split", ["train", "ood"])
def test_bases_mixed_within_their_bounds_make_the_weights(teacher, split):
    task = teacher(**SIZES)
    episodes = draw(task, 30, split)
    weights = task.first_layer(episodes.codes, episodes.composition)
    for i, composition in enumerate(episodes.composition.tolist()):
        bases = task.bases(composition).flatten(1).double().T
        solution = torch.linalg.lstsq(bases, weights[i].flatten()[:, None].double())
        low, high = task.bounds(composition)
        torch.testing.assert_close(bases @ solution.solution, weights[i].flatten()[:, None].double(), atol=1e-6, rtol=0)
        assert (solution.solution >= low - 1e-6).all() and (solution.solution <= high + 1e-6).all()


# ---- episodes --------------------------------------------------------------------------------------------------------
def test_tokens_show_context_answers_and_withhold_query_answers(tiny_task):
    episodes = draw(tiny_task, 5)
    x, y, asked = episodes.tokens.split([4, 2, 1], dim=-1)
    assert torch.equal(x, episodes.inputs)
    assert torch.equal(y[:, :6], episodes.targets[:, :6]) and not y[:, 6:].any()
    assert not asked[:, :6].any() and (asked[:, 6:] == 1).all()
    assert tiny_task.answers == (6, 7, 8)


def test_the_mask_lets_every_token_see_the_context_and_itself(tiny_task):
    for query in range(9):
        for key in range(9):
            assert bool(tiny_task.mask[query, key]) == (key < 6 or key == query)


def test_nuisances_describe_the_context(tiny_task):
    episodes = draw(tiny_task, 5)
    torch.testing.assert_close(episodes.nuisances["code_norm"], episodes.codes["modules"].norm(dim=1))
    scale = episodes.targets[:, :6].flatten(1).square().mean(1).sqrt()
    torch.testing.assert_close(episodes.nuisances["answer_scale"], scale)


def test_the_same_inputs_under_another_code_are_answered_by_that_code(tiny_task):
    episodes = draw(tiny_task, 4)
    other = {"modules": torch.full((4, 6), 0.7)}
    rendered = tiny_task.render(other, episodes.inputs)
    assert rendered.composition.tolist() == [-1] * 4, "six active modules are no combination of at most two"
    expected = torch.relu(episodes.inputs @ (0.7 * tiny_task.teacher[0].sum(0))) @ tiny_task.teacher[1]
    torch.testing.assert_close(rendered.targets, expected)


@pytest.mark.parametrize("teacher", TEACHERS)
def test_compositions_of_many_modules_are_told_apart(teacher):
    task = teacher(d_x=2, d_y=1, d_hidden=2, n_modules=70, support="random", n_context=4, n_queries=2)
    episodes = draw(task, 300)
    rendered = task.render(episodes.codes, episodes.inputs)
    assert torch.equal(rendered.composition, episodes.composition) and torch.equal(rendered.targets, episodes.targets)


def test_the_unstructured_teacher_refuses_codes_that_mean_nothing_to_it():
    task = UnstructuredTeacher(**SIZES)
    with pytest.raises(ConfigError, match="1 to 2 modules"):
        task.render({"modules": torch.ones(2, 6)}, draw(task, 2).inputs)


@pytest.mark.parametrize(("n", "title", "rows"), [(3, "questions", 6), (4, "questions", 8), (8, "questions 1 to 4 of 8", 8)])
def test_a_sheet_says_which_questions_it_shows_and_what_the_model_sees(n, title, rows):
    task = Hyperteacher(**SIZES | {"n_queries": n})
    episodes = draw(task, 1)
    code, questions = task.sheets(episodes, episodes.targets)
    assert code.title == "W(z): the model sees 6 examples (x, y)"
    assert questions.title == title and len(questions.rows) == rows


# ---- loss and score --------------------------------------------------------------------------------------------------
def test_the_loss_is_the_mean_squared_error_at_the_queries(tiny_task):
    targets, prediction = draw(tiny_task, 5).targets, draw(tiny_task, 5, seed=1).targets
    expected = np.mean((prediction[:, 6:].numpy() - targets[:, 6:].numpy()) ** 2)
    assert tiny_task.loss(prediction, targets).item() == pytest.approx(float(expected), rel=1e-5)


def test_the_score_is_pooled_r2_around_each_tasks_own_mean(tiny_task):
    targets, prediction = draw(tiny_task, 50).targets.double(), draw(tiny_task, 50, seed=1).targets.double()
    sse = sst = 0.0
    for t, p in zip(targets.numpy(), prediction.numpy(), strict=True):
        sse += ((p - t)[6:] ** 2).sum()
        sst += ((t - t.mean(0))[6:] ** 2).sum() * 9 / 8
    assert tiny_task.score(prediction, targets) == pytest.approx(1 - sse / sst)


def test_the_mean_over_the_whole_episode_scores_exactly_one_over_its_length(tiny_task):
    """It contains the answers it predicts; the factor n/(n-1) leaves 1 - (n-1)/n."""
    targets = draw(tiny_task, 20).targets.double()
    assert tiny_task.score(targets.mean(1, keepdim=True).expand_as(targets), targets) == pytest.approx(1 / 9)


def test_the_mean_over_the_context_scores_minus_one_over_its_length(tiny_task):
    targets = draw(tiny_task, 20_000).targets
    prediction = targets[:, :6].mean(1, keepdim=True).expand_as(targets)
    error, weight = tiny_task.errors(prediction, targets)
    standard_error = float((error - weight).std() / weight.mean()) / 20_000**0.5
    assert tiny_task.score(prediction, targets) == pytest.approx(-1 / 6, abs=4 * standard_error)


# ---- settings that make no sense -------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"coefficients": "continous"}, "did you mean 'continuous'"),
        ({"max_active": 7}, "max_active=7 exceeds n_modules=6"),
        ({"d_x": 0}, "d_x must be a whole number of at least 1, got 0"),
        ({"n_queries": 2.0}, "n_queries must be a whole number"),
        ({"n_context": True}, "n_context must be a whole number"),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings, message):
    with pytest.raises(ConfigError, match=message):
        Hyperteacher(**SIZES | settings)


def test_compositions_set_aside_count_among_the_numbers_below_which_all_are():
    class Aside(Hyperteacher):
        n_compositions = TaskFamily.n_compositions

        def compositions(self, split):
            return {"ood": (2,), "validation": (3,)}.get(split, (0, 1))

    assert Aside(**SIZES).n_compositions == 3 and Aside(**SIZES, validation=1).n_compositions == 4


@pytest.mark.parametrize("split", ["train", "ood"])
def test_where_a_family_does_not_say_an_exchange_makes_another_composition(split):
    """Two novel classes with different labels are one composition."""
    task = BurstyClassification(n_classes=12, n_labels=5, shifts=2, n_context=6, n_positions=20, d_item=4)
    base, source = draw(task, 400, split), draw(task, 400, split, 1)
    codes, mask = task.exchange(base.codes, source.codes, task.rng(0, "test"))
    changed = mask.any(1)
    made = task.render(codes, base.inputs).composition
    assert changed.any() and (made[changed] >= 0).all()
    for before in (base, source):
        assert not (made == before.composition)[changed].any()


def test_lists_and_tuples_describe_the_same_family():
    listed = Hyperteacher(**SIZES | {"n_modules": 3}, support=[[0], [1], [2]])
    assert listed == dataclasses.replace(listed, support=((0,), (1,), (2,)))
