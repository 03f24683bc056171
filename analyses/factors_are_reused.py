"""Whether factors of the code are re-used: swapped alone, one turns the answer into the recombined task's, held out or not."""

from pathlib import Path

import pandas as pd

from compolens import tables
from compolens.diagnosis.groups import SEEDS, Group, group, title
from compolens.figures import Bars, Drawing, Mark, Panel, Points, Rule
from compolens.foundation.configs import ConfigError
from compolens.measures.intervals import two_level_interval

needs = ("swap_factor",)
SHOWN = {
    "": "recombined", "copied": "vs source", "base": "vs base", "whole source": "vs whole code", "not swapped": "no swap",
    "shuffled masks": "other factor", "random coordinates": "random", "untrained": "untrained",
}  # fmt: skip
"""Control -> what it is called: the edited answers against the recombined task; against rivals; then other edits."""
SPLITS = {"test": ("training composition", "#44AA99"), "ood": ("held-out composition", "#882255")}
LOWEST = -1.5
"""Axes of scores end here."""


def analyze(models: list[Path]) -> Drawing:
    """Draw how answers score after one factor of the code was taken from another episode (2303.02536).

    A panel per architecture and setting, at the site chosen on training compositions. The edited answers are scored against
    four targets: the recombined task, the source's own answers, the base's own, and answers under the source's whole code.
    Then four other edits are scored against the recombined task: none, another factor's coordinates, random ones, and the
    untrained control.

    Args:
        models: folders of the models to draw, in this order.

    Returns:
        The drawing. Bars are means over seeds, points seeds. Lines: answers when the recombined episode itself is shown.

    Raises:
        ConfigError: a table has no scores at a chosen site.
    """
    groups = group(models)
    found = [_rows(g) for g in groups]
    marks = [_marks(rows, g) for g, rows in zip(groups, found, strict=True)]
    span = _span([mark for some in marks for mark in some])
    words = "four targets, then four other edits"
    panels = [Panel(title(g, groups), words, "score", some, span) for g, some in zip(groups, marks, strict=True)]
    places = [f"{title(g, groups)}: {_places(rows)}" for g, rows in zip(groups, found, strict=True)]
    caption = (
        "Score of the answers after the learned coordinates of one factor of the code were taken from another episode. "
        "Recombined: against the task with that factor exchanged. Base and source are training compositions, the recombined "
        "one is another training composition or a held-out one; the coordinates are learned on the former. Rivals: the same "
        "answers against the source's own (vs source), the base's own, and those under the source's whole code. Controls, "
        "against the recombined task: no swap; the next factor's coordinates; random ones (mean over draws); the "
        "untrained control, with a search of its own. Lines: answers when the recombined episode itself is shown. Bars are "
        "means over seeds, points seeds. Intervals: 95 %, of one seed over compositions (random: 5 to 95 % of draws), from "
        f"{SEEDS} seeds on over seeds. Axes end at {LOWEST:g}; triangles: what lies beyond (numbers: heights of bars). "
        f"Where: {'; '.join(places)}. With fewer than {SEEDS} seeds nothing is claimed."
    )
    return Drawing("Are the factors of the code re-used?", tuple(panels), caption, columns=min(2, len(panels)))


def _rows(g: Group) -> pd.DataFrame:
    """Scores over all factors at each model's chosen site, and the unedited ones."""
    rows = pd.concat([tables.with_untrained_control(folder, "swap_factor") for folder in g.folders], ignore_index=True)
    there = (rows["chosen"].astype(str).isin(("True", "1"))) | (rows["site"] == "tokens")
    rows = rows[(rows["metric"] == "score") & (rows["factor"] == "all") & there & rows["value"].notna()]
    if rows[rows["control"] == ""].empty:
        folder = g.folders[0]
        raise ConfigError(
            f"{folder}: table swap_factor has no scores at a chosen site; type: {tables.command_of(needs[0], folder)} --again"
        )
    return rows


def _places(rows: pd.DataFrame) -> str:
    """The chosen sites, in words."""
    own = rows[rows["control"] == ""]
    words = [
        "the explicit code" if site == "hook_code" else f"layer {layer:.0f}, {role} tokens"
        for site, layer, role in zip(own["site"], own["layer"], own["role"], strict=True)
    ]
    return ", or ".join(dict.fromkeys(words))


def _marks(rows: pd.DataFrame, g: Group) -> list[Mark]:
    """Bars, points of seeds, and lines for the recombined episodes themselves."""
    marks: list[Mark] = []
    for split, (label, color) in SPLITS.items():
        here = rows[(rows["split"] == split) & rows["control"].isin(SHOWN)]
        here = here.assign(x=here["control"].map(SHOWN))
        if here.empty:
            continue
        bars = pd.DataFrame([_bar(name, here[here["x"] == name]) for name in SHOWN.values() if name in set(here["x"])])
        marks.append(Bars(bars, "x", "value", label=label, color=color, lo="lo", hi="hi"))
        if len(g.folders) > 1:
            marks.append(Points(here, "x", "value", label=label, color=color, hover="model"))
    for split, (label, color) in SPLITS.items():
        shown = rows[(rows["split"] == split) & (rows["control"] == "shown")]["value"]
        if len(shown):
            marks.append(Rule(float(shown.mean()), label=f"{label} shown", color=color))
    return marks


def _span(marks: list[Mark]) -> tuple[float, float]:
    """A y range that holds 0 and every mark down to LOWEST."""
    drawn = pd.concat([mark.rows() for mark in marks])
    low, high = min(0.0, float(drawn["y"].min())), max(0.0, float(drawn["y"].max()))
    return max(low, LOWEST) - (0.05 if low > LOWEST else 0.0), high + 0.05


def _bar(name: str, rows: pd.DataFrame) -> dict:
    """Mean over seeds with the interval that these many seeds allow."""
    lo, hi = float("nan"), float("nan")
    if len(rows) == 1:
        lo, hi = (float(rows[c].iloc[0]) for c in ("lo", "hi"))
    elif len(rows) >= SEEDS:
        seeds = [pd.DataFrame({"value": [value], "weight": [1.0]}) for value in rows["value"]]
        _, lo, hi = two_level_interval(seeds)
    return {"x": name, "value": float(rows["value"].mean()), "lo": lo, "hi": hi}
