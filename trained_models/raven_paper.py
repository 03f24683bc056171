"""RAVEN as in 2511.20194: `compolens train trained_models/raven_paper.py --data RAVEN-10000 --out DIR --device cuda`.

The panel that is missing is regressed as an image. Adam at a constant 1e-4, batches of 256, mean squared error and 2,000
epochs are the paper's. Ours, since it does not say: the model's size, images of 20 x 20 in 2 x 2 patches, all seven
configurations, the threshold, and the split: a quarter of the combinations of rules is held out, so an epoch is some 32,000
files. Transfer matches the rows of the grid. Each architecture stands beside what it could owe its score to: transfer without
a threshold (linear) and with softmax, and a threshold without transfer. Wants a GPU, and the data set on disk.
"""

from compolens import AdamW, FixedThreshold, OutputTransfer, Raven, RelativeTransfer, Run, SoftmaxTransformer, SparseCoding

EPOCHS, FILES, BATCH = 2000, 32_000, 256

size = {
    "n_layers": 4, "d_model": 128, "n_heads": 16, "d_head": 4, "d_value": 4, "d_mlp": 256, "n_ctx": 36, "rms_norm": True,
}  # fmt: skip
attentions = {
    "softmax": (SoftmaxTransformer, {}),
    "sparse": (SparseCoding, {"threshold": FixedThreshold(0.01)}),
    "linear": (SparseCoding, {"threshold": FixedThreshold(0.0)}),
}
transfers = {"none": None, "output": OutputTransfer(), "relative": RelativeTransfer()}
recipe = {
    "steps": EPOCHS * FILES // BATCH,
    "batch_size": BATCH,
    "optimizer": AdamW(lr=1e-4, betas=(0.9, 0.999), weight_decay=0.0, warmup=0, final=1.0, clip=None),
    "evaluations": 20,
    "evaluation_episodes": 4096,
    "answers_only": True,
    "data_device": "cuda",
}
runs: dict[str, Run] = {}

for s in range(3):
    for attention, (architecture, settings) in attentions.items():
        for transfer, moved in transfers.items():
            model = architecture(**size, **settings, transfer=moved)
            runs[f"raven-{attention}-{transfer}-{s}"] = Run(model, Raven(split_seed=s), init_seed=s, data_seed=s, **recipe)
