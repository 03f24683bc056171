"""S-RAVEN against instances of the public reference code, against its rules, and its posterior against enumeration."""

import itertools
import math
import pickle
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.stats import chisquare

from compolens.foundation.configs import ConfigError
from compolens.references.bayes import BayesMarginals, BayesPanel
from compolens.tasks.hyperteacher import Hyperteacher
from compolens.tasks.sraven.family import SRaven
from compolens.tasks.sraven.posterior import posterior
from compolens.tasks.sraven.rules import RULES, multisets

GOLDEN = {
    k: v.astype(np.int64)
    for k, v in np.load(Path(__file__).parents[1] / "data" / "sraven_golden.npz", allow_pickle=False).items()
}
STEP = {"constant": 0, "progression +1": 1, "progression +2": 2, "progression -1": -1, "progression -2": -2}


# ---- a checker of its own: what it means that a 3 x 3 grid obeys a rule ----------------------------------------------
def obeys(rule, grid, n_values):
    if rule == "distribute three":
        return len(set(grid[0])) == 3 and all(sorted(row) == sorted(grid[0]) for row in grid)
    return all(row_obeys(rule, row, n_values) for row in grid)


def row_obeys(rule, row, n_values):
    first, second, third = (int(v) for v in row)
    if rule == "addition":
        return (first + second - third) % n_values == 0
    if rule == "subtraction":
        return (first - second - third) % n_values == 0
    step = STEP[rule]
    return (second - first - step) % n_values == 0 and (third - second - step) % n_values == 0


def violations(panels, rules, permutations, names, n_values):
    """How many features break their rule, after undoing panel[r, c][j] = unshuffled[r, c][p_c[j]]."""
    count = 0
    for panel, numbers, orders in zip(panels.tolist(), rules.tolist(), permutations.tolist(), strict=True):
        for feature, number in enumerate(numbers):
            grid = [[panel[r][c][orders[c].index(feature)] for c in range(3)] for r in range(3)]
            count += not obeys(names[number], grid, n_values)
    return count


def panels_of(task, episodes):
    return episodes.targets.view(-1, 3, 3, task.n_features)


def everything(task, n, seed=0):
    """n episodes with multisets uniform over all: train and held-out ones in proportion."""
    sizes = {split: len(task.compositions(split)) for split in ("test", "ood")}
    parts = [(split, round(n * size / sum(sizes.values()))) for split, size in sizes.items()]
    return [task.sample(size, split, task.rng(seed, split)) for split, size in parts]


# ---- the public reference's own instances ----------------------------------------------------------------------------
def test_the_references_multisets_are_ours_in_the_same_order():
    assert multisets(8, 4) == [tuple(row) for row in GOLDEN["multisets"].tolist()]


def test_the_references_instances_obey_their_rules_under_our_convention():
    assert violations(GOLDEN["instances"], GOLDEN["rules"], GOLDEN["permutations"], RULES, 8) == 0
    identity = np.tile(np.arange(4), (256, 3, 1))
    assert violations(GOLDEN["unpermuted_instances"], GOLDEN["unpermuted_rules"], identity, RULES, 8) == 0
    # the checker has teeth: the convention is not its inverse, and instances are not interchangeable
    inverse = GOLDEN["permutations"].argsort(-1)
    assert violations(GOLDEN["instances"], GOLDEN["rules"], inverse, RULES, 8) > 200
    assert violations(GOLDEN["instances"], np.roll(GOLDEN["rules"], 1, 0), GOLDEN["permutations"], RULES, 8) > 600


def test_our_tokens_are_laid_out_as_the_references():
    """x holds other instances than those with known rules; that it is panel by panel shows in its answers being possible."""
    x, y = GOLDEN["x"], GOLDEN["y"]
    task = SRaven()
    ours = task.sample(8, "train", task.rng(0, "train"))
    assert x.shape == tuple(ours.tokens.shape)
    for tokens in (x, ours.tokens.numpy()):
        assert (tokens[:, :32].sum(-1) == 1).all() and not tokens[:, 32:].any() and set(np.unique(tokens)) == {0, 1}
    values = torch.from_numpy(np.concatenate([x[:, :32].argmax(-1), 0 * y], axis=1))
    marginals = posterior(values.view(8, 3, 3, 4), 8, RULES).marginals
    assert (marginals.gather(2, torch.from_numpy(y)[..., None]) > 0).all()
    with pytest.raises(ConfigError, match="cannot occur"):  # feature by feature instead, nothing fits
        posterior(values.view(8, 4, 3, 3).permute(0, 2, 3, 1), 8, RULES)


def test_bayes_solves_the_references_instances_as_often_as_ours():
    solved = posterior(torch.from_numpy(GOLDEN["instances"]), 8, RULES)
    right = (solved.panel.numpy() == GOLDEN["instances"][:, 2, 2]).all(1).mean()
    assert right == pytest.approx(0.929, abs=4 * math.sqrt(0.929 * 0.071 / 256))
    assert solved.panel_probability.mean() == pytest.approx(0.929, abs=4 * math.sqrt(0.929 * 0.071 / 256))


# ---- our episodes ----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "task",
    [
        pytest.param(SRaven(), id="default"),
        pytest.param(SRaven(permuted=False), id="unpermuted"),
        pytest.param(SRaven(n_features=2, n_values=5), id="small"),
        pytest.param(SRaven(n_features=3, n_values=3), id="three values"),
        pytest.param(SRaven(n_features=6, n_values=17, rules=RULES[3:]), id="six features"),
        pytest.param(SRaven(n_features=3, n_values=2, rules=("constant", "addition", "subtraction")), id="two values"),
    ],
)
@pytest.mark.parametrize("split", ["train", "ood"])
def test_every_episode_obeys_its_rules(task, split):
    episodes = task.sample(1500, split, task.rng(3, split))
    codes, panels = episodes.codes, panels_of(task, episodes)
    assert violations(panels, codes["rules"], codes["permutations"], task.rules, task.n_values) == 0
    assert panels.min() == 0 and panels.max() == task.n_values - 1
    assert torch.equal(codes["rules"], torch.tensor(task._universe)[episodes.composition])
    assert torch.equal(codes["response_rules"], codes["rules"].gather(1, codes["permutations"][:, 2]))
    context = 8 * task.n_features
    assert torch.equal(episodes.tokens[:, :context].argmax(-1), episodes.targets[:, :context])
    assert (episodes.tokens[:, :context].sum(-1) == 1).all() and not episodes.tokens[:, context:].any()


def test_the_unpermuted_variant_shows_the_same_episodes_with_rules_in_ascending_order():
    task = SRaven(n_features=3)
    assert task.variants == {"unpermuted": replace(task, permuted=False)} and task.variants["unpermuted"].variants == {}
    plain = task.variants["unpermuted"].sample(200, "ood", task.rng(0, "ood"))
    shuffled = task.sample(200, "ood", task.rng(0, "ood"))
    assert torch.equal(plain.codes["response_rules"], plain.codes["rules"])
    assert (plain.codes["permutations"] == torch.arange(3)).all()
    assert torch.equal(plain.codes["rules"], shuffled.codes["rules"])
    sorted_features = [panels_of(task, e).sort(-1).values for e in (plain, shuffled)]
    assert torch.equal(*sorted_features)


def test_rules_permutations_and_values_are_uniform():
    task, n = SRaven(n_features=3), 30000
    episodes = task.sample(n, "train", task.rng(1, "train"))
    assert chisquare(torch.bincount(episodes.composition)[list(task.compositions("train"))]).pvalue > 1e-3
    for column in range(3):
        orders = Counter(map(tuple, episodes.codes["permutations"][:, column].tolist()))
        assert len(orders) == 6 and chisquare(list(orders.values())).pvalue > 1e-3
    # columns are shuffled independently
    together = Counter(map(tuple, episodes.codes["permutations"].flatten(1).tolist()))
    assert len(together) == 216 and chisquare(list(together.values())).pvalue > 1e-3
    only = {
        rule: SRaven(n_features=1, rules=RULES, held_out=((RULES.index(rule),),), allow_unseen_rules=True) for rule in RULES
    }
    for rule, single in only.items():
        grids = panels_of(single, single.sample(20000, "ood", single.rng(0, "ood")))[..., 0]
        for row in range(3):
            assert chisquare(torch.bincount(grids[:, row, 0], minlength=8)).pvalue > 1e-3, rule
        pairs = Counter(map(tuple, grids[:, 1, :2].tolist()))
        free = {"addition": 64, "subtraction": 64, "distribute three": 56}.get(rule, 8)
        assert len(pairs) == free and chisquare(list(pairs.values())).pvalue > 1e-3, rule
    rows = Counter(zip(*[map(tuple, grids[:, row].argsort(1).tolist()) for row in (0, 2)], strict=True))
    assert rule == "distribute three" and len(rows) == 36 and chisquare(list(rows.values())).pvalue > 1e-3
    sets = Counter(tuple(sorted(row)) for row in grids[:, 0].tolist())
    assert len(sets) == 56 and chisquare(list(sets.values())).pvalue > 1e-3


def test_rendering_shows_the_same_draws_under_other_rules_and_orders():
    task = SRaven(n_features=2)
    episodes = task.sample(400, "train", task.rng(0, "train"))
    rules, orders = torch.tensor([0, 5]).expand(400, 2), torch.tensor([[1, 0], [0, 1], [1, 0]]).expand(400, 3, 2)
    rendered = task.render({"rules": rules, "permutations": orders}, episodes.inputs)
    assert violations(panels_of(task, rendered), rules, orders, task.rules, 8) == 0
    assert {task.composition_name(c) for c in rendered.composition.tolist()} == {"A+F"}
    # the first operands are the draws themselves, whatever the rule that needs them
    draws = (episodes.inputs[..., :3] * 8).long()
    assert torch.equal(panels_of(task, rendered)[:, :, 0].flip(-1).transpose(1, 2), draws)
    backwards = task.render({"rules": rules.flip(1), "permutations": 1 - orders}, episodes.inputs.flip(1))
    assert torch.equal(backwards.targets, rendered.targets) and torch.equal(backwards.composition, rendered.composition)


def test_an_exchange_of_unshuffled_features_leaves_their_rules_ascending():
    task = SRaven(n_features=2, permuted=False)
    base, source = (task.sample(200, "train", task.rng(seed, "train")) for seed in (0, 1))
    codes, mask = task.exchange(base.codes, source.codes, task.rng(2, "train"))
    changed = mask.any(1)
    rendered = task.render(codes, base.inputs).take(changed)
    rules = rendered.codes["rules"]
    assert changed.any() and torch.equal(rules, rules.sort(1).values)
    assert (task.posterior(rendered).panel_probability > 0).all()


@pytest.mark.parametrize("k", [1, 2, 3, 5])
def test_rendering_recognises_every_composition(k):
    task = SRaven(n_features=k, allow_unseen_rules=True)
    rules = torch.tensor(multisets(8, k))
    n = len(rules)
    rendered = task.render({"rules": rules, "permutations": torch.arange(k).expand(n, 3, k)}, torch.rand(n, k, 4))
    assert torch.equal(rendered.composition, torch.arange(n))


def test_the_split_is_a_function_of_its_seed_and_keeps_every_rule_in_training():
    splits = [SRaven(split_seed=seed) for seed in (0, 0, 1)]
    assert splits[0].compositions("ood") == splits[1].compositions("ood") != splits[2].compositions("ood")
    assert [len(splits[0].compositions(s)) for s in ("train", "test", "ood")] == [248, 248, 82]
    for seed in range(30):  # half of 9 single rules and pairs: a rule would often be missing without drawing again
        task = SRaven(n_features=1, fraction_held_out=0.2, allow_unseen_rules=True, split_seed=seed)
        assert len(task.compositions("ood")) == 1
        pairs = SRaven(n_features=2, rules=RULES[:3], fraction_held_out=0.5, split_seed=seed)
        assert pairs.describe_split()["unseen_rules"] == [] and min(pairs.describe_split()["uses_per_rule"]) > 0


def test_a_split_can_be_listed():
    task = SRaven(n_features=2, held_out=[[6, 5], [0, 1]])
    assert [task.composition_name(c) for c in task.compositions("ood")] == ["A+B", "F+G"]
    assert len(task.compositions("train")) == 34 and task == SRaven(n_features=2, held_out=((6, 5), (0, 1)))
    described = task.describe_split()
    assert described["held_out"] == [[0, 1], [5, 6]] and described["uses_per_rule_held_out"] == [1, 1, 0, 0, 0, 1, 1, 0]
    some = SRaven(n_features=2, rules=("constant", "distribute three"), held_out=((0, 1),))
    assert [some.composition_name(c) for c in some.compositions("ood")] == ["A+H"]


def test_shape():
    task = SRaven(n_features=3, n_values=5)
    assert (task.seq, task.answers, task.d_in, task.d_out) == (27, (24, 25, 26), 5, 5)
    assert task.mask is None and task.dimensions["d_x"] is None
    assert [list(block) for block in task.blocks] == [[*range(9)], [*range(9, 18)], [*range(18, 27)]]
    assert SRaven().composition_name(0) == "A+A+A+A" and SRaven().seq == 36


def test_a_used_family_can_be_pickled_and_compared():
    task = SRaven(n_features=2)
    task.sample(3, "train", task.rng(0, "train"))
    assert pickle.loads(pickle.dumps(task)) == task == SRaven(n_features=2) and hash(task) == hash(SRaven(n_features=2))


# ---- loss and scores -------------------------------------------------------------------------------------------------
def test_scores_count_panels_features_and_nats():
    task = SRaven(n_features=2, n_values=5)
    targets = torch.zeros(4, 18, dtype=torch.long)
    targets[:, 16:] = torch.tensor([[0, 1], [2, 3], [4, 0], [1, 1]])
    prediction = torch.zeros(4, 18, 5)
    prediction[:, 16:] = 30.0 * torch.nn.functional.one_hot(torch.tensor([[0, 1], [2, 0], [1, 1], [1, 1]]), 5)
    prediction[:, :16] = float("nan")
    for given in (prediction, prediction.double()):
        assert task.score(given, targets) == 0.5
        metrics = {name: float(1 - e.sum() / w.sum()) for name, (e, w) in task.metrics(given, targets).items()}
        assert metrics["score"] == 0.5 and metrics["feature accuracy"] == 5 / 8
        nats = float(task.loss(given, targets))
        assert nats == pytest.approx(3 * 30 / 8, rel=1e-6)
        assert metrics["cross-entropy saved"] == pytest.approx(1 - nats / math.log(5), rel=1e-6)
    uniform = task.metrics(torch.zeros(4, 18, 5), targets)["cross-entropy saved"]
    assert float(1 - uniform[0].sum() / uniform[1].sum()) == pytest.approx(0, abs=1e-12)


# ---- readouts --------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("permuted", [True, False])
def test_readouts_name_the_row_mates_that_determine_the_answer(permuted):
    task = SRaven(n_features=3, permuted=permuted)
    n, episodes = 300, task.sample(300, "ood", task.rng(0, "ood"))
    read = task.readouts(episodes)
    assert {name: tuple(pairs.shape) for name, pairs in read.pairs.items()} == {
        "self": (n, 3, 1, 2),
        "row mates": (n, 3, 2, 2),
    }
    for i, j in itertools.product(range(n), range(3)):
        assert read.pairs["self"][i, j].tolist() == [[24 + j, 24 + j]]
        (query, first), (again, second) = read.pairs["row mates"][i, j].tolist()
        assert query == again == 24 + j and 18 <= first < 21 <= second < 24
        values = episodes.targets[i, [first, second, query]].tolist()
        rule = task.rules[read.labels["rule"][i, j]]
        assert rule == "distribute three" or row_obeys(rule, values, 8)
        assert read.confounds["operand magnitude"][i, j] == values[0] + values[1]
        assert read.confounds["target value"][i, j] == values[2]
        raw = read.inputs["raw input"][i, j]
        assert raw.nonzero().flatten().tolist() == [values[0], 8 + values[1]]
        products = read.inputs["raw input, products"][i, j]
        assert products.nonzero().flatten().tolist() == [values[0], 8 + values[1], 16 + 8 * values[0] + values[1]]
        context = read.inputs["raw context"][i, j]
        assert torch.equal(context[:216].view(27, 8), episodes.tokens[i]) and context[216:].tolist() == np.eye(3)[j].tolist()
    assert read.classes == {"rule": task.rules}
    assert (read.labels["rule"].diff(dim=1) >= 0).all() == (not permuted)


def test_the_row_mates_of_distribute_three_are_of_the_same_feature():
    task = SRaven(n_features=2, rules=("constant", "distribute three"), held_out=((1, 1),))
    episodes = task.sample(200, "ood", task.rng(0, "ood"))
    mates = task.readouts(episodes).pairs["row mates"][..., 1] - torch.tensor([12, 14])
    orders = episodes.codes["permutations"]
    for column in (0, 1):
        assert torch.equal(orders[:, column].gather(1, mates[..., column]), orders[:, 2])


# ---- the posterior ---------------------------------------------------------------------------------------------------
def enumerated(panel, n_values, rules, permuted, prior):
    """The same posterior by trying every pair of bijections, every rule for every position and every answer."""
    k = len(panel[0][0])
    rows = {rule: sum(row_obeys(rule, row, n_values) for row in itertools.product(range(n_values), repeat=3)) for rule in STEP}
    grids = {rule: count**3 for rule, count in rows.items()} | dict.fromkeys(("addition", "subtraction"), n_values**6)
    grids["distribute three"] = math.comb(n_values, 3) * 216
    options = {}
    for i, h, j in itertools.product(range(k), repeat=3):
        columns = [[panel[0][0][i], panel[0][1][h], panel[0][2][j]], [panel[1][0][i], panel[1][1][h], panel[1][2][j]]]
        last = [panel[2][0][i], panel[2][1][h]]
        pairs = itertools.product(enumerate(rules), range(n_values))
        options[i, h, j] = [(r, a) for (r, rule), a in pairs if obeys(rule, [*columns, [*last, a]], n_values)]
    bijections = list(itertools.permutations(range(k))) if permuted else [tuple(range(k))]
    universe, mass = multisets(len(rules), k), Counter()
    for left, right in itertools.product(bijections, repeat=2):
        for choice in itertools.product(*[options[left[j], right[j], j] for j in range(k)]):
            numbers, answer = tuple(r for r, _ in choice), tuple(a for _, a in choice)
            if not permuted and list(numbers) != sorted(numbers):
                continue
            orders = len(set(itertools.permutations(numbers))) if permuted else 1
            likelihood = math.prod(1 / grids[rules[r]] for r in numbers)
            mass[answer] += prior[universe.index(tuple(sorted(numbers)))] * likelihood / orders
    total = sum(mass.values())
    return {answer: m / total for answer, m in mass.items() if m > 0}


@pytest.mark.parametrize(
    ("k", "n_values", "rules", "permuted", "n"),
    [
        (1, 4, RULES, True, 40),
        (2, 8, RULES, True, 60),
        (2, 3, RULES, True, 60),
        (3, 8, RULES, True, 40),
        (3, 4, RULES, True, 25),
        (3, 5, ("constant", "progression -2", "addition", "distribute three"), True, 30),
        (3, 5, RULES, False, 40),
        (2, 2, ("constant", "progression +1", "progression -1", "subtraction"), True, 60),
        (4, 8, RULES, True, 8),
    ],
)
def test_the_posterior_is_that_of_brute_force(k, n_values, rules, permuted, n):
    task = SRaven(n_features=k, n_values=n_values, rules=rules, permuted=permuted, allow_unseen_rules=True)
    panels = panels_of(task, task.sample(n, "test", task.rng(0, "test"))).clone()
    panels[:, 2, 2] = 99  # must not be looked at
    prior = torch.rand(len(multisets(len(rules), k)), generator=torch.Generator().manual_seed(0)) + 0.1
    ours = posterior(panels, n_values, rules, permuted, prior)
    assert ours.panel.shape == (n, k) and ours.marginals.shape == (n, k, n_values)
    for i, panel in enumerate(panels.tolist()):
        expected = enumerated(panel, n_values, rules, permuted, prior.tolist())
        assert int(ours.n_answers[i]) == len(expected) and bool(ours.ambiguous[i]) == (len(expected) > 1)
        assert ours.panel_probability[i] == pytest.approx(max(expected.values()), abs=1e-9)
        assert expected[tuple(ours.panel[i].tolist())] == pytest.approx(max(expected.values()), abs=1e-9)
        marginals = np.zeros((k, n_values))
        for answer, probability in expected.items():
            marginals[np.arange(k), list(answer)] += probability
        np.testing.assert_allclose(ours.marginals[i], marginals, atol=1e-9)


def test_the_posterior_of_many_equal_features_is_found_without_listing_every_bijection():
    panels = torch.ones(2, 3, 3, 6, dtype=torch.long)  # (6!)² bijections, all consistent
    ours = posterior(panels, 8, RULES)
    assert ours.n_answers.tolist() == [1, 1] and (ours.panel == 1).all()
    torch.testing.assert_close(ours.panel_probability, torch.ones(2, dtype=torch.float64))


def test_the_posterior_does_not_depend_on_what_else_is_asked():
    task = SRaven()
    panels = panels_of(task, task.sample(40, "ood", task.rng(0, "ood")))
    together = posterior(panels, 8, RULES)
    for part in (slice(0, 1), slice(7, 20)):
        for ours, theirs in zip(posterior(panels[part], 8, RULES), together, strict=True):
            torch.testing.assert_close(ours, theirs[part])


PUBLISHED = [
    # K, F, share of ambiguous instances, panel accuracy of the posterior's mode, by exact enumeration of 2,000 to 16,000
    (2, 8, 0.096, 0.982),
    (3, 8, 0.169, 0.958),
    (4, 8, 0.244, 0.929),
    (4, 16, 0.078, 0.980),
]


@pytest.mark.parametrize(("k", "n_values", "ambiguous", "accuracy"), PUBLISHED)
def test_bayes_reaches_the_ceiling_found_by_enumeration(k, n_values, ambiguous, accuracy):
    task = SRaven(n_features=k, n_values=n_values)
    parts = everything(task, 6000)
    answers = torch.cat([e.targets[:, 8 * k :] for e in parts])
    solved = [task.posterior(e) for e in parts]
    n = len(answers)

    def noise(p):
        return 4 * math.sqrt(p * (1 - p) * (1 / n + 1 / 2000))

    def joined(name):
        return torch.cat([getattr(part, name) for part in solved])

    right = (joined("panel") == answers).all(1).double()
    assert joined("ambiguous").double().mean() == pytest.approx(ambiguous, abs=noise(ambiguous))
    assert right.mean() == pytest.approx(accuracy, abs=noise(accuracy))
    # calibrated: the mass it gives its answers is how often they are right
    surprise = right - joined("panel_probability")
    assert abs(surprise.mean()) < 4 * surprise.std() / math.sqrt(n)
    assert (right[~joined("ambiguous")] == 1).all()
    torch.testing.assert_close(joined("marginals").sum(2), torch.ones(n, k, dtype=torch.float64))


def test_the_ceiling_of_each_feature_at_the_default_size():
    task = SRaven()
    parts, reference = everything(task, 6000, seed=1), BayesMarginals()
    metrics = [task.metrics(reference.predict(task, e), e.targets) for e in parts]

    def pooled(name):
        return torch.cat([m[name][0] for m in metrics])

    for name, expected in (("score", 0.8845), ("feature accuracy", 0.969)):
        error = pooled(name)
        assert 1 - error.mean() == pytest.approx(expected, abs=4 * float(error.std()) * math.sqrt(1 / 6000 + 1 / 4000))
    nats = pooled("cross-entropy saved")
    assert nats.mean() == pytest.approx(0.0485, abs=4 * float(nats.std()) * math.sqrt(1 / 6000 + 1 / 4000))


def test_knowing_the_split_helps_and_panels_of_another_split_are_refused():
    task = SRaven(n_features=3)
    episodes = task.sample(2000, "train", task.rng(0, "train"))
    everywhere, knowing = task.posterior(episodes), task.posterior(episodes, known="train")
    right = [(p.panel == episodes.targets[:, 24:]).all(1).double() for p in (everywhere, knowing)]
    assert knowing.panel_probability.mean() > everywhere.panel_probability.mean()
    assert right[1].mean() >= right[0].mean()
    assert (knowing.n_answers <= everywhere.n_answers).all()
    with pytest.raises(ConfigError, match="instances cannot occur with these rules"):
        task.posterior(episodes, known="ood")
    with pytest.raises(ConfigError, match="did you mean 'ood'"):
        task.posterior(episodes, known="oood")
    with pytest.raises(ConfigError, match="prior must have 120 entries"):
        posterior(panels_of(task, episodes), 8, RULES, prior=torch.ones(3))
    with pytest.raises(ConfigError, match="too many"):
        posterior(torch.zeros(1, 3, 3, 8, dtype=torch.long), 1000, RULES)


def test_strata_tell_where_the_answer_is_determined():
    task = SRaven()
    episodes = task.sample(300, "ood", task.rng(0, "ood"))
    clear = task.strata(episodes)["unambiguous"]
    assert clear.dtype == torch.bool and clear.shape == (300,) and 0.6 < clear.double().mean() < 0.9
    blinded = episodes.targets.clone()
    blinded[:, 32:] = 0
    assert torch.equal(task.strata(episodes._replace(targets=blinded))["unambiguous"], clear)
    assert task.score(BayesPanel().predict(task, episodes)[clear], episodes.targets[clear]) == 1
    plain = task.variants["unpermuted"]
    unshuffled = plain.sample(300, "ood", plain.rng(0, "ood"))
    assert plain.strata(unshuffled)["unambiguous"].double().mean() > 0.9


@pytest.mark.parametrize("reference", [BayesPanel(), BayesMarginals()])
def test_references_answer_where_they_apply(reference):
    task = SRaven(n_features=2)
    assert reference.why_not(task) == "" and reference.why_not(Hyperteacher()) == "its posterior is known for S-RAVEN only"
    assert reference.name in {"Bayes, whole panel", "Bayes, each feature"}
    episodes = task.sample(50, "test", task.rng(0, "test"))
    prediction = reference.predict(task, episodes)
    assert prediction.shape == (50, 18, 8) and prediction.isfinite().all()
    assert task.score(prediction, episodes.targets) > 0.85


def test_no_reference_beats_the_whole_panel_in_panels_nor_the_marginals_in_nats():
    task = SRaven()
    episodes = task.sample(4000, "test", task.rng(5, "test"))
    predictions = {reference: reference.predict(task, episodes) for reference in (BayesPanel(), BayesMarginals())}
    scores = [task.score(p, episodes.targets) for p in predictions.values()]
    nats = [float(task.loss(p, episodes.targets)) for p in predictions.values()]
    assert scores[0] > scores[1] and nats[0] > nats[1]


# ---- what cannot be --------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"n_features": 0}, "n_features must be a whole number of at least 1, got 0"),
        ({"n_values": 1, "rules": ("constant",)}, "n_values must be from 2 to 64, got 1"),
        ({"n_values": 65}, "n_values must be from 2 to 64, got 65"),
        ({"rules": ("constant", "adition")}, "no rule 'adition'; did you mean 'addition'"),
        ({"rules": ()}, "rules must be listed once each and in their own order, got"),
        ({"rules": ("addition", "constant")}, r"own order, got \['addition', 'constant'\]; write \['constant', 'addition'\]"),
        ({"rules": ("constant", "constant")}, "listed once each"),
        ({"n_values": 2}, "'distribute three' needs three different values, but n_values=2; raise it to 3"),
        ({"fraction_held_out": 0.0}, "fraction_held_out must lie between 0 and 1, got 0.0"),
        ({"fraction_held_out": 1}, "must lie between 0 and 1"),
        ({"fraction_held_out": 0.001}, "of 330 multisets holds out none; raise it"),
        ({"n_features": 1}, "no split in 1,000 draws shows all 8 rules in training; hold out less, or say allow_unseen_rules"),
        ({"held_out": ()}, "held_out lists no multiset"),
        ({"n_features": 1, "held_out": tuple((r,) for r in range(8))}, "lists all 8 multisets, so nothing is left"),
        ({"held_out": ((0, 1),)}, r"multisets of n_features=4 rule numbers, such as \[0, 0, 0, 0\], got the entry \(0, 1\)"),
        ({"held_out": (3,)}, "got the entry 3"),
        ({"held_out": ((0, 1, 2, 8),)}, r"names rule 8 in \[0, 1, 2, 8\], but there are only rules 0 to 7"),
        ({"held_out": ((0, 1, 2, 3), (3, 2, 1, 0))}, r"lists the multiset \[0, 1, 2, 3\] twice"),
        ({"n_features": 1, "held_out": ((2,), (5,))}, "leaves progression \\+2, addition unseen in training"),
    ],
)
def test_what_cannot_be_is_refused_in_words(settings, message):
    with pytest.raises(ConfigError, match=message):
        SRaven(**settings)
