"""RAVEN from files that the tests write themselves, in the public layout: what is read, how it is split, scored, refused."""

import dataclasses
import itertools
import json
import math
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from compolens import AdamW, Raven, Run, SoftmaxTransformer, recipes, train
from compolens.foundation.configs import ConfigError
from compolens.references import REFERENCES
from compolens.tasks.raven import files as raven_files
from compolens.tasks.raven import split as raven_split
from compolens.tasks.raven.files import CONFIGURATIONS, LAYOUT_RULES, RULES, average, decode, read_puzzle
from compolens.zoo.folders import load

CENTER, PAIR = "center_single", "left_center_single_right_center_single"
COLUMNS = ["Constant", "Progression", "Arithmetic", "Distribute_Three", "Number", "Position", "Type", "Size", "Color"]
RULE_OF = dict(zip("CPAD", COLUMNS[:4], strict=True))
SMALL = {"configurations": (CENTER,), "size": 8, "patches": 2}


# ---- the files -------------------------------------------------------------------------------------------------------
def matrix_of(*components):
    """The meta_matrix of components written as in a composition's name: "CPAD", "DnCAC"."""
    matrix = np.zeros((8, 9), dtype=np.uint8)
    for i, rules in enumerate(components):
        layout = rules[:-3]
        on = [["Number", "Position"] if layout == "C" else ["Number"] if layout[1] == "n" else ["Position"]]
        for row, (letter, attributes) in enumerate(
            zip(layout[0] + rules[-3:], [*on, ["Type"], ["Size"], ["Color"]], strict=True)
        ):
            for name in (RULE_OF[letter], *attributes):
                matrix[4 * i + row, COLUMNS.index(name)] = 1
    return matrix


def write(root, configuration, number, subset, rules, **entries):
    """One file; entries replace what it holds, None leaves an entry out."""
    generator = np.random.default_rng([number, len(configuration)])
    coarse = generator.integers(0, 256, (16, 8, 8), dtype=np.uint8)
    content = {
        "image": np.kron(coarse, np.ones((20, 20), dtype=np.uint8)),
        "target": number % 8,
        "predict": 0,
        "meta_matrix": matrix_of(*rules.split("+")),
        "meta_target": np.zeros(9, dtype=np.uint8),
        "structure": np.array(["Scene", "Singleton", "/"]),
        "meta_structure": np.zeros(21, dtype=np.uint8),
    } | entries
    path = root / configuration / f"RAVEN_{number}_{subset}.npz"
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(path, **{key: value for key, value in content.items() if value is not None})
    return path


EIGHT = ["C" + "".join(rules) for rules in itertools.product("CP", repeat=3)]


def write_small(root, configurations=(CENTER, PAIR)):
    """A folder with eight compositions per configuration, each with two train, a val and a test file; returns its path."""
    for configuration in configurations:
        for i, rules in enumerate(EIGHT):
            for j, subset in enumerate(("train", "train", "val", "test")):
                both = rules if configuration == CENTER else f"{rules}+{EIGHT[i - 1]}"
                write(root, configuration, 4 * i + j, subset, both)
    return str(root)


@pytest.fixture(scope="session")
def small(tmp_path_factory):
    return write_small(tmp_path_factory.mktemp("raven"))


@pytest.fixture
def task(small):
    return Raven(data=small, **SMALL)


def draw(task, split="train", n=64, seed=0):
    return task.sample(n, split, task.rng(seed, split))


def names(task, split):
    return [task.composition_name(c) for c in task.compositions(split)]


# ---- what is read ----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("size", [1, 2, 20, 40, 160])
def test_panels_are_averaged_over_squares_of_pixels(size):
    panels = np.random.default_rng(0).integers(0, 256, (9, 160, 160), dtype=np.uint8)
    side = 160 // size
    got = average(panels, size)
    assert got.shape == (9, size, size) and got.dtype == np.uint8
    for panel, row, column in [(0, 0, 0), (8, size - 1, size - 1), (3, size // 2, 0)]:
        block = panels[panel, row * side : (row + 1) * side, column * side : (column + 1) * side]
        assert got[panel, row, column] == math.floor(block.mean() + 0.5)


def test_a_half_is_rounded_up_and_white_stays_white():
    panels = np.full((1, 160, 160), 255, dtype=np.uint8)
    assert (average(panels, 10) == 255).all()
    panels[:, ::2] = 254
    assert (average(panels, 10) == 255).all() and (average(panels - 254, 10) == 1).all()


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_the_ninth_panel_is_the_right_candidate(tmp_path, save):
    image = np.random.default_rng(0).integers(0, 256, (16, 160, 160), dtype=np.uint8)
    for target in (0, 5, 7):
        save(tmp_path / "one.npz", image=image, target=target, meta_matrix=matrix_of("CPAD"))
        panels, matrix = read_puzzle(tmp_path / "one.npz", 160)
        assert (panels[:8] == image[:8]).all() and (panels[8] == image[8 + target]).all()
        assert (matrix == matrix_of("CPAD")).all()


def test_tokens_are_patches_in_reading_order_and_the_last_panels_are_zero(tmp_path):
    image = np.random.default_rng(1).integers(0, 256, (16, 160, 160), dtype=np.uint8)
    for number, (subset, rules) in enumerate([("train", "CCCC"), ("test", "CCCC"), ("train", "CCCP")]):
        write(tmp_path, CENTER, number, subset, rules, image=image, target=3)
    task = Raven(
        data=tmp_path, configurations=[CENTER], size=160, patches=4, held_out=["Center CCCP"], allow_unseen_rules=True
    )
    episodes = draw(task, n=1)
    shown = [*image[:8], image[8 + 3]]
    assert (task.d_in, task.d_out, task.seq, task.answers) == (1600, 1600, 144, tuple(range(128, 144)))
    for panel, row, column in itertools.product(range(9), range(4), range(4)):
        patch = shown[panel][40 * row : 40 * (row + 1), 40 * column : 40 * (column + 1)]
        token = 16 * panel + 4 * row + column
        np.testing.assert_allclose(episodes.targets[0, token], patch.flatten() / 255, rtol=0, atol=1e-7)
        expected = np.zeros(1600) if panel == 8 else patch.flatten() / 255
        np.testing.assert_allclose(episodes.tokens[0, token], expected, rtol=0, atol=1e-7)
    np.testing.assert_allclose(task.panels(episodes.targets)[0], np.stack(shown) / 255, rtol=0, atol=1e-7)
    assert torch.equal(task.patched(task.panels(episodes.targets)), episodes.targets)
    assert episodes.nuisances["target_value"].item() == pytest.approx(shown[8].mean() / 255, abs=1e-6)
    assert episodes.nuisances["operand_magnitude"].item() == pytest.approx(np.mean(shown[6:8]) / 255, abs=1e-6)


def test_blocks_are_the_rows_of_the_grid_and_the_answers_end_the_last_one():
    for patches in (1, 2, 5):
        task = Raven(patches=patches)
        assert [len(block) for block in task.blocks] == [3 * patches**2] * 3
        assert tuple(itertools.chain(*task.blocks)) == tuple(range(task.seq))
        assert task.blocks[-1][-len(task.answers) :] == task.answers


def test_rules_are_read_off_the_matrix(tmp_path):
    layouts = ["C", "Pn", "Pp", "An", "Ap", "Dn", "Dp"]
    every = [layout + "".join(rest) for layout, *rest in itertools.product(layouts, "CPAD", "CPAD", "CPAD")]
    rules, bad = decode(np.stack([matrix_of(name).astype(int) for name in every]), 1)
    assert bad is None and len({tuple(rule[0]) for rule in rules}) == 448
    for name, (first, second) in zip(every, rules, strict=True):
        assert second.tolist() == [-1] * 4
        spelled = {"n": " of number", "p": " of position", "C": ""}[name[:-3][-1]]
        assert LAYOUT_RULES[first[0]] == RULES["CPAD".index(name[0])] + spelled
        assert [RULES[r] for r in first[1:]] == [RULES["CPAD".index(letter)] for letter in name[-3:]]


def test_numbers_of_compositions_are_one_to_one_and_named():
    generator = np.random.default_rng(0)
    rules = np.stack([generator.integers(0, n, (4000, 2)) for n in (7, 4, 4, 4)], axis=-1)
    rules[:1000, 1] = -1
    where = np.concatenate([generator.integers(0, 3, 1000), generator.integers(3, 7, 3000)])
    numbers = raven_split.number(torch.tensor(where), torch.tensor(rules)).tolist()
    for number, place, both in zip(numbers, where, rules.tolist(), strict=True):
        assert raven_split.parts(number) == (list(CONFIGURATIONS)[place], [r for r in both if r[0] >= 0])
    assert len({raven_split.name(n) for n in numbers}) == len(set(numbers))
    one = raven_split.number(torch.tensor([6]), torch.tensor([[[0, 1, 0, 3], [5, 0, 2, 0]]])).item()
    assert raven_split.name(one) == "O-IG CPCD+DnCAC"


def test_codes_are_the_rules_and_name_the_composition(small):
    task = Raven(data=small, configurations=(CENTER, PAIR), size=8)
    episodes = draw(task, n=200)
    assert set(episodes.codes["configuration"].tolist()) == {0, 3}
    for place, rules, composition in zip(
        episodes.codes["configuration"], episodes.codes["rules"], episodes.composition.tolist(), strict=True
    ):
        spelled = ["".join("CPAD"[r] for r in component) for component in rules.tolist() if component[0] >= 0]
        assert task.composition_name(composition) == f"{['Center', '', '', 'L-R'][place]} {'+'.join(spelled)}"


def test_whatever_else_a_file_holds_is_never_unpickled(tmp_path):
    class Trap:
        def __reduce__(self):
            return (os.mkdir, (str(tmp_path / "unpickled"),))

    trap = np.array([Trap()], dtype=object)
    path = write(tmp_path, CENTER, 0, "train", "CCCC", structure=trap)
    panels, _ = read_puzzle(path, 8)
    assert panels.shape == (9, 8, 8)
    path = write(tmp_path, CENTER, 0, "train", "CCCC", target=trap)
    with pytest.raises(ConfigError, match=r"RAVEN_0_train\.npz cannot be read .*allow_pickle=False"):
        read_puzzle(path, 8)
    assert not (tmp_path / "unpickled").exists()


def test_a_folder_is_read_when_it_is_needed_and_never_written_to(tmp_path):
    task = Raven(data=str(tmp_path / "later"), **SMALL)
    run = Run(SoftmaxTransformer(n_layers=1, d_model=8, n_heads=2), task)
    assert run.build()(torch.zeros(1, task.seq, task.d_in)).shape == (1, task.seq, task.d_out)
    write_small(tmp_path / "later", [CENTER])
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    draw(task)
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before


def test_files_are_read_once_and_again_when_some_are_added(tmp_path, monkeypatch):
    write_small(tmp_path, [CENTER])
    seen = []
    monkeypatch.setattr(raven_files, "read_puzzle", lambda path, size: seen.append(path.name) or read_puzzle(path, size))
    for patches in (1, 2, 4):
        assert len(draw(Raven(data=str(tmp_path), configurations=(CENTER,), size=8, patches=patches)).tokens) == 64
    assert len(seen) == len(set(seen)) == 32
    for number, subset in ((40, "train"), (41, "test")):
        write(tmp_path, CENTER, number, subset, "CAAA")
    assert len(Raven(data=str(tmp_path), **SMALL).describe_split()["unseen_rules"]) == 0
    assert len(seen) == 32 + 34


def test_the_order_in_which_files_are_listed_does_not_matter(small, tmp_path, task, monkeypatch):
    expected, listed = draw(task), Path.glob
    shutil.copytree(f"{small}/{CENTER}", tmp_path / CENTER)
    monkeypatch.setattr(Path, "glob", lambda self, pattern: sorted(listed(self, pattern), reverse=True))
    (tmp_path / CENTER / "._RAVEN_0_train.npz").write_bytes(b"left by an operating system")
    (tmp_path / CENTER / "RAVEN_0_train.xml").write_text("<Data/>")
    copy = draw(dataclasses.replace(task, data=str(tmp_path)))
    assert torch.equal(copy.tokens, expected.tokens) and torch.equal(copy.composition, expected.composition)


# ---- the split -------------------------------------------------------------------------------------------------------
def test_splits_are_made_of_the_public_sets_and_of_held_out_compositions(task, small):
    """The first pixels of every file tell which file it is."""
    where, file_of = {}, {}
    for path in os.scandir(f"{small}/{CENTER}"):
        panels, matrix = read_puzzle(path.path, 8)
        file_of[panels[0].tobytes()] = path.name
        rules = next(rules for rules in EIGHT if (matrix_of(rules) == matrix).all())
        where[path.name] = (path.name.split("_")[2].removesuffix(".npz"), f"Center {rules}")
    train, ood = set(names(task, "train")), set(names(task, "ood"))
    assert len(train) == 6 and len(ood) == 2 and train | ood == {f"Center {rules}" for rules in EIGHT}
    expected = {
        "train": {name for name, (subset, rules) in where.items() if subset == "train" and rules in train},
        "test": {name for name, (subset, rules) in where.items() if subset != "train" and rules in train},
        "ood": {name for name, (subset, rules) in where.items() if rules in ood},
    }
    for split, files in expected.items():
        panels = task.panels(draw(task, split, 600).tokens)[:, 0]
        drawn = {file_of[(255 * panel).round().byte().numpy().tobytes()] for panel in panels}
        assert drawn == files
    assert task.describe_split()["files"] == {split: len(files) for split, files in expected.items()}


def test_files_are_drawn_uniformly(task):
    counts = np.bincount(draw(task, "train", 12_000).inputs[:, 0], minlength=32)
    counts = counts[counts > 0]
    assert len(counts) == 12
    assert ((counts - 1000) ** 2 / 1000).sum() < 31.3  # chi², 11 degrees of freedom: p = .001


def test_a_split_is_a_function_of_its_seed_and_shows_every_rule(small):
    splits = {seed: Raven(data=small, split_seed=seed, **SMALL) for seed in range(8)}
    assert len({task.compositions("ood") for task in splits.values()}) > 1
    for seed, task in splits.items():
        assert task.compositions("ood") == Raven(data=small, split_seed=seed, **SMALL).compositions("ood")
        train = names(task, "train")
        for place, letter in itertools.product((1, 2, 3), "CP"):
            assert any(name.removeprefix("Center ")[place] == letter for name in train)
        assert task.describe_split()["unseen_rules"] == []


def test_a_configurations_split_depends_on_no_other(small, task):
    both = Raven(data=small, configurations=(CENTER, PAIR), size=8)
    assert [name for name in names(both, "ood") if name.startswith("Center")] == names(task, "ood")
    assert both.describe_split()["held_out"] == {CENTER: 2, PAIR: 2}


def test_half_of_the_compositions_can_be_held_out(small):
    task = Raven(data=small, fraction_held_out=0.5, **SMALL)
    assert len(task.compositions("train")) == len(task.compositions("ood")) == 4


@pytest.fixture
def lopsided(tmp_path):
    """CCCC has no train file, PPPP-like CPPP no val or test file; the others have both."""
    write_small(tmp_path, [CENTER])
    for path in (tmp_path / CENTER).iterdir():
        number, subset = path.stem.split("_")[1:]
        if (int(number) // 4, subset == "train") in {(0, True), (7, False)}:
            path.unlink()
    return str(tmp_path)


def test_what_cannot_be_trained_and_tested_on_is_held_out_first(lopsided):
    task = Raven(data=lopsided, **SMALL)
    assert names(task, "ood") == ["Center CCCC", "Center CPPP"]
    assert task.describe_split()["files"] == {"train": 12, "test": 12, "ood": 4}
    more = names(Raven(data=lopsided, fraction_held_out=0.4, **SMALL), "ood")
    assert len(more) == 3 and {"Center CCCC", "Center CPPP"} < set(more)


def test_listed_compositions_are_held_out_and_others_that_are_of_no_use_left_out(lopsided):
    task = Raven(data=lopsided, held_out=["Center CCPC", "Center CCCC"], **SMALL)
    assert names(task, "ood") == ["Center CCCC", "Center CCPC"]
    assert names(task, "train") == [f"Center {rules}" for rules in EIGHT if rules not in ("CCCC", "CCPC", "CPPP")]
    split = task.describe_split()
    assert (split["compositions"], split["held_out"], split["left_out"]) == ({CENTER: 5}, {CENTER: 2}, {CENTER: 1})
    assert json.loads(json.dumps(split)) == split


def test_a_rule_must_be_shown_in_training_unless_said_otherwise(small):
    no_type_rule = [f"Center {rules}" for rules in EIGHT if rules[1] == "P"]
    task = Raven(data=small, held_out=no_type_rule, **SMALL)
    with pytest.raises(ConfigError, match="leaves Center: type progression unseen in training"):
        task.compositions("train")
    allowed = dataclasses.replace(task, allow_unseen_rules=True)
    assert allowed.describe_split()["unseen_rules"] == ["Center: type progression"]
    most = {"data": small, "fraction_held_out": 0.9, **SMALL}
    with pytest.raises(ConfigError, match="no split in 1,000 draws shows every rule of center_single"):
        Raven(**most).compositions("train")
    assert len(Raven(**most, allow_unseen_rules=True).compositions("train")) == 1


# ---- loss and score --------------------------------------------------------------------------------------------------
def shifted(task, targets, by):
    prediction = targets.double().clone()
    prediction[:, list(task.answers)] += by
    return prediction


def test_a_panel_counts_from_40_decibels_on(task):
    targets = draw(task, n=4).targets.double()
    right, wrong = shifted(task, targets, 0.00999), shifted(task, targets, 0.01001)
    assert task.score(right, targets) == 1 and task.score(wrong, targets) == 0
    half = torch.cat([right[:2], wrong[2:]])
    assert task.score(half, targets) == 0.5
    assert -10 * math.log10(0.00999**2) > 40 > -10 * math.log10(0.01001**2)


def test_one_bad_pixel_is_averaged_over_the_panel_not_over_the_sequence(task):
    """64 pixels: an error of .08 in one of them is an MSE of .0001."""
    targets = draw(task, n=1).targets.double()
    for size, score in ((0.0799, 1), (0.0801, 0)):
        prediction = targets.clone()
        prediction[0, -1, 0] += size
        assert task.score(prediction, targets) == score
        assert task.loss(prediction, targets).item() == pytest.approx(size**2 / 64)


def metric(task, name, prediction, targets):
    error, weight = task.metrics(prediction, targets)[name]
    assert error.shape == weight.shape == (len(targets),) and error.dtype == weight.dtype == torch.float64
    return float(1 - error.sum() / weight.sum())


def test_decibels_are_counted_up_to_40(task):
    targets = draw(task, n=5).targets.double()
    for by, share in ((0.0, 1.0), (0.005, 1.0), (0.1, 0.5), (10**-1.5, 0.75), (1.0, 0.0)):
        assert metric(task, "PSNR / 40 dB", shifted(task, targets, by), targets) == pytest.approx(share)


def test_the_mean_of_the_panels_shown_has_pixel_r2_0(task):
    targets = draw(task, n=5).targets.double()
    panels = task.panels(targets)
    mean = task.patched(panels[:, :8].mean(1, keepdim=True).expand_as(panels))
    assert metric(task, "pixel R²", mean, targets) == pytest.approx(0, abs=1e-12)
    assert metric(task, "pixel R²", targets, targets) == 1
    worse = metric(task, "pixel R²", 2 * mean - targets, targets)  # twice the distance: four times the squared error
    assert worse == pytest.approx(-3)


def test_determined_puzzles_keep_their_shapes(tmp_path):
    rules = {"CCPD": 1, "CPCC": 0, "PpCAC": 1, "DpCCC": 1, "PnCCC": 0, "DnCCC": 0, "AnCCC": 0, "ApCCC": 0}
    for i, name in enumerate(rules):
        for j, subset in enumerate(("train", "test")):
            write(tmp_path, "distribute_four", 2 * i + j, subset, name)
    task = Raven(tmp_path, ("distribute_four",), 8, held_out=("2x2Grid CCPD",), allow_unseen_rules=True)
    for split in ("train", "ood"):
        episodes = draw(task, split, 200)
        told = task.strata(episodes)["determined"]
        expected = [rules[task.composition_name(c).removeprefix("2x2Grid ")] for c in episodes.composition.tolist()]
        assert told.tolist() == [bool(value) for value in expected]


def test_both_components_must_keep_their_shapes(small):
    task = Raven(data=small, configurations=(PAIR,), size=8)
    episodes = draw(task, n=100)
    told = task.strata(episodes)["determined"]
    for composition, kept in zip(episodes.composition.tolist(), told.tolist(), strict=True):
        first, second = task.composition_name(composition).removeprefix("L-R ").split("+")
        assert kept == (first[1] == second[1] == "C")
    assert 0 < told.sum() < 100


# ---- what is refused -------------------------------------------------------------------------------------------------
def test_without_a_folder_it_is_said_what_to_type(tmp_path):
    for data, problem in {
        "": "downloads nothing, but has no folder to read",
        str(tmp_path / "absent"): "there is no folder '.*absent'",
        str(tmp_path): "holds none of the folders center_single, ",
    }.items():
        for ask in (lambda t: t.compositions("train"), lambda t: draw(t), lambda t: t.describe_split()):
            with pytest.raises(ConfigError, match=rf"{problem}.*Raven\(data=…\) in Python, compolens train … --data DIR"):
                ask(Raven(data=data))


def test_a_configuration_that_is_not_there_names_those_that_are(small):
    with pytest.raises(
        ConfigError, match=r"has no folder 'distribute_four'; read what is there with configurations=\('center_s"
    ):
        Raven(data=small).compositions("train")


def test_files_that_are_no_puzzles_are_refused_by_name(tmp_path):
    def refused(match, **entries):
        path = write(tmp_path, CENTER, 7, "train", "CCCC", **entries)
        with pytest.raises(ConfigError, match=match) as caught:
            Raven(data=str(tmp_path), **SMALL).compositions("train")
        assert str(path) in str(caught.value)

    refused("has no 'image', only target, predict, meta_matrix, ", image=None)
    refused("has no 'meta_matrix', only image, target, ", meta_matrix=None)
    refused(r"must be \(16, 160, 160\) uint8, got \(16, 80, 80\) uint8", image=np.zeros((16, 80, 80), dtype=np.uint8))
    refused(r"must be \(16, 160, 160\) uint8, got \(16, 160, 160\) float64", image=np.zeros((16, 160, 160)))
    for target in (8, -1, np.zeros(2)):
        refused("target of .* must be 0 to 7", target=target)
    refused(r"must be \(8, 9\), got \(9,\)", meta_matrix=matrix_of("CCCC")[0])


def test_a_matrix_that_does_not_name_every_rule_once_is_refused(tmp_path):
    good, unused, doubled, misplaced = (matrix_of("CPAD") for _ in range(4))
    unused[2] = 0
    doubled[1, 0] = 1
    misplaced[1, 6], misplaced[1, 7] = 0, 1
    number_alone = matrix_of("CPAD")
    number_alone[0, 5] = 0
    for matrix in (unused, doubled, misplaced, number_alone, matrix_of("CPAD", "CPAD"), 2 * good):
        write(tmp_path, CENTER, 3, "train", "CPAD")
        path = write(tmp_path, CENTER, 4, "train", "CPAD", meta_matrix=matrix)
        with pytest.raises(ConfigError, match=r"does not name the rules of a center_single puzzle.*1 component") as caught:
            Raven(data=str(tmp_path), **SMALL).compositions("train")
        assert str(path) in str(caught.value)
    write(tmp_path, PAIR, 0, "train", "CPAD")
    with pytest.raises(ConfigError, match=r"RAVEN_0_train\.npz does not name .* in 2 component"):
        Raven(data=str(tmp_path), configurations=(PAIR,)).compositions("train")


def test_broken_files_are_refused_by_name(tmp_path):
    path = write(tmp_path, CENTER, 0, "train", "CCCC")
    whole = path.read_bytes()
    flipped = bytearray(whole)
    flipped[2000] ^= 255
    for content in (b"", b"no archive", whole[:-30], whole[: len(whole) // 2], bytes(flipped)):
        path.write_bytes(content)
        with pytest.raises(ConfigError, match=r"RAVEN_0_train\.npz cannot be read \(.+\); get the file anew"):
            Raven(data=str(tmp_path), **SMALL).compositions("train")
    with path.open("wb") as file:
        np.save(file, np.zeros(3))
    with pytest.raises(ConfigError, match=r"RAVEN_0_train\.npz is no \.npz archive"):
        Raven(data=str(tmp_path), **SMALL).compositions("train")


def test_folders_that_hold_something_else_are_refused(tmp_path):
    (tmp_path / CENTER).mkdir()
    task = Raven(data=str(tmp_path), **SMALL)
    with pytest.raises(ConfigError, match="center_single holds no file RAVEN_<number>_<train, val or test>"):
        task.compositions("train")
    (tmp_path / CENTER / "PGM_0_train.npz").write_bytes(b"")
    with pytest.raises(ConfigError, match=r"PGM_0_train\.npz is not named RAVEN_<number>"):
        task.compositions("train")


def test_too_few_files_for_a_split_are_refused(tmp_path):
    task = Raven(data=str(tmp_path), **SMALL)
    for number, rules in enumerate(EIGHT):
        write(tmp_path, CENTER, number, "train", rules)
    with pytest.raises(ConfigError, match="nothing of center_single is left to train on: of its 8 compositions, 0 have both"):
        task.compositions("train")
    shutil.rmtree(tmp_path / CENTER)
    for number, subset in enumerate(("train", "val")):
        write(tmp_path, CENTER, number, subset, "CCCC")
    with pytest.raises(ConfigError, match=r"fraction_held_out=0.25 of the 1 compositions of center_single holds out none"):
        dataclasses.replace(task).compositions("train")
    with pytest.raises(ConfigError, match="nothing of center_single is left to train on: of its 1 compositions, 1 have both"):
        dataclasses.replace(task, held_out=("Center CCCC",)).compositions("train")


def test_settings_that_cannot_be_are_refused():
    for settings, match in [
        ({"data": 3}, "data must be the path of a folder, got 3"),
        ({"size": 30}, "size must divide 160.*got 30"),
        ({"size": 0}, "size must be a whole number of at least 1"),
        ({"patches": 3}, "patches must divide size=20, got 3"),
        ({"configurations": ("centre_single",)}, "no configuration 'centre_single'; did you mean 'center_single'"),
        ({"configurations": (PAIR, CENTER)}, r"in their own order, got .*write \['center_single', 'left_"),
        ({"configurations": ()}, "must be listed once each"),
        ({"configurations": CENTER}, "configurations must be a list of words, got 'center_single'"),
        ({"fraction_held_out": 1.0}, "fraction_held_out must lie between 0 and 1, got 1.0"),
        ({"held_out": ()}, "held_out must list names of compositions"),
        ({"held_out": "Center CPAD"}, "held_out must be a list of words or None"),
        ({"held_out": (3,)}, r"held_out must be a list of words or None, got \(3,\)"),
    ]:
        with pytest.raises(ConfigError, match=match):
            Raven(**settings)


def test_a_composition_that_is_not_there_cannot_be_held_out(small):
    with pytest.raises(ConfigError, match="held_out names 'Center CCCA', of which there is no puzzle; did you mean 'Center C"):
        Raven(data=small, held_out=("Center CCCA",), **SMALL).compositions("train")


# ---- training and measuring ------------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def trained(small, tmp_path_factory):
    folder = tmp_path_factory.mktemp("trained") / "raven"
    task = Raven(data=small, **SMALL)
    train(
        Run(
            SoftmaxTransformer(n_layers=1, d_model=16, n_heads=2),
            task,
            steps=60,
            optimizer=AdamW(lr=0.01, warmup=5),
            evaluation_episodes=32,
            evaluations=2,
        ),
        folder,
    )
    return load(folder)


def test_a_model_learns_something_from_files(trained, small):
    assert trained.task == Raven(data=small, **SMALL)
    episodes = draw(trained.task)
    before, after = (
        trained.task.loss(m(episodes.tokens), episodes.targets) for m in (trained.untrained_control(), trained.model)
    )
    assert after < before / 2


def test_generalization_is_measured_and_every_reference_says_why_it_has_no_answer(trained):
    table, _ = recipes.load_recipe("probes", "generalization")(trained, episodes=64)
    own = table[(table["control"] == "") & (table["composition"] == "all")]
    expected = {"score", "PSNR / 40 dB", "pixel R²", "score, determined"}
    for split in ("train", "test", "ood"):
        assert set(own[own["split"] == split]["metric"]) == expected
    told = table[table["control"] == "reference"]
    everywhere = {kind().name for kind in REFERENCES.values() if not kind.of_one_family}
    assert set(told["reference"]) == everywhere
    assert told["value"].isna().all() and told["note"].str.startswith("not available: ").all()


def test_probes_that_do_not_apply_say_why(trained):
    for name in ("attention_code", "latent_geometry", "patching"):
        with pytest.raises(ConfigError, match=r"Raven: .*(categor|pair|files)"):
            recipes.run_probe(recipes.locate("probes", name), trained.folder, {})
