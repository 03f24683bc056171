"""What is told before any work is done, and what never happens in silence."""

import argparse
import json
import os
import shutil

import pandas as pd
import pytest

from compolens import cli, tables
from compolens.cli import engines
from compolens.diagnosis import interventional

PROBE = """
import pandas as pd


def probe(trained, *, episodes: int = 8, seed: int = 0):
    row = {{"metric": "m", "value": {value}, "lo": 0.0, "hi": 1.0, "split": "test", "site": "s", "role": "r", "n": 1}}
    table = pd.DataFrame([row | {{"control": c}} for c in ("", "untrained")])
    return {returned}
"""


@pytest.fixture
def model(tiny_models, tmp_path):
    return shutil.copytree(tiny_models["softmax"], tmp_path / "model")


def typed(*arguments):
    return cli.main([str(a) for a in arguments])


def own_probe(tmp_path, name="mine.py", value="0.5", returned="table"):
    path = tmp_path / name
    path.write_text(PROBE.format(value=value, returned=returned))
    return path


# ---- tables ----------------------------------------------------------------------------------------------------------
def test_a_probe_of_ones_own_never_overwrites_a_built_in_ones_table(model, tmp_path, capsys):
    assert typed("probe", own_probe(tmp_path, "generalization.py"), model) == 2
    assert "rename the file" in capsys.readouterr().err and not tables.exists(model, "generalization")
    (tmp_path / "other").mkdir()
    two = own_probe(tmp_path), own_probe(tmp_path / "other")
    assert typed("probe", *two, model) == 2 and "both write the table 'mine'" in capsys.readouterr().err
    assert typed("probe", two[0], model) == 0
    assert str(two[0]) in tables.provenance_of(model, "mine")["command"]


def test_two_recipes_of_one_name_are_refused_in_every_command(model, tmp_path, capsys):
    (tmp_path / "other").mkdir()
    two = own_probe(tmp_path), own_probe(tmp_path / "other")
    assert typed("contest", *two, model) == 2 and "both write the table 'mine'" in capsys.readouterr().err
    assert typed("contest", own_probe(tmp_path, "edges.py"), model) == 2
    assert "has the name of a built-in probe" in capsys.readouterr().err
    own = tmp_path / "who_generalizes.py"
    own.write_text(EMPTY)
    assert typed("analyze", "who_generalizes", own, model, "--out", tmp_path / "figures") == 2
    assert "both write the figure 'who_generalizes'" in capsys.readouterr().err and not (tmp_path / "figures").exists()


EMPTY = """
import pandas as pd
from compolens.figures import Drawing, Line, Panel

needs = ("mine",)


def analyze(models):
    return Drawing("Nothing.", (Panel("none", "x", "y", (Line(pd.DataFrame({"x": [], "y": []}), "x", "y", label="none"),)),))
"""


def test_a_figure_of_nothing_is_an_error_and_leaves_no_files(model, tmp_path, capsys):
    assert typed("probe", own_probe(tmp_path), model) == 0
    (tmp_path / "empty.py").write_text(EMPTY)
    assert typed("analyze", tmp_path / "empty.py", model, "--out", tmp_path / "figures") == 2
    assert "empty: nothing is drawn from the tables of these models" in capsys.readouterr().err
    assert not (tmp_path / "figures").exists()


@pytest.fixture
def judged(monkeypatch):
    """A contest that nobody enters, whatever is measured."""
    nobody = pd.DataFrame({"model": [], "family": []})
    nobody.attrs["left_out"] = {}
    monkeypatch.setattr("compolens.diagnosis.contest.gathered", lambda *_: nobody)
    monkeypatch.setattr("compolens.diagnosis.contest.judge", lambda *_: [])


def test_a_contest_whose_measuring_failed_says_so_by_its_exit_status(model, tmp_path, judged, monkeypatch):
    monkeypatch.setattr("compolens.cli.contest._has", lambda job: "mine" not in job.name)  # a second instead of twelve
    wrong = own_probe(tmp_path, value="'abc'")
    assert typed("contest", "--episodes", 8, wrong, model) == 1
    assert typed("contest", "--measured", wrong, model) == 0


def test_the_parts_of_a_contest_are_those_of_all_models_finished_or_not(model, tmp_path, judged, monkeypatch):
    for name in ("a", "b", "c"):
        shutil.copytree(model, tmp_path / "models" / name)
    (tmp_path / "models" / "b" / "scores.json").unlink()
    seen = []
    monkeypatch.setattr("compolens.cli.contest.to_measure", lambda models, *_: seen.append([m.name for m in models]) or [])
    for part in ("1/3", "2/3", "3/3"):
        assert typed("contest", tmp_path / "models", "--shard", part) == 0
    assert seen == [["a"], [], ["c"]]


@pytest.mark.parametrize(
    ("value", "returned", "told"),
    [
        ("0.5", "None", "must return a DataFrame"),
        ("0.5", "(table, table, table)", "it gave tuple"),
        ("'abc'", "table", "'value' of its table must hold numbers, got a str"),
        ("0.5", "pd.concat([table, table[['value']]], axis=1)", "the column 'value' twice"),
    ],
)
def test_what_a_probe_returns_is_checked_before_it_is_kept(model, tmp_path, capsys, value, returned, told):
    assert typed("probe", own_probe(tmp_path, value=value, returned=returned), model) == 1
    assert told in capsys.readouterr().err and not tables.exists(model, "mine")


def test_what_a_new_table_does_not_hold_any_more_is_told(model, tmp_path, capsys):
    mine = own_probe(tmp_path)
    assert typed("probe", mine, model, "--steps", "all", "--episodes", 16) == 0
    assert "replaces" not in capsys.readouterr().err
    assert typed("probe", mine, model, "--episodes", 4) == 0
    assert "replaces what was measured with episodes 16, steps 0, 1, 2" in capsys.readouterr().err


# ---- places ----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("command", ["explain", "report"])
def test_a_page_that_cannot_be_written_is_told_before_anything_is_measured(model, tmp_path, capsys, command):
    (tmp_path / "there").mkdir()
    assert typed(command, model, "-o", tmp_path / "there") == 2
    assert "is a folder; name a file" in capsys.readouterr().err and not (model / "tables").exists()
    (tmp_path / "file").write_text("")
    assert typed(command, model, "-o", tmp_path / "file" / "page.html") == 2
    assert "nothing can be written in" in capsys.readouterr().err and not (model / "tables").exists()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_model_that_cannot_be_written_to_is_told_before_it_is_measured(model, capsys):
    model.chmod(0o500)
    try:
        assert typed("probe", "generalization", model) == 2 and "cannot be written to" in capsys.readouterr().err
    finally:
        model.chmod(0o700)


@pytest.mark.parametrize("command", ["explain", "probe"])
def test_a_class_that_is_not_there_is_told_before_anything_is_measured(model, capsys, command):
    words = ["generalization"] if command == "probe" else []
    assert typed(command, *words, model, "--with", "foo") == 2
    assert capsys.readouterr().err.count("--with wants PLACE:CLASS") == 1 and not (model / "tables").exists()


@pytest.mark.parametrize(
    "arguments",
    [("probe", "generalization", ""), ("explain", ""), ("train", "runs.py", "--out", ""), ("report", "x", "-o", "")],
)
def test_an_empty_name_is_no_folder(arguments, capsys):
    assert typed(*arguments) == 2
    assert "was given an empty name" in capsys.readouterr().err


def test_what_holds_no_model_is_called_what_it_is(tmp_path, capsys):
    (tmp_path / "file.txt").write_text("")
    assert typed("models", tmp_path / "file.txt") == 2 and "is a file; name the folder" in capsys.readouterr().err
    place = tmp_path / "maps" / "one"
    place.mkdir(parents=True)
    for name in ("table.csv", "provenance.json"):
        (place / name).write_text("{}")
    assert typed("models", tmp_path / "maps") == 2 and "phase_diagram" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["''", "'.'", "'../up'", "'/up'", "3"])
def test_a_runs_name_is_a_folder_below_out(tmp_path, capsys, name):
    (tmp_path / "runs.py").write_text(
        "from compolens import Hyperteacher, Run, SoftmaxTransformer\n"
        f"runs = {{{name}: Run(SoftmaxTransformer(), Hyperteacher(), steps=1)}}\n"
    )
    assert typed("train", tmp_path / "runs.py", "--out", tmp_path / "out") == 2
    assert "is that of its folder below --out" in capsys.readouterr().err and not (tmp_path / "out").exists()


# ---- models ----------------------------------------------------------------------------------------------------------
def test_a_filter_holds_in_every_list_of_models(tiny_models, capsys):
    folders = tiny_models["softmax"], tiny_models["hypernetwork"]
    for mode in ("--diagnosis", "--check", "--write-digests"):
        assert typed("models", *folders, mode, "--filter", "architecture=Nothing*") == 2
        assert "no model has architecture=Nothing*" in capsys.readouterr().err
    assert typed("models", *folders, "--check", "--filter", "architecture=Softmax*") == 0
    assert capsys.readouterr().out.startswith("1 folders: 1 as they were written")


@pytest.mark.parametrize("flags", [("--summary", "--json"), ("--diagnosis", "--sort", "ood"), ("--summary", "--diagnosis")])
def test_flags_that_do_not_go_together_are_refused(tiny_models, capsys, flags):
    assert typed("models", tiny_models["softmax"], *flags) == 2
    assert "does not go with" in capsys.readouterr().err


def test_an_unknown_column_is_an_error_in_json_too(tiny_models, capsys):
    assert typed("models", tiny_models["softmax"], "--json", "--columns", "bogus") == 2
    assert "bogus" in capsys.readouterr().err
    assert typed("models", tiny_models["softmax"], "--json", "--columns", "model") == 0
    assert list(json.loads(capsys.readouterr().out)[0]) == ["model"]


# ---- a model that ignores its context -----------------------------------------------------------------------------------
def test_a_table_without_an_exchange_that_moves_anything_is_a_sentence(tmp_path, monkeypatch):
    """Where another code would not change the answers, probes leave the shares of the way out."""
    row = {"metric": "score", "value": 0.1, "split": "test", "control": "", "site": "s", "role": "r", "layer": 1.0, "step": 1}
    monkeypatch.setattr(interventional.tables, "has", lambda folder, name: name == "swap_code")
    monkeypatch.setattr(interventional, "_placed", lambda folder, name: pd.DataFrame([row]))
    (found,) = interventional.findings([tmp_path])
    assert "another code would not change its answers" in found.text and found.numbers == ()


@pytest.mark.parametrize(("device", "jobs", "running", "told"), [
    ("cuda", 4, False, True), ("cuda", 4, True, False), ("cuda", None, False, False), ("cpu", 4, False, False),
])  # fmt: skip
def test_jobs_that_would_take_turns_on_a_gpu_are_told_how_not_to(device, jobs, running, told, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", str(tmp_path))
    monkeypatch.setattr(engines, "check_device", lambda _: None)
    if running:
        (tmp_path / "control").touch()  # what the daemon listens at
    asked = argparse.Namespace(engine="local", device=device, jobs=jobs, address=None, slurm=[])
    assert engines.engine_of(asked, tmp_path).workers == (jobs or 1)
    assert ("nvidia-cuda-mps-control -d" in capsys.readouterr().err) == told


def test_a_copy_of_a_model_is_told_on_the_page_too(model, tmp_path, capsys):
    assert typed("probe", "generalization", model, "--episodes", 16) == 0
    for name in ("one", "two"):
        shutil.copytree(model, tmp_path / "both" / name)
    capsys.readouterr()
    assert typed("report", tmp_path / "both", "-o", tmp_path / "page.html") == 0
    told = "is a copy of"
    assert told in capsys.readouterr().err and told in (tmp_path / "page.html").read_text()
