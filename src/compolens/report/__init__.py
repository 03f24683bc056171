"""One self-contained HTML page about a set of model folders: diagnosis cards first, evidence folded beneath.

Opens from disk without a network: plotly.js is inlined once, figures are rendered from the same `Drawing` as the printed ones.
"""

from compolens.report.pages import Page, page, plain, write

__all__ = ["Page", "page", "plain", "write"]
