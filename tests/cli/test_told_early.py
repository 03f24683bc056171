"""What is told before any work is done, and what never happens in silence."""

import json
import os
import shutil

import pandas as pd
import pytest

from compolens import cli, tables
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
