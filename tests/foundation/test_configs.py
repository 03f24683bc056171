"""Descriptions: JSON and back for everything that is a value, and a refusal, in one line, of everything else."""

import dataclasses
import json
import sys
from dataclasses import dataclass
from functools import partial
from typing import Literal

import pytest

from compolens import AdamW, BottleneckMLP, HypernetworkTransformer, Hyperteacher, Run, SoftmaxTransformer, UnstructuredTeacher
from compolens.foundation.configs import ConfigError, WrongKind, classes_of, construct, describe, frozen, nearest
from compolens.foundation.memory import TooLarge
from compolens.models import ARCHITECTURES
from compolens.tasks import FAMILIES, PARTS
from compolens.training import RECIPES, memory, train

CLASSES = [Run, *RECIPES, *ARCHITECTURES.values(), *FAMILIES.values(), *PARTS.values()]


def having(*settings):
    """The architectures with these settings: those whose tokens are the residual stream have no width of their own."""
    kinds = ((cls, {field.name for field in dataclasses.fields(cls)}) for cls in ARCHITECTURES.values())
    return [cls for cls, names in kinds if names >= set(settings)]


RUN = Run(SoftmaxTransformer(), Hyperteacher())


def described(**changes):
    return json.loads(json.dumps(describe(RUN))) | changes


def refusal(description, classes=CLASSES):
    """The message, which is one line."""
    with pytest.raises(ConfigError) as caught:
        construct(description, classes)
    message = str(caught.value)
    assert "\n" not in message
    return message


# ---- there and back --------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "value",
    [
        RUN,
        Run(HypernetworkTransformer(d_code=3), UnstructuredTeacher(), steps=0, keep=(0,), data_device="cuda:1"),
        Run(BottleneckMLP(d_head=7), Hyperteacher(n_modules=3, support=((0, 1), (1, 2)), held_out=((0, 2),))),
        AdamW(betas=(0.1, 0.2)),
        Hyperteacher(support="random", fraction_held_out=0.5),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_value_survives_json(value):
    again = construct(json.loads(json.dumps(describe(value))), CLASSES)
    assert again == value and type(again) is type(value) and hash(again) == hash(value)


def test_a_description_names_its_class_and_every_setting():
    assert describe(AdamW()) == {
        "class": "AdamW", "lr": 1e-3, "betas": [0.9, 0.98], "weight_decay": 0.01, "warmup": 500, "final": 0.02, "clip": 1.0,
    }  # fmt: skip


def test_settings_left_out_take_their_defaults():
    assert construct({"class": "SoftmaxTransformer", "d_model": 32}, CLASSES) == SoftmaxTransformer(d_model=32)


def test_lists_become_tuples_all_the_way_down():
    assert frozen([1, [2, [3]], (4,)]) == (1, (2, (3,)), (4,))


@pytest.mark.parametrize("value", [object(), {1, 2}, 1j, SoftmaxTransformer])
def test_what_json_cannot_hold_is_not_described(value):
    with pytest.raises(ConfigError, match="cannot describe"):
        describe(value)


# ---- refusals --------------------------------------------------------------------------------------------------------
def test_an_unknown_class_is_refused_with_the_nearest_and_with_the_way_out():
    message = refusal(described(architecture={"class": "SoftmaxTransfomer"}))
    assert "unknown class 'SoftmaxTransfomer'" in message and "did you mean 'SoftmaxTransformer'" in message
    assert "classes=[SoftmaxTransfomer]" in message and "--with" in message


@pytest.mark.parametrize("name", [None, 3, "", "object", "ABC", "Architecture", ["Run"], {"class": "Run"}], ids=repr)
def test_a_class_must_be_one_of_those_handed_over(name):
    assert "unknown class" in refusal({"class": name})


def test_a_dictionary_without_a_class_is_refused():
    assert "unknown class None" in refusal(described(task={"d_x": 3}))


def test_a_class_that_is_not_handed_over_is_unknown():
    assert "unknown class 'Run'" in refusal(described(), classes=[SoftmaxTransformer])


def test_an_unknown_setting_is_refused_with_the_nearest():
    message = refusal({"class": "SoftmaxTransformer", "n_head": 4})
    assert message == "SoftmaxTransformer has no setting 'n_head'; did you mean 'n_heads' or 'd_head'?"


def test_an_unknown_setting_deep_inside_is_refused():
    description = described()
    description["task"]["n_module"] = 8
    assert "Hyperteacher has no setting 'n_module'" in refusal(description)


def test_a_missing_setting_is_refused():
    assert "task" in refusal({"class": "Run", "architecture": {"class": "SoftmaxTransformer"}})


@pytest.mark.parametrize(
    ("cls", "setting"),
    [
        pytest.param(cls, name, id=f"{cls.__name__}-{name}")
        for name in ("n_layers", "d_model", "n_heads")
        for cls in having(name)
    ],
)
@pytest.mark.parametrize("value", [0, -2, 1.5, True, "4"])
def test_sizes_are_whole_numbers_of_at_least_1(cls, setting, value):
    message = refusal({"class": cls.__name__, setting: value})
    at_least = " of at least 1" if type(value) is int else ""
    assert f"{setting} must be a whole number{at_least}, got {value!r}" in message


@pytest.mark.parametrize("setting", ["d_head", "d_mlp"])
@pytest.mark.parametrize("cls", having("d_head", "d_mlp"), ids=lambda cls: cls.__name__)
def test_optional_sizes_are_checked_as_well(cls, setting):
    assert f"{setting} must be a whole number" in refusal({"class": cls.__name__, setting: 0})


@pytest.mark.parametrize("cls", having("d_model", "n_heads"), ids=lambda cls: cls.__name__)
def test_heads_divide_the_width_unless_their_size_is_given(cls):
    message = refusal({"class": cls.__name__, "d_model": 64, "n_heads": 5})
    assert "5 heads do not divide d_model=64" in message and "give d_head" in message
    assert construct({"class": cls.__name__, "d_model": 64, "n_heads": 5, "d_head": 3}, CLASSES).d_head == 3


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"steps": -1}, "steps must not be negative"),
        ({"batch_size": 0}, "batch_size must be a whole number"),
        ({"evaluations": 0}, "evaluations must be a whole number"),
        ({"steps": 10, "keep": [3, 11]}, "keep names step 11, outside 0 to 10"),
        ({"steps": "many"}, "Run"),
        ({"optimizer": {"class": "AdamW", "lr": 0}}, "lr must be positive"),
        ({"optimizer": {"class": "AdamW", "warmup": -1}}, "must not be negative"),
        ({"optimizer": {"class": "AdamW", "betas": [0.9]}}, "betas must be a list of 2 finite numbers, got (0.9,)"),
        ({"optimizer": {"class": "AdamW", "betas": [0.9, 1]}}, "betas must be at least 0 and below 1, got [0.9, 1]"),
        ({"optimizer": {"class": "ReferenceAdamW", "final": 10**40}}, "final must be a finite number, got 1000"),
        ({"optimizer": {"class": "ReferenceAdamW", "final": 2}}, "final is a fraction of lr, from 0 to 1, got 2"),
        ({"task": {"class": "Hyperteacher", "fraction_held_out": -1}}, "fraction_held_out must lie between 0 and 1, got -1"),
        (
            {"task": {"class": "Hyperteacher", "n_modules": 10**7}},
            "more than 50,000 compositions, too many to list; lower n_modules",
        ),
        ({"task": {"class": "FuzzyLogic", "n_variables": 10**12}}, "n_variables=1000000000000 makes 2^1000000000000 terms"),
        ({"task": {"class": "SRaven", "n_features": 10**6}}, "lower n_features=1000000"),
        ({"task": {"class": "Relations", "n_left": 10**9, "n_right": 10**9}}, "lower n_left or n_right"),
        ({"task": {"class": "LinearRegression", "d_x": 10**7}}, "a covariance of d_x=10000000 inputs takes 800 TB or more"),
        (
            {"task": {"class": "LinearRegression", "prior": {"class": "MixturePrior", "centres": ["x"]}}},
            "list of lists of finite",
        ),
        ({"steps": 10**30}, "steps must be a whole number, got 1000000000000000000000000000000"),
        ({"init_seed": 10**30}, "init_seed must be a whole number"),
        ({"keep": [True]}, "keep must be a list of whole numbers, got (True,)"),
        ({"evaluations": 10**12}, "evaluations must be at most 1,000,000"),
        ({"data_device": "gpu"}, "data_device must be cpu, cuda, cuda:1, …, got 'gpu'"),
    ],
    ids=str,
)
def test_a_run_that_makes_no_sense_is_refused(changes, message):
    assert message in refusal(described(**changes))


# ---- sizes that cannot be meant ---------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("architecture", "name"),
    [
        (SoftmaxTransformer(n_layers=10**7), "n_layers=10000000"),
        (SoftmaxTransformer(n_layers=2**60), f"n_layers={2**60}"),
        (SoftmaxTransformer(d_mlp=10**12), "d_mlp=1000000000000"),
        (SoftmaxTransformer(d_head=2**63 - 1), f"d_head={2**63 - 1}"),
        (SoftmaxTransformer(n_ctx=10**6, causal=True), "n_ctx=1000000"),
        (HypernetworkTransformer(d_hidden=10**9), "d_hidden=1000000000"),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_a_model_larger_than_memory_is_refused_before_it_is_built(architecture, name):
    with pytest.raises(TooLarge, match=rf"takes .* or more, and this machine has .* largest setting is {name}") as caught:
        Run(architecture, Hyperteacher()).build()
    assert isinstance(caught.value, MemoryError) and isinstance(caught.value, ConfigError)


def test_a_batch_or_an_evaluation_larger_than_memory_is_refused_before_its_folder_is_made(tmp_path):
    for changes, said in (
        ({"batch_size": 10**9}, "batch_size=1000000000"),
        ({"evaluation_episodes": 10**12}, "episodes=1000"),
    ):
        with pytest.raises(TooLarge, match=said):
            train(dataclasses.replace(RUN, **changes), tmp_path / "run")
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize("settings", [{"d_hidden": 10**12}, {"d_y": 10**9}], ids=str)
def test_a_teacher_larger_than_memory_is_refused(settings):
    task = Hyperteacher(**settings)
    with pytest.raises(TooLarge, match=f"a teacher of .*{next(iter(settings))}=1000"):
        task.sample(1, "train", task.rng(0, "train"))


def test_a_long_episode_is_refused_before_its_mask_is_made():
    with pytest.raises(TooLarge, match=r"a mask of .* tokens takes"):
        Run(SoftmaxTransformer(), Hyperteacher(n_context=10**7)).build()


def test_what_a_model_takes_is_estimated_from_below():
    """An estimate that were too high would refuse what fits: compared with models that are small enough to be counted."""
    for architecture in (SoftmaxTransformer(n_layers=5), HypernetworkTransformer(n_layers=1), BottleneckMLP(n_layers=3)):
        dimensions = Hyperteacher().dimensions
        model = Run(architecture, Hyperteacher()).build()
        held = sum(tensor.nbytes for tensors in (model.parameters(), model.buffers()) for tensor in tensors)
        estimated = memory.taken(architecture, dimensions)
        modules = len(list(model.modules()))
        assert held <= estimated <= held + modules * memory.PER_MODULE


# ---- kinds ------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("value", ["", "false", 1, None, float("-inf")], ids=repr)
def test_a_setting_that_is_true_or_false_is_nothing_else(value):
    with pytest.raises(WrongKind, match="SoftmaxTransformer: causal must be true or false, got") as caught:
        SoftmaxTransformer(causal=value)
    assert isinstance(caught.value, TypeError) and isinstance(caught.value, ValueError)


@dataclass(frozen=True)
class Loose:
    """A class of a user's that checks nothing itself: what a description says of it is checked all the same."""

    size: int = None  # type: ignore[assignment]
    pairs: tuple[tuple[int, str], ...] = ()
    word: Literal["a", "b"] = "a"


def test_a_class_that_checks_nothing_is_checked_where_it_is_made_of_a_description():
    assert construct({"class": "Loose", "pairs": [[1, "x"]], "word": "b"}, [Loose]).size is None
    for wrong in ({"size": 1.5}, {"pairs": [[1, 2]]}, {"pairs": [[1]]}, {"word": "c"}):
        (name,) = wrong
        assert f"Loose: {name} must be" in refusal({"class": "Loose", **wrong}, [Loose])


def test_a_message_shows_the_ends_of_a_long_value():
    assert len(refusal({"class": "Loose", "size": "x" * 10**6}, [Loose])) < 300
    assert "about 501 digits" in refusal({"class": "Loose", "size": 10**500}, [Loose])


@pytest.mark.parametrize("part", ["architecture", "task", "optimizer"])
@pytest.mark.parametrize("value", [None, 3, "SoftmaxTransformer", described()], ids=["None", "3", "a string", "a run"])
def test_the_parts_of_a_run_are_what_they_should_be(part, value):
    assert part in refusal(described(**{part: value}))


# ---- nothing is executed ---------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Trap:
    """Building it is noticed."""

    built = 0
    value: int = 0

    def __post_init__(self):
        type(self).built += 1


def test_what_a_description_names_is_neither_imported_nor_built():
    for name in (
        "this",
        "this:s",
        "compolens.foundation.configs.ConfigError",
        "os.system",
        "builtins.eval",
        "Trap",
        "test_configs.Trap",
    ):
        refusal({"class": name})
    assert "this" not in sys.modules
    assert Trap.built == 0
    construct({"class": "Trap"}, [Trap])
    assert Trap.built == 1


def test_strings_that_look_like_code_stay_strings():
    with pytest.raises(ConfigError, match=r"no support .__import__"):
        construct({"class": "Hyperteacher", "support": "__import__('os').system('true')"}, CLASSES)


# ---- classes and functions of the caller's ----------------------------------------------------------------------------
@dataclass(frozen=True)
class Holder:
    made_by: object = None
    parts: tuple = ()


def made_here():
    return 3


def test_classes_and_functions_are_kept_by_name_and_found_among_those_handed_over():
    held = Holder(made_here, (dict, 2))
    description = describe(held)
    assert description == {"class": "Holder", "made_by": {"outside": "made_here"}, "parts": [{"outside": "dict"}, 2]}
    assert classes_of(held) == {Holder, made_here, dict}
    assert construct(description, classes_of(held)) == held


def test_those_that_are_not_handed_over_are_named_together_with_the_flag():
    with pytest.raises(ConfigError, match=r"--with FILE\.py:dict --with FILE\.py:made_here, or .*classes=\[dict, made_here\]"):
        construct(describe(Holder(made_here, (dict,))), [Holder])


def test_what_has_no_name_of_its_own_is_not_described():
    for value in (lambda: 3, [].append, partial(made_here), len):
        with pytest.raises(ConfigError, match="cannot describe"):
            describe(Holder(value))


def test_a_function_is_no_class_that_a_description_could_build():
    with pytest.raises(ConfigError, match="unknown class 'made_here'"):
        construct({"class": "made_here"}, [made_here])


# ---- hints -----------------------------------------------------------------------------------------------------------
def test_a_hint_names_the_nearest_or_lists_what_is_allowed():
    assert nearest("n_laeyrs", ["n_layers", "d_model"]) == "did you mean 'n_layers'?"
    assert nearest("zzz", ["b", "a"]) == "allowed: a, b"
    assert nearest("zzz", []) == "none is allowed here"
    assert nearest("zzz", map(str, range(20))).endswith(", …")
