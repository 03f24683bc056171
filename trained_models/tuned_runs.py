"""The compared architectures at the settings that `tuning.py` chose for each; seed s draws teacher, weights and data anew.

`compolens train trained_models/tuned_runs.py --out trained_models/tuned`. Runs whose tuning has not ended are left out.
"""

from pathlib import Path

from tuning import compared, steps, tunings

from compolens import Hyperteacher, Run, tuned
from compolens.foundation.configs import ConfigError

runs: dict[str, Run] = {}
for name, architectures in compared.items():
    folder = Path(__file__).parent / "tuning" / name
    if not tunings[name].ended(folder):
        continue
    best = tuned(folder)
    for s in range(5):
        sizes = {"d_x": 4, "d_y": 4, "d_hidden": 8} if name == "R" else {}
        task = Hyperteacher(**sizes, teacher_seed=s, split_seed=s)
        for who, architecture in architectures.items():
            run = Run(architecture, task, steps=steps[name], init_seed=s, data_seed=s)
            runs[f"{name}-{who}-{s}"] = best[who].run(run)
if not runs:
    raise ConfigError("no tuning has ended yet; compolens tune trained_models/tuning.py --out trained_models/tuning goes on")
