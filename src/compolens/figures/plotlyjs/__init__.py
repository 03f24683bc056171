"""What pages that open without a network draw figures with: plotly.js' cartesian bundle, with its licence."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

BUNDLE = Path(__file__).with_name("plotly-cartesian.min.js")
"""plotly.js-cartesian-dist-min 4.1.1 as npm has it; LICENSE lies beside it."""


def script() -> str:
    """The bundle's JavaScript, to be put into a page."""
    return BUNDLE.read_text(encoding="utf-8")


@cache
def shared_template() -> dict[str, Any]:
    """The template that all figures share: plotly's "simple_white". Not to be changed in place."""
    import plotly.io

    kept: dict[str, Any] = plotly.io.templates["simple_white"].to_plotly_json()
    return kept


def template() -> str:
    """The same as JSON."""
    return json.dumps(shared_template(), separators=(",", ":"))


def inline(figure: Mapping[str, Any]) -> str:
    """A figure as JSON that can stand in a page's script element.

    Args:
        figure: as `Drawing.json` returns it, without a template: a page holds that once.

    Returns:
        JSON without a closing tag.
    """
    return json.dumps(figure, separators=(",", ":"), allow_nan=False).replace("</", "<\\/")
