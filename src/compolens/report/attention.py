"""Attention of one held-out episode: a layer and a head to pick, token roles as ticks, masked pairs without a value."""

from __future__ import annotations

import base64
import json
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from compolens import tables, zoo
from compolens.diagnosis import groups
from compolens.foundation.configs import ConfigError

MODELS = 4
"""Attention is shown of the first model of at most this many groups."""
BYTES = 100_000
"""Weights that a page holds of one model at most, one byte each; of larger models the last layers' first heads."""
LEVELS = 254
"""Steps between no weight and the largest one."""
MASKED = 255
"""The byte of a pair that the mask forbids."""


def attention(folders: Sequence[Path], classes: tuple[type, ...]) -> tuple[list[dict[str, Any]], list[str]]:
    """The attention of one held-out episode, of the first model of each group.

    Args:
        folders: the models.
        classes: as for `zoo.load`.

    Returns:
        (entries of the page, why others have none).
    """
    entries: list[dict[str, Any]] = []
    without: list[str] = []
    for group in groups.group(folders)[:MODELS]:
        trained = _first_that_loads(group.folders, classes)
        if trained is None:
            continue
        found = _of(trained)
        if found is None:
            without.append(f"{trained.name} has no site attn.hook_code or hook_pattern: (batch, head, query, key)")
        else:
            entries.append(found | {"id": f"attention-{len(entries)}", "model": trained.name})
    return entries, without


def _of(trained: zoo.TrainedModel) -> dict[str, Any] | None:
    import torch

    from compolens.activations.streams import draw

    names = list(trained.model.hook_dict)
    sites = [name for name in names if name.endswith("attn.hook_code")]
    sites = sites or [name for name in names if name.endswith("hook_pattern")]
    if not sites:
        return None
    episode = next(iter(draw(trained.task, "ood", 1, 0)))
    with torch.no_grad():
        _, cache = trained.model.run_with_cache(episode.tokens, names_filter=sites)
    layers, shape = [], None
    for site in sites:
        if site not in cache or cache[site].dim() != 4:
            continue
        weights = cache[site][0].float().cpu().numpy()
        weights = np.moveaxis(weights, -1, 0) if site.endswith("hook_code") else weights  # (head, query, key)
        shape = shape or weights.shape[1:]
        if weights.shape[1:] == shape:  # one picture has one pair of axes
            layers.append((site, weights, _allowed(trained.model, site, shape)))
    if shape is None:
        return None
    per_layer = max(1, BYTES // (len(layers) * shape[0] * shape[1]))
    heads = [(site, h, w[h], allowed) for site, w, allowed in layers for h in range(min(len(w), per_layer))]
    data = _packed(heads, {name: list(positions) for name, positions in trained.model.roles.items()})
    total = sum(len(weights) for _, weights, _ in layers)
    composition = trained.task.composition_name(int(episode.composition[0]))
    return {"json": data, "composition": composition, "shown": len(heads), "of": total}


def _allowed(model: Any, site: str, shape: tuple[int, ...]) -> np.ndarray:
    """(query, key): which pairs the mask of a layer allows; all, where the module keeps no mask of that size."""
    module = dict(model.named_modules()).get(site.rpartition(".")[0])
    mask = getattr(module, "mask", None)
    if mask is None or mask.dim() != 2 or any(have < want for have, want in zip(mask.shape, shape, strict=True)):
        return np.ones(shape, dtype=bool)
    allowed: np.ndarray = mask[: shape[0], : shape[1]].cpu().numpy().astype(bool)
    return allowed


def _packed(heads: list[tuple[str, int, np.ndarray, np.ndarray]], roles: dict[str, list[int]]) -> str:
    """JSON of the page: a byte per weight, and the names and roles of positions."""
    queries, keys = heads[0][2].shape
    maps = []
    for site, head, weights, allowed in heads:
        low = min(float(weights.min()), 0.0)
        high = max(float(weights.max()), low + 1e-9)
        steps = np.rint((weights - low) / (high - low) * LEVELS).astype(np.uint8)
        steps = np.where(allowed, steps, np.uint8(MASKED))
        data = base64.b64encode(steps.tobytes()).decode()
        maps.append({"layer": _layer(site), "head": head, "low": low, "high": high, "data": data})
    labels = {"query": position_names(queries, roles), "key": position_names(keys, roles)}
    return json.dumps({"maps": maps, "levels": LEVELS, "masked": MASKED, **labels}).replace("</", "<\\/")


def _layer(site: str) -> str:
    """The layer as people count, or the site where it is not in a numbered block."""
    words = site.split(".")
    return next((str(int(word) + 1) for word in words if word.isdigit()), site)


def position_names(length: int, roles: dict[str, list[int]]) -> list[tuple[str, int]]:
    """(role, which of that role, from 1) of each position; "other" where no role has it.

    Args:
        length: of the sequence.
        roles: role -> positions, negative ones from the end; a position in several has the one with the fewest positions.

    Returns:
        One pair a position.
    """
    of = ["other"] * length
    for name, positions in sorted(roles.items(), key=lambda item: -len(item[1])):
        for position in positions:
            if -length <= position < length:
                of[position] = name
    return [(name, of[: i + 1].count(name)) for i, name in enumerate(of)]


def _first_that_loads(folders: Sequence[Path], classes: tuple[type, ...]) -> zoo.TrainedModel | None:
    """The first model of a group; one that does not load is told."""
    for folder in folders:
        try:
            return zoo.load(folder, classes=classes)
        except ConfigError as error:
            warnings.warn(f"{folder.name}: no attention is drawn of it: {error}", tables.StaleTable, stacklevel=2)
    return None
