"""Small models for the contest of predictors: on two families, each setting is changed by itself, with four seeds.

    compolens train trained_models/contest.py --out trained_models/contest

Neighbours differ from the first model of their family in one setting, so that they can be compared by sign. The settings were
chosen before any predictor was measured on these models. Seed s draws task, split, weights and data.
"""

from compolens import AdamW, BooleanFunctions, HypernetworkTransformer, Hyperteacher, Run, SoftmaxTransformer

SEEDS = range(4)
runs: dict[str, Run] = {}

# modular hyperteachers with narrow inputs, on which models of this size learn all that they are trained on
narrow = {"d_x": 4, "d_y": 4, "d_hidden": 8, "support": "random"}
first = {"n_layers": 2, "d_model": 32}
learners = {
    "softmax": (SoftmaxTransformer(**first), {}, {}),
    "layers-1": (SoftmaxTransformer(**first | {"n_layers": 1}), {}, {}),
    "layers-3": (SoftmaxTransformer(**first | {"n_layers": 3}), {}, {}),
    "width-64": (SoftmaxTransformer(**first | {"d_model": 64}), {}, {}),
    "hypernetwork": (HypernetworkTransformer(**first, d_hidden=16), {}, {}),
    "rate-low": (SoftmaxTransformer(**first), {}, {"lr": 3e-3}),
    "decay": (SoftmaxTransformer(**first), {}, {"weight_decay": 0.3}),
    "half-held-out": (SoftmaxTransformer(**first), {"fraction_held_out": 0.5}, {}),
    "ones": (SoftmaxTransformer(**first), {"coefficients": "ones"}, {}),
    "one-output": (SoftmaxTransformer(**first), {"d_y": 1}, {}),
}
for s in SEEDS:
    for name, (architecture, task, optimizer) in learners.items():
        runs[f"hyperteacher-{name}-{s}"] = Run(
            architecture, Hyperteacher(**narrow | task, teacher_seed=s, split_seed=s), steps=2000, init_seed=s, data_seed=s,
            optimizer=AdamW(**{"lr": 1e-2, "weight_decay": 0.01} | optimizer), evaluations=2, evaluation_episodes=1024,
        )  # fmt: skip

learners = {
    "softmax": (first, {}, {}),
    "layers-3": (first | {"n_layers": 3}, {}, {}),
    "width-64": (first | {"d_model": 64}, {}, {}),
    "heads-8": (first | {"n_heads": 8}, {}, {}),
    "decay": (first, {}, {"weight_decay": 0.3}),
    "quarter-held-out": (first, {"fraction_held_out": 0.25}, {}),
    "most-held-out": (first, {"fraction_held_out": 0.7}, {}),
}
for s in SEEDS:
    for name, (size, settings, optimizer) in learners.items():
        task = BooleanFunctions(kind="conjunction", split_seed=s, **settings)
        runs[f"boolean-{name}-{s}"] = Run(
            SoftmaxTransformer(**size, n_ctx=task.seq), task, steps=2000, init_seed=s, data_seed=s,
            optimizer=AdamW(**{"lr": 2e-3, "betas": (0.9, 0.98), "weight_decay": 0.01} | optimizer), evaluations=2,
            evaluation_episodes=1024,
        )  # fmt: skip
