"""Linear regression answered by a mean and a variance, after every number of examples (2405.15115).

    compolens train trained_models/uncertainty.py --out trained_models/uncertainty

Weights are standard normal in training, and twice as large where they are held out; the noise has a standard deviation of 1/2.
Much smaller than the paper's. The rate is the best of three by the log-likelihood of training tasks, with seed 0: -1.26 nats
at .001, -1.17 at .003, -1.16 at .01. Seed s draws weights and data.
"""

from compolens import AdamW, GaussianInputs, GaussianPrior, InterleavedTokens, Run, SoftmaxTransformer, UncertainRegression

adam = AdamW(lr=1e-2, betas=(0.9, 0.98), weight_decay=0.0, warmup=200)
wider = GaussianPrior((4.0, 4.0))
task = UncertainRegression(
    d_x=2, n_context=8, inputs=GaussianInputs(), layout=InterleavedTokens(), prior=GaussianPrior(), shifted_prior=wider
)
runs = {
    f"softmax-{s}": Run(
        SoftmaxTransformer(n_layers=2, n_ctx=task.seq), task, steps=2000, init_seed=s, data_seed=s, batch_size=64,
        optimizer=adam, evaluations=4, evaluation_episodes=512,
    )
    for s in range(3)
}  # fmt: skip
