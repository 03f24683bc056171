"""Regression on a fixed representation, after every number of examples (2310.10616).

    compolens train trained_models/representation.py --out trained_models/representation

Phi is one layer of a random network, the same in all runs. Much smaller than the paper's. Seed s draws weights and data. The
learning rate is the best of the sweep below, at half of the steps and with a seed that is not shipped.
"""

from compolens import AdamW, InterleavedTokens, RepresentationRegression, Run, SoftmaxTransformer

RATES = (5e-4, 1e-3, 2e-3, 4e-3, 8e-3, 1.6e-2)
task = RepresentationRegression(layout=InterleavedTokens())


def run(rate: float, seed: int, steps: int) -> Run:
    """The training of a seed at a learning rate."""
    adam = AdamW(lr=rate, weight_decay=0.0)
    return Run(
        SoftmaxTransformer(n_layers=4, d_model=32, n_ctx=task.seq), task, steps=steps, init_seed=seed, data_seed=seed,
        batch_size=64, optimizer=adam, evaluations=10, evaluation_episodes=2048,
    )  # fmt: skip


sweep = {f"rate-{rate:g}": run(rate, 100, 1500) for rate in RATES}
runs = {f"softmax-{s}": run(8e-3, s, 3000) for s in range(3)}
