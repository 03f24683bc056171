"""What stands where on the page. Imports no torch: it is painted before a model is opened."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import Any

from dash import dcc, html

from compolens.explore.explorer import DEPENDS, MODEL
from compolens.explore.frozen import TITLES
from compolens.explore.state import COLOURS, WRITES, State

CONFIG: Any = {"displaylogo": False, "showSendToCloud": False, "showEditInChartStudio": False, "responsive": True}
BLANK: dict[str, Any] = {"data": [], "layout": {"xaxis": {"visible": False}, "yaxis": {"visible": False}, "height": 40}}
"""The figure of a panel that shows none."""
HINTS = {
    "grid": "Click one: its worst episode opens.",
    "worst": "Click one, or drag a box around some: every panel is then about these.",
    "sites": "Click a cell: codes are written there.",
    "code": "Move a part: it is written at the chosen site. Controls are drawn beside every edit.",
    "ladder": "Whose work loses the answer: from left to right, more of it is done right.",
    "heads": "Click a head, or press Shift and an arrow key: up and down for layers, left and right for heads.",
    "attention": "Masked pairs are grey.",
    "parts": "What each carries of the donor's code: alone, it takes its activation from the donor's run.",
    "diff": "The first model minus the second.",
}
DONOR = "Every episode has a donor, whose code or activations are put in place of its own: the one so many further on."
PANELS = {name: (TITLES[name], hint) for name, hint in HINTS.items()}
"""View -> title, and what to do there."""


def others() -> dict[str, list[str]]:
    """Which settings of an address are of no concern to a panel.

    Returns:
        Panel -> names of the settings that it does not depend on.
    """
    depends = {"task": (*MODEL, "split", "chosen"), **{name: DEPENDS[name] for name in PANELS}}
    every = {field.name for field in fields(State)}
    return {name: sorted(every - set(settings)) for name, settings in depends.items()}


def page(names: Sequence[str]) -> html.Div:
    """The whole page for models of these names.

    Args:
        names: what the models are called.

    Returns:
        The page, without what callbacks fill in.
    """
    return html.Div(
        [
            dcc.Location(id="address", refresh=False),
            dcc.Store(id="facts"),
            dcc.Store(id="counted"),
            dcc.Store(id="followed"),
            dcc.Store(id="depends", data=others()),
            html.Header(
                [
                    html.Div([html.H1("compolens explore"), _freeze()], className="title"),
                    _models(names),
                ]
            ),
            html.Div(id="error", role="alert"),
            html.Main(
                [
                    html.Section(
                        [
                            _panel("grid"),
                            _panel("worst"),
                            _panel("sites", _sites()),
                            _panel("ladder", _search()),
                            _panel("diff"),
                        ],
                        className="side",
                    ),
                    html.Section(
                        [
                            _episode(),
                            _panel("code", _code()),
                            _panel("heads", _heads()),
                            _panel("attention"),
                            _panel("parts"),
                        ],
                        className="wide",
                    ),
                ]
            ),
        ],
        id="page",
    )


def _freeze() -> html.Div:
    """What is shown now, kept as one file."""
    title = "save what is shown now as one file that opens without a network"
    return html.Div(
        [
            html.Button("freeze to HTML", id="go-freeze", n_clicks=0, title=title),
            dcc.Loading(dcc.Download(id="frozen"), type="dot", delay_show=300),
        ]
    )


def _models(names: Sequence[str]) -> html.Div:
    return html.Div(
        [
            _named("model", dcc.Dropdown(list(names), names[0], id="model", clearable=False)),
            _named("step", dcc.Dropdown([], id="step", placeholder="final")),
            _named("compare with", dcc.Dropdown(list(names), id="other", placeholder="no other model")),
            _named("its step", dcc.Dropdown([], id="other_step", placeholder="final")),
            _named(
                "compositions",
                dcc.RadioItems(
                    [{"label": "trained on (test)", "value": "test"}, {"label": "held out (ood)", "value": "ood"}],
                    "ood", id="split", inline=True,
                ),
            ),
        ],
        className="controls",
    )  # fmt: skip


def _episode() -> html.Section:
    """Which episodes are looked at, and the first of them as its family shows it."""
    buttons = (
        ("previous", "◂ previous"), ("next", "next ▸"), ("worst-one", "worst of its composition"),
        ("same", "all of its composition"), ("all", "all drawn"),
    )  # fmt: skip
    return html.Section(
        [
            html.H2("Task"),
            html.Div([html.Button(text, id=f"go-{name}", n_clicks=0) for name, text in buttons], className="buttons"),
            html.Div(
                [
                    _named("episodes", dcc.Input(id="chosen", type="text", debounce=True, value="0", spellCheck=False)),
                    _named("donor: episodes further", dcc.Input(id="donor", type="number", debounce=True, value=-1, step=1)),
                ],
                className="controls",
            ),
            html.P(DONOR, className="hint"),
            html.P(id="extent", className="extent"),
            dcc.Loading(html.Div(id="sheets"), type="dot", delay_show=300),
            dcc.Store(id={"asked": "task"}),
        ],
        className="panel",
    )


def _sites() -> html.Div:
    return html.Div(
        [_named("shows", dcc.Dropdown(list(COLOURS), COLOURS[0], id="colour", clearable=False))], className="controls"
    )


def _code() -> html.Div:
    return html.Div(
        [
            html.Div(
                [
                    _named("site", dcc.Dropdown([], id="site", clearable=False)),
                    _named("start from", dcc.Dropdown(list(WRITES), WRITES[1], id="write", clearable=False)),
                    html.Button("undo parts", id="go-undo", n_clicks=0),
                ],
                className="controls",
            ),
            html.Div(id="parts"),
        ]
    )


def _search() -> dcc.Checklist:
    return dcc.Checklist([{"label": "search the best code, which takes seconds", "value": "search"}], [], id="search")


def _heads() -> html.Div:
    return html.Div(
        [
            _named("layer", dcc.Dropdown([], id="layer", clearable=False), _steps("layer", "▴", "▾")),
            _named("head", dcc.Dropdown([], id="head", clearable=False), _steps("head", "◂", "▸")),
        ],
        className="controls",
    )


def _steps(what: str, back: str, on: str) -> list[Any]:
    """Two buttons, to the one before and to the one after."""
    ways = (("previous", back), ("next", on))
    return [
        html.Button(sign, id=f"go-{way}-{what}", n_clicks=0, title=f"{way} {what}", **_said(f"{way} {what}"))
        for way, sign in ways
    ]


def _panel(name: str, controls: Any = None) -> html.Section:
    title, hint = PANELS[name]
    tools = [
        html.Button(
            "PNG", id={"save": name, "as": "png"}, n_clicks=0, title="save the figure as a picture",
            **_said(f"PNG of {title}"),
        ),
        html.Button(
            "CSV", id={"save": name, "as": "csv"}, n_clicks=0, title="save the plotted numbers",
            **_said(f"CSV of {title}"),
        ),
        html.Details(
            [
                html.Summary("as Python"),
                dcc.Clipboard(target_id={"python": name}, title="copy as Python", className="copy"),
                html.Pre(id={"python": name}),
            ]
        ),
        dcc.Download(id={"download": name}),
    ]  # fmt: skip
    return html.Section(
        [
            html.H2(title),
            html.P(hint, className="hint"),
            *([controls] if controls is not None else []),
            dcc.Loading(
                html.Div(
                    dcc.Graph(id={"graph": name}, figure=BLANK, config=CONFIG, className="graph"),
                    role="figure", **_said(f"{title}: figure. Its number follows; CSV holds all values."),
                ), type="dot", delay_show=300, overlay_style={"visibility": "visible", "opacity": 0.6},
            ),
            html.P(id={"number": name}, className="number", **dict[str, Any]({"aria-live": "polite"})),
            html.P(id={"caption": name}, className="caption"),
            html.Div(tools, className="tools"),
            dcc.Store(id={"asked": name}),
        ],
        className="panel", id=f"panel-{name}", **_said(title),
    )  # fmt: skip


def _named(text: str, control: Any, beside: Sequence[Any] = ()) -> html.Div:
    row = [html.Div([control, *beside], className="row")] if beside else [control]
    return html.Div([html.Label(text, htmlFor=control.id), *row], className="named")


def _said(name: str) -> dict[str, Any]:
    """What screen readers call a part of the page."""
    return {"aria-label": name}
