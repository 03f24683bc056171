"""One new file is enough: an architecture, a task family, a probe and a claim, in their folders or lying anywhere."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

from compolens import cli
from compolens.tables import StaleTable, read

ROOT = Path(__file__).parents[1]

ARCHITECTURE = '''
"""A transformer whose attention weights are the absolute scores."""

from dataclasses import dataclass

from compolens.models.attention import Attention
from compolens.models.transformer import TransformerArchitecture


class ScoreAttention(Attention):
    masked_score = 0.0

    def weights(self, scores):
        return scores.abs()


@dataclass(frozen=True)
class ToyTransformer(TransformerArchitecture):
    n_layers: int = 1
    d_model: int = 8
    n_heads: int = 2

    def attention(self):
        return ScoreAttention
'''

FAMILY = '''
"""Weighted sums: y = w x with w a sum of two of n vectors; neighbours are seen in training, other pairs are held out."""

from dataclasses import dataclass
from itertools import combinations
from typing import ClassVar

import torch

from compolens.foundation.configs import require_positive
from compolens.tasks.base import TaskFamily
from compolens.tasks.episodes import Episodes, check_drawing


@dataclass(frozen=True)
class ToySums(TaskFamily):
    d_x: int = 3
    n_modules: int = 4
    n_context: int = 5
    n_queries: int = 2
    teacher_seed: int = 0

    code_kinds: ClassVar[dict[str, str]] = {"modules": "continuous"}

    def __post_init__(self):
        super().__post_init__()
        require_positive(self, "d_x", "n_modules", "n_context", "n_queries")

    d_in = property(lambda self: self.d_x + 2)
    d_out = property(lambda self: 1)
    seq = property(lambda self: self.n_context + self.n_queries)
    answers = property(lambda self: tuple(range(self.n_context, self.seq)))

    @property
    def mask(self):
        mask = torch.eye(self.seq, dtype=torch.bool)
        mask[:, : self.n_context] = True
        return mask

    def sample(self, n, split, rng, compositions=None):
        check_drawing(n, rng)
        chosen = torch.tensor(self.choose_compositions(split, compositions), device=rng.device)
        composition = chosen[torch.randint(len(chosen), (n,), generator=rng, device=rng.device)]
        code = torch.zeros(n, self.n_modules, device=rng.device)
        pairs = torch.tensor(list(combinations(range(self.n_modules), 2)), device=rng.device)[composition]
        code.scatter_(1, pairs, 0.5 + torch.rand(n, 2, generator=rng, device=rng.device))
        return self.render({"modules": code}, torch.randn(n, self.seq, self.d_x, generator=rng, device=rng.device))

    def render(self, codes, inputs):
        vectors = torch.randn(self.n_modules, self.d_x, generator=torch.Generator().manual_seed(self.teacher_seed))
        y = inputs @ (codes["modules"] @ vectors.to(inputs))[..., None]
        asked = torch.zeros_like(y)
        asked[:, self.n_context :] = 1
        pairs = {pair: i for i, pair in enumerate(combinations(range(self.n_modules), 2))}
        composition = [pairs[tuple(row.nonzero().flatten().tolist())] for row in codes["modules"]]
        tokens = torch.cat([inputs, y * (1 - asked), asked], dim=-1)
        return Episodes(tokens, y, codes, torch.tensor(composition, device=y.device), inputs, {})

    def compositions(self, split):
        self.check_split(split)
        pairs = list(combinations(range(self.n_modules), 2))
        return tuple(i for i, (a, b) in enumerate(pairs) if (b - a == 1) != (split == "ood"))

    def composition_name(self, composition):
        return "+".join(map(str, list(combinations(range(self.n_modules), 2))[composition]))

    def describe_split(self):
        return {"held_out": "pairs that are no neighbours"}

    def loss(self, prediction, targets):
        return (prediction - targets)[:, self.n_context :].square().mean()

    def errors(self, prediction, targets):
        error = (prediction.double() - targets.double())[:, self.n_context :].square().sum((1, 2))
        return error, targets.double()[:, self.n_context :].square().sum((1, 2))
'''

PROBE = '''
"""How large is the residual stream?"""

import pandas as pd

from compolens.activations.sites import residual_sites
from compolens.activations.streams import draw, record


def probe(trained, *, episodes: int = 8, seed: int = 0):
    """Root mean square per layer; the untrained control is the control."""
    rows = []
    for control, model in (("", trained.model), ("untrained", trained.untrained_control())):
        for layer, site in residual_sites(model).items():
            (seen,) = record(model, draw(trained.task, "ood", episodes, seed), [site])
            size = float(seen.sites[site].square().mean().sqrt())
            where = {"split": "ood", "site": site, "role": "all", "control": control, "n": episodes, "layer": layer}
            rows.append({"metric": "size", "value": size, "lo": size, "hi": size, **where})
    return pd.DataFrame(rows)
'''

CLAIM = '''
"""The residual stream has a size."""

from pathlib import Path

from compolens import tables
from compolens.figures import Drawing, Line, Panel

needs = ("{probe}",)


def analyze(models: list[Path], *, control: str = "") -> Drawing:
    """The size by layer."""
    frame = tables.gather(models, "{probe}")
    rows = frame[frame["control"] == control]
    return Drawing("How large?", (Panel("size", "layer", "size", (Line(rows, "layer", "value", label="size"),)),), "")
'''

RUNS = """
from compolens import Run
from compolens.models import ToyTransformer
from compolens.tasks import ToySums

runs = {"toy": Run(ToyTransformer(), ToySums(), steps=2, batch_size=4, evaluations=1, evaluation_episodes=16)}
"""

STORY = """
import compolens
from compolens import cli

print(compolens.__file__)
assert {"ToyTransformer"} <= set(compolens.models.__all__) and {"ToySums"} <= set(compolens.tasks.__all__)
assert compolens.ToyTransformer is compolens.models.ToyTransformer and compolens.ToySums is compolens.tasks.ToySums
for line in (
    "train runs.py --out out",
    "probe toy out --episodes 6",
    "probe generalization patching latent_code out --episodes 24",
    "analyze toy who_generalizes out --out figures",
    "models out",
):
    assert cli.main(line.split()) == 0, line
"""


@pytest.fixture(scope="module")
def extended(tmp_path_factory):
    """A copy of the checkout with one new file in each of the four folders, and nothing else changed."""
    root = tmp_path_factory.mktemp("extended")
    litter = shutil.ignore_patterns("__pycache__")
    for name in ("src", "probes", "analyses"):
        shutil.copytree(ROOT / name, root / name, ignore=litter)
    (root / "tests").mkdir()
    needed = ("test_contracts.py", "conftest.py", "once.py", "tiers.py", "slow.txt")
    for name in ("pyproject.toml", *(f"tests/{file}" for file in needed)):
        shutil.copy(ROOT / name, root / name)
    package = root / "src" / "compolens"
    added = {package / "models": ARCHITECTURE, package / "tasks": FAMILY, root / "probes": PROBE}
    added[root / "analyses"] = CLAIM.format(probe="toy")
    for folder, text in added.items():
        (folder / "toy.py").write_text(text.lstrip())
    (root / "runs.py").write_text(RUNS)
    return root


def python(root, *arguments):
    environment = os.environ | {"PYTHONPATH": str(root / "src")}
    done = subprocess.run([sys.executable, *arguments], cwd=root, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_contract_tests_find_and_pass_a_new_architecture_and_a_new_family(extended):
    words = ["-m", "pytest", "-p", "no:cacheprovider", "-rA", "-q", "tests/test_contracts.py"]
    some = "ToyTransformer or SoftmaxTransformer-ToySums or [ToySums"  # each on one of ours at least, and every test of either
    lines = python(extended, *words, "-k", some).splitlines()
    passed = [line for line in lines if line.startswith("PASSED")]
    assert any("[Hyperteacher-ToyTransformer]" in line or "[ToyTransformer-Hyperteacher]" in line for line in passed)
    assert any("ToySums" in line and "SoftmaxTransformer" in line for line in passed)
    assert any("ToySums" in line and "ToyTransformer" in line for line in passed)
    assert len({line for line in passed if "ToySums" in line and "Transformer" not in line}) >= 10


def test_new_files_train_probe_and_argue_without_any_other_edit(extended):
    out = python(extended, "-c", STORY).splitlines()
    assert out[0] == str(extended / "src" / "compolens" / "__init__.py")
    assert out[-1].split()[:3] == ["out/toy", "ToyTransformer", "ToySums"]
    tables = extended / "out" / "toy" / "tables"
    assert sorted(p.stem for p in tables.glob("*.csv")) == ["generalization", "latent_code", "patching", "toy"]
    assert pd.read_csv(tables / "toy.csv")["layer"].tolist() == [0, 1, 0, 1]
    scores = pd.read_csv(tables / "generalization.csv").query("composition == 'all' and metric == 'score'")
    assert scores.query("reference == 'true code'")["value"].tolist() == pytest.approx([1, 1, 1])
    notes = scores[scores["value"].isna()]["note"]
    assert len(notes) and notes.str.startswith("not available: ").all()
    assert {p.name for p in (extended / "figures").glob("toy.*")} == {"toy.pdf", "toy.png", "toy.csv", "toy.json"}
    assert len(list((extended / "figures").glob("*.pdf"))) == 2


def test_lists_name_new_recipes_with_their_docstrings(extended):
    for command, text in (("probe", "How large is the residual stream?"), ("analyze", "The residual stream has a size.")):
        lines = python(extended, "-m", "compolens.cli", command, "--list").splitlines()
        assert ["toy", text] in [line.split(maxsplit=1) for line in lines]


# ---- files anywhere --------------------------------------------------------------------------------------------------
@pytest.fixture
def anywhere(tmp_path, monkeypatch):
    """A folder far from the checkout with all four files in one place, beside another one to stand in."""
    home = tmp_path / "some where" / "else"
    home.mkdir(parents=True)
    (home / "my_net.py").write_text(ARCHITECTURE.replace("ToyTransformer", "MyNet"))
    (home / "my_task.py").write_text(FAMILY.replace("ToySums", "MySums"))
    (home / "my_size.py").write_text(PROBE)
    (home / "my_claim.py").write_text(CLAIM.format(probe="my_size"))
    (home / "my_runs.py").write_text(
        "from compolens import Run\nfrom my_net import MyNet\nfrom my_task import MySums\n"
        'runs = {"mine": Run(MyNet(), MySums(), steps=2, batch_size=4, evaluations=1, evaluation_episodes=16)}\n'
    )
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield home
    for name, module in list(sys.modules.items()):  # other tests write files of the same names elsewhere
        if str(getattr(module, "__file__", "")).startswith(str(home)):
            del sys.modules[name]


def test_files_anywhere_are_as_good_as_ours(anywhere, monkeypatch, tmp_path):
    mine = ["--with", f"{anywhere}/my_net.py:MyNet", "--with", f"{anywhere}/my_task.py:MySums"]
    assert cli.main(["train", f"{anywhere}/my_runs.py"]) == 0
    assert cli.main(["probe", "../some where/else/my_size.py", "patching", "runs/mine", "--episodes", "6", *mine]) == 0
    monkeypatch.chdir(tmp_path)
    assert cli.main(["analyze", f"{anywhere}/my_claim.py", "work/runs"]) == 0
    sidecar = json.loads(Path("figures/my_claim.json").read_text())
    assert sidecar["runs"] == ["work/runs/mine"] and sidecar["dropped"] == {}
    provenance = json.loads(Path("work/runs/mine/tables/my_size.json").read_text())
    assert provenance["recipe_path"] == str(anywhere / "my_size.py")


def test_a_table_of_a_probe_from_elsewhere_is_stale_when_that_file_changes(anywhere, monkeypatch, tmp_path, recwarn):
    mine = ["--with", f"{anywhere}/my_net.py:MyNet", "--with", f"{anywhere}/my_task.py:MySums"]
    assert cli.main(["train", f"{anywhere}/my_runs.py"]) == 0
    assert cli.main(["probe", "../some where/else/my_size.py", "runs/mine", *mine]) == 0
    monkeypatch.chdir(tmp_path)
    read("work/runs/mine", "my_size")
    assert not [w for w in recwarn if w.category is StaleTable]
    (anywhere / "my_size.py").write_text(PROBE + "\n# commented\n")
    read("work/runs/mine", "my_size")
    assert not [w for w in recwarn if w.category is StaleTable]
    (anywhere / "my_size.py").write_text(PROBE + "\nCHANGED = 1\n")
    command = re.escape(f"compolens probe '{anywhere}/my_size.py' work/runs/mine")
    with pytest.warns(StaleTable, match=f"the probe changed since it was measured; measure it again with: {command}"):
        read("work/runs/mine", "my_size")
