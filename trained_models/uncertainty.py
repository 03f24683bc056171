"""Linear regression answered by a mean and a variance, after every number of examples (2405.15115).

    compolens train trained_models/uncertainty.py --out trained_models/uncertainty

Weights are standard normal in training, and twice as large where they are held out; the noise has a standard deviation of 1/2.
Much smaller than the paper's. Seed s draws weights and data.
"""

from compolens import AdamW, GaussianInputs, GaussianPrior, InterleavedTokens, Run, SoftmaxTransformer, UncertainRegression

adam = AdamW(lr=2e-3, betas=(0.9, 0.98), weight_decay=0.0)
wider = GaussianPrior((4.0, 4.0, 4.0))
task = UncertainRegression(
    d_x=3, n_context=12, inputs=GaussianInputs(), layout=InterleavedTokens(), prior=GaussianPrior(), shifted_prior=wider
)
runs = {
    f"softmax-{s}": Run(
        SoftmaxTransformer(n_layers=3, n_ctx=task.seq), task, steps=5000, init_seed=s, data_seed=s, batch_size=64,
        optimizer=adam, evaluations=10, evaluation_episodes=512,
    )
    for s in range(3)
}  # fmt: skip
