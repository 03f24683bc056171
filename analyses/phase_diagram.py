"""Held-out compositions are answered in a region of settings, whose boundary and its interval a map shows."""

from itertools import product
from pathlib import Path

import pandas as pd

from compolens.figures import SERIES_COLORS, Contour, Drawing, Line, Panel, PhaseMap, Points, Route
from compolens.figures.words import as_text
from compolens.foundation import map_files
from compolens.foundation.configs import ConfigError
from compolens.measures.phases import Crossing, by_cell, crossing

of = "maps"
needs = ()
HELD_OUT = "held-out compositions"
MOST_NAMED = 4
"""Cells with seeds that did not learn, of which a caption names the rest by their number."""
UNITS = {"half-angle": "half-angle (degrees)"}
"""Knobs that have a unit, with it."""


def analyze(models: list[Path], *, score: str = "ood", levels: str = "0.95,0.99") -> Drawing:
    """Draw maps: the held-out score as colour, with contours of the score on training compositions; or, of one knob, as lines.

    Boundaries that a paper predicts, such as that of connected supports (2312.15001), are drawn as lines. A run that did not
    learn its training compositions is left out; a cell without one that did is grey. Neither is a failure
    to generalize. A knob that is on no axis of a map of two has a panel per value.

    Args:
        models: folders of maps.
        score: the column that colours say: ood, or another measure of the map's table.
        levels: contours of the score on training compositions (test), numbers separated by commas.

    Returns:
        The drawing. White lines are contours of the test score, dashed where it reaches what counts as learned; black points
        are where the held-out score crosses the map's level, with 95 % intervals over seeds; dashed black lines are
        predictions.
    """
    panels, told, lacking, shortest = [], [], [], 10**9
    try:
        contours = [float(v) for v in levels.split(",") if v.strip()]
    except ValueError:
        raise ConfigError(f"--levels must be numbers separated by commas, such as 0.95,0.99; got {levels!r}") from None
    for folder in models:
        config, table = map_files.read_config(folder), map_files.read_table(folder)
        if config["kind"] != "map" or not len(table):
            continue
        if why := map_files.why_without_scores(folder, table):
            lacking.append(why)
            continue
        if score not in table or not pd.api.types.is_numeric_dtype(table[score]):
            lacking.append(f"{folder} has no column of numbers {score!r}; it has {', '.join(map(str, table.columns))}")
            continue
        table = table.assign(ood=table[score])
        found, words = _panels(config, table, score, contours)
        panels += found
        told += words + _thin(config, table)
        shortest = min(shortest, int(table.groupby(config["knobs"]).size().min()))
    if not panels:
        none = "none of these maps has a cell yet; the command that made them goes on: compolens map FILE"
        raise ConfigError(lacking[0] if lacking else none)
    told += [f"Left out: {reason}." for reason in lacking]
    caption = (
        f"Colours and solid lines: {f'score on {HELD_OUT}' if score == 'ood' else score}, mean over the seeds that "
        "learned what they were trained on; grey cells and open points: no seed did. White contours and dashed lines: the "
        f"score on training compositions. At least {shortest} seed(s) per cell. " + " ".join(dict.fromkeys(told))
    )
    return Drawing("Where are held-out compositions answered?", tuple(panels), caption, columns=min(3, len(panels)))


def _panels(config: dict, table: pd.DataFrame, score: str, levels: list[float]) -> tuple[list[Panel], list[str]]:
    """The panels of one map, and what is said of its boundaries."""
    rest = [knob for knob in config["knobs"] if knob not in (config["x"], config["y"], *config["panels"])]
    apart = [*config["panels"], *(knob for knob in rest if config["y"] and len(table[knob].drop_duplicates()) > 1)]
    combinations = product(*(dict.fromkeys(table[knob]) for knob in apart))
    panels, told = [], []
    for values in combinations:
        part = table
        for knob, value in zip(apart, values, strict=True):
            part = part[part[knob] == value]
        if not len(part):
            continue
        words = [f"{k} {v:g}" if isinstance(v, float) else f"{k} {v}" for k, v in zip(apart, values, strict=True)]
        name = ", ".join([config["title"], *words])
        draw = _phases if config["y"] else _lines
        panel, said = draw(name, config, part, score, levels)
        panels.append(panel)
        told += said
    flat = [sentence for sentence in told if sentence.endswith(_never(score, config["generalized"]))]
    if len(flat) > 1 and not any(" crosses " in sentence for sentence in told):  # of many panels, each would say the same
        told = [f"{config['title']}, everywhere{_never(score, config['generalized'])}", *(t for t in told if t not in flat)]
    return panels, told


def _thin(config: dict, table: pd.DataFrame) -> list[str]:
    """A sentence that names the cells whose score is that of some of their seeds alone."""
    cells = by_cell(table, config["knobs"], config["learned"])
    some = cells[(cells["learned"] > 0) & (cells["learned"] < cells["seeds"])]
    named = [
        f"{', '.join(f'{knob} {as_text(row[knob])}' for knob in config['knobs'])} ({row['learned']} of {row['seeds']} seeds)"
        for row in some.to_dict("records")
    ]
    shown = [*named[:MOST_NAMED], *([f"{len(named) - MOST_NAMED} more"] if len(named) > MOST_NAMED else [])]
    return [f"{config['title']}: only some seeds learned, and are drawn, at {'; '.join(shown)}."] if named else []


# ---- two knobs -------------------------------------------------------------------------------------------------------
def _phases(name: str, config: dict, table: pd.DataFrame, score: str, levels: list[float]) -> tuple[Panel, list[str]]:
    x, y = config["x"], config["y"]
    numeric = _numeric(table[x])
    table = table.sort_values([x, "seed"], kind="stable") if numeric else table
    table = table.sort_values(y, kind="stable") if _numeric(table[y]) else table
    cells = by_cell(table, [x, y], config["learned"])
    rows = list(dict.fromkeys(cells[y]))
    words = cells.apply(lambda c: f"test {c['test']:.3f}; {c['learned']} of {c['seeds']} seeds learned", axis=1)
    contours = [Contour("test", level, f"test {level:g}") for level in levels]
    contours.append(Contour("test", config["learned"], f"learned: test {config['learned']:g}", dash=True))
    routes, told = [], []
    if numeric:
        found = {row: crossing(table[table[y] == row], x, config["learned"], config["generalized"]) for row in rows}
        known = {row: c for row, c in found.items() if c.at == c.at}
        if known:
            spread = [(c.lo, c.hi) for c in known.values()]
            label = f"{score} {config['generalized']:g}"
            routes.append(Route([(c.at, row) for row, c in known.items()], label, spread=spread))
        told = [_said(f"{name}, {y} {row}", x, score, config["generalized"], c) for row, c in found.items()]
    for line in config["predicted"]:
        points = [(a, b) for a, b in line["points"]]
        routes.append(Route(points, f"{line['name']} ({line['source']})", dash=True))
        told.append(f"Dashed: {line['name']} ({line['source']}); expected: {line['expects']}.")
    data = cells.assign(hover=words)
    mark = PhaseMap(data, x, y, "ood", label=score, hover="hover", contours=tuple(contours), routes=tuple(routes))
    return Panel(name, x, y, (mark,)), told


def _numeric(column: pd.Series) -> bool:
    return pd.api.types.is_numeric_dtype(column) and column.dtype != bool


def _never(score: str, level: float) -> str:
    return f": {score} does not cross {level:g}."


def _said(name: str, knob: str, score: str, level: float, found: Crossing) -> str:
    """A boundary in words: a number with its interval, or that there is none."""
    if found.at != found.at:
        return name + _never(score, level)
    interval = f" [{found.lo:.3g}, {found.hi:.3g}]" if found.lo == found.lo else " (no interval)"
    more = f", the first of {found.crossings} crossings" if found.crossings > 1 else ""
    return f"{name}: {score} crosses {level:g} at {knob} {found.at:.3g}{interval}{more}."


# ---- one knob --------------------------------------------------------------------------------------------------------
def _lines(name: str, config: dict, table: pd.DataFrame, score: str, levels: list[float]) -> tuple[Panel, list[str]]:
    x, rest = config["x"], [k for k in config["knobs"] if k not in (config["x"], *config["panels"])]
    marks: list = []
    told: list[str] = []
    groups = table.groupby(rest, sort=False) if rest else [((), table)]
    held_out = HELD_OUT if score == "ood" else score
    for i, (values, part) in enumerate(groups):
        color = SERIES_COLORS[i % len(SERIES_COLORS)]
        values = values if isinstance(values, tuple) else (values,)
        label = ", ".join(f"{k} {v}" for k, v in zip(rest, values, strict=True)) or held_out
        trained = f"{label}, test" if rest else "training compositions"
        cells = by_cell(part.sort_values(x), [x], config["learned"])
        marks.append(Line(cells, x, "ood", label=label, color=color, lo="lo", hi="hi"))
        marks.append(Line(cells, x, "test", label=trained, color=color, dash=True, keyed=not rest))
        fit = part["test"] >= config["learned"]
        if fit.any():
            marks.append(Points(part[fit], x, "ood", label=label, color=color, hover="cell", keyed=False))
        if (~fit).any():
            marks.append(
                Points(
                    part[~fit], x, "ood", label="training compositions not learned", color="#888888", hover="cell", open=True
                )
            )
        if pd.api.types.is_numeric_dtype(part[x]):
            found = crossing(part, x, config["learned"], config["generalized"])
            told.append(_said(f"{name}, {label}", x, score, config["generalized"], found))
    if rest:  # one entry for the dashed lines of all colours
        marks.append(Line(table.iloc[:0], x, "test", label="the same, training compositions", color="#444444", dash=True))
    for line in config["predicted"]:
        points = pd.DataFrame(line["points"], columns=["x", "y"])
        marks.append(Line(points, "x", "y", label=f"{line['name']} ({line['source']})", color="#000000", dash=True))
        told.append(f"Expected: {line['expects']} ({line['source']}).")
    told.append("Bands: lowest and highest seed.")
    units = ", ".join(dict.fromkeys(table["score_name"].dropna())) if score == "ood" and "score_name" in table else score
    return Panel(name, UNITS.get(x, x), units, tuple(marks)), told
