"""Recording and intervening: what a hook point saw, nothing else, and edits that reach the answer and nothing else."""

import pytest
import torch

from compolens.activations.sites import Site, at_answers, at_role, put, residual_sites
from compolens.activations.streams import draw, intervene, record
from compolens.foundation.configs import ConfigError
from compolens.foundation.memory import TooLarge
from compolens.models import SoftmaxTransformer
from compolens.tasks import SPLITS, BooleanFunctions
from compolens.training import Run
from compolens.zoo.folders import load

SITES = ["blocks.0.hook_resid_pre", "blocks.1.attn.hook_pattern", "blocks.1.hook_resid_post", "ln_final.hook_normalized"]


@pytest.fixture(params=["softmax", "hypernetwork"])
def trained(request, tiny_models):
    return load(tiny_models[request.param])


@pytest.fixture
def episodes(tiny_task):
    (batch,) = draw(tiny_task, "ood", 12, seed=0)
    return batch


def rows(episodes):
    return {tuple(row) for row in episodes.inputs.flatten(1).tolist()}


def test_episodes_that_no_memory_holds_the_answers_of_are_refused(tiny_task):
    with pytest.raises(TooLarge, match=f"episodes={10**15} takes .* ask for fewer"):
        next(draw(tiny_task, "ood", 10**15, seed=0))


# ---- record ----------------------------------------------------------------------------------------------------------
def test_record_gives_what_run_with_cache_gives(trained):
    batches = list(draw(trained.task, "test", 10, seed=1, batch=4))
    recorded = list(record(trained.model, batches, SITES))
    assert [len(r.prediction) for r in recorded] == [4, 4, 2]
    for batch, result in zip(batches, recorded, strict=True):
        prediction, cache = trained.model.run_with_cache(batch.tokens, names_filter=SITES)
        assert list(result.sites) == SITES and result.episodes is batch
        assert torch.equal(result.prediction, prediction)
        assert all(torch.equal(result.sites[site], cache[site]) for site in SITES)


def test_what_is_recorded_carries_no_gradient_and_the_caller_keeps_its_own(trained, episodes):
    for result in record(trained.model, [episodes], SITES):
        assert torch.is_grad_enabled()
        assert not result.prediction.requires_grad and not any(a.requires_grad for a in result.sites.values())
    assert trained.model(episodes.tokens).requires_grad


def test_record_takes_batches_one_at_a_time(trained, episodes):
    taken = []

    def batches():
        for k in range(3):
            taken.append(k)
            yield episodes

    stream = record(trained.model, batches(), SITES[:1])
    assert taken == []
    next(stream)
    assert taken == [0]


def test_what_was_recorded_is_not_computed_again_but_a_site_that_it_lacks_is(trained, episodes, monkeypatch):
    first, second = list(residual_sites(trained.model).values())[:2]
    (seen,) = record(trained.model, episodes, [first, second])
    (other,) = record(trained.model, seen, ["hook_embed"])
    (own,) = record(trained.model, episodes, ["hook_embed"])
    assert torch.equal(other.sites["hook_embed"], own.sites["hook_embed"])

    def refuse(*args, **kwargs):
        raise AssertionError("a forward pass")

    monkeypatch.setattr(trained.model, "forward", refuse)
    (again,) = record(trained.model, [seen], [second])
    assert list(again.sites) == [second]
    assert torch.equal(again.sites[second], seen.sites[second]) and torch.equal(again.prediction, seen.prediction)


def test_record_leaves_no_hook_behind(trained, episodes):
    list(record(trained.model, [episodes], SITES))
    assert not any(point.fwd_hooks for point in trained.model.hook_dict.values())


def test_a_misspelt_site_is_refused(trained, episodes):
    with pytest.raises(ConfigError, match=r"did you mean 'blocks\.\d\.hook_resid_p"):
        next(record(trained.model, [episodes], ["blocks.0.hook_resid_pr"]))
    with pytest.raises(ConfigError, match="no hook point"):
        intervene(trained.model, episodes, {"blocks.9.hook_resid_pre": torch.zeros_like})


# ---- intervene -------------------------------------------------------------------------------------------------------
def test_intervening_equals_a_hook_written_by_hand(trained, episodes):
    edits = {"blocks.0.hook_resid_post": lambda a: a.flip(0), "blocks.1.attn.hook_pattern": lambda a: a * 0.5}
    by_hand = [(site, lambda a, hook, edit=edit: edit(a)) for site, edit in edits.items()]
    expected = trained.model.run_with_hooks(episodes.tokens, fwd_hooks=by_hand)
    result = intervene(trained.model, episodes, edits)
    assert torch.equal(result, expected) and not torch.equal(result, trained.model(episodes.tokens))


def test_an_edit_that_changes_nothing_changes_nothing(trained, episodes):
    result = intervene(trained.model, episodes, dict.fromkeys(SITES[:3], lambda a: a))  # a hooked norm rounds differently
    assert torch.equal(result, trained.model(episodes.tokens)) and not result.requires_grad


def test_an_edit_in_place_reaches_the_answer_but_not_its_neighbours(trained, episodes):
    def zero(activation):
        activation[:] = 0
        return activation

    seen = {}
    watch = [(site, lambda a, hook: seen.setdefault(hook.name, a)) for site in ("hook_embed", "blocks.0.hook_resid_pre")]
    with trained.model.hooks(fwd_hooks=watch):
        in_place = intervene(trained.model, episodes, {"blocks.0.hook_resid_pre": zero})
    replaced = intervene(trained.model, episodes, {"blocks.0.hook_resid_pre": torch.zeros_like})
    assert torch.equal(in_place, replaced) and not torch.equal(in_place, trained.model(episodes.tokens))
    _, cache = trained.model.run_with_cache(episodes.tokens)
    for site, activation in seen.items():  # these share storage with what was edited
        assert torch.equal(activation, cache[site])


def test_what_is_no_edit_is_named(trained, episodes):
    for edits, message in (
        ([(SITES[0], 0.0)], r"edits must be a mapping .* got a list; type intervene\("),
        ({SITES[0]: "zero"}, "must be a tensor or a function, got str"),
        ({SITES[0]: lambda x: "zero"}, "returned a str; return a tensor"),
    ):
        with pytest.raises(ConfigError, match=message):
            intervene(trained.model, episodes, edits)


def test_intervening_leaves_no_hook_behind_even_when_an_edit_fails(trained, episodes):
    with pytest.raises(ZeroDivisionError):
        intervene(trained.model, episodes, {SITES[0]: lambda a: 1 / 0})
    assert not any(point.fwd_hooks for point in trained.model.hook_dict.values())


# ---- token roles -----------------------------------------------------------------------------------------------------
def test_roles_read_the_first_answer_the_mean_context_or_everything(trained):
    length = 1 + max(trained.model.roles["readout"])
    activation = torch.rand(3, length, 2, 5)
    context, first = trained.model.roles["context"], trained.model.roles["readout"][0]
    assert torch.equal(at_role(activation, trained.model, "readout"), activation[:, first].reshape(3, 10))
    mean = sum(activation[:, p] for p in context) / len(context)
    torch.testing.assert_close(at_role(activation, trained.model, "context"), mean.reshape(3, 10))
    assert torch.equal(at_role(activation, trained.model, "all"), activation.reshape(3, -1))
    with pytest.raises(ConfigError, match=r"no token role 'readuot'; did you mean 'readout'\?"):
        at_role(activation, trained.model, "readuot")


def test_where_context_and_answers_take_turns_the_last_answer_is_read():
    """The first token of such a sequence is an answer that has seen no example."""
    task = BooleanFunctions(n_bits=3, n_context=4)
    model = Run(SoftmaxTransformer(n_layers=1, d_model=8, n_heads=2), task, steps=0).build()
    activation, answers = torch.rand(2, task.seq, 5), model.roles["readout"]
    assert len(answers) > 1 and answers[0] < max(model.roles["context"]) < answers[-1]
    assert torch.equal(at_role(activation, model, "readout"), activation[:, answers[-1]])
    both = sorted({*model.roles["context"], *answers})
    torch.testing.assert_close(at_role(activation, model, "context+readout"), activation[:, both].mean(1))


def test_residual_sites_join_up_from_embedding_to_final_norm(trained, episodes):
    sites = residual_sites(trained.model)
    assert list(sites) == [0, 1, 2] and trained.model.cfg.n_layers == 2
    _, cache = trained.model.run_with_cache(episodes.tokens)
    assert torch.equal(cache[sites[0]], cache["hook_embed"])
    for layer in (0, 1):
        added = cache[f"blocks.{layer}.hook_attn_out"] + cache[f"blocks.{layer}.hook_mlp_out"]
        torch.testing.assert_close(cache[sites[layer + 1]], cache[sites[layer]] + added)


def test_what_is_put_at_another_hook_point_than_the_stream_is_written_there(trained, episodes):
    for name in ("blocks.0.hook_attn_out", "blocks.1.hook_resid_pre"):
        (seen,) = record(trained.model, [episodes], name)
        other = seen.sites[name].roll(1, 0)
        answer = put(trained.model, episodes.tokens, Site(1, name, "all"), other)
        assert torch.equal(answer, intervene(trained.model, episodes, {name: other}))
        assert not torch.allclose(answer, seen.prediction)
    with pytest.raises(ConfigError, match=r"no hook point 'blocks\.0\.hook_resid_pots'"):
        put(trained.model, episodes.tokens, Site(1, "blocks.0.hook_resid_pots", "all"), other)


# ---- draw ------------------------------------------------------------------------------------------------------------
def test_drawing_is_a_function_of_seed_and_split(tiny_task):
    once, again = (list(draw(tiny_task, "test", 20, seed=7, batch=8)) for _ in range(2))
    assert [len(b.tokens) for b in once] == [8, 8, 4]
    assert all(torch.equal(a.tokens, b.tokens) for a, b in zip(once, again, strict=True))
    drawn = [
        set().union(*map(rows, draw(tiny_task, split, 20, seed, batch=8))) for seed in (7, 8, "7/fit") for split in SPLITS
    ]
    assert len(set().union(*drawn)) == sum(map(len, drawn)) == 9 * 20


@pytest.mark.parametrize("split", SPLITS)
def test_measuring_never_shows_what_training_drew_from_the_same_seed(tiny_task, split):
    for seed in (0, 3):
        measured = set().union(*map(rows, draw(tiny_task, split, 24, seed, batch=8)))
        for drawn_by in (seed, f"final/{seed}"):
            trained_on = [tiny_task.sample(8, split, tiny_task.rng(drawn_by, split, step)) for step in range(6)]
            assert not measured & set().union(*map(rows, trained_on))


def test_drawing_can_be_confined_to_compositions(tiny_task):
    chosen = tiny_task.compositions("ood")[1:]
    (batch,) = draw(tiny_task, "ood", 30, seed=0, compositions=chosen)
    assert set(batch.composition.tolist()) == set(chosen)


@pytest.mark.parametrize("n", [0, -2])
def test_drawing_no_episodes_is_refused(tiny_task, n):
    with pytest.raises(ConfigError, match=f"need at least one episode, got {n}"):
        list(draw(tiny_task, "test", n, seed=0))


def test_roles_of_a_part_of_the_sequence_or_along_another_axis_are_refused(trained):
    model, tokens = trained.model, next(draw(trained.task, "test", 4, 0)).tokens
    _, cache = model.run_with_cache(tokens)
    _, part = model.run_with_cache(tokens, pos_slice=slice(2, None))
    length = model.cfg.n_ctx
    for activation in (cache["pattern", 0], part["resid_post", 0], cache["resid_post", 0][:, 0, 0]):
        for read in (lambda x: at_role(x, model, "readout"), lambda x: at_answers(x, model)):
            with pytest.raises(ConfigError, match=rf"own sequence, {length} of them .* got an activation"):
                read(activation)
    assert at_role(cache["pattern", 0], model, "all").shape[0] == 4


@pytest.mark.parametrize("batch", [0, -3])
def test_batches_of_no_episode_are_refused(trained, batch):
    with pytest.raises(ConfigError, match=f"need at least one episode at once, got batch={batch}"):
        next(draw(trained.task, "test", 4, 0, batch=batch))


def test_record_says_what_it_takes(trained, episodes):
    said = r'record takes episodes, such as next\(draw\(task, "ood", 8, 0\)\), .* got a '
    for wrong, got in ((episodes.tokens, "Tensor"), (trained.task, "Hyperteacher"), ([episodes.tokens], "Tensor among")):
        with pytest.raises(ConfigError, match=said + got):
            next(record(trained.model, wrong, "hook_embed"))


def test_readers_of_roles_say_what_they_take(trained, episodes):
    model = trained.model
    _, cache = model.run_with_cache(episodes.tokens)
    activation, got = cache["hook_embed"], type(model).__name__
    with pytest.raises(ConfigError, match=rf"got a {got} and a Tensor; type at_answers\(activation, model\)"):
        at_answers(model, activation)
    with pytest.raises(ConfigError, match=rf"got a {got} and a Tensor; type at_role\(activation, model, role\)"):
        at_role(model, activation, "readout")
    with pytest.raises(ConfigError, match=r"type at_answers\(activation, trained\.model\)"):
        at_answers(activation, trained)


def test_draw_says_what_it_takes(trained):
    with pytest.raises(ConfigError, match=r"such as trained\.task; got TrainedModel"):
        next(draw(trained, "ood", 4, 0))
