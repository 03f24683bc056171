"""What a model folder was when it was written: the sha256 of its files, kept beside them in digests.json.

digests.json holds config.json from the start of a training, and everything else when the training ends: it is written right
before scores.json, whose presence means "finished". A folder without it was written before digests and is read as ever; of a
file that it does not name nothing is said.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import re
import time
from pathlib import Path
from typing import Any

from compolens.foundation import files
from compolens.foundation.files import DamagedFile

FILE = "digests.json"
CONFIG, SCORES = "config.json", "scores.json"
KEPT = (CONFIG, SCORES, "history.csv", "weights.safetensors", "recording.json")
"""The files that have a digest, where they are there; the weights of kept steps have one too."""
STEP = re.compile(r"steps/[0-9]+\.safetensors")
SEAL = "itself"
"""Under this key a description holds the sha256 of all else in it."""
BLOCKS, BLOCK = 64, 2**20
"""How many blocks, and of how many bytes, `of_blocks` reads."""
TICK = 2_000_000_000
"""Nanoseconds for which a file's time stamps may not tell two writes apart."""


# ---- digests ---------------------------------------------------------------------------------------------------------
def of_bytes(content: bytes) -> str:
    """sha256 of `content`."""
    return hashlib.sha256(content).hexdigest()


def of_file(path: str | Path) -> str:
    """sha256 of the file `path`, "missing" where no regular file is there. A large one is read once in the life of a process,
    unless it changes."""
    path = Path(path)
    if not path.is_file():
        return "missing"
    stat = path.stat()
    if time.time_ns() - max(stat.st_mtime_ns, stat.st_ctime_ns) < TICK:
        return _read(path)
    return _read_once(str(path.resolve()), stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns)


def _read(path: str | Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@functools.lru_cache(maxsize=4096)
def _read_once(path: str, *stamp: int) -> str:
    return _read(path)


def of_blocks(path: str | Path) -> str:
    """sha256 of the size of a large file and of `BLOCKS` blocks of it, evenly spaced, the first and the last among them.

    A file that was cut off, written anew or overwritten at length differs there; with one flipped bit it mostly does not.

    Args:
        path: the file.

    Returns:
        64 hexadecimal digits.
    """
    size, digest = os.path.getsize(path), hashlib.sha256()
    digest.update(str(size).encode())
    with open(path, "rb") as file:
        for block in range(BLOCKS):
            file.seek(max(0, size - BLOCK) * block // (BLOCKS - 1))
            digest.update(file.read(BLOCK))
    return digest.hexdigest()


def sealed(description: dict[str, Any]) -> dict[str, Any]:
    """The `description` with the sha256 of what it says, so that a changed word in it is noticed."""
    rest = {key: value for key, value in description.items() if key != SEAL}
    plain = json.loads(json.dumps(rest))  # as it will be read: lists for tuples, strings for the keys of mappings
    return {**rest, SEAL: of_bytes(json.dumps(plain, sort_keys=True).encode())}


def is_broken(description: dict[str, Any]) -> bool:
    """Whether a `description` has a seal that does not fit what it says."""
    return SEAL in description and sealed(description)[SEAL] != description[SEAL]


# ---- what a folder keeps ---------------------------------------------------------------------------------------------
def kept(folder: str | Path) -> dict[str, str]:
    """File -> sha256, as `folder` keeps them; nothing of a folder from before digests."""
    path = Path(folder) / FILE
    if not path.exists():
        return {}
    found = files.read_json(path)
    whole = isinstance(found, dict) and SEAL in found and not is_broken(found)
    if not whole or found.get("format") != 1 or not isinstance(found.get("files"), dict):
        raise DamagedFile(
            f"{path} is not what was written; restore it. Where it cannot be had, delete it: nothing then says whether the "
            "other files of the folder are as they were written"
        )
    return {str(name): str(digest) for name, digest in found["files"].items()}


def is_kept(folder: str | Path, name: str) -> bool | None:
    """Whether a file of a folder is what was written.

    Args:
        folder: the model's folder.
        name: the file, relative to it.

    Returns:
        None where the folder keeps no digest of it.
    """
    digest = kept(folder).get(name)
    files.require_regular(Path(folder) / name)
    return None if digest is None else digest == of_file(Path(folder) / name)


def check(folder: str | Path, name: str) -> None:
    """Check that a file is what the folder says was written.

    Args:
        folder: the model's folder.
        name: the file, relative to it.

    Raises:
        DamagedFile: it is not.
    """
    if is_kept(folder, name) is False:
        raise damage(Path(folder) / name)


def damage(path: Path) -> DamagedFile:
    """What is said of the file `path`, which is not what was written."""
    if not path.exists():
        return DamagedFile(f"there is no {path}, which {FILE} beside it names; restore it, or train the run again")
    return DamagedFile(
        f"{path} changed after it was written: its sha256 is not the one in {FILE}. Restore it, or train the run again into "
        f"another folder; if the change is meant, delete {FILE} there"
    )


def damaged(folder: str | Path) -> list[str]:
    """A sentence for every file of `folder` that is not what was written; all of them are read, weights too."""
    try:
        names = [name for name in kept(folder) if name in KEPT or STEP.fullmatch(name)]
        begun = not (Path(folder) / SCORES).exists()  # what is there now is not yet the end
        checked = [CONFIG] if begun else names
        return [str(damage(Path(folder) / name)) for name in checked if is_kept(folder, name) is False]
    except DamagedFile as error:
        return [str(error)]


# ---- writing ---------------------------------------------------------------------------------------------------------
def begin(folder: Path) -> None:
    """Keep the digest of the description in `folder` that was just written, or found to be the one that was asked for."""
    if not (folder / FILE).exists():
        _write(folder, {CONFIG: of_file(folder / CONFIG)})


def finish(folder: Path, scores: dict[str, Any]) -> None:
    """Keep the digests of everything in a folder, then write its scores, which makes it finished.

    Args:
        folder: the model's folder.
        scores: what scores.json holds.
    """
    content = files.json_bytes(scores)
    _write(folder, _present(folder) | {SCORES: of_bytes(content)})
    files.write_atomically(folder / SCORES, content)


def take(folder: Path) -> None:
    """Keep the digests of the finished `folder` as it is now: for folders from before digests."""
    _write(folder, _present(folder) | {SCORES: of_file(folder / SCORES)})


def _present(folder: Path) -> dict[str, str]:
    steps = sorted(path.relative_to(folder).as_posix() for path in folder.glob("steps/*.safetensors"))
    names = [*(name for name in KEPT if name != SCORES), *(name for name in steps if STEP.fullmatch(name))]
    return {name: of_file(folder / name) for name in names if (folder / name).is_file()}


def _write(folder: Path, known: dict[str, str]) -> None:
    files.write_json(folder / FILE, sealed({"format": 1, "files": known}))


# ---- reading what is described ---------------------------------------------------------------------------------------
def read_config(folder: str | Path) -> dict[str, Any]:
    """What config.json says, whether or not it is what was written (`check` says that).

    Args:
        folder: The model's folder.

    Returns:
        "run": ``{"class": "Run", "architecture": {…}, …}``; and, from version 0.2 on, "setting": the task in a few words.

    Raises:
        DamagedFile: It says nothing of the kind; one line names the file.
    """
    path = Path(folder) / CONFIG
    config = files.read_json(path)
    if not isinstance(config, dict) or not isinstance(config.get("run"), dict):
        raise DamagedFile(f'{path} describes no run; it should hold {{"format": 1, "run": …}}')
    unknown = sorted(set(config) - {"format", "run", "setting"})
    if unknown:
        raise DamagedFile(f"{path} has the unknown key {unknown[0]!r}; allowed: format, run, setting")
    if config.get("format", 1) != 1:
        raise DamagedFile(
            f"{path} is of format {config['format']!r:.40}, and this version of compolens reads format 1; install a later "
            "version, or restore the file"
        )
    return config


def read_run(folder: str | Path) -> dict[str, Any]:
    """What config.json in `folder` says of a run, ``{"class": "Run", "architecture": {…}, …}``, whether or not it is what was
    written (`check` says that): one line that names the file where it says nothing of the kind."""
    return read_config(folder)["run"]


def read_scores(folder: str | Path) -> dict[str, Any]:
    """What scores.json of the finished `folder` says; one line that names the file where it is not what was written."""
    path = Path(folder) / SCORES
    scores = files.read_json(path)
    if not isinstance(scores, dict):
        raise DamagedFile(f"{path} holds no scores; restore it, or delete it and train the run again")
    check(folder, SCORES)
    return scores
