"""Activations on disk: written as they stream by, reopened without being read, and replayed to probes in place of a model.

    <folder>/ recording.json · config.json · scores.json · <site>.npy · prediction.npy · tokens.npy · codes.<name>.npy …

Beside the activations lie the episodes that caused them, in the layout of `FixedEpisodes`. recording.json is written last: a
folder without it was interrupted.
"""

from __future__ import annotations

import contextlib
import copy
import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import SimpleNamespace, TracebackType
from typing import Any, NoReturn

import numpy as np
import torch
from torch import Tensor, nn

from compolens import checkpoints
from compolens.configs import ConfigError, DoesNotApply, describe, nearest, require
from compolens.hooks import HookedModel, HookPoint
from compolens.models.base import Architecture
from compolens.tasks import FixedEpisodes
from compolens.tasks.base import SPLITS, Episodes, TaskFamily
from compolens.tasks.stored_episodes import MANIFEST as EPISODES
from compolens.tasks.stored_episodes import Stored, StoredEpisodes, write_manifest
from compolens.training import Run, summarise

MANIFEST, UNFINISHED, TWIN = "recording.json", "recording.unfinished", "untrained"
EPISODE_ARRAYS = ("tokens", "targets", "composition", "prediction")
CHUNK = 4096


class NotRecorded(DoesNotApply, AttributeError):
    """Asked for something that only the model itself could answer."""


@dataclass(frozen=True)
class Recorded(Architecture):
    """Stands for the architecture where a recording does not say whose activations it holds."""

    def build(
        self,
        *,
        d_in: int,
        d_out: int,
        seq: int | None = None,
        answers: Sequence[int] = (-1,),
        d_x: int | None = None,
        mask: Tensor | None = None,
        blocks: Sequence[Sequence[int]] | None = None,
    ) -> HookedModel:
        raise NotRecorded("nothing says how to build this model; only what it did was recorded")


def is_recording(folder: str | Path) -> bool:
    """Whether a folder holds a recording, whole or interrupted."""
    return any((Path(folder) / name).exists() for name in (MANIFEST, UNFINISHED))


# ---- writing ---------------------------------------------------------------------------------------------------------
class _Column:
    """An .npy file that grows: rows are appended, and the header, which keeps room for any number of them, is written again at
    the end. Plain writes, since pages of a mapped file would count as this process' memory."""

    def __init__(self, path: Path, first: np.ndarray) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.dtype, self.shape, self.rows = first.dtype, first.shape[1:], 0
        self.file = open(path, "wb")  # noqa: SIM115 - open for as long as rows come
        self._header()
        self.start = self.file.tell()

    def _header(self) -> None:
        described = {"descr": np.lib.format.dtype_to_descr(self.dtype), "fortran_order": False}
        np.lib.format.write_array_header_1_0(self.file, described | {"shape": (self.rows, *self.shape)})

    def append(self, name: str, array: np.ndarray) -> None:
        same = array.dtype == self.dtype and array.shape[1:] == self.shape
        require(same, f"{name} was {self.dtype} {self.shape} an episode, and is {array.dtype} {array.shape[1:]} now")
        self.file.write(np.ascontiguousarray(array).data)
        self.rows += len(array)

    def close(self) -> None:
        self.file.seek(0)
        self._header()
        assert self.file.tell() == self.start, "numpy leaves room in the header for more rows"
        self.file.flush()
        os.fsync(self.file.fileno())
        self.file.close()


class Writer:
    """Takes batches, split after split, and leaves a recording. Use as a context: only where it ends without an error is the
    folder whole.

    run: what the model came from; scores of the recorded episodes are then written, too. half: activations as float16, of
    which those that do not fit are an error; everything else is kept as it is. twin: the untrained twin, recorded as well.
    """

    def __init__(
        self,
        folder: str | Path,
        model: HookedModel,
        sites: Sequence[str],
        run: Run | None = None,
        step: int | None = None,
        twin: HookedModel | None = None,
        half: bool = False,
    ) -> None:
        self.folder, self.model, self.sites, self.twin = Path(folder), model, list(dict.fromkeys(sites)), twin
        self.run, self.step, self.half = run, step, half
        require(len(self.sites) > 0, "name at least one hook point to record; list(model.hook_dict) names them")
        for site in self.sites:
            model.check_site(site)
            free = "/" not in site and site not in EPISODE_ARRAYS and not site.startswith("codes.")
            require(free, f"the hook point {site!r} cannot be a file's name beside {', '.join(EPISODE_ARRAYS)}; rename it")
        _check_free(self.folder)
        self.columns: dict[str, _Column] = {}
        self.rows: dict[str, list[int]] = {}
        self.levels: dict[str, int] = {}
        self.measured: dict[str, list[np.ndarray]] = {}

    def __enter__(self) -> Writer:
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / UNFINISHED).write_text("not whole: the recording was interrupted, or goes on\n")
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        try:
            if error is None:
                self._finish()
        finally:
            self._let_go()

    def _let_go(self) -> None:
        for column in self.columns.values():
            column.file.close()
        if not self.columns:
            (self.folder / UNFINISHED).unlink(missing_ok=True)
            with contextlib.suppress(OSError):
                self.folder.rmdir()  # nothing came, so nothing is left behind

    def add(self, split: str, episodes: Episodes, prediction: Tensor, sites: dict[str, Tensor]) -> None:
        """One batch of a split; the batches of a split follow each other."""
        require(split in SPLITS, f"no split {split!r}; {nearest(str(split), SPLITS)}")
        total, n = sum(stop - start for start, stop in self.rows.values()), len(episodes.tokens)
        start, stop = self.rows.setdefault(split, [total, total])
        require(stop == total, f"batches of split {split!r} must follow each other")
        self.rows[split] = [start, stop + n]
        parts = {name: getattr(episodes, name) for name in EPISODE_ARRAYS[:3]} | {"prediction": prediction}
        parts |= {f"codes.{name}": code for name, code in episodes.codes.items()} | {"more/inputs": episodes.inputs}
        parts |= {f"more/nuisances.{name}": value for name, value in episodes.nuisances.items()}
        for name, value in parts.items():
            self._put(name, _array(value))
        for site, value in sites.items():
            self._put(site, self._narrow(site, _array(value)))
        for name, code in episodes.codes.items():
            if not code.is_floating_point():
                self.levels[name] = max(self.levels.get(name, 0), 1 + int(code.max()))
        if self.run is not None:
            found = [*self.run.task.errors(prediction, episodes.targets), episodes.composition]
            self.measured.setdefault(split, []).append(np.stack([_array(value).astype(float) for value in found]))

    def add_twin(self, prediction: Tensor, sites: dict[str, Tensor]) -> None:
        """What the untrained twin did on the batch just added."""
        for name, value in (sites | {"prediction": prediction}).items():
            array = _array(value)
            self._put(f"{TWIN}/{name}", array if name == "prediction" else self._narrow(name, array))

    def _narrow(self, site: str, array: np.ndarray) -> np.ndarray:
        if not self.half or array.dtype.kind != "f":
            return array
        limit = float(np.finfo(np.float16).max)
        largest = float(np.abs(array).max(initial=0))
        require(not largest > limit, f"{site} reaches {largest:.3g}, more than float16 can hold ({limit:.3g}); leave half out")
        return array.astype(np.float16)

    def _put(self, name: str, array: np.ndarray) -> None:
        try:
            if name not in self.columns:
                self.columns[name] = _Column(self.folder / f"{name}.npy", array)
            self.columns[name].append(name, array)
        except OSError as error:
            raise checkpoints.SaveError(f"could not write {self.folder / name}.npy: {error.strerror or error}") from error

    def _finish(self) -> None:
        require(bool(self.rows), "no episode came, so nothing was recorded")
        for column in self.columns.values():
            column.close()
        run = self.run or Run(Recorded(), FixedEpisodes(os.fspath(self.folder.resolve())), steps=0)
        step = run.steps if self.step is None else self.step
        write_manifest(self.folder, self._episodes(run.task))
        checkpoints.write_json(self.folder / "config.json", {"format": 1, "run": describe(run)})
        checkpoints.write_json(self.folder / "scores.json", self._scores(run, step))
        manifest = {
            "format": 1,
            "sites": self.sites,
            "step": step,
            "known": self.run is not None,
            "roles": {name: [int(p) for p in positions] for name, positions in self.model.roles.items()},
            "cfg": {k: v for k, v in vars(self.model.cfg).items() if v is None or isinstance(v, bool | int | float | str)},
            "half": self.half,
            TWIN: self.twin is not None,
        }
        checkpoints.write_json(self.folder / MANIFEST, manifest)
        (self.folder / UNFINISHED).unlink()

    def _episodes(self, task: TaskFamily) -> dict[str, Any]:
        """What `FixedEpisodes` reads; where the task is not known, the model's readout positions are its answers."""
        names = list(self.columns)
        known = self.run is not None
        codes = [name.removeprefix("codes.") for name in names if name.startswith("codes.")]
        seq, classes = self.columns["tokens"].shape[0], self.columns["targets"].dtype.kind == "i"
        read = [p for p in self.model.roles["readout"] if p < seq] or [seq - 1]
        guessed = {name: "categorical" if name in self.levels else "continuous" for name in codes}
        mask = task.mask if known else None
        which = np.unique(np.load(self.folder / "composition.npy", mmap_mode="r")).tolist() if known else []
        return {
            "rows": self.rows,
            "answers": list(task.answers) if known else read,
            "codes": codes,
            "kinds": dict(task.code_kinds) if known else guessed,
            "levels": self.levels,
            "names": {str(c): task.composition_name(c) for c in which},
            "nuisances": [name.removeprefix("more/nuisances.") for name in names if name.startswith("more/nuisances.")],
            "inputs": True,
            "n_classes": self.columns["prediction"].shape[-1] if classes else None,
            "d_x": getattr(task, "d_x", None) if known else None,
            "mask": None if mask is None else mask.int().tolist(),
            "blocks": task.blocks if known else None,
        }

    def _scores(self, run: Run, step: int) -> dict[str, Any]:
        """As a training's, of the recorded episodes."""
        scores: dict[str, Any] = {"step": step, "score": run.task.score_name if self.run else "score"}
        for split, parts in self.measured.items():
            error, weight, composition = np.concatenate(parts, axis=1)
            found = summarise(error, weight, composition.astype(int))
            scores[split] = {"score": found.score, "se": found.se, "episodes": len(error)}
        return scores | {"parameters": sum(p.numel() for p in self.model.parameters()), "environments": []}


def _array(value: Tensor) -> np.ndarray:
    """In memory; bfloat16, which numpy does not know, as float32."""
    value = value.detach().cpu()
    return (value.float() if value.dtype == torch.bfloat16 else value).numpy()


def _check_free(folder: Path) -> None:
    """Neither a recording nor anything else may be written over; only what an interrupted recording left behind."""
    require(not folder.exists() or folder.is_dir(), f"{folder} is a file; name a folder")
    require(not (folder / MANIFEST).exists(), f"{folder} holds a recording already; delete it, or choose another folder")
    if not (folder / UNFINISHED).exists():
        for name, what in (("config.json", "a trained model"), (EPISODES, "stored episodes")):
            require(not (folder / name).exists(), f"{folder} holds {what}; choose another folder to record into")


# ---- reading ---------------------------------------------------------------------------------------------------------
class Recording(Stored):
    """A recording's arrays by name: ``recording["blocks.1.hook_resid_post"]`` is a read-only memory map (episode, position, …)
    of which only what is touched is read; likewise "tokens", "targets", "prediction", "composition", "codes.<name>", and
    "untrained/<site>" where the twin was recorded.

    sites: the hook points; ``recording.part("ood")`` the slice of a split's rows.
    """

    def __init__(self, folder: str | Path) -> None:
        folder = Path(folder)
        interrupted = (folder / UNFINISHED).exists()
        require(not interrupted, f"{folder} is not whole: the recording was interrupted, or goes on; record it again")
        require((folder / MANIFEST).is_file(), f"{folder} holds no recording (no {MANIFEST}); make one with compolens record")
        super().__init__(folder)
        found = checkpoints.read_json(folder / MANIFEST)
        whole = (
            isinstance(found, dict) and {"sites", "step", "known", "roles", "cfg"} <= set(found) and found.get("format") == 1
        )
        require(whole, f"{folder / MANIFEST} does not describe a recording; record it again")
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
        return plain + [f"{TWIN}/{name}" for name in [*self.sites, "prediction"] if self.info.get(TWIN)]

    def part(self, split: str) -> slice:
        """The rows of a split, for indexing arrays."""
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
        """(batch,) the rows of episodes, recognised by their tokens bit for bit."""
        recorded, wanted = self.array("tokens"), _array(tokens)
        fits = wanted.shape[1:] == recorded.shape[1:] and wanted.dtype == recorded.dtype
        require(fits, f"recorded were tokens {recorded.dtype} {recorded.shape[1:]}, not {wanted.dtype} {wanted.shape[1:]}")
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


# ---- replaying -------------------------------------------------------------------------------------------------------
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
    """A model that knows its answers by heart: hook points show, and ``model(tokens)`` returns, what was recorded for these
    episodes. Other episodes, other hook points and every edit raise `NotRecorded`."""

    def __init__(self, recording: Recording, twin: bool = False) -> None:
        super().__init__()
        self.recording, self.prefix = recording, f"{TWIN}/" if twin else ""
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

    def forward(self, tokens: Tensor) -> Tensor:
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
    def why_no_twin(self) -> str:
        """Why there is no untrained twin ("" if there is one)."""
        held = self.recording.info.get(TWIN)
        return "" if held else "the untrained twin was not recorded; record it, too: compolens record … --untrained"

    def untrained_twin(self) -> Replay:
        """What the model as initialised did on the same episodes."""
        if self.why_no_twin:
            raise NotRecorded(self.why_no_twin)
        return Replay(self.recording, twin=True).to(self.anchor.device).eval()

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
    """The family as it is (loss, score, factors, references that know it), but for its episodes: those of the recording."""
    if isinstance(task, FixedEpisodes) and not recording.info["known"]:
        return FixedEpisodes(os.fspath(recording.folder))
    kind = type(type(task).__name__, (RecordedEpisodes, type(task)), {"__module__": type(task).__module__})
    drawn = copy.copy(task)
    object.__setattr__(drawn, "__class__", kind)
    object.__setattr__(drawn, "recording", recording)
    return drawn
