"""S-RAVEN at the sizes of 2511.20194: `compolens train trained_models/sparse_coding_paper.py --out DIR --device cuda`.

4 and 8 layers, one pass over 10, 20 and 40 million instances of 128 a step, rate 1e-3, decay 0.1, root-mean-square norms in
all models, as the paper says; softmax, HYLA and sparse coding with transfer. Ours, since the paper's public text leaves it
open: width, heads and schedule (those of 2406.05816, whose S-RAVEN it uses), the threshold (calibrated to 90 % zeros, near the
middle of the sparsities it reports), which tokens form a block (rows of the grid). Softmax with transfer is the control it
lacks; sparse coding without transfer, and transfer without a threshold, are the others. Wants a GPU.
"""

from compolens import (
    HYLA,
    CalibratedThreshold,
    FixedThreshold,
    OutputTransfer,
    ReferenceAdamW,
    Run,
    SoftmaxTransformer,
    SparseCoding,
    SRaven,
)

size = {"d_model": 128, "n_heads": 16, "d_head": 4, "d_value": 4, "d_mlp": 256, "n_ctx": 36, "rms_norm": True}
recipe = {
    "batch_size": 128,
    "optimizer": ReferenceAdamW(warmup=1000),
    "evaluations": 16,
    "evaluation_episodes": 4096,
    "answers_only": True,
    "data_device": "cuda",
}
compared = {
    "sparse": (SparseCoding, {"threshold": CalibratedThreshold(0.9), "transfer": OutputTransfer()}),
    "softmax": (SoftmaxTransformer, {}),
    "hyla": (HYLA, {}),
    "softmax-output": (SoftmaxTransformer, {"transfer": OutputTransfer()}),
    "sparse-none": (SparseCoding, {"threshold": CalibratedThreshold(0.9)}),
    "linear-output": (SparseCoding, {"threshold": FixedThreshold(0.0), "transfer": OutputTransfer()}),
}
runs = {}
for layers in (4, 8):
    for millions, steps in ((10, 78_125), (20, 156_250), (40, 312_500)):
        for name, (architecture, settings) in compared.items():
            for s in range(3):
                model = architecture(n_layers=layers, **size, **settings)
                run = Run(model, SRaven(split_seed=s), steps=steps, init_seed=s, data_seed=s, **recipe)
                runs[f"sraven-{name}-{layers}L-{millions}M-{s}"] = run
