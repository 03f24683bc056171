"""What a figure records draws that figure again: every shipped one, and one with every kind of flag."""

import json
import shlex
from pathlib import Path

import pytest

from compolens import cli, recipes

ROOT = Path(__file__).parents[1]
SHIPPED = sorted((ROOT / "trained_models" / "figures").glob("*/*.json"))


@pytest.fixture
def asked(monkeypatch):
    """What a command asks to be drawn: (recipe file, models, arguments, folder, look), read by the command line itself."""

    def call(command):
        calls = []
        with monkeypatch.context() as patch:
            patch.setattr(recipes, "run_analysis", lambda *given: calls.append(given) or [])
            assert cli.main(shlex.split(command)[1:]) == 0
        (given,) = calls
        return given

    return call


@pytest.mark.parametrize("sidecar", SHIPPED, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_the_recorded_command_of_a_shipped_figure_gives_its_numbers(sidecar, asked, monkeypatch):
    monkeypatch.chdir(ROOT)
    recorded = json.loads(sidecar.read_text())
    file, models, arguments, _, look = asked(recorded["command"])
    drawing = look.arranged(recipes.load_recipe("analyses", file)(models, **arguments))
    again = drawing.frame().to_csv(index=False, lineterminator="\n").encode()
    assert again == sidecar.with_suffix(".csv").read_bytes()
    assert (sidecar.stem, arguments) == (file.stem, recorded["arguments"])


OWN = '''"""Two numbers."""
import pandas as pd
from compolens.figures import Bars, Drawing, Panel

needs = ()


def analyze(models, *, scale: float = 1.0, tall: bool = False):
    data = pd.DataFrame({"x": ["a", "b"], "y": [scale, 2 * scale + tall]})
    return Drawing("c", [Panel(name, "x", "y", [Bars(data, "x", "y", "l = 0")]) for name in ("one", "two")])
'''


def test_a_recipe_of_ones_own_with_every_flag_is_drawn_again_bit_for_bit(tiny_models, tmp_path, monkeypatch):
    (tmp_path / "own figure.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    flags = ["--scale", "0.5", "--tall", "--width", "12cm", "--dpi", "72", "--style", "ggplot"]
    flags += ["--only", "one", "--order", "b", "--labels", "l = 0=no transfer", "--labels", "a=first"]
    assert cli.main(["analyze", "own figure.py", str(tiny_models["softmax"]), "--out", "out", *flags]) == 0
    files = {path.name: path.read_bytes() for path in Path("out").iterdir()}
    command = json.loads(files["own figure.json"])["command"]
    for path in Path("out").iterdir():
        path.unlink()
    assert cli.main(shlex.split(command)[1:]) == 0
    assert {path.name: path.read_bytes() for path in Path("out").iterdir()} == files
    assert files["own figure.csv"].decode().splitlines()[1].startswith("one,0,Bars,l = 0,b,2.0")
