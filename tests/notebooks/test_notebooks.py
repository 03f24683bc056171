"""Notebooks run from top to bottom, are committed with their outputs, and stay small."""

import json
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest

NOTEBOOKS = sorted((Path(__file__).parents[2] / "notebooks").glob("*.ipynb"))
SHORTER = {
    "01_meet_a_model": {"places, n=2048)": "places, n=512)"},
    "02_read_its_code": {'seen = task.sample(512, "train"': 'seen = task.sample(96, "train"'},
    "03_threshold_by_hand": {'held_out = task.sample(512, "ood"': 'held_out = task.sample(128, "ood"'},
    "04_descend_by_hand": {"(16, 64, 256, 1024, 4096), 5": "(16, 64, 256, 1024, 4096), 2"},
    "06_take_it_elsewhere": {"STEPS = 256, 8, 1500": "STEPS = 256, 8, 150", '(("train", 2048), ': '(("train", 512), '},
    "07_find_the_circuit": {"points=5": "points=2"},
}
"""Notebook -> code, and what is executed here instead: searches and trainings are shorter, and show the same words."""


def test_there_are_notebooks():
    assert NOTEBOOKS


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_notebook_is_committed_with_outputs_and_small(path):
    assert path.stat().st_size < 1_000_000
    cells = [cell for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code"]
    assert all(cell.execution_count for cell in cells)
    assert any("image/png" in output.get("data", {}) for cell in cells for output in cell.outputs)
    assert not any(output.output_type == "error" for cell in cells for output in cell.outputs)


class Process:
    """All notebooks that are executed here are, by one process: see execute_cells.py. It begins with the first of them."""

    def __init__(self):
        self.running = None

    def texts(self, path, instead=None):
        """What each cell of code of a notebook shows as text, now, with some code instead of other code."""
        if self.running is None:
            command = [sys.executable, str(Path(__file__).with_name("execute_cells.py"))]
            self.running = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.running.stdin.write(json.dumps({"path": str(path), "instead": instead or {}}) + "\n")
        self.running.stdin.flush()
        answer = json.loads(self.running.stdout.readline())
        assert "error" not in answer, answer["error"]
        return answer["cells"]

    def end(self):
        if self.running is not None:
            self.running.communicate()


@pytest.fixture(scope="module")
def process():
    process = Process()
    yield process
    process.end()


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_notebook_runs_and_prints_what_is_committed(path, process):
    committed = [cell for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code"]
    for cell, texts in zip(committed, process.texts(path, SHORTER.get(path.stem)), strict=True):
        shown = [output.get("text", "") or output.get("data", {}).get("text/plain", "") for output in cell.outputs]
        assert _words(shown) == _words(texts)


def test_what_a_cell_shows_is_told_in_order_and_a_cell_that_fails_is_an_error(process, tmp_path):
    def notebook(name, *cells):
        file = tmp_path / f"{name}.ipynb"
        nbformat.write(nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells]), file)
        return file

    shown = "a = 'last'\nprint('first')\ndisplay('second')\na"
    hidden = "import ipywidgets\nwith ipywidgets.Output():\n    print('in a widget')\n    display('too')\nprint('beside it')"
    told = process.texts(notebook("right", shown, hidden, "pass"))
    assert [_words(texts) for texts in told] == [["first", "'second'", "'last'"], ["beside", "it"], []]
    with pytest.raises(AssertionError, match="NameError: name 'a' is not defined"):  # names end with their notebook
        process.texts(notebook("wrong", "print(a)"))
    with pytest.raises(AssertionError, match="'b = 1' does not stand in it once"):
        process.texts(notebook("replaced", "print(1)"), {"b = 1": "b = 2"})


def _words(texts):
    """The words of outputs; numbers may move in their last digit between machines."""
    return [word for text in texts for word in text.split() if not any(ch.isdigit() for ch in word)]
