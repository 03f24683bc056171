"""What reaches a terminal: text, and nothing that a terminal acts on, whatever a folder, a name or a message holds."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import sys
from collections.abc import Iterator
from typing import Any

ACTED_ON = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""What moves the cursor, changes colours or the direction of reading, and halves of characters; not tab and newline."""


def visible(text: str) -> str:
    """A text with what a terminal would act on written out: an escape as ``\\x1b``.

    Args:
        text: anything, line breaks and tabs included: they stay.

    Returns:
        The text without `ACTED_ON`.
    """
    return ACTED_ON.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def one_line(text: object) -> str:
    """A message as one line, in which no name or value can pass for a line of its own.

    Args:
        text: the message, or what its `str` gives.

    Returns:
        The line: `visible`, with line breaks and tabs as spaces, without spaces at its ends.
    """
    return visible(" ".join(str(text).split("\n")).replace("\t", " ")).strip()


@contextlib.contextmanager
def _though_it_closed() -> Iterator[None]:
    """What is printed on a terminal that was closed is lost, and stops nothing: there may be something left to save."""
    try:
        yield
    except OSError as error:
        if error.errno != errno.EIO:
            raise


class Plain:
    """A stream that writes text as `visible` has it, and what its encoding lacks as escapes; all else is the stream's own.

    Args:
        stream: where the text goes, such as `sys.stdout`.
    """

    def __init__(self, stream: Any) -> None:
        self.stream = stream

    def write(self, text: str) -> int:
        """Write a text; on a terminal that was closed it is lost.

        Args:
            text: the text.

        Returns:
            Its number of characters, as given.
        """
        shown, encoding = visible(text), getattr(self.stream, "encoding", None)
        if encoding:
            shown = shown.encode(encoding, "backslashreplace").decode(encoding)
        with _though_it_closed():
            self.stream.write(shown)
        return len(text)

    def write_styled(self, text: str, style: str) -> None:
        """Write text in a style, if the stream is a terminal that has styles.

        Args:
            text: written as `write` does.
            style: a number that a terminal knows ("1" is bold, "31" red).
        """
        if not coloured(self.stream):
            self.write(text)
            return
        with _though_it_closed():
            self.stream.write(f"\x1b[{style}m")
            self.write(text)
            self.stream.write("\x1b[0m")

    def flush(self) -> None:
        with _though_it_closed():
            self.stream.flush()

    def writelines(self, lines: Any) -> None:
        """Write several texts, one after the other.

        Args:
            lines: an iterable of texts; no line breaks are added.
        """
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


def coloured(stream: Any) -> bool:
    """Whether `stream` shows colours: a terminal does, unless NO_COLOR is set or the terminal is a dumb one."""
    return bool(stream.isatty()) and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def bold(text: str) -> None:
    """Print the line `text` on stdout, bold where that is shown."""
    _styled(sys.stdout, text, "1")


def red(text: str) -> None:
    """Print the line `text` on stderr, red where that is shown."""
    _styled(sys.stderr, text, "31")


def _styled(stream: Any, text: str, style: str) -> None:
    plain = stream if isinstance(stream, Plain) else Plain(stream)
    plain.write_styled(text, style)
    plain.write("\n")


def beneath(stream: Any) -> Any:
    """The stream itself, for what draws on a terminal on purpose and shows names as `visible` has them.

    Args:
        stream: a stream, `Plain` or not.

    Returns:
        What `Plain` writes to; any other stream as it is.
    """
    return stream.stream if isinstance(stream, Plain) else stream


@contextlib.contextmanager
def plain() -> Iterator[None]:
    """Everything that is printed passes `Plain`, for as long as the context lives."""
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = (Plain(beneath(stream)) for stream in before)  # type: ignore[assignment]
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before
