"""In-context regression learners: all spectral ones from one spectrum, in time and memory, beside one solve after another."""

from __future__ import annotations

import subprocess
import sys
import time

import torch
from timing import medians, show, tell
from torch import Tensor

from compolens import Hyperteacher, SoftmaxTransformer
from compolens.measures.dual_model import dual_step
from compolens.references.gradient_descent import GradientDescent, GradientDescentPlusPlus
from compolens.references.priors import GaussianMixture, gaussian_mixture_mean
from compolens.references.regression import all_weights
from compolens.references.solvers import FrobeniusNewton, LeastSquares, Newton, Ridge
from compolens.tasks.regression_laws import SparsePrior

LEARNERS = (
    GradientDescent(1, 0.5), GradientDescent(2, 0.5), GradientDescentPlusPlus(2, 0.5, 0.01), Newton(3), FrobeniusNewton(3),
    Ridge(0.1), LeastSquares(),
)  # fmt: skip
LENGTHS = range(1, 41)


def prompts(batch: int, n: int = 40, d: int = 20) -> tuple[Tensor, Tensor]:
    rng = torch.Generator().manual_seed(0)
    x, w = (torch.randn(batch, k, d, generator=rng, dtype=torch.float64) for k in (n, 1))
    return x, x @ w.mT


def bench_spectrum(batch: int = 10_000) -> None:
    x, y = prompts(batch)
    start = time.process_time()
    found = all_weights(LEARNERS, x, y, LENGTHS)
    seconds = time.process_time() - start
    what = f"{len(LEARNERS)} regression learners, {batch:,} episodes, {len(LENGTHS)} prompt lengths, d 20"
    show(what, f"{seconds:.1f} s", "<= 20 s", seconds <= 20)
    few = x[:500], y[:500]
    start = time.process_time()
    for n in LENGTHS:
        shown, answers = few[0][:, :n], few[1][:, :n]
        torch.linalg.lstsq(shown, answers, driver="gelsd")
    theirs = (time.process_time() - start) * batch / 500
    tell("   torch.linalg.lstsq for least squares alone, scaled from 500 episodes", f"{theirs:.1f} s")
    exact = torch.linalg.lstsq(few[0][:, :30], few[1][:, :30]).solution
    worst = float((found[-1][:500, 29] - exact).abs().max())
    show("   largest difference of a least-squares weight at 30 demonstrations", f"{worst:.1e}", "<= 1e-8", worst <= 1e-8)


MEMORY = """
import re, sys, torch
sys.path.insert(0, sys.argv[1])
from regression import LEARNERS, LENGTHS, prompts
from compolens.references.regression import all_weights
torch.set_num_threads(1)
def peak():
    return int(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read()).group(1)) / 1024
x, y = prompts(10_000)
before = peak()
all_weights(LEARNERS, x, y, LENGTHS)
print(peak() - before - len(LEARNERS) * 10_000 * len(LENGTHS) * 20 * 8 / 2**20)
"""


def bench_regression_memory() -> None:
    arguments = [sys.executable, "-c", MEMORY, sys.path[0]]
    grown = float(subprocess.run(arguments, capture_output=True, text=True, check=True).stdout)
    show("   its peak memory beyond the weights themselves", f"{grown:.0f} MB", "<= 500 MB", grown <= 500)


def bench_sparse_posterior(batch: int = 100) -> None:
    x, y = prompts(batch)
    prior = GaussianMixture(*SparsePrior(3).mixture(20))
    start = time.process_time()
    gaussian_mixture_mean(x, y, LENGTHS, prior, 0.1)
    seconds = (time.process_time() - start) / batch / len(LENGTHS)
    tell(f"posterior mean over {len(prior.means):,} supports, per prompt", f"{1e3 * seconds:.2f} ms")


def bench_dual_model(episodes: int = 512) -> None:
    """The Gram form at every layer and head, from what hook points saw, beside the forward passes that filled them."""
    task = Hyperteacher()
    model = SoftmaxTransformer(n_layers=4).build(**task.dimensions).eval()
    tokens = task.sample(episodes, "test", task.rng(0, "test")).tokens
    sites = [f"blocks.{layer}.attn.hook_{part}" for layer in range(4) for part in "qkvz"]
    with torch.no_grad():
        _, cache = model.run_with_cache(tokens, names_filter=sites)

        def dual() -> None:
            for layer, block in enumerate(model.blocks):
                q, k, v, z = (cache[f"blocks.{layer}.attn.hook_{part}"] for part in "qkvz")
                (dual_step(q, k, v, mask=block.attn.mask).prediction - z).norm(dim=-1).amax()

        forward, ours = medians(9, lambda: model(tokens), dual)
    ratio = ours / forward
    show(f"dual models of 4 layers and 4 heads, {episodes} episodes / the forward passes", f"{ratio:.2f}", "<= 3", ratio <= 3)


BENCHES = (bench_spectrum, bench_regression_memory, bench_sparse_posterior, bench_dual_model)
