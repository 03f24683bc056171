"""The command line: what is typed wrongly is answered in one line that helps, and what is typed rightly happens once."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
from test_raven import write_small

from compolens import activations, cli, jobs, recipes, tables
from compolens.foundation import digests, files
from compolens.tasks import Hyperteacher
from compolens.training import Interrupted, state, train
from compolens.zoo.folders import load

RUNS = """
from dataclasses import dataclass
from compolens import Hyperteacher, Run, SoftmaxTransformer

@dataclass(frozen=True)
class Broken(Hyperteacher):
    def loss(self, prediction, targets):
        raise RuntimeError("the teacher\\nis ill")

sizes = {"d_x": 4, "d_y": 2, "d_hidden": 6, "n_modules": 6, "n_context": 6, "n_queries": 3}
net = SoftmaxTransformer(n_layers=1, d_model=8, n_heads=2)
short = {"steps": 4, "batch_size": 4, "evaluations": 2, "evaluation_episodes": 16}
runs = {
    "first": Run(net, Hyperteacher(**sizes), **short),
    "broken": Run(net, Broken(**sizes), **short),
    "last": Run(net, Hyperteacher(**sizes), init_seed=1, **short),
}
"""

PROBE = '''"""How large are the answers?"""
import pandas as pd

def probe(trained, *, episodes: int = 4, seed: int = 0, scale: float = 1.0, tag: str | None = None, square: bool = False):
    """The answers' size.

    scale: a factor.
    """
    row = {"metric": "size", "value": scale, "lo": None, "hi": None, "split": "test", "site": "output", "role": "answers"}
    return pd.DataFrame([row | {"control": c, "n": episodes, "tag": tag, "square": square} for c in ("", "none")])
'''

CLAIM = '"""Answers have a size."""\nneeds = ("{needs}",)\n\n\ndef analyze(models):\n    raise {error}\n'


@pytest.fixture
def run(capsys):
    """Run a command line here: an object with status, out, err."""

    def call(*arguments):
        try:
            status = cli.main([str(a) for a in arguments])
        except SystemExit as error:
            status = error.code
        out, err = capsys.readouterr()
        assert "Traceback" not in out + err
        return SimpleNamespace(status=status, out=out, err=err)

    return call


@pytest.fixture
def refuse(run):
    """Run a command line that must fail with one line on stderr, nothing on stdout; returns that line."""

    def call(*arguments, status=2):
        result = run(*arguments)
        lines = result.err.splitlines()
        assert (result.status, result.out, len(lines)) == (status, "", 1), result
        assert lines[0].startswith("compolens")
        return lines[0]

    return call


@pytest.fixture
def fail_job(run):
    """Run a command line whose one job fails, status 1; returns the job's one-line error."""

    def call(*arguments):
        result = run(*arguments)
        errors = [line for line in result.err.splitlines() if line.startswith("compolens: error: ")]
        assert (result.status, result.out, len(errors)) == (1, "", 1), result
        began = "--with" not in errors[0]  # a class that is not handed over is found out before
        assert len(result.err.splitlines()) == 1 + began  # the job's own line, and the error again at the end
        return errors[0]

    return call


@pytest.fixture
def runs_file(tmp_path):
    path = tmp_path / "runs.py"
    path.write_text(RUNS)
    return path


@pytest.fixture
def probe_file(tmp_path):
    path = tmp_path / "sizes.py"
    path.write_text(PROBE)
    return path


@pytest.fixture
def folder(tiny_models, tmp_path):
    """A copy of the softmax model, free to be broken."""
    return shutil.copytree(tiny_models["softmax"], tmp_path / "models" / "softmax")


@pytest.fixture
def both(tiny_models, tmp_path):
    for name, path in tiny_models.items():
        shutil.copytree(path, tmp_path / "both" / name)
    return tmp_path / "both"


def edit_config(folder, *path, value):
    """Set a key of config.json, given by its path."""
    config = json.loads((folder / "config.json").read_text())
    place = config
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    (folder / "config.json").write_text(json.dumps(config))


def weights(folder):
    return (folder / "weights.safetensors").read_bytes()


# ---- help ------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "arguments", [["--help"], ["train", "--help"], ["probe", "--list"], ["analyze", "--list"], ["--version"]]
)
def test_help_and_lists_do_not_load_torch(arguments):
    script = "import sys; from compolens.cli import main\ntry: main(sys.argv[1:])\nfinally: print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", script, *arguments], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "False" and len(done.stdout.splitlines()) > 1 and done.stderr == ""


def test_help_shows_every_command_with_an_example(run):
    text = run("--help").out
    for name in cli.COMMANDS:
        assert f"\n    {name}" in text
        assert f"\n  compolens {name} " in run(name, "--help").out
    assert run().out == text and run().status == 0


def test_explain_measures_what_is_missing_and_says_what_is_wrong(run, tiny_models, tmp_path, monkeypatch):
    import shutil

    monkeypatch.setattr(cli.explain, "EXPLAINS", ("generalization", "inference_or_execution", "attention_code"))
    shutil.copytree(tiny_models["softmax"], tmp_path / "softmax")
    first = run("explain", tmp_path / "softmax", "-o", tmp_path / "page.html", "--episodes", 48)
    assert first.status == 0
    assert "diagnosis: has not learned its training compositions" in first.out
    assert "The label would change with longer or better training" in first.out
    assert first.out.count("\n") < 12 and first.out.splitlines()[-1].startswith(f"report: {tmp_path / 'page.html'} (")
    assert "attention_code: does not apply" in first.err
    told = r"generalization\.csv: has not learned its training compositions \(test -?\d\.\d+\).* held-out ones at -?\d"
    assert re.search(told, first.err)  # at once: the rest takes minutes, and a reader may not want it then
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert len(page) > 1_000_000
    assert f"compolens explain {tmp_path / 'softmax'} -o {tmp_path / 'page.html'} --episodes 48<" in page
    reason = "attention_code does not apply to softmax: "  # said once, and not as a probe to run
    assert page.count(reason) == 1 and not re.search(r"compolens probe [a-z_ ]*attention_code", page)
    whole = run("report", tmp_path / "softmax", "-o", tmp_path / "page.html", "--evidence")
    assert whole.out.count("\n") > first.out.count("\n") and "diagnosis: has not learned" in whole.out
    again = run("explain", tmp_path / "softmax", "-o", tmp_path / "page.html", "--episodes", 48)
    assert again.err.count("up to date") == 2 and again.out == first.out
    table = run("models", tmp_path / "softmax", "--diagnosis").out
    assert "| has not learned its training compositions |" in table and table.count("\n") == 3


def test_explain_keeps_a_table_of_more_episodes_unless_a_number_is_asked_for(run, tiny_models, tmp_path, monkeypatch):
    shutil.copytree(tiny_models["softmax"], tmp_path / "softmax")
    monkeypatch.setattr(cli.explain, "EXPLAINS", ("generalization",))
    monkeypatch.setattr(cli.explain, "write_report", lambda *_: 0)

    def episodes():
        return tables.provenance_of(tmp_path / "softmax", "generalization")["arguments"]["episodes"]

    run("probe", "generalization", tmp_path / "softmax", "--episodes", 1040)
    assert "generalization: up to date" in run("explain", tmp_path / "softmax", "-o", tmp_path / "page.html").err
    assert episodes() == 1040
    asked = run("explain", tmp_path / "softmax", "-o", tmp_path / "page.html", "--episodes", 16)
    assert "replaces what was measured with episodes 1040" in asked.err and episodes() == 16
    fewer = run("explain", tmp_path / "softmax", "-o", tmp_path / "page.html")
    assert "replaces what was measured with episodes 16" in fewer.err and episodes() == 1024


def test_explain_says_once_that_a_training_has_not_ended(run, folder, both, tmp_path, monkeypatch):
    (folder / "scores.json").unlink()
    alone = run("explain", folder, "-o", tmp_path / "page.html")
    assert alone.status == 1 and alone.err.count("is not finished") == 1 and not (tmp_path / "page.html").exists()
    monkeypatch.setattr(cli.explain, "EXPLAINS", ("generalization",))
    monkeypatch.setattr(cli.explain, "write_report", lambda *_: 0)
    beside = run("explain", folder, both / "hypernetwork", "-o", tmp_path / "page.html", "--episodes", 16)
    assert beside.status == 1 and beside.err.count("is not finished") == 1
    assert (both / "hypernetwork" / "tables" / "generalization.csv").exists()


def test_all_sites_reach_the_probes_that_know_them(run, tiny_models, monkeypatch):
    asked = {}

    def measured(models, wanted, options, steps, *_):
        asked.update({file.stem: arguments for file, arguments in wanted.items()})
        return []

    monkeypatch.setattr(cli.explain, "to_measure", measured)
    monkeypatch.setattr(cli.explain, "write_report", lambda *_: None)
    for flags, wanted in (([], False), (["--all-sites"], True)):
        run("explain", tiny_models["softmax"], *flags)
        assert asked["swap_code"]["all_sites"] is asked["erase_code"]["all_sites"] is wanted
        assert "all_sites" not in asked["generalization"]


def test_a_claim_that_nobody_makes_is_an_error(run, tiny_models):
    done = run("challenge", tiny_models["softmax"], "--claim", "latent_cod")
    assert done.status == 2 and "no claim 'latent_cod'" in done.err and "latent_code" in done.err


def test_help_of_a_recipe_shows_its_docstring_and_its_flags(run, probe_file):
    text = run("probe", probe_file, "--help").out
    assert "sizes: The answers' size." in text and "scale: a factor." in text
    for flag in ("--episodes int", "--scale float", "--tag str", "--square", "--no-square"):
        assert flag in text
    assert "sizes (default 1.0)" in text


def test_the_module_runs_as_a_program():
    done = subprocess.run([sys.executable, "-m", "compolens", "prob"], capture_output=True, text=True)
    assert done.returncode == 2 and done.stderr == "compolens: error: no command 'prob'; did you mean 'probe'?\n"


@pytest.mark.parametrize(("kind", "command"), [("probes", "probe"), ("analyses", "analyze")])
def test_lists_show_every_recipe_with_its_docstring(run, kind, command):
    lines = [line.split(maxsplit=1) for line in run(command, "--list").out.splitlines()[2:]]
    assert lines == [[name, recipes.docstring(path)] for name, path in recipes.built_in(kind).items()]
    assert len(lines) >= 3


# ---- mistakes --------------------------------------------------------------------------------------------------------
def test_unknown_words_are_answered_with_the_nearest(refuse, runs_file, folder):
    assert refuse("trian") == "compolens: error: no command 'trian'; did you mean 'train'?"
    assert "unknown argument --hepl; did you mean '--help'" in refuse("--hepl")
    assert "no recipe 'latent_cod' in probes; did you mean 'latent_code' or " in refuse("probe", "latent_cod", folder)
    assert "no recipe 'who_generalises' in analyses; did you mean 'who_generalizes'" in refuse("analyze", "who_generalises")
    assert "has no run 'frist'; did you mean 'first'?" in refuse("train", runs_file, "frist")
    assert "unknown argument --episods; did you mean '--episodes'" in refuse("probe", "patching", folder, "--episods", 4)
    assert "unknown argument --ouut=x; did you mean '--out'" in refuse("train", runs_file, "--ouut=x")
    assert "argument --episodes: must be a whole number of at most 1,000,000,000, got 'many'" in refuse(
        "probe", "patching", folder, "--episodes", "many"
    )
    assert "--steps must be final, all or a number, got 'last'" in refuse("probe", "patching", folder, "--steps", "last")
    assert "argument --width: Unknown width: 'poster'. Allowed: 'column', 'page', 'neurips'" in refuse(
        "analyze", folder, "--width", "poster"
    )


@pytest.mark.parametrize("value", ["9" * 20, "1" * 5000, "1_0", "1e3", ""], ids=lambda value: value[:8])
def test_a_count_that_cannot_be_meant_is_refused(refuse, folder, value):
    for command in (("probe", "patching"), ("record", "--sites", "hook_embed", "-o", "nowhere"), ("challenge",), ("explain",)):
        assert "argument --episodes: must be a whole number of at most 1,000,000,000, got" in refuse(
            *command, folder, f"--episodes={value}"
        )


@pytest.mark.parametrize("value", ["0", "-3"])
def test_no_episodes_are_refused_before_anything_is_measured(refuse, folder, value):
    for command in (("record", "--sites", "hook_embed", "-o", "nowhere"), ("challenge",), ("explain",), ("contest",)):
        assert f"argument --episodes: needs 1 or more, got {value}" in refuse(*command, folder, f"--episodes={value}")


@pytest.mark.parametrize("value", ["9" * 5000, "²", "-1", ""], ids=["digits", "power", "negative", "nothing"])
def test_steps_that_are_no_number_are_refused(refuse, folder, value):
    assert "--steps must be final, all or a number, got" in refuse("probe", "patching", folder, f"--steps={value}")


@pytest.mark.parametrize("value", ["nan", "inf", "1e999", "much"])
def test_a_number_that_is_not_finite_is_refused(refuse, probe_file, folder, value):
    assert f"argument --scale: must be a finite number, got '{value}'" in refuse("probe", probe_file, folder, "--scale", value)


def test_percent_signs_in_a_recipe_are_shown_as_they_are(run, tmp_path):
    file = tmp_path / "share.py"
    file.write_text('"""How many?"""\n\n\ndef probe(trained, *, unit: str = "%s"):\n    """%(prog)s: 5 %?"""\n')
    done = run("probe", file, "--help")
    assert done.status == 0 and "share (default '%s')" in done.out and "%(prog)s: 5 %?" in done.out


def test_flags_of_another_recipe_are_unknown(refuse, folder):
    assert "unknown argument --threshold" in refuse("probe", "patching", folder, "--threshold", 0.5)


def test_what_is_missing_is_said(refuse, runs_file, folder, tmp_path):
    assert "the following arguments are required: file" in refuse("train")
    assert "name a recipe: compolens probe RECIPE FOLDER" in refuse("probe", folder)
    assert "name a model folder: compolens probe patching FOLDER" in refuse("probe", "patching")
    assert "there is no file absent.py; it should define runs" in refuse("train", "absent.py")
    assert "there is no folder 'nowhere'" in refuse("probe", "patching", "nowhere")
    near = f"{folder}s"
    told = f"there is no folder '{near}'; in '{folder.parent}': did you mean '{folder.name}'"
    assert told in refuse("probe", "patching", near)
    beyond = tmp_path / "absent" / "model"
    assert f"there is no folder '{beyond}', nor a folder '{beyond.parent}'" in refuse("probe", "patching", beyond)
    assert f"there is no recipe file {tmp_path}/absent.py" in refuse("probe", tmp_path / "absent.py", folder)
    for command in ("models", "report"):
        assert "nowhere does not exist; train some with: compolens train FILE" in refuse(command, "nowhere")


def test_a_folder_without_a_model_is_refused_naming_how_to_get_one(refuse, tmp_path):
    (tmp_path / "empty").mkdir()
    for command in (["probe", "patching"], ["analyze", "who_generalizes"], ["models"]):
        line = refuse(*command, tmp_path / "empty")
        assert f"{tmp_path}/empty holds no trained model; train some with: compolens train" in line
    line = refuse("record", tmp_path / "empty", "--sites", "hook_embed", "-o", tmp_path / "o")
    assert "holds no trained model (no config.json)" in line


def test_a_device_that_cannot_be_used_is_refused(refuse, runs_file, folder, tmp_path):
    record = ["record", folder, "--sites", "x", "-o", tmp_path / "o"]
    for command in (["train", runs_file], ["probe", "patching", folder], record):
        line = refuse(*command, "--device", "nonsense")
        assert "device 'nonsense' cannot be used" in line and "allowed here: cpu" in line


NO_RUNS = "defines no runs: it needs a dict"
BAD_FILES = [
    (
        "ConfigError: support names module 9 in [0, 9], but",
        RUNS.replace('"n_modules": 6', '"n_modules": 6, "support": [[0, 9]]'),
    ),
    ("ConfigError: SoftmaxTransformer: 3 heads do not divide d_model=8", RUNS.replace("n_heads=2", "n_heads=3")),
    ("SyntaxError: invalid syntax (runs.py, line 1)", "runs = = {}\n"),
    ("ModuleNotFoundError: No module named 'absent_package'", "import absent_package\n"),
    (NO_RUNS, "import compolens\n"),
    (NO_RUNS, 'runs = {"a": 3}\n'),
    (NO_RUNS, "runs = {}\n"),
]


@pytest.mark.parametrize(("reason", "text"), BAD_FILES)
def test_a_bad_runs_file_is_refused_in_one_line(refuse, runs_file, reason, text):
    runs_file.write_text(text)
    line = refuse("train", runs_file)
    assert str(runs_file) in line and reason in line


def test_bad_recipe_files_are_refused_in_one_line(refuse, probe_file, folder):
    for text, reason in {
        "def probe(:\n": "SyntaxError",
        "x = 1\n": "defines no function probe()",
        PROBE.replace("scale: float", "scale: list"): "scale must be annotated int, float, str or bool",
        PROBE.replace("scale: float", "jobs: float"): "its argument 'jobs' would hide the flag --jobs of compolens probe",
    }.items():
        probe_file.write_text(text)
        assert reason in refuse("probe", probe_file, folder)


def test_a_recipe_that_fails_or_forgets_its_controls_fails_in_one_line(fail_job, probe_file, folder):
    for old, new, reason in (
        ("row = ", "row = [][1]\n    row = ", "IndexError: list index out of range (sizes.py:"),
        ('("", "none")', '("",)', "has no control rows"),
        ('"split": "test", ', "", "lacks the column 'split'"),
    ):
        probe_file.write_text(PROBE.replace(old, new))
        assert reason in fail_job("probe", probe_file, folder)
        assert not (folder / "tables").exists()


def test_an_analysis_that_fails_fails_in_one_line(refuse, run, probe_file, folder, tmp_path):
    assert run("probe", probe_file, folder).status == 0
    (tmp_path / "claim.py").write_text(CLAIM.format(needs="sizes", error='ValueError("so\\nit is")'))
    line = refuse("analyze", tmp_path / "claim.py", folder, "--out", tmp_path / "figures")
    assert "ValueError: so it is (claim.py:6); COMPOLENS_DEBUG=1 shows the traceback" in line


def test_debug_shows_the_traceback(monkeypatch, probe_file, folder):
    monkeypatch.setenv("COMPOLENS_DEBUG", "1")
    probe_file.write_text(PROBE.replace("row = ", "row = [][1]\n    row = "))
    with pytest.raises(IndexError):
        cli.main(["probe", str(probe_file), str(folder)])


BROKEN = {
    "has no setting 'n_layer'; did you mean 'n_layers'": (("run", "architecture", "n_layer"), 2),
    "SoftmaxTransformer: d_model must be a whole number of at least 1, got -16": (("run", "architecture", "d_model"), -16),
    "SoftmaxTransformer: 3 heads do not divide d_model=16": (("run", "architecture", "n_heads"), 3),
    "unknown class 'SoftmaxTransformr' in a description; did you mean 'SoftmaxTransformer'": (
        ("run", "architecture", "class"),
        "SoftmaxTransformr",
    ),
    "has the unknown key 'runs'; allowed: format, run": (("runs",), {}),
    "Run: init_seed must be a whole number, got 'zero'": (("run", "init_seed"), "zero"),
    "does not fit its config.json": (("run", "architecture", "d_model"), 32),
}


@pytest.mark.parametrize(("reason", "edit"), BROKEN.items(), ids=BROKEN)
def test_a_description_that_means_nothing_fails_naming_file_and_setting(fail_job, run, folder, reason, edit):
    edit_config(folder, *edit[0], value=edit[1])
    (folder / "digests.json").unlink()  # which would only say that it was changed
    line = fail_job("probe", "patching", folder)
    assert str(folder) in line and reason in line
    if "fit" not in reason:
        assert reason in run("models", folder).out


def test_a_description_that_is_no_json_is_refused(refuse, fail_job, folder):
    (folder / "config.json").write_text('{"format": 1,')
    assert "config.json is not valid JSON" in fail_job("probe", "patching", folder)
    assert "config.json is not valid JSON" in refuse("record", folder, "--sites", "hook_embed", "-o", folder / "o")


def halve(content):
    return content[: len(content) // 2]


def scramble_header(content):
    return content[:20] + bytes(255 - byte for byte in content[20:60]) + content[60:]


def flip_a_bit(content):
    return content[:-9] + bytes([content[-9] ^ 4]) + content[-8:]


@pytest.mark.parametrize("damage", [halve, scramble_header, flip_a_bit, lambda content: content[:5], lambda content: b""])
def test_damaged_weights_are_refused_and_leave_no_table(fail_job, folder, damage):
    path = folder / "weights.safetensors"
    path.write_bytes(damage(path.read_bytes()))
    assert f"{path} is truncated or corrupted" in fail_job("probe", "patching", folder)
    assert not (folder / "tables").exists()


def test_an_unfinished_run_is_not_measured(fail_job, run, folder):
    (folder / "scores.json").unlink()
    told = fail_job("probe", "patching", folder)
    assert "is not finished (no scores.json), although digests.json names them: they were deleted, or the training" in told
    assert "run the same `compolens train` command to go on" in told
    assert "not finished" in run("models", folder).out


# ---- train -----------------------------------------------------------------------------------------------------------
def test_a_failing_run_stops_no_other_and_two_processes_train_the_same_weights(run, runs_file, tmp_path):
    one, two = (tmp_path / name for name in ("one", "two"))
    for out, workers in ((one, 1), (two, 2)):
        result = run("train", runs_file, "--out", out, "--jobs", workers)
        failed = [line for line in result.err.splitlines() if line.startswith("compolens: error: ")]
        assert result.status == 1 and len(failed) == 1
        assert failed[0].startswith("compolens: error: broken: RuntimeError: the teacher is ill (runs.py:")
        assert not (out / "broken" / "scores.json").exists()
    assert weights(one / "first") != weights(one / "last")
    for name in ("first", "last"):
        assert weights(one / name) == weights(two / name)
        assert (one / name / "history.csv").read_bytes() == (two / name / "history.csv").read_bytes()
    assert "OMP_NUM_THREADS" in os.environ and sorted(p.name for p in two.iterdir()) == ["broken", "first", "last"]


def test_training_lists_runs_and_what_became_of_them(run, runs_file, tmp_path):
    out = tmp_path / "out"
    assert run("train", runs_file, "first", "--out", out).status == 0
    (out / "last").mkdir()
    begun = json.loads((out / "first" / "config.json").read_text())
    begun["run"]["init_seed"] = 1
    (out / "last" / "config.json").write_text(json.dumps(begun))
    listed = run("train", runs_file, "--list", "--out", out).out.splitlines()[2:]
    assert [line.split() for line in listed] == [
        ["first", "SoftmaxTransformer", "Hyperteacher", "4", "finished"],
        ["broken", "SoftmaxTransformer", "Broken", "4"],
        ["last", "SoftmaxTransformer", "Hyperteacher", "4", "begun,", "nobody", "is", "at", "work"],
    ]
    assert not (out / "broken").exists()


def test_a_folder_with_another_run_or_without_its_weights_is_not_called_finished(run, runs_file, tmp_path):
    out = tmp_path / "out"
    assert run("train", runs_file, "first", "--out", out).status == 0
    other = tmp_path / "other.py"
    other.write_text(runs_file.read_text().replace('"steps": 4', '"steps": 8'))
    assert other.read_text() != runs_file.read_text()
    listed = run("train", other, "first", "--list", "--out", out).out.splitlines()[-1]
    assert "holds another run (steps is 4 there, 8 here)" in listed and "finished" not in listed
    weights = out / "first" / "weights.safetensors"
    content = weights.read_bytes()
    weights.write_bytes(content[:2000])
    again = run("train", runs_file, "first", "--out", out)
    assert again.status == 1 and "weights.safetensors changed after it was written" in again.err
    weights.unlink()
    again = run("train", runs_file, "first", "--out", out)
    assert again.status == 1 and f"there is no {weights}, which digests.json beside it names" in again.err
    weights.write_bytes(content)
    assert run("train", runs_file, "first", "--out", out).status == 0


def test_where_a_folder_is_wanted_a_file_is_refused_in_one_line(run, runs_file):
    refused = run("train", runs_file, "--out", runs_file)
    assert refused.status == 2 and f"--out {runs_file} is a file; name a folder" in refused.err
    assert len(refused.err.splitlines()) == 1


def test_no_number_of_episodes_replaces_a_table_before_it_is_refused(run, tiny_models):
    refused = run("probe", "generalization", tiny_models["softmax"], "--episodes", "-5")
    assert refused.status == 2 and "needs 1 or more, got -5" in refused.err and "replaces" not in refused.err


def test_a_contest_takes_no_built_in_probe(run, tiny_models):
    refused = run("contest", "latent_code", tiny_models["softmax"])
    assert refused.status == 2 and "latent_code is a built-in probe; the contest takes files of your own" in refused.err


def test_patterns_choose_runs_and_flags_may_stand_anywhere(run, runs_file):
    for arguments in ([runs_file, "*st", "--list"], ["--list", runs_file, "*st"], [runs_file, "--list", "first", "l*", "*t"]):
        names = [line.split()[0] for line in run("train", *arguments).out.splitlines()[2:]]
        assert names == ["first", "last"]


def test_a_run_with_brackets_in_its_name_is_no_pattern(run, runs_file):
    runs_file.write_text(RUNS.replace('"first"', '"m[1]"').replace('"last"', '"m1"'))
    for pattern, names in (("m[1]", ["m[1]"]), ("*[1]", ["m[1]"]), ("m?", ["m1"])):
        assert [line.split()[0] for line in run("train", runs_file, pattern, "--list").out.splitlines()[2:]] == names
    runs_file.write_text(RUNS.replace('"first"', '"m2"').replace('"last"', '"m1"'))
    listed = run("train", runs_file, "m[12]", "--list").out.splitlines()[2:]
    assert [line.split()[0] for line in listed] == ["m2", "m1"]  # where no name has brackets, one of some characters


def test_a_tracker_that_is_named_twice_follows_once(monkeypatch):
    monkeypatch.setattr("compolens.training.tracking.tracker", lambda name: name)
    assert cli.train._trackers(["tensorboard", "wandb", "tensorboard"]) == ["tensorboard", "wandb"]


def test_training_reports_scores_and_a_changed_environment(run, runs_file, tmp_path, monkeypatch):
    first = cli.train.read_runs(str(runs_file))["first"]
    here = state.environment("cpu")
    loss = Hyperteacher.loss
    with monkeypatch.context() as patch:
        patch.setattr(state, "environment", lambda device: here | {"torch": "0.0"})
        patch.setattr(Hyperteacher, "loss", lambda *a: signal.raise_signal(signal.SIGINT) or loss(*a))
        with pytest.raises(Interrupted):
            train(first, tmp_path / "out" / "first")
    result = run("train", runs_file, "first", "--out", tmp_path / "out")
    scores = json.loads((tmp_path / "out" / "first" / "scores.json").read_text())
    assert result.status == 0 and f"ood {scores['ood']['score']:.4f} ± {scores['ood']['se']:.4f}" in result.err
    assert "resumed in another environment" in result.err
    assert "resumed" not in run("train", runs_file, "last", "--out", tmp_path / "out").err


def test_a_folder_of_another_run_is_refused_on_the_command_line(fail_job, run, runs_file, tmp_path):
    assert run("train", runs_file, "first", "--out", tmp_path / "out").status == 0
    runs_file.write_text(RUNS.replace('"steps": 4', '"steps": 5'))
    assert "holds another run (steps is 4 there, 5 here)" in fail_job("train", runs_file, "first", "--out", tmp_path / "out")


# ---- tasks that read data --------------------------------------------------------------------------------------------
READS = """
from compolens import Hyperteacher, Raven, Run, SoftmaxTransformer

net = SoftmaxTransformer(n_layers=1, d_model=8, n_heads=2)
short = {"steps": 2, "batch_size": 4, "evaluations": 1, "evaluation_episodes": 16}
runs = {
    "raven": Run(net, Raven(configurations=("center_single",), size=4), **short),
    "teacher": Run(net, Hyperteacher(), **short),
}
"""


@pytest.fixture
def reads(tmp_path):
    """A runs file whose task reads data, and a folder of such data."""
    (tmp_path / "reads.py").write_text(READS)
    write_small(tmp_path / "puzzles", ["center_single"])
    return tmp_path / "reads.py", tmp_path / "puzzles"


def test_data_given_on_the_command_line_is_what_a_task_reads(run, reads, tmp_path, monkeypatch):
    file, data = reads
    monkeypatch.chdir(tmp_path)
    assert run("train", file, "raven", "--data", "puzzles", "--out", "out").status == 0
    folder = tmp_path / "out" / "raven"
    assert load(folder).task.data == str(data)  # absolute: it is there wherever the next command is typed
    assert run("train", file, "raven", "--data", data, "--out", "out").status == 0
    shutil.copytree(data, tmp_path / "moved")
    shutil.rmtree(data)
    record = ["record", folder, "--sites", "hook_embed", "--episodes", 3, "-o"]
    assert run(*record, "o", "--data", "moved").status == 0
    moved = replace(load(folder).task, data=str(tmp_path / "moved"))
    episodes = next(iter(activations.draw(moved, "ood", 3, 0)))
    np.testing.assert_array_equal(np.load(tmp_path / "o" / "tokens.npy"), episodes.tokens.numpy())


def test_data_that_is_not_there_leaves_no_folder_behind(fail_job, run, reads, tmp_path):
    file, data = reads
    train_it = ["train", file, "raven", "--out", tmp_path / "out"]
    assert "downloads nothing, but has no folder to read; name the folder" in fail_job(*train_it)
    line = fail_job(*train_it, "--data", tmp_path / "absent")
    assert f"there is no folder '{tmp_path / 'absent'}'" in line and "compolens train … --data DIR" in line
    assert run(*train_it, "--data", data).status == 0


def test_data_for_a_task_that_reads_none_is_refused(refuse, reads, folder, tmp_path):
    file, data = reads
    line = refuse("train", file, "--data", data, "--out", tmp_path / "out")
    assert f"--data {data}: Hyperteacher reads no data; leave --data out" in line
    assert not (tmp_path / "out").exists()
    record = ["record", folder, "--sites", "hook_embed", "-o", tmp_path / "o"]
    assert "Hyperteacher reads no data" in refuse(*record, "--data", data)


def test_other_data_is_another_run(fail_job, run, reads, tmp_path):
    file, data = reads
    train_it = ["train", file, "raven", "--out", tmp_path / "out", "--data"]
    assert run(*train_it, data).status == 0
    shutil.copytree(data, tmp_path / "other")
    assert f"holds another run (task.data is '{data}' there, '{tmp_path}/other' here)" in fail_job(
        *train_it, tmp_path / "other"
    )


def test_a_probe_whose_data_is_gone_names_the_way_out(fail_job, run, reads, tmp_path):
    file, data = reads
    assert run("train", file, "raven", "--data", data, "--out", tmp_path / "out").status == 0
    shutil.rmtree(data)
    line = fail_job("probe", "generalization", tmp_path / "out" / "raven", "--episodes", 16)
    assert f"there is no folder '{data}'" in line and "data in its config.json" in line


# ---- probe -----------------------------------------------------------------------------------------------------------
def table(folder, name):
    return pd.read_csv(folder / "tables" / f"{name}.csv", keep_default_na=False)


def test_every_kept_step_is_measured_on_demand(run, folder):
    assert run("probe", "patching", folder, "--episodes", 6, "--steps", "all").status == 0
    rows = table(folder, "patching")
    assert rows["step"].unique().tolist() == [0, 1, 2]
    values = {step: part["value"].tolist() for step, part in rows.groupby("step")}
    assert len({len(v) for v in values.values()}) == 1 and values[0] != values[1] != values[2]
    untrained = {step: part[part["control"] == "untrained"]["value"].tolist() for step, part in rows.groupby("step")}
    own = rows[(rows["step"] == 0) & (rows["control"] == "")]["value"].tolist()
    assert own == untrained[0] == untrained[1] == untrained[2]  # step 0 is the untrained control
    assert run("probe", "patching", folder, "--episodes", 6, "--steps", 1, "--again").status == 0
    rows = table(folder, "patching")
    assert rows["step"].unique().tolist() == [1, 2]  # the final step stands beside it, and is what analyses read
    assert rows[rows["step"] == 1]["value"].tolist() == values[1]


def test_a_step_that_was_not_kept_is_refused(fail_job, folder):
    assert "keeps no weights of step 7; kept: [0, 1, 2]" in fail_job("probe", "patching", folder, "--steps", 7)


def test_flags_reach_the_recipe_wherever_they_stand(run, probe_file, folder):
    for arguments in (
        [probe_file, folder, "--scale", 2.5, "--tag", "x", "--square", "--episodes", 3],
        ["--scale", 2.5, "--tag", "x", probe_file, "--square", folder, "--episodes=3", "--again"],
    ):
        assert run("probe", *arguments).status == 0
        row = table(folder, "sizes").iloc[0]
        assert (row["value"], row["tag"], row["square"], row["n"]) == (2.5, "x", True, 3)
    provenance = json.loads((folder / "tables" / "sizes.json").read_text())
    assert provenance["arguments"] == {"episodes": 3, "seed": 0, "scale": 2.5, "tag": "x", "square": True}


def measured(run, folder, *arguments):
    """Whether `probe` measured anything."""
    path = folder / "tables" / "sizes.csv"
    if path.exists():
        os.utime(path, (0, 0))
    result = run("probe", *arguments, folder)
    assert result.status == 0
    anew = path.stat().st_mtime != 0
    assert anew != ("softmax · sizes: up to date" in result.err)
    return anew


def test_only_what_is_new_or_stale_is_measured(run, probe_file, folder):
    assert measured(run, folder, probe_file)
    assert not measured(run, folder, probe_file)
    assert not measured(run, folder, probe_file, "--scale", 1.0)
    assert measured(run, folder, probe_file, "--scale", 3)
    assert measured(run, folder, probe_file), "back at the defaults"
    assert measured(run, folder, probe_file, "--again")
    assert measured(run, folder, probe_file, "--steps", "all")
    assert not measured(run, folder, probe_file), "the final step is among all"
    probe_file.write_text(PROBE + "# a comment\n")
    assert not measured(run, folder, probe_file), "what it does is the same"
    probe_file.write_text(PROBE + "MORE = 1\n")
    assert measured(run, folder, probe_file)
    files.write_tensors(folder / "weights.safetensors", files.read_tensors(folder / "steps" / "1.safetensors")[0])
    digests.take(folder)
    assert measured(run, folder, probe_file)
    (folder / "tables" / "sizes.json").unlink()
    assert measured(run, folder, probe_file), "a table without provenance says nothing"


def test_a_model_that_cannot_be_measured_stops_no_other(run, both, probe_file):
    (both / "hypernetwork" / "weights.safetensors").write_bytes(b"")
    result = run("probe", probe_file, both)
    assert result.status == 1 and "error: hypernetwork · sizes: " in result.err
    assert table(both / "softmax", "sizes")["value"].tolist() == [1, 1]
    assert not (both / "hypernetwork" / "tables").exists()


def test_models_of_one_name_in_two_places_are_two_jobs(run, folder, both, probe_file, monkeypatch):
    seen = []
    monkeypatch.setattr(jobs.Local, "run", lambda engine, work: seen.extend(job.name for job in work) or jobs.Outcome())
    assert run("probe", probe_file, folder, both).status == 0
    assert seen == [f"{folder} · sizes", "hypernetwork · sizes", f"{both / 'softmax'} · sizes"]


def test_ctrl_c_during_a_measurement_exits_130_without_a_table(run, probe_file, both):
    probe_file.write_text(PROBE.replace("row = ", "import signal\n    signal.raise_signal(signal.SIGINT)\n    row = "))
    result = run("probe", probe_file, both)
    assert result.status == 130 and not list(both.glob("*/tables"))
    assert "softmax" not in result.err, "what comes after the interruption is not begun"


def test_ctrl_c_while_a_recipe_loads_exits_130(run, probe_file, folder):
    probe_file.write_text("import signal\nsignal.raise_signal(signal.SIGINT)\n" + PROBE)
    assert run("probe", probe_file, folder).status == 130


# ---- classes from outside --------------------------------------------------------------------------------------------
OUTSIDE = """
from dataclasses import dataclass
from compolens import Hyperteacher, Run, SoftmaxTransformer

@dataclass(frozen=True)
class Mine(SoftmaxTransformer):
    flavour: str = "plain"

sizes = {"d_x": 4, "d_y": 2, "d_hidden": 6, "n_modules": 6, "n_context": 6, "n_queries": 3}
runs = {"mine": Run(Mine(n_layers=1, d_model=8, n_heads=2), Hyperteacher(**sizes), steps=0, evaluation_episodes=8)}
"""


def test_a_class_from_outside_is_used_only_when_named(run, fail_job, tmp_path, monkeypatch, probe_file):
    path, folder = tmp_path / "outside.py", tmp_path / "out" / "mine"
    path.write_text(OUTSIDE)
    assert run("train", path, "--out", tmp_path / "out").status == 0
    line = fail_job("probe", probe_file, folder)
    assert "unknown class 'Mine'" in line and "--with package:" in line
    assert "unknown class 'Mine'" in run("models", folder).out
    assert run("probe", probe_file, folder, "--with", f"{path}:Mine").status == 0
    assert "Mine" in run("models", folder, "--with", f"{path}:Mine").out.splitlines()[2].split()
    monkeypatch.syspath_prepend(tmp_path)
    site = "blocks.0.hook_resid_pre"
    assert run("record", folder, "--sites", site, "-o", tmp_path / "o", "--episodes", 3, "--with", "outside:Mine").status == 0


def test_a_class_that_is_not_there_is_refused(run, refuse, tmp_path, folder):
    (tmp_path / "outside.py").write_text(OUTSIDE)
    path = tmp_path / "outside.py"
    for place, reason in {
        "Mine": "--with wants PLACE:CLASS",
        f"{path}:Yours": "has no 'Yours'; ",
        f"{tmp_path}/absent.py:Mine": "absent.py",
        "absent_package:Mine": "No module named 'absent_package'",
    }.items():
        assert reason in refuse("record", folder, "--sites", "hook_embed", "-o", tmp_path / "o", "--with", place)


# ---- record and models -----------------------------------------------------------------------------------------------
def test_record_writes_what_the_hook_points_saw(run, folder, tmp_path):
    out = tmp_path / "arrays"
    patterns = ["blocks.*.hook_resid_post", "hook_embed"]
    arguments = ["--split", "test", "--episodes", 300, "--seed", 3, "--step", 1]
    result = run("record", folder, "-o", out, *arguments, "--sites", *patterns)
    assert result.status == 0
    trained = load(folder, step=1)
    batches = list(activations.draw(trained.task, "test", 300, 3))
    tokens = torch.cat([b.tokens for b in batches])
    prediction, cache = trained.model.run_with_cache(tokens)
    sites = ["blocks.0.hook_resid_post", "blocks.1.hook_resid_post", "hook_embed"]
    expected = {site: cache[site] for site in sites} | {"prediction": prediction, "tokens": tokens}
    for name in ("targets", "composition"):
        expected[name] = torch.cat([getattr(b, name) for b in batches])
    expected["codes.modules"] = torch.cat([b.codes["modules"] for b in batches])
    assert result.out.split() == [str(out / f"{name}.npy") for name in sorted(expected)]
    for name, tensor in expected.items():
        array = np.load(out / f"{name}.npy")
        assert array.shape == tensor.shape
        np.testing.assert_allclose(array, tensor.detach().numpy(), rtol=1e-5, atol=1e-6)


def test_record_takes_every_hook_point_that_fires(run, folder, tmp_path):
    assert run("record", folder, "--sites", "blocks.0.*", "-o", tmp_path / "o", "--episodes", 2).status == 0
    model = load(folder).model
    fires = set(model.run_with_cache(torch.zeros(1, model.cfg.n_ctx, model.cfg.d_in))[1])
    written = {path.stem for path in (tmp_path / "o").glob("blocks.*.npy")}
    assert written == {s for s in model.hook_dict if s.startswith("blocks.0.")} & fires


def test_record_refuses_what_it_cannot_do(refuse, folder, tmp_path):
    def line(*more, sites=("hook_embed",)):
        return refuse("record", folder, "-o", tmp_path / "o", *more, "--sites", *sites)

    near = line(sites=["blocks.0.hook_resid_pst"])
    assert "no hook point 'blocks.0.hook_resid_pst'; did you mean" in near and "'blocks.0.hook_resid_post'" in near
    assert "does not fire unless" in line(sites=["blocks.0.attn.hook_result"])
    assert "no hook point 'block.*'" in line(sites=["block.*"])
    assert "no split 'odd'; did you mean 'ood'?" in line("--split", "odd")
    assert "argument --episodes: needs 1 or more, got 0" in line("--episodes", 0)
    assert "keeps no weights of step 9; kept: [0, 1, 2]" in line("--step", 9)


def test_models_lists_scores_below_a_folder(run, both):
    (both / "softmax" / "scores.json").unlink()
    lines = run("models", both).out.splitlines()
    header = lines[0].split()
    assert header == ["model", "architecture", "task", "steps", "parameters", "train", "test", "ood", "note"]
    scores = json.loads((both / "hypernetwork" / "scores.json").read_text())
    shown = [f"{scores[split]['score']:.4f}" for split in ("train", "test", "ood")]
    row = [str(both / "hypernetwork"), "HypernetworkTransformer", "Hyperteacher", "2", f"{scores['parameters']:,}", *shown]
    left = [str(both / "softmax"), "SoftmaxTransformer", "Hyperteacher", "2"]
    note = "not finished: step 0 of 2, although digests.json names them: they were deleted, "
    note += "or the training was killed as it ended"
    assert [line.split() for line in lines[2:]] == [row, [*left, *note.split()]]


def test_models_looks_in_the_usual_places(run, refuse, both, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert "there is neither trained_models nor runs here" in refuse("models")
    both.rename(tmp_path / "runs")
    assert [line.split()[0] for line in run("models").out.splitlines()[2:]] == ["runs/hypernetwork", "runs/softmax"]


def test_a_reader_that_leaves_early_is_no_error(both):
    script = "import sys; from compolens.cli import main; sys.exit(main(['probe', '--list']))"
    process = subprocess.Popen([sys.executable, "-u", "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    process.stdout.close()
    assert process.wait() == 141 and process.stderr.read() == b""
    process.stderr.close()


def test_a_probe_that_does_not_apply_says_so_and_the_others_go_on(run, tmp_path):
    file = tmp_path / "runs.py"
    file.write_text(
        "from compolens import HYLA, Run, SRaven\n"
        "net = HYLA(n_layers=1, d_model=8, n_heads=2, n_ctx=18)\n"
        "quick = {'steps': 1, 'batch_size': 4, 'evaluations': 1, 'evaluation_episodes': 16}\n"
        "runs = {'raven': Run(net, SRaven(n_features=2), **quick)}\n"
    )
    assert run("train", file, "--out", tmp_path / "out").status == 0
    alone = run("probe", "gd_equivalence", tmp_path / "out", "--episodes", 16)
    assert alone.status == 1 and "gd_equivalence: does not apply: SRaven is no regression family" in alone.err
    both = run("probe", "gd_equivalence", "generalization", tmp_path / "out", "--episodes", 16)
    assert both.status == 0 and "does not apply" in both.err
    assert not (tmp_path / "out" / "raven" / "tables" / "gd_equivalence.csv").exists()
