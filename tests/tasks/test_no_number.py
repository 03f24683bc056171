"""What is no number never counts as a right answer."""

import numpy as np
import pytest
import torch

from compolens.foundation.configs import ConfigError
from compolens.tasks import FAMILIES


def made():
    for name, family in FAMILIES.items():
        try:
            task = family()
            task.compositions("test")
        except (TypeError, ConfigError):  # it needs a folder
            continue
        yield pytest.param(task, id=name)


@pytest.mark.parametrize("task", made())
def test_a_prediction_of_nan_scores_nothing(task):
    for split in ("test", "ood"):
        episodes = task.sample(32, split, task.rng(0, split))
        score = task.score(torch.full((32, task.seq, task.d_out), torch.nan), episodes.targets)
        assert np.isnan(score) or score <= 0
