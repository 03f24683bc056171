"""Memory while activations are recorded: `python tests/benchmarks/recording.py`, or with `--gigabytes 10` for the real thing.

Each recording runs in a process of its own, whose peak of anonymous memory is compared with what it held when it began.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

from timing import show, tell

REPOSITORY = Path(__file__).resolve().parents[2]
RECORD = """
import json, re, sys, time
import torch
import compolens
from compolens.activations.streams import draw

torch.set_num_threads(1)
trained = compolens.load(sys.argv[1])
sites = [f"blocks.{i}.hook_resid_{part}" for i in range(3) for part in ("pre", "mid", "post")]


def memory(kind):  # of this process alone: not getrusage, whose peak a child inherits from its parent
    return int(re.search(kind + r":\\s+(\\d+)", open("/proc/self/status").read()).group(1)) / 1024


def batches(n):
    seed = 0
    while n > 0:
        yield from draw(trained.task, "ood", min(n, 4096), seed)
        n, seed = n - 4096, seed + 1


one = next(compolens.record(trained.model, draw(trained.task, "ood", 256, 0), sites))
an_episode = sum(a.nbytes for a in one.sites.values()) / 256
list(compolens.record(trained.model, batches(1024), sites))  # whatever is allocated once, is
n = int(float(sys.argv[3]) * 1e6 / an_episode)
before, start = memory("VmRSS"), time.perf_counter()
recording = compolens.record(trained.model, {"ood": batches(n)}, sites, sys.argv[2])
seconds, peak = time.perf_counter() - start, memory("VmHWM")
held = memory("VmRSS")
touched = float(recording[sites[-1]][len(recording) // 2, 0, 0])
opened = memory("VmRSS") - held
written = sum(f.stat().st_size for f in recording.folder.rglob("*.npy")) / 1e6
print(json.dumps({"grown": peak - before, "opened": opened, "written": written, "seconds": seconds}))
"""


def measure(megabytes: float) -> dict[str, float]:
    """Peak memory above the start (MiB), what opening and touching one number added (MiB), megabytes on disk, seconds."""
    model = REPOSITORY / "trained_models" / "F-softmax-0"
    with tempfile.TemporaryDirectory() as folder:
        arguments = [sys.executable, "-c", RECORD, str(model), f"{folder}/recording", str(megabytes)]
        output = subprocess.run(arguments, capture_output=True, text=True, check=True).stdout
    return json.loads(output.splitlines()[-1])


def bench_recording(megabytes: float = 50) -> None:
    small, large = measure(megabytes), measure(10 * megabytes)
    grown = large["grown"] - small["grown"]
    sizes = [f"{run['written'] / 1e3:.2f} GB" for run in (large, small)]
    show(
        f"peak memory of recording {sizes[0]} - {sizes[1]} (+{small['grown']:.0f} MiB)",
        f"{grown:.0f} MiB",
        "< 100 MiB",
        grown < 100,
    )
    tell("   opening it again and reading one number takes", f"{large['opened']:.1f} MiB")
    tell("   written per second, model included", f"{large['written'] / large['seconds']:.0f} MB")


BENCHES = (bench_recording,)

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gigabytes", type=float, default=0.5, help="the larger of two recordings; the other is a tenth")
    bench_recording(100 * parser.parse_args().gigabytes)
