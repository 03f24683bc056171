"""What a figure records draws that figure again: every shipped one, and one with every kind of flag."""

import io
import json
import shlex
import struct
from pathlib import Path

import findings
import pandas as pd
import pytest

from compolens import cli, recipes, tables
from compolens.figures import WIDTHS, Drawing, Line, Panel, Points, Rule
from compolens.figures.scenes import Legend
from compolens.figures.widths import HIGHEST
from compolens.figures.words import displayed

ROOT = Path(__file__).parents[1]
MOST_ENTRIES = 9
"""Of a legend that a reader can still match with lines."""
SHIPPED = sorted((ROOT / "trained_models" / "figures").rglob("*.json"))


@pytest.fixture
def asked(monkeypatch):
    """What a command asks to be drawn: (recipe file, models, arguments, folder, look), read by the command line itself."""

    def call(command):
        calls = []
        with monkeypatch.context() as patch:
            patch.setattr(recipes, "run_analysis", lambda *given, **_: calls.append(given) or [])
            assert cli.main(shlex.split(command)[1:]) == 0
        (given,) = calls
        return given

    return call


@pytest.mark.parametrize("sidecar", SHIPPED, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_the_recorded_command_of_a_shipped_figure_gives_its_numbers(sidecar, asked, monkeypatch):
    monkeypatch.chdir(ROOT)
    recorded = json.loads(sidecar.read_text())
    file, models, arguments, _, look = asked(recorded["command"])
    with tables.read_once(findings.IN_SHIPPED_TABLES):
        drawing = look.arranged(recipes.load_recipe("analyses", file)(models, **arguments))
    again = drawing.frame().to_csv(index=False, lineterminator="\n")
    same_numbers(again, sidecar.with_suffix(".csv").read_text())
    given = {name: value for name, value in arguments.items() if value is not None}
    assert (sidecar.stem, given) == (file.stem, recorded["arguments"])
    assert len(entries_of(drawing)) <= MOST_ENTRIES


def same_numbers(again, shipped):
    """The same cells; a number may differ by what another processor's sums round differently."""
    if again == shipped:
        return
    first, second = (pd.read_csv(io.StringIO(text), dtype=str, keep_default_na=False) for text in (again, shipped))
    assert first.shape == second.shape and list(first) == list(second)
    other = (first != second).to_numpy()
    ours, theirs = (frame.to_numpy()[other].astype(float) for frame in (first, second))
    assert ours == pytest.approx(theirs, rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("text", ["a,b\nx,0.2\n", "a,b\nx,0.1000001\n", "a,b\ny,0.1\n", "a,b\nx,0.1\nx,0.1\n", "a,c\nx,0.1\n"])
def test_what_is_no_rounding_is_seen(text):
    same_numbers("a,b\nx,0.10000000000000002\n", "a,b\nx,0.1\n")
    with pytest.raises((AssertionError, ValueError)):
        same_numbers(text, "a,b\nx,0.1\n")


def entries_of(drawing):
    """The entries of the legend, (words, colour) each, without rendering."""
    marks = [mark for panel in drawing.panels for mark in panel.marks]
    legend = Legend(marks, drawing.labels)
    named = [mark for mark in marks if mark.label in mark.legend_labels() and mark.label and getattr(mark, "keyed", True)]
    return {(displayed(mark.label, drawing.labels), legend.color(mark)) for mark in named}


@pytest.mark.parametrize("sidecar", SHIPPED, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_every_page_of_a_shipped_figure_is_as_high_as_a_page_at_most(sidecar):
    for page in (sidecar.with_suffix(".png"), *sidecar.parent.glob(f"{sidecar.stem}.page*.png")):
        width, height = struct.unpack(">II", page.read_bytes()[16:24])
        assert WIDTHS["page"] * height / width <= HIGHEST + 0.01


def test_entries_are_those_that_a_rendered_legend_has():
    data = pd.DataFrame({"x": [0.0, 1.0], "y": [0.0, 1.0]})
    marks = [Line(data, "x", "y", "HYLA"), Points(data, "x", "y", "HYLA"), Line(data, "x", "y", "hidden", keyed=False)]
    drawing = Drawing("c", [Panel("p", "x", "y", [*marks, Rule(0.5, "ceiling"), Points(data, "x", "y")])])
    drawn = {text.get_text() for legend in drawing.matplotlib().legends for text in legend.get_texts()}
    assert {words for words, _ in entries_of(drawing)} == drawn == {"HYLA", "ceiling"}
    assert {trace.name for trace in drawing.plotly().data if trace.showlegend} == {"HYLA"}  # rules are shapes


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
