"""What views ask of heat maps and drawings: hatched cells, chosen ticks, a figure that a notebook can touch."""

import numpy as np
import pandas as pd
import pytest

from compolens.figures import Drawing, HeatMap, Panel

CELLS = pd.DataFrame(
    [(x, y, i, x == "b", f"cell {x}{y}") for i, (y, x) in enumerate((y, x) for y in "pq" for x in "abc")],
    columns=["x", "y", "value", "out", "told"],
)


@pytest.fixture(scope="module")
def drawing():
    heat = HeatMap(CELLS, "x", "y", "value", ticks={"a": "first", "q": "last"}, hatched="out", hover="told")
    return Drawing("cells", (Panel("", "x", "y", (heat,)),))


def test_hatched_cells_and_chosen_ticks_are_the_same_on_screen_and_in_print(drawing):
    heat, figure = drawing.panels[0].marks[0], drawing.plotly()
    assert heat.hatches() == [(0, 1), (1, 1)]
    hatch = next(trace for trace in figure.data if trace.type == "bar")
    assert list(hatch.x) == [1, 1] and list(hatch.base) == [-0.5, 0.5] and set(hatch.y) == {1}
    assert list(figure.layout.xaxis.ticktext) == ["first"] and list(figure.layout.yaxis.ticktext) == ["last"]
    axes = drawing.matplotlib().axes[0]
    assert [patch.get_xy() for patch in axes.patches] == [(0.5, -0.5), (0.5, 0.5)]
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ["first"]
    assert [tick.get_text() for tick in axes.get_yticklabels()] == ["last"]


def test_the_pointer_shows_what_a_cell_is(drawing):
    (heat,) = (trace for trace in drawing.plotly().data if trace.type == "heatmap" and trace.hoverinfo != "skip")
    assert np.array(heat.customdata)[1, 2] == "cell cq" and "%{customdata}" in heat.hovertemplate
    assert set(drawing.frame()["hover"]) == set(CELLS["told"])


def test_a_wrong_column_fails_where_the_mark_is_written():
    with pytest.raises(ValueError, match=r"HeatMap\.hatched: 'outt'"):
        HeatMap(CELLS, "x", "y", "value", hatched="outt")


def test_a_notebook_gets_the_interactive_figure_and_the_picture(drawing):
    bundle = drawing._repr_mimebundle_()["application/vnd.plotly.v1+json"]
    assert {trace["type"] for trace in bundle["data"]} == {"heatmap", "bar"}
    assert drawing._repr_png_().startswith(b"\x89PNG")
