"""In-context against in-weights learning: two layers of attention on bursty labelled items, along training (2312.03002).

    compolens train trained_models/bursty.py --out trained_models/bursty

Smaller than the paper's: 4 labelled items instead of 8, items of width 16 instead of 63, 128 classes, and attention with a
learned bias by relative position, so that a label finds the item before it within what two cores train in a minute. Each
item's class occurs once (burstiness 1); 80 % of the episodes show novel classes. Seed s draws classes, labels, weights, data.
"""

from compolens import AdamW, BurstyClassification, Run, SoftmaxTransformer

adam = AdamW(lr=3e-3, betas=(0.9, 0.999), weight_decay=0.0, warmup=1, final=1.0, clip=None)
size = {"n_layers": 2, "d_model": 64, "n_heads": 1, "attn_only": True, "n_ctx": 9}
steps = 3000
runs: dict[str, Run] = {}

for s in range(5):
    task = BurstyClassification(n_classes=128, n_context=4, d_item=16, n_positions=16, teacher_seed=s)
    runs[f"softmax-{s}"] = Run(
        SoftmaxTransformer(**size), task, steps=steps, init_seed=s, data_seed=s, batch_size=128, optimizer=adam,
        keep=tuple(range(0, steps, 250)), evaluations=12, evaluation_episodes=512, answers_only=True,
    )  # fmt: skip
