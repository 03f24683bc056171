"""Networks that were not built here: any `torch.nn.Module`, with hook points at the submodules that the caller names.

Nothing is copied and nothing stays attached: torch's forward hooks are put on the named submodules only while a hook point is
in use, so that otherwise the network computes what it computes without us, bit for bit.
"""

from typing import Any

from compolens.foundation.moved import elsewhere
from compolens.zoo.adopted.architecture import FAILURES, NO_UNTRAINED_CONTROL, Adopted
from compolens.zoo.adopted.model import AdoptedModel

__all__ = ["FAILURES", "NO_UNTRAINED_CONTROL", "Adopted", "AdoptedModel"]


def __getattr__(name: str) -> Any:
    return elsewhere(__name__, name)
