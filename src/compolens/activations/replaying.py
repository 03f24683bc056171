"""A recording in place of a model: what the model did on the recorded episodes, by heart, and nothing beyond that."""

from __future__ import annotations

import copy
import os
from types import SimpleNamespace
from typing import Any, NoReturn

import numpy as np
import torch
from torch import Tensor, nn

from compolens.activations.reading import UNTRAINED, NotRecorded, Recording
from compolens.hooks import HookedModel, HookPoint
from compolens.tasks import FixedEpisodes
from compolens.tasks.base import TaskFamily
from compolens.tasks.fixed.stored import Stored, StoredEpisodes


class _Part(nn.Module):
    """Holds hook points under dotted names; what a recording does not hold raises `NotRecorded`."""

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            raise NotRecorded(f"a recording holds activations, and no part {name!r} of the model") from None

    def __getitem__(self, index: int) -> Any:
        return getattr(self, str(index))

    def __len__(self) -> NoReturn:
        raise NotRecorded("a recording holds activations, and no parts of the model to count")

    def __iter__(self) -> NoReturn:
        raise NotRecorded("a recording holds activations, and no weights to go through")


class Replay(HookedModel):
    """A model that knows its answers by heart.

    Hook points show, and ``model(tokens)`` returns, what was recorded for these episodes. Other episodes, other hook points
    and every edit raise `NotRecorded`.

    Args:
        recording: what it replays.
        untrained: replay the untrained control that was recorded beside the model.
    """

    def __init__(self, recording: Recording, untrained: bool = False) -> None:
        super().__init__()
        self.recording, self.prefix = recording, f"{UNTRAINED}/" if untrained else ""
        self.cfg = SimpleNamespace(**{"use_attn_result": True, **recording.info["cfg"]})
        self.cfg.use_attn_result = True  # if it was recorded, it is there
        self.roles = recording.info["roles"]
        self.anchor = nn.Parameter(torch.empty(0), requires_grad=False)  # says on which device the model is
        for site in recording.sites:
            *path, name = site.split(".")
            place: nn.Module = self
            for part in path:
                if part not in place._modules:
                    place.add_module(part, _Part())
                place = place._modules[part]  # type: ignore[assignment]
            place.add_module(name, HookPoint())
        self.setup()

    def forward(self, tokens: Tensor, stop_at_layer: int | None = None) -> Tensor:
        """The recorded prediction.

        Args:
            tokens: (batch, seq, d_in), as recorded.
            stop_at_layer: None; a recording does not stop on the way.

        Returns:
            (batch, seq, d_out).

        Raises:
            NotRecorded: a hook edits what it sees, an episode was not recorded, or a layer is named to stop at.
        """
        if stop_at_layer is not None:
            raise NotRecorded(
                f"a recording does not stop at a layer, got stop_at_layer={stop_at_layer}; read the stream that was recorded: "
                "record(model, episodes, residual_sites(model)[LAYER])"
            )
        rows = self.recording.rows_of(tokens)
        for site in self.recording.sites:
            point = self.hook_dict[site]
            if point._forward_hooks:
                shown = self._read(site, rows)
                if not torch.equal(point(shown.clone()), shown):
                    raise NotRecorded(f"{site} was edited; a recording cannot tell what the model would have done then")
        return self._read("prediction", rows)

    def answer(self, tokens: Tensor) -> NoReturn:
        raise NotRecorded(
            "a recording holds no weights, so nothing can be trained or differentiated; measure the model itself"
        )

    def _read(self, name: str, rows: np.ndarray) -> Tensor:
        value = torch.from_numpy(np.array(self.recording[self.prefix + name][rows])).to(self.anchor.device)
        return value.float() if value.dtype == torch.float16 and self.recording.info["half"] else value

    def check_site(self, name: str) -> None:
        """Raise unless `name` was recorded."""
        if name not in self.recording.sites:
            held = ", ".join(self.recording.sites[:6]) + (", …" if len(self.recording.sites) > 6 else "")
            raise NotRecorded(f"{self.recording.folder} holds no {name!r}, only {held}; record it: … --sites {name}")

    def resume(self, resid: Tensor, layer: int, tokens: Tensor) -> NoReturn:
        raise NotRecorded("a recording cannot go on from another residual stream; measure the model itself")

    @property
    def why_no_untrained_control(self) -> str:
        """Why there is no untrained control ("" if there is one)."""
        held = self.recording.info.get(UNTRAINED)
        return "" if held else "the untrained control was not recorded; record it, too: compolens record … --untrained"

    def untrained_control(self) -> Replay:
        """What the model as initialised did on the same episodes."""
        if self.why_no_untrained_control:
            raise NotRecorded(self.why_no_untrained_control)
        return Replay(self.recording, untrained=True).to(self.anchor.device).eval()

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            raise NotRecorded(f"a recording holds activations, and no part {name!r} of the model") from None


class RecordedEpisodes(StoredEpisodes):
    """A family's own definitions, drawing nothing but the episodes that were recorded."""

    recording: Recording

    @property
    def stored(self) -> Stored:
        return self.recording

    @property
    def variants(self) -> dict[str, TaskFamily]:
        """None: other ways to show an episode were not recorded."""
        return {}


def recorded_task(task: TaskFamily, recording: Recording) -> TaskFamily:
    """The family as it is (loss, score, factors, references that know it), but for its episodes: those of the recording.

    Args:
        task: the family.
        recording: where its episodes come from.

    Returns:
        A family of the same class name.
    """
    if isinstance(task, FixedEpisodes) and not recording.info["known"]:
        return FixedEpisodes(os.fspath(recording.folder))
    kind = type(type(task).__name__, (RecordedEpisodes, type(task)), {"__module__": type(task).__module__})
    drawn = copy.copy(task)
    object.__setattr__(drawn, "__class__", kind)
    object.__setattr__(drawn, "recording", recording)
    return drawn
