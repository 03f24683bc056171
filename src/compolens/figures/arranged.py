"""A drawing with less in it, or in another order: what a paper needs of a figure that shows everything."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import pandas as pd

from compolens.figures.panels import Panel
from compolens.figures.words import is_categorical


def names_in(panels: Sequence[Panel]) -> list[str]:
    """Every name that `panels` show: their titles, their marks' labels, and the categories on their x axes, in this order."""
    titles = [panel.title for panel in panels]
    labels = [label for panel in panels for mark in panel.marks for label in (mark.label, *mark.legend_labels()) if label]
    return list(dict.fromkeys([*titles, *labels, *(c for panel in panels for c in categories(panel))]))


def categories(panel: Panel) -> list[str]:
    """The names on the x axis of `panel`, in order of appearance; none where it holds numbers."""
    columns = [rows["x"] for rows in (mark.rows() for mark in panel.marks) if "x" in rows]
    return list(dict.fromkeys(str(x) for column in columns if is_categorical(column) for x in column.dropna()))


def only(panels: Sequence[Panel], names: Sequence[str]) -> list[Panel]:
    """The panels with nothing but what is named.

    A name may be a panel's title, a mark's label or a category on x. Where names of one of these kinds are given, only those
    of that kind stay; kinds of which none is named are left as they are. Marks without a label stay.

    Args:
        panels: the panels of a drawing.
        names: what stays, each as it stands in `names_in`.

    Returns:
        The panels that are left, with the marks that are left.

    Raises:
        ValueError: nothing would be left.
    """
    chosen = set(names)
    titles, labels = {panel.title for panel in panels}, {mark.label for panel in panels for mark in panel.marks}
    shown = {c for panel in panels for c in categories(panel)}
    kept = []
    for panel in panels:
        if chosen & titles and panel.title not in chosen:
            continue
        marks = [mark for mark in panel.marks if not mark.label or not chosen & labels or mark.label in chosen]
        if chosen & shown:
            marks = [_rows(mark, lambda x: x[x.astype(str).isin(chosen)]) for mark in marks]
        marks = [mark for mark in marks if "x" not in mark.rows() or len(mark.rows())]
        if marks:
            kept.append(replace(panel, marks=marks))
    if not kept:
        raise ValueError(f"Nothing is left of the drawing with only {', '.join(map(repr, names))}.")
    return kept


def ordered(panels: Sequence[Panel], names: Sequence[str]) -> list[Panel]:
    """The panels with what is named first, in the order of the names: panels, marks, and categories on x.

    Args:
        panels: the panels of a drawing.
        names: titles, labels or categories, each as it stands in `names_in`. What is not named follows in its old order.

    Returns:
        The panels in their new order.
    """
    place = {name: i for i, name in enumerate(names)}

    def rank(name: str) -> int:
        return place.get(name, len(place))

    def in_order(x: pd.Series) -> pd.Series:
        return x.loc[x.astype(str).map(rank).sort_values(kind="stable").index]

    found = []
    for panel in sorted(panels, key=lambda panel: rank(panel.title)):
        marks = sorted(panel.marks, key=lambda mark: rank(mark.label))
        if any(category in place for category in categories(panel)):
            marks = [_rows(mark, in_order) for mark in marks]
        found.append(replace(panel, marks=marks))
    return found


def _rows(mark, choose: Callable[[pd.Series], pd.Series]):
    """The mark with those rows of its data, and in that order, which `choose` leaves of its categorical x."""
    name = getattr(mark, "x", None)
    if name is None or not is_categorical(mark.data[name]):
        return mark
    data = mark.data.reset_index(drop=True)
    return replace(mark, data=data.loc[choose(data[name]).index])
