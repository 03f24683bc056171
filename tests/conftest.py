"""Small worlds that the tests share; one thread, no network, no display.

What takes seconds to import is imported where it is used: the process that hands the tests out to others runs none.
"""

import gc
import os
import signal
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["WANDB_MODE"] = "disabled"
os.environ["MPLBACKEND"] = "Agg"
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # or every process that a test begins compiles the package for itself

import pytest
from once import done_once

pytest_plugins = ["tiers"]

os.fsync = lambda descriptor: None  # no test pulls the plug, and what the kernel was given outlives every kill
gc.set_threshold(20_000, 20, 20)  # looking through all that was imported, again and again, takes a twelfth of the tests' time


def pytest_sessionstart(session):
    """Before tests are collected, in processes that run some."""
    if session.config.getoption("dist", "no") != "no":
        return
    import torch
    from hypothesis import settings

    torch.set_num_threads(1)
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as shells have it for what they run in the background
        signal.signal(signal.SIGINT, signal.default_int_handler)
    settings.register_profile("unhurried", deadline=None)  # an example that takes long says that the machine is busy
    settings.load_profile("unhurried")


def pytest_sessionfinish():
    """Pytest looks through everything that was imported five times more before it ends."""
    gc.freeze()


@pytest.fixture(scope="session")
def shared(tmp_path_factory):
    """A folder that all processes of a test run have in common. Read only, but for what `done_once` puts there."""
    own = tmp_path_factory.getbasetemp()
    folder = (own.parent if "PYTEST_XDIST_WORKER" in os.environ else own) / "shared"
    folder.mkdir(exist_ok=True)
    return folder


class Tiny(Mapping[str, Path]):
    """name -> folder of a model trained for two steps, with the weights of steps 0 and 1 kept. Read only: copy to edit.

    Each is trained when it is first asked for, once for all processes of a test run: one that cannot be trained fails the
    tests that ask for it.
    """

    def __init__(self, root, pairs):
        from compolens import Run, train

        self.root = root
        short = {"steps": 2, "batch_size": 8, "keep": (0, 1), "evaluations": 1, "evaluation_episodes": 64}
        runs = {name: Run(architecture, task, **short) for name, (architecture, task) in pairs.items()}
        self.work = {name: partial(train, run, root / name) for name, run in runs.items()}

    def __getitem__(self, name: str) -> Path:
        done_once(self.root, {name: self.work[name]})
        return self.root / name

    def __iter__(self) -> Iterator[str]:
        return iter(self.work)

    def __len__(self) -> int:
        return len(self.work)


@pytest.fixture(scope="session")
def tiny_task():
    """6 modules, pairs held out: 0+3, 1+4, 2+5; episodes of 6 examples and 3 queries."""
    from compolens import Hyperteacher

    return Hyperteacher(d_x=4, d_y=2, d_hidden=6, n_modules=6, n_context=6, n_queries=3)


@pytest.fixture(scope="session")
def tiny_models(tiny_task, shared):
    """A network of each kind on a family with a continuous code."""
    from compolens import HypernetworkTransformer, SoftmaxTransformer

    sizes = {"n_layers": 2, "d_model": 16, "n_heads": 2}
    architectures = {
        "softmax": SoftmaxTransformer(**sizes),
        "hypernetwork": HypernetworkTransformer(**sizes, d_code=6, d_hidden=12),
    }
    return Tiny(shared / "models", {name: (a, tiny_task) for name, a in architectures.items()})


@pytest.fixture(scope="session")
def tiny_categorical_models(shared):
    """The same on families whose code is categorical: S-RAVEN with two features, fuzzy logic, relations, labelled items; and
    regressions, one that says how sure it is, one of function classes and one on a representation."""
    from compolens import SoftmaxTransformer
    from compolens.models import HYLA, FixedThreshold, RelativeTransfer, SparseCoding
    from compolens.tasks import (
        BurstyClassification,
        ClassesPrior,
        FuzzyLogic,
        HarmonicInputs,
        InterleavedTokens,
        LinearRegression,
        Relations,
        RepresentationRegression,
        SRaven,
        UncertainRegression,
    )

    sizes, raven = {"n_layers": 2, "d_model": 16, "n_heads": 4}, SRaven(n_features=2)
    pairs = {
        "hyla": (HYLA(**sizes, n_ctx=18), raven),
        "raven-softmax": (SoftmaxTransformer(**sizes, n_ctx=18), raven),
        "fuzzy": (HYLA(**sizes, n_ctx=8), FuzzyLogic(length=8)),
        "sparse": (SparseCoding(**sizes, threshold=FixedThreshold(0.1), transfer=RelativeTransfer()), Relations()),
        "bursty": (
            SoftmaxTransformer(**sizes, attn_only=True),
            BurstyClassification(n_classes=8, n_labels=4, n_context=4, n_positions=12, d_item=8),
        ),
        "unsure": (SoftmaxTransformer(**sizes), UncertainRegression(d_x=3, n_context=4)),
        "classes": (
            SoftmaxTransformer(**sizes),
            LinearRegression(
                d_x=4,
                n_context=4,
                inputs=HarmonicInputs(),
                prior=ClassesPrior(),
                noise=0.25,
                layout=InterleavedTokens(),
                shifted_prior=ClassesPrior(shares=((0.5, 0.5), (0.25, 0.75))),
            ),
        ),
        "represented": (SoftmaxTransformer(**sizes), RepresentationRegression(d_x=2, n_context=4, layout=InterleavedTokens())),
    }
    return Tiny(shared / "categorical", pairs)


@pytest.fixture(scope="session")
def tiny_regression_models(shared):
    """The same on linear regression, in token space: linear, softmax and regularised attention."""
    from compolens.models import LinearSelfAttention, RegularizedSelfAttention, SoftmaxSelfAttention
    from compolens.tasks import LinearRegression

    task, softmax = LinearRegression(d_x=3, n_context=4), {"n_layers": 2, "attends_to_itself": True, "n_heads": 2}
    pairs = {
        "descent": (LinearSelfAttention(n_layers=2, tied=True, init_scale=1.0), task),
        "plain": (SoftmaxSelfAttention(**softmax), task),
        "regularized": (RegularizedSelfAttention(**softmax), task),
    }
    return Tiny(shared / "regression", pairs)
