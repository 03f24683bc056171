"""A user's own episodes: what is written comes back, mistakes are named before a training, and batches are fair draws."""

import dataclasses
import inspect
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors.torch import save_file

from compolens import Hyperteacher, Run, SoftmaxTransformer, cli, load_recipe, train
from compolens.activations.streams import draw
from compolens.foundation import files
from compolens.foundation.builtin import built_in
from compolens.foundation.configs import ConfigError, DoesNotApply, construct, describe
from compolens.interventions import components, repairs
from compolens.interventions.interchange import remaining
from compolens.interventions.repairs import Budget, fine_tune
from compolens.recipes import run_probe
from compolens.references import REFERENCES
from compolens.tasks import SPLITS, FixedEpisodes
from compolens.tasks.fixed.stored import FewerEpisodes
from compolens.zoo.folders import load

FAMILY = Hyperteacher(d_x=4, d_y=2, d_hidden=6, n_modules=6, n_context=6, n_queries=3)
EACH = 8


def made(split, composition, n=EACH):
    return FAMILY.sample(n, split, FAMILY.rng(composition, split), [composition])


def arrays(n=EACH):
    """Arguments of `write`: n episodes of every composition and split of a small hyperteacher, split after split."""
    drawn = [(split, made(split, c, n)) for split in SPLITS for c in FAMILY.compositions(split)]
    return {
        "tokens": torch.cat([e.tokens for _, e in drawn]),
        "targets": torch.cat([e.targets for _, e in drawn]),
        "codes": {"modules": torch.cat([e.codes["modules"] for _, e in drawn])},
        "composition": torch.cat([e.composition for _, e in drawn]),
        "split": np.repeat([split for split, _ in drawn], n),
        "answers": FAMILY.answers,
    }


def words(n=10):
    """The same for classes: ids in, one class out, compositions with names; token 0 says which episode it is."""
    rng = np.random.default_rng(0)
    left, right = np.divmod(np.repeat(np.arange(9), 2 * n), 3)
    tokens = np.stack([np.arange(18 * n), 200 + left, 210 + right], axis=1)
    names = [f"{a}{b}" for a, b in zip(left, right, strict=True)]
    split = np.array(["ood" if name in ("02", "20") else ("train", "test")[i % 2] for i, name in enumerate(names)])
    targets = (left + right + rng.integers(0, 2, 18 * n)) % 4
    codes = {"left": left, "both": np.stack([left, right], axis=1)}
    return {"tokens": tokens, "targets": targets, "composition": names, "split": split, "codes": codes}


def write(folder, **changes):
    return FixedEpisodes.write(folder, **{**arrays(), **changes})


@pytest.fixture(scope="module")
def task(tmp_path_factory):
    """Read only."""
    return write(tmp_path_factory.mktemp("fixed") / "episodes", d_x=4, mask=FAMILY.mask)


@pytest.fixture(scope="module")
def classes(tmp_path_factory):
    return FixedEpisodes.write(tmp_path_factory.mktemp("fixed") / "classes", **words())


def draws(task, split, n, seed=0):
    return task.sample(n, split, task.rng(seed, split))


# ---- there and back --------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("split", SPLITS)
def test_what_is_written_comes_back(task, split):
    given = arrays()
    here = torch.from_numpy(given["split"] == split)
    total = int(here.sum())
    drawn = draws(task, split, total)
    rows = drawn.inputs[:, 0]
    assert sorted(rows.tolist()) == here.nonzero().flatten().tolist(), "all of them, each once"
    for mine, theirs in (
        (drawn.tokens, given["tokens"]),
        (drawn.targets, given["targets"]),
        (drawn.codes["modules"], given["codes"]["modules"]),
        (drawn.composition, given["composition"]),
    ):
        assert torch.equal(mine, theirs[rows])


def test_the_shapes_a_model_needs_are_found(task, classes):
    assert task.dimensions | {"mask": None} == FAMILY.dimensions | {"mask": None}
    assert torch.equal(task.mask, FAMILY.mask) and task.code_kinds == {"modules": "continuous"}
    assert (classes.d_in, classes.d_out, classes.seq, classes.answers, classes.mask) == (213, 4, 3, (2,), None)
    assert classes.code_kinds == {"left": "categorical", "both": "categorical"}


def test_token_ids_are_shown_as_one_hot_vectors(classes):
    drawn = draws(classes, "ood", 5)
    assert drawn.tokens.shape == (5, 3, 213) and drawn.targets.dtype == torch.int64
    ids = words()["tokens"][np.isin(words()["split"], "ood")]
    assert {tuple(row) for row in drawn.tokens.argmax(-1).tolist()} <= {tuple(row) for row in ids.tolist()}
    assert torch.equal(drawn.tokens.sum(-1), torch.ones(5, 3))


def test_rows_may_come_in_any_order(task, tmp_path):
    given = arrays()
    order = torch.randperm(len(given["tokens"]), generator=torch.Generator().manual_seed(0))
    moved = {k: given[k][order] for k in ("tokens", "targets", "composition")} | {"split": given["split"][order.numpy()]}
    codes, inputs = {"modules": given["codes"]["modules"][order]}, order[:, None].float()
    shuffled = write(tmp_path / "o", **moved, codes=codes, inputs=inputs)
    drawn = draws(shuffled, "ood", 24)
    assert torch.equal(drawn.tokens, given["tokens"][drawn.inputs[:, 0].long()])
    assert set(drawn.composition.tolist()) == set(task.compositions("ood"))


def test_answers_alone_are_enough(task, tmp_path):
    alone = write(tmp_path / "o", targets=arrays()["targets"][:, 6:])
    ours, theirs = draws(alone, "test", 9), draws(task, "test", 9)
    assert torch.equal(ours.targets[:, 6:], theirs.targets[:, 6:]) and not ours.targets[:, :6].any()
    assert alone.examples(ours) is None, "what the context shows is not known"
    single = write(tmp_path / "p", targets=arrays()["targets"][:, 8], answers=(-1,))
    assert torch.equal(draws(single, "test", 9).targets[:, 8], theirs.targets[:, 8]) and single.answers == (8,)


@pytest.mark.parametrize("answers", [(4, 2), (-1, 0), (1, 3)])
def test_targets_of_answers_come_in_the_order_of_the_answers(tmp_path, answers):
    """Asked is the token itself."""
    episodes, others, _ = sums(2)
    for given in (episodes, others):
        given["targets"] = given["tokens"][:, list(answers)]
    task = FixedEpisodes.write(tmp_path / "own", **episodes, counterfactuals=others, answers=answers, at_least=1)
    assert task.answers == tuple(sorted(a % 5 for a in answers))
    drawn = draws(task, "train", 12)
    for one in (drawn, task.render({name: code.roll(1, 0) for name, code in drawn.codes.items()}, drawn.inputs)):
        assert torch.equal(one.tokens.argmax(-1)[:, task.answers], one.targets[:, task.answers])


def as_columns(given, split):
    columns = {k: v for k, v in given.items() if k not in ("codes", "answers", "split")}
    return columns | {"codes.modules": given["codes"]["modules"], "split": split}


def test_files_of_every_kind_hold_the_same_episodes(task, tmp_path):
    given = arrays()
    numpy = {k: v.numpy() for k, v in as_columns(given, None).items() if v is not None}
    np.savez(tmp_path / "a.npz", **numpy, split=given["split"])
    number = torch.tensor([SPLITS.index(s) for s in given["split"]])
    save_file(as_columns(given, number), tmp_path / "a.safetensors")
    frame = pd.DataFrame({k: v.tolist() for k, v in numpy.items()} | {"split": given["split"]})
    frame.to_parquet(tmp_path / "a.parquet")
    for suffix in ("npz", "safetensors", "parquet"):
        made = FixedEpisodes.convert(
            tmp_path / f"a.{suffix}", tmp_path / suffix, answers=FAMILY.answers, d_x=4, mask=FAMILY.mask
        )
        assert made.describe_split() == task.describe_split(), suffix


def test_files_that_do_not_fit_are_named(tmp_path):
    with pytest.raises(ConfigError, match=r"there is no file .*a\.npz"):
        FixedEpisodes.convert(tmp_path / "a.npz", tmp_path / "o")
    with pytest.raises(ConfigError, match=r"cannot read \.csv; allowed: \.npz, \.safetensors, \.parquet"):
        FixedEpisodes.convert(tmp_path / "a.csv", tmp_path / "o")
    np.savez(tmp_path / "a.npz", token=np.zeros(3))
    with pytest.raises(ConfigError, match="has no 'tokens'; did you mean 'token'"):
        FixedEpisodes.convert(tmp_path / "a.npz", tmp_path / "o")
    np.savez(tmp_path / "a.npz", tokens=[0], targets=[0], composition=[0], split=["ood"], module=[0])
    with pytest.raises(ConfigError, match=r"has 'module', which means nothing here; codes are called codes\.module"):
        FixedEpisodes.convert(tmp_path / "a.npz", tmp_path / "o")
    for suffix in ("npz", "safetensors", "parquet"):
        (tmp_path / f"b.{suffix}").write_bytes(b"no such thing")
        with pytest.raises(ConfigError, match=rf"b\.{suffix} cannot be read"):
            FixedEpisodes.convert(tmp_path / f"b.{suffix}", tmp_path / "o")


def test_the_description_is_the_folder(task):
    assert construct(describe(task), [FixedEpisodes]) == task == FixedEpisodes(task.data)
    assert describe(task) == {"class": "FixedEpisodes", "data": task.data}


def test_writing_the_same_again_changes_nothing_and_others_are_refused(task, tmp_path):
    first = write(tmp_path / "o")
    before = (tmp_path / "o" / "episodes.json").stat().st_mtime_ns
    assert write(tmp_path / "o") == first and (tmp_path / "o" / "episodes.json").stat().st_mtime_ns == before
    with pytest.raises(ConfigError, match="holds other episodes; delete it, or choose another folder"):
        write(tmp_path / "o", targets=arrays()["targets"] + 1)


def test_a_folder_that_is_not_there_names_the_way_out(tmp_path):
    for task, text in (
        (FixedEpisodes(), r"needs a folder: FixedEpisodes\('my_episodes'\)"),
        (
            FixedEpisodes(tmp_path / "absent"),
            r"absent' does not exist \(no episodes.json\); write one with FixedEpisodes.write",
        ),
        (FixedEpisodes(tmp_path), "is there, but holds none that are whole"),
    ):
        with pytest.raises(ConfigError, match=text):
            task.compositions("train")
    (tmp_path / "episodes.json").write_text("[]")
    with pytest.raises(ConfigError, match="does not describe stored episodes"):
        FixedEpisodes(tmp_path).compositions("train")
    with pytest.raises(ConfigError, match="data must be the path of a folder, got 3"):
        FixedEpisodes(3)


@pytest.mark.parametrize("name", ["episodes.json", "tokens.npy"])
def test_what_is_no_file_is_named_and_not_read(task, tmp_path, name):
    copy = shutil.copytree(task.data, tmp_path / "copy")
    (copy / name).unlink()
    (copy / name).symlink_to("/dev/zero")
    with pytest.raises(ConfigError, match=name):
        draws(FixedEpisodes(copy), "ood", 2)


@pytest.mark.parametrize("name", ["tokens", "targets", "composition", "codes.modules"])
@pytest.mark.parametrize("damage", ["another", "a bit", "nothing", "gone", "itself"])
def test_an_array_that_is_not_what_was_written_is_named(task, tmp_path, name, damage):
    copy = shutil.copytree(task.data, tmp_path / "copy")
    path, content = copy / f"{name}.npy", (copy / f"{name}.npy").read_bytes()
    if damage == "another":  # with as many rows
        shutil.copy(copy / ("targets.npy" if name == "tokens" else "tokens.npy"), path)
    elif damage == "a bit":
        path.write_bytes(content[:-1] + bytes([content[-1] ^ 4]))
    else:
        path.unlink()
        path.write_bytes(b"") if damage == "nothing" else path.symlink_to(path) if damage == "itself" else None
    with pytest.raises(ConfigError, match=rf"{name}\.npy") as caught:
        draws(FixedEpisodes(copy), "ood", 2)
    assert "Errno" not in str(caught.value)


# ---- checks ----------------------------------------------------------------------------------------------------------
def changed(name, index, value):
    """The array with one entry replaced."""
    array = arrays()[name]
    array = array.clone() if isinstance(array, torch.Tensor) else array.astype(object)
    array[index] = value
    return {name: array}


def leaking(split, other):
    """An episode of one split with the tokens of another's."""
    given = arrays()
    tokens = given["tokens"].clone()
    tokens[int((given["split"] == split).argmax())] = tokens[int((given["split"] == other).argmax())]
    return {"tokens": tokens}


def of_split(old, new, composition=None):
    """Words, with those of a split renamed, of all its compositions or of one."""
    given = arrays()
    here = given["split"] == old
    if composition is not None:
        here &= given["composition"].numpy() == composition
    return {"split": np.where(here, new, given["split"])}


def masked(name):
    """The array with its first entry masked."""
    array = arrays()[name].numpy()
    mask = np.zeros(array.shape, bool)
    mask.flat[0] = True
    return np.ma.array(array, mask=mask)


def signs_of_zero():
    """A test episode with the tokens of a training one, apart from the sign of a zero: the same numbers in other bytes."""
    tokens = leaking("test", "train")["tokens"]
    given = arrays()["split"]
    tokens[int((given == "train").argmax()), 0, 0] = 0.0
    tokens[int((given == "test").argmax()), 0, 0] = -0.0
    return {"tokens": tokens}


def only_words(name, index, value):
    """The episodes of classes with one number replaced."""
    given = words()
    given[name][index] = value
    return given | {"answers": (-1,)}


HELD_OUT, SEEN = FAMILY.compositions("ood")[0], FAMILY.compositions("train")[0]
MISTAKES = {
    "lengths": (lambda: {"targets": arrays()["targets"][:-1]}, r"a row per episode; got \{'tokens': 312, 'targets': 311"),
    "code length": (lambda: {"codes": {"z": torch.zeros(7)}}, r"\"codes\['z'\]\": 7"),
    "nan": (lambda: changed("tokens", (17, 3, 0), torch.nan), r"tokens\[17, 3, 0\] is nan, and so are 0 more; drop or repair"),
    "inf": (lambda: changed("targets", (5, 8, 1), -torch.inf), r"targets\[5, 8, 1\] is -inf"),
    "code nan": (lambda: {"codes": {"z": torch.full((312,), torch.nan)}}, r"codes\['z'\]\[0\] is nan, and so are 311 more"),
    "no split": (lambda: changed("split", 3, "trian"), "no split 'trian'; did you mean 'train'"),
    "no test": (lambda: of_split("test", "train"), "no episode is of split 'test', which holds more of train's compositions"),
    "no ood": (lambda: of_split("ood", "ood ", None), "no split 'ood '; did you mean 'ood'"),
    "held out and trained on": (
        lambda: {"composition": torch.where(arrays()["composition"] == HELD_OUT, SEEN, arrays()["composition"])},
        rf"leak: 1 composition\(s\) are in 'train' and in 'ood' \({SEEN}\)",
    ),
    "tested, not trained": (lambda: of_split("ood", "test", HELD_OUT), rf"that training never shows \({HELD_OUT}\)"),
    "trained, not tested": (lambda: of_split("test", "train", SEEN), rf"compositions have no test episodes \({SEEN}\)"),
    "same tokens in test": (lambda: leaking("test", "train"), r"of 'test' have the very tokens .*144 those of 0"),
    "same tokens in ood": (lambda: leaking("ood", "train"), r"leak: 1 episode\(s\) of 'ood' have the very tokens"),
    "too few": (lambda: {"at_least": 9}, r"fewer than 9 train episodes of 18 composition\(s\) \(.*: 8\); give more"),
    "ragged": (lambda: {"tokens": [[[0.0]], [[0.0], [1.0]]]}, "tokens: the episodes do not all have the same shape"),
    "flat": (lambda: {"tokens": torch.zeros(312, 9)}, r"tokens must be floats \(episode, position, d_in\) or whole numbers"),
    "words": (lambda: {"tokens": np.array([["a"]])}, "tokens must hold numbers, got"),
    "target shape": (lambda: {"targets": torch.zeros(312, 5, 2)}, r"9 positions and 3 answer\(s\); got float32 \(312, 5, 2\)"),
    "ambiguous": (lambda: {"targets": torch.zeros(312, 9)}, r"write targets\[:, :, None\] for the first"),
    "answers": (lambda: {"answers": (9,)}, r"answers must be positions of the 9 tokens \(-9 to 8\), got 9"),
    "answer twice": (lambda: {"answers": (8, -1)}, r"each once, got \[8, -1\]"),
    "constant": (lambda: {"targets": torch.ones(312, 9, 2)}, "all training episodes have the same answer"),
    "negative class": (lambda: {"targets": -torch.ones(312, 9, dtype=torch.int64)}, "are classes, numbered from 0.*got -1"),
    "negative composition": (lambda: changed("composition", 0, -1), "compositions are numbered from 0, got -1"),
    "half a composition": (lambda: {"composition": torch.zeros(312)}, "must hold whole numbers or words, got float32"),
    "kind of nothing": (lambda: {"kinds": {"module": "continuous"}}, "names 'module', which is no code; did you mean"),
    "no kind": (lambda: {"kinds": {"modules": "cat"}}, "must be 'continuous' or 'categorical', got 'cat'"),
    "kind that does not fit": (lambda: {"kinds": {"modules": "categorical"}}, r"is categorical, so it must hold whole"),
    "name of a code": (lambda: {"codes": {"a/b": torch.zeros(312)}}, "a code's name is part of a file's: .* got 'a/b'"),
    "d_x": (lambda: {"d_x": 8}, "d_x must be 1 to d_in coordinates, got 8"),
    "mask": (lambda: {"mask": torch.ones(3, 3)}, r"mask must be \(9, 9\), got \(3, 3\)"),
    "blind": (lambda: {"mask": torch.zeros(9, 9)}, "every position must see at least one"),
    "blocks": (lambda: {"blocks": [[0, 1], [1, 2]]}, "blocks must hold every position from 0 to 8 once"),
    "beyond float32": (lambda: {"tokens": arrays()["tokens"].double() * 1e60}, r"tokens\[0, 0, 0\] is .*, beyond float32"),
    "one beyond": (lambda: {"codes": {"z": np.full(312, 1e39)}}, r"\[0\] is 1e\+39, beyond float32 \(at most 3.4e\+38\)"),
    "beyond int64": (lambda: {"composition": np.full(312, 2**64 - 1, np.uint64)}, "compositions reach 18446744073709551615"),
    "unsigned": (lambda: {"inputs": np.full(312, 2**64 - 1, np.uint64)}, r"inputs\[0\] is 18446744073709551615, beyond int64"),
    "same tokens but for a sign of 0": (lambda: signs_of_zero(), r"leak: 1 episode\(s\) of 'test' have the very tokens"),
    "masked": (lambda: {"targets": masked("targets")}, "targets has 1 masked entries, which no file keeps"),
    "masked composition": (lambda: {"composition": masked("composition")}, "composition has masked entries"),
    "half a mask": (lambda: {"mask": torch.full((9, 9), 0.5)}, r"mask must hold True .* alone, got \[0.5\]"),
    "half d_x": (lambda: {"d_x": 1.5}, "d_x must be 1 to d_in coordinates, got 1.5; here a whole number from 1 to 7"),
    "true d_x": (lambda: {"d_x": True}, "d_x must be 1 to d_in coordinates, got True"),
    "no tokens": (lambda: {"tokens": None}, "tokens must have a row per episode, got the single value None"),
    "no width": (lambda: {"tokens": torch.zeros(312, 9, 0)}, r"tokens hold nothing: they are \(312, 9, 0\)"),
    "no targets": (lambda: {"targets": torch.zeros(312, 9, 0)}, "targets must be"),
    "no episode": (lambda: {"tokens": torch.zeros(0, 9, 7)}, "tokens hold nothing"),
    "one answer": (lambda: {"answers": 3}, r"answers must list positions, such as \(-1,\); got 3"),
    "a true answer": (lambda: {"answers": (True,)}, "answers must be positions of the 9 tokens .* got True"),
    "codes in a list": (lambda: {"codes": [1]}, r"codes must be a mapping from names to arrays, got \[1\]"),
    "an empty code": (lambda: {"codes": {"z": torch.zeros(312, 0)}}, r"codes\['z'\] holds nothing"),
    "a code without a name": (lambda: {"codes": {3: torch.zeros(312)}}, "a code's name is part of a file's: .* got 3"),
    "a code with a long name": (lambda: {"codes": {"z" * 300: torch.zeros(312)}}, "at most 100 letters"),
    "kinds in a list": (lambda: {"kinds": ["continuous"]}, "kinds must be a mapping"),
    "one id": (lambda: only_words("tokens", (0, 0), 10**9), "tokens reach 1000000000, and token ids are counted"),
    "one class": (lambda: only_words("targets", 0, 10**9), "targets reach 1000000000, and classes are counted"),
    "one composition": (lambda: changed("composition", 0, 10**12), "compositions reach 1000000000000"),
    "one level": (lambda: {"codes": {"z": np.r_[10**9, np.zeros(311, int)]}}, r"codes\['z'\] reach 1000000000, and levels"),
    "no word": (lambda: {"split": None}, "split must be one word per episode, got None"),
    "no words": (lambda: {"split": [None] * 312}, "split must hold words, got None"),
    "no name": (lambda: {"composition": [None] * 312}, "composition must hold words, got None"),
    "a list among numbers": (lambda: {"composition": [1, [2, 3]]}, "composition must be one number or word"),
    "at least a word": (lambda: {"at_least": "x"}, "at_least must be a whole number of at least 1, got 'x'"),
    "one block": (lambda: {"blocks": 3}, r"blocks must list groups of positions, .* got 3"),
    "blocks of words": (lambda: {"blocks": [["a"], [1]]}, "blocks must hold every position from 0 to 8 once"),
    "a dictionary of tokens": (lambda: {"tokens": [{}]}, "tokens must hold numbers, got object"),
    "inputs": (lambda: {"inputs": torch.zeros(5)}, "inputs has 5 rows for 312 episodes"),
}  # fmt: skip


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_are_named_before_anything_is_written(mistake, tmp_path):
    change, message = MISTAKES[mistake]
    with pytest.raises(ConfigError, match=message) as caught:
        write(tmp_path / "o", **change())
    assert "\n" not in str(caught.value) and not (tmp_path / "o").exists()


def test_what_is_given_in_any_form_is_kept_as_it_is(task, tmp_path):
    """Double precision, a masked array without a mask, numpy's whole numbers and a mask of 0 and 1."""
    given = arrays()
    tokens = np.ma.array(given["tokens"].double().numpy(), mask=False)
    mask, answers = FAMILY.mask.float().numpy(), np.array(FAMILY.answers)
    again = write(tmp_path / "o", tokens=tokens, mask=mask, answers=answers, d_x=np.int64(4))
    assert torch.equal(again.mask, FAMILY.mask) and again.d_x == 4
    assert torch.equal(draws(again, "ood", 9).tokens, draws(task, "ood", 9).tokens)


def test_compositions_are_called_by_their_names(classes):
    assert [classes.composition_name(c) for c in classes.compositions("ood")] == ["02", "20"]
    assert classes.describe_split()["held_out"] == ["02", "20"]
    assert classes.describe_split()["episodes"] == {"train": 70, "test": 70, "ood": 40}
    given = words()
    with pytest.raises(ConfigError, match=r"have no test episodes \(00\)"):
        split = np.where(np.array(given["composition"]) == "00", "train", given["split"])
        FixedEpisodes.write("nowhere", **given | {"split": split})


# ---- drawing ---------------------------------------------------------------------------------------------------------
def test_a_batch_holds_no_episode_twice_unless_it_must(task):
    for n in (3, 50, 144):
        assert draws(task, "train", n).inputs.unique().numel() == n
    counts = draws(task, "ood", 60).inputs.unique(return_counts=True)[1]
    assert counts.tolist().count(3) == 12 and counts.tolist().count(2) == 12, "24 episodes, 60 wanted"


def test_few_of_many_are_drawn_as_fairly(tmp_path):
    n = 100
    given = arrays(n)
    task = FixedEpisodes.write(tmp_path / "o", **given)
    seen = torch.cat([draws(task, "train", 2, seed).inputs for seed in range(900)]).flatten()
    assert all(draws(task, "train", 9, seed).inputs.unique().numel() == 9 for seed in range(50))
    tenths = torch.histc(seen.float(), 10, 0, 18 * n)
    assert (tenths - 180).abs().max() < 5 * 180**0.5


def test_a_measurement_holds_no_episode_twice_even_over_batches(task):
    batches = list(draw(task, "train", 144, 3, batch=40))
    assert [len(b.tokens) for b in batches] == [40, 40, 40, 24]
    assert torch.cat([b.inputs for b in batches]).unique().numel() == 144
    again = list(draw(task, "train", 144, 3, batch=40))
    assert all(torch.equal(a.inputs, b.inputs) for a, b in zip(batches, again, strict=True))
    other = next(draw(task, "train", 144, 4, batch=40))
    assert not torch.equal(other.inputs, batches[0].inputs)
    some = task.compositions("train")[2:4]
    (few,) = draw(task, "train", 16, 3, compositions=some)
    assert set(few.composition.tolist()) == set(some)


def test_where_more_are_asked_for_than_there_are_each_is_measured_once_and_said(task):
    with pytest.warns(FewerEpisodes, match="500 episodes of split 'ood' were asked for; 24 are stored for this"):
        assert sum(len(b.tokens) for b in draw(task, "ood", 500, 0)) == 24


@pytest.mark.filterwarnings("ignore::compolens.tasks.fixed.stored.FewerEpisodes")
@pytest.mark.parametrize("split", ["test", "ood"])
def test_episodes_that_a_readout_is_fitted_on_are_never_those_it_is_scored_on(task, split):
    def rows(seed):
        return {int(row) for batch in draw(task, split, 10_000, seed) for row in batch.inputs}

    fitted, scored, everything = rows("0/fit"), rows("7/score"), rows(0)
    assert not fitted & scored and fitted | scored == everything
    assert rows("3/choose") == rows("1/repair") == fitted
    (batch,) = draw(task, split, 4 * len(task.compositions(split)), "0/score")
    assert set(batch.composition.unique(return_counts=True)[1].tolist()) == {4}, "half of every composition"


def test_a_split_that_is_not_stored_is_named(task, tmp_path):
    with pytest.raises(ConfigError, match="composition 99 is not in split 'ood'"):
        task.sample(2, "ood", task.rng(0, "ood"), compositions=[99])


# ---- loss, score, factors --------------------------------------------------------------------------------------------
def test_the_score_is_r2_about_the_mean_answer_of_training(task):
    given = arrays()
    train = torch.from_numpy(given["split"] == "train")
    mean = given["targets"][train][:, 6:].double().mean(0)
    drawn = draws(task, "ood", 24)
    prediction = drawn.targets + torch.randn(drawn.targets.shape, generator=torch.Generator().manual_seed(0))
    error = ((prediction - drawn.targets)[:, 6:].double() ** 2).sum()
    spread = ((drawn.targets[:, 6:].double() - mean) ** 2).sum()
    assert task.score(prediction, drawn.targets) == pytest.approx(float(1 - error / spread), rel=1e-6)
    constant = torch.zeros_like(drawn.targets)
    constant[:, 6:] = mean
    assert task.score(constant, drawn.targets) == pytest.approx(0, abs=1e-6) and task.score_name == "R²"
    assert task.loss(prediction, drawn.targets).item() == pytest.approx(float(error / (24 * 3 * 2)), rel=1e-5)


def test_classes_are_scored_by_whether_all_answers_are_right(tmp_path):
    given = words()
    targets = np.stack([given["targets"], np.roll(given["targets"], 1)], axis=1)
    task = FixedEpisodes.write(tmp_path / "o", **given | {"targets": targets, "answers": (1, 2)})
    drawn = draws(task, "test", 10)
    prediction = 20.0 * torch.nn.functional.one_hot(drawn.targets, 4)
    prediction[:3, 2] = prediction[:3, 2].roll(1, -1)
    assert task.score(prediction, drawn.targets) == pytest.approx(0.7)
    error, weight = task.metrics(prediction, drawn.targets)["accuracy per answer"]
    assert float(1 - error.sum() / weight.sum()) == pytest.approx(0.85)
    expected = torch.nn.functional.cross_entropy(prediction[:, 1:].reshape(20, 4), drawn.targets[:, 1:].reshape(20))
    assert task.loss(prediction, drawn.targets) == pytest.approx(float(expected))


def test_factors_are_the_coordinates_of_codes(task, classes):
    drawn = draws(task, "test", 5)
    factors = task.factors(drawn.codes)
    assert list(factors) == [f"modules[{i}]" for i in range(6)]
    assert torch.equal(torch.cat(list(factors.values()), 1), drawn.codes["modules"])
    drawn = draws(classes, "test", 5)
    factors = classes.factors(drawn.codes)
    assert list(factors) == ["left", "both[0]", "both[1]"] and {f.shape for f in factors.values()} == {(5, 3)}
    assert torch.equal(factors["both[1]"].argmax(1), drawn.codes["both"][:, 1])
    assert torch.equal(factors["left"], factors["both[0]"])


def test_pairs_of_input_and_answer_are_regressed_on_like_the_familys_own(task):
    """In-context ridge answers as it does on the family that the episodes came from, whose examples are the same."""
    drawn = draws(task, "test", 12)
    (x, y), (theirs_x, theirs_y) = task.examples(drawn), FAMILY.examples(drawn)
    assert torch.equal(x, theirs_x) and torch.equal(y, theirs_y)
    ridge = next(kind for kind in REFERENCES.values() if kind().name == "in-context ridge")(l2=1.0)
    assert torch.equal(ridge.predict(task, drawn), ridge.predict(FAMILY, drawn))
    ours, theirs = task.raw_statistic(drawn), FAMILY.raw_statistic(drawn)
    assert torch.linalg.matrix_rank(torch.cat([ours, theirs], 1)) == torch.linalg.matrix_rank(ours), (
        "the same moments, and more"
    )


# ---- from end to end -------------------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def trained(task, classes, tmp_path_factory):
    root, net = tmp_path_factory.mktemp("models"), SoftmaxTransformer(n_layers=1, d_model=16, n_heads=2)
    for name, family in (("task", task), ("classes", classes)):
        run = Run(net, family, steps=2, batch_size=8, evaluations=1, evaluation_episodes=16)
        train(run, root / name)
    return root


def test_it_is_trained_on_and_loaded_again(trained, task):
    model = load(trained / "task")
    assert model.task == task and (trained / "task" / "README.md").read_text().count("held_out") == 1


@pytest.mark.filterwarnings("ignore::compolens.tasks.fixed.stored.FewerEpisodes")
@pytest.mark.parametrize("name", ["task", "classes"])
def test_probes_that_need_no_other_code_measure_it(trained, name):
    for probe in ("generalization", "code_structure", "latent_code", *(["latent_geometry"] if name == "classes" else [])):
        table, _ = load_recipe("probes", probe)(load(trained / name), episodes=24)
        assert table[table["control"] == ""]["value"].notna().any() and (table["control"] == "untrained").any()


@pytest.mark.parametrize("probe", ["patching", "swap_factor", "inference_or_execution"])
def test_what_it_cannot_do_is_said_with_what_to_write(trained, probe):
    with pytest.raises(DoesNotApply, match=r"FixedEpisodes: its episodes are fixed.*counterfactuals=.*render.*unlocks"):
        run_probe(built_in("probes")[probe], trained / "classes", {})


# ---- the same inputs under other codes -------------------------------------------------------------------------------
def sums(n=8, seed=0):
    """Shown (a, left + a, b, right + b, c), say left + right + c, modulo 7: all 3 x 3 codes for each input."""
    rng = np.random.default_rng(seed)
    left, right = np.divmod(np.repeat(np.arange(9), 3 * n), 3)
    which = rng.permutation(343)[: 27 * n]
    x = np.stack([which // 49, which // 7 % 7, which % 7], 1)
    place = np.tile(np.arange(n).repeat(3), 9)
    held = (left + right == 2) & (left != 1)
    split = np.where(held, "ood", np.where(place % 4 == 0, "test", "train"))
    of = np.repeat(np.arange(len(x)), 9)
    every = np.tile(np.arange(9), len(x))

    def shown(x, left, right):
        tokens = np.stack([x[:, 0], (left + x[:, 0]) % 7, x[:, 1], (right + x[:, 1]) % 7, x[:, 2]], 1)
        codes = {"left": left, "right": right}
        return {"tokens": tokens, "targets": (left + right + x[:, 2]) % 7, "codes": codes, "composition": 3 * left + right}

    return shown(x, left, right) | {"split": split}, {"of": of, **shown(x[of], *np.divmod(every, 3))}, (x, shown)


class Sums(FixedEpisodes):
    """The same by a rule: the inputs are stored, and shown under any codes."""

    def render(self, codes, inputs):
        shown = sums()[2][1](inputs.long().numpy(), codes["left"].numpy(), codes["right"].numpy())
        made = {name: torch.as_tensor(shown[name]) for name in ("tokens", "targets", "composition")}
        return self.made(made["tokens"], made["targets"], codes, made["composition"], inputs)


@pytest.fixture(scope="module")
def counterfactual(tmp_path_factory):
    """(stored counterfactuals, a subclass that renders) of the same episodes."""
    root, (episodes, others, (x, _)) = tmp_path_factory.mktemp("counterfactual"), sums()
    settings = {"at_least": 1}
    stored = FixedEpisodes.write(root / "stored", **episodes, counterfactuals=others, **settings)
    return stored, Sums.write(root / "rendered", **episodes, inputs=x, **settings)


@pytest.mark.parametrize("split", SPLITS)
def test_stored_counterfactuals_are_what_a_rule_renders(counterfactual, split):
    stored, rendered = counterfactual
    first, second = (task.sample(12, split, task.rng(0, split)) for task in counterfactual)
    assert torch.equal(first.tokens, second.tokens) and not torch.equal(first.inputs, second.inputs)
    for shift in (0, 1, 5):
        codes = {name: code.roll(shift, 0) for name, code in first.codes.items()}
        one, other = stored.render(codes, first.inputs), rendered.render(codes, second.inputs)
        assert torch.equal(one.tokens, other.tokens) and torch.equal(one.targets, other.targets)
        assert torch.equal(one.composition, other.composition)
        assert torch.equal(one.composition, first.composition.roll(shift))


def test_compositions_of_counterfactuals_that_are_no_row_are_named(tmp_path):
    episodes, others, _ = sums()
    with pytest.raises(ConfigError, match=r"counterfactuals\['composition'\] must be one number or word per episode"):
        FixedEpisodes.write(tmp_path / "x", **episodes, counterfactuals=others | {"composition": [[1], [1, 2]]}, at_least=1)


def test_without_codes_what_reads_them_says_what_to_write(tmp_path):
    episodes, _, _ = sums()
    task = FixedEpisodes.write(tmp_path / "bare", **{k: v for k, v in episodes.items() if k != "codes"}, at_least=1)
    assert {"predictors", "code_structure", "latent_geometry"} <= set(task.missing)
    with pytest.raises(DoesNotApply, match=r"given no codes; FixedEpisodes\.write\(…, codes="):
        task.factors({})


def test_a_counterfactual_that_is_not_stored_is_named(tmp_path):
    episodes, others, _ = sums()
    few = {name: value[1:] for name, value in others.items() if name != "codes"}
    few["codes"] = {name: value[1:] for name, value in others["codes"].items()}
    few = {n: (v[::2] if n != "codes" else {c: w[::2] for c, w in v.items()}) for n, v in few.items()}
    task = FixedEpisodes.write(tmp_path / "few", **episodes, counterfactuals=few, at_least=1)
    drawn = task.sample(24, "train", task.rng(0, "train"))
    with pytest.raises(ConfigError, match=r"stores no counterfactual of \d+ of 24 .* under left \d, right \d; write every"):
        task.render({name: code.roll(1, 0) for name, code in drawn.codes.items()}, drawn.inputs)


def test_a_code_of_minus_0_is_one_of_0(tmp_path):
    x, code, of = torch.randn(12, 3, 1), np.tile([-1.0, -0.0, 1.0], 4), np.repeat(np.arange(12), 3)
    split = np.where(code == 1, "ood", np.where(np.arange(12) < 6, "train", "test"))
    other = np.tile([-1.0, 0.0, 1.0], 12)
    others = {"of": of, "tokens": x[of], "targets": x[of, -1], "composition": np.tile(np.arange(3), 12), "codes": {"z": other}}
    given = {"tokens": x, "targets": x[:, -1], "composition": np.tile(np.arange(3), 4), "codes": {"z": code}, "split": split}
    task = FixedEpisodes.write(tmp_path / "zero", **given, counterfactuals=others, at_least=1)
    drawn = draws(task, "train", 4)
    for zero in (torch.zeros(4), -torch.zeros(4)):
        assert task.render({"z": zero}, drawn.inputs).composition.tolist() == [1] * 4


def test_one_code_is_exchanged_where_that_makes_another_composition(counterfactual):
    for task in counterfactual:
        drawn = task.sample(48, "train", task.rng(0, "train"))
        source = drawn.take(torch.arange(48).roll(1))
        codes, mask = task.exchange(drawn.codes, source.codes, task.rng(1, "train"))
        columns = torch.stack([codes["left"], codes["right"]], 1)
        ours, theirs = (torch.stack([one.codes["left"], one.codes["right"]], 1) for one in (drawn, source))
        assert torch.equal(columns, torch.where(mask, theirs, ours)) and mask.any() and (mask.sum(1) <= 1).all()
        both = (ours != theirs).all(1)
        assert torch.equal(mask.any(1), both), "where one code differs, the exchange makes the base or the source"


@pytest.mark.filterwarnings("ignore::compolens.tasks.fixed.stored.FewerEpisodes")
def test_every_probe_of_a_diagnosis_measures_it(counterfactual, tmp_path):
    run = Run(SoftmaxTransformer(n_layers=1, d_model=8, n_heads=2), counterfactual[0], steps=2, batch_size=8, evaluations=1)
    train(dataclasses.replace(run, evaluation_episodes=16), tmp_path / "model")
    trained = load(tmp_path / "model")
    few = {"fitted": 32, "searched": 4, "search_steps": 2, "draws": 2, "points": 6}
    for name in (
        "latent_code",
        "patching",
        "swap_code",
        "swap_factor",
        "inference_or_execution",
        "erase_code",
        "attention_code",
    ):
        function = load_recipe("probes", name)
        known = {option: value for option, value in few.items() if option in inspect.signature(function).parameters}
        table, _ = function(trained, episodes=24, **known)
        assert table[table["control"] == ""]["value"].notna().any() and (table["control"] == "untrained").any(), name


def test_a_repair_goes_over_few_episodes_again_and_takes_all_its_steps(counterfactual, tmp_path, recwarn):
    task = counterfactual[0]
    model = SoftmaxTransformer(n_layers=1, d_model=8, n_heads=2).build(**task.dimensions)
    budget = Budget(steps=9, batch=64)
    stored = {split: int(np.diff(task.stored.rows[split])[0]) for split in ("train", "ood")}
    assert max(stored.values()) < budget.steps * budget.batch // 2, "else nothing comes again"
    masks = {name: torch.ones_like(p, dtype=torch.bool) for name, p in model.named_parameters()}
    batches = list(repairs._mixed(task, task.compositions("ood"), budget, 0, torch.device("cpu")))
    assert len(batches) == budget.steps and not recwarn.list
    assert len({tokens.numpy().tobytes() for tokens, _ in batches}) == budget.steps, "in another order"
    tuned = fine_tune(model, task, masks, task.compositions("ood"), budget, 0)
    assert not torch.equal(next(tuned.parameters()), next(model.parameters()))


# ---- sequences as they are -------------------------------------------------------------------------------------------
def ragged(n=12):
    """Ids of 2 to 5 tokens, padded behind; asked are the last, and in every other episode the first, too."""
    rng = np.random.default_rng(0)
    composition = np.repeat(np.arange(4), 3 * n)
    length = rng.integers(2, 6, len(composition))
    tokens = rng.integers(1, 9, (len(composition), 5))
    tokens[:, 0], tokens[:, 1] = 1 + composition, 10 + np.arange(len(tokens))
    padding = np.arange(5) >= length[:, None]
    answers = np.stack([length - 1, np.where(np.arange(len(length)) % 2, 0, -1)], 1)
    split = np.where(composition == 3, "ood", np.where(np.arange(len(composition)) % 3 == 0, "test", "train"))
    return {
        "tokens": np.where(padding, 0, tokens), "targets": rng.integers(0, 4, (len(composition), 2)), "answers": answers,
        "padding": padding, "composition": composition, "split": split, "codes": {"which": composition},
    }  # fmt: skip


def test_episodes_of_different_lengths_end_together_and_are_asked_where_they_say(tmp_path):
    given = ragged()
    task = FixedEpisodes.write(tmp_path / "ragged", **given, at_least=1)
    order = np.argsort([SPLITS.index(word) for word in given["split"]], kind="stable")
    kept = task.stored.take(np.arange(len(order)))
    assert task.answers == (0, 1, 2, 3, 4)
    for row, n in enumerate(order.tolist()):
        length = int((~given["padding"][n]).sum())
        assert not kept.tokens[row, : 5 - length].any(), "padding comes first, and holds no token"
        assert kept.tokens[row, 5 - length :].argmax(1).tolist() == given["tokens"][n, :length].tolist()
        wanted = dict(zip(given["answers"][n].tolist(), given["targets"][n].tolist(), strict=True))
        places = {position + 5 - length: target for position, target in wanted.items() if position >= 0}
        assert kept.targets[row].tolist() == [places.get(p, -100) for p in range(5)]


def test_a_token_that_is_0_is_not_padding_and_no_leak(tmp_path):
    """Episodes "3 0" and "3", whose ids look alike once the second is padded, are two; equal ones are a leak."""
    given = {"tokens": [[0, 3], [0, 3], [2, 1], [1, 2], [2, 2]], "targets": [0, 1, 1, 0, 1]}
    given |= {"composition": [0, 1, 2, 0, 2], "split": ["train", "ood", "train", "test", "test"]}
    padding = np.array([[False, False], [True, False], [False, False], [False, False], [False, False]])
    assert FixedEpisodes.write(tmp_path / "two", **given, padding=padding, at_least=1).seq == 2
    with pytest.raises(ConfigError, match=r"leak: 1 episode\(s\) of 'ood'"):
        FixedEpisodes.write(tmp_path / "leak", **given, at_least=1)


def test_what_padding_hides_makes_no_other_episode(tmp_path):
    """Models see nothing of the ids 5 and 7, so the held-out episode is one of training's."""
    given = {"tokens": [[5, 3], [7, 3], [2, 1], [1, 2], [2, 2]], "targets": [0, 1, 1, 0, 1]}
    given |= {"composition": [0, 1, 2, 0, 2], "split": ["train", "ood", "train", "test", "test"]}
    padding = np.array([[True, False], [True, False], [False, False], [False, False], [False, False]])
    with pytest.raises(ConfigError, match=r"leak: 1 episode\(s\) of 'ood'"):
        FixedEpisodes.write(tmp_path / "leak", **given, padding=padding, at_least=1)


@pytest.mark.parametrize("everywhere", [False, True])
@pytest.mark.parametrize("answers", [(1,), (-1,), (-2, 1)])
def test_with_padding_a_position_is_that_of_a_token_as_it_was_given(tmp_path, answers, everywhere):
    """Asked is the token itself; those below 0 count from an episode's last token."""
    given = ragged()
    length = (~given["padding"]).sum(1)
    places = np.array(answers) + np.where(np.array(answers) < 0, length[:, None], 0)
    given |= {"answers": answers, "targets": given["tokens"]}
    if not everywhere:
        given["targets"] = np.take_along_axis(given["tokens"], places, 1)
    others = {"of": np.arange(144)} | {name: given[name] for name in ("tokens", "targets", "composition", "codes")}
    task = FixedEpisodes.write(tmp_path / "own", **given, counterfactuals=others, at_least=1)
    order = sorted_rows(given["split"])
    kept = task.stored.take(np.arange(len(order)))
    wanted = [sorted({int(p) + 5 - length[n] for p in places[n]}) for n in order]
    for one in (kept, task.render(kept.codes, kept.inputs)):
        own = one.tokens.argmax(-1)
        asked = torch.zeros(own.shape, dtype=torch.bool)
        asked[:, task.answers] = one.targets[:, task.answers] != -100
        assert [row.nonzero().flatten().tolist() for row in asked] == wanted
        assert torch.equal(own[asked], one.targets[asked])


def test_what_is_not_asked_counts_neither_in_loss_nor_in_score(tmp_path):
    task = FixedEpisodes.write(tmp_path / "ragged", **ragged(), at_least=1)
    drawn = task.sample(32, "test", task.rng(0, "test"))
    asked = drawn.targets != -100
    prediction = torch.randn(32, 5, task.d_out, generator=torch.Generator().manual_seed(0))
    right = torch.where(
        asked[..., None], 20.0 * torch.nn.functional.one_hot(drawn.targets.clamp(min=0), task.d_out), prediction
    )
    assert task.score(right, drawn.targets) == 1 and task.loss(right, drawn.targets) < 1e-6
    logits, wanted = prediction[asked], drawn.targets[asked]
    assert float(task.loss(prediction, drawn.targets)) == pytest.approx(
        float(torch.nn.functional.cross_entropy(logits, wanted))
    )
    hits = (prediction.argmax(-1) == drawn.targets) | ~asked
    assert task.score(prediction, drawn.targets) == pytest.approx(float(hits.all(1).double().mean()))


def test_aligned_answers_stay_one_position(tmp_path):
    given = ragged()
    one = given | {"answers": given["answers"][:, :1], "targets": given["targets"][:, 0]}
    assert FixedEpisodes.write(tmp_path / "one", **one, at_least=1).answers == (4,)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"padding": np.array([[False, True, False, False, False]] * 144)},
            r"padding of episode \[0\]: it must lie before or",
        ),
        ({"answers": np.full((144, 2), 9)}, r"answers of episode \[0\] must be positions below 5"),
        ({"answers": np.full((144, 2), 4), "targets": np.zeros((144, 3), int)}, "another number of answers|too far"),
        ({"padding": np.zeros((144, 4), bool)}, r"padding must be \(144, 5\)"),
        ({"padding": np.full((144, 5), -10_000)}, r"padding must be True where there is no token .*, got \[-10000\]"),
        ({"answers": [[1], [1, 2]] * 72}, "as many for each; write -1 where one has fewer"),
        ({"answers": [["a"]] * 144}, "must be whole numbers, positions or -1; got <U1"),
        ({"tokens": np.zeros(144)}, r"tokens must be \(episode, position\) ids or .* got float32 \(144,\)"),
    ],
)
def test_sequences_that_do_not_fit_are_named(tmp_path, change, message):
    with pytest.raises(ConfigError, match=message):
        FixedEpisodes.write(tmp_path / "none", **ragged() | change, at_least=1)


def test_a_code_that_never_varies_is_warned_of(tmp_path):
    with pytest.warns(UserWarning, match=r"codes\['same'\] is the same in every episode, so nothing can be learned of it"):
        write(tmp_path / "episodes", codes={"same": torch.ones(len(arrays()["tokens"]), 2)})


def test_other_data_is_named_on_the_command_line(trained, task, tmp_path, capsys):
    folder = tmp_path / "model"
    shutil.copytree(trained / "task", folder)
    shutil.copytree(task.data, tmp_path / "moved")
    config = (folder / "config.json").read_text().replace(task.data, str(tmp_path / "gone"))
    (folder / "config.json").write_text(config)
    (folder / "digests.json").unlink()  # the change is meant
    assert cli.main(["probe", "generalization", str(folder), "--episodes", "8"]) == 1
    assert "gone' does not exist" in capsys.readouterr().err
    runs = tmp_path / "runs.py"
    runs.write_text(
        "from compolens import FixedEpisodes, Run, SoftmaxTransformer\n"
        "net = SoftmaxTransformer(n_layers=1, d_model=8, n_heads=1)\n"
        "runs = {'mine': Run(net, FixedEpisodes(), steps=1, batch_size=4, evaluations=1, evaluation_episodes=8)}\n"
    )
    assert cli.main(["train", str(runs), "--data", str(tmp_path / "moved"), "--out", str(tmp_path / "out")]) == 0
    assert load(tmp_path / "out" / "mine").task == dataclasses.replace(task, data=str(tmp_path / "moved"))


@pytest.mark.parametrize("nowhere", ["", " "])
def test_episodes_go_to_no_folder_without_a_name(nowhere, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=r"the folder must be a path, such as 'my_episodes', got ' ?'$"):
        write(nowhere)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["config.json", "weights.safetensors", "scores.json", "resume.safetensors"])
def test_episodes_are_not_written_into_a_trained_models_folder(name, tmp_path):
    (tmp_path / name).touch()
    with pytest.raises(ConfigError, match=rf"holds a trained model \({name}\), .* choose another"):
        write(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_a_broken_npz_file_is_named_and_no_advice_of_numpys_is_repeated(tmp_path):
    given = as_columns(arrays(), arrays()["split"])
    np.savez(tmp_path / "whole.npz", **{k: np.asarray(v) for k, v in given.items()})
    whole = (tmp_path / "whole.npz").read_bytes()
    np.save(tmp_path / "array.npy", np.zeros(3))
    np.savez(tmp_path / "objects.npz", tokens=np.array([{}], dtype=object))
    middle = len(whole) // 2
    broken = {
        "junk": (b"junk", "it is no .npz file, or not all of one"),
        "empty": (b"", "it is no .npz file"),
        "pickle": (b"\x80\x04N.", "it is no .npz file"),
        "cut": (whole[:middle], "it is no .npz file, or not all of one"),
        "array": ((tmp_path / "array.npy").read_bytes(), "it is no .npz file"),
        "turned": (whole[:2000] + bytes(64) + whole[2064:], "it is damaged at 'tokens'"),
        "objects": ((tmp_path / "objects.npz").read_bytes(), "'tokens' holds Python objects; make it numbers, or words as"),
    }
    for name, (content, told) in broken.items():
        (tmp_path / f"{name}.npz").write_bytes(content)
        with pytest.raises(ConfigError, match=f"{name}.npz cannot be read: {told}.*write it again with numpy.savez") as error:
            FixedEpisodes.convert(tmp_path / f"{name}.npz", tmp_path / "episodes")
        assert "pickle" not in str(error.value).replace(f"{name}.npz", "") and not (tmp_path / "episodes").exists()


def test_a_relative_folder_that_is_not_found_says_from_where_its_path_counts(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError) as relative:
        _ = FixedEpisodes("episodes").seq
    assert f"the path counts from the folder in which you are, {str(tmp_path)!r}, or from one above the model's: cd to" in str(
        relative.value
    )
    with pytest.raises(ConfigError) as absolute:
        _ = FixedEpisodes(str(tmp_path / "episodes")).seq
    assert "cd to" not in str(absolute.value) and "or put it there" in str(absolute.value)


def test_a_relative_folder_is_found_from_anywhere_beside_the_model(trained, task, tmp_path, monkeypatch):
    shutil.copytree(trained / "task", tmp_path / "work" / "runs" / "model")
    shutil.copytree(task.data, tmp_path / "work" / "mine")
    config = tmp_path / "work" / "runs" / "model" / "config.json"
    config.write_text(config.read_text().replace(task.data, "mine"))
    (config.parent / "digests.json").unlink()  # the change is meant
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    found = load(Path("..") / "work" / "runs" / "model").task
    assert found.data == "mine" and found.compositions("ood") == task.compositions("ood")
    (tmp_path / "elsewhere" / "mine").mkdir()  # holds no episodes
    assert load(config.parent).task.seq == task.seq


def test_other_episodes_of_the_same_name_are_passed_by(trained, task, tmp_path, monkeypatch):
    """A folder of that name in the one in which one works, with other episodes: never measured in their place."""
    shutil.copytree(trained / "task", tmp_path / "work" / "runs" / "model")
    shutil.copytree(task.data, tmp_path / "work" / "mine")
    config = tmp_path / "work" / "runs" / "model" / "config.json"
    config.write_text(config.read_text().replace(task.data, "mine"))
    (config.parent / "digests.json").unlink()  # the change is meant
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    row = np.arange(240)
    FixedEpisodes.write(
        "mine", tokens=np.random.default_rng(1).standard_normal((240, 3, 2)), targets=row[:, None] / 240, at_least=1,
        composition=row % 4, split=np.where(row % 4 == 3, "ood", np.where(row < 120, "train", "test")),
    )  # fmt: skip
    assert load(config.parent).task.seq == task.seq
    shutil.rmtree(tmp_path / "work" / "mine")
    with pytest.raises(ConfigError, match="mine holds other episodes than those that the model was made on"):
        _ = load(config.parent).task.seq


def test_scores_say_of_how_many_episodes_they_are(trained, task):
    scores = files.read_json(trained / "task" / "scores.json")
    asked = 4 * load(trained / "task").run.evaluation_episodes
    assert {s: scores[s]["episodes"] for s in task.splits} == {
        s: min(asked, len(task.stored.of_split(s))) for s in task.splits
    }


def counted(start, length, left, right):
    """Ids start, + left, + right, + left, …, modulo 11; asked is what comes next, and in even lengths what came last."""
    step, last = np.arange(7), length[:, None] - 1
    row = (start[:, None] + (step + 1) // 2 * left[:, None] + step // 2 * right[:, None]) % 11
    answers = np.concatenate([last, np.where(length[:, None] % 2, -1, last - 1)], 1)
    shown = {"tokens": row[:, :6], "padding": step[:6] > last, "answers": answers}
    targets = np.take_along_axis(row, answers.clip(0) + 1, 1)
    return shown | {"targets": targets, "codes": {"left": left, "right": right}, "composition": 3 * left + right}


@pytest.mark.parametrize("longer", [False, True], ids=["as long", "as long as its code says"])
def test_counterfactuals_of_padded_episodes_are_what_a_rule_renders(tmp_path, longer):
    start, length, left, right = (a.ravel() for a in np.meshgrid(range(11), range(4, 6), range(3), range(3), indexing="ij"))
    split = np.where((left + right == 2) & (left != 1), "ood", np.where(start % 3 == 0, "test", "train"))
    own, of, code = (
        counted(start, length + longer * (left == 2), left, right),
        np.repeat(np.arange(198), 9),
        np.tile(range(9), 198),
    )
    seen = length[of] + longer * (code // 3 == 2)
    others = {"of": of, **counted(start[of], seen, code // 3, code % 3)}
    given = {name: others[name] for name in others if longer or name not in ("padding", "answers")}
    task = FixedEpisodes.write(tmp_path / "ragged", **own, split=split, counterfactuals=given, at_least=1)
    drawn = task.sample(40, "train", task.rng(0, "train"))
    for by in (0, 1, 7):
        codes = {name: values.roll(by, 0) for name, values in drawn.codes.items()}
        found = task.render(codes, drawn.inputs)
        rows = [int(np.flatnonzero((others["composition"] == c) & (of == order)).item()) for c, order in zip(
            (3 * codes["left"] + codes["right"]).tolist(), sorted_rows(split)[drawn.inputs[:, 0].numpy()].tolist(), strict=True
        )]  # fmt: skip
        for row, tokens, targets in zip(rows, found.tokens, found.targets, strict=True):
            there = tokens.any(-1)
            assert tokens[there].argmax(-1).tolist() == others["tokens"][row][: seen[row]].tolist()
            assert there.tolist() == [p >= 6 - seen[row] for p in range(6)]
            wanted = {
                p + 6 - seen[row]: y for p, y in zip(others["answers"][row], others["targets"][row], strict=True) if p >= 0
            }
            assert targets[list(task.answers)].tolist() == [wanted.get(p, -100) for p in task.answers]
        assert torch.equal(found.composition, drawn.composition.roll(by))
    assert torch.equal(task.render(drawn.codes, drawn.inputs).tokens, drawn.tokens)


def sorted_rows(split):
    """The number, as given, of every stored row."""
    return np.argsort([SPLITS.index(word) for word in split], kind="stable")


def test_what_counterfactuals_of_ragged_episodes_lack_is_named(tmp_path):
    given = ragged()
    others = {"of": np.arange(3), "tokens": given["tokens"][:3], "targets": given["targets"][:3]}
    others |= {"composition": given["composition"][:3], "codes": {"which": given["composition"][:3]}}
    wrong = others | {"padding": given["padding"][:2]}
    with pytest.raises(ConfigError, match=r"counterfactuals\['padding'\] must be \(3, 5\), got \(2, 5\)"):
        FixedEpisodes.write(tmp_path / "none", **given, counterfactuals=wrong, at_least=1)
    whole = {name: value for name, value in given.items() if name != "padding"} | {"tokens": given["tokens"] + 1}
    with pytest.raises(ConfigError, match=r"counterfactuals say \['padding'\], and the episodes do not"):
        FixedEpisodes.write(tmp_path / "none", **whole, counterfactuals=others | {"padding": given["padding"][:3]}, at_least=1)


def test_an_answer_that_is_not_asked_counts_in_no_effect(tmp_path):
    task = FixedEpisodes.write(tmp_path / "ragged", **ragged(), at_least=1)
    drawn = task.sample(8, "test", task.rng(0, "test"))
    prediction = torch.randn(2, 8, 5, task.d_out, generator=torch.Generator().manual_seed(0))
    asked = (drawn.targets != -100)[..., None]
    other = components.answers_of(task, prediction[1], drawn.targets)
    assert torch.equal(other, components.answers_of(task, torch.where(asked, prediction[1], prediction[0]), drawn.targets))
    way = components.shift(task, *prediction, drawn.targets)
    wanted = ((prediction[1] - prediction[0]).double() * asked)[..., : task.d_out]
    wanted = (wanted - wanted.mean(-1, keepdim=True)).square().sum((1, 2))
    torch.testing.assert_close(way.weight, wanted)


def test_logits_that_are_not_asked_and_constants_added_to_all_move_no_distance(tmp_path):
    task = FixedEpisodes.write(tmp_path / "ragged", **ragged(), at_least=1)
    targets = task.sample(8, "test", task.rng(0, "test")).targets
    rng = torch.Generator().manual_seed(0)
    edited, start, goal, noise = torch.randn(4, 8, 5, task.d_out, generator=rng)
    asked = (targets != -100)[..., None]
    assert not asked[:, list(task.answers)].all(), "nothing to see otherwise"
    moved = torch.where(asked, edited, edited + 50 * noise) + 20 * torch.randn(8, 1, 1, generator=rng)
    plain, other = (remaining(one, start, goal, task.answers, targets) for one in (edited, moved))
    torch.testing.assert_close(plain, other, atol=1e-4, rtol=1e-4)
    everything = remaining(edited, start, goal, task.answers)
    assert (everything[0] > plain[0]).all()
    numbers = remaining(edited, start, goal, task.answers, targets=torch.zeros(8, 5, task.d_out))
    torch.testing.assert_close(numbers, everything)
