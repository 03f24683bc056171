"""A diagnosis on the terminal: its cards, then one line that says where the evidence is."""

from __future__ import annotations

import math
import shutil
import sys
import textwrap
from typing import TYPE_CHECKING, Any

from compolens.diagnosis.decomposition import NOTHING
from compolens.foundation.terminal import Plain, one_line

if TYPE_CHECKING:
    from compolens.diagnosis.cards import Card
    from compolens.report import Page

STYLES = {"confirmed": "32", "not confirmed": "31"}
"""Standing -> its colour; others are yellow."""
YELLOW, BOLD = "33", "1"


def show(page: Page, evidence: bool) -> None:
    """Print the diagnosis of a page.

    Args:
        page: what was written.
        evidence: print every statement with its number, in place of the cards.
    """
    if evidence:
        print(*page.lines, "", f"report: {page.path}", sep="\n")
        return
    for card in page.cards:
        _card(card)
    for clause in page.compared:
        _told(clause.text, "")
    count = sum(len(part) for card in page.cards for part in (card.rests_on, card.sentences, card.evidence, card.change))
    print(f"\nreport: {page.path} ({count} statements with their numbers; --evidence prints them here)")


def _card(card: Card) -> None:
    print(one_line(card.who))
    out: Any = sys.stdout if isinstance(sys.stdout, Plain) else Plain(sys.stdout)
    out.write("  ")
    out.write_styled(one_line(f"diagnosis: {card.label}"), BOLD)
    if card.parts:
        out.write(" (")
        out.write_styled(card.standing, STYLES.get(card.standing, YELLOW))
        out.write(f": {one_line(card.why)})")
    out.write("\n")
    _told(card.meaning, "  ")
    if not math.isnan(card.score):
        lost = ", ".join(f"{name} {loss}" for name, loss in card.parts.items() if abs(loss.value) >= NOTHING)
        where = "" if card.lost_elsewhere is None else f", in all {card.lost_elsewhere:.3f} on other episodes"
        _told(f"held-out score {card.score:.3f} of {card.ceiling:.3f}; lost{where}: {lost or 'nothing'}", "  ")
    for clause in card.sentences:
        _told(clause.text[:1].upper() + clause.text[1:], "  - ")
    for clause in card.change:
        _told(clause.text[:1].upper() + clause.text[1:], "  - ")


def _told(text: str, first: str) -> None:
    """A sentence, wrapped to the terminal if there is one."""
    text = one_line(text)
    if not sys.stdout.isatty():
        print(first + text)
        return
    rest = " " * len(first)
    width = shutil.get_terminal_size().columns
    lines = textwrap.wrap(
        text, width, initial_indent=first, subsequent_indent=rest, break_long_words=False, break_on_hyphens=False
    )
    print(*lines, sep="\n")
