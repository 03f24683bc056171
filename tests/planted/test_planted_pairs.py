"""The benchmark's families of two operations, in sequence, side by side, against one another or added up and folded: what they
ask, and that it can be answered."""

import pytest
import torch
from test_planted import neighbour

from compolens.foundation.configs import ConfigError
from compolens.references import AllCompositions, InContextRidge, TrainingCompositions, TrueCode

NAMES = ("Chain", "Product", "Maxout", "Phase")
Chain, Product, Maxout, Phase = (neighbour(kind.lower()).__dict__[kind] for kind in NAMES)
each = pytest.mark.parametrize("family", [Chain, Product, Maxout, Phase], ids=lambda family: family.__name__)


def episodes(task, split="ood", n=64, seed=0):
    return task.sample(n, split, task.rng(seed, split))


@each
def test_every_operation_is_trained_and_held_out_and_no_pair_is_both(family):
    for task in (family(), family(n_outer=3, n_inner=7, partners_held_out=1), family(n_outer=5, n_inner=4, split_seed=3)):
        train, held_out = (set(task.compositions(split)) for split in ("train", "ood"))
        assert train | held_out == set(range(task.n_compositions)) and not train & held_out
        for found in (train, held_out):
            assert {c // task.n_inner for c in found} == set(range(task.n_outer))
            assert {c % task.n_inner for c in found} == set(range(task.n_inner))
        assert task.describe_split()["held_out"] == [list(divmod(c, task.n_inner)) for c in task.compositions("ood")]
    assert len(family().compositions("ood")) == 12
    assert family(split_seed=1).compositions("ood") != family().compositions("ood")
    with pytest.raises(ConfigError, match="partners_held_out must be below 6"):
        family(partners_held_out=6)
    with pytest.raises(ConfigError, match="d_x"):
        family(d_x=0)


def test_the_width_between_two_layers_is_positive():
    with pytest.raises(ConfigError, match="d_hidden"):
        Chain(d_hidden=0)


def answered_by_hand(family, x, inner, outer):
    if family is Chain:
        return (x @ inner).clamp(min=0) @ outer
    if family is Phase:
        return 2**0.5 * ((x @ inner).sin() * (x @ outer).cos() + (x @ inner).cos() * (x @ outer).sin())
    if family is Maxout:
        return torch.stack([x @ inner, x @ outer]).amax(0)
    return (x @ outer) / (1 + torch.exp(-(x @ inner)))


@each
def test_an_answer_is_what_both_operations_make_of_x(family):
    task = family(teacher_seed=2)
    shown = episodes(task)
    inner, outer = task.teacher
    for x, y, i, j in zip(shown.inputs, shown.targets, shown.codes["outer"], shown.codes["inner"], strict=True):
        torch.testing.assert_close(y, answered_by_hand(family, x, inner[j], outer[i]))
    torch.testing.assert_close(shown.composition, 6 * shown.codes["outer"] + shown.codes["inner"])
    assert set(shown.composition.tolist()) == set(task.compositions("ood"))
    assert abs(float(shown.targets.square().mean()) - 1) < 0.2 and abs(float(shown.inputs.var()) - 1) < 0.05


@each
def test_tokens_show_the_answers_of_the_context_alone(family):
    task = family(n_context=5, n_queries=3)
    shown = episodes(task)
    x, y, asked = shown.tokens.split([6, 4, 1], dim=-1)
    assert torch.equal(x, shown.inputs) and torch.equal(y[:, :5], shown.targets[:, :5])
    assert not y[:, 5:].any() and not asked[:, :5].any() and bool((asked[:, 5:] == 1).all())
    again = task.render(shown.codes, shown.inputs)
    assert torch.equal(again.tokens, shown.tokens) and torch.equal(again.composition, shown.composition)
    given, answered = task.examples(shown)
    assert torch.equal(given, x) and torch.equal(answered, y[:, :5])

    tokens, targets = task.context_asked(shown)
    assert tokens.shape == (64, 2, 8, 11) and torch.equal(tokens[:, :, :5], shown.tokens[:, None, :5].expand(-1, 2, -1, -1))
    assert torch.equal(tokens[:, 1, 5:, :6], shown.inputs[:, [3, 4, 0]]) and not tokens[:, :, 5:, 6:10].any()
    assert torch.equal(targets[:, 1, 5:], shown.targets[:, [3, 4, 0]])


@each
def test_two_operations_do_not_add_up(family):
    """y(i, j) - y(i, j') - y(i', j) + y(i', j') is 0 where effects add up; here it is about as large as the
    answers, where the larger one answers half as large."""
    task = family()
    x = episodes(task).inputs
    y = {
        pair: task.answer(dict(zip(("outer", "inner"), (torch.full((64,), k) for k in pair), strict=True)), x)
        for pair in ((0, 0), (0, 1), (1, 0), (1, 1))
    }
    together = y[0, 0] - y[0, 1] - y[1, 0] + y[1, 1]
    least = 0.25 if family is Maxout else 0.5
    assert together.square().mean() > least * sum(part.square().mean() for part in y.values()) / 4


def test_gates_are_mostly_open_or_shut():
    task = Product()
    gates = task.first(episodes(task).inputs @ task.teacher[0][0])
    assert 0.6 < ((gates < 0.2) | (gates > 0.8)).float().mean() < 0.95 and abs(float(gates.mean()) - 0.5) < 0.1


@pytest.mark.parametrize("seed", range(3))
def test_either_operation_answers_half_of_the_time(seed):
    task = Maxout(teacher_seed=seed)
    shown = episodes(task)
    inner, outer = task.teacher
    theirs = shown.inputs @ outer[shown.codes["outer"]]
    assert abs(float((shown.targets == theirs).float().mean()) - 0.5) < 0.1
    assert abs(float(inner.std() / outer.std()) - 1) < 0.3


@pytest.mark.parametrize("seed", range(3))
def test_the_sum_of_both_phases_is_often_folded_and_one_alone_seldom(seed):
    task = Phase(teacher_seed=seed)
    shown = episodes(task, n=256)
    inner, outer = (shown.inputs @ w[shown.codes[side]] for w, side in zip(task.teacher, ("inner", "outer"), strict=True))
    folded = [float((drive.abs() > torch.pi / 2).float().mean()) for drive in (inner, outer, inner + outer)]
    assert max(folded[:2]) + 0.05 < folded[2] and 0.15 < folded[2] < 0.4
    assert abs(float(inner.std() / outer.std()) - 1) < 0.3


@each
@pytest.mark.parametrize("seed", range(3))
def test_the_ceiling_is_reached_from_the_examples_and_only_by_recombining(seed, family):
    task = family(teacher_seed=seed, split_seed=seed)
    shown = episodes(task, n=256)
    scores = [
        task.score(one.predict(task, shown), shown.targets)
        for one in (TrueCode(), AllCompositions(), InContextRidge(), TrainingCompositions())
    ]
    assert min(scores[:2]) > 0.999 and 0.3 < scores[2] < 0.8 and scores[3] < (0.2 if family is Chain else 0.6)
    answers, errors = task.candidates(shown, task.compositions("ood"))
    own = [task.compositions("ood").index(c) for c in shown.composition.tolist()]
    torch.testing.assert_close(answers[torch.arange(256), own], shown.targets)
    assert errors[torch.arange(256), own].max() < 1e-6 and errors.argmin(1).tolist() == own


@each
def test_the_score_is_zero_for_the_mean_and_one_for_the_truth(family):
    task = family(n_queries=24)
    shown = episodes(task, n=512)
    assert task.score(shown.targets, shown.targets) == 1 and task.loss(shown.targets, shown.targets) == 0
    mean = shown.targets.mean(1, keepdim=True).expand_as(shown.targets)
    assert abs(task.score(mean, shown.targets)) < 0.05
    wrong_context = shown.targets.clone()
    wrong_context[:, : task.n_context] = 9
    assert task.score(wrong_context, shown.targets) == 1


@each
def test_an_exchange_leads_to_a_third_pair_by_one_operation(family):
    task = family()
    base, source = episodes(task), episodes(task, "train")
    codes, mask = task.exchange(base.codes, source.codes, task.rng(0, "test"))
    possible = (base.codes["outer"] != source.codes["outer"]) & (base.codes["inner"] != source.codes["inner"])
    assert torch.equal(mask.sum(1), possible.long()) and 0 < mask[:, 0].sum() < possible.sum()
    for k, side in enumerate(("outer", "inner")):
        assert torch.equal(codes[side], torch.where(mask[:, k], source.codes[side], base.codes[side]))
    assert [tuple(part.shape) for part in task.factors(codes).values()] == [(64, 6), (64, 6)]
    (first, *_), (i, j) = task.parts(base.codes), (int(base.codes[side][0]) for side in ("outer", "inner"))
    assert first == (f"outer {i}", f"inner {j}") and task.composition_name(int(base.composition[0])) == f"{i}|{j}"
