"""Maps of the support: connectedness apart from the number of pairs, and the number of pairs at one connectedness.

`compolens map trained_models/maps/connectedness.py --out trained_models/maps`. The supports "cube" and "two cliques"
show the same number of pairs, with the same degrees, and hold out the same pairs; only the first connects all
modules. Theory (2312.15001) says that linear hypernetworks without over-parameterisation identify the modules in the
first case alone. It does not speak of vector outputs, which pin neurons down by themselves, nor of a wider student.

`rates` is the coarse grid on which the learning rate of the others was chosen: its corners, with a seed of its own.
"""

from itertools import combinations, product

from compolens import AdamW, Boundary, Cell, HypernetworkTransformer, Hyperteacher, Map, Run, SoftmaxTransformer

RATE, TEACHER = 3e-3, 16
short = {"steps": 2500, "evaluations": 5, "precision": "bfloat16"}
exact = {"precision": "float32"}  # of the maps below: on a processor without bfloat16 products it is the faster one
aligned = {"module_alignment": {"episodes": 512}}
SUPPORTS, OUTPUTS, WIDTHS = ("cube", "two cliques"), (1, 2, 4, 8), (1.0, 2.0, 4.0)


def run(architecture, task, s, rate=RATE, **more):
    return Run(architecture, task, init_seed=s, data_seed=s, optimizer=AdamW(lr=rate), **(short | more))


def task(s, support, d_y=8, **more):
    return Hyperteacher(d_y=d_y, support=support, n_context=48 if d_y == 1 else 24, teacher_seed=s, split_seed=s, **more)


def student(width):
    return HypernetworkTransformer(d_hidden=int(TEACHER * width))


cells = [
    Cell(run(student(width), task(s, support, d_y), s), {"support": support, "d_y": d_y, "student width": width})
    for s, support, d_y, width in product(range(5), SUPPORTS, OUTPUTS, WIDTHS)
]
vanilla = [
    Cell(run(SoftmaxTransformer(), task(s, support, d_y), s, **exact), {"support": support, "d_y": d_y})
    for s, support, d_y in product(range(5), SUPPORTS, OUTPUTS)
]
corners = [
    Cell(
        run(student(width), task(100, support, d_y, validation=3), 100, rate),
        {"corner": f"{support}, {d_y}, ×{width:g}", "lr": rate},
    )
    for support, d_y, width, rate in product(SUPPORTS, (1, 8), (1.0, 2.0), (1e-3, 3e-3, 1e-2))
]

# from a ring of pairs at distance 1 to all pairs but those that `connected` holds out: every support connects all modules
HELD_OUT = tuple((a, b) for a, b in combinations(range(8), 2) if (b - a) % 8 in (3, 4, 5) and (a < 4) != (b < 4))
NEAR = [(m, (m + 1) % 8) for m in range(8)]
FURTHER = [tuple(sorted((m, (m + 2) % 8))) for m in (0, 4, 2, 6, 1, 5, 3, 7)] + [(0, 3), (4, 7)]
SINGLES = tuple((m,) for m in range(8))


def pairs(count):
    shown = [tuple(sorted(pair)) for pair in [*NEAR, *FURTHER]][:count]
    return SINGLES + tuple(sorted(shown))


learners = {"softmax": SoftmaxTransformer(), "hypernetwork": HypernetworkTransformer(d_hidden=2 * TEACHER)}
counted = [
    Cell(
        run(architecture, Hyperteacher(support=pairs(count), held_out=HELD_OUT, teacher_seed=s), s, **exact),
        {"learner": who, "pairs shown": count},
    )
    for s, (who, architecture), count in product(range(5), learners.items(), (8, 10, 12, 14, 16, 18))
]
no_difference = Boundary(
    "two cliques fail left of it", "2312.15001", ((2, "two cliques"), (2, "cube")),
    "at student width 1 the cube generalizes and two cliques do not; the wider the output, the smaller the difference",
)  # fmt: skip
maps = {
    "rates": Map("Learning rates at the corners of the maps of supports", corners, x="lr", y="corner"),
    "connectedness": Map(
        "Connectedness at equal degrees, by width of the output and of the student", cells, x="d_y", y="support",
        panels=("student width",), measures=aligned, predicted=(no_difference,), keep=("*seed=0",),
    ),
    "connectedness-vanilla": Map("The same, vanilla transformer", vanilla, x="d_y", y="support", keep=("*seed=0",)),
    "pairs": Map("Pairs shown, all supports connected", counted, x="pairs shown", panels=("learner",), keep=("*seed=0",)),
}  # fmt: skip
