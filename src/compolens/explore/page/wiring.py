"""What happens on the page: controls write the address, the address decides everything that is shown.

A control's callback changes one setting of the state in the address; one callback brings the controls in line with the
address; one per view draws it, unless what it depends on is what it shows already.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import dash
from dash import ALL, ClientsideFunction, Dash, Input, Output, State, ctx, dcc, html, no_update, set_props
from flask import Response, request
from plotly.io.json import to_json_plotly

from compolens.explore.explorer import Explorer, Facts
from compolens.explore.frozen import frozen
from compolens.explore.page.layout import BLANK, PANELS, others
from compolens.explore.state import State as Chosen
from compolens.explore.state import from_ranges, to_ranges
from compolens.foundation.configs import ConfigError, require

if TYPE_CHECKING:
    from compolens.explore.views.base import View
    from compolens.figures import Drawing

WIDTHS = {"code": 780, "heads": 780, "attention": 780}
SIDE_WIDTH, NARROW_WIDTH = 350, 330
"""Pixels that figures have: those of the wide column, all others, and where panels stand below one another."""
CONTROLS = (
    "model", "step", "other", "other_step", "split", "chosen", "donor", "colour", "write", "layer", "head", "site", "search",
)  # fmt: skip
"""The controls that show a setting each."""


def wire(app: Dash, explorer: Explorer) -> None:
    """Connect the page with the models.

    Args:
        app: the application with the page's layout.
        explorer: the models.
    """
    _follow(app)
    _controls(app, explorer)
    _buttons(app, explorer)
    _clicks(app, explorer)
    _parts(app, explorer)
    _in_line(app, explorer)
    _task(app, explorer)
    _freezing(app, explorer)
    for name in PANELS:
        _panel(app, explorer, name)
        _saving(app, explorer, name)


def read(search: str | None) -> Chosen:
    """The state of an address.

    Args:
        search: the part of an address from its question mark on; None or "": the defaults.

    Returns:
        The state.

    Raises:
        ConfigError: it describes no state.
    """
    return Chosen.from_query(search or "")


def go(state: Chosen, search: str | None) -> None:
    """Make a state the address, unless it is.

    By `set_props`, since controls follow the address and the address follows them: Dash allows no such circle of outputs.

    Args:
        state: the state to go to.
        search: that part of the address now.
    """
    query = state.to_query()
    new = f"?{query}" if query else ""
    if new != (search or ""):
        set_props("address", {"search": new})


# ---- from controls to the address ------------------------------------------------------------------------------------
def _controls(app: Dash, explorer: Explorer) -> None:
    names = CONTROLS

    @app.callback(
        [Input(name, "value") for name in names], State("address", "search"), prevent_initial_call=True,
    )  # fmt: skip
    def choose(*values: Any) -> None:
        search, given = values[-1], dict(zip(names, values[:-1], strict=True))
        try:
            state = read(search)
            for name in {str(key).rpartition(".")[0] for key in ctx.triggered_prop_ids}:
                state = _set(explorer, state, name, given[name])
            set_props("error", {"children": ""})
            go(state, search)
        except ConfigError as error:
            set_props("error", {"children": str(error)})


def _set(explorer: Explorer, state: Chosen, name: str, value: Any) -> Chosen:
    """The state with one control's value."""
    if name == "site":
        if not value:
            return state
        layer, _, role = str(value).partition(": ")
        site = (int(layer), role)
        return state if site == explorer.facts(state).site else replace(state, at=site[0], role=site[1])
    if name == "chosen":
        chosen = from_ranges(str(value or ""))
        return state if chosen == state.chosen else replace(state, chosen=chosen, parts=())
    if name in ("model", "other"):
        first = next(iter(explorer.folders)) if name == "model" else ""
        value = "" if value in (None, first) else value
        if value == getattr(state, name):
            return state
        fresh = {"step": None, "at": None, "role": "", "parts": ()} if name == "model" else {"other_step": None}
        return replace(state, **{name: value}, **fresh)
    if name == "search":
        value = bool(value)
    if name == "donor":  # None: the field is empty, or holds no whole number
        whole = isinstance(value, int | float) and float(value).is_integer()
        require(whole, f"a donor is a whole number of episodes further, such as -1 or 3; it stays at {state.donor}")
        value = int(value)
    if name in ("layer", "head"):
        value = getattr(Chosen(), name) if value is None else int(value)
    if name in ("split", "donor", "write") and value != getattr(state, name):
        return replace(state, **{name: value}, parts=())
    return replace(state, **{name: value})


def _buttons(app: Dash, explorer: Explorer) -> None:
    moves = {
        "go-previous": lambda state: explorer.step_by(state, -1), "go-next": lambda state: explorer.step_by(state, 1),
        "go-worst-one": explorer.worst, "go-same": explorer.of_composition, "go-all": explorer.all_drawn,
        "go-undo": lambda state: replace(state, parts=()),
        "go-previous-layer": lambda state: explorer.layer_by(state, -1),
        "go-next-layer": lambda state: explorer.layer_by(state, 1),
        "go-previous-head": lambda state: explorer.head_by(state, -1),
        "go-next-head": lambda state: explorer.head_by(state, 1),
    }  # fmt: skip

    @app.callback(
        [Input(name, "n_clicks") for name in moves], State("counted", "data"), State("address", "search"),
        prevent_initial_call=True,
    )  # fmt: skip
    def move(*values: Any) -> None:
        clicks, counted, search = dict(zip(moves, values, strict=False)), values[-2] or {}, values[-1]
        state = read(search)
        for name, press in moves.items():  # those as well that came before the address had followed the last
            for _ in range((clicks[name] or 0) - counted.get(name, 0)):
                state = press(state)
        go(state, search)
        set_props("counted", {"data": {name: clicks[name] or 0 for name in moves}})


def _clicks(app: Dash, explorer: Explorer) -> None:
    for name in ("grid", "worst", "sites", "heads"):

        @app.callback(
            Input({"graph": name}, "clickData"), State("address", "search"), prevent_initial_call=True,
        )  # fmt: skip
        def click(data: Any, search: str, name: str = name) -> None:
            if not data:
                return
            point, state = data["points"][0], read(search)
            if name == "heads":
                column, row = int(point["curveNumber"]), 0
            else:
                column = round(float(point["x"]))
                row = round(float(point["y"])) if "z" in point else 0
            go(explorer.clicked(name, state, column, row), search)
            set_props({"graph": name}, {"clickData": None})  # so that the same cell can be clicked again

    @app.callback(
        Input({"graph": "worst"}, "selectedData"), State("address", "search"), prevent_initial_call=True,
    )  # fmt: skip
    def brush(data: Any, search: str) -> None:
        if not data or not data.get("points"):
            return
        state = read(search)
        cells = explorer.view("worst", state).cells
        found = {cells[round(float(point["x"])), 0][0] for point in data["points"] if (round(float(point["x"])), 0) in cells}
        if found:
            go(replace(state, chosen=tuple(sorted(found)), parts=()), search)


def _parts(app: Dash, explorer: Explorer) -> None:
    """A part that is moved is drawn by the browser before the address follows; see `assets/address.js`."""
    app.clientside_callback(
        ClientsideFunction("compolens", "move"), Input({"part": ALL}, "value"), State("facts", "data"),
        State("depends", "data"), prevent_initial_call=True,
    )  # fmt: skip

    @app.server.post("/edit")
    def edit() -> Any:
        asked = request.get_json(silent=True) or {}
        try:
            view = explorer.view("code", read(asked.get("search")))
        except ConfigError as error:
            return {"error": str(error)}, 400
        figure = _figure("code", view.drawing, bool(asked.get("narrow")))
        del figure["layout"]["template"]  # the page has it
        answer = {"figure": figure, "number": _number(view), "caption": view.drawing.caption, "python": view.python}
        return Response(to_json_plotly(answer), mimetype="application/json")


# ---- from the address to the controls --------------------------------------------------------------------------------
def _in_line(app: Dash, explorer: Explorer) -> None:
    values = CONTROLS
    options = ("step", "other_step", "layer", "head", "site")

    @app.callback(
        [Output(name, "value") for name in values], [Output(name, "options") for name in options],
        Output("parts", "children"), Output("facts", "data"), Output("error", "children"),
        Input("followed", "data"), State("facts", "data"),
    )  # fmt: skip
    def in_line(followed: dict[str, Any] | None, shown: list[float] | None) -> tuple:
        if followed is None:  # the browser has not said yet
            return (no_update,) * (len(values) + len(options) + 3)
        try:
            state = read(followed["search"])
            facts = explorer.facts(state)
            other = explorer.other(state)
        except ConfigError as error:
            return (*[no_update] * (len(values) + len(options) + 2), str(error))
        own = [value for _, value, _, _ in facts.parts]
        other_steps = explorer.facts(replace(state, model=state.other, step=state.other_step)).steps if other else facts.steps
        choices = [
            facts.steps,
            other_steps,
            list(range(facts.layers)),
            list(range(facts.heads)),
            list(map(_site, facts.sites)),
        ]
        first = next(iter(explorer.folders))
        current = {name: getattr(state, name, None) for name in values} | {
            "model": state.model or first, "other": state.other or None, "chosen": to_ranges(state.chosen),
            "site": _site(facts.site) if facts.site else None, "search": ["search"] if state.search else [],
        }  # fmt: skip
        same = shown is not None and len(shown) == len(own) and dash.ctx.triggered_id is not None and _moved(state, shown, own)
        parts = no_update if same else _sliders(facts)
        return (*[current[name] for name in values], *choices, parts, own, "")


def _moved(state: Chosen, shown: list[float], own: list[float]) -> bool:
    """Whether only parts that were moved by hand differ from what the sliders show, so that these stay as they are."""
    moved = dict(state.parts)
    return bool(moved) and all(i in moved or abs(a - b) < 1e-9 for i, (a, b) in enumerate(zip(shown, own, strict=True)))


def _site(site: tuple[int, str]) -> str:
    return f"{site[0]}: {site[1]}"


def _sliders(facts: Facts) -> list[Any]:
    if facts.missing:
        return [html.P(f"No code to write: {facts.missing}.", className="missing")]
    return [
        html.Div(
            [
                html.Span(name),
                dcc.Slider(
                    round(least, 3),
                    round(most, 3),
                    value=round(value, 3),
                    id={"part": i},
                    marks=None,
                    updatemode="mouseup",
                    step=0.01,
                ),
            ],
            className="part",
        )
        for i, (name, value, least, most) in enumerate(facts.parts)
    ]


# ---- from the address to what is shown -------------------------------------------------------------------------------
def _task(app: Dash, explorer: Explorer) -> None:
    @app.callback(Output("sheets", "children"), Output("extent", "children"), Input({"asked": "task"}, "data"))
    def show(asked: dict[str, Any] | None) -> tuple[Any, Any]:
        if asked is None:  # the browser has not said yet
            return no_update, no_update
        try:
            state = read(asked["search"])
            told, sheets = explorer.sheets(state)
        except ConfigError as error:
            return html.P(str(error), className="missing"), ""
        return [html.P(told, className="number"), *map(_table, sheets)], explorer.extent(state)


def _table(sheet: Any) -> html.Figure:
    head = [html.Thead(html.Tr([html.Th(text) for text in sheet.columns]))] if sheet.columns else []
    body = html.Tbody([html.Tr([html.Td(text) for text in row]) for row in sheet.rows])
    return html.Figure([html.Figcaption(sheet.title), html.Div(html.Table([*head, body]), className="scroll")])


def _follow(app: Dash) -> None:
    """Panels ask the server only when a setting changes that they depend on; one call for the whole page."""
    outputs = [Output({"asked": name}, "data") for name in others()]
    app.clientside_callback(
        ClientsideFunction("compolens", "follow"), Output("followed", "data"), *outputs,
        Input("address", "search"), State("depends", "data"),
    )  # fmt: skip


def _panel(app: Dash, explorer: Explorer, name: str) -> None:
    @app.callback(
        Output({"graph": name}, "figure"), Output({"number": name}, "children"), Output({"caption": name}, "children"),
        Output({"python": name}, "children"), Input({"asked": name}, "data"),
    )  # fmt: skip
    def draw(asked: dict[str, Any] | None) -> tuple:
        if asked is None:  # the browser has not said yet
            return (no_update,) * 4
        try:
            view = explorer.view(name, read(asked["search"]))
        except ConfigError as error:
            return BLANK, "", html.Span(f"Not shown: {error}", className="missing"), ""
        figure = _figure(name, view.drawing, asked["narrow"])
        return figure, _number(view), view.drawing.caption, view.python


def _number(view: View) -> str:
    return f"{view.what}: {view.number}"


def _figure(name: str, drawing: Drawing, narrow: bool) -> dict[str, Any]:
    """A view's figure as its panel shows it.

    Args:
        name: the view's.
        drawing: what is shown.
        narrow: whether panels of a figure stand below one another.

    Returns:
        What plotly.js takes.
    """
    from compolens.figures import plotlyjs

    width = NARROW_WIDTH if narrow else WIDTHS.get(name, SIDE_WIDTH)
    figure = (replace(drawing, columns=2 if name == "heads" else 1) if narrow else drawing).json(width)
    layout = figure["layout"]
    layout |= {
        "template": plotlyjs.shared_template(),
        "clickmode": "event",
        "dragmode": "select" if name == "worst" else "zoom",
    }
    layout["margin"]["l"] = 50
    if narrow and name == "heads":  # thumbnails: ticks beside one another would run together
        for axis in (key for key in layout if key.startswith(("xaxis", "yaxis"))):
            layout[axis] |= {"tickfont": {"size": 9}} | ({"tickangle": -90} if axis.startswith("x") else {})
    return figure


def _saving(app: Dash, explorer: Explorer, name: str) -> None:
    @app.callback(
        Output({"download": name}, "data"),
        Input({"save": name, "as": "png"}, "n_clicks"), Input({"save": name, "as": "csv"}, "n_clicks"),
        State("address", "search"), prevent_initial_call=True,
    )  # fmt: skip
    def save(png: int, csv: int, search: str | None) -> Any:
        state = read(search)
        drawing = explorer.view(name, state).drawing
        if isinstance(ctx.triggered_id, dict) and ctx.triggered_id["as"] == "csv":
            return dcc.send_string(drawing.frame().to_csv(index=False), f"{name}.csv")
        return dcc.send_bytes(drawing._repr_png_(), f"{name}.png")


def _freezing(app: Dash, explorer: Explorer) -> None:
    @app.callback(
        Output("frozen", "data"), Input("go-freeze", "n_clicks"), State("address", "search"), prevent_initial_call=True,
    )  # fmt: skip
    def freeze(clicks: int, search: str | None) -> Any:
        return dcc.send_string(frozen(explorer, read(search)), "compolens.html")
