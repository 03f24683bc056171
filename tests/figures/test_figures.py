"""What is plotted equals what was given, in all three renderings; what is saved is complete and fit for print."""

from __future__ import annotations

import base64
import contextlib
import itertools
import json
import os
import re
import subprocess
import sys
import zlib
from pathlib import Path
from typing import Any

import matplotlib
import matplotlib.style
import numpy as np
import pandas as pd
import pytest
from matplotlib.collections import PathCollection, PolyCollection, QuadMesh
from matplotlib.colors import to_hex

from compolens.figures import (
    ARCHITECTURE_COLORS,
    CONTROL_COLORS,
    SERIES_COLORS,
    WIDTHS,
    Band,
    Bars,
    Drawing,
    Edges,
    HeatMap,
    Line,
    Look,
    Map,
    Nodes,
    Panel,
    Points,
    Rule,
    color_of,
    save,
)
from compolens.figures.page import print_style
from compolens.figures.plain import PlainFigure

SOURCE = Path(__file__).parents[2] / "src"
NAN = float("nan")

BY_LAYER = pd.DataFrame(
    {
        "layer": [0, 1, 2, 3, 4],
        "r2": [0.1, 1 / 3, NAN, 0.7, 0.9],
        "lo": [0.0, 0.1, NAN, 0.5, 0.7],
        "hi": [0.3, 0.5, 0.6, 0.8, 1.0],
    }
)
BY_SPLIT = pd.DataFrame(
    {
        "split": ["seen", "held out", "longer"],
        "acc": [0.9, 0.1 + 0.2, NAN],
        "lo": [0.85, 0.1, 0.2],
        "hi": [0.95, NAN, 0.4],
    }
)
SEEDS = pd.DataFrame({"split": ["seen", "seen", "held out"], "acc": [0.8, 0.7, 0.2], "run": ["s0", "s1", "s<2>"]})
GRID = pd.DataFrame({"head": ["b", "a", "b", "a"], "layer": [1, 1, 0, 0], "effect": [0.25, -0.5, 1 / 3, NAN]})
LATENTS = pd.DataFrame(
    {"pc1": [0.0, 1.0, 2.0, 3.0], "pc2": [1.0, NAN, 0.5, 2.0], "task": list("aabb"), "loss": [0.1, 0.2, NAN, 0.4]}
)


def one(*marks, **options) -> Drawing:
    return Drawing("a claim", [Panel("title", "x label", "y label", marks, **options)])


def axes_of(drawing: Drawing, width: str = "page"):
    return drawing.matplotlib(width).axes[0]


def everything() -> Drawing:
    return Drawing(
        "all marks",
        [
            Panel(
                "lines",
                "layer",
                "R²",
                [
                    Line(BY_LAYER, "layer", "r2", "HYLA"),
                    Band(BY_LAYER, "layer", "lo", "hi", "shuffled"),
                    Rule(0.5, "chance", lo=0.4, hi=0.6),
                ],
            ),
            Panel(
                "splits",
                "split",
                "accuracy",
                [
                    Bars(BY_SPLIT, "split", "acc", "HYLA", lo="lo", hi="hi"),
                    Points(SEEDS, "split", "acc", "seeds", hover="run"),
                    Rule(0.5, "chance"),
                ],
            ),
            Panel("heat", "head", "layer", [HeatMap(GRID, "head", "layer", "effect", centre=0, label="Δ")]),
            Panel("map", "PC 1", "PC 2", [Map(LATENTS, "pc1", "pc2", "loss")]),
            Panel("tasks", "PC 1", "PC 2", [Map(LATENTS, "pc1", "pc2", "task")]),
        ],
        caption="A caption with α and −1.",
    )


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    sidecar = {"seed": np.int64(3), "score": np.float32(0.5), "missing": NAN, "by": {"layer": np.array([1.0, np.inf])}}
    folder = tmp_path_factory.mktemp("figures") / "new" / "folder"
    return save(everything(), folder, "fig.1", width="page", sidecar=sidecar | {"shape": (2, 3)})


# --- the table -------------------------------------------------------------------------------------------------------


def test_frame_holds_every_number_of_every_mark() -> None:
    frame = everything().frame()
    assert list(frame) == ["panel", "series", "mark", "label", "x", "y", "lo", "hi", "value", "hover"]
    expected = [
        ("lines", "Line", "HYLA", BY_LAYER, {"x": "layer", "y": "r2"}),
        ("lines", "Band", "shuffled", BY_LAYER, {"x": "layer", "lo": "lo", "hi": "hi"}),
        (
            "lines",
            "Rule",
            "chance",
            pd.DataFrame({"y": [0.5], "lo": [0.4], "hi": [0.6]}),
            {"y": "y", "lo": "lo", "hi": "hi"},
        ),
        ("splits", "Bars", "HYLA", BY_SPLIT, {"x": "split", "y": "acc", "lo": "lo", "hi": "hi"}),
        ("splits", "Points", "seeds", SEEDS, {"x": "split", "y": "acc", "hover": "run"}),
        ("splits", "Rule", "chance", pd.DataFrame({"y": [0.5]}), {"y": "y"}),
        ("heat", "HeatMap", "Δ", GRID, {"x": "head", "y": "layer", "value": "effect"}),
        ("map", "Map", "", LATENTS, {"x": "pc1", "y": "pc2", "value": "loss"}),
        ("tasks", "Map", "", LATENTS, {"x": "pc1", "y": "pc2", "value": "task"}),
    ]
    assert frame["series"].nunique() == len(expected)
    for (series, rows), (panel, mark, label, data, columns) in zip(frame.groupby("series"), expected, strict=True):
        assert (set(rows["panel"]), set(rows["mark"]), set(rows["label"])) == ({panel}, {mark}, {label}), series
        for canonical in ("x", "y", "lo", "hi", "value", "hover"):
            given = data[columns[canonical]].tolist() if canonical in columns else [NAN] * len(data)
            for shown, value in zip(rows[canonical].tolist(), given, strict=True):
                assert shown == value or (pd.isna(shown) and pd.isna(value)), (mark, canonical)


def test_frame_survives_csv_exactly(saved: list[Path]) -> None:
    frame, read = everything().frame(), pd.read_csv(saved[2], dtype=str)
    for column in frame:
        for given, text in zip(frame[column], read[column], strict=True):
            same = float(text) == given if isinstance(given, float) else text == str(given)
            assert same or (pd.isna(text) and (pd.isna(given) or given == "")), (column, given, text)


# --- the same numbers in both renderings -----------------------------------------------------------------------------


def test_line() -> None:
    drawing = one(Line(BY_LAYER, "layer", "r2", "trained", dash=True))
    (line,), trace = axes_of(drawing).lines, drawing.plotly().data[0]
    for x, y in ((line.get_xdata(), line.get_ydata()), (trace.x, trace.y)):
        np.testing.assert_array_equal(x, BY_LAYER["layer"])
        np.testing.assert_array_equal(y, BY_LAYER["r2"])  # the NaN included
    assert trace.connectgaps is None
    assert line.is_dashed() and trace.line.dash != "solid"
    assert to_hex(line.get_color()).upper() == trace.line.color == SERIES_COLORS[0]
    (entry,) = line.figure.legends[0].get_lines()
    assert entry.is_dashed() and entry.get_marker() in ("", "None") and entry.get_color() == line.get_color()


def test_points_on_numbers_stay_where_they_are() -> None:
    drawing = one(Points(BY_LAYER, "layer", "r2", "a"), Points(BY_LAYER, "layer", "hi", "b", open=True))
    lines, traces = axes_of(drawing).lines, drawing.plotly().data
    for line, trace, column in zip(lines, traces, ("r2", "hi"), strict=True):
        for x, y in ((line.get_xdata(), line.get_ydata()), (trace.x, trace.y)):
            np.testing.assert_array_equal(x, BY_LAYER["layer"])
            np.testing.assert_array_equal(y, BY_LAYER[column])
    assert [line.get_markerfacecolor() for line in lines] == [SERIES_COLORS[0], "white"]
    assert [trace.marker.symbol for trace in traces] == ["circle", "circle-open"]


def test_points_in_a_category_stand_apart() -> None:
    marks = [Points(SEEDS, "split", "acc", label, hover="run") for label in "abc"]
    drawing = one(*marks)
    lines, traces = axes_of(drawing).lines, drawing.plotly().data
    places = np.array([line.get_xdata() for line in lines])
    np.testing.assert_array_equal(places, [trace.x for trace in traces])
    assert len(np.unique(places)) == places.size  # nothing on top of anything else
    assert (np.abs(places - [0, 0, 1]) < 0.4).all()  # all within their category
    assert places[0].max() - 1 < places[1].max() - 1 < places[2].max() - 1
    np.testing.assert_array_equal(places, [line.get_xdata() for line in axes_of(drawing).lines])  # deterministic
    for line, trace in zip(lines, traces, strict=True):
        np.testing.assert_array_equal(line.get_ydata(), SEEDS["acc"])
        np.testing.assert_array_equal(trace.y, SEEDS["acc"])
    assert list(traces[0].hovertext) == [
        "x label: seen<br>y label: 0.8<br>run: s0",
        "x label: seen<br>y label: 0.7<br>run: s1",
        "x label: held out<br>y label: 0.2<br>run: s&lt;2&gt;",
    ]


def test_lone_points_are_centred_on_their_category() -> None:
    marks = [Points(pd.DataFrame({"arch": [name], "acc": [0.5]}), "arch", "acc", name) for name in ("HYLA", "SparseCoding")]
    axes = axes_of(one(*marks))
    assert [line.get_xdata().tolist() for line in axes.lines] == [[0.0], [1.0]]
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ["HYLA", "sparse coding"]


def test_band_on_numbers_has_a_gap_at_nan() -> None:
    drawing = one(Band(BY_LAYER, "layer", "lo", "hi", "control"))
    (band,), trace = (
        [c for c in axes_of(drawing).collections if isinstance(c, PolyCollection)],
        drawing.plotly().data[0],
    )
    left, right = (path.vertices[:-1].tolist() for path in band.get_paths())  # the last vertex closes the path
    assert left == [[0, 0.0], [1, 0.1], [1, 0.5], [0, 0.3]]
    assert right == [[3, 0.5], [4, 0.7], [4, 1.0], [3, 0.8]]
    np.testing.assert_array_equal(trace.x, [0, 1, 1, 0, 0, NAN, 3, 4, 4, 3, 3])
    np.testing.assert_array_equal(trace.y, [0.0, 0.1, 0.5, 0.3, 0.0, NAN, 0.5, 0.7, 1.0, 0.8, 0.5])
    assert trace.fill == "toself"


def test_band_on_categories_is_a_box_around_each() -> None:
    drawing = one(Band(BY_SPLIT, "split", "lo", "hi"))
    boxes = [path.vertices for path in axes_of(drawing).collections[0].get_paths()]
    assert [(box[:, 1].min(), box[:, 1].max()) for box in boxes] == [(0.85, 0.95), (0.2, 0.4)]
    assert all(box[:, 0].min() < place < box[:, 0].max() for box, place in zip(boxes, (0, 2), strict=True))
    assert np.nanmax(drawing.plotly().data[0].y) == 0.95


def test_bars_are_grouped_with_exact_error_bars() -> None:
    other = BY_SPLIT.assign(acc=[0.5, 0.6, 0.7])
    drawing = one(Bars(BY_SPLIT, "split", "acc", "a", lo="lo", hi="hi"), Bars(other, "split", "acc", "b"))
    axes, figure = axes_of(drawing), drawing.plotly()
    traces = [trace for trace in figure.data if trace.type == "bar"]
    edges = []
    for bars, trace, data in zip(axes.containers, traces, (BY_SPLIT, other), strict=True):
        np.testing.assert_array_equal([bar.get_height() for bar in bars], data["acc"])
        np.testing.assert_array_equal(trace.y, data["acc"])
        middles = [bar.get_x() + bar.get_width() / 2 for bar in bars]
        np.testing.assert_allclose(middles, trace.x)
        assert bars[0].get_width() == pytest.approx(trace.width)
        edges.append((np.array(middles) - trace.width / 2, np.array(middles) + trace.width / 2))
    assert (edges[0][1] < edges[1][0]).all()  # side by side
    assert (edges[0][0][1:] > edges[1][1][:-1]).all()  # and apart from the next category
    # One error bar each for "seen" and "longer"; none for "held out", where one bound is NaN.
    ends = [0.85, 0.95, NAN, 0.2, 0.4, NAN]
    np.testing.assert_array_equal(axes.lines[0].get_ydata(), ends)
    np.testing.assert_array_equal(figure.data[1].y, ends)
    np.testing.assert_array_equal(figure.data[1].x[[0, 3]], traces[0].x[[0, 2]])
    assert figure.layout.barmode == "overlay"
    assert figure.layout.xaxis.ticktext == ("seen", "held out", "longer")


def test_points_stand_on_the_bar_of_their_label() -> None:
    axes = axes_of(one(*(Bars(BY_SPLIT, "split", "acc", label) for label in "ab"), Points(BY_SPLIT, "split", "acc", "b")))
    middles = [bar.get_x() + bar.get_width() / 2 for bar in axes.containers[1]]
    points = next(line for line in axes.lines if line.get_marker() == "o")
    np.testing.assert_allclose(points.get_xdata(), middles)


def test_heat_map() -> None:
    drawing = one(HeatMap(GRID, "head", "layer", "effect", centre=0, label="Δ"))
    expected = [[0.25, -0.5], [1 / 3, NAN]]  # rows: layers 1, 0; columns: heads b, a; in order of appearance
    figure, plotly = drawing.matplotlib(), drawing.plotly()
    axes, (trace, dark) = figure.axes[0], plotly.data
    (mesh,) = [c for c in axes.collections if isinstance(c, QuadMesh)]
    np.testing.assert_array_equal(np.ma.filled(mesh.get_array(), NAN).reshape(2, 2), expected)
    np.testing.assert_array_equal(trace.z, expected)
    assert mesh.get_clim() == (trace.zmin, trace.zmax) == (-0.5, 0.5)  # symmetric
    assert [tick.get_text() for tick in axes.get_xticklabels()] == list(plotly.layout.xaxis.ticktext) == ["b", "a"]
    assert [tick.get_text() for tick in axes.get_yticklabels()] == list(plotly.layout.yaxis.ticktext) == ["1", "0"]
    assert axes.yaxis_inverted() and plotly.layout.yaxis.range == (1.5, -0.5)  # row 0 on top
    assert [text.get_text() for text in axes.texts] == ["0.25", "−0.50", "0.33", ""]
    assert [list(row) for row in trace.text] == [["0.25", ""], ["0.33", ""]] and trace.textfont.color == "rgb(0,0,0)"
    assert [list(row) for row in dark.text] == [["", "−0.50"], ["", ""]] and dark.textfont.color == "white"
    assert np.isnan(dark.z).sum() == 3 and dark.hoverinfo == "skip" and not dark.showscale
    assert trace.showscale and figure.axes[1].get_ylabel() == trace.colorbar.title.text == "Δ"


def test_heat_map_without_centre_is_sequential_and_missing_cells_are_gaps() -> None:
    drawing = one(HeatMap(GRID[:3], "head", "layer", "effect"))
    mesh, trace = axes_of(drawing).collections[0], drawing.plotly().data[0]
    assert mesh.get_clim() == (trace.zmin, trace.zmax) == (-0.5, 1 / 3)
    assert np.isnan(trace.z[1, 1])
    assert mesh.cmap(np.nan)[3] == 0  # transparent
    ends = [to_hex(mesh.cmap(at)) for at in (0.0, 1.0)]
    assert ends == [trace.colorscale[0][1], trace.colorscale[-1][1]] == ["#440154", "#fde725"]


@pytest.mark.parametrize("negative", [False, True], ids=["all positive", "one negative"])
@pytest.mark.parametrize("cells", [6, 10])
def test_numbers_in_cells_are_at_least_four_points_high_and_touch_no_neighbour(cells, negative) -> None:
    places = itertools.product(range(cells), range(cells))
    rows = [{"x": x, "y": y, "v": -0.03 if negative and not (x or y) else 0.88} for x, y in places]
    heat = HeatMap(pd.DataFrame(rows), "x", "y", "v", centre=0)
    panels = [Panel(title, "x", "y", [heat]) for title in "abc"]
    axes = (figure := Drawing("claim", panels).matplotlib()).axes[0]
    boxes = [text.get_window_extent() for text in axes.texts]
    assert all(text.get_size() >= 4 for text in axes.texts) and not any(one.count_overlaps(boxes) > 1 for one in boxes)
    slots = axes.get_window_extent().width * 72 / figure.dpi / cells
    assert len(boxes) in (0, cells**2) and (boxes or slots < 12)  # points: room for "−0.03" of that height


def test_large_heat_maps_carry_no_numbers() -> None:
    grid = pd.DataFrame([{"x": x, "y": y, "v": x * y} for x in range(13) for y in range(3)])
    drawing = one(HeatMap(grid, "x", "y", "v"))
    assert not axes_of(drawing).texts
    assert drawing.plotly().data[0].text is None


def test_same_quantity_shares_scale_and_colour_bar() -> None:
    double = GRID.assign(effect=2 * GRID["effect"])
    panels = [
        Panel(t, "", "", [HeatMap(d, "head", "layer", "effect", centre=0, label="Δ")]) for t, d in (("a", GRID), ("b", double))
    ]
    drawing = Drawing("claim", panels)
    figure, traces = drawing.matplotlib(), with_scale(drawing.plotly())
    assert len(figure.axes) == 3  # two panels, one colour bar
    assert [axes.collections[0].get_clim() for axes in figure.axes[:2]] == [(-1, 1), (-1, 1)]
    assert [(trace.zmin, trace.zmax, trace.showscale) for trace in traces] == [(-1, 1, False), (-1, 1, True)]
    other = Panel("c", "", "", [HeatMap(double, "head", "layer", "effect", centre=0)])  # another quantity: "effect"
    assert [trace.zmax for trace in with_scale(Drawing("claim", [panels[0], other]).plotly())] == [0.5, 1.0]


def with_scale(figure):
    """Heat maps, without those that hold the numbers of dark cells."""
    return [trace for trace in figure.data if trace.zmax is not None]


def test_plotly_colour_bars_stay_in_their_gap() -> None:
    panels = [Panel(t, "", "", [HeatMap(GRID, "head", "layer", "effect", label=t)]) for t in "abcdef"]
    figure = Drawing("claim", panels).plotly()
    for trace in with_scale(figure):
        axis = figure.layout["xaxis" + trace.xaxis[1:]]
        following = [a.domain[0] for a in figure.select_xaxes() if a.domain[0] > axis.domain[1]]
        assert axis.domain[1] < trace.colorbar.x < min(following, default=1.1) - 0.05
        low, high = figure.layout["yaxis" + trace.yaxis[1:]].domain
        assert trace.colorbar.len == pytest.approx(high - low) and trace.colorbar.y == pytest.approx((low + high) / 2)


@pytest.mark.parametrize(("title", "side"), [("R²", "top"), ("share of the way", "right")])
def test_a_short_title_stands_above_its_colour_bar_and_not_among_its_numbers(title: str, side: str) -> None:
    trace = one(HeatMap(GRID, "head", "layer", "effect", label=title)).plotly().data[0]
    assert (trace.colorbar.title.text, trace.colorbar.title.side) == (title, side)


def test_map_by_category() -> None:
    drawing = one(Map(LATENTS, "pc1", "pc2", "task"))
    axes, traces = axes_of(drawing), drawing.plotly().data
    for line, trace, (name, rows) in zip(axes.lines, traces, LATENTS.groupby("task"), strict=True):
        for x, y in ((line.get_xdata(), line.get_ydata()), (trace.x, trace.y)):
            np.testing.assert_array_equal(x, rows["pc1"])
            np.testing.assert_array_equal(y, rows["pc2"])
        assert trace.name == name and trace.showlegend
        assert to_hex(line.get_color()).upper() == trace.marker.color
    assert [text.get_text() for text in axes.figure.legends[0].get_texts()] == ["a", "b"]


def test_map_by_number() -> None:
    drawing = one(Map(LATENTS, "pc1", "pc2", "loss"))
    figure, trace = drawing.matplotlib(), drawing.plotly().data[0]
    (points,) = [c for c in figure.axes[0].collections if isinstance(c, PathCollection)]
    known = LATENTS.dropna(subset=["loss"])
    np.testing.assert_array_equal(np.ma.getdata(points.get_offsets()), known[["pc1", "pc2"]])
    np.testing.assert_array_equal(points.get_array(), known["loss"])
    np.testing.assert_array_equal((trace.x, trace.y, trace.marker.color), known[["pc1", "pc2", "loss"]].T)
    assert points.get_clim() == (trace.marker.cmin, trace.marker.cmax) == (0.1, 0.4)
    assert figure.axes[1].get_ylabel() == trace.marker.colorbar.title.text == "loss"


def test_rule() -> None:
    drawing = Drawing(
        "claim",
        [Panel(t, "", "", [Line(BY_LAYER, "layer", "r2"), Rule(1 / 3, "chance", lo=0.3, hi=0.4)]) for t in "ab"],
    )
    axes, (line, span, *others) = drawing.matplotlib().axes[1], drawing.plotly().layout.shapes
    assert list(axes.lines[1].get_ydata()) == [1 / 3, 1 / 3] == [line.y0, line.y1]
    assert (axes.patches[0].get_y(), axes.patches[0].get_y() + axes.patches[0].get_height()) == pytest.approx((0.3, 0.4))
    assert (span.y0, span.y1) == (0.3, 0.4)
    assert (line.xref, line.yref, others[0].xref, others[0].yref) == ("x domain", "y", "x2 domain", "y2")
    assert (line.showlegend, others[0].showlegend) == (True, False)


def test_rules_of_a_drawing_have_their_own_dashes_and_are_as_dark_on_a_page_as_in_print() -> None:
    drawing = one(*(Rule(value, label) for value, label in enumerate("abcdefgh")))
    axes = axes_of(drawing)
    assert len({str(line._dash_pattern) for line in axes.lines}) == len(axes.lines) == 8
    assert {shape.opacity for shape in drawing.plotly().layout.shapes} == {1}


def test_what_lies_beyond_the_axis_is_marked_with_the_value_of_bars() -> None:
    data = pd.DataFrame({"split": ["test", "ood"], "acc": [0.5, -2.0]})
    panel = Panel("", "", "", [Bars(data, "split", "acc", "a"), Points(data, "split", "acc", "a")], y_range=(-1, 1))
    axes, figure = axes_of(Drawing("claim", [panel])), Drawing("claim", [panel]).plotly()
    assert [text.get_text() for text in axes.texts] == ["← −2.00"] == [a.text for a in figure.layout.annotations]
    triangles = [line for line in axes.lines if line.get_marker() == "v"]
    assert [list(line.get_ydata()) for line in triangles] == [[-1], [-1]]  # the bar's, and the point's
    points = next(trace for trace in figure.data if trace.type == "scatter")
    assert list(points.y) == [0.5, -1] and list(points.marker.symbol) == ["circle", "triangle-down"]
    assert "-2" in points.hovertext[1]


def test_points_beside_lines_stay_near_their_category() -> None:
    data = pd.DataFrame({"split": ["test", "test", "ood", "ood"], "acc": [0.1, 0.2, 0.3, 0.4]})
    marks = [kind(data, "split", "acc", label) for label in "abcde" for kind in (Line, Points)]
    places = [line.get_xdata() for line in axes_of(one(*marks)).lines if line.get_ls() == "None"]
    assert np.abs(np.array(places) - [0, 0, 1, 1]).max() < 0.15


def test_nan_bar_is_not_a_zero() -> None:
    drawing = one(Bars(BY_SPLIT, "split", "acc"))
    assert np.isnan(axes_of(drawing).containers[0][2].get_height())
    assert np.isnan(drawing.plotly().data[0].y[2])


# --- colours, legends, layout ----------------------------------------------------------------------------------------


def test_colours_are_distinct_and_stable() -> None:
    names = [*ARCHITECTURE_COLORS, *(f"Architecture{i}" for i in range(30))]
    colors = [color_of(name) for name in names]
    assert len(set(colors)) == len(names)
    assert all(re.fullmatch("#[0-9A-F]{6}", color) for color in colors)
    assert color_of("SoftmaxTransformer") == "#0072B2"
    assert color_of("Mamba") == "#773F22"  # a literal, so that a change of the hash would show


def test_default_colours() -> None:
    drawing = one(
        Line(BY_LAYER, "layer", "r2", "HYLA"),
        Line(BY_LAYER, "layer", "lo", "other"),
        Line(BY_LAYER, "layer", "hi", "given", color="#123456"),
        Band(BY_LAYER, "layer", "lo", "hi", "other"),
        Band(BY_LAYER, "layer", "lo", "hi", "control"),
        Rule(0.5, "chance"),
    )
    figure = drawing.plotly()
    by_name = {(trace.name, trace.fill): trace.line.color for trace in figure.data}
    assert by_name == {
        ("HYLA", None): color_of("HYLA"),
        ("other", None): SERIES_COLORS[0],
        ("given", None): "#123456",
        ("other", "toself"): SERIES_COLORS[0],  # the interval of a result has the result's colour
        ("control", "toself"): CONTROL_COLORS[0],
    }
    assert figure.layout.shapes[0].line.color == CONTROL_COLORS[1]


def test_repeated_labels_have_one_legend_entry() -> None:
    marks = [
        Line(BY_LAYER, "layer", "r2", "HYLA"),
        Band(BY_LAYER, "layer", "lo", "hi", "HYLA"),
        Line(BY_LAYER, "layer", "hi", ""),
    ]
    drawing = Drawing("claim", [Panel(title, "", "", [*marks, Rule(0.5, "chance")]) for title in "abcd"])
    figure = drawing.matplotlib()
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["HYLA", "chance"]
    assert not any(axes.get_legend() for axes in figure.axes)
    plotly = drawing.plotly()
    shown = [item.name for item in (*plotly.data, *plotly.layout.shapes) if item.showlegend]
    assert shown == ["HYLA", "chance"]
    assert {trace.legendgroup for trace in plotly.data} == {"HYLA", None}


@pytest.mark.parametrize("width", WIDTHS)
def test_width_and_no_overlap(width: str) -> None:
    labels = [f"condition number {i}" for i in range(9)]
    long = "A long title that says in many words what the panel shows and why that matters"
    panel = Panel(long, "split of the evaluation data", "accuracy", [Points(SEEDS, "split", "acc", label) for label in labels])
    figure = Drawing("claim", [panel] * 2).matplotlib(width)
    figure.canvas.draw()
    assert figure.get_figwidth() == WIDTHS[width]
    page, renderer = figure.bbox, figure.canvas.get_renderer()
    boxes = [axes.get_tightbbox(renderer) for axes in figure.axes] + [figure.legends[0].get_window_extent(renderer)]
    for i, box in enumerate(boxes):
        assert box.x0 >= page.x0 - 1 and box.x1 <= page.x1 + 1 and box.y0 >= page.y0 - 1 and box.y1 <= page.y1 + 1
        assert not any(box.overlaps(other) for other in boxes[:i])
    for axes in figure.axes:
        assert "\n" in axes.get_title()
        ticks = [tick.get_window_extent(renderer) for tick in axes.get_xticklabels()]
        if axes.get_xticklabels()[0].get_rotation() == 0:
            assert not any(a.overlaps(b) for a, b in itertools.pairwise(ticks))
        assert axes.get_position().height * figure.get_figheight() > 1  # inches


def test_many_short_categories_are_thinned_out() -> None:
    layers = pd.DataFrame({"layer": range(40), "effect": np.linspace(0, 1, 40)})
    drawing = Drawing("claim", [Panel("", "layer", "effect", [Bars(layers, "layer", "effect")])] * 3)
    texts = [tick.get_text() for tick in axes_of(drawing).get_xticklabels()]
    assert texts[0] == "0" and 1 < len(texts) < 40
    assert texts == [str(int(texts[1]) * i) for i in range(len(texts))]


@pytest.mark.parametrize(
    ("panels", "columns", "width", "expected"),
    [(4, None, "page", 3), (2, None, "column", 2), (1, 2, "page", 1), (3, 3, "column", 3)],
)
def test_panels_per_row(panels: int, columns: int | None, width: str, expected: int) -> None:
    drawing = Drawing("", [Panel("", "", "", [Rule(1)])] * panels, columns=columns)
    assert drawing.matplotlib(width).axes[0].get_gridspec().ncols == expected


def test_plotly_grows_with_its_rows() -> None:
    panels = [Panel(str(i), "", "", [Rule(i)]) for i in range(4)]
    figure = Drawing("", panels).plotly()
    assert len(list(figure.select_xaxes())) == 4  # no empty axes in the second row
    assert figure.layout.height > Drawing("", panels[:3]).plotly().layout.height + 200
    assert [note.text for note in figure.layout.annotations] == ["0", "1", "2", "3"]


def test_y_range_and_axis_labels() -> None:
    drawing = one(Line(BY_LAYER, "layer", "r2"), y_range=(-1, 2))
    axes, layout = axes_of(drawing), drawing.plotly().layout
    assert axes.get_ylim() == layout.yaxis.range == (-1, 2)
    assert (axes.get_xlabel(), axes.get_ylabel(), axes.get_title()) == ("x label", "y label", "title")
    assert (layout.xaxis.title.text, layout.yaxis.title.text) == ("x label", "y label")
    assert layout.xaxis.dtick == 1  # no half layers


def test_marks_without_values_are_drawn_empty() -> None:
    none = pd.DataFrame({"x": [], "y": []})
    drawing = one(
        Line(none, "x", "y"),
        Points(none, "x", "y"),
        Bars(none, "x", "y"),
        Band(none, "x", "y", "y"),
        Map(none, "x", "y", "y"),
    )
    drawing.matplotlib()
    assert drawing.frame().empty
    assert all(len(trace.x) == 0 or np.isnan(trace.x).all() for trace in drawing.plotly().data)


def test_plotly_serialises() -> None:
    figure = everything().plotly()
    assert set(figure.to_dict()) == {"data", "layout"}
    assert json.loads(figure.to_json())["layout"]["height"] == figure.layout.height


# --- files -----------------------------------------------------------------------------------------------------------


def test_save_writes_four_complete_files(saved: list[Path]) -> None:
    assert [path.name for path in saved] == ["fig.1.pdf", "fig.1.png", "fig.1.csv", "fig.1.json"]
    assert sorted(os.listdir(saved[0].parent)) == sorted(path.name for path in saved)  # no temporary files left
    pdf, png, csv, notes = (path.read_bytes() for path in saved)
    assert pdf.startswith(b"%PDF") and png.startswith(b"\x89PNG")
    assert int.from_bytes(png[16:20], "big") == pytest.approx(WIDTHS["page"] * 300, abs=1)
    assert csv.decode().splitlines()[0].startswith("panel,series,mark,label,x,y")
    assert len(pd.read_csv(saved[2])) == len(everything().frame())
    assert json.loads(notes) == {
        "claim": "all marks",
        "caption": "A caption with α and −1.",
        "seed": 3,
        "score": 0.5,
        "missing": None,
        "shape": [2, 3],
        "by": {"layer": [1.0, None]},
    }


def test_the_same_drawing_gives_the_same_bytes(tmp_path: Path) -> None:
    drawing = one(Points(SEEDS, "split", "acc", "seeds"))
    first = [path.read_bytes() for path in save(drawing, tmp_path, "f")]
    assert [path.read_bytes() for path in save(drawing, tmp_path, "f")] == first


def test_fonts_are_embedded_as_truetype(saved: list[Path]) -> None:
    pdf = saved[0].read_bytes()
    streams = [pdf]
    for match in re.finditer(rb"stream\r?\n(.*?)\r?\nendstream", pdf, re.DOTALL):
        with contextlib.suppress(zlib.error):
            streams.append(zlib.decompress(match[1]))
    content = b"".join(streams)
    assert b"/CIDFontType2" in content or b"/Type42" in content
    assert b"/Type3" not in content


def test_failure_leaves_the_old_files_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = [path.read_bytes() for path in save(one(Rule(1)), tmp_path, "f")]
    with pytest.raises(TypeError):
        save(one(Rule(2)), tmp_path, "f", sidecar={"unserialisable": object()})

    def fail(*_: object) -> None:
        raise OSError("disk")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError, match="disk"):
        save(one(Rule(2)), tmp_path, "f")
    names = ["f.pdf", "f.png", "f.csv", "f.json"]
    assert sorted(os.listdir(tmp_path)) == sorted(names)
    assert [(tmp_path / name).read_bytes() for name in names] == before


def test_what_notebooks_set_changes_nothing_and_nothing_of_theirs_is_changed(tmp_path: Path) -> None:
    plain = save(one(Line(BY_LAYER, "layer", "r2")), tmp_path, "plain")[1].read_bytes()
    with matplotlib.rc_context({"figure.dpi": 72, "figure.facecolor": "red", "savefig.bbox": "tight", "pdf.fonttype": 3}):
        before = dict(matplotlib.rcParams)
        styled = save(one(Line(BY_LAYER, "layer", "r2")), tmp_path, "styled")[1].read_bytes()
        everything().plotly()
        assert dict(matplotlib.rcParams) == before
    assert styled == plain
    assert "matplotlib.pyplot" not in sys.modules or not sys.modules["matplotlib.pyplot"].get_fignums()


def test_the_callers_style_decides_fonts_axes_and_the_colours_of_series(tmp_path: Path) -> None:
    file = tmp_path / "paper.mplstyle"
    file.write_text(
        "font.family: serif\nfont.size: 12\naxes.facecolor: eeeeee\naxes.prop_cycle: cycler('color', ['123456'])\n"
    )
    drawing = one(Line(BY_LAYER, "layer", "r2", "a series"), Line(BY_LAYER, "layer", "lo", "HYLA"))
    with matplotlib.style.context(file):
        axes = axes_of(drawing)
    assert to_hex(axes.get_facecolor()) == "#eeeeee"
    assert [to_hex(line.get_color()) for line in axes.lines] == ["#123456", ARCHITECTURE_COLORS["HYLA"].lower()]
    assert axes.xaxis.label.get_family() == ["serif"]
    sizes = [axes.title.get_size(), axes.xaxis.label.get_size(), axes.get_xticklabels()[0].get_size()]
    assert sizes == [12, 12, 9], "sizes keep their proportions: 8, 8 and 6 points of a text of 8"
    assert to_hex(axes_of(drawing).lines[0].get_color()) == SERIES_COLORS[0].lower(), "and it ends with the context"


def test_a_size_that_a_style_file_sets_counts_where_it_is_matplotlibs_own(tmp_path: Path) -> None:
    file = tmp_path / "paper.mplstyle"
    file.write_text("font.size: 10\n")
    drawing = one(Line(BY_LAYER, "layer", "r2", "a series"))
    with Look(style=str(file)).styled():
        assert axes_of(drawing).title.get_size() == matplotlib.rcParamsDefault["font.size"] == 10
    assert axes_of(drawing).title.get_size() == 8


def test_no_name_beside_a_heat_map_and_no_title_is_cut_off_at_any_resolution() -> None:
    """Text is as wide at every resolution as where it was laid out, and titles are folded to what the axes have in the end."""
    rows = [f"reference {i}, rate 0.03" for i in range(4)]
    cells = pd.DataFrame([(x, y, 0.5) for y in rows for x in rows], columns=["x", "y", "v"])
    long = "softmax, fuzzy logic 32 tokens, 70 % held out: share of the step"
    lines = [Panel(long, "layer", f"share of the output {i}", (Line(BY_LAYER, "layer", "r2"),)) for i in range(3)]
    for drawing in (one(HeatMap(cells, "x", "y", "v")), Drawing("c", lines)):
        figure = drawing.matplotlib()
        figure.set_layout_engine("none")
        with print_style():
            for dpi in (100, 150, 300):
                figure.set_dpi(dpi)
                figure.canvas.draw()
                first = figure.axes[0].get_yticklabels() if len(figure.axes) < 3 else []
                texts = [*first, *(text for axes in figure.axes for text in (axes.title, axes.yaxis.label))]
                boxes = [text.get_window_extent() for text in texts if text.get_text()]
                assert min(box.x0 for box in boxes) >= -0.5 and max(box.x1 for box in boxes) <= figure.bbox.width + 0.5


def test_names_of_classes_are_short_and_labels_replace_them_without_touching_colours_or_numbers() -> None:
    drawing = one(
        Line(BY_LAYER, "layer", "r2", "SoftmaxTransformer (n_layers 5, transfer OutputTransfer)"),
        Line(BY_LAYER, "layer", "lo", "HYLA"),
    )
    texts = [text.get_text() for text in drawing.matplotlib().legends[0].get_texts()]
    assert texts == ["softmax (5 layers, output transfer)", "HYLA"]
    named = drawing.relabelled({texts[0]: "with transfer", "HYLA": "hyper"})
    assert [text.get_text() for text in named.matplotlib().legends[0].get_texts()] == ["with transfer", "hyper"]
    assert [trace.name for trace in named.plotly().data] == ["with transfer", "hyper"]
    pd.testing.assert_frame_equal(named.frame(), drawing.frame())
    assert [line.get_color() for line in axes_of(named).lines] == [line.get_color() for line in axes_of(drawing).lines]


def test_a_label_renames_the_categories_that_begin_with_its_name() -> None:
    labels = ["SoftmaxTransformer", "SoftmaxTransformer (lr 0.01)", "BottleneckMLP (d_hidden 64)"]
    names = ["softmax", "softmax 0.01", "bottleneck 64"]
    marks = [
        Points(
            pd.DataFrame({"who": [f"{name} {split}" for split in ("test", "ood")], "score": [0.9, 0.8]}), "who", "score", label
        )
        for label, name in zip(labels, names, strict=True)
    ]
    named = Drawing("c", [Panel("", "", "", marks)]).relabelled({labels[1]: "given", "bottleneck (d_hidden 64)": "narrow"})
    below = [tick.get_text().replace("\n", " ") for tick in axes_of(named).get_xticklabels()]
    assert below == ["softmax test", "softmax ood", "given test", "given ood", "narrow test", "narrow ood"]
    own = named.relabelled({"softmax 0.01 ood": "held out"})
    assert [t.get_text().replace("\n", " ") for t in axes_of(own).get_xticklabels()][2:4] == ["given test", "held out"]


def test_only_and_ordered_choose_panels_labels_and_categories() -> None:
    def panel(title: str) -> Panel:
        return Panel(title, "", "", [Bars(BY_SPLIT, "split", "acc", "one"), Bars(BY_SPLIT, "split", "lo", "two"), Rule(0.5)])

    drawing = Drawing("c", [panel("left"), panel("right")])
    frame = drawing.only("right", "two").frame()
    assert set(frame["panel"]) == {"right"} and set(frame["label"]) == {"two", ""}
    frame = drawing.only("held out", "seen").frame()
    assert set(frame["panel"]) == {"left", "right"} and set(frame["x"].dropna()) == {"held out", "seen"}
    turned = drawing.ordered("right", "two", "longer")
    assert [p.title for p in turned.panels] == ["right", "left"]
    assert [mark.label for mark in turned.panels[0].marks] == ["two", "one", ""]
    assert turned.panels[0].marks[0].rows()["x"].tolist() == ["longer", "seen", "held out"]
    columns = ["panel", "mark", "label", "x", "y"]
    rows = [sorted(map(tuple, d.frame()[columns].astype(str).to_numpy())) for d in (drawing, turned)]
    assert rows[0] == rows[1], "an order changes no number"
    for choose in (drawing.only, drawing.ordered, lambda name: drawing.relabelled({name: "x"})):
        with pytest.raises(ValueError, match=r"Unknown name in this drawing: 'lft'. Did you mean 'left'"):
            choose("lft")


def test_what_is_higher_than_a_page_becomes_pages_with_the_same_colours(tmp_path: Path) -> None:
    labels = [f"series {i}" for i in range(8)]
    drawing = Drawing("tall", [Panel(label, "", "", [Line(BY_LAYER, "layer", "r2", label)]) for label in labels], columns=1)
    pages, whole = drawing.pages("page"), drawing.matplotlib()
    assert len(pages) > 1 and max(page.get_figheight() for page in pages) <= 9 < whole.get_figheight()
    shown = [axes for page in pages for axes in page.axes]
    assert [axes.get_title() for axes in shown] == labels
    assert [axes.lines[0].get_color() for axes in shown] == [axes.lines[0].get_color() for axes in whole.axes]
    paths = save(drawing, tmp_path, "tall", dpi=60)
    assert [path.name for path in paths[4:]] == [f"tall.page{i}.png" for i in range(2, len(pages) + 1)]
    assert paths[0].read_bytes().count(b"/Type /Page ") == len(pages)
    (tmp_path / "tall.page_of_mine.png").touch()
    save(one(Rule(1)), tmp_path, "tall", dpi=60)
    assert sorted(path.name for path in tmp_path.glob("tall.page*")) == ["tall.page_of_mine.png"]


@pytest.mark.parametrize(("width", "inches"), [("neurips", 5.5), ("iclr", 5.5), ("acl", 6.3), ("5.5in", 5.5), ("12.7cm", 5.0)])
def test_figures_are_as_wide_as_a_venue_asks(width: str, inches: float) -> None:
    assert one(Rule(1)).matplotlib(width).get_figwidth() == pytest.approx(inches)


def test_an_edited_figure_is_saved_as_it_was_edited(tmp_path: Path) -> None:
    drawing = one(Line(BY_LAYER, "layer", "r2"))
    figure = drawing.matplotlib()
    plain = drawing.save(tmp_path, "plain")[1].read_bytes()
    assert drawing.save(tmp_path, "same", figure=figure)[1].read_bytes() == plain
    figure.axes[0].axvline(2)
    edited = drawing.save(tmp_path, "edited", figure=figure)
    assert edited[1].read_bytes() != plain
    assert edited[2].read_bytes() == (tmp_path / "plain.csv").read_bytes()


def test_import_is_light() -> None:
    code = "import sys, compolens.figures; print([m for m in ('torch', 'matplotlib', 'plotly') if m in sys.modules])"
    environment = os.environ | {"PYTHONPATH": str(SOURCE)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


# --- errors ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "parts"),
    [
        (lambda: Line(BY_LAYER, "layr", "r2"), ["Line.x", "'layr'", "Did you mean 'layer'", "'r2', 'lo', 'hi'"]),
        (lambda: Points(SEEDS, "split", "acc", hover="runs"), ["Points.hover", "'runs'", "'run'"]),
        (lambda: Bars(BY_SPLIT, "split", "acc", lo="lo", hi="high"), ["Bars.hi", "'high'", "'hi'"]),
        (lambda: Bars(BY_SPLIT, "split", "acc", lo="lo"), ["Bars", "hi=None", "both or neither"]),
        (lambda: Rule(0.5, hi=1), ["Rule", "lo=None", "both or neither"]),
        (lambda: Line(SEEDS, "acc", "run"), ["Line.y", "numbers", "'run'", "'s0'"]),
        (lambda: Map(LATENTS, "pc1", "pc2", "tsk"), ["Map.by", "'tsk'", "'task'"]),
        (
            lambda: HeatMap(pd.concat([GRID, GRID]), "head", "layer", "effect"),
            ["one row per cell", "head 'b' and layer '1'"],
        ),
        (lambda: HeatMap(GRID.assign(head=None), "head", "layer", "effect"), ["HeatMap", "'head'"]),
        (lambda: one(), ["'title'", "no marks"]),
        (lambda: one(HeatMap(GRID, "head", "layer", "effect"), Rule(1)), ["HeatMap, Rule", "only by itself"]),
        (lambda: one(*[Map(LATENTS, "pc1", "pc2", "loss")] * 2), ["Map, Map", "one colour bar"]),
        (lambda: Drawing("my claim", []), ["'my claim'", "no panels"]),
        (lambda: Drawing("c", [Panel("", "", "", [Rule(1)])], columns=0), ["columns is 0", "1 and more"]),
        (lambda: one(Rule(1)).matplotlib("pgae"), ["width", "'pgae'", "Did you mean 'page'", "'column', 'page'"]),
        (lambda: save(one(Rule(1)), "unused", "f", width="slide"), ["'slide'", "'column', 'page'"]),
        (lambda: one(Rule(1)).matplotlib("90in"), ["90in", "2 to 20 in"]),
        (lambda: save(one(Rule(1)), "unused", "f", dpi=5), ["5 dpi", "50 to 1200"]),
        (lambda: one(Line(BY_LAYER, "layer", "r2", "a")).only("a", "b"), ["'b'", "'a'"]),
        (lambda: save(one(Rule(1)), "unused", "f", sidecar={"claim": "other"}), ["sidecar", "claim"]),
    ],
)
def test_errors_say_what_was_got_and_what_is_allowed(make, parts: list[str]) -> None:
    with pytest.raises(ValueError) as error:
        make()
    assert all(part in str(error.value) for part in parts), str(error.value)
    assert not Path("unused").exists()


@pytest.mark.parametrize(("data", "x"), [(BY_LAYER, "layer"), (BY_SPLIT, "split")])
def test_a_line_has_a_band_of_its_colour_where_both_ends_are_known(data, x):
    y = next(c for c in ("r2", "acc") if c in data)
    drawing = one(Line(data, x, y, "HYLA", lo="lo", hi="hi"))
    rows = drawing.frame()
    pd.testing.assert_frame_equal(rows[["lo", "hi"]], data[["lo", "hi"]])
    known = data[["lo", "hi"]].notna().all(axis=1)
    at = np.arange(len(data))
    runs = [run for run in np.split(at, np.flatnonzero(np.diff(known)) + 1) if known[run].all()]
    expected = [{(float(i), end) for i in run for end in data.loc[i, ["lo", "hi"]].astype(float)} for run in runs]
    (axes,) = drawing.matplotlib().axes
    (band,) = [shown for shown in axes.collections if isinstance(shown, PolyCollection)]
    assert to_hex(band.get_facecolor()[0]).upper() == color_of("HYLA")
    assert [set(map(tuple, path.vertices.tolist())) for path in band.get_paths()] == expected
    band, line = drawing.plotly().data
    assert (band.fillcolor, line.line.color, band.showlegend) == (color_of("HYLA"), color_of("HYLA"), False)
    assert {(x, y) for x, y in zip(band.x, band.y, strict=True) if x == x} == set().union(*expected)


def test_a_line_whose_ends_are_all_missing_has_no_band_and_one_end_is_no_band():
    data = BY_LAYER.assign(lo=NAN, hi=NAN)
    drawing = one(Line(data, "layer", "r2", lo="lo", hi="hi"))
    (axes,) = drawing.matplotlib().axes
    assert not axes.collections and len(drawing.plotly().data) == 1
    with pytest.raises(ValueError, match="both or neither"):
        Line(data, "layer", "r2", lo="lo")


# ---- networks --------------------------------------------------------------------------------------------------------
def test_edges_join_their_places_vertically_and_are_as_wide_as_their_values():
    rows = pd.DataFrame({"x0": [0.0, 1.0], "y0": [0.0, 0.0], "x": [2.0, 1.0], "y": [3.0, 3.0], "score": [-0.5, 1.0]})
    edges = Edges(rows, "x0", "y0", "x", "y", "score", widest=1.0, label="edges")
    boxes = pd.DataFrame({"x": [0.0, 2.0], "y": [0.0, 3.0], "node": ["a", "b"], "grey": [False, True]})
    drawing = one(edges, Nodes(boxes, "x", "y", "node", "grey", label="parts"))
    for curve, (_, row) in zip(edges.curves(), rows.iterrows(), strict=True):
        assert curve[0].tolist() == [row.x0, row.y0] and curve[-1].tolist() == [row.x, row.y]
        steps = np.diff(curve, axis=0)
        assert abs(steps[0, 0] / steps[0, 1]) < 0.15 and abs(steps[-1, 0] / steps[-1, 1]) < 0.15
    figure = drawing.matplotlib()
    widths = [line.get_linewidth() for line in figure.axes[0].lines]
    assert widths == pytest.approx([0.4 + 2.6 * 0.5, 3.0])
    traces = drawing.plotly().data
    assert [trace.line.width for trace in traces] == pytest.approx([0.8 + 6.2 * 0.5, 7.0])
    assert [trace.showlegend for trace in traces].count(False) == 1  # one entry for all curves of a mark
    assert {text.get_text() for text in figure.axes[0].texts} == {"a", "b"}
    assert drawing.frame()["value"].dropna().tolist() == [-0.5, 1.0]


# ---- the figure as plotly.js takes it --------------------------------------------------------------------------------
@pytest.mark.parametrize(("count", "columns"), [(1, 1), (2, 3), (5, 3), (7, 2)])
def test_axes_stand_where_plotly_puts_them(count: int, columns: int) -> None:
    from plotly.subplots import make_subplots

    across, down, titles = 0.09, 0.2, [f"panel {i}" for i in range(count)]
    rows = -(-count // columns)
    specs = [[{} if i * columns + j < count else None for j in range(columns)] for i in range(rows)]
    wanted = make_subplots(
        rows, columns, specs=specs, subplot_titles=titles, horizontal_spacing=across, vertical_spacing=down
    ).update_annotations(font_size=14)
    figure = PlainFigure(titles, columns, (across, down))
    for i in range(count):
        cell = {"row": i // columns + 1, "col": i % columns + 1}
        shape = {"type": "rect", "x0": 0, "x1": 1, "y0": 0, "y1": 1, "xref": "x domain"}
        figure.add_trace({"type": "scatter", "y": [i]}, **cell)
        figure.add_shape(shape, **cell)
        wanted.add_trace({"type": "scatter", "y": [i]}, **cell)
        wanted.add_shape(**shape, **cell)
    made, wanted = (one.to_plotly_json() for one in (figure.plotly(), wanted))
    assert made["data"] == wanted["data"]
    for part in ("shapes", "annotations"):
        for one, other in zip(made["layout"].get(part, []), wanted["layout"].get(part, []), strict=True):
            assert {k: v for k, v in one.items() if k not in "xy"} == {k: v for k, v in other.items() if k not in "xy"}
            assert [one.get(k) for k in "xy"] == pytest.approx([other.get(k) for k in "xy"])
    for name, axis in wanted["layout"].items():
        if name.startswith(("xaxis", "yaxis")):
            assert made["layout"][name]["anchor"] == axis["anchor"]
            assert made["layout"][name]["domain"] == pytest.approx(axis["domain"])


def test_the_plain_figure_is_the_validated_one() -> None:
    """plotly leaves out what is None, and may write -0 or a tuple otherwise; else both say the same."""

    def decoded(value: Any) -> Any:
        if isinstance(value, dict) and "bdata" in value:
            flat = np.frombuffer(base64.b64decode(value["bdata"]), dtype=value["dtype"])
            return decoded(flat.reshape([int(n) for n in value.get("shape", str(len(flat))).split(",")]).tolist())
        if isinstance(value, dict):
            return {key: decoded(item) for key, item in value.items()}
        if isinstance(value, list):
            return [decoded(item) for item in value]
        return None if isinstance(value, float) and np.isnan(value) else value

    drawing = everything()
    plain = json.loads(json.dumps(drawing.json(), allow_nan=False))
    checked = json.loads(drawing.plotly().to_json())
    checked["layout"].pop("template")
    assert decoded(plain) == decoded(checked)


def test_names_that_do_not_fit_below_a_panel_are_broken_or_turned_and_have_room() -> None:
    names = ["own answer", "own code written", "true code written"]
    drawing = one(Bars(pd.DataFrame({"x": names, "y": [1.0, 2.0, 3.0]}), "x", "y"))
    wide, narrow, least = (drawing.json(width)["layout"] for width in (1000, 330, 120))
    assert wide["xaxis"]["ticktext"] == names and "tickangle" not in wide["xaxis"]
    assert narrow["xaxis"]["ticktext"] == ["own answer", "own code<br>written", "true code<br>written"]
    assert narrow["xaxis"]["tickangle"] == 0 and least["xaxis"]["tickangle"] == -90
    assert least["xaxis"]["ticktext"] == names
    assert wide["margin"]["b"] < narrow["margin"]["b"] < least["margin"]["b"]


def test_panels_close_together_say_their_rows_once() -> None:
    panels = [Panel(str(i), "head", "layer", [HeatMap(GRID, "head", "layer", "effect", label="Δ")]) for i in range(4)]
    for width, said in ((2000, ["layer"] * 4), (500, ["layer", "", "layer", ""])):
        layout = Drawing("", panels, columns=2).json(width)["layout"]
        axes = [layout[name] for name in ("yaxis", "yaxis2", "yaxis3", "yaxis4")]
        assert [axis["title"]["text"] for axis in axes] == said
        assert [axis.get("showticklabels", True) for axis in axes] == [bool(text) for text in said]
