"""How soon `compolens explore` answers: `python tests/benchmarks/exploring.py`. In CPU time, so that busy machines agree.

An edit: one part of a code is moved, written at a site of F-softmax-0, with eight random subspaces and the untrained control,
and drawn as the JSON that the browser gets. The page: a fresh process, from its start until the layout is answered.
"""

from __future__ import annotations

import itertools
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import torch
from timing import medians, show

from compolens.explore import State
from compolens.explore.explorer import Explorer

REPOSITORY = Path(__file__).resolve().parents[2]
MODEL = REPOSITORY / "trained_models" / "F-softmax-0"
EDIT_BAR, PAGE_BAR = 0.150, 2.0
"""Seconds."""
PAGE = """
import sys, time
from pathlib import Path
from compolens.explore.explorer import Explorer
from compolens.explore.page import serve
client = serve.application(Explorer([Path(sys.argv[1])])).server.test_client()
assert client.get("/").status_code == client.get("/_dash-layout").status_code == 200
print(time.process_time())
"""


def main() -> None:
    torch.set_num_threads(1)
    explorer, values = Explorer([MODEL]), itertools.count()

    def edit() -> None:
        value = 0.2 + 0.01 * next(values)  # another one each time: nothing is taken from memory
        explorer.view("code", replace(State(), parts=((3, value),))).drawing.plotly().to_json()

    (seconds,) = medians(50, edit)
    show(
        "a part of a code moved, with controls, drawn (median of 50)",
        f"{1000 * seconds:.0f} ms",
        "<= 150 ms",
        seconds <= EDIT_BAR,
    )
    done = subprocess.run([sys.executable, "-c", PAGE, str(MODEL)], capture_output=True, text=True, check=True)
    paint = float(done.stdout)
    show("the page, from the start of the process to its layout", f"{paint:.2f} s", "<= 2 s", paint <= PAGE_BAR)


if __name__ == "__main__":
    main()
