"""What an ideal or an algorithmic learner would answer: never trained, one file each, answering the models' episodes."""

from typing import Any

from compolens.foundation.configs import classes_in
from compolens.references.base import Reference

REFERENCES: dict[str, type] = classes_in(__name__, Reference)
__all__ = ["REFERENCES", "Reference", *REFERENCES]  # noqa: PLE0604


def __getattr__(name: str) -> Any:
    if name in REFERENCES:
        return REFERENCES[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}; references: {', '.join(REFERENCES)}")
