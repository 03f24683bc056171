"""Boolean functions: truth tables written down anew, what is held out, teaching sequences, counterfactuals, ideal learners."""

import dataclasses
import math
import re

import pytest
import torch

from compolens.foundation.configs import ConfigError
from compolens.references import ConsistentFunctions, ConsistentTrainingFunctions, NearestLabels
from compolens.tasks import BooleanFunctions

CONJUNCTION = BooleanFunctions(n_bits=5, n_context=12)
FAMILIES = {
    "conjunction": CONJUNCTION,
    "disjunction": dataclasses.replace(CONJUNCTION, kind="disjunction", n_parts=3),
    "dnf": dataclasses.replace(CONJUNCTION, kind="dnf", n_bits=4),
    "parity": dataclasses.replace(CONJUNCTION, kind="parity", n_parts=3),
    "parities": dataclasses.replace(CONJUNCTION, kind="parity", n_parts=0),
}
each = pytest.mark.parametrize("task", FAMILIES.values(), ids=FAMILIES)


def formula(task, name):
    """The function of that name as Python: what the name says, evaluated by somebody else."""
    code = re.sub(r"x(\d+)", lambda m: f"x[{int(m[1]) - 1}]", name)
    for sign, word in (("¬", " not "), ("∧", " and "), ("∨", " or ")):
        code = code.replace(sign, word)
    if task.kind == "parity":
        return lambda x: sum(eval(part, {"x": x}) for part in code.split("⊕")) % 2 == 1
    return lambda x: bool(eval(code, {"x": x}))


@each
@pytest.mark.parametrize("split", ["train", "ood"])
def test_labels_are_what_the_name_of_the_function_says(task, split):
    episodes = task.sample(20, split, task.rng(0, split))
    for i in range(20):
        truth = formula(task, task.composition_name(int(episodes.composition[i])))
        x = (episodes.tokens[i, ::2, :-1] > 0).tolist()
        y = [truth(row) for row in x]
        assert episodes.targets[i, ::2].tolist() == y
        assert (episodes.tokens[i, 1::2, -1] > 0).tolist() == y[:-1]
    assert not episodes.tokens[:, ::2, -1].any() and not episodes.tokens[:, 1::2, :-1].any()


def test_there_are_as_many_functions_as_combinatorics_says():
    counts = {name: task.n_compositions for name, task in FAMILIES.items()}
    assert counts["conjunction"] == math.comb(5, 2) * 4 and counts["disjunction"] == math.comb(5, 3) * 8
    assert counts["parity"] == math.comb(5, 3) and counts["parities"] == 2**5 - 1
    terms = math.comb(4, 2) * 4
    assert counts["dnf"] < math.comb(terms, 2)  # those that can be written in two ways are left out


@each
def test_no_two_functions_are_the_same_and_every_part_is_trained_on(task):
    tables = {tuple(formula(task, task.composition_name(c))(x.tolist()) for x in task._every_input)
              for c in range(task.n_compositions)}  # fmt: skip
    assert len(tables) == task.n_compositions
    train, ood = (set(task.compositions(split)) for split in ("train", "ood"))
    assert not train & ood and len(train | ood) == task.n_compositions
    assert {p for c in train for p in task._functions[c]} == set(range(len(task._parts)))
    assert len(ood) == round(task.n_compositions / 2)


def test_validation_takes_from_training_alone():
    task = dataclasses.replace(CONJUNCTION, validation=4)
    assert task.compositions("ood") == CONJUNCTION.compositions("ood") and len(task.compositions("validation")) == 4
    assert set(task.compositions("train")) | set(task.compositions("validation")) == set(CONJUNCTION.compositions("train"))


@each
def test_after_a_teaching_sequence_one_function_is_left(task):
    taught = dataclasses.replace(task, teaching=True, n_context=24)
    episodes = taught.sample(64, "ood", taught.rng(0, "ood"))
    longest = max(map(len, taught._teaching))
    short = dataclasses.replace(task, n_context=longest)
    first = episodes.tokens[:, [*range(2 * longest), -1]]
    told = episodes._replace(tokens=first, targets=episodes.targets[:, [*range(2 * longest), -1]])
    _, wrong = short.candidates(told, range(task.n_compositions))
    consistent = wrong == 0
    assert (consistent.sum(1) == 1).all() and torch.equal(consistent.long().argmax(1), episodes.composition)


def test_one_example_fewer_than_a_teaching_sequence_leaves_more_than_one_function():
    task = FAMILIES["parities"]
    for own, chosen in enumerate(task._teaching):
        agree = (task._truth[:, chosen[:-1]] == task._truth[own, chosen[:-1]]).all(1)
        assert agree.sum() > 1


@each
def test_counterfactuals_keep_inputs_and_change_labels_alone(task):
    episodes = task.sample(50, "train", task.rng(0, "train"))
    again = task.render(episodes.codes, episodes.inputs)
    assert torch.equal(again.tokens, episodes.tokens) and torch.equal(again.composition, episodes.composition)
    other = task.render({"parts": episodes.codes["parts"].roll(1, 0)}, episodes.inputs)
    assert torch.equal(other.composition, episodes.composition.roll(1)) and torch.equal(
        other.tokens[:, ::2], again.tokens[:, ::2]
    )


@each
def test_an_exchange_takes_one_part_of_the_source_and_stays_in_the_family(task):
    rng = task.rng(0, "test")
    base, source = task.sample(200, "train", rng), task.sample(200, "train", rng)
    codes, mask = task.exchange(base.codes, source.codes, rng)
    changed = mask.any(1)
    assert changed.float().mean() > 0.3
    assert torch.equal(codes["parts"][~changed], base.codes["parts"][~changed])
    assert (mask[changed].sum(1) == 2).all()  # one part makes room for another
    assert torch.equal(codes["parts"].bool(), torch.where(mask, source.codes["parts"], base.codes["parts"]).bool())
    result = task.render(codes, base.inputs).composition[changed]
    assert (result >= 0).all()
    for before in (base, source):
        assert not (result == before.composition[changed]).any()


@each
def test_the_vote_of_all_functions_is_bayes_rule(task):
    """Counted again, function by function, in plain Python; and nobody is right more often than who knows the function."""
    episodes = task.sample(8, "ood", task.rng(1, "ood"))
    votes = ConsistentFunctions().predict(task, episodes)[:, -1].exp()
    weight = torch.tensor([0.5 / (1 - task.rate), 0.5 / task.rate])
    for i in range(8):
        x, y = (episodes.tokens[i, ::2, :-1] > 0).tolist(), episodes.targets[i, ::2].tolist()
        said = [0, 0]
        for c in range(task.n_compositions):
            truth = formula(task, task.composition_name(c))
            if all(truth(a) == b for a, b in zip(x[:-1], y[:-1], strict=True)):
                said[truth(x[-1])] += 1
        expected = torch.tensor(said) / sum(said) * weight
        assert torch.allclose(votes[i], expected.double(), atol=1e-6)


@each
def test_memory_of_training_functions_fails_where_recombining_succeeds(task):
    task = dataclasses.replace(task, n_context=24)
    scores = {}
    for split in ("test", "ood"):
        episodes = task.sample(600, split, task.rng(2, split))
        for learner in (ConsistentFunctions(), ConsistentTrainingFunctions()):
            scores[split, learner.name] = task.score(learner.predict(task, episodes), episodes.targets)
    assert scores["test", "vote of training functions"] > 0.9 < scores["ood", "vote of all functions"]
    assert scores["ood", "vote of training functions"] < scores["ood", "vote of all functions"] - 0.1


@each
def test_the_same_answer_always_scores_one_half(task):
    """Over inputs and functions drawn evenly: both labels weigh the same."""
    truth = task._truth
    targets = truth.flatten().long()[:, None]
    for label in (0, 1):
        prediction = torch.nn.functional.one_hot(torch.full_like(targets, label), 2).float()
        assert task.score(prediction, targets) == pytest.approx(0.5, abs=1e-6)


def test_repeated_items_come_again_with_the_same_labels():
    episodes = CONJUNCTION.sample(5, "test", CONJUNCTION.rng(0, "test"))
    again = CONJUNCTION.repeated(episodes, 4)
    blocks = again.tokens[:, :24].unflatten(1, (4, 6))
    assert torch.equal(blocks, blocks[:, :1].expand_as(blocks)) and torch.equal(blocks[:, 0], episodes.tokens[:, :6])
    assert torch.equal(again.tokens[:, -1], episodes.tokens[:, -1]) and torch.equal(
        again.codes["parts"], episodes.codes["parts"]
    )


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"kind": "xor"}, "no kind 'xor'"),
        ({"n_bits": 1}, "n_bits must be from 2 to 10"),
        ({"n_parts": 6}, "has from 1 to 5 parts, got n_parts=6"),
        ({"n_parts": 0}, "has from 1 to 5 parts, got n_parts=0"),
        ({"kind": "parity", "n_parts": 5}, "1 functions, too few"),
        ({"kind": "dnf", "width": 6}, "got width=6"),
        ({"n_parts": 1}, "is never trained on"),
        ({"fraction_held_out": 1.0}, "fraction_held_out must lie between 0 and 1"),
        ({"validation": 30}, "validation=30"),
        ({"kind": "parity", "n_parts": 0, "teaching": True, "n_context": 2}, "a teaching sequence has up to"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused_in_words(settings, message):
    with pytest.raises(ConfigError, match=re.escape(message)):
        dataclasses.replace(CONJUNCTION, **settings)


@each
def test_the_nearest_examples_decide_ring_by_ring(task):
    """Counted again in plain Python: the label that is more frequent at the least distance at which either is."""
    episodes = task.sample(40, "ood", task.rng(3, "ood"))
    said = NearestLabels().predict(task, episodes)[:, -1].argmax(-1)
    for i in range(40):
        *shown, asked = (episodes.tokens[i, ::2, :-1] > 0).tolist()
        y = episodes.targets[i, ::2].tolist()
        rings = [0] * (task.n_bits + 1)
        for x, label in zip(shown, y, strict=False):
            rings[sum(a != b for a, b in zip(x, asked, strict=True))] += 2 * label - 1
        assert said[i] == (next((ring for ring in rings if ring), -1) > 0)


@each
def test_a_question_that_was_shown_is_answered_by_its_neighbours_and_the_strata_tell_them_apart(task):
    episodes = task.sample(200, "ood", task.rng(4, "ood"))
    parts = task.strata(episodes)
    shown, new = parts["question shown"], parts["question not shown"]
    assert (shown ^ new).all() and shown.any() and new.any()
    rows = (episodes.tokens[:, ::2, :-1] > 0).tolist()
    assert shown.tolist() == [row[-1] in row[:-1] for row in rows]
    said = NearestLabels().predict(task, episodes)[:, -1].argmax(-1)
    assert (said == episodes.targets[:, -1])[shown].all() and not (said == episodes.targets[:, -1])[new].all()
