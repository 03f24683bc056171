"""How the arms of `arms.py` are tuned: by held-aside compositions of a teacher of their own, as in `tuning.py`.

`compolens tune trained_models/arms_tuning.py --out trained_models/tuning`. Weight decay stays at .01, which both compared
architectures chose at F. A best rate at the edge of the grid extends it, twice at most.
"""

from dataclasses import replace

from tuning import seeds, steps, wide

from compolens import HypernetworkTransformer, OtherExecutorTransformer, Run, SoftmaxTransformer, Tuning

executors = {
    "two-layers": OtherExecutorTransformer(n_hidden=2),
    "tanh": OtherExecutorTransformer(n_hidden=1, activation="tanh"),
    "code-4": HypernetworkTransformer(d_code=4),
    "code-16": HypernetworkTransformer(d_code=16),
}
given = {"given": SoftmaxTransformer()}


def described(title, architectures, task, rates):
    runs = {name: Run(architecture, task, steps=steps["F"], **seeds) for name, architecture in architectures.items()}
    return Tuning(title, runs, lr=rates, weight_decay=(1e-2,), steps=(steps["F"],), most=5)


tunings = {
    "F-given": described("F, the code is given", given, replace(wide, code_given=True), (3e-3, 1e-2, 1e-1 / 3)),
    "F-executors": described("F, other executors", executors, wide, (1e-3, 3e-3, 1e-2)),
}
