"""Lines: is a label told by the context where labels outnumber the items of the context alone? Bursty items (2312.03002).

`compolens map trained_models/maps/labels_and_items.py --out trained_models/maps`. The paper's condition: with more labels than
items, a model first learns to name some label of the context, and then which; with as few labels as items, naming one of the
context's says nothing, this first step brings no gain, and the context is not learned. Runs are those of
trained_models/bursty.py with other numbers of labels (32 there) and of items (4 there); seeds draw classes, labels, weights
and data.

Foreseen before any of it was trained: with 4 items, novel classes are answered (accuracy above .9) with 8 and 32 labels, and
not with 2 and 4; with 2 items, with 4 and 8 labels, and not with 2.
"""

from itertools import product

from compolens import AdamW, BurstyClassification, Cell, Map, Run, SoftmaxTransformer

adam = AdamW(lr=3e-3, betas=(0.9, 0.999), weight_decay=0.0, warmup=1, final=1.0, clip=None)
size = {"n_layers": 2, "d_model": 64, "n_heads": 1, "attn_only": True}
steps = 3000
cells = []

for (items, labels), s in product([(2, 2), (2, 4), (2, 8), (4, 2), (4, 4), (4, 8), (4, 32)], range(3)):
    task = BurstyClassification(n_classes=128, n_labels=labels, n_context=items, d_item=16, n_positions=16, teacher_seed=s)
    run = Run(
        SoftmaxTransformer(n_ctx=task.seq, **size), task, steps=steps, init_seed=s, data_seed=s, batch_size=128,
        optimizer=adam, evaluations=12, evaluation_episodes=512, answers_only=True,
    )  # fmt: skip
    cells.append(Cell(run, {"labels": labels, "items": items}))
maps = {
    "labels_and_items": Map(
        "Labels, and items of the context", cells, x="labels", keep_history=True, learned=0.0, generalized=0.9,
        measures={"in_context_or_in_weights": {"episodes": 2048}},
    )
}  # fmt: skip
