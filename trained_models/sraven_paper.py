"""S-RAVEN at the size of 2406.05816, for a GPU: `compolens train trained_models/sraven_paper.py --out DIR --device cuda`.

4 layers, width 1, one pass over 20 million instances of 128 a step, with the released code's dropout of attention codes 0.1.
The first nine runs are those of the comparison (softmax, linear, HYLA; three seeds); then the ablations, half and twice the
data. Data is drawn on the GPU, so a run is repeated bit for bit on the same kind of GPU only.
"""

from compolens import (
    HYLA,
    DeepHYLA,
    HYLAWithoutBoth,
    HYLAWithoutNonlinearity,
    HYLAWithoutRMSHead,
    HYLAWithSoftmax,
    LinearAttention,
    LinearRMSHead,
    ReferenceAdamW,
    Run,
    SoftmaxTransformer,
    SRaven,
)

size = {"n_layers": 4, "d_model": 128, "n_heads": 16, "d_head": 4, "d_value": 4, "d_mlp": 256, "n_ctx": 36}
recipe = {
    "batch_size": 128,
    "optimizer": ReferenceAdamW(warmup=1000),
    "evaluations": 16,
    "evaluation_episodes": 4096,
    "answers_only": True,
    "data_device": "cuda",
}
compared = {"softmax": SoftmaxTransformer, "linear": LinearAttention, "hyla": HYLA}
ablations = {
    "linear-rms": LinearRMSHead,
    "hyla-no-rms": HYLAWithoutRMSHead,
    "hyla-linear": HYLAWithoutNonlinearity,
    "hyla-neither": HYLAWithoutBoth,
    "hyla-softmax": HYLAWithSoftmax,
    "hyla-deep": DeepHYLA,
}
runs = {}


def add(name: str, architecture: type, seed: int, steps: int) -> None:
    task, model = SRaven(split_seed=seed), architecture(**size, attention_dropout=0.1)
    runs[f"{name}-{seed}"] = Run(model, task, steps=steps, init_seed=seed, data_seed=seed, **recipe)


for chosen in (compared, ablations):
    for s in range(3):
        for name, architecture in chosen.items():
            add(f"sraven-{name}", architecture, s, 156_250)
for millions, steps in ((10, 78_125), (40, 312_500)):
    for s in range(3):
        for name, architecture in compared.items():
            add(f"sraven-{name}-{millions}M", architecture, s, steps)
