"""Marks on common axes: one panel of a drawing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from compolens.figures.maps import HeatMap
from compolens.figures.marks import Mark


@dataclass(frozen=True, eq=False)
class Panel:
    """Marks on common axes.

    The x axis is categorical if any mark's x column holds strings or the panel has Bars; categories keep the order of
    first appearance. A HeatMap has its panel to itself, and a panel has at most one colour bar.

    Args:
        title: over the panel.
        x: label of the x axis, unit included.
        y: label of the y axis, unit included.
        marks: at least one.
        y_range: fixes the y axis (None: as the marks need it).
    """

    title: str
    x: str
    y: str
    marks: Sequence[Mark]
    y_range: tuple[float, float] | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "marks", tuple(self.marks))
        if not self.marks:
            raise ValueError(f"Panel {self.title!r} has no marks; it needs at least one")
        scales = sum(mark.scaled() is not None for mark in self.marks)
        if scales > 1 or (len(self.marks) > 1 and any(isinstance(mark, HeatMap) for mark in self.marks)):
            got = ", ".join(type(mark).__name__ for mark in self.marks)
            raise ValueError(f"Panel {self.title!r} has {got}; allowed: one colour bar, and a HeatMap only by itself")
