"""Module alignment: 1 for the teacher's own modules in any disguise that cannot be told, below for any that can."""

import numpy as np
import pytest

from compolens.measures.alignment import module_alignment

M, D, N = 4, 5, 3


@pytest.fixture
def rng():
    return np.random.default_rng(0)


def disguised(rng, teacher, extra=2):
    """The teacher's modules mixed by a random map of the code, neurons in another order, rescaled, and some more of them."""
    code = rng.normal(size=(M + extra, M))  # z_hat = code z, so z = pinv(code) z_hat
    order, scale = rng.permutation(N), rng.uniform(0.5, 2, size=N)
    neurons = np.concatenate([teacher[:, :, order] * scale, rng.normal(size=(M, D, 2))], axis=2)
    mixing = np.linalg.pinv(code)
    return np.einsum("mc,mxh->cxh", mixing, neurons), mixing


def test_what_cannot_be_told_apart_aligns_perfectly(rng):
    teacher = rng.normal(size=(M, D, N))
    student, mixing = disguised(rng, teacher, extra=0)
    apart, shared = module_alignment(teacher, student, mixing)
    assert apart.shape == (M, N) and np.allclose(apart, 1) and np.allclose(shared, 1)


def test_neurons_mixed_up_between_groups_align_by_module_alone(rng):
    teacher = rng.normal(size=(M, D, N))
    mixed = teacher.copy()
    mixed[2:] = mixed[2:][:, :, [1, 2, 0]]  # what a disconnected support leaves open
    apart, shared = module_alignment(teacher, mixed, np.eye(M))
    assert np.allclose(apart, 1) and shared.max() < 0.99


def test_a_sign_is_no_disguise(rng):
    teacher = rng.normal(size=(1, 50, 1))
    assert module_alignment(teacher, -teacher, np.eye(1))[1] == pytest.approx(-1)


def test_it_is_the_largest_cosine(rng):
    teacher, student = rng.normal(size=(M, D, N)), rng.normal(size=(M, D, 6))
    apart, shared = module_alignment(teacher, student, np.eye(M))

    def cosine(a, b):
        return float(a @ b / np.linalg.norm(a) / np.linalg.norm(b))

    assert apart[1, 2] == pytest.approx(max(cosine(teacher[1, :, 2], student[1, :, j]) for j in range(6)))
    assert shared[0] == pytest.approx(max(cosine(teacher[:, :, 0].ravel(), student[:, :, j].ravel()) for j in range(6)))
