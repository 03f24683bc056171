"""How the compared architectures are tuned: the same settings for each, by held-aside compositions of a teacher of their own.

Seed 100 draws teacher, numbering, weights and data of nothing that is reported. 4 of its 16 training pairs are set aside: the
settings are chosen on these. `compolens tune trained_models/tuning.py --out trained_models/tuning`; then tuned_runs.py.
"""

from compolens import BottleneckMLP, HypernetworkTransformer, Hyperteacher, Run, SoftmaxTransformer, Tuning

seeds = {"init_seed": 100, "data_seed": 100}
wide = Hyperteacher(teacher_seed=100, split_seed=100, validation=4)
narrow = Hyperteacher(d_x=4, d_y=4, d_hidden=8, teacher_seed=100, split_seed=100, validation=4)
compared = {
    "F": {
        "softmax": SoftmaxTransformer(),
        "hypernetwork": HypernetworkTransformer(),
        "bottleneck": BottleneckMLP(),
        "bottleneck-wide": BottleneckMLP(d_hidden=256),
    },
    "R": {
        "softmax": SoftmaxTransformer(n_layers=2),
        "hypernetwork": HypernetworkTransformer(n_layers=2, d_hidden=16),
    },
}
tasks, steps = {"F": wide, "R": narrow}, {"F": 6000, "R": 5000}
grid = {"lr": (1e-3, 3e-3, 1e-2), "weight_decay": (1e-3, 1e-2, 1e-1)}
tunings = {
    name: Tuning(
        f"{name}, {tasks[name].setting}",
        {who: Run(architecture, tasks[name], steps=steps[name], **seeds) for who, architecture in architectures.items()},
        steps=(steps[name],),
        most={"F": 15, "R": 18}[name],  # room for two more learning rates, of R three
        **grid,
    )
    for name, architectures in compared.items()
}
