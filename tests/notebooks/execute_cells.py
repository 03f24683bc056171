"""Executes notebooks by IPython, without a kernel: for every line of JSON on stdin, one on stdout.

It is asked with {"path": …, "instead": {code: other code}}, where the code stands once in the notebook. The answer is
{"cells": [[text, …], …]}, what each cell of code printed or showed as text, in order; or {"error": traceback}.
Between client and kernel a message is lost now and then, and both wait; here there are no messages. All notebooks are
executed in one process, each from an empty namespace and in its own folder: importing takes longer than many of them.
"""

import json
import os
import sys
import traceback
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

os.environ["MPLBACKEND"] = "module://matplotlib_inline.backend_inline"  # as kernels have it

import ipywidgets
import nbformat
from IPython.core.displayhook import CapturingDisplayHook
from IPython.core.displaypub import CapturingDisplayPublisher
from IPython.core.interactiveshell import InteractiveShell


class LikeZMQInteractiveShell(InteractiveShell):
    """A shell that pandas takes for a notebook's, by this name and that attribute: it prints tables as it does there."""

    kernel = None


class Shown(list):
    """What a cell shows, in order: text of streams and plain text of displays."""

    def write(self, text):
        super().append(text)

    def flush(self):
        """Nothing is held back."""

    def append(self, shown):
        """A display, as IPython describes it: the hook of results gives (data, metadata), the publisher {"data": …}."""
        if isinstance(shown, dict) and "data" in shown:
            super().append(shown["data"].get("text/plain", ""))


class Nothing(CapturingDisplayPublisher):
    """For what is shown in a widget: that is no output of the cell."""

    def publish(self, *_, **__):
        """Shows nothing."""


def executed(shell, path, instead):
    """What each cell of code of a notebook shows as text, some code put in the place of other code.

    Raises:
        ValueError: code to be replaced does not stand in the notebook once.
        Whatever a cell raises.
    """
    cells = [cell.source for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code"]
    for old, new in instead.items():
        if sum(cell.count(old) for cell in cells) != 1:
            raise ValueError(f"{path.name}: {old!r} does not stand in it once")
        cells = [cell.replace(old, new) for cell in cells]
    os.chdir(path.parent)
    shell.reset()
    texts = []
    for cell in cells:
        shown = Shown()
        shell.display_pub = CapturingDisplayPublisher(shell=shell, outputs=shown)
        shell.display_trap.hook = CapturingDisplayHook(shell=shell, outputs=shown)
        with redirect_stdout(shown), redirect_stderr(shown):
            result = shell.run_cell(cell, silent=False, store_history=False)
        result.raise_error()
        texts.append(list(shown))
    return texts


def inside_a_widget(widget):
    """What an output widget does with what is shown in it: keeps it from the cell."""
    shell = LikeZMQInteractiveShell.instance()
    widget._outside = (shell.display_pub, sys.stdout)
    shell.display_pub, sys.stdout = Nothing(shell=shell, outputs=[]), Shown()


def outside_again(widget, *_):
    LikeZMQInteractiveShell.instance().display_pub, sys.stdout = widget._outside


if __name__ == "__main__":
    ipywidgets.Output.__enter__, ipywidgets.Output.__exit__ = inside_a_widget, outside_again
    shell, answers = LikeZMQInteractiveShell.instance(), os.fdopen(os.dup(1), "w")
    shell.history_manager.enabled = False
    os.dup2(2, 1)  # whatever else is printed
    for line in sys.stdin:
        try:
            asked = json.loads(line)
            answer = {"cells": executed(shell, Path(asked["path"]), asked["instead"])}
        except BaseException:
            answer = {"error": traceback.format_exc()}
        print(json.dumps(answer), file=answers, flush=True)
