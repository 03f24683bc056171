"""Speed and memory as ratios measured in one run: `make bench`. Nothing here is a test; bars are printed beside the numbers.

Timings are CPU seconds of this process on one thread, interleaved between the things compared, medians of the repeats.
"""

from __future__ import annotations

import copy
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from adopting import ADOPTING
from attention import BENCHES as ATTENTION
from recording import BENCHES as RECORDING
from regression import BENCHES as REGRESSION
from sklearn.linear_model import Ridge
from timing import medians, show

from compolens import AdamW, Hyperteacher, SoftmaxTransformer
from compolens.hooks import HookPoint
from compolens.measures.readouts import Moments

REPOSITORY = Path(__file__).resolve().parents[2]


class NoHook:
    """Stands where a hook point stood, and costs a plain function call."""

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return x

    def has_hooks(self) -> bool:
        return False


def without_hook_points(model: torch.nn.Module) -> torch.nn.Module:
    """A copy whose hook points are gone."""
    bare = copy.deepcopy(model)
    for module in list(bare.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, HookPoint):
                delattr(module, name)
                object.__setattr__(module, name, NoHook())
    return bare


def training_step(model: torch.nn.Module, task: Hyperteacher, batch: int = 64) -> Callable[[], None]:
    optimizer = AdamW().build(model)
    episodes = task.sample(batch, "train", task.rng(0, "train"))

    def step() -> None:
        loss = task.loss(model(episodes.tokens), episodes.targets)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    return step


def bench_hooks() -> None:
    task = Hyperteacher()
    model = SoftmaxTransformer().build(**task.dimensions)
    hooked, bare = medians(60, training_step(model, task), training_step(without_hook_points(model), task))
    points = len(model.hook_dict)
    show(f"training step, {points} unused hook points / none", f"{hooked / bare:.3f}", "<= 1.03", hooked / bare <= 1.03)


def bench_generation() -> None:
    task = Hyperteacher()
    step = training_step(SoftmaxTransformer().build(**task.dimensions), task)
    counter = iter(range(10**9))

    def generate() -> None:
        task.sample(64, "train", task.rng(0, "train", next(counter)))

    made, trained = medians(40, generate, step)
    show("generating a batch / training step", f"{made / trained:.4f}", "<= 0.03", made / trained <= 0.03)


def bench_ridge(n: int = 4096, width: int = 64, sites: int = 8, outputs: int = 8) -> None:
    rng = np.random.default_rng(0)
    penalties = np.logspace(-3, 4.5, 16).tolist()
    xs = [rng.standard_normal((n, width)) @ rng.standard_normal((width, width)) for _ in range(sites)]
    y = rng.standard_normal((n, outputs))
    tensors, target = [torch.from_numpy(x) for x in xs], torch.from_numpy(y)

    def ours() -> list:
        return [Moments.of(x, target).fit(penalties, standardize=False) for x in tensors]

    def theirs() -> list:
        return [[Ridge(alpha=l2).fit(x, y) for l2 in penalties] for x in xs]

    fast, slow = medians(7, ours, theirs)
    worst = max(
        float(np.abs(mine.weight.numpy().T - other.coef_).max() / np.abs(other.coef_).max())
        for a, b in zip(ours(), theirs(), strict=True)
        for mine, other in zip(a, b, strict=True)
    )
    show(
        f"scikit-learn Ridge / ours, {sites} sites, 16 penalties, n {n}, width {width}",
        f"{slow / fast:.1f}",
        ">= 10",
        slow / fast >= 10,
    )
    show(
        "   largest difference of a coefficient, relative to the largest coefficient", f"{worst:.1e}", "<= 1e-6", worst <= 1e-6
    )


MEMORY = """
import re, sys, torch, compolens
torch.set_num_threads(1)
trained = compolens.load(sys.argv[1])
probe = compolens.load_recipe("probes", "latent_code")
probe(trained, episodes=int(sys.argv[2]))
status = open("/proc/self/status").read()  # not getrusage, whose peak a child inherits from its parent
print(int(re.search(r"VmHWM:\\s+(\\d+)", status).group(1)) / 1024)
"""


def bench_memory() -> None:
    folder = REPOSITORY / "trained_models" / "F-softmax-0"
    small, large = (
        float(
            subprocess.run(
                [sys.executable, "-c", MEMORY, str(folder), str(n)], capture_output=True, text=True, check=True
            ).stdout
        )
        for n in (4096, 65536)
    )
    grown = large - small
    show(
        f"peak memory of latent_code, 65,536 - 4,096 episodes (at 4,096: {small:.0f} MB)",
        f"{grown:.0f} MB",
        "< 100 MB",
        grown < 100,
    )


if __name__ == "__main__":
    torch.set_num_threads(1)
    for bench in (bench_hooks, bench_generation, bench_ridge, bench_memory, *ATTENTION, *REGRESSION, *ADOPTING, *RECORDING):
        bench()
