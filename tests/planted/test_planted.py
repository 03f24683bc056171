"""Models whose failure is known by construction: each does what its name says, and through the residual stream alone."""

import hashlib
import importlib
import sys
from collections import Counter
from functools import lru_cache
from pathlib import Path

import pytest
import torch
from sklearn.linear_model import Ridge

import compolens
from compolens.activations.sites import Site, put, sites
from compolens.activations.streams import draw, intervene, record
from compolens.foundation.configs import ConfigError, DoesNotApply
from compolens.interventions.oracles import code_features
from compolens.measures.readouts import RidgeReadout
from compolens.references import InContextRidge, TrainingCompositions
from compolens.tasks import FuzzyLogic

HERE = Path(__file__).parents[1] / "benchmarks" / "diagnosis"


def neighbour(name):
    """A module of the benchmark, found as a script beside it would find it."""
    if str(HERE) not in sys.path:
        sys.path.append(str(HERE))
    return importlib.import_module(name)


cases, trained_cases, labels, built = (neighbour(name) for name in ("cases", "trained", "labels", "kinds"))
third, fourth = neighbour("third_kinds"), neighbour("fourth_kinds")
FAMILIES = tuple(cases.STRENGTHS)
EVERY_KIND = [(f, k, family, kind) for f, family in enumerate(FAMILIES) for k, kind in enumerate(cases.KINDS)]


def each(pairs):
    return pytest.mark.parametrize(("family", "kind"), pairs, ids=lambda value: getattr(value, "__name__", value))


kinds = each([(family, kind) for *_, family, kind in EVERY_KIND])
in_turn = each([(family, kind) for f, k, family, kind in EVERY_KIND if (f + k) % 3 == 0])  # a kind on every third family
families = pytest.mark.parametrize("family", FAMILIES)
one_form = pytest.mark.parametrize(
    ("family", "kind", "explicit"),
    [(family, kind, (f + k) % 6 == 3) for f, k, family, kind in EVERY_KIND if (f + k) % 3 == 0],
    ids=lambda value: {False: "stream", True: "code"}.get(value) or getattr(value, "__name__", value),
)
AT_CONTEXT = Site(1, "blocks.0.hook_resid_post", "context")


def model(kind, family, strength=1.0, explicit=False, seed=0):
    return cases.model_of(cases.case_of(kind, family, strength, seed, explicit, ""))


def task_of(family, seed=0):
    return cases.task_of(family, seed)


@lru_cache
def episodes(family, split, n=64, seed=0):
    (found,) = draw(task_of(family, seed), split, n, 1)
    return found


@torch.no_grad()
def score(model, family, split, n=64):
    shown = episodes(family, split, n)
    return task_of(family).score(model(shown.tokens), shown.targets)


def true_code(family, shown):
    return code_features(task_of(family), shown.codes).float()


@torch.no_grad()
def with_message(model, shown, message, first=0):
    """The answers when these coordinates of the message (batch, k) stand at every context token, from `first` on."""
    move, width = model.blocks[1], message.shape[1]
    (seen,) = record(model, [shown], [AT_CONTEXT.site])
    resid = seen.sites[AT_CONTEXT.site].clone()
    own = resid[:, : model.n_context] @ move.W_read[:, first : first + width]
    resid[:, : model.n_context] += (message[:, None] - own) @ model.blocks[0].W_write[first : first + width]
    return put(model, shown.tokens, AT_CONTEXT, resid)


def context(family, shown):
    """The examples: x (batch, n, d_x), y (batch, n, d_y)."""
    x, y = task_of(family).examples(shown)
    return x[:, : y.shape[1]], y


def rendered(family, codes, shown):
    """The task's answers under other episodes' codes at the same inputs."""
    return task_of(family).render(codes, shown.inputs)


# ---- what each kind does ---------------------------------------------------------------------------------------------
@kinds
def test_training_compositions_are_answered_and_held_out_ones_as_the_kind_says(family, kind):
    full = model(kind, family)
    assert score(full, family, "test", 16) > 0.999
    if kind in labels.WORKING:
        assert score(full, family, "ood") > 0.999
        return
    weak = model(kind, family, cases.STRENGTHS[family][0])
    assert score(weak, family, "test", 16) > 0.999
    wrong = score(weak, family, "ood")
    assert score(full, family, "ood") < wrong - 0.05
    if kind not in labels.NEVER_SLIGHT:
        assert max(0.9, wrong + 0.05) < score(model(kind, family, labels.harmless(kind, family)), family, "ood") < 0.998


@in_turn
def test_an_explicit_code_changes_where_the_message_stands_not_what_is_answered(family, kind):
    stream, code = (model(kind, family, explicit=explicit) for explicit in (False, True))
    code.mechanism.load_state_dict(stream.mechanism.state_dict())
    shown, answers = episodes(family, "ood"), list(task_of(family).answers)
    torch.testing.assert_close(code(shown.tokens)[:, answers], stream(shown.tokens)[:, answers], atol=2e-3, rtol=0)
    assert "hook_code" in code.hook_dict and "hook_code" not in stream.hook_dict


@families
def test_the_ridge_fallback_answers_held_out_compositions_as_ridge_does_and_writes_its_weights(family):
    task, shown, broken = task_of(family), episodes(family, "ood"), model(built.PlantedRidgeFallback, family)
    answers = list(task.answers)
    ridge = InContextRidge(l2=1.0).predict(task, shown)[:, answers]
    torch.testing.assert_close(broken(shown.tokens)[:, answers], ridge, atol=1e-3, rtol=1e-3)
    (seen,) = record(broken, [shown], [AT_CONTEXT.site])
    code = (seen.sites[AT_CONTEXT.site][:, 0] @ broken.blocks[1].W_read)[:, : broken.mechanism.knowledge.n_parts]
    assert code.abs().max() < 1e-3


@families
def test_the_lookup_answers_held_out_compositions_as_the_best_training_composition_does(family):
    task, shown, broken = task_of(family), episodes(family, "ood"), model(built.PlantedLookup, family)
    best = TrainingCompositions().predict(task, shown)
    to_best, to_truth = task.score(broken(shown.tokens), best), score(broken, family, "ood")
    assert to_best > (0.85 if family == "teacher" else 0.99) > to_truth + 0.2  # the teacher's reference bounds coefficients
    known, examples = broken.mechanism.knowledge, context(family, shown)
    own, error = known.explain(*examples)
    torch.testing.assert_close(own[torch.arange(64), error.argmin(1)], known.lookup(*examples), atol=2e-3, rtol=0)


@families
@pytest.mark.parametrize(
    "kind",
    [kind for kind, label in labels.EVERY_FAILING.items() if label == "fails to infer" and kind not in labels.MIXED],
    ids=lambda kind: kind.__name__,
)
def test_where_inference_fails_the_right_code_in_the_stream_is_executed(family, kind):
    shown, broken = episodes(family, "ood"), model(kind, family)
    repaired = with_message(broken, shown, true_code(family, shown))
    assert task_of(family).score(repaired, shown.targets) > 0.999


@families
@pytest.mark.parametrize(
    "kind",
    [built.PlantedEntangled, built.PlantedHalfBlind, built.PlantedHalfExecuted, third.PlantedDisturbed, fourth.PlantedTurned],
    ids=lambda kind: kind.__name__,
)
def test_where_execution_fails_the_code_in_the_stream_is_right(family, kind):
    shown, broken = episodes(family, "ood"), model(kind, family)
    (seen,) = record(broken, [shown], [AT_CONTEXT.site])
    code = seen.sites[AT_CONTEXT.site][:, 0] @ broken.blocks[1].W_read
    torch.testing.assert_close(code, true_code(family, shown), atol=2e-3, rtol=0)
    torch.testing.assert_close(
        with_message(broken, shown, true_code(family, shown)), broken(shown.tokens).detach(), atol=2e-3, rtol=0
    )


@families
@pytest.mark.parametrize("kind", [built.PlantedNeverRead, built.PlantedLeftBehind], ids=lambda kind: kind.__name__)
def test_what_is_never_read_can_be_decoded_and_changed_without_effect(family, kind):
    shown, unused = episodes(family, "ood"), model(kind, family)
    parts = unused.mechanism.knowledge.n_parts
    other = rendered(family, {name: code.roll(1, 0) for name, code in shown.codes.items()}, shown)
    ignored = with_message(unused, shown, true_code(family, other))
    torch.testing.assert_close(ignored, unused(shown.tokens).detach(), atol=2e-3, rtol=0)
    obeyed = with_message(unused, shown, true_code(family, other), first=parts)
    assert task_of(family).score(obeyed, other.targets) > 0.999

    fit = episodes(family, "test", 256)
    streams = [next(record(unused, [e], [AT_CONTEXT.site])).sites[AT_CONTEXT.site][:, :30].mean(1) for e in (fit, shown)]
    readout = RidgeReadout.fit(streams[0], true_code(family, fit), 1e-3)
    truth = true_code(family, shown).double()
    wrong = (readout(streams[1].double()) - truth).square().sum() / (truth - truth.mean(0)).square().sum()
    assert wrong < 0.1
    (moved,) = record(unused, [shown], ["blocks.1.hook_resid_post"])
    at_query = (moved.sites["blocks.1.hook_resid_post"][:, -1] @ unused.blocks[1].W_read)[:, :parts]
    assert (at_query.abs().max() < 1e-3) == (kind is built.PlantedLeftBehind)


@families
def test_a_scrambled_code_is_not_linear_and_survives(family):
    fit, shown = episodes(family, "test", 256), episodes(family, "ood")
    wrong = {}
    for kind in labels.WORKING:
        hook_name = "blocks.0.hook_resid_post"
        streams = [next(record(model(kind, family), [e], [hook_name])).sites[hook_name][:, :30].mean(1) for e in (fit, shown)]
        truth = true_code(family, shown).double()
        readout = RidgeReadout.fit(streams[0], true_code(family, fit), 1e-3)
        wrong[kind] = float((readout(streams[1].double()) - truth).square().sum() / truth.square().sum())
    linear = max(wrong[built.PlantedCompositional], wrong[built.PlantedRotated])
    assert linear < 0.01 < 0.2 < wrong[built.PlantedScrambled]


# ---- what the fresh kinds do -----------------------------------------------------------------------------------------
def message(model, shown, layer=0, role="context"):
    """(batch, width): what stands after a stage, at the first of the role's positions."""
    (seen,) = record(model, [shown], [f"blocks.{layer}.hook_resid_post"])
    return seen.sites[f"blocks.{layer}.hook_resid_post"][:, model.roles[role][0]] @ model.blocks[1].W_read


@families
def test_a_rotated_message_is_the_code_in_other_coordinates(family):
    works, shown = model(built.PlantedRotated, family), episodes(family, "ood")
    turn, found, code = works.mechanism.turn, message(works, shown), true_code(family, shown)
    torch.testing.assert_close(turn @ turn.T, torch.eye(len(turn)), atol=1e-5, rtol=0)
    torch.testing.assert_close(found @ turn.T, code, atol=2e-3, rtol=0)
    assert (found - code).norm() > 0.5 * code.norm()


@families
def test_wrong_messages_are_too_short_or_do_not_depend_on_the_examples(family):
    for split, size in (("test", 1), ("ood", 1 / 3)):
        shown = episodes(family, split)
        found = message(model(built.PlantedShrunken, family), shown)
        torch.testing.assert_close(found, size * true_code(family, shown), atol=2e-3, rtol=0)
    broken = model(built.PlantedAverageCode, family)
    given_up = message(broken, episodes(family, "ood"))
    torch.testing.assert_close(given_up, broken.mechanism.knowledge.trained.mean(0).expand_as(given_up), atol=2e-3, rtol=0)


@families
@pytest.mark.parametrize("kind", [built.PlantedNotCarried, built.PlantedMiscarried], ids=lambda kind: kind.__name__)
def test_what_is_not_carried_stands_at_the_context_and_helps_the_questions(family, kind):
    shown, broken = episodes(family, "ood"), model(kind, family, 0.75)
    code = true_code(family, shown)
    torch.testing.assert_close(message(broken, shown), code, atol=2e-3, rtol=0)
    arrived = message(broken, shown, 1, "readout")
    if kind is built.PlantedNotCarried:
        torch.testing.assert_close(arrived, 0.25 * code, atol=2e-3, rtol=0)
    else:
        assert ((arrived - code).norm(dim=1) > 0.2 * code.norm(dim=1)).all()
    (seen,) = record(broken, [shown], ["blocks.1.hook_resid_post"])
    resid = seen.sites["blocks.1.hook_resid_post"].clone()
    resid[:, broken.n_context :] += ((code - arrived) @ broken.blocks[1].W_write)[:, None]
    repaired = put(broken, shown.tokens, Site(2, "blocks.1.hook_resid_post", "readout"), resid)
    assert task_of(family).score(repaired, shown.targets) > 0.999 > score(broken, family, "ood") + 0.1


@families
@torch.no_grad()
def test_half_blind_models_do_not_look_at_half_of_a_held_out_question(family):
    broken, moves = model(built.PlantedHalfBlind, family), {}
    for split in ("test", "ood"):
        shown = episodes(family, split)
        half = broken.mechanism.knowledge.d_x // 2
        for part in (slice(0, half), slice(half, 2 * half)):
            tokens = shown.tokens.clone()
            tokens[:, broken.n_context :, part] = tokens[:, broken.n_context :, part].roll(1, 0)
            moves[split, part.start > 0] = float((broken(tokens) - broken(shown.tokens)).abs().max())
    assert moves["ood", False] < 2e-3 < 0.1 < min(moves["ood", True], moves["test", False], moves["test", True])


# ---- what the second set's kinds do ----------------------------------------------------------------------------------------
@pytest.mark.parametrize("family", ["logic", "chain", "product", "maxout", "phase"])
def test_mistaken_codes_are_those_of_other_held_out_compositions(family):
    shown, known = episodes(family, "ood"), model(built.PlantedMistaken, family).mechanism.knowledge
    found, code = message(model(built.PlantedMistaken, family), shown), true_code(family, shown)
    held = torch.nn.functional.one_hot(known.held, known.n_parts).sum(1).float()
    assert torch.cdist(found, held).amin(1).max() < 5e-3
    assert (found * code).sum(1).max() < 5e-3  # no part is shared


@families
def test_half_executed_parts_are_met_by_the_mean_of_their_trained_partners(family):
    known = model(built.PlantedHalfExecuted, family).mechanism.knowledge
    spread = known.spread
    torch.testing.assert_close(spread.sum(1), torch.zeros(len(spread)), atol=1e-6, rtol=0)
    trained = {tuple(row.nonzero()[:, 0].tolist()) for row in known.trained}
    for pair, row in zip(known.held.tolist(), spread, strict=True):
        (lost,) = row.lt(0).nonzero()[:, 0].tolist()
        (kept,) = set(pair) - {lost}
        partners = {tuple(sorted((kept, part))) for part in row.gt(0).nonzero()[:, 0].tolist()}
        assert partners == {c for c in trained if kept in c and len(c) == 2}


@pytest.mark.parametrize("family", ["logic", "chain", "product", "maxout", "phase"])
def test_two_memories_are_mixed_by_how_well_they_explain_the_examples(family):
    task, shown, broken = task_of(family), episodes(family, "ood"), model(built.PlantedTwoMemories, family)
    found, error = task.candidates(shown, task.compositions("train"))
    least, best = error.sort(dim=1)
    first, second = (found[torch.arange(64), best[:, k]] for k in (0, 1))
    share = (least[:, 1] / (least[:, 0] + least[:, 1]))[:, None, None]
    answers = list(task.answers)
    wanted = (share * first + (1 - share) * second)[:, answers]
    torch.testing.assert_close(broken(shown.tokens).detach()[:, answers], wanted, atol=0.01, rtol=0.01)


@families
def test_a_memory_found_by_the_code_is_the_nearest_training_code_whatever_the_examples(family):
    shown, seen = episodes(family, "ood"), episodes(family, "test", 256)
    broken = model(built.PlantedMemoryByCode, family)
    known, code, near = broken.mechanism.knowledge, true_code(family, shown), true_code(family, seen)
    own = known.recall(known.nearest(near), seen.inputs if family != "logic" else context(family, seen)[0])
    truth = seen.targets if family != "logic" else context(family, seen)[1]
    torch.testing.assert_close(own, truth, atol=2e-3, rtol=0)  # of a training composition, its own
    entry, parts = known.nearest(code), known.n_parts
    torch.testing.assert_close(message(broken, shown)[:, parts:], entry, atol=5e-3, rtol=0)
    if family == "teacher":
        placed = torch.zeros(64, parts).index_add(1, known.slots.flatten(), entry)
        small = known.nearest(0.3 * near)
        assert ((small == 0) | (small >= 0.5) & (small <= 1)).all()  # as coefficients are in training
    else:
        placed = entry @ known.trained
        torch.testing.assert_close(entry.amax(1), torch.ones(64), atol=1e-3, rtol=0)
    assert ((placed - code).norm(dim=1) <= torch.cdist(code, near).amin(1) + 1e-3).all()


@families
def test_the_feature_fallback_is_ridge_on_tanh_units_of_the_question(family):
    task, shown, broken = task_of(family), episodes(family, "ood", 8), model(built.PlantedFeatureFallback, family)
    answers, units = broken(shown.tokens).detach(), broken.mechanism.W_features.detach()
    x, y = task.examples(shown)
    for k in range(8):
        seen = torch.tanh((x[k] - broken.mechanism.knowledge.centre) @ units).double()
        ridge = Ridge(alpha=1.0).fit(seen[: y.shape[1]].numpy(), y[k].double().numpy())
        wanted = torch.from_numpy(ridge.predict(seen[list(task.answers)].numpy())).reshape(len(task.answers), -1)
        torch.testing.assert_close(answers[k, list(task.answers)].double(), wanted, atol=2e-3, rtol=1e-3)


# ---- interventions are causal ----------------------------------------------------------------------------------------
@one_form
def test_the_answer_follows_another_episodes_stream_at_every_stage(family, kind, explicit):
    """Sources are training compositions, on which every kind is right; inputs are the base's own."""
    works, base, source = model(kind, family, explicit=explicit), episodes(family, "ood"), episodes(family, "test")
    wanted = rendered(family, source.codes, base)
    hook_names = {"blocks.0.hook_resid_post": works.roles["context"], "blocks.1.hook_resid_post": works.roles["readout"]}
    (seen,) = record(works, [source], list(hook_names))
    for hook_name, where in hook_names.items():

        def swap(resid, donor=seen.sites[hook_name], hook_name=hook_name, where=where):
            if hook_name == "blocks.0.hook_resid_post" or explicit:
                resid[:, where] = donor[:, where]
                return resid
            read, write = works.blocks[1].W_read, works.blocks[1].W_write  # a query's x stays its own
            resid[:, where] += (donor[:, where] - resid[:, where]) @ read @ write
            return resid

        answer = intervene(works, base, {hook_name: swap})
        assert task_of(family).score(answer, wanted.targets) > 0.999


@one_form
def test_resuming_equals_the_whole_pass_and_gradients_flow_from_every_site(family, kind, explicit):
    works, shown = model(kind, family, 0.7, explicit), episodes(family, "ood", 8)
    whole, cache = works.run_with_cache(shown.tokens)
    for site in {site.hook_name: site for site in sites(works)}.values():
        activation = cache[site.hook_name].detach().clone().requires_grad_()
        answer = put(works, shown.tokens, site, activation)
        torch.testing.assert_close(answer, whole)
        answered = answer[:, list(task_of(family).answers)]
        (slope,) = torch.autograd.grad(answered.square().sum(), activation)
        assert torch.isfinite(slope).all()
        if kind is fourth.PlantedDeferred and family != "teacher":
            continue  # all goes through a choice among categories, which has no slope
        assert slope.abs().max() > 0
        context = works.roles["context"]
        if site.layer == 1:
            assert slope[:, context].abs().max() > 0
        if site.layer == 0 and family == "teacher":  # through inference: nothing else reads the examples' tokens
            assert (slope[:, context] @ works.W_E.T).abs().max() > 1e-2


# ---- what is not planted ---------------------------------------------------------------------------------------------
@families
def test_untrained_and_shuffled_models_answer_nothing(family):
    broken = [c for c in cases.cases().values() if c.expected == cases.NOT_LEARNED and c.family == family]
    assert {c.kind for c in broken} == {"Untrained", "Shuffled"} and {c.shuffled for c in broken} == {None, 0, 1, 2}
    for case in broken:
        shown = episodes(family, "test", seed=case.seed)
        prediction = cases.model_of(case)(shown.tokens)
        assert torch.isfinite(prediction).all() and case.run.task.score(prediction, shown.targets) < 0.3


# ---- folders and lists -----------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("family", "explicit"),
    [("teacher", True), ("logic", False), ("logic", True), ("chain", False), ("product", True)],
    ids=lambda value: {False: "stream", True: "code"}.get(value, value),
)
def test_a_case_is_an_ordinary_folder(family, explicit, tmp_path):
    case = cases.case_of(built.PlantedEntangled, family, 1.0, 1, explicit, "cannot execute", cases.NOISE)
    folder = cases.build(case, tmp_path / case.name)
    with pytest.raises(ConfigError, match="PlantedEntangled"):
        compolens.load(folder)
    loaded = compolens.load(folder, classes=cases.CLASSES)
    shown = episodes(family, "test", seed=1)
    torch.testing.assert_close(loaded.model(shown.tokens), cases.model_of(case)(shown.tokens), atol=0, rtol=0)
    assert case.run.task.score(loaded.untrained_control()(shown.tokens), shown.targets) < 0.3
    row = compolens.zoo.overview(folder, cases.CLASSES)
    assert row["test"] > 0.9 > row["ood"] + 0.2 and "note" not in row


def test_a_model_is_built_for_its_own_task_alone():
    with pytest.raises(DoesNotApply, match="planted for another task"):
        built.PlantedCompositional(cases.task_of("teacher", 0)).build(**FuzzyLogic().dimensions)
    with pytest.raises(ConfigError, match="strength must lie in"):
        built.PlantedEntangled(cases.task_of("teacher", 0), 0.0)
    with pytest.raises(ConfigError, match="no family 'teachr'; did you mean 'teacher'"):
        cases.task_of("teachr", 0)
    with pytest.raises(DoesNotApply, match="FuzzyLogic, Chain, Product, Maxout or Phase, got UnstructuredTeacher"):
        built.PlantedCompositional(odd := compolens.UnstructuredTeacher()).build(**odd.dimensions)


def test_there_are_enough_cases_of_every_label_on_every_family():
    found = cases.cases()
    counted = Counter((case.family, case.expected) for case in found.values())
    labels = {cases.COMPOSITIONAL, cases.NOT_LEARNED, *cases.FAILING.values()}
    assert len(found) >= 160 and set(counted) == {(family, label) for family in FAMILIES for label in labels}
    assert min(counted.values()) >= 3
    assert len({(case.run, case.planted, case.noise, case.shuffled) for case in found.values()}) == len(found)


def test_every_generation_has_a_family_and_kinds_of_its_own():
    found = cases.cases().values()
    own = {
        **{kind: 1 for kind in (*labels.FRESH_FAILING, built.PlantedRotated)},
        **{kind: 2 for kind in labels.NEW_FAILING},
        **{kind: 3 for kind in (*labels.THIRD_FAILING, third.PlantedRedundant)},
        **{kind: 4 for kind in (*labels.FOURTH_FAILING, fourth.PlantedDeferred)},
    }
    since = {kind.__name__.removeprefix("Planted"): age for kind, age in own.items()}
    families = {"chain": 1, "product": 2, "maxout": 3, "phase": 4}
    for case in found:
        assert case.generation == max(families.get(case.family, 0), since.get(case.kind, 0))
        assert case.fresh == (case.generation == 4)
    counted = Counter((case.generation, case.family) for case in found if case.generation)
    assert counted == {
        **{(1, "teacher"): 10, (1, "logic"): 10, (1, "chain"): 35},
        **{(2, "teacher"): 7, (2, "logic"): 7, (2, "chain"): 7, (2, "product"): 43},
        **{(3, family): 7 for family in ("teacher", "logic", "chain", "product")},
        (3, "maxout"): 38,
        **{(4, family): 4 for family in ("teacher", "logic", "chain", "product")},
        **{(4, "maxout"): 5, (4, "phase"): 46},
    }


@pytest.mark.parametrize("generation", [2, 3, 4])
def test_a_whole_fresh_set_has_every_label_in_both_forms_exact_and_rough(generation):
    found = [case for case in cases.cases().values() if case.generation == generation]
    per_label = Counter(case.expected for case in found)
    assert per_label.pop(cases.NOT_LEARNED) == 5 and min(per_label.values()) >= 7
    for half in (lambda case: case.explicit, lambda case: case.noise > 0):
        halves = Counter((case.expected, half(case)) for case in found if case.expected != cases.NOT_LEARNED)
        assert min(halves.values()) >= 3 and len(halves) == 12


@pytest.mark.parametrize(
    ("generation", "n", "digest"),
    [
        (0, 117, "bc0490aa251aa117"),
        (1, 55, "76a930d868d55f75"),
        (2, 64, "ed9983c895f11904"),
        (3, 66, "adb0c925ac4f9a1a"),
        (4, 67, "1bc3ffc1da5afc27"),
    ],
    ids=str,
)
def test_cases_stay_what_they_were_when_rules_were_tested_on_them(generation, n, digest):
    seen = [f"{name}: {case.expected}" for name, case in cases.cases().items() if case.generation == generation]
    assert len(seen) == n and hashlib.sha256("\n".join(seen).encode()).hexdigest()[:16] == digest


SAMPLED = [
    name for age in range(5) for name in [n for n, c in cases.cases().items() if c.generation == age][3 :: 12 if age else 18]
]


@pytest.mark.parametrize("name", SAMPLED)
def test_a_case_fails_where_its_label_says_so_and_nowhere_else(name):
    case = cases.cases()[name]
    task, works, scores = case.run.task, cases.model_of(case), {}
    for split in ("test", "ood"):
        shown = episodes(case.family, split, 128, case.seed)
        scores[split] = task.score(works(shown.tokens).detach(), shown.targets)
    if case.expected == cases.NOT_LEARNED:
        assert scores["test"] < 0.3
    else:
        assert scores["test"] > 0.9
        assert (scores["test"] - scores["ood"] > 0.1) == (case.expected != cases.COMPOSITIONAL)


def test_trained_cases_are_described_with_a_reason_each():
    assert len(trained_cases.runs) >= 20 and set(trained_cases.runs) == set(trained_cases.expected)
    labels = {cases.COMPOSITIONAL, cases.NOT_LEARNED, *cases.FAILING.values()} - {"infers but does not use"}
    assert {label for label, _ in trained_cases.expected.values()} == labels
    assert all(len(why) > 20 for _, why in trained_cases.expected.values())
    for run in trained_cases.runs.values():
        shown = run.task.sample(4, "ood", run.task.rng(0, "ood"))
        assert run.build()(shown.tokens).shape == shown.targets.shape and run.steps <= 2000
