"""A recording, written: batches are appended to growing files, and the folder is whole once all that describes it is there."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from torch import Tensor

from compolens.activations.reading import EPISODE_ARRAYS, MANIFEST, UNFINISHED, UNTRAINED, NotRecorded, as_array
from compolens.foundation import digests, files
from compolens.foundation.configs import nearest, require
from compolens.hooks import HookedModel
from compolens.measures.intervals import summarise
from compolens.models.base import Architecture
from compolens.tasks import FixedEpisodes
from compolens.tasks.base import TaskFamily
from compolens.tasks.episodes import SPLITS, Episodes
from compolens.tasks.fixed.stored import MANIFEST as EPISODES
from compolens.tasks.fixed.stored import write_manifest
from compolens.training import Run


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
    """Takes batches, split after split, and leaves a recording.

    Use it as a context: only where it ends without an error is the folder whole.

    Args:
        folder: a new one.
        model: whose hook points are recorded.
        sites: their names.
        run: what the model came from; scores of the recorded episodes are then written, too.
        step: of the model's weights.
        untrained: the untrained control, recorded as well.
        half: activations as float16; one that does not fit is an error. Everything else is kept as it is.
    """

    def __init__(
        self,
        folder: str | Path,
        model: HookedModel,
        sites: Sequence[str],
        run: Run | None = None,
        step: int | None = None,
        untrained: HookedModel | None = None,
        half: bool = False,
    ) -> None:
        self.folder, self.model, self.sites, self.untrained = Path(folder), model, list(dict.fromkeys(sites)), untrained
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
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            (self.folder / UNFINISHED).write_text("not whole: the recording was interrupted, or goes on\n")
        except OSError as error:
            self._take_back()
            raise _not_written(self.folder, error) from error
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        try:
            if error is None:
                self._finish()
        except OSError:
            self._take_back()
            raise
        finally:
            self._let_go()
        if isinstance(error, files.SaveError):
            self._take_back()

    def _let_go(self) -> None:
        for column in self.columns.values():
            with contextlib.suppress(OSError):  # what it still holds has no room
                column.file.close()
        if not self.columns:
            (self.folder / UNFINISHED).unlink(missing_ok=True)
            with contextlib.suppress(OSError):
                self.folder.rmdir()  # nothing came, so nothing is left behind

    def _take_back(self) -> None:
        """Remove what was written of a recording for which there is no room: it makes some."""
        self._let_go()
        written = [*(f"{name}.npy" for name in self.columns), EPISODES, "config.json", "scores.json", digests.FILE, MANIFEST]
        written.append(UNFINISHED)
        with contextlib.suppress(OSError):
            for name in written:
                (self.folder / name).unlink(missing_ok=True)
            for inner in ("more", UNTRAINED, ""):
                with contextlib.suppress(OSError):
                    (self.folder / inner).rmdir()  # refused where something else lies there

    def add(self, split: str, episodes: Episodes, prediction: Tensor, sites: dict[str, Tensor]) -> None:
        """Append one batch of a split; the batches of a split follow each other.

        Args:
            split: "train", "test" or "ood".
            episodes: the batch.
            prediction: (batch, seq, d_out), the model's.
            sites: hook point -> activation.

        Raises:
            ConfigError: there is no such split, or its batches do not follow each other.
        """
        require(split in SPLITS, f"no split {split!r}; {nearest(str(split), SPLITS)}")
        total, n = sum(stop - start for start, stop in self.rows.values()), len(episodes.tokens)
        start, stop = self.rows.setdefault(split, [total, total])
        require(stop == total, f"batches of split {split!r} must follow each other")
        self.rows[split] = [start, stop + n]
        parts = {name: getattr(episodes, name) for name in EPISODE_ARRAYS[:3]} | {"prediction": prediction}
        parts |= {f"codes.{name}": code for name, code in episodes.codes.items()} | {"more/inputs": episodes.inputs}
        parts |= {f"more/nuisances.{name}": value for name, value in episodes.nuisances.items()}
        for name, value in parts.items():
            self._put(name, as_array(value))
        for site, value in sites.items():
            self._put(site, self._narrow(site, as_array(value)))
        for name, code in episodes.codes.items():
            if not code.is_floating_point():
                self.levels[name] = max(self.levels.get(name, 0), 1 + int(code.max()))
        if self.run is not None:
            found = [*self.run.task.errors(prediction, episodes.targets), episodes.composition]
            self.measured.setdefault(split, []).append(np.stack([as_array(value).astype(float) for value in found]))

    def add_untrained(self, prediction: Tensor, sites: dict[str, Tensor]) -> None:
        """Append what the untrained control did on the batch just added.

        Args:
            prediction: (batch, seq, d_out).
            sites: hook point -> activation.
        """
        for name, value in (sites | {"prediction": prediction}).items():
            array = as_array(value)
            self._put(f"{UNTRAINED}/{name}", array if name == "prediction" else self._narrow(name, array))

    def _narrow(self, site: str, array: np.ndarray) -> np.ndarray:
        if not self.half or array.dtype.kind != "f":
            return array
        limit = float(np.finfo(np.float16).max)
        largest = float(np.abs(array[np.isfinite(array)]).max(initial=0))  # -inf, of what a mask hides, is the same in both
        require(
            not largest > limit,
            f"{site} reaches {largest:.3g}, more than float16 can hold ({limit:.3g}); leave half out, or this site",
        )
        return array.astype(np.float16)

    def _put(self, name: str, array: np.ndarray) -> None:
        try:
            if name not in self.columns:
                self.columns[name] = _Column(self.folder / f"{name}.npy", array)
            self.columns[name].append(name, array)
        except OSError as error:
            raise _not_written(self.folder / f"{name}.npy", error) from error

    def _finish(self) -> None:
        require(bool(self.rows), "no episode came, so nothing was recorded")
        for name, column in self.columns.items():
            try:
                column.close()
            except OSError as error:
                raise _not_written(self.folder / f"{name}.npy", error) from error
        run = self.run or Run(Recorded(), FixedEpisodes(os.fspath(self.folder.resolve())), steps=0)
        step = run.steps if self.step is None else self.step
        write_manifest(self.folder, self._episodes(run.task))
        files.write_json(self.folder / "config.json", run.config())
        manifest = {
            "format": 1,
            "sites": self.sites,
            "step": step,
            "known": self.run is not None,
            "roles": {name: [int(p) for p in positions] for name, positions in self.model.roles.items()},
            "cfg": {k: v for k, v in vars(self.model.cfg).items() if v is None or isinstance(v, bool | int | float | str)},
            "half": self.half,
            UNTRAINED: self.untrained is not None,
        }
        files.write_json(self.folder / MANIFEST, manifest)
        digests.finish(self.folder, self._scores(run, step))
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


def _not_written(path: Path, error: OSError) -> files.SaveError:
    return files.SaveError(f"could not write {path}: {error.strerror or error}; nothing is left of it. {files.way_out(error)}")


def _check_free(folder: Path) -> None:
    """Neither a recording nor anything else may be written over; only what an interrupted recording left behind."""
    require(not folder.exists() or folder.is_dir(), f"{folder} is a file; name a folder")
    interrupted = (folder / UNFINISHED).exists()
    require(
        interrupted or not (folder / MANIFEST).exists(),
        f"{folder} holds a recording already; delete it, or choose another folder",
    )
    if not interrupted:
        for name, what in (("config.json", "a trained model"), (EPISODES, "stored episodes")):
            require(not (folder / name).exists(), f"{folder} holds {what}; choose another folder to record into")
