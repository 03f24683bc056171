"""What every architecture and every task family promises, checked on all of them and on every pair."""

import dataclasses
import inspect
import itertools
import json
import math
import random
import typing

import numpy as np
import pytest
import torch

from compolens import tables
from compolens.activations.streams import intervene
from compolens.diagnosis import groups
from compolens.foundation.configs import ConfigError, classes_of, construct, describe
from compolens.models import (
    ARCHITECTURES,
    PARTS,
    Augmented,
    DoesNotApply,
    LearnedThreshold,
    NegativeSamples,
    OutputTransfer,
    RelativeTransfer,
)
from compolens.models.operands import full
from compolens.tasks import FAMILIES, SPLITS, FixedEpisodes, Hyperteacher
from compolens.tasks import PARTS as TASK_PARTS
from compolens.tasks.fixed.stored import StoredEpisodes
from compolens.training import DECAYS, RECIPES, AdamW, Run, check_folder
from compolens.training.machine import products
from compolens.zoo import read_run

SMALL_MODEL = {"n_layers": 2, "d_model": 16, "n_heads": 2, "d_code": 6, "d_hidden": 6, "n_ctx": 18, "init_scale": 1.0}
SMALL_TASK = {
    "d_x": 4,
    "d_y": 2,
    "d_hidden": 6,
    "n_modules": 6,
    "n_context": 6,
    "n_queries": 3,
    "n_features": 2,
    "length": 12,
    "patch": 4,
    "configurations": ("center_single",),
    "size": 4,
    "patches": 1,
    "n_examples": 2,
    "n_classes": 8,
    "n_labels": 8,
    "longest": 8,
    "features": 16,
}
FURTHER_MODELS = {
    "SoftmaxTransformer": [{"causal": True}, {"d_head": 5, "d_value": 3, "d_mlp": 7}, {"n_ctx": None}],
    "HYLA": [{"causal": True}, {"d_head": 5, "d_value": 3, "attention_dropout": 0.3}],
    "LinearSelfAttention": [{"tied": True, "damping": 0.75, "clip_tokens": 10.0}],
    "SoftmaxSelfAttention": [{"attends_to_itself": True}],
    "ConstructedGradientDescent": [{"gamma": 0.1}],
    "ModifiedTransformer": [{"modification": Augmented()}, {"modification": NegativeSamples()}],
    "OtherExecutorTransformer": [{"n_hidden": 1, "activation": "sine"}, {"activation": "tanh", "biases": True}],
    "SparseCoding": [
        {"threshold": LearnedThreshold(0.001), "relu_encoding": True, "relu_decoding": True},
        {"transfer": OutputTransfer(), "bias_free": True, "attn_only": True},
        {"transfer": RelativeTransfer(), "n_ctx": None},
    ],
}
WRITTEN_DOWN = ("ConstructedGradientDescent",)
"""Architectures whose weights are a formula: every seed builds the same ones."""
ROUNDED_ON = ("Hyperteacher", "Relations", "FewShot")
"""Families on which precision is looked at: it is the architecture's matter, and these have pairs, blocks and token ids."""
REASONS = ("needs a task of (input, answer) pairs", "needs a task whose tokens form blocks")
"""Why a pair of architecture and task may be left out; a pair that gives another reason fails."""


def small(cls, sizes, **settings):
    fields = {f.name for f in dataclasses.fields(cls)}
    return cls(**{k: v for k, v in sizes.items() if k in fields} | settings)


def all_models():
    for name, cls in ARCHITECTURES.items():
        for settings in [{}, *FURTHER_MODELS.get(name, [])]:
            tag = "-".join(
                [
                    name,
                    *(
                        f"{k}={v}" if isinstance(v, bool | int | float | None) else type(v).__name__
                        for k, v in settings.items()
                    ),
                ]
            )
            yield pytest.param(small(cls, SMALL_MODEL, **settings), id=tag)


@pytest.fixture(scope="module", params=all_models())
def architecture(request):
    return request.param


@pytest.fixture(scope="session")
def raven_folder(tmp_path_factory):
    """A folder of one configuration with eight combinations of rules, each with two train, a val and a test file."""
    folder, generator = tmp_path_factory.mktemp("raven") / "center_single", np.random.default_rng(0)
    folder.mkdir()
    every = itertools.product(itertools.product((0, 1), repeat=3), ("train", "train", "val", "test"))
    for number, (rules, subset) in enumerate(every):
        image = generator.integers(0, 256, (16, 4, 4), dtype=np.uint8).repeat(40, axis=1).repeat(40, axis=2)
        matrix = np.zeros((8, 9), dtype=np.uint8)
        matrix[0, [0, 4, 5]] = 1
        for row, rule in enumerate(rules, start=1):
            matrix[row, [rule, 5 + row]] = 1
        np.savez(folder / f"RAVEN_{number}_{subset}.npz", image=image, target=number % 8, meta_matrix=matrix)
    return str(folder.parent)


@pytest.fixture(scope="session")
def glue_folder(tmp_path_factory):
    """SST-2 with two train lines and one of dev of every length from 1 to 16 words."""
    folder = tmp_path_factory.mktemp("glue") / "SST-2"
    folder.mkdir()
    for file, copies in (("train.tsv", 2), ("dev.tsv", 1)):
        lines = [
            " ".join(f"word{(copy + 3 * i + length) % 11}" for i in range(length)) + f"\t{(length + copy) % 2}"
            for length in range(1, 17)
            for copy in range(copies)
        ]
        (folder / file).write_text("\n".join(["sentence\tlabel", *lines]) + "\n")
    return str(folder.parent)


@pytest.fixture(scope="session")
def fixed_folder(tmp_path_factory):
    """A folder of fixed episodes: 8 of every composition and split of a small hyperteacher, as pairs of input and answer."""
    family = small(Hyperteacher, SMALL_TASK)
    drawn = [
        (split, family.sample(8, split, family.rng(c, split), [c])) for split in SPLITS for c in family.compositions(split)
    ]
    tokens, targets, codes, composition = (
        torch.cat(parts)
        for parts in zip(*((e.tokens, e.targets, e.codes["modules"], e.composition) for _, e in drawn), strict=True)
    )
    folder, split = tmp_path_factory.mktemp("fixed") / "episodes", [split for split, _ in drawn for _ in range(8)]
    FixedEpisodes.write(
        folder, tokens=tokens, targets=targets, codes={"modules": codes}, composition=composition, split=split,
        answers=family.answers, d_x=family.d_x, mask=family.mask,
    )  # fmt: skip
    return str(folder)


SMALL_TASKS = {name: pytest.param(small(cls, SMALL_TASK), id=name) for name, cls in FAMILIES.items()}
looked_at_on_few = pytest.mark.parametrize("task", [SMALL_TASKS[name] for name in ROUNDED_ON], indirect=True, scope="module")


@pytest.fixture(scope="module", params=SMALL_TASKS.values())
def task(request):
    """A small member of every family; one that reads files gets a folder of them."""
    folders = {"Raven": "raven_folder", "FixedEpisodes": "fixed_folder", "Glue": "glue_folder"}
    name = folders.get(type(request.param).__name__)
    return request.param if name is None else dataclasses.replace(request.param, data=request.getfixturevalue(name))


def again(architecture, task):
    """The same model, to edit."""
    return Run(architecture, task).build().eval()


@pytest.fixture(scope="module")
def model(architecture, task):
    """Read only, as all that the tests of a pair share."""
    try:
        return again(architecture, task)
    except DoesNotApply as error:
        if not any(reason in str(error) for reason in REASONS):
            raise
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def episodes(task):
    return task.sample(16, "train", task.rng(0, "train"))


@pytest.fixture(scope="module")
def answered(model, episodes):
    """What the model answers, and every activation on the way."""
    return model.run_with_cache(episodes.tokens)


def perfect(task, targets):
    """The prediction that is right everywhere: the targets, or one-hot logits where those are classes."""
    if not targets.is_floating_point():
        return 50.0 * torch.nn.functional.one_hot(targets, task.d_out)
    width = max(0, task.d_out - targets.shape[-1])  # of what is said beside the answer: how unsure it is
    return torch.nn.functional.pad(targets, (0, width), value=-50.0)


def tensors(episodes):
    parts = {"tokens": episodes.tokens, "targets": episodes.targets, "inputs": episodes.inputs}
    parts |= {"composition": episodes.composition}
    parts |= {f"codes.{k}": v for k, v in episodes.codes.items()}
    return parts | {f"nuisances.{k}": v for k, v in episodes.nuisances.items()}


def assert_same(left, right):
    left, right = tensors(left), tensors(right)
    assert left.keys() == right.keys()
    assert [k for k in left if not torch.equal(left[k], right[k])] == []


def double(tensor):
    return tensor.double() if tensor.is_floating_point() else tensor


# ---- every pair ------------------------------------------------------------------------------------------------------
PROMISES = {}
"""What holds of every pair of architecture and task family: name -> a function of fixtures, which it asks for by name."""


def of_every_pair(promise):
    PROMISES[promise.__name__] = promise
    return promise


def test_a_pair_keeps_every_promise(architecture, task, model, episodes, answered):
    """One test for all promises: thousands of tests cost more than what they look at. Each broken one is shown."""
    given, broken = locals(), []
    for name, promise in PROMISES.items():
        try:
            promise(**{argument: given[argument] for argument in inspect.signature(promise).parameters})
        except Exception as error:
            error.add_note(f"broken: {name}")
            broken.append(error)
    if broken:
        raise ExceptionGroup("; ".join(error.__notes__[-1] for error in broken), broken)


@of_every_pair
def a_model_answers_at_every_position(answered, task):
    prediction, _ = answered
    assert prediction.shape == (16, task.seq, task.d_out)
    assert prediction.isfinite().all()


@of_every_pair
def computing_the_answers_alone_gives_the_same_answers(model, task, episodes, answered):
    prediction, cache = answered
    answers, last = list(task.answers), model.cfg.n_layers - 1
    ways = {"answer": model.answer(episodes.tokens)}
    if f"blocks.{last}.hook_resid_pre" in cache:
        ways["resume_answers"] = model.resume_answers(cache[f"blocks.{last}.hook_resid_pre"], last, episodes.tokens)
    near = 1e-3 * float(prediction.detach()[:, answers].abs().max())  # RMSHead magnifies what rounds differently
    for way, found in ways.items():
        away = float((found - prediction).detach()[:, answers].abs().max())
        assert away < near, f"{way} is {away} off: are weights `rowwise`? see docs/extending.md"


@of_every_pair
def every_parameter_gets_a_finite_gradient_that_is_not_zero(architecture, task, model, episodes):
    model = again(architecture, task).double()
    loss = task.loss(model(double(episodes.tokens)), double(episodes.targets))
    assert loss.shape == ()
    loss.backward()
    gradients = {name: p.grad for name, p in model.named_parameters()}
    assert all(g is not None and g.isfinite().all() for g in gradients.values())
    # a softmax ignores what is added to all scores of a query, hence the key's bias (proved in test_identities.py)
    silent = {name for name, g in gradients.items() if g.abs().max() < 1e-12}
    assert {name for name in silent if not name.endswith("attn.b_K")} == set()


def gradient_of(model, task, episodes, precision="float32"):
    model.zero_grad()
    with products(precision, "cpu"):
        prediction = full(model(episodes.tokens))
    task.loss(prediction, episodes.targets).backward()
    found = [p.grad for p in model.parameters() if p.grad is not None]
    model.zero_grad()
    assert all(gradient.dtype == torch.float32 for gradient in found)
    return torch.cat([gradient.flatten() for gradient in found])


@looked_at_on_few
def test_mixed_precision_moves_the_gradient_about_as_far_as_rounding_the_weights_does(architecture, task, model, episodes):
    """Codes normalised over two heads turn round where scores are near 0, so no fixed distance would do for all."""
    model = again(architecture, task)
    exact, mixed = (gradient_of(model, task, episodes, precision) for precision in ("float32", "bfloat16"))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(parameter.bfloat16())
    rounded = gradient_of(model, task, episodes)
    assert mixed.isfinite().all()
    from_mixed, from_rounded = (1 - torch.cosine_similarity(exact, other, dim=0) for other in (mixed, rounded))
    assert from_mixed < 0.05 + 40 * from_rounded, (from_mixed, from_rounded)


@looked_at_on_few
def test_normalisations_and_the_softmax_see_single_precision(model, task, episodes):
    seen = {}

    def note(tensor, hook):
        seen[hook.name] = tensor.dtype

    with (
        products("bfloat16", "cpu"),
        model.hooks([(lambda name: name.endswith(("hook_attn_scores", "hook_resid_post")), note)]),
    ):
        model(episodes.tokens)
    assert set(seen.values()) <= {torch.float32}, seen


@of_every_pair
def answers_depend_on_no_other_episode_of_the_batch(model, answered, episodes):
    prediction, _ = answered
    torch.testing.assert_close(model(episodes.tokens[:3]), prediction[:3], rtol=1e-4, atol=1e-5)


@of_every_pair
def attention_code_is_the_pattern_laid_out_batch_query_key_head(model, answered):
    patterns = [name for name in model.hook_dict if name.endswith("attn.hook_pattern")]
    codes = [name for name in model.hook_dict if name.endswith("attn.hook_code")]
    assert [name.replace("hook_pattern", "hook_code") for name in patterns] == codes
    _, cache = answered
    for pattern, code in zip(patterns, codes, strict=True):
        length = cache[pattern.replace("attn.hook_pattern", "hook_resid_pre")].shape[1]
        assert cache[code].shape == (16, length, length, model.cfg.n_heads)
        assert torch.equal(cache[code], cache[pattern].permute(0, 2, 3, 1))


@of_every_pair
def attention_code_holds_the_weights_that_multiply_the_values(model, answered):
    _, cache = answered
    for site in [name for name in model.hook_dict if name.endswith("attn.hook_code")]:
        layer = site.removesuffix("hook_code")
        if layer + "hook_pre" in cache:  # a value network: the code makes its first layer, per pair, and weighs its output
            made = torch.einsum("bqkh,bkhe->bqke", cache[site], cache[layer + "hook_v"])
            torch.testing.assert_close(cache[layer + "hook_pre"], made, rtol=1e-4, atol=1e-5)
            output = cache[layer + ("hook_post2" if layer + "hook_post2" in cache else "hook_post")]
            mixed = torch.einsum("bqkh,bqke->bqhe", cache[site], output)
        else:
            values = "hook_psi" if layer + "hook_psi" in cache else "hook_v"  # rectified atoms, where there are such
            mixed = torch.einsum("bqkh,bkhe->bqhe", cache[site], cache[layer + values])
        torch.testing.assert_close(cache[layer + "hook_z"], mixed, rtol=1e-4, atol=1e-5)


@of_every_pair
def a_task_code_is_laid_out_batch_1_code(model, answered):
    if "hook_code" in model.hook_dict:  # an explicit task code
        assert answered[1]["hook_code"].shape[:2] == (16, 1)


@of_every_pair
def zeroing_any_code_changes_the_answers(model, task, episodes, answered):
    sites = [name for name in model.hook_dict if name.split(".")[-1] == "hook_code"]
    assert sites, "every architecture has a code to look at and to edit"
    before = answered[0][:, list(task.answers)]
    for site in sites:
        after = intervene(model, episodes, {site: torch.zeros_like})[:, list(task.answers)]
        changed = (before - after).abs().amax(dim=(1, 2)) > 1e-6
        assert changed.float().mean() > 0.7, site  # a small executor may be silent (relu) on an episode's every query


@of_every_pair
def roles_name_positions_of_the_models_own_sequence(model, answered):
    length = answered[1]["blocks.0.hook_resid_pre"].shape[1]
    assert {"context", "readout"} <= set(model.roles)
    for positions in model.roles.values():
        assert positions and all(0 <= p < length for p in positions) and len(set(positions)) == len(positions)
    assert not set(model.roles["context"]) & set(model.roles["readout"])


@of_every_pair
def a_model_obeys_the_tasks_mask(model, task, episodes):
    if task.mask is None or not episodes.tokens.is_floating_point():
        return  # nothing is masked
    before, position = model(episodes.tokens), task.answers[-1]
    tokens = episodes.tokens.clone()
    tokens[:, position] += 1
    after = model(tokens)
    blind = [p for p in range(task.seq) if not task.mask[p, position]]
    assert blind
    assert torch.equal(before[:, blind], after[:, blind])
    assert not torch.equal(before[:, position], after[:, position])


def global_random_state():
    return torch.get_rng_state().tolist(), random.getstate(), np.random.get_state()[1].tolist()  # noqa: NPY002


@of_every_pair
def equal_runs_build_equal_weights_whatever_was_drawn_before_and_other_seeds_do_not(architecture, task, model, episodes):
    """Neither that nor answering touches the state that all share."""
    torch.rand(7)
    before = global_random_state()
    same, other = again(architecture, task), Run(architecture, task, init_seed=1).build()
    other.eval()(episodes.tokens)
    task.sample(2, "ood", task.rng(0, "ood"))
    assert global_random_state() == before
    weights = model.state_dict()
    assert all(torch.equal(weights[name], value) for name, value in same.state_dict().items())
    differ = any(not torch.equal(weights[name], value) for name, value in other.state_dict().items())
    assert differ != (type(architecture).__name__ in WRITTEN_DOWN)


# ---- every architecture, every task family ---------------------------------------------------------------------------
def survives_json(architecture, task):
    run = Run(architecture, task, steps=7, keep=(2, 5), optimizer=AdamW(lr=0.1, betas=(0.5, 0.6)))
    again = construct(json.loads(json.dumps(describe(run))), classes_of(run))
    assert again == run and hash(again) == hash(run)
    assert again.architecture == architecture and again.task == task


def is_a_value(thing):
    assert dataclasses.replace(thing) == thing and hash(dataclasses.replace(thing)) == hash(thing)
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(thing, dataclasses.fields(thing)[0].name, 3)


def test_an_architecture_is_a_value_and_a_run_of_it_survives_json(architecture):
    is_a_value(architecture)
    survives_json(architecture, Hyperteacher())


def test_every_family_says_what_it_draws_and_from_what(task):
    with pytest.raises(ConfigError, match=r"must be a torch.Generator, such as task.rng\(0, 'ood'\); got 0"):
        task.sample(4, "ood", 0)
    for n in (0, 2.0):
        with pytest.raises(ConfigError, match=f"need at least one episode, got n={n}"):
            task.sample(n, "ood", task.rng(0, "ood"))


def test_a_task_family_is_a_value_and_a_run_on_it_survives_json(task):
    is_a_value(task)
    survives_json(ARCHITECTURES["SoftmaxTransformer"](), task)


# ---- every task family -----------------------------------------------------------------------------------------------
def test_episodes_have_the_shapes_the_family_announces(task):
    assert set(task.code_kinds.values()) <= {"continuous", "categorical"}
    assert task.answers and all(0 <= p < task.seq for p in task.answers)
    for split in SPLITS:
        episodes = task.sample(5, split, task.rng(0, split))
        assert episodes.tokens.shape in {(5, task.seq, task.d_in), (5, task.seq)}, split
        assert episodes.targets.shape[:2] == (5, task.seq), split
        assert episodes.composition.shape == (5,), split
        assert set(task.code_kinds) == set(episodes.codes), split
        assert all(len(part) == 5 for part in tensors(episodes).values()), split


def test_episodes_are_a_function_of_seed_split_and_step(task):
    def draw(split, seed, step, family=task):
        return family.sample(8, split, family.rng(seed, split, step))

    for split in SPLITS:
        assert_same(draw(split, 1, 2), draw(split, 1, 2, dataclasses.replace(task)))
        assert not torch.equal(draw(split, 1, 2).inputs, draw(split, 2, 2).inputs), split
        assert not torch.equal(draw(split, 1, 2).inputs, draw(split, 1, 3).inputs), split


def test_splits_share_no_randomness_even_with_equal_seeds(task):
    """Of inputs that are few, such as short sequences of digits, two splits may draw the same one by chance; not in step."""
    drawn = {split: task.sample(64, split, task.rng(0, split)).inputs.flatten(1) for split in SPLITS}
    by_chance = not (drawn["train"].is_floating_point() or isinstance(task, StoredEpisodes))
    for one, other in itertools.combinations(SPLITS, 2):
        in_step = (drawn[one] == drawn[other]).all(1).sum()
        assert in_step < 32, (
            f"{in_step} of 64 inputs of {one!r} and {other!r} are equal: draw all from rng, which knows the split"
        )
        common = {tuple(row) for row in drawn[one].tolist()} & {tuple(row) for row in drawn[other].tolist()}
        assert by_chance or not common, f"{one!r} and {other!r} have inputs in common: {list(common)[:2]}"


def test_held_out_compositions_are_disjoint_from_those_trained_on(task):
    train, test, ood = (task.compositions(split) for split in SPLITS)
    assert train == test and train and ood and not set(train) & set(ood)
    for split in SPLITS:
        drawn = task.sample(300, split, task.rng(0, split)).composition.tolist()
        assert set(drawn) == set(task.compositions(split))


def test_names_of_compositions_are_distinct(task):
    names = [task.composition_name(c) for split in ("train", "ood") for c in task.compositions(split)]
    assert len(set(names)) == len(names)


def test_episodes_can_be_confined_to_chosen_compositions(task):
    for split in SPLITS:
        chosen = task.compositions(split)[-1]
        assert set(task.sample(20, split, task.rng(0, split), compositions=[chosen]).composition.tolist()) == {chosen}, split


def test_a_composition_of_another_split_is_refused(task):
    held_out, seen = task.compositions("ood")[0], task.compositions("train")[0]
    for split, wrong in (("train", held_out), ("test", held_out), ("ood", seen)):
        with pytest.raises(ConfigError, match=f"composition {wrong} is not in split '{split}'"):
            task.sample(2, split, task.rng(0, split), compositions=[wrong])


def test_an_unknown_split_is_refused_with_the_nearest(task):
    with pytest.raises(ConfigError, match="did you mean 'train'"):
        task.rng(0, "trian")
    with pytest.raises(ConfigError, match="did you mean 'train'"):
        task.sample(2, "trian", task.rng(0, "train"))
    with pytest.raises(ConfigError, match="no split"):
        task.compositions("validation")


def test_no_episodes_are_refused(task):
    with pytest.raises(ConfigError):
        task.sample(0, "train", task.rng(0, "train"))


def test_rendering_an_episodes_own_code_reproduces_it(task):
    for split in SPLITS:
        episodes = task.sample(16, split, task.rng(0, split))
        if "render" in task.missing:
            with pytest.raises(ConfigError, match="cannot render"):
                task.render(episodes.codes, episodes.inputs)
        else:
            assert_same(task.render(episodes.codes, episodes.inputs), episodes)


def test_rendering_under_other_codes_keeps_the_inputs_and_changes_the_answers(task, episodes):
    if "render" in task.missing:
        pytest.skip(task.missing["render"])
    other = {name: code.roll(1, 0) for name, code in episodes.codes.items()}
    rendered = task.render(other, episodes.inputs)
    assert torch.equal(rendered.inputs, episodes.inputs)
    assert torch.equal(rendered.composition, episodes.composition.roll(1))
    moved = [i for i in range(16) if rendered.composition[i] != episodes.composition[i]]
    changed = (rendered.targets != episodes.targets).flatten(1).any(1)
    assert moved and changed[moved].all()


def test_right_answers_score_1(task, episodes):
    assert task.score(perfect(task, episodes.targets), episodes.targets) == pytest.approx(1, abs=1e-9)


def test_the_score_pools_errors_and_weights(task, episodes):
    prediction = task.sample(16, "test", task.rng(0, "test")).targets
    prediction = prediction if prediction.is_floating_point() else perfect(task, prediction)
    error, weight = task.errors(prediction, episodes.targets)
    assert error.shape == weight.shape == (16,) and error.dtype == weight.dtype == torch.float64
    assert task.score(prediction, episodes.targets) == pytest.approx(float(1 - error.sum() / weight.sum()))
    one_by_one = [task.errors(prediction[i : i + 1], episodes.targets[i : i + 1]) for i in range(16)]
    torch.testing.assert_close(torch.cat([e for e, _ in one_by_one]), error)
    torch.testing.assert_close(torch.cat([w for _, w in one_by_one]), weight)


def test_score_and_loss_read_the_answer_positions_alone(task, episodes):
    prediction = perfect(task, episodes.targets).clone()
    elsewhere = [p for p in range(task.seq) if p not in task.answers]
    prediction[:, elsewhere] = 1e3
    assert task.score(prediction, episodes.targets) == pytest.approx(1, abs=1e-9)
    assert task.loss(prediction, episodes.targets) < 1e-6


def test_each_tasks_mean_answer_scores_0(task):
    """R²: the predictor that knows the mean answer of every task, and nothing of the inputs, is the zero of the scale."""
    if task.score_name != "R²" or "render" in task.missing:
        pytest.skip("another scale")
    episodes = task.sample(1500, "test", task.rng(0, "test"))
    fresh = (task.sample(1500, "test", task.rng(1, "test", k)).inputs for k in range(40))
    mean = torch.stack([task.render(episodes.codes, x).targets.mean(1, keepdim=True) for x in fresh]).mean(0)
    prediction = mean.expand_as(episodes.targets)
    error, weight = task.errors(prediction, episodes.targets)
    standard_error = float((error - weight).std() / weight.mean()) / 1500**0.5
    assert standard_error < 0.05
    assert abs(task.score(prediction, episodes.targets)) < 4 * standard_error + 1 / (40 * task.seq)


def test_the_raw_statistic_is_read_off_what_the_model_sees(task, episodes):
    statistic = task.raw_statistic(episodes)
    assert statistic.shape[0] == 16 and statistic.ndim == 2 and statistic.dtype == torch.float64
    blinded = episodes._replace(targets=episodes.targets * 0, codes={}, inputs=episodes.inputs * 0)
    assert torch.equal(task.raw_statistic(blinded), statistic)


def test_moving_episodes_moves_every_tensor(task, episodes):
    assert {part.device.type for part in tensors(episodes.to("meta")).values()} == {"meta"}
    assert_same(episodes.to("cpu"), episodes)


def test_what_a_split_holds_out_is_json(task):
    description = task.describe_split()
    assert json.loads(json.dumps(description)) == description


LATER = ("BooleanFunctions", "Glue", "RepresentationRegression", "UncertainRegression")
"""Families with a setting in words of their own that no folder of version 0.1 has, so that every folder of theirs holds it."""


def test_a_setting_says_what_was_asked_without_seeds_also_of_folders_that_do_not_hold_it(task, tmp_path):
    seeds = {field.name: 7 for field in dataclasses.fields(task) if field.name.endswith("seed")}
    assert task.setting.split()[0] == type(task).__name__ and dataclasses.replace(task, **seeds).setting == task.setting
    run = Run(ARCHITECTURES["SoftmaxTransformer"](), task)
    for name, config in (("new", run.config()), ("old", {"format": 1, "run": describe(run)})):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(json.dumps(config))
        assert read_run(tmp_path / name) == run
        check_folder(run, tmp_path / name)
    old, new = (tables.settings(tmp_path / name) for name in ("old", "new"))
    assert groups.setting_of(new) == task.setting
    if type(task).__name__ in LATER:
        return
    assert groups.setting_of(old) == task.setting
    assert new.items() - old.items() >= {("task.setting", task.setting)} and new.keys() - old.keys() == {"task.setting"}
    (one,) = groups.group([tmp_path / "new", tmp_path / "old"])
    assert one.setting == task.setting


# ---- bad settings ----------------------------------------------------------------------------------------------------
DESCRIBED = [*ARCHITECTURES.values(), *PARTS.values(), *FAMILIES.values(), *TASK_PARTS.values(), *RECIPES, *DECAYS, Run]
NO_SETTINGS = ["x", "", None, True, -1, 0, 1.5, float("nan"), float("inf"), [], ["x"], {}]


@pytest.mark.parametrize("cls", DESCRIBED, ids=lambda cls: cls.__name__)
def test_a_setting_of_any_kind_is_taken_or_refused_in_words(cls):
    """What is no number, no list or no description is never first noticed by an operator."""
    needed = {"architecture": ARCHITECTURES["SoftmaxTransformer"](), "task": Hyperteacher()} if cls is Run else {}
    for field in dataclasses.fields(cls):
        for value in NO_SETTINGS:
            try:
                cls(**needed | {field.name: value})
            except ConfigError as error:
                assert any(word in str(error) for word in (repr(value), str(value), "'x'", field.name))


@pytest.mark.parametrize("cls", DESCRIBED, ids=lambda cls: cls.__name__)
def test_a_number_is_a_finite_number(cls):
    numbers = [field.name for field in dataclasses.fields(cls) if str(field.type).startswith(("float", "<class 'float'"))]
    for name in numbers:
        for value in ("x", True, float("nan"), float("inf"), [1.0]):
            with pytest.raises(ConfigError, match=rf"{cls.__name__}: {name} must be a finite number.*, got "):
                cls(**{name: value})


NO_TRUTH, NO_WHOLE = ("", "false", "1", 0, 1, -math.inf, [], b""), (1.5, "4", True, 10**30, -(10**30), [1], b"1")
OF_ANOTHER_KIND = {
    bool: NO_TRUTH,
    int: NO_WHOLE,
    float: ("1", True, 10**40, 10**400, -math.inf, [1.0]),
    str: (3, b"x", [], None),
}


@pytest.mark.parametrize("cls", DESCRIBED, ids=lambda cls: cls.__name__)
def test_a_setting_holds_what_its_annotation_says_however_the_value_would_count(cls):
    """By its truth, "false" would be a causal model; an error is a ValueError and a TypeError at once."""
    hints = typing.get_type_hints(cls)
    needed = {"architecture": ARCHITECTURES["SoftmaxTransformer"](), "task": Hyperteacher()} if cls is Run else {}
    for field in dataclasses.fields(cls):
        for value in OF_ANOTHER_KIND.get(hints[field.name], ()):
            with pytest.raises(ConfigError) as caught:
                cls(**needed | {field.name: value})
            assert field.name in str(caught.value) and "\n" not in str(caught.value)
