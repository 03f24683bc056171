"""The blind set: its models do what they are built to do, the planted part is what fails, and the scorer counts right.

None is diagnosed here.
"""

from collections import Counter
from functools import lru_cache

import pandas as pd
import pytest
import torch
from test_planted import neighbour

import compolens
from compolens.activations.sites import Site, put
from compolens.activations.streams import record
from compolens.foundation.configs import ConfigError, DoesNotApply
from compolens.interventions.oracles import code_features

blind, plans, codes, faults = (neighbour(name) for name in ("blind", "blind_plan", "blind_codes", "blind_faults"))
models, raven, labels, cases = (neighbour(name) for name in ("blind_models", "blind_raven", "labels", "cases"))
AT_CONTEXT = Site(1, "blocks.0.hook_resid_post", "context")
AT_QUESTIONS = Site(2, "blocks.1.hook_resid_post", "readout")
blind_run = neighbour("blind_run")
FAMILY_OF = {"hashed": "maxout", "parity": "bilinear"}


@lru_cache
def planted(fault="Blind", family="teacher", carrier="plain", strength=1.0, transport="whole", few=False, explicit=False):
    row = plans.Blinded(fault, family, carrier, "", (), "", strength, 1, transport, explicit, few)
    return cases.model_of(row.case())


@lru_cache
def shown(family, split="ood", n=64, few=False):
    task = models.task_of(family, 1, few)
    return task.sample(n, split, task.rng(5, split))


def task_of(model):
    return model.mechanism.knowledge.task


def code_of(model, episodes):
    return code_features(task_of(model), episodes.codes).float()


@torch.no_grad()
def score(model, episodes):
    return task_of(model).score(model(episodes.tokens), episodes.targets)


@torch.no_grad()
def message_at(model, episodes, site):
    """(batch, position, width)"""
    (seen,) = record(model, [episodes], [site.hook_name])
    here = slice(0, model.n_context) if site.role == "context" else slice(model.n_context, None)
    return seen.sites[site.hook_name][:, here] @ model.blocks[1].W_read


@torch.no_grad()
def with_message(model, episodes, site, message):
    """The score when the message (batch, width), or (batch, position, width), stands at the site."""
    (seen,) = record(model, [episodes], [site.hook_name])
    resid = seen.sites[site.hook_name].clone()
    here = slice(0, model.n_context) if site.role == "context" else slice(model.n_context, None)
    message = message[:, None] if message.ndim == 2 else message
    resid[:, here] += (message - resid[:, here] @ model.blocks[1].W_read) @ model.blocks[1].W_write
    return task_of(model).score(put(model, episodes.tokens, site, resid), episodes.targets)


def right_message(model, episodes):
    """What a model that works writes of these episodes' true codes, in this model's form."""
    mechanism, (x, _) = model.mechanism, context_of(model, episodes)
    return mechanism.carrier.encode(code_of(model, episodes), x, mechanism.knowledge).detach()


def context_of(model, episodes):
    x, y = task_of(model).examples(episodes)
    return x[:, : y.shape[1]], y


def asked(model, episodes):
    x, y = task_of(model).examples(episodes)
    return x[:, y.shape[1] :]


# ---- the set ---------------------------------------------------------------------------------------------------------
def test_the_labels_on_file_are_those_of_the_plan():
    kept = pd.read_csv(blind.LABELS_FILE, dtype=str)
    pd.testing.assert_frame_equal(kept, blind.labels())


def test_the_set_has_every_label_many_kinds_and_working_models_among_them():
    set_, count = blind.labels(), Counter()
    assert len(set_) >= 100 and set_["case"].is_unique and set_["kind"].nunique() >= 30
    for row in set_.itertuples():
        allowed = row.acceptable.split(blind.BETWEEN)
        assert allowed[0] == row.label and set(allowed) <= set(plans.LABELS) and len(set(allowed)) == len(allowed)
        assert row.why.endswith(".") and len(row.why) > 20
        count[row.label] += 1
    assert set(count) == set(plans.LABELS) and count["compositional"] >= 20
    curved = [c for c in plans.plan().values() if c.carrier != "plain" or c.transport != "whole"]
    classes = [c for c in plans.plan().values() if c.family in ("logic", plans.PANELS)]
    assert len(curved) >= 0.5 * len(set_) and len(classes) >= 0.25 * len(set_)
    assert (set_["acceptable"].str.contains(";")).sum() >= 10
    earlier = {kind.__name__.removeprefix("Planted") for kind in labels.KINDS}
    assert not earlier & set(set_["kind"])
    assert {c.fault for c in plans.plan().values()} == set(faults.FAULTS) | set(raven.FAULTS)


def test_no_two_cases_are_the_same_model():
    rows = [
        (c.kind, c.fault, c.family, c.carrier, c.strength, c.seed, c.transport, c.explicit, c.few)
        for c in plans.plan().values()
    ]
    assert len(set(rows)) == len(rows)


@pytest.mark.parametrize("sort", plans.LABELS)
def test_cases_fail_where_their_label_says_so(sort):
    """On one case of every kind: at least .1 is lost on held-out compositions, or less, or nothing was learned."""
    one_each = {(c.kind, c.family == plans.PANELS): c for c in plans.plan().values() if c.label == sort}
    for case in one_each.values():
        if case.family == plans.PANELS:
            solver = raven.BlindSolver(**case.arguments)
            test, ood = (panel_score(solver, split) for split in ("test", "ood"))
        else:
            model, task = cases.model_of(case.case()), models.task_of(case.family, case.seed, case.few)
            test, ood = (score(model, task.sample(48, s, task.rng(5, s))) for s in ("test", "ood"))
        if sort == plans.UNLEARNED:
            assert test < 0.5, case
        elif sort == plans.WORKS:
            assert test > 0.95 and ood > test - 0.1, case
        elif plans.WORKS not in case.acceptable:
            assert test > 0.93 and ood < test - 0.1, case


# ---- codes that are not linear ---------------------------------------------------------------------------------------
@pytest.mark.parametrize("carrier", codes.CARRIERS)
def test_what_a_carrier_writes_is_read_back_and_works(carrier):
    family = FAMILY_OF.get(carrier, "teacher")
    works, held_out = planted(carrier=carrier, family=family), shown(family)
    assert score(works, shown(family, "test")) > 0.999 and score(works, held_out) > 0.999
    found = works.mechanism.carrier.decode(message_at(works, held_out, AT_QUESTIONS)[:, 0])
    torch.testing.assert_close(found, code_of(works, held_out), atol=5e-3, rtol=0)


@pytest.mark.parametrize("carrier", [name for name in codes.CARRIERS if name != "plain"])
def test_no_linear_readout_fitted_on_training_compositions_tells_a_code_that_is_not_linear(carrier):
    family = FAMILY_OF.get(carrier, "chain")
    plain, carried = readable(planted(carrier=carrier, family=family), family)
    assert plain > 0.99 and carried < (0.9 if carrier == "population" else 0.6)


def readable(works, family):
    """How much of held-out codes linear readouts fitted on training compositions tell: from plain codes, and as carried."""
    told = []
    (x, y), (x2, y2) = right_both(works, "train", family), right_both(works, "ood", family)
    for a, b in ((y, y2), (x, x2)):
        centred = a - a.mean(0)
        fitted = torch.linalg.solve(centred.T @ centred + torch.eye(a.shape[1]), centred.T @ (y - y.mean(0)))
        error = (b - a.mean(0)) @ fitted + y.mean(0) - y2
        told.append(float(1 - error.square().sum() / (y2 - y2.mean(0)).square().sum()))
    return told


def right_both(model, split, family):
    """(messages, codes) of many episodes."""
    episodes = shown(family, split, 768)
    return right_message(model, episodes), code_of(model, episodes)


def test_a_carrier_that_does_not_apply_says_so():
    for carrier in ("hashed", "parity"):
        with pytest.raises(DoesNotApply):
            planted(carrier=carrier, family="teacher")
    with pytest.raises(DoesNotApply):
        planted("RolesSwapped", "logic")
    with pytest.raises(ConfigError, match="Misbound"):
        models.PlantedBlind(models.task_of("chain", 0), "Misbond")


def test_what_is_bound_or_shared_differs_from_place_to_place_and_is_whole_together():
    for transport, site, other in (("bound", AT_QUESTIONS, AT_CONTEXT), ("shares", AT_CONTEXT, AT_QUESTIONS)):
        works, held_out = planted(family="maxout", transport=transport), shown("maxout")
        assert score(works, held_out) > 0.999
        here, there = (message_at(works, held_out, s) for s in (site, other))
        code = code_of(works, held_out)
        assert float((here - here[:, :1]).abs().max()) > 0.5
        torch.testing.assert_close(there, code[:, None].expand_as(there), atol=5e-3, rtol=0)
        if transport == "shares":
            torch.testing.assert_close(here.mean(1), code, atol=5e-3, rtol=0)
        else:
            torch.testing.assert_close(here.abs(), code[:, None].expand_as(here), atol=5e-3, rtol=0)


# ---- the planted part is what fails ----------------------------------------------------------------------------------
INFERENCE = [
    ("Misbound", "phase", "gray"),
    ("RolesSwapped", "product", "parity"),
    ("Hasty", "teacher", "signs"),
    ("Hedged", "logic", "plain"),
    ("Collision", "maxout", "hashed"),
    ("Misbound", "chain", "keyed"),
]


@pytest.mark.parametrize(("fault", "family", "carrier"), INFERENCE)
def test_given_the_right_code_a_failure_of_inference_is_repaired(fault, family, carrier):
    broken, held_out = planted(fault, family, carrier), shown(family)
    right = right_message(broken, held_out)
    written = broken.mechanism.carrier.decode(message_at(broken, held_out, AT_CONTEXT)[:, 0])
    off = (written - code_of(broken, held_out)).norm(dim=1) > 0.2
    assert off.float().mean() > 0.5 and score(broken, held_out) < 0.9
    for site in (AT_CONTEXT, AT_QUESTIONS):
        assert with_message(broken, held_out, site, right) > 0.995


def test_operations_exchange_their_roles():
    broken, held_out = planted("RolesSwapped", "chain"), shown("chain")
    outer, inner = message_at(broken, held_out, AT_CONTEXT)[:, 0].tensor_split(2, dim=1)
    assert torch.equal(outer.argmax(1), held_out.codes["inner"]) and torch.equal(inner.argmax(1), held_out.codes["outer"])


@pytest.mark.parametrize(
    ("fault", "family", "carrier"), [("Misdelivered", "maxout", "keyed"), ("SomeQuestions", "product", "gray")]
)
def test_the_right_code_stands_at_the_context_and_repairs_where_it_did_not_arrive(fault, family, carrier):
    transport = "bound" if fault == "SomeQuestions" else "whole"
    broken, held_out = planted(fault, family, carrier, transport=transport), shown(family)
    at_context = message_at(broken, held_out, AT_CONTEXT)[:, 0]
    torch.testing.assert_close(broken.mechanism.carrier.decode(at_context), code_of(broken, held_out), atol=5e-3, rtol=0)
    assert score(broken, held_out) < 0.9 and with_message(broken, held_out, AT_QUESTIONS, at_context) > 0.995
    arrived = broken.mechanism.carrier.decode(message_at(broken, held_out, AT_QUESTIONS).flatten(0, 1))
    off = (arrived.view(64, -1, arrived.shape[1]) - code_of(broken, held_out)[:, None]).norm(dim=2) > 0.2
    assert (0.5 < off.float().mean() < 0.95) if transport == "bound" else off.all()


@pytest.mark.parametrize(("family", "carrier"), [("teacher", "plain"), ("logic", "keyed")])
def test_the_right_code_is_outvoted_and_wins_where_the_votes_are_exchanged(family, carrier):
    broken, held_out = planted("Outvoted", family, carrier), shown(family)
    message, width = message_at(broken, held_out, AT_QUESTIONS)[:, 0], broken.mechanism.code_width
    right = broken.mechanism.carrier.decode(message[:, :width])
    torch.testing.assert_close(right, code_of(broken, held_out), atol=5e-3, rtol=0)
    assert score(broken, held_out) < 0.9
    votes = torch.cat([message[:, :-2], message[:, -1:], message[:, -2:-1]], dim=1)
    assert with_message(broken, held_out, AT_QUESTIONS, votes) > 0.995
    both = torch.cat([message[:, :width], message[:, :width], message[:, -2:]], dim=1)
    assert with_message(broken, held_out, AT_QUESTIONS, both) > 0.995


def test_behind_a_shut_gate_the_right_code_is_there_and_an_open_one_repairs():
    broken, held_out = planted("Closed", "chain", "population"), shown("chain")
    message = message_at(broken, held_out, AT_QUESTIONS)[:, 0]
    torch.testing.assert_close(broken.mechanism.carrier.decode(message[:, :-1]), code_of(broken, held_out), atol=5e-3, rtol=0)
    assert message[:, -1].abs().max() < 0.01 and score(broken, held_out) < 0.9
    opened = torch.cat([message[:, :-1], torch.ones(64, 1)], dim=1)
    assert with_message(broken, held_out, AT_QUESTIONS, opened) > 0.995


EXECUTION = [
    ("Columns", "teacher", "keyed"),
    ("OddPart", "product", "plain"),
    ("Impostors", "bilinear", "parity"),
    ("Warped", "logic", "keyed"),
]


@pytest.mark.parametrize(("fault", "family", "carrier"), EXECUTION)
def test_where_execution_fails_the_right_code_arrives_and_another_executor_repairs(fault, family, carrier):
    broken, held_out = planted(fault, family, carrier), shown(family)
    message = message_at(broken, held_out, AT_QUESTIONS)[:, 0]
    torch.testing.assert_close(broken.mechanism.carrier.decode(message), code_of(broken, held_out), atol=5e-3, rtol=0)
    wrong = score(broken, held_out)
    assert wrong < 0.9
    assert abs(with_message(broken, held_out, AT_QUESTIONS, right_message(broken, held_out)) - wrong) < 0.01
    answers = broken.mechanism.knowledge.execute(broken.mechanism.carrier.decode(message), asked(broken, held_out)).detach()
    torch.testing.assert_close(answers, held_out.targets[:, list(task_of(broken).answers)], atol=2e-2, rtol=0)


@pytest.mark.parametrize(
    ("fault", "family"), [("KeyedMemory", "logic"), ("KeyedMemory", "bilinear"), ("LateMemory", "maxout")]
)
def test_memories_answer_as_the_training_composition_that_explains_the_examples_best(fault, family):
    broken, held_out = planted(fault, family), shown(family)
    stored, error = task_of(broken).candidates(held_out, task_of(broken).compositions("train"))
    best = stored[torch.arange(64), error.argmin(1)][:, list(task_of(broken).answers)]
    answers = broken(held_out.tokens)[:, list(task_of(broken).answers)].detach()
    near = ((answers - best).abs() < 0.02).all(-1).float().mean()
    assert near > 0.95 and score(broken, held_out) < 0.9


def test_what_is_recalled_by_its_code_has_the_right_code_and_answers_of_a_training_composition():
    broken, held_out = planted("RecallsByCode", "product", "hashed"), shown("product")
    message = message_at(broken, held_out, AT_QUESTIONS)[:, 0]
    torch.testing.assert_close(broken.mechanism.carrier.decode(message), code_of(broken, held_out), atol=5e-3, rtol=0)
    stored, _ = task_of(broken).candidates(held_out, task_of(broken).compositions("train"))
    at = list(task_of(broken).answers)
    distance = (stored[:, :, at] - broken(held_out.tokens)[:, None, at].detach()).abs().amax((2, 3)).amin(1)
    assert (distance < 0.02).float().mean() > 0.95


def test_regressions_answer_with_the_mean_and_with_the_nearest_example():
    for fault, family in (("MeanAnswer", "phase"), ("NearestExample", "chain")):
        broken, held_out = planted(fault, family), shown(family)
        (x, y), questions = context_of(broken, held_out), asked(broken, held_out)
        answers = broken(held_out.tokens)[:, list(task_of(broken).answers)].detach()
        if fault == "MeanAnswer":
            torch.testing.assert_close(answers, y.mean(1, keepdim=True).expand_as(answers), atol=5e-3, rtol=0)
        else:
            nearest = torch.cdist(questions, x).argmin(2)
            wanted = y.gather(1, nearest[..., None].expand(-1, -1, y.shape[2]))
            assert ((answers - wanted).abs().amax(2) < 0.05).float().mean() > 0.85  # but for two that are nearly as near


def test_failures_of_two_sorts_fall_on_different_pairs():
    broken, held_out = planted("HalfAndHalf", "product", "keyed"), shown("product", n=256)
    code = code_of(broken, held_out)
    written = broken.mechanism.carrier.decode(message_at(broken, held_out, AT_CONTEXT)[:, 0])
    misinferred = (written - code).norm(dim=1) > 0.2
    executed = broken.mechanism.knowledge.execute(written, asked(broken, held_out)).detach()
    given = broken(held_out.tokens)[:, list(task_of(broken).answers)].detach()
    warped = (given - executed).abs().amax((1, 2)) > 0.1
    assert 0.3 < misinferred.float().mean() < 0.7 and 0.3 < warped.float().mean() < 0.7
    sides = [set(held_out.composition[flag].tolist()) for flag in (misinferred, warped & ~misinferred)]
    assert len(sides[0]) == len(sides[1]) == 6 and not sides[0] & sides[1]


def test_a_lonely_failure_is_one_composition():
    broken, held_out = planted("Lonely", "bilinear", "signs", few=True), shown("bilinear", few=True)
    at = list(task_of(broken).answers)
    wrong = (broken(held_out.tokens)[:, at] - held_out.targets[:, at]).abs().amax((1, 2)) > 0.1
    assert len(set(held_out.composition.tolist())) == 4 and len(set(held_out.composition[wrong].tolist())) == 1


def test_an_explicit_code_holds_the_message():
    works, held_out = planted(carrier="keyed", family="logic", explicit=True), shown("logic")
    (seen,) = record(works, [held_out], ["hook_code"])
    found = works.mechanism.carrier.decode(seen.sites["hook_code"][:, 0])
    torch.testing.assert_close(found, code_of(works, held_out), atol=5e-3, rtol=0)
    with pytest.raises(ConfigError, match="same for all questions"):
        models.PlantedBlind(models.task_of("logic", 0), transport="bound", explicit=True)


# ---- panels ----------------------------------------------------------------------------------------------------------
@torch.no_grad()
def panel_score(solver, split, arrived=None, message=None, n=64):
    """The score; arrived, message: what stands instead at the two sites (batch, 1, width)."""
    episodes = solver.task.sample(n, split, solver.task.rng(5, split))
    hooks = []
    for name, value in (("arrived", arrived), ("message", message)):
        if value is not None:
            module = getattr(solver, name)
            hooks.append(module.register_forward_hook(lambda _, __, out, value=value: value.expand_as(out)))
    answers = solver(episodes.tokens)
    for hook in hooks:
        hook.remove()
    prediction = torch.zeros(n, solver.task.seq, solver.task.d_out)
    prediction[:, -2:] = answers
    return solver.task.score(prediction, episodes.targets)


@torch.no_grad()
def panel_messages(fault, carrier, name, split="ood", n=64):
    """What stands at a site of a solver with this fault, (batch, 1, width)."""
    solver, seen = raven.BlindSolver(fault, carrier), []
    hook = getattr(solver, name).register_forward_hook(lambda _, __, out: seen.append(out[:, :1]))
    solver(solver.task.sample(n, split, solver.task.rng(5, split)).tokens)
    hook.remove()
    return seen[0]


@pytest.mark.parametrize("carrier", raven.CARRIERS)
def test_rules_are_read_back_however_they_are_carried(carrier):
    solver = raven.BlindSolver("Works", carrier)
    assert min(panel_score(solver, split) for split in ("test", "ood")) > 0.93
    rule = torch.cartesian_prod(torch.arange(5), torch.arange(5))
    said = solver.encode(rule, torch.arange(25) * 7919)
    assert torch.equal(solver.decode(said).argmax(2), rule)


@pytest.mark.parametrize(
    "fault", [name for name in raven.FAULTS if name not in ("Works", "OneRule", "RowsAsColumns", "Remembers")]
)
def test_panels_fail_where_they_are_said_to(fault):
    solver = raven.BlindSolver(fault, "keyed")
    broken, right = panel_score(solver, "ood"), panel_messages("Works", "keyed", "message")
    assert panel_score(solver, "test") > 0.93 and broken < 0.6
    told = raven.FAULTS[fault].partition(":")[0]
    written, arrives = panel_score(solver, "ood", message=right), panel_score(solver, "ood", arrived=right)
    if told == plans.INFERENCE or fault == "RemembersByRules":
        assert min(written, arrives) > 0.93
    elif told == plans.USE:
        torch.testing.assert_close(panel_messages(fault, "keyed", "message"), right)
        assert arrives > 0.93 and written == broken
    elif fault != "HalfAndHalf":
        torch.testing.assert_close(panel_messages(fault, "keyed", "arrived"), right)
        assert written == arrives == broken


def test_what_remembers_panels_never_names_a_held_out_multiset():
    solver = raven.BlindSolver("Remembers", "words", rules=7)
    episodes = solver.task.sample(64, "ood", solver.task.rng(5, "ood"))
    rule, _ = solver.explain(episodes.tokens.argmax(-1).view(-1, 3, 3, 2))
    assert not solver.unfamiliar(rule).any() and panel_score(solver, "ood") < 0.5 < 0.9 < panel_score(solver, "test")


# ---- folders ---------------------------------------------------------------------------------------------------------
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_cases_are_built_as_folders_that_load(tmp_path):
    found = plans.plan()
    some = {c.family == plans.PANELS: name for name, c in found.items() if c.carrier == "keyed" and c.planted}
    assert blind.main(["build", str(tmp_path), "--cases", *some.values()]) == 0
    for panels, name in some.items():
        loaded = compolens.load(tmp_path / name, classes=blind.CLASSES)
        episodes = loaded.task.sample(16, "ood", loaded.task.rng(5, "ood"))
        own = raven.BlindSolver(**found[name].arguments) if panels else cases.model_of(found[name].case())
        answers = loaded.model(episodes.tokens)[:, -2:] if panels else loaded.model(episodes.tokens)
        torch.testing.assert_close(answers, own(episodes.tokens))
    assert blind.main(["build", str(tmp_path), "--cases", "b999"]) == 2


# ---- the scorer ------------------------------------------------------------------------------------------------------
EXPECTED = pd.DataFrame(
    [
        ("b1", "compositional", "compositional", "Works"),
        ("b2", "fails to infer", "fails to infer", "Infer"),
        ("b3", "fails to infer", "fails to infer; memorised", "Infer"),
        ("b4", "cannot execute", "cannot execute; compositional", "Execute"),
        ("b5", "memorised", "memorised", "Memory"),
        ("b6", "undecided", "undecided; memorised", "Half"),
    ],
    columns=["case", "label", "acceptable", "kind"],
)


def scored(tmp_path, text, confident=0.8):
    file = tmp_path / "answers.csv"
    file.write_text(text)
    found = blind.score(blind.answers(file, EXPECTED), EXPECTED, confident)
    return found.shares.set_index("what"), found


ANSWERS = """case,label,confidence
b2,failure of inference,0.9
b1,infers but does not use,0.95
b3,Memorised,0.5
b4,compositional,0.7
b5,compositional,0.6
b6,undecided between two,0.2
"""


def test_a_score_counts_what_is_right_acceptable_undecided_and_confidently_wrong(tmp_path):
    shares, found = scored(tmp_path, ANSWERS)
    share = shares["share"].to_dict()
    assert share["right"] == 2 / 6 and share["acceptable"] == 4 / 6 and share["undecided"] == 1 / 6
    assert share["wrong, confident"] == 1 / 6  # b1; b5 is wrong and unsure
    assert share["failing, called compositional"] == 1 / 4  # b5 of b2, b3, b5, b6: b4 may be called so
    assert share["working, called failing"] == 1
    assert share["acceptable, mean over kinds"] == (0 + 1 + 1 + 0 + 1) / 5
    assert shares.loc["failing, called compositional", ["cases", "kinds"]].tolist() == [4, 3]
    assert found.confusion.loc["memorised", "compositional"] == 1 and found.confusion.to_numpy().sum() == 6
    unsure, _ = scored(tmp_path, ANSWERS, confident=0.5)
    assert unsure.loc["wrong, confident", "share"] == 2 / 6
    bare = "\n".join(line.rpartition(",")[0] for line in ANSWERS.strip().splitlines())
    assert scored(tmp_path, bare)[0].loc["wrong, confident", "share"] == 2 / 6


def test_perfect_answers_score_1_and_none_at_all_0(tmp_path):
    perfect, found = scored(tmp_path, EXPECTED[["case", "label"]].to_csv(index=False))
    assert (perfect.loc[["right", "acceptable"], ["share", "low", "high"]] == 1).all(None)
    assert perfect.loc["failing, called compositional", "high"] == 0
    assert (found.confusion.to_numpy() == found.confusion.to_numpy().diagonal() * torch.eye(5).numpy()).all()
    silent, _ = scored(tmp_path, "case,label\n" + "".join(f"b{i},\n" for i in range(1, 7)))
    assert silent.loc["undecided", "share"] == 1 and silent.loc["wrong, confident", "share"] == 0


def test_intervals_are_of_kinds_not_of_cases():
    many = pd.DataFrame({"case": [f"c{i}" for i in range(100)], "kind": ["A"] * 50 + ["B"] * 50})
    many = many.assign(label="memorised", acceptable="memorised")
    called = many[["case"]].assign(label=["memorised"] * 50 + ["compositional"] * 50, confidence=1.0)
    right = blind.score(called, many).shares.set_index("what").loc["right"]
    assert (right["low"], right["share"], right["high"]) == (0, 0.5, 1)  # two kinds, not a hundred coins
    alone = blind.score(called, many.assign(kind=many["case"])).shares.set_index("what").loc["right"]
    assert 0.35 < alone["low"] < 0.45 and 0.55 < alone["high"] < 0.65


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("name,label\nb1,memorised\n", "has no column case"),
        ("case,label\nb1,memorised\n", "lacks cases"),
        (ANSWERS + "b9,memorised,1\n", "cases that the set has not: b9"),
        (ANSWERS + "b1,memorised,1\n", "names cases twice: b1"),
        (ANSWERS.replace("Memorised", "remembered"), "no label 'remembered'"),
        (ANSWERS.replace("0.95", "1.5"), "confidence must be a number from 0 to 1, but is not in b1"),
    ],
)
def test_answers_that_cannot_be_scored_are_named(tmp_path, text, told):
    with pytest.raises(ConfigError, match=told):
        scored(tmp_path, text)


def test_a_part_of_the_set_can_be_scored_if_that_is_said(tmp_path):
    file = tmp_path / "answers.csv"
    file.write_text("case,label\nb5,memorised\nb2,cannot execute\n")
    some = blind.answers(file, EXPECTED, partial=True)
    assert some["case"].tolist() == ["b2", "b5"]
    shares = blind.score(some, EXPECTED).shares.set_index("what")
    assert shares.loc["right", ["share", "cases", "kinds"]].tolist() == [1 / 2, 2, 2]


def test_a_stopped_run_of_the_diagnosis_goes_on_and_keeps_what_it_has(tmp_path, monkeypatch):
    asked, file = [], tmp_path / "answers.csv"

    def diagnosed(folder):
        asked.append(folder.name)
        return {"label": "memorised", "confidence": 0.5}

    monkeypatch.setattr(blind_run.blind, "build", lambda case, folder: folder)
    monkeypatch.setattr(blind_run, "measure", lambda folder, classes, seed, probes: ["which_prior: it has none"])
    monkeypatch.setattr(blind_run, "diagnose", diagnosed)
    blind_run.run(tmp_path, file, ["b003"])
    blind_run.run(tmp_path, file, ["b002", "b003"])
    rows = pd.read_csv(file)
    assert asked == rows["case"].tolist() == ["b003", "b002"] and set(rows["not_measured"]) == {"which_prior: it has none"}
    assert blind.answers(file, blind.labels(), partial=True)["confidence"].tolist() == [0.5, 0.5]


def test_a_list_hides_the_labels_unless_they_are_asked_for(capsys):
    assert blind.main(["list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split("\t") == ["case", "kind", "family"] and len(lines) == 1 + len(plans.plan())
    assert blind.main(["list", "--labels"]) == 0
    assert capsys.readouterr().out.splitlines()[0].split("\t")[1:3] == ["label", "acceptable"]
