"""Attention with token roles as ticks and masked pairs grey; of one episode, or the mean of a set."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from compolens.explore.sets import Number, mean
from compolens.explore.state import State
from compolens.explore.subjects import Subject
from compolens.explore.views.base import View, extent, opening
from compolens.figures import Band, Drawing, HeatMap, Line, Panel
from compolens.foundation.configs import DoesNotApply, require

EVERY = 8
"""Positions between two ticks of one role."""


# ---- positions -------------------------------------------------------------------------------------------------------
def labels_of(count: int, roles: Mapping[str, Sequence[int]]) -> list[str]:
    """What positions are called.

    Args:
        count: positions there are.
        roles: name -> positions; negative ones count from the end.

    Returns:
        (count,) role and number within it, from 0; "position i" where no role has it.
    """
    found = [f"position {i}" for i in range(count)]
    for role, positions in roles.items():
        for i, position in enumerate(positions):
            if -count <= position < count and found[position].startswith("position"):
                found[position] = f"{role} {i}"
    return found


def ticks_of(labels: Sequence[str]) -> dict[str, str]:
    """The ticks of an axis of positions.

    Args:
        labels: as `labels_of` returns them.

    Returns:
        Label -> text, for the first position of every role, and every eighth after it by its number.
    """
    shown = {}
    for label in labels:
        role, _, number = label.rpartition(" ")
        if int(number) % EVERY == 0:
            shown[label] = role if number == "0" else number
    return shown


# ---- from arrays -----------------------------------------------------------------------------------------------------
def head_panel(
    title: str, weights: np.ndarray, labels: Sequence[str], allowed: np.ndarray | None, measure: str, signed: bool
) -> Panel:
    """The attention map of one head.

    Args:
        title: of the panel.
        weights: (query, key).
        labels: (key,) what positions are called.
        allowed: (query, key) bool, False where a pair is masked and shown grey; None: nothing is masked.
        measure: what the weights are.
        signed: colours diverge from 0.

    Returns:
        A heat map.
    """
    shown = weights if allowed is None else np.where(allowed, weights, np.nan)
    data = pd.DataFrame(
        [(labels[k], labels[q], shown[q, k]) for q in range(shown.shape[0]) for k in range(shown.shape[1])],
        columns=["key", "query", "weight"],
    )
    heat = HeatMap(data, "key", "query", "weight", centre=0.0 if signed else None, label=measure, ticks=ticks_of(labels))
    return Panel(title, "key", "query", (heat,))


def heads_drawing(claim: str, weights: Tensor, roles: Mapping[str, Sequence[int]], mask: Tensor | None) -> Drawing:
    """Thumbnails of every head.

    Args:
        claim: of the figure.
        weights: (episode, head, query, key); their mean over episodes is shown.
        roles: name -> positions; negative ones count from the end.
        mask: (query, key) bool, False where a pair is masked; None: nothing is masked.

    Returns:
        A panel per head.
    """
    labels = labels_of(weights.shape[-1], roles)
    allowed = None if mask is None else mask.cpu().numpy()
    means = weights.double().mean(0).cpu().numpy()
    panels = [head_panel(f"head {h}", one, labels, allowed, "weight", bool((means < 0).any())) for h, one in enumerate(means)]
    return Drawing(claim, panels, columns=min(4, len(panels)))


def head_drawing(
    claim: str, weights: Tensor, roles: Mapping[str, Sequence[int]], mask: Tensor | None, composition: np.ndarray
) -> Drawing:
    """One head: its map, and what the answers read from each key, with an interval over a set.

    Args:
        claim: of the figure.
        weights: (episode, query, key).
        roles: name -> positions; negative ones count from the end.
        mask: (query, key) bool, False where a pair is masked; None: nothing is masked.
        composition: (episode,) numbers, over which intervals run.

    Returns:
        The map, and, where a role is called readout, a panel of the weights by key.
    """
    labels = labels_of(weights.shape[-1], roles)
    allowed = None if mask is None else mask.cpu().numpy()
    each = weights.double().cpu().numpy()
    measure = "weight" if len(each) == 1 else "mean weight"
    panels = [head_panel("", each.mean(0), labels, allowed, measure, bool((each.mean(0) < 0).any()))]
    asking = [p % weights.shape[1] for p in roles.get("readout", []) if -weights.shape[1] <= p < weights.shape[1]]
    if asking:
        middle, lo, hi = mean(each[:, asking].mean(1), composition)
        data = pd.DataFrame({"key": np.arange(len(middle)), "weight": middle, "lo": lo, "hi": hi})
        marks: list[Any] = [Line(data, "key", "weight", label="read by the answers")]
        if np.isfinite(lo).any():
            marks.insert(0, Band(data, "key", "lo", "hi", label="read by the answers", color=None))
        panels.append(Panel(f"{measure} by key, mean over the answers' queries", "position of the key", "", marks))
    return Drawing(claim, panels, columns=2)


# ---- from a model ----------------------------------------------------------------------------------------------------
def pattern_of(subject: Subject, state: State) -> tuple[str, Tensor, Tensor | None]:
    """The attention weights of the chosen layer on the chosen episodes.

    Args:
        subject: the model under study.
        state: what the reader has chosen.

    Returns:
        (hook point, weights (episode, head, query, key), mask (query, key) or None).

    Raises:
        DoesNotApply: the model has no attention weights.
        ConfigError: there is no such layer, or its weights have another shape.
    """
    if not subject.patterns:
        raise DoesNotApply(f"{subject.trained.name} has no hook point of attention weights (…hook_pattern)")
    require(0 <= state.layer < len(subject.patterns), f"layer {state.layer}: there are {len(subject.patterns)} with attention")
    name = subject.patterns[state.layer]
    with torch.no_grad():
        _, cache = subject.model.run_with_cache(subject.bases(state).tokens, names_filter=name)
    weights = cache[name]
    require(weights.ndim == 4, f"{name} is {tuple(weights.shape)}, not (batch, head, query, key)")
    return name, weights, mask_of(subject.model, name, weights)


def mask_of(model: Any, name: str, weights: Tensor) -> Tensor | None:
    """The mask of the attention that a hook point belongs to.

    Args:
        model: the network.
        name: the hook point of attention weights.
        weights: (..., query, key), whose size the mask is cut to.

    Returns:
        (query, key) bool, False where a pair is masked; None where nothing is masked, or it is not known.
    """
    modules = dict(model.named_modules())
    mask = getattr(modules.get(name.rpartition(".")[0]), "mask", None)
    if not isinstance(mask, Tensor):
        return None
    return mask[: weights.shape[-2], : weights.shape[-1]]


def heads(subject: Subject, state: State) -> View:
    """All heads of a layer; the number is the weight that the answers give to the context, mean over heads.

    Args:
        subject: the model under study.
        state: what the reader has chosen.

    Returns:
        The view.
    """
    name, weights, mask = pattern_of(subject, state)
    drawing = heads_drawing(f"Attention, {name}: {subject.title}", weights, subject.model.roles, mask)
    drawing = Drawing(drawing.claim, drawing.panels, extent(subject, state), drawing.columns)
    number, lines = _number(subject, state, weights.mean(1)), _python(subject, state, name, ".mean(1)")
    cells = {(h, 0): (h,) for h in range(weights.shape[1])}
    return View(drawing, number, "weight of the answers on the context, mean over heads", lines, cells)


def attention(subject: Subject, state: State) -> View:
    """One head; the number is the weight that the answers give to the context, summed over keys.

    Args:
        subject: the model under study.
        state: what the reader has chosen.

    Returns:
        The view.

    Raises:
        ConfigError: the layer has no such head.
    """
    name, weights, mask = pattern_of(subject, state)
    require(0 <= state.head < weights.shape[1], f"head {state.head}: there are {weights.shape[1]}")
    one = weights[:, state.head]
    claim = f"Attention, {name}, head {state.head}: {subject.title}"
    drawing = head_drawing(claim, one, subject.model.roles, mask, subject.bases(state).composition.cpu().numpy())
    drawing = Drawing(drawing.claim, drawing.panels, extent(subject, state), drawing.columns)
    lines = _python(subject, state, name, f"[:, {state.head}]")
    return View(drawing, _number(subject, state, one), "weight of the answers on the context", lines, {})


def _number(subject: Subject, state: State, weights: Tensor) -> Number:
    roles, composition = subject.model.roles, subject.bases(state).composition.cpu().numpy()
    each = weights[:, roles["readout"]][:, :, roles["context"]].double().sum(2).mean(1)
    middle, lo, hi = mean(each[:, None].cpu().numpy(), composition)
    return Number(float(middle[0]), float(lo[0]), float(hi[0]), "" if state.single else "set")


def _python(subject: Subject, state: State, name: str, pick: str) -> str:
    lines = [
        *opening(subject, state),
        "with torch.no_grad():",
        f"    _, cache = model.run_with_cache(episodes.tokens, names_filter={name!r})",
        f"weights = cache[{name!r}]{pick}  # episode, query, key",
        'print(float(weights[:, model.roles["readout"]][:, :, model.roles["context"]].double().sum(2).mean()))',
    ]
    return "\n".join(lines) + "\n"
