"""Weights trained with the official JAX code of "Attention as a hypernetwork" (2406.05816), brought into our models."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from compolens.foundation.configs import ConfigError, nearest
from compolens.models.transformer import Transformer


def reference_names(model: Transformer) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Where the reference keeps each of our parameters.

    Kernels there are (in, head, d_head) for query, key and value, ours (head, in, d_head); all others agree.

    Args:
        model: a transformer with relative positions.

    Returns:
        Our parameter's name -> (the array's name there, its axes in our order: which axis of theirs is our axis 0, 1, …).
    """
    names: dict[str, tuple[str, tuple[int, ...]]] = {
        "embed.W_E": ("embedding.kernel", (0, 1)),
        "embed.b_E": ("embedding.bias", (0,)),
        "ln_final.w": ("decoder_norm.scale", (0,)),
        "ln_final.b": ("decoder_norm.bias", (0,)),
        "unembed.W_U": ("logitdense.kernel", (0, 1)),
        "unembed.b_U": ("logitdense.bias", (0,)),
    }
    for layer in range(len(model.blocks)):
        ours, theirs = f"blocks.{layer}", f"transformer_block_{layer}"
        for norm in ("1", "2"):
            names[f"{ours}.ln{norm}.w"] = (f"{theirs}.norm{norm}.scale", (0,))
            names[f"{ours}.ln{norm}.b"] = (f"{theirs}.norm{norm}.bias", (0,))
        for letter, word in (("Q", "query"), ("K", "key"), ("V", "value")):
            names[f"{ours}.attn.W_{letter}"] = (f"{theirs}.sequence_mixer.{word}.kernel", (1, 0, 2))
            names[f"{ours}.attn.b_{letter}"] = (f"{theirs}.sequence_mixer.{word}.bias", (0, 1))
        names[f"{ours}.attn.W_O"] = (f"{theirs}.sequence_mixer.out.kernel", (0, 1, 2))
        names[f"{ours}.attn.b_O"] = (f"{theirs}.sequence_mixer.out.bias", (0,))
        names[f"{ours}.attn.bias.rel_bias"] = (f"{theirs}.relative_embedding.rel_embedding", (0, 1))
        for i, letter in enumerate(("in", "out")):
            names[f"{ours}.mlp.W_{letter}"] = (f"{theirs}.state_mixer.Dense_{i}.kernel", (0, 1))
            names[f"{ours}.mlp.b_{letter}"] = (f"{theirs}.state_mixer.Dense_{i}.bias", (0,))
    return names


def load_reference_parameters(model: Transformer, parameters: Mapping[str, Any]) -> None:
    """Copy the reference's arrays, under their flattened names, into a model of the same sizes, in place.

    The model is built with `n_ctx`, the reference's sequence length; which attention the weights were trained with is not
    written in them, so it is for the caller to know.

    >>> from compolens.models import HYLA
    >>> model = HYLA(n_layers=1, d_model=8, n_heads=2, n_ctx=4).build(d_in=3, d_out=2)
    >>> [name for name, axes in reference_names(model).values()][6:8]
    ['transformer_block_0.norm1.scale', 'transformer_block_0.norm1.bias']

    Args:
        model: receives the arrays.
        parameters: name -> array, such as ``"transformer_block_0.sequence_mixer.query.kernel"`` of shape (d_model, head,
            d_head); "/" may stand for ".".

    Raises:
        ConfigError: an array is missing, superfluous or misshapen; then nothing is changed.
    """
    if not isinstance(model, Transformer):
        raise ConfigError(f"reference parameters go into a transformer built here, not into a {type(model).__name__}")
    given = {str(name).replace("/", "."): value for name, value in parameters.items()}
    names, own = reference_names(model), dict(model.named_parameters())
    foreign = [name for name in own if name not in names]
    if foreign:
        raise ConfigError(f"the reference has no counterpart of {foreign[0]} (shape {tuple(own[foreign[0]].shape)})")
    unbiased = [name for name in names if name not in own]
    if unbiased:
        raise ConfigError(f"the model lacks {unbiased[0]}, which the reference has; build it with n_ctx=the sequence length")
    wanted = {theirs for theirs, _ in names.values()}
    missing = [ours for ours, (theirs, _) in names.items() if theirs not in given]
    if missing:
        first = missing[0]
        near = nearest(names[first][0], set(given) - wanted) if given else "none was given"
        count = "1 array is" if len(missing) == 1 else f"{len(missing)} arrays are"
        shape = tuple(own[first].shape[a] for a in np.argsort(names[first][1]))
        raise ConfigError(f"{count} missing, first {names[first][0]!r} (for {first}, shape {shape}); {near}")
    extra = sorted(set(given) - wanted)
    if extra:
        raise ConfigError(
            f"{extra[0]!r} is not a parameter of this model ({len(extra)} superfluous); {nearest(extra[0], wanted)}"
        )
    ready: dict[str, Tensor] = {}
    for ours, (theirs, axes) in names.items():
        array = torch.from_numpy(np.array(given[theirs], dtype=np.float32))
        shape = tuple(own[ours].shape[a] for a in np.argsort(axes))
        if tuple(array.shape) != shape:
            raise ConfigError(f"{theirs!r} has shape {tuple(array.shape)}, this model needs {shape}")
        if not bool(torch.isfinite(array).all()):
            raise ConfigError(f"{theirs!r} holds numbers that are not finite")
        ready[ours] = array.permute(axes)
    with torch.no_grad():
        for ours, value in ready.items():
            own[ours].copy_(value)
