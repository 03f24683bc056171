"""The small world that is damaged: two trained models with tables, one in training, a recording, stored episodes."""

from __future__ import annotations

import json
import os
import random
import shutil
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from outcomes import command, quiet

from compolens import HypernetworkTransformer, Hyperteacher, Run, SoftmaxTransformer, train
from compolens.tasks import FixedEpisodes
from compolens.training import loop
from compolens.training.state import Training

TASK = Hyperteacher(d_x=4, d_y=2, d_hidden=6, n_modules=6, n_context=6, n_queries=3)
SIZES = {"n_layers": 1, "d_model": 8, "n_heads": 2}
MODELS = {
    "softmax": SoftmaxTransformer(**SIZES),
    "hyper": HypernetworkTransformer(**SIZES, d_code=6, d_hidden=12),
}
PROBES = ("generalization", "latent_code", "inference_or_execution")
DIGESTS = ("table", "episodes", "itself")


@dataclass(frozen=True)
class World:
    """pristine: nothing in it is ever changed; work: where a copy of it is damaged. Both hold the same names."""

    pristine: Path
    work: Path

    def fresh(self, *names: str) -> Path:
        """The work folder with copies of these, and nothing else."""
        remove(self.work)
        self.work.mkdir(parents=True, exist_ok=True)
        for name in names:
            shutil.copytree(self.pristine / name, self.work / name, symlinks=True)
        return self.work

    def files(self, name: str) -> list[str]:
        """Every file of a folder, by its path below the world."""
        found = (path for path in (self.pristine / name).rglob("*") if path.is_file())
        return sorted(str(path.relative_to(self.pristine)) for path in found if path.name != ".lock")


def remove(path: Path) -> None:
    """A folder that may hold anything."""
    if path.is_symlink() or path.is_file():
        path.unlink()
    elif path.exists():
        shutil.rmtree(path, ignore_errors=True)


def run_of(name: str, **settings: object) -> Run:
    known = {"steps": 4, "batch_size": 8, "keep": (2,), "evaluations": 1, "evaluation_episodes": 32}
    return Run(MODELS[name], TASK, **(known | settings))


def episodes(n: int = 10) -> dict[str, object]:
    """Arguments of `FixedEpisodes.write`: n episodes of every composition and split."""
    rng, splits = np.random.default_rng(0), np.repeat(["train", "test", "ood"], [3 * n, 3 * n, 2 * n])
    composition = np.concatenate([np.repeat([0, 1, 2], n), np.repeat([0, 1, 2], n), np.repeat([3, 4], n)])
    size = len(splits)
    return {
        "tokens": rng.normal(size=(size, 5, 3)).astype(np.float32),
        "targets": rng.normal(size=(size, 2)).astype(np.float32),
        "codes": {"modules": rng.uniform(size=(size, 3)).astype(np.float32)},
        "composition": composition,
        "split": splits,
    }


def build(root: Path) -> World:
    """Make the world below a folder."""
    world = World(root / "pristine", root / "work")
    with quiet():
        for name in MODELS:
            train(run_of(name), world.work / name)
            status = command(["probe", *PROBES, str(world.work / name), "--episodes", "48"])
            assert status.status == 0, status.text
        _unfinished(world.work / "begun")
        done = command(["record", str(world.work / "softmax"), "--sites", "blocks.0.hook_resid_post", "--episodes", "24",
                        "-o", str(world.work / "recorded")])  # fmt: skip
        assert done.status == 0, done.text
        FixedEpisodes.write(world.work / "fixed", **episodes())
    shutil.copytree(world.work, world.pristine, symlinks=True)
    _without_digests(world)
    return world


def _unfinished(folder: Path) -> None:
    """A training that was stopped after two steps."""
    run = run_of("softmax", init_seed=1)
    with loop.locked_folder(run, folder, Alone()):  # type: ignore[arg-type]
        training = Training(run, folder, "cpu", lambda _: None)
        training.advance()
        training.advance()
        training.save()


class Alone:
    first, size = True, 1

    def from_first(self, make):
        return make()


def _without_digests(world: World) -> None:
    """ "old": a model as it was written before digests."""
    shutil.copytree(world.pristine / "softmax", world.pristine / "old")
    for path in (world.pristine / "old").rglob("*.json"):
        found = json.loads(path.read_text())
        kept = {key: value for key, value in found.items() if key not in DIGESTS or not isinstance(value, str)}
        path.write_text(json.dumps(kept, indent=2) + "\n")
    for name in ("digests.json", ".digests.json", "manifest.json"):
        (world.pristine / "old" / name).unlink(missing_ok=True)


def rng_of(*parts: object) -> random.Random:
    return random.Random("/".join(map(str, parts)))


def cpu_time() -> float:
    return sum(os.times()[:2])
