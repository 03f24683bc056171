"""On a GPU: the captured training step does what the eager one does; an interrupted training resumes to the same weights."""

import pytest
import torch

from compolens import HYLA, ReferenceAdamW, Run, SRaven, train
from compolens.training import Interrupted
from compolens.training.state import Training

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


def run_of(**settings):
    sizes = {"n_layers": 2, "d_model": 32, "n_heads": 4, "d_head": 4, "d_value": 4, "n_ctx": 18}
    model = HYLA(**sizes, attention_dropout=settings.pop("attention_dropout", 0.0))
    recipe = {"optimizer": ReferenceAdamW(warmup=5), "evaluations": 1, "evaluation_episodes": 64, "answers_only": True}
    return Run(model, SRaven(n_features=2), **recipe | {"steps": 250, "batch_size": 32, "data_device": "cuda"} | settings)


def weights(folder):
    from safetensors.torch import load_file

    return load_file(folder / "weights.safetensors")


@pytest.mark.parametrize("clip", [None, 1.0])
def test_a_replayed_step_equals_an_eager_one(tmp_path, clip):
    run = run_of(optimizer=ReferenceAdamW(warmup=5, clip=clip))
    graphed, eager = (Training(run, tmp_path / name, "cuda", lambda _: None) for name in ("graphed", "eager"))
    eager._graphed_update = eager._update
    for _ in range(20):
        graphed.advance()
        eager.advance()
    graphed._read()
    assert graphed.losses == pytest.approx(eager.losses, rel=1e-4)
    for name, parameter in graphed.named.items():
        torch.testing.assert_close(parameter, eager.named[name], rtol=1e-3, atol=1e-5)


def test_dropout_draws_a_new_mask_at_every_replay(tmp_path):
    loop = Training(run_of(attention_dropout=0.5, optimizer=ReferenceAdamW(lr=1e-12)), tmp_path, "cuda", lambda _: None)
    episodes = loop.run.task.sample(32, "train", loop.run.task.rng(0, "train", 0, "cuda"))
    losses = []
    for seed in (1, 2, 1):
        loop.noise.manual_seed(seed)
        loop._graphed_update(episodes)
        loop._read()
        losses.append(loop.latest)
    assert losses[0] != losses[1]


def test_an_interrupted_training_resumes_to_the_same_weights(tmp_path):
    import os
    import signal

    run = run_of(attention_dropout=0.1)
    train(run, tmp_path / "whole", device="cuda")

    def stop(progress):
        if progress.step == 100:
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(Interrupted):
        train(run, tmp_path / "parts", device="cuda", progress=stop)
    train(run, tmp_path / "parts", device="cuda")
    whole, parts = weights(tmp_path / "whole"), weights(tmp_path / "parts")
    assert all(torch.equal(whole[name], parts[name]) for name in whole)
