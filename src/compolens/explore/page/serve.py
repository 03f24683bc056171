"""The page's server: one process on 127.0.0.1, until Ctrl-C."""

from __future__ import annotations

import logging
import sys
import webbrowser
from pathlib import Path

from dash import Dash, set_props
from werkzeug.serving import BaseWSGIServer, make_server

from compolens.explore.explorer import Explorer
from compolens.explore.page.layout import page
from compolens.explore.page.wiring import wire
from compolens.foundation.configs import ConfigError

HOST = "127.0.0.1"


def application(explorer: Explorer) -> Dash:
    """The page; every script that it loads is served from here.

    Args:
        explorer: the models.

    Returns:
        The application, wired.
    """
    app = Dash(
        "compolens", title="compolens explore", update_title="", serve_locally=True,
        assets_folder=str(Path(__file__).parent / "assets"), suppress_callback_exceptions=True, on_error=told,
    )  # fmt: skip
    app.layout = page(list(explorer.folders))
    wire(app, explorer)
    return app


def told(error: Exception) -> None:
    """What goes wrong is said on the page and on the terminal: never a silent nothing.

    Args:
        error: what went wrong in a callback.
    """
    set_props("error", {"children": f"{type(error).__name__}: {error}"})
    print(f"compolens: error: {type(error).__name__}: {error}", file=sys.stderr, flush=True)


def server(explorer: Explorer, port: int = 0) -> BaseWSGIServer:
    """The page's server on a port of 127.0.0.1.

    Args:
        explorer: the models.
        port: from 1 to 65535; 0: a free one.

    Returns:
        The server, bound to the port and not yet serving.

    Raises:
        ConfigError: the port is taken, or is none.
    """
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    if not 0 <= port <= 65535:
        raise ConfigError(f"a port is a number from 1 to 65535, got {port}")
    try:
        return make_server(HOST, port, application(explorer).server, threaded=True)
    except SystemExit as error:  # werkzeug's way to say that the port is taken
        raise ConfigError(f"port {port} is taken; name another with --port, or leave it out for a free one") from error


def run(explorer: Explorer, port: int, browser: bool) -> None:
    """Serve until Ctrl-C.

    Args:
        explorer: the models.
        port: as in `server`.
        browser: open a browser at the page's address.
    """
    made = server(explorer, port)
    address = f"http://{HOST}:{made.server_port}/"
    count = len(explorer.folders)
    print(f"exploring {count} {'model' if count == 1 else 'models'} at {address}  (Ctrl-C ends it)", flush=True)
    if browser and not webbrowser.open(address):
        print(f"no browser could be opened; open {address}", flush=True)
    made.serve_forever()  # returns at Ctrl-C
    print("ended", flush=True)
