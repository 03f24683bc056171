"""What is asked: task families, one file each. Every public family in this folder is exported here."""

from typing import Any

from compolens.configs import classes_in
from compolens.tasks.base import SPLITS, Episodes, TaskFamily

FAMILIES: dict[str, type] = classes_in(__name__, TaskFamily)
__all__ = ["FAMILIES", "SPLITS", "Episodes", "TaskFamily", *FAMILIES]  # noqa: PLE0604


def __getattr__(name: str) -> Any:
    if name in FAMILIES:
        return FAMILIES[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}; families: {', '.join(FAMILIES)}")
