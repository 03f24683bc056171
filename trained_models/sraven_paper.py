"""S-RAVEN at the size of 2406.05816: `compolens train trained_models/sraven_paper.py --out trained_models/sraven4`.

4 features of 8 values, 4 layers, width 1, one pass over freshly drawn instances, 128 a step, with the released code's dropout
of attention codes 0.1, in mixed precision. On one core about 3.3 hours for 10 million instances with softmax attention and 4
with HYLA; on one H100, `--device cuda --jobs 4` takes about 8 minutes for four runs (docs/machines.md says what else that asks
for). Instances are drawn on the CPU, so that either kind of machine goes on with a run that the other began.

In this order:

1. `pilot-*`: 2.5 million instances at both learning rates of the paper's grid; warm-up, constant rate, decay. The rate with
   the lower training loss at the end is taken for all that follows. Seed 9 is used for nothing else.
2. `*-10M-*`: 10 million instances along the paper's cosine, HYLA and softmax attention paired on split and data. The rule,
   fixed before the first of them: both differences in held-out panel accuracy above 5 points: "HYLA ahead at 10M"; both within
   2 points: "not seen at 10M"; else a third pair decides.
3. `*-20M-0`: the length of the paper's Table A1.
4. The other kinds of attention at 10 million; the ablations of the paper; 40 million.
"""

from typing import Any

from compolens import (
    HYLA,
    CalibratedThreshold,
    DeepHYLA,
    HYLAWithoutBoth,
    HYLAWithoutNonlinearity,
    HYLAWithoutRMSHead,
    HYLAWithSoftmax,
    LinearAttention,
    LinearRMSHead,
    OutputTransfer,
    ReferenceAdamW,
    Run,
    SoftmaxTransformer,
    SparseCoding,
    SRaven,
    WarmupStableDecay,
)

MILLION = 1_000_000
BATCH = 128
KEPT = 8

CHOSEN: dict[str, float] = {"hyla": 1e-3, "softmax": 1e-3}
"""The learning rate that the pilots chose, by attention; others take softmax attention's."""

size: dict[str, Any] = {
    "n_layers": 4, "d_model": 128, "n_heads": 16, "d_head": 4, "d_value": 4, "d_mlp": 256, "n_ctx": 36,
    "attention_dropout": 0.1,
}  # fmt: skip
recipe: dict[str, Any] = {
    "batch_size": BATCH,
    "evaluations": 16,
    "evaluation_episodes": 4096,
    "answers_only": True,
    "precision": "bfloat16",
}
sparse = {"threshold": CalibratedThreshold(0.5), "transfer": OutputTransfer()}
compared = {"hyla": HYLA(**size), "softmax": SoftmaxTransformer(**size)}
others = {
    "linear": LinearAttention(**size),
    "softmax-output": SoftmaxTransformer(**size, transfer=OutputTransfer()),
    "sparse-output": SparseCoding(**size, **sparse),
}
ablations = {
    "linear-rms": LinearRMSHead(**size),
    "hyla-no-rms": HYLAWithoutRMSHead(**size),
    "hyla-linear": HYLAWithoutNonlinearity(**size),
    "hyla-neither": HYLAWithoutBoth(**size),
    "hyla-softmax": HYLAWithSoftmax(**size),
    "hyla-deep": DeepHYLA(**size),
}
runs: dict[str, Run] = {}


def steps_of(millions: float) -> int:
    """Updates in one pass over so many million instances."""
    return int(millions * MILLION / BATCH)


def along(steps: int) -> tuple[int, ...]:
    """The steps whose weights are kept: halves of halves of the whole length, eight in all."""
    return tuple(steps // 2**k for k in range(KEPT, 0, -1))


for rate in (1e-3, 3e-4):
    for name, architecture in compared.items():
        runs[f"pilot-{name}-lr{rate:g}"] = Run(
            architecture, SRaven(split_seed=9), steps=steps_of(2.5), init_seed=9, data_seed=9,
            optimizer=WarmupStableDecay(lr=rate, warmup=1000), **recipe,
        )  # fmt: skip


def add(architectures: dict[str, Any], millions: int, seeds: tuple[int, ...]) -> None:
    for s in seeds:
        for name, architecture in architectures.items():
            optimizer = ReferenceAdamW(lr=CHOSEN.get(name, CHOSEN["softmax"]), warmup=1000)
            steps = steps_of(millions)
            runs[f"{name}-{millions}M-{s}"] = Run(
                architecture, SRaven(split_seed=s), steps=steps, init_seed=s, data_seed=s, keep=along(steps),
                optimizer=optimizer, **recipe,
            )  # fmt: skip


add(compared, 10, (0, 1))
add(compared, 20, (0,))
add(others, 10, (0,))
add(compared, 10, (2,))
add(compared | {"linear": others["linear"]}, 20, (1, 2))
add(ablations, 20, (0, 1, 2))
add(compared | {"linear": others["linear"]}, 40, (0, 1, 2))
