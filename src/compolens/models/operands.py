"""How elementwise functions of the models meet matrix products of lower precision.

In mixed-precision training (`Run.precision`) matrix products are taken in bfloat16. Normalisations and the softmax are
computed in single precision: `full` widens what a product left in bfloat16. `as_operand` rounds what the next products would
round anyway, once instead of at every use. Outside mixed precision both return what they are given.
"""

from __future__ import annotations

import torch
from torch import Tensor


def full(x: Tensor) -> Tensor:
    """The tensor in single precision if it is narrower, else as it is."""
    return x.float() if x.dtype in (torch.bfloat16, torch.float16) else x


def as_operand(x: Tensor) -> Tensor:
    """The tensor in the precision in which products are taken now: bfloat16 under autocast, else as it is."""
    kind = x.device.type
    return x.to(torch.get_autocast_dtype(kind)) if torch.is_autocast_enabled(kind) else x
