"""The arms that tell architecture from prior knowledge: each differs from its reference in what the page says alone."""

import dataclasses
import sys
from pathlib import Path

import pytest

from compolens import HypernetworkTransformer, Hyperteacher, SoftmaxTransformer

ZOO = Path(__file__).parents[2] / "trained_models"
PAGE = " ".join((ZOO.parent / "docs" / "findings" / "hyperteacher.md").read_text(encoding="utf-8").split())
NAMES = ("given", "two-layers", "tanh", "code-16", "code-4")


@pytest.fixture(scope="module")
def tunings():
    sys.path.insert(0, str(ZOO))
    import arms_tuning

    yield arms_tuning.tunings
    sys.path.remove(str(ZOO))


def test_every_arm_is_told_with_what_is_expected_of_it(tunings):
    described = [name for tuning in tunings.values() for name in tuning.runs]
    assert sorted(described) == sorted(NAMES)
    assert all(f"| `{name}` | " in PAGE for name in NAMES)
    trained = sorted(path.parent.name for path in (ZOO / "arms").glob("*/scores.json"))
    assert trained or "None of the arms is trained yet." in PAGE


def test_executors_see_the_task_of_f_and_none_contains_the_teacher(tunings):
    named = {"n_hidden": 1, "activation": "relu"} | dataclasses.asdict(HypernetworkTransformer())
    for name, run in tunings["F-executors"].runs.items():
        assert run.task == Hyperteacher(teacher_seed=100, split_seed=100, validation=4)
        own = dataclasses.asdict(run.architecture)
        apart = {
            field
            for field, value in own.items()
            if value != named.get(field, {"n_hidden": 1, "activation": "relu"}.get(field))
        }
        assert apart == {"two-layers": {"n_hidden"}, "tanh": {"activation"}}.get(name, {"d_code"})


def test_the_code_is_given_to_the_vanilla_transformer_and_nothing_else_differs(tunings):
    (run,) = tunings["F-given"].runs.values()
    assert run.architecture == SoftmaxTransformer() and run.task.code_given
    assert dataclasses.replace(run.task, code_given=False) == next(iter(tunings["F-executors"].runs.values())).task
    episodes = run.task.sample(4, "ood", run.task.rng(0, "ood"))
    assert (episodes.tokens[..., -8:] == episodes.codes["modules"][:, None]).all()
