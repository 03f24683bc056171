"""Listings fit the terminal, are plain in a pipe, and show the models that are asked for."""

import io
import json
import shlex
import shutil
import subprocess
import sys

import pytest

from compolens import cli
from compolens.cli.columns import fitted, print_table
from compolens.cli.rows import Filter, chosen, ordered
from compolens.foundation import terminal
from compolens.foundation.configs import ConfigError

COLUMNS = ["model", "architecture", "note"]
ROWS = [
    ["runs/a-rather-long-folder/softmax-0", "SoftmaxTransformer", "a sentence of some words on what it lacks"],
    ["b", "X", ""],
]


class Screen(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def screen(monkeypatch):
    """Makes stdout a terminal from the call on; returns it."""

    def begin():
        made = Screen()
        monkeypatch.setattr(sys, "stdout", made)
        monkeypatch.setenv("TERM", "xterm")
        monkeypatch.delenv("NO_COLOR", raising=False)
        return made

    return begin


@pytest.mark.parametrize("width", [120, 80, 60, 40, 36])
def test_a_table_fits_and_words_stay_whole(width):
    lines = fitted(COLUMNS, ROWS, width)
    assert max(map(len, lines)) <= width
    words = " ".join(lines).split()
    assert all(word in words for row in ROWS for cell in row for word in cell.split())


def test_a_word_longer_than_the_terminal_stays_whole():
    assert "x" * 50 in fitted(COLUMNS, [["x" * 50, "A", ""]], 30)


def test_a_pipe_gets_full_lines_and_a_terminal_what_fits(screen, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    seen = screen()
    print_table(["one", "two", "three"], [["a" * 20, "b" * 20, "c" * 20]], optional=["two"])
    shown = seen.getvalue()
    assert shown.startswith("\x1b[1mone") and "b" * 20 not in shown and "c" * 20 in shown
    assert "left out to fit 40 columns: two" in capsys.readouterr().err
    pipe = io.StringIO()
    monkeypatch.setattr(sys, "stdout", pipe)
    print_table(["one", "two", "three"], [["a" * 20, "b" * 20, "c" * 20]], optional=["two"])
    lines = pipe.getvalue().splitlines()
    assert lines[2] == "  ".join(c * 20 for c in "abc") and "\x1b" not in pipe.getvalue()


def test_no_color_is_respected_and_text_stays_text(screen, monkeypatch):
    seen = screen()
    with terminal.plain():
        terminal.bold("a\x1b[2Jb")
    assert seen.getvalue() == "\x1b[1ma\\x1b[2Jb\x1b[0m\n"
    monkeypatch.setenv("NO_COLOR", "1")
    terminal.bold("c")
    assert seen.getvalue().endswith("\nc\n")


def test_filters_compare_numbers_and_match_words():
    rows = [
        {"model": "a", "ood": 0.5, "architecture": "HYLA", "architecture.n_layers": 2},
        {"model": "b", "ood": 0.25, "architecture": "SoftmaxTransformer"},
        {"model": "c", "architecture": "SoftmaxTransformer", "architecture.n_layers": 10},
    ]

    def names(*texts):
        return "".join(row["model"] for row in chosen(rows, [Filter.read(text) for text in texts]))

    assert names("ood>0.3") == "a" and names("ood<=0.5") == "ab" and names("n_layers>2") == "c"
    assert names("architecture=softmax*") == "bc" and names("architecture!=softmax*") == "a"
    assert names("n_layers=2.0") == "a" and names("architecture=softmax*", "ood<1") == "b"
    assert [row["model"] for row in ordered(rows, "-ood")] == ["a", "b", "c"]
    assert [row["model"] for row in ordered(rows, "n_layers")] == ["a", "c", "b"]  # 2 before 10: numbers, not words
    with_other = [*rows, {"model": "d", "task.n_layers": 2}]
    with pytest.raises(ConfigError, match=r"'n_layers' may be architecture\.n_layers or task\.n_layers; type one of these"):
        chosen(with_other, [Filter.read("n_layers=2")])
    with pytest.raises(ConfigError, match="may be architecture"):
        ordered(with_other, "n_layers")
    assert [row["model"] for row in chosen(with_other, [Filter.read("task.n_layers=2")])] == ["d"]
    with pytest.raises(ConfigError, match="none of these models has 'odd'; did you mean"):
        names("odd>1")
    with pytest.raises(ConfigError, match="no model has ood>2"):
        names("ood>2")


def test_brackets_are_no_pattern_and_what_is_left_out_is_off():
    rows = [{"model": "m[1]"}, {"model": "m1", "answers_only": True}]

    def names(text, off=()):
        return [row["model"] for row in chosen(rows, [Filter.read(text)], off)]

    assert names("model=m[1]") == ["m[1]"] and names("model=*[1]") == ["m[1]"]
    assert names("answers_only=false") == names("answers_only!=true") == names("answers_only=None") == ["m[1]"]
    assert names("answers_only!=false") == ["m1"]
    assert names("threshold=none", ["threshold"]) == ["m[1]", "m1"]
    with pytest.raises(ConfigError, match=r"no model has threshold=0\.1"):
        names("threshold=0.1", ["threshold"])
    with pytest.raises(ConfigError, match="none of these models has 'treshold'"):
        names("treshold=none", ["threshold"])


def test_models_are_filtered_sorted_and_written_as_json(tiny_models, tmp_path, capsys):
    for name in tiny_models:
        shutil.copytree(tiny_models[name], tmp_path / "my runs" / name)

    def said(*flags):
        assert cli.main(["models", str(tmp_path / "my runs"), *flags]) == 0
        return capsys.readouterr().out

    first = [shlex.split(line)[0] for line in said().splitlines()[2:]]
    assert first == [str(tmp_path / "my runs" / name) for name in sorted(tiny_models)]
    assert len(said("--filter", "architecture=Softmax*").splitlines()) == 3
    assert len(said("--filter", "answers_only=false").splitlines()) == 4
    (found,) = json.loads(said("--filter", "architecture=Softmax*", "--json"))
    scores = json.loads((tmp_path / "my runs" / "softmax" / "scores.json").read_text())
    assert found["ood"] == scores["ood"]["score"] and found["architecture.d_model"] == 16
    lines = said("--columns", "architecture,d_model", "--sort=-architecture").splitlines()
    assert lines[0].split() == ["architecture", "d_model"]
    assert [line.split() for line in lines[2:]] == [["SoftmaxTransformer", "16"], ["HypernetworkTransformer", "16"]]
    assert cli.main(["models", str(tmp_path), "--columns", "d_modle"]) == 2
    assert "none of these models has 'd_modle'; did you mean" in capsys.readouterr().err


def test_scores_are_shown_of_a_model_whose_class_nobody_named(tiny_models, tmp_path, capsys):
    folder = shutil.copytree(tiny_models["softmax"], tmp_path / "foreign")
    config = json.loads((folder / "config.json").read_text())
    config["run"]["architecture"]["class"] = "Mine"
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "digests.json").unlink(missing_ok=True)
    assert cli.main(["models", str(folder), "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    scores = json.loads((folder / "scores.json").read_text())
    assert row["architecture"] == "Mine" and row["ood"] == scores["ood"]["score"] and "unknown class 'Mine'" in row["note"]


def test_a_killed_training_of_this_machine_is_begun_and_nobody_is_at_work(tmp_path, capsys):
    (tmp_path / "runs.py").write_text(
        "from compolens import Hyperteacher as H, Run, SoftmaxTransformer as S\nruns = {'a': Run(S(), H())}\n"
    )
    take = (
        "import os, sys; from pathlib import Path; from compolens.jobs.leases import Leases\n"
        "with Leases(Path(sys.argv[1])).take('a'): os.kill(os.getpid(), 9)"
    )
    killed = subprocess.run([sys.executable, "-c", take, str(tmp_path / "out")])
    assert killed.returncode == -9 and (tmp_path / "out" / ".claims" / "a.claim").exists()
    assert cli.main(["train", str(tmp_path / "runs.py"), "--list", "--out", str(tmp_path / "out")]) == 0
    said = capsys.readouterr().out
    assert "begun, nobody is at work" in said and "in work on" not in said
