"""A shell that asks what may follow is told recipes, folders and the flags of the recipes named, without torch."""

import os
import shutil
import subprocess
import sys

import pytest

from compolens import recipes
from compolens.cli.completion import SHELLS, flags_of
from compolens.foundation.builtin import built_in


def completed(line, folder):
    """The words that follow `line`, and whether torch was loaded."""
    file = folder / "answer"
    asked = {
        "_ARGCOMPLETE": "1", "_ARGCOMPLETE_SHELL": "bash", "_ARGCOMPLETE_IFS": "\n", "_ARGCOMPLETE_STDOUT_FILENAME": str(file),
        "COMP_LINE": line, "COMP_POINT": str(len(line)), "COMP_TYPE": "9",
    }  # fmt: skip
    command = [sys.executable, "-X", "importtime", "-m", "compolens.cli"]
    done = subprocess.run(command, env=os.environ | asked, cwd=folder, capture_output=True, text=True)
    imported = {row.rpartition("|")[2].strip() for row in done.stderr.splitlines()}
    assert "argcomplete" in imported and not {"torch", "pandas", "matplotlib"} & imported
    return [word.strip() for word in file.read_text().split("\n")]


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "latest" / "softmax").mkdir(parents=True)
    (tmp_path / "mine.py").write_text("def probe(trained, *, width: int = 1, sure: bool = False):\n    raise SystemExit\n")
    return tmp_path


def test_commands_recipes_folders_and_flags_are_completed(folder):
    assert completed("compolens pro", folder) == ["probe"]
    assert set(completed("compolens probe lat", folder)) >= {"latent_code", "latest/"}
    assert "--episodes" in completed("compolens probe latent_code latest --ep", folder)
    assert set(completed("compolens probe mine.py latest --", folder)) >= {
        "--width",
        "--sure",
        "--no-sure",
        "--jobs",
        "--with",
    }
    assert completed("compolens analyze who_gen", folder) == ["who_generalizes"]
    assert completed("compolens explain lat", folder) == ["latest/"]


@pytest.mark.parametrize(("kind", "function"), [("probes", "probe"), ("analyses", "analyze")])
def test_flags_read_off_the_source_are_those_of_the_recipe(kind, function):
    for path in list(built_in(kind).values())[:4]:
        wanted = {f"--{name.replace('_', '-')}" for name in recipes.options(recipes.load_recipe(kind, path))}
        assert {flag for flag in flags_of(path) if not flag.startswith("--no-")} == wanted


@pytest.mark.parametrize("shell", SHELLS)
def test_the_script_of_a_shell_is_printed_and_one_that_is_here_takes_it(shell, tmp_path):
    done = subprocess.run([sys.executable, "-m", "compolens.cli", "completion", shell], capture_output=True, text=True)
    assert done.returncode == 0 and "compolens" in done.stdout and "_ARGCOMPLETE" in done.stdout
    if shutil.which(shell):
        (tmp_path / "script").write_text(done.stdout)
        assert subprocess.run([shell, "-n", str(tmp_path / "script")]).returncode == 0
