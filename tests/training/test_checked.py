"""A family or an architecture of one's own that does not do what it says is refused before anything is written."""

import dataclasses
import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import pytest
import torch
from torch import nn

from compolens import cli
from compolens.foundation.configs import ConfigError
from compolens.hooks import HookedModel
from compolens.models import SoftmaxTransformer
from compolens.models.base import Architecture
from compolens.tasks import FAMILIES, Hyperteacher
from compolens.training import Run, checked, train
from compolens.training.checked import check_family, check_own

PAGE = (Path(__file__).parents[2] / "docs" / "extending.md").read_text()
SMALL = SoftmaxTransformer(n_layers=1, d_model=8, n_heads=2)


def shown_family():
    """`PairSums`, as the guide shows it."""
    (text,) = re.findall(r":caption: my_task\.py\n\n(.*?)```", PAGE, flags=re.DOTALL)
    names = {"__name__": "my_task"}
    exec(text, names)
    return names["PairSums"]


PairSums = shown_family()


def run_of(task, architecture=SMALL, **settings):
    return Run(architecture, task, **{"steps": 1, "batch_size": 4, "evaluations": 1, "evaluation_episodes": 16} | settings)


def refusal(run, folder):
    with pytest.raises(ConfigError) as error:
        train(run, folder)
    assert not folder.exists(), "nothing is written"
    return str(error.value)


# ---- what is let through -----------------------------------------------------------------------------------------------
def test_the_family_of_the_guide_trains(tmp_path):
    assert math.isfinite(train(run_of(PairSums()), tmp_path / "run")["ood"]["score"])


@pytest.mark.parametrize("name", [n for n in FAMILIES if n not in ("FixedEpisodes", "Glue", "Raven")])
def test_families_of_the_package_are_what_is_asked_of_others(name):
    check_family(FAMILIES[name]())


class Single(PairSums):
    """One composition, and so nothing held out."""

    def compositions(self, split):
        return (0,)


class Teacher(Hyperteacher):
    """As its parent in everything."""


@pytest.mark.parametrize("task", [Single(), Teacher(d_x=4, d_y=2, d_hidden=6, n_modules=6, n_context=6, n_queries=3)], ids=str)
def test_families_that_hold_nothing_out_or_are_made_of_ours_are_let_through(task):
    check_own(run_of(task))


def test_a_family_of_the_package_is_drawn_from_no_sooner(monkeypatch, tmp_path):
    drawn = []
    monkeypatch.setattr(checked, "check_family", lambda *given: drawn.append(given))
    train(run_of(Hyperteacher(d_x=4, d_y=2, d_hidden=6, n_modules=6, n_context=6, n_queries=3)), tmp_path / "run")
    assert not drawn


def test_looking_moves_no_random_stream(tmp_path, monkeypatch):
    class Noisy(PairSums):
        """Its check would draw from the global stream."""

        def sample(self, n, split, rng, compositions=None):
            torch.rand(1)
            return super().sample(n, split, rng, compositions)

    before = torch.get_rng_state()
    check_own(run_of(Noisy()))
    assert torch.equal(torch.get_rng_state(), before)
    train(run_of(PairSums(), steps=3), tmp_path / "looked")
    monkeypatch.setattr("compolens.training.loop.check_own", lambda *given: None)
    train(run_of(PairSums(), steps=3), tmp_path / "not")
    files = [(tmp_path / name / "weights.safetensors").read_bytes() for name in ("looked", "not")]
    assert files[0] == files[1]


# ---- families that are refused -----------------------------------------------------------------------------------------
class Leaking(PairSums):
    def compositions(self, split):
        return (0, 1, 2)


class Partly(PairSums):
    def compositions(self, split):
        return (0, 1, 2) if split != "ood" else (2, 3)


class Careless(PairSums):
    """Draws held-out compositions in training."""

    def sample(self, n, split, rng, compositions=None):
        return super().sample(n, "ood", rng, compositions)


class Lone(PairSums):
    def sample(self, n, split, rng, compositions=None):
        return super().sample(1, split, rng, compositions)


class Fewer(PairSums):
    def sample(self, n, split, rng, compositions=None):
        episodes = super().sample(n, split, rng, compositions)
        return episodes._replace(codes={"weights": episodes.codes["weights"][:-1]})


class Bare(PairSums):
    def sample(self, n, split, rng, compositions=None):
        return tuple(super().sample(n, split, rng, compositions))


class ThreeOut(PairSums):
    d_out = property(lambda self: 3)


class TwoWide(PairSums):
    def sample(self, n, split, rng, compositions=None):
        episodes = super().sample(n, split, rng, compositions)
        return episodes._replace(targets=torch.cat([episodes.targets, -episodes.targets], -1))


class Mismatched(TwoWide):
    d_out = property(lambda self: 3)


class Shorter(PairSums):
    def sample(self, n, split, rng, compositions=None):
        episodes = super().sample(n, split, rng, compositions)
        return episodes._replace(tokens=episodes.tokens[:, 1:])


class Narrow(PairSums):
    d_in = property(lambda self: 4)


class Far(PairSums):
    answers = property(lambda self: (77,))


class Silent(PairSums):
    answers = property(lambda self: ())


class OtherCode(PairSums):
    code_kinds: ClassVar = {"wieghts": "continuous"}


class OtherKind(PairSums):
    code_kinds: ClassVar = {"weights": "foo"}


class NoNumbers(PairSums):
    def errors(self, prediction, targets):
        error, weight = super().errors(prediction, targets)
        return error * math.nan, weight


class Pooled(PairSums):
    def errors(self, prediction, targets):
        return tuple(term.sum() for term in super().errors(prediction, targets))


class NoLoss(PairSums):
    def loss(self, prediction, targets):
        return None


class Vector(PairSums):
    def loss(self, prediction, targets):
        return (prediction - targets)[:, -1].square()


class Detached(PairSums):
    def loss(self, prediction, targets):
        return super().loss(prediction.detach(), targets)


class Constant(PairSums):
    def loss(self, prediction, targets):
        return torch.ones((), requires_grad=True)


@pytest.mark.parametrize(
    ("family", "message"),
    [
        (Leaking, r"leak: 3 composition\(s\) are in 'train' and in 'ood' \(0, 1, 2\); held out is never seen, so let"),
        (Partly, r"leak: 1 composition\(s\) are in 'train' and in 'ood' \(2\)"),
        (Careless, r"sample\(8, 'train', …\) drew composition 1, which compositions\('train'\) does not name; .*choose_comp"),
        (Lone, r"sample\(8, 'train', …\) must give 8 rows of tokens, a row per episode, got a tensor \(1, 6, 5\)"),
        (Fewer, r"must give 8 rows of codes\['weights'\], a row per episode, got a tensor \(7, 4\)"),
        (Bare, r"must return Episodes\(…\), got \(tensor"),
        (ThreeOut, r"d_out is 3, but targets are 1 wide.* each of 3; write d_out = 1, or give targets 3 wide"),
        (TwoWide, r"d_out is 1, but targets are 2 wide.* each of 2; write d_out = 2"),
        (Mismatched, r"loss failed on a prediction .*= \(8, 6, 3\) and targets torch\.float32 \(8, 6, 2\): RuntimeError.*fit"),
        (Shorter, r"must give tokens \(batch, seq, d_in\) = \(8, 6, 5\), .* got a tensor \(8, 5, 5\); make .* seq"),
        (Narrow, r"must give tokens \(batch, seq, d_in\) = \(8, 6, 4\), .* got a tensor \(8, 6, 5\); make .* d_in"),
        (Far, r"answers must be positions of the 6 tokens \(-6 to 5\), got \(77,\)"),
        (Silent, r"answers must be a tuple of positions, such as \(5,\); got \(\)"),
        (OtherCode, r"code_kinds names 'wieghts', which is no code of the episodes; did you mean 'weights'\?"),
        (OtherKind, r"code_kinds\['weights'\] must be 'continuous' or 'categorical', got 'foo'"),
        (NoNumbers, r"errors gives the error nan for train episodes, .* look for a division by 0"),
        (Pooled, r"must return \(error, weight\), each \(batch,\) = \(8,\); error is a tensor \(\)"),
        (NoLoss, r"loss must return a scalar, such as \(…\)\.square\(\)\.mean\(\), got None"),
        (Vector, r"loss must return a scalar, .* got a tensor \(8, 1\)"),
        (Detached, r"loss does not depend on the prediction, .* without \.detach\(\)"),
        (Constant, r"loss does not depend on the prediction"),
    ],
)
def test_a_family_that_is_not_what_it_says_is_refused_before_a_training(family, message, tmp_path):
    told = refusal(run_of(family()), tmp_path / "run")
    assert told.startswith(f"{family.__name__}: ") and re.search(message, told), told


def test_what_a_family_itself_raises_is_left_to_the_training(tmp_path):
    class Ill(PairSums):
        def loss(self, prediction, targets):
            raise RuntimeError("the teacher is ill")

    with pytest.raises(RuntimeError, match=r"^the teacher is ill$"):
        train(run_of(Ill()), tmp_path / "run")
    assert (tmp_path / "run").exists()


def test_a_family_that_counts_by_its_own_generators_is_not_asked_for_one():
    class Counted(PairSums):
        def rng(self, seed, split, step, device=None):
            raise AssertionError("this is no update")

    check_own(run_of(Counted(), Own("right")))


def test_wide_answers_that_are_told_apart_are_meant(tmp_path):
    """A mean and a log variance for one target; and targets with a weight beside what is asked."""

    class Unsure(PairSums):
        d_out = property(lambda self: 2)

        def loss(self, prediction, targets):
            mean, spread = prediction[:, -1].split(1, -1)
            return ((mean - targets[:, -1]).square() * (-spread).exp() + spread).mean()

        def errors(self, prediction, targets):
            return super().errors(prediction[..., :1], targets)

    class Weighted(TwoWide):
        def loss(self, prediction, targets):
            return super().loss(prediction, targets[..., :1])

    for family in (Unsure, Weighted):
        check_family(family())


def test_the_command_line_says_it_in_one_line(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (text,) = re.findall(r":caption: my_task\.py\n\n(.*?)```", PAGE, flags=re.DOTALL)
    leak = text + "\n\nclass LeakingSums(PairSums):\n    def compositions(self, split):\n        return (0, 1)\n"
    (tmp_path / "my_leak.py").write_text(leak)
    (tmp_path / "my_runs.py").write_text(
        "from compolens import Run, SoftmaxTransformer\nfrom my_leak import LeakingSums\n"
        "runs = {'leak': Run(SoftmaxTransformer(n_layers=1, d_model=8, n_heads=2), LeakingSums(), steps=1, batch_size=4)}\n"
    )
    assert cli.main(["train", "my_runs.py", "--out", "runs"]) == 1
    assert "LeakingSums: leak: 2 composition(s)" in capsys.readouterr().err


# ---- architectures -------------------------------------------------------------------------------------------------------
class Wide(HookedModel):
    def __init__(self, d_in, d_out):
        super().__init__()
        self.read = nn.Linear(d_in, d_out)
        self.setup()

    def forward(self, tokens):
        return self.read(tokens)


@dataclass(frozen=True)
class Own(Architecture):
    makes: str = "nothing"

    def build(self, *, d_in, d_out, **dimensions):
        return {
            "nothing": lambda: None,
            "linear": lambda: nn.Linear(d_in, d_out),
            "wide": lambda: Wide(d_in, 2 * d_out),
            "right": lambda: Wide(d_in, d_out),
        }[self.makes]()


@pytest.mark.parametrize(
    ("makes", "message"),
    [
        ("nothing", r"Own: build returned None, which has no hook points; return a HookedModel from build"),
        (
            "linear",
            r"Own: build returned a Linear, which has no hook points; .* compolens\.adopt\(module, task, sites=\{…\}\)",
        ),
        ("wide", r"Own: .* must answer \(batch, seq, d_out\) = \(2, 6, 1\) to tokens \(2, 6, 5\), got a tensor \(2, 6, 2\)"),
    ],
)
def test_an_architecture_that_builds_something_else_is_refused_before_a_training(makes, message, tmp_path):
    assert re.search(message, refusal(run_of(PairSums(), Own(makes)), tmp_path / "run"))
    if makes != "wide":
        with pytest.raises(ConfigError, match=message):
            run_of(PairSums(), Own(makes)).build()


def test_an_architecture_of_ones_own_is_let_through_and_leaves_no_trace():
    before, run = torch.get_rng_state(), run_of(PairSums(), Own("right"))
    one = run.build().read.weight
    check_own(run)
    assert torch.equal(run.build().read.weight, one) and torch.equal(torch.get_rng_state(), before)
    check_own(dataclasses.replace(run, task=Hyperteacher(d_x=4, d_y=2, d_hidden=6, n_modules=6, n_context=6, n_queries=3)))
