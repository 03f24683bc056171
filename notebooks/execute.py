"""Execute notebooks in place: `python notebooks/execute.py notebooks/*.ipynb`.

Pictures and interactive drawings stay in the file; the state of widgets does not, since each holds all of plotly.js.
"""

import sys
from pathlib import Path

import nbformat
from nbclient import NotebookClient


def execute(path: Path) -> None:
    """Run from top to bottom, in the notebook's own folder, and write what came of it."""
    notebook = nbformat.read(path, as_version=4)
    resources = {"metadata": {"path": str(path.parent)}}
    NotebookClient(notebook, kernel_name="python3", resources=resources, coalesce_streams=True).execute()
    notebook.metadata.pop("widgets", None)
    nbformat.write(notebook, path)


if __name__ == "__main__":
    for name in sys.argv[1:]:
        print(name, flush=True)
        execute(Path(name))
