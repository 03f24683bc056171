"""`python -m compolens.cli`."""

import os
import sys
from typing import NoReturn

from compolens.cli import main


def program() -> NoReturn:
    """Do what was typed, and end the process with the command's exit status."""
    status = main()
    if os.environ.get("WORLD_SIZE", "1") != "1":
        # Everything is written and the group of processes is closed. Threads that its library leaves behind abort the
        # interpreter's end now and then, and the launcher would call a finished training failed.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
    sys.exit(status)


if __name__ == "__main__":
    program()
