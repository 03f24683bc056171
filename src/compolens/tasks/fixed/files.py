"""Fixed episodes as files: the arrays of a .npz, .safetensors or .parquet file, and the folder that checked arrays become."""

from __future__ import annotations

import contextlib
import hashlib
import re
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from compolens.foundation.configs import ConfigError, nearest, require, shown
from compolens.foundation.files import SaveError, way_out
from compolens.tasks.episodes import SPLITS
from compolens.tasks.fixed.checks import Arrays, few
from compolens.tasks.fixed.stored import MANIFEST, Stored, write_manifest

OF_A_MODEL = ("config.json", "weights.safetensors", "scores.json", "resume.safetensors")
"""Files of which any says that a folder is a trained model's."""


def describe_arrays(found: Arrays, kinds: Mapping[str, str], d_x: int | None, blocks: Any) -> dict[str, Any]:
    """What the arrays do not say themselves.

    Args:
        found: the checked arrays.
        kinds: code -> "continuous" or "categorical", where its type says the wrong one.
        d_x: leading coordinates of a token that are the input, or None.
        blocks: groups of positions, or None.

    Returns:
        What the manifest holds besides the arrays.

    Raises:
        ConfigError: a code's name cannot be part of a file's, or a setting does not fit.
    """
    for name, code in found.codes.items():
        named = isinstance(name, str) and bool(re.fullmatch(r"[\w -]{1,100}", name))
        require(named, f"a code's name is part of a file's: at most 100 letters, digits, _ and -; got {shown(name)}")
        require(code.size > 0, f"codes[{name!r}] holds nothing: it is {code.shape}")
    require(
        isinstance(kinds, Mapping), f"kinds must be a mapping from codes to 'continuous' or 'categorical', got {shown(kinds)}"
    )
    for name, kind in kinds.items():
        require(name in found.codes, f"kinds names {name!r}, which is no code; {nearest(name, found.codes)}")
        require(kind in ("continuous", "categorical"), f"kinds[{name!r}] must be 'continuous' or 'categorical', got {kind!r}")
    seq, ids = found.tokens.shape[1], found.tokens.dtype.kind == "i"
    described = {n: "categorical" if code.dtype.kind == "i" else "continuous" for n, code in found.codes.items()} | dict(kinds)
    levels: dict[str, int] = {}
    for name, kind in described.items():
        code = found.codes[name]
        whole = kind == "continuous" or (code.min() >= 0 and bool((code == np.round(code)).all()))
        require(whole, f"codes[{name!r}] is categorical, so it must hold whole numbers from 0; it holds {code.min()}")
        if kind == "categorical":
            few(f"codes[{name!r}]", code, "levels")
            levels[name] = int(code.max()) + 1
    whole = isinstance(d_x, int | np.integer) and not isinstance(d_x, bool)
    fits = d_x is None or (whole and not ids and 0 < d_x <= found.tokens.shape[2])
    most = "and token ids have none" if ids else f"here a whole number from 1 to {found.tokens.shape[2]}"
    require(fits, f"d_x must be 1 to d_in coordinates, got {shown(d_x)}; {most}")
    last = found.answers == tuple(range(found.answers[0], seq))
    if blocks is not None:
        listed = isinstance(blocks, Sequence) and all(isinstance(block, Sequence) for block in blocks)
        require(listed, f"blocks must list groups of positions, such as [[0, 1], [2, 3]]; got {shown(blocks)}")
        every = [position for block in blocks for position in block]
        every = sorted(every) if all(type(position) is int for position in every) else every
        require(every == list(range(seq)), f"blocks must hold every position from 0 to {seq - 1} once, got {list(blocks)}")
    return {
        "rows": _rows(found.split),
        "answers": list(found.answers),
        "codes": list(found.codes),
        "kinds": described,
        "levels": levels,
        "names": {str(number): name for number, name in enumerate(found.names)},
        "vocabulary": int(found.tokens.max()) + 1 if ids else None,
        "n_classes": int(found.targets.max()) + 1 if found.targets.dtype.kind == "i" else None,
        "d_x": None if d_x is None else int(d_x),
        "pairs": d_x is not None and found.everywhere and last and found.targets.dtype.kind == "f",
        "blocks": None if blocks is None else [list(block) for block in blocks],
    }


def _rows(split: np.ndarray) -> dict[str, list[int]]:
    """split -> [start, stop] of sorted words."""
    rows, start = {}, 0
    for name in SPLITS:
        stop = start + int((split == name).sum())
        rows[name] = [start, stop]
        start = stop
    return rows


def save(folder: Path, arrays: dict[str, np.ndarray], described: dict[str, Any]) -> None:
    """Write arrays, then the manifest; the same episodes once more change nothing, others are refused.

    Args:
        folder: where they go.
        arrays: file name without suffix -> array.
        described: what `describe_arrays` returns.

    Raises:
        ConfigError: the folder holds other episodes, or a trained model.
        NotWritten: the folder cannot be written; nothing of the episodes is left in it.
    """
    digest = hashlib.sha256(repr(sorted(described.items(), key=lambda item: item[0])).encode())
    for name in sorted(arrays):
        digest.update(f"{name} {arrays[name].dtype} {arrays[name].shape}".encode())
        digest.update(arrays[name].tobytes())
    if (folder / MANIFEST).exists():
        same = Stored(folder).manifest.get("sha256") == digest.hexdigest()
        require(same, f"{folder} holds other episodes; delete it, or choose another folder")
        return
    model = next((name for name in OF_A_MODEL if (folder / name).exists()), None)
    require(
        model is None, f"{folder} holds a trained model ({model}), and episodes take a folder of their own; choose another"
    )
    path = folder
    try:
        (folder / "more").mkdir(parents=True, exist_ok=True)
        for name, array in arrays.items():
            path = folder / f"{name}.npy"
            path.parent.mkdir(exist_ok=True)
            np.save(path, array, allow_pickle=False)
        write_manifest(folder, described | {"sha256": digest.hexdigest()})
    except OSError as error:
        _remove(folder, arrays)
        if isinstance(error, SaveError):
            raise
        raise NotWritten(f"could not write {path}: {error.strerror or error}. {way_out(error)}") from error


class NotWritten(ConfigError, OSError):
    """The episodes could not be written; nothing of them is left."""


def _remove(folder: Path, arrays: Mapping[str, Any]) -> None:
    """Take back what was written of episodes that are not whole."""
    with contextlib.suppress(OSError):
        for name in arrays:
            (folder / f"{name}.npy").unlink(missing_ok=True)
        for below in ("counterfactual", "more"):
            if (folder / below).is_dir():
                (folder / below).rmdir()
        folder.rmdir()  # refused where something else lies there


def from_npz(path: Path) -> dict[str, Any]:
    """The arrays of the .npz file `path` by name; nothing is unpickled."""
    again = "write it again with numpy.savez(FILE, tokens=…, targets=…, composition=…, split=…)"
    require(zipfile.is_zipfile(path), f"{path} cannot be read: it is no .npz file, or not all of one; {again}")
    name = ""
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {}
            for name in file.files:
                arrays[name] = file[name]
            return arrays
    except (ValueError, OSError, EOFError, KeyError, RuntimeError, zipfile.BadZipFile, zlib.error) as error:
        if "Object arrays" in str(error):  # numpy advises to unpickle them, which runs what a file says
            raise ConfigError(
                f"{path} cannot be read: {name!r} holds Python objects; make it numbers, or words as numpy.array(words, "
                f"dtype=str), with rows of one shape, and {again}"
            ) from error
        raise ConfigError(f"{path} cannot be read: it is damaged{f' at {name!r}' if name else ''}; {again}") from error


def from_safetensors(path: Path) -> dict[str, Any]:
    """The arrays of the .safetensors file `path` by name; "split" 0, 1, 2 become words."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        columns: dict[str, Any] = load_file(str(path))
    except (SafetensorError, OSError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error
    if "split" in columns:
        numbered = columns["split"].tolist()
        wrong = next((k for k in numbered if k not in range(len(SPLITS))), None)
        require(wrong is None, f"{path}: split must be 0 (train), 1 (test) or 2 (ood), got {wrong}")
        columns["split"] = [SPLITS[k] for k in numbered]
    return columns


def from_parquet(path: Path) -> dict[str, Any]:
    """The columns of the .parquet file `path` by name."""
    import pandas as pd
    from pyarrow import ArrowException

    try:
        frame = pd.read_parquet(path)
    except (ArrowException, OSError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error
    return {str(name): frame[name].to_numpy() for name in frame.columns}


READERS = {".npz": from_npz, ".safetensors": from_safetensors, ".parquet": from_parquet}
"""File ending -> what reads its arrays, by name."""
