"""Fuzzy logic: Zadeh's operators, the public reference code's sequences, the split, and what a readout is given."""

import dataclasses
import itertools
from pathlib import Path

import numpy as np
import pytest
import torch

from compolens.foundation.configs import ConfigError
from compolens.tasks import FuzzyLogic

GOLDEN = dict(np.load(Path(__file__).parents[1] / "data" / "hyla_golden.npz", allow_pickle=False))
SETS = ["train", "valid_fixed_query"]
KNOWN = list(itertools.combinations(range(12), 2))
UNKNOWN = list(itertools.combinations(range(12, 16), 2))


def draw(task, n, split="train", seed=0, **options):
    return task.sample(n, split, task.rng(seed, split), **options)


def golden(name):
    """(x, y, bits, variance) of the reference's sequences: bits (batch, term, variable), 1 = plain."""
    return tuple(torch.from_numpy(GOLDEN[f"logic/{name}/{k}"]) for k in ("x", "y", "latents", "base_mse"))


# ---- the public reference's sequences --------------------------------------------------------------------------------
@pytest.mark.parametrize("name", SETS)
def test_the_references_sequences_are_ours_under_its_terms(name):
    """Its bits are our term numbers, most significant first; every target is equal to the last bit; a query's is hidden."""
    x, y, bits, variance = golden(name)
    task = FuzzyLogic(length=32)
    terms = (bits.long() * torch.tensor([8, 4, 2, 1])).sum(-1)
    assert (terms[:, 0] < terms[:, 1]).all() and (terms < task.n_known).all()
    episodes = task.render({"terms": terms}, x[..., :4])
    assert torch.equal(episodes.tokens, x) and not x[:, -1, -1].any()
    assert torch.equal(episodes.targets[:, -1], y)
    assert torch.equal(episodes.targets[:, :-1, 0], x[:, :-1, -1])
    _, ours = task.errors(torch.zeros(len(x), 32, 1), episodes.targets)
    torch.testing.assert_close(ours, variance[:, 0].double(), rtol=1e-5, atol=0)
    assert (episodes.composition >= 0).all() and torch.equal(torch.tensor(KNOWN)[episodes.composition], terms)


def test_other_terms_do_not_give_the_references_targets():
    x, y, bits, _ = golden("train")
    terms = (bits.long() * torch.tensor([8, 4, 2, 1])).sum(-1)
    for wrong in (15 - terms, (bits.long() * torch.tensor([1, 2, 4, 8])).sum(-1), terms.roll(1, 0)):
        targets = FuzzyLogic(length=32).render({"terms": wrong}, x[..., :4]).targets
        assert (targets[:, -1] != y).double().mean() > 0.3


def test_the_references_fixed_query_is_one_query():
    x, _, _, _ = golden("valid_fixed_query")
    assert (x[:, -1] == x[0, -1]).all() and not (x[:, 0] == x[0, 0]).all()


# ---- Zadeh's operators -----------------------------------------------------------------------------------------------
def truth(x, names):
    """max over terms of min over variables of x or 1 - x, for one input and terms such as "0110", in plain Python."""
    conjunctions = []
    for name in names:
        literals = [np.float32(v) if bit == "1" else np.float32(1) - np.float32(v) for v, bit in zip(x, name, strict=True)]
        conjunctions.append(min(literals))
    return float(max(conjunctions))


@pytest.mark.parametrize(
    "task",
    [
        pytest.param(FuzzyLogic(length=6), id="default"),
        pytest.param(FuzzyLogic(length=6, held_out_terms="unknown"), id="unknown terms"),
        pytest.param(FuzzyLogic(n_variables=3, n_terms=2, length=5, fraction_held_out=0.3), id="3 variables"),
        pytest.param(FuzzyLogic(n_variables=5, n_terms=3, length=4), id="5 variables, 3 terms"),
        pytest.param(FuzzyLogic(n_variables=3, n_terms=1, length=4, allow_unseen_terms=True), id="single terms"),
        pytest.param(FuzzyLogic(length=6, inputs="fixed context"), id="fixed context"),
    ],
)
@pytest.mark.parametrize("split", ["train", "ood"])
def test_targets_are_the_maximum_over_terms_of_the_minimum_over_literals(task, split):
    episodes = draw(task, 60, split)
    for i, composition in enumerate(episodes.composition.tolist()):
        names = task.composition_name(composition).split("|")
        assert names == [format(t, f"0{task.n_variables}b") for t in episodes.codes["terms"][i].tolist()]
        expected = [truth(x, names) for x in episodes.inputs[i].numpy()]
        assert episodes.targets[i, :, 0].tolist() == expected
        assert episodes.tokens[i, :, -1].tolist() == [*expected[:-1], 0]
    assert torch.equal(episodes.tokens[..., :-1], episodes.inputs)
    assert episodes.inputs.min() >= 0 and episodes.inputs.max() < 1
    assert set(episodes.composition.tolist()) <= set(task.compositions(split))


def test_on_crisp_inputs_a_function_is_the_boolean_one():
    task = FuzzyLogic(length=16)
    corners = torch.tensor(list(itertools.product([0.0, 1.0], repeat=4)))
    for terms in KNOWN + UNKNOWN:
        targets = task.render({"terms": torch.tensor([terms])}, corners[None]).targets[0, :, 0]
        assert targets.nonzero().flatten().tolist() == list(terms), "true exactly where one of the terms is"


def test_all_functions_answer_at_once_what_they_answer_one_by_one():
    task = FuzzyLogic(length=5)
    episodes = draw(task, 6)
    x, y = task.examples(episodes)
    assert torch.equal(x, episodes.inputs) and torch.equal(y, episodes.targets[:, :-1])
    chosen = [70, 3, 65]
    answers = task.functions(x, chosen)
    for k, composition in enumerate(chosen):
        terms = torch.tensor([(KNOWN + UNKNOWN)[composition]]).expand(6, 2)
        assert torch.equal(answers[:, k], task.render({"terms": terms}, x).targets[..., 0])


def test_functions_are_drawn_uniformly_and_compositions_can_be_asked_for():
    task = FuzzyLogic(length=2)
    counts = torch.bincount(draw(task, 20_000).composition, minlength=66)[list(task.compositions("train"))]
    assert (counts - 1000).abs().max() < 5 * 1000**0.5
    asked = task.compositions("ood")[3:5]
    assert set(draw(task, 100, "ood", compositions=asked).composition.tolist()) == set(asked)


def test_nuisances_are_what_they_are_called():
    episodes = draw(FuzzyLogic(length=5), 30)
    assert torch.equal(episodes.nuisances["target value"], episodes.targets[:, -1, 0])
    assert torch.equal(episodes.nuisances["largest query input"], episodes.inputs[:, -1].max(-1).values)


# ---- the split -------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("fraction", "held_out"), [(0.3, 19), (0.5, 33), (0.7, 46)])
@pytest.mark.parametrize("split_seed", [0, 1, 2])
def test_of_66_functions_of_known_terms_a_fraction_is_held_out(fraction, held_out, split_seed):
    task = FuzzyLogic(fraction_held_out=fraction, split_seed=split_seed)
    train, test, ood = (set(task.compositions(split)) for split in ("train", "test", "ood"))
    assert train == test and not train & ood and train | ood == set(range(66))
    assert (len(train), len(ood)) == (66 - held_out, held_out)
    split = task.describe_split()
    assert (split["functions"], split["held_out"], split["known_terms"], split["unknown_terms"]) == (
        len(train),
        held_out,
        12,
        4,
    )
    uses = [sum(t in KNOWN[c] for c in train) for t in range(12)]
    assert split["uses_per_term"] == uses and min(uses) > 0, "every known term occurs in training"


def test_splits_differ_by_seed_and_by_nothing_else():
    splits = {FuzzyLogic(split_seed=seed).compositions("ood") for seed in range(5)}
    assert len(splits) == 5
    assert FuzzyLogic(length=16, inputs="fixed query").compositions("ood") == FuzzyLogic().compositions("ood")


def test_functions_are_numbered_in_lexicographic_order_of_their_terms():
    task = FuzzyLogic()
    names = ["|".join(format(t, "04b") for t in pair) for pair in KNOWN + UNKNOWN]
    assert [task.composition_name(c) for c in range(72)] == names


def test_unknown_terms_are_those_with_the_first_two_variables_plain():
    task = FuzzyLogic(held_out_terms="unknown")
    assert task.compositions("ood") == tuple(range(66, 72))
    names = {name for c in task.compositions("ood") for name in task.composition_name(c).split("|")}
    assert names == {"1100", "1101", "1110", "1111"}
    assert task.compositions("train") == FuzzyLogic().compositions("train")
    assert sorted(set(draw(task, 200, "ood").codes["terms"].flatten().tolist())) == [12, 13, 14, 15]
    assert set(draw(task, 2000, "train").codes["terms"].flatten().tolist()) == set(range(12))


def test_held_out_functions_can_be_listed_in_any_order():
    task = FuzzyLogic(held_out=[[5, 2], [0, 1]])
    assert task.compositions("ood") == (0, KNOWN.index((2, 5)))
    assert len(task.compositions("train")) == 64
    assert task.held_out == ((5, 2), (0, 1)), "lists become hashable"


# ---- variants and counterfactuals ------------------------------------------------------------------------------------
def test_the_setting_says_what_is_held_out():
    assert FuzzyLogic(length=8).setting == "FuzzyLogic 8 tokens, 70 % held out"
    assert FuzzyLogic(length=8, held_out=((2, 3), (1, 6))).setting == "FuzzyLogic 8 tokens, listed"


def test_variants_show_the_same_functions_in_another_way():
    task = FuzzyLogic(length=9)
    variants = task.variants
    assert set(variants) == {"fixed query", "fixed context", "unknown terms"}
    assert all(v.compositions("train") == task.compositions("train") for v in variants.values())
    assert variants["fixed query"].compositions("ood") == task.compositions("ood")
    uniform, query, context = (draw(t, 40, "ood") for t in (task, variants["fixed query"], variants["fixed context"]))
    assert torch.equal(uniform.codes["terms"], query.codes["terms"])
    assert (query.inputs[:, -1] == query.inputs[0, -1]).all() and torch.equal(query.inputs[:, :-1], uniform.inputs[:, :-1])
    assert (context.inputs[:, :-1] == context.inputs[0, :-1]).all() and torch.equal(
        context.inputs[:, -1], uniform.inputs[:, -1]
    )
    again = draw(variants["fixed query"], 5, "train", seed=9)
    assert (again.inputs[:, -1] == query.inputs[0, -1]).all(), "the same query in all splits and under all seeds"
    unknown = draw(variants["unknown terms"], 40)
    assert torch.equal(unknown.tokens, draw(task, 40).tokens), "its train split is the task's own"


def test_variants_have_no_variant_that_they_are_themselves():
    task = FuzzyLogic(length=9)
    assert set(task.variants["fixed query"].variants) == {"uniform", "fixed context", "unknown terms"}
    assert set(task.variants["unknown terms"].variants) == {"fixed query", "fixed context"}
    assert "unknown terms" not in FuzzyLogic(fraction_unknown=0).variants


def test_rendering_shows_the_same_inputs_under_other_terms():
    task = FuzzyLogic(length=7)
    episodes, other = draw(task, 30), draw(task, 30, "ood")
    own = task.render(episodes.codes, episodes.inputs)
    assert torch.equal(own.tokens, episodes.tokens) and torch.equal(own.composition, episodes.composition)
    shown = task.render({"terms": other.codes["terms"].flip(1)}, episodes.inputs)
    assert torch.equal(shown.inputs, episodes.inputs) and torch.equal(shown.composition, other.composition)
    assert torch.equal(shown.codes["terms"], other.codes["terms"]), "terms are a set, in ascending order"
    for i in range(30):
        names = task.composition_name(int(other.composition[i])).split("|")
        assert shown.targets[i, :, 0].tolist() == [truth(x, names) for x in episodes.inputs[i].numpy()]


def test_a_known_beside_an_unknown_term_renders_but_is_no_function_of_a_split():
    task = FuzzyLogic(length=4)
    x = torch.rand(2, 4, 4, generator=torch.Generator().manual_seed(0))
    episodes = task.render({"terms": torch.tensor([[3, 14], [13, 12]])}, x)
    assert episodes.composition.tolist() == [-1, 66]
    assert episodes.targets[0, 2, 0].item() == truth(x[0, 2].numpy(), ["0011", "1110"])


# ---- loss and scores -------------------------------------------------------------------------------------------------
def test_the_loss_and_both_scores_are_their_formulas():
    task = FuzzyLogic(length=8)
    episodes = draw(task, 50)
    prediction = torch.rand(50, 8, 1, generator=torch.Generator().manual_seed(0))
    y, guess = episodes.targets[..., 0].double().numpy(), prediction[:, -1, 0].double().numpy()
    error, variance = (guess - y[:, -1]) ** 2, ((y - y.mean(1, keepdims=True)) ** 2).mean(1)
    assert task.loss(prediction, episodes.targets).item() == pytest.approx(error.mean(), rel=1e-6)
    metrics = {name: (e.numpy(), w.numpy()) for name, (e, w) in task.metrics(prediction, episodes.targets).items()}
    scores = {name: 1 - e.sum() / w.sum() for name, (e, w) in metrics.items()}
    assert set(scores) == {"score", "R², mean of ratios"}
    assert scores["score"] == pytest.approx(1 - error.sum() / variance.sum(), rel=1e-12)
    assert scores["R², mean of ratios"] == pytest.approx(np.mean(1 - error / variance), rel=1e-12)
    assert abs(scores["score"] - scores["R², mean of ratios"]) > 1e-3, "the two are told apart"
    assert task.score(prediction, episodes.targets) == pytest.approx(scores["score"], rel=1e-12)


def test_the_right_answer_scores_one_and_every_functions_mean_about_zero():
    task = FuzzyLogic(length=32)
    episodes = draw(task, 2000)
    assert task.score(episodes.targets, episodes.targets) == 1
    mean = episodes.targets.mean(1, keepdim=True).expand_as(episodes.targets)
    assert task.score(mean, episodes.targets) == pytest.approx(0, abs=0.15)


def test_only_the_answer_at_the_query_counts():
    task = FuzzyLogic(length=8)
    episodes = draw(task, 10)
    other = episodes.targets.clone()
    other[:, :-1] = 7
    assert task.answers == (7,)
    assert task.loss(other, episodes.targets) == 0 and task.score(other, episodes.targets) == 1


# ---- readouts --------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("task", [FuzzyLogic(length=8), FuzzyLogic(n_variables=5, n_terms=3, length=6)], ids=["2", "3 terms"])
def test_a_readout_is_offered_every_term_in_ascending_order_at_the_query_attending_to_itself(task):
    episodes = draw(task, 20, "ood")
    readouts, width = task.readouts(episodes), task.n_variables + 1
    assert readouts.pairs.keys() == {"self"}
    assert torch.equal(readouts.pairs["self"], torch.full((20, 1, 1, 2), task.length - 1))
    names = [f"term {k + 1}" for k in range(task.n_terms)]
    assert list(readouts.labels) == list(readouts.classes) == names
    for k, name in enumerate(names):
        assert torch.equal(readouts.labels[name], episodes.codes["terms"].sort(1).values[:, k : k + 1])
        assert readouts.classes[name] == tuple(format(t, f"0{task.n_variables}b") for t in range(task.n_all))
    assert {name: tuple(v.shape) for name, v in readouts.confounds.items()} == {
        "target value": (20, 1),
        "largest query input": (20, 1),
    }
    assert torch.equal(readouts.confounds["target value"], episodes.targets[:, -1])
    assert torch.equal(readouts.confounds["largest query input"][:, 0], episodes.inputs[:, -1].max(-1).values)
    products = width * (width + 1) // 2
    assert {name: tuple(v.shape) for name, v in readouts.inputs.items()} == {
        "raw input": (20, 1, task.length * width),
        "raw input, products": (20, 1, 2 * (width + products)),
    }
    assert torch.equal(readouts.inputs["raw input"][:, 0], episodes.tokens.flatten(1))


def test_the_products_offered_to_a_readout_are_moments_of_the_examples_and_the_query():
    task = FuzzyLogic(length=8)
    episodes = draw(task, 4)
    offered = task.readouts(episodes).inputs["raw input, products"][:, 0].numpy()
    for tokens, features in zip(episodes.tokens.numpy(), offered, strict=True):
        pairs = list(itertools.combinations_with_replacement(range(5), 2))
        second = np.array([[t[i] * t[j] for i, j in pairs] for t in tokens])
        expected = [tokens[:-1].mean(0), second[:-1].mean(0), tokens[-1], second[-1]]
        np.testing.assert_allclose(features, np.concatenate(expected), rtol=1e-5, atol=1e-6)


# ---- bad input -------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"n_variables": 0}, "n_variables must be a whole number of at least 1"),
        ({"n_variables": 13}, "n_variables=13 makes 2\^13 terms; at most 12"),
        ({"n_terms": 0}, "n_terms must be a whole number of at least 1"),
        ({"n_terms": 13}, "needs 13 different terms, but of 16 only 12 are known"),
        ({"length": 1}, "length=1 leaves no example beside the query"),
        ({"inputs": "fixed"}, "no inputs 'fixed'; "),
        ({"held_out_terms": "unknwon"}, "no held_out_terms 'unknwon'; did you mean 'unknown'"),
        ({"fraction_unknown": 1.0}, "fraction_unknown must be at least 0 and below 1, got 1.0"),
        ({"fraction_unknown": -0.1}, "fraction_unknown must be at least 0 and below 1, got -0.1"),
        ({"fraction_unknown": 0.1, "held_out_terms": "unknown"}, "1 unknown terms make no function of 2"),
        ({"fraction_held_out": 0.0}, "fraction_held_out must lie between 0 and 1, got 0.0"),
        ({"fraction_held_out": 1.0}, "fraction_held_out must lie between 0 and 1, got 1.0"),
        ({"fraction_held_out": 0.01}, "nothing is held out of 66 functions; raise fraction_held_out"),
        ({"fraction_held_out": 0.95}, "unseen in training, so nothing could generalize to it; hold out less"),
        ({"held_out": []}, "nothing is held out of 66 functions"),
        ({"held_out": KNOWN, "allow_unseen_terms": True}, "all 66 functions are held out"),
        ({"held_out": [[0, 12]]}, r"held_out names term \[12\], but the known terms are 0 to 11"),
        ({"held_out": [[0, 1, 2]]}, r"\[0, 1, 2\] should name 2 different terms"),
        ({"held_out": [[3, 3]]}, r"\[3, 3\] should name 2 different terms"),
        ({"held_out": [[0, 1], [1, 0]]}, r"held_out lists \[\[0, 1\]\] twice"),
        ({"held_out": [3]}, r"must list sets of term numbers such as \[\[0, 1\], \[2, 5\]\], got the entry 3"),
        ({"held_out": [[0, 0.5]]}, "must list sets of term numbers"),
        ({"held_out": [(0, t) for t in range(1, 12)]}, "the split leaves term 0000 unseen in training"),
    ],
)
def test_settings_that_make_no_task_are_refused_in_one_line(settings, complaint):
    with pytest.raises(ConfigError, match=complaint) as error:
        FuzzyLogic(**settings)
    assert "\n" not in str(error.value)


def test_terms_may_be_left_unseen_on_purpose():
    held_out = tuple((0, t) for t in range(1, 12))
    task = FuzzyLogic(held_out=held_out, allow_unseen_terms=True)
    assert task.describe_split()["uses_per_term"] == [0] + [10] * 11


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ({"n": 0}, "at least one episode, got n=0"),
        ({"split": "valid"}, "no split 'valid'"),
        ({"compositions": [66]}, "composition 66 is not in split 'train'"),
        ({"compositions": []}, "has no composition to draw from"),
    ],
)
def test_impossible_draws_are_refused(arguments, complaint):
    task = FuzzyLogic(length=4)
    with pytest.raises(ConfigError, match=complaint):
        task.sample(**{"n": 3, "split": "train", "rng": torch.Generator().manual_seed(0), **arguments})


def test_the_description_is_the_constructor():
    task = FuzzyLogic(held_out=[[0, 1]], length=5)
    assert task == FuzzyLogic(held_out=((0, 1),), length=5) and hash(task) == hash(dataclasses.replace(task))
    assert torch.equal(draw(task, 6).tokens, draw(FuzzyLogic(held_out=[[0, 1]], length=5), 6).tokens)
