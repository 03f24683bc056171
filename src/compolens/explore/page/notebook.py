"""The page in a cell of a notebook: the same server, in a thread of the kernel."""

from __future__ import annotations

import threading
import warnings
from pathlib import Path

from compolens import tables
from compolens.explore.explorer import Explorer, described
from compolens.explore.page.serve import HOST, server


class Cell:
    """The page as a notebook shows it; `stop` ends its server.

    Args:
        explorer: the models.
        height: of the page in pixels.
    """

    def __init__(self, explorer: Explorer, height: int) -> None:
        self._server, self.height = server(explorer), height
        self.address = f"http://{HOST}:{self._server.server_port}/"
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the server; the cell then shows nothing any more."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def __repr__(self) -> str:
        return f"compolens explore at {self.address} (on the kernel's machine); stop() ends it"

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, str]:
        frame = f'<iframe src="{self.address}" width="100%" height="{self.height}" style="border:0"></iframe>'
        return {"text/plain": repr(self), "text/html": frame}


def inside(folders: list[Path], height: int) -> Cell:
    """The page of these folders, served from here.

    Args:
        folders: model folders, or folders of model folders.
        height: of the cell in pixels.

    Returns:
        The cell; its server runs already.
    """
    return Cell(Explorer(described(tables.find(folders), lambda told: warnings.warn(told, stacklevel=3))), height)
