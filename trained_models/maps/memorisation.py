"""Maps of initial scale and of the part of training in which weights decay, with fresh real inputs and with discrete ones.

`compolens map trained_models/maps/memorisation.py --out trained_models/maps`. Small initial weights are said to
favour rules over memorising (2405.05409, 2501.08537), and decay in the middle of training to matter most (2605.04396,
read in its abstract only). With inputs drawn anew in every episode there is little to memorise, so a family with
discrete inputs stands beside.
"""

from itertools import product

from compolens import AdamW, Cell, FanInPower, Hyperteacher, Map, ReferenceAdamW, Run, SoftmaxTransformer, SRaven

GAMMAS = (0.3, 0.4, 0.5, 0.6, 0.7, 0.85, 1.0)
WINDOWS = {"none": None, "early": (0.0, 0.2), "middle": (0.4, 0.6), "late": (0.8, 1.0), "all": None}
DECAY = 0.1


def optimizer(kind, window, **settings):
    """Equal total decay in every window but "none"."""
    return kind(weight_decay=0.0 if window == "none" else DECAY, decay_window=WINDOWS[window], **settings)


def teacher(s):
    return Hyperteacher(teacher_seed=s, split_seed=s)


small = {"n_layers": 2, "d_model": 64, "n_heads": 8, "d_mlp": 128, "n_ctx": 18}
short = {"evaluations": 5, "precision": "bfloat16"}
real = [
    Cell(
        Run(
            SoftmaxTransformer(), teacher(s), steps=2500, init_seed=s, data_seed=s, initialisation=FanInPower(gamma),
            optimizer=optimizer(AdamW, window, lr=3e-3), **short,
        ),
        {"gamma": gamma, "decay": window},
    )
    for s, window, gamma in product(range(5), WINDOWS, GAMMAS)
]  # fmt: skip
discrete = [
    Cell(
        Run(
            SoftmaxTransformer(**small), SRaven(n_features=2, split_seed=s), steps=4000, batch_size=128, init_seed=s,
            data_seed=s, initialisation=FanInPower(gamma), optimizer=optimizer(ReferenceAdamW, window, warmup=200),
            answers_only=True, evaluation_episodes=4096, **short,
        ),
        {"gamma": gamma, "decay": window},
    )
    for s, window, gamma in product(range(5), WINDOWS, GAMMAS)
]  # fmt: skip
maps = {
    "initialisation": Map("Initial scale and decay window, fresh inputs", real, x="gamma", y="decay", keep=("*seed=0",)),
    "initialisation-discrete": Map(
        "Initial scale and decay window, discrete inputs", discrete, x="gamma", y="decay", keep=("*seed=0",)
    ),
}
