"""What hook points saw, beside the codes that caused it: `record` streams activations, `intervene` edits them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, overload

import numpy as np
import torch
from torch import Tensor

from compolens.activations.reading import Recording
from compolens.activations.writing import Writer
from compolens.foundation.configs import ConfigError, require
from compolens.foundation.memory import require_room
from compolens.foundation.moved import renamed
from compolens.foundation.progress import progress
from compolens.hooks import HookedModel
from compolens.tasks.base import TaskFamily
from compolens.tasks.episodes import Episodes
from compolens.tasks.fixed.stored import StoredEpisodes
from compolens.training import Run

BATCH = 256
TAKES = 'record takes episodes, such as next(draw(task, "ood", 8, 0)), or batches of them'


class Activations(NamedTuple):
    """One batch of what was seen.

    Args:
        sites: hook point -> detached activation.
        prediction: (batch, seq, d_out), the model's.
        episodes: those that caused both.
    """

    sites: dict[str, Tensor]
    prediction: Tensor
    episodes: Episodes


Listed = Episodes | Activations | Iterable[Episodes | Activations]
"""One batch or several."""
Batches = Listed | Mapping[str, Listed]


def draw(
    task: TaskFamily,
    split: str,
    n: int,
    seed: int | str,
    device: torch.device | str = "cpu",
    compositions: Sequence[int] | None = None,
    batch: int = BATCH,
) -> Iterator[Episodes]:
    """Episodes of a split in batches, a pure function of (seed, split): never what a training drew from its own seed.

    Of a family whose episodes are stored, each at most once, hence fewer where fewer are stored: `StoredEpisodes.deal`.

    Args:
        task: the family.
        split: "train", "test" or "ood".
        n: episodes in all, at least 1.
        seed: of the measurement, and what for ("0/score").
        device: where the episodes are put; they are drawn on the CPU.
        compositions: only these of the split's compositions (None: all).
        batch: most episodes at once.

    Returns:
        Batches of episodes.

    Raises:
        ConfigError: n is below 1, or what is given is no family.
    """
    if not isinstance(task, TaskFamily):
        raise ConfigError(f"draw takes a task family, such as trained.task; got {type(task).__name__}")
    require(n >= 1, f"need at least one episode, got {n}")
    require(batch >= 1, f"need at least one episode at once, got batch={batch}")
    kept = 8 * (3 + len(task.answers) * task.d_out)  # the answers, and whose they are
    require_room(n * kept, f"episodes={n}", "ask for fewer")
    if isinstance(task, StoredEpisodes):
        yield from (episodes.to(device) for episodes in task.deal(n, split, seed, batch, compositions))
        return
    for step, start in enumerate(progress(range(0, n, batch), f"{split} episodes, batch")):
        rng = task.rng(f"measure/{seed}", split, step)
        yield task.sample(min(batch, n - start), split, rng, compositions).to(device)


@overload
def record(model: HookedModel, batches: Batches, sites: str | Sequence[str], to: None = None) -> Iterator[Activations]: ...


@overload
def record(
    model: HookedModel,
    batches: Batches,
    sites: str | Sequence[str],
    to: str | Path,
    *,
    run: Run | None = None,
    step: int | None = None,
    untrained: HookedModel | None = None,
    half: bool = False,
) -> Recording: ...


def record(
    model: HookedModel,
    batches: Batches,
    sites: str | Sequence[str],
    to: str | Path | None = None,
    *,
    run: Run | None = None,
    step: int | None = None,
    untrained: HookedModel | None = None,
    half: bool = False,
    twin: HookedModel | None = None,
) -> Iterator[Activations] | Recording:
    """The activations at hook points: as a stream, or in a folder.

    A stream gives one `Activations` per batch, detached, of which nothing accumulates. With `to`, a new folder gets one .npy
    per hook point beside the episodes.

    Args:
        model: in evaluation mode.
        batches: episodes, one batch or several, or what was recorded of them in this model, which is not computed again where
            it has the sites; to a folder: {split: episodes}, such as
            ``{s: draw(task, s, 4096, 0) for s in ("train", "ood")}``.
        sites: names of hook points, or one name.
        to: the folder (None: a stream).
        run: what the model came from (``trained.run``), so that the folder knows its task.
        step: of its weights (``trained.step``).
        untrained: the untrained control, recorded beside it.
        half: activations as float16.
        twin: `untrained`, as it was called before version 0.2.

    Returns:
        The stream, or the `Recording` that was written.

    Raises:
        ConfigError: several splits without a folder, a folder without splits, or what are no episodes.
    """
    _check_model(model, "record")
    sites = [sites] if isinstance(sites, str) else sites
    if twin is not None:
        renamed("record(twin=…)", "record(untrained=…)")
        untrained = twin
    if to is None:
        if isinstance(batches, Mapping):
            raise ConfigError("several splits are recorded to a folder: record(…, to=FOLDER)")
        return _stream(model, _listed(batches), sites)
    if not isinstance(batches, Mapping):
        raise ConfigError(
            'a recording says which split its episodes are of: record(model, {"ood": batches}, sites, to=FOLDER)'
        )
    with Writer(to, model, sites, run, step, untrained, half) as writer:
        for split, drawn in batches.items():
            for batch in _stream(model, _listed(drawn), writer.sites):
                writer.add(split, batch.episodes, batch.prediction, batch.sites)
                if untrained is not None:
                    (same,) = _stream(untrained, [batch.episodes], writer.sites)
                    writer.add_untrained(same.prediction, same.sites)
    return Recording(to)


def _listed(batches: Listed) -> Iterable[Episodes | Activations]:
    if isinstance(batches, Episodes | Activations):
        return [batches]
    many = isinstance(batches, Iterable) and not isinstance(batches, Tensor | np.ndarray | str)
    require(many, f"{TAKES}, got a {type(batches).__name__}")
    return batches


@torch.no_grad()
def _stream(model: HookedModel, batches: Iterable[Episodes | Activations], sites: Sequence[str]) -> Iterator[Activations]:
    for site in sites:
        model.check_site(site)
    for batch in batches:
        if isinstance(batch, Activations) and batch.sites.keys() >= set(sites):
            yield batch._replace(sites={site: batch.sites[site] for site in sites})
            continue
        episodes = batch.episodes if isinstance(batch, Activations) else batch
        require(isinstance(episodes, Episodes), f"{TAKES}, got a {type(episodes).__name__} among them")
        prediction, cache = model.run_with_cache(episodes.tokens, names_filter=list(sites))
        yield Activations({site: cache[site] for site in sites}, prediction, episodes)


@torch.no_grad()
def intervene(
    model: HookedModel,
    episodes: Episodes | Tensor | np.ndarray,
    edits: Mapping[str, Tensor | np.ndarray | Callable],
) -> Tensor:
    """The prediction when activations are replaced.

    Args:
        model: the model.
        episodes: a batch of episodes, or its tokens alone.
        edits: hook point -> what takes the activation's place: a tensor of its shape (or one that broadcasts to it), or a
            function of it, ``f(x)`` or, as in TransformerLens, ``f(x, hook)``. A function gets a copy, so editing it in
            place is safe; where it returns None, the copy as it left it takes the place.

    Returns:
        (batch, seq, d_out).

    Raises:
        ConfigError: there is no such hook point, or a replacement does not fit its activation.
    """
    _check_model(model, "intervene")
    require(
        isinstance(edits, Mapping),
        f"intervene: edits must be a mapping from hook points to what is put there, got a {type(edits).__name__}; "
        'type intervene(model, episodes, {"blocks.0.hook_resid_post": lambda x: 0 * x})',
    )
    tokens = getattr(episodes, "tokens", episodes)
    return model.run_with_hooks(tokens, fwd_hooks=[(site, _hook_of(site, edit)) for site, edit in edits.items()])


def _check_model(model: Any, verb: str) -> None:
    got = type(model).__name__
    require(
        hasattr(model, "run_with_hooks"),
        f"{verb} takes a model, got a {got}" + (f"; type {verb}(trained.model, …)" if hasattr(model, "model") else ""),
    )


def _hook_of(site: str, edit: Tensor | np.ndarray | Callable) -> Callable:
    """The TransformerLens hook that does an edit."""
    if isinstance(edit, Tensor | np.ndarray):
        replacement = torch.as_tensor(edit)
        return lambda tensor, hook: _put_in_place(site, replacement, tensor)
    got = type(edit).__name__
    require(callable(edit), f"intervene: the edit of {site!r} must be a tensor or a function, got {got}")
    call = _as_hook(edit)

    def apply(tensor: Tensor, hook: Any) -> Tensor:
        copy = tensor.clone()
        edited = call(copy, hook)
        if edited is None:
            return copy
        if isinstance(edited, Tensor) and edited.shape == tensor.shape:
            return edited.to(tensor)
        fits = isinstance(edited, Tensor | np.ndarray | int | float)
        got = f"intervene: the edit of {site!r} returned a {type(edited).__name__}"
        require(fits, f"{got}; return a tensor of the activation's shape, or None where it is edited in place")
        return _put_in_place(site, torch.as_tensor(edited), tensor)

    return apply


def _as_hook(edit: Callable) -> Callable[[Tensor, Any], Any]:
    """An edit as a function of an activation and its hook point. A second argument with a default is the function's own
    (``lambda x, scale=2: …``) unless it is called hook."""
    try:
        parameters = inspect.signature(edit).parameters.values()
    except (ValueError, TypeError):  # torch's own functions do not tell
        return lambda tensor, hook: edit(tensor)
    if any(p.name == "hook" and p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY) for p in parameters):
        return lambda tensor, hook: edit(tensor, hook=hook)
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    if sum(p.kind in positional and p.default is p.empty for p in parameters) == 2:
        return edit
    return lambda tensor, hook: edit(tensor)


def _put_in_place(site: str, replacement: Tensor, tensor: Tensor) -> Tensor:
    try:
        return replacement.to(tensor).expand_as(tensor).clone()
    except RuntimeError as error:
        shapes = f"{tuple(replacement.shape)} does not fit the activation {tuple(tensor.shape)}"
        raise ConfigError(f"intervene: the replacement {shapes} at {site!r}; give that shape, or a function of it") from error
