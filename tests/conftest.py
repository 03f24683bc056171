"""Small worlds that the tests share; one thread, no network, no display."""

import os
import time
from collections.abc import Callable
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["WANDB_MODE"] = "disabled"
os.environ["MPLBACKEND"] = "Agg"

import pytest
import torch

from compolens import HypernetworkTransformer, Hyperteacher, Run, SoftmaxTransformer, train
from compolens.models import (
    HYLA,
    FixedThreshold,
    LinearSelfAttention,
    RegularizedSelfAttention,
    RelativeTransfer,
    SoftmaxSelfAttention,
    SparseCoding,
)
from compolens.tasks import FuzzyLogic, LinearRegression, Relations, SRaven

torch.set_num_threads(1)


@pytest.fixture(scope="session")
def tiny_task():
    """6 modules, pairs held out: 0+3, 1+4, 2+5; episodes of 6 examples and 3 queries."""
    return Hyperteacher(d_x=4, d_y=2, d_hidden=6, n_modules=6, n_context=6, n_queries=3)


@pytest.fixture(scope="session")
def tiny_models(tiny_task, tmp_path_factory):
    """name -> folder of a model trained for two steps, with the weights of steps 0 and 1 kept. Read only: copy to edit."""
    sizes = {"n_layers": 2, "d_model": 16, "n_heads": 2}
    architectures = {
        "softmax": SoftmaxTransformer(**sizes),
        "hypernetwork": HypernetworkTransformer(**sizes, d_code=6, d_hidden=12),
    }
    return train_tiny(tmp_path_factory.mktemp("models"), {name: (a, tiny_task) for name, a in architectures.items()})


@pytest.fixture(scope="session")
def tiny_categorical_models(tmp_path_factory):
    """The same on families whose code is categorical: S-RAVEN with two features, fuzzy logic, relations. Read only, too."""
    sizes, raven = {"n_layers": 2, "d_model": 16, "n_heads": 4}, SRaven(n_features=2)
    pairs = {
        "hyla": (HYLA(**sizes, n_ctx=18), raven),
        "raven-softmax": (SoftmaxTransformer(**sizes, n_ctx=18), raven),
        "fuzzy": (HYLA(**sizes, n_ctx=8), FuzzyLogic(length=8)),
        "sparse": (SparseCoding(**sizes, threshold=FixedThreshold(0.1), transfer=RelativeTransfer()), Relations()),
    }
    return train_tiny(tmp_path_factory.mktemp("categorical"), pairs)


@pytest.fixture(scope="session")
def tiny_regression_models(tmp_path_factory):
    """The same on linear regression, in token space: linear, softmax and regularised attention. Read only, too."""
    task, softmax = LinearRegression(d_x=3, n_context=4), {"n_layers": 2, "attends_to_itself": True, "n_heads": 2}
    pairs = {
        "descent": (LinearSelfAttention(n_layers=2, tied=True, init_scale=1.0), task),
        "plain": (SoftmaxSelfAttention(**softmax), task),
        "regularized": (RegularizedSelfAttention(**softmax), task),
    }
    return train_tiny(tmp_path_factory.mktemp("regression"), pairs)


def train_tiny(root, pairs):
    folders = {}
    for name, (architecture, task) in pairs.items():
        run = Run(architecture, task, steps=2, batch_size=8, keep=(0, 1), evaluations=1, evaluation_episodes=64)
        train(run, root / name)
        folders[name] = root / name
    return folders


@pytest.fixture(scope="session")
def shared(tmp_path_factory):
    """A folder that all processes of a test run have in common. Read only, but for what `done_once` puts there."""
    own = tmp_path_factory.getbasetemp()
    folder = (own.parent if "PYTEST_XDIST_WORKER" in os.environ else own) / "shared"
    folder.mkdir(exist_ok=True)
    return folder


def done_once(folder: Path, work: dict[str, Callable[[], None]]) -> None:
    """Do every piece of work, each in whichever process comes to it first; return when all of them are done."""
    folder.mkdir(exist_ok=True)
    for name, do in work.items():
        try:
            (folder / f"{name}.begun").touch(exist_ok=False)
        except FileExistsError:
            continue
        try:
            do()
        except BaseException as error:
            (folder / f"{name}.failed").write_text(f"{type(error).__name__}: {error}")
            raise
        (folder / f"{name}.done").touch()
    deadline = time.monotonic() + 300
    while missing := [name for name in work if not (folder / f"{name}.done").exists()]:
        failed = {f.stem: f.read_text() for f in folder.glob("*.failed")}
        assert not failed, f"in another process these failed: {failed}"
        assert time.monotonic() < deadline, f"in another process these hang: {missing}"
        time.sleep(0.1)
