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


def cell(layers: int, weights: str, seed: int) -> Cell:
    """The model of a depth, whose tasks in training have normal weights, or weights of 1."""
    network = SoftmaxTransformer(n_layers=layers, d_model=16, n_ctx=normal.seq)
    run = Run(
        network, ones if weights == "1" else normal, steps=2500, init_seed=seed, data_seed=seed, batch_size=64,
        optimizer=AdamW(lr=3.2e-2, weight_decay=0.0), evaluations=5, evaluation_episodes=2048,
    )  # fmt: skip
    return Cell(run, {"layers": layers, "weights": weights})


cells = [cell(layers, "normal", s) for layers, s in product((1, 2, 4, 8), range(3))]
cells += [cell(4, "1", s) for s in range(3)]
maps = {
    "regression_depth": Map(
        "Depth, and the nearest learner", cells, x="layers", panels=("weights",), learned=0.3, generalized=0.3,
        measures={"gd_equivalence": {"examples": normal.d_x, "references": COMPARED}}, keep=("layers=4_*",),
    )
}  # fmt: skip
