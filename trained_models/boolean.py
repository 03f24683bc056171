"""Boolean functions in context, one small vanilla transformer for all classes (2310.03016).

    compolens train trained_models/boolean.py --out trained_models/boolean

Conjunctions of 2 literals and parities of 2 of 6 variables, all parities of 6 variables, and DNF of 2 terms of 2 literals
over 5 variables. Half of the functions are held out; every part of them is trained on. Much smaller than the paper's
functions, of up to 28 variables. Seed s draws split, weights and data.
"""

from compolens import AdamW, BooleanFunctions, Run, SoftmaxTransformer

adam = AdamW(lr=2e-3, betas=(0.9, 0.98), weight_decay=0.01)
classes = {
    "conjunction": {"kind": "conjunction"},
    "dnf": {"kind": "dnf", "n_bits": 5},
    "parity": {"kind": "parity"},
    "parities": {"kind": "parity", "n_parts": 0},
}
runs: dict[str, Run] = {}

for s in range(3):
    for name, settings in classes.items():
        task = BooleanFunctions(split_seed=s, **settings)
        runs[f"{name}-{s}"] = Run(
            SoftmaxTransformer(n_layers=2, n_ctx=task.seq), task, steps=3000, init_seed=s, data_seed=s, batch_size=64,
            optimizer=adam, evaluations=10, evaluation_episodes=512,
        )  # fmt: skip
