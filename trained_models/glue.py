"""Modified attentions on text: `compolens train trained_models/glue.py 'SST-2-*' --data GLUE --out DIR` (2310.13220).

GLUE is a folder with GLUE's own files, such as GLUE/SST-2/train.tsv; nothing is downloaded. The paper changes the attention of
a BERT-like model, with strengths that are not public. These transformers are small and trained from fresh weights: scores are
to be compared with the plain one's of the same seed, not with the paper's:

    compolens probe generalization DIR
    compolens analyze attention_modifications DIR

Held out are longer texts. Sizes and strengths are those of trained_models/regression.py, or chosen here; none was tuned.
"""

from compolens import (
    AdamW,
    Augmented,
    Glue,
    ModifiedTransformer,
    NegativeSamples,
    Regularized,
    Run,
    SoftmaxTransformer,
)

LONGEST = {"SST-2": 24, "CoLA": 16, "MRPC": 64, "RTE": 64}
"""Task of the paper's, or SST-2 -> words of the longest text that is trained on."""
CHANGES = {f"regularized-{alpha}": Regularized(alpha) for alpha in (0.1, 0.5, 1.0)}
CHANGES |= {f"negative-{beta}-0.3": NegativeSamples(beta, 0.3) for beta in (0.1, 0.3, 0.5)}
CHANGES |= {"augmented-values": Augmented(augment_keys=False), "augmented-keys": Augmented(augment_values=False)}
adam = AdamW(lr=1e-3, weight_decay=1e-2, warmup=500)
runs: dict[str, Run] = {}

for name, longest in LONGEST.items():
    task = Glue(name=name, longest=longest)
    size = {"n_layers": 2, "d_model": 64, "n_heads": 4, "n_ctx": task.seq}
    networks = {"softmax": SoftmaxTransformer(**size)}
    networks |= {change: ModifiedTransformer(**size, modification=what) for change, what in CHANGES.items()}
    for s in range(3):
        recipe = {"steps": 5000, "init_seed": s, "data_seed": s, "batch_size": 64, "optimizer": adam, "answers_only": True}
        runs |= {f"{name}-{label}-{s}": Run(network, task, **recipe) for label, network in networks.items()}
