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
CANNOT_LEARN = ("tanh",)
"""Without biases it answers with an odd function of x for every code, and the teacher's relu network is half even: the best
odd function scores .64 to .72 on training compositions. Seen when it was tuned, so that it is trained with no other seed."""
biased = {"tanh-biases": OtherExecutorTransformer(n_hidden=1, activation="tanh", biases=True)}
"""In its place: the code generates biases, too."""
given = {"given": SoftmaxTransformer()}


def described(title, architectures, task, rates):
    runs = {name: Run(architecture, task, steps=steps["F"], **seeds) for name, architecture in architectures.items()}
    return Tuning(title, runs, lr=rates, weight_decay=(1e-2,), steps=(steps["F"],), most=5)


tunings = {
    "F-given": described("F, the code is given", given, replace(wide, code_given=True), (3e-3, 1e-2, 1e-1 / 3)),
    "F-executors": described("F, other executors", executors, wide, (1e-3, 3e-3, 1e-2)),
    "F-biased": described("F, tanh with biases", biased, wide, (1e-3, 3e-3, 1e-2)),
}
