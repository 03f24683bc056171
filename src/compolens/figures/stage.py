"""What a mark may ask of the panel that it is drawn in, and of the drawing's legend; `scenes` has them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import pandas as pd

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from compolens.figures.plain import PlainFigure


class Entries(Protocol):
    """The legend that all panels of a drawing share."""

    @property
    def colors(self) -> dict[str, str]:
        """Label -> colour."""

    def color(self, mark: Any) -> str:
        """The colour of `mark`."""

    def dash(self, rule: Any) -> tuple[float, ...]:
        """The dashes of `rule`: on, off, … in line widths."""

    def enter(self, label: str, color: str, handle: Any) -> None:
        """Add a matplotlib artist.

        Args:
            label: its entry.
            color: hex colour.
            handle: the artist.
        """

    def entry(self, label: str, color: str) -> dict[str, Any]:
        """plotly attributes of a trace.

        Args:
            label: its entry.
            color: hex colour.

        Returns:
            Keyword arguments of the trace.
        """


class Stage(Protocol):
    """One panel, with what its drawing decides."""

    @property
    def panel(self) -> Any:
        """The panel itself, with its labels."""

    @property
    def legend(self) -> Entries:
        """The drawing's legend."""

    @property
    def scale(self) -> Any:
        """The colour scale of the panel; None without one."""

    @property
    def categories(self) -> list[Any] | None:
        """The names on a categorical x axis, in order; None where it is numeric."""

    @property
    def cell(self) -> dict[str, int]:
        """Row and column of the panel, from 1."""

    def shown(self, name: object) -> str:
        """`name` as the drawing shows it."""

    def positions(self, x: pd.Series) -> np.ndarray:
        """Positions (n,) of `x` on the x axis."""

    def seats(self, mark: Any) -> tuple[np.ndarray, float]:
        """Positions moved aside so that nothing overlaps.

        Args:
            mark: whose rows are to be seated.

        Returns:
            (n,) positions, and the width of one seat, in units of the x axis.
        """

    def hover(self, rows: pd.DataFrame, extra: str | None = None) -> dict[str, Any]:
        """plotly attributes of what is shown on hover.

        Args:
            rows: of a mark.
            extra: what a further column is called (None: there is none).

        Returns:
            Keyword arguments of the trace.
        """

    def print_scale(self) -> dict[str, Any]:
        """matplotlib attributes of the colour scale."""

    def screen_scale(self, figure: PlainFigure, prefix: str) -> dict[str, Any]:
        """plotly attributes of the colour scale.

        Args:
            figure: in which the panel is.
            prefix: "z" for heat maps, "c" for markers.

        Returns:
            Keyword arguments of the trace.
        """

    def colorbar(self, axes: Axes, shown: Any) -> None:
        """Draw the colour bar, where this panel has it.

        Args:
            axes: of the panel.
            shown: the artist that has the colours.
        """
