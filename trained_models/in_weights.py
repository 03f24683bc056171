"""Labels in the weights: the models of bursty.py on 32 classes, whose contexts do not always show the question's (2312.03002).

    compolens train trained_models/in_weights.py --out trained_models/in_weights

"weights": the context never shows the question's class (p_bursty 0), so that weights alone tell its label. "both": 80 % of the
episodes ask for a novel class, which the context always shows; of the others, which ask for a known one, half show it. So 90 %
show the class that is asked for, 89 % of these a novel one, and 10 % of all need the weights. All else is as in bursty.py, but
that no weights are kept on the way.
"""

from dataclasses import replace

from bursty import runs as bursty

from compolens import Run

REGIMES = {"weights": {"p_bursty": 0.0, "p_novel": 0.0}, "both": {"p_bursty": 0.5, "p_novel": 0.8}}
runs: dict[str, Run] = {}

for s in range(5):
    for name, regime in REGIMES.items():
        other = bursty[f"softmax-{s}"]
        runs[f"{name}-{s}"] = replace(other, task=replace(other.task, n_classes=32, **regime), keep=())
