"""Tuning is part of a comparison: every architecture is tried at the same settings, with one seed that is never reported.

A setting is chosen by log(1 - score) on validation compositions, which are neither trained on nor reported; beside it stands
the same on training compositions. A best value at the edge of the grid, of whichever architecture, extends the grid of all of
them, up to a number of settings; so budgets stay equal.
"""

from __future__ import annotations

import dataclasses
import math
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import pandas as pd

from compolens.foundation import map_files
from compolens.foundation.configs import ConfigError, nearest, require
from compolens.maps.grid import Cell
from compolens.measures.tuned import SETTINGS, Choice, choices
from compolens.tasks.episodes import VALIDATION
from compolens.training import Run

FARTHEST = 8
"""How many values beyond either end of a grid a cell is looked for, at least: `most` may be more, or less than it was."""
LOOKED_FOR = ("lr", "weight_decay", "steps")


@dataclass(frozen=True)
class Tuning:
    """Architectures that are compared, and the grid over which each of them is tuned.

    Args:
        title: what is tuned, in a few words.
        runs: name -> run, one per architecture: equal in all but the architecture; its rate, decay and steps are replaced.
        lr: learning rates, ascending.
        weight_decay: decays, ascending.
        steps: lengths of training, ascending.
        most: most settings per architecture, extensions included.
        reported: seeds of the runs that will be reported; the seeds of `runs` are none of them.
    """

    title: str
    runs: Mapping[str, Run]
    lr: tuple[float, ...]
    weight_decay: tuple[float, ...]
    steps: tuple[int, ...]
    most: int = 12
    reported: tuple[int, ...] = (0, 1, 2, 3, 4)

    kind = "tuning"

    def __post_init__(self) -> None:
        require(len(self.runs) > 0, f"the tuning {self.title!r} has no runs")
        for name in LOOKED_FOR:
            values = getattr(self, name)
            many = isinstance(values, Iterable) and not isinstance(values, str)
            require(many, f"the tuning {self.title!r}: {name} must be several values, such as ({values!r},), got {values!r}")
            rising = list(values) == sorted(set(values)) and len(values) > 0 and values[0] > 0
            require(rising, f"the tuning {self.title!r}: {name} must be positive and ascending, got {list(values)}")
        tried = len(self.lr) * len(self.weight_decay) * len(self.steps)
        require(tried <= self.most, f"the tuning {self.title!r} has {tried} settings, more than most={self.most}")
        first = next(iter(self.runs.values()))
        for name, run in self.runs.items():
            require(
                VALIDATION in run.task.splits,
                f"{self.title!r}: the task of {name} sets no compositions aside; say Hyperteacher(validation=4), for instance",
            )
            same = dataclasses.replace(run, architecture=first.architecture) == first
            require(same, f"{self.title!r}: the run of {name} differs from the others in more than its architecture")
            seeds = {run.init_seed, run.data_seed, *(getattr(run.task, s, -1) for s in ("teacher_seed", "split_seed"))}
            clash = sorted(seeds & set(self.reported))
            require(not clash, f"{self.title!r}: the seed {clash[:1]} of {name} is one of those reported; tune with another")

    @property
    def knobs(self) -> tuple[str, ...]:
        """What cells differ in."""
        return ("who", *SETTINGS)

    @property
    def values(self) -> dict[str, tuple[float, ...]]:
        """The grid as described: setting -> its values."""
        return {name: tuple(getattr(self, name)) for name in SETTINGS}

    def cells(self, values: Mapping[str, tuple[float, ...]] | None = None) -> list[Cell]:
        """The cells of a grid.

        Args:
            values: setting -> its values (None: the grid as described).

        Returns:
            A cell per architecture and setting, cheap settings first.
        """
        grid = self.values if values is None else dict(values)
        found = []
        for steps, lr, decay in product(grid["steps"], grid["lr"], grid["weight_decay"]):
            for who, run in self.runs.items():
                optimizer = dataclasses.replace(run.optimizer, lr=float(lr), weight_decay=float(decay))
                trained = dataclasses.replace(run, steps=int(steps), optimizer=optimizer)
                found.append(Cell(trained, {"who": who, "lr": float(lr), "weight_decay": float(decay), "steps": int(steps)}))
        return found

    def cell(self, name: str) -> Cell:
        """The cell of a name, of the grid however far it was extended.

        Args:
            name: as `Cell.name` has it.

        Returns:
            The cell.

        Raises:
            ConfigError: there is none.
        """
        tried = math.prod(map(len, self.values.values()))
        room = {key: max(FARTHEST, self.most * len(values) // tried - len(values)) for key, values in self.values.items()}
        for far in range(max(room.values()) + 1):  # near ones first: a grid that is stretched far leaves what numbers hold
            ends = {key: min(far, room[key]) for key in room}
            for cell in self.cells({key: stretched(values, ends[key], ends[key]) for key, values in self.values.items()}):
                if cell.name == name:
                    return cell
        raise ConfigError(f"the tuning {self.title!r} has no cell {name!r}; {nearest(name, (c.name for c in self.cells()))}")

    def config(self) -> dict[str, Any]:
        """What config.json of its folder holds."""
        return {
            "format": 1,
            "kind": self.kind,
            "title": self.title,
            "knobs": list(self.knobs),
            "grid": {name: list(values) for name, values in self.values.items()},
            "most": self.most,
            "reported": list(self.reported),
            "cells": {cell.name: cell.described() for cell in self.cells()},
        }

    def extended(self, table: pd.DataFrame) -> dict[str, tuple[float, ...]]:
        """The grid after what was measured on it: wider where any architecture is best at an edge, as far as `most` allows.

        Args:
            table: rows of cells, as a map's table has them; may be empty, or of a grid that was extended before.

        Returns:
            Setting -> values: of the grid as described until all of it is measured.
        """
        values = self.values
        while True:
            names = {cell.name for cell in self.cells(values)}
            if table.empty or not names <= set(table["cell"]):
                return values
            wider = self._wider(values, table)
            if wider is None:
                return values
            values = wider

    def ended(self, folder: str | Path) -> bool:
        """Whether every setting is measured, those that the grid was extended by included.

        Args:
            folder: the tuning's; need not exist.

        Returns:
            Whether what `tuned` says of it is final.

        Raises:
            DamagedFile: its table is not what was written.
        """
        if not map_files.is_map(folder):
            return False
        table = map_files.read_table(folder)
        return {cell.name for cell in self.cells(self.extended(table))} <= set(table["cell"])

    def _wider(self, values: dict[str, tuple[float, ...]], table: pd.DataFrame) -> dict[str, tuple[float, ...]] | None:
        """The next grid; None where no best value of `table` is at an edge or beyond it, or none that there is room for."""
        found = [choice for who, choice in choices(table).items() if who in self.runs]
        for name in LOOKED_FOR if found else ():
            known, best = values[name], {choice.settings[name] for choice in found}
            if len(known) < 2:
                continue
            nearly = 1e-7  # a table keeps eight digits
            below, above = int(min(best) <= known[0] * (1 + nearly)), int(max(best) >= known[-1] * (1 - nearly))
            for low, high in ((below, above), (0, above), (below, 0)):  # what there is room for, larger values first
                if not low and not high:
                    continue
                wider = values | {name: stretched(known, low, high)}
                if wider != values and math.prod(map(len, wider.values())) <= self.most:
                    return wider
        return None


def stretched(values: tuple[float, ...], below: int, above: int) -> tuple[float, ...]:
    """Ascending values with more of them at the ends, one by one, each at the ratio of the two next to it.

    Args:
        values: at least one; of one value nothing is known about its neighbours, and it stays alone.
        below: how many more at the lower end.
        above: how many more at the upper end.

    Returns:
        Ascending values; rounded to three digits, which keeps names short, and whole numbers stay whole.
    """
    if len(values) < 2:
        return values
    whole = all(isinstance(v, int) for v in values)
    for _ in range(below):
        values = (_rounded(values[0] * (values[0] / values[1]), whole), *values)
    for _ in range(above):
        values = (*values, _rounded(values[-1] * (values[-1] / values[-2]), whole))
    return tuple(dict.fromkeys(values))


def _rounded(value: float, whole: bool) -> float:
    return max(1, round(value)) if whole else float(f"{value:.3g}")


# ---- what was chosen -------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Tuned:
    """What a tuning chose for one architecture.

    Args:
        who: the architecture's name in the tuning.
        choice: its best setting, and what could as well have been chosen.
    """

    who: str
    choice: Choice

    def run(self, run: Run) -> Run:
        """`run` at the setting that was chosen."""
        best = self.choice.settings
        optimizer = dataclasses.replace(run.optimizer, lr=best["lr"], weight_decay=best["weight_decay"])
        return dataclasses.replace(run, steps=int(best["steps"]), optimizer=optimizer)


def tuned(folder: str | Path) -> dict[str, Tuned]:
    """What a tuning chose.

    Args:
        folder: the tuning's.

    Returns:
        Name of the architecture -> what was chosen for it; one that diverged at every setting is not in there.

    Raises:
        ConfigError: nothing was tuned there, not all settings of the grid, or not the same number for all architectures; the
            message names the command to type.
    """
    if not map_files.is_map(folder):
        below = [path.name for path in sorted(Path(folder).glob("*")) if map_files.is_map(path)]
        if below:
            raise ConfigError(f"{folder} is a folder of tunings; name one of them, such as {str(Path(folder) / below[0])!r}")
        command = f"compolens tune trained_models/tuning.py --out {shlex.quote(str(Path(folder).parent))}"
        raise ConfigError(f"{folder} holds no tuning yet; make it with: {command}")
    config, table = map_files.read_config(folder), map_files.read_table(folder)
    require(config["kind"] == "tuning", f"{folder} is a map, and no tuning; tunings are made with: compolens tune FILE")
    described = config["cells"]
    left = set(described) - set(table["cell"])
    require(
        "who" in table and not left,
        f"{folder}: {len(left)} of {len(described)} settings are not measured yet; the command that began it goes on",
    )
    tried = {str(who): int(count) for who, count in table["who"].value_counts(sort=False).items()}
    even = ", ".join(f"{who} {count}" for who, count in tried.items())
    require(
        len(set(tried.values())) == 1,
        f"{folder}: its grid was extended, and not all of that is measured yet (settings tried: {even}); the command that "
        "began it goes on",
    )
    chosen = {who: Tuned(who, choice) for who, choice in choices(table).items()} if "test" in table else {}
    return _Chosen(str(folder), chosen, set(tried) - set(chosen))


class _Chosen(dict[str, Tuned]):
    """What a tuning chose, by architecture."""

    def __init__(self, folder: str, chosen: dict[str, Tuned], diverged: set[str]) -> None:
        super().__init__(chosen)
        self.folder, self.diverged = folder, diverged

    def __missing__(self, who: str) -> Tuned:
        if who in self.diverged:
            raise ConfigError(f"{self.folder}: {who} diverged at every setting; tune it at smaller learning rates")
        raise ConfigError(f"{self.folder} has no architecture {who!r}; {nearest(str(who), self)}")
