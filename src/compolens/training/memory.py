"""What a run takes in memory at the least, before any of it is taken."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import torch

from compolens.foundation.memory import require_room
from compolens.models.base import Architecture
from compolens.models.transformer import TransformerArchitecture
from compolens.tasks.base import TaskFamily

PER_MODULE = 2000
"""Bytes that an empty module of torch takes in Python, rounded down."""
SMALL = 10**8
"""Where layers times the square of the largest size is less, no model is estimated: it takes some GB at most."""
UNCOUNTED = 2.0**63
"""Bytes of a tensor that has more entries than torch can count."""


def check_model(architecture: Architecture, dimensions: dict[str, Any]) -> None:
    """Raise `TooLarge` where a model takes more memory than this machine has.

    Args:
        architecture: What builds it.
        dimensions: What `Architecture.build` is called with.
    """
    settings = _sizes(architecture)
    widths = [dimensions[name] or 1 for name in ("d_in", "d_out", "seq")]
    widest = max([*widths, *(value for name, value in settings.items() if name != "n_layers")])
    if not settings or settings.get("n_layers", 1) * widest**2 < SMALL:
        return
    size = taken(architecture, dimensions)
    if size is not None:
        name = max(settings, key=lambda name: settings[name])
        advice = f"its largest setting is {name}={settings[name]}, on {widths[2]} tokens of width {widths[0]}; choose less"
        require_room(size, f"this {type(architecture).__name__}", advice)


def check_training(architecture: Architecture, task: TaskFamily, batch_size: int, evaluation_episodes: int) -> None:
    """Raise `TooLarge` where a batch, its activations, or the scores of one evaluation take more memory than there is.

    Args:
        architecture: What is trained; its layers, width and heads count.
        task: The family whose episodes it sees.
        batch_size: Episodes in one update.
        evaluation_episodes: Episodes that one evaluation scores in each split.
    """
    seq, layers = task.seq, getattr(architecture, "n_layers", None) or 1
    width = max(task.d_in, getattr(architecture, "d_model", 0))
    numbers = batch_size * seq * (task.d_in + task.d_out + layers * width)
    if isinstance(architecture, TransformerArchitecture):  # a score for every pair of positions, in every head
        numbers += layers * batch_size * architecture.n_heads * seq**2
    what = f"one update with batch_size={batch_size}, {seq} tokens an episode and {layers} layer(s)"
    require_room(4 * numbers, what, "choose a smaller batch_size, shorter episodes or a smaller model")
    scored = 4 * 3 * 8 * evaluation_episodes  # error, weight and composition of each, at the end of four times as many
    require_room(scored, f"evaluation_episodes={evaluation_episodes}", "choose fewer; 1,024 is usual")


def _sizes(architecture: Architecture) -> dict[str, int]:
    """The settings that are whole numbers."""
    named = {field.name: getattr(architecture, field.name) for field in dataclasses.fields(architecture)}
    return {name: value for name, value in named.items() if isinstance(value, int) and not isinstance(value, bool)}


def taken(architecture: Architecture, dimensions: dict[str, Any]) -> float | None:
    """Bytes of a model, at least. Layers are all alike: two tell what any number takes.

    Args:
        architecture: What builds it.
        dimensions: What `Architecture.build` is called with.

    Returns:
        Bytes of parameters, buffers and modules, `UNCOUNTED` where torch cannot count them; None where they cannot be told.
    """
    layers = getattr(architecture, "n_layers", 1)
    if layers <= 2 or "n_layers" not in _sizes(architecture):
        return _counted(architecture, dimensions)
    one, two = (_counted(dataclasses.replace(architecture, n_layers=n), dimensions) for n in (1, 2))  # type: ignore[call-arg]
    return None if one is None or two is None else one + (layers - 1) * (two - one)


def _counted(architecture: Architecture, dimensions: dict[str, Any]) -> float | None:
    """The same of a model that is built without taking memory for its numbers."""
    mask = dimensions["mask"]
    shapes = dimensions | {"mask": None if mask is None else mask.to("meta")}
    try:
        with torch.device("meta"):
            model = architecture.build(**shapes)
    except (RuntimeError, OverflowError, TypeError) as error:
        uncountable = isinstance(error, OverflowError) or any(w in str(error) for w in ("overflow", "Overflow", "negative"))
        return UNCOUNTED if uncountable else None
    entries = [tensor for tensors in (model.parameters(), model.buffers()) for tensor in tensors]
    return sum(math.prod(tensor.shape) * tensor.element_size() for tensor in entries) + PER_MODULE * len(list(model.modules()))
