"""What is asked: task families, one file each. Every public family (and part of one) in this folder is exported here."""

from typing import Any

from compolens.foundation.configs import classes_in
from compolens.tasks.base import TaskFamily, TaskPart
from compolens.tasks.episodes import SPLITS, Episodes, check_drawing

FAMILIES: dict[str, type] = classes_in(__name__, TaskFamily)
PARTS: dict[str, type] = classes_in(__name__, TaskPart)
_NAMES = {**FAMILIES, **PARTS}
__all__ = ["FAMILIES", "PARTS", "SPLITS", "Episodes", "TaskFamily", "TaskPart", "check_drawing", *_NAMES]  # noqa: PLE0604


def __getattr__(name: str) -> Any:
    if name in _NAMES:
        return _NAMES[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}; there are: {', '.join(_NAMES)}")
