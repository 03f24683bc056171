"""Lines: does a transformer forget how to recombine, and does that depend on its depth? Fuzzy logic, 25 evaluations along.

`compolens map trained_models/maps/depth.py --out trained_models/maps`. 2406.02550 reports success outside the
training distribution that does not last, in deeper models. Every evaluation rests on 16,384 episodes, and each seed
is tested by itself. The width and the batch are half those of the models of fuzzy logic in runs.py.
"""

from itertools import product

from compolens import Cell, FuzzyLogic, Map, ReferenceAdamW, Run, SoftmaxTransformer

size = {"d_model": 64, "n_heads": 8, "d_head": 2, "d_value": 2, "d_mlp": 128, "n_ctx": 32}
cells = [
    Cell(
        Run(
            SoftmaxTransformer(n_layers=layers, attention_dropout=0.1, **size), FuzzyLogic(split_seed=s), steps=25_000,
            init_seed=s, data_seed=s, batch_size=64, optimizer=ReferenceAdamW(), evaluations=25, evaluation_episodes=16_384,
            answers_only=True,
        ),
        {"layers": layers},
    )
    for s, layers in product(range(5), (1, 2, 3))
]  # fmt: skip
maps = {"depth": Map("Depth, and scores along training", cells, x="layers", keep_history=True, learned=0.85, generalized=0.7)}
