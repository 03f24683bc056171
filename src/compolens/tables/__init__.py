"""Tidy tables with provenance beside the model they measure: save, read, gather; and intervals over seeds and compositions.

A table is ``<model>/tables/<probe>.csv`` with columns metric, value, lo, hi, split, site, role, control, n and whatever else
it needs. The .json beside it holds the sha256 of the weights and of the table, the probe's version and a digest of its code,
and the arguments; a table is stale when the weights or the numbers of its probe changed since, and unusable when it is not
what the probe wrote. Never imports torch.
"""

from typing import Any

from compolens.foundation.model_folders import find, find_maps, finished
from compolens.foundation.moved import elsewhere
from compolens.tables.gathering import gather, pooled, settings, with_untrained_control
from compolens.tables.reading import found_once, has, read, read_episodes, read_once, why_not, why_stale
from compolens.tables.rows import (
    COLUMNS,
    IN_CONTEXT,
    WEAK,
    at_last_step,
    at_place,
    ceiling_of,
    not_available,
    nth_layer,
    row,
    worth_drawing,
)
from compolens.tables.saved import (
    CHANGED,
    OlderIntervals,
    StaleTable,
    UnusableTable,
    again,
    command_of,
    exists,
    file_digest,
    lacks,
    names,
    path_of,
    provenance_of,
    save,
)

__all__ = [
    "CHANGED", "COLUMNS", "IN_CONTEXT", "WEAK", "OlderIntervals", "StaleTable", "UnusableTable", "at_last_step",
    "again", "at_place", "ceiling_of", "command_of", "exists", "file_digest", "find", "find_maps", "finished", "found_once",
    "gather", "has", "lacks", "names", "not_available", "nth_layer", "path_of", "pooled", "provenance_of", "read",
    "read_episodes", "read_once", "row", "save", "settings", "why_not", "why_stale", "with_untrained_control",
    "worth_drawing",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    return elsewhere(__name__, name)
