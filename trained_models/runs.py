"""The runs this project ships: a loop per family of tasks; seed s draws task, initial weights and data anew.

Modular hyperteacher, two sizes, two architectures and their controls.
F: wide inputs (16 -> 8), where regression on the raw inputs is hopeless and recombination pays.
R: narrow inputs (4 -> 4), where the effect reverses. Architectures are paired on teacher, module numbering and data.

Fuzzy logic (32 tokens, 70 % of the functions held out), at the size and with the recipe of 2406.05816, its hidden dropout of
attention codes included; "still" runs are without it, "fast" ones at the larger learning rate of its grid,
"light" ones at the smaller weight decay.

S-RAVEN with 3 features instead of 4: the paper's small model (4 layers), without dropout, on what two cores can train; with
sparse-coding attention (2511.20194) and its transfer besides, and transfer without sparsity.
"""

from compolens import (
    HYLA,
    BottleneckMLP,
    CalibratedThreshold,
    FuzzyLogic,
    HYLAWithoutNonlinearity,
    HypernetworkTransformer,
    Hyperteacher,
    LinearAttention,
    OutputTransfer,
    ReferenceAdamW,
    Run,
    SoftmaxTransformer,
    SparseCoding,
    SRaven,
    UnstructuredTeacher,
)

along_the_way = (250, 500, 1000, 2000, 3000, 4500)
runs: dict[str, Run] = {}

for s in range(5):
    task = Hyperteacher(teacher_seed=s, split_seed=s)
    keep = along_the_way if s == 0 else ()
    for name, architecture in (("softmax", SoftmaxTransformer()), ("hypernetwork", HypernetworkTransformer())):
        runs[f"F-{name}-{s}"] = Run(architecture, task, steps=6000, init_seed=s, data_seed=s, keep=keep)

for s in range(3):
    task = Hyperteacher(teacher_seed=s, split_seed=s)
    for name, architecture in (("", BottleneckMLP()), ("-wide", BottleneckMLP(d_hidden=256))):
        runs[f"F-bottleneck{name}-{s}"] = Run(architecture, task, steps=6000, init_seed=s, data_seed=s)

for s in range(3):
    task = Hyperteacher(d_x=4, d_y=4, d_hidden=8, teacher_seed=s, split_seed=s)
    narrow = {"softmax": SoftmaxTransformer(n_layers=2), "hypernetwork": HypernetworkTransformer(n_layers=2, d_hidden=16)}
    for name, architecture in narrow.items():
        runs[f"R-{name}-{s}"] = Run(architecture, task, steps=5000, init_seed=s, data_seed=s)

for name, architecture in (("softmax", SoftmaxTransformer()), ("hypernetwork", HypernetworkTransformer())):
    runs[f"unstructured-{name}-0"] = Run(architecture, UnstructuredTeacher(), steps=6000)

small = {"n_layers": 2, "d_model": 128, "n_heads": 8, "d_head": 2, "d_value": 2, "d_mlp": 256, "n_ctx": 32}
long = {"steps": 50_000, "batch_size": 128, "optimizer": ReferenceAdamW(), "evaluation_episodes": 2048, "answers_only": True}
compared = {"softmax": SoftmaxTransformer, "hyla": HYLA, "linear": LinearAttention, "hyla-linear": HYLAWithoutNonlinearity}
for names in (("softmax", "hyla"), ("linear", "hyla-linear")):
    for s in range(3):
        for name in names:
            keep = (2_000, 5_000, 10_000, 20_000) if s == 0 else ()
            architecture = compared[name](**small, attention_dropout=0.1)
            runs[f"fuzzy-{name}-{s}"] = Run(
                architecture, FuzzyLogic(split_seed=s), init_seed=s, data_seed=s, keep=keep, **long
            )
for s in range(3):
    for name in ("softmax", "hyla", "linear") if s == 0 else ("linear",):
        still = Run(compared[name](**small), FuzzyLogic(split_seed=s), init_seed=s, data_seed=s, **long)
        runs[f"fuzzy-still-{name}-{s}"] = still

# the paper searched over two learning rates and two weight decays, and does not say which it took
faster = long | {"optimizer": ReferenceAdamW(lr=3e-3)}
for s in range(3):
    linear = LinearAttention(**small, attention_dropout=0.1)
    runs[f"fuzzy-fast-linear-{s}"] = Run(linear, FuzzyLogic(split_seed=s), init_seed=s, data_seed=s, **faster)
for name, rate in (("light", 1e-3), ("fast-light", 3e-3)):
    lighter = long | {"optimizer": ReferenceAdamW(lr=rate, weight_decay=0.03)}
    runs[f"fuzzy-{name}-linear-0"] = Run(LinearAttention(**small, attention_dropout=0.1), FuzzyLogic(), **lighter)

small = {"n_layers": 4, "d_model": 128, "n_heads": 16, "d_head": 4, "d_value": 4, "d_mlp": 256, "n_ctx": 27}
long = {"steps": 20_000, "batch_size": 128, "optimizer": ReferenceAdamW(warmup=500), "answers_only": True}
for name in ("hyla", "softmax", "linear"):
    runs[f"sraven3-{name}-0"] = Run(compared[name](**small), SRaven(n_features=3), keep=(5_000, 10_000), **long)

# sparse-coding attention beside them; where the threshold lies is calibrated, since a number means nothing without its scale
sparse = {"threshold": CalibratedThreshold(0.9), "transfer": OutputTransfer()}
for s in range(3):
    task = SRaven(n_features=3, split_seed=s)
    runs[f"sraven3-sparse-{s}"] = Run(SparseCoding(**small, **sparse), task, init_seed=s, data_seed=s, **long)
    for name in ("softmax", "hyla") if s else ():
        runs[f"sraven3-{name}-{s}"] = Run(compared[name](**small), task, init_seed=s, data_seed=s, **long)
with_transfer = SoftmaxTransformer(**small, transfer=OutputTransfer())
runs["sraven3-softmax-output-0"] = Run(with_transfer, SRaven(n_features=3), **long)
