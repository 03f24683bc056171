"""The runs this project ships: the modular hyperteacher at two sizes, two architectures and their controls.

F: wide inputs (16 -> 8), where regression on the raw inputs is hopeless and recombination pays.
R: narrow inputs (4 -> 4), where the effect reverses.
Seed s draws teacher, module numbering, initial weights and data anew; architectures are paired on all of them.
"""

from compolens import BottleneckMLP, HypernetworkTransformer, Hyperteacher, Run, SoftmaxTransformer, UnstructuredTeacher

along_the_way = (250, 500, 1000, 2000, 3000, 4500)
runs: dict[str, Run] = {}

for s in range(5):
    task = Hyperteacher(teacher_seed=s, split_seed=s)
    keep = along_the_way if s == 0 else ()
    for name, architecture in (("softmax", SoftmaxTransformer()), ("hypernetwork", HypernetworkTransformer())):
        runs[f"F-{name}-{s}"] = Run(architecture, task, steps=6000, init_seed=s, data_seed=s, keep=keep)

for s in range(3):
    task = Hyperteacher(teacher_seed=s, split_seed=s)
    for name, architecture in (("", BottleneckMLP()), ("-wide", BottleneckMLP(d_hidden=256))):
        runs[f"F-bottleneck{name}-{s}"] = Run(architecture, task, steps=6000, init_seed=s, data_seed=s)

for s in range(3):
    task = Hyperteacher(d_x=4, d_y=4, d_hidden=8, teacher_seed=s, split_seed=s)
    narrow = {"softmax": SoftmaxTransformer(n_layers=2), "hypernetwork": HypernetworkTransformer(n_layers=2, d_hidden=16)}
    for name, architecture in narrow.items():
        runs[f"R-{name}-{s}"] = Run(architecture, task, steps=5000, init_seed=s, data_seed=s)

for name, architecture in (("softmax", SoftmaxTransformer()), ("hypernetwork", HypernetworkTransformer())):
    runs[f"unstructured-{name}-0"] = Run(architecture, UnstructuredTeacher(), steps=6000)
