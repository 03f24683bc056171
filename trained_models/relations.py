"""Is it sparsity, or is it transfer? Small models on relations between blocks, three seeds for every cell of the comparison.

`compolens train trained_models/relations.py --out trained_models/relations --jobs 2`. Attention alone (no MLP, no biases), 1
or 2 layers, with and without a code of a token's place in its block; softmax, soft threshold and the same without a threshold;
without transfer, with the printed one and with the relative one. Then images instead of vectors: whole transformers of 2
layers, identity and a quarter turn as operators. Seed s draws split, initial weights and data.
"""

from compolens import (
    AdamW,
    CalibratedThreshold,
    FixedThreshold,
    OutputTransfer,
    RelationImages,
    Relations,
    RelativeTransfer,
    Run,
    SoftmaxTransformer,
    SparseCoding,
)

size = {"d_model": 32, "n_heads": 4, "attn_only": True, "bias_free": True, "rms_norm": True}
attentions = {
    "softmax": (SoftmaxTransformer, {}),
    "sparse": (SparseCoding, {"threshold": FixedThreshold(0.01)}),
    "linear": (SparseCoding, {"threshold": FixedThreshold(0.0)}),
}
transfers = {"none": None, "output": OutputTransfer(), "relative": RelativeTransfer()}
adam = AdamW(lr=3e-3, betas=(0.9, 0.999), weight_decay=0.0, warmup=0, final=0.0, clip=None)
long = {"steps": 2500, "batch_size": 256, "optimizer": adam, "evaluations": 5}
runs: dict[str, Run] = {}

for s in range(3):
    for positions in (False, True):
        task = Relations(positions=positions, split_seed=s)
        for layers in (1, 2):
            for attention, (architecture, settings) in attentions.items():
                for transfer, moved in transfers.items():
                    name = f"{layers}L{'-positions' if positions else ''}-{attention}-{transfer}-{s}"
                    model = architecture(n_layers=layers, **size, **settings, transfer=moved)
                    runs[name] = Run(model, task, init_seed=s, data_seed=s, **long)

# xi = 0.01 leaves few zeros beside the empty row of the hidden token; here nine of ten scores are silenced
for s in range(3):
    for positions in (False, True):
        task = Relations(positions=positions, split_seed=s)
        for transfer, moved in transfers.items():
            name = f"2L{'-positions' if positions else ''}-sparser-{transfer}-{s}"
            model = SparseCoding(n_layers=2, **size, threshold=CalibratedThreshold(0.9), transfer=moved)
            runs[name] = Run(model, task, init_seed=s, data_seed=s, **long)

size = {"n_layers": 2, "d_model": 64, "n_heads": 8, "rms_norm": True}
adam = AdamW(lr=2e-3, weight_decay=0.0, final=0.0)
long = {"steps": 5000, "batch_size": 64, "optimizer": adam, "evaluations": 5}
for s in range(3):
    task = RelationImages(n_left=2, n_right=2, fraction_held_out=0.25, split_seed=s)
    for attention, (architecture, settings) in attentions.items():
        for transfer, moved in transfers.items():
            model = architecture(**size, **settings, transfer=moved)
            runs[f"images-{attention}-{transfer}-{s}"] = Run(model, task, init_seed=s, data_seed=s, **long)
