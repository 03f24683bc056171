"""In-context linear regression: linear and softmax attention whose tokens are the residual stream, and modified attentions.

    compolens train trained_models/regression.py --out trained_models/regression --jobs 2

The first four architectures stand on the tasks of the papers that they are compared with (2212.07677, 2503.12734); the
modified attentions of 2310.13220 on a task and a sweep of ours, since those of the paper are not public.
"""

from compolens import (
    AdamW,
    AugmentedSelfAttention,
    GaussianInputs,
    GaussianPrior,
    LinearRegression,
    LinearSelfAttention,
    NegativeSampleSelfAttention,
    RegularizedSelfAttention,
    Run,
    SoftmaxSelfAttention,
)

descent = AdamW(lr=1e-3, betas=(0.9, 0.999), weight_decay=0.0, warmup=1, final=0.05, clip=0.001)
deep = AdamW(lr=1e-3, betas=(0.9, 0.999), weight_decay=0.0, warmup=100, final=0.02, clip=10.0)
softmax = AdamW(lr=3e-3, betas=(0.9, 0.999), weight_decay=0.0, warmup=100, final=0.05, clip=1.0)
von_oswald, he = LinearRegression.von_oswald(), LinearRegression.he()
runs: dict[str, Run] = {}

for s in range(3):
    seeds = {"init_seed": s, "data_seed": s, "evaluations": 10}
    long = {"batch_size": 512, "optimizer": descent, **seeds}
    runs[f"linear-1L-{s}"] = Run(LinearSelfAttention(), von_oswald, steps=5000, **long)
    runs[f"linear-2L-recurrent-{s}"] = Run(LinearSelfAttention(n_layers=2, tied=True), von_oswald, steps=5000, **long)
    four = SoftmaxSelfAttention(n_heads=4, init_scale=0.1)
    runs[f"softmax-4heads-{s}"] = Run(four, he, steps=4000, batch_size=256, optimizer=softmax, **seeds)

for s in range(3):
    five, long = LinearSelfAttention(n_layers=5, clip_tokens=10.0), {"batch_size": 512, "optimizer": deep}
    runs[f"linear-5L-{s}"] = Run(five, von_oswald, steps=12000, init_seed=s, data_seed=s, evaluations=10, **long)

two = {"n_heads": 2, "init_scale": 0.1}
modified = {"plain": SoftmaxSelfAttention(attends_to_itself=True, **two)}
for alpha in (0.1, 0.3, 0.5, 1.0):
    modified[f"regularized-{alpha}"] = RegularizedSelfAttention(alpha=alpha, **two)
for beta in (0.1, 0.3, 0.5, 1.0):
    for share in (0.1, 0.3, 0.5):
        modified[f"negative-{beta}-{share}"] = NegativeSampleSelfAttention(beta=beta, share=share, **two)
for name, (keys, values) in {"values": (False, True), "keys": (True, False), "both": (True, True)}.items():
    modified[f"augmented-{name}"] = AugmentedSelfAttention(augment_keys=keys, augment_values=values, **two)

sweep = LinearRegression(n_context=15, inputs=GaussianInputs(), prior=GaussianPrior((0.1,) * 10))
for s in range(3):
    long = {"steps": 3000, "batch_size": 256, "optimizer": softmax, "evaluations": 5}
    for name, architecture in modified.items():
        runs[f"{name}-{s}"] = Run(architecture, sweep, init_seed=s, data_seed=s, **long)
