"""What a map is: cells, each a `Run` with the values of its knobs, and how they are to be read."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from compolens.foundation.configs import ConfigError, describe, nearest, require, require_kinds, shown
from compolens.training import Run

Value = bool | int | float | str
RESERVED = frozenset(
    {"cell", "map", "seed", "run", "architecture", "task", "score_name", "steps trained", "parameters", "episodes", "seconds",
     "train", "test", "ood", "validation", "train se", "test se", "ood se", "validation se", "learned", "note", "kept"}
)  # fmt: skip
"""Columns of a map's table that are no knobs."""
LEARNED = 0.9
"""The test score from which a cell has learned its training compositions; that of the diagnosis, where the ceiling is 1."""


def digest_of(run: Run) -> str:
    """A short digest of everything that decides the outcome of `run`."""
    return hashlib.sha256(json.dumps(describe(run), sort_keys=True).encode()).hexdigest()[:16]


@dataclass(frozen=True)
class Cell:
    """One model of a map: a run, and the values of the knobs that make it this cell; cells of other seeds share them.

    Args:
        run: what is trained; its `init_seed` is the cell's seed.
        knobs: name -> value; every cell of a map has the same names.
    """

    run: Run
    knobs: Mapping[str, Value]

    def __post_init__(self) -> None:
        for name, value in self.knobs.items():
            require(name not in RESERVED, f"a knob may not be called {name!r}, which is a column of every map; choose another")
            require(
                isinstance(value, bool | int | float | str),
                f"the knob {name!r} must be a number, a word or true/false, got {value!r}",
            )

    @property
    def name(self) -> str:
        """Its folder: knobs and seed, in characters that every file system takes."""
        told = [*self.knobs.items(), ("seed", self.run.init_seed)]
        return re.sub(r"[^A-Za-z0-9._=+-]+", "-", "_".join(f"{knob}={value}" for knob, value in told)).strip("-.")[:180]

    def described(self) -> dict[str, Any]:
        """What config.json keeps of it."""
        return {"knobs": dict(self.knobs), "seed": self.run.init_seed, "run": describe(self.run)}


@dataclass(frozen=True)
class Boundary:
    """Where a theory or a paper says that something changes, to be drawn on a map before it is made.

    Args:
        name: in a few words.
        source: the paper, as an arXiv number, or what it follows from.
        points: (x, y) in values of the map's two knobs, at least two, joined by a line; for a map over one knob, (x, score).
        expects: the direction expected, in a sentence.
    """

    name: str
    source: str
    points: tuple[tuple[Value, Value], ...]
    expects: str

    def __post_init__(self) -> None:
        require(len(self.points) >= 2, f"the boundary {self.name!r} needs at least two points, got {len(self.points)}")


@dataclass(frozen=True)
class Map:
    """A grid of small models, one row each in one table.

    Args:
        title: what it shows, in a few words.
        cells: all of them; for loops make them.
        x: the knob along x.
        y: the knob along y ("": none; scores are then drawn as lines).
        panels: knobs that get a panel per value.
        learned: the score on training compositions (test) from which a cell counts; cells below it are never counted as
            failures to generalize.
        generalized: the held-out score at which the boundary is drawn.
        predicted: lines that theory or a paper predicts.
        measures: probes whose numbers enter the table, measured before weights are removed: name -> their arguments.
        keep: patterns of the names of cells whose folders are kept, weights and tables, below cells/.
        keep_history: whether the scores along training are kept, in history.csv.
    """

    title: str
    cells: Sequence[Cell]
    x: str
    y: str = ""
    panels: tuple[str, ...] = ()
    learned: float = LEARNED
    generalized: float = LEARNED
    predicted: tuple[Boundary, ...] = ()
    measures: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    keep: tuple[str, ...] = ()
    keep_history: bool = False

    kind = "map"

    def __post_init__(self) -> None:
        object.__setattr__(self, "cells", tuple(self.cells))
        asked = isinstance(self.measures, Mapping) and all(isinstance(given, Mapping) for given in self.measures.values())
        example = '{"generalization": {"episodes": 1024}}'
        require(asked, f"Map: measures must name probes and their arguments, such as {example}; got {shown(self.measures)}")
        require_kinds(self)
        require(len(self.cells) > 0, f"the map {self.title!r} has no cells; give at least one Cell(run, knobs)")
        check_cells(self.title, self.cells)
        for name in filter(None, (self.x, self.y, *self.panels)):
            require(name in self.knobs, f"the map {self.title!r} has no knob {name!r}; {nearest(name, self.knobs)}")

    @property
    def knobs(self) -> tuple[str, ...]:
        """The names of the knobs, in the order in which cells give them."""
        return tuple(self.cells[0].knobs)

    def cell(self, name: str) -> Cell:
        """The cell of a name.

        Args:
            name: as `Cell.name` has it.

        Returns:
            The cell.

        Raises:
            ConfigError: there is none.
        """
        for cell in self.cells:
            if cell.name == name:
                return cell
        raise ConfigError(f"the map {self.title!r} has no cell {name!r}; {nearest(name, (c.name for c in self.cells))}")

    def config(self) -> dict[str, Any]:
        """What config.json of its folder holds."""
        boundaries = [
            {"name": b.name, "source": b.source, "points": [list(p) for p in b.points], "expects": b.expects}
            for b in self.predicted
        ]
        return {
            "format": 1,
            "kind": self.kind,
            "title": self.title,
            "x": self.x,
            "y": self.y,
            "panels": list(self.panels),
            "knobs": list(self.knobs),
            "learned": self.learned,
            "generalized": self.generalized,
            "predicted": boundaries,
            "measures": {name: dict(arguments) for name, arguments in self.measures.items()},
            "keep": list(self.keep),
            "cells": {cell.name: cell.described() for cell in self.cells},
        }


def check_cells(title: str, cells: Sequence[Cell]) -> None:
    """Check that cells make one table: equal knobs, and no two alike.

    Args:
        title: of the map, named in errors.
        cells: all of them.

    Raises:
        ConfigError: they do not.
    """
    knobs, seen = list(cells[0].knobs), dict[str, Cell]()
    for cell in cells:
        require(
            list(cell.knobs) == knobs,
            f"all cells of {title!r} need the same knobs in the same order; got {list(cell.knobs)} beside {knobs}",
        )
        if (other := seen.get(cell.name)) is not None:
            raise ConfigError(f"{title!r} describes the cell {cell.name} twice; {_apart(cell, other)}")
        seen[cell.name] = cell


def _apart(one: Cell, other: Cell) -> str:
    """How to tell two cells of one name apart."""
    if dict(one.knobs) != dict(other.knobs):
        knob = next(name for name, value in one.knobs.items() if value != other.knobs[name])
        values = f"{other.knobs[knob]!r} and {one.knobs[knob]!r}"
        return (
            f"names hold letters, digits and ._=+- alone, up to 180, so the values {values} of {knob!r} look alike: rename one"
        )
    if digest_of(one.run) != digest_of(other.run):
        return (
            "their runs differ, but neither a knob nor the run's init_seed does, which is the seed of a cell; make it a knob"
        )
    return "give every cell its own knobs or seed"
