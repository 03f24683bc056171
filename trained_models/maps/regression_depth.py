"""Lines: how deep must a transformer be for which learner of linear regression? 1 to 8 layers beside references (2211.15661).

`compolens map trained_models/maps/regression_depth.py --out trained_models/maps`. References are compared after as many
examples as there are coefficients, where they differ most. The weights of four layers are kept, for moments_and_weights, and
beside them those of the paper's control model: its tasks in training all have weights of 1, held-out ones normal weights.

Much smaller than the paper's: 4 coefficients, 8 examples, width 16 instead of 512, 2,500 updates instead of 500,000. Seed s
draws weights and data. The learning rate is the best of six by the score on training tasks, after 1,500 updates of four layers
with seed 100: R² .428 at 2e-3, .510 at 4e-3, .588 at 8e-3, .611 at 1.6e-2, .641 at 3.2e-2, .593 at 6.4e-2 (.72 is least
squares). The control model has the same rate.

Foreseen before any of it was trained: one layer is nearest to one step of descent, two layers to GD++, four and eight to ridge
regression, none to least squares, since trainings are short; on wider inputs each keeps its name. X^T Y is read at an earlier
layer than the weights, both better by two layers than by a linear map, and the control model shows no more of either than the
untrained control.

Depths 3, 5, 6 and 7 came later. Foreseen before any of these was trained: all four are nearest to ridge regression in every
seed, as fitted and on wider inputs, and none to least squares; the mean squared distance from least squares is .25 to .35 at
three layers and .18 to .32 at five to seven, with no trend from four to eight.

Does depth or training decide? `regression_rates` looks for the learning rate of eight layers, after 1,000 updates with seed
100, by the score on training tasks. Foreseen was 1.6e-2; the best of five is that of four layers. So `regression_longer`
trains four and eight layers at it for 5,000 updates, twice as many. Foreseen before any of these was trained: both depths
score more than after 2,500 updates, both are nearest to ridge regression, and least squares is nearest in no seed; the mean
squared distance from it is .12 to .22 at four layers and .12 to .26 at eight, still far from the paper's .01.
"""

from dataclasses import replace
from itertools import product

from compolens import (
    AdamW,
    Cell,
    GaussianPrior,
    LinearRegression,
    Map,
    MixturePrior,
    Run,
    SoftmaxTransformer,
)

normal = LinearRegression.garg(d_x=4, n_context=8)
ones = replace(normal, prior=MixturePrior(((1.0,) * normal.d_x,), 1e-3), shifted_prior=GaussianPrior())
COMPARED = "GD, 1 step; GD, 2 steps; GD++, 2 steps; ridge, l2 0.1; least squares; 3 nearest neighbours"


RATE = 3.2e-2
"""Of four layers; every depth is trained at it for 2,500 updates."""
measures = {"gd_equivalence": {"examples": normal.d_x, "references": COMPARED}}


def trained(layers: int, seed: int, *, weights: str = "normal", steps: int = 2500, lr: float = RATE) -> Run:
    """The model of a depth, whose tasks in training have normal weights, or weights of 1."""
    network = SoftmaxTransformer(n_layers=layers, d_model=16, n_ctx=normal.seq)
    return Run(
        network, ones if weights == "1" else normal, steps=steps, init_seed=seed, data_seed=seed, batch_size=64,
        optimizer=AdamW(lr=lr, weight_decay=0.0), evaluations=5, evaluation_episodes=2048,
    )  # fmt: skip


seeds, depths = range(3), (1, 2, 3, 4, 5, 6, 7, 8)
cells = [Cell(trained(layers, s), {"layers": layers, "weights": "normal"}) for layers, s in product(depths, seeds)]
cells += [Cell(trained(4, s, weights="1"), {"layers": 4, "weights": "1"}) for s in seeds]
longer = [Cell(trained(layers, s, steps=5000), {"layers": layers, "updates": 5000}) for layers, s in product((8, 4), seeds)]
rates = [Cell(trained(8, 100, steps=1000, lr=lr), {"lr": lr}) for lr in (4e-3, 8e-3, 1.6e-2, 3.2e-2, 6.4e-2)]
maps = {
    "regression_depth": Map(
        "Depth, and the nearest learner", cells, x="layers", panels=("weights",), learned=0.3, generalized=0.3,
        measures=measures, keep=("layers=4_*",),
    ),
    "regression_longer": Map(
        "Depth, trained for longer", longer, x="layers", panels=("updates",), learned=0.3, generalized=0.3, measures=measures,
    ),
    "regression_rates": Map("Learning rates of eight layers", rates, x="lr", learned=0.3, generalized=0.3),
}  # fmt: skip
