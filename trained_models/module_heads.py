"""Heads that are modules: linear attention that is the hypernetwork, written down, and the same layer trained (2407.12275).

    compolens train trained_models/module_heads.py --out trained_models/module_heads

The modular hyperteacher with the task's code in every token, so that nothing is to be inferred. One example in the context:
with the code given it says nothing new. Seed s draws the teacher, the numbering of modules, initial weights and data. The
trained layer has as many heads as there are modules and twice the teacher's hidden width, as the hypernetwork transformer has.
"""

from compolens import AdamW, Hyperteacher, ModuleHeads, Run, TeacherModules

adam = AdamW(lr=3e-3, weight_decay=0.0)
runs: dict[str, Run] = {}

for s in range(3):
    task = Hyperteacher(code_given=True, n_context=1, n_queries=16, teacher_seed=s, split_seed=s)
    seeds = {"init_seed": s, "data_seed": s}
    runs[f"constructed-{s}"] = Run(ModuleHeads(), task, steps=0, initialisation=TeacherModules(), **seeds)
    runs[f"trained-{s}"] = Run(ModuleHeads(d_hidden=32), task, steps=3000, optimizer=adam, evaluations=10, **seeds)
