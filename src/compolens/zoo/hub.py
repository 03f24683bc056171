"""Models on the Hugging Face hub: `push` a model folder, `load("owner/name")` it anywhere else.

A repository there holds the files of a model folder and nothing else. Both ways only such files pass: numbers (safetensors,
csv, parquet), descriptions (json) and a card. No code and no pickle is ever sent, fetched or run; classes that are not built
in are handed over by the caller, as for any folder.
"""

from __future__ import annotations

import fnmatch
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from compolens import zoo
from compolens.activations.reading import is_recording
from compolens.foundation import digests
from compolens.foundation.configs import ConfigError, nearest, require, shown
from compolens.foundation.files import DamagedFile, leads_out
from compolens.foundation.model_folders import named
from compolens.training import RESUME

FILES = (
    "config.json", "weights.safetensors", "scores.json", "history.csv", "digests.json", "README.md", "steps/*.safetensors",
    "tables/*.csv", "tables/*.csv.gz", "tables/*.json", "tables/*.episodes.parquet",
)  # fmt: skip
"""What a model folder holds."""
FOLDERS = ("runs", "trained_models")
"""Where models lie by default: a name that begins so is a folder's."""
NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
"""owner/name"""
CARD = """---
library_name: compolens
tags:
- compolens
- compositional-generalization
- interpretability
---

"""
HOW_TO_LOAD = """
## Load

```python
import compolens

trained = compolens.load("{name}")  # run, model, task, folder
```
"""


# ---- from the hub ----------------------------------------------------------------------------------------------------
def load(
    folder: str | Path,
    step: int | None = None,
    classes: Iterable[Callable[..., Any]] = (),
    device: str = "cpu",
    revision: str | None = None,
) -> zoo.TrainedModel:
    """A trained model from a folder, as `zoo.load`; or, where there is no such folder, from the hub by its "owner/name".

    What was fetched stays in the hub's cache, so that a model loads again without a network.

    Args:
        folder: a model's folder, or "owner/name".
        step: one of the kept steps (None: the final weights).
        classes: classes of your own that the run uses.
        device: "cpu" or "cuda".
        revision: a branch, tag or commit of the repository (None: its newest).

    Returns:
        The model, in evaluation mode, with its run and task.

    Raises:
        ConfigError: the hub can neither be reached nor is the model in the cache, or the folder does not load.
    """
    if _is_here(str(folder)):
        require(revision is None, f"{folder} is a folder here, which has no revisions; leave out revision={revision!r}")
        return zoo.load(folder, step, classes, device)
    return zoo.load(fetch(str(folder), revision), step, classes, device)


def _is_here(name: str) -> bool:
    """Whether a name means a folder of this machine: there is one, or it can be no name on the hub, or its first part is a
    folder here (then what follows was mistyped, and nobody is asked for it)."""
    owner = name.partition("/")[0]
    try:
        there = Path(name).exists()
    except (OSError, ValueError) as error:  # longer than any name of a file, or with characters that none has
        raise ConfigError(f"{shown(name)} can be no folder: {getattr(error, 'strerror', None) or error}") from error
    if there or not NAME.fullmatch(name):
        return True
    if Path(owner).is_dir() or owner in FOLDERS:
        held = sorted(path.parent.name for path in Path(owner).glob("*/config.json"))
        raise ConfigError(
            f"there is no folder {name}; {nearest(name.partition('/')[2], held)} (the hub is not asked; for a model of "
            f"{owner}'s there: load(compolens.zoo.hub.fetch({name!r})))"
        )
    return False


def fetch(name: str, revision: str | None = None) -> Path:
    """The folder of a model from the hub, in the hub's cache; fetched unless it is there already.

    Files that are no part of a model folder are not fetched.

    Args:
        name: "owner/name".
        revision: a branch, tag or commit (None: the newest).

    Returns:
        The folder.

    Raises:
        ConfigError: the hub gave no model of that name.
    """
    import huggingface_hub

    require(bool(NAME.fullmatch(name)), f"a model on the hub is named owner/name, got {name!r}")
    try:
        folder = Path(huggingface_hub.snapshot_download(name, revision=revision, allow_patterns=list(FILES)))
    except _failures() as error:
        raise ConfigError(f"there is no folder {name}, and the hub gave no model of that name: {_reason(error)}") from error
    require((folder / "config.json").is_file(), f"{name} on the hub holds no compolens model (no config.json)")
    return folder


# ---- to the hub ------------------------------------------------------------------------------------------------------
def push(
    folder: str | Path,
    name: str,
    *,
    private: bool = False,
    revision: str | None = None,
    classes: Iterable[Callable[..., Any]] = (),
) -> str:
    """Send a model folder to the hub. Log in first: ``hf auth login``.

    The folder must be finished, load, and hold nothing but what a model folder holds. The card gets what the hub reads at its
    head. Tables and kept steps that the folder no longer has are removed there too.

    Args:
        folder: the model's folder.
        name: "owner/name".
        private: seen by its owner alone, if the repository is new.
        revision: a branch, made if there is none (None: the main one).
        classes: as for `load`.

    Returns:
        The model's address on the hub.

    Raises:
        ConfigError: the folder or the name will not do, or the hub refused.
        DamagedFile: a file of the folder is not what was written.
    """
    import huggingface_hub

    folder = named(folder)
    require(bool(NAME.fullmatch(name)), f"a model on the hub is named owner/name, such as me/F-softmax-0; got {name!r}")
    files = checked_files(folder)
    zoo.load(folder, classes=classes)
    if told := digests.damaged(folder):
        raise DamagedFile(told[0])
    hub = huggingface_hub.HfApi()
    with tempfile.TemporaryDirectory() as place:
        _stage(folder, files, Path(place), name)
        try:
            address = hub.create_repo(name, private=private or None, exist_ok=True)
            if revision is not None:
                hub.create_branch(name, branch=revision, exist_ok=True)
            hub.upload_folder(
                repo_id=name, folder_path=place, revision=revision, commit_message=f"{folder.name}, by compolens",
                delete_patterns=["steps/*", "tables/*"],
            )  # fmt: skip
        except _failures() as error:
            raise ConfigError(f"{name} could not be sent to the hub: {_reason(error)}") from error
    return str(address) if revision is None else f"{address}/tree/{revision}"


def checked_files(folder: Path) -> list[str]:
    """The files of the finished model `folder`, relative to it and sorted; a `ConfigError` if it is unfinished or holds
    others."""
    zoo.read_step(folder) if (folder / "config.json").is_file() else zoo.read_run(folder)
    require(not is_recording(folder), f"{folder} is a recording, no model; push the model that it was recorded from")
    if told := digests.damaged(folder):
        raise DamagedFile(told[0])
    found = [path for path in folder.rglob("*") if (path.is_symlink() or not path.is_dir()) and not _is_litter(path)]
    names = sorted(path.relative_to(folder).as_posix() for path in found)
    away = [path for path in found if not path.is_file() or leads_out(path, folder)]
    if away:
        shown_away = ", ".join(path.relative_to(folder).as_posix() for path in sorted(away)[:5])
        raise ConfigError(
            f"{folder} leads out of itself, or to what is no file: {shown_away}; put the files themselves there and push again"
        )
    strange = [name for name in names if not _allowed(name)]
    if strange:
        shown = ", ".join(strange[:5]) + (", …" if len(strange) > 5 else "")
        raise ConfigError(f"{folder} holds what is no part of a model folder: {shown}; move it away and push again")
    return names


def _allowed(name: str) -> bool:
    return any(fnmatch.fnmatch(name, pattern) and name.count("/") == pattern.count("/") for pattern in FILES)


def _is_litter(path: Path) -> bool:
    """Locks, halves of files and checkpoints of trainings: neither sent nor complained about."""
    return path.name == RESUME or path.suffix in (".lock", ".tmp") or path.name == ".lock"


def _stage(folder: Path, files: list[str], place: Path, name: str) -> None:
    """Copies of exactly the checked files, with a card that the hub can read."""
    for file in files:
        (place / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(folder / file, place / file)
    card = place / "README.md"
    text = card.read_text(encoding="utf-8") if card.exists() else f"# {folder.name}\n"
    way = HOW_TO_LOAD.format(name=name)
    if text.startswith("---\n"):  # one that came from the hub has its head already, and says how it is loaded from there
        before, _, after = (re.escape(part) for part in HOW_TO_LOAD.partition("{name}"))
        card.write_text(re.sub(f"{before}{NAME.pattern}{after}", way, text), encoding="utf-8")
    else:
        card.write_text(CARD + text + way, encoding="utf-8")


def _failures() -> tuple[type[BaseException], ...]:
    """What the hub's client raises; among them what its HTTP library does, which is not the same in every version."""
    from huggingface_hub import errors

    return (*errors.HfHubHTTPError.__bases__, errors.HfHubHTTPError, errors.HFValidationError, OSError)


def _reason(error: BaseException) -> str:
    """Why, and what to do about it, in one line."""
    from huggingface_hub import errors

    if isinstance(error, errors.LocalTokenNotFoundError):
        return "you are not logged in; type: hf auth login"
    if isinstance(error, errors.RevisionNotFoundError):
        return "it has no such revision; leave it out for the newest"
    if isinstance(error, errors.RepositoryNotFoundError):
        return "there is no such repository, or it is private and you are not logged in (hf auth login)"
    if isinstance(error, errors.OfflineModeIsEnabled) or os.environ.get("HF_HUB_OFFLINE", "0") not in ("", "0"):
        return "HF_HUB_OFFLINE is set, and it does not lie in the cache; unset it to reach the hub"
    if isinstance(error, errors.HfHubHTTPError | errors.HFValidationError):
        return " ".join(str(error).split())[:200]
    return f"it cannot be reached from here ({' '.join(str(error).split())[:120]})"
