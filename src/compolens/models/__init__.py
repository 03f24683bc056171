"""Who answers: architectures, one file each. Every public architecture (and part of one) in this folder is exported here."""

from typing import Any

from compolens.foundation.configs import classes_in
from compolens.models.base import Architecture, DoesNotApply, Part, count_parameters
from compolens.models.jax_weights import load_reference_parameters

ARCHITECTURES: dict[str, type] = classes_in(__name__, Architecture)
PARTS: dict[str, type] = classes_in(__name__, Part)
_NAMES = {**ARCHITECTURES, **PARTS}
__all__ = [  # noqa: PLE0604
    "ARCHITECTURES",
    "PARTS",
    "Architecture",
    "DoesNotApply",
    "Part",
    "count_parameters",
    "load_reference_parameters",
    *_NAMES,
]


def __getattr__(name: str) -> Any:
    if name in _NAMES:
        return _NAMES[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}; there are: {', '.join(_NAMES)}")
