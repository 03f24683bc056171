"""Who answers: architectures, one file each. Every public architecture in this folder is exported here."""

from typing import Any

from compolens.configs import classes_in
from compolens.models.base import Architecture, DoesNotApply, count_parameters
from compolens.models.reference_weights import load_reference_parameters

ARCHITECTURES: dict[str, type] = classes_in(__name__, Architecture)
__all__ = ["ARCHITECTURES", "Architecture", "DoesNotApply", "count_parameters", "load_reference_parameters", *ARCHITECTURES]  # noqa: PLE0604


def __getattr__(name: str) -> Any:
    if name in ARCHITECTURES:
        return ARCHITECTURES[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}; architectures: {', '.join(ARCHITECTURES)}")
