"""Where measurements do not come out again, nothing is said of their similarity."""

import numpy as np
import pytest
import torch

from compolens.measures import similarity, sparsity


def test_two_negative_reliabilities_give_no_similarity():
    """Their product is positive. Terms of noise alone have such halves every fourth time."""
    rng, found = np.random.default_rng(0), 0
    for _ in range(60):
        one, other = (
            similarity.summed(rng.normal(size=(6, 24)), np.ones(24), np.ones(24), np.repeat(np.arange(4), 6)) for _ in range(2)
        )
        both = similarity.reliability(one) < 0 and similarity.reliability(other) < 0
        found += both
        if both:
            assert np.isnan(similarity.similarity(one, other))
            factors = ({"a": one, "b": one}, {"a": other, "b": other})
            assert np.isnan(similarity.joint_similarity(*factors, own=False))
    assert found > 3


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_softmax_in_half_precision_sums_to_one_and_other_weights_do_not(dtype):
    scores = torch.randn(4, 3, 32, 256, generator=torch.Generator().manual_seed(0))
    assert sparsity.sums_to_one(scores.softmax(-1).to(dtype))
    assert not sparsity.sums_to_one((1.1 * scores.softmax(-1)).to(dtype))
