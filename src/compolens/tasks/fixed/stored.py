"""Episodes that lie on disk, one array a file, opened when they are asked for: what a fixed set and a recording share.

    <folder>/ episodes.json · tokens.npy · targets.npy · composition.npy · codes.<name>.npy · more/inputs.npy …

Rows are sorted by split: episodes.json, written last, says which rows are whose, and keeps the sha256 of every array's file,
which is compared when the array is first touched. Files above 256 MiB are not read through then: of these, the sha256 of 64
blocks of 1 MiB is compared; `compolens models --check` reads them whole.
"""

from __future__ import annotations

import os
import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from compolens.foundation import digests, files
from compolens.foundation.configs import ConfigError, nearest, require
from compolens.foundation.files import DamagedFile
from compolens.tasks.base import TaskFamily
from compolens.tasks.episodes import Episodes, check_drawing

MANIFEST = "episodes.json"
LOOKED_THROUGH = 2**28
"""Bytes of the largest file that is read through to compare its sha256; of a larger one, blocks are compared."""
FITTED = ("fit", "choose", "repair")
"""Purposes that end a measurement's seed ("0/fit") and that what is scored ("0/score") must share no episode with."""


class FewerEpisodes(UserWarning):
    """More episodes were asked for than are stored; each of those was measured once."""


class Stored:
    """The arrays of `folder`, memory-mapped: only rows that are taken are read."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self.manifest = _read(self.folder)
        self._arrays: dict[str, np.ndarray] = {}

    def array(self, name: str) -> np.ndarray:
        """The array called `name`, read-only: "tokens", "targets", "composition", "codes.<name>", "more/inputs", …"""
        if name not in self._arrays:
            path = self.folder / f"{name}.npy"
            files.require_regular(path)
            try:
                self._compare(name, path)
                array = np.load(path, mmap_mode="r", allow_pickle=False)
            except (OSError, ValueError, EOFError) as error:
                if isinstance(error, ConfigError):
                    raise
                reason = getattr(error, "strerror", None) or error
                raise DamagedFile(f"{path} cannot be read ({reason}); write the folder again") from error
            require(array.ndim > 0, f"{path} holds a single value, not a row per episode; write the folder again")
            stop = max(stop for _, stop in self.rows.values()) if not name.startswith("counterfactual/") else len(array)
            require(len(array) == stop, f"{path} holds {len(array)} rows, but {MANIFEST} says {stop}; write the folder again")
            self._arrays[name] = array
        return self._arrays[name]

    def _compare(self, name: str, path: Path) -> None:
        """Raise where a file is not the one that was written; nothing is known of those of folders from before digests."""
        known = self.manifest.get("files", {}).get(name)
        if known is None:
            return
        size = path.stat().st_size
        small = size <= LOOKED_THROUGH
        same = digests.of_file(path) == known["sha256"] if small else known.get("blocks") in (None, digests.of_blocks(path))
        if size != known["bytes"] or not same:
            raise _changed(path)

    @property
    def rows(self) -> dict[str, tuple[int, int]]:
        """split -> (start, stop)."""
        return {split: (start, stop) for split, (start, stop) in self.manifest["rows"].items()}

    def of_split(self, split: str) -> np.ndarray:
        """(row,) the rows of `split`; one that is not stored is a `ConfigError`."""
        if split not in self.rows:
            held = ", ".join(self.rows)
            raise ConfigError(f"{self.folder} holds no episodes of split {split!r}, only of {held}; write it with that split")
        return np.arange(*self.rows[split])

    @cached_property
    def composition(self) -> np.ndarray:
        """(row,) in memory, unlike the rest."""
        return np.array(self.array("composition"))

    @cached_property
    def rank(self) -> np.ndarray:
        """(row,) the rank of an episode among those of its composition."""
        _, which, count = np.unique(self.composition, return_inverse=True, return_counts=True)
        order = np.argsort(which, kind="stable")
        rank = np.empty(len(which), dtype=np.int64)
        rank[order] = np.arange(len(which)) - np.repeat(np.cumsum(count) - count, count)
        return rank

    def take(self, rows: np.ndarray) -> Episodes:
        """The episodes of `rows` (n,), in memory; token ids as one-hot vectors where a vocabulary is known."""

        def read(name: str) -> Tensor:
            return torch.from_numpy(np.array(self.array(name)[rows]))

        tokens, vocabulary = read("tokens"), self.manifest.get("vocabulary")
        if vocabulary is not None:
            tokens = torch.nn.functional.one_hot(tokens, vocabulary).float()
        if self.manifest.get("padding"):
            tokens = tokens * ~read("more/padding")[:, :, None].bool()
        codes = {name: read(f"codes.{name}") for name in self.manifest["codes"]}
        nuisances = {name: read(f"more/nuisances.{name}") for name in self.manifest.get("nuisances", [])}
        inputs = read("more/inputs") if self.manifest.get("inputs") else torch.from_numpy(rows[:, None].copy())
        return Episodes(tokens, read("targets"), codes, read("composition"), inputs, nuisances)


def damaged(folder: str | Path) -> list[str]:
    """A sentence for every array of `folder` that is not what was written, read from the first byte to the last; nothing of a
    folder that holds no episodes."""
    folder = Path(folder)
    if not (folder / MANIFEST).exists():
        return []
    try:
        known = {folder / f"{name}.npy": about["sha256"] for name, about in _read(folder).get("files", {}).items()}
        for path in known:
            files.require_regular(path)
        return [str(_changed(path)) for path, digest in known.items() if digests.of_file(path) != digest]
    except ConfigError as error:
        return [str(error)]


def _changed(path: Path) -> DamagedFile:
    return DamagedFile(f"{path} changed after it was written; write the folder again")


def _read(folder: Path) -> dict[str, Any]:
    path = folder / MANIFEST
    if not path.is_file():
        there = "is there, but holds none that are whole" if folder.is_dir() else "does not exist"
        raise ConfigError(f"no stored episodes: the folder {str(folder)!r} {there} (no {MANIFEST}); {_where_else(folder)}")
    manifest = files.read_json(path)
    try:
        found = manifest["format"], manifest["rows"].items(), manifest["codes"]
    except (KeyError, TypeError, AttributeError) as error:
        raise ConfigError(f"{path} does not describe stored episodes ({error!r}); write the folder again") from error
    require(found[0] == 1, f"{path} has format {found[0]!r}; this version reads 1")
    if digests.is_broken(manifest):
        raise DamagedFile(f"{path} changed after it was written; write the folder again")
    return manifest


def _where_else(folder: Path) -> str:
    """What to type where a folder is not found; it holds for every command, of which `train` alone takes another folder."""
    train = "a new training takes another folder: compolens train … --data DIR"
    if folder.is_absolute():
        return f"write one with FixedEpisodes.write(…), or put it there; {train}"
    return (
        f"the path counts from the folder in which you are, {os.getcwd()!r}, or from one above the model's: cd to the one in "
        f"which the training was begun, or write the episodes here with FixedEpisodes.write(…); {train}, and keeps its "
        "absolute path"
    )


def write_manifest(folder: Path, manifest: dict[str, Any]) -> None:
    """Write episodes.json, all of it or none, and last: a folder without it was interrupted.

    Args:
        folder: where it goes.
        manifest: what it holds, JSON-ready.
    """
    arrays = {path.relative_to(folder).with_suffix("").as_posix(): path for path in sorted(folder.rglob("*.npy"))}
    known: dict[str, dict[str, Any]] = {}
    for name, path in arrays.items():
        known[name] = {"bytes": path.stat().st_size, "sha256": digests.of_file(path)}
        if known[name]["bytes"] > LOOKED_THROUGH:
            known[name]["blocks"] = digests.of_blocks(path)
    files.write_json(folder / MANIFEST, digests.sealed({"format": 1, **manifest, "files": known}))


class StoredEpisodes(ABC):
    """What makes a task family draw stored episodes: to be named before the family among a class's bases.

    A batch holds no episode twice, unless it is larger than what is stored; batches are drawn independently.
    """

    @property
    @abstractmethod
    def stored(self) -> Stored:
        """Where the episodes lie."""

    def sample(self, n: int, split: str, rng: torch.Generator, compositions: Sequence[int] | None = None) -> Episodes:
        """Episodes of those stored, all equally likely: none twice, or, if fewer are stored, each as often as any, give or
        take one.

        `Episodes.inputs` are the rows' numbers unless inputs were stored.

        Args:
            n: how many, at least 1.
            split: "train", "test" or "ood".
            rng: the generator.
            compositions: only these of the split's compositions (None: all).

        Returns:
            `n` episodes, on the generator's device.

        Raises:
            ConfigError: n is below 1, or no episode of these compositions is stored in this split.
        """
        check_drawing(n, rng)
        pool = self._pool(split, compositions)
        whole, rest = divmod(n, len(pool))
        parts = [torch.randperm(len(pool), generator=rng, device=rng.device).cpu().numpy() for _ in range(whole)]
        parts += [_some(rest, len(pool), rng)] if rest else []
        return self.stored.take(pool[np.concatenate(parts)]).to(rng.device)

    def deal(
        self, n: int, split: str, seed: int | str, batch: int, compositions: Sequence[int] | None = None
    ) -> Iterator[Episodes]:
        """For measurements: batches of at most n episodes, none of them twice; a pure function of (seed, split).

        Of the splits test and ood, one half of every composition's episodes goes to what is fitted there (a seed that ends in
        one of `FITTED`), the other to what is scored ("…/score"), so that no readout is scored on episodes it was fitted on.

        Args:
            n: most episodes.
            split: "train", "test" or "ood".
            seed: of the measurement, and what for ("0/score").
            batch: most episodes at once.
            compositions: only these of the split's compositions (None: all).

        Returns:
            Batches of episodes; a `FewerEpisodes` warning says where fewer than `n` are stored.

        Raises:
            ConfigError: no episode of these compositions is stored in this split, or none for this purpose.
        """
        pool, purpose = self._pool(split, compositions), str(seed).rpartition("/")[2]
        if split != "train" and (purpose in FITTED or purpose == "score"):
            pool = pool[self.stored.rank[pool] % 2 == (purpose == "score")]
        require(len(pool) > 0, f"split {split!r} of {self.stored.folder} has a single episode per composition; store more")
        if n > len(pool):
            text = f"{n} episodes of split {split!r} were asked for; {len(pool)} are stored for this, and each is used once"
            warnings.warn(text, FewerEpisodes, stacklevel=3)
        assert isinstance(self, TaskFamily)
        order = torch.randperm(len(pool), generator=self.rng(f"measure/{seed}", split))[:n].numpy()
        for start in range(0, len(order), batch):
            yield self.stored.take(pool[order[start : start + batch]])

    def _pool(self, split: str, compositions: Sequence[int] | None) -> np.ndarray:
        """(row,) the rows to draw from."""
        assert isinstance(self, TaskFamily)
        chosen = self.choose_compositions(split, compositions)
        rows = self.stored.of_split(split)
        if compositions is not None:
            rows = rows[np.isin(self.stored.composition[rows], chosen)]
        if not len(rows):
            stored = np.unique(self.stored.composition[self.stored.of_split(split)]).tolist()
            raise ConfigError(
                f"{self.stored.folder} stores no episode of the compositions {list(chosen)[:8]} in split {split!r}; "
                f"{nearest('', map(str, stored))}"
            )
        return rows


def _some(n: int, pool: int, rng: torch.Generator) -> np.ndarray:
    """n different numbers below `pool`; a few of many are drawn without shuffling all."""
    if 8 * n < pool:
        drawn = torch.randint(pool, (2 * n,), generator=rng, device=rng.device).cpu().numpy()
        first = np.sort(np.unique(drawn, return_index=True)[1])
        if len(first) >= n:
            return drawn[first[:n]]
    return torch.randperm(pool, generator=rng, device=rng.device)[:n].cpu().numpy()
