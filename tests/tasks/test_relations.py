"""Relations between blocks: vectors and images, checked against what each relation says."""

import numpy as np
import pytest
import torch

from compolens import RelationImages, Relations
from compolens.foundation.configs import ConfigError
from compolens.references import AllCompositions, TrainingCompositions, TrueCode
from compolens.tasks.relations import SHARP, SYMMETRIES


def episodes_of(task, n=64, split="train", seed=0):
    return task.sample(n, split, task.rng(seed, split))


# ---- vectors ---------------------------------------------------------------------------------------------------------
def test_c_is_the_relation_of_a_and_b_in_every_block_and_hidden_in_the_last():
    task = Relations(n_left=2, n_right=4)
    episodes = episodes_of(task)
    codes = (code.tolist() for code in episodes.codes.values())
    for tokens, targets, left, right in zip(episodes.tokens, episodes.targets, *codes, strict=True):
        for block in range(3):
            a, b, c = targets[3 * block : 3 * block + 3]
            torch.testing.assert_close(c, (-1, 1)[left] * a + (-1, -1 / 3, 1 / 3, 1)[right] * b)
        assert torch.equal(tokens[:8], targets[:8])
        assert torch.count_nonzero(tokens[8]) == 0
    assert torch.equal(task.revealed(episodes), episodes.targets)


def test_splits_use_every_operator_equally_often_so_that_a_hidden_c_has_no_mean():
    for seed in range(4):
        task = Relations(split_seed=seed)
        for split in ("train", "ood"):
            pairs = torch.tensor([divmod(c, 4) for c in task.compositions(split)])
            assert [pairs[:, side].bincount().tolist() for side in (0, 1)] == [[2, 2, 2, 2], [2, 2, 2, 2]]


def test_the_score_is_r2_of_the_hidden_panel_about_its_mean_zero():
    task = Relations()
    episodes = episodes_of(task, 20_000)
    hidden = episodes.targets[:, 8]
    noise = torch.randn(hidden.shape, generator=torch.Generator().manual_seed(0)) / 2
    prediction = episodes.targets.clone()
    prediction[:, 8] += noise
    variance = 2 * (1 + 1 / 9) / 2
    assert float(hidden.square().mean()) == pytest.approx(variance, abs=0.02)
    assert task.score(prediction, episodes.targets) == pytest.approx(1 - 0.25 / variance, abs=0.01)
    assert task.score(torch.zeros_like(prediction), episodes.targets) == 0
    assert task.loss(prediction, episodes.targets).item() == pytest.approx(float(noise.square().mean()), rel=1e-5)


def test_positions_say_the_place_in_the_block_and_never_the_block():
    task = Relations(positions=True, n_blocks=4)
    place = episodes_of(task).tokens[..., 8:]
    assert torch.equal(place, torch.eye(3).repeat(4, 1).expand(64, 12, 3))
    assert task.d_in == 11
    assert task.d_out == 8


# ---- images ----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("size", "patch"), [(4, 2), (6, 2), (6, 3), (3, 1)])
def test_images_are_the_mean_of_turned_and_mirrored_ones(size, patch):
    task = RelationImages(n_left=8, n_right=8, size=size, patch=patch)
    episodes = episodes_of(task, 32)
    images = task.images(episodes.targets).numpy()
    for panels, left, right in zip(images, *(code.tolist() for code in episodes.codes.values()), strict=True):
        moved = [np.rot90(np.fliplr(m) if k > 3 else m, k % 4) for m, k in ((panels[6], left), (panels[7], right))]
        np.testing.assert_allclose(panels[8], (moved[0] + moved[1]) / 2, atol=1e-6)


def test_the_symmetries_are_eight_different_ones():
    sources = RelationImages(n_left=8)._sources
    assert len({tuple(row.tolist()) for row in sources}) == SYMMETRIES
    assert torch.equal(sources.sort(1).values, torch.arange(16).expand(8, 16))


def test_patches_are_tokens_in_reading_order():
    task = RelationImages(size=4, patch=2)
    episodes = episodes_of(task, 1)
    image = task.images(episodes.tokens)[0, 0]
    assert torch.equal(episodes.tokens[0, 0, :4], image[:2, :2].flatten())
    assert torch.equal(episodes.tokens[0, 1, :4], image[:2, 2:].flatten())
    assert torch.equal(episodes.tokens[0, 2, :4], image[2:, :2].flatten())


def test_an_image_counts_from_forty_decibels_on():
    task = RelationImages()
    episodes = episodes_of(task, 4)
    prediction = episodes.targets.clone()
    for i, mse in enumerate((0.0, 0.99 * SHARP, 1.01 * SHARP, 100 * SHARP)):
        prediction[i, -4:] += mse**0.5
    assert task.score(prediction, episodes.targets) == 0.5
    error, weight = task.metrics(prediction, episodes.targets)["PSNR / 40 dB"]
    assert (1 - error / weight).tolist()[1:] == pytest.approx([1.0001, 0.9999, 0.5], abs=2e-3)
    grey = torch.full_like(prediction, 0.5)
    error, weight = task.metrics(grey, episodes.targets)["R²"]
    assert torch.equal(error, weight)


# ---- references and splits -------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("task", "most"), [(Relations(), 0.7), (RelationImages(n_left=8), 0.0)], ids=["vectors", "images"])
def test_two_examples_tell_the_relation_and_memory_of_training_does_not_answer_held_out_ones(task, most):
    for split in ("test", "ood"):
        episodes = episodes_of(task, 256, split)
        assert task.score(TrueCode().predict(task, episodes), episodes.targets) == 1
        assert task.score(AllCompositions().predict(task, episodes), episodes.targets) == 1
        memory = task.score(TrainingCompositions().predict(task, episodes), episodes.targets)
        assert memory == 1 if split == "test" else memory <= most


def test_the_split_holds_out_pairs_of_operators_that_training_shows_in_other_company():
    for seed in range(5):
        task = RelationImages(n_left=3, n_right=5, split_seed=seed)
        train, ood = set(task.compositions("train")), set(task.compositions("ood"))
        assert train | ood == set(range(15))
        assert len(ood) == 7
        assert {c // 5 for c in train} == {0, 1, 2}
        assert {c % 5 for c in train} == {0, 1, 2, 3, 4}
    listed = Relations(n_left=2, n_right=2, held_out=[[0, 1]])
    assert [listed.composition_name(c) for c in listed.compositions("ood")] == ["0|1"]
    assert listed.describe_split()["uses_per_left_operator"] == [1, 2]


def test_attention_is_read_at_the_hidden_panel():
    task = RelationImages(patch=2)
    readouts = task.readouts(episodes_of(task, 2))
    assert readouts.pairs["self"][0].tolist() == [[[p, p]] for p in range(32, 36)]
    assert readouts.pairs["operands"][0, 0].tolist() == [[32, p] for p in range(24, 32)]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Relations(n_blocks=1), "leaves no example"),
        (lambda: Relations(fraction_held_out=1.0), "between 0 and 1"),
        (lambda: Relations(n_left=2, n_right=2, fraction_held_out=0.1), "holds out none"),
        (
            lambda: Relations(n_left=2, n_right=2, fraction_held_out=0.75),
            "no split in 1,000 draws shows all 2 \\+ 2 operators",
        ),
        (lambda: Relations(held_out=[[0, 4]]), r"right below 4, got the entry \(0, 4\)"),
        (lambda: Relations(held_out=[[0, 1], [0, 1]]), "lists a pair twice"),
        (lambda: Relations(n_left=2, n_right=2, held_out=[[0, 0], [0, 1]]), "leaves left operator 0 unseen"),
        (lambda: Relations(width=0), "width must be a whole number"),
        (lambda: Relations(n_left=3), "n_left must be even"),
        (lambda: RelationImages(size=5, patch=2), "patches of 2 pixels do not tile 5"),
        (lambda: RelationImages(n_left=9), "at most 8 symmetries, got 9"),
    ],
)
def test_bad_settings_say_what_is_allowed(make, message):
    with pytest.raises(ConfigError, match=message):
        make()
