"""What is put onto models that are not ours: coefficient transfer on causal language models (2511.20194)."""

from compolens.language_models.transfer import (
    OutputTransferAdapter,
    RelativeTransferAdapter,
    TransferAdapter,
    fit,
    target_loss,
)
from compolens.language_models.wrapped import Batch, Blocks, load_language_model

__all__ = [
    "Batch",
    "Blocks",
    "OutputTransferAdapter",
    "RelativeTransferAdapter",
    "TransferAdapter",
    "fit",
    "load_language_model",
    "target_loss",
]
