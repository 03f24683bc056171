"""What a page shows now, as one HTML file that opens without a network: figures stay interactive, controls do not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import compolens
from compolens.explore.explorer import DEPENDS, Explorer
from compolens.explore.state import State
from compolens.foundation.configs import ConfigError

PAGE = Path(__file__).with_name("frozen.html")
TITLES = {
    "grid": "Compositions", "worst": "Episodes", "sites": "Layers by token roles", "code": "The code, written",
    "ladder": "Ladder", "heads": "Attention", "attention": "One head",
    "parts": "Heads and MLPs", "diff": "Compared",
}  # fmt: skip
"""View -> what its panel is called."""


def frozen(explorer: Explorer, state: State) -> str:
    """The page of a state.

    Args:
        explorer: the models.
        state: what the reader has chosen.

    Returns:
        HTML that asks nothing of any host. It holds the state as an address, every view that there is with its number and the
        program that prints it, and why others are missing.

    Raises:
        ConfigError: no folder has the state's name, or fewer episodes are drawn.
    """
    from jinja2 import Environment

    from compolens.figures import plotlyjs

    told, sheets = explorer.sheets(state)
    names = [name for name in DEPENDS if name != "diff" or explorer.other(state) is not None]
    folders = [str(folder) for name, folder in explorer.folders.items() if name in (explorer.chosen(state), state.other)]
    page = Environment(autoescape=True).from_string(PAGE.read_text(encoding="utf-8"))
    return page.render(
        title=explorer.subject(state).title, version=compolens.__version__, extent=explorer.extent(state), told=told,
        sheets=sheets, panels=[_panel(explorer, name, state) for name in names], plotly=plotlyjs.script(),
        template=plotlyjs.template(), command=f"compolens explore {' '.join(folders)}", query=state.to_query(),
    )  # fmt: skip


def _panel(explorer: Explorer, name: str, state: State) -> dict[str, Any]:
    from compolens.figures import plotlyjs

    panel: dict[str, Any] = {"id": name, "title": TITLES[name]}
    try:
        view = explorer.view(name, state)
    except ConfigError as error:
        return panel | {"missing": str(error)}
    drawing = replace(view.drawing, columns=4 if name == "heads" else 2)
    figure = drawing.json()
    return panel | {
        "json": plotlyjs.inline(figure), "height": int(figure["layout"]["height"]), "number": f"{view.what}: {view.number}",
        "caption": drawing.caption, "python": view.python, "claim": drawing.claim,
    }  # fmt: skip
