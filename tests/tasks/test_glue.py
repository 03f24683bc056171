"""Text classification from files in GLUE's layout, which every test writes for itself: no line of the data set is here."""

from pathlib import Path

import pytest
import torch
from sklearn.metrics import balanced_accuracy_score, f1_score

from compolens import Glue, ModifiedTransformer, NegativeSamples, Run, SoftmaxTransformer, cli, load, train
from compolens.cli.train import read_runs, with_data
from compolens.foundation.configs import ConfigError
from compolens.tasks.glue.family import features_of, words_of
from compolens.tasks.glue.files import LAYOUTS, read_examples, read_file

SHORT, LONG = ("A fine, fine film", "dull", "not a good one", "it moved me"), ("so very long " * 4 + "that nobody stays",)
HEADS = {
    "SST-2": "sentence\tlabel\n", "CoLA": "", "MRPC": "\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String\n",
    "RTE": "index\tsentence1\tsentence2\tlabel\n", "QNLI": "index\tquestion\tsentence\tlabel\n",
}  # fmt: skip


def line(name, number, first, second, label):
    """A line as the files of a task have it."""
    word = ("not_entailment", "entailment")[label]
    return {
        "SST-2": f"{first} \t{label}",
        "CoLA": f"gj04\t{label}\t{'' if label else '*'}\t{first}",
        "MRPC": f"{label}\t{number}\t{number + 1}\t{first}\t{second}",
        "RTE": f"{number}\t{first}\t{second}\t{word}",
        "QNLI": f"{number}\t{first}\t{second}\t{word}",
    }[name]


def written(place, name, texts=(*SHORT, *LONG), end="\n"):
    """A folder with train.tsv, two lines a text, and dev.tsv, one."""
    folder = place / name
    folder.mkdir(parents=True)
    for file, copies in (("train.tsv", 2), ("dev.tsv", 1)):
        rows = [line(name, i, text, 'then "so', (i + copy) % 2) for i, text in enumerate(texts) for copy in range(copies)]
        (folder / file).write_bytes((HEADS[name] + "\n".join(rows) + "\n").replace("\n", end).encode())
    return str(place)


@pytest.fixture
def small(tmp_path):
    return Glue(data=written(tmp_path, "SST-2"), longest=8, features=32)


@pytest.mark.parametrize("name", LAYOUTS)
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_files_of_every_layout_give_their_texts_and_classes(tmp_path, name, end):
    found = read_examples(written(tmp_path, name, end=end), name)
    assert [e.file for e in found] == [0] * 10 + [1] * 5
    assert [e.label for e in found if e.file] == [0, 1, 0, 1, 0]
    pair = len(LAYOUTS[name].texts) == 2
    assert [tuple(t.strip() for t in e.texts) for e in found if e.file][:2] == [
        ("A fine, fine film", 'then "so') if pair else ("A fine, fine film",),
        ("dull", 'then "so') if pair else ("dull",),
    ]


def test_words_are_runs_of_letters_and_marks_and_close_ones_have_close_vectors():
    assert words_of("It's a FINE, fine film.") == ["it", "'", "s", "a", "fine", ",", "fine", "film", "."]
    film, films, dull = (features_of(word, 4096) for word in ("film", "films", "dull"))
    assert film.norm() == pytest.approx(1) and features_of("a", 4096).count_nonzero() == 1
    assert film @ films > 0.5 and film @ dull == 0
    assert torch.equal(features_of("film", 64), features_of("film", 64))


def test_an_episode_is_a_text_at_the_end_of_its_tokens_and_its_class(small):
    rows = [e for e in read_examples(small.data, "SST-2")]
    episodes = small.sample(64, "train", small.rng(0, "train"))
    for tokens, target, which in zip(episodes.tokens, episodes.targets, episodes.inputs[:, 0].tolist(), strict=True):
        words = words_of(rows[which].texts[0])
        assert (target == rows[which].label).all()
        assert not tokens[: -len(words) - 1].any() and tokens[-1].tolist() == [0.0] * 33 + [1.0]
        assert torch.equal(tokens[-len(words) - 1 : -1, :32], torch.stack([features_of(word, 32) for word in words]))


def test_the_texts_of_a_pair_are_parted_by_a_mark(tmp_path):
    task = Glue(data=written(tmp_path, "MRPC"), name="MRPC", longest=12, features=32)
    episodes = task.sample(8, "test", task.rng(0, "test"))
    assert episodes.tokens.shape[1] == 26 and (episodes.tokens[..., -2].sum(1) == 1).all()
    assert torch.equal(episodes.tokens[:, -5, -2], torch.ones(8))  # then " so: three words before the answer


def test_longer_texts_are_held_out_and_those_beyond_twice_the_length_left_out(tmp_path):
    task = Glue(data=written(tmp_path, "SST-2", (*SHORT, *LONG, "word " * 17)), longest=8, features=32)
    words = {split: task.sample(200, split, task.rng(0, split)).nuisances["words"] for split in ("train", "test", "ood")}
    assert words["train"].max() <= 8 and words["test"].max() <= 8
    assert set(words["ood"].tolist()) == {15.0}
    drawn = {split: set(task.sample(200, split, task.rng(0, split)).inputs[:, 0].tolist()) for split in ("train", "test")}
    files = [example.file for example in read_examples(task.data, "SST-2")]
    assert {files[i] for i in drawn["train"]} == {0} and {files[i] for i in drawn["test"]} == {1}
    assert task.describe_split() == {
        "lines": {"train": {"0": 4, "1": 4}, "test": {"0": 2, "1": 2}, "ood": {"0": 2, "1": 1}}, "left_out": 3,
    }  # fmt: skip


def test_a_class_that_is_always_said_scores_its_share_and_half_where_classes_weigh_the_same(tmp_path):
    task = Glue(data=written(tmp_path, "CoLA"), name="CoLA", longest=8)
    targets = torch.tensor([1, 1, 1, 0])[:, None].expand(-1, task.seq)
    said = torch.zeros(4, task.seq, 2)
    said[..., 1] = 1
    assert task.score(said, targets) == 0.75
    error, weight = task.metrics(said, targets)["balanced accuracy"]
    assert float(1 - error.sum() / weight.sum()) == pytest.approx(0.75)  # of these files both classes are as frequent


def test_f1_and_balanced_accuracy_are_scikit_learns(tmp_path):
    """F1 of any answers; balanced accuracy of targets with the shares of classes of training."""
    task = Glue(data=written(tmp_path, "MRPC"), name="MRPC", longest=12)
    draw = torch.Generator().manual_seed(0)
    share = task.describe_split()["lines"]["train"]
    for trial in range(5):
        target = (torch.arange(40 * sum(share.values())) % sum(share.values()) >= share["0"]).long()
        said = torch.randn(len(target), task.seq, 2, generator=draw)
        answer = said[:, -1].argmax(-1)
        found = task.metrics(said, target[:, None].expand(-1, task.seq))
        pooled = {name: float(1 - error.sum() / weight.sum()) for name, (error, weight) in found.items()}
        assert pooled["F1"] == pytest.approx(f1_score(target, answer)), trial
        assert pooled["balanced accuracy"] == pytest.approx(balanced_accuracy_score(target, answer)), trial


def test_modified_attention_learns_which_word_decides(tmp_path):
    texts = tuple(f"{' '.join(['so'] * i)} {word} film" for i in range(4) for word in ("good", "bad"))
    task = Glue(data=written(tmp_path / "glue", "SST-2", (*texts, *LONG)), longest=8, features=64)
    for folder in ("train.tsv", "dev.tsv"):
        file = tmp_path / "glue" / "SST-2" / folder
        lines = [f"{text}\t{int('good' in text)}" for text in texts] + [f"{LONG[0]}\t1"]
        file.write_text("sentence\tlabel\n" + "\n".join(lines))
    model = ModifiedTransformer(n_layers=1, d_model=16, n_heads=2, modification=NegativeSamples(beta=0.1))
    run = Run(model, task, steps=60, batch_size=32, evaluation_episodes=64, evaluations=1)
    assert train(run, tmp_path / "model")["test"]["score"] == 1
    assert load(tmp_path / "model").task == task


NONE = r"download SST-2 from https://gluebenchmark.com/tasks and unpack it, so that DIR/SST-2/train.tsv"


def test_without_files_it_is_said_what_to_download_and_where_to_put_it(tmp_path):
    (tmp_path / "empty" / "SST-2").mkdir(parents=True)
    for data, problem in (
        ("", "no folder to read"),
        (str(tmp_path / "gone"), "no folder"),
        (str(tmp_path / "empty"), "no file"),
    ):
        with pytest.raises(ConfigError, match=rf"{problem}.*{NONE}.*--data DIR"):
            Glue(data=data).compositions("train")


def test_the_runs_take_the_folder_from_the_command_line_and_say_what_is_missing_without_it(tmp_path, capsys):
    file = str(Path(__file__).parents[2] / "trained_models" / "glue.py")
    runs = read_runs(file)
    assert with_data(runs["RTE-negative-0.1-0.3-2"], str(tmp_path)).task == Glue(str(tmp_path), "RTE", longest=64)
    assert cli.main(["train", file, "SST-2-softmax-0", "--out", str(tmp_path / "out")]) != 0
    assert "download SST-2 from" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"text\tlabel\nfine\t1\n", "begins with the columns 'text, label', but SST-2 has 2 columns"),
        (b"sentence\tlabel\nfine film\t1\t2\n", "line 2 of .* has 3 columns"),
        (b"sentence\tlabel\nfine\t1\n\nfilm\n", "line 4 of .* has 1 columns"),
        (b"sentence\tlabel\nfine\t2\n", "line 2 of .* has the label '2'; SST-2 has 0 and 1"),
        (b"sentence\tlabel\n", "holds no line"),
        (b"sentence\tlabel\n\xff\t1\n", "is no UTF-8 text"),
    ],
)
def test_a_line_of_another_layout_is_refused_with_its_number(tmp_path, content, problem):
    (tmp_path / "train.tsv").write_bytes(content)
    with pytest.raises(ConfigError, match=problem):
        read_file(tmp_path / "train.tsv", "SST-2")


def test_settings_that_fit_no_file_are_refused(small):
    for settings, problem in (
        ({"name": "SST2"}, "did you mean 'SST-2'"),
        ({"longest": 6}, "multiple of 4"),
        ({"features": 4}, "features must be from 8"),
    ):
        with pytest.raises(ConfigError, match=problem):
            Glue(data=small.data, **settings)
    with pytest.raises(ConfigError, match="choose another longest"):
        Glue(data=small.data, longest=16).compositions("train")
    with pytest.raises(ConfigError, match="cannot render: its texts come from files"):
        small.render({}, torch.zeros(1))


def test_plain_attention_reads_the_same_episodes(small):
    run = Run(SoftmaxTransformer(n_layers=1, d_model=8, n_heads=2), small)
    assert run.build()(small.sample(2, "ood", small.rng(0, "ood")).tokens).shape == (2, small.seq, 2)
