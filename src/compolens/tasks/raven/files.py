"""The files of RAVEN-10000 (1903.02741), read from a folder, averaged down and kept in memory. Nothing is written there.

    DIR/<configuration>/RAVEN_<number>_<train|val|test>.npz, of which three entries are read, without unpickling anything:

    image        (16, 160, 160) uint8   the eight panels shown, in reading order, then eight candidate answers
    target       0 to 7                 which candidate is the ninth panel
    meta_matrix  (8, 9) of 0 and 1      one row per rule, four rows per component: which rule, and on which attributes

The columns of meta_matrix are Constant, Progression, Arithmetic, Distribute_Three, then Number, Position, Type, Size, Color.
A component's first row is the rule on Number or Position (on both if it is constant), the others those on Type, Size, Color.
"""

from __future__ import annotations

import re
import zipfile
import zlib
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from compolens.foundation.configs import ConfigError, require

PIXELS = 160
"""Height and width of a panel on disk."""
SUBSETS = ("train", "val", "test")
CONFIGURATIONS = {
    "center_single": ("Center", 1),
    "distribute_four": ("2x2Grid", 1),
    "distribute_nine": ("3x3Grid", 1),
    "left_center_single_right_center_single": ("L-R", 2),
    "up_center_single_down_center_single": ("U-D", 2),
    "in_center_single_out_center_single": ("O-IC", 2),
    "in_distribute_four_out_center_single": ("O-IG", 2),
}
"""Folder -> (what the paper calls it, components)."""
RULES = ("constant", "progression", "arithmetic", "distribute three")
LAYOUT_RULES = (RULES[0], *(f"{rule} of {what}" for rule in RULES[1:] for what in ("number", "position")))
"""The rules on a component's layout: `RULES` on Number or on Position."""
ATTRIBUTES = ("layout", "type", "size", "color")
ABSENT = -1
"""The rules of a second component where there is none."""
KEYS = ("image", "target", "meta_matrix")
NAME = re.compile(rf"RAVEN_(\d+)_({'|'.join(SUBSETS)})\.npz")


class Puzzles(NamedTuple):
    """All puzzles of a folder.

    Args:
        panels: (puzzle, 9, size, size) uint8, the answer last.
        configuration: (puzzle,) an index into `CONFIGURATIONS`.
        rules: (puzzle, 2, 4), by component and attribute: indices into `LAYOUT_RULES` (layout) and `RULES`, or `ABSENT`.
        subset: (puzzle,) an index into `SUBSETS`.
    """

    panels: Tensor
    configuration: Tensor
    rules: Tensor
    subset: Tensor

    def to(self, device: torch.device) -> Puzzles:
        """The same puzzles on `device`."""
        return Puzzles(*(part.to(device) for part in self))


def read_puzzles(data: str, configurations: tuple[str, ...], size: int) -> Puzzles:
    """The puzzles of some configurations, in the order of their numbers, panels averaged down to size x size.

    Read once per process, about 1 ms a file, and again if files came or went: RAVEN-10000 is 70,000 files of 0.4 MB, of which
    3,600 bytes each are kept at size 20.

    Args:
        data: the folder of the set.
        configurations: the folders in it that are read.
        size: pixels of a side after averaging, a divisor of 160.

    Returns:
        The puzzles, on the CPU.
    """
    folders = [_folder(data, name) for name in configurations]
    return _read(tuple((folder, folder.stat().st_mtime_ns) for folder in folders), size)


@lru_cache(maxsize=2)
def _read(folders: tuple[tuple[Path, int], ...], size: int) -> Puzzles:
    parts = [_read_configuration(folder, size) for folder, _ in folders]
    return Puzzles(*(torch.cat(same) for same in zip(*parts, strict=True)))


def _folder(data: str, configuration: str) -> Path:
    """The folder of a configuration, or an error that says what to type."""
    fix = (
        "; name the folder that holds RAVEN-10000: Raven(data=…) in Python, compolens train … --data DIR, or, for a model "
        "that is trained, data in its config.json"
    )
    require(bool(data), f"Raven reads RAVEN-10000 from disk and downloads nothing, but has no folder to read{fix}")
    root = Path(data).expanduser()
    require(root.is_dir(), f"Raven: there is no folder {data!r}{fix}")
    found = [name for name in CONFIGURATIONS if (root / name).is_dir()]
    require(bool(found), f"Raven: {data!r} holds none of the folders {', '.join(CONFIGURATIONS)}{fix}")
    require(
        configuration in found,
        f"Raven: {data!r} has no folder {configuration!r}; read what is there with configurations={tuple(found)}",
    )
    return root / configuration


def _read_configuration(folder: Path, size: int) -> Puzzles:
    files, configuration = {}, folder.name
    for path in folder.glob("*.npz"):
        match = NAME.fullmatch(path.name)
        if match is not None:
            files[int(match[1]), SUBSETS.index(match[2])] = path
        elif not path.name.startswith("."):  # unpacked archives may hold hidden files of an operating system
            raise ConfigError(f"Raven: {path} is not named RAVEN_<number>_<train, val or test>.npz; move it elsewhere")
    require(bool(files), f"Raven: {folder} holds no file RAVEN_<number>_<train, val or test>.npz; unpack RAVEN-10000 there")
    keys = sorted(files)
    panels = np.empty((len(keys), 9, size, size), dtype=np.uint8)
    matrices = np.empty((len(keys), 8, 9), dtype=np.int64)
    for i, key in enumerate(keys):
        panels[i], matrices[i] = read_puzzle(files[key], size)
    place = list(CONFIGURATIONS).index(configuration)
    rules, bad = decode(matrices, CONFIGURATIONS[configuration][1])
    if bad is not None:
        raise ConfigError(
            f"Raven: the meta_matrix of {files[keys[bad]]} does not name the rules of a {configuration} puzzle, one each on "
            f"number or position, type, size and color, in {CONFIGURATIONS[configuration][1]} component(s); get the file anew"
        )
    subset = torch.tensor([key[1] for key in keys])
    return Puzzles(torch.from_numpy(panels), torch.full((len(keys),), place), torch.from_numpy(rules), subset)


def read_puzzle(path: Path, size: int) -> tuple[np.ndarray, np.ndarray]:
    """One file, its panels averaged down; the ninth panel is the right candidate.

    Args:
        path: the .npz file.
        size: pixels of a side after averaging, a divisor of 160.

    Returns:
        (panels (9, size, size) uint8, meta_matrix (8, 9)).

    Raises:
        ConfigError: the file cannot be read, or lacks an entry.
    """
    try:
        archive = np.load(path, allow_pickle=False)
        require(isinstance(archive, np.lib.npyio.NpzFile), f"Raven: {path} is no .npz archive; get the file anew")
        with archive:
            for key in KEYS:
                require(
                    key in archive.files, f"Raven: {path} has no {key!r}, only {', '.join(archive.files)}; get the file anew"
                )
            image, target, matrix = (archive[key] for key in KEYS)
    except ConfigError:
        raise
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise ConfigError(f"Raven: {path} cannot be read ({error or type(error).__name__}); get the file anew") from error
    n = 16 * PIXELS * PIXELS
    require(
        image.dtype == np.uint8 and image.size == n,
        f"Raven: the image of {path} must be (16, {PIXELS}, {PIXELS}) uint8, got {image.shape} {image.dtype}",
    )
    require(target.size == 1 and target.item() in range(8), f"Raven: the target of {path} must be 0 to 7, got {target}")
    require(matrix.shape == (8, 9), f"Raven: the meta_matrix of {path} must be (8, 9), got {matrix.shape}")
    image = image.reshape(16, PIXELS, PIXELS)
    return average(image[[*range(8), 8 + target.item()]], size), matrix


def average(panels: np.ndarray, size: int) -> np.ndarray:
    """The mean of every square of pixels, rounded (halves up).

    Args:
        panels: (n, 160, 160) uint8.
        size: pixels of a side of the result, a divisor of 160.

    Returns:
        (n, size, size) uint8.
    """
    side = PIXELS // size
    sums = panels.reshape(-1, size, side, PIXELS).sum(2, dtype=np.uint32).reshape(-1, size, size, side).sum(3)
    return ((2 * sums + side * side) // (2 * side * side)).astype(np.uint8)


def decode(matrices: np.ndarray, components: int) -> tuple[np.ndarray, int | None]:
    """Rules from the matrices that RAVEN's files hold.

    Args:
        matrices: (n, 8, 9) of 0 and 1, as the module describes.
        components: how many components the configuration has, 1 or 2.

    Returns:
        (rules (n, 2, 4) as in `Puzzles`, the first index that is no such matrix or None).
    """
    rows = matrices.reshape(-1, 2, 4, 9)
    which, on = rows[..., :4], rows[..., 4:]
    rule = which.argmax(-1)
    layout, position = rule[..., 0], on[..., 0, 1]
    constant = layout == 0
    rules = rule.copy()
    rules[..., 0] = np.where(constant, 0, 2 * layout - 1 + position)
    expected = np.zeros_like(rows)
    np.put_along_axis(expected[..., :4], rule[..., None], 1, axis=-1)
    expected[:, :, 0, 4] = constant | (position == 0)
    expected[:, :, 0, 5] = constant | (position == 1)
    for attribute in (1, 2, 3):
        expected[:, :, attribute, 5 + attribute] = 1
    expected[:, components:] = 0
    rules[:, components:] = ABSENT
    bad = np.flatnonzero((expected != rows).any((1, 2, 3)))
    return rules, int(bad[0]) if len(bad) else None
