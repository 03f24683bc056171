"""How soon `compolens explore` answers: `python tests/benchmarks/exploring.py`.

First in CPU time, so that busy machines agree. An edit: one part of a code is moved, written at a site of F-softmax-0, with
eight random subspaces and the untrained control, and drawn as the JSON that the browser gets. The page: a fresh process,
from its start until the layout is answered.

Then in a real, headless Chromium, by the clock, where there is one: from the command's start to the first paint, and from a
key pressed on a slider to the figure of the edit with its controls. The server has one core. Beside the time by the clock
stands the server's CPU time.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

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
        json.dumps(explorer.view("code", replace(State(), parts=((3, value),))).drawing.json())

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
    if browser := shutil.which("chromium") or shutil.which("chromium-browser"):
        in_browser(browser)
    else:
        print("no Chromium on PATH, so nothing was measured in a browser; make browser installs Debian's")


TIMED = """() => {
    window.pressed = null;
    window.took = [];
    const panel = document.querySelector("#panel-code"), graph = panel.querySelector(".js-plotly-plot");
    document.addEventListener("keydown", () => {
        window.pressed = performance.now();
        window.before = graph.data;
    }, true);
    graph.on("plotly_afterplot", () => {
        const at = performance.now();
        requestAnimationFrame(() => {
            if (window.pressed === null || graph.data === window.before) return;
            window.took.push(at - window.pressed);
            window.pressed = null;
        });
    });
}"""
"""Milliseconds from a key pressed to the figure drawn, one by one."""


def in_browser(browser: str) -> None:
    """Measure in a Chromium that playwright drives.

    Args:
        browser: its path.
    """
    from playwright.sync_api import sync_playwright

    command = [sys.executable, "-m", "compolens.cli", "explore", str(MODEL), "--no-browser"]
    with sync_playwright() as driver:
        chromium = driver.chromium.launch(executable_path=browser, args=["--no-sandbox", "--disable-gpu"])
        page = chromium.new_page(viewport={"width": 1280, "height": 900})
        page.set_default_timeout(120_000)
        started = time.time()
        server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"})
        try:
            if server.stdout is None:
                raise RuntimeError("the server says nothing")
            os.sched_setaffinity(server.pid, {min(os.sched_getaffinity(0))})
            found = re.search(r"http://\S+", server.stdout.readline())
            page.goto(found.group() if found else "")
            page.wait_for_function("performance.getEntriesByName('first-contentful-paint').length > 0")
            painted = "performance.timeOrigin + performance.getEntriesByName('first-contentful-paint')[0].startTime"
            paint = page.evaluate(painted) / 1000 - started
            spent = _cpu(server.pid)
            page.wait_for_selector("#panel-code h2")
            there = time.time() - started
            told = f"{paint:.2f} s, its controls {there:.2f} s; until the paint the server's CPU {spent:.2f} s"
            show("first paint in the browser, from the command's start", told, "<= 2 s", paint <= PAGE_BAR)
            seconds, cpu = _edits(page, server.pid)
            told = f"{1000 * seconds:.0f} ms, of which the server's CPU {1000 * cpu:.0f} ms"
            show("a slider moved, to its figure with controls (median of 50)", told, "<= 150 ms", seconds <= EDIT_BAR)
        finally:
            server.terminate()
            server.wait()
            chromium.close()


def _edits(page: Any, pid: int) -> tuple[float, float]:
    """(median by the clock, the server's CPU time per edit) in seconds."""
    page.wait_for_function("(document.querySelector('#panel-diff .missing')?.innerText || '') != ''")
    page.wait_for_function("(document.querySelector('#panel-code .number')?.innerText || '') != ''")
    page.wait_for_timeout(3000)
    page.evaluate(TIMED)
    thumb, cpu = page.locator("#parts .part [role=slider]").nth(3), []
    for done in range(51):  # the first one fits the untrained control
        before = _cpu(pid)
        thumb.press("ArrowRight" if done < 40 else "ArrowLeft")
        page.wait_for_function(f"window.took.length > {done}")
        page.wait_for_timeout(200)  # what other panels ask is not the edit's
        cpu.append(_cpu(pid) - before)
    return statistics.median(page.evaluate("window.took")[1:]) / 1000, statistics.median(cpu[1:])


def _cpu(pid: int) -> float:
    """Seconds of CPU that a process has taken."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    main()
