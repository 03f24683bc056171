"""One `Drawing`, three renderings: matplotlib for print, plotly for the screen, a table of what was plotted.

An analysis describes its figure with marks (`Line`, `Points`, `Bars`, ...) over tidy DataFrames, puts them in `Panel`s
and the panels in a `Drawing`. Each mark first reduces its data to canonical columns (`Mark.rows`); both renderers and
`Drawing.frame` start from those rows, so the three show the same numbers. NaN is a gap everywhere, never a zero.

Neither renderer prints the claim or the caption: the paper or report around the figure does, and `save` writes both
next to it. matplotlib and plotly are imported only when a rendering needs them.
"""

from compolens.figures.colors import ARCHITECTURE_COLORS, CONTROL_COLORS, SERIES_COLORS, color_of
from compolens.figures.drawings import Drawing, save
from compolens.figures.looks import Look
from compolens.figures.maps import HeatMap, Map
from compolens.figures.marks import Band, Bars, Line, Mark, Points, Rule
from compolens.figures.network import Edges, Nodes
from compolens.figures.panels import Panel
from compolens.figures.phase import Contour, PhaseMap, Route
from compolens.figures.screen import WIDE
from compolens.figures.widths import WIDTHS, inches

__all__ = [
    "ARCHITECTURE_COLORS", "CONTROL_COLORS", "SERIES_COLORS", "WIDE", "WIDTHS", "Band", "Bars", "Contour", "Drawing", "Edges",
    "HeatMap", "Line", "Look", "Map", "Mark", "Nodes", "Panel", "PhaseMap", "Points", "Route", "Rule", "color_of",
    "inches", "save",
]  # fmt: skip
