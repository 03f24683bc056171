"""Lines: how many episodes are seen, by the network's width.

`compolens map trained_models/maps/instances.py --out trained_models/maps`. Each length of training has its own
schedule. 2507.07207 reports that data and width bring compositional generalization where the code is given; here it
has to be inferred.
"""

from itertools import product

from compolens import AdamW, Cell, HypernetworkTransformer, Hyperteacher, Map, Run, SoftmaxTransformer

learners = {"softmax": SoftmaxTransformer, "hypernetwork": HypernetworkTransformer}
cells = [
    Cell(
        Run(
            learners[who](d_model=width), Hyperteacher(teacher_seed=s, split_seed=s), steps=steps, init_seed=s, data_seed=s,
            optimizer=AdamW(lr=3e-3), evaluations=2, precision="bfloat16",
        ),
        {"learner": who, "width": width, "episodes seen": 64 * steps},
    )
    for s, who, width, steps in product(range(3), learners, (32, 64, 128), (750, 1500, 3000))
]  # fmt: skip
maps = {"instances": Map("Episodes seen, by width", cells, x="episodes seen", panels=("learner",))}
