"""How a figure is to look: what a venue and a paper decide, apart from what it shows."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from compolens.figures.arranged import names_in
from compolens.figures.drawings import Drawing
from compolens.figures.page import setting
from compolens.figures.words import displayed, unknown


@dataclass(frozen=True)
class Look:
    """Width, resolution, style, and which names are shown, in which order and under which words.

    Args:
        width: a venue or a length, see `WIDTHS`.
        dpi: pixels per inch of the PNG.
        style: a matplotlib style file, or the name of a style; "" for ours.
        labels: "NAME=WORDS", each a name and what is shown for it.
        order: names that come first.
        only: names that stay.
    """

    width: str = "page"
    dpi: int = 300
    style: str = ""
    labels: tuple[str, ...] = ()
    order: tuple[str, ...] = ()
    only: tuple[str, ...] = ()

    def arranged(self, drawing: Drawing) -> Drawing:
        """The drawing with what stays, in its order, under its words.

        Args:
            drawing: as an analysis makes it.

        Returns:
            The drawing to be rendered.

        Raises:
            ValueError: a name that nothing in the drawing has, or a label without "=".
        """
        drawing = drawing.only(*self.only) if self.only else drawing
        drawing = drawing.ordered(*self.order) if self.order else drawing
        return drawing.relabelled(dict(_split(text, drawing) for text in self.labels)) if self.labels else drawing

    @contextmanager
    def styled(self) -> Iterator[None]:
        """The style in use, for as long as the context lives.

        Raises:
            ValueError: no such style.
        """
        if not self.style:
            yield
            return
        from matplotlib import rc_params_from_file, style

        try:
            context = style.context(self.style)
            context.__enter__()
        except OSError as error:
            raise ValueError(
                f"No style {self.style!r}: it is no file, and none of matplotlib's: {', '.join(style.available)}."
            ) from error
        own = (
            style.library[self.style]
            if self.style in style.library
            else rc_params_from_file(self.style, use_default_template=False)
        )
        try:
            with setting(own):
                yield
        finally:
            context.__exit__(None, None, None)

    def flags(self) -> list[str]:
        """What to type for this look, where it differs from the default."""
        words = [] if self.width == "page" else ["--width", self.width]
        words += [] if self.dpi == 300 else ["--dpi", str(self.dpi)]
        words += ["--style", self.style] if self.style else []
        for flag, texts in (("--labels", self.labels), ("--order", self.order), ("--only", self.only)):
            words += [word for text in texts for word in (flag, text)]
        return words


def _split(text: str, drawing: Drawing) -> tuple[str, str]:
    """(name, words) of "NAME=WORDS"; names may hold "=" themselves, so the drawing's own names decide where to cut."""
    cuts = [(text[:i].strip(), text[i + 1 :].strip()) for i, letter in enumerate(text) if letter == "="]
    if not cuts:
        raise ValueError(f'A label is given as "NAME=WORDS", got {text!r}.')
    there = names_in(drawing.panels)
    known = {*there, *(displayed(name, drawing.labels) for name in there)}
    for name, words in cuts:
        if name in known:
            return name, words
    raise unknown("name in this drawing", cuts[0][0], known)
