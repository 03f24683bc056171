"""Looking at models interactively: views, each a function from (models, state) to a figure, in notebooks and on a local page.

`state`: what the reader has chosen, written to an address and read back. `subjects`: a model with its episodes, answers,
control and codes. `sets`: numbers of one episode, or of a set with an interval. `edits`: codes written beside their controls.
`views`: grid, episodes, attention, sites, code, diff. `show`: the views in notebooks, `compolens.show`. `page`: the views on a
page, `compolens explore FOLDER…`.

Everything is imported on first use: the page paints before torch is there.
"""

from importlib import import_module
from typing import Any

_HOMES = {"State": "state", "Subject": "subjects"}

__all__ = ["State", "Subject", "show"]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(f"compolens.explore.{_HOMES[name]}"), name)
    if name in ("show", "views", "edits"):
        return import_module(f"compolens.explore.{name}")
    raise AttributeError(f"module 'compolens.explore' has no attribute {name!r}")
