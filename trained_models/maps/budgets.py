"""Lines: held-out error against in-distribution error, from trainings of different lengths, each with its own schedule.

`compolens map trained_models/maps/budgets.py --out trained_models/maps`, once trained_models/tuning is made: rate and
decay of each architecture are those that were chosen for it.

Expected, before any score of this map was read: more updates lower both errors of every architecture; where in-distribution
errors of the softmax and the hypernetwork transformer overlap, the latter's held-out error is at most half as large; the
bottleneck's in-distribution errors are above those of both.
"""

from dataclasses import replace
from itertools import product
from pathlib import Path

from compolens import BottleneckMLP, Cell, HypernetworkTransformer, Hyperteacher, Map, Run, SoftmaxTransformer, tuned

learners = {"softmax": SoftmaxTransformer(), "hypernetwork": HypernetworkTransformer(), "bottleneck": BottleneckMLP()}
best = tuned(Path(__file__).parents[1] / "tuning" / "F")
cells = []
for s, who, steps in product(range(3), learners, (1500, 3000, 4500)):
    task = Hyperteacher(teacher_seed=s, split_seed=s)
    run = best[who].run(Run(learners[who], task, init_seed=s, data_seed=s, evaluations=2))
    cells.append(Cell(replace(run, steps=steps), {"learner": who, "steps": steps}))
maps = {"budgets": Map("Lengths of training, each annealed by itself", cells, x="steps", panels=("learner",))}
