"""Arms that tell architecture from prior knowledge, at F: those compared know the teacher's equation, or have to infer z.

`given`: the vanilla transformer, with the task's code in every token. `two-layers`, `tanh-biases`, `code-4`, `code-16`:
hypernetwork transformers whose executor has another depth, another activation or another width of the code than the teacher.
Settings are those that `arms_tuning.py` chose; seed s draws the teacher, weights and data of tuned/F-softmax-s and
tuned/F-hypernetwork-s.

`compolens train trained_models/arms.py --out trained_models/arms`. Arms whose tuning has not ended are left out, and so is
`tanh`, which was tuned and cannot learn the task.
"""

from dataclasses import replace
from pathlib import Path

from arms_tuning import CANNOT_LEARN, tunings

from compolens import Run, tuned
from compolens.foundation.configs import ConfigError

runs: dict[str, Run] = {}
for name, tuning in tunings.items():
    folder = Path(__file__).parent / "tuning" / name
    if not tuning.ended(folder):
        continue
    best = tuned(folder)
    for s in range(5):
        for who, run in tuning.runs.items():
            if who in CANNOT_LEARN:
                continue
            task = replace(run.task, teacher_seed=s, split_seed=s, validation=0)
            runs[f"{who}-{s}"] = best[who].run(replace(run, task=task, init_seed=s, data_seed=s))
if not runs:
    raise ConfigError(
        "no tuning has ended yet; compolens tune trained_models/arms_tuning.py --out trained_models/tuning goes on"
    )
