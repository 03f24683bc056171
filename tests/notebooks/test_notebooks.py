"""Notebooks run from top to bottom, are committed with their outputs, and stay small."""

from pathlib import Path

import nbformat
import pytest
from jupyter_client import AsyncKernelManager
from nbclient import NotebookClient
from nbclient.exceptions import CellTimeoutError, DeadKernelError
from nbclient.util import run_sync

NOTEBOOKS = sorted((Path(__file__).parents[2] / "notebooks").glob("*.ipynb"))


def test_there_are_notebooks():
    assert NOTEBOOKS


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_notebook_is_committed_with_outputs_and_small(path):
    assert path.stat().st_size < 1_000_000
    cells = [cell for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code"]
    assert all(cell.execution_count for cell in cells)
    assert any("image/png" in output.get("data", {}) for cell in cells for output in cell.outputs)
    assert not any(output.output_type == "error" for cell in cells for output in cell.outputs)


class Kernel:
    """A process for all notebooks that are executed here, each from an empty namespace: importing takes longer than many."""

    def __init__(self):
        self.manager = AsyncKernelManager(kernel_name="python3")

    def executed(self, path):
        """A notebook with the outputs of now. A cell that says nothing for ten minutes is one that hangs."""
        fresh = nbformat.read(path, as_version=4)
        fresh.cells.insert(0, nbformat.v4.new_code_cell("%reset -f"))
        settings = {"timeout": 600, "startup_timeout": 600, "resources": {"metadata": {"path": str(path.parent)}}}
        NotebookClient(fresh, km=self.manager, **settings).execute()
        del fresh.cells[0]
        return fresh

    def restart(self):
        """Take another process for what is executed next."""
        self.end()
        self.manager = AsyncKernelManager(kernel_name="python3")

    def end(self):
        if self.manager.has_kernel:
            run_sync(self.manager.shutdown_kernel)(now=True)


@pytest.fixture(scope="module")
def kernel():
    kernel = Kernel()
    yield kernel
    kernel.end()


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_notebook_runs_and_prints_what_is_committed(path, kernel):
    committed = nbformat.read(path, as_version=4)
    try:
        fresh = kernel.executed(path)
    except (CellTimeoutError, DeadKernelError):  # a message between client and kernel is lost now and then: idle, both wait
        kernel.restart()
        fresh = kernel.executed(path)
    for old, new in zip(committed.cells, fresh.cells, strict=True):
        assert _words(old) == _words(new)


def _words(cell):
    """The words of a cell's text outputs; numbers may move in their last digit between machines."""
    texts = [o.get("text", "") or o.get("data", {}).get("text/plain", "") for o in cell.get("outputs", [])]
    return [word for text in texts for word in text.split() if not any(ch.isdigit() for ch in word)]
