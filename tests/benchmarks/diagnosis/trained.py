"""Small trained models meant to fail in one way: by what the data leave out, or by what the architecture cannot do.

    compolens train tests/benchmarks/diagnosis/trained.py --out DIR --jobs 2

`expected` was written before any was trained, as a prediction with its reason: unlike the planted cases, these may turn out
otherwise, and a failure is only one where the score on held-out compositions is at least .1 below the test score.
"""

from compolens import (
    AdamW,
    BottleneckMLP,
    HypernetworkTransformer,
    Hyperteacher,
    Run,
    SoftmaxTransformer,
    UnstructuredTeacher,
)

RING = tuple(tuple(sorted((m, (m + 1) % 6))) for m in range(6))
ACROSS = ((0, 3), (1, 4), (2, 5))
APART = ((0, 1), (2, 3), (4, 5))
CROSSED = ((0, 2), (0, 3), (1, 4), (1, 5), (2, 4), (3, 5))

size = {"n_layers": 2, "d_model": 48, "n_heads": 4}
small = {"d_x": 8, "d_y": 4, "d_hidden": 8, "n_modules": 6, "n_queries": 4}
recipe = AdamW(lr=2e-3, warmup=200)
softmax, hypernetwork = SoftmaxTransformer(**size), HypernetworkTransformer(**size, d_code=6, d_hidden=16)
bottleneck = BottleneckMLP(**size, d_code=6, d_hidden=256)

runs: dict[str, Run] = {}
expected: dict[str, tuple[str, str]] = {}


def add(name, architecture, task, label, why, steps=2000, seed=0):
    """A run with its expected label and the reason for expecting it."""
    long = {"optimizer": recipe, "evaluations": 4, "evaluation_episodes": 256}
    runs[name] = Run(architecture, task, steps=steps, init_seed=seed, data_seed=seed, **long)
    expected[name] = (label, why)


for s in range(2):
    seeds = {"teacher_seed": s, "split_seed": s}
    add(
        f"whole-hypernetwork-{s}", hypernetwork, Hyperteacher(**small, **seeds), "compositional",
        "A connected support, an explicit code and an executor that is linear in it.", seed=s,
    )  # fmt: skip
    add(
        f"whole-singles-hypernetwork-{s}", hypernetwork,
        Hyperteacher(**small, teacher_seed=s, support=tuple((m,) for m in range(6)) + RING + CROSSED[:2], held_out=ACROSS[1:]),
        "compositional", "Every module alone, so that its coefficient can be learned apart from the others.", seed=s,
    )  # fmt: skip
    for name, architecture in (("softmax", softmax), ("bottleneck", bottleneck)):
        add(
            f"early-{name}-{s}", architecture, Hyperteacher(**small, **seeds), "has not learned its training compositions",
            "Stopped after 60 steps, within the warm-up.", steps=60, seed=s,
        )  # fmt: skip

for s in range(4):
    ring = tuple((m,) for m in range(6)) + RING if s % 2 else RING
    narrow = Hyperteacher(**small, teacher_seed=s, support=ring, held_out=ACROSS)
    add(
        f"ring-hypernetwork-{s}", hypernetwork, narrow, "fails to infer",
        "The executor is linear in the code, so it can execute what it is given; 6 to 12 combinations teach the encoder "
        "codes that need not hold for others.", seed=s,
    )  # fmt: skip
    add(
        f"ring-bottleneck-{s}", bottleneck, narrow, "cannot execute",
        "The executor is a generic network on [code; x], and has seen codes of 6 to 12 combinations only.", seed=s,
    )  # fmt: skip

for s in range(3):
    apart = Hyperteacher(**small, teacher_seed=s, support=APART, held_out=CROSSED)
    add(
        f"apart-softmax-{s}", softmax, apart, "memorised",
        "Three combinations without a common module: nothing says which half of a pair does what.", seed=s,
    )  # fmt: skip
for s in range(2):
    add(
        f"unstructured-softmax-{s}", softmax, UnstructuredTeacher(**small, teacher_seed=s, split_seed=s), "memorised",
        "Every combination has a network of its own, so that only training's can be known.", seed=s,
    )  # fmt: skip

for s in range(3):
    inputs = {**small, "d_x": 2, "n_context": 32}
    add(
        f"narrow-softmax-{s}", softmax, Hyperteacher(**inputs, teacher_seed=s, support=APART, held_out=CROSSED),
        "generic regression",
        "Two inputs and 32 examples: the answers can be regressed on them without any idea of modules.", seed=s,
    )  # fmt: skip
