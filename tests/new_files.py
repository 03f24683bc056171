"""A new probe, analysis, task family and architecture are one file each: they are put into a copy, and its tests are run.

    python tests/new_files.py        # some minutes; exits with 0 if no other file has to be edited

No file of the copy is changed. To be quick, the tests that measure with every recipe are run last, after the other recipes are
taken out of the copy, but for `generalization`, which applies everywhere.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
COPIED, LINKED = ("src", "probes", "analyses", "tests", "docs"), ("trained_models", "notebooks")
FILES = {
    "src/compolens/models/fresh_net.py": '''"""A transformer whose attention weights are the squares of the scores."""

from dataclasses import dataclass

from torch import Tensor

from compolens.models.attention import Attention
from compolens.models.transformer import TransformerArchitecture


class FreshAttention(Attention):
    """Squares of scores; masked ones are 0."""

    masked_score = 0.0

    def weights(self, scores: Tensor) -> Tensor:
        return scores.square()


@dataclass(frozen=True)
class FreshNet(TransformerArchitecture):
    """The squares of the scores are the weights."""

    def attention(self) -> type[Attention]:
        return FreshAttention
''',
    "src/compolens/tasks/fresh_task.py": '''"""Sums of two vectors; neighbours are trained on, other pairs held out."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any, ClassVar

import torch
from torch import Tensor

from compolens.foundation.configs import require, require_positive
from compolens.tasks.base import TaskFamily
from compolens.tasks.episodes import Episodes, check_drawing


@dataclass(frozen=True)
class FreshTask(TaskFamily):
    """Sums of two of n vectors.

    Args:
        d_x: width of x.
        n_vectors: n.
        n_context: examples.
        teacher_seed: draws the vectors.
    """

    d_x: int = 3
    n_vectors: int = 4
    n_context: int = 5
    teacher_seed: int = 0

    code_kinds: ClassVar[dict[str, str]] = {"weights": "continuous"}
    missing: ClassVar[dict[str, str]] = {"render": "only examples are kept", "swap_code": "no answers under other codes"}

    def __post_init__(self) -> None:
        super().__post_init__()
        require_positive(self, "d_x", "n_vectors", "n_context")
        require(self.n_vectors >= 4, f"FreshTask: n_vectors must be at least 4, got {self.n_vectors}")

    @property
    def d_in(self) -> int:
        return self.d_x + 2

    @property
    def d_out(self) -> int:
        return 1

    @property
    def seq(self) -> int:
        return self.n_context + 1

    @property
    def answers(self) -> tuple[int, ...]:
        return (self.n_context,)

    @property
    def pairs(self) -> list[tuple[int, int]]:
        return list(combinations(range(self.n_vectors), 2))

    def sample(self, n: int, split: str, rng: torch.Generator, compositions: Sequence[int] | None = None) -> Episodes:
        check_drawing(n, rng)
        chosen = torch.tensor(self.choose_compositions(split, compositions), device=rng.device)
        composition = chosen[torch.randint(len(chosen), (n,), generator=rng, device=rng.device)]
        size = 0.5 + torch.rand(n, 2, generator=rng, device=rng.device)
        x = torch.randn(n, self.seq, self.d_x, generator=rng, device=rng.device)
        pairs = torch.tensor(self.pairs, device=rng.device)[composition]
        code = torch.zeros(n, self.n_vectors, device=rng.device).scatter(1, pairs, size)
        vectors = torch.randn(self.n_vectors, self.d_x, generator=torch.Generator().manual_seed(self.teacher_seed))
        y = x @ (code @ vectors.to(code))[..., None]
        asked = torch.zeros_like(y)
        asked[:, -1] = 1
        return Episodes(torch.cat([x, y * (1 - asked), asked], -1), y, {"weights": code}, composition, x, {})

    def compositions(self, split: str) -> tuple[int, ...]:
        self.check_split(split)
        return tuple(i for i, (a, b) in enumerate(self.pairs) if (b - a == 1) != (split == "ood"))

    def composition_name(self, composition: int) -> str:
        return "+".join(map(str, self.pairs[composition]))

    def describe_split(self) -> dict[str, Any]:
        return {"held_out": "pairs that are no neighbours"}

    def loss(self, prediction: Tensor, targets: Tensor) -> Tensor:
        return (prediction - targets)[:, -1].square().mean()

    def errors(self, prediction: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        error = (prediction.double() - targets.double())[:, -1].square().sum(-1)
        return error, targets.double()[:, -1].square().sum(-1)
''',
    "probes/fresh_probe.py": '''"""How large is the answer when there is a continuous code?"""

import pandas as pd
import torch

from compolens import tables
from compolens.activations.streams import draw
from compolens.foundation.configs import DoesNotApply
from compolens.measures.intervals import summarise
from compolens.zoo.folders import TrainedModel


def probe(trained: TrainedModel, *, episodes: int = 64, seed: int = 0) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The score, for families with a continuous code alone. Control: the untrained control."""
    task = trained.task
    if "continuous" not in task.code_kinds.values():
        raise DoesNotApply(f"{type(task).__name__} has no continuous code")
    rows, kept = [], []
    for control, model in trained.with_untrained_control():
        for split in ("test", "ood"):
            batches = list(draw(task, split, episodes, seed, trained.device))
            with torch.no_grad():
                found = [torch.stack(task.errors(model(b.tokens), b.targets)) for b in batches]
            error, weight = torch.cat(found, dim=1).cpu().numpy()
            composition = torch.cat([b.composition for b in batches]).cpu().numpy()
            pooled = summarise(error, weight, composition)
            (lo, hi), where = pooled.interval, {"split": split, "site": "output", "role": "answers", "n": len(error)}
            rows.append(tables.row("score", pooled.score, lo=lo, hi=hi, control=control, **where))
            names = [task.composition_name(int(c)) for c in composition]
            kept.append(pd.DataFrame({"split": split, "composition": names, "score": 1 - error / weight}))
    rows += tables.not_available(rows, trained.why_no_untrained_control)
    return pd.DataFrame(rows), pd.concat(kept, ignore_index=True)
''',
    "analyses/fresh_claim.py": '''"""The score can be drawn."""

from pathlib import Path

from compolens import tables
from compolens.figures import Drawing, Line, Panel

needs = ("fresh_probe",)


def analyze(models: list[Path]) -> Drawing:
    """The score by split."""
    lines = []
    for folder in models:
        rows = tables.at_last_step(tables.read(folder, "fresh_probe"))
        rows = rows[rows["control"] == ""].assign(place=range(len(rows[rows["control"] == ""])))
        lines.append(Line(rows, "place", "value", label=folder.name))
    return Drawing("The score can be drawn.", (Panel("score", "split", "score", tuple(lines)),), "One line a model.")
''',
}
CONTRACTS = (
    "test_contracts", "probes/test_probe_versions", "test_untrained_control", "test_layers", "test_citations",
    "test_docstrings",
)  # fmt: skip
DOCS = "listed or cheat_sheet or api_reference or controls_are_those"


def copied(folder: Path) -> Path:
    """A copy of what the tests read, with the new files in it."""
    quiet = shutil.ignore_patterns("__pycache__", "_build", "reference")
    for name in COPIED:
        shutil.copytree(ROOT / name, folder / name, ignore=quiet)
    for name in LINKED:
        (folder / name).symlink_to(ROOT / name)
    for path in ROOT.glob("*.*"):
        if path.is_file():
            shutil.copy(path, folder)
    for name, text in FILES.items():
        (folder / name).write_text(text, encoding="utf-8")
    return folder


def passes(folder: Path, *arguments: str) -> bool:
    """Whether these tests of the copy pass."""
    path = os.pathsep.join([str(folder / "src"), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", *arguments]
    print(*command[3:], flush=True)
    return subprocess.run(command, cwd=folder, env=os.environ | {"PYTHONPATH": path}).returncode == 0


def main() -> int:
    with tempfile.TemporaryDirectory() as place:
        folder = copied(Path(place).resolve())
        # -k ignores case: FreshNet is among them
        fine = passes(folder, *(f"tests/{name}.py" for name in CONTRACTS), "-k", "fresh")
        fine = passes(folder, "tests/docs/test_docs.py", "-k", DOCS) and fine
        for path in (*folder.glob("probes/*.py"), *folder.glob("analyses/*.py")):
            if not path.stem.startswith(("fresh", "generalization")):
                path.unlink()
        return 0 if passes(folder, "tests/test_recipes.py", "-k", "fresh or function_of_the_tables") and fine else 1


if __name__ == "__main__":
    sys.exit(main())
