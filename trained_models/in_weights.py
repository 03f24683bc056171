"""Labels in the weights: the models of bursty.py on 32 classes, whose question is seldom or never shown (2312.03002).

    compolens train trained_models/in_weights.py --out trained_models/in_weights

"weights": the context never shows the question's class (p_bursty 0), so that weights alone tell its label. "both": half of the
episodes show it, among them 80 % with novel classes, so that either is needed somewhere. All else is as in bursty.py.
"""

from bursty import adam, size, steps

from compolens import BurstyClassification, Run, SoftmaxTransformer

REGIMES = {"weights": {"p_bursty": 0.0, "p_novel": 0.0}, "both": {"p_bursty": 0.5, "p_novel": 0.8}}
runs: dict[str, Run] = {}

for s in range(5):
    for name, regime in REGIMES.items():
        task = BurstyClassification(n_classes=32, n_context=4, d_item=16, n_positions=16, teacher_seed=s, **regime)
        runs[f"{name}-{s}"] = Run(
            SoftmaxTransformer(**size), task, steps=steps, init_seed=s, data_seed=s, batch_size=128, optimizer=adam,
            evaluations=12, evaluation_episodes=512, answers_only=True,
        )  # fmt: skip
