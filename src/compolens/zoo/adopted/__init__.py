"""Networks that were not built here: any `torch.nn.Module`, with hook points at the submodules that the caller names.

Nothing is copied and nothing stays attached: torch's forward hooks are put on the named submodules only while a hook point is
in use, so that otherwise the network computes what it computes without us, bit for bit.
"""

from compolens.zoo.adopted.architecture import FAILURES, NO_TWIN, Adopted
from compolens.zoo.adopted.model import AdoptedModel

__all__ = ["FAILURES", "NO_TWIN", "Adopted", "AdoptedModel"]
