"""Lines: task diversity in linear regression, as the half-angle of the cap of the sphere that training draws its tasks from.

`compolens map trained_models/maps/diversity.py --out trained_models/maps`. 2506.05574 reports a transition at a half-
angle of about 120 degrees; depth, dimension and the number of tasks matter too. Held out are the tasks beyond the
cap, with the same inputs.
"""

from itertools import product

from compolens import AdamW, Boundary, CapPrior, Cell, GaussianInputs, LinearRegression, Map, Run, SoftmaxTransformer

ANGLES = (30.0, 60.0, 90.0, 105.0, 120.0, 135.0, 150.0)


def task(angle, d_x):
    inside, outside = CapPrior(angle), CapPrior(angle, outside=True)
    return LinearRegression(
        d_x=d_x, n_context=3 * d_x, n_queries=4, inputs=GaussianInputs(), prior=inside, shifted_prior=outside, loss_scale=1.0
    )


cells = [
    Cell(
        Run(
            SoftmaxTransformer(n_layers=3, d_model=64), task(angle, d_x), steps=3000, init_seed=s, data_seed=s,
            optimizer=AdamW(lr=1e-3), evaluations=5, precision="bfloat16",
        ),
        {"d_x": d_x, "half-angle": angle},
    )
    for s, d_x, angle in product(range(3), (4, 8), ANGLES)
]  # fmt: skip
transition = Boundary(
    "transition",
    "2506.05574",
    ((120.0, 0.0), (120.0, 1.0)),
    "tasks beyond the cap are solved from a half-angle of about 120 degrees",
)
maps = {
    "diversity": Map(
        "Task diversity", cells, x="half-angle", panels=("d_x",), predicted=(transition,), keep=("*half-angle=90.0_seed=0",)
    )
}
