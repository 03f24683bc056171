"""Memory of training multisets, and other learners of S-RAVEN that lack something, against enumeration."""

import itertools
import math

import pytest
import torch

from compolens.references import BayesUnshuffled, CopyPanel, TrainingCompositions
from compolens.tasks import Hyperteacher, SRaven
from compolens.tasks.sraven import explanations
from compolens.tasks.sraven.rules import RULES, multisets

STEP = {"constant": 0, "progression +1": 1, "progression +2": 2, "progression -1": -1, "progression -2": -2}


# ---- an enumeration of its own: every set of symbols, every bijection, every order of the rules ---------------------------
def chance(rule, rows, f, slip):
    """Of what three rows show and of the answer, the last entry of the last row; with the chance `slip` a row shows noise."""
    (a, b, v), noise = rows[2], slip / f**3
    if rule == "distribute three":
        total, sets = 0, [set(s) for s in itertools.combinations(range(f), 3)]
        for s in sets:
            examples = math.prod((1 - slip) * (set(row) == s) / 6 + noise for row in rows[:2])
            free = s - {a, b}
            total += examples * ((1 - slip) * (set(rows[2]) == s) / 6 + slip / f**2 * (v in free) / len(free))
        return total / len(sets)
    if rule in STEP:
        step = STEP[rule]
        fits = [all((row[i + 1] - row[i] - step) % f == 0 for i in (0, 1)) for row in rows[:2]]
        last = ((1 - slip) * ((b - a - step) % f == 0) / f + slip / f**2) * (v == (b + step) % f)
        return last * math.prod((1 - slip) * fit / f + noise for fit in fits)
    sign = 1 if rule == "addition" else -1
    fits = [(row[0] + sign * row[1] - row[2]) % f == 0 for row in rows]
    return fits[2] / f**2 * math.prod((1 - slip) * fit / f**2 + noise for fit in fits[:2])


def enumerated(panels, f, rules, permuted, slip):
    """{multiset: its chance with each answer (K, F) at each position}, for one instance."""
    k = panels.shape[-1]
    p, found = panels.tolist(), {}
    of = {}
    for j, a, b, rule, v in itertools.product(range(k), range(k), range(k), range(len(rules)), range(f)):
        rows = [(p[r][0][a], p[r][1][b], p[r][2][j]) for r in (0, 1)] + [(p[2][0][a], p[2][1][b], v)]
        of[j, a, b, rule, v] = chance(rules[rule], rows, f, slip)
    shuffles = list(itertools.permutations(range(k))) if permuted else [tuple(range(k))]
    for multiset in multisets(len(rules), k):
        table = torch.zeros(k, f, dtype=torch.float64)
        orders = set(itertools.permutations(multiset)) if permuted else [multiset]
        for order, first, second in itertools.product(orders, shuffles, shuffles):
            each = [[of[j, first[j], second[j], order[j], v] for v in range(f)] for j in range(k)]
            whole = [sum(one) for one in each]
            for j in range(k):
                rest = math.prod(whole[:j] + whole[j + 1 :]) / len(orders)
                table[j] += torch.tensor(each[j], dtype=torch.float64) * rest
        found[multiset] = table
    return found


@pytest.mark.parametrize("permuted", [True, False])
@pytest.mark.parametrize(
    ("k", "f", "rules", "slip"),
    [(2, 4, RULES, 0.1), (2, 5, RULES, 1e-6), (3, 3, ("constant", "addition", "distribute three"), 0.2)],
)
def test_what_multisets_say_is_what_enumeration_says(k, f, rules, slip, permuted, monkeypatch):
    monkeypatch.setattr(explanations, "SLIP", slip)
    task = SRaven(n_features=k, n_values=f, rules=rules, permuted=permuted, allow_unseen_rules=True)
    allowed = task.compositions("train")
    episodes = task.sample(3, "ood", task.rng(0, "ood"))
    noise = torch.randint(f, (3, 3, 3, k), generator=torch.Generator().manual_seed(0))  # what no multiset can have made
    for panels in (episodes.targets.view(-1, 3, 3, k), noise):
        found = explanations.explained(panels, f, rules, permuted, torch.tensor(allowed))
        for i, instance in enumerate(panels):
            tables = list(enumerated(instance, f, rules, permuted, slip).values())
            kept = torch.stack([tables[m] for m in allowed])
            evidence = kept[:, 0].sum(-1).log()
            torch.testing.assert_close(found.evidence[i].log_softmax(0), evidence.log_softmax(0), atol=1e-9, rtol=1e-9)
            best = kept[evidence.argmax()]
            torch.testing.assert_close(found.best[i], best / best.sum(-1, keepdim=True), atol=1e-10, rtol=0)


@pytest.mark.parametrize("permuted", [True, False])
def test_with_all_multisets_allowed_the_best_says_what_the_exact_posterior_says(permuted):
    task = SRaven(n_features=3, permuted=permuted)
    episodes = task.sample(200, "test", task.rng(0, "test"))
    panels = episodes.targets.view(-1, 3, 3, 3)
    found = explanations.explained(panels, 8, RULES, permuted, torch.arange(task.n_compositions))
    clear = task.strata(episodes)["unambiguous"]
    assert clear.sum() > 100 and torch.equal(found.best.argmax(-1)[clear], task.posterior(episodes).panel[clear])


def test_memory_knows_training_compositions_and_no_others():
    task, reference, scores = SRaven(n_features=2), TrainingCompositions(), []
    assert reference.why_not(task) == ""
    assert "more than 5 features" in reference.why_not(SRaven(n_features=6, rules=RULES[:3]))
    for split in ("test", "ood"):
        episodes = task.sample(300, split, task.rng(0, split))
        blind = episodes.targets.clone()
        blind[:, 16:] = 0
        prediction = reference.predict(task, episodes)
        assert torch.equal(prediction, reference.predict(task, episodes._replace(targets=blind))), "answers are not seen"
        scores.append(task.score(prediction, episodes.targets))
    assert scores[0] > 0.95 and scores[1] < 0.5


def test_who_ignores_shuffles_answers_where_there_are_none():
    shuffled, plain = SRaven(n_features=3), SRaven(n_features=3, permuted=False)
    assert "nothing is shuffled" in BayesUnshuffled().why_not(plain) and BayesUnshuffled().why_not(shuffled) == ""
    assert BayesUnshuffled().why_not(Hyperteacher())
    for task, least, most in ((plain, 0.9, 1), (shuffled, 0, 0.3)):
        episodes = task.sample(200, "ood", task.rng(0, "ood"))
        assert least <= task.score(BayesUnshuffled().predict(task, episodes), episodes.targets) <= most


def test_a_copy_is_a_panel():
    task = SRaven(n_features=2)
    episodes = task.sample(50, "ood", task.rng(0, "ood"))
    copied = [CopyPanel(p).predict(task, episodes)[:, 16:].argmax(-1) for p in range(8)]
    for p, copy in enumerate(copied):
        assert torch.equal(copy, episodes.targets[:, 2 * p : 2 * p + 2])
    best = CopyPanel().predict(task, episodes)[:, 16:].argmax(-1)
    train = task.sample(1024, "train", task.rng("reference", "train")).targets.view(-1, 9, 2)
    shares = [(train[:, p] == train[:, 8]).double().mean().item() for p in range(8)]
    assert torch.equal(best, copied[shares.index(max(shares))])


def test_an_example_row_is_asked_in_the_place_of_the_last():
    task = SRaven(n_features=3)
    shown = task.sample(40, "ood", task.rng(0, "ood"))
    tokens, targets = task.context_asked(shown)
    assert tokens.shape == (40, 2, 27, 8) and targets.shape == (40, 2, 27) and not tokens[:, :, 24:].any()
    for i in range(2):
        assert torch.equal(tokens[:, i, :18], shown.tokens[:, :18])
        assert torch.equal(tokens[:, i, 18:24], shown.tokens[:, 9 * i : 9 * i + 6])
        assert torch.equal(targets[:, i, 24:], shown.tokens[:, 9 * i + 6 : 9 * i + 9].argmax(-1))
        asked = shown._replace(tokens=tokens[:, i], targets=targets[:, i])
        assert (task.posterior(asked).panel == targets[:, i, 24:]).double().mean() > 0.8, "the same rules answer it"
