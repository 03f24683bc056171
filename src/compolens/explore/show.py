"""Views in a notebook, one call each: live where the notebook can be, a picture elsewhere, and said which of the two it is.

compolens.show.attention(cache, roles=model.roles)       any TransformerLens cache
compolens.show.grid("trained_models/F-softmax-0")
compolens.show.patch("trained_models/F-softmax-0")
compolens.show.code("trained_models/F-softmax-0")
compolens.show.ladder("trained_models/F-softmax-0")
compolens.show.diff("trained_models/F-softmax-0", "trained_models/F-hypernetwork-0")
compolens.show.explore("trained_models/F-softmax-0")     the whole page, in the notebook
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from numbers import Integral
from operator import index
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from compolens.explore import views
from compolens.explore.live import Control, Live, Picture
from compolens.explore.state import COLOURS, WRITES, State
from compolens.explore.subjects import Subject
from compolens.explore.views.attention import head_drawing, mask_of
from compolens.explore.views.base import View
from compolens.explore.views.code import code as code_view
from compolens.foundation.configs import ConfigError, nearest, require, shown
from compolens.zoo.folders import TrainedModel, load

__all__ = ["attention", "code", "diff", "explore", "grid", "ladder", "parts", "patch"]

Model = str | Path | TrainedModel | Subject


def attention(
    cache: Any, roles: Mapping[str, Sequence[int]] | None = None, layer: int = 0, head: int = 0, episode: int | None = 0
) -> Live:
    """Attention maps of a cache, layer and head to pick, token roles as ticks, masked pairs grey.

    Args:
        cache: what `run_with_cache` returned, or a mapping from hook points to (batch, head, query, key) weights; those
            without a batch, (head, query, key), are of one episode.
        roles: name -> positions, as in ``model.roles``; None: those of the cache's own model, else none.
        layer: the one shown first, from 0.
        head: the one shown first, from 0.
        episode: its place in the cached batch; None: the mean of the batch, with an interval over its episodes.

    Returns:
        Something that a notebook shows: live, or as a picture.

    Raises:
        ConfigError: it is no cache, holds no attention weights, or no such layer, head or episode.
    """
    model, held = getattr(cache, "model", None), _patterns(cache)
    names = list(held)
    given = roles if roles is not None else getattr(model, "roles", {})
    layer = _place("layer", layer, len(names))
    counts = [held[name].shape[1] for name in names]
    head = _place("head", head, counts[layer])
    batch = held[names[layer]].shape[0]
    episode = None if episode is None else _place("episode", episode, batch)

    def draw(chosen: Mapping[str, Any]) -> Picture:
        name, which = names[chosen["layer"]], min(chosen["head"], counts[chosen["layer"]] - 1)
        weights = held[name] if chosen["episode"] < 0 else held[name][chosen["episode"] : chosen["episode"] + 1]
        mask = None if model is None else mask_of(model, name, weights)
        drawing = head_drawing(f"{name}, head {which}", weights[:, which], given, mask, np.zeros(len(weights)))
        told = "One episode: no claim." if len(weights) == 1 else f"Mean of {len(weights)} episodes."
        return Picture(drawing, f"{name}, head {which}. {told}")

    controls = [
        Control("layer", range(len(names)), layer),
        Control("head", range(max(counts)), head),
        Control("episode", range(-1, batch), -1 if episode is None else episode),
    ]
    return Live(draw, controls, "episode -1 is the mean of the batch")


def grid(model: Model, split: str = "ood") -> Live:
    """Scores by composition, held-out ones hatched.

    Args:
        model: a folder, or what `compolens.load` returned.
        split: whose number is printed beside it: "test" or "ood".

    Returns:
        Something that a notebook shows: live, or as a picture.
    """
    subject = _subject(model)
    return _live(lambda state: views.grid(subject, state), State(split=split), [Control("split", ("test", "ood"), split)])


def patch(model: Model, episodes: Sequence[int] | int | None = None, split: str = "ood", donor: int = -1) -> Live:
    """The model as a map, layers by token roles, coloured by what patching moves, or by how well the code is read.

    Args:
        model: a folder, or what `compolens.load` returned.
        episodes: number of an episode among those drawn, or several; None: all, with intervals over compositions.
        split: "test" or "ood".
        donor: the donor of episode i is episode i + donor.

    Returns:
        Something that a notebook shows: live, or as a picture.
    """
    subject = _subject(model)
    state = State(split=split, donor=_whole("donor", donor), chosen=_chosen(subject, split, episodes))
    controls = [Control("colour", COLOURS, COLOURS[0])]
    return _live(lambda state: views.sites(subject, state), state, controls)


def parts(model: Model, episodes: Sequence[int] | int | None = None, split: str = "ood", donor: int = -1) -> Live:
    """How far every head and MLP alone moves the answer, when its activation comes from a run under the donor's code.

    Args:
        model: a folder, or what `compolens.load` returned.
        episodes: number of an episode among those drawn, or several; None: all, with intervals over compositions.
        split: "test" or "ood".
        donor: the donor of episode i is episode i + donor.

    Returns:
        Something that a notebook shows: live, or as a picture.
    """
    subject = _subject(model)
    state = State(split=split, donor=_whole("donor", donor), chosen=_chosen(subject, split, episodes))
    return _live(lambda state: views.parts(subject, state), state, [Control("split", ("test", "ood"), split)])


def code(model: Model, episode: int = 0, split: str = "ood", at: int | None = None, role: str = "") -> Live:
    """The code of an episode, true, decoded and written, a slider per part; beside every edit, its controls.

    Args:
        model: a folder, or what `compolens.load` returned.
        episode: its number among those drawn.
        split: "test" or "ood".
        at: layer of the site; None: the explicit code where there is one.
        role: token role of the site.

    Returns:
        Something that a notebook shows: live, or as a picture.
    """
    subject = _subject(model)
    at = None if at is None else _whole("at", at)
    state = State(split=split, chosen=_chosen(subject, split, episode), at=at, role=role, write=WRITES[0])
    own = subject.features(subject.bases(state))[0].tolist()
    least, most = subject.span
    parts = [
        Control(name, (min(least[i], own[i]), max(most[i], own[i])), own[i]) for i, name in enumerate(subject.part_names())
    ]
    names = [part.name for part in parts]

    def draw(chosen: Mapping[str, Any]) -> Picture:
        moved = tuple((i, float(chosen[n])) for i, n in enumerate(names) if abs(chosen[n] - own[i]) > 1e-6)
        return _picture(code_view(subject, replace(state, parts=moved)))

    return Live(draw, parts, "move a part: it is written at the site, and the answers follow or do not")


def ladder(
    model: Model,
    episodes: Sequence[int] | int | None = None,
    split: str = "ood",
    at: int | None = None,
    role: str = "",
    search: bool = False,
) -> Live:
    """What the answers would be if more and more of the model's own work were done right, rung by rung.

    Args:
        model: a folder, or what `compolens.load` returned.
        episodes: number of an episode among those drawn, or several; None: all, with intervals over compositions.
        split: "test" or "ood".
        at: layer of the site where codes are written; None: the explicit code where there is one.
        role: token role of the site.
        search: whether the best code is searched for, which takes seconds.

    Returns:
        Something that a notebook shows: live, or as a picture.
    """
    subject = _subject(model)
    at = None if at is None else _whole("at", at)
    state = State(split=split, chosen=_chosen(subject, split, episodes), at=at, role=role, search=search)
    names = {f"{site.layer}: {site.role}": site for site in subject.sites}
    own = subject.site(state)

    def draw(chosen: Mapping[str, Any]) -> Picture:
        site = names[chosen["site"]]
        return _picture(views.ladder(subject, replace(state, at=site.layer, role=site.role)))

    return Live(draw, [Control("site", tuple(names), f"{own.layer}: {own.role}")])


def diff(model: Model, other: Model, split: str = "ood", layer: int = 0, head: int = 0) -> Live:
    """Two models, or two steps of one training, on the same episodes.

    Args:
        model: the first; differences are its scores minus the other's.
        other: the second.
        split: whose difference is printed: "test" or "ood".
        layer: of the attention maps that are compared, where both models have such.
        head: likewise.

    Returns:
        Something that a notebook shows: live, or as a picture.
    """
    one, two = _subject(model), _subject(other)
    state = State(split=split, layer=_whole("layer", layer), head=_whole("head", head))
    controls = [Control("layer", range(max(1, len(one.patterns))), state.layer), Control("split", ("test", "ood"), split)]
    return _live(lambda state: views.diff(one, two, state), state, controls)


def explore(*folders: str | Path, height: int = 900) -> Any:
    """The page of `compolens explore` in a notebook's cell.

    Args:
        folders: model folders, or folders of model folders.
        height: of the cell in pixels.

    Returns:
        What the notebook shows; its ``stop()`` ends the page's server.
    """
    from compolens.explore.page.notebook import inside

    return inside([Path(folder) for folder in folders], height)


# ---- common to all ---------------------------------------------------------------------------------------------------
def _subject(model: Model) -> Subject:
    if isinstance(model, Subject):
        return model
    return Subject(model if isinstance(model, TrainedModel) else load(model))


def _chosen(subject: Subject, split: str, episodes: Sequence[int] | int | None) -> tuple[int, ...]:
    if episodes is None:
        return tuple(range(len(subject.drawn(split).tokens)))
    try:
        return tuple(map(index, [episodes] if isinstance(episodes, Integral) else episodes))  # type: ignore[arg-type]
    except TypeError:
        raise ConfigError(f"episodes are whole numbers, such as 3 or range(8), got {shown(episodes)}") from None


def _whole(what: str, value: Any) -> int:
    require(isinstance(value, Integral), f"{what} must be a whole number, got {shown(value)}")
    return index(value)


def _place(what: str, value: Any, count: int) -> int:
    """A number from 0 of one of so many in a cache."""
    fits = isinstance(value, Integral) and 0 <= index(value) < count
    require(fits, f"{what} {shown(value)}: the cache holds {count}; allowed: " + ("0" if count == 1 else f"0 to {count - 1}"))
    return index(value)


def _patterns(cache: Any) -> dict[str, Tensor]:
    """Hook point -> (batch, head, query, key), of whatever a cache holds of attention weights."""
    held = getattr(cache, "cache_dict", cache)
    if isinstance(held, Tensor | np.ndarray):
        raise ConfigError(
            f"show.attention takes a cache, got weights of shape {tuple(held.shape)}; "
            'type show.attention({"blocks.0.attn.hook_pattern": weights})'
        )
    name = "trained.model" if hasattr(held, "model") else "model"
    require(
        isinstance(held, Mapping),
        f"show.attention takes a cache, got a {type(held).__name__}; "
        f"type _, cache = {name}.run_with_cache(tokens), then show.attention(cache)",
    )
    found = {name: torch.as_tensor(held[name]) for name in held if str(name).endswith("hook_pattern")}
    if not found:
        raise ConfigError(f"the cache holds no attention weights (…hook_pattern); {nearest('attn.hook_pattern', held)}")
    for name, weights in found.items():
        shape = tuple(weights.shape)
        require(len(shape) in (3, 4), f"{name} is {shape}; allowed: (batch, head, query, key), or (head, query, key)")
    return {name: weights if weights.ndim == 4 else weights[None] for name, weights in found.items()}


def _live(view: Callable[[State], View], state: State, controls: list[Control]) -> Live:
    """Controls named like settings of the state."""
    return Live(lambda chosen: _picture(view(replace(state, **dict(chosen)))), controls)


def _picture(view: View) -> Picture:
    return Picture(view.drawing, f"{view.what}: {view.number}. {view.drawing.caption}", view)
