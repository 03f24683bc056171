"""A drawing on paper: laid out by matplotlib, as high as its content needs."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from compolens.figures.colors import SERIES_COLORS
from compolens.figures.marks import size_of
from compolens.figures.panels import Panel
from compolens.figures.scenes import Scene, scenes_of
from compolens.figures.words import cell_texts, width_of, wrap

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_STYLE: dict[Any, Any] = {
    "font.size": 8, "axes.titlesize": 8, "axes.labelsize": 8, "legend.fontsize": 7,
    "xtick.labelsize": 6, "ytick.labelsize": 6, "axes.titlepad": 4, "axes.labelpad": 2,
    "axes.linewidth": 0.6, "xtick.major.width": 0.6, "ytick.major.width": 0.6,
    "xtick.major.size": 2.5, "ytick.major.size": 2.5, "xtick.major.pad": 2, "ytick.major.pad": 2,
    "axes.spines.top": False, "axes.spines.right": False, "legend.frameon": False,
    "text.hinting": "no_hinting",  # text is as wide at every resolution as where it was laid out
    "pdf.fonttype": 42, "ps.fonttype": 42,  # TrueType: venues reject Type 3, and editors can change the text
}  # fmt: skip


class Page:
    """Lays a drawing out for print. Lengths are in points, 1/72 inch, unless they say otherwise.

    Args:
        panels: in reading order.
        columns: panels per row (None: as many as have room, up to 3).
        width_in: width of the figure in inches.
        labels: name -> what is shown for it.
        among: all panels of the drawing, where these are some of them (None: these are all).
    """

    def __init__(
        self,
        panels: Sequence[Panel],
        columns: int | None,
        width_in: float,
        labels: Mapping[str, str],
        among: Sequence[Panel] | None = None,
    ) -> None:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
        from matplotlib.layout_engine import ConstrainedLayoutEngine

        # Narrower panels would have no room for their labels or colour bars.
        marks = [mark for panel in panels for mark in panel.marks]
        narrowest_in = max(2.2 if mark.scaled() is not None else mark.narrowest_in for mark in marks)
        columns = min(columns or max(1, min(3, int(width_in / narrowest_in))), len(panels))
        self.columns, self.sizes = columns, Sizes.in_use()
        self.scenes = scenes_of(panels, columns, labels, _series(), among)
        rows = self.scenes[-1].row
        layout = ConstrainedLayoutEngine(w_pad=0.03, h_pad=0.03, wspace=0.02, hspace=0.03)
        self.figure = Figure(figsize=(width_in, 2 * rows), layout=layout)
        FigureCanvasAgg(self.figure)
        grid = self.figure.add_gridspec(rows, columns)
        self.axes = [self.figure.add_subplot(grid[scene.row - 1, scene.column - 1]) for scene in self.scenes]
        for axes, scene in zip(self.axes, self.scenes, strict=True):
            self._draw(axes, scene)
        layout.execute(self.figure)
        # Now that widths are known, text can be wrapped; after that, the figure's height follows from the axes'.
        height = max(self._height(axes, scene) for axes, scene in zip(self.axes, self.scenes, strict=True))
        for axes, scene in zip(self.axes, self.scenes, strict=True):
            self._fit(axes, scene, height)
        self.figure.set_figheight((rows * (height + 120) + self._legend()) / 72)  # enough to measure what else it takes
        layout.execute(self.figure)
        titles = [(axes.get_title(), axes.title.get_fontsize()) for axes in self.axes]
        for axes, scene in zip(self.axes, self.scenes, strict=True):
            self._entitle(axes, scene)  # once more: what stands beside the axes may have taken of their width
        if titles != [(axes.get_title(), axes.title.get_fontsize()) for axes in self.axes]:
            layout.execute(self.figure)
        surplus = min(size_of(axes)[1] for axes in self.axes) - height
        self.figure.set_figheight(self.figure.get_figheight() - rows * surplus / 72)
        layout.execute(self.figure)
        for axes, scene in zip(self.axes, self.scenes, strict=True):
            self._annotate(axes, scene)

    def _draw(self, axes: Axes, scene: Scene) -> None:
        from matplotlib.ticker import MaxNLocator

        for mark in scene.panel.marks:
            mark.draw(axes, scene)
        left = [other for other in self.scenes if (other.row, other.column + 1) == (scene.row, scene.column)]
        if not left or left[0].panel.y != scene.panel.y:  # else it would repeat its neighbour's
            axes.set_ylabel(scene.panel.y)
        if scene.panel.y_range is not None:
            axes.set_ylim(*scene.panel.y_range)
        if scene.categories is not None:
            axes.set(xlim=(-0.5, len(scene.categories) - 0.5), xticks=[])
        elif scene.whole:
            axes.xaxis.set_major_locator(MaxNLocator("auto", integer=True, steps=[1, 2, 4, 5, 10]))

    def _height(self, axes: Axes, scene: Scene) -> float:
        """The height that suits these axes: a little less than their width, with space for the rows of a heat map."""
        rows = len(scene.heat.grid()[2]) if scene.heat else 0
        return min(max(0.75 * size_of(axes)[0], (self.sizes.tick + 2) * rows, 80), 150)

    def _fit(self, axes: Axes, scene: Scene, height: float) -> None:
        """Wrap, turn or thin out text so that it fits axes of this height."""
        width, size = size_of(axes)[0], self.sizes
        self._entitle(axes, scene)
        axes.set_xlabel(wrap(scene.panel.x, size.label, width))
        axes.set_ylabel(wrap(axes.get_ylabel(), size.label, height))
        if scene.heat and scene.heat.ticks is not None:
            axes.set_xticks(*scene.heat.ticked(scene.categories or [], scene.shown))
            return
        if scene.heat:
            names = list(map(scene.shown, scene.heat.grid()[2]))
            step = math.ceil((size.tick + 1) * len(names) / height)
            axes.set_yticks(range(0, len(names), step), names[::step])
        if not scene.categories:
            return
        texts, slot = list(map(scene.shown, scene.categories)), width / len(scene.categories)
        folded = [wrap(text, size.tick, slot - 6) for text in texts]
        widest = max(width_of(text, size.tick) for text in folded) + 6
        step, style = 1, dict[str, Any]()
        if widest <= slot and max(text.count("\n") for text in folded) < 3:
            texts = folded
        elif max(map(len, texts)) <= 3:  # short ones, such as layers, can be left out
            step = math.ceil(widest / slot)
        else:
            step, style = math.ceil((size.tick + 1) / slot), {"rotation": 90}
            if slot >= size.tick + 5:  # points between the lines of text, with room for their slant
                style = {"rotation": 40, "ha": "right", "rotation_mode": "anchor"}
        axes.set_xticks(range(0, len(texts), step), texts[::step], **style)

    def _entitle(self, axes: Axes, scene: Scene) -> None:
        """The title, wrapped to the axes' width; smaller for words wider than this."""
        width, size = size_of(axes)[0], self.sizes.title
        title = wrap(scene.shown(scene.panel.title), size, width)
        axes.set_title(title, size=min(size, max(5, size * width / max(width_of(title, size), 1))))

    def _legend(self) -> float:
        """Add one legend below all panels, in as few rows as fit the width; return its height."""
        entries = [(label, tuple(kinds)) for (label, _), kinds in self.scenes[0].legend.entries.items() if label]
        handles: list[Any] = [kinds for _, kinds in entries]  # the kinds of one entry are drawn on top of each other
        available, height = 72 * self.figure.get_figwidth(), 0.0
        labels = [wrap(label, self.sizes.legend, available - 40) for label, _ in entries]
        for columns in dict.fromkeys(math.ceil(len(entries) / rows) for rows in range(1, len(entries) + 1)):
            style: dict[str, Any] = {"loc": "outside lower center", "columnspacing": 1.2, "handletextpad": 0.5}
            legend = self.figure.legend(handles, labels, ncols=columns, **style)
            box = legend.get_window_extent()
            height = box.height * 72 / self.figure.dpi
            if box.width * 72 / self.figure.dpi <= available or columns == 1:
                break
            legend.remove()
        return height

    def _annotate(self, axes: Axes, scene: Scene) -> None:
        """Write numbers into the cells of a small heat map, unless they would be too small to read."""
        if not scene.heat or not scene.scale or max((values := scene.heat.grid()[0]).shape) > 12:
            return
        texts, (width, height) = cell_texts(values), size_of(axes)
        widest = max(width_of(text, 1) for line in texts for text in [*line, "0"])
        across, down = width / values.shape[1] / widest, 0.8 * height / values.shape[0]
        size = min(self.sizes.tick, down, max(0.8 * across, min(0.9 * across, 4)))  # closer only where they would be gone
        for (i, j), value in np.ndenumerate(values) if size >= 4 else ():
            axes.text(j, i, texts[i][j], size=size, color=scene.scale.ink(value), ha="center", va="center")


class Sizes(NamedTuple):
    """Font sizes in points, as the style in use has them.

    Args:
        title: of a panel's title.
        label: of the axes' labels.
        tick: of the axes' ticks.
        legend: of the legend.
    """

    title: float
    label: float
    tick: float
    legend: float

    @classmethod
    def in_use(cls) -> Sizes:
        import matplotlib
        from matplotlib.font_manager import FontProperties

        names = ("axes.titlesize", "axes.labelsize", "xtick.labelsize", "legend.fontsize")
        style: Any = matplotlib.rcParams
        return cls(*(float(FontProperties(size=style[name]).get_size_in_points()) for name in names))


_CALLERS = ("axes.", "font.", "grid.", "hatch.", "legend.", "mathtext.", "text.", "xtick.", "ytick.")
"""What a caller's style decides. Sizes, resolutions and file formats of figures are ours: notebooks set these on their own."""
_PAPER = ("figure.facecolor", "figure.edgecolor", "savefig.facecolor", "savefig.edgecolor")
"""What a named style decides besides: text that is light needs a dark page. Notebooks set these on their own, too."""


_SET: ContextVar[frozenset[str]] = ContextVar("set", default=frozenset())
"""Names of rcParams that a style sets, even to matplotlib's own defaults."""


@contextmanager
def setting(names: Iterable[str]) -> Iterator[None]:
    """Say which rcParams a style sets, so that they count even where they are matplotlib's own defaults.

    Args:
        names: of rcParams.

    Returns:
        The context.
    """
    token = _SET.set(frozenset(names))
    try:
        yield
    finally:
        _SET.reset(token)


@contextmanager
def print_style() -> Iterator[None]:
    """matplotlib's defaults, then ours, then what the caller has set otherwise; the caller's style comes back afterwards.

    What a caller sets counts where it differs from matplotlib's own defaults, by rcParams or by a style file; what the style
    of `setting` sets counts in any case.
    """
    import matplotlib

    theirs = {
        name: value
        for name, value in matplotlib.rcParams.items()
        if (name.startswith(_CALLERS) and (name in _SET.get() or value != matplotlib.rcParamsDefault[name]))
        or (name in _PAPER and name in _SET.get())
    }
    if "font.size" in theirs:  # sizes that are ours keep their proportion to the text
        scale = theirs["font.size"] / _STYLE["font.size"]
        sizes = {name: scale * value for name, value in _STYLE.items() if name.endswith("size") and "major" not in name}
        theirs = sizes | theirs
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(_STYLE | theirs)
        yield


def _series() -> Sequence[str]:
    """Colours of series: the caller's cycle where one is set, else ours."""
    import matplotlib
    from matplotlib.colors import to_hex

    cycle = matplotlib.rcParams["axes.prop_cycle"]
    if cycle == matplotlib.rcParamsDefault["axes.prop_cycle"] or "color" not in cycle.keys:
        return SERIES_COLORS
    return [to_hex(color) for color in cycle.by_key()["color"]]
