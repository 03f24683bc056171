"""Which classes a model's answers tell apart: a solver of S-RAVEN, and one that gives a sum and a difference equal chances."""

import pytest
import torch
from test_planted import neighbour

import compolens
from compolens import load_recipe, recipes
from compolens.foundation.builtin import built_in
from compolens.tasks import SRaven

Solver = neighbour("test_planted_sraven").Solver
ADD, SUBTRACT, RULES = 5, 6, 7


class Both(torch.nn.Module):
    """Gives each of two rules half of what both have."""

    def __init__(self, features):
        super().__init__()
        self.features = features

    def forward(self, message):
        rules = message[..., : self.features * RULES].unflatten(-1, (self.features, RULES)).clone()
        rules[..., ADD] = rules[..., SUBTRACT] = rules[..., [ADD, SUBTRACT]].sum(-1) / 2
        return torch.cat([rules.flatten(-2), message[..., self.features * RULES :]], -1)


class Guesser(Solver):
    """Knows both results and not which is asked for."""

    def __init__(self):
        super().__init__("works", RULES)
        self.message = Both(self.k)


def measured(network, built_by, **arguments):
    sites = {"blocks.0.hook_resid_pre": ("message", "input"), "blocks.0.hook_resid_post": "message"}
    own = {"sites": sites, "built_by": built_by, "arguments": arguments}
    adopted = compolens.adopt(network.eval(), network.task, evaluation_episodes=64, **own)
    return load_recipe("probes", "told_apart")(adopted, episodes=1024)


def between(table, first, second, metric="told apart", split="test"):
    rows = table[(table["class"] == first) & (table["other"] == second) & (table["metric"] == metric)]
    return rows[(rows["split"] == split) & (rows["control"] == "")].set_index("site")["value"]


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_solver_tells_classes_apart_and_what_it_writes_decides():
    table, rows = measured(Solver("works", RULES), Solver, kind="works", rules=RULES)
    assert between(table, "all", "all")["answers"] > 0.95 and between(table, "all", "all", "both answers")["answers"] > 0.95
    assert between(table, "addition", "subtraction")["answers"] > 0.8  # some examples leave it open
    put_in = between(table[table["role"] == "context"], "all", "all", "recovered")  # it reads at the first token
    assert put_in["blocks.0.hook_resid_post"] == pytest.approx(1)
    assert between(table, "addition", "subtraction", "same question")["answers"] == 1
    assert between(table, "progression +1", "progression -1", "same question")["answers"] == 0
    assert len(rows) and set(rows["metric"]) == {"told apart", "both answers"} and rows["score"].between(0, 1).all()


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_who_guesses_between_two_rules_knows_both_answers_and_tells_the_other_rules_apart():
    table, _ = measured(Guesser(), Guesser)
    assert between(table, "addition", "subtraction")["answers"] == pytest.approx(0.5)
    assert between(table, "addition", "subtraction", "both answers")["answers"] > 0.9
    assert between(table, "progression +1", "progression -1")["answers"] > 0.95


def test_answers_that_are_numbers_follow_by_the_share_of_the_way_that_they_go():
    module = recipes.load_file(built_in("probes")["told_apart"])
    task = compolens.FuzzyLogic(length=8)
    episodes = task.sample(64, "train", task.rng(0, "train"))
    pairs = module.exchanged_factors(task, episodes, 1, torch.Generator().manual_seed(0))
    changed = module.Changed(pairs, torch.zeros(len(pairs.mask), dtype=torch.long), None, None)
    for share in (0.0, 0.25, 1.0):
        ours, theirs = pairs.base.targets, pairs.wanted.targets
        ((metric, error, weight),) = module._told(task, changed, ours, ours + share * (theirs - ours))
        assert metric == "followed" and float(1 - error.sum() / weight.sum()) == pytest.approx(share, abs=1e-5)


def test_pairs_differ_in_one_class_of_one_answer_and_in_nothing_that_is_asked(tmp_path):
    module = recipes.load_file(built_in("probes")["told_apart"])
    task = SRaven(n_features=3)

    class Somewhere:
        device = torch.device("cpu")

    found = module._pairs(task, "ood", 512, "0/ood", Somewhere)
    base, wanted, question = found.pairs.base, found.pairs.wanted, 6 * task.n_features
    ours, theirs = base.codes["response_rules"], wanted.codes["response_rules"]
    assert ((ours != theirs).sum(1) == 1).all() and ((ours != theirs).int().argmax(1) == found.at).all()
    index = torch.arange(len(found.at))
    for i, names in zip(index.tolist(), found.classes, strict=True):
        both = {task.rules[int(side[i, found.at[i]])] for side in (ours, theirs)}
        assert set(names) == both and [task.rules.index(n) for n in names] == sorted(task.rules.index(n) for n in names)
    assert torch.equal(base.inputs, wanted.inputs)
    at = 8 * task.n_features + found.at
    assert (base.targets[index, at] != wanted.targets[index, at]).all()
    assert (base.tokens[:, :question] != wanted.tokens[:, :question]).flatten(1).any(1).all()
