"""Maps of initial scale and of the part of training in which weights decay, with fresh real inputs and with discrete ones.

`compolens map trained_models/maps/memorisation.py --out trained_models/maps`. Small initial weights are said to
favour rules over memorising (2405.05409, 2501.08537), and decay in the middle of training to matter most (2605.04396,
read in its abstract only). With inputs drawn anew in every episode there is little to memorise, so a family with
discrete inputs stands beside: conjunctions of two literals. S-RAVEN with 2 features was described here first. In a pilot
(seed 9, 4,000 steps) its panel accuracy was .26 on training compositions, so none of its cells would have counted.
"""

from itertools import product

from compolens import AdamW, BooleanFunctions, Cell, FanInPower, Hyperteacher, Map, Run, SoftmaxTransformer

GAMMAS = (0.3, 0.4, 0.5, 0.6, 0.7, 0.85, 1.0)
WINDOWS = {"none": None, "early": (0.0, 0.2), "middle": (0.4, 0.6), "late": (0.8, 1.0), "all": None}
DECAY = 0.1
KEPT = ("gamma=0.5_decay=[em]*_seed=0",)


def optimizer(window, **settings):
    """Equal total decay in every window but "none"."""
    return AdamW(weight_decay=0.0 if window == "none" else DECAY, decay_window=WINDOWS[window], **settings)


def teacher(s):
    return Hyperteacher(teacher_seed=s, split_seed=s)


def conjunctions(s):
    return BooleanFunctions(kind="conjunction", split_seed=s)


short = {"evaluations": 5}
real = [
    Cell(
        Run(
            SoftmaxTransformer(), teacher(s), steps=2500, init_seed=s, data_seed=s, initialisation=FanInPower(gamma),
            optimizer=optimizer(window, lr=3e-3), precision="bfloat16", **short,
        ),
        {"gamma": gamma, "decay": window},
    )
    for s, window, gamma in product(range(5), WINDOWS, GAMMAS)
]  # fmt: skip
discrete = [
    Cell(
        Run(
            SoftmaxTransformer(n_layers=2, n_ctx=conjunctions(s).seq), conjunctions(s), steps=3000, batch_size=32, init_seed=s,
            data_seed=s, initialisation=FanInPower(gamma), optimizer=optimizer(window, lr=2e-3, betas=(0.9, 0.98)),
            evaluation_episodes=512, **short,
        ),
        {"gamma": gamma, "decay": window},
    )
    for s, window, gamma in product(range(5), WINDOWS, GAMMAS)
]  # fmt: skip
maps = {
    "initialisation": Map("Initial scale and decay window, fresh inputs", real, x="gamma", y="decay", keep=KEPT),
    "initialisation-discrete": Map(
        "Initial scale and decay window, discrete inputs", discrete, x="gamma", y="decay", keep=KEPT
    ),
}
