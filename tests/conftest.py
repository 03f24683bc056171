"""Small worlds that the tests share; one thread, no network, no display."""

import os

os.environ["OMP_NUM_THREADS"] = "1"
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["WANDB_MODE"] = "disabled"
os.environ["MPLBACKEND"] = "Agg"

import pytest
import torch

from compolens import HypernetworkTransformer, Hyperteacher, Run, SoftmaxTransformer, train

torch.set_num_threads(1)


@pytest.fixture(scope="session")
def tiny_task():
    """6 modules, pairs held out: 0+3, 1+4, 2+5; episodes of 6 examples and 3 queries."""
    return Hyperteacher(d_x=4, d_y=2, d_hidden=6, n_modules=6, n_context=6, n_queries=3)


@pytest.fixture(scope="session")
def tiny_models(tiny_task, tmp_path_factory):
    """name -> folder of a model trained for two steps, with the weights of steps 0 and 1 kept. Read only: copy to edit."""
    sizes = {"n_layers": 2, "d_model": 16, "n_heads": 2}
    architectures = {
        "softmax": SoftmaxTransformer(**sizes),
        "hypernetwork": HypernetworkTransformer(**sizes, d_code=6, d_hidden=12),
    }
    root, folders = tmp_path_factory.mktemp("models"), {}
    for name, architecture in architectures.items():
        run = Run(architecture, tiny_task, steps=2, batch_size=8, keep=(0, 1), evaluations=1, evaluation_episodes=64)
        train(run, root / name)
        folders[name] = root / name
    return folders
