"""Codes written into models and searched for through them: identities, and executors that are known to be right or wrong."""

import numpy as np
import pytest
import torch
from sklearn.linear_model import Ridge
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from compolens import HypernetworkTransformer, Hyperteacher, load
from compolens.activations.sites import EVERYWHERE, Site, positions, put, sites
from compolens.activations.streams import draw, intervene, record
from compolens.foundation.configs import ConfigError, DoesNotApply
from compolens.interventions.oracles import Search, best_code, code_features, fit_codes, readings, written
from compolens.recipes import load_recipe
from compolens.tasks import FuzzyLogic, LinearRegression, Relations, SRaven, UnstructuredTeacher

CODE = Site(3, "hook_code", "all")
FAMILIES = {
    "hyperteacher": Hyperteacher(d_x=4, d_y=2, d_hidden=6, n_modules=6, n_context=6, n_queries=3),
    "unstructured": UnstructuredTeacher(d_x=4, d_y=2, d_hidden=6, n_modules=6, n_context=6, n_queries=4),
    "fuzzy": FuzzyLogic(length=8),
    "relations": Relations(),
    "sraven": SRaven(n_features=3),
}


@pytest.fixture(scope="module")
def right_executor():
    """(task, a hypernetwork transformer whose encoder was never trained and whose executor is the teacher itself)."""
    task = FAMILIES["hyperteacher"]
    torch.manual_seed(0)
    model = HypernetworkTransformer(n_layers=2, d_model=16, n_heads=2, d_code=6, d_hidden=6).build(**task.dimensions)
    modules, readout = task.teacher
    with torch.no_grad():
        model.executor.W_modules.copy_(modules)
        model.executor.W_out.copy_(readout)
        model.executor.b_out.zero_()
    return task, model.eval()


def one_batch(task, split, n=32, seed=0):
    return next(draw(task, split, n, seed, batch=n))


# ---- factors and exchanges -------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", FAMILIES)
def test_an_exchange_takes_exactly_the_factors_it_says_from_the_source(name):
    task = FAMILIES[name]
    base, source = one_batch(task, "train", 128, 0), one_batch(task, "train", 128, 1)
    codes, mask = task.exchange(base.codes, source.codes, torch.Generator().manual_seed(0))
    done = mask.any(1)
    assert 0.2 < done.float().mean() <= 1
    ours, theirs, found = (task.factors(c) for c in (base.codes, source.codes, codes))
    for i, factor in enumerate(found):
        wanted = torch.where(mask[:, i : i + 1], theirs[factor], ours[factor])
        assert torch.equal(found[factor][done], wanted[done])
    shown = task.render(codes, base.inputs)
    assert (shown.composition[done] >= 0).all()
    assert (shown.composition[done] != base.composition[done]).all()
    assert (shown.composition[done] != source.composition[done]).all()
    held_out = [c in task.compositions("ood") for c in shown.composition[done].tolist()]
    assert any(held_out), "recombining training compositions reaches held-out ones"


@pytest.mark.parametrize("name", FAMILIES)
def test_equal_codes_cannot_be_exchanged(name):
    task = FAMILIES[name]
    base = one_batch(task, "train")
    _, mask = task.exchange(base.codes, base.codes, torch.Generator().manual_seed(0))
    assert not mask.any()


def test_a_family_without_factors_says_so():
    with pytest.raises(DoesNotApply, match="LinearRegression does not say which factors"):
        LinearRegression(d_x=3, n_context=4).factors({})


@pytest.mark.parametrize("name", ["hyperteacher", "unstructured", "fuzzy"])
def test_context_inputs_are_asked_beside_the_whole_context(name):
    task = FAMILIES[name]
    episodes = one_batch(task, "ood", 8)
    tokens, targets = task.context_asked(episodes)
    x, y = task.examples(episodes)
    shown, answers = y.shape[1], list(task.answers)
    asked = set()
    for j in range(tokens.shape[1]):
        assert torch.equal(tokens[:, j, :shown], episodes.tokens[:, :shown]), "the context stays"
        for a in answers:
            question = tokens[:, j, a, : x.shape[2]]
            (which,) = [i for i in range(shown) if torch.equal(question, x[:, i])]
            assert torch.equal(targets[:, j, a], y[:, which])
            assert (tokens[:, j, a, x.shape[2] :] == episodes.tokens[:, answers[0], x.shape[2] :]).all(), "no answer is shown"
            asked.add(which)
    assert asked == set(range(shown))


def test_families_whose_examples_are_no_pairs_cannot_ask_them(right_executor):
    assert Relations().context_asked(None) is None


# ---- sites ----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("fixture", ["tiny_models", "tiny_categorical_models", "tiny_regression_models"])
def test_putting_back_what_stands_there_changes_nothing(fixture, request):
    for folder in request.getfixturevalue(fixture).values():
        trained = load(folder)
        episodes = one_batch(trained.task, "ood", 4)
        where, at = sites(trained.model), list(trained.task.answers)
        (seen,) = record(trained.model, [episodes], list(dict.fromkeys(site.hook_name for site in where)))
        for site in where:
            found = put(trained.model, episodes.tokens, site, seen.sites[site.hook_name])
            torch.testing.assert_close(found[:, at], seen.prediction[:, at], atol=1e-5, rtol=1e-5)


def test_many_episodes_are_answered_in_pieces_and_as_a_hook_sees_them(tiny_models, monkeypatch):
    trained = load(tiny_models["softmax"])
    model, episodes, at = trained.model, one_batch(trained.task, "ood", 9), list(trained.task.answers)
    (seen,) = record(model, [episodes], ["blocks.0.hook_resid_post"])
    changed = seen.sites["blocks.0.hook_resid_post"].roll(1, 0)
    whole = intervene(model, episodes, {"blocks.0.hook_resid_post": changed})
    monkeypatch.setitem(put.__globals__, "ROWS", 4)
    for site in (site for site in sites(model) if site.hook_name == "blocks.0.hook_resid_post"):
        with torch.no_grad():
            assert torch.allclose(put(model, episodes.tokens, site, changed)[:, at], whole[:, at], atol=1e-5)
            looked: list = []
            with model.hooks(fwd_hooks=[("blocks.1.hook_resid_post", lambda x, hook, looked=looked: looked.append(x.shape))]):
                assert torch.allclose(put(model, episodes.tokens, site, changed), whole, atol=1e-5)
        assert looked == [seen.sites[site.hook_name].shape], "a hook is shown every position of every episode"


def test_blocks_before_a_site_are_not_computed(tiny_models):
    trained = load(tiny_models["softmax"])
    episodes, seen = one_batch(trained.task, "ood", 4), []
    (here,) = record(trained.model, [episodes], ["blocks.0.hook_resid_post"])
    with trained.model.hooks([(f"blocks.{i}.hook_resid_pre", lambda t, hook: seen.append(hook.name)) for i in (0, 1)]):
        put(
            trained.model,
            episodes.tokens,
            Site(1, "blocks.0.hook_resid_post", "context"),
            here.sites["blocks.0.hook_resid_post"],
        )
    assert seen == ["blocks.1.hook_resid_pre"]


def test_positions_of_a_union_and_of_a_wrong_role(tiny_models):
    model = load(tiny_models["softmax"]).model
    assert positions(model, EVERYWHERE) == list(range(9))
    with pytest.raises(ConfigError, match=r"no token role 'contxt'.*context"):
        positions(model, "contxt+readout")


# ---- writing ---------------------------------------------------------------------------------------------------------
def test_a_code_written_where_nothing_else_is_known_leaves_nothing_of_the_context(right_executor):
    task, model = right_executor
    (at,) = fit_codes(model, task, [one_batch(task, "train", 256, 1)], [CODE])
    episodes, others = one_batch(task, "ood", seed=2), one_batch(task, "ood", seed=3)
    code = code_features(task, episodes.codes)
    swapped = episodes.tokens.clone()
    swapped[:, : task.n_context] = others.tokens[:, : task.n_context]
    one = written(model, episodes, at, code)
    other = written(model, episodes._replace(tokens=swapped), at, code)
    torch.testing.assert_close(one[:, task.n_context :], other[:, task.n_context :], atol=1e-4, rtol=1e-4)
    by_hand = at.writer.eraser.mean + (code - at.writer.mean) @ at.writer.weight
    expected = model.execute(by_hand[:, None].float(), episodes.tokens)
    torch.testing.assert_close(one, expected, atol=1e-4, rtol=1e-4)


def test_readouts_are_chosen_on_compositions_they_did_not_see(right_executor):
    task, model = right_executor
    batches = [one_batch(task, "train", 256, 1)]
    found = fit_codes(model, task, batches, sites(model))
    assert all(at.left_out < 1 for at in found)
    decoded = found[0].decode(
        model, next(iter(record(model, batches, [found[0].site.hook_name]))).sites[found[0].site.hook_name]
    )
    assert decoded.shape == (256, 6)


def test_a_held_out_composition_is_read_by_what_was_fitted_to_all_others(tiny_models):
    trained = load(tiny_models["softmax"])
    model, task = trained.model, trained.task
    train, others, shown = (one_batch(task, *of) for of in (("train", 64, 1), ("ood", 64, 2), ("ood", 24, 3)))
    where = [Site(1, "blocks.0.hook_resid_post", "context"), Site(2, "blocks.1.hook_resid_post", "readout")]
    codes = fit_codes(model, task, [train], where)
    seen = [next(iter(record(model, [batch], [site.hook_name for site in where]))) for batch in (train, others, shown)]
    found = readings(model, task, codes, seen[2:], [others])
    for at, (code,) in zip(codes, found, strict=True):
        x = [one.sites[at.site.hook_name][:, positions(model, at.site.role)].mean(1).double() for one in seen]
        y = [code_features(task, one.episodes.codes) for one in seen]
        for c in shown.composition.unique():
            kept = others.composition != c
            assert not kept.all(), "otherwise nothing is left out"
            fitted = make_pipeline(StandardScaler(), Ridge(at.readout.l2))
            fitted.fit(torch.cat([x[0], x[1][kept]]), torch.cat([y[0], y[1][kept]]))
            here = shown.composition == c
            np.testing.assert_allclose(code[here], fitted.predict(x[2][here]), rtol=1e-6, atol=1e-8)
    alone = readings(model, task, codes, seen[2:], [])
    for at, (code,) in zip(codes, alone, strict=True):
        torch.testing.assert_close(code, at.decode(model, seen[2].sites[at.site.hook_name]), atol=1e-8, rtol=1e-6)


# ---- searching -------------------------------------------------------------------------------------------------------
def searched(task, model, split="ood", seed=4):
    (at,) = fit_codes(model, task, [one_batch(task, "train", 256, 1)], [CODE])
    episodes = one_batch(task, split, 48, seed)
    starts = [
        torch.full((48, 6), 0.3, dtype=torch.float64),
        torch.rand(48, 6, generator=torch.Generator().manual_seed(0)).double(),
    ]
    found = best_code(model, task, episodes, at, starts, Search(300, 0.3))
    return found, task.score(found.prediction, episodes.targets)


def test_the_best_code_through_the_teacher_itself_answers_fresh_questions(right_executor):
    task = Hyperteacher(d_x=4, d_y=2, d_hidden=6, n_modules=6, n_context=24, n_queries=3)
    torch.manual_seed(0)
    model = HypernetworkTransformer(n_layers=1, d_model=16, n_heads=2, d_code=6, d_hidden=6).build(**task.dimensions)
    with torch.no_grad():
        model.executor.W_modules.copy_(task.teacher[0])
        model.executor.W_out.copy_(task.teacher[1])
        model.executor.b_out.zero_()
    site = Site(2, "hook_code", "all")
    (at,) = fit_codes(model, task, [one_batch(task, "train", 128, 1)], [site])
    episodes = one_batch(task, "ood", 32, 4)
    codes = code_features(task, one_batch(task, "train", 32, 5).codes)
    starts = [torch.full((32, 6), 0.3, dtype=torch.float64), *(codes.roll(i, 0) for i in range(5))]
    found = best_code(model, task, episodes, at, starts, Search(300, 0.3))
    assert (found.width, found.fitted) == (6, 24 * 2)
    assert task.score(found.prediction, episodes.targets) > 0.97
    own = task.score(model(episodes.tokens), episodes.targets)
    assert own < 0.5, "the encoder knows nothing"


def test_no_code_helps_an_executor_that_was_never_trained(right_executor):
    task, _ = right_executor
    torch.manual_seed(0)
    model = HypernetworkTransformer(n_layers=2, d_model=16, n_heads=2, d_code=6, d_hidden=6).build(**task.dimensions).eval()
    found, score = searched(task, model)
    assert score < 0.5
    assert (found.fit < 1).any(), "though it fits the few values it was fitted to"


def test_a_search_changes_no_weights_and_leaves_no_gradients(right_executor):
    task, model = right_executor
    before = {name: value.clone() for name, value in model.state_dict().items()}
    searched(task, model)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(p.grad is None for p in model.parameters())


def test_a_family_that_cannot_ask_its_context_has_no_best_code(tiny_categorical_models):
    trained = load(tiny_categorical_models["sparse"])
    (at,) = fit_codes(trained.model, trained.task, [one_batch(trained.task, "train", 64)], sites(trained.model)[-1:])
    with pytest.raises(DoesNotApply, match="Relations cannot ask what its context shows"):
        best_code(trained.model, trained.task, one_batch(trained.task, "ood", 4), at, [torch.zeros(4, 16)], Search(1))


def test_the_ladder_says_why_a_rung_is_missing(tiny_categorical_models):
    probe = load_recipe("probes", "inference_or_execution")
    table, _ = probe(load(tiny_categorical_models["raven-softmax"]), episodes=32, fitted=64, searched=8, search_steps=2)
    missing = table[(table["rung"] == "best code")]
    assert len(missing) and missing["value"].isna().all()
    assert set(missing["control"]) == {"not available"}
    assert missing["note"].str.startswith("not available: writing another code moves the answers").all()
