"""Reading the pages of findings, whose numbers tests hold against tables; and the numbers of groups of five shipped seeds."""

import warnings
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from compolens import tables
from compolens.diagnosis.sentences import per_composition
from compolens.foundation import files
from compolens.measures.intervals import paired_interval

ZOO = Path(__file__).parents[1] / "trained_models"
IN_SHIPPED_TABLES = {}
"""What the tests of a process found in shipped tables, which no test changes; see `tables.read_once`."""


def cells(page: str, table: str, row: str) -> list[str]:
    """The cells of a row of a page's table, but for its heading.

    Args:
        page: the page's text.
        table: heading of the table's first column.
        row: heading of the row.

    Returns:
        A text per column.
    """
    (found,) = [cells for heading, *cells in rows(page, table) if heading == row]
    return found


def rows(page: str, table: str) -> list[list[str]]:
    """The rows of a page's table, without its head.

    Args:
        page: the page's text.
        table: heading of the table's first column, or the first headings, as they stand between bars.

    Returns:
        A text per column, the first one too.
    """
    _, _, rest = page.partition(f"| {table} |")
    assert rest, table
    return [columns(line) for line in rest.split("\n\n")[0].splitlines()[2:]]


def columns(line: str) -> list[str]:
    """The texts of a table's line, one per column."""
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


def shown(value: float, digits: int = 3) -> str:
    """A score as pages show it."""
    return f"{value:.{digits}f}".replace("0.", ".", 1)


def listed(values: Iterable[float], digits: int = 3) -> str:
    """Scores, one per seed, as pages show them."""
    return " ".join(shown(value, digits).replace("-", "\N{MINUS SIGN}") for value in values)


def with_interval(found: tuple[float, float, float]) -> str:
    """(value, lo, hi) as pages show it."""
    mean, lo, hi = (shown(value).replace("-", "\N{MINUS SIGN}") for value in found)
    return f"{mean} [{lo}, {hi}]"


def scores(name: str, split: str = "ood") -> list[float]:
    """The scores on the cards of five seeds, named by their folders without the seed."""
    return [files.read_json(ZOO / f"{name}-{s}" / "scores.json")[split]["score"] for s in range(5)]


def by_composition(name: str, split: str = "ood") -> list:
    """The scores of five seeds by composition."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", tables.StaleTable)  # intervals of older tables; the values are the same
        return [per_composition(ZOO / f"{name}-{s}", split) for s in range(5)]


def gap(left: str, right: str, split: str = "ood") -> tuple[float, float, float]:
    """(mean, lo, hi) of the difference of two groups, paired by seed and composition."""
    return paired_interval(by_composition(left, split), by_composition(right, split))


def by_seed(left: str, right: str, split: str = "ood") -> np.ndarray:
    """The same difference in each of five seeds, of the pooled scores."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", tables.StaleTable)
        pooled = [[tables.pooled(ZOO / f"{name}-{s}") for s in range(5)] for name in (left, right)]
    own = [[one[(one["split"] == split) & (one["control"] == "")]["value"].item() for one in group] for group in pooled]
    return np.array(own[0]) - np.array(own[1])
