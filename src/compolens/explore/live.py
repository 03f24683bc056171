"""A picture with controls: ipywidgets in a notebook that has them, else the picture alone, and what is missing is said."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any

import numpy as np

from compolens.figures import Drawing
from compolens.foundation.configs import ConfigError, nearest, require, shown

if TYPE_CHECKING:
    import plotly.graph_objects as go

NEEDED = ("ipywidgets", "anywidget")
WIDGET = "application/vnd.jupyter.widget-view+json"


@dataclass(frozen=True)
class Picture:
    """A drawing with its caption.

    Args:
        drawing: the figure.
        caption: what stands below it.
        view: what it was made from: a `View`, with a number and a program; None for none.
    """

    drawing: Drawing
    caption: str
    view: Any = None


@dataclass(frozen=True)
class Control:
    """Something to choose.

    Args:
        name: what it is called.
        choices: a range of whole numbers, a tuple of words, or the two ends of a slider as floats.
        value: what is chosen first.
    """

    name: str
    choices: range | tuple
    value: Any

    @property
    def continuous(self) -> bool:
        """Whether it is a slider between two ends."""
        return isinstance(self.choices, tuple) and isinstance(self.choices[0], float)

    def check(self, value: Any) -> None:
        """Check that a value may be chosen.

        Args:
            value: what is to be chosen.

        Raises:
            ConfigError: the control does not allow it.
        """
        ends = f"allowed: {self.choices[0]} to {self.choices[-1]}"
        if self.continuous:
            fits, allowed = isinstance(value, Real) and self.choices[0] <= float(value) <= self.choices[1], ends
        elif isinstance(self.choices, range):
            fits, allowed = isinstance(value, Integral) and value in self.choices, ends
        else:
            fits, allowed = value in self.choices, nearest(str(value), map(str, self.choices))
        require(fits, f"{self.name} cannot be {shown(value)}; {allowed}")


class Live:
    """What `compolens.show` returns. A notebook shows it as soon as it is a cell's last value.

    Args:
        draw: name -> value of all controls -> the picture.
        controls: what can be chosen, with what is chosen first.
        hint: a line below the controls.
    """

    def __init__(self, draw: Callable[[Mapping[str, Any]], Picture], controls: Sequence[Control], hint: str = "") -> None:
        self._draw, self.controls, self.hint = draw, {c.name: c for c in controls}, hint
        self.chosen: dict[str, Any] = {c.name: c.value for c in controls}
        self.picture = draw(self.chosen)
        self._box: Any = None
        self._figure: Any = None
        self._caption: Any = None

    def set(self, **chosen: Any) -> Live:
        """Choose by program what the controls choose by hand.

        Args:
            chosen: values by the controls' names; a name with spaces goes in as ``**{"module 3": 0.5}``.

        Returns:
            Itself, with the new picture.

        Raises:
            ConfigError: there is no such control, or it does not allow the value.
        """
        for name, value in chosen.items():
            if name not in self.controls:
                raise ConfigError(f"no control {name!r}; {nearest(name, self.controls)}")
            self.controls[name].check(value)
        self.chosen |= chosen
        self.picture = self._draw(self.chosen)
        if self._figure is not None:
            self._redraw()
        return self

    @property
    def drawing(self) -> Drawing:
        """What is shown now: `compolens.figures.save` writes it."""
        return self.picture.drawing

    @property
    def python(self) -> str:
        """A program that prints the number shown; "" where there is none."""
        return self.picture.view.python if self.picture.view is not None else ""

    @property
    def missing(self) -> list[str]:
        """The packages that being live needs and that are not installed."""
        return [name for name in NEEDED if find_spec(name) is None]

    # ---- in a notebook -----------------------------------------------------------------------------------------------
    def _repr_png_(self) -> bytes:
        return self.drawing._repr_png_()

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        """The widgets, where they are installed, beside the picture's caption; the picture itself comes from `_repr_png_`."""
        if self.missing:
            return {"text/plain": repr(self)}
        return {"text/plain": repr(self), WIDGET: {"version_major": 2, "version_minor": 0, "model_id": self.widget.model_id}}

    def __repr__(self) -> str:
        told = self.picture.caption
        if self.missing:
            told += f"\nA picture, not live: {' and '.join(self.missing)} not installed; pip install 'compolens[notebooks]'."
        return told

    @property
    def widget(self) -> Any:
        """The controls above the figure, as one widget."""
        if self._box is None:
            import ipywidgets

            rows = [self._made(control) for control in self.controls.values()]
            self._figure = self._figure_widget()
            self._caption = ipywidgets.HTML(self._told())
            grid = ipywidgets.Layout(display="flex", flex_flow="row wrap")
            self._box = ipywidgets.VBox([ipywidgets.Box(rows, layout=grid), self._figure, self._caption])
        return self._box

    def _plotly(self) -> go.Figure:
        return self.drawing.plotly()

    def _figure_widget(self) -> go.FigureWidget:
        """The figure for a cell, which it reaches as JSON: that has no NaN, so where a map has no value stands null."""
        import plotly.graph_objects as go

        figure = self._plotly()
        for trace in figure.select_traces(selector={"type": "heatmap"}):
            values = np.asarray(trace.z)
            if values.dtype.kind == "f" and np.isnan(values).any():
                trace.z = np.where(np.isnan(values), None, values)  # type: ignore[call-overload]
        return go.FigureWidget(figure)

    def _told(self) -> str:
        import html

        return html.escape(self.picture.caption) + (f"<br><i>{html.escape(self.hint)}</i>" if self.hint else "")

    def _made(self, control: Control) -> Any:
        import ipywidgets

        style = {"description": control.name, "value": self.chosen[control.name], "style": {"description_width": "initial"}}
        if control.continuous:
            lo, hi = control.choices
            made = ipywidgets.FloatSlider(min=lo, max=hi, step=(hi - lo) / 100, **style)
        else:
            made = ipywidgets.Dropdown(options=list(control.choices), **style)
        made.observe(lambda change: self.set(**{control.name: change["new"]}), names="value")
        return made

    def _redraw(self) -> None:
        """Traces, axes and all: the new figure takes the old one's place."""
        box = self._box
        self._figure = self._figure_widget()
        self._caption.value = self._told()
        box.children = (box.children[0], self._figure, self._caption)
