"""What pages that open without a network draw figures with: plotly.js' cartesian bundle, with its licence."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import plotly.graph_objects as go

BUNDLE = Path(__file__).with_name("plotly-cartesian.min.js")
"""plotly.js-cartesian-dist-min 4.1.1 as npm has it; LICENSE lies beside it."""


def script() -> str:
    """The bundle's JavaScript, to be put into a page."""
    return BUNDLE.read_text(encoding="utf-8")


def template() -> str:
    """The template that all figures share, as JSON."""
    import plotly.io

    kept: str = json.dumps(plotly.io.templates["simple_white"].to_plotly_json(), separators=(",", ":"))
    return kept


def inline(figure: go.Figure) -> str:
    """A figure as JSON that can stand in a page's script element.

    Args:
        figure: loses its template, which a page holds once.

    Returns:
        JSON without a closing tag.
    """
    figure.layout.template = None
    return json.dumps(json.loads(figure.to_json()), separators=(",", ":")).replace("</", "<\\/")
