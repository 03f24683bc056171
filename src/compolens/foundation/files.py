"""Files that survive: safetensors and JSON written atomically, read back with checks, and a lock on a folder."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from compolens.foundation.configs import ConfigError


class SaveError(OSError):
    """Saving failed; whatever was there before is untouched."""


class DamagedFile(ConfigError):
    """A file that is not what was written, or that cannot be read as what it should be; the message names it."""


class NotAFile(DamagedFile, OSError):
    """Something else lies where a file is read."""


def write_atomically(path: Path, content: bytes) -> None:
    """All of the content or none of it: written beside the target, flushed to disk, then renamed over it.

    Args:
        path: the target.
        content: all of it.

    Raises:
        SaveError: the disk refused.
    """
    temporary = ""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp")
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except OSError as error:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise SaveError(
            f"could not save {path}: {error.strerror or error}; what was there before is untouched. {way_out(error)}"
        ) from error


def json_bytes(value: Any) -> bytes:
    """Indented JSON of `value`, as `write_json` writes it."""
    return (json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode()


WAYS_OUT = {
    errno.ENOSPC: "Free some space and start again; a training goes on from its last checkpoint",
    errno.EDQUOT: "Free some space of your quota and start again; a training goes on from its last checkpoint",
    errno.EFBIG: "This process may write no larger files (ulimit -f); raise that limit and start again",
    errno.EROFS: "Nothing can be written on this file system; choose a folder on another",
    errno.EACCES: "You may not write there; choose another folder, or ask its owner",
    errno.EPERM: "You may not write there; choose another folder, or ask its owner",
    errno.ELOOP: "A link lies there, which is not followed; remove it",
    errno.ENAMETOOLONG: "Choose a shorter name",
    errno.ENOENT: "There is no such folder, and none can be made there; choose another",
    errno.EEXIST: "A file lies where a folder should be; choose another folder",
    errno.ENOTDIR: "A file lies where a folder should be; choose another folder",
    errno.EISDIR: "A folder lies where the file should be; move it away",
}
"""Reason for which nothing could be written -> what to do about it."""


def way_out(error: OSError) -> str:
    """What to do where something could not be written.

    Args:
        error: what the system said; its `errno` is looked up in `WAYS_OUT`.

    Returns:
        A sentence without its full stop; of an unknown reason, a general one.
    """
    return WAYS_OUT.get(error.errno or 0, "Mend that and start again; a training goes on from its last checkpoint")


SUBFOLDERS = ("tables", "steps", "more", "untrained")
"""Folders of a folder, whose files are the folder's own."""


def leads_out(path: Path, folder: Path) -> bool:
    """Whether what lies in a folder is a link that leads out of it.

    In the cache of the Hugging Face hub every file is a link to the blobs of its repository; these are its own too. The folder
    itself may be a link.

    Args:
        path: the file.
        folder: the folder, or one around it.

    Returns:
        False for what lies in the folder, or among the hub's blobs.
    """
    for part in (path, *path.parents):  # mostly nothing on the way is a link, which is seen without following all of them
        if part == folder:
            return False
        if part.name == ".." or part.is_symlink():
            break
    real, root = path.resolve(), folder.resolve()
    blobs = [above.parent / "blobs" for above in root.parents if above.name == "snapshots"]
    return not real.is_relative_to(root) and real.parent not in blobs


def require_regular(path: Path) -> None:
    """Check that what lies under a name is a file of its folder, or nothing: a device or a pipe could be read for ever, and a
    link may lead to what is not the folder's.

    Args:
        path: the name; its folder is the one it lies in, or the one around `SUBFOLDERS`.

    Raises:
        NotAFile: a folder, a device, a pipe or a link out of the folder lies there, or no file can have this name.
    """
    folder = path.parent.parent if path.parent.name in SUBFOLDERS else path.parent
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            raise NotAFile(f"{path} is no file (a folder, a pipe or a device lies there); restore it, or move it away")
        if leads_out(path, folder):
            raise NotAFile(
                f"{path} is a link that leads out of {folder}, to {path.resolve()}; put the file itself there, or make the "
                "whole folder a link"
            )
    except (FileNotFoundError, NotADirectoryError):
        return
    except (OSError, ValueError) as error:  # longer than any name, or with characters that none has
        if isinstance(error, NotAFile):
            raise
        raise NotAFile(f"{path} can be no file: {getattr(error, 'strerror', None) or error}") from error


def write_json(path: Path, value: Any) -> None:
    """Indented JSON, atomically.

    Args:
        path: the file.
        value: what it holds.
    """
    write_atomically(path, json_bytes(value))


def read_json(path: Path) -> Any:
    """Parsed JSON of the file `path`; a one-line `ConfigError` that names it where it is none."""
    require_regular(path)
    try:
        return json.loads(path.read_bytes().decode())
    except (ValueError, RecursionError) as error:  # no JSON, no text, or lists in lists without end
        reason = " ".join(str(error).split())[:200]
        raise DamagedFile(f"{path} is not valid JSON ({reason}); restore it or train the run again") from error
    except OSError as error:
        raise DamagedFile(f"{path} cannot be read ({error.strerror or error}); restore it or train the run again") from error


def write_tensors(path: Path, tensors: dict[str, Any], metadata: dict[str, Any] | None = None) -> None:
    """Tensors as safetensors, atomically. Tensors that share memory (tied weights) are written once each.

    Args:
        path: the file.
        tensors: name -> tensor.
        metadata: JSON-ready, kept in the file's header.
    """
    from safetensors.torch import save

    ours = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    taken: set[int] = set()
    for name, tensor in ours.items():  # safetensors refuses tensors that share memory
        place = tensor.untyped_storage().data_ptr()
        ours[name] = tensor.clone() if place in taken else tensor
        taken.add(place)
    told = metadata or {}
    # one entry alone: safetensors writes several in random order, and equal runs shall make equal files
    header = {"compolens": json.dumps({**told, "digest": _digest(ours, told)})}
    write_atomically(path, save(ours, metadata=header))


def _digest(tensors: dict[str, Any], metadata: dict[str, Any]) -> str:
    """sha256 over all that a file says: safetensors itself does not notice a flipped bit, nor numbers read as another kind."""
    digest = hashlib.sha256(json.dumps(metadata).encode())
    for name in sorted(tensors):
        digest.update(f"{name} {tensors[name].dtype} {list(tensors[name].shape)}".encode())
        digest.update(_bytes(tensors[name]))
    return digest.hexdigest()


def _digest_of_bytes(tensors: dict[str, Any]) -> str:
    """The same as files had it before: over names and bytes alone."""
    digest = hashlib.sha256()
    for name in sorted(tensors):
        digest.update(name.encode())
        digest.update(_bytes(tensors[name]))
    return digest.hexdigest()


def _bytes(tensor: Any) -> Any:
    import torch

    return tensor.reshape(-1).view(torch.uint8).numpy()


def read_tensors(path: Path, whole: bool = False) -> tuple[dict[str, Any], dict[str, Any]]:
    """Read a safetensors file; one that is truncated or corrupted never loads.

    Args:
        path: the file.
        whole: somebody has compared the sha256 of the whole file already, so that the one inside need not be.

    Returns:
        Tensors by name, and the metadata.

    Raises:
        ConfigError: the file is truncated or corrupted; one line says which it is.
        DamagedFile: it is not what was written.
    """
    from safetensors import SafetensorError, safe_open

    require_regular(path)
    if not path.exists():
        raise ConfigError(f"there is no {path}; train the run, or choose a step that was kept")
    try:
        with safe_open(str(path), framework="pt") as file:
            metadata = json.loads((file.metadata() or {}).get("compolens", "{}"))
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            kept = {key: metadata.pop(key, None) for key in ("digest", "sha256")}
            if not whole and (
                kept["digest"] not in (None, _digest(tensors, metadata))
                or kept["sha256"] not in (None, _digest_of_bytes(tensors))
            ):
                raise ValueError("checksum mismatch")
            return tensors, metadata
    except (SafetensorError, AttributeError, TypeError, ValueError, RecursionError, OSError) as error:
        what = f"{path} is truncated or corrupted ({error})"
        raise DamagedFile(f"{what}; restore it, or train the run again into another folder") from error


def no_link(path: str, flags: int) -> int:
    """An `opener` of `open` for what is written in place: a link, which could lead anywhere, is not followed.

    Args:
        path: the file.
        flags: of `os.open`.

    Returns:
        The file's descriptor.

    Raises:
        OSError: it is a link, or cannot be opened.
    """
    return os.open(path, flags | os.O_NOFOLLOW, 0o644)


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Exclusive use of `folder`, for as long as the context lives; the kernel frees it when the process dies."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / ".lock"
    try:
        file = open(path, "w", opener=no_link)  # noqa: SIM115 - open for as long as the lock is held
    except OSError as error:
        raise SaveError(f"cannot make {path}: {error.strerror or error}. {way_out(error)}") from error
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        raise ConfigError(f"{folder} is in training by another process; wait for it or choose another --out") from None
    if os.fstat(file.fileno()).st_nlink == 0:  # its owner removed it between our opening and locking it
        file.close()
        with locked(folder):
            yield
        return
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            os.unlink(path)
        file.close()
