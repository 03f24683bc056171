"""A recording, reopened: arrays by name, of which only what is touched is read, and rows by an episode's tokens."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from compolens.foundation import digests, files
from compolens.foundation.configs import ConfigError, DoesNotApply, nearest, require
from compolens.tasks.fixed.stored import Stored

MANIFEST, UNFINISHED, UNTRAINED = "recording.json", "recording.unfinished", "untrained"
EPISODE_ARRAYS = ("tokens", "targets", "composition", "prediction")
CHUNK = 4096


class NotRecorded(DoesNotApply, AttributeError):
    """Asked for something that only the model itself could answer."""


def is_recording(folder: str | Path) -> bool:
    """Whether `folder` holds a recording, whole or interrupted."""
    return any((Path(folder) / name).exists() for name in (MANIFEST, UNFINISHED))


def as_array(value: Tensor) -> np.ndarray:
    """`value` in memory as a numpy array; bfloat16, which numpy does not know, as float32."""
    value = value.detach().cpu()
    return (value.float() if value.dtype == torch.bfloat16 else value).numpy()


class Recording(Stored):
    """A recording's arrays by name, as read-only memory maps (episode, position, …) of which only what is touched is read.

    ``recording["blocks.1.hook_resid_post"]`` is what a hook point saw; likewise "tokens", "targets", "prediction",
    "composition", "codes.<name>", and "untrained/<site>" where the untrained control was recorded. `sites` names the hook
    points; ``recording.part("ood")`` is the slice of a split's rows.

    Args:
        folder: what `record` wrote; another, or one that was interrupted, is a `ConfigError`.
    """

    def __init__(self, folder: str | Path) -> None:
        folder = Path(folder)
        interrupted = (folder / UNFINISHED).exists()
        require(not interrupted, f"{folder} is not whole: the recording was interrupted, or goes on; record it again")
        require((folder / MANIFEST).is_file(), f"{folder} holds no recording (no {MANIFEST}); make one with compolens record")
        super().__init__(folder)
        found = files.read_json(folder / MANIFEST)
        whole = (
            isinstance(found, dict) and {"sites", "step", "known", "roles", "cfg"} <= set(found) and found.get("format") == 1
        )
        require(whole, f"{folder / MANIFEST} does not describe a recording; record it again")
        digests.check(folder, MANIFEST)
        self.info: dict[str, Any] = found

    def __getitem__(self, name: str) -> np.ndarray:
        if name not in self.names:
            raise ConfigError(f"{self.folder} holds no array {name!r}; {nearest(name, self.names)}")
        return self.array(name)

    def __len__(self) -> int:
        return max(stop for _, stop in self.rows.values())

    def __repr__(self) -> str:
        held = ", ".join(f"{split} {stop - start:,}" for split, (start, stop) in self.rows.items())
        return f"Recording({str(self.folder)!r}: {held} episodes; {', '.join(self.sites)})"

    @property
    def sites(self) -> list[str]:
        return list(self.info["sites"])

    @property
    def names(self) -> list[str]:
        """Everything that can be asked for."""
        plain = [*self.sites, *EPISODE_ARRAYS, *(f"codes.{name}" for name in self.manifest["codes"])]
        return plain + [f"{UNTRAINED}/{name}" for name in [*self.sites, "prediction"] if self.info.get(UNTRAINED)]

    def part(self, split: str) -> slice:
        """The rows of `split` as a slice, for indexing arrays."""
        rows = self.of_split(split)
        return slice(int(rows[0]), int(rows[-1]) + 1)

    @cached_property
    def split(self) -> np.ndarray:
        """(episode,) words."""
        words = np.empty(len(self), dtype="<U5")
        for split in self.rows:
            words[self.part(split)] = split
        return words

    @property
    def codes(self) -> dict[str, np.ndarray]:
        return {name: self.array(f"codes.{name}") for name in self.manifest["codes"]}

    # ---- which episode is this? --------------------------------------------------------------------------------------
    @cached_property
    def _index(self) -> tuple[np.ndarray, np.ndarray]:
        """(fingerprint, row), sorted by fingerprint."""
        tokens = self.array("tokens")
        prints = np.concatenate([_fingerprints(np.array(tokens[i : i + CHUNK])) for i in range(0, len(tokens), CHUNK)])
        order = np.argsort(prints, kind="stable")
        return prints[order], order

    def rows_of(self, tokens: Tensor) -> np.ndarray:
        """The rows of episodes, recognised by their tokens bit for bit.

        Args:
            tokens: (batch, seq, d_in), as recorded.

        Returns:
            (batch,) ints.

        Raises:
            NotRecorded: an episode is none of those recorded.
            ConfigError: the tokens are of another shape or type.
        """
        recorded, wanted = self.array("tokens"), as_array(tokens)
        fits = wanted.shape[1:] == recorded.shape[1:] and wanted.dtype == recorded.dtype
        require(fits, f"recorded were tokens {recorded.dtype} {recorded.shape[1:]}, not {wanted.dtype} {wanted.shape[1:]}")
        if not len(wanted):
            return np.empty(0, dtype=np.int64)
        prints, order = self._index
        rows = order[np.searchsorted(prints, _fingerprints(wanted)).clip(max=len(order) - 1)]
        unknown = (np.array(recorded[rows]) != wanted).reshape(len(rows), -1).any(1)
        if unknown.any():
            raise NotRecorded(
                f"{int(unknown.sum())} of {len(rows)} episodes are none of those in {self.folder}; a recording replays what "
                "was recorded, and answers nothing else: measure the model itself"
            )
        return rows


def _fingerprints(tokens: np.ndarray) -> np.ndarray:
    """(batch,) uint64: of the bits of each episode's tokens (splitmix64's finaliser, summed over words)."""
    flat = np.ascontiguousarray(tokens).reshape(len(tokens), -1)
    words = flat.view(np.uint32 if flat.itemsize % 4 == 0 else np.uint8).astype(np.uint64)
    words += np.arange(1, words.shape[1] + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        words = (words ^ (words >> np.uint64(shift))) * np.uint64(factor)
    return (words ^ (words >> np.uint64(31))).sum(1, dtype=np.uint64)
